/* route.c - which experts see a token, and with what weight.
 *
 * Tiling: a wave (a block of 32 threads) owns a token; lane l has the logits l, l + 32, ... In each of k passes the wave takes
 * the largest logit below the last one taken; logits are compared as (order, lower index first), so no two are equal, ties go
 * to the lower expert, and k different experts come out whatever the logits are, NaN included. Grid: x = tokens. Block: 32.
 *   route_small   n_expert <= 256, logits in registers
 *   route_large   n_expert <= 4096, logits in shared memory (16 KB)
 * kind as mx_route_kind: 0 softmax over all, then the k largest, divided by their sum if `normalize`; 1 the k largest, then
 * softmax over these. ids, weights [n_tok, k]. 1 <= k <= n_expert. */
#include "numbers.h"

enum { SMALL = 8, LARGE = 4096 };

typedef struct {
    u32 order, index; // greater is better: `index` counts down
} rank;
INLINE bool above(rank a, rank b) { return a.order > b.order || (a.order == b.order && a.index > b.index); }
INLINE rank wave_best(rank a) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) {
        const rank b = {shuffle_xor_u32(a.order, m), shuffle_xor_u32(a.index, m)};
        if (above(b, a)) a = b;
    }
    return a;
}
INLINE rank rank_of(f32 v, u32 i) { return (rank){order_of(v), ~i}; }

/* The weights of the chosen, whose logits are written in w, as the wave's last step. */
INLINE void weigh(G f32 *w, u32 k, f32 top, f32 all, u32 kind, u32 normalize, f32 scale) {
    f32 sum = 0;
    for (u32 j = lane(); j < k; j += WAVE) sum += exp32(w[j] - top); // each lane reads what it wrote
    sum = wave_sum(sum);
    const f32 by_sum = all != all ? all : kind == 1 || normalize ? sum : all; // NaN in any logit shows
    const f32 factor = scale * fast_rcp(by_sum);
    for (u32 j = lane(); j < k; j += WAVE) w[j] = exp32(w[j] - top) * factor;
}

/* What the wave makes of its lanes' best: writes choice j and gives its rank; value is the lane's best logit, then the wave's. */
INLINE rank take(rank best, f32 *value, G i32 *id, G f32 *w, u32 j) {
    best = wave_best(best);
    const u32 e = ~best.index;
    *value = shuffle(*value, e % WAVE);
    if (lane() == j % WAVE) id[j] = (i32)e, w[j] = *value;
    return best;
}

__gpu_kernel void route_small(mx_k_mat logits, G i32 *ids, G f32 *weights, u32 n_expert, u32 k, u32 kind,
                              u32 normalize, f32 scale) {
    let_next_start();
    after_previous();
    const G f32 *x = row_of(logits, bx());
    f32 own[SMALL], all = 0;
    UNROLL for (u32 i = 0; i < SMALL; i++) {
        const u32 e = i * WAVE + lane();
        own[i] = e < n_expert ? x[e] : 0;
    }
    rank last = {0xFFFFFFFFu, 0xFFFFFFFFu};
    G i32 *id = ids + (u64)bx() * k;
    G f32 *w = weights + (u64)bx() * k;
    f32 top = 0;
    for (u32 j = 0; j < k; j++) {
        rank best = {0, 0};
        f32 value = 0;
        UNROLL for (u32 i = 0; i < SMALL; i++) {
            const u32 e = i * WAVE + lane();
            const rank r = rank_of(own[i], e);
            if (e < n_expert && above(last, r) && above(r, best)) best = r, value = own[i];
        }
        last = take(best, &value, id, w, j);
        top = j == 0 ? value : top;
    }
    UNROLL for (u32 i = 0; i < SMALL; i++) all += i * WAVE + lane() < n_expert ? exp32(own[i] - top) : 0;
    weigh(w, k, top, wave_sum(all), kind, normalize, scale);
}

__gpu_kernel void route_large(mx_k_mat logits, G i32 *ids, G f32 *weights, u32 n_expert, u32 k, u32 kind,
                              u32 normalize, f32 scale) {
    SHARED f32 own[LARGE];
    let_next_start();
    after_previous();
    const G f32 *x = row_of(logits, bx());
    f32 all = 0;
    const u32 n_own = (n_expert + WAVE - 1) / WAVE;
    for (u32 e = lane(); e < n_own * WAVE; e += WAVE)
        own[e] = e < n_expert ? x[e] : 0; // a lane reads what it wrote
    rank last = {0xFFFFFFFFu, 0xFFFFFFFFu};
    G i32 *id = ids + (u64)bx() * k;
    G f32 *w = weights + (u64)bx() * k;
    f32 top = 0;
    for (u32 j = 0; j < k; j++) {
        rank best = {0, 0};
        f32 value = 0;
        for (u32 e = lane(); e < n_expert; e += WAVE) {
            const rank r = rank_of(own[e], e);
            if (above(last, r) && above(r, best)) best = r, value = own[e];
        }
        last = take(best, &value, id, w, j);
        top = j == 0 ? value : top;
    }
    for (u32 e = lane(); e < n_expert; e += WAVE) all += exp32(own[e] - top);
    weigh(w, k, top, wave_sum(all), kind, normalize, scale);
}
