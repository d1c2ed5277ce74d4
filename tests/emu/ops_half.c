/* ops_half.c - f16, pairs of 16-bit values, mixed precision and dot products. */
#include "half.h"
#include "machine.h"
#include <math.h>

FORCE F vhf(emu_wave *w, const emu_op *o, int i) { return mod_f(o, i, half_f(vh(w, o, i))); }
/* add, sub and mul in f32 and then rounded are right: f32 has more than twice the digits. */
#define E1(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = vhf(w, o, 0);                                                                            \
        put_h(w, o, f_half(out_f(o, expr)));                                                                 \
    }
#define E2(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = vhf(w, o, 0), b = vhf(w, o, 1);                                                          \
        put_h(w, o, f_half(out_f(o, expr)));                                                                 \
    }
#define E1X(name, expr)                                                                                      \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = vhf(w, o, 0);                                                                            \
        F r;                                                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            const float x = a[i];                                                                            \
            r[i] = (float)(expr);                                                                            \
        }                                                                                                    \
        put_h(w, o, f_half(out_f(o, r)));                                                                    \
    }
FORCE F min_n(F a, F b) {
    return (F)pick((U)(a != a), (U)b,
                   pick((U)(a < b) | ((U)(a == b) & (U)((I)(U)a < 0)) | (U)(b != b), (U)a, (U)b));
}
FORCE F max_n(F a, F b) {
    return (F)pick((U)(a != a), (U)b,
                   pick((U)(a > b) | ((U)(a == b) & (U)((I)(U)a >= 0)) | (U)(b != b), (U)a, (U)b));
}
static U fma_half(F a, F b, F c) {
    U r;
    for (int i = 0; i < LANES; i++)
        r[i] = d_half((double)a[i] * (double)b[i] + (double)c[i]); // fits 53 bits where it matters
    return r;
}
E2(add_f16, a + b)
E2(sub_f16, a - b)
E2(subrev_f16, b - a)
E2(mul_f16, a *b)
E2(min_f16, min_n(a, b))
E2(max_f16, max_n(a, b))
static void v_fma_f16(emu_wave *w, const emu_op *o) {
    U r = fma_half(vhf(w, o, 0), vhf(w, o, 1), vhf(w, o, 2));
    if (o->clamp) r = f_half(out_f(o, half_f(r)));
    put_h(w, o, r);
}
static void v_fmac_f16(emu_wave *w, const emu_op *o) { // the accumulator is the half of d that is written
    const U old = w->v[o->d];
    put_h(w, o, fma_half(vhf(w, o, 0), vhf(w, o, 1), half_f(o->d_half ? old >> 16 : old & 0xFFFFu)));
}
static void v_max3_f16(emu_wave *w, const emu_op *o) {
    put_h(w, o, f_half(max_n(max_n(vhf(w, o, 0), vhf(w, o, 1)), vhf(w, o, 2))));
}
static void v_min3_f16(emu_wave *w, const emu_op *o) {
    put_h(w, o, f_half(min_n(min_n(vhf(w, o, 0), vhf(w, o, 1)), vhf(w, o, 2))));
}
E1(floor_f16, __builtin_elementwise_floor(a))
E1(ceil_f16, __builtin_elementwise_ceil(a))
E1(trunc_f16, __builtin_elementwise_trunc(a))
E1(rndne_f16, __builtin_elementwise_roundeven(a))
E1(rcp_f16, 1.0f / a)
E1X(sqrt_f16, sqrt((double)x))
E1X(rsq_f16, 1.0 / sqrt((double)x))
E1X(exp_f16, exp2((double)x))
E1X(log_f16, log2((double)x))
static void v_ldexp_f16(emu_wave *w, const emu_op *o) {
    const F a = vhf(w, o, 0);
    const U b = vh(w, o, 1);
    U r;
    for (int i = 0; i < LANES; i++) r[i] = d_half(ldexp(a[i], (int16_t)b[i]));
    put_h(w, o, r);
}
static void v_cvt_f16_f32(emu_wave *w, const emu_op *o) {
    put_h(w, o, f_half(out_f(o, mod_f(o, 0, vf(w, o, 0)))));
}
static void v_cvt_f32_f16(emu_wave *w, const emu_op *o) { put(w, o, (U)out_f(o, vhf(w, o, 0))); }
static void v_cvt_f16_u16(emu_wave *w, const emu_op *o) {
    put_h(w, o, f_half(__builtin_convertvector(vh(w, o, 0), F)));
}
static void v_cvt_f16_i16(emu_wave *w, const emu_op *o) {
    put_h(w, o, f_half(__builtin_convertvector((I)(vh(w, o, 0) << 16) >> 16, F)));
}
static void v_cvt_u16_f16(emu_wave *w, const emu_op *o) {
    const F a = vhf(w, o, 0);
    U r;
    for (int i = 0; i < LANES; i++)
        r[i] = a[i] != a[i] || a[i] <= 0 ? 0 : a[i] >= 65535 ? 65535 : (uint32_t)a[i];
    put_h(w, o, r);
}
static void v_cvt_i16_f16(emu_wave *w, const emu_op *o) {
    const F a = vhf(w, o, 0);
    U r;
    for (int i = 0; i < LANES; i++)
        r[i] = (uint32_t)(a[i] != a[i] ? 0 : a[i] <= -32768 ? -32768 : a[i] >= 32767 ? 32767 : (int)a[i]);
    put_h(w, o, r);
}
static uint32_t rtz(float f) { return (uint32_t)_cvtss_sh(f, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
static void v_cvt_pk_rtz_f16_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0)), b = mod_f(o, 1, vf(w, o, 1));
    U r;
    for (int i = 0; i < LANES; i++) r[i] = rtz(a[i]) | rtz(b[i]) << 16;
    put(w, o, r);
}
static void v_pack_b32_f16(emu_wave *w, const emu_op *o) {
    U a = vh(w, o, 0), b = vh(w, o, 1);
    if (o->abs & 1) a &= 0x7FFFu;
    if (o->abs & 2) b &= 0x7FFFu;
    if (o->neg & 1) a ^= 0x8000u;
    if (o->neg & 2) b ^= 0x8000u;
    put(w, o, a | b << 16);
}
static void v_cvt_pk_u16_u32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1);
    put(w, o, pick((U)(a > 0xFFFFu), (U)(0xFFFFu), a) | pick((U)(b > 0xFFFFu), (U)(0xFFFFu), b) << 16);
}
static U to_i16(I x) {
    x = (I)pick((U)(x > 32767), (U)(32767), (U)x);
    return pick((U)(x < -32768), (U)(I)(-32768), (U)x) & 0xFFFFu;
}
static void v_cvt_pk_i16_i32(emu_wave *w, const emu_op *o) {
    put(w, o, to_i16((I)vu(w, o, 0)) | to_i16((I)vu(w, o, 1)) << 16);
}

