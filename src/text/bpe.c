#include "text/bpe.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX, SHORT = 40 }; // up to SHORT symbols a scan for the lowest rank beats a queue

/* ---- the table of merges -------------------------------------------------------------------------------- */

static uint32_t pair_hash(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 17);
}

mx_status mx_bpe_reserve(mx_bpe *b, size_t n_merge, mx_err *err) {
    size_t slots = 64;
    while (slots < n_merge + n_merge / 2) slots *= 2;
    if (slots > UINT32_MAX / sizeof *b->merge)
        return mx_fail(err, MX_ELIMIT, "%zu merges are too many", n_merge);
    b->merge = malloc(slots * sizeof *b->merge);
    if (!b->merge) return mx_fail(err, MX_ENOMEM, "no memory for %zu merges", n_merge);
    for (size_t i = 0; i < slots; i++) b->merge[i].left = (uint32_t)NONE;
    b->merge_mask = (uint32_t)(slots - 1);
    return MX_OK;
}

static mx_status missing_token(const mx_merge_text *m, uint32_t rank, const char *p, size_t n, mx_err *err) {
    return mx_fail(err, MX_EINVAL,
                   "merge %u (\"%.*s\" + \"%.*s\"): the token \"%.*s\" is not in the vocabulary", rank,
                   (int)(m->a_len > 40 ? 40 : m->a_len), m->a, (int)(m->z_len > 40 ? 40 : m->z_len), m->z,
                   (int)(n > 40 ? 40 : n), p);
}

static void insert(mx_bpe *b, uint32_t left, uint32_t right, uint32_t rank, int32_t to) {
    uint32_t at = pair_hash(left, right) & b->merge_mask;
    for (; b->merge[at].left != (uint32_t)NONE; at = (at + 1) & b->merge_mask) {
        if (b->merge[at].left != left || b->merge[at].right != right) continue;
        b->merge[at].rank = rank; // a pair that stands twice: the last one counts
        return;
    }
    b->merge[at] = (mx_merge){.left = left, .right = right, .rank = rank, .to = to};
    b->n_merge++;
}

/* Three strings a merge: its halves and both together. Each is looked up in steps (slot, entry, spelling), and each step is
 * done for the whole batch before the next, with the memory of the next asked for: a lookup alone waits three times. */
mx_status mx_bpe_add_merges(mx_bpe *b, const mx_merge_text *m, size_t n, uint32_t rank, mx_err *err) {
    struct {
        const char *p;
        size_t len;
        uint32_t hash;
        int32_t id;
    } s[3 * MX_MERGE_BATCH];
    const mx_vocab *v = b->vocab;
    mx_str both = {0};
    mx_status st = MX_OK;
    size_t room = 0, used = 0;
    if (n > MX_MERGE_BATCH) return mx_fail(err, MX_EINTERNAL, "a batch of %zu merges is too large", n);
    for (size_t i = 0; i < n; i++) {
        if (m[i].z_len < b->prefix_len)
            return missing_token(&m[i], rank + (uint32_t)i, m[i].z, m[i].z_len, err);
        if (m[i].a_len > MX_TOK_MAX_PIECE || m[i].z_len > MX_TOK_MAX_PIECE)
            return mx_fail(err, MX_ELIMIT, "merge %zu is too long", rank + i);
        room += m[i].a_len + m[i].z_len;
    }
    if (!mx_str_reserve(&both, room)) return mx_fail(err, MX_ENOMEM, "no memory for merges");
    for (size_t i = 0; i < n; i++) {
        char *o = both.p + used;
        size_t z_len = m[i].z_len - b->prefix_len;
        memcpy(o, m[i].a, m[i].a_len);
        memcpy(o + m[i].a_len, m[i].z + b->prefix_len, z_len);
        used += m[i].a_len + z_len;
        s[3 * i].p = m[i].a, s[3 * i].len = m[i].a_len;
        s[3 * i + 1].p = m[i].z, s[3 * i + 1].len = m[i].z_len;
        s[3 * i + 2].p = o, s[3 * i + 2].len = m[i].a_len + z_len;
    }
    for (size_t k = 0; k < 3 * n; k++) {
        s[k].hash = mx_tok_hash(s[k].p, s[k].len);
        __builtin_prefetch(&v->model.slot[s[k].hash & v->model.mask]);
    }
    for (size_t k = 0; k < 3 * n; k++) {
        int32_t id = v->model.slot[s[k].hash & v->model.mask].id;
        if (id >= 0) __builtin_prefetch(&v->piece[id]);
    }
    for (size_t k = 0; k < 3 * n; k++) {
        int32_t id = v->model.slot[s[k].hash & v->model.mask].id;
        if (id >= 0) __builtin_prefetch(v->blob.p + v->piece[id].off);
    }
    for (size_t k = 0; k < 3 * n && st == MX_OK; k++) {
        s[k].id = mx_vocab_find_hash(v, &v->model, s[k].p, s[k].len, s[k].hash);
        if (s[k].id < 0) st = missing_token(&m[k / 3], rank + (uint32_t)(k / 3), s[k].p, s[k].len, err);
        if (k % 3 == 1 && st == MX_OK) {
            uint32_t h = pair_hash((uint32_t)s[k - 1].id, (uint32_t)s[k].id);
            __builtin_prefetch(&b->merge[h & b->merge_mask], 1);
        }
    }
    for (size_t i = 0; i < n && st == MX_OK; i++)
        insert(b, (uint32_t)s[3 * i].id, (uint32_t)s[3 * i + 1].id, rank + (uint32_t)i, s[3 * i + 2].id);
    mx_str_free(&both);
    return st;
}

