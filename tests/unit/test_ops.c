/* test_ops.c - the other ops of a device, each against its equation in double precision, on odd shapes. */
#include "ops_util.h"

static const int shapes[][2] = {{1, 1}, {3, 7}, {1, 576}, {40, 65}, {2, 4099}, {130, 256}}; // rows, columns
static const mx_dtype types[] = {MX_F32, MX_F16, MX_BF16};

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double activation(mx_act act, double x) {
    switch (act) {
    case MX_ACT_SILU: return x * sigmoid(x);
    case MX_ACT_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case MX_ACT_GELU_TANH: return x * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MX_ACT_RELU: return x > 0 ? x : 0;
    case MX_ACT_RELU2: return x > 0 ? x * x : 0;
    }
    return NAN;
}

static void check_values(const mx_mat *got, const float *want, double tol, const char *what, size_t i) {
    float *g = values_of(got);
    CHECK_CLOSE(g, want, (size_t)got->rows * (size_t)got->cols, tol, "%s, case %zu", what, i);
    free(g);
}

static void embed_rows(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 1;
    const int32_t ids[] = {3, 0, 10, 3};
    for (size_t t = 0; t < countof(types); t++) {
        mx_mat w = random_mat(types[t], 11, 67, 0, 1, &seed), x = random_mat(MX_F32, 4, 67, 3, 1, &seed);
        mx_qmat q = {.type = types[t], .n_stack = 1, .n_out = 11, .n_in = 67, .codes = w.p};
        CHECK_OK(mx_op_embed(dev, &x, &q, ids, 2.5f, &err), &err);
        float *all = values_of(&w), want[4 * 67];
        for (int i = 0; i < 4; i++)
            for (int c = 0; c < 67; c++) want[i * 67 + c] = 2.5f * all[ids[i] * 67 + c];
        check_values(&x, want, 0, "embed", t);
        CHECK_FAILS(mx_op_embed(dev, &x, &q, (int32_t[]){0, 1, 11, 2}, 1, &err), MX_EINVAL, &err,
                    "token 11 is outside");
        CHECK_FAILS(mx_op_embed(dev, &x, &q, (int32_t[]){0, 1, -1, 2}, 1, &err), MX_EINVAL, &err,
                    "token -1 is outside");
        free(all), free(w.p), free(x.p);
    }
}
LEVEL_TESTS(embed_rows)

static void rms_norm_rows(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 2;
    for (size_t i = 0; i < countof(shapes) * countof(types) * 3; i++) {
        const int n = shapes[i / 9][0], d = shapes[i / 9][1];
        const bool with_add = i % 3 != 0, with_w = i % 3 != 1;
        const mx_dtype t = dev->act = types[i / 3 % 3];
        mx_mat x = random_mat(MX_F32, n, d, 3, 2, &seed), add = random_mat(t, n, d, 1, 2, &seed);
        mx_mat w = random_mat(MX_F32, 1, d, 0, 1, &seed), y = random_mat(t, n, d, 2, 1, &seed);
        float *x0 = values_of(&x), *a0 = values_of(&add), *sum = need(malloc((size_t)(n * d) * sizeof *sum));
        float *want = need(malloc((size_t)(n * d) * sizeof *want));
        for (int r = 0; r < n; r++) {
            double sq = 0;
            for (int c = r * d; c < (r + 1) * d; c++) {
                sum[c] = with_add ? x0[c] + a0[c] : x0[c];
                sq += (double)sum[c] * sum[c];
            }
            for (int c = 0; c < d; c++)
                want[r * d + c] =
                    (float)(sum[r * d + c] / sqrt(sq / d + 1e-5) * (with_w ? (double)((float *)w.p)[c] : 1));
        }
        CHECK_OK(mx_op_rms_norm(dev, &y, &x, with_add ? &add : NULL, with_w ? w.p : NULL, 1e-5f, &err), &err);
        check_values(&y, want, tolerance(t), "y", i);
        check_values(&x, sum, 0, "x", i);
        // A row by itself has the same bits, and y may be x.
        mx_mat last = {MX_F32, 1, d, d, x0 + (n - 1) * d}, y1 = {t, 1, d, d, need(malloc((size_t)d * 4))};
        mx_mat add1 = {t, 1, d, d, (char *)add.p + (size_t)((n - 1) * add.ld) * (t == MX_F32 ? 4 : 2)};
        CHECK_OK(mx_op_rms_norm(dev, &y1, &last, with_add ? &add1 : NULL, with_w ? w.p : NULL, 1e-5f, &err),
                 &err);
        float *all = values_of(&y), *one = values_of(&y1);
        CHECK(!memcmp(all + (n - 1) * d, one, (size_t)d * sizeof *one), "case %zu", i);
        CHECK_OK(mx_op_rms_norm(dev, &x, &x, NULL, with_w ? w.p : NULL, 1e-5f, &err), &err);
        check_values(&x, want, 2e-6, "in place", i);
        free(x.p), free(add.p), free(w.p), free(y.p), free(x0), free(a0), free(sum), free(want), free(y1.p),
            free(all);
        free(one);
    }
}
LEVEL_TESTS(rms_norm_rows)

