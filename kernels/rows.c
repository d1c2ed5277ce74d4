/* rows.c - rows of numbers: layer norm, softmax, sums, log-probabilities of given tokens, places in a sorted row.
 *
 * Tiling, unless said otherwise: a block owns a row; a thread takes 4 columns in each round of 4 * threads. Grid: x = rows.
 * Block: a multiple of 32 up to 1024. */
#include "numbers.h"

enum { KEPT = 4 }; // vectors of 4 that a thread keeps in registers between passes

/* x += plus (if plus.p), then y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + b (w, b may be NULL); y may be x. The spread
 * is taken about the mean, not as a difference of squares, which would cancel. inv_d: 1 / d */
__gpu_kernel void layer_norm(mx_k_mat y, mx_k_mat x, mx_k_mat plus, const G f32 *w, const G f32 *b, u32 d,
                             f32 inv_d, f32 eps) {
    SHARED f32 room[32];
    G f32 *in = row_of(x, bx()), *out = row_of(y, bx());
    const G f32 *more = plus.p ? row_of(plus, bx()) : plus.p;
    const bool whole_x = whole16(x), whole_y = whole16(y), whole_more = whole16(plus),
               whole_w = ((u64)w & 15) == 0, whole_b = ((u64)b & 15) == 0;
    const u32 step = threads() * 4, first = thread() * 4;
    f32x4 kept[KEPT];
    f32 sum = 0, squares = 0;
    UNROLL for (u32 i = 0; i < KEPT; i++) {
        const u32 c = first + i * step;
        kept[i] = (f32x4){0, 0, 0, 0};
        if (c >= d) continue;
        kept[i] = load4(in, c, d, whole_x);
        if (more) {
            kept[i] += load4(more, c, d, whole_more);
            store4(in, c, d, whole_x, kept[i]);
        }
        sum += sum4(kept[i]);
    }
    for (u32 c = first + KEPT * step; c < d; c += step) {
        f32x4 v = load4(in, c, d, whole_x);
        if (more) {
            v += load4(more, c, d, whole_more);
            store4(in, c, d, whole_x, v);
        }
        sum += sum4(v);
    }
    const f32 mean = block_sum(sum, room) * inv_d;
    UNROLL for (u32 i = 0; i < KEPT; i++) {
        const u32 c = first + i * step;
        f32 v[4] = {kept[i].x, kept[i].y, kept[i].z, kept[i].w};
        UNROLL for (u32 j = 0; j < 4; j++) {
            v[j] = c + j < d ? v[j] - mean : 0;
            squares = fma32(v[j], v[j], squares);
        }
        kept[i] = (f32x4){v[0], v[1], v[2], v[3]};
    }
    for (u32 c = first + KEPT * step; c < d; c += step) {
        const f32x4 whole = load4(in, c, d, whole_x);
        f32 v[4] = {whole.x, whole.y, whole.z, whole.w};
        UNROLL for (u32 j = 0; j < 4; j++) {
            const f32 far = c + j < d ? v[j] - mean : 0;
            squares = fma32(far, far, squares);
        }
    }
    const f32 spread = fma32(block_sum(squares, room), inv_d, eps);
    const f32 factor = spread > 0 ? rsqrt32(spread) : spread == 0 ? 0 : not_a_number();
    UNROLL for (u32 i = 0; i < KEPT; i++) {
        const u32 c = first + i * step;
        if (c >= d) continue;
        f32x4 v = kept[i] * factor;
        if (w) v *= load4(w, c, d, whole_w);
        if (b) v += load4(b, c, d, whole_b);
        store4(out, c, d, whole_y, v);
    }
    for (u32 c = first + KEPT * step; c < d; c += step) {
        f32x4 v = (load4(in, c, d, whole_x) - mean) * factor;
        if (w) v *= load4(w, c, d, whole_w);
        if (b) v += load4(b, c, d, whole_b);
        store4(out, c, d, whole_y, v);
    }
}

/* y = exp(scale x) / sum, scale > 0; y may be x: a thread reads only columns that it writes itself. */
__gpu_kernel void softmax(mx_k_mat y, mx_k_mat x, u32 cols, f32 scale) {
    SHARED f32 room[32];
    const G f32 *in = row_of(x, bx());
    G f32 *out = row_of(y, bx());
    f32 top = -infinity(), sum = 0;
    for (u32 c = thread(); c < cols; c += threads()) top = max32(top, in[c]);
    top = block_max(top, room);
    for (u32 c = thread(); c < cols; c += threads()) {
        const f32 e = exp32((in[c] - top) * scale);
        out[c] = e;
        sum += e;
    }
    const f32 factor = rcp32(block_sum(sum, room)); // the sum is 1 at least, or NaN
    for (u32 c = thread(); c < cols; c += threads()) out[c] *= factor;
}

/* out[i] = sum of row i */
__gpu_kernel void sum_rows(G f32 *out, mx_k_mat x, u32 cols) {
    SHARED f32 room[32];
    const G f32 *in = row_of(x, bx());
    const bool whole = whole16(x);
    f32x4 sum = {0, 0, 0, 0};
    for (u32 c = thread() * 4; c < cols; c += threads() * 4) sum += load4(in, c, cols, whole);
    const f32 all = block_sum(sum4(sum), room);
    if (thread() == 0) out[bx()] = all;
}

/* out[i] = x[i, ids[i]] - log(sum(exp(x[i]))); NaN for an id outside the row, and as logsumexp of reduce.c. */
__gpu_kernel void token_log_prob(G f32 *out, mx_k_mat x, const G i32 *ids, u32 cols) {
    SHARED f32 room[32];
    const G f32 *in = row_of(x, bx());
    const u32 id = (u32)ids[bx()];
    f32 top = -infinity(), sum = 0;
    for (u32 c = thread(); c < cols; c += threads()) top = max32(top, in[c]);
    top = block_max(top, room);
    for (u32 c = thread(); c < cols; c += threads()) sum += exp32(in[c] - top);
    sum = block_sum(sum, room);
    const f32 lse = fma32(fast_log2(sum), 0.693147182f, top);
    if (thread() == 0) out[bx()] = id < cols ? in[id] - lse : not_a_number();
}

/* Numbers in rising order as whole numbers in rising order; 0 and -0 are one, NaN is above all. */
INLINE u32 rise_of(f32 v) {
    const u32 u = bits(v == 0 ? 0.0f : v);
    return v != v ? 0xFFFFFFFFu : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* out[i, c] = how many of edges' row (its only row if shared) are below v[i, c], or not above it if `right`. By halving: a thread
 * owns a value. Grid: x = rows, y = ceil(cols / threads). */
__gpu_kernel void searchsorted(G i32 *out, mx_k_mat edges, mx_k_mat v, u32 n_edge, u32 cols, u32 shared,
                               u32 right) {
    const u32 c = by() * threads() + thread();
    if (c >= cols) return;
    const G f32 *in = row_of(edges, shared ? 0 : bx());
    const u64 key = (u64)rise_of(row_of(v, bx())[c]) + right;
    u32 lo = 0, hi = n_edge;
    while (lo < hi) {
        const u32 mid = lo + (hi - lo) / 2;
        const bool below = rise_of(in[mid]) < key;
        lo = below ? mid + 1 : lo;
        hi = below ? hi : mid;
    }
    out[(u64)bx() * cols + c] = (i32)lo;
}
