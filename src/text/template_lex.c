/* template_lex.c - from template source to tokens, with the white space rules.
 *
 * As transformers sets jinja2 up: a newline after a block tag goes (trim_blocks), blanks between the start of a line and
 * a block tag go (lstrip_blocks), "-" strips all white space on its side, "+" keeps it, one newline at the end of the
 * source goes. All tokens are made at once: the parser looks ahead and the text is short. */
#include "template_int.h"
#include "base/utf8.h"
#include <stdlib.h>

typedef struct {
    tpl_ctx *c;
    const char *src, *p, *end;
    tpl_tok *tok;
    size_t n, cap;
    bool line_start; // the last piece ended with a newline
    char *braces;    // open brackets inside a tag
    size_t n_brace, cap_brace;
} lexer;

static size_t space_at(const char *p, const char *end) { // bytes of a white space character, else 0
    size_t used;
    if (p == end) return 0;
    int32_t cp = mx_utf8_decode(p, (size_t)(end - p), &used);
    return tpl_is_space(cp) ? used : 0;
}

static const char *skip_space(const char *p, const char *end) {
    for (size_t n; (n = space_at(p, end)) > 0;) p += n;
    return p;
}

/* End of [p, end) without trailing white space. */
static const char *rstrip(const char *p, const char *end) {
    tpl_str s = {.p = p, .len = (size_t)(end - p)};
    size_t used;
    while (s.len && tpl_is_space(tpl_cp_before(&s, s.len, &used))) s.len -= used;
    return p + s.len;
}

static void count_lines(lexer *lx, const char *from, const char *to) {
    for (; from < to; from++) lx->c->line += *from == '\n';
}

static tpl_tok *push(lexer *lx, tpl_tok_kind kind, const char *p, size_t len) {
    if (lx->n == lx->cap) {
        size_t cap = lx->cap ? lx->cap * 2 : 256;
        tpl_tok *bigger = tpl_alloc(lx->c, cap, sizeof *bigger);
        if (lx->n) memcpy(bigger, lx->tok, lx->n * sizeof *bigger);
        lx->tok = bigger;
        lx->cap = cap;
    }
    tpl_tok *t = &lx->tok[lx->n++];
    *t = (tpl_tok){.kind = kind, .line = lx->c->line, .p = p, .len = len};
    return t;
}

static bool starts(const char *p, const char *end, const char *z) {
    size_t n = strlen(z);
    return (size_t)(end - p) >= n && !memcmp(p, z, n);
}

/* The text before a tag: apply the tag's sign on its left side. */
static void push_data(lexer *lx, const char *from, const char *to, char sign, bool variable) {
    const char *stop = to;
    if (sign == '-') {
        stop = rstrip(from, to);
    } else if (sign != '+' && !variable) {
        const char *line = to;
        while (line > from && line[-1] != '\n') line--;
        if ((line > from || lx->line_start) && skip_space(line, to) == to) stop = line;
    }
    if (stop > from) push(lx, TK_DATA, from, (size_t)(stop - from));
    count_lines(lx, from, to);
}

/* After a tag's end: move past it and what its sign strips. */
static void tag_end(lexer *lx, const char *after, bool strip, bool trim) {
    const char *from = lx->p;
    lx->p = after;
    if (strip) {
        lx->p = skip_space(lx->p, lx->end);
    } else if (trim && lx->p < lx->end && *lx->p == '\n') {
        lx->p++;
    }
    count_lines(lx, from, lx->p);
    lx->line_start = lx->p[-1] == '\n';
}

static void comment(lexer *lx) {
    for (const char *p = lx->p; p < lx->end; p++) {
        if (starts(p, lx->end, "-#}")) {
            tag_end(lx, p + 3, true, false);
            return;
        }
        if (starts(p, lx->end, "+#}")) {
            tag_end(lx, p + 3, false, false);
            return;
        }
        if (starts(p, lx->end, "#}")) {
            tag_end(lx, p + 2, false, true);
            return;
        }
    }
    tpl_fail(lx->c, MX_EINVAL, "Missing end of comment tag");
}

