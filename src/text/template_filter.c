/* template_filter.c - filters over values and collections; those over text are in template_filter_text.c. */
#include "template_int.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define F(fn) static tpl_val fn(tpl_run *r, tpl_val v, tpl_val *a, const tpl_args *args)
#define UNUSED (void)r, (void)v, (void)a, (void)args

static bool given(tpl_val v) { return v.t != T_MISSING && v.t != T_NONE; }

/* What sort, unique, min, max and groupby compare: an attribute, lower case unless told otherwise. */
static tpl_val sort_key(tpl_run *r, tpl_val v, tpl_val attr, tpl_val dflt, bool case_sensitive) {
    if (given(attr)) v = tpl_attr_path(r, v, attr, dflt);
    if (case_sensitive || v.t != T_STR) return v;
    const tpl_args none = {0};
    return tpl_apply(r, tpl_find_str_method("lower", 5), v, &none);
}

/* "a,b": by a, then by b. A list even for one: Python compares [x] with [y], where equal items need no order. */
static tpl_val sort_keys(tpl_run *r, tpl_val v, tpl_val attr, bool case_sensitive) {
    if (attr.t != T_STR) {
        tpl_val one = tpl_mklist(r, T_LIST, 1);
        one.u.l->v[0] = sort_key(r, v, attr, tpl_missing(), case_sensitive);
        return one;
    }
    const tpl_str *s = attr.u.s;
    size_t n = 1, at = 0;
    for (size_t i = 0; i < s->len; i++) n += s->p[i] == ',';
    tpl_val out = tpl_mklist(r, T_LIST, n);
    for (size_t i = 0; i < n; i++) {
        const char *comma = memchr(s->p + at, ',', s->len - at);
        size_t end = comma ? (size_t)(comma - s->p) : s->len;
        out.u.l->v[i] = sort_key(r, v, tpl_sub(r, s, at, end), tpl_missing(), case_sensitive);
        at = end + 1;
    }
    return out;
}

/* ---- numbers -------------------------------------------------------------------------------------------------- */

F(f_abs) {
    UNUSED;
    int64_t i;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t == T_REAL) return tpl_real(fabs(v.u.d));
    if (!tpl_is_int(v, &i)) FAIL(r, "bad operand type for abs(): '%s'", tpl_type_name(v));
    return i < 0 ? tpl_negate(r, v, true) : tpl_int(i);
}

static tpl_val to_int(tpl_run *r, double d, tpl_val dflt) {
    if (!isfinite(d)) return dflt;
    if (fabs(d) >= 0x1p63) FAIL(r, "int: %g does not fit 64 bits", d);
    return tpl_int((int64_t)d);
}

F(f_int) {
    UNUSED;
    tpl_val dflt = a[0].t == T_MISSING ? tpl_int(0) : a[0];
    int64_t i;
    double d;
    bool big;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (tpl_is_int(v, &i)) return tpl_int(i);
    if (v.t == T_REAL) {
        if (isinf(v.u.d)) FAIL(r, "cannot convert float infinity to integer");
        return to_int(r, v.u.d, dflt);
    }
    if (v.t != T_STR) return dflt;
    int64_t base = tpl_opt_int(r, a[1], 10, "int: base");
    if (base != 0 && (base < 2 || base > 36)) base = 99; // Python: ValueError, so only a float is tried
    if (base != 99 && tpl_parse_int(v.u.s->p, v.u.s->len, (int)base, &i, &big)) {
        if (big) FAIL(r, "int: the number does not fit 64 bits");
        return tpl_int(i);
    }
    return tpl_parse_real(v.u.s->p, v.u.s->len, &d) ? to_int(r, d, dflt) : dflt;
}

F(f_float) {
    UNUSED;
    double d;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (tpl_is_num(v)) return tpl_real(tpl_num(v));
    if (v.t == T_STR && tpl_parse_real(v.u.s->p, v.u.s->len, &d)) return tpl_real(d);
    return a[0].t == T_MISSING ? tpl_real(0) : a[0];
}

static tpl_val round_int(tpl_run *r, int64_t i, int64_t digits) { // half to even, on tens
    int64_t unit = 1;
    for (; digits < 0; digits++) {
        if (__builtin_mul_overflow(unit, (int64_t)10, &unit)) return tpl_int(0);
    }
    int64_t rest = i % unit, down = i - rest, twice;
    if (rest < 0) rest += unit, down -= unit;
    if (__builtin_mul_overflow(rest, (int64_t)2, &twice)) twice = INT64_MAX;
    bool up = twice > unit || (twice == unit && unit > 1 && (down / unit) % 2 != 0);
    if (up && __builtin_add_overflow(down, unit, &down)) FAIL(r, "round: the result does not fit 64 bits");
    return tpl_int(down);
}

