/* prefill_wide.c - prefill.c's attention on sm_90a, with the matrix instructions of a warpgroup.
 *
 * Tiling: a block of 4 waves owns 64 tokens of a sequence and a head; queries stay in registers. Keys and values pass through shared
 * memory 64 at a time, two tiles of each, one in use and one on its way. While the weighted values of a tile are summed, the scores
 * of the next are made and then, in the general units, their maxima and exponentials.
 *
 * Kernels prefill_wide_TYPE_HEAD: TYPE f16, bf16; HEAD 64, 128 >= hd; arguments, grid and block as in prefill.c, softcap 0 (its
 * arithmetic takes the registers away). Shared memory, given at launch: 512 HEAD + 1024 bytes. */
#include "prefill.h"
#include "mma.h"
#include "wgmma.h"

enum { KEYS = 64, HALF_TILE = KEYS * 128 }; // bytes of 64 keys' 64 values
extern LDS u8 room[];

/* The rows of the pool that this thread copies from: chunk i of a tile is 8 values of key i * 1024 / head + ... */
typedef struct {
    u32 at[8]; // ~0: zeros
} rows;

INLINE u32 key_of(const u32 head, u32 i) { return (i * THREADS + thread()) / (head / 8); }
INLINE u32 value_of(const u32 head) { return thread() % (head / 8) * 8; }

INLINE rows find_rows(const u32 head, mx_k_attention *a, mx_k_batch *b, const place *p, i32 base) {
    rows r;
    UNROLL for (u32 i = 0; i < KEYS * head / 8 / THREADS; i++) {
        u32 row;
        const bool exists = row_at(a, b, p, base + (i32)key_of(head, i), &row) && value_of(head) < a->hd;
        r.at[i] = exists ? row : ~0u;
    }
    return r;
}

INLINE void fetch(u32 to, const G void *pool, const u32 head, mx_k_attention *a, const rows *r) {
    const u32 d = value_of(head);
    UNROLL for (u32 i = 0; i < KEYS * head / 8 / THREADS; i++) {
        const u32 key = key_of(head, i), slot = (d / 8 & 7) ^ (key & 7);
        const bool exists = r->at[i] != ~0u;
        const G u16 *from = (const G u16 *)pool + (exists ? (u64)r->at[i] * a->hd + d : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + d / 64 * HALF_TILE +
                                                                           key * 128 + slot * 16),
                     "l"(from), "r"(exists ? 16 : 0)
                     : "memory");
    }
}

/* What a lane has of its two rows: which keys they see, and of those so far the largest score and the sum of weights. */
typedef struct {
    i32 lo[2], hi[2], all_from, all_to; // every row of the wave sees keys all_from to all_to
    f32 top[2], total[2];
} row_state;

/* Scores of 64 keys from `base` on become weights: s before, w after; *fix: what earlier sums shrink by. */
INLINE void weigh(f32 *s, f32 *fix, row_state *r, i32 base) {
    const u32 c = lane() % 4;
    const bool partly = base < r->all_from || base + KEYS > r->all_to;
    f32 best[2] = {r->top[0], r->top[1]};
    if (partly) UNROLL for (u32 j = 0; j < 32; j++) {
            const u32 h = j >> 1 & 1;
            const i32 key = base + (i32)(j / 4 * 8 + c * 2 + (j & 1));
            s[j] = key >= r->lo[h] && key < r->hi[h] ? s[j] : -infinity();
        }
    UNROLL for (u32 j = 0; j < 32; j++) best[j >> 1 & 1] = max32(best[j >> 1 & 1], s[j]);
    UNROLL for (u32 h = 0; h < 2; h++) {
        best[h] = max32(best[h], shuffle_xor(best[h], 1));
        best[h] = max32(best[h], shuffle_xor(best[h], 2));
        const f32 at = best[h] == -infinity() ? 0 : best[h] * LOG2E;
        fix[h] = fast_exp2(fma32(r->top[h], LOG2E, -at));
        r->top[h] = best[h];
        r->total[h] *= fix[h];
        UNROLL for (u32 j = 0; j < 32; j++) if ((j >> 1 & 1) == h) {
            s[j] = fast_exp2(fma32(s[j], LOG2E, -at));
            r->total[h] += s[j];
        }
    }
}

