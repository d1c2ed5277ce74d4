/* matmul.h - y[n, n_out] = x[n, n_in] W^T + bias for many rows of x: prefill, where arithmetic is the limit.
 *
 * Tiling: a block makes bm x bn of y, its waves wm x wn parts of tm x tn tiles of 16 x 16. Along n_in it goes 32 values (a chunk)
 * a step: the next chunk of x and W is loaded into registers, the products of this one are done from shared memory, the next is
 * converted to bf16 (f16 for f16 weights; weights with scale and bias applied) and stored to the other half of shared memory,
 * barrier. bn is the number of threads: a thread expands one row's chunk of quantized weights; of x and of 16-bit weights, 4
 * threads load a row's chunk together. Shared memory: 2 (bm + bn) 64 bytes, slots as in product.h. */
#ifndef MX_KERNELS_MATMUL_H
#define MX_KERNELS_MATMUL_H
#include "quant.h"

typedef struct {
    u32 kind, type;         // of the scales
    u32 bm, bn, wn, tm, tn; // waves stand wn a row of the block's tile; threads = bn
} mm_plan;

enum { MM_MAX_X = 4 };

typedef struct
{ // where a thread loads from: slot thread % 4 of x's rows thread / 4 + j bn / 4, and likewise of 16-bit weights; or
    const G f32 *x[MM_MAX_X]; // a row of codes
    const G u8 *codes[4];
    const G void *scales, *biases;
    u64 scale_row;
    u32 group_shift;
} mm_source;

typedef struct { // what it has loaded of the next chunk
    f32x4 x[MM_MAX_X][2];
    u32 w[16], s, b;
} mm_next;

INLINE void load_next(mm_next *n, mm_plan o, const mm_source *from, u32 c) {
    const u32 slot = thread() & 3, lo = c * 32 + slot_lo(o.kind, slot), hi = c * 32 + slot_hi(o.kind, slot);
    UNROLL for (u32 j = 0; j < o.bm * 4 / o.bn; j++) {
        n->x[j][0] = *(const G f32x4 *)(from->x[j] + lo);
        n->x[j][1] = *(const G f32x4 *)(from->x[j] + hi);
    }
    if (o.kind <= K_BF16) {
        UNROLL for (u32 j = 0; j < 4; j++) four(n->w + 4 * j, *(const G u32x4 *)(from->codes[j] + c * 64));
        return;
    }
    load_code(n->w, o.kind, from->codes[0] + c * (words_of(o.kind) * 4));
    if (is_affine(o.kind)) {
        const u64 at = from->scale_row + (c >> (from->group_shift - 5));
        n->s = raw_scale(from->scales, at, o.type);
        n->b = raw_scale(from->biases, at, o.type);
    } else if (o.kind == K_NVFP4) {
        n->s = ((const G u16 *)from->scales)[from->scale_row + c];
    } else {
        n->s = ((const G u8 *)from->scales)[from->scale_row + c];
    }
}

INLINE void store_next(LDS u32x4 *xs, mm_plan o, const mm_next *n) {
    const u32 slot = thread() & 3, row = thread() >> 2;
    LDS u32x4 *ws = xs + o.bm * 4;
    UNROLL for (u32 j = 0; j < o.bm * 4 / o.bn; j++) {
        f32 v[8];
        UNROLL for (u32 k = 0; k < 2; k++) {
            const f32x4 q = n->x[j][k];
            f32 v0 = q.x, v1 = q.y, v2 = q.z, v3 = q.w;
            v[4 * k] = v0, v[4 * k + 1] = v1, v[4 * k + 2] = v2, v[4 * k + 3] = v3;
        }
        u32 p[4];
        UNROLL for (u32 k = 0; k < 4; k++) p[k] =
            pair_of(v[eight_lo(o.kind, k)], v[eight_hi(o.kind, k)], o.kind == K_F16);
        xs[slot_at(row + j * (o.bn / 4), slot)] = (u32x4){p[0], p[1], p[2], p[3]};
    }
    if (o.kind <= K_BF16) {
        UNROLL for (u32 j = 0; j < 4; j++) ws[slot_at(row + j * (o.bn / 4), slot)] =
            (u32x4){n->w[4 * j], n->w[4 * j + 1], n->w[4 * j + 2], n->w[4 * j + 3]};
        return;
    }
    u32 p[16];
    unpack(p, n->w, o.kind);
    scale_pairs(p, o.kind, o.type, n->s, n->b);
    UNROLL for (u32 s = 0; s < 4; s++) ws[slot_at(thread(), s)] =
        (u32x4){p[4 * s], p[4 * s + 1], p[4 * s + 2], p[4 * s + 3]};
}

