/* matmul_simd.h - the f32 and i16 kernels, written once over the vectors of the file that includes it.
 *
 * Before the include a file defines VL (floats in a vector), XR (rows of x that the f32 kernel handles beside 4 rows of
 * weights), MR (rows of x in a tile of i16g), the types vf (VL floats) and vi (the same bits as integers), and the
 * operations vf_* and vi_* used below. A panel of i16g is two vectors wide. matmul_impl.h describes the three ways and how
 * x is laid out.
 *
 * Reads never go past the matrix: a vector that would is filled from a copy of what is left. */
#include "backend/cpu/matmul_impl.h"
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
enum { VB = VL * 4, NR = 2 * VL };

/* ---- numbers ------------------------------------------------------------------------------------------- */

INLINE float bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* n plain numbers of type t at p to f32. out has room up to the next multiple of VL; what lies there is 0. */
static void plain_f32(float *out, const char *p, mx_dtype t, int n) {
    int i = 0;
    if (t == MX_F32) {
        memcpy(out, p, (size_t)n * 4);
        i = n;
    } else {
        for (; i + VL <= n; i += VL) vf_store(out + i, t == MX_BF16 ? vf_bf16(p + 2 * i) : vf_f16(p + 2 * i));
        if (i < n) {
            char rest[VL * 2] = {0};
            memcpy(rest, p + 2 * i, (size_t)(n - i) * 2);
            vf_store(out + i, t == MX_BF16 ? vf_bf16(rest) : vf_f16(rest));
            return;
        }
    }
    for (; i % VL; i++) out[i] = 0;
}

/* Scales [first, first + n) of w, counted over the matrix. out has room as above, what lies there is a scale of 0. */
static void scales_f32(float *out, const mx_qmat *w, size_t first, int n) {
    const char *p = w->scales;
    int i = 0;
    if (w->kind == MX_QUANT_AFFINE) {
        plain_f32(out, p + first * (w->type == MX_F32 ? 4 : 2), w->type, n);
        return;
    }
    const uint8_t *s = (const uint8_t *)p + first;
    for (; i + VL <= n; i += VL) {
        vi v = vi_u8(s + i);
        vf_store(out + i, w->kind == MX_QUANT_NVFP4 ? vf_e4m3(v) : vf_e8m0(v));
    }
    if (i == n) return;
    uint8_t rest[VL] = {0};
    memcpy(rest, s + i, (size_t)(n - i));
    vf_store(out + i, w->kind == MX_QUANT_NVFP4 ? vf_e4m3(vi_u8(rest)) : vf_e8m0(vi_u8(rest)));
}

INLINE size_t code_row_bytes(const mx_qmat *w) {
    return w->kind == MX_QUANT_NONE ? (size_t)w->n_in * (w->type == MX_F32 ? 4 : 2)
                                    : (size_t)w->n_in / 8 * w->bits;
}

/* ---- unpacking codes ----------------------------------------------------------------------------------- */

/* In-order unpacking for any width. Eight codes fill `bits` bytes; a 128-bit lane takes eight. `word` moves the dwords
 * that hold them to the lane, `byte` moves the two bytes around each code to its 16 bits, a product by `up` drops the bits
 * above the code, and a shift right the bits below. */
typedef struct {
    uint32_t word[16];
    uint8_t byte[64];
    uint16_t up[32];
} order_table;
#define WORDS(b, lane) (lane) * (b) / 4, (lane) * (b) / 4 + 1, (lane) * (b) / 4 + 2, (lane) * (b) / 4 + 3
#define BYTE(b, lane, i) (i) * (b) / 8 + (lane) * (b) % 4, (i) * (b) / 8 + (lane) * (b) % 4 + 1
#define BYTES(b, lane)                                                                                       \
    BYTE(b, lane, 0), BYTE(b, lane, 1), BYTE(b, lane, 2), BYTE(b, lane, 3), BYTE(b, lane, 4),                \
        BYTE(b, lane, 5), BYTE(b, lane, 6), BYTE(b, lane, 7)
