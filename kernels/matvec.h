/* matvec.h - y[n, n_out] = x[n, n_in] W^T + bias for up to 8 rows of x: decode, where the memory's speed is the limit.
 *
 * Matrix instructions do the products, not for their speed but because they take 16-bit pairs as they come out of the codes with
 * two or three instructions a pair, and because up to 8 rows of x then cost what one costs.
 *
 * Tiling: a block owns a tile of W, 16 rows (32 for more than 2 rows of x; 16 of gate and 16 of up for glu); its waves share n_in,
 * wave i takes every n_wave-th step of 128 values (AMD: of 32 to 128), and add up in shared memory in a fixed order. A lane loads
 * whole chunks of 32 values of a row, 16 bytes a load where a row allows it, one or two steps ahead, across tiles too. The block
 * goes on to tile + grid.
 *
 * How lanes map to chunks:
 *   NVIDIA, quantized  lane 4g + t: rows g and g + 8, chunk t of the step's four. One instruction so sums over four chunks whose
 *                      scales differ. For n <= 2 column 4b + q of B holds chunk q of row b of x alone (zero elsewhere), so the
 *                      sums of chunks stay apart and are scaled in f32. For more rows the scale goes into the bf16 weights first.
 *   NVIDIA, dense      8 values at 32 i + 8 t, i = 0..3, so that loads of a row lie side by side; column b of B is row b of x.
 *   AMD                lane: row lane % 16 of the tile, the same chunk in all lanes; x is the A matrix. Scaled in f32 always.
 *
 * x goes in as bf16 (f16 for f16 weights); everything else is f32. */
#ifndef MX_KERNELS_MATVEC_H
#define MX_KERNELS_MATVEC_H
#include "numbers.h"
#include "quant.h"

enum { MV_MAX_WAVE = 8 };

/* 16 bytes that are read once: they do not push out what is read again. */
INLINE u32x4 load_once(const G u32x4 *p) {
#if defined(__NVPTX__)
    u32 a, b, c, d;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(p));
    return (u32x4){a, b, c, d};
#else
    return *p;
#endif
}

#if defined(__AMDGPU__)
#define MV_KERNEL __attribute__((amdgpu_flat_work_group_size(32, 256))) __gpu_kernel
#else
#define MV_KERNEL __gpu_kernel
#endif

#if defined(__AMDGPU__)
INLINE u32 chunks_a_step(u32 kind, u32 mt) {
    return words_of(kind) <= 4 ? 4 / mt : words_of(kind) <= 8 ? 2 / mt : 1;
}
#if defined(__GFX12__)
INLINE u32 sums_used(bool few) { return few ? 2 : 8; } // of a lane's 8 sums, those of rows of x
#else
INLINE u32 sums_used(bool few) { return few ? 1 : 4; }
#endif
#else
INLINE u32 chunks_a_step(u32 kind, u32 mt) { return kind <= K_BF16 && mt == 2 ? 2 : 4; }
#endif

typedef struct {    // what is known when a kernel is compiled
    u32 kind, type; // type: of the scales
    bool wide;      // groups are larger than 32
    bool few;       // n <= 2
    bool glu;
    u32 mt;    // 16-row parts of a tile
    u32 ahead; // steps that are loaded ahead
} mv_plan;

typedef struct { // a lane's share of one step of 16 rows. NVIDIA: [row half], AMD: [chunk]
    u32 code[4][16];
    u32 s[4][2], b[4][2]; // raw scales and biases; [1]: of the next chunk (NVIDIA, few)
} mv_piece;

typedef struct { // where rows begin: the first, and the bytes to the second (NVIDIA)
    const G u8 *code, *s;
    i64 b; // bytes from scales to biases
    u32 code2, s2;
} mv_rows;

INLINE u32 scale_bytes(mv_plan o) {
    return is_affine(o.kind) ? (o.type == 0 ? 4 : 2) : o.kind == K_NVFP4 ? 2 : 1;
}

INLINE void find_rows(mv_rows *r, mv_plan o, const weights *w, u32 row0) {
    const u32 chunks = w->n_in / 32, code_row = chunks * words_of(o.kind) * 4;
    const u32 scale_row = (is_affine(o.kind) ? w->n_in >> w->group_shift : chunks) * scale_bytes(o);
#if defined(__AMDGPU__)
    const u32 row = min_u32(row0 + (lane() & 15), w->n_out - 1); // a row past the end is computed and dropped
    r->code2 = r->s2 = 0;
#else
    const u32 row = min_u32(row0 + (lane() >> 2), w->n_out - 1), more = min_u32(row + 8, w->n_out - 1) - row;
    r->code2 = more * code_row, r->s2 = more * scale_row;
#endif
    r->code = (const G u8 *)w->codes + (u64)row * code_row;
    r->s = (const G u8 *)w->scales + (u64)row * scale_row;
    r->b = (i64)((u64)w->biases - (u64)w->scales);
}

