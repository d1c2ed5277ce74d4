#include "cli/out.h"
#include "cli/cli.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed;     // errno of the first write that failed
static bool no_memory; // an answer could not be put together
static const char *color = "auto";

bool out_tty(void) { return isatty(STDOUT_FILENO); }
bool out_err_tty(void) { return isatty(STDERR_FILENO); }
void out_set_color(const char *mode) { color = mode; }

static bool colored(int fd) {
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    if (!strcmp(color, "always")) return true;
    return !strcmp(color, "auto") && isatty(fd) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}
bool out_color(void) { return colored(STDOUT_FILENO); }
bool out_err_color(void) { return colored(STDERR_FILENO); }

bool out_write(const char *p, size_t len) {
    if (failed || no_memory) return false;
    if (len && fwrite(p, 1, len, stdout) != len) failed = errno ? errno : EIO;
    return !failed;
}

bool out_puts(const char *z) { return out_write(z, strlen(z)); }

bool out_str(mx_str *s) {
    if (s->oom) no_memory = true;
    bool ok = out_write(s->p, s->len);
    mx_str_free(s);
    return ok;
}

bool out_printf(const char *fmt, ...) {
    va_list ap;
    if (failed || no_memory) return false;
    va_start(ap, fmt);
    if (vprintf(fmt, ap) < 0) failed = errno ? errno : EIO;
    va_end(ap);
    return !failed;
}

/* C0 but for newline and tab, DEL, and C1 (U+0080 to U+009F, in UTF-8 the bytes C2 80 to C2 9F). */
size_t out_filter(char *p, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)p[i];
        if ((ch < 0x20 && ch != '\n' && ch != '\t') || ch == 0x7f) continue;
        if (ch == 0xc2 && i + 1 < len && (unsigned char)p[i + 1] >= 0x80 && (unsigned char)p[i + 1] <= 0x9f) {
            i++;
            continue;
        }
        p[n++] = (char)ch;
    }
    return n;
}

bool out_model(const char *p, size_t len) {
    char part[512];
    if (!out_tty()) return out_write(p, len) && out_flush();
    while (len > 0) {
        size_t n = len < sizeof part ? len : sizeof part;
        if (n < len && (unsigned char)p[n - 1] == 0xc2) n--; // keep the two bytes of a C1 character together
        memcpy(part, p, n);
        if (!out_write(part, out_filter(part, n))) return false;
        p += n;
        len -= n;
    }
    return out_flush();
}

bool out_flush(void) {
    if (!failed && fflush(stdout) != 0) failed = errno ? errno : EIO;
    return !failed && !no_memory;
}

int out_finish(int code) {
    out_flush();
    if (no_memory) return cli_error(EXIT_FAIL, "no memory to put the output together");
    if (failed == EPIPE) return EXIT_PIPE; // the reader has seen enough: no message
    if (failed == ENOSPC)
        return cli_error(EXIT_FAIL,
                         "the output could not be written: the disk is full; free some space and try again");
    if (failed) return cli_error(EXIT_FAIL, "the output could not be written: %s", strerror(failed));
    return code;
}
