/* test_ports.c - the table of fused ops: which row runs, what a refusal says, what is counted. */
#include "ops_util.h"
#include "backend/ports.h"

static int ran; // by the row that ran last

static mx_status takes_few(const mx_dev *dev, const void *args, mx_err *err) {
    (void)dev;
    const mx_token_log_prob *a = args;
    return a->logits.rows <= 4 ? MX_OK
                               : mx_fail(err, MX_UNSUPPORTED, "%d rows are more than 4", a->logits.rows);
}
static mx_status takes_many(const mx_dev *dev, const void *args, mx_err *err) {
    (void)dev;
    const mx_token_log_prob *a = args;
    return a->logits.rows < 100 ? MX_OK
                                : mx_fail(err, MX_UNSUPPORTED, "%d rows are 100 or more", a->logits.rows);
}
static mx_status run_few(mx_dev *dev, const void *args, mx_err *err) {
    (void)dev, (void)args, (void)err;
    ran = 1;
    return MX_OK;
}
static mx_status run_badly(mx_dev *dev, const void *args, mx_err *err) {
    (void)dev, (void)args;
    ran = 2;
    return mx_fail(err, MX_EINTERNAL, "the launch failed");
}

/* Up to 4 rows run, up to 99 are composed on purpose, more than that no row expects. */
static const mx_port table[] = {
    {MX_PORT_QQ_EXPERT_MATMUL, "any", NULL, run_badly},
    {MX_PORT_TOKEN_LOG_PROB, "up to 4 rows", takes_few, run_few},
    {MX_PORT_TOKEN_LOG_PROB, "up to 99 rows are as fast", takes_many, NULL},
    {0},
};

TEST(rows_are_tried_in_order)
{
    mx_dev *dev = open_level(NULL, 1);
    mx_backend with_ports = *dev->be;
    with_ports.ports = table;
    dev->be = &with_ports;
    mx_err err = {0};
    mx_str line = {0};
    mx_port_summary(dev, &line);
    CHECK_STR(line.p, "none");
    mx_token_log_prob a = {.logits = {MX_F32, 4, 8, 8, NULL}};
    CHECK_OK(mx_port_run(dev, MX_PORT_TOKEN_LOG_PROB, &a, &err), &err);
    CHECK_INT(ran, 1);
    a.logits.rows = 5;
    CHECK_FAILS(mx_port_run(dev, MX_PORT_TOKEN_LOG_PROB, &a, &err), MX_UNSUPPORTED, &err,
                "token_log_prob: composed on cpu: up to 99 rows are as fast");
    CHECK_OK(mx_port_unlisted(dev, &err), &err);
    a.logits.rows = 100;
    CHECK_FAILS(mx_port_run(dev, MX_PORT_TOKEN_LOG_PROB, &a, &err), MX_UNSUPPORTED, &err,
                "100 rows are 100 or more");
    CHECK_FAILS(mx_port_unlisted(dev, &err), MX_EINTERNAL, &err,
                "token_log_prob was composed 1 times on cpu");
    CHECK_FAILS(mx_port_run(dev, MX_PORT_QQ_EXPERT_MATMUL, NULL, &err), MX_EINTERNAL, &err,
                "the launch failed");
    CHECK_INT(ran, 2); // a port that fails is not composed around
    dev->no_ports = true;
    a.logits.rows = 4;
    CHECK_FAILS(mx_port_run(dev, MX_PORT_TOKEN_LOG_PROB, &a, &err), MX_UNSUPPORTED, &err, "switched off");
    mx_str_clear(&line);
    mx_port_summary(dev, &line);
    CHECK_STR(line.p,
              "token_log_prob 1, token_log_prob composed 2, token_log_prob unlisted 1, qq_expert_matmul 1");
    mx_str_free(&line);
    dev->be = &mx_backend_cpu;
    mx_dev_close(dev);
}

TEST(every_op_has_a_name_and_every_row_its_words)
{
    for (int i = 0; i < MX_N_PORT; i++) {
        CHECK(strcmp(mx_port_name((mx_port_op)i), "unknown"), "port %d", i);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(mx_port_name((mx_port_op)i), mx_port_name((mx_port_op)j)), "%d", i);
    }
    for (int b = 0; b < mx_n_backend; b++)
        for (const mx_port *p = mx_backends[b]->ports; p->shapes; p++)
            CHECK(p->op < MX_N_PORT && *p->shapes, "%s", mx_backends[b]->name);
}
