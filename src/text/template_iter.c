/* template_iter.c - walking values, and sorting them.
 *
 * A filter such as map gives a generator in Python: nothing happens until it is walked, and it can be walked once. So
 * it is here: a T_ITER computes each item when it is asked for. */
#include "template_int.h"

bool tpl_iterable(tpl_val v) {
    switch (v.t) {
    case T_UNDEF:
    case T_STR:
    case T_LIST:
    case T_TUPLE:
    case T_DICT:
    case T_RANGE:
    case T_VIEW:
    case T_ITER: return true;
    case T_LOOP: return true;
    default: return false;
    }
}

tpl_iter *tpl_iterate(tpl_run *r, tpl_val v) {
    if (v.t == T_ITER) return v.u.it;
    tpl_iter *it = NEW(r, tpl_iter);
    it->type = "iterator";
    switch (v.t) {
    case T_UNDEF:
        it->kind = IT_LIST;
        it->l = NEW(r, tpl_list);
        return it;
    case T_STR:
        it->kind = IT_STR;
        it->s = v.u.s;
        return it;
    case T_LIST:
    case T_TUPLE:
        it->kind = IT_LIST;
        it->l = tpl_items(r, v);
        return it;
    case T_DICT:
    case T_VIEW:
        it->kind = IT_DICT;
        it->d = tpl_dict_of(r, v.t == T_DICT ? v.u.m : v.u.view->d);
        it->view = v.t == T_DICT ? VIEW_KEYS : v.u.view->kind;
        return it;
    case T_RANGE:
        it->kind = IT_RANGE;
        it->r = v.u.r;
        return it;
    default: FAIL(r, "'%s' object is not iterable", tpl_type_name(v));
    }
}

tpl_val tpl_mkiter(tpl_run *r, tpl_iter_kind kind, const char *type, tpl_val src) {
    tpl_iter *it = NEW(r, tpl_iter);
    it->kind = kind;
    it->type = type;
    it->src = src;
    return (tpl_val){.t = T_ITER, .u.it = it};
}

static tpl_val pair(tpl_run *r, tpl_val a, tpl_val b) {
    tpl_val p = tpl_mklist(r, T_TUPLE, 2);
    p.u.l->v[0] = a;
    p.u.l->v[1] = b;
    return p;
}

/* filter "slice": count columns of nearly equal length. */
static tpl_list *columns(tpl_run *r, const tpl_iter *it, const tpl_list *all) {
    int64_t n = tpl_want_int(r, it->arg, "slices");
    if (n == 0) FAIL(r, "integer division or modulo by zero");
    if (n < 0) n = 0;
    tpl_val out = tpl_mklist(r, T_LIST, (size_t)n);
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t len = all->n / (size_t)n, extra = all->n % (size_t)n;
        bool fill = it->fill.t != T_NONE && it->fill.t != T_MISSING && (size_t)i >= extra;
        len += (size_t)i < extra;
        tpl_val col = tpl_mklist(r, T_LIST, len + fill);
        tpl_step(r, len + 1);
        for (size_t k = 0; k < len; k++) col.u.l->v[k] = all->v[at++];
        if (fill) col.u.l->v[len] = it->fill;
        out.u.l->v[i] = col;
    }
    return out.u.l;
}

/* filter "batch": rows of a length. */
static tpl_list *rows(tpl_run *r, const tpl_iter *it, const tpl_list *all) {
    int64_t len = tpl_want_int(r, it->arg, "linecount");
    bool fill = it->fill.t != T_NONE && it->fill.t != T_MISSING;
    if (len <= 0) len = (int64_t)all->n + 1, fill = false; // never equal to the length of a row
    size_t n = (all->n + (size_t)len - 1) / (size_t)len;
    tpl_val out = tpl_mklist(r, T_LIST, n);
    for (size_t i = 0; i < n; i++) {
        size_t from = i * (size_t)len, have = all->n - from < (size_t)len ? all->n - from : (size_t)len;
        tpl_val row = tpl_mklist(r, T_LIST, fill ? (size_t)len : have);
        tpl_step(r, row.u.l->n);
        for (size_t k = 0; k < row.u.l->n; k++) row.u.l->v[k] = k < have ? all->v[from + k] : it->fill;
        out.u.l->v[i] = row;
    }
    return out.u.l;
}

/* The first step of an iterator that computes: look at what it walks. */
static void start(tpl_run *r, tpl_iter *it) {
    it->started = true;
    if (it->kind == IT_ITEMS) {
        it->kind = IT_DICT;
        it->view = VIEW_ITEMS;
        if (it->src.t == T_UNDEF) {
            it->d = NEW(r, tpl_dict);
        } else if (it->src.t != T_DICT) {
            FAIL(r, "Can only get item pairs from a mapping.");
        } else {
            it->d = tpl_dict_of(r, it->src.u.m);
        }
        return;
    }
    if (it->kind == IT_BATCH || it->kind == IT_SLICE) {
        tpl_val all = tpl_to_list(r, it->src);
        it->l = it->kind == IT_BATCH ? rows(r, it, all.u.l) : columns(r, it, all.u.l);
        it->kind = IT_LIST;
        return;
    }
    if ((it->kind == IT_MAP || it->kind == IT_SELECT) && !tpl_truth(r, it->src)) {
        it->kind = IT_LIST;
        it->l = NEW(r, tpl_list);
        return;
    }
    it->from = tpl_iterate(r, it->src);
}

