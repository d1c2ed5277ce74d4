/* grid_matmul.c - products with weights of every format, single and gathered: the device against the scalar twin. */
#include "grid.h"

/* Outputs and inputs: past a tile of 64, 128 and 256 outputs, past a step of 32, 64 and 128 inputs. */
static const int shapes[][2] = {{1, 128},    {7, 640},   {64, 256}, {65, 384},
                                {130, 1152}, {257, 512}, {70, 67},  {33, 4128}};
/* Rows: one, the 2 and 8 that share a read of the weights, past them, past the tiles of 32, 64 and 128 rows. */
static const int row_counts[] = {1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 129};

/* What products may lose. Few rows keep f32 activations; many are rounded to the weights' 16-bit type, and affine weights with
 * scales of f16 or f32 are expanded to bf16. The CPU's levels: 15-bit activations 2e-4, bf16 matrix units as here. */
static double bound_of(const grid_format *f) {
    if (f->kind == MX_QUANT_NONE && f->type == MX_F32) return BOUND_SUM;
    return f->kind == MX_QUANT_NONE && f->type == MX_F16 ? BOUND_F16 : BOUND_BF16;
}

/* x as layers see it: some columns larger than the rest, but enough of them that a product's error is a mean of many roundings:
 * with a handful, one row's luck would decide. */
static mx_mat make_x(int n, int n_in, int gap, uint64_t seed) {
    mx_mat x = random_mat(MX_F32, n, n_in, gap, 1, &seed);
    for (int64_t r = 0; r < n; r++)
        for (int c = 0; c < n_in; c += 31) ((float *)x.p)[r * x.ld + c] *= 5;
    return x;
}

/* The error is a mean over outputs. Rounding x and weights to bf16 gives 2.5e-3 on average; over a few hundred outputs of a few
 * rows it scatters by a third. A few outputs may all come out near zero by chance: these are compared in units of what is summed,
 * by one more value of the usual size (weights are near 0.05) that both have. */
static void compare(const char *op, const grid_format *f, float *got, float *want, int n, int n_out,
                    const mx_mat *x, const char *what) {
    const int outputs = n * n_out, few = outputs < 30 || n_out == 1;
    const double scatter = few ? 4 : outputs < 500 ? 1.5 : 1;
    if (few) {
        double squares = 0;
        for (int64_t r = 0; r < x->rows; r++)
            for (int c = 0; c < x->cols; c++) squares += pow(((float *)x->p)[r * x->ld + c], 2);
        got = need(realloc(got, (size_t)(outputs + 1) * sizeof *got));
        want = need(realloc(want, (size_t)(outputs + 1) * sizeof *want));
        got[outputs] = want[outputs] = (float)(0.05 * sqrt(squares * outputs / x->rows));
    }
    grid_close(op, scatter * bound_of(f), got, want, (size_t)(outputs + few), "%s, [%d, %d], %s",
               grid_show(f), n, n_out, what);
}

TEST(products)
{
    for (int i = 0; i < grid_n_format; i++)
        for (size_t s = 0; s < countof(shapes); s++) {
            const grid_format *f = &grid_formats[i];
            const int n_out = shapes[s][0], n_in = shapes[s][1];
            if (!grid_fits(f, n_in)) continue;
            mx_qmat w = grid_weight(f, 1, n_out, n_in, (uint64_t)(17 * i) + s);
            uint64_t seed = 5;
            mx_mat bias = random_mat(MX_F32, 1, n_out, 0, 0.5, &seed);
            for (size_t c = 0; c < countof(row_counts); c++) {
                const int n = row_counts[c];
                if (n > 33 && (i + (int)s) % 3 && !grid_long()) continue; // a third of the large ones
                const int gap = c % 3 != 2 ? 0 : f->kind == MX_QUANT_NONE ? 5 : 4;
                mx_mat x = make_x(n, n_in, gap, s + c), y = random_mat(MX_F32, n, n_out, 3, 1, &seed);
                float *out[2];
                BOTH(d, k) {
                    mx_err err;
                    mx_qmat dw = grid_qmat(d, &w);
                    mx_mat dx = grid_mat(d, &x);
                    mx_matmul mm = {.y = grid_mat(d, &y), .w = &dw};
                    mm.bias = s % 2 ? grid_put(d, bias.p, (size_t)n_out * 4) : NULL;
                    CHECK_OK(mx_op_matmul(d, &mm, 1, &dx, &err), &err);
                    out[k] = grid_values(d, &mm.y);
                }
                char what[64];
                snprintf(what, sizeof what, "n_in %d, rows %d apart", n_in, (int)x.ld);
                compare("matmul", f, out[0], out[1], n, n_out, &x, what);
                free(x.p), free(y.p);
                grid_free();
            }
            free(bias.p);
            grid_weight_free(&w);
        }
}

