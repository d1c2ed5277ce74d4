/* gguf.c - reading and checking a GGUF file: magic, version, counts, key/value pairs, tensor infos, padding, data. */
#include "format/gguf.h"
#include "base/arena.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KV = 1 << 16,     // real files have some tens
    MAX_TENSOR = 1 << 18, // the largest models have some thousands
    MAX_NAME = 65535,     // the format's bound for a key
    SHOWN = 100,
};

struct mx_gguf {
    mx_map map;
    mx_arena arena; // names
    mx_gguf_kv *kv;
    mx_gguf_tensor *t;
    const mx_gguf_kv **kv_sorted;    // by key
    const mx_gguf_tensor **t_sorted; // by name
    size_t n_kv, n_t;
};

static const struct {
    const char *name;
    short block, bytes; // 0: no longer part of ggml
} types[MX_GGML_COUNT] = {
    [MX_GGML_F32] = {"F32", 1, 4},
    [MX_GGML_F16] = {"F16", 1, 2},
    [MX_GGML_Q4_0] = {"Q4_0", 32, 18},
    [MX_GGML_Q4_1] = {"Q4_1", 32, 20},
    [4] = {"Q4_2", 0, 0},
    [5] = {"Q4_3", 0, 0},
    [MX_GGML_Q5_0] = {"Q5_0", 32, 22},
    [MX_GGML_Q5_1] = {"Q5_1", 32, 24},
    [MX_GGML_Q8_0] = {"Q8_0", 32, 34},
    [MX_GGML_Q8_1] = {"Q8_1", 32, 36},
    [MX_GGML_Q2_K] = {"Q2_K", 256, 84},
    [MX_GGML_Q3_K] = {"Q3_K", 256, 110},
    [MX_GGML_Q4_K] = {"Q4_K", 256, 144},
    [MX_GGML_Q5_K] = {"Q5_K", 256, 176},
    [MX_GGML_Q6_K] = {"Q6_K", 256, 210},
    [MX_GGML_Q8_K] = {"Q8_K", 256, 292},
    [MX_GGML_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [MX_GGML_IQ2_XS] = {"IQ2_XS", 256, 74},
    [MX_GGML_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [MX_GGML_IQ1_S] = {"IQ1_S", 256, 50},
    [MX_GGML_IQ4_NL] = {"IQ4_NL", 32, 18},
    [MX_GGML_IQ3_S] = {"IQ3_S", 256, 110},
    [MX_GGML_IQ2_S] = {"IQ2_S", 256, 82},
    [MX_GGML_IQ4_XS] = {"IQ4_XS", 256, 136},
    [MX_GGML_I8] = {"I8", 1, 1},
    [MX_GGML_I16] = {"I16", 1, 2},
    [MX_GGML_I32] = {"I32", 1, 4},
    [MX_GGML_I64] = {"I64", 1, 8},
    [MX_GGML_F64] = {"F64", 1, 8},
    [MX_GGML_IQ1_M] = {"IQ1_M", 256, 56},
    [MX_GGML_BF16] = {"BF16", 1, 2},
    [31] = {"Q4_0_4_4", 0, 0},
    [32] = {"Q4_0_4_8", 0, 0},
    [33] = {"Q4_0_8_8", 0, 0},
    [MX_GGML_TQ1_0] = {"TQ1_0", 256, 54},
    [MX_GGML_TQ2_0] = {"TQ2_0", 256, 66},
    [36] = {"IQ4_NL_4_4", 0, 0},
    [37] = {"IQ4_NL_4_8", 0, 0},
    [38] = {"IQ4_NL_8_8", 0, 0},
    [MX_GGML_MXFP4] = {"MXFP4", 32, 17},
    [MX_GGML_NVFP4] = {"NVFP4", 64, 36},
    [MX_GGML_Q1_0] = {"Q1_0", 128, 18},
};

const char *mx_ggml_name(uint32_t type) { return type < MX_GGML_COUNT ? types[type].name : "unknown"; }
int mx_ggml_block(uint32_t type) { return type < MX_GGML_COUNT ? types[type].block : 0; }
int mx_ggml_bytes(uint32_t type) { return type < MX_GGML_COUNT ? types[type].bytes : 0; }

/* ---- reading ---------------------------------------------------------------------------------------------- */

typedef struct {
    mx_gguf *g;
    const char *file; // base name
    const char *p, *end;
    mx_err *err;
} reader;

static size_t left(const reader *r) { return (size_t)(r->end - r->p); }

static mx_status cut_off(const reader *r, const char *what) {
    return mx_fail(r->err, MX_EINVAL, "%s: the file ends inside %s (is the download complete?)", r->file,
                   what);
}

static mx_status no_memory(const reader *r) {
    return mx_fail(r->err, MX_ENOMEM, "%s: no memory for its index", r->file);
}

static uint64_t get(const char *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static mx_status read_int(reader *r, void *out, size_t n, const char *what) {
    if (left(r) < n) return cut_off(r, what);
    memcpy(out, r->p, n);
    r->p += n;
    return MX_OK;
}

/* A name of the file, fit for a message. */
static const char *show(char buf[SHOWN], const char *name) {
    size_t n = 0;
    for (; name[n] && n < SHOWN - 4; n++)
        buf[n] = (unsigned char)name[n] < 0x20 || name[n] == 0x7F ? '?' : name[n];
    strcpy(buf + n, name[n] ? "..." : "");
    return buf;
}

static mx_status read_name(reader *r, const char **out, const char *what) {
    uint64_t len = 0;
    MX_TRY(read_int(r, &len, 8, what));
    if (len > left(r)) return cut_off(r, what);
    if (len > MAX_NAME || memchr(r->p, 0, (size_t)len))
        return mx_fail(r->err, MX_EINVAL, "%s: the name of %s is longer than 65535 bytes or holds a NUL",
                       r->file, what);
    *out = mx_arena_strndup(&r->g->arena, r->p, (size_t)len);
    if (!*out) return no_memory(r);
    r->p += len;
    return MX_OK;
}

static size_t value_size(uint32_t type) { // 0: a string or an array
    static const unsigned char size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return size[type];
}

static mx_status read_value(reader *r, mx_gguf_kv *kv) {
    char key[SHOWN];
    uint32_t type = 0, item;
    MX_TRY(read_int(r, &type, 4, "a metadata type"));
    item = type;
    kv->n = 1;
    if (type == MX_GGUF_ARRAY) {
        MX_TRY(read_int(r, &item, 4, "a metadata type"));
        MX_TRY(read_int(r, &kv->n, 8, "the length of a metadata array"));
        if (item == MX_GGUF_ARRAY)
            return mx_fail(r->err, MX_UNSUPPORTED, "%s: %s is an array of arrays, which no model needs",
                           r->file, show(key, kv->key));
    }
    if (type > MX_GGUF_F64 || item > MX_GGUF_F64)
        return mx_fail(r->err, MX_EINVAL, "%s: %s has the unknown type %u", r->file, show(key, kv->key),
                       type > MX_GGUF_F64 ? type : item);
    kv->type = (mx_gguf_value)type;
    kv->item = (mx_gguf_value)item;
    kv->raw = r->p;
    size_t size = value_size(item), least = size ? size : 8;
    if (kv->n > left(r) / least) {
        return mx_fail(r->err, MX_EINVAL, "%s: %s claims %llu items, but only %zu bytes follow", r->file,
                       show(key, kv->key), (unsigned long long)kv->n, left(r));
    }
    if (size) {
        r->p += size * (size_t)kv->n;
        return MX_OK;
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        uint64_t len = 0;
        MX_TRY(read_int(r, &len, 8, "a metadata string"));
        if (len > left(r)) {
            return mx_fail(r->err, MX_EINVAL, "%s: a string in %s claims %llu bytes, but only %zu follow",
                           r->file, show(key, kv->key), (unsigned long long)len, left(r));
        }
        r->p += len;
    }
    return MX_OK;
}

/* Room for one more of *n items of size bytes each: doubles, so the claimed count never sizes anything. */
static bool grow(void **items, size_t n, size_t size) {
    if (n && (n & (n - 1))) return true; // room is a power of two
    void *more = realloc(*items, (n ? n * 2 : 1) * size);
    if (!more) return false;
    *items = more;
    return true;
}

static mx_status read_metadata(reader *r, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (!grow((void **)&r->g->kv, r->g->n_kv, sizeof *r->g->kv)) return no_memory(r);
        mx_gguf_kv kv = {0};
        MX_TRY(read_name(r, &kv.key, "a metadata key"));
        MX_TRY(read_value(r, &kv));
        r->g->kv[r->g->n_kv++] = kv;
    }
    return MX_OK;
}

/* Shape, type and offset; the offset stays in data until the start of the data is known. */
static mx_status read_tensor(reader *r, mx_gguf_tensor *t, uint64_t *offset) {
    char name[SHOWN];
    uint32_t n_dim = 0, type = 0;
    MX_TRY(read_name(r, &t->name, "a tensor"));
    show(name, t->name);
    MX_TRY(read_int(r, &n_dim, 4, "a tensor's shape"));
    if (n_dim < 1 || n_dim > MX_GGUF_MAX_DIM)
        return mx_fail(r->err, MX_EINVAL, "%s: tensor %s has %u dimensions; 1 to 4 are allowed", r->file,
                       name, n_dim);
    t->n_dim = (int)n_dim;
    t->n_value = 1;
    for (uint32_t i = 0; i < n_dim; i++) {
        MX_TRY(read_int(r, &t->shape[i], 8, "a tensor's shape"));
        if (t->shape[i] < 1 || __builtin_mul_overflow(t->n_value, t->shape[i], &t->n_value))
            return mx_fail(r->err, MX_EINVAL,
                           "%s: tensor %s: dimension %u is %llu, which is no possible size", r->file, name, i,
                           (unsigned long long)t->shape[i]);
    }
    MX_TRY(read_int(r, &type, 4, "a tensor's type"));
    MX_TRY(read_int(r, offset, 8, "a tensor's offset"));
    int block = mx_ggml_block(type), bytes = mx_ggml_bytes(type);
    if (!block) {
        return mx_fail(r->err, MX_UNSUPPORTED, "%s: tensor %s is stored as type %u (%s), which %s", r->file,
                       name, type, mx_ggml_name(type),
                       type < MX_GGML_COUNT ? "ggml has dropped; get a newer file"
                                            : "this version does not know");
    }
    if (t->shape[0] % block)
        return mx_fail(r->err, MX_EINVAL,
                       "%s: tensor %s: rows of %lld values cannot be %s, which has blocks of %d", r->file,
                       name, (long long)t->shape[0], mx_ggml_name(type), block);
    if (__builtin_mul_overflow((uint64_t)(t->n_value / block), (uint64_t)bytes, &t->n_bytes))
        return mx_fail(r->err, MX_EINVAL, "%s: tensor %s is larger than any memory", r->file, name);
    t->type = (mx_ggml_type)type;
    return MX_OK;
}

static mx_status read_alignment(reader *r, uint64_t *align) {
    *align = 32;
    for (size_t i = 0; i < r->g->n_kv; i++) {
        const mx_gguf_kv *kv = &r->g->kv[i];
        if (strcmp(kv->key, "general.alignment")) continue;
        *align = kv->type == MX_GGUF_U32 ? get(kv->raw, 4) : 0;
        if (*align == 0 || (*align & (*align - 1)))
            return mx_fail(r->err, MX_EINVAL, "%s: general.alignment must be a power of two (u32)", r->file);
    }
    return MX_OK;
}

static mx_status place_tensors(reader *r, const uint64_t *offset, uint64_t align) {
    mx_gguf *g = r->g;
    uint64_t at = (uint64_t)(r->p - g->map.p), start = (at + align - 1) & ~(align - 1);
    uint64_t room = start < g->map.len ? g->map.len - start : 0;
    for (size_t i = 0; i < g->n_t; i++) {
        char name[SHOWN];
        mx_gguf_tensor *t = &g->t[i];
        if (offset[i] % align)
            return mx_fail(r->err, MX_EINVAL, "%s: tensor %s starts at byte %llu, not at a multiple of %llu",
                           r->file, show(name, t->name), (unsigned long long)offset[i],
                           (unsigned long long)align);
        if (offset[i] > room || t->n_bytes > room - offset[i]) {
            return mx_fail(
                r->err, MX_EINVAL,
                "%s: tensor %s needs %llu bytes from %llu on, but the data have %llu (is the download "
                "complete?)",
                r->file, show(name, t->name), (unsigned long long)t->n_bytes, (unsigned long long)offset[i],
                (unsigned long long)room);
        }
        t->data = g->map.p + start + offset[i];
    }
    return MX_OK;
}

/* ---- indexes ------------------------------------------------------------------------------------------------ */

static int by_key(const void *a, const void *b) {
    return strcmp((*(const mx_gguf_kv *const *)a)->key, (*(const mx_gguf_kv *const *)b)->key);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const mx_gguf_tensor *const *)a)->name, (*(const mx_gguf_tensor *const *)b)->name);
}

