/* attention.c - attention over the paged cache for few queries a sequence: decode, and the way of any shape that the matrix
 * kernels of prefill.c do not take.
 *
 * Tiling: keys are cut into splits of 256 positions from position 0, splits into parts of `part_splits`. A block owns a tile
 * of up to ROWS query rows (tokens of one sequence x heads that share a key head) and a part of their keys, so that a key or
 * value is read once for all rows. For each split:
 *   scores   LANES lanes share a key, 8 values each (16-byte loads of 2-byte keys); a wave has 32 keys of the split and works on
 *            4 * 32 / LANES of them at once. Sums over lanes halve the number of values each time (fold).
 *   softmax  a wave per row: maximum, exponentials, sum, with the sums of earlier splits scaled to the new maximum
 *   values   the same lanes take 8 values of the head each and keep ROWS x 8 sums in registers
 * At the end waves are joined in shared memory. With n_part == 1 the block writes the result, else its part of it, and
 * attention_merge joins the parts in order of position.
 *
 * Kernels attention_TYPE_hLANES_rROWS: TYPE f32, f16, bf16 (of the cache); LANES 4, 8, 16, 32 for hd <= 32, 64, 128, 256 with
 * hd % 8 == 0; ROWS 1, 2, 4, 8. attention_TYPE_any: LANES 32, ROWS 8, any hd <= 256. Block: 256 threads. Grid:
 *   x = ((tiles of the longest sequence << share_bits | share) << part_bits) | part, all below the next powers of two
 *   y = n_kv, z = n_seq
 * The host chooses head_bits and tok_bits, head_bits + tok_bits = log2 ROWS: row r of a tile is token r >> head_bits, head
 * r & (2^head_bits - 1) of its share. shares = ceil(group / 2^head_bits) <= 2^share_bits; tiles = ceil(max_q_len / 2^tok_bits);
 * part < n_part <= 2^part_bits, and n_part * part_splits splits hold the keys of any row's range: for a window w that is at
 * most (w + 2^tok_bits + 509) >> 8 splits, else (max_kv_len + 255) >> 8. Sequences with fewer than q_lo or more than q_hi tokens
 * are left to another launch. Pools hold n_block * n_kv << block_shift < 2^32 rows, aligned to 16 bytes. */
#include "numbers.h"

enum { SPLIT = 256, WAVES = 8, KEYS = SPLIT / WAVES, MOST = 16, HD = 256, NO_ROW = 0xFFFFFFFF };

#define ROLLED _Pragma("nounroll") // else loads of many rounds crowd the registers

typedef struct {
    f32 v[8];
} eight;

typedef struct { // 8 values as they came: f32 in both halves, 2-byte numbers in the first
    u32x4 a, b;
} raw;

INLINE f32 number_at(const G void *p, u64 i, u32 type) {
    if (type == 0) return ((const G f32 *)p)[i];
    return type == 1 ? f16_f32(((const G u16 *)p)[i]) : bf16_f32(((const G u16 *)p)[i]);
}

/* Values at to at + 7 of a pool, of which n exist; zeros if not `exists`. Whole ones are loaded in any case, so that loads of
 * several keys are under way together: `at` is always an address inside the pool. */
INLINE raw load8(const G void *pool, u64 at, u32 type, u32 n, bool whole, bool exists) {
    const u32x4 zero = {0, 0, 0, 0};
    raw r = {zero, zero};
    if (!whole) {
        f32 v[8];
        UNROLL for (u32 i = 0; i < 8; i++) v[i] = exists && i < n ? number_at(pool, at + i, type) : 0;
        r.a = (u32x4){bits(v[0]), bits(v[1]), bits(v[2]), bits(v[3])};
        r.b = (u32x4){bits(v[4]), bits(v[5]), bits(v[6]), bits(v[7])};
    } else if (type == 0) {
        r.a = *(const G u32x4 *)((const G u32 *)pool + at);
        r.b = *(const G u32x4 *)((const G u32 *)pool + at + 4);
        r.a = exists ? r.a : zero;
        r.b = exists ? r.b : zero;
    } else {
        r.a = *(const G u32x4 *)((const G u16 *)pool + at);
        r.a = exists ? r.a : zero;
    }
    return r;
}

