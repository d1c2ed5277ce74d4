/* gguf: files built here byte by byte; typed metadata, tensors, every way for a count or a length to lie (with the memory
 * that a refusal takes), and known values of the simple block formats (all formats: tests/oracle/gguf_format.py). */
#include "test.h"
#include "base/file.h"
#include "base/str.h"
#include "format/gguf.h"
#include "format/gguf_dequant.h"
#include <sys/resource.h>
#include <unistd.h>

static void u32(mx_str *s, uint32_t v) { mx_str_add(s, (const char *)&v, 4); }
static void u64(mx_str *s, uint64_t v) { mx_str_add(s, (const char *)&v, 8); }

static void str(mx_str *s, const char *z) {
    u64(s, strlen(z));
    mx_str_puts(s, z);
}

static void head(mx_str *s, uint32_t version, uint64_t n_tensor, uint64_t n_kv) {
    mx_str_puts(s, "GGUF");
    u32(s, version);
    u64(s, n_tensor);
    u64(s, n_kv);
}

static void key(mx_str *s, const char *name, uint32_t type) {
    str(s, name);
    u32(s, type);
}

static void tensor(mx_str *s, const char *name, uint32_t type, uint64_t offset, uint32_t n_dim,
                   const uint64_t *dim) {
    str(s, name);
    u32(s, n_dim);
    for (uint32_t i = 0; i < n_dim && dim; i++) u64(s, dim[i]);
    u32(s, type);
    u64(s, offset);
}

static void pad(mx_str *s, size_t to) {
    while (s->len % to) mx_str_putc(s, 0);
}

static mx_status open_bytes(mx_gguf **out, mx_str *s, mx_err *err) {
    static char path[256];
    if (!*path) snprintf(path, sizeof path, "%s/t.gguf", mx_test_tmpdir());
    CHECK_OK(mx_file_write(path, s->p, s->len, err), err);
    mx_str_free(s);
    *s = (mx_str){0};
    *out = NULL;
    return mx_gguf_open(out, path, err);
}

static void put_good(mx_str *s, uint32_t version) {
    head(s, version, 2, 9);
    key(s, "general.architecture", MX_GGUF_STRING), str(s, "llama");
    key(s, "general.alignment", MX_GGUF_U32), u32(s, 64);
    key(s, "n", MX_GGUF_I16), mx_str_add(s, "\xFE\xFF", 2);
    key(s, "big", MX_GGUF_U64), u64(s, UINT64_MAX);
    key(s, "yes", MX_GGUF_BOOL), mx_str_putc(s, 1);
    key(s, "theta", MX_GGUF_F32), mx_str_add(s, (const char *)&(float){0.5f}, 4);
    key(s, "eps", MX_GGUF_F64), mx_str_add(s, (const char *)&(double){1e-5}, 8);
    key(s, "tokens", MX_GGUF_ARRAY), u32(s, MX_GGUF_STRING), u64(s, 3), str(s, "a"), str(s, ""),
        str(s, "\xC3\xA9");
    key(s, "scores", MX_GGUF_ARRAY), u32(s, MX_GGUF_I8), u64(s, 2), mx_str_add(s, "\x01\xFF", 2);
    tensor(s, "x", MX_GGML_Q8_0, 64, 2, (uint64_t[]){32, 1});
    tensor(s, "y", MX_GGML_F32, 0, 1, (uint64_t[]){3});
    pad(s, 64);
    for (int i = 0; i < 3; i++) mx_str_add(s, (const char *)&(float){(float)i}, 4);
    pad(s, 64);
    mx_str_add(s, "\x00\x3C", 2); // d = 1
    for (int i = 0; i < 32; i++) mx_str_putc(s, (char)(i - 16));
}

