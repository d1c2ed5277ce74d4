/* generate.c - see generate.h. */
#include "engine/generate.h"
#include "engine/stop.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { // one call
    mx_engine *e;
    mx_seq *seq;
    const mx_generate_options *opt;
    const mx_model_info *info;
    mx_generate_stats *stats;
    mx_sampler *sampler;
    mx_detok *detok; // NULL without a tokenizer
    mx_stop *stop;
    float *logits;   // [n_vocab] of the next token; NULL where `best` is enough
    mx_best best;    // the likeliest next tokens, chosen on the device
    float *biased;   // [n_vocab] a copy for log-probabilities, or NULL
    mx_str raw;      // text of the last token
    mx_str text;     // and what of it is certain
    mx_logprob *top; // [n_logprobs]
    bool told_off;   // the callback wants no more
} run;

mx_generate_options mx_generate_defaults(void) {
    return (mx_generate_options){.sampler = mx_sampler_defaults(), .max_tokens = -1, .n_logprobs = -1};
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool cancelled(const run *r) { return r->opt->cancel && *r->opt->cancel; }

static bool is_eos(const run *r, int32_t id) {
    for (int i = 0; i < r->info->n_eos; i++)
        if (r->info->eos[i] == id) return true;
    return false;
}

/* ---- setting up ----------------------------------------------------------------------------------------- */

static mx_status check_options(const mx_generate_options *o, int ctx, mx_err *err) {
    if (o->max_tokens < -1)
        return mx_fail(err, MX_EINVAL, "max_tokens is %d; it must be -1 (no limit) or more", o->max_tokens);
    if (o->n_logprobs < -1 || o->n_logprobs > 100)
        return mx_fail(err, MX_EINVAL, "logprobs is %d; it must be from -1 (none) to 100", o->n_logprobs);
    if (o->n_stop < 0) return mx_fail(err, MX_EINVAL, "the number of stop strings is negative");
    if (o->context_shift && (o->n_keep < 0 || o->n_keep > ctx - 2))
        return mx_fail(err, MX_EINVAL, "keep is %d; with a context of %d it must be from 0 to %d", o->n_keep,
                       ctx, ctx - 2);
    return MX_OK;
}

/* How many of the likeliest tokens are enough, so that the logits stay on the device; 0: all are needed, or are here anyway. */
static int looks_at(const run *r) {
    const mx_generate_options *o = r->opt;
    int k = mx_sampler_looks_at(r->sampler);
    if (!k || mx_engine_dev(r->e)->be->host_memory) return 0;
    if (o->n_logprobs >= 0 && (o->ignore_eos || o->sampler.n_bias)) return 0; // of the biased distribution
    if (k < o->n_logprobs) k = o->n_logprobs;
    return k < r->info->n_vocab ? k : r->info->n_vocab;
}

static mx_status start(run *r, mx_err *err) {
    const mx_generate_options *o = r->opt;
    const mx_tokenizer *tok = mx_engine_tokenizer(r->e);
    size_t n_vocab = (size_t)r->info->n_vocab;
    MX_TRY(mx_sampler_new(&r->sampler, &o->sampler, r->info->n_vocab, tok, err));
    r->stats->seed = mx_sampler_seed(r->sampler);
    if (o->ignore_eos) MX_TRY(mx_sampler_ban(r->sampler, r->info->eos, r->info->n_eos, err));
    MX_TRY(mx_stop_new(&r->stop, o->stop, o->n_stop, err));
    if (tok) MX_TRY(mx_detok_new(&r->detok, tok, !o->keep_special, err));
    if (o->n_logprobs >= 0) {
        r->top = malloc(((size_t)o->n_logprobs + 1) * sizeof *r->top);
        if (!r->top) return mx_fail(err, MX_ENOMEM, "no memory for log-probabilities");
    }
    r->best.k = looks_at(r);
    if (r->best.k) {
        r->best.ids = malloc((size_t)r->best.k * sizeof *r->best.ids);
        r->best.logits = malloc((size_t)r->best.k * sizeof *r->best.logits);
        if (!r->best.ids || !r->best.logits)
            return mx_fail(err, MX_ENOMEM, "no memory for the %d likeliest tokens", r->best.k);
        return MX_OK;
    }
    r->logits = malloc(n_vocab * sizeof *r->logits);
    if (o->n_logprobs >= 0) { r->biased = malloc(n_vocab * sizeof *r->biased); }
    if (!r->logits || (o->n_logprobs >= 0 && !r->biased))
        return mx_fail(err, MX_ENOMEM, "no memory for the logits of %zu tokens", n_vocab);
    return MX_OK;
}

static void finish(run *r) {
    mx_sampler_free(r->sampler);
    mx_detok_free(r->detok);
    mx_stop_free(r->stop);
    mx_str_free(&r->raw);
    mx_str_free(&r->text);
    free(r->best.ids);
    free(r->best.logits);
    free(r->logits);
    free(r->biased);
    free(r->top);
}

/* ---- the prompt ----------------------------------------------------------------------------------------- */

/* How many tokens behind the first n_keep stay when a full context slides: the newer half. */
static int newer_half(const run *r) {
    int half = (mx_engine_ctx(r->e) - r->opt->n_keep) / 2;
    return half > 0 ? half : 1;
}

/* Bring the sequence to hold exactly ids, and the logits behind them into r->logits. */
static mx_status settle_on(run *r, const int32_t *ids, int n, int *n_cached, mx_err *err) {
    const int32_t *held = mx_seq_ids(r->seq);
    int same = 0, len = mx_seq_len(r->seq);
    while (same < len && same < n - 1 && held[same] == ids[same]) same++; // one at least is computed
    if (mx_seq_truncate(r->seq, same, NULL) != MX_OK) {
        same = 0; // a window or state that cannot go back: all is computed again
        MX_TRY(mx_seq_truncate(r->seq, 0, err));
    }
    *n_cached = same;
    return r->logits ? mx_seq_prefill(r->seq, ids + same, n - same, r->logits, r->opt->cancel, err)
                     : mx_seq_prefill_best(r->seq, ids + same, n - same, &r->best, r->opt->cancel, err);
}

/* The first n_keep of ids and the last newer_half(). */
static mx_status settle_slid(run *r, const int32_t *ids, int n, int *n_cached, mx_err *err) {
    int keep = r->opt->n_keep, half = newer_half(r);
    int32_t *kept = malloc((size_t)(keep + half) * sizeof *kept);
    if (!kept) return mx_fail(err, MX_ENOMEM, "no memory to slide the context");
    memcpy(kept, ids, (size_t)keep * sizeof *kept);
    memcpy(kept + keep, ids + n - half, (size_t)half * sizeof *kept);
    mx_status st = settle_on(r, kept, keep + half, n_cached, err);
    free(kept);
    return st;
}

static mx_status read_prompt(run *r, const int32_t *ids, int n, mx_err *err) {
    int ctx = mx_engine_ctx(r->e);
    if (n < 1) return mx_fail(err, MX_EINVAL, "the prompt is empty: there is nothing to continue");
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= r->info->n_vocab)
            return mx_fail(err, MX_EINVAL, "token %d of the prompt is not in this model's vocabulary of %d",
                           ids[i], r->info->n_vocab);
    if (n > ctx && !r->opt->context_shift)
        return mx_fail(err, MX_ELIMIT,
                       "prompt of %d tokens does not fit the context of %d; shorten it, raise --ctx-size or "
                       "let it slide with --context-shift",
                       n, ctx);
    for (int i = 0; i < n; i++) mx_sampler_accept(r->sampler, ids[i], false);
    double t = seconds();
    mx_status st = n > ctx ? settle_slid(r, ids, n, &r->stats->n_cached, err)
                           : settle_on(r, ids, n, &r->stats->n_cached, err);
    r->stats->prefill_seconds = seconds() - t;
    return st;
}

