/* memory.c - memory of a GPU: an arena that is planned when a model is loaded, the way to it and back through pinned buffers.
 *
 * Loading a model happens twice. The first time memory is only counted, down to the scratch memory that the ops want for the largest
 * steps; then that much is taken from the driver at once, or refused with the numbers; the second time buffers are cut from it. */
#include "backend/gpu/gpu.h"
#include <string.h>

enum { ALIGN = 256 };
static size_t padded(size_t bytes) { return bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN; }
#define PLAN_BASE ((char *)((uintptr_t)1 << 44)) // addresses while planning: nothing lies there

static mx_status full(mx_gpu_dev *d, size_t bytes, mx_err *err) {
    size_t left, total;
    if (d->drv->mem_info(d->g, &left, &total, NULL) != MX_OK) left = total = 0;
    return mx_fail(
        err, MX_ENOMEM,
        "the memory of %s is full: %.1f MB more are needed, %.1f of %.1f MB are free; end other programs that use "
        "the GPU, or take a smaller --ctx-size or model",
        d->base.name, (double)bytes / 1e6, (double)left / 1e6, (double)total / 1e6);
}

mx_status mx_gpu_take(mx_gpu_dev *d, void **p, size_t bytes, mx_err *err) {
    bytes = padded(bytes);
    if (d->base.planning) {
        *p = PLAN_BASE + d->planned;
        d->planned += bytes;
        return MX_OK;
    }
    if (bytes <= d->arena.bytes - d->arena.used) {
        *p = d->arena.base + d->arena.used;
        d->arena.used += bytes;
        d->arena.live++;
        return MX_OK;
    }
    mx_status st = mx_gpu_note(d, d->drv->alloc(d->g, p, bytes, err), err);
    if (st != MX_OK) return st == MX_ENOMEM ? full(d, bytes, err) : st;
    d->held += bytes;
    if (d->held > d->base.held_peak) d->base.held_peak = d->held;
    return MX_OK;
}

/* Buffers of a model come and go together: the arena gives memory out again when the last one behind it, or all, have gone. */
void mx_gpu_give(mx_gpu_dev *d, void *p, size_t bytes) {
    bytes = padded(bytes);
    char *at = p;
    if (!p || d->base.planning) return;
    if (at >= d->arena.base && at < d->arena.base + d->arena.bytes) {
        if (at + bytes == d->arena.base + d->arena.used) d->arena.used -= bytes;
        if (--d->arena.live == 0) d->arena.used = 0;
        return;
    }
    if (!d->hung) d->drv->release(d->g, p);
    d->held -= bytes;
}

mx_status mx_gpu_alloc(mx_dev *dev, void **p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    MX_TRY(mx_gpu_take(d, p, bytes, err));
    if (dev->planning) return MX_OK;
    mx_status st = mx_gpu_note(d, d->drv->fill(d->g, *p, 0, bytes ? bytes : 1, err), err);
    if (st != MX_OK) mx_gpu_give(d, *p, bytes);
    return st;
}

void mx_gpu_release(mx_dev *dev, void *p, size_t bytes) { mx_gpu_give((mx_gpu_dev *)dev, p, bytes); }

/* Two pinned buffers take turns: one is filled while the other is on its way. */
mx_status mx_gpu_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    for (size_t at = 0; at < bytes && !dev->planning; at += MX_GPU_STAGE) {
        size_t n = bytes - at < MX_GPU_STAGE ? bytes - at : MX_GPU_STAGE;
        int s = d->next_stage;
        d->next_stage = !s;
        if (d->stage_used[s]) MX_TRY(mx_gpu_wait_for(d, d->stage_free[s], err));
        memcpy(d->stage[s], (const char *)host + at, n);
        MX_TRY(mx_gpu_note(d, d->drv->copy_in(d->g, (char *)p + at, d->stage[s], n, err), err));
        MX_TRY(mx_gpu_note(d, d->drv->event_record(d->g, d->stage_free[s], err), err));
        d->stage_used[s] = true;
    }
    return MX_OK;
}

