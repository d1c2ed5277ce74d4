/* tokenizer_vocab.h - token ids and their spellings, both ways.
 *
 * One table by id; two indexes over it by spelling: the model's tokens, which BPE looks up, and the added ones. */
#ifndef MX_TEXT_TOKENIZER_VOCAB_H
#define MX_TEXT_TOKENIZER_VOCAB_H
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ids up to here: the largest vocabulary known has 262,400. A file with larger ones is refused, so that one number
 * cannot make the tables gigabytes. */
enum { MX_TOK_MAX_ID = (1 << 22) - 1, MX_TOK_MAX_PIECE = 1 << 16 };

enum { MX_TOK_USED = 1, MX_TOK_ADDED = 2, MX_TOK_SPECIAL = 4 };

typedef struct {
    struct {
        uint32_t hash;
        int32_t id; // -1: empty
    } * slot;
    uint32_t mask; // slots - 1
    uint32_t n;
} mx_tok_index;

typedef struct {
    struct {
        uint32_t off, len; // in blob, NUL-terminated there
    } * piece;
    uint8_t *flags; // MX_TOK_*
    int32_t n, cap; // ids are below n
    mx_str blob;
    mx_tok_index model, added;
} mx_vocab;

mx_status mx_vocab_init(mx_vocab *v, size_t n_token, mx_err *err); // room for about n_token
void mx_vocab_free(mx_vocab *v);

/* Give `id` this spelling and put it into one of the indexes. MX_EINVAL for an id out of range or taken by another
 * spelling; a spelling that is there already moves to the new id. */
mx_status mx_vocab_add(mx_vocab *v, mx_tok_index *ix, const char *p, size_t len, int64_t id, mx_err *err);

uint32_t mx_tok_hash(const char *p, size_t len);
int32_t mx_vocab_find_hash(const mx_vocab *v, const mx_tok_index *ix, const char *p, size_t len,
                           uint32_t hash);
static inline int32_t mx_vocab_find(const mx_vocab *v, const mx_tok_index *ix, const char *p, size_t len) {
    return mx_vocab_find_hash(v, ix, p, len, mx_tok_hash(p, len));
}
/* Ask for the memory that adding or finding p will need in a moment. */
static inline void mx_vocab_prefetch(const mx_tok_index *ix, const char *p, size_t len) {
    __builtin_prefetch(&ix->slot[mx_tok_hash(p, len) & ix->mask], 1);
}
static inline bool mx_vocab_has(const mx_vocab *v, int32_t id) {
    return id >= 0 && id < v->n && (v->flags[id] & MX_TOK_USED);
}
static inline const char *mx_vocab_text(const mx_vocab *v, int32_t id, size_t *len) {
    *len = v->piece[id].len;
    return v->blob.p + v->piece[id].off;
}

#endif
