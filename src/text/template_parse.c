/* template_parse.c - from tokens to the tree, by recursive descent with jinja2's grammar: statements.
 *
 * Filters and tests are looked up when they are parsed: an unknown one is an error of the template, except inside an if
 * or a conditional expression, where it counts only when it is reached (as in jinja2). */
#include "template_parse.h"

static tpl_node *statements(tpl_parser *ps, const char *const *ends, const char *what);

/* ---- tokens and nodes ----------------------------------------------------------------------------------------- */

const tpl_tok *tpl_ps_take(tpl_parser *ps) {
    const tpl_tok *t = ps->tok;
    if (t->kind != TK_EOF) ps->tok++;
    ps->c->line = ps->tok->line;
    return t;
}

bool tpl_ps_is_name(const tpl_tok *t, const char *z) {
    return t->kind == TK_NAME && t->len == strlen(z) && !memcmp(t->p, z, t->len);
}

bool tpl_ps_at_name(const tpl_parser *ps, const char *z) { return tpl_ps_is_name(ps->tok, z); }

bool tpl_ps_skip_name(tpl_parser *ps, const char *z) {
    if (!tpl_ps_at_name(ps, z)) return false;
    tpl_ps_take(ps);
    return true;
}

bool tpl_ps_skip_kind(tpl_parser *ps, tpl_tok_kind k) {
    if (ps->tok->kind != k) return false;
    tpl_ps_take(ps);
    return true;
}

_Noreturn void tpl_ps_unexpected(tpl_parser *ps, const char *want) {
    ps->c->line = ps->tok->line;
    if (ps->tok->kind == TK_EOF)
        tpl_fail(ps->c, MX_EINVAL, "unexpected end of template, expected '%s'", want);
    tpl_fail(ps->c, MX_EINVAL, "expected '%s', got '%s'", want, tpl_tok_name(ps->c, ps->tok));
}

const tpl_tok *tpl_ps_expect(tpl_parser *ps, tpl_tok_kind k, const char *want) {
    if (ps->tok->kind != k) tpl_ps_unexpected(ps, want);
    return tpl_ps_take(ps);
}

void tpl_ps_expect_name(tpl_parser *ps, const char *z) {
    if (!tpl_ps_skip_name(ps, z)) tpl_ps_unexpected(ps, z);
}

