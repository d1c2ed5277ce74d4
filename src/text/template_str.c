/* template_str.c - the methods of str. Positions and lengths are in code points. */
#include "template_int.h"

#define M(fn) static tpl_val fn(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args)
#define UNUSED (void)r, (void)self, (void)a, (void)args

static tpl_val keep_safe(tpl_val v, tpl_val self) {
    v.u.s->safe = self.u.s->safe;
    return v;
}

/* ---- case ----------------------------------------------------------------------------------------------------- */

M(m_upper) {
    UNUSED;
    tpl_str *s = self.u.s;
    size_t mark = r->out.len, used;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        tpl_put_upper(r, cp);
        tpl_step(r, 1);
    }
    return keep_safe(tpl_take(r, mark), self);
}

static void put_lower_from(tpl_run *r, const tpl_str *s, size_t at) {
    size_t used;
    for (; at < s->len; at += used) {
        tpl_cp_at(s, at, &used);
        tpl_put_lower(r, s, at);
        tpl_step(r, 1);
    }
}

M(m_lower) {
    UNUSED;
    size_t mark = r->out.len;
    put_lower_from(r, self.u.s, 0);
    return keep_safe(tpl_take(r, mark), self);
}

M(m_capitalize) {
    UNUSED;
    tpl_str *s = self.u.s;
    size_t mark = r->out.len, used = 0;
    if (s->len) {
        int32_t cp = tpl_cp_at(s, 0, &used);
        tpl_put_title(r, cp);
    }
    put_lower_from(r, s, used);
    return keep_safe(tpl_take(r, mark), self);
}

M(m_title) {
    UNUSED;
    tpl_str *s = self.u.s;
    size_t mark = r->out.len, used;
    bool inside = false;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        if (inside) {
            tpl_put_lower(r, s, at);
        } else {
            tpl_put_title(r, cp);
        }
        inside = tpl_is_cased(cp);
        tpl_step(r, 1);
    }
    return keep_safe(tpl_take(r, mark), self);
}

M(m_swapcase) {
    UNUSED;
    tpl_str *s = self.u.s;
    size_t mark = r->out.len, used;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        if (tpl_is_upper(cp)) {
            tpl_put_lower(r, s, at);
        } else if (tpl_is_lower(cp)) {
            tpl_put_upper(r, cp);
        } else {
            tpl_out(r, s->p + at, used);
        }
        tpl_step(r, 1);
    }
    return keep_safe(tpl_take(r, mark), self);
}

M(m_casefold) {
    UNUSED;
    tpl_str *s = self.u.s;
    size_t mark = r->out.len, used;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        tpl_put_fold(r, cp);
        tpl_step(r, 1);
    }
    return keep_safe(tpl_take(r, mark), self);
}

/* ---- questions ------------------------------------------------------------------------------------------------ */

static bool all_of(tpl_run *r, const tpl_str *s, bool (*is)(int32_t)) {
    size_t used;
    tpl_step(r, s->len >> 3);
    for (size_t at = 0; at < s->len; at += used) {
        if (!is(tpl_cp_at(s, at, &used))) return false;
    }
    return s->len > 0;
}

M(m_isalpha) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_alpha));
}
M(m_isalnum) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_alnum));
}
M(m_isdigit) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_digit));
}
M(m_isdecimal) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_decimal));
}
M(m_isnumeric) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_numeric));
}
M(m_isspace) {
    UNUSED;
    return tpl_bool(all_of(r, self.u.s, tpl_is_space));
}
M(m_isprintable) {
    UNUSED;
    return tpl_bool(!self.u.s->len || all_of(r, self.u.s, tpl_is_printable));
}
static bool is_ascii(int32_t cp) { return cp >= 0 && cp < 0x80; }
M(m_isascii) {
    UNUSED;
    return tpl_bool(!self.u.s->len || all_of(r, self.u.s, is_ascii));
}
static bool is_word(int32_t cp) { return cp == '_' || tpl_is_alnum(cp); }
M(m_isidentifier) {
    UNUSED;
    const tpl_str *s = self.u.s;
    size_t used;
    return tpl_bool(s->len && !tpl_is_numeric(tpl_cp_at(s, 0, &used)) && all_of(r, s, is_word));
}

