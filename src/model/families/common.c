#include "model/arch.h"
#include <math.h>
#include <string.h>

void mx_describe_common(mx_config *c, mx_arch *a) {
    a->n_layer = mx_config_int(c, "num_hidden_layers", MX_REQUIRED, 1, MX_MAX_LAYERS);
    a->d = mx_config_int(c, "hidden_size", MX_REQUIRED, 1, 1 << 20);
    a->n_vocab = mx_config_int(c, "vocab_size", MX_REQUIRED, 1, 1 << 24);
    a->n_ctx = mx_config_int(c, "max_position_embeddings", 2048, 1, 1 << 30);
    a->n_head = mx_config_int(c, "num_attention_heads", MX_REQUIRED, 1, 1 << 12);
    a->n_kv = mx_config_int(c, "num_key_value_heads", a->n_head, 1, 1 << 12);
    a->hd = mx_config_int(c, "head_dim", a->d / a->n_head, 1, 1 << 12);
    a->ff = mx_config_int(c, "intermediate_size", MX_REQUIRED, 1, 1 << 22);
    a->eps = (float)mx_config_num(c, "rms_norm_eps", 1e-6);
    a->tied = mx_config_bool(c, "tie_word_embeddings", false);
    a->act = mx_describe_act(c, "hidden_act", "silu");
    a->embed_scale = 1;
    a->attn_scale = 1 / sqrtf((float)a->hd);
    a->pre_attn_norm = "input_layernorm";
    a->pre_mlp_norm = "post_attention_layernorm";
    a->rope[0] = mx_config_rope(c, "full_attention", 10000);
}

mx_act mx_describe_act(mx_config *c, const char *key, const char *dflt) {
    static const struct {
        const char *name;
        mx_act act;
    } acts[] = {
        {"silu", MX_ACT_SILU},          {"swish", MX_ACT_SILU},
        {"gelu", MX_ACT_GELU},          {"gelu_pytorch_tanh", MX_ACT_GELU_TANH},
        {"gelu_new", MX_ACT_GELU_TANH}, {"relu", MX_ACT_RELU},
        {"relu2", MX_ACT_RELU2},
    };
    const char *name = mx_config_str(c, key, dflt);
    for (size_t i = 0; i < countof(acts); i++) {
        if (!strcmp(name, acts[i].name)) return acts[i].act;
    }
    mx_config_fail(c, MX_UNSUPPORTED, "config.json: the activation \"%s\" (%s) is not supported", name, key);
    return MX_ACT_SILU;
}

int mx_layer_type(mx_config *c, int i, const char *const *names) {
    const mx_json *types = mx_config_get(c, "layer_types"), *it = mx_json_first(types);
    if (!types) return -1;
    for (int k = 0; it && k < i; k++) it = it->next;
    for (int k = 0; it && names[k]; k++) {
        if (mx_json_str_eq(it, names[k])) return k;
    }
    if (mx_json_is(it, MX_JSON_STRING)) {
        mx_config_fail(c, MX_UNSUPPORTED,
                       "config.json: layer_types[%d] is \"%.*s\", which this family does not know", i,
                       (int)it->u.s.len, it->u.s.p);
    } else {
        mx_config_fail(c, MX_EINVAL,
                       "config.json: layer_types must name the kind of each of the layers; entry %d is %s", i,
                       mx_json_type_name(it));
    }
    return 0;
}

void mx_describe_windows(mx_config *c, mx_arch *a, int window, int first_sliding) {
    static const char *const kinds[] = {"full_attention", "sliding_attention", NULL};
    for (int i = 0; i < a->n_layer; i++) {
        int kind = mx_layer_type(c, i, kinds);
        bool sliding = kind < 0 ? i >= first_sliding : kind == 1;
        a->layer[i].window = sliding ? window : 0;
    }
}
