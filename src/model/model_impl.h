/* model_impl.h - what model.c (open, info, cache) and decoder.c (the pass) share. */
#ifndef MX_MODEL_MODEL_IMPL_H
#define MX_MODEL_MODEL_IMPL_H
#include "model/arch.h"
#include "model/model.h"
#include "model/weights.h"

/* Working memory of one step, cut from one buffer that is made at load. Matrices that are never alive at the same time share memory:
 * what a mixer needs and what an MLP needs. rows: max_tok. */
typedef struct {
    mx_buf buf;
    mx_mat x; // [max_tok, d] f32: the residual stream
    mx_mat h; // [max_tok, d] act: normed input of a block
    mx_mat o; // [max_tok, d] f32: output of a block, before it joins x
    // attention
    mx_mat q, k, v, gate_q, attn; // q and gate_q are columns of one matrix where the output is gated
    // delta rule
    mx_mat qkv, z, a, b, delta;
    // mlp
    mx_mat gate, up;               // [max_tok, ff]
    mx_mat expert_gate, expert_up; // [max_tok * n_expert_used, expert_ff]
    mx_mat router;                 // [max_tok, n_expert] f32
    mx_mat each;                   // [max_tok * n_expert_used, d]
    int32_t *expert_ids;
    float *expert_weights;
    float *cos_sin[MX_ROPES];
    // logits
    mx_mat rows, rows_h, logits; // [max_rows, ...]
    int32_t *row_ids;
    float *top;      // device [max_rows * (2 k + 1)], k = 256 at most: lse, ids, logits of the best
    float *top_host; // the copy of it; in the model's arena
} mx_scratch;

typedef struct {
    int n_rot; // 0: no layer uses this rope
    float scale;
    float *inv_freq; // device [n_rot / 2]
} mx_rope;

struct mx_model {
    mx_arena a;
    mx_dev *dev; // NULL: described only
    mx_config *config;
    mx_st *st;
    mx_arch *arch;
    const mx_family *family;
    mx_weights w;
    mx_model_info info;
    const char *eos_token; // of tokenizer_config.json, or NULL
    mx_generation_defaults defaults;
    mx_rope rope[MX_ROPES];
    mx_buf rope_buf;
    int *group; // [n_layer] KV group of an attention layer, -1 of a recurrent one
    int max_tok, max_rows;
    mx_scratch s;
};

typedef struct {
    mx_kv kv;            // attention
    float *conv, *state; // delta rule: [n_slot, ...]
} mx_layer_cache;

struct mx_cache {
    mx_model *m;
    mx_dtype type;
    int n_slot;
    size_t conv_bytes, state_bytes; // one slot of one layer
    mx_layer_cache *layer;          // [n_layer]
    mx_buf *bufs;                   // [n_layer * 2]
    size_t bytes;
};

/* Make the scratch memory for max_tok tokens and max_rows rows of logits. */
mx_status mx_scratch_new(mx_model *m, mx_err *err);

/* Rows [0, n) of a matrix that has more; columns [col, col + n) of one. */
mx_mat mx_mat_rows(const mx_mat *m, int n);
mx_mat mx_mat_cols(const mx_mat *m, int col, int n);

#endif
