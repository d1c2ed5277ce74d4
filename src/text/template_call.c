/* template_call.c - calls, attributes, items, and what every template can call: range, dict, namespace, ...
 *
 * Attribute lookup is the sandbox's: an attribute of the object wins over an item of a dict (d.items is the method even
 * when there is a key "items"), d["items"] the other way round; methods that change a list or dict exist but give an
 * undefined value that fails when it is used. */
#include "template_int.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- arguments ------------------------------------------------------------------------------------------------ */

int64_t tpl_want_int(tpl_run *r, tpl_val v, const char *what) {
    int64_t i;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (!tpl_is_int(v, &i)) FAIL(r, "%s: an integer is needed, not %s", what, tpl_type_name(v));
    return i;
}

tpl_str *tpl_want_str(tpl_run *r, tpl_val v, const char *what) {
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t != T_STR) FAIL(r, "%s: a string is needed, not %s", what, tpl_type_name(v));
    return v.u.s;
}

int64_t tpl_opt_int(tpl_run *r, tpl_val v, int64_t dflt, const char *what) {
    return v.t == T_MISSING ? dflt : tpl_want_int(r, v, what);
}

bool tpl_opt_bool(tpl_run *r, tpl_val v, bool dflt) { return v.t == T_MISSING ? dflt : tpl_truth(r, v); }

void tpl_bind(tpl_run *r, const tpl_func *f, const tpl_args *args, tpl_val out[TPL_MAX_ARG]) {
    for (int i = 0; i < TPL_MAX_ARG; i++) out[i] = tpl_missing();
    if (f->params[0] == '*') return;
    size_t n = 0, taken = 0;
    for (const char *p = f->params; *p;) {
        size_t len = strcspn(p, " ");
        if (n < args->n) {
            out[n] = args->pos[n];
        } else if (*p != '.') {
            for (size_t k = 0; k < args->n_kw; k++) {
                if (args->kw[k].name->len != len || memcmp(args->kw[k].name->p, p, len)) continue;
                out[n] = args->kw[k].v;
                taken++;
            }
        }
        n++;
        p += len + (p[len] == ' ');
    }
    if (args->n > n) FAIL(r, "%s takes at most %zu argument(s), %zu were given", f->name, n, args->n);
    if (taken < args->n_kw) {
        for (size_t k = 0; k < args->n_kw; k++) {
            const tpl_str *name = args->kw[k].name;
            const char *p = f->params;
            size_t at = 0, len = 0;
            for (; *p; at++, p += len + (p[len] == ' ')) {
                len = strcspn(p, " ");
                if (len == name->len && !memcmp(p, name->p, len) && at >= args->n) break;
            }
            if (!*p)
                FAIL(r, "%s got an unexpected keyword argument '%.*s'", f->name, (int)name->len, name->p);
        }
    }
    for (int i = 0; i < f->min; i++) {
        if (out[i].t == T_MISSING) FAIL(r, "%s: an argument is missing: %s", f->name, f->params);
    }
}

tpl_val tpl_apply(tpl_run *r, const tpl_func *f, tpl_val self, const tpl_args *args) {
    tpl_val a[TPL_MAX_ARG];
    tpl_check_stack(&r->c);
    tpl_bind(r, f, args, a);
    return f->fn(r, self, a, args);
}

const tpl_func *tpl_find_func(const tpl_func *table, size_t n, const char *name, size_t len) {
    for (size_t i = 0; i < n; i++) {
        if (table[i].name[0] == name[0] && strlen(table[i].name) == len &&
            !memcmp(table[i].name, name, len)) {
            return &table[i];
        }
    }
    return NULL;
}

/* ---- methods of lists, dicts, loops ... ----------------------------------------------------------------------- */

static tpl_val m_get(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)args;
    tpl_val *v = tpl_dict_get(r, self.u.m, a[0]);
    return v ? *v : a[1].t == T_MISSING ? tpl_none() : a[1];
}

static tpl_val dict_view(tpl_run *r, tpl_val self, tpl_view_kind kind) {
    tpl_view *v = NEW(r, tpl_view);
    *v = (tpl_view){.d = tpl_dict_of(r, self.u.m), .kind = kind};
    return (tpl_val){.t = T_VIEW, .u.view = v};
}

