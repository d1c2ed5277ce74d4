/* matmul_i16.h - the i16 way (matmul_impl.h), written once over the vectors of the file that includes it. MR is the number of rows of x in
 * a tile for many rows; a panel of weights is two vectors wide. */
#include "backend/cpu/matmul_codes.h"

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
    V_W = 4,          // rows of weights handled together, at most
    V_X = 4,          // rows of x
    V_SUMS = 4,       // sums: rows of weights times rows of x
    V_AHEAD = 1024,   // bytes that a stream of weights is fetched ahead
    V_FAR = 128 << 10 // bytes of a unit from which its rows are read as V_W streams
};

/* The part of the sum of a row that needs no codes, bias times sum of x, and the products of the scales, weights' times x's, for n
 * folds. Reads whole vectors of scales and biases: what lies behind the row is dropped. */
typedef vf v_start_fn(float *product, const char *scales, const char *biases, const float *s,
                      const float *sum, int n);

/* Not inlined: gcc 12 would then keep the sums of v_block in memory. */
#define V_START(name, size, convert, affine)                                                                 \
    static __attribute__((noinline)) vf name(float *product, const char *scales, const char *biases,         \
                                             const float *s, const float *sum, int n) {                      \
        vf acc = vf_zero();                                                                                  \
        int f = 0;                                                                                           \
        for (; f + VL <= n; f += VL) {                                                                       \
            vf_store(product + f, vf_mul(convert(scales + f * (size)), vf_load(s + f)));                     \
            if (affine) acc = vf_fma(convert(biases + f * (size)), vf_load(sum + f), acc);                   \
        }                                                                                                    \
        if (f < n) {                                                                                         \
            vf_store(product + f, vf_mul(convert(scales + f * (size)), vf_load(s + f)));                     \
            if (affine) acc = vf_fma(vf_first(convert(biases + f * (size)), n - f), vf_load(sum + f), acc);  \
        }                                                                                                    \
        vf_store(product + n, vf_zero()); /* the last step may look there, for codes that meet an x of 0 */  \
        return acc;                                                                                          \
    }
INLINE vf scale_e8m0(const char *p) { return vf_e8m0(vi_u8(p)); }
INLINE vf scale_e4m3(const char *p) { return vf_e4m3(vi_u8(p)); }
V_START(v_start_f32, 4, vf_load, true)
V_START(v_start_f16, 2, vf_f16, true)
V_START(v_start_bf16, 2, vf_bf16, true)
V_START(v_start_e8m0, 1, scale_e8m0, false)
V_START(v_start_e4m3, 1, scale_e4m3, false)

/* A worker's memory, cut up for this k, and what all blocks of a run need. */
typedef struct {
    float *product;                  // [V_SUMS, f_pad] scale of the weights times scale of x
    char *rows[V_W];                 // copies of the last rows of the matrix, zeros behind
    char *scales[V_W], *biases[V_W]; // of the last rows too
    v_start_fn *start;
    int size; // bytes of a scale
} v_work;

static v_work v_cut(void *memory, const mx_qmat *m, int f_pad) {
    const size_t row = (size_t)m->n_in + 2 * MX_MM_STEP, n_group = (size_t)(m->n_in / m->group);
    char *p = memory;
    v_work w = {.size = m->kind != MX_QUANT_AFFINE ? 1 : m->type == MX_F32 ? 4 : 2};
    w.start = m->kind == MX_QUANT_NVFP4   ? v_start_e4m3
              : m->kind == MX_QUANT_MXFP4 ? v_start_e8m0
              : m->type == MX_F32         ? v_start_f32
              : m->type == MX_F16         ? v_start_f16
                                          : v_start_bf16;
    w.product = (float *)p;
    p += (size_t)V_SUMS * (size_t)f_pad * 4;
    for (int i = 0; i < V_W; i++) {
        w.rows[i] = p, p += row;
        w.scales[i] = p, p += (n_group + MX_MM_LANES) * 4;
        w.biases[i] = p, p += (n_group + MX_MM_LANES) * 4;
    }
    return w;
}

/* A row of `bytes` bytes at p of an array that ends at `end`: a copy with zeros behind where reading past the row by `more` bytes
 * would leave the array. */
INLINE const char *v_row(const char *p, size_t bytes, size_t more, const char *end, char *copy) {
    if (__builtin_expect((size_t)(end - p) >= bytes + more, 1)) return p;
    memcpy(copy, p, bytes);
    memset(copy + bytes, 0, more);
    return copy;
}

/* nw rows of weights, out, out + apart, ..., with nx rows of x from r on. A word of codes never
 * spans two folds, so a 32-bit lane has one scale: that of the whole step if `whole`, else lane l has number lane[l], counted from
 * the step's first fold. */
