/* ops_impl.h - the CPU's ops besides matrix products, as cpu.c puts them into its table. */
#ifndef MX_CPU_OPS_IMPL_H
#define MX_CPU_OPS_IMPL_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"
#include "backend/ops_math.h"

/* mx_pool_run, unless the work (about one unit for a value read and used) is too small to wake others for it.
 * */
enum { MX_CPU_SMALL = 16384 };
void mx_cpu_run(mx_cpu_dev *d, void (*fn)(void *arg, int i, int worker), void *arg, int n, int grain,
                double work);

mx_status mx_cpu_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                       mx_err *err);
mx_status mx_cpu_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                          float eps, mx_err *err);
mx_status mx_cpu_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                            const mx_batch *b, mx_err *err);
mx_status mx_cpu_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err);
mx_status mx_cpu_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err);
mx_status mx_cpu_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                     mx_err *err);
mx_status mx_cpu_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err);
mx_status mx_cpu_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err);
mx_status mx_cpu_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err);
mx_status mx_cpu_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err);
mx_status mx_cpu_route(mx_dev *dev, const mx_route *r, mx_err *err);
mx_status mx_cpu_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                            mx_err *err);
mx_status mx_cpu_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err);
mx_status mx_cpu_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err);
mx_status mx_cpu_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                            int hd, float eps, mx_err *err);

/* math.c, transform.c: the table `math` */
mx_status mx_cpu_layer_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                            const float *b, float eps, mx_err *err);
mx_status mx_cpu_softmax(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
mx_status mx_cpu_logsumexp(mx_dev *dev, float *out, const mx_mat *x, mx_err *err);
mx_status mx_cpu_sum(mx_dev *dev, float *out, const mx_mat *x, mx_err *err);
mx_status mx_cpu_argmax(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, mx_err *err);
mx_status mx_cpu_top_k(mx_dev *dev, int32_t *ids, float *values, const mx_mat *x, int k, mx_err *err);
mx_status mx_cpu_sort(mx_dev *dev, const mx_mat *y, int32_t *ids, const mx_mat *x, bool falling, mx_err *err);
mx_status mx_cpu_searchsorted(mx_dev *dev, int32_t *out, const mx_mat *edges, const mx_mat *v, bool right,
                              mx_err *err);
mx_status mx_cpu_fft(mx_dev *dev, const mx_mat *y, const mx_mat *x, int n, mx_fft kind, mx_err *err);
mx_status mx_cpu_hadamard(mx_dev *dev, const mx_mat *y, const mx_mat *x, float scale, mx_err *err);
mx_status mx_cpu_quantize(mx_dev *dev, const mx_qmat *w, const mx_mat *x, mx_err *err);
mx_status mx_cpu_dequantize(mx_dev *dev, const mx_mat *y, const mx_qmat *w, mx_err *err);
mx_status mx_cpu_pick(mx_dev *dev, float *out, const mx_mat *x, const int32_t *ids, const float *less,
                      mx_err *err);

/* Ports: args as ports.h names them. */
mx_status mx_cpu_top(mx_dev *dev, const void *args, mx_err *err);

#endif
