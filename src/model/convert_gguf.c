/* convert_gguf.c - the plan for a GGUF file: Hugging Face names and config.json out of llama.cpp's.
 *
 * Where llama.cpp's own converter changed numbers, the change is taken back: q and k rows of the llama architecture are
 * interleaved for its rope, Gemma's norms have 1 added, Llama 3's rope scaling is a tensor of factors. Blocks whose grid is affine
 * keep their codes (convert_blocks.c); other quantized types are quantized again, with bits to spare, and named. */
#include "format/gguf.h"
#include "base/file.h"
#include "format/gguf_dequant.h"
#include "model/convert_int.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    mx_cv_job *j;
    const mx_gguf *g;
    char arch[32];
    const char *type; // model_type
    const char *bad;  // a key of the wrong type
    int64_t d, ff, n_layer, n_head, n_kv, hd, n_vocab, n_ctx, n_expert, expert_ff;
    bool gemma, moe, tied, o_bias, qkv_bias;
    mx_dtype dtype;                                      // of norms, scales and biases
    bool own_dtype;                                      // --dtype was given: matrices too
    uint64_t as_is[MX_GGML_COUNT], again[MX_GGML_COUNT]; // tensors by type: kept, quantized again
} gg;

/* A key below the architecture's name. */
static const char *key(gg *c, const char *name) {
    const char *k = mx_arena_printf(&c->j->arena, "%s.%s", c->arch, name);
    return k ? k : "";
}

static int64_t get_int(gg *c, const char *name, int64_t dflt) {
    const mx_gguf_kv *kv = mx_gguf_get(c->g, key(c, name));
    if (kv && kv->type == MX_GGUF_ARRAY && mx_gguf_is_int(kv) &&
        kv->n) { // by layer; only all alike is understood
        for (uint64_t i = 1; i < kv->n; i++)
            if (mx_gguf_int_at(kv, i) != mx_gguf_int_at(kv, 0)) c->bad = key(c, name);
        return mx_gguf_int_at(kv, 0);
    }
    return mx_gguf_int(c->g, key(c, name), dflt, &c->bad);
}