static bool cased(tpl_run *r, const tpl_str *s, bool upper) {
    size_t used;
    bool any = false;
    tpl_step(r, s->len >> 3);
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        if (tpl_is_title(cp) || (upper ? tpl_is_lower(cp) : tpl_is_upper(cp))) return false;
        any = any || (upper ? tpl_is_upper(cp) : tpl_is_lower(cp));
    }
    return any;
}
M(m_isupper) {
    UNUSED;
    return tpl_bool(cased(r, self.u.s, true));
}
M(m_islower) {
    UNUSED;
    return tpl_bool(cased(r, self.u.s, false));
}
M(m_istitle) {
    UNUSED;
    const tpl_str *s = self.u.s;
    size_t used;
    bool inside = false, any = false;
    tpl_step(r, s->len >> 3);
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        if (tpl_is_upper(cp) || tpl_is_title(cp)) {
            if (inside) return tpl_bool(false);
            inside = any = true;
        } else if (tpl_is_lower(cp)) {
            if (!inside) return tpl_bool(false);
            any = true;
        } else {
            inside = false;
        }
    }
    return tpl_bool(any);
}

/* ---- strip and pad -------------------------------------------------------------------------------------------- */

static bool in_set(const tpl_str *set, int32_t cp) {
    size_t used;
    if (!set) return tpl_is_space(cp);
    for (size_t at = 0; at < set->len; at += used) {
        if (tpl_cp_at(set, at, &used) == cp) return true;
    }
    return false;
}

static tpl_val strip(tpl_run *r, tpl_val self, tpl_val chars, bool left, bool right) {
    tpl_str *s = self.u.s,
            *set = chars.t == T_NONE || chars.t == T_MISSING ? NULL : tpl_want_str(r, chars, "strip");
    size_t from = 0, to = s->len, used;
    while (left && from < to && in_set(set, tpl_cp_at(s, from, &used))) from += used;
    while (right && from < to && in_set(set, tpl_cp_before(s, to, &used))) to -= used;
    tpl_step(r, (s->len - (to - from)) * (set ? set->len + 1 : 1) >> 4);
    return tpl_sub(r, s, from, to);
}

M(m_strip) {
    UNUSED;
    return strip(r, self, a[0], true, true);
}
M(m_lstrip) {
    UNUSED;
    return strip(r, self, a[0], true, false);
}
M(m_rstrip) {
    UNUSED;
    return strip(r, self, a[0], false, true);
}

static tpl_val pad(tpl_run *r, tpl_val self, tpl_val *a, int side) { // -1: text left, 1: right, 0: centre
    tpl_str *s = self.u.s;
    int64_t width = tpl_want_int(r, a[0], "width"), n = width - (int64_t)tpl_cp_count(r, s);
    size_t used = 1;
    int32_t fill = ' ';
    if (a[1].t != T_MISSING) {
        const tpl_str *f = tpl_want_str(r, a[1], "fill character");
        fill = f->len ? tpl_cp_at(f, 0, &used) : -1;
        if (!f->len || used != f->len) FAIL(r, "The fill character must be exactly one character long");
    }
    if (n <= 0) return self;
    int64_t left = side < 0 ? 0 : side > 0 ? n : n / 2 + (n & width & 1);
    size_t mark = r->out.len;
    tpl_out_pad(r, (uint32_t)fill, left);
    tpl_out(r, s->p, s->len);
    tpl_out_pad(r, (uint32_t)fill, n - left);
    return keep_safe(tpl_take(r, mark), self);
}

M(m_ljust) {
    UNUSED;
    return pad(r, self, a, -1);
}
M(m_rjust) {
    UNUSED;
    return pad(r, self, a, 1);
}
M(m_center) {
    UNUSED;
    return pad(r, self, a, 0);
}

M(m_zfill) {
    UNUSED;
    tpl_str *s = self.u.s;
    int64_t n = tpl_want_int(r, a[0], "width") - (int64_t)tpl_cp_count(r, s);
    if (n <= 0) return self;
    size_t mark = r->out.len, sign = s->len && (s->p[0] == '-' || s->p[0] == '+');
    tpl_out(r, s->p, sign);
    tpl_out_pad(r, '0', n);
    tpl_out(r, s->p + sign, s->len - sign);
    return tpl_take(r, mark);
}

