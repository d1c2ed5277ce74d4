/* proof_kernel.c - a kernel for each line of proof.def, and some with faults of purpose. */
#include "../../kernels/gpu.h"

/* in [set][3][32], out [set][32] of 64 bits; a block of one wave per set */
#define KERNEL(name) __gpu_kernel void name(G u64 *out, const G u32 *in)
#define READ                                                                                                 \
    const G u32 *p = in + bx() * 96 + lane();                                                                \
    u32 a = p[0], b = p[32], c = p[64];                                                                      \
    out += bx() * 32 + lane()
#define CLOBBER "vcc", "s20", "s21", "v30", "v31", "scc"
#define X(name, text, expected)                                                                              \
    KERNEL(t_##name) {                                                                                       \
        READ;                                                                                                \
        u32 d;                                                                                               \
        asm volatile(text : "=&v"(d) : "v"(a), "v"(b), "v"(c) : CLOBBER);                                    \
        *out = d;                                                                                            \
    }
#define W(name, text, expected)                                                                              \
    KERNEL(t_##name) {                                                                                       \
        READ;                                                                                                \
        u64 d, q = a | (u64)b << 32;                                                                         \
        asm volatile(text : "=&v"(d) : "v"(q), "v"(b), "v"(c) : CLOBBER);                                    \
        *out = d;                                                                                            \
    }
#include "proof.def"

/* What the compiler makes of divisions and roots must be right to the last bit. */
KERNEL(p_divide) {
    READ;
    (void)c;
    *out = bits(from_bits(a) / from_bits(b));
}
KERNEL(p_sqrt) {
    READ;
    (void)b, (void)c;
    *out = bits(__builtin_sqrtf(from_bits(a)));
}
KERNEL(p_half) {
    READ;
    (void)c;
    *out = f32_f16(f16_f32((u16)a) + f16_f32((u16)b)) | (u32)f32_f16(from_bits(c)) << 16;
}
KERNEL(p_divide_u) {
    READ;
    *out = ((u64)a << 32 | c) / ((u64)b | 1);
}

typedef u16 u16x16 __attribute__((ext_vector_type(16)));
typedef i32 i32x8 __attribute__((ext_vector_type(8)));
typedef i32 i32x4 __attribute__((ext_vector_type(4)));
typedef f16 f16x16 __attribute__((ext_vector_type(16)));
typedef i16 i16x16 __attribute__((ext_vector_type(16)));
/* A[16][16], B[16][16] of f16, bf16 or bytes, row-major; D[16][16] of 32 bits */
__gpu_kernel void m_f16(G f32 *d, const G f16 *a, const G f16 *b) {
    f16x16 x, y;
    f32x8 r = {};
    for (u32 k = 0; k < 16; k++) x[k] = a[lane() % 16 * 16 + k], y[k] = b[k * 16 + lane() % 16];
    r = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, r);
    UNROLL for (u32 i = 0; i < 8; i++) d[(2 * i + lane() / 16) * 16 + lane() % 16] = r[i];
}
__gpu_kernel void m_bf16(G f32 *d, const G i16 *a, const G i16 *b) {
    i16x16 x, y;
    f32x8 r = {};
    for (u32 k = 0; k < 16; k++) x[k] = a[lane() % 16 * 16 + k], y[k] = b[k * 16 + lane() % 16];
    r = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, r);
    UNROLL for (u32 i = 0; i < 8; i++) d[(2 * i + lane() / 16) * 16 + lane() % 16] = r[i];
}
__gpu_kernel void m_iu8(G i32 *d, const G i32x4 *a, const G i32x4 *b) { // B is given by columns
    i32x8 r = {};
    r = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a[lane() % 16], true, b[lane() % 16], r, false);
    UNROLL for (u32 i = 0; i < 8; i++) d[(2 * i + lane() / 16) * 16 + lane() % 16] = r[i];
}
__gpu_kernel void m_torn(G f32 *d, const G f16 *a, const G f16 *b) { // lanes 16-31 hold something else
    f16x16 x, y;
    f32x8 r = {};
    for (u32 k = 0; k < 16; k++) x[k] = a[lane() * 8 + k], y[k] = b[k * 16 + lane() % 16];
    r = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, r);
    d[lane()] = r[0];
}

/* ---- faults ---------------------------------------------------------------------------------------------- */
KERNEL(f_beyond) {
    READ;
    (void)b, (void)c;
    out[1 << 20] = a;
}
KERNEL(f_null) {
    READ;
    (void)a, (void)b, (void)c;
    *out = *(const volatile G u32 *)(u64)(lane() * 4);
}
KERNEL(f_unknown) {
    READ;
    (void)a, (void)b, (void)c;
    asm volatile("s_sethalt 1");
    *out = 0;
}
KERNEL(f_early) {
    READ;
    u32 d;
    (void)a, (void)b, (void)c;
    asm volatile("global_load_b32 %0, %1, off\n\tv_add_nc_u32 %0, %0, 1" : "=&v"(d) : "v"(p));
    *out = d;
}
KERNEL(f_early_scalar) {
    READ;
    u32 d;
    (void)a, (void)b, (void)c;
    asm volatile("s_load_b32 s20, %1, null\n\tv_mov_b32 %0, s20" : "=v"(d) : "s"(in) : "s20");
    *out = d;
}
KERNEL(f_in_order) { // the older of two loads may be used when one is left
    READ;
    u32 d, e;
    (void)a, (void)b, (void)c;
    asm volatile(
        "global_load_b32 %0, %2, off\n\tglobal_load_b32 %1, %2, off offset:128\n\ts_waitcnt vmcnt(1)\n\tv_add_nc_u32 %0, %0, 1\n\ts_waitcnt vmcnt(0)"
        : "=&v"(d), "=&v"(e)
        : "v"(p));
    *out = d + e;
}
KERNEL(f_barrier) {
    SHARED u32 room[64];
    READ;
    (void)b, (void)c;
    asm volatile("ds_store_b32 %0, %1\n\ts_barrier\n\ts_waitcnt lgkmcnt(0)" ::"v"((u32)(u64)(room + lane())),
                 "v"(a)
                 : "memory");
    *out = room[63 - lane()];
}
/* Two waves: with the race option a missing barrier is a fault. */
KERNEL(f_race) {
    SHARED u32 room[64];
    room[thread()] = in[thread()];
    out[thread()] = room[63 - thread()];
}
KERNEL(f_lds_room) {
    SHARED u32 room[64];
    READ;
    (void)b, (void)c;
    *(volatile LDS u32 *)(room + lane()) = a;
    *out = *(volatile LDS u32 *)(room + 1000 + lane());
}
__gpu_kernel void a_histogram(G u32 *count, const G u32 *in) { // atomics of many blocks
    SHARED u32 room[16];
    if (thread() < 16) room[thread()] = 0;
    barrier();
    __scoped_atomic_fetch_add(&room[in[bx() * threads() + thread()] & 15], 1u, __ATOMIC_RELAXED,
                              __MEMORY_SCOPE_WRKGRP);
    barrier();
    if (thread() < 16)
        __scoped_atomic_fetch_add(&count[thread()], room[thread()], __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
KERNEL(a_scratch) { // an array that cannot stay in registers
    READ;
    volatile u32 room[64];
    for (u32 j = 0; j < 64; j++) room[j] = a + j;
    *out = room[b & 63] + c;
}
