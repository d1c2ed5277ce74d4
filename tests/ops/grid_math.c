/* grid_math.c - ops on rows of numbers: each against its equation in double precision, on any device. */
#include "grid.h"

/* Rows and columns: past a wave, a vector of 4, the 4096 values that threads keep, a tile. */
static const int shapes[][2] = {{1, 1},    {3, 7},    {2, 129},  {5, 1024},
                                {3, 1025}, {2, 4097}, {1, 8193}, {70, 33}};

TEST(layer_norm)
{
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 1;
    for (size_t i = 0; i < countof(shapes) * 4; i++) {
        const int n = shapes[i / 4][0], cols = shapes[i / 4][1];
        const bool add = i & 1, affine = i & 2;
        mx_mat x = random_mat(MX_F32, n, cols, 3, 2, &seed), a = random_mat(MX_F32, n, cols, 1, 2, &seed);
        mx_mat w = random_mat(MX_F32, 1, cols, 0, 1, &seed), b = random_mat(MX_F32, 1, cols, 0, 1, &seed);
        for (int64_t r = 0; r < n; r++) // a mean far from zero: squares must not cancel
            for (int c = 0; c < cols; c++) ((float *)x.p)[r * x.ld + c] += 30;
        mx_mat dx = grid_mat(d, &x), da = grid_mat(d, &a), dw = grid_mat(d, &w), db = grid_mat(d, &b),
               dy = grid_blank(d, n, cols, 2);
        CHECK_OK(mx_op_layer_norm(d, &dy, &dx, add ? &da : NULL, affine ? dw.p : NULL, affine ? db.p : NULL,
                                  1e-5f, &err),
                 &err);
        float *xv = values_of(&x), *av = values_of(&a), *want = need(malloc((size_t)(n * cols) * 4));
        for (int r = 0; r < n; r++) {
            double sum = 0, sq = 0;
            for (int c = r * cols; c < (r + 1) * cols; c++) sum += xv[c] += add ? av[c] : 0;
            for (int c = r * cols; c < (r + 1) * cols; c++) sq += pow(xv[c] - sum / cols, 2);
            for (int c = 0; c < cols; c++) {
                double v = (xv[r * cols + c] - sum / cols) / sqrt(sq / cols + 1e-5);
                want[r * cols + c] = (float)(affine ? v * ((float *)w.p)[c] + ((float *)b.p)[c] : v);
            }
        }
        // The mean is a sum of terms near 30 whose rounding the differences from it, near 2, show: 15 times.
        grid_close("layer_norm", 15 * BOUND_F32, grid_values(d, &dy), want, (size_t)(n * cols), "case %zu",
                   i);
        grid_close("layer_norm: x", BOUND_SAME, grid_values(d, &dx), xv, (size_t)(n * cols), "case %zu", i);
        free(x.p), free(a.p), free(w.p), free(b.p), free(av);
        grid_free();
    }
}

