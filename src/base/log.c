#include "base/log.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic mx_log_level max_level = MX_LOG_WARN;

void mx_log_set_level(mx_log_level level) { atomic_store(&max_level, level); }
mx_log_level mx_log_get_level(void) { return atomic_load(&max_level); }

void mx_log(mx_log_level level, const char *fmt, ...) {
    static const char *const tags[] = {"error: ", "warning: ", "", "debug: "};
    if (level > atomic_load(&max_level)) return;
    char line[2048]; // one write, so that lines of several threads do not mix
    int n = snprintf(line, sizeof line, "%s", tags[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    size_t len = (size_t)(n + m) < sizeof line - 2 ? (size_t)(n + m) : sizeof line - 2;
    line[len++] = '\n';
    fwrite(line, 1, len, stderr);
}
