/* matmul_b16.h - the b16 way (matmul_impl.h): x and the weights rounded to bf16, sums in f32, for many rows of x.
 *
 * A panel is 32 outs by MX_MM_K columns of weights in bf16, row by row; x is laid out in pairs. The unit of both is 32 columns by 16
 * outs or rows, which is what an AMX tile holds:
 *   A, weights  [16 outs][32 columns]
 *   B, x        [16 pairs of columns][16 rows][2]
 *   C = A B     [16 outs][16 rows] f32
 * The 32 columns are those that one vector of unpacked codes holds, in the order in which they come out of it: with m codes in a 16-bit
 * lane (matmul_impl.h), vector i of a step has the values 2 m l + i of its 16 words l, then the values 2 m l + m + i. So weights
 * are never transposed; x, which is prepared once for all outs, follows them. With m = 1 the order is that of memory.
 *
 * The file that includes this defines b16_block(): C += A B for 32 outs and 32 or 16 rows. */
#include "backend/cpu/matmul_codes.h"

enum { B_OUT = 32, B_ROW = 16, B_K = 32 }; // outs of a panel, rows and columns of a tile

typedef struct {
    uint16_t panel[B_OUT][MX_MM_K]; // 32 KiB: stays in the first-level cache with a block of x
    float sums[B_OUT][MX_MM_ROWS];  // [out][row]
} b16_work;
_Static_assert(sizeof(b16_work) <= MX_MM_WORK && MX_MM_ROWS % (2 * B_ROW) == 0, "a worker's memory");

/* sums[0..32)[row..row + 16 * n_tile) += panel, of which n_k columns are used, times n_tile (1 or 2) tiles of x. */
static void b16_block(b16_work *work, const int16_t *const *x, int n_tile, int n_k, int row);

/* Column 2 p + half of unit `u` (32 columns each) for m codes a lane. */
INLINE int b16_column(int u, int m, int e) {
    if (m == 1) return u * B_K + e;
    int step = u / m, i = u % m;
    return step * m * B_K + (e < 16 ? 2 * m * e + i : 2 * m * (e - 16) + m + i);
}

/* q [tile of 16 rows][unit of 32 columns][pair][row][2]. Columns and rows past the end are 0. */
static void prepare_b16(const mx_mm_x *px, const mx_mm_rows *rows, int row, int n) {
    const int m = px->m, units = px->k_pad / B_K;
    for (int r0 = row; r0 < row + n; r0 += B_ROW) {
        int16_t *q = px->q + (size_t)r0 * px->k_pad;
        for (int r = 0; r < B_ROW; r++) {
            const float *x = r0 + r < row + n ? mx_mm_row(rows, r0 + r) : NULL;
            for (int u = 0; u < units; u++) {
                float v[B_K];
                for (int e = 0; e < B_K; e++) {
                    int k = b16_column(u, m, e);
                    v[e] = x && k < px->k ? x[k] : 0;
                }
                uint32_t both[B_K / 2];
                vi_store(both, vi_bf16_pair(vf_load(v), vf_load(v + VL)));
                int16_t *to = q + ((size_t)u * (B_K / 2) * B_ROW + (size_t)r) * 2;
                for (int p = 0; p < B_K / 2; p++) memcpy(to + (size_t)p * B_ROW * 2, &both[p], 4);
            }
        }
    }
}

