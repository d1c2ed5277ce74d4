/* chat.c - a model folder's template, and what is done to a conversation before and after it is rendered. */
#include "text/chat.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEMPLATE = 4 << 20, MAX_CONFIG = 64 << 20 }; // bytes of a file
static const char TAG[] = "CONTINUE_FINAL_MESSAGE_TAG ";

struct mx_chat {
    mx_template *dflt, *tools; // tools: the one called "tool_use", or NULL
    mx_arena a;
    char *dir;
    mx_json *specials; // chain of string members: bos_token, eos_token, ...
};

/* ---- opening -------------------------------------------------------------------------------------------------- */

/* The file as text in the arena; *text stays NULL when there is none. */
static mx_status read_optional(mx_chat *c, const char *name, size_t max, char **text, size_t *len,
                               char **path, mx_err *err) {
    *text = NULL;
    *path = mx_path_join(&c->a, c->dir, name);
    if (!*path) return mx_fail(err, MX_ENOMEM, "no memory for a path");
    if (!mx_is_file(*path)) return MX_OK;
    return mx_file_read(text, len, &c->a, *path, max, err);
}

static mx_status read_json(mx_chat *c, const char *name, const mx_json **out, mx_err *err) {
    char *text, *path;
    size_t len;
    mx_json *doc = NULL;
    *out = NULL;
    MX_TRY(read_optional(c, name, MAX_CONFIG, &text, &len, &path, err));
    if (!text) return MX_OK;
    mx_status st = mx_json_parse(&doc, &c->a, text, len, err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", path);
    if (!mx_json_is(doc, MX_JSON_OBJECT))
        return mx_fail(err, MX_EINVAL, "%s: an object is expected, found %s", path, mx_json_type_name(doc));
    *out = doc;
    return MX_OK;
}

static bool ends_with(const mx_json *v, const char *tail) {
    size_t n = strlen(tail);
    return v->key_len >= n && !memcmp(v->key + v->key_len - n, tail, n);
}

/* Remember the tokens that templates may print: members *_token that are a string or {"content": string}. */
static mx_status take_specials(mx_chat *c, const mx_json *config, mx_err *err) {
    for (const mx_json *it = mx_json_first(config); it; it = it->next) {
        if (!ends_with(it, "_token")) continue;
        const mx_json *text = mx_json_is(it, MX_JSON_OBJECT) ? mx_json_get(it, "content") : it;
        if (!mx_json_is(text, MX_JSON_STRING)) continue;
        bool known = false;
        for (const mx_json *s = c->specials; s; s = s->next) {
            known = known || (s->key_len == it->key_len && !memcmp(s->key, it->key, it->key_len));
        }
        if (known) continue; // tokenizer_config.json, read first, wins
        mx_json *s = mx_arena_alloc(&c->a, sizeof *s);
        if (!s) return mx_fail(err, MX_ENOMEM, "no memory for special tokens");
        *s = *text;
        s->key = it->key;
        s->key_len = it->key_len;
        s->next = c->specials;
        c->specials = s;
    }
    return MX_OK;
}

static mx_status compile(mx_template **out, const char *p, size_t len, const char *name, mx_err *err) {
    if (*out) return MX_OK; // found before, in a place that wins
    return mx_template_compile(out, p, len, name, err);
}

/* "chat_template" of a config: a string, or a list of {name, template}. */
static mx_status take_templates(mx_chat *c, const mx_json *config, const char *file, mx_err *err) {
    const mx_json *t = mx_json_get(config, "chat_template");
    char name[64];
    if (mx_json_is(t, MX_JSON_STRING)) {
        snprintf(name, sizeof name, "%s chat_template", file);
        return compile(&c->dflt, t->u.s.p, t->u.s.len, name, err);
    }
    for (const mx_json *it = mx_json_first(t); it; it = it->next) {
        const mx_json *text = mx_json_get(it, "template"), *label = mx_json_get(it, "name");
        if (!mx_json_is(text, MX_JSON_STRING) || !mx_json_is(label, MX_JSON_STRING)) {
            return mx_fail(err, MX_EINVAL, "%s/%s: chat_template must be text or a list of {name, template}",
                           c->dir, file);
        }
        bool tools = mx_json_str_eq(label, "tool_use");
        if (!tools && !mx_json_str_eq(label, "default")) continue; // "rag" and the like are chosen by nobody
        snprintf(name, sizeof name, "%s chat_template %s", file, tools ? "tool_use" : "default");
        MX_TRY(compile(tools ? &c->tools : &c->dflt, text->u.s.p, text->u.s.len, name, err));
    }
    return MX_OK;
}

static mx_status find_templates(mx_chat *c, mx_err *err) {
    static const char *const files[] = {"tokenizer_config.json", "chat_template.json"};
    const mx_json *config, *map;
    char *text, *path;
    size_t len;
    MX_TRY(read_optional(c, "chat_template.jinja", MAX_TEMPLATE, &text, &len, &path, err));
    bool own_file = text != NULL;
    if (own_file) MX_TRY(compile(&c->dflt, text, len, "chat_template.jinja", err));
    for (size_t i = 0; i < countof(files); i++) {
        MX_TRY(read_json(c, files[i], &config, err));
        if (!config) continue;
        if (i == 0) MX_TRY(take_specials(c, config, err));
        if (!own_file && !c->dflt) MX_TRY(take_templates(c, config, files[i], err));
    }
    MX_TRY(read_json(c, "special_tokens_map.json", &map, err));
    return map ? take_specials(c, map, err) : MX_OK;
}

mx_status mx_chat_open(mx_chat **out, const char *dir, mx_err *err) {
    mx_chat *c = calloc(1, sizeof *c);
    if (!c) return mx_fail(err, MX_ENOMEM, "%s: no memory for the chat template", dir);
    c->dir = mx_arena_strdup(&c->a, dir);
    mx_status st =
        c->dir ? find_templates(c, err) : mx_fail(err, MX_ENOMEM, "%s: no memory for the chat template", dir);
    if (st != MX_OK) {
        mx_chat_free(c);
        return st;
    }
    *out = c;
    return MX_OK;
}

void mx_chat_free(mx_chat *c) {
    if (!c) return;
    mx_template_free(c->dflt);
    mx_template_free(c->tools);
    mx_arena_free(&c->a);
    free(c);
}

bool mx_chat_has_template(const mx_chat *c) { return c->dflt || c->tools; }

const mx_template *mx_chat_template(const mx_chat *c, bool with_tools) {
    if (with_tools && c->tools) return c->tools;
    return c->dflt ? c->dflt : c->tools;
}

mx_status mx_chat_set_template(mx_chat *c, const char *src, size_t len, const char *name, mx_err *err) {
    mx_template *t;
    MX_TRY(mx_template_compile(&t, src, len, name, err));
    mx_template_free(c->dflt);
    mx_template_free(c->tools);
    c->dflt = t;
    c->tools = NULL;
    return MX_OK;
}

/* ---- the conversation ----------------------------------------------------------------------------------------- */

typedef struct {
    mx_arena *a;
    mx_err *err;
    bool join_parts; // the template wants strings
} prepare;

static mx_status no_memory(mx_err *err) { return mx_fail(err, MX_ENOMEM, "no memory for a conversation"); }

/* A list of members that is built at its end. */
typedef struct {
    mx_json *obj, **end;
} builder;

static bool begin(builder *b, mx_arena *a, mx_json_type type) {
    b->obj = mx_arena_alloc(a, sizeof *b->obj);
    if (!b->obj) return false;
    b->obj->type = type;
    b->end = &b->obj->u.c.first;
    return true;
}

/* Append a shallow copy of v under a key (v's own when key is NULL); the copy, or NULL without memory. */
static mx_json *put(builder *b, mx_arena *a, const char *key, const mx_json *v) {
    mx_json *copy = mx_arena_alloc(a, sizeof *copy);
    if (!copy) return NULL;
    *copy = *v;
    if (key) {
        copy->key = key;
        copy->key_len = (uint32_t)strlen(key);
    }
    copy->next = NULL;
    *b->end = copy;
    b->end = &copy->next;
    b->obj->u.c.n++;
    return copy;
}

/* A node that is a list or object takes the place of old, with its key and neighbours. */
static void replace(mx_json *at, const mx_json *with) {
    at->type = with->type;
    at->u = with->u;
}

static bool is_text_part(const mx_json *part) {
    const mx_json *type = mx_json_get(part, "type");
    return mx_json_is(mx_json_get(part, "text"), MX_JSON_STRING) &&
           (!type || mx_json_str_eq(type, "text") || mx_json_str_eq(type, "input_text") ||
            mx_json_str_eq(type, "output_text"));
}

/* Content that is a list of parts becomes the text of its text parts, one after the other. */
static mx_status join_parts(const prepare *p, mx_json *content, size_t index) {
    size_t len = 0;
    for (const mx_json *it = content->u.c.first; it; it = it->next) {
        if (is_text_part(it)) {
            len += mx_json_get(it, "text")->u.s.len;
        } else if (it->type == MX_JSON_STRING) {
            len += it->u.s.len;
        } else {
            const mx_json *type = mx_json_get(it, "type");
            return mx_fail(
                p->err, MX_EINVAL,
                "messages[%zu]: this model's chat template takes text only, and a part is of type %.*s",
                index, mx_json_is(type, MX_JSON_STRING) ? (int)type->u.s.len : 7,
                mx_json_is(type, MX_JSON_STRING) ? type->u.s.p : "unknown");
        }
    }
    char *text = mx_arena_alloc(p->a, len + 1);
    if (!text) return no_memory(p->err);
    len = 0;
    for (const mx_json *it = content->u.c.first; it; it = it->next) {
        const mx_json *s = it->type == MX_JSON_STRING ? it : mx_json_get(it, "text");
        if (s->u.s.len) memcpy(text + len, s->u.s.p, s->u.s.len);
        len += s->u.s.len;
    }
    content->type = MX_JSON_STRING;
    content->u.s.p = text;
    content->u.s.len = len;
    return MX_OK;
}

/* Arguments that are a string of JSON become the object; the order of keys stays. */
static mx_status parse_arguments(const prepare *p, mx_json *fn, size_t index, size_t call) {
    mx_json *doc = NULL;
    mx_err why;
    for (mx_json *m = fn->u.c.first; m; m = m->next) {
        if (m->key_len != 9 || memcmp(m->key, "arguments", 9)) continue;
        if (m->type == MX_JSON_OBJECT || m->type == MX_JSON_NULL) continue;
        if (m->type == MX_JSON_STRING) {
            bool blank = m->u.s.len == 0; // some clients send "" for no arguments
            mx_status st = mx_json_parse(&doc, p->a, blank ? "{}" : m->u.s.p, blank ? 2 : m->u.s.len, &why);
            if (st == MX_ENOMEM) return no_memory(p->err);
            if (st != MX_OK) {
                return mx_fail(p->err, MX_EINVAL,
                               "messages[%zu].tool_calls[%zu].function.arguments is not valid JSON: %s",
                               index, call, why.msg);
            }
        }
        if (m->type != MX_JSON_STRING || doc->type != MX_JSON_OBJECT) {
            return mx_fail(p->err, MX_EINVAL,
                           "messages[%zu].tool_calls[%zu].function.arguments must be a JSON object, not %s",
                           index, call, mx_json_type_name(m->type == MX_JSON_STRING ? doc : m));
        }
        replace(m, doc);
    }
    return MX_OK;
}

/* Shallow copy of an object or list, so that its members can be changed. */
static mx_status copy_level(const prepare *p, mx_json *at) {
    builder b;
    if (!begin(&b, p->a, at->type)) return no_memory(p->err);
    for (const mx_json *it = at->u.c.first; it; it = it->next) {
        if (!put(&b, p->a, NULL, it)) return no_memory(p->err);
    }
    replace(at, b.obj);
    return MX_OK;
}

static mx_status prepare_calls(const prepare *p, mx_json *calls, size_t index) {
    if (calls->type != MX_JSON_ARRAY) {
        return mx_fail(p->err, MX_EINVAL, "messages[%zu].tool_calls must be a list, not %s", index,
                       mx_json_type_name(calls));
    }
    MX_TRY(copy_level(p, calls));
    size_t k = 0;
    for (mx_json *call = calls->u.c.first; call; call = call->next, k++) {
        if (call->type != MX_JSON_OBJECT)
            return mx_fail(p->err, MX_EINVAL, "messages[%zu].tool_calls[%zu] must be an object, not %s",
                           index, k, mx_json_type_name(call));
        MX_TRY(copy_level(p, call));
        MX_TRY(parse_arguments(p, call, index, k)); // {name, arguments} without "function"
        for (mx_json *m = call->u.c.first; m; m = m->next) {
            if (m->key_len != 8 || memcmp(m->key, "function", 8) || m->type != MX_JSON_OBJECT) continue;
            MX_TRY(copy_level(p, m));
            MX_TRY(parse_arguments(p, m, index, k));
        }
    }
    return MX_OK;
}

/* As transformers: members that are null are left out, reasoning is given under the names that templates read. */
static mx_status prepare_message(const prepare *p, builder *list, const mx_json *msg, size_t index) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    builder b;
    if (msg->type != MX_JSON_OBJECT)
        return mx_fail(p->err, MX_EINVAL, "messages[%zu] must be an object, not %s", index,
                       mx_json_type_name(msg));
    const mx_json *role = mx_json_get(msg, "role");
    if (!mx_json_is(role, MX_JSON_STRING))
        return mx_fail(p->err, MX_EINVAL, "messages[%zu].role must be a string, not %s", index,
                       mx_json_type_name(role));
    if (!begin(&b, p->a, MX_JSON_OBJECT)) return no_memory(p->err);
    const mx_json *reasoning = NULL;
    for (size_t i = 0; i < countof(names) && !reasoning; i++) {
        const mx_json *v = mx_json_get(msg, names[i]);
        if (v && v->type != MX_JSON_NULL) reasoning = v;
    }
    const mx_json *thinking = mx_json_get(msg, "thinking");
    if (reasoning && (!thinking || thinking->type == MX_JSON_NULL) && !put(&b, p->a, "thinking", reasoning))
        return no_memory(p->err);
    for (const mx_json *it = mx_json_first(msg); it; it = it->next) {
        if (it->type == MX_JSON_NULL) continue;
        if (reasoning && it->key_len == 17 && !memcmp(it->key, names[0], 17)) continue; // put below
        mx_json *m = put(&b, p->a, NULL, it);
        if (!m) return no_memory(p->err);
        if (m->key_len == 10 && !memcmp(m->key, "tool_calls", 10)) MX_TRY(prepare_calls(p, m, index));
        if (m->key_len != 7 || memcmp(m->key, "content", 7)) continue;
        if (m->type != MX_JSON_STRING && m->type != MX_JSON_ARRAY) {
            return mx_fail(p->err, MX_EINVAL,
                           "messages[%zu].content must be a string or a list of parts, not %s", index,
                           mx_json_type_name(m));
        }
        if (m->type == MX_JSON_ARRAY && p->join_parts) MX_TRY(join_parts(p, m, index));
    }
    if (reasoning && !put(&b, p->a, names[0], reasoning)) return no_memory(p->err);
    return put(list, p->a, NULL, b.obj) ? MX_OK : no_memory(p->err);
}

