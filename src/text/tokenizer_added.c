/* tokenizer_added.c - added tokens: found in text before BPE sees it. */
#include "text/tokenizer_int.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

/* The search looks at as many bytes at each place of a text, at worst. */
enum { MAX_ADDED = 1024 };

static mx_status trie_add(mx_trie *t, const char *p, size_t len, int32_t token, mx_err *err) {
    if (t->n + len + 1 > t->cap) {
        size_t cap = 2 * t->cap + len + 64;
        void *node = realloc(t->node, cap * sizeof *t->node);
        if (!node || cap > INT32_MAX) {
            if (node) t->node = node;
            return mx_fail(err, MX_ENOMEM, "no memory for the added tokens");
        }
        t->node = node;
        t->cap = cap;
    }
    if (!t->n) t->node[t->n++] = (struct mx_trie_node){.token = -1};
    int32_t at = 0;
    t->starts[(uint8_t)p[0]] = true;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)p[i];
        int32_t c = t->node[at].child;
        while (c && t->node[c].byte != byte) c = t->node[c].sibling;
        if (!c) {
            c = (int32_t)t->n++;
            t->node[c] = (struct mx_trie_node){.sibling = t->node[at].child, .token = -1, .byte = byte};
            t->node[at].child = c;
        }
        at = c;
    }
    t->node[at].token = token; // of two tokens with one text the last one counts
    return MX_OK;
}

/* The longest token that begins at p, or -1. */
static int32_t trie_find(const mx_trie *t, const char *p, size_t len, size_t *used) {
    int32_t at = 0, found = -1;
    for (size_t i = 0; i < len; i++) {
        int32_t c = t->node[at].child;
        while (c && t->node[c].byte != (uint8_t)p[i]) c = t->node[c].sibling;
        if (!c) break;
        at = c;
        if (t->node[at].token >= 0) found = t->node[at].token, *used = i + 1;
    }
    return found;
}

static uint32_t char_before(const char *text, size_t at, size_t *start) {
    size_t b = at - 1, used;
    while (b && ((unsigned char)text[b] & 0xC0) == 0x80) b--;
    *start = b;
    return (uint32_t)mx_utf8_decode(text + b, at - b, &used);
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t end) {
    size_t b, used;
    if (start && mx_uc_word(char_before(text, start, &b))) return false;
    return end == len || !mx_uc_word((uint32_t)mx_utf8_decode(text + end, len - end, &used));
}

void mx_tok_cut(const mx_tokenizer *t, const mx_trie *trie, const char *text, size_t len, size_t base,
                bool first, unsigned flags, mx_pieces *out) {
    size_t done = 0; // up to here the text is in pieces
    for (size_t i = 0; trie->n && i < len;) {
        size_t n = 0;
        int32_t k = trie->starts[(uint8_t)text[i]] ? trie_find(trie, text + i, len - i, &n) : -1;
        if (k < 0) {
            i++;
            continue;
        }
        const mx_added *a = &t->added[k];
        size_t start = i, end = i + n, used;
        i = end; // a match that is then not taken is passed over all the same, as tokenizers does
        if (a->special && !(flags & MX_TOK_PARSE_SPECIAL)) continue;
        if (a->single_word && !stands_alone(text, len, start, end)) continue;
        if (a->lstrip) {
            size_t b;
            while (start > done && mx_uc_space(char_before(text, start, &b))) start = b;
        }
        if (a->rstrip) {
            while (end < len && mx_uc_space((uint32_t)mx_utf8_decode(text + end, len - end, &used)))
                end += used;
        }
        if (start > done) {
            mx_pieces_add(out, (mx_piece){.off = (uint32_t)(base + done),
                                          .len = (uint32_t)(start - done),
                                          .id = -1,
                                          .first = first && done == 0});
        }
        mx_pieces_add(out, (mx_piece){.id = a->id});
        done = end;
    }
    if (done < len) {
        mx_pieces_add(out, (mx_piece){.off = (uint32_t)(base + done),
                                      .len = (uint32_t)(len - done),
                                      .id = -1,
                                      .first = first && done == 0});
    }
}

mx_status mx_tok_add(mx_tokenizer *t, mx_added token, const char *content, size_t len, int64_t id,
                     mx_err *err) {
    if (!len) return MX_OK;
    if (len > MAX_ADDED)
        return mx_fail(err, MX_ELIMIT, "an added token of %zu bytes is too long: at most %d", len, MAX_ADDED);
    mx_vocab *v = &t->vocab;
    int32_t known = mx_vocab_find(v, &v->added, content, len);
    if (known < 0) known = mx_vocab_find(v, &v->model, content, len);
    if (known >= 0) {
        id = known; // the model's own id counts, whatever the list says
    } else if (id < 0 || mx_vocab_has(v, id <= MX_TOK_MAX_ID ? (int32_t)id : -1)) {
        id = v->n; // no id, or one that another token has: the next free one, as tokenizers does
    }
    MX_TRY(mx_vocab_add(v, &v->added, content, len, id, err));
    bool again = v->flags[id] & MX_TOK_ADDED;
    v->flags[id] |= MX_TOK_ADDED | (token.special ? MX_TOK_SPECIAL : 0);
    if (t->n_added == t->cap_added) {
        size_t cap = t->cap_added ? 2 * t->cap_added : 64;
        mx_added *p = realloc(t->added, cap * sizeof *p);
        if (!p) return mx_fail(err, MX_ENOMEM, "no memory for the added tokens");
        t->added = p;
        t->cap_added = cap;
    }
    token.id = (int32_t)id;
    token.text = mx_arena_strndup(&t->arena, content, len);
    token.len = len;
    if (!token.text) return mx_fail(err, MX_ENOMEM, "no memory for the added tokens");
    for (size_t i = 0; again && i < t->n_added; i++) {
        if (t->added[i].id != id) continue; // stands twice: the last one counts
        t->added[i] = token;
        return MX_OK;
    }
    t->added[t->n_added++] = token;
    return MX_OK;
}

