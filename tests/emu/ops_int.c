/* ops_int.c - vector instructions on integers and bits. a, b, c are the sources, all lanes at once. */
#include "machine.h"

#define U1(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vu(w, o, 0);                                                                             \
        put(w, o, (U)(expr));                                                                                \
    }
#define U2(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vu(w, o, 0), b = vu(w, o, 1);                                                            \
        put(w, o, (U)(expr));                                                                                \
    }
#define U3(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vu(w, o, 0), b = vu(w, o, 1), c = vu(w, o, 2);                                           \
        put(w, o, (U)(expr));                                                                                \
    }
#define EACH(name, n, expr) /* lane by lane: x, y, z are one lane's sources */                               \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vu(w, o, 0), b = n > 1 ? vu(w, o, 1) : a, c = n > 2 ? vu(w, o, 2) : a;                   \
        U r;                                                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            const uint32_t x = a[i], y = b[i], z = c[i];                                                     \
            (void)x, (void)y, (void)z;                                                                       \
            r[i] = (uint32_t)(expr);                                                                         \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
#define SIGN24(x) ((I)((x) << 8) >> 8)
#define WIDE(x) __builtin_convertvector(x, Q)
#define WIDE_I(x) __builtin_convertvector((I)(x), L)
#define NARROW(x) __builtin_convertvector(x, U)
#define MIN(a, b) pick((U)((a) < (b)), (U)(a), (U)(b))
#define MAX(a, b) pick((U)((a) > (b)), (U)(a), (U)(b))

