/* tokenizer_tiktoken.c - vocabularies in base64: tiktoken files ("IQ== 0" a line) and Mistral's tekken.json.
 *
 * They hold no merges: two neighbours merge if together they are a token, the one with the lowest rank first. Nor does a
 * tiktoken file say how to split text or which special tokens there are; that is code of the model's repository, so it
 * is known here for the families that publish such files, which the number of entries tells apart. */
#include "text/tokenizer_int.h"
#include "base/file.h"
#include "text/unicode.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAIL "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SHORTS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define QWEN                                                                                                 \
    SHORTS                                                                                                   \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 SHORTS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+" TAIL
#define CL100K                                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|" \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define O200K                                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" SHORTS "?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER    \
    "]*" SHORTS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define NO_HAN "&&[^\\p{Han}]]"
#define KIMI                                                                                                 \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NO_HAN "*[" LOWER NO_HAN "+" SHORTS                          \
    "?|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NO_HAN "+[" LOWER NO_HAN "*" SHORTS "?" TAIL

/* Special tokens, in order: {name, how many}; a name with %d counts from `from`. */
typedef struct {
    const char *name;
    int n, from;
} specials;

static const specials qwen[] = {
    {"<|endoftext|>", 1, 0}, {"<|im_start|>", 1, 0}, {"<|im_end|>", 1, 0}, {"<|extra_%d|>", 205, 0}, {0}};
static const specials llama3[] = {{"<|begin_of_text|>", 1, 0},
                                  {"<|end_of_text|>", 1, 0},
                                  {"<|reserved_special_token_%d|>", 2, 0},
                                  {"<|finetune_right_pad_id|>", 1, 0},
                                  {"<|step_id|>", 1, 0},
                                  {"<|start_header_id|>", 1, 0},
                                  {"<|end_header_id|>", 1, 0},
                                  {"<|eom_id|>", 1, 0},
                                  {"<|eot_id|>", 1, 0},
                                  {"<|python_tag|>", 1, 0},
                                  {"<|image|>", 1, 0},
                                  {"<|reserved_special_token_%d|>", 244, 2},
                                  {0}};
static const specials llama4[] = {{"<|begin_of_text|>", 1, 0},
                                  {"<|end_of_text|>", 1, 0},
                                  {"<|fim_prefix|>", 1, 0},
                                  {"<|fim_middle|>", 1, 0},
                                  {"<|fim_suffix|>", 1, 0},
                                  {"<|header_start|>", 1, 0},
                                  {"<|header_end|>", 1, 0},
                                  {"<|eom|>", 1, 0},
                                  {"<|eot|>", 1, 0},
                                  {"<|step|>", 1, 0},
                                  {"<|text_post_train_reserved_special_token_%d|>", 6, 0},
                                  {"<|python_start|>", 1, 0},
                                  {"<|python_end|>", 1, 0},
                                  {"<|finetune_right_pad|>", 1, 0},
                                  {"<|text_post_train_reserved_special_token_%d|>", 61, 8},
                                  {"<|image_start|>", 1, 0},
                                  {"<|image_end|>", 1, 0},
                                  {"<|vision_reserved_special_token_%d|>", 2, 0},
                                  {"<|tile_x_separator|>", 1, 0},
                                  {"<|tile_y_separator|>", 1, 0},
                                  {"<|vision_reserved_special_token_%d|>", 4, 2},
                                  {"<|image|>", 1, 0},
                                  {"<|vision_reserved_special_token_%d|>", 1, 6},
                                  {"<|patch|>", 1, 0},
                                  {"<|vision_reserved_special_token_%d|>", 1041, 7},
                                  {"<|reasoning_reserved_special_token_%d|>", 8, 0},
                                  {"<|reasoning_thinking_start|>", 1, 0},
                                  {"<|reasoning_thinking_end|>", 1, 0},
                                  {"<|reserved_special_token_%d|>", 899, 0},
                                  {0}};
static const specials kimi[] = {{"<|reserved_token_%d|>", 258, 163584}, {0}};
static const specials cl100k[] = {{NULL, 1, 0},
                                  {"<|endoftext|>", 1, 0},
                                  {"<|fim_prefix|>", 1, 0},
                                  {"<|fim_middle|>", 1, 0},
                                  {"<|fim_suffix|>", 1, 0},
                                  {NULL, 15, 0},
                                  {"<|endofprompt|>", 1, 0},
                                  {0}};
static const specials o200k[] = {
    {NULL, 1, 0}, {"<|endoftext|>", 1, 0}, {NULL, 18, 0}, {"<|endofprompt|>", 1, 0}, {0}};

static const struct family {
    size_t entries;
    const char *pattern;
    const specials *special;
    bool nfc;
    const char *bos; // put in front, or NULL
} families[] = {
    {151643, QWEN, qwen, true, NULL},
    {128000, LLAMA3, llama3, false, "<|begin_of_text|>"},
    {200000, O200K, llama4, false, "<|begin_of_text|>"},
    {163584, KIMI, kimi, false, NULL},
    {100256, CL100K, cl100k, false, NULL},
    {199998, O200K, o200k, false, NULL},
};

/* Decode base64 into out, which has room for 3/4 of the length and 2 more; returns the bytes or -1. */
static long base64(const char *p, size_t len, unsigned char *out) {
    uint32_t bits = 0;
    long n = 0;
    int held = 0;
    while (len && p[len - 1] == '=') len--;
    for (size_t i = 0; i < len; i++) {
        char c = p[i];
        int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                : c >= 'a' && c <= 'z' ? c - 'a' + 26
                : c >= '0' && c <= '9' ? c - '0' + 52
                : c == '+'             ? 62
                : c == '/'             ? 63
                                       : -1;
        if (v < 0) return -1;
        bits = bits << 6 | (uint32_t)v;
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[n++] = (unsigned char)(bits >> held);
        }
    }
    return n;
}

