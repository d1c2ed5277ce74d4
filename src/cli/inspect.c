/* inspect.c - `mlxcel inspect`: what a model is, how it is stored, what it needs. Reads files only. */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "engine/kv.h"
#include "engine/memory.h"
#include "text/chat.h"
#include <math.h>
#include <string.h>

typedef struct {
    cli *c;
    const char *dir;
    mx_model *m;
    const mx_model_info *info;
    mx_module_row *rows;
    int n_row;
    mx_tokenizer *tok; // NULL: tok_why says why
    mx_chat *chat;     // likewise
    mx_err tok_why, chat_why;
    int ctx;
    uint64_t weights, kv, state, scratch, total, available;
    char device[96]; // "": the CPU
} facts;

/* The same of a GPU, which says itself what the ops want. */
static mx_status device_memory_need(facts *f, mx_err *err) {
    mx_engine_options o = cli_engine_options(f->c);
    mx_engine_needs need;
    o.n_seq = f->c->o.batch;
    o.ctx = f->c->o.ctx ? f->c->o.ctx : f->info->n_ctx;
    MX_TRY(mx_engine_need(&need, f->dir, &o, err));
    f->ctx = need.ctx;
    f->weights = need.weights;
    f->kv = need.kv;
    f->state = need.state;
    f->scratch = need.scratch;
    f->total = f->weights + f->kv + f->state + f->scratch;
    f->available = need.available;
    memcpy(f->device, need.device, sizeof f->device);
    return MX_OK;
}

/* What the engine will take on the CPU for a context of ctx and --batch sequences. */
static void memory_need(facts *f) {
    const mx_model_info *info = f->info;
    mx_dtype kv = f->info->dtype == MX_F32 || f->c->o.exact ? MX_F32 : MX_BF16;
    uint64_t n_seq = (uint64_t)f->c->o.batch;
    f->ctx = f->c->o.ctx ? f->c->o.ctx : info->n_ctx;
    f->weights = info->weight_bytes;
    for (int g = 0; g < info->n_group; g++)
        f->kv += n_seq * (uint64_t)mx_kv_need(f->ctx, info->window[g], f->c->o.chunk, MX_KV_BLOCK) *
                 mx_model_block_bytes(f->m, g, kv);
    f->state = n_seq * mx_model_slot_bytes(f->m);
    uint64_t chunk = (uint64_t)f->c->o.chunk, usual = (uint64_t)mx_model_max_tok(f->m);
    f->scratch = mx_model_scratch_bytes(f->m);
    if (chunk > usual) f->scratch = f->scratch / usual * chunk;
    f->total = f->weights + f->kv + f->state + f->scratch;
    f->available = mx_memory_available();
}

static const char *features(mx_str *s, const mx_chat *chat) {
    const mx_template *t = chat && mx_chat_has_template(chat) ? mx_chat_template(chat, false) : NULL;
    if (!t) return "none";
    mx_template_features x = mx_template_inspect(t);
    const struct {
        bool on;
        const char *name;
    } all[] = {{x.system, "system"},
               {x.tools, "tools"},
               {x.tool_calls, "tool calls"},
               {x.tool_role, "tool results"},
               {x.thinking, "thinking"},
               {x.parts, "content parts"},
               {x.generation, "generation blocks"}};
    for (size_t i = 0; i < countof(all); i++)
        if (all[i].on) mx_str_printf(s, "%s%s", s->len ? ", " : "", all[i].name);
    return s->p ? s->p : "plain";
}

static void number(mx_str *s, uint64_t n) { // "1.7 B"
    double v = (double)n;
    if (v >= 1e9)
        mx_str_printf(s, "%.2f B", v / 1e9);
    else if (v >= 1e6)
        mx_str_printf(s, "%.2f M", v / 1e6);
    else
        mx_str_printf(s, "%.1f k", v / 1e3);
}