M(m_expandtabs) {
    UNUSED;
    const tpl_str *s = self.u.s;
    int64_t size = tpl_opt_int(r, a[0], 8, "tabsize"), column = 0;
    size_t mark = r->out.len, used;
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        tpl_step(r, 1);
        if (cp == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            tpl_out_pad(r, ' ', n);
            column += n;
        } else {
            tpl_out(r, s->p + at, used);
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
    }
    return tpl_take(r, mark);
}

/* ---- search --------------------------------------------------------------------------------------------------- */

static const char *find_last(const char *p, size_t len, const char *what, size_t n) {
    if (n > len) return NULL;
    for (const char *q = p + len - n;; q--) {
        if (!memcmp(q, what, n)) return q;
        if (q == p) return NULL;
    }
}

/* Start and stop of a search as bytes; false: the range is empty and begins after the end. */
static bool window(tpl_run *r, tpl_str *s, tpl_val a, tpl_val b, size_t *from, size_t *to, int64_t *first) {
    int64_t n = (int64_t)tpl_cp_count(r, s);
    int64_t i = a.t == T_NONE ? 0 : tpl_opt_int(r, a, 0, "start"),
            k = b.t == T_NONE ? n : tpl_opt_int(r, b, n, "end");
    if (i < 0) i = i < -n ? 0 : i + n;
    if (k < 0) k = k < -n ? 0 : k + n;
    if (k > n) k = n;
    *first = i;
    if (i > k) return false;
    *from = tpl_cp_offset(r, s, (size_t)i);
    *to = tpl_cp_offset(r, s, (size_t)k);
    return true;
}

static int64_t find(tpl_run *r, tpl_val self, tpl_val *a, bool last) {
    tpl_str *s = self.u.s;
    const tpl_str *what = tpl_want_str(r, a[0], "find");
    size_t from, to;
    int64_t first;
    if (!window(r, s, a[1], a[2], &from, &to, &first)) return -1;
    tpl_step(r, last ? (to - from) >> 2 : (to - from) >> 6);
    const char *at = what->len == 0 ? s->p + (last ? to : from)
                     : last         ? find_last(s->p + from, to - from, what->p, what->len)
                                    : memmem(s->p + from, to - from, what->p, what->len);
    if (!at) return -1;
    int64_t n = 0;
    for (const char *p = s->p + from; p < at; p++) n += (*p & 0xC0) != 0x80;
    return first + n;
}

M(m_find) {
    UNUSED;
    return tpl_int(find(r, self, a, false));
}
M(m_rfind) {
    UNUSED;
    return tpl_int(find(r, self, a, true));
}
M(m_index) {
    UNUSED;
    int64_t i = find(r, self, a, false);
    if (i < 0) FAIL(r, "substring not found");
    return tpl_int(i);
}
M(m_rindex) {
    UNUSED;
    int64_t i = find(r, self, a, true);
    if (i < 0) FAIL(r, "substring not found");
    return tpl_int(i);
}

M(m_count) {
    UNUSED;
    tpl_str *s = self.u.s;
    const tpl_str *what = tpl_want_str(r, a[0], "count");
    size_t from, to;
    int64_t first, n = 0;
    if (!window(r, s, a[1], a[2], &from, &to, &first)) return tpl_int(0);
    tpl_step(r, (to - from) >> 4);
    if (!what->len) {
        for (const char *p = s->p + from; p < s->p + to; p++) n += (*p & 0xC0) != 0x80;
        return tpl_int(n + 1);
    }
    for (const char *p = s->p + from, *end = s->p + to;
         (p = memmem(p, (size_t)(end - p), what->p, what->len)); n++) {
        p += what->len;
    }
    return tpl_int(n);
}

