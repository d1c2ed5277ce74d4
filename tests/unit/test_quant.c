/* test_quant.c - golden bytes of the weight formats, taken from MLX 0.32.4 on the CPU; tests/oracle/quant.py compares far more
 * where MLX is installed. */
#include "test.h"
#include "quant/quant.h"

enum { N = 128, ROWS = 3 };

typedef struct {
    mx_quant kind;
    int bits, group;
} format;
static const format formats[] = {
    {MX_QUANT_AFFINE, 2, 32}, {MX_QUANT_AFFINE, 3, 64}, {MX_QUANT_AFFINE, 4, 32},  {MX_QUANT_AFFINE, 4, 128},
    {MX_QUANT_AFFINE, 5, 32}, {MX_QUANT_AFFINE, 6, 64}, {MX_QUANT_AFFINE, 8, 128}, {MX_QUANT_MXFP4, 4, 32},
    {MX_QUANT_MXFP8, 8, 32},  {MX_QUANT_NVFP4, 4, 16},
};

/* Codes, scales and biases of one matrix in memory. */
typedef struct {
    unsigned char codes[ROWS * N], scales[ROWS * N], biases[ROWS * N];
    mx_qmat w;
} quantized;

static void quantize(quantized *q, format f, mx_dtype t, const float *x, int rows, int n) {
    mx_err err = {0};
    memset(q, 0, sizeof *q);
    CHECK_OK(mx_quantize(f.kind, f.bits, f.group, t, x, rows, n, q->codes, q->scales, q->biases, &err), &err);
    q->w = (mx_qmat){.kind = f.kind,
                     .bits = f.bits,
                     .group = f.group,
                     .type = t,
                     .n_stack = 1,
                     .n_out = rows,
                     .n_in = n,
                     .codes = q->codes,
                     .scales = q->scales,
                     .biases = f.kind == MX_QUANT_AFFINE ? q->biases : NULL};
}

/* x[i] = (37 i mod 101 - 50) / 64, exact in every type: ties, both signs, zero. */
static void ramp(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (float)(37 * i % 101 - 50) / 64;
}

static const char *hex(const unsigned char *p, size_t n) {
    static char buf[2][2 * N + 1];
    static int turn;
    char *s = buf[turn ^= 1];
    *s = 0;
    for (size_t i = 0; i < n; i++) snprintf(s + 2 * i, 3, "%02x", p[i]);
    return s;
}

TEST(quantize_gives_the_bytes_of_mlx)
{
    static const struct {
        format f;
        mx_dtype type;
        const char *codes, *scales, *biases;
    } golden[] = {
        {{MX_QUANT_AFFINE, 2, 32}, MX_BF16, "dfb6dcb62db72dc7", "c8be", "483f"},
        {{MX_QUANT_AFFINE, 3, 32}, MX_F16, "afce78f05e9df150bd3ae3a1", "40b2", "403a"},
        {{MX_QUANT_AFFINE, 4, 32}, MX_BF16, "afe4387db1f54a8ec2065b9fd3286ca0", "c8bd", "483f"},
        {{MX_QUANT_AFFINE, 4, 32}, MX_F32, "afe4387db1f54a8ec2065b9fd3286ca0", "0000c8bd", "0000483f"},
        {{MX_QUANT_AFFINE, 5, 32}, MX_BF16, "9fa21e8b76c2ae3f0f8724b750959766bf8119a0", "48bd", "483f"},
        {{MX_QUANT_AFFINE, 6, 32},
         MX_F16,
         "3f1ae9a23273445bf9e6838348ac09ebc4938ded192f06a4",
         "40a6",
         "403a"},
        {{MX_QUANT_AFFINE, 8, 32},
         MX_BF16,
         "ffa143e68829cd6e0fb354f89a3bdf8021c56608ac4df19233d7781abd5f00a4",
         "c8bb",
         "483f"},
        {{MX_QUANT_MXFP4, 4, 32}, MX_BF16, "adc3401ca5d2390cb4512a9dc4402ba5", "7d", ""},
        {{MX_QUANT_MXFP8, 8, 32},
         MX_BF16,
         "fced74fadc78f7667bf270fcea76f90079f66a7cf072fbe677f85c7af46d7cee",
         "76",
         ""},
        {{MX_QUANT_NVFP4, 4, 16}, MX_BF16, "bfe5692ec7f45a0ed6724cafe6613db7", "2020", ""},
        {{MX_QUANT_NVFP4, 4, 16}, MX_F32, "bfe5692ec7f45a0ed6724cafe6613db7", "2020", ""},
    };
    float x[32];
    ramp(x, 32);
    for (size_t i = 0; i < countof(golden); i++) {
        quantized q;
        quantize(&q, golden[i].f, golden[i].type, x, 1, 32);
        CHECK_STR(hex(q.codes, mx_qmat_row_bytes(&q.w)), golden[i].codes);
        const size_t n_scale = 32 / (size_t)golden[i].f.group * mx_qmat_scale_size(&q.w);
        CHECK_STR(hex(q.scales, n_scale), golden[i].scales);
        CHECK_STR(hex(q.biases, q.w.biases ? n_scale : 0), golden[i].biases);
    }
}

