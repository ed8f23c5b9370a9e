/* LayerNorm: scale · (x - mean) / √(variance + eps) + shift. Source: Ba et al. 2016, section 3. */
#ifndef GPTCLI_NORM_H
#define GPTCLI_NORM_H

#include "pool.h"
#include "widen.h"

enum { NORM_TOKENS = 16 }; /* tokens of one part */

typedef struct {
    const real *x;    /* [T, C] */
    int64_t T, C;
    const Norm *norm;
    real eps;
    int unbiased;     /* the variance divides by C - 1 instead of C */
    real *out;        /* [T, C] */
} LayerNorm;

/* The sum of x - center, or of its square, over x [C]. */
INLINE real sum_of(const real *x, int64_t C, real center, int squared) {
    vec total = splat(0);
    for (int64_t i = 0; i < C; i += LANES) {
        int64_t left = smaller(C - i, LANES);
        vec difference = load_first(x + i, left, REAL) - center;
        if (left < LANES) { /* the padding counts as zero, not as 0 - center */
            vec whole = difference;
            difference = splat(0);
            memcpy(&difference, &whole, (size_t)left * sizeof(real));
        }
        total += squared ? difference * difference : difference;
    }
    return sum_lanes(total);
}

static void normalize_token(const LayerNorm *n, const real *x, real *out) {
    const int64_t C = n->C;
    real mean = sum_of(x, C, 0, 0) / (real)C;
    real variance = sum_of(x, C, mean, 1) / (real)(C - n->unbiased);
    real factor = 1 / (real)__builtin_sqrt(variance + n->eps);
    for (int64_t i = 0; i < C; i += LANES) {
        int64_t left = smaller(C - i, LANES);
        vec v = (load_first(x + i, left, REAL) - mean) * factor * load_first(n->norm->scale + i, left, FLOAT32);
        if (n->norm->shift) v += load_first(n->norm->shift + i, left, FLOAT32);
        store_first(out + i, v, left);
    }
}

static void run_norm_part(const void *job, int64_t part, void *scratch) {
    (void)scratch;
    const LayerNorm *n = job;
    for (int64_t t = part * NORM_TOKENS; t < smaller(n->T, (part + 1) * NORM_TOKENS); t++)
        normalize_token(n, n->x + t * n->C, n->out + t * n->C);
}

static void layer_norm(const Team *team, LayerNorm n) {
    parallel(team, (n.T + NORM_TOKENS - 1) / NORM_TOKENS, run_norm_part, &n);
}

#endif
