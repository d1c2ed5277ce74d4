/* template_format.c - numbers from text, and text from a format: "%5.1f" % x and "{:>8}".format(x), as in Python. */
#include "template_int.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_PREC = 500, MAX_WIDTH = 1 << 20, NUM_BUF = 1024 };

/* ---- numbers from text ---------------------------------------------------------------------------------------- */

static void trim(const char **p, size_t *len) {
    tpl_str s = {.p = *p, .len = *len};
    size_t used;
    while (s.len && tpl_is_space(tpl_cp_at(&s, 0, &used))) s.p += used, s.len -= used;
    while (s.len && tpl_is_space(tpl_cp_before(&s, s.len, &used))) s.len -= used;
    *p = s.p;
    *len = s.len;
}

/* Python's int(text, base); big: it is an integer, but not one of 64 bits. */
bool tpl_parse_int(const char *p, size_t len, int base, int64_t *out, bool *big) {
    *big = false;
    trim(&p, &len);
    bool neg = false, digit_before = false;
    if (len && (*p == '+' || *p == '-')) {
        neg = *p == '-';
        p++, len--;
    }
    if (len > 2 && *p == '0') {
        char x = p[1] | 32;
        int own = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
        if (own && (base == 0 || base == own)) {
            base = own;
            p += 2, len -= 2;
            digit_before = true; // 0x_1 is allowed
        }
    }
    if (base == 0) {
        base = 10;
        for (size_t i = 0; len && *p == '0' && i < len; i++) {
            if (p[i] != '0' && p[i] != '_') return false; // 012
        }
    }
    if (!len) return false;
    int64_t v = 0;
    for (size_t i = 0; i < len; i++) {
        char c = p[i];
        if (c == '_') {
            if (!digit_before || i + 1 == len) return false;
            digit_before = false;
            continue;
        }
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                     : 99;
        if (d >= base) return false;
        digit_before = true;
        if (!*big &&
            (__builtin_mul_overflow(v, (int64_t)base, &v) ||
             (neg ? __builtin_sub_overflow(v, (int64_t)d, &v) : __builtin_add_overflow(v, (int64_t)d, &v)))) {
            *big = true;
        }
    }
    *out = v;
    return true;
}

/* Python's float(text). */
bool tpl_parse_real(const char *p, size_t len, double *out) {
    char buf[400];
    size_t n = 0;
    trim(&p, &len);
    if (!len || len >= sizeof buf) return false;
    for (size_t i = 0; i < len; i++) {
        char c = p[i];
        if (c == '_') {
            bool between =
                i && i + 1 < len && p[i - 1] >= '0' && p[i - 1] <= '9' && p[i + 1] >= '0' && p[i + 1] <= '9';
            if (!between) return false;
            continue;
        }
        if (c == 'x' || c == 'X' || c == '(' || c == 0)
            return false; // strtod would take hexadecimal and nan(...)
        buf[n++] = c;
    }
    buf[n] = 0;
    char *end;
    *out = strtod(buf, &end);
    return end == buf + n;
}

/* ---- one field ------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t fill;
    char align, sign, group, type; // 0: not given
    bool alt, zero;
    int64_t width;
    int prec; // -1: not given
} spec;

/* Put sign and body with padding; '=' pads between them. */
static void put_padded(tpl_run *r, const spec *f, const char *sign, const char *body, size_t len, size_t n_cp,
                       char dflt) {
    size_t n_sign = strlen(sign);
    int64_t n = f->width - (int64_t)(n_cp + n_sign);
    char align = f->align ? f->align : dflt;
    int64_t left = align == '>' ? n : align == '^' ? n / 2 : 0;
    uint32_t fill = (uint32_t)f->fill;
    if (n < 0) n = left = 0;
    tpl_out_pad(r, fill, left);
    tpl_out(r, sign, n_sign);
    if (align == '=') tpl_out_pad(r, fill, n);
    tpl_out(r, body, len);
    if (align != '=') tpl_out_pad(r, fill, n - left);
}

/* Digits with a separator every `every` digits in front of the point. */
static size_t grouped(char *out, const char *in, size_t len, char sep, size_t every) {
    size_t whole = 0, n = 0;
    while (whole < len &&
           ((in[whole] >= '0' && in[whole] <= '9') || (in[whole] >= 'a' && in[whole] <= 'f' && every == 4)))
        whole++;
    for (size_t i = 0; i < len; i++) {
        if (i && i < whole && (whole - i) % every == 0) out[n++] = sep;
        out[n++] = in[i];
    }
    return n;
}