INLINE eight widen(raw x, u32 type) {
    eight r;
    const u32 w[8] = {x.a.x, x.a.y, x.a.z, x.a.w, x.b.x, x.b.y, x.b.z, x.b.w};
    if (type == 0) {
        UNROLL for (u32 i = 0; i < 8; i++) r.v[i] = from_bits(w[i]);
    } else {
        UNROLL for (u32 i = 0; i < 4; i++) {
            r.v[2 * i] = type == 2 ? lo_bf16(w[i]) : f16_f32((u16)w[i]);
            r.v[2 * i + 1] = type == 2 ? hi_bf16(w[i]) : f16_f32((u16)(w[i] >> 16));
        }
    }
    return r;
}

/* Sum v[n] over `lanes` neighbouring lanes. Each step a lane keeps one half of the values and gives the other away, while there
 * are two halves. Afterwards v[0 .. left) are sums of values `first`, first + 1, ...; returns first. */
INLINE u32 fold(f32 *v, const u32 n, const u32 lanes) {
    u32 first = 0;
    UNROLL for (u32 step = 0; step < 5; step++) {
        const u32 m = lanes >> (step + 1), half = n >> (step + 1);
        const bool high = lane() & m;
        if (!m) continue;
        if (half == 0) v[0] += shuffle_xor(v[0], m);
        UNROLL for (u32 i = 0; i < MOST / 2; i++) {
            if (i >= half) continue;
            const f32 x = v[i], y = v[i + half]; // read first: a choice of addresses would put v in memory
            v[i] = (high ? y : x) + shuffle_xor(high ? x : y, m);
        }
        first += high ? half : 0;
    }
    return first;
}

