/* template_filter_text.c - filters over text. */
#include "template_int.h"
#include <math.h>
#include <stdio.h>

#define F(fn) static tpl_val fn(tpl_run *r, tpl_val v, tpl_val *a, const tpl_args *args)
#define UNUSED (void)r, (void)v, (void)a, (void)args

static tpl_val as_str(tpl_run *r, tpl_val v) { return (tpl_val){.t = T_STR, .u.s = tpl_str_of(r, v)}; }

/* The method of str(v) with up to three arguments; those that are missing are left out. */
static tpl_val str_method(tpl_run *r, tpl_val v, const char *name, tpl_val *a, size_t n) {
    while (n && a[n - 1].t == T_MISSING) n--;
    tpl_args args = {.pos = a, .n = n};
    return tpl_apply(r, tpl_find_str_method(name, strlen(name)), as_str(r, v), &args);
}

F(f_upper) {
    UNUSED;
    return str_method(r, v, "upper", a, 0);
}
F(f_lower) {
    UNUSED;
    return str_method(r, v, "lower", a, 0);
}
F(f_capitalize) {
    UNUSED;
    return str_method(r, v, "capitalize", a, 0);
}
F(f_trim) {
    UNUSED;
    return str_method(r, v, "strip", a, 1);
}
F(f_center) {
    UNUSED;
    if (a[0].t == T_MISSING) a[0] = tpl_int(80);
    return str_method(r, v, "center", a, 1);
}
F(f_string) {
    UNUSED;
    return as_str(r, v);
}

F(f_replace) {
    UNUSED;
    a[0] = as_str(r, a[0]);
    a[1] = as_str(r, a[1]);
    if (a[2].t == T_NONE) a[2] = tpl_missing();
    return str_method(r, v, "replace", a, 3);
}

F(f_title) { // unlike the method: a word begins after white space or one of -({[<
    UNUSED;
    const tpl_str *s = tpl_str_of(r, v);
    size_t mark = r->out.len, used;
    bool start = true;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        bool sep = tpl_is_space(cp) || (cp > 0 && cp < 0x80 && strchr("-({[<", cp));
        if (start && !sep) {
            tpl_put_upper(r, cp);
        } else {
            tpl_put_lower(r, s, at);
        }
        start = sep;
        tpl_step(r, 1);
    }
    return tpl_take(r, mark);
}

F(f_join) {
    UNUSED;
    tpl_val list = tpl_to_list(r, v);
    const tpl_str *sep = a[0].t == T_MISSING ? NULL : tpl_str_of(r, a[0]);
    bool attr = a[1].t != T_MISSING && a[1].t != T_NONE;
    for (size_t i = 0; attr && i < list.u.l->n; i++)
        list.u.l->v[i] = tpl_attr_path(r, list.u.l->v[i], a[1], tpl_missing());
    size_t mark = r->out.len;
    for (size_t i = 0; i < list.u.l->n; i++) {
        if (i && sep) tpl_out(r, sep->p, sep->len);
        tpl_put_str(r, list.u.l->v[i]);
    }
    return tpl_take(r, mark);
}

F(f_format) {
    UNUSED;
    if (args->n && args->n_kw) FAIL(r, "can't handle positional and keyword arguments at the same time");
    tpl_val arg = tpl_mklist(r, T_TUPLE, args->n);
    if (args->n) memcpy(arg.u.l->v, args->pos, args->n * sizeof *args->pos);
    if (args->n_kw) {
        arg = tpl_mkdict(r);
        for (size_t i = 0; i < args->n_kw; i++) {
            tpl_dict_set(r, arg.u.m, (tpl_val){.t = T_STR, .u.s = args->kw[i].name}, args->kw[i].v);
        }
    }
    return tpl_percent(r, tpl_str_of(r, v), arg);
}

