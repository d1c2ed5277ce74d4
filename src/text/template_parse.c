/* template_parse.c - from tokens to the tree, by recursive descent with jinja2's grammar.
 *
 * Filters and tests are looked up here: an unknown one is an error of the template, except inside an if or a
 * conditional expression, where it counts only when it is reached (as in jinja2). */
#include "template_int.h"

typedef struct pending pending;
struct pending { // an unknown filter or test that may still turn out to be inside a condition
    tpl_node *node;
    bool is_test;
    pending *next;
};

typedef struct {
    tpl_ctx *c;
    mx_template *t;
    const tpl_tok *tok;
    pending *open;
    uint32_t *slots; // interned names: index + 1 by hash
    size_t n_slot, cap_name;
    int uses;             // USES_* seen in this macro body
    int loop_depth;       // for loops around us in this function; break and continue need one
    const char *end_tags; // what the innermost open block waits for, for messages
} parser;

static tpl_node *expression(parser *ps, bool with_cond);
static tpl_node *tuple(parser *ps, bool simplified, bool with_cond, const char *end_name, bool parens,
                       bool with_ns);
static tpl_node *statements(parser *ps, const char *const *ends, const char *what);

/* ---- tokens and nodes ----------------------------------------------------------------------------------------- */

static const tpl_tok *take(parser *ps) {
    const tpl_tok *t = ps->tok;
    if (t->kind != TK_EOF) ps->tok++;
    ps->c->line = ps->tok->line;
    return t;
}

static bool is_name(const tpl_tok *t, const char *z) {
    return t->kind == TK_NAME && t->len == strlen(z) && !memcmp(t->p, z, t->len);
}

static bool at_name(const parser *ps, const char *z) { return is_name(ps->tok, z); }

static bool skip_name(parser *ps, const char *z) {
    if (!at_name(ps, z)) return false;
    take(ps);
    return true;
}

static bool skip_kind(parser *ps, tpl_tok_kind k) {
    if (ps->tok->kind != k) return false;
    take(ps);
    return true;
}

_Noreturn static void unexpected(parser *ps, const char *want) {
    ps->c->line = ps->tok->line;
    if (ps->tok->kind == TK_EOF)
        tpl_fail(ps->c, MX_EINVAL, "unexpected end of template, expected '%s'", want);
    tpl_fail(ps->c, MX_EINVAL, "expected '%s', got '%s'", want, tpl_tok_name(ps->c, ps->tok));
}

static const tpl_tok *expect(parser *ps, tpl_tok_kind k, const char *want) {
    if (ps->tok->kind != k) unexpected(ps, want);
    return take(ps);
}

static void expect_name(parser *ps, const char *z) {
    if (!skip_name(ps, z)) unexpected(ps, z);
}

