/* LANES stored numbers as float32. Intrinsics where the processor has an instruction for it, which GCC does not
   find behind __builtin_convertvector; the last branch is portable. */
#ifndef GPTCLI_WIDEN_H
#define GPTCLI_WIDEN_H

#include "vector.h"

typedef uint16_t half_vec VECTOR_OF(uint16_t);
typedef int16_t short_vec VECTOR_OF(int16_t);
typedef int8_t byte_vec VECTOR_OF(int8_t);
typedef half_vec loose_half_vec LOOSE;
typedef byte_vec loose_byte_vec LOOSE;

/* float16 by its bits: the exponent moves by 112, infinity and NaN keep all ones, subnormal numbers are
   fractions of 2^-24. */
INLINE vec float16_of(uvec bits) {
    uvec size = bits & 0x7fff;
    uvec normal = (size << 13) + (112u << 23) + ((uvec)(size >= 0x7c00) & (112u << 23));
    vec subnormal = __builtin_convertvector((ivec)size, vec) * 0x1p-24f;
    vec value = blend((ivec)(size < 0x0400), subnormal, (vec)normal);
    return (vec)((uvec)value | (bits & 0x8000) << 16);
}

#if defined(__AVX512F__)
INLINE ivec widen_bytes(const void *p) { return (ivec)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
INLINE uvec widen_halves(const void *p) { return (uvec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
INLINE vec widen_float16(const void *p) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p)); }
#elif defined(__AVX2__)
INLINE ivec widen_bytes(const void *p) { return (ivec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
INLINE uvec widen_halves(const void *p) { return (uvec)_mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
INLINE vec widen_float16(const void *p) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128(p)); }
#elif defined(__SSE4_1__)
INLINE ivec widen_bytes(const void *p) { return (ivec)_mm_cvtepi8_epi32(_mm_loadu_si32(p)); }
INLINE uvec widen_halves(const void *p) { return (uvec)_mm_cvtepu16_epi32(_mm_loadl_epi64(p)); }
INLINE vec widen_float16(const void *p) { return float16_of(widen_halves(p)); }
#else
INLINE ivec widen_bytes(const void *p) {
    short_vec wider = __builtin_convertvector(*(const loose_byte_vec *)p, short_vec);
    return __builtin_convertvector(wider, ivec);
}
INLINE uvec widen_halves(const void *p) { return __builtin_convertvector(*(const loose_half_vec *)p, uvec); }
INLINE vec widen_float16(const void *p) { return float16_of(widen_halves(p)); }
#endif

INLINE vec load_stored(const void *p, Dtype dtype) {
    switch (dtype) {
    case BFLOAT16: return (vec)(widen_halves(p) << 16); /* the upper half of a float32 */
    case FLOAT16: return widen_float16(p);
    case INT8: return __builtin_convertvector(widen_bytes(p), vec);
    default: return load(p);
    }
}

/* The first n of LANES stored numbers, and zeros after them if n is smaller. */
INLINE vec load_first(const void *p, int64_t n, Dtype dtype) {
    if (n >= LANES) return load_stored(p, dtype);
    char padded[sizeof(vec)] = {0};
    memcpy(padded, p, (size_t)(n * size_of(dtype)));
    return load_stored(padded, dtype);
}

#endif