U1(mov_b32, a)
U1(not_b32, ~a)
EACH(bfrev_b32, 1, __builtin_bitreverse32(x))
EACH(clz_i32_u32, 1, x ? __builtin_clz(x) : -1)
EACH(ctz_i32_b32, 1, x ? __builtin_ctz(x) : -1)
EACH(cls_i32, 1, ((x ^ (uint32_t)((int32_t)x >> 31)) ? __builtin_clz(x ^ (uint32_t)((int32_t)x >> 31)) : -1))
U2(and_b32, a &b)
U2(or_b32, a | b)
U2(xor_b32, a ^ b)
U2(xnor_b32, ~(a ^ b))
U2(lshlrev_b32, b << (a & 31))
U2(lshrrev_b32, b >> (a & 31))
U2(ashrrev_i32, (I)b >> (I)(a & 31))
static U saturate_add(U a, U b, const emu_op *o) {
    const U r = a + b;
    return o->clamp ? r | (U)(r < a) : r;
}
U2(add_nc_u32, saturate_add(a, b, o))
U2(sub_nc_u32, o->clamp ? (a - b) & (U)(a >= b) : a - b)
U2(subrev_nc_u32, o->clamp ? (b - a) & (U)(b >= a) : b - a)
static uint32_t clamp_i32(int64_t r, const emu_op *o) {
    return (uint32_t)(!o->clamp ? r : r > INT32_MAX ? INT32_MAX : r < INT32_MIN ? INT32_MIN : r);
}
EACH(add_nc_i32, 2, clamp_i32((int64_t)(int32_t)x + (int32_t)y, o))
EACH(sub_nc_i32, 2, clamp_i32((int64_t)(int32_t)x - (int32_t)y, o))
U2(mul_lo_u32, a *b)
U2(mul_hi_u32, NARROW((WIDE(a) * WIDE(b)) >> 32))
U2(mul_hi_i32, __builtin_convertvector((WIDE_I(a) * WIDE_I(b)) >> 32, I))
U2(mul_u32_u24, (a & 0xFFFFFFu) * (b & 0xFFFFFFu))
U2(mul_i32_i24, (U)SIGN24(a) * (U)SIGN24(b))
U2(mul_hi_u32_u24, NARROW((WIDE(a & 0xFFFFFFu) * WIDE(b & 0xFFFFFFu)) >> 32))
U2(mul_hi_i32_i24, __builtin_convertvector((WIDE_I(SIGN24(a)) * WIDE_I(SIGN24(b))) >> 32, I))
U2(min_u32, MIN(a, b))
U2(max_u32, MAX(a, b))
U2(min_i32, MIN((I)a, (I)b))
U2(max_i32, MAX((I)a, (I)b))
EACH(bcnt_u32_b32, 2, (uint32_t)__builtin_popcount(x) + y)
U2(bfm_b32, (((U)(1u) << (a & 31)) - 1u) << (b & 31))
U3(mad_u32_u24, (a & 0xFFFFFFu) * (b & 0xFFFFFFu) + c)
U3(mad_i32_i24, (U)SIGN24(a) * (U)SIGN24(b) + c)
U3(add3_u32, a + b + c)
U3(xad_u32, (a ^ b) + c)
U3(xor3_b32, a ^ b ^ c)
U3(or3_b32, a | b | c)
U3(and_or_b32, (a & b) | c)
U3(lshl_or_b32, (a << (b & 31)) | c)
U3(lshl_add_u32, (a << (b & 31)) + c)
U3(add_lshl_u32, (a + b) << (c & 31))
U3(bfi_b32, (a & b) | (~a & c))
EACH(bfe_u32, 3, (z & 31) ? (x >> (y & 31)) & ((1u << (z & 31)) - 1) : 0)
static uint32_t bfe_i(uint32_t x, uint32_t at, uint32_t n) {
    at &= 31, n &= 31;
    if (!n) return 0;
    if (at + n >= 32) return (uint32_t)((int32_t)x >> at);
    return (uint32_t)((int32_t)(x << (32 - at - n)) >> (32 - n));
}
EACH(bfe_i32, 3, bfe_i(x, y, z))
EACH(alignbit_b32, 3, (((uint64_t)x << 32 | y) >> (z & 31)))
EACH(alignbyte_b32, 3, (((uint64_t)x << 32 | y) >> (8 * (z & 3))))
static uint32_t perm(uint64_t both, uint32_t sel) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = sel >> (8 * i) & 255;
        uint32_t v;
        if (s < 8)
            v = both >> (8 * s) & 255;
        else if (s < 12)
            v = (both >> (16 * (s - 8) + 15) & 1) ? 255 : 0; // the sign of a half
        else
            v = s == 12 ? 0 : 255;
        r |= v << (8 * i);
    }
    return r;
}
static void v_perm_b32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1), c = vu(w, o, 2);
    if (!o->a[2].mask && c[0] == 0x07060302u)
        return put(w, o, (a & 0xFFFF0000u) | b >> 16); // the usual two: pairs of halves
    if (!o->a[2].mask && c[0] == 0x05040100u) return put(w, o, a << 16 | (b & 0xFFFFu));
    U r;
    for (int i = 0; i < LANES; i++) r[i] = perm((uint64_t)a[i] << 32 | b[i], c[i]);
    put(w, o, r);
}
U3(min3_u32, MIN(MIN(a, b), c))
U3(max3_u32, MAX(MAX(a, b), c))
U3(min3_i32, MIN((I)MIN((I)a, (I)b), (I)c))
U3(max3_i32, MAX((I)MAX((I)a, (I)b), (I)c))
U3(med3_u32, MAX(MIN(a, b), MIN(MAX(a, b), c)))
U3(med3_i32, MAX((I)MIN((I)a, (I)b), (I)MIN((I)MAX((I)a, (I)b), (I)c)))
U3(maxmin_u32, MIN(MAX(a, b), c))
U3(maxmin_i32, MIN((I)MAX((I)a, (I)b), (I)c))
U3(minmax_u32, MAX(MIN(a, b), c))
U3(minmax_i32, MAX((I)MIN((I)a, (I)b), (I)c))
static uint32_t sad8(uint32_t x, uint32_t y) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 8) r += (uint32_t)__builtin_abs((int)(x >> i & 255) - (int)(y >> i & 255));
    return r;
}
EACH(sad_u8, 3, sad8(x, y) + z)
EACH(sad_hi_u8, 3, (sad8(x, y) << 16) + z)
EACH(sad_u32, 3, (x > y ? x - y : y - x) + z)

/* ---- 64 bits ------------------------------------------------------------------------------------------- */

