/* gpu.c - a GPU as a device: opening, kernels by name, memory, waiting. What differs by runtime is in driver.h's table. */
#include "backend/gpu/gpu.h"
#include "backend/gpu/ops_math.h"
#include "backend/ports.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* The architecture among those built that runs on this device: its own; for AMD a generic one of its generation; for NVIDIA the newest
 * that is not newer (PTX runs on what comes after it; where its name ends in a letter, on that one alone). */
static mx_status choose_arch(mx_gpu_dev *d, mx_err *err) {
    char built[256] = "";
    int best = -1, own = atoi(d->info.arch + 3);
    for (int i = 0; i < mx_gpu_n_image; i++) {
        const char *a = mx_gpu_images[i].arch;
        if (!strstr(built, a))
            snprintf(built + strlen(built), sizeof built - strlen(built), "%s%s", *built ? ", " : "", a);
        bool fits = !strcmp(a, d->info.arch);
        if (!strncmp(a, "sm_", 3)) {
            int v = atoi(a + 3);
            bool only = a[strspn(a + 3, "0123456789") + 3] != 0; // sm_90a: for sm_90 and for nothing else
            fits = (only ? v == own : v <= own) && 2 * v + only > best;
            if (fits) best = 2 * v + only;
        }
        if (!strcmp(a, "gfx11-generic")) fits |= !strncmp(d->info.arch, "gfx11", 5) && !*d->arch;
        if (fits) snprintf(d->arch, sizeof d->arch, "%s", a);
    }
    if (*d->arch) return MX_OK;
    return mx_fail(err, MX_UNSUPPORTED, "this build has no kernels for %s (%s); it has those for %s",
                   d->info.arch, d->info.name, built);
}

static mx_status load_file(mx_gpu_dev *d, const char *file, mx_gpu_module **out, mx_err *err) {
    for (int i = 0; i < d->n_file; i++) {
        if (!strcmp(d->files[i].file, file)) {
            *out = d->files[i].module;
            return MX_OK;
        }
    }
    for (int i = 0; i < mx_gpu_n_image; i++) {
        const mx_gpu_image *m = &mx_gpu_images[i];
        if (strcmp(m->file, file) || strcmp(m->arch, d->arch)) continue;
        if (d->n_file == MX_GPU_FILES) break;
        MX_TRY(d->drv->load(d->g, out, m->data, m->size, file, err));
        d->files[d->n_file].file = m->file;
        d->files[d->n_file++].module = *out;
        return MX_OK;
    }
    return mx_fail(err, MX_EINTERNAL, "this build has no kernels of %s for %s", file, d->arch);
}

static mx_status find_func(mx_gpu_dev *d, const char *file, const char *name, mx_gpu_func **out,
                           mx_err *err) {
    uint32_t h = 2166136261u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    for (uint32_t i = 0; i < MX_GPU_FUNCS; i++) {
        uint32_t at = (h + i) % MX_GPU_FUNCS;
        if (d->funcs[at].name && !strcmp(d->funcs[at].name, name)) {
            *out = d->funcs[at].func;
            return MX_OK;
        }
        if (d->funcs[at].name) continue;
        mx_gpu_module *m;
        MX_TRY(load_file(d, file, &m, err));
        MX_TRY(d->drv->find(d->g, out, m, name, err));
        d->funcs[at].name = strdup(name);
        if (!d->funcs[at].name) return mx_fail(err, MX_ENOMEM, "no memory for a kernel's name");
        d->funcs[at].func = *out;
        return MX_OK;
    }
    return mx_fail(err, MX_EINTERNAL, "more than %d kernels", MX_GPU_FUNCS);
}

static mx_status alive(const mx_gpu_dev *d, mx_err *err) {
    return d->lost ? mx_fail(err, MX_EINTERNAL, "%s was lost after a fault; start again", d->base.name)
                   : MX_OK;
}

/* A device that has failed once is not used again: what its memory holds is unknown. */
static mx_status note(mx_gpu_dev *d, mx_status st) {
    if (st == MX_EINTERNAL) d->lost = true;
    return st;
}

mx_status mx_gpu_launch(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y, uint32_t z,
                        uint32_t threads, void **args, mx_err *err) {
    return mx_gpu_launch_shared(d, file, name, x, y, z, threads, 0, args, err);
}

mx_status mx_gpu_launch_shared(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y,
                               uint32_t z, uint32_t threads, uint32_t shared, void **args, mx_err *err) {
    mx_gpu_func *f;
    const uint32_t grid[3] = {x, y, z};
    if (!x || !y || !z) return MX_OK;
    MX_TRY(alive(d, err));
    MX_TRY(find_func(d, file, name, &f, err));
    return note(d, d->drv->launch(d->g, f, grid, threads, shared, args, name, err));
}

/* ---- waiting and memory --------------------------------------------------------------------------------- */

