/* run.c - a launch: workgroups over a few threads, the waves of each in turn from barrier to barrier. Also waits and faults.
 *
 * A load marks its destination as pending until an s_waitcnt covers it; vector loads and LDS accesses come back in order, scalar loads
 * in any. Workgroups are independent, so which thread runs one does not show in the results. */
#include "machine.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

/* ---- waits --------------------------------------------------------------------------------------------------- */

static void rebuild(emu_wave *w) {
    memset(w->pend, 0, sizeof w->pend);
    w->any_pending = 0;
    for (int q = 0; q < QUEUES; q++)
        for (int i = 0; i < w->q[q].n; i++)
            for (unsigned r = w->q[q].at[i].first; r < (unsigned)w->q[q].at[i].first + w->q[q].at[i].n; r++)
                w->pend[r >> 6] |= 1ull << (r & 63);
    for (int i = 0; i < 6; i++) w->any_pending |= w->pend[i];
}
void emu_wait(emu_wave *w, int queue, int left) {
    emu_queue *q = &w->q[queue];
    if (q->n <= left) return;
    memmove(q->at, q->at + (q->n - left), (size_t)left * sizeof *q->at);
    q->n = left;
    rebuild(w);
}
void emu_pend(emu_wave *w, const emu_op *o, int queue, unsigned first, unsigned n) {
    emu_queue *q = &w->q[queue];
    if (w->any_pending) // filled by two kinds of load: which comes last is open
        for (int other = 0; other < QUEUES; other++)
            for (int i = 0; other != queue && i < w->q[other].n; i++) {
                const unsigned f = w->q[other].at[i].first, l = f + w->q[other].at[i].n;
                if (n && first < l && f < first + n && strncmp(o->text, "flat_", 5))
                    emu_fault(
                        w, o, 719,
                        "a register is loaded while another kind of load into it has not been waited for");
            }
    if (q->n == 64) emu_wait(w, queue, 63); // the counter is full: the hardware waits
    q->at[q->n].first = (uint16_t)first;
    q->at[q->n++].n = (uint16_t)n;
    for (unsigned r = first; r < first + n; r++) w->pend[r >> 6] |= 1ull << (r & 63), w->any_pending = 1;
}
void emu_early(emu_wave *w, const emu_op *o) {
    for (unsigned r = 0; r < 384; r++)
        if (w->pend[r >> 6] & o->uses[r >> 6] & 1ull << (r & 63))
            emu_fault(w, o, 719, "%c%u is used before its load has been waited for", r < VGPRS ? 'v' : 's',
                      r < VGPRS ? r : r - VGPRS);
}

/* ---- faults -------------------------------------------------------------------------------------------------- */