static void memory_text(const facts *f, mx_str *s) {
    char a[16], b[16], d[16], e[16];
    mx_str_printf(s, "memory          %s: weights %s, KV cache %s", cli_bytes(a, f->total),
                  cli_bytes(b, f->weights), cli_bytes(d, f->kv));
    if (f->state) mx_str_printf(s, ", states %s", cli_bytes(e, f->state));
    if (f->scratch) mx_str_printf(s, ", scratch %s", cli_bytes(e, f->scratch));
    mx_str_printf(s, "\n                for a context of %d", f->ctx);
    if (f->c->o.batch > 1) mx_str_printf(s, " and %d sequences", f->c->o.batch);
    if (f->available != UINT64_MAX)
        mx_str_printf(s, "; %s are available %s%s, it %s", cli_bytes(a, f->available),
                      *f->device ? "on " : "here", f->device,
                      f->total <= f->available ? "fits" : "does not fit (a smaller -c takes less)");
    mx_str_puts(s, "\n");
}

static void modules_text(const facts *f, mx_str *s) {
    char b[16];
    mx_str_puts(s, "modules         stored as                       shape             count        size\n");
    for (int i = 0; i < f->n_row; i++) {
        const mx_module_row *r = &f->rows[i];
        char shape[48];
        if (r->n_stack > 1)
            snprintf(shape, sizeof shape, "%dx%dx%d", r->n_stack, r->n_out, r->n_in);
        else
            snprintf(shape, sizeof shape, "%dx%d", r->n_out, r->n_in);
        mx_str_printf(s, "  %-28s  %-22s  %-17s %5d  %10s\n", r->module, r->format, shape, r->count,
                      cli_bytes(b, r->bytes));
    }
}

/* The modules that share a format on one line: "affine 4-bit g64: q_proj, k_proj, ...". */
static void formats_text(const facts *f, mx_str *s) {
    for (int i = 0; i < f->n_row; i++) {
        bool first = true;
        char b[16];
        uint64_t bytes = 0;
        for (int j = 0; j < i; j++) first = first && strcmp(f->rows[j].format, f->rows[i].format) != 0;
        if (!first) continue;
        mx_str names = {0};
        for (int j = i; j < f->n_row; j++) {
            if (strcmp(f->rows[j].format, f->rows[i].format) != 0) continue;
            const char *dot = strrchr(f->rows[j].module, '.');
            if (names.len < 50)
                mx_str_printf(&names, "%s%s", names.len ? ", " : "", dot ? dot + 1 : f->rows[j].module);
            bytes += f->rows[j].bytes;
        }
        mx_str_printf(s, "  %-22s %9s  %s%s\n", f->rows[i].format, cli_bytes(b, bytes),
                      names.p ? names.p : "", names.len >= 50 ? ", ..." : "");
        mx_str_free(&names);
    }
}

static void layers_text(const facts *f, mx_str *s) {
    const mx_model_info *i = f->info;
    mx_str_printf(s, "layers          %d", i->n_layer);
    if (i->n_recurrent) mx_str_printf(s, " (%d attention, %d recurrent)", i->n_attention, i->n_recurrent);
    mx_str_printf(s, ", hidden %d, heads %d of %d, KV heads %d, vocabulary %d\n", i->d, i->n_head, i->hd,
                  i->n_kv, i->n_vocab);
    if (i->n_expert)
        mx_str_printf(s, "experts         %d, %d used by a token\n", i->n_expert, i->n_expert_used);
    mx_str_printf(s, "context         %d", i->n_ctx);
    for (int g = 0; g < i->n_group; g++)
        if (i->window[g])
            mx_str_printf(s, "; %d layers see a window of %d", i->group_layers[g], i->window[g]);
    mx_str_puts(s, "\n");
}

