/* tokenizer_int.h - what the parts of the tokenizer share. */
#ifndef MX_TEXT_TOKENIZER_INT_H
#define MX_TEXT_TOKENIZER_INT_H
#include "base/arena.h"
#include "base/json.h"
#include "text/bpe.h"
#include "text/detok.h"
#include "text/normalize.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    const char *
        text; // the content, or for normalized tokens what the normalizer makes of it: what is looked for and
    size_t len; // what is decoded; in the arena
} mx_added;

/* A set of strings to look for: a trie whose nodes hang in lists of siblings. Node 0 is the root. */
typedef struct {
    struct mx_trie_node {
        int32_t child, sibling; // 0: none
        int32_t token;          // index into added, or -1
        uint8_t byte;
    } * node;
    size_t n, cap;
    bool starts[256]; // bytes that some string begins with
} mx_trie;

struct mx_tokenizer {
    mx_arena arena;
    mx_vocab vocab;
    mx_bpe bpe;
    mx_normalizer normalizer;
    mx_pretok pretok;
    mx_decoder decoder;
    mx_added *added;
    size_t n_added, cap_added;
    mx_trie plain, normalized; // added tokens looked for before and after normalizing
    struct mx_respelled {
        int32_t id, index; // index into added
    } * respelled;         // sorted by id: tokens whose decoded text is not their content
    size_t n_respelled;
    int32_t *frame; // the post-processor: ids, and -1 where the text stands
    size_t n_frame;
    mx_str bytes;         // bytes of all tokens, one after the other
    uint32_t *bytes_from; // [vocab.n + 1]
};

/* A tokenizer with nothing in it but room for n_token. */
mx_status mx_tok_new(mx_tokenizer **out, size_t n_token, mx_err *err);
/* Add an added token; added in the order of the file. id < 0: its id in the vocabulary, else the next free one. */
mx_status mx_tok_add(mx_tokenizer *t, mx_added token, const char *content, size_t len, int64_t id,
                     mx_err *err);
/* After everything is there : tries, tables of BPE and bytes. */
mx_status mx_tok_finish(mx_tokenizer *t, mx_err *err);

/* Cut text[0..len) by the tokens of a trie: pieces are added to out, with offsets from `base`. first: the text
 * begins where the original does. */
void mx_tok_cut(const mx_tokenizer *t, const mx_trie *trie, const char *text, size_t len, size_t base,
                bool first, unsigned flags, mx_pieces *out);

/* The text of id as the decoder chain gets it. */
const char *mx_tok_spelling(const mx_tokenizer *t, int32_t id, size_t *len);

/* frame = template with every -1 replaced by the frame so far. */
mx_status mx_tok_wrap(mx_tokenizer *t, const int32_t *ids, size_t n, mx_err *err);

/* The steps of byte-level BPE around a split pattern, and its decoder. */
mx_status mx_tok_byte_level(mx_tokenizer *t, const char *pattern, mx_regex_dialect dialect, mx_err *err);

/* Sources: a parsed tokenizer.json; files of a folder. What they give still needs mx_tok_finish. */
mx_status mx_tok_from_json(mx_tokenizer **out, const mx_json *root, mx_err *err);
mx_status mx_tok_from_vocab_merges(mx_tokenizer **out, mx_arena *a, const char *vocab, const char *merges,
                                   const mx_json *config, mx_err *err);
mx_status mx_tok_from_tiktoken(mx_tokenizer **out, const char *path, const mx_json *config, mx_err *err);
/* The tiktoken file of a folder; MX_ENOTFOUND if there is no tokenizer at all, MX_UNSUPPORTED for a SentencePiece one. */
mx_status mx_tok_find_tiktoken(const char **path, const char *dir, mx_arena *a, mx_err *err);
mx_status mx_tok_from_tekken(mx_tokenizer **out, const char *path, mx_err *err);
/* Added tokens of tokenizer_config.json (config may be NULL) that the tokenizer does not have yet. */
mx_status mx_tok_add_from_config(mx_tokenizer *t, const mx_json *config, mx_err *err);

#endif
