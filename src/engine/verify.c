/* verify.c - see verify.h. Positions of a document are fed `width` at a time, as a prompt would be, so that the kernels for one
 * row, for a few and for many are all put to the test. */
#include "engine/verify.h"
#include "backend/ports.h"
#include "base/file.h"
#include "engine/reference.h"
#include "engine/sampler.h"
#include "engine/select.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one side says about one position. */
typedef struct {
    int32_t best;
    double first; // log-probability of the reference's best token
    const double *listed,
        *ref; // [k] log-probabilities of the reference's listed tokens, here and there; NAN: not known
    int k;
} verdict;

/* Kullback-Leibler divergence of `listed` from `ref` over the listed tokens and all others as one. Rounded figures may add up
 * to a little more than one, so both sides are brought to one. */
static double divergence(const verdict *v) {
    double p_sum = 0, q_sum = 0, kl = 0;
    for (int i = 0; i < v->k; i++) {
        if (isnan(v->listed[i])) continue;
        p_sum += exp(v->ref[i]);
        q_sum += exp(v->listed[i]);
    }
    double p_rest = p_sum < 1 ? 1 - p_sum : 0, q_rest = q_sum < 1 ? 1 - q_sum : 0;
    double norm = log(q_sum + q_rest) - log(p_sum + p_rest);
    for (int i = 0; i < v->k; i++)
        if (!isnan(v->listed[i])) kl += exp(v->ref[i]) * (v->ref[i] - v->listed[i] + norm);
    /* Reference files have four decimals: less than that of probability in the rest is noise of the format. */
    if (p_rest > 1e-4 && q_rest > 0) kl += p_rest * (log(p_rest / q_rest) + norm);
    return kl > 0 ? kl : 0;
}

static void count(mx_verify_result *r, const mx_verify_options *o, const verdict *v, int32_t ref_best,
                  double lead) {
    bool decided = lead >= o->decided, differ = v->best != ref_best;
    double diff = fabs(v->first - v->ref[0]);
    r->positions++;
    r->decided += decided;
    r->differ += differ;
    r->differ_decided += differ && decided;
    if (differ && lead > r->largest_gap) r->largest_gap = lead;
    r->mean_logprob_diff += diff; // sums until conclude()
    r->mean_kl += divergence(v);
    if (diff > r->worst_logprob_diff) r->worst_logprob_diff = diff;
}

static void conclude(mx_verify_result *r, const mx_verify_options *o) {
    if (r->positions) {
        r->mean_logprob_diff /= r->positions;
        r->mean_kl /= r->positions;
    }
    int least = o->min_decided > 1 ? o->min_decided : 1;
    if (r->differ_decided > 0) {
        r->verdict = MX_VERIFY_FAIL;
        snprintf(r->reason, sizeof r->reason, "%d of %d decided positions predict another token",
                 r->differ_decided, r->decided);
    } else if (o->max_logprob_diff > 0 && r->mean_logprob_diff > o->max_logprob_diff) {
        r->verdict = MX_VERIFY_FAIL;
        snprintf(r->reason, sizeof r->reason,
                 "log-probabilities differ by %.3g in the mean, allowed are %.3g", r->mean_logprob_diff,
                 o->max_logprob_diff);
    } else if (r->decided < least) {
        r->verdict = MX_VERIFY_INCONCLUSIVE;
        snprintf(r->reason, sizeof r->reason, "only %d decided positions, at least %d are needed", r->decided,
                 least);
    } else {
        r->verdict = MX_VERIFY_PASS;
        snprintf(r->reason, sizeof r->reason, "all %d decided positions agree", r->decided);
    }
}

/* ---- running the model ---------------------------------------------------------------------------------- */

/* Teacher-forced over ids[0..n): on_row gets the logits behind each position in turn. */
typedef struct {
    mx_engine *e;
    int width;
    float *rows; // [max_rows, n_vocab]
    void (*on_row)(void *arg, int at, const float *logits);
    void *arg;
} feeder;

