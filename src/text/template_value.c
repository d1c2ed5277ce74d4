/* template_value.c - values as Python has them: truth, equality, order, hashing, dicts, slices. */
#include "template_int.h"
#include "base/utf8.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void tpl_fail(tpl_ctx *c, mx_status st, const char *fmt, ...) {
    char msg[MX_ERR_LEN];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->st = mx_fail(&c->err, st, "%s line %d: %s", c->name, c->line, msg);
    longjmp(c->jmp, 1);
}

void *tpl_alloc(tpl_ctx *c, size_t n_item, size_t size) {
    void *p = mx_arena_array(c->a, n_item, size);
    if (p) return p;
    size_t n;
    if (__builtin_mul_overflow(n_item, size, &n) ||
        (c->a->limit && (n > c->a->limit || c->a->used > c->a->limit - n))) {
        tpl_fail(c, MX_ELIMIT, "the template needs more than %zu MB of memory", c->a->limit >> 20);
    }
    tpl_fail(c, MX_ENOMEM, "no memory for %zu bytes", n);
}

void tpl_check_stack(tpl_ctx *c) {
    const char *here = __builtin_frame_address(0);
    ptrdiff_t used = c->stack > here ? c->stack - here : here - c->stack;
    if (used > TPL_MAX_STACK) tpl_fail(c, MX_ELIMIT, "the template nests too deeply");
}

void tpl_steps_spent(tpl_run *r) {
    tpl_fail(&r->c, MX_ELIMIT, "the template takes too long: it was stopped");
}

/* ---- making values -------------------------------------------------------------------------------------------- */

tpl_val tpl_none(void) { return (tpl_val){.t = T_NONE}; }
tpl_val tpl_bool(bool b) { return (tpl_val){.t = T_BOOL, .u.b = b}; }
tpl_val tpl_int(int64_t i) { return (tpl_val){.t = T_INT, .u.i = i}; }
tpl_val tpl_real(double d) { return (tpl_val){.t = T_REAL, .u.d = d}; }
tpl_val tpl_missing(void) { return (tpl_val){.t = T_MISSING}; }

static tpl_val borrow(tpl_run *r, const char *p, size_t len) {
    tpl_str *s = NEW(r, tpl_str);
    *s = (tpl_str){.p = p, .len = len, .n_cp = SIZE_MAX, .id = UINT32_MAX};
    return (tpl_val){.t = T_STR, .u.s = s};
}

tpl_val tpl_mkstr(tpl_run *r, const char *p, size_t len) {
    char *copy = tpl_alloc(&r->c, len + 1, 1);
    tpl_step(r, len >> 6);
    if (len) memcpy(copy, p, len);
    return borrow(r, copy, len);
}

tpl_val tpl_sub(tpl_run *r, const tpl_str *s, size_t from, size_t to) {
    tpl_val v = borrow(r, s->p + from, to - from);
    v.u.s->safe = s->safe;
    if (s->n_cp == s->len) v.u.s->n_cp = to - from; // all ASCII
    return v;
}

tpl_val tpl_strz(tpl_run *r, const char *z) { return borrow(r, z, strlen(z)); }

tpl_val tpl_mklist(tpl_run *r, tpl_type t, size_t n) {
    tpl_list *l = NEW(r, tpl_list);
    l->v = NEW_ARRAY(r, tpl_val, n);
    l->n = n;
    return (tpl_val){.t = t, .u.l = l};
}

tpl_val tpl_mkdict(tpl_run *r) { return (tpl_val){.t = T_DICT, .u.m = NEW(r, tpl_dict)}; }

static tpl_val undef(tpl_run *r, const char *hint, const char *owner, const tpl_val *name) {
    tpl_undef *u = NEW(r, tpl_undef);
    *u = (tpl_undef){.hint = hint, .owner = owner, .name = name};
    return (tpl_val){.t = T_UNDEF, .u.u = u};
}

static const tpl_val *keep(tpl_run *r, tpl_val v) {
    tpl_val *p = NEW(r, tpl_val);
    *p = v;
    return p;
}

tpl_val tpl_undef_name(tpl_run *r, tpl_str *name) {
    return undef(r, NULL, NULL, keep(r, (tpl_val){.t = T_STR, .u.s = name}));
}

