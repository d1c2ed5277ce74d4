/* safetensors.c - one safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes.
 *
 * The header is untrusted. Nothing that it says is believed before it is checked against the file's real size, and
 * nothing is allocated by a number out of it: all memory is proportional to the header's own bytes. The tensors must
 * tile the data exactly, as the reference implementation demands, so that no byte is hidden and none is shared. */
#include "format/safetensors_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the formats are little-endian and used in place");

enum { HEADER_MAX = 100000000 }; // the reference's bound

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
    [MX_ST_BOOL] = {"BOOL", 8},
    [MX_ST_U8] = {"U8", 8},
    [MX_ST_I8] = {"I8", 8},
    [MX_ST_U16] = {"U16", 16},
    [MX_ST_I16] = {"I16", 16},
    [MX_ST_U32] = {"U32", 32},
    [MX_ST_I32] = {"I32", 32},
    [MX_ST_U64] = {"U64", 64},
    [MX_ST_I64] = {"I64", 64},
    [MX_ST_F16] = {"F16", 16},
    [MX_ST_BF16] = {"BF16", 16},
    [MX_ST_F32] = {"F32", 32},
    [MX_ST_F64] = {"F64", 64},
    [MX_ST_F8_E4M3] = {"F8_E4M3", 8},
    [MX_ST_F8_E5M2] = {"F8_E5M2", 8},
    [MX_ST_F8_E8M0] = {"F8_E8M0", 8},
    [MX_ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [MX_ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [MX_ST_C64] = {"C64", 64},
    [MX_ST_F4] = {"F4", 4},
    [MX_ST_F6_E2M3] = {"F6_E2M3", 6},
    [MX_ST_F6_E3M2] = {"F6_E3M2", 6},
};

const char *mx_st_dtype_name(mx_st_dtype t) { return dtypes[t].name; }
int mx_st_dtype_bits(mx_st_dtype t) { return dtypes[t].bits; }

const char *mx_st_show(char buf[MX_ST_SHOWN], const char *name, size_t len) {
    size_t n = len < MX_ST_SHOWN - 4 ? len : MX_ST_SHOWN - 4;
    while (n < len && n > 0 && ((unsigned char)name[n] & 0xC0) == 0x80) n--; // cut before a character
    for (size_t i = 0; i < n; i++) buf[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7F ? '?' : name[i];
    memcpy(buf + n, "...", 4);
    if (n == len) buf[n] = 0;
    return buf;
}

const char *mx_st_describe(const mx_st_tensor *t, char *buf, size_t cap) {
    size_t n = 0;
    for (int i = 0; i < t->n_dim && n < cap; i++) {
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "[", (long long)t->shape[i]);
    }
    if (n < cap) snprintf(buf + n, cap - n, "%s] %s", t->n_dim ? "" : "[", dtypes[t->dtype].name);
    return buf;
}

/* ---- one file ------------------------------------------------------------------------------------------- */

/* The file whose header is being read. */
typedef struct {
    const char *name;  // base name
    const char *data;  // first byte after the header
    uint64_t data_len; // bytes from there to the end of the file
    mx_err *err;
} source;

static mx_status bad_tensor(const source *f, const mx_json *v, const char *what) {
    char shown[MX_ST_SHOWN];
    return mx_fail(f->err, MX_EINVAL, "%s: tensor %s: %s", f->name, mx_st_show(shown, v->key, v->key_len),
                   what);
}

static mx_status read_dtype(const source *f, mx_st_tensor *t, const mx_json *v) {
    const mx_json *d = mx_json_get(v, "dtype");
    if (!mx_json_is(d, MX_JSON_STRING)) return bad_tensor(f, v, "has no dtype");
    for (size_t i = 0; i < countof(dtypes); i++) {
        if (!mx_json_str_eq(d, dtypes[i].name)) continue;
        t->dtype = (mx_st_dtype)i;
        return MX_OK;
    }
    char shown[MX_ST_SHOWN], name[MX_ST_SHOWN];
    return mx_fail(f->err, MX_EINVAL, "%s: tensor %s: dtype %s is not one of the format", f->name,
                   mx_st_show(shown, v->key, v->key_len), mx_st_show(name, d->u.s.p, d->u.s.len));
}

/* The shape, and in *bits the size that it and the dtype ask for. */
static mx_status read_shape(const source *f, mx_st_tensor *t, const mx_json *v, uint64_t *bits) {
    const mx_json *shape = mx_json_get(v, "shape");
    if (!mx_json_is(shape, MX_JSON_ARRAY)) return bad_tensor(f, v, "has no shape");
    if (mx_json_count(shape) > MX_ST_MAX_DIM) return bad_tensor(f, v, "has more than 8 dimensions");
    *bits = (uint64_t)dtypes[t->dtype].bits;
    for (const mx_json *d = mx_json_first(shape); d; d = d->next) {
        if (d->type != MX_JSON_INT || d->u.i < 0)
            return bad_tensor(f, v, "its shape must hold integers from 0 up to 2^63 - 1");
        if (__builtin_mul_overflow(*bits, (uint64_t)d->u.i, bits))
            return bad_tensor(f, v, "the product of its shape is larger than any memory");
        t->shape[t->n_dim++] = d->u.i;
    }
    return MX_OK;
}

static mx_status read_span(const source *f, mx_st_tensor *t, const mx_json *v, uint64_t bits) {
    const mx_json *span = mx_json_get(v, "data_offsets");
    if (!mx_json_is(span, MX_JSON_ARRAY) || span->u.c.n != 2)
        return bad_tensor(f, v, "data_offsets must be two integers");
    const mx_json *b = span->u.c.first, *e = b->next;
    if (b->type != MX_JSON_INT || e->type != MX_JSON_INT || b->u.i < 0 || e->u.i < 0)
        return bad_tensor(f, v, "data_offsets must be two integers, none of them negative or beyond 2^63");
    uint64_t begin = (uint64_t)b->u.i, end = (uint64_t)e->u.i;
    char shown[MX_ST_SHOWN], what[64];
    mx_st_show(shown, v->key, v->key_len);
    if (begin > end) {
        return mx_fail(f->err, MX_EINVAL, "%s: tensor %s: begins at byte %llu, after its end at %llu",
                       f->name, shown, (unsigned long long)begin, (unsigned long long)end);
    }
    if (end > f->data_len) {
        return mx_fail(
            f->err, MX_EINVAL,
            "%s: tensor %s: ends at byte %llu of the data, but the file holds %llu (is the download "
            "complete?)",
            f->name, shown, (unsigned long long)end, (unsigned long long)f->data_len);
    }
    if (bits % 8 || bits / 8 != end - begin) {
        return mx_fail(f->err, MX_EINVAL, "%s: tensor %s: %s needs %llu bytes, but its span has %llu",
                       f->name, shown, mx_st_describe(t, what, sizeof what),
                       (unsigned long long)(bits / 8 + (bits % 8 != 0)), (unsigned long long)(end - begin));
    }
    t->data = f->data + begin;
    t->n_bytes = end - begin;
    return MX_OK;
}

static mx_status read_metadata(mx_st *s, const source *f, const mx_json *v) {
    if (v->type != MX_JSON_OBJECT)
        return mx_fail(f->err, MX_EINVAL, "%s: __metadata__ is no object", f->name);
    bool keep = s->n_file == 1 && !s->meta;
    if (keep && !(s->meta = mx_arena_array(&s->arena, v->u.c.n, sizeof *s->meta)))
        return mx_fail(f->err, MX_ENOMEM, "%s: no memory for its metadata", f->name);
    for (const mx_json *it = v->u.c.first; it; it = it->next) {
        if (it->type != MX_JSON_STRING) {
            char shown[MX_ST_SHOWN];
            return mx_fail(f->err, MX_EINVAL, "%s: __metadata__.%s must be a string", f->name,
                           mx_st_show(shown, it->key, it->key_len));
        }
        if (!keep) continue;
        mx_st_meta *m = &s->meta[s->n_meta++];
        m->key = mx_arena_strndup(&s->arena, it->key, it->key_len);
        m->value = mx_arena_strndup(&s->arena, it->u.s.p, it->u.s.len);
        if (!m->key || !m->value)
            return mx_fail(f->err, MX_ENOMEM, "%s: no memory for its metadata", f->name);
    }
    return MX_OK;
}

static int by_offset(const void *va, const void *vb) {
    const mx_st_tensor *a = va, *b = vb;
    if (a->data != b->data) return (uintptr_t)a->data < (uintptr_t)b->data ? -1 : 1;
    return a->n_bytes < b->n_bytes ? -1
                                   : a->n_bytes > b->n_bytes; // an empty tensor comes before its neighbour
}

/* Tensors t[0..n), sorted by offset, must tile the data: no overlap, no hole, nothing after the last. */
static mx_status check_tiling(const source *f, const mx_st_tensor *t, size_t n) {
    uint64_t at = 0;
    char a[MX_ST_SHOWN], b[MX_ST_SHOWN];
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)((const char *)t[i].data - f->data);
        if (begin < at) {
            return mx_fail(f->err, MX_EINVAL,
                           "%s: tensors %s and %s overlap: the second begins at byte %llu, before %llu",
                           f->name, mx_st_show(a, t[i - 1].name, strlen(t[i - 1].name)),
                           mx_st_show(b, t[i].name, strlen(t[i].name)), (unsigned long long)begin,
                           (unsigned long long)at);
        }
        if (begin > at) {
            return mx_fail(f->err, MX_EINVAL, "%s: bytes %llu to %llu before tensor %s belong to no tensor",
                           f->name, (unsigned long long)at, (unsigned long long)begin,
                           mx_st_show(b, t[i].name, strlen(t[i].name)));
        }
        at = begin + t[i].n_bytes;
    }
    if (at != f->data_len) {
        return mx_fail(f->err, MX_EINVAL,
                       "%s: the tensors end at byte %llu of the data, but the file holds %llu", f->name,
                       (unsigned long long)at, (unsigned long long)f->data_len);
    }
    return MX_OK;
}

