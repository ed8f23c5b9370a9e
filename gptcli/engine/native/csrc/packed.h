/* Products of several tokens with a panel: PANEL outputs of a matrix, copied as reals [inputs, PANEL]. */
#ifndef GPTCLI_PACKED_H
#define GPTCLI_PACKED_H

#include "products.h"

/* panel [n_inputs, PANEL] from W [I, O]: inputs from i on, outputs from `first` on, zeros after the last. */
INLINE void pack_columns(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                         int64_t n_outputs, real *panel) {
    const int64_t row_bytes = m->stride * size_of(dtype);
    const char *w = at(m->data, i * m->stride + first, dtype);
    for (int64_t k = 0; k < n_inputs; k++, w += row_bytes, panel += PANEL) {
        for (int64_t b = 0; b < PANEL * size_of(dtype); b += LINE) prefetch(w + SLICE * row_bytes + b);
        for (int j = 0; j < PANEL; j += LANES) {
            int64_t left = n_outputs - j;
            store(panel + j, left > 0 ? load_first(at(w, j, dtype), left, dtype) : splat(0));
        }
    }
}

/* The same from W [O, I]. */
#if defined(DOUBLE)
INLINE void pack_rows(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                      int64_t n_outputs, real *panel) {
    for (int64_t j = 0; j < PANEL; j++)
        for (int64_t k = 0; k < n_inputs; k += LANES) {
            int64_t left = smaller(LANES, n_inputs - k);
            const char *w = at(m->data, (first + j) * m->stride + i + k, dtype);
            vec v = j < n_outputs ? load_first(w, left, dtype) : splat(0);
            for (int64_t l = 0; l < left; l++) panel[(k + l) * PANEL + j] = v[l];
        }
}
#else
typedef real quarter __attribute__((vector_size(16)));
typedef quarter loose_quarter LOOSE;
typedef union { vec whole; quarter quarters[LANES / 4]; } Quarters;

/* Store four columns of four numbers as four rows, PANEL apart. */
INLINE void store_transposed(quarter a, quarter b, quarter c, quarter d, real *out) {
    for (int l = 0; l < 4; l++) *(loose_quarter *)(out + l * PANEL) = (quarter){a[l], b[l], c[l], d[l]};
}

/* Four outputs, or the n_rows < 4 that there are and zeros, of LANES inputs, or n_inputs < LANES and zeros. */
INLINE void pack_four_rows(Dtype dtype, const char *w, int64_t row_bytes, int64_t n_rows, int64_t n_inputs,
                           real *panel) {
    Quarters rows[4];
    for (int r = 0; r < 4; r++)
        rows[r].whole = r >= n_rows          ? splat(0)
                        : n_inputs == LANES ? load_stored(w + r * row_bytes, dtype)
                                            : load_first(w + r * row_bytes, n_inputs, dtype);
    for (int q = 0; q < LANES / 4; q++)
        store_transposed(rows[0].quarters[q], rows[1].quarters[q], rows[2].quarters[q], rows[3].quarters[q],
                         panel + 4 * q * PANEL);
}

INLINE void pack_rows(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                      int64_t n_outputs, real *panel) {
    const int64_t row_bytes = m->stride * size_of(dtype), whole = n_inputs / LANES * LANES;
    for (int64_t j = 0; j < PANEL; j += 4) {
        const char *w = at(m->data, (first + j) * m->stride + i, dtype);
        int64_t k = 0, n_rows = n_outputs - j;
        if (n_rows >= 4)
            for (; k < whole; k += LANES)
                pack_four_rows(dtype, at(w, k, dtype), row_bytes, 4, LANES, panel + k * PANEL + j);
        for (; k < n_inputs; k += LANES)
            pack_four_rows(dtype, at(w, k, dtype), row_bytes, n_rows, smaller(LANES, n_inputs - k),
                           panel + k * PANEL + j);
    }
}

#endif

INLINE void pack_of(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                    int64_t n_outputs, real *panel) {
    if (m->by_columns) pack_columns(dtype, m, i, n_inputs, first, n_outputs, panel);
    else pack_rows(dtype, m, i, n_inputs, first, n_outputs, panel);
}

