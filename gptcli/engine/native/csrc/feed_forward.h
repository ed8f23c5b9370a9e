/* A layer's feed-forwards: one, or a mixture in which a router chooses K of E experts for each token.
   Sources: Shazeer 2020, "GLU Variants Improve Transformer"; Shazeer et al. 2017; Jiang et al. 2024 (Mixtral). */
#ifndef GPTCLI_FEED_FORWARD_H
#define GPTCLI_FEED_FORWARD_H

#include "linear.h"

/* Scratch memory for T tokens. */
typedef struct {
    real *hidden;           /* [T, F] */
    real *picked, *results; /* [T, C]: the tokens of one expert, and what it makes of them */
    real *scores, *weights; /* [T, E] */
} Mixing;

/* x [T, C] through one feed-forward, into `out` [T, C]. */
static void feed_forward(const Team *team, const FeedForward *f, const real *x, int64_t T, real *hidden, real *out,
                         Into into) {
    const int64_t F = f->up.n_outputs;
    const int gated = f->gate.data != NULL;
    Linear up = {.matrices = &f->up, .n_matrices = 1, .x = x, .T = T, .out = hidden, .out_stride = F,
                 .activation = (Activation)f->activation, .swish_beta = f->swish_beta};
    Linear gate = up;
    if (gated) up.activation = IDENTITY;
    linear(team, up);
    gate.matrices = &f->gate;
    gate.into = MULTIPLY;
    if (gated) linear(team, gate);
    linear(team, (Linear){.matrices = &f->down, .n_matrices = 1, .x = hidden, .T = T, .out = out,
                          .out_stride = f->down.n_outputs, .into = into});
}

/* Turn a token's router scores [E] into the weights of its K experts, zeros for others: the softmax over the
   chosen, or for K = 1 over all. Of equal scores the first are chosen; NaN chooses all. */
static void route(const real *scores, int64_t E, int64_t K, real *weights) {
    real largest = scores[0], sum = 0;
    for (int64_t e = 1; e < E; e++) largest = scores[e] > largest ? scores[e] : largest;
    for (int64_t e = 0; e < E; e++) {
        int64_t n_better = 0;
        for (int64_t other = 0; other < E; other++)
            n_better += scores[other] > scores[e] || (scores[other] == scores[e] && other < e);
        weights[e] = exp_vec(splat(scores[e] - largest))[0];
        if (n_better < K || K == 1) sum += weights[e];
        if (n_better >= K) weights[e] = 0;
    }
    for (int64_t e = 0; e < E; e++) weights[e] /= sum;
}

/* Add to out [T, C] what one expert makes of the tokens x [T, C] that have chosen it. */
static void add_expert(const Team *team, const Layer *layer, int64_t e, const real *x, int64_t T, const Mixing *m,
                       real *out) {
    const FeedForward *expert = layer->feed_forwards + layer->n_always + e;
    const int64_t C = expert->up.n_inputs, E = layer->n_experts;
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++)
        if (m->weights[t * E + e] != 0) memcpy(m->picked + n++ * C, x + t * C, (size_t)C * sizeof(real));
    if (n == 0) return;
    feed_forward(team, expert, m->picked, n, m->hidden, m->results, REPLACE);
    const real *result = m->results;
    for (int64_t t = 0; t < T; t++) {
        const real weight = m->weights[t * E + e];
        if (weight == 0) continue;
        for (int64_t i = 0; i < C; i++) out[t * C + i] += weight * result[i];
        result += C;
    }
}

/* Add to out [T, C] what the layer makes of x [T, C]. */
static void feed_forwards(const Team *team, const Layer *layer, const real *x, int64_t T, const Mixing *m,
                          real *out) {
    for (int64_t i = 0; i < layer->n_always; i++)
        feed_forward(team, layer->feed_forwards + i, x, T, m->hidden, out, ADD);
    if (layer->n_experts == 0) return;
    linear(team, (Linear){.matrices = &layer->router, .n_matrices = 1, .x = x, .T = T, .out = m->scores,
                          .out_stride = layer->n_experts});
    for (int64_t t = 0; t < T; t++)
        route(m->scores + t * layer->n_experts, layer->n_experts, layer->n_chosen, m->weights + t * layer->n_experts);
    for (int64_t e = 0; e < layer->n_experts; e++) add_expert(team, layer, e, x, T, m, out);
}

/* Reals of shared memory that a layer's feed-forwards need. */
static int64_t feed_forward_reals(const Layer *layer) {
    int64_t most = layer->n_experts ? shared_reals(&layer->router) : 0;
    for (int64_t i = 0; i < layer->n_always + layer->n_experts; i++) {
        const FeedForward *f = layer->feed_forwards + i;
        most = larger(most, larger(shared_reals(&f->up), shared_reals(&f->down)));
    }
    return most;
}

#endif
