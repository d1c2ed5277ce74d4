/* gpu.h - the little language of the kernels: C23 for AMD (wave32) and NVIDIA GPUs from one source.
 *
 * Numbers and memory spaces; lanes, waves and blocks; reductions; barriers that order shared memory (the compiler header's own barrier
 * does not on gfx11); 16-byte loads; the codes of quantized weights; matrix instructions in mma.h.
 *
 * Rules, which tests/isa and the lint hold: no `/` or `%` by values known only at run time (the compiler's 24-bit shortcut is
 * wrong near 2^24: pass shifts, or let the host divide); no __builtin_bit_cast of a vector's element (it reads element 0: copy
 * to a scalar first); local arrays are indexed by constants after unrolling (else they go to scratch memory); no raw
 * __gpu_sync_threads(). */
#ifndef MX_KERNELS_GPU_H
#define MX_KERNELS_GPU_H
#include <gpuintrin.h>

typedef uint8_t u8;
typedef int8_t i8;
typedef uint16_t u16;
typedef int16_t i16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef int64_t i64;
typedef float f32;
typedef _Float16 f16;
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef f32 f32x2 __attribute__((ext_vector_type(2)));
typedef f32 f32x4 __attribute__((ext_vector_type(4)));
typedef f32 f32x8 __attribute__((ext_vector_type(8)));

#define G __gpu_global
#define LDS __gpu_local
#define SHARED                                                                                               \
    static __gpu_local __attribute__((loader_uninitialized)) // SHARED f32 room[32]; in a kernel: not zeroed
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")

enum { WAVE = 32 }; // lanes; gfx11 and gfx12 are built for wave32

/* ---- where we are ------------------------------------------------------------------------------------- */
INLINE u32 lane(void) { return __gpu_lane_id(); }
INLINE u32 thread(void) { return __gpu_thread_id_x(); }
INLINE u32 threads(void) { return __gpu_num_threads_x(); }
INLINE u32 wave(void) { return __gpu_thread_id_x() / WAVE; }
INLINE u32 n_wave(void) { return __gpu_num_threads_x() / WAVE; }
INLINE u32 bx(void) { return __gpu_block_id_x(); }
INLINE u32 by(void) { return __gpu_block_id_y(); }
INLINE u32 bz(void) { return __gpu_block_id_z(); }

/* All threads of the block have written shared memory before any goes on to read it. */
INLINE void barrier(void) {
#if defined(__AMDGPU__)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_waitcnt(
        0xFC07); // lgkmcnt(0): LLVM 22 drops the fence's own wait in loops whose first round needs none
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
    __syncthreads();
#endif
}
#undef __gpu_sync_threads
#define __gpu_sync_threads do_not_use_it_does_not_order_shared_memory

/* ---- the launch before and the next ------------------------------------------------------------------
 * Where the device can, a launch begins while the one before it ends. let_next_start() allows that for the next one;
 * after_previous() waits until the one before has finished and its writes are seen. A kernel that is launched so calls both,
 * on every path; before after_previous() it reads only what no other launch writes (weights), and writes nothing. */
