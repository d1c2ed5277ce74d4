/* normalize_read.c - "normalizer" of a tokenizer.json as steps. */
#include "text/normalize.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 256, MAX_NEST = 32 };

mx_status mx_normalizer_add(mx_normalizer *nz, mx_norm_step step, mx_err *err) {
    if (nz->n == MAX_STEPS) {
        mx_regex_free(step.re);
        return mx_fail(err, MX_ELIMIT, "normalizer: more than %d steps", MAX_STEPS);
    }
    if (nz->n == nz->cap) {
        size_t cap = nz->cap ? 2 * nz->cap : 4;
        mx_norm_step *p = realloc(nz->step, cap * sizeof *p);
        if (!p) {
            mx_regex_free(step.re);
            return mx_fail(err, MX_ENOMEM, "no memory for the normalizer");
        }
        nz->step = p;
        nz->cap = cap;
    }
    nz->step[nz->n++] = step;
    return MX_OK;
}

void mx_normalizer_free(mx_normalizer *nz) {
    for (size_t i = 0; i < nz->n; i++) mx_regex_free(nz->step[i].re);
    free(nz->step);
    *nz = (mx_normalizer){0};
}

mx_status mx_pattern_read(const mx_json *v, const char *where, mx_arena *a, mx_regex **re, const char **lit,
                          size_t *lit_len, mx_err *err) {
    const mx_json *s = mx_json_get(v, "String"), *r = mx_json_get(v, "Regex");
    if (mx_json_is(v, MX_JSON_STRING)) s = v;
    *re = NULL;
    *lit = NULL;
    if (mx_json_is(s, MX_JSON_STRING)) {
        if (!s->u.s.len) return mx_fail(err, MX_EINVAL, "%s: the pattern is empty", where);
        *lit = mx_arena_strndup(a, s->u.s.p, s->u.s.len);
        *lit_len = s->u.s.len;
        return *lit ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for a pattern");
    }
    if (!mx_json_is(r, MX_JSON_STRING)) {
        return mx_fail(err, MX_EINVAL, "%s: \"pattern\" must be {\"String\": ...} or {\"Regex\": ...}",
                       where);
    }
    mx_status st = mx_regex_new(re, r->u.s.p, r->u.s.len, MX_REGEX_ONIGURUMA, err);
    return st == MX_OK ? MX_OK : mx_err_prefix(err, st, "%s", where);
}

static mx_status copy_string(const mx_json *v, const char *key, const char *where, mx_arena *a,
                             const char **out, size_t *len, mx_err *err) {
    const mx_json *s = mx_json_get(v, key);
    if (!mx_json_is(s, MX_JSON_STRING))
        return mx_fail(err, MX_EINVAL, "%s: \"%s\" must be a string", where, key);
    *out = mx_arena_strndup(a, s->u.s.p, s->u.s.len);
    *len = s->u.s.len;
    return *out ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for the normalizer");
}

static mx_status read_bert(mx_normalizer *nz, const mx_json *v, mx_err *err) {
    const char *bad = NULL;
    bool lower = mx_json_bool(v, "lowercase", true, &bad), clean = mx_json_bool(v, "clean_text", true, &bad);
    bool cjk = mx_json_bool(v, "handle_chinese_chars", true, &bad);
    bool accents = mx_json_bool(v, "strip_accents", lower, &bad);
    if (bad) return mx_fail(err, MX_EINVAL, "normalizer BertNormalizer: \"%s\" must be a boolean", bad);
    if (clean) MX_TRY(mx_normalizer_add(nz, (mx_norm_step){.kind = MX_NORM_CLEAN}, err));
    if (cjk) MX_TRY(mx_normalizer_add(nz, (mx_norm_step){.kind = MX_NORM_CJK}, err));
    if (accents) {
        MX_TRY(mx_normalizer_add(nz, (mx_norm_step){.kind = MX_NORM_NFD}, err));
        MX_TRY(mx_normalizer_add(nz, (mx_norm_step){.kind = MX_NORM_STRIP_MN}, err));
    }
    if (lower) MX_TRY(mx_normalizer_add(nz, (mx_norm_step){.kind = MX_NORM_LOWERCASE}, err));
    return MX_OK;
}