static bool affix(tpl_run *r, tpl_val self, tpl_val *a, bool tail) {
    tpl_str *s = self.u.s;
    size_t from, to;
    int64_t first;
    if (a[0].t == T_TUPLE) {
        tpl_list *l = tpl_items(r, a[0]);
        for (size_t i = 0; i < l->n; i++) {
            tpl_val one[3] = {l->v[i], a[1], a[2]};
            if (one[0].t != T_STR)
                FAIL(r, "tuple for startswith must only contain str, not %s", tpl_type_name(one[0]));
            if (affix(r, self, one, tail)) return true;
        }
        return false;
    }
    const tpl_str *x = tpl_want_str(r, a[0], tail ? "endswith" : "startswith");
    if (!window(r, s, a[1], a[2], &from, &to, &first)) return false;
    return to - from >= x->len && (!x->len || !memcmp(s->p + (tail ? to - x->len : from), x->p, x->len));
}

M(m_startswith) {
    UNUSED;
    return tpl_bool(affix(r, self, a, false));
}
M(m_endswith) {
    UNUSED;
    return tpl_bool(affix(r, self, a, true));
}
M(m_removeprefix) {
    UNUSED;
    const tpl_str *x = tpl_want_str(r, a[0], "removeprefix");
    tpl_val one[3] = {a[0], tpl_missing(), tpl_missing()};
    return tpl_sub(r, self.u.s, affix(r, self, one, false) ? x->len : 0, self.u.s->len);
}
M(m_removesuffix) {
    UNUSED;
    const tpl_str *x = tpl_want_str(r, a[0], "removesuffix");
    tpl_val one[3] = {a[0], tpl_missing(), tpl_missing()};
    return tpl_sub(r, self.u.s, 0, self.u.s->len - (affix(r, self, one, true) ? x->len : 0));
}

M(m_replace) {
    UNUSED;
    const tpl_str *s = self.u.s, *old = tpl_want_str(r, a[0], "replace"),
                  *with = tpl_want_str(r, a[1], "replace");
    int64_t left = tpl_opt_int(r, a[2], -1, "count");
    size_t mark = r->out.len, at = 0;
    tpl_step(r, s->len >> 4);
    if (!old->len) { // before every character and at the end
        for (size_t used; left != 0; at += used, left--) {
            tpl_out(r, with->p, with->len);
            if (at == s->len) break;
            tpl_cp_at(s, at, &used);
            tpl_out(r, s->p + at, used);
            tpl_step(r, 1);
        }
    }
    for (const char *p; old->len && left != 0 && (p = memmem(s->p + at, s->len - at, old->p, old->len));
         left--) {
        tpl_out(r, s->p + at, (size_t)(p - s->p) - at);
        tpl_out(r, with->p, with->len);
        at = (size_t)(p - s->p) + old->len;
        tpl_step(r, 1);
    }
    tpl_out(r, s->p + at, s->len - at);
    return keep_safe(tpl_take(r, mark), self);
}

/* ---- split and join ------------------------------------------------------------------------------------------- */

typedef struct {
    tpl_val list;
    size_t cap;
} grow;

static void push(tpl_run *r, grow *g, tpl_val v) {
    tpl_list *l = g->list.u.l;
    tpl_step(r, 1);
    if (l->n == g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 4;
        tpl_val *bigger = NEW_ARRAY(r, tpl_val, cap);
        if (l->n) memcpy(bigger, l->v, l->n * sizeof *bigger);
        l->v = bigger;
        g->cap = cap;
    }
    l->v[l->n++] = v;
}

