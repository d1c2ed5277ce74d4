/* matmul_vec512.h - the vectors of the matrix kernels in 512 bits: AVX-512 F, BW, VL, DQ; with MX_VNNI also its 16-bit dot product. */
#ifndef MX_BACKEND_CPU_MATMUL_VEC512_H
#define MX_BACKEND_CPU_MATMUL_VEC512_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define MX_MM_VB 64                // bytes of a vector
enum { VL = 16, XR = 6, MR = 12 }; // 6 x 4 and 12 x 2 sums: 24 of 32 registers
typedef __m512 vf;
typedef __m512i vi;
#define OP static inline __attribute__((always_inline))

OP vf vf_load(const void *p) { return _mm512_loadu_ps(p); }
OP void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
OP vf vf_zero(void) { return _mm512_setzero_ps(); }
OP vf vf_set1(float v) { return _mm512_set1_ps(v); }
OP vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
OP vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
OP vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
OP vf vf_cvt(__m512i v) { return _mm512_cvtepi32_ps(v); }
OP vf vf_perm(vf v, vi lane) { return _mm512_permutexvar_ps(lane, v); }
OP float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
OP vf vf_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
OP vf vf_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
OP vf vf_load_n(const void *p, int n) { // the first n lanes, 0 < n < 16; the others 0
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
OP vf vf_first(vf v, int n) { return _mm512_maskz_mov_ps((__mmask16)((1u << n) - 1), v); } // the same of v
OP vf vf_e4m3(vi v) { // 16 codes, one in each 32-bit lane
    __m512i mag = _mm512_and_si512(v, _mm512_set1_epi32(0x7F));
    __m512i bits = _mm512_or_si512(_mm512_slli_epi32(mag, 20),
                                   _mm512_slli_epi32(_mm512_and_si512(v, _mm512_set1_epi32(0x80)), 24));
    __m512 f = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(mag, _mm512_set1_epi32(0x7F));
    return _mm512_mask_blend_ps(nan, f, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
}
OP vf vf_e8m0(vi v) { // exponents, one in each 32-bit lane; 0 is 2^-127, 255 is NaN
    __m512i f = _mm512_max_epu32(_mm512_slli_epi32(v, 23), _mm512_set1_epi32(0x00400000));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(v, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(nan, f, _mm512_set1_epi32(0x7FC00000)));
}
OP vi vi_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); } // 16 bytes

OP vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
OP void vi_store(void *p, vi v) { _mm512_storeu_si512(p, v); }
OP vi vi_zero(void) { return _mm512_setzero_si512(); }
OP vi vi_set16(int v) { return _mm512_set1_epi16((int16_t)v); }
OP vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
#define vi_srl16(v, n) _mm512_srli_epi16(v, n)
#define vi_sll16(v, n) _mm512_slli_epi16(v, n)
#define vi_sra16(v, n) _mm512_srai_epi16(v, n)
OP vi vi_mul16(vi a, vi b) { return _mm512_mullo_epi16(a, b); }
OP vi vi_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
OP vi vi_max32(vi a, vi b) { return _mm512_max_epi32(a, b); }
OP vi vi_shuffle(vi v, vi byte) { return _mm512_shuffle_epi8(v, byte); }
OP vi vi_perm(vi v, vi word) { return _mm512_permutexvar_epi32(word, v); }
OP vi vi_bcast128(const void *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(p)); }
OP vi vi_bcast32(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}
OP vi vi_dot16_first(vi a, vi b) { return _mm512_madd_epi16(a, b); }
#ifdef MX_VNNI
OP vi vi_dot16(vi c, vi a, vi b) { return _mm512_dpwssd_epi32(c, a, b); }
#else
OP vi vi_dot16(vi c, vi a, vi b) { return _mm512_add_epi32(c, _mm512_madd_epi16(a, b)); }
#endif
/* For sums that must stay in registers: gcc 12 otherwise keeps two copies of each and spills. */
#define vi_dot16_keep(c, a, b)                                                                               \
    do {                                                                                                     \
        (c) = vi_dot16(c, a, b);                                                                             \
        __asm__("" : "+v"(c));                                                                               \
    } while (0)
#define vf_fma_keep(c, a, b)                                                                                 \
    do {                                                                                                     \
        (c) = _mm512_fmadd_ps(a, b, c);                                                                      \
        __asm__("" : "+v"(c));                                                                               \
    } while (0)
OP vi vi_i16(vi v, int half) { // 16 of the 16-bit lanes, signed
    return _mm512_cvtepi16_epi32(half ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v));
}
OP vi vi_u16(vi v, int half) { return vi_i16(v, half); } // codes of 8 bits: no sign to extend
OP vi vi_round(vf v) { return _mm512_cvtps_epi32(v); }
OP vi vi_abs_bits(vf v) { return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7FFFFFFF)); }
OP int32_t vi_top32(vi v) { return _mm512_reduce_max_epi32(v); }
OP int32_t vi_sum32(vi v) { return _mm512_reduce_add_epi32(v); }
OP vi vi_div_iota(int by, int group) { // lane l: l * by / group, group a power of two
    __m512i l = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    l = _mm512_mullo_epi32(l, _mm512_set1_epi32(by));
    return _mm512_srl_epi32(l, _mm_cvtsi32_si128(__builtin_ctz((unsigned)group)));
}
OP void vi_transpose(vi *v) { // 16 x 16 words: in pairs, in fours, then the 128-bit lanes
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { // lane L of b[4 g + c]: column 4 L + c of rows 4 g .. 4 g + 3
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i even0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88),
                odd0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xDD);
        __m512i even1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xDD);
        v[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        v[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
        v[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        v[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
    }
}

#endif
