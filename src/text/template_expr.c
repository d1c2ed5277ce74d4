/* template_expr.c - the expressions of a template: one function for each level of precedence. */
#include "template_parse.h"

/* ---- expressions ---------------------------------------------------------------------------------------------- */

static void call_args(tpl_parser *ps, tpl_node *call) {
    int line = ps->tok->line;
    tpl_ps_expect(ps, TK_LPAREN, "(");
    tpl_chain args = {0}, kwargs = {0};
    bool comma = false;
    while (ps->tok->kind != TK_RPAREN) {
        if (comma) {
            tpl_ps_expect(ps, TK_COMMA, ",");
            if (ps->tok->kind == TK_RPAREN) break;
        }
        bool ok;
        if (tpl_ps_skip_kind(ps, TK_MUL)) {
            ok = !call->d && !call->e;
            if (ok) call->d = tpl_ps_expression(ps, true);
        } else if (tpl_ps_skip_kind(ps, TK_POW)) {
            ok = !call->e;
            if (ok) call->e = tpl_ps_expression(ps, true);
        } else if (ps->tok->kind == TK_NAME && ps->tok[1].kind == TK_ASSIGN) {
            ok = !call->e;
            tpl_node *kw = tpl_ps_new_node(ps, N_KWARG, ps->tok->line);
            kw->name = tpl_ps_intern(ps, ps->tok->p, ps->tok->len);
            tpl_ps_take(ps);
            tpl_ps_take(ps);
            kw->a = tpl_ps_expression(ps, true);
            for (tpl_node *k = kwargs.first; k; k = k->next) {
                if (k->name == kw->name) {
                    tpl_fail(ps->c, MX_EINVAL, "keyword argument repeated: %.*s", (int)kw->name->len,
                             kw->name->p);
                }
            }
            tpl_ps_add(&kwargs, kw);
        } else {
            ok = !call->d && !call->e && !kwargs.first;
            if (ok) tpl_ps_add(&args, tpl_ps_expression(ps, true));
        }
        if (!ok) {
            ps->c->line = line;
            tpl_fail(ps->c, MX_EINVAL, "invalid syntax for function call expression");
        }
        comma = true;
    }
    tpl_ps_expect(ps, TK_RPAREN, ")");
    call->b = args.first;
    call->c = kwargs.first;
}

static tpl_node *call(tpl_parser *ps, tpl_node *callee) {
    tpl_node *n = tpl_ps_node2(ps, N_CALL, ps->tok->line, callee, NULL);
    call_args(ps, n);
    return n;
}

/* One subscript: an expression, or a slice. */
static tpl_node *subscribed(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *part[3] = {NULL, NULL, NULL};
    if (ps->tok->kind != TK_COLON) {
        part[0] = tpl_ps_expression(ps, true);
        if (ps->tok->kind != TK_COLON) return part[0];
    }
    tpl_ps_take(ps);
    if (ps->tok->kind != TK_COLON && ps->tok->kind != TK_RBRACKET && ps->tok->kind != TK_COMMA) {
        part[1] = tpl_ps_expression(ps, true);
    }
    if (tpl_ps_skip_kind(ps, TK_COLON) && ps->tok->kind != TK_RBRACKET && ps->tok->kind != TK_COMMA) {
        part[2] = tpl_ps_expression(ps, true);
    }
    tpl_node *n = tpl_ps_node2(ps, N_SLICE, line, part[0], part[1]);
    n->c = part[2];
    return n;
}

static tpl_node *subscript(tpl_parser *ps, tpl_node *base) {
    const tpl_tok *t = tpl_ps_take(ps);
    if (t->kind == TK_DOT) {
        const tpl_tok *attr = tpl_ps_take(ps);
        if (attr->kind == TK_NAME) {
            tpl_node *n = tpl_ps_node2(ps, N_GETATTR, t->line, base, NULL);
            n->name = tpl_ps_intern(ps, attr->p, attr->len);
            return n;
        }
        if (attr->kind != TK_INT) {
            ps->c->line = attr->line;
            tpl_fail(ps->c, MX_EINVAL, "expected name or number after '.'");
        }
        tpl_node *k = tpl_ps_new_node(ps, N_CONST, attr->line);
        k->k = (tpl_val){.t = T_INT, .u.i = attr->i};
        return tpl_ps_node2(ps, N_GETITEM, t->line, base, k);
    }
    tpl_chain args = {0};
    size_t n_arg = 0;
    while (ps->tok->kind != TK_RBRACKET) {
        if (n_arg++) tpl_ps_expect(ps, TK_COMMA, ",");
        tpl_ps_add(&args, subscribed(ps));
    }
    tpl_ps_expect(ps, TK_RBRACKET, "]");
    tpl_node *key = args.first;
    if (n_arg != 1) key = tpl_ps_node2(ps, N_TUPLE, t->line, args.first, NULL);
    return tpl_ps_node2(ps, N_GETITEM, t->line, base, key);
}

