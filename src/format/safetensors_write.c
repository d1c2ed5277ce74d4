/* safetensors_write.c - writes a set of tensors as one or several safetensors files with their index.
 *
 * The plan fixes every size, so the shards are laid out and their headers written before the first tensor's bytes come.
 * All files keep temporary names until the last one is complete and on the disk; the index comes last, so a crash
 * leaves either no model or one that an index check shows to be incomplete. */
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "format/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    size_t first, n; // tensors [first, first + n) of the plan
    uint64_t bytes;  // of their data
    char name[64];
    char *path;
    mx_outfile out;
    bool opened, done; // done: it stands under its final name
} shard;

struct mx_st_writer {
    mx_arena arena;
    char *dir;
    mx_st_plan *plan; // names copied
    uint64_t *size;   // bytes of each tensor
    size_t n;
    shard *shard;
    size_t n_shard;
    uint64_t total;
    size_t cur;    // shard that is being filled
    uint64_t left; // bytes it still wants
};

static mx_status size_of(uint64_t *bytes, const mx_st_plan *p, mx_err *err) {
    uint64_t bits = (uint64_t)mx_st_dtype_bits(p->dtype);
    bool bad = p->n_dim < 0 || p->n_dim > MX_ST_MAX_DIM;
    for (int i = 0; i < p->n_dim && !bad; i++)
        bad = p->shape[i] < 0 || __builtin_mul_overflow(bits, (uint64_t)p->shape[i], &bits);
    if (bad || bits % 8) return mx_fail(err, MX_EINVAL, "tensor %s: this shape cannot be written", p->name);
    *bytes = bits / 8;
    return MX_OK;
}

static mx_status no_memory(mx_err *err, const char *dir) {
    return mx_fail(err, MX_ENOMEM, "%s: no memory to lay out its tensors", dir);
}

static mx_status copy_plan(mx_st_writer *w, const mx_st_plan *plan, size_t n, mx_err *err) {
    w->n = n;
    w->plan = mx_arena_array(&w->arena, n, sizeof *w->plan);
    w->size = mx_arena_array(&w->arena, n, sizeof *w->size);
    w->shard = mx_arena_array(&w->arena, n + 1, sizeof *w->shard);
    if (!w->plan || !w->size || !w->shard) return no_memory(err, w->dir);
    for (size_t i = 0; i < n; i++) {
        w->plan[i] = plan[i];
        w->plan[i].name = mx_arena_strdup(&w->arena, plan[i].name);
        if (!w->plan[i].name) return no_memory(err, w->dir);
        MX_TRY(size_of(&w->size[i], &plan[i], err));
        if (__builtin_add_overflow(w->total, w->size[i], &w->total))
            return mx_fail(err, MX_EINVAL, "%s: the tensors together are larger than any disk", w->dir);
    }
    return MX_OK;
}

/* Fill shards in order, each up to max bytes; a tensor larger than that gets a shard of its own. */
static mx_status lay_out(mx_st_writer *w, uint64_t max, mx_err *err) {
    w->n_shard = 1;
    shard *s = w->shard;
    for (size_t i = 0; i < w->n; i++) {
        if (s->n > 0 && max && (w->size[i] > max || s->bytes > max - w->size[i])) {
            s++;
            s->first = i;
            w->n_shard++;
        }
        s->n++;
        s->bytes += w->size[i];
    }
    for (size_t k = 0; k < w->n_shard; k++) {
        s = &w->shard[k];
        if (w->n_shard == 1)
            snprintf(s->name, sizeof s->name, "model.safetensors");
        else
            snprintf(s->name, sizeof s->name, "model-%05zu-of-%05zu.safetensors", k + 1, w->n_shard);
        if (!(s->path = mx_path_join(&w->arena, w->dir, s->name))) return no_memory(err, w->dir);
    }
    return MX_OK;
}

/* Better said now than after an hour of work; a file system that states no size is believed to have room. */
static mx_status check_room(const mx_st_writer *w, mx_err *err) {
    struct statvfs v;
    if (statvfs(w->dir, &v) < 0 || v.f_blocks == 0) return MX_OK;
    double room = (double)v.f_bavail * (double)v.f_frsize;
    if ((double)w->total <= room) return MX_OK;
    return mx_fail(err, MX_EIO, "%s: the disk is too full: %.2f GB are to be written, %.2f GB are free",
                   w->dir, (double)w->total / 1e9, room / 1e9);
}

static mx_status write_header(mx_st_writer *w, shard *s, mx_err *err) {
    mx_str h = {0};
    uint64_t at = 0;
    mx_str_add(&h, "\0\0\0\0\0\0\0\0", 8);
    mx_str_puts(&h, "{\"__metadata__\":{\"format\":\"mlx\"}"); // as mlx-lm marks its files
    for (size_t i = s->first; i < s->first + s->n; i++) {
        const mx_st_plan *p = &w->plan[i];
        mx_str_putc(&h, ',');
        mx_json_put_string(&h, p->name, strlen(p->name));
        mx_str_printf(&h, ":{\"dtype\":\"%s\",\"shape\":[", mx_st_dtype_name(p->dtype));
        for (int d = 0; d < p->n_dim; d++) mx_str_printf(&h, "%s%lld", d ? "," : "", (long long)p->shape[d]);
        mx_str_printf(&h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)(at + w->size[i]));
        at += w->size[i];
    }
    mx_str_putc(&h, '}');
    while (h.len % 8 && !h.oom) mx_str_putc(&h, ' '); // so that the data are aligned in a mapping
    mx_status st = h.oom ? no_memory(err, w->dir) : MX_OK;
    if (st == MX_OK) {
        uint64_t len = h.len - 8;
        memcpy(h.p, &len, 8);
        st = mx_outfile_write(&s->out, h.p, h.len, err);
    }
    mx_str_free(&h);
    return st;
}

