/* number.c - the number formats: bf16, f16, E2M1, E4M3, E8M0, to f32 and back.
 *
 * Everything is integer work on the bits, without a branch in the loops over arrays, so that the compiler vectorizes
 * them, and without f32 subnormals as helpers, so that a thread that flushes them to zero gets the same numbers. */
#include "quant/quant.h"
#include <string.h>

static inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float v;
    memcpy(&v, &u, 4);
    return v;
}

static inline float bf16_to_f32(uint16_t v) { return float_of((uint32_t)v << 16); }

static inline uint16_t f32_to_bf16(float v) {
    const uint32_t u = bits_of(v);
    const uint32_t rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16;
    const uint32_t nan = u >> 16 | 0x40; // quiet, so that a NaN whose payload sits in the low half stays one
    return (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}

static inline float f16_to_f32(uint16_t v) {
    const uint32_t mag = (uint32_t)(v & 0x7FFF) << 13;
    const uint32_t normal = mag + ((127 - 15) << 23);
    const uint32_t special = mag | 0x7F800000;
    const uint32_t small = bits_of(float_of(mag | 0x38800000) - 0x1p-14f); // 2^-14 + m * 2^-24, less 2^-14
    const uint32_t u = (v & 0x7C00) == 0x7C00 ? special : (v & 0x7C00) == 0 ? small : normal;
    return float_of(u | (uint32_t)(v & 0x8000) << 16);
}

static inline uint16_t f32_to_f16(float v) {
    const uint32_t u = bits_of(v), mag = u & 0x7FFFFFFF;
    const uint32_t normal = (mag - ((127 - 15) << 23) + 0xFFF + (mag >> 13 & 1)) >> 13;
    const uint32_t small =
        bits_of(float_of(mag < 0x38800000 ? mag : 0) + 0.5f) - 0x3F000000; // unit of 0.5f: 2^-24
    uint32_t h = mag < 0x38800000 ? small : normal;
    h = mag >= 0x477FF000 ? 0x7C00 : h; // 65520, half way to the first power beyond, goes to infinity
    h = mag > 0x7F800000 ? 0x7E00 : h;
    return (uint16_t)(h | (u >> 16 & 0x8000));
}

float mx_bf16_to_f32(uint16_t v) { return bf16_to_f32(v); }
uint16_t mx_f32_to_bf16(float v) { return f32_to_bf16(v); }
float mx_f16_to_f32(uint16_t v) { return f16_to_f32(v); }
uint16_t mx_f32_to_f16(float v) { return f32_to_f16(v); }

float mx_e2m1_to_f32(unsigned v) {
    static const float table[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return table[v & 15];
}

/* Four exponent bits (bias 7), three of mantissa; no infinities, so the largest number is 448. */
float mx_e4m3_to_f32(uint8_t v) {
    const uint32_t sign = (uint32_t)(v & 0x80) << 24, e = v >> 3 & 15, m = v & 7;
    if ((v & 0x7F) == 0x7F) return float_of(sign | 0x7FC00000);
    if (e == 0) return float_of(sign | bits_of((float)m * 0x1p-9f));
    return float_of(sign | (e + 127 - 7) << 23 | m << 20);
}

float mx_e8m0_to_f32(uint8_t v) {
    if (v == 255) return float_of(0x7FC00000);
    return float_of(v ? (uint32_t)v << 23 : 0x00400000); // 2^-127 is subnormal in f32
}

uint8_t mx_f32_to_e4m3(float v) {
    const uint32_t u = bits_of(v), mag = u & 0x7FFFFFFF;
    uint32_t r;
    if (mag > 0x7F800000)
        r = 0x7F;
    else if (mag >= 0x43E00000) // 448
        r = 0x7E;
    else if (mag < 0x3C800000) // 2^-6: the unit of 2^14 is 2^-9
        r = bits_of(float_of(mag) + 0x1p14f) - 0x46800000;
    else
        r = (mag - ((127 - 7) << 23) + 0x7FFFF + (mag >> 20 & 1)) >> 20;
    return (uint8_t)(r | (u >> 24 & 0x80));
}

bool mx_e4m3_has_nan(const void *codes, size_t n, size_t *at) {
    const uint8_t *p = codes;
    enum { STRIDE = 4096 };
    for (size_t from = 0; from < n; from += STRIDE) {
        const size_t to = n - from < STRIDE ? n : from + STRIDE;
        int nans = 0;
        for (size_t i = from; i < to; i++) nans += (p[i] & 0x7F) == 0x7F;
        for (size_t i = from; nans && i < to; i++)
            if ((p[i] & 0x7F) == 0x7F) {
                *at = i;
                return true;
            }
    }
    return false;
}

void mx_to_f32(float *out, const void *p, mx_dtype t, size_t n) {
    const unsigned char *b = p;
    uint16_t h;
    switch (t) {
    case MX_F32: memcpy(out, p, n * sizeof *out); break;
    case MX_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, b + 2 * i, 2);
            out[i] = f16_to_f32(h);
        }
        break;
    case MX_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, b + 2 * i, 2);
            out[i] = bf16_to_f32(h);
        }
        break;
    }
}

void mx_from_f32(void *out, mx_dtype t, const float *p, size_t n) {
    unsigned char *b = out;
    uint16_t h;
    switch (t) {
    case MX_F32: memcpy(out, p, n * sizeof *p); break;
    case MX_F16:
        for (size_t i = 0; i < n; i++) {
            h = f32_to_f16(p[i]);
            memcpy(b + 2 * i, &h, 2);
        }
        break;
    case MX_BF16:
        for (size_t i = 0; i < n; i++) {
            h = f32_to_bf16(p[i]);
            memcpy(b + 2 * i, &h, 2);
        }
        break;
    }
}
