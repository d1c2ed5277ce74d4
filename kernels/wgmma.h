/* wgmma.h - sm_90a: matrix instructions of four waves (a warpgroup) and the copies to shared memory that feed them.
 *
 * d[64 x n] += a[64 x 16] b[n x 16]^T, f32 sums of bf16 or f16. Of the 64 rows, wave w of the four has rows 16 w to 16 w + 15; with
 * g = lane / 4, t = lane % 4:
 *   a  4 registers: (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each two columns
 *   d  n / 2 registers: (g, 8j + 2t) (g, 8j + 2t + 1) (g + 8, 8j + 2t) (g + 8, 8j + 2t + 1) for j < n / 8
 *   b  in shared memory: rows of 128 bytes, the 16-byte slot s of row r at s ^ r % 8; the tile begins at a multiple of 1024 bytes
 * The instructions run on their own: between wgmma_fence() and wgmma_wait() nothing may touch the registers that they use. */
#ifndef MX_KERNELS_WGMMA_H
#define MX_KERNELS_WGMMA_H
#include "gpu.h"

INLINE void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/* v in a register of its own, made before the fence that follows, which nothing writes while an instruction may still read it.
 * `zero` is a 0 that the assembler does not know for one: it would take a plain copy for v itself, which may be overwritten. */
INLINE u32 wgmma_operand(u32 v, u32 zero) {
    u32 r;
    asm volatile("or.b32 %0, %1, %2;" : "=r"(r) : "r"(v), "r"(zero));
    return r;
}
/* The same for what was computed for this instruction alone. */
INLINE void wgmma_own(u32 *v) { asm volatile("" : "+r"(*v)); }
INLINE void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until no more than `left` of the groups that were committed still run: 0 or 1. */
INLINE void wgmma_wait(const u32 left) {
    if (left)
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    else
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* How b lies in shared memory: rows of 128 bytes, groups of 8 rows 1024 bytes apart, slots exchanged over 128 bytes. The 16 columns
 * that come next are 32 bytes on. */
INLINE u64 wgmma_tile(u32 address) { return 1ull << 62 | (u64)(1024 >> 4) << 32 | 1ull << 16 | address >> 4; }

/* The same tile read from the side: its rows are b's columns (k), of which the next 16 are 2048 bytes on; b's rows go on after 64
 * in the next tile, `next` bytes from this one. */
INLINE u64 wgmma_tile_side(u32 address, u32 next) {
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(next >> 4) << 16 | address >> 4;
}

// clang-format off
#define D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D32 D16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define D64 D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D128 D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on
#define O4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define O16(d, i) O4(d, i), O4(d, (i) + 4), O4(d, (i) + 8), O4(d, (i) + 12)
#define O32(d, i) O16(d, i), O16(d, (i) + 16)
#define O64(d, i) O32(d, i), O32(d, (i) + 32)
#define O128(d, i) O64(d, i), O64(d, (i) + 64)
#define WGMMA(n, type, registers, operands)                                                                  \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %[add], 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" registers              \
                 "}, {%[a0], %[a1], %[a2], %[a3]}, %[b], add, 1, 1, %[side]; }"                              \
                 : operands                                                                                  \
                 : [a0] "r"(a[0]), [a1] "r"(a[1]), [a2] "r"(a[2]), [a3] "r"(a[3]), [b] "l"(b),               \
                   [add] "n"((u32)(add)), [side] "n"((u32)(side)))

/* n: 32, 64, 128 or 256; d[n / 2]. add: to what d holds, or d = the product. side: b's tile is as wgmma_tile_side() says. */
INLINE void wgmma_any(f32 *d, const u32 *a, u64 b, const u32 n, const bool half, const bool add,
                      const bool side) {
    if (half) {
        if (n == 32) WGMMA(32, "f16", D16, O16(d, 0));
        if (n == 64) WGMMA(64, "f16", D32, O32(d, 0));
        if (n == 128) WGMMA(128, "f16", D64, O64(d, 0));
        if (n == 256) WGMMA(256, "f16", D128, O128(d, 0));
    } else {
        if (n == 32) WGMMA(32, "bf16", D16, O16(d, 0));
        if (n == 64) WGMMA(64, "bf16", D32, O32(d, 0));
        if (n == 128) WGMMA(128, "bf16", D64, O64(d, 0));
        if (n == 256) WGMMA(256, "bf16", D128, O128(d, 0));
    }
}

INLINE void wgmma(f32 *d, const u32 *a, u64 b, const u32 n, const bool half) {
    wgmma_any(d, a, b, n, half, true, false);
}
/* After wgmma_wait(): d's sums are read, or changed, no earlier than here; before wgmma_fence(): no later. */
INLINE void wgmma_settle(f32 *d, const u32 n) {
    UNROLL for (u32 i = 0; i < n / 2; i++) asm volatile("" : "+f"(d[i]));
}

/* ---- barriers in shared memory that copies arrive at ------------------------------------------------------
 * A barrier's phase ends when `count` have arrived and all bytes that were announced are there; the next begins by itself. */
INLINE u32 shared_address(const LDS void *p) { return (u32)(u64)p; }
INLINE void phase_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
/* What phase_init() has written is seen by copies; a barrier of the block comes after it. */
INLINE void phases_ready(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void phase_arrive(u32 at) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
/* Until the phase of this parity (0 for the first) has ended. */
INLINE void phase_wait(u32 at, u32 parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again; }" ::"r"(at),
                 "r"(parity)
                 : "memory");
}
/* One thread: copy n bytes (a multiple of 16) to shared memory, and arrive with them. */
INLINE void copy_bulk(u32 to, const G void *from, u32 n, u32 at) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;\n\t"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(n), "r"(at)
        : "memory");
}
/* What this thread has written to shared memory, or has had copied there 16 bytes at a time, is seen by matrix instructions. */
INLINE void copies_seen(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void converge(void) { asm volatile("bar.warp.sync 0xFFFFFFFF;" ::: "memory"); }

#endif
