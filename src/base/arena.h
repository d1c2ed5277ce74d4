/* arena.h - memory that is freed all at once.
 *
 * Lifetimes in mlxcel are few: the model, the session, one request, one step. Each has an arena; what is made
 * in it lives as long as it. Blocks grow, so pointers stay valid until reset or free. Not thread-safe. */
#ifndef MX_BASE_ARENA_H
#define MX_BASE_ARENA_H
#include <stddef.h>

typedef struct mx_arena_block mx_arena_block;
typedef struct {
    mx_arena_block *head; // newest block, the one that is filled
    size_t used;          // bytes handed out in all blocks, padding included
    size_t limit;         // refuse to go beyond this many bytes; 0: no limit
} mx_arena;

/* n zeroed bytes aligned to 16, or NULL when memory or the limit is exhausted. n = 0 gives a valid pointer. */
void *mx_arena_alloc(mx_arena *a, size_t n);

/* n_item items of size bytes, zeroed; NULL also when the product overflows. */
void *mx_arena_array(mx_arena *a, size_t n_item, size_t size);

/* A NUL-terminated copy of s[0..len). NULL as above. */
char *mx_arena_strndup(mx_arena *a, const char *s, size_t len);
char *mx_arena_strdup(mx_arena *a, const char *s);
char *mx_arena_printf(mx_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Give all blocks back. The arena is empty and usable again (a zeroed struct is an empty arena). */
void mx_arena_free(mx_arena *a);

#endif
