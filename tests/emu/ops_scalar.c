/* ops_scalar.c - scalar instructions: one value a wave. a and b are the sources, r the result; the third argument of a family is the new SCC. */
#include "machine.h"
#include <math.h>
// Rows of macros without semicolons look like one statement to it.
// clang-format off

#define S1(name, T, get, result, carry)                                                                      \
    static void s_##name(emu_wave *w, const emu_op *o) {                                                     \
        const T a = get(w, o, 0);                                                                            \
        const T r = (T)(result);                                                                             \
        (void)a;                                                                                             \
        w->scc = carry;                                                                                      \
        if (sizeof(T) == 8)                                                                                  \
            put_s64(w, o->d, r);                                                                             \
        else                                                                                                 \
            put_s(w, o->d, (uint32_t)r);                                                                     \
    }
#define S2(name, T, get, result, carry)                                                                      \
    static void s_##name(emu_wave *w, const emu_op *o) {                                                     \
        const T a = get(w, o, 0), b = get(w, o, 1);                                                          \
        const T r = (T)(result);                                                                             \
        w->scc = carry;                                                                                      \
        if (sizeof(T) == 8)                                                                                  \
            put_s64(w, o->d, r);                                                                             \
        else                                                                                                 \
            put_s(w, o->d, (uint32_t)r);                                                                     \
    }
