/* tokenizer_files.c - tokenizers that are not a tokenizer.json: GPT-2's vocab.json + merges.txt, Mistral's tekken.json,
 * and what tokenizer_config.json says about added tokens. */
#include "text/tokenizer_int.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define QWEN2                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"      \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

mx_status mx_tok_byte_level(mx_tokenizer *t, const char *pattern, mx_regex_dialect dialect, mx_err *err) {
    MX_TRY(mx_pretok_add_split(&t->pretok, pattern, dialect, err));
    MX_TRY(mx_pretok_add(&t->pretok, (mx_pre_step){.kind = MX_PRE_BYTES}, err));
    return mx_decoder_add(&t->decoder, (mx_dec_step){.kind = MX_DEC_BYTE_LEVEL}, err);
}

/* ---- tokenizer_config.json ------------------------------------------------------------------------------ */

/* The text of a token that is a string or an object with "content"; NULL if it is neither. */
static const mx_json *token_text(const mx_json *v) {
    const mx_json *c = mx_json_is(v, MX_JSON_OBJECT) ? mx_json_get(v, "content") : v;
    return mx_json_is(c, MX_JSON_STRING) && c->u.s.len ? c : NULL;
}

mx_status mx_tok_add_from_config(mx_tokenizer *t, const mx_json *config, mx_err *err) {
    const mx_json *list = mx_json_get(config, "added_tokens_decoder");
    for (const mx_json *it = mx_json_is(list, MX_JSON_OBJECT) ? mx_json_first(list) : NULL; it;
         it = it->next) {
        const mx_json *c = token_text(it);
        int64_t id = 0;
        bool number = it->key_len > 0 && it->key_len < 10;
        for (uint32_t i = 0; number && i < it->key_len; i++) {
            number = it->key[i] >= '0' && it->key[i] <= '9';
            id = id * 10 + (it->key[i] - '0');
        }
        if (!c || !number || id > MX_TOK_MAX_ID) {
            return mx_fail(err, MX_EINVAL,
                           "tokenizer_config.json: added_tokens_decoder: the entry \"%.*s\" is wrong",
                           (int)(it->key_len > 40 ? 40 : it->key_len), it->key);
        }
        if (mx_vocab_find(&t->vocab, &t->vocab.added, c->u.s.p, c->u.s.len) >= 0) continue;
        if (mx_vocab_has(&t->vocab, (int32_t)id) &&
            mx_vocab_find(&t->vocab, &t->vocab.model, c->u.s.p, c->u.s.len) != id)
            continue; // the id is another token's: the tokenizer file counts
        mx_added a = {.single_word = mx_json_bool(it, "single_word", false, NULL),
                      .lstrip = mx_json_bool(it, "lstrip", false, NULL),
                      .rstrip = mx_json_bool(it, "rstrip", false, NULL),
                      .special = mx_json_bool(it, "special", false, NULL)};
        a.normalized = mx_json_bool(it, "normalized", !a.special, NULL);
        MX_TRY(mx_tok_add(t, a, c->u.s.p, c->u.s.len, id, err));
    }
    return MX_OK;
}

/* Tokens that the config names (bos, eos, ...) are special if the vocabulary has them. */
static mx_status add_named(mx_tokenizer *t, const mx_json *config, mx_err *err) {
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    const mx_json *more = mx_json_get(config, "additional_special_tokens");
    for (size_t i = 0; i < countof(keys); i++) {
        const mx_json *c = token_text(mx_json_get(config, keys[i]));
        if (c && mx_vocab_find(&t->vocab, &t->vocab.model, c->u.s.p, c->u.s.len) >= 0)
            MX_TRY(mx_tok_add(t, (mx_added){.special = true}, c->u.s.p, c->u.s.len, -1, err));
    }
    for (const mx_json *it = mx_json_is(more, MX_JSON_ARRAY) ? mx_json_first(more) : NULL; it;
         it = it->next) {
        const mx_json *c = token_text(it);
        if (c && mx_vocab_find(&t->vocab, &t->vocab.model, c->u.s.p, c->u.s.len) >= 0)
            MX_TRY(mx_tok_add(t, (mx_added){.special = true}, c->u.s.p, c->u.s.len, -1, err));
    }
    return MX_OK;
}

/* ---- vocab.json + merges.txt ---------------------------------------------------------------------------- */

static mx_status read_merges(mx_tokenizer *t, const char *p, size_t len, const char *path, mx_err *err) {
    size_t lines = 0;
    for (size_t i = 0; i < len; i++) lines += p[i] == '\n';
    MX_TRY(mx_bpe_reserve(&t->bpe, lines + 1, err));
    mx_merge_text m[MX_MERGE_BATCH];
    size_t k = 0;
    uint32_t rank = 0; // of m[0]
    for (const char *end = p + len, *nl; p < end; p = nl + 1) {
        nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl) nl = end;
        size_t n = (size_t)(nl - p);
        if (n && p[n - 1] == '\r') n--;
        if (!n || (n >= 8 && !memcmp(p, "#version", 8))) continue;
        const char *sp = memchr(p, ' ', n);
        size_t left = sp ? (size_t)(sp - p) : 0, right = sp ? n - left - 1 : 0;
        if (!sp || memchr(sp + 1, ' ', right)) {
            return mx_fail(err, MX_EINVAL, "%s: merge %zu is not two tokens with one space between them",
                           path, rank + k);
        }
        m[k++] = (mx_merge_text){.a = p, .a_len = left, .z = sp + 1, .z_len = right};
        if (k < MX_MERGE_BATCH) continue;
        MX_TRY(mx_bpe_add_merges(&t->bpe, m, k, rank, err));
        rank += (uint32_t)k;
        k = 0;
    }
    MX_TRY(mx_bpe_add_merges(&t->bpe, m, k, rank, err));
    return t->bpe.n_merge ? MX_OK : mx_fail(err, MX_EINVAL, "%s holds no merges", path);
}

