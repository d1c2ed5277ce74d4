/* quant.h - quantized weights as kernels see them: 32 values of a row at a time.
 *
 * A chunk is 32 consecutive values of a row, so that its codes are `bits` whole 32-bit words, whatever the bits are, and that
 * one scale covers it (two for nvfp4). KIND is a compile-time constant: each kernel is compiled once a kind. */
#ifndef MX_KERNELS_QUANT_H
#define MX_KERNELS_QUANT_H
#include "product.h"
#include "args.h"

/* kind = what the host calls mx_gpu_kind (gpu.h of the backend): dense types, then affine by bits, then the floating formats. */
enum { K_F32, K_F16, K_BF16, K_A2, K_A3, K_A4, K_A5, K_A6, K_A8, K_MXFP4, K_MXFP8, K_NVFP4, N_KIND };
// clang-format off
#define EACH_KIND(X)                                                                                         \
    X(f32, K_F32)                                                                                            \
    X(f16, K_F16) X(bf16, K_BF16) X(a2, K_A2) X(a3, K_A3) X(a4, K_A4) X(a5, K_A5) X(a6, K_A6) X(a8, K_A8)    \
        X(mxfp4, K_MXFP4) X(mxfp8, K_MXFP8) X(nvfp4, K_NVFP4)
// clang-format on

typedef mx_k_weights weights; // args.h

INLINE u32 words_of(u32 kind) {
    return kind == K_F32                     ? 32
           : kind == K_F16 || kind == K_BF16 ? 16
           : kind == K_A2                    ? 2
           : kind == K_A3                    ? 3
           : kind == K_A4                    ? 4
           : kind == K_A5                    ? 5
           : kind == K_A6                    ? 6
           : kind == K_A8 || kind == K_MXFP8 ? 8
                                             : 4;
}

INLINE f32 load_scale(const G void *p, u64 i, u32 type) {
    if (type == 2) return bf16_f32(((const G u16 *)p)[i]);
    if (type == 1) return f16_f32(((const G u16 *)p)[i]);
    return ((const G f32 *)p)[i];
}

INLINE f32 e2m1_f32(u32 v) { // 0 .5 1 1.5 2 3 4 6 by the bits of f16 times 2^14
    f32 m = f16_f32((u16)((v & 7u) << 9)) * 16384.0f;
    return v & 8u ? -m : m;
}

/* The words of chunk c of a row whose codes begin at word `at`. Rows are 4-byte aligned. */
INLINE void load_words(u32 *w, const G u32 *p, u32 n) {
    if (n % 4 == 0 && ((u64)p & 15) == 0) {
        UNROLL for (u32 i = 0; i < n / 4; i++) {
            u32x4 v = ((const G u32x4 *)p)[i];
            u32 a = v.x, b = v.y, c = v.z, d = v.w;
            w[4 * i] = a, w[4 * i + 1] = b, w[4 * i + 2] = c, w[4 * i + 3] = d;
        }
    } else {
        UNROLL for (u32 i = 0; i < n; i++) w[i] = p[i];
    }
}

INLINE u32 code_at(const u32 *w, u32 i, u32 b) { // value i of b bits, a compile-time constant after unrolling
    u32 bit = i * b, word = bit / 32, off = bit % 32;
    u32 v = w[word] >> off;
    if (off + b > 32) v |= w[word + 1] << (32 - off);
    return v & ((1u << b) - 1);
}

/* Chunk c of row `row` as f32: v[i] = value, before scale and bias for affine kinds (these go to *scale and *bias); for all
 * other kinds *scale is 1 and *bias 0, and v is final. */
