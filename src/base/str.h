/* str.h - a growable byte string.
 *
 * Appending never fails in the middle of building: when memory or the limit is exhausted the string is marked
 * (oom) and further appends do nothing, so a writer checks once, at the end. p is NUL-terminated whenever it
 * is not NULL; len does not count the NUL. A zeroed struct is an empty string. */
#ifndef MX_BASE_STR_H
#define MX_BASE_STR_H
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *p;
    size_t len, cap;
    size_t limit; // most bytes it may hold; 0: no limit
    bool oom;
} mx_str;

bool mx_str_reserve(mx_str *s, size_t more); // room for more bytes; false and oom set if there is none
void mx_str_add(mx_str *s, const char *p, size_t len);
void mx_str_puts(mx_str *s, const char *z);
void mx_str_putc(mx_str *s, char c);
void mx_str_printf(mx_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void mx_str_clear(mx_str *s); // length 0 and oom forgotten, memory kept
void mx_str_free(mx_str *s);  // accepts an empty one

#endif