static void rows_of_zeros_are_not_nan(mx_dev *dev) {
    mx_err err;
    float x[9] = {0}, y[9];
    mx_mat xm = {MX_F32, 1, 9, 9, x}, ym = {MX_F32, 1, 9, 9, y};
    CHECK_OK(mx_op_rms_norm(dev, &ym, &xm, NULL, NULL, 1e-6f, &err), &err);
    for (int i = 0; i < 9; i++) CHECK(y[i] == 0);
}
LEVEL_TESTS(rows_of_zeros_are_not_nan)

static void glu_of_every_activation(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 3;
    for (size_t i = 0; i < countof(shapes) * countof(types) * 5; i++) {
        const int n = shapes[i / 15][0], d = shapes[i / 15][1];
        const mx_act act = (mx_act)(i % 5);
        const mx_dtype t = dev->act = types[i / 5 % 3];
        mx_mat g = random_mat(t, n, d, 3, 4, &seed), u = random_mat(t, n, d, 1, 1, &seed);
        mx_mat y = random_mat(MX_F32, n, d, 2, 1, &seed);
        float *gv = values_of(&g), *uv = values_of(&u);
        CHECK_OK(mx_op_glu(dev, &y, &g, &u, act, &err), &err);
        CHECK_OK(mx_op_glu(dev, &g, &g, &u, act, &err), &err);
        for (int c = 0; c < n * d; c++) gv[c] = (float)(activation(act, gv[c]) * uv[c]);
        check_values(&y, gv, 1e-6, "glu", i);
        check_values(&g, gv, tolerance(t), "in place", i);
        free(g.p), free(u.p), free(y.p), free(gv), free(uv);
    }
}
LEVEL_TESTS(glu_of_every_activation)

