/* pull.c - `mlxcel pull owner/name`: from a name to a folder in the store.
 *
 * Beside the model's folder lies ".name.download", where every file is kept under its path and hash until all are there, so
 * an interrupted pull continues and a changed model does not mix with what an older pull left. Then the files are linked
 * into a tree and the tree takes the model's name in one step. ".name.lock" keeps other processes out meanwhile. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "format/pull_impl.h"
#include "format/store_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static const char RECORD[] = ".mlxcel.json"; // in a model's folder: its commit, and each file's hash

typedef struct {
    mx_hub hub;
    mx_arena *a;
    const char *id;
    const mx_pull_options *opt;
    char *root, *dir, *work, *tree, *lock;
    char *commit;
    mx_pull_file *f;
    size_t n;
    mx_err *err;
} job;

static mx_status no_memory(job *j) {
    return mx_fail(j->err, MX_ENOMEM, "%s: no memory for its list of files", j->id);
}
static mx_status fail_errno(job *j, const char *path) {
    return mx_fail(j->err, MX_EIO, "%s: %s", path, strerror(errno));
}

/* ---- what to fetch ------------------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

static bool is_weights(const mx_hub_file *f) {
    return ends_with(f->path, ".safetensors") && !strchr(f->path, '/');
}
static bool is_consolidated(const mx_hub_file *f) { return !strncmp(f->path, "consolidated", 12); }

/* A model's own files lie at the top. What is below is other formats (original/, onnx/, metal/) or extra templates. */
static bool is_wanted(const mx_hub_file *f, bool only_consolidated) {
    static const char *const tails[] = {".json", ".jinja", ".txt", ".model", ".tiktoken"};
    if (strlen(f->path) > 180)
        return false; // kept_name makes it longer, and 255 is the limit of file systems
    if (!strncmp(f->path, "additional_chat_templates/", 26)) return ends_with(f->path, ".jinja");
    if (strchr(f->path, '/')) return false;
    if (is_consolidated(f) && !only_consolidated) return false; // the same weights under other names
    if (is_weights(f)) return true;
    if (f->path[0] == '.') return false;
    for (size_t i = 0; i < countof(tails); i++)
        if (ends_with(f->path, tails[i])) return true;
    return false;
}

/* "model.safetensors.<16 digits of its hash>", slashes replaced: one name for one content of one file. */
static char *kept_name(job *j, const mx_hub_file *f, const char *tail) {
    char *p = mx_arena_printf(j->a, "%s/%s.%.16s%s", j->work, f->path, f->hash, tail);
    for (char *s = p ? p + strlen(j->work) + 1 : NULL; s && *s; s++)
        if (*s == '/') *s = '|';
    return p;
}

static mx_status choose(job *j, const mx_hub_file *all, size_t n) {
    size_t weights = 0, plain = 0;
    bool gguf = false, pickle = false, config = false;
    for (size_t i = 0; i < n; i++) {
        weights += is_weights(&all[i]);
        plain += is_weights(&all[i]) && !is_consolidated(&all[i]);
        gguf |= ends_with(all[i].path, ".gguf");
        pickle |= ends_with(all[i].path, ".bin") || ends_with(all[i].path, ".pth");
        config |= !strcmp(all[i].path, "config.json");
    }
    if (!weights)
        return mx_fail(j->err, MX_UNSUPPORTED, "%s: has no safetensors weights%s; nothing was downloaded",
                       j->id,
                       gguf     ? ", only GGUF: download a file and use `mlxcel convert`"
                       : pickle ? ", only PyTorch files, which can run code"
                                : "");
    if (!config)
        return mx_fail(j->err, MX_UNSUPPORTED, "%s: has no config.json, so it is no model to run", j->id);
    j->f = mx_arena_array(j->a, n, sizeof *j->f);
    if (!j->f) return no_memory(j);
    for (size_t i = 0; i < n; i++) {
        if (!is_wanted(&all[i], !plain)) continue;
        mx_pull_file *f = &j->f[j->n++];
        f->file = &all[i];
        f->part = kept_name(j, &all[i], ".incomplete");
        f->done = kept_name(j, &all[i], "");
        if (!f->part || !f->done) return no_memory(j);
    }
    return MX_OK;
}

/* ---- what is there already ------------------------------------------------------------------------------------------ */

