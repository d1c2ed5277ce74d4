#include "format/config.h"
#include "base/file.h"
#include "base/log.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 64 << 20, MAX_FIELDS = 1024 };

typedef struct { // one JSON object whose members are accounted for
    const mx_json *obj;
    bool *asked; // [members], in order
} scope;

struct mx_config {
    mx_arena a;
    scope text, top; // top.obj is NULL unless text is nested
    scope quant;     // MLX's quantization: overrides that were asked for
    const mx_json *generation, *tokenizer;
    char *model_type;
    const char *architecture;
    mx_err first; // first.code is MX_OK while nothing is wrong
};

/* Fields that say nothing about what the model computes in a forward pass of text. Names ending in * are prefixes. */
static const char *const inert[] = {
    "_*",
    "architectures",
    "auto_map",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "hidden_dropout",
    "pretraining_tp",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "unk_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "id2label",
    "label2id",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "name_or_path",
    "unsloth*",
    "quantization",
    "quantization_config",
    "mlx*",
    "torchscript",
    "use_bfloat16",
    "is_decoder",
    "is_encoder_decoder",
    "add_cross_attention",
    "cross_attention_hidden_size",
    "tie_encoder_decoder",
    "prefix",
    "finetuning_task",
    "pruned_heads",
    "tf_legacy_loss",
    "remove_invalid_values",
    "typical_p",
    "temperature",
    "top_p",
    "top_k",
    "do_sample",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "length_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "max_length",
    "min_length",
    "early_stopping",
    "output_scores",
    "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "exponential_decay_length_penalty",
    "cache_implementation",
    "mtp_*",
    "num_nextn_predict_layers",
    "model_file",
    "use_mamba_kernels",
    "is_llama_config",
    "rope_interleaved",
    "max_window_layers",
    "use_sliding_window",
    "text_config",
    "vision_config",
    "audio_config",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
    "boi_token_index",
    "eoi_token_index",
    "mm_tokens_per_image",
    "tie_word_embeddings",
};

static bool is_inert(const mx_json *v) {
    for (size_t i = 0; i < countof(inert); i++) {
        size_t n = strlen(inert[i]);
        bool prefix = inert[i][n - 1] == '*';
        if (prefix ? v->key_len >= n - 1 && !memcmp(v->key, inert[i], n - 1)
                   : v->key_len == n && !memcmp(v->key, inert[i], n)) {
            return true;
        }
    }
    return false;
}

/* A value by which a field says "not in use". */
static bool is_off(const mx_json *v) {
    return v->type == MX_JSON_NULL || (v->type == MX_JSON_BOOL && !v->u.b) ||
           ((v->type == MX_JSON_ARRAY || v->type == MX_JSON_OBJECT) && v->u.c.n == 0) ||
           (v->type == MX_JSON_STRING && v->u.s.len == 0);
}

static mx_status scope_init(scope *s, mx_arena *a, const mx_json *obj, mx_err *err) {
    s->obj = obj;
    s->asked = mx_arena_array(a, mx_json_count(obj) + 1, sizeof *s->asked);
    return s->asked ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for config.json");
}

/* The last member of this name (as JSON's duplicates go), marked as asked for. */
static const mx_json *scope_find(scope *s, const char *key, bool mark) {
    const mx_json *found = NULL;
    size_t i = 0, n = strlen(key);
    for (const mx_json *it = mx_json_first(s->obj); it; it = it->next, i++) {
        if (it->key_len != n || memcmp(it->key, key, n)) continue;
        found = it;
        if (mark) s->asked[i] = true;
    }
    return found && found->type != MX_JSON_NULL ? found : NULL;
}

static const mx_json *find(mx_config *c, const char *key, bool mark) {
    const mx_json *v = scope_find(&c->text, key, mark), *outer = NULL;
    if (c->top.obj) outer = scope_find(&c->top, key, mark);
    return v ? v : outer;
}

