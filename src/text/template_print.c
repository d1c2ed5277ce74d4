/* template_print.c - text of values: str(), repr(), JSON, HTML escapes.
 *
 * Everything is written at the end of the output; tpl_take() cuts the tail off again as a string. */
#include "template_int.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void tpl_out(tpl_run *r, const char *p, size_t n) {
    tpl_step(r, n >> 6);
    mx_str_add(&r->out, p, n);
    if (r->out.oom)
        tpl_fail(&r->c, MX_ELIMIT, "the template's output is longer than %d MB", TPL_MAX_OUTPUT >> 20);
}

void tpl_outz(tpl_run *r, const char *z) { tpl_out(r, z, strlen(z)); }

void tpl_out_cp(tpl_run *r, uint32_t cp) {
    char buf[4];
    tpl_out(r, buf, mx_utf8_encode(cp, buf));
}

void tpl_out_pad(tpl_run *r, uint32_t cp, int64_t n) {
    if (n > TPL_MAX_OUTPUT)
        tpl_fail(&r->c, MX_ELIMIT, "the template's output is longer than %d MB", TPL_MAX_OUTPUT >> 20);
    if (n > 0) tpl_step(r, (uint64_t)n >> 3);
    for (; n > 0; n--) tpl_out_cp(r, cp);
}

tpl_val tpl_take(tpl_run *r, size_t mark) {
    tpl_val v = r->out.p ? tpl_mkstr(r, r->out.p + mark, r->out.len - mark) : tpl_mkstr(r, "", 0);
    r->out.len = mark;
    return v;
}

tpl_val tpl_concat(tpl_run *r, tpl_str *a, const char *p, size_t len) {
    enum { SMALL = 256 }; // below, a copy is cheaper than a buffer
    tpl_buf *b = a->buf;
    tpl_step(r, len >> 6);
    if (!b || a->p + a->len != b->p + b->used || b->cap - b->used < len) {
        size_t n = a->len + len;
        tpl_step(r, a->len >> 6);
        b = n < SMALL ? NULL : NEW(r, tpl_buf);
        size_t cap = b ? n * 2 : n + 1;
        char *copy = tpl_alloc(&r->c, cap, 1);
        if (a->len) memcpy(copy, a->p, a->len);
        if (b) *b = (tpl_buf){.p = copy, .used = a->len, .cap = cap};
        tpl_str *s = NEW(r, tpl_str);
        *s = (tpl_str){.p = copy, .len = a->len, .n_cp = a->n_cp, .buf = b, .id = UINT32_MAX};
        a = s;
    }
    if (len) memcpy((char *)a->p + a->len, p, len);
    if (b) b->used += len;
    tpl_str *s = NEW(r, tpl_str);
    *s = (tpl_str){.p = a->p, .len = a->len + len, .n_cp = SIZE_MAX, .buf = b, .id = UINT32_MAX};
    return (tpl_val){.t = T_STR, .u.s = s};
}

