/* template_int.h - what the files of the template engine share; nothing outside includes it.
 *
 * A template is compiled to a tree of nodes in the template's arena (template_lex.c, template_parse.c) and interpreted
 * (template_eval.c, template_call.c). Values live in an arena that belongs to one rendering and has a limit; lists and
 * dicts never change after they are built (the sandbox forbids it), so they are shared freely and JSON input is
 * expanded one level at a time, when it is looked at. Only namespaces change.
 *
 * Errors inside the engine leave by longjmp to the entry point (template.c), which turns them into a status: all that
 * was made lies in arenas, so nothing is left behind, and some hundred small functions need no error paths. */
#ifndef MX_TEXT_TEMPLATE_INT_H
#define MX_TEXT_TEMPLATE_INT_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/template.h"
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    TPL_MAX_STACK = 400 << 10,  // bytes of C stack that parsing or rendering may use
    TPL_MAX_MACRO = 250,        // macro calls inside macro calls; Python's own limit lies near
    TPL_MAX_RANGE = 100000,     // items of range(), as in jinja2's sandbox
    TPL_MAX_SOURCE = 4 << 20,   // bytes of a template
    TPL_MAX_STEPS = 20000000,   // nodes evaluated, items visited, 64 bytes of text made: about a second
    TPL_MAX_MEMORY = 256 << 20, // bytes of values of a rendering
    TPL_MAX_OUTPUT = 64 << 20,  // bytes of a prompt
};

/* ---- values --------------------------------------------------------------------------------------------------- */

typedef enum {
    T_MISSING, // no value at all: an argument that was not given
    T_UNDEF,
    T_NONE,
    T_BOOL,
    T_INT,
    T_REAL,
    T_STR,
    T_LIST,
    T_TUPLE,
    T_DICT,
    T_RANGE,
    T_VIEW, // keys(), values() or items() of a dict
    T_ITER, // a Python generator or iterator: can be walked once, has no length
    T_NS,
    T_MACRO,
    T_FUNC,   // a global function
    T_METHOD, // a method bound to its object
    T_LOOP,
    T_CYCLER,
    T_JOINER,
} tpl_type;

typedef struct tpl_val tpl_val;
typedef struct tpl_run tpl_run;
typedef struct tpl_node tpl_node;
typedef struct tpl_scope tpl_scope;

/* The bytes behind strings that were built by appending: the string that ends where the buffer is filled to can grow
 * in place, so a template that collects its output with + or ~ takes linear time. */
typedef struct {
    char *p;
    size_t used, cap;
} tpl_buf;

typedef struct {
    const char *p; // UTF-8, not NUL-terminated
    size_t len;
    size_t n_cp; // code points; SIZE_MAX: not counted yet
    tpl_buf *buf;
    bool safe;   // markupsafe.Markup
    uint32_t id; // names of the template: index in tpl->names, else UINT32_MAX
} tpl_str;

typedef struct {
    tpl_val *v;
    size_t n;
    const mx_json *src; // not NULL: not expanded yet
    bool group;         // a (grouper, list) pair of groupby, with attributes
} tpl_list;

typedef struct tpl_pair tpl_pair;
typedef struct {
    tpl_pair *e; // in order of insertion
    size_t n, cap;
    uint32_t *slot; // index + 1 into e, by hash; NULL while there are few
    size_t n_slot;
    const mx_json *src; // as above
} tpl_dict;

typedef struct {
    int64_t start, stop, step, n;
} tpl_range;

typedef struct {
    const char *hint;  // the whole sentence, or NULL: made of the two below
    const char *owner; // "dict object" whose attribute or element is missing, or NULL for a variable
    const tpl_val *name;
} tpl_undef;

typedef enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } tpl_view_kind;
typedef struct {
    tpl_dict *d;
    tpl_view_kind kind;
} tpl_view;

typedef struct tpl_iter tpl_iter;
typedef struct tpl_macro tpl_macro;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_method tpl_method;
typedef struct tpl_cycler tpl_cycler;
typedef struct tpl_func tpl_func;

struct tpl_val {
    tpl_type t;
    union {
        bool b;
        int64_t i;
        double d;
        tpl_str *s;
        tpl_list *l; // list, tuple
        tpl_dict *m; // dict, namespace
        tpl_range *r;
        tpl_undef *u;
        tpl_view *view;
        tpl_iter *it;
        tpl_macro *macro;
        const tpl_func *fn;
        tpl_method *method;
        tpl_loop *loop;
        tpl_cycler *cyc; // cycler, joiner
    } u;
};

