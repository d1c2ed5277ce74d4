/* out.h - stdout: the answer and nothing else, and a reader that may go away.
 *
 * Text from a model is untrusted: on a terminal, control characters other than newline and tab are dropped, so that no
 * answer can move the cursor, change the title or write to the clipboard. A pipe or file gets every byte. */
#ifndef MX_CLI_OUT_H
#define MX_CLI_OUT_H
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>

bool out_tty(void);
bool out_err_tty(void);               // stderr is a terminal
void out_set_color(const char *mode); // "auto", "never", "always"
bool out_color(void);                 // of stdout
bool out_err_color(void);

bool out_write(const char *p, size_t len); // false once a write has failed; nothing is written from then on
bool out_puts(const char *z);
bool out_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool out_str(mx_str *s);                   // write and free; a string that ran out of memory is a failure
bool out_model(const char *p, size_t len); // untrusted text, flushed at once
bool out_flush(void);

/* Flush, and turn what went wrong into a message and an exit code; code if nothing did. Called once, at the end. */
int out_finish(int code);

/* Drop control characters in place; returns the new length. */
size_t out_filter(char *p, size_t len);

#endif