INLINE void round_weights(const bool bf16, u32 (*w)[4], const f32 *s) {
    UNROLL for (u32 k = 0; k < KEYS / 16; k++) UNROLL for (u32 j = 0; j < 4; j++) {
        w[k][j] = pair16(bf16, s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
        wgmma_own(&w[k][j]);
    }
}

/* Begin s = q keys^T and o += w values. */
INLINE void begin_scores(const bool bf16, const u32 head, f32 *s, u32 (*q)[4], u32 keys) {
    UNROLL for (u32 k = 0; k < head / 16; k++)
        wgmma_any(s, q[k], wgmma_tile(keys + k / 4 * HALF_TILE) + 2 * (k % 4), KEYS, !bf16, k > 0, false);
    wgmma_commit();
}
INLINE void begin_sums(const bool bf16, const u32 head, f32 *o, u32 (*w)[4], u32 values) {
    UNROLL for (u32 k = 0; k < KEYS / 16; k++)
        wgmma_any(o, w[k], wgmma_tile_side(values + k * 2048, HALF_TILE), head, !bf16, true, true);
    wgmma_commit();
}

INLINE void prefill_wide(const bool bf16, const u32 head, mx_k_attention *a, mx_k_batch *b, const place *p,
                         i32 kv_len) {
    const u32 g = lane() / 4, c = lane() % 4, tile = head / 64 * HALF_TILE;
    const u32 keys = (shared_address(room) + 1023) & ~1023u, values = keys + 2 * tile;
    const u32 tok[2] = {p->tok0 + wave() * 16 + g, p->tok0 + wave() * 16 + g + 8};
    row_state r = {.top = {-infinity(), -infinity()}};
    UNROLL for (u32 h = 0; h < 2; h++) range_of(a, b, p, tok[h], kv_len, &r.lo[h], &r.hi[h]);
    r.all_from = -wave_min_i32(-max_i32(r.lo[0], r.lo[1]));
    r.all_to = wave_min_i32(min_i32(r.hi[0], r.hi[1]));
    u32 q[8][4];
    UNROLL for (u32 k = 0; k < head / 16; k++) UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 t = tok[i & 1], d = k * 16 + c * 2 + (i >> 1) * 8;
        const bool exists = t < p->q_len && d < a->hd;
        const G f32 *x = row_of(a->q, p->start + (exists ? t : p->tok0)) + p->head * a->hd + (exists ? d : 0);
        q[k][i] = exists ? pair16(bf16, x[0] * a->scale, x[1] * a->scale) : 0;
        wgmma_own(&q[k][i]);
    }
    f32 o[64], s[32], fix[2];
    u32 w[4][4];
    UNROLL for (u32 i = 0; i < head / 2; i++) o[i] = 0;
    wgmma_settle(o, head);

    const i32 first = p->lo & ~(i32)(KEYS - 1), n_tile = (p->hi - first + KEYS - 1) / KEYS;
    rows now = find_rows(head, a, b, p, first);
    fetch(keys, a->pool_k, head, a, &now);
    for (i32 i = 0; i < n_tile; i++) { // scores of tile i, weighted values of tile i - 1
        const i32 base = first + i * KEYS;
        const u32 even = (u32)i & 1;
        copies_done();
        copies_seen();
        barrier(); // keys i and values i - 1 are there; everyone has done with keys i - 1 and values i - 2
        fetch(values + even * tile, a->pool_v, head, a, &now);
        if (i + 1 < n_tile) {
            now = find_rows(head, a, b, p, base + KEYS);
            fetch(keys + (even ^ 1) * tile, a->pool_k, head, a, &now);
        }
        wgmma_fence();
        begin_scores(bf16, head, s, q, keys + even * tile);
        if (i == 0) {
            wgmma_wait(0);
            wgmma_settle(s, KEYS);
            weigh(s, fix, &r, base);
        } else {
            wgmma_fence();
            begin_sums(bf16, head, o, w, values + (even ^ 1) * tile);
            wgmma_wait(1);
            wgmma_settle(s, KEYS);
            weigh(s, fix, &r, base);
            wgmma_wait(0);
            wgmma_settle(o, head);
            UNROLL for (u32 j = 0; j < head / 2; j++) o[j] *= fix[j >> 1 & 1];
            wgmma_settle(o, head);
        }
        round_weights(bf16, w, s);
    }
    copies_done();
    copies_seen();
    barrier();
    if (n_tile > 0) {
        wgmma_fence();
        begin_sums(bf16, head, o, w, values + (((u32)n_tile - 1) & 1) * tile);
        wgmma_wait(0);
        wgmma_settle(o, head);
    }
    UNROLL for (u32 h = 0; h < 2; h++) {
        r.total[h] += shuffle_xor(r.total[h], 1);
        r.total[h] += shuffle_xor(r.total[h], 2);
        if (tok[h] >= p->q_len) continue;
        f32 factor = 1, sum = r.total[h];
        if (a->sinks) {
            const f32 sink = a->sinks[p->head], both = max32(r.top[h], sink);
            factor = sum == 0 ? 0 : exp32(r.top[h] - both);
            sum = fma32(sum, factor, exp32(sink - both));
        }
        factor = sum == 0 ? 0 : factor * fast_rcp(sum);
        G f32 *out = row_of(a->out, p->start + tok[h]) + p->head * a->hd;
        UNROLL for (u32 i = 0; i < head / 8; i++) {
            const u32 d = i * 8 + c * 2;
            if (d < a->hd) out[d] = o[4 * i + 2 * h] * factor, out[d + 1] = o[4 * i + 2 * h + 1] * factor;
        }
    }
}

#define PREFILL(name, bf16, head)                                                                            \
    __gpu_kernel void prefill_wide_##name##_##head(mx_k_attention a, mx_k_batch b) {                         \
        SHARED i32 spans[4];                                                                                 \
        place p;                                                                                             \
        i32 kv_len;                                                                                          \
        let_next_start();                                                                                    \
        after_previous();                                                                                    \
        if (find_place(&a, &b, spans, &p, &kv_len)) prefill_wide(bf16, head, &a, &b, &p, kv_len);            \
    }
PREFILL(f16, false, 64)
PREFILL(f16, false, 128)
PREFILL(bf16, true, 64)
PREFILL(bf16, true, 128)