/* Polls, so that a hang of the device is not a hang of ours. */
static mx_status wait_for(mx_gpu_dev *d, mx_gpu_event *e, mx_err *err) {
    double start = now();
    for (int i = 0;; i++) {
        bool done = false;
        MX_TRY(note(d, d->drv->event_done(d->g, e, &done, err)));
        if (done) return MX_OK;
        if (i < 20000) continue; // some milliseconds of looking, then sleep between looks
        if (now() - start > d->timeout) {
            d->lost = true;
            return mx_fail(err, MX_EINTERNAL, "%s did not finish a step within %.0f seconds", d->base.name,
                           d->timeout);
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

mx_status mx_gpu_wait(mx_dev *dev, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(alive(d, err));
    MX_TRY(note(d, d->drv->event_record(d->g, d->done, err)));
    return wait_for(d, d->done, err);
}

static mx_status gpu_alloc(mx_dev *dev, void **p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(alive(d, err));
    bytes = bytes ? bytes : 1;
    mx_status st = d->drv->alloc(d->g, p, bytes, err);
    if (st != MX_OK) return st;
    st = d->drv->fill(d->g, *p, 0, bytes, err);
    if (st != MX_OK) d->drv->release(d->g, *p);
    return st;
}

static void gpu_release(mx_dev *dev, void *p, size_t bytes) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    (void)bytes;
    d->drv->release(d->g, p);
}

/* Two pinned buffers take turns: one is filled while the other is on its way. */
static mx_status gpu_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(alive(d, err));
    for (size_t at = 0; at < bytes; at += MX_GPU_STAGE) {
        size_t n = bytes - at < MX_GPU_STAGE ? bytes - at : MX_GPU_STAGE;
        int s = d->next_stage;
        d->next_stage = !s;
        if (d->stage_used[s]) MX_TRY(wait_for(d, d->stage_free[s], err));
        memcpy(d->stage[s], (const char *)host + at, n);
        MX_TRY(note(d, d->drv->copy_in(d->g, (char *)p + at, d->stage[s], n, err)));
        MX_TRY(note(d, d->drv->event_record(d->g, d->stage_free[s], err)));
        d->stage_used[s] = true;
    }
    return MX_OK;
}

static mx_status gpu_download(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(alive(d, err));
    for (size_t at = 0; at < bytes; at += MX_GPU_STAGE) {
        size_t n = bytes - at < MX_GPU_STAGE ? bytes - at : MX_GPU_STAGE;
        if (d->stage_used[0]) MX_TRY(wait_for(d, d->stage_free[0], err));
        MX_TRY(note(d, d->drv->copy_out(d->g, d->stage[0], (const char *)p + at, n, err)));
        MX_TRY(mx_gpu_wait(dev, err));
        memcpy((char *)host + at, d->stage[0], n);
    }
    return MX_OK;
}

static mx_status gpu_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(alive(d, err));
    return note(d, d->drv->fill(d->g, p, 0, bytes, err));
}

/* ---- recordings ---------------------------------------------------------------------------------------- */

static void forget_graphs(mx_gpu_dev *d) {
    for (int i = 0; i < MX_GPU_GRAPHS; i++) {
        d->drv->graph_free(d->g, d->graphs[i].graph);
        d->graphs[i].graph = NULL;
        d->graphs[i].key = 0;
        d->graphs[i].used = 0;
    }
}

/* The first time a key comes, its launches run one by one, so that kernels are loaded and scratch memory has its size. The
 * second time they are recorded, and from then on one call queues them all. */
static mx_status gpu_replay(mx_dev *dev, uint64_t key, mx_status (*queue)(void *arg, mx_err *err), void *arg,
                            mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    int at = 0;
    MX_TRY(alive(d, err));
    for (int i = 0; i < MX_GPU_GRAPHS; i++) {
        if (d->graphs[i].used && d->graphs[i].key == key) {
            at = i;
            break;
        }
        if (d->graphs[i].used < d->graphs[at].used) at = i;
    }
    bool known = d->graphs[at].used && d->graphs[at].key == key;
    d->n_replay++;
    if (known && d->graphs[at].graph) {
        d->graphs[at].used = d->n_replay;
        return note(d, d->drv->graph_launch(d->g, d->graphs[at].graph, err));
    }
    if (!known) {
        mx_status st = queue(arg, err);
        if (st != MX_OK) return st;
        d->drv->graph_free(d->g, d->graphs[at].graph);
        d->graphs[at].graph = NULL;
        d->graphs[at].key = key;
        d->graphs[at].used = d->n_replay;
        return MX_OK;
    }
    mx_gpu_graph *graph = NULL;
    MX_TRY(note(d, d->drv->graph_begin(d->g, err)));
    mx_status st = queue(arg, err), ended = d->drv->graph_end(d->g, &graph, st == MX_OK ? err : NULL);
    if (st == MX_OK) st = note(d, ended);
    if (st == MX_OK) st = note(d, d->drv->graph_launch(d->g, graph, err));
    if (st != MX_OK) {
        if (ended == MX_OK) d->drv->graph_free(d->g, graph);
        return st;
    }
    d->graphs[at].graph = graph;
    d->graphs[at].used = d->n_replay;
    return MX_OK;
}