static mx_status read_one(mx_normalizer *nz, mx_arena *a, const mx_json *v, int depth, mx_err *err) {
    static const struct {
        const char *name;
        mx_norm_kind kind;
    } plain[] = {
        {"NFC", MX_NORM_NFC},
        {"NFD", MX_NORM_NFD},
        {"NFKC", MX_NORM_NFKC},
        {"NFKD", MX_NORM_NFKD},
        {"Lowercase", MX_NORM_LOWERCASE},
        {"StripAccents", MX_NORM_STRIP_ACCENTS},
        {"ByteLevel", MX_NORM_BYTE_LEVEL},
        {"Nmt", MX_NORM_NMT},
    };
    if (depth > MAX_NEST) return mx_fail(err, MX_ELIMIT, "normalizer: nested too deeply");
    const mx_json *type = mx_json_get(v, "type");
    if (!mx_json_is(type, MX_JSON_STRING)) {
        return mx_fail(err, MX_EINVAL, "normalizer: an object with a \"type\" must stand here, not %s",
                       mx_json_type_name(v));
    }
    for (size_t i = 0; i < countof(plain); i++) {
        if (mx_json_str_eq(type, plain[i].name))
            return mx_normalizer_add(nz, (mx_norm_step){.kind = plain[i].kind}, err);
    }
    mx_norm_step s = {0};
    if (mx_json_str_eq(type, "Sequence")) {
        const mx_json *list = mx_json_get(v, "normalizers");
        if (!mx_json_is(list, MX_JSON_ARRAY))
            return mx_fail(err, MX_EINVAL, "normalizer Sequence: \"normalizers\" must be an array");
        for (const mx_json *it = mx_json_first(list); it; it = it->next)
            MX_TRY(read_one(nz, a, it, depth + 1, err));
        return MX_OK;
    }
    if (mx_json_str_eq(type, "BertNormalizer")) return read_bert(nz, v, err);
    if (mx_json_str_eq(type, "Strip")) {
        const char *bad = NULL;
        s.kind = MX_NORM_STRIP;
        s.left = mx_json_bool(v, "strip_left", true, &bad);
        s.right = mx_json_bool(v, "strip_right", true, &bad);
        if (bad) return mx_fail(err, MX_EINVAL, "normalizer Strip: \"%s\" must be a boolean", bad);
        return mx_normalizer_add(nz, s, err);
    }
    if (mx_json_str_eq(type, "Prepend")) {
        s.kind = MX_NORM_PREPEND;
        MX_TRY(copy_string(v, "prepend", "normalizer Prepend", a, &s.content, &s.content_len, err));
        return mx_normalizer_add(nz, s, err);
    }
    if (mx_json_str_eq(type, "Replace")) {
        s.kind = MX_NORM_REPLACE;
        MX_TRY(copy_string(v, "content", "normalizer Replace", a, &s.content, &s.content_len, err));
        MX_TRY(mx_pattern_read(mx_json_get(v, "pattern"), "normalizer Replace", a, &s.re, &s.pattern,
                               &s.pattern_len, err));
        return mx_normalizer_add(nz, s, err);
    }
    return mx_fail(err, MX_UNSUPPORTED, "normalizer: the type \"%.*s\" is not supported",
                   (int)(type->u.s.len > 80 ? 80 : type->u.s.len), type->u.s.p);
}

mx_status mx_normalizer_read(mx_normalizer *nz, mx_arena *a, const mx_json *v, mx_err *err) {
    return !v || v->type == MX_JSON_NULL ? MX_OK : read_one(nz, a, v, 0, err);
}
