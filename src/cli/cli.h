/* cli.h - what the commands of the program share: the options, the way out, and the model that they open.
 *
 * A command is a row of `commands` in main.c and a function here. It gets a filled cli_options and returns an exit code
 * (docs/cli.md lists them). Answers go to stdout through out.h; everything else goes to stderr. */
#ifndef MX_CLI_CLI_H
#define MX_CLI_CLI_H
#include "cli/args.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include <stdio.h>

enum { // exit codes
    EXIT_OK = 0,
    EXIT_FAIL = 1,          // one sentence on stderr says why; verify: the model failed the gate
    EXIT_INCONCLUSIVE = 2,  // verify only
    EXIT_VERIFY_ERROR = 3,  // verify could not be run
    EXIT_USE = 64,          // a command, flag or value is wrong
    EXIT_INTERRUPTED = 130, // Ctrl-C
    EXIT_PIPE = 141,        // the reader of stdout has gone
};

enum { // commands, for arg_flag.cmds
    C_RUN = 1,
    C_GENERATE = 2,
    C_TOKENIZE = 4,
    C_INSPECT = 8,
    C_LIST = 16,
    C_RM = 32,
    C_PULL = 64,
    C_CONVERT = 128,
    C_VERIFY = 256,
    C_BENCH = 512,
    C_DEVICES = 1024,
};

/* Every flag's value. Text borrows argv or the environment. */
typedef struct {
    // model and device
    const char *model, *device, *isa, *cache_type, *color, *graphs;
    int ctx, threads, chunk, step_timeout;
    bool each_kernel, exact, no_memory_check, verbose, quiet, stats;
    // prompt
    const char *prompt, *file, *system, *template_file, *kwargs, *reasoning;
    bool no_template, show_reasoning;
    // answer
    int max_tokens, keep, logprobs;
    arg_strings stop, bias, dry_breakers;
    bool ignore_eos, context_shift, json, ports;
    // sampling
    uint64_t seed;
    float temp, top_p, min_p, typical, top_n_sigma, xtc_probability, xtc_threshold;
    float repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base;
    int top_k, repeat_last_n, dry_allowed, dry_last_n;
    // tokenize
    bool ids, pieces, no_special;
    // inspect, list, rm, pull
    bool memory, modules, yes;
    int batch, jobs;
    const char *revision;
    // convert
    const char *out, *q_mode, *dtype;
    int q_bits, q_group;
    bool quantize, dequantize;
    // verify
    const char *reference, *write, *against;
    float decided, max_logprob_diff;
    int min_decided, width, max_positions;
    // bench
    arg_ints n_prompt, n_gen, n_pg, depth, bench_threads, bench_chunk;
    int reps;
    const char *format;
    bool no_warmup, compare;
} cli_options;

extern const arg_flag cli_flags[];
extern const int cli_n_flag;

/* One call of the program. */
typedef struct {
    const char *name; // of the command
    arg_line line;
    cli_options o;
    mx_arena a; // lives as long as the call
} cli;

int cmd_run(cli *c);
int cmd_generate(cli *c);
int cmd_tokenize(cli *c);
int cmd_inspect(cli *c);
int cmd_list(cli *c);
int cmd_rm(cli *c);
int cmd_pull(cli *c);
int cmd_convert(cli *c);
int cmd_verify(cli *c);
int cmd_bench(cli *c);
int cmd_devices(cli *c);

/* ---- messages (main.c) ---------------------------------------------------------------------------------- */

/* "mlxcel: sentence" on stderr, control characters as '?'; returns code. */
int cli_error(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same for an mx_err, with the code that its status means. */
int cli_fail(const mx_err *err);
/* Wrong use: "mlxcel run: sentence", EXIT_USE. */
int cli_use(const cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

extern const char cli_version[], cli_commit[];

/* ---- the model (session.c) ------------------------------------------------------------------------------- */

/* The model named by --model or the first positional, which is then taken off. NULL after a message. */
const char *cli_model_ref(cli *c);
/* The folder it stands for; the arena owns it. */
mx_status cli_resolve(cli *c, const char *ref, char **dir, mx_err *err);
/* Open it with the command's flags and a progress line on a terminal. */
mx_status cli_open(cli *c, const char *dir, bool need_tokenizer, mx_engine **e, mx_err *err);
mx_engine_options cli_engine_options(const cli *c);

/* The generation options from the flags and, where a flag is not given, from the model's generation_config.json. The lists lie in
 * the arena. */
mx_status cli_generation(cli *c, mx_engine *e, mx_generate_options *g, mx_err *err);

/* The prompt of -p, -f, a positional or a pipe; NULL when there is none because stdin is a terminal. */
mx_status cli_prompt(cli *c, char **text, size_t *len, mx_err *err);

/* "prompt 23 tokens, 812 tok/s; ..." on stderr, dimmed on a terminal. */
void cli_stats(const cli *c, const mx_generate_stats *st);
bool cli_wants_stats(const cli *c);
uint64_t cli_peak_bytes(void);                       // VmHWM
const char *cli_bytes(char buf[16], uint64_t bytes); // "1.2 GiB"
const char *cli_stop_name(mx_stop_reason r, bool json);

/* ---- Ctrl-C (session.c) ----------------------------------------------------------------------------------- */

/* Between begin and end the first Ctrl-C sets the flag that begin returns, the third ends the program. Outside, Ctrl-C ends
 * the program at once, unless the prompt of the REPL waits (repl.c). */
const volatile int *cli_interrupt_begin(void);
bool cli_interrupt_end(void); // whether it was pressed

#endif