#define UP(b, i) (uint16_t)(1u << (16 - (b) - (i) * (b) % 8))
#define UPS(b) UP(b, 0), UP(b, 1), UP(b, 2), UP(b, 3), UP(b, 4), UP(b, 5), UP(b, 6), UP(b, 7)
#define TABLE(b)                                                                                             \
    [b] = {{WORDS(b, 0), WORDS(b, 1), WORDS(b, 2), WORDS(b, 3)},                                             \
           {BYTES(b, 0), BYTES(b, 1), BYTES(b, 2), BYTES(b, 3)},                                             \
           {UPS(b), UPS(b), UPS(b), UPS(b)}}
static const order_table tables[9] = {TABLE(2), TABLE(3), TABLE(4), TABLE(5), TABLE(6), TABLE(8)};

typedef struct {
    vi word, byte, up;
} order;

INLINE order order_of(int bits) {
    const order_table *t = &tables[bits];
    return (order){vi_load(t->word), vi_load(t->byte), vi_load(t->up)};
}

/* 2 * VL codes from p in order, as 16-bit integers. Reads VB bytes. */
INLINE vi in_order(const char *p, const order *o, const int bits) {
    vi v = vi_shuffle(vi_perm(vi_load(p), o->word), o->byte);
    return vi_srl16(vi_mul16(v, o->up), 16 - bits);
}

/* e2m1, doubled: the table for a byte shuffle. A lane's nibble stands in its high byte, so the value comes out times 256. */
INLINE vi e2m1_table(void) {
    return vi_bcast128((const int8_t[16]){0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
}

/* How a kind of codes is stepped through: `nv` vectors of 2 * VL codes from `bytes` bytes; reading takes `reads` bytes. A
 * "word" (matmul_impl.h) has 2 * m values. */
INLINE bool by_words(int bits) { return bits == 2 || bits == 4 || bits == 8; }
INLINE int step_nv(int bits) { return by_words(bits) ? 16 / bits : 32 / NR; }
INLINE int step_values(int bits) { return step_nv(bits) * NR; }
INLINE int step_bytes(int bits) { return step_values(bits) / 8 * bits; }
INLINE int step_reads(int bits) { return by_words(bits) ? VB : (step_nv(bits) - 1) * NR / 8 * bits + VB; }

INLINE void unpack(vi *u, const char *p, const int bits, const bool e2m1, const order *o) {
    if (bits == 4 && e2m1) { // 256 times the doubled value
        const vi v = vi_load(p), mask = vi_set16(0x0F00), t = e2m1_table();
        u[0] = vi_shuffle(t, vi_and(vi_sll16(v, 8), mask));
        u[1] = vi_shuffle(t, vi_and(vi_sll16(v, 4), mask));
        u[2] = vi_shuffle(t, vi_and(v, mask));
        u[3] = vi_shuffle(t, vi_and(vi_srl16(v, 4), mask));
    } else if (by_words(bits)) {
        const vi v = vi_load(p), mask = vi_set16((1 << bits) - 1);
        u[0] = vi_and(v, mask);
#pragma GCC unroll 8
        for (int i = 1; i < 16 / bits - 1; i++) u[i] = vi_and(vi_srl16(v, i * bits), mask);
        u[16 / bits - 1] = vi_srl16(v, 16 - bits);
    } else {
#pragma GCC unroll 2
        for (int i = 0; i < step_nv(bits); i++) u[i] = in_order(p + i * NR / 8 * bits, o, bits);
    }
}

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

/* ---- f32 ----------------------------------------------------------------------------------------------- */

typedef struct {
    float w[MX_MM_STREAM][MX_MM_K + 32];
    float lanes[MX_MM_ROWS][MX_MM_STREAM][VL]; // sums so far, when there is more than one chunk
} f32_work;

/* nx rows of x from row r, 4 rows of weights, kn columns. Lane l of a sum takes columns l, l + VL, ...: the same order for
 * every nx. Only the lanes of the last chunk are added up. */
INLINE void f32_tile(const mx_mm_task *t, f32_work *work, const char *const *w, const int nx, int r, int k0,
                     int kn, int out, int n_out) {
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
            vf wv = vf_load(w[j] + (size_t)k * 4);
#pragma GCC unroll 8
            for (int i = 0; i < nx; i++) vf_fma_keep(acc[j][i], wv, xv[i]);
        }
    }
    if (k < kn) {
        for (int j = 0; j < MX_MM_STREAM; j++) {
            for (int i = 0; i < nx; i++) {
                acc[j][i] =
                    vf_fma(vf_load_n(w[j] + (size_t)k * 4, kn - k), vf_load_n(x[i] + k, kn - k), acc[j][i]);
            }
        }
    }
    if (k0 + kn < t->w.n_in) {
        for (int j = 0; j < MX_MM_STREAM; j++) {
            for (int i = 0; i < nx; i++) vf_store(work->lanes[r + i][j], acc[j][i]);
        }
        return;
    }
    for (int i = 0; i < nx; i++) {
        float *y = mx_mm_row(&t->y, r + i) + out;
        for (int j = 0; j < n_out; j++) y[j] = vf_sum(acc[j][i]) + (t->bias ? t->bias[out + j] : 0);
    }
}