static void v_lshlrev_b64(emu_wave *w, const emu_op *o) {
    put_q(w, o, vq(w, o, 1) << (WIDE(vu(w, o, 0)) & 63));
}
static void v_lshrrev_b64(emu_wave *w, const emu_op *o) {
    put_q(w, o, vq(w, o, 1) >> (WIDE(vu(w, o, 0)) & 63));
}
static void v_ashrrev_i64(emu_wave *w, const emu_op *o) {
    put_q(w, o, (Q)((L)vq(w, o, 1) >> (L)(WIDE(vu(w, o, 0)) & 63)));
}
static void v_mad_u64_u32(emu_wave *w, const emu_op *o) { // d, carry, a, b, c
    const Q p = WIDE(vu(w, o, 0)) * WIDE(vu(w, o, 1)), r = p + vq(w, o, 2);
    if (o->d2 != NUL) put_s(w, o->d2, to_mask(__builtin_convertvector((L)(r < p), I)) & w->s[EXEC]);
    put_q(w, o, r);
}
static void v_mad_i64_i32(emu_wave *w, const emu_op *o) {
    const L p = WIDE_I(vu(w, o, 0)) * WIDE_I(vu(w, o, 1)), c = (L)vq(w, o, 2), r = (L)((Q)p + (Q)c);
    if (o->d2 != NUL)
        put_s(w, o->d2, to_mask(__builtin_convertvector((L)(((p ^ r) & (c ^ r)) < 0), I)) & w->s[EXEC]);
    put_q(w, o, (Q)r);
}

/* ---- carries: d, carry out, a, b [, carry in] ------------------------------------------------------------- */

static void carry_out(emu_wave *w, const emu_op *o, U c) { put_s(w, o->d2, to_mask((I)c) & w->s[EXEC]); }
static void v_add_co_u32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1), r = a + b, c = (U)(r < a);
    put(w, o, o->clamp ? r | c : r);
    carry_out(w, o, c);
}
static void sub_co(emu_wave *w, const emu_op *o, U a, U b) {
    const U r = a - b, c = (U)(a < b);
    put(w, o, o->clamp ? r & ~c : r);
    carry_out(w, o, c);
}
static void v_sub_co_u32(emu_wave *w, const emu_op *o) { sub_co(w, o, vu(w, o, 0), vu(w, o, 1)); }
static void v_subrev_co_u32(emu_wave *w, const emu_op *o) { sub_co(w, o, vu(w, o, 1), vu(w, o, 0)); }
static void v_add_co_ci_u32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1), in = lane_mask(su(w, o, 2)), t = a + b, r = t - in;
    const U c = (U)(t < a) | (U)(r < t);
    put(w, o, o->clamp ? r | c : r);
    carry_out(w, o, c);
}
static void sub_co_ci(emu_wave *w, const emu_op *o, U a, U b) {
    const U in = lane_mask(su(w, o, 2)), t = a - b, r = t + in, c = (U)(a < b) | ((U)(t == 0) & in);
    put(w, o, o->clamp ? r & ~c : r);
    carry_out(w, o, c);
}
static void v_sub_co_ci_u32(emu_wave *w, const emu_op *o) { sub_co_ci(w, o, vu(w, o, 0), vu(w, o, 1)); }
static void v_subrev_co_ci_u32(emu_wave *w, const emu_op *o) { sub_co_ci(w, o, vu(w, o, 1), vu(w, o, 0)); }

static void v_cndmask_b32(emu_wave *w, const emu_op *o) { // its sources may be negated
    const U no = (U)mod_f(o, 0, vf(w, o, 0)), yes = (U)mod_f(o, 1, vf(w, o, 1));
    put(w, o, pick(lane_mask(su(w, o, 2)), yes, no));
}
static void v_cndmask_b16(emu_wave *w, const emu_op *o) {
    put_h(w, o, pick(lane_mask(su(w, o, 2)), vh(w, o, 1), vh(w, o, 0)));
}

/* ---- 16 bits -------------------------------------------------------------------------------------------- */

#define H1(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vh(w, o, 0);                                                                             \
        put_h(w, o, (U)(expr));                                                                              \
    }
#define H2(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vh(w, o, 0), b = vh(w, o, 1);                                                            \
        put_h(w, o, (U)(expr));                                                                              \
    }
#define H3(name, expr)                                                                                       \
    static void v_##name(emu_wave *w, const emu_op *o) {                                                     \
        const U a = vh(w, o, 0), b = vh(w, o, 1), c = vh(w, o, 2);                                           \
        put_h(w, o, (U)(expr));                                                                              \
    }
