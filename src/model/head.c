/* head.c - from the hidden states of a pass to logits, or to the likeliest tokens, chosen where the logits are. */
#include "backend/ops.h"
#include "backend/ops_fused.h"
#include "model/model_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool all_finite(const float *p, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) { // an exponent of all ones: infinity or NaN
        uint32_t u;
        memcpy(&u, p + i, 4);
        bad |= (u & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
}

static mx_status not_finite(mx_err *err) {
    return mx_fail(
        err, MX_EINTERNAL,
        "the model's logits are not finite: its weights hold NaN or infinity, or a layer overflows");
}

/* Queue the head for n rows of the last pass; *logits [n, n_vocab] on the device. */
static mx_status queue_head(mx_model *m, const int *rows, int n, mx_mat *logits, mx_err *err) {
    const mx_arch *a = m->arch;
    const mx_scratch *s = &m->s;
    if (n < 1 || n > m->max_rows) {
        return mx_fail(err, MX_EINVAL, "%d rows of logits; this model was opened for 1 to %d", n,
                       m->max_rows);
    }
    mx_mat x = mx_mat_rows(&s->x, n), h = mx_mat_rows(&s->rows_h, n);
    *logits = mx_mat_rows(&s->logits, n);
    bool side_by_side = rows[0] >= 0 && rows[0] <= m->max_tok - n;
    for (int i = 1; i < n; i++) side_by_side &= rows[i] == rows[0] + i;
    if (side_by_side) {
        x.p = (float *)x.p + rows[0] * x.ld;
    } else {
        x = mx_mat_rows(&s->rows, n);
        MX_TRY(mx_op_upload(m->dev, s->row_ids, rows, (size_t)n * sizeof *rows, err));
        MX_TRY(mx_op_gather(m->dev, &x, &s->x, s->row_ids, err));
    }
    mx_matmul head = {.y = *logits, .w = &m->w.head.w, .bias = m->w.head.bias};
    mx_product p = {.mm = &head, .n_mm = 1, .x = x, .norm = m->w.norm, .eps = a->eps};
    mx_status st = mx_op_product(m->dev, &p, err);
    if (st == MX_UNSUPPORTED) {
        MX_TRY(mx_op_rms_norm(m->dev, &h, &x, NULL, m->w.norm, a->eps, err));
        st = mx_op_matmul(m->dev, &head, 1, &h, err);
    }
    if (st != MX_OK || a->final_softcap <= 0) return st;
    return mx_op_softcap(m->dev, logits, a->final_softcap, err);
}

mx_status mx_model_logits(mx_model *m, const int *rows, int n, float *out, mx_err *err) {
    mx_mat logits;
    MX_TRY(queue_head(m, rows, n, &logits, err));
    size_t values = (size_t)n * (size_t)logits.cols;
    MX_TRY(mx_op_download(m->dev, out, logits.p, values * sizeof *out, err));
    return all_finite(out, values) ? MX_OK : not_finite(err);
}

/* The rows' logits copied to the host, the best chosen there: for devices that have no port for these shapes. */
static mx_status top_on_host(mx_model *m, mx_top t, float *host, mx_err *err) {
    size_t bytes = (size_t)t.logits.rows * (size_t)t.logits.cols * sizeof(float);
    float *copy = malloc(bytes);
    if (!copy) return mx_fail(err, MX_ENOMEM, "no memory for %d rows of logits", t.logits.rows);
    mx_status st = mx_op_download(m->dev, copy, t.logits.p, bytes, err);
    t.logits.p = copy;
    t.lse = host;
    t.ids = (int32_t *)(host + t.logits.rows);
    t.values = host + t.logits.rows * (1 + t.k);
    if (st == MX_OK) mx_host_top(&t);
    free(copy);
    return st;
}

mx_status mx_model_top(mx_model *m, const int *rows, int n, int k, mx_model_best *out, mx_err *err) {
    const mx_scratch *s = &m->s;
    float *host = s->top_host;
    if (k < 1 || k > MX_MAX_TOP || k > m->arch->n_vocab)
        return mx_fail(err, MX_EINVAL, "the %d likeliest of %d tokens; it must be 1 to %d", k,
                       m->arch->n_vocab, MX_MAX_TOP);
    mx_top t = {.k = k, .lse = s->top, .ids = (int32_t *)(s->top + n), .values = s->top + n * (1 + k)};
    MX_TRY(queue_head(m, rows, n, &t.logits, err));
    mx_status st = mx_op_top(m->dev, &t, err);
    if (st == MX_OK)
        st = mx_op_download(m->dev, host, s->top, (size_t)(n * (1 + 2 * k)) * sizeof *host, err);
    else if (st == MX_UNSUPPORTED)
        st = top_on_host(m, t, host, err);
    MX_TRY(st);
    *out = (mx_model_best){.lse = host, .ids = (const int32_t *)(host + n), .values = host + n * (1 + k)};
    for (int i = 0; i < n; i++)
        if (!isfinite(out->lse[i])) return not_finite(err);
    return MX_OK;
}
