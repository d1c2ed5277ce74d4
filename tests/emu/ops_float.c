/* ops_float.c - vector instructions on f32 and f64: round to nearest even, denormals kept except by the transcendental unit. */
#include "half.h"
#include "machine.h"
#include <math.h>

/* Without modifiers the plain expression; with any, the sources and the result go through them. */
#define F1(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = mod_f(o, 0, vf(w, o, 0));                                                                \
        put(w, o, (U)out_f(o, expr));                                                                        \
    }
#define F2(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        F a = vf(w, o, 0), b = vf(w, o, 1);                                                                  \
        if (LIKELY(!(o->neg | o->abs | o->clamp))) {                                                         \
            put(w, o, (U)(expr));                                                                            \
            return;                                                                                          \
        }                                                                                                    \
        a = mod_f(o, 0, a), b = mod_f(o, 1, b);                                                              \
        put(w, o, (U)out_f(o, expr));                                                                        \
    }
#define F3(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        F a = vf(w, o, 0), b = vf(w, o, 1), c = vf(w, o, 2);                                                 \
        if (LIKELY(!(o->neg | o->abs | o->clamp))) {                                                         \
            put(w, o, (U)(expr));                                                                            \
            return;                                                                                          \
        }                                                                                                    \
        a = mod_f(o, 0, a), b = mod_f(o, 1, b), c = mod_f(o, 2, c);                                          \
        put(w, o, (U)out_f(o, expr));                                                                        \
    }
#define EACH1(name, expr)                                                                                    \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = mod_f(o, 0, vf(w, o, 0));                                                                \
        F r;                                                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            const float x = a[i];                                                                            \
            r[i] = (expr);                                                                                   \
        }                                                                                                    \
        put(w, o, (U)out_f(o, r));                                                                           \
    }

/* NaN: a quiet one of the inputs. -0 is below +0. */
FORCE F min_v(F a, F b) {
    const U first = (U)(a < b) | ((U)(a == b) & (U)((I)(U)a < 0)) | (U)(b != b);
    return (F)pick((U)(a != a), (U)b, pick(first, (U)a, (U)b));
}
FORCE F max_v(F a, F b) {
    const U first = (U)(a > b) | ((U)(a == b) & (U)((I)(U)a >= 0)) | (U)(b != b);
    return (F)pick((U)(a != a), (U)b, pick(first, (U)a, (U)b));
}
/* A signalling NaN comes out quiet. */
FORCE F quiet(F a) { return (F)((U)a | ((U)(a != a) & 0x00400000u)); }
FORCE F legacy(F p, F a, F b) { return (F)((U)p & ~((U)(a == 0.0f) | (U)(b == 0.0f))); } // 0 * anything is 0

F2(add_f32, a + b)
F2(sub_f32, a - b)
F2(subrev_f32, b - a)
F2(mul_f32, a *b)
F2(mul_dx9_zero_f32, legacy(a *b, a, b))
F2(min_f32, quiet(min_v(a, b)))
F2(max_f32, quiet(max_v(a, b)))
F3(fma_f32, fma_f(a, b, c))
F3(fma_dx9_zero_f32, (F)pick((U)(a == 0.0f) | (U)(b == 0.0f), (U)c, (U)fma_f(a, b, c)))
F3(min3_f32, quiet(min_v(min_v(a, b), c)))
F3(max3_f32, quiet(max_v(max_v(a, b), c)))
F3(maxmin_f32, quiet(min_v(max_v(a, b), c)))
F3(minmax_f32, quiet(max_v(min_v(a, b), c)))
FORCE F med3(F a, F b, F c) {
    const F nan = min_v(min_v(a, b), c), mid = max_v(min_v(a, b), min_v(max_v(a, b), c));
    return (F)pick((U)(a != a) | (U)(b != b) | (U)(c != c), (U)nan, (U)mid);
}
F3(med3_f32, quiet(med3(a, b, c)))
F1(floor_f32, __builtin_elementwise_floor(a))
F1(ceil_f32, __builtin_elementwise_ceil(a))
F1(trunc_f32, __builtin_elementwise_trunc(a))
F1(rndne_f32, __builtin_elementwise_roundeven(a))
static float fract(float x) {
    if (!isfinite(x)) return NAN;
    const float r = x - floorf(x);
    return r < 1.0f ? r : 0x1.fffffep-1f;
}
EACH1(fract_f32, fract(x))
static int exponent(float x) {
    int e;
    frexpf(x, &e);
    return e;
}
EACH1(frexp_mant_f32, isfinite(x) ? frexpf(x, &(int){0}) : x)
EACH1(frexp_exp_i32_f32, __builtin_bit_cast(float, isfinite(x) && x != 0 ? exponent(x) : 0))
static void v_ldexp_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0));
    const I b = (I)vu(w, o, 1);
    F r;
    for (int i = 0; i < LANES; i++) r[i] = ldexpf(a[i], b[i] > 1000 ? 1000 : b[i] < -1000 ? -1000 : b[i]);
    put(w, o, (U)out_f(o, r));
}

