/* template.c - the door to the engine: compile, render, inspect. */
#include "template_int.h"
#include "base/utf8.h"
#include <stdlib.h>

static mx_status leave(const tpl_ctx *c, mx_err *err) {
    if (err) *err = c->err;
    return c->st;
}

/* setjmp wants a function without locals that change. */
static mx_status guarded_parse(tpl_ctx *c, mx_template *t, const char *src, size_t len) {
    c->stack = __builtin_frame_address(0);
    if (setjmp(c->jmp)) return c->st;
    tpl_parse(c, t, src, len);
    return MX_OK;
}

static mx_status guarded_render(tpl_run *r, mx_err *err) {
    r->c.stack = __builtin_frame_address(0);
    if (setjmp(r->c.jmp)) return leave(&r->c, err);
    r->cache = NEW_ARRAY(r, tpl_val, r->t->n_name);
    r->root = NEW(r, tpl_scope);
    tpl_exec(r, r->t->body, r->root);
    return MX_OK;
}

static mx_status render(const mx_template *t, const mx_json *vars, long long now, uint64_t steps, mx_str *out,
                        mx_err *err) {
    tpl_run *r = calloc(1, sizeof *r);
    if (!r) return mx_fail(err, MX_ENOMEM, "%s: no memory to render", t->name);
    r->c.name = t->name;
    r->c.a = &r->a;
    r->a.limit = TPL_MAX_MEMORY;
    r->out.limit = TPL_MAX_OUTPUT;
    r->t = t;
    r->vars = vars;
    r->now = now;
    r->max_steps = steps;
    mx_status st = guarded_render(r, err);
    if (st == MX_OK && r->out.len) {
        mx_str_add(out, r->out.p, r->out.len);
        if (out->oom)
            st = mx_fail(err, MX_ENOMEM, "%s: no memory for a prompt of %zu bytes", t->name, r->out.len);
    }
    mx_str_free(&r->out);
    mx_arena_free(&r->a);
    free(r);
    return st;
}

/* Does the template read content that is a list of parts? Render one message of each form and look for the text. */
static bool reads_parts(const mx_template *t) {
    static const char probe[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"zq7\"}]}],"
        "\"add_generation_prompt\":true,\"bos_token\":\"\",\"eos_token\":\"\"}";
    mx_arena a = {0};
    mx_json *vars;
    mx_str out = {0};
    bool yes = false;
    if (mx_json_parse(&vars, &a, probe, sizeof probe - 1, NULL) == MX_OK &&
        render(t, vars, 0, 200000, &out, NULL) == MX_OK && out.p) {
        yes = strstr(out.p, "zq7") && !strstr(out.p, "'text'") &&
              !strstr(out.p, "\"text\""); // the text, not the list
    }
    mx_str_free(&out);
    mx_arena_free(&a);
    return yes;
}

mx_status mx_template_compile(mx_template **out, const char *src, size_t len, const char *name, mx_err *err) {
    if (len > TPL_MAX_SOURCE)
        return mx_fail(err, MX_ELIMIT, "%s: a template of %zu bytes is too long", name, len);
    if (mx_utf8_valid(src, len) != len)
        return mx_fail(err, MX_EINVAL, "%s: the template is not valid UTF-8", name);
    mx_template *t = calloc(1, sizeof *t);
    tpl_ctx *c = calloc(1, sizeof *c);
    mx_status st = MX_OK;
    if (t) t->name = mx_arena_strdup(&t->a, name);
    if (!t || !c || !t->name) {
        st = mx_fail(err, MX_ENOMEM, "%s: no memory for the template", name);
    } else {
        t->a.limit = TPL_MAX_MEMORY;
        c->name = t->name;
        c->a = &t->a;
        st = guarded_parse(c, t, src, len);
        if (st != MX_OK) leave(c, err);
    }
    free(c);
    if (st != MX_OK) {
        mx_template_free(t);
        return st;
    }
    t->features.parts = reads_parts(t);
    *out = t;
    return MX_OK;
}

void mx_template_free(mx_template *t) {
    if (!t) return;
    mx_arena_free(&t->a);
    free(t);
}

mx_status mx_template_render(const mx_template *t, const mx_json *vars, long long now, mx_str *out,
                             mx_err *err) {
    return render(t, vars, now, TPL_MAX_STEPS, out, err);
}

mx_template_features mx_template_inspect(const mx_template *t) { return t->features; }
