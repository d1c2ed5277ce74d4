/* convert_tokenizer.c - tokenizer.json and its companions out of GGUF metadata.
 *
 * GGUF has two kinds that matter here. "gpt2": byte-level BPE with merges; the pre-tokenizer is a name ("pre") that
 * llama.cpp gave the pattern, which is spelled out again. "llama": SentencePiece BPE, whose pieces have scores instead of merges; a
 * merge is every way to cut a piece into two pieces, in the order of scores, as transformers derives them. */
#include "model/convert_int.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NORMAL = 1,
    UNKNOWN = 2,
    CONTROL = 3,
    USER_DEFINED = 4,
    UNUSED = 5,
    BYTE = 6
}; // tokenizer.ggml.token_type
enum { MAX_PIECE = 4096 };

typedef struct {
    const char *p;
    size_t len;
    float score;
    int type;
} piece;

typedef struct {
    mx_cv_job *j;
    const mx_gguf *g;
    const char *bad;
    piece *tok;
    size_t n;
    uint32_t *slot; // hash table: index + 1
    size_t n_slot;
    int64_t bos, eos, unk, pad;
    bool add_bos, spm;
} tk;

static bool same(const char *s, size_t len, const char *z) {
    return s && strlen(z) == len && !memcmp(s, z, len);
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------------------------ */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TAIL_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after)                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" after "|"

typedef struct {
    const char *names;   // space between
    const char *pattern; // NULL: ByteLevel's own, GPT-2's
    bool digits;         // each digit on its own, before
    bool nfc, ignore_merges, add_bos;
} pre_kind;

static const pre_kind pre_kinds[] = {
    {" default gpt-2 ", NULL, false, false, false, false},
    {" smollm starcoder refact command-r codeshell exaone minerva-7b ", NULL, true, false, false, false},
    {" qwen2 deepseek-r1-qwen ", CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" TAIL, false, true,
     false, false},
    {" llama-bpe llama3 llama-v3 ", CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" TAIL, false,
     false, true, true},
    {" smaug-bpe dbrx ", CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" TAIL, false, false, false,
     false},
    {" tekken ", CASED("") "\\p{N}|" TAIL_SLASH, false, false, true, true},
    {" gpt-4o llama4 ", CASED(CONTRACTIONS "?") "\\p{N}{1,3}|" TAIL_SLASH, false, false, false, false},
};

static const pre_kind *find_pre(const char *p, size_t len) {
    char word[66];
    if (!p) return &pre_kinds[0];
    if (len > 60) return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)len, p);
    for (size_t i = 0; i < countof(pre_kinds); i++)
        if (strstr(pre_kinds[i].names, word)) return &pre_kinds[i];
    return NULL;
}

static void put_z(mx_str *s, const char *z) { mx_json_put_string(s, z, strlen(z)); }

static void put_byte_level(mx_str *s, bool regex) {
    mx_str_printf(
        s, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}",
        regex ? "true" : "false");
}