TEST(softmax_sums_and_log_probabilities)
{
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 2;
    for (size_t i = 0; i < countof(shapes) * 2; i++) {
        const int n = shapes[i / 2][0], cols = shapes[i / 2][1];
        const size_t all = (size_t)(n * cols);
        const float scale = i & 1 ? 0.25f : 1;
        mx_mat x = random_mat(MX_F32, n, cols, 3, 8, &seed), dx = grid_mat(d, &x),
               dy = grid_blank(d, n, cols, 1);
        float *out = grid_put(d, NULL, (size_t)n * 4), *sum = grid_put(d, NULL, (size_t)n * 4),
              *lp = grid_put(d, NULL, (size_t)n * 4), *work = grid_put(d, NULL, (size_t)n * 4);
        int32_t *ids = need(malloc((size_t)n * 4));
        for (int r = 0; r < n; r++) ids[r] = (int32_t)(mx_test_rand(&seed) % (uint64_t)cols);
        if (n > 2) ids[1] = cols, ids[2] = -1; // outside: NaN
        int32_t *dids = grid_put(d, ids, (size_t)n * 4);
        CHECK_OK(mx_op_softmax(d, &dy, &dx, scale, &err), &err);
        CHECK_OK(mx_op_logsumexp(d, out, &dx, &err), &err);
        CHECK_OK(mx_op_sum(d, sum, &dx, &err), &err);
        float *xv = values_of(&x), *p = need(malloc(all * 4)), *lse = need(malloc((size_t)n * 4)),
              *total = need(malloc((size_t)n * 4)), *want = need(malloc((size_t)n * 4));
        double size = 0; // of what is summed: a sum may cancel
        for (int r = 0; r < n; r++) {
            double top = -INFINITY, sum_p = 0, sum_1 = 0, sum_x = 0;
            for (int c = r * cols; c < (r + 1) * cols; c++) top = fmax(top, xv[c]);
            for (int c = r * cols; c < (r + 1) * cols; c++) {
                sum_p += exp((xv[c] - top) * scale), sum_1 += exp(xv[c] - top), sum_x += xv[c];
                size += fabs(xv[c]) / n;
            }
            for (int c = r * cols; c < (r + 1) * cols; c++)
                p[c] = (float)(exp((xv[c] - top) * scale) / sum_p);
            lse[r] = (float)(top + log(sum_1)), total[r] = (float)sum_x;
            want[r] =
                ids[r] < 0 || ids[r] >= cols ? NAN : (float)(xv[r * cols + ids[r]] - (top + log(sum_1)));
        }
        grid_close("softmax", BOUND_F32, grid_values(d, &dy), p, all, "case %zu", i);
        CHECK_OK(mx_op_softmax(d, &dx, &dx, scale, &err), &err); // in place
        grid_close("softmax", BOUND_SAME, grid_values(d, &dx), grid_values(d, &dy), all, "in place, case %zu",
                   i);
        grid_close("logsumexp", BOUND_F32, grid_get(d, out, (size_t)n * 4), lse, (size_t)n, "case %zu", i);
        float *got = grid_get(d, sum, (size_t)n * 4);
        for (int r = 0; r < n; r++) // absolute, in units of the terms' sizes together
            CHECK(fabs(got[r] - (double)total[r]) <= 1e-6 * size, "sum, case %zu: %g, not %g", i,
                  (double)got[r], (double)total[r]);
        free(got), free(total);
        dx = grid_mat(d, &x);
        mx_token_log_prob a = {.logits = dx, .ids = dids, .out = lp, .work = work};
        for (int ports = 0; ports < 2; ports++) { // the port, where there is one, and the composition
            d->no_ports = !ports;
            mx_status st = mx_op_token_log_prob(d, &a, &err);
            d->no_ports = false;
            CHECK_OK(st, &err);
            float *again = need(malloc((size_t)n * 4));
            memcpy(again, want, (size_t)n * 4);
            grid_close("token_log_prob", BOUND_F32, grid_get(d, lp, (size_t)n * 4), again, (size_t)n,
                       "ports %d, case %zu", ports, i);
        }
        free(x.p), free(xv), free(ids), free(want);
        grid_free();
    }
}

/* What is not finite shows, and only in its own row. */
TEST(not_finite_rows)
{
    mx_dev *d = grid_dev();
    mx_err err;
    enum { N = 5, COLS = 300 };
    uint64_t seed = 3;
    mx_mat x = random_mat(MX_F32, N, COLS, 0, 1, &seed);
    float *v = x.p;
    v[1 * COLS + 299] = NAN, v[2 * COLS + 5] = INFINITY, v[4 * COLS + 5] = -INFINITY;
    for (int c = 0; c < COLS; c++) v[3 * COLS + c] = -INFINITY;
    mx_mat dx = grid_mat(d, &x), dy = grid_blank(d, N, COLS, 0);
    float *out = grid_put(d, NULL, N * 4), *best = grid_put(d, NULL, N * 4);
    int32_t *ids = grid_put(d, NULL, N * 4);
    CHECK_OK(mx_op_softmax(d, &dy, &dx, 1, &err), &err);
    CHECK_OK(mx_op_logsumexp(d, out, &dx, &err), &err);
    CHECK_OK(mx_op_argmax(d, ids, best, &dx, &err), &err);
    float *p = grid_values(d, &dy), *lse = grid_get(d, out, N * 4), *top = grid_get(d, best, N * 4);
    int32_t *at = grid_get(d, ids, N * 4);
    for (int r = 0; r < N; r++) {
        const bool bad = r >= 1 && r <= 3;
        CHECK(isnan(lse[r]) == bad, "row %d: logsumexp %g", r, (double)lse[r]);
        CHECK(isnan(p[r * COLS]) == bad, "row %d: softmax %g", r, (double)p[r * COLS]);
    }
    CHECK(p[4 * COLS + 5] == 0);
    CHECK(isnan(top[1]) && at[1] == 299 && at[2] == 5 && at[3] == 0, "argmax %d %d %d", at[1], at[2], at[3]);
    free(p), free(lse), free(top), free(at), free(x.p);
    grid_free();
}

