/* grid_transform.c - FFT, Hadamard, and numbers to codes and back: each against its equation, on any device. */
#include "grid.h"
#include "../../kernels/hadamard.h"

/* ---- transforms ------------------------------------------------------------------------------------------- */

/* The sum itself, with roots from a table; 2 n values in, 2 n out. */
static void slow_fft(const float *x, float *y, int n, double sign) {
    double *root = need(malloc(2 * (size_t)n * sizeof *root));
    for (int k = 0; k < n; k++)
        root[2 * k] = cos(2 * M_PI * k / n), root[2 * k + 1] = sign * sin(2 * M_PI * k / n);
    for (int k = 0; k < n; k++) {
        double re = 0, im = 0;
        for (int j = 0; j < n; j++) {
            const double *w = root + 2 * ((int64_t)j * k % n);
            re += x[2 * j] * w[0] - x[2 * j + 1] * w[1];
            im += x[2 * j] * w[1] + x[2 * j + 1] * w[0];
        }
        y[2 * k] = (float)re, y[2 * k + 1] = (float)im;
    }
    free(root);
}

static float *fft_on(mx_dev *d, const mx_mat *x, int cols, int n, mx_fft kind) {
    mx_err err;
    mx_mat dx = grid_mat(d, x), dy = grid_blank(d, x->rows, cols, 1);
    CHECK_OK(mx_op_fft(d, &dy, &dx, n, kind, &err), &err);
    return grid_values(d, &dy);
}

TEST(fft_matches_the_sum)
{
    static const int lengths[] = {1,  2,   3,   4,   5,   6,    7,    8,    12,   15,   49,
                                  64, 105, 210, 243, 256, 1000, 1024, 2048, 2058, 2100, 4096};
    mx_dev *d = grid_dev();
    uint64_t seed = 8;
    for (size_t i = 0; i < countof(lengths); i++) {
        const int n = lengths[i], rows = n < 300 ? 3 : 1, half = 2 * (n / 2 + 1);
        const size_t all = (size_t)(rows * 2 * n);
        mx_mat x = random_mat(MX_F32, rows, 2 * n, 1, 1, &seed),
               real = random_mat(MX_F32, rows, n, 2, 1, &seed);
        float *xv = values_of(&x), *rv = values_of(&real), *want = need(malloc(all * 4)),
              *back = need(malloc(all * 4)), *of_real = need(malloc((size_t)(rows * half) * 4)),
              *again = need(malloc((size_t)(rows * n) * 4)), *whole = need(calloc(2 * (size_t)n, 4)),
              *full = need(malloc(2 * (size_t)n * 4));
        mx_mat mirrored = random_mat(MX_F32, rows, half, 1, 1, &seed);
        for (int r = 0; r < rows; r++) {
            slow_fft(xv + r * 2 * n, want + r * 2 * n, n, -1);
            slow_fft(xv + r * 2 * n, back + r * 2 * n, n, 1);
            for (int c = 0; c < 2 * n; c++) back[r * 2 * n + c] /= (float)n;
            for (int c = 0; c < n; c++) whole[2 * c] = rv[r * n + c], whole[2 * c + 1] = 0;
            slow_fft(whole, full, n, -1);
            memcpy(of_real + r * half, full, (size_t)half * 4);
            float *m =
                (float *)mirrored.p + r * mirrored.ld; // any half makes a real row, but for these parts
            for (int c = 0; c < n; c++) {
                const int j = c > n / 2 ? n - c : c;
                whole[2 * c] = m[2 * j];
                whole[2 * c + 1] = j == 0 || 2 * j == n ? 0 : c > n / 2 ? -m[2 * j + 1] : m[2 * j + 1];
            }
            slow_fft(whole, full, n, 1);
            for (int c = 0; c < n; c++) again[r * n + c] = full[2 * c] / (float)n;
        }
        grid_close("fft", BOUND_F32, fft_on(d, &x, 2 * n, n, MX_FFT), want, all, "%d points", n);
        grid_close("fft", BOUND_F32, fft_on(d, &x, 2 * n, n, MX_FFT_INVERSE), back, all, "%d points, inverse",
                   n);
        grid_close("fft", BOUND_F32, fft_on(d, &real, half, n, MX_FFT_REAL), of_real, (size_t)(rows * half),
                   "%d real points", n);
        grid_close("fft", BOUND_F32, fft_on(d, &mirrored, n, n, MX_FFT_REAL_INVERSE), again,
                   (size_t)(rows * n), "%d real points, inverse", n);
        free(x.p), free(real.p), free(mirrored.p), free(xv), free(rv), free(whole), free(full);
        grid_free();
    }
}