#define META "\xE2\x96\x81"

/* Offset of the first ▁ in p[0..len) that follows another character, or len. */
static size_t inner_meta(const char *p, size_t len) {
    for (size_t i = 0; i < len;) {
        const char *hit = memmem(p + i, len - i, META, 3);
        if (!hit) return len;
        size_t at = (size_t)(hit - p);
        if (at && (at < 3 || memcmp(hit - 3, META, 3))) return at;
        i = at + 3;
    }
    return len;
}

size_t mx_bpe_word(const mx_bpe *b, const char *p, size_t len) { return b->words ? inner_meta(p, len) : len; }

void mx_bpe_ready(mx_bpe *b) {
    const mx_vocab *v = b->vocab;
    for (uint32_t c = 0; c < countof(b->char_id); c++) {
        char utf8[4];
        size_t n = mx_utf8_encode(c, utf8);
        b->char_id[c] = mx_vocab_find(v, &v->model, utf8, n);
    }
    for (int c = 0; c < 256; c++) {
        static const char hex[] = "0123456789ABCDEF";
        char token[] = {'<', '0', 'x', hex[c >> 4], hex[c & 15], '>'};
        b->byte_id[c] = mx_vocab_find(v, &v->model, token, sizeof token);
    }
    /* The ▁ must be a token itself, so that a run of unknown characters ends there. */
    b->words = !b->by_vocab && !b->ignore_merges && !b->prefix_len && !b->suffix_len &&
               mx_vocab_find(v, &v->model, META, 3) >= 0;
    for (int32_t id = 0; id < v->n; id++) {
        if (v->piece[id].len > b->longest) b->longest = v->piece[id].len;
        if (!b->words || !(v->flags[id] & MX_TOK_USED)) continue;
        size_t n;
        const char *p = mx_vocab_text(v, id, &n);
        b->words = inner_meta(p, n) == n;
    }
}

void mx_bpe_free(mx_bpe *b) { free(b->merge); }

void mx_bpe_scratch_free(mx_bpe_scratch *s) {
    free(s->id);
    free(s->start);
    free(s->next);
    free(s->prev);
    free(s->rank);
    free(s->to);
    for (int k = 0; k < MX_BPE_LANES; k++) free(s->lane[k].key);
    free(s->heap.key);
    mx_str_free(&s->tmp);
}

static bool grow(void *array, size_t n, size_t size) {
    void *p = realloc(*(void **)array, n * size);
    if (p) *(void **)array = p;
    return p != NULL;
}

static mx_status make_room(mx_bpe_scratch *s, size_t n, mx_err *err) {
    if (n <= s->cap) return MX_OK;
    size_t cap = s->cap ? s->cap : 256;
    while (cap < n) cap *= 2;
    bool ok = grow(&s->id, cap, sizeof *s->id) && grow(&s->start, cap + 1, sizeof *s->start) &&
              grow(&s->next, cap, sizeof *s->next) && grow(&s->prev, cap, sizeof *s->prev) &&
              grow(&s->rank, cap, sizeof *s->rank) && grow(&s->to, cap, sizeof *s->to);
    if (!ok) return mx_fail(err, MX_ENOMEM, "no memory to encode a piece of %zu symbols", n);
    s->cap = cap;
    return MX_OK;
}

/* ---- symbols -------------------------------------------------------------------------------------------- */

