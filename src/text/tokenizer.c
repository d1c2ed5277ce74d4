#include "text/tokenizer_int.h"
#include "base/file.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 30, CACHE_SLOTS = 8192, CACHE_FROM = 64, GROWTH = 32, MAX_PREFIX = 1 << 20 };

/* ---- lists of ids --------------------------------------------------------------------------------------- */

mx_status mx_ids_add(mx_ids *l, int32_t id, mx_err *err) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        int32_t *p = realloc(l->id, cap * sizeof *p);
        if (!p) return mx_fail(err, MX_ENOMEM, "no memory for %zu token ids", cap);
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return MX_OK;
}

void mx_ids_free(mx_ids *l) {
    free(l->id);
    *l = (mx_ids){0};
}

/* ---- life ----------------------------------------------------------------------------------------------- */

mx_status mx_tok_new(mx_tokenizer **out, size_t n_token, mx_err *err) {
    mx_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return mx_fail(err, MX_ENOMEM, "no memory for a tokenizer");
    *out = t;
    t->bpe.vocab = &t->vocab;
    t->bpe.unk = -1;
    MX_TRY(mx_vocab_init(&t->vocab, n_token, err));
    t->frame = malloc(sizeof *t->frame);
    if (!t->frame) return mx_fail(err, MX_ENOMEM, "no memory for a tokenizer");
    t->frame[0] = -1;
    t->n_frame = 1;
    return MX_OK;
}

void mx_tokenizer_free(mx_tokenizer *t) {
    if (!t) return;
    mx_vocab_free(&t->vocab);
    mx_bpe_free(&t->bpe);
    mx_normalizer_free(&t->normalizer);
    mx_pretok_free(&t->pretok);
    mx_decoder_free(&t->decoder);
    free(t->added);
    free(t->plain.node);
    free(t->normalized.node);
    free(t->respelled);
    free(t->frame);
    mx_str_free(&t->bytes);
    free(t->bytes_from);
    mx_arena_free(&t->arena);
    free(t);
}

/* The last steps, whatever t was read from: st is how that went. */
static mx_status finish(mx_tokenizer **out, mx_tokenizer *t, const mx_json *config, mx_status st,
                        mx_err *err) {
    if (st == MX_OK) st = mx_tok_add_from_config(t, config, err);
    if (st == MX_OK) st = mx_tok_finish(t, err);
    if (st != MX_OK) {
        mx_tokenizer_free(t);
        return st;
    }
    *out = t;
    return MX_OK;
}

static mx_status parse(mx_tokenizer **out, const char *json, size_t len, const mx_json *config, mx_err *err) {
    mx_arena doc = {0};
    mx_json *root;
    mx_tokenizer *t = NULL;
    mx_status st = mx_json_parse(&root, &doc, json, len, err);
    if (st == MX_OK) st = mx_tok_from_json(&t, root, err);
    mx_arena_free(&doc);
    return finish(out, t, config, st, err);
}

mx_status mx_tokenizer_parse(mx_tokenizer **out, const char *json, size_t len, const char *name,
                             mx_err *err) {
    mx_status st = parse(out, json, len, NULL, err);
    return st == MX_OK ? MX_OK : mx_err_prefix(err, st, "%s", name);
}

static mx_status open_json(mx_tokenizer **out, const char *path, const mx_json *config, mx_err *err) {
    mx_map map;
    MX_TRY(mx_map_open(&map, path, err));
    mx_status st = parse(out, map.p ? map.p : "", map.len, config, err);
    mx_map_close(&map);
    return st;
}

/* ---- encoding ------------------------------------------------------------------------------------------- */

/* Words that a text repeats are merged once: a table of where in the text a word stood and which ids it gave. It lives
 * for one call, so threads share nothing. */
typedef struct {
    uint32_t off, len; // in the text; len 0: empty
    size_t from;       // in the ids
    uint32_t n;
} cached;