/* Each value by itself, over all magnitudes: exp() and tanh() inside must hold their relative accuracy. */
static void activations_at_the_ends(mx_dev *dev) {
    mx_err err;
    enum { N = 4001 };
    float x[N], one[N], y[N];
    mx_mat xm = {MX_F32, 1, N, N, x}, om = {MX_F32, 1, N, N, one}, ym = {MX_F32, 1, N, N, y};
    for (int act = 0; act <= MX_ACT_RELU2; act++) {
        for (int i = 0; i < N; i++) x[i] = (float)((i - 2000) * 0.05), one[i] = 1;
        x[0] = -1e30f, x[1] = 1e18f, x[2] = -1e-30f, x[3] = 1e-30f;
        CHECK_OK(mx_op_glu(dev, &ym, &xm, &om, (mx_act)act, &err), &err);
        for (int i = 0; i < N; i++) {
            double want = activation((mx_act)act, x[i]);
            // Relative to the value, but for what a double rounds away or f32 cannot hold; gelu's tail is
            // below use.
            CHECK(fabs(y[i] - want) <=
                      2e-6 * fabs(want) + 1e-30 + (x[i] < -4 ? 2e-5 * fabs(want) + 1e-14 : 0),
                  "activation %d of %g is %g, not %g", act, (double)x[i], (double)y[i], want);
        }
        x[7] = NAN;
        if (act == MX_ACT_RELU || act == MX_ACT_RELU2) continue;
        CHECK_OK(mx_op_glu(dev, &ym, &xm, &om, (mx_act)act, &err), &err);
        CHECK(isnan(y[7]));
    }
    for (int i = 0; i < N; i++) x[i] = (float)((i - 2000) * 0.05);
    x[0] = -INFINITY, x[1] = 1e-20f, x[2] = NAN;
    memcpy(y, x, sizeof x);
    CHECK_OK(mx_op_softcap(dev, &ym, 3, &err), &err);
    for (int i = 0; i < N; i++) {
        double want = 3 * tanh((double)x[i] / 3);
        CHECK(i == 2 ? isnan(y[i]) : fabs(y[i] - want) <= 4e-7 * fabs(want), "softcap of %g is %g, not %g",
              (double)x[i], (double)y[i], want);
    }
}
LEVEL_TESTS(activations_at_the_ends)

static void add_gate_and_cap(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 4;
    for (size_t i = 0; i < countof(shapes) * countof(types); i++) {
        const int n = shapes[i / 3][0], d = shapes[i / 3][1];
        const mx_dtype t = dev->act = types[i % 3];
        mx_mat x = random_mat(MX_F32, n, d, 3, 1, &seed), y = random_mat(t, n, d, 1, 1, &seed);
        mx_mat z = random_mat(t, n, d, 2, 20, &seed), g1 = random_mat(MX_F32, n, 1, 2, 2, &seed);
        float *xv = values_of(&x), *yv = values_of(&y), *zv = values_of(&z), *gv = values_of(&g1);
        CHECK_OK(mx_op_add(dev, &x, &y, -0.75f, &err), &err);
        for (int c = 0; c < n * d; c++) xv[c] = (float)((double)xv[c] - 0.75 * yv[c]);
        check_values(&x, xv, 2e-7, "add", i);
        CHECK_OK(mx_op_sigmoid_gate(dev, &x, &y, &err), &err);
        for (int c = 0; c < n * d; c++) xv[c] = (float)(xv[c] * sigmoid(yv[c]));
        check_values(&x, xv, 1e-6, "gate", i);
        if (d > 1) {
            CHECK_OK(mx_op_sigmoid_gate(dev, &x, &g1, &err), &err);
            for (int c = 0; c < n * d; c++) xv[c] = (float)(xv[c] * sigmoid(gv[c / d]));
            check_values(&x, xv, 1e-6, "gate for the row", i);
        }
        CHECK_OK(mx_op_softcap(dev, &z, 30, &err), &err);
        for (int c = 0; c < n * d; c++) zv[c] = (float)(30 * tanh(zv[c] / 30.0));
        check_values(&z, zv, tolerance(t), "softcap", i);
        free(x.p), free(y.p), free(z.p), free(g1.p), free(xv), free(yv), free(zv), free(gv);
    }
}
LEVEL_TESTS(add_gate_and_cap)

static void gather_rows(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 5;
    const int32_t rows[] = {6, 0, 6};
    mx_mat x = random_mat(MX_F32, 7, 65, 3, 1, &seed), y = random_mat(MX_F32, 3, 65, 1, 1, &seed);
    CHECK_OK(mx_op_gather(dev, &y, &x, rows, &err), &err);
    for (int i = 0; i < 3; i++)
        CHECK(!memcmp((float *)y.p + i * y.ld, (float *)x.p + rows[i] * x.ld, 65 * sizeof(float)));
    CHECK_FAILS(mx_op_gather(dev, &y, &x, (int32_t[]){0, 7, 1}, &err), MX_EINVAL, &err, "row 7 of 7");
    free(x.p), free(y.p);
}
LEVEL_TESTS(gather_rows)

