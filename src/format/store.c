/* store.c - finding, listing and removing models. Names starting with '.' in the store are locks and downloads under way. */
#include "format/store.h"
#include "base/file.h"
#include "base/str.h"
#include "format/store_impl.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static mx_status no_memory(mx_err *err) {
    return mx_fail(err, MX_ENOMEM, "no memory for the list of models");
}

/* ---- places ------------------------------------------------------------------------------------------------- */

static const char *env(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* ${XDG_CACHE_HOME:-~/.cache}/name */
static mx_status cache_dir(char **out, mx_arena *a, const char *name, mx_err *err) {
    const char *xdg = env("XDG_CACHE_HOME"), *home = env("HOME");
    if (xdg) {
        *out = mx_path_join(a, xdg, name);
    } else {
        if (!home) {
            const struct passwd *pw = getpwuid(getuid());
            home = pw ? pw->pw_dir : NULL;
        }
        if (!home) return mx_fail(err, MX_ENOTFOUND, "there is no home folder; set HOME or MLXCEL_CACHE_DIR");
        *out = mx_arena_printf(a, "%s/.cache/%s", home, name);
    }
    return *out ? MX_OK : no_memory(err);
}

mx_status mx_store_root(char **out, mx_arena *a, mx_err *err) {
    const char *own = env("MLXCEL_CACHE_DIR");
    char *base = NULL;
    if (own)
        base = mx_arena_strdup(a, own);
    else
        MX_TRY(cache_dir(&base, a, "mlxcel", err));
    *out = base ? mx_path_join(a, base, "models") : NULL;
    return *out ? MX_OK : no_memory(err);
}

mx_status mx_store_hf_home(char **out, mx_arena *a, mx_err *err) {
    const char *home = env("HF_HOME");
    if (!home) return cache_dir(out, a, "huggingface", err);
    *out = mx_arena_strdup(a, home);
    return *out ? MX_OK : no_memory(err);
}

mx_status mx_store_hf_cache(char **out, mx_arena *a, mx_err *err) {
    const char *hub = env("HF_HUB_CACHE");
    char *home = NULL;
    if (hub) {
        *out = mx_arena_strdup(a, hub);
    } else {
        MX_TRY(mx_store_hf_home(&home, a, err));
        *out = mx_path_join(a, home, "hub");
    }
    return *out ? MX_OK : no_memory(err);
}

static bool valid_part(const char *p, size_t n) {
    if (n == 0 || n > 96 || p[0] == '.' || p[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                  c == '_' || c == '.';
        if (!ok) return false;
    }
    return true;
}

bool mx_store_valid_id(const char *id) {
    const char *slash = strchr(id, '/');
    return slash && valid_part(id, (size_t)(slash - id)) && valid_part(slash + 1, strlen(slash + 1));
}

char *mx_store_beside(mx_arena *a, const char *root, const char *id, const char *suffix) {
    const char *slash = strchr(id, '/');
    return mx_arena_printf(a, "%s/%.*s/.%s.%s", root, (int)(slash - id), id, slash + 1, suffix);
}

/* ---- lock ----------------------------------------------------------------------------------------------------- */

mx_status mx_store_lock(int *fd, const char *path, mx_err *err) {
    for (;;) {
        struct stat opened, named;
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) return mx_fail(err, MX_EIO, "%s: %s", path, strerror(errno));
        if (flock(*fd, LOCK_EX | LOCK_NB) < 0) {
            int why = errno;
            close(*fd);
            *fd = -1;
            if (why == EWOULDBLOCK || why == EINTR) return MX_OK;
            return mx_fail(err, MX_EIO, "%s: %s", path, strerror(why));
        }
        /* The last owner may have unlinked the file between our open and our lock. */
        if (fstat(*fd, &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino &&
            opened.st_dev == named.st_dev)
            return MX_OK;
        close(*fd);
    }
}

void mx_store_unlock(int fd, const char *path) {
    if (fd < 0) return;
    unlink(path); // while it is held, so that nobody else's lock is removed
    close(fd);
}

/* ---- the Hugging Face cache ------------------------------------------------------------------------------------ */

static int64_t mtime(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 ? (int64_t)sb.st_mtime : -1;
}

/* The snapshot of <cache>/models--owner--name that refs/main names, else the newest; NULL if there is none. */
static mx_status hf_snapshot(char **out, mx_arena *a, const char *repo, mx_err *err) {
    *out = NULL;
    char *ref = mx_path_join(a, repo, "refs/main"), *all = mx_path_join(a, repo, "snapshots");
    if (!ref || !all) return no_memory(err);
    char *commit = NULL;
    size_t len = 0;
    if (mx_file_read(&commit, &len, a, ref, 256, NULL) == MX_OK) {
        while (len && (commit[len - 1] == '\n' || commit[len - 1] == ' ')) commit[--len] = 0;
        char *dir = mx_path_join(a, all, commit);
        if (!dir) return no_memory(err);
        if (len && commit[0] != '.' && !strchr(commit, '/') && mx_is_dir(dir)) {
            *out = dir;
            return MX_OK;
        }
    }
    DIR *d = opendir(all);
    if (!d) return MX_OK;
    int64_t best = -1;
    mx_status st = MX_OK;
    for (struct dirent *e; st == MX_OK && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *dir = mx_path_join(a, all, e->d_name);
        if (!dir) st = no_memory(err);
        if (st == MX_OK && mx_is_dir(dir) && mtime(dir) > best) {
            best = mtime(dir);
            *out = dir;
        }
    }
    closedir(d);
    return st;
}

/* "models--owner--name" to "owner/name"; NULL for other folders. */
static char *hf_id(mx_arena *a, const char *folder) {
    static const char head[] = "models--";
    if (strncmp(folder, head, sizeof head - 1)) return NULL;
    const char *owner = folder + sizeof head - 1, *name = strstr(owner, "--");
    if (!name) return NULL;
    char *id = mx_arena_printf(a, "%.*s/%s", (int)(name - owner), owner, name + 2);
    return id && mx_store_valid_id(id) ? id : NULL;
}

/* ---- list ------------------------------------------------------------------------------------------------------- */

typedef struct {
    mx_store_entry *e;
    size_t n, cap;
    mx_arena *a;
    mx_err *err;
} listing;

/* Bytes of the files in dir and below, links followed to files. */
static uint64_t tree_bytes(mx_arena *a, const char *dir, int depth) {
    uint64_t sum = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat sb;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (fstatat(dirfd(d), e->d_name, &sb, 0) < 0) continue; // a dangling link weighs nothing
        if (S_ISREG(sb.st_mode)) sum += (uint64_t)sb.st_size;
        char *sub = S_ISDIR(sb.st_mode) && depth < 8 ? mx_path_join(a, dir, e->d_name) : NULL;
        if (sub) sum += tree_bytes(a, sub, depth + 1);
    }
    closedir(d);
    return sum;
}

static mx_status add(listing *l, const char *id, const char *path, bool own) {
    char *config = mx_path_join(l->a, path, "config.json");
    if (!config) return no_memory(l->err);
    if (!mx_is_file(config)) return MX_OK; // not a model
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        mx_store_entry *grown = realloc(l->e, cap * sizeof *grown);
        if (!grown) return no_memory(l->err);
        l->e = grown;
        l->cap = cap;
    }
    l->e[l->n++] = (mx_store_entry){
        .id = id, .path = path, .bytes = tree_bytes(l->a, path, 0), .modified = mtime(path), .own = own};
    return MX_OK;
}