F(f_indent) {
    UNUSED;
    tpl_val s = {.t = T_STR, .u.s = tpl_want_str(r, v, "indent")};
    bool first = tpl_opt_bool(r, a[1], false), blank = tpl_opt_bool(r, a[2], false);
    size_t mark = r->out.len;
    if (a[0].t != T_STR) {
        tpl_out_pad(r, ' ', tpl_opt_int(r, a[0], 4, "indent: width"));
        a[0] = tpl_take(r, mark);
    }
    const tpl_str *by = a[0].u.s;
    s = tpl_concat(r, s.u.s, "\n", 1);
    tpl_val lines = str_method(r, s, "splitlines", a, 0);
    mark = r->out.len;
    for (size_t i = 0; i < lines.u.l->n; i++) {
        const tpl_str *line = lines.u.l->v[i].u.s;
        if (i) tpl_outz(r, "\n");
        if (i ? blank || line->len : first) tpl_out(r, by->p, by->len);
        tpl_out(r, line->p, line->len);
    }
    return tpl_take(r, mark);
}

F(f_truncate) {
    UNUSED;
    tpl_val end = a[2].t == T_MISSING ? tpl_strz(r, "...") : as_str(r, a[2]);
    int64_t length = tpl_opt_int(r, a[0], 255, "truncate: length"), n_end = (int64_t)tpl_cp_count(r, end.u.s),
            n;
    int64_t leeway = a[3].t == T_NONE ? 5 : tpl_opt_int(r, a[3], 5, "truncate: leeway");
    if (length < n_end)
        FAIL(r, "truncate: expected length >= %lld, got %lld", (long long)n_end, (long long)length);
    if (leeway < 0) FAIL(r, "truncate: expected leeway >= 0, got %lld", (long long)leeway);
    if (!tpl_length(r, v, &n)) FAIL(r, "object of type '%s' has no len()", tpl_type_name(v));
    if (n <= length || n - length <= leeway) return v; // of any type
    tpl_str *s = tpl_want_str(r, v, "truncate");
    size_t cut = tpl_cp_offset(r, s, (size_t)(length - n_end));
    if (!tpl_opt_bool(r, a[1], false)) {
        for (size_t i = cut; i > 0; i--) {
            if (s->p[i - 1] != ' ') continue;
            cut = i - 1;
            break;
        }
    }
    return tpl_concat(r, tpl_sub(r, s, 0, cut).u.s, end.u.s->p, end.u.s->len);
}

F(f_wordcount) {
    UNUSED;
    const tpl_str *s = tpl_str_of(r, v);
    int64_t n = 0;
    bool inside = false;
    size_t used;
    tpl_step(r, s->len >> 3);
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        bool word = cp == '_' || tpl_is_alnum(cp);
        n += word && !inside;
        inside = word;
    }
    return tpl_int(n);
}

/* ---- HTML ----------------------------------------------------------------------------------------------------- */

F(f_escape) {
    UNUSED;
    size_t mark = r->out.len;
    tpl_put_escaped(r, v);
    tpl_val out = tpl_take(r, mark);
    out.u.s->safe = true;
    return out;
}

F(f_forceescape) {
    UNUSED;
    tpl_str *s = tpl_str_of(r, v);
    tpl_val plain = tpl_sub(r, s, 0, s->len);
    plain.u.s->safe = false;
    return f_escape(r, plain, a, args);
}

F(f_safe) {
    UNUSED;
    tpl_str *s = tpl_str_of(r, v);
    tpl_val out = tpl_sub(r, s, 0, s->len);
    out.u.s->safe = true;
    return out;
}

