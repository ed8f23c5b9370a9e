/* Vectors of the numbers that a pass computes in, as wide as the processor's registers.

   `real` is float, or double in the second compilation of the same source, which decides near ties. */
#ifndef GPTCLI_VECTOR_H
#define GPTCLI_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "model.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(DOUBLE)
typedef double real;
typedef int64_t integer; /* as wide as a real */
#define REAL FLOAT64
enum { IS_DOUBLE = 1, MANTISSA_BITS = 52, EXPONENT_BIAS = 1023 };
#else
typedef float real;
typedef int32_t integer;
#define REAL FLOAT32
enum { IS_DOUBLE = 0, MANTISSA_BITS = 23, EXPONENT_BIAS = 127 };
#endif

#if defined(__AVX512F__)
enum { REGISTER_BYTES = 64, REGISTERS = 32 };
#elif defined(__AVX2__)
enum { REGISTER_BYTES = 32, REGISTERS = 16 };
#elif defined(__aarch64__)
enum { REGISTER_BYTES = 16, REGISTERS = 32 };
#else
enum { REGISTER_BYTES = 16, REGISTERS = 16 };
#endif
enum { LANES = REGISTER_BYTES / (int)sizeof(real) };

/* `loose` types may lie at any address: weights files promise no alignment. */
#define VECTOR_OF(type) __attribute__((vector_size(sizeof(type) * LANES)))
#define LOOSE __attribute__((aligned(1), may_alias))
typedef real vec VECTOR_OF(real);
typedef integer ivec VECTOR_OF(integer);
typedef vec loose_vec LOOSE;

INLINE vec splat(real value) { return value - (vec){0}; }
INLINE vec load(const real *p) { return *(const loose_vec *)p; }
INLINE void store(real *p, vec v) { *(loose_vec *)p = v; }

/* a·b + c, rounded once where the processor can: named, because compilers fuse a product and a sum or not, by what
   is around them, and a sum must have the same bits in every loop. */
INLINE vec multiply_add(vec a, vec b, vec c) {
#if defined(DOUBLE)
    return a * b + c; /* near ties are decided with digits to spare */
#elif defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lanes of a where the mask is all ones, of b where it is zero. */
INLINE vec blend(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec maximum(vec a, vec b) { return blend(a > b, a, b); }
static const integer SIGN = (integer)(1ull << (8 * sizeof(real) - 1));
INLINE vec magnitude(vec v) { return (vec)((ivec)v & ~SIGN); }
INLINE vec with_sign_of(vec sign, vec v) { return (vec)((ivec)v | ((ivec)sign & SIGN)); }

/* The sum of all lanes, in one order whatever the compiler does around it. */
INLINE real sum_lanes(vec v) {
    typedef real pair __attribute__((vector_size(16)));
    enum { PAIRS = REGISTER_BYTES / 16 };
    union { vec whole; pair parts[PAIRS]; } sums = {v};
    for (int n = PAIRS / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) sums.parts[i] += sums.parts[i + n];
    pair sum = sums.parts[0];
    return sizeof(real) == 8 ? sum[0] + sum[1] : (sum[0] + sum[2 % (16 / sizeof(real))]) +
                                                     (sum[1] + sum[3 % (16 / sizeof(real))]);
}

INLINE real largest_lane(vec v) {
    real largest = v[0];
    for (int i = 1; i < LANES; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

INLINE int64_t size_of(Dtype dtype) {
    return dtype == FLOAT64 ? 8 : dtype == FLOAT32 ? 4 : dtype == INT8 ? 1 : 2;
}
INLINE const char *at(const void *data, int64_t index, Dtype dtype) {
    return (const char *)data + index * size_of(dtype);
}

INLINE void store_first(real *p, vec v, int64_t n) {
    if (n >= LANES) store(p, v);
    else memcpy(p, &v, (size_t)n * sizeof(real));
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
