/* pull_impl.h - the parts of a download: what to fetch (pull.c), the transfers (pull_get.c), the bar (pull_bar.c). */
#ifndef MX_FORMAT_PULL_IMPL_H
#define MX_FORMAT_PULL_IMPL_H
#include "format/hub.h"
#include "format/store.h"

/* One file on its way. Bytes go to part; checked against size and hash it becomes done. */
typedef struct {
    const mx_hub_file *file;
    const char *part, *done; // paths in the download's folder
    uint64_t have;           // bytes in part
} mx_pull_file;

/* Fetch all files that are not done yet, opt->jobs at once. */
mx_status mx_pull_get(mx_hub *h, const char *id, const char *commit, mx_pull_file *files, size_t n,
                      const mx_pull_options *opt, mx_err *err);

/* The line on the terminal; shows nothing when quiet or when stderr is no terminal. */
typedef struct {
    bool on;
    const char *name;
    double next, since; // times of the next and the last drawing
    uint64_t last;      // bytes at the last drawing
    double rate;        // bytes per second, smoothed
} mx_pull_bar;
void mx_pull_bar_start(mx_pull_bar *b, const char *name, bool quiet, uint64_t done);
void mx_pull_bar_show(mx_pull_bar *b, uint64_t done, uint64_t total, size_t files_done, size_t n_file);
void mx_pull_bar_end(mx_pull_bar *b); // leaves the last state on a line of its own
/* "  62% 1.2/1.9 GB  85.1 MB/s  0:08 left  7/9 files" into buf: what is shown, without the name. */
const char *mx_pull_bar_text(char buf[128], uint64_t done, uint64_t total, double rate, size_t files_done,
                             size_t n_file);

#endif
