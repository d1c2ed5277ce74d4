/* cuda.c - libcuda.so.1 for tests; see fake.h. */
#define FAKE_RUNTIME
#include "fake.h"
#include <stdio.h>

fake_state fake = {.total = 1u << 30, .n_device = 1, .arch = "9.0"};
typedef unsigned long long ptr;
enum { NOT_READY = 600, OUT_OF_MEMORY = 2 };

int cuInit(unsigned flags) {
    (void)flags;
    ENTER;
    return fake.init_code;
}
int cuDriverGetVersion(int *v) {
    ENTER;
    *v = 12040;
    return 0;
}
int cuGetErrorName(int code, const char **name) {
    static char text[32];
    ENTER;
    snprintf(text, sizeof text, "CUDA_ERROR_%d", code);
    *name = text;
    return 0;
}
int cuGetErrorString(int code, const char **text) {
    ENTER;
    *text = code == OUT_OF_MEMORY ? "out of memory" : "something went wrong";
    return 0;
}
int cuDeviceGetCount(int *n) {
    ENTER;
    *n = fake.n_device;
    return 0;
}
int cuDeviceGet(int *device, int index) {
    ENTER;
    *device = index;
    return index < fake.n_device ? 0 : 101;
}
int cuDeviceGetName(char *name, int cap, int device) {
    ENTER;
    snprintf(name, (size_t)cap, "Fake GPU %d", device);
    return 0;
}
int cuDeviceGetAttribute(int *v, int which, int device) {
    (void)device;
    ENTER;
    int major = 0, minor = 0;
    sscanf(fake.arch, "%d.%d", &major, &minor);
    *v = which == 75   ? major
         : which == 76 ? minor
         : which == 16 ? 132
         : which == 97 ? 232448
                       : fake.shares_memory;
    return 0;
}
int cuDeviceTotalMem_v2(size_t *n, int device) {
    (void)device;
    ENTER;
    *n = fake.total;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    ENTER;
    static int one;
    *context = &one;
    fake.live[FAKE_CONTEXT]++;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    fake.live[FAKE_CONTEXT]--;
    ENTER_WAITING;
    return 0;
}
int cuCtxSetCurrent(void *context) {
    (void)context;
    ENTER;
    return 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    ENTER;
    *total = fake.total;
    *left = fake.total - fake.used;
    return 0;
}
int cuMemAlloc_v2(ptr *p, size_t n) {
    ENTER;
    if (n > fake.total - fake.used) return OUT_OF_MEMORY;
    *p = (ptr)fake_new(FAKE_MEMORY, n);
    return 0;
}
int cuMemFree_v2(ptr p) {
    fake_delete(FAKE_MEMORY, (void *)p);
    ENTER_WAITING;
    return 0;
}
int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    (void)flags;
    ENTER;
    *p = fake_new(FAKE_PINNED, n);
    return 0;
}
int cuMemFreeHost(void *p) {
    fake_delete(FAKE_PINNED, p);
    ENTER_WAITING;
    return 0;
}
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t n, void *stream) {
    (void)stream;
    ENTER;
    memcpy((void *)to, from, n);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t n, void *stream) {
    (void)stream;
    ENTER;
    memcpy(to, (void *)from, n);
    return 0;
}
int cuMemsetD8Async(ptr to, unsigned char byte, size_t n, void *stream) {
    (void)stream;
    ENTER;
    memset((void *)to, byte, n);
    return 0;
}
int cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *options, void **values) {
    (void)image, (void)n, (void)options, (void)values;
    ENTER;
    *m = fake_new(FAKE_MODULE, 1);
    return 0;
}
int cuModuleUnload(void *m) {
    fake_delete(FAKE_MODULE, m);
    ENTER_WAITING;
    return 0;
}
int cuModuleGetFunction(void **f, void *m, const char *name) {
    (void)name;
    ENTER;
    *f = m;
    return 0;
}
int cuFuncGetAttribute(int *v, int which, void *f_) {
    (void)which, (void)f_;
    ENTER;
    *v = 1024;
    return 0;
}
int cuFuncSetAttribute(void *f, int which, int v) {
    (void)f, (void)which, (void)v;
    ENTER;
    return 0;
}
#ifndef FAKE_OLD
int cuLaunchKernelEx(const void *config, void *f, void **args, void **extra) {
    (void)config, (void)f, (void)args, (void)extra;
    ENTER;
    fake_launch();
    return 0;
}
#endif
int cuStreamCreate(void **s, unsigned flags) {
    (void)flags;
    ENTER;
    *s = fake_new(FAKE_STREAM, 1);
    return 0;
}
int cuStreamDestroy_v2(void *s) {
    fake_delete(FAKE_STREAM, s);
    ENTER_WAITING;
    return 0;
}
int cuEventCreate(void **e, unsigned flags) {
    (void)flags;
    ENTER;
    *e = fake_new(FAKE_EVENT, 1);
    return 0;
}
int cuEventDestroy_v2(void *e) {
    fake_delete(FAKE_EVENT, e);
    ENTER;
    return 0;
}
int cuEventRecord(void *e, void *stream) {
    (void)e, (void)stream;
    ENTER;
    return fake.capturing ? 900 : 0;
}
int cuEventQuery(void *e) {
    (void)e;
    ENTER;
    return fake.capturing ? 900 : fake_query(NOT_READY);
}
int cuStreamBeginCapture_v2(void *s, int mode) {
    (void)s, (void)mode;
    ENTER;
    fake.capturing = 1;
    return 0;
}
int cuStreamEndCapture(void *s, void **graph) {
    (void)s;
    fake.capturing = 0;
    ENTER;
    *graph = fake_new(FAKE_GRAPH, 1);
    return 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    (void)graph, (void)flags;
    ENTER;
    *exec = fake_new(FAKE_GRAPH, 1);
    return 0;
}
int cuGraphLaunch(void *exec, void *stream) {
    (void)exec, (void)stream;
    ENTER;
    fake_launch();
    return 0;
}
int cuGraphExecDestroy(void *exec) {
    fake_delete(FAKE_GRAPH, exec);
    ENTER;
    return 0;
}
int cuGraphDestroy(void *graph) {
    fake_delete(FAKE_GRAPH, graph);
    ENTER;
    return 0;
}