static void put_number(tpl_run *r, const spec *f, bool neg, const char *prefix, const char *body,
                       size_t len) {
    char sign[8], buf[NUM_BUF * 2];
    snprintf(sign, sizeof sign, "%s%s", neg ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "", prefix);
    spec g = *f;
    if (f->zero && !f->align) {
        g.align = '=';
        g.fill = '0';
    }
    if (f->group) {
        bool base2 = f->type == 'x' || f->type == 'X' || f->type == 'o' || f->type == 'b';
        size_t every = base2 ? 4 : 3;
        char wide[NUM_BUF];
        int64_t room = g.width - (int64_t)strlen(sign);
        // zeros in front are grouped as well: add them one by one while the whole still fits
        if (g.align == '=' && g.fill == '0' && room > 0 && room < NUM_BUF / 2) {
            size_t n = len;
            if (len > NUM_BUF / 2) n = 0;
            memcpy(wide, body, n);
            while (n && (int64_t)grouped(buf, wide, n, f->group, every) < room) {
                memmove(wide + 1, wide, n);
                wide[0] = '0';
                n++;
            }
            if (n) body = wide, len = n;
        }
        len = grouped(buf, body, len, f->group, every);
        body = buf;
    }
    put_padded(r, &g, sign, body, len, len, '>');
}

static void put_int_field(tpl_run *r, const spec *f, int64_t i) {
    char buf[80], *p = buf + sizeof buf;
    const char *digits = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef", *prefix = "";
    unsigned base = 10;
    if (f->type == 'x' || f->type == 'X') base = 16, prefix = f->type == 'x' ? "0x" : "0X";
    if (f->type == 'o') base = 8, prefix = "0o";
    if (f->type == 'b') base = 2, prefix = "0b";
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    do {
        *--p = digits[u % base];
        u /= base;
    } while (u);
    put_number(r, f, i < 0, f->alt ? prefix : "", p, (size_t)(buf + sizeof buf - p));
}

/* The text of |d| by type e, f, g or 0 (like repr, but at most prec digits). */
static size_t real_text(char *buf, double d, char type, int prec, bool alt) {
    char c = type | 32, fmt[8];
    bool percent = type == '%';
    if (isnan(d) || isinf(d)) {
        bool up = type == 'F' || type == 'E' || type == 'G';
        return (size_t)snprintf(buf, NUM_BUF, "%s%s",
                                isnan(d) ? (up ? "NAN" : "nan")
                                : up     ? "INF"
                                         : "inf",
                                percent ? "%" : "");
    }
    if (percent) d *= 100;
    if (type == 0) c = 'g';
    if (prec < 0) prec = 6;
    if (type == 0 && prec == 0) prec = 1;
    snprintf(fmt, sizeof fmt, "%%%s.*%c", alt ? "#" : "", percent ? 'f' : type ? type : c);
    size_t n = (size_t)snprintf(buf, NUM_BUF, fmt, prec, d);
    if (percent) buf[n++] = '%', buf[n] = 0;
    if (type == 0 && !memchr(buf, '.', n) && !memchr(buf, 'e', n)) { // 3.0, never 3
        if ((int)n >= prec + 1 || n + 2 > NUM_BUF) return n;
        memcpy(buf + n, ".0", 3);
        n += 2;
    }
    return n;
}

