/* bench.h - rows of measured speed: made by bench.c, printed by bench_print.c, compared by bench_compare.c. */
#ifndef MX_CLI_BENCH_H
#define MX_CLI_BENCH_H
#include "cli/cli.h"

/* One test on one configuration. Text lies in the command's arena or is constant. */
typedef struct {
    const char *host, *cpu, *backend, *isa, *model, *family, *quant, *kv;
    uint64_t size, params; // bytes and parameters of the weights
    int threads, chunk;
    bool exact;
    int n_prompt, n_gen, n_depth;
    const double *seconds; // [reps]
    int reps;
    double mean, sd; // tokens a second
    double load_seconds;
    uint64_t peak;        // VmHWM in bytes, of the process up to now
    uint64_t device_peak; // most bytes taken of a GPU's memory
    char when[24];        // UTC, ISO 8601
} bench_row;

/* "pp512", "tg128 @ d4096", "pp512+tg128". */
const char *bench_test_name(const bench_row *r, char buf[64]);

typedef enum { BENCH_MD, BENCH_CSV, BENCH_JSON, BENCH_JSONL } bench_format;

/* Rows are printed as they come, so that a long run shows what it has. i: 0 for the first. */
void bench_print(bench_format f, const bench_row *r, int i);
void bench_print_end(bench_format f, int n_row);

int bench_compare(cli *c, const char *a, const char *b);

#endif
