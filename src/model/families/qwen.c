/* Qwen2 (biases on q, k, v), Qwen3 (q and k normed by head) and Qwen3-MoE. */
#include "model/arch.h"
#include <string.h>

/* A window counts only with use_sliding_window, and then for layers from max_window_layers on, unless layer_types
 * lists them (LOAD-09). */
static void qwen_windows(mx_config *c, mx_arch *a) {
    int window = mx_config_int(c, "sliding_window", 0, 0, 1 << 30);
    int first = mx_config_int(c, "max_window_layers", 28, 0, 1 << 30);
    if (!mx_config_bool(c, "use_sliding_window", false)) window = 0;
    mx_describe_windows(c, a, window, first);
}

static void qwen2(mx_config *c, mx_arch *a) {
    mx_describe_common(c, a);
    a->qkv_bias = true;
    qwen_windows(c, a);
}

static void qwen3(mx_config *c, mx_arch *a) {
    mx_describe_common(c, a);
    a->qkv_bias = a->o_bias = mx_config_bool(c, "attention_bias", false);
    a->qk_norm = true;
    qwen_windows(c, a);
}

static bool listed(const mx_json *list, int i) {
    for (const mx_json *it = mx_json_first(list); it; it = it->next) {
        if (it->type == MX_JSON_INT && it->u.i == i) return true;
    }
    return false;
}

static void qwen3_moe(mx_config *c, mx_arch *a) {
    qwen3(c, a);
    a->moe_path = "mlp";
    memcpy(a->expert_names, (const char *[]){"gate_proj", "up_proj", "down_proj"}, sizeof a->expert_names);
    int local = mx_config_int(c, "num_local_experts", MX_REQUIRED + 1, 1,
                              1 << 16); // transformers 5 writes both names
    a->n_expert = mx_config_int(c, "num_experts", local > 0 ? local : MX_REQUIRED, 1, 1 << 16);
    a->n_expert_used = mx_config_int(c, "num_experts_per_tok", MX_REQUIRED, 1, 1 << 10);
    a->expert_ff = mx_config_int(c, "moe_intermediate_size", MX_REQUIRED, 1, 1 << 22);
    a->route = MX_ROUTE_SOFTMAX_TOPK;
    a->route_normalize = mx_config_bool(c, "norm_topk_prob", false);
    int step = mx_config_int(c, "decoder_sparse_step", 1, 1, 1 << 16);
    const mx_json *dense = mx_config_get(c, "mlp_only_layers");
    for (int i = 0; i < a->n_layer; i++) {
        a->layer[i].mlp = (i + 1) % step == 0 && !listed(dense, i) ? MX_MLP_MOE : MX_MLP_GATED;
    }
}

const mx_family mx_family_qwen2 = {{"qwen2"}, "Qwen2, Qwen2.5", qwen2};
const mx_family mx_family_qwen3 = {{"qwen3"}, "Qwen3", qwen3};
const mx_family mx_family_qwen3_moe = {{"qwen3_moe"}, "Qwen3-MoE", qwen3_moe};
