/* pretok_read.c - "pre_tokenizer" of a tokenizer.json as steps. */
#include "text/pretok.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 256, MAX_NEST = 32 };

/* What ByteLevel splits by, as GPT-2 did. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

mx_status mx_pretok_add(mx_pretok *pt, mx_pre_step step, mx_err *err) {
    if (pt->n == MAX_STEPS) {
        mx_regex_free(step.re);
        return mx_fail(err, MX_ELIMIT, "pre_tokenizer: more than %d steps", MAX_STEPS);
    }
    if (pt->n == pt->cap) {
        size_t cap = pt->cap ? 2 * pt->cap : 4;
        mx_pre_step *p = realloc(pt->step, cap * sizeof *p);
        if (!p) {
            mx_regex_free(step.re);
            return mx_fail(err, MX_ENOMEM, "no memory for the pre-tokenizer");
        }
        pt->step = p;
        pt->cap = cap;
    }
    pt->step[pt->n++] = step;
    return MX_OK;
}

void mx_pretok_free(mx_pretok *pt) {
    for (size_t i = 0; i < pt->n; i++) mx_regex_free(pt->step[i].re);
    free(pt->step);
    *pt = (mx_pretok){0};
}

mx_status mx_pretok_add_split(mx_pretok *pt, const char *pattern, mx_regex_dialect dialect, mx_err *err) {
    mx_pre_step s = {.kind = MX_PRE_REGEX, .behavior = MX_SPLIT_ISOLATED};
    MX_TRY(mx_regex_new(&s.re, pattern, strlen(pattern), dialect, err));
    return mx_pretok_add(pt, s, err);
}

static mx_status read_behavior(const mx_json *v, mx_behavior dflt, mx_behavior *out, mx_err *err) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const mx_json *b = mx_json_get(v, "behavior");
    *out = dflt;
    if (!b || b->type == MX_JSON_NULL) return MX_OK;
    for (size_t i = 0; i < countof(names); i++) {
        if (mx_json_str_eq(b, names[i])) {
            *out = (mx_behavior)i;
            return MX_OK;
        }
    }
    return mx_fail(err, MX_UNSUPPORTED,
                   "pre_tokenizer: the behavior is none of Isolated, Removed, Contiguous, "
                   "MergedWithPrevious, MergedWithNext");
}

static mx_status read_byte_level(mx_pretok *pt, const mx_json *v, mx_err *err) {
    const char *bad = NULL;
    bool prefix = mx_json_bool(v, "add_prefix_space", true, &bad),
         split = mx_json_bool(v, "use_regex", true, &bad);
    if (bad) return mx_fail(err, MX_EINVAL, "pre_tokenizer ByteLevel: \"%s\" must be a boolean", bad);
    if (prefix)
        MX_TRY(mx_pretok_add(pt, (mx_pre_step){.kind = MX_PRE_PREFIX, .lit = " ", .lit_len = 1}, err));
    if (split) MX_TRY(mx_pretok_add_split(pt, GPT2, MX_REGEX_ONIGURUMA, err));
    return mx_pretok_add(pt, (mx_pre_step){.kind = MX_PRE_BYTES}, err);
}

/* A member that must be one character. */
static mx_status read_char(const mx_json *v, const char *key, const char *dflt, const char *where,
                           mx_arena *a, const char **out, size_t *len, mx_err *err) {
    const mx_json *c = mx_json_get(v, key);
    const char *p = dflt;
    size_t n = dflt ? strlen(dflt) : 0, used = 0;
    if (mx_json_is(c, MX_JSON_STRING)) p = c->u.s.p, n = c->u.s.len;
    if (n) mx_utf8_decode(p, n, &used);
    if (!n || used != n) return mx_fail(err, MX_EINVAL, "%s: \"%s\" must be one character", where, key);
    *out = mx_arena_strndup(a, p, n);
    *len = n;
    return *out ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for the pre-tokenizer");
}

static mx_status read_metaspace(mx_pretok *pt, mx_arena *a, const mx_json *v, mx_err *err) {
    const char *bad = NULL, *lit;
    size_t n = 0;
    MX_TRY(read_char(v, "replacement", "\xE2\x96\x81", "pre_tokenizer Metaspace", a, &lit, &n, err));
    bool split = mx_json_bool(v, "split", true, &bad),
         space = mx_json_bool(v, "add_prefix_space", true, &bad);
    const char *scheme = mx_json_str(v, "prepend_scheme", space ? "always" : "never", a, &bad);
    if (bad) return mx_fail(err, MX_EINVAL, "pre_tokenizer Metaspace: \"%s\" has the wrong type", bad);
    if (!scheme) return mx_fail(err, MX_ENOMEM, "no memory for the pre-tokenizer");
    bool always = !strcmp(scheme, "always"), first = !strcmp(scheme, "first");
    if (!always && !first && strcmp(scheme, "never")) {
        return mx_fail(err, MX_UNSUPPORTED,
                       "pre_tokenizer Metaspace: prepend_scheme is none of always, first, never");
    }
    MX_TRY(mx_pretok_add(pt, (mx_pre_step){.kind = MX_PRE_REPLACE, .lit = lit, .lit_len = n}, err));
    if (always || first) {
        MX_TRY(mx_pretok_add(
            pt, (mx_pre_step){.kind = MX_PRE_PREFIX, .only_first = first, .lit = lit, .lit_len = n}, err));
    }
    if (!split) return MX_OK;
    return mx_pretok_add(
        pt, (mx_pre_step){.kind = MX_PRE_LITERAL, .behavior = MX_SPLIT_WITH_NEXT, .lit = lit, .lit_len = n},
        err);
}

