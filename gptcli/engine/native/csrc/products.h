/* Products x·W of T tokens with some outputs of a matrix, which is read as it lies.

   Three ways, by how the matrix lies and how many tokens there are:
     dot_rows      W [O, I], fewer than PACK_TOKENS tokens: sums run along the rows of W, in registers
     add_columns   W [I, O], fewer than PACK_TOKENS tokens: rows of W times one input each, added to the sums
     add_packed    else, and for all doubles: a panel of PANEL outputs is copied and read from the cache by all tokens
   The products of an output are added in one order, whichever thread computes it and whatever is next to it;
   but for dot_rows, SLICE inputs are summed by themselves, and then the slices. */
#ifndef GPTCLI_PRODUCTS_H
#define GPTCLI_PRODUCTS_H

#include "widen.h"

enum {
    TILE = REGISTERS == 32 ? 8 : 4,        /* tokens that a tile has at most */
    PANEL_VECTORS = 3,                     /* TILE * PANEL_VECTORS sums leave registers for the operands */
    PANEL = PANEL_VECTORS * LANES,         /* outputs of a panel */
    SLICE = 96,                            /* inputs of a panel: it stays in the first cache */
    MAX_ROWS = 8,                          /* rows that a tile has at most */
    PACK_TOKENS = 64,                      /* from so many on, copying rows is cheaper than adding lanes */
    STEP = 8,                              /* rows of W [I, O] that are added at once */
    ROWS_AHEAD = 32,                       /* rows that are prefetched, by measurement */
    LINE = 64                              /* bytes of a cache line */
};

INLINE void prefetch(const char *p) { __builtin_prefetch(p, 0, 2); }

/* sums [T, R] = x [T, I] · W [R, I], for constants T and R. */
INLINE void dot_tile(int T, int R, Dtype dtype, const real *x, int64_t x_stride, const Matrix *m,
                     int64_t row, real *sums, int64_t sums_stride) {
    const int64_t I = m->n_inputs, whole = I / LANES * LANES;
    const char *w = at(m->data, row * m->stride, dtype), *ahead = at(w, ROWS_AHEAD * m->stride, dtype);
    const int64_t row_bytes = m->stride * size_of(dtype);
    vec total[TILE][MAX_ROWS], weight[MAX_ROWS];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) total[t][r] = splat(0);
    for (int64_t i = 0; i < whole; i += LANES) {
        /* Rows are short, so what is ahead is asked for as one piece of memory. */
        for (int64_t b = 0; b < R * LANES * size_of(dtype); b += LINE) prefetch(ahead + b);
        ahead += R * LANES * size_of(dtype);
        for (int r = 0; r < R; r++) weight[r] = load_stored(at(w + r * row_bytes, i, dtype), dtype);
        for (int t = 0; t < T; t++) {
            vec value = load(x + t * x_stride + i);
            for (int r = 0; r < R; r++) total[t][r] = multiply_add(value, weight[r], total[t][r]);
        }
    }
    if (whole < I) {
        for (int r = 0; r < R; r++) weight[r] = load_first(at(w + r * row_bytes, whole, dtype), I - whole, dtype);
        for (int t = 0; t < T; t++) {
            vec value = load_first(x + t * x_stride + whole, I - whole, REAL);
            for (int r = 0; r < R; r++) total[t][r] = multiply_add(value, weight[r], total[t][r]);
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) sums[t * sums_stride + r] = sum_lanes(total[t][r]);
}

/* As many rows as the registers hold sums for; the rest one by one. */
INLINE void dot_tiles(int T, Dtype dtype, const real *x, int64_t x_stride, const Matrix *m, int64_t first,
                      int64_t n_rows, real *sums, int64_t sums_stride) {
    const int R = PANEL_VECTORS * TILE / T < MAX_ROWS ? PANEL_VECTORS * TILE / T : MAX_ROWS;
    int64_t r = 0;
    for (; r + R <= n_rows; r += R) dot_tile(T, R, dtype, x, x_stride, m, first + r, sums + r, sums_stride);
    for (; r < n_rows; r++) dot_tile(T, 1, dtype, x, x_stride, m, first + r, sums + r, sums_stride);
}

