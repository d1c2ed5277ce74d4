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

/* The generic target of an AMD generation, or NULL. */
static const char *generic_of(const char *arch) {
    static const struct {
        const char *prefix, *generic;
    } all[] = {{"gfx101", "gfx10-1-generic"},
               {"gfx103", "gfx10-3-generic"},
               {"gfx11", "gfx11-generic"},
               {"gfx120", "gfx12-generic"}};
    for (size_t i = 0; i < countof(all); i++)
        if (!strncmp(arch, all[i].prefix, strlen(all[i].prefix))) return all[i].generic;
    return NULL;
}

static mx_status no_code(const mx_gpu_info *info, mx_err *err) {
    char built[256] = "", hint[160] = "";
    const char *generic = generic_of(info->arch);
    for (int i = 0; i < mx_gpu_n_image; i++) {
        const char *a = mx_gpu_images[i].arch;
        if (i && !strcmp(a, mx_gpu_images[i - 1].arch)) continue; // images come by architecture
        snprintf(built + strlen(built), sizeof built - strlen(built), "%s%s", *built ? ", " : "", a);
    }
    if (generic)
        snprintf(hint, sizeof hint, "; the nearest generic one is %s (-Drocm_archs=%s builds it)", generic,
                 generic);
    else if (!strncmp(info->arch, "gfx", 3))
        snprintf(hint, sizeof hint, "; its waves have 64 lanes, and the kernels need 32");
    return mx_fail(err, MX_UNSUPPORTED, "no code object for %s (%s): this build has those for %s%s",
                   info->arch, info->name, built, hint);
}

/* The architecture among those built that runs on this device, into code: its own; for AMD the generic one of its generation; for NVIDIA
 * the newest that is not newer (PTX runs on what comes after it; where its name ends in a letter, on that one alone). */