static void put_pre_tokenizer(mx_str *s, const pre_kind *k) {
    mx_str_puts(s, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (k->digits) mx_str_puts(s, "{\"type\":\"Digits\",\"individual_digits\":true},");
    if (k->pattern) {
        mx_str_puts(s, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_z(s, k->pattern);
        mx_str_puts(s, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    put_byte_level(s, !k->pattern);
    mx_str_puts(s, "]}");
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------------- */

static uint64_t hash(const char *p, size_t len) { // FNV-1a
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static int64_t find(const tk *t, const char *p, size_t len) {
    for (size_t at = hash(p, len);; at++) {
        const uint32_t s = t->slot[at & (t->n_slot - 1)];
        if (!s) return -1;
        if (t->tok[s - 1].len == len && !memcmp(t->tok[s - 1].p, p, len)) return s - 1;
    }
}

static mx_status read_vocabulary(tk *t, mx_err *err) {
    mx_arena *a = &t->j->arena;
    const mx_gguf_kv *tokens = mx_gguf_get(t->g, "tokenizer.ggml.tokens");
    const mx_gguf_kv *scores = mx_gguf_get(t->g, "tokenizer.ggml.scores");
    const mx_gguf_kv *types = mx_gguf_get(t->g, "tokenizer.ggml.token_type");
    if (!tokens || tokens->type != MX_GGUF_ARRAY || tokens->item != MX_GGUF_STRING || !tokens->n)
        return mx_fail(err, MX_ENOTFOUND, "tokenizer.ggml.tokens is missing: the file holds no vocabulary");
    if (tokens->n > 1 << 24)
        return mx_fail(err, MX_ELIMIT, "tokenizer.ggml.tokens has more than 16 million entries");
    t->n = tokens->n;
    if (t->spm && (!scores || scores->n != t->n || !mx_gguf_is_num(scores)))
        return mx_fail(err, MX_EINVAL, "tokenizer.ggml.scores does not have a score for each token");
    if (types && (types->n != t->n || !mx_gguf_is_int(types)))
        return mx_fail(err, MX_EINVAL, "tokenizer.ggml.token_type does not have a type for each token");
    t->n_slot = 64;
    while (t->n_slot < t->n * 2) t->n_slot *= 2;
    t->tok = mx_arena_array(a, t->n, sizeof *t->tok);
    t->slot = mx_arena_array(a, t->n_slot, sizeof *t->slot);
    if (!t->tok || !t->slot) return mx_cv_nomem(err);
    size_t doubled = 0;
    for (mx_gguf_iter it = mx_gguf_strings(tokens); mx_gguf_next(&it);) {
        piece *p = &t->tok[it.i];
        *p = (piece){it.p, it.len, 0, NORMAL};
        if (it.len > MAX_PIECE)
            return mx_fail(err, MX_ELIMIT, "token %llu has %zu bytes", (unsigned long long)it.i, it.len);
        if (scores && scores->n == t->n && mx_gguf_is_num(scores))
            p->score = (float)mx_gguf_num_at(scores, it.i);
        if (types) p->type = (int)mx_gguf_int_at(types, it.i);
        if (isnan(p->score)) return mx_fail(err, MX_EINVAL, "tokenizer.ggml.scores holds a NaN");
        if (find(t, it.p, it.len) >= 0) { // vocab.json is an object: give the second one a name of its own
            char *name = mx_arena_printf(a, "<|duplicate_%llu|>", (unsigned long long)it.i);
            if (!name) return mx_cv_nomem(err);
            p->p = name;
            p->len = strlen(name);
            p->type = UNUSED;
            doubled++;
        }
        size_t at = hash(p->p, p->len);
        while (t->slot[at & (t->n_slot - 1)]) at++;
        t->slot[at & (t->n_slot - 1)] = (uint32_t)it.i + 1;
    }
    if (doubled) mx_cv_note(t->j, "%zu tokens that the vocabulary holds twice were renamed", doubled);
    return MX_OK;
}

static void put_vocab(mx_str *s, const tk *t) {
    mx_str_puts(s, "\"vocab\":{");
    for (size_t i = 0; i < t->n; i++) {
        if (i) mx_str_putc(s, ',');
        mx_json_put_string(s, t->tok[i].p, t->tok[i].len);
        mx_str_printf(s, ":%zu", i);
    }
    mx_str_puts(s, "},");
}

/* ---- merges -------------------------------------------------------------------------------------------------------- */

static mx_status put_merges(mx_str *s, const tk *t, mx_err *err) {
    const mx_gguf_kv *merges = mx_gguf_get(t->g, "tokenizer.ggml.merges");
    if (!merges || merges->type != MX_GGUF_ARRAY || merges->item != MX_GGUF_STRING)
        return mx_fail(err, MX_ENOTFOUND,
                       "tokenizer.ggml.merges is missing, which a byte-level vocabulary needs");
    mx_str_puts(s, "\"merges\":[");
    for (mx_gguf_iter it = mx_gguf_strings(merges); mx_gguf_next(&it);) {
        const char *cut =
            it.len > 1 ? memchr(it.p + 1, ' ', it.len - 1) : NULL; // the left part is never empty
        if (!cut)
            return mx_fail(err, MX_EINVAL, "tokenizer.ggml.merges: entry %llu is no pair",
                           (unsigned long long)it.i);
        if (it.i) mx_str_putc(s, ',');
        mx_str_putc(s, '[');
        mx_json_put_string(s, it.p, (size_t)(cut - it.p));
        mx_str_putc(s, ',');
        mx_json_put_string(s, cut + 1, it.len - (size_t)(cut - it.p) - 1);
        mx_str_putc(s, ']');
    }
    mx_str_putc(s, ']');
    return MX_OK;
}

typedef struct {
    float score;
    uint32_t n_left, n_right; // characters
    uint32_t whole, left, right;
} merge;

static int by_rank(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->n_left != y->n_left) return x->n_left > y->n_left ? -1 : 1;
    if (x->n_right != y->n_right) return x->n_right > y->n_right ? -1 : 1;
    if (x->whole != y->whole) return x->whole < y->whole ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

/* Pieces that text never becomes by merging: bytes, control tokens; added tokens are found before. */
static bool mergeable(const piece *p) { return p->type == NORMAL && p->len; }

static mx_status put_spm_merges(mx_str *s, const tk *t, mx_err *err) {
    merge *m = NULL;
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < t->n; i++) {
        const piece *p = &t->tok[i];
        if (!mergeable(p)) continue;
        uint32_t n_char = 0;
        for (size_t k = 0; k < p->len; k++) n_char += (p->p[k] & 0xC0) != 0x80;
        uint32_t before = 0; // characters of p->p[0..k)
        for (size_t k = 1; k < p->len; k++) {
            before += (p->p[k - 1] & 0xC0) != 0x80;
            if ((p->p[k] & 0xC0) == 0x80) continue;
            const int64_t l = find(t, p->p, k), r = find(t, p->p + k, p->len - k);
            if (l < 0 || r < 0 || !mergeable(&t->tok[l]) || !mergeable(&t->tok[r])) continue;
            if (n == cap) {
                cap = cap ? cap * 2 : 1 << 16;
                merge *more = realloc(m, cap * sizeof *m);
                if (!more) {
                    free(m);
                    return mx_cv_nomem(err);
                }
                m = more;
            }
            m[n++] = (merge){p->score, before, n_char - before, (uint32_t)i, (uint32_t)l, (uint32_t)r};
        }
    }
    if (n) qsort(m, n, sizeof *m, by_rank);
    mx_str_puts(s, "\"merges\":[");
    for (size_t i = 0; i < n; i++) {
        const piece *l = &t->tok[m[i].left], *r = &t->tok[m[i].right];
        mx_str_puts(s, i ? ",[" : "[");
        mx_json_put_string(s, l->p, l->len);
        mx_str_putc(s, ',');
        mx_json_put_string(s, r->p, r->len);
        mx_str_putc(s, ']');
    }
    mx_str_putc(s, ']');
    free(m);
    return MX_OK;
}

/* ---- the files ----------------------------------------------------------------------------------------------------- */

static void put_token(mx_str *s, const tk *t, int64_t id) {
    if (id >= 0)
        mx_json_put_string(s, t->tok[id].p, t->tok[id].len);
    else
        mx_str_puts(s, "null");
}

static bool is_added(const piece *p) {
    return p->type == CONTROL || p->type == USER_DEFINED || p->type == UNKNOWN;
}

/* The fields of an added token, in both files the same. */
static void put_added(mx_str *s, const piece *p) {
    mx_str_puts(s, "\"content\":");
    mx_json_put_string(s, p->p, p->len);
    mx_str_printf(
        s, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
        p->type == USER_DEFINED ? "false" : "true");
}

static void put_post_processor(mx_str *s, const tk *t) {
    if (!t->add_bos || t->bos < 0) {
        if (t->spm)
            mx_str_puts(s, "null");
        else
            put_byte_level(s, true);
        return;
    }
    mx_str bos = {0};
    put_token(&bos, t, t->bos);
    if (!bos.p) {
        s->oom = true;
        return;
    }
    mx_str_printf(
        s, "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":%s,\"type_id\":0}},",
        bos.p);
    mx_str_puts(s, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],");
    mx_str_printf(
        s,
        "\"pair\":[{\"SpecialToken\":{\"id\":%s,\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},",
        bos.p);
    mx_str_printf(
        s, "{\"SpecialToken\":{\"id\":%s,\"type_id\":1}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],",
        bos.p);
    mx_str_printf(s, "\"special_tokens\":{%s:{\"id\":%s,\"ids\":[%lld],\"tokens\":[%s]}}}", bos.p, bos.p,
                  (long long)t->bos, bos.p);
    mx_str_free(&bos);
}

static mx_status build_tokenizer(tk *t, mx_str *s, mx_err *err) {
    size_t len;
    const char *pre = mx_gguf_str(t->g, "tokenizer.ggml.pre", &len, &t->bad);
    const pre_kind *kind = t->spm ? &pre_kinds[0] : find_pre(pre, len);
    if (!kind)
        return mx_fail(err, MX_UNSUPPORTED, "the pre-tokenizer %.*s is not known", (int)(len < 60 ? len : 60),
                       pre);
    t->add_bos = mx_gguf_bool(t->g, "tokenizer.ggml.add_bos_token", t->spm || kind->add_bos, &t->bad);
    const bool prefix = mx_gguf_bool(t->g, "tokenizer.ggml.add_space_prefix", true, &t->bad);
    mx_str_puts(s, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    bool first = true;
    for (size_t i = 0; i < t->n; i++) {
        if (!is_added(&t->tok[i])) continue;
        mx_str_printf(s, "%s{\"id\":%zu,", first ? "" : ",", i);
        put_added(s, &t->tok[i]);
        first = false;
    }
    mx_str_puts(s, "],\"normalizer\":");
    if (t->spm) {
        const char *replace =
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}";
        if (prefix)
            mx_str_printf(
                s,
                "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},%s]}",
                replace);
        else
            mx_str_puts(s, replace);
        mx_str_puts(s, ",\"pre_tokenizer\":null");
    } else {
        mx_str_puts(s, kind->nfc ? "{\"type\":\"NFC\"},\"pre_tokenizer\":" : "null,\"pre_tokenizer\":");
        put_pre_tokenizer(s, kind);
    }
    mx_str_puts(s, ",\"post_processor\":");
    put_post_processor(s, t);
    mx_str_puts(s, ",\"decoder\":");
    if (t->spm) {
        mx_str_puts(
            s,
            "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},");
        mx_str_puts(s, "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
        if (prefix) mx_str_puts(s, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
        mx_str_puts(s, "]}");
    } else {
        mx_str_puts(
            s, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}");
    }
    mx_str_puts(s, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    put_token(s, t, t->spm ? t->unk : -1);
    mx_str_printf(
        s,
        ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_fallback\":%s,",
        t->spm ? "true" : "false", t->spm ? "true" : "false");
    mx_str_printf(s, "\"ignore_merges\":%s,", kind->ignore_merges ? "true" : "false");
    put_vocab(s, t);
    MX_TRY(t->spm ? put_spm_merges(s, t, err) : put_merges(s, t, err));
    mx_str_puts(s, "}}\n");
    return s->oom ? mx_cv_nomem(err) : MX_OK;
}

static mx_status build_tokenizer_config(const tk *t, mx_str *s, const char *template, size_t len,
                                        int64_t n_ctx, mx_err *err) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    const int64_t ids[] = {t->bos, t->eos, t->unk, t->pad};
    mx_str_puts(s, "{\"added_tokens_decoder\":{");
    bool first = true;
    for (size_t i = 0; i < t->n; i++) {
        if (!is_added(&t->tok[i])) continue;
        mx_str_printf(s, "%s\"%zu\":{", first ? "" : ",", i);
        put_added(s, &t->tok[i]);
        first = false;
    }
    mx_str_printf(s, "},\"add_bos_token\":%s,\"add_prefix_space\":false", t->add_bos ? "true" : "false");
    for (size_t i = 0; i < countof(names); i++) {
        mx_str_printf(s, ",\"%s\":", names[i]);
        put_token(s, t, ids[i]);
    }
    mx_str_printf(s, ",\"clean_up_tokenization_spaces\":false,\"model_max_length\":%lld", (long long)n_ctx);
    /* not the class of the family: transformers would rebuild its pre-tokenizer from that */
    mx_str_puts(s, ",\"tokenizer_class\":\"PreTrainedTokenizerFast\"");
    if (template) {
        mx_str_puts(s, ",\"chat_template\":");
        mx_json_put_string(s, template, len);
    }
    mx_str_puts(s, "}\n");
    return s->oom ? mx_cv_nomem(err) : MX_OK;
}

static mx_status keep(tk *t, const char *name, const mx_str *s, mx_err *err) {
    const char *text = mx_arena_strndup(&t->j->arena, s->p, s->len);
    return text ? mx_cv_add_file(t->j, name, text, s->len, NULL, err) : mx_cv_nomem(err);
}

static int64_t token_id(tk *t, const char *name) {
    const int64_t id = mx_gguf_int(t->g, name, -1, &t->bad);
    return id >= 0 && (uint64_t)id < t->n ? id : -1;
}

mx_status mx_cv_tokenizer(mx_cv_job *j, int64_t n_ctx, mx_err *err) {
    tk t = {.j = j, .g = j->gguf};
    size_t len;
    const char *model = mx_gguf_str(t.g, "tokenizer.ggml.model", &len, &t.bad);
    t.spm = same(model, len, "llama");
    if (!model)
        return mx_fail(err, MX_ENOTFOUND, "tokenizer.ggml.model is missing: the file holds no tokenizer");
    if (!t.spm && !same(model, len, "gpt2"))
        return mx_fail(err, MX_UNSUPPORTED,
                       "a tokenizer of kind %.*s cannot be converted, only gpt2 and llama",
                       (int)(len < 60 ? len : 60), model);
    MX_TRY(read_vocabulary(&t, err));
    t.bos = token_id(&t, "tokenizer.ggml.bos_token_id");
    t.eos = token_id(&t, "tokenizer.ggml.eos_token_id");
    t.unk = token_id(&t, "tokenizer.ggml.unknown_token_id");
    t.pad = token_id(&t, "tokenizer.ggml.padding_token_id");
    for (size_t i = 0; i < t.n && t.unk < 0 && t.spm; i++)
        if (t.tok[i].type == UNKNOWN) t.unk = (int64_t)i;
    size_t template_len = 0;
    const char *template = mx_gguf_str(t.g, "tokenizer.chat_template", &template_len, &t.bad);
    mx_str s = {0}, conf = {0};
    mx_status st = build_tokenizer(&t, &s, err);
    if (st == MX_OK) st = build_tokenizer_config(&t, &conf, template, template_len, n_ctx, err);
    if (st == MX_OK && t.bad)
        st = mx_fail(err, MX_EINVAL, "the metadata %s is of a type that is not understood", t.bad);
    if (st == MX_OK) st = keep(&t, "tokenizer.json", &s, err);
    if (st == MX_OK) st = keep(&t, "tokenizer_config.json", &conf, err);
    if (st == MX_OK && template)
        st = mx_cv_add_file(j, "chat_template.jinja", template, template_len, NULL, err);
    if (st == MX_OK && !template) mx_cv_note(j, "the file holds no chat template");
    mx_str_free(&s);
    mx_str_free(&conf);
    return st;
}
