/* ops_decode.c - plans attention for one token a sequence, with rotation and append in the same launch: how positions are cut into
 * parts. */
#include "backend/gpu/gpu.h"
#include "backend/ports.h"
#include <stdio.h>
#include <string.h>

enum { TILE = 16, WAVES = 8, HEADS = 8, MAX_PART = 128 }; // kernels/decode.c

static uint32_t share_bits(const mx_attention *a) {
    return mx_log2_up(mx_div_up((uint32_t)(a->n_head / a->n_kv), HEADS));
}

mx_status mx_gpu_takes_decode_attention(const mx_dev *dev, const void *args, mx_err *err) {
    const mx_gpu_dev *d = (const mx_gpu_dev *)dev;
    const mx_decode_attention *q = args;
    const mx_attention *a = &q->attention;
    if (strncmp(d->arch, "sm_", 3)) return mx_fail(err, MX_UNSUPPORTED, "%s has no such kernel", d->arch);
    if (q->b->max_q_len > 1)
        return mx_fail(err, MX_UNSUPPORTED, "%d tokens of a sequence; the kernel takes one", q->b->max_q_len);
    if (a->hd != 64 && a->hd != 128 && a->hd != 256)
        return mx_fail(err, MX_UNSUPPORTED, "heads of %d values; the kernel takes 64, 128 and 256", a->hd);
    if (a->kv.type == MX_F32 || q->b->block < TILE)
        return mx_fail(err, MX_UNSUPPORTED,
                       "a cache of %s in blocks of %d positions; the kernel takes 2 bytes and 16",
                       mx_dtype_name(a->kv.type), q->b->block);
    if ((int64_t)q->b->n_seq * (a->n_kv << share_bits(a)) > MX_GPU_COUNTS)
        return mx_fail(err, MX_UNSUPPORTED, "%d sequences of %d key heads; the kernel takes %d in all",
                       q->b->n_seq, a->n_kv, MX_GPU_COUNTS);
    return MX_OK;
}

/* Parts until every compute unit has a block, of at least one tile a wave; then longer parts. */
static void cut(const mx_gpu_dev *d, mx_k_attention *k, const mx_batch *b) {
    uint32_t longest = (uint32_t)b->max_kv_len;
    if (k->window && k->window + TILE < longest) longest = k->window + TILE; // it may begin within a tile
    const uint32_t tiles = mx_div_up(longest, TILE), blocks = (k->n_kv << k->share_bits) * (uint32_t)b->n_seq;
    uint32_t parts = (uint32_t)d->info.compute_units / blocks, most = mx_div_up(tiles, 2 * WAVES);
    if (tiles <= 3 * WAVES) most = 1;
    if (parts > most) parts = most;
    if (parts > MAX_PART) parts = MAX_PART;
    if (parts < 1) parts = 1;
    k->part_splits = mx_div_up(tiles, parts);
    k->n_part = mx_div_up(tiles, k->part_splits);
}

mx_status mx_gpu_decode_attention(mx_dev *dev, const void *args, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    const mx_decode_attention *q = args;
    const mx_attention *a = &q->attention;
    const mx_batch *b = q->b;
    mx_k_batch kb = mx_gpu_batch(b, a->kv.group);
    mx_k_rope_append r = mx_gpu_rope(&q->rope);
    mx_k_attention k = mx_gpu_attention_args(a);
    k.share_bits = share_bits(a);
    cut(d, &k, b);
    if (k.n_part > 1) {
        size_t n = (size_t)kb.n_tok * k.n_head * k.n_part;
        MX_TRY(mx_gpu_scratch(d, n * (k.hd + 2) * sizeof(float), err));
        k.part_o = d->scratch;
        k.part_ml = (float *)d->scratch + n * k.hd;
    }
    char name[32];
    snprintf(name, sizeof name, "decode_%s_%d", a->kv.type == MX_F16 ? "f16" : "bf16", a->hd);
    return LAUNCH(d, "decode", name, k.n_part, k.n_kv << k.share_bits, kb.n_seq, 32 * WAVES, &r, &k, &kb,
                  &d->counts);
}
