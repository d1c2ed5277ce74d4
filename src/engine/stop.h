/* stop.h - stop strings over token borders.
 *
 * Text goes in as it is generated and comes out once it can no longer be the beginning of a stop string. The result does not
 * depend on how the text is cut into pieces: the first stop string to be complete counts, of two complete at the same byte
 * the one that began earlier. */
#ifndef MX_ENGINE_STOP_H
#define MX_ENGINE_STOP_H
#include "base/err.h"
#include "base/str.h"

typedef struct mx_stop mx_stop;

/* Copies the words; empty ones are ignored. MX_EINVAL for one that is not UTF-8: no text could hold it. */
mx_status mx_stop_new(mx_stop **out, const char *const *words, int n, mx_err *err);
void mx_stop_free(mx_stop *s); // accepts NULL
void mx_stop_reset(mx_stop *s);
/* Append to out what has become certain, and set *hit to the index of the stop string that is now complete, or -1. After a
 * hit nothing more comes out until reset. out->oom says that memory ran out. */
void mx_stop_push(mx_stop *s, const char *text, size_t len, mx_str *out, int *hit);
void mx_stop_flush(mx_stop *s, mx_str *out); // the end: what was withheld is text after all

#endif