static void put_real_field(tpl_run *r, const spec *f, double d) {
    char buf[NUM_BUF];
    bool neg = signbit(d) && !isnan(d);
    if (f->type == 0 && f->prec < 0) {
        size_t mark = r->out.len;
        tpl_put_real(r, fabs(d));
        size_t n = r->out.len - mark < sizeof buf ? r->out.len - mark : sizeof buf;
        memcpy(buf, r->out.p + mark, n);
        r->out.len = mark;
        put_number(r, f, neg, "", buf, n);
        return;
    }
    char type = f->type == 'n' ? 'g' : f->type;
    size_t n;
    if (type == 0 && isfinite(d) && d != 0) { // exponent from the same digit on as repr with that many digits
        int exp;
        snprintf(buf, sizeof buf, "%.*e", f->prec > 0 ? f->prec - 1 : 0, fabs(d));
        exp = atoi(strchr(buf, 'e') + 1);
        if (exp == f->prec - 1 ||
            (exp >= f->prec)) { // %g would write 1e+01 for 12.0 with 1 digit; so does Python
            n = (size_t)snprintf(buf, sizeof buf, "%.*e", f->prec > 0 ? f->prec - 1 : 0, fabs(d));
            char *e = strchr(buf, 'e'), *p = e;
            if (memchr(buf, '.', (size_t)(e - buf))) {
                while (p[-1] == '0') p--;
                if (p[-1] == '.') p--;
            }
            memmove(p, e, strlen(e) + 1);
            n = strlen(buf);
            put_number(r, f, neg, "", buf, n);
            return;
        }
    }
    n = real_text(buf, fabs(d), type, f->prec, f->alt);
    put_number(r, f, neg, "", buf, n);
}

static void put_text_field(tpl_run *r, const spec *f, tpl_str *s) {
    size_t n = tpl_cp_count(r, s), len = s->len;
    if (f->prec >= 0 && (size_t)f->prec < n) {
        n = (size_t)f->prec;
        len = tpl_cp_offset(r, s, n);
    }
    put_padded(r, f, "", s->p, len, n, '<');
}

static int64_t real_to_int(tpl_run *r, double d) {
    if (!isfinite(d)) FAIL(r, "cannot convert float %s to integer", isnan(d) ? "NaN" : "infinity");
    if (fabs(d) >= 0x1p63) FAIL(r, "the integer of %g does not fit 64 bits", d);
    return (int64_t)d;
}

/* ---- "%" ------------------------------------------------------------------------------------------------------ */

typedef struct {
    tpl_run *r;
    tpl_val arg;
    size_t pos;
    bool named;
} percent;

static tpl_val next_arg(percent *pc) {
    tpl_run *r = pc->r;
    if (pc->arg.t == T_TUPLE) {
        tpl_list *l = tpl_items(r, pc->arg);
        if (pc->pos >= l->n) FAIL(r, "not enough arguments for format string");
        return l->v[pc->pos++];
    }
    if (pc->pos++) FAIL(r, "not enough arguments for format string");
    return pc->arg;
}

static int64_t number_or_star(percent *pc, const char **p, const char *end) {
    int64_t n = 0;
    if (*p < end && **p == '*') {
        ++*p;
        return tpl_want_int(pc->r, next_arg(pc), "*");
    }
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        n = n * 10 + (**p - '0');
        if (n > MAX_WIDTH) tpl_fail(&pc->r->c, MX_ELIMIT, "a width or precision in a format is too large");
    }
    return n;
}

static void percent_value(percent *pc, spec *f, tpl_val v, bool safe) {
    tpl_run *r = pc->r;
    char type = f->type;
    int64_t i = 0;
    size_t mark = r->out.len;
    switch (type) {
    case 's':
        if (safe) {
            tpl_put_escaped(r, v);
        } else {
            tpl_put_str(r, v);
        }
        break;
    case 'r':
    case 'a': tpl_put_repr(r, v); break;
    case 'c':
        if (tpl_is_int(v, &i)) {
            if (i < 0 || i > 0x10FFFF) FAIL(r, "%%c arg not in range(0x110000)");
            tpl_out_cp(r, i >= 0xD800 && i < 0xE000 ? 0xFFFD : (uint32_t)i);
        } else {
            tpl_str *s = v.t == T_STR ? v.u.s : NULL;
            if (!s || tpl_cp_count(r, s) != 1) FAIL(r, "%%c requires int or char");
            tpl_out(r, s->p, s->len);
        }
        break;
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.t == T_REAL && type != 'x' && type != 'X' && type != 'o') v = tpl_int(real_to_int(r, v.u.d));
        if (v.t == T_UNDEF) tpl_undef_fail(r, v);
        if (!tpl_is_int(v, &i))
            FAIL(r, "%%%c format: a real number is required, not %s", type, tpl_type_name(v));
        if (f->prec >= 0) { // at least prec digits
            spec g = {.fill = ' ', .type = type, .prec = -1, .width = f->prec, .zero = true, .align = 0};
            put_int_field(r, &g, i < 0 ? (i == INT64_MIN ? INT64_MAX : -i) : i);
            tpl_str *digits = tpl_take(r, mark).u.s;
            f->zero = f->zero && f->align != '<';
            put_number(r, f, i < 0,
                       f->alt && type == 'x'   ? "0x"
                       : f->alt && type == 'X' ? "0X"
                                               : "",
                       digits->p, digits->len);
            return;
        }
        put_int_field(r, f, i);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.t == T_UNDEF) tpl_undef_fail(r, v);
        if (!tpl_is_num(v)) FAIL(r, "must be real number, not %s", tpl_type_name(v));
        put_real_field(r, f, tpl_num(v));
        return;
    default: FAIL(r, "unsupported format character '%c' (0x%x)", type, (unsigned char)type);
    }
    tpl_str *s = tpl_take(r, mark).u.s;
    if (!f->align) f->align = '>';
    put_text_field(r, f, s);
}

