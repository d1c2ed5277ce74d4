#include "cli/talk.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/out.h"
#include <stdlib.h>
#include <string.h>

/* ---- turns ----------------------------------------------------------------------------------------------- */

mx_status talk_add(talk *t, const char *role, const char *content, size_t len, mx_err *err) {
    if (t->n_turn == t->cap_turn) {
        int cap = t->cap_turn ? 2 * t->cap_turn : 16;
        talk_turn *p = realloc(t->turn, (size_t)cap * sizeof *p);
        if (!p) return mx_fail(err, MX_ENOMEM, "no memory for the conversation");
        t->turn = p;
        t->cap_turn = cap;
    }
    talk_turn n = {.role = strdup(role), .content = malloc(len + 1), .len = len};
    if (!n.role || !n.content) {
        free(n.role);
        free(n.content);
        return mx_fail(err, MX_ENOMEM, "no memory for the conversation");
    }
    if (len) memcpy(n.content, content, len);
    n.content[len] = 0;
    t->turn[t->n_turn++] = n;
    return MX_OK;
}

void talk_drop(talk *t, int n) {
    while (t->n_turn > n) {
        t->n_turn--;
        free(t->turn[t->n_turn].role);
        free(t->turn[t->n_turn].content);
    }
}

mx_status talk_system(talk *t, const char *content, size_t len, mx_err *err) {
    bool have = t->n_turn > 0 && !strcmp(t->turn[0].role, "system");
    if (have) {
        free(t->turn[0].role);
        free(t->turn[0].content);
        memmove(t->turn, t->turn + 1, (size_t)--t->n_turn * sizeof *t->turn);
    }
    if (len == 0) return MX_OK;
    MX_TRY(talk_add(t, "system", content, len, err));
    talk_turn n = t->turn[t->n_turn - 1];
    memmove(t->turn + 1, t->turn, (size_t)(t->n_turn - 1) * sizeof *t->turn);
    t->turn[0] = n;
    return MX_OK;
}

void talk_put_json(const talk *t, mx_str *s, int indent) {
    const char *line = indent ? "\n  " : "";
    mx_str_putc(s, '[');
    for (int i = 0; i < t->n_turn; i++) {
        mx_str_printf(s, "%s%s{\"role\": ", i ? "," : "", line);
        mx_json_put_string(s, t->turn[i].role, strlen(t->turn[i].role));
        mx_str_puts(s, ", \"content\": ");
        mx_json_put_string(s, t->turn[i].content, t->turn[i].len);
        mx_str_putc(s, '}');
    }
    mx_str_puts(s, indent ? "\n]\n" : "]");
}

