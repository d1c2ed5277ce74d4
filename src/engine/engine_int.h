/* engine_int.h - what the files of the engine share: the insides of an engine and of a sequence. */
#ifndef MX_ENGINE_ENGINE_INT_H
#define MX_ENGINE_ENGINE_INT_H
#include "engine/engine.h"
#include "engine/kv.h"

struct mx_seq {
    mx_engine *e;
    bool used;   // handed out
    bool broken; // a step failed half-way: what the cache holds is unknown
    int slot;    // index in the engine's seqs, and of the recurrent state
    int len;
    int32_t *ids;                               // [ctx]
    int32_t *blocks[MX_KV_GROUPS];              // [stride] block numbers; -1: given back, or not taken yet
    int first[MX_KV_GROUPS], end[MX_KV_GROUPS]; // blocks[first .. end) are held
};

struct mx_engine {
    mx_dev *dev;
    mx_model *model;
    mx_cache *cache;
    mx_tokenizer *tok;
    mx_chat *chat;
    mx_kv_pool pool;
    int ctx, n_seq, chunk, stride; // stride: blocks of a sequence of ctx positions
    mx_seq *seqs;                  // [n_seq]
    int32_t *seq_memory;           // behind ids and blocks of all sequences

    /* The arrays of an mx_batch at fixed places: host is the copy that a step fills, batch_buf what the device reads. */
    int32_t *host;
    mx_buf batch_buf;
    size_t at_pos, at_seq, at_start, at_len, at_slot, at_blocks[MX_KV_GROUPS], n_host; // in numbers
    int *rows;                                                                         // [max_rows]
    float *staging; // [max_rows, n_vocab]: rows of several sequences in one call
};

enum { MX_MAX_CTX = 1 << 24 };
mx_status mx_engine_check_options(const mx_engine_options *o, mx_err *err);
void mx_engine_set_sizes(mx_engine *e, const mx_engine_options *o); // sequences and chunk
/* engine.c: the model, its cache and the tables of a batch, for e's context, on e's device. */
mx_status mx_engine_make(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err);
mx_dtype mx_engine_kv_type(const mx_engine_options *o, const mx_model_info *info);
void mx_engine_unmake(mx_engine *e); // accepts what is half made

/* plan.c: settle e's context and set memory aside on a GPU, or refuse with the numbers. */
mx_status mx_engine_settle(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err);

/* Give back the blocks that no later token of the sequence can see. */
void mx_seq_slide(mx_seq *s);

#endif