INLINE void load_chunk(f32 *v, f32 *scale, f32 *bias, weights w, u32 kind, u32 row, u32 c) {
    const u32 n_word = words_of(kind);
    const u64 chunks = w.n_in / 32, at = (u64)row * chunks + c;
    u32 word[32];
    *scale = 1;
    *bias = 0;
    load_words(word, (const G u32 *)w.codes + at * n_word, n_word);
    if (kind == K_F32) {
        UNROLL for (u32 i = 0; i < 32; i++) v[i] = from_bits(word[i]);
    } else if (kind == K_F16) {
        UNROLL for (u32 i = 0; i < 16; i++) v[2 * i] = f16_f32((u16)word[i]),
                                                  v[2 * i + 1] = f16_f32((u16)(word[i] >> 16));
    } else if (kind == K_BF16) {
        UNROLL for (u32 i = 0; i < 16; i++) v[2 * i] = lo_bf16(word[i]), v[2 * i + 1] = hi_bf16(word[i]);
    } else if (kind <= K_A8) {
        const u64 group = ((u64)row * w.n_in + c * 32) >> w.group_shift;
        *scale = load_scale(w.scales, group, w.scale_type);
        *bias = load_scale(w.biases, group, w.scale_type);
        UNROLL for (u32 i = 0; i < 32; i++) v[i] = (f32)code_at(word, i, n_word);
    } else if (kind == K_MXFP4) {
        const f32 s = e8m0_f32(((const G u8 *)w.scales)[at]);
        UNROLL for (u32 i = 0; i < 32; i++) v[i] = e2m1_f32(code_at(word, i, 4)) * s;
    } else if (kind == K_MXFP8) {
        const f32 s = e8m0_f32(((const G u8 *)w.scales)[at]);
        UNROLL for (u32 i = 0; i < 32; i++) v[i] = e4m3_f32((u8)code_at(word, i, 8)) * s;
    } else {
        const f32 s0 = e4m3_f32(((const G u8 *)w.scales)[2 * at]),
                  s1 = e4m3_f32(((const G u8 *)w.scales)[2 * at + 1]);
        UNROLL for (u32 i = 0; i < 32; i++) v[i] = e2m1_f32(code_at(word, i, 4)) * (i < 16 ? s0 : s1);
    }
}

/* The same, with scale and bias applied. */
INLINE void load_values(f32 *v, weights w, u32 kind, u32 row, u32 c) {
    f32 scale, bias;
    load_chunk(v, &scale, &bias, w, kind, row, c);
    if (kind < K_A2 || kind > K_A8) return;
    UNROLL for (u32 i = 0; i < 32; i++) v[i] = fma32(v[i], scale, bias);
}

/* ---- pairs for matrix instructions ----------------------------------------------------------------------
 * A chunk as 16 pairs of bf16 (f16: pairs of f16), scale and bias not applied. Which two of the 32 values make a pair is what
 * costs the fewest instructions: pair p is values pair_lo(kind, p) and pair_hi(kind, p). Affine codes of up to 6 bits come out
 * as 128 + q, whose bf16 is 0x4300 | q: offset_of() is what is too much. */
INLINE bool is_affine(u32 kind) { return kind >= K_A2 && kind <= K_A8; }
INLINE bool is_fp4(u32 kind) { return kind == K_MXFP4 || kind == K_NVFP4; }
INLINE bool is_far(u32 kind) {
    return kind == K_A3 || kind == K_A5 || kind == K_A6;
} // pairs of values 16 apart
INLINE f32 offset_of(u32 kind) { return is_affine(kind) && kind != K_A8 ? 128.0f : 0; }

/* The four pairs of slot s are made of values slot_lo() to + 3 and slot_hi() to + 3, eight in all: local pair i is the i-th of
 * these eight by eight_lo(), eight_hi(). */
INLINE u32 slot_lo(u32 kind, u32 s) {
    return kind == K_A2 ? 16 * (s >> 1) + 4 * (s & 1) : is_far(kind) ? 4 * s : 8 * s;
}
INLINE u32 slot_hi(u32 kind, u32 s) { return slot_lo(kind, s) + (kind == K_A2 ? 8 : is_far(kind) ? 16 : 4); }
INLINE u32 eight_lo(u32 kind, u32 i) {
#if defined(__AMDGPU__)
    if (is_fp4(kind)) return 4 * (i & 1) + (i >> 1); // (0, 2) (4, 6) (1, 3) (5, 7)
#endif
    return kind == K_A2 || kind == K_A4 || is_far(kind) || is_fp4(kind) ? i : 2 * i;
}
INLINE u32 eight_hi(u32 kind, u32 i) {
#if defined(__AMDGPU__)
    if (is_fp4(kind)) return eight_lo(kind, i) + 2;
#endif
    return kind == K_A2 || kind == K_A4 || is_far(kind) || is_fp4(kind) ? i + 4 : 2 * i + 1;
}
INLINE u32 pair_lo(u32 kind, u32 p) {
    const u32 s = p / 4, k = eight_lo(kind, p % 4);
    return k < 4 ? slot_lo(kind, s) + k : slot_hi(kind, s) + k - 4;
}
INLINE u32 pair_hi(u32 kind, u32 p) {
    const u32 s = p / 4, k = eight_hi(kind, p % 4);
    return k < 4 ? slot_lo(kind, s) + k : slot_hi(kind, s) + k - 4;
}

