/* normalize.h - the normalizer of a tokenizer: a list of steps that rewrite text. */
#ifndef MX_TEXT_NORMALIZE_H
#define MX_TEXT_NORMALIZE_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/pretok_regex.h"

typedef enum {
    MX_NORM_NFC,
    MX_NORM_NFD,
    MX_NORM_NFKC,
    MX_NORM_NFKD,
    MX_NORM_LOWERCASE,
    MX_NORM_STRIP,         // left, right
    MX_NORM_STRIP_ACCENTS, // removes marks
    MX_NORM_STRIP_MN,      // removes nonspacing marks (Bert)
    MX_NORM_PREPEND,       // content, unless the text is empty
    MX_NORM_REPLACE,       // pattern or re -> content
    MX_NORM_BYTE_LEVEL,
    MX_NORM_NMT,
    MX_NORM_CLEAN, // Bert: no controls, every space plain
    MX_NORM_CJK,   // Bert: spaces around ideographs
} mx_norm_kind;

typedef struct {
    mx_norm_kind kind;
    bool left, right;
    const char *pattern, *content; // in the tokenizer's arena
    size_t pattern_len, content_len;
    mx_regex *re;
} mx_norm_step;

typedef struct {
    mx_norm_step *step;
    size_t n, cap;
} mx_normalizer;

/* Read "normalizer" of a tokenizer.json (NULL or null: none). Strings are copied into a. */
mx_status mx_normalizer_read(mx_normalizer *nz, mx_arena *a, const mx_json *v, mx_err *err);
mx_status mx_normalizer_add(mx_normalizer *nz, mx_norm_step step, mx_err *err); // takes step.re
void mx_normalizer_free(mx_normalizer *nz);

/* Run the steps over text[0..len), valid UTF-8. *out is the result, borrowed from text itself, from *one or from *two,
 * which are scratch of the caller. *cut_left: characters at the start were removed, not replaced. */
mx_status mx_normalize(const mx_normalizer *nz, mx_matcher *m, const char *text, size_t len, mx_str *one,
                       mx_str *two, const char **out, size_t *out_len, bool *cut_left, mx_err *err);

/* Append text with every match of pattern (re, or the literal pattern) replaced by content. */
mx_status mx_replace_all(mx_str *out, const char *text, size_t len, const mx_regex *re, mx_matcher *m,
                         const char *pattern, size_t pattern_len, const char *content, size_t content_len,
                         mx_err *err);

/* {"String": "..."} or {"Regex": "..."} of a Split or Replace: one of *re and *lit is set. */
mx_status mx_pattern_read(const mx_json *v, const char *where, mx_arena *a, mx_regex **re, const char **lit,
                          size_t *lit_len, mx_err *err);

#endif