/* ---- orders ---------------------------------------------------------------------------------------------- */

static const float *sort_values; // what compare() looks at
static bool sort_falling;
static int compare(const void *a, const void *b) {
    const int i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = sort_values[i], y = sort_values[j];
    if (isnan(x) != isnan(y)) return isnan(x) ? 1 : -1;
    if (!isnan(x) && x != y) return (x < y) == !sort_falling ? -1 : 1;
    return i < j ? -1 : 1;
}

TEST(sort_and_top_k)
{
    static const int lengths[][2] = {{3, 1},    {2, 2},     {5, 63},    {3, 64},     {2, 65},
                                     {70, 300}, {2, 4095},  {2, 4096},  {2, 4097},   {1, 8192},
                                     {3, 8193}, {2, 12289}, {1, 32769}, {1, 200000}, {2, 151936}};
    static const int ks[] = {1, 5, 32, 33, 256, 5000};
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 4;
    for (size_t i = 0; i < countof(lengths) * 2; i++) {
        const int n = lengths[i / 2][0], cols = lengths[i / 2][1];
        if (cols > 40000 && !grid_long() && !grid_is_cpu() && strcmp(d->be->name, "cuda"))
            continue; // slow there
        const bool falling = i & 1;
        mx_mat x = random_mat(MX_F32, n, cols, 3, 1, &seed);
        for (int64_t r = 0; r < n; r++)
            for (int c = 0; c < cols; c++) { // many equals, some zeros of either sign, NaN and infinities
                float *v = (float *)x.p + r * x.ld + c;
                const int kind = (int)(mx_test_rand(&seed) % 64);
                if (kind < 32) *v = rintf(*v * 8) / 8;
                if (kind == 33 && cols > 100) *v = NAN;
                if (kind == 34) *v = c & 1 ? INFINITY : -INFINITY;
            }
        mx_mat dx = grid_mat(d, &x), dy = grid_blank(d, n, cols, 1);
        const size_t all = (size_t)n * (size_t)cols;
        int32_t *dids = grid_put(d, NULL, all * 4), *order = need(malloc(all * 4));
        float *xv = values_of(&x), *sorted = need(malloc(all * 4));
        for (int r = 0; r < n; r++) {
            sort_values = xv + (size_t)r * (size_t)cols, sort_falling = falling;
            for (int c = 0; c < cols; c++) order[r * cols + c] = c;
            qsort(order + r * cols, (size_t)cols, 4, compare);
            for (int c = 0; c < cols; c++) sorted[r * cols + c] = sort_values[order[r * cols + c]];
        }
        CHECK_OK(mx_op_sort(d, &dy, dids, &dx, falling, &err), &err);
        for (size_t k = 0; falling && k < countof(ks) && ks[k] <= cols; k++) {
            const size_t take = (size_t)ks[k];
            float *values = grid_put(d, NULL, (size_t)n * take * 4);
            int32_t *ids = grid_put(d, NULL, (size_t)n * take * 4);
            CHECK_OK(mx_op_top_k(d, ids, values, &dx, ks[k], &err), &err);
            float *got = grid_get(d, values, (size_t)n * take * 4),
                  *want = need(malloc((size_t)n * take * 4));
            int32_t *at = grid_get(d, ids, (size_t)n * take * 4);
            for (int r = 0; r < n; r++)
                for (size_t j = 0; j < take; j++) {
                    want[(size_t)r * take + j] = sorted[(size_t)(r * cols) + j];
                    const float v =
                        want[(size_t)r * take + j]; // among zeros of either sign the device may choose
                    CHECK(at[(size_t)r * take + j] == order[(size_t)(r * cols) + j] || v == 0,
                          "top %zu of %d, row %d: %zu is column %d, not %d", take, cols, r, j,
                          at[(size_t)r * take + j], order[(size_t)(r * cols) + j]);
                }
            grid_close("top_k", BOUND_SAME, got, want, (size_t)n * take, "%zu of %d", take, cols);
            free(at);
        }
        grid_same("sort: columns", grid_get(d, dids, all * 4), order, all * 4, "%d rows of %d", n, cols);
        grid_close("sort", BOUND_SAME, grid_values(d, &dy), sorted, all, "%d rows of %d", n, cols);
        free(x.p), free(xv);
        grid_free();
    }
}