/* QNT-01: the scale of a block is rounded up, so that its largest value is never clipped. */
TEST(mx_scales_round_up)
{
    static const struct {
        mx_quant kind;
        float in[3];
        uint8_t scale;
        float out[3];
    } cases[] = {
        {MX_QUANT_MXFP8, {600, 1, -37}, 128, {576, 1, -36}},
        {MX_QUANT_MXFP8, {448}, 127, {448}},
        {MX_QUANT_MXFP8, {449}, 128, {448}},
        {MX_QUANT_MXFP8, {0}, 127, {0}},
        {MX_QUANT_MXFP4, {5.5f}, 127, {6}},
        {MX_QUANT_MXFP4, {2.7f}, 126, {3}},
        {MX_QUANT_MXFP4, {6.1f}, 128, {6}},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        float x[32] = {0}, y[32];
        mx_err err = {0};
        quantized q;
        memcpy(x, cases[i].in, sizeof cases[i].in);
        quantize(&q, (format){cases[i].kind, cases[i].kind == MX_QUANT_MXFP8 ? 8 : 4, 32}, MX_F32, x, 1, 32);
        CHECK_INT(q.scales[0], cases[i].scale);
        CHECK_OK(mx_qmat_expand(&q.w, 0, 1, y, &err), &err);
        for (int k = 0; k < 32; k++)
            CHECK(y[k] == (k < 3 ? cases[i].out[k] : 0), "case %zu value %d: %g", i, k, y[k]);
    }
}

/* QNT-02: E8M0 bytes are exponents, and 255 is NaN, which must not come out as a number. */
TEST(e8m0_scales_are_exponents)
{
    static const uint8_t scales[5] = {120, 127, 0, 254, 255};
    unsigned char codes[160];
    float y[160];
    mx_err err = {0};
    memset(codes, 0x38, sizeof codes); // 1.0
    const mx_qmat w = {.kind = MX_QUANT_MXFP8,
                       .bits = 8,
                       .group = 32,
                       .n_stack = 1,
                       .n_out = 1,
                       .n_in = 160,
                       .codes = codes,
                       .scales = scales};
    CHECK_OK(mx_qmat_expand(&w, 0, 1, y, &err), &err);
    CHECK(y[0] == 0x1p-7f);
    CHECK(y[32] == 1);
    CHECK(y[64] == 0x1p-127f);
    CHECK(y[96] == 0x1p127f);
    CHECK(isnan(y[128]) && isnan(y[159]));
}