tpl_val tpl_undef_hint(tpl_run *r, const char *hint) { return undef(r, hint, NULL, NULL); }

tpl_val tpl_undef_of(tpl_run *r, tpl_val owner, tpl_val name) {
    return undef(r, NULL, tpl_type_name(owner), keep(r, name));
}

void tpl_undef_fail(tpl_run *r, tpl_val v) {
    const tpl_undef *u = v.u.u;
    if (u->hint) FAIL(r, "%s", u->hint);
    size_t mark = r->out.len;
    tpl_put_repr(r, *u->name);
    tpl_str *name = tpl_take(r, mark).u.s;
    int len = name->len < 200 ? (int)name->len : 200;
    if (!u->owner) FAIL(r, "%.*s is undefined", len, name->p);
    const char *what = u->owner, *kind = strcmp(what, "None") ? " object" : "";
    if (u->name->t != T_STR) FAIL(r, "%s%s has no element %.*s", what, kind, len, name->p);
    FAIL(r, "'%s%s' has no attribute %.*s", what, kind, len, name->p);
}

tpl_val tpl_from_json(tpl_run *r, const mx_json *j) {
    switch (j->type) {
    case MX_JSON_NULL: return tpl_none();
    case MX_JSON_BOOL: return tpl_bool(j->u.b);
    case MX_JSON_INT: return tpl_int(j->u.i);
    case MX_JSON_REAL: return tpl_real(j->u.d);
    case MX_JSON_STRING: return borrow(r, j->u.s.p, j->u.s.len);
    case MX_JSON_ARRAY: {
        tpl_list *l = NEW(r, tpl_list);
        l->src = j;
        l->n = j->u.c.n;
        return (tpl_val){.t = T_LIST, .u.l = l};
    }
    case MX_JSON_OBJECT: break;
    }
    tpl_val v = tpl_mkdict(r);
    v.u.m->src = j;
    return v;
}

tpl_list *tpl_items(tpl_run *r, tpl_val v) {
    tpl_list *l = v.u.l;
    if (!l->src) return l;
    tpl_step(r, l->n);
    tpl_val *items = NEW_ARRAY(r, tpl_val, l->n);
    size_t n = 0;
    for (const mx_json *it = mx_json_first(l->src); it && n < l->n; it = it->next)
        items[n++] = tpl_from_json(r, it);
    l->v = items;
    l->n = n;
    l->src = NULL;
    return l;
}

tpl_dict *tpl_dict_of(tpl_run *r, tpl_dict *d) {
    if (!d->src) return d;
    const mx_json *src = d->src;
    d->src = NULL;
    for (const mx_json *it = mx_json_first(src); it; it = it->next) {
        tpl_dict_set(r, d, borrow(r, it->key, it->key_len), tpl_from_json(r, it));
    }
    return d;
}

/* ---- asking values -------------------------------------------------------------------------------------------- */

const char *tpl_type_name(tpl_val v) {
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    switch (v.t) {
    case T_MISSING:
    case T_UNDEF: return "Undefined";
    case T_NONE: return "None";
    case T_BOOL: return "bool";
    case T_INT: return "int";
    case T_REAL: return "float";
    case T_STR: return v.u.s->safe ? "markupsafe.Markup" : "str";
    case T_LIST: return "list";
    case T_TUPLE: return "tuple";
    case T_DICT: return "dict";
    case T_RANGE: return "range";
    case T_VIEW: return views[v.u.view->kind];
    case T_ITER: return v.u.it->type;
    case T_NS: return "namespace";
    case T_MACRO: return "jinja2.runtime.Macro";
    case T_FUNC: return "function";
    case T_METHOD: return "builtin_function_or_method";
    case T_LOOP: return "jinja2.runtime.LoopContext";
    case T_CYCLER: return "jinja2.utils.Cycler";
    case T_JOINER: return "jinja2.utils.Joiner";
    }
    return "object";
}

bool tpl_str_is(const tpl_str *s, const char *z) { return s->len == strlen(z) && !memcmp(s->p, z, s->len); }
bool tpl_is_num(tpl_val v) { return v.t == T_INT || v.t == T_REAL || v.t == T_BOOL; }
double tpl_num(tpl_val v) { return v.t == T_REAL ? v.u.d : v.t == T_BOOL ? v.u.b : (double)v.u.i; }

