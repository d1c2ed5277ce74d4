/* test_engine.c - blocks, memory, sequences and the ragged step: what is computed does not depend on how it is cut into
 * steps or on who else is in them, and nothing is lost when sequences come and go. */
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/memory.h"
#include "fixture.h"

static mx_err err;

static const char *const models[] = {"models/demo", "tests/checkpoints/gemma3-4bit-g64",
                                     "tests/checkpoints/qwen3-5-bf16",
                                     "tests/checkpoints/qwen3-moe-4bit-g64"};

static mx_engine *open_engine(const char *model, int n_seq, int chunk, int ctx) {
    mx_engine *e = NULL;
    mx_engine_options o = {
        .device = "cpu", .dev = {.exact = true}, .ctx = ctx, .n_seq = n_seq, .chunk = chunk};
    CHECK_OK(mx_engine_open(&e, mx_test_path(model), &o, &err), &err);
    return e;
}

static int vocab(const mx_engine *e) { return mx_model_get_info(mx_engine_model(e))->n_vocab; }

static void fill_ids(int32_t *ids, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(mx_test_rand(&seed) % 1200);
}

static void free_blocks(const mx_engine *e, int out[MX_KV_GROUPS]) {
    for (int g = 0; g < mx_model_get_info(mx_engine_model(e))->n_group; g++)
        out[g] = mx_engine_free_blocks(e, g);
}

static void check_blocks(const mx_engine *e, const int want[MX_KV_GROUPS]) {
    for (int g = 0; g < mx_model_get_info(mx_engine_model(e))->n_group; g++)
        CHECK(mx_engine_free_blocks(e, g) == want[g], "group %d", g);
}

