/* engine.c - opening an engine: what fits, what is loaded, what is set aside for the steps. */
#include "engine/engine.h"
#include "base/file.h"
#include "engine/engine_int.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQ = 4096, MAX_CHUNK = 1 << 16 };

mx_dtype mx_engine_kv_type(const mx_engine_options *o, const mx_model_info *info) {
    switch (o->kv) {
    case MX_KV_BF16: return MX_BF16;
    case MX_KV_F16: return MX_F16;
    case MX_KV_F32: return MX_F32;
    case MX_KV_AUTO: break;
    }
    return o->dev.exact || info->dtype == MX_F32 ? MX_F32 : MX_BF16;
}

mx_status mx_engine_check_options(const mx_engine_options *o, mx_err *err) {
    const struct {
        const char *name;
        int v, max;
    } r[] = {
        {"context size", o->ctx, MX_MAX_CTX},
        {"number of sequences", o->n_seq, MAX_SEQ},
        {"prefill chunk", o->chunk, MAX_CHUNK},
        {"number of logits rows", o->max_rows, MAX_CHUNK},
    };
    for (size_t i = 0; i < countof(r); i++)
        if (r[i].v < 0 || r[i].v > r[i].max)
            return mx_fail(err, MX_EINVAL, "the %s is %d; it must be from 0 (automatic) to %d", r[i].name,
                           r[i].v, r[i].max);
    return MX_OK;
}

static mx_status open_text(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err) {
    mx_err why;
    mx_status st = mx_tokenizer_open(&e->tok, dir, &why);
    if (st != MX_OK && (o->need_tokenizer || st != MX_ENOTFOUND)) return mx_fail(err, st, "%s", why.msg);
    return mx_chat_open(&e->chat, dir, err);
}

static mx_status make_cache(mx_engine *e, const mx_engine_options *o, mx_err *err) {
    const mx_model_info *info = mx_model_get_info(e->model);
    int n_block[MX_KV_GROUPS] = {0};
    for (int g = 0; g < info->n_group; g++) {
        int64_t n = (int64_t)e->n_seq * mx_kv_need(e->ctx, info->window[g], e->chunk, MX_KV_BLOCK);
        if (n > INT32_MAX / MX_KV_BLOCK)
            return mx_fail(err, MX_ELIMIT, "%d sequences of %d positions are more than a KV pool can hold",
                           e->n_seq, e->ctx);
        n_block[g] = (int)n;
    }
    MX_TRY(mx_kv_init(&e->pool, info->n_group, n_block, err));
    return mx_cache_new(&e->cache, e->model, n_block, e->n_seq, mx_engine_kv_type(o, info), err);
}

/* Everything a step needs, so that steps allocate nothing. */
static mx_status make_buffers(mx_engine *e, mx_err *err) {
    const mx_model_info *info = mx_model_get_info(e->model);
    size_t chunk = (size_t)e->chunk, n_seq = (size_t)e->n_seq, stride = (size_t)e->stride, at = 0;
#define place(n) (at = (at + 63) / 64 * 64, at += (n), at - (n)) // each array at 256 bytes
    (void)place(chunk);
    e->at_pos = place(chunk);
    e->at_seq = place(chunk);
    e->at_start = place(n_seq + 1);
    e->at_len = place(n_seq);
    e->at_slot = place(n_seq);
    e->at_blocks[0] = place(n_seq * stride);
    for (int g = 1; g < info->n_group; g++) e->at_blocks[g] = place(n_seq * stride);
#undef place
    e->n_host = at;
    size_t per_seq = (size_t)e->ctx + (size_t)info->n_group * stride,
           max_rows = (size_t)mx_model_max_rows(e->model);
    e->host = calloc(at, sizeof *e->host);
    e->rows = calloc(max_rows, sizeof *e->rows);
    e->staging = calloc(max_rows * (size_t)info->n_vocab, sizeof *e->staging);
    e->seqs = calloc(n_seq, sizeof *e->seqs);
    e->seq_memory = calloc(n_seq * per_seq, sizeof *e->seq_memory);
    if (!e->host || !e->rows || !e->staging || !e->seqs || !e->seq_memory)
        return mx_fail(err, MX_ENOMEM, "no memory for the tables of %d sequences", e->n_seq);
    for (int i = 0; i < e->n_seq; i++) {
        mx_seq *s = &e->seqs[i];
        *s = (mx_seq){.e = e, .slot = i, .ids = e->seq_memory + (size_t)i * per_seq};
        for (int g = 0; g < info->n_group; g++) s->blocks[g] = s->ids + e->ctx + (size_t)g * stride;
    }
    return mx_buf_new(&e->batch_buf, e->dev, at * sizeof *e->host, "the batch's tables", err);
}

