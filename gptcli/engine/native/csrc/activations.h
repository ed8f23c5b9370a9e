/* exp, tanh, erf and the activations, for LANES numbers at once. NaN and infinity go through them. */
#ifndef GPTCLI_ACTIVATIONS_H
#define GPTCLI_ACTIVATIONS_H

#include "vector.h"

/* e^x to 2 units in the last place: x = n·ln 2 + r, |r| <= ln(2) / 2, and a polynomial for e^r.
   Source: Cody & Waite 1980, "Software Manual for the Elementary Functions"; Taylor's coefficients up to the
   seventh power. 2^n is applied in two steps, so that results may overflow to infinity and be subnormal. */
INLINE vec exp_vec(vec x) {
    x = blend(x > 89.0f, splat(89.0f), x); /* comparisons are false for NaN, which stays */
    x = blend(x < -105.0f, splat(-105.0f), x);
    const float shift = 0x1.8p23f; /* adding it rounds to a whole number, which the low bits then hold */
    vec shifted = x * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    ivec exponent = (ivec)shifted - 0x4b400000; /* the bits of `shift` */
    ivec half = exponent >> 1;
    return p * (vec)((half + 127) << 23) * (vec)((exponent - half + 127) << 23);
}

INLINE vec sigmoid_vec(vec x) { return 1.0f / (1.0f + exp_vec(-x)); }

/* tanh x: near zero a polynomial, because 1 - e^-2|x| would cancel. Source: Moshier, Cephes, tanhf. */
INLINE vec tanh_vec(vec x) {
    vec size = magnitude(x), e = exp_vec(-2.0f * size);
    vec far = (1.0f - e) / (1.0f + e);
    far = (vec)((ivec)far | ((ivec)x & INT32_MIN));
    vec square = x * x;
    vec p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    return blend(size < 0.625f, p * square * x + x, far);
}

/* erf x to 1 unit in the last place: a polynomial near zero, else 1 - e^polynomial.
   Source: N. Juffa, "erff", https://stackoverflow.com/a/35148199 (minimax polynomials). */
INLINE vec erf_vec(vec x) {
    vec size = magnitude(x);
    size = blend(size > 5.0f, splat(5.0f), size); /* erf 5 rounds to 1 */
    vec square = size * size;
    vec u = size * -3.88396438e-3f + 2.42546219e-2f;
    vec q = (size * -1.72853470e-5f + 3.83197126e-4f) * square + u;
    q = q * size - 1.06777877e-1f;
    q = q * size - 6.34846687e-1f;
    q = q * size - 1.28717512e-1f;
    vec far = 1.0f - exp_vec(q * size - size);
    far = (vec)((ivec)far | ((ivec)x & INT32_MIN));
    vec p = square * -5.96761703e-4f + 4.99119423e-3f;
    p = p * square - 2.67681349e-2f;
    p = p * square + 1.12819925e-1f;
    p = p * square - 3.76125336e-1f;
    p = p * square + 1.28379166e-1f;
    return blend(size > 0.921875f, far, p * x + x);
}

INLINE vec activate(vec x, Activation activation, float swish_beta) {
    switch (activation) {
    case GELU_TANH: /* ½·(1 + tanh u) is σ(2u) */
        return x / (1.0f + exp_vec(x * (-1.5957691216f - 0.07135481283f * (x * x))));
    case GELU: return 0.5f * x * (1.0f + erf_vec(x * 0.7071067812f));
    case GELU_SIGMOID: return x / (1.0f + exp_vec(-1.702f * x));
    case RELU: return blend(x < 0.0f, splat(0.0f), x);
    case SILU: return x / (1.0f + exp_vec(-x));
    case SIGMOID: return sigmoid_vec(x);
    case TANH: return tanh_vec(x);
    case SWISH: return x / (1.0f + exp_vec(-swish_beta * x));
    case EXP: return exp_vec(x);
    case ERF: return erf_vec(x);
    default: return x;
    }
}

#endif