static void f32_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    f32_work *work = memory;
    const mx_qmat *m = &t->w;
    for (int out = out0; out < out1; out += MX_MM_STREAM) {
        int n_out = out1 - out < MX_MM_STREAM ? out1 - out : MX_MM_STREAM;
        for (int k0 = 0; k0 < m->n_in; k0 += MX_MM_K) {
            int kn = m->n_in - k0 < MX_MM_K ? m->n_in - k0 : MX_MM_K, r = 0;
            const char *w[MX_MM_STREAM];
            for (int j = 0; j < MX_MM_STREAM; j++) {
                int row = out + (j < n_out ? j : 0); // a row that is not there repeats the first
                if (m->kind == MX_QUANT_NONE && m->type == MX_F32) {
                    w[j] = (const char *)m->codes + ((size_t)row * m->n_in + k0) * 4;
                } else {
                    w[j] = (const char *)work->w[j];
                    if (j < n_out)
                        expand(work->w[j], m, row, k0, kn);
                    else
                        w[j] = w[0];
                }
            }
            for (; r + XR <= t->n; r += XR) f32_tile(t, work, w, XR, r, k0, kn, out, n_out);
            for (; r + 2 <= t->n; r += 2) f32_tile(t, work, w, 2, r, k0, kn, out, n_out);
            for (; r < t->n; r++) f32_tile(t, work, w, 1, r, k0, kn, out, n_out);
        }
    }
}

/* ---- i16: preparing x ---------------------------------------------------------------------------------- */

/* n values (a multiple of 16, at most 64) as integers of 15 bits and a sign: x = scale * q. A value that is not finite makes the
 * scale NaN, so everything it touches is NaN. *sum is the sum of q. */
INLINE float quantize_x(int32_t *q, const float *x, int n, int32_t *sum) {
    vi top = vi_zero();
    for (int i = 0; i < n; i += VL) top = vi_max32(top, vi_abs_bits(vf_load(x + i)));
    uint32_t most = (uint32_t)vi_top32(top);
    float max = bits_f32(most);
    *sum = 0;
    if (most >= 0x7F800000u || max < 0x1p-110f) { // 2^-110: the reciprocal stays finite
        memset(q, 0, (size_t)n * 4);
        return most >= 0x7F800000u ? bits_f32(0x7FC00000u) : 0;
    }
    vf inv = vf_set1(32767.0f / max);
    vi all = vi_zero();
    for (int i = 0; i < n; i += VL) {
        vi v = vi_round(vf_mul(vf_load(x + i), inv));
        all = vi_add32(all, v);
        vi_store(q + i, v);
    }
    *sum = vi_sum32(all);
    return max / 32767.0f;
}