void mx_engine_set_sizes(mx_engine *e, const mx_engine_options *o) {
    e->n_seq = o->n_seq ? o->n_seq : 1;
    e->chunk = o->chunk ? o->chunk : 512;
    if (e->chunk < e->n_seq) e->chunk = e->n_seq; // every sequence can decode in one step
}

mx_status mx_engine_make(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err) {
    mx_model_options mo = {
        .max_tok = e->chunk, .max_rows = o->max_rows, .progress = o->progress, .arg = o->arg};
    e->stride = (e->ctx + MX_KV_BLOCK - 1) / MX_KV_BLOCK;
    MX_TRY(mx_model_open(&e->model, dir, e->dev, &mo, err));
    MX_TRY(make_cache(e, o, err));
    return make_buffers(e, err);
}

void mx_engine_unmake(mx_engine *e) {
    mx_buf_free(&e->batch_buf);
    mx_cache_free(e->cache);
    mx_kv_free(&e->pool);
    mx_model_free(e->model);
    free(e->host);
    free(e->rows);
    free(e->staging);
    free(e->seqs);
    free(e->seq_memory);
}

static mx_status open_all(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err) {
    mx_engine_set_sizes(e, o);
    MX_TRY(mx_dev_open(&e->dev, o->device ? o->device : "auto", &o->dev, err));
    MX_TRY(mx_engine_settle(e, dir, o, err));
    MX_TRY(open_text(e, dir, o, err));
    MX_TRY(mx_engine_make(e, dir, o, err));
    if (e->tok) mx_model_use_tokenizer(e->model, e->tok);
    return MX_OK;
}

mx_status mx_engine_open(mx_engine **out, const char *dir, const mx_engine_options *opt, mx_err *err) {
    static const mx_engine_options none = {0};
    if (!opt) opt = &none;
    MX_TRY(mx_engine_check_options(opt, err));
    mx_engine *e = calloc(1, sizeof *e);
    if (!e) return mx_fail(err, MX_ENOMEM, "no memory for the engine");
    mx_status st = open_all(e, dir, opt, err);
    if (st != MX_OK) {
        mx_engine_free(e);
        return st;
    }
    *out = e;
    return MX_OK;
}

void mx_engine_free(mx_engine *e) {
    if (!e) return;
    mx_engine_unmake(e);
    mx_chat_free(e->chat);
    mx_tokenizer_free(e->tok);
    mx_dev_close(e->dev);
    free(e);
}

mx_model *mx_engine_model(const mx_engine *e) { return e->model; }
const mx_tokenizer *mx_engine_tokenizer(const mx_engine *e) { return e->tok; }
mx_chat *mx_engine_chat(const mx_engine *e) { return e->chat; }
mx_dev *mx_engine_dev(const mx_engine *e) { return e->dev; }
int mx_engine_ctx(const mx_engine *e) { return e->ctx; }
int mx_engine_chunk(const mx_engine *e) { return e->chunk; }
size_t mx_engine_kv_bytes(const mx_engine *e) { return mx_cache_bytes(e->cache); }
int mx_engine_free_blocks(const mx_engine *e, int group) { return e->pool.n_free[group]; }
