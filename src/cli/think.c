#include "cli/think.h"
#include <ctype.h>
#include <string.h>

static const char OPEN[] = "<think>", CLOSE[] = "</think>";

void think_start(think_filter *t, const char *prompt, size_t len, think_fn fn, void *arg) {
    while (len > 0 && isspace((unsigned char)prompt[len - 1])) len--;
    size_t n = sizeof OPEN - 1;
    *t = (think_filter){.fn = fn, .arg = arg};
    t->inside = len >= n && !memcmp(prompt + len - n, OPEN, n);
}

static void emit(think_filter *t, const char *p, size_t len) {
    while (t->skip && len > 0 && isspace((unsigned char)*p)) p++, len--;
    if (len == 0) return;
    t->skip = false;
    if (!t->inside)
        for (size_t i = 0; i < len && !t->started; i++) t->started = !isspace((unsigned char)p[i]);
    t->fn(t->arg, p, len, t->inside);
}

/* Reasoning opens only before the answer has begun: later the words are the model's to quote. */
void think_push(think_filter *t, const char *p, size_t len) {
    while (len > 0) {
        const char *tag = t->inside ? CLOSE : t->started ? NULL : OPEN;
        if (!tag) {
            emit(t, p, len);
            return;
        }
        if (t->n_held == 0) { // pass on all in front of the next '<'
            const char *lt = memchr(p, '<', len);
            size_t n = lt ? (size_t)(lt - p) : len;
            emit(t, p, n);
            p += n;
            len -= n;
            if (len == 0) return;
            if (!t->inside && t->started) continue;
        }
        t->held[t->n_held++] = *p++;
        len--;
        if (memcmp(t->held, tag, t->n_held) != 0) {
            // no tag: pass the held text on but for its last byte, which may start one
            size_t n = t->n_held;
            char held[sizeof t->held];
            memcpy(held, t->held, n);
            t->n_held = 0;
            bool again = t->inside && n > 1 && held[n - 1] == '<';
            emit(t, held, n - again);
            if (again) t->held[t->n_held++] = '<';
        } else if (t->n_held == strlen(tag)) {
            t->n_held = 0;
            t->inside = !t->inside;
            t->skip = true;
        }
    }
}

void think_end(think_filter *t) {
    size_t n = t->n_held;
    t->n_held = 0;
    if (n) emit(t, t->held, n);
}
