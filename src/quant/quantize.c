/* quantize.c - floats to codes, byte for byte as MLX 0.32.4 does on the CPU.
 *
 * MLX computes affine in f32 whatever the input's type, takes the codes from the unrounded scale and bias, and rounds
 * those two when it stores them. The fp modes round each step to the input's type. Where MLX turns a number into another
 * one (NaN and infinity become finite; a scale below 2^-126 wraps around to a huge one) we do not follow:
 * docs/provenance.md lists these cases. */
#include "quant/quant.h"
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MAX_GROUP = 128 };

static inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

static float round_to(float v, mx_dtype t) {
    if (t == MX_BF16) return mx_bf16_to_f32(mx_f32_to_bf16(v));
    if (t == MX_F16) return mx_f16_to_f32(mx_f32_to_f16(v));
    return v;
}

/* Whether all n values are finite: the largest magnitude, compared as integers. */
static bool all_finite(const float *x, int n) {
    uint32_t worst = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t mag = bits_of(x[i]) & 0x7FFFFFFF;
        worst = mag > worst ? mag : worst;
    }
    return worst < 0x7F800000;
}

/* n codes of `bits` bits: eight of them are `bits` bytes. */
static inline void pack(unsigned char *out, const uint8_t *q, int n, const int bits) {
    for (int i = 0; i < n; i += 8) {
        uint64_t v = 0;
        for (int k = 0; k < 8; k++) v |= (uint64_t)q[i + k] << (k * bits);
        memcpy(out, &v, (size_t)bits);
        out += bits;
    }
}

static void pack_any(unsigned char *out, const uint8_t *q, int n, int bits) {
    switch (bits) {
    case 2: pack(out, q, n, 2); break;
    case 3: pack(out, q, n, 3); break;
    case 4: pack(out, q, n, 4); break;
    case 5: pack(out, q, n, 5); break;
    case 6: pack(out, q, n, 6); break;
    default: memcpy(out, q, (size_t)n); break;
    }
}

/* One group, scale and bias unrounded. The end of the range that is farther from zero (the edge) is stored exactly,
 * and the scale is bent so that zero falls on a code too; the sign of the scale says which end code 0 stands for. */
static void affine_group(const float *x, int n, int bits, uint8_t *q, float *scale_out, float *bias_out) {
    const float n_bin = (float)((1 << bits) - 1);
    float lo = x[0], hi = x[0];
    for (int i = 1; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    const bool low_edge = fabsf(lo) > fabsf(hi);
    const float step = (hi - lo) / n_bin, edge = low_edge ? lo : hi;
    float scale = step > 1e-7f ? step : 1e-7f, bias = 0;
    if (!low_edge) scale = -scale;
    const float q0 = rintf(edge / scale);
    if (q0 != 0) {
        scale = edge / q0;
        bias = edge;
    }
    for (int i = 0; i < n; i++) {
        float v = (x[i] - bias) / scale;
        v = v > 0 ? v : 0;
        v = v < n_bin ? v : n_bin;
        q[i] =
            (uint8_t)bits_of(v + 0x1p23f); // rounds to nearest even, and leaves the integer in the low bits
    }
    *scale_out = scale;
    *bias_out = bias;
}

/* E2M1 code of x. A tie goes to the smaller magnitude, a negative number that rounds to zero to +0. Beyond 8, where x
 * can only be because the scale saturated, MLX searches the table for the nearest value, and its f32 distances
 * grow equal; the first of the equal ones is taken. */
static unsigned to_e2m1(float x) {
    const float a = fabsf(x);
    if (a > 8) {
        unsigned best = 0;
        float d = INFINITY;
        for (unsigned i = 0; i < 16; i++) {
            const float di = fabsf(x - mx_e2m1_to_f32(i));
            if (di < d) {
                d = di;
                best = i;
            }
        }
        return best;
    }
    const unsigned m =
        (unsigned)(a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
    return m ? m | (x < 0 ? 8u : 0u) : 0;
}

static float largest_magnitude(const float *x, int n) {
    float a = 0;
    for (int i = 0; i < n; i++) a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
    return a;
}

/* mxfp4 and mxfp8: the scale is the power of two at or above max|x| / (largest value of the format). */
static uint8_t mx_group(const float *x, int n, bool fp4, mx_dtype t, uint8_t *q) {
    const float s = round_to(largest_magnitude(x, n) / (fp4 ? 6.0f : 448.0f), t);
    int e = 0; // an all-zero group: 2^0
    if (s > 0) {
        const float m = frexpf(s, &e); // s = m * 2^e, m in [0.5, 1)
        if (m == 0.5f) e--;
        if (e < -127) e = -127;
    }
    const float inv = ldexpf(1, -e);
    if (fp4)
        for (int i = 0; i < n; i++) q[i] = (uint8_t)to_e2m1(x[i] * inv);
    else
        for (int i = 0; i < n; i++) q[i] = mx_f32_to_e4m3(x[i] * inv);
    return (uint8_t)(e + 127);
}

static uint8_t nv_group(const float *x, int n, mx_dtype t, uint8_t *q) {
    const uint8_t code = mx_f32_to_e4m3(round_to(largest_magnitude(x, n) / 6.0f, t));
    const float scale = mx_e4m3_to_f32(code);
    for (int i = 0; i < n; i++) q[i] = scale > 0 ? (uint8_t)to_e2m1(round_to(x[i] / scale, t)) : 0;
    return code;
}

mx_status mx_quantize(mx_quant kind, int bits, int group, mx_dtype type, const float *x, int n_row, int n_in,
                      void *codes, void *scales, void *biases, mx_err *err) {
    if (kind == MX_QUANT_NONE) return mx_fail(err, MX_EINVAL, "\"none\" is not a way to quantize");
    MX_TRY(mx_quant_check(kind, bits, group, n_in, err));
    if (n_row < 0) return mx_fail(err, MX_EINVAL, "%d rows cannot be quantized", n_row);
    const size_t n_group = (size_t)n_row * (size_t)(n_in / group), code_bytes = (size_t)(group / 8 * bits);
    const size_t size = mx_dtype_size(type);
    unsigned char *out = codes;
    for (size_t g = 0; g < n_group; g++, x += group, out += code_bytes) {
        unsigned char raw[MAX_GROUP * 4];
        float v[MAX_GROUP];
        uint8_t q[MAX_GROUP];
        const float *in = x;
        if (type != MX_F32) { // what MLX would see: an array of this type
            mx_from_f32(raw, type, x, (size_t)group);
            mx_to_f32(v, raw, type, (size_t)group);
            in = v;
        }
        const bool finite = all_finite(in, group);
        if (!finite) memset(q, 0, sizeof q); // and a scale that makes the whole group NaN
        if (kind == MX_QUANT_AFFINE) {
            float scale = NAN, bias = NAN;
            if (finite) affine_group(in, group, bits, q, &scale, &bias);
            mx_from_f32((char *)scales + g * size, type, &scale, 1);
            mx_from_f32((char *)biases + g * size, type, &bias, 1);
        } else {
            uint8_t s = kind == MX_QUANT_NVFP4 ? 0x7F : 0xFF;
            if (finite)
                s = kind == MX_QUANT_NVFP4 ? nv_group(in, group, type, q)
                                           : mx_group(in, group, bits == 4, type, q);
            ((uint8_t *)scales)[g] = s;
        }
        pack_any(out, q, group, bits);
    }
    return MX_OK;
}
