/* vec.h - a vector of f32 as wide as the file is compiled for, and the few functions that kernels need of it.
 *
 * Kernels (*_kernels.c) are written once and compiled three times: for the machine's base instructions (4
 * lanes), for AVX2 with FMA and F16C (8) and for AVX-512 (16). VARIANT(name) gives each copy its own symbol;
 * the arithmetic of one value may differ between copies in the order of sums, never within one. */
#ifndef MX_CPU_VEC_H
#define MX_CPU_VEC_H
#include "quant/quant.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define VEC static inline __attribute__((always_inline, unused))
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#if defined(__AVX512F__)
enum { VL = 16 }; // lanes
#define VARIANT(name) PASTE(name, _avx512)
#elif defined(__AVX2__)
enum { VL = 8 };
#define VARIANT(name) PASTE(name, _avx2)
#else
enum { VL = 4 };
#define VARIANT(name) PASTE(name, _base)
#endif
typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4))); // also masks: each lane 0 or -1
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));

VEC vf v_set(float x) { return x - (vf){0}; }
VEC vf v_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VEC void v_store(float *p, vf v) { memcpy(p, &v, sizeof v); }

#if defined(__AVX512F__)
VEC vf v_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
VEC vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); } // b where one is NaN
VEC vf v_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
VEC vf v_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
VEC vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
VEC vf v_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
VEC vf v_fma(vf a, vf b, vf c) { return a * b + c; }
VEC vf v_pick_(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
VEC vf v_max(vf a, vf b) { return v_pick_(a > b, a, b); }
VEC vf v_min(vf a, vf b) { return v_pick_(a < b, a, b); }
#endif
VEC vf v_pick(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); } // mask ? a : b
VEC vf v_abs(vf x) { return (vf)((vi)x & 0x7FFFFFFF); }

/* Sums and maxima over lanes: halves first, always in this order. */
VEC float v_sum(vf v) {
    float a[VL];
    v_store(a, v);
    for (int h = VL / 2; h; h /= 2)
        for (int i = 0; i < h; i++) a[i] += a[i + h];
    return a[0];
}
VEC float v_top(vf v) { // NaN lanes may be lost
    float a[VL];
    v_store(a, v);
    for (int h = VL / 2; h; h /= 2)
        for (int i = 0; i < h; i++) a[i] = a[i] > a[i + h] ? a[i] : a[i + h];
    return a[0];
}

/* The sums over lanes of four vectors at once: out[i] = sum of v[i]. */
VEC void v_sum4(float *out, vf a, vf b, vf c, vf d) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
#define HALF_(v) _mm256_add_ps(_mm512_castps512_ps256((__m512)(v)), _mm512_extractf32x8_ps((__m512)(v), 1))
    __m256 a8 = HALF_(a), b8 = HALF_(b), c8 = HALF_(c), d8 = HALF_(d);
#undef HALF_
#else
    __m256 a8 = (__m256)a, b8 = (__m256)b, c8 = (__m256)c, d8 = (__m256)d;
#endif
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a8, b8), _mm256_hadd_ps(c8, d8));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
#else
    out[0] = v_sum(a), out[1] = v_sum(b), out[2] = v_sum(c), out[3] = v_sum(d);
#endif
}

/* VL numbers of type t at p to f32, and back (to nearest even; NaN stays NaN). */
VEC vf v_load_as(const void *p, mx_dtype t) {
    if (t == MX_F32) return v_load(p);
#if defined(__AVX512F__)
    if (t == MX_BF16)
        return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__) // gcc 12 makes five instructions of the general form
    if (t == MX_BF16)
        return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    if (t == MX_BF16) {
        vh h;
        memcpy(&h, p, sizeof h);
        return (vf)(__builtin_convertvector(h, vu) << 16);
    }
#endif
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    uint16_t h[VL];
    float f[VL];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < VL; i++) f[i] = mx_f16_to_f32(h[i]);
    return v_load(f);
