/* mlxcel.c - the public C API on the engine: one model, one sequence, one request at a time.
 *
 * This is the only file of the shared library that exports names. Public types are copies of internal ones, so that these can
 * change; the two lists of codes are the same and checked here. */
#include "mlxcel.h"
#include "engine/generate.h"
#include "format/store.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)MLXCEL_EINTERNAL == (int)MX_EINTERNAL && (int)MLXCEL_ENOMEM == (int)MX_ENOMEM, "codes");
_Static_assert(sizeof((mlxcel_error *)0)->message == MX_ERR_LEN, "sentences");
_Static_assert(MLXCEL_PARSE_SPECIAL == (int)MX_TOK_PARSE_SPECIAL &&
                   MLXCEL_ADD_SPECIAL == (int)MX_TOK_ADD_SPECIAL,
               "flags");

struct mlxcel_model {
    mx_engine *e;
    mx_seq *seq; // NULL after a failure; made again by the next request
};

/* Hand an internal status and sentence to the caller. */
static mlxcel_status give(mx_status st, const mx_err *from, mlxcel_error *err) {
    if (st != MX_OK && err) {
        err->code = (mlxcel_status)st;
        memcpy(err->message, from->msg, sizeof err->message);
    }
    return (mlxcel_status)st;
}

const char *mlxcel_version(void) { return MX_VERSION; }
void mlxcel_free(void *p) { free(p); }

/* ---- models --------------------------------------------------------------------------------------------- */

static mx_status open_model(mlxcel_model *m, const char *model, const mlxcel_model_options *opt,
                            mx_err *err) {
    mx_arena a = {0};
    char *dir;
    mx_engine_options o = {.need_tokenizer = true};
    if (opt) {
        o.device = opt->device;
        o.dev.threads = opt->threads;
        o.ctx = opt->context;
        o.no_memory_check = opt->no_memory_check != 0;
    }
    mx_status st = mx_store_resolve(&dir, &a, model, err);
    if (st == MX_OK) st = mx_engine_open(&m->e, dir, &o, err);
    mx_arena_free(&a);
    return st;
}

mlxcel_status mlxcel_model_open(mlxcel_model **out, const char *model, const mlxcel_model_options *opt,
                                mlxcel_error *err) {
    mx_err why = {0};
    mlxcel_model *m = calloc(1, sizeof *m);
    if (!m) return give(mx_fail(&why, MX_ENOMEM, "no memory for a model"), &why, err);
    mx_status st = model ? open_model(m, model, opt, &why)
                         : mx_fail(&why, MX_EINVAL, "no model is named: give a folder or owner/name");
    if (st == MX_OK)
        *out = m;
    else
        mlxcel_model_free(m);
    return give(st, &why, err);
}

void mlxcel_model_free(mlxcel_model *m) {
    if (!m) return;
    mx_seq_free(m->seq);
    mx_engine_free(m->e);
    free(m);
}

static const mx_model_info *info(const mlxcel_model *m) { return mx_model_get_info(mx_engine_model(m->e)); }

int mlxcel_model_context(const mlxcel_model *m) { return mx_engine_ctx(m->e); }
int mlxcel_model_vocabulary(const mlxcel_model *m) { return info(m)->n_vocab; }
const char *mlxcel_model_family(const mlxcel_model *m) { return info(m)->family; }
const char *mlxcel_model_device(const mlxcel_model *m) { return mx_engine_dev(m->e)->name; }
uint64_t mlxcel_model_parameters(const mlxcel_model *m) { return info(m)->n_param; }
int mlxcel_model_can_chat(const mlxcel_model *m) { return mx_chat_has_template(mx_engine_chat(m->e)); }

/* ---- tokens --------------------------------------------------------------------------------------------- */

