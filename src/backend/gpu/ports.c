/* ports.c - the fused ops of both GPU runtimes. */
#include "backend/gpu/gpu.h"
#include "backend/gpu/ops_math.h"

const mx_port mx_gpu_ports[] = {
    {MX_PORT_TOKEN_LOG_PROB, "any", NULL, mx_gpu_token_log_prob},
    {MX_PORT_QQ_EXPERT_MATMUL, "x is expanded once for all experts", NULL, NULL},
    {0},
};
