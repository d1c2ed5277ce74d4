/* plan.c - how much memory a model takes, settled before it is loaded.
 *
 * The sizes of weights and cache follow from the files and the options. On a GPU the ops want scratch memory too, whose size only they
 * know; so there everything is opened once while memory is only counted (backend.h: plan_begin), and the largest steps are walked
 * through. What comes out is set aside at once. */
#include "base/file.h"
#include "base/log.h"
#include "engine/engine_int.h"
#include "engine/memory.h"
#include <stdlib.h>
#include <string.h>

/* ---- what the steps of a model take ---------------------------------------------------------------------- */

/* Walk through one step of n_seq sequences, of which the first has `longest` tokens and the others as many or, behind a long one, one. */
static mx_status walk(mx_engine *t, int n_seq, int longest, int kv_len, mx_err *err) {
    enum { SHORT = 16 };
    int n_tok = longest <= SHORT ? longest * n_seq : longest + n_seq - 1;
    if (n_tok > t->chunk || kv_len < longest) return MX_OK;
    int32_t *d = t->batch_buf.p;
    mx_batch b = {.n_tok = n_tok,
                  .n_seq = n_seq,
                  .block_stride = t->stride,
                  .block = MX_KV_BLOCK,
                  .max_kv_len = kv_len,
                  .max_q_len = longest,
                  .ids = d,
                  .pos = d + t->at_pos,
                  .seq = d + t->at_seq,
                  .seq_start = d + t->at_start,
                  .kv_len = d + t->at_len,
                  .slot = d + t->at_slot};
    for (int g = 0; g < t->pool.n_group; g++) b.blocks[g] = d + t->at_blocks[g];
    return mx_model_forward(t->model, t->cache, &b, err);
}

/* The head for n rows of the last step. */
static mx_status walk_head(mx_engine *t, int n, mx_err *err) {
    if (n > mx_model_max_rows(t->model)) n = mx_model_max_rows(t->model);
    for (int i = 0; i < n; i++) t->rows[i] = i;
    MX_TRY(mx_model_logits(t->model, t->rows, n, t->staging, err));
    int n_vocab = mx_model_get_info(t->model)->n_vocab;
    mx_model_best best;
    return mx_model_top(t->model, t->rows, n, MX_MAX_BEST < n_vocab ? MX_MAX_BEST : n_vocab, &best, err);
}

/* Steps of every kind: one token to a chunk, with one sequence to all, at lengths to the whole context. */
static mx_status walk_all(mx_engine *t, mx_err *err) {
    static const int few[] = {1, 2, 3, 4, 5, 6, 7, 8, 15};
    for (int n_seq = 1;; n_seq = n_seq * 2 < t->n_seq ? n_seq * 2 : t->n_seq) {
        for (size_t i = 0; i < countof(few); i++)
            for (int kv = t->ctx; kv >= few[i]; kv /= 2) {
                MX_TRY(walk(t, n_seq, few[i], kv, err));
                MX_TRY(walk(t, n_seq, few[i], kv - kv / 4, err)); // parts double in between
            }
        MX_TRY(walk(t, n_seq, 16, t->ctx, err));
        MX_TRY(walk(t, n_seq, t->chunk - n_seq + 1 < t->ctx ? t->chunk - n_seq + 1 : t->ctx, t->ctx, err));
        MX_TRY(walk_head(t, n_seq, err));
        if (n_seq == t->n_seq) return walk_head(t, mx_model_max_rows(t->model), err);
    }
}

/* All that the device will hold for context e->ctx, in bytes. */
static mx_status count(const mx_engine *e, const char *dir, const mx_engine_options *o, uint64_t *bytes,
                       mx_err *err) {
    mx_engine t = {.dev = e->dev, .ctx = e->ctx, .n_seq = e->n_seq, .chunk = e->chunk};
    mx_engine_options quiet = *o;
    quiet.progress = NULL;
    const size_t peak = e->dev->peak;
    MX_TRY(e->dev->be->plan_begin(e->dev, err));
    mx_status st = mx_engine_make(&t, dir, &quiet, err);
    if (st == MX_OK) st = walk_all(&t, err);
    mx_engine_unmake(&t);
    *bytes = e->dev->be->plan_end(e->dev);
    e->dev->peak = peak;
    return st;
}

/* ---- what fits --------------------------------------------------------------------------------------------- */

static mx_status available_on(mx_dev *dev, uint64_t *bytes, mx_err *err) {
    bool shared;
    *bytes = mx_memory_available();
    if (!dev->be->memory) return MX_OK;
    MX_TRY(dev->be->memory(dev, bytes, &shared, err));
    if (shared) *bytes = mx_memory_shared_available(*bytes);
    return MX_OK;
}