void emu_fault(emu_wave *w, const emu_op *o, int code, const char *fmt, ...) {
    emu_worker *k = w->k;
    char what[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(k->report, sizeof k->report,
             "fault: kernel %s, workgroup (%u, %u, %u), wave %d, at +0x%llx [%s]: %s",
             k->launch->kernel->name, k->group[0], k->group[1], k->group[2], w->id,
             (unsigned long long)(o->pc - k->launch->kernel->entry), o->text, what);
    k->error = code;
    longjmp(k->fault, 1);
}
void *emu_access(emu_wave *w, const emu_op *o, uint64_t at, unsigned size, int lane, bool store) {
    emu_worker *k = w->k;
    emu_range *g = &k->seen[o->pc >> 2 & 63];
    if (at >= k->kernarg.begin && at + size <= k->kernarg.end && !store) return (void *)at;
    if (at < g->begin || at + size > g->end || at + size < at)
        if (!emu_find(at, size, g)) {
            char who[24] = "";
            g->begin = g->end = 0;
            if (lane >= 0) snprintf(who, sizeof who, "lane %d: ", lane);
            emu_fault(w, o, 700, "%s%s of %u bytes at 0x%llx, where no memory is allocated", who,
                      store ? "store" : "load", size, (unsigned long long)at);
        }
    if (store && g->kind == MEM_CODE)
        emu_fault(w, o, 700, "lane %d: store into a code object at 0x%llx", lane, (unsigned long long)at);
    if (g->written) {
        uint8_t *s = g->written + (at - g->begin);
        if (store)
            memset(s, 1, size);
        else if (memchr(s, 0, size)) {
            if (emu_cfg.unwritten > 1)
                emu_fault(w, o, 719, "lane %d: load of %u bytes at 0x%llx, which were never written", lane,
                          size, (unsigned long long)at);
            emu_log("unwritten: kernel %s [%s] lane %d reads %u bytes at 0x%llx, which were never written",
                    k->launch->kernel->name, o->text, lane, size, (unsigned long long)at);
            memset(s, 1, size);
        }
    }
    return (void *)at;
}

/* ---- waves ---------------------------------------------------------------------------------------------------- */

static void start_wave(emu_worker *k, emu_wave *w, int id, uint32_t threads) {
    const emu_kernel *e = k->launch->kernel;
    const uint32_t *b = k->launch->block;
    const unsigned vgprs = e->vgprs ? e->vgprs : VGPRS;
    memset(w->v, 0xFF,
           (vgprs < VGPRS ? vgprs + 8 < VGPRS ? vgprs + 8 : VGPRS : VGPRS) *
               sizeof(U)); // registers start with anything
    memset(w->sv, 0xFF, sizeof w->sv);
    memset(w->s, 0xFF, sizeof w->s);
    w->s[NUL] = 0;
    w->sv[NUL] = (U)(0u);
    w->scc = 0;
    w->stop = STOP_NO;
    w->id = id;
    w->k = k;
    w->pc = k->func->ops;
    memset(w->pend, 0, sizeof w->pend);
    w->any_pending = 0;
    for (int q = 0; q < QUEUES; q++) w->q[q].n = 0;
    w->scratch = k->scratch + (size_t)id * LANES * e->scratch;
    const uint32_t first = (uint32_t)id * LANES, left = threads - first;
    put_s(w, EXEC, left >= LANES ? ~0u : (1u << left) - 1);
    unsigned at = 0;
    static const uint8_t user[7] = {4, 2, 2, 2, 2, 2, 1};
    for (int i = 0; i < 7;
         i++) { // bit 3: the address of the arguments; the others are not needed by what clang makes
        if (!(e->properties >> i & 1)) continue;
        if (i == 3) put_s64(w, at, (uint64_t)k->launch->kernarg);
        at += user[i];
    }
    const unsigned n_user = e->rsrc2 >> 1 & 31;
    if (at < n_user) at = n_user;
    for (int i = 0; i < 3; i++)
        if (e->rsrc2 >> (7 + i) & 1) put_s(w, at++, k->group[i]);
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t t = first + i;
        ((uint32_t *)&w->v[0])[i] = t % b[0] | t / b[0] % b[1] << 10 | t / (b[0] * b[1]) << 20;
    }
}
FORCE void step(emu_wave *w, const emu_op *o) {
    if (w->any_pending && ((w->pend[0] & o->uses[0]) | (w->pend[1] & o->uses[1]) | (w->pend[2] & o->uses[2]) |
                           (w->pend[3] & o->uses[3]) | (w->pend[4] & o->uses[4]) | (w->pend[5] & o->uses[5])))
        emu_early(w, o);
    o->fn(w, o);
}
static void run_wave(emu_wave *w) {
    w->stop = STOP_NO;
    if (w->k->counts) {
        const emu_op *base = w->k->func->ops;
        const size_t n = w->k->func->n_op;
        while (!w->stop) {
            const emu_op *o = w->pc++;
            const size_t i = (size_t)(o - base);
            if (i < n) w->k->counts[i]++;
            w->k->lanes += (unsigned)__builtin_popcount(w->s[EXEC]);
            step(w, o);
        }
        return;
    }
    while (!w->stop) {
        const emu_op *o = w->pc++;
        step(w, o);
    }
}
static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}
static void run_group(emu_worker *k, uint32_t threads) {
    bool done[64] = {false};
    int left = k->n_wave;
    k->groups_run++;
    k->waves_run += (uint64_t)k->n_wave;
    memset(k->lds, 0xFF, k->lds_bytes);
    for (int i = 0; i < k->n_wave; i++) start_wave(k, &k->waves[i], i, threads);
    for (uint32_t round = 0; left; round++) {
        int stopped = 0;
        k->epoch++;
        const int first =
            emu_cfg.shuffle
                ? (int)(mix((uint32_t)emu_cfg.shuffle * 77u + round + k->group[0] * 31u + k->group[1]) %
                        (unsigned)k->n_wave)
                : 0;
        const int sign = emu_cfg.shuffle && (round + (uint32_t)emu_cfg.shuffle) % 2 ? -1 : 1;
        for (int j = 0; j < k->n_wave; j++) {
            const int i = ((first + sign * j) % k->n_wave + k->n_wave) % k->n_wave;
            if (done[i]) continue;
            run_wave(&k->waves[i]);
            if (k->waves[i].stop == STOP_END)
                done[i] = true, left--;
            else
                stopped++;
        }
        (void)stopped; // waves that have ended no longer count for a barrier
    }
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const emu_launch *l;
    const emu_func *f;
    uint64_t n_group, *next;
    uint32_t threads;
    int *stop;
    emu_worker *k;
} job;