INLINE void v_block(const mx_mm_task *t, const v_work *work, const int bits, const bool e2m1,
                    const bool whole, const int nw, const int nx, int out, int apart, int r) {
    const int nv = step_nv(bits), sv = step_values(bits), sb = step_bytes(bits);
    const mx_mm_x *px = t->px;
    const mx_qmat *m = &t->w;
    const int k = m->n_in, fold = px->fold, n_fold = k / fold, f_pad = px->f_pad, steps = (k + sv - 1) / sv;
    const size_t row_bytes = code_row_bytes(m);
    const char *end = (const char *)m->codes + row_bytes * (size_t)m->n_out, *codes[V_W];
    const order o = by_words(bits) ? (order){vi_zero(), vi_zero(), vi_zero()} : order_of(bits);
    const vi lane = vi_div_iota(by_words(bits) ? 32 / bits : 1, by_words(bits) ? fold : 32);
    vf acc[V_W][V_X];
#pragma GCC unroll 4
    for (int j = 0; j < nw; j++) {
        const char *row = (const char *)m->codes + row_bytes * (size_t)(out + j * apart);
        codes[j] = row;
        if (__builtin_expect(end - row < (ptrdiff_t)(steps - 1) * sb + step_reads(bits), 0))
            codes[j] = v_row(row, row_bytes, 2 * MX_MM_STEP, row, work->rows[j]);
    }
    const size_t scale_bytes = (size_t)n_fold * (size_t)work->size, more = (size_t)VL * (size_t)work->size;
    const size_t all = scale_bytes * (size_t)m->n_out;
#pragma GCC unroll 4
    for (int j = 0; j < nw; j++) {
        const size_t at = scale_bytes * (size_t)(out + j * apart);
        const char *s = m->scales, *b = m->biases;
        s = v_row(s + at, scale_bytes, more, s + all, work->scales[j]);
        if (b) b = v_row(b + at, scale_bytes, more, b + all, work->biases[j]);
#pragma GCC unroll 4
        for (int i = 0; i < nx; i++) {
            acc[j][i] =
                work->start(work->product + (size_t)(j * nx + i) * f_pad, s, b,
                            px->s + (size_t)(r + i) * f_pad, px->sum + (size_t)(r + i) * f_pad, n_fold);
        }
    }
    const float *product = work->product;
    const int16_t *x = px->q + (size_t)r * px->k_pad;
    const size_t next = (size_t)px->k_pad;
    const int shift = __builtin_ctz((unsigned)fold);
    // Rows are short for the hardware's prefetcher, which starts anew with each: fetch what comes next.
    const size_t ahead = apart == 1 && row_bytes * V_W > V_AHEAD ? row_bytes * V_W : V_AHEAD;
    for (int step = 0, at = 0; step < steps; step++, at += sv, x += sv) {
        const size_t f = (size_t)((unsigned)at >> shift);
#pragma GCC unroll 4
        for (int j = 0; j < nw; j++) {
            vi u[8];
            unpack(u, codes[j] + (size_t)step * sb, bits, e2m1, &o);
            if (nx == 1) __builtin_prefetch(codes[j] + (size_t)step * sb + ahead);
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
#pragma GCC unroll 4
    for (int j = 0; j < nw; j++) {
#pragma GCC unroll 4
        for (int i = 0; i < nx; i++) {
            float y = vf_sum(acc[j][i]) * (e2m1 ? 0x1p-9f : 1.0f);
            mx_mm_row(&t->y, r + i)[out + j * apart] = y + (t->bias ? t->bias[out + j * apart] : 0);
        }
    }
}

/* Each in a function of its own: one function with all of them takes a compiler minutes. */
typedef void v_block_fn(const mx_mm_task *t, const v_work *work, int out, int apart, int r);
#define V_BLOCK(name, bits, e2m1, whole, nw, nx)                                                             \
    static __attribute__((noinline)) void name(const mx_mm_task *t, const v_work *work, int out, int apart,  \
                                               int r) {                                                      \
        v_block(t, work, bits, e2m1, whole, nw, nx, out, apart, r);                                          \
    }
#define V_BLOCKS(name, bits, e2m1, whole)                                                                    \
    V_BLOCK(name##_4x1, bits, e2m1, whole, 4, 1)                                                             \
    V_BLOCK(name##_1x1, bits, e2m1, whole, 1, 1)                                                             \
    V_BLOCK(name##_1x2, bits, e2m1, whole, 1, 2)                                                             \
    V_BLOCK(name##_1x4, bits, e2m1, whole, 1, 4)                                                             \
    static v_block_fn *const name[4] = {name##_4x1, name##_1x1, name##_1x2, name##_1x4};
V_BLOCKS(v_b2, 2, false, false)
V_BLOCKS(v_b3, 3, false, true)
V_BLOCKS(v_b4, 4, false, false)
V_BLOCKS(v_b5, 5, false, true)
V_BLOCKS(v_b6, 6, false, true)
V_BLOCKS(v_b8, 8, false, false)
V_BLOCKS(v_e2m1, 4, true, false)
V_BLOCKS(v_b8_whole, 8, false, true)
#if MX_MM_VB == 32
V_BLOCKS(v_b4_whole, 4, false, true) // 512 bits hold two folds of 4-bit codes, or more
#else
#define v_b4_whole v_b4
#endif

/* The kernels of a kind, for 4 rows of weights by 1 of x, 1 by 1, 1 by 2, 1 by 4. */
static v_block_fn *const *v_kernels(const mx_qmat *w, int fold) {
    if (w->kind != MX_QUANT_AFFINE) return v_e2m1;
    switch (w->bits) {
    case 2: return v_b2;
    case 3: return v_b3;
    case 4: return fold >= step_values(4) ? v_b4_whole : v_b4;
    case 5: return v_b5;
    case 6: return v_b6;
    default: return fold >= step_values(8) ? v_b8_whole : v_b8;
    }
}

static void v_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    const v_work work = v_cut(memory, &t->w, t->px->f_pad);
    v_block_fn *const *f = v_kernels(&t->w, t->px->fold);
    if (t->n == 1) { // so many streams of memory read faster than one, if they are long
        const bool far = (size_t)(out1 - out0) * code_row_bytes(&t->w) >= V_FAR;
        const int n = (out1 - out0) / V_W, apart = far ? n : 1, next = far ? 1 : V_W;
        for (int i = 0; i < n; i++) f[0](t, &work, out0 + i * next, apart, 0);
        for (int out = out0 + n * V_W; out < out1; out++) f[1](t, &work, out, 0, 0);
        return;
    }
    for (int out = out0; out < out1; out++) {
        int r = 0;
        for (; r + 4 <= t->n; r += 4) f[3](t, &work, out, 0, r);
        if (r + 2 <= t->n) f[2](t, &work, out, 0, r), r += 2;
        if (r < t->n) f[1](t, &work, out, 0, r);
    }
}

/* ---- i16g: many rows ----------------------------------------------------------------------------------- */

typedef struct {
    int16_t panel[(MX_MM_K + MX_MM_STEP) / 2][NR][2];         // [pair][out]: 2 codes each
    float scales[MX_MM_K / 16][NR], biases[MX_MM_K / 16][NR]; // [fold][out]
    float sums[MX_MM_ROWS + MR][NR];                          // [row][out]
} g_work;

/* Columns [k0, k0 + kn) of outs [out, out + n_out) into the panel. Outs that are not there get codes and scales of 0. */
INLINE void g_pack_kind(g_work *work, const mx_mm_task *t, int out, int n_out, int k0, int kn, int fold,
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

#define G_PACK(name, bits, e2m1)                                                                             \
    static __attribute__((noinline)) void name(g_work *work, const mx_mm_task *t, int out, int n_out,        \
                                               int k0, int kn, int fold) {                                   \
        g_pack_kind(work, t, out, n_out, k0, kn, fold, bits, e2m1);                                          \
    }
G_PACK(g_pack2, 2, false)
G_PACK(g_pack3, 3, false)
G_PACK(g_pack4, 4, false)
G_PACK(g_pack5, 5, false)
G_PACK(g_pack6, 6, false)
G_PACK(g_pack8, 8, false)
G_PACK(g_pack_e2m1, 4, true)

static void g_pack(g_work *work, const mx_mm_task *t, int out, int n_out, int k0, int kn, int fold) {
    switch (t->w.kind == MX_QUANT_AFFINE ? t->w.bits : 0) {
    case 2: g_pack2(work, t, out, n_out, k0, kn, fold); return;
    case 3: g_pack3(work, t, out, n_out, k0, kn, fold); return;
    case 4: g_pack4(work, t, out, n_out, k0, kn, fold); return;
    case 5: g_pack5(work, t, out, n_out, k0, kn, fold); return;
    case 6: g_pack6(work, t, out, n_out, k0, kn, fold); return;
    case 8: g_pack8(work, t, out, n_out, k0, kn, fold); return;
    default: g_pack_e2m1(work, t, out, n_out, k0, kn, fold);
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
            g_pack(work, t, out, n_out, k0, kn, fold);
            g_tiles(work, t->px, t->n, k0, kn, w->kind == MX_QUANT_AFFINE);
        }
        for (int r = 0; r < t->n; r++) {
            float *y = mx_mm_row(&t->y, r) + out;
            for (int j = 0; j < n_out; j++) y[j] = work->sums[r][j] + (t->bias ? t->bias[out + j] : 0);
        }
    }
}