/* Words of a chunk by the widest loads that its alignment allows: 16 bytes, for 2 and 6 bits 8, for 3 and 5 bits 4. */
INLINE void load_code(u32 *w, u32 kind, const G void *p) {
    const u32 n = words_of(kind);
    if (n % 4 == 0) {
        UNROLL for (u32 i = 0; i < n / 4; i++) four(w + 4 * i, ((const G u32x4 *)p)[i]);
    } else if (n % 2 == 0) {
        UNROLL for (u32 i = 0; i < n / 2; i++) {
            u32x2 v = ((const G u32x2 *)p)[i];
            u32 a = v.x, b = v.y;
            w[2 * i] = a, w[2 * i + 1] = b;
        }
    } else {
        UNROLL for (u32 i = 0; i < n; i++) w[i] = ((const G u32 *)p)[i];
    }
}

INLINE u32 from_bit(const u32 *w, u32 n,
                    u32 bit) {              // 16 bits from this bit on, or those to the end of the n words
    const u32 i = bit / 32, off = bit % 32; // constants after unrolling
    return off > 16 && i + 1 < n ? w[i] >> off | w[i + 1] << (32 - off) : w[i] >> off;
}

INLINE void unpack(u32 *a, const u32 *w, u32 kind) {
    if (kind == K_F16 || kind == K_BF16) {
        UNROLL for (u32 i = 0; i < 16; i++) a[i] = w[i];
    } else if (kind == K_A2) { // values i and i + 8 of a word
        UNROLL for (u32 i = 0; i < 16; i++) a[i] = and_or(w[i / 8] >> 2 * (i % 8), 0x00030003u, 0x43004300u);
    } else if (kind == K_A4) { // values i and i + 4 of a word
        UNROLL for (u32 i = 0; i < 16; i++) a[i] = and_or(w[i / 4] >> 4 * (i % 4), 0x000F000Fu, 0x43004300u);
    } else if (
        is_far(
            kind)) { // 16 bits hold `fit` whole codes: such a window of either half of the chunk side by side
        const u32 b = words_of(kind), fit = 16 / b, mask = ((1u << b) - 1) * 0x00010001u;
        UNROLL for (u32 k = 0; k * fit < 16; k++) {
            const u32 both =
                pick(from_bit(w, b, k * fit * b), from_bit(w, b, (16 + k * fit) * b), 0x05040100u);
            UNROLL for (u32 i = 0; i < fit; i++) if (k * fit + i < 16) a[k * fit + i] =
                and_or(both >> b * i, mask, 0x43004300u);
        }
    } else if (kind == K_A8) { // by way of f32, whose upper half is exact
        UNROLL for (u32 i = 0; i < 16; i++) {
            f32 v[2];
            UNROLL for (u32 k = 0; k < 2; k++) {
                const u32 byte = 2 * (i % 2) + k;
#if defined(__AMDGPU__)
                v[k] = (f32)(w[i / 2] >> 8 * byte & 0xFFu);
#else
                v[k] = from_bits(pick(w[i / 2], 0x4B000000u, 0x07050400u + byte)) - 8388608.0f; // 2^23 + q
#endif
            }
            a[i] = tops(bits(v[0]), bits(v[1]));
        }
    } else if (kind == K_MXFP8) {
        UNROLL for (u32 i = 0; i < 16; i++) {
#if defined(__AMDGPU__)
            f32 v[2];
            UNROLL for (u32 k = 0; k < 2; k++) {
                const u32 byte = w[i / 2] >> 8 * (2 * (i % 2) + k);
                v[k] = from_bits((byte << 24 & 0x80000000u) | (byte << 20 & 0x07F00000u)) * 0x1p120f;
            }
            a[i] = tops(bits(v[0]), bits(v[1]));
#else
            const u32 v = pick(w[i / 2], 0, i % 2 ? 0x03040204u : 0x01040004u);
            a[i] = fma_bf16x2(and_or(v, 0x80008000u, v >> 4 & 0x07F007F0u), 0x7B807B80u,
                              0x80008000u);      // times 2^120
#endif
        }
    } else { // e2m1
        UNROLL for (u32 j = 0; j < 4; j++) {
#if defined(__AMDGPU__)
            UNROLL for (u32 odd = 0; odd < 2; odd++) { // the bytes of bf16 by table
                const u32 v = odd ? w[j] >> 4 : w[j], sel = v & 0x07070707u;
                const u32 low = pick(0xC0800000u, 0xC0804000u, sel);
                const u32 high = pick(0x3F3F3F00u, 0x40404040u, sel) | (v << 4 & 0x80808080u);
                a[4 * j + 2 * odd] = pick(low, high, 0x05010400u);
                a[4 * j + 2 * odd + 1] = pick(low, high, 0x07030602u);
            }
#else
            UNROLL for (u32 i = 0; i < 4; i++) { // as bf16's exponent and mantissa, times 2^126
                const u32 m = i == 0 ? w[j] << 6 : i == 1 ? w[j] << 2 : i == 2 ? w[j] >> 2 : w[j] >> 6;
                a[4 * j + i] = fma_bf16x2(and_or(w[j] << (12 - 4 * i), 0x80008000u, m & 0x01C001C0u),
                                          0x7E807E80u, 0x80008000u);
            }
#endif
        }
    }
}