/* Longer than a sum is practical: there and back again, one known wave, and the same as the twin. */
TEST(long_fft)
{
    static const int lengths[] = {4100, 5000, 6561, 8192, 30870, 65536, 98304, 100000, 131072};
    mx_dev *d = grid_dev();
    uint64_t seed = 9;
    for (size_t i = 0; i < countof(lengths); i++) {
        const int n = lengths[i], half = 2 * (n / 2 + 1);
        uint8_t factors[17];
        if (!mx_fft_factors(n, factors)) continue; // 4100 = 4 * 25 * 41, below
        if (n > 8192 && !grid_long() && !grid_is_cpu() && strcmp(d->be->name, "cuda")) continue; // slow there
        mx_mat x = random_mat(MX_F32, 2, 2 * n, 1, 1, &seed), real = random_mat(MX_F32, 1, n, 0, 1, &seed);
        float *there = fft_on(d, &x, 2 * n, n, MX_FFT), *spectrum = fft_on(d, &real, half, n, MX_FFT_REAL);
        mx_mat y = {MX_F32, 2, 2 * n, 2 * n, there}, s = {MX_F32, 1, half, half, spectrum};
        grid_close("fft and back", 2 * BOUND_F32, fft_on(d, &y, 2 * n, n, MX_FFT_INVERSE), values_of(&x),
                   4 * (size_t)n, "%d points", n);
        grid_close("fft and back", 2 * BOUND_F32, fft_on(d, &s, n, n, MX_FFT_REAL_INVERSE), values_of(&real),
                   (size_t)n, "%d real points", n);
        grid_close("fft", BOUND_F32, there, fft_on(grid_twin(), &x, 2 * n, n, MX_FFT), 4 * (size_t)n,
                   "%d points", n);
        for (int c = 0; c < n; c++) ((float *)real.p)[c] = (float)cos(2 * M_PI * ((int64_t)c * 37 % n) / n);
        float *line = fft_on(d, &real, half, n, MX_FFT_REAL), *want = need(calloc((size_t)half, 4));
        want[2 * 37] = (float)n / 2;
        grid_close("fft", BOUND_F32, line, want, (size_t)half, "a wave of %d points", n);
        free(spectrum), free(x.p), free(real.p);
        grid_free();
    }
    mx_err err;
    mx_mat x = grid_blank(d, 1, 8200, 0), y = grid_blank(d, 1, 8200, 0);
    CHECK_FAILS(mx_op_fft(d, &y, &x, 4100, MX_FFT, &err), MX_UNSUPPORTED, &err,
                "fft: 4100 points have a factor beside 2, 3, 5 and 7");
    CHECK_FAILS(mx_op_fft(d, &x, &x, 4100, MX_FFT, &err), MX_UNSUPPORTED, &err, "factor");
    CHECK_FAILS(mx_op_fft(d, &x, &x, 4096, MX_FFT, &err), MX_EINVAL, &err,
                "x is [1, 8200], expected [n, 8192]");
    grid_free();
}

static const uint32_t *signs_of(int m) {
    return m == 12 ? mx_hadamard12 : m == 20 ? mx_hadamard20 : mx_hadamard28;
}

TEST(hadamard)
{
    static const int lengths[] = {1,  2,  4,  8,  64, 128, 4096, 8192, 16384, 65536, 131072, 12,
                                  20, 28, 24, 40, 56, 192, 640,  5120, 14336, 28672, 49152,  114688};
    mx_dev *d = grid_dev();
    mx_err err;
    uint64_t seed = 10;
    for (int m = 12; m <= 28; m += 8) // H H^T = m I
        for (int a = 0; a < m; a++)
            for (int b = 0; b < m; b++)
                CHECK(m - 2 * __builtin_popcount(signs_of(m)[a] ^ signs_of(m)[b]) == (a == b ? m : 0));
    for (size_t i = 0; i < countof(lengths); i++) {
        int m, k;
        const int n = lengths[i], rows = n < 1000 ? 5 : 2;
        const size_t all = (size_t)rows * (size_t)n;
        CHECK(mx_hadamard_factors(n, &m, &k) && m << k == n, "%d", n);
        mx_mat x = random_mat(MX_F32, rows, n, 3, 1, &seed), dx = grid_mat(d, &x),
               dy = grid_blank(d, rows, n, 1);
        CHECK_OK(mx_op_hadamard(d, &dy, &dx, 0.5f, &err), &err);
        float *xv = values_of(&x), *got = grid_values(d, &dy);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < n; j += 1 + n / 97) { // some values, each by its row of H
                double sum = 0, size = 0;
                for (int c = 0; c < n; c++) {
                    const int far = m == 1 ? 0 : (int)(signs_of(m)[j >> k] >> (c >> k) & 1);
                    const int near = __builtin_popcount((unsigned)(j & c & ((1 << k) - 1))) & 1;
                    sum += far ^ near ? -xv[r * n + c] : xv[r * n + c];
                    size += (double)xv[r * n + c] * xv[r * n + c];
                }
                CHECK(fabs(got[r * n + j] - 0.5 * sum) <= 1e-6 * sqrt(size) + 1e-12,
                      "%d values: y[%d] is %g, not %g", n, j, (double)got[r * n + j], 0.5 * sum);
            }
        float *on_twin = NULL;
        mx_mat tx = grid_mat(grid_twin(), &x);
        CHECK_OK(mx_op_hadamard(grid_twin(), &tx, &tx, 0.5f, &err), &err);
        on_twin = grid_values(grid_twin(), &tx);
        grid_close("hadamard", BOUND_F32, got, on_twin, all, "%d values", n);
        CHECK_OK(mx_op_hadamard(d, &dx, &dx, 0.5f, &err), &err); // in place
        grid_close("hadamard", BOUND_SAME, grid_values(d, &dx), grid_values(d, &dy), all,
                   "%d values in place", n);
        free(x.p), free(xv);
        grid_free();
    }
    mx_mat x = grid_blank(d, 1, 36, 0);
    CHECK_FAILS(mx_op_hadamard(d, &x, &x, 1, &err), MX_UNSUPPORTED, &err,
                "rows of 36 are neither 2^k nor m * 2^k");
    grid_free();
}

