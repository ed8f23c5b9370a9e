/* exp, tanh, erf and the activations, for LANES numbers at once. NaN and infinity go through them. */
#ifndef GPTCLI_ACTIVATIONS_H
#define GPTCLI_ACTIVATIONS_H

#include "vector.h"

#define R(number) ((real)(number))

/* e^x to 2 units in the last place: x = n·ln 2 + r, |r| <= ln(2) / 2, and a polynomial for e^r.
   Source: Cody & Waite 1980, "Software Manual for the Elementary Functions"; Taylor's coefficients up to the
   seventh power, in double the thirteenth. 2^n is applied in two steps, so that results may overflow to infinity
   and be subnormal. */
INLINE vec exp_vec(vec x) {
    static const double inverse_factorials[] = {1, 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
        1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    enum { DEGREE = IS_DOUBLE ? 13 : 7 };
    const real most = IS_DOUBLE ? R(710) : R(89), least = IS_DOUBLE ? R(-746) : R(-105);
    const real shift = IS_DOUBLE ? R(0x1.8p52) : R(0x1.8p23); /* adding it rounds to a whole number in the low bits */
    const real ln2_high = IS_DOUBLE ? R(0x1.62e42feep-1) : R(0.693359375);
    const real ln2_low = IS_DOUBLE ? R(0x1.a39ef35793c76p-33) : R(-2.12194440e-4);
    x = blend(x > most, splat(most), x); /* comparisons are false for NaN, which stays */
    x = blend(x < least, splat(least), x);
    vec shifted = x * R(1.4426950408889634) + shift;
    vec n = shifted - shift;
    vec r = (x - n * ln2_high) - n * ln2_low;
    vec p = splat(R(inverse_factorials[DEGREE]));
    for (int k = DEGREE - 1; k > 1; k--) p = p * r + R(inverse_factorials[k]);
    p = p * r * r + r + R(1);
    ivec exponent = (ivec)shifted - (ivec)splat(shift);
    ivec half = exponent >> 1;
    return p * (vec)((half + EXPONENT_BIAS) << MANTISSA_BITS) *
           (vec)((exponent - half + EXPONENT_BIAS) << MANTISSA_BITS);
}

INLINE vec sigmoid_vec(vec x) { return R(1) / (R(1) + exp_vec(-x)); }

#if defined(DOUBLE)
INLINE vec tanh_vec(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = __builtin_tanh(x[l]);
    return x;
}

INLINE vec erf_vec(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = __builtin_erf(x[l]);
    return x;
}
#else
/* tanh x: near zero a polynomial, because 1 - e^-2|x| would cancel. Source: Moshier, Cephes, tanhf. */
INLINE vec tanh_vec(vec x) {
    vec size = magnitude(x), e = exp_vec(-2.0f * size);
    vec square = x * x;
    vec p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    return blend(size < 0.625f, p * square * x + x, with_sign_of(x, (1.0f - e) / (1.0f + e)));
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
    vec far = with_sign_of(x, 1.0f - exp_vec(q * size - size));
    vec p = square * -5.96761703e-4f + 4.99119423e-3f;
    p = p * square - 2.67681349e-2f;
    p = p * square + 1.12819925e-1f;
    p = p * square - 3.76125336e-1f;
    p = p * square + 1.28379166e-1f;
    return blend(size > 0.921875f, far, p * x + x);
}
#endif

INLINE vec activate(vec x, Activation activation, double swish_beta) {
    switch (activation) {
    case GELU_TANH: /* ½·(1 + tanh u) is σ(2u), u = √(2/π)·(x + 0.044715·x³) */
        return x / (R(1) + exp_vec(x * (R(-1.5957691216057308) - R(1.5957691216057308 * 0.044715) * (x * x))));
    case GELU: return R(0.5) * x * (R(1) + erf_vec(x * R(0.70710678118654752)));
    case GELU_SIGMOID: return x / (R(1) + exp_vec(R(-1.702) * x));
    case RELU: return blend(x < R(0), splat(0), x);
    case SILU: return x / (R(1) + exp_vec(-x));
    case SIGMOID: return sigmoid_vec(x);
    case TANH: return tanh_vec(x);
    case SWISH: return x / (R(1) + exp_vec(R(-swish_beta) * x));
    case EXP: return exp_vec(x);
    case ERF: return erf_vec(x);
    default: return x;
    }
}

#endif