static mx_json *read_record(job *j) {
    char *path = mx_path_join(j->a, j->dir, RECORD), *text = NULL;
    size_t len = 0;
    mx_json *doc = NULL;
    if (!path || mx_file_read(&text, &len, j->a, path, 16 << 20, NULL) != MX_OK) return NULL;
    return mx_json_parse(&doc, j->a, text, len, NULL) == MX_OK ? doc : NULL;
}

/* Path of the model's present copy of file f if the record says that it has this content; else NULL. */
static char *present_copy(job *j, const mx_json *record, const mx_hub_file *f) {
    struct stat sb;
    const mx_json *hash = mx_json_get(mx_json_get(record, "files"), f->path);
    char *path = mx_path_join(j->a, j->dir, f->path);
    bool same = path && mx_json_str_eq(hash, f->hash) && stat(path, &sb) == 0 && S_ISREG(sb.st_mode) &&
                (uint64_t)sb.st_size == f->size;
    return same ? path : NULL;
}

/* Whether the model is complete at this commit. If not, what has not changed is linked from the present copy. */
static bool up_to_date(job *j) {
    const mx_json *record = read_record(j);
    bool same = record && mx_json_str_eq(mx_json_get(record, "commit"), j->commit);
    for (size_t i = 0; i < j->n && same; i++) same = present_copy(j, record, j->f[i].file) != NULL;
    return same;
}

static void reuse(job *j) {
    const mx_json *record = read_record(j);
    for (size_t i = 0; i < j->n; i++) {
        char *path = record ? present_copy(j, record, j->f[i].file) : NULL;
        if (path && link(path, j->f[i].done) < 0 && errno != EEXIST)
            return; // a file system without links: fetch again
    }
}

static mx_status check_room(job *j) {
    struct statvfs v;
    struct stat sb;
    uint64_t need = 0;
    for (size_t i = 0; i < j->n; i++) {
        uint64_t size = j->f[i].file->size, have = 0;
        if (stat(j->f[i].done, &sb) == 0 || stat(j->f[i].part, &sb) == 0) have = (uint64_t)sb.st_size;
        if (have < size && __builtin_add_overflow(need, size - have, &need)) need = UINT64_MAX;
    }
    if (statvfs(j->work, &v) < 0 || v.f_blocks == 0) return MX_OK;
    double room = (double)v.f_bavail * (double)v.f_frsize;
    if ((double)need <= room) return MX_OK;
    return mx_fail(j->err, MX_EIO, "%s: the disk is too full: %.2f GB are to come, %.2f GB are free in %s",
                   j->id, (double)need / 1e9, room / 1e9, j->root);
}

/* ---- the finished folder --------------------------------------------------------------------------------------------- */

static mx_status write_record(job *j) {
    mx_str s = {0};
    mx_str_puts(&s, "{\"id\": ");
    mx_json_put_string(&s, j->id, strlen(j->id));
    mx_str_puts(&s, ", \"endpoint\": ");
    mx_json_put_string(&s, j->hub.endpoint, strlen(j->hub.endpoint));
    mx_str_printf(&s, ", \"commit\": \"%s\",\n \"files\": {", j->commit);
    for (size_t i = 0; i < j->n; i++) {
        mx_str_puts(&s, i ? ",\n  " : "\n  ");
        mx_json_put_string(&s, j->f[i].file->path, strlen(j->f[i].file->path));
        mx_str_printf(&s, ": \"%s\"", j->f[i].file->hash);
    }
    mx_str_puts(&s, "}}\n");
    char *path = mx_path_join(j->a, j->tree, RECORD);
    mx_status st = path && !s.oom ? mx_file_write(path, s.p, s.len, j->err) : no_memory(j);
    mx_str_free(&s);
    return st;
}

/* Give the file its name in the tree: a link, so that a crash loses nothing; a move where there are no links. */
static mx_status place(job *j, const mx_pull_file *f) {
    char *to = mx_path_join(j->a, j->tree, f->file->path);
    if (!to) return no_memory(j);
    char *slash = strrchr(to, '/');
    *slash = 0;
    mx_status st = mx_mkdirs(to, j->err);
    *slash = '/';
    if (st != MX_OK) return st;
    return link(f->done, to) == 0 || rename(f->done, to) == 0 ? MX_OK : fail_errno(j, to);
}