static void rope_table_and_rotation(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 6;
    static const struct {
        int n_head, n_kv, hd, n_rot;
        bool interleaved, norm;
    } cases[] = {{9, 3, 64, 64, false, false}, {2, 1, 40, 20, false, true}, {3, 3, 96, 96, true, true},
                 {4, 2, 256, 64, false, true}, {1, 1, 33, 6, true, false},  {5, 1, 32, 0, false, true}};
    const int32_t pos[] = {0, 1, 500, 32768, 7, 131071}, seq[] = {0, 1, 2, 3, 4, 5},
                  start[] = {0, 1, 2, 3, 4, 5, 6};
    enum { N = 6, BLOCK = 16 };
    for (size_t i = 0; i < countof(cases) * countof(types); i++) {
        const int hd = cases[i / 3].hd, nr = cases[i / 3].n_rot, half = nr / 2, nh = cases[i / 3].n_head;
        const int nk = cases[i / 3].n_kv;
        const mx_dtype t = dev->act = types[i % 3];
        float inv_freq[128], *cs = need(malloc(N * 256 * sizeof *cs));
        for (int f = 0; f < half; f++) inv_freq[f] = powf(10000, -2.0f * (float)f / (float)nr);
        // Token s of sequence s goes to block 5 - s; only the table's entry for its position matters.
        const int stride = 131072 / BLOCK;
        int32_t *table = need(malloc((size_t)(N * stride) * sizeof *table)), len[N];
        memset(table, 0xFF, (size_t)(N * stride) * sizeof *table);
        for (int s = 0; s < N; s++) table[s * stride + pos[s] / BLOCK] = 5 - s, len[s] = pos[s] + 1;
        mx_batch b = {.n_tok = N, .n_seq = N, .block_stride = stride, .block = BLOCK, .max_kv_len = 131072};
        b.max_q_len = 1, b.pos = pos, b.seq = seq, b.seq_start = start, b.kv_len = len, b.blocks[0] = table;
        if (nr) {
            CHECK_OK(mx_op_rope_table(dev, cs, inv_freq, nr, 1.25f, &b, &err), &err);
            for (int s = 0; s < N; s++)
                for (int f = 0; f < half; f++) {
                    double angle = (double)((float)pos[s] * inv_freq[f]);
                    CHECK(fabs(cs[s * nr + f] - 1.25 * cos(angle)) < 2e-7);
                    CHECK(fabs(cs[s * nr + half + f] - 1.25 * sin(angle)) < 2e-7);
                }
        }
        mx_mat q = random_mat(t, N, nh * hd, 3, 2, &seed), k = random_mat(t, N, nk * hd, 1, 2, &seed);
        mx_mat v = random_mat(t, N, nk * hd, 2, 2, &seed), wq = random_mat(MX_F32, 1, hd, 0, 1, &seed);
        mx_mat wk = random_mat(MX_F32, 1, hd, 0, 1, &seed);
        float *qv = values_of(&q), *kv = values_of(&k), *vv = values_of(&v);
        const size_t pool = (size_t)(6 * nk * BLOCK * hd);
        mx_kv cache = {.type = types[(i + 1) % 3], .n_kv = nk, .hd = hd};
        cache.k = need(calloc(pool, 4)), cache.v = need(calloc(pool, 4));
        mx_rope_append a = {.q = q, .k = k, .v = v, .n_head = nh, .n_kv = nk, .hd = hd, .n_rot = nr};
        a.interleaved = cases[i / 3].interleaved, a.cos_sin = cs, a.kv = cache, a.eps = 1e-6f;
        if (cases[i / 3].norm) a.q_norm = wq.p, a.k_norm = wk.p;
        CHECK_OK(mx_op_rope_append(dev, &a, &b, &err), &err);
        for (int which = 0; which < 2; which++) {
            float *x = which ? kv : qv, *w = which ? wk.p : wq.p;
            for (int h = 0; h < N * (which ? nk : nh); h++, x += hd) {
                const float *c = cs + h / (which ? nk : nh) * nr;
                double tmp[256], sq = 0;
                for (int d = 0; d < hd; d++) sq += (double)x[d] * x[d];
                for (int d = 0; d < hd; d++)
                    tmp[d] = cases[i / 3].norm ? x[d] / sqrt(sq / hd + 1e-6) * w[d] : x[d];
                for (int d = 0; d < hd; d++) x[d] = (float)tmp[d];
                for (int f = 0; f < half; f++) {
                    int m = a.interleaved ? 2 * f : f, n = a.interleaved ? 2 * f + 1 : f + half;
                    x[m] = (float)(tmp[m] * c[f] - tmp[n] * c[half + f]);
                    x[n] = (float)(tmp[n] * c[f] + tmp[m] * c[half + f]);
                }
            }
        }
        check_values(&q, qv, tolerance(t), "q", i);
        float *pool_k = need(malloc(pool * sizeof *pool_k)), *pool_v = need(malloc(pool * sizeof *pool_v));
        mx_to_f32(pool_k, cache.k, cache.type, pool), mx_to_f32(pool_v, cache.v, cache.type, pool);
        size_t filled = 0;
        for (size_t c = 0; c < pool; c++) filled += pool_v[c] != 0;
        CHECK(filled <= (size_t)(N * nk * hd), "values were written elsewhere");
        for (int s = 0; s < N; s++)
            for (int h = 0; h < nk; h++) {
                size_t at = ((size_t)((5 - s) * nk + h) * BLOCK + (size_t)(pos[s] % BLOCK)) * (size_t)hd;
                CHECK_CLOSE(pool_k + at, kv + (s * nk + h) * hd, (size_t)hd, tolerance(cache.type),
                            "k, case %zu", i);
                CHECK_CLOSE(pool_v + at, vv + (s * nk + h) * hd, (size_t)hd, tolerance(cache.type),
                            "v, case %zu", i);
            }
        free(cs), free(table), free(q.p), free(k.p), free(v.p), free(wq.p), free(wk.p), free(qv), free(kv),
            free(vv);
        free(cache.k), free(cache.v), free(pool_k), free(pool_v);
    }
}
LEVEL_TESTS(rope_table_and_rotation)