static mx_status read_split(mx_pretok *pt, mx_arena *a, const mx_json *v, mx_err *err) {
    const char *bad = NULL;
    mx_pre_step s = {.invert = mx_json_bool(v, "invert", false, &bad)};
    if (bad) return mx_fail(err, MX_EINVAL, "pre_tokenizer Split: \"invert\" must be a boolean");
    MX_TRY(read_behavior(v, MX_SPLIT_ISOLATED, &s.behavior, err));
    MX_TRY(
        mx_pattern_read(mx_json_get(v, "pattern"), "pre_tokenizer Split", a, &s.re, &s.lit, &s.lit_len, err));
    s.kind = s.re ? MX_PRE_REGEX : MX_PRE_LITERAL;
    return mx_pretok_add(pt, s, err);
}

static mx_status read_one(mx_pretok *pt, mx_arena *a, const mx_json *v, int depth, mx_err *err) {
    const mx_json *type = mx_json_get(v, "type");
    const char *bad = NULL;
    mx_pre_step s = {.kind = MX_PRE_CLASS};
    if (depth > MAX_NEST) return mx_fail(err, MX_ELIMIT, "pre_tokenizer: nested too deeply");
    if (!mx_json_is(type, MX_JSON_STRING)) {
        return mx_fail(err, MX_EINVAL, "pre_tokenizer: an object with a \"type\" must stand here, not %s",
                       mx_json_type_name(v));
    }
    if (mx_json_str_eq(type, "Sequence")) {
        const mx_json *list = mx_json_get(v, "pretokenizers");
        if (!mx_json_is(list, MX_JSON_ARRAY))
            return mx_fail(err, MX_EINVAL, "pre_tokenizer Sequence: \"pretokenizers\" must be an array");
        for (const mx_json *it = mx_json_first(list); it; it = it->next)
            MX_TRY(read_one(pt, a, it, depth + 1, err));
        return MX_OK;
    }
    if (mx_json_str_eq(type, "ByteLevel")) return read_byte_level(pt, v, err);
    if (mx_json_str_eq(type, "Metaspace")) return read_metaspace(pt, a, v, err);
    if (mx_json_str_eq(type, "Split")) return read_split(pt, a, v, err);
    if (mx_json_str_eq(type, "Whitespace")) {
        s.kind = MX_PRE_WORDS;
        s.behavior = MX_SPLIT_REMOVED;
        return mx_pretok_add(pt, s, err);
    }
    if (mx_json_str_eq(type, "WhitespaceSplit") || mx_json_str_eq(type, "BertPreTokenizer")) {
        s.behavior = MX_SPLIT_REMOVED;
        s.in_class = mx_uc_space;
        MX_TRY(mx_pretok_add(pt, s, err));
        if (mx_json_str_eq(type, "WhitespaceSplit")) return MX_OK;
        s.behavior = MX_SPLIT_ISOLATED;
        s.in_class = mx_uc_punct;
        return mx_pretok_add(pt, s, err);
    }
    if (mx_json_str_eq(type, "Digits")) {
        bool each = mx_json_bool(v, "individual_digits", false, &bad);
        if (bad)
            return mx_fail(err, MX_EINVAL, "pre_tokenizer Digits: \"individual_digits\" must be a boolean");
        s.behavior = each ? MX_SPLIT_ISOLATED : MX_SPLIT_CONTIGUOUS;
        s.in_class = mx_uc_numeric;
        return mx_pretok_add(pt, s, err);
    }
    if (mx_json_str_eq(type, "Punctuation")) {
        s.in_class = mx_uc_punct;
        MX_TRY(read_behavior(v, MX_SPLIT_ISOLATED, &s.behavior, err));
        return mx_pretok_add(pt, s, err);
    }
    if (mx_json_str_eq(type, "CharDelimiterSplit")) {
        s.kind = MX_PRE_LITERAL;
        s.behavior = MX_SPLIT_REMOVED;
        MX_TRY(
            read_char(v, "delimiter", NULL, "pre_tokenizer CharDelimiterSplit", a, &s.lit, &s.lit_len, err));
        return mx_pretok_add(pt, s, err);
    }
    if (mx_json_str_eq(type, "FixedLength")) {
        int64_t n = mx_json_int(v, "length", 5, &bad);
        if (bad || n < 1)
            return mx_fail(err, MX_EINVAL, "pre_tokenizer FixedLength: \"length\" must be at least 1");
        s.kind = MX_PRE_FIXED_LENGTH;
        s.count = (size_t)n;
        return mx_pretok_add(pt, s, err);
    }
    return mx_fail(err, MX_UNSUPPORTED, "pre_tokenizer: the type \"%.*s\" is not supported",
                   (int)(type->u.s.len > 80 ? 80 : type->u.s.len), type->u.s.p);
}

mx_status mx_pretok_read(mx_pretok *pt, mx_arena *a, const mx_json *v, mx_err *err) {
    return !v || v->type == MX_JSON_NULL ? MX_OK : read_one(pt, a, v, 0, err);
}
