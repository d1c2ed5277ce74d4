/* product.h - 16 x 16 x 32 products of bf16 or f16 with f32 sums, for the matrix kernels, and the packed numbers they take.
 *
 * Numbers travel as pairs, two 16-bit values in a u32. A product sums over 32 values of k, 16 pairs; as a sum has no order, the
 * pairs may be any permutation of the 32 values as long as both factors use the same one (quant.h chooses it by kind).
 *
 * A factor is 16 rows (of x, or of W, both stored with k along the row). Who holds what:
 *   NVIDIA  (mma.m16n8k16; g = lane / 4, t = lane % 4)  rows g and g + 8, pairs 4t to 4t + 3: `lo` and `hi`
 *   gfx11   (wmma 16x16x16)  row lane % 16, 8 pairs at a time; lanes 16 to 31 repeat lanes 0 to 15
 *   gfx12   the same here; each half of the wave passes on the half that it is asked for
 * and of the 16 x 16 result, 8 sums a lane: row_of_sum() and col_of_sum() tell which. */
#ifndef MX_KERNELS_PRODUCT_H
#define MX_KERNELS_PRODUCT_H
#include "gpu.h"

#if defined(__AMDGPU__)
typedef i16 s16x16 __attribute__((ext_vector_type(16)));
typedef i16 s16x8 __attribute__((ext_vector_type(8)));
typedef f16 h16x16 __attribute__((ext_vector_type(16)));
typedef f16 h16x8 __attribute__((ext_vector_type(8)));
typedef u32 w32x8 __attribute__((ext_vector_type(8)));
#endif

/* ---- one instruction each (raw) -------------------------------------------------------------------------- */
#if defined(__AMDGPU__)
/* Bytes of {hi, lo}: selector byte i names the byte of result byte i, 0 to 3 in lo, 4 to 7 in hi. */
INLINE u32 pick(u32 lo, u32 hi, u32 selector) { return __builtin_amdgcn_perm(hi, lo, selector); }
INLINE u32 tops(u32 lo, u32 hi) { return pick(lo, hi, 0x07060302u); } // upper halves of both: f32 cut to bf16
INLINE u32 near_bf16(f32 lo, f32 hi) {
    return tops(bits(lo) + 0x8000u, bits(hi) + 0x8000u);
} // ties away from 0
INLINE u32 and_or(u32 v, u32 mask, u32 set) { return (v & mask) | set; }
/* d[16 x 16] += a b^T over 16 values of k; a and b: 8 pairs of row lane % 16 */
INLINE void wmma16(f32 *d, const u32 *a, const u32 *b, bool half) {
    f32x8 c = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
#if defined(__GFX12__)
    const bool upper = lane() >= 16;
    u32x4 s, t;
    s.x = upper ? a[4] : a[0], s.y = upper ? a[5] : a[1], s.z = upper ? a[6] : a[2],
    s.w = upper ? a[7] : a[3];
    t.x = upper ? b[4] : b[0], t.y = upper ? b[5] : b[1], t.z = upper ? b[6] : b[2],
    t.w = upper ? b[7] : b[3];
    c = half ? __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(h16x8, s),
                                                                __builtin_bit_cast(h16x8, t), c)
             : __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(s16x8, s),
                                                                 __builtin_bit_cast(s16x8, t), c);
#else
    w32x8 s = {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]},
          t = {b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]};
    c = half ? __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(h16x16, s),
                                                          __builtin_bit_cast(h16x16, t), c)
             : __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(s16x16, s),
                                                           __builtin_bit_cast(s16x16, t), c);
