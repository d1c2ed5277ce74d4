/* generate.c - `mlxcel generate`: continue a text; the answer as text or as one JSON object. */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/out.h"
#include <math.h>
#include <string.h>

typedef struct {
    cli *c;
    const mx_tokenizer *tok;
    mx_str text;   // of the whole answer
    mx_str places; // --logprobs: a JSON array's items, or lines
    int n_place;
    char last; // byte printed last
} job;

static void put_token(mx_str *s, const mx_tokenizer *tok, int32_t id, float logprob) {
    size_t len;
    const char *p = mx_tokenizer_bytes(tok, id, &len);
    mx_str_printf(s, "{\"id\": %d, \"token\": ", id);
    mx_json_put_string(s, p ? p : "", p ? len : 0);
    mx_str_puts(s, ", \"bytes\": [");
    for (size_t i = 0; i < len; i++) mx_str_printf(s, "%s%u", i ? ", " : "", (unsigned char)p[i]);
    mx_str_puts(s, "], \"logprob\": ");
    mx_json_put_num(s, (double)logprob);
}

static void place_json(job *j, const mx_token_event *ev) {
    mx_str_puts(&j->places, j->n_place ? ", " : "");
    put_token(&j->places, j->tok, ev->id, ev->logprob);
    mx_str_puts(&j->places, ", \"top\": [");
    for (int i = 0; i < ev->n_top; i++) {
        mx_str_puts(&j->places, i ? ", " : "");
        put_token(&j->places, j->tok, ev->top[i].id, ev->top[i].logprob);
        mx_str_putc(&j->places, '}');
    }
    mx_str_puts(&j->places, "]}");
}

/* "  -0.0123  42 \"text\"   others: -4.5 7 \"x\"", for a person. */
static void place_line(job *j, const mx_token_event *ev) {
    for (int i = -1; i < ev->n_top; i++) {
        int32_t id = i < 0 ? ev->id : ev->top[i].id;
        float lp = i < 0 ? ev->logprob : ev->top[i].logprob;
        size_t len;
        const char *p = mx_tokenizer_bytes(j->tok, id, &len);
        mx_str_printf(&j->places, "%s%10.4f %7d ", i < 0 ? "" : "    ", (double)lp, id);
        mx_json_put_string(&j->places, p ? p : "", p ? len : 0);
        mx_str_putc(&j->places, '\n');
    }
}

static int on_token(void *arg, const mx_token_event *ev) {
    job *j = arg;
    if (ev->id >= 0 && j->c->o.logprobs >= 0) {
        if (j->c->o.json)
            place_json(j, ev);
        else
            place_line(j, ev);
        j->n_place++;
    }
    if (ev->text_len > 0) {
        j->last = ev->text[ev->text_len - 1];
        if (j->c->o.json)
            mx_str_add(&j->text, ev->text, ev->text_len);
        else if (!out_model(ev->text, ev->text_len))
            return 1;
    }
    return j->text.oom || j->places.oom;
}

static void put_json(job *j, const char *ref, const char *prompt, size_t len, const mx_ids *ids,
                     const mx_generate_stats *st) {
    mx_str s = {0};
    double rest = st->decode_seconds;
    mx_str_puts(&s, "{\"model\": ");
    mx_json_put_string(&s, ref, strlen(ref));
    mx_str_puts(&s, ", \"prompt\": ");
    mx_json_put_string(&s, prompt, len);
    mx_str_puts(&s, ", \"text\": ");
    mx_json_put_string(&s, j->text.p ? j->text.p : "", j->text.len);
    mx_str_puts(&s, ", \"ids\": [");
    for (size_t i = 0; i < ids->n; i++) mx_str_printf(&s, "%s%d", i ? ", " : "", ids->id[i]);
    mx_str_printf(&s, "], \"finish_reason\": \"%s\"", cli_stop_name(st->stop, true));
    if (st->stop == MX_STOP_WORD && st->stop_word) {
        mx_str_puts(&s, ", \"stop\": ");
        mx_json_put_string(&s, st->stop_word, strlen(st->stop_word));
    }
    if (j->c->o.logprobs >= 0) mx_str_printf(&s, ", \"logprobs\": [%s]", j->places.p ? j->places.p : "");
    mx_str_printf(&s,
                  ", \"seed\": %llu, \"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, "
                  "\"total_tokens\": %d}",
                  (unsigned long long)st->seed, st->n_prompt, st->n_generated,
                  st->n_prompt + st->n_generated);
    mx_str_puts(&s, ", \"timings\": {\"prompt_seconds\": ");
    mx_json_put_num(&s, st->prefill_seconds);
    mx_str_puts(&s, ", \"prompt_per_second\": ");
    mx_json_put_num(&s, st->prefill_seconds > 0 ? st->n_prompt / st->prefill_seconds : 0);
    mx_str_puts(&s, ", \"predicted_seconds\": ");
    mx_json_put_num(&s, rest);
    mx_str_puts(&s, ", \"predicted_per_second\": ");
    mx_json_put_num(&s, rest > 0 && st->n_generated > 1 ? (st->n_generated - 1) / rest : 0);
    if (st->device_bytes)
        mx_str_printf(&s, ", \"device_memory_bytes\": %llu", (unsigned long long)st->device_bytes);
    mx_str_printf(&s, ", \"peak_memory_bytes\": %llu}}\n", (unsigned long long)cli_peak_bytes());
    out_str(&s);
}