INLINE void attention(const u32 type, const u32 lanes, const u32 rows, const bool whole, mx_k_attention a,
                      mx_k_batch b) {
    SHARED f32 score[SPLIT * 8] __attribute__((aligned(16))); // [key, rows]: scores, then weights
    SHARED f32 joined[WAVES * HD];                            // [wave, hd]
    SHARED u32 key_row[SPLIT];                                // of the pool; NO_ROW: nobody's
    SHARED i32 row_lo[8], row_hi[8];                          // keys that a row sees
    SHARED f32 row_max[8], row_sum[8], row_fix[8];            // row_fix: what earlier sums are scaled with
    let_next_start();
    after_previous();
    const u32 seq = bz(), kv_head = by(), part = bx() & ((1u << a.part_bits) - 1);
    const u32 share = bx() >> a.part_bits & ((1u << a.share_bits) - 1),
              tile = bx() >> (a.part_bits + a.share_bits);
    const u32 start = (u32)b.seq_start[seq], q_len = (u32)b.seq_start[seq + 1] - start;
    const u32 tok0 = tile << a.tok_bits, head0 = share << a.head_bits;
    if (q_len < a.q_lo || q_len > a.q_hi || tok0 >= q_len || head0 >= a.group || part >= a.n_part) return;

    /* The rows' ranges. Rows that do not exist see nothing. */
    const i32 kv_len = b.kv_len[seq];
    i32 lo = 0x7FFFFFFF, hi = 0;
    for (u32 r = 0; r < rows; r++) {
        const u32 tok = tok0 + (r >> a.head_bits), head = head0 + (r & ((1u << a.head_bits) - 1));
        i32 from = 0, to = 0;
        if (tok < q_len && head < a.group) {
            const i32 pos = b.pos[start + tok];
            to = min_i32(pos + 1, kv_len);
            from = a.window && pos + 1 > (i32)a.window ? pos + 1 - (i32)a.window : 0;
            lo = min_i32(lo, from), hi = max_i32(hi, to);
        }
        if (thread() == r)
            row_lo[r] = from, row_hi[r] = to, row_max[r] = -infinity(), row_sum[r] = 0, row_fix[r] = 0;
    }

    /* This lane's 8 values of every row's query. */
    const u32 d0 = (lane() & (lanes - 1)) * 8,
              group = lane() / lanes; // `group`: which of the keys worked on at once
    const u32 n_d = d0 < a.hd ? min_u32(a.hd - d0, 8) : 0;
    f32 q[8][8], sum[8][8];
    UNROLL for (u32 r = 0; r < rows; r++) {
        const u32 tok = tok0 + (r >> a.head_bits), head = head0 + (r & ((1u << a.head_bits) - 1));
        const bool exists = tok < q_len && head < a.group;
        const G f32 *x = row_of(a.q, start + (exists ? tok : tok0)) +
                         (kv_head * a.group + (exists ? head : head0)) * a.hd + d0;
        UNROLL for (u32 i = 0; i < 8; i++) {
            q[r][i] = exists && i < n_d ? x[i] * a.scale : 0;
            sum[r][i] = 0;
        }
    }

    const i32 split0 = lo < hi ? (lo >> 8) + (i32)(part * a.part_splits) : 0;
    const i32 split1 = lo < hi ? min_i32(split0 + (i32)a.part_splits, (hi + SPLIT - 1) >> 8) : 0;
    const G i32 *blocks = b.blocks + (u64)seq * b.block_stride;
    const u32 at_once = rows >= 4 ? 2 : 4; // keys of a lane: what the registers hold
    const u32 per_wave = WAVE / lanes,
              mine = wave() * KEYS; // keys that a wave works on side by side; its first key of a split
    for (i32 split = split0; split < split1; split++) {
        const i32 base = split << 8;
        barrier(); // the last split's weights have been read
        {
            const i32 pos = base + (i32)thread();
            u32 row = NO_ROW;
            if (pos >= lo && pos < hi) {
                const i32 block = blocks[(u32)pos >> b.block_shift];
                if (block >= 0)
                    row = (((u32)block * a.n_kv + kv_head) << b.block_shift) +
                          ((u32)pos & ((1u << b.block_shift) - 1));
            }
            key_row[thread()] = row;
        }
        barrier();
        ROLLED for (u32 k0 = 0; k0 < KEYS; k0 += at_once * per_wave) {
            f32 dot[MOST];
            raw k[4];
            UNROLL for (u32 u = 0; u < at_once; u++) {
                const u32 row = key_row[mine + k0 + u * per_wave + group];
                const bool exists = row != NO_ROW && n_d;
                k[u] = load8(a.pool_k, exists ? (u64)row * a.hd + d0 : 0, type, n_d, whole, exists);
            }
            UNROLL for (u32 u = 0; u < at_once; u++) {
                const eight x = widen(k[u], whole ? type : 0);
                UNROLL for (u32 r = 0; r < rows; r++) {
                    f32 s = 0;
                    UNROLL for (u32 i = 0; i < 8; i++) s = fma32(q[r][i], x.v[i], s);
                    dot[u * rows + r] = s;
                }
            }
            const u32 n = at_once * rows, left = n > lanes ? n / lanes : 1;
            const u32 first = fold(dot, n, lanes);
            UNROLL for (u32 i = 0; i < left; i++) {
                const u32 at = first + i, u = at / rows, r = at % rows; // rows is a constant power of two
                f32 s = dot[i];
                if (a.softcap > 0) s = a.softcap * tanh32(div32(s, a.softcap));
                if (n >= lanes || (lane() & (lanes / n - 1)) == 0)
                    score[(mine + k0 + u * per_wave + group) * rows + r] = s;
            }
        }
        barrier();
        if (wave() < rows) {
            const u32 r = wave();
            const i32 from = row_lo[r] - base, to = row_hi[r] - base;
            const f32 old_max = row_max[r], old_sum = row_sum[r];
            f32 s[SPLIT / WAVE], top = old_max, total = 0;
            UNROLL for (u32 i = 0; i < SPLIT / WAVE; i++) {
                const u32 key = i * WAVE + lane();
                s[i] = score[key * rows + r];
                if ((i32)key >= from && (i32)key < to && key_row[key] != NO_ROW) top = max32(top, s[i]);
            }
            top = wave_max(top);
            UNROLL for (u32 i = 0; i < SPLIT / WAVE; i++) {
                const u32 key = i * WAVE + lane();
                const bool sees = (i32)key >= from && (i32)key < to && key_row[key] != NO_ROW;
                const f32 p = sees ? exp32(s[i] - top) : 0; // NaN, not 0, should all scores be -infinity
                score[key * rows + r] = p;
                total += p;
            }
            total = wave_sum(total);
            const f32 fix = old_sum == 0 ? 0 : exp32(old_max - top);
            if (lane() == 0) row_max[r] = top, row_sum[r] = fma32(old_sum, fix, total), row_fix[r] = fix;
        }
        barrier();
        UNROLL for (u32 r = 0; r < rows; r++) {
            const f32 fix = row_fix[r];
            UNROLL for (u32 i = 0; i < 8; i++) sum[r][i] *= fix;
        }
        ROLLED for (u32 k0 = 0; k0 < KEYS; k0 += at_once * per_wave) {
            raw v[4];
            UNROLL for (u32 u = 0; u < at_once; u++) {
                const u32 row = key_row[mine + k0 + u * per_wave + group];
                const bool exists = row != NO_ROW && n_d;
                v[u] = load8(a.pool_v, exists ? (u64)row * a.hd + d0 : 0, type, n_d, whole, exists);
            }
            UNROLL for (u32 u = 0; u < at_once; u++) {
                const LDS f32 *w = score + (mine + k0 + u * per_wave + group) * rows;
                const eight x = widen(v[u], whole ? type : 0);
                UNROLL for (u32 r = 0; r < rows; r++) {
                    const f32 p = w[r];
                    UNROLL for (u32 i = 0; i < 8; i++) sum[r][i] = fma32(p, x.v[i], sum[r][i]);
                }
            }
        }
    }

    /* Join lanes that worked on different keys, then waves, row by row. */
    UNROLL for (u32 r = 0; r < rows; r++) {
        UNROLL for (u32 i = 0; i < 8; i++) UNROLL for (u32 m = lanes; m < WAVE; m *= 2) sum[r][i] +=
            shuffle_xor(sum[r][i], m);
        barrier(); // also: row_max and row_sum of the last split, or of the start, are there
        if (group == 0) UNROLL for (u32 i = 0; i < 8; i++) joined[wave() * HD + d0 + i] = sum[r][i];
        barrier();
        const u32 tok = tok0 + (r >> a.head_bits), head = head0 + (r & ((1u << a.head_bits) - 1)),
                  d = thread();
        if (tok >= q_len || head >= a.group || d >= a.hd) continue;
        f32 o = 0;
        UNROLL for (u32 w = 0; w < WAVES; w++) o += joined[w * HD + d];
        const u32 full_head = kv_head * a.group + head;
        f32 top = row_max[r], total = row_sum[r];
        if (a.n_part > 1) {
            const u64 at = ((u64)(start + tok) * a.n_head + full_head) * a.n_part + part;
            a.part_o[at * a.hd + d] = o;
            if (d == 0) a.part_ml[at * 2] = top, a.part_ml[at * 2 + 1] = total;
            continue;
        }
        if (a.sinks) {
            const f32 sink = a.sinks[full_head], both = max32(top, sink),
                      fix = total == 0 ? 0 : exp32(top - both);
            o *= fix;
            total = fma32(total, fix, exp32(sink - both));
        }
        row_of(a.out, start + tok)[full_head * a.hd + d] =
            total == 0 ? 0 : o * fast_rcp(total); // no key, no sink: zeros
    }
}