/* ---- pairs: op_sel and op_sel_hi name the half of each source that makes the lower and the upper result -------- */

FORCE U half_of(emu_wave *w, const emu_op *o, int i, bool hi) {
    const U x = vu(w, o, i);
    return (hi ? o->op_sel_hi : o->op_sel) >> i & 1 ? x >> 16 : x & 0xFFFFu;
}
FORCE F half_of_f(emu_wave *w, const emu_op *o, int i, bool hi) {
    F x = half_f(half_of(w, o, i, hi));
    if ((hi ? o->neg_hi : o->neg_lo) >> i & 1) x = (F)((U)x ^ 0x80000000u);
    return x;
}
#define PF2(name, expr)                                                                                      \
    static void v_pk_##name(emu_wave *w, const emu_op *o) {                                                  \
        U r[2];                                                                                              \
        for (int hi = 0; hi < 2; hi++) {                                                                     \
            const F a = half_of_f(w, o, 0, hi), b = half_of_f(w, o, 1, hi);                                  \
            r[hi] = f_half(out_f(o, expr));                                                                  \
        }                                                                                                    \
        put(w, o, r[0] | r[1] << 16);                                                                        \
    }
PF2(add_f16, a + b)
PF2(mul_f16, a *b)
PF2(min_f16, min_n(a, b))
PF2(max_f16, max_n(a, b))
static void v_pk_fma_f16(emu_wave *w, const emu_op *o) {
    U r[2];
    for (int hi = 0; hi < 2; hi++)
        r[hi] = fma_half(half_of_f(w, o, 0, hi), half_of_f(w, o, 1, hi), half_of_f(w, o, 2, hi));
    put(w, o, r[0] | r[1] << 16);
}
#define PU(name, n, expr)                                                                                    \
    static void v_pk_##name(emu_wave *w, const emu_op *o) {                                                  \
        U r[2];                                                                                              \
        for (int hi = 0; hi < 2; hi++) {                                                                     \
            const U a = half_of(w, o, 0, hi), b = half_of(w, o, 1, hi),                                      \
                    c = n > 2 ? half_of(w, o, 2, hi) : a;                                                    \
            (void)c;                                                                                         \
            r[hi] = (U)(expr)&0xFFFFu;                                                                       \
        }                                                                                                    \
        put(w, o, r[0] | r[1] << 16);                                                                        \
    }
