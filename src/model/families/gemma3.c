/* Gemma 3 text: norms before and after each block, layers with a short window and their own rope base, one in
 * sliding_window_pattern with neither. */
#include "model/arch.h"
#include <math.h>

static void describe(mx_config *c, mx_arch *a) {
    mx_describe_common(c, a);
    a->hd = mx_config_int(c, "head_dim", 256, 1, 1 << 12);
    a->tied = mx_config_bool(c, "tie_word_embeddings", true);
    a->act = mx_describe_act(c, "hidden_activation", "gelu_pytorch_tanh");
    a->n_ctx = mx_config_int(c, "max_position_embeddings", 131072, 1, 1 << 30);
    a->qkv_bias = a->o_bias = mx_config_bool(c, "attention_bias", false);
    a->qk_norm = a->norm_plus_one = true;
    a->post_attn_norm = "post_attention_layernorm";
    a->pre_mlp_norm = "pre_feedforward_layernorm";
    a->post_mlp_norm = "post_feedforward_layernorm";
    a->attn_scale = 1 / sqrtf((float)mx_config_num(c, "query_pre_attn_scalar", 256));
    a->attn_softcap = (float)mx_config_num(c, "attn_logit_softcapping", 0);
    a->final_softcap = (float)mx_config_num(c, "final_logit_softcapping", 0);
    a->embed_scale = sqrtf((float)a->d);
    a->embed_scale_rounded = true;
    a->rope[0] = mx_config_rope(c, "full_attention", 1000000);
    if (mx_json_get(mx_config_get(c, "rope_parameters"), "sliding_attention")) {
        mx_config_ignore(c, "rope_local_base_freq");
        a->rope[1] = mx_config_rope(c, "sliding_attention", 10000);
    } else { // transformers 4: scaling is for the full layers only
        a->rope[1] = (mx_rope_config){
            .theta = mx_config_num(c, "rope_local_base_freq", 10000), .factor = 1, .partial = 1};
    }
    int window = mx_config_int(c, "sliding_window", 4096, 1, 1 << 30);
    int pattern = mx_config_int(c, "sliding_window_pattern", 6, 1, 1 << 16);
    mx_config_ignore(
        c,
        "use_bidirectional_attention"); // set only in embedding models, which say so by another architecture
    mx_describe_windows(c, a, window, a->n_layer);
    for (int i = 0; i < a->n_layer; i++) {
        if (!mx_config_has(c, "layer_types")) a->layer[i].window = (i + 1) % pattern ? window : 0;
        a->layer[i].rope = a->layer[i].window ? 1 : 0;
    }
}

const mx_family mx_family_gemma3 = {{"gemma3_text"}, "Gemma 3 (text)", describe};