/* "{%- raw -%}" at p: its end, or NULL when this is another tag. */
static const char *raw_begin(const lexer *lx, const char *p) {
    p += 2;
    if (p < lx->end && (*p == '-' || *p == '+')) p++;
    p = skip_space(p, lx->end);
    if (!starts(p, lx->end, "raw")) return NULL;
    p = skip_space(p + 3, lx->end);
    if (starts(p, lx->end, "-%}")) return skip_space(p + 3, lx->end);
    return starts(p, lx->end, "%}") ? p + 2 : NULL;
}

static void raw(lexer *lx) {
    for (const char *p = lx->p; p < lx->end; p++) {
        if (!starts(p, lx->end, "{%")) continue;
        const char *q = p + 2;
        char sign = 0;
        if (q < lx->end && (*q == '-' || *q == '+')) sign = *q++;
        q = skip_space(q, lx->end);
        if (!starts(q, lx->end, "endraw")) continue;
        q = skip_space(q + 6, lx->end);
        bool strip = starts(q, lx->end, "-%}"), keep = starts(q, lx->end, "+%}");
        if (!strip && !keep && !starts(q, lx->end, "%}")) continue;
        push_data(lx, lx->p, p, sign, false);
        lx->p = p;
        tag_end(lx, q + (strip || keep ? 3 : 2), strip, !strip && !keep);
        return;
    }
    tpl_fail(lx->c, MX_EINVAL, "Missing end of raw directive");
}

/* ---- inside a tag --------------------------------------------------------------------------------------------- */

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Python's unicode-escape. An unknown escape stays as it is; half a surrogate pair becomes U+FFFD. */
static size_t unescape(lexer *lx, const char *p, const char *end, char *out) {
    char *o = out;
    while (p < end) {
        if (*p != '\\' || p + 1 == end) {
            *o++ = *p++;
            continue;
        }
        char e = p[1];
        static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
        const char *at = strchr(from, e);
        p += 2;
        if (e == '\n') continue; // a line that goes on
        if (at && e) {
            *o++ = to[at - from];
            continue;
        }
        uint32_t cp = 0;
        int digits = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
        if (digits) {
            for (int i = 0; i < digits; i++, p++) {
                if (p == end || hex(*p) < 0) {
                    tpl_fail(lx->c, MX_EINVAL, "truncated \\%c escape in a string", e);
                }
                cp = cp << 4 | (uint32_t)hex(*p);
            }
            if (cp > 0x10FFFF) tpl_fail(lx->c, MX_EINVAL, "illegal Unicode character in a string");
        } else if (e >= '0' && e <= '7') {
            cp = (uint32_t)(e - '0');
            for (int i = 0; i < 2 && p < end && *p >= '0' && *p <= '7'; i++)
                cp = cp * 8 + (uint32_t)(*p++ - '0');
        } else if (e == 'N') {
            tpl_fail(lx->c, MX_UNSUPPORTED, "\\N{...} in a string is not supported; write \\uXXXX");
        } else {
            *o++ = '\\';
            *o++ = e;
            continue;
        }
        if (cp >= 0xD800 && cp < 0xE000) cp = 0xFFFD;
        o += mx_utf8_encode(cp, o);
    }
    return (size_t)(o - out);
}

static void string(lexer *lx) {
    char quote = *lx->p;
    const char *p = lx->p + 1;
    bool esc = false;
    while (p < lx->end && *p != quote) {
        if (*p == '\\') {
            esc = true;
            p++;
        }
        p++;
    }
    if (p >= lx->end) tpl_fail(lx->c, MX_EINVAL, "unexpected char %c: a string is not closed", quote);
    const char *text = lx->p + 1;
    size_t len = (size_t)(p - text);
    if (esc) {
        char *buf =
            tpl_alloc(lx->c, len * 2 + 1, 1); // \777 of 4 bytes gives 2; none gives more than it takes
        len = unescape(lx, text, p, buf);
        text = buf;
    }
    push(lx, TK_STRING, text, len);
    count_lines(lx, lx->p, p);
    lx->p = p + 1;
}

static bool digit(const char *p, const char *end) { return p < end && *p >= '0' && *p <= '9'; }

/* digits, single "_" between them allowed: the end, or p when there is none. */
static const char *digits(const char *p, const char *end) {
    if (!digit(p, end)) return p;
    while (digit(p, end) || (p < end && *p == '_' && digit(p + 1, end))) p++;
    return p;
}

