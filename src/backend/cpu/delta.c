/* delta.c - the gated delta rule: a task is a sequence and a value head.
 *
 * It runs token by token, so a prompt may be cut anywhere. Columns of the state do not depend on each other:
 * 32 of them (16 KB at 128 rows) stay in the first cache for STEP tokens, whose normalized q and k were made
 * once for all columns. */
#include "backend/cpu/ops_impl.h"
#include <math.h>

enum { STEP = 32 };

typedef struct {
    const mx_row_kernels *k;
    const mx_delta_rule *r;
    const mx_batch *b;
    float *work; // for each worker q, k [STEP, dk], decay, beta [STEP]
    size_t per_worker;
} delta_job;

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

static void delta_head(void *arg, int i, int worker) {
    const delta_job *j = arg;
    const mx_delta_rule *r = j->r;
    const int s = i / r->n_v, h = i % r->n_v, hk = h / (r->n_v / r->n_k), dk = r->dk, dv = r->dv;
    float *q = j->work + (size_t)worker * j->per_worker, *k = q + STEP * dk, *decay = k + STEP * dk;
    float *beta = decay + STEP;
    float *state = r->state + ((int64_t)j->b->slot[s] * r->n_v + h) * dk * dv;
    const float rate = -expf(r->a_log[h]), q_scale = 1 / sqrtf((float)dk);
    for (int t = j->b->seq_start[s], end = j->b->seq_start[s + 1]; t < end; t += STEP) {
        const int n = end - t < STEP ? end - t : STEP;
        for (int e = 0; e < n; e++) {
            j->k->l2_normalize(q + e * dk, mx_row_at(&r->q, t + e, hk * dk), q_scale, dk);
            j->k->l2_normalize(k + e * dk, mx_row_at(&r->k, t + e, hk * dk), 1, dk);
            decay[e] = expf(rate * softplus(*(float *)mx_row_at(&r->a, t + e, h).p + r->dt_bias[h]));
            beta[e] = 1 / (1 + expf(-*(float *)mx_row_at(&r->b, t + e, h).p));
        }
        for (int c = 0; c < dv; c += MX_DELTA_COLUMNS) {
            const int nj = dv - c < MX_DELTA_COLUMNS ? dv - c : MX_DELTA_COLUMNS;
            j->k->delta(state + c, dv, dk, nj, n, q, k, mx_row_at(&r->v, t, h * dv + c), r->v.ld,
                        mx_row_at(&r->out, t, h * dv + c), r->out.ld, decay, beta);
        }
    }
}

mx_status mx_cpu_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    delta_job j = {.k = mx_cpu_row_kernels(d->isa), .r = r, .b = b};
    j.per_worker = ((size_t)r->dk * 2 + 2) * STEP;
    MX_TRY(mx_cpu_reserve(&d->work, j.per_worker * sizeof(float) * (size_t)d->n_worker, err));
    j.work = d->work.p;
    mx_cpu_run(d, delta_head, &j, b->n_seq * r->n_v, 1, 2.0 * b->n_tok * r->n_v * r->dk * r->dv);
    return MX_OK;
}
