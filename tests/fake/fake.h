/* fake.h - GPU runtimes for tests, without a GPU: cuda.c and hip.c export the functions that mlxcel calls under the names of the real
 * libraries. Device memory is the host's, kernels do nothing (memory stays as it was, mostly zeros), everything has ended when it is
 * queued. What is alive is counted, and any call can be told to fail. The test finds this state by dlsym("fake"). */
#ifndef MX_TEST_FAKE_H
#define MX_TEST_FAKE_H
#include <stddef.h>

typedef enum {
    FAKE_MEMORY,
    FAKE_PINNED,
    FAKE_MODULE,
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_GRAPH,
    FAKE_CONTEXT,
    FAKE_KINDS
} fake_kind;

typedef struct {
    // to be set
    char fail[48]; // this function fails ...
    int fail_at;   // ... at this call, from 1
    int fail_code; // with this code; what it should have made it has not
    int init_code; // of cuInit, hipInit
    int fault_at; // this launch, from 1, makes the device fault with fault_code: seen by the next event query, and by all calls from then on
    int fault_code;
    int hang_at;  // this launch never ends
    size_t total; // bytes of device memory
    int n_device;
    char arch[32]; // "gfx1151", or "9.0" for CUDA
    int shares_memory;
    // to be read
    struct {
        const char *name;
        int n;
    } calls[64];
    int live[FAKE_KINDS];
    size_t used, peak;
    int n_launch, sticky, hangs;
    int blocked; // calls that would never have returned, because the device hangs
    int capturing;
} fake_state;

extern fake_state fake;

#ifdef FAKE_RUNTIME // for cuda.c and hip.c
#include <stdlib.h>
#include <string.h>

/* Every function begins with this: count the call, and give the code that it must return with at once, or 0. */
static inline int fake_enter(const char *name) {
    int i = 0;
    while (i < 63 && fake.calls[i].name && strcmp(fake.calls[i].name, name)) i++;
    fake.calls[i].name = name;
    fake.calls[i].n++;
    if (!strcmp(fake.fail, name) && fake.calls[i].n == fake.fail_at) return fake.fail_code;
    return fake.sticky;
}
#define ENTER                                                                                                \
    do {                                                                                                     \
        int code_ = fake_enter(__func__);                                                                    \
        if (code_) return code_;                                                                             \
    } while (0)
/* The real functions wait for the device here. */
#define ENTER_WAITING                                                                                        \
    do {                                                                                                     \
        fake.blocked += fake.hangs;                                                                          \
        ENTER;                                                                                               \
    } while (0)

typedef struct fake_head { // stands before every object's memory
    size_t bytes, kind;
    struct fake_head *next,
        *before; // all that are alive: what a program leaves to a hung device is no leak of the test's
    char pad[224];
} fake_head;
static fake_head *fake_all;

static inline void *fake_new(fake_kind kind, size_t bytes) {
    fake_head *h = NULL;
    if (posix_memalign((void **)&h, 256, sizeof *h + (bytes ? bytes : 1))) abort();
    *h = (fake_head){.bytes = bytes, .kind = kind, .next = fake_all};
    if (fake_all) fake_all->before = h;
    fake_all = h;
    memset(h + 1, 0xFF, bytes); // NaN, unless it is written
    fake.live[kind]++;
    if (kind == FAKE_MEMORY) fake.used += bytes;
    if (fake.used > fake.peak) fake.peak = fake.used;
    return h + 1;
}
static inline void fake_delete(fake_kind kind, void *p) {
    fake_head *h = (fake_head *)p - 1;
    if (h->kind != kind) abort();
    if (h->next) h->next->before = h->before;
    if (h->before)
        h->before->next = h->next;
    else
        fake_all = h->next;
    fake.live[kind]--;
    if (kind == FAKE_MEMORY) fake.used -= h->bytes;
    free(h);
}
static inline void fake_launch(void) {
    fake.n_launch++;
    if (fake.n_launch == fake.hang_at) fake.hangs = 1;
}
/* What an event query answers: not_ready for ever, the fault, or that all has ended. */
static inline int fake_query(int not_ready) {
    if (fake.hangs) return not_ready;
    if (fake.fault_at && fake.n_launch >= fake.fault_at) fake.sticky = fake.fault_code;
    return fake.sticky;
}
#endif
#endif