/* LOAD-10: not normalized means probabilities over all experts, whose sum stays below 1. */
static void routing(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 7;
    static const int cases[][3] = {
        {5, 8, 2}, {3, 128, 8}, {1, 60, 4}, {200, 32, 32}, {2, 1, 1}}; // tokens, experts, k
    for (size_t i = 0; i < countof(cases) * 3; i++) {
        const int n = cases[i / 3][0], ne = cases[i / 3][1], k = cases[i / 3][2];
        mx_mat l = random_mat(MX_F32, n, ne, 3, 2, &seed);
        float *w = need(malloc((size_t)(n * k) * sizeof *w)), *lv = values_of(&l),
              *want = need(malloc((size_t)(n * k) * 4));
        int32_t *ids = need(malloc((size_t)(n * k) * sizeof *ids));
        mx_route r = {.kind = i % 3 == 2 ? MX_ROUTE_TOPK_SOFTMAX : MX_ROUTE_SOFTMAX_TOPK,
                      .normalize = i % 3 == 1};
        r.scale = 2.5f, r.n_expert = ne, r.k = k, r.logits = l, r.ids = ids, r.weights = w;
        CHECK_OK(mx_op_route(dev, &r, &err), &err);
        for (int t = 0; t < n; t++) {
            const float *x = lv + t * ne;
            double all = 0, chosen = 0;
            for (int e = 0; e < ne; e++) all += exp((double)x[e]);
            for (int j = 0; j < k; j++) {
                int rank = 0, e = ids[t * k + j];
                CHECK(e >= 0 && e < ne);
                for (int o = 0; o < ne; o++) rank += x[o] > x[e] || (x[o] == x[e] && o < e);
                CHECK(rank == j, "token %d: expert %d at %d has rank %d", t, e, j, rank);
                chosen += exp((double)x[e]);
            }
            for (int j = 0; j < k; j++)
                want[t * k + j] = (float)(2.5 * exp((double)x[ids[t * k + j]]) / (i % 3 == 0 ? all : chosen));
        }
        CHECK_CLOSE(w, want, (size_t)(n * k), 1e-6, "case %zu", i);
        free(w), free(ids), free(lv), free(want), free(l.p);
    }
    // Ties go to the lower expert, and NaN still gives different experts.
    float tie[8] = {1, 3, 1, 3, 3, 0, 1, 0}, odd[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}, w[8];
    int32_t ids[8];
    mx_route r = {
        .n_expert = 8, .k = 5, .scale = 1, .logits = {MX_F32, 1, 8, 8, tie}, .ids = ids, .weights = w};
    CHECK_OK(mx_op_route(dev, &r, &err), &err);
    CHECK(ids[0] == 1 && ids[1] == 3 && ids[2] == 4 && ids[3] == 0 && ids[4] == 2);
    r.logits.p = odd;
    CHECK_OK(mx_op_route(dev, &r, &err), &err);
    for (int i = 0; i < 5; i++) CHECK(ids[i] == i && isnan(w[i]));
}
LEVEL_TESTS(routing)

