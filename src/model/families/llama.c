/* Llama 2, 3.x and Mistral: RMS norms, rotary attention with grouped keys, a gated MLP. */
#include "model/arch.h"

static void describe(mx_config *c, mx_arch *a) {
    mx_describe_common(c, a);
    a->qkv_bias = a->o_bias = mx_config_bool(c, "attention_bias", false);
    a->mlp_bias = mx_config_bool(c, "mlp_bias", false);
    int window = mx_config_int(c, "sliding_window", 0, 0, 1 << 30); // Mistral 7B v0.1: every layer
    mx_describe_windows(c, a, window, window ? 0 : a->n_layer);
}

const mx_family mx_family_llama = {{"llama", "mistral"}, "Llama, Mistral", describe};
