/* quant.c - what formats exist, how large they are, and the reference expansion to f32. */
#include "quant/quant.h"
#include <limits.h>
#include <stdbool.h>
#include <string.h>

size_t mx_dtype_size(mx_dtype t) { return t == MX_F32 ? 4 : 2; }

const char *mx_dtype_name(mx_dtype t) {
    return t == MX_F32 ? "float32" : t == MX_F16 ? "float16" : "bfloat16";
}

const char *mx_quant_name(mx_quant k) {
    switch (k) {
    case MX_QUANT_NONE: return "none";
    case MX_QUANT_AFFINE: return "affine";
    case MX_QUANT_MXFP4: return "mxfp4";
    case MX_QUANT_MXFP8: return "mxfp8";
    case MX_QUANT_NVFP4: return "nvfp4";
    }
    return "unknown";
}

mx_status mx_quant_check(mx_quant kind, int bits, int group, int n_in, mx_err *err) {
    static const struct {
        int bits, group;
    } only[] = {[MX_QUANT_MXFP4] = {4, 32}, [MX_QUANT_MXFP8] = {8, 32}, [MX_QUANT_NVFP4] = {4, 16}};
    if (n_in <= 0) return mx_fail(err, MX_UNSUPPORTED, "a row of %d values cannot be a weight", n_in);
    switch (kind) {
    case MX_QUANT_NONE: return MX_OK;
    case MX_QUANT_AFFINE:
        if (bits < 2 || bits > 8 || bits == 7)
            return mx_fail(err, MX_UNSUPPORTED, "affine with %d bits does not exist; use 2, 3, 4, 5, 6 or 8",
                           bits);
        if (group != 32 && group != 64 && group != 128)
            return mx_fail(err, MX_UNSUPPORTED, "affine with group size %d does not exist; use 32, 64 or 128",
                           group);
        break;
    case MX_QUANT_MXFP4:
    case MX_QUANT_MXFP8:
    case MX_QUANT_NVFP4:
        if (bits != only[kind].bits || group != only[kind].group)
            return mx_fail(err, MX_UNSUPPORTED,
                           "%s has %d bits and group size %d, not %d bits and group size %d",
                           mx_quant_name(kind), only[kind].bits, only[kind].group, bits, group);
        break;
    default: return mx_fail(err, MX_UNSUPPORTED, "unknown quantization %d", (int)kind);
    }
    /* Groups are multiples of 16, so a row of whole groups is also one of whole words: 16 values of 4 bits are two words,
     * 32 values of any width are `bits` words. */
    if (n_in % group)
        return mx_fail(err, MX_UNSUPPORTED, "%s: a row of %d values is not a multiple of the group size %d",
                       mx_quant_name(kind), n_in, group);
    return MX_OK;
}

size_t mx_qmat_row_bytes(const mx_qmat *w) {
    if (w->kind == MX_QUANT_NONE) return (size_t)w->n_in * mx_dtype_size(w->type);
    return (size_t)w->n_in / 8 * (size_t)w->bits;
}

size_t mx_qmat_scale_size(const mx_qmat *w) {
    if (w->kind == MX_QUANT_NONE) return 0;
    return w->kind == MX_QUANT_AFFINE ? mx_dtype_size(w->type) : 1;
}

/* Bytes of the scales of one row; those of the biases are as many where there are any. */
static size_t scale_row_bytes(const mx_qmat *w) {
    return w->kind == MX_QUANT_NONE ? 0 : (size_t)(w->n_in / w->group) * mx_qmat_scale_size(w);
}

size_t mx_qmat_bytes(const mx_qmat *w) {
    const size_t rows = (size_t)w->n_stack * (size_t)w->n_out;
    return rows * (mx_qmat_row_bytes(w) + scale_row_bytes(w) * (w->kind == MX_QUANT_AFFINE ? 2 : 1));
}

/* The same matrix from `skip` rows on. */
static mx_qmat skip_rows(const mx_qmat *w, size_t skip) {
    mx_qmat r = *w;
    r.n_stack = 1;
    r.codes = (const char *)w->codes + skip * mx_qmat_row_bytes(w);
    if (w->scales) r.scales = (const char *)w->scales + skip * scale_row_bytes(w);
    if (w->biases) r.biases = (const char *)w->biases + skip * scale_row_bytes(w);
    return r;
}

