/* numbers.h - elementary functions for kernels, and rows of f32 four at a time.
 *
 * gpu.h's fast_* are the hardware's approximations: about 1 unit in the last place relative to the argument's size. These here
 * hold a relative error of about 2e-7 over the whole range, pass NaN on, and call no library. */
#ifndef MX_KERNELS_NUMBERS_H
#define MX_KERNELS_NUMBERS_H
#include "gpu.h"
#include "args.h"

INLINE f32 infinity(void) { return from_bits(0x7F800000u); }
INLINE f32 not_a_number(void) { return from_bits(0x7FC00000u); }
INLINE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
INLINE i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
INLINE i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }

INLINE f32 fast_log2(f32 x) {
#if defined(__AMDGPU__)
    return __builtin_amdgcn_logf(x);
#else
    return __nvvm_lg2_approx_ftz_f(x);
#endif
}

INLINE f32 rcp32(f32 x) { // of finite x, not 0
    f32 r = fast_rcp(x);
    return fma32(fma32(-x, r, 1), r, r);
}
INLINE f32 div32(f32 a, f32 b) { // of finite numbers
    f32 r = rcp32(b), q = a * r;
    return fma32(fma32(-b, q, a), r, q);
}
INLINE f32 rsqrt32(f32 x) { // of finite x > 0
    f32 r = fast_rsqrt(x);
    return fma32(0.5f * r, fma32(-x * r, r, 1), r);
}

/* 2^(x log2 e): the product's rounding error is made up for, as it grows with x. */
INLINE f32 exp32(f32 x) {
    x = x < -104.0f ? -104.0f : x; // 0
    x = x > 89.0f ? 89.0f : x;     // infinity
    const f32 t = x * 1.44269502f, lost = fma32(x, 1.44269502f, -t) + x * 1.92596299e-8f;
    return fast_exp2(t) * fma32(lost, 0.693147182f, 1);
}
INLINE f32 sigmoid32(f32 x) { return fast_rcp(1 + exp32(-x)); }
INLINE f32 silu32(f32 x) { return x * sigmoid32(x); }

/* A fraction of its continued fraction near 0, where 1 - 2 / (e^2x + 1) would cancel. */
INLINE f32 tanh32(f32 x) {
    x = x > 20.0f ? 20.0f : x;
    x = x < -20.0f ? -20.0f : x;
    const f32 a = __builtin_fabsf(x), s = x * x;
    const f32 near = x * (fma32(s, s + 105.0f, 945.0f) * rcp32(fma32(s, fma32(s, 15.0f, 420.0f), 945.0f)));
    const f32 far = fma32(-2.0f, rcp32(exp32(2 * a) + 1), 1);
    return a < 0.8f ? near : __builtin_copysignf(far, x);
}

/* log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x| <= 1, by the series of atanh. */
INLINE f32 softplus32(f32 x) {
    const f32 e = exp32(-__builtin_fabsf(x)), s = e * rcp32(2 + e), q = s * s;
    f32 p = 1.0f / 15;
    p = fma32(p, q, 1.0f / 13);
    p = fma32(p, q, 1.0f / 11);
    p = fma32(p, q, 1.0f / 9);
    p = fma32(p, q, 1.0f / 7);
    p = fma32(p, q, 1.0f / 5);
    p = fma32(p, q, 1.0f / 3);
    p = fma32(p, q, 1);
    return (x < 0 ? 0 : x) + 2 * s * p;
}

/* x Phi(x) by erfc(z) = t P(t) e^-z^2, t = 1 / (1 + z / 2), z = |x| / sqrt 2; P was fitted to relative error over z in [0, 14].
 * e^-z^2 takes the square's rounding error along, so that the left tail keeps its relative accuracy. */
