/* pretok_regex.h - regular expressions of tokenizer files, matched by PCRE2 with its compiler.
 *
 * The files are written for Oniguruma (tokenizer.json) or for Rust's fancy-regex (tiktoken, tekken), whose syntax and
 * classes differ from PCRE2's in places; a pattern is rewritten before it is compiled so that it finds the same. */
#ifndef MX_TEXT_PRETOK_REGEX_H
#define MX_TEXT_PRETOK_REGEX_H
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MX_REGEX_ONIGURUMA, // "x{1,3}+" repeats the repetition, ^ and $ work on lines, \h is a hexadecimal digit
    MX_REGEX_FANCY,     // "x{1,3}+" is possessive, $ is the end of the text
} mx_regex_dialect;

typedef struct mx_regex mx_regex; // read-only, shared by threads

/* MX_EINVAL for a pattern with an error, MX_UNSUPPORTED for one that PCRE2 has no form for. */
mx_status mx_regex_new(mx_regex **out, const char *pattern, size_t len, mx_regex_dialect dialect,
                       mx_err *err);
void mx_regex_free(mx_regex *re);

/* What one thread needs while matching. A zeroed struct is ready; free with mx_matcher_free. */
typedef struct {
    void *data, *context, *stack;
} mx_matcher;
void mx_matcher_free(mx_matcher *m);

/* Walk the matches of re in text[0..len), valid UTF-8: from *pos, which starts at 0. found = false at the end.
 * Like Oniguruma's find_iter, no empty match directly after the previous match; *last starts at SIZE_MAX.
 * MX_ELIMIT if the pattern backtracks without end. */
mx_status mx_regex_next(const mx_regex *re, mx_matcher *m, const char *text, size_t len, size_t *pos,
                        size_t *last, size_t *start, size_t *end, bool *found, mx_err *err);

/* The pattern as PCRE2 gets it: for tests. */
mx_status mx_regex_rewrite(mx_str *out, const char *pattern, size_t len, mx_regex_dialect dialect,
                           mx_err *err);

#endif
