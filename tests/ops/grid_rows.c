/* grid_rows.c - embedding, norms, activations, gates, routing and sums over experts: the device against the scalar twin. */
#include "grid.h"

/* Rows and columns: past a wave, a vector of 4, the columns of a block (1024) and of what threads keep (4096). */
static const int shapes[][2] = {{1, 1},    {3, 7},    {1, 576},  {40, 65},
                                {2, 1025}, {2, 4099}, {1, 9000}, {130, 256}};
#define EACH_SHAPE(i, n, d)                                                                                  \
    for (size_t i = 0; i < countof(shapes); i++)                                                             \
        for (int n = shapes[i][0], d = shapes[i][1]; n; n = 0)

/* Run `op` on both devices and compare y, and x too where the op changes it. Inputs have gaps between rows, so that some are
 * aligned to 16 bytes and some are not. */
typedef struct {
    const char *op;
    double bound;
    mx_mat x, y, a, b; // on the host; a, b: further inputs
    const float *w;    // [d] or NULL
    float number;
    int act;
} job;

static mx_status call(mx_dev *d, const job *j, mx_mat *x, mx_mat *y, mx_mat *a, mx_mat *b, const float *w,
                      mx_err *err) {
    if (!strcmp(j->op, "rms_norm")) return mx_op_rms_norm(d, y, x, j->act ? a : NULL, w, j->number, err);
    if (!strcmp(j->op, "gated_norm")) return mx_op_gated_norm(d, y, x, a, w, j->act, j->number, err);
    if (!strcmp(j->op, "glu")) return mx_op_glu(d, y, x, a, (mx_act)j->act, err);
    if (!strcmp(j->op, "add")) return mx_op_add(d, x, a, j->number, err);
    if (!strcmp(j->op, "sigmoid_gate")) return mx_op_sigmoid_gate(d, x, j->act ? b : a, err);
    return mx_op_softcap(d, x, j->number, err);
}

static void run(const job *j, const char *what, size_t i) {
    float *x[2], *y[2];
    BOTH(d, k) {
        mx_err err;
        mx_mat dx = grid_mat(d, &j->x), dy = grid_mat(d, &j->y), da = grid_mat(d, &j->a),
               db = grid_mat(d, &j->b);
        const float *w = j->w ? grid_put(d, j->w, (size_t)j->x.cols * 4) : NULL;
        CHECK_OK(call(d, j, &dx, &dy, &da, &db, w, &err), &err);
        x[k] = grid_values(d, &dx), y[k] = grid_values(d, &dy);
    }
    const size_t n = (size_t)j->x.rows * (size_t)j->x.cols;
    grid_close(j->op, j->bound, x[0], x[1], n, "%s, case %zu: x", what, i);
    grid_close(j->op, j->bound, y[0], y[1], n, "%s, case %zu: y", what, i);
    grid_free();
}

TEST(norms_activations_and_gates)
{
    uint64_t seed = 11;
    EACH_SHAPE(i, n, d) {
        mx_mat w = random_mat(MX_F32, 1, d, 0, 1, &seed);
        job j = {.x = random_mat(MX_F32, n, d, 3, 3, &seed), .y = random_mat(MX_F32, n, d, 1, 1, &seed)};
        j.a = random_mat(MX_F32, n, d, 4, 3, &seed), j.b = random_mat(MX_F32, n, 1, 2, 2, &seed);
        j.number = 1e-5f, j.op = "rms_norm", j.bound = BOUND_F32;
        run(&j, "plain", i);
        j.w = w.p, j.act = 1;
        run(&j, "weighted, with a residual", i);
        j.op = "gated_norm";
        for (j.act = 1; j.act <= d; j.act++) // heads: of the whole row, a half, 33, 128
            if (j.act == d || ((j.act == 33 || j.act == 128 || 2 * j.act == d) && d % j.act == 0))
                run(&j, "heads", i);
        j.w = NULL, j.op = "glu";
        for (j.act = MX_ACT_SILU; j.act <= MX_ACT_RELU2; j.act++) run(&j, "activation", i);
        j.op = "add", j.number = -0.75f;
        run(&j, "minus three quarters", i);
        j.op = "sigmoid_gate", j.act = 0;
        run(&j, "a gate each", i);
        j.act = 1;
        run(&j, "a gate a row", i);
        j.op = "softcap", j.number = 3;
        run(&j, "cap 3", i);
        free(j.x.p), free(j.y.p), free(j.a.p), free(j.b.p), free(w.p);
    }
}

