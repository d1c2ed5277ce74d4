/* template_tool.c - renders case files in bulk for template.py: one line of JSON a case on standard output.
 *
 * usage: template_tool contexts.json CASES... */
#include "base/file.h"
#include "base/json.h"
#include "text/template.h"
#include "template_cases.h"
#include <stdio.h>

enum { NOW = 1735787045 }; // 2025-01-02 03:04:05 UTC, also in template.py

static void run_case(const template_case *c, const mx_json *contexts) {
    mx_template *t = NULL;
    mx_str out = {0}, line = {0};
    mx_err err = {0};
    const mx_json *vars = mx_json_getn(contexts, c->ctx, c->n_ctx);
    mx_status st = mx_template_compile(&t, c->src, c->n_src, "case", &err);
    if (st == MX_OK) st = mx_template_render(t, vars, NOW, &out, &err);
    mx_str_puts(&line, "{\"name\": ");
    mx_json_put_string(&line, c->name, c->n_name);
    mx_str_printf(&line, ", \"status\": \"%s\", \"text\": ", mx_status_name(st));
    if (st == MX_OK) {
        mx_json_put_string(&line, out.p ? out.p : "", out.len);
    } else {
        mx_json_put_string(&line, err.msg, strlen(err.msg));
    }
    mx_str_puts(&line, "}");
    puts(line.oom ? "{}" : line.p);
    mx_str_free(&line);
    mx_str_free(&out);
    mx_template_free(t);
}

int main(int argc, char **argv) {
    mx_arena a = {0};
    mx_err err = {0};
    char *text;
    size_t len;
    mx_json *contexts = NULL;
    mx_status st = MX_EINVAL;
    if (argc > 2) st = mx_file_read(&text, &len, &a, argv[1], 64 << 20, &err);
    if (st == MX_OK) st = mx_json_parse(&contexts, &a, text, len, &err);
    for (int i = 2; i < argc && st == MX_OK; i++) {
        template_case c;
        st = mx_file_read(&text, &len, &a, argv[i], 64 << 20, &err);
        if (st != MX_OK) break;
        for (const char *p = text; template_next(p, text + len, &c); p = c.next) run_case(&c, contexts);
    }
    if (st != MX_OK)
        fprintf(stderr, "template_tool: %s\n",
                argc > 2 ? err.msg : "usage: template_tool contexts.json CASES...");
    mx_arena_free(&a);
    return st != MX_OK;
}
