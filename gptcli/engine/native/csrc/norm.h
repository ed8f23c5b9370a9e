/* LayerNorm: scale · (x - mean) / √(variance + eps) + shift. Source: Ba et al. 2016, section 3. */
#ifndef GPTCLI_NORM_H
#define GPTCLI_NORM_H

#include "pool.h"
#include "widen.h"

enum { NORM_TOKENS = 16 }; /* tokens of one part */

typedef struct {
    const float *x;   /* [T, C] */
    int64_t T, C;
    const Norm *norm;
    float eps;
    int unbiased;     /* the variance divides by C - 1 instead of C */
    float *out;       /* [T, C] */
} LayerNorm;

/* The sum of x - center, or of its square, over x [C]. */
INLINE float sum_of(const float *x, int64_t C, float center, int squared) {
    vec total = splat(0);
    for (int64_t i = 0; i < C; i += LANES) {
        int64_t left = smaller(C - i, LANES);
        vec difference = load_first(x + i, left, FLOAT32) - center;
        if (left < LANES) { /* the padding counts as zero, not as 0 - center */
            vec whole = difference;
            difference = splat(0);
            memcpy(&difference, &whole, (size_t)left * sizeof(float));
        }
        total += squared ? difference * difference : difference;
    }
    return sum_lanes(total);
}

static void normalize_token(const LayerNorm *n, const float *x, float *out) {
    const int64_t C = n->C;
    float mean = sum_of(x, C, 0, 0) / (float)C;
    float variance = sum_of(x, C, mean, 1) / (float)(C - n->unbiased);
    float factor = 1.0f / __builtin_sqrtf(variance + n->eps);
    for (int64_t i = 0; i < C; i += LANES) {
        int64_t left = smaller(C - i, LANES);
        vec scale = load_first(n->norm->scale + i, left, FLOAT32);
        vec shift = load_first(n->norm->shift + i, left, FLOAT32);
        vec v = (load_first(x + i, left, FLOAT32) - mean) * factor;
        store_first(out + i, v * scale + shift, left);
    }
}

static void run_norm_part(const void *job, int64_t part, float *scratch) {
    (void)scratch;
    const LayerNorm *n = job;
    for (int64_t t = part * NORM_TOKENS; t < smaller(n->T, (part + 1) * NORM_TOKENS); t++)
        normalize_token(n, n->x + t * n->C, n->out + t * n->C);
}

static void layer_norm(const Team *team, LayerNorm n) {
    parallel(team, (n.T + NORM_TOKENS - 1) / NORM_TOKENS, run_norm_part, &n);
}

#endif
