/* memory.h - what ops_memory.c and ops_lds.c share: words of 32 lanes from 32 places, and the atomic operations. */
#ifndef EMU_MEMORY_H
#define EMU_MEMORY_H
#include "machine.h"
#include <immintrin.h>

/* r[j] lane i = word j of p[i], for 2 to 4 words. Four lanes at a time are a 4 x 4 transposition. */
FORCE void gather_words(U *r, const uint8_t *const p[LANES], unsigned n) {
    if (n == 4) {
        for (int i = 0; i < LANES; i += 4) {
            const __m128i a = _mm_loadu_si128((const __m128i *)p[i]),
                          b = _mm_loadu_si128((const __m128i *)p[i + 1]);
            const __m128i c = _mm_loadu_si128((const __m128i *)p[i + 2]),
                          d = _mm_loadu_si128((const __m128i *)p[i + 3]);
            const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d),
                          ab2 = _mm_unpackhi_epi32(a, b), cd2 = _mm_unpackhi_epi32(c, d);
            _mm_store_si128((__m128i *)((uint32_t *)&r[0] + i), _mm_unpacklo_epi64(ab, cd));
            _mm_store_si128((__m128i *)((uint32_t *)&r[1] + i), _mm_unpackhi_epi64(ab, cd));
            _mm_store_si128((__m128i *)((uint32_t *)&r[2] + i), _mm_unpacklo_epi64(ab2, cd2));
            _mm_store_si128((__m128i *)((uint32_t *)&r[3] + i), _mm_unpackhi_epi64(ab2, cd2));
        }
        return;
    }
    for (unsigned j = 0; j < n; j++)
        for (int i = 0; i < LANES; i++) memcpy((uint32_t *)&r[j] + i, p[i] + 4 * j, 4);
}

typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
#define from_u32(v) (v)
#define to_u32(v) (v)
#define from_i32(v) ((int32_t)(v))
#define to_i32(v) ((uint32_t)(v))
#define from_u64(v) (v)
#define to_u64(v) (v)
#define from_i64(v) ((int64_t)(v))
#define to_i64(v) ((uint64_t)(v))
#define from_f32(v) (__builtin_bit_cast(float, v))
#define to_f32(v) (__builtin_bit_cast(uint32_t, (float)(v)))
/* The data of a lane: y; for compare-and-swap y is the new value and z what is compared. */
FORCE uint32_t lane_data_u32(emu_wave *w, const emu_op *o, int i, int k) {
    return w->v[(o->r[2] + k) & 255][i];
}
FORCE uint64_t lane_data_u64(emu_wave *w, const emu_op *o, int i, int k) {
    return w->v[(o->r[2] + 2 * k) & 255][i] | (uint64_t)w->v[(o->r[2] + 2 * k + 1) & 255][i] << 32;
}
// Rows of macros without semicolons look like one statement to it.
// clang-format off
#define ATOMICS(X)                                                                                           \
    X(add_u32, u32, u32, x + y)                                                                              \
    X(sub_u32, u32, u32, x - y)                                                                              \
    X(and_b32, u32, u32, x &y) X(or_b32, u32, u32, x | y) X(xor_b32, u32, u32, x ^ y)                        \
        X(min_u32, u32, u32, x < y ? x : y) X(max_u32, u32, u32, x > y ? x : y)                              \
            X(min_i32, u32, i32, x < y ? x : y) X(max_i32, u32, i32, x > y ? x : y)                          \
                X(inc_u32, u32, u32, x >= y ? 0 : x + 1) X(dec_u32, u32, u32, x == 0 || x > y ? y : x - 1)   \
                    X(swap_b32, u32, u32, y) X(cmpswap_b32, u32, u32, x == z ? y : x)                        \
                        X(add_f32, u32, f32, x + y) X(min_f32, u32, f32, x < y ? x : y)                      \
                            X(max_f32, u32, f32, x > y ? x : y) X(add_u64, u64, u64, x + y)                  \
                                X(sub_u64, u64, u64, x - y) X(and_b64, u64, u64, x &y)                       \
                                    X(or_b64, u64, u64, x | y) X(xor_b64, u64, u64, x ^ y)                   \
                                        X(min_u64, u64, u64, x < y ? x : y)                                  \
                                            X(max_u64, u64, u64, x > y ? x : y)                              \
                                                X(min_i64, u64, i64, x < y ? x : y)                          \
                                                    X(max_i64, u64, i64, x > y ? x : y)                      \
                                                        X(swap_b64, u64, u64, y)                             \
                                                            X(cmpswap_b64, u64, u64, x == z ? y : x)
#endif
