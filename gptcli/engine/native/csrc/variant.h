/* The kernels compiled for one instruction set, in float32 or float64, as a table of functions. */
#ifndef GPTCLI_VARIANT_H
#define GPTCLI_VARIANT_H

#include "model.h"

typedef struct {
    const char *name;
    void (*forward)(const Model *, Pass *);
    int64_t (*scratch_bytes)(const Model *, int64_t T, int64_t S);
    /* One kernel alone, for tests. */
    int64_t (*linear_bytes)(const Matrix *, int n_threads);
    int64_t (*attend_bytes)(int64_t T, int64_t S, int64_t D, int n_threads);
    void (*linear)(const Matrix *, const void *x, int64_t T, Activation, double swish_beta, int adds, void *out,
                   int n_threads, void *scratch);
    void (*layer_norm)(const void *x, int64_t T, int64_t C, const Norm *, double eps, int unbiased, void *out,
                       int n_threads);
    void (*attend)(const void *qkv, int64_t T, int64_t start, int64_t H, int64_t D, void *cache,
                   int64_t capacity, void *out, int n_threads, void *scratch);
    void (*activate)(void *values, int64_t n, Activation, double swish_beta);
} Variant;

#endif