static tpl_node *postfix(tpl_parser *ps, tpl_node *n) {
    for (;;) {
        if (ps->tok->kind == TK_DOT || ps->tok->kind == TK_LBRACKET) {
            n = subscript(ps, n);
        } else if (ps->tok->kind == TK_LPAREN) {
            n = call(ps, n);
        } else {
            return n;
        }
    }
}

static tpl_str *dotted_name(tpl_parser *ps) {
    const tpl_tok *first = tpl_ps_expect(ps, TK_NAME, "name"), *last = first;
    while (tpl_ps_skip_kind(ps, TK_DOT)) last = tpl_ps_expect(ps, TK_NAME, "name");
    return tpl_ps_intern(ps, first->p, (size_t)(last->p + last->len - first->p));
}

static void resolve(tpl_parser *ps, tpl_node *n, bool is_test) {
    n->fn = is_test ? tpl_find_test(n->name->p, n->name->len) : tpl_find_filter(n->name->p, n->name->len);
    if (n->fn) return;
    tpl_pending *p = tpl_alloc(ps->c, 1, sizeof *p);
    *p = (tpl_pending){.node = n, .is_test = is_test, .next = ps->open};
    ps->open = p;
}

/* One "| name(args)"; value NULL is the text of a block. */
tpl_node *tpl_ps_one_filter(tpl_parser *ps, tpl_node *value) {
    tpl_node *n = tpl_ps_node2(ps, N_FILTER, ps->tok->line, value, NULL);
    n->name = dotted_name(ps);
    if (ps->tok->kind == TK_LPAREN) call_args(ps, n);
    resolve(ps, n, false);
    return n;
}

tpl_node *tpl_ps_filters(tpl_parser *ps, tpl_node *value) {
    while (tpl_ps_skip_kind(ps, TK_PIPE)) value = tpl_ps_one_filter(ps, value);
    return value;
}

static tpl_node *primary(tpl_parser *ps, bool with_ns);

static tpl_node *test(tpl_parser *ps, tpl_node *value) {
    int line = tpl_ps_take(ps)->line; // "is"
    bool negated = tpl_ps_skip_name(ps, "not");
    tpl_node *n = tpl_ps_node2(ps, N_TEST, line, value, NULL);
    n->name = dotted_name(ps);
    tpl_tok_kind k = ps->tok->kind;
    if (k == TK_LPAREN) {
        call_args(ps, n);
    } else if ((k == TK_NAME || k == TK_STRING || k == TK_INT || k == TK_REAL || k == TK_LBRACKET ||
                k == TK_LBRACE) &&
               !tpl_ps_at_name(ps, "else") && !tpl_ps_at_name(ps, "or") && !tpl_ps_at_name(ps, "and")) {
        if (tpl_ps_at_name(ps, "is")) tpl_fail(ps->c, MX_EINVAL, "You cannot chain multiple tests with is");
        n->b = postfix(ps, primary(ps, false));
    }
    resolve(ps, n, true);
    return negated ? tpl_ps_node2(ps, N_NOT, line, n, NULL) : n;
}

static tpl_node *list_or_dict(tpl_parser *ps, bool dict) {
    tpl_node *n = tpl_ps_new_node(ps, dict ? N_DICT : N_LIST, tpl_ps_take(ps)->line);
    tpl_tok_kind close = dict ? TK_RBRACE : TK_RBRACKET;
    tpl_chain items = {0};
    while (ps->tok->kind != close) {
        if (items.first) tpl_ps_expect(ps, TK_COMMA, ",");
        if (ps->tok->kind == close) break;
        tpl_node *item = tpl_ps_expression(ps, true);
        if (dict) {
            tpl_ps_expect(ps, TK_COLON, ":");
            item = tpl_ps_node2(ps, N_PAIR, item->line, item, NULL);
            item->b = tpl_ps_expression(ps, true);
        }
        tpl_ps_add(&items, item);
    }
    tpl_ps_take(ps);
    n->a = items.first;
    return n;
}

static tpl_node *strings(tpl_parser *ps) { // adjacent literals are one
    int line = ps->tok->line;
    size_t len = 0, n = 0;
    for (const tpl_tok *t = ps->tok; t->kind == TK_STRING; t++, n++) len += t->len;
    char *p = tpl_alloc(ps->c, len + 1, 1);
    len = 0;
    while (ps->tok->kind == TK_STRING) {
        const tpl_tok *t = tpl_ps_take(ps);
        if (t->len) memcpy(p + len, t->p, t->len);
        len += t->len;
    }
    tpl_node *k = tpl_ps_new_node(ps, N_CONST, line);
    k->k = tpl_ps_const_str(ps, p, len);
    return k;
}