/* Add a token given in base64 under its byte-level spelling. scratch is used for that. */
static mx_status add_base64(mx_tokenizer *t, const char *p, size_t len, int64_t id, mx_str *scratch,
                            mx_err *err) {
    unsigned char bytes[4096];
    if (len > sizeof bytes) return mx_fail(err, MX_ELIMIT, "token %lld is too long", (long long)id);
    long n = base64(p, len, bytes);
    if (n <= 0) return mx_fail(err, MX_EINVAL, "token %lld is not valid base64", (long long)id);
    mx_str_clear(scratch);
    mx_bl_encode(scratch, (const char *)bytes, (size_t)n);
    if (scratch->oom) return mx_fail(err, MX_ENOMEM, "no memory for a token");
    return mx_vocab_add(&t->vocab, &t->vocab.model, scratch->p, scratch->len, id, err);
}

/* Every byte must be a token, so that any text can be written. */
static mx_status check_bytes(const mx_tokenizer *t, mx_err *err) {
    mx_str s = {0};
    int missing = -1;
    for (int b = 0; b < 256 && missing < 0; b++) {
        char c = (char)b;
        mx_str_clear(&s);
        mx_bl_encode(&s, &c, 1);
        if (s.oom || mx_vocab_find(&t->vocab, &t->vocab.model, s.p, s.len) < 0) missing = b;
    }
    mx_str_free(&s);
    return missing < 0 ? MX_OK
                       : mx_fail(err, MX_EINVAL, "the vocabulary has no token for the byte 0x%02X", missing);
}

static mx_status read_lines(mx_tokenizer *t, const char *p, size_t len, size_t *n_entry, mx_err *err) {
    mx_str scratch = {0};
    mx_status st = MX_OK;
    size_t line = 0;
    *n_entry = 0;
    for (const char *end = p + len, *nl; p < end && st == MX_OK; p = nl + 1) {
        nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl) nl = end;
        size_t n = (size_t)(nl - p);
        line++;
        if (n && p[n - 1] == '\r') n--;
        if (!n) continue;
        const char *sp = memchr(p, ' ', n);
        size_t digits = sp ? n - (size_t)(sp - p) - 1 : 0;
        int64_t id = 0;
        bool ok = digits > 0 && digits < 10;
        for (size_t i = 0; ok && i < digits; i++) {
            ok = sp[1 + i] >= '0' && sp[1 + i] <= '9';
            id = id * 10 + (sp[1 + i] - '0');
        }
        st = ok ? add_base64(t, p, (size_t)(sp - p), id, &scratch, err)
                : mx_fail(err, MX_EINVAL, "not a token in base64 and its rank");
        if (st != MX_OK) mx_err_prefix(err, st, "line %zu", line);
        ++*n_entry;
    }
    mx_str_free(&scratch);
    return st;
}

