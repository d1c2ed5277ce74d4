/* cuda.c - the driver table on NVIDIA's libcuda, opened at run time. Declarations follow the public CUDA driver API; only
 * what is used here is declared, with its ABI's versioned names. */
#include "backend/gpu/driver.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult; // 0 is success
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
enum {
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_NO_BINARY = 209,
    CUDA_PTX_TOO_NEW = 222,
    CUDA_NOT_READY = 600,
    CUDA_MISMATCH = 803, // of the library and the kernel's driver
    ATTR_CUS = 16,
    ATTR_MAJOR = 75,
    ATTR_MINOR = 76,
    ATTR_LDS_OPTIN = 97,
    ATTR_INTEGRATED = 18,
    FUNC_MOST_THREADS = 0,
    FUNC_SHARED = 8,       // bytes that a launch may ask for
    FUNC_SHARED_SHARE = 9, // percent of the multiprocessor's memory that is not cache
    SHARED_USUAL = 48 << 10,
    LAUNCH_OVERLAP = 6, // programmatic stream serialization
    STREAM_NON_BLOCKING = 1,
    CAPTURE_RELAXED = 2,
    JIT_LOG = 5,
    JIT_LOG_SIZE = 6
};

typedef struct { // CUlaunchAttribute: a number and a union of 64 bytes
    int id, pad;
    union {
        int on;
        char bytes[64];
    } value;
} launch_attribute;
typedef struct { // CUlaunchConfig
    unsigned grid[3], block[3], lds;
    void *stream;
    launch_attribute *attributes;
    unsigned n_attribute;
} launch_config;

/* X(return name(arguments)) for every entry point. */
#define ENTRIES(X)                                                                                           \
    X(cuInit, (unsigned))                                                                                    \
    X(cuDriverGetVersion, (int *))                                                                           \
    X(cuGetErrorName, (CUresult, const char **))                                                             \
    X(cuGetErrorString, (CUresult, const char **))                                                           \
    X(cuDeviceGetCount, (int *))                                                                             \
    X(cuDeviceGet, (CUdevice *, int))                                                                        \
    X(cuDeviceGetName, (char *, int, CUdevice))                                                              \
    X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                          \
    X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                             \
    X(cuDevicePrimaryCtxRetain, (void **, CUdevice))                                                         \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                              \
    X(cuCtxSetCurrent, (void *))                                                                             \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                 \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                \
    X(cuMemFree_v2, (CUdeviceptr))                                                                           \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                           \
    X(cuMemFreeHost, (void *))                                                                               \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, void *))                                     \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, void *))                                           \
    X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, void *))                                         \
    X(cuModuleLoadDataEx, (void **, const void *, unsigned, int *, void **))                                 \
    X(cuModuleUnload, (void *))                                                                              \
    X(cuFuncGetAttribute, (int *, int, void *))                                                              \
    X(cuFuncSetAttribute, (void *, int, int))                                                                \
    X(cuModuleGetFunction, (void **, void *, const char *))                                                  \
    X(cuLaunchKernelEx, (const launch_config *, void *, void **, void **))                                   \
    X(cuStreamCreate, (void **, unsigned))                                                                   \
    X(cuStreamDestroy_v2, (void *))                                                                          \
    X(cuEventCreate, (void **, unsigned))                                                                    \
    X(cuEventDestroy_v2, (void *))                                                                           \
    X(cuEventRecord, (void *, void *))                                                                       \
    X(cuEventQuery, (void *))                                                                                \
    X(cuStreamBeginCapture_v2, (void *, int))                                                                \
    X(cuStreamEndCapture, (void *, void **))                                                                 \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                    \
    X(cuGraphLaunch, (void *, void *))                                                                       \
    X(cuGraphExecDestroy, (void *))                                                                          \
    X(cuGraphDestroy, (void *))

static struct {
#define X(name, args) CUresult(*name) args;
    ENTRIES(X)
#undef X
} cu;

static atomic_uint opened;           // devices so far
static _Thread_local unsigned bound; // the device that this thread is set to, by its id
static pthread_once_t once = PTHREAD_ONCE_INIT;
static mx_err load_error; // code MX_OK when the library is there and initialized

struct mx_gpu {
    unsigned id; // never 0, never used again
    CUdevice device;
    void *context, *stream;
};

static mx_status check(CUresult r, const char *call, mx_err *err) {
    if (r == 0) return MX_OK;
    const char *name = NULL, *text = NULL;
    cu.cuGetErrorName(r, &name);
    cu.cuGetErrorString(r, &text);
    mx_status code = r == CUDA_OUT_OF_MEMORY                        ? MX_ENOMEM
                     : r == CUDA_NO_BINARY || r == CUDA_PTX_TOO_NEW ? MX_UNSUPPORTED
                                                                    : MX_EINTERNAL;
    return mx_fail(err, code, "the CUDA driver's %s failed: %s (%s, %d)", call, text ? text : "?",
                   name ? name : "?", r);
}
#define TRY(call, name) MX_TRY(check(cu.call, name, err))