static tpl_node *new_node(parser *ps, tpl_kind kind, int line) {
    tpl_node *n = tpl_alloc(ps->c, 1, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

static tpl_node *node2(parser *ps, tpl_kind kind, int line, tpl_node *a, tpl_node *b) {
    tpl_node *n = new_node(ps, kind, line);
    n->a = a;
    n->b = b;
    return n;
}

/* Remember what a template talks about, for mx_template_inspect. */
static void note_word(parser *ps, const char *p, size_t len) {
    mx_template_features *f = &ps->t->features;
    struct {
        const char *word;
        bool *seen;
    } const words[] = {
        {"tools", &f->tools},      {"tool_calls", &f->tool_calls},    {"tool", &f->tool_role},
        {"system", &f->system},    {"enable_thinking", &f->thinking}, {"reasoning_content", &f->thinking},
        {"thinking", &f->thinking}};
    for (size_t i = 0; i < countof(words); i++) {
        if (strlen(words[i].word) == len && !memcmp(words[i].word, p, len)) *words[i].seen = true;
    }
}

/* Counted when compiling: a compiled template is read by several threads. */
static size_t count_chars(const char *p, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += (p[i] & 0xC0) != 0x80;
    return n;
}

/* One tpl_str for each identifier, so that scopes compare pointers. */
static tpl_str *intern(parser *ps, const char *p, size_t len) {
    mx_template *t = ps->t;
    if (t->n_name * 2 >= ps->n_slot) {
        size_t n = ps->n_slot ? ps->n_slot * 2 : 128;
        uint32_t *slots = tpl_alloc(ps->c, n, sizeof *slots);
        for (size_t i = 0; i < t->n_name; i++) {
            size_t h = 5381;
            for (size_t k = 0; k < t->names[i]->len; k++) h = h * 33 + (unsigned char)t->names[i]->p[k];
            while (slots[h & (n - 1)]) h++;
            slots[h & (n - 1)] = (uint32_t)i + 1;
        }
        ps->slots = slots;
        ps->n_slot = n;
    }
    size_t h = 5381;
    for (size_t k = 0; k < len; k++) h = h * 33 + (unsigned char)p[k];
    for (; ps->slots[h & (ps->n_slot - 1)]; h++) {
        tpl_str *s = t->names[ps->slots[h & (ps->n_slot - 1)] - 1];
        if (s->len == len && !memcmp(s->p, p, len)) return s;
    }
    if (t->n_name == ps->cap_name) {
        size_t cap = ps->cap_name ? ps->cap_name * 2 : 64;
        tpl_str **bigger = tpl_alloc(ps->c, cap, sizeof *bigger);
        if (t->n_name) memcpy(bigger, t->names, t->n_name * sizeof *bigger);
        t->names = bigger;
        ps->cap_name = cap;
    }
    tpl_str *s = tpl_alloc(ps->c, 1, sizeof *s);
    *s = (tpl_str){.p = p, .len = len, .n_cp = count_chars(p, len), .id = (uint32_t)t->n_name};
    t->names[t->n_name++] = s;
    ps->slots[h & (ps->n_slot - 1)] = (uint32_t)t->n_name;
    note_word(ps, p, len);
    return s;
}

static tpl_val const_str(parser *ps, const char *p, size_t len) {
    tpl_str *s = tpl_alloc(ps->c, 1, sizeof *s);
    *s = (tpl_str){.p = p, .len = len, .n_cp = count_chars(p, len), .id = UINT32_MAX};
    note_word(ps, p, len);
    return (tpl_val){.t = T_STR, .u.s = s};
}

/* A list of nodes, built at its end. */
typedef struct {
    tpl_node *first, **end;
} chain;
static void add(chain *ch, tpl_node *n) {
    if (!ch->first) ch->end = &ch->first;
    *ch->end = n;
    ch->end = &n->next;
}

/* ---- unknown filters and tests -------------------------------------------------------------------------------- */

_Noreturn static void unknown_filter(parser *ps, const pending *p) {
    ps->c->line = p->node->line;
    tpl_fail(ps->c, MX_EINVAL, "No %s named '%.*s'.", p->is_test ? "test" : "filter", (int)p->node->name->len,
             p->node->name->p);
}

static void need_known(parser *ps, const pending *mark) {
    if (ps->open != mark) unknown_filter(ps, ps->open);
}

/* ---- expressions ---------------------------------------------------------------------------------------------- */

static void call_args(parser *ps, tpl_node *call) {
    int line = ps->tok->line;
    expect(ps, TK_LPAREN, "(");
    chain args = {0}, kwargs = {0};
    bool comma = false;
    while (ps->tok->kind != TK_RPAREN) {
        if (comma) {
            expect(ps, TK_COMMA, ",");
            if (ps->tok->kind == TK_RPAREN) break;
        }
        bool ok;
        if (skip_kind(ps, TK_MUL)) {
            ok = !call->d && !call->e;
            if (ok) call->d = expression(ps, true);
        } else if (skip_kind(ps, TK_POW)) {
            ok = !call->e;
            if (ok) call->e = expression(ps, true);
        } else if (ps->tok->kind == TK_NAME && ps->tok[1].kind == TK_ASSIGN) {
            ok = !call->e;
            tpl_node *kw = new_node(ps, N_KWARG, ps->tok->line);
            kw->name = intern(ps, ps->tok->p, ps->tok->len);
            take(ps);
            take(ps);
            kw->a = expression(ps, true);
            for (tpl_node *k = kwargs.first; k; k = k->next) {
                if (k->name == kw->name) {
                    tpl_fail(ps->c, MX_EINVAL, "keyword argument repeated: %.*s", (int)kw->name->len,
                             kw->name->p);
                }
            }
            add(&kwargs, kw);
        } else {
            ok = !call->d && !call->e && !kwargs.first;
            if (ok) add(&args, expression(ps, true));
        }
        if (!ok) {
            ps->c->line = line;
            tpl_fail(ps->c, MX_EINVAL, "invalid syntax for function call expression");
        }
        comma = true;
    }
    expect(ps, TK_RPAREN, ")");
    call->b = args.first;
    call->c = kwargs.first;
}

static tpl_node *call(parser *ps, tpl_node *callee) {
    tpl_node *n = node2(ps, N_CALL, ps->tok->line, callee, NULL);
    call_args(ps, n);
    return n;
}

/* One subscript: an expression, or a slice. */
static tpl_node *subscribed(parser *ps) {
    int line = ps->tok->line;
    tpl_node *part[3] = {NULL, NULL, NULL};
    if (ps->tok->kind != TK_COLON) {
        part[0] = expression(ps, true);
        if (ps->tok->kind != TK_COLON) return part[0];
    }
    take(ps);
    if (ps->tok->kind != TK_COLON && ps->tok->kind != TK_RBRACKET && ps->tok->kind != TK_COMMA) {
        part[1] = expression(ps, true);
    }
    if (skip_kind(ps, TK_COLON) && ps->tok->kind != TK_RBRACKET && ps->tok->kind != TK_COMMA) {
        part[2] = expression(ps, true);
    }
    tpl_node *n = node2(ps, N_SLICE, line, part[0], part[1]);
    n->c = part[2];
    return n;
}

static tpl_node *subscript(parser *ps, tpl_node *base) {
    const tpl_tok *t = take(ps);
    if (t->kind == TK_DOT) {
        const tpl_tok *attr = take(ps);
        if (attr->kind == TK_NAME) {
            tpl_node *n = node2(ps, N_GETATTR, t->line, base, NULL);
            n->name = intern(ps, attr->p, attr->len);
            return n;
        }
        if (attr->kind != TK_INT) {
            ps->c->line = attr->line;
            tpl_fail(ps->c, MX_EINVAL, "expected name or number after '.'");
        }
        tpl_node *k = new_node(ps, N_CONST, attr->line);
        k->k = (tpl_val){.t = T_INT, .u.i = attr->i};
        return node2(ps, N_GETITEM, t->line, base, k);
    }
    chain args = {0};
    size_t n_arg = 0;
    while (ps->tok->kind != TK_RBRACKET) {
        if (n_arg++) expect(ps, TK_COMMA, ",");
        add(&args, subscribed(ps));
    }
    expect(ps, TK_RBRACKET, "]");
    tpl_node *key = args.first;
    if (n_arg != 1) key = node2(ps, N_TUPLE, t->line, args.first, NULL);
    return node2(ps, N_GETITEM, t->line, base, key);
}

static tpl_node *postfix(parser *ps, tpl_node *n) {
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

static tpl_str *dotted_name(parser *ps) {
    const tpl_tok *first = expect(ps, TK_NAME, "name"), *last = first;
    while (skip_kind(ps, TK_DOT)) last = expect(ps, TK_NAME, "name");
    return intern(ps, first->p, (size_t)(last->p + last->len - first->p));
}

static void resolve(parser *ps, tpl_node *n, bool is_test) {
    n->fn = is_test ? tpl_find_test(n->name->p, n->name->len) : tpl_find_filter(n->name->p, n->name->len);
    if (n->fn) return;
    pending *p = tpl_alloc(ps->c, 1, sizeof *p);
    *p = (pending){.node = n, .is_test = is_test, .next = ps->open};
    ps->open = p;
}

/* One "| name(args)"; value NULL is the text of a block. */
static tpl_node *one_filter(parser *ps, tpl_node *value) {
    tpl_node *n = node2(ps, N_FILTER, ps->tok->line, value, NULL);
    n->name = dotted_name(ps);
    if (ps->tok->kind == TK_LPAREN) call_args(ps, n);
    resolve(ps, n, false);
    return n;
}

static tpl_node *filters(parser *ps, tpl_node *value) {
    while (skip_kind(ps, TK_PIPE)) value = one_filter(ps, value);
    return value;
}

static tpl_node *primary(parser *ps, bool with_ns);

static tpl_node *test(parser *ps, tpl_node *value) {
    int line = take(ps)->line; // "is"
    bool negated = skip_name(ps, "not");
    tpl_node *n = node2(ps, N_TEST, line, value, NULL);
    n->name = dotted_name(ps);
    tpl_tok_kind k = ps->tok->kind;
    if (k == TK_LPAREN) {
        call_args(ps, n);
    } else if ((k == TK_NAME || k == TK_STRING || k == TK_INT || k == TK_REAL || k == TK_LBRACKET ||
                k == TK_LBRACE) &&
               !at_name(ps, "else") && !at_name(ps, "or") && !at_name(ps, "and")) {
        if (at_name(ps, "is")) tpl_fail(ps->c, MX_EINVAL, "You cannot chain multiple tests with is");
        n->b = postfix(ps, primary(ps, false));
    }
    resolve(ps, n, true);
    return negated ? node2(ps, N_NOT, line, n, NULL) : n;
}

static tpl_node *list_or_dict(parser *ps, bool dict) {
    tpl_node *n = new_node(ps, dict ? N_DICT : N_LIST, take(ps)->line);
    tpl_tok_kind close = dict ? TK_RBRACE : TK_RBRACKET;
    chain items = {0};
    while (ps->tok->kind != close) {
        if (items.first) expect(ps, TK_COMMA, ",");
        if (ps->tok->kind == close) break;
        tpl_node *item = expression(ps, true);
        if (dict) {
            expect(ps, TK_COLON, ":");
            item = node2(ps, N_PAIR, item->line, item, NULL);
            item->b = expression(ps, true);
        }
        add(&items, item);
    }
    take(ps);
    n->a = items.first;
    return n;
}

static tpl_node *strings(parser *ps) { // adjacent literals are one
    int line = ps->tok->line;
    size_t len = 0, n = 0;
    for (const tpl_tok *t = ps->tok; t->kind == TK_STRING; t++, n++) len += t->len;
    char *p = tpl_alloc(ps->c, len + 1, 1);
    len = 0;
    while (ps->tok->kind == TK_STRING) {
        const tpl_tok *t = take(ps);
        if (t->len) memcpy(p + len, t->p, t->len);
        len += t->len;
    }
    tpl_node *k = new_node(ps, N_CONST, line);
    k->k = const_str(ps, p, len);
    return k;
}

static tpl_node *name(parser *ps, bool with_ns) {
    const tpl_tok *t = take(ps);
    tpl_node *n = new_node(ps, N_CONST, t->line);
    if (is_name(t, "true") || is_name(t, "True")) {
        n->k = (tpl_val){.t = T_BOOL, .u.b = true};
    } else if (is_name(t, "false") || is_name(t, "False")) {
        n->k = (tpl_val){.t = T_BOOL};
    } else if (is_name(t, "none") || is_name(t, "None")) {
        n->k = (tpl_val){.t = T_NONE};
    } else {
        n->kind = N_NAME;
        n->name = intern(ps, t->p, t->len);
        if (with_ns && skip_kind(ps, TK_DOT)) {
            const tpl_tok *attr = expect(ps, TK_NAME, "name");
            n->kind = N_NSREF;
            n->k = const_str(ps, attr->p, attr->len);
        } else if (is_name(t, "caller")) {
            ps->uses |= USES_CALLER;
        } else if (is_name(t, "kwargs")) {
            ps->uses |= USES_KWARGS;
        } else if (is_name(t, "varargs")) {
            ps->uses |= USES_VARARGS;
        }
    }
    return n;
}

static tpl_node *primary(parser *ps, bool with_ns) {
    const tpl_tok *t = ps->tok;
    tpl_node *n;
    switch (t->kind) {
    case TK_NAME: return name(ps, with_ns);
    case TK_STRING: return strings(ps);
    case TK_INT:
    case TK_REAL:
        n = new_node(ps, N_CONST, t->line);
        n->k = t->kind == TK_INT ? (tpl_val){.t = T_INT, .u.i = t->i} : (tpl_val){.t = T_REAL, .u.d = t->d};
        take(ps);
        return n;
    case TK_LPAREN:
        take(ps);
        tpl_check_stack(ps->c);
        n = tuple(ps, false, true, NULL, true, false);
        expect(ps, TK_RPAREN, ")");
        return n;
    case TK_LBRACKET: return list_or_dict(ps, false);
    case TK_LBRACE: return list_or_dict(ps, true);
    default: ps->c->line = t->line; tpl_fail(ps->c, MX_EINVAL, "unexpected '%s'", tpl_tok_name(ps->c, t));
    }
}

static tpl_node *unary(parser *ps, bool with_filter) {
    tpl_check_stack(ps->c);
    const tpl_tok *t = ps->tok;
    tpl_node *n;
    if (t->kind == TK_SUB || t->kind == TK_ADD) {
        take(ps);
        n = node2(ps, t->kind == TK_SUB ? N_NEG : N_POS, t->line, unary(ps, false), NULL);
    } else {
        n = primary(ps, false);
    }
    n = postfix(ps, n);
    if (!with_filter) return n;
    for (;;) {
        if (ps->tok->kind == TK_PIPE) {
            n = filters(ps, n);
        } else if (at_name(ps, "is")) {
            n = test(ps, n);
        } else if (ps->tok->kind == TK_LPAREN) {
            n = call(ps, n);
        } else {
            return n;
        }
    }
}

static tpl_node *binary(parser *ps, int line, tpl_op op, tpl_node *a, tpl_node *b) {
    tpl_node *n = node2(ps, N_BINOP, line, a, b);
    n->op = (uint8_t)op;
    return n;
}

static tpl_node *power(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = unary(ps, true);
    while (skip_kind(ps, TK_POW)) n = binary(ps, line, OP_POW, n, unary(ps, true));
    return n;
}

static tpl_node *product(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = power(ps);
    for (;;) {
        tpl_tok_kind k = ps->tok->kind;
        if (k != TK_MUL && k != TK_DIV && k != TK_FLOORDIV && k != TK_MOD) return n;
        take(ps);
        tpl_op op = k == TK_MUL ? OP_MUL : k == TK_DIV ? OP_DIV : k == TK_MOD ? OP_MOD : OP_FLOORDIV;
        n = binary(ps, line, op, n, power(ps));
    }
}

static tpl_node *concat(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = product(ps);
    if (ps->tok->kind != TK_TILDE) return n;
    chain items = {0};
    add(&items, n);
    while (skip_kind(ps, TK_TILDE)) add(&items, product(ps));
    return node2(ps, N_CONCAT, line, items.first, NULL);
}

static tpl_node *sum(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = concat(ps);
    for (;;) {
        tpl_tok_kind k = ps->tok->kind;
        if (k != TK_ADD && k != TK_SUB) return n;
        take(ps);
        n = binary(ps, line, k == TK_ADD ? OP_ADD : OP_SUB, n, concat(ps));
    }
}

static tpl_node *comparison(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = sum(ps);
    chain ops = {0};
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
            if (at_name(ps, "in")) {
                op = OP_IN;
            } else if (at_name(ps, "not") && is_name(&ps->tok[1], "in")) {
                op = OP_NOTIN;
                take(ps);
            } else {
                return ops.first ? node2(ps, N_COMPARE, line, n, ops.first) : n;
            }
        }
        int at = take(ps)->line;
        tpl_node *o = node2(ps, N_OPERAND, at, sum(ps), NULL);
        o->op = (uint8_t)op;
        add(&ops, o);
    }
}

static tpl_node *negation(parser *ps) {
    tpl_check_stack(ps->c);
    if (!at_name(ps, "not")) return comparison(ps);
    int line = take(ps)->line;
    return node2(ps, N_NOT, line, negation(ps), NULL);
}

static tpl_node *conjunction(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = negation(ps);
    while (skip_name(ps, "and")) n = node2(ps, N_AND, line, n, negation(ps));
    return n;
}

static tpl_node *disjunction(parser *ps) {
    int line = ps->tok->line;
    tpl_node *n = conjunction(ps);
    while (skip_name(ps, "or")) n = node2(ps, N_OR, line, n, conjunction(ps));
    return n;
}

static tpl_node *expression(parser *ps, bool with_cond) {
    tpl_check_stack(ps->c);
    pending *mark = ps->open;
    int line = ps->tok->line;
    tpl_node *n = disjunction(ps);
    while (with_cond && skip_name(ps, "if")) {
        tpl_node *cond = node2(ps, N_COND, line, disjunction(ps), n);
        if (skip_name(ps, "else")) cond->c = expression(ps, true);
        ps->open = mark; // unknown filters in here count only when reached
        n = cond;
    }
    return n;
}

static bool tuple_end(const parser *ps, const char *end_name) {
    tpl_tok_kind k = ps->tok->kind;
    return k == TK_VAR_END || k == TK_BLOCK_END || k == TK_RPAREN || (end_name && at_name(ps, end_name));
}

static tpl_node *tuple(parser *ps, bool simplified, bool with_cond, const char *end_name, bool parens,
                       bool with_ns) {
    int line = ps->tok->line;
    chain items = {0};
    bool is_tuple = false;
    for (;;) {
        if (items.first) expect(ps, TK_COMMA, ",");
        if (tuple_end(ps, end_name)) break;
        add(&items, simplified ? primary(ps, with_ns) : expression(ps, with_cond));
        if (ps->tok->kind != TK_COMMA) break;
        is_tuple = true;
    }
    if (!is_tuple && items.first) return items.first;
    if (!is_tuple && !parens) {
        ps->c->line = ps->tok->line;
        tpl_fail(ps->c, MX_EINVAL, "Expected an expression, got '%s'", tpl_tok_name(ps->c, ps->tok));
    }
    return node2(ps, N_TUPLE, line, items.first, NULL);
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

static void check_target(parser *ps, const tpl_node *n) {
    tpl_check_stack(ps->c);
    if (n->kind == N_TUPLE) {
        for (const tpl_node *it = n->a; it; it = it->next) check_target(ps, it);
    } else if (n->kind != N_NAME && n->kind != N_NSREF) {
        ps->c->line = n->line;
        tpl_fail(ps->c, MX_EINVAL, "can't assign to %s",
                 n->kind == N_CONST ? "a constant" : "an expression; a name is expected");
    }
}

static tpl_node *target(parser *ps, const char *end_name, bool with_ns) {
    int uses = ps->uses;
    tpl_node *n = tuple(ps, true, true, end_name, false, with_ns);
    check_target(ps, n);
    ps->uses = uses; // a name that is set is not used
    return n;
}

static tpl_str *target_name(parser *ps) {
    const tpl_tok *t = expect(ps, TK_NAME, "name");
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < countof(fixed); i++) {
        if (is_name(t, fixed[i])) tpl_fail(ps->c, MX_EINVAL, "can't assign to '%s'", fixed[i]);
    }
    return intern(ps, t->p, t->len);
}

/* A body that jinja2 compiles to a function or scope of its own: unknown filters in it are errors. */
static tpl_node *own_body(parser *ps, const char *end, bool function) {
    const pending *mark = ps->open;
    int depth = ps->loop_depth;
    if (function) ps->loop_depth = 0;
    const char *ends[] = {end, NULL};
    tpl_node *body = statements(ps, ends, end);
    take(ps); // the end tag
    ps->loop_depth = depth;
    need_known(ps, mark);
    return body;
}

static tpl_node *parse_set(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_SET, line);
    n->a = target(ps, NULL, true);
    if (skip_kind(ps, TK_ASSIGN)) {
        n->b = tuple(ps, false, true, NULL, false, false);
        return n;
    }
    n->kind = N_SETBLOCK;
    n->b = filters(ps, NULL);
    n->body = own_body(ps, "endset", false);
    return n;
}

