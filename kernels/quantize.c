/* quantize.c - numbers to codes and back, for every weight format; the bytes of src/quant/quantize.c, step by step.
 *
 * Tiling: a thread owns 32 neighbouring values of a row, which are `bits` whole words of codes. Groups of 64 and 128 are 2 and 4
 * neighbouring lanes, which exchange their ends; groups of 16 are both halves of a thread. Grid: x = rows, y = ceil(n_in / 32 /
 * 256). Block: 256 threads (a multiple of 32). n_in is a multiple of the group and of 32 (nvfp4: of 32; dense dequantize: any).
 * Quotients and sums round once each, as on the host: no contraction, and divisions of f32 are exact ones. */
#include "quant.h"
#include "numbers.h"
#pragma clang fp contract(off)

INLINE f32 quotient(f32 a, f32 b) { return a / b; } // of f32: correctly rounded on both targets
INLINE f32 round_to(f32 v, u32 type) {              // 0 f32, 1 f16, 2 bf16
    return type == 2 ? bf16_f32(f32_bf16(v)) : type == 1 ? f16_f32(f32_f16(v)) : v;
}
INLINE bool finite(f32 v) { return (bits(v) & 0x7FFFFFFFu) < 0x7F800000u; }

INLINE u32 to_e4m3(f32 v) { // to nearest even, saturating at 448; v is finite
    const u32 u = bits(v), mag = u & 0x7FFFFFFFu;
    u32 r = (mag - ((127u - 7) << 23) + 0x7FFFFu + (mag >> 20 & 1)) >> 20;
    r = mag < 0x3C800000u ? bits(from_bits(mag) + 16384.0f) - 0x46800000u : r; // below 2^-6: units of 2^-9
    r = mag >= 0x43E00000u ? 0x7Eu : r;                                        // 448
    return r | (u >> 24 & 0x80u);
}