static void number(lexer *lx) {
    const char *p = lx->p, *whole = digits(p, lx->end), *stop = whole;
    bool real = false, after_dot = p > lx->src && p[-1] == '.';
    if (!after_dot) {
        if (whole < lx->end && *whole == '.' && digit(whole + 1, lx->end)) {
            stop = digits(whole + 1, lx->end);
            real = true;
        }
        if (stop < lx->end && (*stop | 32) == 'e') {
            const char *exp = stop + 1;
            if (exp < lx->end && (*exp == '+' || *exp == '-')) exp++;
            if (digit(exp, lx->end)) {
                stop = digits(exp, lx->end);
                real = true;
            }
        }
    }
    int base = 10;
    if (!real && *p == '0') {
        char x = p + 1 < lx->end ? p[1] | 32 : 0;
        base = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 10;
        const char *q = p + (base == 10 ? 0 : 2);
        for (int d; q < lx->end; q++) { // 0, 00 and 0_0 are zero; 01 is 0 and then 1
            if (*q == '_' && q + 1 < lx->end) q++;
            d = hex(*q);
            if (d < 0 || d >= (base == 10 ? 1 : base)) break;
        }
        if (q > p && q[-1] == '_') q--;
        if (base != 10 && q == p + 2) {
            base = 10;
            q = p + 1;
        }
        stop = q;
    }
    char *buf = tpl_alloc(lx->c, (size_t)(stop - p) + 1, 1);
    size_t n = 0;
    for (const char *q = p; q < stop; q++) {
        if (*q != '_') buf[n++] = *q;
    }
    tpl_tok *t = push(lx, real ? TK_REAL : TK_INT, p, (size_t)(stop - p));
    if (real) {
        t->d = strtod(buf, NULL);
    } else {
        bool big;
        size_t skip = base == 10 ? 0 : 2;
        tpl_parse_int(buf + skip, n - skip, base, &t->i, &big);
        if (big) tpl_fail(lx->c, MX_EINVAL, "the integer %.*s does not fit 64 bits", (int)(stop - p), p);
    }
    lx->p = stop;
}

