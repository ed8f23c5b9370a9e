/* The output head. For greedy steps an int8 copy, a quarter of the bytes, tells which rows can be the largest.

   With Q the head in int8 and E = W - Q, |W·x - Q·x| <= |E|·|x| in each row (Cauchy-Schwarz). Rows with an
   interval that reaches the best lower end are computed again from W; all others are smaller for certain. */
#ifndef GPTCLI_HEAD_H
#define GPTCLI_HEAD_H

#include "linear.h"

enum {
    RESCORE_ROWS = 2048, /* rows of one part */
    RESCORE_TOKENS = 16  /* of more tokens at once, the products cost more than reading the head */
};

typedef struct {
    const Model *model;
    const real *x; /* [C] */
    real *logits;  /* [V] */
    real length;   /* |x|, rounded up */
    real lowest;   /* what a logit must reach to be the largest, or near it */
} Rescoring;

/* Find the best lower end, and the ends of all intervals; set `lowest` by them. */
static void find_lowest(Rescoring *r) {
    const float *bound = r->model->error_bound;
    real best = -__builtin_inff(), least = __builtin_inff(), most = -__builtin_inff();
    for (int64_t j = 0; j < r->model->vocab_size; j++) {
        real error = bound[j] * r->length, low = r->logits[j] - error, high = r->logits[j] + error;
        best = low > best ? low : best;
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    real scale = most - least; /* as `scale_of` in decode/near_ties.py */
    scale = most > scale ? most : scale;
    scale = -least > scale ? -least : scale;
    r->lowest = best - (real)r->model->near_tie * scale;
}

static void run_rescoring_part(const void *job, int64_t part, void *scratch) {
    (void)scratch;
    const Rescoring *r = job;
    const Matrix *head = &r->model->head;
    int64_t end = smaller((part + 1) * RESCORE_ROWS, head->n_outputs);
    for (int64_t j = part * RESCORE_ROWS; j < end; j++)
        if (!(r->logits[j] + r->model->error_bound[j] * r->length < r->lowest)) /* true for NaN too */
            dot_rows(r->x, head->n_inputs, 1, head, j, 1, r->logits + j, 1);
}

static void rescore_candidates(const Team *team, const Model *model, const real *x, real *logits) {
    Rescoring r = {model, x, logits, 0, 0};
    double squares = 0;
    for (int64_t i = 0; i < model->emb_dim; i++) squares += (double)x[i] * x[i];
    r.length = (real)(__builtin_sqrt(squares) * 1.00001);
    find_lowest(&r);
    parallel(team, (model->vocab_size + RESCORE_ROWS - 1) / RESCORE_ROWS, run_rescoring_part, &r);
}

/* x [T, C] → logits [T, V]. */
static void compute_logits(const Team *team, const Model *model, const real *x, int64_t T, int argmax_only,
                           real *logits) {
    int rescores = argmax_only && model->int8_head.data && T <= RESCORE_TOKENS && !IS_DOUBLE;
    const Matrix *head = rescores ? &model->int8_head : &model->head;
    linear(team, (Linear){.matrices = head, .n_matrices = 1, .x = x, .T = T, .out = logits,
                          .out_stride = model->vocab_size});
    if (!rescores) return;
    for (int64_t t = 0; t < T; t++)
        rescore_candidates(team, model, x + t * model->emb_dim, logits + t * model->vocab_size);
}

#endif
