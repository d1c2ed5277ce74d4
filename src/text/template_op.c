/* template_op.c - Python's operators. Integers have 64 bits here: what would not fit is an error, never a wrong number. */
#include "template_int.h"
#include <math.h>

static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};

_Noreturn static void overflow(tpl_run *r) {
    FAIL(r, "the result of an integer operation does not fit 64 bits");
}

_Noreturn static void unsupported(tpl_run *r, tpl_op op, tpl_val a, tpl_val b) {
    FAIL(r, "unsupported operand type(s) for %s: '%s' and '%s'", op == OP_POW ? "** or pow()" : signs[op],
         tpl_type_name(a), tpl_type_name(b));
}

static tpl_val repeat(tpl_run *r, tpl_val v, int64_t times) {
    if (times < 0) times = 0;
    if (v.t == T_STR) {
        size_t len = v.u.s->len, n;
        if (__builtin_mul_overflow(len, (size_t)times, &n) || n > TPL_MAX_MEMORY) {
            tpl_fail(&r->c, MX_ELIMIT, "a string repeated %lld times is too long", (long long)times);
        }
        char *p = tpl_alloc(&r->c, n + 1, 1);
        tpl_step(r, (n >> 6) + (len ? (uint64_t)times >> 3 : 0));
        for (size_t at = 0; at < n; at += len) memcpy(p + at, v.u.s->p, len);
        tpl_val out = tpl_strz(r, "");
        out.u.s->p = p;
        out.u.s->len = n;
        out.u.s->safe = v.u.s->safe;
        return out;
    }
    tpl_list *l = tpl_items(r, v);
    size_t n;
    if (__builtin_mul_overflow(l->n, (size_t)times, &n) || n > TPL_MAX_MEMORY / sizeof(tpl_val)) {
        tpl_fail(&r->c, MX_ELIMIT, "a list repeated %lld times is too long", (long long)times);
    }
    tpl_val out = tpl_mklist(r, v.t, n);
    tpl_step(r, n >> 4);
    for (size_t at = 0; at < n; at += l->n) memcpy(out.u.l->v + at, l->v, l->n * sizeof *l->v);
    return out;
}

static tpl_val add_lists(tpl_run *r, tpl_val a, tpl_val b) {
    tpl_list *x = tpl_items(r, a), *y = tpl_items(r, b);
    tpl_val out = tpl_mklist(r, a.t, x->n + y->n);
    tpl_step(r, (x->n + y->n) >> 4);
    if (x->n) memcpy(out.u.l->v, x->v, x->n * sizeof *x->v);
    if (y->n) memcpy(out.u.l->v + x->n, y->v, y->n * sizeof *y->v);
    return out;
}

static tpl_val add_strings(tpl_run *r, tpl_val a, tpl_val b) {
    bool safe = a.u.s->safe || b.u.s->safe;
    if (safe) { // the other one is escaped
        size_t mark = r->out.len;
        tpl_put_escaped(r, a);
        tpl_put_escaped(r, b);
        tpl_val v = tpl_take(r, mark);
        v.u.s->safe = true;
        return v;
    }
    return tpl_concat(r, a.u.s, b.u.s->p, b.u.s->len);
}

static int64_t int_pow(tpl_run *r, int64_t base, int64_t exp) {
    int64_t v = 1;
    while (exp > 0) {
        if ((exp & 1) && __builtin_mul_overflow(v, base, &v)) overflow(r);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base)) overflow(r);
    }
    return v;
}

static tpl_val ints(tpl_run *r, tpl_op op, int64_t a, int64_t b) {
    int64_t v = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0) {
        FAIL(r, "%s", op == OP_DIV ? "division by zero" : "integer division or modulo by zero");
    }
    switch (op) {
    case OP_ADD:
        if (__builtin_add_overflow(a, b, &v)) overflow(r);
        return tpl_int(v);
    case OP_SUB:
        if (__builtin_sub_overflow(a, b, &v)) overflow(r);
        return tpl_int(v);
    case OP_MUL:
        if (__builtin_mul_overflow(a, b, &v)) overflow(r);
        return tpl_int(v);
    case OP_DIV: return tpl_real((double)a / (double)b);
    case OP_FLOORDIV:
        if (a == INT64_MIN && b == -1) overflow(r);
        v = a / b;
        return tpl_int(v - (a % b != 0 && (a < 0) != (b < 0)));
    case OP_MOD:
        if (b == -1) return tpl_int(0);
        v = a % b;
        return tpl_int(v && (v < 0) != (b < 0) ? v + b : v);
    default: // OP_POW
        if (b < 0) {
            if (a == 0) FAIL(r, "0.0 cannot be raised to a negative power");
            return tpl_real(pow((double)a, (double)b));
        }
        return tpl_int(int_pow(r, a, b));
    }
}

