/* convert.c - `mlxcel convert`. */
#include "model/convert.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/out.h"
#include <string.h>

static void note(void *arg, const char *line) {
    const cli *c = arg;
    if (!c->o.quiet) fprintf(stderr, "%s\n", line);
}

int cmd_convert(cli *c) {
    static const struct {
        const char *name;
        mx_quant mode;
    } modes[] = {{"affine", MX_QUANT_AFFINE},
                 {"mxfp4", MX_QUANT_MXFP4},
                 {"mxfp8", MX_QUANT_MXFP8},
                 {"nvfp4", MX_QUANT_NVFP4}};
    mx_err err;
    if (c->line.n_positional == 0)
        return cli_use(c, "no source is named; it takes a model folder or a GGUF file");
    if (c->line.n_positional > 1)
        return cli_use(c, "one source at a time; \"%.60s\" is too many", c->line.positional[1]);
    if (!c->o.out) return cli_use(c, "-o DIR is missing: the folder to write");
    if (c->o.quantize && c->o.dequantize) return cli_use(c, "-q and -d exclude each other");
    if (!c->o.quantize && (arg_given(&c->line, "--q-bits") || arg_given(&c->line, "--q-group-size") ||
                           arg_given(&c->line, "--q-mode")))
        return cli_use(c, "--q-bits, --q-group-size and --q-mode need -q");
    char *source = mx_arena_strdup(&c->a, c->line.positional[0]);
    if (!source) return cli_error(EXIT_FAIL, "no memory");
    if (!mx_is_file(source) && !mx_is_dir(source) && cli_resolve(c, source, &source, &err) != MX_OK)
        return cli_fail(&err);
    mx_convert_options opt = {.source = source,
                              .out = c->o.out,
                              .quantize = c->o.quantize,
                              .bits = c->o.q_bits,
                              .group = c->o.q_group,
                              .dequantize = c->o.dequantize,
                              .threads = c->o.threads,
                              .quiet = c->o.quiet,
                              .note = note,
                              .arg = c,
                              .cancel = cli_interrupt_begin()};
    if (strcmp(c->o.dtype, "auto") != 0) opt.dtype = c->o.dtype;
    for (size_t i = 0; i < countof(modes); i++)
        if (!strcmp(c->o.q_mode, modes[i].name)) opt.mode = modes[i].mode;
    mx_status st = mx_convert(&opt, &err);
    if (cli_interrupt_end() && st != MX_OK)
        return cli_error(EXIT_INTERRUPTED, "the conversion was stopped; nothing was written");
    if (st != MX_OK) return cli_fail(&err);
    out_printf("%s\n", c->o.out);
    return EXIT_OK;
}
