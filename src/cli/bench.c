/* bench.c - `mlxcel bench`: tokens a second, in the shape of llama-bench.
 *
 * A test feeds random tokens and takes the logits of the last one; nothing is tokenized or sampled, nothing is found in a
 * cache. Each test runs once untimed (--no-warmup leaves that out), then -r times. */
#include "cli/bench.h"
#include "base/threads.h"
#include "cli/out.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int n_prompt, n_gen, n_depth;
} test;

typedef struct {
    cli *c;
    test *tests;
    int n_test;
    bench_format format;
    int n_row; // printed
    const char *host, *cpu, *model;
    int n_vocab;
    int32_t *ids;  // [longest prompt or depth], random
    float *logits; // [n_vocab]
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what is measured, and where ------------------------------------------------------------------------- */

static mx_status plan(bench *b, mx_err *err) {
    const cli_options *o = &b->c->o;
    int n = o->depth.n * (o->n_prompt.n + o->n_gen.n + o->n_pg.n / 2);
    b->tests = mx_arena_array(&b->c->a, (size_t)n + 1, sizeof *b->tests);
    if (!b->tests) return mx_fail(err, MX_ENOMEM, "no memory for the list of tests");
    for (int d = 0; d < o->depth.n; d++) {
        int depth = o->depth.v[d];
        for (int i = 0; i < o->n_prompt.n; i++)
            if (o->n_prompt.v[i]) b->tests[b->n_test++] = (test){o->n_prompt.v[i], 0, depth};
        for (int i = 0; i < o->n_gen.n; i++)
            if (o->n_gen.v[i]) b->tests[b->n_test++] = (test){0, o->n_gen.v[i], depth};
        for (int i = 0; i + 1 < o->n_pg.n; i += 2)
            b->tests[b->n_test++] = (test){o->n_pg.v[i], o->n_pg.v[i + 1], depth};
    }
    if (b->n_test == 0) return mx_fail(err, MX_EINVAL, "bench: -p 0 -n 0 leaves nothing to measure");
    return MX_OK;
}

static int longest(const bench *b) {
    int n = 1;
    for (int i = 0; i < b->n_test; i++) {
        int need = b->tests[i].n_prompt + b->tests[i].n_gen + b->tests[i].n_depth;
        if (need > n) n = need;
    }
    return n;
}

static const char *cpu_name(mx_arena *a) {
    char line[256], *name = NULL;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !name && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        name = mx_arena_strdup(a, colon);
    }
    if (f) fclose(f);
    return name ? name : "unknown CPU";
}

static const char *host_name(mx_arena *a) {
    struct utsname u;
    const char *s = uname(&u) == 0 ? mx_arena_strdup(a, u.nodename) : NULL;
    return s ? s : "unknown";
}

/* The last part of a path or of OWNER/NAME: the same model has the same name on every host. */
static const char *model_name(mx_arena *a, const char *ref, const char *dir) {
    char *real = realpath(ref, NULL); // "." and "models/demo/" have a name too
    const char *p = real ? real : ref;
    const char *slash = strrchr(p, '/');
    const char *s = mx_arena_strdup(a, slash && slash[1] ? slash + 1 : p);
    free(real);
    return s ? s : dir;
}

/* ---- one test -------------------------------------------------------------------------------------------- */

/* Feed n tokens from position `from` in chunks. As in greedy generation, the likeliest next token comes back; on a device with
 * memory of its own the logits stay there. */
static mx_status feed(bench *b, mx_engine *e, mx_seq *s, int from, int n, bool one_by_one, mx_err *err) {
    int chunk = one_by_one ? 1 : mx_engine_chunk(e);
    for (int at = 0; at < n; at += chunk) {
        int take = n - at < chunk ? n - at : chunk;
        mx_step_item item = {.seq = s, .ids = b->ids + from + at, .n = take};
        int32_t id;
        float logit;
        mx_best best = {.k = 1, .ids = &id, .logits = &logit};
        if (one_by_one || at + take == n) item.n_rows = 1, item.logits = b->logits;
        if (item.n_rows && !mx_engine_dev(e)->be->host_memory) item.best = &best;
        MX_TRY(mx_engine_step(e, &item, 1, err));
    }
    return MX_OK;
}

/* The cache filled up to the test's depth: cut back where the model can, else made anew. */
static mx_status to_depth(bench *b, mx_engine *e, mx_seq **s, int depth, mx_err *err) {
    mx_err why;
    if (*s && mx_seq_len(*s) >= depth && depth > 0 && mx_seq_truncate(*s, depth, &why) == MX_OK) return MX_OK;
    if (*s) mx_seq_free(*s);
    *s = NULL;
    MX_TRY(mx_seq_new(s, e, err));
    return depth ? feed(b, e, *s, 0, depth, false, err) : MX_OK;
}

static mx_status measure(bench *b, mx_engine *e, const test *t, double *seconds, mx_err *err) {
    mx_seq *s = NULL;
    mx_status st = MX_OK;
    int reps = b->c->o.reps, from = t->n_depth;
    for (int i = b->c->o.no_warmup ? 0 : -1; i < reps && st == MX_OK; i++) {
        st = to_depth(b, e, &s, t->n_depth, err);
        if (st != MX_OK) break;
        double start = now();
        // the warm-up of a long answer is a short one: it is there for page faults and clocks
        int n_gen = i < 0 && t->n_gen > 8 ? 8 : t->n_gen;
        if (t->n_prompt) st = feed(b, e, s, from, t->n_prompt, false, err);
        if (st == MX_OK && n_gen) st = feed(b, e, s, from + t->n_prompt, n_gen, true, err);
        if (i >= 0) seconds[i] = now() - start;
    }
    if (s) mx_seq_free(s);
    return st;
}