F(f_round) {
    UNUSED;
    int64_t digits = tpl_opt_int(r, a[0], 0, "round: precision"), i;
    const char *method = "common";
    if (a[1].t != T_MISSING) {
        const tpl_str *m = a[1].t == T_STR ? a[1].u.s : NULL;
        method = m && tpl_str_is(m, "ceil") ? "ceil" : m && tpl_str_is(m, "floor") ? "floor" : "common";
        if (!m || (*method == 'c' && method[1] == 'o' && !tpl_str_is(m, "common"))) {
            FAIL(r, "method must be common, ceil or floor");
        }
    }
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (!tpl_is_num(v)) FAIL(r, "round: a number is needed, not %s", tpl_type_name(v));
    if (method[1] != 'o') {
        double unit = pow(10, (double)digits), x = tpl_num(v) * unit;
        if (!isfinite(x) || unit == 0) FAIL(r, "round: the number is too large");
        return tpl_real((*method == 'c' ? ceil(x) : floor(x)) / unit);
    }
    if (tpl_is_int(v, &i)) return digits >= 0 ? tpl_int(i) : round_int(r, i, digits);
    double d = v.u.d;
    if (!isfinite(d) || digits > 300) return v;
    if (digits < 0) {
        if (digits < -308) return tpl_real(copysign(0, d));
        double unit = pow(10, (double)-digits);
        return tpl_real(nearbyint(d / unit) * unit);
    }
    char buf[700];
    snprintf(buf, sizeof buf, "%.*f", (int)digits, d); // exact decimal value, ties to even: as Python rounds
    return tpl_real(strtod(buf, NULL));
}

F(f_sum) {
    UNUSED;
    tpl_val total = a[1].t == T_MISSING ? tpl_int(0) : a[1], item;
    if (total.t == T_STR) FAIL(r, "sum() can't sum strings [use ''.join(seq) instead]");
    tpl_iter *it = tpl_iterate(r, v);
    while (tpl_next(r, it, &item))
        total = tpl_binop(r, OP_ADD, total, given(a[0]) ? tpl_attr_path(r, item, a[0], tpl_missing()) : item);
    return total;
}

static tpl_val extreme(tpl_run *r, tpl_val v, tpl_val *a, bool max) {
    tpl_iter *it = tpl_iterate(r, v);
    tpl_val best, best_key, item;
    bool cs = tpl_opt_bool(r, a[0], false);
    if (!tpl_next(r, it, &best)) return tpl_undef_hint(r, "No aggregated item, sequence was empty.");
    best_key = sort_key(r, best, a[1], tpl_missing(), cs);
    while (tpl_next(r, it, &item)) {
        tpl_val key = sort_key(r, item, a[1], tpl_missing(), cs);
        if (!(max ? tpl_less(r, best_key, key) : tpl_less(r, key, best_key))) continue;
        best = item;
        best_key = key;
    }
    return best;
}
F(f_min) {
    UNUSED;
    return extreme(r, v, a, false);
}
F(f_max) {
    UNUSED;
    return extreme(r, v, a, true);
}

/* ---- collections ---------------------------------------------------------------------------------------------- */

F(f_length) {
    UNUSED;
    int64_t n;
    if (!tpl_length(r, v, &n)) FAIL(r, "object of type '%s' has no len()", tpl_type_name(v));
    return tpl_int(n);
}

F(f_first) {
    UNUSED;
    tpl_val item;
    if (tpl_next(r, tpl_iterate(r, v), &item)) return item;
    return tpl_undef_hint(r, "No first item, sequence was empty.");
}

static bool reversible(tpl_val v) { return tpl_iterable(v) && v.t != T_ITER && v.t != T_LOOP; }

F(f_last) {
    UNUSED;
    if (!reversible(v)) FAIL(r, "'%s' object is not reversible", tpl_type_name(v));
    if (v.t == T_STR && v.u.s->len) return tpl_getitem(r, v, tpl_int(-1));
    tpl_val all = tpl_to_list(r, v);
    return all.u.l->n ? all.u.l->v[all.u.l->n - 1] : tpl_undef_hint(r, "No last item, sequence was empty.");
}

F(f_reverse) {
    UNUSED;
    if (v.t == T_STR) return tpl_slice(r, v, tpl_none(), tpl_none(), tpl_int(-1));
    tpl_val all = tpl_to_list(r, v);
    if (!reversible(v)) { // a generator: Python gives a list
        tpl_list *l = all.u.l;
        for (size_t i = 0; i + 1 < l->n - i; i++) {
            tpl_val t = l->v[i];
            l->v[i] = l->v[l->n - 1 - i];
            l->v[l->n - 1 - i] = t;
        }
        return all;
    }
    tpl_val it =
        tpl_mkiter(r, IT_REVERSED, v.t == T_LIST ? "list_reverseiterator" : "reversed", tpl_missing());
    it.u.it->l = all.u.l;
    return it;
}