static mx_status choose_arch(const mx_gpu_info *info, char code[32], mx_err *err) {
    const char *generic = generic_of(info->arch);
    int best = -1, own = atoi(info->arch + 3);
    code[0] = 0;
    for (int i = 0; i < mx_gpu_n_image; i++) {
        const char *a = mx_gpu_images[i].arch;
        bool fits = !strcmp(a, info->arch) || (!*code && generic && !strcmp(a, generic));
        if (!strncmp(a, "sm_", 3)) {
            int v = atoi(a + 3);
            bool only = a[strspn(a + 3, "0123456789") + 3] != 0; // sm_90a: for sm_90 and for nothing else
            fits = (only ? v == own : v <= own) && 2 * v + only > best;
            if (fits) best = 2 * v + only;
        }
        if (fits) snprintf(code, 32, "%s", a);
    }
    return *code ? MX_OK : no_code(info, err);
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

/* Where the kernel stands in d->funcs; it is loaded if it was not. */
static mx_status find_func(mx_gpu_dev *d, const char *file, const char *name, uint32_t *out, mx_err *err) {
    uint32_t h = 2166136261u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    for (uint32_t i = 0; i < MX_GPU_FUNCS; i++) {
        uint32_t at = (h + i) % MX_GPU_FUNCS;
        *out = at;
        if (d->funcs[at].name && !strcmp(d->funcs[at].name, name)) return MX_OK;
        if (d->funcs[at].name) continue;
        mx_gpu_module *m;
        MX_TRY(load_file(d, file, &m, err));
        MX_TRY(d->drv->find(d->g, &d->funcs[at].func, m, name, err));
        d->funcs[at].name = strdup(name);
        return d->funcs[at].name ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for a kernel's name");
    }
    return mx_fail(err, MX_EINTERNAL, "more than %d kernels", MX_GPU_FUNCS);
}

mx_status mx_gpu_alive(const mx_gpu_dev *d, mx_err *err) {
    return d->lost ? mx_fail(err, MX_EINTERNAL, "%s is lost: %.300s; restart the program", d->base.name,
                             d->fault.msg)
                   : MX_OK;
}

/* A device that has failed once is not used again: what its memory holds is unknown. */
mx_status mx_gpu_note(mx_gpu_dev *d, mx_status st, mx_err *err) {
    if (st != MX_EINTERNAL || d->lost) return st;
    d->lost = true;
    if (err)
        d->fault = *err;
    else
        mx_fail(&d->fault, st, "a call of its driver failed");
    return st;
}

/* Files whose kernels all call let_next_start() and after_previous(). */
static bool knows_overlap(const char *file) {
    static const char *const files[] = {"attention", "decode",     "elementwise",  "embed", "glu_one",
                                        "matvec",    "matvec_one", "matvec_dense", "norm",  "recurrent",
                                        "rope",      "route",      "top"};
    for (size_t i = 0; i < countof(files); i++)
        if (!strcmp(files[i], file)) return true;
    return !strncmp(file, "matmul_wide", 11) || !strcmp(file, "prefill_wide");
}

mx_status mx_gpu_launch(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y, uint32_t z,
                        uint32_t threads, void **args, mx_err *err) {
    return mx_gpu_launch_shared(d, file, name, x, y, z, threads, 0, args, err);
}

mx_status mx_gpu_launch_shared(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y,
                               uint32_t z, uint32_t threads, uint32_t shared, void **args, mx_err *err) {
    uint32_t at;
    const uint32_t grid[3] = {x, y, z};
    if (!x || !y || !z) return MX_OK;
    MX_TRY(mx_gpu_alive(d, err));
    if (d->base.planning) return MX_OK;
    MX_TRY(find_func(d, file, name, &at, err));
    const bool overlap = d->overlaps && knows_overlap(file);
    MX_TRY(mx_gpu_note(
        d, d->drv->launch(d->g, d->funcs[at].func, grid, threads, shared, overlap, args, name, err), err));
    d->last = d->funcs[at].name;
    if (!d->n_queued++) d->first = d->last;
    return d->sync && !d->recording ? mx_gpu_wait(&d->base, err) : MX_OK;
}

mx_status mx_gpu_most_threads(mx_gpu_dev *d, const char *file, const char *name, uint32_t *n, mx_err *err) {
    uint32_t at;
    *n = 256;
    if (!d->drv->most_threads || d->base.planning) return MX_OK;
    MX_TRY(find_func(d, file, name, &at, err));
    if (!d->funcs[at].most)
        MX_TRY(mx_gpu_note(d, d->drv->most_threads(d->g, d->funcs[at].func, &d->funcs[at].most, err), err));
    *n = d->funcs[at].most;
    return MX_OK;
}

/* ---- waiting -------------------------------------------------------------------------------------------- */

/* Which kernels may have failed: the driver does not say. */
static mx_status blame(mx_gpu_dev *d, mx_status st, mx_err *err) {
    if (d->n_queued == 1) return mx_err_prefix(err, st, "kernel %s", d->last);
    if (d->n_queued > 1)
        return mx_err_prefix(err, st, "one of %u kernels from %s to %s (--gpu-sync tells which)", d->n_queued,
                             d->first, d->last);
    return st;
}

/* Polls, so that a hang of the device is not a hang of ours. */
mx_status mx_gpu_wait_for(mx_gpu_dev *d, mx_gpu_event *e, mx_err *err) {
    double start = now();
    for (int i = 0;; i++) {
        bool done = false;
        mx_err why = {0};
        mx_status st = d->drv->event_done(d->g, e, &done, &why);
        if (st == MX_OK && done) return MX_OK;
        if (st != MX_OK) {
            blame(d, st, &why);
            mx_gpu_note(d, st, &why);
            return mx_fail(err, st, "%s", why.msg);
        }
        if (i < 20000) continue; // some milliseconds of looking, then sleep between looks
        if (now() - start > d->timeout) {
            d->hung = true;
            mx_fail(&why, MX_EINTERNAL, "a step did not end within %g seconds (--step-timeout)", d->timeout);
            blame(d, MX_EINTERNAL, &why);
            mx_gpu_note(d, MX_EINTERNAL, &why);
            return mx_fail(err, MX_EINTERNAL, "%s: %s", d->base.name, why.msg);
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

mx_status mx_gpu_wait(mx_dev *dev, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    if (dev->planning) return MX_OK;
    MX_TRY(mx_gpu_note(d, d->drv->event_record(d->g, d->done, err), err));
    MX_TRY(mx_gpu_wait_for(d, d->done, err));
    d->n_queued = 0;
    return MX_OK;
}

/* ---- recordings ---------------------------------------------------------------------------------------- */

void mx_gpu_forget_graphs(mx_gpu_dev *d) {
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
    MX_TRY(mx_gpu_alive(d, err));
    if (!d->records || dev->planning) return queue(arg, err);
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
        if (!d->n_queued) d->first = d->graphs[at].first;
        d->last = d->graphs[at].last;
        d->n_queued += d->graphs[at].n;
        return mx_gpu_note(d, d->drv->graph_launch(d->g, d->graphs[at].graph, err), err);
    }
    if (!known) {
        MX_TRY(queue(arg, err));
        d->drv->graph_free(d->g, d->graphs[at].graph);
        d->graphs[at].graph = NULL;
        d->graphs[at].key = key;
        d->graphs[at].used = d->n_replay;
        return MX_OK;
    }
    const unsigned before = d->n_queued;
    const char *first = d->first;
    mx_gpu_graph *graph = NULL;
    MX_TRY(mx_gpu_note(d, d->drv->graph_begin(d->g, err), err));
    d->recording = true;
    d->n_queued = 0;
    mx_status st = queue(arg, err), ended = d->drv->graph_end(d->g, &graph, st == MX_OK ? err : NULL);
    d->recording = false;
    if (st == MX_UNSUPPORTED) { // nothing has run: the scratch memory grows, say
        if (ended == MX_OK) d->drv->graph_free(d->g, graph);
        d->n_queued = before;
        return queue(arg, err);
    }
    d->graphs[at].first = d->first;
    d->graphs[at].last = d->last;
    d->graphs[at].n = d->n_queued;
    if (before) d->first = first;
    d->n_queued += before;
    if (st == MX_OK) st = mx_gpu_note(d, ended, err);
    if (st == MX_OK) st = mx_gpu_note(d, d->drv->graph_launch(d->g, graph, err), err);
    if (st != MX_OK) {
        if (ended == MX_OK) d->drv->graph_free(d->g, graph);
        return st;
    }
    d->graphs[at].graph = graph;
    d->graphs[at].used = d->n_replay;
    return MX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static mx_gpu *_Atomic left_hung; // kept: the device may still write to what belongs to it

static void gpu_close(mx_dev *dev) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    if (!d) return;
    if (d->g && !d->hung) { // a hung driver's calls would not return: its memory goes with the process
        mx_gpu_forget_graphs(d);
        for (int i = 0; i < d->n_file; i++) d->drv->unload(d->g, d->files[i].module);
        for (int i = 0; i < 2; i++) {
            d->drv->host_release(d->g, d->stage[i]);
            d->drv->event_free(d->g, d->stage_free[i]);
        }
        d->drv->event_free(d->g, d->done);
        mx_gpu_give(d, d->scratch, d->scratch_bytes);
        d->drv->release(d->g, d->arena.base);
        d->drv->release(d->g, d->counts);
        d->drv->close(d->g);
    }
    if (d->hung) left_hung = d->g;
    for (int i = 0; i < MX_GPU_FUNCS; i++) free((char *)d->funcs[i].name);
    free(d);
}

/* The device's facts and the code object that it runs. */
static mx_status look(const mx_gpu_driver *drv, int index, mx_gpu_info *info, char code[32], int *n,
                      mx_err *err) {
    *n = 0;
    MX_TRY(drv->count(n, err));
    if (index >= *n)
        return mx_fail(err, MX_EINVAL, "there is no GPU %d: %d %s here, counted from 0", index, *n,
                       *n == 1 ? "is" : "are");
    MX_TRY(drv->info(index, info, err));
    return choose_arch(info, code, err);
}

static mx_status open_parts(mx_gpu_dev *d, int index, mx_err *err) {
    int n;
    MX_TRY(look(d->drv, index, &d->info, d->arch, &n, err));
    snprintf(d->base.name, sizeof d->base.name, "%.60s (%.20s)", d->info.name, d->info.arch);
    snprintf(d->base.isa, sizeof d->base.isa, "%s", d->info.arch);
    MX_TRY(d->drv->open(&d->g, index, err));
    for (int i = 0; i < 2; i++) {
        MX_TRY(d->drv->host_alloc(d->g, &d->stage[i], MX_GPU_STAGE, err));
        MX_TRY(d->drv->event_new(d->g, &d->stage_free[i], err));
    }
    MX_TRY(d->drv->event_new(d->g, &d->done, err));
    MX_TRY(mx_gpu_take(d, (void **)&d->counts, MX_GPU_COUNTS * sizeof *d->counts, err));
    MX_TRY(d->drv->fill(d->g, d->counts, 0, MX_GPU_COUNTS * sizeof *d->counts, err));
    d->overlaps = !strncmp(d->arch, "sm_", 3) && atoi(d->arch + 3) >= 90;
    return MX_OK;
}

static mx_status gpu_open(mx_dev **out, const mx_backend *be, const mx_gpu_driver *drv, int index,
                          const mx_dev_options *opt, mx_err *err) {
    mx_gpu_dev *d = calloc(1, sizeof *d);
    if (!d) return mx_fail(err, MX_ENOMEM, "no memory for a device");
    d->base.be = be;
    d->base.act = MX_F32;
    d->drv = drv;
    d->timeout = opt->step_timeout > 0 ? opt->step_timeout : 120;
    d->sync = opt->sync;
    // measured: replaying wins with CUDA; on gfx1151 it is reported to lose
    d->records =
        !d->sync && (opt->graphs == MX_GRAPHS_ON || (opt->graphs == MX_GRAPHS_AUTO && be->name[0] == 'c'));
    mx_status st = open_parts(d, index, err);
    if (st == MX_OK)
        *out = &d->base;
    else
        gpu_close(&d->base);
    return st;
}

static mx_status gpu_info(const mx_gpu_driver *drv, int index, mx_dev_info *out, int *n, mx_err *err) {
    mx_gpu_info info = {0};
    int count;
    *out = (mx_dev_info){0};
    mx_status st = look(drv, index, &info, out->code, n ? n : &count, err);
    memcpy(out->name, info.name, sizeof out->name);
    memcpy(out->arch, info.arch, sizeof out->arch);
    snprintf(out->version, sizeof out->version, "%s", info.version);
    out->mem_total = info.mem_total;
    out->mem_free = info.mem_free;
    out->shares_memory = info.shares_memory;
    return st;
}

#define OPS                                                                                                  \
    .close = gpu_close, .memory = mx_gpu_memory, .plan_begin = mx_gpu_plan_begin,                            \
    .plan_end = mx_gpu_plan_end, .reserve = mx_gpu_reserve, .alloc = mx_gpu_alloc,                           \
    .release = mx_gpu_release, .upload = mx_gpu_upload, .download = mx_gpu_download, .wait = mx_gpu_wait,    \
    .embed = mx_gpu_embed, .rms_norm = mx_gpu_rms_norm, .matmul = mx_gpu_matmul,                             \
    .rope_table = mx_gpu_rope_table, .rope_append = mx_gpu_rope_append, .attention = mx_gpu_attention,       \
    .glu = mx_gpu_glu, .add = mx_gpu_add, .sigmoid_gate = mx_gpu_sigmoid_gate, .gather = mx_gpu_gather,      \
    .softcap = mx_gpu_softcap, .route = mx_gpu_route, .expert_matmul = mx_gpu_expert_matmul,                 \
    .expert_sum = mx_gpu_expert_sum, .conv = mx_gpu_conv, .delta_rule = mx_gpu_delta_rule,                   \
    .gated_norm = mx_gpu_gated_norm, .clear = mx_gpu_clear, .replay = gpu_replay, .ports = mx_gpu_ports,     \
    .math = &mx_gpu_math

/* One of the two is in a build. */
#if defined(MX_GPU_CUDA)
static mx_status cuda_open(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err) {
    return gpu_open(out, &mx_backend_cuda, &mx_gpu_driver_cuda, index, opt, err);
}
static mx_status cuda_info(int index, mx_dev_info *out, int *n, mx_err *err) {
    return gpu_info(&mx_gpu_driver_cuda, index, out, n, err);
}
const mx_backend mx_backend_cuda = {.name = "cuda", .open = cuda_open, .info = cuda_info, OPS};
#else
static mx_status rocm_open(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err) {
    return gpu_open(out, &mx_backend_rocm, &mx_gpu_driver_rocm, index, opt, err);
}
static mx_status rocm_info(int index, mx_dev_info *out, int *n, mx_err *err) {
    return gpu_info(&mx_gpu_driver_rocm, index, out, n, err);
}
const mx_backend mx_backend_rocm = {.name = "rocm", .open = rocm_open, .info = rocm_info, OPS};
#endif