typedef struct {
    mx_pre_state pre;
    mx_str raw, one, two; // repaired input; scratch of the normalizer
    mx_bpe_scratch bpe;
    cached *cache;
} encoder;

static void encoder_free(encoder *e) {
    mx_pre_state_free(&e->pre);
    mx_str_free(&e->raw);
    mx_str_free(&e->one);
    mx_str_free(&e->two);
    mx_bpe_scratch_free(&e->bpe);
    free(e->cache);
}

/* Cut at the plain added tokens, normalize what is between them, cut at the normalized ones. */
static mx_status make_pieces(const mx_tokenizer *t, encoder *e, const char *text, size_t len, unsigned flags,
                             mx_err *err) {
    mx_pre_state *s = &e->pre;
    mx_tok_cut(t, &t->plain, text, len, 0, true, flags, &s->next);
    for (size_t i = 0; i < s->next.n; i++) {
        mx_piece of = s->next.p[i];
        if (of.id >= 0) {
            mx_pieces_add(&s->pieces, of);
            continue;
        }
        const char *p;
        size_t n, base = s->text.len;
        bool cut;
        MX_TRY(mx_normalize(&t->normalizer, &s->matcher, text + of.off, of.len, &e->one, &e->two, &p, &n,
                            &cut, err));
        mx_str_add(&s->text, p, n);
        if (s->text.oom) return mx_fail(err, MX_ELIMIT, "the normalizer makes this text too long");
        mx_tok_cut(t, &t->normalized, s->text.p + base, n, base, of.first && !cut, flags, &s->pieces);
    }
    return s->pieces.oom || s->next.oom ? mx_fail(err, MX_ENOMEM, "no memory for the pieces of a text")
                                        : MX_OK;
}

static mx_status encode_word(const mx_tokenizer *t, encoder *e, mx_piece of, unsigned flags, mx_ids *out,
                             mx_err *err) {
    const char *text = e->pre.text.p, *p = text + of.off;
    bool whole = flags & MX_TOK_PARSE_SPECIAL;
    if (!e->cache) return mx_bpe_encode(&t->bpe, &e->bpe, p, of.len, whole, out, err);
    cached *c = &e->cache[mx_tok_hash(p, of.len) % CACHE_SLOTS];
    if (c->len == of.len && !memcmp(text + c->off, p, of.len)) {
        for (size_t i = 0; i < c->n; i++) MX_TRY(mx_ids_add(out, out->id[c->from + i], err));
        return MX_OK;
    }
    size_t from = out->n;
    MX_TRY(mx_bpe_encode(&t->bpe, &e->bpe, p, of.len, whole, out, err));
    *c = (cached){.off = of.off, .len = of.len, .from = from, .n = (uint32_t)(out->n - from)};
    return MX_OK;
}

static mx_status encode_piece(const mx_tokenizer *t, encoder *e, mx_piece of, unsigned flags, mx_ids *out,
                              mx_err *err) {
    for (size_t done = 0, n; done < of.len; done += n) {
        n = mx_bpe_word(&t->bpe, e->pre.text.p + of.off + done, of.len - done);
        mx_piece word = {.off = of.off + (uint32_t)done, .len = (uint32_t)n, .id = -1};
        MX_TRY(encode_word(t, e, word, flags, out, err));
    }
    return MX_OK;
}

static mx_status encode_text(const mx_tokenizer *t, encoder *e, const char *text, size_t len, unsigned flags,
                             mx_ids *out, mx_err *err) {
    MX_TRY(make_pieces(t, e, text, len, flags, err));
    MX_TRY(mx_pretok_run(&t->pretok, &e->pre, err));
    const mx_pieces *l = &e->pre.pieces;
    if (l->n >= CACHE_FROM)
        e->cache = calloc(CACHE_SLOTS, sizeof *e->cache); // without it the work is done each time
    for (size_t i = 0; i < l->n; i++) {
        mx_piece of = l->p[i];
        if (of.id >= 0)
            MX_TRY(mx_ids_add(out, of.id, err));
        else
            MX_TRY(encode_piece(t, e, of, flags, out, err));
    }
    return MX_OK;
}

