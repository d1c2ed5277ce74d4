#include "base/json.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *text, *p, *end;
    mx_arena *a;
    mx_json *slab; // nodes are cut from slabs: one arena call for many
    size_t slab_left;
    mx_err *err;
} parser;

static mx_status fail_at(parser *ps, const char *at, const char *what) {
    size_t line = 1, col = 1;
    for (const char *p = ps->text; p < at; p++) {
        col++;
        if (*p == '\n') line++, col = 1;
    }
    return mx_fail(ps->err, MX_EINVAL, "JSON line %zu column %zu: %s", line, col, what);
}

static mx_status no_memory(parser *ps) {
    return mx_fail(ps->err, MX_ENOMEM, "no memory for a JSON document");
}

static mx_json *new_node(parser *ps, mx_json_type type) {
    if (ps->slab_left == 0) {
        size_t n = (size_t)(ps->end - ps->p) / 8 + 4; // a value takes 8 bytes of text or more, as a rule
        if (n > 4096) n = 4096;
        ps->slab = mx_arena_array(ps->a, n, sizeof *ps->slab);
        if (!ps->slab) return NULL;
        ps->slab_left = n;
    }
    ps->slab_left--;
    mx_json *v = ps->slab++;
    v->type = type;
    return v;
}

static void skip_space(parser *ps) {
    const char *p = ps->p, *end = ps->end;
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    ps->p = p;
}

static int hex4(const char *p) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* \uXXXX at ps->p (after the u); a pair of surrogates is one character, a lone one becomes U+FFFD. */
static mx_status unicode_escape(parser *ps, char **out) {
    int u = ps->end - ps->p >= 4 ? hex4(ps->p) : -1;
    if (u < 0) return fail_at(ps, ps->p, "\\u needs four hexadecimal digits");
    ps->p += 4;
    uint32_t cp = (uint32_t)u;
    if (cp >= 0xD800 && cp < 0xE000) {
        int lo = -1;
        if (cp < 0xDC00 && ps->end - ps->p >= 6 && ps->p[0] == '\\' && ps->p[1] == 'u') lo = hex4(ps->p + 2);
        if (lo >= 0xDC00 && lo < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)lo - 0xDC00);
            ps->p += 6;
        } else {
            cp = 0xFFFD;
        }
    }
    *out += mx_utf8_encode(cp, *out);
    return MX_OK;
}

/* The rest of a string that holds an escape: unescape into the arena. start is after the opening quote. */
static mx_status string_slow(parser *ps, const char *start, const char **out, size_t *len) {
    const char *q = ps->p;
    while (q < ps->end && *q != '"') q += *q == '\\' && q + 1 < ps->end ? 2 : 1;
    char *buf =
        mx_arena_alloc(ps->a, (size_t)(q - start) + 4); // an escape is never shorter than what it means
    if (!buf) return no_memory(ps);
    char *o = buf;
    ps->p = start;
    for (;;) {
        if (ps->p >= ps->end) return fail_at(ps, start - 1, "this string does not end");
        unsigned char c = (unsigned char)*ps->p++;
        if (c == '"') break;
        if (c < 0x20) return fail_at(ps, ps->p - 1, "control character in a string");
        if (c != '\\') {
            *o++ = (char)c;
            continue;
        }
        if (ps->p >= ps->end) return fail_at(ps, start - 1, "this string does not end");
        switch (*ps->p++) {
        case '"': *o++ = '"'; break;
        case '\\': *o++ = '\\'; break;
        case '/': *o++ = '/'; break;
        case 'b': *o++ = '\b'; break;
        case 'f': *o++ = '\f'; break;
        case 'n': *o++ = '\n'; break;
        case 'r': *o++ = '\r'; break;
        case 't': *o++ = '\t'; break;
        case 'u': MX_TRY(unicode_escape(ps, &o)); break;
        default: return fail_at(ps, ps->p - 2, "unknown escape in a string");
        }
    }
    *out = buf;
    *len = (size_t)(o - buf);
    return MX_OK;
}

/* A string at ps->p, which is after the opening quote. */
static mx_status parse_string(parser *ps, const char **out, size_t *len) {
    const char *start = ps->p, *p = start, *end = ps->end;
    bool ascii = true;
    for (;; p++) {
        if (p >= end) return fail_at(ps, start - 1, "this string does not end");
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\') break;
        if (c < 0x20) return fail_at(ps, p, "control character in a string");
        if (c >= 0x80) ascii = false;
    }
    ps->p = p;
    if (*p == '\\') {
        MX_TRY(string_slow(ps, start, out, len));
    } else {
        ps->p = p + 1;
        *out = start;
        *len = (size_t)(p - start);
        if (ascii) return MX_OK;
    }
    if (mx_utf8_valid(*out, *len) != *len) return fail_at(ps, start, "this string is not valid UTF-8");
    return MX_OK;
}

