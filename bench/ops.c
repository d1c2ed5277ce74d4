/* ops.c - how fast attention and the small ops run: the fraction of memory speed (decode) and of arithmetic
 * (prefill).
 *
 * bench-ops [THREADS [ISA]]. Decode reads keys and values once, so its yardstick is a plain read of as many
 * bytes by as many threads; prefill does 4 operations for each (query, key, value of the head), and its
 * yardstick is a loop of independent multiply-adds in registers. Each figure is the fastest of a few runs. */
#include "backend/ops.h"
#include "base/threads.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool alone; // one thread: its own time, which others on the machine do not stretch

static double now(void) {
    struct timespec t;
    clock_gettime(alone ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *need(void *p) {
    if (!p) abort();
    return p;
}

static float *numbers(size_t n) {
    float *f = need(malloc(n * sizeof *f));
    uint32_t r = 1;
    for (size_t i = 0; i < n; i++) f[i] = (float)((r = r * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
    return f;
}

typedef struct { // sums of `bytes` in pieces: the speed of reading
    const uint64_t *p;
    size_t per;
    uint64_t sink[64];
} reading;
static void read_piece(void *arg, int i, int worker) {
    reading *r = arg;
    uint64_t s[8] = {0};
    const uint64_t *p = r->p + (size_t)i * r->per;
    for (size_t k = 0; k < r->per; k += 8)
        for (int e = 0; e < 8; e++) s[e] += p[k + (size_t)e];
    for (int e = 0; e < 8; e++) r->sink[worker] += s[e];
}

static double read_speed(mx_pool *pool, const void *p, size_t bytes) {
    reading r = {.p = p, .per = bytes / 8 / 64 / 8 * 8};
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = now();
        mx_pool_run(pool, read_piece, &r, 64, 1);
        t = now() - t;
        best = t < best ? t : best;
    }
    return (double)bytes / best * (r.sink[0] == 42 ? 1.0000001 : 1);
}

typedef struct {
    int n_head, n_kv, hd, kv_len, n_q;
} shape;

static void attention(mx_dev *dev, mx_pool *pool, shape s) {
    enum { BLOCK = 64 };
    mx_err err;
    const int n_block = (s.kv_len + BLOCK - 1) / BLOCK;
    const size_t values = (size_t)n_block * BLOCK * (size_t)s.n_kv * (size_t)s.hd;
    float *f = numbers(values), *q = numbers((size_t)s.n_q * (size_t)s.n_head * (size_t)s.hd);
    float *out = need(malloc((size_t)s.n_q * (size_t)s.n_head * (size_t)s.hd * sizeof *out));
    mx_kv kv = {.type = MX_BF16, .n_kv = s.n_kv, .hd = s.hd};
    mx_buf buf;
    if (mx_buf_new(&buf, dev, values * 4, "the cache", &err) != MX_OK)
        exit((fprintf(stderr, "%s\n", err.msg), 1));
    char *pool_kv = buf.p;
    kv.k = pool_kv, kv.v = pool_kv + values * 2;
    mx_from_f32(kv.k, MX_BF16, f, values);
    mx_from_f32(kv.v, MX_BF16, f, values);
    int32_t *table = need(malloc((size_t)n_block * sizeof *table)),
            *pos = need(malloc((size_t)s.n_q * sizeof *pos));
    int32_t *seq = need(calloc((size_t)s.n_q, sizeof *seq)), start[2] = {0, s.n_q}, len = s.kv_len;
    for (int i = 0; i < n_block; i++) table[i] = (int32_t)((int64_t)i * 7919 % n_block);
    for (int i = 0; i < s.n_q; i++) pos[i] = s.kv_len - s.n_q + i;
    mx_batch b = {.n_tok = s.n_q, .n_seq = 1, .block_stride = n_block, .block = BLOCK, .max_kv_len = len};
    b.max_q_len = s.n_q, b.pos = pos, b.seq = seq, b.seq_start = start, b.kv_len = &len, b.blocks[0] = table;
    mx_attention a = {
        .n_head = s.n_head, .n_kv = s.n_kv, .hd = s.hd, .scale = 1 / sqrtf((float)s.hd), .kv = kv};
    a.q = (mx_mat){MX_F32, s.n_q, s.n_head * s.hd, s.n_head * s.hd, q};
    a.out = a.q, a.out.p = out;
    double best = 1e9, spent = 0;
    for (int i = 0; i < 200 && (spent < 0.3 || i < 2); i++) {
        double t = now();
        if (mx_op_attention(dev, &a, &b, &err) != MX_OK) exit((fprintf(stderr, "%s\n", err.msg), 1));
        t = now() - t;
        spent += t;
        best = t < best ? t : best;
    }
    double bytes = (double)values * 4, ops = 0;
    for (int i = 0; i < s.n_q; i++) ops += 4.0 * (pos[i] + 1) * s.n_head * s.hd;
    printf(
        "attention %2d/%d heads of %3d, %5d keys, %3d queries: %9.1f us  %6.2f GB/s (read %.2f)  %7.1f GFLOP/s\n",
        s.n_head, s.n_kv, s.hd, s.kv_len, s.n_q, best * 1e6, bytes / best * 1e-9,
        read_speed(pool, pool_kv, values * 4) * 1e-9, ops / best * 1e-9);
    free(f), free(q), free(out), free(table), free(pos), free(seq);
    mx_buf_free(&buf);
}

static double small(mx_dev *dev, int which, int n, int d) {
    mx_err err;
    float *x = numbers((size_t)n * (size_t)d), *y = numbers((size_t)n * (size_t)d), *w = numbers((size_t)d);
    mx_mat xm = {MX_F32, n, d, d, x}, ym = {MX_F32, n, d, d, y};
    double best = 1e9;
    for (int i = 0; i < 200; i++) {
        double t = now();
        mx_status st = which == 0   ? mx_op_rms_norm(dev, &ym, &xm, NULL, w, 1e-6f, &err)
                       : which == 1 ? mx_op_glu(dev, &ym, &xm, &xm, MX_ACT_SILU, &err)
                                    : mx_op_add(dev, &ym, &xm, 0, &err);
        if (st != MX_OK) exit((fprintf(stderr, "%s\n", err.msg), 1));
        t = now() - t;
        best = t < best ? t : best;
    }
    free(x), free(y), free(w);
    return best;
}

static void delta(mx_dev *dev, int n) {
    enum { NK = 16, NV = 16, D = 128 };
    mx_err err;
    float *q = numbers((size_t)n * NV * D), *out = numbers((size_t)n * NV * D), *g = numbers((size_t)n * NV);
    float *state = numbers((size_t)NV * D * D);
    int32_t *pos = need(calloc((size_t)n, sizeof *pos)), start[2] = {0, n};
    mx_batch b = {
        .n_tok = n, .n_seq = 1, .max_q_len = n, .pos = pos, .seq = pos, .seq_start = start, .slot = pos};
    mx_mat m = {MX_F32, n, NV * D, NV * D, q}, gm = {MX_F32, n, NV, NV, g};
    mx_delta_rule r = {
        .q = m, .k = m, .v = m, .a = gm, .b = gm, .a_log = g, .dt_bias = g, .n_k = NK, .n_v = NV};
    r.dk = r.dv = D, r.out = m, r.out.p = out, r.state = state;
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double t = now();
        if (mx_op_delta_rule(dev, &r, &b, &err) != MX_OK) exit((fprintf(stderr, "%s\n", err.msg), 1));
        t = now() - t;
        best = t < best ? t : best;
    }
    printf("delta rule, 16 heads of 128 x 128, %3d tokens: %9.1f us, %.1f us a token\n", n, best * 1e6,
           best * 1e6 / n);
    free(q), free(out), free(g), free(state), free(pos);
}

static void append(mx_dev *dev, int n) {
    enum { NH = 9, NK = 3, HD = 64, BLOCK = 64 };
    mx_err err;
    float *q = numbers((size_t)n * NH * HD), *k = numbers((size_t)n * NK * HD), *cs = numbers((size_t)n * HD);
    float *pool = numbers((size_t)(n + BLOCK) * NK * HD * 2);
    int32_t *pos = need(malloc((size_t)n * sizeof *pos)), *zero = need(calloc((size_t)n, sizeof *zero));
    int32_t table[64], start[2] = {0, n};
    for (int i = 0; i < n; i++) pos[i] = i;
    for (int i = 0; i < 64; i++) table[i] = i;
    mx_batch b = {
        .n_tok = n, .n_seq = 1, .block_stride = 64, .block = BLOCK, .max_kv_len = n, .max_q_len = n};
    b.pos = pos, b.seq = zero, b.seq_start = start, b.kv_len = start + 1, b.blocks[0] = table;
    mx_rope_append a = {.n_head = NH, .n_kv = NK, .hd = HD, .n_rot = HD, .cos_sin = cs};
    a.kv = (mx_kv){MX_BF16, NK, HD, 0, pool, pool + (size_t)(n + BLOCK) * NK * HD};
    a.q = (mx_mat){MX_F32, n, NH * HD, NH * HD, q};
    a.k = a.v = (mx_mat){MX_F32, n, NK * HD, NK * HD, k};
    double best[2] = {1e9, 1e9};
    for (int i = 0; i < 100; i++) {
        double t = now();
        if (mx_op_rope_append(dev, &a, &b, &err) != MX_OK) exit((fprintf(stderr, "%s\n", err.msg), 1));
        double u = now();
        if (mx_op_rope_table(dev, cs, pool, HD, 1, &b, &err) != MX_OK)
            exit((fprintf(stderr, "%s\n", err.msg), 1));
        double v = now();
        best[0] = u - t < best[0] ? u - t : best[0];
        best[1] = v - u < best[1] ? v - u : best[1];
    }
    printf("%3d tokens, 9 + 3 + 3 heads of 64: rope_append %.2f us, rope_table %.2f us\n", n, best[0] * 1e6,
           best[1] * 1e6);
    free(q), free(k), free(cs), free(pool), free(pos), free(zero);
}

int main(int argc, char **argv) {
    mx_dev *dev;
    mx_pool *pool;
    mx_err err;
    mx_dev_options opt = {.threads = argc > 1 ? atoi(argv[1]) : 0, .isa = argc > 2 ? argv[2] : NULL};
    if (mx_dev_open(&dev, "cpu", &opt, &err) != MX_OK || mx_pool_new(&pool, opt.threads, &err) != MX_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    alone = mx_pool_size(pool) == 1;
    printf("%s\n", dev->name);
    const int lengths[] = {512, 4096, 32768};
    for (int i = 0; i < 3; i++) {
        attention(dev, pool, (shape){9, 3, 64, lengths[i], 1});
        attention(dev, pool, (shape){16, 8, 128, lengths[i], 1});
        attention(dev, pool, (shape){32, 8, 128, lengths[i], 1});
        attention(dev, pool, (shape){9, 3, 64, lengths[i], lengths[i] < 4096 ? 512 : 128});
        attention(dev, pool, (shape){16, 8, 128, lengths[i], lengths[i] < 4096 ? 512 : 128});
    }
    append(dev, 1);
    append(dev, 512);
    delta(dev, 1);
    delta(dev, 256);
    for (int n = 1; n <= 512; n *= 512)
        printf(
            "%3d rows: rms_norm of 576 %.2f us, of 2048 %.2f us; glu of 1536 %.2f us, of 6144 %.2f us; add of 2048 %.2f us\n",
            n, small(dev, 0, n, 576) * 1e6, small(dev, 0, n, 2048) * 1e6, small(dev, 1, n, 1536) * 1e6,
            small(dev, 1, n, 6144) * 1e6, small(dev, 2, n, 2048) * 1e6);
    mx_pool_free(pool);
    mx_dev_close(dev);
    return 0;
}
