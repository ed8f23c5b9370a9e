/* The forward pass: token ids to logits, in steps. A pass returns early after some time and can go on later,
   so that Python handles signals even while a long prompt is computed. */
#ifndef GPTCLI_FORWARD_H
#define GPTCLI_FORWARD_H

#include <time.h>

#include "attention.h"
#include "head.h"
#include "norm.h"

enum { QKV, ATTENTION, OUT_PROJ, UP, DOWN, STEPS_PER_LAYER };
enum { LINE_FLOATS = LINE / 4 };

static const double MAX_SECONDS = 0.05; /* then a pass returns after the step it is in */

/* What the steps of a pass share; the buffers lie in its scratch memory. */
typedef struct {
    const Model *model;
    const Pass *pass;
    Team team;
    float *x, *normed, *mixed; /* [T, C] each */
    float *qkv;                /* [T, 3C] */
    float *hidden;             /* [T, F] */
} State;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Where the buffers lie in a pass's scratch memory, in floats: the arrays of tokens, what all threads share,
   what each has for itself. */
typedef struct {
    int64_t shared, thread, thread_floats, end;
} Layout;

static Layout layout_of(const Model *m, int64_t T, int64_t S) {
    const Layer *layer = m->layers;
    int64_t shared = larger(shared_floats(layer->qkv), shared_floats(&layer->out_proj));
    shared = larger(shared, larger(shared_floats(&layer->up), shared_floats(&layer->down)));
    shared = larger(shared, shared_floats(&m->head));
    Layout l = {.shared = round_up(T * (6 * m->emb_dim + m->ffn_dim), LINE_FLOATS)};
    l.thread = l.shared + round_up(shared, LINE_FLOATS);
    l.thread_floats = larger(2 * SUM_FLOATS, attention_floats(S, m->emb_dim / m->n_heads, T));
    l.thread_floats = round_up(l.thread_floats, LINE_FLOATS);
    l.end = l.thread + m->n_threads * l.thread_floats;
    return l;
}

/* Floats that a pass of T tokens needs when S are cached in the end. */
static int64_t scratch_floats(const Model *m, int64_t T, int64_t S) {
    return layout_of(m, T, S).end + LINE_FLOATS; /* it may begin anywhere in a line */
}

static State state_of(const Model *m, const Pass *p) {
    const int64_t T = p->n_tokens, C = m->emb_dim;
    const Layout l = layout_of(m, T, p->start + T);
    float *x = (float *)round_up((int64_t)p->scratch, LINE);
    return (State){.model = m, .pass = p, .x = x, .normed = x + T * C, .mixed = x + 2 * T * C,
                   .qkv = x + 3 * T * C, .hidden = x + 6 * T * C,
                   .team = {m->n_threads, x + l.thread, l.thread_floats, x + l.shared}};
}

/* x [T, C] = token embedding + position embedding. */
static void embed(const State *s) {
    const Matrix *tokens = &s->model->tok_emb, *positions = &s->model->pos_emb;
    const int64_t C = s->model->emb_dim;
    for (int64_t t = 0; t < s->pass->n_tokens; t++) {
        const char *token = at(tokens->data, s->pass->ids[t] * tokens->stride, tokens->dtype);
        const char *position = at(positions->data, (s->pass->start + t) * positions->stride, positions->dtype);
        for (int64_t i = 0; i < C; i += LANES) {
            int64_t left = smaller(C - i, LANES);
            vec v = load_first(at(token, i, tokens->dtype), left, tokens->dtype) +
                    load_first(at(position, i, positions->dtype), left, positions->dtype);
            store_first(s->x + t * C + i, v, left);
        }
    }
}

static void normalize(const State *s, const Norm *norm, int64_t first) {
    const int64_t C = s->model->emb_dim;
    layer_norm(&s->team, (LayerNorm){s->x + first * C, s->pass->n_tokens - first, C, norm, s->model->norm_eps,
                                     s->model->norm_unbiased, s->normed + first * C});
}

/* One step of a layer. In the last layer, only tokens from `first` on go further than keys and values. */
static void run_step(const State *s, int64_t index, int64_t step, int64_t first) {
    const Model *m = s->model;
    const Layer *layer = m->layers + index;
    const int64_t C = m->emb_dim, F = m->ffn_dim, T = s->pass->n_tokens, n = T - first;
    const int64_t cache_floats = 2 * s->pass->capacity * C;
    if (n == 0 && step > ATTENTION) return;
    switch (step) {
    case QKV:
        normalize(s, &layer->norm1, 0);
        linear(&s->team, (Linear){.matrices = layer->qkv, .n_matrices = layer->n_qkv, .x = s->normed, .T = T,
                                  .out = s->qkv, .out_stride = 3 * C});
        break;
    case ATTENTION:
        attend(&s->team, (Attention){s->qkv, T, s->pass->start, m->n_heads, C / m->n_heads, first,
                                     s->pass->cache + index * cache_floats, s->pass->capacity, s->mixed, 0});
        break;
    case OUT_PROJ:
        linear(&s->team, (Linear){.matrices = &layer->out_proj, .n_matrices = 1, .x = s->mixed + first * C,
                                  .T = n, .out = s->x + first * C, .out_stride = C, .adds = 1});
        break;
    case UP:
        normalize(s, &layer->norm2, first);
        linear(&s->team, (Linear){.matrices = &layer->up, .n_matrices = 1, .x = s->normed + first * C, .T = n,
                                  .out = s->hidden + first * F, .out_stride = F,
                                  .activation = layer->activation, .swish_beta = layer->swish_beta});
        break;
    case DOWN:
        linear(&s->team, (Linear){.matrices = &layer->down, .n_matrices = 1, .x = s->hidden + first * F,
                                  .T = n, .out = s->x + first * C, .out_stride = C, .adds = 1});
        break;
    }
}

static void forward(const Model *m, Pass *p) {
    const State s = state_of(m, p);
    const int64_t wanted = p->n_tokens - p->n_logits, n_steps = STEPS_PER_LAYER * m->n_layers;
    const double start = seconds();
    if (p->next_step == 0) embed(&s);
    while (p->next_step < n_steps) {
        int64_t layer = p->next_step / STEPS_PER_LAYER;
        run_step(&s, layer, p->next_step % STEPS_PER_LAYER, layer == m->n_layers - 1 ? wanted : 0);
        p->next_step++;
        if (seconds() - start > MAX_SECONDS) return;
    }
    if (p->n_logits) {
        normalize(&s, &m->final_norm, wanted);
        compute_logits(&s.team, m, s.normed + wanted * m->emb_dim, p->n_logits, (int)p->argmax_only, p->logits);
    }
    p->next_step++;
}

#endif