/* Why the driver sees no GPU: the kernel's device node tells missing from forbidden. */
static mx_status explain_no_device(mx_err *err) {
    char node[512];
    const char *root = getenv("MLXCEL_SYSROOT");
    snprintf(node, sizeof node, "%s/dev/nvidiactl", root ? root : "");
    int fd = open(node, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return mx_fail(
            err, MX_ENOTFOUND,
            "the NVIDIA driver sees no GPU, although %s can be opened; look at `nvidia-smi` and at "
            "CUDA_VISIBLE_DEVICES",
            node);
    }
    if (errno == EACCES || errno == EPERM)
        return mx_fail(err, MX_ENOTFOUND,
                       "no permission to open %s: add your user to its group (often video) with "
                       "`sudo usermod -aG video $USER`, then log in again",
                       node);
    return mx_fail(
        err, MX_ENOTFOUND,
        "%s is missing: the NVIDIA kernel driver is not loaded, or this container was started without "
        "--gpus all",
        node);
}

static void load_library(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        mx_fail(
            &load_error, MX_ENOTFOUND,
            "no NVIDIA driver: libcuda.so.1 is not in the system's library folders; install the NVIDIA driver");
        return;
    }
#define X(name, args)                                                                                        \
    *(void **)&cu.name = dlsym(lib, #name);                                                                  \
    if (!cu.name) {                                                                                          \
        mx_fail(&load_error, MX_UNSUPPORTED,                                                                 \
                "the NVIDIA driver is too old: libcuda.so.1 lacks " #name "; install driver 525 or newer");  \
        return;                                                                                              \
    }
    ENTRIES(X)
#undef X
    CUresult r = cu.cuInit(0);
    if (r == CUDA_NO_DEVICE)
        explain_no_device(&load_error);
    else if (r == CUDA_MISMATCH)
        mx_fail(
            &load_error, MX_UNSUPPORTED,
            "libcuda.so.1 and the NVIDIA kernel driver are of different versions: restart the machine after an update");
    else if (r)
        check(r, "cuInit", &load_error);
}

static mx_status need_library(mx_err *err) {
    pthread_once(&once, load_library);
    return load_error.code ? mx_fail(err, load_error.code, "%s", load_error.msg) : MX_OK;
}

static mx_status cuda_count(int *n, mx_err *err) {
    MX_TRY(need_library(err));
    TRY(cuDeviceGetCount(n), "cuDeviceGetCount");
    return *n > 0 ? MX_OK : explain_no_device(err);
}

static mx_status attribute(CUdevice d, int which, int *v, mx_err *err) {
    TRY(cuDeviceGetAttribute(v, which, d), "cuDeviceGetAttribute");
    return MX_OK;
}

static mx_status cuda_info(int index, mx_gpu_info *out, mx_err *err) {
    CUdevice d;
    int major, minor, integrated, version;
    void *context;
    *out = (mx_gpu_info){0};
    bound = 0;
    MX_TRY(need_library(err));
    TRY(cuDeviceGet(&d, index), "cuDeviceGet");
    TRY(cuDeviceGetName(out->name, sizeof out->name, d), "cuDeviceGetName");
    TRY(cuDeviceTotalMem_v2(&out->mem_total, d), "cuDeviceTotalMem");
    TRY(cuDriverGetVersion(&version), "cuDriverGetVersion");
    MX_TRY(attribute(d, ATTR_MAJOR, &major, err));
    MX_TRY(attribute(d, ATTR_MINOR, &minor, err));
    MX_TRY(attribute(d, ATTR_CUS, &out->compute_units, err));
    MX_TRY(attribute(d, ATTR_LDS_OPTIN, &out->lds, err));
    MX_TRY(attribute(d, ATTR_INTEGRATED, &integrated, err));
    out->shares_memory = integrated != 0;
    snprintf(out->arch, sizeof out->arch, "sm_%d%d", major, minor);
    snprintf(out->version, sizeof out->version, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    size_t total; // free memory is asked of a context
    TRY(cuDevicePrimaryCtxRetain(&context, d), "cuDevicePrimaryCtxRetain");
    mx_status st = check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent", err);
    if (st == MX_OK) st = check(cu.cuMemGetInfo_v2(&out->mem_free, &total), "cuMemGetInfo", err);
    cu.cuDevicePrimaryCtxRelease_v2(d);
    return st;
}

static void cuda_close(mx_gpu *g) {
    if (!g) return;
    if (g->stream) cu.cuStreamDestroy_v2(g->stream);
    if (g->context) cu.cuDevicePrimaryCtxRelease_v2(g->device);
    free(g);
}

static mx_status open_context(mx_gpu *g, int index, mx_err *err) {
    TRY(cuDeviceGet(&g->device, index), "cuDeviceGet");
    TRY(cuDevicePrimaryCtxRetain(&g->context, g->device), "cuDevicePrimaryCtxRetain");
    TRY(cuCtxSetCurrent(g->context), "cuCtxSetCurrent");
    TRY(cuStreamCreate(&g->stream, STREAM_NON_BLOCKING), "cuStreamCreate");
    return MX_OK;
}

static mx_status cuda_open(mx_gpu **out, int index, mx_err *err) {
    int n;
    MX_TRY(cuda_count(&n, err));
    if (index < 0 || index >= n) return mx_fail(err, MX_EINVAL, "GPU %d: there are %d", index, n);
    mx_gpu *g = calloc(1, sizeof *g);
    if (!g) return mx_fail(err, MX_ENOMEM, "no memory for a device");
    g->id = atomic_fetch_add(&opened, 1) + 1;
    mx_status st = open_context(g, index, err);
    if (st == MX_OK)
        *out = g;
    else
        cuda_close(g);
    return st;
}

/* The context belongs to a thread; the engine's thread may not be the one that opened it. */
static mx_status bind(mx_gpu *g, mx_err *err) {
    if (bound == g->id) return MX_OK; // asking the runtime each time costs as much as a launch
    TRY(cuCtxSetCurrent(g->context), "cuCtxSetCurrent");
    bound = g->id;
    return MX_OK;
}

static mx_status cuda_mem_info(mx_gpu *g, size_t *free_bytes, size_t *total, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuMemGetInfo_v2(free_bytes, total), "cuMemGetInfo");
    return MX_OK;
}

static mx_status cuda_alloc(mx_gpu *g, void **p, size_t bytes, mx_err *err) {
    CUdeviceptr d = 0;
    MX_TRY(bind(g, err));
    TRY(cuMemAlloc_v2(&d, bytes), "cuMemAlloc");
    *p = (void *)d;
    return MX_OK;
}

static void cuda_release(mx_gpu *g, void *p) {
    if (p && bind(g, NULL) == MX_OK) cu.cuMemFree_v2((CUdeviceptr)p);
}

static mx_status cuda_host_alloc(mx_gpu *g, void **p, size_t bytes, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuMemHostAlloc(p, bytes, 0), "cuMemHostAlloc");
    return MX_OK;
}

