/* matmul: every kind of weight, at every instruction set of this processor, against f64 sums over the expanded weights. */
#include "test.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul_impl.h"
#include "quant/quant.h"

typedef struct {
    mx_quant kind;
    int bits, group;
    mx_dtype type;
} format;

static const format formats[] = {
    {MX_QUANT_NONE, 0, 0, MX_BF16},    {MX_QUANT_NONE, 0, 0, MX_F16},      {MX_QUANT_NONE, 0, 0, MX_F32},
    {MX_QUANT_AFFINE, 2, 32, MX_BF16}, {MX_QUANT_AFFINE, 2, 64, MX_BF16},  {MX_QUANT_AFFINE, 2, 128, MX_F16},
    {MX_QUANT_AFFINE, 3, 32, MX_F32},  {MX_QUANT_AFFINE, 3, 64, MX_BF16},  {MX_QUANT_AFFINE, 3, 128, MX_BF16},
    {MX_QUANT_AFFINE, 4, 32, MX_F32},  {MX_QUANT_AFFINE, 4, 32, MX_BF16},  {MX_QUANT_AFFINE, 4, 64, MX_BF16},
    {MX_QUANT_AFFINE, 4, 64, MX_F16},  {MX_QUANT_AFFINE, 4, 128, MX_BF16}, {MX_QUANT_AFFINE, 5, 32, MX_BF16},
    {MX_QUANT_AFFINE, 5, 64, MX_F16},  {MX_QUANT_AFFINE, 5, 128, MX_BF16}, {MX_QUANT_AFFINE, 6, 32, MX_BF16},
    {MX_QUANT_AFFINE, 6, 64, MX_BF16}, {MX_QUANT_AFFINE, 6, 128, MX_F32},  {MX_QUANT_AFFINE, 8, 32, MX_BF16},
    {MX_QUANT_AFFINE, 8, 64, MX_BF16}, {MX_QUANT_AFFINE, 8, 128, MX_F16},  {MX_QUANT_MXFP4, 4, 32, MX_BF16},
    {MX_QUANT_MXFP8, 8, 32, MX_BF16},  {MX_QUANT_NVFP4, 4, 16, MX_BF16},
};

static const char *show(const format *f) {
    static char buf[8][64];
    static int next;
    char *b = buf[next++ % 8];
    snprintf(b, sizeof buf[0], "%s %d bits group %d %s", mx_quant_name(f->kind), f->bits, f->group,
             mx_dtype_name(f->type));
    return b;
}

static mx_cpu_dev *open_dev(mx_isa isa, bool exact, int threads) {
    mx_err err;
    mx_cpu_dev *d = calloc(1, sizeof *d);
    CHECK(d);
    CHECK_OK(mx_pool_new(&d->pool, threads, &err), &err);
    d->n_worker = mx_pool_size(d->pool);
    d->isa = isa;
    d->exact = exact;
    mx_cpu_matmul_init(d);
    return d;
}

static void close_dev(mx_cpu_dev *d) {
    mx_cpu_matmul_done(d);
    mx_pool_free(d->pool);
    free(d);
}

/* A random matrix at odd addresses, each array ending where its block of memory ends, so that a sanitizer sees a read too far. */
typedef struct {
    mx_qmat w;
    char *codes, *scales, *biases;
} weight;

static void *odd_copy(char **block, const void *from, size_t bytes) {
    *block = malloc(bytes + 1);
    CHECK(*block);
    memcpy(*block + 1, from, bytes);
    return *block + 1;
}

static weight make_weight(const format *f, int n_stack, int n_out, int n_in, uint64_t seed) {
    size_t rows = (size_t)n_stack * (size_t)n_out, n = rows * (size_t)n_in;
    float *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++) x[i] = (float)(mx_test_normal(&seed) * 0.05 + 0.003);
    weight t = {.w = {.kind = f->kind,
                      .bits = f->bits,
                      .group = f->group,
                      .type = f->type,
                      .n_stack = n_stack,
                      .n_out = n_out,
                      .n_in = n_in}};
    if (f->kind == MX_QUANT_NONE) {
        void *v = malloc(n * 4);
        mx_from_f32(v, f->type, x, n);
        t.w.codes = odd_copy(&t.codes, v, n * mx_dtype_size(f->type));
        free(v);
    } else {
        size_t code_bytes = rows * mx_qmat_row_bytes(&t.w), n_scale = n / (size_t)f->group;
        size_t scale_bytes = n_scale * mx_qmat_scale_size(&t.w);
        void *c = malloc(code_bytes), *s = malloc(n_scale * 4), *b = malloc(n_scale * 4);
        mx_err err;
        CHECK_OK(mx_quantize(f->kind, f->bits, f->group, f->type, x, (int)rows, n_in, c, s, b, &err), &err);
        t.w.codes = odd_copy(&t.codes, c, code_bytes);
        t.w.scales = odd_copy(&t.scales, s, scale_bytes);
        if (f->kind == MX_QUANT_AFFINE) t.w.biases = odd_copy(&t.biases, b, scale_bytes);
        free(c), free(s), free(b);
    }
    free(x);
    return t;
}

