/* engine.h - a model with its tokenizer and cache, and the sequences that run on it.
 *
 * A step takes some tokens of some sequences (a prompt's chunk, a decoded token) through the model together: the ragged
 * batch. Sequences own KV blocks and a state slot; blocks behind a sliding window go back to the pool as the sequence
 * moves on. One thread drives an engine. */
#ifndef MX_ENGINE_ENGINE_H
#define MX_ENGINE_ENGINE_H
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef enum { MX_KV_AUTO, MX_KV_BF16, MX_KV_F16, MX_KV_F32 } mx_kv_choice;

typedef struct {
    const char *device; // "auto", "cpu", "rocm", "cuda"; NULL: auto
    mx_dev_options dev; // threads, exact, isa
    int ctx; // positions for each sequence; 0: the model's own, but at most what memory allows (said in the log)
    int n_seq;            // sequences at once; 0: 1
    int chunk;            // prefill tokens in one step; 0: 512
    int max_rows;         // rows of logits in one step; 0: 16
    mx_kv_choice kv;      // auto: bf16 (f32 for f32 checkpoints and under exact)
    bool no_memory_check; // load even if it seems not to fit
    bool need_tokenizer;  // fail to open without one; else ids alone can be used
    void (*progress)(void *arg, uint64_t done, uint64_t total);
    void *arg;
} mx_engine_options;

typedef struct mx_engine mx_engine;
typedef struct mx_seq mx_seq;

/* What opening with these options would take, of a device that is opened for the answer. Nothing is loaded. */
typedef struct {
    char device[96];
    int ctx;
    uint64_t weights, kv, state; // state: of recurrent layers
    uint64_t scratch;            // everything else
    uint64_t available;          // UINT64_MAX: unknown
} mx_engine_needs;
mx_status mx_engine_need(mx_engine_needs *out, const char *dir, const mx_engine_options *opt, mx_err *err);

mx_status mx_engine_open(mx_engine **out, const char *dir, const mx_engine_options *opt, mx_err *err);
void mx_engine_free(mx_engine *e); // accepts NULL; sequences must be gone
mx_model *mx_engine_model(const mx_engine *e);
const mx_tokenizer *mx_engine_tokenizer(const mx_engine *e); // NULL if the folder has none
mx_chat *mx_engine_chat(const mx_engine *e);
mx_dev *mx_engine_dev(const mx_engine *e);
int mx_engine_ctx(const mx_engine *e);
int mx_engine_chunk(const mx_engine *e);
size_t mx_engine_kv_bytes(const mx_engine *e);
int mx_engine_free_blocks(const mx_engine *e, int group); // for leak tests

mx_status mx_seq_new(mx_seq **out, mx_engine *e, mx_err *err); // MX_ELIMIT: no slot free
void mx_seq_free(mx_seq *s);                                   // gives its blocks back
int mx_seq_len(const mx_seq *s);                               // positions in the cache
const int32_t *mx_seq_ids(const mx_seq *s);                    // [len]: the tokens at these positions
/* Forget everything from position n on (n <= len). Exact for attention layers without a window, and with one as long as
 * the window's blocks are still there; otherwise, and for recurrent layers, only n = 0 works: MX_UNSUPPORTED, caller recomputes. */
mx_status mx_seq_truncate(mx_seq *s, int n, mx_err *err);

enum { MX_MAX_BEST = 256 };
typedef struct {   // the likeliest tokens behind a position
    int k;         // 1 to 256, at most n_vocab
    int32_t *ids;  // [k] by falling logit; a tie goes to the lower id
    float *logits; // [k]
    float lse;     // log of the sum of exp over the whole vocabulary
} mx_best;

typedef struct { // n tokens of one sequence in a step
    mx_seq *seq;
    const int32_t *ids;
    int n;
    int n_rows;    // logits wanted for the last n_rows of them (0 .. n)
    float *logits; // host [n_rows, n_vocab]
    mx_best *best; // instead of logits, where n_rows is 1: the rest of the row stays on the device
} mx_step_item;
/* One pass for all items; the sum of n <= chunk. MX_ELIMIT if a sequence would pass ctx ("prompt of 129 tokens does not fit
 * the context of 128; ..."), with no item changed. MX_EINVAL for an id outside the vocabulary. On any other failure the sequences
 * of the step are unusable and must be freed. */
mx_status mx_engine_step(mx_engine *e, const mx_step_item *items, int n_item, mx_err *err);

/* A whole prompt for one sequence, in chunks; logits of the last token into logits[n_vocab] (or NULL). cancel: stops between chunks. */
mx_status mx_seq_prefill(mx_seq *s, const int32_t *ids, int n, float *logits, const volatile int *cancel,
                         mx_err *err);
/* The same, with the likeliest tokens instead of the logits. */
mx_status mx_seq_prefill_best(mx_seq *s, const int32_t *ids, int n, mx_best *best, const volatile int *cancel,
                              mx_err *err);

#endif
