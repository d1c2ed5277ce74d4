/* pull_get.c - transfers: several files at once over one libcurl multi handle, in one thread.
 *
 * A file's bytes are hashed as they come and appended to its part, which survives errors, Ctrl-C and power cuts: the next
 * attempt hashes what is there and asks for the rest. A transfer that fails is repeated after a pause; attempts are only
 * counted while they bring nothing new, so a bad line slows a download down but does not end it. */
#include "format/pull_impl.h"
#include "format/pull_hash.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_JOBS = 32, HASH_CHUNK = 1 << 20 };

typedef enum { WAITING, RUNNING, DONE } state;

typedef struct pull pull;
typedef struct {
    pull *p;
    mx_pull_file *f;
    state state;
    CURL *curl;
    mx_hub_reply reply;
    int fd;
    mx_hash hash;
    bool accepted;     // this response's body is being stored
    uint64_t best;     // most bytes that part ever had
    int tries;         // attempts since best last grew
    int bad_hash;      // complete files that were not the hub's
    double not_before; // when to try again
    mx_status st;      // what stopped the body, and err said why
} job;

struct pull {
    mx_hub *h;
    const char *id, *commit;
    job *job;
    size_t n;
    CURLM *multi;
    mx_err *err;
    char *chunk;
};

static mx_status fail_file(job *j, const char *what) {
    return mx_fail(j->p->err, MX_EIO, "%s: %s: %s", j->p->id, j->f->file->path, what);
}

static mx_status fail_errno(job *j) {
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
        return fail_file(j, errno == EFBIG ? "the file grows beyond what this system allows (ulimit -f?)"
                                           : "the disk is full; free some space and pull again to continue");
    return fail_file(j, strerror(errno));
}

static void start_hash(job *j) {
    if (j->f->file->lfs)
        mx_hash_sha256(&j->hash);
    else
        mx_hash_git_blob(&j->hash, j->f->file->size);
}

static mx_status restart(job *j) {
    if (ftruncate(j->fd, 0) < 0 || lseek(j->fd, 0, SEEK_SET) < 0) return fail_errno(j);
    j->f->have = 0;
    start_hash(j);
    return MX_OK;
}