/* One chunk's scale as it lies in memory, and as f32; nvfp4 has two, for the first 16 values and for the rest. */
INLINE u32 raw_scale(const G void *p, u64 i, u32 type) {
    return type == 0 ? ((const G u32 *)p)[i] : ((const G u16 *)p)[i];
}
INLINE f32 scale_of_raw(u32 raw, u32 type) {
    return type == 0 ? from_bits(raw) : type == 1 ? f16_f32((u16)raw) : lo_bf16(raw);
}
INLINE f32 e8m0_of_raw(u32 raw) { return e8m0_f32((u8)raw); }

/* Pairs with scale and bias applied, rounded to bf16: what matrix products of many rows take. */
INLINE void scale_pairs(u32 *a, u32 kind, u32 type, u32 s, u32 b) {
    if (kind <= K_BF16) return;
#if !defined(__AMDGPU__)
    if (is_affine(kind) && type == 2) { // all in packed bf16, with one rounding
        const u32 ss = s * 0x00010001u, bb = b * 0x00010001u;
        UNROLL for (u32 i = 0; i < 16; i++) {
            if (kind != K_A8) a[i] = fma_bf16x2(a[i], 0x3F803F80u, 0xC300C300u); // less 128: exact
            a[i] = fma_bf16x2(a[i], ss, bb);
        }
        return;
    }
#endif
    f32 mul[2], add = 0;
    if (is_affine(kind)) {
        mul[0] = mul[1] = scale_of_raw(s, type);
        add = scale_of_raw(b, type);
    } else if (kind == K_NVFP4) {
        mul[0] = e4m3_f32((u8)s);
        mul[1] = e4m3_f32((u8)(s >> 8));
    } else {
        mul[0] = mul[1] = e8m0_of_raw(s);
    }
    const f32 off = offset_of(kind);
    UNROLL for (u32 i = 0; i < 16; i++) {
        f32 lo = lo_bf16(a[i]), hi = hi_bf16(a[i]);
        if (is_affine(kind))
            lo = fma32(lo - off, mul[0], add), hi = fma32(hi - off, mul[0], add);
        else
            lo *= mul[i / 8], hi *= mul[i / 8];
        a[i] = near_bf16(lo, hi);
    }
}

#endif
