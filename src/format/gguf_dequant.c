/* gguf_dequant.c - one function a block format; each expands one block.
 *
 * A block of the simple formats holds 32 values: the low nibbles of 16 bytes are values 0 to 15, the high ones 16 to 31.
 * A K-quant block holds 256 values in groups of 16 or 32 that share a 4, 6 or 8 bit scale, itself in units of the block's
 * f16 scale d. The layouts are those of ggml's documentation of its block structs. */
#include "format/gguf_dequant.h"
#include <string.h>

typedef const unsigned char *bytes;

static float f16(bytes p) {
    uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    uint32_t sign = (h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 0x3FF, bits;
    float f;
    if (exp == 0) { // zero or subnormal: frac * 2^-24, exact in f32
        f = (float)frac * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exp == 31 ? 0x7F800000 : (exp + 112) << 23) | frac << 13;
    memcpy(&f, &bits, 4);
    return f;
}

static void block_f32(bytes b, float *y) { memcpy(y, b, 4); }
static void block_f16(bytes b, float *y) { *y = f16(b); }

static void block_bf16(bytes b, float *y) {
    uint32_t bits = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 24;
    memcpy(y, &bits, 4);
}

static int nibble(bytes qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

static void block_q4_0(bytes b, float *y) { // d f16, qs[16]
    float d = f16(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void block_q4_1(bytes b, float *y) { // d f16, m f16, qs[16]
    float d = f16(b), m = f16(b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * (float)nibble(b + 4, i) + m;
}

/* The fifth bits of 32 values: bit i of a 32-bit word. */
static int fifth(bytes qh, int i) { return (qh[i / 8] >> i % 8 & 1) << 4; }

static void block_q5_0(bytes b, float *y) { // d f16, qh[4], qs[16]
    float d = f16(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
}

static void block_q5_1(bytes b, float *y) { // d f16, m f16, qh[4], qs[16]
    float d = f16(b), m = f16(b + 2);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + m;
}

static void block_q8_0(bytes b, float *y) { // d f16, int8 qs[32]
    float d = f16(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)(signed char)b[2 + i];
}

static const signed char iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void block_iq4_nl(bytes b, float *y) { // d f16, qs[16]
    float d = f16(b);
    for (int i = 0; i < 32; i++) y[i] = d * (float)iq4[nibble(b + 2, i)];
}

static void block_iq4_xs(bytes b, float *y) { // d f16, high scale bits u16, low scale bits [4], qs[8][16]
    float d = f16(b);
    int high = b[2] | b[3] << 8;
    for (int g = 0; g < 8; g++) {
        int scale = (b[4 + g / 2] >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4;
        float dl = d * (float)(scale - 32);
        for (int i = 0; i < 32; i++) y[g * 32 + i] = dl * (float)iq4[nibble(b + 8 + g * 16, i)];
    }
}

static void block_mxfp4(bytes b, float *y) { // E8M0 scale, qs[16]; values are doubled, so the scale is halved
    static const signed char e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d;
    memcpy(&d, &bits, 4);
    for (int i = 0; i < 32; i++) y[i] = d * (float)e2m1[nibble(b + 1, i)];
}

static void block_q2_k(bytes b, float *y) { // scales[16], qs[64], d f16, dmin f16
    bytes qs = b + 16;
    float d = f16(b + 80), dmin = f16(b + 82);
    for (int g = 0; g < 16; g++) { // 16 values with a 4-bit scale and a 4-bit minimum
        float dl = d * (float)(b[g] & 15), ml = dmin * (float)(b[g] >> 4);
        bytes q = qs + g / 8 * 32 + g % 2 * 16;
        for (int i = 0; i < 16; i++) y[g * 16 + i] = dl * (float)(q[i] >> g % 8 / 2 * 2 & 3) - ml;
    }
}

static void block_q3_k(bytes b, float *y) { // high bits[32], qs[64], scales[12], d f16
    bytes qs = b + 32, sc = b + 96;
    float d = f16(b + 108);
    for (int g = 0; g < 16; g++) { // 16 values with a 6-bit scale
        int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4, high = sc[8 + g % 4] >> g / 4 * 2 & 3;
        float dl = d * (float)((low | high << 4) - 32);
        for (int i = 0; i < 16; i++) {
            int at = g % 2 * 16 + i, q = qs[g / 8 * 32 + at] >> g % 8 / 2 * 2 & 3;
            if (!(b[at] >> g / 2 & 1)) q -= 4; // the bit is set where nothing is taken off
            y[g * 16 + i] = dl * (float)q;
        }
    }
}

/* The 6-bit scale and minimum of group g out of the 12 bytes that hold 8 of each. */
static void scale_min(bytes s, int g, int *scale, int *min) {
    if (g < 4) {
        *scale = s[g] & 63;
        *min = s[g + 4] & 63;
    } else {
        *scale = (s[g + 4] & 15) | (s[g - 4] >> 2 & 48);
        *min = s[g + 4] >> 4 | (s[g] >> 2 & 48);
    }
}

static void block_q4_k(bytes b, float *y) { // d f16, dmin f16, scales[12], qs[128]
    float d = f16(b), dmin = f16(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        bytes q = b + 16 + g / 2 * 32;
        for (int i = 0; i < 32; i++) y[g * 32 + i] = dl * (float)(q[i] >> g % 2 * 4 & 15) - ml;
    }
}

static void block_q5_k(bytes b, float *y) { // d f16, dmin f16, scales[12], fifth bits[32], qs[128]
    float d = f16(b), dmin = f16(b + 2);
    for (int g = 0; g < 8; g++) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        float dl = d * (float)scale, ml = dmin * (float)min;
        bytes qh = b + 16, q = b + 48 + g / 2 * 32;
        for (int i = 0; i < 32; i++)
            y[g * 32 + i] = dl * (float)((q[i] >> g % 2 * 4 & 15) | (qh[i] >> g & 1) << 4) - ml;
    }
}

static void block_q6_k(bytes b, float *y) { // ql[128], qh[64], int8 scales[16], d f16
    bytes ql = b, qh = b + 128, sc = b + 192;
    float d = f16(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, r = i % 128;
        int low = ql[half * 64 + r % 64] >> r / 64 * 4 & 15, high = qh[half * 32 + r % 32] >> r / 32 * 2 & 3;
        float dl = d * (float)(signed char)sc[i / 16];
        y[i] = dl * (float)((low | high << 4) - 32);
    }
}

static void (*const expand[MX_GGML_COUNT])(bytes, float *) = {
    [MX_GGML_F32] = block_f32,     [MX_GGML_F16] = block_f16,       [MX_GGML_BF16] = block_bf16,
    [MX_GGML_Q4_0] = block_q4_0,   [MX_GGML_Q4_1] = block_q4_1,     [MX_GGML_Q5_0] = block_q5_0,
    [MX_GGML_Q5_1] = block_q5_1,   [MX_GGML_Q8_0] = block_q8_0,     [MX_GGML_Q2_K] = block_q2_k,
    [MX_GGML_Q3_K] = block_q3_k,   [MX_GGML_Q4_K] = block_q4_k,     [MX_GGML_Q5_K] = block_q5_k,
    [MX_GGML_Q6_K] = block_q6_k,   [MX_GGML_IQ4_NL] = block_iq4_nl, [MX_GGML_IQ4_XS] = block_iq4_xs,
    [MX_GGML_MXFP4] = block_mxfp4,
};

bool mx_gguf_can_dequant(uint32_t type) { return type < MX_GGML_COUNT && expand[type]; }

mx_status mx_gguf_dequant(uint32_t type, const void *src, int64_t n, float *dst, mx_err *err) {
    if (!mx_gguf_can_dequant(type))
        return mx_fail(err, MX_UNSUPPORTED, "values stored as %s cannot be read", mx_ggml_name(type));
    int block = mx_ggml_block(type), size = mx_ggml_bytes(type);
    if (n < 0 || n % block)
        return mx_fail(err, MX_EINVAL, "%lld values are no whole number of %s blocks", (long long)n,
                       mx_ggml_name(type));
    bytes b = src;
    for (int64_t i = 0; i < n; i += block, b += size) expand[type](b, dst + i);
    return MX_OK;
}
