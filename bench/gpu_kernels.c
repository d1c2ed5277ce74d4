/* gpu_kernels.c - how fast single matrix products run on a GPU, against what it can copy.
 *
 *   bench-gpu-kernels [device=cuda] [kind filter] [rows,rows,...]
 *
 * One line a case: time of a product, bytes of weights a second, and that as a fraction of the bandwidth (read and written) of a
 * plain copy in the same run. Each product of a recorded list of launches reads another copy of the weights, 512 MiB or more in
 * all, so that no cache helps; a figure above 100 % says that one did, and voids the run (exit status 1). */
#include "backend/gpu/gpu.h"
#include "backend/ports.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *name;
    mx_quant kind;
    int bits, group;
    mx_dtype type;
} format;

static const format formats[] = {
    {"f32", MX_QUANT_NONE, 0, 0, MX_F32},        {"f16", MX_QUANT_NONE, 0, 0, MX_F16},
    {"bf16", MX_QUANT_NONE, 0, 0, MX_BF16},      {"q2-g64", MX_QUANT_AFFINE, 2, 64, MX_BF16},
    {"q3-g64", MX_QUANT_AFFINE, 3, 64, MX_BF16}, {"q4-g32", MX_QUANT_AFFINE, 4, 32, MX_BF16},
    {"q4-g64", MX_QUANT_AFFINE, 4, 64, MX_BF16}, {"q5-g64", MX_QUANT_AFFINE, 5, 64, MX_BF16},
    {"q6-g64", MX_QUANT_AFFINE, 6, 64, MX_BF16}, {"q8-g64", MX_QUANT_AFFINE, 8, 64, MX_BF16},
    {"mxfp4", MX_QUANT_MXFP4, 4, 32, MX_BF16},   {"mxfp8", MX_QUANT_MXFP8, 8, 32, MX_BF16},
    {"nvfp4", MX_QUANT_NVFP4, 4, 16, MX_BF16},
};

typedef struct {
    int n_out, n_in;
    bool glu; // two such matrices, gate and up
} shape;
static const shape shapes[] = {{8192, 8192, false}, {14336, 4096, false},  {4096, 14336, false},
                               {4096, 4096, false}, {128256, 4096, false}, {14336, 4096, true},
                               {1024, 3072, false}, {3072, 1024, true}};

enum { MOST_ROWS = 16, MOST_COPIES = 4096 };
static const size_t ARENA = (size_t)640 << 20, ROTATE = (size_t)512 << 20, LIST = (size_t)2 << 30;

