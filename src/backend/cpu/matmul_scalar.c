/* matmul_scalar.c - the plain C twin that every other kernel is measured against: expand a row, then one sum a product. */
#include "backend/cpu/matmul_impl.h"

static void run(const mx_mm_task *t, int out0, int out1, void *work) {
    float *w = work;
    for (int out = out0; out < out1; out++) {
        mx_qmat_expand(&t->w, out, 1, w, NULL);
        for (int r = 0; r < t->n; r++) {
            const float *x = mx_mm_row(&t->x, r);
            float sum = 0;
            for (int k = 0; k < t->w.n_in; k++) sum += w[k] * x[k];
            mx_mm_row(&t->y, r)[out] = sum + (t->bias ? t->bias[out] : 0);
        }
    }
}

const mx_cpu_matmul_kernels mx_mm_scalar = {.run = {[MX_MM_F32] = run}, .panel = {[MX_MM_F32] = 1}};