INLINE uint32_t pair_of(int32_t a, int32_t b) { return (uint32_t)(a & 0xFFFF) | (uint32_t)b << 16; }

static void prepare_v(const mx_mm_x *px, const mx_mm_rows *rows, int row, int n) {
    const int m = px->m, nv = m == 1 ? 32 / NR : m, sv = nv * NR, k = px->k, fold = px->fold;
    for (int r = row; r < row + n; r++) {
        const float *x = mx_mm_row(rows, r);
        int16_t *q = px->q + (size_t)r * px->k_pad;
        float *s = px->s + (size_t)r * px->f_pad, *sum = px->sum + (size_t)r * px->f_pad;
        memset(s + k / fold, 0, (size_t)(px->f_pad - k / fold) * 4);
        memset(sum + k / fold, 0, (size_t)(px->f_pad - k / fold) * 4);
        for (int k0 = 0; k0 < k; k0 += MX_MM_STEP) { // whole steps of any kernel
            int32_t v[MX_MM_STEP];
            int kn = k - k0 < MX_MM_STEP ? k - k0 : MX_MM_STEP;
            for (int i = 0; i < kn; i += fold) {
                int32_t total;
                float scale = quantize_x(v + i, x + k0 + i, fold, &total);
                s[(k0 + i) / fold] = scale;
                sum[(k0 + i) / fold] = scale * (float)total;
            }
            memset(v + kn, 0, (size_t)(MX_MM_STEP - kn) * 4);
            for (const int32_t *a = v; a < v + MX_MM_STEP; q += sv) {
                if (m == 1) {
                    for (int i = 0; i < sv; i++) q[i] = (int16_t)*a++;
                    continue;
                }
                for (int l = 0; l < VL; l++, a += 2 * m) {
                    for (int i = 0; i < m; i++) {
                        uint32_t both = pair_of(a[i], a[m + i]);
                        memcpy(q + i * NR + l * 2, &both, 4);
                    }
                }
            }
        }
    }
}

static void prepare_g(const mx_mm_x *px, const mx_mm_rows *rows, int row, int n) {
    const int m = px->m, fold = px->fold, k = px->k;
    for (int r0 = row; r0 < row + n; r0 += MR) {
        int16_t *q = px->q + (size_t)r0 * k; // MR rows of k values a tile
        float *s = px->s + (size_t)r0 * (k / fold), *sum = px->sum + (size_t)r0 * (k / fold);
        for (int r = 0; r < MR; r++) {
            const float *x = r0 + r < row + n ? mx_mm_row(rows, r0 + r) : NULL; // a row past the end is 0
            for (int f = 0; f < k / fold; f++) {
                int32_t v[64] = {0}, total = 0;
                float scale = x ? quantize_x(v, x + f * fold, fold, &total) : 0;
                s[f * MR + r] = scale;
                sum[f * MR + r] = scale * (float)total;
                int16_t *to = q + (size_t)f * fold * MR + r * 2;
                for (int w = 0; w < fold; w += 2 * m) {
                    for (int i = 0; i < m; i++, to += 2 * MR) {
                        uint32_t both = pair_of(v[w + i], v[w + m + i]);
                        memcpy(to, &both, 4);
                    }
                }
            }
        }
    }
}

/* ---- i16v: few rows ------------------------------------------------------------------------------------ */

enum {
    V_W = 2,        // rows of weights handled together, at most
    V_X = 4,        // rows of x
    V_SUMS = 4,     // sums: rows of weights times rows of x
    V_SCALES = 2048 // scales brought to f32 at a time
};

/* A worker's memory, cut up for this k. */
typedef struct {
    float *scales, *biases; // [rows, k / group] of some rows of weights
    float *product;         // [V_SUMS, f_pad] scale of the weights times scale of x
    char *rows[V_W];        // copies of the last rows of the matrix, zeros behind
} v_work;