TEST(argmax_takes_the_first_of_equals)
{
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 5;
    for (size_t i = 0; i < countof(shapes); i++) {
        const int n = shapes[i][0], cols = shapes[i][1];
        mx_mat x = random_mat(MX_F32, n, cols, 1, 1, &seed);
        for (size_t j = 0; j < (size_t)n * (size_t)x.ld; j++)
            ((float *)x.p)[j] = rintf(((float *)x.p)[j]) - 1;
        for (int r = 0; r < n; r++) ((float *)x.p)[r * x.ld + cols] = 77; // the gaps again
        mx_mat dx = grid_mat(d, &x);
        int32_t *ids = grid_put(d, NULL, (size_t)n * 4), *want = need(malloc((size_t)n * 4));
        float *values = grid_put(d, NULL, (size_t)n * 4), *top = need(malloc((size_t)n * 4));
        CHECK_OK(mx_op_argmax(d, ids, values, &dx, &err), &err);
        float *xv = values_of(&x);
        for (int r = 0; r < n; r++) {
            want[r] = 0;
            for (int c = 1; c < cols; c++)
                if (xv[r * cols + c] > xv[r * cols + want[r]]) want[r] = c;
            top[r] = xv[r * cols + want[r]];
        }
        int32_t *got = grid_get(d, ids, (size_t)n * 4);
        for (int r = 0; r < n; r++) // a zero may stand for one of the other sign
            CHECK(got[r] == want[r] || (top[r] == 0 && xv[r * cols + got[r]] == 0), "row %d: %d, not %d", r,
                  got[r], want[r]);
        grid_close("argmax", BOUND_SAME, grid_get(d, values, (size_t)n * 4), top, (size_t)n, "case %zu", i);
        free(got), free(want), free(xv), free(x.p);
        grid_free();
    }
}

TEST(searchsorted)
{
    static const int cases[][3] = {
        {1, 1, 1}, {3, 7, 257}, {2, 1000, 65}, {4, 4097, 3}}; // rows, edges, values
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 6;
    for (size_t i = 0; i < countof(cases) * 4; i++) {
        const int n = cases[i / 4][0], m = cases[i / 4][1], cols = cases[i / 4][2], n_edges = i & 1 ? 1 : n;
        const bool right = i & 2;
        mx_mat e = random_mat(MX_F32, n_edges, m, 2, 1, &seed), v = random_mat(MX_F32, n, cols, 1, 1, &seed);
        for (int r = 0; r < n_edges; r++) { // rising, with equals
            float *row = (float *)e.p + r * e.ld, at = -2;
            for (int c = 0; c < m; c++) row[c] = at += mx_test_rand(&seed) % 3 ? 0.01f : 0;
        }
        for (int r = 0; r < n; r++)
            for (int c = 0; c < cols; c += 2) // half of the values are edges
                ((float *)v.p)[r * v.ld + c] = ((float *)e.p)[(n_edges == 1 ? 0 : r) * e.ld + c % m];
        ((float *)v.p)[0] = NAN;
        mx_mat de = grid_mat(d, &e), dv = grid_mat(d, &v);
        int32_t *out = grid_put(d, NULL, (size_t)(n * cols) * 4), *want = need(calloc((size_t)(n * cols), 4));
        CHECK_OK(mx_op_searchsorted(d, out, &de, &dv, right, &err), &err);
        for (int r = 0; r < n; r++)
            for (int c = 0; c < cols; c++) {
                const float x = ((float *)v.p)[r * v.ld + c],
                            *row = (float *)e.p + (n_edges == 1 ? 0 : r) * e.ld;
                for (int j = 0; j < m; j++)
                    want[r * cols + c] += isnan(x) || row[j] < x || (right && row[j] == x);
            }
        grid_same("searchsorted", grid_get(d, out, (size_t)(n * cols) * 4), want, (size_t)(n * cols) * 4,
                  "case %zu", i);
        free(e.p), free(v.p);
        grid_free();
    }
}

