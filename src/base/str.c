#include "base/str.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mx_str_reserve(mx_str *s, size_t more) {
    if (s->oom) return false;
    size_t need;
    if (__builtin_add_overflow(s->len, more, &need) || need >= SIZE_MAX / 2 ||
        (s->limit && need > s->limit)) {
        s->oom = true;
        return false;
    }
    if (need < s->cap) return true;
    size_t cap = s->cap ? s->cap : 64;
    while (cap <= need) cap *= 2;
    char *p = realloc(s->p, cap);
    if (!p) {
        s->oom = true;
        return false;
    }
    if (!s->p) p[0] = 0;
    s->p = p;
    s->cap = cap;
    return true;
}

void mx_str_add(mx_str *s, const char *p, size_t len) {
    if (!mx_str_reserve(s, len)) return;
    if (len) memcpy(s->p + s->len, p, len);
    s->len += len;
    s->p[s->len] = 0;
}

void mx_str_puts(mx_str *s, const char *z) { mx_str_add(s, z, strlen(z)); }
void mx_str_putc(mx_str *s, char c) { mx_str_add(s, &c, 1); }

void mx_str_printf(mx_str *s, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && mx_str_reserve(s, (size_t)n)) {
        vsnprintf(s->p + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void mx_str_clear(mx_str *s) {
    s->len = 0;
    s->oom = false;
    if (s->p) s->p[0] = 0;
}

void mx_str_free(mx_str *s) {
    free(s->p);
    *s = (mx_str){.limit = s->limit};
}
