/* queue.h - streams, events and graphs of the stand-in library: between hip.c (the calls) and queue.c (the threads). */
#ifndef EMU_QUEUE_H
#define EMU_QUEUE_H
#include "emu.h"

typedef struct hip_stream hip_stream;
typedef struct hip_event hip_event;
typedef struct hip_graph hip_graph;

typedef struct {
    enum { DO_COPY, DO_FILL, DO_LAUNCH, DO_EVENT, DO_GRAPH } what;
    void *to;
    const void *from;
    size_t n;
    int byte;
    void *owned; // freed when done: a copy of pageable memory
    emu_launch launch;
    hip_event *event;
    hip_graph *graph;
} hip_command;

hip_stream *stream_new(void);
void stream_finish(hip_stream *s); // waits
void stream_free(hip_stream *s);
int stream_push(hip_stream *s,
                hip_command c); // takes what the command owns, also when it fails; recorded while capturing
bool stream_idle(hip_stream *s);
int stream_begin(hip_stream *s);
int stream_end(hip_stream *s, hip_graph **out);
void device_finish(void); // all streams

hip_event *event_new(void);
void event_free(hip_event *e);
bool event_done(hip_event *e);
void event_finish(hip_event *e);

hip_graph *graph_copy(const hip_graph *g);
void graph_free(hip_graph *g); // when no launch of it waits any more

extern int device_error;    // sticky: what a kernel or a lost device left behind
extern int device_launches; // so far
#endif
