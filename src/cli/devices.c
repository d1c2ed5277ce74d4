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

typedef struct {                           // one line of the list
    const char *backend, *device, *reason; // reason NULL: usable
    const char *isa;
    const mx_dev_info *gpu; // NULL: the CPU, or no GPU at all
    int index;
    uint64_t available; // UINT64_MAX: unknown
} row;

static void json_text(mx_str *s, const char *key, const char *v) {
    mx_str_printf(s, ", \"%s\": ", key);
    mx_json_put_string(s, v, strlen(v));
}

static void put_json(mx_str *s, const row *r) {
    mx_str_printf(s, "%s{\"name\": \"%s\", \"usable\": %s", s->len > 1 ? ",\n " : "", r->backend,
                  r->reason ? "false" : "true");
    if (r->device) json_text(s, "device", r->device);
    if (r->reason) json_text(s, "reason", r->reason);
    if (r->isa) json_text(s, "isa", r->isa);
    if (!r->gpu && !r->reason) mx_str_printf(s, ", \"cores\": %d", mx_cpu_count());
    if (r->gpu) {
        mx_str_printf(s, ", \"index\": %d, \"memory_bytes\": %llu, \"shares_memory\": %s", r->index,
                      (unsigned long long)r->gpu->mem_total, r->gpu->shares_memory ? "true" : "false");
        json_text(s, "driver", r->gpu->version);
        if (!r->reason) json_text(s, "code_object", r->gpu->code);
    }
    if (r->available != UINT64_MAX)
        mx_str_printf(s, ", \"available_bytes\": %llu", (unsigned long long)r->available);
    mx_str_putc(s, '}');
}

static void put_line(mx_str *s, const row *r) {
    char a[16], b[16], name[24];
    snprintf(name, sizeof name, r->index ? "%s:%d" : "%s", r->backend, r->index);
    mx_str_printf(s, "%-6s ", name);
    if (r->reason) mx_str_printf(s, "not usable: %s\n", r->reason);
    if (r->reason) return;
    mx_str_puts(s, r->device);
    if (r->gpu)
        mx_str_printf(s, " (%s), %s%s, %s free, driver %s, code object %s", r->gpu->arch,
                      cli_bytes(a, r->gpu->mem_total), r->gpu->shares_memory ? " shared with the host" : "",
                      cli_bytes(b, r->available), r->gpu->version, r->gpu->code);
    else if (r->available != UINT64_MAX)
        mx_str_printf(s, ", %s available", cli_bytes(a, r->available));
    mx_str_putc(s, '\n');
}

static void put(const cli *c, mx_str *s, const row *r) {
    if (c->o.json)
        put_json(s, r);
    else
        put_line(s, r);
}

/* Every GPU that the driver knows, or one row with the reason why there is none. */
static void list_each(const cli *c, const mx_backend *be, mx_str *s) {
    for (int i = 0, n = 1; i < n; i++) {
        mx_dev_info info;
        mx_err why = {0};
        mx_status st = be->info(i, &info, &n, &why);
        row r = {
            .backend = be->name, .index = i, .reason = st == MX_OK ? NULL : why.msg, .available = UINT64_MAX};
        if (*info.name) {
            r.device = info.name;
            r.isa = info.arch;
            r.gpu = &info;
            r.available = info.shares_memory ? mx_memory_shared_available(info.mem_free) : info.mem_free;
        }
        put(c, s, &r);
    }
}

static void list_one(const cli *c, const mx_backend *be, mx_str *s) {
    mx_err why = {0};
    mx_dev *dev = NULL;
    mx_dev_options opt = {0};
    row r = {.backend = be->name, .available = mx_memory_available()};
    if (be->open(&dev, 0, &opt, &why) == MX_OK) {
        r.device = dev->name;
        r.isa = dev->isa;
    } else {
        r.reason = why.msg;
    }
    put(c, s, &r);
    mx_dev_close(dev);
}

int cmd_devices(cli *c) {
    mx_str s = {0};
    if (c->line.n_positional)
        return cli_use(c, "takes no argument, but \"%.60s\" is given", c->line.positional[0]);
    if (c->o.ports) return list_ports(c);
    mx_str_puts(&s, c->o.json ? "[" : "");
    for (int i = 0; i < mx_n_backend; i++) {
        if (mx_backends[i]->info)
            list_each(c, mx_backends[i], &s);
        else
            list_one(c, mx_backends[i], &s);
    }
    mx_str_puts(&s, c->o.json ? "]\n" : "");
    out_str(&s);
    return EXIT_OK;
}
