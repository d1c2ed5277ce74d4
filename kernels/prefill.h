/* prefill.h - what the attention kernels of many queries share: which tokens and which head a block works on, what they see. */
#ifndef MX_KERNELS_PREFILL_H
#define MX_KERNELS_PREFILL_H
#include "numbers.h"

enum { TOKENS = 64, THREADS = 128 };
#define LOG2E 1.44269504f

typedef struct { // what a block and a lane know of their work
    const G i32 *blocks;
    u32 start, q_len, tok0, kv_head, head;
    i32 lo, hi; // keys that any row of the block sees
} place;

INLINE void range_of(mx_k_attention *a, mx_k_batch *b, const place *p, u32 tok, i32 kv_len, i32 *lo,
                     i32 *hi) {
    *lo = 0, *hi = 0;
    if (tok >= p->q_len) return;
    const i32 pos = b->pos[p->start + tok];
    *hi = min_i32(pos + 1, kv_len);
    *lo = a->window && pos + 1 > (i32)a->window ? pos + 1 - (i32)a->window : 0;
}

/* Row of the pool of a position, or false. */
INLINE bool row_at(mx_k_attention *a, mx_k_batch *b, const place *p, i32 pos, u32 *row) {
    const bool inside = pos >= p->lo && pos < p->hi;
    const i32 block = p->blocks[(u32)(inside ? pos : p->lo) >> b->block_shift];
    *row = 0;
    if (!inside || block < 0) return false;
    *row =
        (((u32)block * a->n_kv + p->kv_head) << b->block_shift) + ((u32)pos & ((1u << b->block_shift) - 1));
    return true;
}

INLINE i32 wave_min_i32(i32 v) {
    UNROLL for (u32 m = WAVE / 2; m; m /= 2) v = min_i32(v, (i32)shuffle_xor_u32((u32)v, m));
#if defined(__AMDGPU__)
    v = __builtin_amdgcn_readfirstlane(v); // so that branches on it are a wave's: WMMA wants every lane
#endif
    return v;
}

INLINE f32 cap(f32 s, f32 c) { return c > 0 ? c * tanh32(div32(s, c)) : s; }

/* Where the block works; false if nowhere. The longest work of a sequence, its last tile, begins first. */
INLINE bool find_place(mx_k_attention *a, mx_k_batch *b, LDS i32 *room, place *p, i32 *kv_len) {
    const u32 seq = bz(), part = bx() & ((1u << a->share_bits) - 1), tile = bx() >> a->share_bits;
    p->start = (u32)b->seq_start[seq];
    p->q_len = (u32)b->seq_start[seq + 1] - p->start;
    const u32 n_tile = (p->q_len + TOKENS - 1) / TOKENS;
    if (p->q_len < a->q_lo || p->q_len > a->q_hi || tile >= n_tile || part >= a->group) return false;
    p->tok0 = (n_tile - 1 - tile) * TOKENS;
    p->kv_head = by();
    p->head = by() * a->group + part;
    p->blocks = b->blocks + (u64)seq * b->block_stride;
    *kv_len = b->kv_len[seq];
    if (thread() < TOKENS) { // two waves, a row each lane
        i32 lo, hi;
        range_of(a, b, p, p->tok0 + thread(), *kv_len, &lo, &hi);
        lo = wave_min_i32(hi ? lo : 0x7FFFFFFF), hi = -wave_min_i32(-hi);
        if (lane() == 0) room[2 * wave()] = lo, room[2 * wave() + 1] = hi;
    }
    barrier();
    p->lo = min_i32(room[0], room[2]), p->hi = max_i32(room[1], room[3]);
    return true;
}

#endif