/* Scale (and bias) of chunk c of row h; shift: log2 of the chunks of a group. */
INLINE void load_scales(mv_piece *p, u32 i, u32 k, mv_plan o, const mv_rows *r, u32 h, u32 c, u32 shift) {
    if (o.kind <= K_BF16) return;
    const G u8 *at = r->s + (h ? r->s2 : 0) + (is_affine(o.kind) ? c >> shift : c) * scale_bytes(o);
    if (is_affine(o.kind)) {
        p->s[i][k] = raw_scale(at, 0, o.type);
        p->b[i][k] = raw_scale(at + r->b, 0, o.type);
    } else {
        p->s[i][k] = o.kind == K_NVFP4 ? *(const G u16 *)at : *at;
    }
}

INLINE void load_piece(mv_piece *p, mv_plan o, const mv_rows *r, u32 chunks, u32 shift, u32 step) {
    const u32 per = chunks_a_step(o.kind, o.mt), first = step * per, bytes = words_of(o.kind) * 4;
#if defined(__AMDGPU__)
    UNROLL for (u32 k = 0; k < per; k++) {
        const u32 c = min_u32(first + k, chunks - 1);
        load_code(p->code[k], o.kind, r->code + c * bytes);
        load_scales(p, k, 0, o, r, 0, c, shift);
    }
#else
    const u32 t = lane() & 3;
    UNROLL for (u32 h = 0; h < 2; h++) {
        if (o.kind <= K_BF16) {
            UNROLL for (u32 i = 0; i < per; i++)
                four(p->code[h] + 4 * i, *(const G u32x4 *)(r->code + (h ? r->code2 : 0) +
                                                            min_u32(first + i, chunks - 1) * bytes + 16 * t));
        } else {
            const u32 c = min_u32(first + t, chunks - 1);
            load_code(p->code[h], o.kind, r->code + (h ? r->code2 : 0) + c * bytes);
            if (o.few) {
                const u32 c0 = min_u32(first + 2 * (t & 1), chunks - 1);
                load_scales(p, h, 0, o, r, h, c0, shift);
                if (!o.wide) load_scales(p, h, 1, o, r, h, min_u32(c0 + 1, chunks - 1), shift);
            } else {
                load_scales(p, h, 0, o, r, h, c, shift);
            }
        }
    }
#endif
}

static const G f32 __attribute__((aligned(128)))
mv_zeros[32] = {}; // what is not there of x; read 16 bytes at a time

/* 32 values of x as pairs in the kind's order, from places of 8 values, `apart` from each other, those from n_place on (dense
 * kinds) zero; all zero where not `wanted`. Without branches, so that loads of weights need not wait for these. */
INLINE void load_x(u32 *b, u32 kind, const G f32 *x, u64 row, u32 at, const G f32 *norm, u32 apart,
                   u32 n_place, bool wanted) {
    f32 v[32];
    const G f32 *from = wanted ? x + row + at : mv_zeros;
    UNROLL for (u32 i = 0; i < 4; i++) {
        UNROLL for (u32 k = 0; k < 8; k += 4) {
            const G f32 *p = apart == 8 ? from + 8 * i : wanted && i < n_place ? from + i * apart : mv_zeros;
            const f32x4 q = *(const G f32x4 *)(p + k);
            f32 x0 = q.x, x1 = q.y, x2 = q.z, x3 = q.w;
            if (norm) {
                const G f32 *w = p == mv_zeros ? mv_zeros : norm + at + i * apart;
                const f32x4 m = *(const G f32x4 *)(w + k);
                x0 *= m.x, x1 *= m.y, x2 *= m.z, x3 *= m.w;
            }
            v[8 * i + k] = x0, v[8 * i + k + 1] = x1, v[8 * i + k + 2] = x2, v[8 * i + k + 3] = x3;
        }
    }
    UNROLL for (u32 p = 0; p < 16; p++) b[p] =
        pair_of(v[pair_lo(kind, p)], v[pair_hi(kind, p)], kind == K_F16);
}

typedef struct {
    f32 v
        [2]
        [8]; // NVIDIA, few and quantized: [part][row half]; NVIDIA else: [part][two chains of 4]; AMD: [part][sums]
} mv_sums;