mx_status talk_load_json(talk *t, const char *text, size_t len, const char *name, mx_err *err) {
    mx_arena a = {0};
    mx_json *doc;
    mx_status st = mx_json_parse(&doc, &a, text, len, err);
    if (st != MX_OK) {
        mx_err_prefix(err, st, "%s", name);
    } else {
        bool good = mx_json_is(doc, MX_JSON_ARRAY);
        for (const mx_json *m = mx_json_first(doc); m && good; m = m->next)
            good = mx_json_is(mx_json_get(m, "role"), MX_JSON_STRING) &&
                   mx_json_is(mx_json_get(m, "content"), MX_JSON_STRING);
        if (!good) st = mx_fail(err, MX_EINVAL, "%s is no list of {\"role\": text, \"content\": text}", name);
    }
    if (st == MX_OK) talk_drop(t, 0);
    for (const mx_json *m = st == MX_OK ? mx_json_first(doc) : NULL; m && st == MX_OK; m = m->next) {
        const mx_json *content = mx_json_get(m, "content");
        const char *role = mx_json_str(m, "role", "user", &a, NULL);
        st = talk_add(t, role, content->u.s.p, content->u.s.len, err);
    }
    mx_arena_free(&a);
    return st;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

/* --chat-template-kwargs and --reasoning as one object, or NULL for none. */
static mx_status template_vars(talk *t, mx_arena *a, mx_json **out, mx_err *err) {
    const cli_options *o = &t->c->o;
    mx_json *doc = NULL;
    *out = NULL;
    if (o->kwargs) {
        mx_status st = mx_json_parse(&doc, a, o->kwargs, strlen(o->kwargs), err);
        if (st != MX_OK) return mx_err_prefix(err, st, "--chat-template-kwargs");
        if (!mx_json_is(doc, MX_JSON_OBJECT))
            return mx_fail(err, MX_EINVAL, "--chat-template-kwargs takes a JSON object, not %s",
                           mx_json_type_name(doc));
    }
    *out = doc;
    if (!o->reasoning || !strcmp(o->reasoning, "auto")) return MX_OK;
    mx_str s = {0};
    mx_str_printf(&s, "{\"enable_thinking\": %s", !strcmp(o->reasoning, "on") ? "true" : "false");
    for (const mx_json *m = mx_json_first(doc); m; m = m->next) { // a later member is stronger
        mx_str_puts(&s, ", ");
        mx_json_put_string(&s, m->key, m->key_len);
        mx_str_puts(&s, ": ");
        mx_json_put(&s, m, 0);
    }
    mx_str_putc(&s, '}');
    char *text = s.oom ? NULL : mx_arena_strndup(a, s.p, s.len);
    mx_status st = text ? mx_json_parse(out, a, text, s.len, err) : mx_fail(err, MX_ENOMEM, "no memory");
    mx_str_free(&s);
    return st;
}

static mx_status use_template(talk *t, mx_err *err) {
    const char *path = t->c->o.template_file;
    char *text;
    size_t len;
    mx_chat *chat = mx_engine_chat(t->e);
    if (path) {
        MX_TRY(mx_file_read(&text, &len, &t->c->a, path, 4 << 20, err));
        MX_TRY(mx_chat_set_template(chat, text, len, path, err));
    }
    if (!chat || !mx_chat_has_template(chat))
        return mx_fail(err, MX_UNSUPPORTED,
                       "the model has no chat template; give one with --chat-template-file, or "
                       "use --no-chat-template or mlxcel generate");
    return MX_OK;
}

mx_status talk_open(talk *t, cli *c, mx_err *err) {
    char *dir;
    mx_json *vars;
    const char *ref = c->o.model;
    t->c = c;
    MX_TRY(cli_resolve(c, ref, &dir, err));
    MX_TRY(template_vars(t, &c->a, &vars, err)); // a wrong flag is said before a long load
    MX_TRY(cli_open(c, dir, true, &t->e, err));
    if (!c->o.no_template) MX_TRY(use_template(t, err));
    MX_TRY(cli_generation(c, t->e, &t->g, err));
    if (c->o.system) MX_TRY(talk_system(t, c->o.system, strlen(c->o.system), err));
    return mx_seq_new(&t->seq, t->e, err);
}

void talk_close(talk *t) {
    talk_drop(t, 0);
    free(t->turn);
    mx_str_free(&t->content);
    if (t->seq) mx_seq_free(t->seq);
    mx_engine_free(t->e);
    *t = (talk){0};
}

/* ---- an answer ------------------------------------------------------------------------------------------- */

static void print(talk *t, const char *p, size_t len) {
    if (len == 0) return;
    t->last = p[len - 1];
    out_model(p, len);
}

/* Reasoning is dimmed, or marked with its tags where there is no colour, or hidden behind a word on a terminal. */
static void on_text(void *arg, const char *p, size_t len, bool thinking) {
    talk *t = arg;
    bool show = t->c->o.show_reasoning, color = out_color();
    if (thinking && !show) {
        if (!t->waiting && out_tty() && color) out_puts("\033[2mthinking ...\033[0m"), out_flush();
        t->waiting = true;
        return;
    }
    if (t->waiting && !thinking) {
        if (out_tty() && color) out_puts("\r\033[K");
        t->waiting = false;
    }
    if (thinking != t->dim) {
        out_puts(color ? (thinking ? "\033[2m" : "\033[0m\n\n") : thinking ? "<think>\n" : "\n</think>\n\n");
        t->dim = thinking;
    }
    if (!thinking) t->answered = true;
    print(t, p, len);
}

static int on_token(void *arg, const mx_token_event *ev) {
    talk *t = arg;
    mx_str_add(&t->content, ev->text, ev->text_len);
    if (t->c->o.no_template) {
        t->answered = t->answered || ev->text_len > 0;
        print(t, ev->text, ev->text_len);
    } else
        think_push(&t->think, ev->text, ev->text_len);
    return !out_flush();
}

static void end_of_answer(talk *t) {
    if (!t->c->o.no_template) think_end(&t->think);
    if (t->dim && out_color()) out_puts("\033[0m");
    if (t->waiting && out_tty() && out_color()) out_puts("\r\033[K");
    if (t->last != '\n') out_puts("\n");
    out_flush();
}

/* The prompt's ids: the rendered conversation, or the raw text. */
static mx_status prompt_ids(talk *t, mx_str *text, mx_ids *ids, mx_err *err) {
    const mx_tokenizer *tok = mx_engine_tokenizer(t->e);
    if (t->c->o.no_template) {
        for (int i = 0; i < t->n_turn; i++) mx_str_add(text, t->turn[i].content, t->turn[i].len);
        if (text->oom) return mx_fail(err, MX_ENOMEM, "no memory for the prompt");
        return mx_tokenizer_encode(tok, text->p ? text->p : "", text->len,
                                   MX_TOK_PARSE_SPECIAL | MX_TOK_ADD_SPECIAL, ids, err);
    }
    mx_arena a = {0};
    mx_str json = {0};
    mx_json *messages, *vars = NULL;
    talk_put_json(t, &json, 0);
    mx_status st = json.oom ? mx_fail(err, MX_ENOMEM, "no memory for the conversation")
                            : mx_json_parse(&messages, &a, json.p, json.len, err);
    if (st == MX_OK) st = template_vars(t, &a, &vars, err);
    if (st == MX_OK) {
        mx_chat_request req = {
            .messages = messages, .kwargs = vars, .add_generation_prompt = true, .now = -1};
        st = mx_chat_render(mx_engine_chat(t->e), &req, text, err);
    }
    if (st == MX_OK && text->oom) st = mx_fail(err, MX_ENOMEM, "no memory for the prompt");
    if (st == MX_OK) // the template has written the special tokens itself
        st = mx_tokenizer_encode(tok, text->p ? text->p : "", text->len, MX_TOK_PARSE_SPECIAL, ids, err);
    mx_str_free(&json);
    mx_arena_free(&a);
    return st;
}

mx_status talk_answer(talk *t, mx_generate_stats *st, mx_err *err) {
    mx_str text = {0};
    mx_ids ids = {0};
    *st = (mx_generate_stats){0};
    mx_str_clear(&t->content);
    t->dim = t->waiting = t->answered = false;
    t->last = '\n';
    mx_status s = prompt_ids(t, &text, &ids, err);
    if (s == MX_OK && ids.n == 0) s = mx_fail(err, MX_EINVAL, "the prompt is empty");
    if (s == MX_OK && ids.n > INT32_MAX) s = mx_fail(err, MX_ELIMIT, "the prompt is longer than any context");
    if (s == MX_OK) {
        think_start(&t->think, text.p ? text.p : "", text.len, on_text, t);
        t->g.on_token = on_token;
        t->g.arg = t;
        t->g.cancel = cli_interrupt_begin();
        s = mx_generate(t->e, t->seq, ids.id, (int)ids.n, &t->g, NULL, st, err);
        bool pressed = cli_interrupt_end();
        end_of_answer(t);
        if (s == MX_ECANCELLED && pressed) { // in the middle of the prompt
            st->stop = MX_STOP_CANCEL;
            s = MX_OK;
        }
        if (s != MX_OK) { // the sequence may be in any state
            mx_err again;
            mx_seq_free(t->seq);
            t->seq = NULL;
            if (mx_seq_new(&t->seq, t->e, &again) != MX_OK && err) *err = again;
        }
    }
    if (s == MX_OK && t->content.oom) s = mx_fail(err, MX_ENOMEM, "no memory for the answer");
    if (s == MX_OK) s = talk_add(t, "assistant", t->content.p ? t->content.p : "", t->content.len, err);
    mx_str_free(&text);
    mx_ids_free(&ids);
    return s;
}