static bool names_loop(const tpl_node *t) {
    if (t->kind == N_NAME) return t->name->len == 4 && !memcmp(t->name->p, "loop", 4);
    for (const tpl_node *it = t->kind == N_TUPLE ? t->a : NULL; it; it = it->next) {
        if (names_loop(it)) return true;
    }
    return false;
}

static tpl_node *parse_for(parser *ps, int line) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    tpl_node *n = new_node(ps, N_FOR, line);
    n->a = target(ps, "in", false);
    if (names_loop(n->a))
        tpl_fail(ps->c, MX_EINVAL, "Can't assign to special loop variable in for-loop target");
    expect_name(ps, "in");
    n->b = tuple(ps, false, false, "recursive", false, false);
    const pending *mark = ps->open;
    if (skip_name(ps, "if")) n->c = expression(ps, true);
    n->flag = skip_name(ps, "recursive");
    ps->loop_depth++;
    n->body = statements(ps, ends, "endfor' or 'else");
    ps->loop_depth--;
    if (!is_name(take(ps), "endfor")) {
        n->els = statements(ps, end, "endfor");
        take(ps);
    }
    need_known(ps, mark);
    return n;
}

static tpl_node *parse_if(parser *ps, int line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
    pending *mark = ps->open;
    tpl_node *first = NULL, **at = &first;
    for (;;) { // elif: another if in the else branch
        tpl_node *n = new_node(ps, N_IF, line);
        n->a = tuple(ps, false, false, NULL, false, false);
        n->body = statements(ps, ends, "elif' or 'else' or 'endif");
        *at = n;
        at = &n->els;
        const tpl_tok *t = take(ps);
        line = t->line;
        n->flag = is_name(t, "elif");
        if (n->flag) continue;
        if (is_name(t, "else")) {
            *at = statements(ps, end, "endif");
            take(ps);
        }
        break;
    }
    ps->open = mark;
    return first;
}

