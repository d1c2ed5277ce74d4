/* test_emu.c - the emulator's own proof: each instruction of proof.def against what it must give; division, roots and conversions against
 * the host's; matrix layouts; faults that must be found; the calls of the runtime library. usage: test-emu PROOF.image RANDOM.image */
#include "emu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef _Float16 f16;
typedef int8_t i8;
typedef int16_t i16;

int hipInit(unsigned), hipMalloc(void **, size_t), hipFree(void *), hipHostMalloc(void **, size_t, unsigned),
    hipHostFree(void *);
int hipStreamCreateWithFlags(void **, unsigned), hipStreamSynchronize(void *), hipStreamDestroy(void *),
    hipModuleLoadData(void **, const void *);
int hipModuleGetFunction(void **, void *, const char *),
    hipMemcpyAsync(void *, const void *, size_t, int, void *), hipMemsetAsync(void *, int, size_t, void *);
int hipModuleLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          void *, void **, void **);
int hipEventCreateWithFlags(void **, unsigned), hipEventRecord(void *, void *), hipEventQuery(void *),
    hipEventDestroy(void *);
int hipStreamBeginCapture(void *, int), hipStreamEndCapture(void *, void **),
    hipGraphInstantiate(void **, void *, void **, char *, size_t);
int hipGraphLaunch(void *, void *), hipGraphDestroy(void *), hipGraphExecDestroy(void *),
    hipGetDeviceCount(int *);
extern int device_error;

/* ---- helpers of the expectations --------------------------------------------------------------------------- */

static u32 bits(f32 f) { return __builtin_bit_cast(u32, f); }
static i64 sign_extended(u32 v, unsigned n) {
    return (v >> (n - 1) & 1) ? (i64)(v & (u32)((1ull << n) - 1)) - (1ll << n)
                              : (i64)(v & (u32)((1ull << n) - 1));
}
static u32 saturated(i64 v) {
    return (u32)(v > 2147483647 ? 2147483647 : v < -2147483647 - 1 ? -2147483647 - 1 : v);
}
static u32 reversed(u32 v) {
    u32 r = 0;
    for (int i = 0; i < 32; i++) r = r << 1 | (v >> i & 1);
    return r;
}
static int leading(u32 v) {
    int n = 0;
    while (n < 32 && !(v >> (31 - n) & 1)) n++;
    return n;
}
static u32 ones(u64 v) {
    u32 n = 0;
    for (; v; v >>= 1) n += v & 1;
    return n;
}
static i64 least(i64 a, i64 b, i64 c) { return a < b ? (a < c ? a : c) : b < c ? b : c; }
static i64 most(i64 a, i64 b, i64 c) { return a > b ? (a > c ? a : c) : b > c ? b : c; }
static u32 distance(u32 a, u32 b) {
    u32 r = 0;
    for (int i = 0; i < 4; i++) r += (u32)abs((int)(a >> 8 * i & 255) - (int)(b >> 8 * i & 255));
    return r;
}
static u32 dot8(u32 a, u32 b, int sa, int sb) {
    i64 r = 0;
    for (int i = 0; i < 4; i++) {
        const u32 x = a >> 8 * i & 255, y = b >> 8 * i & 255;
        r += (sa ? sign_extended(x, 8) : x) * (sb ? sign_extended(y, 8) : y);
    }
    return (u32)r;
}
static u32 permuted(u32 a, u32 b, u32 c) { // bytes 0-3 of b, 4-7 of a; 8-11 signs; 12 zero, more 0xFF
    u32 r = 0;
    for (int i = 3; i >= 0; i--) {
        const u32 s = c >> 8 * i & 255;
        u32 v = 255;
        if (s < 4)
            v = b >> 8 * s & 255;
        else if (s < 8)
            v = a >> 8 * (s - 4) & 255;
        else if (s < 12)
            v = ((s < 10 ? b : a) >> ((s & 1) * 16 + 15) & 1) * 255;
        else if (s == 12)
            v = 0;
        r = r << 8 | v;
    }
    return r;
}
static f32 half(u32 h) {
    const u32 e = h >> 10 & 31, m = h & 1023;
    const f32 v = e == 0    ? ldexpf((f32)m, -24)
                  : e == 31 ? (m ? NAN : INFINITY)
                            : ldexpf((f32)(m + 1024), (int)e - 25);
    return h & 0x8000 ? -v : v;
}

/* ---- running ------------------------------------------------------------------------------------------------- */

