/* rope.c - rotary positions (Su et al. 2021, "RoFormer"): the table of a step, and one launch that norms and rotates queries and
 * keys and appends keys and values to the paged cache. */
#include "numbers.h"

/* cos_sin[i, n_rot] = scale * (cosines, then sines) of pos[i] * inv_freq[n_rot / 2]. The angle is a float product, as in the
 * reference implementations. Grid: x = tokens, y = ceil(n_rot / 2 / 64). Block: 64 threads. Angles are below 2^22. */
__gpu_kernel void rope_table(G f32 *cos_sin, const G f32 *inv_freq, const G i32 *pos, u32 n_rot, f32 scale) {
    let_next_start();
    after_previous();
    const u32 f = by() * threads() + thread(), half = n_rot / 2;
    if (f >= half) return;
    f32 s, c;
    sincos32((f32)pos[bx()] * inv_freq[f], &s, &c);
    G f32 *out = cos_sin + (u64)bx() * n_rot;
    out[f] = c * scale;
    out[half + f] = s * scale;
}

INLINE void put(G void *p, u64 at, u32 type, f32 v) {
    if (type == 2)
        ((G u16 *)p)[at] = f32_bf16(v);
    else if (type == 1)
        ((G u16 *)p)[at] = f32_f16(v);
    else
        ((G f32 *)p)[at] = v;
}

/* Tiling: a wave owns a head of q, k or v of one token: q heads 0 to n_head, then k, then v. A lane takes pairs of the rotation
 * (i, i + n_rot / 2) or (2i, 2i + 1), so q turns in place; k and v are read only and go to the cache. Grid: x = tokens,
 * y = ceil((n_head + 2 n_kv) / waves of a block). Block: 128 threads. Any hd; n_rot is even. A token whose block is -1 is not
 * appended. pos < block_stride << block_shift. */
__gpu_kernel void rope_append(mx_k_rope_append a, mx_k_batch b) {
    let_next_start();
    after_previous();
    const u32 token = bx(), unit = by() * n_wave() + wave();
    if (unit >= a.n_head + 2 * a.n_kv) return; // the whole wave leaves together
    const bool is_q = unit < a.n_head, is_v = unit >= a.n_head + a.n_kv;
    const u32 head = is_q ? unit : is_v ? unit - a.n_head - a.n_kv : unit - a.n_head;
    const mx_k_mat m = is_q ? a.q : is_v ? a.v : a.k;
    const G f32 *x = row_of(m, token) + head * a.hd, *norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
    const u32 n_rot = is_v ? 0 : a.n_rot, half = n_rot / 2;
    G void *out = (G void *)x;
    u64 at = 0;
    u32 type = 0;
    if (is_q) {
        if (!norm && !n_rot) return;
    } else {
        const u32 pos = (u32)b.pos[token];
        const i32 block = b.blocks[(u64)(u32)b.seq[token] * b.block_stride + (pos >> b.block_shift)];
        if (block < 0) return;
        const u64 row =
            ((((u64)(u32)block * a.n_kv + head) << b.block_shift) + (pos & ((1u << b.block_shift) - 1)));
        out = is_v ? a.pool_v : a.pool_k;
        at = row * a.hd;
        type = a.kv_type;
    }
    f32 factor = 1;
    if (norm) {
        f32 squares = 0;
        for (u32 i = lane(); i < a.hd; i += WAVE) squares = fma32(x[i], x[i], squares);
        const f32 mean = fma32(wave_sum(squares), a.inv_hd, a.eps);
        factor = mean > 0 ? rsqrt32(mean) : mean == 0 ? 0 : not_a_number();
    }
    const G f32 *cosine = a.cos_sin + (u64)token * a.n_rot, *sine = cosine + half;
    for (u32 i = lane(); i < half; i += WAVE) {
        const u32 i0 = a.interleaved ? 2 * i : i, i1 = a.interleaved ? 2 * i + 1 : i + half;
        f32 u = x[i0] * factor, v = x[i1] * factor;
        if (norm) u *= norm[i0], v *= norm[i1];
        const f32 c = cosine[i], s = sine[i];
        put(out, at + i0, type, u * c - v * s);
        put(out, at + i1, type, v * c + u * s);
    }
    for (u32 i = n_rot + lane(); i < a.hd; i += WAVE) {
        const f32 v = x[i] * factor;
        put(out, at + i, type, norm ? v * norm[i] : v);
    }
}