static double get_num(gg *c, const char *name, double dflt) {
    return mx_gguf_num(c->g, key(c, name), dflt, &c->bad);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Sizes that a tensor must have, as letters: D model, F feed-forward, Q and K heads times head size, H head size,
 * V vocabulary, E experts, M feed-forward of an expert. ggml's order: the first runs fastest. */
typedef struct {
    const char *gguf, *hf, *shape;
} name_row;

static const name_row top_names[] = {{"token_embd", "model.embed_tokens", "DV"},
                                     {"output_norm", "model.norm", "D"},
                                     {"output", "lm_head", "DV"}};
static const name_row layer_names[] = {
    {"attn_norm", "input_layernorm", "D"},
    {"ffn_norm", "post_attention_layernorm", "D"},
    {"attn_q", "self_attn.q_proj", "DQ"},
    {"attn_k", "self_attn.k_proj", "DK"},
    {"attn_v", "self_attn.v_proj", "DK"},
    {"attn_output", "self_attn.o_proj", "QD"},
    {"attn_q_norm", "self_attn.q_norm", "H"},
    {"attn_k_norm", "self_attn.k_norm", "H"},
    {"ffn_gate", "mlp.gate_proj", "DF"},
    {"ffn_up", "mlp.up_proj", "DF"},
    {"ffn_down", "mlp.down_proj", "FD"},
    {"ffn_gate_inp", "gate", "DE"},
    {"ffn_gate_exps", "switch_mlp.gate_proj", "DME"},
    {"ffn_up_exps", "switch_mlp.up_proj", "DME"},
    {"ffn_down_exps", "switch_mlp.down_proj", "MDE"},
};
static const name_row gemma_names[] = {
    // stand before those above
    {"ffn_norm", "pre_feedforward_layernorm", "D"},
    {"post_attention_norm", "post_attention_layernorm", "D"},
    {"post_ffw_norm", "post_feedforward_layernorm", "D"},
};

static const name_row *find_name(const name_row *rows, size_t n, const char *stem, size_t len) {
    for (size_t i = 0; i < n; i++)
        if (strlen(rows[i].gguf) == len && !memcmp(rows[i].gguf, stem, len)) return &rows[i];
    return NULL;
}

static int64_t dim(const gg *c, char letter) {
    switch (letter) {
    case 'D': return c->d;
    case 'F': return c->ff;
    case 'Q': return c->n_head * c->hd;
    case 'K': return c->n_kv * c->hd;
    case 'H': return c->hd;
    case 'V': return c->n_vocab;
    case 'E': return c->n_expert;
    default: return c->expert_ff;
    }
}

/* The row of tensor t and its name in the result. */
static mx_status map_name(gg *c, const mx_gguf_tensor *t, const name_row **row, const char **name,
                          mx_err *err) {
    const char *dot = strrchr(t->name, '.'), *stem = t->name, *end;
    long layer = -1;
    if (!strncmp(stem, "blk.", 4)) {
        layer = strtol(stem + 4, (char **)&end, 10);
        stem = *end == '.' && layer >= 0 && layer < c->n_layer ? end + 1 : NULL;
    }
    *row = NULL;
    if (dot && stem && dot >= stem) {
        const size_t len = (size_t)(dot - stem);
        if (layer < 0) {
            *row = find_name(top_names, countof(top_names), stem, len);
        } else {
            if (c->gemma) *row = find_name(gemma_names, countof(gemma_names), stem, len);
            if (!*row) *row = find_name(layer_names, countof(layer_names), stem, len);
        }
    }
    const bool bias = dot && !strcmp(dot, ".bias");
    if (!*row || (!bias && strcmp(dot, ".weight")) || (bias && (*row)->shape[1] == 0))
        return mx_fail(err, MX_UNSUPPORTED, "tensor %.80s is not known in a model of architecture %s",
                       t->name, c->arch);
    const char *shape = bias ? (*row)->shape + 1 : (*row)->shape; // a bias has the size of the rows
    bool fits = (int)strlen(shape) == t->n_dim;
    for (int i = 0; fits && i < t->n_dim; i++) fits = t->shape[i] == dim(c, shape[i]);
    if (!fits)
        return mx_fail(err, MX_EINVAL,
                       "tensor %s does not have the shape that the metadata of the file ask for", t->name);
    const char *block = !strncmp((*row)->hf, "gate", 5) || !strncmp((*row)->hf, "switch_mlp", 10)
                            ? (!strcmp(c->type, "mixtral") ? "block_sparse_moe." : "mlp.")
                            : "";
    *name = layer < 0
                ? mx_arena_printf(&c->j->arena, "%s%s", (*row)->hf, dot)
                : mx_arena_printf(&c->j->arena, "model.layers.%ld.%s%s%s", layer, block, (*row)->hf, dot);
    return *name ? MX_OK : mx_cv_nomem(err);
}

/* ---- storage ----------------------------------------------------------------------------------------------------- */

static bool is_number_type(int t) { return t == MX_GGML_F32 || t == MX_GGML_F16 || t == MX_GGML_BF16; }

static mx_dtype number_type(int t) {
    return t == MX_GGML_F16 ? MX_F16 : t == MX_GGML_BF16 ? MX_BF16 : MX_F32;
}

/* The affine format for blocks that have no such grid: no fewer bits than theirs, and finer where it costs little. */
static void requantize_as(int type, mx_cv_item *it) {
    it->kind = MX_QUANT_AFFINE;
    it->group = 32;
    switch (type) {
    case MX_GGML_Q6_K:
        it->bits = 8;
        it->group = it->n_in % 64 ? 32 : 64;
        break;
    case MX_GGML_IQ4_NL:
    case MX_GGML_IQ4_XS: it->bits = 5; break;
    case MX_GGML_MXFP4: // the same format, so nothing is lost
        it->kind = MX_QUANT_MXFP4;
        it->bits = 4;
        break;
    default: // Q2_K, Q3_K
        it->bits = 4;
        break;
    }
}

/* Whether all values survive in type t; of vectors only, which are short. */
static bool survives(const mx_gguf_tensor *t, mx_dtype type) {
    for (int64_t i = 0; i < t->n_value; i++) {
        float v, back;
        uint32_t raw;
        if (mx_gguf_dequant(t->type, (const char *)t->data + i * mx_ggml_bytes(t->type), 1, &v, NULL) !=
            MX_OK)
            return false;
        mx_from_f32(&raw, type, &v, 1);
        mx_to_f32(&back, &raw, type, 1);
        if (back != v) return false;
    }
    return true;
}

static mx_status add_tensor(gg *c, const mx_gguf_tensor *t, mx_err *err) {
    const name_row *row;
    const char *name;
    MX_TRY(map_name(c, t, &row, &name, err));
    const int type = (int)t->type, block = mx_ggml_block(t->type);
    mx_cv_item it = {
        .from = MX_CV_GGML, .type = type, .name = name, .n_part = 1, .n_dim = t->n_dim, .n_in = t->shape[0]};
    if (!mx_gguf_can_dequant(t->type) || block < 1)
        return mx_fail(err, MX_UNSUPPORTED, "tensor %s is stored as %s, which cannot be converted", t->name,
                       mx_ggml_name(t->type));
    if (it.n_in % block || it.n_in > INT32_MAX / 2)
        return mx_fail(err, MX_EINVAL, "tensor %s: rows of %lld values are not whole blocks", t->name,
                       (long long)it.n_in);
    for (int i = 0; i < t->n_dim; i++) it.shape[i] = t->shape[t->n_dim - 1 - i];
    it.n_row = t->n_value / it.n_in;
    const bool vector = t->n_dim == 1;
    if (!strcmp(c->arch, "llama") && (!strcmp(row->gguf, "attn_q") || !strcmp(row->gguf, "attn_k"))) {
        it.unpermute = (int)(row->gguf[5] == 'q' ? c->n_head : c->n_kv);
        if (vector) { // a bias: one value to a row
            it.n_row = it.n_in;
            it.n_in = 1;
        }
    }
    if (c->gemma && vector && strstr(name, "norm.weight")) {
        it.add = -1;
        it.add_type = MX_F32;
    }
    it.row_bytes = it.n_in / block * mx_ggml_bytes(t->type);
    it.part = mx_arena_alloc(&c->j->arena, sizeof *it.part);
    if (!it.part) return mx_cv_nomem(err);
    it.part[0] = t->data;
    it.dtype = c->dtype;
    if (is_number_type(type)) {
        if (!c->own_dtype && (vector ? !survives(t, c->dtype) : true)) it.dtype = number_type(type);
        c->as_is[type]++;
    } else if (!c->j->opt->dequantize) {
        const mx_cv_grid grid = mx_cv_block_grid(type);
        if (grid.bits) {
            it.blocks = true;
            it.kind = MX_QUANT_AFFINE;
            it.bits = grid.bits;
            it.group = 32;
        } else {
            requantize_as(type, &it);
        }
        if (grid.bits && grid.exact)
            c->as_is[type]++;
        else
            c->again[type]++;
        if (vector)
            return mx_fail(err, MX_UNSUPPORTED, "tensor %s is a vector in %s blocks", t->name,
                           mx_ggml_name(t->type));
    }
    return mx_cv_add_item(c->j, &it, err);
}

/* The type of scales, biases and norms: f16 for ggml's blocks, whose scales are f16; else what most matrices have. */
static mx_dtype pick_dtype(const gg *c) {
    uint64_t count[3] = {0};
    for (size_t i = 0; i < mx_gguf_n_tensor(c->g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(c->g, i);
        if (t->n_dim > 1) count[is_number_type((int)t->type) ? number_type((int)t->type) : MX_F16]++;
    }
    mx_dtype best = MX_F16;
    for (mx_dtype t = MX_F32; t <= MX_BF16; t++)
        if (count[t] > count[best]) best = t;
    return best;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* GGUF keeps these as f32; the shortest text that reads back as the same f32 is what the model's author wrote. */
static void put_f32(mx_str *s, double v) {
    char buf[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtof(buf, NULL) == (float)v) break;
    }
    mx_json_put_num(s, strtod(buf, NULL));
}

/* llama.cpp stores Llama 3's scaling as factors by frequency. Find the parameters that give the same factors. */
static mx_status put_rope_factors(gg *c, mx_str *s, const mx_gguf_tensor *t, double theta, mx_err *err) {
    const int64_t n = t->n_value;
    float *f = mx_arena_array(&c->j->arena, (size_t)n, sizeof *f);
    if (!f) return mx_cv_nomem(err);
    if (t->type != MX_GGML_F32 || n != c->hd / 2)
        return mx_fail(err, MX_EINVAL, "rope_freqs.weight does not have half a head's values");
    memcpy(f, t->data, (size_t)n * sizeof *f);
    double factor = 1;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(f[i]) || f[i] <= 0)
            return mx_fail(err, MX_EINVAL, "rope_freqs.weight holds a factor that is not positive");
        if (f[i] > factor) factor = f[i];
    }
    if (factor == 1) {
        mx_str_puts(s, "\"rope_scaling\":null");
        return MX_OK;
    }
    for (int shift = 8; shift <= 17; shift++) { // original context 256 to 131072
        const double ctx = 1 << shift, low = 1, high = 4;
        bool same = true;
        for (int64_t i = 0; i < n && same; i++) {
            const double wave = 2 * M_PI * pow(theta, 2 * (double)i / (double)c->hd);
            const double smooth = (ctx / wave - low) / (high - low);
            const double want = wave < ctx / high  ? 1
                                : wave > ctx / low ? factor
                                                   : 1 / ((1 - smooth) / factor + smooth);
            same = fabs(want - f[i]) <= 1e-3 * want;
        }
        if (!same) continue;
        mx_str_puts(s, "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":");
        put_f32(s, factor);
        mx_str_printf(
            s, ",\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":%d}",
            1 << shift);
        return MX_OK;
    }
    return mx_fail(err, MX_UNSUPPORTED, "rope_freqs.weight holds factors that no known rope scaling gives");
}