TEST(rows_and_stacks_agree_with_the_whole)
{
    float x[ROWS * N], all[ROWS * N], some[ROWS * N];
    mx_err err = {0};
    uint64_t seed = 11;
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)mx_test_normal(&seed) * 0.1f;
    for (size_t i = 0; i < countof(formats); i++) {
        for (mx_dtype t = MX_F32; t <= MX_BF16; t++) {
            quantized q;
            quantize(&q, formats[i], t, x, ROWS, N);
            CHECK_OK(mx_qmat_expand(&q.w, 0, ROWS, all, &err), &err);
            const int bits = formats[i].kind == MX_QUANT_MXFP8
                                 ? 5
                                 : formats[i].bits; // E4M3 has 4 bits of precision and a sign
            CHECK_CLOSE(all, x, ROWS * N, 1.2 / (1 << (bits - 1)), "format %zu", i);
            for (int r = 0; r < ROWS; r++) {
                CHECK_OK(mx_qmat_expand(&q.w, r, 1, some, &err), &err);
                CHECK(!memcmp(some, all + r * N, N * sizeof *all), "format %zu row %d", i, r);
                const mx_qmat one = mx_qmat_rows(&q.w, r, 1);
                CHECK_OK(mx_qmat_expand(&one, 0, 1, some, &err), &err);
                CHECK(!memcmp(some, all + r * N, N * sizeof *all), "format %zu row %d", i, r);
                mx_qmat stack = q.w; // the same bytes seen as a stack of matrices of one row
                stack.n_stack = ROWS;
                stack.n_out = 1;
                const mx_qmat at = mx_qmat_at(&stack, r);
                CHECK_INT(mx_qmat_bytes(&stack), mx_qmat_bytes(&q.w));
                CHECK_OK(mx_qmat_expand(&at, 0, 1, some, &err), &err);
                CHECK(!memcmp(some, all + r * N, N * sizeof *all), "format %zu matrix %d", i, r);
            }
        }
    }
}

TEST(expand_refuses_rows_outside)
{
    float x[N], y[N] = {7};
    mx_err err = {0};
    quantized q;
    ramp(x, N);
    quantize(&q, formats[2], MX_BF16, x, 1, N);
    CHECK_FAILS(mx_qmat_expand(&q.w, 0, 2, y, &err), MX_EINVAL, &err, "outside");
    CHECK_FAILS(mx_qmat_expand(&q.w, -1, 1, y, &err), MX_EINVAL, &err, "outside");
    CHECK_FAILS(mx_qmat_expand(&q.w, 2, 0, y, &err), MX_EINVAL, &err, "outside");
    CHECK(y[0] == 7);
    q.w.n_stack = 2;
    CHECK_FAILS(mx_qmat_expand(&q.w, 0, 1, y, &err), MX_EINVAL, &err, "stack of 2");
}

TEST(only_formats_that_exist)
{
    mx_err err = {0};
    CHECK_FAILS(mx_quant_check(MX_QUANT_AFFINE, 7, 64, 64, &err), MX_UNSUPPORTED, &err, "7 bits");
    CHECK_FAILS(mx_quant_check(MX_QUANT_AFFINE, 1, 64, 64, &err), MX_UNSUPPORTED, &err, "1 bits");
    CHECK_FAILS(mx_quant_check(MX_QUANT_AFFINE, 4, 16, 64, &err), MX_UNSUPPORTED, &err, "group size 16");
    CHECK_FAILS(mx_quant_check(MX_QUANT_AFFINE, 4, 64, 96, &err), MX_UNSUPPORTED, &err,
                "multiple of the group");
    CHECK_FAILS(mx_quant_check(MX_QUANT_MXFP4, 4, 64, 64, &err), MX_UNSUPPORTED, &err,
                "mxfp4 has 4 bits and group size 32");
    CHECK_FAILS(mx_quant_check(MX_QUANT_MXFP8, 4, 32, 64, &err), MX_UNSUPPORTED, &err, "mxfp8 has 8 bits");
    CHECK_FAILS(mx_quant_check(MX_QUANT_NVFP4, 4, 32, 64, &err), MX_UNSUPPORTED, &err,
                "nvfp4 has 4 bits and group size 16");
    CHECK_FAILS(mx_quant_check(MX_QUANT_AFFINE, 4, 64, 0, &err), MX_UNSUPPORTED, &err, "row of 0");
    CHECK_FAILS(mx_quant_check((mx_quant)9, 4, 64, 64, &err), MX_UNSUPPORTED, &err, "unknown");
    for (size_t i = 0; i < countof(formats); i++)
        CHECK_OK(mx_quant_check(formats[i].kind, formats[i].bits, formats[i].group, 256, &err), &err);
}

