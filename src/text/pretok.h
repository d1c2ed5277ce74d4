/* pretok.h - the pre-tokenizer: cuts normalized text into the pieces that BPE works on.
 *
 * Pieces are ranges of one text. Some steps only cut, others write the text anew (ByteLevel, Metaspace), so the text
 * is double-buffered in the state of a call. */
#ifndef MX_TEXT_PRETOK_H
#define MX_TEXT_PRETOK_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/pretok_regex.h"
#include <stdint.h>

typedef struct {
    uint32_t off, len; // in the state's text
    int32_t id;        // an added token that was found, or -1: text
    bool first;        // starts where the original text starts (Metaspace "first")
} mx_piece;

typedef struct {
    mx_piece *p;
    size_t n, cap;
    bool oom;
} mx_pieces;
void mx_pieces_add(mx_pieces *l, mx_piece piece); // an empty text piece is left out

typedef enum {
    MX_SPLIT_ISOLATED,
    MX_SPLIT_REMOVED,
    MX_SPLIT_CONTIGUOUS,
    MX_SPLIT_WITH_PREVIOUS,
    MX_SPLIT_WITH_NEXT
} mx_behavior;

typedef enum {
    MX_PRE_REGEX,   // re
    MX_PRE_LITERAL, // lit
    MX_PRE_CLASS,   // every character for which in_class is true
    MX_PRE_WORDS,   // \w+|[^\w\s]+ kept, the rest removed
    MX_PRE_PREFIX,  // put lit in front unless the piece starts with it; only_first: of the first piece alone
    MX_PRE_REPLACE, // every space becomes lit
    MX_PRE_BYTES,   // every byte becomes its character
    MX_PRE_FIXED_LENGTH, // cuts of `count` characters
} mx_pre_kind;

typedef struct {
    mx_pre_kind kind;
    mx_behavior behavior;
    bool invert, only_first;
    mx_regex *re;
    const char *lit; // in the tokenizer's arena or static
    size_t lit_len, count;
    bool (*in_class)(uint32_t cp);
} mx_pre_step;

typedef struct {
    mx_pre_step *step;
    size_t n, cap;
} mx_pretok;

mx_status mx_pretok_read(mx_pretok *pt, mx_arena *a, const mx_json *v, mx_err *err); // v NULL or null: none
mx_status mx_pretok_add(mx_pretok *pt, mx_pre_step step, mx_err *err);               // takes step.re
mx_status mx_pretok_add_split(mx_pretok *pt, const char *pattern, mx_regex_dialect dialect,
                              mx_err *err); // isolated
void mx_pretok_free(mx_pretok *pt);

typedef struct {
    uint32_t start, end;
    bool match;
} mx_segment;

typedef struct {
    mx_str text, other;
    mx_pieces pieces, next;
    mx_segment *segment; // scratch of one piece
    size_t n_segment, cap_segment;
    bool oom;
    mx_matcher matcher;
} mx_pre_state;
void mx_pre_state_free(mx_pre_state *s);

/* Run all steps over s->pieces. */
mx_status mx_pretok_run(const mx_pretok *pt, mx_pre_state *s, mx_err *err);

#endif
