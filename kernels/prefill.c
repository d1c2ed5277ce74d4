/* prefill.c - attention of many queries over a paged cache of 2-byte numbers, with matrix instructions (Dao 2023,
 * "FlashAttention-2").
 *
 * Tiling: a block of 4 waves owns 64 tokens of a sequence and a head, a wave 16 tokens. Keys and values pass through shared
 * memory KEYS at a time; the copy of the values overlaps the scores, and that of the next keys the weighted values. Queries
 * (scaled) and weights are rounded to the cache's type; sums, maxima and exponentials are f32.
 *   NVIDIA  S = Q K^T, O = P V; P goes from sums to operand within the lane; values are transposed as they are read (ldmatrix)
 *   AMD     S^T = K Q^T, O^T = V^T P^T, so that a query is a lane: its maximum and sum need one exchange, and so does P;
 *           values are transposed as they are written to shared memory
 *
 * Kernels prefill_TYPE_HEAD: TYPE f16, bf16 (of the cache); HEAD 64, 128, 256 >= hd, hd % 8 == 0. Block: 128 threads. Grid:
 *   x = (tile << share_bits) | head of the group, tile < ceil(max_q_len / 64), group <= 2^share_bits
 *   y = n_kv, z = n_seq
 * Sequences with fewer than q_lo or more than q_hi tokens are left to another launch. n_part, part_* and tok_bits are not
 * used. Pools are aligned to 16 bytes. */
#include "prefill.h"
#include "mma.h"

enum { PAD = 8 };
#define ROLLED _Pragma("nounroll")

#if defined(__NVPTX__)
#define KEYS_OF(head) ((head) == 256 ? 32 : 64)
#else
#define KEYS_OF(head) ((head) == 256 ? 16 : 32)
#endif

#if defined(__NVPTX__)

INLINE void fetch(LDS u16 *to, const G void *pool, const u32 head, mx_k_attention *a, mx_k_batch *b,
                  const place *p, i32 base) {
    const u32 chunks = head / 8;
    UNROLL for (u32 i = 0; i < KEYS_OF(head) * chunks / THREADS; i++) {
        const u32 at = i * THREADS + thread(), key = at / chunks, d = at % chunks * 8;
        u32 row;
        const bool exists = row_at(a, b, p, base + (i32)key, &row) && d < a->hd;
        copy_16(to + key * (head + PAD) + d, (const G u16 *)pool + (exists ? (u64)row * a->hd + d : 0),
                exists);
    }
}

