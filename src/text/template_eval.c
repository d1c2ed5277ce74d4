/* template_eval.c - walking the tree.
 *
 * Scopes follow jinja2's rules: for, macro, call, with, filter and set blocks have one of their own, if has not; what is
 * set inside stays inside. A macro sees the scope it was defined in. Depth is bounded by the C stack that is used
 * (tpl_check_stack), so frames are kept small: each kind of node has its own function, which is not inlined. */
#include "template_int.h"

#define NOINLINE __attribute__((noinline))

typedef enum { GO_ON, BREAK, CONTINUE } jump;

static jump exec(tpl_run *r, const tpl_node *n, tpl_scope *s);

/* ---- variables ------------------------------------------------------------------------------------------------ */

static void set_var(tpl_run *r, tpl_scope *s, tpl_str *name, tpl_val v) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].v = v;
            return;
        }
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        tpl_var *vars = NEW_ARRAY(r, tpl_var, cap);
        if (s->n) memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (tpl_var){.name = name, .v = v};
}

static tpl_val get_var(tpl_run *r, const tpl_scope *s, tpl_str *name) {
    for (; s; s = s->parent) {
        for (size_t i = 0; i < s->n; i++) {
            if (s->vars[i].name != name) continue;
            if (s->vars[i].v.t == T_MISSING) return tpl_undef_name(r, name);
            return s->vars[i].v;
        }
    }
    tpl_val *c = &r->cache[name->id];
    if (c->t == T_MISSING) {
        const mx_json *j = mx_json_getn(r->vars, name->p, name->len);
        *c = j ? tpl_from_json(r, j) : tpl_global(r, name);
        if (c->t == T_MISSING) *c = tpl_undef_name(r, name);
    }
    return *c;
}

static tpl_scope *new_scope(tpl_run *r, tpl_scope *parent) {
    tpl_scope *s = NEW(r, tpl_scope);
    s->parent = parent;
    return s;
}

static void keep_scope(tpl_scope *s) { // a macro refers to it and to those around it
    for (; s && !s->kept; s = s->parent) s->kept = true;
}

NOINLINE static void unpack(tpl_run *r, const tpl_node *target, tpl_val v, tpl_scope *s) {
    size_t want = 0, got = 0;
    for (const tpl_node *t = target->a; t; t = t->next) want++;
    if (!tpl_iterable(v)) FAIL(r, "cannot unpack non-iterable %s object", tpl_type_name(v));
    tpl_iter *it = tpl_iterate(r, v);
    tpl_val item;
    for (const tpl_node *t = target->a; t; t = t->next, got++) {
        if (!tpl_next(r, it, &item)) {
            FAIL(r, "not enough values to unpack (expected %zu, got %zu)", want, got);
        }
        tpl_assign(r, t, item, s);
    }
    if (tpl_next(r, it, &item)) FAIL(r, "too many values to unpack (expected %zu)", want);
}

NOINLINE static void set_attribute(tpl_run *r, const tpl_node *target, tpl_val v, tpl_scope *s) {
    tpl_val ns = get_var(r, s, target->name);
    if (ns.t != T_NS) FAIL(r, "cannot assign attribute on non-namespace object");
    if (target->k.u.s->len && target->k.u.s->p[0] == '_') {
        FAIL(r, "a namespace cannot have attributes that begin with an underscore");
    }
    tpl_dict_set(r, ns.u.m, target->k, v);
}

void tpl_assign(tpl_run *r, const tpl_node *target, tpl_val v, tpl_scope *s) {
    tpl_check_stack(&r->c);
    if (target->kind == N_NAME) {
        set_var(r, s, target->name, v);
    } else if (target->kind == N_NSREF) {
        set_attribute(r, target, v, s);
    } else {
        unpack(r, target, v, s);
    }
}

/* ---- expressions ---------------------------------------------------------------------------------------------- */

static size_t count(const tpl_node *n) {
    size_t k = 0;
    for (; n; n = n->next) k++;
    return k;
}

NOINLINE static void spread_args(tpl_run *r, tpl_args *args, tpl_val v) {
    tpl_val more = tpl_to_list(r, v);
    tpl_val *pos = NEW_ARRAY(r, tpl_val, args->n + more.u.l->n);
    if (args->n) memcpy(pos, args->pos, args->n * sizeof *pos);
    for (size_t i = 0; i < more.u.l->n; i++) pos[args->n + i] = more.u.l->v[i];
    args->pos = pos;
    args->n += more.u.l->n;
}