static int by_place(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)(*(const mx_gguf_tensor *const *)a)->data;
    uintptr_t y = (uintptr_t)(*(const mx_gguf_tensor *const *)b)->data;
    return x < y ? -1 : x > y;
}

static mx_status index_all(reader *r) {
    mx_gguf *g = r->g;
    char a[SHOWN], b[SHOWN];
    g->kv_sorted = malloc((g->n_kv + 1) * sizeof *g->kv_sorted);
    g->t_sorted = malloc((g->n_t + 1) * sizeof *g->t_sorted);
    if (!g->kv_sorted || !g->t_sorted) return no_memory(r);
    for (size_t i = 0; i < g->n_kv; i++) g->kv_sorted[i] = &g->kv[i];
    for (size_t i = 0; i < g->n_t; i++) g->t_sorted[i] = &g->t[i];
    qsort(g->kv_sorted, g->n_kv, sizeof *g->kv_sorted, by_key);
    for (size_t i = 1; i < g->n_kv; i++) {
        if (!by_key(&g->kv_sorted[i - 1], &g->kv_sorted[i]))
            return mx_fail(r->err, MX_EINVAL, "%s: the key %s occurs twice", r->file,
                           show(a, g->kv_sorted[i]->key));
    }
    qsort(g->t_sorted, g->n_t, sizeof *g->t_sorted, by_place);
    for (size_t i = 1; i < g->n_t; i++) {
        const mx_gguf_tensor *x = g->t_sorted[i - 1], *y = g->t_sorted[i];
        if ((const char *)x->data + x->n_bytes > (const char *)y->data)
            return mx_fail(r->err, MX_EINVAL, "%s: tensors %s and %s overlap", r->file, show(a, x->name),
                           show(b, y->name));
    }
    qsort(g->t_sorted, g->n_t, sizeof *g->t_sorted, by_name);
    for (size_t i = 1; i < g->n_t; i++) {
        if (!by_name(&g->t_sorted[i - 1], &g->t_sorted[i]))
            return mx_fail(r->err, MX_EINVAL, "%s: tensor %s occurs twice", r->file,
                           show(a, g->t_sorted[i]->name));
    }
    return MX_OK;
}

