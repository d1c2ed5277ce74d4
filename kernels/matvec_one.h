/* matvec_one.h - y[n_out] = W[n_out, n_in] x[n_in] for one row of x: decode, where the memory's speed is the limit.
 *
 * What counts is how many bytes are on their way at any time (an H200 wants about 40 KB a multiprocessor) and that the arithmetic
 * on a weight stays below what the memory leaves time for (4-bit weights on an H200: 4 instructions a weight and lane; these
 * kernels take 1.7). So x is made ready once a block, in shared memory, as the pairs of 16-bit numbers that matrix instructions
 * take, in the order in which the codes of this kind come apart; matrix instructions do the products, because they take pairs as
 * they come; and each lane keeps a ring of loads in flight that runs on from tile to tile.
 *
 * Tiling: a block owns a tile of ONE_ROWS rows of W (glu: as many of gate and of up); its waves share n_in, wave i takes every
 * n_wave-th step, and add up in shared memory in a fixed order. The block goes on to tile + grid.
 *
 * How lanes map to values, as rows of A are spare with one row of x:
 *   NVIDIA, quantized  a tile is 8 rows, column g of B; lane 4g + t holds of each step (8 chunks of 32 values) the pieces t of row g.
 *                      Row c of A is chunk c of x in the places where chunk c of W comes, zero elsewhere: so D keeps chunks apart
 *                      and each is scaled in f32. A piece: 16 bytes of 8-bit codes (half a chunk), else a chunk. The pieces of a
 *                      step have sums of their own, of which a lane takes the one that met its row of A.
 *   NVIDIA, dense      a step is 4 chunks; lane 4g + t holds values 8t to 8t + 7 of each; all rows of A are x.
 *   AMD                a tile is 16 rows, lane % 16; all lanes hold the same chunk; all rows of A are x. Scaled in f32.
 *
 * x goes in as bf16 (f16 for f16 weights); everything else is f32. */
#ifndef MX_KERNELS_MATVEC_ONE_H
#define MX_KERNELS_MATVEC_ONE_H
#include "matvec.h"

enum {
    ONE_MAX_WAVE = 16,
    ONE_SLAB = 512, // chunks of x that a block holds at a time
};
#if defined(__AMDGPU__)
enum { ONE_ROWS = 16 };
#else
enum { ONE_ROWS = 8 };
#endif

typedef struct {    // what is known when a kernel is compiled
    u32 kind, type; // type: of the scales
    u32 parts;      // glu: 2, gate and up
} one_plan;

typedef struct {           // shared memory of a block
    u32x4 x[4 * ONE_SLAB]; // chunks, 4 slots of 4 pairs
    u32x4 zero[8];         // zeros in 2 to 5
    f32 total[ONE_SLAB];   // of the values of each chunk as rounded
    f32 room[2][ONE_MAX_WAVE * 2 * ONE_ROWS];
    f32 sum[ONE_MAX_WAVE + 1]; // the last: what rms_norm multiplies
} one_shared;

typedef struct { // a lane's share of one step of a part
    u32 code[4][16];
    u32 s[4], b[4]; // raw scales and biases
} one_piece;

typedef struct { // where a lane's rows of a tile begin
    const G u8 *code, *s;
    i64 b;  // bytes from scales to biases
    u32 s2; // bytes to the second row of scales (NVIDIA)
} one_rows;

typedef struct {                 // of all tiles of a launch
    u32 chunks, shift, code_row; // chunks of a row; log2 of the chunks of a group; bytes of a row
    u32 steps, per;              // steps of a tile; those of one wave
} one_shape;

#if defined(__AMDGPU__)
INLINE u32 one_chunks(one_plan o) {
    return words_of(o.kind) <= 4 ? 4 / o.parts : words_of(o.kind) <= 8 ? 2 / o.parts : 1;
}
INLINE u32 one_ahead(one_plan o) { return o.kind <= K_BF16 && o.parts == 1 ? 3 : 2; }
#else
INLINE u32 one_chunks(one_plan o) { return o.kind <= K_BF16 ? 4 : 8; }
INLINE u32 one_ahead(one_plan o) { // about 48 registers of codes and scales
    const u32 w = words_of(o.kind);
    return w <= 4 ? 4 / o.parts : w <= 6 ? 4 / o.parts : w <= 8 ? 2 : o.parts == 2 ? 2 : 3;
}
#endif
INLINE bool is_wide(u32 kind) { return kind == K_A8 || kind == K_MXFP8; } // a piece is half a chunk

