/* args.h - command lines from a table: one row a flag, which drives parsing, environment and help alike.
 *
 * A row says where its value goes in the caller's options struct (off), so a parsed command line is a filled struct.
 * Values come from, in rising order: the row's default, the environment, the command line. Everything that can be wrong
 * with a command line ends in one sentence (MX_EINVAL), with the near flag where there is one. */
#ifndef MX_CLI_ARGS_H
#define MX_CLI_ARGS_H
#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    ARG_BOOL,   // bool; --x, --no-x, --x=on
    ARG_INT,    // int in [min, max]
    ARG_NUM,    // float in [min, max]
    ARG_SEED,   // uint64_t; -1 is UINT64_MAX
    ARG_STR,    // const char *
    ARG_CHOICE, // const char *, one of `choices`
    ARG_MANY,   // arg_strings: the flag may be repeated
    ARG_INTS,   // arg_ints: "1,2,3" of values in [min, max], and may be repeated
    ARG_PAIRS,  // arg_ints: "512,128", one pair each time; may be repeated
} arg_type;

typedef struct {
    const char **v;
    int n;
} arg_strings;
typedef struct {
    int *v, n;
} arg_ints;

typedef struct {
    const char
        *names; // "-n --max-tokens --n-predict": as typed; the first short and first long name are shown
    arg_type type;
    size_t off;          // of the value in the options struct
    double min, max;     // of numbers, both included
    const char *dflt;    // as the user would type it; NULL: leave the zeroed struct
    const char *value;   // what the help calls the value: "N", "FILE"
    const char *choices; // ARG_CHOICE: "auto|bf16|f16"
    const char *env;     // "MAX_TOKENS N_PREDICT": MLXCEL_<first>, LLAMA_ARG_<each>; NULL: none
    const char *help;    // a few words
    const char *group;   // heading in the help
    unsigned cmds;       // the commands that take it, one bit each
} arg_flag;

enum { ARG_MAX_FLAGS = 128 };

/* A parsed command line. positional borrows argv; lists live in the arena. */
typedef struct {
    const arg_flag *flags;
    int n_flag;
    unsigned cmd;              // one bit
    const char *where;         // for messages: "mlxcel run"
    bool given[ARG_MAX_FLAGS]; // by the environment or the command line
    bool typed[ARG_MAX_FLAGS]; // on the command line
    const char **positional;
    int n_positional;
    bool help; // --help or -h, which wins over whatever else is wrong behind it
    mx_arena *a;
} arg_line;

/* Fill opts (zeroed by the caller) from the defaults, the environment and argv[0..argc), which starts behind the command. */
mx_status arg_parse(arg_line *l, void *opts, int argc, char *const *argv, mx_err *err);

/* Set the flag `name` ("--temp") as if typed, for `/set temp 0.7`. MX_ENOTFOUND for an unknown one, with the near one. */
mx_status arg_set(arg_line *l, void *opts, const char *name, const char *value, mx_err *err);

/* The row of this command with that name, or NULL. */
const arg_flag *arg_find(const arg_line *l, const char *name);
bool arg_given(const arg_line *l, const char *name); // name must be one of the command's flags

/* The nearest of n names within a third of its length, or NULL: edit distance with transpositions. */
const char *arg_near(const char *word, const char *const *names, int n);

/* Append a flag's current value as the user would type it. */
void arg_show(mx_str *s, const arg_flag *f, const void *opts);

/* Append the flags of the command as help lines of at most `width` columns, by group. */
void arg_help(mx_str *s, const arg_flag *flags, int n_flag, unsigned cmd, int width);

/* The name to show: the first long name, else the first, into buf. */
const char *arg_name(const arg_flag *f, char *buf, size_t cap);

#endif