/* So many outputs that a GPU of 132 units takes its largest tiles: by the rows of x those of 32, 64, 128 and 256. */
TEST(products_of_large_tiles)
{
    enum { OUT = 128 * 132 - 1, IN = 832 };
    static const int which[] = {1, 2, 11}, counts[] = {20, 60, 100, 300};
    mx_dev *dev = grid_dev();
    if (strncmp(dev->isa, "sm_", 3)) SKIP("tiles of NVIDIA GPUs: an emulated one would take hours");
    for (size_t i = 0; i < countof(which); i++) {
        const grid_format *f = &grid_formats[which[i]];
        mx_qmat w = grid_weight(f, 1, OUT, IN, i);
        for (size_t c = 0; c < countof(counts); c++) {
            const int n = counts[c];
            mx_mat x = make_x(n, IN, 4, c);
            float *out[2];
            BOTH(d, k) {
                mx_err err;
                mx_qmat dw = grid_qmat(d, &w);
                mx_mat dx = grid_mat(d, &x);
                mx_matmul mm = {.y = grid_blank(d, n, OUT, 1), .w = &dw};
                CHECK_OK(mx_op_matmul(d, &mm, 1, &dx, &err), &err);
                out[k] = grid_values(d, &mm.y);
            }
            compare("matmul", f, out[0], out[1], n, OUT, &x, "large tiles");
            free(x.p);
            grid_free();
        }
        grid_weight_free(&w);
    }
}

/* Rows of x that are not at multiples of 16 bytes: right, or refused with a sentence; never a fault. */
TEST(unaligned_rows_of_x)
{
    enum { OUT = 40, IN = 128 };
    for (int i = 3; i < grid_n_format; i++)
        for (int n = 1; n <= 33; n = n * 4 + 1) {
            const grid_format *f = &grid_formats[i];
            mx_qmat w = grid_weight(f, 1, OUT, IN, 1);
            mx_mat x = make_x(n, IN, 3, 2);
            float *out[2] = {NULL, NULL};
            BOTH(d, k) {
                mx_err err;
                mx_qmat dw = grid_qmat(d, &w);
                mx_mat dx = grid_mat(d, &x);
                mx_matmul mm = {.y = grid_blank(d, n, OUT, 0), .w = &dw};
                mx_status st = mx_op_matmul(d, &mm, 1, &dx, &err);
                if (st == MX_UNSUPPORTED)
                    CHECK(k == 0 && strstr(err.msg, "multiples of 16 bytes"), "%s", err.msg);
                else
                    CHECK_OK(st, &err);
                out[k] = grid_values(d, &mm.y);
                if (st == MX_UNSUPPORTED) free(out[k]), out[k] = NULL;
            }
            if (out[0])
                compare("matmul", f, out[0], out[1], n, OUT, &x, "unaligned");
            else
                free(out[1]);
            free(x.p);
            grid_weight_free(&w);
            grid_free();
        }
}

/* Several weights of one x in a call: more than a launch takes, of different formats, sizes and kinds between. */
TEST(several_products_of_one_x)
{
    enum { N = 7, IN = 256 };
    static const int which[N] = {11, 11, 11, 2, 23, 24, 11}, outs[N] = {70, 16, 5, 33, 64, 12, 130};
    for (int n = 1; n <= 70; n = n * 4 + 3) {
        mx_qmat w[N];
        for (int i = 0; i < N; i++) w[i] = grid_weight(&grid_formats[which[i]], 1, outs[i], IN, (uint64_t)i);
        mx_mat x = make_x(n, IN, 4, 4);
        float *out[2][N];
        BOTH(d, k) {
            mx_err err;
            mx_qmat dw[N];
            mx_matmul mm[N];
            uint64_t seed = 6;
            mx_mat dx = grid_mat(d, &x);
            for (int i = 0; i < N; i++) {
                mx_mat y = random_mat(MX_F32, n, outs[i], 1, 1, &seed);
                dw[i] = grid_qmat(d, &w[i]);
                mm[i] = (mx_matmul){.y = grid_mat(d, &y), .w = &dw[i]};
                free(y.p);
            }
            CHECK_OK(mx_op_matmul(d, mm, N, &dx, &err), &err);
            for (int i = 0; i < N; i++) out[k][i] = grid_values(d, &mm[i].y);
        }
        for (int i = 0; i < N; i++)
            compare("matmul", &grid_formats[which[i]], out[0][i], out[1][i], n, outs[i], &x,
                    "one of several");
        for (int i = 0; i < N; i++) grid_weight_free(&w[i]);
        free(x.p);
        grid_free();
    }
}

/* Experts: few rows (each reads its own weights) and many (sorted by expert), some experts with no row, rows of x shared by k
 * products or one each, a bias for each expert. */
