/* safetensors_dir.c - all weights of a folder: which files belong to it, and whether any is missing.
 *
 * The files are the truth and the index is a check on them: every shard and tensor that it names must be there. What
 * it does not name (an index older than the files) is loaded all the same. Without an index the names tell:
 * "...-00002-of-00003..." asks for two siblings. */
#include "format/safetensors_impl.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_MAX = 48 << 20 }; // bytes; that of a model of 90,000 tensors has 9 MB

typedef struct {
    const char *name;
    bool wanted; // to be opened
} entry;

typedef struct {
    const char *dir;
    mx_arena arena;
    entry *e; // sorted by name
    size_t n, cap;
    const char *index; // name of the index file or NULL
    mx_json *map;      // its weight_map
    bool gguf, pickle; // such files are here
    mx_err *err;
} folder;

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

static bool starts_with(const char *s, const char *head) { return !strncmp(s, head, strlen(head)); }

/* Files that hold the same weights under other names, or a LoRA adapter for another model. */
static bool is_aside(const char *name) {
    return starts_with(name, "consolidated") || starts_with(name, "adapter");
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static entry *find_entry(folder *f, const char *name) {
    entry key = {.name = name};
    return f->n ? bsearch(&key, f->e, f->n, sizeof *f->e, by_name) : NULL;
}

static mx_status no_memory(folder *f) {
    return mx_fail(f->err, MX_ENOMEM, "%s: no memory for its list of files", f->dir);
}

static mx_status list_folder(folder *f) {
    DIR *d = opendir(f->dir);
    if (!d) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return mx_fail(f->err, absent ? MX_ENOTFOUND : MX_EIO, "%s: %s", f->dir, strerror(errno));
    }
    mx_status st = MX_OK;
    for (struct dirent *de; st == MX_OK && (de = readdir(d));) {
        const char *name = de->d_name;
        if (name[0] == '.') continue; // also "._model.safetensors", which macOS leaves on foreign disks
        f->gguf |= ends_with(name, ".gguf");
        f->pickle |= ends_with(name, ".bin") || ends_with(name, ".pth") || ends_with(name, ".pt");
        if (ends_with(name, ".safetensors.index.json") && !is_aside(name) &&
            (!f->index || !strcmp(name, "model.safetensors.index.json"))) {
            f->index = mx_arena_strdup(&f->arena, name);
            if (!f->index) st = no_memory(f);
        }
        if (!ends_with(name, ".safetensors")) continue;
        if (f->n == f->cap) {
            size_t cap = f->cap ? f->cap * 2 : 64;
            entry *grown = realloc(f->e, cap * sizeof *grown);
            if (!grown) {
                st = no_memory(f);
                break;
            }
            f->e = grown;
            f->cap = cap;
        }
        const char *copy = mx_arena_strdup(&f->arena, name);
        if (!copy) st = no_memory(f);
        f->e[f->n++] = (entry){.name = copy, .wanted = !is_aside(name)};
    }
    closedir(d);
    if (st != MX_OK) return st;
    if (f->n) qsort(f->e, f->n, sizeof *f->e, by_name);
    bool any = false;
    for (size_t i = 0; i < f->n; i++) any |= f->e[i].wanted;
    for (size_t i = 0; i < f->n && !any; i++) f->e[i].wanted = !starts_with(f->e[i].name, "adapter");
    return MX_OK;
}

/* Missing names for a message: the first three and whether there are more. */
typedef struct {
    char name[3][92];
    size_t n; // up to 4
} missing;

static void miss(missing *m, const char *name) {
    char shown[MX_ST_SHOWN], cut[92];
    snprintf(cut, sizeof cut, "%.91s", mx_st_show(shown, name, strlen(name)));
    for (size_t i = 0; i < m->n && i < 3; i++) {
        if (!strcmp(m->name[i], cut)) return;
    }
    if (m->n < 3) memcpy(m->name[m->n], cut, sizeof cut);
    if (m->n < 4) m->n++;
}