static v_work v_cut(void *memory, int n_group, int k, int f_pad) {
    float *p = memory;
    int n = (n_group > V_SCALES ? n_group : V_SCALES) + MX_MM_LANES;
    v_work w = {.scales = p, .biases = p + n};
    p += 2 * n;
    w.product = p;
    p += V_SUMS * f_pad;
    for (int i = 0; i < V_W; i++) w.rows[i] = (char *)p + (size_t)i * (size_t)(k + 2 * MX_MM_STEP);
    return w;
}

/* The part of the sum that needs no codes, bias times sum of x; and the products of the scales. Not inlined: gcc 12 would
 * then keep the sums of v_block in memory. */
static __attribute__((noinline)) vf v_start(float *product, const float *scales, const float *biases, const float *s,
                                            const float *sum, int n) {
    vf acc = vf_zero();
    int f = 0;
    for (; f < n; f += VL) vf_store(product + f, vf_mul(vf_load(scales + f), vf_load(s + f)));
    vf_store(product + n, vf_zero()); // the last step may look there, for codes that meet an x of 0
    if (!biases) return acc;
    for (f = 0; f + VL <= n; f += VL) acc = vf_fma(vf_load(biases + f), vf_load(sum + f), acc);
    return f < n ? vf_fma(vf_load_n(biases + f, n - f), vf_load(sum + f), acc) : acc;
}

/* nw rows of weights from `out` on with nx rows of x from r on; scales and biases are those of row `out`. A word of codes never
 * spans two folds, so a 32-bit lane has one scale: that of the whole step if `whole`, else lane l has number lane[l], counted from
 * the step's first fold. */
INLINE void v_block(const mx_mm_task *t, const v_work *work, const float *scales, const float *biases, const int bits,
                    const bool e2m1, const bool whole, const int nw, const int nx, int out, int r) {
    const int nv = step_nv(bits), sv = step_values(bits), sb = step_bytes(bits);
    const mx_mm_x *px = t->px;
    const mx_qmat *m = &t->w;
    const int k = m->n_in, fold = px->fold, n_fold = k / fold, f_pad = px->f_pad, steps = (k + sv - 1) / sv;
    const size_t row_bytes = code_row_bytes(m);
    const char *end = (const char *)m->codes + row_bytes * (size_t)m->n_out, *codes[V_W];
    const order o = by_words(bits) ? (order){vi_zero(), vi_zero(), vi_zero()} : order_of(bits);
    const vi lane = vi_div_iota(by_words(bits) ? 32 / bits : 1, by_words(bits) ? fold : 32);
    vf acc[V_W][V_X];
#pragma GCC unroll 2
    for (int j = 0; j < nw; j++) {
        codes[j] = (const char *)m->codes + row_bytes * (size_t)(out + j);
        if (__builtin_expect(end - codes[j] < (ptrdiff_t)(steps - 1) * sb + step_reads(bits), 0)) {
            memcpy(work->rows[j], codes[j], row_bytes); // a read would leave the matrix
            memset(work->rows[j] + row_bytes, 0, 2 * MX_MM_STEP);
            codes[j] = work->rows[j];
        }
    }
    const bool affine = m->kind == MX_QUANT_AFFINE;
#pragma GCC unroll 2
    for (int j = 0; j < nw; j++) {
#pragma GCC unroll 4
        for (int i = 0; i < nx; i++) {
            acc[j][i] = v_start(work->product + (size_t)(j * nx + i) * f_pad, scales + j * n_fold,
                                affine ? biases + j * n_fold : NULL, px->s + (size_t)(r + i) * f_pad,
                                px->sum + (size_t)(r + i) * f_pad, n_fold);
        }
    }
    const float *product = work->product;
    const int16_t *x = px->q + (size_t)r * px->k_pad;
    const size_t next = (size_t)px->k_pad;
    const int shift = __builtin_ctz((unsigned)fold);
    for (int step = 0, at = 0; step < steps; step++, at += sv, x += sv) {
        const size_t f = (size_t)((unsigned)at >> shift);
#pragma GCC unroll 2
        for (int j = 0; j < nw; j++) {
            vi u[8];
            unpack(u, codes[j] + (size_t)step * sb, bits, e2m1, &o);
#pragma GCC unroll 4
            for (int i = 0; i < nx; i++) {
                const int16_t *xi = x + next * (size_t)i;
                const float *p = product + (size_t)(j * nx + i) * f_pad + f;
                vi sum = vi_dot16_first(u[0], vi_load(xi));
#pragma GCC unroll 8
                for (int v = 1; v < nv; v++) sum = vi_dot16(sum, u[v], vi_load(xi + v * NR));
                acc[j][i] = vf_fma(vf_cvt(sum), whole ? vf_set1(*p) : vf_perm(vf_load(p), lane), acc[j][i]);
            }
        }
    }
#pragma GCC unroll 2
    for (int j = 0; j < nw; j++) {
#pragma GCC unroll 4
        for (int i = 0; i < nx; i++) {
            float y = vf_sum(acc[j][i]) * (e2m1 ? 0x1p-9f : 1.0f);
            mx_mm_row(&t->y, r + i)[out + j] = y + (t->bias ? t->bias[out + j] : 0);
        }
    }
}