mx_qmat mx_qmat_at(const mx_qmat *w, int i) { return skip_rows(w, (size_t)i * (size_t)w->n_out); }

mx_qmat mx_qmat_rows(const mx_qmat *w, int row, int n) {
    mx_qmat r = skip_rows(w, (size_t)row);
    r.n_out = n;
    return r;
}

/* Eight codes of `bits` bits, which are exactly `bits` bytes; the constant lets the compiler unroll and shift by constants. */
static inline void unpack8(const unsigned char *p, int bits, unsigned q[8]) {
    uint64_t v = 0;
    memcpy(&v, p, (size_t)bits); // little-endian, as every host and file here
    for (int k = 0; k < 8; k++) q[k] = (unsigned)(v >> (k * bits)) & ((1u << bits) - 1);
}

static inline void expand_affine(const mx_qmat *w, float *out, const int bits) {
    const unsigned char *codes = w->codes;
    const char *scales = w->scales, *biases = w->biases;
    const size_t size = mx_dtype_size(w->type), n_group = (size_t)(w->n_in / w->group) * (size_t)w->n_out;
    for (size_t g = 0; g < n_group; g++) {
        float scale, bias;
        mx_to_f32(&scale, scales + g * size, w->type, 1);
        mx_to_f32(&bias, biases + g * size, w->type, 1);
        for (int k = 0; k < w->group; k += 8) {
            unsigned q[8];
            unpack8(codes, bits, q);
            for (int j = 0; j < 8; j++) out[j] = scale * (float)q[j] + bias;
            codes += bits;
            out += 8;
        }
    }
}

/* mxfp4, mxfp8, nvfp4: a table of the 16 or 256 values times the scale of the group. */
static void expand_fp(const mx_qmat *w, float *out) {
    const unsigned char *codes = w->codes, *scales = w->scales;
    const size_t n_group = (size_t)(w->n_in / w->group) * (size_t)w->n_out;
    float value[256];
    for (unsigned i = 0; i < 256; i++)
        value[i] = w->bits == 4 ? mx_e2m1_to_f32(i) : mx_e4m3_to_f32((uint8_t)i);
    for (size_t g = 0; g < n_group; g++) {
        const float scale = w->kind == MX_QUANT_NVFP4 ? mx_e4m3_to_f32(scales[g]) : mx_e8m0_to_f32(scales[g]);
        if (w->bits == 4) {
            for (int k = 0; k < w->group; k += 2, codes++) {
                out[k] = value[*codes & 15] * scale;
                out[k + 1] = value[*codes >> 4] * scale;
            }
        } else {
            for (int k = 0; k < w->group; k++) out[k] = value[*codes++] * scale;
        }
        out += w->group;
    }
}

mx_status mx_qmat_expand(const mx_qmat *w, int row, int n, float *out, mx_err *err) {
    if (w->n_stack != 1)
        return mx_fail(err, MX_EINVAL, "only one matrix of a stack of %d can be expanded", w->n_stack);
    if (row < 0 || n < 0 || row > w->n_out || n > w->n_out - row)
        return mx_fail(err, MX_EINVAL, "rows [%d, %d + %d) lie outside a matrix of %d rows", row, row, n,
                       w->n_out);
    MX_TRY(mx_quant_check(w->kind, w->bits, w->group, w->n_in, err));
    const mx_qmat part = mx_qmat_rows(w, row, n);
    if (w->kind == MX_QUANT_NONE) {
        mx_to_f32(out, part.codes, w->type, (size_t)n * (size_t)w->n_in);
        return MX_OK;
    }
    if (w->kind != MX_QUANT_AFFINE) {
        expand_fp(&part, out);
        return MX_OK;
    }
    switch (w->bits) {
    case 2: expand_affine(&part, out, 2); break;
    case 3: expand_affine(&part, out, 3); break;
    case 4: expand_affine(&part, out, 4); break;
    case 5: expand_affine(&part, out, 5); break;
    case 6: expand_affine(&part, out, 6); break;
    default: expand_affine(&part, out, 8); break;
    }
    return MX_OK;
}
