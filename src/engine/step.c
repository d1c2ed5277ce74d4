/* step.c - one pass of the model for some tokens of some sequences.
 *
 * The order: check everything, take the blocks, fill the batch, run, fetch the logits, give back what fell behind the
 * windows. Until the pass runs, a refusal leaves all sequences as they were. */
#include "engine/engine_int.h"
#include <string.h>

/* Blocks of group g that the sequence lacks for n more tokens. */
static int missing(const mx_seq *s, int g, int n) {
    return (s->len + n + MX_KV_BLOCK - 1) / MX_KV_BLOCK - s->end[g];
}

static mx_status check_item(const mx_engine *e, const mx_step_item *it, mx_err *err) {
    const mx_seq *s = it->seq;
    int n_vocab = mx_model_get_info(e->model)->n_vocab;
    if (!s || s->e != e || !s->used)
        return mx_fail(err, MX_EINVAL, "a step names a sequence that is not this engine's");
    if (s->broken)
        return mx_fail(err, MX_EINVAL, "this sequence failed in an earlier step and must be freed");
    if (it->n < 1 || it->n_rows < 0 || it->n_rows > it->n)
        return mx_fail(err, MX_EINVAL, "a step with %d tokens and %d rows of logits makes no sense", it->n,
                       it->n_rows);
    if (it->best && (it->n_rows != 1 || it->best->k < 1 || it->best->k > MX_MAX_BEST ||
                     it->best->k > n_vocab || !it->best->ids || !it->best->logits))
        return mx_fail(err, MX_EINVAL,
                       "the %d likeliest tokens behind %d rows; it must be 1 to %d of one row", it->best->k,
                       it->n_rows, MX_MAX_BEST);
    if (it->n > e->ctx - s->len && s->len == 0)
        return mx_fail(err, MX_ELIMIT,
                       "prompt of %d tokens does not fit the context of %d; shorten it or raise --ctx-size",
                       it->n, e->ctx);
    if (it->n > e->ctx - s->len)
        return mx_fail(err, MX_ELIMIT,
                       "%d tokens after the %d in the cache do not fit the context of %d; raise --ctx-size",
                       it->n, s->len, e->ctx);
    for (int i = 0; i < it->n; i++)
        if (it->ids[i] < 0 || it->ids[i] >= n_vocab)
            return mx_fail(err, MX_EINVAL, "token %d is not in this model's vocabulary of %d", it->ids[i],
                           n_vocab);
    return MX_OK;
}

static mx_status check_step(const mx_engine *e, const mx_step_item *items, int n_item, mx_err *err) {
    int64_t total = 0;
    if (n_item < 1 || n_item > e->n_seq)
        return mx_fail(err, MX_EINVAL, "a step of %d sequences; this engine has %d", n_item, e->n_seq);
    for (int i = 0; i < n_item; i++) {
        MX_TRY(check_item(e, &items[i], err));
        for (int j = 0; j < i; j++)
            if (items[j].seq == items[i].seq)
                return mx_fail(err, MX_EINVAL, "a step names the same sequence twice");
        total += items[i].n;
    }
    if (total > e->chunk)
        return mx_fail(err, MX_EINVAL, "a step of %lld tokens; this engine takes %d at once",
                       (long long)total, e->chunk);
    for (int g = 0; g < e->pool.n_group; g++) {
        int64_t need = 0;
        for (int i = 0; i < n_item; i++) need += missing(items[i].seq, g, items[i].n);
        if (need > e->pool.n_free[g])
            return mx_fail(err, MX_ELIMIT, "the KV cache has %d free blocks left, %lld are needed",
                           e->pool.n_free[g], (long long)need);
    }
    return MX_OK;
}