bool tpl_is_int(tpl_val v, int64_t *i) {
    if (v.t != T_INT && v.t != T_BOOL) return false;
    *i = v.t == T_BOOL ? v.u.b : v.u.i;
    return true;
}

size_t tpl_cp_count(tpl_run *r, tpl_str *s) {
    if (s->n_cp != SIZE_MAX) return s->n_cp;
    size_t n = 0;
    tpl_step(r, s->len >> 6);
    for (size_t i = 0; i < s->len; i++) n += (s->p[i] & 0xC0) != 0x80;
    return s->n_cp = n;
}

size_t tpl_cp_offset(tpl_run *r, tpl_str *s, size_t cp) {
    if (tpl_cp_count(r, s) == s->len) return cp;
    size_t at = 0;
    for (; cp && at < s->len; cp--) {
        at++;
        while (at < s->len && (s->p[at] & 0xC0) == 0x80) at++;
    }
    tpl_step(r, at >> 6);
    return at;
}

int32_t tpl_cp_at(const tpl_str *s, size_t at, size_t *used) {
    return mx_utf8_decode(s->p + at, s->len - at, used);
}

int32_t tpl_cp_before(const tpl_str *s, size_t at, size_t *used) {
    size_t from = at - 1;
    while (from && at - from < 4 && (s->p[from] & 0xC0) == 0x80) from--;
    int32_t cp = mx_utf8_decode(s->p + from, at - from, used);
    if (*used != at - from) { // not UTF-8: take one byte
        *used = 1;
        return -1;
    }
    return cp;
}

bool tpl_length(tpl_run *r, tpl_val v, int64_t *n) {
    switch (v.t) {
    case T_UNDEF: *n = 0; return true;
    case T_STR: *n = (int64_t)tpl_cp_count(r, v.u.s); return true;
    case T_LIST:
    case T_TUPLE: *n = (int64_t)v.u.l->n; return true;
    case T_DICT: *n = (int64_t)tpl_dict_of(r, v.u.m)->n; return true;
    case T_VIEW: *n = (int64_t)tpl_dict_of(r, v.u.view->d)->n; return true;
    case T_RANGE: *n = v.u.r->n; return true;
    case T_LOOP: {
        tpl_loop *lp = v.u.loop;
        if (lp->length < 0 && (lp->iterable.t == T_ITER || !tpl_length(r, lp->iterable, &lp->length))) {
            tpl_val rest =
                tpl_to_list(r, (tpl_val){.t = T_ITER, .u.it = lp->it}); // walk it now, keep what came
            lp->length = (int64_t)rest.u.l->n + lp->index0 + 1 + lp->has_after;
            lp->it = tpl_iterate(r, rest);
        }
        *n = lp->length;
        return true;
    }
    default: return false;
    }
}

bool tpl_truth(tpl_run *r, tpl_val v) {
    int64_t n;
    switch (v.t) {
    case T_MISSING:
    case T_UNDEF:
    case T_NONE: return false;
    case T_BOOL: return v.u.b;
    case T_INT: return v.u.i != 0;
    case T_REAL: return v.u.d != 0;
    case T_STR: return v.u.s->len != 0;
    default: return !tpl_length(r, v, &n) || n != 0;
    }
}

bool tpl_same(tpl_val a, tpl_val b) {
    if (a.t != b.t) return false;
    switch (a.t) {
    case T_NONE: return true;
    case T_BOOL: return a.u.b == b.u.b;
    case T_INT: return a.u.i == b.u.i; // CPython keeps one object for small integers only
    case T_REAL: return a.u.d == b.u.d;
    case T_STR: // equal short strings are one object, as a rule
        return a.u.s == b.u.s || (a.u.s->len == b.u.s->len && !memcmp(a.u.s->p, b.u.s->p, a.u.s->len));
    default: return a.u.l == b.u.l;
    }
}

static int cmp_num(tpl_val a, tpl_val b, bool *unordered) {
    int64_t i, k;
    if (tpl_is_int(a, &i) && tpl_is_int(b, &k)) return (i > k) - (i < k);
    double x = tpl_num(a), y = tpl_num(b);
    if (isnan(x) || isnan(y)) *unordered = true;
    if (x == y && (a.t == T_INT || b.t == T_INT) && fabs(x) >= 0x1p53 && fabs(x) < 0x1p63) {
        int64_t xi = a.t == T_INT ? a.u.i : (int64_t)x, yi = b.t == T_INT ? b.u.i : (int64_t)y; // exact
        return (xi > yi) - (xi < yi);
    }
    return (x > y) - (x < y);
}