static void sums_over_experts(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 8;
    for (size_t i = 0; i < countof(types) * 3; i++) {
        const int n = (int)(i / 3) * 20 + 1, k = i % 3 == 0 ? 1 : 4, d = 131;
        const mx_dtype t = dev->act = types[i % 3];
        mx_mat x = random_mat(t, n * k, d, 3, 1, &seed), y = random_mat(MX_F32, n, d, 1, 1, &seed);
        mx_mat w = random_mat(MX_F32, n, k, 0, 1, &seed);
        float *xv = values_of(&x), *want = need(malloc((size_t)(n * d) * sizeof *want));
        for (int r = 0; r < n; r++)
            for (int c = 0; c < d; c++) {
                double s = 0;
                for (int j = 0; j < k; j++) s += (double)((float *)w.p)[r * k + j] * xv[(r * k + j) * d + c];
                want[r * d + c] = (float)s;
            }
        CHECK_OK(mx_op_expert_sum(dev, &y, &x, w.p, k, &err), &err);
        check_values(&y, want, 5e-7, "sum", i);
        free(x.p), free(y.p), free(w.p), free(xv), free(want);
    }
}
LEVEL_TESTS(sums_over_experts)

static void gated_norms(mx_dev *dev) {
    mx_err err;
    uint64_t seed = 9;
    for (size_t i = 0; i < countof(types) * 3; i++) {
        const int n = i < 3 ? 1 : 37, hd = i % 2 ? 128 : 33, heads = 5, d = hd * heads;
        const mx_dtype t = dev->act = types[i % 3];
        mx_mat x = random_mat(t, n, d, 3, 2, &seed), z = random_mat(t, n, d, 2, 2, &seed);
        mx_mat y = random_mat(t, n, d, 1, 1, &seed), w = random_mat(MX_F32, 1, hd, 0, 1, &seed);
        float *xv = values_of(&x), *zv = values_of(&z);
        CHECK_OK(mx_op_gated_norm(dev, &y, &x, &z, w.p, hd, 1e-6f, &err), &err);
        for (int h = 0; h < n * heads; h++) {
            double sq = 0;
            for (int c = 0; c < hd; c++) sq += (double)xv[h * hd + c] * xv[h * hd + c];
            for (int c = 0; c < hd; c++)
                xv[h * hd + c] = (float)(xv[h * hd + c] / sqrt(sq / hd + 1e-6) * ((float *)w.p)[c] *
                                         activation(MX_ACT_SILU, zv[h * hd + c]));
        }
        check_values(&y, xv, tolerance(t), "gated norm", i);
        free(x.p), free(z.p), free(y.p), free(w.p), free(xv), free(zv);
    }
}
LEVEL_TESTS(gated_norms)