static void put_unescaped(tpl_run *r, const char *p, size_t len) {
    static const struct {
        const char *name, *text;
    } names[] = {{"amp;", "&"},   {"lt;", "<"},   {"gt;", ">"},
                 {"quot;", "\""}, {"apos;", "'"}, {"nbsp;", "\xC2\xA0"}};
    for (size_t i = 0; i < len;) {
        const char *amp = memchr(p + i, '&', len - i);
        size_t at = amp ? (size_t)(amp - p) : len;
        tpl_out(r, p + i, at - i);
        if (!amp) return;
        i = at + 1;
        size_t k = 0;
        for (; k < countof(names); k++) {
            size_t n = strlen(names[k].name);
            if (len - i < n || memcmp(p + i, names[k].name, n)) continue;
            tpl_outz(r, names[k].text);
            i += n;
            break;
        }
        if (k < countof(names)) continue;
        bool hex = i + 1 < len && p[i] == '#' && (p[i + 1] | 32) == 'x', big;
        size_t from = i + 1 + hex, end = from;
        while (i < len && p[i] == '#' && end < len &&
               ((p[end] >= '0' && p[end] <= '9') || (hex && (p[end] | 32) >= 'a' && (p[end] | 32) <= 'f')))
            end++;
        int64_t cp = 0;
        if (i < len && p[i] == '#' && end > from &&
            tpl_parse_int(p + from, end - from, hex ? 16 : 10, &cp, &big)) {
            bool bad = big || cp > 0x10FFFF || cp == 0 || (cp >= 0xD800 && cp < 0xE000);
            tpl_out_cp(r, bad ? 0xFFFD : (uint32_t)cp);
            i = end + (end < len && p[end] == ';');
        } else {
            tpl_outz(r, "&");
        }
    }
}

F(f_striptags) {
    UNUSED;
    const tpl_str *s = tpl_str_of(r, v);
    size_t mark = r->out.len, i = 0;
    tpl_step(r, s->len);
    for (const char *p; (p = memmem(s->p + i, s->len - i, "<!--", 4));) { // comments first
        const char *end = memmem(p, s->len - (size_t)(p - s->p), "-->", 3);
        if (!end) break;
        tpl_out(r, s->p + i, (size_t)(p - s->p) - i);
        i = (size_t)(end - s->p) + 3;
    }
    tpl_out(r, s->p + i, s->len - i);
    s = tpl_take(r, mark).u.s;
    i = 0;
    for (const char *p; (p = memchr(s->p + i, '<', s->len - i));) {
        const char *end = memchr(p, '>', s->len - (size_t)(p - s->p));
        if (!end) break;
        tpl_out(r, s->p + i, (size_t)(p - s->p) - i);
        i = (size_t)(end - s->p) + 1;
    }
    tpl_out(r, s->p + i, s->len - i);
    tpl_val words = str_method(r, tpl_take(r, mark), "split", a, 0);
    for (size_t k = 0; k < words.u.l->n; k++) {
        if (k) tpl_outz(r, " ");
        put_unescaped(r, words.u.l->v[k].u.s->p, words.u.l->v[k].u.s->len);
    }
    return tpl_take(r, mark);
}

F(f_xmlattr) {
    UNUSED;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t != T_DICT) FAIL(r, "'%s' object has no attribute 'items'", tpl_type_name(v));
    const tpl_dict *d = tpl_dict_of(r, v.u.m);
    bool space = tpl_opt_bool(r, a[0], true);
    size_t mark = r->out.len;
    for (size_t i = 0; i < d->n; i++) {
        tpl_val val = d->e[i].val;
        if (val.t == T_NONE || val.t == T_UNDEF) continue;
        const tpl_str *key = tpl_want_str(r, d->e[i].key, "xmlattr");
        for (size_t k = 0; k < key->len; k++) {
            if (key->p[k] && strchr(" \t\n\r\f\v/>=", key->p[k]))
                FAIL(r, "Invalid character in attribute name: '%.*s'", (int)key->len, key->p);
        }
        if (space) tpl_outz(r, " ");
        space = true;
        tpl_put_escaped(r, d->e[i].key);
        tpl_outz(r, "=\"");
        tpl_put_escaped(r, val);
        tpl_outz(r, "\"");
    }
    return tpl_take(r, mark);
}

