/* ops_math.c - launches of the ops on rows of numbers. Grids are as the kernels' files say. */
#include "backend/gpu/ops_math.h"
#include <stdio.h>

/* Threads of a block that owns a row of n values, `each` of them a thread in a round. */
static uint32_t row_threads(int n, uint32_t each) {
    uint32_t t = 32;
    while (t < 1024 && t * each < (uint32_t)n) t *= 2;
    return t;
}

static mx_status gpu_layer_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add,
                                const float *w, const float *b, float eps, mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x), ka = add->p ? mx_gpu_mat(add) : (mx_k_mat){0};
    uint32_t n = (uint32_t)x->cols;
    float inv = 1 / (float)n;
    return LAUNCH((mx_gpu_dev *)dev, "rows", "layer_norm", x->rows, 1, 1,
                  n > 4096 ? 512 : row_threads(x->cols, 16), &ky, &kx, &ka, &w, &b, &n, &inv, &eps);
}

static mx_status gpu_softmax(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x);
    uint32_t n = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "rows", "softmax", x->rows, 1, 1, row_threads(x->cols, 4), &ky, &kx, &n,
                  &scale);
}

static mx_status gpu_logsumexp(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t n = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "reduce", "logsumexp", x->rows, 1, 1, row_threads(x->cols, 4), &out, &kx,
                  &n);
}

static mx_status gpu_sum(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t n = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "rows", "sum_rows", x->rows, 1, 1, row_threads(x->cols, 16), &out, &kx,
                  &n);
}

static mx_status gpu_argmax(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t n = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "reduce", "argmax", x->rows, 1, 1, row_threads(x->cols, 4), &ids,
                  &values, &kx, &n);
}

static mx_status gpu_pick(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                          mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t rows = (uint32_t)x->rows, cols = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "reduce", "log_prob", mx_div_up(rows, 256), 1, 1, 256, &out, &kx, &ids,
                  &less, &rows, &cols);
}

mx_status mx_gpu_token_log_prob(mx_dev *dev, const void *args, mx_err *err) {
    const mx_token_log_prob *a = args;
    mx_k_mat kx = mx_gpu_mat(&a->logits);
    uint32_t cols = (uint32_t)a->logits.cols;
    return LAUNCH((mx_gpu_dev *)dev, "rows", "token_log_prob", a->logits.rows, 1, 1,
                  row_threads(a->logits.cols, 4), (void *)&a->out, &kx, (void *)&a->ids, &cols);
}

static mx_status gpu_searchsorted(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                                  mx_err *err) {
    mx_k_mat ke = mx_gpu_mat(edges), kv = mx_gpu_mat(v);
    uint32_t n = (uint32_t)edges->cols, cols = (uint32_t)v->cols, shared = edges->rows == 1, r = right;
    return LAUNCH((mx_gpu_dev *)dev, "rows", "searchsorted", v->rows, mx_div_up(cols, 256), 1, 256, &out, &ke,
                  &kv, &n, &cols, &shared, &r);
}

/* ---- orders ---------------------------------------------------------------------------------------------- */

enum { SORT_TILE = 4096, SORT_SCRATCH = 256 << 20, TOP_K_PASSES = 32 };

/* The first k of each row in order. Long rows take two buffers of keys, for as many rows at a time as the scratch memory holds. */
static mx_status sort_some(mx_gpu_dev *d, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling, int k,
                           mx_err *err) {
    uint32_t cols = (uint32_t)x->cols, f = falling, kk = (uint32_t)k, tile = 64;
    while (tile < SORT_TILE && tile < cols) tile *= 2;
    const size_t row_bytes = 2 * (size_t)cols * sizeof(uint64_t);
    int at_once = x->rows;
    if (cols > tile) {
        const size_t fit = SORT_SCRATCH / row_bytes;
        at_once = fit < 1 ? 1 : fit < (size_t)at_once ? (int)fit : at_once;
        MX_TRY(mx_gpu_scratch(d, row_bytes * (size_t)at_once, err));
    }
    for (int row = 0; row < x->rows; row += at_once) {
        const int rows = x->rows - row < at_once ? x->rows - row : at_once;
        mx_k_mat kx = mx_gpu_mat(x), ky = mx_gpu_mat(y);
        kx.p += (size_t)row * kx.ld, ky.p += (size_t)row * ky.ld;
        int32_t *to = ids + (size_t)row * (size_t)k;
        uint64_t *keys = cols > tile ? d->scratch : NULL,
                 *other = keys ? keys + (size_t)cols * (size_t)rows : NULL;
        MX_TRY(LAUNCH(d, "sort", "sort_tiles", rows, mx_div_up(cols, tile), 1, tile < 1024 ? tile / 2 : 512,
                      &keys, &ky, &to, &kx, &cols, &tile, &f, &kk));
        for (uint64_t run = tile; run < cols; run *= 2) {
            uint32_t r = (uint32_t)run;
            uint64_t *out = run * 2 < cols ? other : NULL;
            MX_TRY(LAUNCH(d, "sort", "sort_merge", rows, mx_div_up(cols, 256), 1, 256, &out, &keys, &ky, &to,
                          &kx, &cols, &r, &kk));
            uint64_t *t = keys;
            keys = other, other = t;
        }
    }
    return MX_OK;
}

