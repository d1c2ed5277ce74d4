/* ports.c - finds the port of a device for given arguments, and keeps count of what was composed instead. */
#include "backend/ports.h"

const char *mx_port_name(mx_port_op op) {
    switch (op) {
    case MX_PORT_TOKEN_LOG_PROB: return "token_log_prob";
    case MX_PORT_QQ_EXPERT_MATMUL: return "qq_expert_matmul";
    case MX_PORT_PRODUCT: return "product";
    case MX_PORT_DECODE_ATTENTION: return "decode_attention";
    case MX_PORT_TOP: return "top";
    case MX_N_PORT: break;
    }
    return "unknown";
}

mx_status mx_port_run(mx_dev *dev, mx_port_op op, const void *args, mx_err *err) {
    mx_err why = {0};
    if (dev->no_ports) {
        dev->ports[op].composed++;
        return mx_fail(err, MX_UNSUPPORTED, "%s: ports are switched off on this device", mx_port_name(op));
    }
    for (const mx_port *p = dev->be->ports; p->shapes; p++) {
        if (p->op != op) continue;
        if (p->takes && p->takes(dev, args, &why) != MX_OK) continue;
        if (p->run) {
            dev->ports[op].used++;
            return p->run(dev, args, err);
        }
        dev->ports[op].composed++;
        return mx_fail(err, MX_UNSUPPORTED, "%s: composed on %s: %s", mx_port_name(op), dev->be->name,
                       p->shapes);
    }
    dev->ports[op].unlisted++;
    return mx_fail(err, MX_UNSUPPORTED, "%s: no port of %s takes this: %s", mx_port_name(op), dev->be->name,
                   *why.msg ? why.msg : "it has none");
}

void mx_port_summary(const mx_dev *dev, mx_str *out) {
    size_t start = out->len;
    for (int i = 0; i < MX_N_PORT; i++) {
        const struct {
            const char *how;
            uint64_t n;
        } counts[] = {{"", dev->ports[i].used},
                      {" composed", dev->ports[i].composed},
                      {" unlisted", dev->ports[i].unlisted}};
        for (size_t c = 0; c < countof(counts); c++)
            if (counts[c].n)
                mx_str_printf(out, "%s%s%s %llu", out->len > start ? ", " : "", mx_port_name((mx_port_op)i),
                              counts[c].how, (unsigned long long)counts[c].n);
    }
    if (out->len == start) mx_str_puts(out, "none");
}

mx_status mx_port_unlisted(const mx_dev *dev, mx_err *err) {
    for (int i = 0; i < MX_N_PORT; i++)
        if (dev->ports[i].unlisted)
            return mx_fail(
                err, MX_EINTERNAL, "%s was composed %llu times on %s, which its table of ports does not list",
                mx_port_name((mx_port_op)i), (unsigned long long)dev->ports[i].unlisted, dev->be->name);
    return MX_OK;
}
