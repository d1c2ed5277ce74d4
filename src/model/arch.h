/* arch.h - a model family as data: what its layers are made of, and what its tensors are called.
 *
 * A family's describe() turns a config into an mx_arch and does nothing else; weights.c binds tensors to it and decoder.c
 * runs it. A field that describe() does not ask for, and a tensor that weights.c does not take, are load errors by name.
 *
 *     x = embed(ids) * embed_scale
 *     each layer:  x += post_attn_norm(mixer(pre_attn_norm(x)));  x += post_mlp_norm(mlp(pre_mlp_norm(x)))
 *     logits = softcap(lm_head(final_norm(x)))
 * A norm whose name is NULL is the identity. */
#ifndef MX_MODEL_ARCH_H
#define MX_MODEL_ARCH_H
#include "backend/backend.h"
#include "format/config.h"

enum { MX_MAX_LAYERS = 512, MX_ROPES = 2 };

typedef enum { MX_MIX_ATTENTION, MX_MIX_DELTA } mx_mixer;
typedef enum { MX_MLP_GATED, MX_MLP_MOE } mx_mlp;

typedef struct {
    mx_mixer mixer;
    mx_mlp mlp;
    int window; // attention: positions a token sees, 0: all
    int rope;   // attention: index into mx_arch.rope
} mx_layer_desc;

typedef struct {
    int n_layer, d, n_vocab, n_ctx;
    float eps;
    float embed_scale;        // 1, or Gemma's sqrt(d)
    bool embed_scale_rounded; // to the type of the embedding: such models were trained so
    bool tied;                // the head is the embedding
    bool norm_plus_one;       // norms multiply by 1 + w
    bool
        norm_shift_by_conv; // the same, but only where conv1d.weight is [c, 1, k]: MLX adds the 1 when it moves that axis
    const char *pre_attn_norm, *post_attn_norm, *pre_mlp_norm,
        *post_mlp_norm; // names within a layer, or NULL
    float final_softcap;

    // attention: "self_attn" {q,k,v,o}_proj
    int n_head, n_kv, hd;
    bool qkv_bias, o_bias;
    bool qk_norm;      // RMS norm of each head of q and k before rope: q_norm, k_norm
    bool gated_output; // q_proj gives each head hd values of q, then hd of a gate: out *= sigmoid(gate)
    float attn_scale, attn_softcap;
    mx_rope_config rope[MX_ROPES];

    // gated delta rule: "linear_attn"
    int delta_k_heads, delta_v_heads, delta_dk, delta_dv, conv_width;

    // mlp: "mlp" {gate,up,down}_proj
    int ff;
    mx_act act;
    bool mlp_bias;
    // mixture of experts: moe_path ".gate" and ".switch_mlp" (MLX) or ".experts.N" (Hugging Face)
    const char *moe_path;
    const char *expert_names[3]; // gate, up and down of one expert in Hugging Face's layout
    int n_expert, n_expert_used, expert_ff;
    mx_route_kind route;
    bool route_normalize;

    mx_layer_desc layer[MX_MAX_LAYERS];
} mx_arch;

typedef struct {
    const char *model_types[4]; // NULL-terminated
    const char *title;          // for lists: "Qwen3"
    void (*describe)(mx_config *c, mx_arch *a);
} mx_family;

extern const mx_family *const mx_families[];
extern const int mx_n_family;
const mx_family *mx_family_find(const char *model_type); // NULL if there is none

/* Describe the model of config c: family, fields, consistency. MX_UNSUPPORTED names the known families. */
mx_status mx_arch_describe(mx_arch *a, const mx_family **family, mx_config *c, mx_err *err);

/* ---- what describe() functions share (families/common.c) ------------------------------------------------ */

/* The fields of nearly every decoder: sizes, eps, tied, rope for all layers; pre_attn_norm and pre_mlp_norm as in Llama. */
void mx_describe_common(mx_config *c, mx_arch *a);
/* hidden_act or hidden_activation. */
mx_act mx_describe_act(mx_config *c, const char *key, const char *dflt);
/* Windows by layer_types, or where it is absent by first_sliding: layers from that index on (n_layer: none). */
void mx_describe_windows(mx_config *c, mx_arch *a, int window, int first_sliding);
/* Index of the kind in layer_types[i] among names (NULL-terminated), -1 without layer_types; an unknown kind is remembered as an error. */
int mx_layer_type(mx_config *c, int i, const char *const *names);

#endif
