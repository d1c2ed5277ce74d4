/* session.c - from flags to an open model, its prompt and its options; Ctrl-C; the figures at the end. */
#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "format/store.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Ctrl-C ---------------------------------------------------------------------------------------------- */

static volatile int interrupted;
static struct sigaction before;

static void on_interrupt(int sig) {
    (void)sig;
    if (++interrupted >= 3) _exit(EXIT_INTERRUPTED); // a step that does not end: the user insists
}

const volatile int *cli_interrupt_begin(void) {
    struct sigaction sa = {.sa_handler = on_interrupt};
    interrupted = 0;
    sigaction(SIGINT, &sa, &before);
    return &interrupted;
}

bool cli_interrupt_end(void) {
    sigaction(SIGINT, &before, NULL);
    return interrupted > 0;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

const char *cli_model_ref(cli *c) {
    const arg_flag *f = arg_find(&c->line, "--model");
    bool typed = f && c->line.typed[f - c->line.flags];
    if (!typed && c->line.n_positional > 0) { // stronger than MLXCEL_MODEL
        c->line.n_positional--;
        return *c->line.positional++;
    }
    if (c->o.model) return c->o.model;
    cli_use(
        c,
        "no model is named; mlxcel %s MODEL takes a folder or OWNER/NAME, and mlxcel list shows what is here",
        c->name);
    return NULL;
}

mx_status cli_resolve(cli *c, const char *ref, char **dir, mx_err *err) {
    if (!*ref) return mx_fail(err, MX_EINVAL, "the name of the model is empty");
    return mx_store_resolve(dir, &c->a, ref, err);
}

/* A line that is rewritten in place while the weights come in, and wiped at the end. */
typedef struct {
    int percent; // shown last
} progress_line;

static void on_progress(void *arg, uint64_t done, uint64_t total) {
    progress_line *p = arg;
    int percent = total ? (int)(done * 100 / total) : 100;
    if (percent == p->percent) return;
    p->percent = percent;
    fprintf(stderr, "\rloading %3d %%", percent);
}

mx_engine_options cli_engine_options(const cli *c) {
    static const char *const kv[] = {
        [MX_KV_AUTO] = "auto", [MX_KV_BF16] = "bf16", [MX_KV_F16] = "f16", [MX_KV_F32] = "f32"};
    mx_engine_options eo = {.device = c->o.device,
                            .dev = {.threads = c->o.threads,
                                    .exact = c->o.exact,
                                    .sync = c->o.each_kernel,
                                    .step_timeout = c->o.step_timeout},
                            .ctx = c->o.ctx,
                            .n_seq = 1,
                            .chunk = c->o.chunk,
                            .no_memory_check = c->o.no_memory_check};
    if (c->o.graphs && strcmp(c->o.graphs, "auto") != 0)
        eo.dev.graphs = !strcmp(c->o.graphs, "on") ? MX_GRAPHS_ON : MX_GRAPHS_OFF;
    if (c->o.isa && strcmp(c->o.isa, "auto") != 0) eo.dev.isa = c->o.isa;
    for (size_t i = 0; i < countof(kv); i++)
        if (c->o.cache_type && !strcmp(kv[i], c->o.cache_type)) eo.kv = (mx_kv_choice)i;
    return eo;
}

mx_status cli_open(cli *c, const char *dir, bool need_tokenizer, mx_engine **e, mx_err *err) {
    progress_line line = {-1};
    mx_engine_options eo = cli_engine_options(c);
    eo.need_tokenizer = need_tokenizer;
    if (out_err_tty() && !c->o.quiet) eo.progress = on_progress, eo.arg = &line;
    mx_status st = mx_engine_open(e, dir, &eo, err);
    if (line.percent >= 0) fprintf(stderr, "\r              \r");
    if (st == MX_OK)
        mx_log(MX_LOG_INFO, "%s on %s, context %d", dir, mx_engine_dev(*e)->name, mx_engine_ctx(*e));
    return st;
}

/* ---- generation options ---------------------------------------------------------------------------------- */

/* \n, \t and \\ of a flag's value; a backslash before anything else stays. */
static char *unescape(mx_arena *a, const char *z) {
    char *s = mx_arena_strdup(a, z), *w = s;
    if (!s) return NULL;
    for (const char *r = z; *r; r++) {
        char to = r[0] != '\\' ? 0 : r[1] == 'n' ? '\n' : r[1] == 't' ? '\t' : r[1] == '\\' ? '\\' : 0;
        *w++ = to ? to : *r;
        r += to != 0;
    }
    *w = 0;
    return s;
}

static mx_status unescape_all(mx_arena *a, const arg_strings *l, const char *const **out, mx_err *err) {
    const char **v = mx_arena_array(a, (size_t)l->n + 1, sizeof *v);
    for (int i = 0; v && i < l->n; i++)
        if (!(v[i] = unescape(a, l->v[i]))) v = NULL;
    if (!v) return mx_fail(err, MX_ENOMEM, "no memory for the options");
    *out = v;
    return MX_OK;
}

/* "1234+0.5", "1234-inf" or a token as the vocabulary spells it instead of the number. */
static mx_status parse_bias(const char *z, const mx_tokenizer *tok, mx_arena *a, mx_logit_bias *out,
                            mx_err *err) {
    size_t cut = strlen(z);
    while (cut > 0 && z[cut - 1] != '+' && z[cut - 1] != '-') cut--;
    if (cut < 2) return mx_fail(err, MX_EINVAL, "--logit-bias takes ID+BIAS or ID-BIAS, not \"%.60s\"", z);
    char *end, *name = mx_arena_strndup(a, z, cut - 1);
    if (!name) return mx_fail(err, MX_ENOMEM, "no memory for the options");
    float bias = strtof(z + cut, &end);
    if (end == z + cut || *end || isnan(bias))
        return mx_fail(err, MX_EINVAL, "--logit-bias %.60s: \"%.20s\" is not a number", z, z + cut);
    long id = strtol(name, &end, 10);
    if (*end || end == name) id = tok ? mx_tokenizer_find(tok, name) : -1;
    if (id < 0 || id > INT32_MAX)
        return mx_fail(err, MX_EINVAL, "--logit-bias %.60s: the vocabulary has no token \"%.60s\"", z, name);
    *out = (mx_logit_bias){.id = (int32_t)id, .bias = z[cut - 1] == '-' ? -bias : bias};
    return MX_OK;
}

mx_status cli_generation(cli *c, mx_engine *e, mx_generate_options *g, mx_err *err) {
    const cli_options *o = &c->o;
    const mx_generation_defaults *d = mx_model_get_defaults(mx_engine_model(e));
    mx_sampler_options s = mx_sampler_defaults();
    *g = mx_generate_defaults();
    s.seed = o->seed; // -1 is MX_SEED_RANDOM
    s.temperature = o->temp;
    s.top_k = o->top_k;
    s.top_p = o->top_p;
    s.min_p = o->min_p;
    s.typical_p = o->typical;
    s.top_n_sigma = o->top_n_sigma;
    s.xtc_probability = o->xtc_probability;
    s.xtc_threshold = o->xtc_threshold;
    s.repeat_penalty = o->repeat_penalty;
    s.penalty_last_n = o->repeat_last_n;
    s.presence_penalty = o->presence_penalty;
    s.frequency_penalty = o->frequency_penalty;
    s.dry_multiplier = o->dry_multiplier;
    s.dry_base = o->dry_base;
    s.dry_allowed_length = o->dry_allowed;
    s.dry_penalty_last_n = o->dry_last_n;
    if (!arg_given(&c->line, "--temp") && d->do_sample != 0)
        s.temperature = !isnan(d->temperature) ? d->temperature : d->do_sample == 1 ? 1.0f : s.temperature;
    if (!arg_given(&c->line, "--top-k") && d->top_k >= 0) s.top_k = d->top_k;
    if (!arg_given(&c->line, "--top-p") && !isnan(d->top_p)) s.top_p = d->top_p;
    if (!arg_given(&c->line, "--min-p") && !isnan(d->min_p)) s.min_p = d->min_p;
    if (!arg_given(&c->line, "--repeat-penalty") && !isnan(d->repetition_penalty))
        s.repeat_penalty = d->repetition_penalty;
    if (o->dry_breakers.n) {
        MX_TRY(unescape_all(&c->a, &o->dry_breakers, &s.dry_breakers, err));
        s.n_dry_breaker = o->dry_breakers.n;
    }
    mx_logit_bias *bias = mx_arena_array(&c->a, (size_t)o->bias.n + 1, sizeof *bias);
    if (!bias) return mx_fail(err, MX_ENOMEM, "no memory for the options");
    for (int i = 0; i < o->bias.n; i++)
        MX_TRY(parse_bias(o->bias.v[i], mx_engine_tokenizer(e), &c->a, &bias[i], err));
    s.bias = bias;
    s.n_bias = o->bias.n;
    g->sampler = s;
    g->max_tokens = o->max_tokens;
    g->ignore_eos = o->ignore_eos;
    g->context_shift = o->context_shift;
    g->n_keep = o->keep;
    g->n_logprobs = o->logprobs;
    MX_TRY(unescape_all(&c->a, &o->stop, &g->stop, err));
    g->n_stop = o->stop.n;
    return MX_OK;
}

/* ---- prompts --------------------------------------------------------------------------------------------- */

enum { MAX_PROMPT = 256 << 20 };

/* All of a file or of stdin ("-") appended to s. */
static mx_status read_all(const char *path, mx_str *s, mx_err *err) {
    bool std = !strcmp(path, "-");
    const char *name = std ? "stdin" : path;
    FILE *f = std ? stdin : fopen(path, "rbe");
    if (!f) return mx_fail(err, errno == ENOENT ? MX_ENOTFOUND : MX_EIO, "%s: %s", path, strerror(errno));
    char part[8192];
    size_t n;
    errno = 0;
    while ((n = fread(part, 1, sizeof part, f)) > 0 && !s->oom) mx_str_add(s, part, n);
    int bad = ferror(f) ? errno : 0;
    if (!std) fclose(f);
    if (bad) return mx_fail(err, MX_EIO, "%s: %s", name, strerror(bad));
    if (s->oom)
        return mx_fail(err, MX_ELIMIT, "%s: longer than the %d MiB that a prompt may have", name,
                       MAX_PROMPT >> 20);
    return MX_OK;
}

mx_status cli_prompt(cli *c, char **text, size_t *len, mx_err *err) {
    const char *p = c->o.prompt, *f = c->o.file;
    mx_str s = {.limit = MAX_PROMPT};
    mx_status st = MX_OK;
    *text = NULL;
    *len = 0;
    if (c->line.n_positional > 1)
        return mx_fail(err, MX_EINVAL,
                       "%s: \"%.40s\" is one argument too many; put a text of several words in quotes",
                       c->name, c->line.positional[1]);
    if (c->line.n_positional == 1 && p)
        return mx_fail(err, MX_EINVAL, "%s: both -p and \"%.40s\" give a prompt; use one of them", c->name,
                       c->line.positional[0]);
    if (c->line.n_positional == 1) p = c->line.positional[0];
    if (p && f && !strcmp(p, "-") && !strcmp(f, "-"))
        return mx_fail(err, MX_EINVAL, "%s: stdin can be read once, by -p - or by -f -", c->name);
    if (!p && !f) {
        if (isatty(STDIN_FILENO)) return MX_OK;
        p = "-";
    }
    bool file = f || !strcmp(p, "-"); // its last newline belongs to the file, not to the prompt
    if (p && !strcmp(p, "-"))
        st = read_all(p, &s, err);
    else if (p)
        mx_str_puts(&s, p);
    if (st == MX_OK && f) {
        if (p) mx_str_puts(&s, "\n\n");
        st = read_all(f, &s, err);
    }
    if (st == MX_OK && file && c->line.cmd != C_TOKENIZE && s.len > 0 && s.p[s.len - 1] == '\n') s.len--;
    if (st == MX_OK) {
        *text = mx_arena_strndup(&c->a, s.p ? s.p : "", s.len);
        *len = s.len;
        if (!*text || s.oom) st = mx_fail(err, MX_ENOMEM, "no memory for the prompt");
    }
    mx_str_free(&s);
    return st;
}

/* ---- figures --------------------------------------------------------------------------------------------- */

uint64_t cli_peak_bytes(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

const char *cli_bytes(char buf[16], uint64_t bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1024, u++;
    snprintf(buf, 16, u == 0 || v >= 100 ? "%.0f %s" : v >= 10 ? "%.1f %s" : "%.2f %s", v, unit[u]);
    return buf;
}

const char *cli_stop_name(mx_stop_reason r, bool json) {
    switch (r) {
    case MX_STOP_EOS: return json ? "stop" : "end of the answer";
    case MX_STOP_WORD: return json ? "stop" : "stop text";
    case MX_STOP_LENGTH: return json ? "length" : "the limit of -n";
    case MX_STOP_CONTEXT: return json ? "length" : "the context is full";
    case MX_STOP_CANCEL: return json ? "cancelled" : "interrupted";
    case MX_STOP_NONE: break;
    }
    return json ? "error" : "an error";
}

bool cli_wants_stats(const cli *c) {
    if (c->o.quiet) return false;
    return c->o.stats || c->o.verbose || (out_tty() && out_err_tty());
}

static double rate(int n, double seconds) { return n > 0 && seconds > 0 ? n / seconds : 0; }

void cli_stats(const cli *c, const mx_generate_stats *st) {
    if (!cli_wants_stats(c)) return;
    char peak[16], cached[32] = "", seed[48] = "", device[48] = "", b[16];
    if (st->device_bytes)
        snprintf(device, sizeof device, "; device memory %s", cli_bytes(b, st->device_bytes));
    if (st->n_cached) snprintf(cached, sizeof cached, " (%d cached)", st->n_cached);
    if (c->o.verbose) snprintf(seed, sizeof seed, "; seed %llu", (unsigned long long)st->seed);
    // the first token comes out of the prompt's pass, so decoding made one less
    fprintf(stderr,
            "%sprompt %d tokens%s, %.1f tok/s; answer %d tokens, %.1f tok/s; %s%s; peak memory %s%s%s\n",
            out_err_color() ? "\033[2m" : "", st->n_prompt, cached,
            rate(st->n_prompt - st->n_cached, st->prefill_seconds), st->n_generated,
            rate(st->n_generated - 1, st->decode_seconds), cli_stop_name(st->stop, false), device,
            cli_bytes(peak, cli_peak_bytes()), seed, out_err_color() ? "\033[0m" : "");
}
