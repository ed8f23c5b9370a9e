/* All kernels in one unit, compiled once for each instruction set; VARIANT is the name, as a C identifier. */
#include "variant.h"

#include "forward.h"

#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)

static int64_t linear_floats(const Matrix *m, int n_threads) {
    return shared_floats(m) + n_threads * 2 * SUM_FLOATS;
}

static void linear_alone(const Matrix *m, const float *x, int64_t T, Activation activation, float swish_beta,
                         int adds, float *out, int n_threads, float *scratch) {
    const Team team = {n_threads, scratch, 2 * SUM_FLOATS, scratch + n_threads * 2 * SUM_FLOATS};
    linear(&team, (Linear){.matrices = m, .n_matrices = 1, .x = x, .T = T, .out = out,
                           .out_stride = m->n_outputs, .activation = activation, .swish_beta = swish_beta,
                           .adds = adds});
}

static void layer_norm_alone(const float *x, int64_t T, int64_t C, const Norm *norm, float eps, int unbiased,
                             float *out, int n_threads) {
    const Team team = {n_threads, NULL, 0, NULL};
    layer_norm(&team, (LayerNorm){x, T, C, norm, eps, unbiased, out});
}

static int64_t attend_floats(int64_t T, int64_t S, int64_t D, int n_threads) {
    return n_threads * attention_floats(S, D, T);
}

static void attend_alone(const float *qkv, int64_t T, int64_t start, int64_t H, int64_t D, float *cache,
                         int64_t capacity, float *out, int n_threads, float *scratch) {
    const Team team = {n_threads, scratch, attention_floats(start + T, D, T), NULL};
    attend(&team, (Attention){qkv, T, start, H, D, 0, cache, capacity, out, 0});
}

static void activate_alone(float *values, int64_t n, Activation activation, float swish_beta) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t left = smaller(n - i, LANES);
        store_first(values + i, activate(load_first(values + i, left, FLOAT32), activation, swish_beta), left);
    }
}

const Variant VARIANT = {NAME_OF(VARIANT), forward, scratch_floats, linear_floats, attend_floats,
                         linear_alone, layer_norm_alone, attend_alone, activate_alone};
