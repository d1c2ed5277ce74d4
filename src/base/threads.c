#include "base/threads.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_WORKER = 256, SPIN = 20000 }; // about 50 us of spinning before a worker sleeps

typedef struct {
    mx_pool *pool;
    pthread_t thread;
    int index;
} worker;

/* One word tells a loop's state: which round it is, whether workers may still join, and how many are in it. A worker that comes
 * late, because another program has its core, finds the round closed and misses it: nobody waits for it. */
enum { OPEN = 1 << 15, ACTIVE = OPEN - 1, ROUND_SHIFT = 16 };

struct mx_pool {
    int n_worker;
    worker *workers; // [n_worker - 1]: the caller is worker 0
    // One loop. Written by the caller before it opens the round, read by workers that have joined it.
    void (*fn)(void *, int, int);
    void *arg;
    int n, grain;
    _Alignas(64) atomic_int next; // first index that nobody has taken
    _Alignas(64) atomic_ullong state;
    atomic_bool stop;
    _Alignas(64) atomic_int sleeping;
    pthread_mutex_t lock; // for sleeping only
    pthread_cond_t wake;
};

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_chunks(mx_pool *p, int index) {
    for (;;) {
        int i = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (i >= p->n) return;
        int end = p->n - i < p->grain ? p->n : i + p->grain;
        for (; i < end; i++) p->fn(p->arg, i, index);
    }
}

static unsigned long long round_of(mx_pool *p) { return atomic_load(&p->state) >> ROUND_SHIFT; }

static void wait_for_round(mx_pool *p, unsigned long long seen) {
    for (int i = 0; i < SPIN; i++) {
        if (round_of(p) != seen) return;
        pause_cpu();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleeping,
                     1); // before looking at the round: the caller opens a round, then looks here
    while (round_of(p) == seen) pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleeping, 1);
    pthread_mutex_unlock(&p->lock);
}

/* Enter the round that is open now; false if it has been closed. */
static bool join(mx_pool *p, unsigned long long *round) {
    unsigned long long s = atomic_load(&p->state);
    do {
        *round = s >> ROUND_SHIFT;
        if (!(s & OPEN)) return false;
    } while (!atomic_compare_exchange_weak(&p->state, &s, s + 1));
    return true;
}

static void *worker_main(void *arg) {
    worker *w = arg;
    mx_pool *p = w->pool;
    for (unsigned long long seen = 0;;) {
        wait_for_round(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        if (!join(p, &seen)) continue;
        take_chunks(p, w->index);
        atomic_fetch_sub_explicit(&p->state, 1, memory_order_release);
    }
}

static void open_round(mx_pool *p) {
    atomic_store(&p->state, (round_of(p) + 1) << ROUND_SHIFT | OPEN);
    if (atomic_load(&p->sleeping) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void mx_pool_run(mx_pool *p, void (*fn)(void *, int, int), void *arg, int n, int grain) {
    if (grain < 1) grain = 1;
    if (p->n_worker == 1 || n <= grain) {
        for (int i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    open_round(p);
    take_chunks(p, 0);
    atomic_fetch_and(&p->state, ~(unsigned long long)OPEN);
    for (int spins = 0; atomic_load_explicit(&p->state, memory_order_acquire) & ACTIVE; spins++) {
        pause_cpu();
        if (spins > SPIN) sched_yield(); // more workers than cores: let the last one run
    }
}

mx_status mx_pool_new(mx_pool **out, int n_thread, mx_err *err) {
    if (n_thread == 0) n_thread = mx_cpu_count();
    if (n_thread < 1 || n_thread > MAX_WORKER) {
        return mx_fail(err, MX_EINVAL, "%d threads: choose 1 to %d, or 0 for one per core", n_thread,
                       MAX_WORKER);
    }
    mx_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return mx_fail(err, MX_ENOMEM, "no memory for a thread pool");
    *p = (mx_pool){.n_worker = 1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = calloc((size_t)n_thread, sizeof *p->workers);
    for (int i = 1; p->workers && i < n_thread; i++) {
        worker *w = &p->workers[i - 1];
        *w = (worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) break;
        p->n_worker++;
    }
    if (p->n_worker != n_thread) {
        mx_status st =
            mx_fail(err, MX_ENOMEM, "cannot start %d threads; ask for fewer with --threads", n_thread);
        mx_pool_free(p);
        return st;
    }
    *out = p;
    return MX_OK;
}

void mx_pool_free(mx_pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    open_round(p);
    for (int i = 1; i < p->n_worker; i++) pthread_join(p->workers[i - 1].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int mx_pool_size(const mx_pool *p) { return p->n_worker; }

/* Whole cores that a cgroup lets us use, or 0 for no limit: v2 "quota period", v1 two files. */
static int cgroup_cores(void) {
    long long quota = -1, period = 100000;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) < 1) quota = -1; // "max 100000": no number, no limit
        fclose(f);
    } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"))) {
        if (fscanf(f, "%lld", &quota) != 1) quota = -1;
        fclose(f);
        if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re"))) {
            if (fscanf(f, "%lld", &period) != 1) period = 100000;
            fclose(f);
        }
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int mx_cpu_count(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int limit = cgroup_cores();
    if (limit && limit < n) n = limit;
    return n < 1 ? 1 : n > MAX_WORKER ? MAX_WORKER : n;
}
