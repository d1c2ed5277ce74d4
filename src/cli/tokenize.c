/* tokenize.c - `mlxcel tokenize`: text to ids, and back. */
#include "base/json.h"
#include "cli/cli.h"
#include "cli/out.h"
#include <stdlib.h>
#include <string.h>

/* Ids with anything but digits between them: "1 2", "[1, 2]", lines. */
static mx_status read_ids(const char *p, mx_ids *ids, mx_err *err) {
    for (;;) {
        p += strspn(p, " \t\r\n,[]");
        if (!*p) return MX_OK;
        char *end;
        long long id = *p >= '0' && *p <= '9' ? strtoll(p, &end, 10) : -1;
        if (id < 0 || id > INT32_MAX || !strchr(" \t\r\n,[]", *end))
            return mx_fail(err, MX_EINVAL, "\"%.*s\" is no token id", (int)strcspn(p, " \t\r\n,[]"), p);
        MX_TRY(mx_ids_add(ids, (int32_t)id, err));
        p = end;
    }
}

static void decode(const cli *c, const mx_str *text) {
    if (!c->o.json) {
        out_model(text->p ? text->p : "", text->len);
        if (out_tty()) out_puts("\n");
        return;
    }
    mx_str s = {0};
    mx_str_puts(&s, "{\"text\": ");
    mx_json_put_string(&s, text->p ? text->p : "", text->len);
    mx_str_puts(&s, "}\n");
    out_str(&s);
}

static void show_ids(const cli *c, const mx_tokenizer *t, const mx_ids *ids) {
    mx_str s = {0};
    if (c->o.json) mx_str_puts(&s, "{\"ids\": [");
    for (size_t i = 0; i < ids->n && (c->o.json || !c->o.pieces); i++)
        mx_str_printf(&s, "%s%d", i == 0 ? "" : c->o.json ? ", " : " ", ids->id[i]);
    if (c->o.json && c->o.pieces) mx_str_puts(&s, "], \"pieces\": [");
    for (size_t i = 0; i < ids->n && c->o.pieces; i++) {
        const char *piece = mx_tokenizer_piece(t, ids->id[i]);
        if (!piece) piece = "";
        if (c->o.json) {
            mx_str_puts(&s, i ? ", " : "");
            mx_json_put_string(&s, piece, strlen(piece));
        } else {
            mx_str line = {0};
            mx_str_puts(&line, piece);
            if (line.p && out_tty()) line.len = out_filter(line.p, line.len);
            mx_str_printf(&s, "%7d  ", ids->id[i]);
            mx_str_add(&s, line.p, line.len);
            mx_str_putc(&s, '\n');
            mx_str_free(&line);
        }
    }
    if (c->o.json) mx_str_printf(&s, "], \"count\": %zu}", ids->n);
    if (c->o.json || !c->o.pieces) mx_str_putc(&s, '\n');
    out_str(&s);
}

int cmd_tokenize(cli *c) {
    mx_err err;
    mx_tokenizer *t = NULL;
    mx_ids ids = {0};
    mx_str text = {0};
    char *dir, *in;
    size_t len;
    const char *ref = cli_model_ref(c);
    if (!ref) return EXIT_USE;
    mx_status st = cli_prompt(c, &in, &len, &err);
    if (st != MX_OK) {
        cli_fail(&err);
        return st == MX_EINVAL ? EXIT_USE : EXIT_FAIL;
    }
    if (!in) return cli_use(c, "no text is given; put it behind the model, or use -f FILE or a pipe");
    st = cli_resolve(c, ref, &dir, &err);
    if (st == MX_OK) st = mx_tokenizer_open(&t, dir, &err);
    if (st == MX_OK && c->o.ids) {
        st = read_ids(in, &ids, &err);
        if (st == MX_OK) st = mx_tokenizer_decode(t, ids.id, ids.n, c->o.no_special, &text, &err);
        if (st == MX_OK && text.oom) st = mx_fail(&err, MX_ENOMEM, "no memory for the text");
        if (st == MX_OK) decode(c, &text);
    } else if (st == MX_OK) {
        unsigned flags = MX_TOK_PARSE_SPECIAL | (c->o.no_special ? 0 : MX_TOK_ADD_SPECIAL);
        st = mx_tokenizer_encode(t, in, len, flags, &ids, &err);
        if (st == MX_OK) show_ids(c, t, &ids);
    }
    mx_str_free(&text);
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
    return st == MX_OK ? EXIT_OK : cli_fail(&err);
}