static void finish_row(bench_row *r, const double *seconds, int reps) {
    int n = r->n_prompt + r->n_gen;
    double sum = 0, sq = 0;
    for (int i = 0; i < reps; i++) sum += n / seconds[i];
    r->mean = sum / reps;
    for (int i = 0; i < reps; i++) sq += (n / seconds[i] - r->mean) * (n / seconds[i] - r->mean);
    r->sd = reps > 1 ? sqrt(sq / (reps - 1)) : 0;
    r->seconds = seconds;
    r->reps = reps;
    r->peak = cli_peak_bytes();
    time_t t = time(NULL);
    struct tm tm;
    if (gmtime_r(&t, &tm)) strftime(r->when, sizeof r->when, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static mx_status run_tests(bench *b, mx_engine *e, int threads, int chunk, double load, mx_err *err) {
    const mx_model_info *info = mx_model_get_info(mx_engine_model(e));
    const mx_dev *dev = mx_engine_dev(e);
    int n_id = longest(b), reps = b->c->o.reps;
    double *seconds = mx_arena_array(&b->c->a, (size_t)reps, sizeof *seconds);
    b->ids = realloc(b->ids, (size_t)n_id * sizeof *b->ids);
    b->logits = realloc(b->logits, (size_t)info->n_vocab * sizeof *b->logits);
    if (!b->ids || !b->logits || !seconds)
        return mx_fail(err, MX_ENOMEM, "no memory for the tokens of the tests");
    uint64_t x = 42;
    for (int i = 0; i < n_id; i++) { // the same on every host: Knuth's MMIX generator
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (int32_t)((x >> 33) % (uint64_t)info->n_vocab);
    }
    for (int i = 0; i < b->n_test; i++) {
        const test *t = &b->tests[i];
        bench_row r = {.host = b->host,
                       .cpu = b->cpu,
                       .backend = dev->be->name,
                       .isa = dev->isa,
                       .model = b->model,
                       .family = info->family,
                       .quant = info->quant,
                       .kv = b->c->o.cache_type,
                       .size = info->weight_bytes,
                       .params = info->n_param,
                       .threads = threads,
                       .chunk = chunk,
                       .exact = b->c->o.exact,
                       .n_prompt = t->n_prompt,
                       .n_gen = t->n_gen,
                       .n_depth = t->n_depth,
                       .load_seconds = load};
        MX_TRY(measure(b, e, t, seconds, err));
        finish_row(&r, seconds, reps);
        r.device_peak = dev->held_peak;
        bench_print(b->format, &r, b->n_row++);
        if (!out_flush()) break;
    }
    return MX_OK;
}

/* ---- the command ----------------------------------------------------------------------------------------- */

static mx_status run_all(bench *b, const char *dir, mx_err *err) {
    cli_options *o = &b->c->o;
    for (int i = 0; i < o->bench_threads.n; i++)
        for (int k = 0; k < o->bench_chunk.n && out_flush(); k++) {
            mx_engine *e = NULL;
            o->threads = o->bench_threads.v[i];
            o->chunk = o->bench_chunk.v[k];
            o->ctx = longest(b);
            double start = now();
            MX_TRY(cli_open(b->c, dir, false, &e, err));
            double load = now() - start;
            int threads = o->threads ? o->threads : mx_cpu_count();
            mx_status st = run_tests(b, e, threads, o->chunk, load, err);
            mx_engine_free(e);
            if (st != MX_OK) return st;
        }
    bench_print_end(b->format, b->n_row);
    return MX_OK;
}

int cmd_bench(cli *c) {
    static const char *const formats[] = {"md", "csv", "json", "jsonl"};
    mx_err err;
    bench b = {.c = c};
    char *dir;
    if (c->o.compare) {
        if (c->line.n_positional != 2)
            return cli_use(c, "--compare takes two csv files, as -o csv writes them");
        return bench_compare(c, c->line.positional[0], c->line.positional[1]);
    }
    const char *ref = cli_model_ref(c);
    if (!ref) return EXIT_USE;
    if (c->line.n_positional)
        return cli_use(c, "one model at a time; \"%.60s\" is too many", c->line.positional[0]);
    for (size_t i = 0; i < countof(formats); i++)
        if (!strcmp(c->o.format, formats[i])) b.format = (bench_format)i;
    mx_status st = plan(&b, &err);
    if (st != MX_OK) {
        cli_fail(&err);
        return st == MX_EINVAL ? EXIT_USE : EXIT_FAIL;
    }
    st = cli_resolve(c, ref, &dir, &err);
    if (st == MX_OK) {
        b.host = host_name(&c->a);
        b.cpu = cpu_name(&c->a);
        b.model = model_name(&c->a, ref, dir);
        st = run_all(&b, dir, &err);
    }
    free(b.ids);
    free(b.logits);
    return st == MX_OK ? EXIT_OK : cli_fail(&err);
}