TEST(wrong_arguments)
{
    mx_dev *dev = open_level(NULL, 1);
    mx_err err;
    float f[64] = {0};
    int32_t ids[4] = {0};
    mx_mat a = {MX_F32, 2, 8, 8, f}, b = {MX_F32, 2, 4, 4, f}, h = {MX_BF16, 2, 8, 8, f},
           hole = {MX_F32, 2, 8, 8, NULL};
    mx_mat tight = {MX_F32, 2, 8, 4, f}, none = {MX_F32, 0, 8, 8, NULL};
    CHECK_FAILS(mx_op_rms_norm(dev, &a, &b, NULL, NULL, 0, &err), MX_EINVAL, &err,
                "y is [2, 8], expected [2, 4]");
    CHECK_FAILS(mx_op_rms_norm(dev, &a, &h, NULL, NULL, 0, &err), MX_EINVAL, &err,
                "rms_norm: x is bfloat16, not float32");
    CHECK_FAILS(mx_op_rms_norm(dev, &a, &hole, NULL, NULL, 0, &err), MX_EINVAL, &err,
                "x [2, 8] has no memory");
    CHECK_FAILS(mx_op_rms_norm(dev, &a, &a, NULL, NULL, NAN, &err), MX_EINVAL, &err, "eps cannot be");
    CHECK_FAILS(mx_op_glu(dev, &a, &tight, &a, MX_ACT_SILU, &err), MX_EINVAL, &err,
                "8 columns but its rows are 4 apart");
    CHECK_FAILS(mx_op_glu(dev, &a, &a, &a, (mx_act)9, &err), MX_EINVAL, &err, "activation is 9");
    CHECK_FAILS(mx_op_glu(dev, &a, NULL, &a, MX_ACT_SILU, &err), MX_EINVAL, &err, "no matrix gate");
    CHECK_FAILS(mx_op_add(dev, &a, &b, 1, &err), MX_EINVAL, &err, "add: y is [2, 4], expected [2, 8]");
    CHECK_FAILS(mx_op_sigmoid_gate(dev, &a, &b, &err), MX_EINVAL, &err, "gate is [2, 4], expected [2, 8]");
    CHECK_FAILS(mx_op_gather(dev, &a, &a, NULL, &err), MX_EINVAL, &err, "rows is NULL");
    CHECK_FAILS(mx_op_softcap(dev, &a, 0, &err), MX_EINVAL, &err, "c cannot be 0");
    CHECK_FAILS(mx_op_gated_norm(dev, &a, &a, &a, f, 3, 0, &err), MX_EINVAL, &err,
                "heads of 3 do not divide");
    CHECK_FAILS(mx_op_expert_sum(dev, &b, &b, f, 2, &err), MX_EINVAL, &err, "x is [2, 4], expected [4, 4]");
    mx_route r = {.n_expert = 8, .k = 9, .scale = 1, .logits = a, .ids = ids, .weights = f};
    CHECK_FAILS(mx_op_route(dev, &r, &err), MX_EINVAL, &err, "k is 9, outside 1..8");
    r.k = 2, r.n_expert = 7;
    CHECK_FAILS(mx_op_route(dev, &r, &err), MX_EINVAL, &err, "logits is [2, 8], expected [n, 7]");
    mx_qmat w = {.type = MX_F32, .n_stack = 1, .n_out = 4, .n_in = 6, .codes = f};
    CHECK_FAILS(mx_op_embed(dev, &a, &w, ids, 1, &err), MX_EINVAL, &err, "x is [2, 8], expected [n, 6]");
    mx_matmul mm = {.y = a, .w = &w};
    CHECK_FAILS(mx_op_matmul(dev, &mm, 1, &a, &err), MX_EINVAL, &err, "x is [2, 8], weight 0 is [1, 4, 6]");
    CHECK_FAILS(mx_op_matmul(dev, &mm, 0, &a, &err), MX_EINVAL, &err, "number of products is 0");
    mx_expert_matmul em = {.y = a, .w = &w};
    CHECK_FAILS(mx_op_expert_matmul(dev, &em, 1, &a, ids, 3, 1, &err), MX_EINVAL, &err,
                "2 rows of x serve 1 products");
    CHECK_FAILS(mx_op_clear(dev, NULL, 4, &err), MX_EINVAL, &err, "memory is NULL");
    CHECK_OK(mx_op_rms_norm(dev, &none, &none, NULL, NULL, 0, &err), &err);
    CHECK_OK(mx_op_glu(dev, &none, &none, &none, MX_ACT_RELU, &err), &err);
    CHECK_OK(mx_op_clear(dev, f, sizeof f, &err), &err);
    mx_backend less = *dev->be; // a device that lacks an op says so
    less.glu = NULL;
    dev->be = &less;
    CHECK_FAILS(mx_op_glu(dev, &a, &a, &a, MX_ACT_SILU, &err), MX_UNSUPPORTED, &err,
                "glu: the cpu backend has no such op");
    dev->be = &mx_backend_cpu;
    mx_dev_close(dev);
}