#define ATTENTION(name, type, lanes, rows)                                                                   \
    __gpu_kernel                                                                                             \
        __attribute__((amdgpu_flat_work_group_size(256, 256))) void attention_##name##_h##lanes##_r##rows(   \
            mx_k_attention a, mx_k_batch b) {                                                                \
        attention(type, lanes, rows, true, a, b);                                                            \
    }
#define EACH_ROWS(name, type, lanes)                                                                         \
    ATTENTION(name, type, lanes, 1)                                                                          \
    ATTENTION(name, type, lanes, 2) ATTENTION(name, type, lanes, 4) ATTENTION(name, type, lanes, 8)
#define EACH_LANES(name, type)                                                                               \
    EACH_ROWS(name, type, 4)                                                                                 \
    EACH_ROWS(name, type, 8)                                                                                 \
    EACH_ROWS(name, type, 16)                                                                                \
    EACH_ROWS(name, type, 32)                                                                                \
    __gpu_kernel __attribute__((amdgpu_flat_work_group_size(256, 256))) void attention_##name##_any(         \
        mx_k_attention a, mx_k_batch b) {                                                                    \
        attention(type, 32, 8, false, a, b);                                                                 \
    }
EACH_LANES(f32, 0)
EACH_LANES(f16, 1)
EACH_LANES(bf16, 2)