static void ok(mx_status st, const mx_err *err) {
    if (st == MX_OK) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct { // one list of launches
    mx_dev *dev;
    mx_mat x, y;
    mx_qmat w[2];
    bool glu, copy;
    char *arena;
    size_t step; // bytes of a copy of the weights
    int copies, n;
    uint64_t key; // differs for every list
} list;

static mx_status queue(void *arg, mx_err *err) {
    list *l = arg;
    for (int i = 0; i < l->n; i++) {
        if (l->copy) {
            mx_gpu_dev *d = (mx_gpu_dev *)l->dev;
            char *from = l->arena, *to = l->arena + ARENA / 2;
            uint64_t n = ARENA / 2 / 16;
            MX_TRY(LAUNCH(d, "copy", "copy", d->info.compute_units * 8, 1, 1, 256, &to, &from, &n));
            continue;
        }
        mx_matmul mm[2];
        char *at = l->arena + (size_t)(i % l->copies) * l->step;
        for (int k = 0; k <= l->glu; k++) {
            mx_qmat *w = &l->w[k];
            const size_t codes = mx_qmat_row_bytes(w) * (size_t)w->n_out;
            const size_t scales =
                w->group ? mx_qmat_scale_size(w) * (size_t)(w->n_in / w->group) * (size_t)w->n_out : 0;
            w->codes = at, w->scales = at + codes, w->biases = at + codes + scales;
            at += l->step / 2;
            mm[k] = (mx_matmul){.y = l->y, .w = w};
        }
        if (l->glu) {
            const mx_product p = {.mm = mm, .n_mm = 2, .x = l->x, .glu = true};
            MX_TRY(mx_port_run(l->dev, MX_PORT_PRODUCT, &p, err));
        } else {
            MX_TRY(l->dev->be->matmul(l->dev, mm, 1, &l->x, err));
        }
    }
    return MX_OK;
}

/* Seconds of one launch of the list: the best of some replays. */
static double run(list *l) {
    mx_err err = {0};
    double best = 1e9;
    l->key++;
    for (int i = 0; i < 7; i++) { // the first queues, the second records
        double t = now();
        ok(l->dev->be->replay(l->dev, l->key, queue, l, &err), &err);
        ok(l->dev->be->wait(l->dev, &err), &err);
        t = now() - t;
        if (i > 1 && t < best) best = t;
    }
    return best / l->n;
}

static bool wanted(const char *rows, int n) {
    for (const char *p = rows; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (atoi(p) == n) return true;
    return !rows;
}

int main(int argc, char **argv) {
    const char *filter = argc > 2 && strcmp(argv[2], "all") ? argv[2] : "", *rows = argc > 3 ? argv[3] : NULL;
    static const int counts[] = {1, 2, 4, 8, 16};
    mx_err err = {0};
    mx_buf arena, x, y;
    list l = {0};
    ok(mx_dev_open(&l.dev, argc > 1 ? argv[1] : "cuda", &(mx_dev_options){0}, &err), &err);
    if (!l.dev->be->replay) {
        fprintf(stderr, "%s is no GPU\n", l.dev->name);
        return 1;
    }
    ok(mx_buf_new(&arena, l.dev, ARENA, "weights", &err), &err);
    ok(mx_buf_new(&x, l.dev, (size_t)MOST_ROWS * 16384 * 4, "x", &err), &err);
    ok(mx_buf_new(&y, l.dev, (size_t)MOST_ROWS * 131072 * 4, "y", &err), &err);
    l.arena = arena.p;
    enum { PIECE = 16 << 20 };
    uint16_t *noise = malloc(PIECE);
    if (!noise) return 1;
    uint32_t r = 1;
    for (size_t i = 0; i < PIECE / 2; i++)
        noise[i] = (uint16_t)((r = r * 1664525 + 1013904223) >> 16 & 0xBFBF);
    for (size_t at = 0; at < ARENA; at += PIECE)
        ok(l.dev->be->upload(l.dev, l.arena + at, noise, PIECE, &err), &err);
    for (size_t at = 0; at < x.bytes; at += PIECE)
        ok(l.dev->be->upload(l.dev, (char *)x.p + at, noise, x.bytes - at < PIECE ? x.bytes - at : PIECE,
                             &err),
           &err);
    l.copy = true, l.n = 10;
    double copied = (double)ARENA / run(&l);
    printf("%s: copy %.0f GB/s\n", l.dev->name, copied * 1e-9);
    l.copy = false;
    bool void_run = false;
    for (size_t f = 0; f < countof(formats); f++) {
        if (!strstr(formats[f].name, filter)) continue;
        for (size_t s = 0; s < countof(shapes); s++) {
            for (size_t c = 0; c < countof(counts); c++) {
                const format *t = &formats[f];
                const int n = counts[c];
                if (!wanted(rows, n) || (shapes[s].glu && n > 8)) continue;
                l.glu = shapes[s].glu;
                l.w[0] = l.w[1] = (mx_qmat){.kind = t->kind,
                                            .bits = t->bits,
                                            .group = t->group,
                                            .type = t->type,
                                            .n_stack = 1,
                                            .n_out = shapes[s].n_out,
                                            .n_in = shapes[s].n_in};
                const size_t bytes = mx_qmat_bytes(&l.w[0]) * (l.glu ? 2 : 1),
                             step = (bytes + 511) / 512 * 512;
                if (step * 2 > ARENA) continue;
                l.step = step;
                l.copies = (int)(ROTATE / step + 1);
                if ((size_t)l.copies * step > ARENA) l.copies = (int)(ARENA / step);
                l.n = (int)(LIST / step);
                if (l.n > 500) l.n = 500;
                l.n = (l.n + l.copies - 1) / l.copies * l.copies;
                l.x = (mx_mat){MX_F32, n, shapes[s].n_in, shapes[s].n_in, x.p};
                l.y = (mx_mat){MX_F32, n, shapes[s].n_out, shapes[s].n_out, y.p};
                const double took = run(&l), speed = (double)bytes / took;
                const bool more = speed > copied;
                printf("%-7s %6d x %-5d%s rows %-2d %9.2f us %7.0f GB/s %5.1f %% of copy%s\n", t->name,
                       shapes[s].n_out, shapes[s].n_in, l.glu ? " glu" : "    ", n, took * 1e6, speed * 1e-9,
                       100 * speed / copied, more ? " - void: a cache helped" : "");
                fflush(stdout);
                void_run |= more;
            }
        }
    }
    free(noise);
    mx_buf_free(&arena), mx_buf_free(&x), mx_buf_free(&y);
    mx_dev_close(l.dev);
    return void_run;
}
