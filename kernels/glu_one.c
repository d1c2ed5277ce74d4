/* glu_one.c - gate, up and activation in one launch for one row of x, by kind of weights: the kernels of matvec_one.h.
 *
 *   glu_KIND      out[0].y = act(gate x) * (up x): out[0] is gate, out[1] is up, same shape; kinds, grid and experts as matvec_one.c
 *                 has them
 *
 * A file of its own because these need more registers than the build allows matvec_one.c. */
#include "matvec_one.h"

#define KERNELS(name, kind, type)                                                                            \
    MV_KERNEL void glu_##name(mx_k_matvec a) {                                                               \
        SHARED one_shared m;                                                                                 \
        matvec_one(&a, kind, true, type, &m);                                                                \
    }
ONE_KINDS