static emu_worker *workers[64];
static emu_worker *worker(int i, size_t scratch) {
    if (!workers[i]) {
        emu_worker *k = aligned_alloc(128, (sizeof *k + 127) & ~(size_t)127);
        if (!k) abort();
        memset(k, 0, sizeof *k);
        k->lds = aligned_alloc(128, 65536 + 128);
        k->waves = aligned_alloc(128, 32 * sizeof *k->waves);
        if (!k->lds || !k->waves) abort();
        memset(k->waves, 0, 32 * sizeof *k->waves);
        if (emu_cfg.races) k->shadow = calloc(65536 / 4 + 4, sizeof *k->shadow);
        workers[i] = k;
    }
    free(workers[i]->scratch);
    workers[i]->scratch = NULL;
    if (scratch) {
        workers[i]->scratch = malloc(scratch);
        if (!workers[i]->scratch) abort();
        memset(workers[i]->scratch, 0xFF, scratch);
    }
    return workers[i];
}
static void *work(void *arg) {
    job *j = arg;
    emu_worker *k = j->k;
    if (setjmp(k->fault)) {
        __atomic_store_n(j->stop, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    for (;;) {
        uint64_t g = __atomic_fetch_add(j->next, 1, __ATOMIC_RELAXED);
        if (g >= j->n_group || __atomic_load_n(j->stop, __ATOMIC_RELAXED)) return NULL;
        if (emu_cfg.shuffle % 2) g = j->n_group - 1 - g;
        k->group[0] = (uint32_t)(g % j->l->grid[0]);
        k->group[1] = (uint32_t)(g / j->l->grid[0] % j->l->grid[1]);
        k->group[2] = (uint32_t)(g / j->l->grid[0] / j->l->grid[1]);
        run_group(k, j->threads);
    }
}

/* A pool that lives on: a thread costs more than most launches. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    job jobs[64];
    bool has[64];
    int busy, n;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
static void *helper(void *arg) {
    const int i = (int)(intptr_t)arg;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.has[i]) pthread_cond_wait(&pool.wake, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
        work(&pool.jobs[i]);
        pthread_mutex_lock(&pool.lock);
        pool.has[i] = false;
        if (--pool.busy == 0) pthread_cond_signal(&pool.done);
    }
    return NULL;
}
static void start_helpers(int n) {
    for (; pool.n < n; pool.n++) {
        pthread_t t;
        if (pthread_create(&t, NULL, helper, (void *)(intptr_t)(pool.n + 1))) return;
        pthread_detach(t);
    }
}

void emu_write_stats(const emu_launch *l, const emu_func *f, emu_worker *const *k, int n,
                     uint64_t unique_lines);

int emu_run(const emu_launch *l) {
    char why[500] = "";
    emu_kernel *e = l->kernel;
    const uint32_t threads = l->block[0] * l->block[1] * l->block[2];
    if (!e->func) e->func = emu_decode(e->module, e->entry, why, sizeof why);
    if (!e->func) {
        emu_log("fault: %s", why);
        return 719;
    }
    const uint64_t n_group = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    const int n_wave = (int)((threads + LANES - 1) / LANES);
    uint64_t next = 0;
    int stop = 0, n = emu_cfg.threads, code = 0;
    if ((uint64_t)n > n_group) n = (int)n_group;
    if (n > 32) n = 32;
    start_helpers(n - 1);
    if (n > pool.n + 1) n = pool.n + 1;
    job jobs[64];
    for (int i = 0; i < n; i++) {
        emu_worker *k = worker(i, (size_t)n_wave * LANES * e->scratch);
        k->launch = l;
        k->func = e->func;
        k->n_wave = n_wave;
        k->lds_bytes = e->lds + l->dynamic_lds;
        k->error = 0;
        k->kernarg =
            (emu_range){.begin = (uint64_t)l->kernarg, .end = (uint64_t)l->kernarg + e->kernarg_bytes};
        memset(k->seen, 0, sizeof k->seen);
        if (emu_cfg.stats[0]) {
            k->counts = calloc(e->func->n_op, sizeof *k->counts);
            k->lanes = k->load_bytes = k->store_bytes = k->atomic_bytes = k->smem_bytes = k->lds_bytes_moved =
                k->lines = k->lds_passes = k->lds_accesses = k->waves_run = k->groups_run = 0;
        }
        jobs[i] = (job){l, e->func, n_group, &next, threads, &stop, k};
    }
    if (emu_cfg.stats[0]) emu_lines_clear();
    pthread_mutex_lock(&pool.lock);
    pool.busy = n - 1;
    for (int i = 1; i < n; i++) pool.jobs[i] = jobs[i], pool.has[i] = true;
    if (n > 1) pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work(&jobs[0]);
    pthread_mutex_lock(&pool.lock);
    while (pool.busy) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < n; i++) {
        if (!workers[i]->error) continue;
        emu_log("%s", workers[i]->report);
        code = workers[i]->error;
    }
    if (emu_cfg.stats[0]) emu_write_stats(l, e->func, workers, n, emu_lines_count());
    for (int i = 0; i < n; i++) free(workers[i]->counts), workers[i]->counts = NULL;
    return code;
}
