/* rocm.c - the driver table on AMD's HIP runtime, libamdhip64, opened at run time. Declarations follow the public HIP API;
 * numbers and prototypes used here are the same from ROCm 5.2 on. Only the layout of the device properties differs. */
#include "backend/gpu/driver.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int hipError_t; // 0 is success
enum {
    HIP_OUT_OF_MEMORY = 2,
    HIP_OLD_DRIVER = 35,
    HIP_NO_DEVICE = 100,
    HIP_NO_BINARY = 209,
    HIP_NOT_READY = 600
};
enum { ATTR_INTEGRATED = 16, ATTR_CUS = 63, ATTR_LDS = 74 };
enum { STREAM_NON_BLOCKING = 1, COPY_IN = 1, COPY_OUT = 2, CAPTURE_RELAXED = 2 };

#define ENTRIES(X)                                                                                           \
    X(hipInit, (unsigned))                                                                                   \
    X(hipDriverGetVersion, (int *))                                                                          \
    X(hipRuntimeGetVersion, (int *))                                                                         \
    X(hipGetDeviceCount, (int *))                                                                            \
    X(hipSetDevice, (int))                                                                                   \
    X(hipDeviceGetName, (char *, int, int))                                                                  \
    X(hipDeviceGetAttribute, (int *, int, int))                                                              \
    X(hipMemGetInfo, (size_t *, size_t *))                                                                   \
    X(hipMalloc, (void **, size_t))                                                                          \
    X(hipFree, (void *))                                                                                     \
    X(hipHostMalloc, (void **, size_t, unsigned))                                                            \
    X(hipHostFree, (void *))                                                                                 \
    X(hipMemcpyAsync, (void *, const void *, size_t, int, void *))                                           \
    X(hipMemsetAsync, (void *, int, size_t, void *))                                                         \
    X(hipStreamCreateWithFlags, (void **, unsigned))                                                         \
    X(hipStreamDestroy, (void *))                                                                            \
    X(hipModuleLoadData, (void **, const void *))                                                            \
    X(hipModuleUnload, (void *))                                                                             \
    X(hipModuleGetFunction, (void **, void *, const char *))                                                 \
    X(hipModuleLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
                              void *, void **, void **))                                                     \
    X(hipEventCreateWithFlags, (void **, unsigned))                                                          \
    X(hipEventDestroy, (void *))                                                                             \
    X(hipEventRecord, (void *, void *))                                                                      \
    X(hipEventQuery, (void *))                                                                               \
    X(hipStreamBeginCapture, (void *, int))                                                                  \
    X(hipStreamEndCapture, (void *, void **))                                                                \
    X(hipGraphInstantiate, (void **, void *, void **, char *, size_t))                                       \
    X(hipGraphLaunch, (void *, void *))                                                                      \
    X(hipGraphExecDestroy, (void *))                                                                         \
    X(hipGraphDestroy, (void *))

static struct {
#define X(name, args) hipError_t(*name) args;
    ENTRIES(X)
#undef X
    const char *(*error_name)(hipError_t);
    const char *(*error_string)(hipError_t);
    hipError_t (*properties)(void *, int);
    size_t arch_at; // offset of gcnArchName in the properties
} hip;

static atomic_uint opened;           // devices so far
static _Thread_local unsigned bound; // the device that this thread is set to, by its id
static pthread_once_t once = PTHREAD_ONCE_INIT;
static mx_err load_error;

struct mx_gpu {
    unsigned id; // never 0, never used again
    int device;
    void *stream;
};

static mx_status check(hipError_t r, const char *call, mx_err *err) {
    if (r == 0) return MX_OK;
    mx_status code = r == HIP_OUT_OF_MEMORY ? MX_ENOMEM : r == HIP_NO_BINARY ? MX_UNSUPPORTED : MX_EINTERNAL;
    return mx_fail(err, code, "the HIP runtime's %s failed: %s (%s, %d)", call, hip.error_string(r),
                   hip.error_name(r), r);
}
#define TRY(call, name) MX_TRY(check(hip.call, name, err))

/* ---- finding the library ------------------------------------------------------------------------------- */

static void *open_in(const char *dir) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so"};
    for (size_t i = 0; i < countof(names); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", names[i]);
        void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (lib) return lib;
    }
    return NULL;
}