#define BOTH(name, result32, result64)                                                                       \
    S2(name##_b32, uint32_t, su, result32, r != 0) S2(name##_b64, uint64_t, sq, result64, r != 0)

static uint32_t bfe_u(uint32_t v, uint32_t field) {
    const uint32_t at = field & 31, n = field >> 16 & 127;
    return n == 0 ? 0 : n >= 32 ? v >> at : (v >> at) & ((1u << n) - 1);
}
static uint32_t bfe_i(uint32_t v, uint32_t field) {
    const uint32_t at = field & 31, n = field >> 16 & 127;
    if (n == 0) return 0;
    if (n + at >= 32) return (uint32_t)((int32_t)v >> at);
    return (uint32_t)((int32_t)(v << (32 - n - at)) >> (32 - n));
}
static uint64_t bfe_u64(uint64_t v, uint32_t field) {
    const uint32_t at = field & 63, n = field >> 16 & 127;
    return n == 0 ? 0 : n >= 64 ? v >> at : (v >> at) & ((1ull << n) - 1);
}
static bool add_overflows(uint32_t a, uint32_t b) {
    int32_t r;
    return __builtin_add_overflow((int32_t)a, (int32_t)b, &r);
}
static bool sub_overflows(uint32_t a, uint32_t b) {
    int32_t r;
    return __builtin_sub_overflow((int32_t)a, (int32_t)b, &r);
}

S1(mov_b32, uint32_t, su, a, w->scc)
S1(mov_b64, uint64_t, sq, a, w->scc)
S1(not_b32, uint32_t, su, ~a, r != 0)
S1(not_b64, uint64_t, sq, ~a, r != 0)
S1(brev_b32, uint32_t, su, __builtin_bitreverse32(a), w->scc)
S1(brev_b64, uint64_t, sq, __builtin_bitreverse64(a), w->scc)
S1(abs_i32, uint32_t, su, (int32_t)a < 0 ? 0u - a : a, r != 0)
S1(sext_i32_i8, uint32_t, su, (int8_t)a, w->scc)
S1(sext_i32_i16, uint32_t, su, (int16_t)a, w->scc)
S1(bcnt0_i32_b32, uint32_t, su, (uint32_t)__builtin_popcount(~a), r != 0)
S1(bcnt1_i32_b32, uint32_t, su, (uint32_t)__builtin_popcount(a), r != 0)
S1(ctz_i32_b32, uint32_t, su, a ? (uint32_t)__builtin_ctz(a) : ~0u, w->scc)
S1(clz_i32_u32, uint32_t, su, a ? (uint32_t)__builtin_clz(a) : ~0u, w->scc)
static uint32_t cls(uint32_t a) { // bits equal to the sign, or -1
    const uint32_t x = (int32_t)a < 0 ? ~a : a;
    return x ? (uint32_t)__builtin_clz(x) : ~0u;
}
S1(cls_i32, uint32_t, su, cls(a), w->scc)
S1(mulk_i32, uint32_t, su, w->s[o->d] * a, w->scc)
S1(addk_i32, uint32_t, su, w->s[o->d] + a, add_overflows(w->s[o->d], a))
S1(cmovk_i32, uint32_t, su, w->scc ? a : w->s[o->d], w->scc)
S1(cmov_b32, uint32_t, su, w->scc ? a : w->s[o->d], w->scc)
S1(bitset0_b32, uint32_t, su, w->s[o->d] & ~(1u << (a & 31)), w->scc)
S1(bitset1_b32, uint32_t, su, w->s[o->d] | 1u << (a & 31), w->scc)
S1(cvt_f32_u32, uint32_t, su, __builtin_bit_cast(uint32_t, (float)a), w->scc)
S1(cvt_f32_i32, uint32_t, su, __builtin_bit_cast(uint32_t, (float)(int32_t)a), w->scc)
static float as_f(uint32_t v) { return __builtin_bit_cast(float, v); }
static uint32_t as_u(float v) { return __builtin_bit_cast(uint32_t, v); }
static uint32_t to_u32(float f) { return f != f || f <= 0 ? 0 : f >= 4294967296.0f ? ~0u : (uint32_t)f; }
static uint32_t to_i32(float f) {
    return f != f                ? 0
           : f <= -2147483648.0f ? 0x80000000u
           : f >= 2147483648.0f  ? 0x7FFFFFFFu
                                 : (uint32_t)(int32_t)f;
}
S1(cvt_u32_f32, uint32_t, su, to_u32(as_f(a)), w->scc)
S1(cvt_i32_f32, uint32_t, su, to_i32(as_f(a)), w->scc)
S1(trunc_f32, uint32_t, su, as_u(truncf(as_f(a))), w->scc)
S1(floor_f32, uint32_t, su, as_u(floorf(as_f(a))), w->scc)
S1(ceil_f32, uint32_t, su, as_u(ceilf(as_f(a))), w->scc)
S1(rndne_f32, uint32_t, su, as_u(rintf(as_f(a))), w->scc)

BOTH(and, a &b, a &b)
BOTH(or, a | b, a | b)
BOTH(xor, a ^ b, a ^ b)
BOTH(nand, ~(a &b), ~(a &b))
BOTH(nor, ~(a | b), ~(a | b))
BOTH(xnor, ~(a ^ b), ~(a ^ b))
BOTH(and_not1, a & ~b, a & ~b)
BOTH(or_not1, a | ~b, a | ~b)
S2(lshl_b32, uint32_t, su, a << (b & 31), r != 0)
S2(lshr_b32, uint32_t, su, a >> (b & 31), r != 0)
S2(ashr_i32, uint32_t, su, (int32_t)a >> (b & 31), r != 0)
static void s_shift64(emu_wave *w, const emu_op *o, int how) {
    const uint64_t a = sq(w, o, 0);
    const uint32_t b = su(w, o, 1) & 63;
    const uint64_t r = how == 0 ? a << b : how == 1 ? a >> b : (uint64_t)((int64_t)a >> b);
    w->scc = r != 0;
    put_s64(w, o->d, r);
}
static void s_lshl_b64(emu_wave *w, const emu_op *o) { s_shift64(w, o, 0); }
static void s_lshr_b64(emu_wave *w, const emu_op *o) { s_shift64(w, o, 1); }
static void s_ashr_i64(emu_wave *w, const emu_op *o) { s_shift64(w, o, 2); }
S2(bfm_b32, uint32_t, su, ((1u << (a & 31)) - 1) << (b & 31), w->scc)
S2(bfe_u32, uint32_t, su, bfe_u(a, b), r != 0)
S2(bfe_i32, uint32_t, su, bfe_i(a, b), r != 0)
static void s_bfe_u64(emu_wave *w, const emu_op *o) {
    const uint64_t r = bfe_u64(sq(w, o, 0), su(w, o, 1));
    w->scc = r != 0;
    put_s64(w, o->d, r);
}
S2(add_u32, uint32_t, su, a + b, r < a)
S2(sub_u32, uint32_t, su, a - b, a < b)
S2(addc_u32, uint32_t, su, a + b + w->scc, ((uint64_t)a + b + w->scc) >> 32 != 0)
S2(subb_u32, uint32_t, su, a - b - w->scc, (uint64_t)b + w->scc > a)
S2(add_i32, uint32_t, su, a + b, add_overflows(a, b))
S2(sub_i32, uint32_t, su, a - b, sub_overflows(a, b))
S2(absdiff_i32, uint32_t, su, (int32_t)(a - b) < 0 ? b - a : a - b, r != 0)
S2(mul_i32, uint32_t, su, a *b, w->scc)
S2(mul_hi_u32, uint32_t, su, ((uint64_t)a * b) >> 32, w->scc)
S2(mul_hi_i32, uint32_t, su, ((int64_t)(int32_t)a * (int32_t)b) >> 32, w->scc)
S2(min_u32, uint32_t, su, a < b ? a : b, a < b)
S2(max_u32, uint32_t, su, a > b ? a : b, a > b)
S2(min_i32, uint32_t, su, (int32_t)a < (int32_t)b ? a : b, (int32_t)a < (int32_t)b)
S2(max_i32, uint32_t, su, (int32_t)a > (int32_t)b ? a : b, (int32_t)a > (int32_t)b)
#define LSHL_ADD(n) S2(lshl##n##_add_u32, uint32_t, su, (a << n) + b, (((uint64_t)a << n) + b) >> 32 != 0)
LSHL_ADD(1)
LSHL_ADD(2)
LSHL_ADD(3) LSHL_ADD(4) S2(pack_ll_b32_b16, uint32_t, su, (a & 0xFFFF) | b << 16, w->scc)
    S2(pack_lh_b32_b16, uint32_t, su, (a & 0xFFFF) | (b & 0xFFFF0000), w->scc)
        S2(pack_hh_b32_b16, uint32_t, su, a >> 16 | (b & 0xFFFF0000), w->scc)
            S2(cselect_b32, uint32_t, su, w->scc ? a : b, w->scc)
                S2(cselect_b64, uint64_t, sq, w->scc ? a : b, w->scc)
#define SF2(name, expr) S2(name##_f32, uint32_t, su, as_u(expr), w->scc)
                    SF2(add, as_f(a) + as_f(b)) SF2(sub, as_f(a) - as_f(b)) SF2(mul, as_f(a) * as_f(b))
                        SF2(min, fminf(as_f(a), as_f(b)))
                            SF2(max, fmaxf(as_f(a), as_f(b))) static void s_fmac_f32(emu_wave *w,
                                                                                     const emu_op *o) {
    put_s(w, o->d, as_u(fmaf(as_f(su(w, o, 0)), as_f(su(w, o, 1)), as_f(w->s[o->d]))));
}
static void s_fma3(emu_wave *w, const emu_op *o) {
    put_s(w, o->d, as_u(fmaf(as_f(su(w, o, 0)), as_f(su(w, o, 1)), as_f(su(w, o, 2)))));
}

#define CMP(name, T, get, cond)                                                                              \
    static void c_##name(emu_wave *w, const emu_op *o) {                                                     \
        const T a = (T)get(w, o, 0), b = (T)get(w, o, 1);                                                    \
        w->scc = (cond);                                                                                     \
    }