static tpl_val reals(tpl_run *r, tpl_op op, double a, double b) {
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0) {
        FAIL(r, "%s",
             op == OP_DIV   ? "float division by zero"
             : op == OP_MOD ? "float modulo"
                            : "float floor division by zero");
    }
    double m;
    switch (op) {
    case OP_ADD: return tpl_real(a + b);
    case OP_SUB: return tpl_real(a - b);
    case OP_MUL: return tpl_real(a * b);
    case OP_DIV: return tpl_real(a / b);
    case OP_POW:
        if (a == 0 && b < 0) FAIL(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != trunc(b) && isfinite(a) && isfinite(b)) {
            FAIL(r, "a negative number to a fractional power is a complex number, which is not supported");
        }
        m = pow(a, b);
        if (isinf(m) && isfinite(a) && isfinite(b)) FAIL(r, "the result of ** is too large");
        return tpl_real(m);
    default: break;
    }
    m = fmod(a, b); // as CPython's float_divmod
    double q = (a - m) / b;
    if (m != 0) {
        if ((b < 0) != (m < 0)) {
            m += b;
            q -= 1;
        }
    } else {
        m = copysign(0.0, b);
    }
    if (op == OP_MOD) return tpl_real(m);
    double whole = q == 0 ? copysign(0.0, a / b) : floor(q);
    if (q != 0 && q - whole > 0.5) whole += 1;
    return tpl_real(whole);
}

tpl_val tpl_binop(tpl_run *r, tpl_op op, tpl_val a, tpl_val b) {
    int64_t i, k;
    if (op == OP_MOD && a.t == T_STR) return tpl_percent(r, a.u.s, b);
    if (a.t == T_UNDEF) tpl_undef_fail(r, a);
    if (b.t == T_UNDEF) tpl_undef_fail(r, b);
    if (tpl_is_int(a, &i) && tpl_is_int(b, &k)) return ints(r, op, i, k);
    if (tpl_is_num(a) && tpl_is_num(b)) return reals(r, op, tpl_num(a), tpl_num(b));
    bool seq_a = a.t == T_STR || a.t == T_LIST || a.t == T_TUPLE,
         seq_b = b.t == T_STR || b.t == T_LIST || b.t == T_TUPLE;
    if (op == OP_ADD && a.t == b.t && seq_a) return a.t == T_STR ? add_strings(r, a, b) : add_lists(r, a, b);
    if (op == OP_ADD && a.t == T_STR) {
        FAIL(r, "can only concatenate str (not \"%s\") to str", tpl_type_name(b));
    }
    if (op == OP_MUL && seq_a && tpl_is_int(b, &k)) return repeat(r, a, k);
    if (op == OP_MUL && seq_b && tpl_is_int(a, &k)) return repeat(r, b, k);
    unsupported(r, op, a, b);
}

tpl_val tpl_negate(tpl_run *r, tpl_val v, bool minus) {
    int64_t i;
    if (v.t == T_UNDEF) tpl_undef_fail(r, v);
    if (v.t == T_REAL) return tpl_real(minus ? -v.u.d : v.u.d);
    if (!tpl_is_int(v, &i))
        FAIL(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', tpl_type_name(v));
    if (minus && __builtin_sub_overflow((int64_t)0, i, &i)) overflow(r);
    return tpl_int(i);
}

bool tpl_compare_op(tpl_run *r, tpl_op op, tpl_val a, tpl_val b) {
    bool unordered = false;
    int c;
    switch (op) {
    case OP_EQ: return tpl_equal(r, a, b);
    case OP_NE: return !tpl_equal(r, a, b);
    case OP_IN: return tpl_contains(r, b, a);
    case OP_NOTIN: return !tpl_contains(r, b, a);
    case OP_LT: c = tpl_compare(r, a, b, "<", &unordered); return c < 0 && !unordered;
    case OP_LE: c = tpl_compare(r, a, b, "<=", &unordered); return c <= 0 && !unordered;
    case OP_GT: c = tpl_compare(r, a, b, ">", &unordered); return c > 0 && !unordered;
    default: c = tpl_compare(r, a, b, ">=", &unordered); return c >= 0 && !unordered;
    }
}
