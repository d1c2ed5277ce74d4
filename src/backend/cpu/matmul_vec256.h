/* matmul_vec256.h - the vectors of the matrix kernels in 256 bits: AVX2, FMA, F16C. */
#ifndef MX_BACKEND_CPU_MATMUL_VEC256_H
#define MX_BACKEND_CPU_MATMUL_VEC256_H
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define MX_MM_VB 32              // bytes of a vector
enum { VL = 8, XR = 3, MR = 6 }; // 3 x 4 and 6 x 2 sums: 12 of 16 registers
typedef __m256 vf;
typedef __m256i vi;
#define OP static inline __attribute__((always_inline))

OP vf vf_load(const void *p) { return _mm256_loadu_ps(p); }
OP void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
OP vf vf_zero(void) { return _mm256_setzero_ps(); }
OP vf vf_set1(float v) { return _mm256_set1_ps(v); }
OP vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
OP vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
OP vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
OP vf vf_cvt(vi v) { return _mm256_cvtepi32_ps(v); }
OP vf vf_perm(vf v, vi lane) { return _mm256_permutevar8x32_ps(v, lane); }
OP float vf_sum(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
OP vf vf_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
OP vf vf_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
OP vi vi_first(int n) { // all ones in the first n lanes
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OP vf vf_load_n(const void *p, int n) {
    return _mm256_maskload_ps(p, vi_first(n));
} // the first n lanes, 0 < n < 8; the others 0
OP vf vf_first(vf v, int n) { return _mm256_and_ps(v, _mm256_castsi256_ps(vi_first(n))); } // the same of v
OP vf vf_e4m3(vi v) { // 8 codes, one in each 32-bit lane
    __m256i mag = _mm256_and_si256(v, _mm256_set1_epi32(0x7F));
    __m256i bits = _mm256_or_si256(_mm256_slli_epi32(mag, 20),
                                   _mm256_slli_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0x80)), 24));
    __m256 f = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
    __m256i nan = _mm256_cmpeq_epi32(mag, _mm256_set1_epi32(0x7F));
    return _mm256_or_ps(f, _mm256_castsi256_ps(nan)); // all ones is a NaN
}

OP vf vf_e8m0(vi v) { // exponents, one in each 32-bit lane; 0 is 2^-127, 255 is NaN
    __m256i f = _mm256_max_epu32(_mm256_slli_epi32(v, 23), _mm256_set1_epi32(0x00400000));
    __m256i nan = _mm256_cmpeq_epi32(v, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_or_si256(f, nan));
}
OP vi vi_u8(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); } // 8 bytes

OP vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
OP void vi_store(void *p, vi v) { _mm256_storeu_si256(p, v); }
OP vi vi_zero(void) { return _mm256_setzero_si256(); }
OP vi vi_set16(int v) { return _mm256_set1_epi16((int16_t)v); }
OP vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
#define vi_srl16(v, n) _mm256_srli_epi16(v, n)
#define vi_sll16(v, n) _mm256_slli_epi16(v, n)
#define vi_sra16(v, n) _mm256_srai_epi16(v, n)
OP vi vi_mul16(vi a, vi b) { return _mm256_mullo_epi16(a, b); }
OP vi vi_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
OP vi vi_max32(vi a, vi b) { return _mm256_max_epi32(a, b); }
OP vi vi_shuffle(vi v, vi byte) { return _mm256_shuffle_epi8(v, byte); }
OP vi vi_perm(vi v, vi word) { return _mm256_permutevar8x32_epi32(v, word); }
OP vi vi_bcast128(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(p)); }
OP vi vi_bcast32(const void *p) { return _mm256_castps_si256(_mm256_broadcast_ss(p)); }
OP vi vi_dot16_first(vi a, vi b) { return _mm256_madd_epi16(a, b); }
OP vi vi_dot16(vi c, vi a, vi b) { return _mm256_add_epi32(c, _mm256_madd_epi16(a, b)); }
/* The same for sums that must stay in registers: gcc 12 otherwise keeps two copies of each and spills. */
#define vi_dot16_keep(c, a, b)                                                                               \
    do {                                                                                                     \
        (c) = _mm256_add_epi32(c, _mm256_madd_epi16(a, b));                                                  \
        __asm__("" : "+x"(c));                                                                               \
    } while (0)
#define vf_fma_keep(c, a, b)                                                                                 \
    do {                                                                                                     \
        (c) = _mm256_fmadd_ps(a, b, c);                                                                      \
        __asm__("" : "+x"(c));                                                                               \
    } while (0)
OP vi vi_i16(vi v, int half) { // 8 of the 16-bit lanes, signed
    return _mm256_cvtepi16_epi32(half ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v));
}
OP vi vi_u16(vi v, int half) { return vi_i16(v, half); } // codes of 8 bits: no sign to extend
OP vi vi_round(vf v) { return _mm256_cvtps_epi32(v); }
OP vi vi_abs_bits(vf v) { return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF)); }
OP int32_t vi_top32(vi v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}
OP int32_t vi_sum32(vi v) {
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}
OP vi vi_div_iota(int by, int group) { // lane l: l * by / group, group a power of two
    __m256i l = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(by));
    return _mm256_srl_epi32(l, _mm_cvtsi32_si128(__builtin_ctz((unsigned)group)));
}
OP void vi_transpose(vi *v) { // 8 x 8 words
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

#endif
