/* ops.c - the checks in front of a backend: one function per op, each as long as what its backend relies on.
 * */
#include "backend/ops.h"
#include "backend/ops_check.h"

mx_status mx_op_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                      mx_err *err) {
    NEED_OP(embed);
    MX_TRY(check_qmat("embed", w, err));
    MX_TRY(check_mat(dev, "embed", "x", x, ANY, w->n_in, ONLY_F32, err));
    if (w->n_stack != 1) return mx_fail(err, MX_EINVAL, "embed: the weight is a stack of %d", w->n_stack);
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("embed", "ids", ids, err));
    MX_TRY(check_number("embed", "scale", scale, true, err));
    return dev->be->embed(dev, x, w, ids, scale, err);
}

mx_status mx_op_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                         float eps, mx_err *err) {
    static const mx_mat none;
    NEED_OP(rms_norm);
    MX_TRY(check_mat(dev, "rms_norm", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "rms_norm", "y", y, x->rows, x->cols, F32_OR_ACT, err));
    if (!add || !add->p)
        add = &none;
    else
        MX_TRY(check_mat(dev, "rms_norm", "add", add, x->rows, x->cols, F32_OR_ACT, err));
    MX_TRY(check_number("rms_norm", "eps", eps, eps >= 0, err));
    return x->rows ? dev->be->rms_norm(dev, y, x, add, w, eps, err) : MX_OK;
}

mx_status mx_op_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err) {
    NEED_OP(matmul);
    MX_TRY(check_range("matmul", "the number of products", n_mm, 1, 16, err));
    MX_TRY(check_ptr("matmul", "the list of products", mm, err));
    MX_TRY(check_mat(dev, "matmul", "x", x, ANY, ANY, F32_OR_ACT, err));
    for (int i = 0; i < n_mm; i++) {
        MX_TRY(check_qmat("matmul", mm[i].w, err));
        if (mm[i].w->n_stack != 1 || mm[i].w->n_in != x->cols)
            return mx_fail(err, MX_EINVAL, "matmul: x is [%d, %d], weight %d is [%d, %d, %d]", x->rows,
                           x->cols, i, mm[i].w->n_stack, mm[i].w->n_out, mm[i].w->n_in);
        MX_TRY(check_mat(dev, "matmul", "y", &mm[i].y, x->rows, mm[i].w->n_out, F32_OR_ACT, err));
    }
    return x->rows ? dev->be->matmul(dev, mm, n_mm, x, err) : MX_OK;
}

mx_status mx_op_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                           const mx_batch *b, mx_err *err) {
    NEED_OP(rope_table);
    MX_TRY(check_batch("rope_table", b, err));
    if (n_rot < 2 || n_rot % 2 || n_rot > MX_MAX_HEAD_DIM)
        return mx_fail(err, MX_EINVAL, "rope_table: %d rotated values are not pairs in 2..%d", n_rot,
                       MX_MAX_HEAD_DIM);
    MX_TRY(check_number("rope_table", "scale", scale, true, err));
    MX_TRY(check_ptr("rope_table", "inv_freq", inv_freq, err));
    if (b->n_tok == 0) return MX_OK;
    MX_TRY(check_ptr("rope_table", "cos_sin", cos_sin, err));
    return dev->be->rope_table(dev, cos_sin, inv_freq, n_rot, scale, b, err);
}

mx_status mx_op_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err) {
    static const char op[] = "rope_append";
    NEED_OP(rope_append);
    MX_TRY(check_ptr(op, "the arguments", a, err));
    MX_TRY(check_batch(op, b, err));
    MX_TRY(check_heads(op, a->n_head, a->n_kv, a->hd, err));
    MX_TRY(check_mat(dev, op, "q", &a->q, b->n_tok, a->n_head * a->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "k", &a->k, b->n_tok, a->n_kv * a->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "v", &a->v, b->n_tok, a->n_kv * a->hd, F32_OR_ACT, err));
    if (a->n_rot < 0 || a->n_rot % 2 || a->n_rot > a->hd)
        return mx_fail(err, MX_EINVAL, "%s: %d rotated values in heads of %d", op, a->n_rot, a->hd);
    if (b->n_tok == 0) return MX_OK;
    if (a->n_rot) MX_TRY(check_ptr(op, "cos_sin", a->cos_sin, err));
    MX_TRY(check_number(op, "eps", a->eps, a->eps >= 0, err));
    MX_TRY(check_kv(op, &a->kv, a->n_kv, a->hd, b, err));
    return dev->be->rope_append(dev, a, b, err);
}

mx_status mx_op_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err) {
    static const char op[] = "attention";
    NEED_OP(attention);
    MX_TRY(check_ptr(op, "the arguments", a, err));
    MX_TRY(check_batch(op, b, err));
    MX_TRY(check_heads(op, a->n_head, a->n_kv, a->hd, err));
    MX_TRY(check_mat(dev, op, "q", &a->q, b->n_tok, a->n_head * a->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "out", &a->out, b->n_tok, a->n_head * a->hd, F32_OR_ACT, err));
    MX_TRY(check_range(op, "the window", a->window, 0, INT32_MAX, err));
    MX_TRY(check_number(op, "scale", a->scale, true, err));
    MX_TRY(check_number(op, "softcap", a->softcap, a->softcap >= 0, err));
    if (b->n_tok == 0) return MX_OK;
    MX_TRY(check_kv(op, &a->kv, a->n_kv, a->hd, b, err));
    return dev->be->attention(dev, a, b, err);
}

