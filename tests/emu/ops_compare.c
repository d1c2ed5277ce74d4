/* ops_compare.c - v_cmp and v_cmpx: one bit a lane, 0 where a lane is off. v_cmpx writes EXEC alone. */
#include "machine.h"
#include "half.h"
#include <math.h>
// Rows of macros without semicolons look like one statement to it.
// clang-format off

FORCE void result(emu_wave *w, const emu_op *o, uint32_t m) { put_s(w, o->d, m & w->s[EXEC]); }

#define CMP(name, T, load, cond)                                                                             \
    static void c_##name(emu_wave *w, const emu_op *o) {                                                     \
        const T a = load(0), b = load(1);                                                                    \
        result(w, o, to_mask((I)(cond)));                                                                    \
    }
#define GET_u32(i) vu(w, o, i)
#define GET_i32(i) (I) vu(w, o, i)
#define GET_u16(i) vh(w, o, i)
#define GET_i16(i) ((I)(vh(w, o, i) << 16) >> 16)
#define GET_f32(i) mod_f(o, i, vf(w, o, i))
#define GET_f16(i) mod_f(o, i, half_f(vh(w, o, i)))
#define INTS(t, T)                                                                                           \
    CMP(lt_##t, T, GET_##t, a < b)                                                                           \
    CMP(eq_##t, T, GET_##t, a == b)                                                                          \
    CMP(le_##t, T, GET_##t, a <= b) CMP(gt_##t, T, GET_##t, a > b) CMP(ne_##t, T, GET_##t, a != b)           \
        CMP(ge_##t, T, GET_##t, a >= b)
INTS(u32, U)
INTS(i32, I)
INTS(u16, U) INTS(i16, I)
#define FLOATS(t)                                                                                            \
    CMP(lt_##t, F, GET_##t, a < b)                                                                           \
    CMP(eq_##t, F, GET_##t, a == b)                                                                          \
    CMP(le_##t, F, GET_##t, a <= b) CMP(gt_##t, F, GET_##t, a > b)                                           \
        CMP(lg_##t, F, GET_##t, (a < b) | (a > b)) CMP(ge_##t, F, GET_##t, a >= b)                           \
            CMP(o_##t, F, GET_##t, (a == a) & (b == b)) CMP(u_##t, F, GET_##t, (a != a) | (b != b))          \
                CMP(nge_##t, F, GET_##t, ~(a >= b)) CMP(nlg_##t, F, GET_##t, ~((a < b) | (a > b)))           \
                    CMP(ngt_##t, F, GET_##t, ~(a > b)) CMP(nle_##t, F, GET_##t, ~(a <= b))                   \
                        CMP(neq_##t, F, GET_##t, a != b) CMP(nlt_##t, F, GET_##t, ~(a < b))
    FLOATS(f32) FLOATS(f16)
#define CMP64(name, T, op)                                                                                   \
    static void c_##name(emu_wave *w, const emu_op *o) {                                                     \
        const T a = (T)vq(w, o, 0), b = (T)vq(w, o, 1);                                                      \
        result(w, o, to_mask(__builtin_convertvector((L)(a op b), I)));                                      \
    }
#define INTS64(t, T)                                                                                         \
    CMP64(lt_##t, T, <)                                                                                      \
    CMP64(eq_##t, T, ==) CMP64(le_##t, T, <=) CMP64(gt_##t, T, >) CMP64(ne_##t, T, !=) CMP64(ge_##t, T, >=)
        INTS64(u64, Q) INTS64(i64, L)

    /* Bits: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf. */
    static unsigned class_of(uint32_t v, unsigned mantissa, unsigned exponent) {
    const uint32_t sign = v >> (mantissa + exponent) & 1, m = v & ((1u << mantissa) - 1),
                   e = v >> mantissa & ((1u << exponent) - 1);
    if (e == (1u << exponent) - 1) return m ? (m >> (mantissa - 1) ? 1 : 0) : sign ? 2 : 9;
    if (e) return sign ? 3 : 8;
    if (m) return sign ? 4 : 7;
    return sign ? 5 : 6;
}
static void c_class_f32(emu_wave *w, const emu_op *o) {
    const U a = (U)mod_f(o, 0, vf(w, o, 0)), b = vu(w, o, 1);
    uint32_t m = 0;
    for (int i = 0; i < LANES; i++) m |= (b[i] >> class_of(a[i], 23, 8) & 1) << i;
    result(w, o, m);
}
static void c_class_f16(emu_wave *w, const emu_op *o) {
    const U a = vh(w, o, 0), b = vh(w, o, 1);
    uint32_t m = 0;
    for (int i = 0; i < LANES; i++) {
        uint32_t v = a[i];
        if (o->abs & 1) v &= 0x7FFF;
        if (o->neg & 1) v ^= 0x8000;
        m |= (b[i] >> class_of(v, 10, 5) & 1) << i;
    }
    result(w, o, m);
}

#define T(n, sig)                                                                                            \
    {"v_cmp_" #n, "t" sig, c_##n, EMU_VALU, 0}, { "v_cmpx_" #n, "x" sig, c_##n, EMU_VALU, 0 }
#define SIX(t, sig)                                                                                          \
    T(lt_##t, sig), T(eq_##t, sig), T(le_##t, sig), T(gt_##t, sig), T(ne_##t, sig), T(ge_##t, sig)
#define ALL(t, sig)                                                                                          \
    T(lt_##t, sig), T(eq_##t, sig), T(le_##t, sig), T(gt_##t, sig), T(lg_##t, sig), T(ge_##t, sig),          \
        T(o_##t, sig), T(u_##t, sig), T(nge_##t, sig), T(nlg_##t, sig), T(ngt_##t, sig), T(nle_##t, sig),    \
        T(neq_##t, sig), T(nlt_##t, sig)
const emu_def emu_ops_compare[] = {SIX(u32, "uu"),     SIX(i32, "uu"),          SIX(u16, "ww"),
                                   SIX(i16, "ww"),     SIX(u64, "qq"),          SIX(i64, "qq"),
                                   ALL(f32, "ff"),     ALL(f16, "ee"),          T(class_f32, "fu"),
                                   T(class_f16, "ew"), {NULL, NULL, NULL, 0, 0}};