enum { SETS = 96, N = SETS * 96 };
static int n_test, n_bad;
static void *module_proof, *stream;
static u32 *in;
static u64 *out;
static u64 seed = 1;
static u32 random_u32(void) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(seed >> 32);
}
static void result(bool ok, const char *name, const char *detail) {
    n_test++;
    n_bad += !ok;
    printf("%sok %d - %s\n", ok ? "" : "not ", n_test, name);
    if (!ok && *detail) printf("# %s\n", detail);
}
static void *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    rewind(f);
    void *p = malloc((size_t)n);
    if (p && fread(p, 1, (size_t)n, f) != (size_t)n) p = NULL;
    fclose(f);
    return p;
}
static int launch(void *module, const char *name, unsigned blocks, unsigned threads, void *a, void *b,
                  void *c) {
    void *f = NULL, *args[] = {&a, &b, &c};
    int r = hipModuleGetFunction(&f, module, name);
    if (!r) r = hipModuleLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, args, NULL);
    return r ? r : hipStreamSynchronize(stream);
}
static void fill_inputs(void) {
    static const u32 special[] = {0,          1,          0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x3F800000,
                                  0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x807FFFFF,
                                  0x00800000, 0x4B000000, 0x4F000000, 0x7F7FFFFF, 0xFFFF,     0x8000,
                                  0x10000,    31,         0x40490FDB, 0x3F000000};
    const u32 n = sizeof special / sizeof *special;
    for (u32 k = 0; k < N; k++) {
        const u32 set = k / 96, which = k / 32 % 3;
        u32 v = random_u32();
        if (set < 32)
            v = special[which == 0 ? k % n : random_u32() % n];
        else if (set < 48)
            v = random_u32() % 64;
        else if (set < 72)
            v = bits(ldexpf((f32)(i32)v, (int)(random_u32() % 80) - 71));
        in[k] = v;
    }
}
typedef u64 expect_fn(const u32 *set, u32 i);
#define A(j) (set[j])
#define B(j) (set[32 + (j)])
#define COMMON                                                                                               \
    const u32 a = set[i], b = set[32 + i], c = set[64 + i];                                                  \
    const f32 fa = __builtin_bit_cast(f32, a), fb = __builtin_bit_cast(f32, b),                              \
              fc = __builtin_bit_cast(f32, c);                                                               \
    const u64 q = a | (u64)b << 32;                                                                          \
    (void)a, (void)b, (void)c, (void)fa, (void)fb, (void)fc, (void)q
#define X(name, text, expected)                                                                              \
    static u64 e_##name(const u32 *set, u32 i) {                                                             \
        COMMON;                                                                                              \
        return (u32)(expected);                                                                              \
    }
#define W(name, text, expected)                                                                              \
    static u64 e_##name(const u32 *set, u32 i) {                                                             \
        COMMON;                                                                                              \
        return (expected);                                                                                   \
    }
#include "proof.def"
#undef X
#undef W
static u64 e_divide(const u32 *set, u32 i) {
    COMMON;
    return bits(fa / fb);
}
static u64 e_sqrt(const u32 *set, u32 i) {
    COMMON;
    return bits(sqrtf(fa));
}
static u64 e_half(const u32 *set, u32 i) {
    COMMON;
    const _Float16 s = (_Float16)(half(a & 0xFFFF) + half(b & 0xFFFF)), t = (_Float16)fc;
    return (u64) __builtin_bit_cast(u16, s) | (u64) __builtin_bit_cast(u16, t) << 16;
}
static u64 e_divide_u(const u32 *set, u32 i) {
    COMMON;
    return ((u64)a << 32 | c) / ((u64)b | 1);
}
static bool nan32(u64 v) { return v <= 0xFFFFFFFFu && (v & 0x7FFFFFFF) > 0x7F800000; }
static bool nan16(u64 v) { return (v & 0x7FFF) > 0x7C00; }
static void check_kernel(const char *kernel, expect_fn *expect, bool halves) {
    char detail[300] = "";
    const int r = launch(module_proof, kernel, SETS, 32, out, in, NULL);
    if (r) snprintf(detail, sizeof detail, "the launch returned %d", r);
    for (u32 k = 0; !r && k < SETS * 32; k++) {
        const u64 got = out[k], want = expect(in + k / 32 * 96, k % 32);
        bool same = got == want || (nan32(got) && nan32(want));
        if (halves)
            same = ((u16)got == (u16)want || (nan16(got) && nan16(want))) &&
                   ((u16)(got >> 16) == (u16)(want >> 16) || (nan16(got >> 16) && nan16(want >> 16)));
        if (same) continue;
        const u32 *set = in + k / 32 * 96 + k % 32;
        snprintf(detail, sizeof detail, "set %u lane %u: a %08x b %08x c %08x gives %llx, not %llx", k / 32,
                 k % 32, set[0], set[32], set[64], (unsigned long long)got, (unsigned long long)want);
        break;
    }
    device_error = 0;
    result(!*detail, kernel, detail);
}