static bool word(parser *ps, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(ps->end - ps->p) < n || memcmp(ps->p, w, n)) return false;
    ps->p += n;
    return true;
}

static mx_status parse_number(parser *ps, mx_json *v) {
    const char *start = ps->p, *p = start, *end = ps->end;
    bool neg = p < end && *p == '-', real = false, big = false;
    if (neg) p++;
    if (p < end && *p == 'I') {
        ps->p = p;
        if (!word(ps, "Infinity")) return fail_at(ps, start, "not a JSON value");
        v->type = MX_JSON_REAL;
        v->u.d = neg ? -INFINITY : INFINITY;
        return MX_OK;
    }
    const char *digits = p;
    uint64_t n = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        big |= __builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n);
    }
    if (p == digits) return fail_at(ps, start, "not a JSON value");
    if (*digits == '0' && p - digits > 1) return fail_at(ps, start, "a number may not start with 0");
    if (p < end && *p == '.') {
        const char *frac = ++p;
        while (p < end && *p >= '0' && *p <= '9') p++;
        if (p == frac) return fail_at(ps, start, "digits must follow the decimal point");
        real = true;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        const char *exp = p;
        while (p < end && *p >= '0' && *p <= '9') p++;
        if (p == exp) return fail_at(ps, start, "digits must follow the exponent");
        real = true;
    }
    ps->p = p;
    if (!real && !big && n <= (uint64_t)INT64_MAX + neg) {
        v->type = MX_JSON_INT;
        v->u.i = neg ? (int64_t)(0 - n) : (int64_t)n;
        return MX_OK;
    }
    char small[64], *z = small; // strtod needs a terminator, which the text may lack
    size_t len = (size_t)(p - start);
    if (len >= sizeof small && !(z = mx_arena_alloc(ps->a, len + 1))) return no_memory(ps);
    memcpy(z, start, len);
    z[len] = 0;
    v->type = MX_JSON_REAL;
    v->u.d = strtod(z, NULL);
    return MX_OK;
}

static mx_status parse_scalar(parser *ps, mx_json *v) {
    switch (*ps->p) {
    case '"':
        ps->p++;
        v->type = MX_JSON_STRING;
        return parse_string(ps, &v->u.s.p, &v->u.s.len);
    case 't':
        v->type = MX_JSON_BOOL;
        v->u.b = true;
        if (word(ps, "true")) return MX_OK;
        break;
    case 'f':
        v->type = MX_JSON_BOOL;
        if (word(ps, "false")) return MX_OK;
        break;
    case 'n':
        if (word(ps, "null")) return MX_OK;
        break;
    case 'N':
        v->type = MX_JSON_REAL;
        v->u.d = NAN;
        if (word(ps, "NaN")) return MX_OK;
        break;
    default: return parse_number(ps, v);
    }
    return fail_at(ps, ps->p, "not a JSON value");
}

/* The containers that are open, innermost last: the parser's own stack, so that input cannot grow ours. */
typedef struct {
    mx_json *node, *last;
} level;