mx_status mx_op_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                    mx_err *err) {
    NEED_OP(glu);
    MX_TRY(check_mat(dev, "glu", "y", y, ANY, ANY, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, "glu", "gate", gate, y->rows, y->cols, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, "glu", "up", up, y->rows, y->cols, F32_OR_ACT, err));
    MX_TRY(check_range("glu", "the activation", (long long)act, 0, MX_ACT_RELU2, err));
    return y->rows ? dev->be->glu(dev, y, gate, up, act, err) : MX_OK;
}

mx_status mx_op_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err) {
    NEED_OP(add);
    MX_TRY(check_mat(dev, "add", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "add", "y", y, x->rows, x->cols, F32_OR_ACT, err));
    MX_TRY(check_number("add", "factor", factor, true, err));
    return x->rows ? dev->be->add(dev, x, y, factor, err) : MX_OK;
}

mx_status mx_op_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err) {
    NEED_OP(sigmoid_gate);
    MX_TRY(check_mat(dev, "sigmoid_gate", "x", x, ANY, ANY, F32_OR_ACT, err));
    int cols = gate && gate->cols == 1 ? 1 : x->cols;
    MX_TRY(check_mat(dev, "sigmoid_gate", "gate", gate, x->rows, cols, F32_OR_ACT, err));
    return x->rows ? dev->be->sigmoid_gate(dev, x, gate, err) : MX_OK;
}

mx_status mx_op_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err) {
    NEED_OP(gather);
    MX_TRY(check_mat(dev, "gather", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "gather", "y", y, ANY, x->cols, ONLY_F32, err));
    if (y->rows == 0) return MX_OK;
    MX_TRY(check_range("gather", "the number of rows in x", x->rows, 1, INT32_MAX, err));
    MX_TRY(check_ptr("gather", "rows", rows, err));
    return dev->be->gather(dev, y, x, rows, err);
}

mx_status mx_op_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err) {
    NEED_OP(softcap);
    MX_TRY(check_mat(dev, "softcap", "x", x, ANY, ANY, F32_OR_ACT, err));
    MX_TRY(check_number("softcap", "c", c, c > 0, err));
    return x->rows ? dev->be->softcap(dev, x, c, err) : MX_OK;
}

mx_status mx_op_route(mx_dev *dev, const mx_route *r, mx_err *err) {
    NEED_OP(route);
    MX_TRY(check_ptr("route", "the arguments", r, err));
    MX_TRY(check_range("route", "the number of experts", r->n_expert, 1, MX_MAX_EXPERT, err));
    MX_TRY(check_range("route", "k", r->k, 1, r->n_expert, err));
    MX_TRY(check_range("route", "the kind", (long long)r->kind, 0, MX_ROUTE_TOPK_SOFTMAX, err));
    MX_TRY(check_number("route", "scale", r->scale, true, err));
    MX_TRY(check_mat(dev, "route", "logits", &r->logits, ANY, r->n_expert, ONLY_F32, err));
    if (r->logits.rows == 0) return MX_OK;
    MX_TRY(check_ptr("route", "ids", r->ids, err));
    MX_TRY(check_ptr("route", "weights", r->weights, err));
    return dev->be->route(dev, r, err);
}

mx_status mx_op_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                              const int32_t *ids, int n_row, int x_div, mx_err *err) {
    static const char op[] = "expert_matmul";
    NEED_OP(expert_matmul);
    MX_TRY(check_range(op, "the number of products", n_mm, 1, 16, err));
    MX_TRY(check_ptr(op, "the list of products", mm, err));
    MX_TRY(check_mat(dev, op, "x", x, ANY, ANY, F32_OR_ACT, err));
    if (n_row < 0 || x_div < 1 || (int64_t)x->rows * x_div != n_row)
        return mx_fail(err, MX_EINVAL, "%s: %d rows of x serve %d products each, but %d are asked for", op,
                       x->rows, x_div, n_row);
    for (int i = 0; i < n_mm; i++) {
        MX_TRY(check_qmat(op, mm[i].w, err));
        if (mm[i].w->n_in != x->cols || mm[i].w->n_stack != mm[0].w->n_stack)
            return mx_fail(err, MX_EINVAL, "%s: x is [%d, %d], weight %d is [%d, %d, %d]", op, x->rows,
                           x->cols, i, mm[i].w->n_stack, mm[i].w->n_out, mm[i].w->n_in);
        MX_TRY(check_mat(dev, op, "y", &mm[i].y, n_row, mm[i].w->n_out, F32_OR_ACT, err));
    }
    if (n_row == 0) return MX_OK;
    MX_TRY(check_ptr(op, "ids", ids, err));
    return dev->be->expert_matmul(dev, mm, n_mm, x, ids, n_row, x_div, err);
}