static mx_status read_tensors(mx_st *s, const source *f, const mx_json *root) {
    if (root->u.c.n > UINT32_MAX / 4 - s->n)
        return mx_fail(f->err, MX_ELIMIT, "%s: too many tensors", f->name);
    size_t need = s->n + root->u.c.n + 1, first = s->n; // one more, so that t is never NULL
    if (need > s->cap) {
        mx_st_tensor *grown = realloc(s->t, need * sizeof *grown);
        if (!grown) return mx_fail(f->err, MX_ENOMEM, "%s: no memory for %zu tensor names", f->name, need);
        s->t = grown;
        s->cap = need;
    }
    bool seen_meta = false;
    for (const mx_json *v = root->u.c.first; v; v = v->next) {
        if (v->key_len == 12 && !memcmp(v->key, "__metadata__", 12)) {
            if (seen_meta) return mx_fail(f->err, MX_EINVAL, "%s: __metadata__ occurs twice", f->name);
            seen_meta = true;
            MX_TRY(read_metadata(s, f, v));
            continue;
        }
        mx_st_tensor t = {.file = f->name};
        uint64_t bits = 0;
        if (v->type != MX_JSON_OBJECT) return bad_tensor(f, v, "is not described by an object");
        if (memchr(v->key, 0, v->key_len)) return bad_tensor(f, v, "its name holds a NUL character");
        MX_TRY(read_dtype(f, &t, v));
        MX_TRY(read_shape(f, &t, v, &bits));
        MX_TRY(read_span(f, &t, v, bits));
        t.name = mx_arena_strndup(&s->arena, v->key, v->key_len);
        if (!t.name) return mx_fail(f->err, MX_ENOMEM, "%s: no memory for the tensor names", f->name);
        s->t[s->n++] = t;
        s->total += t.n_bytes;
    }
    if (s->n > first) qsort(s->t + first, s->n - first, sizeof *s->t, by_offset);
    return check_tiling(f, s->t + first, s->n - first);
}

