#include "cli/repl.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/out.h"
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    talk *t;
    EditLine *el;
    History *history;
    char *history_path;
    bool done;
} session;

/* ---- reading --------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t pressed; // Ctrl-C while a line is being typed
static bool more;                     // the prompt of a line that continues

static void on_interrupt(int sig) {
    (void)sig;
    pressed = 1;
}

static char *prompt(EditLine *el) {
    static char first[] = ">>> ", next[] = "... ";
    (void)el;
    return more ? next : first;
}

char *repl_history_path(mx_arena *a) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state) return mx_arena_printf(a, "%s/mlxcel/history", state);
    if (home && *home) return mx_arena_printf(a, "%s/.local/state/mlxcel/history", home);
    return NULL;
}

static mx_status start(session *s, mx_err *err) {
    HistEvent ev;
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
    s->el = el_init("mlxcel", stdin, out_tty() ? stdout : stderr, stderr);
    s->history = history_init();
    if (!s->el || !s->history) return mx_fail(err, MX_ENOMEM, "the line editor could not be started");
    history(s->history, &ev, H_SETSIZE, 1000);
    history(s->history, &ev, H_SETUNIQUE, 1);
    el_set(s->el, EL_PROMPT, prompt);
    el_set(s->el, EL_EDITOR, "emacs");
    el_set(s->el, EL_HIST, history, s->history);
    el_source(s->el, NULL); // the user's ~/.editrc
    s->history_path = repl_history_path(&s->t->c->a);
    if (s->history_path) history(s->history, &ev, H_LOAD, s->history_path);
    return MX_OK;
}

/* What was typed is kept for the next time, readable by its owner only. A failure is no matter: the answers are out. */
static void stop(session *s) {
    HistEvent ev;
    if (s->history && s->history_path) {
        char *dir = mx_arena_strdup(&s->t->c->a, s->history_path), *slash = dir ? strrchr(dir, '/') : NULL;
        mode_t mask = umask(077);
        if (slash) *slash = 0;
        if (slash && mx_mkdirs(dir, NULL) == MX_OK) history(s->history, &ev, H_SAVE, s->history_path);
        umask(mask);
    }
    if (s->history) history_end(s->history);
    if (s->el) el_end(s->el);
}

typedef enum { GOT_LINE, GOT_INTERRUPT, GOT_END } got;

/* One line without its newline appended to out. */
static got read_line(session *s, mx_str *out) {
    struct sigaction sa = {.sa_handler = on_interrupt}, old;
    HistEvent ev;
    int n = 0;
    pressed = 0;
    errno = 0;
    sigaction(SIGINT, &sa, &old);
    el_resize(s->el); // the window may have changed while an answer was printed
    const char *line = el_gets(s->el, &n);
    sigaction(SIGINT, &old, NULL);
    if (pressed) {
        el_reset(s->el);
        fputs("\n", stderr);
        return GOT_INTERRUPT;
    }
    if (!line || n <= 0) return GOT_END;
    if (strspn(line, " \t\r\n") < (size_t)n) history(s->history, &ev, H_ENTER, line);
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    mx_str_add(out, line, (size_t)n);
    return GOT_LINE;
}

static bool ends_with(const mx_str *s, size_t from, const char *z) {
    size_t n = strlen(z);
    return s->len - from >= n && !memcmp(s->p + s->len - n, z, n);
}

/* One input: a line; lines between """ and """; or lines that each end in a backslash but the last. */
static got read_input(session *s, mx_str *in) {
    mx_str_clear(in);
    more = false;
    got g = read_line(s, in);
    if (g != GOT_LINE || !in->p) return g;
    if (!strncmp(in->p, "\"\"\"", 3)) {
        more = true;
        while (!ends_with(in, 3, "\"\"\"") && g == GOT_LINE) {
            mx_str_putc(in, '\n');
            g = read_line(s, in);
        }
        if (g == GOT_LINE) in->len -= 3;
        memmove(in->p, in->p + 3, in->len -= 3);
        while (in->len && in->p[0] == '\n') memmove(in->p, in->p + 1, --in->len);
        while (in->len && in->p[in->len - 1] == '\n') in->len--;
        in->p[in->len] = 0;
    } else {
        more = true;
        while (ends_with(in, 0, "\\") && g == GOT_LINE) {
            in->p[in->len - 1] = '\n';
            g = read_line(s, in);
        }
    }
    return g;
}

