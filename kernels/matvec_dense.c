/* matvec_dense.c - y = x W^T + bias for f32 weights, and for 16-bit weights whose rows are not whole chunks of 32: plain f32
 * arithmetic, exact products, up to 8 rows of x.
 *
 *   matvec_f32, matvec8_f32   f32 weights, n_in % 4 == 0, rows of x and W at multiples of 16 bytes; n <= 2 and n <= 8
 *   glu_f32, glu8_f32         likewise, gate and up
 *   matvec_any_f32, _f16, _bf16   n <= 8, any n_in and alignment of the type: the slow way, for odd shapes
 *
 * Tiling: a wave owns 2 rows of W (1 for matvec_any; one of gate and one of up for glu) and walks along n_in; a lane takes 4
 * values a step. Grid: x = blocks up to n_tile, a tile is 2 rows (glu and matvec_any: 1), wave w of block b takes tile b * waves +
 * w, then that + grid * waves; block: whole waves, up to 256 threads. No shared memory. Arguments, products of a launch and
 * experts as in matvec.c. */
#include "matvec.h"

INLINE void dense(const mx_k_matvec *a, u32 n_b, bool glu) {
    const u32 n = a->n, n_in = a->out[0].w.n_in;
    let_next_start();
    after_previous();
    u32 expert = 0;
    u64 y_row = 0;
    const G f32 *x = a->x;
    if (a->ids) {
        y_row = bz() * __gpu_num_blocks_y() + by();
        expert = (u32)a->ids[y_row];
        x += (a->x_by_z ? bz() : y_row) * a->x_ld;
    }
    for (u32 tile = bx() * n_wave() + wave(); tile < a->n_tile; tile += __gpu_num_blocks_x() * n_wave()) {
        u32 out = 0, row = tile;
        UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (!glu && tile >= a->out[i].tile_end)
            out = i + 1,
            row = tile - a->out[i].tile_end;
        if (!glu) row *= 2;
        const weights w = weights_of(a, out, expert), up = weights_of(a, glu ? 1 : out, expert);
        const u32 second = glu ? row : min_u32(row + 1, w.n_out - 1);
        const G f32 *p = (const G f32 *)w.codes + (u64)row * n_in,
                    *q = (const G f32 *)up.codes + (u64)second * n_in;
        f32 sum[2][8] = {}, square[8] = {};
        for (u32 k = 4 * lane(); k < n_in; k += 4 * WAVE) {
            const f32x4 u = *(const G f32x4 *)(p + k), v = *(const G f32x4 *)(q + k);
            UNROLL for (u32 b = 0; b < n_b; b++) {
                if (b >= n) continue;
                f32x4 s = *(const G f32x4 *)(x + b * a->x_ld + k);
                if (a->norm) {
                    square[b] = fma32(s.x, s.x, fma32(s.y, s.y, fma32(s.z, s.z, fma32(s.w, s.w, square[b]))));
                    s *= *(const G f32x4 *)(a->norm + k);
                }
                sum[0][b] = fma32(u.x, s.x, fma32(u.y, s.y, fma32(u.z, s.z, fma32(u.w, s.w, sum[0][b]))));
                sum[1][b] = fma32(v.x, s.x, fma32(v.y, s.y, fma32(v.z, s.z, fma32(v.w, s.w, sum[1][b]))));
            }
        }
        const u64 bias_row = (u64)expert * w.n_out + row;
        UNROLL for (u32 b = 0; b < n_b; b++) {
            if (b >= n) break;
            f32 s = wave_sum(sum[0][b]), t = wave_sum(sum[1][b]);
            if (a->norm) {
                const f32 r = rsqrt32(fma32(wave_sum(square[b]), a->inv_n, a->eps));
                s *= r, t *= r;
            }
            if (lane()) continue;
            G f32 *y = a->out[out].y + (y_row + b) * a->out[out].y_ld + row;
            const G f32 *add = a->out[out].add;
            if (add) add += (y_row + b) * a->out[out].add_ld + row;
            if (a->out[out].bias) s += a->out[out].bias[bias_row];
            if (glu) {
                if (a->out[1].bias) t += a->out[1].bias[bias_row];
                y[0] = activation(a->act, s) * t + (add ? add[0] : 0);
            } else {
                y[0] = s + (add ? add[0] : 0);
                if (row + 1 >= w.n_out) continue;
                if (a->out[out].bias) t += a->out[out].bias[bias_row + 1];
                y[1] = t + (add ? add[1] : 0);
            }
        }
    }
}

INLINE void any(const mx_k_matvec *a, u32 type) {
    const u32 n = a->n, n_in = a->out[0].w.n_in;
    let_next_start();
    after_previous();
    u32 expert = 0;
    u64 y_row = 0;
    const G f32 *x = a->x;
    if (a->ids) {
        y_row = bz() * __gpu_num_blocks_y() + by();
        expert = (u32)a->ids[y_row];
        x += (a->x_by_z ? bz() : y_row) * a->x_ld;
    }
    for (u32 tile = bx() * n_wave() + wave(); tile < a->n_tile; tile += __gpu_num_blocks_x() * n_wave()) {
        u32 out = 0, row = tile;
        UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (tile >= a->out[i].tile_end)
            out = i + 1,
            row = tile - a->out[i].tile_end;
        const weights w = weights_of(a, out, expert);
        f32 sum[8] = {}, square[8] = {};
        for (u32 k = lane(); k < n_in; k += WAVE) {
            const f32 v = load_scale(w.codes, (u64)row * n_in + k, type);
            const f32 scaled = a->norm ? v * a->norm[k] : v;
            UNROLL for (u32 b = 0; b < 8; b++) {
                if (b >= n) continue;
                const f32 s = x[b * a->x_ld + k];
                sum[b] = fma32(scaled, s, sum[b]);
                square[b] = fma32(s, s, square[b]);
            }
        }
        UNROLL for (u32 b = 0; b < 8; b++) {
            if (b >= n) break;
            f32 s = wave_sum(sum[b]);
            if (a->norm) s *= rsqrt32(fma32(wave_sum(square[b]), a->inv_n, a->eps));
            if (lane()) continue;
            if (a->out[out].bias) s += a->out[out].bias[(u64)expert * w.n_out + row];
            if (a->out[out].add) s += a->out[out].add[(y_row + b) * a->out[out].add_ld + row];
            a->out[out].y[(y_row + b) * a->out[out].y_ld + row] = s;
        }
    }
}

MV_KERNEL void matvec_f32(mx_k_matvec a) { dense(&a, 2, false); }
MV_KERNEL void matvec8_f32(mx_k_matvec a) { dense(&a, 8, false); }
MV_KERNEL void glu_f32(mx_k_matvec a) { dense(&a, 2, true); }
MV_KERNEL void glu8_f32(mx_k_matvec a) { dense(&a, 8, true); }
MV_KERNEL void matvec_any_f32(mx_k_matvec a) { any(&a, 0); }
MV_KERNEL void matvec_any_f16(mx_k_matvec a) { any(&a, 1); }
MV_KERNEL void matvec_any_bf16(mx_k_matvec a) { any(&a, 2); }