INLINE void v_rows(const mx_mm_task *t, int out0, int out1, const v_work *work, const int bits, const bool e2m1,
                   const bool whole) {
    const mx_qmat *m = &t->w;
    const int n_group = m->n_in / m->group, batch = n_group > V_SCALES / 2 ? 1 : V_SCALES / n_group & ~1;
    const size_t size = m->type == MX_F32 ? 4 : 2;
    for (int b0 = out0; b0 < out1; b0 += batch) {
        int b1 = out1 - b0 < batch ? out1 : b0 + batch, out = b0;
        const float *s = work->scales, *b = work->biases;
        scales_f32(work->scales, m, (size_t)b0 * (size_t)n_group, (b1 - b0) * n_group);
        if (m->kind == MX_QUANT_AFFINE) {
            plain_f32(work->biases, (const char *)m->biases + (size_t)b0 * (size_t)n_group * size, m->type,
                      (b1 - b0) * n_group);
        }
        for (; out + 2 <= b1; out += 2, s += 2 * n_group, b += 2 * n_group) {
            int r = 0;
            for (; r + 4 <= t->n; r += 4) {
                v_block(t, work, s, b, bits, e2m1, whole, 1, 4, out, r);
                v_block(t, work, s + n_group, b + n_group, bits, e2m1, whole, 1, 4, out + 1, r);
            }
            if (r + 2 <= t->n) v_block(t, work, s, b, bits, e2m1, whole, 2, 2, out, r), r += 2;
            if (r < t->n) v_block(t, work, s, b, bits, e2m1, whole, 2, 1, out, r);
        }
        for (int r = 0; out < b1 && r < t->n; r++) v_block(t, work, s, b, bits, e2m1, whole, 1, 1, out, r);
    }
}

INLINE void v_kind(const mx_mm_task *t, int out0, int out1, void *memory, const int bits, const bool e2m1) {
    v_work work = v_cut(memory, t->w.n_in / t->w.group, t->w.n_in, t->px->f_pad);
    if (t->px->fold >= step_values(bits)) v_rows(t, out0, out1, &work, bits, e2m1, true);
    else v_rows(t, out0, out1, &work, bits, e2m1, false);
}

static void v_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    if (t->w.kind != MX_QUANT_AFFINE) {
        v_kind(t, out0, out1, memory, 4, true);
        return;
    }
    switch (t->w.bits) {
    case 2: v_kind(t, out0, out1, memory, 2, false); return;
    case 3: v_kind(t, out0, out1, memory, 3, false); return;
    case 4: v_kind(t, out0, out1, memory, 4, false); return;
    case 5: v_kind(t, out0, out1, memory, 5, false); return;
    case 6: v_kind(t, out0, out1, memory, 6, false); return;
    default: v_kind(t, out0, out1, memory, 8, false);
    }
}

/* ---- i16g: many rows ----------------------------------------------------------------------------------- */

