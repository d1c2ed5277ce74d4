/* ops_math.c - the checks in front of the ops on rows of numbers, and the compositions of fused ones. */
#include "backend/ops_math.h"
#include "backend/ops_check.h"

#define NEED_MATH(op)                                                                                        \
    do {                                                                                                     \
        if (!dev->be->math || !dev->be->math->op)                                                            \
            return mx_fail(err, MX_UNSUPPORTED, "%s: the %s backend has no such op", #op, dev->be->name);    \
    } while (0)

static mx_status apart(const char *op, const mx_mat *y, const mx_mat *x, mx_err *err) {
    return y->p != x->p ? MX_OK : mx_fail(err, MX_EINVAL, "%s: y cannot be x", op);
}

mx_status mx_op_layer_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                           const float *b, float eps, mx_err *err) {
    static const mx_mat none;
    NEED_MATH(layer_norm);
    MX_TRY(check_mat(dev, "layer_norm", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "layer_norm", "y", y, x->rows, x->cols, ONLY_F32, err));
    if (!add || !add->p)
        add = &none;
    else
        MX_TRY(check_mat(dev, "layer_norm", "add", add, x->rows, x->cols, ONLY_F32, err));
    MX_TRY(check_number("layer_norm", "eps", eps, eps >= 0, err));
    return x->rows ? dev->be->math->layer_norm(dev, y, x, add, w, b, eps, err) : MX_OK;
}

mx_status mx_op_softmax(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    NEED_MATH(softmax);
    MX_TRY(check_mat(dev, "softmax", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "softmax", "y", y, x->rows, x->cols, ONLY_F32, err));
    MX_TRY(check_number("softmax", "scale", scale, scale > 0, err));
    return x->rows ? dev->be->math->softmax(dev, y, x, scale, err) : MX_OK;
}