tpl_node *tpl_ps_new_node(tpl_parser *ps, tpl_kind kind, int line) {
    tpl_node *n = tpl_alloc(ps->c, 1, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

tpl_node *tpl_ps_node2(tpl_parser *ps, tpl_kind kind, int line, tpl_node *a, tpl_node *b) {
    tpl_node *n = tpl_ps_new_node(ps, kind, line);
    n->a = a;
    n->b = b;
    return n;
}

/* Remember what a template talks about, for mx_template_inspect. */
static void note_word(tpl_parser *ps, const char *p, size_t len) {
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
tpl_str *tpl_ps_intern(tpl_parser *ps, const char *p, size_t len) {
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

tpl_val tpl_ps_const_str(tpl_parser *ps, const char *p, size_t len) {
    tpl_str *s = tpl_alloc(ps->c, 1, sizeof *s);
    *s = (tpl_str){.p = p, .len = len, .n_cp = count_chars(p, len), .id = UINT32_MAX};
    note_word(ps, p, len);
    return (tpl_val){.t = T_STR, .u.s = s};
}

void tpl_ps_add(tpl_chain *ch, tpl_node *n) {
    if (!ch->first) ch->end = &ch->first;
    *ch->end = n;
    ch->end = &n->next;
}

/* ---- unknown filters and tests -------------------------------------------------------------------------------- */

_Noreturn static void unknown_filter(tpl_parser *ps, const tpl_pending *p) {
    ps->c->line = p->node->line;
    tpl_fail(ps->c, MX_EINVAL, "No %s named '%.*s'.", p->is_test ? "test" : "filter", (int)p->node->name->len,
             p->node->name->p);
}

static void need_known(tpl_parser *ps, const tpl_pending *mark) {
    if (ps->open != mark) unknown_filter(ps, ps->open);
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

static void check_target(tpl_parser *ps, const tpl_node *n) {
    tpl_check_stack(ps->c);
    if (n->kind == N_TUPLE) {
        for (const tpl_node *it = n->a; it; it = it->next) check_target(ps, it);
    } else if (n->kind != N_NAME && n->kind != N_NSREF) {
        ps->c->line = n->line;
        tpl_fail(ps->c, MX_EINVAL, "can't assign to %s",
                 n->kind == N_CONST ? "a constant" : "an expression; a name is expected");
    }
}

static tpl_node *target(tpl_parser *ps, const char *end_name, bool with_ns) {
    int uses = ps->uses;
    tpl_node *n = tpl_ps_tuple(ps, true, true, end_name, false, with_ns);
    check_target(ps, n);
    ps->uses = uses; // a name that is set is not used
    return n;
}

static tpl_str *target_name(tpl_parser *ps) {
    const tpl_tok *t = tpl_ps_expect(ps, TK_NAME, "name");
    static const char *const fixed[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < countof(fixed); i++) {
        if (tpl_ps_is_name(t, fixed[i])) tpl_fail(ps->c, MX_EINVAL, "can't assign to '%s'", fixed[i]);
    }
    return tpl_ps_intern(ps, t->p, t->len);
}

/* A body that jinja2 compiles to a function or scope of its own: unknown filters in it are errors. */
static tpl_node *own_body(tpl_parser *ps, const char *end, bool function) {
    const tpl_pending *mark = ps->open;
    int depth = ps->loop_depth;
    if (function) ps->loop_depth = 0;
    const char *ends[] = {end, NULL};
    tpl_node *body = statements(ps, ends, end);
    tpl_ps_take(ps); // the end tag
    ps->loop_depth = depth;
    need_known(ps, mark);
    return body;
}

static tpl_node *parse_set(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_SET, line);
    n->a = target(ps, NULL, true);
    if (tpl_ps_skip_kind(ps, TK_ASSIGN)) {
        n->b = tpl_ps_tuple(ps, false, true, NULL, false, false);
        return n;
    }
    n->kind = N_SETBLOCK;
    n->b = tpl_ps_filters(ps, NULL);
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

static tpl_node *parse_for(tpl_parser *ps, int line) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    tpl_node *n = tpl_ps_new_node(ps, N_FOR, line);
    n->a = target(ps, "in", false);
    if (names_loop(n->a))
        tpl_fail(ps->c, MX_EINVAL, "Can't assign to special loop variable in for-loop target");
    tpl_ps_expect_name(ps, "in");
    n->b = tpl_ps_tuple(ps, false, false, "recursive", false, false);
    const tpl_pending *mark = ps->open;
    if (tpl_ps_skip_name(ps, "if")) n->c = tpl_ps_expression(ps, true);
    n->flag = tpl_ps_skip_name(ps, "recursive");
    ps->loop_depth++;
    n->body = statements(ps, ends, "endfor' or 'else");
    ps->loop_depth--;
    if (!tpl_ps_is_name(tpl_ps_take(ps), "endfor")) {
        n->els = statements(ps, end, "endfor");
        tpl_ps_take(ps);
    }
    need_known(ps, mark);
    return n;
}

static tpl_node *parse_if(tpl_parser *ps, int line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
    tpl_pending *mark = ps->open;
    tpl_node *first = NULL, **at = &first;
    for (;;) { // elif: another if in the else branch
        tpl_node *n = tpl_ps_new_node(ps, N_IF, line);
        n->a = tpl_ps_tuple(ps, false, false, NULL, false, false);
        n->body = statements(ps, ends, "elif' or 'else' or 'endif");
        *at = n;
        at = &n->els;
        const tpl_tok *t = tpl_ps_take(ps);
        line = t->line;
        n->flag = tpl_ps_is_name(t, "elif");
        if (n->flag) continue;
        if (tpl_ps_is_name(t, "else")) {
            *at = statements(ps, end, "endif");
            tpl_ps_take(ps);
        }
        break;
    }
    ps->open = mark;
    return first;
}

static tpl_node *parse_with(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_WITH, line);
    tpl_chain names = {0}, values = {0};
    while (ps->tok->kind != TK_BLOCK_END) {
        if (names.first) tpl_ps_expect(ps, TK_COMMA, ",");
        tpl_ps_add(&names, target(ps, NULL, false));
        tpl_ps_expect(ps, TK_ASSIGN, "=");
        tpl_ps_add(&values, tpl_ps_expression(ps, true));
    }
    n->a = names.first;
    n->b = values.first;
    n->body = own_body(ps, "endwith", false);
    return n;
}

static void signature(tpl_parser *ps, tpl_node *n) {
    tpl_chain params = {0};
    bool dflt = false;
    tpl_ps_expect(ps, TK_LPAREN, "(");
    while (ps->tok->kind != TK_RPAREN) {
        if (params.first) tpl_ps_expect(ps, TK_COMMA, ",");
        tpl_node *p = tpl_ps_new_node(ps, N_PARAM, ps->tok->line);
        p->name = target_name(ps);
        if (tpl_ps_skip_kind(ps, TK_ASSIGN)) {
            p->a = tpl_ps_expression(ps, true);
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
        tpl_ps_add(&params, p);
    }
    tpl_ps_take(ps);
    n->a = params.first;
}

/* The body of a macro or call block; what it uses of caller, kwargs and varargs decides what it takes. */
static void macro_body(tpl_parser *ps, tpl_node *n, const char *end) {
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

static tpl_node *parse_macro(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_MACRO, line);
    n->name = target_name(ps);
    signature(ps, n);
    macro_body(ps, n, "endmacro");
    return n;
}

static tpl_node *parse_call(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_CALLBLOCK, line);
    n->name = tpl_ps_intern(ps, "caller", 6);
    if (ps->tok->kind == TK_LPAREN) signature(ps, n);
    n->b = tpl_ps_expression(ps, true);
    if (n->b->kind != N_CALL) tpl_fail(ps->c, MX_EINVAL, "expected call");
    macro_body(ps, n, "endcall");
    return n;
}

static tpl_node *parse_filter_block(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_FILTERBLOCK, line);
    n->b = tpl_ps_filters(ps, tpl_ps_one_filter(ps, NULL));
    n->body = own_body(ps, "endfilter", false);
    return n;
}

static tpl_node *parse_generation(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_SCOPE, line);
    ps->t->features.generation = true;
    n->body = own_body(ps, "endgeneration", true);
    return n;
}

static tpl_node *parse_print(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_OUTPUT, line);
    tpl_chain items = {0};
    while (ps->tok->kind != TK_BLOCK_END) {
        if (items.first) tpl_ps_expect(ps, TK_COMMA, ",");
        tpl_ps_add(&items, tpl_ps_expression(ps, true));
    }
    n->a = items.first;
    return n;
}

