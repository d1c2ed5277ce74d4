/* decode.c - attention for one token a sequence: query and key are normed and rotated, key and value appended to the cache, and the
 * queries go over the cache, in one launch. NVIDIA's matrix instructions; elsewhere rope.c and attention.c do the same.
 *
 * Tiling: a block owns up to 8 heads that share a key head, and a part of the sequence's earlier positions. Its waves take tiles of
 * 16 positions in turn and do not wait for each other. For a tile:
 *   scores   S = Q K^T. Rows 0 to 7 of A are the queries as 16-bit numbers, rows 8 to 15 what rounding took from them, so that
 *            queries count with twice the bits. A lane loads 16 bytes of a key at a time, which are pairs of two steps: the order of
 *            a head's values is the lanes' own, the same for queries and keys.
 *   values   O^T = V^T P^T. A lane loads 16 bytes of each of its four positions; pairs of neighbouring positions come from two
 *            words by a byte permutation. P comes out of the scores as B wants it.
 * Keys and values of the next tile are on their way meanwhile; the first tile's are, before the launch ahead has ended: no launch of
 * this step writes to earlier positions of this layer. The token's own key does not pass through the cache: part 0 joins its score
 * and value in the end. Waves are joined in shared memory, parts by the block that finishes last.
 *
 * Kernels decode_TYPE_HD: TYPE f16, bf16 of the cache, HD 64, 128, 256. Block: 256 threads. Grid: x = parts, y = n_kv << share_bits
 * (a share: 8 heads of a group), z = sequences, of one token each. a.part_splits: tiles in a part, n_part of them hold all; n_part
 * <= 128. Cache blocks hold 16 positions or more. count [z, y]: zeros, and stays so. Powers are of 2: log2 e is in the scale. */
#include "numbers.h"
#include "mma.h"

enum { TILE = 16, WAVES = 8, HEADS = 8, MAX_PART = 128, HALF = 128, MOST_HD = 256 };
static const f32 LOG2E = 1.44269502f;

typedef struct {
    u32x4 k[2][MOST_HD / 32], v[4][MOST_HD / 64];
} kv_tile;

typedef struct { // what finds a position in the cache
    const G i32 *blocks;
    u32 n_kv, kv_head, shift;
    i32 lo, pos; // positions [lo, pos) are seen
} cache;

/* Row of the pool where a tile begins, or that of some other tile if its block is not there: then it is not seen. */
INLINE u32 tile_row(const cache *c, i32 tile, bool *there) {
    const u32 at = (u32)tile * TILE;
    const i32 block = c->blocks[at >> c->shift];
    *there = block >= 0;
    return (((u32)(block < 0 ? 0 : block) * c->n_kv + c->kv_head) << c->shift) +
           (at & ((1u << c->shift) - 1));
}
/* Position i of a tile, or the nearest that is seen: what is loaded in vain is a number nevertheless. */
INLINE u32 seen(const cache *c, i32 tile, u32 i) {
    const i32 base = tile * TILE, at = base + (i32)i;
    return (u32)(max_i32(min_i32(at, c->pos - 1), c->lo) - base);
}
INLINE void load_keys(kv_tile *t, const u32 hd, const cache *c, const G u16 *pool, i32 tile, u32 row) {
    UNROLL for (u32 n = 0; n < 2; n++) {
        const G u16 *from = pool + (u64)(row + seen(c, tile, 8 * n + lane() / 4)) * hd + 8 * (lane() % 4);
        UNROLL for (u32 i = 0; i < hd / 32; i++) t->k[n][i] = *(const G u32x4 *)(from + 32 * i);
    }
}
INLINE void load_values(kv_tile *t, const u32 hd, const cache *c, const G u16 *pool, i32 tile, u32 row) {
    UNROLL for (u32 n = 0; n < 4; n++) {
        const u32 i = 2 * (lane() % 4) + (n & 1) + 4 * (n & 2);
        const G u16 *from = pool + (u64)(row + seen(c, tile, i)) * hd + 8 * (lane() / 4);
        UNROLL for (u32 j = 0; j < hd / 64; j++) t->v[n][j] = *(const G u32x4 *)(from + 64 * j);
    }
}
INLINE u32 low_halves(u32 a, u32 b) { return (a & 0xFFFFu) | b << 16; }
INLINE u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xFFFF0000u); }
INLINE u32 word(u32x4 v, u32 i) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
    return w[i];
}
INLINE f32 power(f32 m, f32 top) { return m == -infinity() ? 0 : fast_exp2(m - top); }
INLINE f32 half_of(const bool bf16, u16 v) { return bf16 ? bf16_f32(v) : f16_f32(v); }
INLINE u16 to_half(const bool bf16, f32 v) { return bf16 ? f32_bf16(v) : f32_f16(v); }
INLINE f32 capped(f32 s, f32 cap) { return cap > 0 ? cap * tanh32(div32(s, cap)) * LOG2E : s; }