static tpl_val m_keys(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a, (void)args;
    return dict_view(r, self, VIEW_KEYS);
}
static tpl_val m_values(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a, (void)args;
    return dict_view(r, self, VIEW_VALUES);
}
static tpl_val m_items(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a, (void)args;
    return dict_view(r, self, VIEW_ITEMS);
}

static tpl_val m_copy(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)r, (void)a, (void)args;
    return self; // nothing can change it
}

static tpl_val m_list_count(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)args;
    tpl_iter *it = tpl_iterate(r, self);
    tpl_val v;
    int64_t n = 0;
    while (tpl_next(r, it, &v)) n += tpl_equal(r, v, a[0]);
    return tpl_int(n);
}

static tpl_val m_list_index(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)args;
    tpl_val part = tpl_to_list(r, self);
    int64_t n = (int64_t)part.u.l->n, from = tpl_opt_int(r, a[1], 0, "index"),
            to = tpl_opt_int(r, a[2], n, "index");
    if (from < 0) from = from < -n ? 0 : from + n;
    if (to < 0) to = to < -n ? 0 : to + n;
    for (int64_t i = from; i < to && i < n; i++) {
        if (tpl_equal(r, part.u.l->v[i], a[0])) return tpl_int(i);
    }
    size_t mark = r->out.len;
    tpl_put_repr(r, a[0]);
    tpl_str *s = tpl_take(r, mark).u.s;
    FAIL(r, "%.*s is not in %s", (int)(s->len < 200 ? s->len : 200), s->p, tpl_type_name(self));
}

static tpl_val m_cycle(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a;
    if (!args->n) FAIL(r, "no items for cycling given");
    return args->pos[(size_t)self.u.loop->index0 % args->n];
}

static tpl_val m_changed(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a;
    tpl_loop *lp = self.u.loop;
    tpl_val now = tpl_mklist(r, T_TUPLE, args->n);
    if (args->n) memcpy(now.u.l->v, args->pos, args->n * sizeof *args->pos);
    if (lp->has_changed && tpl_equal(r, lp->changed, now)) return tpl_bool(false);
    lp->has_changed = true;
    lp->changed = now;
    return tpl_bool(true);
}

static tpl_val m_next(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)r, (void)a, (void)args;
    tpl_cycler *c = self.u.cyc;
    tpl_val v = c->items[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return v;
}

static tpl_val m_reset(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)r, (void)a, (void)args;
    self.u.cyc->pos = 0;
    return tpl_none();
}

static tpl_val m_is_integer(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)r, (void)a, (void)args;
    return tpl_bool(isfinite(self.u.d) && self.u.d == trunc(self.u.d));
}

static tpl_val m_bit_length(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)a, (void)args;
    int64_t i = tpl_want_int(r, self, "bit_length");
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    return tpl_int(u ? 64 - __builtin_clzll(u) : 0);
}

static const tpl_func dict_methods[] = {{"get", m_get, 1, ".key .default"},
                                        {"items", m_items, 0, ""},
                                        {"keys", m_keys, 0, ""},
                                        {"values", m_values, 0, ""},
                                        {"copy", m_copy, 0, ""}};
static const tpl_func list_methods[] = {{"count", m_list_count, 1, ".value"},
                                        {"index", m_list_index, 1, ".value .start .stop"},
                                        {"copy", m_copy, 0, ""}};
static const tpl_func loop_methods[] = {{"cycle", m_cycle, 0, "*"}, {"changed", m_changed, 0, "*"}};
static const tpl_func cycler_methods[] = {{"next", m_next, 0, ""}, {"reset", m_reset, 0, ""}};
static const tpl_func real_methods[] = {{"is_integer", m_is_integer, 0, ""}};
static const tpl_func int_methods[] = {{"bit_length", m_bit_length, 0, ""}};

static bool one_of(const tpl_str *s, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (tpl_str_is(s, words[i])) return true;
    }
    return false;
}

