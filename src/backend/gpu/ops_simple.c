/* ops_simple.c - the ops whose kernels need no plan: a grid from the shapes. Grids are as the kernels' files say. */
#include "backend/gpu/gpu.h"
#include "backend/ports.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

mx_k_mat mx_gpu_mat(const mx_mat *m) { return (mx_k_mat){.p = m->p, .ld = (uint64_t)m->ld}; }

mx_k_batch mx_gpu_batch(const mx_batch *b, int group) {
    return (mx_k_batch){.pos = b->pos,
                        .seq = b->seq,
                        .seq_start = b->seq_start,
                        .kv_len = b->kv_len,
                        .blocks = b->blocks[group],
                        .slot = b->slot,
                        .n_tok = (uint32_t)b->n_tok,
                        .n_seq = (uint32_t)b->n_seq,
                        .block_stride = (uint32_t)b->block_stride,
                        .block_shift = (uint32_t)__builtin_ctz((unsigned)b->block)};
}

enum { TOP_COLS = 2048, TOP_BLOCKS = 256 }; // kernels/top.c: columns of a block, blocks of a row

uint32_t mx_gpu_kv_type(mx_dtype t) { return t == MX_F32 ? 0 : t == MX_F16 ? 1 : 2; }

mx_status mx_gpu_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                       mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    char name[32];
    mx_k_mat kx = mx_gpu_mat(x);
    mx_k_weights kw = mx_gpu_weights(w);
    snprintf(name, sizeof name, "embed_%s", mx_gpu_kind(w));
    uint32_t per_block = w->kind == MX_QUANT_NONE ? 1024 : 8192;
    return LAUNCH(d, "embed", name, x->rows, mx_div_up((uint32_t)x->cols, per_block), 1, 256, &kx, &ids, &kw,
                  &scale);
}

mx_status mx_gpu_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                          float eps, mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x), ka = add && add->p ? mx_gpu_mat(add) : (mx_k_mat){0};
    uint32_t n = (uint32_t)x->cols;
    float inv = 1 / (float)n;
    return LAUNCH((mx_gpu_dev *)dev, "norm", "rms_norm", x->rows, 1, 1, n > 4096 ? 512 : 256, &ky, &kx, &ka,
                  &w, &n, &inv, &eps);
}

mx_status mx_gpu_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                            int hd, float eps, mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x), kz = mx_gpu_mat(z);
    uint32_t n_head = (uint32_t)(x->cols / hd), h = (uint32_t)hd;
    float inv = 1 / (float)hd;
    return LAUNCH((mx_gpu_dev *)dev, "norm", "gated_norm", x->rows, mx_div_up(n_head, 4), 1, 128, &ky, &kx,
                  &kz, &w, &n_head, &h, &inv, &eps);
}

mx_status mx_gpu_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                            const mx_batch *b, mx_err *err) {
    uint32_t n = (uint32_t)n_rot;
    return LAUNCH((mx_gpu_dev *)dev, "rope", "rope_table", b->n_tok, mx_div_up(n, 128), 1, 64, &cos_sin,
                  &inv_freq, (void *)&b->pos, &n, &scale);
}

mx_k_rope_append mx_gpu_rope(const mx_rope_append *a) {
    return (mx_k_rope_append){.q = mx_gpu_mat(&a->q),
                              .k = mx_gpu_mat(&a->k),
                              .v = mx_gpu_mat(&a->v),
                              .cos_sin = a->cos_sin,
                              .q_norm = a->q_norm,
                              .k_norm = a->k_norm,
                              .pool_k = a->kv.k,
                              .pool_v = a->kv.v,
                              .n_head = (uint32_t)a->n_head,
                              .n_kv = (uint32_t)a->n_kv,
                              .hd = (uint32_t)a->hd,
                              .n_rot = (uint32_t)a->n_rot,
                              .interleaved = a->interleaved,
                              .kv_type = mx_gpu_kv_type(a->kv.type),
                              .eps = a->eps,
                              .inv_hd = 1 / (float)a->hd};
}

mx_status mx_gpu_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err) {
    mx_k_rope_append k = mx_gpu_rope(a);
    mx_k_batch kb = mx_gpu_batch(b, a->kv.group);
    return LAUNCH((mx_gpu_dev *)dev, "rope", "rope_append", b->n_tok,
                  mx_div_up((uint32_t)(a->n_head + 2 * a->n_kv), 4), 1, 128, &k, &kb);
}

mx_status mx_gpu_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                     mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kg = mx_gpu_mat(gate), ku = mx_gpu_mat(up);
    uint32_t cols = (uint32_t)y->cols, a = act;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "glu", y->rows, mx_div_up(cols, 1024), 1, 256, &ky, &kg,
                  &ku, &cols, &a);
}

mx_status mx_gpu_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x), ky = mx_gpu_mat(y);
    uint32_t cols = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "add", x->rows, mx_div_up(cols, 1024), 1, 256, &kx, &ky,
                  &cols, &factor);
}