static mx_status list_own(listing *l, const char *root) {
    DIR *owners = opendir(root);
    if (!owners) return MX_OK; // nothing was pulled yet
    mx_status st = MX_OK;
    for (struct dirent *o; st == MX_OK && (o = readdir(owners));) {
        if (o->d_name[0] == '.') continue;
        char *folder = mx_path_join(l->a, root, o->d_name);
        DIR *names = folder ? opendir(folder) : NULL;
        if (!folder) st = no_memory(l->err);
        for (struct dirent *m; names && st == MX_OK && (m = readdir(names));) {
            if (m->d_name[0] == '.') continue;
            char *id = mx_arena_printf(l->a, "%s/%s", o->d_name, m->d_name);
            char *path = mx_path_join(l->a, folder, m->d_name);
            if (!id || !path)
                st = no_memory(l->err);
            else if (mx_store_valid_id(id))
                st = add(l, id, path, true);
        }
        if (names) closedir(names);
    }
    closedir(owners);
    return st;
}

static mx_status list_hf(listing *l, const char *cache) {
    DIR *d = opendir(cache);
    if (!d) return MX_OK;
    mx_status st = MX_OK;
    for (struct dirent *e; st == MX_OK && (e = readdir(d));) {
        char *id = hf_id(l->a, e->d_name), *dir = NULL;
        if (!id) continue;
        char *repo = mx_path_join(l->a, cache, e->d_name);
        st = repo ? hf_snapshot(&dir, l->a, repo, l->err) : no_memory(l->err);
        if (st == MX_OK && dir) st = add(l, id, dir, false);
    }
    closedir(d);
    return st;
}