NOINLINE static void spread_kwargs(tpl_run *r, tpl_args *args, tpl_val v) {
    if (v.t != T_DICT) FAIL(r, "argument after ** must be a mapping, not %s", tpl_type_name(v));
    const tpl_dict *d = tpl_dict_of(r, v.u.m);
    tpl_kwarg *kw = NEW_ARRAY(r, tpl_kwarg, args->n_kw + d->n);
    if (args->n_kw) memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    for (size_t i = 0; i < d->n; i++) {
        if (d->e[i].key.t != T_STR) FAIL(r, "keywords must be strings");
        tpl_str *name = d->e[i].key.u.s;
        for (size_t k = 0; k < args->n_kw; k++) {
            if (kw[k].name->len == name->len && !memcmp(kw[k].name->p, name->p, name->len)) {
                FAIL(r, "got multiple values for keyword argument '%.*s'", (int)name->len, name->p);
            }
        }
        kw[args->n_kw + i] = (tpl_kwarg){.name = name, .v = d->e[i].val};
    }
    args->kw = kw;
    args->n_kw += d->n;
}

NOINLINE static void eval_args(tpl_run *r, const tpl_node *n, tpl_scope *s, tpl_args *args) {
    *args = (tpl_args){.n = count(n->b), .n_kw = count(n->c)};
    if (args->n) args->pos = NEW_ARRAY(r, tpl_val, args->n);
    if (args->n_kw) args->kw = NEW_ARRAY(r, tpl_kwarg, args->n_kw);
    size_t i = 0;
    for (const tpl_node *a = n->b; a; a = a->next) args->pos[i++] = tpl_eval(r, a, s);
    i = 0;
    for (const tpl_node *a = n->c; a; a = a->next) {
        args->kw[i].name = a->name;
        args->kw[i++].v = tpl_eval(r, a->a, s);
    }
    if (n->d) spread_args(r, args, tpl_eval(r, n->d, s));
    if (n->e) spread_kwargs(r, args, tpl_eval(r, n->e, s));
}

NOINLINE static tpl_val eval_call(tpl_run *r, const tpl_node *n, tpl_scope *s, const tpl_kwarg *caller) {
    tpl_val fn = tpl_eval(r, n->a, s);
    tpl_args args;
    eval_args(r, n, s, &args);
    if (caller) {
        tpl_kwarg *kw = NEW_ARRAY(r, tpl_kwarg, args.n_kw + 1);
        if (args.n_kw) memcpy(kw, args.kw, args.n_kw * sizeof *kw);
        kw[args.n_kw++] = *caller;
        args.kw = kw;
    }
    r->c.line = n->line;
    return tpl_call(r, fn, &args);
}

NOINLINE static tpl_val eval_filter(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val v = n->a ? tpl_eval(r, n->a, s) : r->block;
    tpl_args args;
    eval_args(r, n, s, &args);
    r->c.line = n->line;
    if (!n->fn) {
        FAIL(r, "No %s named '%.*s' found.", n->kind == N_TEST ? "test" : "filter", (int)n->name->len,
             n->name->p);
    }
    return tpl_apply(r, n->fn, v, &args);
}

NOINLINE static tpl_val eval_items(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val v = tpl_mklist(r, n->kind == N_LIST ? T_LIST : T_TUPLE, count(n->a));
    size_t i = 0;
    for (const tpl_node *a = n->a; a; a = a->next) v.u.l->v[i++] = tpl_eval(r, a, s);
    return v;
}

NOINLINE static tpl_val eval_dict(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val v = tpl_mkdict(r);
    for (const tpl_node *p = n->a; p; p = p->next) {
        tpl_val key = tpl_eval(r, p->a, s);
        tpl_dict_set(r, v.u.m, key, tpl_eval(r, p->b, s));
    }
    return v;
}

NOINLINE static tpl_val eval_compare(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val left = tpl_eval(r, n->a, s);
    for (const tpl_node *o = n->b; o; o = o->next) {
        tpl_val right = tpl_eval(r, o->a, s);
        r->c.line = o->line;
        if (!tpl_compare_op(r, o->op, left, right)) return tpl_bool(false);
        left = right;
    }
    return tpl_bool(true);
}

