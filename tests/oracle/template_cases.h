/* template_cases.h - reads the files of template_cases/: templates with the output that Python's jinja2 gives.
 *
 *   @@ NAME | CONTEXT          a case and the variables it gets, a key of contexts.json
 *   the template, any number of lines (the last newline is not part of it)
 *   @=                         or "@!": it must fail, and nothing follows
 *   the output                 (the same)
 *
 * Used by the unit test and by template_tool. template.py reads the same files. */
#ifndef MX_TEMPLATE_CASES_H
#define MX_TEMPLATE_CASES_H
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const char *name, *ctx, *src, *want; // not NUL-terminated
    size_t n_name, n_ctx, n_src, n_want;
    bool fails;
    const char *next; // where to go on
} template_case;

/* The start of the line that begins with mark at or after p, else end. */
static inline const char *template_mark(const char *p, const char *end, const char *mark) {
    while (p < end) {
        if ((size_t)(end - p) >= 2 && !memcmp(p, mark, 2)) return p;
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        p = nl ? nl + 1 : end;
    }
    return end;
}

static inline size_t template_text(const char *from, const char *to) { // without the last newline
    return to > from ? (size_t)(to - from) - (to[-1] == '\n') : 0;
}

/* The next case at p; false at the end of the file. */
static inline bool template_next(const char *p, const char *end, template_case *c) {
    p = template_mark(p, end, "@@");
    if (p == end) return false;
    const char *nl = memchr(p, '\n', (size_t)(end - p)), *bar = memchr(p, '|', (size_t)(end - p));
    if (!nl || !bar || bar > nl || bar - p < 4) return false;
    *c = (template_case){
        .name = p + 3, .n_name = (size_t)(bar - p) - 4, .ctx = bar + 2, .n_ctx = (size_t)(nl - bar) - 2};
    const char *next = template_mark(nl + 1, end, "@@"), *out = template_mark(nl + 1, next, "@=");
    c->fails = out == next;
    if (c->fails) out = template_mark(nl + 1, next, "@!");
    c->src = nl + 1;
    c->n_src = template_text(c->src, out);
    c->want = out == next ? next : memchr(out, '\n', (size_t)(next - out)) + 1;
    c->n_want = c->fails ? 0 : template_text(c->want, next);
    c->next = next;
    return true;
}

#endif