static int by_id(const void *va, const void *vb) {
    const mx_store_entry *a = va, *b = vb;
    int c = strcmp(a->id, b->id);
    return c ? c : (int)b->own - (int)a->own; // ours first
}

mx_status mx_store_list(mx_store_entry **out, size_t *n, mx_arena *a, mx_err *err) {
    listing l = {.a = a, .err = err};
    char *root = NULL, *cache = NULL;
    MX_TRY(mx_store_root(&root, a, err));
    MX_TRY(mx_store_hf_cache(&cache, a, err));
    mx_status st = list_own(&l, root);
    if (st == MX_OK) st = list_hf(&l, cache);
    if (st == MX_OK && l.n) qsort(l.e, l.n, sizeof *l.e, by_id);
    if (st == MX_OK) {
        *out = mx_arena_array(a, l.n, sizeof **out);
        *n = l.n;
        if (!*out) st = no_memory(err);
        if (st == MX_OK && l.n) memcpy(*out, l.e, l.n * sizeof *l.e);
    }
    free(l.e);
    return st;
}

/* ---- resolve ---------------------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

static mx_status refuse_file(const char *ref, mx_err *err) {
    if (ends_with(ref, ".gguf"))
        return mx_fail(err, MX_UNSUPPORTED,
                       "%s: GGUF is not run directly; make a model of it with `mlxcel convert %s`", ref, ref);
    const char *slash = strrchr(ref, '/');
    return mx_fail(err, MX_EINVAL, "%s: is a file; a model is a folder: give %.*s", ref,
                   slash ? (int)(slash - ref) : 1,
                   slash && slash != ref ? ref
                   : slash               ? "/"
                                         : ".");
}

/* The folder of owner/name in the store or in the cache, or NULL. */
static mx_status find_id(char **dir, mx_arena *a, const char *id, const char *root, const char *cache,
                         mx_err *err) {
    const char *slash = strchr(id, '/');
    char *own = mx_path_join(a, root, id);
    char *repo = mx_arena_printf(a, "%s/models--%.*s--%s", cache, (int)(slash - id), id, slash + 1);
    if (!own || !repo) return no_memory(err);
    *dir = own;
    return mx_is_dir(own) ? MX_OK : hf_snapshot(dir, a, repo, err);
}

/* A bare name: the one model of any owner that has it. */
static mx_status find_name(char **dir, mx_arena *a, const char *name, mx_err *err) {
    mx_store_entry *e = NULL;
    size_t n = 0, found = 0;
    mx_str all = {0};
    MX_TRY(mx_store_list(&e, &n, a, err));
    *dir = NULL;
    const char *last = "";
    for (size_t i = 0; i < n; i++) {
        if (strcmp(strchr(e[i].id, '/') + 1, name) || !strcmp(e[i].id, last)) continue;
        last = e[i].id;
        if (!found++) *dir = mx_arena_strdup(a, e[i].path);
        mx_str_printf(&all, "%s%s", found > 1 ? ", " : "", e[i].id);
    }
    mx_status st = MX_OK;
    if (found > 1)
        st = mx_fail(err, MX_EINVAL, "%s: several models have this name: %s", name, all.p ? all.p : "");
    if (found == 1 && !*dir) st = no_memory(err);
    mx_str_free(&all);
    return st;
}