INLINE void one_find(one_rows *r, one_plan o, const weights *w, const one_shape *sh, u32 row0) {
    const u32 scale_row = (is_affine(o.kind) ? w->n_in >> w->group_shift : sh->chunks) *
                          (is_affine(o.kind)   ? (o.type == 0 ? 4 : 2)
                           : o.kind == K_NVFP4 ? 2
                                               : 1);
#if defined(__AMDGPU__)
    const u32 row = min_u32(row0 + (lane() & 15), w->n_out - 1),
              scaled = row; // past the end: computed and dropped
    r->code = (const G u8 *)w->codes + (u64)row * sh->code_row;
    r->s2 = 0;
#else
    const u32 g = lane() >> 2, t = lane() & 3, row = min_u32(row0 + g, w->n_out - 1);
    const u32 scaled = min_u32(row0 + 2 * t, w->n_out - 1);
    const u32 unit = o.kind <= K_BF16 || is_wide(o.kind) ? 16 : words_of(o.kind) * 4;
    r->code = (const G u8 *)w->codes + (u64)row * sh->code_row + t * unit;
    r->s2 = (min_u32(scaled + 1, w->n_out - 1) - scaled) * scale_row;
#endif
    r->s = (const G u8 *)w->scales + (u64)scaled * scale_row;
    r->b = (i64)((u64)w->biases - (u64)w->scales);
}

/* Scales (and biases) of chunk c to place i. */
INLINE void one_scales(one_piece *p, u32 i, one_plan o, const one_rows *r, u32 second, u32 c, u32 shift) {
    const u32 size = is_affine(o.kind) ? (o.type == 0 ? 4 : 2) : o.kind == K_NVFP4 ? 2 : 1;
    const G u8 *at = r->s + second + (is_affine(o.kind) ? c >> shift : c) * size;
    if (is_affine(o.kind)) {
        p->s[i] = raw_scale(at, 0, o.type);
        p->b[i] = raw_scale(at + r->b, 0, o.type);
    } else {
        p->s[i] = o.kind == K_NVFP4 ? *(const G u16 *)at : *at;
    }
}

INLINE void one_load(one_piece *p, one_plan o, const one_rows *r, const one_shape *sh, u32 step) {
    const u32 first = step * one_chunks(o), bytes = words_of(o.kind) * 4;
#if defined(__AMDGPU__)
    UNROLL for (u32 k = 0; k < one_chunks(o); k++) {
        const u32 c = min_u32(first + k, sh->chunks - 1);
        load_code(p->code[k], o.kind, r->code + c * bytes);
        if (o.kind > K_BF16) one_scales(p, k, o, r, 0, c, sh->shift);
    }
#else
    const u32 t = lane() & 3, g = lane() >> 2;
    if (o.kind <= K_BF16 || is_wide(o.kind)) {
        const u32 last = sh->code_row - 16 - 16 * t;
        UNROLL for (u32 k = 0; k < 4; k++) {
            const u32 at = min_u32(first * bytes + 64 * k, last);
            four(p->code[k], load_once((const G u32x4 *)(r->code + at)));
        }
    } else {
        UNROLL for (u32 k = 0; k < 2; k++) {
            const u32 at = min_u32(first + 4 * k, sh->chunks - 1 - t) * bytes;
            if (words_of(o.kind) == 4)
                four(p->code[k], load_once((const G u32x4 *)(r->code + at)));
            else
                load_code(p->code[k], o.kind, r->code + at);
        }
    }
    if (o.kind <= K_BF16) return;
    const u32 c = min_u32(first + g, sh->chunks - 1);
    one_scales(p, 0, o, r, 0, c, sh->shift);
    one_scales(p, 1, o, r, r->s2, c, sh->shift);
#endif
}

typedef struct { // NVIDIA: [part][two columns, or the 8 sums of one_mma (dense)]; AMD: [part][8 sums]
    f32 v[2][8];
} one_sums;

