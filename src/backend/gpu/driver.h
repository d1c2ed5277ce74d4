/* driver.h - what differs between GPU runtimes: a small table that rocm.c and cuda.c fill.
 *
 * The runtime's library is opened when the device is: programs start on machines that lack it. One context and one stream
 * a device. Every function returns what the runtime said as one sentence that names the call. */
#ifndef MX_BACKEND_GPU_DRIVER_H
#define MX_BACKEND_GPU_DRIVER_H
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mx_gpu mx_gpu; // an open device
typedef struct mx_gpu_module mx_gpu_module;
typedef struct mx_gpu_func mx_gpu_func;
typedef struct mx_gpu_event mx_gpu_event;
typedef struct mx_gpu_graph mx_gpu_graph;

typedef struct {
    char name[80];
    char arch[32]; // "gfx1151", "sm_90"
    int compute_units;
    int lds; // bytes of shared memory that a block may have
    size_t mem_total, mem_free;
    bool shares_memory; // with the host: an APU
    char version[48];   // of driver and runtime, for display
} mx_gpu_info;

typedef struct mx_gpu_driver {
    const char *name; // "rocm", "cuda"
    /* How many devices; MX_ENOTFOUND with the reason in one sentence if there is no usable driver or none. */
    mx_status (*count)(int *n, mx_err *err);
    mx_status (*info)(int index, mx_gpu_info *out, mx_err *err);
    mx_status (*open)(mx_gpu **out, int index, mx_err *err);
    void (*close)(mx_gpu *g);
    mx_status (*mem_info)(mx_gpu *g, size_t *free_bytes, size_t *total, mx_err *err);
    mx_status (*alloc)(mx_gpu *g, void **p, size_t bytes, mx_err *err);
    void (*release)(mx_gpu *g, void *p);
    mx_status (*host_alloc)(mx_gpu *g, void **p, size_t bytes, mx_err *err); // pinned
    void (*host_release)(mx_gpu *g, void *p);
    mx_status (*copy_in)(mx_gpu *g, void *dev, const void *host, size_t n,
                         mx_err *err); // queued; host must be pinned and stay
    mx_status (*copy_out)(mx_gpu *g, void *host, const void *dev, size_t n, mx_err *err); // queued
    mx_status (*fill)(mx_gpu *g, void *dev, int byte, size_t n, mx_err *err);             // queued
    mx_status (*load)(mx_gpu *g, mx_gpu_module **out, const void *image, size_t n, const char *name,
                      mx_err *err);
    void (*unload)(mx_gpu *g, mx_gpu_module *m);
    mx_status (*find)(mx_gpu *g, mx_gpu_func **out, mx_gpu_module *m, const char *name, mx_err *err);
    /* The most threads of a block that the function's registers leave room for. NULL: what the kernels were built for, 256. */
    mx_status (*most_threads)(mx_gpu *g, mx_gpu_func *f, uint32_t *n, mx_err *err);
    /* overlap: may begin before the launch ahead of it has ended, as far as the kernel itself allows; a driver may ignore it. */
    mx_status (*launch)(mx_gpu *g, mx_gpu_func *f, const uint32_t grid[3], uint32_t threads, uint32_t lds,
                        bool overlap, void **args, const char *name, mx_err *err);
    mx_status (*event_new)(mx_gpu *g, mx_gpu_event **out, mx_err *err);
    void (*event_free)(mx_gpu *g, mx_gpu_event *e);
    mx_status (*event_record)(mx_gpu *g, mx_gpu_event *e, mx_err *err);
    mx_status (*event_done)(mx_gpu *g, mx_gpu_event *e, bool *done,
                            mx_err *err);             // never blocks; a device fault shows here
    mx_status (*graph_begin)(mx_gpu *g, mx_err *err); // what is queued from here on is recorded, not run
    mx_status (*graph_end)(mx_gpu *g, mx_gpu_graph **out, mx_err *err);
    mx_status (*graph_launch)(mx_gpu *g, mx_gpu_graph *r, mx_err *err);
    void (*graph_free)(mx_gpu *g, mx_gpu_graph *r);
} mx_gpu_driver;

extern const mx_gpu_driver mx_gpu_driver_rocm, mx_gpu_driver_cuda;

#endif