typedef struct {
    int16_t panel[(MX_MM_K + MX_MM_STEP) / 2][NR][2];         // [pair][out]: 2 codes each
    float scales[MX_MM_K / 16][NR], biases[MX_MM_K / 16][NR]; // [fold][out]
    float sums[MX_MM_ROWS + MR][NR];                          // [row][out]
} g_work;

/* Columns [k0, k0 + kn) of outs [out, out + n_out) into the panel. Outs that are not there get codes and scales of 0. */
INLINE void g_pack(g_work *work, const mx_mm_task *t, int out, int n_out, int k0, int kn, int fold,
                   const int bits, const bool e2m1) {
    const mx_qmat *w = &t->w;
    const int nv = step_nv(bits), sv = step_values(bits), sb = step_bytes(bits), group = w->group;
    const size_t row_bytes = code_row_bytes(w), size = w->type == MX_F32 ? 4 : 2;
    const char *end = (const char *)w->codes + row_bytes * (size_t)w->n_out;
    const order o = order_of(bits);
    for (int half = 0; half < 2; half++) {
        int n = n_out - half * VL < VL ? n_out - half * VL : VL;
        const char *codes =
            (const char *)w->codes + row_bytes * (size_t)(out + half * VL) + (size_t)k0 / 8 * bits;
        for (int k = 0; k < kn; k += sv, codes += sb) {
            vi t16[8][VL];
            for (int j = 0; j < VL; j++) {
                char rest[128];
                vi u[8];
                const char *p = codes + row_bytes * (size_t)j;
                if (j >= n || __builtin_expect(end - p < step_reads(bits), 0)) {
                    memset(rest, 0, sizeof rest);
                    if (j < n) memcpy(rest, p, (size_t)(end - p));
                    p = rest;
                }
                unpack(u, p, bits, e2m1, &o);
#pragma GCC unroll 8
                for (int i = 0; i < nv; i++) t16[i][j] = e2m1 ? vi_sra16(u[i], 8) : u[i];
            }
            for (int i = 0; i < nv; i++) {
                vi_transpose(t16[i]);
                for (int l = 0; l < VL; l++) {
                    int pair = k / 2 + (by_words(bits) ? l * nv + i : i * VL + l);
                    vi_store(&work->panel[pair][half * VL], t16[i][l]);
                }
            }
        }
    }
    for (int j = 0; j < NR; j++) {
        float s[MX_MM_K / 16 + VL], b[MX_MM_K / 16 + VL];
        size_t first = (size_t)(out + j) * (w->n_in / group) + k0 / group;
        if (j < n_out) scales_f32(s, w, first, kn / group);
        if (j < n_out && w->kind == MX_QUANT_AFFINE) {
            plain_f32(b, (const char *)w->biases + first * size, w->type, kn / group);
        }
        for (int f = 0; f < kn / fold; f++) {
            int g = f * fold / group;
            work->scales[f][j] = j < n_out ? s[g] * (e2m1 ? 0.5f : 1.0f) : 0;
            work->biases[f][j] = j < n_out && w->kind == MX_QUANT_AFFINE ? b[g] : 0;
        }
    }
}

/* mr rows of a tile with the panel: kn columns from k0. */
INLINE void g_tile(g_work *work, const mx_mm_x *px, const int mr, int r, int k0, int kn, const bool affine) {
    const int fold = px->fold;
    const int16_t *x = px->q + (size_t)r * px->k + (size_t)k0 * MR;
    const float *s = px->s + (size_t)r * (px->k / fold) + k0 / fold * MR;
    const float *sum = px->sum + (size_t)r * (px->k / fold) + k0 / fold * MR;
    const int16_t(*w)[NR][2] = work->panel;
    for (int f = 0; f < kn / fold; f++, s += MR, sum += MR) {
        vi acc[MR][2];
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) acc[i][0] = acc[i][1] = vi_zero();
        int p = 0;
        do {
            const vi w0 = vi_load(w[0][0]), w1 = vi_load(w[0][VL]);
#pragma GCC unroll 16
            for (int i = 0; i < mr; i++) {
                vi v = vi_bcast32(x + 2 * i);
                vi_dot16_keep(acc[i][0], w0, v);
                vi_dot16_keep(acc[i][1], w1, v);
            }
            w++, x += 2 * MR;
        } while (++p < fold / 2);
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            vf sx = vf_set1(s[i]), sums = vf_set1(sum[i]);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                float *y = work->sums[r + i] + h * VL;
                vf v = vf_load(y);
                v = vf_fma(vf_mul(vf_cvt(acc[i][h]), vf_load(work->scales[f] + h * VL)), sx, v);
                if (affine) v = vf_fma(vf_load(work->biases[f] + h * VL), sums, v);
                vf_store(y, v);
            }
        }
    }
}