/* ---- commands -------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name, *args, *help;
    mx_status (*run)(session *s, const char *arg,
                     mx_err *err); // arg: the rest of the line, trimmed, "" if none
} command;

static mx_status do_help(session *s, const char *arg, mx_err *err);

static mx_status do_clear(session *s, const char *arg, mx_err *err) {
    (void)arg, (void)err;
    bool keep = s->t->n_turn > 0 && !strcmp(s->t->turn[0].role, "system");
    talk_drop(s->t, keep);
    fputs("The conversation is forgotten.\n", stderr);
    return MX_OK;
}

static mx_status do_system(session *s, const char *arg, mx_err *err) {
    talk *t = s->t;
    if (!*arg) {
        bool have = t->n_turn > 0 && !strcmp(t->turn[0].role, "system");
        fprintf(stderr, "%s\n",
                have ? t->turn[0].content : "There is no system prompt; /system TEXT sets one.");
        return MX_OK;
    }
    if (t->c->o.no_template)
        return mx_fail(err, MX_EINVAL, "--no-chat-template leaves no place for a system prompt");
    if (!strcmp(arg, "-")) arg = "";
    MX_TRY(talk_system(t, arg, strlen(arg), err));
    fprintf(stderr, "The system prompt is %s.\n", *arg ? "set" : "removed");
    return MX_OK;
}

/* What /set may change: how answers are made and shown, not the model. */
static bool settable(const arg_flag *f) {
    static const char *const also[] = {"--reasoning", "--show-reasoning", "--stats"};
    if (!strcmp(f->group, "Sampling:") || !strcmp(f->group, "Answer:")) return true;
    for (size_t i = 0; i < countof(also); i++)
        if (!strcmp(f->names, also[i])) return true;
    return false;
}

static mx_status do_show(session *s, const char *arg, mx_err *err) {
    (void)arg, (void)err;
    const arg_line *l = &s->t->c->line;
    const mx_sampler_options *so = &s->t->g.sampler;
    for (int i = 0; i < l->n_flag; i++) {
        char name[48];
        mx_str v = {0};
        if (!(l->flags[i].cmds & l->cmd) || !settable(&l->flags[i])) continue;
        arg_show(&v, &l->flags[i], &s->t->c->o);
        fprintf(stderr, "  %-22s %s\n", arg_name(&l->flags[i], name, sizeof name) + 2, v.p ? v.p : "");
        mx_str_free(&v);
    }
    fprintf(
        stderr,
        "In use, with the model's own values where nothing is set: temp %g, top-k %d, top-p %g, min-p %g, "
        "repeat-penalty %g\n",
        (double)so->temperature, so->top_k, (double)so->top_p, (double)so->min_p, (double)so->repeat_penalty);
    return MX_OK;
}

static mx_status do_set(session *s, const char *arg, mx_err *err) {
    cli *c = s->t->c;
    size_t len = strcspn(arg, " \t=");
    if (len == 0) return do_show(s, arg, err);
    const char *bare = arg + strspn(arg, "-");
    char *name = mx_arena_printf(&c->a, "--%.*s", (int)(len - (size_t)(bare - arg)), bare);
    char *value = mx_arena_strdup(&c->a, arg + len + strspn(arg + len, " \t="));
    if (!name || !value) return mx_fail(err, MX_ENOMEM, "no memory for the setting");
    const arg_flag *f = arg_find(&c->line, name);
    if (f && !settable(f))
        return mx_fail(err, MX_EINVAL, "%s cannot be changed while the model is open", name + 2);
    if (f && !*value && f->type == ARG_BOOL) value = "on";
    if (f && !*value && f->type != ARG_STR && f->type != ARG_MANY)
        return mx_fail(err, MX_EINVAL, "/set %s needs a value", name + 2);
    cli_options old = c->o;
    mx_status st = arg_set(&c->line, &c->o, name, value, err);
    if (st == MX_OK) st = cli_generation(c, s->t->e, &s->t->g, err);
    if (st != MX_OK) c->o = old;
    return st;
}

static mx_status do_save(session *s, const char *arg, mx_err *err) {
    mx_str text = {0};
    if (!*arg) return mx_fail(err, MX_EINVAL, "/save needs the name of a file");
    talk_put_json(s->t, &text, 2);
    mx_status st = text.oom ? mx_fail(err, MX_ENOMEM, "no memory for the conversation")
                            : mx_file_write(arg, text.p, text.len, err);
    mx_str_free(&text);
    if (st == MX_OK) fprintf(stderr, "Saved %d turns to %s.\n", s->t->n_turn, arg);
    return st;
}

static mx_status do_load(session *s, const char *arg, mx_err *err) {
    mx_arena a = {0};
    char *text;
    size_t len;
    if (!*arg) return mx_fail(err, MX_EINVAL, "/load needs the name of a file");
    mx_status st = mx_file_read(&text, &len, &a, arg, 64 << 20, err);
    if (st == MX_OK) st = talk_load_json(s->t, text, len, arg, err);
    if (st == MX_OK) fprintf(stderr, "Loaded %d turns from %s.\n", s->t->n_turn, arg);
    mx_arena_free(&a);
    return st;
}

