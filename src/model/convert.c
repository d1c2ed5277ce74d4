/* convert.c - the frame of a conversion: look at the source, plan, write into a folder beside the final one, rename.
 *
 * What is written where: convert_hf.c and convert_gguf.c plan, convert_write.c carries the tensors out, here are config.json
 * and the other files. */
#include "model/convert.h"
#include "base/file.h"
#include "model/convert_int.h"
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- helpers of the planners --------------------------------------------------------------------------------- */

mx_status mx_cv_nomem(mx_err *err) { return mx_fail(err, MX_ENOMEM, "no memory to plan the conversion"); }

void mx_cv_job_free(mx_cv_job *j) {
    free(j->item);
    free(j->file);
    mx_st_free(j->st);
    mx_gguf_free(j->gguf);
    mx_arena_free(&j->arena);
}

/* Room for one more in an array of n items; NULL without touching it when there is no memory. */
static void *grow(void *p, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return p;
    const size_t more = *cap ? *cap * 2 : 64;
    void *q = more > SIZE_MAX / size ? NULL : realloc(p, more * size);
    if (q) *cap = more;
    return q;
}

mx_status mx_cv_add_item(mx_cv_job *j, const mx_cv_item *it, mx_err *err) {
    mx_cv_item *p = grow(j->item, j->n_item, &j->cap_item, sizeof *p);
    if (!p) return mx_cv_nomem(err);
    j->item = p;
    p[j->n_item++] = *it;
    return MX_OK;
}

mx_status mx_cv_add_file(mx_cv_job *j, const char *name, const char *text, size_t len, const char *copy,
                         mx_err *err) {
    mx_cv_file *p = grow(j->file, j->n_file, &j->cap_file, sizeof *p);
    if (!p) return mx_cv_nomem(err);
    j->file = p;
    p[j->n_file++] = (mx_cv_file){name, text, len, copy};
    return MX_OK;
}

void mx_cv_note(const mx_cv_job *j, const char *fmt, ...) {
    if (!j->opt->note) return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    j->opt->note(j->opt->arg, line);
}

bool mx_cv_dtype(mx_dtype *out, const char *name) {
    for (mx_dtype t = MX_F32; t <= MX_BF16; t++) {
        if (!strcmp(name, mx_dtype_name(t))) {
            *out = t;
            return true;
        }
    }
    return false;
}

bool mx_cv_is_router(const char *model_type, const char *module) {
    const size_t n = strlen(module);
    if (strcmp(model_type, "qwen3_moe") && strncmp(model_type, "qwen3_5", 7)) return false;
    return (n >= 8 && !strcmp(module + n - 8, "mlp.gate")) ||
           (n >= 18 && !strcmp(module + n - 18, "shared_expert_gate"));
}

void mx_cv_choose_quant(mx_cv_job *j, const char *model_type) {
    if (!j->opt->quantize) return;
    uint64_t left_out = 0;
    for (size_t i = 0; i < j->n_item; i++) {
        mx_cv_item *it = &j->item[i];
        const size_t n = strlen(it->name);
        // linear layers, embeddings and stacks of experts; not the convolutions
        if (it->from == MX_CV_RAW || it->n_dim < 2 || n < 8 || strcmp(it->name + n - 7, ".weight") ||
            strstr(it->name, "conv1d"))
            continue;
        char module[512];
        snprintf(module, sizeof module, "%.*s", (int)(n - 7), it->name);
        const bool router = mx_cv_is_router(model_type, module);
        if (it->n_in % j->group || (router && it->n_in % 64)) {
            left_out++;
            continue;
        }
        it->blocks = false;
        it->kind = router ? MX_QUANT_AFFINE : j->kind;
        it->bits = router ? 8 : j->bits;
        it->group = router ? 64 : j->group;
    }
    if (left_out)
        mx_cv_note(j, "%llu matrices stay unquantized: their rows are not a multiple of %d",
                   (unsigned long long)left_out, j->group);
}