mx_status mx_gpu_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x), kg = mx_gpu_mat(gate);
    uint32_t cols = (uint32_t)x->cols, one = gate->cols == 1;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "sigmoid_gate", x->rows, mx_div_up(cols, 1024), 1, 256,
                  &kx, &kg, &cols, &one);
}

mx_status mx_gpu_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x);
    uint32_t cols = (uint32_t)y->cols, n = (uint32_t)x->rows;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "gather", y->rows, mx_div_up(cols, 1024), 1, 256, &ky,
                  &kx, &rows, &n, &cols);
}

mx_status mx_gpu_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err) {
    mx_k_mat kx = mx_gpu_mat(x);
    uint32_t cols = (uint32_t)x->cols;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "softcap", x->rows, mx_div_up(cols, 1024), 1, 256, &kx,
                  &cols, &c);
}

mx_status mx_gpu_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                            mx_err *err) {
    mx_k_mat ky = mx_gpu_mat(y), kx = mx_gpu_mat(x);
    uint32_t cols = (uint32_t)y->cols, n = (uint32_t)k;
    return LAUNCH((mx_gpu_dev *)dev, "elementwise", "expert_sum", y->rows, mx_div_up(cols, 1024), 1, 256, &ky,
                  &kx, &weights, &cols, &n);
}

mx_status mx_gpu_route(mx_dev *dev, const mx_route *r, mx_err *err) {
    mx_k_mat kl = mx_gpu_mat(&r->logits);
    uint32_t n = (uint32_t)r->n_expert, k = (uint32_t)r->k, kind = r->kind, normalize = r->normalize;
    float scale = r->scale;
    return LAUNCH((mx_gpu_dev *)dev, "route", n <= 256 ? "route_small" : "route_large", r->logits.rows, 1, 1,
                  32, &kl, (void *)&r->ids, (void *)&r->weights, &n, &k, &kind, &normalize, &scale);
}

mx_status mx_gpu_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err) {
    mx_k_conv k = {.x = mx_gpu_mat(&c->x),
                   .y = mx_gpu_mat(&c->y),
                   .w = c->w,
                   .bias = c->bias,
                   .state = c->state,
                   .channels = (uint32_t)c->x.cols,
                   .k_width = (uint32_t)c->k_width};
    mx_k_batch kb = mx_gpu_batch(b, 0);
    return LAUNCH((mx_gpu_dev *)dev, "recurrent", c->k_width <= 4 ? "conv_4" : "conv_32", b->n_seq,
                  mx_div_up(k.channels, 64), 1, 64, &k, &kb);
}

mx_status mx_gpu_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err) {
    if (r->dk > 1024)
        return mx_fail(err, MX_UNSUPPORTED, "delta rule: keys of %d values; the GPU takes up to 1024", r->dk);
    mx_k_delta k = {.q = mx_gpu_mat(&r->q),
                    .k = mx_gpu_mat(&r->k),
                    .v = mx_gpu_mat(&r->v),
                    .a = mx_gpu_mat(&r->a),
                    .b = mx_gpu_mat(&r->b),
                    .out = mx_gpu_mat(&r->out),
                    .a_log = r->a_log,
                    .dt_bias = r->dt_bias,
                    .state = r->state,
                    .n_v = (uint32_t)r->n_v,
                    .dk = (uint32_t)r->dk,
                    .dv = (uint32_t)r->dv,
                    .heads_per_key = (uint32_t)(r->n_v / r->n_k),
                    .q_scale = 1 / sqrtf((float)r->dk)};
    mx_k_batch kb = mx_gpu_batch(b, 0);
    return LAUNCH((mx_gpu_dev *)dev, "recurrent", "delta_rule", r->n_v, b->n_seq, mx_div_up(k.dv, 32),
                  32 * mx_div_up(k.dk, 32), &k, &kb);
}

mx_status mx_gpu_takes_top(const mx_dev *dev, const void *args, mx_err *err) {
    const mx_top *t = args;
    (void)dev;
    if (t->logits.cols > TOP_COLS * TOP_BLOCKS || t->logits.rows > MX_GPU_COUNTS)
        return mx_fail(err, MX_UNSUPPORTED, "top: %d rows of %d logits; the kernel takes %d of %d",
                       t->logits.rows, t->logits.cols, MX_GPU_COUNTS, TOP_COLS * TOP_BLOCKS);
    return MX_OK;
}

mx_status mx_gpu_top(mx_dev *dev, const void *args, mx_err *err) {
    const mx_top *t = args;
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    mx_k_mat kl = mx_gpu_mat(&t->logits);
    uint32_t cols = (uint32_t)t->logits.cols, k = (uint32_t)t->k, blocks = mx_div_up(cols, TOP_COLS);
    size_t lists = (size_t)t->logits.rows * blocks * k * 8, sums = (size_t)t->logits.rows * blocks * 8;
    MX_TRY(mx_gpu_scratch(d, lists + sums, err));
    char *list = d->scratch, *sum = list + lists;
    return LAUNCH(d, "top", "top", blocks, t->logits.rows, 1, 256, (void *)&t->ids, (void *)&t->values,
                  (void *)&t->lse, &kl, &list, &sum, &d->counts, &cols, &k);
}