static tpl_node *name(tpl_parser *ps, bool with_ns) {
    const tpl_tok *t = tpl_ps_take(ps);
    tpl_node *n = tpl_ps_new_node(ps, N_CONST, t->line);
    if (tpl_ps_is_name(t, "true") || tpl_ps_is_name(t, "True")) {
        n->k = (tpl_val){.t = T_BOOL, .u.b = true};
    } else if (tpl_ps_is_name(t, "false") || tpl_ps_is_name(t, "False")) {
        n->k = (tpl_val){.t = T_BOOL};
    } else if (tpl_ps_is_name(t, "none") || tpl_ps_is_name(t, "None")) {
        n->k = (tpl_val){.t = T_NONE};
    } else {
        n->kind = N_NAME;
        n->name = tpl_ps_intern(ps, t->p, t->len);
        if (with_ns && tpl_ps_skip_kind(ps, TK_DOT)) {
            const tpl_tok *attr = tpl_ps_expect(ps, TK_NAME, "name");
            n->kind = N_NSREF;
            n->k = tpl_ps_const_str(ps, attr->p, attr->len);
        } else if (tpl_ps_is_name(t, "caller")) {
            ps->uses |= USES_CALLER;
        } else if (tpl_ps_is_name(t, "kwargs")) {
            ps->uses |= USES_KWARGS;
        } else if (tpl_ps_is_name(t, "varargs")) {
            ps->uses |= USES_VARARGS;
        }
    }
    return n;
}

static tpl_node *primary(tpl_parser *ps, bool with_ns) {
    const tpl_tok *t = ps->tok;
    tpl_node *n;
    switch (t->kind) {
    case TK_NAME: return name(ps, with_ns);
    case TK_STRING: return strings(ps);
    case TK_INT:
    case TK_REAL:
        n = tpl_ps_new_node(ps, N_CONST, t->line);
        n->k = t->kind == TK_INT ? (tpl_val){.t = T_INT, .u.i = t->i} : (tpl_val){.t = T_REAL, .u.d = t->d};
        tpl_ps_take(ps);
        return n;
    case TK_LPAREN:
        tpl_ps_take(ps);
        tpl_check_stack(ps->c);
        n = tpl_ps_tuple(ps, false, true, NULL, true, false);
        tpl_ps_expect(ps, TK_RPAREN, ")");
        return n;
    case TK_LBRACKET: return list_or_dict(ps, false);
    case TK_LBRACE: return list_or_dict(ps, true);
    default: ps->c->line = t->line; tpl_fail(ps->c, MX_EINVAL, "unexpected '%s'", tpl_tok_name(ps->c, t));
    }
}

static tpl_node *unary(tpl_parser *ps, bool with_filter) {
    tpl_check_stack(ps->c);
    const tpl_tok *t = ps->tok;
    tpl_node *n;
    if (t->kind == TK_SUB || t->kind == TK_ADD) {
        tpl_ps_take(ps);
        n = tpl_ps_node2(ps, t->kind == TK_SUB ? N_NEG : N_POS, t->line, unary(ps, false), NULL);
    } else {
        n = primary(ps, false);
    }
    n = postfix(ps, n);
    if (!with_filter) return n;
    for (;;) {
        if (ps->tok->kind == TK_PIPE) {
            n = tpl_ps_filters(ps, n);
        } else if (tpl_ps_at_name(ps, "is")) {
            n = test(ps, n);
        } else if (ps->tok->kind == TK_LPAREN) {
            n = call(ps, n);
        } else {
            return n;
        }
    }
}

static tpl_node *binary(tpl_parser *ps, int line, tpl_op op, tpl_node *a, tpl_node *b) {
    tpl_node *n = tpl_ps_node2(ps, N_BINOP, line, a, b);
    n->op = (uint8_t)op;
    return n;
}

static tpl_node *power(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = unary(ps, true);
    while (tpl_ps_skip_kind(ps, TK_POW)) n = binary(ps, line, OP_POW, n, unary(ps, true));
    return n;
}

static tpl_node *product(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = power(ps);
    for (;;) {
        tpl_tok_kind k = ps->tok->kind;
        if (k != TK_MUL && k != TK_DIV && k != TK_FLOORDIV && k != TK_MOD) return n;
        tpl_ps_take(ps);
        tpl_op op = k == TK_MUL ? OP_MUL : k == TK_DIV ? OP_DIV : k == TK_MOD ? OP_MOD : OP_FLOORDIV;
        n = binary(ps, line, op, n, power(ps));
    }
}