/* Columns [k0, k0 + n_k) of one out into a row of the panel; n_k is kn rounded up to whole steps, 0 behind the end. */
INLINE void b16_codes(uint16_t *to, const mx_qmat *w, int out, int k0, int kn, int n_k, const int bits,
                      const bool e2m1) {
    const int m = by_words(bits) ? 16 / bits : 1, nv = step_nv(bits), sv = step_values(bits),
              sb = step_bytes(bits);
    const int group = w->group;
    const size_t row_bytes = code_row_bytes(w), size = w->type == MX_F32 ? 4 : 2;
    const char *end = (const char *)w->codes + row_bytes * (size_t)w->n_out;
    const char *codes = (const char *)w->codes + row_bytes * (size_t)out + (size_t)k0 / 8 * bits;
    const order o = by_words(bits) ? (order){vi_zero(), vi_zero(), vi_zero()} : order_of(bits);
    const vi lane = vi_div_iota(by_words(bits) ? 2 * m : 1, group);
    float s[MX_MM_K / 16 + 2 * VL] = {0}, b[MX_MM_K / 16 + 2 * VL] = {0};
    const size_t first = (size_t)out * (w->n_in / group) + k0 / group;
    scales_f32(s, w, first, kn / group);
    if (w->kind == MX_QUANT_AFFINE) plain_f32(b, (const char *)w->biases + first * size, w->type, kn / group);
    // a code sits in the upper half of a word, so 2^16 too large; e2m1 is doubled and times 256 besides
    const vf unit = vf_set1(e2m1 ? 0x1p-25f : 0x1p-16f);
    const vi upper = vi_set32((int)0xFFFF0000u);
    for (int k = 0; k < n_k; k += sv, codes += sb, to += sv) {
        char rest[128];
        vi u[8];
        const char *p = codes;
        if (__builtin_expect(end - codes < step_reads(bits), 0)) {
            memset(rest, 0, sizeof rest);
            if (end > codes) memcpy(rest, codes, (size_t)(end - codes));
            p = rest;
        }
        unpack(u, p, bits, e2m1, &o);
        if (m == 1) { // 32 values in order: at most two groups, of 16 values a vector
            vf lo = vf_cvt(vi_i16(u[0], 0)), hi = vf_cvt(vi_i16(u[0], 1));
            vf scale = vf_set1(s[k / group]), bias = vf_set1(b[k / group]);
            vi_store(to, vi_bf16_pair(vf_fma(lo, scale, bias), vf_fma(hi, scale, bias)));
            continue;
        }
        vf scale = vf_mul(vf_perm(vf_load(s + k / group), lane), unit),
           bias = vf_perm(vf_load(b + k / group), lane);
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++) {
            vf lo = vf_cvt(vi_sll32(u[i], 16)), hi = vf_cvt(vi_and(u[i], upper));
            vi_store(to + i * B_K, vi_bf16_pair(vf_fma(lo, scale, bias), vf_fma(hi, scale, bias)));
        }
    }
}

#define B16_CODES(name, bits, e2m1)                                                                          \
    static __attribute__((noinline)) void name(uint16_t *to, const mx_qmat *w, int out, int k0, int kn,      \
                                               int n_k) {                                                    \
        b16_codes(to, w, out, k0, kn, n_k, bits, e2m1);                                                      \
    }
B16_CODES(b16_codes2, 2, false)
B16_CODES(b16_codes3, 3, false)
B16_CODES(b16_codes4, 4, false)
B16_CODES(b16_codes5, 5, false)
B16_CODES(b16_codes6, 6, false)
B16_CODES(b16_codes8, 8, false)
B16_CODES(b16_codes_e2m1, 4, true)

/* bf16 weights as they are, and mxfp8. */
static void b16_plain(uint16_t *to, const mx_qmat *w, int out, int k0, int kn, int n_k) {
    if (w->kind == MX_QUANT_NONE) {
        memcpy(to, (const char *)w->codes + ((size_t)out * w->n_in + k0) * 2, (size_t)kn * 2);
    } else {
        const char *codes = (const char *)w->codes + (size_t)out * w->n_in + k0;
        float s[MX_MM_K / 32 + VL];
        scales_f32(s, w, (size_t)out * (w->n_in / 32) + k0 / 32, kn / 32);
        for (int k = 0; k < kn; k += 32) {
            vf scale = vf_set1(s[k / 32]);
            vf lo = vf_e4m3(vi_u8(codes + k)), hi = vf_e4m3(vi_u8(codes + k + VL));
            vi_store(to + k, vi_bf16_pair(vf_mul(lo, scale), vf_mul(hi, scale)));
        }
    }
    memset(to + kn, 0, (size_t)(n_k - kn) * 2);
}

