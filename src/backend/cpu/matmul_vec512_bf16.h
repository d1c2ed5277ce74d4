/* matmul_vec512_bf16.h - matmul_vec512.h and what the b16 kernels need besides: AVX512_BF16. */
#ifndef MX_BACKEND_CPU_MATMUL_VEC512_BF16_H
#define MX_BACKEND_CPU_MATMUL_VEC512_BF16_H
#include "backend/cpu/matmul_vec512.h"

OP vi vi_set32(int v) { return _mm512_set1_epi32(v); }
#define vi_sll32(v, n) _mm512_slli_epi32(v, n)
/* 32 bf16, to nearest even: those of lo, then those of hi. */
OP vi vi_bf16_pair(vf lo, vf hi) {
    __m512bh v = _mm512_cvtne2ps_pbh(hi, lo);
    vi out;
    memcpy(&out, &v, sizeof out);
    return out;
}

#endif