F(f_list) {
    UNUSED;
    return tpl_to_list(r, v);
}

F(f_items) {
    UNUSED;
    return tpl_mkiter(r, IT_ITEMS, "generator", v);
}

F(f_default) {
    UNUSED;
    bool use = v.t == T_UNDEF || (tpl_opt_bool(r, a[1], false) && !tpl_truth(r, v));
    return !use ? v : a[0].t == T_MISSING ? tpl_strz(r, "") : a[0];
}

F(f_attr) {
    UNUSED;
    tpl_val name = {.t = T_STR, .u.s = tpl_want_str(r, a[0], "attr")};
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    tpl_val got = tpl_attribute(r, v, name.u.s);
    return got.t == T_MISSING ? tpl_undef_of(r, v, name) : got;
}

F(f_dictsort) {
    UNUSED;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t != T_DICT) FAIL(r, "'%s' object has no attribute 'items'", tpl_type_name(v));
    bool cs = tpl_opt_bool(r, a[0], false);
    const tpl_str *by = a[1].t == T_MISSING ? NULL : tpl_want_str(r, a[1], "by");
    bool by_value = by && tpl_str_is(by, "value");
    if (by && !by_value && !tpl_str_is(by, "key"))
        FAIL(r, "You can only sort by either \"key\" or \"value\"");
    const tpl_dict *d = tpl_dict_of(r, v.u.m);
    tpl_val out = tpl_mklist(r, T_LIST, d->n);
    tpl_val *keys = NEW_ARRAY(r, tpl_val, d->n);
    for (size_t i = 0; i < d->n; i++) {
        tpl_val pair = tpl_mklist(r, T_TUPLE, 2);
        pair.u.l->v[0] = d->e[i].key;
        pair.u.l->v[1] = d->e[i].val;
        out.u.l->v[i] = pair;
        keys[i] = sort_key(r, by_value ? d->e[i].val : d->e[i].key, tpl_none(), tpl_none(), cs);
    }
    tpl_sort(r, keys, out.u.l->v, d->n, tpl_opt_bool(r, a[2], false));
    return out;
}

F(f_sort) {
    UNUSED;
    tpl_val all = tpl_to_list(r, v);
    size_t n = all.u.l->n;
    bool cs = tpl_opt_bool(r, a[1], false);
    tpl_val *keys = NEW_ARRAY(r, tpl_val, n);
    for (size_t i = 0; i < n; i++) keys[i] = sort_keys(r, all.u.l->v[i], a[2], cs);
    tpl_sort(r, keys, all.u.l->v, n, tpl_opt_bool(r, a[0], false));
    return all;
}

F(f_groupby) {
    UNUSED;
    tpl_val all = tpl_to_list(r, v), groups = tpl_mklist(r, T_LIST, all.u.l->n);
    size_t n = all.u.l->n, n_group = 0;
    bool cs = tpl_opt_bool(r, a[2], false);
    tpl_val *keys = NEW_ARRAY(r, tpl_val, n);
    for (size_t i = 0; i < n; i++) keys[i] = sort_key(r, all.u.l->v[i], a[0], a[1], cs);
    tpl_sort(r, keys, all.u.l->v, n, false);
    for (size_t i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && tpl_equal(r, keys[i], keys[k]);) k++;
        tpl_val items = tpl_mklist(r, T_LIST, k - i), pair = tpl_mklist(r, T_TUPLE, 2);
        for (size_t j = i; j < k; j++) items.u.l->v[j - i] = all.u.l->v[j];
        pair.u.l->group = true;
        pair.u.l->v[0] = cs ? keys[i] : tpl_attr_path(r, all.u.l->v[i], a[0], a[1]);
        pair.u.l->v[1] = items;
        groups.u.l->v[n_group++] = pair;
    }
    groups.u.l->n = n_group;
    return groups;
}

F(f_unique) {
    UNUSED;
    tpl_val it = tpl_mkiter(r, IT_UNIQUE, "generator", v);
    it.u.it->reject = tpl_opt_bool(r, a[0], false);
    it.u.it->attr = given(a[1]) ? a[1] : tpl_missing();
    return it;
}

static tpl_val chunks(tpl_run *r, tpl_val v, tpl_val *a, tpl_iter_kind kind) {
    tpl_val it = tpl_mkiter(r, kind, "generator", v);
    it.u.it->arg = a[0];
    it.u.it->fill = a[1];
    return it;
}
F(f_batch) {
    UNUSED;
    return chunks(r, v, a, IT_BATCH);
}
F(f_slice) {
    UNUSED;
    return chunks(r, v, a, IT_SLICE);
}