static void g_tiles(g_work *work, const mx_mm_x *px, int n, int k0, int kn, bool affine) {
    int r = 0;
    for (; r + MR <= n; r += MR) {
        if (affine)
            g_tile(work, px, MR, r, k0, kn, true);
        else
            g_tile(work, px, MR, r, k0, kn, false);
    }
    if (r == n) return;
    if (n - r <= MR / 3)
        g_tile(work, px, MR / 3, r, k0, kn, affine); // rows past the end are 0
    else if (n - r <= MR * 2 / 3)
        g_tile(work, px, MR * 2 / 3, r, k0, kn, affine);
    else
        g_tile(work, px, MR, r, k0, kn, affine);
}

static void g_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    g_work *work = memory;
    const mx_qmat *w = &t->w;
    const int fold = t->px->fold;
    for (int out = out0; out < out1; out += NR) {
        int n_out = out1 - out < NR ? out1 - out : NR;
        memset(work->sums, 0, (size_t)(t->n + MR) * sizeof work->sums[0]);
        for (int k0 = 0; k0 < w->n_in; k0 += MX_MM_K) {
            int kn = w->n_in - k0 < MX_MM_K ? w->n_in - k0 : MX_MM_K;
            switch (w->kind == MX_QUANT_AFFINE ? w->bits : 0) {
            case 2: g_pack(work, t, out, n_out, k0, kn, fold, 2, false); break;
            case 3: g_pack(work, t, out, n_out, k0, kn, fold, 3, false); break;
            case 4: g_pack(work, t, out, n_out, k0, kn, fold, 4, false); break;
            case 5: g_pack(work, t, out, n_out, k0, kn, fold, 5, false); break;
            case 6: g_pack(work, t, out, n_out, k0, kn, fold, 6, false); break;
            case 8: g_pack(work, t, out, n_out, k0, kn, fold, 8, false); break;
            default: g_pack(work, t, out, n_out, k0, kn, fold, 4, true);
            }
            g_tiles(work, t->px, t->n, k0, kn, w->kind == MX_QUANT_AFFINE);
        }
        for (int r = 0; r < t->n; r++) {
            float *y = mx_mm_row(&t->y, r) + out;
            for (int j = 0; j < n_out; j++) y[j] = work->sums[r][j] + (t->bias ? t->bias[out + j] : 0);
        }
    }
}

_Static_assert(sizeof(g_work) <= MX_MM_WORK && sizeof(f32_work) <= MX_MM_WORK, "a worker's memory");
#define KERNELS                                                                                              \
    {                                                                                                        \
        .run = {[MX_MM_F32] = f32_run, [MX_MM_I16V] = v_run, [MX_MM_I16G] = g_run},                          \
        .panel = {[MX_MM_F32] = MX_MM_STREAM, [MX_MM_I16V] = 1, [MX_MM_I16G] = NR},                          \
        .tile = {[MX_MM_F32] = 1, [MX_MM_I16V] = 1, [MX_MM_I16G] = MR}, .prepare = {                         \
            [MX_MM_I16V] = prepare_v,                                                                        \
            [MX_MM_I16G] = prepare_g                                                                         \
        }                                                                                                    \
    }
