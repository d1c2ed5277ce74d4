/* quant.h - weight matrices, dense or held as low-bit codes, exactly as MLX stores them.
 *
 * W[n_out, n_in] is cut along n_in into groups that share a scale. Codes fill 32-bit words from the low bit up, so
 * value k of a row starts at bit k * bits of the row, also for 3, 5 and 6 bits (a value may straddle two words).
 *   affine  w = scale * q + bias              scale, bias: bf16, f16 or f32 [n_out, n_in / group]; scale may be negative
 *   mxfp4   w = e2m1(q) * 2^(s - 127)         s: one E8M0 byte per 32 values; s = 255 is NaN (OCP MX 1.0)
 *   mxfp8   w = e4m3(q) * 2^(s - 127)         likewise
 *   nvfp4   w = e2m1(q) * e4m3(s)             s: one E4M3 byte per 16 values
 * A stack [n_stack, n_out, n_in] (the experts of a layer) is n_stack such matrices, one after the other.
 * Nothing here allocates or keeps state, and pointers may have any alignment (they point into mapped files). */
#ifndef MX_QUANT_QUANT_H
#define MX_QUANT_QUANT_H
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { MX_F32, MX_F16, MX_BF16 } mx_dtype; // types of plain numbers in memory
typedef enum { MX_QUANT_NONE, MX_QUANT_AFFINE, MX_QUANT_MXFP4, MX_QUANT_MXFP8, MX_QUANT_NVFP4 } mx_quant;

typedef struct {
    mx_quant kind; // MX_QUANT_NONE: dense, the rest of the line below is then 0
    int bits, group;
    mx_dtype type; // dense: of the values; affine: of scales and biases
    int n_stack, n_out, n_in;
    const void *codes; // dense: values [n_stack, n_out, n_in]; else words [n_stack, n_out, n_in * bits / 32]
    const void *scales, *biases; // [n_stack, n_out, n_in / group]; NULL where the kind has none
} mx_qmat;

size_t mx_dtype_size(mx_dtype t);      // 4, 2, 2
const char *mx_dtype_name(mx_dtype t); // "float32", "float16", "bfloat16"
const char *mx_quant_name(mx_quant k); // "none", "affine", "mxfp4", ...

/* Whether this combination exists: affine 2, 3, 4, 5, 6, 8 bits at groups 32, 64, 128; mxfp4 4 at 32; mxfp8 8 at 32; nvfp4
 * 4 at 16; and n_in is a multiple of the group and of 32 / gcd(32, bits). MX_UNSUPPORTED with a sentence otherwise. */
mx_status mx_quant_check(mx_quant kind, int bits, int group, int n_in, mx_err *err);

size_t mx_qmat_row_bytes(const mx_qmat *w);             // bytes of one row of codes (or dense values)
size_t mx_qmat_scale_size(const mx_qmat *w);            // bytes of one scale
size_t mx_qmat_bytes(const mx_qmat *w);                 // codes, scales and biases of the whole stack
mx_qmat mx_qmat_at(const mx_qmat *w, int i);            // matrix i of a stack, as a stack of one
mx_qmat mx_qmat_rows(const mx_qmat *w, int row, int n); // rows [row, row + n) of a stack of one

/* Expand rows [row, row + n) of w (a stack of one) into out[n, n_in], f32: the reference every kernel is tested against.
 * MX_EINVAL, with out untouched, if the rows lie outside W. */
mx_status mx_qmat_expand(const mx_qmat *w, int row, int n, float *out, mx_err *err);

/* Whether n E4M3 codes hold one that is NaN (0x7F or 0xFF), which quantizing never makes; *at: the first. */
bool mx_e4m3_has_nan(const void *codes, size_t n, size_t *at);

/* Quantize x[n_row, n_in] into codes, scales, biases (of type `type`), laid out as above. Gives the bytes of MLX 0.32's
 * quantize() on the CPU for an input of type `type` (docs/provenance.md lists the deliberate exceptions). */
mx_status mx_quantize(mx_quant kind, int bits, int group, mx_dtype type, const float *x, int n_row, int n_in,
                      void *codes, void *scales, void *biases, mx_err *err);

/* Numbers of the formats. */
float mx_bf16_to_f32(uint16_t v);
uint16_t mx_f32_to_bf16(float v); // to nearest even; NaN stays NaN
float mx_f16_to_f32(uint16_t v);
uint16_t mx_f32_to_f16(float v);  // to nearest even; overflow is infinity
float mx_e2m1_to_f32(unsigned v); // 4 bits
float mx_e4m3_to_f32(uint8_t v);  // E4M3FN: 0x7F and 0xFF are NaN
float mx_e8m0_to_f32(uint8_t v);  // 2^(v - 127), 255: NaN
uint8_t mx_f32_to_e4m3(float v);  // to nearest even, saturating at 448; NaN stays NaN

/* n values of type t at p (any alignment) to f32, and back. */
void mx_to_f32(float *out, const void *p, mx_dtype t, size_t n);
void mx_from_f32(void *out, mx_dtype t, const float *p, size_t n);

#endif