static tpl_node *parse_with(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_WITH, line);
    chain names = {0}, values = {0};
    while (ps->tok->kind != TK_BLOCK_END) {
        if (names.first) expect(ps, TK_COMMA, ",");
        add(&names, target(ps, NULL, false));
        expect(ps, TK_ASSIGN, "=");
        add(&values, expression(ps, true));
    }
    n->a = names.first;
    n->b = values.first;
    n->body = own_body(ps, "endwith", false);
    return n;
}

static void signature(parser *ps, tpl_node *n) {
    chain params = {0};
    bool dflt = false;
    expect(ps, TK_LPAREN, "(");
    while (ps->tok->kind != TK_RPAREN) {
        if (params.first) expect(ps, TK_COMMA, ",");
        tpl_node *p = new_node(ps, N_PARAM, ps->tok->line);
        p->name = target_name(ps);
        if (skip_kind(ps, TK_ASSIGN)) {
            p->a = expression(ps, true);
            dflt = true;
        } else if (dflt) {
            tpl_fail(ps->c, MX_EINVAL, "non-default argument follows default argument");
        }
        for (const tpl_node *q = params.first; q; q = q->next) {
            if (q->name == p->name) {
                tpl_fail(ps->c, MX_EINVAL, "duplicate argument '%.*s' in a macro", (int)p->name->len,
                         p->name->p);
            }
        }
        add(&params, p);
    }
    take(ps);
    n->a = params.first;
}