mlxcel_status mlxcel_tokenize(const mlxcel_model *m, const char *text, size_t len, unsigned flags,
                              int32_t **ids, size_t *n, mlxcel_error *err) {
    mx_err why = {0};
    mx_ids list = {0};
    mx_status st = mx_tokenizer_encode(mx_engine_tokenizer(m->e), text, len, flags, &list, &why);
    if (st == MX_OK && !list.id && !(list.id = malloc(1))) // an empty list is no NULL
        st = mx_fail(&why, MX_ENOMEM, "no memory for the tokens");
    if (st == MX_OK) {
        *ids = list.id;
        *n = list.n;
    } else {
        mx_ids_free(&list);
    }
    return give(st, &why, err);
}

mlxcel_status mlxcel_detokenize(const mlxcel_model *m, const int32_t *ids, size_t n, int skip_special,
                                char **text, size_t *len, mlxcel_error *err) {
    mx_err why = {0};
    mx_str s = {0};
    mx_str_add(&s, "", 0); // so that no text is "" and not NULL
    mx_status st = mx_tokenizer_decode(mx_engine_tokenizer(m->e), ids, n, skip_special != 0, &s, &why);
    if (st == MX_OK && s.oom) st = mx_fail(&why, MX_ENOMEM, "no memory for the text");
    if (st == MX_OK) {
        *text = s.p;
        if (len) *len = s.len;
    } else {
        mx_str_free(&s);
    }
    return give(st, &why, err);
}

/* ---- answers -------------------------------------------------------------------------------------------- */

mlxcel_options mlxcel_options_for(const mlxcel_model *m) {
    mlxcel_options o = {.max_tokens = -1, .top_p = 1, .repeat_penalty = 1, .seed = MLXCEL_SEED_RANDOM};
    if (!m) return o;
    const mx_generation_defaults *d = mx_model_get_defaults(mx_engine_model(m->e));
    if (!isnan(d->repetition_penalty)) o.repeat_penalty = d->repetition_penalty;
    if (d->do_sample != 1) return o;
    o.temperature = isnan(d->temperature) ? 1 : d->temperature;
    if (d->top_k >= 0) o.top_k = d->top_k;
    if (!isnan(d->top_p)) o.top_p = d->top_p;
    if (!isnan(d->min_p)) o.min_p = d->min_p;
    return o;
}

static int print_text(void *arg, const char *text, size_t len) {
    (void)arg;
    return fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0;
}

static int on_token(void *arg, const mx_token_event *ev) {
    const mlxcel_options *o = arg;
    if (ev->text_len == 0) return 0;
    return (o->on_text ? o->on_text : print_text)(o->arg, ev->text, ev->text_len);
}

static mlxcel_stop stop_of(mx_stop_reason r) {
    switch (r) {
    case MX_STOP_LENGTH: return MLXCEL_STOP_LENGTH;
    case MX_STOP_WORD: return MLXCEL_STOP_STRING;
    case MX_STOP_CANCEL: return MLXCEL_STOP_CANCEL;
    case MX_STOP_CONTEXT: return MLXCEL_STOP_CONTEXT;
    case MX_STOP_NONE:
    case MX_STOP_EOS: break;
    }
    return MLXCEL_STOP_END;
}

static mx_status run(mlxcel_model *m, const mx_ids *prompt, const mlxcel_options *opt, mlxcel_stats *stats,
                     mx_err *err) {
    mlxcel_options o = opt ? *opt : mlxcel_options_for(m);
    mx_generate_options g = mx_generate_defaults();
    mx_generate_stats s;
    g.max_tokens = o.max_tokens;
    g.sampler.temperature = o.temperature;
    g.sampler.top_k = o.top_k;
    g.sampler.top_p = o.top_p;
    g.sampler.min_p = o.min_p;
    g.sampler.repeat_penalty = o.repeat_penalty;
    g.sampler.seed = o.seed;
    g.stop = o.stop;
    g.n_stop = o.n_stop;
    g.on_token = on_token;
    g.arg = &o;
    if (prompt->n > INT32_MAX) return mx_fail(err, MX_ELIMIT, "the prompt is longer than any context");
    if (!m->seq) MX_TRY(mx_seq_new(&m->seq, m->e, err));
    mx_status st = mx_generate(m->e, m->seq, prompt->id, (int)prompt->n, &g, NULL, &s, err);
    if (st != MX_OK) { // the sequence may be in any state
        mx_seq_free(m->seq);
        m->seq = NULL;
    }
    if (stats)
        *stats = (mlxcel_stats){.prompt_tokens = s.n_prompt,
                                .cached_tokens = s.n_cached,
                                .answer_tokens = s.n_generated,
                                .prompt_seconds = s.prefill_seconds,
                                .answer_seconds = s.decode_seconds,
                                .stop = stop_of(s.stop),
                                .seed = s.seed};
    return st;
}

