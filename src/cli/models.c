/* models.c - `mlxcel list`, `rm` and `pull`: the models on this machine. */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "format/store.h"
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- list ------------------------------------------------------------------------------------------------ */

static void list_json(const mx_store_entry *e, size_t n) {
    mx_str s = {0};
    mx_str_puts(&s, "[");
    for (size_t i = 0; i < n; i++) {
        mx_str_puts(&s, i ? ",\n {\"repo_id\": " : "{\"repo_id\": ");
        mx_json_put_string(&s, e[i].id, strlen(e[i].id));
        mx_str_printf(&s, ", \"size_bytes\": %llu, \"path\": ", (unsigned long long)e[i].bytes);
        mx_json_put_string(&s, e[i].path, strlen(e[i].path));
        mx_str_printf(&s, ", \"modified\": %lld, \"store\": \"%s\"}", (long long)e[i].modified,
                      e[i].own ? "mlxcel" : "huggingface");
    }
    mx_str_puts(&s, "]\n");
    out_str(&s);
}

static void list_text(const cli *c, const mx_store_entry *e, size_t n) {
    int wide = 0;
    for (size_t i = 0; i < n; i++) wide = (int)strlen(e[i].id) > wide ? (int)strlen(e[i].id) : wide;
    for (size_t i = 0; i < n; i++) {
        char size[16], date[32] = "";
        time_t when = (time_t)e[i].modified;
        struct tm tm;
        if (c->o.quiet) {
            out_printf("%s\n", e[i].id);
            continue;
        }
        if (localtime_r(&when, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
        out_printf("%-*s  %9s", wide, e[i].id, cli_bytes(size, e[i].bytes));
        if (c->o.verbose) out_printf("  %s  %-11s  %s", date, e[i].own ? "mlxcel" : "huggingface", e[i].path);
        out_puts("\n");
    }
    if (n == 0 && !c->o.quiet && out_err_tty())
        fprintf(stderr, "No models yet; mlxcel pull OWNER/NAME downloads one.\n");
}

int cmd_list(cli *c) {
    mx_err err;
    mx_store_entry *e;
    size_t n;
    if (c->line.n_positional)
        return cli_use(c, "takes no argument, but \"%.60s\" is given", c->line.positional[0]);
    if (mx_store_list(&e, &n, &c->a, &err) != MX_OK) return cli_fail(&err);
    if (c->o.json)
        list_json(e, n);
    else
        list_text(c, e, n);
    return EXIT_OK;
}

/* ---- rm -------------------------------------------------------------------------------------------------- */

static bool agreed(const char *id, uint64_t bytes) {
    char line[32] = "", size[16];
    fprintf(stderr, "Remove %s (%s)? [y/N] ", id, cli_bytes(size, bytes));
    return fgets(line, sizeof line, stdin) && (line[0] == 'y' || line[0] == 'Y');
}

int cmd_rm(cli *c) {
    mx_err err;
    mx_store_entry *e;
    size_t n;
    if (c->line.n_positional == 0) return cli_use(c, "no model is named; mlxcel list shows what is here");
    if (!c->o.yes && !isatty(STDIN_FILENO)) return cli_use(c, "stdin is no terminal to ask on; use --yes");
    if (mx_store_list(&e, &n, &c->a, &err) != MX_OK) return cli_fail(&err);
    int code = EXIT_OK;
    for (int k = 0; k < c->line.n_positional; k++) {
        const char *id = c->line.positional[k];
        const mx_store_entry *found = NULL;
        for (size_t i = 0; i < n; i++)
            if (!strcmp(e[i].id, id) && (!found || e[i].own)) found = &e[i];
        if (!c->o.yes && found && found->own && !agreed(id, found->bytes)) {
            code = EXIT_FAIL;
            continue;
        }
        if (mx_store_remove(id, &err) != MX_OK)
            code = cli_fail(&err);
        else if (!c->o.quiet)
            out_printf("removed %s\n", id);
    }
    return code;
}

/* ---- pull ------------------------------------------------------------------------------------------------ */

int cmd_pull(cli *c) {
    mx_err err;
    char *dir;
    if (c->line.n_positional != 1)
        return cli_use(c, c->line.n_positional ? "takes one OWNER/NAME"
                                               : "no model is named; it takes OWNER/NAME");
    mx_pull_options opt = {
        .revision = c->o.revision, .jobs = c->o.jobs, .quiet = c->o.quiet, .cancel = cli_interrupt_begin()};
    mx_status st = mx_store_pull(&dir, &c->a, c->line.positional[0], &opt, &err);
    if (cli_interrupt_end() && st != MX_OK)
        return cli_error(EXIT_INTERRUPTED, "the download was stopped; the same command continues it");
    if (st != MX_OK) return cli_fail(&err);
    out_printf("%s\n", dir);
    return EXIT_OK;
}
