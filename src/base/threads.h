/* threads.h - a pool that runs one loop on several cores.
 *
 * The caller's thread is worker 0 and works too. Between loops the workers spin for a short time (a decode step
 * is a few hundred loops of some tens of microseconds each), then sleep. */
#ifndef MX_BASE_THREADS_H
#define MX_BASE_THREADS_H
#include "base/err.h"

typedef struct mx_pool mx_pool;

/* n_thread workers, the caller included; 0: one for each core this process may use (cgroup quota respected). */
mx_status mx_pool_new(mx_pool **out, int n_thread, mx_err *err);
void mx_pool_free(mx_pool *p);
int mx_pool_size(const mx_pool *p);

/* Call fn(arg, i, worker) for every i in [0, n), in chunks of `grain` consecutive i that idle workers take in
 * turn. Returns when all are done. Which worker runs which i is not fixed, so fn must not let its result
 * depend on it; worker (0 .. size-1) may index scratch memory. Not re-entrant. */
void mx_pool_run(mx_pool *p, void (*fn)(void *arg, int i, int worker), void *arg, int n, int grain);

/* Cores this process may use: sched_getaffinity and the cgroup v1/v2 quota, at least 1. */
int mx_cpu_count(void);

#endif