/* Join the parts of a row. A wave takes every 8th part, lanes take the values of the head; the order of sums depends on n_part
 * alone. Grid: x = tokens, y = heads. Block: 256 threads. Only where n_part > 1. */
__gpu_kernel __attribute__((amdgpu_flat_work_group_size(256, 256))) void attention_merge(mx_k_attention a,
                                                                                         mx_k_batch b) {
    SHARED f32 joined[WAVES * HD], room[WAVES];
    let_next_start();
    after_previous();
    const u32 tok = bx(), head = by(), seq = (u32)b.seq[tok];
    const u32 q_len = (u32)b.seq_start[seq + 1] - (u32)b.seq_start[seq];
    if (q_len < a.q_lo || q_len > a.q_hi) return;
    const u64 at = ((u64)tok * a.n_head + head) * a.n_part;
    const G f32x2 *ml = (const G f32x2 *)a.part_ml + at;
    const f32 sink = a.sinks ? a.sinks[head] : -infinity();
    f32 top = sink, total = 0, sum[HD / WAVE];
    for (u32 p = thread(); p < a.n_part; p += threads()) {
        const f32x2 x = ml[p];
        top = x.y == 0 ? top : max32(top, x.x); // a part of no key has a sum of 0
    }
    top = block_max(top, room);
    UNROLL for (u32 i = 0; i < HD / WAVE; i++) sum[i] = 0;
    for (u32 p = wave(); p < a.n_part; p += WAVES) {
        const f32x2 x = ml[p];
        if (x.y == 0) continue;
        const f32 weight = exp32(x.x - top);
        total = fma32(x.y, weight, total);
        UNROLL for (u32 i = 0; i < HD / WAVE; i++) {
            const u32 d = i * WAVE + lane();
            if (d < a.hd) sum[i] = fma32(a.part_o[(at + p) * a.hd + d], weight, sum[i]);
        }
    }
    UNROLL for (u32 i = 0; i < HD / WAVE; i++) joined[wave() * HD + i * WAVE + lane()] = sum[i];
    barrier(); // room was read
    if (lane() == 0) room[wave()] = total;
    barrier();
    total = a.sinks ? exp32(sink - top) : 0;
    UNROLL for (u32 w = 0; w < WAVES; w++) total += room[w];
    const f32 factor = total == 0 ? 0 : fast_rcp(total);
    const u32 d = thread();
    if (d >= a.hd) return;
    f32 o = 0;
    UNROLL for (u32 w = 0; w < WAVES; w++) o += joined[w * HD + d];
    row_of(a.out, tok)[head * a.hd + d] = o * factor;
}