void mx_config_fail(mx_config *c, mx_status code, const char *fmt, ...) {
    if (c->first.code) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->first.msg, sizeof c->first.msg, fmt, ap);
    va_end(ap);
    c->first.code = code;
}

mx_status mx_config_status(const mx_config *c, mx_err *err) {
    return c->first.code ? mx_fail(err, c->first.code, "%s", c->first.msg) : MX_OK;
}

mx_status mx_config_finish(mx_config *c, mx_err *err) {
    MX_TRY(mx_config_status(c, err));
    scope *scopes[2] = {&c->text, &c->top};
    for (int s = 0; s < 2; s++) {
        size_t i = 0;
        for (const mx_json *it = mx_json_first(scopes[s]->obj); it; it = it->next, i++) {
            if (scopes[s]->asked[i] || is_off(it) || is_inert(it)) continue;
            if (s == 1) continue; // the outer model's own parts: what concerns text is asked for by name
            return mx_fail(
                err, MX_UNSUPPORTED,
                "config.json: the field \"%.*s\" is not understood for model_type \"%s\", so the model would not "
                "compute what it was trained to",
                (int)it->key_len, it->key, c->model_type);
        }
    }
    return MX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static mx_status read_json(mx_config *c, const char *dir, const char *name, bool required,
                           const mx_json **out, mx_err *err) {
    char *path = mx_path_join(&c->a, dir, name), *text;
    size_t len;
    mx_err e;
    if (!path) return mx_fail(err, MX_ENOMEM, "%s: no memory", name);
    mx_status st = mx_file_read(&text, &len, &c->a, path, MAX_CONFIG_BYTES, &e);
    if (st == MX_ENOTFOUND && !required) return MX_OK;
    if (st == MX_ENOTFOUND) return mx_fail(err, st, "%s: has no %s, so it is not a model folder", dir, name);
    if (st != MX_OK) return mx_fail(err, st, "%s", e.msg);
    mx_json *v;
    st = mx_json_parse(&v, &c->a, text, len, &e);
    if (st != MX_OK) return mx_fail(err, st, "%s: %s", path, e.msg);
    if (v->type != MX_JSON_OBJECT) return mx_fail(err, MX_EINVAL, "%s: must hold an object", path);
    if (mx_json_count(v) > MAX_FIELDS)
        return mx_fail(err, MX_ELIMIT, "%s: more than %d fields", path, MAX_FIELDS);
    *out = v;
    return MX_OK;
}

static mx_status open_config(mx_config *c, const char *dir, mx_err *err) {
    const mx_json *root = NULL;
    const char *bad = NULL;
    MX_TRY(read_json(c, dir, "config.json", true, &root, err));
    MX_TRY(read_json(c, dir, "generation_config.json", false, &c->generation, err));
    MX_TRY(read_json(c, dir, "tokenizer_config.json", false, &c->tokenizer, err));
    const mx_json *inner = mx_json_get(root, "text_config");
    bool nested = mx_json_is(inner, MX_JSON_OBJECT);
    MX_TRY(scope_init(&c->text, &c->a, nested ? inner : root, err));
    if (nested) MX_TRY(scope_init(&c->top, &c->a, root, err));
    const char *outer_type = mx_json_str(root, "model_type", NULL, &c->a, &bad);
    const char *type = nested ? mx_json_str(inner, "model_type", outer_type, &c->a, &bad) : outer_type;
    if (bad || !type) {
        return mx_fail(err, MX_EINVAL, "%s/config.json: has no model_type, so the family is unknown", dir);
    }
    c->model_type = mx_arena_strdup(&c->a, type);
    const mx_json *arch = mx_json_first(mx_json_get(root, "architectures"));
    c->architecture =
        mx_json_is(arch, MX_JSON_STRING) ? mx_arena_strndup(&c->a, arch->u.s.p, arch->u.s.len) : "";
    if (!c->model_type || !c->architecture) return mx_fail(err, MX_ENOMEM, "%s/config.json: no memory", dir);
    static const char *const code[] = {"model_file", "auto_map"};
    for (size_t i = 0; i < countof(code); i++) { // SEC-01: programs named by a config are never run
        if (mx_json_get(root, code[i]))
            mx_log(MX_LOG_WARN, "config.json: %s names program code, which is not run", code[i]);
    }
    const mx_json *q = mx_json_get(root, "quantization");
    if (!q && nested) q = mx_json_get(inner, "quantization");
    if (!q) { // older files have MLX's entry under this name only
        q = mx_json_get(root, "quantization_config");
        if (!q && nested) q = mx_json_get(inner, "quantization_config");
        if (mx_json_get(q, "quant_method")) q = NULL;
    }
    if (q && q->type == MX_JSON_NULL) q = NULL;
    if (q && q->type != MX_JSON_OBJECT) {
        return mx_fail(err, MX_EINVAL, "%s/config.json: quantization must be an object, it is %s", dir,
                       mx_json_type_name(q));
    }
    return scope_init(&c->quant, &c->a, q, err);
}

mx_status mx_config_open(mx_config **out, const char *dir, mx_err *err) {
    mx_config *c = calloc(1, sizeof *c);
    if (!c) return mx_fail(err, MX_ENOMEM, "%s: no memory for its config", dir);
    mx_status st = open_config(c, dir, err);
    if (st == MX_OK)
        *out = c;
    else
        mx_config_free(c);
    return st;
}

void mx_config_free(mx_config *c) {
    if (!c) return;
    mx_arena_free(&c->a);
    free(c);
}

const char *mx_config_model_type(const mx_config *c) { return c->model_type; }
const char *mx_config_architecture(const mx_config *c) { return c->architecture; }
bool mx_config_nested(const mx_config *c) { return c->top.obj != NULL; }
mx_arena *mx_config_arena(mx_config *c) { return &c->a; }
const mx_json *mx_config_generation(const mx_config *c) { return c->generation; }

/* ---- fields ------------------------------------------------------------------------------------------- */

const mx_json *mx_config_get(mx_config *c, const char *key) { return find(c, key, true); }
bool mx_config_has(const mx_config *c, const char *key) { return find((mx_config *)c, key, false) != NULL; }
void mx_config_ignore(mx_config *c, const char *key) { find(c, key, true); }

static void wrong_type(mx_config *c, const char *key, const char *want, const mx_json *v) {
    mx_config_fail(c, MX_EINVAL, "config.json: %s must be %s, it is %s", key, want, mx_json_type_name(v));
}

int mx_config_int(mx_config *c, const char *key, int dflt, int lo, int hi) {
    const mx_json *v = find(c, key, true);
    if (!v) {
        if (dflt == MX_REQUIRED) mx_config_fail(c, MX_EINVAL, "config.json: %s is missing", key);
        return dflt == MX_REQUIRED ? lo : dflt;
    }
    if (!mx_json_is_num(v)) {
        wrong_type(c, key, "a number", v);
        return lo;
    }
    double d = mx_json_as_num(v);
    if (!(d >= lo && d <= hi) || d != trunc(d)) {
        mx_config_fail(c, MX_EINVAL, "config.json: %s is %g, it must be a whole number from %d to %d", key, d,
                       lo, hi);
        return lo;
    }
    return (int)d;
}

double mx_config_num(mx_config *c, const char *key, double dflt) {
    const mx_json *v = find(c, key, true);
    if (!v) {
        if (isnan(dflt)) mx_config_fail(c, MX_EINVAL, "config.json: %s is missing", key);
        return dflt;
    }
    if (!mx_json_is_num(v))
        wrong_type(c, key, "a number", v);
    else if (!isfinite(mx_json_as_num(v)))
        mx_config_fail(c, MX_EINVAL, "config.json: %s is not finite", key);
    else
        return mx_json_as_num(v);
    return dflt;
}

bool mx_config_bool(mx_config *c, const char *key, bool dflt) {
    const mx_json *v = find(c, key, true);
    if (!v) return dflt;
    if (v->type == MX_JSON_BOOL) return v->u.b;
    wrong_type(c, key, "true or false", v);
    return dflt;
}

const char *mx_config_str(mx_config *c, const char *key, const char *dflt) {
    const mx_json *v = find(c, key, true);
    if (!v) return dflt;
    if (v->type == MX_JSON_STRING) {
        const char *s = mx_arena_strndup(&c->a, v->u.s.p, v->u.s.len);
        if (!s) mx_config_fail(c, MX_ENOMEM, "config.json: no memory");
        return s ? s : dflt;
    }
    wrong_type(c, key, "a string", v);
    return dflt;
}

/* ---- rope --------------------------------------------------------------------------------------------- */

/* A number of the scaling object: absent gives dflt. */
static double rope_num(mx_config *c, const mx_json *o, const char *key, double dflt) {
    const mx_json *v = mx_json_get(o, key);
    if (!v || v->type == MX_JSON_NULL) return dflt;
    if (!mx_json_is_num(v) || !isfinite(mx_json_as_num(v))) {
        wrong_type(c, key, "a finite number", v);
        return dflt;
    }
    return mx_json_as_num(v);
}

static const char *rope_type(mx_config *c, const mx_json *o) {
    const char *bad = NULL;
    const char *t = mx_json_str(o, "rope_type", NULL, &c->a, &bad);
    if (!t) t = mx_json_str(o, "type", "default", &c->a, &bad);
    if (bad) mx_config_fail(c, MX_EINVAL, "config.json: the rope type must be a string");
    return t;
}

static void check_rope_keys(mx_config *c, const mx_json *o, const char *type) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "partial_rotary_factor",
                                        "truncate",
                                        "mrope_section",
                                        "mrope_interleaved",
                                        "finetuned",
                                        "full_attention",
                                        "sliding_attention",
                                        "max_position_embeddings"};
    for (const mx_json *it = mx_json_first(o); it; it = it->next) {
        bool ok = is_off(it);
        for (size_t i = 0; !ok && i < countof(known); i++) {
            ok = it->key_len == strlen(known[i]) && !memcmp(it->key, known[i], it->key_len);
        }
        if (!ok) {
            mx_config_fail(c, MX_UNSUPPORTED,
                           "config.json: the rope parameter \"%.*s\" (type %s) is not understood",
                           (int)it->key_len, it->key, type);
        }
    }
}