#if defined(__AMDGPU__)
INLINE void one_compute(one_sums *acc, one_plan o, const one_piece *piece, const LDS one_shared *m,
                        u32 step) {
    UNROLL for (u32 k = 0; k < one_chunks(o); k++) {
        const u32 c = step * one_chunks(o) + k;
        u32 b[16];
        UNROLL for (u32 s = 0; s < 4; s++) four(b + 4 * s, m->x[4 * c + s]);
        UNROLL for (u32 i = 0; i < o.parts; i++) {
            u32 a[16];
            unpack(a, piece[i].code[k], o.kind);
            if (o.kind <= K_BF16) {
                wmma16(acc->v[i], b, a, o.kind == K_F16);
                wmma16(acc->v[i], b + 8, a + 8, o.kind == K_F16);
                continue;
            }
            f32 d[8] = {}, e[8] = {};
            wmma16(d, b, a, false);
            wmma16(o.kind == K_NVFP4 ? e : d, b + 8, a + 8, false);
            const u32 s = piece[i].s[k];
            f32 *to = &acc->v[i][0];
            if (is_affine(o.kind)) {
                const f32 total = m->total[c];
                *to = fma32(scale_of_raw(s, o.type), fma32(-offset_of(o.kind), total, d[0]),
                            fma32(scale_of_raw(piece[i].b[k], o.type), total, *to));
            } else if (o.kind == K_NVFP4) {
                *to = fma32(e4m3_f32((u8)s), d[0], fma32(e4m3_f32((u8)(s >> 8)), e[0], *to));
            } else {
                *to = fma32(e8m0_f32((u8)s), d[0], *to);
            }
        }
        stay();
    }
}
#else
/* Four pairs of x, as they were loaded, times four pairs of W, in two instructions without a register to spare: the first takes
 * pairs 0 and 2, as rows 0 to 7 of A, the second pairs 1 and 3, as rows 8 to 15. Sums 0, 1 and 6, 7 of d are those; what the other
 * rows make of the pairs that do not belong together is not used. */
INLINE void one_mma(f32 *d, const u32 *x, const u32 *w, bool half) {
    mma16(d, x[0], x[1], x[2], x[3], w[0], w[2], half);
    mma16(d + 4, x[0], x[1], x[2], x[3], w[1], w[3], half);
}

INLINE void one_compute(one_sums *acc, one_plan o, const one_piece *piece, const LDS one_shared *m,
                        u32 step) {
    const u32 g = lane() >> 2, t = lane() & 3, first = step * one_chunks(o);
    if (o.kind <= K_BF16) {
        UNROLL for (u32 k = 0; k < 4; k++) {
            u32 b[4];
            four(b, m->x[4 * (first + k) + t]);
            UNROLL for (u32 i = 0; i < o.parts; i++) one_mma(acc->v[i], b, piece[i].code[k], o.kind == K_F16);
        }
        return;
    }
    const bool wide = is_wide(o.kind), mine = wide ? (g & 1) == t >> 1 : (g & 3) == t;
    const LDS u32x4 *x = mine ? m->x + 4 * (first + g) + (wide ? 2 * (t & 1) : 0) : m->zero + 2;
    u32 b[16];
    UNROLL for (u32 s = 0; s < (wide ? 2u : 4u); s++) four(b + 4 * s, x[s]);
    const f32 total = is_affine(o.kind) ? m->total[first + g] : 0;
    UNROLL for (u32 i = 0; i < o.parts; i++) {
        f32 d[4][8] = {}, e[2][8] = {};
        UNROLL for (u32 p = 0; p < (wide ? 4u : 2u); p++) {
            u32 a[16];
            unpack(a, piece[i].code[p], o.kind); // of half a chunk the first 8 pairs
            UNROLL for (u32 k = 0; k < (wide ? 2u : 4u); k++)
                one_mma(o.kind == K_NVFP4 && k >= 2 ? e[p] : d[p], b + 4 * k, a + 4 * k, false);
        }
        UNROLL for (u32 k = 0; k < 2; k++) { // columns 2t and 2t + 1
            f32 of[4], second = 0;
            UNROLL for (u32 p = 0; p < (wide ? 4u : 2u); p++) of[p] = d[p][k] + d[p][6 + k];
            if (o.kind == K_NVFP4) second = g < 4 ? e[0][k] + e[0][6 + k] : e[1][k] + e[1][6 + k];
            const f32 dot = !wide   ? (g < 4 ? of[0] : of[1])
                            : g < 4 ? (g < 2 ? of[0] : of[1])
                            : g < 6 ? of[2]
                                    : of[3];
            const u32 s = piece[i].s[k];
            f32 *to = &acc->v[i][k];
            if (is_affine(o.kind))
                *to = fma32(scale_of_raw(s, o.type), fma32(-offset_of(o.kind), total, dot),
                            fma32(scale_of_raw(piece[i].b[k], o.type), total, *to));
            else if (o.kind == K_NVFP4)
                *to = fma32(e4m3_f32((u8)s), dot, fma32(e4m3_f32((u8)(s >> 8)), second, *to));
            else
                *to = fma32(e8m0_f32((u8)s), dot, *to);
        }
    }
}
#endif

