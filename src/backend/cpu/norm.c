/* norm.c - RMS norm with the residual add before it, and the gated norm of recurrent layers; row by row. */
#include "backend/cpu/ops_impl.h"

typedef struct {
    const mx_row_kernels *k;
    const mx_mat *y, *x, *other; // other: what is added, or the gate
    const float *w;
    float eps;
    int hd;
} norm_job;

static void norm_row(void *arg, int i, int worker) {
    const norm_job *j = arg;
    (void)worker;
    mx_row add = j->other->p ? mx_row_at(j->other, i, 0) : (mx_row){0};
    j->k->norm(mx_row_at(j->y, i, 0), mx_row_at(j->x, i, 0).p, add, j->w, j->eps, j->x->cols);
}

mx_status mx_cpu_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                          float eps, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    norm_job j = {.k = mx_cpu_row_kernels(d->isa), .y = y, .x = x, .other = add, .w = w, .eps = eps};
    mx_cpu_run(d, norm_row, &j, x->rows, x->rows / (8 * d->n_worker), (double)x->rows * x->cols);
    return MX_OK;
}

static void gated_row(void *arg, int i, int worker) {
    const norm_job *j = arg;
    (void)worker;
    for (int c = 0; c < j->x->cols; c += j->hd)
        j->k->gated_norm(mx_row_at(j->y, i, c), mx_row_at(j->x, i, c), mx_row_at(j->other, i, c), j->w,
                         j->eps, j->hd);
}

mx_status mx_cpu_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                            int hd, float eps, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    norm_job j = {.k = mx_cpu_row_kernels(d->isa), .y = y, .x = x, .other = z, .w = w, .eps = eps, .hd = hd};
    mx_cpu_run(d, gated_row, &j, x->rows, x->rows / (8 * d->n_worker), 4.0 * x->rows * x->cols);
    return MX_OK;
}