static const char *miss_text(const missing *m, char buf[320]) {
    snprintf(buf, 320, "%s%s%s%s%s%s %s missing", m->name[0], m->n > 1 ? ", " : "",
             m->n > 1 ? m->name[1] : "", m->n > 2 ? ", " : "", m->n > 2 ? m->name[2] : "",
             m->n > 3 ? " and more" : "", m->n > 1 ? "are" : "is");
    return buf;
}

static mx_status fail_missing(folder *f, const missing *m, const char *source) {
    char text[320];
    return mx_fail(f->err, MX_ENOTFOUND,
                   "%s (named by %s): the download is incomplete; fetch the model again", miss_text(m, text),
                   source);
}

/* A shard must be a plain name in this folder: an index may not reach outside it. */
static bool plain_name(const char *s) {
    return *s && s[0] != '.' && !strchr(s, '/') && !strchr(s, '\\') && strlen(s) < 256;
}

static mx_status read_index(folder *f) {
    char *path = mx_path_join(&f->arena, f->dir, f->index), *text = NULL;
    size_t len = 0;
    mx_json *root = NULL;
    if (!path) return no_memory(f);
    MX_TRY(mx_file_read(&text, &len, &f->arena, path, INDEX_MAX, f->err));
    mx_status st = mx_json_parse(&root, &f->arena, text, len, f->err);
    if (st != MX_OK) return mx_err_prefix(f->err, st, "%s", f->index);
    const mx_json *map = mx_json_get(root, "weight_map");
    if (!mx_json_is(map, MX_JSON_OBJECT))
        return mx_fail(f->err, MX_EINVAL, "%s: has no weight_map object", f->index);
    f->map = (mx_json *)map;

    missing lost = {0};
    const char *last = NULL; // names mostly come in runs
    for (mx_json *it = f->map->u.c.first; it; it = it->next) {
        char a[MX_ST_SHOWN], b[MX_ST_SHOWN];
        mx_st_show(a, it->key, it->key_len);
        if (it->type != MX_JSON_STRING || memchr(it->u.s.p, 0, it->u.s.len) ||
            memchr(it->key, 0, it->key_len))
            return mx_fail(f->err, MX_EINVAL, "%s: weight_map.%s must name a file", f->index, a);
        if (last && it->u.s.len == strlen(last) && !memcmp(it->u.s.p, last, it->u.s.len)) continue;
        const char *name = mx_arena_strndup(&f->arena, it->u.s.p, it->u.s.len);
        if (!name) return no_memory(f);
        mx_st_show(b, name, it->u.s.len);
        if (!plain_name(name))
            return mx_fail(f->err, MX_EINVAL,
                           "%s: weight_map.%s names %s, which is not a file name in the model's folder",
                           f->index, a, b);
        if (!ends_with(name, ".safetensors"))
            return mx_fail(f->err, MX_UNSUPPORTED,
                           "%s: weight_map.%s names %s; only safetensors files are read", f->index, a, b);
        last = name;
        entry *e = find_entry(f, name);
        if (e)
            e->wanted = true;
        else
            miss(&lost, name);
    }
    return lost.n ? fail_missing(f, &lost, f->index) : MX_OK;
}

/* "P-00002-of-00003S.safetensors": where the number stands and its width; false for other names. */
static bool shard_number(const char *name, size_t *at, int *width, unsigned *of) {
    const char *p = strstr(name, "-of-");
    if (!p) return false;
    const char *q = p;
    while (q > name && q[-1] >= '0' && q[-1] <= '9') q--;
    char *end;
    if (q == p || p - q > 5 || q == name || q[-1] != '-' || p[4] < '0' || p[4] > '9') return false;
    unsigned long n = strtoul(p + 4, &end, 10);
    if (end - (p + 4) > 5 || n == 0) return false;
    *at = (size_t)(q - name);
    *width = (int)(p - q);
    *of = (unsigned)n;
    return true;
}

