/* pretok_rewrite.c - a pattern of Oniguruma or fancy-regex as one of PCRE2 that finds the same.
 *
 * What differs: \s, \w, \d, \h and properties (Unicode versions, scripts); classes in classes and "&&"; what a "+"
 * after "{n,m}" means; (?m). The rewriting walks the pattern once and knows where the last atom began, which is
 * all that is needed to wrap it. */
#include "text/pretok_regex.h"
#include "text/unicode.h"
#include <stdio.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_NEST = 100, NO_ATOM = -1 };

#define SPACES                                                                                               \
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                              \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define SYMBOL_LETTERS "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct {
    const char *p, *end, *start;
    mx_regex_dialect dialect;
    mx_err *err;
} rewriter;

static mx_status refuse(rewriter *r, mx_status code, const char *what) {
    return mx_fail(r->err, code, "pattern \"%.*s\", byte %zu: %s",
                   (int)(r->end - r->start > 200 ? 200 : r->end - r->start), r->start,
                   (size_t)(r->p - r->start), what);
}

/* Code points of a category (one or two letters, "L" or "Lu") that PCRE2's tables may not know yet. */
static void add_newer(mx_str *o, const char *name, size_t len) {
    size_t n;
    const mx_uc_range *t = mx_uc_newer(&n);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(mx_uc_category_name(t[i].category), name, len)) continue;
        mx_str_printf(o, "\\x{%x}-\\x{%x}", t[i].first, t[i].last);
    }
}

static void add_category(mx_str *o, const char *name) {
    mx_str_printf(o, "\\p{%s}", name);
    add_newer(o, name, strlen(name));
}

static void add_word(mx_str *o) {
    static const char *const parts[] = {"L", "Nl", "M", "Nd", "Pc"};
    for (size_t i = 0; i < countof(parts); i++) add_category(o, parts[i]);
    mx_str_puts(o, SYMBOL_LETTERS);
}

