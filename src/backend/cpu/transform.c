/* transform.c - FFT, Hadamard, and weights to codes and back, row by row in plain C. */
#include "backend/cpu/ops_impl.h"
#include "backend/ops_math.h"
#include "../../../kernels/hadamard.h"
#include <math.h>
#include <string.h>

typedef struct {
    float re, im;
} complex32;

typedef struct {
    const mx_mat *x, *y;
    const mx_qmat *w;
    mx_fft kind;
    int n, m, k, n_pass; // points; hadamard: order and log2 of the rest
    uint8_t radix[17];
    float scale;
    char *work; // FFT: n roots of unity, then 2 n points for each worker
} transform_job;

static float *row(const mx_mat *m, int64_t i) { return (float *)m->p + i * m->ld; }

static void run(mx_dev *dev, void (*fn)(void *, int, int), transform_job *j, int n, double work) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    mx_cpu_run(d, fn, j, n, n / (8 * d->n_worker), work);
}

static complex32 times(complex32 a, complex32 b) {
    return (complex32){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* Stockham's form: pass by pass, factors R = radix, L = the product of those before. Butterfly i takes the points i + q n / R,
 * turns them by exp(-2 pi i k q / (L R)) with k = i mod L, and leaves them at (i / L) L R + k + q L. */
static void fft_pass(complex32 *out, const complex32 *in, const complex32 *root, int n, int before,
                     int radix) {
    const int step = n / radix, turn = step / before;
    for (int i = 0; i < step; i++) {
        const int k = i % before;
        complex32 v[8], *to = out + (i - k) * radix + k;
        for (int q = 0; q < radix; q++) v[q] = times(in[i + q * step], root[k * q * turn]);
        for (int p = 0; p < radix; p++) {
            complex32 sum = v[0];
            for (int q = 1; q < radix; q++) {
                const complex32 t = times(v[q], root[p * q % radix * step]);
                sum.re += t.re, sum.im += t.im;
            }
            to[p * before] = sum;
        }
    }
}

static void fft_row(void *arg, int i, int worker) {
    const transform_job *j = arg;
    const int n = j->n;
    const complex32 *root = (const complex32 *)j->work;
    complex32 *in = (complex32 *)j->work + n + (size_t)worker * 2 * (size_t)n, *out = in + n;
    const float *x = row(j->x, i);
    float *y = row(j->y, i);
    for (int c = 0; c < n; c++) {
        if (j->kind == MX_FFT_REAL)
            in[c] = (complex32){x[c], 0};
        else if (j->kind == MX_FFT_REAL_INVERSE && c > n / 2)
            in[c] = (complex32){x[2 * (n - c)], -x[2 * (n - c) + 1]};
        else
            in[c] = (complex32){x[2 * c], x[2 * c + 1]};
    }
    if (j->kind == MX_FFT_REAL_INVERSE) { // parts that a real row cannot have
        in[0].im = 0;
        if (n % 2 == 0) in[n / 2].im = 0;
    }
    for (int p = 0, before = 1; p < j->n_pass; before *= j->radix[p++]) {
        fft_pass(out, in, root, n, before, j->radix[p]);
        complex32 *t = in;
        in = out, out = t;
    }
    if (j->kind == MX_FFT_REAL_INVERSE) {
        for (int c = 0; c < n; c++) y[c] = in[c].re * j->scale;
        return;
    }
    for (int c = 0; c < (j->kind == MX_FFT_REAL ? n / 2 + 1 : n); c++) {
        y[2 * c] = in[c].re * j->scale;
        y[2 * c + 1] = in[c].im * j->scale;
    }
}

mx_status mx_cpu_fft(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    const bool inverse = kind == MX_FFT_INVERSE || kind == MX_FFT_REAL_INVERSE;
    MX_TRY(mx_cpu_reserve(&d->work, (size_t)n * (1 + 2 * (size_t)d->n_worker) * sizeof(complex32), err));
    transform_job j = {.x = x, .y = y, .kind = kind, .n = n, .scale = inverse ? 1 / (float)n : 1};
    j.work = d->work.p;
    j.n_pass = mx_fft_factors(n, j.radix);
    complex32 *root = d->work.p;
    for (int c = 0; c < n; c++) {
        const double angle = 2 * M_PI * c / n;
        root[c] = (complex32){(float)cos(angle), (float)(inverse ? sin(angle) : -sin(angle))};
    }
    run(dev, fft_row, &j, x->rows, (double)x->rows * n * 64);
    return MX_OK;
}

/* ---- Hadamard -------------------------------------------------------------------------------------------- */

static void hadamard_row(void *arg, int i, int worker) {
    const transform_job *j = arg;
    (void)worker;
    const int n = j->x->cols, rest = 1 << j->k;
    const uint32_t *sign = j->m == 12 ? mx_hadamard12 : j->m == 20 ? mx_hadamard20 : mx_hadamard28;
    float *y = row(j->y, i);
    memmove(y, row(j->x, i), (size_t)n * sizeof *y);
    for (int half = 1; half < rest; half *= 2)
        for (int at = 0; at < n; at += 2 * half)
            for (int c = at; c < at + half; c++) {
                const float a = y[c], b = y[c + half];
                y[c] = a + b;
                y[c + half] = a - b;
            }
    for (int c = 0; c < rest && j->m > 1; c++) {
        float v[28];
        for (int q = 0; q < j->m; q++) v[q] = y[c + q * rest];
        for (int p = 0; p < j->m; p++) {
            float sum = 0;
            for (int q = 0; q < j->m; q++) sum += sign[p] >> q & 1 ? -v[q] : v[q];
            y[c + p * rest] = sum;
        }
    }
    for (int c = 0; c < n; c++) y[c] *= j->scale;
}

mx_status mx_cpu_hadamard(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    (void)err;
    transform_job j = {.x = x, .y = y, .scale = scale};
    mx_hadamard_factors(x->cols, &j.m, &j.k);
    run(dev, hadamard_row, &j, x->rows, (double)x->rows * x->cols * (j.k + j.m));
    return MX_OK;
}

/* ---- codes ------------------------------------------------------------------------------------------------ */

static void quantize_row(void *arg, int i, int worker) {
    const transform_job *j = arg;
    const mx_qmat *w = j->w;
    (void)worker;
    const size_t groups = (size_t)(w->n_in / w->group) * mx_qmat_scale_size(w);
    mx_quantize(w->kind, w->bits, w->group, w->type, row(j->x, i), 1, w->n_in,
                (char *)(uintptr_t)w->codes + (size_t)i * mx_qmat_row_bytes(w),
                (char *)(uintptr_t)w->scales + (size_t)i * groups,
                w->biases ? (char *)(uintptr_t)w->biases + (size_t)i * groups : NULL, NULL); // was checked
}

mx_status mx_cpu_quantize(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err) {
    (void)err;
    transform_job j = {.x = x, .w = w};
    run(dev, quantize_row, &j, x->rows, (double)x->rows * x->cols * 8);
    return MX_OK;
}

static void dequantize_row(void *arg, int i, int worker) {
    const transform_job *j = arg;
    (void)worker;
    mx_qmat all = *j->w; // a stack is its rows one after the other
    all.n_out *= all.n_stack;
    all.n_stack = 1;
    mx_qmat_expand(&all, i, 1, row(j->y, i), NULL); // was checked
}

mx_status mx_cpu_dequantize(mx_dev *dev, const mx_mat *y, const mx_qmat *w, mx_err *err) {
    (void)err;
    transform_job j = {.y = y, .w = w};
    run(dev, dequantize_row, &j, y->rows, (double)y->rows * y->cols * 2);
    return MX_OK;
}