#define SX(x) ((I)((x) << 16) >> 16)
FORCE U sat_u(U r, const emu_op *o) { return o->clamp ? pick((U)(r > 0xFFFFu), (U)(0xFFFFu), r) : r; }
FORCE U sat_i(I r, const emu_op *o) { return o->clamp ? to_i16(r) : (U)r; }
PU(add_u16, 2, sat_u(a + b, o))
PU(sub_u16, 2, o->clamp ? (a - b) & (U)(a >= b) : a - b)
PU(add_i16, 2, sat_i(SX(a) + SX(b), o))
PU(sub_i16, 2, sat_i(SX(a) - SX(b), o))
PU(mul_lo_u16, 2, a *b)
PU(mad_u16, 3, sat_u(a *b + c, o))
PU(mad_i16, 3, sat_i(SX(a) * SX(b) + SX(c), o))
PU(lshlrev_b16, 2, b << (a & 15))
PU(lshrrev_b16, 2, b >> (a & 15))
PU(ashrrev_i16, 2, SX(b) >> (I)(a & 15))
PU(min_u16, 2, pick((U)(a < b), a, b))
PU(max_u16, 2, pick((U)(a > b), a, b))
PU(min_i16, 2, pick((U)(SX(a) < SX(b)), a, b))
PU(max_i16, 2, pick((U)(SX(a) > SX(b)), a, b))

/* ---- mixed: op_sel_hi says f16, op_sel which half ---------------------------------------------------------- */

FORCE F mix(emu_wave *w, const emu_op *o, int i) {
    U x = vu(w, o, i);
    F f = (F)x;
    if (o->op_sel_hi >> i & 1) f = half_f(o->op_sel >> i & 1 ? x >> 16 : x);
    return mod_f(o, i, f);
}
static void v_fma_mix_f32(emu_wave *w, const emu_op *o) {
    put(w, o, (U)out_f(o, fma_f(mix(w, o, 0), mix(w, o, 1), mix(w, o, 2))));
}
static void v_fma_mixlo_f16(emu_wave *w, const emu_op *o) {
    const U r = f_half(out_f(o, fma_f(mix(w, o, 0), mix(w, o, 1), mix(w, o, 2))));
    put(w, o, r | (w->v[o->d] & 0xFFFF0000u));
}
static void v_fma_mixhi_f16(emu_wave *w, const emu_op *o) {
    const U r = f_half(out_f(o, fma_f(mix(w, o, 0), mix(w, o, 1), mix(w, o, 2))));
    put(w, o, r << 16 | (w->v[o->d] & 0xFFFFu));
}