TEST(reads_a_file)
{
    for (uint32_t version = 2; version <= 3; version++) {
        mx_err err;
        mx_str s = {0};
        mx_gguf *g;
        size_t len;
        const char *bad = NULL;
        char buf[100];
        put_good(&s, version);
        CHECK_OK(open_bytes(&g, &s, &err), &err);
        CHECK_INT(mx_gguf_n_kv(g), 9);
        const char *arch = mx_gguf_str(g, "general.architecture", &len, &bad);
        CHECK(len == 5 && !memcmp(arch, "llama", 5));
        CHECK_INT(mx_gguf_int(g, "n", 0, &bad), -2);
        CHECK_INT(mx_gguf_int(g, "big", 0, &bad), INT64_MAX);
        CHECK_INT(mx_gguf_int(g, "absent", 7, &bad), 7);
        CHECK(mx_gguf_bool(g, "yes", false, &bad));
        CHECK(mx_gguf_num(g, "theta", 0, &bad) == 0.5 && mx_gguf_num(g, "eps", 0, &bad) == 1e-5 && !bad);
        CHECK_INT(mx_gguf_int(g, "theta", 9, &bad), 9);
        CHECK_STR(bad, "theta");
        bad = NULL;
        CHECK(!mx_gguf_str(g, "tokens", &len, &bad) && bad && len == 0);
        static const char *const tokens[] = {"a", "", "é"};
        mx_gguf_iter it = mx_gguf_strings(mx_gguf_get(g, "tokens"));
        uint64_t n = 0;
        for (; mx_gguf_next(&it); n++)
            CHECK(it.i == n && it.len == strlen(tokens[n]) && !memcmp(it.p, tokens[n], it.len));
        CHECK_INT(n, 3);
        it = mx_gguf_strings(mx_gguf_get(g, "scores"));
        CHECK(!mx_gguf_next(&it));
        const mx_gguf_kv *scores = mx_gguf_get(g, "scores");
        CHECK(mx_gguf_is_int(scores) && scores->n == 2 && mx_gguf_int_at(scores, 1) == -1);

        const mx_gguf_tensor *x = mx_gguf_find(g, "x"), *y = mx_gguf_find(g, "y");
        CHECK(x == mx_gguf_tensor_at(g, 0) && y == mx_gguf_tensor_at(g, 1) && !mx_gguf_find(g, "z"));
        CHECK(x->type == MX_GGML_Q8_0 && x->n_bytes == 34 && x->n_value == 32 && x->n_dim == 2);
        float v[32];
        CHECK_OK(mx_gguf_dequant(x->type, x->data, 32, v, &err), &err);
        for (int i = 0; i < 32; i++) CHECK(v[i] == (float)(i - 16));
        CHECK_OK(mx_gguf_dequant(y->type, y->data, 3, v, &err), &err);
        CHECK(v[2] == 2);
        CHECK_STR(mx_gguf_summary(g, buf, sizeof buf), "llama, 2 tensors: 1 F32, 1 Q8_0");
        mx_gguf_summary(g, buf, 5); // may be cut, must stay inside
        CHECK_STR(buf, "llam");
        mx_gguf_free(g);
    }
}

/* A file that is cut anywhere is refused, and so is one with any single byte of its header changed, or it opens. */
TEST(every_cut_and_every_changed_byte)
{
    mx_err err;
    mx_str s = {0};
    mx_gguf *g;
    put_good(&s, 3);
    size_t len = s.len, opened = 0;
    char *whole = malloc(len);
    memcpy(whole, s.p, len);
    for (size_t n = 0; n < len; n++) {
        mx_str_clear(&s);
        mx_str_add(&s, whole, n);
        CHECK(open_bytes(&g, &s, &err) != MX_OK, "cut to %zu", n);
    }
    for (size_t i = 0; i < len; i++) {
        for (int bit = 0; bit < 8; bit += 7) {
            mx_str_clear(&s);
            mx_str_add(&s, whole, len);
            s.p[i] ^= (char)(1 << bit);
            if (open_bytes(&g, &s, &err) != MX_OK) continue;
            opened++;
            mx_gguf_free(g);
        }
    }
    CHECK(opened > 0); // values and data may hold anything
    free(whole);
    mx_str_free(&s);
}