/* ---- transcendental: within an ulp, denormals flushed ------------------------------------------------------ */

static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
/* With the option, the result of an operation whose last place is not specified moves by -1, 0 or 1 unit, as its bits decide. */
static float moved(float r) {
    uint32_t b = __builtin_bit_cast(uint32_t, r);
    if (!emu_cfg.ulp || !isfinite(r) || !(b & 0x7FFFFF) || fabsf(r) < 0x1p-125f)
        return r; // exact powers of two stay
    const uint32_t h = (b * 2654435761u) >> 30;
    return __builtin_bit_cast(float, h == 0 ? b - 1 : h == 1 ? b + 1 : b);
}
#define TRANS(name, expr) EACH1(name, moved(flush(expr)))
/* 2^x in f64 by a polynomial: correctly rounded in all but a few cases. */
FORCE F exp2_v(F x) {
    const F top = 1000.0f, bottom = -1000.0f;
    F c = (F)pick((U)(x > top), (U)top, (U)x);
    c = (F)pick((U)(c < bottom), (U)bottom, (U)c);
    const F n = __builtin_elementwise_roundeven(c);
    const D f = __builtin_convertvector(c - n, D); // exact
    D p = 1.0178086009239699e-7 * f + 1.3215486790144307e-6;
    p = p * f + 1.525273380405984e-5;
    p = p * f + 1.5403530393381608e-4;
    p = p * f + 1.3333558146428443e-3;
    p = p * f + 9.618129107628477e-3;
    p = p * f + 5.550410866482158e-2;
    p = p * f + 2.402265069591007e-1;
    p = p * f + 6.931471805599453e-1;
    p = p * f + 1.0;
    const L e = (__builtin_convertvector(n, L) + 1023) << 52;
    F r = __builtin_convertvector(p * (D)e, F);
    r = (F)pick((U)(x != x), (U)x, (U)r);
    return (F)((U)r & ~(U)(r < 0x1p-126f));
}
static void v_exp_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0));
    F r = exp2_v(a);
    if (emu_cfg.ulp)
        for (int i = 0; i < LANES; i++) r[i] = moved(r[i]);
    put(w, o, (U)out_f(o, r));
}
static void v_rcp_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0));
    const U tiny = (U)(__builtin_elementwise_abs(a) < 0x1p-126f);
    F r = 1.0f / (F)pick(tiny, (U)a & 0x80000000u, (U)a);
    r = (F)pick((U)(__builtin_elementwise_abs(r) < 0x1p-126f), (U)r & 0x80000000u, (U)r);
    if (emu_cfg.ulp)
        for (int i = 0; i < LANES; i++) r[i] = moved(r[i]);
    put(w, o, (U)out_f(o, r));
}
TRANS(log_f32, (float)log2((double)flush(x)))
TRANS(rsq_f32, (float)(1.0 / sqrt((double)flush(x))))
EACH1(sqrt_f32, moved((float)sqrt((double)x)))
static double turns(double x) { return 6.283185307179586476925 * (x - floor(x)); }
TRANS(sin_f32, isfinite(x) ? (float)sin(turns(x)) : NAN)
TRANS(cos_f32, isfinite(x) ? (float)cos(turns(x)) : NAN)