static bool name_at(const lexer *lx, const char *p, size_t *used) {
    if (p == lx->end) return false;
    int32_t cp = mx_utf8_decode(p, (size_t)(lx->end - p), used);
    return cp == '_' || (cp >= 0x80 ? tpl_is_alnum(cp)
                                    : (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z'));
}

static void operator(lexer *lx) {
    static const struct {
        char text[3];
        uint8_t kind;
    } ops[] = {{"//", TK_FLOORDIV}, {"**", TK_POW},     {"==", TK_EQ},    {"!=", TK_NE},
               {">=", TK_GE},       {"<=", TK_LE},      {"+", TK_ADD},    {"-", TK_SUB},
               {"/", TK_DIV},       {"*", TK_MUL},      {"%", TK_MOD},    {"~", TK_TILDE},
               {"[", TK_LBRACKET},  {"]", TK_RBRACKET}, {"(", TK_LPAREN}, {")", TK_RPAREN},
               {"{", TK_LBRACE},    {"}", TK_RBRACE},   {">", TK_GT},     {"<", TK_LT},
               {"=", TK_ASSIGN},    {".", TK_DOT},      {":", TK_COLON},  {"|", TK_PIPE},
               {",", TK_COMMA},     {";", TK_SEMICOLON}};
    for (size_t i = 0; i < countof(ops); i++) {
        if (!starts(lx->p, lx->end, ops[i].text)) continue;
        char c = *lx->p;
        if (c == '(' || c == '[' || c == '{') {
            if (lx->n_brace == lx->cap_brace) {
                size_t cap = lx->cap_brace ? lx->cap_brace * 2 : 64;
                char *bigger = tpl_alloc(lx->c, cap, 1);
                if (lx->n_brace) memcpy(bigger, lx->braces, lx->n_brace);
                lx->braces = bigger;
                lx->cap_brace = cap;
            }
            lx->braces[lx->n_brace++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!lx->n_brace) tpl_fail(lx->c, MX_EINVAL, "unexpected '%c'", c);
            char want = lx->braces[--lx->n_brace];
            if (want != c) tpl_fail(lx->c, MX_EINVAL, "unexpected '%c', expected '%c'", c, want);
        }
        size_t n = strlen(ops[i].text);
        push(lx, ops[i].kind, lx->p, n);
        lx->p += n;
        return;
    }
    size_t used = 1;
    mx_utf8_decode(lx->p, (size_t)(lx->end - lx->p), &used);
    tpl_fail(lx->c, MX_EINVAL, "unexpected char '%.*s'", (int)used, lx->p);
}

/* The inside of a block or variable tag, up to and with its end. */
static void tag(lexer *lx, bool variable) {
    const char *close = variable ? "}}" : "%}";
    lx->n_brace = 0;
    while (lx->p < lx->end) {
        if (!lx->n_brace) {
            bool strip = *lx->p == '-', keep = *lx->p == '+' && !variable;
            const char *at = lx->p + (strip || keep);
            if (starts(at, lx->end, close)) {
                push(lx, variable ? TK_VAR_END : TK_BLOCK_END, at, 2);
                tag_end(lx, at + 2, strip, !strip && !keep && !variable);
                return;
            }
        }
        size_t used = space_at(lx->p, lx->end);
        if (used) {
            lx->c->line += *lx->p == '\n';
            lx->p += used;
        } else if (digit(lx->p, lx->end)) {
            number(lx);
        } else if (*lx->p == '"' || *lx->p == '\'') {
            string(lx);
        } else if (name_at(lx, lx->p, &used)) {
            const char *from = lx->p;
            while (name_at(lx, lx->p, &used)) lx->p += used;
            push(lx, TK_NAME, from, (size_t)(lx->p - from));
        } else {
            operator(lx);
        }
    }
}

tpl_tok *tpl_lex(tpl_ctx *c, const char *src, size_t len, size_t *n_tok) {
    // \r\n and \r are newlines everywhere; one newline at the end goes
    char *text = tpl_alloc(c, len + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (src[i] == '\r') {
            text[n++] = '\n';
            if (i + 1 < len && src[i + 1] == '\n') i++;
        } else {
            text[n++] = src[i];
        }
    }
    if (n && text[n - 1] == '\n') n--;
    lexer lx = {.c = c, .src = text, .p = text, .end = text + n, .line_start = true};
    c->line = 1;
    while (lx.p < lx.end) {
        const char *p = lx.p;
        for (; p < lx.end; p++) {
            p = memchr(p, '{', (size_t)(lx.end - p));
            if (!p) p = lx.end;
            if (p + 1 < lx.end && (p[1] == '%' || p[1] == '{' || p[1] == '#')) break;
        }
        if (p >= lx.end) {
            push(&lx, TK_DATA, lx.p, (size_t)(lx.end - lx.p));
            count_lines(&lx, lx.p, lx.end);
            break;
        }
        bool variable = p[1] == '{';
        const char *after_raw = p[1] == '%' ? raw_begin(&lx, p) : NULL, *inside = p + 2;
        char sign = inside < lx.end && (*inside == '-' || *inside == '+') ? *inside++ : 0;
        push_data(&lx, lx.p, p, sign, variable);
        lx.p = inside;
        if (after_raw) {
            count_lines(&lx, inside, after_raw);
            lx.line_start = after_raw[-1] == '\n';
            lx.p = after_raw;
            raw(&lx);
        } else if (p[1] == '#') {
            comment(&lx);
        } else {
            push(&lx, variable ? TK_VAR_BEGIN : TK_BLOCK_BEGIN, p, 2);
            tag(&lx, variable);
        }
    }
    push(&lx, TK_EOF, lx.end, 0);
    *n_tok = lx.n;
    return lx.tok;
}

const char *tpl_tok_name(tpl_ctx *c, const tpl_tok *t) {
    switch (t->kind) {
    case TK_EOF: return "end of template";
    case TK_DATA: return "template data / text";
    case TK_VAR_BEGIN: return "begin of print statement";
    case TK_VAR_END: return "end of print statement";
    case TK_BLOCK_BEGIN: return "begin of statement block";
    case TK_BLOCK_END: return "end of statement block";
    default: break;
    }
    size_t n = t->len < 40 ? t->len : 40; // cut at a character's end
    while (n < t->len && n && (t->p[n] & 0xC0) == 0x80) n--;
    char *z = mx_arena_strndup(c->a, t->p, n);
    return z ? z : "token";
}
