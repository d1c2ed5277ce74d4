/* talk.h - a conversation with an open model: turns kept as text, each answer streamed to stdout.
 *
 * The whole conversation is rendered anew for each answer; mx_generate finds the part that the cache holds already. */
#ifndef MX_CLI_TALK_H
#define MX_CLI_TALK_H
#include "cli/cli.h"
#include "cli/think.h"

typedef struct {
    char *role, *content; // heap
    size_t len;
} talk_turn;

typedef struct {
    cli *c;
    mx_engine *e;
    mx_seq *seq;
    mx_generate_options g;
    talk_turn *turn;
    int n_turn, cap_turn;
    // of the answer that is being made
    mx_str content;
    think_filter think;
    bool dim, waiting; // on the terminal: dimmed text is on; "thinking" is shown
    bool answered;     // something other than reasoning was printed
    char last;         // byte printed last
} talk;

/* Open the model of the command line. The caller calls talk_close also after a failure (a zeroed struct is fine). */
mx_status talk_open(talk *t, cli *c, mx_err *err);
void talk_close(talk *t);

mx_status talk_add(talk *t, const char *role, const char *content, size_t len, mx_err *err);
void talk_drop(talk *t, int n); // forget the turns from n on
/* Add, replace or (len = 0) remove the system prompt. */
mx_status talk_system(talk *t, const char *content, size_t len, mx_err *err);

/* Answer the turns so far and add the answer as a turn, also one that was interrupted. A failure adds nothing. */
mx_status talk_answer(talk *t, mx_generate_stats *st, mx_err *err);

/* The turns as a JSON array of {role, content}, and back (which replaces them). */
void talk_put_json(const talk *t, mx_str *s, int indent);
mx_status talk_load_json(talk *t, const char *text, size_t len, const char *name, mx_err *err);

#endif