static tpl_args rest(const tpl_args *args, size_t n) {
    return (tpl_args){.pos = args->pos + n, .n = args->n - n, .kw = args->kw, .n_kw = args->n_kw};
}

static const tpl_func *named(tpl_run *r, tpl_val name, bool test) {
    const tpl_func *f = NULL;
    if (name.t == T_UNDEF) tpl_undef_fail(r, name);
    if (name.t == T_STR) f = (test ? tpl_find_test : tpl_find_filter)(name.u.s->p, name.u.s->len);
    if (f) return f;
    tpl_str *s = tpl_str_of(r, name);
    FAIL(r, "No %s named '%.*s'.", test ? "test" : "filter", (int)(s->len < 100 ? s->len : 100), s->p);
}

F(f_map) {
    UNUSED;
    tpl_val it = tpl_mkiter(r, IT_MAP, "generator", v);
    if (args->n) {
        it.u.it->fn = named(r, args->pos[0], false);
        it.u.it->args = rest(args, 1);
        return it;
    }
    bool found = false;
    for (size_t i = 0; i < args->n_kw; i++) {
        const tpl_str *name = args->kw[i].name;
        if (tpl_str_is(name, "attribute")) {
            it.u.it->attr = args->kw[i].v;
            found = true;
        } else if (tpl_str_is(name, "default")) {
            it.u.it->dflt = args->kw[i].v;
        } else {
            FAIL(r, "Unexpected keyword argument '%.*s'", (int)name->len, name->p);
        }
    }
    if (!found) FAIL(r, "map requires a filter argument");
    return it;
}

static tpl_val select_by(tpl_run *r, tpl_val v, const tpl_args *args, bool reject, bool attr) {
    tpl_val it = tpl_mkiter(r, IT_SELECT, "generator", v);
    it.u.it->reject = reject;
    if (attr && !args->n) FAIL(r, "Missing parameter for attribute name");
    if (attr) it.u.it->attr = args->pos[0];
    if (args->n > attr) {
        it.u.it->fn = named(r, args->pos[attr], true);
        it.u.it->args = rest(args, (size_t)attr + 1);
    }
    return it;
}
F(f_select) {
    UNUSED;
    return select_by(r, v, args, false, false);
}
F(f_reject) {
    UNUSED;
    return select_by(r, v, args, true, false);
}
F(f_selectattr) {
    UNUSED;
    return select_by(r, v, args, false, true);
}
F(f_rejectattr) {
    UNUSED;
    return select_by(r, v, args, true, true);
}

F(f_random) {
    UNUSED;
    tpl_fail(&r->c, MX_UNSUPPORTED, "the filter random is not supported: a prompt should not be random");
}

static const tpl_func filters[] = {
    {"abs", f_abs, 0, ""},
    {"attr", f_attr, 1, "name"},
    {"batch", f_batch, 1, "linecount fill_with"},
    {"count", f_length, 0, ""},
    {"d", f_default, 0, "default_value boolean"},
    {"default", f_default, 0, "default_value boolean"},
    {"dictsort", f_dictsort, 0, "case_sensitive by reverse"},
    {"first", f_first, 0, ""},
    {"float", f_float, 0, "default"},
    {"groupby", f_groupby, 1, "attribute default case_sensitive"},
    {"int", f_int, 0, "default base"},
    {"items", f_items, 0, ""},
    {"last", f_last, 0, ""},
    {"length", f_length, 0, ""},
    {"list", f_list, 0, ""},
    {"map", f_map, 0, "*"},
    {"max", f_max, 0, "case_sensitive attribute"},
    {"min", f_min, 0, "case_sensitive attribute"},
    {"random", f_random, 0, ""},
    {"reject", f_reject, 0, "*"},
    {"rejectattr", f_rejectattr, 0, "*"},
    {"reverse", f_reverse, 0, ""},
    {"round", f_round, 0, "precision method"},
    {"select", f_select, 0, "*"},
    {"selectattr", f_selectattr, 0, "*"},
    {"slice", f_slice, 1, "slices fill_with"},
    {"sort", f_sort, 0, "reverse case_sensitive attribute"},
    {"sum", f_sum, 0, "attribute start"},
    {"tojson", tpl_tojson, 0, "ensure_ascii indent separators sort_keys"},
    {"unique", f_unique, 0, "case_sensitive attribute"},
};

const tpl_func *tpl_find_filter(const char *name, size_t len) {
    const tpl_func *f = tpl_find_func(filters, countof(filters), name, len);
    return f ? f : tpl_find_text_filter(name, len);
}
