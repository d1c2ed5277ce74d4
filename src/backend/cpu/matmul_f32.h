/* matmul_f32.h - the f32 way (matmul_impl.h), written once over the vectors of the file that includes it. XR is the number of rows of x
 * that are handled beside 4 rows of weights. */
#include "backend/cpu/matmul_codes.h"

/* Columns [k0, k0 + kn) of a row to f32, in order. k0 is a multiple of MX_MM_K; out has room for kn rounded up to 32. */
static void expand(float *out, const mx_qmat *w, int row, int k0, int kn) {
    if (w->kind == MX_QUANT_NONE) {
        size_t size = w->type == MX_F32 ? 4 : 2;
        plain_f32(out, (const char *)w->codes + ((size_t)row * w->n_in + k0) * size, w->type, kn);
        return;
    }
    float s[MX_MM_K / 16 + VL], b[MX_MM_K / 16 + VL];
    const int group = w->group, bits = w->bits;
    size_t first = (size_t)row * (w->n_in / group) + k0 / group;
    scales_f32(s, w, first, kn / group);
    if (w->kind == MX_QUANT_AFFINE) {
        plain_f32(b, (const char *)w->biases + first * (w->type == MX_F32 ? 4 : 2), w->type, kn / group);
    }
    const char *p = (const char *)w->codes + (size_t)row * code_row_bytes(w) + (size_t)k0 / 8 * bits;
    const char *end = (const char *)w->codes + (size_t)w->n_out * code_row_bytes(w);
    const order o = order_of(bits);
    for (int k = 0; k < kn; k += NR, p += NR / 8 * bits) {
        char rest[VB];
        const char *at = p;
        if (end - p < VB) {
            memset(rest, 0, VB);
            memcpy(rest, p, (size_t)(end - p));
            at = rest;
        }
        vi v = in_order(at, &o, bits);
        if (w->kind == MX_QUANT_MXFP4 || w->kind == MX_QUANT_NVFP4) {
            v = vi_sra16(vi_shuffle(e2m1_table(), vi_sll16(v, 8)), 8);
        }
        for (int h = 0; h < 2; h++) {
            int g = (k + h * VL) / group;
            vf q;
            if (w->kind == MX_QUANT_MXFP8) {
                q = vf_mul(vf_e4m3(vi_u16(v, h)), vf_set1(s[g]));
            } else {
                q = vf_cvt(vi_i16(v, h));
                q = w->kind == MX_QUANT_AFFINE ? vf_add(vf_mul(q, vf_set1(s[g])), vf_set1(b[g]))
                                               : vf_mul(vf_mul(q, vf_set1(0.5f)), vf_set1(s[g]));
            }
            vf_store(out + k + h * VL, q);
        }
    }
}

enum { F32_FEW = 4 }; // rows of x up to which plain weights are not expanded first

typedef struct {
    float w[MX_MM_STREAM][MX_MM_K + 32];
    float lanes[MX_MM_ROWS][MX_MM_STREAM][VL]; // sums so far, when there is more than one chunk
} f32_work;

INLINE vf plain(const char *p, const mx_dtype type) {
    return type == MX_F32 ? vf_load(p) : type == MX_BF16 ? vf_bf16(p) : vf_f16(p);
}

INLINE vf plain_n(const char *p, const mx_dtype type, int n) { // the first n lanes, the others 0
    if (type == MX_F32) return vf_load_n(p, n);
    char rest[2 * VL] = {0};
    memcpy(rest, p, (size_t)n * 2);
    return plain(rest, type);
}

/* nx rows of x from row r, 4 rows of weights of this type, kn columns. Lane l of a sum takes columns l, l + VL, ...: the same order for
 * every nx. Only the lanes of the last chunk are added up. */