/* Put the frame of the post-processor around the ids from `from` on. */
static mx_status add_frame(const mx_tokenizer *t, size_t from, mx_ids *out, mx_err *err) {
    if (t->n_frame == 1 && t->frame[0] < 0) return MX_OK;
    size_t n = out->n - from;
    int32_t *text = malloc((n ? n : 1) * sizeof *text);
    if (!text) return mx_fail(err, MX_ENOMEM, "no memory for %zu token ids", n);
    if (n) memcpy(text, out->id + from, n * sizeof *text);
    out->n = from;
    mx_status st = MX_OK;
    for (size_t i = 0; i < t->n_frame && st == MX_OK; i++) {
        if (t->frame[i] >= 0) st = mx_ids_add(out, t->frame[i], err);
        for (size_t k = 0; t->frame[i] < 0 && k < n && st == MX_OK; k++) st = mx_ids_add(out, text[k], err);
    }
    free(text);
    return st;
}

mx_status mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t len, unsigned flags,
                              mx_ids *out, mx_err *err) {
    if (len > MAX_TEXT)
        return mx_fail(err, MX_ELIMIT, "a text of %zu bytes is too long: at most %d", len, MAX_TEXT);
    encoder e = {0};
    size_t from = out->n;
    /* NFKD makes 11 times the bytes of a text, the byte alphabet twice; a file that makes more is not meant well. */
    size_t room = GROWTH * len + MAX_PREFIX;
    if (room > UINT32_MAX / 2) room = UINT32_MAX / 2;
    e.raw.limit = e.one.limit = e.two.limit = e.pre.text.limit = e.pre.other.limit = room;
    mx_status st = MX_OK;
    if (mx_utf8_valid(text, len) != len) {
        mx_utf8_repair(&e.raw, text, len);
        if (e.raw.oom) st = mx_fail(err, MX_ENOMEM, "no memory for a text of %zu bytes", len);
        text = e.raw.p;
        len = e.raw.len;
    }
    if (st == MX_OK) st = encode_text(t, &e, text, len, flags, out, err);
    if (st == MX_OK && (flags & MX_TOK_ADD_SPECIAL)) st = add_frame(t, from, out, err);
    if (st != MX_OK) out->n = from;
    encoder_free(&e);
    return st;
}

/* ---- decoding ------------------------------------------------------------------------------------------- */

struct mx_detok {
    const mx_tokenizer *t;
    bool skip_special;
    mx_dec_run run;
};

mx_status mx_detok_new(mx_detok **out, const mx_tokenizer *t, bool skip_special, mx_err *err) {
    mx_detok *d = calloc(1, sizeof *d);
    if (!d) return mx_fail(err, MX_ENOMEM, "no memory for a detokenizer");
    d->t = t;
    d->skip_special = skip_special;
    d->run.chain = &t->decoder;
    *out = d;
    return MX_OK;
}

void mx_detok_free(mx_detok *d) {
    if (!d) return;
    mx_dec_run_free(&d->run);
    free(d);
}

void mx_detok_reset(mx_detok *d) { mx_dec_run_reset(&d->run); }

mx_status mx_detok_push(mx_detok *d, int32_t id, mx_str *out, mx_err *err) {
    if (id < 0) return mx_fail(err, MX_EINVAL, "the token id %d is negative", id);
    size_t len;
    const char *p = mx_tok_spelling(d->t, id, &len);
    if (!p || (d->skip_special && mx_tokenizer_is_special(d->t, id))) return MX_OK;
    return mx_dec_push(&d->run, p, len, out, err);
}

mx_status mx_detok_flush(mx_detok *d, mx_str *out, mx_err *err) { return mx_dec_flush(&d->run, out, err); }

