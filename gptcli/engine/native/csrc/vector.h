/* Vectors of float32, as wide as the processor's registers. */
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

#if defined(__AVX512F__)
enum { LANES = 16, REGISTERS = 32 };
#elif defined(__AVX2__)
enum { LANES = 8, REGISTERS = 16 };
#elif defined(__aarch64__)
enum { LANES = 4, REGISTERS = 32 };
#else
enum { LANES = 4, REGISTERS = 16 };
#endif

/* `loose` types may lie at any address: weights files promise no alignment. */
#define VECTOR_OF(type) __attribute__((vector_size(sizeof(type) * LANES)))
#define LOOSE __attribute__((aligned(1), may_alias))
typedef float vec VECTOR_OF(float);
typedef int32_t ivec VECTOR_OF(int32_t);
typedef uint32_t uvec VECTOR_OF(uint32_t);
typedef vec loose_vec LOOSE;

INLINE vec splat(float value) { return value - (vec){0}; }
INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec v) { *(loose_vec *)p = v; }

/* a·b + c, rounded once where the processor can: named, because compilers fuse a product and a sum or not, by what
   is around them, and a sum must have the same bits in every loop. */
INLINE vec multiply_add(vec a, vec b, vec c) {
#if defined(__AVX512F__)
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
INLINE vec magnitude(vec v) { return (vec)((ivec)v & 0x7fffffff); }

/* The sum of all lanes, in one order whatever the compiler does around it. */
INLINE float sum_lanes(vec v) {
    typedef float quarter __attribute__((vector_size(16)));
    union { vec whole; quarter quarters[LANES / 4]; } parts = {v};
    quarter sum = parts.quarters[0];
    if (LANES == 8) sum += parts.quarters[1];
    if (LANES == 16) sum = (sum + parts.quarters[2 % (LANES / 4)]) +
                           (parts.quarters[1 % (LANES / 4)] + parts.quarters[3 % (LANES / 4)]);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

INLINE float largest_lane(vec v) {
    float largest = v[0];
    for (int i = 1; i < LANES; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

INLINE int64_t size_of(Dtype dtype) { return dtype == FLOAT32 ? 4 : dtype == INT8 ? 1 : 2; }
INLINE const char *at(const void *data, int64_t index, Dtype dtype) {
    return (const char *)data + index * size_of(dtype);
}

INLINE void store_first(float *p, vec v, int64_t n) {
    if (n >= LANES) store(p, v);
    else memcpy(p, &v, (size_t)n * sizeof(float));
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

#endif