static void free_weight(weight *t) { free(t->codes), free(t->scales), free(t->biases); }

/* x as layers see it: a few columns far larger than the rest. */
static float *make_x(int n, int n_in, uint64_t seed) {
    float *x = malloc((size_t)n * (size_t)n_in * 4);
    for (size_t i = 0; i < (size_t)n * (size_t)n_in; i++) {
        x[i] = (float)mx_test_normal(&seed) * (mx_test_rand(&seed) % 97 ? 1 : 20);
    }
    return x;
}

static float *reference(const mx_qmat *w, const float *bias, const float *x, int n) {
    float *full = malloc((size_t)w->n_out * (size_t)w->n_in * 4),
          *y = malloc((size_t)n * (size_t)w->n_out * 4);
    mx_err err;
    CHECK_OK(mx_qmat_expand(w, 0, w->n_out, full, &err), &err);
    for (int r = 0; r < n; r++) {
        for (int o = 0; o < w->n_out; o++) {
            double sum = bias ? bias[o] : 0;
            for (int k = 0; k < w->n_in; k++) {
                sum += (double)full[(size_t)o * (size_t)w->n_in + (size_t)k] *
                       x[(size_t)r * (size_t)w->n_in + (size_t)k];
            }
            y[(size_t)r * (size_t)w->n_out + (size_t)o] = (float)sum;
        }
    }
    free(full);
    return y;
}

static void matmul(mx_cpu_dev *d, const mx_qmat *w, const float *bias, const float *x, int n, float *y) {
    mx_err err;
    mx_matmul mm = {.y = {MX_F32, n, w->n_out, w->n_out, y}, .w = w, .bias = bias};
    mx_mat xm = {MX_F32, n, w->n_in, w->n_in, (void *)(uintptr_t)x};
    CHECK_OK(mx_cpu_matmul(&d->base, &mm, 1, &xm, &err), &err);
}

/* What a level may lose: f32 sums 1e-5, 15-bit x 2e-4, bf16 x and weights 3e-3. */
static double tolerance(const format *f, mx_isa isa, bool exact) {
    if (exact || isa == MX_ISA_SCALAR) return 1e-5;
    bool fits_b16 = f->kind >= MX_QUANT_MXFP4 || f->type == MX_BF16;
    if (isa >= MX_ISA_BF16 && fits_b16) return 3e-3;
    return f->kind == MX_QUANT_NONE || f->kind == MX_QUANT_MXFP8 ? 1e-5 : 2e-4;
}

/* The error in units of the reference's typical size: that of `all` values, as a few may cancel to near zero. */
static double distance(const float *got, const float *want, size_t n, size_t all) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    for (size_t i = 0; i < all; i++) norm += (double)want[i] * want[i];
    return sqrt(diff / (double)n) / sqrt(norm / (double)all);
}

static const int row_counts[] = {1, 2, 3, 7, 8, 9, 16, 33, 130};
enum { MOST_ROWS = 130 };

