/* base: errors, arena, strings, JSON, UTF-8, files, threads. */
#include "test.h"
#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "base/threads.h"
#include "base/utf8.h"
#include <stdatomic.h>
#include <unistd.h>

TEST(err_cuts_at_a_character_border)
{
    mx_err err;
    char big[2 * MX_ERR_LEN] = "";
    for (size_t i = 0; i + 2 < sizeof big; i += 2) memcpy(big + i, "é", 3);
    CHECK_INT(mx_fail(&err, MX_EIO, "x%s", big), MX_EIO);
    size_t n = strlen(err.msg);
    CHECK(n < MX_ERR_LEN && !strcmp(err.msg + n - 3, "..."));
    CHECK_INT(mx_utf8_valid(err.msg, n), n);
    CHECK_INT(mx_fail(NULL, MX_EINVAL, "nobody listens"), MX_EINVAL);
    mx_fail(&err, MX_EINVAL, "inner");
    mx_err_prefix(&err, MX_EINVAL, "outer");
    CHECK_STR(err.msg, "outer: inner");
}

TEST(arena_respects_its_limit)
{
    mx_arena a = {.limit = 1000};
    CHECK(mx_arena_alloc(&a, 500) != NULL);
    CHECK(mx_arena_alloc(&a, 600) == NULL);
    CHECK(mx_arena_alloc(&a, SIZE_MAX) == NULL);
    CHECK(mx_arena_array(&a, SIZE_MAX / 2, 4) == NULL);
    char *z = mx_arena_printf(&a, "%d-%s", 7, "x");
    CHECK_STR(z, "7-x");
    mx_arena_free(&a);
    CHECK_INT(a.used, 0);
}

static const mx_json *parse(mx_arena *a, const char *text) {
    mx_json *v = NULL;
    mx_err err;
    CHECK_OK(mx_json_parse(&v, a, text, strlen(text), &err), &err);
    return v;
}

TEST(json_reads_what_real_files_hold)
{
    mx_arena a = {0};
    const mx_json *v = parse(
        &a,
        "\xEF\xBB\xBF{\"a\": [1, -2.5e3, 1e400, true, null], \"big\": 123456789012345678901234567890,\n"
        "\"inf\": -Infinity, \"nan\": NaN, \"s\": \"\\ud83d\\ude00\\ud83d \\u00e9\\n\", \"a2\": 1.0, \"a2\": 2}");
    CHECK_INT(mx_json_count(mx_json_get(v, "a")), 5);
    CHECK(mx_json_num(v, "big", 0, NULL) > 1.2e29);
    CHECK(isinf(mx_json_num(v, "inf", 0, NULL)) && isnan(mx_json_num(v, "nan", 0, NULL)));
    CHECK_STR(mx_json_str(v, "s", "", &a, NULL), "😀\xEF\xBF\xBD é\n");
    CHECK_INT(mx_json_int(v, "a2", 0, NULL), 2);
    const char *bad = NULL;
    CHECK_INT(mx_json_int(v, "s", 9, &bad), 9);
    CHECK_STR(bad, "s");
    v = parse(&a, "[9223372036854775807, -9223372036854775808, 9223372036854775808]");
    const mx_json *it = mx_json_first(v);
    CHECK(it->type == MX_JSON_INT && it->u.i == INT64_MAX);
    it = it->next;
    CHECK(it->type == MX_JSON_INT && it->u.i == INT64_MIN);
    it = it->next;
    CHECK(it->type == MX_JSON_REAL);
    mx_arena_free(&a);
}

TEST(json_refuses_with_a_place)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "ends early"},
        {"{\"a\":1,}", "value must follow"},
        {"[1 2]", "comma or ]"},
        {"{\"a\" 1}", "colon"},
        {"[01]", "start with 0"},
        {"[1.]", "decimal point"},
        {"\"a", "does not end"},
        {"\"\\x\"", "escape"},
        {"\"\\u12\"", "four hex"},
        {"nul", "not a JSON value"},
        {"{} {}", "after the end"},
        {"{a:1}", "double quotes"},
        {"\"\t\"", "control"},
        {"\"\xFF\"", "UTF-8"},
        {"[\n\n  -]", "line 3 column 3"},
        {"{\"a\":", "ends early"},
        {"[,1]", "not a JSON"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        mx_arena a = {0};
        mx_json *v;
        mx_err err;
        CHECK_FAILS(mx_json_parse(&v, &a, cases[i].text, strlen(cases[i].text), &err), MX_EINVAL, &err,
                    cases[i].part);
        mx_arena_free(&a);
    }
    enum { DEEP = 20000 }; // SEC-04: deep nesting must not reach the stack
    char *deep = malloc(2 * DEEP);
    memset(deep, '[', DEEP);
    memset(deep + DEEP, ']', DEEP);
    mx_arena a = {0};
    mx_json *v;
    mx_err err;
    CHECK_FAILS(mx_json_parse(&v, &a, deep, 2 * DEEP, &err), MX_ELIMIT, &err, "too deeply");
    CHECK_OK(mx_json_parse(&v, &a, deep + DEEP - 512, 1024, &err), &err);
    mx_arena_free(&a);
    free(deep);
}