mx_status mx_op_logsumexp(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    NEED_MATH(logsumexp);
    MX_TRY(check_mat(dev, "logsumexp", "x", x, ANY, ANY, ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("logsumexp", "out", out, err));
    return dev->be->math->logsumexp(dev, out, x, err);
}

mx_status mx_op_sum(mx_dev *dev, float *out, const mx_mat *x, mx_err *err) {
    NEED_MATH(sum);
    MX_TRY(check_mat(dev, "sum", "x", x, ANY, ANY, ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("sum", "out", out, err));
    return dev->be->math->sum(dev, out, x, err);
}

mx_status mx_op_argmax(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err) {
    NEED_MATH(argmax);
    MX_TRY(check_mat(dev, "argmax", "x", x, ANY, ANY, ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("argmax", "ids", ids, err));
    MX_TRY(check_ptr("argmax", "values", values, err));
    return dev->be->math->argmax(dev, ids, values, x, err);
}

mx_status mx_op_top_k(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err) {
    NEED_MATH(top_k);
    MX_TRY(check_mat(dev, "top_k", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_range("top_k", "k", k, 1, x->cols, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("top_k", "ids", ids, err));
    MX_TRY(check_ptr("top_k", "values", values, err));
    return dev->be->math->top_k(dev, ids, values, x, k, err);
}

mx_status mx_op_sort(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling, mx_err *err) {
    NEED_MATH(sort);
    MX_TRY(check_mat(dev, "sort", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "sort", "y", y, x->rows, x->cols, ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(apart("sort", y, x, err));
    MX_TRY(check_ptr("sort", "ids", ids, err));
    return dev->be->math->sort(dev, y, ids, x, falling, err);
}

mx_status mx_op_searchsorted(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                             mx_err *err) {
    NEED_MATH(searchsorted);
    MX_TRY(check_mat(dev, "searchsorted", "v", v, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "searchsorted", "edges", edges, edges && edges->rows == 1 ? 1 : v->rows, ANY,
                     ONLY_F32, err));
    if (v->rows == 0) return MX_OK;
    MX_TRY(check_ptr("searchsorted", "out", out, err));
    return dev->be->math->searchsorted(dev, out, edges, v, right, err);
}

int mx_fft_factors(int n, uint8_t factors[17]) {
    static const uint8_t radices[] = {8, 7, 5, 4, 3, 2};
    int count = 0;
    if (n < 1) return 0;
    if (n == 1) factors[count++] = 1;
    for (size_t i = 0; i < countof(radices); i++)
        for (; n % radices[i] == 0; n /= radices[i]) {
            if (count == 17) return 0;
            factors[count++] = radices[i];
        }
    return n == 1 ? count : 0;
}

mx_status mx_op_fft(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err) {
    uint8_t factors[17];
    NEED_MATH(fft);
    MX_TRY(check_range("fft", "the kind", (long long)kind, 0, MX_FFT_REAL_INVERSE, err));
    MX_TRY(check_range("fft", "the length", n, 1, MX_FFT_LONGEST, err));
    if (!mx_fft_factors(n, factors))
        return mx_fail(err, MX_UNSUPPORTED,
                       "fft: %d points have a factor beside 2, 3, 5 and 7; pad to a length without", n);
    const int half = 2 * (n / 2 + 1);
    MX_TRY(check_mat(dev, "fft", "x", x, ANY,
                     kind == MX_FFT_REAL           ? n
                     : kind == MX_FFT_REAL_INVERSE ? half
                                                   : 2 * n,
                     ONLY_F32, err));
    MX_TRY(check_mat(dev, "fft", "y", y, x->rows,
                     kind == MX_FFT_REAL           ? half
                     : kind == MX_FFT_REAL_INVERSE ? n
                                                   : 2 * n,
                     ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(apart("fft", y, x, err));
    return dev->be->math->fft(dev, y, x, n, kind, err);
}

bool mx_hadamard_factors(int cols, int *m, int *k) {
    static const int orders[] = {1, 12, 20, 28};
    for (size_t i = 0; i < countof(orders); i++) {
        int rest = cols / orders[i];
        if (cols % orders[i] || rest < 1 || (rest & (rest - 1))) continue;
        *m = orders[i];
        *k = __builtin_ctz((unsigned)rest);
        return true;
    }
    return false;
}

mx_status mx_op_hadamard(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err) {
    int m, k;
    NEED_MATH(hadamard);
    MX_TRY(check_mat(dev, "hadamard", "x", x, ANY, ANY, ONLY_F32, err));
    MX_TRY(check_mat(dev, "hadamard", "y", y, x->rows, x->cols, ONLY_F32, err));
    MX_TRY(check_number("hadamard", "scale", scale, true, err));
    MX_TRY(check_range("hadamard", "the length", x->cols, 1, MX_HADAMARD_LONGEST, err));
    if (!mx_hadamard_factors(x->cols, &m, &k))
        return mx_fail(err, MX_UNSUPPORTED,
                       "hadamard: rows of %d are neither 2^k nor m * 2^k with m = 12, 20 or 28", x->cols);
    return x->rows ? dev->be->math->hadamard(dev, y, x, scale, err) : MX_OK;
}

static mx_status check_expanded(mx_dev *dev, const char *op, const char *name, const mx_mat *x,
                                const mx_qmat *w, mx_err *err) {
    MX_TRY(check_qmat(op, w, err));
    MX_TRY(check_range(op, "the number of rows", (long long)w->n_stack * w->n_out, 1, INT32_MAX, err));
    return check_mat(dev, op, name, x, w->n_stack * w->n_out, w->n_in, ONLY_F32, err);
}

mx_status mx_op_quantize(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err) {
    NEED_MATH(quantize);
    MX_TRY(check_expanded(dev, "quantize", "x", x, w, err));
    if (w->kind == MX_QUANT_NONE)
        return mx_fail(err, MX_EINVAL, "quantize: \"none\" is not a way to quantize");
    return dev->be->math->quantize(dev, w, x, err);
}

mx_status mx_op_dequantize(mx_dev *dev, const mx_mat *y, const mx_qmat *w, mx_err *err) {
    NEED_MATH(dequantize);
    MX_TRY(check_expanded(dev, "dequantize", "y", y, w, err));
    return dev->be->math->dequantize(dev, y, w, err);
}

mx_status mx_op_pick(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                     mx_err *err) {
    NEED_MATH(pick);
    MX_TRY(check_mat(dev, "pick", "x", x, ANY, ANY, ONLY_F32, err));
    if (x->rows == 0) return MX_OK;
    MX_TRY(check_ptr("pick", "out", out, err));
    MX_TRY(check_ptr("pick", "ids", ids, err));
    MX_TRY(check_ptr("pick", "less", less, err));
    return dev->be->math->pick(dev, out, x, ids, less, err);
}

/* ---- fused ops ------------------------------------------------------------------------------------------ */

mx_status mx_op_token_log_prob(mx_dev *dev, const mx_token_log_prob *a, mx_err *err) {
    static const char op[] = "token_log_prob";
    MX_TRY(check_ptr(op, "the arguments", a, err));
    MX_TRY(check_mat(dev, op, "logits", &a->logits, ANY, ANY, ONLY_F32, err));
    if (a->logits.rows == 0) return MX_OK;
    MX_TRY(check_ptr(op, "ids", a->ids, err));
    MX_TRY(check_ptr(op, "out", a->out, err));
    MX_TRY(check_ptr(op, "work", a->work, err));
    mx_status st = mx_port_run(dev, MX_PORT_TOKEN_LOG_PROB, a, err);
    if (st != MX_UNSUPPORTED) return st;
    MX_TRY(mx_op_logsumexp(dev, a->work, &a->logits, err));
    return mx_op_pick(dev, a->out, &a->logits, a->ids, a->work, err);
}

mx_status mx_op_qq_expert_matmul(mx_dev *dev, const mx_qq_expert_matmul *a, mx_err *err) {
    static const char op[] = "qq_expert_matmul";
    MX_TRY(check_ptr(op, "the arguments", a, err));
    MX_TRY(check_qmat(op, a->w, err));
    MX_TRY(check_qmat(op, a->x, err));
    if (a->x->n_stack != 1 || a->x->n_in != a->w->n_in || a->x_div < 1 ||
        (int64_t)a->x->n_out * a->x_div != a->n_row)
        return mx_fail(
            err, MX_EINVAL, "%s: x is [%d, %d, %d] for %d products a row, the weights are [%d, %d, %d]", op,
            a->x->n_stack, a->x->n_out, a->x->n_in, a->x_div, a->w->n_stack, a->w->n_out, a->w->n_in);
    MX_TRY(check_mat(dev, op, "y", &a->y, a->n_row, a->w->n_out, ONLY_F32, err));
    MX_TRY(check_ptr(op, "ids", a->ids, err));
    MX_TRY(check_ptr(op, "work", a->work, err));
    mx_status st = mx_port_run(dev, MX_PORT_QQ_EXPERT_MATMUL, a, err);
    if (st != MX_UNSUPPORTED) return st;
    const mx_mat x = {MX_F32, a->x->n_out, a->x->n_in, a->x->n_in, a->work};
    const mx_expert_matmul mm = {.y = a->y, .w = a->w};
    MX_TRY(mx_op_dequantize(dev, &x, a->x, err));
    return mx_op_expert_matmul(dev, &mm, 1, &x, a->ids, a->n_row, a->x_div, err);
}
