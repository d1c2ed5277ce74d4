/* ports.c - the fused ops of both GPU runtimes. */
#include "backend/gpu/gpu.h"
#include "backend/ports.h"

const mx_port mx_gpu_ports[] = {
    {MX_PORT_QQ_EXPERT_MATMUL, "x is expanded once for all experts", NULL, NULL},
    {0},
};