#if defined(__AMDGPU__)
INLINE f32 sum_of_pairs(const u32 *b) {
    f32 s0 = 0, s1 = 0;
    UNROLL for (u32 p = 0; p < 16; p += 2) {
        s0 += lo_bf16(b[p]) + hi_bf16(b[p]);
        s1 += lo_bf16(b[p + 1]) + hi_bf16(b[p + 1]);
    }
    return s0 + s1;
}

INLINE void compute(mv_sums *acc, mv_plan o, const mv_piece *piece, const G f32 *x, u64 x_ld,
                    const G f32 *norm, u32 n, u32 chunks, u32 step) {
    const u32 row = lane() & 15;
    UNROLL for (u32 k = 0; k < chunks_a_step(o.kind, o.mt); k++) {
        const u32 c = step * chunks_a_step(o.kind, o.mt) + k;
        u32 b[16];
        load_x(b, o.kind, x, row * x_ld, c * 32, norm, 8, 4, row < n && c < chunks);
        f32 total[8];
        if (is_affine(o.kind)) {
            const f32 mine = sum_of_pairs(b);
            UNROLL for (u32 i = 0; i < sums_used(o.few); i++) total[i] = shuffle(mine, row_of_sum(i));
        }
        UNROLL for (u32 m = 0; m < o.mt; m++) {
            u32 a[16];
            unpack(a, piece[m].code[k], o.kind);
            if (o.kind <= K_BF16) {
                wmma16(acc->v[m], b, a, o.kind == K_F16);
                wmma16(acc->v[m], b + 8, a + 8, o.kind == K_F16);
                continue;
            }
            f32 d[8] = {}, e[8] = {};
            wmma16(d, b, a, false);
            wmma16(o.kind == K_NVFP4 ? e : d, b + 8, a + 8, false);
            const u32 s = piece[m].s[k][0];
            UNROLL for (u32 i = 0; i < sums_used(o.few); i++) {
                f32 *to = &acc->v[m][i];
                if (is_affine(o.kind))
                    *to = fma32(scale_of_raw(s, o.type), fma32(-offset_of(o.kind), total[i], d[i]),
                                fma32(scale_of_raw(piece[m].b[k][0], o.type), total[i], *to));
                else if (o.kind == K_NVFP4)
                    *to = fma32(e4m3_f32((u8)s), d[i], fma32(e4m3_f32((u8)(s >> 8)), e[i], *to));
                else
                    *to = fma32(e8m0_f32((u8)s), d[i], *to);
            }
        }
    }
}
#else
INLINE void compute(mv_sums *acc, mv_plan o, const mv_piece *piece, const G f32 *x, u64 x_ld,
                    const G f32 *norm, u32 n, u32 chunks, u32 step) {
    const u32 g = lane() >> 2, t = lane() & 3, per = chunks_a_step(o.kind, o.mt), first = per * step;
    const bool apart = o.few && o.kind > K_BF16; // a column of B is one chunk
    u32 b[16];
    if (o.kind <= K_BF16) {
        load_x(b, o.kind, x, g * x_ld, first * 32 + 8 * t, norm, 32, min_u32(chunks - first, per), g < n);
    } else {
        const u32 row = apart ? g >> 2 : g;
        const bool wanted = row < n && first + t < chunks && (!apart || (g & 3) == t);
        load_x(b, o.kind, x, row * x_ld, (first + t) * 32, norm, 8, 4, wanted);
    }
    f32 total[2][4] = {}; // the sum of each column of B, in every row
    if (apart && is_affine(o.kind)) {
        UNROLL for (u32 m = 0; m < 8; m++) mma16(total[m / 4], 0x3F803F80u, 0x3F803F80u, 0x3F803F80u,
                                                 0x3F803F80u, b[2 * m], b[2 * m + 1], false);
    }
    UNROLL for (u32 part = 0; part < o.mt; part++) {
        const mv_piece *q = &piece[part];
        u32 a[2][16];
        f32 d[2][4] = {};
        UNROLL for (u32 h = 0; h < 2; h++) {
            unpack(a[h], q->code[h], o.kind);
            if (!apart) scale_pairs(a[h], o.kind, o.type, q->s[h][0], q->b[h][0]);
        }
        UNROLL for (u32 m = 0; m < 2 * per; m++)
            mma16(apart ? d[m / 4] : acc->v[part] + 4 * (m & 1), a[0][2 * m], a[1][2 * m], a[0][2 * m + 1],
                  a[1][2 * m + 1], b[2 * m], b[2 * m + 1], o.kind == K_F16);
        if (!apart) continue;
        UNROLL for (u32 h = 0; h < 2; h++) {
            UNROLL for (u32 k = 0; k < 2;
                        k++) { // columns 2t and 2t + 1: chunks 2 (t % 2) and one more, of row t / 2 of x
                const u32 s = q->s[h][o.wide ? 0 : k];
                f32 *to = &acc->v[part][h];
                const f32 dot = d[0][2 * h + k] + d[1][2 * h + k], sum = total[0][k] + total[1][k];
                if (is_affine(o.kind))
                    *to = fma32(scale_of_raw(s, o.type), fma32(-offset_of(o.kind), sum, dot),
                                fma32(scale_of_raw(q->b[h][o.wide ? 0 : k], o.type), sum, *to));
                else if (o.kind == K_NVFP4)
                    *to = fma32(e4m3_f32((u8)s), d[0][2 * h + k],
                                fma32(e4m3_f32((u8)(s >> 8)), d[1][2 * h + k], *to));
                else
                    *to = fma32(e8m0_f32((u8)s), dot, *to);
            }
        }
    }
}
#endif

