/* ops_math.h - the GPU's ops on rows of numbers: their table, and those that are ports. */
#ifndef MX_BACKEND_GPU_OPS_MATH_H
#define MX_BACKEND_GPU_OPS_MATH_H
#include "backend/gpu/gpu.h"
#include "backend/ops_math.h"

extern const mx_math mx_gpu_math;

mx_status mx_gpu_token_log_prob(mx_dev *dev, const void *args, mx_err *err); // mx_token_log_prob

#endif