static void cuda_host_release(mx_gpu *g, void *p) {
    if (p && bind(g, NULL) == MX_OK) cu.cuMemFreeHost(p);
}

static mx_status cuda_copy_in(mx_gpu *g, void *dev, const void *host, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuMemcpyHtoDAsync_v2((CUdeviceptr)dev, host, n, g->stream), "cuMemcpyHtoDAsync");
    return MX_OK;
}

static mx_status cuda_copy_out(mx_gpu *g, void *host, const void *dev, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuMemcpyDtoHAsync_v2(host, (CUdeviceptr)dev, n, g->stream), "cuMemcpyDtoHAsync");
    return MX_OK;
}

static mx_status cuda_fill(mx_gpu *g, void *dev, int byte, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuMemsetD8Async((CUdeviceptr)dev, (unsigned char)byte, n, g->stream), "cuMemsetD8Async");
    return MX_OK;
}

static mx_status cuda_load(mx_gpu *g, mx_gpu_module **out, const void *image, size_t n, const char *name,
                           mx_err *err) {
    char log[1024] = "";
    int options[] = {JIT_LOG, JIT_LOG_SIZE};
    void *values[] = {log, (void *)(uintptr_t)sizeof log}, *m;
    (void)n; // PTX is text with a terminator
    MX_TRY(bind(g, err));
    CUresult r = cu.cuModuleLoadDataEx(&m, image, 2, options, values);
    if (r) {
        mx_status st = check(r, "cuModuleLoadDataEx", err);
        if (r == CUDA_PTX_TOO_NEW)
            return mx_fail(err, st,
                           "the NVIDIA driver is too old for the kernels of %s; install driver 525 or newer",
                           name);
        log[strcspn(log, "\n")] = 0;
        return mx_err_prefix(err, st, "kernels of %s%s%s", name, *log ? ": " : "", log);
    }
    *out = m;
    return MX_OK;
}

static void cuda_unload(mx_gpu *g, mx_gpu_module *m) {
    if (m && bind(g, NULL) == MX_OK) cu.cuModuleUnload(m);
}