#define SX(x) ((I)((x) << 16) >> 16)
static U clamp_u16(U r, const emu_op *o) { return o->clamp ? pick((U)(r > 0xFFFFu), (U)(0xFFFFu), r) : r; }
static I clamp_i16(I r, const emu_op *o) { return o->clamp ? (I)MIN((I)MAX(r, (I)(-32768)), (I)(32767)) : r; }
H1(mov_b16, a)
H1(not_b16, ~a)
H2(and_b16, a &b)
H2(or_b16, a | b)
H2(xor_b16, a ^ b)
H2(lshlrev_b16, b << (a & 15))
H2(lshrrev_b16, b >> (a & 15))
H2(ashrrev_i16, SX(b) >> (I)(a & 15))
H2(add_nc_u16, clamp_u16(a + b, o))
H2(sub_nc_u16, o->clamp ? (a - b) & (U)(a >= b) : a - b)
H2(add_nc_i16, clamp_i16(SX(a) + SX(b), o))
H2(sub_nc_i16, clamp_i16(SX(a) - SX(b), o))
H2(mul_lo_u16, a *b)
H2(min_u16, MIN(a, b))
H2(max_u16, MAX(a, b))
H2(min_i16, MIN(SX(a), SX(b)))
H2(max_i16, MAX(SX(a), SX(b)))
H3(mad_u16, clamp_u16(a *b + c, o))
H3(mad_i16, clamp_i16(SX(a) * SX(b) + SX(c), o))
H3(min3_u16, MIN(MIN(a, b), c))
H3(max3_u16, MAX(MAX(a, b), c))
H3(min3_i16, MIN((I)MIN(SX(a), SX(b)), SX(c)))
H3(max3_i16, MAX((I)MAX(SX(a), SX(b)), SX(c)))
H3(med3_u16, MAX(MIN(a, b), MIN(MAX(a, b), c)))
H3(med3_i16, MAX((I)MIN(SX(a), SX(b)), (I)MIN((I)MAX(SX(a), SX(b)), SX(c))))
static void v_mad_u32_u16(emu_wave *w, const emu_op *o) {
    put(w, o, vh(w, o, 0) * vh(w, o, 1) + vu(w, o, 2));
}
static void v_mad_i32_i16(emu_wave *w, const emu_op *o) {
    put(w, o, (U)SX(vh(w, o, 0)) * (U)SX(vh(w, o, 1)) + vu(w, o, 2));
}
static void v_cvt_u32_u16(emu_wave *w, const emu_op *o) { put(w, o, vh(w, o, 0)); }
static void v_cvt_i32_i16(emu_wave *w, const emu_op *o) { put(w, o, (U)SX(vh(w, o, 0))); }
static void v_swap_b32(emu_wave *w, const emu_op *o) {
    const U mine = w->v[o->d], other = vu(w, o, 0);
    put(w, o, other);
    put_at(w, o->r[0], mine);
}