/* ---- config.json ----------------------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    const mx_json *x = *(const mx_json *const *)a, *y = *(const mx_json *const *)b;
    const size_t n = x->key_len < y->key_len ? x->key_len : y->key_len;
    const int c = memcmp(x->key, y->key, n);
    return c ? c : (x->key_len > y->key_len) - (x->key_len < y->key_len);
}

static void put_format(mx_str *s, mx_quant kind, int bits, int group, bool mode) {
    mx_str_printf(s, "\"group_size\":%d,\"bits\":%d", group, bits);
    if (mode) mx_str_printf(s, ",\"mode\":\"%s\"", mx_quant_name(kind));
}

/* The default, and what differs from it, by module. An entry without a mode means affine, as mlx-lm reads it. */
static void put_quantization(mx_str *s, const mx_cv_job *j) {
    mx_str_putc(s, '{');
    put_format(s, j->kind, j->bits, j->group, true);
    for (size_t i = 0; i < j->n_item; i++) {
        const mx_cv_item *it = &j->item[i];
        if (it->kind == MX_QUANT_NONE ||
            (it->kind == j->kind && it->bits == j->bits && it->group == j->group))
            continue;
        mx_str_putc(s, ',');
        mx_json_put_string(s, it->name, strlen(it->name) - strlen(".weight"));
        mx_str_puts(s, ":{");
        put_format(s, it->kind, it->bits, it->group, j->gguf || j->kind != MX_QUANT_AFFINE);
        mx_str_putc(s, '}');
    }
    mx_str_putc(s, '}');
}

/* The members of obj in order of their keys, but for those that are replaced or of no use in the result. */
static mx_status put_members(mx_str *s, mx_cv_job *j, const mx_json *obj, bool keep_quant, mx_err *err) {
    static const char *const drop[] = {"_name_or_path", "vision_config", "quantization",
                                       "quantization_config"};
    const mx_json **m = mx_arena_array(&j->arena, mx_json_count(obj) + 1, sizeof *m);
    size_t n = 0;
    if (!m) return mx_cv_nomem(err);
    for (const mx_json *it = mx_json_first(obj); it; it = it->next) {
        bool take = true;
        for (size_t i = 0; i < (keep_quant ? 2 : countof(drop)); i++)
            take &= it->key_len != strlen(drop[i]) || memcmp(it->key, drop[i], it->key_len) != 0;
        if (take) m[n++] = it;
    }
    qsort(m, n, sizeof *m, by_key);
    for (size_t i = 0; i < n; i++) {
        if (i) mx_str_putc(s, ',');
        mx_json_put_string(s, m[i]->key, m[i]->key_len);
        mx_str_putc(s, ':');
        mx_json_put(s, m[i], 0);
    }
    return MX_OK;
}