/* ---- open --------------------------------------------------------------------------------------------------- */

static mx_status read_version(reader *r) {
    char magic[4];
    uint32_t version = 0;
    if (left(r) < 4 || memcmp(r->p, "GGUF", 4))
        return mx_fail(r->err, MX_EINVAL, "%s: is not a GGUF file", r->file);
    MX_TRY(read_int(r, magic, 4, "its first bytes"));
    MX_TRY(read_int(r, &version, 4, "its version"));
    if (version == 2 || version == 3) return MX_OK;
    if (version && !(version & 0xFFFF))
        return mx_fail(r->err, MX_UNSUPPORTED,
                       "%s: is a big-endian GGUF file; only little-endian ones are read", r->file);
    return mx_fail(r->err, MX_UNSUPPORTED, "%s: is GGUF version %u; versions 2 and 3 are read", r->file,
                   version);
}

static mx_status read_counts(reader *r, uint64_t *n_t, uint64_t *n_kv) {
    MX_TRY(read_int(r, n_t, 8, "its counts"));
    MX_TRY(read_int(r, n_kv, 8, "its counts"));
    /* the least that a pair (13 bytes) and a tensor info (32) take */
    if (*n_kv <= left(r) / 13 && *n_t <= left(r) / 32 && *n_kv <= MAX_KV && *n_t <= MAX_TENSOR) return MX_OK;
    return mx_fail(r->err, MX_EINVAL, "%s: claims %llu metadata keys and %llu tensors, more than %s", r->file,
                   (unsigned long long)*n_kv, (unsigned long long)*n_t,
                   *n_kv > MAX_KV || *n_t > MAX_TENSOR ? "any model has" : "the file has room for");
}