/* ---- codes ------------------------------------------------------------------------------------------------ */

/* Groups of many sizes and signs: random, of one sign, zeros, tiny, huge, with NaN and infinity. */
static mx_mat odd_values(int rows, int cols, uint64_t seed) {
    mx_mat x = random_mat(MX_F32, rows, cols, 0, 1, &seed);
    float *v = x.p;
    for (int g = 0; g < rows * cols / 16; g++, v += 16) {
        static const float sizes[] = {1, 0.02f, 0, 1e-30f, 1e-41f, 1e30f, 3e38f, 700};
        const float size = sizes[mx_test_rand(&seed) % countof(sizes)],
                    shift = mx_test_rand(&seed) % 4 ? 0 : 3;
        for (int i = 0; i < 16; i++) v[i] = (v[i] + shift) * size;
        if (mx_test_rand(&seed) % 50 == 0) v[3] = NAN;
        if (mx_test_rand(&seed) % 50 == 0) v[5] = -INFINITY;
    }
    return x;
}

TEST(quantize_and_dequantize)
{
    static const int shapes_of[][2] = {{3, 32}, {5, 128}, {2, 640}, {1, 8192}, {1, 8320}};
    mx_dev *d = grid_dev();
    mx_err err;
    for (int i = 0; i < grid_n_format; i++)
        for (int t = 0; t < 3; t++)
            for (size_t s = 0; s < countof(shapes_of); s++) {
                grid_format f = grid_formats[i];
                const int rows = shapes_of[s][0], cols = shapes_of[s][1];
                if (!grid_fits(&f, cols) || (f.kind == MX_QUANT_NONE && t)) continue;
                if (f.kind != MX_QUANT_NONE) f.type = (mx_dtype)t;
                mx_mat x = odd_values(rows, cols, (uint64_t)(i * 100 + (int)s));
                mx_qmat w = grid_weight(&f, 1, rows, cols, 1), dw = grid_qmat(d, &w);
                mx_mat dx = grid_mat(d, &x), dy = grid_blank(d, rows, cols, 1);
                if (f.kind != MX_QUANT_NONE) {
                    const size_t codes = (size_t)rows * mx_qmat_row_bytes(&w),
                                 scales = (size_t)(rows * (cols / f.group)) * mx_qmat_scale_size(&w);
                    CHECK_OK(mx_quantize(f.kind, f.bits, f.group, f.type, x.p, rows, cols,
                                         (void *)(uintptr_t)w.codes, (void *)(uintptr_t)w.scales,
                                         (void *)(uintptr_t)w.biases, &err),
                             &err);
                    CHECK_OK(mx_op_quantize(d, &dw, &dx, &err), &err);
                    void *c = need(malloc(codes)), *sc = need(malloc(scales)), *b = need(malloc(scales));
                    memcpy(c, w.codes, codes), memcpy(sc, w.scales, scales);
                    grid_same("quantize: scales", grid_get(d, dw.scales, scales), sc, scales, "%s, %d",
                              grid_show(&f), cols);
                    if (w.biases) {
                        memcpy(b, w.biases, scales);
                        grid_same("quantize: biases", grid_get(d, dw.biases, scales), b, scales, "%s, %d",
                                  grid_show(&f), cols);
                    } else {
                        free(b);
                    }
                    grid_same("quantize", grid_get(d, dw.codes, codes), c, codes, "%s, %d", grid_show(&f),
                              cols);
                }
                float *want = need(malloc((size_t)(rows * cols) * 4));
                CHECK_OK(mx_op_dequantize(d, &dy, &dw, &err), &err);
                CHECK_OK(mx_qmat_expand(&w, 0, rows, want, &err), &err);
                grid_close("dequantize", BOUND_SAME, grid_values(d, &dy), want, (size_t)(rows * cols),
                           "%s, %d", grid_show(&f), cols);
                grid_weight_free(&w);
                free(x.p);
                grid_free();
            }
}
