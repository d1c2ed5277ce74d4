/* ops_fused.h - the ports that a forward pass asks for, checked: args as ports.h says. MX_UNSUPPORTED, with nothing queued, where
 * this device composes them; then the caller does. */
#ifndef MX_BACKEND_OPS_FUSED_H
#define MX_BACKEND_OPS_FUSED_H
#include "backend/ports.h"

mx_status mx_op_product(mx_dev *dev, const mx_product *p, mx_err *err);
mx_status mx_op_decode_attention(mx_dev *dev, const mx_decode_attention *a, mx_err *err);
mx_status mx_op_top(mx_dev *dev, const mx_top *t, mx_err *err);

#endif