INLINE f32 gelu32(f32 x) {
    static const f32 fit[10] = {0.28208053f, 0.28250527f, 0.24188423f, 0.20905332f,  -0.047020227f,
                                0.31972152f, -0.5415809f, 0.32846254f, -0.07899632f, 0.0038900147f};
    f32 z = __builtin_fabsf(x) * 0.707106769f;
    z = z > 14.0f ? 14.0f : z;
    const f32 t = rcp32(fma32(z, 0.5f, 1)), square = z * z, lost = fma32(z, z, -square);
    f32 p = fit[9];
    UNROLL for (i32 i = 8; i >= 0; i--) p = fma32(p, t, fit[i]);
    const f32 tail = 0.5f * t * p * exp32(-square) * (1 - lost); // erfc(z) / 2
    return x < 0 ? x * tail : x * (1 - tail);
}

/* Sine and cosine of x, |x| < 2^22: x less n quarter turns, the quarter in three pieces, then Taylor's series on the rest. */
INLINE void sincos32(f32 x, f32 *sine, f32 *cosine) {
    const f32 n = __builtin_rintf(x * 0.636619747f);
    f32 r = fma32(-n, 1.57079637f, x);
    r = fma32(-n, -4.37113883e-8f, r);
    r = fma32(-n, -1.71512451e-15f, r);
    const f32 q = r * r;
    f32 s = fma32(q, 1.0f / 362880, -1.0f / 5040);
    s = fma32(s, q, 1.0f / 120);
    s = fma32(s, q, -1.0f / 6);
    s = fma32(s * q, r, r);
    f32 c = fma32(q, -1.0f / 3628800, 1.0f / 40320);
    c = fma32(c, q, -1.0f / 720);
    c = fma32(c, q, 1.0f / 24);
    c = fma32(c, q, -0.5f);
    c = fma32(c, q, 1);
    const u32 turn = (u32)(i32)n;
    const f32 a = turn & 1 ? c : s, b = turn & 1 ? s : c;
    *sine = turn & 2 ? -a : a;
    *cosine = (turn + 1) & 2 ? -b : b;
}

/* Numbers in falling order as whole numbers in falling order; NaN comes last, above 0 only. */
INLINE u32 order_of(f32 v) {
    const u32 u = bits(v);
    const u32 order = u & 0x80000000u ? ~u : u | 0x80000000u;
    return v != v ? 1 : order;
}

/* ---- rows of f32 ---------------------------------------------------------------------------------------- */
INLINE G f32 *row_of(mx_k_mat m, u64 row) { return m.p + row * m.ld; }
INLINE bool whole16(mx_k_mat m) {
    return (((u64)m.p | m.ld * 4) & 15) == 0;
} // every row starts at a multiple of 16 bytes

/* Values c to c + 3 of a row of n; those past its end are 0. */
INLINE f32x4 load4(const G f32 *row, u32 c, u32 n, bool whole) {
    f32x4 v = {0, 0, 0, 0};
    if (whole && c + 4 <= n) return *(const G f32x4 *)(row + c);
    if (c < n) v.x = row[c];
    if (c + 1 < n) v.y = row[c + 1];
    if (c + 2 < n) v.z = row[c + 2];
    if (c + 3 < n) v.w = row[c + 3];
    return v;
}
INLINE void store4(G f32 *row, u32 c, u32 n, bool whole, f32x4 v) {
    if (whole && c + 4 <= n) {
        *(G f32x4 *)(row + c) = v;
        return;
    }
    if (c < n) row[c] = v.x;
    if (c + 1 < n) row[c + 1] = v.y;
    if (c + 2 < n) row[c + 2] = v.z;
    if (c + 3 < n) row[c + 3] = v.w;
}
INLINE f32x4 map4(f32x4 v, f32 (*f)(f32)) {
    f32 a = v.x, b = v.y, c = v.z, d = v.w;
    return (f32x4){f(a), f(b), f(c), f(d)};
}
INLINE f32 sum4(f32x4 v) {
    f32 a = v.x, b = v.y, c = v.z, d = v.w;
    return (a + b) + (c + d);
}

#endif