static void put_quoted(tpl_run *r, tpl_val v, bool query) {
    const tpl_str *s = tpl_str_of(r, v);
    tpl_step(r, s->len >> 3);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z' && c < 0x80) ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        char buf[4];
        if (plain) {
            tpl_out(r, s->p + i, 1);
        } else if (c == ' ' && query) {
            tpl_outz(r, "+");
        } else {
            snprintf(buf, sizeof buf, "%%%02X", c);
            tpl_out(r, buf, 3);
        }
    }
}

F(f_urlencode) {
    UNUSED;
    size_t mark;
    if (v.t == T_STR || !tpl_iterable(v)) {
        mark = r->out.len;
        put_quoted(r, v, false);
        return tpl_take(r, mark);
    }
    if (v.t == T_DICT) {
        const tpl_args none = {0};
        v = tpl_call(r, tpl_getattr(r, v, tpl_strz(r, "items")), &none);
    }
    tpl_val pairs = tpl_to_list(r, v);
    for (size_t i = 0; i < pairs.u.l->n; i++) {
        pairs.u.l->v[i] = tpl_to_list(r, pairs.u.l->v[i]);
        if (pairs.u.l->v[i].u.l->n != 2) FAIL(r, "urlencode: each item must be a pair");
    }
    mark = r->out.len;
    for (size_t i = 0; i < pairs.u.l->n; i++) {
        if (i) tpl_outz(r, "&");
        put_quoted(r, pairs.u.l->v[i].u.l->v[0], true);
        tpl_outz(r, "=");
        put_quoted(r, pairs.u.l->v[i].u.l->v[1], true);
    }
    return tpl_take(r, mark);
}

F(f_urlize) {
    UNUSED;
    tpl_fail(&r->c, MX_UNSUPPORTED, "the filter urlize is not supported: prompts are not HTML");
}

/* ---- layout --------------------------------------------------------------------------------------------------- */

F(f_filesizeformat) {
    UNUSED;
    bool binary = tpl_opt_bool(r, a[0], false);
    double base = binary ? 1024 : 1000, unit = base * base, n = 0;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (tpl_is_num(v)) {
        n = tpl_num(v);
    } else if (v.t != T_STR || !tpl_parse_real(v.u.s->p, v.u.s->len, &n)) {
        FAIL(r, "filesizeformat: a number is needed, not %s", tpl_type_name(v));
    }
    static const char names[] = "kMGTPEZY";
    char buf[64];
    if (n == 1) return tpl_strz(r, "1 Byte");
    if (n < base) {
        snprintf(buf, sizeof buf, "%.0f Bytes", trunc(n));
    } else {
        size_t i = 0;
        while (i + 2 < sizeof names && n >= unit) unit *= base, i++;
        snprintf(buf, sizeof buf, "%.1f %c%sB", base * n / unit, binary && i == 0 ? 'K' : names[i],
                 binary ? "i" : "");
    }
    return tpl_mkstr(r, buf, strlen(buf));
}

/* pprint sorts dicts by their keys. */
static tpl_val sorted(tpl_run *r, tpl_val v) {
    tpl_check_stack(&r->c);
    if (v.t == T_LIST || v.t == T_TUPLE) {
        tpl_list *l = tpl_items(r, v);
        tpl_val out = tpl_mklist(r, v.t, l->n);
        for (size_t i = 0; i < l->n; i++) out.u.l->v[i] = sorted(r, l->v[i]);
        return out;
    }
    if (v.t != T_DICT) return v;
    tpl_dict *d = tpl_dict_of(r, v.u.m);
    tpl_val out = tpl_mkdict(r);
    tpl_val *keys = NEW_ARRAY(r, tpl_val, d->n), *vals = NEW_ARRAY(r, tpl_val, d->n);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        vals[i] = sorted(r, d->e[i].val);
    }
    tpl_sort(r, keys, vals, d->n, false);
    for (size_t i = 0; i < d->n; i++) tpl_dict_set(r, out.u.m, keys[i], vals[i]);
    return out;
}