static mx_status put_rope(gg *c, mx_str *s, mx_err *err) {
    const double theta = get_num(c, "rope.freq_base", 10000);
    size_t len;
    const char *kind = mx_gguf_str(c->g, key(c, "rope.scaling.type"), &len, &c->bad);
    const mx_gguf_tensor *factors = mx_gguf_find(c->g, "rope_freqs.weight");
    mx_str_puts(s, "\"rope_theta\":");
    put_f32(s, theta);
    mx_str_putc(s, ',');
    if (factors) return put_rope_factors(c, s, factors, theta, err);
    const double factor = get_num(c, "rope.scaling.factor", 1);
    if (!kind || (len == 4 && !memcmp(kind, "none", 4)) || factor == 1) {
        mx_str_puts(s, "\"rope_scaling\":null");
        return MX_OK;
    }
    const bool yarn = len == 4 && !memcmp(kind, "yarn", 4);
    if (!yarn && (len != 6 || memcmp(kind, "linear", 6)))
        return mx_fail(err, MX_UNSUPPORTED, "rope scaling %.*s is not known", (int)(len < 32 ? len : 32),
                       kind);
    if (!(factor > 0) || !isfinite(factor))
        return mx_fail(err, MX_EINVAL, "rope.scaling.factor is not positive");
    mx_str_printf(s, "\"rope_scaling\":{\"rope_type\":\"%s\",\"factor\":", yarn ? "yarn" : "linear");
    put_f32(s, factor);
    const int64_t ctx = get_int(c, "rope.scaling.original_context_length", 0);
    if (yarn && ctx > 0) mx_str_printf(s, ",\"original_max_position_embeddings\":%lld", (long long)ctx);
    mx_str_putc(s, '}');
    return MX_OK;
}