static mx_status build_config(mx_cv_job *j, mx_str *out, mx_err *err) {
    mx_str s = {0}, line = {0};
    mx_status st;
    const bool keep_quant = !j->opt->quantize && !j->opt->dequantize && !j->gguf;
    mx_str_putc(&line, '{');
    if (j->config_prefix) {
        /* mlx-lm knows this text model only inside the larger one: wrap it, and repeat what is read from outside. */
        mx_str_printf(&line, "\"model_type\":\"%s\",\"text_config\":{", j->config_prefix);
        st = put_members(&line, j, j->config, false, err);
        mx_str_putc(&line, '}');
        static const char *const outside[] = {"architectures", "bos_token_id",        "eos_token_id",
                                              "pad_token_id",  "tie_word_embeddings", "dtype",
                                              "torch_dtype"};
        for (size_t i = 0; i < countof(outside); i++) {
            const mx_json *v = mx_json_get(j->config, outside[i]);
            if (!v) continue;
            mx_str_printf(&line, ",\"%s\":", outside[i]);
            mx_json_put(&line, v, 0);
        }
    } else {
        st = put_members(&line, j, j->config, keep_quant, err);
    }
    if (j->kind != MX_QUANT_NONE) {
        for (int i = 0; i < 2; i++) {
            mx_str_puts(&line, i ? ",\"quantization_config\":" : ",\"quantization\":");
            put_quantization(&line, j);
        }
    }
    mx_str_putc(&line, '}');
    mx_json *root = NULL; // through the parser once more, for the indentation
    if (st == MX_OK)
        st = line.oom ? mx_cv_nomem(err) : mx_json_parse(&root, &j->arena, line.p, line.len, err);
    if (st == MX_OK) {
        mx_json_put(&s, root, 4);
        mx_str_putc(&s, '\n');
        if (s.oom) st = mx_cv_nomem(err);
    }
    if (st == MX_OK)
        *out = s;
    else
        mx_str_free(&s);
    mx_str_free(&line); // the tree points into it, and is used up
    return st;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static bool is_empty_dir(const char *path) {
    DIR *d = opendir(path);
    if (!d) return false;
    bool empty = true;
    for (const struct dirent *e; (e = readdir(d));)
        empty &= !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return empty;
}

static mx_status copy_file(const char *from, const char *to, mx_err *err) {
    mx_map m;
    MX_TRY(mx_map_open(&m, from, err));
    const mx_status st = mx_file_write(to, m.p, m.len, err);
    mx_map_close(&m);
    return st;
}

static mx_status write_all(mx_cv_job *j, const char *dir, mx_err *err) {
    mx_str config = {0};
    MX_TRY(build_config(j, &config, err));
    const char *path = mx_path_join(&j->arena, dir, "config.json");
    mx_status st = path ? mx_file_write(path, config.p, config.len, err) : mx_cv_nomem(err);
    mx_str_free(&config);
    for (size_t i = 0; i < j->n_file && st == MX_OK; i++) {
        const mx_cv_file *f = &j->file[i];
        path = mx_path_join(&j->arena, dir, f->name);
        if (!path)
            st = mx_cv_nomem(err);
        else
            st = f->copy ? copy_file(f->copy, path, err) : mx_file_write(path, f->text, f->len, err);
    }
    return st == MX_OK ? mx_cv_write(j, dir, err) : st;
}

static mx_status write_folder(mx_cv_job *j, mx_err *err) {
    char *out = mx_arena_strdup(&j->arena, j->opt->out);
    if (!out) return mx_cv_nomem(err);
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/';) out[--n] = 0;
    const char *dir = mx_arena_printf(&j->arena, "%s.partial-%ld", out, (long)getpid());
    if (!dir) return mx_cv_nomem(err);
    MX_TRY(mx_mkdirs(dir, err));
    mx_status st = write_all(j, dir, err);
    // rename() takes the place of an empty folder, and fails if something has come into it meanwhile
    if (st == MX_OK && rename(dir, out))
        st = mx_fail(err, MX_EIO, "%s cannot be renamed to %s: %s", dir, out, strerror(errno));
    if (st != MX_OK) (void)mx_remove_tree(dir, NULL);
    return st;
}

/* -q and its parameters, with the defaults of mlx-lm. */
static mx_status check_options(mx_cv_job *j, mx_err *err) {
    const mx_convert_options *o = j->opt;
    mx_dtype t;
    if (!o->source || !*o->source) return mx_fail(err, MX_EINVAL, "no model to convert was named");
    if (!o->out || !*o->out) return mx_fail(err, MX_EINVAL, "no folder for the result was named");
    if (o->quantize && o->dequantize) return mx_fail(err, MX_EINVAL, "-q and -d exclude each other");
    if (!o->quantize && (o->bits || o->group))
        return mx_fail(err, MX_EINVAL, "--q-bits and --q-group-size need -q");
    if (o->dtype && !mx_cv_dtype(&t, o->dtype))
        return mx_fail(err, MX_EINVAL, "dtype %s is not bfloat16, float16 or float32", o->dtype);
    if (o->quantize) {
        static const struct {
            int bits, group;
        } dflt[] = {[MX_QUANT_AFFINE] = {4, 64},
                    [MX_QUANT_MXFP4] = {4, 32},
                    [MX_QUANT_MXFP8] = {8, 32},
                    [MX_QUANT_NVFP4] = {4, 16}};
        j->kind = o->mode == MX_QUANT_NONE ? MX_QUANT_AFFINE : o->mode;
        if (j->kind < MX_QUANT_AFFINE || j->kind > MX_QUANT_NVFP4)
            return mx_fail(err, MX_EINVAL, "unknown quantization mode");
        j->bits = o->bits ? o->bits : dflt[j->kind].bits;
        j->group = o->group ? o->group : dflt[j->kind].group;
        MX_TRY(mx_quant_check(j->kind, j->bits, j->group, 1 << 20, err));
    }
    if (access(o->out, F_OK) == 0 && !is_empty_dir(o->out))
        return mx_fail(err, MX_EINVAL,
                       "%s exists and is not an empty folder; choose another name or remove it", o->out);
    return MX_OK;
}

mx_status mx_convert(const mx_convert_options *opt, mx_err *err) {
    mx_cv_job j = {.opt = opt};
    mx_status st = check_options(&j, err);
    if (st == MX_OK) {
        if (mx_is_dir(opt->source))
            st = mx_cv_plan_hf(&j, err);
        else if (mx_is_file(opt->source))
            st = mx_cv_plan_gguf(&j, err);
        else
            st = mx_fail(err, MX_ENOTFOUND, "%s: no such folder or file", opt->source);
    }
    if (st == MX_OK) st = write_folder(&j, err);
    mx_cv_job_free(&j);
    return st;
}
