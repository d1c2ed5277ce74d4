/* verify.c - `mlxcel verify`: the correctness gate, its traces, and two hosts against each other. */
#include "engine/verify.h"
#include "backend/ports.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/out.h"
#include <string.h>

static const char *verdict_name(const mx_verify_result *r) {
    return r->verdict == MX_VERIFY_PASS ? "pass" : r->verdict == MX_VERIFY_FAIL ? "fail" : "inconclusive";
}

static void text(const mx_verify_result *r, const char *ports) {
    out_printf("documents           %d\n"
               "positions           %d, of which decided: %d\n"
               "disagreements       %d, at decided positions: %d\n"
               "largest gap         %.4f (lead of the reference at the worst disagreement)\n"
               "log-probabilities   mean difference %.6f, worst %.6f\n"
               "KL divergence       mean %.6f\n"
               "%s%s%s%s%s%s\n",
               r->documents, r->positions, r->decided, r->differ, r->differ_decided, r->largest_gap,
               r->mean_logprob_diff, r->worst_logprob_diff, r->mean_kl, *ports ? "ports               " : "",
               ports, *ports ? "\n" : "", verdict_name(r), *r->reason ? ": " : "", r->reason);
}

static void json(const mx_verify_result *r, const char *device, const char *ports) {
    const struct {
        const char *key;
        double v;
    } nums[] = {{"largest_gap", r->largest_gap},
                {"mean_logprob_diff", r->mean_logprob_diff},
                {"worst_logprob_diff", r->worst_logprob_diff},
                {"mean_kl", r->mean_kl}};
    mx_str s = {0};
    mx_str_printf(&s, "{\"verdict\": \"%s\", \"reason\": ", verdict_name(r));
    mx_json_put_string(&s, r->reason, strlen(r->reason));
    mx_str_puts(&s, ", \"device\": ");
    mx_json_put_string(&s, device, strlen(device));
    mx_str_puts(&s, ", \"ports\": ");
    mx_json_put_string(&s, ports, strlen(ports));
    mx_str_printf(
        &s, ", \"documents\": %d, \"positions\": %d, \"decided\": %d, \"differ\": %d, \"differ_decided\": %d",
        r->documents, r->positions, r->decided, r->differ, r->differ_decided);
    for (size_t i = 0; i < countof(nums); i++) {
        mx_str_printf(&s, ", \"%s\": ", nums[i].key);
        mx_json_put_num(&s, nums[i].v);
    }
    mx_str_puts(&s, "}\n");
    out_str(&s);
}

static int report(const cli *c, const mx_verify_result *r,
                  const mx_dev *dev) { // dev: NULL where no model ran
    mx_str ports = {0};
    if (dev) mx_port_summary(dev, &ports);
    if (c->o.json)
        json(r, dev ? dev->name : "", ports.p ? ports.p : "");
    else
        text(r, ports.p ? ports.p : "");
    mx_str_free(&ports);
    if (!out_flush()) return EXIT_VERIFY_ERROR; // a verdict nobody can read is none
    return r->verdict == MX_VERIFY_PASS   ? EXIT_OK
           : r->verdict == MX_VERIFY_FAIL ? EXIT_FAIL
                                          : EXIT_INCONCLUSIVE;
}

int cmd_verify(cli *c) {
    mx_err err;
    mx_engine *e = NULL;
    mx_verify_result r = {0};
    mx_verify_options opt = {.reference = c->o.reference,
                             .decided = (double)c->o.decided,
                             .min_decided = c->o.min_decided,
                             .max_logprob_diff = (double)c->o.max_logprob_diff,
                             .width = c->o.width,
                             .max_positions = c->o.max_positions};
    char *dir;
    if (!c->o.reference) return cli_use(c, "--reference FILE is missing: the traces to agree with");
    if (c->o.write && c->o.against) return cli_use(c, "--write and --against exclude each other");
    if (c->o.against) {
        if (c->line.n_positional)
            return cli_use(c, "--against compares two files; no model (\"%.60s\") is needed",
                           c->line.positional[0]);
        if (mx_verify_compare(c->o.reference, c->o.against, &opt, &r, &err) == MX_OK)
            return report(c, &r, NULL);
        cli_fail(&err);
        return EXIT_VERIFY_ERROR;
    }
    const char *ref = cli_model_ref(c);
    if (!ref) return EXIT_USE;
    if (c->line.n_positional)
        return cli_use(c, "one model at a time; \"%.60s\" is too many", c->line.positional[0]);
    if (c->o.width > c->o.chunk) c->o.chunk = c->o.width; // a step must be able to take it
    int code = EXIT_VERIFY_ERROR;
    mx_status st = cli_resolve(c, ref, &dir, &err);
    if (st == MX_OK) st = cli_open(c, dir, false, &e, &err);
    if (st == MX_OK && c->o.write) {
        st = mx_verify_write(e, c->o.reference, c->o.write, c->o.width, &err);
        if (st == MX_OK) code = EXIT_OK;
    } else if (st == MX_OK) {
        st = mx_verify(e, &opt, &r, &err);
        if (st == MX_OK) code = report(c, &r, mx_engine_dev(e));
    }
    if (st != MX_OK) cli_fail(&err);
    mx_engine_free(e);
    return code;
}
