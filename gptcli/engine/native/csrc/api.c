/* What Python calls: each function of the table, by the variant that suits the processor. */
#include <string.h>

#include "pool.h"
#include "variant.h"

#if defined(__x86_64__)
#include <cpuid.h>

extern const Variant x86_64_v2, x86_64_v3, x86_64_v4, x86_64_v2_double, x86_64_v3_double;

/* Whether the system saves the registers named by the bits of XCR0. */
static int saves_registers(unsigned bits) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

static int level_of_processor(void) {
    unsigned a, b, c, d, features;
    const unsigned v4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    if (!__get_cpuid(1, &a, &b, &features, &d) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 2;
    if (!(features & bit_FMA) || !(features & bit_F16C) || !(b & bit_AVX2) || !saves_registers(0x06)) return 2;
    return (b & v4) == v4 && saves_registers(0xe6) ? 4 : 3;
}

static const Variant *const variants[] = {&x86_64_v2, &x86_64_v3, &x86_64_v4};
static const Variant *const doubles[] = {&x86_64_v2_double, &x86_64_v3_double, &x86_64_v3_double};
static int n_usable(void) { return level_of_processor() - 1; }
#else
extern const Variant baseline, baseline_double;

static const Variant *const variants[] = {&baseline};
static const Variant *const doubles[] = {&baseline_double};
static int n_usable(void) { return 1; }
#endif

static const Variant *active, *active_double;

static void choose(int i) {
    active = variants[i];
    active_double = doubles[i];
}

__attribute__((constructor)) static void choose_best(void) { choose(n_usable() - 1); }

#pragma GCC visibility push(default) /* all else stays inside the library */

int64_t gptcli_abi_version(void) { return ABI_VERSION; }

int64_t gptcli_max_tokens(void) { return MAX_TOKENS; }

/* The name of the i-th variant that this processor can run, from the slowest on; NULL after the last. */
const char *gptcli_variant_name(int64_t i) { return i < n_usable() ? variants[i]->name : NULL; }

const char *gptcli_active_variant(void) { return active->name; }

/* Use a variant from now on; return 0 if the processor cannot run it. */
int64_t gptcli_force_variant(const char *name) {
    for (int i = 0; i < n_usable(); i++)
        if (!strcmp(variants[i]->name, name)) {
            choose(i);
            return 1;
        }
    return 0;
}

int64_t gptcli_scratch_bytes(const Model *model, int64_t T, int64_t S, int64_t is_float64) {
    return (is_float64 ? active_double : active)->scratch_bytes(model, T, S);
}

int64_t gptcli_linear_bytes(const Matrix *matrix, int64_t n_threads) {
    return active->linear_bytes(matrix, (int)n_threads);
}

int64_t gptcli_attend_bytes(int64_t T, int64_t S, int64_t D, int64_t n_threads) {
    return active->attend_bytes(T, S, D, (int)n_threads);
}

void gptcli_forward(const Model *model, Pass *pass) {
    pool_enter(model->n_threads);
    (pass->is_float64 ? active_double : active)->forward(model, pass);
    pool_leave();
}

void gptcli_linear(const Matrix *matrix, const float *x, int64_t T, int64_t activation, double swish_beta,
                   int64_t adds, float *out, int64_t n_threads, float *scratch) {
    pool_enter((int)n_threads);
    active->linear(matrix, x, T, (Activation)activation, swish_beta, (int)adds, out, (int)n_threads, scratch);
    pool_leave();
}

void gptcli_layer_norm(const float *x, int64_t T, int64_t C, const Norm *norm, double eps, int64_t unbiased,
                       float *out, int64_t n_threads) {
    pool_enter((int)n_threads);
    active->layer_norm(x, T, C, norm, eps, (int)unbiased, out, (int)n_threads);
    pool_leave();
}

void gptcli_attend(const float *qkv, int64_t T, int64_t start, int64_t H, int64_t D, float *cache,
                   int64_t capacity, float *out, int64_t n_threads, float *scratch) {
    pool_enter((int)n_threads);
    active->attend(qkv, T, start, H, D, cache, capacity, out, (int)n_threads, scratch);
    pool_leave();
}

void gptcli_activate(float *values, int64_t n, int64_t activation, double swish_beta) {
    active->activate(values, n, (Activation)activation, swish_beta);
}

#pragma GCC visibility pop