static mx_status generate(job *j, mx_engine *e, const char *ref, const char *prompt, size_t len,
                          mx_generate_stats *st, mx_err *err) {
    mx_generate_options g;
    mx_ids in = {0}, ids = {0};
    mx_seq *seq = NULL;
    j->tok = mx_engine_tokenizer(e);
    mx_status s = cli_generation(j->c, e, &g, err);
    if (s == MX_OK)
        s = mx_tokenizer_encode(j->tok, prompt, len, MX_TOK_PARSE_SPECIAL | MX_TOK_ADD_SPECIAL, &in, err);
    if (s == MX_OK && in.n == 0)
        s = mx_fail(err, MX_EINVAL, "the prompt is empty, and the model has no begin token");
    if (s == MX_OK && in.n > INT32_MAX) s = mx_fail(err, MX_ELIMIT, "the prompt is longer than any context");
    if (s == MX_OK) s = mx_seq_new(&seq, e, err);
    if (s == MX_OK) {
        g.on_token = on_token;
        g.arg = j;
        g.cancel = cli_interrupt_begin();
        s = mx_generate(e, seq, in.id, (int)in.n, &g, &ids, st, err);
        bool pressed = cli_interrupt_end();
        if (s == MX_ECANCELLED && pressed) st->stop = MX_STOP_CANCEL, s = MX_OK;
        if (!j->c->o.json && j->last != '\n') out_puts("\n");
    }
    if (s == MX_OK && (j->text.oom || j->places.oom)) s = mx_fail(err, MX_ENOMEM, "no memory for the answer");
    if (s == MX_OK && j->c->o.json) put_json(j, ref, prompt, len, &ids, st);
    if (s == MX_OK && !j->c->o.json && j->places.len) {
        out_puts("\n");
        out_write(j->places.p, j->places.len);
    }
    if (seq) mx_seq_free(seq);
    mx_ids_free(&in);
    mx_ids_free(&ids);
    return s;
}

int cmd_generate(cli *c) {
    mx_err err;
    mx_engine *e = NULL;
    mx_generate_stats st = {0};
    job j = {.c = c, .last = '\n'};
    char *dir, *prompt;
    size_t len;
    const char *ref = cli_model_ref(c);
    if (!ref) return EXIT_USE;
    mx_status s = cli_prompt(c, &prompt, &len, &err);
    if (s != MX_OK) {
        cli_fail(&err);
        return s == MX_EINVAL ? EXIT_USE : EXIT_FAIL;
    }
    if (!prompt) return cli_use(c, "no prompt is given; use -p TEXT, -f FILE or a pipe");
    s = cli_resolve(c, ref, &dir, &err);
    if (s == MX_OK) s = cli_open(c, dir, true, &e, &err);
    if (s == MX_OK) s = generate(&j, e, ref, prompt, len, &st, &err);
    int code = s != MX_OK ? cli_fail(&err) : st.stop == MX_STOP_CANCEL ? EXIT_INTERRUPTED : EXIT_OK;
    if (s == MX_OK) cli_stats(c, &st);
    mx_str_free(&j.text);
    mx_str_free(&j.places);
    mx_engine_free(e);
    return code;
}