/* ---- the answer ----------------------------------------------------------------------------------------- */

/* Give the callback r->text; id -1: text withheld so far. */
static void emit(run *r, int32_t id, float logprob, int n_top) {
    const mx_generate_options *o = r->opt;
    if (!o->on_token || r->told_off || (id < 0 && r->text.len == 0)) return;
    mx_token_event ev = {.id = id,
                         .text = r->text.p ? r->text.p : "",
                         .text_len = r->text.len,
                         .logprob = logprob,
                         .top = n_top > 0 ? r->top : NULL,
                         .n_top = n_top > 0 ? n_top : 0};
    if (o->on_token(o->arg, &ev) == 0) return;
    r->told_off = true;
    if (id >= 0) r->stats->stop = MX_STOP_CANCEL; // text held back comes when the answer has ended anyway
}

/* r->raw, just grown by a token's text, through the stop strings into r->text. */
static mx_status pass_stop(run *r, mx_err *err) {
    int hit;
    mx_stop_push(r->stop, r->raw.p ? r->raw.p : "", r->raw.len, &r->text, &hit);
    if (r->raw.oom || r->text.oom) return mx_fail(err, MX_ENOMEM, "no memory for the generated text");
    if (hit < 0) return MX_OK;
    r->stats->stop = MX_STOP_WORD;
    r->stats->stop_word = r->opt->stop[hit];
    return MX_OK;
}

/* Draw from all logits. */
static mx_status from_logits(run *r, int32_t *id, float *logprob, mx_err *err) {
    if (r->biased) {
        memcpy(r->biased, r->logits, (size_t)r->info->n_vocab * sizeof *r->biased);
        mx_sampler_apply_bias(r->sampler, r->biased);
    }
    MX_TRY(mx_sampler_sample(r->sampler, r->logits, id, err));
    if (r->biased) mx_logprobs(r->biased, r->info->n_vocab, *id, logprob, r->top, r->opt->n_logprobs);
    return MX_OK;
}