static void compare_level(mx_isa isa) {
    if (isa > mx_isa_best()) {
        SKIP("%s: %s", mx_isa_name(isa), mx_isa_missing());
        return;
    }
    static const struct { int n_out, n_in; } shapes[] = {{1, 128}, {4, 256}, {7, 640}, {33, 384}, {70, 1152}};
    for (int exact = 0; exact < 2; exact++) {
        mx_cpu_dev *d = open_dev(isa, exact, 2);
        for (size_t i = 0; i < countof(formats); i++) {
            const format *f = &formats[i];
            for (size_t s = 0; s < countof(shapes); s++) {
                int n_in = shapes[s].n_in, n_out = shapes[s].n_out;
                if (f->group && f->group <= 32) n_in += 32; // ends within a vector of codes
                if (f->kind == MX_QUANT_NONE) n_in += 5;
                weight w = make_weight(f, 1, n_out, n_in, 17 * i + s);
                float *x = make_x(MOST_ROWS, n_in, 99 * i + s), *y = malloc(MOST_ROWS * (size_t)n_out * 4);
                float *bias = s % 2 ? make_x(1, n_out, 5) : NULL, *want = reference(&w.w, bias, x, MOST_ROWS);
                for (size_t c = 0; c < countof(row_counts); c++) {
                    size_t n = (size_t)row_counts[c] * (size_t)n_out;
                    for (size_t j = 0; j < n; j++) y[j] = NAN;
                    matmul(d, &w.w, bias, x, row_counts[c], y);
                    double got = distance(y, want, n, MOST_ROWS * (size_t)n_out),
                           most = tolerance(f, isa, exact) * (n < 30 || n_out == 1 ? 3 : 1);
                    CHECK(got <= most, "%s, %s, n_out %d, n_in %d, %d rows%s: %g > %g", mx_isa_name(isa),
                          show(f), n_out, n_in, row_counts[c], exact ? ", exact" : "", got, most);
                }
                free(x), free(y), free(bias), free(want);
                free_weight(&w);
            }
        }
        close_dev(d);
    }
}

TEST(scalar_matches_the_reference)
{ compare_level(MX_ISA_SCALAR); }
TEST(avx2_matches_the_reference)
{ compare_level(MX_ISA_AVX2); }
TEST(avx512_matches_the_reference)
{ compare_level(MX_ISA_AVX512); }
TEST(vnni_matches_the_reference)
{ compare_level(MX_ISA_VNNI); }
TEST(bf16_matches_the_reference)
{ compare_level(MX_ISA_BF16); }
TEST(amx_matches_the_reference)
{ compare_level(MX_ISA_AMX); }

TEST(exact_batches_have_the_bits_of_single_rows)
{
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        mx_cpu_dev *one = open_dev((mx_isa)isa, true, 1), *two = open_dev((mx_isa)isa, true, 2);
        for (size_t i = 0; i < countof(formats); i++) {
            enum { OUT = 37, ROWS = 300 };
            const format *f = &formats[i];
            int n_in = f->kind == MX_QUANT_NONE ? 1157 : 1152;
            weight w = make_weight(f, 1, OUT, n_in, i);
            float *x = make_x(ROWS, n_in, i), *single = malloc(ROWS * OUT * 4), *y = malloc(ROWS * OUT * 4);
            for (int r = 0; r < ROWS; r++)
                matmul(one, &w.w, NULL, x + (size_t)r * (size_t)n_in, 1, single + r * OUT);
            static const int counts[] = {2, 3, 5, 8, 17, 33, 130, ROWS};
            for (size_t c = 0; c < countof(counts); c++) {
                int skip = (int)c; // chunks that start elsewhere
                int n = counts[c] + skip > ROWS ? ROWS - skip : counts[c];
                matmul(two, &w.w, NULL, x + (size_t)skip * (size_t)n_in, n, y);
                CHECK(!memcmp(y, single + skip * OUT, (size_t)n * OUT * 4), "%s, %s, %d rows",
                      mx_isa_name((mx_isa)isa), show(f), n);
            }
            free(x), free(single), free(y);
            free_weight(&w);
        }
        close_dev(one), close_dev(two);
    }
}