static void put_ids(gg *c, mx_str *s) {
    static const char *const names[][2] = {{"bos", "bos"}, {"padding", "pad"}};
    for (size_t i = 0; i < countof(names); i++) {
        const char *k = mx_arena_printf(&c->j->arena, "tokenizer.ggml.%s_token_id", names[i][0]);
        const int64_t id = k ? mx_gguf_int(c->g, k, -1, &c->bad) : -1;
        if (id >= 0 && id < c->n_vocab) mx_str_printf(s, "\"%s_token_id\":%lld,", names[i][1], (long long)id);
    }
    const int64_t eos[3] = {mx_gguf_int(c->g, "tokenizer.ggml.eos_token_id", -1, &c->bad),
                            mx_gguf_int(c->g, "tokenizer.ggml.eot_token_id", -1, &c->bad),
                            mx_gguf_int(c->g, "tokenizer.ggml.eom_token_id", -1, &c->bad)};
    char list[80] = "";
    int n = 0;
    for (int i = 0; i < 3; i++) {
        bool use = eos[i] >= 0 && eos[i] < c->n_vocab;
        for (int k = 0; k < i; k++) use &= eos[k] != eos[i];
        if (!use) continue;
        const size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%lld", n ? "," : "", (long long)eos[i]);
        n++;
    }
    if (n) mx_str_printf(s, n > 1 ? "\"eos_token_id\":[%s]," : "\"eos_token_id\":%s,", list);
}