INLINE void let_next_start(void) {
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
INLINE void after_previous(void) {
#if defined(__NVPTX__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- blocks that finish together -------------------------------------------------------------------------
 * Counts the blocks that come here, n in all; true in the last one, for all its threads, and then what the others wrote before is
 * seen. The count returns to 0 for the next launch. `flag` is shared memory of one u32. */
INLINE void device_fence(void) {
#if defined(__NVPTX__)
    asm volatile("fence.acq_rel.gpu;" ::: "memory"); // clang's own has system scope
#else
    __scoped_atomic_thread_fence(__ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
#endif
}
INLINE bool last_block(G u32 *count, u32 n, LDS u32 *flag) {
#if defined(__AMDGPU__)
    device_fence(); // a barrier does not wait for a wave's stores
#endif
    barrier();
    if (thread() == 0) {
        device_fence();
        const u32 before = __scoped_atomic_fetch_add(count, 1u, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
        if (before + 1 == n) __scoped_atomic_store_n(count, 0u, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
        *flag = before + 1 == n;
        device_fence();
    }
    barrier();
    const bool last = *flag;
#if defined(__AMDGPU__)
    if (last) device_fence(); // what this wave has cached
#endif
    return last;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */
INLINE u32 bits(f32 v) { return __builtin_bit_cast(u32, v); }
INLINE f32 from_bits(u32 v) { return __builtin_bit_cast(f32, v); }
INLINE f32 bf16_f32(u16 v) { return from_bits((u32)v << 16); }
INLINE u16 f32_bf16(f32 v) { // to nearest even; NaN stays NaN
    u32 u = bits(v);
    u32 r = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return (u16)((u & 0x7FFFFFFFu) > 0x7F800000u ? u >> 16 | 0x40u : r);
}
INLINE f32 f16_f32(u16 v) { return (f32) __builtin_bit_cast(f16, v); }
INLINE u16 f32_f16(f32 v) { return __builtin_bit_cast(u16, (f16)v); }
INLINE f32 lo_bf16(u32 pair) { return from_bits(pair << 16); }
INLINE f32 hi_bf16(u32 pair) { return from_bits(pair & 0xFFFF0000u); }
INLINE u32 pair_bf16(f32 lo, f32 hi) { return (u32)f32_bf16(lo) | (u32)f32_bf16(hi) << 16; }
INLINE f32 e8m0_f32(u8 v) { return from_bits(v == 0 ? 0x00400000u : v == 255 ? 0x7FC00000u : (u32)v << 23); }
INLINE f32 e4m3_f32(u8 v) { // E4M3FN by way of f16's bits: both have a bias that a factor of 2^8 makes up for
    u32 magnitude = v & 0x7Fu;
    f32 r = f16_f32((u16)(magnitude << 7)) * 256.0f;
    r = magnitude == 0x7Fu ? from_bits(0x7FC00000u) : r;
    return v & 0x80u ? -r : r;
}

INLINE f32 fast_exp2(f32 x) {
#if defined(__AMDGPU__)
    return __builtin_amdgcn_exp2f(x);
#else
    return __nvvm_ex2_approx_ftz_f(x);
#endif
}
INLINE f32 fast_exp(f32 x) { return fast_exp2(x * 1.44269504f); }
INLINE f32 fast_rcp(f32 x) {
#if defined(__AMDGPU__)
    return __builtin_amdgcn_rcpf(x);
#else
    return __nvvm_rcp_approx_ftz_f(x);
#endif
}
INLINE f32 fast_rsqrt(f32 x) {
#if defined(__AMDGPU__)
    return __builtin_amdgcn_rsqf(x);
#else
    return __nvvm_rsqrt_approx_ftz_f(x);
#endif
}
INLINE f32 fma32(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
INLINE f32 max32(f32 a, f32 b) { return __builtin_fmaxf(a, b); }
INLINE f32 min32(f32 a, f32 b) { return __builtin_fminf(a, b); }
INLINE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }

/* ---- lanes --------------------------------------------------------------------------------------------- */
INLINE f32 shuffle_xor(f32 v, u32 mask) {
#if defined(__NVPTX__)
    return __nvvm_shfl_sync_bfly_f32(0xFFFFFFFFu, v, (i32)mask, 31);
#else
    return from_bits((u32)__builtin_amdgcn_ds_bpermute((i32)((lane() ^ mask) << 2), (i32)bits(v)));
#endif
}
INLINE u32 shuffle_xor_u32(u32 v, u32 mask) { return bits(shuffle_xor(from_bits(v), mask)); }
INLINE u32 shuffle_u32(u32 v, u32 from) {
#if defined(__NVPTX__)
    return (u32)__nvvm_shfl_sync_idx_i32(0xFFFFFFFFu, (i32)v, (i32)from, 31);
#else
    return (u32)__builtin_amdgcn_ds_bpermute((i32)(from << 2), (i32)v);
#endif
}
INLINE f32 shuffle(f32 v, u32 from) { return from_bits(shuffle_u32(bits(v), from)); }

/* Every lane gets the result; every lane must take part. */
INLINE f32 wave_sum(f32 v) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) v += shuffle_xor(v, m);
    return v;
}
INLINE f32 wave_max(f32 v) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) v = max32(v, shuffle_xor(v, m));
    return v;
}

/* Over the block; `room` is shared memory of one f32 a wave. Two barriers. */
INLINE f32 block_sum(f32 v, LDS f32 *room) {
    v = wave_sum(v);
    barrier();
    if (lane() == 0) room[wave()] = v;
    barrier();
    f32 sum = 0;
    for (u32 i = 0; i < n_wave(); i++) sum += room[i];
    return sum;
}
INLINE f32 block_max(f32 v, LDS f32 *room) {
    v = wave_max(v);
    barrier();
    if (lane() == 0) room[wave()] = v;
    barrier();
    f32 top = room[0];
    for (u32 i = 1; i < n_wave(); i++) top = max32(top, room[i]);
    return top;
}

#endif