/* A normalized token is looked for in normalized text, so as the normalizer writes it. */
static mx_status normalize_token(mx_tokenizer *t, mx_added *a, mx_err *err) {
    mx_str one = {.limit = 1 << 20}, two = {.limit = 1 << 20};
    mx_matcher m = {0};
    const char *p;
    size_t n;
    bool cut;
    mx_status st = mx_normalize(&t->normalizer, &m, a->text, a->len, &one, &two, &p, &n, &cut, err);
    if (st == MX_OK && (n != a->len || memcmp(p, a->text, n))) {
        char *copy = mx_arena_strndup(&t->arena, p, n);
        if (!copy) st = mx_fail(err, MX_ENOMEM, "no memory for the added tokens");
        if (copy) a->text = copy, a->len = n, t->n_respelled++;
    }
    mx_str_free(&one);
    mx_str_free(&two);
    mx_matcher_free(&m);
    return st;
}

/* ---- finishing ------------------------------------------------------------------------------------------ */

static int by_id(const void *a, const void *b) {
    const struct mx_respelled *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static mx_status list_respelled(mx_tokenizer *t, mx_err *err) {
    if (!t->n_respelled) return MX_OK;
    t->respelled = malloc(t->n_respelled * sizeof *t->respelled);
    if (!t->respelled) return mx_fail(err, MX_ENOMEM, "no memory for the added tokens");
    t->n_respelled = 0;
    for (size_t i = 0; i < t->n_added; i++) {
        size_t n;
        const char *p = mx_vocab_text(&t->vocab, t->added[i].id, &n);
        if (n == t->added[i].len && !memcmp(p, t->added[i].text, n)) continue;
        t->respelled[t->n_respelled++] = (struct mx_respelled){.id = t->added[i].id, .index = (int32_t)i};
    }
    qsort(t->respelled, t->n_respelled, sizeof *t->respelled, by_id);
    return MX_OK;
}

const char *mx_tok_spelling(const mx_tokenizer *t, int32_t id, size_t *len) {
    if (!mx_vocab_has(&t->vocab, id)) {
        *len = 0;
        return NULL;
    }
    size_t lo = 0, hi = t->n_respelled;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const mx_added *a = &t->added[t->respelled[mid].index];
        if (a->id == id) {
            *len = a->len;
            return a->text;
        }
        if (a->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return mx_vocab_text(&t->vocab, id, len);
}

static mx_status make_bytes(mx_tokenizer *t, mx_err *err) {
    const mx_vocab *v = &t->vocab;
    mx_str scratch[2] = {0};
    mx_matcher m = {0};
    mx_status st = MX_OK;
    t->bytes_from = malloc(((size_t)v->n + 1) * sizeof *t->bytes_from);
    t->bytes.limit = UINT32_MAX / 2;
    if (!t->bytes_from || !mx_str_reserve(&t->bytes, v->blob.len))
        st = mx_fail(err, MX_ENOMEM, "no memory for token bytes");
    for (int32_t id = 0; id < v->n && st == MX_OK; id++) {
        size_t len;
        const char *p = mx_tok_spelling(t, id, &len);
        t->bytes_from[id] = (uint32_t)t->bytes.len;
        if (!p) continue;
        if (v->flags[id] & MX_TOK_SPECIAL)
            mx_str_add(&t->bytes, p, len);
        else
            st = mx_decoder_bytes(&t->decoder, &m, p, len, scratch, &t->bytes, err);
    }
    if (st == MX_OK && t->bytes.oom) st = mx_fail(err, MX_ENOMEM, "no memory for token bytes");
    if (t->bytes_from) t->bytes_from[v->n] = (uint32_t)t->bytes.len;
    mx_str_free(&scratch[0]);
    mx_str_free(&scratch[1]);
    mx_matcher_free(&m);
    return st;
}

mx_status mx_tok_finish(mx_tokenizer *t, mx_err *err) {
    for (size_t i = 0; i < t->n_added; i++) {
        mx_added *a = &t->added[i];
        if (a->normalized && t->normalizer.n) MX_TRY(normalize_token(t, a, err));
        if (a->len)
            MX_TRY(trie_add(a->normalized ? &t->normalized : &t->plain, a->text, a->len, (int32_t)i, err));
    }
    MX_TRY(list_respelled(t, err));
    mx_bpe_ready(&t->bpe);
    return make_bytes(t, err);
}