static mx_status open_shard(mx_st_writer *w, size_t k, mx_err *err) {
    shard *s = &w->shard[k];
    MX_TRY(mx_outfile_open(&s->out, s->path, err));
    s->opened = true;
    w->cur = k;
    w->left = s->bytes;
    return write_header(w, s, err);
}

mx_status mx_st_writer_new(mx_st_writer **out, const char *dir, const mx_st_plan *plan, size_t n,
                           uint64_t max_shard, mx_err *err) {
    MX_TRY(mx_mkdirs(dir, err));
    mx_st_writer *w = calloc(1, sizeof *w);
    if (w) w->dir = mx_arena_strdup(&w->arena, dir);
    mx_status st = w && w->dir ? MX_OK : no_memory(err, dir);
    if (st == MX_OK) st = copy_plan(w, plan, n, err);
    if (st == MX_OK) st = lay_out(w, max_shard, err);
    if (st == MX_OK) st = check_room(w, err);
    if (st == MX_OK) st = open_shard(w, 0, err);
    if (st == MX_OK)
        *out = w;
    else
        mx_st_writer_free(w);
    return st;
}

mx_status mx_st_writer_put(mx_st_writer *w, const void *data, uint64_t n_bytes, mx_err *err) {
    const char *p = data;
    while (n_bytes > 0) {
        if (w->left == 0) {
            if (w->cur + 1 == w->n_shard)
                return mx_fail(err, MX_EINTERNAL, "%s: more bytes came than its tensors take", w->dir);
            MX_TRY(open_shard(w, w->cur + 1, err));
            continue; // a shard of empty tensors wants nothing
        }
        uint64_t now = n_bytes < w->left ? n_bytes : w->left;
        MX_TRY(mx_outfile_write(&w->shard[w->cur].out, p, (size_t)now, err));
        p += now;
        n_bytes -= now;
        w->left -= now;
    }
    return MX_OK;
}

typedef struct {
    const char *name, *file;
} place;

static int by_name(const void *a, const void *b) {
    return strcmp(((const place *)a)->name, ((const place *)b)->name);
}

/* model.safetensors.index.json with names sorted, as mlx-lm and transformers write it. */
static mx_status write_index(mx_st_writer *w, const char *path, mx_err *err) {
    mx_str s = {0};
    place *at = mx_arena_array(&w->arena, w->n, sizeof *at);
    if (!at) return no_memory(err, w->dir);
    for (size_t k = 0, i = 0; k < w->n_shard; k++) {
        for (size_t j = 0; j < w->shard[k].n; j++, i++)
            at[i] = (place){.name = w->plan[i].name, .file = w->shard[k].name};
    }
    qsort(at, w->n, sizeof *at, by_name);
    mx_str_printf(&s, "{\n    \"metadata\": {\n        \"total_size\": %llu\n    },\n    \"weight_map\": {",
                  (unsigned long long)w->total);
    for (size_t i = 0; i < w->n; i++) {
        mx_str_puts(&s, i ? ",\n        " : "\n        ");
        mx_json_put_string(&s, at[i].name, strlen(at[i].name));
        mx_str_printf(&s, ": \"%s\"", at[i].file);
    }
    mx_str_puts(&s, w->n ? "\n    }\n}\n" : "}\n}\n");
    mx_status st = s.oom ? no_memory(err, w->dir) : mx_file_write(path, s.p, s.len, err);
    mx_str_free(&s);
    return st;
}

mx_status mx_st_writer_finish(mx_st_writer *w, mx_err *err) {
    while (w->left == 0 && w->cur + 1 < w->n_shard)
        MX_TRY(open_shard(w, w->cur + 1, err)); // only empty tensors left
    if (w->left > 0)
        return mx_fail(err, MX_EINTERNAL, "%s: %llu bytes of its tensors were never written", w->dir,
                       (unsigned long long)w->left);
    char *index = mx_path_join(&w->arena, w->dir, "model.safetensors.index.json");
    mx_status st = index ? MX_OK : no_memory(err, w->dir);
    for (size_t k = 0; k < w->n_shard && st == MX_OK; k++) {
        shard *s = &w->shard[k];
        s->opened = false; // commit cleans up after itself
        st = mx_outfile_commit(&s->out, err);
        s->done = st == MX_OK;
    }
    if (st == MX_OK) st = write_index(w, index, err);
    if (st == MX_OK) {
        for (size_t k = 0; k < w->n_shard; k++) w->shard[k].done = false; // they stay
        w->n_shard = 0;
    }
    return st;
}

void mx_st_writer_free(mx_st_writer *w) {
    if (!w) return;
    for (size_t k = 0; k < w->n_shard; k++) {
        shard *s = &w->shard[k];
        if (s->opened) mx_outfile_abort(&s->out);
        if (s->done) unlink(s->path); // finish failed half-way
    }
    mx_arena_free(&w->arena);
    free(w);
}
