/* A linear layer on T tokens, in parallel: products, then scale, bias and activation. */
#ifndef GPTCLI_LINEAR_H
#define GPTCLI_LINEAR_H

#include "activations.h"
#include "packed.h"
#include "pool.h"

enum {
    PARTS_PER_THREAD = 8,   /* so that a thread without a core holds up little work */
    SUM_REALS = 1 << 15,    /* sums of one part, at most; MAX_TOKENS * PANEL or more */
    EPILOGUE_OUTPUTS = 1024 /* outputs of one part that only sums up slices */
};

typedef enum { REPLACE, ADD, MULTIPLY } Into;

typedef struct {
    const Matrix *matrices; /* all read x; their outputs are next to each other */
    int64_t n_matrices;
    const real *x;          /* [T, I] */
    int64_t T;
    real *out;              /* [T, sum of O] */
    int64_t out_stride;
    Activation activation;
    double swish_beta;
    Into into;              /* what becomes of the numbers that `out` holds */
    int64_t part_outputs;   /* set by `linear` */
} Linear;

/* sums [n] of the outputs from `first` on, to `out` [n]. */
static void apply_epilogue(const Linear *l, const Matrix *m, int64_t first, int64_t n, const real *sums,
                           real *out) {
    for (int64_t j = 0; j < n; j += LANES) {
        int64_t left = smaller(n - j, LANES);
        vec v = load(sums + j);
        if (m->scale) v *= load_first(m->scale + first + j, left, FLOAT32);
        if (m->bias) v += load_first(m->bias + first + j, left, FLOAT32);
        v = activate(v, l->activation, l->swish_beta);
        if (l->into == ADD) v += load_first(out + j, left, REAL);
        if (l->into == MULTIPLY) v *= load_first(out + j, left, REAL);
        store_first(out + j, v, left);
    }
}

static int64_t parts_of(const Linear *l, const Matrix *m) {
    return (m->n_outputs + l->part_outputs - 1) / l->part_outputs;
}

static void run_linear_part(const void *job, int64_t part, void *scratch) {
    const Linear *l = job;
    const Matrix *m = l->matrices;
    real *out = l->out, *slice = scratch, *sums = slice + SUM_REALS;
    for (; part >= parts_of(l, m); m++) {
        part -= parts_of(l, m);
        out += m->n_outputs;
    }
    int64_t first = part * l->part_outputs, n = smaller(l->part_outputs, m->n_outputs - first);
    int64_t stride = round_up(n, LANES);
    multiply(l->x, m->n_inputs, l->T, m, first, n, sums, stride, slice);
    for (int64_t t = 0; t < l->T; t++)
        apply_epilogue(l, m, first, n, sums + t * stride, out + t * l->out_stride + first);
}

/* One token and a matrix by columns: a part is some outputs of one slice, because then it reads long pieces of
   memory. The sums of all slices, [n_slices, sums_stride], meet in shared memory. */
typedef struct {
    const Linear *linear;
    const Matrix *matrix;
    int64_t n_slices, n_pieces, width; /* a slice is cut into pieces, `width` outputs each */
    real *out, *sums;
    int64_t sums_stride;
} Slices;

static void run_slice_part(const void *job, int64_t part, void *scratch) {
    (void)scratch;
    const Slices *s = job;
    int64_t slice = part / s->n_pieces, first = part % s->n_pieces * s->width;
    int64_t n = smaller(s->width, s->matrix->n_outputs - first);
    if (n > 0)
        add_slice(s->linear->x, 0, 1, s->matrix, slice * SLICE, first, n,
                  s->sums + slice * s->sums_stride + first, s->sums_stride);
}

static void run_epilogue_part(const void *job, int64_t part, void *scratch) {
    (void)scratch;
    const Slices *s = job;
    int64_t first = part * EPILOGUE_OUTPUTS, n = smaller(EPILOGUE_OUTPUTS, s->matrix->n_outputs - first);
    real *sums = s->sums + first;
    for (int64_t slice = 1; slice < s->n_slices; slice++) add_sums(sums, sums + slice * s->sums_stride, n);
    apply_epilogue(s->linear, s->matrix, first, n, sums, s->out + first);
}

static void linear_by_slices(const Team *team, const Linear *l) {
    real *out = l->out;
    for (const Matrix *m = l->matrices; m < l->matrices + l->n_matrices; m++) {
        Slices s = {l, m, (m->n_inputs + SLICE - 1) / SLICE, 0, 0, out, team->shared, round_up(m->n_outputs, PANEL)};
        s.n_pieces = (PARTS_PER_THREAD * team->n_threads + s.n_slices - 1) / s.n_slices;
        s.width = round_up((m->n_outputs + s.n_pieces - 1) / s.n_pieces, PANEL);
        parallel(team, s.n_slices * s.n_pieces, run_slice_part, &s);
        parallel(team, (m->n_outputs + EPILOGUE_OUTPUTS - 1) / EPILOGUE_OUTPUTS, run_epilogue_part, &s);
        out += m->n_outputs;
    }
}

/* Reals of shared memory that a matrix needs. */
static int64_t shared_reals(const Matrix *m) {
    return m->by_columns ? (m->n_inputs + SLICE - 1) / SLICE * round_up(m->n_outputs, PANEL) : 0;
}

static void linear(const Team *team, Linear l) {
    int64_t n_outputs = 0, n_parts = 0;
    if (l.T == 1 && l.matrices->by_columns && !IS_DOUBLE) {
        linear_by_slices(team, &l);
        return;
    }
    for (int64_t i = 0; i < l.n_matrices; i++) n_outputs += l.matrices[i].n_outputs;
    l.part_outputs = round_up(n_outputs / (PARTS_PER_THREAD * team->n_threads) + 1, PANEL);
    if (l.T >= PACK_TOKENS || IS_DOUBLE) l.part_outputs = PANEL;
    l.part_outputs = larger(smaller(l.part_outputs, SUM_REALS / l.T / PANEL * PANEL), PANEL);
    for (int64_t i = 0; i < l.n_matrices; i++) n_parts += parts_of(&l, l.matrices + i);
    parallel(team, n_parts, run_linear_part, &l);
}

#endif