static mx_status gpu_sort(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling,
                          mx_err *err) {
    return sort_some((mx_gpu_dev *)dev, y, ids, x, falling, x->cols, err);
}

/* A few are taken one by one; for many, sorting is less work. */
static mx_status gpu_top_k(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    const mx_mat y = {MX_F32, x->rows, k, k, values};
    if (k > TOP_K_PASSES) return sort_some(d, &y, ids, x, true, k, err);
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t cols = (uint32_t)x->cols, kk = (uint32_t)k;
    return LAUNCH(d, "reduce", "top_k", x->rows, 1, 1, row_threads(x->cols, 4), &ids, &values, &kx, &cols,
                  &kk);
}

/* ---- transforms ------------------------------------------------------------------------------------------- */

enum { FFT_NEAR = 2048, HADAMARD_NEAR_BITS = 12, HADAMARD_FAR_BITS = 4 };
enum { HOLDS_COMPLEX, HOLDS_REAL, HOLDS_HALF }; // fft.c

static mx_status gpu_fft(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    uint8_t factors[17];
    const int n_pass = mx_fft_factors(n, factors);
    const bool inverse = kind == MX_FFT_INVERSE || kind == MX_FFT_REAL_INVERSE;
    uint32_t points = (uint32_t)n, complex = HOLDS_COMPLEX;
    uint32_t x_holds = kind == MX_FFT_REAL           ? HOLDS_REAL
                       : kind == MX_FFT_REAL_INVERSE ? HOLDS_HALF
                                                     : HOLDS_COMPLEX;
    uint32_t y_holds = kind == MX_FFT_REAL           ? HOLDS_HALF
                       : kind == MX_FFT_REAL_INVERSE ? HOLDS_REAL
                                                     : HOLDS_COMPLEX;
    float sign = inverse ? 1 : -1, scale = inverse ? 1 / (float)n : 1, one = 1;
    mx_k_mat kx = mx_gpu_mat(x), ky = mx_gpu_mat(y);
    if (n <= FFT_NEAR) {
        uint64_t radices = 0;
        for (int i = 0; n > 1 && i < n_pass; i++) radices |= (uint64_t)factors[i] << 4 * i;
        uint32_t threads = row_threads(n, 8);
        return LAUNCH(d, "fft", "fft_near", x->rows, 1, 1, threads > 256 ? 256 : threads, &ky, &kx, &points,
                      &radices, &x_holds, &y_holds, &sign, &scale);
    }
    const size_t row_bytes = 4 * (size_t)n * sizeof(float); // two buffers of complex points
    const size_t fit = (256 << 20) / row_bytes;
    const int at_once = (size_t)x->rows < fit ? x->rows : (int)fit;
    MX_TRY(mx_gpu_scratch(d, row_bytes * (size_t)at_once, err));
    for (int row = 0; row < x->rows; row += at_once) {
        const int rows = x->rows - row < at_once ? x->rows - row : at_once;
        mx_k_mat in = {kx.p + (size_t)row * kx.ld, kx.ld};
        for (uint32_t pass = 0, before = 1; pass < (uint32_t)n_pass; before *= factors[pass++]) {
            const bool first = pass == 0, last = pass == (uint32_t)n_pass - 1;
            uint32_t radix = factors[pass];
            mx_k_mat out = {(float *)d->scratch + (size_t)(pass & 1) * (size_t)rows * 2 * (size_t)n,
                            2 * (uint64_t)n};
            if (last) out = (mx_k_mat){ky.p + (size_t)row * ky.ld, ky.ld};
            MX_TRY(LAUNCH(d, "fft", "fft_far", rows, mx_div_up(points / radix, 256), 1, 256, &out, &in,
                          &points, &radix, &before, first ? &x_holds : &complex, last ? &y_holds : &complex,
                          &sign, last ? &scale : &one));
            in = out;
        }
    }
    return MX_OK;
}