/* Put TAG behind the last message's text; *tail is the text without it. */
static mx_status mark_final(const prepare *p, const mx_json *messages, const char **tail, size_t *n_tail) {
    mx_json *last = messages->u.c.first, *text = NULL;
    while (last && last->next) last = last->next;
    for (mx_json *m = last ? last->u.c.first : NULL; m; m = m->next) {
        if (m->key_len == 7 && !memcmp(m->key, "content", 7)) text = m;
    }
    if (text && text->type == MX_JSON_ARRAY) { // the last part that has text
        mx_json *content = text;
        text = NULL;
        MX_TRY(copy_level(p, content));
        for (mx_json *part = content->u.c.first; part; part = part->next) {
            if (part->type != MX_JSON_OBJECT || !is_text_part(part)) continue;
            MX_TRY(copy_level(p, part));
            for (mx_json *m = part->u.c.first; m; m = m->next) {
                if (m->key_len == 4 && !memcmp(m->key, "text", 4)) text = m;
            }
        }
    }
    if (!mx_json_is(text, MX_JSON_STRING))
        return mx_fail(p->err, MX_EINVAL, "the final message has no content to continue");
    *tail = text->u.s.p;
    *n_tail = text->u.s.len;
    char *marked = mx_arena_alloc(p->a, *n_tail + sizeof TAG);
    if (!marked) return no_memory(p->err);
    if (*n_tail) memcpy(marked, *tail, *n_tail);
    memcpy(marked + *n_tail, TAG, sizeof TAG);
    text->u.s.p = marked;
    text->u.s.len = *n_tail + sizeof TAG - 1;
    return MX_OK;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Cut the prompt off where the final message's text ends. */
static mx_status cut_final(const prepare *p, mx_str *out, size_t from, const char *tail, size_t n_tail) {
    size_t n_tag = sizeof TAG - 2, at = out->len; // the tag without its blank, which templates may trim
    bool found = false;
    while (!found && at >= from + n_tag) {
        found = !memcmp(out->p + at - n_tag, TAG, n_tag);
        at -= found ? n_tag : 1;
    }
    while (n_tail && is_space(*tail)) tail++, n_tail--;
    while (n_tail && is_space(tail[n_tail - 1])) n_tail--;
    if (!found || (n_tail && !memmem(out->p + from, out->len - from, tail, n_tail))) {
        return mx_fail(p->err, MX_EINVAL,
                       "the final message cannot be continued: the chat template does not print it as it is");
    }
    bool kept = out->len - at > n_tag && out->p[at + n_tag] == ' ';
    while (!kept && at > from && is_space(out->p[at - 1])) at--;
    out->len = at;
    out->p[at] = 0;
    return MX_OK;
}

static mx_status build(const mx_chat *c, const mx_chat_request *q, const prepare *p, builder *vars,
                       mx_json **messages) {
    builder list;
    size_t index = 0;
    const mx_json yes = {.type = MX_JSON_BOOL, .u.b = q->add_generation_prompt && !q->continue_final},
                  none = {.type = MX_JSON_NULL};
    if (!begin(vars, p->a, MX_JSON_OBJECT) || !begin(&list, p->a, MX_JSON_ARRAY)) return no_memory(p->err);
    for (const mx_json *m = mx_json_first(q->messages); m; m = m->next)
        MX_TRY(prepare_message(p, &list, m, index++));
    // later members win: special tokens, then the caller's variables, then what the request itself says
    for (const mx_json *s = c->specials; s; s = s->next) {
        if (!put(vars, p->a, NULL, s)) return no_memory(p->err);
    }
    for (const mx_json *v = mx_json_first(q->kwargs); v; v = v->next) {
        if (!put(vars, p->a, NULL, v)) return no_memory(p->err);
    }
    *messages = put(vars, p->a, "messages", list.obj);
    if (!*messages || !put(vars, p->a, "add_generation_prompt", &yes) ||
        !put(vars, p->a, "tools", q->tools ? q->tools : &none)) {
        return no_memory(p->err);
    }
    if (!mx_json_get(vars->obj, "documents") && !put(vars, p->a, "documents", &none))
        return no_memory(p->err);
    return MX_OK;
}

mx_status mx_chat_render(const mx_chat *c, const mx_chat_request *q, mx_str *out, mx_err *err) {
    const mx_template *t = mx_chat_template(c, mx_json_count(q->tools) > 0);
    if (!t) {
        return mx_fail(
            err, MX_EINVAL,
            "%s: this model has no chat template; give one with --chat-template-file, or use plain completion",
            c->dir);
    }
    if (!mx_json_is(q->messages, MX_JSON_ARRAY))
        return mx_fail(err, MX_EINVAL, "messages must be a list, not %s", mx_json_type_name(q->messages));
    if (q->tools && q->tools->type != MX_JSON_ARRAY && q->tools->type != MX_JSON_NULL) {
        return mx_fail(err, MX_EINVAL, "tools must be a list, not %s", mx_json_type_name(q->tools));
    }
    if (q->kwargs && q->kwargs->type != MX_JSON_OBJECT && q->kwargs->type != MX_JSON_NULL) {
        return mx_fail(err, MX_EINVAL, "chat_template_kwargs must be an object, not %s",
                       mx_json_type_name(q->kwargs));
    }
    mx_arena a = {0};
    const prepare p = {.a = &a, .err = err, .join_parts = !mx_template_inspect(t).parts};
    builder vars;
    mx_json *messages = NULL;
    const char *tail = NULL;
    size_t n_tail = 0, from = out->len;
    mx_status st = build(c, q, &p, &vars, &messages);
    if (st == MX_OK && q->continue_final) st = mark_final(&p, messages, &tail, &n_tail);
    if (st == MX_OK) st = mx_template_render(t, vars.obj, q->now, out, err);
    if (st == MX_OK && q->continue_final) st = cut_final(&p, out, from, tail, n_tail);
    if (st != MX_OK && out->p) { // on failure nothing was appended
        out->len = from;
        out->p[from] = 0;
    }
    mx_arena_free(&a);
    return st;
}
