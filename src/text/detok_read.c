/* detok_read.c - "decoder" of a tokenizer.json as steps. */
#include "text/detok.h"
#include "base/utf8.h"
#include "text/normalize.h"
#include <string.h>

enum { MAX_NEST = 32 };

mx_status mx_decoder_add(mx_decoder *d, mx_dec_step step, mx_err *err) {
    if (d->n == MX_DEC_MAX) {
        mx_regex_free(step.re);
        return mx_fail(err, MX_ELIMIT, "decoder: more than %d steps", MX_DEC_MAX);
    }
    d->step[d->n++] = step;
    return MX_OK;
}

void mx_decoder_free(mx_decoder *d) {
    for (size_t i = 0; i < d->n; i++) mx_regex_free(d->step[i].re);
    d->n = 0;
}

static mx_status read_text(const mx_json *v, const char *key, const char *dflt, const char *where,
                           mx_arena *a, const char **out, size_t *len, mx_err *err) {
    const mx_json *s = mx_json_get(v, key);
    const char *p = dflt;
    size_t n = dflt ? strlen(dflt) : 0;
    if (mx_json_is(s, MX_JSON_STRING))
        p = s->u.s.p, n = s->u.s.len;
    else if (!dflt || s)
        return mx_fail(err, MX_EINVAL, "%s: \"%s\" must be a string", where, key);
    *out = mx_arena_strndup(a, p, n);
    *len = n;
    return *out ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for the decoder");
}

static bool one_char(const char *p, size_t len) {
    size_t used = 0;
    return len && mx_utf8_decode(p, len, &used) >= 0 && used == len;
}

static mx_status read_strip(mx_decoder *d, mx_arena *a, const mx_json *v, mx_err *err) {
    const char *bad = NULL;
    mx_dec_step s = {.kind = MX_DEC_STRIP};
    MX_TRY(read_text(v, "content", NULL, "decoder Strip", a, &s.content, &s.content_len, err));
    int64_t start = mx_json_int(v, "start", 0, &bad), stop = mx_json_int(v, "stop", 0, &bad);
    if (bad || start < 0 || stop < 0 || !one_char(s.content, s.content_len)) {
        return mx_fail(err, MX_EINVAL,
                       "decoder Strip: needs one character as \"content\" and counts \"start\", \"stop\"");
    }
    s.start = (size_t)start;
    s.stop = (size_t)stop;
    return mx_decoder_add(d, s, err);
}

static mx_status read_metaspace(mx_decoder *d, mx_arena *a, const mx_json *v, mx_err *err) {
    const char *bad = NULL;
    mx_dec_step s = {.kind = MX_DEC_METASPACE};
    MX_TRY(
        read_text(v, "replacement", "\xE2\x96\x81", "decoder Metaspace", a, &s.pattern, &s.pattern_len, err));
    bool space = mx_json_bool(v, "add_prefix_space", true, &bad);
    const char *scheme = mx_json_str(v, "prepend_scheme", space ? "always" : "never", a, &bad);
    if (!scheme && !bad) return mx_fail(err, MX_ENOMEM, "no memory for the decoder");
    if (bad || !one_char(s.pattern, s.pattern_len))
        return mx_fail(err, MX_EINVAL, "decoder Metaspace: \"%s\" is wrong", bad ? bad : "replacement");
    s.drop_first = strcmp(scheme, "never") != 0;
    return mx_decoder_add(d, s, err);
}

static mx_status read_one(mx_decoder *d, mx_arena *a, const mx_json *v, int depth, mx_err *err) {
    const mx_json *type = mx_json_get(v, "type");
    mx_dec_step s = {0};
    if (depth > MAX_NEST) return mx_fail(err, MX_ELIMIT, "decoder: nested too deeply");
    if (!mx_json_is(type, MX_JSON_STRING)) {
        return mx_fail(err, MX_EINVAL, "decoder: an object with a \"type\" must stand here, not %s",
                       mx_json_type_name(v));
    }
    if (mx_json_str_eq(type, "Sequence")) {
        const mx_json *list = mx_json_get(v, "decoders");
        if (!mx_json_is(list, MX_JSON_ARRAY))
            return mx_fail(err, MX_EINVAL, "decoder Sequence: \"decoders\" must be an array");
        for (const mx_json *it = mx_json_first(list); it; it = it->next)
            MX_TRY(read_one(d, a, it, depth + 1, err));
        return MX_OK;
    }
    if (mx_json_str_eq(type, "ByteLevel"))
        return mx_decoder_add(d, (mx_dec_step){.kind = MX_DEC_BYTE_LEVEL}, err);
    if (mx_json_str_eq(type, "ByteFallback"))
        return mx_decoder_add(d, (mx_dec_step){.kind = MX_DEC_BYTE_FALLBACK}, err);
    if (mx_json_str_eq(type, "Fuse")) return mx_decoder_add(d, (mx_dec_step){.kind = MX_DEC_FUSE}, err);
    if (mx_json_str_eq(type, "Strip")) return read_strip(d, a, v, err);
    if (mx_json_str_eq(type, "Metaspace")) return read_metaspace(d, a, v, err);
    if (mx_json_str_eq(type, "BPEDecoder")) {
        s.kind = MX_DEC_SUFFIX;
        MX_TRY(read_text(v, "suffix", "</w>", "decoder BPEDecoder", a, &s.pattern, &s.pattern_len, err));
        if (!s.pattern_len) return mx_fail(err, MX_EINVAL, "decoder BPEDecoder: \"suffix\" is empty");
        return mx_decoder_add(d, s, err);
    }
    if (mx_json_str_eq(type, "Replace")) {
        s.kind = MX_DEC_REPLACE;
        MX_TRY(read_text(v, "content", NULL, "decoder Replace", a, &s.content, &s.content_len, err));
        MX_TRY(mx_pattern_read(mx_json_get(v, "pattern"), "decoder Replace", a, &s.re, &s.pattern,
                               &s.pattern_len, err));
        return mx_decoder_add(d, s, err);
    }
    return mx_fail(err, MX_UNSUPPORTED, "decoder: the type \"%.*s\" is not supported",
                   (int)(type->u.s.len > 80 ? 80 : type->u.s.len), type->u.s.p);
}

mx_status mx_decoder_read(mx_decoder *d, mx_arena *a, const mx_json *v, mx_err *err) {
    if (!v || v->type == MX_JSON_NULL) return mx_decoder_add(d, (mx_dec_step){.kind = MX_DEC_JOIN}, err);
    return read_one(d, a, v, 0, err);
}