INLINE void prefill(const bool bf16, const u32 head, LDS u16 *ks, LDS u16 *vs, mx_k_attention *a,
                    mx_k_batch *b, const place *p, i32 kv_len) {
    const u32 n_keys = KEYS_OF(head), ld = head + PAD, g = lane() / 4, c = lane() % 4;
    const u32 tok[2] = {p->tok0 + wave() * 16 + g, p->tok0 + wave() * 16 + g + 8};
    i32 lo[2], hi[2];
    range_of(a, b, p, tok[0], kv_len, &lo[0], &hi[0]);
    range_of(a, b, p, tok[1], kv_len, &lo[1], &hi[1]);
    const i32 first = wave_min_i32(min_i32(hi[0] ? lo[0] : 0x7FFFFFFF, hi[1] ? lo[1] : 0x7FFFFFFF));
    const i32 last = -wave_min_i32(-max_i32(hi[0], hi[1]));
    const i32 all_from = -wave_min_i32(-max_i32(lo[0], lo[1])),
              all_to = wave_min_i32(min_i32(hi[0], hi[1])); // every row sees these
    u32 q[16][4];
    UNROLL for (u32 k = 0; k < head / 16; k++) UNROLL for (u32 i = 0; i < 4; i++) {
        const u32 t = tok[i & 1], d = k * 16 + c * 2 + (i >> 1) * 8;
        const bool exists = t < p->q_len && d < a->hd;
        const G f32 *x = row_of(a->q, p->start + (exists ? t : p->tok0)) + p->head * a->hd + (exists ? d : 0);
        q[k][i] = exists ? pair16(bf16, x[0] * a->scale, x[1] * a->scale) : 0;
    }
    f32 o[32][4], top[2] = {-infinity(), -infinity()}, total[2] = {0, 0};
    UNROLL for (u32 i = 0; i < head / 8; i++) UNROLL for (u32 j = 0; j < 4; j++) o[i][j] = 0;

    i32 base = p->lo & ~(i32)(n_keys - 1);
    fetch(ks, a->pool_k, head, a, b, p, base);
    for (; base < p->hi; base += (i32)n_keys) {
        const bool busy = base < last && base + (i32)n_keys > first;
        f32 s[8][4];
        copies_done();
        barrier(); // keys are there; everyone has done with the last values
        fetch(vs, a->pool_v, head, a, b, p, base);
        if (busy) {
            UNROLL for (u32 n = 0; n < n_keys / 8; n++) UNROLL for (u32 j = 0; j < 4; j++) s[n][j] = 0;
            UNROLL for (u32 k = 0; k < head / 16; k++) UNROLL for (u32 n = 0; n < n_keys / 16; n++) {
                u32 r[4];
                load_4(r, ks + (n * 16 + (lane() & 7) + (lane() >> 4) * 8) * ld + k * 16 +
                              (lane() >> 3 & 1) * 8);
                mma(bf16, s[2 * n], q[k], r);
                mma(bf16, s[2 * n + 1], q[k], r + 2);
            }
            const bool partly = base < all_from || base + (i32)n_keys > all_to;
            f32 best[2] = {top[0], top[1]};
            UNROLL for (u32 n = 0; n < n_keys / 8; n++) UNROLL for (u32 j = 0; j < 4; j++) {
                const i32 key = base + (i32)(n * 8 + c * 2 + (j & 1));
                f32 x = cap(s[n][j], a->softcap);
                if (partly) x = key >= lo[j >> 1] && key < hi[j >> 1] ? x : -infinity();
                s[n][j] = x;
                best[j >> 1] = max32(best[j >> 1], x);
            }
            UNROLL for (u32 h = 0; h < 2; h++) {
                best[h] = max32(best[h], shuffle_xor(best[h], 1));
                best[h] = max32(best[h], shuffle_xor(best[h], 2));
                const f32 at = best[h] == -infinity() ? 0 : best[h] * LOG2E,
                          fix = fast_exp2(fma32(top[h], LOG2E, -at));
                top[h] = best[h];
                total[h] *= fix;
                UNROLL for (u32 i = 0; i < head / 8; i++) o[i][2 * h] *= fix, o[i][2 * h + 1] *= fix;
                UNROLL for (u32 n = 0; n < n_keys / 8; n++) UNROLL for (u32 j = 2 * h; j < 2 * h + 2; j++) {
                    s[n][j] = fast_exp2(fma32(s[n][j], LOG2E, -at));
                    total[h] += s[n][j];
                }
            }
        }
        copies_done();
        barrier(); // values are there; everyone has done with the keys
        if (base + (i32)n_keys < p->hi) fetch(ks, a->pool_k, head, a, b, p, base + (i32)n_keys);
        if (busy) UNROLL for (u32 n = 0; n < n_keys / 16; n++) {
                const u32 w[4] = {pair16(bf16, s[2 * n][0], s[2 * n][1]),
                                  pair16(bf16, s[2 * n][2], s[2 * n][3]),
                                  pair16(bf16, s[2 * n + 1][0], s[2 * n + 1][1]),
                                  pair16(bf16, s[2 * n + 1][2], s[2 * n + 1][3])};
                UNROLL for (u32 i = 0; i < head / 16; i++) {
                    u32 r[4];
                    load_4_t(r, vs + (n * 16 + (lane() & 15)) * ld + i * 16 + (lane() >> 4) * 8);
                    mma(bf16, o[2 * i], w, r);
                    mma(bf16, o[2 * i + 1], w, r + 2);
                }
            }
    }
    copies_done();
    UNROLL for (u32 h = 0; h < 2; h++) {
        total[h] += shuffle_xor(total[h], 1);
        total[h] += shuffle_xor(total[h], 2);
        if (tok[h] >= p->q_len) continue;
        f32 factor = 1, sum = total[h];
        if (a->sinks) {
            const f32 sink = a->sinks[p->head], both = max32(top[h], sink);
            factor = sum == 0 ? 0 : exp32(top[h] - both);
            sum = fma32(sum, factor, exp32(sink - both));
        }
        factor = sum == 0 ? 0 : factor * fast_rcp(sum);
        G f32 *out = row_of(a->out, p->start + tok[h]) + p->head * a->hd;
        UNROLL for (u32 i = 0; i < head / 8; i++) {
            const u32 d = i * 8 + c * 2;
            if (d >= a->hd) continue;
            out[d] = o[i][2 * h] * factor;
            out[d + 1] = o[i][2 * h + 1] * factor;
        }
    }
}