INLINE void f32_tile(const mx_mm_task *t, f32_work *work, const char *const *w, const mx_dtype type,
                     const int nx, int r, int k0, int kn, int out, int n_out) {
    const size_t size = type == MX_F32 ? 4 : 2;
    vf acc[MX_MM_STREAM][XR];
    const float *x[XR];
#pragma GCC unroll 8
    for (int i = 0; i < nx; i++) x[i] = mx_mm_row(&t->x, r + i) + k0;
#pragma GCC unroll 4
    for (int j = 0; j < MX_MM_STREAM; j++) {
#pragma GCC unroll 8
        for (int i = 0; i < nx; i++) acc[j][i] = k0 ? vf_load(work->lanes[r + i][j]) : vf_zero();
    }
    int k = 0;
    for (; k + VL <= kn; k += VL) {
        vf xv[XR];
#pragma GCC unroll 8
        for (int i = 0; i < nx; i++) xv[i] = vf_load(x[i] + k);
#pragma GCC unroll 4
        for (int j = 0; j < MX_MM_STREAM; j++) {
            vf wv = plain(w[j] + (size_t)k * size, type);
#pragma GCC unroll 8
            for (int i = 0; i < nx; i++) vf_fma_keep(acc[j][i], wv, xv[i]);
        }
    }
    if (k < kn) {
        vf xv[XR];
#pragma GCC unroll 8
        for (int i = 0; i < nx; i++) xv[i] = vf_load_n(x[i] + k, kn - k);
#pragma GCC unroll 4
        for (int j = 0; j < MX_MM_STREAM; j++) {
            vf wv = plain_n(w[j] + (size_t)k * size, type, kn - k);
#pragma GCC unroll 8
            for (int i = 0; i < nx; i++) vf_fma_keep(acc[j][i], wv, xv[i]);
        }
    }
    // No loop below may run to a variable end: gcc 12 would keep the sums in memory all the way.
    const bool last = k0 + kn == t->w.n_in;
#pragma GCC unroll 8
    for (int i = 0; i < nx; i++) {
        float *y = mx_mm_row(&t->y, r + i) + out;
#pragma GCC unroll 4
        for (int j = 0; j < MX_MM_STREAM; j++) {
            if (!last)
                vf_store(work->lanes[r + i][j], acc[j][i]);
            else if (j < n_out)
                y[j] = vf_sum(acc[j][i]) + (t->bias ? t->bias[out + j] : 0);
        }
    }
}

/* All rows of x with 4 rows of weights. */
INLINE void f32_tiles(const mx_mm_task *t, f32_work *work, const char *const *w, const mx_dtype type, int k0,
                      int kn, int out, int n_out) {
    int r = 0;
    for (; r + XR <= t->n; r += XR) f32_tile(t, work, w, type, XR, r, k0, kn, out, n_out);
    for (; r + 2 <= t->n; r += 2) f32_tile(t, work, w, type, 2, r, k0, kn, out, n_out);
    for (; r < t->n; r++) f32_tile(t, work, w, type, 1, r, k0, kn, out, n_out);
}

/* Few rows, plain weights: rows of weights stream by at their full length, brought to f32 on the way. */
static __attribute__((noinline)) void f32_stream_bf16(const mx_mm_task *t, const char *const *w, int out,
                                                      int n_out) {
    f32_tiles(t, NULL, w, MX_BF16, 0, t->w.n_in, out, n_out);
}
static __attribute__((noinline)) void f32_stream_f16(const mx_mm_task *t, const char *const *w, int out,
                                                     int n_out) {
    f32_tiles(t, NULL, w, MX_F16, 0, t->w.n_in, out, n_out);
}
static __attribute__((noinline)) void f32_stream_f32(const mx_mm_task *t, const char *const *w, int out,
                                                     int n_out) {
    f32_tiles(t, NULL, w, MX_F32, 0, t->w.n_in, out, n_out);
}

static void f32_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    f32_work *work = memory;
    const mx_qmat *m = &t->w;
    const bool dense = m->kind == MX_QUANT_NONE, direct = dense && (t->n <= F32_FEW || m->type == MX_F32);
    const size_t size = m->type == MX_F32 ? 4 : 2;
    const int step = t->n <= F32_FEW && dense ? m->n_in : MX_MM_K;
    for (int out = out0; out < out1; out += MX_MM_STREAM) {
        int n_out = out1 - out < MX_MM_STREAM ? out1 - out : MX_MM_STREAM;
        for (int k0 = 0; k0 < m->n_in; k0 += step) {
            int kn = m->n_in - k0 < step ? m->n_in - k0 : step;
            const char *w[MX_MM_STREAM];
            for (int j = 0; j < MX_MM_STREAM; j++) {
                int row = out + (j < n_out ? j : 0); // a row that is not there repeats the first
                if (direct) {
                    w[j] = (const char *)m->codes + ((size_t)row * m->n_in + k0) * size;
                } else if (j < n_out) {
                    expand(work->w[j], m, row, k0, kn);
                    w[j] = (const char *)work->w[j];
                } else {
                    w[j] = w[0];
                }
            }
            if (!dense || t->n > F32_FEW)
                f32_tiles(t, work, w, MX_F32, k0, kn, out, n_out);
            else if (m->type == MX_BF16)
                f32_stream_bf16(t, w, out, n_out);
            else if (m->type == MX_F16)
                f32_stream_f16(t, w, out, n_out);
            else
                f32_stream_f32(t, w, out, n_out);
        }
    }
}
