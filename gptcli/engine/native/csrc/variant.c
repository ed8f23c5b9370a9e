/* All kernels in one unit, compiled for each instruction set; VARIANT is the name, as a C identifier. */
#include "variant.h"

#include "forward.h"

#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)

static int64_t linear_bytes(const Matrix *m, int n_threads) {
    return (shared_reals(m) + n_threads * 2 * SUM_REALS) * (int64_t)sizeof(real);
}

static void linear_alone(const Matrix *m, const void *x, int64_t T, Activation activation, double swish_beta,
                         int adds, void *out, int n_threads, void *scratch) {
    const Team team = {n_threads, scratch, 2 * SUM_REALS * sizeof(real), (real *)scratch + n_threads * 2 * SUM_REALS};
    linear(&team, (Linear){.matrices = m, .n_matrices = 1, .x = x, .T = T, .out = out,
                           .out_stride = m->n_outputs, .activation = activation, .swish_beta = swish_beta,
                           .into = adds ? ADD : REPLACE});
}

static void layer_norm_alone(const void *x, int64_t T, int64_t C, const Norm *norm, double eps, int unbiased,
                             void *out, int n_threads) {
    const Team team = {n_threads, NULL, 0, NULL};
    layer_norm(&team, (LayerNorm){x, T, C, norm, (real)eps, unbiased, out});
}

static int64_t attend_bytes(int64_t T, int64_t S, int64_t D, int n_threads) {
    return n_threads * attention_reals(S, D, T) * (int64_t)sizeof(real);
}

static void attend_alone(const void *qkv, int64_t T, int64_t start, int64_t H, int64_t D, void *cache,
                         int64_t capacity, void *out, int n_threads, void *scratch) {
    const Team team = {n_threads, scratch, attend_bytes(T, start + T, D, 1), NULL};
    const Row row = {cache, capacity, start, T, T};
    attend(&team, (Attention){qkv, &row, 1, 0, H, D, 0, 1 / (real)__builtin_sqrt((double)D), out});
}

static void activate_alone(void *values, int64_t n, Activation activation, double swish_beta) {
    real *x = values;
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t left = smaller(n - i, LANES);
        store_first(x + i, activate(load_first(x + i, left, REAL), activation, swish_beta), left);
    }
}

const Variant VARIANT = {NAME_OF(VARIANT), forward, scratch_bytes, linear_bytes, attend_bytes,
                         linear_alone, layer_norm_alone, attend_alone, activate_alone};
