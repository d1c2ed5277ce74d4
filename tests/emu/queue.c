/* queue.c - a thread for each stream runs what was queued, in order; one launch at a time has the machine. */
#include "queue.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct node {
    hip_command c;
    struct node *next;
} node;
struct hip_stream {
    node *first, *last;
    bool busy, quit, capturing;
    pthread_t thread;
    hip_graph *graph;
    struct hip_stream *next;
};
struct hip_event {
    int pending; // records on their way
    int users;   // its owner, and records on their way
};
struct hip_graph {
    hip_command *c;
    int n, users;
};

int device_error, device_launches;
static hip_stream *streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, moved = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t machine = PTHREAD_MUTEX_INITIALIZER;

static void drop_event(hip_event *e) { // under the lock
    if (--e->users == 0) free(e);
}
static void drop_graph(hip_graph *g) {
    if (--g->users) return;
    for (int i = 0; i < g->n; i++) free(g->c[i].owned), free(g->c[i].launch.kernarg);
    free(g->c);
    free(g);
}

static void launch(const emu_launch *l) {
    const int n = __atomic_add_fetch(&device_launches, 1, __ATOMIC_RELAXED);
    if (n == emu_cfg.hang) {
        emu_log("launch %d, kernel %s, never ends", n, l->kernel->name);
        for (;;) pause();
    }
    if (emu_cfg.lost && n >= emu_cfg.lost) {
        if (n == emu_cfg.lost) emu_log("the device is lost at launch %d", n);
        __atomic_store_n(&device_error, 719, __ATOMIC_RELAXED);
        return;
    }
    pthread_mutex_lock(&machine);
    const int code = emu_run(l);
    pthread_mutex_unlock(&machine);
    if (code) __atomic_store_n(&device_error, code, __ATOMIC_RELAXED);
}
static void execute(const hip_command *c) {
    if (__atomic_load_n(&device_error, __ATOMIC_RELAXED) && c->what != DO_EVENT) return;
    switch (c->what) {
    case DO_COPY:
        memcpy(c->to, c->from, c->n);
        emu_mark_written(c->to, c->n);
        break;
    case DO_FILL:
        memset(c->to, c->byte, c->n);
        emu_mark_written(c->to, c->n);
        break;
    case DO_LAUNCH: launch(&c->launch); break;
    case DO_GRAPH:
        for (int i = 0; i < c->graph->n; i++) execute(&c->graph->c[i]);
        break;
    case DO_EVENT: break;
    }
}
static void *run(void *arg) {
    hip_stream *s = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->first && !s->quit) pthread_cond_wait(&wake, &lock);
        if (!s->first) break;
        node *n = s->first;
        s->busy = true;
        pthread_mutex_unlock(&lock);
        execute(&n->c);
        if (n->c.what == DO_LAUNCH) free(n->c.launch.kernarg);
        free(n->c.owned);
        pthread_mutex_lock(&lock);
        s->first = n->next;
        if (!s->first) s->last = NULL;
        if (n->c.what == DO_EVENT) {
            n->c.event->pending--;
            drop_event(n->c.event);
        }
        if (n->c.what == DO_GRAPH) drop_graph(n->c.graph);
        free(n);
        s->busy = false;
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

hip_stream *stream_new(void) {
    hip_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    if (pthread_create(&s->thread, NULL, run, s)) {
        free(s);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return s;
}
void stream_finish(hip_stream *s) {
    pthread_mutex_lock(&lock);
    while (s->first) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}
bool stream_idle(hip_stream *s) {
    pthread_mutex_lock(&lock);
    const bool idle = !s->first;
    pthread_mutex_unlock(&lock);
    return idle;
}
void device_finish(void) {
    pthread_mutex_lock(&lock);
    for (hip_stream *s = streams; s;) {
        if (s->first) {
            pthread_cond_wait(&moved, &lock);
            s = streams;
        } else {
            s = s->next;
        }
    }
    pthread_mutex_unlock(&lock);
}
void stream_free(hip_stream *s) {
    stream_finish(s);
    pthread_mutex_lock(&lock);
    for (hip_stream **p = &streams; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    s->quit = true;
    pthread_cond_broadcast(&wake);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    if (s->graph) drop_graph(s->graph);
    free(s);
}
int stream_push(hip_stream *s, hip_command c) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (s->capturing) {
        hip_graph *g = s->graph;
        hip_command *grown = realloc(g->c, ((size_t)g->n + 1) * sizeof *grown);
        if (grown)
            g->c = grown, g->c[g->n++] = c;
        else
            code = 2;
    } else {
        node *n = calloc(1, sizeof *n);
        if (n) {
            n->c = c;
            if (c.what == DO_EVENT) c.event->pending++, c.event->users++;
            if (c.what == DO_GRAPH) c.graph->users++;
            if (s->last)
                s->last->next = n;
            else
                s->first = n;
            s->last = n;
            pthread_cond_broadcast(&wake);
        } else {
            code = 2;
        }
    }
    pthread_mutex_unlock(&lock);
    if (code) free(c.owned), free(c.launch.kernarg);
    return code;
}
int stream_begin(hip_stream *s) {
    if (s->capturing) return 901; // a capture is on
    s->graph = calloc(1, sizeof *s->graph);
    if (!s->graph) return 2;
    s->graph->users = 1;
    s->capturing = true;
    return 0;
}
int stream_end(hip_stream *s, hip_graph **out) {
    if (!s->capturing) return 1;
    s->capturing = false;
    *out = s->graph;
    s->graph = NULL;
    return 0;
}

hip_event *event_new(void) {
    hip_event *e = calloc(1, sizeof *e);
    if (e) e->users = 1;
    return e;
}
void event_free(hip_event *e) {
    pthread_mutex_lock(&lock);
    drop_event(e);
    pthread_mutex_unlock(&lock);
}
bool event_done(hip_event *e) {
    pthread_mutex_lock(&lock);
    const bool done = !e->pending;
    pthread_mutex_unlock(&lock);
    return done;
}
void event_finish(hip_event *e) {
    pthread_mutex_lock(&lock);
    while (e->pending) pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

static void *copy_of(const void *p, size_t n) {
    void *q = malloc(n ? n : 1);
    return q ? memcpy(q, p, n) : NULL;
}
hip_graph *graph_copy(const hip_graph *g) {
    hip_graph *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->users = 1;
    r->c = copy_of(g->c, (size_t)g->n * sizeof *g->c);
    if (!r->c) {
        free(r);
        return NULL;
    }
    for (r->n = 0; r->n < g->n; r->n++) {
        hip_command *c = &r->c[r->n];
        if (c->owned) c->from = c->owned = copy_of(c->owned, c->n);
        if (c->what == DO_LAUNCH)
            c->launch.kernarg = copy_of(c->launch.kernarg, c->launch.kernel->kernarg_bytes);
    }
    return r;
}
void graph_free(hip_graph *g) {
    pthread_mutex_lock(&lock);
    drop_graph(g);
    pthread_mutex_unlock(&lock);
}
