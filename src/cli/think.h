/* think.h - the reasoning that a model writes between <think> and </think>, found in a stream of text pieces.
 *
 * A tag may be cut anywhere between pieces; what could still become one is held back until it is certain. */
#ifndef MX_CLI_THINK_H
#define MX_CLI_THINK_H
#include <stdbool.h>
#include <stddef.h>

/* Called with each piece of text; thinking: it lies between the tags. The tags themselves are not passed on. */
typedef void (*think_fn)(void *arg, const char *p, size_t len, bool thinking);

typedef struct {
    bool inside;   // between the tags
    bool started;  // something other than white space came
    bool skip;     // drop white space: behind a closing tag
    char held[16]; // the start of a tag, perhaps
    size_t n_held;
    think_fn fn;
    void *arg;
} think_filter;

/* prompt: its end tells whether the template has opened the tag already. */
void think_start(think_filter *t, const char *prompt, size_t len, think_fn fn, void *arg);
void think_push(think_filter *t, const char *p, size_t len);
void think_end(think_filter *t); // what is held back is text after all

#endif
