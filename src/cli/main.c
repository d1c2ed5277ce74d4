/* main.c - the program mlxcel: find the command, parse its line, run it.
 *
 * Reading order of this folder: args.h (command lines from a table), flags.c (the table), cli.h (what commands share),
 * session.c (opening a model), out.h (stdout), then a file for each command: run.c and repl.c, generate.c, ... */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "version.h"
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char cli_version[] = MX_VERSION, cli_commit[] = MX_COMMIT;

typedef struct {
    const char *name, *alias; // alias: may be NULL
    unsigned bit;
    int (*run)(cli *c);
    const char *args;    // of the usage line
    const char *summary; // one line, for the list of commands
    const char *text;    // for its own page, lines of at most 100 columns
} command;

static const command commands[] = {
    {"run", "chat", C_RUN, cmd_run, "MODEL [PROMPT]", "chat with a model, or answer one prompt",
     "Without a prompt on a terminal it is a conversation: /help lists what to type there.\n"
     "A flag of the sampling group that is not given has the value of the model's generation_config.json.\n"},
    {"generate", "gen", C_GENERATE, cmd_generate, "MODEL [PROMPT]",
     "continue a text, without a chat template",
     "A flag of the sampling group that is not given has the value of the model's generation_config.json.\n"},
    {"tokenize", NULL, C_TOKENIZE, cmd_tokenize, "MODEL [TEXT]", "text to token ids, and back with --ids",
     "Without TEXT, -p or -f the text comes from stdin. Ids are separated by spaces, commas or newlines.\n"},
    {"inspect", NULL, C_INSPECT, cmd_inspect, "MODEL", "describe a model and the memory it needs",
     "Reads the files only; no weights are loaded.\n"},
    {"list", "ls", C_LIST, cmd_list, "", "list the models on this machine",
     "Looks in mlxcel's store and in the Hugging Face cache.\n"},
    {"pull", "download", C_PULL, cmd_pull, "OWNER/NAME", "download a model into the store",
     "From HF_ENDPOINT (https://huggingface.co), with HF_TOKEN if it is set. Continues what was cut off.\n"},
    {"rm", "remove", C_RM, cmd_rm, "OWNER/NAME...", "remove models from the store",
     "Copies in the Hugging Face cache are not touched.\n"},
    {"convert", NULL, C_CONVERT, cmd_convert, "SOURCE -o DIR",
     "make an MLX model of a checkpoint or GGUF file",
     "SOURCE is a model (folder or OWNER/NAME) or a GGUF file. DIR appears when it is complete.\n"},
    {"verify", NULL, C_VERIFY, cmd_verify, "MODEL --reference FILE",
     "check a model's predictions against a reference",
     "Exit code 0: passed, 1: failed, 2: inconclusive, 3: could not be run.\n"
     "  mlxcel verify MODEL --reference FILE                 the gate\n"
     "  mlxcel verify MODEL --reference DOCS --write FILE    write traces; DOCS is a reference or a text\n"
     "  mlxcel verify --reference A --against B              compare the traces of two hosts\n"},
    {"bench", NULL, C_BENCH, cmd_bench, "MODEL", "measure speed, in the shape of llama-bench",
     "ppN is a prompt of N tokens, tgN an answer of N, ppP+tgN both; @ dD: behind D tokens. Random tokens;\n"
     "tokenization and sampling are not timed, but for a device's choice of the likeliest token.\n"},
    {"devices", NULL, C_DEVICES, cmd_devices, "", "list the devices that can run models", ""},
};

/* ---- messages ------------------------------------------------------------------------------------------- */

static void say(const char *sentence) {
    char line[1024];
    int n = snprintf(line, sizeof line, "mlxcel: %s", sentence);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    for (int i = 0; i < n; i++) // names from files and flags are quoted: they must not drive the terminal
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    fflush(stdout); // keep the order when both go to one place
    fprintf(stderr, "%s\n", line);
}

int cli_error(int code, const char *fmt, ...) {
    char msg[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    say(msg);
    return code;
}

int cli_fail(const mx_err *err) {
    say(err->msg);
    return err->code == MX_ECANCELLED ? EXIT_INTERRUPTED : EXIT_FAIL;
}

int cli_use(const cli *c, const char *fmt, ...) {
    char msg[900];
    int n = snprintf(msg, sizeof msg, "%s: ", c->name);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg + n, sizeof msg - (size_t)n, fmt, ap);
    va_end(ap);
    say(msg);
    return EXIT_USE;
}

/* ---- help ----------------------------------------------------------------------------------------------- */

static const char *tty_bold(void) { return out_color() ? "\033[1m" : ""; }
static const char *tty_plain(void) { return out_color() ? "\033[0m" : ""; }

