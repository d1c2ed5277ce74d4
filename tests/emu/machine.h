/* machine.h - the state of a wave and how instructions reach it: for run.c and ops_*.c. */
#ifndef EMU_MACHINE_H
#define EMU_MACHINE_H
#include "emu.h"
#include <setjmp.h>
#include <string.h>

#define FORCE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)

enum { STOP_NO, STOP_BARRIER, STOP_END };
enum { QUEUE_VMEM, QUEUE_LDS, QUEUE_SMEM, QUEUES };
enum { SHARED_APERTURE = 0x10000, PRIVATE_APERTURE = 0x20000 }; // upper halves of flat addresses

typedef struct {
    struct {
        uint16_t first, n;
    } at[64]; // registers that a load will fill, oldest first
    int n;
} emu_queue;

/* What one thread that runs workgroups keeps. */
typedef struct emu_worker {
    const emu_launch *launch;
    const emu_func *func;
    uint8_t *lds; // of the workgroup that runs
    uint32_t lds_bytes;
    struct {
        uint32_t epoch;
        uint16_t write_wave, pad;
        uint32_t read_epoch;
        uint32_t read_waves;
    } * shadow; // a word of LDS each
    uint32_t epoch;
    emu_wave *waves;
    int n_wave;
    uint8_t *scratch;
    emu_range seen[64]; // ranges that accesses hit, by instruction
    emu_range kernarg;
    uint32_t group[3];
    jmp_buf fault;
    int error;
    char report[1200];
    uint64_t *counts; // how often each op ran, or NULL
    uint64_t lanes, load_bytes, store_bytes, atomic_bytes, smem_bytes, lds_bytes_moved, lines, lds_passes,
        lds_accesses, waves_run, groups_run;
} emu_worker;

struct emu_wave {
    U v[VGPRS + 1]; // the last one is room for a result that must wait
    U sv[SGPRS];    // scalar registers as vectors, kept in step with s
    U t0, t1;       // room for DPP
    uint32_t s[SGPRS];
    uint32_t scc;
    int stop, id;
    const emu_op *pc;
    emu_worker *k;
    uint8_t *scratch; // [LANES][scratch bytes]
    uint64_t pend[6]; // registers of loads on their way
    uint64_t any_pending;
    emu_queue q[QUEUES];
};

_Noreturn void emu_fault(emu_wave *w, const emu_op *o, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void emu_pend(emu_wave *w, const emu_op *o, int queue, unsigned first, unsigned n);
void emu_wait(emu_wave *w, int queue, int left);
void emu_early(emu_wave *w, const emu_op *o); // a register is used before its load was waited for

/* ---- operands ----------------------------------------------------------------------------------------- */

FORCE U vu(emu_wave *w, const emu_op *o, int i) {
    return *(const U *)(((uintptr_t)w & o->a[i].mask) + o->a[i].at);
}
FORCE F vf(emu_wave *w, const emu_op *o, int i) { return (F)vu(w, o, i); }
FORCE Q vq(emu_wave *w, const emu_op *o, int i) { // two registers
    const U *p = (const U *)(((uintptr_t)w & o->a[i].mask) + o->a[i].at);
    return __builtin_convertvector(p[0], Q) | __builtin_convertvector(p[1], Q) << 32;
}
FORCE uint32_t su(emu_wave *w, const emu_op *o, int i) {
    return *(const uint32_t *)(((uintptr_t)w & o->a[i].mask) + o->a[i].at);
}
FORCE uint64_t sq(emu_wave *w, const emu_op *o, int i) {
    uint64_t v;
    memcpy(&v, (const void *)(((uintptr_t)w & o->a[i].mask) + o->a[i].at), 8);
    return v;
}
FORCE U lane_mask(uint32_t m) {
    const U bit = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
                   1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
                   1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
                   1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    return (U)((bit & m) != 0);
}
FORCE U pick(U m, U yes, U no) { return (m & yes) | (~m & no); }
FORCE void put_at(emu_wave *w, unsigned d, U r) { // only active lanes are written
    const uint32_t e = w->s[EXEC];
    if (LIKELY(e == ~0u))
        w->v[d] = r;
    else
        w->v[d] = pick(lane_mask(e), r, w->v[d]);
}
FORCE void put(emu_wave *w, const emu_op *o, U r) { put_at(w, o->d, r); }
FORCE void put_q(emu_wave *w, const emu_op *o, Q r) {
    put_at(w, o->d, __builtin_convertvector(r, U));
    put_at(w, o->d + 1, __builtin_convertvector(r >> 32, U));
}
FORCE void put_s(emu_wave *w, unsigned r, uint32_t x) {
    if (r == NUL) return;
    w->s[r] = x;
    w->sv[r] = (U)(x);
}
FORCE void put_s64(emu_wave *w, unsigned r, uint64_t x) {
    if (r == NUL) return;
    put_s(w, r, (uint32_t)x);
    put_s(w, r + 1, (uint32_t)(x >> 32));
}
/* A 16-bit result goes to one half; the other stays. */
FORCE void put_h(emu_wave *w, const emu_op *o, U r) {
    const U old = w->v[o->d];
    put(w, o, o->d_half ? (r << 16) | (old & 0xFFFFu) : (r & 0xFFFFu) | (old & 0xFFFF0000u));
}
FORCE U vh(emu_wave *w, const emu_op *o, int i) { // a 16-bit source, zero-extended
    const U x = vu(w, o, i);
    return o->half >> i & 1 ? x >> 16 : x & 0xFFFFu;
}
FORCE uint32_t to_mask(I c) { // lanes that are -1, as bits; c holds -1 and 0
    uint32_t r = 0;
    for (int g = 0; g < 4; g++) {
        typedef float V8 __attribute__((vector_size(32)));
        V8 part;
        memcpy(&part, (const char *)&c + g * 32, 32);
        r |= (uint32_t)__builtin_ia32_movmskps256(part) << (8 * g);
    }
    return r;
}
FORCE F mod_f(const emu_op *o, int i, F x) {
    U b = (U)x;
    if (o->abs >> i & 1) b &= 0x7FFFFFFFu;
    if (o->neg >> i & 1) b ^= 0x80000000u;
    return (F)b;
}
FORCE F out_f(const emu_op *o,
              F r) { // output modifiers; *2, *4 and /2 are ignored where denormals are on, as here
    if (o->clamp) {
        const F zero = 0.0f, one = 1.0f;
        U b = (U)r;
        b = pick((U)(r > zero), b, (U)zero); // NaN and -0 become 0
        b = pick((U)((F)b > one), (U)one, b);
        return (F)b;
    }
    return r;
}
FORCE F fma_f(F a, F b, F c) { return __builtin_elementwise_fma(a, b, c); }

/* ---- memory ------------------------------------------------------------------------------------------- */

/* A checked access of one lane; `store` and `o` for the report. */
void *emu_access(emu_wave *w, const emu_op *o, uint64_t at, unsigned size, int lane, bool store);
#endif