mx_status mx_gpu_download(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    if (dev->planning) memset(host, 0, bytes);
    for (size_t at = 0; at < bytes && !dev->planning; at += MX_GPU_STAGE) {
        size_t n = bytes - at < MX_GPU_STAGE ? bytes - at : MX_GPU_STAGE;
        if (d->stage_used[0]) MX_TRY(mx_gpu_wait_for(d, d->stage_free[0], err));
        MX_TRY(mx_gpu_note(d, d->drv->copy_out(d->g, d->stage[0], (const char *)p + at, n, err), err));
        MX_TRY(mx_gpu_wait(dev, err));
        memcpy((char *)host + at, d->stage[0], n);
    }
    return MX_OK;
}

mx_status mx_gpu_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    return dev->planning ? MX_OK : mx_gpu_note(d, d->drv->fill(d->g, p, 0, bytes, err), err);
}

mx_status mx_gpu_scratch(mx_gpu_dev *d, size_t bytes, mx_err *err) {
    if (bytes <= d->scratch_bytes) return MX_OK;
    if (d->base.planning) {
        if (bytes > d->plan_scratch) d->plan_scratch = bytes;
        d->scratch = PLAN_BASE;
        return MX_OK;
    }
    if (d->recording)
        return mx_fail(err, MX_UNSUPPORTED, "a step that is being recorded needs more scratch memory");
    MX_TRY(mx_gpu_wait(&d->base, err)); // kernels may still use the old one
    mx_gpu_give(d, d->scratch, d->scratch_bytes);
    d->scratch = NULL;
    d->scratch_bytes = 0;
    mx_gpu_forget_graphs(d); // they hold its address
    bytes += bytes / 4;      // growing lengths do not ask each time
    MX_TRY(mx_gpu_take(d, &d->scratch, bytes, err));
    d->scratch_bytes = bytes;
    return MX_OK;
}

mx_status mx_gpu_memory(mx_dev *dev, uint64_t *free_bytes, bool *shared, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    size_t n, total;
    MX_TRY(mx_gpu_alive(d, err));
    MX_TRY(mx_gpu_note(d, d->drv->mem_info(d->g, &n, &total, err), err));
    *free_bytes = n + d->arena.bytes - d->arena.used;
    *shared = d->info.shares_memory;
    return MX_OK;
}

mx_status mx_gpu_plan_begin(mx_dev *dev, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    MX_TRY(mx_gpu_alive(d, err));
    if (d->scratch) {
        MX_TRY(mx_gpu_wait(dev, err));
        mx_gpu_give(d, d->scratch, d->scratch_bytes);
        mx_gpu_forget_graphs(d);
    }
    d->scratch = NULL;
    d->scratch_bytes = d->planned = d->plan_scratch = 0;
    dev->planning = true;
    return MX_OK;
}

size_t mx_gpu_plan_end(mx_dev *dev) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    dev->planning = false;
    d->scratch = NULL;
    return d->planned + padded(d->plan_scratch);
}

/* The scratch memory of the plan is taken now: it is then there for every step, and recordings keep its address. */
mx_status mx_gpu_reserve(mx_dev *dev, size_t bytes, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    void *base;
    MX_TRY(mx_gpu_alive(d, err));
    if (d->arena.base) {
        if (d->arena.live) return MX_OK; // another model's: this one asks the driver for each buffer
        char *old = d->arena.base;
        d->arena.base = NULL; // a plain allocation again
        size_t n = d->arena.bytes;
        d->arena.bytes = 0;
        mx_gpu_give(d, old, n);
    }
    MX_TRY(mx_gpu_take(d, &base, bytes, err));
    d->arena.base = base;
    d->arena.bytes = padded(bytes);
    d->arena.used = 0;
    if (!d->plan_scratch) return MX_OK;
    MX_TRY(mx_gpu_take(d, &d->scratch, d->plan_scratch, err));
    d->scratch_bytes = d->plan_scratch;
    return MX_OK;
}