#define CMPS(type, T)                                                                                        \
    CMP(eq_##type, T, su, a == b)                                                                            \
    CMP(lg_##type, T, su, a != b)                                                                            \
    CMP(gt_##type, T, su, a > b) CMP(ge_##type, T, su, a >= b) CMP(lt_##type, T, su, a < b)                  \
        CMP(le_##type, T, su, a <= b)
CMPS(u32, uint32_t)
CMPS(i32, int32_t)
CMP(eq_u64, uint64_t, sq, a == b)
CMP(lg_u64, uint64_t, sq, a != b)
#define CMPF(name, cond)                                                                                     \
    static void c_##name##_f32(emu_wave *w, const emu_op *o) {                                               \
        const float a = as_f(su(w, o, 0)), b = as_f(su(w, o, 1));                                            \
        w->scc = (cond);                                                                                     \
    }
CMPF(lt, a < b)
CMPF(eq, a == b)
CMPF(le, a <= b) CMPF(gt, a > b) CMPF(lg, a<b || a> b) CMPF(ge, a >= b) CMPF(o, a == a && b == b)
    CMPF(u, a != a || b != b) CMPF(nge, !(a >= b)) CMPF(nlg, !(a < b || a > b)) CMPF(ngt, !(a > b))
        CMPF(nle, !(a <= b)) CMPF(neq, !(a == b))
            CMPF(nlt, !(a < b)) static void s_bitcmp0_b32(emu_wave *w, const emu_op *o) {
    w->scc = !(su(w, o, 0) >> (su(w, o, 1) & 31) & 1);
}
static void s_bitcmp1_b32(emu_wave *w, const emu_op *o) { w->scc = su(w, o, 0) >> (su(w, o, 1) & 31) & 1; }

#define SAVEEXEC(name, expr)                                                                                 \
    static void s_##name##_saveexec_b32(emu_wave *w, const emu_op *o) {                                      \
        const uint32_t a = su(w, o, 0), e = w->s[EXEC];                                                      \
        put_s(w, o->d, e);                                                                                   \
        put_s(w, EXEC, expr);                                                                                \
        w->scc = w->s[EXEC] != 0;                                                                            \
    }
SAVEEXEC(and, a &e)
SAVEEXEC(or, a | e)
SAVEEXEC(xor, a ^ e) SAVEEXEC(and_not1, a & ~e) SAVEEXEC(or_not1, a | ~e)
    SAVEEXEC(and_not0, ~a &e) static void s_and_not1_wrexec(emu_wave *w, const emu_op *o) {
    const uint32_t r = su(w, o, 0) & ~w->s[EXEC];
    put_s(w, EXEC, r);
    put_s(w, o->d, r);
    w->scc = r != 0;
}

/* ---- control ------------------------------------------------------------------------------------------- */

#define BRANCH(name, cond)                                                                                   \
    static void b_##name(emu_wave *w, const emu_op *o) {                                                     \
        if (cond) w->pc = o->target;                                                                         \
    }
BRANCH(always, true)
BRANCH(scc0, !w->scc)
BRANCH(scc1, w->scc) BRANCH(vccz, !w->s[VCC]) BRANCH(vccnz, w->s[VCC] != 0) BRANCH(execz, !w->s[EXEC])
    BRANCH(execnz, w->s[EXEC] != 0)

        static void jump(emu_wave *w, const emu_op *o, uint64_t to) {
    char why[400];
    const emu_func *f = emu_decode(w->k->launch->kernel->module, to, why, sizeof why);
    if (!f) emu_fault(w, o, 719, "%s", why);
    for (size_t i = 0; i < f->n_op; i++) {
        if (f->ops[i].pc != to) continue;
        w->pc = &f->ops[i];
        return;
    }
    emu_fault(w, o, 719, "jump into the middle of an instruction at 0x%llx", (unsigned long long)to);
}
static void s_getpc(emu_wave *w, const emu_op *o) { put_s64(w, o->d, o->pc + 4); }
static void s_setpc(emu_wave *w, const emu_op *o) { jump(w, o, sq(w, o, 0)); }
static void s_swappc(emu_wave *w, const emu_op *o) {
    const uint64_t to = sq(w, o, 0);
    put_s64(w, o->d, o->pc + 4);
    jump(w, o, to);
}
static void s_endpgm(emu_wave *w, const emu_op *o) {
    (void)o;
    w->stop = STOP_END;
}
static void s_barrier(emu_wave *w, const emu_op *o) {
    if (w->q[QUEUE_LDS].n)
        emu_fault(w, o, 719, "s_barrier while %d accesses to LDS have not been waited for",
                  w->q[QUEUE_LDS].n);
    w->stop = STOP_BARRIER;
}
static void s_waitcnt(emu_wave *w, const emu_op *o) { // off: the 16 bits of the instruction
    const int lgkm = o->off >> 4 & 63, vm = o->off >> 10 & 63;
    emu_wait(w, QUEUE_VMEM, vm);
    emu_wait(w, QUEUE_LDS, lgkm);
    if (!lgkm) emu_wait(w, QUEUE_SMEM, 0); // scalar loads come back in any order
}
static void nothing(emu_wave *w, const emu_op *o) { (void)w, (void)o; }

#define T1(n)                                                                                                \
    { "s_" #n, "ts", s_##n, EMU_SALU, 0 }
#define T2(n)                                                                                                \
    { "s_" #n, "tss", s_##n, EMU_SALU, 0 }
#define T2Q(n)                                                                                               \
    { "s_" #n, "Txx", s_##n, EMU_SALU, 0 }
#define TC(n)                                                                                                \
    { "s_cmp_" #n, "ss", c_##n, EMU_SALU, 0 }
#define TK(n)                                                                                                \
    { "s_cmpk_" #n, "ss", c_##n, EMU_SALU, 0 }
#define TKI(n)                                                                                               \
    { "s_cmpk_" #n, "sk", c_##n, EMU_SALU, 0 }
#define TF(n)                                                                                                \
    { "s_cmp_" #n "_f32", "ss", c_##n##_f32, EMU_SALU, 0 }
#define TB(n, f)                                                                                             \
    { "s_" #n, "b", b_##f, EMU_BRANCH, 0 }
#define TE(n)                                                                                                \
    { "s_" #n "_saveexec_b32", "ts", s_##n##_saveexec_b32, EMU_SALU, 0 }
#define SIX(T, t) T(eq_##t), T(lg_##t), T(gt_##t), T(ge_##t), T(lt_##t), T(le_##t)
const emu_def emu_ops_scalar[] = {T1(mov_b32),
                                  {"s_movk_i32", "tk", s_mov_b32, EMU_SALU, 0},
                                  {"s_mov_b64", "Tx", s_mov_b64, EMU_SALU, 0},
                                  T1(not_b32),
                                  {"s_not_b64", "Tx", s_not_b64, EMU_SALU, 0},
                                  T1(brev_b32),
                                  {"s_brev_b64", "Tx", s_brev_b64, EMU_SALU, 0},
                                  T1(abs_i32),
                                  T1(sext_i32_i8),
                                  T1(sext_i32_i16),
                                  T1(bcnt0_i32_b32),
                                  T1(bcnt1_i32_b32),
                                  T1(ctz_i32_b32),
                                  T1(clz_i32_u32),
                                  T1(cls_i32),
                                  {"s_mulk_i32", "tk", s_mulk_i32, EMU_SALU, 0},
                                  {"s_addk_i32", "tk", s_addk_i32, EMU_SALU, 0},
                                  {"s_cmovk_i32", "tk", s_cmovk_i32, EMU_SALU, 0},
                                  T1(cmov_b32),
                                  T1(bitset0_b32),
                                  T1(bitset1_b32),
                                  T1(cvt_f32_u32),
                                  T1(cvt_f32_i32),
                                  T1(cvt_u32_f32),
                                  T1(cvt_i32_f32),
                                  T1(trunc_f32),
                                  T1(floor_f32),
                                  T1(ceil_f32),
                                  T1(rndne_f32),
                                  T2(and_b32),
                                  T2Q(and_b64),
                                  T2(or_b32),
                                  T2Q(or_b64),
                                  T2(xor_b32),
                                  T2Q(xor_b64),
                                  T2(nand_b32),
                                  T2Q(nand_b64),
                                  T2(nor_b32),
                                  T2Q(nor_b64),
                                  T2(xnor_b32),
                                  T2Q(xnor_b64),
                                  T2(and_not1_b32),
                                  T2Q(and_not1_b64),
                                  T2(or_not1_b32),
                                  T2Q(or_not1_b64),
                                  T2(lshl_b32),
                                  T2(lshr_b32),
                                  T2(ashr_i32),
                                  {"s_lshl_b64", "Txs", s_lshl_b64, EMU_SALU, 0},
                                  {"s_lshr_b64", "Txs", s_lshr_b64, EMU_SALU, 0},
                                  {"s_ashr_i64", "Txs", s_ashr_i64, EMU_SALU, 0},
                                  T2(bfm_b32),
                                  T2(bfe_u32),
                                  T2(bfe_i32),
                                  {"s_bfe_u64", "Txs", s_bfe_u64, EMU_SALU, 0},
                                  T2(add_u32),
                                  T2(sub_u32),
                                  T2(addc_u32),
                                  T2(subb_u32),
                                  T2(add_i32),
                                  T2(sub_i32),
                                  T2(absdiff_i32),
                                  T2(mul_i32),
                                  T2(mul_hi_u32),
                                  T2(mul_hi_i32),
                                  T2(min_u32),
                                  T2(max_u32),
                                  T2(min_i32),
                                  T2(max_i32),
                                  T2(lshl1_add_u32),
                                  T2(lshl2_add_u32),
                                  T2(lshl3_add_u32),
                                  T2(lshl4_add_u32),
                                  T2(pack_ll_b32_b16),
                                  T2(pack_lh_b32_b16),
                                  T2(pack_hh_b32_b16),
                                  T2(cselect_b32),
                                  T2Q(cselect_b64),
                                  T2(add_f32),
                                  T2(sub_f32),
                                  T2(mul_f32),
                                  T2(min_f32),
                                  T2(max_f32),
                                  T2(fmac_f32),
                                  {"s_fmaak_f32", "tsss", s_fma3, EMU_SALU, 0},
                                  {"s_fmamk_f32", "tsis", s_fma3, EMU_SALU, 0},
                                  SIX(TC, u32),
                                  SIX(TC, i32),
                                  SIX(TK, u32),
                                  SIX(TKI, i32),
                                  {"s_cmp_eq_u64", "xx", c_eq_u64, EMU_SALU, 0},
                                  {"s_cmp_lg_u64", "xx", c_lg_u64, EMU_SALU, 0},
                                  TF(lt),
                                  TF(eq),
                                  TF(le),
                                  TF(gt),
                                  TF(lg),
                                  TF(ge),
                                  TF(o),
                                  TF(u),
                                  TF(nge),
                                  TF(nlg),
                                  TF(ngt),
                                  TF(nle),
                                  TF(neq),
                                  TF(nlt),
                                  {"s_bitcmp0_b32", "ss", s_bitcmp0_b32, EMU_SALU, 0},
                                  {"s_bitcmp1_b32", "ss", s_bitcmp1_b32, EMU_SALU, 0},
                                  TE(and),
                                  TE(or),
                                  TE(xor),
                                  TE(and_not1),
                                  TE(or_not1),
                                  TE(and_not0),
                                  {"s_and_not1_wrexec_b32", "ts", s_and_not1_wrexec, EMU_SALU, 0},
                                  TB(branch, always),
                                  TB(cbranch_scc0, scc0),
                                  TB(cbranch_scc1, scc1),
                                  TB(cbranch_vccz, vccz),
                                  TB(cbranch_vccnz, vccnz),
                                  TB(cbranch_execz, execz),
                                  TB(cbranch_execnz, execnz),
                                  {"s_getpc_b64", "T", s_getpc, EMU_SALU, 0},
                                  {"s_setpc_b64", "x", s_setpc, EMU_BRANCH, 0},
                                  {"s_swappc_b64", "Tx", s_swappc, EMU_BRANCH, 0},
                                  {"s_endpgm", "", s_endpgm, EMU_BRANCH, 0},
                                  {"s_barrier", "", s_barrier, EMU_SYNC, 0},
                                  {"s_waitcnt", "*", s_waitcnt, EMU_SYNC, 0},
                                  {"s_waitcnt_vscnt", "*", nothing, EMU_SYNC, 0},
                                  {"s_waitcnt_depctr", "*", NULL, 0, 0},
                                  {"buffer_gl0_inv", "*", nothing, EMU_SYNC, 0},
                                  {"buffer_gl1_inv", "*", nothing, EMU_SYNC, 0},
                                  /* without effect here: left out when decoding */
                                  {"s_nop", "*", NULL, 0, 0},
                                  {"s_delay_alu", "*", NULL, 0, 0},
                                  {"s_clause", "*", NULL, 0, 0},
                                  {"s_set_inst_prefetch_distance", "*", NULL, 0, 0},
                                  {"s_sendmsg", "*", NULL, 0, 0},
                                  {"s_code_end", "*", NULL, 0, 0},
                                  {"s_wait_idle", "*", NULL, 0, 0},
                                  {"s_sleep", "*", NULL, 0, 0},
                                  {"s_setprio", "*", NULL, 0, 0},
                                  {"s_inst_prefetch", "*", NULL, 0, 0},
                                  {NULL, NULL, NULL, 0, 0}};