mx_rope_config mx_config_rope(mx_config *c, const char *layer_type, double default_theta) {
    const mx_json *scaling = mx_config_get(c, "rope_scaling");   // transformers 4
    const mx_json *params = mx_config_get(c, "rope_parameters"); // transformers 5: wins, holds theta too
    double theta = mx_config_num(c, "rope_theta", default_theta);
    double partial = mx_config_num(c, "partial_rotary_factor", 1);
    const mx_json *of_type = layer_type ? mx_json_get(params, layer_type) : NULL;
    if (mx_json_is(of_type, MX_JSON_OBJECT)) params = of_type;
    const mx_json *o = params ? params : scaling;
    const mx_json *both[2] = {params, scaling};
    for (int i = 0; i < 2; i++) {
        if (both[i] && both[i]->type != MX_JSON_OBJECT) {
            mx_config_fail(c, MX_EINVAL, "config.json: rope parameters must be an object, they are %s",
                           mx_json_type_name(both[i]));
            return (mx_rope_config){.theta = default_theta, .factor = 1, .partial = 1};
        }
    }
    const char *type = rope_type(c, o);
    if (params && scaling &&
        !strcmp(type, "default")) { // a file that keeps the scaling under the old name only
        const char *old = rope_type(c, scaling);
        if (strcmp(old, "default")) o = scaling, type = old;
    }
    check_rope_keys(c, o, type);
    mx_rope_config r = {
        .theta = rope_num(c, params, "rope_theta", theta),
        .partial = rope_num(c, params, "partial_rotary_factor", partial),
        .factor = rope_num(c, o, "factor", NAN),
        .low_freq_factor = rope_num(c, o, "low_freq_factor", 1),
        .high_freq_factor = rope_num(c, o, "high_freq_factor", 4),
        .beta_fast = rope_num(c, o, "beta_fast", 32),
        .beta_slow = rope_num(c, o, "beta_slow", 1),
        .attention_factor = rope_num(c, o, "attention_factor", NAN),
        .mscale = rope_num(c, o, "mscale", 0),
        .mscale_all_dim = rope_num(c, o, "mscale_all_dim", 0),
        .truncate = mx_json_bool(o, "truncate", true, NULL),
    };
    double ctx = mx_config_int(c, "max_position_embeddings", 2048, 1, 1 << 30);
    double original = rope_num(c, o, "original_max_position_embeddings", NAN);
    const mx_json *outer_original = mx_config_get(c, "original_max_position_embeddings");
    if (isnan(original) && mx_json_is_num(outer_original)) original = mx_json_as_num(outer_original);
    if (!strcmp(type, "default") || !strcmp(type, "mrope"))
        r.kind = MX_ROPE_DEFAULT; // mrope: one position a token in text
    else if (!strcmp(type, "linear"))
        r.kind = MX_ROPE_LINEAR;
    else if (!strcmp(type, "llama3"))
        r.kind = MX_ROPE_LLAMA3;
    else if (!strcmp(type, "yarn"))
        r.kind = MX_ROPE_YARN;
    else
        mx_config_fail(
            c, MX_UNSUPPORTED,
            "config.json: rope type \"%s\" is not supported (default, linear, llama3 and yarn are)", type);
    if (r.kind == MX_ROPE_YARN && isnan(r.factor) && !isnan(original)) r.factor = ctx / original;
    if (r.kind == MX_ROPE_DEFAULT) r.factor = 1;
    if (isnan(original)) original = ctx;
    bool sane = r.theta > 0 && r.factor > 0 && r.partial > 0 && r.partial <= 1 && original >= 1 &&
                original < 0x1p30 && r.high_freq_factor > r.low_freq_factor && r.low_freq_factor > 0 &&
                r.beta_fast > 0 && r.beta_slow > 0;
    if (!sane)
        mx_config_fail(c, MX_EINVAL, "config.json: rope parameters of type %s are missing or out of range",
                       type);
    else
        r.original_ctx = (int)original;
    return r;
}

