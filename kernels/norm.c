/* norm.c - RMS norm (Zhang and Sennrich 2019) with the residual add before it, and the gated norm of recurrent layers. */
#include "numbers.h"

enum { KEPT = 4 }; // vectors of 4 that a thread keeps in registers between the two passes

/* x += add (if add.p), then y = x / sqrt(mean(x^2) + eps) * w (w may be NULL). y may be x.
 * Tiling: a block owns a row; a thread takes 4 columns in each round of 4 * threads, keeps the first 4 rounds in registers and
 * reads the rest again. Grid: x = rows. Block: a multiple of 32 up to 1024; 4 * 4 * threads >= d is best (256 for d = 4096).
 * inv_d: 1 / d. The sums' order depends on the block's size alone. */
__gpu_kernel void rms_norm(mx_k_mat y, mx_k_mat x, mx_k_mat plus, const G f32 *w, u32 d, f32 inv_d, f32 eps) {
    SHARED f32 room[32];
    let_next_start();
    after_previous();
    G f32 *in = row_of(x, bx()), *out = row_of(y, bx());
    const G f32 *more = plus.p ? row_of(plus, bx()) : plus.p;
    const bool whole_x = whole16(x), whole_y = whole16(y), whole_more = whole16(plus),
               whole_w = ((u64)w & 15) == 0;
    const u32 step = threads() * 4, first = thread() * 4;
    f32x4 kept[KEPT];
    f32 squares = 0;
    UNROLL for (u32 i = 0; i < KEPT; i++) {
        const u32 c = first + i * step;
        kept[i] = (f32x4){0, 0, 0, 0};
        if (c >= d) continue;
        kept[i] = load4(in, c, d, whole_x);
        if (more) {
            kept[i] += load4(more, c, d, whole_more);
            store4(in, c, d, whole_x, kept[i]);
        }
        squares += sum4(kept[i] * kept[i]);
    }
    for (u32 c = first + KEPT * step; c < d; c += step) {
        f32x4 v = load4(in, c, d, whole_x);
        if (more) {
            v += load4(more, c, d, whole_more);
            store4(in, c, d, whole_x, v);
        }
        squares += sum4(v * v);
    }
    const f32 mean = fma32(block_sum(squares, room), inv_d, eps);
    const f32 factor = mean > 0    ? rsqrt32(mean)
                       : mean == 0 ? 0
                                   : not_a_number(); // a row of zeros with eps 0 stays zeros
    UNROLL for (u32 i = 0; i < KEPT; i++) {
        const u32 c = first + i * step;
        if (c >= d) continue;
        f32x4 v = kept[i] * factor;
        if (w) v *= load4(w, c, d, whole_w);
        store4(out, c, d, whole_y, v);
    }
    for (u32 c = first + KEPT * step; c < d; c += step) {
        f32x4 v = load4(in, c, d, whole_x) * factor;
        if (w) v *= load4(w, c, d, whole_w);
        store4(out, c, d, whole_y, v);
    }
}

/* y = rms_norm(x) * w * silu(z), each row cut into n_head heads of hd values; y may be x or z.
 * Tiling: a wave owns a head; a lane takes 4 columns in each round of 128. Grid: x = rows, y = ceil(n_head / waves of a block).
 * Block: 128 threads. inv_hd: 1 / hd. */
__gpu_kernel void gated_norm(mx_k_mat y, mx_k_mat x, mx_k_mat z, const G f32 *w, u32 n_head, u32 hd,
                             f32 inv_hd, f32 eps) {
    let_next_start();
    after_previous();
    const u32 head = by() * n_wave() + wave(), at = head * hd;
    if (head >= n_head) return; // the whole wave leaves together
    const G f32 *in = row_of(x, bx()) + at, *gate = row_of(z, bx()) + at;
    G f32 *out = row_of(y, bx()) + at;
    const bool even = hd % 4 == 0, whole_w = ((u64)w & 15) == 0;
    const bool whole_x = even && whole16(x), whole_y = even && whole16(y), whole_z = even && whole16(z);
    f32 squares = 0;
    for (u32 c = lane() * 4; c < hd; c += 4 * WAVE) {
        const f32x4 v = load4(in, c, hd, whole_x);
        squares += sum4(v * v);
    }
    const f32 mean = fma32(wave_sum(squares), inv_hd, eps);
    const f32 factor = mean > 0 ? rsqrt32(mean) : mean == 0 ? 0 : not_a_number();
    for (u32 c = lane() * 4; c < hd; c += 4 * WAVE) {
        const f32x4 g = map4(load4(gate, c, hd, whole_z), silu32);
        store4(out, c, hd, whole_y, load4(in, c, hd, whole_x) * factor * load4(w, c, hd, whole_w) * g);
    }
}