static mx_status feed_all(feeder *f, mx_seq *s, const int32_t *ids, int n, mx_err *err) {
    mx_model *m = mx_engine_model(f->e);
    int n_vocab = mx_model_get_info(m)->n_vocab, max_rows = mx_model_max_rows(m);
    for (int at = 0; at < n;) {
        int k = n - at < f->width ? n - at : f->width, index[64];
        mx_step_item it = {.seq = s, .ids = ids + at, .n = k};
        MX_TRY(mx_engine_step(f->e, &it, 1, err));
        for (int r = 0, batch; r < k; r += batch) { // rows of the pass just made, a few at a time
            batch = k - r < max_rows ? k - r : max_rows;
            if (batch > (int)countof(index)) batch = (int)countof(index);
            for (int i = 0; i < batch; i++) index[i] = r + i;
            MX_TRY(mx_model_logits(m, index, batch, f->rows, err));
            for (int i = 0; i < batch; i++)
                f->on_row(f->arg, at + r + i, f->rows + (size_t)i * (size_t)n_vocab);
        }
        at += k;
    }
    return MX_OK;
}

static mx_status feed(feeder *f, const int32_t *ids, int n, mx_err *err) {
    mx_seq *s;
    MX_TRY(mx_seq_new(&s, f->e, err));
    mx_status st = feed_all(f, s, ids, n, err);
    mx_seq_free(s);
    return st;
}

static mx_status feeder_init(feeder *f, mx_engine *e, int width, mx_err *err) {
    if (width < 0) return mx_fail(err, MX_EINVAL, "the width is %d; it must be 0 (the chunk) or more", width);
    mx_model *m = mx_engine_model(e);
    *f = (feeder){.e = e, .width = mx_engine_chunk(e)};
    if (width > 0 && width < f->width) f->width = width;
    f->rows = malloc((size_t)mx_model_max_rows(m) * (size_t)mx_model_get_info(m)->n_vocab * sizeof *f->rows);
    return f->rows ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for rows of logits");
}

/* ---- against a reference -------------------------------------------------------------------------------- */

typedef struct {
    const mx_verify_options *o;
    mx_verify_result *r;
    const mx_ref_doc *doc;
    int k, n_vocab;
} compare;

static void compare_row(void *arg, int at, const float *logits) {
    compare *c = arg;
    const int32_t *top = c->doc->top + (size_t)at * (size_t)c->k;
    const double *logit = c->doc->logit + (size_t)at * (size_t)c->k;
    double listed[MX_REF_MAX_K], ref[MX_REF_MAX_K], lse = mx_log_sum_exp(logits, c->n_vocab);
    for (int i = 0; i < c->k; i++) {
        listed[i] = logits[top[i]] - lse;
        ref[i] = logit[i] - c->doc->lse[at];
    }
    verdict v = {
        .best = mx_argmax(logits, c->n_vocab), .first = listed[0], .listed = listed, .ref = ref, .k = c->k};
    count(c->r, c->o, &v, top[0], logit[0] - logit[1]);
}

static mx_status check_ids(const mx_reference *ref, const char *path, int n_vocab, mx_err *err) {
    for (int d = 0; d < ref->n_doc; d++) {
        const mx_ref_doc *doc = &ref->docs[d];
        for (int i = 0; i < doc->n; i++)
            if (doc->ids[i] >= n_vocab)
                return mx_fail(err, MX_EINVAL, "%s: document %d holds token %d, the model has %d", path,
                               d + 1, doc->ids[i], n_vocab);
        for (int i = 0; doc->top && i < doc->n * ref->k; i++)
            if (doc->top[i] >= n_vocab)
                return mx_fail(err, MX_EINVAL, "%s: document %d lists token %d, the model has %d", path,
                               d + 1, doc->top[i], n_vocab);
    }
    return MX_OK;
}

static mx_status verify(mx_engine *e, const mx_verify_options *o, mx_arena *a, feeder *f,
                        mx_verify_result *out, mx_err *err) {
    mx_reference ref;
    int n_vocab = mx_model_get_info(mx_engine_model(e))->n_vocab;
    MX_TRY(mx_reference_read(&ref, a, o->reference, false, err));
    MX_TRY(check_ids(&ref, o->reference, n_vocab, err));
    MX_TRY(feeder_init(f, e, o->width, err));
    compare c = {.o = o, .r = out, .k = ref.k, .n_vocab = n_vocab};
    f->on_row = compare_row;
    f->arg = &c;
    for (int d = 0; d < ref.n_doc; d++) {
        int n = ref.docs[d].n;
        if (o->max_positions > 0 && n > o->max_positions - out->positions)
            n = o->max_positions - out->positions;
        if (n <= 0) break;
        c.doc = &ref.docs[d];
        mx_status st = feed(f, ref.docs[d].ids, n, err);
        if (st != MX_OK) return mx_err_prefix(err, st, "%s: document %d", o->reference, d + 1);
        out->documents++;
    }
    conclude(out, o);
    return MX_OK;
}

