/* ops_math.h - ops on rows of numbers beside those of a forward pass: sums, orders, transforms, quantization.
 *
 * A backend lists them in one table, `math`; a NULL entry is an op that it lacks. The mx_op_* functions check arguments as those
 * of ops.h do, and call it. Matrices are f32 in memory of the device; y may be x only where it is said. Rows are independent. */
#ifndef MX_BACKEND_OPS_MATH_H
#define MX_BACKEND_OPS_MATH_H
#include "backend/ops.h"
#include "backend/ports.h"

typedef enum {
    MX_FFT,         // x [n complex] -> y [n complex]: y[k] = sum of x[j] exp(-2 pi i j k / n)
    MX_FFT_INVERSE, // with exp(+...), divided by n
    MX_FFT_REAL,    // x [n real] -> y [n / 2 + 1 complex], the half that is not a mirror image
    MX_FFT_REAL_INVERSE, // x [n / 2 + 1 complex] -> y [n real]; imaginary parts of x[0] and, n even, x[n / 2] count as 0
} mx_fft;

enum {
    MX_FFT_LONGEST = 131072, // points
    MX_HADAMARD_LONGEST = 1 << 20,
};

struct mx_math {
    /* x += add (if add->p), then y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b; w, b [d] or NULL; y may be x */
    mx_status (*layer_norm)(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                            const float *b, float eps, mx_err *err);
    /* y = exp(scale x) / sum(exp(scale x)); NaN for a row that holds NaN or +infinity, or only -infinity. y may be x */
    mx_status (*softmax)(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
    mx_status (*logsumexp)(mx_dev *dev, float *out, const mx_mat *x,
                           mx_err *err);                                     // out [rows], NaN as softmax
    mx_status (*sum)(mx_dev *dev, float *out, const mx_mat *x, mx_err *err); // out [rows]
    /* The largest of each row and its column, the lower one of equals; a NaN, the first, if there is one. [rows] */
    mx_status (*argmax)(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err);
    /* The k largest of each row in falling order, of equals the lower column first, NaN last. [rows, k] */
    mx_status (*top_k)(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err);
    /* y = each row in rising (or falling) order, ids [rows, cols] = the columns they come from. Equals (0 and -0 are) keep their
     * order, NaN is last either way. y is not x. */
    mx_status (*sort)(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling, mx_err *err);
    /* out [rows, cols] = how many of `edges` (a rising row for all of v, or one for each row) are below v (right: not above v).
     * NaN is above everything. */
    mx_status (*searchsorted)(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                              mx_err *err);
    /* n of the form 2^a 3^b 5^c 7^d up to MX_FFT_LONGEST; a complex number is two columns, real then imaginary. y is not x */
    mx_status (*fft)(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err);
    /* y = scale * H x for rows of 2^k or m 2^k, m = 12, 20, 28: H is (a matrix of order m) kron (Sylvester's of 2^k). y may be x */
    mx_status (*hadamard)(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
    /* Write codes, scales and biases of w from x [n_stack * n_out, n_in], the bytes of mx_quantize() */
    mx_status (*quantize)(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err);
    mx_status (*dequantize)(mx_dev *dev, const mx_mat *y, const mx_qmat *w,
                            mx_err *err); // y [n_stack * n_out, n_in]
    /* out[i] = x[i, ids[i]] - less[i]; NaN for a column that does not exist. [rows] */
    mx_status (*pick)(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                      mx_err *err);
};

mx_status mx_op_layer_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                           const float *b, float eps, mx_err *err); // add: NULL means none
mx_status mx_op_softmax(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
mx_status mx_op_logsumexp(mx_dev *dev, float *out, const mx_mat *x, mx_err *err);
mx_status mx_op_sum(mx_dev *dev, float *out, const mx_mat *x, mx_err *err);
mx_status mx_op_argmax(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err);
mx_status mx_op_top_k(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err);
mx_status mx_op_sort(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling, mx_err *err);
mx_status mx_op_searchsorted(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                             mx_err *err);
mx_status mx_op_fft(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err);
mx_status mx_op_hadamard(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
mx_status mx_op_quantize(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err);
mx_status mx_op_dequantize(mx_dev *dev, const mx_mat *y, const mx_qmat *w, mx_err *err);
mx_status mx_op_pick(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                     mx_err *err);

/* Fused ops (ports.h), composed where the device has no port that takes them. */
mx_status mx_op_token_log_prob(mx_dev *dev, const mx_token_log_prob *a, mx_err *err);
mx_status mx_op_qq_expert_matmul(mx_dev *dev, const mx_qq_expert_matmul *a, mx_err *err);

/* n as factors of 8 and 2 to 7 (no 6), the order of the passes; how many, at most 17, or 0 if n has another factor. */
int mx_fft_factors(int n, uint8_t factors[17]);
/* cols = m 2^k: m is 1, 12, 20 or 28; false for another length. */
bool mx_hadamard_factors(int cols, int *m, int *k);

#endif
