/* matmul_impl.h - what matmul.c (which cuts a product into tasks) and the kernels of each instruction set agree on.
 *
 * There are three ways to compute y = x W^T:
 *   f32   x and the expanded weights in f32. Every (row, out) sums in one order, whatever else is computed beside it, so a
 *         batch gives the bits of single rows. All kinds of weight; the only way under `exact` and for dense f32.
 *   i16   x as 16-bit integers that share a scale per 16 to 64 values (1.5e-5 of the largest of them), codes as 16-bit
 *         integers, exact integer products, and one scaling per group. Affine, mxfp4, nvfp4. `v` for few rows: codes are
 *         unpacked in registers while they stream by; `g` for many: a panel of codes is unpacked once for all rows.
 *   b16   x and weights rounded to bf16, f32 sums: AVX512_BF16 and AMX, many rows only.
 *
 * Pairs. The integer and bf16 instructions multiply two neighbours and add. Codes of 2, 4 and 8 bits are unpacked by masks
 * and shifts of 16-bit lanes, and neighbours after that are not neighbours in memory. With m = 16 / bits codes in a lane,
 * a 32-bit word of codes holds the pairs (v + i, v + m + i), i < m, v the word's first value. x is laid out to match.
 * Codes of 3, 5 and 6 bits and plain numbers come out in order: m = 1, a "word" is a pair. */
#ifndef MX_BACKEND_CPU_MATMUL_IMPL_H
#define MX_BACKEND_CPU_MATMUL_IMPL_H
#include "quant/quant.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MX_MM_K = 512,          // columns of a chunk: a panel of them stays in the first-level cache
    MX_MM_ROWS = 288,       // rows of x in one pass; more are cut
    MX_MM_STREAM = 4,       // weight rows that the f32 kernel handles together
    MX_MM_LANES = 16,       // floats of the widest vector: the unit of padding
    MX_MM_WORK = 128 << 10, // bytes of a worker's memory that serve every kernel, beside 8 a column
    MX_MM_STEP =
        256, // values of the longest step of i16v (512 bits of 2-bit codes): the unit of padding of x
};

/* Rows of f32 x: row i is p + (map ? map[i] : i) * ld. */
typedef struct {
    float *p;
    int64_t ld;
    const int32_t *map;
} mx_mm_rows;

static inline float *mx_mm_row(const mx_mm_rows *r, int i) { return r->p + (r->map ? r->map[i] : i) * r->ld; }

/* x as integers or bf16, in the order of one kernel. A fold is the run of values that share a scale: the
 * weights' group for v, min(group, 64) for g.
 *   v: q [n, k_pad] by steps of the kernel's vector; s, sum [n, f_pad] by folds, zeros behind
 *   g: q [tile, k / 2, rows of a tile, 2]; s, sum [tile, k / fold, rows of a tile]
 *   b: q alone, see the kernel
 * sum is that of the values as they were rounded. */
typedef struct {
    int m, group; // the key: pairs as above; group of the weights
    int k, k_pad, fold, f_pad;
    int16_t *q;
    float *s, *sum;
} mx_mm_x;

/* One product: rows [0, n) of x with the rows of w. */
typedef struct {
    mx_qmat w; // a stack of one
    const float *bias;
    mx_mm_rows x, y;
    int n;
    const mx_mm_x *px; // i16, b16: rows [0, n) of it
} mx_mm_task;

typedef enum { MX_MM_F32, MX_MM_I16V, MX_MM_I16G, MX_MM_B16, MX_MM_WAYS } mx_mm_way;

/* Computes outs [out0, out1) of a task. work: this worker's memory. */
typedef void mx_mm_fn(const mx_mm_task *t, int out0, int out1, void *work);

typedef struct mx_cpu_matmul_kernels {
    mx_mm_fn *run[MX_MM_WAYS]; // NULL: this level does not have it
    int panel[MX_MM_WAYS];     // outs handled together: tasks are cut at multiples
    int tile[MX_MM_WAYS];      // rows of x handled together in px
    /* Fill px for rows [row, row + n) of x; row is a multiple of the tile and row + n ends at one or at the last row. */
    void (*prepare[MX_MM_WAYS])(const mx_mm_x *px, const mx_mm_rows *x, int row, int n);
} mx_cpu_matmul_kernels;

extern const mx_cpu_matmul_kernels mx_mm_scalar;
#if defined(__x86_64__)
extern const mx_cpu_matmul_kernels mx_mm_avx2, mx_mm_avx512, mx_mm_vnni;
extern const mx_cpu_matmul_kernels mx_mm_bf16, mx_mm_amx; // the b16 way alone: the rest is that of vnni
#endif

#endif