/* ---- division ---------------------------------------------------------------------------------------------- */

static float div_scale(float s0, float s1, float s2, bool *flag) { // s0 is s1 (denominator) or s2 (numerator)
    const bool den = __builtin_bit_cast(uint32_t, s0) == __builtin_bit_cast(uint32_t, s1);
    int e1, e2;
    *flag = false;
    if (s1 == 0 || s2 == 0) return NAN;
    if (!isfinite(s1) || !isfinite(s2)) return s0;
    frexpf(s1, &e1), frexpf(s2, &e2);
    const float q = s2 / s1;
    if (e2 - e1 >= 96) { // the quotient may overflow: the denominator alone is scaled
        *flag = true;
        return den ? s0 * 0x1p64f : s0;
    }
    if (fabsf(s1) < 0x1p-126f) return s0 * 0x1p64f;
    if (fabs(1.0 / (double)s1) < 0x1p-126 && fabsf(q) < 0x1p-126f) {
        *flag = true;
        return den ? s0 * 0x1p-64f : s0;
    }
    if (fabs(1.0 / (double)s1) < 0x1p-126) return s0 * 0x1p-64f;
    if (fabsf(q) < 0x1p-126f) {
        *flag = true;
        return den ? s0 : s0 * 0x1p64f;
    }
    if (e2 + 126 <= 23) return s0 * 0x1p64f;
    return s0;
}
static void v_div_scale_f32(emu_wave *w, const emu_op *o) { // d, vcc, a, b, c
    const F a = mod_f(o, 0, vf(w, o, 0)), b = mod_f(o, 1, vf(w, o, 1)), c = mod_f(o, 2, vf(w, o, 2));
    F r;
    uint32_t m = 0;
    for (int i = 0; i < LANES; i++) {
        bool flag;
        r[i] = div_scale(a[i], b[i], c[i], &flag);
        m |= (uint32_t)flag << i;
    }
    put(w, o, (U)r);
    put_s(w, o->d2, m & w->s[EXEC]);
}
static void v_div_fmas_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0)), b = mod_f(o, 1, vf(w, o, 1)), c = mod_f(o, 2, vf(w, o, 2));
    F r;
    for (int i = 0; i < LANES; i++) { // one rounding: the scale is applied in double
        const double p = (double)a[i] * b[i] + c[i];
        int e = 0;
        frexpf(c[i], &e);
        r[i] =
            !(w->s[VCC] >> i & 1) ? fmaf(a[i], b[i], c[i]) : (float)(p * (e > 128 - 127 ? 0x1p64 : 0x1p-64));
    }
    put(w, o, (U)r);
}
static float div_fixup(float q, float d, float n) {
    const float sign = (signbit(d) != 0) != (signbit(n) != 0) ? -1.0f : 1.0f;
    if (n != n) return n;
    if (d != d) return d;
    if ((n == 0 && d == 0) || (isinf(n) && isinf(d))) return __builtin_bit_cast(float, 0xFFC00000u);
    if (d == 0 || isinf(n)) return copysignf(INFINITY, sign);
    if (n == 0 || isinf(d)) return copysignf(0, sign);
    int en, ed;
    frexpf(n, &en), frexpf(d, &ed);
    if (en - ed < -150) return copysignf(0, sign);
    if (en - ed > 129) return copysignf(INFINITY, sign);
    return copysignf(q != q ? INFINITY : fabsf(q), sign);
}
static void v_div_fixup_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0)), b = mod_f(o, 1, vf(w, o, 1)), c = mod_f(o, 2, vf(w, o, 2));
    F r;
    for (int i = 0; i < LANES; i++) r[i] = div_fixup(a[i], b[i], c[i]);
    put(w, o, (U)r);
}