static void put_flag(mx_str *s, const char *name, bool on) {
    mx_str_printf(s, ",\"%s\":%s", name, on ? "true" : "false");
}

static void put_family(gg *c, mx_str *s) {
    if (!strcmp(c->type, "llama")) {
        put_flag(s, "attention_bias", c->qkv_bias);
        put_flag(s, "mlp_bias", false);
    } else if (!strcmp(c->type, "qwen3") || !strcmp(c->type, "qwen3_moe")) {
        put_flag(s, "attention_bias", c->qkv_bias);
    }
    if (!strcmp(c->type, "qwen3_moe")) {
        mx_str_printf(s, ",\"num_experts\":%lld,\"num_experts_per_tok\":%lld,\"moe_intermediate_size\":%lld",
                      (long long)c->n_expert, (long long)get_int(c, "expert_used_count", 8),
                      (long long)c->expert_ff);
        mx_str_puts(s, ",\"decoder_sparse_step\":1,\"mlp_only_layers\":[]");
        put_flag(s, "norm_topk_prob", true); // as llama.cpp computes this architecture
    } else if (!strcmp(c->type, "mixtral")) {
        mx_str_printf(s, ",\"num_local_experts\":%lld,\"num_experts_per_tok\":%lld", (long long)c->n_expert,
                      (long long)get_int(c, "expert_used_count", 2));
    } else if (c->gemma) {
        // llama.cpp scales queries by the head size, but for the 27B model of 62 layers
        const int64_t scalar = c->n_layer == 62 && c->n_head ? c->d / c->n_head : c->hd;
        mx_str_printf(
            s, ",\"query_pre_attn_scalar\":%lld,\"sliding_window\":%lld,\"sliding_window_pattern\":%lld",
            (long long)scalar, (long long)get_int(c, "attention.sliding_window", 512),
            (long long)get_int(c, "attention.sliding_window_pattern", 6));
        mx_str_puts(s, ",\"rope_local_base_freq\":");
        put_f32(s, get_num(c, "rope.freq_base_swa", 10000));
    }
}