mx_status mx_verify(mx_engine *e, const mx_verify_options *opt, mx_verify_result *out, mx_err *err) {
    mx_arena a = {0};
    feeder f = {0};
    *out = (mx_verify_result){0};
    mx_status st = verify(e, opt, &a, &f, out, err);
    mx_err why;
    if (st == MX_OK && out->verdict == MX_VERIFY_PASS && mx_port_unlisted(mx_engine_dev(e), &why) != MX_OK) {
        out->verdict = MX_VERIFY_FAIL;
        snprintf(out->reason, sizeof out->reason, "%.199s", why.msg);
    }
    free(f.rows);
    mx_arena_free(&a);
    return st;
}

/* ---- writing a reference -------------------------------------------------------------------------------- */

typedef struct {
    mx_ref_doc *doc;
    int k, n_vocab;
} record;

static void record_row(void *arg, int at, const float *logits) {
    record *rec = arg;
    mx_logprob top[MX_REF_MAX_K];
    mx_logprobs(logits, rec->n_vocab, 0, NULL, top, rec->k);
    rec->doc->lse[at] = mx_log_sum_exp(logits, rec->n_vocab);
    for (int i = 0; i < rec->k; i++) {
        rec->doc->top[at * rec->k + i] = top[i].id;
        rec->doc->logit[at * rec->k + i] = logits[top[i].id];
    }
}

/* The documents of a text file: its tokens, cut so that each piece fits the context. */
static mx_status read_text(mx_reference *ref, mx_engine *e, mx_arena *a, const char *path, mx_err *err) {
    enum { PIECE = 512 };
    const mx_tokenizer *tok = mx_engine_tokenizer(e);
    char *text;
    size_t len;
    mx_ids ids = {0};
    if (!tok)
        return mx_fail(err, MX_EINVAL, "%s is text, but the model has no tokenizer: give a file of ids",
                       path);
    MX_TRY(mx_file_read(&text, &len, a, path, 1 << 30, err));
    mx_status st = mx_tokenizer_encode(tok, text, len, MX_TOK_ADD_SPECIAL, &ids, err);
    size_t piece = mx_engine_ctx(e) < PIECE ? (size_t)mx_engine_ctx(e) : PIECE;
    size_t n_doc = (ids.n + piece - 1) / piece;
    if (st == MX_OK && n_doc == 0) st = mx_fail(err, MX_EINVAL, "%s holds no text", path);
    int32_t *copy = mx_arena_array(a, ids.n, sizeof *copy);
    ref->docs = mx_arena_array(a, n_doc, sizeof *ref->docs);
    if (st == MX_OK && (!copy || !ref->docs))
        st = mx_fail(err, MX_ENOMEM, "%s: no memory for its tokens", path);
    if (st == MX_OK) {
        memcpy(copy, ids.id, ids.n * sizeof *copy);
        ref->n_doc = (int)n_doc;
        for (size_t i = 0; i < n_doc; i++)
            ref->docs[i] =
                (mx_ref_doc){.n = (int)(i + 1 < n_doc ? piece : ids.n - i * piece), .ids = copy + i * piece};
    }
    mx_ids_free(&ids);
    return st;
}

/* A JSON file of documents starts with a bracket. */
static bool is_json(const char *path) {
    char head[64] = "";
    FILE *f = fopen(path, "re");
    if (!f) return true; // reading it will say why
    size_t n = fread(head, 1, sizeof head - 1, f);
    fclose(f);
    head[n] = '\0';
    return head[strspn(head, " \t\r\n")] == '[';
}

static mx_status write_all(mx_engine *e, const char *documents, mx_arena *a, feeder *f, mx_outfile *file,
                           mx_str *s, mx_err *err) {
    mx_reference ref = {0};
    int n_vocab = mx_model_get_info(mx_engine_model(e))->n_vocab, k = n_vocab < 3 ? n_vocab : 3;
    MX_TRY(is_json(documents) ? mx_reference_read(&ref, a, documents, true, err)
                              : read_text(&ref, e, a, documents, err));
    MX_TRY(check_ids(&ref, documents, n_vocab, err));
    for (int d = 0; d < ref.n_doc; d++) {
        mx_ref_doc *doc = &ref.docs[d];
        size_t n = (size_t)doc->n;
        doc->top = mx_arena_array(a, n * (size_t)k, sizeof *doc->top);
        doc->logit = mx_arena_array(a, n * (size_t)k, sizeof *doc->logit);
        doc->lse = mx_arena_array(a, n, sizeof *doc->lse);
        if (!doc->top || !doc->logit || !doc->lse)
            return mx_fail(err, MX_ENOMEM, "no memory for %d positions", doc->n);
        record rec = {.doc = doc, .k = k, .n_vocab = n_vocab};
        f->on_row = record_row;
        f->arg = &rec;
        MX_TRY(feed(f, doc->ids, doc->n, err));
        mx_str_clear(s);
        mx_str_puts(s, d ? ",\n" : "[");
        mx_reference_put(s, doc, k);
        if (d == ref.n_doc - 1) mx_str_puts(s, "]\n");
        if (s->oom) return mx_fail(err, MX_ENOMEM, "no memory to write document %d", d + 1);
        MX_TRY(mx_outfile_write(file, s->p, s->len, err));
    }
    return mx_outfile_commit(file, err);
}