static void *open_library(void) {
    char dir[400];
    const char *root = getenv("ROCM_PATH");
    void *lib = NULL;
    if (root && *root) { // what the user names comes first
        snprintf(dir, sizeof dir, "%s/lib", root);
        lib = open_in(dir);
    }
    if (!lib) lib = open_in("");
    if (!lib) lib = open_in("/opt/rocm/lib");
    glob_t found;
    if (!lib && glob("/opt/rocm-*/lib", 0, NULL, &found) == 0) {
        for (size_t i = found.gl_pathc; !lib && i > 0; i--)
            lib = open_in(found.gl_pathv[i - 1]); // the newest first
        globfree(&found);
    }
    return lib;
}

static void load_library(void) {
    void *lib = open_library();
    if (!lib) {
        mx_fail(
            &load_error, MX_ENOTFOUND,
            "no ROCm runtime: libamdhip64.so.7, .6 or .5 is neither in the system's library folders nor in $ROCM_PATH/lib, "
            "/opt/rocm/lib or /opt/rocm-*/lib; install AMD's hip-runtime-amd package");
        return;
    }
#define X(name, args)                                                                                        \
    *(void **)&hip.name = dlsym(lib, #name);                                                                 \
    if (!hip.name) {                                                                                         \
        mx_fail(&load_error, MX_UNSUPPORTED,                                                                 \
                "the ROCm runtime is too old: libamdhip64 lacks " #name "; install ROCm 5.2 or newer");      \
        return;                                                                                              \
    }
    ENTRIES(X)
#undef X
    *(void **)&hip.error_name = dlsym(lib, "hipGetErrorName");
    *(void **)&hip.error_string = dlsym(lib, "hipGetErrorString");
    *(void **)&hip.properties = dlsym(lib, "hipGetDevicePropertiesR0600"); // ROCm 6 and later
    hip.arch_at = 1160;
    if (!hip.properties) {
        *(void **)&hip.properties = dlsym(lib, "hipGetDeviceProperties"); // ROCm 5
        hip.arch_at = 396;
    }
    if (!hip.error_name || !hip.error_string || !hip.properties) {
        mx_fail(&load_error, MX_UNSUPPORTED,
                "the ROCm runtime is too old: libamdhip64 lacks hipGetErrorName or hipGetDeviceProperties");
        return;
    }
    hipError_t r = hip.hipInit(0);
    if (r == HIP_OLD_DRIVER)
        mx_fail(
            &load_error, MX_UNSUPPORTED,
            "the amdgpu kernel driver is too old for this ROCm runtime: update the kernel or its amdgpu-dkms package");
    else if (r && r != HIP_NO_DEVICE)
        check(r, "hipInit", &load_error);
}

static mx_status need_library(mx_err *err) {
    pthread_once(&once, load_library);
    return load_error.code ? mx_fail(err, load_error.code, "%s", load_error.msg) : MX_OK;
}

/* Why the runtime sees no device: the kernel driver's node tells missing from forbidden. */
static mx_status explain_no_device(mx_err *err) {
    char node[512];
    const char *root = getenv("MLXCEL_SYSROOT");
    snprintf(node, sizeof node, "%s/dev/kfd", root ? root : "");
    int fd = open(node, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return mx_fail(err, MX_ENOTFOUND,
                       "the ROCm runtime sees no GPU, although %s can be opened; look at `rocminfo`", node);
    }
    if (errno == EACCES || errno == EPERM) {
        return mx_fail(
            err, MX_ENOTFOUND,
            "no permission to open %s: add your user to its group (render, on some systems video) with "
            "`sudo usermod -aG render,video $USER`, then log in again",
            node);
    }
    return mx_fail(
        err, MX_ENOTFOUND,
        "%s is missing: the amdgpu kernel driver is not loaded, or this container was started without "
        "--device=/dev/kfd --device=/dev/dri",
        node);
}

static mx_status rocm_count(int *n, mx_err *err) {
    *n = 0;
    MX_TRY(need_library(err));
    hipError_t r = hip.hipGetDeviceCount(n);
    if (r == HIP_NO_DEVICE || (r == 0 && *n == 0)) return explain_no_device(err);
    return check(r, "hipGetDeviceCount", err);
}

static mx_status attribute(int index, int which, int *v, mx_err *err) {
    TRY(hipDeviceGetAttribute(v, which, index), "hipDeviceGetAttribute");
    return MX_OK;
}

static mx_status rocm_info(int index, mx_gpu_info *out, mx_err *err) {
    char properties[4096] = {0}; // larger than any version's
    int driver = 0, integrated = 0;
    *out = (mx_gpu_info){0};
    bound = 0;
    MX_TRY(need_library(err));
    TRY(hipDeviceGetName(out->name, sizeof out->name, index), "hipDeviceGetName");
    TRY(properties(properties, index), "hipGetDeviceProperties");
    snprintf(out->arch, sizeof out->arch, "%.31s", properties + hip.arch_at);
    out->arch[strcspn(out->arch, ":")] = 0; // "gfx90a:sramecc+:xnack-"
    TRY(hipSetDevice(index), "hipSetDevice");
    TRY(hipMemGetInfo(&out->mem_free, &out->mem_total), "hipMemGetInfo");
    MX_TRY(attribute(index, ATTR_CUS, &out->compute_units, err));
    MX_TRY(attribute(index, ATTR_LDS, &out->lds, err));
    MX_TRY(attribute(index, ATTR_INTEGRATED, &integrated, err));
    out->shares_memory = integrated != 0;
    TRY(hipRuntimeGetVersion(&driver), "hipRuntimeGetVersion"); // 60443484: HIP 6.4
    snprintf(out->version, sizeof out->version, "HIP %d.%d", driver / 10000000, driver / 100000 % 100);
    return MX_OK;
}

static void rocm_close(mx_gpu *g) {
    if (!g) return;
    if (g->stream) hip.hipStreamDestroy(g->stream);
    free(g);
}

static mx_status bind(mx_gpu *g, mx_err *err) {
    if (bound == g->id) return MX_OK; // asking the runtime each time costs as much as a launch
    TRY(hipSetDevice(g->device), "hipSetDevice");
    bound = g->id;
    return MX_OK;
}

static mx_status open_stream(mx_gpu *g, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipStreamCreateWithFlags(&g->stream, STREAM_NON_BLOCKING), "hipStreamCreate");
    return MX_OK;
}

static mx_status rocm_open(mx_gpu **out, int index, mx_err *err) {
    int n;
    MX_TRY(rocm_count(&n, err));
    if (index < 0 || index >= n) return mx_fail(err, MX_EINVAL, "GPU %d: there are %d", index, n);
    mx_gpu *g = calloc(1, sizeof *g);
    if (!g) return mx_fail(err, MX_ENOMEM, "no memory for a device");
    g->id = atomic_fetch_add(&opened, 1) + 1;
    g->device = index;
    mx_status st = open_stream(g, err);
    if (st == MX_OK)
        *out = g;
    else
        rocm_close(g);
    return st;
}

static mx_status rocm_mem_info(mx_gpu *g, size_t *free_bytes, size_t *total, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipMemGetInfo(free_bytes, total), "hipMemGetInfo");
    return MX_OK;
}