/* Value d of a head after rotation: x in shared memory, cs the cosines, then the sines. */
INLINE f32 rotated(const LDS f32 *x, u32 d, u32 n_rot, u32 interleaved, const LDS f32 *cs) {
    const u32 half = n_rot / 2;
    if (d >= n_rot) return x[d];
    const u32 i = interleaved ? d / 2 : d < half ? d : d - half;
    const bool first = interleaved ? (d & 1) == 0 : d < half;
    const u32 other = interleaved ? d ^ 1 : first ? d + half : d - half;
    return first ? x[d] * cs[i] - x[other] * cs[half + i] : x[d] * cs[i] + x[other] * cs[half + i];
}

INLINE void decode(const bool bf16, const u32 hd, mx_k_rope_append r, mx_k_attention a, mx_k_batch b,
                   G u32 *count) {
    SHARED f32 room[WAVES * HEADS * HALF] __attribute__((aligned(16)));
    SHARED u16 query[2][HEADS][MOST_HD] __attribute__((aligned(16))); // rounded, and what that took away
    SHARED f32 own[2][MOST_HD], own_score[HEADS];                     // the token's key and value
    SHARED f32 wave_top[WAVES][HEADS], wave_sum_[WAVES][HEADS];
    SHARED u32 flag;
    LDS f32(*head)[MOST_HD] = (LDS f32(*)[MOST_HD])room; // first: heads before rotation, and the table
    LDS f32 *cs = head[HEADS + 2];
    const u32 seq = bz(), part = bx(), kv_head = by() >> a.share_bits, g = lane() / 4, t = lane() % 4;
    const u32 head0 = (by() & ((1u << a.share_bits) - 1)) * HEADS, first_head = kv_head * a.group + head0;
    let_next_start();
    if (head0 >= a.group) {
        after_previous();
        return;
    }
    const u32 n_head = min_u32(a.group - head0, HEADS), tok = (u32)b.seq_start[seq];
    const i32 pos = b.pos[tok];
    const cache c = {b.blocks + (u64)seq * b.block_stride,
                     a.n_kv,
                     kv_head,
                     b.block_shift,
                     a.window && pos + 1 > (i32)a.window ? pos + 1 - (i32)a.window : 0,
                     pos};
    const i32 from = c.lo / TILE + (i32)(part * a.part_splits);
    const i32 whole = from + (i32)a.part_splits, behind = (pos + TILE - 1) / TILE;
    const i32 end = c.lo < pos ? min_i32(whole, behind) : from; // a window of 1 sees the token itself alone
    const G u16 *pool_k = a.pool_k, *pool_v = a.pool_v;
    kv_tile now;
    bool there = true, next_there = true;
    i32 tile = from + (i32)wave();
    if (tile < end) {
        const u32 row = tile_row(&c, tile, &there);
        load_keys(&now, hd, &c, pool_k, tile, row);
        load_values(&now, hd, &c, pool_v, tile, row);
    }
    f32 weight_q[MOST_HD / 32], weight_k[MOST_HD / 32];
    UNROLL for (u32 j = 0; j < hd / 32; j++) {
        weight_q[j] = r.q_norm ? r.q_norm[lane() + 32 * j] : 1;
        weight_k[j] = r.k_norm ? r.k_norm[lane() + 32 * j] : 1;
    }
    after_previous();

    /* Heads of the token: queries, in part 0 also key and value. */
    const u32 n_task = n_head + (part == 0 ? 2 : 0);
    for (u32 i = thread(); i < r.n_rot; i += threads()) cs[i] = r.cos_sin[(u64)tok * r.n_rot + i];
    for (u32 task = wave(); task < n_task; task += WAVES) {
        const bool is_q = task < n_head, is_v = task == n_head + 1;
        const G f32 *x = is_q   ? row_of(r.q, tok) + (first_head + task) * hd
                         : is_v ? row_of(r.v, tok) + kv_head * hd
                                : row_of(r.k, tok) + kv_head * hd;
        f32 v[MOST_HD / 32], squares = 0;
        UNROLL for (u32 j = 0; j < hd / 32; j++) v[j] = x[lane() + 32 * j];
        UNROLL for (u32 j = 0; j < hd / 32; j++) squares = fma32(v[j], v[j], squares);
        f32 factor = 1;
        if (!is_v && (is_q ? r.q_norm : r.k_norm)) {
            const f32 mean = fma32(wave_sum(squares), r.inv_hd, r.eps);
            factor = mean > 0 ? rsqrt32(mean) : mean == 0 ? 0 : not_a_number();
        }
        UNROLL for (u32 j = 0; j < hd / 32; j++) {
            const f32 w = is_v ? 1 : is_q ? weight_q[j] : weight_k[j];
            head[task][lane() + 32 * j] = v[j] * factor * w;
        }
    }
    barrier();
    const f32 scale = a.softcap > 0 ? a.scale : a.scale * LOG2E;
    bool appended = false;
    for (u32 task = wave(); task < n_task; task += WAVES) {
        const bool is_q = task < n_head, is_v = task == n_head + 1;
        const i32 block = c.blocks[(u32)pos >> c.shift];
        const u64 at =
            ((((u64)(u32)block * a.n_kv + kv_head) << c.shift) + ((u32)pos & ((1u << c.shift) - 1))) * hd;
        UNROLL for (u32 j = 0; j < hd / 32; j++) {
            const u32 d = lane() + 32 * j;
            const f32 x = rotated(head[task], d, is_v ? 0 : r.n_rot, r.interleaved, cs);
            if (is_q) {
                const u16 near = to_half(bf16, x * scale);
                query[0][task][d] = near;
                query[1][task][d] = to_half(bf16, x * scale - half_of(bf16, near));
            } else {
                const u16 v = to_half(bf16, x);
                own[is_v][d] = half_of(bf16, v);
                if (block >= 0 && head0 == 0) ((G u16 *)(is_v ? r.pool_v : r.pool_k))[at + d] = v;
            }
        }
    }
    appended = part == 0 && c.blocks[(u32)pos >> c.shift] >= 0;
    for (u32 i = thread(); i < 2 * (HEADS - n_head) * hd; i += threads()) { // queries that are not there
        const u32 n = (HEADS - n_head) * hd, k = i < n ? i : i - n;
        query[i >= n][n_head + k / hd][k % hd] = 0;
    }
    barrier();
    if (appended && wave() < n_head) {
        f32 s = 0;
        UNROLL for (u32 j = 0; j < hd / 32; j++) {
            const u32 d = lane() + 32 * j;
            s = fma32(half_of(bf16, query[0][wave()][d]) + half_of(bf16, query[1][wave()][d]), own[0][d], s);
        }
        s = capped(wave_sum(s), a.softcap);
        if (lane() == 0) own_score[wave()] = s;
    }

    /* The part's tiles. Lane 4g + t has the scores of head g, and of O^T the heads 2t and 2t + 1. */
    f32 top = -infinity(), sum = 0, o[MOST_HD / 16][4];
    UNROLL for (u32 i = 0; i < hd / 16; i++) UNROLL for (u32 j = 0; j < 4; j++) o[i][j] = 0;
    for (; tile < end; tile += WAVES) {
        f32 s[2][4] = {};
        UNROLL for (u32 i = 0; i < hd / 32; i++) {
            const u32x4 hi = *(const LDS u32x4 *)&query[0][g][32 * i + 8 * t],
                        lo = *(const LDS u32x4 *)&query[1][g][32 * i + 8 * t];
            const u32 a0[4] = {hi.x, lo.x, hi.y, lo.y}, a1[4] = {hi.z, lo.z, hi.w, lo.w};
            UNROLL for (u32 n = 0; n < 2; n++) {
                const u32x4 k = now.k[n][i];
                const u32 b0[2] = {k.x, k.y}, b1[2] = {k.z, k.w};
                mma(bf16, s[n], a0, b0);
                mma(bf16, s[n], a1, b1);
            }
        }
        const i32 next = tile + WAVES;
        u32 row = 0;
        if (next < end) {
            row = tile_row(&c, next, &next_there);
            load_keys(&now, hd, &c, pool_k, next, row);
        }
        f32 p[4], most = top;
        UNROLL for (u32 i = 0; i < 4; i++) {
            const i32 at = tile * TILE + (i32)(2 * t + (i & 1) + 4 * (i & 2));
            p[i] = capped(s[i / 2][i & 1] + s[i / 2][2 + (i & 1)], a.softcap);
            p[i] = there && at >= c.lo && at < c.pos ? p[i] : -infinity();
            most = p[i] > most || p[i] != p[i] ? p[i] : most; // NaN stays
        }
        most = max32(most, shuffle_xor(most, 1));
        most = max32(most, shuffle_xor(most, 2));
        const f32 fix = power(top, most);
        f32 add = 0;
        UNROLL for (u32 i = 0; i < 4; i++) {
            p[i] = power(p[i], most);
            add += p[i];
        }
        sum = fma32(sum, fix, add);
        top = most;
        const f32 fix0 = shuffle(fix, 8 * t), fix1 = shuffle(fix, 8 * t + 4);
        if (__gpu_ballot(__gpu_lane_mask(), fix != 1)) {
            UNROLL for (u32 i = 0; i < hd / 16; i++) o[i][0] *= fix0, o[i][2] *= fix0, o[i][1] *= fix1,
                o[i][3] *= fix1;
        }
        const u32 b0[2] = {pair16(bf16, p[0], p[1]), pair16(bf16, p[2], p[3])};
        UNROLL for (u32 i = 0; i < hd / 64; i++) UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 v0 = word(now.v[0][i], j), v1 = word(now.v[1][i], j), v2 = word(now.v[2][i], j),
                      v3 = word(now.v[3][i], j);
            const u32 v[4] = {low_halves(v0, v1), high_halves(v0, v1), low_halves(v2, v3),
                              high_halves(v2, v3)};
            mma(bf16, o[4 * i + j], v, b0);
        }
        if (next < end) load_values(&now, hd, &c, pool_v, next, row);
        there = next_there;
    }
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);

    /* Join the waves. */
    if (t == 0) wave_top[wave()][g] = top, wave_sum_[wave()][g] = sum;
    barrier(); // also: own_score is there, and nobody needs the heads in `room`
    f32 mine[2], all[2];
    UNROLL for (u32 k = 0; k < 2; k++) {
        const u32 h = 2 * t + k;
        all[k] = appended && h < n_head ? own_score[h] : -infinity();
        for (u32 w = 0; w < WAVES; w++) all[k] = max32(all[k], wave_top[w][h]);
        mine[k] = power(wave_top[wave()][h], all[k]);
    }
    const u32 width = min_u32(hd, HALF);
    UNROLL for (u32 d0 = 0; d0 < hd; d0 += HALF) {
        if (d0) barrier();
        UNROLL for (u32 i = 0; i < 8; i++) {
            const u32 at = d0 / 16 + i, d = 64 * (i / 4) + 8 * g + 2 * (i % 4);
            if (at >= hd / 16) continue;
            LDS f32 *to = room + (wave() * HEADS + 2 * t) * HALF + d;
            to[0] = o[at][0] * mine[0], to[1] = o[at][2] * mine[0];
            to[HALF] = o[at][1] * mine[1], to[HALF + 1] = o[at][3] * mine[1];
        }
        barrier();
        for (u32 i = thread(); i < n_head * width; i += threads()) {
            const u32 h = i / width, d = i % width; // constant powers of two
            f32 m = appended ? own_score[h] : -infinity(), l = 0, v = 0;
            for (u32 w = 0; w < WAVES; w++) m = max32(m, wave_top[w][h]);
            UNROLL for (u32 w = 0; w < WAVES; w++) {
                v += room[(w * HEADS + h) * HALF + d];
                l = fma32(wave_sum_[w][h], power(wave_top[w][h], m), l);
            }
            if (appended) {
                const f32 p = power(own_score[h], m);
                v = fma32(p, own[1][d0 + d], v), l += p;
            }
            if (a.n_part > 1) {
                const u64 at = ((u64)tok * a.n_head + first_head + h) * a.n_part + part;
                if (l != 0) a.part_o[at * hd + d0 + d] = v;
                if (d0 + d == 0) a.part_ml[2 * at] = m, a.part_ml[2 * at + 1] = l;
                continue;
            }
            if (a.sinks) {
                const f32 sink = a.sinks[first_head + h] * LOG2E, both = max32(m, sink),
                          fix_ = power(m, both);
                v *= fix_, l = fma32(l, fix_, fast_exp2(sink - both));
            }
            row_of(a.out, tok)[(first_head + h) * hd + d0 + d] = l == 0 ? 0 : v * fast_rcp(l);
        }
    }
    if (a.n_part == 1) return;

    /* Join the parts. */
    if (!last_block(count + seq * (a.n_kv << a.share_bits) + by(), a.n_part, &flag)) return;
    LDS f32(*weight)[MAX_PART] = (LDS f32(*)[MAX_PART])room;
    const u64 first = ((u64)tok * a.n_head + first_head) * a.n_part;
    if (wave() < n_head) {
        const G f32x2 *ml = (const G f32x2 *)a.part_ml + first + wave() * a.n_part;
        const f32 sink = a.sinks ? a.sinks[first_head + wave()] * LOG2E : -infinity();
        f32 most = sink, total = 0;
        for (u32 p = lane(); p < a.n_part; p += WAVE) {
            const f32x2 x = ml[p];
            const f32 m = x.x;
            most = max32(most, m);
        }
        most = wave_max(most);
        for (u32 p = lane(); p < a.n_part; p += WAVE) {
            const f32x2 x = ml[p];
            const f32 m = x.x, l = x.y, w = l == 0 ? 0 : power(m, most);
            weight[wave()][p] = w;
            total = fma32(l, w, total);
        }
        total = wave_sum(total) + power(sink, most);
        const f32 factor = total == 0 ? 0 : fast_rcp(total);
        for (u32 p = lane(); p < a.n_part; p += WAVE) weight[wave()][p] *= factor; // each lane its own
    }
    barrier();
    for (u32 i = thread(); i < n_head * (hd / 4); i += threads()) {
        const u32 h = i / (hd / 4), d = i % (hd / 4) * 4;
        const G f32 *from_part = a.part_o + (first + h * a.n_part) * hd + d;
        f32x4 v = {0, 0, 0, 0};
        _Pragma("unroll 8") for (u32 p = 0; p < a.n_part; p++) {
            const f32 w = weight[h][p];
            const f32x4 x = *(const G f32x4 *)(from_part + (u64)p * hd);
            if (w != 0) v += x * w;
        }
        G f32 *to = row_of(a.out, tok) + (first_head + h) * hd + d;
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
}

#define DECODE(name, bf16, hd)                                                                               \
    __gpu_kernel void decode_##name##_##hd(mx_k_rope_append r, mx_k_attention a, mx_k_batch b,               \
                                           G u32 *count) {                                                   \
        decode(bf16, hd, r, a, b, count);                                                                    \
    }
DECODE(f16, false, 64)
DECODE(f16, false, 128)
DECODE(f16, false, 256)
DECODE(bf16, true, 64)
DECODE(bf16, true, 128)
DECODE(bf16, true, 256)