#endif
}
VEC void v_store_as(void *p, mx_dtype t, vf v) {
    if (t == MX_F32) {
        v_store(p, v);
    } else if (t == MX_BF16) {
        vu u = (vu)v, r = (u + 0x7FFF + (u >> 16 & 1)) >> 16, nan = u >> 16 | 64;
        vi is_nan = v != v;
        vh h = __builtin_convertvector((vu)((is_nan & (vi)nan) | (~is_nan & (vi)r)), vh);
        memcpy(p, &h, sizeof h);
    } else {
#if defined(__AVX512F__)
        _mm256_storeu_si256((__m256i *)p,
                            _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
        _mm_storeu_si128((__m128i *)p,
                         _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
        uint16_t h[VL];
        for (int i = 0; i < VL; i++) h[i] = mx_f32_to_f16(v[i]);
        memcpy(p, h, sizeof h);
#endif
    }
}

/* The first n < VL numbers, the other lanes 0; and the store of n. */
VEC vf v_load_n(const float *p, int n) {
    float a[VL] = {0};
    memcpy(a, p, (size_t)n * sizeof *a);
    return v_load(a);
}
VEC void v_store_n(float *p, vf v, int n) {
    float a[VL];
    v_store(a, v);
    memcpy(p, a, (size_t)n * sizeof *a);
}

/* e^(x - n ln 2) for an integer n near x / ln 2. */
VEC vf v_exp_fraction(vf x, vf n) {
    vf r =
        v_fma(n, v_set(-0x1.63p-1f), x); // ln 2 in two parts; the first has few bits, so the product is exact
    r = v_fma(n, v_set(0x1.bd0106p-13f), r);
    vf p = v_fma(v_set(0x1.6a1a72p-10f), r, v_set(0x1.123fc6p-7f));
    p = v_fma(p, r, v_set(0x1.555916p-5f));
    p = v_fma(p, r, v_set(0x1.55548ap-3f));
    p = v_fma(p, r, v_set(0x1.fffffcp-2f));
    return v_fma(p, r * r, r) + 1;
}

/* e^x to about 1 unit in the last place: a polynomial, and 2^n in two factors, so that the ends run out into
 * infinity and 0 as they should. NaN stays NaN. */
VEC vf v_exp(vf x) {
    x = v_max(v_set(-104), v_min(v_set(89), x)); // NaN passes: it is the second argument
    vf t =
        v_fma(x, v_set(0x1.715476p+0f), v_set(0x1.8p23f)); // round to an integer by its place in the mantissa
    vf p = v_exp_fraction(x, t - 0x1.8p23f);
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)(t - 0x1.8p23f));
#else
    vi e = (vi)t - 0x4B400000, half = e >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((e - half + 127) << 23);
#endif
}
VEC float v_exp1(float x) { return v_exp(v_set(x))[0]; }

/* 1 / (1 + e^-x): the same e^x, but held within the range of normal numbers, where one factor of 2^n is
 * enough. */
VEC vf v_sigmoid(vf x) {
    vf y = v_max(v_set(-87), v_min(v_set(87), -x));
    vf t = v_fma(y, v_set(0x1.715476p+0f), v_set(0x1.8p23f));
    vf p = v_exp_fraction(y, t - 0x1.8p23f);
    vf s =
        1 / v_fma(p, (vf)(((vi)t << 23) + (127 << 23)), v_set(1)); // the integer stands in the low bits of t
    return v_pick(x < -87, v_set(0), s);
}

VEC vf v_tanh(vf x) {
    vf a = v_abs(x), z = x * x;
    vf p = v_fma(v_set(-0x1.76ac16p-8f), z, v_set(0x1.5256d6p-6f));
    p = v_fma(p, z, v_set(-0x1.b84448p-5f));
    p = v_fma(p, z, v_set(0x1.110768p-3f));
    p = v_fma(p, z, v_set(-0x1.555534p-2f));
    p = v_fma(p * z, x, x);
    vf big = 1 - 2 / (1 + v_exp(a + a));
    big = (vf)((vi)big | ((vi)x & INT32_MIN)); // big is not negative: take x's sign
    return v_pick(a < 0.625f, p, big);
}

#endif