static tpl_val named_arg(percent *pc, const char **p, const char *end) {
    tpl_run *r = pc->r;
    const char *from = ++*p;
    int depth = 1;
    for (; *p < end; ++*p) {
        depth += **p == '(' ? 1 : **p == ')' ? -1 : 0;
        if (!depth) break;
    }
    if (*p >= end) FAIL(r, "incomplete format key");
    if (pc->arg.t != T_DICT) FAIL(r, "format requires a mapping");
    pc->named = true;
    tpl_val *v = tpl_dict_getz(r, pc->arg.u.m, from, (size_t)(*p - from));
    if (!v) FAIL(r, "format: there is no key '%.*s'", (int)(*p - from), from);
    ++*p;
    return *v;
}

tpl_val tpl_percent(tpl_run *r, tpl_str *fmt, tpl_val arg) {
    percent pc = {.r = r, .arg = arg};
    size_t mark = r->out.len;
    const char *p = fmt->p, *end = p + fmt->len;
    while (p < end) {
        const char *q = memchr(p, '%', (size_t)(end - p));
        tpl_out(r, p, (size_t)((q ? q : end) - p));
        if (!q) break;
        p = q + 1;
        spec f = {.fill = ' ', .prec = -1};
        tpl_val v = tpl_missing();
        if (p < end && *p == '(') v = named_arg(&pc, &p, end);
        for (; p < end && strchr("-+ #0", *p) && *p; p++) {
            if (*p == '-') f.align = '<';
            if (*p == '+' || (*p == ' ' && f.sign != '+')) f.sign = *p;
            if (*p == '#') f.alt = true;
            if (*p == '0') f.zero = true;
        }
        f.width = number_or_star(&pc, &p, end);
        if (f.width < 0) f.align = '<', f.width = f.width < -MAX_WIDTH ? MAX_WIDTH : -f.width;
        if (p < end && *p == '.') {
            p++;
            int64_t prec = number_or_star(&pc, &p, end);
            f.prec = prec < 0 ? 0 : prec > MAX_WIDTH ? MAX_WIDTH : (int)prec;
        }
        if (p < end && (*p == 'l' || *p == 'h' || *p == 'L')) p++;
        if (p == end) FAIL(r, "incomplete format");
        f.type = *p++;
        if (f.type == '%') {
            tpl_outz(r, "%");
            continue;
        }
        if (f.prec > MAX_PREC && f.type != 's' && f.type != 'r')
            tpl_fail(&r->c, MX_ELIMIT, "a precision in a format is too large");
        percent_value(&pc, &f, v.t == T_MISSING ? next_arg(&pc) : v, fmt->safe);
    }
    bool left = arg.t == T_TUPLE ? pc.pos < tpl_items(r, arg)->n && !pc.named : !pc.pos;
    bool mapping = arg.t == T_DICT || arg.t == T_LIST || arg.t == T_RANGE || arg.t == T_UNDEF;
    if (left && !mapping) FAIL(r, "not all arguments converted during string formatting");
    tpl_val out = tpl_take(r, mark);
    out.u.s->safe = fmt->safe;
    return out;
}

/* ---- str.format ----------------------------------------------------------------------------------------------- */