/* Draw from the likeliest. */
static mx_status from_best(run *r, int32_t *id, float *logprob, mx_err *err) {
    const mx_best *b = &r->best;
    MX_TRY(mx_sampler_sample_best(r->sampler, b->ids, b->logits, b->k, id, err));
    for (int i = 0; i < r->opt->n_logprobs; i++)
        r->top[i] = i < b->k ? (mx_logprob){b->ids[i], b->logits[i] - b->lse} : (mx_logprob){-1, -INFINITY};
    for (int i = 0; i < b->k; i++)
        if (b->ids[i] == *id) *logprob = b->logits[i] - b->lse;
    return MX_OK;
}

static mx_status one_token(run *r, int32_t *id, mx_err *err) {
    const mx_generate_options *o = r->opt;
    mx_generate_stats *st = r->stats;
    float logprob = 0;
    MX_TRY(r->logits ? from_logits(r, id, &logprob, err) : from_best(r, id, &logprob, err));
    mx_sampler_accept(r->sampler, *id, true);
    st->n_generated++;
    mx_str_clear(&r->raw);
    mx_str_clear(&r->text);
    if (is_eos(r, *id) && !o->ignore_eos) {
        st->stop = MX_STOP_EOS;
    } else if (r->detok) {
        MX_TRY(mx_detok_push(r->detok, *id, &r->raw, err));
        MX_TRY(pass_stop(r, err));
    }
    emit(r, *id, logprob, o->n_logprobs);
    if (st->stop == MX_STOP_NONE && o->max_tokens >= 0 && st->n_generated >= o->max_tokens)
        st->stop = MX_STOP_LENGTH;
    if (st->stop == MX_STOP_NONE && cancelled(r)) st->stop = MX_STOP_CANCEL;
    return MX_OK;
}

/* Compute the logits behind token id. */
static mx_status next_logits(run *r, int32_t id, mx_err *err) {
    if (mx_seq_len(r->seq) < mx_engine_ctx(r->e)) {
        mx_step_item it = {.seq = r->seq, .ids = &id, .n = 1, .n_rows = 1, .logits = r->logits};
        if (!r->logits) it.best = &r->best;
        return mx_engine_step(r->e, &it, 1, err);
    }
    if (!r->opt->context_shift) {
        r->stats->stop = MX_STOP_CONTEXT;
        return MX_OK;
    }
    int n = mx_seq_len(r->seq), n_cached;
    int32_t *all = malloc((size_t)(n + 1) * sizeof *all);
    if (!all) return mx_fail(err, MX_ENOMEM, "no memory to slide the context");
    memcpy(all, mx_seq_ids(r->seq), (size_t)n * sizeof *all);
    all[n] = id;
    mx_status st = settle_slid(r, all, n + 1, &n_cached, err);
    free(all);
    return st;
}

/* What the detokenizer and the stop strings still hold back. */
static mx_status flush(run *r, mx_err *err) {
    mx_str_clear(&r->raw);
    mx_str_clear(&r->text);
    if (r->detok) MX_TRY(mx_detok_flush(r->detok, &r->raw, err));
    MX_TRY(pass_stop(r, err)); // an unfinished character may complete a stop string that holds U+FFFD
    mx_stop_flush(r->stop, &r->text);
    if (r->text.oom) return mx_fail(err, MX_ENOMEM, "no memory for the generated text");
    emit(r, -1, 0, 0);
    return MX_OK;
}

static mx_status answer(run *r, mx_ids *out, mx_err *err) {
    mx_generate_stats *st = r->stats;
    double first = 0;
    if (r->opt->max_tokens == 0) st->stop = MX_STOP_LENGTH;
    while (st->stop == MX_STOP_NONE) {
        int32_t id;
        MX_TRY(one_token(r, &id, err));
        if (out) MX_TRY(mx_ids_add(out, id, err));
        double now = seconds();
        if (st->n_generated == 1) first = now;
        st->decode_seconds = now - first;
        if (st->stop == MX_STOP_NONE) MX_TRY(next_logits(r, id, err));
    }
    return st->stop == MX_STOP_WORD || st->n_generated == 0 ? MX_OK : flush(r, err);
}

mx_status mx_generate(mx_engine *e, mx_seq *seq, const int32_t *prompt, int n_prompt,
                      const mx_generate_options *opt, mx_ids *out, mx_generate_stats *stats, mx_err *err) {
    mx_generate_stats unwanted;
    if (!stats) stats = &unwanted;
    *stats = (mx_generate_stats){.n_prompt = n_prompt};
    run r = {.e = e, .seq = seq, .opt = opt, .info = mx_model_get_info(mx_engine_model(e)), .stats = stats};
    MX_TRY(check_options(opt, mx_engine_ctx(e), err));
    mx_status st = start(&r, err);
    if (st == MX_OK) st = read_prompt(&r, prompt, n_prompt, err);
    if (st == MX_ECANCELLED) { // during the prompt: an answer of no tokens
        stats->stop = MX_STOP_CANCEL;
        st = MX_OK;
    } else if (st == MX_OK) {
        st = answer(&r, out, err);
    }
    finish(&r);
    stats->device_bytes = mx_engine_dev(e)->held_peak;
    return st;
}
