/* ops_matrix.c - matrix instructions: D[16, 16] = A[16, 16] B[16, 16] + C.
 *
 * Lane i of A holds row i, lane j of B column j, each twice: lanes 16-31 must repeat lanes 0-15. C and D: register r, lane l is row
 * 2r + l / 16, column l % 16. The order of the hardware's sums is not documented: here k runs upwards with fused steps. */
#include "half.h"
#include "machine.h"

typedef float F16 __attribute__((ext_vector_type(16)));
typedef int32_t I16 __attribute__((ext_vector_type(16)));

static void check(emu_wave *w, const emu_op *o, unsigned n_ab) {
    if (w->s[EXEC] != ~0u)
        emu_fault(w, o, 719, "a matrix instruction with lanes switched off (EXEC 0x%08x)", w->s[EXEC]);
    for (int i = 0; i < 2; i++)
        for (unsigned r = 0; r < n_ab; r++)
            if (memcmp(&w->v[o->r[i] + r], (char *)&w->v[o->r[i] + r] + 64, 64))
                emu_fault(w, o, 719, "lanes 16-31 of matrix %c do not repeat lanes 0-15 (register v%u)",
                          "AB"[i], o -> r[i] + r);
}
FORCE void product(emu_wave *w, const emu_op *o, F (*pair)(U x, int hi)) {
    float a[16][16]; // [k][row]
    F16 b[16];       // [k], a lane per column
    check(w, o, 8);
    for (int k = 0; k < 16; k++) {
        const F x = pair(w->v[o->r[0] + k / 2], k & 1), y = pair(w->v[o->r[1] + k / 2], k & 1);
        memcpy(a[k], &x, 64);
        memcpy(&b[k], &y, 64);
    }
    for (int r = 0; r < 8; r++) {
        F16 lo, hi;
        const U c = o->a[2].mask ? w->v[o->r[2] + r] : vu(w, o, 2);
        memcpy(&lo, &c, 64);
        memcpy(&hi, (const char *)&c + 64, 64);
        if (o->neg_lo & 4) lo = -lo, hi = -hi;
        for (int k = 0; k < 16; k++) {
            const F16 x = a[k][2 * r], y = a[k][2 * r + 1];
            lo = __builtin_elementwise_fma(x, b[k], lo);
            hi = __builtin_elementwise_fma(y, b[k], hi);
        }
        memcpy(&w->v[o->d + r], &lo, 64);
        memcpy((char *)&w->v[o->d + r] + 64, &hi, 64);
    }
}
FORCE F pair_f16(U x, int hi) { return half_f(hi ? x >> 16 : x); }
FORCE F pair_bf16(U x, int hi) { return (F)(hi ? x & 0xFFFF0000u : x << 16); }
static void v_wmma_f16(emu_wave *w, const emu_op *o) { product(w, o, pair_f16); }
static void v_wmma_bf16(emu_wave *w, const emu_op *o) { product(w, o, pair_bf16); }

static void v_wmma_iu(emu_wave *w, const emu_op *o, int bits) {
    const int per = 32 / bits, n_reg = 16 / per;
    int32_t a[16][16], b[16][16]; // [k][row], [k][column]
    check(w, o, (unsigned)n_reg);
    for (int k = 0; k < 16; k++) {
        const U x = w->v[o->r[0] + k / per], y = w->v[o->r[1] + k / per];
        const int at = k % per * bits, up = 32 - bits - at, down = 32 - bits;
        for (int i = 0; i < 16; i++) {
            a[k][i] = o->neg_lo & 1 ? (int32_t)(x[i] << up) >> down : (int32_t)(x[i] << up >> down);
            b[k][i] = o->neg_lo & 2 ? (int32_t)(y[i] << up) >> down : (int32_t)(y[i] << up >> down);
        }
    }
    for (int r = 0; r < 8; r++) {
        U d = o->a[2].mask ? w->v[o->r[2] + r] : vu(w, o, 2);
        for (int l = 0; l < LANES; l++) {
            int64_t s = (int32_t)d[l];
            for (int k = 0; k < 16; k++) s += (int64_t)a[k][2 * r + l / 16] * b[k][l % 16];
            if (o->clamp) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
            d[l] = (uint32_t)s;
        }
        w->v[o->d + r] = d;
    }
}
static void v_wmma_iu8(emu_wave *w, const emu_op *o) { v_wmma_iu(w, o, 8); }
static void v_wmma_iu4(emu_wave *w, const emu_op *o) { v_wmma_iu(w, o, 4); }

const emu_def emu_ops_matrix[] = {{"v_wmma_f32_16x16x16_f16", "Duuu", v_wmma_f16, EMU_WMMA, 0},
                                  {"v_wmma_f32_16x16x16_bf16", "Duuu", v_wmma_bf16, EMU_WMMA, 0},
                                  {"v_wmma_i32_16x16x16_iu8", "Duuu", v_wmma_iu8, EMU_WMMA, 0},
                                  {"v_wmma_i32_16x16x16_iu4", "Duuu", v_wmma_iu4, EMU_WMMA, 0},
                                  {NULL, NULL, NULL, 0, 0}};