/* The body of a macro or call block; what it uses of caller, kwargs and varargs decides what it takes. */
static void macro_body(parser *ps, tpl_node *n, const char *end) {
    int uses = ps->uses;
    ps->uses = 0;
    n->body = own_body(ps, end, true);
    n->flag = (uint8_t)ps->uses;
    for (const tpl_node *p = n->a; p; p = p->next) {
        bool is_caller = tpl_str_is(p->name, "caller");
        if (is_caller && !p->a && (n->flag & USES_CALLER)) {
            ps->c->line = n->line;
            tpl_fail(ps->c, MX_EINVAL,
                     "the special \"caller\" argument of a macro must be omitted or have a default");
        }
    }
    ps->uses |= uses;
}

static tpl_node *parse_macro(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_MACRO, line);
    n->name = target_name(ps);
    signature(ps, n);
    macro_body(ps, n, "endmacro");
    return n;
}

static tpl_node *parse_call(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_CALLBLOCK, line);
    n->name = intern(ps, "caller", 6);
    if (ps->tok->kind == TK_LPAREN) signature(ps, n);
    n->b = expression(ps, true);
    if (n->b->kind != N_CALL) tpl_fail(ps->c, MX_EINVAL, "expected call");
    macro_body(ps, n, "endcall");
    return n;
}

