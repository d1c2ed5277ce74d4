/* copy.c - copies memory: the yardstick of what a device can read and write.
 *
 *   copy   n 16-byte words. Grid: any number of blocks, block: whole waves; a thread takes 4 words at a time, a block apart. */
#include "gpu.h"

__gpu_kernel void copy(G u32x4 *to, const G u32x4 *from, u64 n) {
    let_next_start();
    after_previous();
    const u64 all = (u64)__gpu_num_blocks_x() * threads();
    u64 i = (u64)bx() * threads() + thread();
    for (; i + 3 * all < n; i += 4 * all) {
        u32x4 v[4];
        UNROLL for (u32 k = 0; k < 4; k++) v[k] = from[i + k * all];
        UNROLL for (u32 k = 0; k < 4; k++) to[i + k * all] = v[k];
    }
    for (; i < n; i += all) to[i] = from[i];
}
