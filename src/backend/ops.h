/* ops.h - the operations of a device, checked: what models call.
 *
 * Each function takes the arguments of the table's entry of the same name (backend.h says what it computes),
 * checks what the host can know of them (pointers, shapes, types, ranges of numbers; not the contents of
 * device memory), and calls the backend. MX_EINVAL with a sentence that names the op and the shapes, before
 * anything is queued; MX_UNSUPPORTED if the backend lacks the op. A batch of no rows is a success that does
 * nothing. */
#ifndef MX_BACKEND_OPS_H
#define MX_BACKEND_OPS_H
#include "backend/backend.h"

enum {
    MX_MAX_HEAD_DIM = 1024, // values in a head
    MX_MAX_CONV_WIDTH = 32, // taps of a convolution
    MX_MAX_EXPERT = 4096,   // experts in a layer
};

mx_status mx_op_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                      mx_err *err);
mx_status mx_op_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                         float eps,
                         mx_err *err); // add: NULL or a matrix whose p is NULL means none
mx_status mx_op_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err);
mx_status mx_op_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                           const mx_batch *b, mx_err *err);
mx_status mx_op_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err);
mx_status mx_op_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err);
mx_status mx_op_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                    mx_err *err);
mx_status mx_op_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err);
mx_status mx_op_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err);
mx_status mx_op_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err);
mx_status mx_op_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err);
mx_status mx_op_route(mx_dev *dev, const mx_route *r, mx_err *err);
mx_status mx_op_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                              const int32_t *ids, int n_row, int x_div, mx_err *err);
mx_status mx_op_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                           mx_err *err);
mx_status mx_op_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err);
mx_status mx_op_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err);
mx_status mx_op_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                           int hd, float eps, mx_err *err);
mx_status mx_op_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err);
mx_status mx_op_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err);
mx_status mx_op_download(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err);
mx_status mx_op_wait(mx_dev *dev, mx_err *err);

#endif