INLINE void dot_rows_of(Dtype dtype, const real *x, int64_t x_stride, int64_t T, const Matrix *m,
                        int64_t first, int64_t n_rows, real *sums, int64_t sums_stride) {
    for (int64_t t = 0; t < T; t += TILE) {
        const real *tile = x + t * x_stride;
        real *out = sums + t * sums_stride;
        switch (smaller(T - t, TILE)) {
        case 1: dot_tiles(1, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 2: dot_tiles(2, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 3: dot_tiles(3, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 4: dot_tiles(4, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
#if defined(__AVX512F__) || defined(__aarch64__)
        case 5: dot_tiles(5, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 6: dot_tiles(6, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 7: dot_tiles(7, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
        case 8: dot_tiles(8, dtype, tile, x_stride, m, first, n_rows, out, sums_stride); break;
#endif
        }
    }
}

/* sums [T, n_outputs] = x [T, I] · W [first : first + n_outputs, I], so many rows at a time as stay in the cache. */
static void dot_rows(const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                     int64_t n_outputs, real *sums, int64_t sums_stride) {
    for (int64_t j = 0; j < n_outputs; j += PANEL) {
        int64_t n = smaller(PANEL, n_outputs - j);
        switch (m->dtype) {
        case FLOAT32: dot_rows_of(FLOAT32, x, x_stride, T, m, first + j, n, sums + j, sums_stride); break;
        case BFLOAT16: dot_rows_of(BFLOAT16, x, x_stride, T, m, first + j, n, sums + j, sums_stride); break;
        case FLOAT16: dot_rows_of(FLOAT16, x, x_stride, T, m, first + j, n, sums + j, sums_stride); break;
        case INT8: dot_rows_of(INT8, x, x_stride, T, m, first + j, n, sums + j, sums_stride); break;
        }
    }
}

/* n <= LANES columns of `add_rows`, for a constant n or the rest of a row. */
INLINE void add_rows_at(int T, int n_rows, Dtype dtype, const real *x, int64_t x_stride, const char *w,
                        int64_t row_bytes, int64_t n, real *sums, int64_t sums_stride) {
    vec weight[STEP];
    for (int r = 0; r < n_rows; r++) {
        prefetch(w + (n_rows + r) * row_bytes);
        weight[r] = load_first(w + r * row_bytes, n, dtype);
    }
    for (int t = 0; t < T; t++) {
        vec total = load(sums + t * sums_stride);
        for (int r = 0; r < n_rows; r++) total = multiply_add(splat(x[t * x_stride + r]), weight[r], total);
        store(sums + t * sums_stride, total);
    }
}

/* sums [T, n] += x [T, n_rows] · w [n_rows, n], for constants T and n_rows: a sum is loaded and stored once for
   all rows. The rows that come next are prefetched. */
INLINE void add_rows(int T, int n_rows, Dtype dtype, const real *x, int64_t x_stride, const char *w,
                     int64_t row_bytes, int64_t n, real *sums, int64_t sums_stride) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        add_rows_at(T, n_rows, dtype, x, x_stride, at(w, j, dtype), row_bytes, LANES, sums + j, sums_stride);
    if (j < n)
        add_rows_at(T, n_rows, dtype, x, x_stride, at(w, j, dtype), row_bytes, n - j, sums + j, sums_stride);
}

INLINE void add_rows_to(int64_t T, int n_rows, Dtype dtype, const real *x, int64_t x_stride, const char *w,
                        int64_t row_bytes, int64_t n, real *sums, int64_t sums_stride) {
    for (int64_t t = 0; t < T; t += TILE) { /* later tiles find the rows in the cache */
        const real *tile = x + t * x_stride;
        real *out = sums + t * sums_stride;
        switch (smaller(T - t, TILE)) {
        case 1: add_rows(1, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 2: add_rows(2, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 3: add_rows(3, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 4: add_rows(4, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
#if defined(__AVX512F__) || defined(__aarch64__)
        case 5: add_rows(5, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 6: add_rows(6, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 7: add_rows(7, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
        case 8: add_rows(8, n_rows, dtype, tile, x_stride, w, row_bytes, n, out, sums_stride); break;
#endif
        }
    }
}

INLINE void clear(real *sums, int64_t sums_stride, int64_t T, int64_t n) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < n; j += LANES) store(sums + t * sums_stride + j, splat(0));
}

INLINE void add_slice_of(Dtype dtype, const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t i,
                         int64_t first, int64_t n, real *sums, int64_t sums_stride) {
    const int64_t end = smaller(i + SLICE, m->n_inputs), row_bytes = m->stride * size_of(dtype);
    const char *w = at(m->data, first, dtype);
    clear(sums, sums_stride, T, n);
    for (; i + STEP <= end; i += STEP)
        add_rows_to(T, STEP, dtype, x + i, x_stride, w + i * row_bytes, row_bytes, n, sums, sums_stride);
    for (; i < end; i++)
        add_rows_to(T, 1, dtype, x + i, x_stride, w + i * row_bytes, row_bytes, n, sums, sums_stride);
}

/* sums [T, n_outputs] = x [T, i : i + SLICE] · W [i : i + SLICE, first : first + n_outputs].
   A row of `sums` has room for whole vectors. */
static void add_slice(const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t i, int64_t first,
                      int64_t n_outputs, real *sums, int64_t sums_stride) {
    switch (m->dtype) {
    case FLOAT32: add_slice_of(FLOAT32, x, x_stride, T, m, i, first, n_outputs, sums, sums_stride); break;
    case BFLOAT16: add_slice_of(BFLOAT16, x, x_stride, T, m, i, first, n_outputs, sums, sums_stride); break;
    case FLOAT16: add_slice_of(FLOAT16, x, x_stride, T, m, i, first, n_outputs, sums, sums_stride); break;
    }
}

/* sums [n] += more [n]; both have room for whole vectors. */
INLINE void add_sums(real *sums, const real *more, int64_t n) {
    for (int64_t j = 0; j < n; j += LANES) store(sums + j, load(sums + j) + load(more + j));
}

/* sums [T, n_outputs] = x [T, I] · W [I, first : first + n_outputs]; `slice` has room for as many sums. */
static void add_columns(const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                        int64_t n_outputs, real *sums, int64_t sums_stride, real *slice) {
    add_slice(x, x_stride, T, m, 0, first, n_outputs, sums, sums_stride);
    for (int64_t i = SLICE; i < m->n_inputs; i += SLICE) {
        add_slice(x, x_stride, T, m, i, first, n_outputs, slice, sums_stride);
        for (int64_t t = 0; t < T; t++) add_sums(sums + t * sums_stride, slice + t * sums_stride, n_outputs);
    }
}

#endif