mx_status mx_tokenizer_decode(const mx_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              mx_str *out, mx_err *err) {
    mx_detok d = {.t = t, .skip_special = skip_special, .run = {.chain = &t->decoder}};
    mx_status st = MX_OK;
    for (size_t i = 0; i < n && st == MX_OK; i++) st = mx_detok_push(&d, ids[i], out, err);
    if (st == MX_OK) st = mx_detok_flush(&d, out, err);
    mx_dec_run_free(&d.run);
    return st;
}

/* ---- questions ------------------------------------------------------------------------------------------ */

int32_t mx_tokenizer_size(const mx_tokenizer *t) { return t->vocab.n; }

int32_t mx_tokenizer_find(const mx_tokenizer *t, const char *token) {
    size_t n = strlen(token);
    int32_t id = mx_vocab_find(&t->vocab, &t->vocab.added, token, n);
    return id >= 0 ? id : mx_vocab_find(&t->vocab, &t->vocab.model, token, n);
}

bool mx_tokenizer_is_special(const mx_tokenizer *t, int32_t id) {
    return mx_vocab_has(&t->vocab, id) && (t->vocab.flags[id] & MX_TOK_SPECIAL);
}

const char *mx_tokenizer_bytes(const mx_tokenizer *t, int32_t id, size_t *len) {
    *len = 0;
    if (!mx_vocab_has(&t->vocab, id)) return "";
    *len = t->bytes_from[id + 1] - t->bytes_from[id];
    return t->bytes.p ? t->bytes.p + t->bytes_from[id] : "";
}

const char *mx_tokenizer_piece(const mx_tokenizer *t, int32_t id) {
    size_t n;
    return mx_vocab_has(&t->vocab, id) ? mx_vocab_text(&t->vocab, id, &n) : NULL;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

static mx_status find_and_open(mx_tokenizer **out, const char *dir, mx_arena *a, mx_err *err) {
    char *json = mx_path_join(a, dir, "tokenizer.json"),
         *conf = mx_path_join(a, dir, "tokenizer_config.json");
    char *vocab = mx_path_join(a, dir, "vocab.json"), *merges = mx_path_join(a, dir, "merges.txt");
    char *tekken = mx_path_join(a, dir, "tekken.json"), *text;
    size_t len;
    mx_json *config = NULL;
    if (!json || !conf || !vocab || !merges || !tekken)
        return mx_fail(err, MX_ENOMEM, "no memory to open a tokenizer");
    if (mx_is_file(conf)) {
        MX_TRY(mx_file_read(&text, &len, a, conf, 64u << 20, err));
        mx_status st = mx_json_parse(&config, a, text, len, err);
        if (st != MX_OK) return mx_err_prefix(err, st, "%s", conf);
    }
    const char *path = json;
    mx_tokenizer *t = NULL;
    mx_status st;
    if (mx_is_file(json)) {
        st = open_json(out, json, config, err);
        return st == MX_OK ? MX_OK : mx_err_prefix(err, st, "%s", json);
    }
    if (mx_is_file(vocab) && mx_is_file(merges)) {
        path = dir;
        st = mx_tok_from_vocab_merges(&t, a, vocab, merges, config, err);
    } else if (mx_is_file(tekken)) {
        path = tekken;
        st = mx_tok_from_tekken(&t, tekken, err);
    } else {
        MX_TRY(mx_tok_find_tiktoken(&path, dir, a, err));
        st = mx_tok_from_tiktoken(&t, path, config, err);
    }
    st = finish(out, t, config, st, err);
    return st == MX_OK ? MX_OK : mx_err_prefix(err, st, "%s", path);
}

mx_status mx_tokenizer_open(mx_tokenizer **out, const char *dir, mx_err *err) {
    mx_arena a = {0};
    mx_status st = find_and_open(out, dir, &a, err);
    mx_arena_free(&a);
    return st;
}