NOINLINE static tpl_val eval_concat(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_str *text = tpl_str_of(r, tpl_eval(r, n->a, s));
    for (const tpl_node *a = n->a->next; a; a = a->next) {
        tpl_str *more = tpl_str_of(r, tpl_eval(r, a, s));
        text = tpl_concat(r, text, more->p, more->len).u.s;
    }
    return (tpl_val){.t = T_STR, .u.s = text};
}

NOINLINE static tpl_val eval_binop(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val a = tpl_eval(r, n->a, s), b = tpl_eval(r, n->b, s);
    r->c.line = n->line;
    return tpl_binop(r, n->op, a, b);
}

NOINLINE static tpl_val eval_item(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val v = tpl_eval(r, n->a, s);
    if (n->b->kind == N_SLICE) {
        tpl_val from = n->b->a ? tpl_eval(r, n->b->a, s) : tpl_none();
        tpl_val to = n->b->b ? tpl_eval(r, n->b->b, s) : tpl_none();
        tpl_val step = n->b->c ? tpl_eval(r, n->b->c, s) : tpl_none();
        r->c.line = n->line;
        return tpl_slice(r, v, from, to, step);
    }
    tpl_val key = tpl_eval(r, n->b, s);
    r->c.line = n->line;
    return tpl_getitem(r, v, key);
}

NOINLINE static tpl_val eval_attr(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_val v = tpl_eval(r, n->a, s);
    r->c.line = n->line;
    return tpl_getattr(r, v, (tpl_val){.t = T_STR, .u.s = n->name});
}

NOINLINE static tpl_val no_else(tpl_run *r, const tpl_node *n) {
    char *hint = mx_arena_printf(
        &r->a, "the inline if-expression on line %d evaluated to false and no else section was defined.",
        n->line);
    return tpl_undef_hint(r, hint ? hint : "the inline if-expression evaluated to false");
}