TEST(devices_and_buffers)
{
    mx_dev *dev = NULL;
    mx_err err;
    CHECK_FAILS(mx_dev_open(&dev, "tpu", NULL, &err), MX_ENOTFOUND, &err,
                "no device \"tpu\" in this build: choose auto");
    CHECK_FAILS(mx_dev_open(&dev, "tpu", NULL, &err), MX_ENOTFOUND, &err, "cpu");
    CHECK_FAILS(mx_dev_open(&dev, "cpu", &(mx_dev_options){.isa = "sse9"}, &err), MX_EINVAL, &err, "sse9");
    CHECK_FAILS(mx_dev_open(&dev, "cpu", &(mx_dev_options){.threads = -1}, &err), MX_EINVAL, &err,
                "-1 threads");
    CHECK(!dev);
    CHECK_OK(mx_dev_open(&dev, "auto", &(mx_dev_options){.threads = 1, .max_bytes = 4 << 20, .isa = "scalar"},
                         &err),
             &err);
    CHECK(strstr(dev->name, "(1 thread, scalar)"), "%s", dev->name);
    CHECK_STR(dev->isa, "scalar");
    mx_buf a = {0}, b = {0}, c = {0};
    CHECK_OK(mx_buf_new(&a, dev, 3 << 20, "weights", &err), &err);
    CHECK_FAILS(mx_buf_new(&b, dev, 2 << 20, "KV cache", &err), MX_ENOMEM, &err,
                "KV cache: 2097152 bytes are too many");
    CHECK_FAILS(mx_buf_new(&b, dev, SIZE_MAX, "KV cache", &err), MX_ENOMEM, &err, "KV cache");
    CHECK_OK(mx_buf_new(&b, dev, 1 << 10, "scratch", &err), &err);
    CHECK_OK(mx_buf_new(&c, dev, 0, "nothing", &err), &err);
    CHECK(b.p && c.p && (uintptr_t)a.p % 256 == 0 && (uintptr_t)b.p % 256 == 0);
    for (int i = 0; i < 1 << 10; i++) CHECK(((char *)b.p)[i] == 0);
    CHECK_INT(dev->allocated, (3 << 20) + (1 << 10));
    char out[8];
    CHECK_OK(mx_op_upload(dev, (char *)a.p + (3 << 20) - 8, "1234567", 8, &err), &err);
    CHECK_OK(mx_op_download(dev, out, (char *)a.p + (3 << 20) - 8, 8, &err), &err);
    CHECK_OK(mx_op_wait(dev, &err), &err);
    CHECK_STR(out, "1234567");
    mx_buf_free(&a), mx_buf_free(&b), mx_buf_free(&c), mx_buf_free(&c);
    CHECK_INT(dev->allocated, 0);
    CHECK_INT(dev->peak, (3 << 20) + (1 << 10));
    mx_dev_close(dev);
    CHECK_OK(mx_dev_open(&dev, "cpu", NULL, &err), &err);
    CHECK_FAILS(mx_buf_new(&a, dev, (size_t)1 << 62, "a dream", &err), MX_ENOMEM, &err,
                "a dream: the system has no");
    mx_dev_close(dev);
}
