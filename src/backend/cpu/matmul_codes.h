/* matmul_codes.h - numbers and codes to vectors, over the operations of matmul_vec256.h or matmul_vec512.h.
 *
 * A file that includes this has VL (floats in a vector), the types vf (VL floats) and vi (the same bits as integers), and the
 * operations vf_* and vi_*. Functions that read codes say how many bytes they take: what lies behind a matrix must not be read,
 * so the caller hands them a copy with zeros behind where they would. */
#ifndef MX_BACKEND_CPU_MATMUL_CODES_H
#define MX_BACKEND_CPU_MATMUL_CODES_H
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
        for (int i = 1; i < 7; i++) {
            if (i < 16 / bits - 1) u[i] = vi_and(vi_srl16(v, i * bits), mask);
        }
        u[16 / bits - 1] = vi_srl16(v, 16 - bits);
    } else {
#pragma GCC unroll 2
        for (int i = 0; i < step_nv(bits); i++) u[i] = in_order(p + i * NR / 8 * bits, o, bits);
    }
}

#endif
