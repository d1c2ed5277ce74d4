/* hip.c - the calls of AMD's runtime library, with their public prototypes and numbers, on the emulated machine.
 *
 * Work is queued and runs on a stream's own thread. A fault of a kernel, or a lost device, stays: every later call reports it. Each
 * function counts its calls, so that the n-th of any of them can be told to fail (config.c: fail). */
#include "queue.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef int hipError_t;
enum {
    OK,
    INVALID = 1,
    NO_MEMORY = 2,
    NO_DEVICE = 100,
    BAD_DEVICE = 101,
    BAD_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILURE = 719,
    BAD_CONFIGURATION = 9
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used; // bytes of hipMalloc
static struct {
    char name[48];
    int calls, fail_at, code;
} calls[128];
static int n_calls;
static __thread int last_error;

enum { MEMORY, PINNED, STREAMS, EVENTS, MODULES, GRAPHS, KINDS };
static int live[KINDS];
static void report_calls(void) { // a line for each function, and what was never given back
    static const char *const names[KINDS] = {"device memory", "pinned memory", "streams",
                                             "events",        "modules",       "graphs"};
    for (int i = 0; i < n_calls; i++)
        if (calls[i].calls) emu_log("calls %s %d", calls[i].name, calls[i].calls);
    for (int i = 0; i < KINDS; i++)
        if (live[i]) emu_log("left %s %d", names[i], live[i]);
}
static void count(int kind, int by) { __atomic_add_fetch(&live[kind], by, __ATOMIC_RELAXED); }

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void start(void) {
    emu_configure();
    if (getenv("EMU_CALLS")) atexit(report_calls);
    /* fail = hipMalloc:3=2,hipEventQuery:10=719 : the third call returns 2. :0 fails every call. */
    char list[512], *save = NULL;
    snprintf(list, sizeof list, "%s", emu_cfg.fail);
    for (char *w = strtok_r(list, ", ", &save); w && n_calls < 100; w = strtok_r(NULL, ", ", &save)) {
        char *colon = strchr(w, ':'), *eq = strchr(w, '=');
        if (!colon) continue;
        *colon = 0;
        snprintf(calls[n_calls].name, sizeof calls[n_calls].name, "%s", w);
        calls[n_calls].fail_at = atoi(colon + 1);
        calls[n_calls++].code = eq ? atoi(eq + 1) : 999;
    }
}
/* Count the call. What it must return at once, or 0. */
static int enter(const char *name, bool needs_device) {
    int r = 0, i;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    for (i = 0; i < n_calls && strcmp(calls[i].name, name); i++) {}
    if (i == n_calls && n_calls < 127) {
        snprintf(calls[n_calls].name, sizeof calls[n_calls].name, "%s", name);
        calls[n_calls++].fail_at = -1;
    }
    const int n = ++calls[i].calls;
    if (n == calls[i].fail_at || calls[i].fail_at == 0) {
        r = calls[i].code;
        emu_log("call %d of %s returns %d as asked", n, name, r);
    }
    pthread_mutex_unlock(&lock);
    if (!r && emu_cfg.driver_error) r = emu_cfg.driver_error;
    if (!r && needs_device) r = __atomic_load_n(&device_error, __ATOMIC_RELAXED);
    return r;
}
static int leave(int code) {
    if (code && (emu_cfg.version < 7 || code != NOT_READY))
        last_error = code;
    else if (emu_cfg.version < 6)
        last_error = code;
    return code;
}
#define ENTER(device)                                                                                        \
    do {                                                                                                     \
        const int first_ = enter(__func__, device);                                                          \
        if (first_) return leave(first_);                                                                    \
    } while (0)

/* ---- devices ------------------------------------------------------------------------------------------------- */

EXPORT hipError_t hipInit(unsigned flags) {
    (void)flags;
    ENTER(false);
    return leave(emu_cfg.devices ? OK : NO_DEVICE);
}
static int version_number(void) {
    return emu_cfg.version == 5 ? 50422803 : emu_cfg.version == 6 ? 60443484 : 70051831;
}
EXPORT hipError_t hipDriverGetVersion(int *v) {
    ENTER(false);
    *v = version_number();
    return leave(OK);
}
EXPORT hipError_t hipRuntimeGetVersion(int *v) {
    ENTER(false);
    *v = version_number();
    return leave(OK);
}
EXPORT hipError_t hipGetDeviceCount(int *n) {
    ENTER(false);
    *n = emu_cfg.devices;
    return leave(emu_cfg.devices ? OK : NO_DEVICE);
}
EXPORT hipError_t hipSetDevice(int i) {
    ENTER(true);
    return leave(i >= 0 && i < emu_cfg.devices ? OK : BAD_DEVICE);
}
EXPORT hipError_t hipGetDevice(int *i) {
    ENTER(true);
    *i = 0;
    return leave(OK);
}
EXPORT hipError_t hipDeviceGetName(char *name, int n, int device) {
    ENTER(true);
    if (device < 0 || device >= emu_cfg.devices) return leave(BAD_DEVICE);
    snprintf(name, (size_t)n, "%s", emu_cfg.name);
    return leave(OK);
}
static bool is_apu(void) {
    return !strcmp(emu_cfg.arch, "gfx1151") || !strcmp(emu_cfg.arch, "gfx1150") ||
           !strcmp(emu_cfg.arch, "gfx1103");
}
EXPORT hipError_t hipDeviceGetAttribute(int *v, int which, int device) {
    ENTER(true);
    if (device < 0 || device >= emu_cfg.devices) return leave(BAD_DEVICE);
    switch (which) {             // the same numbers from ROCm 5.2 on
    case 2: *v = 2; break;       // async engines
    case 3: *v = 1; break;       // maps host memory
    case 5: *v = 2900000; break; // kHz
    case 8: *v = 1; break;       // concurrent kernels
    case 9: *v = 0; break;       // concurrent managed access
    case 16: *v = is_apu(); break;
    case 19: *v = 2 << 20; break; // bytes of L2
    case 23: *v = 11; break;
    case 24: *v = 1; break;
    case 26: *v = 1024; break;
    case 29: *v = 2147483647; break;
    case 56: *v = 1024; break;
    case 57: *v = 2048; break;
    case 59: *v = 256; break;
    case 60: *v = 4000000; break;
    case 61: *v = !strcmp(emu_cfg.arch, "gfx1151") ? 5 : 0; break;
    case 63: *v = emu_cfg.units; break; // workgroup processors: half the compute units
    case 65: *v = 0; break;
    case 67: *v = 197; break;
    case 68: *v = 0; break;
    case 69: *v = 0; break;
    case 74: *v = 65536; break;
    case 85: *v = 1; break;
    case 87: *v = 32; break;
    case 10017:
        if (emu_cfg.version < 6) return leave(INVALID);
        *v = 100000;
        break;
    default: return leave(INVALID);
    }
    return leave(OK);
}
static void properties(char *p, bool new_layout) {
    const uint64_t total = emu_cfg.memory_total;
    const int warp = 32, clock = 2900000, units = emu_cfg.units, integrated = is_apu();
    memset(p, 0, new_layout ? 1472 : 792);
    snprintf(p, 256, "%s", emu_cfg.name);
    memcpy(p + (new_layout ? 288 : 256), &total, 8);
    memcpy(p + (new_layout ? 308 : 276), &warp, 4);
    memcpy(p + (new_layout ? 348 : 308), &clock, 4);
    memcpy(p + (new_layout ? 388 : 336), &units, 4);
    memcpy(p + (new_layout ? 396 : 652), &integrated, 4);
    snprintf(p + (new_layout ? 1160 : 396), 256, "%s", emu_cfg.arch);
}
EXPORT hipError_t hipGetDeviceProperties(void *p, int device) { // the layout of ROCm 5, in all versions
    ENTER(true);
    if (device < 0 || device >= emu_cfg.devices) return leave(BAD_DEVICE);
    properties(p, false);
    return leave(OK);
}
EXPORT hipError_t hipGetDevicePropertiesR0600(void *p, int device) {
    ENTER(true);
    if (device < 0 || device >= emu_cfg.devices) return leave(BAD_DEVICE);
    properties(p, true);
    return leave(OK);
}
EXPORT hipError_t hipDeviceSynchronize(void) {
    ENTER(true);
    device_finish();
    return leave(device_error);
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

EXPORT hipError_t hipMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER(true);
    const uint64_t taken = __atomic_load_n(&used, __ATOMIC_RELAXED);
    *free_bytes = emu_cfg.memory_free > taken ? emu_cfg.memory_free - taken : 0;
    *total = emu_cfg.memory_total;
    return leave(OK);
}
EXPORT hipError_t hipMalloc(void **p, size_t bytes) {
    ENTER(true);
    *p = NULL;
    if (!bytes) return leave(OK);
    const uint64_t taken = __atomic_load_n(&used, __ATOMIC_RELAXED);
    if (taken + bytes > emu_cfg.memory_free || (emu_cfg.alloc_limit && taken + bytes > emu_cfg.alloc_limit))
        return leave(NO_MEMORY);
    *p = emu_alloc(bytes, MEM_DEVICE);
    if (!*p) return leave(NO_MEMORY);
    __atomic_add_fetch(&used, bytes, __ATOMIC_RELAXED);
    count(MEMORY, 1);
    return leave(OK);
}
EXPORT hipError_t hipFree(void *p) {
    emu_range r;
    ENTER(false);
    if (!p) return leave(OK);
    device_finish();
    if (!emu_find((uint64_t)p, 1, &r) || r.begin != (uint64_t)p || r.kind != MEM_DEVICE)
        return leave(INVALID);
    __atomic_sub_fetch(&used, r.end - r.begin, __ATOMIC_RELAXED);
    emu_release(p);
    count(MEMORY, -1);
    return leave(device_error);
}
EXPORT hipError_t hipHostMalloc(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER(true);
    *p = emu_alloc(bytes, MEM_PINNED);
    count(PINNED, *p != NULL);
    return leave(*p ? OK : NO_MEMORY);
}
EXPORT hipError_t hipHostFree(void *p) {
    ENTER(false);
    if (!p) return leave(OK);
    device_finish();
    if (!emu_release(p)) return leave(INVALID);
    count(PINNED, -1);
    return leave(device_error);
}
static bool on_device(const void *p, size_t n) {
    emu_range r;
    return emu_find((uint64_t)p, n, &r) && r.kind != MEM_CODE;
}
EXPORT hipError_t hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream) {
    ENTER(true);
    if (!n) return leave(OK);
    if (!stream) return leave(BAD_HANDLE);
    if (kind < 1 || kind > 3) return leave(21);
    if ((kind != 2 && !on_device(to, n)) || (kind != 1 && !on_device(from, n))) return leave(INVALID);
    hip_command c = {.what = DO_COPY, .to = to, .from = from, .n = n};
    if (kind == 1 && !on_device(from, n)) { // pageable: copied now
        c.owned = malloc(n);
        if (!c.owned) return leave(NO_MEMORY);
        c.from = memcpy(c.owned, from, n);
    }
    int code = stream_push(stream, c);
    if (!code && kind == 2 && !on_device(to, n)) stream_finish(stream);
    return leave(code);
}
EXPORT hipError_t hipMemsetAsync(void *to, int byte, size_t n, void *stream) {
    ENTER(true);
    if (!n) return leave(OK);
    if (!stream) return leave(BAD_HANDLE);
    if (!on_device(to, n)) return leave(INVALID);
    return leave(stream_push(stream, (hip_command){.what = DO_FILL, .to = to, .n = n, .byte = byte}));
}

