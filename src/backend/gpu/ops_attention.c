/* ops_attention.c - plans attention: which kernel takes which sequences of the step, and how their keys are cut into parts. */
#include "backend/gpu/gpu.h"
#include <stdio.h>
#include <string.h>

enum { SPLIT = 256, PREFILL_FROM = 16, BLOCKS_WANTED = 512 };

static const char *type_name(mx_dtype t) { return t == MX_F32 ? "f32" : t == MX_F16 ? "f16" : "bf16"; }

/* Many tokens of a sequence: matrix instructions. */
static mx_status prefill(mx_gpu_dev *d, mx_k_attention k, const mx_k_batch *kb, const mx_attention *a,
                         const mx_batch *b, mx_err *err) {
    char name[32];
    int head = a->hd <= 64 ? 64 : a->hd <= 128 ? 128 : 256;
    k.share_bits = mx_log2_up(k.group);
    uint32_t x = mx_div_up((uint32_t)b->max_q_len, 64) << k.share_bits;
    if (!strcmp(d->arch, "sm_90a") && head <= 128 && a->softcap == 0) {
        snprintf(name, sizeof name, "prefill_wide_%s_%d", type_name(a->kv.type), head);
        return mx_gpu_launch_shared(d, "prefill_wide", name, x, k.n_kv, kb->n_seq, 128,
                                    512 * (uint32_t)head + 1024, (void *[]){&k, (void *)kb}, err);
    }
    snprintf(name, sizeof name, "prefill_%s_%d", type_name(a->kv.type), head);
    return LAUNCH(d, "prefill", name, x, k.n_kv, kb->n_seq, 128, &k, (void *)kb);
}

/* Few tokens: keys are read once for the heads that share them, in parts side by side. */
static mx_status decode(mx_gpu_dev *d, mx_k_attention k, const mx_k_batch *kb, const mx_attention *a,
                        const mx_batch *b, mx_err *err) {
    char name[48];
    bool any = a->hd % 8 || a->hd > 256;
    uint32_t longest = k.q_hi < (uint32_t)b->max_q_len ? k.q_hi : (uint32_t)b->max_q_len;
    uint32_t rows_bits = any ? 3 : mx_log2_up(k.group); // as many heads of a group as fit
    if (!any && rows_bits > 2) rows_bits = 2;           // eight rows leave one block on a multiprocessor
    if (!any && longest > 1 && rows_bits < 2) rows_bits = 2;
    k.head_bits = mx_log2_up(k.group) < rows_bits ? mx_log2_up(k.group) : rows_bits;
    k.tok_bits = rows_bits - k.head_bits;
    k.share_bits = mx_log2_up(mx_div_up(k.group, 1u << k.head_bits));
    uint32_t tiles = mx_div_up(longest, 1u << k.tok_bits), splits = mx_div_up((uint32_t)b->max_kv_len, SPLIT);
    if (k.window && (k.window + (1u << k.tok_bits) + 509) / SPLIT < splits)
        splits = (k.window + (1u << k.tok_bits) + 509) / SPLIT;
    if (!splits) splits = 1;
    uint32_t blocks = (tiles << k.share_bits) * k.n_kv * kb->n_seq;
    k.part_splits = 1; // parts until the device is full, then longer parts
    while (blocks * mx_div_up(splits, k.part_splits) > BLOCKS_WANTED * 4 && k.part_splits < splits)
        k.part_splits *= 2;
    k.n_part = mx_div_up(splits, k.part_splits);
    k.part_bits = mx_log2_up(k.n_part);
    if (k.n_part > 1) {
        const size_t n = (size_t)kb->n_tok * k.n_head * k.n_part;
        const size_t outputs = (n * k.hd + 1) & ~(size_t)1; // what follows is read in pairs
        MX_TRY(mx_gpu_scratch(d, (outputs + 2 * n) * sizeof(float), err));
        k.part_o = d->scratch;
        k.part_ml = (float *)d->scratch + outputs;
    }
    if (any) {
        if (a->hd > 256)
            return mx_fail(err, MX_UNSUPPORTED, "attention: heads of %d values; the GPU takes up to 256",
                           a->hd);
        snprintf(name, sizeof name, "attention_%s_any", type_name(a->kv.type));
    } else {
        int lanes = a->hd <= 32 ? 4 : a->hd <= 64 ? 8 : a->hd <= 128 ? 16 : 32;
        snprintf(name, sizeof name, "attention_%s_h%d_r%d", type_name(a->kv.type), lanes, 1 << rows_bits);
    }
    uint32_t x = ((tiles << k.share_bits) << k.part_bits);
    MX_TRY(LAUNCH(d, "attention", name, x, k.n_kv, kb->n_seq, 256, &k, (void *)kb));
    return k.n_part > 1
               ? LAUNCH(d, "attention", "attention_merge", kb->n_tok, k.n_head, 1, 256, &k, (void *)kb)
               : MX_OK;
}

mx_k_attention mx_gpu_attention_args(const mx_attention *a) {
    return (mx_k_attention){.q = mx_gpu_mat(&a->q),
                            .out = mx_gpu_mat(&a->out),
                            .pool_k = a->kv.k,
                            .pool_v = a->kv.v,
                            .sinks = a->sinks,
                            .n_head = (uint32_t)a->n_head,
                            .n_kv = (uint32_t)a->n_kv,
                            .group = (uint32_t)(a->n_head / a->n_kv),
                            .hd = (uint32_t)a->hd,
                            .window = (uint32_t)a->window,
                            .n_part = 1,
                            .part_splits = 1,
                            .q_lo = 1,
                            .q_hi = UINT32_MAX,
                            .scale = a->scale,
                            .softcap = a->softcap};
}

mx_status mx_gpu_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    mx_k_batch kb = mx_gpu_batch(b, a->kv.group);
    mx_k_attention k = mx_gpu_attention_args(a);
    bool matrix = a->kv.type != MX_F32 && a->hd % 8 == 0 && a->hd <= 256;
    if (matrix && b->max_q_len >= PREFILL_FROM) {
        mx_k_attention many = k;
        many.q_lo = PREFILL_FROM;
        MX_TRY(prefill(d, many, &kb, a, b, err));
        if (b->n_seq == 1) return MX_OK;
        k.q_hi = PREFILL_FROM - 1;
    }
    return decode(d, k, &kb, a, b, err);
}
