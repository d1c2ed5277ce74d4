/* Qwen3.5 text: three layers of gated delta rule to one of gated full attention, each with a gated MLP. */
#include "model/arch.h"

static void describe(mx_config *c, mx_arch *a) {
    static const char *const kinds[] = {"full_attention", "linear_attention", NULL};
    mx_describe_common(c, a);
    a->hd = mx_config_int(c, "head_dim", 256, 1, 1 << 12);
    a->qkv_bias = a->o_bias = mx_config_bool(c, "attention_bias", false);
    a->qk_norm = a->gated_output = a->norm_shift_by_conv = true;
    a->delta_k_heads = mx_config_int(c, "linear_num_key_heads", 16, 1, 1 << 12);
    a->delta_v_heads = mx_config_int(c, "linear_num_value_heads", 32, 1, 1 << 12);
    a->delta_dk = mx_config_int(c, "linear_key_head_dim", 128, 1, 1 << 12);
    a->delta_dv = mx_config_int(c, "linear_value_head_dim", 128, 1, 1 << 12);
    a->conv_width = mx_config_int(c, "linear_conv_kernel_dim", 4, 2, 64);
    if (!mx_config_bool(c, "attn_output_gate", true)) {
        mx_config_fail(c, MX_UNSUPPORTED, "config.json: attn_output_gate false is not supported for qwen3_5");
    }
    int interval = mx_config_int(c, "full_attention_interval", 4, 1, 1 << 16);
    for (int i = 0; i < a->n_layer; i++) {
        int kind = mx_layer_type(c, i, kinds);
        if (kind < 0) kind = (i + 1) % interval != 0;
        a->layer[i].mixer = kind == 1 ? MX_MIX_DELTA : MX_MIX_ATTENTION;
    }
}

const mx_family mx_family_qwen3_5 = {{"qwen3_5_text"}, "Qwen3.5 (text)", describe};