/* A tie goes to the smaller magnitude, no negative zero. Beyond 8 the first of 16 codes that is nearest in f32. */
INLINE u32 to_e2m1(f32 x) {
    const f32 a = __builtin_fabsf(x);
    const u32 m =
        (u32)(a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
    u32 code = m ? m | (x < 0 ? 8u : 0u) : 0;
    if (a > 8) {
        f32 least = infinity();
        UNROLL for (u32 i = 0; i < 16; i++) {
            const f32 d = __builtin_fabsf(x - e2m1_f32(i));
            code = d < least ? i : code;
            least = d < least ? d : least;
        }
    }
    return code;
}

INLINE void store_words(G u32 *p, const u32 *q, u32 b) { // 32 codes of b bits, a constant
    u32 w[8] = {};
    UNROLL for (u32 i = 0; i < 32; i++) {
        const u32 bit = i * b, word = bit / 32, off = bit % 32;
        w[word] |= q[i] << off;
        if (off + b > 32) w[word + 1] |= q[i] >> (32 - off);
    }
    UNROLL for (u32 i = 0; i < b; i++) p[i] = w[i];
}

INLINE void store_scale(G void *p, u64 i, u32 type, f32 v) {
    if (type == 0)
        ((G f32 *)p)[i] = v;
    else if (type == 1)
        ((G u16 *)p)[i] = v != v ? 0x7E00u : f32_f16(v); // one NaN of the many, as the host writes it
    else
        ((G u16 *)p)[i] = f32_bf16(v);
}

/* Codes of 32 values whose group reaches from lo to hi. */
INLINE void affine(u32 *q, f32 *scale_out, f32 *bias_out, const f32 *v, f32 lo, f32 hi, u32 b) {
    const f32 n_bin = (f32)((1u << b) - 1);
    const bool low_edge = __builtin_fabsf(lo) > __builtin_fabsf(hi);
    const f32 step = quotient(hi - lo, n_bin), edge = low_edge ? lo : hi;
    f32 scale = step > 1e-7f ? step : 1e-7f, bias = 0;
    scale = low_edge ? scale : -scale;
    const f32 q0 = __builtin_rintf(quotient(edge, scale));
    if (q0 != 0) {
        scale = quotient(edge, q0);
        bias = edge;
    }
    UNROLL for (u32 i = 0; i < 32; i++) {
        f32 at = quotient(v[i] - bias, scale);
        at = at > 0 ? at : 0;
        at = at < n_bin ? at : n_bin;
        q[i] = bits(at + 8388608.0f) & 0xFF; // rounds to nearest even
    }
    *scale_out = scale;
    *bias_out = bias;
}

/* Power-of-two scale byte for a group whose largest magnitude over the format's is s; *inv: what values are multiplied by. */
INLINE u32 mx_scale(f32 s, f32 *inv) {
    const u32 u = bits(s);
    i32 e = (i32)(u >> 23) - 127 + ((u & 0x7FFFFFu) != 0);
    if (u >> 23 == 0) e = u > 0x400000u ? -126 : -127;
    if (u == 0) e = 0; // a group of zeros
    *inv = from_bits((u32)(127 - e) << 23);
    return (u32)(e + 127);
}

INLINE void quantize(u32 kind, weights w, mx_k_mat x) {
    const u32 b = words_of(kind), chunks = w.n_in / 32, c = by() * threads() + thread();
    const bool inside = c < chunks; // lanes beyond take part in the exchange, of whole groups beyond
    const G f32 *in = row_of(x, bx()) + (inside ? c : 0) * 32;
    f32 v[32], lo, hi, largest[2] = {0, 0};
    bool good[2] = {true, true};
    UNROLL for (u32 i = 0; i < 32; i++) {
        v[i] = round_to(in[i], w.scale_type);
        lo = i == 0 || v[i] < lo ? v[i] : lo;
        hi = i == 0 || v[i] > hi ? v[i] : hi;
        good[i / 16] = good[i / 16] && finite(v[i]);
        largest[i / 16] = max32(largest[i / 16], __builtin_fabsf(v[i]));
    }
    const u64 at = (u64)bx() * chunks + c;
    u32 q[32];
    if (is_affine(kind)) {
        u32 ok = good[0] && good[1];
        for (u32 m = 1; m << 5 < 1u << w.group_shift; m *= 2) {
            const f32 l = shuffle_xor(lo, m), h = shuffle_xor(hi, m);
            lo = l < lo ? l : lo;
            hi = h > hi ? h : hi;
            ok &= shuffle_xor_u32(ok, m);
        }
        f32 scale, bias;
        affine(q, &scale, &bias, v, lo, hi, b);
        scale = ok ? scale : not_a_number();
        bias = ok ? bias : not_a_number();
        UNROLL for (u32 i = 0; i < 32; i++) q[i] = ok ? q[i] : 0;
        const u64 group = at * 32 >> w.group_shift;
        if (inside && (at * 32 & ((1u << w.group_shift) - 1)) == 0) {
            store_scale((G void *)w.scales, group, w.scale_type, scale);
            store_scale((G void *)w.biases, group, w.scale_type, bias);
        }
    } else if (kind == K_NVFP4) {
        UNROLL for (u32 half = 0; half < 2; half++) {
            const u32 code = to_e4m3(round_to(quotient(largest[half], 6.0f), w.scale_type));
            const f32 scale = e4m3_f32((u8)code);
            UNROLL for (u32 i = 16 * half; i < 16 * half + 16; i++) q[i] =
                good[half] && scale > 0 ? to_e2m1(round_to(quotient(v[i], scale), w.scale_type)) : 0;
            if (inside) ((G u8 *)w.scales)[2 * at + half] = (u8)(good[half] ? code : 0x7F);
        }
    } else {
        f32 inv;
        const bool ok = good[0] && good[1];
        const f32 most = kind == K_MXFP4 ? 6.0f : 448.0f;
        const u32 s = mx_scale(round_to(quotient(max32(largest[0], largest[1]), most), w.scale_type), &inv);
        UNROLL for (u32 i = 0; i < 32; i++) {
            q[i] = kind == K_MXFP4 ? to_e2m1(v[i] * inv) : to_e4m3(v[i] * inv);
            q[i] = ok ? q[i] : 0;
        }
        if (inside) ((G u8 *)w.scales)[at] = (u8)(ok ? s : 0xFF);
    }
    if (inside) store_words((G u32 *)w.codes + at * b, q, b);
}

INLINE void dequantize(u32 kind, mx_k_mat y, weights w) {
    const u32 t = by() * threads() + thread();
    G f32 *out = row_of(y, bx());
    const bool whole = whole16(y);
    if (kind <= K_BF16) {
        UNROLL for (u32 i = 0; i < 32; i++) if (t * 32 + i < w.n_in) out[t * 32 + i] =
            load_scale(w.codes, (u64)bx() * w.n_in + t * 32 + i, kind);
        return;
    }
    if (t >= w.n_in / 32) return;
    f32 v[32], scale, bias;
    load_chunk(v, &scale, &bias, w, kind, bx(), t);
    UNROLL for (u32 i = 0; i < 32; i += 4) {
        f32x4 four_of = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        if (is_affine(kind)) four_of = four_of * scale + bias;
        store4(out, t * 32 + i, w.n_in, whole, four_of);
    }
}

#define BACK(name, kind)                                                                                     \
    __gpu_kernel void dequantize_##name(mx_k_mat y, weights w) { dequantize(kind, y, w); }
#define THERE(name, kind)                                                                                    \
    __gpu_kernel                                                                                             \
        __attribute__((amdgpu_flat_work_group_size(32, 256))) void quantize_##name(weights w, mx_k_mat x) {  \
        quantize(kind, w, x);                                                                                \
    }
EACH_KIND(BACK)
THERE(a2, K_A2)
THERE(a3, K_A3)
THERE(a4, K_A4)
THERE(a5, K_A5)
THERE(a6, K_A6)
THERE(a8, K_A8)
THERE(mxfp4, K_MXFP4)
THERE(mxfp8, K_MXFP8)
THERE(nvfp4, K_NVFP4)
