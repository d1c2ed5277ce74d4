/* bpe.h - byte pair encoding of one piece of text.
 *
 * A piece becomes symbols (its characters, or bytes as <0xHH>), and the pair of neighbours with the lowest rank is
 * merged until none is left. Two sources of ranks: a list of merges (tokenizer.json), or the vocabulary itself, where a
 * pair may merge if its text is a token, whose id is its rank (tiktoken, tekken). */
#ifndef MX_TEXT_BPE_H
#define MX_TEXT_BPE_H
#include "text/tokenizer.h"
#include "text/tokenizer_vocab.h"

typedef struct {
    uint32_t left, right; // ids; left = UINT32_MAX: empty
    uint32_t rank;
    int32_t to;
} mx_merge;

typedef struct {
    const mx_vocab *vocab;
    mx_merge *merge; // hash table over (left, right)
    uint32_t merge_mask, n_merge;
    bool by_vocab;      // ranks from the vocabulary
    size_t longest;     // by_vocab: bytes of the longest token
    bool ignore_merges; // a piece that is a token as a whole is taken as it is
    bool byte_fallback, fuse_unk;
    int32_t unk;                 // id or -1: unknown characters vanish
    bool unk_missing;            // unk_token is named but not in the vocabulary: using it is an error
    const char *prefix, *suffix; // continuing_subword_prefix, end_of_word_suffix; NULL if there is none
    size_t prefix_len, suffix_len;
    bool words;             // no token has a ▁ after another character: see mx_bpe_word
    int32_t char_id[0x250]; // ids of the first characters, the byte alphabet among them; -1: none
    int32_t byte_id[256];   // ids of <0xHH>, or -1
} mx_bpe;

mx_status mx_bpe_reserve(mx_bpe *b, size_t n_merge, mx_err *err);
/* Merges first_rank and up: a then z each. The tokens and their concatenation must be in the vocabulary; MX_EINVAL if
 * not. Many at once, since the time goes to waiting for memory. */
typedef struct {
    const char *a, *z;
    size_t a_len, z_len;
} mx_merge_text;
enum { MX_MERGE_BATCH = 64 };
mx_status mx_bpe_add_merges(mx_bpe *b, const mx_merge_text *m, size_t n, uint32_t first_rank, mx_err *err);
void mx_bpe_ready(mx_bpe *b); // after the vocabulary is complete: fills char_id, byte_id, longest
void mx_bpe_free(mx_bpe *b);

enum { MX_BPE_LANES = 6 };
typedef struct {
    uint64_t *key; // rank << 32 | position
    size_t start, end, cap;
} mx_bpe_lane;

/* Scratch of one thread; a zeroed struct is ready. */
typedef struct {
    int32_t *id;           // symbols
    uint32_t *start;       // where a symbol begins in the piece
    uint32_t *next, *prev; // linked list of what is left
    uint32_t *rank;        // of the pair that begins here
    int32_t *to;           // what it merges to
    size_t cap, n;
    mx_bpe_lane lane[MX_BPE_LANES], heap; // the queue of a long piece: see bpe.c
    uint64_t head[MX_BPE_LANES + 1];      // the lowest key of each lane and of the heap
    mx_str tmp;
    size_t steps; // merges and queue operations so far: tests check how they grow
} mx_bpe_scratch;
void mx_bpe_scratch_free(mx_bpe_scratch *s);

/* The length of the first word of p[0..len): up to a ▁ that follows another character, if no merge can reach across that
 * border. Models of the SentencePiece kind take a whole text as one piece; word by word it gives the same ids, and words
 * repeat. */
size_t mx_bpe_word(const mx_bpe *b, const char *p, size_t len);

/* Append the ids of p[0..len), valid UTF-8. special_whole: ignore_merges may give a special token. */
mx_status mx_bpe_encode(const mx_bpe *b, mx_bpe_scratch *s, const char *p, size_t len, bool special_whole,
                        mx_ids *out, mx_err *err);

#endif