mx_status mx_gpu_scratch(mx_gpu_dev *d, size_t bytes, mx_err *err) {
    if (bytes <= d->scratch_bytes) return MX_OK;
    MX_TRY(mx_gpu_wait(&d->base, err));
    d->drv->release(d->g, d->scratch);
    d->scratch = NULL;
    d->scratch_bytes = 0;
    forget_graphs(d);   // they hold its address
    bytes += bytes / 4; // growing lengths do not ask each time
    MX_TRY(d->drv->alloc(d->g, &d->scratch, bytes, err));
    d->scratch_bytes = bytes;
    return MX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static void gpu_close(mx_dev *dev) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    if (!d) return;
    if (d->g) {
        forget_graphs(d);
        for (int i = 0; i < d->n_file; i++) d->drv->unload(d->g, d->files[i].module);
        for (int i = 0; i < 2; i++) {
            d->drv->host_release(d->g, d->stage[i]);
            d->drv->event_free(d->g, d->stage_free[i]);
        }
        d->drv->event_free(d->g, d->done);
        d->drv->release(d->g, d->scratch);
        d->drv->close(d->g);
    }
    for (int i = 0; i < MX_GPU_FUNCS; i++) free((char *)d->funcs[i].name);
    free(d);
}

static mx_status open_parts(mx_gpu_dev *d, int index, mx_err *err) {
    int n;
    MX_TRY(d->drv->count(&n, err));
    if (index >= n) return mx_fail(err, MX_EINVAL, "GPU %d: there are %d, from 0", index, n);
    MX_TRY(d->drv->info(index, &d->info, err));
    MX_TRY(choose_arch(d, err));
    MX_TRY(d->drv->open(&d->g, index, err));
    for (int i = 0; i < 2; i++) {
        MX_TRY(d->drv->host_alloc(d->g, &d->stage[i], MX_GPU_STAGE, err));
        MX_TRY(d->drv->event_new(d->g, &d->stage_free[i], err));
    }
    MX_TRY(d->drv->event_new(d->g, &d->done, err));
    snprintf(d->base.name, sizeof d->base.name, "%.60s (%.20s)", d->info.name, d->info.arch);
    snprintf(d->base.isa, sizeof d->base.isa, "%s", d->info.arch);
    return MX_OK;
}

static mx_status gpu_open(mx_dev **out, const mx_backend *be, const mx_gpu_driver *drv, int index,
                          mx_err *err) {
    mx_gpu_dev *d = calloc(1, sizeof *d);
    if (!d) return mx_fail(err, MX_ENOMEM, "no memory for a device");
    d->base.be = be;
    d->base.act = MX_F32;
    d->drv = drv;
    d->timeout = 120;
    mx_status st = open_parts(d, index, err);
    if (st == MX_OK)
        *out = &d->base;
    else
        gpu_close(&d->base);
    return st;
}

#define OPS                                                                                                  \
    .close = gpu_close, .alloc = gpu_alloc, .release = gpu_release, .upload = gpu_upload,                    \
    .download = gpu_download, .wait = mx_gpu_wait, .embed = mx_gpu_embed, .rms_norm = mx_gpu_rms_norm,       \
    .matmul = mx_gpu_matmul, .rope_table = mx_gpu_rope_table, .rope_append = mx_gpu_rope_append,             \
    .attention = mx_gpu_attention, .glu = mx_gpu_glu, .add = mx_gpu_add,                                     \
    .sigmoid_gate = mx_gpu_sigmoid_gate, .gather = mx_gpu_gather, .softcap = mx_gpu_softcap,                 \
    .route = mx_gpu_route, .expert_matmul = mx_gpu_expert_matmul, .expert_sum = mx_gpu_expert_sum,           \
    .conv = mx_gpu_conv, .delta_rule = mx_gpu_delta_rule, .gated_norm = mx_gpu_gated_norm,                   \
    .clear = gpu_clear, .replay = gpu_replay, .ports = mx_gpu_ports, .math = &mx_gpu_math

/* One of the two is in a build. */
#if defined(MX_GPU_CUDA)
static mx_status cuda_open(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err) {
    (void)opt;
    return gpu_open(out, &mx_backend_cuda, &mx_gpu_driver_cuda, index, err);
}
const mx_backend mx_backend_cuda = {.name = "cuda", .open = cuda_open, OPS};
#else
static mx_status rocm_open(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err) {
    (void)opt;
    return gpu_open(out, &mx_backend_rocm, &mx_gpu_driver_rocm, index, err);
}
const mx_backend mx_backend_rocm = {.name = "rocm", .open = rocm_open, OPS};
#endif