/* ---- conversions ------------------------------------------------------------------------------------------- */

#define FROM_U(name, expr)                                                                                   \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vu(w, o, 0);                                                                             \
        put(w, o, (U)out_f(o, expr));                                                                        \
    }
#define TO_U(name, expr)                                                                                     \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const F a = mod_f(o, 0, vf(w, o, 0));                                                                \
        U r;                                                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            const float x = a[i];                                                                            \
            r[i] = (uint32_t)(expr);                                                                         \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
FROM_U(cvt_f32_u32, __builtin_convertvector(a, F))
FROM_U(cvt_f32_i32, __builtin_convertvector((I)a, F))
FROM_U(cvt_f32_ubyte0, __builtin_convertvector((I)(a & 255), F))
FROM_U(cvt_f32_ubyte1, __builtin_convertvector((I)(a >> 8 & 255), F))
FROM_U(cvt_f32_ubyte2, __builtin_convertvector((I)(a >> 16 & 255), F))
FROM_U(cvt_f32_ubyte3, __builtin_convertvector((I)(a >> 24), F))
FROM_U(cvt_off_f32_i4, __builtin_convertvector((I)(a << 28) >> 28, F) * 0.0625f)
static uint32_t to_u32(float f) { return f != f || f <= 0 ? 0 : f >= 4294967296.0f ? ~0u : (uint32_t)f; }
static int32_t to_i32(float f) {
    return f != f ? 0 : f <= -2147483648.0f ? INT32_MIN : f >= 2147483648.0f ? INT32_MAX : (int32_t)f;
}
TO_U(cvt_u32_f32, to_u32(x))
TO_U(cvt_i32_f32, to_i32(x))
TO_U(cvt_nearest_i32_f32, to_i32(floorf(x + 0.5f)))
TO_U(cvt_floor_i32_f32, to_i32(floorf(x)))
static void v_cvt_pk_u8_f32(emu_wave *w, const emu_op *o) {
    const F a = mod_f(o, 0, vf(w, o, 0));
    const U b = vu(w, o, 1), c = vu(w, o, 2);
    U r;
    for (int i = 0; i < LANES; i++) {
        const float x = rintf(a[i]);
        const uint32_t v = x != x || x <= 0 ? 0 : x >= 255 ? 255 : (uint32_t)x, at = 8 * (b[i] & 3);
        r[i] = (c[i] & ~(255u << at)) | v << at;
    }
    put(w, o, r);
}

/* ---- f64 --------------------------------------------------------------------------------------------------- */

FORCE D vd(emu_wave *w, const emu_op *o, int i) {
    Q b = vq(w, o, i);
    if (o->abs >> i & 1) b &= ~0ull >> 1;
    if (o->neg >> i & 1) b ^= 1ull << 63;
    return (D)b;
}
#define D2(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const D a = vd(w, o, 0), b = vd(w, o, 1);                                                            \
        put_q(w, o, (Q)(expr));                                                                              \
    }
D2(add_f64, a + b)
D2(mul_f64, a *b)
static void v_fma_f64(emu_wave *w, const emu_op *o) {
    put_q(w, o, (Q)__builtin_elementwise_fma(vd(w, o, 0), vd(w, o, 1), vd(w, o, 2)));
}
static void v_cvt_f64_f32(emu_wave *w, const emu_op *o) {
    put_q(w, o, (Q) __builtin_convertvector(mod_f(o, 0, vf(w, o, 0)), D));
}
static void v_cvt_f32_f64(emu_wave *w, const emu_op *o) {
    put(w, o, (U) __builtin_convertvector(vd(w, o, 0), F));
}
static void v_cvt_f64_u32(emu_wave *w, const emu_op *o) {
    put_q(w, o, (Q) __builtin_convertvector(vu(w, o, 0), D));
}
static void v_cvt_f64_i32(emu_wave *w, const emu_op *o) {
    put_q(w, o, (Q) __builtin_convertvector((I)vu(w, o, 0), D));
}