/* A number that is not finite, in x or in a scale, reaches every output it belongs to and no other. */
TEST(what_is_not_finite_stays_so)
{
    enum { OUT = 37, IN = 640 };
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        for (int exact = 0; exact < 2; exact++) {
            mx_cpu_dev *d = open_dev((mx_isa)isa, exact, 2);
            for (size_t i = 0; i < countof(formats); i++) {
                const format *f = &formats[i];
                for (size_t c = 0; c < countof(row_counts); c++) {
                    int n = row_counts[c], bad_row = n / 2, bad_out = 35;
                    weight w = make_weight(f, 1, OUT, IN, i);
                    float *x = make_x(n, IN, i), *y = malloc((size_t)n * OUT * 4);
                    x[(size_t)bad_row * IN + 333] = c % 2 ? NAN : INFINITY;
                    matmul(d, &w.w, NULL, x, n, y);
                    for (int j = 0; j < n * OUT; j++) {
                        CHECK(isfinite(y[j]) == (j / OUT != bad_row), "%s, %s, %d rows, x: y[%d][%d] = %g",
                              mx_isa_name((mx_isa)isa), show(f), n, j / OUT, j % OUT, y[j]);
                    }
                    x[(size_t)bad_row * IN + 333] = 1;
                    static const uint8_t nans[3][4] = {
                        {0, 0, 0xC0, 0x7F}, {0, 0x7E}, {0xC0, 0x7F}}; // f32, f16, bf16
                    const uint8_t *bits = nans[f->type];
                    if (f->kind == MX_QUANT_NONE) {
                        size_t size = mx_dtype_size(f->type);
                        memcpy(w.codes + 1 + ((size_t)bad_out * IN + 333) * size, bits, size);
                    } else {
                        size_t size = mx_qmat_scale_size(&w.w),
                               at = ((size_t)bad_out * IN + 333) / (size_t)f->group;
                        memset(w.scales + 1 + at * size, f->kind == MX_QUANT_NVFP4 ? 0x7F : 0xFF, size);
                        if (f->kind == MX_QUANT_AFFINE) memcpy(w.scales + 1 + at * size, bits, size);
                    }
                    matmul(d, &w.w, NULL, x, n, y);
                    for (int j = 0; j < n * OUT; j++) {
                        CHECK(isfinite(y[j]) == (j % OUT != bad_out),
                              "%s, %s, %d rows, scale: y[%d][%d] = %g", mx_isa_name((mx_isa)isa), show(f), n,
                              j / OUT, j % OUT, y[j]);
                    }
                    free(x), free(y);
                    free_weight(&w);
                }
            }
            close_dev(d);
        }
    }
}

/* Large, small and zero activations, and exponents at the edge. */
TEST(activations_of_any_size)
{
    static const float sizes[] = {0, 1e-40f, 1e-32f, 1e-10f, 1e10f, 1e30f};
    enum { OUT = 9, IN = 256 };
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        mx_cpu_dev *d = open_dev((mx_isa)isa, false, 1);
        for (size_t i = 0; i < countof(formats); i++) {
            weight w = make_weight(&formats[i], 1, OUT, IN, i);
            for (size_t s = 0; s < countof(sizes); s++) {
                for (int n = 1; n <= 16; n += 15) {
                    float *x = make_x(n, IN, i), *y = malloc((size_t)n * OUT * 4);
                    for (int j = 0; j < n * IN; j++) x[j] *= sizes[s];
                    float *want = reference(&w.w, NULL, x, n);
                    matmul(d, &w.w, NULL, x, n, y);
                    for (int j = 0; j < n * OUT; j++)
                        CHECK(isfinite(y[j]), "%s, size %g", show(&formats[i]), sizes[s]);
                    // below 2^-110 x may count as zero
                    if (sizes[s] > 1e-34f) {
                        CHECK_CLOSE(y, want, (size_t)n * OUT, 5e-3, "%s, %s, size %g",
                                    mx_isa_name((mx_isa)isa), show(&formats[i]), sizes[s]);
                    }
                    free(x), free(y), free(want);
                }
            }
            free_weight(&w);
        }
        close_dev(d);
    }
}

/* Products of one x, in one call, are the products one by one; rows of x and y may be parts of wider matrices. */
TEST(several_weights_share_x)
{
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        for (int n = 1; n <= 700; n = n * 5 + 2) {
            mx_cpu_dev *d = open_dev((mx_isa)isa, false, 2);
            enum { N = 11, IN = 320, LD = 331 };
            weight w[N];
            mx_matmul mm[N];
            float *x = make_x(n, LD, 3), *y[N], *tight = malloc((size_t)n * IN * 4),
                  *want = malloc((size_t)n * 64 * 4);
            for (int r = 0; r < n; r++) memcpy(tight + r * IN, x + r * LD, IN * 4);
            for (int i = 0; i < N; i++) {
                static const int which[N] = {0, 25, 3, 4, 7, 9, 10, 11, 14, 17, 20}; // groups that divide IN
                int n_out = 5 + 5 * i;
                w[i] = make_weight(&formats[which[i]], 1, n_out, IN, (uint64_t)i);
                y[i] = calloc((size_t)n * (size_t)(n_out + 3), 4);
                mm[i] = (mx_matmul){.y = {MX_F32, n, n_out, n_out + 3, y[i]}, .w = &w[i].w};
            }
            mx_err err;
            mx_mat xm = {MX_F32, n, IN, LD, x};
            CHECK_OK(mx_cpu_matmul(&d->base, mm, N, &xm, &err), &err);
            for (int i = 0; i < N; i++) {
                int n_out = w[i].w.n_out;
                matmul(d, &w[i].w, NULL, tight, n, want);
                for (int r = 0; r < n; r++) {
                    const float *row = y[i] + (size_t)r * (size_t)(n_out + 3);
                    CHECK(!memcmp(row, want + (size_t)r * (size_t)n_out, (size_t)n_out * 4),
                          "weight %d, %d rows", i, n);
                    CHECK(row[n_out] == 0 && row[n_out + 1] == 0 && row[n_out + 2] == 0,
                          "written past the row");
                }
                free(y[i]);
                free_weight(&w[i]);
            }
            free(x), free(tight), free(want);
            close_dev(d);
        }
    }
}

