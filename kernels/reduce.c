/* reduce.c - rows of logits to a few numbers: the largest, the k largest, the logarithm of the sum of exponentials.
 *
 * Tiling: a block owns a row; thread t has columns t, t + threads, ... Grid: x = rows. Block: 1024 threads (any multiple of 32).
 * Columns are below 2^32 - 1. Ties go to the lower column. */
#include "numbers.h"

typedef struct {
    u32 order, index; // greater is better: `index` counts down
} rank;
INLINE bool above(rank a, rank b) { return a.order > b.order || (a.order == b.order && a.index > b.index); }

/* The block's best, for every thread; `room` holds a rank a wave. Two barriers. */
INLINE rank block_best(rank a, LDS rank *room) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) {
        const rank b = {shuffle_xor_u32(a.order, m), shuffle_xor_u32(a.index, m)};
        if (above(b, a)) a = b;
    }
    barrier();
    if (lane() == 0) room[wave()].order = a.order, room[wave()].index = a.index;
    barrier();
    for (u32 i = 0; i < n_wave(); i++) {
        const rank b = {room[i].order, room[i].index};
        if (above(b, a)) a = b;
    }
    return a;
}

/* ids[i], values[i] = column and value of the largest of row i; the first NaN, if there is one, so that it is seen. */
__gpu_kernel void argmax(G i32 *ids, G f32 *values, mx_k_mat x, u32 cols) {
    SHARED rank room[32];
    const G f32 *row = row_of(x, bx());
    rank best = {0, 0};
    for (u32 c = thread(); c < cols; c += threads()) {
        const f32 v = row[c];
        const rank r = {v != v ? 0xFFFFFFFFu : order_of(v), ~c};
        if (above(r, best)) best = r;
    }
    best = block_best(best, room);
    if (thread() == 0) ids[bx()] = (i32)~best.index, values[bx()] = row[~best.index];
}

/* ids, values [rows, k]: the k <= cols largest of each row in falling order, NaN last. A thread offers its best below the last
 * one taken; only the thread whose offer was taken looks through its columns again. */
__gpu_kernel void top_k(G i32 *ids, G f32 *values, mx_k_mat x, u32 cols, u32 k) {
    SHARED rank room[32];
    const G f32 *row = row_of(x, bx());
    rank last = {0xFFFFFFFFu, 0xFFFFFFFFu}, offer = last;
    for (u32 j = 0; j < k; j++) {
        if (!above(last, offer)) {
            offer = (rank){0, 0};
            for (u32 c = thread(); c < cols; c += threads()) {
                const rank r = {order_of(row[c]), ~c};
                if (above(last, r) && above(r, offer)) offer = r;
            }
        }
        last = block_best(offer, room);
        if (thread() == 0)
            ids[(u64)bx() * k + j] = (i32)~last.index, values[(u64)bx() * k + j] = row[~last.index];
    }
}

/* out[i] = log of the sum of exp(row i). NaN for a row that holds NaN, infinity, or nothing but -infinity. */
__gpu_kernel void logsumexp(G f32 *out, mx_k_mat x, u32 cols) {
    SHARED f32 room[32];
    const G f32 *row = row_of(x, bx());
    f32 top = -infinity(), sum = 0;
    for (u32 c = thread(); c < cols; c += threads()) top = max32(top, row[c]);
    top = block_max(top, room);
    for (u32 c = thread(); c < cols; c += threads()) sum += exp32(row[c] - top);
    sum = block_sum(sum, room);
    if (thread() == 0) out[bx()] = fma32(fast_log2(sum), 0.693147182f, top);
}

/* out[i] = x[i, ids[i]] - lse[i]: log-probability of a given token; NaN for an id outside the row. Grid: x = ceil(rows / threads). */
__gpu_kernel void log_prob(G f32 *out, mx_k_mat x, const G i32 *ids, const G f32 *lse, u32 rows, u32 cols) {
    const u32 i = bx() * threads() + thread();
    if (i >= rows) return;
    const u32 id = (u32)ids[i];
    out[i] = id < cols ? row_of(x, i)[id] - lse[i] : not_a_number();
}