/* Attributes that Python has and the sandbox hides. */
static bool hidden(tpl_val v, const tpl_str *name) {
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const of_all[] = {"__class__",        "__init__",
                                         "__doc__",          "__dict__",
                                         "__module__",       "__len__",
                                         "__str__",          "__repr__",
                                         "__eq__",           "__ne__",
                                         "__lt__",           "__le__",
                                         "__gt__",           "__ge__",
                                         "__hash__",         "__new__",
                                         "__dir__",          "__sizeof__",
                                         "__format__",       "__reduce__",
                                         "__reduce_ex__",    "__getattribute__",
                                         "__setattr__",      "__delattr__",
                                         "__subclasshook__", "__init_subclass__",
                                         "__iter__",         "__getitem__",
                                         "__contains__",     "__add__",
                                         "__mul__",          "__call__"};
    if (v.t == T_LIST && one_of(name, of_list, countof(of_list))) return true;
    if (v.t == T_DICT && one_of(name, of_dict, countof(of_dict))) return true;
    return name->len > 4 && name->p[0] == '_' && name->p[1] == '_' && one_of(name, of_all, countof(of_all));
}

static tpl_val loop_attr(tpl_run *r, tpl_val v, const tpl_str *name) {
    tpl_loop *lp = v.u.loop;
    int64_t n;
    if (tpl_str_is(name, "index")) return tpl_int(lp->index0 + 1);
    if (tpl_str_is(name, "index0")) return tpl_int(lp->index0);
    if (tpl_str_is(name, "first")) return tpl_bool(lp->index0 == 0);
    if (tpl_str_is(name, "depth")) return tpl_int(lp->depth0 + 1);
    if (tpl_str_is(name, "depth0")) return tpl_int(lp->depth0);
    if (tpl_str_is(name, "length") || tpl_str_is(name, "revindex") || tpl_str_is(name, "revindex0")) {
        tpl_length(r, v, &n);
        return tpl_int(name->len == 6 ? n : name->len == 8 ? n - lp->index0 : n - lp->index0 - 1);
    }
    if (tpl_str_is(name, "previtem")) {
        return lp->index0 == 0 ? tpl_undef_hint(r, "there is no previous item") : lp->before;
    }
    if (tpl_str_is(name, "last") || tpl_str_is(name, "nextitem")) {
        if (!lp->has_after) lp->has_after = tpl_next(r, lp->it, &lp->after);
        if (tpl_str_is(name, "last")) return tpl_bool(!lp->has_after);
        return lp->has_after ? lp->after : tpl_undef_hint(r, "there is no next item");
    }
    return tpl_missing();
}

static tpl_val method(tpl_run *r, tpl_val self, const tpl_func *f) {
    tpl_method *m = NEW(r, tpl_method);
    *m = (tpl_method){.self = self, .fn = f};
    return (tpl_val){.t = T_METHOD, .u.method = m};
}