/* The wave's sums to room[n_b][16 mt], n_b = 2 or 8 rows of x. */
INLINE void keep(LDS f32 *room, mv_plan o, const mv_sums *acc) {
    UNROLL for (u32 part = 0; part < o.mt; part++) {
        LDS f32 *to = room + 16 * part;
        const u32 ld = 16 * o.mt;
#if defined(__AMDGPU__)
        UNROLL for (u32 i = 0; i < sums_used(o.few); i++) if (row_of_sum(i) < (o.few ? 2u : 8u))
            to[row_of_sum(i) * ld + col_of_sum(i)] = acc->v[part][i];
#else
        const u32 g = lane() >> 2, t = lane() & 3;
        if (o.few && o.kind > K_BF16) {
            UNROLL for (u32 h = 0; h < 2; h++) {
                const f32 both = acc->v[part][h] + shuffle_xor(acc->v[part][h], 1);
                if ((t & 1) == 0) to[(t >> 1) * ld + g + 8 * h] = both;
            }
        } else if (!o.few || t == 0) {
            UNROLL for (u32 i = 0; i < 4; i++) to[(2 * t + (i & 1)) * ld + g + 8 * (i >> 1)] =
                acc->v[part][i] + acc->v[part][4 + i];
        }
#endif
    }
}

INLINE f32 activation(u32 act, f32 v) { // mx_act
    if (act == 0) return silu32(v);
    if (act == 1) return gelu32(v);
    if (act == 2) return 0.5f * v * (1 + tanh32(0.797884583f * fma32(0.0447149985f * v * v, v, v)));
    v = v > 0 || v != v ? v : 0;
    return act == 4 ? v * v : v;
}

typedef struct {
    u32 out, row0; // which product, first row
} mv_place;

INLINE mv_place place_of(const mx_k_matvec *a, bool glu, u32 rows, u32 tile) { // rows of a tile
    mv_place p = {0, tile};
    if (glu) return p.row0 = tile * rows, p;
    UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (tile >= a->out[i].tile_end)
        p.out = i + 1,
        p.row0 = tile - a->out[i].tile_end; // ends rise: the last one holds
    p.row0 *= rows;
    return p;
}

INLINE weights weights_of(const mx_k_matvec *a, u32 out, u32 expert) {
    weights w = a->out[out].w;
    w.codes = (const G u8 *)w.codes + expert * a->out[out].code_stride;
    w.scales = (const G u8 *)w.scales + expert * a->out[out].scale_stride;
    w.biases = (const G u8 *)w.biases + expert * a->out[out].scale_stride;
    return w;
}

typedef struct { // what is loaded next
    mv_rows part[2];
    u32 tile, step;
} mv_cursor;

INLINE void find_tile(mv_cursor *c, const mx_k_matvec *a, mv_plan o, u32 expert) {
    const mv_place p = place_of(a, o.glu, o.glu ? 16 : 16 * o.mt,
                                min_u32(c->tile, a->n_tile - 1)); // past the end the last tile again, unused
    const weights w = weights_of(a, p.out, expert);
    find_rows(&c->part[0], o, &w, p.row0);
    if (o.glu) {
        const weights up = weights_of(a, 1, expert);
        find_rows(&c->part[1], o, &up, p.row0);
    } else if (o.mt == 2) {
        find_rows(&c->part[1], o, &w, p.row0 + 16);
    }
}