static void reverse(tpl_list *l) {
    for (size_t i = 0; i + 1 < l->n - i; i++) {
        tpl_val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

/* At white space. The last piece, when max splits were made, keeps its far end as it is. */
static tpl_val split_space(tpl_run *r, tpl_str *s, int64_t max, bool from_right) {
    grow g = {.list = tpl_mklist(r, T_LIST, 0)};
    size_t from = 0, to = s->len, used;
    tpl_step(r, s->len >> 3);
    for (;; max--) {
        while (!from_right && from < to && tpl_is_space(tpl_cp_at(s, from, &used))) from += used;
        while (from_right && from < to && tpl_is_space(tpl_cp_before(s, to, &used))) to -= used;
        if (from >= to) break;
        size_t at = from_right ? to : from;
        if (max == 0) {
            push(r, &g, tpl_sub(r, s, from, to));
            break;
        }
        if (from_right) {
            while (at > from && !tpl_is_space(tpl_cp_before(s, at, &used))) at -= used;
            push(r, &g, tpl_sub(r, s, at, to));
            to = at;
        } else {
            while (at < to && !tpl_is_space(tpl_cp_at(s, at, &used))) at += used;
            push(r, &g, tpl_sub(r, s, from, at));
            from = at;
        }
    }
    if (from_right) reverse(g.list.u.l);
    return g.list;
}

static tpl_val split(tpl_run *r, tpl_val self, tpl_val *a, bool from_right) {
    tpl_str *s = self.u.s;
    int64_t max = tpl_opt_int(r, a[1], -1, "maxsplit");
    if (max < 0) max = -1;
    if (a[0].t == T_NONE || a[0].t == T_MISSING) return split_space(r, s, max, from_right);
    const tpl_str *sep = tpl_want_str(r, a[0], "split");
    if (!sep->len) FAIL(r, "empty separator");
    grow g = {.list = tpl_mklist(r, T_LIST, 0)};
    size_t from = 0, to = s->len;
    tpl_step(r, s->len >> (from_right ? 2 : 5));
    for (; max != 0; max--) {
        const char *p = from_right ? find_last(s->p, to, sep->p, sep->len)
                                   : memmem(s->p + from, to - from, sep->p, sep->len);
        if (!p) break;
        size_t at = (size_t)(p - s->p);
        if (from_right) {
            push(r, &g, tpl_sub(r, s, at + sep->len, to));
            to = at;
        } else {
            push(r, &g, tpl_sub(r, s, from, at));
            from = at + sep->len;
        }
    }
    push(r, &g, tpl_sub(r, s, from, to));
    if (from_right) reverse(g.list.u.l);
    return g.list;
}

M(m_split) {
    UNUSED;
    return split(r, self, a, false);
}
M(m_rsplit) {
    UNUSED;
    return split(r, self, a, true);
}

static tpl_val partition(tpl_run *r, tpl_val self, tpl_val *a, bool last) {
    tpl_str *s = self.u.s;
    const tpl_str *sep = tpl_want_str(r, a[0], "partition");
    if (!sep->len) FAIL(r, "empty separator");
    tpl_step(r, s->len >> 3);
    const char *p = last ? find_last(s->p, s->len, sep->p, sep->len) : memmem(s->p, s->len, sep->p, sep->len);
    tpl_val out = tpl_mklist(r, T_TUPLE, 3);
    size_t at = p ? (size_t)(p - s->p) : last ? 0 : s->len, n = p ? sep->len : 0;
    out.u.l->v[0] = tpl_sub(r, s, 0, at);
    out.u.l->v[1] = tpl_sub(r, s, at, at + n);
    out.u.l->v[2] = tpl_sub(r, s, at + n, s->len);
    return out;
}
M(m_partition) {
    UNUSED;
    return partition(r, self, a, false);
}
M(m_rpartition) {
    UNUSED;
    return partition(r, self, a, true);
}

M(m_splitlines) {
    UNUSED;
    tpl_str *s = self.u.s;
    bool ends = tpl_opt_bool(r, a[0], false);
    grow g = {.list = tpl_mklist(r, T_LIST, 0)};
    size_t from = 0, used;
    tpl_step(r, s->len >> 3);
    for (size_t at = 0; at < s->len; at += used) {
        int32_t cp = tpl_cp_at(s, at, &used);
        if (!tpl_is_linebreak(cp)) continue;
        if (cp == '\r' && at + 1 < s->len && s->p[at + 1] == '\n') used = 2;
        push(r, &g, tpl_sub(r, s, from, ends ? at + used : at));
        from = at + used;
    }
    if (from < s->len) push(r, &g, tpl_sub(r, s, from, s->len));
    return g.list;
}

M(m_join) {
    UNUSED;
    tpl_iter *it = tpl_iterate(r, a[0]);
    tpl_val item;
    tpl_val list =
        tpl_to_list(r, (tpl_val){.t = T_ITER, .u.it = it}); // walked first: it may write to the output
    size_t mark = r->out.len;
    for (size_t i = 0; i < list.u.l->n; i++) {
        item = list.u.l->v[i];
        if (item.t != T_STR) {
            FAIL(r, "sequence item %zu: expected str instance, %s found", i, tpl_type_name(item));
        }
        if (i) tpl_out(r, self.u.s->p, self.u.s->len);
        tpl_out(r, item.u.s->p, item.u.s->len);
    }
    return keep_safe(tpl_take(r, mark), self);
}

M(m_format) {
    (void)a;
    return tpl_format(r, self.u.s, args);
}

M(m_format_map) {
    (void)args;
    if (a[0].t != T_DICT) FAIL(r, "format_map: a mapping is needed, not %s", tpl_type_name(a[0]));
    const tpl_dict *d = tpl_dict_of(r, a[0].u.m);
    tpl_args named = {.kw = NEW_ARRAY(r, tpl_kwarg, d->n)};
    for (size_t i = 0; i < d->n; i++) {
        if (d->e[i].key.t == T_STR)
            named.kw[named.n_kw++] = (tpl_kwarg){.name = d->e[i].key.u.s, .v = d->e[i].val};
    }
    return tpl_format(r, self.u.s, &named);
}

M(m_refused) {
    UNUSED;
    tpl_fail(&r->c, MX_UNSUPPORTED, "encode, translate and maketrans are not supported in a template");
}

static const tpl_func methods[] = {{"capitalize", m_capitalize, 0, ""},
                                   {"casefold", m_casefold, 0, ""},
                                   {"center", m_center, 1, ".width .fillchar"},
                                   {"count", m_count, 1, ".sub .start .end"},
                                   {"encode", m_refused, 0, "*"},
                                   {"endswith", m_endswith, 1, ".suffix .start .end"},
                                   {"expandtabs", m_expandtabs, 0, "tabsize"},
                                   {"find", m_find, 1, ".sub .start .end"},
                                   {"format", m_format, 0, "*"},
                                   {"format_map", m_format_map, 1, ".mapping"},
                                   {"index", m_index, 1, ".sub .start .end"},
                                   {"isalnum", m_isalnum, 0, ""},
                                   {"isalpha", m_isalpha, 0, ""},
                                   {"isascii", m_isascii, 0, ""},
                                   {"isdecimal", m_isdecimal, 0, ""},
                                   {"isdigit", m_isdigit, 0, ""},
                                   {"isidentifier", m_isidentifier, 0, ""},
                                   {"islower", m_islower, 0, ""},
                                   {"isnumeric", m_isnumeric, 0, ""},
                                   {"isprintable", m_isprintable, 0, ""},
                                   {"isspace", m_isspace, 0, ""},
                                   {"istitle", m_istitle, 0, ""},
                                   {"isupper", m_isupper, 0, ""},
                                   {"join", m_join, 1, ".iterable"},
                                   {"ljust", m_ljust, 1, ".width .fillchar"},
                                   {"lower", m_lower, 0, ""},
                                   {"lstrip", m_lstrip, 0, ".chars"},
                                   {"maketrans", m_refused, 0, "*"},
                                   {"partition", m_partition, 1, ".sep"},
                                   {"removeprefix", m_removeprefix, 1, ".prefix"},
                                   {"removesuffix", m_removesuffix, 1, ".suffix"},
                                   {"replace", m_replace, 2, ".old .new .count"},
                                   {"rfind", m_rfind, 1, ".sub .start .end"},
                                   {"rindex", m_rindex, 1, ".sub .start .end"},
                                   {"rjust", m_rjust, 1, ".width .fillchar"},
                                   {"rpartition", m_rpartition, 1, ".sep"},
                                   {"rsplit", m_rsplit, 0, "sep maxsplit"},
                                   {"rstrip", m_rstrip, 0, ".chars"},
                                   {"split", m_split, 0, "sep maxsplit"},
                                   {"splitlines", m_splitlines, 0, "keepends"},
                                   {"startswith", m_startswith, 1, ".prefix .start .end"},
                                   {"strip", m_strip, 0, ".chars"},
                                   {"swapcase", m_swapcase, 0, ""},
                                   {"title", m_title, 0, ""},
                                   {"translate", m_refused, 0, "*"},
                                   {"upper", m_upper, 0, ""},
                                   {"zfill", m_zfill, 1, ".width"}};

const tpl_func *tpl_find_str_method(const char *name, size_t len) {
    return tpl_find_func(methods, countof(methods), name, len);
}