static mx_status build_tree(job *j) {
    struct stat sb;
    if (lstat(j->tree, &sb) == 0) MX_TRY(mx_remove_tree(j->tree, j->err));
    MX_TRY(mx_mkdirs(j->tree, j->err));
    for (size_t i = 0; i < j->n; i++) MX_TRY(place(j, &j->f[i]));
    MX_TRY(write_record(j));
    /* An older copy is exchanged in one step and goes away with the download's folder. */
    if (rename(j->tree, j->dir) < 0) {
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) return fail_errno(j, j->dir);
        if (renameat2(AT_FDCWD, j->tree, AT_FDCWD, j->dir, RENAME_EXCHANGE) < 0) {
            char *old = mx_path_join(j->a, j->work, "old");
            if (!old) return no_memory(j);
            if (lstat(old, &sb) == 0) MX_TRY(mx_remove_tree(old, j->err));
            if (rename(j->dir, old) < 0 || rename(j->tree, j->dir) < 0) return fail_errno(j, j->dir);
        }
    }
    return mx_remove_tree(j->work, j->err);
}

/* ---- the pull ---------------------------------------------------------------------------------------------------------- */

static mx_status take_lock(job *j, int *fd) {
    char *owner = mx_arena_strndup(j->a, j->dir, (size_t)(strrchr(j->dir, '/') - j->dir));
    bool told = false;
    if (!owner) return no_memory(j);
    MX_TRY(mx_mkdirs(owner, j->err));
    for (;;) {
        MX_TRY(mx_store_lock(fd, j->lock, j->err));
        if (*fd >= 0) return MX_OK;
        if (!told) mx_log(MX_LOG_WARN, "%s: another process is downloading it; waiting", j->id);
        told = true;
        if (mx_hub_cancelled(&j->hub))
            return mx_fail(j->err, MX_ECANCELLED, "%s: stopped while waiting", j->id);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static mx_status pull_locked(job *j) {
    mx_hub_file *all = NULL;
    size_t n = 0;
    MX_TRY(mx_hub_list(&j->hub, j->id, j->opt->revision ? j->opt->revision : "main", &j->commit, &all, &n,
                       j->err));
    MX_TRY(choose(j, all, n));
    if (up_to_date(j)) return MX_OK;
    MX_TRY(mx_mkdirs(j->work, j->err));
    reuse(j);
    MX_TRY(check_room(j));
    MX_TRY(mx_pull_get(&j->hub, j->id, j->commit, j->f, j->n, j->opt, j->err));
    return build_tree(j);
}

static mx_status pull_id(job *j) {
    MX_TRY(mx_store_root(&j->root, j->a, j->err));
    j->dir = mx_path_join(j->a, j->root, j->id);
    j->work = mx_store_beside(j->a, j->root, j->id, "download");
    j->lock = mx_store_beside(j->a, j->root, j->id, "lock");
    j->tree = j->work ? mx_path_join(j->a, j->work, "tree") : NULL;
    if (!j->dir || !j->work || !j->lock || !j->tree) return no_memory(j);
    int fd = -1;
    mx_status st = mx_hub_open(&j->hub, j->a, j->opt->cancel, j->err);
    if (st == MX_OK) st = take_lock(j, &fd);
    if (st == MX_OK) st = pull_locked(j);
    mx_store_unlock(fd, j->lock);
    if (st != MX_OK) { // do not leave an owner's empty folder behind
        *strrchr(j->lock, '/') = 0;
        rmdir(j->lock);
    }
    mx_hub_close(&j->hub);
    return st;
}

mx_status mx_store_pull(char **dir, mx_arena *a, const char *id, const mx_pull_options *opt, mx_err *err) {
    static const char hub[] = "https://huggingface.co/";
    static const mx_pull_options plain;
    if (!strncmp(id, hub, sizeof hub - 1)) id += sizeof hub - 1;
    if (!mx_store_valid_id(id))
        return mx_fail(err, MX_EINVAL, "%s: a model's name has the form owner/name", id);
    mx_arena own = {0};
    job j = {.a = &own, .id = id, .opt = opt ? opt : &plain, .err = err};
    mx_status st = pull_id(&j);
    if (st == MX_OK) {
        *dir = mx_arena_strdup(a, j.dir);
        if (!*dir) st = no_memory(&j);
    }
    mx_arena_free(&own);
    return st;
}
