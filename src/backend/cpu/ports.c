/* ports.c - the CPU's fused ops. */
#include "backend/cpu/ops_impl.h"
#include "backend/ports.h"

const mx_port mx_cpu_ports[] = {
    {MX_PORT_TOKEN_LOG_PROB, "the sums are read once in either case", NULL, NULL},
    {MX_PORT_QQ_EXPERT_MATMUL, "x is expanded once for all experts", NULL, NULL},
    {MX_PORT_PRODUCT, "each product's time hides the rest", NULL, NULL},
    {MX_PORT_DECODE_ATTENTION, "each op's own time hides the rest", NULL, NULL},
    {MX_PORT_TOP, "any", NULL, mx_cpu_top},
    {0},
};