/* ---- dot products ------------------------------------------------------------------------------------------ */

static void v_dot2_f32_f16(emu_wave *w, const emu_op *o) {
    const F lo = half_of_f(w, o, 0, 0), hi = half_of_f(w, o, 0, 1);
    F c = vf(w, o, 2);
    if (o->neg_lo & 4) c = -c;
    put(w, o, (U)out_f(o, fma_f(hi, half_of_f(w, o, 1, 1), fma_f(lo, half_of_f(w, o, 1, 0), c))));
}
static void v_dot2_f32_bf16(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1);
    const F c = vf(w, o, 2);
    put(w, o, (U)fma_f((F)(a & 0xFFFF0000u), (F)(b & 0xFFFF0000u), fma_f((F)(a << 16), (F)(b << 16), c)));
}
static int64_t dot(uint32_t a, uint32_t b, int bits, bool sa, bool sb) {
    int64_t sum = 0;
    for (int i = 0; i < 32; i += bits) {
        const int down = 32 - bits;
        const int64_t x = sa ? (int32_t)(a << (down - i)) >> down : (int64_t)(a << (down - i) >> down);
        const int64_t y = sb ? (int32_t)(b << (down - i)) >> down : (int64_t)(b << (down - i) >> down);
        sum += x * y;
    }
    return sum;
}
static void dots(emu_wave *w, const emu_op *o, int bits, bool sa, bool sb) {
    const U a = vu(w, o, 0), b = vu(w, o, 1), c = vu(w, o, 2);
    U r;
    for (int i = 0; i < LANES; i++) {
        int64_t s = dot(a[i], b[i], bits, sa, sb);
        if (sa || sb) {
            s += (int32_t)c[i];
            if (o->clamp) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        } else {
            s += c[i];
            if (o->clamp && s > UINT32_MAX) s = UINT32_MAX;
        }
        r[i] = (uint32_t)s;
    }
    put(w, o, r);
}
static void v_dot4_i32_iu8(emu_wave *w, const emu_op *o) {
    dots(w, o, 8, o->neg_lo & 1, o->neg_lo >> 1 & 1);
} // neg_lo: signed
static void v_dot8_i32_iu4(emu_wave *w, const emu_op *o) { dots(w, o, 4, o->neg_lo & 1, o->neg_lo >> 1 & 1); }
static void v_dot4_u32_u8(emu_wave *w, const emu_op *o) { dots(w, o, 8, false, false); }
static void v_dot8_u32_u4(emu_wave *w, const emu_op *o) { dots(w, o, 4, false, false); }

