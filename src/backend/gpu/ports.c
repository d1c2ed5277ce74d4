/* ports.c - the fused ops of both GPU runtimes. */
#include "backend/gpu/gpu.h"
#include "backend/gpu/ops_math.h"

const mx_port mx_gpu_ports[] = {
    {MX_PORT_TOKEN_LOG_PROB, "any", NULL, mx_gpu_token_log_prob},
    {MX_PORT_QQ_EXPERT_MATMUL, "x is expanded once for all experts", NULL, NULL},
    {MX_PORT_PRODUCT, "up to 8 rows, or experts with few rows each", mx_gpu_takes_product, mx_gpu_product},
    {MX_PORT_PRODUCT, "of many rows the products' own time hides the rest", NULL, NULL},
    {MX_PORT_DECODE_ATTENTION, "NVIDIA: one token a sequence, heads of 64, 128 or 256, 2-byte caches",
     mx_gpu_takes_decode_attention, mx_gpu_decode_attention},
    {MX_PORT_DECODE_ATTENTION, "of many tokens each op's own time hides the rest", NULL, NULL},
    {MX_PORT_TOP, "up to 524,288 columns", mx_gpu_takes_top, mx_gpu_top},
    {0},
};