static mx_status build_config(gg *c, mx_err *err) {
    static const char *const classes[][2] = {
        {"llama", "LlamaForCausalLM"},        {"mixtral", "MixtralForCausalLM"},
        {"qwen2", "Qwen2ForCausalLM"},        {"qwen3", "Qwen3ForCausalLM"},
        {"qwen3_moe", "Qwen3MoeForCausalLM"}, {"gemma3_text", "Gemma3ForCausalLM"}};
    mx_str s = {0}, ids = {0};
    mx_str_putc(&s, '{');
    for (size_t i = 0; i < countof(classes); i++)
        if (!strcmp(classes[i][0], c->type)) mx_str_printf(&s, "\"architectures\":[\"%s\"],", classes[i][1]);
    mx_str_printf(
        &s,
        "\"model_type\":\"%s\",\"hidden_size\":%lld,\"intermediate_size\":%lld,\"num_hidden_layers\":%lld,",
        c->type, (long long)c->d, (long long)(strcmp(c->type, "mixtral") ? c->ff : c->expert_ff),
        (long long)c->n_layer);
    mx_str_printf(
        &s, "\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,\"max_position_embeddings\":%lld,",
        (long long)c->n_head, (long long)c->n_kv, (long long)c->n_ctx);
    if (strcmp(c->type, "qwen2") || c->hd * c->n_head != c->d)
        mx_str_printf(&s, "\"head_dim\":%lld,", (long long)c->hd);
    mx_str_printf(&s, "\"vocab_size\":%lld,\"torch_dtype\":\"%s\",\"tie_word_embeddings\":%s,",
                  (long long)c->n_vocab, mx_dtype_name(c->dtype), c->tied ? "true" : "false");
    mx_str_puts(&s, c->gemma ? "\"hidden_activation\":\"gelu_pytorch_tanh\"," : "\"hidden_act\":\"silu\",");
    mx_str_puts(&s, "\"rms_norm_eps\":");
    put_f32(&s, get_num(c, "attention.layer_norm_rms_epsilon", 1e-6));
    mx_str_putc(&s, ',');
    put_ids(c, &ids);
    mx_str_add(&s, ids.p ? ids.p : "", ids.len);
    mx_status st = put_rope(c, &s, err);
    put_family(c, &s);
    mx_str_putc(&s, '}');
    if (st == MX_OK && (s.oom || ids.oom)) st = mx_cv_nomem(err);
    if (st == MX_OK && c->bad)
        st = mx_fail(err, MX_EINVAL, "the metadata %s is of a type that is not understood", c->bad);
    char *text = NULL, *gen = NULL;
    if (st == MX_OK) {
        text = mx_arena_strndup(&c->j->arena, s.p, s.len);
        gen = ids.len ? mx_arena_printf(&c->j->arena, "{%.*s}\n", (int)ids.len - 1, ids.p)
                      : mx_arena_strdup(&c->j->arena, "{}\n");
        if (!text || !gen) st = mx_cv_nomem(err);
    }
    mx_json *root = NULL;
    if (st == MX_OK) st = mx_json_parse(&root, &c->j->arena, text, s.len, err);
    c->j->config = root;
    mx_str_free(&s);
    mx_str_free(&ids);
    return st == MX_OK ? mx_cv_add_file(c->j, "generation_config.json", gen, strlen(gen), NULL, err) : st;
}

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

static mx_status read_sizes(gg *c, mx_err *err) {
    static const char *const archs[][2] = {{"llama", "llama"},
                                           {"qwen2", "qwen2"},
                                           {"qwen3", "qwen3"},
                                           {"qwen3moe", "qwen3_moe"},
                                           {"gemma3", "gemma3_text"}};
    size_t len;
    const char *arch = mx_gguf_str(c->g, "general.architecture", &len, &c->bad);
    if (!arch) return mx_fail(err, MX_EINVAL, "general.architecture is missing");
    for (size_t i = 0; i < countof(archs); i++) {
        if (strlen(archs[i][0]) != len || memcmp(archs[i][0], arch, len)) continue;
        strcpy(c->arch, archs[i][0]);
        c->type = archs[i][1];
    }
    if (!c->type)
        return mx_fail(err, MX_UNSUPPORTED,
                       "architecture %.*s cannot be converted, only llama, qwen2, qwen3, qwen3moe and gemma3",
                       (int)(len < 64 ? len : 64), arch);
    c->gemma = !strcmp(c->arch, "gemma3");
    c->n_expert = get_int(c, "expert_count", 0);
    c->moe = c->n_expert > 0;
    if (c->moe && !strcmp(c->arch, "llama")) c->type = "mixtral";
    c->d = get_int(c, "embedding_length", 0);
    c->n_layer = get_int(c, "block_count", 0);
    c->n_head = get_int(c, "attention.head_count", 0);
    c->n_kv = get_int(c, "attention.head_count_kv", c->n_head);
    c->ff = get_int(c, "feed_forward_length", 0);
    c->expert_ff = get_int(c, "expert_feed_forward_length", c->ff);
    c->n_ctx = get_int(c, "context_length", 2048);
    c->hd = get_int(c, "attention.key_length", c->n_head > 0 ? c->d / c->n_head : 0);
    const int64_t rot = get_int(c, "rope.dimension_count", c->hd),
                  value = get_int(c, "attention.value_length", c->hd);
    const mx_gguf_tensor *embd = mx_gguf_find(c->g, "token_embd.weight");
    if (!embd)
        return mx_fail(err, MX_ENOTFOUND, "token_embd.weight is missing: this is no whole language model");
    c->n_vocab = embd->n_dim == 2 ? embd->shape[1] : 0;
    c->tied = !mx_gguf_find(c->g, "output.weight");
    c->qkv_bias = mx_gguf_find(c->g, "blk.0.attn_q.bias") != NULL;
    c->o_bias = mx_gguf_find(c->g, "blk.0.attn_output.bias") != NULL;
    if (c->bad) return mx_fail(err, MX_EINVAL, "the metadata %s is of a type that is not understood", c->bad);
    const int64_t sizes[] = {c->d,     c->n_layer, c->n_head,    c->n_kv, c->hd,
                             c->n_ctx, c->n_vocab, c->expert_ff, c->ff};
    for (size_t i = 0; i < countof(sizes); i++)
        if (sizes[i] < 1 || sizes[i] > 1 << 30)
            return mx_fail(err, MX_EINVAL,
                           "the metadata of architecture %s lack a size, or one is out of range", c->arch);
    if (c->n_head > 1 << 16 || c->hd > 1 << 16 || c->hd % 2 || c->n_layer > 4096 || c->n_expert > 1 << 16)
        return mx_fail(err, MX_EINVAL, "the metadata of architecture %s hold a size that is out of range",
                       c->arch);
    if (rot != c->hd || value != c->hd)
        return mx_fail(err, MX_UNSUPPORTED, "heads of %lld values of which %lld rotate cannot be converted",
                       (long long)c->hd, (long long)rot);
    if (strcmp(c->type, "qwen2") && c->qkv_bias != c->o_bias)
        return mx_fail(err, MX_UNSUPPORTED,
                       "biases on only some of the attention's projections cannot be converted for %s",
                       c->arch);
    return MX_OK;
}

