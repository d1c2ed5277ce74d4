/* matvec_one.c - the kernels of matvec_one.h, for one row of x, by kind of weights.
 *
 *   matvec_KIND   several products in one launch (q, k, v): tiles of ONE_ROWS rows; product i has the tiles from
 *                 out[i - 1].tile_end to out[i].tile_end; the tile_end of products that are not there is n_tile, and so is the last
 *                 one's
 * KIND: f16 bf16 mxfp4 mxfp8 nvfp4, a2 a3 a4 a5 a6 a8 with scales of bf16, and a2_f16, a2_f32 and so on (f32: matvec_dense.c).
 *
 * Grid: x = any number of blocks up to n_tile (each goes on to tile + grid); block: 1 to 16 whole waves. The host guarantees n_in % 32
 * == 0, x and codes at multiples of 16 bytes, x_ld % 4 == 0, the same kind, n_in, group and scale type for all products of a launch;
 * with norm or for glu n_in <= 32 ONE_SLAB, with n_sum as many values in all, each n_in rounded up to whole steps (256).
 *
 * Experts (ids not NULL, codes a stack): grid y and z are rows: row z * grid_y + y of y uses matrix ids[row]. x_by_z: row z of x
 * (grid_y = experts a token, z = token), else the row of x with the same number. n_sum: the weighted sum of n_sum experts, each
 * with a row of x of its own. */
#include "matvec_one.h"

#define KERNELS(name, kind, type)                                                                            \
    MV_KERNEL void matvec_##name(mx_k_matvec a) {                                                            \
        SHARED one_shared m;                                                                                 \
        matvec_one(&a, kind, false, type, &m);                                                               \
    }
ONE_KINDS