static long peak_kb(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void refused(mx_str *s, mx_status status, const char *part) {
    mx_err err = {0};
    mx_gguf *g;
    CHECK_FAILS(open_bytes(&g, s, &err), status, &err, part);
    CHECK(!g && strstr(err.msg, "t.gguf"), "%s", err.msg);
}

TEST(counts_that_lie)
{
    mx_str s = {0};
    long before = peak_kb();
    static const uint64_t huge[] = {(uint64_t)1 << 60, UINT64_MAX, 1 << 20, 4};
    for (size_t i = 0; i < countof(huge); i++) {
        head(&s, 3, 0, huge[i]), pad(&s, 64);
        refused(&s, MX_EINVAL, "metadata keys");
        head(&s, 3, huge[i], 0), pad(&s, 64);
        refused(&s, MX_EINVAL, "tensors, more than");
    }
    static const uint64_t lengths[] = {(uint64_t)1 << 63, UINT64_MAX, ((uint64_t)1 << 61) + 1, 100};
    for (size_t i = 0; i < countof(lengths); i++) {
        for (uint32_t type = 0; type <= MX_GGUF_F64; type++) {
            if (type == MX_GGUF_ARRAY) continue;
            head(&s, 3, 0, 1), key(&s, "k", MX_GGUF_ARRAY), u32(&s, type), u64(&s, lengths[i]), u64(&s, 1);
            refused(&s, MX_EINVAL, "k claims");
        }
        head(&s, 3, 0, 1), key(&s, "k", MX_GGUF_STRING), u64(&s, lengths[i]), u64(&s, 1);
        refused(&s, MX_EINVAL, "a string in k claims");
        head(&s, 3, 0, 1), u64(&s, lengths[i]), u64(&s, 1);
        refused(&s, MX_EINVAL, "ends inside a metadata key");
    }
    head(&s, 3, 0, 1), key(&s, "nest", MX_GGUF_ARRAY);
    for (int i = 0; i < 10000; i++) u32(&s, MX_GGUF_ARRAY), u64(&s, 1);
    refused(&s, MX_UNSUPPORTED, "array of arrays");
    head(&s, 3, 0, 1), key(&s, "k", 13), u64(&s, 0);
    refused(&s, MX_EINVAL, "unknown type 13");
    head(&s, 3, 0, 1), key(&s, "k", MX_GGUF_ARRAY), u32(&s, 200), u64(&s, 0);
    refused(&s, MX_EINVAL, "unknown type 200");
    head(&s, 3, 0, 2), key(&s, "k", MX_GGUF_BOOL), mx_str_putc(&s, 0), key(&s, "k", MX_GGUF_U64), u64(&s, 0);
    refused(&s, MX_EINVAL, "k occurs twice");
    CHECK(peak_kb() - before < 65536);
}

TEST(tensors_that_lie)
{
    static const struct {
        uint32_t n_dim;
        uint64_t dim[9];
        uint32_t type;
        uint64_t offset;
        mx_status status;
        const char *part;
    } cases[] = {
        {9, {1, 1, 1, 1, 1, 1, 1, 1, 1}, MX_GGML_F32, 0, MX_EINVAL, "9 dimensions"},
        {5, {1, 1, 1, 1, 1}, MX_GGML_F32, 0, MX_EINVAL, "5 dimensions"},
        {0, {0}, MX_GGML_F32, 0, MX_EINVAL, "0 dimensions"},
        {2, {4, 0}, MX_GGML_F32, 0, MX_EINVAL, "dimension 1 is 0"},
        {1, {0}, MX_GGML_Q4_0, 0, MX_EINVAL, "dimension 0 is 0"},
        {2, {(uint64_t)1 << 63, 2}, MX_GGML_F32, 0, MX_EINVAL, "no possible size"},
        {3, {(uint64_t)1 << 62, 2, 2}, MX_GGML_F32, 0, MX_EINVAL, "no possible size"},
        {2,
         {((uint64_t)1 << 32) + 1, ((uint64_t)1 << 32) - 1},
         MX_GGML_F32,
         0,
         MX_EINVAL,
         "no possible size"},
        {2, {(uint64_t)1 << 31, (uint64_t)1 << 31}, MX_GGML_F64, 0, MX_EINVAL, "larger than any memory"},
        {1, {(uint64_t)1 << 40}, MX_GGML_F32, 0, MX_EINVAL, "but the data have 64"},
        {1, {17}, MX_GGML_F32, 0, MX_EINVAL, "but the data have 64"},
        {1, {16}, MX_GGML_F32, 32, MX_EINVAL, "but the data have 64"},
        {1, {1}, MX_GGML_F32, (uint64_t)-32, MX_EINVAL, "but the data have 64"},
        {1, {1}, MX_GGML_F32, 4, MX_EINVAL, "not at a multiple of 32"},
        {1, {33}, MX_GGML_Q4_0, 0, MX_EINVAL, "blocks of 32"},
        {1, {32}, MX_GGML_Q4_K, 0, MX_EINVAL, "blocks of 256"},
        {1, {32}, 31, 0, MX_UNSUPPORTED, "Q4_0_4_4"},
        {1, {32}, 42, 0, MX_UNSUPPORTED, "type 42"},
        {1, {32}, UINT32_MAX, 0, MX_UNSUPPORTED, "does not know"},
    };
    mx_str s = {0};
    for (size_t i = 0; i < countof(cases); i++) {
        head(&s, 3, 1, 0), tensor(&s, "t\x1b", cases[i].type, cases[i].offset, cases[i].n_dim, cases[i].dim);
        pad(&s, 32);
        for (int k = 0; k < 16; k++) u32(&s, 0);
        mx_err err = {0};
        mx_gguf *g;
        CHECK(open_bytes(&g, &s, &err) == cases[i].status, "case %zu: %s", i, err.msg);
        CHECK(strstr(err.msg, cases[i].part) && strstr(err.msg, "t?"), "case %zu: %s", i, err.msg);
    }
    head(&s, 3, 1, 0), tensor(&s, "t", 0, 0, UINT32_MAX, NULL), pad(&s, 64);
    refused(&s, MX_EINVAL, "4294967295 dimensions");
    head(&s, 3, 2, 0), tensor(&s, "a", 0, 0, 1, (uint64_t[]){9}), tensor(&s, "b", 0, 32, 1, (uint64_t[]){1}),
        pad(&s, 32);
    u64(&s, 0), pad(&s, 64), u64(&s, 0), pad(&s, 64);
    refused(&s, MX_EINVAL, "a and b overlap");
    head(&s, 3, 2, 0), tensor(&s, "a", 0, 0, 1, (uint64_t[]){1}), tensor(&s, "a", 0, 32, 1, (uint64_t[]){1}),
        pad(&s, 32);
    u64(&s, 0), pad(&s, 64), u64(&s, 0), pad(&s, 64);
    refused(&s, MX_EINVAL, "tensor a occurs twice");
}

TEST(other_files)
{
    mx_str s = {0};
    mx_str_puts(&s, "GGML....................");
    refused(&s, MX_EINVAL, "not a GGUF file");
    mx_str_puts(&s, "");
    refused(&s, MX_EINVAL, "not a GGUF file");
    head(&s, 1, 0, 0);
    refused(&s, MX_UNSUPPORTED, "version 1");
    head(&s, 3u << 24, 0, 0);
    refused(&s, MX_UNSUPPORTED, "big-endian");
    static const uint32_t aligns[] = {0, 3, 48};
    for (size_t i = 0; i < countof(aligns); i++) {
        head(&s, 3, 0, 1), key(&s, "general.alignment", MX_GGUF_U32), u32(&s, aligns[i]);
        refused(&s, MX_EINVAL, "power of two");
    }
    head(&s, 3, 0, 1), key(&s, "general.alignment", MX_GGUF_U64), u64(&s, 32);
    refused(&s, MX_EINVAL, "power of two");
    head(&s, 3, 0, 1), key(&s, "split.count", MX_GGUF_U16), mx_str_add(&s, "\2\0", 2);
    refused(&s, MX_UNSUPPORTED, "one of 2 parts");
    mx_gguf *g = NULL;
    mx_err err = {0};
    head(&s, 3, 0, 0); // nothing in it, and nothing wrong with it
    CHECK_OK(open_bytes(&g, &s, &err), &err);
    CHECK_INT(mx_gguf_n_tensor(g) + mx_gguf_n_kv(g), 0);
    CHECK(!mx_gguf_find(g, "x") && !mx_gguf_get(g, "x"));
    mx_gguf_free(g);
}

TEST(types_by_name_and_size)
{
    static const struct {
        uint32_t type;
        const char *name;
        int block, bytes;
    } some[] = {{MX_GGML_Q2_K, "Q2_K", 256, 84},   {MX_GGML_Q6_K, "Q6_K", 256, 210},
                {MX_GGML_IQ1_M, "IQ1_M", 256, 56}, {MX_GGML_MXFP4, "MXFP4", 32, 17},
                {36, "IQ4_NL_4_4", 0, 0},          {4, "Q4_2", 0, 0},
                {MX_GGML_COUNT, "unknown", 0, 0}};
    for (size_t i = 0; i < countof(some); i++) {
        CHECK_STR(mx_ggml_name(some[i].type), some[i].name);
        CHECK_INT(mx_ggml_block(some[i].type), some[i].block);
        CHECK_INT(mx_ggml_bytes(some[i].type), some[i].bytes);
    }
    for (uint32_t t = 0; t < MX_GGML_COUNT; t++)
        CHECK(mx_ggml_name(t) && (!mx_gguf_can_dequant(t) || mx_ggml_block(t)));
}

/* d = 2, m = -1; code 0x2F at value 0 and 16: low nibble 15, high nibble 2. */
TEST(simple_blocks)
{
    mx_err err = {0};
    float v[32];
    unsigned char q4_0[18] = {0, 0x40, 0x2F}, q4_1[20] = {0, 0x40, 0, 0xBC, 0x2F};
    unsigned char q5_0[22] = {0, 0x40, 1, 0, 0, 0, 0x2F}, q5_1[24] = {0, 0x40, 0, 0xBC, 0, 0, 1, 0, 0x2F};
    CHECK_OK(mx_gguf_dequant(MX_GGML_Q4_0, q4_0, 32, v, &err), &err);
    CHECK(v[0] == 14 && v[16] == -12 && v[1] == -16);
    CHECK_OK(mx_gguf_dequant(MX_GGML_Q4_1, q4_1, 32, v, &err), &err);
    CHECK(v[0] == 29 && v[16] == 3 && v[31] == -1);
    CHECK_OK(mx_gguf_dequant(MX_GGML_Q5_0, q5_0, 32, v, &err), &err);
    CHECK(v[0] == 30 && v[16] == -28 && v[1] == -32);
    CHECK_OK(mx_gguf_dequant(MX_GGML_Q5_1, q5_1, 32, v, &err), &err);
    CHECK(v[0] == 29 && v[16] == 35 && v[31] == -1);
    CHECK_FAILS(mx_gguf_dequant(MX_GGML_Q4_0, q4_0, 31, v, &err), MX_EINVAL, &err, "Q4_0");
    CHECK_FAILS(mx_gguf_dequant(MX_GGML_IQ2_XS, q4_0, 32, v, &err), MX_UNSUPPORTED, &err, "IQ2_XS");
    CHECK_FAILS(mx_gguf_dequant(1000, q4_0, 32, v, &err), MX_UNSUPPORTED, &err, "unknown");
}