/* Every shard asks for its siblings. */
static mx_status check_siblings(folder *f) {
    for (size_t i = 0; i < f->n; i++) {
        size_t at = 0, prev_at = 0;
        int width = 0, prev_width = 0;
        unsigned of = 0, prev_of = 0;
        const char *name = f->e[i].name;
        if (!f->e[i].wanted || !shard_number(name, &at, &width, &of)) continue;
        if (i > 0 && shard_number(f->e[i - 1].name, &prev_at, &prev_width, &prev_of) && prev_at == at &&
            prev_of == of && !strncmp(name, f->e[i - 1].name, at))
            continue; // the same family, checked at its first member
        missing lost = {0};
        for (unsigned k = 1; k <= of; k++) {
            char number[16];
            snprintf(number, sizeof number, "%0*u", width, k);
            char *want = mx_arena_printf(&f->arena, "%.*s%s%s", (int)at, name, number, name + at + width);
            if (!want) return no_memory(f);
            if (!find_entry(f, want)) miss(&lost, want);
        }
        if (lost.n) return fail_missing(f, &lost, name);
    }
    return MX_OK;
}

static mx_status check_index_tensors(folder *f, mx_st *s) {
    missing lost = {0};
    const char *file = "";
    size_t file_len = 0;
    for (const mx_json *it = mx_json_first(f->map); it; it = it->next) {
        char small[256], *name = small;
        if (it->key_len >= sizeof small && !(name = mx_arena_alloc(&f->arena, it->key_len + 1)))
            return no_memory(f);
        memcpy(name, it->key, it->key_len);
        name[it->key_len] = 0;
        if (mx_st_find(s, name)) continue; // in whatever shard: the index may be older than a re-sharding
        if (!lost.n) file = it->u.s.p, file_len = it->u.s.len;
        miss(&lost, name);
    }
    if (!lost.n) return MX_OK;
    char shown[MX_ST_SHOWN], text[320];
    return mx_fail(f->err, MX_EINVAL, "%s: tensor %s, though %s puts %s there; fetch the model again",
                   mx_st_show(shown, file, file_len), miss_text(&lost, text), f->index,
                   lost.n > 1 ? "them" : "it");
}

static mx_status open_all(folder *f, mx_st **out) {
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->e[i].wanted;
    if (n == 0) {
        const char *hint = f->gguf     ? "; it holds GGUF: make a model of it with `mlxcel convert`"
                           : f->pickle ? "; it holds PyTorch files, which can run code and are not read"
                                       : "";
        return mx_fail(f->err, MX_ENOTFOUND, "%s: there are no *.safetensors files in this folder%s", f->dir,
                       hint);
    }
    mx_st *s = NULL;
    MX_TRY(mx_st_new(&s, n, f->err));
    mx_status st = MX_OK;
    for (size_t i = 0; i < f->n && st == MX_OK; i++) {
        if (!f->e[i].wanted) continue;
        char *path = mx_path_join(&f->arena, f->dir, f->e[i].name);
        st = path ? mx_st_add_file(s, path, f->err) : no_memory(f);
    }
    if (st == MX_OK) st = mx_st_index_names(s, f->err);
    if (st == MX_OK && f->map) st = check_index_tensors(f, s);
    if (st == MX_OK)
        *out = s;
    else
        mx_st_free(s);
    return st;
}

mx_status mx_st_open(mx_st **out, const char *dir, mx_err *err) {
    folder f = {.dir = dir, .arena = {.limit = (size_t)1 << 30}, .err = err};
    mx_status st = list_folder(&f);
    if (st == MX_OK && f.index) st = read_index(&f);
    if (st == MX_OK) st = check_siblings(&f);
    if (st == MX_OK) st = open_all(&f, out);
    free(f.e);
    mx_arena_free(&f.arena);
    return st;
}