static void parse_spec(tpl_run *r, const tpl_str *s, spec *f) {
    size_t at = 0, used = 0, used2 = 0;
    *f = (spec){.fill = ' ', .prec = -1};
    if (s->len) tpl_cp_at(s, 0, &used);
    if (used && used < s->len && strchr("<>=^", s->p[used])) {
        f->fill = tpl_cp_at(s, 0, &used2);
        f->align = s->p[used];
        at = used + 1;
    } else if (s->len && s->p[0] && strchr("<>=^", s->p[0])) {
        f->align = s->p[0];
        at = 1;
    }
#define AT(c) (at < s->len && s->p[at] == (c))
    if (AT('+') || AT('-') || AT(' ')) f->sign = s->p[at++];
    if (AT('#')) f->alt = true, at++;
    if (AT('0')) f->zero = true, at++;
    for (; at < s->len && s->p[at] >= '0' && s->p[at] <= '9'; at++) {
        f->width = f->width * 10 + (s->p[at] - '0');
        if (f->width > MAX_WIDTH) tpl_fail(&r->c, MX_ELIMIT, "a width in a format is too large");
    }
    if (AT(',') || AT('_')) f->group = s->p[at++];
    if (AT('.')) {
        size_t from = ++at;
        f->prec = 0;
        for (; at < s->len && s->p[at] >= '0' && s->p[at] <= '9'; at++) {
            f->prec = f->prec * 10 + (s->p[at] - '0');
            if (f->prec > MAX_WIDTH) tpl_fail(&r->c, MX_ELIMIT, "a precision in a format is too large");
        }
        if (at == from) FAIL(r, "Format specifier missing precision");
    }
    if (at < s->len) f->type = s->p[at++];
    if (at < s->len) FAIL(r, "Invalid format specifier");
#undef AT
}

static void put_field(tpl_run *r, tpl_val v, const tpl_str *text) {
    spec f;
    if (!text->len) {
        tpl_put_str(r, v);
        return;
    }
    parse_spec(r, text, &f);
    if (v.t == T_STR) {
        if ((f.type && f.type != 's') || f.sign || f.align == '=') {
            FAIL(r, "Unknown or unsupported format code for object of type 'str'");
        }
        if (f.zero && !f.align) f.fill = '0';
        put_text_field(r, &f, v.u.s);
        return;
    }
    bool real = f.type && strchr("eEfFgG%", f.type);
    if (v.t == T_UNDEF || !tpl_is_num(v))
        FAIL(r, "unsupported format string passed to %s.__format__", tpl_type_name(v));
    if (f.prec > MAX_PREC) tpl_fail(&r->c, MX_ELIMIT, "a precision in a format is too large");
    if (v.t == T_REAL || real) {
        if (f.type && !real && f.type != 'n')
            FAIL(r, "Unknown format code '%c' for object of type 'float'", f.type);
        put_real_field(r, &f, tpl_num(v));
        return;
    }
    int64_t i = 0;
    tpl_is_int(v, &i);
    if (f.type == 'c') {
        if (i < 0 || i > 0x10FFFF) FAIL(r, "%%c arg not in range(0x110000)");
        size_t mark = r->out.len;
        tpl_out_cp(r, i >= 0xD800 && i < 0xE000 ? 0xFFFD : (uint32_t)i);
        put_text_field(r, &f, tpl_take(r, mark).u.s);
        return;
    }
    if (f.prec >= 0) FAIL(r, "Precision not allowed in integer format specifier");
    if (f.type && !strchr("dboxXn", f.type))
        FAIL(r, "Unknown format code '%c' for object of type 'int'", f.type);
    put_int_field(r, &f, i);
}

typedef struct {
    tpl_run *r;
    const tpl_args *args;
    size_t next;
    int numbered; // 0: not known, 1: {} and 2: {0}, which cannot be mixed
} formatter;