/* Special tokens from id `first` on; those that the config named already keep their names. */
static mx_status add_specials(mx_tokenizer *t, const specials *s, int64_t first, mx_err *err) {
    for (int64_t id = first; s->n; s++) {
        for (int i = 0; i < s->n; i++, id++) {
            char name[80];
            if (!s->name || mx_vocab_has(&t->vocab, (int32_t)id)) continue;
            const char *d = strstr(s->name, "%d");
            if (d)
                snprintf(name, sizeof name, "%.*s%d%s", (int)(d - s->name), s->name, s->from + i, d + 2);
            else
                snprintf(name, sizeof name, "%s", s->name);
            if (mx_vocab_find(&t->vocab, &t->vocab.added, name, strlen(name)) >= 0) continue;
            MX_TRY(mx_tok_add(t, (mx_added){.special = true}, name, strlen(name), id, err));
        }
    }
    return MX_OK;
}

static mx_status wrap_bos(mx_tokenizer *t, const char *bos, mx_err *err) {
    int32_t frame[2] = {bos ? mx_vocab_find(&t->vocab, &t->vocab.added, bos, strlen(bos)) : -1, -1};
    return frame[0] < 0 ? MX_OK : mx_tok_wrap(t, frame, 2, err);
}

static mx_status build_tiktoken(mx_tokenizer *t, const mx_map *map, const mx_json *config, mx_err *err) {
    size_t n;
    MX_TRY(read_lines(t, map->p ? map->p : "", map->len, &n, err));
    MX_TRY(check_bytes(t, err));
    const struct family *f = NULL;
    for (size_t i = 0; i < countof(families); i++) {
        if (families[i].entries == n) f = &families[i];
    }
    if (!f) {
        return mx_fail(err, MX_UNSUPPORTED,
                       "how a tiktoken vocabulary of %zu entries splits text is not known here: "
                       "a tokenizer.json is needed",
                       n);
    }
    t->bpe.by_vocab = t->bpe.ignore_merges = true;
    if (f->nfc) MX_TRY(mx_normalizer_add(&t->normalizer, (mx_norm_step){.kind = MX_NORM_NFC}, err));
    MX_TRY(mx_tok_byte_level(t, f->pattern, MX_REGEX_FANCY, err));
    MX_TRY(mx_tok_add_from_config(t, config, err));
    MX_TRY(add_specials(t, f->special, (int64_t)n, err));
    return wrap_bos(t, f->bos, err);
}

mx_status mx_tok_from_tiktoken(mx_tokenizer **out, const char *path, const mx_json *config, mx_err *err) {
    mx_map map;
    MX_TRY(mx_map_open(&map, path, err));
    mx_status st = MX_OK;
    if (map.len &&
        map.p[0] == '\n') { // field 1 of a protocol buffer; no line of base64 is empty at the start
        st = mx_fail(err, MX_UNSUPPORTED,
                     "this is a SentencePiece model, which is not read: a tokenizer.json is needed");
    }
    if (st == MX_OK) st = mx_tok_new(out, map.len / 14, err);
    if (st == MX_OK) st = build_tiktoken(*out, &map, config, err);
    mx_map_close(&map);
    return st;
}

mx_status mx_tok_find_tiktoken(const char **path, const char *dir, mx_arena *a, mx_err *err) {
    static const char *const names[] = {"tokenizer.model", "tiktoken.model"};
    for (size_t i = 0; i < countof(names); i++) {
        char *p = mx_path_join(a, dir, names[i]);
        if (!p) return mx_fail(err, MX_ENOMEM, "no memory to open a tokenizer");
        if (mx_is_file(p)) {
            *path = p;
            return MX_OK;
        }
    }
    DIR *d = opendir(dir);
    char *best = NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n <= 9 || strcmp(e->d_name + n - 9, ".tiktoken") || (best && strcmp(e->d_name, best) >= 0))
            continue;
        best = mx_arena_strdup(a, e->d_name);
    }
    if (d) closedir(d);
    *path = best ? mx_path_join(a, dir, best) : NULL;
    if (*path) return MX_OK;
    return mx_fail(err, MX_ENOTFOUND,
                   "%s holds no tokenizer: tokenizer.json, vocab.json with merges.txt, tekken.json or a "
                   "tiktoken file",
                   dir);
}

/* ---- tekken.json ---------------------------------------------------------------------------------------- */

/* Special tokens of files that do not list theirs (versions up to v7). */
static const specials tekken_old[] = {{"<unk>", 1, 0},
                                      {"<s>", 1, 0},
                                      {"</s>", 1, 0},
                                      {"[INST]", 1, 0},
                                      {"[/INST]", 1, 0},
                                      {"[AVAILABLE_TOOLS]", 1, 0},
                                      {"[/AVAILABLE_TOOLS]", 1, 0},
                                      {"[TOOL_RESULTS]", 1, 0},
                                      {"[/TOOL_RESULTS]", 1, 0},
                                      {"[TOOL_CALLS]", 1, 0},
                                      {"[IMG]", 1, 0},
                                      {"<pad>", 1, 0},
                                      {"[IMG_BREAK]", 1, 0},
                                      {"[IMG_END]", 1, 0},
                                      {"[PREFIX]", 1, 0},
                                      {"[MIDDLE]", 1, 0},
                                      {"[SUFFIX]", 1, 0},
                                      {"[SYSTEM_PROMPT]", 1, 0},
                                      {"[/SYSTEM_PROMPT]", 1, 0},
                                      {"[TOOL_CONTENT]", 1, 0},
                                      {0}};