static mx_status read_all(reader *r) {
    mx_gguf *g = r->g;
    uint64_t n_t = 0, n_kv = 0, align = 0;
    MX_TRY(read_version(r));
    MX_TRY(read_counts(r, &n_t, &n_kv));
    MX_TRY(read_metadata(r, n_kv));
    MX_TRY(read_alignment(r, &align));
    uint64_t *offset =
        calloc((size_t)n_t + 1, sizeof *offset); // at most MAX_TENSOR, and the file has room for them
    if (!offset) return no_memory(r);
    mx_status st = MX_OK;
    for (uint64_t i = 0; i < n_t && st == MX_OK; i++) {
        mx_gguf_tensor t = {0};
        if (!grow((void **)&g->t, g->n_t, sizeof *g->t))
            st = no_memory(r);
        else
            st = read_tensor(r, &t, &offset[i]);
        if (st == MX_OK) g->t[g->n_t++] = t;
    }
    if (st == MX_OK) st = place_tensors(r, offset, align);
    free(offset);
    MX_TRY(st);
    MX_TRY(index_all(r));
    int64_t parts = mx_gguf_int(g, "split.count", 1, NULL);
    if (parts > 1)
        return mx_fail(r->err, MX_UNSUPPORTED,
                       "%s: is one of %lld parts; join them first with `llama-gguf-split --merge`", r->file,
                       (long long)parts);
    return MX_OK;
}