static mx_status cuda_find(mx_gpu *g, mx_gpu_func **out, mx_gpu_module *m, const char *name, mx_err *err) {
    void *f;
    MX_TRY(bind(g, err));
    mx_status st = check(cu.cuModuleGetFunction(&f, m, name), "cuModuleGetFunction", err);
    if (st != MX_OK) return mx_err_prefix(err, st, "kernel %s", name);
    *out = f;
    return MX_OK;
}

static mx_status cuda_most_threads(mx_gpu *g, mx_gpu_func *f, uint32_t *n, mx_err *err) {
    int most = 0;
    MX_TRY(bind(g, err));
    TRY(cuFuncGetAttribute(&most, FUNC_MOST_THREADS, f), "cuFuncGetAttribute");
    *n = (uint32_t)most;
    return MX_OK;
}

static mx_status cuda_launch(mx_gpu *g, mx_gpu_func *f, const uint32_t grid[3], uint32_t threads,
                             uint32_t lds, bool overlap, void **args, const char *name, mx_err *err) {
    launch_attribute attribute = {.id = LAUNCH_OVERLAP, .value.on = 1};
    launch_config c = {.grid = {grid[0], grid[1], grid[2]},
                       .block = {threads, 1, 1},
                       .lds = lds,
                       .stream = g->stream,
                       .attributes = &attribute,
                       .n_attribute = overlap};
    MX_TRY(bind(g, err));
    if (lds > SHARED_USUAL) {
        TRY(cuFuncSetAttribute(f, FUNC_SHARED, (int)lds), "cuFuncSetAttribute");
        TRY(cuFuncSetAttribute(f, FUNC_SHARED_SHARE, 100), "cuFuncSetAttribute");
    }
    CUresult r = cu.cuLaunchKernelEx(&c, f, args, NULL);
    if (r == 0) return MX_OK;
    mx_status st = check(r, "cuLaunchKernelEx", err);
    return mx_err_prefix(err, st, "kernel %s, grid %u x %u x %u of %u threads", name, grid[0], grid[1],
                         grid[2], threads);
}

static mx_status cuda_event_new(mx_gpu *g, mx_gpu_event **out, mx_err *err) {
    void *e;
    MX_TRY(bind(g, err));
    TRY(cuEventCreate(&e, 0), "cuEventCreate");
    *out = e;
    return MX_OK;
}

static void cuda_event_free(mx_gpu *g, mx_gpu_event *e) {
    if (e && bind(g, NULL) == MX_OK) cu.cuEventDestroy_v2(e);
}

static mx_status cuda_event_record(mx_gpu *g, mx_gpu_event *e, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuEventRecord(e, g->stream), "cuEventRecord");
    return MX_OK;
}

static mx_status cuda_event_done(mx_gpu *g, mx_gpu_event *e, bool *done, mx_err *err) {
    MX_TRY(bind(g, err));
    CUresult r = cu.cuEventQuery(e);
    *done = r == 0;
    return r == CUDA_NOT_READY ? MX_OK : check(r, "cuEventQuery", err);
}

static mx_status cuda_graph_begin(mx_gpu *g, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuStreamBeginCapture_v2(g->stream, CAPTURE_RELAXED), "cuStreamBeginCapture");
    return MX_OK;
}

static mx_status cuda_graph_end(mx_gpu *g, mx_gpu_graph **out, mx_err *err) {
    void *graph = NULL, *exec = NULL;
    MX_TRY(bind(g, err));
    TRY(cuStreamEndCapture(g->stream, &graph), "cuStreamEndCapture");
    CUresult r = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
    cu.cuGraphDestroy(graph);
    *out = exec;
    return check(r, "cuGraphInstantiate", err);
}

static mx_status cuda_graph_launch(mx_gpu *g, mx_gpu_graph *r, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(cuGraphLaunch(r, g->stream), "cuGraphLaunch");
    return MX_OK;
}

static void cuda_graph_free(mx_gpu *g, mx_gpu_graph *r) {
    if (r && bind(g, NULL) == MX_OK) cu.cuGraphExecDestroy(r);
}

const mx_gpu_driver mx_gpu_driver_cuda = {
    .name = "cuda",
    .count = cuda_count,
    .info = cuda_info,
    .open = cuda_open,
    .close = cuda_close,
    .mem_info = cuda_mem_info,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .host_alloc = cuda_host_alloc,
    .host_release = cuda_host_release,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .fill = cuda_fill,
    .load = cuda_load,
    .unload = cuda_unload,
    .find = cuda_find,
    .most_threads = cuda_most_threads,
    .launch = cuda_launch,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_done = cuda_event_done,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
};