mx_status mx_store_resolve(char **dir, mx_arena *a, const char *ref, mx_err *err) {
    static const char hub[] = "https://huggingface.co/";
    char *root = NULL, *cache = NULL, *found = NULL;
    if (!*ref) return mx_fail(err, MX_EINVAL, "the model's name is empty");
    if (!strncmp(ref, hub, sizeof hub - 1) && mx_store_valid_id(ref + sizeof hub - 1)) ref += sizeof hub - 1;
    if (mx_is_dir(ref)) {
        *dir = mx_arena_strdup(a, ref);
        return *dir ? MX_OK : no_memory(err);
    }
    if (mx_is_file(ref) || ends_with(ref, ".gguf")) return refuse_file(ref, err);
    if (strstr(ref, "://"))
        return mx_fail(err, MX_UNSUPPORTED,
                       "%s: models are not run from a URL; download it with `mlxcel pull owner/name`", ref);
    bool id = mx_store_valid_id(ref), name = !id && valid_part(ref, strlen(ref));
    if (!id && !name) return mx_fail(err, MX_ENOTFOUND, "%s: there is no such folder", ref);
    MX_TRY(mx_store_root(&root, a, err));
    MX_TRY(mx_store_hf_cache(&cache, a, err));
    if (id)
        MX_TRY(find_id(&found, a, ref, root, cache, err));
    else
        MX_TRY(find_name(&found, a, ref, err));
    if (!found)
        return mx_fail(
            err, MX_ENOTFOUND,
            "%s: is no folder here, and no such model is in %s or %s; download it with `mlxcel pull %s%s`",
            ref, root, cache, id ? "" : "OWNER/", ref);
    *dir = found;
    return MX_OK;
}

/* ---- remove ----------------------------------------------------------------------------------------------------- */

static mx_status remove_locked(mx_arena *a, const char *root, const char *id, mx_err *err) {
    char *dir = mx_path_join(a, root, id), *part = mx_store_beside(a, root, id, "download");
    char *gone = mx_store_beside(a, root, id, "removed");
    if (!dir || !part || !gone) return no_memory(err);
    struct stat sb;
    bool here = lstat(dir, &sb) == 0, begun = lstat(part, &sb) == 0;
    if (!here && !begun) return MX_ENOTFOUND;
    if (lstat(gone, &sb) == 0) MX_TRY(mx_remove_tree(gone, err)); // an earlier removal was cut short
    if (here && rename(dir, gone) < 0) return mx_fail(err, MX_EIO, "%s: %s", dir, strerror(errno));
    if (here) MX_TRY(mx_remove_tree(gone, err)); // under another name, so that nobody loads half a model
    return begun ? mx_remove_tree(part, err) : MX_OK;
}

static mx_status remove_own(mx_arena *a, const char *id, mx_err *err) {
    char *root = NULL, *cache = NULL, *copy = NULL;
    int fd = -1;
    MX_TRY(mx_store_root(&root, a, err));
    MX_TRY(mx_store_hf_cache(&cache, a, err));
    char *lock = mx_store_beside(a, root, id, "lock");
    char *owner = mx_arena_printf(a, "%s/%.*s", root, (int)(strchr(id, '/') - id), id);
    if (!lock || !owner) return no_memory(err);
    mx_status st = MX_ENOTFOUND;
    if (mx_is_dir(owner)) {
        MX_TRY(mx_store_lock(&fd, lock, err));
        if (fd < 0) return mx_fail(err, MX_EIO, "%s: is being downloaded by another process", id);
        st = remove_locked(a, root, id, err);
        mx_store_unlock(fd, lock);
        rmdir(owner); // if this was its last model
    }
    if (st != MX_ENOTFOUND) return st;
    MX_TRY(find_id(&copy, a, id, root, cache, err));
    if (copy)
        return mx_fail(err, MX_EINVAL,
                       "%s: belongs to the Hugging Face cache, not to mlxcel's store; it is in %s", id, copy);
    return mx_fail(err, MX_ENOTFOUND, "%s: is not in the store %s", id, root);
}

mx_status mx_store_remove(const char *id, mx_err *err) {
    mx_arena a = {0};
    mx_status st = mx_store_valid_id(id)
                       ? remove_own(&a, id, err)
                       : mx_fail(err, MX_EINVAL, "%s: a model's name has the form owner/name", id);
    mx_arena_free(&a);
    return st;
}