/* ---- eos, quantization --------------------------------------------------------------------------------- */

static int add_ids(const mx_json *v, int32_t *ids, int n, int cap) {
    const mx_json *it = v;
    if (mx_json_is(v, MX_JSON_ARRAY)) it = mx_json_first(v);
    for (; it; it = it->next) {
        bool seen = it->type != MX_JSON_INT || it->u.i < 0 || it->u.i > INT32_MAX;
        for (int i = 0; !seen && i < n; i++) seen = ids[i] == it->u.i;
        if (!seen && n < cap) ids[n++] = (int32_t)it->u.i;
        if (it == v) break; // a single number, not a list
    }
    return n;
}

int mx_config_eos(mx_config *c, int32_t *ids, int cap, const char **eos_token) {
    int n = add_ids(mx_json_get(c->generation, "eos_token_id"), ids, 0, cap);
    n = add_ids(mx_json_get(c->text.obj, "eos_token_id"), ids, n, cap);
    n = add_ids(mx_json_get(c->top.obj, "eos_token_id"), ids, n, cap);
    *eos_token = NULL;
    const mx_json *t = mx_json_get(c->tokenizer, "eos_token");
    if (mx_json_is(t, MX_JSON_OBJECT)) t = mx_json_get(t, "content");
    if (mx_json_is(t, MX_JSON_STRING)) *eos_token = mx_arena_strndup(&c->a, t->u.s.p, t->u.s.len);
    return n;
}