static mx_status parse_tree(parser *ps, mx_json **out) {
    level stack[MX_JSON_MAX_DEPTH];
    int depth = 0;
    for (;;) {
        skip_space(ps);
        level *in = depth ? &stack[depth - 1] : NULL;
        const char *key = NULL;
        size_t key_len = 0;
        if (ps->p >= ps->end) return fail_at(ps, ps->p, "the text ends early");
        if (in && in->node->type == MX_JSON_OBJECT) {
            if (*ps->p++ != '"') return fail_at(ps, ps->p - 1, "a key in double quotes must stand here");
            MX_TRY(parse_string(ps, &key, &key_len));
            if (key_len > UINT32_MAX) return fail_at(ps, ps->p, "this key is too long");
            skip_space(ps);
            if (ps->p >= ps->end || *ps->p++ != ':') return fail_at(ps, ps->p, "a colon must follow the key");
            skip_space(ps);
            if (ps->p >= ps->end) return fail_at(ps, ps->p, "the text ends early");
        }
        mx_json *v = new_node(ps, MX_JSON_NULL);
        if (!v) return no_memory(ps);
        v->key = key;
        v->key_len = (uint32_t)key_len;
        if (!in) {
            *out = v;
        } else {
            if (in->last)
                in->last->next = v;
            else
                in->node->u.c.first = v;
            in->last = v;
            in->node->u.c.n++;
        }
        bool opened = *ps->p == '{' || *ps->p == '[';
        if (opened) {
            if (depth == MX_JSON_MAX_DEPTH) {
                fail_at(ps, ps->p, "nested too deeply");
                return ps->err ? (ps->err->code = MX_ELIMIT) : MX_ELIMIT;
            }
            v->type = *ps->p++ == '{' ? MX_JSON_OBJECT : MX_JSON_ARRAY;
            stack[depth++] = (level){.node = v};
        } else {
            MX_TRY(parse_scalar(ps, v));
        }
        for (;;) { // close what ends here, up to the comma before the next value
            if (depth == 0) return MX_OK;
            skip_space(ps);
            if (ps->p >= ps->end) return fail_at(ps, ps->p, "the text ends early");
            mx_json *node = stack[depth - 1].node;
            char close = node->type == MX_JSON_OBJECT ? '}' : ']';
            if (*ps->p == close) {
                ps->p++;
                depth--;
                opened = false;
                continue;
            }
            if (opened) break; // just opened and not empty: its first value follows
            if (*ps->p != ',') {
                return fail_at(ps, ps->p,
                               close == '}' ? "a comma or } must stand here"
                                            : "a comma or ] must stand here");
            }
            ps->p++;
            skip_space(ps);
            if (ps->p < ps->end && *ps->p == close)
                return fail_at(ps, ps->p, "a value must follow the comma");
            break;
        }
    }
}

mx_status mx_json_parse(mx_json **out, mx_arena *a, const char *text, size_t len, mx_err *err) {
    parser ps = {.text = text, .p = text, .end = text + len, .a = a, .err = err};
    if (len >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) ps.p += 3;
    mx_json *root = NULL;
    MX_TRY(parse_tree(&ps, &root));
    skip_space(&ps);
    if (ps.p != ps.end) return fail_at(&ps, ps.p, "text after the end of the document");
    *out = root;
    return MX_OK;
}

/* ---- access ------------------------------------------------------------------------------------------- */

static bool key_is(const mx_json *v, const char *key, size_t n) {
    return v->key_len == n && !memcmp(v->key, key, n);
}

const mx_json *mx_json_getn(const mx_json *obj, const char *key, size_t n) {
    if (!obj || obj->type != MX_JSON_OBJECT) return NULL;
    const mx_json *found = NULL;
    for (const mx_json *it = obj->u.c.first; it; it = it->next) {
        if (key_is(it, key, n)) found = it;
    }
    return found;
}

const mx_json *mx_json_get(const mx_json *obj, const char *key) {
    return mx_json_getn(obj, key, strlen(key));
}

/* The member if it is there and not null. */
static const mx_json *present(const mx_json *obj, const char *key) {
    const mx_json *v = mx_json_get(obj, key);
    return v && v->type != MX_JSON_NULL ? v : NULL;
}

static void mark_bad(const char **bad, const char *key) {
    if (bad && !*bad) *bad = key;
}

int64_t mx_json_int(const mx_json *obj, const char *key, int64_t dflt, const char **bad) {
    const mx_json *v = present(obj, key);
    if (!v) return dflt;
    if (v->type == MX_JSON_INT) return v->u.i;
    if (v->type == MX_JSON_REAL && fabs(v->u.d) < 0x1p53 && v->u.d == trunc(v->u.d)) return (int64_t)v->u.d;
    mark_bad(bad, key);
    return dflt;
}

double mx_json_num(const mx_json *obj, const char *key, double dflt, const char **bad) {
    const mx_json *v = present(obj, key);
    if (!v) return dflt;
    if (mx_json_is_num(v)) return mx_json_as_num(v);
    mark_bad(bad, key);
    return dflt;
}

bool mx_json_bool(const mx_json *obj, const char *key, bool dflt, const char **bad) {
    const mx_json *v = present(obj, key);
    if (!v) return dflt;
    if (v->type == MX_JSON_BOOL) return v->u.b;
    mark_bad(bad, key);
    return dflt;
}

const char *mx_json_str(const mx_json *obj, const char *key, const char *dflt, mx_arena *a,
                        const char **bad) {
    const mx_json *v = present(obj, key);
    if (!v) return dflt;
    if (v->type == MX_JSON_STRING && !memchr(v->u.s.p, 0, v->u.s.len)) {
        return mx_arena_strndup(a, v->u.s.p, v->u.s.len);
    }
    mark_bad(bad, key);
    return dflt;
}