/* Every magnitude by itself: a 2-norm would hide a bad tail. */
TEST(activations_at_the_ends)
{
    enum { N = 4001 };
    float x[N], one[N];
    for (int i = 0; i < N; i++) x[i] = (float)((i - 2000) * 0.05), one[i] = 1;
    x[0] = -1e30f, x[1] = 1e18f, x[2] = -1e-30f, x[3] = 1e-30f, x[4] = NAN, x[5] = 0;
    for (int act = 0; act <= MX_ACT_RELU2 + 1; act++) { // the last: softcap
        float *out[2];
        BOTH(d, k) {
            mx_err err;
            mx_mat host = {MX_F32, 1, N, N, x}, dx = grid_mat(d, &host), ones = {MX_F32, 1, N, N, one},
                   up = grid_mat(d, &ones);
            if (act <= MX_ACT_RELU2)
                CHECK_OK(mx_op_glu(d, &dx, &dx, &up, (mx_act)act, &err), &err);
            else
                CHECK_OK(mx_op_softcap(d, &dx, 3, &err), &err);
            out[k] = grid_values(d, &dx);
        }
        for (int i = 0; i < N; i++) { // 3e-6 of the value; gelu's left tail, below 1e-14, is below use
            const double want = out[1][i], got = out[0][i];
            CHECK((isnan(want) && isnan(got)) ||
                      fabs(got - want) <=
                          3e-6 * fabs(want) + 1e-30 + (x[i] < -4 ? 4e-5 * fabs(want) + 1e-14 : 0),
                  "activation %d of %g is %g, not %g", act, (double)x[i], got, want);
        }
        free(out[0]), free(out[1]);
        grid_free();
    }
}

TEST(embedding)
{
    static const int widths[] = {32, 64, 67, 640, 1056, 4096};
    const int32_t ids[] = {3, 0, 10, 3, 7};
    for (int f = 0; f < grid_n_format; f++)
        for (size_t i = 0; i < countof(widths); i++) {
            const grid_format *form = &grid_formats[f];
            if (!grid_fits(form, widths[i])) continue;
            mx_qmat w = grid_weight(form, 1, 11, widths[i], (uint64_t)f + i);
            float *out[2];
            BOTH(d, k) {
                mx_err err;
                uint64_t seed = 1;
                mx_qmat dw = grid_qmat(d, &w);
                mx_mat x = random_mat(MX_F32, 5, widths[i], (int)i % 2 * 4 + 1, 1, &seed),
                       dx = grid_mat(d, &x);
                CHECK_OK(mx_op_embed(d, &dx, &dw, grid_put(d, ids, sizeof ids), 2.5f, &err), &err);
                out[k] = grid_values(d, &dx);
                free(x.p);
            }
            grid_close("embed", BOUND_F32, out[0], out[1], (size_t)(5 * widths[i]), "%s, %d", grid_show(form),
                       widths[i]);
            grid_weight_free(&w);
            grid_free();
        }
}

TEST(gather_and_clear)
{
    const int32_t rows[] = {6, 0, 6, 3};
    uint64_t seed = 12;
    for (int d_cols = 1; d_cols < 3000; d_cols = d_cols * 4 + 1) {
        mx_mat x = random_mat(MX_F32, 7, d_cols, 3, 1, &seed), y = random_mat(MX_F32, 4, d_cols, 1, 1, &seed);
        float *out[2];
        BOTH(d, k) {
            mx_err err;
            mx_mat dx = grid_mat(d, &x), dy = grid_mat(d, &y);
            CHECK_OK(mx_op_gather(d, &dy, &dx, grid_put(d, rows, sizeof rows), &err), &err);
            out[k] = grid_values(d, &dy);
            CHECK_OK(mx_op_clear(d, dx.p, 4, &err), &err); // the first value alone
            float *left = grid_get(d, dx.p, 8);
            CHECK(left[0] == 0 && left[1] == ((float *)x.p)[1], "clear");
            free(left);
        }
        grid_close("gather", BOUND_SAME, out[0], out[1], (size_t)(4 * d_cols), "%d columns", d_cols);
        free(x.p), free(y.p);
        grid_free();
    }
}