/* What else people have under this name; NULL if it may be a safetensors file. */
static const char *other_kind(const mx_map *m) {
    static const char lfs[] = "version https://git-lfs";
    if (m->len >= sizeof lfs - 1 && !memcmp(m->p, lfs, sizeof lfs - 1))
        return "is a Git LFS pointer, not the weights; fetch them with `git lfs pull` or `mlxcel pull`";
    if (m->len >= 4 && !memcmp(m->p, "GGUF", 4)) return "is a GGUF file; `mlxcel convert` reads those";
    if (m->len >= 2 && !memcmp(m->p, "PK", 2))
        return "is a zip archive (a PyTorch checkpoint?), not safetensors";
    if (m->len < 8) return "is shorter than the 8 bytes every safetensors file starts with";
    return NULL;
}

mx_status mx_st_add_file(mx_st *s, const char *path, mx_err *err) {
    mx_st_file *file = &s->file[s->n_file];
    source f = {.err = err};
    MX_TRY(mx_map_open(&file->map, path, err));
    s->n_file++; // from here on mx_st_free unmaps it
    const mx_map *m = &file->map;
    f.name = file->name = mx_arena_strdup(&s->arena, mx_path_base(path));
    if (!file->name) return mx_fail(err, MX_ENOMEM, "%s: no memory for its name", path);
    if (other_kind(m)) return mx_fail(err, MX_EINVAL, "%s: %s", f.name, other_kind(m));

    uint64_t len;
    memcpy(&len, m->p, 8);
    if (len > HEADER_MAX) {
        return mx_fail(err, MX_EINVAL,
                       "%s: claims a header of %llu bytes; the format allows 100 MB, so this is no "
                       "safetensors file or a damaged one",
                       f.name, (unsigned long long)len);
    }
    if (len > m->len - 8) {
        return mx_fail(err, MX_EINVAL,
                       "%s: its header of %llu bytes ends after the file's %zu (is the download complete?)",
                       f.name, (unsigned long long)len, m->len);
    }
    if (len < 2 || m->p[8] != '{') return mx_fail(err, MX_EINVAL, "%s: its header is no JSON object", f.name);
    f.data = m->p + 8 + len;
    f.data_len = m->len - 8 - len;

    /* The densest honest header (short names, 8 dimensions) takes 12 bytes of tree for a byte of text. */
    mx_arena tree = {.limit = (size_t)len * 16 + (1u << 20)};
    mx_json *root = NULL;
    mx_status st = mx_json_parse(&root, &tree, m->p + 8, (size_t)len, err);
    if (st != MX_OK) mx_err_prefix(err, st, "%s: header", f.name);
    if (st == MX_OK && root->type != MX_JSON_OBJECT)
        st = mx_fail(err, MX_EINVAL, "%s: its header is no JSON object", f.name);
    if (st == MX_OK) st = read_tensors(s, &f, root);
    mx_arena_free(&tree);
    return st;
}

