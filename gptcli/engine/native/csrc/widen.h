/* LANES stored numbers as reals. Intrinsics where the processor has an instruction for it, which GCC does not find
   behind __builtin_convertvector; the last branch is portable. */
#ifndef GPTCLI_WIDEN_H
#define GPTCLI_WIDEN_H

#include "vector.h"

typedef float float_vec VECTOR_OF(float);
typedef int32_t word_vec VECTOR_OF(int32_t);
typedef uint32_t uword_vec VECTOR_OF(uint32_t);
typedef uint16_t half_vec VECTOR_OF(uint16_t);
typedef int16_t short_vec VECTOR_OF(int16_t);
typedef int8_t byte_vec VECTOR_OF(int8_t);
typedef float_vec loose_float_vec LOOSE;
typedef half_vec loose_half_vec LOOSE;
typedef byte_vec loose_byte_vec LOOSE;

/* float16 by its bits: the exponent moves by 112, infinity and NaN keep all ones, subnormal numbers are
   fractions of 2^-24. */
INLINE float_vec float16_of(uword_vec bits) {
    uword_vec size = bits & 0x7fff, is_small = (uword_vec)(size < 0x0400);
    uword_vec normal = (size << 13) + (112u << 23) + ((uword_vec)(size >= 0x7c00) & (112u << 23));
    uword_vec subnormal = (uword_vec)(__builtin_convertvector((word_vec)size, float_vec) * 0x1p-24f);
    return (float_vec)((is_small & subnormal) | (~is_small & normal) | (bits & 0x8000) << 16);
}

#if defined(__AVX512F__) && !defined(DOUBLE)
INLINE word_vec widen_bytes(const void *p) { return (word_vec)_mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
INLINE uword_vec widen_halves(const void *p) { return (uword_vec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
INLINE float_vec widen_float16(const void *p) { return (float_vec)_mm512_cvtph_ps(_mm256_loadu_si256(p)); }
#elif defined(__AVX2__) && !defined(DOUBLE)
INLINE word_vec widen_bytes(const void *p) { return (word_vec)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)); }
INLINE uword_vec widen_halves(const void *p) { return (uword_vec)_mm256_cvtepu16_epi32(_mm_loadu_si128(p)); }
INLINE float_vec widen_float16(const void *p) { return (float_vec)_mm256_cvtph_ps(_mm_loadu_si128(p)); }
#elif defined(__SSE4_1__) && !defined(DOUBLE)
INLINE word_vec widen_bytes(const void *p) { return (word_vec)_mm_cvtepi8_epi32(_mm_loadu_si32(p)); }
INLINE uword_vec widen_halves(const void *p) { return (uword_vec)_mm_cvtepu16_epi32(_mm_loadl_epi64(p)); }
INLINE float_vec widen_float16(const void *p) { return float16_of(widen_halves(p)); }
#else
INLINE word_vec widen_bytes(const void *p) {
    short_vec wider = __builtin_convertvector(*(const loose_byte_vec *)p, short_vec);
    return __builtin_convertvector(wider, word_vec);
}
INLINE uword_vec widen_halves(const void *p) {
    return __builtin_convertvector(*(const loose_half_vec *)p, uword_vec);
}
INLINE float_vec widen_float16(const void *p) { return float16_of(widen_halves(p)); }
#endif

INLINE vec load_stored(const void *p, Dtype dtype) {
    switch (dtype) {
    case BFLOAT16: /* the upper half of a float32 */
        return __builtin_convertvector((float_vec)(widen_halves(p) << 16), vec);
    case FLOAT16: return __builtin_convertvector(widen_float16(p), vec);
    case INT8: return __builtin_convertvector(widen_bytes(p), vec);
    case FLOAT32: return __builtin_convertvector(*(const loose_float_vec *)p, vec);
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