/* The attribute in Python's sense, or T_MISSING. */
tpl_val tpl_attribute(tpl_run *r, tpl_val v, tpl_str *name) {
    const tpl_func *f = NULL;
    tpl_val *found;
#define FIND(table) f = tpl_find_func(table, countof(table), name->p, name->len)
    switch (v.t) {
    case T_UNDEF: tpl_undef_fail(r, v);
    case T_STR: f = tpl_find_str_method(name->p, name->len); break;
    case T_DICT: FIND(dict_methods); break;
    case T_LIST: FIND(list_methods); break;
    case T_TUPLE:
        if (v.u.l->group && (tpl_str_is(name, "grouper") || tpl_str_is(name, "list"))) {
            return v.u.l->v[tpl_str_is(name, "list")];
        }
        if (!tpl_str_is(name, "copy")) FIND(list_methods);
        break;
    case T_RANGE:
        if (tpl_str_is(name, "start")) return tpl_int(v.u.r->start);
        if (tpl_str_is(name, "stop")) return tpl_int(v.u.r->stop);
        if (tpl_str_is(name, "step")) return tpl_int(v.u.r->step);
        if (!tpl_str_is(name, "copy")) FIND(list_methods);
        break;
    case T_REAL:
        FIND(real_methods); // fall through to what all numbers have
        if (f) break;
        __attribute__((fallthrough));
    case T_INT:
    case T_BOOL:
        if (tpl_str_is(name, "real")) return tpl_negate(r, v, false);
        if (tpl_str_is(name, "imag")) return v.t == T_REAL ? tpl_real(0) : tpl_int(0);
        if (v.t == T_REAL) break;
        if (tpl_str_is(name, "numerator")) return tpl_negate(r, v, false);
        if (tpl_str_is(name, "denominator")) return tpl_int(1);
        FIND(int_methods);
        break;
    case T_NS:
        found = tpl_dict_get(r, v.u.m, (tpl_val){.t = T_STR, .u.s = name});
        if (found) return *found;
        break;
    case T_LOOP: {
        tpl_val a = loop_attr(r, v, name);
        if (a.t != T_MISSING) return a;
        FIND(loop_methods);
        break;
    }
    case T_CYCLER:
        if (tpl_str_is(name, "current")) return v.u.cyc->items[v.u.cyc->pos];
        FIND(cycler_methods);
        break;
    case T_MACRO:
        if (tpl_str_is(name, "name")) return (tpl_val){.t = T_STR, .u.s = v.u.macro->node->name};
        if (tpl_str_is(name, "caller")) return tpl_bool(v.u.macro->node->flag & USES_CALLER);
        if (tpl_str_is(name, "catch_kwargs")) return tpl_bool(v.u.macro->node->flag & USES_KWARGS);
        if (tpl_str_is(name, "catch_varargs")) return tpl_bool(v.u.macro->node->flag & USES_VARARGS);
        if (tpl_str_is(name, "arguments")) {
            size_t n = 0;
            for (const tpl_node *p = v.u.macro->node->a; p; p = p->next) n++;
            tpl_val names = tpl_mklist(r, T_TUPLE, n);
            n = 0;
            for (const tpl_node *p = v.u.macro->node->a; p; p = p->next) {
                names.u.l->v[n++] = (tpl_val){.t = T_STR, .u.s = p->name};
            }
            return names;
        }
        break;
    default: break;
    }
#undef FIND
    if (f) return method(r, v, f);
    if (!hidden(v, name)) return tpl_missing();
    char *hint = mx_arena_printf(&r->a, "access to attribute '%.*s' of '%s' object is unsafe.",
                                 (int)name->len, name->p, tpl_type_name(v));
    return tpl_undef_hint(r, hint ? hint : "access to an attribute is unsafe");
}

/* obj[key] in Python's sense, or T_MISSING where Python raises TypeError or LookupError. */
static tpl_val item(tpl_run *r, tpl_val v, tpl_val key) {
    int64_t i, n;
    switch (v.t) {
    case T_UNDEF: tpl_undef_fail(r, v);
    case T_DICT: {
        if (key.t == T_LIST || key.t == T_DICT || key.t == T_VIEW) return tpl_missing();
        tpl_val *found = tpl_dict_get(r, v.u.m, key);
        return found ? *found : tpl_missing();
    }
    case T_STR:
    case T_LIST:
    case T_TUPLE:
    case T_RANGE: break;
    default: return tpl_missing();
    }
    if (!tpl_is_int(key, &i)) return tpl_missing();
    tpl_length(r, v, &n);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return tpl_missing();
    if (v.t == T_RANGE) return tpl_int(v.u.r->start + i * v.u.r->step);
    if (v.t != T_STR) return tpl_items(r, v)->v[i];
    size_t at = tpl_cp_offset(r, v.u.s, (size_t)i), used = 0;
    tpl_cp_at(v.u.s, at, &used);
    return tpl_sub(r, v.u.s, at, at + used);
}

tpl_val tpl_getattr(tpl_run *r, tpl_val v, tpl_val name) {
    tpl_val a = tpl_attribute(r, v, name.u.s);
    if (a.t == T_MISSING) a = item(r, v, name);
    return a.t == T_MISSING ? tpl_undef_of(r, v, name) : a;
}

tpl_val tpl_getitem(tpl_run *r, tpl_val v, tpl_val key) {
    tpl_val a = item(r, v, key);
    if (a.t == T_MISSING && key.t == T_STR) a = tpl_attribute(r, v, key.u.s);
    return a.t == T_MISSING ? tpl_undef_of(r, v, key) : a;
}

