/* matvec.c - the kernels of matvec.h for 16-bit and quantized weights, by kind and by rows of x.
 *
 *   matvec_KIND       n <= 2 rows of x, several products in one launch (q, k, v): tiles of 16 rows; product i has the tiles
 *                     from out[i - 1].tile_end to out[i].tile_end; the tile_end of products that are not there is n_tile, and
 *                     so is the last one's
 *   matvec8_KIND      n <= 8, tiles of 32 rows
 *   glu_KIND, glu8_KIND   out[0].y = act(x gate^T) * (x up^T): out[0] is gate, out[1] is up, same shape; tiles of 16 rows
 * KIND: f16 bf16 a2 a3 a4 a5 a6 a8 mxfp4 mxfp8 nvfp4 (f32: matvec_dense.c). The affine kinds (a*) take scales of bf16 in groups of
 * 64 or 128; a*_odd (matvec_a4_odd, ...) take any type of scales and groups of 32 too.
 *
 * Grid: x = any number of blocks up to n_tile (each goes on to tile + grid); block: 32 to 256 threads, whole waves, best as many
 * waves as n_in has steps of 128, up to 8. Shared memory is static. The host guarantees n_in % 32 == 0, x and codes at
 * multiples of 16 bytes, x_ld % 4 == 0, and the same kind, n_in, group and scale type for all products of a launch.
 *
 * Experts (ids not NULL, codes a stack): grid y and z are rows: row z * grid_y + y of y uses matrix ids[row]; n is 1. x_by_z: row z
 * of x (grid_y = experts a token, z = token), else the row of x with the same number. */
#include "matvec.h"

#define KERNELS(name, kind, usual)                                                                           \
    MV_KERNEL void matvec8_##name(mx_k_matvec a) {                                                           \
        SHARED f32 room[MV_MAX_WAVE * 8 * 32 + 16];                                                          \
        matvec(&a, kind, false, false, usual, room);                                                         \
    }                                                                                                        \
    MV_KERNEL void glu8_##name(mx_k_matvec a) {                                                              \
        SHARED f32 room[MV_MAX_WAVE * 8 * 32 + 16];                                                          \
        matvec(&a, kind, false, true, usual, room);                                                          \
    }

KERNELS(a2, K_A2, true)
KERNELS(a3, K_A3, true)
KERNELS(a4, K_A4, true)
KERNELS(a5, K_A5, true)
KERNELS(a6, K_A6, true)
KERNELS(a8, K_A8, true)
KERNELS(f16, K_F16, false)
KERNELS(bf16, K_BF16, false)
KERNELS(a2_odd, K_A2, false)
KERNELS(a3_odd, K_A3, false)
KERNELS(a4_odd, K_A4, false)
KERNELS(a5_odd, K_A5, false)
KERNELS(a6_odd, K_A6, false)
KERNELS(a8_odd, K_A8, false)
KERNELS(mxfp4, K_MXFP4, false)
KERNELS(mxfp8, K_MXFP8, false)
KERNELS(nvfp4, K_NVFP4, false)