static bool next_mapped(tpl_run *r, tpl_iter *it, tpl_val *out) {
    if (!tpl_next(r, it->from, out)) return false;
    *out = it->fn ? tpl_apply(r, it->fn, *out, &it->args) : tpl_attr_path(r, *out, it->attr, it->dflt);
    return true;
}

static bool next_selected(tpl_run *r, tpl_iter *it, tpl_val *out) {
    while (tpl_next(r, it->from, out)) {
        tpl_val v = it->attr.t == T_MISSING ? *out : tpl_attr_path(r, *out, it->attr, tpl_missing());
        if (it->fn) v = tpl_apply(r, it->fn, v, &it->args);
        if (tpl_truth(r, v) != it->reject) return true;
    }
    return false;
}

static tpl_val lower_key(tpl_run *r, tpl_val v) {
    if (v.t != T_STR) return v;
    size_t mark = r->out.len, used;
    for (size_t at = 0; at < v.u.s->len; at += used) {
        tpl_cp_at(v.u.s, at, &used);
        tpl_put_lower(r, v.u.s, at);
    }
    return tpl_take(r, mark);
}

static bool next_unique(tpl_run *r, tpl_iter *it, tpl_val *out) {
    if (!it->seen) it->seen = NEW(r, tpl_dict);
    while (tpl_next(r, it->from, out)) {
        tpl_val key = it->attr.t == T_MISSING ? *out : tpl_attr_path(r, *out, it->attr, tpl_missing());
        if (!it->reject) key = lower_key(r, key); // reject: here, case_sensitive
        if (tpl_dict_get(r, it->seen, key)) continue;
        tpl_dict_set(r, it->seen, key, tpl_none());
        return true;
    }
    return false;
}

bool tpl_next(tpl_run *r, tpl_iter *it, tpl_val *out) {
    tpl_step(r, 1);
    tpl_check_stack(&r->c);
    if (!it->started && it->src.t != T_MISSING) start(r, it);
    switch (it->kind) {
    case IT_LIST:
        if (it->pos >= it->l->n) return false;
        *out = it->l->v[it->pos++];
        return true;
    case IT_REVERSED:
        if (it->pos >= it->l->n) return false;
        *out = it->l->v[it->l->n - ++it->pos];
        return true;
    case IT_STR: {
        size_t used = 0;
        if (it->pos >= it->s->len) return false;
        tpl_cp_at(it->s, it->pos, &used);
        *out = tpl_sub(r, it->s, it->pos, it->pos + used);
        out->u.s->safe = false; // the characters of a Markup are plain
        it->pos += used;
        return true;
    }
    case IT_DICT: {
        if (it->pos >= it->d->n) return false;
        const tpl_pair *p = &it->d->e[it->pos++];
        *out = it->view == VIEW_KEYS ? p->key : it->view == VIEW_VALUES ? p->val : pair(r, p->key, p->val);
        return true;
    }
    case IT_RANGE:
        if ((int64_t)it->pos >= it->r->n) return false;
        *out = tpl_int(it->r->start + (int64_t)it->pos++ * it->r->step);
        return true;
    case IT_MAP: return next_mapped(r, it, out);
    case IT_SELECT: return next_selected(r, it, out);
    case IT_UNIQUE: return next_unique(r, it, out);
    case IT_FORTEST:
        while (tpl_next(r, it->from, out)) {
            if (tpl_for_test(r, it, *out)) return true;
        }
        return false;
    default: return false;
    }
}

tpl_val tpl_to_list(tpl_run *r, tpl_val v) {
    tpl_iter *it = tpl_iterate(r, v);
    tpl_val out = tpl_mklist(r, T_LIST, 0), item;
    size_t cap = 0;
    int64_t n;
    if (v.t != T_ITER && tpl_length(r, v, &n)) {
        cap = (size_t)n;
        out.u.l->v = NEW_ARRAY(r, tpl_val, cap);
    }
    while (tpl_next(r, it, &item)) {
        if (out.u.l->n == cap) {
            cap = cap ? cap * 2 : 8;
            tpl_val *bigger = NEW_ARRAY(r, tpl_val, cap);
            if (out.u.l->n) memcpy(bigger, out.u.l->v, out.u.l->n * sizeof *bigger);
            out.u.l->v = bigger;
        }
        out.u.l->v[out.u.l->n++] = item;
    }
    return out;
}

/* Merge sort: stable, as Python's; reverse keeps the order of equal items too. */
void tpl_sort(tpl_run *r, tpl_val *keys, tpl_val *vals, size_t n, bool reverse) {
    tpl_val *k2 = NEW_ARRAY(r, tpl_val, n), *v2 = NEW_ARRAY(r, tpl_val, n), *k = keys, *v = vals;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, j = mid;
            for (size_t o = lo; o < hi; o++) {
                bool second =
                    i >= mid || (j < hi && (reverse ? tpl_less(r, k[i], k[j]) : tpl_less(r, k[j], k[i])));
                size_t from = second ? j++ : i++;
                k2[o] = k[from];
                v2[o] = v[from];
            }
        }
        tpl_val *t = k;
        k = k2, k2 = t;
        t = v, v = v2, v2 = t;
    }
    if (k != keys && n) {
        memcpy(keys, k, n * sizeof *k);
        memcpy(vals, v, n * sizeof *v);
    }
}