static bool compiles(const char *z) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *c =
        pcre2_compile((PCRE2_SPTR)z, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

/* \p{...}, \P{...}, \pL at r->p, which is after the letter: as items of the class that is open, or as a class. */
static mx_status property(rewriter *r, mx_str *o, bool capital, bool in_class) {
    char name[48];
    size_t n = 0;
    bool negated = capital;
    if (r->p < r->end && *r->p == '{') {
        r->p++;
        if (r->p < r->end && *r->p == '^') negated = !negated, r->p++;
        for (; r->p < r->end && *r->p != '}'; r->p++) {
            if (n == sizeof name - 1) return refuse(r, MX_EINVAL, "this property's name is too long");
            name[n++] = *r->p;
        }
        if (r->p == r->end) return refuse(r, MX_EINVAL, "this property does not end");
        r->p++;
    } else if (r->p < r->end) {
        name[n++] = *r->p++;
    }
    name[n] = 0;
    char *bare = name; // "Script=Han", "sc=Han", "gc=L": the value alone
    if (strchr(name, '=')) bare = strchr(name, '=') + 1;
    n = strlen(bare);
    mx_str items = {0};
    char script[80], probe[80];
    snprintf(script, sizeof script, "\\p{sc:%s}", bare);
    snprintf(probe, sizeof probe, "\\p{%s}", bare);
    mx_status st = MX_OK;
    if (n && n <= 2 && compiles(probe)) {
        add_category(&items, bare);
    } else if (n > 2 && compiles(script)) { // a bare name means script extensions to PCRE2 only
        mx_str_puts(&items, script);
        if (!strcmp(bare, "Han")) mx_str_puts(&items, "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}");
    } else if (n && compiles(probe)) {
        mx_str_puts(&items, probe);
    } else {
        st = refuse(r, MX_UNSUPPORTED, "this property is not known");
    }
    if (st == MX_OK) {
        if (negated && in_class) // here the newer ranges cannot be taken out again: PCRE2's own table decides
            mx_str_printf(o, "\\P{%s%s}", n > 2 && compiles(script) ? "sc:" : "", bare);
        else
            mx_str_printf(o, in_class ? "%s" : negated ? "[^%s]" : "[%s]", items.p ? items.p : "");
    }
    if (items.oom) st = mx_fail(r->err, MX_ENOMEM, "no memory for a pattern");
    mx_str_free(&items);
    return st;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The escape after a backslash at r->p. */
static mx_status escape(rewriter *r, mx_str *o, bool in_class) {
    if (r->p == r->end) return refuse(r, MX_EINVAL, "the pattern ends in a backslash");
    char c = *r->p++;
    const char *open = in_class ? "" : "[", *shut = in_class ? "" : "]";
    switch (c) {
    case 's': mx_str_printf(o, "%s" SPACES "%s", open, shut); return MX_OK;
    case 'S':
        if (in_class)
            mx_str_puts(o, NOT_SPACES);
        else
            mx_str_puts(o, "[^" SPACES "]");
        return MX_OK;
    case 'd':
        mx_str_puts(o, open);
        add_category(o, "Nd");
        mx_str_puts(o, shut);
        return MX_OK;
    case 'D':
    case 'W':
        if (in_class) {
            mx_str_puts(o, c == 'D' ? "\\P{Nd}" : "\\W");
            return MX_OK;
        }
        mx_str_puts(o, "[^");
        if (c == 'D')
            add_category(o, "Nd");
        else
            add_word(o);
        mx_str_putc(o, ']');
        return MX_OK;
    case 'w':
        mx_str_puts(o, open);
        add_word(o);
        mx_str_puts(o, shut);
        return MX_OK;
    case 'h':
        if (r->dialect == MX_REGEX_ONIGURUMA) {
            mx_str_printf(o, "%s0-9A-Fa-f%s", open, shut);
            return MX_OK;
        }
        return refuse(r, MX_UNSUPPORTED, "\\h is not known here");
    case 'p': return property(r, o, false, in_class);
    case 'P': return property(r, o, true, in_class);
    case 'v': mx_str_puts(o, "\\x0b"); return MX_OK;
    case 'u': {
        unsigned cp = 0;
        if (r->end - r->p < 4) return refuse(r, MX_EINVAL, "four hexadecimal digits must follow \\u");
        for (int i = 0; i < 4; i++) {
            int d = hex_digit(*r->p++);
            if (d < 0) return refuse(r, MX_EINVAL, "four hexadecimal digits must follow \\u");
            cp = cp * 16 + (unsigned)d;
        }
        mx_str_printf(o, "\\x{%x}", cp);
        return MX_OK;
    }
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
    case 'x':
    case 'b': mx_str_printf(o, "\\%c", c); return MX_OK;
    default: break;
    }
    if (c >= '0' && c <= '9') {
        mx_str_printf(o, "\\%c", c);
        return MX_OK;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        if (in_class || !strchr("ABGKRXZzk", c)) return refuse(r, MX_UNSUPPORTED, "this escape is not known");
        mx_str_printf(o, "\\%c", c);
        return MX_OK;
    }
    if ((unsigned char)c < 0x80) mx_str_putc(o, '\\'); // a longer character needs no escape
    mx_str_putc(o, c);
    return MX_OK;
}

/* A class at r->p, which is after the "[". Items go to `items` as PCRE2 class items, further operands of "&&" to `ands`
 * as lookaheads. */
static mx_status class_body(rewriter *r, mx_str *items, mx_str *ands, bool *negated, int depth);

static mx_status nested_class(rewriter *r, mx_str *items, bool alone, mx_str *ands, int depth) {
    mx_str in = {0}, in_ands = {0};
    bool neg = false;
    mx_status st = class_body(r, &in, &in_ands, &neg, depth + 1);
    if (st == MX_OK && in_ands.len) st = refuse(r, MX_UNSUPPORTED, "&& in a nested class is not supported");
    if (st == MX_OK) {
        if (alone)
            mx_str_printf(ands, "(?%c[%s])", neg ? '!' : '=', in.p ? in.p : "");
        else if (!neg)
            mx_str_puts(items, in.p ? in.p : "");
        else
            st = refuse(r, MX_UNSUPPORTED, "a negated class in a class is not supported");
    }
    mx_str_free(&in);
    mx_str_free(&in_ands);
    return st;
}

static mx_status class_body(rewriter *r, mx_str *items, mx_str *ands, bool *negated, int depth) {
    if (depth > MAX_NEST) return refuse(r, MX_ELIMIT, "classes are nested too deeply");
    bool after_and = false, first = true;
    if (r->p < r->end && *r->p == '^') *negated = true, r->p++;
    mx_str rest = {0}; // the operand of && that is being read, where it is no class of its own
    mx_status st = MX_OK;
    while (st == MX_OK) {
        if (r->p >= r->end) {
            st = refuse(r, MX_EINVAL, "this class does not end");
            break;
        }
        mx_str *o = after_and ? &rest : items;
        bool shut = *r->p == ']' && !first;
        bool and_sign = r->end - r->p >= 2 && r->p[0] == '&' && r->p[1] == '&';
        if (shut || and_sign) {
            if (rest.len) mx_str_printf(ands, "(?=[%s])", rest.p);
            mx_str_clear(&rest);
            r->p += shut ? 1 : 2;
            if (shut) break;
            after_and = true;
            continue;
        }
        first = false;
        if (*r->p == '[') {
            const char *q =
                r->p + 1 < r->end && r->p[1] == ':' ? memmem(r->p, (size_t)(r->end - r->p), ":]", 2) : NULL;
            if (q) { // [:alpha:]
                size_t n = (size_t)(q + 2 - r->p);
                if (n == 9 && !memcmp(r->p, "[:punct:]", 9))
                    mx_str_puts(o, "\\p{P}\\p{S}");
                else if (n == 9 && !memcmp(r->p, "[:space:]", 9))
                    mx_str_puts(o, SPACES);
                else
                    mx_str_add(o, r->p, n);
                r->p = q + 2;
                continue;
            }
            r->p++;
            st = nested_class(r, o, after_and, ands, depth);
        } else if (*r->p == '\\') {
            r->p++;
            st = escape(r, o, true);
        } else if (*r->p == ']') {
            mx_str_puts(o, "\\]");
            r->p++;
        } else {
            mx_str_putc(o, *r->p++);
        }
    }
    if (rest.oom || items->oom || ands->oom) st = mx_fail(r->err, MX_ENOMEM, "no memory for a pattern");
    mx_str_free(&rest);
    return st;
}

static mx_status class_atom(rewriter *r, mx_str *o) {
    mx_str items = {0}, ands = {0};
    bool neg = false;
    mx_status st = class_body(r, &items, &ands, &neg, 0);
    if (st == MX_OK) {
        const char *in = items.p ? items.p : "";
        if (!ands.len)
            mx_str_printf(o, "[%s%s]", neg ? "^" : "", in);
        else if (!neg)
            mx_str_printf(o, "(?:%s[%s])", ands.p, in);
        else
            mx_str_printf(o, "(?:(?!%s[%s])(?s:.))", ands.p, in);
    }
    mx_str_free(&items);
    mx_str_free(&ands);
    return st;
}

/* "{n}", "{n,}", "{,m}" or "{n,m}" at r->p: its length, or 0 if this is a plain brace. */
static size_t interval(const rewriter *r) {
    const char *p = r->p + 1;
    bool digits = false;
    while (p < r->end && *p >= '0' && *p <= '9') p++, digits = true;
    if (p < r->end && *p == ',') {
        p++;
        while (p < r->end && *p >= '0' && *p <= '9') p++, digits = true;
    }
    return digits && p < r->end && *p == '}' ? (size_t)(p + 1 - r->p) : 0;
}

static void wrap(mx_str *o, size_t atom) {
    if (!mx_str_reserve(o, 4)) return;
    memmove(o->p + atom + 3, o->p + atom, o->len - atom);
    memcpy(o->p + atom, "(?:", 3);
    o->len += 3;
    mx_str_putc(o, ')');
}

/* What follows "(?": flags are translated up to the ":" or ")" after them. */
static void group_flags(rewriter *r, mx_str *o) {
    const char *q = r->p;
    while (q < r->end && strchr("imsxu-", *q)) q++;
    if (q == r->end || (*q != ':' && *q != ')')) return;
    for (; r->p < q; r->p++) {
        if (*r->p == 'u') continue; // Unicode is always on
        mx_str_putc(o, *r->p == 'm' && r->dialect == MX_REGEX_ONIGURUMA ? 's' : *r->p);
    }
}

mx_status mx_regex_rewrite(mx_str *o, const char *pattern, size_t len, mx_regex_dialect dialect,
                           mx_err *err) {
    rewriter r = {.p = pattern, .start = pattern, .end = pattern + len, .dialect = dialect, .err = err};
    size_t group[MAX_NEST];
    int depth = 0;
    if (memchr(pattern, 0, len)) return refuse(&r, MX_UNSUPPORTED, "a NUL in a pattern is not supported");
    long atom = NO_ATOM; // where in o the last atom began
    while (r.p < r.end && !o->oom) {
        char c = *r.p;
        size_t n;
        if (c == '\\') {
            atom = (long)o->len;
            r.p++;
            MX_TRY(escape(&r, o, false));
        } else if (c == '[') {
            atom = (long)o->len;
            r.p++;
            MX_TRY(class_atom(&r, o));
        } else if (c == '(') {
            if (depth == MAX_NEST) return refuse(&r, MX_ELIMIT, "groups are nested too deeply");
            group[depth++] = o->len;
            atom = NO_ATOM;
            mx_str_putc(o, '(');
            r.p++;
            if (r.p < r.end && *r.p == '?') {
                mx_str_putc(o, '?');
                r.p++;
                group_flags(&r, o);
            }
        } else if (c == ')') {
            if (!depth) return refuse(&r, MX_EINVAL, "a ) without its (");
            atom = (long)group[--depth];
            mx_str_putc(o, ')');
            r.p++;
        } else if (c == '{' && atom != NO_ATOM && (n = interval(&r))) {
            if (r.p[1] == ',') {
                mx_str_puts(o, "{0");
                mx_str_add(o, r.p + 1, n - 1);
            } else {
                mx_str_add(o, r.p, n);
            }
            bool fixed = !memchr(r.p, ',', n);
            r.p += n;
            char after = r.p < r.end ? *r.p : 0;
            if (dialect == MX_REGEX_ONIGURUMA && (after == '+' || (after == '?' && fixed)))
                wrap(o, (size_t)atom);
        } else if (c == '*' || c == '+' || c == '?') {
            mx_str_putc(o, c); // possessive and lazy forms are the same in all three
            r.p++;
        } else {
            if ((c & 0xC0) != 0x80) atom = c == '|' || c == '^' ? NO_ATOM : (long)o->len;
            mx_str_putc(o, c);
            r.p++;
        }
    }
    return o->oom ? mx_fail(err, MX_ENOMEM, "no memory for a pattern") : MX_OK;
}