mx_status mx_verify_write(mx_engine *e, const char *documents, const char *out, int width, mx_err *err) {
    mx_arena a = {0};
    mx_str s = {0};
    mx_outfile file = {0};
    feeder f = {0};
    mx_status st = feeder_init(&f, e, width, err);
    if (st == MX_OK) st = mx_outfile_open(&file, out, err);
    if (st == MX_OK) st = write_all(e, documents, &a, &f, &file, &s, err);
    mx_outfile_abort(&file);
    free(f.rows);
    mx_str_free(&s);
    mx_arena_free(&a);
    return st;
}

/* ---- two files ------------------------------------------------------------------------------------------ */

/* b's log-probability of token id at a position; NAN if it is not among those listed. */
static double listed_in(const mx_reference *b, const mx_ref_doc *doc, int at, int32_t id) {
    for (int i = 0; i < b->k; i++)
        if (doc->top[at * b->k + i] == id) return doc->logit[at * b->k + i] - doc->lse[at];
    return NAN;
}

static void compare_docs(const mx_reference *a, const mx_reference *b, int d, int n,
                         const mx_verify_options *o, mx_verify_result *out) {
    const mx_ref_doc *x = &a->docs[d], *y = &b->docs[d];
    for (int at = 0; at < n; at++) {
        double listed[MX_REF_MAX_K], ref[MX_REF_MAX_K];
        const int32_t *top = x->top + (size_t)at * (size_t)a->k;
        const double *logit = x->logit + (size_t)at * (size_t)a->k;
        for (int i = 0; i < a->k; i++) {
            listed[i] = listed_in(b, y, at, top[i]);
            ref[i] = logit[i] - x->lse[at];
        }
        /* A best token that b does not list is at most as likely there as the last one that it lists. */
        double first = isnan(listed[0]) ? y->logit[at * b->k + b->k - 1] - y->lse[at] : listed[0];
        verdict v = {.best = y->top[at * b->k], .first = first, .listed = listed, .ref = ref, .k = a->k};
        count(out, o, &v, top[0], logit[0] - logit[1]);
    }
}

static mx_status compare_files(const char *path_a, const char *path_b, const mx_verify_options *o,
                               mx_arena *arena, mx_verify_result *out, mx_err *err) {
    mx_reference a, b;
    MX_TRY(mx_reference_read(&a, arena, path_a, false, err));
    MX_TRY(mx_reference_read(&b, arena, path_b, false, err));
    if (a.n_doc != b.n_doc)
        return mx_fail(err, MX_EINVAL, "%s has %d documents, %s has %d", path_a, a.n_doc, path_b, b.n_doc);
    for (int d = 0; d < a.n_doc; d++) {
        const mx_ref_doc *x = &a.docs[d], *y = &b.docs[d];
        if (x->n != y->n || memcmp(x->ids, y->ids, (size_t)x->n * sizeof *x->ids) != 0)
            return mx_fail(err, MX_EINVAL, "document %d is not the same in %s and %s", d + 1, path_a, path_b);
        int n = x->n;
        if (o->max_positions > 0 && n > o->max_positions - out->positions)
            n = o->max_positions - out->positions;
        if (n <= 0) break;
        compare_docs(&a, &b, d, n, o, out);
        out->documents++;
    }
    conclude(out, o);
    return MX_OK;
}

mx_status mx_verify_compare(const char *a, const char *b, const mx_verify_options *opt, mx_verify_result *out,
                            mx_err *err) {
    mx_arena arena = {0};
    *out = (mx_verify_result){0};
    mx_status st = compare_files(a, b, opt, &arena, out, err);
    mx_arena_free(&arena);
    return st;
}
