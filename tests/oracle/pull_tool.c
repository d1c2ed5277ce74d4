/* pull_tool.c - mx_store_pull by itself, for tests/oracle/pull.py.
 *
 * pull_tool ID [REVISION]: prints the folder, or "STATUS: sentence" on stderr and exits with the status. SIGINT cancels.
 * MX_TEST_FSIZE limits the size of files, as a full disk would. */
#include "format/store.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static volatile int cancel;
static void on_signal(int sig) {
    (void)sig;
    cancel = 1;
}

static unsigned long long seen, total;
static void on_progress(void *arg, uint64_t done, uint64_t all) {
    (void)arg;
    seen = done;
    total = all;
}

int main(int argc, char **argv) {
    const char *limit = getenv("MX_TEST_FSIZE");
    if (argc < 2) return 99;
    signal(SIGINT, on_signal);
    if (limit) {
        signal(SIGXFSZ, SIG_IGN);
        struct rlimit r = {strtoull(limit, NULL, 10), RLIM_INFINITY};
        if (setrlimit(RLIMIT_FSIZE, &r) < 0) return 98;
    }
    mx_arena a = {0};
    mx_err err = {0};
    char *dir = NULL;
    mx_pull_options opt = {.revision = argc > 2 ? argv[2] : NULL, .cancel = &cancel, .progress = on_progress};
    mx_status st = mx_store_pull(&dir, &a, argv[1], &opt, &err);
    if (st == MX_OK)
        printf("%s\n%llu %llu\n", dir, seen, total);
    else
        fprintf(stderr, "%s: %s\n", mx_status_name(st), err.msg);
    mx_arena_free(&a);
    return st;
}