static mx_status step(mx_seq *s, const int32_t *ids, int n, int n_rows, float *logits) {
    mx_step_item it = {.seq = s, .ids = ids, .n = n, .n_rows = n_rows, .logits = logits};
    mx_engine *e = s ? *(mx_engine **)s : NULL; // the first member
    return mx_engine_step(e, &it, 1, &err);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

TEST(pool_counts_owners)
{
    mx_kv_pool p;
    CHECK_OK(mx_kv_init(&p, 2, (int[]){3, 1}, &err), &err);
    int32_t a = mx_kv_take(&p, 0), b = mx_kv_take(&p, 0), c = mx_kv_take(&p, 0);
    CHECK(a == 0 && b == 1 && c == 2 && mx_kv_take(&p, 0) == -1);
    CHECK(mx_kv_take(&p, 1) == 0 && mx_kv_take(&p, 1) == -1);
    mx_kv_share(&p, 0, b);
    mx_kv_give(&p, 0, b);
    CHECK_INT(p.n_free[0], 0); // one owner is left
    mx_kv_give(&p, 0, b);
    CHECK_INT(p.n_free[0], 1);
    CHECK_INT(mx_kv_take(&p, 0), b);
    mx_kv_free(&p);
}

/* Simulate a sequence and count what it really holds at once. */
TEST(need_is_enough_and_tight)
{
    static const int windows[] = {1, 2, 8, 31, 32, 33, 64, 100}, chunks[] = {1, 2, 7, 31, 32, 33, 64, 300};
    for (size_t w = 0; w < countof(windows); w++) {
        for (size_t c = 0; c < countof(chunks); c++) {
            int most = 0;
            for (int shift = 0; shift < 32; shift++)
                for (int len = shift; len + chunks[c] <= 2000; len += chunks[c]) {
                    int first = mx_kv_first(len, windows[w], 32), last = (len + chunks[c] - 1) / 32;
                    if (last - first + 1 > most) most = last - first + 1;
                    CHECK(len < windows[w] || first * 32 <= len - windows[w] + 1, "the window is held");
                }
            CHECK_INT(mx_kv_need(2000, windows[w], chunks[c], 32), most);
        }
    }
    CHECK_INT(mx_kv_need(100, 0, 1, 32), 4);
    CHECK_INT(mx_kv_need(100, 64, 512, 32), 4); // never more than the whole context
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static void put(const char *root, const char *path, const char *text) {
    char full[600], *slash;
    snprintf(full, sizeof full, "%s%s", root, path);
    slash = strrchr(full, '/');
    *slash = '\0';
    CHECK_OK(mx_mkdirs(full, &err), &err);
    *slash = '/';
    CHECK_OK(mx_file_write(full, text, strlen(text), &err), &err);
}

TEST(memory_is_read_from_meminfo_and_control_groups)
{
    const char *root = mx_test_tmpdir();
    setenv("MLXCEL_SYSROOT", root, 1);
    CHECK(mx_memory_available() == UINT64_MAX); // nothing known
    put(root, "/proc/meminfo", "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:    8000 kB\n");
    CHECK_INT(mx_memory_available(), 8000 * 1024);
    put(root, "/proc/self/cgroup", "0::/user.slice/app\n");
    CHECK_INT(mx_memory_available(), 8000 * 1024); // no such group here
    put(root, "/sys/fs/cgroup/user.slice/app/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/user.slice/app/memory.current", "1000\n");
    CHECK_INT(mx_memory_available(), 8000 * 1024);
    put(root, "/sys/fs/cgroup/user.slice/memory.max", "3000000\n"); // the one above it is nearer
    put(root, "/sys/fs/cgroup/user.slice/memory.current", "1000000\n");
    CHECK_INT(mx_memory_available(), 2000000);
    put(root, "/sys/fs/cgroup/user.slice/memory.stat", "anon 500000\ninactive_file 400000\n");
    CHECK_INT(mx_memory_available(), 2400000);
    put(root, "/sys/fs/cgroup/memory.max", "1000\n"); // the mount itself, as in a container; over its limit
    put(root, "/sys/fs/cgroup/memory.current", "5000\n");
    CHECK_INT(mx_memory_available(), 0);
    root = mx_test_tmpdir();
    setenv("MLXCEL_SYSROOT", root, 1);
    put(root, "/proc/meminfo", "MemAvailable: 8000 kB\n");
    put(root, "/proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
    put(root, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "700000\n");
    put(root, "/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "600000\n");
    CHECK_INT(mx_memory_available(), 100000);
    unsetenv("MLXCEL_SYSROOT");
}

TEST(too_large_is_refused_with_numbers_and_flags)
{
    mx_memory_need n = {
        .name = "m", .weights = 1000000, .scratch = 1000, .per_position = 100, .n_seq = 1, .unit = 32};
    CHECK_OK(mx_memory_check(&n, 1024, 1000000 + 1000 + 102400, &err), &err);
    CHECK_FAILS(mx_memory_check(&n, 1024, 1000000 + 1000 + 102399, &err), MX_ENOMEM, &err,
                "--ctx-size 992 would fit");
    CHECK_FAILS(mx_memory_check(&n, 1024, 1000, &err), MX_ENOMEM, &err, "no --ctx-size fits");
    CHECK_INT(mx_memory_fit(&n, 1024, UINT64_MAX), 1024);
    CHECK_INT(mx_memory_fit(&n, 1000, UINT64_MAX), 1000);

    n.f32_kv = true;
    CHECK_FAILS(mx_memory_check(&n, 1024, 1000, &err), MX_ENOMEM, &err, "--kv bf16");
}

TEST(opening_asks_for_memory_first)
{
    const char *root = mx_test_tmpdir();
    setenv("MLXCEL_SYSROOT", root, 1);
    mx_engine_options o = {.device = "cpu", .chunk = 32};
    mx_engine *e = NULL;
    const char *demo = mx_test_path("models/demo");
    put(root, "/proc/meminfo", "MemAvailable: 1000 kB\n");
    CHECK_FAILS(mx_engine_open(&e, demo, &o, &err), MX_ENOMEM, &err, "--no-memory-check");
    o.no_memory_check = true;
    CHECK_OK(mx_engine_open(&e, demo, &o, &err), &err);
    CHECK_INT(mx_engine_ctx(e), 4096);
    mx_engine_free(e);
    o.no_memory_check = false;
    put(root, "/proc/meminfo",
        "MemAvailable: 14000 kB\n"); // weights and work space take some 9 MB, a position 3 KB
    CHECK_OK(mx_engine_open(&e, demo, &o, &err), &err);
    int ctx = mx_engine_ctx(e);
    CHECK(ctx >= 32 && ctx < 4096 && ctx % 32 == 0, "context %d", ctx);
    mx_engine_free(e);
    o.ctx = 4096; // asked for by name: refused, not cut
    CHECK_FAILS(mx_engine_open(&e, demo, &o, &err), MX_ENOMEM, &err, "would fit");
    unsetenv("MLXCEL_SYSROOT");
}

/* ---- opening -------------------------------------------------------------------------------------------- */

TEST(bad_options_and_folders_are_refused)
{
    mx_engine *e = NULL;
    mx_engine_options o = {.device = "cpu", .ctx = -1};
    CHECK_FAILS(mx_engine_open(&e, mx_test_path("models/demo"), &o, &err), MX_EINVAL, &err, "context size");
    o = (mx_engine_options){.device = "warp"};
    CHECK_FAILS(mx_engine_open(&e, mx_test_path("models/demo"), &o, &err), MX_ENOTFOUND, &err, "warp");
    o = (mx_engine_options){.device = "cpu"};
    CHECK(mx_engine_open(&e, mx_test_path("no/such/model"), &o, &err) != MX_OK);
    CHECK(e == NULL);
}

/* Allow the device more and more memory: each open fails at another place and must leave nothing behind (the sanitizer
 * build sees what is). */
TEST(a_failed_open_frees_everything)
{
    int failed = 0;
    for (size_t i = 0; i < countof(models); i++) {
        mx_engine *e = NULL;
        size_t limit = 1024;
        for (;; limit += limit / 4) {
            CHECK(limit < 1u << 30, "%s", err.msg);
            mx_engine_options o = {
                .device = "cpu", .dev = {.max_bytes = limit}, .ctx = 512, .chunk = 64, .n_seq = 2};
            mx_status st = mx_engine_open(&e, mx_test_path(models[i]), &o, &err);
            if (st == MX_OK) break;
            CHECK(st == MX_ENOMEM || st == MX_ELIMIT, "%s", err.msg);
            failed++;
        }
        mx_engine_free(e);
    }
    CHECK(failed > 20);
}

/* ---- the step ------------------------------------------------------------------------------------------- */

/* All logits of a document, fed in pieces whose sizes are repeated from `pieces`. */
static void feed(mx_engine *e, const int32_t *ids, int n, const int *pieces, int n_piece, float *out) {
    mx_seq *s;
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    size_t v = (size_t)vocab(e);
    for (int at = 0, p = 0; at < n; p++) {
        int k = pieces[p % n_piece];
        if (k > n - at) k = n - at;
        CHECK_OK(step(s, ids + at, k, k, out + (size_t)at * v), &err);
        at += k;
        CHECK_INT(mx_seq_len(s), at);
    }
    CHECK(memcmp(mx_seq_ids(s), ids, (size_t)n * sizeof *ids) == 0);
    mx_seq_free(s);
}

TEST(kvc_07_chunks_of_any_size_give_the_same_logits)
{
    static const int sizes[][6] = {{300}, {1}, {7}, {64}, {5, 4, 3, 4, 1, 6}};
    enum { N = 300 }; // more than four times gemma's window
    for (size_t m = 0; m < 3; m++) {
        mx_engine *e = open_engine(models[m], 1, 300, 320);
        size_t bytes = (size_t)N * (size_t)vocab(e) * sizeof(float);
        float *want = malloc(bytes), *got = malloc(bytes);
        int32_t ids[N];
        int before[MX_KV_GROUPS];
        fill_ids(ids, N, 5);
        free_blocks(e, before);
        feed(e, ids, N, sizes[0], 1, want);
        for (size_t i = 1; i < countof(sizes); i++) {
            feed(e, ids, N, sizes[i], i == 4 ? 6 : 1, got);
            CHECK(memcmp(got, want, bytes) == 0, "%s, pieces of %d", models[m], sizes[i][0]);
        }
        check_blocks(e, before);
        free(want);
        free(got);
        mx_engine_free(e);
    }
}

/* Prefill in one call equals the steps; only the last logits are asked for. */
TEST(prefill_goes_in_chunks)
{
    enum { N = 150 };
    for (size_t m = 0; m < countof(models); m++) {
        mx_engine *e = open_engine(models[m], 2, 64, 256);
        size_t v = (size_t)vocab(e);
        float *want = malloc((size_t)N * v * sizeof *want), *got = malloc(v * sizeof *got);
        int32_t ids[N];
        fill_ids(ids, N, 6);
        feed(e, ids, N, (int[]){64}, 1, want);
        mx_seq *s;
        CHECK_OK(mx_seq_new(&s, e, &err), &err);
        CHECK_OK(mx_seq_prefill(s, ids, N, got, NULL, &err), &err);
        CHECK(memcmp(got, want + (size_t)(N - 1) * v, v * sizeof *got) == 0);
        int stop = 1;
        CHECK_OK(mx_seq_truncate(s, 0, &err), &err);
        CHECK_FAILS(mx_seq_prefill(s, ids, N, got, &stop, &err), MX_ECANCELLED, &err, "stopped");
        CHECK_FAILS(mx_seq_prefill(s, ids, 0, got, NULL, &err), MX_EINVAL, &err, "empty");
        mx_seq_free(s);
        free(want);
        free(got);
        mx_engine_free(e);
    }
}

/* The likeliest tokens, chosen on the device, are those of the logits; beside rows of logits in the same step too. */
TEST(the_likeliest_are_those_of_the_logits)
{
    enum { N = 40, K = 7 };
    for (size_t m = 0; m < countof(models); m++) {
        mx_engine *e = open_engine(models[m], 3, 64, 128);
        const int v = vocab(e);
        float *want = malloc((size_t)v * sizeof *want), *beside = malloc(2 * (size_t)v * sizeof *beside);
        float values[K];
        int32_t ids[N], top[K], one;
        float one_value;
        mx_best best = {.k = K, .ids = top, .logits = values},
                greedy = {.k = 1, .ids = &one, .logits = &one_value};
        mx_seq *s[3], *alone;
        fill_ids(ids, N, 9);
        CHECK_OK(mx_seq_new(&alone, e, &err), &err);
        CHECK_OK(mx_seq_prefill(alone, ids, N, want, NULL, &err), &err);
        mx_seq_free(alone);
        for (int i = 0; i < 3; i++) CHECK_OK(mx_seq_new(&s[i], e, &err), &err);
        const mx_step_item items[] = {{.seq = s[0], .ids = ids, .n = 20},
                                      {.seq = s[1], .ids = ids, .n = 5, .n_rows = 2, .logits = beside},
                                      {.seq = s[2], .ids = ids, .n = 20, .n_rows = 1, .best = &greedy}};
        CHECK_OK(mx_engine_step(e, items, 3, &err), &err);
        const mx_step_item rest = {.seq = s[0], .ids = ids + 20, .n = 20, .n_rows = 1, .best = &best};
        CHECK_OK(mx_engine_step(e, &rest, 1, &err), &err);
        double sum = 0;
        for (int i = 0; i < v; i++) sum += exp((double)want[i] - (double)values[0]);
        CHECK(fabs(best.lse - (values[0] + log(sum))) < 1e-5, "%s: %g", models[m], (double)best.lse);
        for (int j = 0; j < K; j++) {
            CHECK(values[j] == want[top[j]], "%s: candidate %d", models[m], j);
            int before = 0;
            for (int i = 0; i < v; i++) before += want[i] > values[j] || (want[i] == values[j] && i < top[j]);
            CHECK(before == j, "%s: candidate %d has rank %d", models[m], j, before);
        }
        CHECK_OK(mx_seq_truncate(s[2], 0, &err), &err);
        CHECK_OK(mx_seq_prefill_best(s[2], ids, N, &greedy, NULL, &err), &err);
        CHECK(one == top[0] && one_value == values[0], "%s: %d, not %d", models[m], one, top[0]);
        mx_step_item wrong = {.seq = s[2], .ids = ids, .n = 2, .n_rows = 2, .best = &best};
        CHECK_FAILS(mx_engine_step(e, &wrong, 1, &err), MX_EINVAL, &err, "of one row");
        best.k = 257, wrong.n_rows = 1;
        CHECK_FAILS(mx_engine_step(e, &wrong, 1, &err), MX_EINVAL, &err, "the 257 likeliest");
        for (int i = 0; i < 3; i++) mx_seq_free(s[i]);
        free(want), free(beside);
        mx_engine_free(e);
    }
}

/* Four prompts of very different length, each joining when the one before it is through its first chunk, prefill and
 * decode mixed in every step: each sequence sees what it would see alone. */
TEST(kvc_03_neighbours_do_not_matter)
{
    enum { N_SEQ = 4, DECODE = 12, CHUNK = 48 };
    static const int lengths[N_SEQ] = {3, 17, 60, 200};
    for (size_t m = 0; m < countof(models); m++) {
        mx_engine *e = open_engine(models[m], N_SEQ, CHUNK, 256);
        size_t v = (size_t)vocab(e);
        float *want[N_SEQ], *got[N_SEQ];
        int32_t ids[N_SEQ][220];
        int before[MX_KV_GROUPS], total[N_SEQ], done[N_SEQ] = {0};
        free_blocks(e, before);
        for (int i = 0; i < N_SEQ; i++) {
            total[i] = lengths[i] + DECODE;
            fill_ids(ids[i], total[i], 20 + (uint64_t)i);
            want[i] = malloc((size_t)total[i] * v * sizeof(float));
            got[i] = malloc((size_t)total[i] * v * sizeof(float));
            feed(e, ids[i], total[i], (int[]){CHUNK}, 1, want[i]);
        }
        mx_seq *seq[N_SEQ] = {0};
        for (int round = 0, left = N_SEQ; left > 0; round++) {
            mx_step_item items[N_SEQ];
            int n_item = 0, budget = CHUNK;
            for (int k = 0; k < N_SEQ; k++) {
                int i = (k + round) % N_SEQ; // the order in the batch changes too
                if (i > round || done[i] == total[i] || budget == 0) continue;
                if (!seq[i]) CHECK_OK(mx_seq_new(&seq[i], e, &err), &err);
                int n = done[i] < lengths[i] ? lengths[i] - done[i] : 1; // prefill, then one at a time
                if (n > budget) n = budget;
                if (n > 20) n = 20;
                int rows = round % 3 == 0 ? n : 1;
                items[n_item++] = (mx_step_item){.seq = seq[i],
                                                 .ids = ids[i] + done[i],
                                                 .n = n,
                                                 .n_rows = rows,
                                                 .logits = got[i] + (size_t)(done[i] + n - rows) * v};
                for (int r = 0; r < n - rows; r++) // not asked for: as if right
                    memcpy(got[i] + (size_t)(done[i] + r) * v, want[i] + (size_t)(done[i] + r) * v,
                           v * sizeof(float));
                budget -= n;
                done[i] += n;
            }
            CHECK_OK(mx_engine_step(e, items, n_item, &err), &err);
            for (int i = 0; i < N_SEQ; i++) {
                if (done[i] < total[i] || !seq[i]) continue;
                mx_seq_free(seq[i]); // its blocks are used again at once
                seq[i] = NULL;
                left--;
            }
        }
        for (int i = 0; i < N_SEQ; i++) {
            for (int r = 0; r < total[i]; r++)
                CHECK(memcmp(got[i] + (size_t)r * v, want[i] + (size_t)r * v, v * sizeof(float)) == 0,
                      "%s: sequence %d, position %d", models[m], i, r);
            free(want[i]);
            free(got[i]);
        }
        check_blocks(e, before);
        mx_engine_free(e);
    }
}

/* Sequences come and go at random for a while; in the end every block is free. */
TEST(blocks_do_not_leak)
{
    enum { N_SEQ = 3 };
    for (size_t m = 0; m < 3; m++) {
        mx_engine *e = open_engine(models[m], N_SEQ, 32, 96);
        int before[MX_KV_GROUPS];
        free_blocks(e, before);
        mx_seq *seq[N_SEQ] = {0};
        uint64_t r = 9;
        for (int round = 0; round < 60; round++) {
            int i = (int)(mx_test_rand(&r) % N_SEQ), n = 1 + (int)(mx_test_rand(&r) % 32);
            int32_t ids[32];
            fill_ids(ids, n, r);
            if (!seq[i]) CHECK_OK(mx_seq_new(&seq[i], e, &err), &err);
            if (mx_seq_len(seq[i]) + n <= 96) {
                CHECK_OK(step(seq[i], ids, n, 0, NULL), &err);
            } else if (round % 2) {
                CHECK_OK(mx_seq_truncate(seq[i], 0, &err), &err);
            } else {
                mx_seq_free(seq[i]);
                seq[i] = NULL;
            }
        }
        mx_seq *more;
        for (int i = 0; i < N_SEQ; i++)
            if (!seq[i]) CHECK_OK(mx_seq_new(&seq[i], e, &err), &err);
        CHECK_FAILS(mx_seq_new(&more, e, &err), MX_ELIMIT, &err, "all 3 sequences");
        for (int i = 0; i < N_SEQ; i++) mx_seq_free(seq[i]);
        check_blocks(e, before);
        mx_engine_free(e);
    }
}

TEST(a_window_holds_no_more_than_itself_and_a_chunk)
{
    mx_engine *e = open_engine("tests/checkpoints/gemma3-4bit-g64", 1, 40, 1024);
    const mx_model_info *info = mx_model_get_info(mx_engine_model(e));
    int before[MX_KV_GROUPS], windowed = 0;
    free_blocks(e, before);
    mx_seq *s;
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    for (int len = 0; len + 40 <= 1000; len += 40) {
        int32_t ids[40];
        fill_ids(ids, 40, (uint64_t)len);
        CHECK_OK(step(s, ids, 40, 0, NULL), &err);
        for (int g = 0; g < info->n_group; g++) {
            int held = before[g] - mx_engine_free_blocks(e, g), all = (len + 40 + 31) / 32;
            if (info->window[g] == 0)
                CHECK_INT(held, all);
            else
                CHECK(held <= info->window[g] / 32 + 1 && before[g] <= (info->window[g] + 40) / 32 + 2);
            windowed += info->window[g] > 0;
        }
    }
    CHECK(windowed > 0);
    mx_seq_free(s);
    check_blocks(e, before);
    mx_engine_free(e);
}

TEST(truncation_is_exact_or_refused)
{
    enum { N = 200 };
    for (size_t m = 0; m < 3; m++) {
        mx_engine *e = open_engine(models[m], 1, 200, 256);
        const mx_model_info *info = mx_model_get_info(mx_engine_model(e));
        size_t v = (size_t)vocab(e);
        float *want = malloc((size_t)N * v * sizeof(float)), *got = malloc(v * sizeof(float));
        int32_t ids[N], other[40];
        fill_ids(ids, N, 3);
        fill_ids(other, 40, 4);
        feed(e, ids, N, (int[]){N}, 1, want);
        mx_seq *s;
        CHECK_OK(mx_seq_new(&s, e, &err), &err);
        CHECK_OK(step(s, ids, 150, 0, NULL), &err);
        CHECK_OK(step(s, other, 40, 0, NULL), &err);
        bool windowed = false;
        for (int g = 0; g < info->n_group; g++) windowed |= info->window[g] > 0;
        if (windowed || info->n_recurrent) {
            CHECK_FAILS(mx_seq_truncate(s, 150, &err), MX_UNSUPPORTED, &err,
                        info->n_recurrent ? "state" : "window");
            CHECK_INT(mx_seq_len(s), 190);
            CHECK_OK(mx_seq_truncate(s, 0, &err), &err);
            CHECK_OK(step(s, ids, 150, 0, NULL), &err);
        } else {
            CHECK_OK(mx_seq_truncate(s, 150, &err), &err);
        }
        CHECK_OK(step(s, ids + 150, 50, 1, got), &err);
        CHECK(memcmp(got, want + (size_t)(N - 1) * v, v * sizeof(float)) == 0, "%s", models[m]);
        if (windowed) { // a few tokens back, inside what is still held, works
            CHECK_OK(mx_seq_truncate(s, 199, &err), &err);
            CHECK_OK(step(s, ids + 199, 1, 1, got), &err);
            CHECK(memcmp(got, want + (size_t)(N - 1) * v, v * sizeof(float)) == 0, "%s", models[m]);
        }
        CHECK_FAILS(mx_seq_truncate(s, 201, &err), MX_EINVAL, &err, "201");
        CHECK_FAILS(mx_seq_truncate(s, -1, &err), MX_EINVAL, &err, "-1");
        mx_seq_free(s);
        free(want);
        free(got);
        mx_engine_free(e);
    }
}

TEST(kvc_05_what_does_not_fit_is_refused_and_changes_nothing)
{
    mx_engine *e = open_engine("models/demo", 2, 512, 128);
    static const int lengths[] = {129, 200, 512};
    int before[MX_KV_GROUPS];
    int32_t ids[10000] = {0};
    mx_seq *s, *t;
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    CHECK_OK(mx_seq_new(&t, e, &err), &err);
    free_blocks(e, before);
    for (size_t i = 0; i < countof(lengths); i++) {
        char want[80];
        snprintf(want, sizeof want, "prompt of %d tokens does not fit the context of 128", lengths[i]);
        CHECK_FAILS(step(s, ids, lengths[i], 0, NULL), MX_ELIMIT, &err, want);
    }
    CHECK_FAILS(mx_seq_prefill(s, ids, 10000, NULL, NULL, &err), MX_ELIMIT, &err,
                "prompt of 10000 tokens does not fit the context of 128");
    mx_step_item two[] = {{.seq = t, .ids = ids, .n = 4}, {.seq = s, .ids = ids, .n = 129}};
    CHECK_FAILS(mx_engine_step(e, two, 2, &err), MX_ELIMIT, &err, "129");
    CHECK(mx_seq_len(s) == 0 && mx_seq_len(t) == 0);
    check_blocks(e, before);
    CHECK_OK(step(s, ids, 128, 0, NULL), &err);
    CHECK_FAILS(step(s, ids, 1, 0, NULL), MX_ELIMIT, &err, "1 tokens after the 128");
    CHECK_FAILS(step(t, (int32_t[]){-1}, 1, 0, NULL), MX_EINVAL, &err, "token -1");
    CHECK_FAILS(step(t, (int32_t[]){vocab(e)}, 1, 0, NULL), MX_EINVAL, &err, "vocabulary");
    CHECK_FAILS(step(t, ids, 2, 3, NULL), MX_EINVAL, &err, "makes no sense");
    CHECK_FAILS(step(t, ids, 0, 0, NULL), MX_EINVAL, &err, "makes no sense");
    mx_step_item twice[] = {{.seq = t, .ids = ids, .n = 4}, {.seq = t, .ids = ids, .n = 4}};
    CHECK_FAILS(mx_engine_step(e, twice, 2, &err), MX_EINVAL, &err, "twice");
    mx_seq_free(s);
    mx_seq_free(t);
    CHECK_FAILS(step(t, ids, 1, 0, NULL), MX_EINVAL, &err, "not this engine's");
    mx_engine_free(e);
}

/* A sequence that takes over a used slot starts from nothing, also in recurrent layers. */
TEST(slots_are_clean_when_reused)
{
    for (size_t m = 0; m < 3; m++) {
        mx_engine *e = open_engine(models[m], 1, 64, 128);
        size_t v = (size_t)vocab(e);
        float *first = malloc(v * sizeof(float)), *again = malloc(v * sizeof(float));
        int32_t ids[64], other[64];
        fill_ids(ids, 64, 1);
        fill_ids(other, 64, 2);
        mx_seq *s;
        for (int round = 0; round < 3; round++) {
            CHECK_OK(mx_seq_new(&s, e, &err), &err);
            CHECK_OK(step(s, round == 1 ? other : ids, 64, 1, round == 0 ? first : again), &err);
            mx_seq_free(s);
        }
        CHECK(memcmp(first, again, v * sizeof(float)) == 0);
        free(first);
        free(again);
        mx_engine_free(e);
    }
}

static void put_nan(const char *name, void *data, size_t n_bytes) {
    if (!strstr(name, "layers.3.input_layernorm")) return;
    memset((char *)data + n_bytes / 2, 0xff, 2); // bf16 NaN
}

TEST(qnt_07_a_nan_in_the_weights_is_an_error)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s/nan", mx_test_tmpdir());
    fixture_copy(dir, "models/demo", put_nan);
    mx_engine *e = NULL;
    mx_engine_options o = {.device = "cpu", .ctx = 128};
    CHECK_OK(mx_engine_open(&e, dir, &o, &err), &err);
    float *logits = malloc((size_t)vocab(e) * sizeof *logits);
    int before[MX_KV_GROUPS];
    int32_t ids[] = {1, 2, 3};
    mx_seq *s;
    free_blocks(e, before);
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    CHECK_FAILS(step(s, ids, 3, 1, logits), MX_EINTERNAL, &err, "finite");
    CHECK_FAILS(step(s, ids, 3, 1, logits), MX_EINVAL, &err, "must be freed");
    CHECK_FAILS(mx_seq_truncate(s, 0, &err), MX_EINVAL, &err, "must be freed");
    mx_seq_free(s);
    check_blocks(e, before);
    free(logits);
    mx_engine_free(e);
}