struct tpl_pair {
    tpl_val key, val;
    uint64_t hash;
};

typedef struct {
    tpl_str *name;
    tpl_val v;
} tpl_kwarg;

typedef struct {
    tpl_val *pos;
    size_t n;
    tpl_kwarg *kw;
    size_t n_kw;
} tpl_args;

enum { TPL_MAX_ARG = 6 };

/* Function, filter, test or method: params names what may be given after the value, "old new count"; a name that
 * begins with "." is positional only, and "*" means that the function reads args itself. min: how many must be given. */
typedef tpl_val tpl_fn(tpl_run *r, tpl_val self, tpl_val *a, const tpl_args *args);
struct tpl_func {
    const char *name;
    tpl_fn *fn;
    int min;
    const char *params;
};

struct tpl_method {
    tpl_val self;
    const tpl_func *fn; // NULL for an attribute that exists but may not be used
};

struct tpl_cycler {
    tpl_val *items;
    size_t n, pos;
    bool used; // joiner: the first call gives nothing
    tpl_val sep;
};

/* ---- tree ----------------------------------------------------------------------------------------------------- */

typedef enum {
    N_CONST,
    N_NAME,
    N_NSREF,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_PAIR,
    N_COND,
    N_OR,
    N_AND,
    N_NOT,
    N_COMPARE,
    N_OPERAND,
    N_BINOP,
    N_CONCAT,
    N_NEG,
    N_POS,
    N_GETATTR,
    N_GETITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_KWARG,
    // statements
    N_OUTPUT,
    N_FOR,
    N_IF,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_PARAM,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_SCOPE,
    N_BREAK,
    N_CONTINUE,
} tpl_kind;

typedef enum {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN,
} tpl_op;

enum { USES_CALLER = 1, USES_KWARGS = 2, USES_VARARGS = 4 };

/* One shape for all kinds; what the fields mean:
 *   const: k   name: name   nsref: name, k = attribute   tuple, list, concat: a = items (by next)   dict: a = pairs
 *   pair: a key, b value   cond: a test, b then, c else or NULL   or, and, binop: a, b   not, neg, pos: a
 *   compare: a, b = operands (op, a)   getattr: a, name   getitem: a, b   slice: a, b, c or NULL
 *   call, filter, test: a = callee or value (NULL: the text of the block), b = arguments, c = kwargs (name, a),
 *     d = *args, e = **kwargs, name, fn
 *   output: a = expressions   for: a target, b items, c test, body, els, flag recursive   if: a test, body, els
 *   if: flag = els is one elif
 *   set: a target, b value   setblock: a target, b filters or NULL, body   with: a targets, b values, body
 *   macro, callblock: name, a = parameters (name, a default), b = the call, body, flag = USES_*
 *   filterblock: b, body   scope: body */
struct tpl_node {
    uint8_t kind, op, flag;
    int line;
    tpl_node *next;
    tpl_node *a, *b, *c, *d, *e, *body, *els;
    tpl_str *name;
    const tpl_func *fn;
    tpl_val k;
};

/* What parsing and rendering share: where to go with an error, whose text it is, how deep we are. */
typedef struct {
    jmp_buf jmp;
    mx_err err;
    mx_status st;
    const char *name; // of the template
    int line;
    mx_arena *a;
    const char *stack; // C stack where we began
} tpl_ctx;

struct mx_template {
    mx_arena a;
    const char *name;
    tpl_node *body;
    tpl_str **names; // interned identifiers
    size_t n_name;
    tpl_str *s_caller, *s_kwargs, *s_varargs, *s_loop; // of names
    mx_template_features features;
};

