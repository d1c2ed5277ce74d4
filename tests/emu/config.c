/* config.c - what machine is emulated and what goes wrong on it: a file of `key = value` lines named by $EMU_CONFIG, then $EMU_KEY for
 * each key in capitals. README.md lists the keys. Also the log. */
#include "emu.h"
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

emu_config emu_cfg;

static const struct {
    const char *key;
    enum { TEXT, NUMBER, SIZE } type;
    size_t at, n;
} keys[] = {
#define K(key, type, field)                                                                                  \
    { key, type, offsetof(emu_config, field), sizeof emu_cfg.field }
    K("arch", TEXT, arch),
    K("name", TEXT, name),
    K("stats", TEXT, stats),
    K("log", TEXT, log),
    K("fail", TEXT, fail),
    K("memory_total", SIZE, memory_total),
    K("memory_free", SIZE, memory_free),
    K("alloc_limit", SIZE, alloc_limit),
    K("version", NUMBER, version),
    K("devices", NUMBER, devices),
    K("threads", NUMBER, threads),
    K("units", NUMBER, units),
    K("driver_error", NUMBER, driver_error),
    K("shuffle", NUMBER, shuffle),
    K("ulp", NUMBER, ulp),
    K("races", NUMBER, races),
    K("unwritten", NUMBER, unwritten),
    K("hang", NUMBER, hang),
    K("lost", NUMBER, lost),
    K("event_fault", NUMBER, event_fault),
    K("event_code", NUMBER, event_code),
};

static void set(const char *key, const char *value) {
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i].key)) continue;
        char *at = (char *)&emu_cfg + keys[i].at, *end;
        if (keys[i].type == TEXT) {
            snprintf(at, keys[i].n, "%s", value);
            return;
        }
        long long v = strtoll(value, &end, 0);
        if (keys[i].type == NUMBER)
            *(int *)at = (int)v;
        else
            *(uint64_t *)at = (uint64_t)v << (*end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0);
        return;
    }
    fprintf(stderr, "emu: there is no key %s\n", key);
    exit(2);
}
static char *trim(char *s) {
    while (isspace((unsigned char)*s)) s++;
    for (size_t n = strlen(s); n && isspace((unsigned char)s[n - 1]); n--) s[n - 1] = 0;
    return s;
}
void emu_configure(void) {
    Dl_info me;
    emu_cfg = (emu_config){.arch = "gfx1151",
                           .name = "Emulated Radeon",
                           .memory_total = 64ull << 30,
                           .memory_free = 60ull << 30,
                           .version = 7,
                           .devices = 1,
                           .units = 20,
                           .event_code = 719};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    emu_cfg.threads = cores < 1 ? 1 : cores > 8 ? 8 : (int)cores;
    if (dladdr((void *)emu_configure, &me) && me.dli_fname) { // libamdhip64.so.6 is version 6
        const char *so = strstr(me.dli_fname, ".so.");
        if (so && atoi(so + 4) > 0) emu_cfg.version = atoi(so + 4);
    }
    const char *path = getenv("EMU_CONFIG");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (path && !f) {
        fprintf(stderr, "emu: cannot open %s\n", path);
        exit(2);
    }
    for (char line[700]; f && fgets(line, sizeof line, f);) {
        line[strcspn(line, "#\n")] = 0;
        char *eq = strchr(line, '=');
        if (!eq) continue;
        *eq = 0;
        set(trim(line), trim(eq + 1));
    }
    if (f) fclose(f);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[64] = "EMU_";
        for (size_t j = 0; keys[i].key[j]; j++)
            name[4 + j] = (char)toupper((unsigned char)keys[i].key[j]), name[5 + j] = 0;
        const char *v = getenv(name);
        if (v) set(keys[i].key, v);
    }
    if (emu_cfg.threads < 1) emu_cfg.threads = 1;
}

void emu_log(const char *fmt, ...) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    va_list ap;
    pthread_mutex_lock(&lock);
    FILE *f = emu_cfg.log[0] ? fopen(emu_cfg.log, "a") : stderr;
    if (f) {
        va_start(ap, fmt);
        fputs("emu: ", f);
        vfprintf(f, fmt, ap);
        fputc('\n', f);
        va_end(ap);
        if (f != stderr) fclose(f);
    }
    pthread_mutex_unlock(&lock);
}
