/* Causal attention of T new tokens over a cache of keys and values, head by head.

   The keys of a head are a matrix [S, D] by rows, its values a matrix [S, D] by columns, so that scores and
   their mix are products like those of the weights.
   Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2. */
#ifndef GPTCLI_ATTENTION_H
#define GPTCLI_ATTENTION_H

#include "activations.h"
#include "linear.h"

enum { GROUP = 64 }; /* tokens of one part, if there are many: keys and values are copied once for all */

typedef struct {
    const float *qkv;    /* [T, 3C] */
    int64_t T, start, n_heads, width; /* start: tokens in the cache before these; width: D */
    int64_t first;       /* the first of the T tokens that attends; the others only leave keys and values */
    float *cache;        /* [2, H, capacity, D], one layer's */
    int64_t capacity;
    float *out;          /* [T, C] */
    int64_t group;       /* set by `attend` */
} Attention;

static float *cached(const Attention *a, int64_t which, int64_t head) {
    return a->cache + (which * a->n_heads + head) * a->capacity * a->width;
}

/* Copy a head's new keys and values to the cache. */
static void store_head(const Attention *a, int64_t head) {
    const int64_t C = a->n_heads * a->width;
    for (int64_t which = 0; which < 2; which++)
        for (int64_t t = 0; t < a->T; t++)
            memcpy(cached(a, which, head) + (a->start + t) * a->width,
                   a->qkv + t * 3 * C + (1 + which) * C + head * a->width, (size_t)a->width * sizeof(float));
}

/* Turn scores [n] into e^(score · root - the largest), those after n, up to `end`, into 0; return the sum. */
static float exponentials(float *scores, int64_t n, int64_t end, float root) {
    vec most = splat(-__builtin_inff()), total = splat(0);
    for (int64_t s = n; s < end; s++) scores[s] = -__builtin_inff();
    for (int64_t s = 0; s < end; s += LANES) {
        vec v = load_first(scores + s, smaller(end - s, LANES), FLOAT32) * root;
        if (s + LANES > end) for (int64_t l = end - s; l < LANES; l++) v[l] = -__builtin_inff();
        store_first(scores + s, v, smaller(end - s, LANES));
        most = maximum(v, most);
    }
    vec largest = splat(largest_lane(most));
    for (int64_t s = 0; s < end; s += LANES) {
        vec v = load_first(scores + s, smaller(end - s, LANES), FLOAT32) - largest;
        if (s + LANES > end) for (int64_t l = end - s; l < LANES; l++) v[l] = -__builtin_inff();
        v = exp_vec(v);
        total += v;
        store_first(scores + s, v, smaller(end - s, LANES));
    }
    return sum_lanes(total);
}

/* Tokens t to t + n - 1 of a head: scores, exponentials, and the values mixed by them. */
static void attend_group(const Attention *a, int64_t head, int64_t t, int64_t n, float *scratch) {
    const int64_t D = a->width, C = a->n_heads * D, S = a->start + t + n;
    const Matrix keys = {cached(a, 0, head), NULL, NULL, D, S, D, FLOAT32, 0};
    const Matrix values = {cached(a, 1, head), NULL, NULL, S, D, D, FLOAT32, 1};
    const float *queries = a->qkv + t * 3 * C + head * D;
    const int64_t mix_stride = round_up(D, PANEL), scores_stride = round_up(S, PANEL);
    float *mixed = scratch + larger(SLICE * PANEL, n * mix_stride), *scores = mixed + n * mix_stride;
    float totals[GROUP];
    multiply(queries, 3 * C, n, &keys, 0, S, scores, scores_stride, scratch);
    for (int64_t i = 0; i < n; i++)
        totals[i] = exponentials(scores + i * scores_stride, S - n + i + 1, S, 1 / __builtin_sqrtf((float)D));
    multiply(scores, scores_stride, n, &values, 0, D, mixed, mix_stride, scratch);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < D; d++)
            a->out[(t + i) * C + head * D + d] = mixed[i * mix_stride + d] / totals[i];
}

static void run_store_part(const void *job, int64_t part, float *scratch) {
    (void)scratch;
    store_head(job, part);
}

static void run_attention_part(const void *job, int64_t part, float *scratch) {
    const Attention *a = job;
    int64_t head = part % a->n_heads, t = a->first + part / a->n_heads * a->group;
    attend_group(a, head, t, smaller(a->group, a->T - t), scratch);
}

static void attend(const Team *team, Attention a) {
    a.group = a.T < PACK_TOKENS ? TILE : GROUP;
    if (a.T > TILE) parallel(team, a.n_heads, run_store_part, &a);
    else for (int64_t head = 0; head < a.n_heads; head++) store_head(&a, head);
    if (a.first < a.T)
        parallel(team, (a.T - a.first + a.group - 1) / a.group * a.n_heads, run_attention_part, &a);
}

/* Floats of scratch memory that a thread needs. */
static int64_t attention_floats(int64_t S, int64_t D, int64_t T) {
    return SLICE * PANEL + smaller(GROUP, T) * (round_up(S, PANEL) + 2 * round_up(D, PANEL));
}

#endif