static mx_status rocm_alloc(mx_gpu *g, void **p, size_t bytes, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipMalloc(p, bytes), "hipMalloc");
    return MX_OK;
}

static void rocm_release(mx_gpu *g, void *p) {
    if (p && bind(g, NULL) == MX_OK) hip.hipFree(p);
}

static mx_status rocm_host_alloc(mx_gpu *g, void **p, size_t bytes, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipHostMalloc(p, bytes, 0), "hipHostMalloc");
    return MX_OK;
}

static void rocm_host_release(mx_gpu *g, void *p) {
    if (p && bind(g, NULL) == MX_OK) hip.hipHostFree(p);
}

static mx_status rocm_copy_in(mx_gpu *g, void *dev, const void *host, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipMemcpyAsync(dev, host, n, COPY_IN, g->stream), "hipMemcpyAsync to the device");
    return MX_OK;
}

static mx_status rocm_copy_out(mx_gpu *g, void *host, const void *dev, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipMemcpyAsync(host, dev, n, COPY_OUT, g->stream), "hipMemcpyAsync to the host");
    return MX_OK;
}

static mx_status rocm_fill(mx_gpu *g, void *dev, int byte, size_t n, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipMemsetAsync(dev, byte, n, g->stream), "hipMemsetAsync");
    return MX_OK;
}

static mx_status rocm_load(mx_gpu *g, mx_gpu_module **out, const void *image, size_t n, const char *name,
                           mx_err *err) {
    void *m;
    (void)n; // the ELF header tells
    MX_TRY(bind(g, err));
    mx_status st = check(hip.hipModuleLoadData(&m, image), "hipModuleLoadData", err);
    if (st != MX_OK) return mx_err_prefix(err, st, "kernels of %s", name);
    *out = m;
    return MX_OK;
}

