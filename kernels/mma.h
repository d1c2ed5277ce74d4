/* mma.h - matrix instructions of a wave on 16-bit numbers with f32 sums, and copies to shared memory that overlap work.
 *
 * NVIDIA (sm_80): mma m16n8k16. With g = lane / 4, c = lane % 4:
 *   A 16 x 16, 4 words: {g, 2c}, {g + 8, 2c}, {g, 2c + 8}, {g + 8, 2c + 8} (row, first of two columns)
 *   B 16 x 8, 2 words: {2c, g}, {2c + 8, g} (first of two rows, column)    C 16 x 8: (g, 2c), (g, 2c + 1), (g + 8, 2c), (g + 8, 2c + 1)
 * AMD (gfx11): WMMA 16 x 16 x 16. Lanes 16 to 31 repeat lanes 0 to 15 in A and B, and every lane takes part:
 *   A: lane % 16 is the row, B: the column, 16 values in 8 words    C: value r is row 2 r + lane / 16, column lane % 16 */
#ifndef MX_KERNELS_MMA_H
#define MX_KERNELS_MMA_H
#include "gpu.h"

#if defined(__NVPTX__)

INLINE void mma(const bool bf16, f32 *c, const u32 *a, const u32 *b) {
    if (bf16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
INLINE u32 lds_address(const LDS void *p) { return (u32)(u64)p; }
/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. _t: each is transposed on the way. */
INLINE void load_4(u32 *r, const LDS void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(lds_address(p))
                 : "memory");
}
INLINE void load_4_t(u32 *r, const LDS void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(lds_address(p))
                 : "memory");
}
INLINE u32 pair16(const bool bf16, f32 lo, f32 hi) {
    u32 r;
    if (bf16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
/* 16 bytes to shared memory, or zeros; there after copies_done() and a barrier. */
INLINE void copy_16(LDS void *to, const G void *from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(lds_address(to)), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
INLINE void copies_done(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

#else

typedef i16 i16x16 __attribute__((ext_vector_type(16)));
typedef f16 f16x16 __attribute__((ext_vector_type(16)));
typedef u32 u32x8 __attribute__((ext_vector_type(8)));

INLINE f32x8 mma(const bool bf16, u32x8 a, u32x8 b, f32x8 c) {
    if (bf16)
        return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(i16x16, a),
                                                           __builtin_bit_cast(i16x16, b), c);
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(f16x16, a),
                                                      __builtin_bit_cast(f16x16, b), c);
}
INLINE u32x8 load_32(const LDS u16 *p) { // 16 values, 16-byte aligned
    const u32x4 a = *(const LDS u32x4 *)p, b = *(const LDS u32x4 *)(p + 8);
    return (u32x8){a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}
INLINE u32 pair16(const bool bf16, f32 lo,
                  f32 hi) { // a NaN keeps its upper bits, and so stays NaN if it is a usual one
    if (!bf16) return (u32)f32_f16(lo) | (u32)f32_f16(hi) << 16;
    const u32 a = bits(lo), b = bits(hi);
    return (a + 0x7FFFu + (a >> 16 & 1)) >> 16 | ((b + 0x7FFFu + (b >> 16 & 1)) & 0xFFFF0000u);
}

#endif
#endif
