/* backend.c - the list of backends in this build, opening one by name, and buffers that know their device. */
#include "backend/backend.h"
#include "base/log.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

const mx_backend *const mx_backends[] = {
#if defined(MX_GPU_ROCM)
    &mx_backend_rocm,
#elif defined(MX_GPU_CUDA)
    &mx_backend_cuda,
#endif
    &mx_backend_cpu,
};
const int mx_n_backend = countof(mx_backends);

static mx_status unknown_backend(const char *name, mx_err *err) {
    mx_str built = {0};
    for (int i = 0; i < mx_n_backend; i++) mx_str_printf(&built, "%s%s", i ? ", " : "", mx_backends[i]->name);
    mx_fail(err, MX_ENOTFOUND, "no device \"%s\" in this build: choose auto or one of %s", name,
            built.p ? built.p : "cpu");
    mx_str_free(&built);
    return MX_ENOTFOUND;
}

mx_status mx_dev_open(mx_dev **out, const char *name, const mx_dev_options *opt, mx_err *err) {
    static const mx_dev_options defaults;
    if (!opt) opt = &defaults;
    if (!name || !strcmp(name, "auto")) {
        for (int i = 0;; i++) {
            mx_err why = {0};
            mx_status st = mx_backends[i]->open(out, 0, opt, &why);
            if (st == MX_OK) return st;
            if (i == mx_n_backend - 1) return mx_fail(err, st, "%s", why.msg);
            mx_log(MX_LOG_INFO, "%s is not used: %s", mx_backends[i]->name, why.msg);
        }
    }
    size_t len = strcspn(name, ":");
    int index = 0;
    if (name[len]) { // "rocm:1"
        char *end;
        long n = strtol(name + len + 1, &end, 10);
        if (*end || end == name + len + 1 || n < 0 || n > 1023)
            return mx_fail(err, MX_EINVAL, "device \"%.60s\": behind the colon stands a number from 0 on",
                           name);
        index = (int)n;
    }
    for (int i = 0; i < mx_n_backend; i++) {
        const mx_backend *be = mx_backends[i];
        bool named = strlen(be->name) == len && !memcmp(name, be->name, len);
#if defined(MX_GPU_ROCM) || defined(MX_GPU_CUDA)
        named |= be->info && len == 3 && !memcmp(name, "gpu", 3);
#endif
        if (!named) continue;
        if (index && !be->info) return mx_fail(err, MX_EINVAL, "there is one %s", be->name);
        return be->open(out, index, opt, err);
    }
    return unknown_backend(name, err);
}

void mx_dev_close(mx_dev *dev) {
    if (dev) dev->be->close(dev);
}

mx_status mx_buf_new(mx_buf *b, mx_dev *dev, size_t bytes, const char *what, mx_err *err) {
    void *p;
    mx_status st = dev->be->alloc(dev, &p, bytes, err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", what);
    dev->allocated += bytes;
    if (dev->allocated > dev->peak) dev->peak = dev->allocated;
    *b = (mx_buf){.dev = dev, .p = p, .bytes = bytes};
    return MX_OK;
}

void mx_buf_free(mx_buf *b) {
    if (!b->p) return;
    b->dev->be->release(b->dev, b->p, b->bytes);
    b->dev->allocated -= b->bytes;
    *b = (mx_buf){0};
}