/* Open the part and hash what an earlier attempt left in it. */
static mx_status open_part(job *j) {
    struct stat sb;
    j->fd = open(j->f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (j->fd < 0 || fstat(j->fd, &sb) < 0) return fail_errno(j);
    if (!S_ISREG(sb.st_mode)) return fail_file(j, "its part is no regular file");
    if ((uint64_t)sb.st_size > j->f->file->size) return restart(j);
    start_hash(j);
    j->f->have = 0;
    for (;;) {
        ssize_t n = read(j->fd, j->p->chunk, HASH_CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(j);
        if (n == 0) break;
        mx_hash_add(&j->hash, j->p->chunk, (size_t)n);
        j->f->have += (uint64_t)n;
        if (mx_hub_cancelled(j->p->h))
            return mx_hub_explain(j->p->h, CURLE_ABORTED_BY_CALLBACK, &j->reply, j->p->id, j->p->id,
                                  j->p->err);
    }
    if (j->f->have > j->f->file->size) return restart(j); // it grew while it was read
    j->best = j->f->have;
    return MX_OK;
}

static void close_part(job *j) {
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

/* The first bytes of a response: is it the piece that was asked for? */
static mx_status accept_body(job *j) {
    char what[128];
    const mx_hub_reply *r = &j->reply;
    uint64_t size = j->f->file->size;
    int64_t total = r->code == 206 ? r->total : r->length;
    if (total >= 0 && (uint64_t)total != size) {
        snprintf(what, sizeof what, "the hub lists %llu bytes, but its server has %lld",
                 (unsigned long long)size, (long long)total);
        return fail_file(j, what);
    }
    if (r->code == 200 && j->f->have > 0) MX_TRY(restart(j)); // a server without ranges
    if (r->code == 206 && r->range_start != (int64_t)j->f->have)
        return fail_file(j, "the server sends another piece than was asked for");
    j->accepted = true;
    return MX_OK;
}

static size_t on_body(char *p, size_t size, size_t n, void *arg) {
    job *j = arg;
    size_t len = size * n;
    if (j->reply.code != 200 && j->reply.code != 206) return len; // the text of an error: not ours to keep
    if (!j->accepted && (j->st = accept_body(j)) != MX_OK) return 0;
    if (len > j->f->file->size - j->f->have) {
        j->st = fail_file(j, "the server sends more bytes than the hub lists");
        return 0;
    }
    for (size_t at = 0; at < len;) {
        ssize_t w = write(j->fd, p + at, len - at);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) {
            j->st = fail_errno(j);
            return 0;
        }
        mx_hash_add(&j->hash, p + at, (size_t)w);
        j->f->have += (uint64_t)w;
        at += (size_t)w;
    }
    return len;
}

/* All bytes are there: check them and give the file its place. */
static mx_status complete(job *j) {
    char hex[65];
    mx_hash_hex(&j->hash, hex);
    if (strcmp(hex, j->f->file->hash)) {
        if (++j->bad_hash == 2)
            return fail_file(
                j, "arrives with other bytes than the hub's hash says, twice; try another network or mirror");
        MX_TRY(restart(j)); // once from the start: the part may stem from a damaged disk or proxy
        j->best = 0;
        j->state = WAITING;
        return MX_OK;
    }
    if (fsync(j->fd) < 0 && errno != EINVAL) return fail_errno(j);
    close_part(j);
    if (rename(j->f->part, j->f->done) < 0) return fail_errno(j);
    j->state = DONE;
    return MX_OK;
}

static mx_status start(job *j) {
    pull *p = j->p;
    if (j->fd < 0) MX_TRY(open_part(j));
    if (j->f->have == j->f->file->size && (j->f->have > 0 || j->accepted)) return complete(j);
    if (!j->curl) j->curl = curl_easy_init();
    char *path = mx_hub_escape(p->h->a, j->f->file->path, false);
    char *url =
        path ? mx_arena_printf(p->h->a, "%s/%s/resolve/%s/%s", p->h->endpoint, p->id, p->commit, path) : NULL;
    if (!j->curl || !url) return mx_fail(p->err, MX_ENOMEM, "no memory for a download");
    curl_easy_reset(j->curl); // keeps its connection
    MX_TRY(mx_hub_request(p->h, j->curl, url, &j->reply, p->err));
    char range[32];
    snprintf(range, sizeof range, "%llu-", (unsigned long long)j->f->have);
    curl_easy_setopt(j->curl, CURLOPT_RANGE, j->f->have ? range : NULL);
    curl_easy_setopt(j->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(j->curl, CURLOPT_WRITEDATA, j);
    curl_easy_setopt(j->curl, CURLOPT_PRIVATE, j);
    j->accepted = false;
    j->st = MX_OK;
    CURLMcode rc = curl_multi_add_handle(p->multi, j->curl);
    if (rc != CURLM_OK) return fail_file(j, curl_multi_strerror(rc));
    j->state = RUNNING;
    return MX_OK;
}

/* A transfer ended: the file is complete, is tried again later, or the pull fails. */
static mx_status finish(job *j, CURLcode rc) {
    pull *p = j->p;
    curl_multi_remove_handle(p->multi, j->curl);
    j->state = WAITING;
    MX_TRY(j->st);
    bool good = rc == CURLE_OK && (j->reply.code == 200 || j->reply.code == 206);
    if (good && !j->accepted) MX_TRY(accept_body(j)); // a body of no bytes
    if (good && j->f->have == j->f->file->size) return complete(j);
    if (rc == CURLE_OK && j->reply.code == 416) { // the part does not fit the server's file
        if (j->tries == MX_HUB_TRIES - 1)
            return fail_file(j, "the server refuses every part of it (HTTP 416)");
        MX_TRY(restart(j));
        j->reply.code = 503; // to be repeated, and counted: best is as it was
    }
    if (good) rc = CURLE_PARTIAL_FILE; // ended early without saying so
    if (j->f->have > j->best) {
        j->best = j->f->have;
        j->tries = 0;
    }
    double wait = mx_hub_backoff(rc, &j->reply, ++j->tries);
    if (wait >= 0 && !mx_hub_cancelled(p->h)) {
        j->not_before = mx_hub_now() + wait;
        return MX_OK;
    }
    char what[320];
    snprintf(what, sizeof what, "%s: %s", p->id, j->f->file->path);
    return mx_hub_explain(p->h, rc, &j->reply, what, p->id, p->err);
}

static void count(const pull *p, uint64_t *done, size_t *n_done, size_t *n_running) {
    *done = *n_done = *n_running = 0;
    for (size_t i = 0; i < p->n; i++) {
        *done += p->job[i].f->have;
        *n_done += p->job[i].state == DONE;
        *n_running += p->job[i].state == RUNNING;
    }
}

static mx_status run(pull *p, const mx_pull_options *opt) {
    uint64_t done, total = 0;
    size_t n_done, n_running, jobs = opt->jobs > 0 ? (size_t)opt->jobs : 4;
    if (jobs > MAX_JOBS) jobs = MAX_JOBS;
    mx_pull_bar bar;
    for (size_t i = 0; i < p->n; i++) total += p->job[i].f->file->size;
    count(p, &done, &n_done, &n_running);
    mx_pull_bar_start(&bar, p->id, opt->quiet, done);
    mx_status st = MX_OK;
    while (st == MX_OK) {
        double now = mx_hub_now();
        for (size_t i = 0; i < p->n && n_running < jobs && st == MX_OK; i++) {
            job *j = &p->job[i];
            if (j->state != WAITING || j->not_before > now) continue;
            st = start(j);
            n_running += j->state == RUNNING;
        }
        int running = 0, left;
        if (st == MX_OK && curl_multi_perform(p->multi, &running) != CURLM_OK)
            st = mx_fail(p->err, MX_EINTERNAL, "%s: libcurl lost its transfers", p->id);
        for (CURLMsg *m; st == MX_OK && (m = curl_multi_info_read(p->multi, &left));) {
            job *j = NULL;
            if (m->msg != CURLMSG_DONE) continue;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
            st = finish(j, m->data.result);
        }
        if (st == MX_OK && mx_hub_cancelled(p->h))
            st = mx_hub_explain(p->h, CURLE_ABORTED_BY_CALLBACK, &p->job[0].reply, p->id, p->id, p->err);
        count(p, &done, &n_done, &n_running);
        if (st == MX_OK && n_done == p->n) bar.next = 0; // the last state is shown
        mx_pull_bar_show(&bar, done, total, n_done, p->n);
        if (opt->progress) opt->progress(opt->arg, done, total);
        if (n_done == p->n) break;
        if (st == MX_OK) curl_multi_poll(p->multi, NULL, 0, n_running ? 100 : 50, NULL);
    }
    mx_pull_bar_end(&bar);
    return st;
}

mx_status mx_pull_get(mx_hub *h, const char *id, const char *commit, mx_pull_file *files, size_t n,
                      const mx_pull_options *opt, mx_err *err) {
    mx_err own;
    pull p = {.h = h, .id = id, .commit = commit, .n = n, .err = err ? err : &own};
    p.job = calloc(n ? n : 1, sizeof *p.job);
    p.chunk = malloc(HASH_CHUNK);
    p.multi = curl_multi_init();
    mx_status st = p.job && p.chunk && p.multi ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for a download");
    for (size_t i = 0; i < n && st == MX_OK; i++) {
        struct stat sb;
        p.job[i] = (job){.p = &p, .f = &files[i], .fd = -1};
        bool done = stat(files[i].done, &sb) == 0 && (uint64_t)sb.st_size == files[i].file->size;
        if (done) p.job[i].state = DONE;
        files[i].have = done ? files[i].file->size
                        : stat(files[i].part, &sb) == 0 && (uint64_t)sb.st_size <= files[i].file->size
                            ? (uint64_t)sb.st_size
                            : 0;
    }
    if (st == MX_OK) st = run(&p, opt);
    for (size_t i = 0; p.job && i < n && p.job[i].p; i++) {
        job *j = &p.job[i];
        if (j->curl && j->state == RUNNING) curl_multi_remove_handle(p.multi, j->curl);
        curl_easy_cleanup(j->curl);
        close_part(j);
    }
    curl_multi_cleanup(p.multi);
    free(p.chunk);
    free(p.job);
    return st;
}