bool tpl_equal(tpl_run *r, tpl_val a, tpl_val b) {
    bool unordered = false;
    tpl_step(r, 1);
    if (tpl_is_num(a) && tpl_is_num(b)) return cmp_num(a, b, &unordered) == 0 && !unordered;
    if (a.t != b.t) return false;
    tpl_check_stack(&r->c);
    switch (a.t) {
    case T_MISSING:
    case T_UNDEF:
    case T_NONE: return true;
    case T_STR:
        tpl_step(r, a.u.s->len >> 6);
        return a.u.s->len == b.u.s->len && !memcmp(a.u.s->p, b.u.s->p, a.u.s->len);
    case T_LIST:
    case T_TUPLE: {
        if (a.u.l == b.u.l) return true;
        if (a.u.l->n != b.u.l->n) return false;
        tpl_list *x = tpl_items(r, a), *y = tpl_items(r, b);
        for (size_t i = 0; i < x->n; i++) {
            if (!tpl_equal(r, x->v[i], y->v[i])) return false;
        }
        return true;
    }
    case T_DICT: {
        tpl_dict *x = tpl_dict_of(r, a.u.m), *y = tpl_dict_of(r, b.u.m);
        if (x == y) return true;
        if (x->n != y->n) return false;
        for (size_t i = 0; i < x->n; i++) {
            tpl_val *v = tpl_dict_get(r, y, x->e[i].key);
            if (!v || !tpl_equal(r, x->e[i].val, *v)) return false;
        }
        return true;
    }
    case T_RANGE: {
        const tpl_range *x = a.u.r, *y = b.u.r;
        return x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    case T_VIEW: {
        if (a.u.view->kind == VIEW_VALUES || b.u.view->kind == VIEW_VALUES) return a.u.view == b.u.view;
        int64_t n, m;
        tpl_length(r, a, &n);
        tpl_length(r, b, &m);
        tpl_val item;
        tpl_iter *it = tpl_iterate(r, a);
        bool same = n == m;
        while (same && tpl_next(r, it, &item)) same = tpl_contains(r, b, item);
        return same;
    }
    case T_METHOD: return a.u.method->fn == b.u.method->fn && tpl_same(a.u.method->self, b.u.method->self);
    default: return a.u.l == b.u.l;
    }
}

int tpl_compare(tpl_run *r, tpl_val a, tpl_val b, const char *op, bool *unordered) {
    tpl_step(r, 1);
    if (tpl_is_num(a) && tpl_is_num(b)) return cmp_num(a, b, unordered);
    if (a.t == T_UNDEF) tpl_undef_fail(r, a);
    if (b.t == T_UNDEF) tpl_undef_fail(r, b);
    if (a.t == T_STR && b.t == T_STR) { // the order of code points is the order of UTF-8 bytes
        size_t n = a.u.s->len < b.u.s->len ? a.u.s->len : b.u.s->len;
        int c = n ? memcmp(a.u.s->p, b.u.s->p, n) : 0;
        return c ? c : (a.u.s->len > b.u.s->len) - (a.u.s->len < b.u.s->len);
    }
    if (a.t == b.t && (a.t == T_LIST || a.t == T_TUPLE)) {
        tpl_check_stack(&r->c);
        tpl_list *x = tpl_items(r, a), *y = tpl_items(r, b);
        for (size_t i = 0; i < x->n && i < y->n; i++) {
            if (!tpl_equal(r, x->v[i], y->v[i])) return tpl_compare(r, x->v[i], y->v[i], op, unordered);
        }
        return (x->n > y->n) - (x->n < y->n);
    }
    FAIL(r, "'%s' not supported between instances of '%s' and '%s'", op, tpl_type_name(a), tpl_type_name(b));
}

bool tpl_less(tpl_run *r, tpl_val a, tpl_val b) {
    bool unordered = false;
    return tpl_compare(r, a, b, "<", &unordered) < 0 && !unordered;
}

bool tpl_contains(tpl_run *r, tpl_val box, tpl_val item) {
    tpl_val v;
    int64_t i;
    switch (box.t) {
    case T_STR:
        if (item.t != T_STR) {
            FAIL(r, "'in <string>' requires string as left operand, not %s", tpl_type_name(item));
        }
        tpl_step(r, box.u.s->len >> 6);
        return !item.u.s->len || memmem(box.u.s->p, box.u.s->len, item.u.s->p, item.u.s->len);
    case T_DICT: return tpl_dict_get(r, box.u.m, item) != NULL;
    case T_VIEW:
        if (box.u.view->kind == VIEW_KEYS) return tpl_dict_get(r, box.u.view->d, item) != NULL;
        break;
    case T_RANGE:
        if (tpl_is_int(item, &i)) {
            const tpl_range *g = box.u.r;
            return g->n && (i - g->start) % g->step == 0 && (i - g->start) / g->step >= 0 &&
                   (i - g->start) / g->step < g->n;
        }
        break;
    default:
        if (!tpl_iterable(box)) FAIL(r, "argument of type '%s' is not iterable", tpl_type_name(box));
    }
    tpl_iter *it = tpl_iterate(r, box);
    while (tpl_next(r, it, &v)) {
        if (tpl_equal(r, v, item)) return true;
    }
    return false;
}

/* ---- dicts ---------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    return h ^ h >> 33;
}

uint64_t tpl_hash(tpl_run *r, tpl_val v) {
    int64_t i;
    uint64_t h = 14695981039346656037ULL;
    switch (v.t) {
    case T_STR:
        tpl_step(r, v.u.s->len >> 4);
        for (size_t k = 0; k < v.u.s->len; k++) h = (h ^ (unsigned char)v.u.s->p[k]) * 1099511628211ULL;
        return mix(h);
    case T_REAL:
        if (v.u.d != trunc(v.u.d) || fabs(v.u.d) >= 0x1p63) {
            memcpy(&h, &v.u.d, 8);
            return mix(h);
        }
        return mix((uint64_t)(int64_t)v.u.d); // equal numbers have equal hashes
    case T_TUPLE:
        tpl_check_stack(&r->c);
        for (size_t k = 0; k < v.u.l->n; k++) h = (h ^ tpl_hash(r, tpl_items(r, v)->v[k])) * 1099511628211ULL;
        return h;
    case T_LIST:
    case T_DICT:
    case T_VIEW: FAIL(r, "unhashable type: '%s'", tpl_type_name(v));
    case T_NONE:
    case T_UNDEF: return v.t;
    default:
        if (tpl_is_int(v, &i)) return mix((uint64_t)i);
        return mix((uint64_t)(uintptr_t)v.u.l);
    }
}

static tpl_pair *find(tpl_run *r, tpl_dict *d, tpl_val key, uint64_t h) {
    if (!d->slot) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->e[i].hash == h && tpl_equal(r, d->e[i].key, key)) return &d->e[i];
        }
        return NULL;
    }
    for (size_t at = h & (d->n_slot - 1); d->slot[at]; at = (at + 1) & (d->n_slot - 1)) {
        tpl_pair *p = &d->e[d->slot[at] - 1];
        tpl_step(r, 1);
        if (p->hash == h && tpl_equal(r, p->key, key)) return p;
    }
    return NULL;
}

tpl_val *tpl_dict_get(tpl_run *r, tpl_dict *d, tpl_val key) {
    uint64_t h = tpl_hash(r, key);
    tpl_pair *p = find(r, tpl_dict_of(r, d), key, h);
    return p ? &p->val : NULL;
}

tpl_val *tpl_dict_getz(tpl_run *r, tpl_dict *d, const char *key, size_t len) {
    tpl_str s = {.p = key, .len = len, .n_cp = SIZE_MAX, .id = UINT32_MAX};
    return tpl_dict_get(r, d, (tpl_val){.t = T_STR, .u.s = &s});
}

void tpl_dict_set(tpl_run *r, tpl_dict *d, tpl_val key, tpl_val v) {
    enum { FEW = 8 };
    uint64_t h = tpl_hash(r, key);
    tpl_dict_of(r, d);
    tpl_pair *p = find(r, d, key, h);
    if (p) {
        p->val = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        tpl_pair *e = NEW_ARRAY(r, tpl_pair, cap);
        if (d->n) memcpy(e, d->e, d->n * sizeof *e);
        d->e = e;
        d->cap = cap;
        if (cap > FEW) {
            d->n_slot = cap * 2;
            d->slot = NEW_ARRAY(r, uint32_t, d->n_slot);
            for (size_t i = 0; i < d->n; i++) {
                size_t at = d->e[i].hash & (d->n_slot - 1);
                while (d->slot[at]) at = (at + 1) & (d->n_slot - 1);
                d->slot[at] = (uint32_t)i + 1;
            }
        }
    }
    d->e[d->n++] = (tpl_pair){.key = key, .val = v, .hash = h};
    if (d->slot) {
        size_t at = h & (d->n_slot - 1);
        while (d->slot[at]) at = (at + 1) & (d->n_slot - 1);
        d->slot[at] = (uint32_t)d->n;
    }
}

/* ---- slices --------------------------------------------------------------------------------------------------- */

static int64_t slice_part(tpl_run *r, tpl_val v, int64_t dflt, int64_t lo, int64_t hi, int64_t n) {
    int64_t i;
    if (v.t == T_NONE || v.t == T_MISSING) return dflt;
    if (!tpl_is_int(v, &i)) FAIL(r, "slice indices must be integers or None or have an __index__ method");
    if (i < 0) i = i < -n ? -1 : i + n; // before the start: clamped below
    return i < lo ? lo : i > hi ? hi : i;
}

tpl_val tpl_slice(tpl_run *r, tpl_val v, tpl_val from, tpl_val to, tpl_val by) {
    int64_t n = 0, step = 1;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t != T_STR && v.t != T_LIST && v.t != T_TUPLE && v.t != T_RANGE) {
        FAIL(r, "'%s' object cannot be sliced", tpl_type_name(v));
    }
    tpl_length(r, v, &n);
    if (by.t != T_NONE && by.t != T_MISSING && !tpl_is_int(by, &step)) {
        FAIL(r, "slice indices must be integers or None or have an __index__ method");
    }
    if (step == 0) FAIL(r, "slice step cannot be zero");
    if (step < -n - 1) step = -n - 1; // the same items, and no overflow
    if (step > n + 1) step = n + 1;
    int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? n : n - 1;
    int64_t a = slice_part(r, from, step > 0 ? 0 : n - 1, lo, hi, n);
    int64_t b = slice_part(r, to, step > 0 ? n : -1, lo, hi, n);
    int64_t count =
        step > 0 ? (b > a ? (b - a + step - 1) / step : 0) : (a > b ? (a - b - step - 1) / -step : 0);
    tpl_step(r, (uint64_t)count >> 4);
    if (v.t == T_RANGE) {
        tpl_range *g = NEW(r, tpl_range);
        const tpl_range *o = v.u.r;
        *g = (tpl_range){.start = o->start + a * o->step, .step = o->step * step, .n = count};
        g->stop = o->start + b * o->step;
        return (tpl_val){.t = T_RANGE, .u.r = g};
    }
    if (v.t == T_STR) {
        tpl_str *s = v.u.s;
        if (step == 1) {
            if (count == 0) return tpl_sub(r, s, 0, 0);
            return tpl_sub(r, s, tpl_cp_offset(r, s, (size_t)a), tpl_cp_offset(r, s, (size_t)(a + count)));
        }
        size_t mark = r->out.len, at = count ? tpl_cp_offset(r, s, (size_t)a) : 0;
        for (int64_t i = 0; i < count; i++) {
            size_t used = 0;
            tpl_cp_at(s, at, &used);
            tpl_out(r, s->p + at, used);
            if (i + 1 == count) break;
            tpl_step(r, (uint64_t)(step < 0 ? -step : step));
            for (int64_t k = 0; k < step; k++) {
                tpl_cp_at(s, at, &used);
                at += used;
            }
            for (int64_t k = 0; k > step; k--) {
                tpl_cp_before(s, at, &used);
                at -= used;
            }
        }
        tpl_val out = tpl_take(r, mark);
        out.u.s->safe = s->safe;
        return out;
    }
    tpl_list *l = tpl_items(r, v);
    tpl_val out = tpl_mklist(r, v.t, (size_t)count);
    for (int64_t i = 0; i < count; i++) out.u.l->v[i] = l->v[a + i * step];
    return out;
}