TEST(experts_match_single_products)
{
    enum { E = 6, OUT = 35, IN = 384, K = 2 };
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++) {
        for (int exact = 0; exact < 2; exact++) {
            mx_cpu_dev *d = open_dev((mx_isa)isa, exact, 2);
            for (size_t i = 0; i < countof(formats); i++) {
                const format *f = &formats[i];
                weight w = make_weight(f, E, OUT, IN, i), w2 = make_weight(f, E, OUT + 1, IN, i + 1);
                float *bias = make_x(E, OUT, 3);
                for (int n_tok = 1; n_tok <= 700; n_tok = n_tok * 7 + 2) {
                    for (int x_div = K; x_div >= 1; x_div--) {
                        int n_row = n_tok * K, n_x = n_row / x_div;
                        uint64_t seed = i;
                        float *x = make_x(n_x, IN, i), *y = malloc((size_t)n_row * OUT * 4);
                        float *y2 = malloc((size_t)n_row * (OUT + 1) * 4), want[OUT + 1];
                        int32_t *ids = malloc((size_t)n_row * 4);
                        for (int j = 0; j < n_row; j++)
                            ids[j] = mx_test_rand(&seed) % 3 ? 4 : (int)(mx_test_rand(&seed) % E);
                        mx_expert_matmul mm[2] = {{{MX_F32, n_row, OUT, OUT, y}, &w.w, bias},
                                                  {{MX_F32, n_row, OUT + 1, OUT + 1, y2}, &w2.w, NULL}};
                        mx_mat xm = {MX_F32, n_x, IN, IN, x};
                        mx_err err;
                        CHECK_OK(mx_cpu_expert_matmul(&d->base, mm, 2, &xm, ids, n_row, x_div, &err), &err);
                        for (int j = 0; j < n_row; j += 1 + n_row / 40) {
                            mx_qmat a = mx_qmat_at(&w.w, ids[j]), b = mx_qmat_at(&w2.w, ids[j]);
                            double tol = exact ? 0 : 2 * tolerance(f, (mx_isa)isa, false);
                            matmul(d, &a, bias + ids[j] * OUT, x + (size_t)(j / x_div) * IN, 1, want);
                            CHECK_CLOSE(y + (size_t)j * OUT, want, OUT, tol, "%s, row %d", show(f), j);
                            matmul(d, &b, NULL, x + (size_t)(j / x_div) * IN, 1, want);
                            CHECK_CLOSE(y2 + (size_t)j * (OUT + 1), want, OUT + 1, tol, "%s, row %d, second",
                                        show(f), j);
                        }
                        ids[0] = E;
                        CHECK_FAILS(mx_cpu_expert_matmul(&d->base, mm, 2, &xm, ids, n_row, x_div, &err),
                                    MX_EINTERNAL, &err, "expert 6 of 6");
                        free(x), free(y), free(y2), free(ids);
                    }
                }
                free_weight(&w), free_weight(&w2), free(bias);
            }
            close_dev(d);
        }
    }
}

TEST(levels_have_names)
{
    mx_err err;
    mx_isa isa;
    CHECK_OK(mx_isa_choose(&isa, NULL, &err), &err);
    CHECK_INT(isa, mx_isa_best());
    CHECK_OK(mx_isa_choose(&isa, "scalar", &err), &err);
    CHECK_INT(isa, MX_ISA_SCALAR);
    CHECK_FAILS(mx_isa_choose(&isa, "sse9", &err), MX_EINVAL, &err, "sse9");
    if (mx_isa_best() < MX_ISA_AMX) {
        CHECK(*mx_isa_missing());
        CHECK_FAILS(mx_isa_choose(&isa, "amx", &err), MX_UNSUPPORTED, &err, mx_isa_missing());
    }
}