bool mx_json_is(const mx_json *v, mx_json_type type) { return v && v->type == type; }
bool mx_json_is_num(const mx_json *v) { return v && (v->type == MX_JSON_INT || v->type == MX_JSON_REAL); }
double mx_json_as_num(const mx_json *v) { return v->type == MX_JSON_INT ? (double)v->u.i : v->u.d; }

bool mx_json_str_eq(const mx_json *v, const char *z) {
    return v && v->type == MX_JSON_STRING && v->u.s.len == strlen(z) && !memcmp(v->u.s.p, z, v->u.s.len);
}

const char *mx_json_type_name(const mx_json *v) {
    static const char *const names[] = {"null",     "a boolean", "an integer", "a number",
                                        "a string", "an array",  "an object"};
    return v ? names[v->type] : "nothing";
}

static bool is_container(const mx_json *v) {
    return v && (v->type == MX_JSON_ARRAY || v->type == MX_JSON_OBJECT);
}

const mx_json *mx_json_first(const mx_json *v) { return is_container(v) ? v->u.c.first : NULL; }
size_t mx_json_count(const mx_json *v) { return is_container(v) ? v->u.c.n : 0; }

/* ---- writing ------------------------------------------------------------------------------------------ */

void mx_json_put_string(mx_str *s, const char *p, size_t len) {
    mx_str_putc(s, '"');
    for (size_t i = 0, used; i < len; i += used) {
        unsigned char c = (unsigned char)p[i];
        used = 1;
        if (c == '"' || c == '\\') {
            char esc[2] = {'\\', (char)c};
            mx_str_add(s, esc, 2);
        } else if (c == '\n') {
            mx_str_add(s, "\\n", 2);
        } else if (c == '\t') {
            mx_str_add(s, "\\t", 2);
        } else if (c == '\r') {
            mx_str_add(s, "\\r", 2);
        } else if (c < 0x20 || c == 0x7F) {
            mx_str_printf(s, "\\u%04x", c);
        } else if (mx_utf8_decode(p + i, len - i, &used) < 0) {
            mx_str_add(s, "\xEF\xBF\xBD", 3);
        } else {
            mx_str_add(s, p + i, used);
        }
    }
    mx_str_putc(s, '"');
}

void mx_json_put_num(mx_str *s, double v) {
    char buf[40];
    if (!isfinite(v)) {
        mx_str_puts(s, "null");
        return;
    }
    if (v == trunc(v) && fabs(v) < 1e15) {
        mx_str_printf(s, "%.0f", v == 0 ? 0.0 : v); // no minus zero
        return;
    }
    for (int digits = 1; digits <= 17; digits++) { // the shortest that reads back the same
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    mx_str_puts(s, buf);
}

static void new_line(mx_str *s, int indent, int depth) {
    if (!indent) return;
    mx_str_putc(s, '\n');
    for (int i = 0; i < indent * depth; i++) mx_str_putc(s, ' ');
}

/* Depth is bounded by the parser's limit, so recursion is safe here. */
static void put(mx_str *s, const mx_json *v, int indent, int depth) {
    switch (v->type) {
    case MX_JSON_NULL: mx_str_puts(s, "null"); return;
    case MX_JSON_BOOL: mx_str_puts(s, v->u.b ? "true" : "false"); return;
    case MX_JSON_INT: mx_str_printf(s, "%lld", (long long)v->u.i); return;
    case MX_JSON_REAL: mx_json_put_num(s, v->u.d); return;
    case MX_JSON_STRING: mx_json_put_string(s, v->u.s.p, v->u.s.len); return;
    case MX_JSON_ARRAY:
    case MX_JSON_OBJECT: break;
    }
    bool object = v->type == MX_JSON_OBJECT;
    mx_str_putc(s, object ? '{' : '[');
    for (const mx_json *it = v->u.c.first; it; it = it->next) {
        if (it != v->u.c.first) mx_str_puts(s, indent ? "," : ", ");
        new_line(s, indent, depth + 1);
        if (object) {
            mx_json_put_string(s, it->key, it->key_len);
            mx_str_puts(s, ": ");
        }
        put(s, it, indent, depth + 1);
    }
    if (v->u.c.first) new_line(s, indent, depth);
    mx_str_putc(s, object ? '}' : ']');
}

void mx_json_put(mx_str *s, const mx_json *v, int indent) { put(s, v, indent, 0); }