static mx_status tekken_specials(mx_tokenizer *t, const mx_json *list, int64_t n, mx_err *err) {
    if (!mx_json_is(list, MX_JSON_ARRAY)) {
        MX_TRY(add_specials(t, tekken_old, 0, err));
    } else {
        for (const mx_json *it = mx_json_first(list); it; it = it->next) {
            const mx_json *text = mx_json_get(it, "token_str"), *rank = mx_json_get(it, "rank");
            if (!mx_json_is(text, MX_JSON_STRING) || !mx_json_is(rank, MX_JSON_INT) || rank->u.i < 0 ||
                rank->u.i >= n)
                return mx_fail(err, MX_EINVAL,
                               "special_tokens: an entry needs \"token_str\" and a \"rank\" below %lld",
                               (long long)n);
            MX_TRY(mx_tok_add(t, (mx_added){.special = true}, text->u.s.p, text->u.s.len, rank->u.i, err));
        }
    }
    for (int64_t id = 0; id < n; id++) {
        char name[40];
        if (mx_vocab_has(&t->vocab, (int32_t)id)) continue;
        snprintf(name, sizeof name, "<SPECIAL_%lld>", (long long)id);
        MX_TRY(mx_tok_add(t, (mx_added){.special = true}, name, strlen(name), id, err));
    }
    return wrap_bos(t, "<s>", err);
}

static mx_status build_tekken(mx_tokenizer *t, const mx_json *root, mx_err *err) {
    const mx_json *config = mx_json_get(root, "config"), *vocab = mx_json_get(root, "vocab");
    const char *bad = NULL, *pattern = mx_json_str(config, "pattern", NULL, &t->arena, &bad);
    int64_t size = mx_json_int(config, "default_vocab_size", -1, &bad);
    int64_t special = mx_json_int(config, "default_num_special_tokens", -1, &bad);
    if (bad || !pattern || special < 0 || size <= special || size > MX_TOK_MAX_ID || special > 1 << 20 ||
        !mx_json_is(vocab, MX_JSON_ARRAY)) {
        return mx_fail(err, MX_EINVAL,
                       "this is no tekken file: it needs \"vocab\" and \"config\" with pattern, "
                       "default_vocab_size and default_num_special_tokens");
    }
    mx_str scratch = {0};
    mx_status st = MX_OK;
    for (const mx_json *it = mx_json_first(vocab); it && st == MX_OK; it = it->next) {
        const mx_json *rank = mx_json_get(it, "rank"), *bytes = mx_json_get(it, "token_bytes");
        if (!mx_json_is(rank, MX_JSON_INT) || rank->u.i < 0 || !mx_json_is(bytes, MX_JSON_STRING))
            st = mx_fail(err, MX_EINVAL, "vocab: an entry needs \"rank\" and \"token_bytes\"");
        else if (rank->u.i < size - special) // the file holds more than the model uses
            st = add_base64(t, bytes->u.s.p, bytes->u.s.len, rank->u.i + special, &scratch, err);
    }
    mx_str_free(&scratch);
    MX_TRY(st);
    MX_TRY(check_bytes(t, err));
    t->bpe.by_vocab = t->bpe.ignore_merges = true;
    MX_TRY(mx_tok_byte_level(t, pattern, MX_REGEX_FANCY, err));
    return tekken_specials(t, mx_json_get(root, "special_tokens"), special, err);
}

mx_status mx_tok_from_tekken(mx_tokenizer **out, const char *path, mx_err *err) {
    mx_map map;
    mx_arena doc = {0};
    mx_json *root = NULL;
    MX_TRY(mx_map_open(&map, path, err));
    mx_status st = mx_json_parse(&root, &doc, map.p ? map.p : "", map.len, err);
    if (st == MX_OK) st = mx_tok_new(out, mx_json_count(mx_json_get(root, "vocab")), err);
    if (st == MX_OK) st = build_tekken(*out, root, err);
    mx_arena_free(&doc);
    mx_map_close(&map);
    return st;
}