static void report(const gg *c) {
    char line[256] = "";
    for (int again = 0; again < 2; again++) {
        size_t at = 0;
        line[0] = 0;
        for (int t = 0; t < MX_GGML_COUNT; t++) {
            const uint64_t n = again ? c->again[t] : c->as_is[t];
            if (n && at < sizeof line)
                at += (size_t)snprintf(line + at, sizeof line - at, "%s%llu %s", at ? ", " : "",
                                       (unsigned long long)n, mx_ggml_name((uint32_t)t));
        }
        if (c->j->opt->quantize || c->j->opt->dequantize || !at) continue;
        if (again)
            mx_cv_note(c->j, "quantized again, not exact: %s", line);
        else
            mx_cv_note(c->j, "taken over: %s", line);
    }
}

/* The format that most quantized modules have becomes config.json's default. */
static void choose_default(mx_cv_job *j) {
    size_t best = 0;
    for (size_t i = 0; i < j->n_item; i++) {
        const mx_cv_item *a = &j->item[i];
        size_t n = 0;
        if (a->kind == MX_QUANT_NONE || (a->kind == j->kind && a->bits == j->bits && a->group == j->group))
            continue;
        for (size_t k = 0; k < j->n_item; k++)
            n += j->item[k].kind == a->kind && j->item[k].bits == a->bits && j->item[k].group == a->group;
        if (n <= best) continue;
        best = n;
        j->kind = a->kind;
        j->bits = a->bits;
        j->group = a->group;
    }
}

static mx_status plan(gg *c, mx_err *err) {
    MX_TRY(read_sizes(c, err));
    c->own_dtype = c->j->opt->dtype && mx_cv_dtype(&c->dtype, c->j->opt->dtype);
    if (!c->own_dtype) c->dtype = pick_dtype(c);
    for (size_t i = 0; i < mx_gguf_n_tensor(c->g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(c->g, i);
        if (strcmp(t->name, "rope_freqs.weight")) MX_TRY(add_tensor(c, t, err));
    }
    if (!c->j->opt->quantize) choose_default(c->j);
    mx_cv_choose_quant(c->j, c->type);
    MX_TRY(build_config(c, err));
    MX_TRY(mx_cv_tokenizer(c->j, c->n_ctx, err));
    report(c);
    return MX_OK;
}

mx_status mx_cv_plan_gguf(mx_cv_job *j, mx_err *err) {
    MX_TRY(mx_gguf_open(&j->gguf, j->opt->source, err));
    gg c = {.j = j, .g = j->gguf};
    const mx_status st = plan(&c, err);
    return st == MX_OK ? st : mx_err_prefix(err, st, "%s", mx_path_base(j->opt->source));
}