F(f_pprint) {
    UNUSED;
    v = sorted(r, v);
    size_t mark = r->out.len;
    tpl_put_repr(r, v);
    tpl_val out = tpl_take(r, mark);
    if (tpl_cp_count(r, out.u.s) > 80)
        tpl_fail(&r->c, MX_UNSUPPORTED, "pprint is not supported for what does not fit a line");
    return out;
}

static bool word_char(const tpl_str *s, size_t at, bool letter) { // \w; letter: no digit and no "_"
    size_t used;
    if (at >= s->len) return false;
    int32_t cp = tpl_cp_at(s, at, &used);
    return letter ? tpl_is_alpha(cp) || (tpl_is_numeric(cp) && !tpl_is_decimal(cp))
                  : cp == '_' || tpl_is_alnum(cp);
}

static size_t step_back(const tpl_str *s, size_t at) {
    size_t used;
    if (!at) return SIZE_MAX;
    tpl_cp_before(s, at, &used);
    return at - used;
}

/* May a line break after the hyphen at `at`? As textwrap: two letters (or letter, hyphen, letter) in front and two
 * letters, perhaps with a hyphen between, behind. */
static bool hyphen_break(const tpl_str *s, size_t from, size_t at) {
    size_t b1 = step_back(s, at), b2 = b1 == SIZE_MAX ? b1 : step_back(s, b1);
    if (b1 == SIZE_MAX || b1 < from || b2 == SIZE_MAX || !word_char(s, b1, true)) return false;
    bool front = word_char(s, b2, true);
    if (!front && s->p[b2] == '-') {
        size_t b3 = step_back(s, b2);
        front = b3 != SIZE_MAX && word_char(s, b3, true);
    }
    if (!front || !word_char(s, at + 1, true)) return false;
    size_t used;
    tpl_cp_at(s, at + 1, &used);
    size_t next = at + 1 + used;
    if (next < s->len && s->p[next] == '-') next++;
    return word_char(s, next, true);
}

/* End of the chunk that begins at `from`: white space, a dash, a word or a part of it up to a hyphen. */
static size_t chunk_end(const tpl_str *s, size_t from, bool hyphens) {
    size_t used, at = from;
    if (tpl_is_space(tpl_cp_at(s, at, &used))) {
        for (; at < s->len && tpl_is_space(tpl_cp_at(s, at, &used)); at += used) {}
        return at;
    }
    for (; at < s->len && !tpl_is_space(tpl_cp_at(s, at, &used)); at += used) {
        if (!hyphens || s->p[at] != '-') continue;
        size_t end = at;
        while (end < s->len && s->p[end] == '-') end++;
        size_t before = step_back(s, at);
        bool after_word =
            before != SIZE_MAX && (word_char(s, before, false) || strchr("!\"'&.,?", s->p[before]));
        if (end - at >= 2 && after_word && word_char(s, end, false))
            return at > from ? at : end; // a dash on its own
        if (hyphen_break(s, from, at)) return at + 1;
    }
    return at;
}

typedef struct {
    int64_t width;
    bool break_long, hyphens;
    const tpl_str *sep;
} wrapping;