static void instructions(void) {
    static const struct {
        const char *name;
        expect_fn *fn;
    } all[] = {
#define X(name, text, expected) {"t_" #name, e_##name},
#define W X
#include "proof.def"
#undef X
#undef W
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_kernel(all[i].name, all[i].fn, false);
    check_kernel("p_divide", e_divide, false);
    check_kernel("p_sqrt", e_sqrt, false);
    check_kernel("p_half", e_half, true);
    check_kernel("p_divide_u", e_divide_u, false);
}

/* ---- matrices ------------------------------------------------------------------------------------------------- */

static void matrices(void) {
    static const char *const names[] = {"m_f16", "m_bf16", "m_iu8"};
    u8 *a, *b;
    f32 *d;
    hipMalloc((void **)&a, 1024), hipMalloc((void **)&b, 1024), hipMalloc((void **)&d, 1024);
    for (int kind = 0; kind < 3; kind++) {
        int x[16][16], y[16][16], bad = 0;
        for (int i = 0; i < 256; i++) { // small integers: every sum is exact
            x[i / 16][i % 16] = (int)(random_u32() % 17) - 8,
                          y[i / 16][i % 16] = (int)(random_u32() % 17) - 8;
            const int v = x[i / 16][i % 16], w = y[i / 16][i % 16];
            if (kind == 0) ((_Float16 *)a)[i] = (_Float16)v, ((_Float16 *)b)[i] = (_Float16)w;
            if (kind == 1)
                ((u16 *)a)[i] = (u16)(bits((f32)v) >> 16), ((u16 *)b)[i] = (u16)(bits((f32)w) >> 16);
            if (kind == 2) ((int8_t *)a)[i] = (int8_t)v, ((int8_t *)b)[i % 16 * 16 + i / 16] = (int8_t)w;
        }
        const int r = launch(module_proof, names[kind], 1, 32, d, a, b);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                int s = 0;
                for (int k = 0; k < 16; k++) s += x[i][k] * y[k][j];
                bad += kind == 2 ? ((i32 *)d)[i * 16 + j] != s : d[i * 16 + j] != (f32)s;
            }
        result(!r && !bad, names[kind], "an element differs");
    }
    result(launch(module_proof, "m_torn", 1, 32, d, a, b) == 719,
           "m_torn: lanes 16-31 that do not repeat 0-15 are a fault", "");
    device_error = 0;
    hipFree(a), hipFree(b), hipFree(d);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static void fault(const char *kernel, unsigned threads, int code, const char *words) {
    char line[2000] = "", detail[300], name[200];
    snprintf(emu_cfg.log, sizeof emu_cfg.log, "/tmp/test-emu-%d.log", (int)getpid());
    remove(emu_cfg.log);
    const int r = launch(module_proof, kernel, 1, threads, out, in, NULL);
    FILE *f = fopen(emu_cfg.log, "r");
    if (f) {
        line[fread(line, 1, sizeof line - 1, f)] = 0;
        fclose(f);
        remove(emu_cfg.log);
    }
    emu_cfg.log[0] = 0;
    snprintf(detail, sizeof detail, "returned %d: %.200s", r, line);
    snprintf(name, sizeof name, "%s: %s", kernel, code ? words : "no fault");
    const bool stays = !code || hipStreamSynchronize(stream) == code;
    result(r == code && (!code || (strstr(line, words) && strstr(line, kernel))) && stays, name, detail);
    device_error = 0;
}
static void faults(void) {
    fault("f_beyond", 32, 700, "where no memory is allocated");
    fault("f_null", 32, 700, "where no memory is allocated");
    fault("f_unknown", 32, 719, "s_sethalt 1");
    fault("f_early", 32, 719, "before its load has been waited for");
    fault("f_early_scalar", 32, 719, "before its load has been waited for");
    fault("f_in_order", 32, 0, "");
    fault("f_barrier", 32, 719, "have not been waited for");
    fault("f_lds_room", 32, 700, "the workgroup has 256");
    fault("f_race", 64, 719, "since the last barrier");
}

/* ---- memory and the calls ---------------------------------------------------------------------------------------- */

static void memory(void) {
    u32 *count, want[16] = {0}, *data;
    hipMalloc((void **)&count, 64), hipMalloc((void **)&data, 8192 * 4);
    hipMemsetAsync(count, 0, 64, stream);
    hipStreamSynchronize(stream);
    for (int i = 0; i < 8192; i++) data[i] = random_u32(), want[data[i] & 15]++;
    const int r = launch(module_proof, "a_histogram", 64, 128, count, data, NULL);
    result(!r && !memcmp(count, want, 64), "a_histogram: atomics of 64 workgroups", "the counts differ");
    bool same = !launch(module_proof, "a_scratch", SETS, 32, out, in, NULL);
    for (u32 k = 0; k < SETS * 32; k++) {
        const u32 *set = in + k / 32 * 96 + k % 32;
        same &= out[k] == (u32)(set[0] + (set[32] & 63) + set[64]);
    }
    result(same, "a_scratch: an array in scratch memory", "an element differs");
    hipFree(count), hipFree(data);
}
static void runtime(void) {
    void *event, *graph, *exec;
    u8 *dev, *host;
    hipMalloc((void **)&dev, 1 << 24), hipHostMalloc((void **)&host, 1 << 24, 0);
    hipEventCreateWithFlags(&event, 0);
    memset(host, 7, 1 << 24);
    for (int i = 0; i < 40; i++) hipMemsetAsync(dev, i, 1 << 24, stream);
    hipMemcpyAsync(dev, host, 1 << 24, 1, stream);
    hipEventRecord(event, stream);
    const int early = hipEventQuery(event);
    int r = 600;
    for (int i = 0; r == 600 && i < 100000; i++) r = hipEventQuery(event), usleep(100);
    result(early == 600 && r == 0 && dev[12345] == 7,
           "events: not ready while copies run, then done without a wait", "");
    hipStreamBeginCapture(stream, 2);
    hipMemsetAsync(dev, 9, 64, stream);
    hipStreamEndCapture(stream, &graph);
    hipStreamSynchronize(stream);
    const bool untouched = dev[0] == 7;
    hipGraphInstantiate(&exec, graph, NULL, NULL, 0);
    hipGraphDestroy(graph);
    hipGraphLaunch(exec, stream);
    hipGraphExecDestroy(exec);
    hipStreamSynchronize(stream);
    result(untouched && dev[0] == 9,
           "graphs: recorded, not run; run when launched, also if destroyed meanwhile", "");
    result(hipMemcpyAsync(dev, host, (1 << 24) + 1, 1, stream) == 1,
           "a copy beyond its allocation is an invalid value", "");
    hipEventDestroy(event), hipFree(dev), hipHostFree(host);
}

/* ---- the same functions on the host ---------------------------------------------------------------------------------- */

#define FUNCTION(name) static u64 name(u32 a, u32 b, u32 c)
#define IS_HOST 1
#include "random.h"
static void twins(const char *path) {
    static u64 (*const functions[])(u32, u32, u32) = {RANDOM_FUNCTIONS};
    void *image = read_file(path), *module = NULL;
    int bad = 0, r = image ? hipModuleLoadData(&module, image) : -1;
    char detail[300] = "", name[32];
    for (size_t f = 0; !r && f < sizeof functions / sizeof *functions; f++) {
        snprintf(name, sizeof name, "k%zu", f);
        r = launch(module, name, SETS, 32, out, in, NULL);
        for (u32 k = 0; !r && k < SETS * 32; k++) {
            const u32 *set = in + k / 32 * 96 + k % 32;
            const u64 want = functions[f](set[0], set[32], set[64]);
            if (out[k] == want) continue;
            if (!bad++)
                snprintf(detail, sizeof detail, "function %zu of a %08x b %08x c %08x gives %llx, not %llx",
                         f, set[0], set[32], set[64], (unsigned long long)out[k], (unsigned long long)want);
            break;
        }
    }
    if (r)
        snprintf(detail, sizeof detail, "%s: %d", name, r);
    else if (bad)
        printf("# %d functions differ\n", bad);
    snprintf(name, sizeof name, "%zu random functions", sizeof functions / sizeof *functions);
    result(!r && !bad, name, detail);
    device_error = 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: test-emu PROOF.image RANDOM.image...\n"), 2;
    setenv("EMU_RACES", "1", 1);
    void *image = read_file(argv[1]);
    if (hipInit(0) || !image || hipStreamCreateWithFlags(&stream, 1) ||
        hipModuleLoadData(&module_proof, image))
        return fprintf(stderr, "test-emu: %s cannot be loaded\n", argv[1]), 1;
    hipMalloc((void **)&in, N * 4), hipMalloc((void **)&out, SETS * 32 * 8);
    fill_inputs();
    instructions();
    matrices();
    memory();
    faults();
    runtime();
    for (int i = 2; i < argc; i++) twins(argv[i]);
    printf("1..%d\n", n_test);
    return n_bad != 0;
}
