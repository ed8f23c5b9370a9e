/* A linear layer on T tokens, in parallel: products, then scale, bias, activation or residual. */
#ifndef GPTCLI_LINEAR_H
#define GPTCLI_LINEAR_H

#include "activations.h"
#include "packed.h"
#include "pool.h"

enum {
    MAX_PART = 32 * PANEL,        /* outputs of one part with few tokens */
    PARTS_PER_THREAD = 8,         /* so that a thread without a core holds up little work */
    PANEL_FLOATS = PANEL_INPUTS * PANEL,
    LINEAR_FLOATS = MAX_TOKENS * PANEL > PACK_TOKENS * MAX_PART ? MAX_TOKENS * PANEL : PACK_TOKENS * MAX_PART
};

typedef struct {
    const Matrix *matrices; /* all read x; their outputs are next to each other */
    int64_t n_matrices;
    const float *x;         /* [T, I] */
    int64_t T;
    float *out;             /* [T, sum of O] */
    int64_t out_stride;
    Activation activation;
    float swish_beta;
    int adds;               /* whether the result is added to `out` (a residual connection) */
    int64_t part_outputs;   /* set by `linear` */
} Linear;

/* sums [n] of the outputs from `first` on, to `out` [n]. */
static void apply_epilogue(const Linear *l, const Matrix *m, int64_t first, int64_t n, const float *sums,
                           float *out) {
    for (int64_t j = 0; j < n; j += LANES) {
        int64_t left = smaller(n - j, LANES);
        vec v = load(sums + j);
        if (m->scale) v *= load_first(m->scale + first + j, left, FLOAT32);
        if (m->bias) v += load_first(m->bias + first + j, left, FLOAT32);
        v = activate(v, l->activation, l->swish_beta);
        if (l->adds) v += load_first(out + j, left, FLOAT32);
        store_first(out + j, v, left);
    }
}

static int64_t parts_of(const Linear *l, const Matrix *m) {
    return (m->n_outputs + l->part_outputs - 1) / l->part_outputs;
}

static void run_linear_part(const void *job, int64_t part, float *scratch) {
    const Linear *l = job;
    const Matrix *m = l->matrices;
    float *out = l->out, *sums = scratch + PANEL_FLOATS;
    for (; part >= parts_of(l, m); m++) {
        part -= parts_of(l, m);
        out += m->n_outputs;
    }
    int64_t first = part * l->part_outputs, n = smaller(l->part_outputs, m->n_outputs - first);
    int64_t stride = round_up(n, LANES);
    multiply(l->x, m->n_inputs, l->T, m, first, n, sums, stride, scratch);
    for (int64_t t = 0; t < l->T; t++)
        apply_epilogue(l, m, first, n, sums + t * stride, out + t * l->out_stride + first);
}

static void linear(const Team *team, Linear l) {
    int64_t n_outputs = 0, n_parts = 0;
    for (int64_t i = 0; i < l.n_matrices; i++) n_outputs += l.matrices[i].n_outputs;
    l.part_outputs = round_up(n_outputs / (PARTS_PER_THREAD * team->n_threads) + 1, PANEL);
    l.part_outputs = l.T < PACK_TOKENS ? smaller(l.part_outputs, MAX_PART) : PANEL;
    for (int64_t i = 0; i < l.n_matrices; i++) n_parts += parts_of(&l, l.matrices + i);
    parallel(team, n_parts, run_linear_part, &l);
}

#endif
