/* The GPU backend without a GPU: gpu.c, memory.c, the ops' launches and one driver on a runtime from tests/fake, where kernels do
 * nothing. What is looked for: every failure becomes a sentence, nothing leaks, nothing hangs; and memory is as it was planned. */
#include "fixture.h"
#include "../fake/fake.h"
#include "backend/gpu/gpu.h"
#include "base/str.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/memory.h"
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(MX_GPU_CUDA)
#define X(file)                                                                                              \
    {"sm_80", #file, (const unsigned char *)"", 1}, {"sm_90a", #file, (const unsigned char *)"", 1},
static const char name[] = "cuda", node[] = "/dev/nvidiactl", prefix[] = "cu";
enum { CUDA = 1 };
#else
#define X(file)                                                                                              \
    {"gfx1151", #file, (const unsigned char *)"", 1}, {"gfx11-generic", #file, (const unsigned char *)"", 1},
static const char name[] = "rocm", node[] = "/dev/kfd", prefix[] = "hip";
enum { CUDA = 0 };
#endif
const mx_gpu_image mx_gpu_images[] = {IMAGES};
const int mx_gpu_n_image = countof(mx_gpu_images);

static mx_err err;

/* ---- a process of its own ---------------------------------------------------------------------------------
 * The runtime's library is opened once a process: what happens before that is looked at in children. */

static char said[1024];

/* The status and, in said, the sentence of opening device `name` in a child that runs prepare first. */
static mx_status open_in_child(void (*prepare)(void)) {
    int fd[2], status;
    CHECK(pipe(fd) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        mx_err why = {0};
        mx_dev *dev = NULL;
        if (prepare) prepare();
        mx_status st = mx_dev_open(&dev, name, NULL, &why);
        if (st != MX_OK && write(fd[1], why.msg, strlen(why.msg)) < 0) _exit(99);
        _exit((int)st);
    }
    close(fd[1]);
    size_t n = 0;
    for (ssize_t k; (k = read(fd[0], said + n, sizeof said - 1 - n)) > 0;) n += (size_t)k;
    said[n] = 0;
    close(fd[0]);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return (mx_status)WEXITSTATUS(status);
}
#define SAYS(part) CHECK(strstr(said, part), "\"%s\" should hold \"%s\"", said, part)

/* The fake library, found as the driver finds the real one: under its soname (CUDA), or in $ROCM_PATH/lib. */
static fake_state *find_fake(const char *path) {
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) abort();
    if (!CUDA) {
        static char root[400], link[500];
        snprintf(root, sizeof root, "%s", mx_test_tmpdir());
        snprintf(link, sizeof link, "%s/lib", root);
        mkdir(link, 0755);
        snprintf(link, sizeof link, "%s/lib/" SONAME, root);
        unlink(link); // of a child before this one
        if (symlink(path, link)) abort();
        setenv("ROCM_PATH", root, 1);
    }
    return dlsym(lib, "fake");
}

static const char *drawn; // root of a machine that is drawn
static void no_gpu(void) {
    fake_state *f = find_fake(FAKE_NEW);
    f->n_device = 0;
    f->init_code = 100;
    setenv("MLXCEL_SYSROOT", drawn, 1);
}
static void no_gpu_as_nobody(void) {
    no_gpu();
    if (setegid(65534) || seteuid(65534)) _exit(98);
}
static void old_library(void) { find_fake(FAKE_OLD); }
static void broken_init(void) { find_fake(FAKE_NEW)->init_code = 999; }
static void versions_differ(void) { find_fake(FAKE_NEW)->init_code = CUDA ? 803 : 35; }

TEST(a_missing_library_is_said_with_where_it_was_looked_for)
{
    if (dlopen(SONAME, RTLD_LAZY | RTLD_LOCAL)) SKIP("this machine has a " SONAME);
    CHECK_INT(open_in_child(NULL), MX_ENOTFOUND);
    if (CUDA) {
        SAYS("no NVIDIA driver: libcuda.so.1");
    } else {
        SAYS("libamdhip64.so.7, .6 or .5");
        SAYS("/opt/rocm-*/lib");
        SAYS("$ROCM_PATH/lib");
    }
}

TEST(an_old_library_is_said_with_what_it_lacks)
{
    CHECK_INT(open_in_child(old_library), MX_UNSUPPORTED);
    SAYS("too old");
    SAYS(CUDA ? "cuLaunchKernelEx" : "hipGraphInstantiate");
    SAYS("install");
}

TEST(a_driver_that_does_not_start_is_said)
{
    CHECK(open_in_child(broken_init) != MX_OK);
    SAYS(CUDA ? "cuInit" : "hipInit");
    SAYS("999");
    CHECK_INT(open_in_child(versions_differ), MX_UNSUPPORTED);
    SAYS(CUDA ? "of different versions" : "too old");
    SAYS("kernel driver");
}

TEST(no_device_is_told_from_no_permission)
{
    drawn = mx_test_tmpdir();
    CHECK_INT(open_in_child(no_gpu), MX_ENOTFOUND);
    SAYS(node);
    SAYS("is missing");
    SAYS("container");

    char path[300];
    CHECK(chmod(drawn, 0755) == 0);
    snprintf(path, sizeof path, "%s/dev", drawn);
    CHECK(mkdir(path, 0755) == 0);
    fixture_write(path, strrchr(node, '/') + 1, "", 0);
    CHECK_INT(open_in_child(no_gpu), MX_ENOTFOUND);
    SAYS("sees no GPU");

    if (geteuid() != 0) SKIP("only root can give up a permission to see it missing");
    snprintf(path, sizeof path, "%s%s", drawn, node);
    CHECK(chmod(path, 0600) == 0);
    char *parent = strdup(drawn);
    *strrchr(parent, '/') = 0;
    CHECK(chmod(parent, 0755) == 0);
    free(parent);
    CHECK_INT(open_in_child(no_gpu_as_nobody), MX_ENOTFOUND);
    SAYS("no permission");
    SAYS("usermod -aG");
    SAYS(CUDA ? "video" : "render");
}

/* ---- in this process, on the fake ------------------------------------------------------------------------- */

static fake_state *f;
static fake_state fresh;

static void reset(void) {
    if (!f) {
        f = find_fake(FAKE_NEW);
        fresh = *f;
    }
    *f = fresh;
    unsetenv("MLXCEL_SYSROOT");
}

static void check_nothing_is_left(const char *what) {
    for (int k = 0; k < FAKE_KINDS; k++)
        CHECK(f->live[k] == 0, "%s: %d of kind %d are left", what, f->live[k], k);
    CHECK(f->blocked == 0, "%s: %d calls would have waited for ever", what, f->blocked);
}

/* A model that is small enough to be opened hundreds of times. */
static const char *small_model(void) {
    static char dir[200];
    if (!*dir) {
        tape t = tape_blank();
        snprintf(dir, sizeof dir, "%s", mx_test_tmpdir());
        tape_make(&t, dir);
    }
    return dir;
}

static int n_made; // tokens of the last run

/* Open, answer with n_token tokens, close: everything that a program does. */
static mx_status run_with(mx_engine_options o, const char *dir, int n_token, mx_err *why) {
    static const int32_t prompt[] = {1, 2, 3};
    mx_engine *e = NULL;
    mx_seq *s = NULL;
    mx_ids out = {0};
    mx_generate_options g = mx_generate_defaults();
    mx_generate_stats stats;
    g.max_tokens = n_token;
    g.ignore_eos = true;
    o.device = name;
    if (!o.ctx) o.ctx = 64;
    if (!o.chunk) o.chunk = 32;
    mx_status st = mx_engine_open(&e, dir, &o, why);
    if (st == MX_OK) st = mx_seq_new(&s, e, why);
    if (st == MX_OK) st = mx_generate(e, s, prompt, countof(prompt), &g, &out, &stats, why);
    n_made = (int)out.n;
    if (s) mx_seq_free(s);
    mx_engine_free(e);
    mx_ids_free(&out);
    return st;
}
static mx_status run_small(mx_err *why) {
    return run_with((mx_engine_options){.dev.graphs = MX_GRAPHS_ON}, small_model(), 6, why);
}

/* Frees have nobody to tell; a failed look at the name of an error only makes the sentence poorer. */
static bool may_succeed(const char *call) {
    static const char *const quiet[] = {"Free",    "Unload",       "Destroy",
                                        "Release", "GetErrorName", "GetErrorString"};
    for (size_t i = 0; i < countof(quiet); i++)
        if (strstr(call, quiet[i])) return true;
    return false;
}

TEST(every_call_that_fails_gives_a_sentence_and_leaves_nothing)
{
    reset();
    CHECK_OK(run_small(&err), &err);
    CHECK_INT(n_made, 6);
    check_nothing_is_left("a clean run");
    fake_state clean = *f;
    int n_run = 0;
    for (int i = 0; i < 64 && clean.calls[i].name; i++) {
        const char *call = clean.calls[i].name;
        if (!strcmp(call, CUDA ? "cuInit" : "hipInit")) continue; // once a process: above
        int n = clean.calls[i].n, step = n > 400 ? n / 400 : 1;
        for (int at = 1; at <= n; at += step, n_run++) {
            mx_err why = {0};
            reset();
            snprintf(f->fail, sizeof f->fail, "%s", call);
            f->fail_at = at;
            f->fail_code = strstr(call, "Alloc") || strstr(call, "Malloc") ? 2 : 719;
            mx_status st = run_small(&why);
            char what[100];
            snprintf(what, sizeof what, "%s, call %d", call, at);
            if (may_succeed(call)) {
                CHECK(st == MX_OK || strlen(why.msg) > 10, "%s", what);
            } else {
                char part[12]; // "cuMemAlloc_v2" is named cuMemAlloc
                snprintf(part, sizeof part, "%.9s", call);
                CHECK(st != MX_OK, "%s: nobody noticed", what);
                CHECK(st == MX_ENOMEM || strstr(why.msg, part), "%s: \"%s\"", what, why.msg);
                CHECK(strlen(why.msg) > 20, "%s: \"%s\"", what, why.msg);
            }
            check_nothing_is_left(what);
        }
    }
    fprintf(stderr, "# %d runs\n", n_run);
    CHECK(n_run > 150, "%d runs", n_run);
}

TEST(a_fault_on_the_device_reaches_the_waiter_with_the_kernels)
{
    reset();
    CHECK_OK(run_small(&err), &err);
    int n = f->n_launch;
    for (int at = 1; at <= n; at++) {
        mx_err why = {0};
        struct timespec a, b;
        reset();
        f->fault_at = at;
        f->fault_code = 700;
        clock_gettime(CLOCK_MONOTONIC, &a);
        CHECK(run_small(&why) == MX_EINTERNAL, "launch %d", at);
        clock_gettime(CLOCK_MONOTONIC, &b);
        CHECK(b.tv_sec - a.tv_sec <= 1, "launch %d", at);
        CHECK(strstr(why.msg, CUDA ? "cuEventQuery" : "hipEventQuery") && strstr(why.msg, "700"), "%s",
              why.msg);
        CHECK(strstr(why.msg, "kernel"), "%s", why.msg);
        check_nothing_is_left("a fault");
    }
    mx_err why = {0}; // one kernel at a time: the message names it
    reset();
    f->fault_at = 1;
    f->fault_code = 700;
    CHECK(run_with((mx_engine_options){.dev.sync = true}, small_model(), 6, &why) == MX_EINTERNAL);
    CHECK(!strncmp(why.msg, "kernel ", 7), "%s", why.msg);
}

TEST(a_step_that_hangs_ends_with_the_watchdog_and_the_device_is_left_alone)
{
    mx_engine *e = NULL;
    mx_seq *s = NULL, *again = NULL;
    mx_err why = {0};
    int32_t id = 1;
    float *logits = calloc(TAPE_VOCAB, sizeof *logits);
    reset();
    mx_engine_options o = {.device = name, .ctx = 64, .chunk = 32, .dev.step_timeout = 0.2};
    CHECK_OK(mx_engine_open(&e, small_model(), &o, &err), &err);
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    f->hang_at = f->n_launch + 5;
    mx_step_item item = {.seq = s, .ids = &id, .n = 1, .n_rows = 1, .logits = logits};
    CHECK_FAILS(mx_engine_step(e, &item, 1, &why), MX_EINTERNAL, &why, "0.2 seconds");
    CHECK(strstr(why.msg, "--step-timeout") && strstr(why.msg, "kernel"), "%s", why.msg);
    mx_seq_free(s);
    // a new sequence: an answer with the reason, at once
    CHECK_OK(mx_seq_new(&again, e, &err), &err);
    item.seq = again;
    CHECK_FAILS(mx_engine_step(e, &item, 1, &why), MX_EINTERNAL, &why, "is lost");
    CHECK(strstr(why.msg, "restart"), "%s", why.msg);
    mx_seq_free(again);
    mx_engine_free(e);
    CHECK(f->blocked == 0, "%d calls into a driver that hangs", f->blocked);
    free(logits);
}

TEST(logits_that_are_not_numbers_are_an_error)
{
    reset();
    mx_engine *e = NULL;
    mx_seq *s = NULL;
    int32_t id = 1;
    float *logits = calloc(TAPE_VOCAB, sizeof *logits);
    CHECK_OK(
        mx_engine_open(&e, small_model(), &(mx_engine_options){.device = name, .ctx = 64, .chunk = 32}, &err),
        &err);
    CHECK_OK(mx_seq_new(&s, e, &err), &err);
    mx_gpu_dev *d = (mx_gpu_dev *)mx_engine_dev(e);
    memset(d->arena.base, 0xFF, d->arena.used); // kernels write nothing: what the step reads is NaN
    mx_step_item item = {.seq = s, .ids = &id, .n = 1, .n_rows = 1, .logits = logits};
    CHECK_FAILS(mx_engine_step(e, &item, 1, &err), MX_EINTERNAL, &err, "not finite");
    mx_seq_free(s);
    mx_engine_free(e);
    free(logits);
    check_nothing_is_left("NaN");
}

TEST(a_full_device_is_refused_before_loading_or_said_where_it_fails)
{
    mx_err why = {0};
    const char *demo = mx_test_path("models/demo");
    reset();
    f->total = 2 << 20;
    CHECK_FAILS(run_with((mx_engine_options){.ctx = 64}, demo, 2, &why), MX_ENOMEM, &why,
                "no --ctx-size fits");
    CHECK(strstr(why.msg, "2.0 MB are free"), "%s", why.msg);
    CHECK_INT(f->n_launch, 0);
    check_nothing_is_left("too small");
    reset();
    f->total = 2 << 20; // the check is switched off: the driver says it
    CHECK_FAILS(run_with((mx_engine_options){.ctx = 64, .no_memory_check = true}, demo, 2, &why), MX_ENOMEM,
                &why, "is full");
    CHECK(strstr(why.msg, "--ctx-size") && strstr(why.msg, "MB more"), "%s", why.msg);
    check_nothing_is_left("full");
    reset();
    mx_engine_needs need;
    mx_engine_options o = {.device = name, .ctx = 4096};
    CHECK_OK(mx_engine_need(&need, demo, &o, &err), &err);
    f->total = (size_t)(need.weights + need.scratch + need.kv / 2);
    CHECK_FAILS(run_with(o, demo, 2, &why), MX_ENOMEM, &why, "would fit");
    o.ctx = 0; // open: what fits is taken
    mx_engine *e = NULL;
    CHECK_OK(mx_engine_open(&e, demo, &o, &err), &err);
    CHECK(mx_engine_ctx(e) >= 1024 && mx_engine_ctx(e) < 2080, "%d", mx_engine_ctx(e));
    mx_engine_free(e);
    check_nothing_is_left("a context that was cut");
}

TEST(memory_is_what_was_planned)
{
    static const char *const models[] = {"models/demo", "tests/checkpoints/qwen3-moe-4bit-g64",
                                         "tests/checkpoints/gemma3-4bit-g64",
                                         "tests/checkpoints/qwen3-5-bf16"};
    static const struct { int ctx, n_seq, chunk; } sizes[] = {{512, 1, 512}, {4096, 1, 128}, {256, 8, 64}};
    for (size_t m = 0; m < countof(models); m++)
        for (size_t i = 0; i < countof(sizes); i++) {
            const char *dir = mx_test_path(models[m]);
            mx_engine_needs need;
            mx_engine_options o = {
                .device = name, .ctx = sizes[i].ctx, .n_seq = sizes[i].n_seq, .chunk = sizes[i].chunk};
            reset();
            CHECK_OK(mx_engine_need(&need, dir, &o, &err), &err);
            check_nothing_is_left("asking for needs");
            CHECK(f->n_launch == 0 && f->peak < 100000, "%zu bytes were taken to count", f->peak);
            uint64_t total = need.weights + need.kv + need.state + need.scratch;
            CHECK_OK(run_with(o, dir, 20, &err), &err);
            double ratio = (double)f->peak / (double)total;
            CHECK(ratio > 0.95 && ratio < 1.05, "%s, context %d: planned %llu, taken %zu", models[m],
                  sizes[i].ctx, (unsigned long long)total, f->peak);
            check_nothing_is_left(models[m]);
        }
}

TEST(wrong_architectures_are_refused_with_the_nearest_generic_one)
{
    static const struct {
        const char *arch, *code; // code NULL: refused, with `part` in the sentence
        const char *part;
    } cuda[] = {{"7.5", NULL, "no code object for sm_75"},
                {"8.0", "sm_80", NULL},
                {"8.9", "sm_80", NULL},
                {"9.0", "sm_90a", NULL},
                {"12.0", "sm_80", NULL}},
      rocm[] = {{"gfx1151", "gfx1151", NULL},
                {"gfx1100", "gfx11-generic", NULL},
                {"gfx1201", NULL, "gfx12-generic"},
                {"gfx1030", NULL, "gfx10-3-generic"},
                {"gfx942", NULL, "64 lanes"}};
    for (size_t i = 0; i < 5; i++) {
        const char *arch = CUDA ? cuda[i].arch : rocm[i].arch, *code = CUDA ? cuda[i].code : rocm[i].code;
        const char *part = CUDA ? cuda[i].part : rocm[i].part;
        mx_dev *dev = NULL;
        mx_dev_info info;
        int n;
        reset();
        snprintf(f->arch, sizeof f->arch, "%s", arch);
        mx_status st = mx_backends[0]->info(0, &info, &n, &err);
        CHECK_INT(n, 1);
        if (!code) {
            CHECK_INT(st, MX_UNSUPPORTED);
            CHECK(strstr(err.msg, part) && strstr(err.msg, "this build has"), "%s", err.msg);
            CHECK_FAILS(mx_dev_open(&dev, name, NULL, &err), MX_UNSUPPORTED, &err, part);
            CHECK_STR(info.name, "Fake GPU 0"); // it is listed all the same
        } else {
            CHECK_OK(st, &err);
            CHECK_STR(info.code, code);
            CHECK_OK(mx_dev_open(&dev, "gpu", NULL, &err), &err);
            CHECK_STR(((mx_gpu_dev *)dev)->arch, code);
            mx_dev_close(dev);
        }
        check_nothing_is_left(arch);
    }
}

TEST(devices_are_named_by_number)
{
    mx_dev *dev = NULL;
    char which[16];
    reset();
    f->n_device = 2;
    snprintf(which, sizeof which, "%s:1", name);
    CHECK_OK(mx_dev_open(&dev, which, NULL, &err), &err);
    CHECK(strstr(dev->name, "Fake GPU 1"), "%s", dev->name);
    mx_dev_close(dev);
    snprintf(which, sizeof which, "%s:2", name);
    CHECK_FAILS(mx_dev_open(&dev, which, NULL, &err), MX_EINVAL, &err, "there is no GPU 2: 2 are here");
    CHECK_FAILS(mx_dev_open(&dev, "gpu:x", NULL, &err), MX_EINVAL, &err, "a number");
    CHECK_FAILS(mx_dev_open(&dev, "cpu:1", NULL, &err), MX_EINVAL, &err, "one cpu");
    check_nothing_is_left("numbers");
}

/* Launches by what was asked of the flag for recordings. */
static int graph_launches(mx_graphs g) {
    reset();
    CHECK_OK(run_with((mx_engine_options){.dev.graphs = g}, small_model(), 8, &err), &err);
    int n = 0;
    for (int i = 0; i < 64 && f->calls[i].name; i++)
        if (strstr(f->calls[i].name, "GraphLaunch")) n = f->calls[i].n;
    return n;
}
TEST(recordings_follow_the_flag)
{
    CHECK(graph_launches(MX_GRAPHS_ON) > 2);
    CHECK_INT(graph_launches(MX_GRAPHS_OFF), 0);
    CHECK_INT(graph_launches(MX_GRAPHS_AUTO) > 2, CUDA);
    CHECK(!strncmp(prefix, f->calls[0].name, strlen(prefix)));
}

/* A GPU that shares the host's memory: its carve-out, and what the kernel lets it map as far as the host has it. */
TEST(shared_memory_counts_what_the_host_can_spare)
{
    static const struct {
        const char *path, *text;
    } files[] = {{"proc/meminfo", "MemAvailable: 8000 kB\n"},
                 {"sys/class/drm/card1/device/mem_info_vram_total", "1000000\n"},
                 {"sys/class/drm/card1/device/mem_info_vram_used", "400000\n"},
                 {"sys/class/drm/card1/device/mem_info_gtt_total", "5000000\n"},
                 {"sys/class/drm/card1/device/mem_info_gtt_used", "1000000\n"}};
    char root[200], path[600];
    reset();
    snprintf(root, sizeof root, "%s", mx_test_tmpdir());
    setenv("MLXCEL_SYSROOT", root, 1);
    for (size_t i = 0; i < countof(files); i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i].path);
        *strrchr(path, '/') = 0;
        CHECK_OK(mx_mkdirs(path, &err), &err);
        fixture_write(root, files[i].path, files[i].text, strlen(files[i].text));
        if (i == 0) CHECK_INT(mx_memory_shared_available(1u << 30), 8000 * 1024);
    }
    CHECK_INT(mx_memory_shared_available(1u << 30), 600000 + 4000000);
    CHECK_INT(mx_memory_shared_available(123456), 123456); // the driver knows of less
    fixture_write(root, "proc/meminfo", "MemAvailable: 1000 kB\n", 22);
    CHECK_INT(mx_memory_shared_available(1u << 30), 600000 + 1000 * 1024);
    f->shares_memory = 1;
    mx_engine_needs need;
    CHECK_OK(mx_engine_need(&need, small_model(), &(mx_engine_options){.device = name, .ctx = 64}, &err),
             &err);
    CHECK_INT(need.available, 600000 + 1000 * 1024);
    unsetenv("MLXCEL_SYSROOT");
}
