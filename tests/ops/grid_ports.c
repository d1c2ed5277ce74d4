/* grid_ports.c - fused ops: the device's port, and its composition, against the twin's composition. */
#include "grid.h"
#include "backend/ops_fused.h"

/* What mx_op_product computes, of primitive ops. */
static mx_status compose(mx_dev *d, const mx_product *p, mx_err *err) {
    const int k = p->ids ? p->k : 1, rows = p->weights ? p->x.rows : p->x.rows * k;
    mx_mat x = p->x;
    if (p->norm) {
        x = grid_blank(d, p->x.rows, p->x.cols, 0);
        mx_mat in = p->x; // rms_norm writes x only with something to add
        MX_TRY(mx_op_rms_norm(d, &x, &in, NULL, p->norm, p->eps, err));
    }
    mx_mat out[4];
    for (int i = 0; i < p->n_mm; i++) {
        out[i] = p->glu || p->add ? grid_blank(d, rows, p->mm[i].w->n_out, 0) : p->mm[i].y;
        mx_matmul mm = {.y = out[i], .w = p->mm[i].w, .bias = p->mm[i].bias};
        mx_expert_matmul em = {.y = out[i], .w = p->mm[i].w, .bias = p->mm[i].bias};
        MX_TRY(p->ids ? mx_op_expert_matmul(d, &em, 1, &x, p->ids, rows, p->weights ? 1 : k, err)
                      : mx_op_matmul(d, &mm, 1, &x, err));
    }
    if (p->glu) return mx_op_glu(d, &p->mm[0].y, &out[0], &out[1], p->act, err);
    if (!p->add) return MX_OK;
    if (!p->weights) return mx_op_add(d, &p->mm[0].y, &out[0], 1, err);
    mx_mat sum = grid_blank(d, rows / k, out[0].cols, 0);
    MX_TRY(mx_op_expert_sum(d, &sum, &out[0], p->weights, k, err));
    return mx_op_add(d, &p->mm[0].y, &sum, 1, err);
}

typedef struct {
    const char *name;
    int n_mm, k; // k 0: no experts
    bool norm, glu, add, weighted, bias;
} shape;
static const shape shapes[] = {
    {"qkv", 3, 0, true, false, false, false, false},
    {"qkv with biases", 3, 0, true, false, false, false, true},
    {"plain", 1, 0, false, false, false, false, false},
    {"gate and up", 2, 0, true, true, false, false, false},
    {"down", 1, 0, false, false, true, false, false},
    {"experts' gate and up", 2, 3, true, true, false, false, false},
    {"experts' down", 1, 3, false, false, true, true, false},
};