/* ---- the set ---------------------------------------------------------------------------------------------- */

mx_status mx_st_new(mx_st **out, size_t n_file, mx_err *err) {
    mx_st *s = calloc(1, sizeof *s);
    if (s) s->file = calloc(n_file ? n_file : 1, sizeof *s->file);
    if (!s || !s->file) {
        mx_st_free(s);
        return mx_fail(err, MX_ENOMEM, "no memory for a list of %zu weight files", n_file);
    }
    if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) != sizeof s->seed)
        s->seed =
            (uint64_t)(uintptr_t)s * 0x9E3779B97F4A7C15u; // early boot: the address space layout will do
    *out = s;
    return MX_OK;
}

void mx_st_free(mx_st *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n_file; i++) mx_map_close(&s->file[i].map);
    free(s->file);
    free(s->t);
    free(s->slot);
    mx_arena_free(&s->arena);
    free(s);
}

/* A multiply-and-fold hash over 8 bytes a step; the seed enters every product. */
static uint64_t hash_name(uint64_t seed, const char *p, size_t len) {
    uint64_t h = seed ^ len, w;
    for (;; p += 8, len -= 8) {
        w = 0;
        memcpy(&w, p, len < 8 ? len : 8);
        unsigned __int128 x = (unsigned __int128)(h ^ w ^ 0x9E3779B97F4A7C15u) * (seed | 1);
        h = (uint64_t)x ^ (uint64_t)(x >> 64);
        if (len <= 8) return h ^ h >> 29;
    }
}

/* The slot that holds name, or the free one where it would go. */
static uint32_t *slot_of(const mx_st *s, const char *name) {
    size_t i = hash_name(s->seed, name, strlen(name)) & (s->n_slot - 1);
    while (s->slot[i] && strcmp(s->t[s->slot[i] - 1].name, name)) i = (i + 1) & (s->n_slot - 1);
    return &s->slot[i];
}

mx_status mx_st_index_names(mx_st *s, mx_err *err) {
    s->n_slot = 16;
    while (s->n_slot < s->n * 2) s->n_slot *= 2;
    s->slot = calloc(s->n_slot, sizeof *s->slot);
    if (!s->slot) return mx_fail(err, MX_ENOMEM, "no memory for an index of %zu tensors", s->n);
    for (size_t i = 0; i < s->n; i++) {
        uint32_t *at = slot_of(s, s->t[i].name);
        if (*at) {
            char shown[MX_ST_SHOWN];
            const char *a = s->t[*at - 1].file, *b = s->t[i].file;
            mx_st_show(shown, s->t[i].name, strlen(s->t[i].name));
            if (a == b) return mx_fail(err, MX_EINVAL, "%s: tensor %s occurs twice", a, shown);
            return mx_fail(
                err, MX_EINVAL,
                "tensor %s is in both %s and %s; remove the file that does not belong to this model", shown,
                a, b);
        }
        *at = (uint32_t)i + 1;
    }
    return MX_OK;
}

mx_status mx_st_open_file(mx_st **out, const char *path, mx_err *err) {
    mx_st *s = NULL;
    MX_TRY(mx_st_new(&s, 1, err));
    mx_status st = mx_st_add_file(s, path, err);
    if (st == MX_OK) st = mx_st_index_names(s, err);
    if (st == MX_OK)
        *out = s;
    else
        mx_st_free(s);
    return st;
}

size_t mx_st_count(const mx_st *s) { return s->n; }
mx_st_tensor *mx_st_at(mx_st *s, size_t i) { return &s->t[i]; }
uint64_t mx_st_total_bytes(const mx_st *s) { return s->total; }

mx_st_tensor *mx_st_find(mx_st *s, const char *name) {
    uint32_t at = *slot_of(s, name);
    return at ? &s->t[at - 1] : NULL;
}

const char *mx_st_metadata(const mx_st *s, const char *key) {
    for (size_t i = s->n_meta; i-- > 0;) { // of a repeated key the last one counts, as in any JSON object
        if (!strcmp(s->meta[i].key, key)) return s->meta[i].value;
    }
    return NULL;
}
