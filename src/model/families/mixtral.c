/* Mixtral: Mistral's attention, and in each layer experts of which a token takes the best two. */
#include "model/arch.h"
#include <string.h>

static void describe(mx_config *c, mx_arch *a) {
    mx_describe_common(c, a);
    a->eps = (float)mx_config_num(c, "rms_norm_eps", 1e-5);
    a->rope[0] = mx_config_rope(c, NULL, 1000000);
    int window = mx_config_int(c, "sliding_window", 0, 0, 1 << 30);
    mx_describe_windows(c, a, window, window ? 0 : a->n_layer);
    a->moe_path = "block_sparse_moe";
    memcpy(a->expert_names, (const char *[]){"w1", "w3", "w2"}, sizeof a->expert_names);
    a->n_expert = mx_config_int(c, "num_local_experts", 8, 1, 1 << 16);
    a->n_expert_used = mx_config_int(c, "num_experts_per_tok", 2, 1, 1 << 10);
    a->expert_ff = a->ff;
    a->route = MX_ROUTE_SOFTMAX_TOPK;
    a->route_normalize = true;
    for (int i = 0; i < a->n_layer; i++) a->layer[i].mlp = MX_MLP_MOE;
}

const mx_family mx_family_mixtral = {{"mixtral"}, "Mixtral", describe};
