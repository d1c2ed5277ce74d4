/* store: where models are found, listed and removed, in folders made for the test; and the hashes of downloads. Downloads
 * themselves: tests/oracle/pull.py. */
#include "test.h"
#include "base/file.h"
#include "format/pull_hash.h"
#include "format/pull_impl.h"
#include "format/store.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static mx_arena arena;
static const char *root; // HOME of the running test

static void put(const char *name, const char *text) {
    mx_err err;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    char *slash = strrchr(path, '/');
    *slash = 0;
    CHECK_OK(mx_mkdirs(path, &err), &err);
    *slash = '/';
    CHECK_OK(mx_file_write(path, text, strlen(text), &err), &err);
}

static const char *at(const char *name) {
    static char buf[4][512];
    static int k;
    k = (k + 1) % 4;
    snprintf(buf[k], sizeof buf[k], "%s/%s", root, name);
    return buf[k];
}

/* A home with a store of two models and a Hugging Face cache of two, one name in both. */
static void make_home(void) {
    root = mx_test_tmpdir();
    static const char *const unset[] = {"MLXCEL_CACHE_DIR", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HOME"};
    for (size_t i = 0; i < countof(unset); i++) unsetenv(unset[i]);
    setenv("HOME", root, 1);
    put(".cache/mlxcel/models/ann/small/config.json", "{}");
    put(".cache/mlxcel/models/ann/small/model.safetensors", "12345678");
    put(".cache/mlxcel/models/bob/tall/config.json", "{}");
    put(".cache/mlxcel/models/bob/.wide.download/config.json.00.incomplete", "{");
    put(".cache/huggingface/hub/models--bob--tall/snapshots/0001/config.json", "{}");
    put(".cache/huggingface/hub/models--eve--two--dashes/snapshots/0001/config.json", "{}");
    put(".cache/huggingface/hub/models--eve--two--dashes/snapshots/0002/config.json", "{\"new\": 1}");
    put(".cache/huggingface/hub/models--eve--two--dashes/refs/main", "0002\n");
    put(".cache/huggingface/hub/models--eve--small/snapshots/0001/config.json", "{}");
    put(".cache/huggingface/hub/models--eve--data/snapshots/0001/README.md", "no model");
    put(".cache/huggingface/hub/datasets--eve--x/snapshots/0001/config.json", "{}");
}

static void found(const char *ref, const char *where) {
    mx_err err;
    char *dir = NULL;
    CHECK_OK(mx_store_resolve(&dir, &arena, ref, &err), &err);
    CHECK_STR(dir, at(where));
}

static void refused(const char *ref, mx_status st, const char *part) {
    mx_err err = {0};
    char *dir = NULL;
    CHECK_FAILS(mx_store_resolve(&dir, &arena, ref, &err), st, &err, part);
    CHECK(!dir);
}

TEST(resolves_names)
{
    make_home();
    found("ann/small", ".cache/mlxcel/models/ann/small");
    found("https://huggingface.co/ann/small", ".cache/mlxcel/models/ann/small");
    found("bob/tall", ".cache/mlxcel/models/bob/tall"); // ours before the cache's
    found("eve/two--dashes", ".cache/huggingface/hub/models--eve--two--dashes/snapshots/0002");
    found("eve/small", ".cache/huggingface/hub/models--eve--small/snapshots/0001");
    found("two--dashes", ".cache/huggingface/hub/models--eve--two--dashes/snapshots/0002");
    found("tall", ".cache/mlxcel/models/bob/tall"); // one id, in two places
    refused("small", MX_EINVAL, "ann/small, eve/small");
    refused("bob/wide", MX_ENOTFOUND, "mlxcel pull bob/wide"); // its download is not complete
    refused("bob/none", MX_ENOTFOUND, ".cache/huggingface/hub");
    refused("none", MX_ENOTFOUND, "mlxcel pull OWNER/none");
    refused("", MX_EINVAL, "empty");
    static const char *const odd[] = {
        "../../etc/nothing", "/nothing/here", "./none", "a/b/c", "..", "a/..", "~/x", "a b", "-x"};
    for (size_t i = 0; i < countof(odd); i++)
        if (!mx_is_dir(odd[i])) refused(odd[i], MX_ENOTFOUND, "no such folder");
    char *big = malloc(10001);
    memset(big, 'a', 10000);
    big[10000] = 0;
    refused(big, MX_ENOTFOUND, "aaa");
    free(big);
    mx_arena_free(&arena);
}

TEST(resolves_paths)
{
    make_home();
    put("models/mine/config.json", "{}");
    put("models/mine/x.gguf", "GGUF");
    found(at("models/mine"), "models/mine");
    char *dir = NULL;
    mx_err err = {0};
    CHECK_INT(chdir(at("models")), 0);
    CHECK_OK(mx_store_resolve(&dir, &arena, "mine", &err), &err); // a folder here comes first
    CHECK_STR(dir, "mine");
    refused("mine/config.json", MX_EINVAL, "give mine");
    refused(at("models/mine/x.gguf"), MX_UNSUPPORTED, "mlxcel convert");
    refused("https://host/m/x.gguf", MX_UNSUPPORTED, "mlxcel convert");
    refused("https://host/m", MX_UNSUPPORTED, "URL");
    CHECK_INT(chdir("/"), 0);
    mx_arena_free(&arena);
}

TEST(follows_the_environment)
{
    make_home();
    setenv("MLXCEL_CACHE_DIR", at("own"), 1);
    setenv("HF_HUB_CACHE", at("hub"), 1);
    put("own/models/a/b/config.json", "{}");
    put("hub/models--c--d/snapshots/0/config.json", "{}");
    found("a/b", "own/models/a/b");
    found("c/d", "hub/models--c--d/snapshots/0");
    refused("ann/small", MX_ENOTFOUND, "own/models");
    unsetenv("HF_HUB_CACHE");
    setenv("HF_HOME", at("hf"), 1);
    put("hf/hub/models--e--f/snapshots/0/config.json", "{}");
    found("e/f", "hf/hub/models--e--f/snapshots/0");
    unsetenv("MLXCEL_CACHE_DIR");
    setenv("XDG_CACHE_HOME", at("xdg"), 1);
    put("xdg/mlxcel/models/g/h/config.json", "{}");
    found("g/h", "xdg/mlxcel/models/g/h");
    mx_arena_free(&arena);
}

/* refs/main may name what was deleted, or try to leave the cache: then the newest snapshot counts. */
TEST(odd_refs)
{
    make_home();
    static const char *const refs[] = {"9999", "../../../../../etc", "..", "", "/etc"};
    for (size_t i = 0; i < countof(refs); i++) {
        put(".cache/huggingface/hub/models--eve--small/refs/main", refs[i]);
        found("eve/small", ".cache/huggingface/hub/models--eve--small/snapshots/0001");
    }
    mx_arena_free(&arena);
}

TEST(lists_models)
{
    make_home();
    mx_err err;
    mx_store_entry *e = NULL;
    size_t n = 0;
    static const struct {
        const char *id;
        bool own;
        uint64_t bytes;
    } want[] = {{"ann/small", true, 10},
                {"bob/tall", true, 2},
                {"bob/tall", false, 2},
                {"eve/small", false, 2},
                {"eve/two--dashes", false, 10}};
    CHECK_OK(mx_store_list(&e, &n, &arena, &err), &err);
    CHECK_INT(n, countof(want));
    for (size_t i = 0; i < n; i++) {
        CHECK_STR(e[i].id, want[i].id);
        CHECK(e[i].own == want[i].own && e[i].bytes == want[i].bytes && e[i].modified > 1600000000, "%zu", i);
    }
    setenv("HOME", at("empty"), 1);
    CHECK_OK(mx_store_list(&e, &n, &arena, &err), &err);
    CHECK_INT(n, 0);
    mx_arena_free(&arena);
}

TEST(removes_models)
{
    make_home();
    mx_err err = {0};
    CHECK_OK(mx_store_remove("ann/small", &err), &err);
    CHECK(!mx_is_dir(at(".cache/mlxcel/models/ann"))); // nor the owner's folder, now empty
    CHECK_FAILS(mx_store_remove("ann/small", &err), MX_ENOTFOUND, &err, "not in the store");
    CHECK_OK(mx_store_remove("bob/wide", &err), &err); // a download that was given up
    CHECK(!mx_is_dir(at(".cache/mlxcel/models/bob/.wide.download")));
    int fd = open(at(".cache/mlxcel/models/bob/.tall.lock"), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_FAILS(mx_store_remove("bob/tall", &err), MX_EIO, &err, "being downloaded");
    close(fd);
    CHECK_OK(mx_store_remove("bob/tall", &err), &err);
    CHECK_FAILS(mx_store_remove("bob/tall", &err), MX_EINVAL, &err,
                "Hugging Face cache"); // its copy there stays
    CHECK(mx_is_file(at(".cache/huggingface/hub/models--bob--tall/snapshots/0001/config.json")));
    CHECK_FAILS(mx_store_remove("../ann", &err), MX_EINVAL, &err, "owner/name");
    CHECK_FAILS(mx_store_remove("", &err), MX_EINVAL, &err, "owner/name");
    /* a link in the store goes, what it points at stays */
    CHECK_INT(mkdir(at(".cache/mlxcel/models/bob"), 0777), 0);
    put("elsewhere/config.json", "{}");
    CHECK_INT(symlink(at("elsewhere"), at(".cache/mlxcel/models/bob/link")), 0);
    CHECK_OK(mx_store_remove("bob/link", &err), &err);
    CHECK(mx_is_file(at("elsewhere/config.json")));
}

static void check_hash(void (*begin)(mx_hash *), const char *text, size_t repeat, const char *want) {
    mx_hash h;
    char hex[65];
    begin(&h);
    for (size_t i = 0; i < repeat; i++) mx_hash_add(&h, text, strlen(text));
    mx_hash_hex(&h, hex);
    CHECK_STR(hex, want);
}

/* Vectors of FIPS 180 and of git; every length around the block's end against one piece at a time. */
TEST(hashes)
{
    static const char abc[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_hash(mx_hash_sha256, "", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash(mx_hash_sha256, "abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_hash(mx_hash_sha256, abc, 1, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_hash(mx_hash_sha256, "a", 1000000,
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    check_hash(mx_hash_sha1, "", 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check_hash(mx_hash_sha1, "abc", 1, "a9993e364706816aba3e25717850c26c9cd0d89d");
    check_hash(mx_hash_sha1, abc, 1, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    check_hash(mx_hash_sha1, "a", 1000000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
    mx_hash h;
    char hex[65], again[65], data[200];
    mx_hash_git_blob(&h, 0);
    mx_hash_hex(&h, hex);
    CHECK_STR(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"); // git's empty file
    mx_hash_git_blob(&h, 12);
    mx_hash_add(&h, "hello world\n", 12);
    mx_hash_hex(&h, hex);
    CHECK_STR(hex, "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)i;
    for (size_t n = 0; n <= sizeof data; n++) {
        mx_hash_sha256(&h);
        mx_hash_add(&h, data, n);
        mx_hash_hex(&h, hex);
        mx_hash_sha256(&h);
        h.fast = false; // the portable code against the CPU's instructions, where it has them
        for (size_t i = 0; i < n; i++) mx_hash_add(&h, data + i, 1);
        mx_hash_hex(&h, again);
        CHECK_STR(hex, again);
    }
}

TEST(what_the_bar_says)
{
    char buf[128];
    CHECK_STR(mx_pull_bar_text(buf, 1200000000, 1900000000, 85.1e6, 7, 9),
              " 63% 1.2/1.9 GB  85.1 MB/s  0:08 left  7/9 files");
    CHECK_STR(mx_pull_bar_text(buf, 0, 40000000000, 1e6, 0, 9),
              "  0% 0.0/40.0 GB  1.0 MB/s  11 h 06 left  0/9 files");
    CHECK_STR(mx_pull_bar_text(buf, 5000000, 5000000, 2e6, 9, 9), "100% 5.0/5.0 MB  2.0 MB/s  9/9 files");
    CHECK_STR(mx_pull_bar_text(buf, 0, 0, 0, 0, 0), "100% 0.0/0.0 MB  0.0 MB/s  0/0 files");
}