static int help_all(void) {
    out_printf("%smlxcel%s %s: run MLX and Hugging Face language models on this machine\n\n", tty_bold(),
               tty_plain(), cli_version);
    out_puts("Usage: mlxcel COMMAND [ARGUMENTS] [FLAGS]\n\nCommands:\n");
    for (size_t i = 0; i < countof(commands); i++) {
        const command *m = &commands[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", m->name, m->alias ? ", " : "", m->alias ? m->alias : "");
        out_printf("  %-16s  %s\n", name, m->summary);
    }
    out_puts("\nMODEL is a folder, OWNER/NAME from the store or the Hugging Face cache, or a bare NAME.\n"
             "mlxcel COMMAND --help explains a command, mlxcel help env the environment.\n\n"
             "Examples:\n"
             "  mlxcel run ./model                              a conversation\n"
             "  mlxcel run ./model -p 'What is 17 + 25?'        one answer\n"
             "  git diff | mlxcel run ./model -p 'Review this:' -f -\n"
             "  mlxcel pull OWNER/NAME                          download a model\n"
             "  mlxcel bench ./model -p 512 -n 128              measure its speed\n");
    return out_finish(EXIT_OK);
}

static int help_command(const command *m) {
    mx_str s = {0};
    mx_str_printf(&s, "Usage: mlxcel %s %s%s[FLAGS]", m->name, m->args, *m->args ? " " : "");
    if (m->alias) mx_str_printf(&s, "   (also: mlxcel %s)", m->alias);
    mx_str_printf(&s, "\n%c%s.\n%s", m->summary[0] - 'a' + 'A', m->summary + 1, m->text);
    arg_help(&s, cli_flags, cli_n_flag, m->bit, 100);
    out_str(&s);
    return out_finish(EXIT_OK);
}

static int help_env(void) {
    mx_str s = {0};
    mx_str_puts(
        &s,
        "Environment of mlxcel (a flag on the command line is stronger; an empty value counts as unset):\n"
        "  MLXCEL_CACHE_DIR                           the store (~/.cache/mlxcel)\n"
        "  HF_HUB_CACHE, HF_HOME                      the Hugging Face cache\n"
        "  HF_ENDPOINT, HF_TOKEN                      for pull\n"
        "  XDG_STATE_HOME                             history of conversations (~/.local/state)\n"
        "  NO_COLOR                                   no colours\n"
        "Flags; LLAMA_ARG_ with the last name is read where MLXCEL_ is not set:\n");
    for (int i = 0; i < cli_n_flag; i++) {
        const arg_flag *f = &cli_flags[i];
        bool seen = !f->env;
        for (int j = 0; j < i && !seen; j++) seen = cli_flags[j].env && !strcmp(cli_flags[j].env, f->env);
        if (seen) continue;
        const char *last = strrchr(f->env, ' ');
        char own[48], other[48], name[48];
        snprintf(own, sizeof own, "MLXCEL_%.*s", (int)strcspn(f->env, " "), f->env);
        snprintf(other, sizeof other, "LLAMA_ARG_%s", last ? last + 1 : f->env);
        mx_str_printf(&s, "  %-28s %-32s %s\n", own, other, arg_name(f, name, sizeof name));
    }
    out_str(&s);
    return out_finish(EXIT_OK);
}

/* ---- dispatch ------------------------------------------------------------------------------------------- */

static const command *find_command(const char *name) {
    for (size_t i = 0; i < countof(commands); i++)
        if (!strcmp(name, commands[i].name) || (commands[i].alias && !strcmp(name, commands[i].alias)))
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[2 * countof(commands) + 1];
    int n = 0;
    for (size_t i = 0; i < countof(commands); i++) {
        names[n++] = commands[i].name;
        if (commands[i].alias) names[n++] = commands[i].alias;
    }
    names[n++] = "help";
    const char *near = arg_near(name, names, n);
    if (near) return cli_error(EXIT_USE, "unknown command %.60s; did you mean %s?", name, near);
    return cli_error(EXIT_USE, "unknown command %.60s; mlxcel --help lists the commands", name);
}

static int run_command(const command *m, int argc, char **argv) {
    static cli c; // large, and one a process
    mx_err err;
    char where[64];
    snprintf(where, sizeof where, "%s", m->name);
    c.name = m->name;
    c.line = (arg_line){.flags = cli_flags, .n_flag = cli_n_flag, .cmd = m->bit, .where = where, .a = &c.a};
    c.o.color = "auto";
    c.o.logprobs = -1;
    int code;
    if (arg_parse(&c.line, &c.o, argc, argv, &err) != MX_OK) {
        say(err.msg);
        code = m->bit == C_VERIFY || err.code != MX_ENOMEM ? EXIT_USE : EXIT_FAIL;
    } else if (c.line.help) {
        code = help_command(m);
    } else {
        out_set_color(c.o.color);
        if (c.o.verbose && m->bit != C_LIST) mx_log_set_level(MX_LOG_INFO);
        if (c.o.quiet && m->bit != C_LIST) mx_log_set_level(MX_LOG_ERROR);
        code = m->run(&c);
        code = out_finish(code);
    }
    mx_arena_free(&c.a);
    return code;
}

/* A program started without stdin, stdout or stderr must not get a model file or its own output under their numbers. On
 * /dev/null opened for reading a write fails, as it should when there is no stdout. */
static void hold_standard_files(void) {
    int fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
    hold_standard_files();
    signal(SIGPIPE, SIG_DFL); // a parent may have ignored it; a reader that leaves ends us without a word
    setlocale(LC_CTYPE, "");  // for the line editor; numbers keep the C locale
    if (argc < 2) {
        help_all();
        return EXIT_USE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "version")) {
        out_printf("mlxcel %s (%s)\n", cli_version, cli_commit);
        return out_finish(EXIT_OK);
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        if (argc < 3) return help_all();
        if (!strcmp(argv[2], "env")) return help_env();
        const command *m = find_command(argv[2]);
        return m ? help_command(m) : unknown_command(argv[2]);
    }
    const command *m = find_command(name);
    if (m) return run_command(m, argc - 2, argv + 2);
    if (name[0] == '-')
        return cli_error(EXIT_USE,
                         "the command comes first (mlxcel run MODEL ...), before %.60s; mlxcel --help lists "
                         "the commands",
                         name);
    return unknown_command(name);
}