_Noreturn void tpl_fail(tpl_ctx *c, mx_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *tpl_alloc(tpl_ctx *c, size_t n_item, size_t size); // zeroed; leaves on failure
void tpl_check_stack(tpl_ctx *c);

/* ---- lexer and parser ----------------------------------------------------------------------------------------- */

typedef enum {
    TK_EOF,
    TK_DATA,
    TK_VAR_BEGIN,
    TK_VAR_END,
    TK_BLOCK_BEGIN,
    TK_BLOCK_END,
    TK_NAME,
    TK_STRING,
    TK_INT,
    TK_REAL,
    TK_ADD,
    TK_SUB,
    TK_DIV,
    TK_FLOORDIV,
    TK_MUL,
    TK_MOD,
    TK_POW,
    TK_TILDE,
    TK_LBRACKET,
    TK_RBRACKET,
    TK_LPAREN,
    TK_RPAREN,
    TK_LBRACE,
    TK_RBRACE,
    TK_EQ,
    TK_NE,
    TK_GT,
    TK_GE,
    TK_LT,
    TK_LE,
    TK_ASSIGN,
    TK_DOT,
    TK_COLON,
    TK_PIPE,
    TK_COMMA,
    TK_SEMICOLON,
} tpl_tok_kind;

typedef struct {
    tpl_tok_kind kind;
    int line;
    const char *p; // data, name, string: the text, escapes resolved
    size_t len;
    int64_t i;
    double d;
} tpl_tok;

/* Cut source into tokens, the last of which is TK_EOF. */
tpl_tok *tpl_lex(tpl_ctx *c, const char *src, size_t len, size_t *n_tok);
const char *tpl_tok_name(tpl_ctx *c, const tpl_tok *t); // for messages
void tpl_parse(tpl_ctx *c, mx_template *t, const char *src, size_t len);

/* ---- rendering ------------------------------------------------------------------------------------------------ */

typedef struct {
    tpl_str *name;
    tpl_val v;
} tpl_var;

struct tpl_scope {
    tpl_scope *parent;
    tpl_var *vars;
    size_t n, cap;
    bool kept; // a macro refers to it, so it cannot be reused for the next turn of a loop
};

struct tpl_macro {
    const tpl_node *node; // N_MACRO or N_CALLBLOCK
    tpl_scope *scope;     // where it was defined
};

typedef enum {
    IT_LIST,
    IT_REVERSED,
    IT_STR,
    IT_DICT,
    IT_RANGE,
    IT_MAP,
    IT_SELECT,
    IT_UNIQUE,
    IT_BATCH,
    IT_SLICE,
    IT_ITEMS,
    IT_FORTEST,
} tpl_iter_kind;

struct tpl_iter {
    tpl_iter_kind kind;
    const char *type; // Python's name of it: "generator", "list_reverseiterator"
    size_t pos;
    tpl_list *l;
    tpl_str *s;
    tpl_dict *d;
    tpl_range *r;
    tpl_view_kind view;
    // what is computed as it is walked
    tpl_val src;
    tpl_iter *from;
    bool started, reject;
    tpl_val attr, dflt; // attribute to look up first, or T_MISSING
    const tpl_func *fn; // filter or test, or NULL: truth
    tpl_args args;
    tpl_val arg, fill;
    tpl_dict *seen;
    const tpl_node *node; // for ... if
    tpl_scope *scope;
};

struct tpl_loop {
    tpl_iter *it;
    tpl_val iterable;
    int64_t index0;
    int depth0;
    bool has_after, has_changed;
    int64_t length; // -1: not known yet
    tpl_val after, current, before, changed;
    const tpl_node *node; // for loop(...)
    tpl_scope *scope;
};

struct tpl_run {
    tpl_ctx c;
    mx_arena a;
    mx_str out; // the output; strings are also built at its end and cut off again
    const mx_template *t;
    const mx_json *vars;
    tpl_val *cache; // variables of vars and globals, by name id; T_MISSING: not looked up yet
    uint64_t steps, max_steps;
    int n_macro;
    long long now;
    tpl_scope *root;
    tpl_val block; // the text of a filter block or set block
};

#define NEW(r, type) ((type *)tpl_alloc(&(r)->c, 1, sizeof(type)))
#define NEW_ARRAY(r, type, n) ((type *)tpl_alloc(&(r)->c, n, sizeof(type)))
#define FAIL(r, ...) tpl_fail(&(r)->c, MX_EINVAL, __VA_ARGS__)

_Noreturn void tpl_steps_spent(tpl_run *r);
static inline void tpl_step(tpl_run *r, uint64_t n) {
    if ((r->steps += n) > r->max_steps) tpl_steps_spent(r);
}

/* template_value.c: making and reading values */
tpl_val tpl_none(void);
tpl_val tpl_bool(bool b);
tpl_val tpl_int(int64_t i);
tpl_val tpl_real(double d);
tpl_val tpl_missing(void);
tpl_val tpl_mkstr(tpl_run *r, const char *p, size_t len);              // copies
tpl_val tpl_sub(tpl_run *r, const tpl_str *s, size_t from, size_t to); // borrows bytes [from, to)
tpl_val tpl_strz(tpl_run *r, const char *z);                           // borrows
tpl_val tpl_mklist(tpl_run *r, tpl_type t, size_t n);                  // n zeroed items to be filled in
tpl_val tpl_mkdict(tpl_run *r);
tpl_val tpl_undef_name(tpl_run *r, tpl_str *name);
tpl_val tpl_undef_hint(tpl_run *r, const char *hint);
tpl_val tpl_undef_of(tpl_run *r, tpl_val owner, tpl_val name);
_Noreturn void tpl_undef_fail(tpl_run *r, tpl_val v); // the sentence for a use of an undefined value
tpl_val tpl_from_json(tpl_run *r, const mx_json *j);
tpl_list *tpl_items(tpl_run *r, tpl_val v);     // of a list or tuple, expanded
tpl_dict *tpl_dict_of(tpl_run *r, tpl_dict *d); // expanded
const char *tpl_type_name(tpl_val v);           // as Python names the type: "str", "NoneType"
bool tpl_is_num(tpl_val v);                     // int, float, bool
bool tpl_is_int(tpl_val v, int64_t *i);         // int or bool
double tpl_num(tpl_val v);
bool tpl_truth(tpl_run *r, tpl_val v);
bool tpl_equal(tpl_run *r, tpl_val a, tpl_val b);
bool tpl_same(tpl_val a, tpl_val b); // Python's "is"
int tpl_compare(tpl_run *r, tpl_val a, tpl_val b, const char *op, bool *unordered);
bool tpl_less(tpl_run *r, tpl_val a, tpl_val b);
bool tpl_contains(tpl_run *r, tpl_val box, tpl_val item);
bool tpl_length(tpl_run *r, tpl_val v, int64_t *n); // false: no len()
size_t tpl_cp_count(tpl_run *r, tpl_str *s);
size_t tpl_cp_offset(tpl_run *r, tpl_str *s, size_t cp); // byte offset of a code point
uint64_t tpl_hash(tpl_run *r, tpl_val v);                // fails for a list or dict
tpl_val *tpl_dict_get(tpl_run *r, tpl_dict *d, tpl_val key);
tpl_val *tpl_dict_getz(tpl_run *r, tpl_dict *d, const char *key, size_t len);
void tpl_dict_set(tpl_run *r, tpl_dict *d, tpl_val key, tpl_val v);
bool tpl_str_is(const tpl_str *s, const char *z);
tpl_val tpl_slice(tpl_run *r, tpl_val v, tpl_val from, tpl_val to, tpl_val step);

/* template_iter.c */
tpl_iter *tpl_iterate(tpl_run *r, tpl_val v); // fails when v cannot be walked
bool tpl_iterable(tpl_val v);
bool tpl_next(tpl_run *r, tpl_iter *it, tpl_val *out);
tpl_val tpl_mkiter(tpl_run *r, tpl_iter_kind kind, const char *type, tpl_val src); // a T_ITER over src
tpl_val tpl_to_list(tpl_run *r, tpl_val v);
void tpl_sort(tpl_run *r, tpl_val *keys, tpl_val *vals, size_t n, bool reverse); // stable, by keys

/* template_print.c: text of values */
void tpl_out(tpl_run *r, const char *p, size_t n);
void tpl_outz(tpl_run *r, const char *z);
void tpl_out_cp(tpl_run *r, uint32_t cp);
void tpl_out_pad(tpl_run *r, uint32_t cp, int64_t n);
tpl_val tpl_take(tpl_run *r, size_t mark);  // the output from mark on becomes a string and is cut off
void tpl_put_str(tpl_run *r, tpl_val v);    // Python's str(v)
void tpl_put_repr(tpl_run *r, tpl_val v);   // Python's repr(v)
tpl_str *tpl_str_of(tpl_run *r, tpl_val v); // str(v) as a string
void tpl_put_real(tpl_run *r, double d);
void tpl_put_escaped(tpl_run *r, tpl_val v);                           // for HTML; as it is when marked safe
tpl_val tpl_concat(tpl_run *r, tpl_str *a, const char *p, size_t len); // a grows in place where it can
tpl_val tpl_tojson(tpl_run *r, tpl_val v, tpl_val *a, const tpl_args *args);

/* template_format.c: "%" and str.format */
tpl_val tpl_percent(tpl_run *r, tpl_str *fmt, tpl_val arg);
tpl_val tpl_format(tpl_run *r, tpl_str *fmt, const tpl_args *args);
bool tpl_parse_int(const char *p, size_t len, int base, int64_t *out, bool *big);
bool tpl_parse_real(const char *p, size_t len, double *out);

/* template_call.c */
void tpl_bind(tpl_run *r, const tpl_func *f, const tpl_args *args, tpl_val out[TPL_MAX_ARG]);
tpl_val tpl_apply(tpl_run *r, const tpl_func *f, tpl_val self,
                  const tpl_args *args); // filter, test or method
tpl_val tpl_call(tpl_run *r, tpl_val fn, const tpl_args *args);
tpl_val tpl_getattr(tpl_run *r, tpl_val v, tpl_val name);
tpl_val tpl_getitem(tpl_run *r, tpl_val v, tpl_val key);
tpl_val tpl_attribute(tpl_run *r, tpl_val v, tpl_str *name);              // T_MISSING if there is none
tpl_val tpl_attr_path(tpl_run *r, tpl_val v, tpl_val path, tpl_val dflt); // "a.b.0"
tpl_val tpl_global(tpl_run *r, tpl_str *name);                            // T_MISSING if there is none
int64_t tpl_want_int(tpl_run *r, tpl_val v, const char *what);
tpl_str *tpl_want_str(tpl_run *r, tpl_val v, const char *what);
int64_t tpl_opt_int(tpl_run *r, tpl_val v, int64_t dflt, const char *what);
bool tpl_opt_bool(tpl_run *r, tpl_val v, bool dflt);

/* template_eval.c */
tpl_val tpl_eval(tpl_run *r, const tpl_node *n, tpl_scope *s);
void tpl_exec(tpl_run *r, const tpl_node *body, tpl_scope *s);
tpl_val tpl_recurse(tpl_run *r, const tpl_loop *outer, tpl_val items);
tpl_val tpl_macro_run(tpl_run *r, tpl_macro *m, const tpl_args *args);
void tpl_assign(tpl_run *r, const tpl_node *target, tpl_val v, tpl_scope *s);
bool tpl_for_test(tpl_run *r, const tpl_iter *it, tpl_val item);

/* template_op.c */
tpl_val tpl_binop(tpl_run *r, tpl_op op, tpl_val a, tpl_val b);
tpl_val tpl_negate(tpl_run *r, tpl_val v, bool minus);
bool tpl_compare_op(tpl_run *r, tpl_op op, tpl_val a, tpl_val b);

/* template_filter.c, template_filter_text.c, template_test.c, template_str.c, template_unicode.c */
const tpl_func *tpl_find_filter(const char *name, size_t len);
const tpl_func *tpl_find_text_filter(const char *name, size_t len);
const tpl_func *tpl_find_test(const char *name, size_t len);
const tpl_func *tpl_find_str_method(const char *name, size_t len);
const tpl_func *tpl_find_func(const tpl_func *table, size_t n, const char *name, size_t len);

bool tpl_is_space(int32_t cp); // Python's str.isspace
bool tpl_is_alnum(int32_t cp);
bool tpl_is_alpha(int32_t cp);
bool tpl_is_digit(int32_t cp);
bool tpl_is_decimal(int32_t cp);
bool tpl_is_numeric(int32_t cp);
bool tpl_is_upper(int32_t cp);
bool tpl_is_lower(int32_t cp);
bool tpl_is_title(int32_t cp);
bool tpl_is_cased(int32_t cp);
bool tpl_is_printable(int32_t cp);
bool tpl_is_linebreak(int32_t cp);
int32_t tpl_cp_at(const tpl_str *s, size_t at, size_t *used);
int32_t tpl_cp_before(const tpl_str *s, size_t at, size_t *used);
void tpl_put_upper(tpl_run *r, int32_t cp); // full case mapping
void tpl_put_title(tpl_run *r, int32_t cp);
void tpl_put_lower(tpl_run *r, const tpl_str *s,
                   size_t at); // of the character at `at` (final sigma needs context)
void tpl_put_fold(tpl_run *r, int32_t cp);

#endif
