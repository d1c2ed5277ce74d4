/* elementwise.c - embedding and the ops that go value by value: rows are shared among the workers.
 *
 * A single row is not cut: even 16,384 values take less time than two wake-ups. */
#include "backend/cpu/ops_impl.h"
#include <string.h>

typedef struct {
    const mx_row_kernels *k;
    const mx_mat *y, *a, *b;
    const mx_qmat *w;
    const int32_t *ids;
    const float *weights;
    float number;
    int count; // the activation; experts of a token
} rows_job;

static rows_job job_of(mx_dev *dev) { return (rows_job){.k = mx_cpu_row_kernels(((mx_cpu_dev *)dev)->isa)}; }

/* cost: of a value, in units of MX_CPU_SMALL */
static void run_rows(mx_dev *dev, void (*fn)(void *, int, int), rows_job *j, int n, int cols, int cost) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    int grain = n / (8 * d->n_worker);
    mx_cpu_run(d, fn, j, n, grain, (double)n * cols * cost);
}

static void embed_row(void *arg, int i, int worker) {
    const rows_job *j = arg;
    (void)worker;
    const mx_row x = mx_row_at(j->y, i, 0);
    mx_qmat_expand(j->w, j->ids[i], 1, x.p, NULL); // the id was checked
    if (j->number != 1) j->k->copy(x, x, j->number, j->y->cols);
}

mx_status mx_cpu_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                       mx_err *err) {
    for (int i = 0; i < x->rows; i++)
        if (ids[i] < 0 || ids[i] >= w->n_out)
            return mx_fail(err, MX_EINVAL, "embed: token %d is outside the vocabulary of %d", ids[i],
                           w->n_out);
    rows_job j = job_of(dev);
    j.y = x, j.w = w, j.ids = ids, j.number = scale;
    run_rows(dev, embed_row, &j, x->rows, x->cols, 1);
    return MX_OK;
}

static void glu_row(void *arg, int i, int worker) {
    const rows_job *j = arg;
    (void)worker;
    j->k->glu(mx_row_at(j->y, i, 0), mx_row_at(j->a, i, 0), mx_row_at(j->b, i, 0), (mx_act)j->count,
              j->y->cols);
}

mx_status mx_cpu_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                     mx_err *err) {
    (void)err;
    rows_job j = job_of(dev);
    j.y = y, j.a = gate, j.b = up, j.count = (int)act;
    run_rows(dev, glu_row, &j, y->rows, y->cols, 4);
    return MX_OK;
}

static void add_row(void *arg, int i, int worker) {
    const rows_job *j = arg;
    (void)worker;
    j->k->add(mx_row_at(j->y, i, 0).p, mx_row_at(j->a, i, 0), j->number, j->y->cols);
}

mx_status mx_cpu_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err) {
    (void)err;
    rows_job j = job_of(dev);
    j.y = x, j.a = y, j.number = factor;
    run_rows(dev, add_row, &j, x->rows, x->cols, 1);
    return MX_OK;
}

static void sigmoid_gate_row(void *arg, int i, int worker) {
    const rows_job *j = arg;
    (void)worker;
    bool one = j->a->cols == 1 && j->y->cols != 1;
    j->k->sigmoid_gate(mx_row_at(j->y, i, 0), mx_row_at(j->a, i, 0), one, j->y->cols);
}

mx_status mx_cpu_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err) {
    (void)err;
    rows_job j = job_of(dev);
    j.y = x, j.a = gate;
    run_rows(dev, sigmoid_gate_row, &j, x->rows, x->cols, gate->cols == 1 ? 1 : 4);
    return MX_OK;
}

mx_status mx_cpu_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err) {
    (void)dev;
    for (int i = 0; i < y->rows; i++)
        if (rows[i] < 0 || rows[i] >= x->rows)
            return mx_fail(err, MX_EINVAL, "gather: row %d of %d", rows[i], x->rows);
    for (int i = 0; i < y->rows; i++)
        memcpy(mx_row_at(y, i, 0).p, mx_row_at(x, rows[i], 0).p, (size_t)x->cols * sizeof(float));
    return MX_OK;
}

static void softcap_row(void *arg, int i, int worker) { // a piece of 4096 values: logits are one long row
    const rows_job *j = arg;
    (void)worker;
    int pieces = (j->y->cols + 4095) / 4096, c = i % pieces * 4096;
    int n = j->y->cols - c < 4096 ? j->y->cols - c : 4096;
    j->k->softcap(mx_row_at(j->y, i / pieces, c), j->number, n);
}

mx_status mx_cpu_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err) {
    (void)err;
    rows_job j = job_of(dev);
    j.y = x, j.number = c;
    run_rows(dev, softcap_row, &j, x->rows * ((x->cols + 4095) / 4096), x->cols < 4096 ? x->cols : 4096, 4);
    return MX_OK;
}

static void expert_sum_row(void *arg, int i, int worker) {
    const rows_job *j = arg;
    (void)worker;
    float *y = mx_row_at(j->y, i, 0).p;
    const float *w = j->weights + (int64_t)i * j->count;
    j->k->copy((mx_row){y, MX_F32}, mx_row_at(j->a, (int64_t)i * j->count, 0), w[0], j->y->cols);
    for (int e = 1; e < j->count; e++)
        j->k->add(y, mx_row_at(j->a, (int64_t)i * j->count + e, 0), w[e], j->y->cols);
}

mx_status mx_cpu_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                            mx_err *err) {
    (void)err;
    rows_job j = job_of(dev);
    j.y = y, j.a = x, j.weights = weights, j.count = k;
    run_rows(dev, expert_sum_row, &j, y->rows, y->cols, k);
    return MX_OK;
}
