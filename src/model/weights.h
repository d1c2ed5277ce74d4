/* weights.h - the tensors of a checkpoint, bound to what an architecture needs.
 *
 * On a device that reads the mapped file (the CPU) nothing is copied but norms and the few matrices whose rows a family
 * stores in another order. Every tensor is either taken or known to be without effect; anything else is an error by name. */
#ifndef MX_MODEL_WEIGHTS_H
#define MX_MODEL_WEIGHTS_H
#include "format/safetensors.h"
#include "model/arch.h"

typedef struct { // y = x W^T + bias
    mx_qmat w;
    float *bias; // NULL: none
} mx_linear;

typedef struct {
    float *pre_attn_norm, *post_attn_norm, *pre_mlp_norm, *post_mlp_norm; // [d] or NULL
    mx_linear q, k, v, o;        // q with a gated output: rows of all heads' q, then rows of all heads' gates
    float *q_norm, *k_norm;      // [hd] or NULL
    mx_linear qkv, z, a, b, out; // gated delta rule
    float *conv_w, *a_log, *dt_bias, *delta_norm; // [c, width], [n_v], [n_v], [dv]
    mx_linear gate, up, down;                     // of a gated MLP, or stacks of n_expert
    mx_linear router;
} mx_layer_weights;

typedef struct { // a matrix as the file names it, for inspect
    const char *module;
    mx_qmat w;
} mx_module;

typedef struct {
    mx_linear embed, head; // head.w is embed.w where they are tied
    float *norm;
    mx_layer_weights *layer; // [n_layer]
    mx_module *modules;
    int n_module;
    uint64_t n_param, n_expert_param, bytes;
    mx_dtype dtype; // of plain numbers, by the embedding or its scales; bf16 for mxfp
    mx_buf *bufs;   // what was copied to the device
    int n_buf;
} mx_weights;

/* dev NULL: only check and count, nothing is moved. The mapping st must outlive w on devices that read it. */
mx_status mx_weights_load(mx_weights *w, const mx_arch *arch, mx_config *c, mx_st *st, mx_dev *dev,
                          void (*progress)(void *arg, uint64_t done, uint64_t total), void *arg, mx_err *err);
void mx_weights_free(mx_weights *w); // accepts a zeroed one

/* "4-bit affine g64", "bfloat16" into buf. */
const char *mx_qmat_format(const mx_qmat *w, char *buf, size_t cap);

#endif