#define TE1(n)                                                                                               \
    { "v_" #n, "he", v_##n, EMU_VALU, 0 }
#define TT1(n)                                                                                               \
    { "v_" #n, "he", v_##n, EMU_TRANS, 0 }
#define TE2(n)                                                                                               \
    { "v_" #n, "hee", v_##n, EMU_VALU, 0 }
#define TP2(n)                                                                                               \
    { "v_pk_" #n, "dpp", v_pk_##n, EMU_VALU, 0 }
#define TI2(n)                                                                                               \
    { "v_pk_" #n, "duu", v_pk_##n, EMU_VALU, 0 }
const emu_def emu_ops_half[] = {TE2(add_f16),
                                TE2(sub_f16),
                                TE2(subrev_f16),
                                TE2(mul_f16),
                                TE2(min_f16),
                                TE2(max_f16),
                                {"v_fma_f16", "heee", v_fma_f16, EMU_VALU, 0},
                                {"v_fmac_f16", "hee", v_fmac_f16, EMU_VALU, 0},
                                {"v_fmaak_f16", "heee", v_fma_f16, EMU_VALU, 0},
                                {"v_fmamk_f16", "heee", v_fma_f16, EMU_VALU, 0},
                                {"v_max3_f16", "heee", v_max3_f16, EMU_VALU, 0},
                                {"v_min3_f16", "heee", v_min3_f16, EMU_VALU, 0},
                                TE1(floor_f16),
                                TE1(ceil_f16),
                                TE1(trunc_f16),
                                TE1(rndne_f16),
                                TT1(rcp_f16),
                                TT1(sqrt_f16),
                                TT1(rsq_f16),
                                TT1(exp_f16),
                                TT1(log_f16),
                                {"v_ldexp_f16", "hew", v_ldexp_f16, EMU_VALU, 0},
                                {"v_cvt_f16_f32", "hf", v_cvt_f16_f32, EMU_VALU, 0},
                                {"v_cvt_f32_f16", "de", v_cvt_f32_f16, EMU_VALU, 0},
                                {"v_cvt_f16_u16", "hw", v_cvt_f16_u16, EMU_VALU, 0},
                                {"v_cvt_f16_i16", "hw", v_cvt_f16_i16, EMU_VALU, 0},
                                TE1(cvt_u16_f16),
                                TE1(cvt_i16_f16),
                                {"v_cvt_pk_rtz_f16_f32", "dff", v_cvt_pk_rtz_f16_f32, EMU_VALU, 0},
                                {"v_pack_b32_f16", "dee", v_pack_b32_f16, EMU_VALU, 0},
                                {"v_cvt_pk_u16_u32", "duu", v_cvt_pk_u16_u32, EMU_VALU, 0},
                                {"v_cvt_pk_i16_i32", "duu", v_cvt_pk_i16_i32, EMU_VALU, 0},
                                TP2(add_f16),
                                TP2(mul_f16),
                                TP2(min_f16),
                                TP2(max_f16),
                                {"v_pk_fma_f16", "dppp", v_pk_fma_f16, EMU_VALU, 0},
                                {"v_pk_fmac_f16", "dpp+", v_pk_fma_f16, EMU_VALU, 0},
                                TI2(add_u16),
                                TI2(sub_u16),
                                TI2(add_i16),
                                TI2(sub_i16),
                                TI2(mul_lo_u16),
                                {"v_pk_mad_u16", "duuu", v_pk_mad_u16, EMU_VALU, 0},
                                {"v_pk_mad_i16", "duuu", v_pk_mad_i16, EMU_VALU, 0},
                                TI2(lshlrev_b16),
                                TI2(lshrrev_b16),
                                TI2(ashrrev_i16),
                                TI2(min_u16),
                                TI2(max_u16),
                                TI2(min_i16),
                                TI2(max_i16),
                                {"v_fma_mix_f32", "dmmm", v_fma_mix_f32, EMU_VALU, 0},
                                {"v_fma_mixlo_f16", "dmmm", v_fma_mixlo_f16, EMU_VALU, 0},
                                {"v_fma_mixhi_f16", "dmmm", v_fma_mixhi_f16, EMU_VALU, 0},
                                {"v_dot2_f32_f16", "dppf", v_dot2_f32_f16, EMU_VALU, 0},
                                {"v_dot2acc_f32_f16", "dpp+", v_dot2_f32_f16, EMU_VALU, 0},
                                {"v_dot2c_f32_f16", "dpp+", v_dot2_f32_f16, EMU_VALU, 0},
                                {"v_dot2_f32_bf16", "duuf", v_dot2_f32_bf16, EMU_VALU, 0},
                                {"v_dot2acc_f32_bf16", "duu+", v_dot2_f32_bf16, EMU_VALU, 0},
                                {"v_dot4_i32_iu8", "duuu", v_dot4_i32_iu8, EMU_VALU, 0},
                                {"v_dot8_i32_iu4", "duuu", v_dot8_i32_iu4, EMU_VALU, 0},
                                {"v_dot4_u32_u8", "duuu", v_dot4_u32_u8, EMU_VALU, 0},
                                {"v_dot8_u32_u4", "duuu", v_dot8_u32_u4, EMU_VALU, 0},
                                {NULL, NULL, NULL, 0, 0}};