int32_t mx_config_bos(mx_config *c) {
    int32_t id = -1;
    const mx_json *v = find(c, "bos_token_id", true);
    if (add_ids(v, &id, 0, 1) == 0) add_ids(mx_json_get(c->generation, "bos_token_id"), &id, 0, 1);
    return id;
}

const char *mx_canonical_name(const char *name, char *buf, size_t cap) {
    static const struct {
        const char *prefix, *instead;
    } wraps[] = {
        {"model.language_model.lm_head", "lm_head"}, {"model.language_model.model.", "model."},
        {"model.language_model.", "model."},         {"language_model.lm_head", "lm_head"},
        {"language_model.model.", "model."},         {"language_model.", "model."},
    };
    for (size_t i = 0; i < countof(wraps); i++) {
        size_t n = strlen(wraps[i].prefix);
        if (strncmp(name, wraps[i].prefix, n)) continue;
        snprintf(buf, cap, "%s%s", wraps[i].instead, name + n);
        return buf;
    }
    return name;
}

bool mx_config_has_quantization(const mx_config *c) { return c->quant.obj != NULL; }

static mx_module_quant read_quant(mx_config *c, const mx_json *o, const mx_module_quant *dflt,
                                  const char *where) {
    const char *bad = NULL;
    mx_module_quant q = {.quantized = true};
    q.mode =
        mx_json_str(o, "mode", "affine", &c->a, &bad); // an override without a mode is affine, as in mlx-lm
    int64_t group = mx_json_int(o, "group_size", dflt ? dflt->group : 64, &bad);
    int64_t bits = mx_json_int(o, "bits", dflt ? dflt->bits : 4, &bad);
    if (bad || bits < 1 || bits > 32 || group < 1 || group > 1 << 16 || !q.mode) {
        mx_config_fail(c, MX_EINVAL, "config.json: quantization of %s has a wrong %s", where,
                       bad ? bad : "bits or group_size");
        return (mx_module_quant){0};
    }
    q.group = (int)group;
    q.bits = (int)bits;
    return q;
}