#endif
    f32 r0 = c.s0, r1 = c.s1, r2 = c.s2, r3 = c.s3, r4 = c.s4, r5 = c.s5, r6 = c.s6, r7 = c.s7;
    d[0] = r0, d[1] = r1, d[2] = r2, d[3] = r3, d[4] = r4, d[5] = r5, d[6] = r6, d[7] = r7;
}
#else
INLINE u32 pick(u32 lo, u32 hi, u32 selector) { // as above; PTX takes the byte numbers as nibbles
    return (u32)__nvvm_prmt(lo, hi,
                            (selector & 7) | (selector >> 4 & 0x70) | (selector >> 8 & 0x700) |
                                (selector >> 12 & 0x7000));
}
INLINE u32 tops(u32 lo, u32 hi) { return pick(lo, hi, 0x07060302u); }
INLINE u32 and_or(u32 v, u32 mask,
                  u32 set) { // one instruction, which takes one constant: the other waits in a register
    u32 r;
    __asm__("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(v), "r"(mask), "r"(set));
    return r;
}
INLINE u32 near_bf16(f32 lo, f32 hi) {
    u32 r;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
INLINE u32 fma_bf16x2(u32 a, u32 b, u32 c) { // one rounding; subnormal numbers count
    u32 r;
    __asm__("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
/* d[16 x 8] += a b^T over 16 values of k: d = (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1); a0, a2 of row g, a1, a3 of row
 * g + 8; b of column g; a0, a1, b0 one pair of k, a2, a3, b1 another */
INLINE void mma16(f32 *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, bool half) {
    if (half)
        __asm__(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        __asm__(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif
/* The compiler moves nothing across: it would otherwise start so early on what comes next that registers run out. */
INLINE void stay(void) {
#if defined(__AMDGPU__)
    __builtin_amdgcn_sched_barrier(0);
#endif
}
/* ---- end of raw ------------------------------------------------------------------------------------------- */

/* Two f32 as a pair of bf16, or of f16 (too large a number becomes the largest; NaN stays). */
INLINE u32 pair_of(f32 lo, f32 hi, bool half) {
    if (!half) return near_bf16(lo, hi);
    lo = lo > 65504.0f ? 65504.0f : lo < -65504.0f ? -65504.0f : lo;
    hi = hi > 65504.0f ? 65504.0f : hi < -65504.0f ? -65504.0f : hi;
    return (u32)f32_f16(lo) | (u32)f32_f16(hi) << 16;
}

/* ---- tiles in shared memory -------------------------------------------------------------------------------
 * A tile is rows of 32 values = 4 slots of 16 bytes = 4 pairs each. Slot s of row r lies at 4r + (s ^ (r / 2) % 4): both the
 * rows that 8 lanes write and those that 8 lanes read then fall on 8 different groups of banks. */
INLINE u32 slot_at(u32 row, u32 slot) { return 4 * row + (slot ^ (row >> 1 & 3)); }

#if defined(__AMDGPU__)
enum { FACTOR_PARTS = 2 }; // 16 of the 32 values of k at a time, to spare registers
typedef struct {
    u32 v[8];
} factor;
#else
enum { FACTOR_PARTS = 1 };
typedef struct {
    u32 lo[4], hi[4];
} factor;
#endif

INLINE void four(u32 *out, u32x4 v) {
    u32 a = v.x, b = v.y, c = v.z, d = v.w;
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
}

INLINE factor load_factor(const LDS u32x4 *tile, u32 row, u32 part) { // of rows row to row + 15
    factor f;
#if defined(__AMDGPU__)
    const u32 r = row + (lane() & 15);
    UNROLL for (u32 s = 0; s < 2; s++) four(f.v + 4 * s, tile[slot_at(r, 2 * part + s)]);
#else
    (void)part;
    const u32 r = row + (lane() >> 2), t = lane() & 3;
    four(f.lo, tile[slot_at(r, t)]);
    four(f.hi, tile[slot_at(r + 8, t)]);
#endif
    return f;
}

/* sum[8] += a b^T over the values of k of a part */
INLINE void mma_part(f32 *sum, const factor *a, const factor *b, bool half) {
#if defined(__AMDGPU__)
    wmma16(sum, a->v, b->v, half);
#else
    UNROLL for (u32 m = 0; m < 4; m += 2) {
        mma16(sum, a->lo[m], a->hi[m], a->lo[m + 1], a->hi[m + 1], b->lo[m], b->lo[m + 1], half);
        mma16(sum + 4, a->lo[m], a->hi[m], a->lo[m + 1], a->hi[m + 1], b->hi[m], b->hi[m + 1], half);
    }
#endif
}

/* Row (of a) and column (row of b) of sum i of this lane. */
INLINE u32 row_of_sum(u32 i) {
#if defined(__AMDGPU__) && defined(__GFX12__)
    return i + 8 * (lane() >> 4);
#elif defined(__AMDGPU__)
    return 2 * i + (lane() >> 4);
#else
    return (lane() >> 2) + 8 * (i >> 1 & 1);
#endif
}
INLINE u32 col_of_sum(u32 i) {
#if defined(__AMDGPU__)
    (void)i;
    return lane() & 15;
#else
    return 8 * (i >> 2) + 2 * (lane() & 3) + (i & 1);
#endif
}

#endif