/* ---- streams, events, graphs ----------------------------------------------------------------------------------- */

EXPORT hipError_t hipStreamCreateWithFlags(void **s, unsigned flags) {
    (void)flags;
    ENTER(true);
    *s = stream_new();
    count(STREAMS, *s != NULL);
    return leave(*s ? OK : NO_MEMORY);
}
EXPORT hipError_t hipStreamDestroy(void *s) {
    ENTER(false);
    if (!s) return leave(BAD_HANDLE);
    stream_free(s);
    count(STREAMS, -1);
    return leave(OK);
}
EXPORT hipError_t hipStreamSynchronize(void *s) {
    ENTER(true);
    stream_finish(s);
    return leave(device_error);
}
EXPORT hipError_t hipStreamQuery(void *s) {
    ENTER(true);
    return leave(stream_idle(s) ? OK : NOT_READY);
}
EXPORT hipError_t hipEventCreateWithFlags(void **e, unsigned flags) {
    (void)flags;
    ENTER(true);
    *e = event_new();
    count(EVENTS, *e != NULL);
    return leave(*e ? OK : NO_MEMORY);
}
EXPORT hipError_t hipEventDestroy(void *e) {
    ENTER(false);
    if (!e) return leave(BAD_HANDLE);
    event_free(e);
    count(EVENTS, -1);
    return leave(OK);
}
EXPORT hipError_t hipEventRecord(void *e, void *s) {
    ENTER(true);
    if (!e || !s) return leave(BAD_HANDLE);
    return leave(stream_push(s, (hip_command){.what = DO_EVENT, .event = e}));
}
static int after_event(void) { // the n-th event that has completed reports a fault, when asked for
    static int n;
    if (emu_cfg.event_fault && __atomic_add_fetch(&n, 1, __ATOMIC_RELAXED) == emu_cfg.event_fault) {
        emu_log("event %d reports %d as asked", n, emu_cfg.event_code);
        __atomic_store_n(&device_error, emu_cfg.event_code, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&device_error, __ATOMIC_RELAXED);
}
EXPORT hipError_t hipEventQuery(void *e) {
    ENTER(true);
    if (!e) return leave(BAD_HANDLE);
    return leave(event_done(e) ? after_event() : NOT_READY);
}
EXPORT hipError_t hipEventSynchronize(void *e) {
    ENTER(true);
    if (!e) return leave(BAD_HANDLE);
    event_finish(e);
    return leave(after_event());
}
EXPORT hipError_t hipStreamBeginCapture(void *s, int mode) {
    (void)mode;
    ENTER(true);
    return leave(s ? stream_begin(s) : BAD_HANDLE);
}
EXPORT hipError_t hipStreamEndCapture(void *s, void **graph) {
    *graph = NULL;
    ENTER(true);
    const int code = s ? stream_end(s, (hip_graph **)graph) : BAD_HANDLE;
    count(GRAPHS, !code);
    return leave(code);
}
EXPORT hipError_t hipGraphInstantiate(void **exec, void *graph, void **node, char *log, size_t n) {
    (void)node, (void)log, (void)n;
    *exec = NULL;
    ENTER(true);
    if (!graph) return leave(INVALID);
    *exec = graph_copy(graph);
    count(GRAPHS, *exec != NULL);
    return leave(*exec ? OK : NO_MEMORY);
}
EXPORT hipError_t hipGraphLaunch(void *exec, void *s) {
    ENTER(true);
    if (!exec || !s) return leave(BAD_HANDLE);
    return leave(stream_push(s, (hip_command){.what = DO_GRAPH, .graph = exec}));
}
EXPORT hipError_t hipGraphExecDestroy(void *exec) {
    ENTER(false);
    if (!exec) return leave(INVALID);
    graph_free(exec);
    count(GRAPHS, -1);
    return leave(OK);
}
EXPORT hipError_t hipGraphDestroy(void *graph) {
    ENTER(false);
    if (!graph) return leave(INVALID);
    graph_free(graph);
    count(GRAPHS, -1);
    return leave(OK);
}

/* ---- modules and launches --------------------------------------------------------------------------------------- */

EXPORT hipError_t hipModuleLoadData(void **m, const void *image) {
    *m = NULL;
    ENTER(true);
    if (strncmp(emu_cfg.arch, "gfx11", 5)) {
        emu_log("%s is named by the configuration but only gfx11 is emulated", emu_cfg.arch);
        return leave(209);
    }
    const int code = emu_load((emu_module **)m, image, emu_cfg.arch);
    count(MODULES, !code);
    return leave(code);
}
EXPORT hipError_t hipModuleUnload(void *m) {
    ENTER(false);
    if (!m) return leave(BAD_HANDLE);
    device_finish();
    emu_unload(m);
    count(MODULES, -1);
    return leave(OK);
}
EXPORT hipError_t hipModuleGetFunction(void **f, void *m, const char *name) {
    *f = NULL;
    ENTER(true);
    if (!m) return leave(BAD_HANDLE);
    *f = emu_find_kernel(m, name);
    return leave(*f ? OK : NOT_FOUND);
}
EXPORT hipError_t hipModuleLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                        unsigned by, unsigned bz, unsigned lds, void *s, void **params,
                                        void **extra) {
    ENTER(true);
    const emu_kernel *k = f;
    if (!f || !s) return leave(BAD_HANDLE);
    if ((params && extra) || (!params && !extra)) return leave(INVALID);
    const uint64_t threads = (uint64_t)bx * by * bz;
    if (!gx || !gy || !gz || !threads || gy > 65536 || gz > 65536 || (uint64_t)gx * bx >> 32)
        return leave(INVALID);
    if (threads > 1024) return leave(emu_cfg.version >= 7 ? BAD_CONFIGURATION : INVALID);
    if (k->lds + (uint64_t)lds > 65536) return leave(INVALID);
    if (k->max_threads && threads > k->max_threads) return leave(LAUNCH_FAILURE);
    emu_launch l = {.kernel = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .dynamic_lds = lds};
    l.kernarg = aligned_alloc(64, (k->kernarg_bytes + 127) & ~63u);
    if (!l.kernarg) return leave(NO_MEMORY);
    memset(l.kernarg, 0xFF, k->kernarg_bytes);
    if (params) {
        emu_fill_args(k, l.kernarg, params, l.grid, l.block, lds);
    } else { // {1, buffer, 2, &size, 3}
        size_t n;
        memcpy(&n, extra[3], sizeof n);
        memcpy(l.kernarg, extra[1], n < k->kernarg_bytes ? n : k->kernarg_bytes);
    }
    return leave(stream_push(s, (hip_command){.what = DO_LAUNCH, .launch = l}));
}

/* ---- errors ------------------------------------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {9, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {35, "hipErrorInsufficientDriver", "driver version is insufficient for runtime version"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "hipErrorLaunchOutOfResources", "out of resources"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {901, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "hipErrorUnknown", "unknown error"}};
EXPORT const char *hipGetErrorName(hipError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == e) return errors[i].name;
    return "hipErrorUnknown";
}
EXPORT const char *hipGetErrorString(hipError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == e) return errors[i].text;
    return "unknown error";
}
EXPORT hipError_t hipGetLastError(void) {
    const int r = last_error;
    last_error = 0;
    return r;
}
EXPORT hipError_t hipPeekAtLastError(void) { return last_error; }
