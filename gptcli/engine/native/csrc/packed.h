/* Products of several tokens with a panel: PANEL outputs of a matrix, copied as float32 [inputs, PANEL]. */
#ifndef GPTCLI_PACKED_H
#define GPTCLI_PACKED_H

#include "products.h"

/* panel [n_inputs, PANEL] from W [I, O]: inputs from i on, outputs from `first` on, zeros after the last. */
INLINE void pack_columns(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                         int64_t n_outputs, float *panel) {
    const int64_t row_bytes = m->stride * size_of(dtype);
    const char *w = at(m->data, i * m->stride + first, dtype);
    for (int64_t k = 0; k < n_inputs; k++, w += row_bytes, panel += PANEL) {
        for (int64_t b = 0; b < PANEL * size_of(dtype); b += LINE) prefetch(w + PANEL_INPUTS * row_bytes + b);
        for (int j = 0; j < PANEL; j += LANES) {
            int64_t left = n_outputs - j;
            store(panel + j, left >= LANES ? load_stored(at(w, j, dtype), dtype)
                             : left > 0    ? load_first(at(w, j, dtype), left, dtype)
                                           : splat(0));
        }
    }
}

/* The same from W [O, I]. */
INLINE void pack_rows(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                      int64_t n_outputs, float *panel) {
    for (int64_t j = 0; j < PANEL; j++) {
        const char *w = at(m->data, (first + smaller(j, n_outputs - 1)) * m->stride + i, dtype);
        for (int64_t k = 0; k < n_inputs; k += LANES) {
            int64_t n = smaller(LANES, n_inputs - k);
            vec v = n == LANES ? load_stored(at(w, k, dtype), dtype) : load_first(at(w, k, dtype), n, dtype);
            for (int64_t l = 0; l < n; l++) panel[(k + l) * PANEL + j] = j < n_outputs ? v[l] : 0;
        }
    }
}

INLINE void pack_of(Dtype dtype, const Matrix *m, int64_t i, int64_t n_inputs, int64_t first,
                    int64_t n_outputs, float *panel) {
    if (m->by_columns) pack_columns(dtype, m, i, n_inputs, first, n_outputs, panel);
    else pack_rows(dtype, m, i, n_inputs, first, n_outputs, panel);
}

static void pack(const Matrix *m, int64_t i, int64_t n_inputs, int64_t first, int64_t n_outputs,
                 float *panel) {
    switch (m->dtype) {
    case FLOAT32: pack_of(FLOAT32, m, i, n_inputs, first, n_outputs, panel); break;
    case BFLOAT16: pack_of(BFLOAT16, m, i, n_inputs, first, n_outputs, panel); break;
    case FLOAT16: pack_of(FLOAT16, m, i, n_inputs, first, n_outputs, panel); break;
    case INT8: pack_of(INT8, m, i, n_inputs, first, n_outputs, panel); break;
    }
}

/* sums [T, n_vectors * LANES] += x [T, n_inputs] · panel, for constants T and n_vectors, sums in registers. */
INLINE void add_tile(int T, int n_vectors, const float *x, int64_t x_stride, const float *panel,
                     int64_t n_inputs, float *sums, int64_t sums_stride) {
    vec total[TILE][PANEL_VECTORS], weight[PANEL_VECTORS];
    for (int t = 0; t < T; t++)
        for (int v = 0; v < n_vectors; v++) total[t][v] = load(sums + t * sums_stride + v * LANES);
    for (int64_t k = 0; k < n_inputs; k++) {
        for (int v = 0; v < n_vectors; v++) weight[v] = load(panel + k * PANEL + v * LANES);
        for (int t = 0; t < T; t++) {
            vec value = splat(x[t * x_stride + k]);
            for (int v = 0; v < n_vectors; v++) total[t][v] += value * weight[v];
        }
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < n_vectors; v++) store(sums + t * sums_stride + v * LANES, total[t][v]);
}

INLINE void add_tiles(int n_vectors, const float *x, int64_t x_stride, int64_t T, const float *panel,
                      int64_t n_inputs, float *sums, int64_t sums_stride) {
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

/* sums [T, n_outputs] = x [T, I] · W[first : first + n_outputs], panel by panel.
   `sums` has room for whole panels, `panel` for one: [PANEL_INPUTS, PANEL]. */
static void add_packed(const float *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                       int64_t n_outputs, float *sums, int64_t sums_stride, float *panel) {
    for (int64_t t = 0; t < T; t++)
        for (int64_t j = 0; j < n_outputs; j += LANES) store(sums + t * sums_stride + j, splat(0));
    for (int64_t i = 0; i < m->n_inputs; i += PANEL_INPUTS) {
        int64_t n_inputs = smaller(PANEL_INPUTS, m->n_inputs - i);
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

/* The same by whichever way suits; sums_stride is a multiple of PANEL or n_outputs of one panel at most. */
static void multiply(const float *x, int64_t x_stride, int64_t T, const Matrix *m, int64_t first,
                     int64_t n_outputs, float *sums, int64_t sums_stride, float *panel) {
    if (!m->by_columns && T < PACK_TOKENS)
        dot_rows(x, x_stride, T, m, first, n_outputs, sums, sums_stride);
    else if (m->by_columns && T == 1)
        add_columns(x, m, first, n_outputs, sums);
    else
        add_packed(x, x_stride, T, m, first, n_outputs, sums, sums_stride, panel);
}

#endif