tpl_val tpl_eval(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_step(r, 1);
    tpl_check_stack(&r->c);
    tpl_val v;
    switch (n->kind) {
    case N_CONST: return n->k;
    case N_NAME: return get_var(r, s, n->name);
    case N_TUPLE:
    case N_LIST: return eval_items(r, n, s);
    case N_DICT: return eval_dict(r, n, s);
    case N_COND:
        if (tpl_truth(r, tpl_eval(r, n->a, s))) return tpl_eval(r, n->b, s);
        return n->c ? tpl_eval(r, n->c, s) : no_else(r, n);
    case N_OR: v = tpl_eval(r, n->a, s); return tpl_truth(r, v) ? v : tpl_eval(r, n->b, s);
    case N_AND: v = tpl_eval(r, n->a, s); return tpl_truth(r, v) ? tpl_eval(r, n->b, s) : v;
    case N_NOT: return tpl_bool(!tpl_truth(r, tpl_eval(r, n->a, s)));
    case N_COMPARE: return eval_compare(r, n, s);
    case N_BINOP: return eval_binop(r, n, s);
    case N_CONCAT: return eval_concat(r, n, s);
    case N_NEG:
    case N_POS: return tpl_negate(r, tpl_eval(r, n->a, s), n->kind == N_NEG);
    case N_GETATTR: return eval_attr(r, n, s);
    case N_GETITEM: return eval_item(r, n, s);
    case N_CALL: return eval_call(r, n, s, NULL);
    case N_FILTER:
    case N_TEST: return eval_filter(r, n, s);
    case N_SLICE: FAIL(r, "a slice cannot be part of a tuple");
    default: tpl_fail(&r->c, MX_EINTERNAL, "no expression");
    }
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

bool tpl_for_test(tpl_run *r, const tpl_iter *it, tpl_val item) {
    tpl_scope *s = new_scope(r, it->scope);
    tpl_assign(r, it->node->a, item, s);
    return tpl_truth(r, tpl_eval(r, it->node->c, s));
}

static bool loop_next(tpl_run *r, tpl_loop *lp) {
    tpl_val item;
    if (lp->has_after) {
        item = lp->after;
        lp->has_after = false;
    } else if (!tpl_next(r, lp->it, &item)) {
        return false;
    }
    lp->index0++;
    lp->before = lp->current;
    lp->current = item;
    return true;
}

NOINLINE static jump run_for(tpl_run *r, const tpl_node *n, tpl_scope *s, tpl_val items, int depth0) {
    tpl_loop *lp = NEW(r, tpl_loop);
    if (n->c) {
        tpl_val filtered = tpl_mkiter(r, IT_FORTEST, "generator", items);
        filtered.u.it->node = n;
        filtered.u.it->scope = s;
        items = filtered;
    }
    *lp = (tpl_loop){.it = tpl_iterate(r, items),
                     .iterable = items,
                     .index0 = -1,
                     .depth0 = depth0,
                     .length = -1,
                     .node = n,
                     .scope = s};
    tpl_scope *body = NULL;
    bool completed = false;
    while (loop_next(r, lp)) {
        if (!body || body->kept) body = new_scope(r, s);
        body->n = 0;
        tpl_assign(r, n->a, lp->current, body);
        set_var(r, body, r->t->s_loop, (tpl_val){.t = T_LOOP, .u.loop = lp});
        jump j = exec(r, n->body, body);
        if (j == GO_ON) completed = true; // jinja2 runs else unless a turn came to its end
        if (j == BREAK) break;
    }
    if (!completed && n->els) return exec(r, n->els, new_scope(r, s));
    return GO_ON;
}

static void enter(tpl_run *r) {
    if (++r->n_macro > TPL_MAX_MACRO)
        tpl_fail(&r->c, MX_ELIMIT, "macros call each other more than %d deep", TPL_MAX_MACRO);
}

tpl_val tpl_recurse(tpl_run *r, const tpl_loop *outer, tpl_val items) {
    size_t mark = r->out.len;
    enter(r);
    run_for(r, outer->node, outer->scope, items, outer->depth0 + 1);
    r->n_macro--;
    return tpl_take(r, mark);
}

static void take_caller(tpl_run *r, const tpl_node *n, const tpl_args *args, bool *used, tpl_scope *s) {
    if (!(n->flag & USES_CALLER)) return;
    for (const tpl_node *p = n->a; p; p = p->next) {
        if (p->name == r->t->s_caller) return; // a parameter of that name
    }
    tpl_val v = tpl_undef_hint(r, "No caller defined");
    for (size_t i = 0; i < args->n_kw; i++) {
        if (!tpl_str_is(args->kw[i].name, "caller")) continue;
        v = args->kw[i].v;
        used[i] = true;
    }
    set_var(r, s, r->t->s_caller, v);
}

static void take_rest(tpl_run *r, const tpl_node *n, const tpl_args *args, const bool *used, size_t n_param,
                      tpl_scope *s) {
    tpl_val rest = tpl_mkdict(r);
    int len = (int)(n->name->len < 100 ? n->name->len : 100);
    for (size_t i = 0; i < args->n_kw; i++) {
        if (used[i]) continue;
        const tpl_str *name = args->kw[i].name;
        if (!(n->flag & USES_KWARGS)) {
            FAIL(r, "macro '%.*s' takes no keyword argument '%.*s'", len, n->name->p,
                 (int)(name->len < 100 ? name->len : 100), name->p);
        }
        tpl_dict_set(r, rest.u.m, (tpl_val){.t = T_STR, .u.s = args->kw[i].name}, args->kw[i].v);
    }
    if (n->flag & USES_KWARGS) set_var(r, s, r->t->s_kwargs, rest);
    size_t extra = args->n > n_param ? args->n - n_param : 0;
    if (!(n->flag & USES_VARARGS)) {
        if (extra) FAIL(r, "macro '%.*s' takes not more than %zu argument(s)", len, n->name->p, n_param);
        return;
    }
    tpl_val more = tpl_mklist(r, T_TUPLE, extra);
    for (size_t i = 0; i < extra; i++) more.u.l->v[i] = args->pos[n_param + i];
    set_var(r, s, r->t->s_varargs, more);
}

NOINLINE static tpl_scope *macro_scope(tpl_run *r, tpl_macro *m, const tpl_args *args) {
    const tpl_node *n = m->node;
    tpl_scope *s = new_scope(r, m->scope);
    bool *used = NEW_ARRAY(r, bool, args->n_kw);
    size_t i = 0;
    for (const tpl_node *p = n->a; p; p = p->next, i++) {
        tpl_val v = i < args->n ? args->pos[i] : tpl_missing();
        for (size_t k = 0; i >= args->n && k < args->n_kw; k++) {
            const tpl_str *name = args->kw[k].name;
            if (name != p->name && (name->len != p->name->len || memcmp(name->p, p->name->p, name->len)))
                continue;
            v = args->kw[k].v;
            used[k] = true;
        }
        set_var(r, s, p->name, v);
    }
    take_caller(r, n, args, used, s);
    take_rest(r, n, args, used, i, s);
    i = 0;
    for (const tpl_node *p = n->a; p; p = p->next, i++) {
        if (s->vars[i].v.t != T_MISSING) continue;
        if (p->a) {
            tpl_val v = tpl_eval(r, p->a, s);
            s->vars[i].v = v;
        } else {
            char *hint =
                mx_arena_printf(&r->a, "parameter '%.*s' was not provided", (int)p->name->len, p->name->p);
            s->vars[i].v = tpl_undef_hint(r, hint ? hint : "a parameter was not provided");
        }
    }
    return s;
}

tpl_val tpl_macro_run(tpl_run *r, tpl_macro *m, const tpl_args *args) {
    size_t mark = r->out.len;
    enter(r);
    tpl_check_stack(&r->c);
    exec(r, m->node->body, macro_scope(r, m, args));
    r->n_macro--;
    return tpl_take(r, mark);
}

static tpl_val new_macro(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_macro *m = NEW(r, tpl_macro);
    *m = (tpl_macro){.node = n, .scope = s};
    keep_scope(s);
    return (tpl_val){.t = T_MACRO, .u.macro = m};
}

NOINLINE static void exec_call(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_kwarg caller = {.name = r->t->s_caller, .v = new_macro(r, n, s)};
    tpl_put_str(r, eval_call(r, n->b, s, &caller));
}

/* A set or filter block: its text, through its filters. */
NOINLINE static tpl_val block_value(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    size_t mark = r->out.len;
    exec(r, n->body, new_scope(r, s));
    tpl_val text = tpl_take(r, mark);
    if (!n->b) return text;
    r->block = text;
    return tpl_eval(r, n->b, s);
}

NOINLINE static jump exec_with(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    tpl_scope *inner = new_scope(r, s);
    const tpl_node *v = n->b;
    for (const tpl_node *t = n->a, *next; t; t = next, v = v->next) {
        next = t->next;
        tpl_assign(r, t, tpl_eval(r, v, s), inner);
    }
    return exec(r, n->body, inner);
}

NOINLINE static void exec_output(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    for (const tpl_node *e = n->a; e; e = e->next) {
        if (e->kind == N_CONST) {
            tpl_put_str(r, e->k);
        } else {
            tpl_put_str(r, tpl_eval(r, e, s));
        }
    }
}

/* If and its elifs, without recursion over them. */
NOINLINE static const tpl_node *choose(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    for (; n; n = n->els) {
        r->c.line = n->line;
        if (tpl_truth(r, tpl_eval(r, n->a, s))) return n->body;
        if (!n->flag) return n->els;
    }
    return NULL;
}

static jump exec(tpl_run *r, const tpl_node *n, tpl_scope *s) {
    jump j = GO_ON;
    tpl_check_stack(&r->c);
    for (; n && j == GO_ON; n = n->next) {
        tpl_step(r, 1);
        r->c.line = n->line;
        switch (n->kind) {
        case N_OUTPUT: exec_output(r, n, s); break;
        case N_IF: j = exec(r, choose(r, n, s), s); break;
        case N_FOR: j = run_for(r, n, s, tpl_eval(r, n->b, s), 0); break;
        case N_SET: tpl_assign(r, n->a, tpl_eval(r, n->b, s), s); break;
        case N_SETBLOCK: tpl_assign(r, n->a, block_value(r, n, s), s); break;
        case N_FILTERBLOCK: tpl_put_str(r, block_value(r, n, s)); break;
        case N_MACRO: set_var(r, s, n->name, new_macro(r, n, s)); break;
        case N_CALLBLOCK: exec_call(r, n, s); break;
        case N_WITH: j = exec_with(r, n, s); break;
        case N_SCOPE: j = exec(r, n->body, new_scope(r, s)); break;
        case N_BREAK: return BREAK;
        case N_CONTINUE: return CONTINUE;
        default: tpl_fail(&r->c, MX_EINTERNAL, "no statement");
        }
    }
    return j;
}

void tpl_exec(tpl_run *r, const tpl_node *body, tpl_scope *s) { exec(r, body, s); }