static void add_symbol(mx_bpe_scratch *s, int32_t id, size_t start) {
    s->id[s->n] = id;
    s->start[s->n++] = (uint32_t)start;
}

/* The id of the character p[0..n) at this place of the piece, or -1. *text, *len: its spelling with prefix and suffix. */
static int32_t char_token(const mx_bpe *b, mx_bpe_scratch *s, const char *p, size_t n, uint32_t cp,
                          bool first, bool last, const char **text, size_t *len) {
    *text = p;
    *len = n;
    bool prefix = !first && b->prefix_len, suffix = last && b->suffix_len;
    if (prefix || suffix) {
        mx_str_clear(&s->tmp);
        if (prefix) mx_str_add(&s->tmp, b->prefix, b->prefix_len);
        mx_str_add(&s->tmp, p, n);
        if (suffix) mx_str_add(&s->tmp, b->suffix, b->suffix_len);
        if (s->tmp.oom) return -1;
        *text = s->tmp.p;
        *len = s->tmp.len;
    } else if (cp < countof(b->char_id)) {
        return b->char_id[cp];
    }
    return mx_vocab_find(b->vocab, &b->vocab->model, *text, *len);
}

static mx_status unknown(const mx_bpe *b, mx_bpe_scratch *s, size_t at, bool *pending, size_t *unk_start,
                         mx_err *err) {
    if (b->unk_missing)
        return mx_fail(err, MX_EINVAL, "the text needs unk_token, which is not in the vocabulary");
    if (b->unk < 0) return MX_OK; // no unk_token: the character vanishes
    if (*pending && b->fuse_unk) return MX_OK;
    if (*pending) add_symbol(s, b->unk, *unk_start);
    *pending = true;
    *unk_start = at;
    return MX_OK;
}

/* Fill s->id and s->start. An unknown symbol is held back until the next known one, so that a run of them can be fused;
 * byte tokens do not end the run (as in tokenizers, on whose order of ids checkpoints rest). */
static mx_status make_symbols(const mx_bpe *b, mx_bpe_scratch *s, const char *p, size_t len, mx_err *err) {
    size_t extra = b->byte_fallback ? (b->prefix_len + b->suffix_len + 1) : 1;
    if (extra > 1024) return mx_fail(err, MX_ELIMIT, "the prefix or suffix of this vocabulary is too long");
    bool pending = false;
    size_t unk_start = 0, used;
    s->n = 0;
    for (size_t i = 0; i < len; i += used) {
        uint32_t cp = (uint32_t)mx_utf8_decode(p + i, len - i, &used);
        const char *text;
        size_t n;
        int32_t id = char_token(b, s, p + i, used, cp, i == 0, i + used == len, &text, &n);
        MX_TRY(make_room(s, s->n + n + 2, err));
        if (id >= 0) {
            if (pending) add_symbol(s, b->unk, unk_start);
            pending = false;
            add_symbol(s, id, i);
            continue;
        }
        bool bytes = b->byte_fallback;
        for (size_t k = 0; bytes && k < n; k++) bytes = b->byte_id[(uint8_t)text[k]] >= 0;
        if (bytes) {
            for (size_t k = 0; k < n; k++) add_symbol(s, b->byte_id[(uint8_t)text[k]], i);
        } else {
            MX_TRY(unknown(b, s, i, &pending, &unk_start, err));
        }
    }
    MX_TRY(make_room(s, s->n + 1, err));
    if (pending) add_symbol(s, b->unk, unk_start);
    s->start[s->n] = (uint32_t)len;
    return s->tmp.oom ? mx_fail(err, MX_ENOMEM, "no memory to encode a piece") : MX_OK;
}

/* ---- merging -------------------------------------------------------------------------------------------- */

/* Rank of the pair of symbols i and j; what follows j begins at byte `end`. NONE if they do not merge. */
static uint32_t pair_rank(const mx_bpe *b, const mx_bpe_scratch *s, const char *p, size_t i, size_t j,
                          size_t end, int32_t *to) {
    if (b->by_vocab) {
        size_t n = end - s->start[i];
        if (n > b->longest) return (uint32_t)NONE;
        *to = mx_vocab_find(b->vocab, &b->vocab->model, p + s->start[i], n);
        return *to < 0 ? (uint32_t)NONE : (uint32_t)*to;
    }
    uint32_t left = (uint32_t)s->id[i], right = (uint32_t)s->id[j];
    uint32_t at = pair_hash(left, right) & b->merge_mask;
    for (; b->merge[at].left != (uint32_t)NONE; at = (at + 1) & b->merge_mask) {
        if (b->merge[at].left != left || b->merge[at].right != right) continue;
        *to = b->merge[at].to;
        return b->merge[at].rank;
    }
    return (uint32_t)NONE;
}