#else

/* Copies wait in registers: `fetch` reads, `land_*` writes to shared memory. Chunks are 8 values of a key. */
typedef struct {
    u32x4 v[4];
} chunks;

INLINE chunks fetch(const G void *pool, const u32 head, const bool pairs, mx_k_attention *a, mx_k_batch *b,
                    const place *p, i32 base) {
    const u32 n_keys = KEYS_OF(head), n = n_keys * head / 8 / THREADS;
    chunks r;
    UNROLL for (u32 i = 0; i < n; i++) {
        const u32 at = (pairs ? i / 2 : i) * THREADS + thread();
        const u32 key = pairs ? at % (n_keys / 2) * 2 + (i & 1) : at / (head / 8);
        const u32 d = (pairs ? at / (n_keys / 2) : at % (head / 8)) * 8;
        u32 row;
        const bool exists = row_at(a, b, p, base + (i32)key, &row) && d < a->hd;
        r.v[i] = (u32x4){0, 0, 0, 0};
        if (exists) r.v[i] = *(const G u32x4 *)((const G u16 *)pool + (u64)row * a->hd + d);
    }
    return r;
}

INLINE void land_keys(LDS u16 *ks, const u32 head, const chunks *r) {
    UNROLL for (u32 i = 0; i < KEYS_OF(head) * head / 8 / THREADS; i++) {
        const u32 at = i * THREADS + thread();
        *(LDS u32x4 *)(ks + at / (head / 8) * (head + PAD) + at % (head / 8) * 8) = r->v[i];
    }
}

INLINE void land_values(LDS u16 *vs, const u32 head, const chunks *r) { // [head, keys]
    const u32 n_keys = KEYS_OF(head);
    UNROLL for (u32 i = 0; i < n_keys * head / 16 / THREADS; i++) {
        const u32 at = i * THREADS + thread(), key = at % (n_keys / 2) * 2, d = at / (n_keys / 2) * 8;
        const u32 x[4] = {r->v[2 * i].x, r->v[2 * i].y, r->v[2 * i].z, r->v[2 * i].w};
        const u32 y[4] = {r->v[2 * i + 1].x, r->v[2 * i + 1].y, r->v[2 * i + 1].z, r->v[2 * i + 1].w};
        UNROLL for (u32 j = 0; j < 4; j++) {
            *(LDS u32 *)(vs + (d + 2 * j) * (n_keys + PAD) + key) = (x[j] & 0xFFFFu) | y[j] << 16;
            *(LDS u32 *)(vs + (d + 2 * j + 1) * (n_keys + PAD) + key) = x[j] >> 16 | (y[j] & 0xFFFF0000u);
        }
    }
}

