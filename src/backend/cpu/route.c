/* route.c - which experts see a token, and with what weight. */
#include "backend/cpu/ops_impl.h"
#include "backend/ops.h"
#include <math.h>

typedef struct {
    const mx_row_kernels *k;
    const mx_route *r;
} route_job;

/* The k largest of v[n] in falling order, a tie to the lower index: k passes, since k is small. Whatever v
 * holds, NaN too, k different indices come out. Overwrites what it takes. */
static void take_largest(float *v, int n, int k, int32_t *ids, float *out) {
    bool taken[MX_MAX_EXPERT] = {0};
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || v[i] > v[best])) best = i;
        taken[best] = true;
        ids[j] = best;
        out[j] = v[best];
    }
}

static void route_token(void *arg, int i, int worker) {
    const route_job *job = arg;
    const mx_route *r = job->r;
    (void)worker;
    float v[MX_MAX_EXPERT], sum = 0;
    const float *logits = mx_row_at(&r->logits, i, 0).p;
    int32_t *ids = r->ids + (int64_t)i * r->k;
    float *w = r->weights + (int64_t)i * r->k;
    if (r->kind == MX_ROUTE_SOFTMAX_TOPK) {
        job->k->softmax(v, logits, r->n_expert);
        take_largest(v, r->n_expert, r->k, ids, w);
        for (int j = 0; j < r->k; j++) sum += w[j];
        if (!r->normalize) sum = 1;
    } else {
        for (int e = 0; e < r->n_expert; e++) v[e] = logits[e];
        take_largest(v, r->n_expert, r->k, ids, w);
        job->k->softmax(w, w, r->k);
        sum = 1;
    }
    for (int j = 0; j < r->k; j++) w[j] = w[j] / sum * r->scale;
}

mx_status mx_cpu_route(mx_dev *dev, const mx_route *r, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    route_job j = {.k = mx_cpu_row_kernels(d->isa), .r = r};
    const int n = r->logits.rows;
    mx_cpu_run(d, route_token, &j, n, n / (8 * d->n_worker), (double)n * r->n_expert * (2 + r->k));
    return MX_OK;
}