static tpl_node *parse_filter_block(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_FILTERBLOCK, line);
    n->b = filters(ps, one_filter(ps, NULL));
    n->body = own_body(ps, "endfilter", false);
    return n;
}

static tpl_node *parse_generation(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_SCOPE, line);
    ps->t->features.generation = true;
    n->body = own_body(ps, "endgeneration", true);
    return n;
}

static tpl_node *parse_print(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_OUTPUT, line);
    chain items = {0};
    while (ps->tok->kind != TK_BLOCK_END) {
        if (items.first) expect(ps, TK_COMMA, ",");
        add(&items, expression(ps, true));
    }
    n->a = items.first;
    return n;
}

static tpl_node *parse_jump(parser *ps, int line, tpl_kind kind) {
    if (!ps->loop_depth) {
        ps->c->line = line;
        tpl_fail(ps->c, MX_EINVAL, "'%s' outside a for loop", kind == N_BREAK ? "break" : "continue");
    }
    return new_node(ps, kind, line);
}

static tpl_node *parse_autoescape(parser *ps, int line) {
    tpl_node *n = new_node(ps, N_SCOPE, line), *on = expression(ps, true);
    if (on->kind != N_CONST || on->k.t != T_BOOL || on->k.u.b) {
        tpl_fail(ps->c, MX_UNSUPPORTED,
                 "autoescape is not supported in a chat template: prompts are not HTML");
    }
    n->body = own_body(ps, "endautoescape", false);
    return n;
}