/* The wave's sums to room[parts][ONE_ROWS]. */
INLINE void one_keep(LDS f32 *room, one_plan o, const one_sums *acc) {
    UNROLL for (u32 i = 0; i < o.parts; i++) {
        LDS f32 *to = room + i * ONE_ROWS;
#if defined(__AMDGPU__)
        if (lane() < 16) to[lane()] = acc->v[i][0];
#else
        UNROLL for (u32 k = 0; k < 2; k++) {
            f32 v = acc->v[i][k];
            if (o.kind <= K_BF16)
                v += acc->v[i][6 + k];
            else
                UNROLL for (u32 m = 4; m < 32; m *= 2) v += shuffle_xor(v, m);
            if (lane() < 4) to[2 * lane() + k] = v;
        }
#endif
    }
}

/* Chunks c0 to c0 + n_chunk of `rows` rows of x, one after the other, as pairs, with zeros up to whole steps. */
INLINE void one_stage(LDS one_shared *m, one_plan o, const mx_k_matvec *a, const G f32 *x, u64 index, u32 c0,
                      u32 n_chunk, u32 padded, u32 rows) {
    f32 square = 0;
    if (thread() < 8) m->zero[thread()] = (u32x4){0, 0, 0, 0};
    enum { AT_ONCE = 2 }; // loads of so many turns are on their way together
    for (u32 j = 0; j < rows; j++) {
        const f32 mul = a->n_sum ? a->sum_weights[index + j] : 1;
        for (u32 i0 = thread(); i0 < 4 * padded; i0 += AT_ONCE * threads()) {
            f32x4 q[AT_ONCE][2], w[AT_ONCE][2];
            UNROLL for (u32 n = 0; n < AT_ONCE; n++) {
                const u32 i = i0 + n * threads(), c = c0 + min_u32(i / 4, n_chunk - 1), s = i % 4;
                UNROLL for (u32 h = 0; h < 2; h++) {
                    const u32 at = 32 * c + (h ? slot_hi(o.kind, s) : slot_lo(o.kind, s));
                    q[n][h] = *(const G f32x4 *)(x + j * a->x_ld + at);
                    if (a->norm) w[n][h] = *(const G f32x4 *)(a->norm + at);
                }
            }
            UNROLL for (u32 n = 0; n < AT_ONCE; n++) {
                const u32 i = i0 + n * threads(), c = i / 4;
                if (i >= 4 * padded) continue; // whole waves
                f32 v[8] = {}, sum = 0;
                UNROLL for (u32 h = 0; h < 2; h++) {
                    if (c >= n_chunk) continue;
                    const f32x4 from = q[n][h];
                    f32 x0 = from.x, x1 = from.y, x2 = from.z, x3 = from.w;
                    if (a->norm) {
                        const f32x4 by = w[n][h];
                        square += x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3;
                        x0 *= by.x, x1 *= by.y, x2 *= by.z, x3 *= by.w;
                    }
                    v[4 * h] = x0 * mul, v[4 * h + 1] = x1 * mul, v[4 * h + 2] = x2 * mul,
                          v[4 * h + 3] = x3 * mul;
                }
                u32 pair[4];
                UNROLL for (u32 k = 0; k < 4; k++) {
                    pair[k] = pair_of(v[eight_lo(o.kind, k)], v[eight_hi(o.kind, k)], o.kind == K_F16);
                    sum += lo_bf16(pair[k]) + hi_bf16(pair[k]);
                }
                m->x[4 * j * padded + i] = (u32x4){pair[0], pair[1], pair[2], pair[3]};
                if (!is_affine(o.kind)) continue;
                sum += shuffle_xor(sum, 1);
                sum += shuffle_xor(sum, 2);
                if (i % 4 == 0) m->total[j * padded + c] = sum;
            }
        }
    }
    if (a->norm) {
        square = block_sum(square, m->sum);
        if (thread() == 0) m->sum[ONE_MAX_WAVE] = rsqrt32(fma32(square, a->inv_n, a->eps));
    }
    barrier();
}

