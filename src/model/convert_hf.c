/* convert_hf.c - the plan for a folder of safetensors: names, stacking and changes as mlx-lm's sanitize() makes them.
 *
 * all          rotary_emb.inv_freq goes; lm_head goes where config.json says that it is the embedding
 * qwen3_moe    mlp.experts.N.{gate,up,down}_proj are stacked into mlp.switch_mlp
 * mixtral      block_sparse_moe.experts.N.{w1,w3,w2} likewise
 * qwen3_5      everything goes below "language_model."; the vision tower and the multi-token heads go; conv1d.weight [c, 1, k]
 *              becomes [c, k, 1], and where that was still to do, the norms get the 1 that MLX expects in them */
#include "model/convert_int.h"
#include "base/file.h"
#include "model/arch.h"
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    mx_cv_job *j;
    const char *type; // model_type of the text model
    bool qwen3_5, tied;
    bool shift_norms; // qwen3_5 that MLX has not touched
    bool have_dtype;
    mx_dtype dtype;
    const mx_json *quant; // "quantization" of an MLX folder
    int n_expert;
} hf;

static bool starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

static bool ends(const char *s, const char *suffix) {
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

/* The name in the result, NULL for a tensor that goes; *oom when there is no memory. */
static const char *result_name(hf *h, const char *name, bool *oom) {
    if (strstr(name, "self_attn.rotary_emb.inv_freq")) return NULL;
    if (!h->qwen3_5)
        return h->tied && starts(name, "lm_head.") && strcmp(h->type, "gemma3_text") ? NULL : name;
    if (starts(name, "vision_tower") || starts(name, "model.visual") || strstr(name, "mtp.")) return NULL;
    const char *r;
    if (starts(name, "model.language_model"))
        r = mx_arena_printf(&h->j->arena, "language_model.model%s", name + strlen("model.language_model"));
    else if (starts(name, "language_model."))
        r = name;
    else
        r = mx_arena_printf(&h->j->arena, "language_model.%s", name);
    *oom = !r;
    return r && h->tied && starts(r, "language_model.lm_head.") ? NULL : r;
}

static bool is_shifted_norm(const char *name) {
    static const char *const suffix[] = {".input_layernorm.weight", ".post_attention_layernorm.weight",
                                         "model.norm.weight", ".q_norm.weight", ".k_norm.weight"};
    for (size_t i = 0; i < countof(suffix); i++)
        if (ends(name, suffix[i])) return true;
    return false;
}

static bool is_float(mx_st_dtype t) {
    return t == MX_ST_F32 || t == MX_ST_F16 || t == MX_ST_BF16 || t == MX_ST_F64;
}

static mx_dtype stored_type(mx_st_dtype t) {
    return t == MX_ST_F16 ? MX_F16 : t == MX_ST_BF16 ? MX_BF16 : MX_F32;
}

/* The item for tensor t under its new name, as the file has it: no stacking, no quantization. */
static mx_status plain_item(hf *h, mx_cv_item *it, const mx_st_tensor *t, const char *name, mx_err *err) {
    *it = (mx_cv_item){.from = is_float(t->dtype) ? MX_CV_PLAIN : MX_CV_RAW,
                       .type = (int)t->dtype,
                       .name = name,
                       .n_part = 1,
                       .n_dim = t->n_dim,
                       .n_row = 1,
                       .n_in = 1};
    if (mx_st_dtype_bits(t->dtype) < 8 || (t->dtype >= MX_ST_F8_E4M3 && t->dtype != MX_ST_C64))
        return mx_fail(err, MX_UNSUPPORTED,
                       "%s: %s is stored as %s, which cannot be converted; convert the unquantized model",
                       t->file, t->name, mx_st_dtype_name(t->dtype));
    memcpy(it->shape, t->shape, sizeof it->shape);
    for (int k = 0; k < t->n_dim; k++) {
        if (t->shape[k] == 0) return mx_fail(err, MX_EINVAL, "%s: %s is empty", t->file, t->name);
        if (k < t->n_dim - 1)
            it->n_row *= t->shape[k];
        else
            it->n_in = t->shape[k];
    }
    if (it->n_in > INT32_MAX / 2)
        return mx_fail(err, MX_UNSUPPORTED, "%s: rows of %s are too long", t->file, t->name);
    it->row_bytes = it->n_in * mx_st_dtype_bits(t->dtype) / 8;
    it->dtype = h->have_dtype && !ends(name, "A_log") ? h->dtype : stored_type(t->dtype);
    it->part = mx_arena_alloc(&h->j->arena, sizeof *it->part);
    if (!it->part) return mx_cv_nomem(err);
    it->part[0] = t->data;
    if (h->qwen3_5 && strstr(name, "conv1d.weight") && t->n_dim == 3 && t->shape[2] != 1) {
        if (t->shape[1] != 1)
            return mx_fail(err, MX_UNSUPPORTED, "%s: %s is no depthwise convolution", t->file, t->name);
        it->shape[1] = t->shape[2]; // one of the two axes is 1, so the values stay where they are
        it->shape[2] = 1;
    }
    if (h->shift_norms && t->n_dim == 1 && is_shifted_norm(name)) {
        it->add = 1;
        it->add_type = stored_type(t->dtype);
    }
    return MX_OK;
}

/* ---- experts ------------------------------------------------------------------------------------------------- */

/* Splits "PREFIX.experts.7.w1.weight"; returns the index, -1 if the name is no expert's. */
static long expert_of(const char *name, size_t *prefix, const char **rest) {
    const char *p = strstr(name, ".experts.");
    if (!p) return -1;
    *prefix = (size_t)(p - name);
    p += strlen(".experts.");
    char *end;
    if (!isdigit((unsigned char)*p)) return -1;
    const long e = strtol(p, &end, 10);
    if (*end != '.') return -1;
    *rest = end + 1;
    return e;
}

static const char *stacked_part(const hf *h, const char *rest) {
    static const char *const mixtral[][2] = {
        {"w1.", "gate_proj."}, {"w2.", "down_proj."}, {"w3.", "up_proj."}};
    if (strcmp(h->type, "mixtral")) return rest;
    for (size_t i = 0; i < countof(mixtral); i++)
        if (starts(rest, mixtral[i][0])) return mixtral[i][1];
    return NULL;
}

/* Expert 0 stands for its siblings: one item [n_expert, ...] of all of them. */
static mx_status stack_experts(hf *h, mx_cv_item *it, const mx_st_tensor *t, mx_err *err) {
    size_t prefix = 0;
    const char *rest = NULL;
    (void)expert_of(t->name, &prefix, &rest);
    const char *part = stacked_part(h, rest), *tail = strrchr(rest, '.');
    if (!part || !tail)
        return mx_fail(err, MX_UNSUPPORTED, "%s: %s has no place in a %s model", t->file, t->name, h->type);
    const char *name = mx_arena_printf(&h->j->arena, "%.*s.switch_mlp.%.*s%s", (int)prefix, t->name,
                                       (int)(strcspn(part, ".")), part, tail);
    bool oom = !name;
    if (!oom) name = result_name(h, name, &oom);
    if (oom) return mx_cv_nomem(err);
    MX_TRY(plain_item(h, it, t, name, err));
    if (h->n_expert < 1)
        return mx_fail(err, MX_EINVAL, "config.json does not say how many experts there are, and %s is one",
                       t->name);
    if (it->n_dim + 1 > MX_ST_MAX_DIM)
        return mx_fail(err, MX_UNSUPPORTED, "%s: %s has too many axes", t->file, t->name);
    const void **all = mx_arena_array(&h->j->arena, (size_t)h->n_expert, sizeof *all);
    if (!all) return mx_cv_nomem(err);
    for (int e = 0; e < h->n_expert; e++) {
        const char *sibling =
            mx_arena_printf(&h->j->arena, "%.*s.experts.%d.%s", (int)prefix, t->name, e, rest);
        if (!sibling) return mx_cv_nomem(err);
        const mx_st_tensor *s = mx_st_find(h->j->st, sibling);
        if (!s)
            return mx_fail(err, MX_ENOTFOUND, "%s is missing: the model has %d experts", sibling,
                           h->n_expert);
        if (s->dtype != t->dtype || s->n_dim != t->n_dim ||
            memcmp(s->shape, t->shape, sizeof t->shape[0] * (size_t)t->n_dim))
            return mx_fail(err, MX_EINVAL, "%s differs from %s in shape or type", sibling, t->name);
        all[e] = s->data;
    }
    memmove(it->shape + 1, it->shape, sizeof it->shape[0] * (size_t)it->n_dim);
    it->shape[0] = h->n_expert;
    it->n_dim++;
    it->n_row *= h->n_expert;
    it->part = all;
    it->n_part = h->n_expert;
    return MX_OK;
}

/* ---- weights that MLX has quantized ------------------------------------------------------------------------ */

static mx_st_tensor *sibling(hf *h, const char *weight, const char *suffix) {
    char buf[512];
    const size_t stem = strlen(weight) - strlen("weight");
    if (stem + strlen(suffix) >= sizeof buf) return NULL;
    memcpy(buf, weight, stem);
    strcpy(buf + stem, suffix);
    return mx_st_find(h->j->st, buf);
}

static mx_quant quant_by_name(const char *s) {
    for (mx_quant k = MX_QUANT_AFFINE; k <= MX_QUANT_NVFP4; k++)
        if (!strcmp(s, mx_quant_name(k))) return k;
    return MX_QUANT_NONE;
}

/* Turn the item of codes into one of the values that they stand for. */
static mx_status expand_item(hf *h, mx_cv_item *it, const mx_st_tensor *t, const mx_st_tensor *scales,
                             mx_err *err) {
    const mx_st_tensor *biases = sibling(h, t->name, "biases");
    const size_t stem = strlen(t->name) - strlen(".weight");
    const mx_json *entry = mx_json_getn(h->quant, t->name, stem);
    const bool own = mx_json_is(entry, MX_JSON_OBJECT);
    const char *bad = NULL;
    const char *mode = mx_json_str(own ? entry : h->quant, "mode", "affine", &h->j->arena, &bad);
    const int64_t group = mx_json_int(own ? entry : h->quant, "group_size", 64, &bad);
    if (bad)
        return mx_fail(err, MX_EINVAL, "config.json: %s of the quantization of %s is of the wrong type", bad,
                       t->name);
    const mx_quant kind = quant_by_name(mode);
    const int k = t->n_dim - 1;
    bool fits = kind != MX_QUANT_NONE && group > 0 && group <= 1024 && t->dtype == MX_ST_U32 && k >= 1 &&
                k <= 2 && scales->n_dim == t->n_dim &&
                !memcmp(scales->shape, t->shape, sizeof t->shape[0] * (size_t)k) && scales->shape[k] > 0 &&
                scales->shape[k] <= INT32_MAX / 1024 && (kind == MX_QUANT_AFFINE) == (biases != NULL);
    if (fits)
        fits = kind == MX_QUANT_AFFINE ? is_float(scales->dtype) && scales->dtype != MX_ST_F64
                                       : scales->dtype == MX_ST_U8;
    if (fits && biases)
        fits = biases->dtype == scales->dtype && biases->n_dim == scales->n_dim &&
               !memcmp(biases->shape, scales->shape, sizeof t->shape[0] * (size_t)t->n_dim);
    const int64_t n_in = fits ? scales->shape[k] * group : 1, bits = fits ? t->shape[k] * 32 / n_in : 0;
    if (!fits || bits * n_in != t->shape[k] * 32 || it->n_row > INT32_MAX)
        return mx_fail(err, MX_EINVAL,
                       "%s: the shapes of %s and its scales do not fit the quantization in config.json",
                       t->file, t->name);
    MX_TRY(mx_quant_check(kind, (int)bits, (int)group, (int)n_in, err));
    it->from = MX_CV_QMAT;
    it->n_in = n_in;
    it->shape[k] = n_in;
    const int n_stack = k == 2 ? (int)t->shape[0] : 1;
    it->qmat = (mx_qmat){.kind = kind,
                         .bits = (int)bits,
                         .group = (int)group,
                         .n_stack = n_stack,
                         .n_out = (int)(it->n_row / n_stack),
                         .n_in = (int)n_in,
                         .codes = t->data,
                         .scales = scales->data,
                         .biases = biases ? biases->data : NULL};
    if (kind == MX_QUANT_AFFINE) it->qmat.type = stored_type(scales->dtype);
    it->dtype = h->have_dtype ? h->dtype : kind == MX_QUANT_AFFINE ? it->qmat.type : MX_BF16;
    return MX_OK;
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

static mx_status add_tensor(hf *h, const mx_st_tensor *t, mx_err *err) {
    mx_cv_item it;
    size_t prefix = 0;
    const char *rest = NULL;
    const long expert = expert_of(t->name, &prefix, &rest);
    bool oom = false;
    const char *name = result_name(h, t->name, &oom);
    if (oom) return mx_cv_nomem(err);
    if (!name) return MX_OK;
    if (expert > 0) { // comes with expert 0
        const char *first = mx_arena_printf(&h->j->arena, "%.*s.experts.0.%s", (int)prefix, t->name, rest);
        if (!first) return mx_cv_nomem(err);
        if (expert >= h->n_expert)
            return mx_fail(err, MX_EINVAL, "%s: %s is one expert too many for a model of %d", t->file,
                           t->name, h->n_expert);
        if (!mx_st_find(h->j->st, first)) return mx_fail(err, MX_ENOTFOUND, "%s is missing", first);
        return MX_OK;
    }
    if (expert == 0) {
        MX_TRY(stack_experts(h, &it, t, err));
    } else {
        MX_TRY(plain_item(h, &it, t, name, err));
        const bool weight = ends(t->name, ".weight");
        const mx_st_tensor *scales = weight ? sibling(h, t->name, "scales") : NULL;
        if (h->quant && h->j->opt->dequantize) {
            if (scales) MX_TRY(expand_item(h, &it, t, scales, err));
            if (ends(t->name, ".scales") || ends(t->name, ".biases")) return MX_OK;
        } else if (h->quant && (ends(t->name, ".scales") || ends(t->name, ".biases"))) {
            it.from = MX_CV_RAW; // belong to codes that are copied
        }
    }
    return mx_cv_add_item(h->j, &it, err);
}

/* What goes along with the weights. */
static mx_status copy_files(mx_cv_job *j, mx_err *err) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "tekken.json",
                                        "chat_template.json",
                                        "generation_config.json"};
    DIR *d = opendir(j->opt->source);
    if (!d) return mx_fail(err, MX_EIO, "%s cannot be listed", j->opt->source);
    mx_status st = MX_OK;
    for (const struct dirent *e; st == MX_OK && (e = readdir(d));) {
        bool take = ends(e->d_name, ".jinja") || ends(e->d_name, ".tiktoken") ||
                    starts(e->d_name, "LICENSE") || starts(e->d_name, "NOTICE");
        for (size_t i = 0; i < countof(names); i++) take |= !strcmp(e->d_name, names[i]);
        if (!take) continue;
        const char *path = mx_path_join(&j->arena, j->opt->source, e->d_name);
        const char *name = mx_arena_strdup(&j->arena, e->d_name);
        if (!path || !name)
            st = mx_cv_nomem(err);
        else if (mx_is_file(path))
            st = mx_cv_add_file(j, name, NULL, 0, path, err);
    }
    closedir(d);
    return st;
}

