/* matmul.c - the kernels of matmul.h for 16-bit and quantized weights, by kind and by size of tile.
 *
 *   matmul32_KIND    tiles of  32 x 128 (rows of x, columns of y), 128 threads: up to 32 rows
 *   matmul64_KIND    tiles of  64 x 128, 128 threads: whatever else is too small for
 *   matmul128_KIND   tiles of 128 x 256, 256 threads
 * KIND: f16 bf16 a2 a3 a4 a5 a6 a8 mxfp4 mxfp8 nvfp4 (f32, and odd shapes of f16 and bf16: matmul_dense.c).
 *
 * Grid: x = ceil(n / rows of a tile), y = n_tile = column tiles in all; product i has those from out[i - 1].tile_end to
 * out[i].tile_end, and the tile_end of the last product and of those that are not there is n_tile. Block: exactly as above. Shared
 * memory is static: 20, 24 and 48 KiB. The host guarantees n_in % 32 == 0, x and codes at multiples of 16 bytes, x_ld % 4 == 0, and
 * the same kind, n_in, group and scale type for all products of a launch.
 *
 * Experts: expert_tiles of matmul_experts.c fills rows, x_rows and tiles; grid x = the number of tiles that it was given. */
#include "matmul.h"

#define KERNELS(name, kind)                                                                                  \
    MM_KERNEL(128) void matmul32_##name(mx_k_matmul a) {                                                     \
        SHARED u32x4 room[2 * (32 + 128) * 4];                                                               \
        matmul(&a, (mm_plan){kind, 2, 32, 128, 4, 2, 2}, room);                                              \
    }                                                                                                        \
    MM_KERNEL(128) void matmul64_##name(mx_k_matmul a) {                                                     \
        SHARED u32x4 room[2 * (64 + 128) * 4];                                                               \
        matmul(&a, (mm_plan){kind, 2, 64, 128, 4, 4, 2}, room);                                              \
    }                                                                                                        \
    MM_KERNEL(256) void matmul128_##name(mx_k_matmul a) {                                                    \
        SHARED u32x4 room[2 * (128 + 256) * 4];                                                              \
        matmul(&a, (mm_plan){kind, 2, 128, 256, 4, 4, 4}, room);                                             \
    }

KERNELS(f16, K_F16)
KERNELS(bf16, K_BF16)
KERNELS(a2, K_A2)
KERNELS(a3, K_A3)
KERNELS(a4, K_A4)
KERNELS(a5, K_A5)
KERNELS(a6, K_A6)
KERNELS(a8, K_A8)
KERNELS(mxfp4, K_MXFP4)
KERNELS(mxfp8, K_MXFP8)
KERNELS(nvfp4, K_NVFP4)