mx_status mx_gguf_open(mx_gguf **out, const char *path, mx_err *err) {
    mx_gguf *g = calloc(1, sizeof *g);
    if (!g) return mx_fail(err, MX_ENOMEM, "%s: no memory for its index", path);
    mx_status st = mx_map_open(&g->map, path, err);
    if (st == MX_OK) {
        const char *p = g->map.p ? g->map.p : "";
        reader r = {.g = g, .file = mx_path_base(path), .p = p, .end = p + g->map.len, .err = err};
        st = read_all(&r);
    }
    if (st == MX_OK)
        *out = g;
    else
        mx_gguf_free(g);
    return st;
}

void mx_gguf_free(mx_gguf *g) {
    if (!g) return;
    mx_map_close(&g->map);
    mx_arena_free(&g->arena);
    free(g->kv);
    free(g->t);
    free(g->kv_sorted);
    free(g->t_sorted);
    free(g);
}

/* ---- access ------------------------------------------------------------------------------------------------- */

size_t mx_gguf_n_kv(const mx_gguf *g) { return g->n_kv; }
const mx_gguf_kv *mx_gguf_kv_at(const mx_gguf *g, size_t i) { return &g->kv[i]; }
size_t mx_gguf_n_tensor(const mx_gguf *g) { return g->n_t; }
const mx_gguf_tensor *mx_gguf_tensor_at(const mx_gguf *g, size_t i) { return &g->t[i]; }

const mx_gguf_kv *mx_gguf_get(const mx_gguf *g, const char *key) {
    const mx_gguf_kv want = {.key = key}, *p = &want;
    const mx_gguf_kv **at = bsearch(&p, g->kv_sorted, g->n_kv, sizeof *g->kv_sorted, by_key);
    return at ? *at : NULL;
}

const mx_gguf_tensor *mx_gguf_find(const mx_gguf *g, const char *name) {
    const mx_gguf_tensor want = {.name = name}, *p = &want;
    const mx_gguf_tensor **at = bsearch(&p, g->t_sorted, g->n_t, sizeof *g->t_sorted, by_name);
    return at ? *at : NULL;
}

bool mx_gguf_is_int(const mx_gguf_kv *kv) {
    return kv && value_size(kv->item) && kv->item != MX_GGUF_F32 && kv->item != MX_GGUF_F64;
}

bool mx_gguf_is_num(const mx_gguf_kv *kv) { return kv && value_size(kv->item); }