static tpl_node *concat(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = product(ps);
    if (ps->tok->kind != TK_TILDE) return n;
    tpl_chain items = {0};
    tpl_ps_add(&items, n);
    while (tpl_ps_skip_kind(ps, TK_TILDE)) tpl_ps_add(&items, product(ps));
    return tpl_ps_node2(ps, N_CONCAT, line, items.first, NULL);
}

static tpl_node *sum(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = concat(ps);
    for (;;) {
        tpl_tok_kind k = ps->tok->kind;
        if (k != TK_ADD && k != TK_SUB) return n;
        tpl_ps_take(ps);
        n = binary(ps, line, k == TK_ADD ? OP_ADD : OP_SUB, n, concat(ps));
    }
}

static tpl_node *comparison(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = sum(ps);
    tpl_chain ops = {0};
    for (;;) {
        tpl_op op;
        switch (ps->tok->kind) {
        case TK_EQ: op = OP_EQ; break;
        case TK_NE: op = OP_NE; break;
        case TK_LT: op = OP_LT; break;
        case TK_LE: op = OP_LE; break;
        case TK_GT: op = OP_GT; break;
        case TK_GE: op = OP_GE; break;
        default:
            if (tpl_ps_at_name(ps, "in")) {
                op = OP_IN;
            } else if (tpl_ps_at_name(ps, "not") && tpl_ps_is_name(&ps->tok[1], "in")) {
                op = OP_NOTIN;
                tpl_ps_take(ps);
            } else {
                return ops.first ? tpl_ps_node2(ps, N_COMPARE, line, n, ops.first) : n;
            }
        }
        int at = tpl_ps_take(ps)->line;
        tpl_node *o = tpl_ps_node2(ps, N_OPERAND, at, sum(ps), NULL);
        o->op = (uint8_t)op;
        tpl_ps_add(&ops, o);
    }
}

static tpl_node *negation(tpl_parser *ps) {
    tpl_check_stack(ps->c);
    if (!tpl_ps_at_name(ps, "not")) return comparison(ps);
    int line = tpl_ps_take(ps)->line;
    return tpl_ps_node2(ps, N_NOT, line, negation(ps), NULL);
}

static tpl_node *conjunction(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = negation(ps);
    while (tpl_ps_skip_name(ps, "and")) n = tpl_ps_node2(ps, N_AND, line, n, negation(ps));
    return n;
}

static tpl_node *disjunction(tpl_parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = conjunction(ps);
    while (tpl_ps_skip_name(ps, "or")) n = tpl_ps_node2(ps, N_OR, line, n, conjunction(ps));
    return n;
}

tpl_node *tpl_ps_expression(tpl_parser *ps, bool with_cond) {
    tpl_check_stack(ps->c);
    tpl_pending *mark = ps->open;
    int line = ps->tok->line;
    tpl_node *n = disjunction(ps);
    while (with_cond && tpl_ps_skip_name(ps, "if")) {
        tpl_node *cond = tpl_ps_node2(ps, N_COND, line, disjunction(ps), n);
        if (tpl_ps_skip_name(ps, "else")) cond->c = tpl_ps_expression(ps, true);
        ps->open = mark; // unknown filters in here count only when reached
        n = cond;
    }
    return n;
}

static bool tuple_end(const tpl_parser *ps, const char *end_name) {
    tpl_tok_kind k = ps->tok->kind;
    return k == TK_VAR_END || k == TK_BLOCK_END || k == TK_RPAREN ||
           (end_name && tpl_ps_at_name(ps, end_name));
}

tpl_node *tpl_ps_tuple(tpl_parser *ps, bool simplified, bool with_cond, const char *end_name, bool parens,
                       bool with_ns) {
    int line = ps->tok->line;
    tpl_chain items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.first) tpl_ps_expect(ps, TK_COMMA, ",");
        if (tuple_end(ps, end_name)) break;
        tpl_ps_add(&items, simplified ? primary(ps, with_ns) : tpl_ps_expression(ps, with_cond));
        if (ps->tok->kind != TK_COMMA) break;
        is_tuple = true;
    }
    if (!is_tuple && items.first) return items.first;
    if (!is_tuple && !parens) {
        ps->c->line = ps->tok->line;
        tpl_fail(ps->c, MX_EINVAL, "Expected an expression, got '%s'", tpl_tok_name(ps->c, ps->tok));
    }
    return tpl_ps_node2(ps, N_TUPLE, line, items.first, NULL);
}