/* The conversation as the template sees it: a JSON array. */
static mx_status messages_json(const mlxcel_message *messages, size_t n, mx_str *json, mx_err *err) {
    mx_str_puts(json, "[");
    for (size_t i = 0; i < n; i++) {
        if (!messages[i].role || !messages[i].content)
            return mx_fail(err, MX_EINVAL, "message %zu has no role or no content", i + 1);
        mx_str_puts(json, i ? ", {\"role\": " : "{\"role\": ");
        mx_json_put_string(json, messages[i].role, strlen(messages[i].role));
        mx_str_puts(json, ", \"content\": ");
        mx_json_put_string(json, messages[i].content, strlen(messages[i].content));
        mx_str_puts(json, "}");
    }
    mx_str_puts(json, "]");
    return json->oom ? mx_fail(err, MX_ENOMEM, "no memory for the conversation") : MX_OK;
}

static mx_status chat_ids(const mlxcel_model *m, const mlxcel_message *messages, size_t n, mx_ids *ids,
                          mx_err *err) {
    mx_arena a = {0};
    mx_str json = {0}, text = {0};
    mx_json *list;
    mx_status st = messages_json(messages, n, &json, err);
    if (st == MX_OK) st = mx_json_parse(&list, &a, json.p, json.len, err);
    if (st == MX_OK) {
        mx_chat_request req = {.messages = list, .add_generation_prompt = true, .now = -1};
        st = mx_chat_render(mx_engine_chat(m->e), &req, &text, err);
    }
    if (st == MX_OK && text.oom) st = mx_fail(err, MX_ENOMEM, "no memory for the prompt");
    if (st == MX_OK) // the template has written the special tokens itself
        st = mx_tokenizer_encode(mx_engine_tokenizer(m->e), text.p ? text.p : "", text.len,
                                 MX_TOK_PARSE_SPECIAL, ids, err);
    mx_str_free(&json);
    mx_str_free(&text);
    mx_arena_free(&a);
    return st;
}

mlxcel_status mlxcel_chat(mlxcel_model *m, const mlxcel_message *messages, size_t n_message,
                          const mlxcel_options *opt, mlxcel_stats *stats, mlxcel_error *err) {
    mx_err why = {0};
    mx_ids ids = {0};
    mx_status st = chat_ids(m, messages, n_message, &ids, &why);
    if (st == MX_OK) st = run(m, &ids, opt, stats, &why);
    mx_ids_free(&ids);
    return give(st, &why, err);
}

mlxcel_status mlxcel_complete(mlxcel_model *m, const char *prompt, size_t len, const mlxcel_options *opt,
                              mlxcel_stats *stats, mlxcel_error *err) {
    mx_err why = {0};
    mx_ids ids = {0};
    mx_status st = mx_tokenizer_encode(mx_engine_tokenizer(m->e), prompt, len,
                                       MX_TOK_PARSE_SPECIAL | MX_TOK_ADD_SPECIAL, &ids, &why);
    if (st == MX_OK) st = run(m, &ids, opt, stats, &why);
    mx_ids_free(&ids);
    return give(st, &why, err);
}
