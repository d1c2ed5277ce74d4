/* matmul.c - how fast the CPU's matrix products are, against what this machine can read.
 *
 *   bench-matmul [threads=0] [isa,isa,...|all] [kind filter] [seconds per row=0.2]
 *
 * One line a case: the best of many short runs (the machine may be shared), the weights' bytes per second for few rows,
 * and multiply-adds per second for many. Copies of the weights are rotated so that each run finds them in memory, not in
 * a cache: 4 times the last-level cache in all, at most 1 GiB. The first lines measure the bandwidth of plain reads, by
 * the same threads. */
#include "backend/cpu/cpu.h"
#include "quant/quant.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *name;
    mx_quant kind;
    int bits, group;
    mx_dtype type;
} format;

static const format formats[] = {
    {"f32", MX_QUANT_NONE, 0, 0, MX_F32},           {"f16", MX_QUANT_NONE, 0, 0, MX_F16},
    {"bf16", MX_QUANT_NONE, 0, 0, MX_BF16},         {"q2-g64", MX_QUANT_AFFINE, 2, 64, MX_BF16},
    {"q3-g64", MX_QUANT_AFFINE, 3, 64, MX_BF16},    {"q4-g32", MX_QUANT_AFFINE, 4, 32, MX_BF16},
    {"q4-g64", MX_QUANT_AFFINE, 4, 64, MX_BF16},    {"q4-g128", MX_QUANT_AFFINE, 4, 128, MX_BF16},
    {"q4-g32-f32", MX_QUANT_AFFINE, 4, 32, MX_F32}, {"q5-g64", MX_QUANT_AFFINE, 5, 64, MX_BF16},
    {"q6-g64", MX_QUANT_AFFINE, 6, 64, MX_BF16},    {"q8-g64", MX_QUANT_AFFINE, 8, 64, MX_BF16},
    {"mxfp4", MX_QUANT_MXFP4, 4, 32, MX_BF16},      {"mxfp8", MX_QUANT_MXFP8, 8, 32, MX_BF16},
    {"nvfp4", MX_QUANT_NVFP4, 4, 16, MX_BF16},
};

static clockid_t clock_id =
    CLOCK_MONOTONIC; // one thread: its processor time, which others on the machine disturb less