/* Copy one row of a block table to the device's copy, if it is not there already. */
static mx_status put_blocks(mx_engine *e, int row, int g, const int32_t *blocks, int n, mx_err *err) {
    size_t at = e->at_blocks[g] + (size_t)row * (size_t)e->stride;
    if (memcmp(e->host + at, blocks, (size_t)n * sizeof *blocks) == 0) return MX_OK;
    MX_TRY(
        e->dev->be->upload(e->dev, (int32_t *)e->batch_buf.p + at, blocks, (size_t)n * sizeof *blocks, err));
    memcpy(e->host + at, blocks, (size_t)n * sizeof *blocks);
    return MX_OK;
}

static mx_status fill_batch(mx_engine *e, const mx_step_item *items, int n_item, mx_batch *b, mx_err *err) {
    int32_t *h = e->host, *d = e->batch_buf.p;
    *b = (mx_batch){.n_seq = n_item, .block_stride = e->stride, .block = MX_KV_BLOCK};
    for (int i = 0; i < n_item; i++) {
        const mx_seq *s = items[i].seq;
        int n = items[i].n, end = s->len + n;
        h[e->at_start + (size_t)i] = b->n_tok;
        h[e->at_len + (size_t)i] = end;
        h[e->at_slot + (size_t)i] = s->slot;
        if (end > b->max_kv_len) b->max_kv_len = end;
        if (n > b->max_q_len) b->max_q_len = n;
        for (int j = 0; j < n; j++) {
            size_t t = (size_t)b->n_tok++;
            h[t] = items[i].ids[j];
            h[e->at_pos + t] = s->len + j;
            h[e->at_seq + t] = i;
        }
        for (int g = 0; g < e->pool.n_group; g++) MX_TRY(put_blocks(e, i, g, s->blocks[g], s->end[g], err));
    }
    h[e->at_start + (size_t)n_item] = b->n_tok;
    MX_TRY(e->dev->be->upload(e->dev, d, h, e->at_blocks[0] * sizeof *h, err));
    b->ids = d;
    b->pos = d + e->at_pos;
    b->seq = d + e->at_seq;
    b->seq_start = d + e->at_start;
    b->kv_len = d + e->at_len;
    b->slot = d + e->at_slot;
    for (int g = 0; g < e->pool.n_group; g++) b->blocks[g] = d + e->at_blocks[g];
    return MX_OK;
}

/* Rows of one item go straight to where they are wanted; those of several items are fetched together and then handed out. */
static mx_status fetch_logits(mx_engine *e, const mx_step_item *items, int n_item, mx_err *err) {
    size_t n_vocab = (size_t)mx_model_get_info(e->model)->n_vocab;
    int max = mx_model_max_rows(e->model);
    for (int i = 0, token = 0; i < n_item;) {
        int n = items[i].n, want = items[i].best ? 0 : items[i].n_rows;
        if (want > 1) {
            for (int r = 0, k; r < want; r += k) {
                k = want - r < max ? want - r : max;
                for (int j = 0; j < k; j++) e->rows[j] = token + n - want + r + j;
                MX_TRY(mx_model_logits(e->model, e->rows, k, items[i].logits + (size_t)r * n_vocab, err));
            }
            token += n;
            i++;
            continue;
        }
        int k = 0, first = i, only = -1; // a run of items that want one row or none
        for (; i < n_item && items[i].n_rows <= 1 && k < max; i++) {
            token += items[i].n;
            if (items[i].n_rows == 0 || items[i].best) continue;
            e->rows[k++] = token - 1;
            only = i;
        }
        if (k == 0) continue;
        float *to = k == 1 ? items[only].logits : e->staging;
        MX_TRY(mx_model_logits(e->model, e->rows, k, to, err));
        if (k == 1) continue;
        for (int j = first, r = 0; j < i; j++)
            if (items[j].n_rows && !items[j].best)
                memcpy(items[j].logits, e->staging + (size_t)r++ * n_vocab, n_vocab * sizeof(float));
    }
    return MX_OK;
}