/* A NaN or an infinity makes its group NaN in every format; the neighbours stay numbers. */
TEST(bad_values_never_become_finite)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < countof(formats) * countof(bad); i++) {
        const format f = formats[i / countof(bad)];
        float x[2 * N], y[2 * N];
        mx_err err = {0};
        quantized q;
        ramp(x, 2 * N);
        x[N + 3] = bad[i % countof(bad)];
        quantize(&q, f, MX_BF16, x, 2, N);
        CHECK_OK(mx_qmat_expand(&q.w, 0, 2, y, &err), &err);
        for (int k = 0; k < 2 * N; k++)
            CHECK(k >= N && k < N + f.group ? isnan(y[k]) : isfinite(y[k]), "format %zu value %d",
                  i / countof(bad), k);
    }
}

TEST(numbers_round_to_nearest_even)
{
    CHECK_INT(mx_f32_to_bf16(1.00390625f), 0x3F80); // half way between 1 and the next
    CHECK_INT(mx_f32_to_bf16(1.01171875f), 0x3F82);
    CHECK_INT(mx_f32_to_f16(65519.996f), 0x7BFF);
    CHECK_INT(mx_f32_to_f16(65520), 0x7C00);
    CHECK_INT(mx_f32_to_f16(0x1p-25f), 0);
    CHECK_INT(mx_f32_to_f16(0x1.8p-24f), 2);
    CHECK_INT(mx_f32_to_e4m3(464), 0x7E); // saturates
    CHECK_INT(mx_f32_to_e4m3(-0x1p-10f), 0x80);
    CHECK_INT(mx_f32_to_e4m3(0x1.8p-9f), 2);
    CHECK(isnan(mx_bf16_to_f32(mx_f32_to_bf16(NAN))) && isnan(mx_f16_to_f32(mx_f32_to_f16(NAN))));
    CHECK(isnan(mx_e4m3_to_f32(mx_f32_to_e4m3(NAN))) && isnan(mx_e8m0_to_f32(255)));
    for (unsigned v = 0; v < 65536; v++) {
        const float h = mx_f16_to_f32((uint16_t)v), b = mx_bf16_to_f32((uint16_t)v);
        if (!isnan(h)) CHECK_INT(mx_f32_to_f16(h), v);
        if (!isnan(b)) CHECK_INT(mx_f32_to_bf16(b), v);
    }
    for (unsigned v = 0; v < 256; v++) {
        const float f = mx_e4m3_to_f32((uint8_t)v);
        if (!isnan(f)) CHECK_INT(mx_f32_to_e4m3(f), v);
    }
}

TEST(nan_codes_are_found)
{
    static uint8_t codes[10000];
    size_t at = 0;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)((i * 37) % 127 | (i & 1 ? 0x80 : 0)); // never 0x7F
    CHECK(!mx_e4m3_has_nan(codes, sizeof codes, &at));
    static const size_t places[] = {0, 4095, 4096, 9999};
    for (size_t i = 0; i < countof(places); i++) {
        const uint8_t was = codes[places[i]];
        codes[places[i]] = i & 1 ? 0xFF : 0x7F;
        CHECK(mx_e4m3_has_nan(codes, sizeof codes, &at));
        CHECK_INT(at, places[i]);
        CHECK(isnan(mx_e4m3_to_f32(codes[places[i]])));
        codes[places[i]] = was;
    }
    CHECK(!mx_e4m3_has_nan(codes, 0, &at));
}