/* Few symbols: arrays without holes, the lowest rank found by looking at all. */
static void merge_short(const mx_bpe *b, mx_bpe_scratch *s, const char *p) {
    size_t n = s->n;
    for (size_t i = 0; i + 1 < n; i++) s->rank[i] = pair_rank(b, s, p, i, i + 1, s->start[i + 2], &s->to[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (s->rank[i] < s->rank[best]) best = i;
        }
        if (s->rank[best] == (uint32_t)NONE) break;
        s->steps++;
        s->id[best] = s->to[best];
        size_t tail = n - best - 2; // symbols after the pair
        memmove(s->id + best + 1, s->id + best + 2, tail * sizeof *s->id);
        memmove(s->start + best + 1, s->start + best + 2, (tail + 1) * sizeof *s->start);
        if (tail) {
            memmove(s->rank + best + 1, s->rank + best + 2, (tail - 1) * sizeof *s->rank);
            memmove(s->to + best + 1, s->to + best + 2, (tail - 1) * sizeof *s->to);
        }
        n--;
        if (best + 1 < n)
            s->rank[best] = pair_rank(b, s, p, best, best + 1, s->start[best + 2], &s->to[best]);
        if (best > 0)
            s->rank[best - 1] = pair_rank(b, s, p, best - 1, best, s->start[best + 1], &s->to[best - 1]);
    }
    s->n = n;
}

/* The queue of pairs, by rank << 32 | position. One sweep over the text makes its pairs in order of position, so most keys
 * go to the end of a lane, which is in order by itself; what fits no lane goes to a heap, whose every step may miss the
 * cache. The lowest key of each lane is in head[], UINT64_MAX where it is empty. */
static bool put(mx_bpe_lane *l, uint64_t key) {
    if (l->end == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        if (!grow(&l->key, cap, sizeof *l->key)) return false;
        l->cap = cap;
    }
    l->key[l->end++] = key;
    return true;
}

static bool push(mx_bpe_scratch *s, uint64_t key) {
    for (int k = 0; k < MX_BPE_LANES; k++) {
        mx_bpe_lane *l = &s->lane[k];
        if (l->end && l->key[l->end - 1] > key) continue;
        if (s->head[k] == UINT64_MAX) s->head[k] = key;
        return put(l, key);
    }
    mx_bpe_lane *h = &s->heap;
    if (!put(h, key)) return false;
    size_t i = h->end - 1;
    for (size_t up; i && h->key[up = (i - 1) / 4] > key; i = up) h->key[i] = h->key[up];
    h->key[i] = key;
    s->head[MX_BPE_LANES] = h->key[0];
    return true;
}

static void pop_heap(mx_bpe_scratch *s) {
    mx_bpe_lane *h = &s->heap;
    uint64_t *q = h->key, last = q[--h->end];
    size_t n = h->end, i = 0;
    for (size_t c; (c = 4 * i + 1) < n;) {
        size_t best = c, end = c + 4 < n ? c + 4 : n;
        for (size_t k = c + 1; k < end; k++) best = q[k] < q[best] ? k : best;
        if (q[best] >= last) break;
        q[i] = q[best];
        i = best;
    }
    q[i] = last;
    s->head[MX_BPE_LANES] = n ? q[0] : UINT64_MAX;
}

/* The lane with the lowest key. */
static int lowest(const mx_bpe_scratch *s) {
    int best = 0;
    for (int k = 1; k <= MX_BPE_LANES; k++) best = s->head[k] < s->head[best] ? k : best;
    return best;
}

static void drop(mx_bpe_scratch *s, int k) {
    mx_bpe_lane *l = &s->lane[k];
    if (k == MX_BPE_LANES) {
        pop_heap(s);
    } else if (++l->start == l->end) {
        l->start = l->end = 0;
        s->head[k] = UINT64_MAX;
    } else {
        s->head[k] = l->key[l->start];
    }
}