static tpl_node *statement(parser *ps) {
    tpl_check_stack(ps->c);
    const tpl_tok *t = ps->tok;
    if (t->kind != TK_NAME) {
        ps->c->line = t->line;
        tpl_fail(ps->c, MX_EINVAL, "tag name expected");
    }
    take(ps);
    if (is_name(t, "if")) return parse_if(ps, t->line);
    if (is_name(t, "for")) return parse_for(ps, t->line);
    if (is_name(t, "set")) return parse_set(ps, t->line);
    if (is_name(t, "macro")) return parse_macro(ps, t->line);
    if (is_name(t, "call")) return parse_call(ps, t->line);
    if (is_name(t, "filter")) return parse_filter_block(ps, t->line);
    if (is_name(t, "with")) return parse_with(ps, t->line);
    if (is_name(t, "generation")) return parse_generation(ps, t->line);
    if (is_name(t, "print")) return parse_print(ps, t->line);
    if (is_name(t, "break")) return parse_jump(ps, t->line, N_BREAK);
    if (is_name(t, "continue")) return parse_jump(ps, t->line, N_CONTINUE);
    if (is_name(t, "autoescape")) return parse_autoescape(ps, t->line);
    ps->c->line = t->line;
    static const char *const loaders[] = {"import", "include", "extends", "from", "block"};
    for (size_t i = 0; i < countof(loaders); i++) {
        if (is_name(t, loaders[i])) {
            tpl_fail(ps->c, MX_UNSUPPORTED, "'%s' is not supported: a chat template is one file", loaders[i]);
        }
    }
    tpl_fail(ps->c, MX_EINVAL, "Encountered unknown tag '%s'.%s%s%s", tpl_tok_name(ps->c, t),
             ps->end_tags ? " Jinja was looking for the following tags: '" : "",
             ps->end_tags ? ps->end_tags : "", ps->end_tags ? "'." : "");
}