INLINE void matmul_run(const mx_k_matmul *a, mm_plan o, LDS u32x4 *room) {
    u32 out = 0, col0 = by();
    UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (by() >= a->out[i].tile_end)
        out = i + 1,
        col0 = by() - a->out[i].tile_end;
    col0 *= o.bn;
    weights w = a->out[out].w;
    u32 row0 = bx() * o.bm, end = a->n, expert = 0;
    if (a->tiles) {
        const G i32 *t = a->tiles + 4 * (u64)bx();
        if (t[0] < 0) return;
        expert = (u32)t[0], row0 = (u32)t[1], end = (u32)t[2];
        w.codes = (const G u8 *)w.codes + expert * a->out[out].code_stride;
        w.scales = (const G u8 *)w.scales + expert * a->out[out].scale_stride;
        w.biases = (const G u8 *)w.biases + expert * a->out[out].scale_stride;
    }
    const u32 chunks = w.n_in / 32, tid = thread();

    mm_source from;
    UNROLL for (u32 j = 0; j < o.bm * 4 / o.bn; j++) {
        u32 r = min_u32(row0 + (tid >> 2) + j * (o.bn / 4),
                        end - 1); // a row past the end is computed and dropped
        if (a->x_rows) r = (u32)a->x_rows[r];
        from.x[j] = a->x + r * a->x_ld;
    }
    if (o.kind <= K_BF16) {
        UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 r = min_u32(col0 + (tid >> 2) + j * (o.bn / 4), w.n_out - 1);
            from.codes[j] = (const G u8 *)w.codes + (u64)r * w.n_in * 2 + 16 * (tid & 3);
        }
    } else {
        const u64 r = min_u32(col0 + tid, w.n_out - 1);
        from.codes[0] = (const G u8 *)w.codes + r * chunks * (words_of(o.kind) * 4);
        from.scale_row = r * (is_affine(o.kind) ? w.n_in >> w.group_shift : chunks);
        from.scales = w.scales, from.biases = w.biases, from.group_shift = w.group_shift;
    }

    f32 sum[4][4][8];
    UNROLL for (u32 i = 0; i < o.tm; i++) UNROLL for (u32 j = 0; j < o.tn; j++)
        UNROLL for (u32 k = 0; k < 8; k++) sum[i][j][k] = 0;
    const u32 wave_row = wave() / o.wn * (16 * o.tm), wave_col = wave() % o.wn * (16 * o.tn);
    mm_next next;
    load_next(&next, o, &from, 0);
    store_next(room, o, &next);
    barrier();
    for (u32 c = 0; c < chunks; c++) {
        load_next(&next, o, &from, min_u32(c + 1, chunks - 1)); // at the end the last once more, unused
        stay();
        const LDS u32x4 *xs = room + (c & 1) * ((o.bm + o.bn) * 4), *ws = xs + o.bm * 4;
        UNROLL for (u32 part = 0; part < FACTOR_PARTS; part++) {
            factor f[4];
            UNROLL for (u32 i = 0; i < o.tm; i++) f[i] = load_factor(xs, wave_row + 16 * i, part);
            UNROLL for (u32 j = 0; j < o.tn; j++) {
                const factor g = load_factor(ws, wave_col + 16 * j, part);
                UNROLL for (u32 i = 0; i < o.tm; i++) mma_part(sum[i][j], &f[i], &g, o.kind == K_F16);
            }
        }
        stay();
        store_next(room + ((c + 1) & 1) * ((o.bm + o.bn) * 4), o, &next);
        barrier();
    }

    const G f32 *bias = a->out[out].bias;
    if (bias) bias += (u64)expert * w.n_out;
    UNROLL for (u32 i = 0; i < o.tm; i++) {
        UNROLL for (u32 k = 0; k < 8; k++) {
            u32 r = row0 + wave_row + 16 * i + row_of_sum(k);
            if (r >= end) continue;
            if (a->rows) r = (u32)a->rows[r];
            UNROLL for (u32 j = 0; j < o.tn; j++) {
                const u32 col = col0 + wave_col + 16 * j + col_of_sum(k);
                if (col < w.n_out)
                    a->out[out].y[r * a->out[out].y_ld + col] = sum[i][j][k] + (bias ? bias[col] : 0);
            }
        }
    }
}

/* Scales of bf16, the usual case, have a loop of their own. */
INLINE void matmul(const mx_k_matmul *a, mm_plan o, LDS u32x4 *room) {
    o.type = 2;
    if (!is_affine(o.kind) || a->out[0].w.scale_type == 2) {
        matmul_run(a, o, room);
    } else {
        o.type = a->out[0].w.scale_type;
        matmul_run(a, o, room);
    }
}

#if defined(__AMDGPU__)
#define MM_KERNEL(n) __attribute__((amdgpu_flat_work_group_size(n, n))) __gpu_kernel
#else
#define MM_KERNEL(n) __gpu_kernel
#endif

#endif