typedef struct { // what is loaded next
    one_rows part[2];
    u32 tile, step;
    u32 nth; // with n_sum: which of its matrices
} one_cursor;

typedef struct { // which products a block makes
    u64 y_row;
    u32 expert;     // without n_sum
    u32 one, magic; // with n_sum: steps of one matrix, 2^20 / one
    u32 step0;      // first step of the slab
    const G int32_t *ids;
} one_job;

INLINE void one_find_tile(one_cursor *c, const mx_k_matvec *a, one_plan o, const one_shape *sh,
                          const one_job *job) {
    const u32 tile = min_u32(c->tile, a->n_tile - 1), expert = job->one ? (u32)job->ids[c->nth] : job->expert;
    const mv_place p = place_of(a, o.parts == 2, ONE_ROWS, tile);
    UNROLL for (u32 i = 0; i < o.parts; i++) {
        weights w = weights_of(a, i ? 1 : p.out, expert);
        one_find(&c->part[i], o, &w, sh, p.row0);
    }
}

/* Loads the cursor's step, if the wave has one there, and goes on to the wave's next. */
INLINE void one_next(one_piece *piece, one_cursor *c, const mx_k_matvec *a, one_plan o, const one_shape *sh,
                     const one_job *job) {
    u32 step = c->step;
    if (step < sh->steps && c->tile < a->n_tile) {
        if (job->one) {
            const u32 nth = step * job->magic >> 20;
            step -= nth * job->one;
            if (nth != c->nth) {
                c->nth = nth;
                one_find_tile(c, a, o, sh, job);
            }
        }
        UNROLL for (u32 i = 0; i < o.parts; i++) one_load(&piece[i], o, &c->part[i], sh, step + job->step0);
    }
    c->step += n_wave();
    if (c->step >= sh->per * n_wave()) {
        c->step = wave(), c->tile += __gpu_num_blocks_x(), c->nth = 0;
        one_find_tile(c, a, o, sh, job);
    }
}

/* The block's sums of a tile to y. turn counts the block's tiles; its waves take turns with what comes after the barrier. */
INLINE void one_finish(const mx_k_matvec *a, one_plan o, const one_sums *acc, LDS one_shared *m, u32 tile,
                       u32 turn, u32 who, const one_job *job) {
    LDS f32 *room = m->room[turn & 1];
    const u32 rows = o.parts * ONE_ROWS;
    one_keep(room + wave() * rows, o, acc);
    barrier(); // one is enough: the next tile's sums go to the other room
    if (wave() != who || lane() >= ONE_ROWS) return;
    const mv_place p = place_of(a, o.parts == 2, ONE_ROWS, tile);
    const mx_k_out *out = &a->out[p.out];
    const u32 row = p.row0 + lane();
    if (row >= out->w.n_out) return;
    f32 v = 0, u = 0;
    for (u32 k = 0; k < n_wave(); k++) {
        v += room[k * rows + lane()];
        if (o.parts == 2) u += room[k * rows + ONE_ROWS + lane()];
    }
    if (a->norm) v *= m->sum[ONE_MAX_WAVE], u *= m->sum[ONE_MAX_WAVE];
    G f32 *y = out->y + job->y_row * out->y_ld + row;
    if (job->step0) { // a later slab: the rest is in y already
        *y += v;
        return;
    }
    if (out->bias) {
        if (!a->n_sum) v += out->bias[(u64)job->expert * out->w.n_out + row];
        for (u32 j = 0; j < a->n_sum; j++)
            v += a->sum_weights[job->y_row * a->n_sum + j] *
                 out->bias[(u64)(u32)job->ids[j] * out->w.n_out + row];
    }
    if (o.parts == 2) {
        if (a->out[1].bias) u += a->out[1].bias[(u64)job->expert * out->w.n_out + row];
        v = activation(a->act, v) * u;
    }
    if (out->add) v += out->add[job->y_row * out->add_ld + row];
    *y = v;
}