/* ---- fused ops -------------------------------------------------------------------------------------------- */

/* Both factors quantized: by the port, where there is one, and composed; against the twin on expanded numbers. */
TEST(products_of_two_quantized_factors)
{
    enum { E = 5, OUT = 70, IN = 256 };
    mx_err err;
    for (int i = 3; i < grid_n_format; i++) {
        const grid_format *f = &grid_formats[i];
        for (int n = 1; n <= 90; n = n * 8 + 1) {
            uint64_t seed = (uint64_t)i;
            const int n_row = 2 * n;
            mx_qmat w = grid_weight(f, E, OUT, IN, 1), x = grid_weight(f, 1, n, IN, 2);
            int32_t *ids = need(malloc((size_t)n_row * 4));
            for (int j = 0; j < n_row; j++) ids[j] = (int32_t)(mx_test_rand(&seed) % E);
            float *out[2];
            BOTH(d, which) {
                mx_qmat dw = grid_qmat(d, &w), dx = grid_qmat(d, &x);
                mx_qq_expert_matmul a = {.w = &dw, .x = &dx, .n_row = n_row, .x_div = 2};
                a.y = grid_blank(d, n_row, OUT, 0);
                a.ids = grid_put(d, ids, (size_t)n_row * 4);
                a.work = grid_put(d, NULL, (size_t)(n * IN) * 4);
                d->no_ports = which == 1;
                mx_status st = mx_op_qq_expert_matmul(d, &a, &err);
                d->no_ports = false;
                CHECK_OK(st, &err);
                out[which] = grid_values(d, &a.y);
            }
            grid_close("qq_expert_matmul", BOUND_BF16, out[0], out[1], (size_t)(n_row * OUT), "%s, %d rows",
                       grid_show(f), n_row);
            grid_weight_free(&w), grid_weight_free(&x);
            free(ids);
            grid_free();
        }
    }
}

TEST(wrong_arguments_of_math)
{
    mx_dev *d = grid_dev();
    mx_err err;
    mx_mat x = grid_blank(d, 2, 8, 0), y = grid_blank(d, 2, 4, 0);
    float *f = grid_put(d, NULL, 64);
    int32_t *ids = grid_put(d, NULL, 64);
    CHECK_FAILS(mx_op_layer_norm(d, &y, &x, NULL, NULL, NULL, 0, &err), MX_EINVAL, &err,
                "y is [2, 4], expected [2, 8]");
    CHECK_FAILS(mx_op_softmax(d, &x, &x, -1, &err), MX_EINVAL, &err, "scale cannot be -1");
    CHECK_FAILS(mx_op_sum(d, NULL, &x, &err), MX_EINVAL, &err, "sum: out is NULL");
    CHECK_FAILS(mx_op_top_k(d, ids, f, &x, 9, &err), MX_EINVAL, &err, "top_k: k is 9, outside 1..8");
    CHECK_FAILS(mx_op_sort(d, &x, ids, &x, false, &err), MX_EINVAL, &err, "sort: y cannot be x");
    CHECK_FAILS(mx_op_searchsorted(d, ids, &(mx_mat){MX_F32, 3, 8, 8, f}, &x, false, &err), MX_EINVAL, &err,
                "edges is [3, 8], expected [2, n]");
    CHECK_FAILS(mx_op_pick(d, f, &x, NULL, f, &err), MX_EINVAL, &err, "ids is NULL");
    mx_qmat none = {.type = MX_F32, .n_stack = 1, .n_out = 2, .n_in = 8, .codes = f};
    CHECK_FAILS(mx_op_quantize(d, &none, &x, &err), MX_EINVAL, &err, "not a way to quantize");
    const mx_backend *be = d->be;
    mx_math less = *be->math;
    mx_backend lacks = *be;
    less.fft = NULL, lacks.math = &less, d->be = &lacks;
    mx_status st = mx_op_fft(d, &y, &x, 4, MX_FFT, &err);
    d->be = be;
    CHECK(st == MX_UNSUPPORTED && strstr(err.msg, "backend has no such op"), "%s", err.msg);
    grid_free();
}