void tpl_put_real(tpl_run *r, double d) {
    char buf[40], digits[24];
    if (isnan(d) || isinf(d)) {
        tpl_outz(r, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    for (int prec = 0; prec <= 17; prec++) { // the shortest that reads back the same
        snprintf(buf, sizeof buf, "%.*e", prec, d);
        if (strtod(buf, NULL) == d) break;
    }
    char *e = strchr(buf, 'e'), *p = buf;
    int exp = atoi(e + 1), n = 0;
    if (*p == '-') tpl_out(r, p++, 1);
    for (; p < e; p++) {
        if (*p != '.') digits[n++] = *p;
    }
    if (exp < -4 || exp >= 16) {
        tpl_out(r, digits, 1);
        if (n > 1) {
            tpl_outz(r, ".");
            tpl_out(r, digits + 1, (size_t)n - 1);
        }
        snprintf(buf, sizeof buf, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        tpl_outz(r, buf);
    } else if (exp < 0) {
        tpl_out(r, "0.0000", (size_t)(1 - exp));
        tpl_out(r, digits, (size_t)n);
    } else {
        int whole = exp + 1;
        tpl_out(r, digits, (size_t)(n < whole ? n : whole));
        tpl_out_pad(r, '0', whole - n);
        tpl_outz(r, ".");
        if (n > whole) {
            tpl_out(r, digits + whole, (size_t)(n - whole));
        } else {
            tpl_outz(r, "0");
        }
    }
}

static void put_int(tpl_run *r, int64_t i) {
    char buf[24];
    tpl_out(r, buf, (size_t)snprintf(buf, sizeof buf, "%lld", (long long)i));
}

static void repr_str(tpl_run *r, const tpl_str *s) {
    bool single = s->len && memchr(s->p, '\'', s->len), dbl = s->len && memchr(s->p, '"', s->len);
    char quote = single && !dbl ? '"' : '\'';
    tpl_out(r, &quote, 1);
    size_t used, plain = 0;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        const char *esc = cp == '\n'   ? "\\n"
                          : cp == '\r' ? "\\r"
                          : cp == '\t' ? "\\t"
                          : cp == '\\' ? "\\\\"
                                       : NULL;
        char buf[16];
        if (cp == quote) {
            esc = quote == '\'' ? "\\'" : "\\\"";
        } else if (!esc && !tpl_is_printable(cp)) {
            snprintf(buf, sizeof buf,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
            esc = buf;
        }
        if (!esc) continue;
        tpl_out(r, s->p + plain, at - plain);
        tpl_outz(r, esc);
        plain = at + used;
    }
    tpl_out(r, s->p + plain, s->len - plain);
    tpl_out(r, &quote, 1);
}

static void repr_items(tpl_run *r, tpl_val v, const char *open, const char *close) {
    tpl_iter *it = tpl_iterate(r, v);
    tpl_val item;
    tpl_outz(r, open);
    for (bool first = true; tpl_next(r, it, &item); first = false) {
        if (!first) tpl_outz(r, ", ");
        tpl_put_repr(r, item);
    }
    tpl_outz(r, close);
}

static void repr_dict(tpl_run *r, tpl_dict *d) {
    tpl_dict_of(r, d);
    tpl_outz(r, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) tpl_outz(r, ", ");
        tpl_put_repr(r, d->e[i].key);
        tpl_outz(r, ": ");
        tpl_put_repr(r, d->e[i].val);
    }
    tpl_outz(r, "}");
}

void tpl_put_repr(tpl_run *r, tpl_val v) {
    int64_t n;
    tpl_step(r, 1);
    tpl_check_stack(&r->c);
    switch (v.t) {
    case T_MISSING:
    case T_UNDEF: tpl_outz(r, "Undefined"); return;
    case T_NONE: tpl_outz(r, "None"); return;
    case T_BOOL: tpl_outz(r, v.u.b ? "True" : "False"); return;
    case T_INT: put_int(r, v.u.i); return;
    case T_REAL: tpl_put_real(r, v.u.d); return;
    case T_STR:
        if (v.u.s->safe) tpl_outz(r, "Markup(");
        repr_str(r, v.u.s);
        if (v.u.s->safe) tpl_outz(r, ")");
        return;
    case T_LIST: repr_items(r, v, "[", "]"); return;
    case T_TUPLE: repr_items(r, v, "(", v.u.l->n == 1 ? ",)" : ")"); return;
    case T_DICT: repr_dict(r, v.u.m); return;
    case T_RANGE:
        tpl_outz(r, "range(");
        put_int(r, v.u.r->start);
        tpl_outz(r, ", ");
        put_int(r, v.u.r->stop);
        if (v.u.r->step != 1) {
            tpl_outz(r, ", ");
            put_int(r, v.u.r->step);
        }
        tpl_outz(r, ")");
        return;
    case T_VIEW:
        tpl_outz(r, tpl_type_name(v));
        repr_items(r, v, "([", "])");
        return;
    case T_NS:
        tpl_outz(r, "<Namespace ");
        repr_dict(r, v.u.m);
        tpl_outz(r, ">");
        return;
    case T_MACRO:
        tpl_outz(r, "<Macro ");
        if (v.u.macro->node->kind == N_MACRO) {
            repr_str(r, v.u.macro->node->name);
        } else {
            tpl_outz(r, "anonymous");
        }
        tpl_outz(r, ">");
        return;
    case T_LOOP:
        tpl_outz(r, "<LoopContext ");
        put_int(r, v.u.loop->index0 + 1);
        tpl_outz(r, "/");
        tpl_length(r, v, &n);
        put_int(r, n);
        tpl_outz(r, ">");
        return;
    default: // Python prints an address
        tpl_outz(r, "<");
        tpl_outz(r, tpl_type_name(v));
        tpl_outz(r, " object>");
    }
}

void tpl_put_str(tpl_run *r, tpl_val v) {
    if (v.t == T_STR) {
        tpl_out(r, v.u.s->p, v.u.s->len);
    } else if (v.t != T_UNDEF && v.t != T_MISSING) {
        tpl_put_repr(r, v);
    }
}

tpl_str *tpl_str_of(tpl_run *r, tpl_val v) {
    if (v.t == T_STR) return v.u.s;
    size_t mark = r->out.len;
    tpl_put_str(r, v);
    return tpl_take(r, mark).u.s;
}

void tpl_put_escaped(tpl_run *r, tpl_val v) {
    tpl_str *s = tpl_str_of(r, v);
    if (s->safe) {
        tpl_out(r, s->p, s->len);
        return;
    }
    size_t plain = 0;
    for (size_t i = 0; i < s->len; i++) {
        char c = s->p[i];
        const char *esc = c == '&'    ? "&amp;"
                          : c == '<'  ? "&lt;"
                          : c == '>'  ? "&gt;"
                          : c == '\'' ? "&#39;"
                          : c == '"'  ? "&#34;"
                                      : NULL;
        if (!esc) continue;
        tpl_out(r, s->p + plain, i - plain);
        tpl_outz(r, esc);
        plain = i + 1;
    }
    tpl_out(r, s->p + plain, s->len - plain);
}

/* ---- JSON, as json.dumps writes it ---------------------------------------------------------------------------- */

typedef struct {
    tpl_run *r;
    bool ascii, sort, lines;
    tpl_str *indent, *item_sep, *key_sep;
} dumper;

static void json_str(dumper *d, const tpl_str *s) {
    tpl_run *r = d->r;
    size_t used, plain = 0;
    tpl_outz(r, "\"");
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = (unsigned char)s->p[at];
        used = 1;
        if (cp >= 0x80) cp = tpl_cp_at(s, at, &used);
        const char *esc = NULL;
        char buf[16];
        switch (cp) {
        case '"': esc = "\\\""; break;
        case '\\': esc = "\\\\"; break;
        case '\n': esc = "\\n"; break;
        case '\r': esc = "\\r"; break;
        case '\t': esc = "\\t"; break;
        case '\b': esc = "\\b"; break;
        case '\f': esc = "\\f"; break;
        default:
            if (cp < 0x20 || (d->ascii && cp >= 0x7F)) {
                unsigned u = (unsigned)cp;
                if (u >= 0x10000) {
                    u -= 0x10000;
                    snprintf(buf, sizeof buf, "\\u%04x\\u%04x", 0xD800 + (u >> 10), 0xDC00 + (u & 0x3FF));
                } else {
                    snprintf(buf, sizeof buf, "\\u%04x", u);
                }
                esc = buf;
            }
        }
        if (!esc) continue;
        tpl_out(r, s->p + plain, at - plain);
        tpl_outz(r, esc);
        plain = at + used;
    }
    tpl_out(r, s->p + plain, s->len - plain);
    tpl_outz(r, "\"");
}

static void json_line(dumper *d, int depth) {
    if (!d->lines) return;
    tpl_outz(d->r, "\n");
    for (int i = 0; i < depth; i++) tpl_out(d->r, d->indent->p, d->indent->len);
}

static void json_real(tpl_run *r, double d) {
    if (isnan(d) || isinf(d)) {
        tpl_outz(r, isnan(d) ? "NaN" : d < 0 ? "-Infinity" : "Infinity");
    } else {
        tpl_put_real(r, d);
    }
}

static void json_key(dumper *d, tpl_val key) {
    tpl_run *r = d->r;
    if (key.t == T_STR) {
        json_str(d, key.u.s);
        return;
    }
    tpl_outz(r, "\"");
    if (key.t == T_BOOL) {
        tpl_outz(r, key.u.b ? "true" : "false");
    } else if (key.t == T_NONE) {
        tpl_outz(r, "null");
    } else if (key.t == T_INT) {
        put_int(r, key.u.i);
    } else if (key.t == T_REAL) {
        json_real(r, key.u.d);
    } else {
        FAIL(r, "keys must be str, int, float, bool or None, not %s", tpl_type_name(key));
    }
    tpl_outz(r, "\"");
}

static void json_dump(dumper *d, tpl_val v, int depth);

static void json_dict(dumper *d, tpl_dict *m, int depth) {
    tpl_run *r = d->r;
    tpl_dict_of(r, m);
    tpl_val *keys = NEW_ARRAY(r, tpl_val, m->n), *vals = NEW_ARRAY(r, tpl_val, m->n);
    for (size_t i = 0; i < m->n; i++) {
        keys[i] = m->e[i].key;
        vals[i] = m->e[i].val;
    }
    if (d->sort) tpl_sort(r, keys, vals, m->n, false);
    tpl_outz(r, "{");
    for (size_t i = 0; i < m->n; i++) {
        if (i) tpl_out(r, d->item_sep->p, d->item_sep->len);
        json_line(d, depth + 1);
        json_key(d, keys[i]);
        tpl_out(r, d->key_sep->p, d->key_sep->len);
        json_dump(d, vals[i], depth + 1);
    }
    if (m->n) json_line(d, depth);
    tpl_outz(r, "}");
}

static void json_dump(dumper *d, tpl_val v, int depth) {
    tpl_run *r = d->r;
    tpl_step(r, 1);
    tpl_check_stack(&r->c);
    switch (v.t) {
    case T_NONE: tpl_outz(r, "null"); return;
    case T_BOOL: tpl_outz(r, v.u.b ? "true" : "false"); return;
    case T_INT: put_int(r, v.u.i); return;
    case T_REAL: json_real(r, v.u.d); return;
    case T_STR: json_str(d, v.u.s); return;
    case T_DICT: json_dict(d, v.u.m, depth); return;
    case T_LIST:
    case T_TUPLE: break;
    default: FAIL(r, "Object of type %s is not JSON serializable", tpl_type_name(v));
    }
    tpl_list *l = tpl_items(r, v);
    tpl_outz(r, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i) tpl_out(r, d->item_sep->p, d->item_sep->len);
        json_line(d, depth + 1);
        json_dump(d, l->v[i], depth + 1);
    }
    if (l->n) json_line(d, depth);
    tpl_outz(r, "]");
}