static void b16_pack(b16_work *work, const mx_qmat *w, int out, int n_out, int k0, int kn, int n_k) {
    for (int j = 0; j < n_out; j++) {
        uint16_t *to = work->panel[j];
        if (w->kind == MX_QUANT_NONE || w->kind == MX_QUANT_MXFP8) {
            b16_plain(to, w, out + j, k0, kn, n_k);
            continue;
        }
        switch (w->kind == MX_QUANT_AFFINE ? w->bits : 0) {
        case 2: b16_codes2(to, w, out + j, k0, kn, n_k); break;
        case 3: b16_codes3(to, w, out + j, k0, kn, n_k); break;
        case 4: b16_codes4(to, w, out + j, k0, kn, n_k); break;
        case 5: b16_codes5(to, w, out + j, k0, kn, n_k); break;
        case 6: b16_codes6(to, w, out + j, k0, kn, n_k); break;
        case 8: b16_codes8(to, w, out + j, k0, kn, n_k); break;
        default: b16_codes_e2m1(to, w, out + j, k0, kn, n_k);
        }
    }
    for (int j = n_out; j < B_OUT; j++) memset(work->panel[j], 0, (size_t)n_k * 2);
}

static void b16_run(const mx_mm_task *t, int out0, int out1, void *memory) {
    b16_work *work = memory;
    const mx_qmat *w = &t->w;
    const mx_mm_x *px = t->px;
    const int tiles = (t->n + B_ROW - 1) / B_ROW;
    // whole steps, so that every unit is complete: MX_MM_K is a multiple of all of them
    const int step = w->kind == MX_QUANT_NONE || px->m == 1 ? B_K : px->m * B_K;
    b16_open();
    for (int out = out0; out < out1; out += B_OUT) {
        int n_out = out1 - out < B_OUT ? out1 - out : B_OUT;
        for (int j = 0; j < B_OUT; j++) memset(work->sums[j], 0, (size_t)tiles * B_ROW * sizeof(float));
        for (int k0 = 0; k0 < w->n_in; k0 += MX_MM_K) {
            int kn = w->n_in - k0 < MX_MM_K ? w->n_in - k0 : MX_MM_K, n_k = (kn + step - 1) / step * step;
            b16_pack(work, w, out, n_out, k0, kn, n_k);
            for (int tile = 0; tile < tiles; tile += 2) {
                const int16_t *x[2];
                x[0] = px->q + ((size_t)tile * px->k_pad + (size_t)k0) * B_ROW;
                x[1] = x[0] + (size_t)px->k_pad * B_ROW;
                b16_block(work, x, tiles - tile < 2 ? 1 : 2, n_k, tile * B_ROW);
            }
        }
        for (int tile = 0; tile < tiles; tile++) { // C is [out][row], y is [row][out]
            int n = t->n - tile * B_ROW < B_ROW ? t->n - tile * B_ROW : B_ROW;
            for (int half = 0; half < n_out; half += VL) {
                vi c[VL];
                for (int j = 0; j < VL; j++) c[j] = vi_load(work->sums[half + j] + tile * B_ROW);
                vi_transpose(c);
                int n_y = n_out - half < VL ? n_out - half : VL;
                for (int r = 0; r < n; r++) {
                    float row[VL], *y = mx_mm_row(&t->y, tile * B_ROW + r) + out + half;
                    vi_store(row, c[r]);
                    for (int j = 0; j < n_y; j++) y[j] = row[j] + (t->bias ? t->bias[out + half + j] : 0);
                }
            }
        }
    }
    b16_close();
}

#define B16_KERNELS                                                                                          \
    {                                                                                                        \
        .run = {[MX_MM_B16] = b16_run}, .panel = {[MX_MM_B16] = B_OUT}, .tile = {[MX_MM_B16] = B_ROW},       \
        .prepare = {                                                                                         \
            [MX_MM_B16] = prepare_b16                                                                        \
        }                                                                                                    \
    }