static tpl_node *parse_jump(tpl_parser *ps, int line, tpl_kind kind) {
    if (!ps->loop_depth) {
        ps->c->line = line;
        tpl_fail(ps->c, MX_EINVAL, "'%s' outside a for loop", kind == N_BREAK ? "break" : "continue");
    }
    return tpl_ps_new_node(ps, kind, line);
}

static tpl_node *parse_autoescape(tpl_parser *ps, int line) {
    tpl_node *n = tpl_ps_new_node(ps, N_SCOPE, line), *on = tpl_ps_expression(ps, true);
    if (on->kind != N_CONST || on->k.t != T_BOOL || on->k.u.b) {
        tpl_fail(ps->c, MX_UNSUPPORTED,
                 "autoescape is not supported in a chat template: prompts are not HTML");
    }
    n->body = own_body(ps, "endautoescape", false);
    return n;
}

static tpl_node *statement(tpl_parser *ps) {
    tpl_check_stack(ps->c);
    const tpl_tok *t = ps->tok;
    if (t->kind != TK_NAME) {
        ps->c->line = t->line;
        tpl_fail(ps->c, MX_EINVAL, "tag name expected");
    }
    tpl_ps_take(ps);
    if (tpl_ps_is_name(t, "if")) return parse_if(ps, t->line);
    if (tpl_ps_is_name(t, "for")) return parse_for(ps, t->line);
    if (tpl_ps_is_name(t, "set")) return parse_set(ps, t->line);
    if (tpl_ps_is_name(t, "macro")) return parse_macro(ps, t->line);
    if (tpl_ps_is_name(t, "call")) return parse_call(ps, t->line);
    if (tpl_ps_is_name(t, "filter")) return parse_filter_block(ps, t->line);
    if (tpl_ps_is_name(t, "with")) return parse_with(ps, t->line);
    if (tpl_ps_is_name(t, "generation")) return parse_generation(ps, t->line);
    if (tpl_ps_is_name(t, "print")) return parse_print(ps, t->line);
    if (tpl_ps_is_name(t, "break")) return parse_jump(ps, t->line, N_BREAK);
    if (tpl_ps_is_name(t, "continue")) return parse_jump(ps, t->line, N_CONTINUE);
    if (tpl_ps_is_name(t, "autoescape")) return parse_autoescape(ps, t->line);
    ps->c->line = t->line;
    static const char *const loaders[] = {"import", "include", "extends", "from", "block"};
    for (size_t i = 0; i < countof(loaders); i++) {
        if (tpl_ps_is_name(t, loaders[i])) {
            tpl_fail(ps->c, MX_UNSUPPORTED, "'%s' is not supported: a chat template is one file", loaders[i]);
        }
    }
    tpl_fail(ps->c, MX_EINVAL, "Encountered unknown tag '%s'.%s%s%s", tpl_tok_name(ps->c, t),
             ps->end_tags ? " Jinja was looking for the following tags: '" : "",
             ps->end_tags ? ps->end_tags : "", ps->end_tags ? "'." : "");
}