mx_module_quant mx_config_quant(mx_config *c, const char *module) {
    if (!c->quant.obj) return (mx_module_quant){0};
    mx_module_quant dflt = read_quant(c, c->quant.obj, NULL, "the model");
    size_t i = 0;
    for (const mx_json *it = mx_json_first(c->quant.obj); it; it = it->next, i++) {
        if (it->type != MX_JSON_OBJECT && it->type != MX_JSON_BOOL) continue;
        char key[256], buf[256];
        snprintf(key, sizeof key, "%.*s", (int)it->key_len, it->key);
        if (strcmp(mx_canonical_name(key, buf, sizeof buf), module)) continue;
        c->quant.asked[i] = true;
        if (it->type == MX_JSON_OBJECT) return read_quant(c, it, &dflt, module);
        return it->u.b ? dflt : (mx_module_quant){0};
    }
    return dflt;
}

const char *mx_config_unused_quant(const mx_config *c) {
    size_t i = 0;
    for (const mx_json *it = mx_json_first(c->quant.obj); it; it = it->next, i++) {
        bool is_override = it->type == MX_JSON_OBJECT || it->type == MX_JSON_BOOL;
        if (is_override && !c->quant.asked[i])
            return mx_arena_strndup(&((mx_config *)c)->a, it->key, it->key_len);
    }
    return NULL;
}

const char *mx_config_foreign_quant(const mx_config *c) {
    if (c->quant.obj) return NULL;
    const mx_json *q = mx_json_get(c->text.obj, "quantization_config");
    if (!q && c->top.obj) q = mx_json_get(c->top.obj, "quantization_config");
    return mx_json_str(q, "quant_method", NULL, &((mx_config *)c)->a, NULL);
}