/* The likeliest tokens of the items that want these, as many items at once as the model has rows. */
static mx_status fetch_best(mx_engine *e, const mx_step_item *items, int n_item, mx_err *err) {
    int max = mx_model_max_rows(e->model);
    for (int i = 0, token = 0; i < n_item;) {
        int n = 0, k = 0, first = i;
        for (; i < n_item && n < max; i++) {
            token += items[i].n;
            if (!items[i].best) continue;
            e->rows[n++] = token - 1;
            if (items[i].best->k > k) k = items[i].best->k;
        }
        if (n == 0) break;
        mx_model_best b;
        MX_TRY(mx_model_top(e->model, e->rows, n, k, &b, err));
        for (int j = first, r = 0; j < i; j++) {
            mx_best *to = items[j].best;
            if (!to) continue;
            memcpy(to->ids, b.ids + (size_t)r * (size_t)k, (size_t)to->k * sizeof *to->ids);
            memcpy(to->logits, b.values + (size_t)r * (size_t)k, (size_t)to->k * sizeof *to->logits);
            to->lse = b.lse[r++];
        }
    }
    return MX_OK;
}

static void take_blocks(mx_engine *e, const mx_step_item *it) {
    mx_seq *s = it->seq;
    for (int g = 0; g < e->pool.n_group; g++)
        for (int k = missing(s, g, it->n); k > 0; k--) s->blocks[g][s->end[g]++] = mx_kv_take(&e->pool, g);
}

static mx_status run(mx_engine *e, const mx_step_item *items, int n_item, mx_err *err) {
    mx_batch b;
    for (int i = 0; i < n_item; i++)
        if (items[i].seq->len == 0) MX_TRY(mx_cache_clear_slot(e->cache, items[i].seq->slot, err));
    MX_TRY(fill_batch(e, items, n_item, &b, err));
    MX_TRY(mx_model_forward(e->model, e->cache, &b, err));
    MX_TRY(fetch_best(e, items, n_item, err));
    return fetch_logits(e, items, n_item, err);
}

mx_status mx_engine_step(mx_engine *e, const mx_step_item *items, int n_item, mx_err *err) {
    MX_TRY(check_step(e, items, n_item, err));
    for (int i = 0; i < n_item; i++) take_blocks(e, &items[i]);
    mx_status st = run(e, items, n_item, err);
    for (int i = 0; i < n_item; i++) {
        mx_seq *s = items[i].seq;
        if (st != MX_OK) {
            s->broken = true;
            continue;
        }
        memcpy(s->ids + s->len, items[i].ids, (size_t)items[i].n * sizeof *s->ids);
        s->len += items[i].n;
        mx_seq_slide(s);
    }
    return st;
}

static mx_status prefill(mx_seq *s, const int32_t *ids, int n, float *logits, mx_best *best,
                         const volatile int *cancel, mx_err *err) {
    const mx_engine *e = s->e;
    if (n < 1) return mx_fail(err, MX_EINVAL, "the prompt is empty: there is nothing to continue");
    if (n > e->ctx - s->len)
        return mx_fail(err, MX_ELIMIT,
                       "prompt of %d tokens does not fit the context of %d; shorten it or raise --ctx-size",
                       s->len + n, e->ctx);
    for (int at = 0; at < n;) {
        if (cancel && *cancel) return mx_fail(err, MX_ECANCELLED, "stopped while reading the prompt");
        int k = n - at < e->chunk ? n - at : e->chunk;
        bool last = at + k == n;
        mx_step_item it = {.seq = s, .ids = ids + at, .n = k};
        if (last) it.n_rows = logits || best, it.logits = logits, it.best = best;
        MX_TRY(mx_engine_step(s->e, &it, 1, err));
        at += k;
    }
    return MX_OK;
}

mx_status mx_seq_prefill(mx_seq *s, const int32_t *ids, int n, float *logits, const volatile int *cancel,
                         mx_err *err) {
    return prefill(s, ids, n, logits, NULL, cancel, err);
}

mx_status mx_seq_prefill_best(mx_seq *s, const int32_t *ids, int n, mx_best *best, const volatile int *cancel,
                              mx_err *err) {
    return prefill(s, ids, n, NULL, best, cancel, err);
}
