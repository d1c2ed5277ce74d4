/* elementwise_kernels.c - norms, activations, rotation, convolution and the delta rule on rows of numbers. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/vec.h"
#include "backend/ops.h"

/* Values [i, i + VL) of a row of n, zeros past its end; and the store of those that exist. */
VEC vf get(mx_row x, int i, int n) {
    const size_t size = x.t == MX_F32 ? 4 : 2;
    const char *p = (const char *)x.p + (size_t)i * size;
    if (i + VL <= n) return v_load_as(p, x.t);
    float a[VL] = {0};
    mx_to_f32(a, p, x.t, (size_t)(n - i));
    return v_load(a);
}
VEC void put(mx_row y, int i, int n, vf v) {
    const size_t size = y.t == MX_F32 ? 4 : 2;
    char *p = (char *)y.p + (size_t)i * size;
    if (i + VL <= n) {
        v_store_as(p, y.t, v);
        return;
    }
    float a[VL];
    v_store(a, v);
    mx_from_f32(p, y.t, a, (size_t)(n - i));
}
VEC mx_row f32_row(const float *p) { return (mx_row){(void *)(uintptr_t)p, MX_F32}; }

VEC void copy_of_types(void *y, mx_dtype yt, void *x, mx_dtype xt, float scale, int n) {
    for (int i = 0; i < n; i += VL) put((mx_row){y, yt}, i, n, get((mx_row){x, xt}, i, n) * scale);
}

static void copy(mx_row y, mx_row x, float scale, int n) {
    if (x.t == MX_F32 && y.t == MX_F32) // a loop each for those that every token takes, without branches
        copy_of_types(y.p, MX_F32, x.p, MX_F32, scale, n);
    else if (x.t == MX_F32 && y.t == MX_BF16)
        copy_of_types(y.p, MX_BF16, x.p, MX_F32, scale, n);
    else
        copy_of_types(y.p, y.t, x.p, x.t, scale, n);
}

/* A sum of squares goes lane by lane into two vectors in turn, then over lanes. */
VEC float sum_of_squares(mx_row x, int n) {
    vf even = {0}, odd = {0};
    for (int i = 0; i < n; i += 2 * VL) {
        vf v = get(x, i, n);
        even = v_fma(v, v, even);
        if (i + VL >= n) break;
        v = get(x, i + VL, n);
        odd = v_fma(v, v, odd);
    }
    return v_sum(even + odd);
}

static void norm(mx_row y, float *x, mx_row add, const float *w, float eps, int n) {
    const mx_row xr = f32_row(x);
    if (add.p)
        for (int i = 0; i < n; i += VL) put(xr, i, n, get(xr, i, n) + get(add, i, n));
    const float inv = 1 / sqrtf(sum_of_squares(xr, n) / (float)n + eps);
    for (int i = 0; i < n; i += VL) {
        vf v = get(xr, i, n) * inv;
        put(y, i, n, w ? v * get(f32_row(w), i, n) : v);
    }
}

static void gated_norm(mx_row y, mx_row x, mx_row z, const float *w, float eps, int n) {
    const float inv = 1 / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int i = 0; i < n; i += VL) {
        vf g = get(z, i, n);
        put(y, i, n, get(x, i, n) * inv * get(f32_row(w), i, n) * (g * v_sigmoid(g)));
    }
}

static void rotate(float *x, const float *cs, int n_rot, bool interleaved) {
    const int half = n_rot / 2;
    if (interleaved) {
        for (int i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1], c = cs[i], s = cs[half + i];
            x[2 * i] = a * c - b * s;
            x[2 * i + 1] = b * c + a * s;
        }
        return;
    }
    const mx_row ar = f32_row(x), br = f32_row(x + half), cr = f32_row(cs), sr = f32_row(cs + half);
    for (int i = 0; i < half; i += VL) {
        vf a = get(ar, i, half), b = get(br, i, half), c = get(cr, i, half), s = get(sr, i, half);
        put(ar, i, half, a * c - b * s);
        put(br, i, half, b * c + a * s);
    }
}

