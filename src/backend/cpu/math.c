/* math.c - rows of numbers: norm, softmax, sums, largest values, orders. Plain C, sums in double: what the GPU is compared with. */
#include "backend/cpu/ops_impl.h"
#include <math.h>
#include <string.h>

typedef struct {
    const mx_mat *x, *y, *add;
    const float *w, *b, *less;
    float *out, number;
    int32_t *ids;
    const int32_t *columns;
    bool flag; // falling; right
    int k;
    mx_cpu_buf *work;
    size_t work_each; // bytes of a worker
} math_job;

static void run(mx_dev *dev, void (*fn)(void *, int, int), math_job *j, int cost) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    const int n = j->x->rows;
    mx_cpu_run(d, fn, j, n, n / (8 * d->n_worker), (double)n * j->x->cols * cost);
}

static float *row(const mx_mat *m, int i) { return (float *)m->p + (int64_t)i * m->ld; }

static void layer_norm_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    float *x = row(j->x, i), *y = row(j->y, i);
    const float *add = j->add->p ? row(j->add, i) : NULL;
    const int d = j->x->cols;
    double sum = 0, squares = 0;
    for (int c = 0; c < d; c++) {
        if (add) x[c] += add[c];
        sum += x[c];
    }
    const double mean = sum / d;
    for (int c = 0; c < d; c++) squares += (x[c] - mean) * (x[c] - mean);
    const double spread = sqrt(squares / d + (double)j->number);
    const double factor =
        spread > 0 || isnan(spread) ? 1 / spread : 0; // a row of one value with eps 0 becomes zeros
    for (int c = 0; c < d; c++) {
        double v = (x[c] - mean) * factor;
        if (j->w) v *= j->w[c];
        if (j->b) v += j->b[c];
        y[c] = (float)v;
    }
}

mx_status mx_cpu_layer_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                            const float *b, float eps, mx_err *err) {
    (void)err;
    math_job j = {.x = x, .y = y, .add = add, .w = w, .b = b, .number = eps};
    run(dev, layer_norm_row, &j, 4);
    return MX_OK;
}

/* The largest of x[n]; NaN if one is NaN. */
static float largest(const float *x, int n) {
    float top = -INFINITY;
    for (int c = 0; c < n; c++) {
        if (isnan(x[c])) return x[c];
        top = x[c] > top ? x[c] : top;
    }
    return top;
}

static void softmax_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const float *x = row(j->x, i), top = largest(x, j->x->cols);
    float *y = row(j->y, i);
    double sum = 0;
    for (int c = 0; c < j->x->cols; c++) sum += y[c] = expf((x[c] - top) * j->number);
    for (int c = 0; c < j->x->cols; c++) y[c] = (float)(y[c] / sum);
}

mx_status mx_cpu_softmax(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    (void)err;
    math_job j = {.x = x, .y = y, .number = scale};
    run(dev, softmax_row, &j, 16);
    return MX_OK;
}

static void logsumexp_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const float *x = row(j->x, i), top = largest(x, j->x->cols);
    double sum = 0;
    for (int c = 0; c < j->x->cols; c++) sum += expf(x[c] - top);
    j->out[i] = (float)(top + log(sum));
}

mx_status mx_cpu_logsumexp(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    (void)err;
    math_job j = {.x = x, .out = out};
    run(dev, logsumexp_row, &j, 16);
    return MX_OK;
}

static void sum_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const float *x = row(j->x, i);
    double sum = 0;
    for (int c = 0; c < j->x->cols; c++) sum += x[c];
    j->out[i] = (float)sum;
}

mx_status mx_cpu_sum(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    (void)err;
    math_job j = {.x = x, .out = out};
    run(dev, sum_row, &j, 1);
    return MX_OK;
}

static void pick_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const int c = j->columns[i];
    j->out[i] = c >= 0 && c < j->x->cols ? row(j->x, i)[c] - j->less[i] : NAN;
}

mx_status mx_cpu_pick(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                      mx_err *err) {
    (void)dev, (void)err;
    math_job j = {.x = x, .out = out, .columns = ids, .less = less};
    for (int i = 0; i < x->rows; i++) pick_row(&j, i, 0);
    return MX_OK;
}

/* ---- orders ---------------------------------------------------------------------------------------------- */

