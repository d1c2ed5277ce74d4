/* devices.c - `mlxcel devices`: what can run models here. A backend that does not open says why. */
#include "backend/ports.h"
#include "base/json.h"
#include "base/threads.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "engine/memory.h"
#include <string.h>

/* The table of ports of every backend: op, device, port or composed, and the shapes. */
static int list_ports(const cli *c) {
    mx_str s = {0};
    for (int i = 0; i < mx_n_backend; i++)
        for (const mx_port *p = mx_backends[i]->ports; p->shapes; p++) {
            const char *how = p->run ? "port" : "composed";
            if (c->o.json) {
                mx_str_printf(&s, "%s{\"op\": \"%s\", \"backend\": \"%s\", \"how\": \"%s\", \"shapes\": ",
                              s.len ? ",\n " : "[", mx_port_name(p->op), mx_backends[i]->name, how);
                mx_json_put_string(&s, p->shapes, strlen(p->shapes));
                mx_str_putc(&s, '}');
            } else {
                mx_str_printf(&s, "%-18s %-5s %-9s %s\n", mx_port_name(p->op), mx_backends[i]->name, how,
                              p->shapes);
            }
        }
    if (c->o.json) mx_str_puts(&s, s.len ? "]\n" : "[]\n");
    out_str(&s);
    return EXIT_OK;
}

int cmd_devices(cli *c) {
    mx_str s = {0};
    if (c->line.n_positional)
        return cli_use(c, "takes no argument, but \"%.60s\" is given", c->line.positional[0]);
    if (c->o.ports) return list_ports(c);
    mx_str_puts(&s, c->o.json ? "[" : "");
    for (int i = 0; i < mx_n_backend; i++) {
        mx_err why = {0};
        mx_dev *dev = NULL;
        mx_dev_options opt = {0};
        char free_bytes[16];
        uint64_t free_now = mx_memory_available();
        mx_status st = mx_dev_open(&dev, mx_backends[i]->name, &opt, &why);
        const char *text = st == MX_OK ? dev->name : why.msg;
        if (c->o.json) {
            mx_str_printf(&s, "%s{\"name\": \"%s\", \"usable\": %s, \"%s\": ", i ? ",\n " : "",
                          mx_backends[i]->name, st == MX_OK ? "true" : "false",
                          st == MX_OK ? "device" : "reason");
            mx_json_put_string(&s, text, strlen(text));
            if (st == MX_OK) {
                mx_str_puts(&s, ", \"isa\": ");
                mx_json_put_string(&s, dev->isa, strlen(dev->isa));
                mx_str_printf(&s, ", \"cores\": %d", mx_cpu_count());
                if (free_now != UINT64_MAX)
                    mx_str_printf(&s, ", \"available_bytes\": %llu", (unsigned long long)free_now);
            }
            mx_str_putc(&s, '}');
        } else {
            mx_str_printf(&s, "%-6s %s%s", mx_backends[i]->name, st == MX_OK ? "" : "not usable: ", text);
            if (st == MX_OK && free_now != UINT64_MAX)
                mx_str_printf(&s, ", %s available", cli_bytes(free_bytes, free_now));
            mx_str_putc(&s, '\n');
        }
        mx_dev_close(dev);
    }
    mx_str_puts(&s, c->o.json ? "]\n" : "");
    out_str(&s);
    return EXIT_OK;
}
