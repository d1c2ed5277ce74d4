/* elementwise.c - ops that go value by value: gated activations, sums, gates, caps, gathered rows, sums over experts.
 *
 * Tiling, the same for all: a thread takes 4 neighbouring columns of a row (16-byte loads where every row is aligned to 16
 * bytes, else single values). Block: 256 threads. Grid: x = rows, y = ceil(cols / 1024). No shared memory. Matrices are f32;
 * an output may be an input, unless said otherwise. */
#include "numbers.h"

INLINE u32 column(void) { return (by() * threads() + thread()) * 4; }

INLINE f32 relu32(f32 x) { return x < 0 ? 0 : x; }
INLINE f32 relu_squared(f32 x) { return relu32(x) * relu32(x); }
INLINE f32 gelu_tanh(f32 x) { // x / 2 (1 + tanh u) = x sigmoid(2 u), without the cancellation
    return x * sigmoid32(2 * 0.7978845608f * x * fma32(x * x, 0.044715f, 1));
}

/* y = act(gate) * up; act as mx_act: 0 silu, 1 gelu, 2 gelu by tanh, 3 relu, 4 relu^2 */
__gpu_kernel void glu(mx_k_mat y, mx_k_mat gate, mx_k_mat up, u32 cols, u32 act) {
    let_next_start();
    after_previous();
    const u32 c = column();
    if (c >= cols) return;
    f32x4 v = load4(row_of(gate, bx()), c, cols, whole16(gate));
    const f32x4 u = load4(row_of(up, bx()), c, cols, whole16(up));
    switch (act) {
    case 0: v = map4(v, silu32); break;
    case 1: v = map4(v, gelu32); break;
    case 2: v = map4(v, gelu_tanh); break;
    case 3: v = map4(v, relu32); break;
    default: v = map4(v, relu_squared);
    }
    store4(row_of(y, bx()), c, cols, whole16(y), v * u);
}

/* x += y * factor */
__gpu_kernel void add(mx_k_mat x, mx_k_mat y, u32 cols, f32 factor) {
    let_next_start();
    after_previous();
    const u32 c = column();
    if (c >= cols) return;
    const f32x4 a = load4(row_of(x, bx()), c, cols, whole16(x)),
                b = load4(row_of(y, bx()), c, cols, whole16(y));
    store4(row_of(x, bx()), c, cols, whole16(x), b * factor + a);
}

/* x *= sigmoid(gate); gate has `cols` columns, or one for the whole row */
__gpu_kernel void sigmoid_gate(mx_k_mat x, mx_k_mat gate, u32 cols, u32 one) {
    let_next_start();
    after_previous();
    const u32 c = column();
    if (c >= cols) return;
    const f32x4 v = load4(row_of(x, bx()), c, cols, whole16(x));
    const G f32 *g = row_of(gate, bx());
    if (one)
        store4(row_of(x, bx()), c, cols, whole16(x), v * sigmoid32(g[0]));
    else
        store4(row_of(x, bx()), c, cols, whole16(x), v * map4(load4(g, c, cols, whole16(gate)), sigmoid32));
}

/* y[i] = x[rows[i]], i = block x; y is not x. A row outside x's n_rows gives NaN. */
__gpu_kernel void gather(mx_k_mat y, mx_k_mat x, const G i32 *rows, u32 n_rows, u32 cols) {
    let_next_start();
    after_previous();
    const u32 c = column(), from = (u32)rows[bx()];
    if (c >= cols) return;
    f32x4 v = {not_a_number(), not_a_number(), not_a_number(), not_a_number()};
    if (from < n_rows) v = load4(row_of(x, from), c, cols, whole16(x));
    store4(row_of(y, bx()), c, cols, whole16(y), v);
}

/* x = cap * tanh(x / cap), cap > 0 */
__gpu_kernel void softcap(mx_k_mat x, u32 cols, f32 cap) {
    let_next_start();
    after_previous();
    const u32 c = column();
    if (c >= cols) return;
    f32x4 v = load4(row_of(x, bx()), c, cols, whole16(x));
    f32 a[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (u32 i = 0; i < 4; i++) {
        a[i] = a[i] > 20 * cap ? 20 * cap : a[i]; // tanh is 1 there, and infinity would not divide
        a[i] = a[i] < -20 * cap ? -20 * cap : a[i];
        a[i] = cap * tanh32(div32(a[i], cap));
    }
    store4(row_of(x, bx()), c, cols, whole16(x), (f32x4){a[0], a[1], a[2], a[3]});
}

/* y[i] = sum over j < k of weights[i, j] * x[i * k + j], in order of j; y is not x */
__gpu_kernel void expert_sum(mx_k_mat y, mx_k_mat x, const G f32 *weights, u32 cols, u32 k) {
    let_next_start();
    after_previous();
    const u32 c = column();
    if (c >= cols) return;
    const u64 first = (u64)bx() * k;
    f32x4 sum = {0, 0, 0, 0};
    for (u32 j = 0; j < k; j++) sum += load4(row_of(x, first + j), c, cols, whole16(x)) * weights[first + j];
    store4(row_of(y, bx()), c, cols, whole16(y), sum);
}

/* p[0, n) = 0: a state slot taken anew. Grid: x = ceil(n / 1024); p aligned to 4 bytes. */
__gpu_kernel void clear(G u32 *p, u64 n) {
    let_next_start();
    after_previous();
    const u64 from = ((u64)bx() * threads() + thread()) * 4;
    UNROLL for (u32 i = 0; i < 4; i++) if (from + i < n) p[from + i] = 0;
}
