/* embed.c - x[i, :] = scale * W[ids[i], :] as f32, for every kind of weight.
 *
 * Grid: x = tokens, y = ceil(n_in / (256 * 4)) for f32, f16, bf16 (a thread takes 4 values; any n_in), else
 * ceil(n_in / (32 * 256)) (a thread takes a chunk of 32; n_in % 32 == 0). Block: 256 threads; fewer do. No shared memory. An
 * id outside the vocabulary gives a row of NaN, which the check of the logits reports: the host checks the ids it knows. */
#include "quant.h"
#include "numbers.h"

INLINE void embed(u32 kind, mx_k_mat x, const G i32 *ids, weights w, f32 scale) {
    let_next_start();
    after_previous();
    const u32 id = (u32)ids[bx()], t = by() * threads() + thread();
    G f32 *out = row_of(x, bx());
    const bool known = id < w.n_out, whole = whole16(x);
    if (kind <= K_BF16) {
        const u32 c = t * 4;
        if (c >= w.n_in) return;
        f32 v[4];
        UNROLL for (u32 i = 0; i < 4; i++) v[i] =
            known && c + i < w.n_in ? load_scale(w.codes, (u64)id * w.n_in + c + i, kind) : not_a_number();
        store4(out, c, w.n_in, whole, (f32x4){v[0], v[1], v[2], v[3]} * scale);
        return;
    }
    if (t >= w.n_in / 32) return;
    f32 v[32];
    load_values(v, w, kind, known ? id : 0, t);
    scale = known ? scale : not_a_number();
    UNROLL for (u32 i = 0; i < 32; i += 4)
        store4(out, t * 32 + i, w.n_in, whole, (f32x4){v[i], v[i + 1], v[i + 2], v[i + 3]} * scale);
}

#define ONE(name, kind)                                                                                      \
    __gpu_kernel void embed_##name(mx_k_mat x, const G i32 *ids, weights w, f32 scale) {                     \
        embed(kind, x, ids, w, scale);                                                                       \
    }
EACH_KIND(ONE)
