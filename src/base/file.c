#include "base/file.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static mx_status fail_errno(mx_err *err, const char *path) {
    mx_status code = errno == ENOENT || errno == ENOTDIR ? MX_ENOTFOUND
                     : errno == ENOMEM                   ? MX_ENOMEM
                                                         : MX_EIO;
    if (errno == ENOSPC || errno == EDQUOT) {
        return mx_fail(err, MX_EIO, "%s: the disk is full; free some space and try again", path);
    }
    return mx_fail(err, code, "%s: %s", path, strerror(errno));
}

mx_status mx_map_open(mx_map *out, const char *path, mx_err *err) {
    mx_status st = MX_OK;
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO must not block us
    if (fd < 0) return fail_errno(err, path);
    if (fstat(fd, &sb) < 0) {
        st = fail_errno(err, path);
    } else if (!S_ISREG(sb.st_mode)) {
        st = mx_fail(err, MX_EIO, "%s: is not a regular file", path);
    } else if (sb.st_size == 0) {
        *out = (mx_map){0};
    } else {
        void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = fail_errno(err, path);
        else
            *out = (mx_map){.p = p, .len = (size_t)sb.st_size};
    }
    close(fd); // the mapping stays valid without it
    return st;
}

void mx_map_close(mx_map *m) {
    if (m->p) munmap((void *)m->p, m->len);
    *m = (mx_map){0};
}

mx_status mx_file_read(char **out, size_t *len, mx_arena *a, const char *path, size_t max, mx_err *err) {
    mx_status st = MX_OK;
    mx_str s = {.limit = max};
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(err, path);
    if (fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size > 0) mx_str_reserve(&s, (size_t)sb.st_size);
    for (;;) {
        if (!s.oom && s.len == max) { // full: one byte more tells "exactly max" from "longer"
            char extra;
            ssize_t n = read(fd, &extra, 1);
            if (n < 0 && errno == EINTR) continue;
            if (n > 0) s.oom = true;
            if (n < 0) st = fail_errno(err, path);
            if (n <= 0) break;
        }
        if (s.oom) {
            st = mx_fail(err, MX_ELIMIT, "%s: longer than %zu bytes, which is more than such a file may have",
                         path, max);
            break;
        }
        size_t want = max - s.len < 65536 ? max - s.len : 65536;
        if (!mx_str_reserve(&s, want)) continue;
        ssize_t n = read(fd, s.p + s.len, want);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) st = fail_errno(err, path);
        if (n <= 0) break;
        s.len += (size_t)n;
    }
    close(fd);
    if (st == MX_OK) {
        *out = mx_arena_strndup(a, s.p ? s.p : "", s.len);
        *len = s.len;
        if (!*out) st = mx_fail(err, MX_ENOMEM, "%s: no memory for %zu bytes", path, s.len);
    }
    mx_str_free(&s);
    return st;
}

mx_status mx_outfile_open(mx_outfile *f, const char *path, mx_err *err) {
    *f = (mx_outfile){.fd = -1};
    size_t n = strlen(path) + 32;
    f->path = strdup(path);
    f->tmp = malloc(n);
    if (!f->path || !f->tmp) {
        mx_outfile_abort(f);
        return mx_fail(err, MX_ENOMEM, "%s: no memory for its name", path);
    }
    snprintf(f->tmp, n, "%s.partial-%ld", path, (long)getpid());
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        mx_status st = fail_errno(err, path);
        mx_outfile_abort(f);
        return st;
    }
    f->open = true;
    return MX_OK;
}

mx_status mx_outfile_write(mx_outfile *f, const void *p, size_t len, mx_err *err) {
    const char *at = p;
    while (len > 0) {
        ssize_t n = write(f->fd, at, len < (1u << 30) ? len : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(err, f->path);
        at += n;
        len -= (size_t)n;
    }
    return MX_OK;
}

mx_status mx_outfile_commit(mx_outfile *f, mx_err *err) {
    mx_status st = MX_OK;
    if (fsync(f->fd) < 0 && errno != EINVAL) st = fail_errno(err, f->path);
    if (close(f->fd) < 0 && st == MX_OK) st = fail_errno(err, f->path);
    f->fd = -1;
    if (st == MX_OK && rename(f->tmp, f->path) < 0) st = fail_errno(err, f->path);
    if (st == MX_OK) f->open = false; // nothing left to take back
    mx_outfile_abort(f);
    return st;
}

void mx_outfile_abort(mx_outfile *f) {
    if (f->open && f->fd >= 0) close(f->fd);
    if (f->open) unlink(f->tmp);
    free(f->tmp);
    free(f->path);
    *f = (mx_outfile){.fd = -1};
}

mx_status mx_file_write(const char *path, const void *p, size_t len, mx_err *err) {
    mx_outfile f;
    MX_TRY(mx_outfile_open(&f, path, err));
    mx_status st = mx_outfile_write(&f, p, len, err);
    if (st == MX_OK) return mx_outfile_commit(&f, err);
    mx_outfile_abort(&f);
    return st;
}

mx_status mx_mkdirs(const char *path, mx_err *err) {
    char *p = strdup(path);
    if (!p) return mx_fail(err, MX_ENOMEM, "%s: no memory for its name", path);
    mx_status st = MX_OK;
    for (char *s = p + 1; st == MX_OK; s++) {
        if (*s != '/' && *s != 0) continue;
        char c = *s;
        *s = 0;
        if (mkdir(p, 0777) < 0 && errno != EEXIST) st = fail_errno(err, p);
        *s = c;
        if (c == 0) break;
    }
    if (st == MX_OK && !mx_is_dir(path)) st = mx_fail(err, MX_EIO, "%s: exists and is not a folder", path);
    free(p);
    return st;
}

bool mx_is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

bool mx_is_file(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

int64_t mx_file_size(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 ? (int64_t)sb.st_size : -1;
}

static mx_status remove_at(int dir, const char *name, const char *shown, int depth, mx_err *err) {
    if (unlinkat(dir, name, 0) == 0) return MX_OK;
    if (errno != EISDIR && errno != EPERM) return fail_errno(err, shown);
    if (depth > 64) return mx_fail(err, MX_ELIMIT, "%s: nested too deeply to remove", shown);
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        mx_status st = fail_errno(err, shown);
        if (fd >= 0) close(fd);
        return st;
    }
    mx_status st = MX_OK;
    for (struct dirent *e; st == MX_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            st = remove_at(fd, e->d_name, shown, depth + 1, err);
    }
    closedir(d);
    if (st == MX_OK && unlinkat(dir, name, AT_REMOVEDIR) < 0) st = fail_errno(err, shown);
    return st;
}

mx_status mx_remove_tree(const char *path, mx_err *err) { return remove_at(AT_FDCWD, path, path, 0, err); }

char *mx_path_join(mx_arena *a, const char *dir, const char *name) {
    size_t n = strlen(dir);
    return mx_arena_printf(a, "%s%s%s", dir, n && dir[n - 1] != '/' ? "/" : "", name);
}

const char *mx_path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