TEST(products_with_what_stands_around_them)
{
    enum { E = 9, IN = 384, OUT = 70 };
    static const int counts[] = {1, 2, 3, 8, 9, 33};
    mx_err err;
    int by_port = 0, composed = 0;
    for (int f = 0; f < grid_n_format; f++)
        for (size_t s = 0; s < countof(shapes); s++)
            for (size_t c = 0; c < countof(counts); c++) {
                const shape *sh = &shapes[s];
                const grid_format *form = &grid_formats[f];
                const int n = counts[c], k = sh->k ? sh->k : 1, x_rows = sh->weighted ? n * k : n,
                          y_rows = sh->weighted || !sh->k ? n : n * k;
                if (n > 8 && (f + (int)s) % 4 && !grid_long()) continue;
                uint64_t seed = (uint64_t)(f * 100) + s * 10 + c;
                mx_qmat w[3];
                for (int i = 0; i < sh->n_mm; i++)
                    w[i] = grid_weight(form, sh->k ? E : 1, sh->glu || i == 0 ? OUT : 16 * i, IN,
                                       seed + (uint64_t)i);
                mx_mat x = random_mat(MX_F32, x_rows, IN, 0, 1, &seed),
                       norm = random_mat(MX_F32, 1, IN, 0, 1, &seed),
                       weights = random_mat(MX_F32, n, k, 0, 1, &seed),
                       bias = random_mat(MX_F32, 1, OUT, 0, 1, &seed);
                int32_t *ids = need(malloc((size_t)(n * k) * 4));
                for (int i = 0; i < n * k; i++)
                    ids[i] = (int32_t)((unsigned)(i % k * 3) + mx_test_rand(&seed) % 3);
                float *out[3][3] = {{NULL}}; // the device, its composition, the twin
                for (int way = 0; way < 3; way++) {
                    mx_dev *d = way < 2 ? grid_dev() : grid_twin();
                    mx_qmat dw[3];
                    mx_matmul mm[3];
                    for (int i = 0; i < sh->n_mm; i++) {
                        dw[i] = grid_qmat(d, &w[i]);
                        mm[i] = (mx_matmul){.y = grid_blank(d, y_rows, w[i].n_out, 0), .w = &dw[i]};
                        if (sh->bias) mm[i].bias = grid_put(d, bias.p, OUT * 4);
                    }
                    mx_product p = {.mm = mm,
                                    .n_mm = sh->n_mm,
                                    .x = grid_mat(d, &x),
                                    .eps = 1e-5f,
                                    .glu = sh->glu,
                                    .act = MX_ACT_SILU,
                                    .add = sh->add,
                                    .k = sh->k};
                    if (sh->norm) p.norm = grid_put(d, norm.p, IN * 4);
                    if (sh->k) p.ids = grid_put(d, ids, (size_t)(n * k) * 4);
                    if (sh->weighted) p.weights = grid_put(d, weights.p, (size_t)(n * k) * 4);
                    mx_status st = way == 0 ? mx_op_product(d, &p, &err) : MX_UNSUPPORTED;
                    if (way == 0) st == MX_OK ? by_port++ : composed++;
                    if (st == MX_UNSUPPORTED) st = compose(d, &p, &err);
                    CHECK_OK(st, &err);
                    for (int i = 0; i < (sh->glu ? 1 : sh->n_mm); i++) out[way][i] = grid_values(d, &mm[i].y);
                }
                for (int i = 0; i < (sh->glu ? 1 : sh->n_mm); i++) {
                    const size_t n_y = (size_t)(y_rows * w[i].n_out);
                    const double of_one =
                        form->kind == MX_QUANT_NONE && form->type == MX_F32 ? BOUND_SUM : BOUND_BF16;
                    // of few outputs the mean scatters (grid_matmul.c); a gated unit is a product of two products
                    const double bound = sh->glu || n_y < 500 ? 1.5 * of_one : of_one;
                    float *twin = need(malloc(n_y * 4));
                    memcpy(twin, out[2][i], n_y * 4);
                    grid_close("product", bound, out[0][i], twin, n_y, "%s, %s, %d rows", sh->name,
                               grid_show(form), n);
                    grid_close("product, composed", bound, out[1][i], out[2][i], n_y, "%s, %s, %d rows",
                               sh->name, grid_show(form), n);
                }
                for (int i = 0; i < sh->n_mm; i++) grid_weight_free(&w[i]);
                free(x.p), free(norm.p), free(weights.p), free(bias.p), free(ids);
                grid_free();
            }
    fprintf(stderr, "# product: %d by a port, %d composed\n", by_port, composed);
}

TEST(largest_logits)
{
    static const int cases[][3] = {
        {1, 7, 3}, {3, 1000, 1}, {2, 1025, 40}, {4, 32769, 64}, {1, 151936, 256}}; // rows, vocab, k
    mx_err err;
    mx_dev *d = grid_dev();
    for (size_t i = 0; i < countof(cases); i++) {
        const int n = cases[i][0], vocab = cases[i][1], k = cases[i][2];
        const size_t all = (size_t)(n * k);
        uint64_t seed = i;
        mx_mat x = random_mat(MX_F32, n, vocab, i % 2 ? 3 : 0, 3, &seed);
        for (int64_t r = 0; r < n; r++)
            ((float *)x.p)[r * x.ld + vocab - 1] = ((float *)x.p)[r * x.ld]; // a tie
        mx_top t = {.logits = grid_mat(d, &x), .k = k}, host = {.logits = x, .k = k};
        t.ids = grid_put(d, NULL, all * 4), t.values = grid_put(d, NULL, all * 4),
        t.lse = grid_put(d, NULL, (size_t)n * 4);
        host.ids = need(malloc(all * 4)), host.values = need(malloc(all * 4)),
        host.lse = need(malloc((size_t)n * 4));
        mx_host_top(&host);
        CHECK_OK(mx_op_top(d, &t, &err), &err);
        grid_same("top: ids", grid_get(d, t.ids, all * 4), host.ids, all * 4, "%d of %d", k, vocab);
        grid_close("top", BOUND_SAME, grid_get(d, t.values, all * 4), host.values, all, "%d of %d", k, vocab);
        grid_close("top: lse", BOUND_F32, grid_get(d, t.lse, (size_t)n * 4), host.lse, (size_t)n, "%d of %d",
                   k, vocab);
        free(x.p);
        grid_free();
    }
}