TEST(json_writes_what_it_reads)
{
    mx_arena a = {0};
    mx_str s = {0};
    const char *text = "{\"b\": 1, \"a\": [\"x\\\"\\n\", 0.1, -3, true, null, {}], \"c\": []}";
    mx_json_put(&s, parse(&a, text), 0);
    CHECK_STR(s.p, text);
    mx_str_clear(&s);
    mx_json_put(&s, parse(&a, "{\"a\":[1,2]}"), 2);
    CHECK_STR(s.p, "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
    mx_str_clear(&s);
    mx_json_put_string(&s, "a\xFFz\x01", 4);
    CHECK_STR(s.p, "\"a\xEF\xBF\xBDz\\u0001\"");
    mx_str_free(&s);
    mx_arena_free(&a);
}

TEST(utf8_follows_table_3_7)
{
    size_t used;
    CHECK_INT(mx_utf8_decode("\xF0\x9F\x99\x82", 4, &used), 0x1F642);
    CHECK_INT(used, 4);
    CHECK_INT(mx_utf8_decode("\xED\xA0\x80", 3, &used), -1); // a surrogate
    CHECK_INT(used, 1);
    CHECK_INT(mx_utf8_decode("\xE0\x80\x80", 3, &used), -1); // overlong
    CHECK_INT(mx_utf8_decode("\xF0\x9F\x99X", 4, &used), -1);
    CHECK_INT(used, 3);
    CHECK_INT(mx_utf8_valid("abcdefgh\xC3\xA9\xC3", 11), 10);
    CHECK_INT(mx_utf8_partial("a\xF0\x9F\x99", 4), 3);
    CHECK_INT(mx_utf8_partial("\xC3\xA9", 2), 0);
    CHECK_INT(mx_utf8_partial("\xED\xA0", 2), 0); // can never become a character
    CHECK_INT(mx_utf8_partial("\xE2", 1), 1);
    for (uint32_t cp = 0; cp < 0x110000; cp += cp < 0x3000 ? 1 : 97) {
        char b[4];
        if (cp >= 0xD800 && cp < 0xE000) continue;
        size_t n = mx_utf8_encode(cp, b);
        CHECK(mx_utf8_decode(b, n, &used) == (int32_t)cp && used == n, "U+%04X", cp);
    }
}

TEST(files_appear_whole_or_not_at_all)
{
    mx_arena a = {0};
    mx_err err;
    char *path = mx_path_join(&a, mx_test_tmpdir(), "x/y/file");
    CHECK_OK(mx_mkdirs(mx_arena_printf(&a, "%.*s", (int)(strlen(path) - 5), path), &err), &err);
    mx_outfile f;
    CHECK_OK(mx_outfile_open(&f, path, &err), &err);
    CHECK_OK(mx_outfile_write(&f, "half", 4, &err), &err);
    CHECK(!mx_is_file(path));
    mx_outfile_abort(&f);
    CHECK(!mx_is_file(path));
    CHECK_OK(mx_file_write(path, "whole", 5, &err), &err);
    char *text;
    size_t len;
    CHECK_OK(mx_file_read(&text, &len, &a, path, 5, &err), &err);
    CHECK_STR(text, "whole");
    CHECK_FAILS(mx_file_read(&text, &len, &a, path, 4, &err), MX_ELIMIT, &err, "longer than 4");
    CHECK_FAILS(mx_file_read(&text, &len, &a, "/nonexistent", 4, &err), MX_ENOTFOUND, &err, "/nonexistent");
    mx_map m;
    CHECK_OK(mx_map_open(&m, path, &err), &err);
    CHECK(m.len == 5 && !memcmp(m.p, "whole", 5));
    mx_map_close(&m);
    CHECK_FAILS(mx_map_open(&m, "/dev/null", &err), MX_EIO, &err, "regular");
    CHECK_FAILS(mx_file_write("/dev/null/x", "", 0, &err), MX_ENOTFOUND, &err, "/dev/null/x");
    mx_arena_free(&a);
}

static void count(void *arg, int i, int worker) {
    (void)worker;
    atomic_fetch_add((atomic_int *)arg + i, 1);
}

TEST(pool_runs_each_index_once)
{
    mx_pool *p;
    mx_err err;
    CHECK_OK(mx_pool_new(&p, 3, &err), &err);
    atomic_int seen[100];
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 100; i++) seen[i] = 0;
        int n = round % 101, grain = 1 + round % 7;
        mx_pool_run(p, count, seen, n, grain);
        for (int i = 0; i < 100; i++) CHECK_INT(seen[i], i < n);
        if (round % 500 == 0) usleep(5000); // let the workers fall asleep
    }
    mx_pool_free(p);
    CHECK_FAILS(mx_pool_new(&p, -1, &err), MX_EINVAL, &err, "threads");
}