static double now(void) {
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *big(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

typedef struct {
    const uint64_t *p;
    size_t n;
    uint64_t sink[256];
} reading;

enum { READ_PIECE = 1 << 15 }; // words of a task: 256 KiB

static void read_piece(void *arg, int i, int worker) {
    reading *r = arg;
    const uint64_t *p = r->p + (size_t)i * READ_PIECE;
    uint64_t a[16] = {0};
    for (size_t k = 0; k < READ_PIECE; k += 16) {
        for (int j = 0; j < 16; j++) a[j] ^= p[k + (size_t)j];
    }
    for (int j = 0; j < 16; j++) r->sink[worker] ^= a[j];
}

static double read_bandwidth(mx_pool *pool, size_t bytes) {
    static reading r;
    void *p = big(bytes);
    memset(p, 1, bytes);
    r = (reading){.p = p, .n = bytes / 8 / READ_PIECE};
    double best = 0;
    for (int rep = 0; rep < 7; rep++) {
        double t = now();
        mx_pool_run(pool, read_piece, &r, (int)r.n, 1);
        t = (double)(r.n * READ_PIECE * 8) / (now() - t);
        if (t > best) best = t;
    }
    munmap(p, bytes);
    return best;
}

static uint64_t rng = 1;
static uint32_t rand32(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 32);
}

static void run_case(mx_cpu_dev *d, const format *f, int n_in, int n_out, int n, size_t cache, double seconds,
                     double bw) {
    mx_qmat w = {.kind = f->kind,
                 .bits = f->bits,
                 .group = f->group,
                 .type = f->type,
                 .n_stack = 1,
                 .n_out = n_out,
                 .n_in = n_in};
    size_t size = mx_qmat_bytes(&w), codes = mx_qmat_row_bytes(&w) * (size_t)n_out;
    size_t scales = f->group ? (size_t)n_out * (size_t)(n_in / f->group) * mx_qmat_scale_size(&w) : 0;
    size_t step = (size + 4095) / 4096 * 4096, copies = n > 8 ? 2 : 4 * cache / step + 1;
    if (copies * step > (size_t)1 << 30) copies = ((size_t)1 << 30) / step;
    if (copies < 2) copies = 2;
    char *mem = big(copies * step);
    for (size_t i = 0; i < codes; i += 4) {
        uint32_t v = rand32();
        if (f->kind == MX_QUANT_NONE) { // 1.0 to 2.0 with random bits behind
            v = f->type == MX_F32   ? 0x3F800000u | v >> 12
                : f->type == MX_F16 ? 0x3C003C00u | (v & 0x00FF00FF)
                                    : 0x3F803F80u | (v & 0x003F003F);
        } else if (f->kind == MX_QUANT_MXFP8) {
            v &= 0xBFBFBFBFu;
        }
        memcpy(mem + i, &v, 4);
    }
    for (size_t i = 0; i < size - codes; i++) mem[codes + i] = f->kind == MX_QUANT_AFFINE ? 0x3C : 0x40;
    for (size_t c = 1; c < copies; c++) memcpy(mem + c * step, mem, size);
    float *x = malloc((size_t)n * (size_t)n_in * 4), *y = malloc((size_t)n * (size_t)n_out * 4);
    if (!x || !y) exit(1);
    for (size_t i = 0; i < (size_t)n * (size_t)n_in; i++) x[i] = (float)(int32_t)rand32() * 0x1p-31f;
    double best = 1e9, start = now();
    for (size_t rep = 0; rep < 3 || now() - start < seconds; rep++) {
        w.codes = mem + rep % copies * step;
        w.scales = f->group ? (const char *)w.codes + codes : NULL;
        w.biases = f->kind == MX_QUANT_AFFINE ? (const char *)w.codes + codes + scales : NULL;
        mx_matmul mm = {.y = {MX_F32, n, n_out, n_out, y}, .w = &w};
        mx_mat xm = {MX_F32, n, n_in, n_in, x};
        double t = now();
        if (mx_cpu_matmul(&d->base, &mm, 1, &xm, NULL) != MX_OK) exit(1);
        t = now() - t;
        if (t < best) best = t;
    }
    double rate = (double)size / best, macs = (double)n * n_in * n_out / best;
    printf("%-10s %5d x %-6d n %-4d %-7s %10.1f us %7.1f GB/s %5.0f %% of read %8.1f GMAC/s\n", f->name, n_in,
           n_out, n, d->exact ? "exact" : mx_isa_name(d->isa), best * 1e6, rate / 1e9, 100 * rate / bw,
           macs / 1e9);
    fflush(stdout);
    free(x), free(y);
    munmap(mem, copies * step);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    const char *isas = argc > 2 && strcmp(argv[2], "all") ? argv[2] : NULL, *filter = argc > 3 ? argv[3] : "";
    double seconds = argc > 4 ? atof(argv[4]) : 0.2;
    static const struct { int n_in, n_out; } shapes[] = {{576, 1536}, {2048, 6144}};
    static const int rows[] = {1, 4, 8, 16, 128, 512};
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t cache = l3 > 0 ? (size_t)l3 : (size_t)64 << 20;
    mx_err err;
    mx_pool *pool;
    if (mx_pool_new(&pool, threads, &err) != MX_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    if (mx_pool_size(pool) == 1) clock_id = CLOCK_THREAD_CPUTIME_ID;
    double bw = read_bandwidth(pool, (size_t)1 << 29);
    printf("%d threads, last-level cache %zu MiB, plain reads %.1f GB/s\n", mx_pool_size(pool), cache >> 20,
           bw / 1e9);
    for (int isa = 1; isa <= (int)mx_isa_best() + 1; isa++) {
        bool exact = isa > (int)mx_isa_best(); // the last round: exact, at the best level
        if (isas && !strstr(isas, exact ? "exact" : mx_isa_name((mx_isa)isa))) continue;
        mx_cpu_dev d = {.pool = pool,
                        .n_worker = mx_pool_size(pool),
                        .isa = exact ? mx_isa_best() : (mx_isa)isa,
                        .exact = exact};
        mx_cpu_matmul_init(&d);
        for (size_t i = 0; i < countof(formats); i++) {
            if (*filter && !strstr(formats[i].name, filter)) continue;
            for (size_t s = 0; s < countof(shapes); s++) {
                for (size_t r = 0; r < countof(rows); r++) {
                    run_case(&d, &formats[i], shapes[s].n_in, shapes[s].n_out, rows[r], cache, seconds, bw);
                }
            }
        }
        mx_cpu_matmul_done(&d);
    }
    mx_pool_free(pool);
    return 0;
}