tpl_val tpl_attr_path(tpl_run *r, tpl_val v, tpl_val path, tpl_val dflt) {
    bool has_dflt = dflt.t != T_MISSING && dflt.t != T_NONE;
    if (path.t == T_NONE || path.t == T_MISSING) return v;
    if (path.t != T_STR) {
        v = tpl_getitem(r, v, path);
        return has_dflt && v.t == T_UNDEF ? dflt : v;
    }
    const tpl_str *s = path.u.s;
    for (size_t at = 0; at <= s->len;) {
        const char *dot = memchr(s->p + at, '.', s->len - at);
        size_t end = dot ? (size_t)(dot - s->p) : s->len;
        tpl_val part = tpl_sub(r, s, at, end);
        int64_t i;
        bool big = false, all_digits = end > at;
        for (size_t k = at; k < end; k++) all_digits = all_digits && s->p[k] >= '0' && s->p[k] <= '9';
        if (all_digits && tpl_parse_int(s->p + at, end - at, 10, &i, &big) && !big) part = tpl_int(i);
        v = tpl_getitem(r, v, part);
        if (has_dflt && v.t == T_UNDEF) v = dflt;
        at = end + 1;
    }
    return v;
}

/* ---- global functions ----------------------------------------------------------------------------------------- */

static tpl_val g_range(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self;
    tpl_range *g = NEW(r, tpl_range);
    g->step = 1;
    if (args->n == 1) {
        g->stop = tpl_want_int(r, a[0], "range");
    } else {
        g->start = tpl_want_int(r, a[0], "range");
        g->stop = tpl_want_int(r, a[1], "range");
        g->step = tpl_opt_int(r, a[2], 1, "range");
    }
    if (g->step == 0) FAIL(r, "range() arg 3 must not be zero");
    uint64_t span = 0, step = g->step > 0 ? (uint64_t)g->step : -(uint64_t)g->step;
    if (g->step > 0 && g->stop > g->start) span = (uint64_t)g->stop - (uint64_t)g->start;
    if (g->step < 0 && g->stop < g->start) span = (uint64_t)g->start - (uint64_t)g->stop;
    uint64_t n = span / step + (span % step != 0);
    if (n > TPL_MAX_RANGE) {
        tpl_fail(&r->c, MX_ELIMIT, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                 TPL_MAX_RANGE);
    }
    g->n = (int64_t)n;
    return (tpl_val){.t = T_RANGE, .u.r = g};
}

/* dict(mapping or pairs, name=value, ...) */
static tpl_val g_dict(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)a;
    tpl_val out = tpl_mkdict(r), v;
    if (args->n > 1) FAIL(r, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n && args->pos[0].t == T_DICT) {
        const tpl_dict *d = tpl_dict_of(r, args->pos[0].u.m);
        for (size_t i = 0; i < d->n; i++) tpl_dict_set(r, out.u.m, d->e[i].key, d->e[i].val);
    } else if (args->n) {
        tpl_iter *it = tpl_iterate(r, args->pos[0]);
        while (tpl_next(r, it, &v)) {
            tpl_val pair = tpl_to_list(r, v);
            if (pair.u.l->n != 2) FAIL(r, "dict(): each item must be a pair");
            tpl_dict_set(r, out.u.m, pair.u.l->v[0], pair.u.l->v[1]);
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        tpl_dict_set(r, out.u.m, (tpl_val){.t = T_STR, .u.s = args->kw[i].name}, args->kw[i].v);
    }
    return out;
}

static tpl_val g_namespace(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    tpl_val v = g_dict(r, self, a, args);
    for (size_t i = 0; i < v.u.m->n; i++) {
        tpl_val key = v.u.m->e[i].key;
        if (key.t == T_STR && key.u.s->len && key.u.s->p[0] == '_') {
            FAIL(r, "a namespace cannot have attributes that begin with an underscore");
        }
    }
    v.t = T_NS;
    return v;
}

static tpl_val g_cycler(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)a;
    if (!args->n) FAIL(r, "at least one item has to be provided");
    tpl_cycler *c = NEW(r, tpl_cycler);
    *c = (tpl_cycler){.items = args->pos, .n = args->n};
    return (tpl_val){.t = T_CYCLER, .u.cyc = c};
}