/* 1 / sqrt(mean(x^2) + eps) of every row of x to room[8]; as much again is used on the way. */
INLINE void scales_of_rows(LDS f32 *room, const mx_k_matvec *a, const G f32 *x) {
    const u32 n_in = a->out[0].w.n_in;
    for (u32 b = 0; b < a->n; b++) {
        f32 square = 0;
        for (u32 k = 4 * thread(); k < n_in; k += 4 * threads()) {
            const f32x4 v = *(const G f32x4 *)(x + b * a->x_ld + k);
            square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        square = block_sum(square, room + 8);
        if (thread() == 0) room[b] = rsqrt32(fma32(square, a->inv_n, a->eps));
    } // whoever reads them does so after another barrier
}

INLINE void matvec_run(const mx_k_matvec *a, mv_plan o, LDS f32 *room) {
    const u32 n_b = o.few ? 2 : 8, rows = 16 * o.mt, chunks = a->out[0].w.n_in / 32, n = a->n;
    const u32 per = chunks_a_step(o.kind, o.mt), steps = (chunks + per - 1) / per;
    const u32 expert = 0;
    const u64 y_row = 0;
    const G f32 *x = a->x;
    let_next_start();
    const u32 shift = a->out[0].w.group_shift - 5;
    mv_piece piece[2][2]; // [step ahead][part]
    mv_cursor at = {.tile = bx(), .step = wave()};
    find_tile(&at, a, o, expert);
    if (at.step >= steps) at.step = 0; // a wave without work loads for nothing
    UNROLL for (u32 i = 0; i < o.ahead; i++) {
        UNROLL for (u32 m = 0; m < o.mt; m++)
            load_piece(&piece[i][m], o, &at.part[m], chunks, shift, at.step);
        at.step += n_wave();
        if (at.step >= steps) {
            at.step = wave() < steps ? wave() : 0, at.tile += __gpu_num_blocks_x();
            find_tile(&at, a, o, expert);
        }
    }
    after_previous();
    if (a->norm) scales_of_rows(room + MV_MAX_WAVE * n_b * rows, a, x);
    for (u32 tile = bx(); tile < a->n_tile; tile += __gpu_num_blocks_x()) {
        mv_sums acc = {};
        for (u32 step = wave(); step < steps; step += n_wave()) {
            mv_piece now[2];
            UNROLL for (u32 m = 0; m < o.mt; m++) now[m] = piece[0][m];
            if (o.ahead == 2) UNROLL for (u32 m = 0; m < o.mt; m++) piece[0][m] = piece[1][m];
            UNROLL for (u32 m = 0; m < o.mt; m++)
                load_piece(&piece[o.ahead - 1][m], o, &at.part[m], chunks, shift, at.step);
            compute(&acc, o, now, x, a->x_ld, a->norm, n, chunks, step);
            at.step += n_wave();
            if (at.step >= steps) {
                at.step = wave(), at.tile += __gpu_num_blocks_x();
                find_tile(&at, a, o, expert);
            }
        }
        keep(room + wave() * n_b * rows, o, &acc);
        barrier();
        const mv_place p = place_of(a, o.glu, o.glu ? 16 : 16 * o.mt, tile);
        const u32 n_out = a->out[p.out].w.n_out, shown = o.glu ? 16 : rows;
        for (u32 i = thread(); i < n_b * shown; i += threads()) {
            const u32 b = i / shown, r = i % shown, row = p.row0 + r;
            if (b >= n || row >= n_out) continue;
            f32 v = 0, u = 0;
            for (u32 k = 0; k < n_wave(); k++) {
                v += room[(k * n_b + b) * rows + r];
                if (o.glu) u += room[(k * n_b + b) * rows + 16 + r];
            }
            if (a->norm) {
                const f32 r = room[MV_MAX_WAVE * n_b * rows + b];
                v *= r, u *= r;
            }
            const G f32 *bias = a->out[p.out].bias;
            if (bias) v += bias[(u64)expert * n_out + row];
            if (o.glu) {
                bias = a->out[1].bias;
                if (bias) u += bias[(u64)expert * n_out + row];
                v = activation(a->act, v) * u;
            }
            const G f32 *add = a->out[p.out].add;
            if (add) v += add[(y_row + b) * a->out[p.out].add_ld + row];
            a->out[p.out].y[(y_row + b) * a->out[p.out].y_ld + row] = v;
        }
        barrier();
    }
}

/* usual: scales of bf16, groups of 64 or 128. The rest has kernels of its own, which need more registers. */
INLINE void matvec(const mx_k_matvec *a, u32 kind, bool few, bool glu, bool usual, LDS f32 *room) {
    mv_plan o = {kind, 2, usual, few, glu, glu || !few ? 2 : 1, few && !glu && words_of(kind) <= 8 ? 2 : 1};
#if defined(__AMDGPU__)
    o.ahead = 1;
#endif
    if (!usual) o.type = a->out[0].w.scale_type;
    matvec_run(a, o, room);
}

#endif
