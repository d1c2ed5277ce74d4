/* template_test.c - the tests that follow "is". */
#include "template_int.h"
#include <math.h>

#define T(fn) static tpl_val fn(tpl_run *r, tpl_val v, tpl_val *a, const tpl_args *args)
#define UNUSED (void)r, (void)v, (void)a, (void)args

T(t_defined) {
    UNUSED;
    return tpl_bool(v.t != T_UNDEF);
}
T(t_undefined) {
    UNUSED;
    return tpl_bool(v.t == T_UNDEF);
}
T(t_none) {
    UNUSED;
    return tpl_bool(v.t == T_NONE);
}
T(t_string) {
    UNUSED;
    return tpl_bool(v.t == T_STR);
}
T(t_number) {
    UNUSED;
    return tpl_bool(tpl_is_num(v));
}
T(t_integer) {
    UNUSED;
    return tpl_bool(v.t == T_INT);
}
T(t_float) {
    UNUSED;
    return tpl_bool(v.t == T_REAL);
}
T(t_boolean) {
    UNUSED;
    return tpl_bool(v.t == T_BOOL);
}
T(t_true) {
    UNUSED;
    return tpl_bool(v.t == T_BOOL && v.u.b);
}
T(t_false) {
    UNUSED;
    return tpl_bool(v.t == T_BOOL && !v.u.b);
}
T(t_mapping) {
    UNUSED;
    return tpl_bool(v.t == T_DICT);
}
T(t_iterable) {
    UNUSED;
    return tpl_bool(tpl_iterable(v));
}
T(t_sequence) {
    UNUSED;
    return tpl_bool(v.t == T_STR || v.t == T_LIST || v.t == T_TUPLE || v.t == T_DICT || v.t == T_RANGE ||
                    v.t == T_UNDEF);
}
T(t_callable) {
    UNUSED;
    // an undefined value has a __call__, which fails
    return tpl_bool(v.t == T_MACRO || v.t == T_FUNC || v.t == T_METHOD || v.t == T_LOOP || v.t == T_JOINER ||
                    v.t == T_UNDEF);
}
T(t_sameas) {
    UNUSED;
    return tpl_bool(tpl_same(v, a[0]));
}
T(t_escaped) {
    UNUSED;
    return tpl_bool(v.t == T_STR && v.u.s->safe);
}

T(t_odd) {
    UNUSED;
    return tpl_bool(tpl_equal(r, tpl_binop(r, OP_MOD, v, tpl_int(2)), tpl_int(1)));
}
T(t_even) {
    UNUSED;
    return tpl_bool(tpl_equal(r, tpl_binop(r, OP_MOD, v, tpl_int(2)), tpl_int(0)));
}
T(t_divisibleby) {
    UNUSED;
    return tpl_bool(tpl_equal(r, tpl_binop(r, OP_MOD, v, a[0]), tpl_int(0)));
}

static tpl_val cased(tpl_run *r, tpl_val v, const char *method) {
    const tpl_args none = {0};
    tpl_val s = {.t = T_STR, .u.s = tpl_str_of(r, v)};
    return tpl_apply(r, tpl_find_str_method(method, 7), s, &none);
}
T(t_lower) {
    UNUSED;
    return cased(r, v, "islower");
}
T(t_upper) {
    UNUSED;
    return cased(r, v, "isupper");
}

T(t_filter) {
    UNUSED;
    return tpl_bool(v.t == T_STR && tpl_find_filter(v.u.s->p, v.u.s->len) != NULL);
}
T(t_test) {
    UNUSED;
    return tpl_bool(v.t == T_STR && tpl_find_test(v.u.s->p, v.u.s->len) != NULL);
}
T(t_in) {
    UNUSED;
    return tpl_bool(tpl_contains(r, a[0], v));
}
T(t_eq) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_EQ, v, a[0]));
}
T(t_ne) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_NE, v, a[0]));
}
T(t_lt) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_LT, v, a[0]));
}
T(t_le) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_LE, v, a[0]));
}
T(t_gt) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_GT, v, a[0]));
}
T(t_ge) {
    UNUSED;
    return tpl_bool(tpl_compare_op(r, OP_GE, v, a[0]));
}

static const tpl_func tests[] = {{"defined", t_defined, 0, ""},
                                 {"undefined", t_undefined, 0, ""},
                                 {"none", t_none, 0, ""},
                                 {"string", t_string, 0, ""},
                                 {"number", t_number, 0, ""},
                                 {"integer", t_integer, 0, ""},
                                 {"float", t_float, 0, ""},
                                 {"boolean", t_boolean, 0, ""},
                                 {"true", t_true, 0, ""},
                                 {"false", t_false, 0, ""},
                                 {"mapping", t_mapping, 0, ""},
                                 {"iterable", t_iterable, 0, ""},
                                 {"sequence", t_sequence, 0, ""},
                                 {"callable", t_callable, 0, ""},
                                 {"sameas", t_sameas, 1, "other"},
                                 {"escaped", t_escaped, 0, ""},
                                 {"odd", t_odd, 0, ""},
                                 {"even", t_even, 0, ""},
                                 {"divisibleby", t_divisibleby, 1, "num"},
                                 {"lower", t_lower, 0, ""},
                                 {"upper", t_upper, 0, ""},
                                 {"filter", t_filter, 0, ""},
                                 {"test", t_test, 0, ""},
                                 {"in", t_in, 1, "seq"},
                                 {"eq", t_eq, 1, ".b"},
                                 {"equalto", t_eq, 1, ".b"},
                                 {"==", t_eq, 1, ".b"},
                                 {"ne", t_ne, 1, ".b"},
                                 {"!=", t_ne, 1, ".b"},
                                 {"lt", t_lt, 1, ".b"},
                                 {"lessthan", t_lt, 1, ".b"},
                                 {"<", t_lt, 1, ".b"},
                                 {"le", t_le, 1, ".b"},
                                 {"<=", t_le, 1, ".b"},
                                 {"gt", t_gt, 1, ".b"},
                                 {"greaterthan", t_gt, 1, ".b"},
                                 {">", t_gt, 1, ".b"},
                                 {"ge", t_ge, 1, ".b"},
                                 {">=", t_ge, 1, ".b"}};

const tpl_func *tpl_find_test(const char *name, size_t len) {
    return tpl_find_func(tests, countof(tests), name, len);
}