TEST(routing)
{
    static const int cases[][3] = {
        {5, 8, 2},   {3, 128, 8},  {1, 60, 4},   {200, 32, 32}, {2, 1, 1},
        {4, 256, 8}, {2, 257, 10}, {2, 512, 10}, {1, 4096, 6}}; // tokens, experts, k
    uint64_t seed = 13;
    for (size_t i = 0; i < countof(cases) * 3; i++) {
        const int n = cases[i / 3][0], ne = cases[i / 3][1], k = cases[i / 3][2];
        const size_t all = (size_t)(n * k);
        mx_mat l = random_mat(MX_F32, n, ne, 3, 2, &seed);
        for (int r = 0; r < n && ne > 8; r += 2)
            ((float *)l.p)[r * l.ld + 3] = ((float *)l.p)[r * l.ld + 7]; // a tie
        float *weights[2];
        int32_t *ids[2];
        BOTH(d, which) {
            mx_err err;
            mx_route r = {.kind = i % 3 == 2 ? MX_ROUTE_TOPK_SOFTMAX : MX_ROUTE_SOFTMAX_TOPK,
                          .normalize = i % 3 == 1};
            r.scale = 2.5f, r.n_expert = ne, r.k = k, r.logits = grid_mat(d, &l);
            r.ids = grid_put(d, NULL, all * 4), r.weights = grid_put(d, NULL, all * 4);
            CHECK_OK(mx_op_route(d, &r, &err), &err);
            weights[which] = grid_get(d, r.weights, all * 4), ids[which] = grid_get(d, r.ids, all * 4);
        }
        grid_same("route: experts", ids[0], ids[1], all * 4, "case %zu", i);
        grid_close("route", BOUND_F32, weights[0], weights[1], all, "case %zu", i);
        free(l.p);
        grid_free();
    }
}

TEST(sums_over_experts)
{
    uint64_t seed = 14;
    for (int k = 1; k <= 8; k += k < 2 ? 1 : 6) EACH_SHAPE(i, n, d) {
            mx_mat x = random_mat(MX_F32, n * k, d, 3, 1, &seed), y = random_mat(MX_F32, n, d, 1, 1, &seed),
                   w = random_mat(MX_F32, n, k, 0, 1, &seed);
            float *out[2];
            BOTH(dev, which) {
                mx_err err;
                mx_mat dx = grid_mat(dev, &x), dy = grid_mat(dev, &y), dw = grid_mat(dev, &w);
                CHECK_OK(mx_op_expert_sum(dev, &dy, &dx, dw.p, k, &err), &err);
                out[which] = grid_values(dev, &dy);
            }
            grid_close("expert_sum", BOUND_F32, out[0], out[1], (size_t)(n * d), "k %d, case %zu", k, i);
            free(x.p), free(y.p), free(w.p);
            grid_free();
        }
}

/* Rows that begin beyond 2^31 values: offsets need 64 bits. Two rows of 64 values, 2^31 + 64 apart. */
TEST(offsets_beyond_2_to_31)
{
    enum { COLS = 64 };
    const int64_t far = ((int64_t)1 << 31) + 64;
    if (!grid_long()) SKIP("8.6 GB; MX_LONG=1 runs it");
    mx_err err = {0};
    mx_dev *d = grid_dev();
    mx_buf big = {0};
    if (mx_buf_new(&big, d, (size_t)(far + COLS) * 4, "a far row", &err) != MX_OK) SKIP("%s", err.msg);
    uint64_t seed = 15;
    mx_mat host = random_mat(MX_F32, 2, COLS, 0, 1, &seed), x = {MX_F32, 2, COLS, far, big.p},
           y = grid_mat(d, &host);
    for (int r = 0; r < 2; r++)
        CHECK_OK(mx_op_upload(d, (float *)big.p + r * far, (float *)host.p + r * COLS, COLS * 4, &err), &err);
    CHECK_OK(mx_op_rms_norm(d, &y, &x, NULL, NULL, 1e-6f, &err), &err);
    float *got = grid_values(d, &y), *want = need(malloc(2 * COLS * 4));
    for (int r = 0; r < 2; r++) {
        double sq = 0;
        for (int c = 0; c < COLS; c++) sq += pow(((float *)host.p)[r * COLS + c], 2);
        for (int c = 0; c < COLS; c++)
            want[r * COLS + c] = (float)(((float *)host.p)[r * COLS + c] / sqrt(sq / COLS + 1e-6));
    }
    grid_close("far rows", BOUND_F32, got, want, 2 * COLS, "rms_norm");
    CHECK_OK(mx_op_softmax(d, &x, &x, 1, &err), &err);
    float *first = grid_get(d, big.p, COLS * 4), *last = grid_get(d, (float *)big.p + far, COLS * 4);
    mx_mat t = grid_mat(grid_twin(), &host);
    CHECK_OK(mx_op_softmax(grid_twin(), &t, &t, 1, &err), &err);
    float *p = grid_values(grid_twin(), &t);
    CHECK_CLOSE(first, p, COLS, BOUND_F32, "first row");
    CHECK_CLOSE(last, p + COLS, COLS, BOUND_F32, "far row");
    free(first), free(last), free(p), free(host.p);
    mx_buf_free(&big);
    grid_free();
}
