/* top.c - the k largest of each row of logits, with the logarithm of the row's sum of exponentials: what choosing a token needs,
 * so that a row stays on the device.
 *
 * Tiling: a wave holds 256 columns of a row in registers, 8 a lane, and takes the best of them k times; the block joins the lists
 * of its 8 waves; the last block of a row to finish joins the lists of all. A list falls, a tie goes to the lower column. Grid:
 * x = ceil(cols / 2048) <= 256, y = rows. Block: 256 threads. 1 <= k <= 256, k <= cols. Shared memory: 33 KB.
 * ids, values [rows, k]; lse [rows], NaN if a value of the row is not finite. Work memory: list [rows, blocks, k], sums [rows,
 * blocks], count [rows] zeros, which stay zeros. */
#include "numbers.h"

enum { OWN = 8, WAVES = 8, STAGED = 4096, COLS = WAVES * WAVE * OWN };

/* A logit as a pair of numbers: greater is better. x: the number's order, y: counts down with the column. 0, 0: none. */
INLINE bool above(u32x2 a, u32x2 b) {
    const u32 ax = a.x, ay = a.y, bx_ = b.x, by_ = b.y;
    return ax > bx_ || (ax == bx_ && ay > by_);
}
INLINE u32x2 wave_best(u32x2 a) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) {
        const u32x2 b = {shuffle_xor_u32(a.x, m), shuffle_xor_u32(a.y, m)};
        if (above(b, a)) a = b;
    }
    return a;
}
INLINE f32 value_of(u32 order) { return from_bits(order & 0x80000000u ? order ^ 0x80000000u : ~order); }

/* The wave joins up to 32 falling lists of k into one: lane l has list l, from `lists` in shared memory or, where that is too
 * small, from `far`; apart: from one list to the next. The first k go to `out` or, if that is NULL, to ids and values. */
INLINE void join(const LDS u32x2 *lists, const G u32x2 *far, u32 n_list, u32 apart, u32 k, LDS u32x2 *out,
                 G u32x2 *out_far, G i32 *ids, G f32 *values) {
    const u32x2 none = {0, 0};
    u32 at = 0;
    u32x2 head = none;
    if (lane() < n_list) head = far ? far[lane() * apart] : lists[lane() * apart];
    for (u32 j = 0; j < k; j++) {
        const u32x2 best = wave_best(head);
        const u32 order = best.x, down = best.y;
        if (lane() == 0) {
            if (out)
                out[j] = best;
            else if (out_far)
                out_far[j] = best;
            else
                ids[j] = (i32)~down, values[j] = value_of(order);
        }
        const u32 hx = head.x, hy = head.y;
        if (hx != order || hy != down) continue;
        at++;
        head = at >= k || lane() >= n_list ? none
               : far                       ? far[lane() * apart + at]
                                           : lists[lane() * apart + at];
    }
}

__gpu_kernel void top(G i32 *ids, G f32 *values, G f32 *lse, mx_k_mat x, G u32x2 *list, G f32x2 *sums,
                      G u32 *count, u32 cols, u32 k) {
    SHARED u32x2 room[STAGED];
    SHARED f32 wave_top[WAVES], wave_total[WAVES];
    SHARED u32 flag;
    let_next_start();
    after_previous();
    const u32 n_block = __gpu_num_blocks_x(), r = by(), first = bx() * COLS + wave() * WAVE * OWN + lane();
    const G f32 *row = row_of(x, r);
    u32 order[OWN];
    f32 v[OWN], most = -infinity(), total = 0;
    bool bad = false;
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32 c = first + i * WAVE;
        v[i] = c < cols ? row[c] + 0.0f : -infinity(); // -0 is 0
        bad |= c < cols && (bits(v[i]) & 0x7F800000u) == 0x7F800000u;
        order[i] = c < cols ? order_of(v[i]) : 0;
        most = max32(most, v[i]);
    }
    most = wave_max(most);
    UNROLL for (u32 i = 0; i < OWN; i++) total += first + i * WAVE < cols ? exp32(v[i] - most) : 0;
    total = wave_sum(bad ? not_a_number() : total);
    if (lane() == 0) wave_top[wave()] = most, wave_total[wave()] = total;

    /* the wave's own list */
    u32x2 best = {0, 0};
    UNROLL for (u32 i = 0; i < OWN; i++) {
        const u32x2 o = {order[i], ~(first + i * WAVE)};
        if (order[i] && above(o, best)) best = o;
    }
    for (u32 j = 0; j < k; j++) {
        const u32x2 got = wave_best(best);
        const u32 down = got.y, mine = best.y;
        if (lane() == 0) room[wave() * k + j] = got;
        if (down != mine || down == 0) continue;
        best = (u32x2){0, 0};
        UNROLL for (u32 i = 0; i < OWN; i++) {
            const u32x2 o = {order[i], ~(first + i * WAVE)};
            if (~(first + i * WAVE) == down) order[i] = 0;
            if (order[i] && above(o, best)) best = o;
        }
    }
    barrier();
    if (wave() == 0) {
        join(room, nullptr, WAVES, k, k, nullptr, list + ((u64)r * n_block + bx()) * k, nullptr, nullptr);
        if (lane() == 0) {
            f32 t = -infinity(), sum = 0;
            for (u32 w = 0; w < WAVES; w++) t = max32(t, wave_top[w]);
            for (u32 w = 0; w < WAVES; w++) {
                const f32 part = wave_total[w];
                if (part != 0) sum = fma32(part, exp32(wave_top[w] - t), sum);
            }
            sums[(u64)r * n_block + bx()] = (f32x2){t, sum};
        }
    }
    if (!last_block(count + r, n_block, &flag)) return;

    const G u32x2 *lists = list + (u64)r * n_block * k;
    const bool staged = n_block * k <= STAGED - WAVES * k; // the last WAVES * k places take the waves' lists
    for (u32 i = thread(); staged && i < n_block * k; i += threads()) room[i] = lists[i];
    barrier();
    const u32 from = wave() * 32, n_mine = from >= n_block ? 0 : min_u32(n_block - from, 32);
    LDS u32x2 *mine = room + STAGED - WAVES * k + wave() * k;
    if (n_block <= 32) {
        if (wave() == 0)
            join(room, staged ? nullptr : lists, n_block, k, k, nullptr, nullptr, ids + (u64)r * k,
                 values + (u64)r * k);
    } else {
        if (n_mine)
            join(room + from * k, staged ? nullptr : lists + from * k, n_mine, k, k, mine, nullptr, nullptr,
                 nullptr);
        barrier();
        if (wave() == 0)
            join(room + STAGED - WAVES * k, nullptr, (n_block + 31) / 32, k, k, nullptr, nullptr,
                 ids + (u64)r * k, values + (u64)r * k);
    }
    if (wave() != WAVES - 1) return;
    const G f32x2 *part = sums + (u64)r * n_block;
    f32 t = -infinity(), sum = 0;
    for (u32 i = lane(); i < n_block; i += WAVE) t = max32(t, part[i].x);
    t = wave_max(t);
    for (u32 i = lane(); i < n_block; i += WAVE) {
        const f32x2 p = part[i];
        const f32 px = p.x, py = p.y;
        if (py != 0) sum = fma32(py, exp32(px - t), sum);
    }
    sum = wave_sum(sum);
    if (lane() == 0) lse[r] = fma32(fast_log2(sum), 0.693147182f, t);
}