static mx_status gpu_hadamard(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    int m, k;
    mx_hadamard_factors(x->cols, &m, &k);
    mx_k_mat ky = mx_gpu_mat(y), in = mx_gpu_mat(x);
    uint32_t cols = (uint32_t)x->cols, near = (uint32_t)(k < HADAMARD_NEAR_BITS ? k : HADAMARD_NEAR_BITS);
    float one = 1;
    if (near || m == 1) {
        uint32_t threads = row_threads(1 << near, 4);
        MX_TRY(LAUNCH(d, "hadamard", "hadamard_near", x->rows, cols >> near, 1, threads > 256 ? 256 : threads,
                      &ky, &in, &near, m == 1 && k == (int)near ? &scale : &one));
        in = ky;
    }
    for (uint32_t done = near, bits; done < (uint32_t)k; done += bits) {
        uint32_t stride = 1u << done, left = (uint32_t)k - done;
        bits = left < HADAMARD_FAR_BITS ? left : HADAMARD_FAR_BITS;
        MX_TRY(LAUNCH(d, "hadamard", "hadamard_far", x->rows, mx_div_up(cols >> bits, 256), 1, 256, &ky, &in,
                      &bits, &cols, &stride, m == 1 && bits == left ? &scale : &one));
    }
    if (m == 1) return MX_OK;
    char name[32];
    uint32_t stride = 1u << k, threads = stride < 256 ? (stride < 32 ? 32 : stride) : 256;
    snprintf(name, sizeof name, "hadamard_%d", m);
    return LAUNCH(d, "hadamard", name, x->rows, mx_div_up(stride, threads), 1, threads, &ky, &in, &stride,
                  &scale);
}

/* ---- codes ------------------------------------------------------------------------------------------------ */

static mx_status whole_chunks(const char *op, const mx_qmat *w, mx_err *err) {
    if (w->kind == MX_QUANT_NONE || w->n_in % 32 == 0) return MX_OK;
    return mx_fail(err, MX_UNSUPPORTED, "%s: rows of %d values are no multiple of 32, which GPU kernels need",
                   op, w->n_in);
}

static mx_status gpu_quantize(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err) {
    char name[32];
    MX_TRY(whole_chunks("quantize", w, err));
    mx_k_weights kw = mx_gpu_weights(w);
    mx_k_mat kx = mx_gpu_mat(x);
    snprintf(name, sizeof name, "quantize_%s", mx_gpu_kind(w));
    return LAUNCH((mx_gpu_dev *)dev, "quantize", name, x->rows, mx_div_up((uint32_t)w->n_in / 32, 256), 1,
                  256, &kw, &kx);
}

static mx_status gpu_dequantize(mx_dev *dev, const mx_mat *y, const mx_qmat *w, mx_err *err) {
    char name[32];
    MX_TRY(whole_chunks("dequantize", w, err));
    mx_k_weights kw = mx_gpu_weights(w);
    mx_k_mat ky = mx_gpu_mat(y);
    snprintf(name, sizeof name, "dequantize_%s", mx_gpu_kind(w));
    return LAUNCH((mx_gpu_dev *)dev, "quantize", name, y->rows, mx_div_up((uint32_t)w->n_in, 32 * 256), 1,
                  256, &ky, &kw);
}

const mx_math mx_gpu_math = {
    .layer_norm = gpu_layer_norm,
    .softmax = gpu_softmax,
    .logsumexp = gpu_logsumexp,
    .sum = gpu_sum,
    .argmax = gpu_argmax,
    .top_k = gpu_top_k,
    .sort = gpu_sort,
    .searchsorted = gpu_searchsorted,
    .fft = gpu_fft,
    .hadamard = gpu_hadamard,
    .quantize = gpu_quantize,
    .dequantize = gpu_dequantize,
    .pick = gpu_pick,
};