INLINE u32x8 load_queries(const bool bf16, mx_k_attention *a, const place *p, u32 tok,
                          u32 d) { // d to d + 15, scaled
    const bool exists = tok < p->q_len;
    const G f32 *x = row_of(a->q, p->start + (exists ? tok : p->tok0)) + p->head * a->hd;
    u32x8 r;
    UNROLL for (u32 i = 0; i < 8; i++) {
        const u32 at = d + 2 * i;
        r[i] = exists && at < a->hd ? pair16(bf16, x[at] * a->scale, x[at + 1] * a->scale) : 0;
    }
    return r;
}

INLINE void prefill(const bool bf16, const u32 head, LDS u16 *ks, LDS u16 *vs, LDS u16 *qs, mx_k_attention *a,
                    mx_k_batch *b, const place *p, i32 kv_len) {
    const u32 n_keys = KEYS_OF(head), col = lane() & 15, high = lane() >> 4;
    const u32 tok = p->tok0 + wave() * 16 + col;
    i32 lo, hi;
    range_of(a, b, p, tok, kv_len, &lo, &hi);
    const i32 first = wave_min_i32(hi ? lo : 0x7FFFFFFF), last = -wave_min_i32(-hi);
    const i32 all_from = -wave_min_i32(-lo), all_to = wave_min_i32(hi); // every row sees these
    const bool in_lds = head == 256; // queries do not fit in registers beside the sums
    u32x8 q[8];
    LDS u16 *own = qs + (wave() * 16 + col) * (head + PAD);
    if (in_lds) {
        ROLLED for (u32 k = 0; k < head / 16; k++) {
            const u32x8 word = load_queries(bf16, a, p, tok, k * 16);
            *(LDS u32x4 *)(own + k * 16) = word.lo; // lanes 16 to 31 write the same once more
            *(LDS u32x4 *)(own + k * 16 + 8) = word.hi;
        }
    } else {
        UNROLL for (u32 k = 0; k < head / 16 && k < 8; k++) q[k] = load_queries(bf16, a, p, tok, k * 16);
    }
    f32x8 o[16];
    f32 top = -infinity(), total = 0;
    UNROLL for (u32 i = 0; i < head / 16; i++) o[i] = (f32x8){0, 0, 0, 0, 0, 0, 0, 0};

    i32 base = p->lo & ~(i32)(n_keys - 1);
    chunks in = fetch(a->pool_k, head, false, a, b, p, base);
    for (; base < p->hi; base += (i32)n_keys) {
        const bool busy = base < last && base + (i32)n_keys > first;
        f32 s[2][8];
        land_keys(ks, head, &in);
        barrier(); // keys are there; everyone has done with the last values
        in = fetch(a->pool_v, head, true, a, b, p, base);
        if (busy) {
            const bool partly = base < all_from || base + (i32)n_keys > all_to;
            f32 best = top;
            UNROLL for (u32 n = 0; n < n_keys / 16; n++) {
                f32x8 sum = {0, 0, 0, 0, 0, 0, 0, 0};
                ROLLED for (u32 k8 = 0; k8 < head / 16; k8 += 8)
                    UNROLL for (u32 i = 0; i < (head < 128 ? head / 16 : 8); i++) {
                    const u32 k = k8 + i;
                    const u32x8 keys = load_32(ks + (n * 16 + col) * (head + PAD) + k * 16);
                    sum = mma(bf16, keys, in_lds ? load_32(own + k * 16) : q[i], sum);
                    if (in_lds) __builtin_amdgcn_sched_barrier(0);
                }
                UNROLL for (u32 i = 0; i < 8; i++) {
                    const i32 key = base + (i32)(n * 16 + 2 * i + high);
                    f32 x = cap(sum[i], a->softcap);
                    if (partly) x = key >= lo && key < hi ? x : -infinity();
                    s[n][i] = x;
                    best = max32(best, x);
                }
            }
            best = max32(best, shuffle_xor(best, 16));
            const f32 at = best == -infinity() ? 0 : best * LOG2E, fix = fast_exp2(fma32(top, LOG2E, -at));
            top = best;
            total *= fix;
            UNROLL for (u32 i = 0; i < head / 16; i++) o[i] *= fix;
            UNROLL for (u32 n = 0; n < n_keys / 16; n++) UNROLL for (u32 i = 0; i < 8; i++) {
                s[n][i] = fast_exp2(fma32(s[n][i], LOG2E, -at));
                total += s[n][i];
            }
        }
        land_values(vs, head, &in);
        barrier(); // values are there; everyone has done with the keys
        if (base + (i32)n_keys < p->hi) in = fetch(a->pool_k, head, false, a, b, p, base + (i32)n_keys);
        if (busy) UNROLL for (u32 n = 0; n < n_keys / 16; n++) {
                u32x8 w; // lanes 0 to 15 have the even keys, 16 to 31 the odd ones; each needs both
                UNROLL for (u32 i = 0; i < 8; i += 2) {
                    const u32 mine = pair16(bf16, s[n][i], s[n][i + 1]), other = shuffle_xor_u32(mine, 16);
                    const u32 even = high ? other : mine, odd = high ? mine : other;
                    w[i] = (even & 0xFFFFu) | odd << 16;
                    w[i + 1] = even >> 16 | (odd & 0xFFFF0000u);
                }
                UNROLL for (u32 i = 0; i < head / 16; i++) {
                    o[i] = mma(bf16, load_32(vs + (i * 16 + col) * (n_keys + PAD) + n * 16), w, o[i]);
                    if (in_lds && i % 2) __builtin_amdgcn_sched_barrier(0); // no more at hand than registers
                }
            }
    }
    total += shuffle_xor(total, 16);
    if (tok >= p->q_len) return;
    f32 factor = 1;
    if (a->sinks) {
        const f32 sink = a->sinks[p->head], both = max32(top, sink);
        factor = total == 0 ? 0 : exp32(top - both);
        total = fma32(total, factor, exp32(sink - both));
    }
    factor = total == 0 ? 0 : factor * fast_rcp(total);
    G f32 *out = row_of(a->out, p->start + tok) + p->head * a->hd;
    UNROLL for (u32 i = 0; i < head / 16; i++) UNROLL for (u32 j = 0; j < 8; j++) {
        const u32 d = i * 16 + 2 * j + high;
        if (d < a->hd) out[d] = o[i][j] * factor;
    }
}

