/* What Python hands over: matrices, a model, and one forward pass. `library.py` mirrors these structs.

   Shapes use the legend of model/gpt.py:
     T  new tokens            H  attention heads     C  emb_dim     V  vocabulary     E  experts
     S  cached + new tokens   D  width of one head   F  ffn_dim     L  layers         K  experts of a token
   A matrix has I inputs and O outputs. Stored vectors are float32; `void` stands for the type that a pass
   computes in, float32 or float64. */
#ifndef GPTCLI_MODEL_H
#define GPTCLI_MODEL_H

#include <stdint.h>

enum {
    ABI_VERSION = 2, /* raised with every change of a struct or a signature */
    MAX_TOKENS = 256 /* of one pass: T is no larger */
};

typedef enum { FLOAT32, BFLOAT16, FLOAT16, INT8, FLOAT64 /* keys and values of a float64 pass */ } Dtype;

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
    const float *scale, *shift; /* [C] each; shift may be NULL */
} Norm;

/* down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)). */
typedef struct {
    Matrix gate, up, down; /* C to F, C to F, F to C; without a gate its data is NULL */
    int64_t activation;
    double swish_beta;
} FeedForward;

/* The feed-forwards are first those that every token goes through, then the experts, of which it goes through K;
   a dense layer has one of the first kind and no experts. */
typedef struct {
    Norm norm1, norm2;
    Matrix qkv[3];                   /* C to C each: query, key, value; or one from C to 3C */
    Matrix out_proj;                 /* C to C */
    Matrix router;                   /* C to E, where there are experts */
    const FeedForward *feed_forwards;
    int64_t n_always, n_experts, n_chosen; /* how many of the first kind, E, K */
    int64_t n_qkv;
    double score_scale;              /* of the products of queries and keys: 1 / √D */
} Layer;

typedef struct {
    int64_t n_layers, n_heads, emb_dim, ffn_dim, vocab_size;
    const Layer *layers;          /* [L] */
    Matrix tok_emb, pos_emb;      /* [V, C], [context_length, C], by rows */
    Norm final_norm;
    Matrix head;                  /* C to V */
    Matrix int8_head;             /* C to V in int8; data is NULL if there is none */
    const float *error_bound;     /* [V]: times |x| it bounds the error of an int8 logit */
    double near_tie;              /* logits so close to the largest, relative to their scale, are exact */
    double norm_eps;
    int32_t norm_unbiased, n_threads;
} Model;

/* The new tokens of one sequence. */
typedef struct {
    void *cache;         /* [L, 2, H, capacity, D] */
    int64_t capacity;
    int64_t start;       /* tokens that the cache holds already */
    int64_t n_tokens;
    int64_t n_logits;    /* how many of the last tokens get logits */
} Row;

typedef struct {
    const int64_t *ids;  /* [T], those of one row after those of another */
    const Row *rows;
    int64_t n_rows;
    int64_t n_tokens, n_logits; /* of all rows together: T, N */
    int64_t longest;     /* start + n_tokens of a row, at most: S */
    int64_t argmax_only; /* only the largest logits need to be exact */
    int64_t is_float64;  /* whether the cache, the logits and all sums are */
    void *logits;        /* [N, V] */
    void *scratch;       /* as many bytes as `scratch_bytes` says */
    int64_t next_step;   /* where the pass goes on; STEPS_PER_LAYER * L + 1 when it is done */
} Pass;

#endif