/* Statements and text up to one of the end tags (then the current token is its name), or to the end of the template. */
static tpl_node *subparse(parser *ps, const char *const *ends) {
    chain body = {0};
    tpl_node *out = NULL; // collects text and expressions that follow each other
    chain items = {0};
    for (;;) {
        const tpl_tok *t = ps->tok;
        tpl_node *item = NULL;
        ps->c->line = t->line;
        if (t->kind == TK_EOF) break;
        take(ps);
        if (t->kind == TK_DATA) {
            item = new_node(ps, N_CONST, t->line);
            item->k = const_str(ps, t->p, t->len);
        } else if (t->kind == TK_VAR_BEGIN) {
            item = tuple(ps, false, true, NULL, false, false);
            expect(ps, TK_VAR_END, "end of print statement");
        }
        if (item) {
            if (!out) {
                out = new_node(ps, N_OUTPUT, t->line);
                items = (chain){0};
                add(&body, out);
            }
            add(&items, item);
            out->a = items.first;
            continue;
        }
        out = NULL;
        for (size_t i = 0; ends && ends[i]; i++) {
            if (at_name(ps, ends[i])) return body.first;
        }
        add(&body, statement(ps));
        expect(ps, TK_BLOCK_END, "end of statement block");
    }
    return body.first;
}

static tpl_node *statements(parser *ps, const char *const *ends, const char *what) {
    skip_kind(ps, TK_COLON);
    expect(ps, TK_BLOCK_END, "end of statement block");
    const char *outer = ps->end_tags;
    ps->end_tags = what;
    tpl_node *body = subparse(ps, ends);
    if (ps->tok->kind == TK_EOF) {
        tpl_fail(ps->c, MX_EINVAL,
                 "Unexpected end of template. Jinja was looking for the following tags: '%s'.", what);
    }
    ps->end_tags = outer;
    return body;
}

void tpl_parse(tpl_ctx *c, mx_template *t, const char *src, size_t len) {
    size_t n_tok;
    tpl_tok *tok = tpl_lex(c, src, len, &n_tok);
    parser ps = {.c = c, .t = t, .tok = tok};
    t->s_caller = intern(&ps, "caller", 6);
    t->s_kwargs = intern(&ps, "kwargs", 6);
    t->s_varargs = intern(&ps, "varargs", 7);
    t->s_loop = intern(&ps, "loop", 4);
    t->body = subparse(&ps, NULL);
    need_known(&ps, NULL);
}