static void pack(const Matrix *m, int64_t i, int64_t n_inputs, int64_t first, int64_t n_outputs,
                 real *panel) {
    switch (m->dtype) {
    case FLOAT32: pack_of(FLOAT32, m, i, n_inputs, first, n_outputs, panel); break;
    case BFLOAT16: pack_of(BFLOAT16, m, i, n_inputs, first, n_outputs, panel); break;
    case FLOAT16: pack_of(FLOAT16, m, i, n_inputs, first, n_outputs, panel); break;
    case INT8: pack_of(INT8, m, i, n_inputs, first, n_outputs, panel); break;
#if defined(DOUBLE)
    case FLOAT64: pack_of(FLOAT64, m, i, n_inputs, first, n_outputs, panel); break;
#endif
    }
}

/* sums [T, n_vectors * LANES] += x [T, n_inputs] · panel, for constants T and n_vectors, sums in registers. */
INLINE void add_tile(int T, int n_vectors, const real *x, int64_t x_stride, const real *panel,
                     int64_t n_inputs, real *sums, int64_t sums_stride) {
    vec total[TILE][PANEL_VECTORS], weight[PANEL_VECTORS];
    for (int t = 0; t < T; t++)
        for (int v = 0; v < n_vectors; v++) total[t][v] = splat(0);
    for (int64_t k = 0; k < n_inputs; k++) {
        for (int v = 0; v < n_vectors; v++) weight[v] = load(panel + k * PANEL + v * LANES);
        for (int t = 0; t < T; t++) {
            vec value = splat(x[t * x_stride + k]);
            for (int v = 0; v < n_vectors; v++) total[t][v] = multiply_add(value, weight[v], total[t][v]);
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < n_vectors; v++) {
            real *sum = sums + t * sums_stride + v * LANES;
            store(sum, load(sum) + total[t][v]);
        }
}

INLINE void add_tiles(int n_vectors, const real *x, int64_t x_stride, int64_t T, const real *panel,
                      int64_t n_inputs, real *sums, int64_t sums_stride) {
    int64_t t = 0;
    for (; t + TILE <= T; t += TILE)
        add_tile(TILE, n_vectors, x + t * x_stride, x_stride, panel, n_inputs, sums + t * sums_stride, sums_stride);
    x += t * x_stride;
    sums += t * sums_stride;
    switch (T - t) {
    case 1: add_tile(1, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
    case 2: add_tile(2, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
    case 3: add_tile(3, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
#if defined(__AVX512F__) || defined(__aarch64__)
    case 4: add_tile(4, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
    case 5: add_tile(5, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
    case 6: add_tile(6, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
    case 7: add_tile(7, n_vectors, x, x_stride, panel, n_inputs, sums, sums_stride); break;
#endif
    }
}

/* sums [T, n_outputs] = x [T, I] · W [I, first : first + n_outputs], panel by panel.
   A row of `sums` has room for whole vectors, `panel` for one panel [SLICE, PANEL]. */
static void add_packed(const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                       int64_t n_outputs, real *sums, int64_t sums_stride, real *panel) {
    clear(sums, sums_stride, T, n_outputs);
    for (int64_t i = 0; i < m->n_inputs; i += SLICE) {
        int64_t n_inputs = smaller(SLICE, m->n_inputs - i);
        for (int64_t j = 0; j < n_outputs; j += PANEL) {
            int64_t n = smaller(PANEL, n_outputs - j);
            pack(m, i, n_inputs, first + j, n, panel);
            switch ((n + LANES - 1) / LANES) {
            case 1: add_tiles(1, x + i, x_stride, T, panel, n_inputs, sums + j, sums_stride); break;
            case 2: add_tiles(2, x + i, x_stride, T, panel, n_inputs, sums + j, sums_stride); break;
            case 3: add_tiles(3, x + i, x_stride, T, panel, n_inputs, sums + j, sums_stride); break;
            }
        }
    }
}

/* The same by whichever way suits; `scratch` has room for a panel, and for as many sums as `sums`. */
static void multiply(const real *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                     int64_t n_outputs, real *sums, int64_t sums_stride, real *scratch) {
    if (T >= PACK_TOKENS || IS_DOUBLE) add_packed(x, x_stride, T, m, first, n_outputs, sums, sums_stride, scratch);
    else if (m->by_columns) add_columns(x, x_stride, T, m, first, n_outputs, sums, sums_stride, scratch);
    else dot_rows(x, x_stride, T, m, first, n_outputs, sums, sums_stride);
}

#endif
