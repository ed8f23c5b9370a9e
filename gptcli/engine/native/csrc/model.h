/* What Python hands over: matrices, a model, and one forward pass. `structs.py` mirrors these structs.

   Shapes use the legend of model/gpt.py:
     T  new tokens            H  attention heads     C  emb_dim     V  vocabulary
     S  cached + new tokens   D  width of one head   F  ffn_dim     L  layers
   A matrix has I inputs and O outputs. All numbers are float32 where nothing else is said. */
#ifndef GPTCLI_MODEL_H
#define GPTCLI_MODEL_H

#include <stdint.h>

enum {
    ABI_VERSION = 1, /* raised with every change of a struct or a signature */
    MAX_TOKENS = 256 /* of one pass: T is no larger */
};

typedef enum { FLOAT32, BFLOAT16, FLOAT16, INT8 } Dtype;

typedef enum {
    IDENTITY, GELU_TANH, GELU, GELU_SIGMOID, RELU, SILU, SIGMOID, TANH, SWISH,
    EXP, ERF /* for tests; no model has them */
} Activation;

typedef struct {
    const void *data;   /* [O, I] by rows, or [I, O] by columns, at any address */
    const float *scale; /* [O] of an int8 matrix, else NULL */
    const float *bias;  /* [O] or NULL */
    int64_t n_inputs, n_outputs;
    int64_t stride;     /* elements from one row of `data` to the next */
    int32_t dtype, by_columns;
} Matrix;

typedef struct {
    const float *scale, *shift; /* [C] each */
} Norm;

typedef struct {
    Norm norm1, norm2;
    Matrix qkv[3];         /* C to C each: query, key, value; or one from C to 3C */
    Matrix out_proj;       /* C to C */
    Matrix up, down;       /* C to F, F to C */
    int32_t n_qkv, activation;
    float swish_beta;
} Layer;

typedef struct {
    int64_t n_layers, n_heads, emb_dim, ffn_dim, vocab_size;
    const Layer *layers;          /* [L] */
    Matrix tok_emb, pos_emb;      /* [V, C], [context_length, C], by rows */
    Norm final_norm;
    Matrix head;                  /* C to V */
    Matrix int8_head;             /* C to V in int8; data is NULL if there is none */
    const float *error_bound;     /* [V]: times |x| it bounds the error of an int8 logit */
    float near_tie;               /* logits so close to the largest, relative to the largest magnitude, are exact */
    float norm_eps;
    int32_t norm_unbiased, n_threads;
} Model;

typedef struct {
    const int64_t *ids;  /* [T] */
    int64_t n_tokens;    /* T */
    int64_t start;       /* tokens that the cache holds already */
    int64_t n_logits;    /* how many of the last tokens get logits */
    int64_t argmax_only; /* only the largest logits need to be exact */
    float *cache;        /* [L, 2, H, capacity, D] */
    int64_t capacity;
    float *logits;       /* [n_logits, V] */
    float *scratch;      /* as many floats as `scratch_floats` says */
    int64_t next_step;   /* where the pass goes on; STEPS_PER_LAYER * L + 1 when it is done */
} Pass;

#endif
