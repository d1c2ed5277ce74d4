/* repl.h - the conversation at a terminal. */
#ifndef MX_CLI_REPL_H
#define MX_CLI_REPL_H
#include "cli/talk.h"

/* Read, answer, repeat until /exit or Ctrl-D; returns the exit code. */
int repl(talk *t);

/* The file of earlier inputs, in the arena: ${XDG_STATE_HOME:-~/.local/state}/mlxcel/history, or NULL without a home. */
char *repl_history_path(mx_arena *a);

#endif