/* Statements and text up to one of the end tags (then the current token is its name), or to the end of the template. */
static tpl_node *subparse(tpl_parser *ps, const char *const *ends) {
    tpl_chain body = {0};
    tpl_node *out = NULL; // collects text and expressions that follow each other
    tpl_chain items = {0};
    for (;;) {
        const tpl_tok *t = ps->tok;
        tpl_node *item = NULL;
        ps->c->line = t->line;
        if (t->kind == TK_EOF) break;
        tpl_ps_take(ps);
        if (t->kind == TK_DATA) {
            item = tpl_ps_new_node(ps, N_CONST, t->line);
            item->k = tpl_ps_const_str(ps, t->p, t->len);
        } else if (t->kind == TK_VAR_BEGIN) {
            item = tpl_ps_tuple(ps, false, true, NULL, false, false);
            tpl_ps_expect(ps, TK_VAR_END, "end of print statement");
        }
        if (item) {
            if (!out) {
                out = tpl_ps_new_node(ps, N_OUTPUT, t->line);
                items = (tpl_chain){0};
                tpl_ps_add(&body, out);
            }
            tpl_ps_add(&items, item);
            out->a = items.first;
            continue;
        }
        out = NULL;
        for (size_t i = 0; ends && ends[i]; i++) {
            if (tpl_ps_at_name(ps, ends[i])) return body.first;
        }
        tpl_ps_add(&body, statement(ps));
        tpl_ps_expect(ps, TK_BLOCK_END, "end of statement block");
    }
    return body.first;
}

static tpl_node *statements(tpl_parser *ps, const char *const *ends, const char *what) {
    tpl_ps_skip_kind(ps, TK_COLON);
    tpl_ps_expect(ps, TK_BLOCK_END, "end of statement block");
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
    tpl_parser ps = {.c = c, .t = t, .tok = tok};
    t->s_caller = tpl_ps_intern(&ps, "caller", 6);
    t->s_kwargs = tpl_ps_intern(&ps, "kwargs", 6);
    t->s_varargs = tpl_ps_intern(&ps, "varargs", 7);
    t->s_loop = tpl_ps_intern(&ps, "loop", 4);
    t->body = subparse(&ps, NULL);
    need_known(&ps, NULL);
}
