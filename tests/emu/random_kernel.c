/* random_kernel.c - random.h's functions as kernels k0, k1, ... */
#include "../../kernels/gpu.h"
#define FUNCTION(name) static u64 name(u32 a, u32 b, u32 c)
#include "random.h"
#define K(n)                                                                                                 \
    __gpu_kernel void k##n(G u64 *out, const G u32 *in) {                                                    \
        const G u32 *p = in + bx() * 96 + lane();                                                            \
        out[bx() * 32 + lane()] = r##n(p[0], p[32], p[64]);                                                  \
    }
RANDOM_KERNELS