static void rocm_unload(mx_gpu *g, mx_gpu_module *m) {
    if (m && bind(g, NULL) == MX_OK) hip.hipModuleUnload(m);
}

static mx_status rocm_find(mx_gpu *g, mx_gpu_func **out, mx_gpu_module *m, const char *name, mx_err *err) {
    void *f;
    MX_TRY(bind(g, err));
    mx_status st = check(hip.hipModuleGetFunction(&f, m, name), "hipModuleGetFunction", err);
    if (st != MX_OK) return mx_err_prefix(err, st, "kernel %s", name);
    *out = f;
    return MX_OK;
}

static mx_status rocm_launch(mx_gpu *g, mx_gpu_func *f, const uint32_t grid[3], uint32_t threads,
                             uint32_t lds, bool overlap, void **args, const char *name, mx_err *err) {
    (void)overlap; // launches of a stream wait for each other here
    MX_TRY(bind(g, err));
    hipError_t r =
        hip.hipModuleLaunchKernel(f, grid[0], grid[1], grid[2], threads, 1, 1, lds, g->stream, args, NULL);
    if (r == 0) return MX_OK;
    mx_status st = check(r, "hipModuleLaunchKernel", err);
    return mx_err_prefix(err, st, "kernel %s, grid %u x %u x %u of %u threads", name, grid[0], grid[1],
                         grid[2], threads);
}

static mx_status rocm_event_new(mx_gpu *g, mx_gpu_event **out, mx_err *err) {
    void *e;
    MX_TRY(bind(g, err));
    TRY(hipEventCreateWithFlags(&e, 0), "hipEventCreate");
    *out = e;
    return MX_OK;
}

static void rocm_event_free(mx_gpu *g, mx_gpu_event *e) {
    if (e && bind(g, NULL) == MX_OK) hip.hipEventDestroy(e);
}

static mx_status rocm_event_record(mx_gpu *g, mx_gpu_event *e, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipEventRecord(e, g->stream), "hipEventRecord");
    return MX_OK;
}

static mx_status rocm_event_done(mx_gpu *g, mx_gpu_event *e, bool *done, mx_err *err) {
    MX_TRY(bind(g, err));
    hipError_t r = hip.hipEventQuery(e);
    *done = r == 0;
    return r == HIP_NOT_READY ? MX_OK : check(r, "hipEventQuery", err);
}

static mx_status rocm_graph_begin(mx_gpu *g, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipStreamBeginCapture(g->stream, CAPTURE_RELAXED), "hipStreamBeginCapture");
    return MX_OK;
}

static mx_status rocm_graph_end(mx_gpu *g, mx_gpu_graph **out, mx_err *err) {
    void *graph = NULL, *exec = NULL;
    MX_TRY(bind(g, err));
    TRY(hipStreamEndCapture(g->stream, &graph), "hipStreamEndCapture");
    hipError_t r = hip.hipGraphInstantiate(&exec, graph, NULL, NULL, 0);
    hip.hipGraphDestroy(graph);
    *out = exec;
    return check(r, "hipGraphInstantiate", err);
}

static mx_status rocm_graph_launch(mx_gpu *g, mx_gpu_graph *r, mx_err *err) {
    MX_TRY(bind(g, err));
    TRY(hipGraphLaunch(r, g->stream), "hipGraphLaunch");
    return MX_OK;
}

static void rocm_graph_free(mx_gpu *g, mx_gpu_graph *r) {
    if (r && bind(g, NULL) == MX_OK) hip.hipGraphExecDestroy(r);
}

const mx_gpu_driver mx_gpu_driver_rocm = {
    .name = "rocm",
    .count = rocm_count,
    .info = rocm_info,
    .open = rocm_open,
    .close = rocm_close,
    .mem_info = rocm_mem_info,
    .alloc = rocm_alloc,
    .release = rocm_release,
    .host_alloc = rocm_host_alloc,
    .host_release = rocm_host_release,
    .copy_in = rocm_copy_in,
    .copy_out = rocm_copy_out,
    .fill = rocm_fill,
    .load = rocm_load,
    .unload = rocm_unload,
    .find = rocm_find,
    .launch = rocm_launch,
    .event_new = rocm_event_new,
    .event_free = rocm_event_free,
    .event_record = rocm_event_record,
    .event_done = rocm_event_done,
    .graph_begin = rocm_graph_begin,
    .graph_end = rocm_graph_end,
    .graph_launch = rocm_graph_launch,
    .graph_free = rocm_graph_free,
};
