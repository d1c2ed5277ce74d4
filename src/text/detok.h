/* detok.h - the decoder chain of a tokenizer: from the spellings of tokens to text.
 *
 * tokenizers hands the whole list of tokens from decoder to decoder. Here the same chain is a pipeline that takes one
 * token at a time and gives text as soon as nothing that follows can change it; decoding a list is pushing its tokens
 * and flushing, so both ways give the same text. */
#ifndef MX_TEXT_DETOK_H
#define MX_TEXT_DETOK_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/pretok_regex.h"

typedef enum {
    MX_DEC_BYTE_LEVEL,    // characters of the byte alphabet become bytes, all tokens one
    MX_DEC_BYTE_FALLBACK, // runs of <0xHH> become text, or a U+FFFD for each if the run is no UTF-8
    MX_DEC_FUSE,          // all tokens become one
    MX_DEC_STRIP,         // up to start and stop times content from the ends of each token
    MX_DEC_REPLACE,       // pattern or re -> content
    MX_DEC_METASPACE,     // pattern -> space; in the first token -> nothing if drop_first
    MX_DEC_SUFFIX,        // BPEDecoder: pattern -> space, in the last token -> nothing
    MX_DEC_JOIN,          // no decoder: spaces between tokens
} mx_dec_kind;

typedef struct {
    mx_dec_kind kind;
    bool drop_first;
    const char *pattern, *content; // in the tokenizer's arena
    size_t pattern_len, content_len, start, stop;
    mx_regex *re;
} mx_dec_step;

enum { MX_DEC_MAX = 32 };
typedef struct {
    mx_dec_step step[MX_DEC_MAX];
    size_t n;
} mx_decoder;

mx_status mx_decoder_read(mx_decoder *d, mx_arena *a, const mx_json *v,
                          mx_err *err);                                 // v NULL or null: spaces
mx_status mx_decoder_add(mx_decoder *d, mx_dec_step step, mx_err *err); // takes step.re
void mx_decoder_free(mx_decoder *d);

/* Append the bytes that one token stands for in the middle of a text. scratch: two strings to work in. */
mx_status mx_decoder_bytes(const mx_decoder *d, mx_matcher *m, const char *p, size_t len, mx_str scratch[2],
                           mx_str *out, mx_err *err);

/* A run through the chain. A zeroed struct with `chain` set is ready. */
typedef struct {
    const mx_decoder *chain;
    struct mx_dec_state {
        mx_str held;      // what waits for more
        mx_str token;     // the parts of a token, for a step that needs it whole
        mx_str made;      // scratch
        size_t n_token;   // tokens begun so far
        size_t cut, kept; // Strip: leading characters dropped, trailing ones that wait
        bool leading;     // Strip: still at the start of a token
    } state[MX_DEC_MAX];
    mx_matcher matcher;
} mx_dec_run;
void mx_dec_run_reset(mx_dec_run *r);
void mx_dec_run_free(mx_dec_run *r);
mx_status mx_dec_push(mx_dec_run *r, const char *token, size_t len, mx_str *out, mx_err *err);
mx_status mx_dec_flush(mx_dec_run *r, mx_str *out, mx_err *err); // and reset

#endif