/* Numbers in rising order as whole numbers in rising order; 0 and -0 are one, NaN is above all. */
static uint32_t order_of(float v) {
    uint32_t u;
    if (isnan(v)) return UINT32_MAX;
    if (v == 0) v = 0;
    memcpy(&u, &v, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

static void argmax_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const float *x = row(j->x, i);
    int best = 0;
    for (int c = 0; c < j->x->cols && !isnan(x[best]); c++)
        if (x[c] > x[best] || isnan(x[c])) best = c;
    j->ids[i] = best;
    j->out[i] = x[best];
}

mx_status mx_cpu_argmax(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err) {
    (void)err;
    math_job j = {.x = x, .ids = ids, .out = values};
    run(dev, argmax_row, &j, 1);
    return MX_OK;
}

/* A key greater than another is taken later: falling order, then the lower column; NaN last. */
static uint64_t falling_key(float v, int c) {
    const uint32_t o = order_of(v);
    return (uint64_t)(o == UINT32_MAX ? o : UINT32_MAX - 1 - o) << 32 | (uint32_t)c;
}

static void sift_down(uint64_t *heap, int n, int at) { // heap[0] is the greatest
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= heap[at]) return;
        const uint64_t t = heap[at];
        heap[at] = heap[child], heap[child] = t;
    }
}

/* A heap of the k best so far, the worst of them on top; then it is sorted. */
static void top_k_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    const float *x = row(j->x, i);
    const int k = j->k;
    uint64_t *heap = (uint64_t *)((char *)j->work->p + j->work_each * (size_t)worker);
    for (int c = 0; c < k; c++) heap[c] = falling_key(x[c], c);
    for (int at = k / 2; at-- > 0;) sift_down(heap, k, at);
    for (int c = k; c < j->x->cols; c++) {
        const uint64_t key = falling_key(x[c], c);
        if (key >= heap[0]) continue;
        heap[0] = key;
        sift_down(heap, k, 0);
    }
    for (int n = k; n-- > 1;) {
        const uint64_t t = heap[0];
        heap[0] = heap[n], heap[n] = t;
        sift_down(heap, n, 0);
    }
    for (int n = 0; n < k; n++) {
        const int c = (int)(uint32_t)heap[n];
        j->ids[(int64_t)i * k + n] = c;
        j->out[(int64_t)i * k + n] = x[c];
    }
}

mx_status mx_cpu_top_k(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    math_job j = {.x = x, .ids = ids, .out = values, .k = k, .work = &d->work};
    j.work_each = (size_t)k * sizeof(uint64_t);
    MX_TRY(mx_cpu_reserve(&d->work, j.work_each * (size_t)d->n_worker, err));
    run(dev, top_k_row, &j, 2);
    return MX_OK;
}

/* By bytes of the order, lowest first: each pass keeps the order of the one before, so equals stay as they stood. */
static void sort_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    const float *x = row(j->x, i);
    const int n = j->x->cols;
    uint64_t *keys = (uint64_t *)((char *)j->work->p + j->work_each * (size_t)worker), *other = keys + n;
    for (int c = 0; c < n; c++)
        keys[c] = j->flag ? falling_key(x[c], c) : (uint64_t)order_of(x[c]) << 32 | (uint32_t)c;
    for (int shift = 32; shift < 64; shift += 8) {
        int at[256], sum = 0, count[256] = {0};
        for (int c = 0; c < n; c++) count[keys[c] >> shift & 255]++;
        for (int v = 0; v < 256; v++) at[v] = sum, sum += count[v];
        for (int c = 0; c < n; c++) other[at[keys[c] >> shift & 255]++] = keys[c];
        uint64_t *t = keys;
        keys = other, other = t;
    }
    float *y = row(j->y, i);
    int32_t *ids = j->ids + (int64_t)i * n;
    for (int c = 0; c < n; c++) {
        ids[c] = (int32_t)(uint32_t)keys[c];
        y[c] = x[ids[c]];
    }
}

mx_status mx_cpu_sort(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling,
                      mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    math_job j = {.x = x, .y = y, .ids = ids, .flag = falling, .work = &d->work};
    j.work_each = (size_t)x->cols * 2 * sizeof(uint64_t);
    MX_TRY(mx_cpu_reserve(&d->work, j.work_each * (size_t)d->n_worker, err));
    run(dev, sort_row, &j, 12);
    return MX_OK;
}

static void searchsorted_row(void *arg, int i, int worker) {
    const math_job *j = arg;
    (void)worker;
    const float *edges = row(j->y, j->y->rows == 1 ? 0 : i), *v = row(j->x, i);
    for (int c = 0; c < j->x->cols; c++) {
        const uint64_t key = (uint64_t)order_of(v[c]) + j->flag;
        int lo = 0, hi = j->y->cols; // edges before lo are below the key, those from hi on are not
        while (lo < hi) {
            const int mid = lo + (hi - lo) / 2;
            if (order_of(edges[mid]) < key)
                lo = mid + 1;
            else
                hi = mid;
        }
        j->ids[(int64_t)i * j->x->cols + c] = lo;
    }
}

mx_status mx_cpu_searchsorted(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                              mx_err *err) {
    (void)err;
    math_job j = {.x = v, .y = edges, .ids = out, .flag = right};
    run(dev, searchsorted_row, &j, 32);
    return MX_OK;
}