static mx_status answer(session *s, mx_err *err) {
    mx_generate_stats st;
    int before = s->t->n_turn;
    mx_status code = talk_answer(s->t, &st, err);
    if (code != MX_OK) {
        talk_drop(s->t, before - 1); // the question too: it can be asked again
        return code;
    }
    cli_stats(s->t->c, &st);
    return MX_OK;
}

static mx_status do_retry(session *s, const char *arg, mx_err *err) {
    (void)arg;
    talk *t = s->t;
    if (t->n_turn < 2 || strcmp(t->turn[t->n_turn - 1].role, "assistant") != 0)
        return mx_fail(err, MX_EINVAL, "there is no answer yet");
    talk_drop(t, t->n_turn - 1);
    return answer(s, err);
}

static mx_status do_exit(session *s, const char *arg, mx_err *err) {
    (void)arg, (void)err;
    s->done = true;
    return MX_OK;
}

static const command commands[] = {
    {"help", "", "this list", do_help},
    {"clear", "", "forget the conversation", do_clear},
    {"system", "[TEXT]", "set the system prompt (- removes it), or show it", do_system},
    {"set", "NAME VALUE", "change a setting: /set temp 0.7, /set show-reasoning on", do_set},
    {"show", "", "the settings", do_show},
    {"retry", "", "answer the last question again", do_retry},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"load", "FILE", "go on with a saved conversation", do_load},
    {"exit", "", "end (also /quit, /bye and Ctrl-D)", do_exit},
};

static mx_status do_help(session *s, const char *arg, mx_err *err) {
    (void)s, (void)arg, (void)err;
    for (size_t i = 0; i < countof(commands); i++) {
        char left[32];
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].args);
        fprintf(stderr, "  %-18s %s\n", left, commands[i].help);
    }
    fputs("Several lines: put them between \"\"\" and \"\"\", or end a line with \\.\n"
          "Ctrl-C stops an answer or forgets the line, Ctrl-D ends. Earlier input: the up key.\n",
          stderr);
    return MX_OK;
}

static mx_status run_command(session *s, char *line, mx_err *err) {
    const char *names[countof(commands) + 2];
    size_t len = strcspn(line + 1, " \t\n");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)len, line + 1);
    char *arg = line + 1 + len;
    arg += strspn(arg, " \t\n");
    for (size_t n = strlen(arg); n > 0 && strchr(" \t\n", arg[n - 1]); n--) arg[n - 1] = 0;
    if (!strcmp(name, "quit") || !strcmp(name, "bye") || !strcmp(name, "q")) return do_exit(s, arg, err);
    if (!strcmp(name, "?")) return do_help(s, arg, err);
    for (size_t i = 0; i < countof(commands); i++) {
        names[i] = commands[i].name;
        if (!strcmp(name, commands[i].name)) return commands[i].run(s, arg, err);
    }
    names[countof(commands)] = "quit";
    names[countof(commands) + 1] = "bye";
    const char *near = arg_near(name, names, (int)countof(names));
    if (near) return mx_fail(err, MX_EINVAL, "unknown command /%s; did you mean /%s?", name, near);
    return mx_fail(err, MX_EINVAL, "unknown command /%s; /help lists the commands", name);
}

/* ---- the loop -------------------------------------------------------------------------------------------- */

static mx_status take(session *s, mx_str *in, mx_err *err) {
    talk *t = s->t;
    if (in->oom) return mx_fail(err, MX_ENOMEM, "no memory for the input");
    if (in->len == 0 || strspn(in->p, " \t\n") == in->len) return MX_OK;
    if (in->p[0] == '/' && !memchr(in->p, '\n', in->len)) return run_command(s, in->p, err);
    MX_TRY(talk_add(t, "user", in->p, in->len, err));
    return answer(s, err);
}

int repl(talk *t) {
    session s = {.t = t};
    mx_str in = {.limit = 64 << 20};
    mx_err err;
    int code = EXIT_OK;
    if (start(&s, &err) != MX_OK) {
        code = cli_fail(&err);
        s.done = true;
    } else if (!t->c->o.quiet) {
        const mx_model_info *info = mx_model_get_info(mx_engine_model(t->e));
        char size[16];
        fprintf(stderr, "%s, %s, %s, context %d. /help lists commands, Ctrl-D ends.\n", info->family,
                info->quant, cli_bytes(size, info->weight_bytes), mx_engine_ctx(t->e));
    }
    while (!s.done && out_flush()) {
        got g = read_input(&s, &in);
        if (g == GOT_INTERRUPT) continue;
        if (g == GOT_END) {
            fputs("\n", stderr);
            break;
        }
        if (take(&s, &in, &err) != MX_OK) cli_fail(&err);
    }
    stop(&s);
    mx_str_free(&in);
    return code;
}