/* "name.attr[item]": the value. */
static tpl_val field_value(formatter *fm, const char *p, const char *end) {
    tpl_run *r = fm->r;
    const char *q = p;
    while (q < end && *q != '.' && *q != '[') q++;
    int64_t i = -1;
    bool big = false, digits = q > p;
    for (const char *c = p; c < q; c++) digits = digits && *c >= '0' && *c <= '9';
    tpl_val v = tpl_missing();
    if (q == p || digits) {
        int mode = digits ? 2 : 1;
        if (fm->numbered && fm->numbered != mode)
            FAIL(r, "cannot switch between manual and automatic field numbering");
        fm->numbered = mode;
        if (digits) {
            tpl_parse_int(p, (size_t)(q - p), 10, &i, &big);
        } else {
            i = (int64_t)fm->next++;
        }
        if (big || i < 0 || (size_t)i >= fm->args->n)
            FAIL(r, "Replacement index %lld out of range for positional args tuple", (long long)i);
        v = fm->args->pos[i];
    } else {
        for (size_t k = 0; k < fm->args->n_kw; k++) {
            const tpl_str *name = fm->args->kw[k].name;
            if (name->len == (size_t)(q - p) && !memcmp(name->p, p, name->len)) v = fm->args->kw[k].v;
        }
        if (v.t == T_MISSING) FAIL(r, "format: there is no argument '%.*s'", (int)(q - p), p);
    }
    while (q < end) {
        const char *from = ++q;
        if (from[-1] == '.') {
            while (q < end && *q != '.' && *q != '[') q++;
            if (q == from) FAIL(r, "Empty attribute in format string");
            v = tpl_getattr(r, v, tpl_mkstr(r, from, (size_t)(q - from)));
            continue;
        }
        if (from[-1] != '[') FAIL(r, "Only '.' or '[' may follow ']' in format field specifier");
        while (q < end && *q != ']') q++;
        if (q == end || q == from) FAIL(r, "Empty attribute or missing ']' in format string");
        digits = true;
        for (const char *c = from; c < q; c++) digits = digits && *c >= '0' && *c <= '9';
        tpl_val key = tpl_mkstr(r, from, (size_t)(q - from));
        if (digits && tpl_parse_int(from, (size_t)(q - from), 10, &i, &big) && !big) key = tpl_int(i);
        v = tpl_getitem(r, v, key);
        q++;
    }
    return v;
}

static void format(formatter *fm, const char *p, const char *end, int depth) {
    tpl_run *r = fm->r;
    if (depth > 2) FAIL(r, "Max string recursion exceeded");
    while (p < end) {
        const char *q = p;
        while (q < end && *q != '{' && *q != '}') q++;
        tpl_out(r, p, (size_t)(q - p));
        if (q == end) return;
        if (q + 1 < end && q[1] == *q) { // {{ and }}
            tpl_out(r, q, 1);
            p = q + 2;
            continue;
        }
        if (*q == '}') FAIL(r, "Single '}' encountered in format string");
        int open = 1;
        const char *name = ++q, *colon = NULL, *bang = NULL;
        for (bool in_index = false; q < end; q++) {
            if (*q == '[' && !colon && !bang) in_index = true;
            if (*q == ']') in_index = false;
            if (in_index) continue;
            open += *q == '{' ? 1 : *q == '}' ? -1 : 0;
            if (!open) break;
            if (*q == '!' && !colon && !bang) bang = q;
            if (*q == ':' && !colon && open == 1) colon = q;
        }
        if (q >= end)
            FAIL(r, name == end ? "Single '{' encountered in format string"
                                : "expected '}' before end of string");
        tpl_val v = field_value(fm, name, bang ? bang : colon ? colon : q);
        if (bang) {
            if ((colon ? colon : q) != bang + 2) FAIL(r, "expected ':' after conversion specifier");
            size_t mark = r->out.len;
            if (bang[1] == 's') {
                tpl_put_str(r, v);
            } else if (bang[1] == 'r' || bang[1] == 'a') {
                tpl_put_repr(r, v);
            } else {
                FAIL(r, "Unknown conversion specifier %c", bang[1]);
            }
            v = tpl_take(r, mark);
        }
        tpl_str none = {.p = "", .n_cp = 0}, *fmt = &none;
        if (colon) {
            size_t mark = r->out.len;
            format(fm, colon + 1, q, depth + 1);
            fmt = tpl_take(r, mark).u.s;
        }
        put_field(r, v, fmt);
        p = q + 1;
    }
}

tpl_val tpl_format(tpl_run *r, tpl_str *fmt, const tpl_args *args) {
    formatter fm = {.r = r, .args = args};
    size_t mark = r->out.len;
    format(&fm, fmt->p, fmt->p + fmt->len, 1);
    tpl_val out = tpl_take(r, mark);
    out.u.s->safe = fmt->safe;
    return out;
}