/* From the files alone. A description is sized for steps of its own default; work space grows with the tokens of a step. */
static mx_memory_need estimate(const mx_engine *e, const mx_model *m, const char *dir,
                               const mx_engine_options *o) {
    const mx_model_info *info = mx_model_get_info(m);
    mx_dtype type = mx_engine_kv_type(o, info);
    uint64_t scratch = mx_model_scratch_bytes(m), usual = (uint64_t)mx_model_max_tok(m);
    if ((uint64_t)e->chunk > usual) scratch = scratch / usual * (uint64_t)e->chunk;
    mx_memory_need need = {.name = mx_path_base(dir),
                           .weights = info->weight_bytes,
                           .scratch = scratch,
                           .fixed_kv = (uint64_t)e->n_seq * mx_model_slot_bytes(m),
                           .f32_kv = type == MX_F32,
                           .n_seq = e->n_seq,
                           .unit = MX_KV_BLOCK};
    for (int g = 0; g < info->n_group; g++) {
        uint64_t bytes = (uint64_t)e->n_seq * mx_model_block_bytes(m, g, type);
        if (info->window[g] == 0)
            need.per_position += bytes / MX_KV_BLOCK;
        else
            need.fixed_kv += bytes * (uint64_t)mx_kv_need(MX_MAX_CTX, info->window[g], e->chunk, MX_KV_BLOCK);
    }
    return need;
}

/* The context for options that leave it open: the model's, or what fits. */
static void choose_context(mx_engine *e, const mx_memory_need *need, int own, bool cut, uint64_t available) {
    e->ctx = own < 1 ? MX_KV_BLOCK : own < MX_MAX_CTX ? own : MX_MAX_CTX;
    int fits = mx_memory_fit(need, e->ctx, available);
    if (cut && fits < e->ctx && fits >= MX_KV_BLOCK) e->ctx = fits;
}

static mx_status settle(mx_engine *e, const mx_model *m, const char *dir, const mx_engine_options *o,
                        mx_engine_needs *out, mx_err *err) {
    const mx_model_info *info = mx_model_get_info(m);
    mx_memory_need need = estimate(e, m, dir, o);
    uint64_t available, total = 0;
    MX_TRY(available_on(e->dev, &available, err));
    e->ctx = o->ctx;
    if (o->ctx > info->n_ctx)
        mx_log(MX_LOG_WARN, "%s was made for %d positions; beyond them its answers may be nonsense",
               need.name, info->n_ctx);
    if (o->ctx == 0) choose_context(e, &need, info->n_ctx, !o->no_memory_check, available);
    for (int round = 0; e->dev->be->plan_begin && round < 3;
         round++) { // scratch depends on the context, a little
        MX_TRY(count(e, dir, o, &total, err));
        uint64_t rest = need.weights + mx_memory_kv_bytes(&need, e->ctx);
        need.scratch = total > rest ? total - rest : 0;
        int fits = mx_memory_fit(&need, e->ctx, available);
        if (o->ctx || o->no_memory_check || fits >= e->ctx || fits < MX_KV_BLOCK) break;
        e->ctx = fits;
    }
    if (out) {
        uint64_t state = (uint64_t)e->n_seq * mx_model_slot_bytes(m);
        *out = (mx_engine_needs){.ctx = e->ctx,
                                 .weights = need.weights,
                                 .kv = mx_memory_kv_bytes(&need, e->ctx) - state,
                                 .state = state,
                                 .scratch = need.scratch,
                                 .available = available};
        memcpy(out->device, e->dev->name, sizeof out->device);
        return MX_OK;
    }
    if (o->ctx == 0 && e->ctx < info->n_ctx && !o->no_memory_check && info->n_ctx < MX_MAX_CTX)
        mx_log(MX_LOG_WARN, "context cut from %d to %d positions: that is what fits into memory", info->n_ctx,
               e->ctx);
    if (!o->no_memory_check) MX_TRY(mx_memory_check(&need, e->ctx, available, err));
    return total ? e->dev->be->reserve(e->dev, total, err) : MX_OK;
}

mx_status mx_engine_settle(mx_engine *e, const char *dir, const mx_engine_options *o, mx_err *err) {
    mx_model *m = NULL;
    mx_status st = mx_model_describe(&m, dir, err);
    if (st == MX_OK) st = settle(e, m, dir, o, NULL, err);
    mx_model_free(m);
    return st;
}

mx_status mx_engine_need(mx_engine_needs *out, const char *dir, const mx_engine_options *opt, mx_err *err) {
    mx_engine e = {0};
    mx_model *m = NULL;
    MX_TRY(mx_engine_check_options(opt, err));
    mx_engine_set_sizes(&e, opt);
    MX_TRY(mx_dev_open(&e.dev, opt->device ? opt->device : "auto", &opt->dev, err));
    mx_status st = mx_model_describe(&m, dir, err);
    if (st == MX_OK) st = settle(&e, m, dir, opt, out, err);
    mx_model_free(m);
    mx_dev_close(e.dev);
    return st;
}
