/* gguf_dequant.h - the values of ggml's block formats as f32: the reference for converting them. */
#ifndef MX_FORMAT_GGUF_DEQUANT_H
#define MX_FORMAT_GGUF_DEQUANT_H
#include "format/gguf.h"

bool mx_gguf_can_dequant(uint32_t type);

/* Expand n values stored as type at src (unaligned) into dst. F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K,
 * IQ4_NL, IQ4_XS, MXFP4; other types are MX_UNSUPPORTED, an n that is no multiple of the block MX_EINVAL; dst is then
 * untouched. Every step rounds to f32 in the order of the reference implementation, so the results are the same bits. */
mx_status mx_gguf_dequant(uint32_t type, const void *src, int64_t n, float *dst, mx_err *err);

#endif
