/* The forward pass: token ids to logits, in steps. A pass returns early after some time and can go on later,
   so that Python handles signals even while a long prompt is computed. */
#ifndef GPTCLI_FORWARD_H
#define GPTCLI_FORWARD_H

#include <time.h>

#include "attention.h"
#include "feed_forward.h"
#include "head.h"
#include "norm.h"

enum { QKV, ATTENTION, OUT_PROJ, FEED_FORWARDS, STEPS_PER_LAYER };
enum { LINE_REALS = LINE / sizeof(real) };

static const double MAX_SECONDS = 0.05; /* then a pass returns after the step it is in */

/* What the steps of a pass share; the buffers lie in its scratch memory. */
typedef struct {
    const Model *model;
    const Pass *pass;
    Team team;
    real *x, *normed, *mixed; /* [T, C] each */
    real *qkv;                /* [T, 3C] */
    Mixing mixing;            /* uses qkv's memory, too */
} State;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Where the buffers lie in a pass's scratch memory, in reals: the arrays of tokens, what all threads share,
   what each has for itself. */
typedef struct {
    int64_t shared, thread, thread_reals, end;
} Layout;

static Layout layout_of(const Model *m, int64_t T, int64_t S) {
    int64_t shared = shared_reals(&m->head), per_token = 6 * m->emb_dim + m->ffn_dim, E = 0;
    for (const Layer *layer = m->layers; layer < m->layers + m->n_layers; layer++) {
        shared = larger(shared, larger(shared_reals(layer->qkv), shared_reals(&layer->out_proj)));
        shared = larger(shared, feed_forward_reals(layer));
        E = larger(E, layer->n_experts);
    }
    Layout l = {.shared = round_up(T * (per_token + 2 * E), LINE_REALS)};
    l.thread = l.shared + round_up(shared, LINE_REALS);
    l.thread_reals = larger(2 * SUM_REALS, attention_reals(S, m->emb_dim / m->n_heads, T));
    l.thread_reals = round_up(l.thread_reals, LINE_REALS);
    l.end = l.thread + m->n_threads * l.thread_reals;
    return l;
}

/* Bytes that a pass of T tokens needs when S are cached in the end. */
static int64_t scratch_bytes(const Model *m, int64_t T, int64_t S) {
    return layout_of(m, T, S).end * (int64_t)sizeof(real) + LINE; /* it may begin anywhere in a line */
}

static State state_of(const Model *m, const Pass *p) {
    const int64_t T = p->n_tokens, C = m->emb_dim;
    const Layout l = layout_of(m, T, p->longest);
    real *x = (real *)round_up((int64_t)p->scratch, LINE), *qkv = x + 3 * T * C, *hidden = qkv + 3 * T * C;
    real *scores = hidden + T * m->ffn_dim;
    return (State){.model = m, .pass = p, .x = x, .normed = x + T * C, .mixed = x + 2 * T * C, .qkv = qkv,
                   .mixing = {hidden, qkv, qkv + T * C, scores, scores + T * m->layers->n_experts},
                   .team = {m->n_threads, (char *)(x + l.thread), l.thread_reals * (int64_t)sizeof(real),
                            x + l.shared}};
}

/* x [C] = token embedding + position embedding. */
static void embed(const Model *m, int64_t id, int64_t position, real *x) {
    const Matrix *tokens = &m->tok_emb, *positions = &m->pos_emb;
    const char *token = at(tokens->data, id * tokens->stride, tokens->dtype);
    const char *place = at(positions->data, position * positions->stride, positions->dtype);
    for (int64_t i = 0; i < m->emb_dim; i += LANES) {
        int64_t left = smaller(m->emb_dim - i, LANES);
        vec v = load_first(at(token, i, tokens->dtype), left, tokens->dtype);
        store_first(x + i, v + load_first(at(place, i, positions->dtype), left, positions->dtype), left);
    }
}

static void embed_rows(const State *s) {
    const int64_t *id = s->pass->ids;
    real *x = s->x;
    for (const Row *row = s->pass->rows; row < s->pass->rows + s->pass->n_rows; row++)
        for (int64_t t = 0; t < row->n_tokens; t++, x += s->model->emb_dim)
            embed(s->model, *id++, row->start + t, x);
}

/* Move the tokens that get logits to the front of x. */
static void keep_only_logits(const State *s) {
    const int64_t C = s->model->emb_dim;
    real *from = s->x, *to = s->x;
    for (const Row *row = s->pass->rows; row < s->pass->rows + s->pass->n_rows; row++) {
        from += row->n_tokens * C;
        memmove(to, from - row->n_logits * C, (size_t)(row->n_logits * C) * sizeof(real));
        to += row->n_logits * C;
    }
}

static void normalize(const State *s, const Norm *norm, int64_t n) {
    const Model *m = s->model;
    layer_norm(&s->team, (LayerNorm){s->x, n, m->emb_dim, norm, (real)m->norm_eps, m->norm_unbiased, s->normed});
}

/* One step of a layer. After the last layer's keys and values, only the tokens that get logits go on. */
static void run_step(const State *s, int64_t index, int64_t step) {
    const Model *m = s->model;
    const Pass *p = s->pass;
    const Layer *layer = m->layers + index;
    const int64_t C = m->emb_dim;
    const int is_last = index == m->n_layers - 1;
    const int64_t n = is_last && step != QKV ? p->n_logits : p->n_tokens;
    switch (step) {
    case QKV:
        normalize(s, &layer->norm1, n);
        linear(&s->team, (Linear){.matrices = layer->qkv, .n_matrices = layer->n_qkv, .x = s->normed, .T = n,
                                  .out = s->qkv, .out_stride = 3 * C});
        break;
    case ATTENTION:
        attend(&s->team, (Attention){s->qkv, p->rows, p->n_rows, index, m->n_heads, C / m->n_heads, is_last,
                                     (real)layer->score_scale, s->mixed});
        if (is_last) keep_only_logits(s);
        break;
    case OUT_PROJ:
        linear(&s->team, (Linear){.matrices = &layer->out_proj, .n_matrices = 1, .x = s->mixed, .T = n,
                                  .out = s->x, .out_stride = C, .into = ADD});
        break;
    case FEED_FORWARDS:
        normalize(s, &layer->norm2, n);
        feed_forwards(&s->team, layer, s->normed, n, &s->mixing, s->x);
        break;
    }
}

static void forward(const Model *m, Pass *p) {
    const State s = state_of(m, p);
    const int64_t n_steps = STEPS_PER_LAYER * m->n_layers;
    const double start = seconds();
    if (p->next_step == 0) embed_rows(&s);
    while (p->next_step < n_steps) {
        run_step(&s, p->next_step / STEPS_PER_LAYER, p->next_step % STEPS_PER_LAYER);
        p->next_step++;
        if (p->n_logits == 0 && p->next_step == n_steps - OUT_PROJ) p->next_step = n_steps; /* nothing goes on */
        if (seconds() - start > MAX_SECONDS) return;
    }
    if (p->n_logits) {
        normalize(&s, &m->final_norm, p->n_logits);
        compute_logits(&s.team, m, s.normed, p->n_logits, (int)p->argmax_only, p->logits);
    }
    p->next_step++;
}

#endif