TEST(gathered_products)
{
    enum { E = 6, OUT = 70, IN = 384, K = 2 };
    static const int counts[] = {1, 9, 40, 65, 400};
    for (int i = 0; i < grid_n_format; i++)
        for (size_t c = 0; c < countof(counts); c++)
            for (int x_div = K; x_div >= 1; x_div--) {
                const grid_format *f = &grid_formats[i];
                const int n_tok = counts[c];
                if (n_tok > 100 && i % 3 && !grid_long()) continue;
                const int n_row = n_tok * K, n_x = n_row / x_div;
                uint64_t seed = (uint64_t)i;
                mx_qmat w = grid_weight(f, E, OUT, IN, (uint64_t)i);
                mx_mat x = make_x(n_x, IN, 0, 3), y = random_mat(MX_F32, n_row, OUT, 1, 1, &seed),
                       bias = random_mat(MX_F32, E, OUT, 0, 0.5, &seed);
                int32_t *ids = need(malloc((size_t)n_row * 4));
                for (int j = 0; j < n_row; j++)
                    ids[j] = mx_test_rand(&seed) % 3 ? 4 : (int32_t)(mx_test_rand(&seed) % (E - 1));
                float *out[2];
                BOTH(d, k) {
                    mx_err err;
                    mx_qmat dw = grid_qmat(d, &w);
                    mx_mat dx = grid_mat(d, &x);
                    mx_expert_matmul mm = {.y = grid_mat(d, &y), .w = &dw};
                    mm.bias = x_div == 1 ? grid_put(d, bias.p, E * OUT * 4) : NULL;
                    CHECK_OK(mx_op_expert_matmul(d, &mm, 1, &dx, grid_put(d, ids, (size_t)n_row * 4), n_row,
                                                 x_div, &err),
                             &err);
                    out[k] = grid_values(d, &mm.y);
                }
                compare("expert_matmul", f, out[0], out[1], n_row, OUT, &x,
                        x_div == 1 ? "a row each" : "shared rows");
                grid_weight_free(&w);
                free(x.p), free(y.p), free(bias.p), free(ids);
                grid_free();
            }
}

/* A number that is not finite, in x or in a scale, reaches every output it belongs to and no other. */
TEST(what_is_not_finite_stays_so)
{
    enum { OUT = 37, IN = 640 };
    static const int counts[] = {1, 8, 17, 65};
    mx_dev *d = grid_dev();
    for (int i = 0; i < grid_n_format; i++)
        for (size_t c = 0; c < countof(counts); c++)
            for (int in_x = 0; in_x < 2; in_x++) {
                const grid_format *f = &grid_formats[i];
                const int n = counts[c], bad_row = n / 2, bad_out = 35;
                static const uint8_t nans[3][4] = {
                    {0, 0, 0xC0, 0x7F}, {0, 0x7E}, {0xC0, 0x7F}}; // f32, f16, bf16
                mx_err err;
                mx_qmat w = grid_weight(f, 1, OUT, IN, (uint64_t)i);
                mx_mat x = make_x(n, IN, 0, 3), y = x;
                y.cols = y.ld = OUT;
                if (in_x) {
                    const bool clamps =
                        f->kind == MX_QUANT_NONE && f->type == MX_F16; // inputs to 65504, but NaN stays
                    ((float *)x.p)[(size_t)bad_row * IN + 333] = c % 2 || clamps ? NAN : INFINITY;
                } else if (f->kind == MX_QUANT_NONE) {
                    const size_t size = mx_dtype_size(f->type);
                    memcpy((char *)(uintptr_t)w.codes + ((size_t)bad_out * IN + 333) * size, nans[f->type],
                           size);
                } else {
                    const size_t size = mx_qmat_scale_size(&w),
                                 at = ((size_t)bad_out * IN + 333) / (size_t)f->group;
                    char *scale = (char *)(uintptr_t)w.scales + at * size;
                    memset(scale, f->kind == MX_QUANT_NVFP4 ? 0x7F : 0xFF, size);
                    if (f->kind == MX_QUANT_AFFINE) memcpy(scale, nans[f->type], size);
                }
                mx_qmat dw = grid_qmat(d, &w);
                mx_mat dx = grid_mat(d, &x);
                y.p = grid_put(d, NULL, (size_t)(n * OUT) * 4);
                mx_matmul mm = {.y = y, .w = &dw};
                CHECK_OK(mx_op_matmul(d, &mm, 1, &dx, &err), &err);
                float *got = grid_get(d, y.p, (size_t)(n * OUT) * 4);
                for (int j = 0; j < n * OUT; j++)
                    CHECK(isfinite(got[j]) == (in_x ? j / OUT != bad_row : j % OUT != bad_out),
                          "%s, %d rows, %s: y[%d][%d] = %g", grid_show(f), n, in_x ? "x" : "a weight",
                          j / OUT, j % OUT, (double)got[j]);
                free(got), free(x.p);
                grid_weight_free(&w);
                grid_free();
            }
}
