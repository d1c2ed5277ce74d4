#include "text/tokenizer_vocab.h"
#include <stdlib.h>
#include <string.h>

/* Eight bytes at a time, each mixed by a multiplication whose high half comes back into the low one. */
uint32_t mx_tok_hash(const char *p, size_t len) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ (len * 0xD6E8FEB86659FD93u), w;
    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    if (len) {
        w = 0;
        memcpy(&w, p, len);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    h *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

static mx_status index_init(mx_tok_index *ix, size_t n, mx_err *err) {
    size_t slots = 64;
    while (slots < 2 * n) slots *= 2;
    ix->slot = malloc(slots * sizeof *ix->slot);
    if (!ix->slot) return mx_fail(err, MX_ENOMEM, "no memory for a vocabulary of %zu tokens", n);
    memset(ix->slot, 0xFF, slots * sizeof *ix->slot); // id -1
    ix->mask = (uint32_t)(slots - 1);
    return MX_OK;
}

static mx_status index_grow(mx_tok_index *ix, mx_err *err) {
    mx_tok_index more = {0};
    MX_TRY(index_init(&more, (size_t)ix->mask + 1, err));
    for (uint32_t i = 0; i <= ix->mask; i++) {
        if (ix->slot[i].id < 0) continue;
        uint32_t at = ix->slot[i].hash & more.mask;
        while (more.slot[at].id >= 0) at = (at + 1) & more.mask;
        more.slot[at] = ix->slot[i];
    }
    more.n = ix->n;
    free(ix->slot);
    *ix = more;
    return MX_OK;
}

mx_status mx_vocab_init(mx_vocab *v, size_t n_token, mx_err *err) {
    v->blob.limit = UINT32_MAX / 2;
    MX_TRY(index_init(&v->model, n_token, err));
    MX_TRY(index_init(&v->added, 256, err));
    if (!mx_str_reserve(&v->blob, 12 * n_token + 64))
        return mx_fail(err, MX_ENOMEM, "no memory for a vocabulary");
    return MX_OK;
}

void mx_vocab_free(mx_vocab *v) {
    free(v->model.slot);
    free(v->added.slot);
    free(v->piece);
    free(v->flags);
    mx_str_free(&v->blob);
}

static mx_status make_room(mx_vocab *v, int32_t id, mx_err *err) {
    if (id < v->cap) return MX_OK;
    int32_t cap = v->cap ? v->cap : 1024;
    while (cap <= id) cap *= 2;
    void *piece = realloc(v->piece, (size_t)cap * sizeof *v->piece);
    if (piece) v->piece = piece;
    uint8_t *flags = piece ? realloc(v->flags, (size_t)cap) : NULL;
    if (!flags) return mx_fail(err, MX_ENOMEM, "no memory for a vocabulary of %d ids", id + 1);
    v->flags = flags;
    memset(v->piece + v->cap, 0, (size_t)(cap - v->cap) * sizeof *v->piece);
    memset(flags + v->cap, 0, (size_t)(cap - v->cap));
    v->cap = cap;
    return MX_OK;
}

static bool is_piece(const mx_vocab *v, int32_t id, const char *p, size_t len) {
    return v->piece[id].len == len && !memcmp(v->blob.p + v->piece[id].off, p, len);
}

mx_status mx_vocab_add(mx_vocab *v, mx_tok_index *ix, const char *p, size_t len, int64_t id64, mx_err *err) {
    int shown = (int)(len > 60 ? 60 : len);
    if (id64 < 0 || id64 > MX_TOK_MAX_ID) {
        return mx_fail(err, MX_EINVAL, "token \"%.*s\" has the id %lld, which is not between 0 and %d", shown,
                       p, (long long)id64, MX_TOK_MAX_ID);
    }
    if (len > MX_TOK_MAX_PIECE) return mx_fail(err, MX_ELIMIT, "a token of %zu bytes is too long", len);
    int32_t id = (int32_t)id64;
    MX_TRY(make_room(v, id, err));
    bool taken = v->flags[id] & MX_TOK_USED;
    if (taken && !is_piece(v, id, p, len)) {
        return mx_fail(err, MX_EINVAL, "the tokens \"%.60s\" and \"%.*s\" have the same id %d",
                       v->blob.p + v->piece[id].off, shown, p, id);
    }
    if (!taken) {
        v->piece[id].off = (uint32_t)v->blob.len;
        v->piece[id].len = (uint32_t)len;
        mx_str_add(&v->blob, p, len);
        mx_str_putc(&v->blob, 0);
        if (v->blob.oom) return mx_fail(err, MX_ENOMEM, "no memory for the spellings of a vocabulary");
        v->flags[id] |= MX_TOK_USED;
        if (id >= v->n) v->n = id + 1;
    }
    if (ix->n * 2u > ix->mask) MX_TRY(index_grow(ix, err));
    uint32_t h = mx_tok_hash(p, len), at = h & ix->mask;
    for (; ix->slot[at].id >= 0; at = (at + 1) & ix->mask) {
        if (ix->slot[at].hash != h || !is_piece(v, ix->slot[at].id, p, len)) continue;
        if (ix->slot[at].id != id)
            v->flags[ix->slot[at].id] = 0; // a key that stands twice: the last one counts
        ix->slot[at].id = id;
        return MX_OK;
    }
    ix->slot[at].hash = h;
    ix->slot[at].id = id;
    ix->n++;
    return MX_OK;
}

int32_t mx_vocab_find_hash(const mx_vocab *v, const mx_tok_index *ix, const char *p, size_t len, uint32_t h) {
    for (uint32_t at = h & ix->mask; ix->slot[at].id >= 0; at = (at + 1) & ix->mask) {
        if (ix->slot[at].hash == h && is_piece(v, ix->slot[at].id, p, len)) return ix->slot[at].id;
    }
    return -1;
}