/* tojson(ensure_ascii, indent, separators, sort_keys) of transformers; nothing is escaped for HTML. */
tpl_val tpl_tojson(tpl_run *r, tpl_val v, tpl_val *a, const tpl_args *args) {
    (void)args;
    int64_t n;
    dumper d = {.r = r, .ascii = tpl_opt_bool(r, a[0], false), .sort = tpl_opt_bool(r, a[3], false)};
    if (a[1].t == T_STR) {
        d.lines = true;
        d.indent = a[1].u.s;
    } else if (tpl_is_int(a[1], &n)) {
        if (n > 1000) tpl_fail(&r->c, MX_ELIMIT, "tojson: an indent of %lld is too large", (long long)n);
        size_t mark = r->out.len;
        d.lines = true;
        tpl_out_pad(r, ' ', n);
        d.indent = tpl_take(r, mark).u.s;
    } else if (a[1].t != T_NONE && a[1].t != T_MISSING) {
        FAIL(r, "tojson: indent must be an integer or a string, not %s", tpl_type_name(a[1]));
    }
    d.item_sep = tpl_strz(r, d.lines ? "," : ", ").u.s;
    d.key_sep = tpl_strz(r, ": ").u.s;
    if (a[2].t != T_NONE && a[2].t != T_MISSING) {
        tpl_val seps = tpl_to_list(r, a[2]);
        if (seps.u.l->n != 2) FAIL(r, "tojson: separators must be a pair of strings");
        d.item_sep = tpl_want_str(r, seps.u.l->v[0], "tojson: separator");
        d.key_sep = tpl_want_str(r, seps.u.l->v[1], "tojson: separator");
    }
    size_t mark = r->out.len;
    json_dump(&d, v, 0);
    return tpl_take(r, mark);
}
