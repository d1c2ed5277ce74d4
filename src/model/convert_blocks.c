/* convert_blocks.c - ggml blocks as MLX affine groups of 32, without rounding a code.
 *
 * Q4_0  d * (q - 8)      Q5_0  d * (q - 16)     Q8_0  d * q, q signed
 * Q4_1  d * q + m        Q5_1  d * q + m
 * Q4_K, Q5_K             d * sc * q - dmin * mn, with 6-bit sc and mn for each of 8 groups in a block of 256
 * All are scale * q + bias. In the first five both are f16 numbers (-128 d, -16 d, -8 d only move the exponent);
 * of the K formats they are products of 17 bits, which f32 holds and f16 rounds. */
#include "model/convert_int.h"
#include <string.h>

mx_cv_grid mx_cv_block_grid(int ggml_type) {
    switch (ggml_type) {
    case MX_GGML_Q4_0:
    case MX_GGML_Q4_1: return (mx_cv_grid){4, true};
    case MX_GGML_Q5_0:
    case MX_GGML_Q5_1: return (mx_cv_grid){5, true};
    case MX_GGML_Q8_0: return (mx_cv_grid){8, true};
    case MX_GGML_Q4_K: return (mx_cv_grid){4, false};
    case MX_GGML_Q5_K: return (mx_cv_grid){5, false};
    default: return (mx_cv_grid){0, false};
    }
}

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return mx_f16_to_f32(h);
}

/* 16 bytes: low nibbles are values 0 to 15, high ones 16 to 31; qh, if there is one, holds their fifth bits. */
static void nibbles(uint8_t *q, const uint8_t *qs, const uint8_t *qh) {
    uint32_t high = 0;
    if (qh) memcpy(&high, qh, 4);
    for (int i = 0; i < 16; i++) {
        q[i] = (uint8_t)((qs[i] & 15) | (high >> i & 1) << 4);
        q[i + 16] = (uint8_t)(qs[i] >> 4 | (high >> (i + 16) & 1) << 4);
    }
}

/* The 6-bit scale and minimum of group g, out of 12 bytes. */
static void k_scale(const uint8_t *s, int g, int *sc, int *mn) {
    if (g < 4) {
        *sc = s[g] & 63;
        *mn = s[g + 4] & 63;
    } else {
        *sc = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        *mn = s[g + 4] >> 4 | (s[g] >> 6) << 4;
    }
}

static void k_block(int type, const uint8_t *p, uint8_t *q, float *scales, float *biases) {
    const float d = half_at(p), dmin = half_at(p + 2);
    const uint8_t *qh = type == MX_GGML_Q5_K ? p + 16 : NULL, *qs = p + (qh ? 48 : 16);
    for (int g = 0; g < 8; g++) {
        int sc, mn;
        k_scale(p + 4, g, &sc, &mn);
        scales[g] = d * (float)sc;
        biases[g] = -(dmin * (float)mn);
        for (int i = 0; i < 32; i++) { // two groups share 32 bytes
            const int low = g & 1 ? qs[g / 2 * 32 + i] >> 4 : qs[g / 2 * 32 + i] & 15;
            q[32 * g + i] = (uint8_t)(low | (qh ? (qh[i] >> g & 1) << 4 : 0));
        }
    }
}

void mx_cv_unpack_blocks(int type, const void *src, int64_t n, uint8_t *q, float *scales, float *biases) {
    const uint8_t *p = src;
    const int size = mx_ggml_bytes((uint32_t)type), block = mx_ggml_block((uint32_t)type);
    for (int64_t i = 0; i < n;
         i += block, p += size, q += block, scales += block / 32, biases += block / 32) {
        const float d = half_at(p);
        switch (type) {
        case MX_GGML_Q4_0:
            nibbles(q, p + 2, NULL);
            *biases = -8 * d;
            break;
        case MX_GGML_Q4_1:
            nibbles(q, p + 4, NULL);
            *biases = half_at(p + 2);
            break;
        case MX_GGML_Q5_0:
            nibbles(q, p + 6, p + 2);
            *biases = -16 * d;
            break;
        case MX_GGML_Q5_1:
            nibbles(q, p + 8, p + 4);
            *biases = half_at(p + 2);
            break;
        case MX_GGML_Q8_0:
            for (int k = 0; k < 32; k++) q[k] = p[2 + k] ^ 0x80; // signed to offset by 128
            *biases = -128 * d;
            break;
        default: k_block(type, p, q, scales, biases); continue;
        }
        *scales = d;
    }
}