mx_status mx_op_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                           mx_err *err) {
    NEED_OP(expert_sum);
    MX_TRY(check_range("expert_sum", "k", k, 1, MX_MAX_EXPERT, err));
    MX_TRY(check_mat(dev, "expert_sum", "y", y, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_range("expert_sum", "the number of rows", y->rows, 0, INT32_MAX / k, err));
    MX_TRY(check_mat(dev, "expert_sum", "x", x, y->rows * k, y->cols, F32_OR_ACT, err));
    if (y->rows == 0) return MX_OK;
    MX_TRY(check_ptr("expert_sum", "weights", weights, err));
    return dev->be->expert_sum(dev, y, x, weights, k, err);
}

mx_status mx_op_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err) {
    NEED_OP(conv);
    MX_TRY(check_ptr("conv", "the arguments", c, err));
    MX_TRY(check_batch("conv", b, err));
    MX_TRY(check_mat(dev, "conv", "x", &c->x, b->n_tok, ANY, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, "conv", "y", &c->y, b->n_tok, c->x.cols, F32_OR_ACT, err));
    MX_TRY(check_range("conv", "k_width", c->k_width, 1, MX_MAX_CONV_WIDTH, err));
    if (b->n_tok == 0) return MX_OK;
    MX_TRY(check_ptr("conv", "w", c->w, err));
    MX_TRY(check_ptr("conv", "state", c->state, err));
    MX_TRY(check_ptr("conv", "the batch's slot", b->slot, err));
    return dev->be->conv(dev, c, b, err);
}

mx_status mx_op_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err) {
    static const char op[] = "delta_rule";
    NEED_OP(delta_rule);
    MX_TRY(check_ptr(op, "the arguments", r, err));
    MX_TRY(check_batch(op, b, err));
    MX_TRY(check_range(op, "dk", r->dk, 1, MX_MAX_HEAD_DIM, err));
    MX_TRY(check_range(op, "dv", r->dv, 1, MX_MAX_HEAD_DIM, err));
    if (r->n_k < 1 || r->n_v < 1 || r->n_v % r->n_k || r->n_v > INT32_MAX / MX_MAX_HEAD_DIM)
        return mx_fail(err, MX_EINVAL, "%s: %d value heads cannot share %d key heads", op, r->n_v, r->n_k);
    MX_TRY(check_mat(dev, op, "q", &r->q, b->n_tok, r->n_k * r->dk, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "k", &r->k, b->n_tok, r->n_k * r->dk, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "v", &r->v, b->n_tok, r->n_v * r->dv, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "a", &r->a, b->n_tok, r->n_v, ONLY_F32, err));
    MX_TRY(check_mat(dev, op, "b", &r->b, b->n_tok, r->n_v, ONLY_F32, err));
    MX_TRY(check_mat(dev, op, "out", &r->out, b->n_tok, r->n_v * r->dv, F32_OR_ACT, err));
    if (b->n_tok == 0) return MX_OK;
    MX_TRY(check_ptr(op, "a_log", r->a_log, err));
    MX_TRY(check_ptr(op, "dt_bias", r->dt_bias, err));
    MX_TRY(check_ptr(op, "state", r->state, err));
    MX_TRY(check_ptr(op, "the batch's slot", b->slot, err));
    return dev->be->delta_rule(dev, r, b, err);
}

mx_status mx_op_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                           int hd, float eps, mx_err *err) {
    NEED_OP(gated_norm);
    MX_TRY(check_mat(dev, "gated_norm", "x", x, ANY, ANY, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, "gated_norm", "y", y, x->rows, x->cols, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, "gated_norm", "z", z, x->rows, x->cols, F32_OR_ACT, err));
    if (hd < 1 || x->cols % hd)
        return mx_fail(err, MX_EINVAL, "gated_norm: x is [%d, %d], which heads of %d do not divide", x->rows,
                       x->cols, hd);
    MX_TRY(check_ptr("gated_norm", "w", w, err));
    MX_TRY(check_number("gated_norm", "eps", eps, eps >= 0, err));
    return x->rows ? dev->be->gated_norm(dev, y, x, z, w, hd, eps, err) : MX_OK;
}

mx_status mx_op_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err) {
    NEED_OP(clear);
    if (bytes == 0) return MX_OK;
    MX_TRY(check_ptr("clear", "the memory", p, err));
    return dev->be->clear(dev, p, bytes, err);
}

mx_status mx_op_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err) {
    NEED_OP(upload);
    if (bytes == 0) return MX_OK;
    MX_TRY(check_ptr("upload", "the destination", p, err));
    MX_TRY(check_ptr("upload", "the source", host, err));
    return dev->be->upload(dev, p, host, bytes, err);
}

mx_status mx_op_download(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err) {
    NEED_OP(download);
    if (bytes == 0) return MX_OK;
    MX_TRY(check_ptr("download", "the destination", host, err));
    MX_TRY(check_ptr("download", "the source", p, err));
    return dev->be->download(dev, host, p, bytes, err);
}

mx_status mx_op_wait(mx_dev *dev, mx_err *err) {
    NEED_OP(wait);
    return dev->be->wait(dev, err);
}