#define T1(n)                                                                                                \
    { "v_" #n, "du", v_##n, EMU_VALU, 0 }
#define T2(n)                                                                                                \
    { "v_" #n, "duu", v_##n, EMU_VALU, 0 }
#define T3(n)                                                                                                \
    { "v_" #n, "duuu", v_##n, EMU_VALU, 0 }
#define TH1(n)                                                                                               \
    { "v_" #n, "hw", v_##n, EMU_VALU, 0 }
#define TH2(n)                                                                                               \
    { "v_" #n, "hww", v_##n, EMU_VALU, 0 }
#define TH3(n)                                                                                               \
    { "v_" #n, "hwww", v_##n, EMU_VALU, 0 }
const emu_def emu_ops_int[] = {T1(mov_b32),
                               T1(not_b32),
                               T1(bfrev_b32),
                               T1(clz_i32_u32),
                               T1(ctz_i32_b32),
                               T1(cls_i32),
                               T2(and_b32),
                               T2(or_b32),
                               T2(xor_b32),
                               T2(xnor_b32),
                               T2(lshlrev_b32),
                               T2(lshrrev_b32),
                               T2(ashrrev_i32),
                               T2(add_nc_u32),
                               T2(sub_nc_u32),
                               T2(subrev_nc_u32),
                               T2(add_nc_i32),
                               T2(sub_nc_i32),
                               T2(mul_lo_u32),
                               T2(mul_hi_u32),
                               T2(mul_hi_i32),
                               T2(mul_u32_u24),
                               T2(mul_i32_i24),
                               T2(mul_hi_u32_u24),
                               T2(mul_hi_i32_i24),
                               T2(min_u32),
                               T2(max_u32),
                               T2(min_i32),
                               T2(max_i32),
                               T2(bcnt_u32_b32),
                               T2(bfm_b32),
                               T3(mad_u32_u24),
                               T3(mad_i32_i24),
                               T3(add3_u32),
                               T3(xad_u32),
                               T3(xor3_b32),
                               T3(or3_b32),
                               T3(and_or_b32),
                               T3(lshl_or_b32),
                               T3(lshl_add_u32),
                               T3(add_lshl_u32),
                               T3(bfi_b32),
                               T3(bfe_u32),
                               T3(bfe_i32),
                               {"v_alignbit_b32", "duuw", v_alignbit_b32, EMU_VALU, 0},
                               {"v_alignbyte_b32", "duuw", v_alignbyte_b32, EMU_VALU, 0},
                               T3(perm_b32),
                               T3(min3_u32),
                               T3(max3_u32),
                               T3(min3_i32),
                               T3(max3_i32),
                               T3(med3_u32),
                               T3(med3_i32),
                               T3(maxmin_u32),
                               T3(maxmin_i32),
                               T3(minmax_u32),
                               T3(minmax_i32),
                               T3(sad_u8),
                               T3(sad_hi_u8),
                               T3(sad_u32),
                               {"v_lshlrev_b64", "Duq", v_lshlrev_b64, EMU_VALU, 0},
                               {"v_lshrrev_b64", "Duq", v_lshrrev_b64, EMU_VALU, 0},
                               {"v_ashrrev_i64", "Duq", v_ashrrev_i64, EMU_VALU, 0},
                               {"v_mad_u64_u32", "Dcuuq", v_mad_u64_u32, EMU_VALU, 0},
                               {"v_mad_i64_i32", "Dcuuq", v_mad_i64_i32, EMU_VALU, 0},
                               {"v_add_co_u32", "dcuu", v_add_co_u32, EMU_VALU, 0},
                               {"v_sub_co_u32", "dcuu", v_sub_co_u32, EMU_VALU, 0},
                               {"v_subrev_co_u32", "dcuu", v_subrev_co_u32, EMU_VALU, 0},
                               {"v_add_co_ci_u32", "dcuus", v_add_co_ci_u32, EMU_VALU, 0},
                               {"v_sub_co_ci_u32", "dcuus", v_sub_co_ci_u32, EMU_VALU, 0},
                               {"v_subrev_co_ci_u32", "dcuus", v_subrev_co_ci_u32, EMU_VALU, 0},
                               {"v_cndmask_b32", "duus", v_cndmask_b32, EMU_VALU, 0},
                               {"v_cndmask_b16", "hwws", v_cndmask_b16, EMU_VALU, 0},
                               TH1(mov_b16),
                               TH1(not_b16),
                               TH2(and_b16),
                               TH2(or_b16),
                               TH2(xor_b16),
                               TH2(lshlrev_b16),
                               TH2(lshrrev_b16),
                               TH2(ashrrev_i16),
                               TH2(add_nc_u16),
                               TH2(sub_nc_u16),
                               TH2(add_nc_i16),
                               TH2(sub_nc_i16),
                               TH2(mul_lo_u16),
                               TH2(min_u16),
                               TH2(max_u16),
                               TH2(min_i16),
                               TH2(max_i16),
                               TH3(mad_u16),
                               TH3(mad_i16),
                               TH3(min3_u16),
                               TH3(max3_u16),
                               TH3(min3_i16),
                               TH3(max3_i16),
                               TH3(med3_u16),
                               TH3(med3_i16),
                               {"v_mad_u32_u16", "dwwu", v_mad_u32_u16, EMU_VALU, 0},
                               {"v_mad_i32_i16", "dwwu", v_mad_i32_i16, EMU_VALU, 0},
                               {"v_cvt_u32_u16", "dw", v_cvt_u32_u16, EMU_VALU, 0},
                               {"v_cvt_i32_i16", "dw", v_cvt_i32_i16, EMU_VALU, 0},
                               {"v_swap_b32", "du", v_swap_b32, EMU_VALU, 0},
                               {NULL, NULL, NULL, 0, 0}};
