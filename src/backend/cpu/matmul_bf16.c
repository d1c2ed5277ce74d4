/* matmul_bf16.c - the b16 way on AVX512_BF16: one instruction multiplies 32 pairs of bf16 and adds in f32. */
#include "backend/cpu/matmul_vec512_bf16.h"

OP void b16_open(void) {}
OP void b16_close(void) {}
OP __m512bh as_bf16(const void *p) {
    __m512bh v;
    memcpy(&v, p, sizeof v);
    return v;
}
OP __m512bh pair_bf16(const uint16_t *p) {
    uint32_t both;
    memcpy(&both, p, 4);
    __m512i all = _mm512_set1_epi32((int)both);
    return as_bf16(&all);
}

#include "backend/cpu/matmul_b16.h"

enum { OUTS = 8 }; // 8 x 2 sums: enough to hide the latency, and their addresses fit the registers

INLINE void rows_of_x(b16_work *work, const int16_t *const *x, const int n_tile, int n_k, int row, int out) {
    vf acc[OUTS][2];
#pragma GCC unroll 8
    for (int j = 0; j < OUTS; j++) {
#pragma GCC unroll 2
        for (int i = 0; i < n_tile; i++) acc[j][i] = vf_load(work->sums[out + j] + row + i * B_ROW);
    }
    for (int p = 0; p < n_k / 2; p++) {
        __m512bh b[2];
#pragma GCC unroll 2
        for (int i = 0; i < n_tile; i++) b[i] = as_bf16(x[i] + (size_t)p * B_ROW * 2);
#pragma GCC unroll 8
        for (int j = 0; j < OUTS; j++) {
            __m512bh a = pair_bf16(work->panel[out + j] + 2 * p);
#pragma GCC unroll 2
            for (int i = 0; i < n_tile; i++) {
                acc[j][i] = _mm512_dpbf16_ps(acc[j][i], a, b[i]);
                __asm__("" : "+v"(acc[j][i])); // see vf_fma_keep
            }
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < OUTS; j++) {
#pragma GCC unroll 2
        for (int i = 0; i < n_tile; i++) vf_store(work->sums[out + j] + row + i * B_ROW, acc[j][i]);
    }
}

static void b16_block(b16_work *work, const int16_t *const *x, int n_tile, int n_k, int row) {
    for (int out = 0; out < B_OUT; out += OUTS) {
        if (n_tile == 2)
            rows_of_x(work, x, 2, n_k, row, out);
        else
            rows_of_x(work, x, 1, n_k, row, out);
    }
}

const mx_cpu_matmul_kernels mx_mm_bf16 = B16_KERNELS;
