/* The kernels compiled for one instruction set, as a table of functions. */
#ifndef GPTCLI_VARIANT_H
#define GPTCLI_VARIANT_H

#include "model.h"

typedef struct {
    const char *name;
    void (*forward)(const Model *, Pass *);
    int64_t (*scratch_floats)(const Model *, int64_t T, int64_t S);
    /* One kernel alone, for tests. */
    int64_t (*linear_floats)(const Matrix *, int n_threads);
    int64_t (*attend_floats)(int64_t T, int64_t S, int64_t D, int n_threads);
    void (*linear)(const Matrix *, const float *x, int64_t T, Activation, float swish_beta, int adds, float *out,
                   int n_threads, float *scratch);
    void (*layer_norm)(const float *x, int64_t T, int64_t C, const Norm *, float eps, int unbiased, float *out,
                       int n_threads);
    void (*attend)(const float *qkv, int64_t T, int64_t start, int64_t H, int64_t D, float *cache,
                   int64_t capacity, float *out, int n_threads, float *scratch);
    void (*activate)(float *values, int64_t n, Activation, float swish_beta);
} Variant;

#endif