INLINE void matvec_one(const mx_k_matvec *a, u32 kind, bool glu, u32 type, LDS one_shared *m) {
    const one_plan o = {kind, type, glu ? 2 : 1};
    const u32 ahead = one_ahead(o), chunks = a->out[0].w.n_in / 32, rows = a->n_sum ? a->n_sum : 1;
    one_shape sh = {chunks, a->out[0].w.group_shift - 5, chunks * words_of(kind) * 4, 0, 0};
    one_job job = {0};
    u64 x_row = 0;
    let_next_start();
    if (a->ids) {
        after_previous(); // the ids are results too
        job.y_row = bz() * __gpu_num_blocks_y() + by();
        job.ids = a->ids + job.y_row * rows;
        x_row = a->n_sum ? job.y_row * rows : a->x_by_z ? bz() : job.y_row;
        if (!a->n_sum) job.expert = (u32)*job.ids;
    }
    for (u32 c0 = 0; c0 < chunks; c0 += ONE_SLAB) {
        const u32 here = min_u32(chunks - c0, ONE_SLAB), steps = (here + one_chunks(o) - 1) / one_chunks(o);
        if (a->n_sum) {
            job.one = steps;
            job.magic = (u32)(1048576.0f * fast_rcp((f32)steps)) + 2; // of steps below 2^9
        }
        sh.steps = steps * rows;
        sh.per = 0; // n_wave() is a power of two or small: no division
        for (u32 k = 0; k < sh.steps; k += n_wave()) sh.per++;
        job.step0 = c0 / one_chunks(o);
        one_piece ring[4][2];
        one_cursor next = {.tile = bx(), .step = wave()};
        one_find_tile(&next, a, o, &sh, &job);
        UNROLL for (u32 i = 0; i < ahead; i++) one_next(ring[i], &next, a, o, &sh, &job);
        if (!a->ids && c0 == 0) after_previous();
        if (c0) barrier(); // the slab before is not needed any more
        one_stage(m, o, a, a->x + x_row * a->x_ld, x_row, c0, here, steps * one_chunks(o), rows);
        one_sums acc = {};
        u32 tile = bx(), k = 0, turn = 0, who = 0;
        while (tile < a->n_tile) {
            UNROLL for (u32 i = 0; i < ahead; i++) {
                if (tile >= a->n_tile) continue;
                const u32 step = wave() + k * n_wave();
                if (step < sh.steps) one_compute(&acc, o, ring[i], m, step);
                one_next(ring[i], &next, a, o, &sh, &job);
                if (++k < sh.per) continue;
                one_finish(a, o, &acc, m, tile, turn, who, &job);
                acc = (one_sums){};
                turn++, k = 0, tile += __gpu_num_blocks_x();
                who = who + 1 == n_wave() ? 0 : who + 1;
            }
        }
    }
}

/* For each kind of weights, and of the affine ones' scales: KERNELS(name, kind, type). */
#define AFFINE(name, kind)                                                                                   \
    KERNELS(name, kind, 2)                                                                                   \
    KERNELS(name##_f16, kind, 1)                                                                             \
    KERNELS(name##_f32, kind, 0)
#define ONE_KINDS                                                                                            \
    AFFINE(a2, K_A2)                                                                                         \
    AFFINE(a3, K_A3)                                                                                         \
    AFFINE(a4, K_A4)                                                                                         \
    AFFINE(a5, K_A5)                                                                                         \
    AFFINE(a6, K_A6)                                                                                         \
    AFFINE(a8, K_A8)                                                                                         \
    KERNELS(f16, K_F16, 2)                                                                                   \
    KERNELS(bf16, K_BF16, 2)                                                                                 \
    KERNELS(mxfp4, K_MXFP4, 2)                                                                               \
    KERNELS(mxfp8, K_MXFP8, 2)                                                                               \
    KERNELS(nvfp4, K_NVFP4, 2)

#endif
