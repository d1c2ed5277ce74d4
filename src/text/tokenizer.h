/* tokenizer.h - text to token ids and back.
 *
 * Reads tokenizer.json (Hugging Face tokenizers: BPE), or where a checkpoint has only these, GPT-2 style vocab.json +
 * merges.txt, a tiktoken file (tokenizer.model, *.tiktoken) or tekken.json. A part that is not understood is a load
 * error that names it. A tokenizer is read-only after loading and may be used by several threads at once. */
#ifndef MX_TEXT_TOKENIZER_H
#define MX_TEXT_TOKENIZER_H
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct mx_tokenizer mx_tokenizer;

/* A list of ids that grows; free with mx_ids_free. A zeroed struct is empty. */
typedef struct {
    int32_t *id;
    size_t n, cap;
} mx_ids;
mx_status mx_ids_add(mx_ids *l, int32_t id, mx_err *err);
void mx_ids_free(mx_ids *l);

/* Load from the model folder dir. MX_ENOTFOUND if it has no tokenizer file, MX_EINVAL for a broken one,
 * MX_UNSUPPORTED for a kind or part that is not understood (Unigram, WordPiece, ...). */
mx_status mx_tokenizer_open(mx_tokenizer **out, const char *dir, mx_err *err);
/* From the text of a tokenizer.json, which is copied as needed. name is for messages. */
mx_status mx_tokenizer_parse(mx_tokenizer **out, const char *json, size_t len, const char *name, mx_err *err);
void mx_tokenizer_free(mx_tokenizer *t);

enum {
    MX_TOK_PARSE_SPECIAL =
        1,                  // text that spells a special added token becomes its id; else it is ordinary text
    MX_TOK_ADD_SPECIAL = 2, // run the post-processor: bos, eos, templates
};

/* Append the ids of text[0..len) to out. Invalid UTF-8 counts as U+FFFD, one for each maximal bad sequence, as
 * Python's errors="replace" does. */
mx_status mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t len, unsigned flags,
                              mx_ids *out, mx_err *err);

/* Append the text of ids to out, as tokenizers' decode() does (decoder chain, invalid bytes as U+FFFD).
 * MX_EINVAL for a negative id; an id beyond the vocabulary gives no text. */
mx_status mx_tokenizer_decode(const mx_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              mx_str *out, mx_err *err);

int32_t mx_tokenizer_size(const mx_tokenizer *t); // largest id + 1
int32_t mx_tokenizer_find(const mx_tokenizer *t,
                          const char *token);                    // id of a vocabulary or added token, or -1
bool mx_tokenizer_is_special(const mx_tokenizer *t, int32_t id); // an added token with "special": true
/* The bytes that a token stands for (byte-level symbols and <0xHH> undone, metaspace as space), borrowed; a special token's own
 * text. *len = 0 for an id without text. Concatenated over a generation these are what the detokenizer emits, but for
 * what the decoder chain strips at the start. */
const char *mx_tokenizer_bytes(const mx_tokenizer *t, int32_t id, size_t *len);
/* The token as its vocabulary spells it ("Ġhello"), borrowed, NUL-terminated; NULL for an unknown id. */
const char *mx_tokenizer_piece(const mx_tokenizer *t, int32_t id);

/* Incremental detokenizer: push ids one at a time, take text that is whole characters. The concatenation of all that
 * push and flush append equals mx_tokenizer_decode of all ids. */
typedef struct mx_detok mx_detok;
mx_status mx_detok_new(mx_detok **out, const mx_tokenizer *t, bool skip_special, mx_err *err); // borrows t
void mx_detok_free(mx_detok *d);
void mx_detok_reset(mx_detok *d);
mx_status mx_detok_push(mx_detok *d, int32_t id, mx_str *out, mx_err *err);
mx_status mx_detok_flush(mx_detok *d, mx_str *out,
                         mx_err *err); // the rest: an unfinished character as U+FFFD

#endif