VEC vf activate(vf x, mx_act act) {
    switch (act) {
    case MX_ACT_SILU: return x * v_sigmoid(x);
    case MX_ACT_GELU_TANH: // x / 2 (1 + tanh u) = x sigmoid(2 u), without the cancellation
        return x * v_sigmoid(2 * 0.7978845608f * x * v_fma(x * x, v_set(0.044715f), v_set(1)));
    case MX_ACT_RELU: return v_pick(x < 0, v_set(0), x);
    case MX_ACT_RELU2: x = v_pick(x < 0, v_set(0), x); return x * x;
    case MX_ACT_GELU: break;
    }
    float a[VL]; // x Phi(x); erfc keeps its relative accuracy in the left tail
    v_store(a, x);
    for (int i = 0; i < VL; i++) a[i] = 0.5f * a[i] * erfcf(a[i] * -0.70710678f);
    return v_load(a);
}

static void glu(mx_row y, mx_row gate, mx_row up, mx_act act, int n) {
    int i = 0;
    if (act == MX_ACT_SILU && y.t == MX_F32 && gate.t == MX_F32 &&
        up.t == MX_F32) { // the common one, without branches
        const float *g = gate.p, *u = up.p;
        for (float *out = y.p; i + VL <= n; i += VL)
            v_store(out + i, activate(v_load(g + i), MX_ACT_SILU) * v_load(u + i));
    }
    for (; i < n; i += VL) put(y, i, n, activate(get(gate, i, n), act) * get(up, i, n));
}

static void add(float *x, mx_row y, float factor, int n) {
    const mx_row xr = f32_row(x);
    for (int i = 0; i < n; i += VL) put(xr, i, n, v_fma(get(y, i, n), v_set(factor), get(xr, i, n)));
}

static void sigmoid_gate(mx_row x, mx_row gate, bool one, int n) {
    vf g = one ? v_sigmoid(v_set(get(gate, 0, 1)[0])) : v_set(0);
    for (int i = 0; i < n; i += VL) put(x, i, n, get(x, i, n) * (one ? g : v_sigmoid(get(gate, i, n))));
}

static void softcap(mx_row x, float c, int n) {
    for (int i = 0; i < n; i += VL) put(x, i, n, c * v_tanh(get(x, i, n) / c));
}

static void softmax(float *y, const float *x, int n) {
    float top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i += VL) put(f32_row(y), i, n, v_exp(get(f32_row(x), i, n) - top));
    for (int i = 0; i < n; i++) sum += y[i];
    for (int i = 0; i < n; i++) y[i] /= sum;
}

/* The last k_width inputs of every channel stand in a ring of rows, so that a step copies one row in and none
 * over. */
static void conv(mx_row y, int64_t y_ld, mx_row x, int64_t x_ld, const float *w, const float *bias,
                 int k_width, float *state, int64_t ld_state, int nc, int n_tok) {
    enum { C = MX_CONV_CHANNELS, MAX_WIDTH = MX_MAX_CONV_WIDTH };
    float ring[MAX_WIDTH][C], tap[MAX_WIDTH][C], start[C] = {0};
    memset(tap, 0, sizeof tap[0] * (size_t)k_width);
    memset(ring, 0, sizeof ring[0] * (size_t)k_width);
    for (int j = 0; j < k_width; j++)
        for (int c = 0; c < nc; c++) tap[j][c] = w[(size_t)c * (size_t)k_width + (size_t)j];
    for (int j = 0; j < k_width - 1; j++) memcpy(ring[j], state + j * ld_state, (size_t)nc * sizeof *state);
    if (bias) memcpy(start, bias, (size_t)nc * sizeof *bias);
    const size_t x_size = x.t == MX_F32 ? 4 : 2, y_size = y.t == MX_F32 ? 4 : 2;
    int last = k_width - 1; // the ring's row of the newest input
    for (int t = 0; t < n_tok; t++) {
        for (int c = 0; c < nc; c += VL) {
            vf in = get(x, c, nc), sum = v_load(start + c);
            v_store(ring[last] + c, in);
            for (int j = 0, row = last + 1; j < k_width; j++, row++) {
                if (row >= k_width) row -= k_width; // oldest first
                sum = v_fma(v_load(tap[j] + c), v_load(ring[row] + c), sum);
            }
            put(y, c, nc, sum * v_sigmoid(sum));
        }
        x.p = (char *)x.p + (size_t)x_ld * x_size;
        y.p = (char *)y.p + (size_t)y_ld * y_size;
        last = last + 1 == k_width ? 0 : last + 1;
    }
    for (int j = 0, row = last + 1; j < k_width - 1;
         j++, row++) { // `last` is now where the next input would go
        if (row >= k_width) row -= k_width;
        memcpy(state + j * ld_state, ring[row], (size_t)nc * sizeof *state);
    }
}