static void wrap_line(tpl_run *r, tpl_str *s, const wrapping *w) {
    size_t at = 0, line = 0; // line: lines written
    while (at < s->len) {
        size_t from = at, end = at, n = 0, good = at; // good: end without trailing white space
        size_t used;
        if (line && tpl_is_space(tpl_cp_at(s, at, &used))) { // white space at the start of a line goes
            at = from = end = good = chunk_end(s, at, w->hyphens);
            if (at >= s->len) break;
        }
        for (; end < s->len; tpl_step(r, 1)) {
            size_t stop = chunk_end(s, end, w->hyphens);
            tpl_str part = {.p = s->p + end, .len = stop - end, .n_cp = SIZE_MAX};
            size_t len = tpl_cp_count(r, &part);
            if ((int64_t)(n + len) <= w->width) {
                bool space = tpl_is_space(tpl_cp_at(s, end, &used));
                n += len;
                end = stop;
                if (!space) good = end;
                continue;
            }
            if ((int64_t)len > w->width && w->break_long) { // cut it
                size_t room = (size_t)(w->width - (int64_t)n), cut = tpl_cp_offset(r, &part, room);
                for (size_t k = cut; w->hyphens && k > 1; k--) {
                    if (part.p[k - 1] != '-') continue;
                    bool only = true;
                    for (size_t q = 0; q + 1 < k; q++) only = only && part.p[q] == '-';
                    if (!only) cut = k;
                    break;
                }
                if (cut) {
                    if (!tpl_is_space(tpl_cp_at(s, end, &used))) good = end + cut;
                    end += cut;
                }
            } else if ((int64_t)len > w->width && n == 0) {
                good = end = stop;
            }
            break;
        }
        if (good > from) {
            if (line++) tpl_out(r, w->sep->p, w->sep->len);
            tpl_out(r, s->p + from, good - from);
        }
        if (end == at) break;
        at = end;
    }
}

F(f_wordwrap) {
    UNUSED;
    tpl_val s = {.t = T_STR, .u.s = tpl_want_str(r, v, "wordwrap")};
    wrapping w = {.width = tpl_opt_int(r, a[0], 79, "wordwrap: width"),
                  .break_long = tpl_opt_bool(r, a[1], true),
                  .hyphens = tpl_opt_bool(r, a[3], true)};
    w.sep = a[2].t == T_MISSING || a[2].t == T_NONE ? tpl_strz(r, "\n").u.s
                                                    : tpl_want_str(r, a[2], "wordwrap: wrapstring");
    if (w.width <= 0) FAIL(r, "invalid width %lld (must be > 0)", (long long)w.width);
    tpl_val lines = str_method(r, s, "splitlines", a, 0);
    size_t mark = r->out.len;
    for (size_t i = 0; i < lines.u.l->n; i++) {
        if (i) tpl_out(r, w.sep->p, w.sep->len);
        wrap_line(r, lines.u.l->v[i].u.s, &w);
    }
    return tpl_take(r, mark);
}

static const tpl_func filters[] = {
    {"capitalize", f_capitalize, 0, ""},
    {"center", f_center, 0, "width"},
    {"e", f_escape, 0, ""},
    {"escape", f_escape, 0, ""},
    {"filesizeformat", f_filesizeformat, 0, "binary"},
    {"forceescape", f_forceescape, 0, ""},
    {"format", f_format, 0, "*"},
    {"indent", f_indent, 0, "width first blank"},
    {"join", f_join, 0, "d attribute"},
    {"lower", f_lower, 0, ""},
    {"pprint", f_pprint, 0, ""},
    {"replace", f_replace, 2, "old new count"},
    {"safe", f_safe, 0, ""},
    {"string", f_string, 0, ""},
    {"striptags", f_striptags, 0, ""},
    {"title", f_title, 0, ""},
    {"trim", f_trim, 0, "chars"},
    {"truncate", f_truncate, 0, "length killwords end leeway"},
    {"upper", f_upper, 0, ""},
    {"urlencode", f_urlencode, 0, ""},
    {"urlize", f_urlize, 0, "*"},
    {"wordcount", f_wordcount, 0, ""},
    {"wordwrap", f_wordwrap, 0, "width break_long_words wrapstring break_on_hyphens"},
    {"xmlattr", f_xmlattr, 0, "autospace"},
};

const tpl_func *tpl_find_text_filter(const char *name, size_t len) {
    return tpl_find_func(filters, countof(filters), name, len);
}
