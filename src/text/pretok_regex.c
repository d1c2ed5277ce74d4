#include "text/pretok_regex.h"
#include <stdint.h>
#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Steps of one match attempt before it is given up: a pass over 1 MB of text takes some millions. The stack is for
 * patterns that nest repetitions of groups. */
enum { STACK_START = 64 << 10, STACK_MAX = 64 << 20, HEAP_KIB = 64 << 10 };
static const uint32_t MATCH_LIMIT = 20u * 1000 * 1000;

struct mx_regex {
    pcre2_code *code;
    bool jit;
};

mx_status mx_regex_new(mx_regex **out, const char *pattern, size_t len, mx_regex_dialect dialect,
                       mx_err *err) {
    mx_str s = {.limit = 1 << 20};
    mx_status st = mx_regex_rewrite(&s, pattern, len, dialect, err);
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    mx_regex *re = calloc(1, sizeof *re);
    if (st == MX_OK && (!cc || !re)) st = mx_fail(err, MX_ENOMEM, "no memory for a pattern");
    if (st != MX_OK) goto out;
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    options |= dialect == MX_REGEX_ONIGURUMA ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
    int code;
    PCRE2_SIZE at;
    re->code = pcre2_compile((PCRE2_SPTR)(s.p ? s.p : ""), s.len, options, &code, &at, cc);
    if (!re->code) {
        char why[120];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        st = mx_fail(err, MX_EINVAL, "pattern \"%.*s\": %s", (int)(len > 200 ? 200 : len), pattern, why);
        goto out;
    }
    re->jit =
        pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0; // without it the interpreter does the same
    *out = re;
    re = NULL;
out:
    pcre2_compile_context_free(cc);
    mx_str_free(&s);
    mx_regex_free(re);
    return st;
}

void mx_regex_free(mx_regex *re) {
    if (!re) return;
    pcre2_code_free(re->code);
    free(re);
}

void mx_matcher_free(mx_matcher *m) {
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (mx_matcher){0};
}

static mx_status matcher_ready(mx_matcher *m, mx_err *err) {
    if (m->data) return MX_OK;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL);
    if (!m->data || !m->context) return mx_fail(err, MX_ENOMEM, "no memory for matching a pattern");
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return MX_OK;
}

mx_status mx_regex_next(const mx_regex *re, mx_matcher *m, const char *text, size_t len, size_t *pos,
                        size_t *last, size_t *start, size_t *end, bool *found, mx_err *err) {
    *found = false;
    if (!m->data) MX_TRY(matcher_ready(m, err));
    while (*pos <= len) {
        int rc;
        if (re->jit)
            rc = pcre2_jit_match(re->code, (PCRE2_SPTR)text, len, *pos, PCRE2_NO_UTF_CHECK, m->data,
                                 m->context);
        else
            rc = pcre2_match(re->code, (PCRE2_SPTR)text, len, *pos, PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH) return MX_OK;
        if (rc < 0) {
            char why[120];
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return mx_fail(err, MX_ELIMIT, "the tokenizer's split pattern gave up on this text: %s", why);
        }
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
        if (v[0] == v[1] && v[1] == *last) { // an empty match right after the last one: step over a character
            size_t p = v[1] + 1;
            while (p < len && ((unsigned char)text[p] & 0xC0) == 0x80) p++;
            *pos = p;
            continue;
        }
        *start = v[0] < v[1] ? v[0] : v[1]; // \K in a lookahead may put the start behind the end
        *end = *pos = *last = v[1];
        *found = true;
        return MX_OK;
    }
    return MX_OK;
}
