/* memory.h - how much memory this process may still take, and whether a model fits into it. */
#ifndef MX_ENGINE_MEMORY_H
#define MX_ENGINE_MEMORY_H
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

/* Bytes that can be taken without swapping: MemAvailable of /proc/meminfo, or less where the limit of a control group (v1 or
 * v2, this one or one above it) is nearer; page cache that can be dropped counts as free. UINT64_MAX if the
 * system does not say. Files are read under the folder MLXCEL_SYSROOT, if that is set, so that tests can draw a machine. */
uint64_t mx_memory_available(void);

/* The same for a GPU that shares the host's memory and of whose own view `driver_free` bytes are free: not more than its carve-out
 * has left plus what the kernel lets it map of the host's (mem_info_vram_* and mem_info_gtt_* of amdgpu in sysfs), and of the latter
 * not more than the host can spare. */
uint64_t mx_memory_shared_available(uint64_t driver_free);

typedef struct {
    const char *name; // of the model, for the message
    uint64_t weights, scratch;
    uint64_t per_position; // KV bytes that one more position costs, all sequences together
    uint64_t fixed_kv;     // KV and state bytes that do not depend on the context
    bool f32_kv;           // a cheaper KV type can be asked for
    int n_seq, unit;       // unit: contexts are multiples of it
} mx_memory_need;

/* Of the KV cache and the states, for contexts of ctx. */
uint64_t mx_memory_kv_bytes(const mx_memory_need *n, int ctx);
/* The largest context, at most ctx, that fits into `available` bytes; 0 if not even one unit does. */
int mx_memory_fit(const mx_memory_need *n, int ctx, uint64_t available);
/* MX_ENOMEM, with the numbers and the flags that would help, if context ctx does not fit. */
mx_status mx_memory_check(const mx_memory_need *n, int ctx, uint64_t available, mx_err *err);

#endif
