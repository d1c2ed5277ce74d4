/* template_parse.h - what the two halves of the parser share: statements (template_parse.c), expressions
 * (template_expr.c). */
#ifndef MX_TEXT_TEMPLATE_PARSE_H
#define MX_TEXT_TEMPLATE_PARSE_H
#include "template_int.h"

typedef struct tpl_pending tpl_pending;
struct tpl_pending { // an unknown filter or test that may still turn out to be inside a condition
    tpl_node *node;
    bool is_test;
    tpl_pending *next;
};

typedef struct {
    tpl_ctx *c;
    mx_template *t;
    const tpl_tok *tok;
    tpl_pending *open;
    uint32_t *slots; // interned names: index + 1 by hash
    size_t n_slot, cap_name;
    int uses;             // USES_* seen in this macro body
    int loop_depth;       // for loops around us in this function; break and continue need one
    const char *end_tags; // what the innermost open block waits for, for messages
} tpl_parser;

/* A list of nodes, built at its end. */
typedef struct {
    tpl_node *first, **end;
} tpl_chain;
void tpl_ps_add(tpl_chain *ch, tpl_node *n);

const tpl_tok *tpl_ps_take(tpl_parser *ps); // the current token; moves on
bool tpl_ps_is_name(const tpl_tok *t, const char *z);
bool tpl_ps_at_name(const tpl_parser *ps, const char *z);
bool tpl_ps_skip_name(tpl_parser *ps, const char *z);
bool tpl_ps_skip_kind(tpl_parser *ps, tpl_tok_kind k);
_Noreturn void tpl_ps_unexpected(tpl_parser *ps, const char *want);
const tpl_tok *tpl_ps_expect(tpl_parser *ps, tpl_tok_kind k, const char *want);
void tpl_ps_expect_name(tpl_parser *ps, const char *z);
tpl_node *tpl_ps_new_node(tpl_parser *ps, tpl_kind kind, int line);
tpl_node *tpl_ps_node2(tpl_parser *ps, tpl_kind kind, int line, tpl_node *a, tpl_node *b);
tpl_str *tpl_ps_intern(tpl_parser *ps, const char *p, size_t len); // one for each identifier
tpl_val tpl_ps_const_str(tpl_parser *ps, const char *p, size_t len);

tpl_node *tpl_ps_expression(tpl_parser *ps, bool with_cond);
/* Expressions with commas between them. simplified: only what can be assigned to; end_name ends it too; parens: it may
 * be empty; with_ns: "ns.attribute" is a target. */
tpl_node *tpl_ps_tuple(tpl_parser *ps, bool simplified, bool with_cond, const char *end_name, bool parens,
                       bool with_ns);
tpl_node *tpl_ps_one_filter(tpl_parser *ps, tpl_node *value); // value NULL: the text of a block
tpl_node *tpl_ps_filters(tpl_parser *ps, tpl_node *value);    // all that follow, each after a "|"

#endif
