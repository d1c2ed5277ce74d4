#include "base/json.h"
#include "cli/bench.h"
#include "cli/out.h"
#include <string.h>

const char *bench_test_name(const bench_row *r, char buf[64]) {
    char depth[24] = "";
    if (r->n_depth) snprintf(depth, sizeof depth, " @ d%d", r->n_depth);
    if (r->n_prompt && r->n_gen)
        snprintf(buf, 64, "pp%d+tg%d%s", r->n_prompt, r->n_gen, depth);
    else
        snprintf(buf, 64, "%s%d%s", r->n_gen ? "tg" : "pp", r->n_gen ? r->n_gen : r->n_prompt, depth);
    return buf;
}

/* ---- the columns, once for csv and JSON ------------------------------------------------------------------ */

typedef struct {
    mx_str *s;
    bool json, head; // head: only the names, for csv
    int n;
} record;

static void name(record *r, const char *key) {
    if (r->n++) mx_str_puts(r->s, r->json ? ", " : ",");
    if (r->json)
        mx_str_printf(r->s, "\"%s\": ", key);
    else if (r->head)
        mx_str_puts(r->s, key);
}

static void put_text(record *r, const char *key, const char *v) {
    name(r, key);
    if (r->json) mx_json_put_string(r->s, v, strlen(v));
    if (r->json || r->head) return;
    mx_str_putc(r->s, '"'); // RFC 4180: a quote is doubled
    for (; *v; v++) {
        if (*v == '"') mx_str_putc(r->s, '"');
        mx_str_putc(r->s, *v);
    }
    mx_str_putc(r->s, '"');
}

static void put_num(record *r, const char *key, double v) {
    name(r, key);
    if (!r->head) mx_json_put_num(r->s, v);
}

static void put_record(record *o, const bench_row *r) {
    char test[64], version[64];
    snprintf(version, sizeof version, "%s", cli_version);
    put_text(o, "build_commit", cli_commit);
    put_text(o, "version", version);
    put_text(o, "host", r->host);
    put_text(o, "cpu_info", r->cpu);
    put_text(o, "backend", r->backend);
    put_text(o, "isa", r->isa);
    put_num(o, "n_threads", r->threads);
    put_text(o, "model", r->model);
    put_text(o, "model_family", r->family);
    put_text(o, "quantization", r->quant);
    put_num(o, "model_size", (double)r->size);
    put_num(o, "model_n_params", (double)r->params);
    put_text(o, "cache_type", r->kv);
    put_text(o, "exact", r->exact ? "on" : "off");
    put_num(o, "n_ubatch", r->chunk);
    put_text(o, "test", o->head ? "" : bench_test_name(r, test));
    put_num(o, "n_prompt", r->n_prompt);
    put_num(o, "n_gen", r->n_gen);
    put_num(o, "n_depth", r->n_depth);
    put_num(o, "repetitions", r->reps);
    put_num(o, "avg_ts", r->mean);
    put_num(o, "stddev_ts", r->sd);
    put_num(o, "load_seconds", r->load_seconds);
    put_num(o, "peak_memory", (double)r->peak);
    put_num(o, "device_memory", (double)r->device_peak);
    put_text(o, "test_time", r->when);
}

static void put_json(mx_str *s, const bench_row *r) {
    record o = {.s = s, .json = true};
    mx_str_putc(s, '{');
    put_record(&o, r);
    mx_str_puts(s, ", \"samples_ts\": [");
    for (int i = 0; i < r->reps; i++) {
        mx_str_puts(s, i ? ", " : "");
        mx_json_put_num(s, (r->n_prompt + r->n_gen) / r->seconds[i]);
    }
    mx_str_puts(s, "]}");
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static void put_md(mx_str *s, const bench_row *r, int i) {
    char size[16], test[64], speed[64], params[24];
    if (i == 0)
        mx_str_puts(
            s,
            "| model                | quantization               |       size |   params | backend      | threads "
            "| test            |                t/s | host, CPU, version |\n"
            "| -------------------- | -------------------------- | ---------: | -------: | ------------ | ------: "
            "| --------------: | -----------------: | ------------------ |\n");
    snprintf(params, sizeof params, (double)r->params >= 1e9 ? "%.2f B" : "%.2f M",
             (double)r->params / ((double)r->params >= 1e9 ? 1e9 : 1e6));
    snprintf(speed, sizeof speed, "%.2f ± %.2f", r->mean, r->sd);
    mx_str_printf(s, "| %-20s | %-26s | %10s | %8s | %-4s %-7s | %7d | %15s | %19s | %s, %s, %s (%s) |\n",
                  r->model, r->quant, cli_bytes(size, r->size), params, r->backend, r->isa, r->threads,
                  bench_test_name(r, test), speed, r->host, r->cpu, cli_version, cli_commit);
}

void bench_print(bench_format f, const bench_row *r, int i) {
    mx_str s = {0};
    switch (f) {
    case BENCH_MD: put_md(&s, r, i); break;
    case BENCH_CSV:
        if (i == 0) {
            record head = {.s = &s, .head = true};
            put_record(&head, r);
            mx_str_putc(&s, '\n');
        }
        put_record(&(record){.s = &s}, r);
        mx_str_putc(&s, '\n');
        break;
    case BENCH_JSON:
        mx_str_puts(&s, i ? ",\n " : "[");
        put_json(&s, r);
        break;
    case BENCH_JSONL:
        put_json(&s, r);
        mx_str_putc(&s, '\n');
        break;
    }
    out_str(&s);
    out_flush();
}

void bench_print_end(bench_format f, int n_row) {
    if (f == BENCH_JSON) out_puts(n_row ? "]\n" : "[]\n");
}
