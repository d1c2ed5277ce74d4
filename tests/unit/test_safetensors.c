/* safetensors: what the format allows is read, everything else is refused with file and tensor by name; shards and their
 * index; the writer. Files are made by hand here, so that each can be wrong in one way only. */
#include "test.h"
#include "base/file.h"
#include "base/str.h"
#include "format/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *path_in(const char *dir, const char *name) {
    static char buf[4][512];
    static int k;
    k = (k + 1) % 4;
    snprintf(buf[k], sizeof buf[k], "%s/%s", dir, name);
    return buf[k];
}

static void put_file(const char *path, const void *p, size_t n) {
    mx_err err;
    CHECK_OK(mx_file_write(path, p, n, &err), &err);
}

/* A file of this header and n_data bytes 0, 1, 2, ... */
static void put_st(const char *path, const char *header, size_t n_data) {
    mx_str s = {0};
    uint64_t len = strlen(header);
    mx_str_add(&s, (const char *)&len, 8);
    mx_str_puts(&s, header);
    for (size_t i = 0; i < n_data; i++) mx_str_putc(&s, (char)i);
    put_file(path, s.p, s.len);
    mx_str_free(&s);
}

static const char two_tensors[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"n\":\"1\"},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[6,14]},"
    "\"empty\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[6,6],\"extra\":[{}]},"
    "\"a.\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
    "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}   ";

TEST(reads_a_file)
{
    const char *p = path_in(mx_test_tmpdir(), "x.safetensors");
    mx_err err;
    mx_st *s = NULL;
    char buf[64];
    put_st(p, two_tensors, 15);
    CHECK_OK(mx_st_open_file(&s, p, &err), &err);
    CHECK_INT(mx_st_count(s), 4);
    CHECK_INT(mx_st_total_bytes(s), 15);
    CHECK_STR(mx_st_at(s, 0)->name, "a.é");
    CHECK_STR(mx_st_at(s, 1)->name, "empty");
    const mx_st_tensor *b = mx_st_find(s, "b");
    CHECK(b && b == mx_st_at(s, 2));
    CHECK_STR(b->file, "x.safetensors");
    CHECK_INT(b->n_bytes, 8);
    CHECK_INT(((const unsigned char *)b->data)[7], 13);
    CHECK_STR(mx_st_describe(b, buf, sizeof buf), "[2, 1] F32");
    CHECK_STR(mx_st_describe(mx_st_find(s, "s"), buf, sizeof buf), "[] U8");
    CHECK(!mx_st_find(s, "nothing") && !mx_st_find(s, ""));
    CHECK_STR(mx_st_metadata(s, "format"), "pt");
    CHECK(!mx_st_metadata(s, "absent"));
    mx_st_free(s);
}

TEST(every_dtype)
{
    static const struct {
        const char *name;
        int bits;
    } all[] = {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"U16", 16},    {"I16", 16},
               {"U32", 32},    {"I32", 32},        {"U64", 64},        {"I64", 64},    {"F16", 16},
               {"BF16", 16},   {"F32", 32},        {"F64", 64},        {"F8_E4M3", 8}, {"F8_E5M2", 8},
               {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"C64", 64},    {"F4", 4},
               {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    const char *p = path_in(mx_test_tmpdir(), "x.safetensors");
    for (size_t i = 0; i < countof(all); i++) {
        char h[200];
        mx_err err;
        mx_st *s = NULL;
        snprintf(h, sizeof h, "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%d]}}",
                 all[i].name, all[i].bits);
        put_st(p, h, (size_t)all[i].bits);
        CHECK_OK(mx_st_open_file(&s, p, &err), &err);
        CHECK_STR(mx_st_dtype_name(mx_st_at(s, 0)->dtype), all[i].name);
        CHECK_INT(mx_st_dtype_bits(mx_st_at(s, 0)->dtype), all[i].bits);
        mx_st_free(s);
    }
}

#define T(dtype, shape, span)                                                                                \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}}"

/* One header and the number of data bytes for each way to be wrong; the sentence must name what it is about. */
TEST(refuses_bad_headers)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *part;
    } cases[] = {
        {T("F32", "[2]", "[0,8]"), 7, "tensor t: ends at byte 8"},
        {T("F32", "[2]", "[0,8]"), 9, "end at byte 8 of the data, but the file holds 9"},
        {T("F32", "[3]", "[0,8]"), 8, "tensor t: [3] F32 needs 12 bytes, but its span has 8"},
        {T("F32", "[2]", "[8,0]"), 8, "tensor t: begins at byte 8, after its end"},
        {T("F32", "[2]", "[-8,0]"), 8, "negative"},
        {T("F32", "[-2]", "[0,8]"), 8, "tensor t: its shape"},
        {T("F32", "[2.0]", "[0,8]"), 8, "tensor t: its shape"},
        {T("F32", "2", "[0,8]"), 8, "tensor t: has no shape"},
        {T("F32", "[2]", "[0,8,9]"), 8, "two integers"},
        {T("F32", "[2]", "[0,18446744073709551624]"), 8, "two integers"},
        {T("F32", "[2]", "[0,9223372036854775807]"), 8, "tensor t: ends at byte 9223372036854775807"},
        {T("F32", "[4294967296,4294967296]", "[0,0]"), 0, "larger than any memory"},
        {T("F32", "[4611686018427387904,4,0]", "[0,0]"), 0, "larger than any memory"},
        {T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "more than 8 dimensions"},
        {T("F4", "[3]", "[0,1]"), 1, "[3] F4 needs 2 bytes"},
        {T("F4", "[3]", "[0,2]"), 2, "[3] F4 needs 2 bytes"},
        {T("F33", "[2]", "[0,8]"), 8, "dtype F33"},
        {"{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "tensor t: has no dtype"},
        {"{\"t\":[]}", 0, "tensor t: is not described"},
        {"{\"t\\u0000u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "NUL"},
        {"{\"\\u001b[31m\":1}", 0, "tensor ?[31m"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, "a and b overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, "overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}",
         6, "bytes 2 to 4 before tensor b"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "belong to no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, "tensor a occurs twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ occurs twice"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__.k"},
        {"{\"t\":{\"dtype\":\"F32\"", 0, "header: JSON line 1"},
        {"[]", 0, "no JSON object"},
        {" {}", 0, "no JSON object"},
        {"", 0, "no JSON object"},
        {"{}", 3, "the tensors end at byte 0"},
        {"{} x", 0, "text after the end"},
        {"{\"\xff\":1}", 0, "UTF-8"},
    };
    const char *p = path_in(mx_test_tmpdir(), "bad.safetensors");
    for (size_t i = 0; i < countof(cases); i++) {
        mx_err err = {0};
        mx_st *s = NULL;
        put_st(p, cases[i].header, cases[i].n_data);
        CHECK(mx_st_open_file(&s, p, &err) == MX_EINVAL, "case %zu: %s", i, err.msg);
        CHECK(strstr(err.msg, cases[i].part) && strstr(err.msg, "bad.safetensors"), "case %zu: %s", i,
              err.msg);
        CHECK(!s, "case %zu", i);
    }
}

TEST(refuses_bad_frames)
{
    const char *p = path_in(mx_test_tmpdir(), "bad.safetensors");
    static const uint64_t lengths[] = {(uint64_t)1 << 40, 100000001, 100000000, UINT64_MAX,
                                       UINT64_MAX - 7,    9,         1};
    mx_err err = {0};
    mx_st *s = NULL;
    for (size_t i = 0; i < countof(lengths); i++) {
        char file[16] = "........{}      ";
        memcpy(file, &lengths[i], 8);
        put_file(p, file, sizeof file);
        CHECK(mx_st_open_file(&s, p, &err) == MX_EINVAL && strstr(err.msg, "header"), "case %zu: %s", i,
              err.msg);
    }
    put_file(p, "\2\0\0\0\0\0\0", 7);
    CHECK_FAILS(mx_st_open_file(&s, p, &err), MX_EINVAL, &err, "shorter than the 8 bytes");
    put_file(p, "", 0);
    CHECK_FAILS(mx_st_open_file(&s, p, &err), MX_EINVAL, &err, "shorter than the 8 bytes");
    put_file(p, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", 63);
    CHECK_FAILS(mx_st_open_file(&s, p, &err), MX_EINVAL, &err, "Git LFS pointer");
    CHECK_FAILS(mx_st_open_file(&s, "/dev/null", &err), MX_EIO, &err, "/dev/null");
    CHECK_FAILS(mx_st_open_file(&s, path_in(mx_test_tmpdir(), "none"), &err), MX_ENOTFOUND, &err, "none");
    CHECK(!s);
}

/* Nesting is bounded and the tree of a header that is all brackets or all numbers cannot exhaust memory. */
TEST(refuses_deep_and_dense_headers)
{
    const char *p = path_in(mx_test_tmpdir(), "deep.safetensors");
    mx_err err = {0};
    mx_st *s = NULL;
    mx_str h = {0};
    mx_str_puts(&h, "{\"t\":");
    for (int i = 0; i < 200000; i++) mx_str_putc(&h, '[');
    put_st(p, h.p, 0);
    CHECK_FAILS(mx_st_open_file(&s, p, &err), MX_ELIMIT, &err, "nested too deeply");
    mx_str_clear(&h);
    mx_str_puts(&h, "{\"t\":[0");
    for (int i = 0; i < 1000000; i++) mx_str_puts(&h, ",0");
    mx_str_puts(&h, "]}");
    put_st(p, h.p, 0);
    CHECK(mx_st_open_file(&s, p, &err) != MX_OK);
    mx_str_free(&h);
    CHECK(!s);
}

/* ---- folders ---------------------------------------------------------------------------------------------- */

static void put_one(const char *dir, const char *file, const char *tensor) {
    char h[200];
    snprintf(h, sizeof h, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", tensor);
    put_st(path_in(dir, file), h, 2);
}

static void put_text(const char *dir, const char *file, const char *text) {
    put_file(path_in(dir, file), text, strlen(text));
}

static void expect_open(const char *dir, size_t n_tensor) {
    mx_err err;
    mx_st *s = NULL;
    CHECK_OK(mx_st_open(&s, dir, &err), &err);
    CHECK_INT(mx_st_count(s), n_tensor);
    mx_st_free(s);
}

static void expect_refused(const char *dir, mx_status status, const char *part) {
    mx_err err = {0};
    mx_st *s = NULL;
    CHECK_FAILS(mx_st_open(&s, dir, &err), status, &err, part);
    CHECK(!s);
}

static const char index_name[] = "model.safetensors.index.json";

TEST(shards_with_and_without_index)
{
    const char *d = mx_test_tmpdir();
    put_one(d, "model-00002-of-00002.safetensors", "b");
    put_one(d, "model-00001-of-00002.safetensors", "a");
    expect_open(d, 2); // no index
    put_text(d, index_name, "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    expect_open(d, 2); // an index that is older than a tensor
    put_text(d, index_name,
             "{\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\","
             "\"b\":\"model-00001-of-00002.safetensors\"}}");
    expect_open(d, 2); // and one from before a re-sharding: every name is still there
    put_text(d, index_name,
             "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
             "\"c\":\"model-00002-of-00002.safetensors\"}}");
    expect_refused(d, MX_EINVAL, "model-00002-of-00002.safetensors: tensor c is missing");
    put_text(d, index_name,
             "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"c\":\"ghost.safetensors\"}}");
    expect_refused(d, MX_ENOTFOUND, "ghost.safetensors is missing (named by model.safetensors.index.json)");
    unlink(path_in(d, "model-00001-of-00002.safetensors"));
    put_text(d, index_name,
             "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
             "\"b\":\"model-00002-of-00002.safetensors\"}}");
    expect_refused(d, MX_ENOTFOUND, "model-00001-of-00002.safetensors is missing");
    unlink(path_in(d, index_name));
    expect_refused(d, MX_ENOTFOUND, "model-00001-of-00002.safetensors is missing");
}

TEST(unusual_shard_names)
{
    const char *d = mx_test_tmpdir();
    put_one(d, "model.safetensors-00001-of-00002.safetensors", "a");
    put_one(d, "model.safetensors-00002-of-00002.safetensors", "b");
    expect_open(d, 2);
    unlink(path_in(d, "model.safetensors-00001-of-00002.safetensors"));
    expect_refused(d, MX_ENOTFOUND, "model.safetensors-00001-of-00002.safetensors is missing");
}

TEST(which_files_belong_to_a_folder)
{
    const char *d = mx_test_tmpdir();
    expect_refused(d, MX_ENOTFOUND, "no *.safetensors files");
    put_text(d, "pytorch_model.bin", "");
    expect_refused(d, MX_ENOTFOUND, "PyTorch");
    put_text(d, "m.gguf", "");
    expect_refused(d, MX_ENOTFOUND, "mlxcel convert");
    expect_refused(path_in(d, "absent"), MX_ENOTFOUND, "absent");
    put_one(d, "consolidated.safetensors", "a");
    expect_open(d, 1); // nothing else is there
    put_one(d, "model.safetensors", "a");
    put_one(d, "adapter_model.safetensors", "lora");
    put_one(d, "adapters.safetensors", "lora");
    put_text(d, "._model.safetensors", "junk of another system");
    expect_open(d, 1);
    put_one(d, "other.safetensors", "a");
    expect_refused(d, MX_EINVAL, "tensor a is in both model.safetensors and other.safetensors");
    unlink(path_in(d, "other.safetensors"));
    CHECK_INT(symlink("/nowhere/blob", path_in(d, "z.safetensors")), 0); // a cache whose blob went away
    expect_refused(d, MX_ENOTFOUND, "z.safetensors");
}

TEST(index_cannot_escape)
{
    const char *d = mx_test_tmpdir();
    static const char *const bad[] = {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "",
                                      ".x.safetensors"};
    put_one(d, "model.safetensors", "a");
    for (size_t i = 0; i < countof(bad); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", bad[i]);
        put_text(d, index_name, text);
        expect_refused(d, MX_EINVAL, "not a file name in the model's folder");
    }
    put_text(d, index_name, "{\"weight_map\":{\"a\":\"model.bin\"}}");
    expect_refused(d, MX_UNSUPPORTED, "only safetensors");
    put_text(d, index_name, "{\"weight_map\":{\"a\":7}}");
    expect_refused(d, MX_EINVAL, "weight_map.a");
    put_text(d, index_name, "{\"weight_map\":[]}");
    expect_refused(d, MX_EINVAL, "no weight_map");
    put_text(d, index_name, "{");
    expect_refused(d, MX_EINVAL, index_name);
    put_text(d, index_name, "{\"weight_map\":{}}");
    expect_open(d, 1);
}

TEST(a_sparse_40_gb_file_opens_at_once)
{
    const char *p = path_in(mx_test_tmpdir(), "big.safetensors");
    const uint64_t data = 40000000000u;
    char h[200];
    snprintf(h, sizeof h, "{\"t\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
             (unsigned long long)data, (unsigned long long)data);
    put_st(p, h, 0);
    if (truncate(p, (off_t)(8 + strlen(h) + data)) < 0) SKIP("no sparse files here: %s", strerror(errno));
    struct timespec a, b;
    struct rusage before, after;
    mx_err err;
    mx_st *s = NULL;
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &a);
    CHECK_OK(mx_st_open_file(&s, p, &err), &err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    getrusage(RUSAGE_SELF, &after);
    const char *last = (const char *)mx_st_at(s, 0)->data + data - 1;
    CHECK_INT(*last, 0); // the far end is mapped
    double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    printf("# opened in %.2f ms, %ld kB more resident\n", ms, after.ru_maxrss - before.ru_maxrss);
    CHECK(ms < 100, "%.1f ms", ms); // a read of 40 GB takes 10 s; a busy machine may take some ms
    CHECK(after.ru_maxrss - before.ru_maxrss < 8192);
    mx_st_free(s);
}

TEST(opens_the_fixtures)
{
    static const char *const all[] = {"models/demo", "tests/checkpoints/mixtral-mxfp4",
                                      "tests/checkpoints/qwen3-moe-fp8block"};
    for (size_t i = 0; i < countof(all); i++) {
        mx_err err;
        mx_st *s = NULL;
        CHECK_OK(mx_st_open(&s, mx_test_path(all[i]), &err), &err);
        CHECK(mx_st_count(s) > 10 && mx_st_find(s, "model.embed_tokens.weight"), "%s", all[i]);
        mx_st_free(s);
    }
}

/* ---- the writer --------------------------------------------------------------------------------------------- */

static const mx_st_plan plan[] = {
    {.name = "a", .dtype = MX_ST_BF16, .n_dim = 2, .shape = {4, 8}},  // 64 bytes
    {.name = "none", .dtype = MX_ST_F32, .n_dim = 1, .shape = {0}},   // 0
    {.name = "z", .dtype = MX_ST_U32, .n_dim = 1, .shape = {100}},    // 400
    {.name = "b\"é", .dtype = MX_ST_F4, .n_dim = 1, .shape = {6}},    // 3
    {.name = "scalar", .dtype = MX_ST_U8, .n_dim = 0},                // 1
    {.name = "last", .dtype = MX_ST_U8, .n_dim = 2, .shape = {7, 0}}, // 0
};
enum { PLAN_BYTES = 468 };

static mx_status write_plan(const char *dir, uint64_t max_shard, size_t step, size_t stop_at, mx_err *err) {
    mx_st_writer *w = NULL;
    unsigned char data[PLAN_BYTES];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    MX_TRY(mx_st_writer_new(&w, dir, plan, countof(plan), max_shard, err));
    mx_status st = MX_OK;
    for (size_t at = 0; at < stop_at && st == MX_OK; at += step)
        st = mx_st_writer_put(w, data + at, at + step < stop_at ? step : stop_at - at, err);
    if (st == MX_OK) st = mx_st_writer_finish(w, err);
    mx_st_writer_free(w);
    return st;
}

static size_t count_files(const char *dir) {
    char cmd[600];
    size_t n = 0;
    snprintf(cmd, sizeof cmd, "ls -A '%s' | wc -l", dir);
    FILE *f = popen(cmd, "r");
    CHECK(f && fscanf(f, "%zu", &n) == 1);
    pclose(f);
    return n;
}

TEST(writes_shards_that_read_back)
{
    static const struct {
        uint64_t max;
        size_t step, n_file;
    } cases[] = {{0, 468, 1}, {1 << 20, 1, 1}, {64, 5, 3}, {1, 1000, 5}, {464, 464, 2}};
    for (size_t i = 0; i < countof(cases); i++) {
        const char *d = path_in(mx_test_tmpdir(), "new/model"); // folders are made
        mx_err err;
        mx_st *s = NULL;
        CHECK_OK(write_plan(d, cases[i].max, cases[i].step, PLAN_BYTES, &err), &err);
        CHECK(count_files(d) == cases[i].n_file + 1, "case %zu: %zu files", i,
              count_files(d)); // and the index
        CHECK_OK(mx_st_open(&s, d, &err), &err);
        CHECK_INT(mx_st_count(s), countof(plan));
        size_t at = 0;
        for (size_t t = 0; t < countof(plan); t++) {
            const mx_st_tensor *r = mx_st_find(s, plan[t].name);
            CHECK(r && r->dtype == plan[t].dtype && r->n_dim == plan[t].n_dim, "case %zu tensor %zu", i, t);
            CHECK(!memcmp(r->shape, plan[t].shape, sizeof r->shape));
            for (size_t k = 0; k < r->n_bytes; k++, at++)
                CHECK(((const unsigned char *)r->data)[k] == (at * 7 & 255));
        }
        CHECK_INT(at, PLAN_BYTES);
        CHECK_STR(mx_st_metadata(s, "format"), "mlx");
        mx_st_free(s);
    }
}

TEST(an_unfinished_write_leaves_nothing)
{
    const char *d = mx_test_tmpdir();
    mx_err err = {0};
    CHECK_FAILS(write_plan(d, 64, 100, PLAN_BYTES - 1, &err), MX_EINTERNAL, &err, "never written");
    CHECK_INT(count_files(d), 0);
    mx_st_writer *w = NULL;
    CHECK_OK(mx_st_writer_new(&w, d, plan, countof(plan), 0, &err), &err);
    char more[PLAN_BYTES + 1] = {0};
    CHECK_FAILS(mx_st_writer_put(w, more, sizeof more, &err), MX_EINTERNAL, &err, "more bytes");
    mx_st_writer_free(w);
    CHECK_INT(count_files(d), 0);
    const mx_st_plan odd = {.name = "odd", .dtype = MX_ST_F4, .n_dim = 1, .shape = {3}};
    CHECK_FAILS(mx_st_writer_new(&w, d, &odd, 1, 0, &err), MX_EINVAL, &err, "odd");
    const mx_st_plan huge = {.name = "h", .dtype = MX_ST_U8, .n_dim = 1, .shape = {(int64_t)1 << 60}};
    CHECK_FAILS(mx_st_writer_new(&w, d, &huge, 1, 0, &err), MX_EIO, &err, "disk is too full");
    CHECK_INT(count_files(d), 0);
}

/* A file size limit refuses the write as a full disk does: an error, and no file left. */
TEST(a_refused_write_leaves_nothing)
{
    const char *d = mx_test_tmpdir();
    mx_err err = {0};
    struct rlimit old, small;
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 600; // the header fits, the data do not
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
    mx_status st = write_plan(d, 0, 100, PLAN_BYTES, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, was);
    CHECK(st == MX_EIO && strstr(err.msg, "model.safetensors"), "%d %s", st, err.msg);
    CHECK_INT(count_files(d), 0);
}