static mx_status read_config(hf *h, mx_err *err) {
    mx_cv_job *j = h->j;
    char *text;
    size_t len;
    const char *path = mx_path_join(&j->arena, j->opt->source, "config.json");
    if (!path) return mx_cv_nomem(err);
    MX_TRY(mx_file_read(&text, &len, &j->arena, path, 64 << 20, err));
    mx_json *root;
    mx_status st = mx_json_parse(&root, &j->arena, text, len, err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", path);
    if (root->type != MX_JSON_OBJECT) return mx_fail(err, MX_EINVAL, "%s holds no object", path);
    j->config = root;
    const mx_json *inner = mx_json_get(root, "text_config");
    const char *bad = NULL;
    h->type = mx_json_str(inner, "model_type", NULL, &j->arena, &bad);
    if (!h->type) h->type = mx_json_str(root, "model_type", NULL, &j->arena, &bad);
    if (!h->type) return mx_fail(err, MX_EINVAL, "%s names no model_type", path);
    if (!mx_family_find(h->type))
        return mx_fail(err, MX_UNSUPPORTED, "%s: models of type %s cannot be converted", path, h->type);
    h->qwen3_5 = starts(h->type, "qwen3_5");
    if (h->qwen3_5 && !inner) j->config_prefix = "qwen3_5";
    h->tied = mx_json_bool(root, "tie_word_embeddings",
                           mx_json_bool(inner, "tie_word_embeddings", false, &bad), &bad);
    const char *dtype = j->opt->dtype;
    if (!dtype) dtype = mx_json_str(root, "torch_dtype", NULL, &j->arena, NULL);
    if (!dtype) dtype = mx_json_str(inner, "dtype", NULL, &j->arena, NULL);
    h->have_dtype = dtype && mx_cv_dtype(&h->dtype, dtype);
    const mx_json *from = inner ? inner : root;
    h->n_expert =
        (int)mx_json_int(from, "num_experts", mx_json_int(from, "num_local_experts", 0, &bad), &bad);
    if (bad) return mx_fail(err, MX_EINVAL, "%s: %s is of the wrong type", path, bad);
    if (h->n_expert < 0 || h->n_expert > 1 << 16)
        return mx_fail(err, MX_EINVAL, "%s: %d experts", path, h->n_expert);

    h->quant = mx_json_get(root, "quantization");
    const mx_json *foreign = mx_json_get(root, "quantization_config");
    if (!foreign) foreign = mx_json_get(inner, "quantization_config");
    if (!mx_json_is(h->quant, MX_JSON_OBJECT)) h->quant = NULL;
    if (!h->quant && mx_json_is(foreign, MX_JSON_OBJECT)) {
        const char *method = mx_json_str(foreign, "quant_method", NULL, &j->arena, NULL);
        if (method || !mx_json_get(foreign, "group_size"))
            return mx_fail(err, MX_UNSUPPORTED,
                           "%s: weights quantized by %s cannot be converted; convert the unquantized model",
                           path, method ? method : "an unknown method");
        h->quant = foreign;
    }
    if (h->quant && j->opt->quantize)
        return mx_fail(err, MX_EINVAL, "%s is quantized already; expand it with -d first", j->opt->source);
    if (!h->quant && j->opt->dequantize)
        return mx_fail(err, MX_EINVAL, "%s is not quantized, so there is nothing for -d", j->opt->source);
    return MX_OK;
}

mx_status mx_cv_plan_hf(mx_cv_job *j, mx_err *err) {
    hf h = {.j = j};
    MX_TRY(read_config(&h, err));
    MX_TRY(mx_st_open(&j->st, j->opt->source, err));
    const size_t n = mx_st_count(j->st);
    for (size_t i = 0; i < n && h.qwen3_5; i++) {
        const mx_st_tensor *t = mx_st_at(j->st, i);
        if (strstr(t->name, "conv1d.weight") && t->n_dim && t->shape[t->n_dim - 1] != 1) h.shift_norms = true;
    }
    for (size_t i = 0; i < n; i++) MX_TRY(add_tensor(&h, mx_st_at(j->st, i), err));
    if (!j->n_item) return mx_fail(err, MX_EINVAL, "%s holds no tensors", j->opt->source);
    mx_cv_choose_quant(j, h.type);
    return copy_files(j, err);
}
