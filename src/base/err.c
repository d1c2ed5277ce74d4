#include "base/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cut msg, which vsnprintf has already shortened to fit, so that no character is left in half. */
static void mark_cut(char *msg) {
    size_t n = MX_ERR_LEN - 4;
    while (n > 0 && ((unsigned char)msg[n] & 0xC0) == 0x80) n--;
    memcpy(msg + n, "...", 4);
}

mx_status mx_fail(mx_err *err, mx_status code, const char *fmt, ...) {
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof err->msg) mark_cut(err->msg);
    err->code = code;
    return code;
}

mx_status mx_err_prefix(mx_err *err, mx_status code, const char *fmt, ...) {
    if (!err) return code;
    mx_err old = *err;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= (int)sizeof err->msg) n = (int)strlen(err->msg);
    int m = snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old.msg);
    if (n + m >= (int)sizeof err->msg) mark_cut(err->msg);
    err->code = code;
    return code;
}

const char *mx_status_name(mx_status st) {
    static const char *const names[] = {"ok",          "invalid", "not_found", "io",      "no_memory",
                                        "unsupported", "limit",   "cancelled", "internal"};
    return (unsigned)st < countof(names) ? names[st] : "unknown";
}
