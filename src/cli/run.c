/* run.c - `mlxcel run`: one answer, or the conversation of repl.c. */
#include "cli/repl.h"
#include "cli/out.h"
#include <string.h>

static int one_answer(talk *t, const char *text, size_t len) {
    mx_err err;
    mx_generate_stats st;
    if (talk_add(t, "user", text, len, &err) != MX_OK) return cli_fail(&err);
    if (talk_answer(t, &st, &err) != MX_OK) return cli_fail(&err);
    if (!t->answered && st.n_generated > 0 && !t->c->o.no_template && !t->c->o.show_reasoning &&
        !t->c->o.quiet)
        cli_error(
            0,
            "the answer ended while the model was reasoning; --show-reasoning prints that, -n allows more");
    cli_stats(t->c, &st);
    return st.stop == MX_STOP_CANCEL ? EXIT_INTERRUPTED : EXIT_OK;
}

int cmd_run(cli *c) {
    mx_err err;
    talk t = {0};
    char *text;
    size_t len;
    c->o.model = cli_model_ref(c);
    if (!c->o.model) return EXIT_USE;
    if (c->o.no_template && (c->o.system || c->o.template_file || c->o.kwargs))
        return cli_use(c, "--no-chat-template leaves no place for --system, --chat-template-file and "
                          "--chat-template-kwargs");
    mx_status st = cli_prompt(c, &text, &len, &err);
    if (st != MX_OK) {
        cli_fail(&err);
        return st == MX_EINVAL ? EXIT_USE : EXIT_FAIL;
    }
    if (text && len == 0) return cli_use(c, "the prompt is empty");
    int code = EXIT_OK;
    if (talk_open(&t, c, &err) != MX_OK)
        code = cli_fail(&err);
    else
        code = text ? one_answer(&t, text, len) : repl(&t);
    talk_close(&t);
    return code;
}