static tpl_val g_joiner(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)args;
    tpl_cycler *c = NEW(r, tpl_cycler);
    c->sep = a[0].t == T_MISSING ? tpl_strz(r, ", ") : a[0];
    return (tpl_val){.t = T_JOINER, .u.cyc = c};
}

static tpl_val g_raise(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)args;
    tpl_str *s = tpl_str_of(r, a[0]);
    FAIL(r, "%.*s", (int)(s->len < MX_ERR_LEN ? s->len : MX_ERR_LEN), s->p);
}

static tpl_val g_lipsum(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)a, (void)args;
    tpl_fail(&r->c, MX_UNSUPPORTED, "lipsum is not supported: a prompt should not be random");
}

/* Local time, as datetime.now(): the time zone's codes give nothing, %f is microseconds. */
static tpl_val g_strftime(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args) {
    (void)self, (void)args;
    tpl_str *f = tpl_want_str(r, a[0], "strftime_now");
    struct timespec ts = {.tv_sec = (time_t)r->now};
    if (r->now < 0) clock_gettime(CLOCK_REALTIME, &ts);
    struct tm tm;
    if (!localtime_r(&ts.tv_sec, &tm)) FAIL(r, "strftime_now: the time is out of range");
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) tpl_fail(&r->c, MX_ENOMEM, "no memory for a date");
    bool ok = true;
    size_t mark = r->out.len;
    for (size_t i = 0; ok && i < f->len; i++) { // one code at a time; out is not touched while c is held
        char code[4] = {'%', 0, 0, 0}, buf[256];
        size_t n = 0;
        if (f->p[i] != '%' || i + 1 == f->len) {
            mx_str_add(&r->out, f->p + i, 1);
            continue;
        }
        size_t k = 1;
        code[k] = f->p[++i];
        if (strchr("-_0^#EO:", code[1]) && i + 1 < f->len) code[++k] = f->p[++i];
        if (code[k] == 'f') {
            n = (size_t)snprintf(buf, sizeof buf, "%06ld", ts.tv_nsec / 1000);
        } else if (code[k] != 'z' && code[k] != 'Z') {
            n = strftime_l(buf, sizeof buf, code, &tm, c);
        }
        mx_str_add(&r->out, buf, n);
        ok = !r->out.oom;
    }
    freelocale(c);
    tpl_out(r, "", 0); // fails when the output is full
    tpl_step(r, f->len);
    return tpl_take(r, mark);
}

static const tpl_func globals[] = {{"range", g_range, 1, ".start .stop .step"},
                                   {"dict", g_dict, 0, "*"},
                                   {"namespace", g_namespace, 0, "*"},
                                   {"cycler", g_cycler, 0, "*"},
                                   {"joiner", g_joiner, 0, "sep"},
                                   {"raise_exception", g_raise, 1, "message"},
                                   {"strftime_now", g_strftime, 1, "format"},
                                   {"lipsum", g_lipsum, 0, "*"}};

tpl_val tpl_global(tpl_run *r, tpl_str *name) {
    (void)r;
    const tpl_func *f = tpl_find_func(globals, countof(globals), name->p, name->len);
    return f ? (tpl_val){.t = T_FUNC, .u.fn = f} : tpl_missing();
}

tpl_val tpl_call(tpl_run *r, tpl_val fn, const tpl_args *args) {
    switch (fn.t) {
    case T_UNDEF: tpl_undef_fail(r, fn);
    case T_MACRO: return tpl_macro_run(r, fn.u.macro, args);
    case T_FUNC: return tpl_apply(r, fn.u.fn, tpl_none(), args);
    case T_METHOD: return tpl_apply(r, fn.u.method->fn, fn.u.method->self, args);
    case T_LOOP:
        if (!fn.u.loop->node->flag)
            FAIL(r, "The loop must have the 'recursive' marker to be called recursively.");
        if (args->n != 1 || args->n_kw) FAIL(r, "loop() takes one argument");
        return tpl_recurse(r, fn.u.loop, args->pos[0]);
    case T_JOINER:
        if (fn.u.cyc->used) return fn.u.cyc->sep;
        fn.u.cyc->used = true;
        return tpl_strz(r, "");
    default: FAIL(r, "'%s' object is not callable", tpl_type_name(fn));
    }
}