#endif

#if defined(__NVPTX__)
#define CALL(bf16, head) prefill(bf16, head, ks, vs, &a, &b, &p, kv_len)
#define VALUES_OF(head) (KEYS_OF(head) * ((head) + PAD))
#else
#define CALL(bf16, head)                                                                                     \
    SHARED u16 qs[(head) == 256 ? TOKENS * ((head) + PAD) : 8] __attribute__((aligned(16)));                 \
    prefill(bf16, head, ks, vs, qs, &a, &b, &p, kv_len)
#define VALUES_OF(head) ((head) * (KEYS_OF(head) + PAD))
#endif

#define PREFILL(name, bf16, head)                                                                            \
    __gpu_kernel __attribute__((amdgpu_flat_work_group_size(128, 128))) void prefill_##name##_##head(        \
        mx_k_attention a, mx_k_batch b) {                                                                    \
        SHARED i32 room[4];                                                                                  \
        SHARED u16 ks[KEYS_OF(head) * ((head) + PAD)] __attribute__((aligned(16)));                          \
        SHARED u16 vs[VALUES_OF(head)] __attribute__((aligned(16)));                                         \
        place p;                                                                                             \
        i32 kv_len;                                                                                          \
        if (!find_place(&a, &b, room, &p, &kv_len)) return;                                                  \
        CALL(bf16, head);                                                                                    \
    }
#define EACH_HEAD(name, bf16) PREFILL(name, bf16, 64) PREFILL(name, bf16, 128) PREFILL(name, bf16, 256)
EACH_HEAD(f16, false)
EACH_HEAD(bf16, true)