/* Which pattern a class of transformers splits by. */
static mx_status class_pattern(const mx_json *config, const char **pattern, bool *nfc, mx_err *err) {
    static const struct {
        const char *name, *pattern;
        bool nfc;
    } known[] = {{"GPT2Tokenizer", GPT2, false},
                 {"CodeGenTokenizer", GPT2, false},
                 {"GPTNeoXTokenizer", GPT2, false},
                 {"Qwen2Tokenizer", QWEN2, true}};
    const mx_json *name = mx_json_get(config, "tokenizer_class");
    *pattern = GPT2;
    *nfc = false;
    if (!mx_json_is(name, MX_JSON_STRING)) return MX_OK;
    size_t n = name->u.s.len;
    if (n > 4 && !memcmp(name->u.s.p + n - 4, "Fast", 4)) n -= 4;
    for (size_t i = 0; i < countof(known); i++) {
        if (strlen(known[i].name) != n || memcmp(known[i].name, name->u.s.p, n)) continue;
        *pattern = known[i].pattern;
        *nfc = known[i].nfc;
        return MX_OK;
    }
    return mx_fail(err, MX_UNSUPPORTED,
                   "how the class \"%.*s\" splits text is not known here: a tokenizer.json is needed",
                   (int)(n > 60 ? 60 : n), name->u.s.p);
}

static mx_status build_vocab_merges(mx_tokenizer *t, const mx_json *tokens, const mx_map *merges,
                                    const char *merges_path, const mx_json *config, mx_err *err) {
    const char *pattern;
    bool nfc;
    MX_TRY(class_pattern(config, &pattern, &nfc, err));
    for (const mx_json *it = mx_json_first(tokens); it; it = it->next) {
        if (it->type != MX_JSON_INT) {
            return mx_fail(err, MX_EINVAL, "vocab.json: token \"%.*s\" needs a whole number as its id",
                           (int)(it->key_len > 60 ? 60 : it->key_len), it->key);
        }
        MX_TRY(mx_vocab_add(&t->vocab, &t->vocab.model, it->key, it->key_len, it->u.i, err));
    }
    MX_TRY(read_merges(t, merges->p ? merges->p : "", merges->len, merges_path, err));
    if (nfc) MX_TRY(mx_normalizer_add(&t->normalizer, (mx_norm_step){.kind = MX_NORM_NFC}, err));
    if (mx_json_bool(config, "add_prefix_space", false, NULL))
        MX_TRY(
            mx_pretok_add(&t->pretok, (mx_pre_step){.kind = MX_PRE_PREFIX, .lit = " ", .lit_len = 1}, err));
    MX_TRY(mx_tok_byte_level(t, pattern, MX_REGEX_ONIGURUMA, err));
    MX_TRY(mx_tok_add_from_config(t, config, err));
    MX_TRY(add_named(t, config, err));
    if (mx_vocab_find(&t->vocab, &t->vocab.model, "<|endoftext|>", 13) >= 0)
        MX_TRY(mx_tok_add(t, (mx_added){.special = true}, "<|endoftext|>", 13, -1, err));
    const mx_json *bos = token_text(mx_json_get(config, "bos_token"));
    if (!bos || !mx_json_bool(config, "add_bos_token", false, NULL)) return MX_OK;
    int32_t frame[2] = {mx_vocab_find(&t->vocab, &t->vocab.added, bos->u.s.p, bos->u.s.len), -1};
    return frame[0] < 0 ? MX_OK : mx_tok_wrap(t, frame, 2, err);
}

mx_status mx_tok_from_vocab_merges(mx_tokenizer **out, mx_arena *a, const char *vocab, const char *merges,
                                   const mx_json *config, mx_err *err) {
    mx_map v = {0}, m = {0};
    mx_json *tokens = NULL;
    mx_status st = mx_map_open(&v, vocab, err);
    if (st == MX_OK) st = mx_map_open(&m, merges, err);
    if (st == MX_OK && (st = mx_json_parse(&tokens, a, v.p ? v.p : "", v.len, err)) != MX_OK)
        st = mx_err_prefix(err, st, "vocab.json");
    if (st == MX_OK && !mx_json_is(tokens, MX_JSON_OBJECT))
        st = mx_fail(err, MX_EINVAL, "vocab.json must be an object");
    if (st == MX_OK) st = mx_tok_new(out, mx_json_count(tokens), err);
    if (st == MX_OK) st = build_vocab_merges(*out, tokens, &m, merges, config, err);
    mx_map_close(&v);
    mx_map_close(&m);
    return st;
}
