/* ops_fused.c - the checks in front of the ports that a forward pass asks for. */
#include "backend/ops_fused.h"
#include "backend/ops_check.h"

mx_status mx_op_product(mx_dev *dev, const mx_product *p, mx_err *err) {
    static const char op[] = "product";
    const mx_mat *x = &p->x;
    MX_TRY(check_range(op, "the number of products", p->n_mm, 1, 16, err));
    MX_TRY(check_ptr(op, "the list of products", p->mm, err));
    MX_TRY(check_mat(dev, op, "x", x, ANY, ANY, F32_OR_ACT, err));
    MX_TRY(check_number(op, "eps", p->eps, p->eps >= 0, err));
    MX_TRY(check_range(op, "the activation", (long long)p->act, 0, MX_ACT_RELU2, err));
    if (p->glu && p->n_mm != 2)
        return mx_fail(err, MX_EINVAL, "%s: a gated unit of %d products", op, p->n_mm);
    if (p->add && (p->n_mm != 1 || p->glu))
        return mx_fail(err, MX_EINVAL, "%s: %d products cannot be added to one y", op, p->n_mm);
    if (p->weights && (!p->ids || !p->add))
        return mx_fail(err, MX_EINVAL, "%s: weights of experts without experts or without a sum", op);
    if (p->ids) MX_TRY(check_range(op, "the experts of a row", p->k, 1, MX_MAX_EXPERT, err));
    const int k = p->ids ? p->k : 1, rows = p->weights ? x->rows / k : p->ids ? x->rows * k : x->rows;
    if (p->weights && x->rows % k)
        return mx_fail(err, MX_EINVAL, "%s: %d rows of x for %d experts each", op, x->rows, k);
    for (int i = 0; i < p->n_mm; i++) {
        const mx_qmat *w = p->mm[i].w;
        MX_TRY(check_qmat(op, w, err));
        if (w->n_in != x->cols || (!p->ids && w->n_stack != 1) || w->n_stack != p->mm[0].w->n_stack)
            return mx_fail(err, MX_EINVAL, "%s: x is [%d, %d], weight %d is [%d, %d, %d]", op, x->rows,
                           x->cols, i, w->n_stack, w->n_out, w->n_in);
        if (p->glu && w->n_out != p->mm[0].w->n_out)
            return mx_fail(err, MX_EINVAL, "%s: the gate has %d outputs, up %d", op, p->mm[0].w->n_out,
                           w->n_out);
        if (p->glu && i == 1) continue; // its y is not used
        MX_TRY(check_mat(dev, op, "y", &p->mm[i].y, rows, w->n_out, p->add ? ONLY_F32 : F32_OR_ACT, err));
    }
    return x->rows ? mx_port_run(dev, MX_PORT_PRODUCT, p, err) : MX_OK;
}

mx_status mx_op_decode_attention(mx_dev *dev, const mx_decode_attention *a, mx_err *err) {
    static const char op[] = "decode_attention";
    const mx_rope_append *r = &a->rope;
    const mx_attention *t = &a->attention;
    const mx_batch *b = a->b;
    MX_TRY(check_batch(op, b, err));
    MX_TRY(check_heads(op, r->n_head, r->n_kv, r->hd, err));
    if (t->n_head != r->n_head || t->n_kv != r->n_kv || t->hd != r->hd || t->kv.k != r->kv.k)
        return mx_fail(err, MX_EINVAL, "%s: the rotation and the attention are of different layers", op);
    MX_TRY(check_mat(dev, op, "q", &r->q, b->n_tok, r->n_head * r->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "k", &r->k, b->n_tok, r->n_kv * r->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "v", &r->v, b->n_tok, r->n_kv * r->hd, F32_OR_ACT, err));
    MX_TRY(check_mat(dev, op, "out", &t->out, b->n_tok, r->n_head * r->hd, F32_OR_ACT, err));
    if (r->n_rot < 0 || r->n_rot % 2 || r->n_rot > r->hd)
        return mx_fail(err, MX_EINVAL, "%s: %d rotated values in heads of %d", op, r->n_rot, r->hd);
    MX_TRY(check_range(op, "the window", t->window, 0, INT32_MAX, err));
    MX_TRY(check_number(op, "scale", t->scale, true, err));
    MX_TRY(check_number(op, "softcap", t->softcap, t->softcap >= 0, err));
    MX_TRY(check_number(op, "eps", r->eps, r->eps >= 0, err));
    if (b->n_tok == 0) return MX_OK;
    if (r->n_rot) MX_TRY(check_ptr(op, "cos_sin", r->cos_sin, err));
    MX_TRY(check_kv(op, &r->kv, r->n_kv, r->hd, b, err));
    return mx_port_run(dev, MX_PORT_DECODE_ATTENTION, a, err);
}

mx_status mx_op_top(mx_dev *dev, const mx_top *t, mx_err *err) {
    MX_TRY(check_mat(dev, "top", "logits", &t->logits, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_range("top", "k", t->k, 1, t->logits.cols < MX_MAX_TOP ? t->logits.cols : MX_MAX_TOP, err));
    if (t->logits.rows == 0) return MX_OK;
    MX_TRY(check_ptr("top", "ids", t->ids, err));
    MX_TRY(check_ptr("top", "values", t->values, err));
    MX_TRY(check_ptr("top", "lse", t->lse, err));
    return mx_port_run(dev, MX_PORT_TOP, t, err);
}