int64_t mx_gguf_int_at(const mx_gguf_kv *kv, uint64_t i) {
    size_t size = value_size(kv->item);
    uint64_t v = get(kv->raw + i * size, size);
    switch (kv->item) {
    case MX_GGUF_I8: return (int8_t)v;
    case MX_GGUF_I16: return (int16_t)v;
    case MX_GGUF_I32: return (int32_t)v;
    case MX_GGUF_I64: return (int64_t)v;
    case MX_GGUF_BOOL: return v != 0;
    default: return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
}

double mx_gguf_num_at(const mx_gguf_kv *kv, uint64_t i) {
    float f;
    double d;
    if (kv->item == MX_GGUF_F32) {
        memcpy(&f, kv->raw + i * 4, 4);
        return f;
    }
    if (kv->item == MX_GGUF_F64) {
        memcpy(&d, kv->raw + i * 8, 8);
        return d;
    }
    return (double)mx_gguf_int_at(kv, i);
}

/* The scalar under key if it passes ok; else NULL, and bad is set if another value is there. */
static const mx_gguf_kv *scalar(const mx_gguf *g, const char *key, bool (*ok)(const mx_gguf_kv *),
                                const char **bad) {
    const mx_gguf_kv *kv = mx_gguf_get(g, key);
    if (!kv) return NULL;
    if (kv->type != MX_GGUF_ARRAY && ok(kv)) return kv;
    if (bad && !*bad) *bad = key;
    return NULL;
}

static bool is_bool(const mx_gguf_kv *kv) { return kv->item == MX_GGUF_BOOL; }
static bool is_string(const mx_gguf_kv *kv) { return kv->item == MX_GGUF_STRING; }

int64_t mx_gguf_int(const mx_gguf *g, const char *key, int64_t dflt, const char **bad) {
    const mx_gguf_kv *kv = scalar(g, key, mx_gguf_is_int, bad);
    return kv ? mx_gguf_int_at(kv, 0) : dflt;
}

double mx_gguf_num(const mx_gguf *g, const char *key, double dflt, const char **bad) {
    const mx_gguf_kv *kv = scalar(g, key, mx_gguf_is_num, bad);
    return kv ? mx_gguf_num_at(kv, 0) : dflt;
}

bool mx_gguf_bool(const mx_gguf *g, const char *key, bool dflt, const char **bad) {
    const mx_gguf_kv *kv = scalar(g, key, is_bool, bad);
    return kv ? kv->raw[0] != 0 : dflt;
}

const char *mx_gguf_str(const mx_gguf *g, const char *key, size_t *len, const char **bad) {
    const mx_gguf_kv *kv = scalar(g, key, is_string, bad);
    *len = kv ? (size_t)get(kv->raw, 8) : 0;
    return kv ? kv->raw + 8 : NULL;
}

mx_gguf_iter mx_gguf_strings(const mx_gguf_kv *kv) {
    if (!kv || kv->item != MX_GGUF_STRING) return (mx_gguf_iter){0};
    return (mx_gguf_iter){.at = kv->raw, .left = kv->n, .i = UINT64_MAX};
}

bool mx_gguf_next(mx_gguf_iter *it) {
    if (it->left == 0) return false;
    it->left--;
    it->i++;
    it->len = (size_t)get(it->at, 8);
    it->p = it->at + 8;
    it->at = it->p + it->len;
    return true;
}

const char *mx_gguf_summary(const mx_gguf *g, char *buf, size_t cap) {
    size_t count[MX_GGML_COUNT] = {0}, len;
    const char *arch = mx_gguf_str(g, "general.architecture", &len, NULL);
    for (size_t i = 0; i < g->n_t; i++) count[g->t[i].type]++;
    size_t n = (size_t)snprintf(buf, cap, "%.*s, %zu tensors", arch ? (int)(len < 40 ? len : 40) : 7,
                                arch ? arch : "unknown", g->n_t);
    for (const char *sep = ": "; n < cap; sep = ", ") {
        int best = 0;
        for (int t = 1; t < MX_GGML_COUNT; t++)
            if (count[t] > count[best]) best = t;
        if (!count[best]) break;
        n += (size_t)snprintf(buf + n, cap - n, "%s%zu %s", sep, count[best], types[best].name);
        count[best] = 0;
    }
    return buf;
}