#define T1(n)                                                                                                \
    { "v_" #n, "df", v_##n, EMU_VALU, 0 }
#define TT(n)                                                                                                \
    { "v_" #n, "df", v_##n, EMU_TRANS, 0 }
#define T2(n)                                                                                                \
    { "v_" #n, "dff", v_##n, EMU_VALU, 0 }
#define T3(n)                                                                                                \
    { "v_" #n, "dfff", v_##n, EMU_VALU, 0 }
#define TU(n)                                                                                                \
    { "v_" #n, "du", v_##n, EMU_VALU, 0 }
const emu_def emu_ops_float[] = {T2(add_f32),
                                 T2(sub_f32),
                                 T2(subrev_f32),
                                 T2(mul_f32),
                                 T2(mul_dx9_zero_f32),
                                 T2(min_f32),
                                 T2(max_f32),
                                 T3(fma_f32),
                                 T3(fma_dx9_zero_f32),
                                 {"v_fmac_f32", "dff+", v_fma_f32, EMU_VALU, 0},
                                 {"v_fmac_dx9_zero_f32", "dff+", v_fma_dx9_zero_f32, EMU_VALU, 0},
                                 {"v_fmaak_f32", "dfff", v_fma_f32, EMU_VALU, 0},
                                 {"v_fmamk_f32", "dfff", v_fma_f32, EMU_VALU, 0},
                                 T3(min3_f32),
                                 T3(max3_f32),
                                 T3(med3_f32),
                                 T3(maxmin_f32),
                                 T3(minmax_f32),
                                 T1(floor_f32),
                                 T1(ceil_f32),
                                 T1(trunc_f32),
                                 T1(rndne_f32),
                                 T1(fract_f32),
                                 T1(frexp_mant_f32),
                                 T1(frexp_exp_i32_f32),
                                 {"v_ldexp_f32", "dfu", v_ldexp_f32, EMU_VALU, 0},
                                 TT(exp_f32),
                                 TT(rcp_f32),
                                 {"v_rcp_iflag_f32", "df", v_rcp_f32, EMU_TRANS, 0},
                                 TT(log_f32),
                                 TT(rsq_f32),
                                 TT(sqrt_f32),
                                 TT(sin_f32),
                                 TT(cos_f32),
                                 {"v_div_scale_f32", "dcfff", v_div_scale_f32, EMU_VALU, 0},
                                 T3(div_fmas_f32),
                                 T3(div_fixup_f32),
                                 TU(cvt_f32_u32),
                                 TU(cvt_f32_i32),
                                 TU(cvt_f32_ubyte0),
                                 TU(cvt_f32_ubyte1),
                                 TU(cvt_f32_ubyte2),
                                 TU(cvt_f32_ubyte3),
                                 TU(cvt_off_f32_i4),
                                 T1(cvt_u32_f32),
                                 T1(cvt_i32_f32),
                                 T1(cvt_nearest_i32_f32),
                                 T1(cvt_floor_i32_f32),
                                 {"v_cvt_pk_u8_f32", "dfuu", v_cvt_pk_u8_f32, EMU_VALU, 0},
                                 {"v_add_f64", "Drr", v_add_f64, EMU_VALU, 0},
                                 {"v_mul_f64", "Drr", v_mul_f64, EMU_VALU, 0},
                                 {"v_fma_f64", "Drrr", v_fma_f64, EMU_VALU, 0},
                                 {"v_cvt_f64_f32", "Df", v_cvt_f64_f32, EMU_VALU, 0},
                                 {"v_cvt_f32_f64", "dr", v_cvt_f32_f64, EMU_VALU, 0},
                                 {"v_cvt_f64_u32", "Du", v_cvt_f64_u32, EMU_VALU, 0},
                                 {"v_cvt_f64_i32", "Du", v_cvt_f64_i32, EMU_VALU, 0},
                                 {NULL, NULL, NULL, 0, 0}};
