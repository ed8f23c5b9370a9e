/* Causal attention of new tokens over a cache of keys and values, row by row and head by head.

   The keys of a head are a matrix [S, D] by rows, its values a matrix [S, D] by columns, so that scores and
   their mix are products like those of the weights.
   Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2. */
#ifndef GPTCLI_ATTENTION_H
#define GPTCLI_ATTENTION_H

#include "activations.h"
#include "linear.h"

enum { GROUP = 64 }; /* tokens of one part, if there are many: keys and values are copied once for all */

typedef struct {
    const real *qkv;     /* [T, 3C], those of one row after those of another */
    const Row *rows;
    int64_t n_rows, layer, n_heads, width; /* width: D */
    int only_logits;     /* only the tokens that get logits attend; the others only leave keys and values */
    real scale;          /* of the scores */
    real *out;           /* [n, C], the tokens that attend */
} Attention;

static real *cached(const Attention *a, const Row *row, int64_t which, int64_t head) {
    return (real *)row->cache + ((2 * a->layer + which) * a->n_heads + head) * row->capacity * a->width;
}

/* Copy a head's new keys and values to the caches. */
static void run_store_part(const void *job, int64_t head, void *scratch) {
    (void)scratch;
    const Attention *a = job;
    const int64_t C = a->n_heads * a->width;
    const real *qkv = a->qkv + head * a->width;
    for (const Row *row = a->rows; row < a->rows + a->n_rows; qkv += row->n_tokens * 3 * C, row++)
        for (int64_t which = 0; which < 2; which++)
            for (int64_t t = 0; t < row->n_tokens; t++)
                memcpy(cached(a, row, which, head) + (row->start + t) * a->width, qkv + (3 * t + 1 + which) * C,
                       (size_t)a->width * sizeof(real));
}

/* Turn scores [n] into e^(score · scale - the largest), those after n, up to `end`, into 0; return the sum. */
static real exponentials(real *scores, int64_t n, int64_t end, real scale) {
    vec most = splat(-__builtin_inff()), total = splat(0);
    for (int64_t s = n; s < end; s++) scores[s] = -__builtin_inff();
    for (int64_t s = 0; s < end; s += LANES) {
        vec v = load_first(scores + s, smaller(end - s, LANES), REAL) * scale;
        if (s + LANES > end) for (int64_t l = end - s; l < LANES; l++) v[l] = -__builtin_inff();
        store_first(scores + s, v, smaller(end - s, LANES));
        most = maximum(v, most);
    }
    vec largest = splat(largest_lane(most));
    for (int64_t s = 0; s < end; s += LANES) {
        vec v = load_first(scores + s, smaller(end - s, LANES), REAL) - largest;
        if (s + LANES > end) for (int64_t l = end - s; l < LANES; l++) v[l] = -__builtin_inff();
        v = exp_vec(v);
        total += v;
        store_first(scores + s, v, smaller(end - s, LANES));
    }
    return sum_lanes(total);
}

/* Tokens t to t + n - 1 of a row and one head, whose queries [n, C] are given: scores, exponentials, and the
   values mixed by them, to out [n, C]. */
static void attend_group(const Attention *a, const Row *row, int64_t head, int64_t t, int64_t n,
                         const real *queries, real *out, real *scratch) {
    const int64_t D = a->width, C = a->n_heads * D, S = row->start + t + n;
    const Matrix keys = {cached(a, row, 0, head), NULL, NULL, D, S, D, REAL, 0};
    const Matrix values = {cached(a, row, 1, head), NULL, NULL, S, D, D, REAL, 1};
    const int64_t mix_stride = round_up(D, PANEL), scores_stride = round_up(S, PANEL);
    real *mixed = scratch + larger(SLICE * PANEL, n * mix_stride), *scores = mixed + n * mix_stride;
    real totals[GROUP];
    multiply(queries + head * D, 3 * C, n, &keys, 0, S, scores, scores_stride, scratch);
    for (int64_t i = 0; i < n; i++)
        totals[i] = exponentials(scores + i * scores_stride, S - n + i + 1, S, a->scale);
    multiply(scores, scores_stride, n, &values, 0, D, mixed, mix_stride, scratch);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < D; d++) out[i * C + head * D + d] = mixed[i * mix_stride + d] / totals[i];
}

static int64_t attending(const Attention *a, const Row *row) {
    return a->only_logits ? row->n_logits : row->n_tokens;
}

static int64_t group_of(const Row *row) { return row->n_tokens < PACK_TOKENS ? TILE : GROUP; }

static int64_t groups_of(const Attention *a, const Row *row) {
    return (attending(a, row) + group_of(row) - 1) / group_of(row);
}

/* A part is a group of tokens and a head. */
static void run_attention_part(const void *job, int64_t part, void *scratch) {
    const Attention *a = job;
    const int64_t C = a->n_heads * a->width, head = part % a->n_heads;
    const real *queries = a->qkv;
    const Row *row = a->rows;
    real *out = a->out;
    int64_t group = part / a->n_heads;
    for (; group >= groups_of(a, row); row++) {
        group -= groups_of(a, row);
        queries += row->n_tokens * 3 * C;
        out += attending(a, row) * C;
    }
    int64_t done = group * group_of(row), t = row->n_tokens - attending(a, row) + done;
    attend_group(a, row, head, t, smaller(group_of(row), row->n_tokens - t), queries + t * 3 * C, out + done * C,
                 scratch);
}

static void attend(const Team *team, Attention a) {
    int64_t n_tokens = 0, n_groups = 0;
    for (const Row *row = a.rows; row < a.rows + a.n_rows; row++) {
        n_tokens += row->n_tokens;
        n_groups += groups_of(&a, row);
    }
    if (n_tokens > TILE) parallel(team, a.n_heads, run_store_part, &a);
    else for (int64_t head = 0; head < a.n_heads; head++) run_store_part(&a, head, NULL);
    parallel(team, n_groups * a.n_heads, run_attention_part, &a);
}

/* Reals of scratch memory that a thread needs for rows of T tokens at most, S with those in the cache. */
static int64_t attention_reals(int64_t S, int64_t D, int64_t T) {
    return SLICE * PANEL + smaller(GROUP, T) * (round_up(S, PANEL) + 2 * round_up(D, PANEL));
}

#endif