static void l2_normalize(float *y, mx_row x, float scale, int n) {
    scale /= sqrtf(sum_of_squares(x, n) + 1e-6f);
    for (int i = 0; i < n; i += VL) put(f32_row(y), i, n, get(x, i, n) * scale);
}

/* One step on nv vectors of columns: read the state twice, write it once. Even and odd rows are summed apart,
 * so that the sums do not wait for each other. */
enum { NV = MX_DELTA_COLUMNS / VL };
VEC void recall(vf *u, const float *s, float k) { // u += k s
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) u[c] = v_fma(v_set(k), v_load(s + c * VL), u[c]);
}
VEC void learn(vf *o, float *s, float q, float k, const vf *d, float decay) { // s = decay s + k d; o += q s
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) {
        vf x = v_fma(v_set(k), d[c], v_load(s + c * VL) * decay);
        v_store(s + c * VL, x);
        o[c] = v_fma(v_set(q), x, o[c]);
    }
}
VEC void delta_step(float *s, int64_t ld, int dk, const float *q, const float *k, const vf *v, vf *out,
                    float decay, float beta) {
    vf u0[NV] = {0}, u1[NV] = {0}, o0[NV] = {0}, o1[NV] = {0}, d[NV];
    int i = 0;
    for (; i + 1 < dk; i += 2) {
        recall(u0, s + i * ld, k[i]);
        recall(u1, s + (i + 1) * ld, k[i + 1]);
    }
    if (i < dk) recall(u0, s + i * ld, k[i]);
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) d[c] = beta * (v[c] - decay * (u0[c] + u1[c]));
    for (i = 0; i + 1 < dk; i += 2) {
        learn(o0, s + i * ld, q[i], k[i], d, decay);
        learn(o1, s + (i + 1) * ld, q[i + 1], k[i + 1], d, decay);
    }
    if (i < dk) learn(o0, s + i * ld, q[i], k[i], d, decay);
#pragma GCC unroll 8
    for (int c = 0; c < NV; c++) out[c] = o0[c] + o1[c];
}

/* Several steps work on a copy of the columns that lies together and stays in the first cache; so do columns
 * that do not fill the vectors. One step on whole vectors works in place. */
static void delta(float *s, int64_t ld_s, int dk, int nj, int n_tok, const float *q, const float *k, mx_row v,
                  int64_t v_ld, mx_row out, int64_t out_ld, const float *decay, const float *beta) {
    enum { J = MX_DELTA_COLUMNS, MAX_DK = MX_MAX_HEAD_DIM };
    const size_t v_size = v.t == MX_F32 ? 4 : 2, out_size = out.t == MX_F32 ? 4 : 2;
    const bool in_place = n_tok == 1 && nj == J;
    _Alignas(64) float copy_of[MAX_DK * J];
    float *p = in_place ? s : copy_of;
    const int64_t ld = in_place ? ld_s : J;
    if (!in_place)
        for (int i = 0; i < dk; i++) {
            memcpy(p + i * ld, s + i * ld_s, (size_t)nj * sizeof *s);
            memset(p + i * ld + nj, 0, (size_t)(J - nj) * sizeof *s);
        }
    for (int t = 0; t < n_tok; t++) {
        vf vv[NV], o[NV];
        for (int c = 0; c < NV; c++) vv[c] = c * VL < nj ? get(v, c * VL, nj) : v_set(0);
        delta_step(p, ld, dk, q + (int64_t)t * dk, k + (int64_t)t * dk, vv, o, decay[t], beta[t]);
        for (int c = 0; c < NV && c * VL < nj; c++) put(out, c * VL, nj, o[c]);
        v.p = (char *)v.p + (size_t)v_ld * v_size;
        out.p = (char *)out.p + (size_t)out_ld * out_size;
    }
    if (!in_place)
        for (int i = 0; i < dk; i++) memcpy(s + i * ld_s, p + i * ld, (size_t)nj * sizeof *s);
}

const mx_row_kernels VARIANT(mx_row_kernels) = {
    .copy = copy,
    .norm = norm,
    .gated_norm = gated_norm,
    .rotate = rotate,
    .glu = glu,
    .add = add,
    .sigmoid_gate = sigmoid_gate,
    .softcap = softcap,
    .softmax = softmax,
    .conv = conv,
    .l2_normalize = l2_normalize,
    .delta = delta,
};
