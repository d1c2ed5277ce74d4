/* pull_bar.c - one line on a terminal that says how a download goes. */
#include "format/pull_impl.h"
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double EVERY = 0.2; // seconds between drawings

const char *mx_pull_bar_text(char buf[128], uint64_t done, uint64_t total, double rate, size_t files_done,
                             size_t n_file) {
    double unit = total >= 1000000000u ? 1e9 : 1e6;
    char left[32] = "";
    if (rate > 1 && done < total) {
        double s = (double)(total - done) / rate;
        if (s < 3600)
            snprintf(left, sizeof left, "  %d:%02d left", (int)s / 60, (int)s % 60);
        else if (s < 360000)
            snprintf(left, sizeof left, "  %d h %02d left", (int)s / 3600, (int)s / 60 % 60);
    }
    snprintf(buf, 128, "%3d%% %.1f/%.1f %s  %.1f MB/s%s  %zu/%zu files",
             total ? (int)(100.0 * (double)done / (double)total) : 100, (double)done / unit,
             (double)total / unit, unit > 1e8 ? "GB" : "MB", rate / 1e6, left, files_done, n_file);
    return buf;
}

void mx_pull_bar_start(mx_pull_bar *b, const char *name, bool quiet, uint64_t done) {
    *b = (mx_pull_bar){
        .on = !quiet && isatty(STDERR_FILENO), .name = name, .since = mx_hub_now(), .last = done};
}

void mx_pull_bar_show(mx_pull_bar *b, uint64_t done, uint64_t total, size_t files_done, size_t n_file) {
    double now = mx_hub_now();
    if (!b->on || now < b->next) return;
    double span = now - b->since;
    if (span > 0.05 && done >= b->last) { // a moving average over some 3 seconds
        double rate = (double)(done - b->last) / span, w = span < 3 ? span / 3 : 1;
        b->rate = b->rate > 0 ? b->rate + (rate - b->rate) * w : rate;
    }
    b->since = now;
    b->last = done;
    b->next = now + EVERY;
    char text[128];
    struct winsize ws;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 20 ? ws.ws_col : 80;
    mx_pull_bar_text(text, done, total, b->rate, files_done, n_file);
    int room = width - 2 - (int)strlen(text);
    fprintf(stderr, "\r\033[K%.*s %.*s", room > 0 ? room : 0, b->name, width - 1, text);
    fflush(stderr);
}

void mx_pull_bar_end(mx_pull_bar *b) {
    if (b->on) fputc('\n', stderr);
    b->on = false;
}
