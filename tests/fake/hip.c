/* hip.c - libamdhip64.so.6 for tests; see fake.h. */
#define FAKE_RUNTIME
#include "fake.h"
#include <stdio.h>

fake_state fake = {.total = 1u << 30, .n_device = 1, .arch = "gfx1151"};
enum { NOT_READY = 600, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };

int hipInit(unsigned flags) {
    (void)flags;
    ENTER;
    return fake.init_code;
}
int hipDriverGetVersion(int *v) {
    ENTER;
    *v = 60443484;
    return 0;
}
int hipRuntimeGetVersion(int *v) {
    ENTER;
    *v = 60443484;
    return 0;
}
const char *hipGetErrorName(int code) {
    static char text[32];
    snprintf(text, sizeof text, "hipError%d", code);
    return text;
}
const char *hipGetErrorString(int code) {
    return code == OUT_OF_MEMORY ? "out of memory" : "something went wrong";
}
int hipGetDeviceCount(int *n) {
    ENTER;
    *n = fake.n_device;
    return *n ? 0 : NO_DEVICE;
}
int hipSetDevice(int device) {
    ENTER;
    return device < fake.n_device ? 0 : 101;
}
int hipDeviceGetName(char *name, int cap, int device) {
    ENTER;
    snprintf(name, (size_t)cap, "Fake GPU %d", device);
    return 0;
}
int hipGetDevicePropertiesR0600(void *p, int device) {
    (void)device;
    ENTER;
    snprintf((char *)p + 1160, 256, "%s:sramecc-:xnack-", fake.arch);
    return 0;
}
int hipDeviceGetAttribute(int *v, int which, int device) {
    (void)device;
    ENTER;
    *v = which == 16 ? fake.shares_memory : which == 63 ? 20 : 65536;
    return 0;
}
int hipMemGetInfo(size_t *left, size_t *total) {
    ENTER;
    *total = fake.total;
    *left = fake.total - fake.used;
    return 0;
}
int hipMalloc(void **p, size_t n) {
    ENTER;
    if (n > fake.total - fake.used) return OUT_OF_MEMORY;
    *p = fake_new(FAKE_MEMORY, n);
    return 0;
}
int hipFree(void *p) {
    fake_delete(FAKE_MEMORY, p);
    ENTER_WAITING;
    return 0;
}
int hipHostMalloc(void **p, size_t n, unsigned flags) {
    (void)flags;
    ENTER;
    *p = fake_new(FAKE_PINNED, n);
    return 0;
}
int hipHostFree(void *p) {
    fake_delete(FAKE_PINNED, p);
    ENTER_WAITING;
    return 0;
}
int hipMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream) {
    (void)kind, (void)stream;
    ENTER;
    memcpy(to, from, n);
    return 0;
}
int hipMemsetAsync(void *to, int byte, size_t n, void *stream) {
    (void)stream;
    ENTER;
    memset(to, byte, n);
    return 0;
}
int hipModuleLoadData(void **m, const void *image) {
    (void)image;
    ENTER;
    *m = fake_new(FAKE_MODULE, 1);
    return 0;
}
int hipModuleUnload(void *m) {
    fake_delete(FAKE_MODULE, m);
    ENTER_WAITING;
    return 0;
}
int hipModuleGetFunction(void **f, void *m, const char *name) {
    (void)name;
    ENTER;
    *f = m;
    return 0;
}
int hipModuleLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                          unsigned lds, void *stream, void **args, void **extra) {
    (void)f, (void)x, (void)y, (void)z, (void)tx, (void)ty, (void)tz, (void)lds, (void)stream, (void)args,
        (void)extra;
    ENTER;
    fake_launch();
    return 0;
}
int hipStreamCreateWithFlags(void **s, unsigned flags) {
    (void)flags;
    ENTER;
    *s = fake_new(FAKE_STREAM, 1);
    return 0;
}
int hipStreamDestroy(void *s) {
    fake_delete(FAKE_STREAM, s);
    ENTER_WAITING;
    return 0;
}
int hipEventCreateWithFlags(void **e, unsigned flags) {
    (void)flags;
    ENTER;
    *e = fake_new(FAKE_EVENT, 1);
    return 0;
}
int hipEventDestroy(void *e) {
    fake_delete(FAKE_EVENT, e);
    ENTER;
    return 0;
}
int hipEventRecord(void *e, void *stream) {
    (void)e, (void)stream;
    ENTER;
    return fake.capturing ? 900 : 0;
}
int hipEventQuery(void *e) {
    (void)e;
    ENTER;
    return fake.capturing ? 900 : fake_query(NOT_READY);
}
int hipStreamBeginCapture(void *s, int mode) {
    (void)s, (void)mode;
    ENTER;
    fake.capturing = 1;
    return 0;
}
int hipStreamEndCapture(void *s, void **graph) {
    (void)s;
    fake.capturing = 0;
    ENTER;
    *graph = fake_new(FAKE_GRAPH, 1);
    return 0;
}
#ifndef FAKE_OLD
int hipGraphInstantiate(void **exec, void *graph, void **node, char *log, size_t cap) {
    (void)graph, (void)node, (void)log, (void)cap;
    ENTER;
    *exec = fake_new(FAKE_GRAPH, 1);
    return 0;
}
#endif
int hipGraphLaunch(void *exec, void *stream) {
    (void)exec, (void)stream;
    ENTER;
    fake_launch();
    return 0;
}
int hipGraphExecDestroy(void *exec) {
    fake_delete(FAKE_GRAPH, exec);
    ENTER;
    return 0;
}
int hipGraphDestroy(void *graph) {
    fake_delete(FAKE_GRAPH, graph);
    ENTER;
    return 0;
}
