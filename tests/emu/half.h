/* half.h - 16-bit floats for the emulator: to and from f32, both exact or to nearest even, denormals kept. */
#ifndef EMU_HALF_H
#define EMU_HALF_H
#include "machine.h"
#include <immintrin.h>

FORCE F half_f(U h) { // the low 16 bits of each lane
    F r;
    for (int g = 0; g < 4; g++) {
        __m256i v;
        memcpy(&v, (const char *)&h + 32 * g, 32);
        v = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
        const __m128i p = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        const __m256 f = _mm256_cvtph_ps(p);
        memcpy((char *)&r + 32 * g, &f, 32);
    }
    return r;
}
FORCE U f_half(F f) {
    U r;
    for (int g = 0; g < 4; g++) {
        __m256 v;
        memcpy(&v, (const char *)&f + 32 * g, 32);
        const __m256i h =
            _mm256_cvtepu16_epi32(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        memcpy((char *)&r + 32 * g, &h, 32);
    }
    return r;
}
/* An exact f64 result to f16 in one rounding. */
static inline uint16_t d_half(double d) {
    const uint64_t b = __builtin_bit_cast(uint64_t, d);
    const uint16_t sign = (uint16_t)(b >> 48 & 0x8000);
    const double m = __builtin_fabs(d);
    if (m != m) return sign | 0x7E00;
    if (m >= 65520.0) return sign | 0x7C00;
    if (m < 0x1p-14)
        return sign | (uint16_t)__builtin_rint(m * 0x1p24); // denormals, and 2^-14 by rounding up
    const int e = (int)(b >> 52 & 2047) - 1023;
    const double scaled = m * __builtin_ldexp(1.0, 10 - e);
    return (uint16_t)(sign |
                      (((e + 14) << 10) + (int)__builtin_rint(scaled))); // a carry goes into the exponent
}
static inline double half_d(uint16_t h) { return (double)_cvtsh_ss(h); }
#endif
