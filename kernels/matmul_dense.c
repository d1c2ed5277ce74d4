/* matmul_dense.c - y = x W^T + bias in plain f32 arithmetic: f32 weights, and 16-bit weights with any n_in and alignment.
 *
 *   matmul_f32, matmul_any_f16, matmul_any_bf16
 *
 * Tiling: a block of 256 threads makes 64 x 64 of y, a thread 4 x 4; 16 values of n_in a step lie in shared memory, k first, with
 * rows padded to 68 (8.5 KiB). Grid: x = ceil(n / 64), y = column tiles of 64 in all, products of a launch and experts as in
 * matmul.c (expert tiles of 64 rows). x_ld is any. */
#include "matmul.h"

enum { DM = 64, DK = 16, DPAD = 68 };

INLINE void dense_tile(const mx_k_matmul *a, u32 type, LDS f32 *xs, LDS f32 *ws) {
    u32 out = 0, col0 = by();
    UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (by() >= a->out[i].tile_end)
        out = i + 1,
        col0 = by() - a->out[i].tile_end;
    col0 *= DM;
    const u32 n_out = a->out[out].w.n_out, n_in = a->out[out].w.n_in;
    const G u8 *codes = (const G u8 *)a->out[out].w.codes;
    u32 row0 = bx() * DM, end = a->n, expert = 0;
    if (a->tiles) {
        const G i32 *t = a->tiles + 4 * (u64)bx();
        if (t[0] < 0) return;
        expert = (u32)t[0], row0 = (u32)t[1], end = (u32)t[2];
        codes += expert * a->out[out].code_stride;
    }
    const u32 k = thread() % DK, r = thread() / DK; // loads: value k of rows r, r + 16, r + 32, r + 48
    const G f32 *x[4];
    u64 at[4];
    UNROLL for (u32 j = 0; j < 4; j++) {
        u32 row = min_u32(row0 + r + 16 * j, end - 1);
        if (a->x_rows) row = (u32)a->x_rows[row];
        x[j] = a->x + row * a->x_ld;
        at[j] = (u64)min_u32(col0 + r + 16 * j, n_out - 1) * n_in;
    }
    const u32 ty = thread() / 16 * 4, tx = thread() % 16 * 4;
    f32 sum[4][4] = {};
    for (u32 k0 = 0; k0 < n_in; k0 += DK) {
        f32 u[4], v[4];
        UNROLL for (u32 j = 0; j < 4; j++) {
            const bool in = k0 + k < n_in;
            u[j] = in ? x[j][k0 + k] : 0;
            v[j] = in ? load_scale(codes, at[j] + k0 + k, type) : 0;
        }
        barrier();
        UNROLL for (u32 j = 0; j < 4; j++) xs[k * DPAD + r + 16 * j] = u[j], ws[k * DPAD + r + 16 * j] = v[j];
        barrier();
        UNROLL for (u32 i = 0; i < DK; i++) {
            const f32x4 p = *(const LDS f32x4 *)(xs + i * DPAD + ty),
                        q = *(const LDS f32x4 *)(ws + i * DPAD + tx);
            const f32 ps[4] = {p.x, p.y, p.z, p.w}, qs[4] = {q.x, q.y, q.z, q.w};
            UNROLL for (u32 m = 0; m < 4; m++) UNROLL for (u32 n = 0; n < 4; n++) sum[m][n] =
                fma32(ps[m], qs[n], sum[m][n]);
        }
    }
    const G f32 *bias = a->out[out].bias;
    if (bias) bias += (u64)expert * n_out;
    UNROLL for (u32 m = 0; m < 4; m++) {
        u32 row = row0 + ty + m;
        if (row >= end) continue;
        if (a->rows) row = (u32)a->rows[row];
        UNROLL for (u32 n = 0; n < 4; n++) {
            const u32 col = col0 + tx + n;
            if (col < n_out) a->out[out].y[row * a->out[out].y_ld + col] = sum[m][n] + (bias ? bias[col] : 0);
        }
    }
}

#define ONE(name, type)                                                                                      \
    MM_KERNEL(256) void name(mx_k_matmul a) {                                                                \
        SHARED f32x4 xs[DK * DPAD / 4], ws[DK * DPAD / 4];                                                   \
        dense_tile(&a, type, (LDS f32 *)xs, (LDS f32 *)ws);                                                  \
    }
ONE(matmul_f32, 0)
ONE(matmul_any_f16, 1)
ONE(matmul_any_bf16, 2)
