/* model.h - a loaded model: weights on a device, and the forward pass over a ragged batch.
 *
 * The order of a step: the engine fills an mx_batch (tokens, positions, KV blocks), mx_model_forward runs the layers and
 * leaves the hidden states in the model's scratch, mx_model_logits turns the rows that are wanted into logits. */
#ifndef MX_MODEL_MODEL_H
#define MX_MODEL_MODEL_H
#include "backend/backend.h"
#include "base/arena.h"
#include "base/json.h"
#include "format/safetensors.h"
#include "text/tokenizer.h"

typedef struct mx_model mx_model;
typedef struct mx_cache mx_cache;

enum { MX_MAX_EOS = 16 };

/* What a model is, for display and for sizing. Strings live as long as the model. */
typedef struct {
    const char *family;       // "qwen3"
    const char *architecture; // "Qwen3ForCausalLM", or "" when the config names none
    const char *quant;        // "4-bit affine, group 64", "bfloat16", or "mixed: ..."
    int n_layer, n_attention, n_recurrent, d, n_head, n_kv, hd, n_vocab;
    int n_ctx; // positions the model was made for
    int n_expert, n_expert_used;
    int n_group; // KV groups; window[g] = 0: all positions
    int window[MX_KV_GROUPS];
    int group_layers[MX_KV_GROUPS];
    int n_eos; // from generation_config.json, config.json and the tokenizer, all of them (LOAD-12)
    int32_t eos[MX_MAX_EOS];
    int32_t bos;             // -1: none
    uint64_t n_param;        // parameters, of experts all
    uint64_t n_param_active; // parameters that one token uses
    uint64_t weight_bytes;
    mx_dtype dtype; // of the checkpoint's plain weights: bf16, f16 or f32
} mx_model_info;

/* Sampling defaults that generation_config.json sets; a field that it does not set is NAN or -1. */
typedef struct {
    int do_sample; // -1 unset
    float temperature, top_p, min_p, repetition_penalty;
    int top_k;
} mx_generation_defaults;

typedef struct {
    int max_tok;  // most tokens in one step (prefill chunk); 0: 512
    int max_rows; // most rows of logits at once; 0: 16
    void (*progress)(void *arg, uint64_t done, uint64_t total); // bytes of weights, or NULL
    void *arg;
} mx_model_options;

/* Load the model in folder dir onto dev, which must outlive it. MX_UNSUPPORTED for a family, field, tensor or weight format
 * that is not understood, by name; MX_EINVAL for a broken file. */
mx_status mx_model_open(mx_model **out, const char *dir, mx_dev *dev, const mx_model_options *opt,
                        mx_err *err);
void mx_model_free(mx_model *m);
const mx_model_info *mx_model_get_info(const mx_model *m);
const mx_generation_defaults *mx_model_get_defaults(const mx_model *m);
/* The tokenizer's own end token joins those of the configs. Whoever opens both says so once. */
void mx_model_use_tokenizer(mx_model *m, const mx_tokenizer *t);
mx_dev *mx_model_dev(const mx_model *m);
size_t mx_model_scratch_bytes(const mx_model *m);
int mx_model_max_tok(const mx_model *m);
int mx_model_max_rows(const mx_model *m);

/* The same facts from the files alone, nothing loaded: for `inspect`. The model opened so has no device and cannot run. */
mx_status mx_model_describe(mx_model **out, const char *dir, mx_err *err);

/* One line per kind of module ("self_attn.q_proj", "mlp.down_proj", ...): how it is stored, for `inspect`. */
typedef struct {
    const char *module; // name with layer numbers replaced by *
    const char *format; // "affine 4-bit g64" or "bfloat16"
    int n_out, n_in, n_stack, count;
    uint64_t bytes, params;
} mx_module_row;
mx_status mx_model_modules(const mx_model *m, mx_arena *a, mx_module_row **rows, int *n_row, mx_err *err);

/* ---- cache: the memory behind a batch's blocks and slots ------------------------------------------------ */

enum { MX_KV_BLOCK = 32 }; // positions in a block

size_t mx_model_block_bytes(const mx_model *m, int group,
                            mx_dtype kv_type); // one block in all layers of the group
size_t mx_model_slot_bytes(const mx_model *m); // one sequence's recurrent state; 0: none

/* Pools of n_block[g] blocks for each group and n_slot state slots. m must outlive it. */
mx_status mx_cache_new(mx_cache **out, mx_model *m, const int *n_block, int n_slot, mx_dtype kv_type,
                       mx_err *err);
void mx_cache_free(mx_cache *c);
mx_status mx_cache_clear_slot(mx_cache *c, int slot, mx_err *err); // a new sequence starts from a zero state
size_t mx_cache_bytes(const mx_cache *c);

/* ---- the pass ------------------------------------------------------------------------------------------- */

/* Run all layers over the batch: b->n_tok <= max_tok. Writes the cache. b's pointers are device addresses. */
mx_status mx_model_forward(mx_model *m, mx_cache *c, const mx_batch *b, mx_err *err);

/* Logits of n rows of the last forward into host memory out[n, n_vocab]; rows are host indices into its tokens, n <= max_rows.
 * MX_EINTERNAL if a value is not finite (nothing is ever sampled from NaN). Waits. */
mx_status mx_model_logits(mx_model *m, const int *rows, int n, float *out, mx_err *err);

/* The same logits, of which only the k largest of each row (1 <= k <= 256 and n_vocab) leave the device, with the logarithm of the
 * row's sum of exponentials. What out points to is valid until the next call. */
typedef struct {
    const int32_t *ids;  // [n, k] by falling logit; a tie goes to the lower id
    const float *values; // [n, k]
    const float *lse;    // [n]
} mx_model_best;
mx_status mx_model_top(mx_model *m, const int *rows, int n, int k, mx_model_best *out, mx_err *err);

#endif
