#include "base/arena.h"
#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BLOCK = 4096, LAST_BLOCK = 1 << 20 };

struct mx_arena_block {
    mx_arena_block *next;
    size_t size, fill;
    alignas(16) unsigned char data[];
};

void *mx_arena_alloc(mx_arena *a, size_t n) {
    if (n > SIZE_MAX / 2) return NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->limit && (n > a->limit || a->used > a->limit - n)) return NULL;
    mx_arena_block *b = a->head;
    if (!b || b->size - b->fill < n) {
        size_t size = b ? b->size * 2 : FIRST_BLOCK; // grow, so that n allocations cost O(log n) blocks
        if (size > LAST_BLOCK) size = LAST_BLOCK;
        if (size < n) size = n;
        b = malloc(sizeof *b + size);
        if (!b) return NULL;
        *b = (mx_arena_block){.next = a->head, .size = size};
        a->head = b;
    }
    void *p = b->data + b->fill;
    b->fill += n;
    a->used += n;
    return memset(p, 0, n);
}

void *mx_arena_array(mx_arena *a, size_t n_item, size_t size) {
    size_t n;
    if (__builtin_mul_overflow(n_item, size, &n)) return NULL;
    return mx_arena_alloc(a, n);
}

char *mx_arena_strndup(mx_arena *a, const char *s, size_t len) {
    if (len == SIZE_MAX) return NULL;
    char *p = mx_arena_alloc(a, len + 1);
    if (p && len) memcpy(p, s, len);
    return p;
}

char *mx_arena_strdup(mx_arena *a, const char *s) { return mx_arena_strndup(a, s, strlen(s)); }

char *mx_arena_printf(mx_arena *a, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : mx_arena_alloc(a, (size_t)n + 1);
    if (p) vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

void mx_arena_free(mx_arena *a) {
    for (mx_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
    a->used = 0;
}