static void text(const facts *f) {
    const mx_model_info *i = f->info;
    const mx_generation_defaults *d = mx_model_get_defaults(f->m);
    mx_str s = {0}, x = {0};
    if (f->c->o.memory) {
        memory_text(f, &s);
        out_str(&s);
        return;
    }
    mx_str_printf(&s, "model           %s\narchitecture    %s%s%s%s\nparameters      ", f->dir, i->family,
                  *i->architecture ? " (" : "", i->architecture, *i->architecture ? ")" : "");
    number(&s, i->n_param);
    if (i->n_param_active != i->n_param) {
        mx_str_puts(&s, ", of which a token uses ");
        number(&s, i->n_param_active);
    }
    mx_str_puts(&s, "\n");
    layers_text(f, &s);
    mx_str_printf(&s, "weights         %s\n", i->quant);
    if (f->c->o.modules)
        modules_text(f, &s);
    else
        formats_text(f, &s);
    if (f->tok)
        mx_str_printf(&s, "tokenizer       %d ids\n", mx_tokenizer_size(f->tok));
    else
        mx_str_printf(&s, "tokenizer       none that can be used: %s\n", f->tok_why.msg);
    mx_str_puts(&s, "end tokens     ");
    for (int k = 0; k < i->n_eos; k++) {
        const char *piece = f->tok ? mx_tokenizer_piece(f->tok, i->eos[k]) : NULL;
        mx_str_printf(&s, " %d%s%s", i->eos[k], piece ? " " : "", piece ? piece : "");
    }
    mx_str_puts(&s, "\n");
    if (f->chat)
        mx_str_printf(&s, "chat template   %s\n", features(&x, f->chat));
    else
        mx_str_printf(&s, "chat template   none that can be used: %s\n", f->chat_why.msg);
    mx_str_puts(&s, "sampling       ");
    if (d->do_sample == 0) mx_str_puts(&s, " greedy");
    if (!isnan(d->temperature)) mx_str_printf(&s, " temp %g", (double)d->temperature);
    if (d->top_k >= 0) mx_str_printf(&s, " top-k %d", d->top_k);
    if (!isnan(d->top_p)) mx_str_printf(&s, " top-p %g", (double)d->top_p);
    if (!isnan(d->min_p)) mx_str_printf(&s, " min-p %g", (double)d->min_p);
    if (!isnan(d->repetition_penalty)) mx_str_printf(&s, " repeat-penalty %g", (double)d->repetition_penalty);
    mx_str_puts(&s, " (generation_config.json)\n");
    memory_text(f, &s);
    mx_str_free(&x);
    if (s.p && out_tty()) s.len = out_filter(s.p, s.len); // names come from the model's files
    out_str(&s);
}

static void put_str(mx_str *s, const char *key, const char *v) {
    mx_str_printf(s, "\"%s\": ", key);
    mx_json_put_string(s, v, strlen(v));
    mx_str_puts(s, ", ");
}

static void put_float(mx_str *s, const char *key, double v) {
    if (isnan(v)) return;
    mx_str_printf(s, ", \"%s\": ", key);
    mx_json_put_num(s, v);
}