/* Sort the first pairs by rank: they come in order of position, so a stable radix sort of the rank's bits is enough. */
static bool sort_first(uint64_t **keys, uint64_t **other, size_t n, uint32_t max_rank) {
    if (!grow(other, n, sizeof **other)) return false;
    for (int shift = 32; shift < 64 && (uint64_t)max_rank >> (shift - 32); shift += 11) {
        size_t count[2049] = {0};
        for (size_t i = 0; i < n; i++) count[((*keys)[i] >> shift & 2047) + 1]++;
        for (int k = 0; k < 2048; k++) count[k + 1] += count[k];
        for (size_t i = 0; i < n; i++) (*other)[count[(*keys)[i] >> shift & 2047]++] = (*keys)[i];
        uint64_t *swap = *keys;
        *keys = *other;
        *other = swap;
    }
    return true;
}

/* Many symbols: a linked list, the first pairs sorted once and the new ones in the queue, so that the time is n log n with
 * small factors (1 MB of one letter: a million pairs of one rank, which are sorted already). */
static bool merge_long(const mx_bpe *b, mx_bpe_scratch *s, const char *p) {
    size_t n = s->n, n_first = 0;
    uint32_t max_rank = 0;
    uint64_t *first = malloc(n * sizeof *first), *other = NULL;
    if (!first) return false;
    for (size_t i = 0; i < n; i++) {
        s->prev[i] = i ? (uint32_t)(i - 1) : (uint32_t)NONE;
        s->next[i] = i + 1 < n ? (uint32_t)(i + 1) : (uint32_t)NONE;
        s->rank[i] = i + 1 < n ? pair_rank(b, s, p, i, i + 1, s->start[i + 2], &s->to[i]) : (uint32_t)NONE;
        if (s->rank[i] == (uint32_t)NONE) continue;
        if (s->rank[i] > max_rank) max_rank = s->rank[i];
        first[n_first++] = (uint64_t)s->rank[i] << 32 | i;
    }
    bool ok = !n_first || sort_first(&first, &other, n_first, max_rank);
    for (int k = 0; k < MX_BPE_LANES; k++) s->lane[k].start = s->lane[k].end = 0;
    for (int k = 0; k <= MX_BPE_LANES; k++) s->head[k] = UINT64_MAX;
    s->heap.end = 0;
    for (size_t f = 0; ok;) {
        int lane = lowest(s);
        uint64_t key = s->head[lane];
        if (f < n_first && first[f] < key)
            key = first[f++];
        else if (key != UINT64_MAX)
            drop(s, lane);
        else
            break;
        uint32_t at = (uint32_t)key, right, after;
        s->steps++;
        if (s->rank[at] != key >> 32) continue; // the pair is no longer there
        right = s->next[at];
        after = s->next[right];
        s->id[at] = s->to[at];
        s->rank[right] = (uint32_t)NONE;
        s->id[right] = -1;
        s->next[at] = after;
        s->rank[at] = (uint32_t)NONE;
        if (after != (uint32_t)NONE) {
            s->prev[after] = at;
            uint32_t end = s->next[after] == (uint32_t)NONE ? s->start[n] : s->start[s->next[after]];
            s->rank[at] = pair_rank(b, s, p, at, after, end, &s->to[at]);
            if (s->rank[at] != (uint32_t)NONE) ok = push(s, (uint64_t)s->rank[at] << 32 | at);
        }
        uint32_t before = s->prev[at];
        if (before != (uint32_t)NONE) {
            uint32_t end = after == (uint32_t)NONE ? s->start[n] : s->start[after];
            s->rank[before] = pair_rank(b, s, p, before, at, end, &s->to[before]);
            if (s->rank[before] != (uint32_t)NONE)
                ok = ok && push(s, (uint64_t)s->rank[before] << 32 | before);
        }
    }
    free(first);
    free(other);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->id[i] >= 0) s->id[k++] = s->id[i];
    }
    s->n = k;
    return ok;
}

mx_status mx_bpe_encode(const mx_bpe *b, mx_bpe_scratch *s, const char *p, size_t len, bool special_whole,
                        mx_ids *out, mx_err *err) {
    if (b->ignore_merges) {
        int32_t id = mx_vocab_find(b->vocab, &b->vocab->model, p, len);
        if (id >= 0 && (special_whole || !(b->vocab->flags[id] & MX_TOK_SPECIAL)))
            return mx_ids_add(out, id, err);
    }
    MX_TRY(make_symbols(b, s, p, len, err));
    if (s->n > 1 && (b->n_merge || b->by_vocab)) {
        if (s->n <= SHORT)
            merge_short(b, s, p);
        else if (!merge_long(b, s, p))
            return mx_fail(err, MX_ENOMEM, "no memory to encode a piece of %zu bytes", len);
    }
    for (size_t i = 0; i < s->n; i++) MX_TRY(mx_ids_add(out, s->id[i], err));
    return MX_OK;
}