static void json(const facts *f) {
    const mx_model_info *i = f->info;
    const mx_generation_defaults *d = mx_model_get_defaults(f->m);
    mx_str s = {0}, x = {0};
    mx_str_puts(&s, "{");
    put_str(&s, "path", f->dir);
    put_str(&s, "family", i->family);
    put_str(&s, "architecture", i->architecture);
    put_str(&s, "quantization", i->quant);
    mx_str_printf(
        &s,
        "\"parameters\": %llu, \"active_parameters\": %llu, \"layers\": %d, \"attention_layers\": %d, "
        "\"recurrent_layers\": %d, \"hidden_size\": %d, \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, "
        "\"vocab_size\": %d, \"context\": %d, \"experts\": %d, \"experts_used\": %d, \"bos\": ",
        (unsigned long long)i->n_param, (unsigned long long)i->n_param_active, i->n_layer, i->n_attention,
        i->n_recurrent, i->d, i->n_head, i->n_kv, i->hd, i->n_vocab, i->n_ctx, i->n_expert, i->n_expert_used);
    mx_str_printf(&s, i->bos < 0 ? "null" : "%d", i->bos);
    mx_str_puts(&s, ", \"eos\": [");
    for (int k = 0; k < i->n_eos; k++) mx_str_printf(&s, "%s%d", k ? ", " : "", i->eos[k]);
    mx_str_puts(&s, "], \"kv_groups\": [");
    for (int g = 0; g < i->n_group; g++)
        mx_str_printf(&s, "%s{\"layers\": %d, \"window\": %d}", g ? ", " : "", i->group_layers[g],
                      i->window[g]);
    mx_str_puts(&s, "], \"modules\": [");
    for (int k = 0; k < f->n_row; k++) {
        const mx_module_row *r = &f->rows[k];
        mx_str_puts(&s, k ? ", {" : "{");
        put_str(&s, "module", r->module);
        put_str(&s, "format", r->format);
        mx_str_printf(&s,
                      "\"stack\": %d, \"rows\": %d, \"cols\": %d, \"count\": %d, \"bytes\": %llu, "
                      "\"parameters\": %llu}",
                      r->n_stack, r->n_out, r->n_in, r->count, (unsigned long long)r->bytes,
                      (unsigned long long)r->params);
    }
    mx_str_puts(&s, "], ");
    mx_str_printf(&s, "\"tokenizer_size\": %d, ", f->tok ? mx_tokenizer_size(f->tok) : 0);
    if (!f->tok) put_str(&s, "tokenizer_error", f->tok_why.msg);
    if (!f->chat) put_str(&s, "chat_template_error", f->chat_why.msg);
    put_str(&s, "chat_template", f->chat ? features(&x, f->chat) : "none");
    mx_str_printf(&s, "\"sampling\": {\"do_sample\": %s",
                  d->do_sample < 0 ? "null"
                  : d->do_sample   ? "true"
                                   : "false");
    put_float(&s, "temperature", (double)d->temperature);
    if (d->top_k >= 0) mx_str_printf(&s, ", \"top_k\": %d", d->top_k);
    put_float(&s, "top_p", (double)d->top_p);
    put_float(&s, "min_p", (double)d->min_p);
    put_float(&s, "repetition_penalty", (double)d->repetition_penalty);
    mx_str_printf(
        &s,
        "}, \"memory\": {\"context\": %d, \"sequences\": %d, \"weights_bytes\": %llu, \"kv_bytes\": %llu, "
        "\"state_bytes\": %llu, \"scratch_bytes\": %llu, \"total_bytes\": %llu, \"device\": ",
        f->ctx, f->c->o.batch, (unsigned long long)f->weights, (unsigned long long)f->kv,
        (unsigned long long)f->state, (unsigned long long)f->scratch, (unsigned long long)f->total);
    mx_json_put_string(&s, *f->device ? f->device : "cpu", strlen(*f->device ? f->device : "cpu"));
    mx_str_puts(&s, ", \"available_bytes\": ");
    if (f->available == UINT64_MAX)
        mx_str_puts(&s, "null, \"fits\": null}}\n");
    else
        mx_str_printf(&s, "%llu, \"fits\": %s}}\n", (unsigned long long)f->available,
                      f->total <= f->available ? "true" : "false");
    mx_str_free(&x);
    out_str(&s);
}

int cmd_inspect(cli *c) {
    mx_err err;
    facts f = {.c = c};
    char *dir;
    const char *ref = cli_model_ref(c);
    if (!ref) return EXIT_USE;
    if (c->line.n_positional)
        return cli_use(c, "one model at a time; \"%.60s\" is too many", c->line.positional[0]);
    mx_status st = cli_resolve(c, ref, &dir, &err);
    if (st == MX_OK) st = mx_model_describe(&f.m, dir, &err);
    if (st == MX_OK) st = mx_model_modules(f.m, &c->a, &f.rows, &f.n_row, &err);
    if (st == MX_OK) {
        f.dir = dir;
        f.info = mx_model_get_info(f.m);
        if (!strcmp(c->o.device, "cpu"))
            memory_need(&f);
        else
            st = device_memory_need(&f, &err);
    }
    if (st == MX_OK) {
        if (mx_tokenizer_open(&f.tok, dir, &f.tok_why) != MX_OK) f.tok = NULL; // said in its line
        if (f.tok) mx_model_use_tokenizer(f.m, f.tok);
        if (mx_chat_open(&f.chat, dir, &f.chat_why) != MX_OK) f.chat = NULL;
        if (c->o.json)
            json(&f);
        else
            text(&f);
    }
    mx_chat_free(f.chat);
    mx_tokenizer_free(f.tok);
    mx_model_free(f.m);
    return st == MX_OK ? EXIT_OK : cli_fail(&err);
}
