/* tokenizer_json.c - the tokenizer.json of Hugging Face tokenizers. */
#include "text/tokenizer_int.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_NEST = 32, MAX_FRAME = 4096 };

/* ---- model ---------------------------------------------------------------------------------------------- */

static mx_status read_vocab(mx_tokenizer *t, const mx_json *vocab, mx_err *err) {
    const mx_json *ahead = mx_json_first(vocab);
    for (int i = 0; ahead && i < 16; i++) ahead = ahead->next;
    for (const mx_json *it = mx_json_first(vocab); it; it = it->next) {
        if (ahead) {
            mx_vocab_prefetch(&t->vocab.model, ahead->key, ahead->key_len);
            ahead = ahead->next;
        }
        if (it->type != MX_JSON_INT) {
            return mx_fail(err, MX_EINVAL, "vocab: token \"%.*s\" needs a whole number as its id, not %s",
                           (int)(it->key_len > 60 ? 60 : it->key_len), it->key, mx_json_type_name(it));
        }
        MX_TRY(mx_vocab_add(&t->vocab, &t->vocab.model, it->key, it->key_len, it->u.i, err));
    }
    return MX_OK;
}

/* One entry of "merges"; *skip for the line that names a version. */
static mx_status read_merge(const mx_json *v, uint32_t rank, mx_merge_text *m, bool *skip, mx_err *err) {
    const mx_json *a = mx_json_first(v), *z = a ? a->next : NULL;
    *skip = false;
    if (v->type == MX_JSON_STRING) { // "a b"
        const char *p = v->u.s.p, *sp = memchr(p, ' ', v->u.s.len);
        size_t left = sp ? (size_t)(sp - p) : 0, right = sp ? v->u.s.len - left - 1 : 0;
        *skip = v->u.s.len >= 8 && !memcmp(p, "#version", 8);
        if (!*skip && (!sp || memchr(sp + 1, ' ', right)))
            return mx_fail(err, MX_EINVAL, "merge %u is not two tokens with one space between them", rank);
        *m = (mx_merge_text){.a = p, .a_len = left, .z = sp ? sp + 1 : p, .z_len = right};
        return MX_OK;
    }
    if (v->type != MX_JSON_ARRAY || mx_json_count(v) != 2 || a->type != MX_JSON_STRING ||
        z->type != MX_JSON_STRING)
        return mx_fail(err, MX_EINVAL, "merge %u is neither \"a b\" nor [\"a\", \"b\"]", rank);
    *m = (mx_merge_text){.a = a->u.s.p, .a_len = a->u.s.len, .z = z->u.s.p, .z_len = z->u.s.len};
    return MX_OK;
}

static mx_status read_merges(mx_tokenizer *t, const mx_json *merges, mx_err *err) {
    size_t total = mx_json_count(merges), n = 0;
    mx_merge_text m[MX_MERGE_BATCH];
    uint32_t rank = 0; // of m[0]
    bool skip;
    MX_TRY(mx_bpe_reserve(&t->bpe, total, err));
    for (const mx_json *it = mx_json_first(merges); it; it = it->next) {
        MX_TRY(read_merge(it, rank + (uint32_t)n, &m[n], &skip, err));
        if (skip || ++n < MX_MERGE_BATCH) continue;
        MX_TRY(mx_bpe_add_merges(&t->bpe, m, n, rank, err));
        rank += (uint32_t)n;
        n = 0;
    }
    MX_TRY(mx_bpe_add_merges(&t->bpe, m, n, rank, err));
    if (total && !t->bpe.n_merge)
        return mx_fail(err, MX_EINVAL, "merges: none of its %zu entries is a merge", total);
    return MX_OK;
}

static mx_status read_affix(mx_tokenizer *t, const mx_json *model, const char *key, const char **out,
                            size_t *len, mx_err *err) {
    const mx_json *v = mx_json_get(model, key);
    if (!v || v->type == MX_JSON_NULL) return MX_OK;
    if (v->type != MX_JSON_STRING) return mx_fail(err, MX_EINVAL, "\"%s\" must be a string", key);
    *out = mx_arena_strndup(&t->arena, v->u.s.p, v->u.s.len);
    *len = v->u.s.len;
    return *out ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for a tokenizer");
}

static mx_status read_model(mx_tokenizer *t, const mx_json *model, mx_err *err) {
    const mx_json *vocab = mx_json_get(model, "vocab"), *merges = mx_json_get(model, "merges");
    const char *bad = NULL;
    mx_bpe *b = &t->bpe;
    b->byte_fallback = mx_json_bool(model, "byte_fallback", false, &bad);
    b->fuse_unk = mx_json_bool(model, "fuse_unk", false, &bad);
    b->ignore_merges = mx_json_bool(model, "ignore_merges", false, &bad);
    double dropout = mx_json_num(model, "dropout", 0, &bad);
    if (bad) return mx_fail(err, MX_EINVAL, "\"%s\" has the wrong type", bad);
    if (dropout != 0) {
        return mx_fail(err, MX_UNSUPPORTED,
                       "\"dropout\" makes ids random and is for training only: set it to null");
    }
    MX_TRY(read_affix(t, model, "continuing_subword_prefix", &b->prefix, &b->prefix_len, err));
    MX_TRY(read_affix(t, model, "end_of_word_suffix", &b->suffix, &b->suffix_len, err));
    MX_TRY(read_vocab(t, vocab, err));
    const char *unk = NULL;
    size_t unk_len = 0;
    MX_TRY(read_affix(t, model, "unk_token", &unk, &unk_len, err));
    if (unk) {
        b->unk = mx_vocab_find(&t->vocab, &t->vocab.model, unk, unk_len);
        b->unk_missing = b->unk < 0;
    }
    return read_merges(t, merges, err);
}

/* ---- added tokens and post-processor -------------------------------------------------------------------- */

static mx_status read_added(mx_tokenizer *t, const mx_json *list, mx_err *err) {
    if (!list || list->type == MX_JSON_NULL) return MX_OK;
    if (list->type != MX_JSON_ARRAY) return mx_fail(err, MX_EINVAL, "\"added_tokens\" must be an array");
    for (const mx_json *it = mx_json_first(list); it; it = it->next) {
        const char *bad = NULL;
        const mx_json *c = mx_json_get(it, "content"), *id = mx_json_get(it, "id");
        mx_added a = {.single_word = mx_json_bool(it, "single_word", false, &bad),
                      .lstrip = mx_json_bool(it, "lstrip", false, &bad),
                      .rstrip = mx_json_bool(it, "rstrip", false, &bad),
                      .special = mx_json_bool(it, "special", false, &bad)};
        a.normalized = mx_json_bool(it, "normalized", !a.special, &bad);
        if (bad || !mx_json_is(c, MX_JSON_STRING) || !mx_json_is(id, MX_JSON_INT) || id->u.i < 0 ||
            id->u.i > MX_TOK_MAX_ID) {
            return mx_fail(err, MX_EINVAL,
                           "added_tokens: \"%s\" is missing or wrong in an entry (an id is 0 to %d)",
                           bad                              ? bad
                           : !mx_json_is(c, MX_JSON_STRING) ? "content"
                                                            : "id",
                           MX_TOK_MAX_ID);
        }
        MX_TRY(mx_tok_add(t, a, c->u.s.p, c->u.s.len, id->u.i, err));
    }
    return MX_OK;
}

mx_status mx_tok_wrap(mx_tokenizer *t, const int32_t *ids, size_t n, mx_err *err) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += ids[i] < 0 ? t->n_frame : 1;
    if (total > MAX_FRAME) return mx_fail(err, MX_ELIMIT, "post_processor: more than %d tokens", MAX_FRAME);
    int32_t *frame = malloc((total ? total : 1) * sizeof *frame);
    if (!frame) return mx_fail(err, MX_ENOMEM, "no memory for the post-processor");
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0) {
            frame[k++] = ids[i];
        } else {
            memcpy(frame + k, t->frame, t->n_frame * sizeof *frame);
            k += t->n_frame;
        }
    }
    free(t->frame);
    t->frame = frame;
    t->n_frame = k;
    return MX_OK;
}

static mx_status read_template(mx_tokenizer *t, const mx_json *v, mx_err *err) {
    const mx_json *single = mx_json_get(v, "single"), *known = mx_json_get(v, "special_tokens");
    mx_ids ids = {0};
    mx_status st = MX_OK;
    if (!mx_json_is(single, MX_JSON_ARRAY))
        return mx_fail(err, MX_EINVAL, "post_processor TemplateProcessing: \"single\" must be an array");
    for (const mx_json *it = mx_json_first(single); it && st == MX_OK; it = it->next) {
        const mx_json *seq = mx_json_get(it, "Sequence"), *special = mx_json_get(it, "SpecialToken");
        const mx_json *name = mx_json_get(seq ? seq : special, "id");
        if (seq && mx_json_str_eq(name, "A")) {
            st = mx_ids_add(&ids, -1, err);
            continue;
        }
        const mx_json *token = special && mx_json_is(name, MX_JSON_STRING)
                                   ? mx_json_getn(known, name->u.s.p, name->u.s.len)
                                   : NULL;
        const mx_json *list = mx_json_get(token, "ids");
        if (!mx_json_is(list, MX_JSON_ARRAY)) {
            st = mx_fail(
                err, MX_EINVAL,
                "post_processor TemplateProcessing: a piece of \"single\" is neither the sequence A nor "
                "one of the special_tokens");
        }
        for (const mx_json *id = mx_json_first(list); id && st == MX_OK; id = id->next) {
            if (id->type != MX_JSON_INT || id->u.i < 0 || id->u.i > MX_TOK_MAX_ID)
                st = mx_fail(err, MX_EINVAL,
                             "post_processor TemplateProcessing: an id is not between 0 and %d",
                             MX_TOK_MAX_ID);
            else
                st = mx_ids_add(&ids, (int32_t)id->u.i, err);
        }
    }
    if (st == MX_OK) st = mx_tok_wrap(t, ids.id, ids.n, err);
    mx_ids_free(&ids);
    return st;
}

/* RobertaProcessing and BertProcessing: "cls" and "sep" are [token, id]. */
static mx_status read_cls_sep(mx_tokenizer *t, const mx_json *v, mx_err *err) {
    int32_t ids[3] = {0, -1, 0};
    const char *keys[2] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const mx_json *pair = mx_json_get(v, keys[i]),
                      *id = mx_json_count(pair) == 2 ? mx_json_first(pair)->next : NULL;
        if (!mx_json_is(id, MX_JSON_INT) || id->u.i < 0 || id->u.i > MX_TOK_MAX_ID)
            return mx_fail(err, MX_EINVAL, "post_processor: \"%s\" must be [token, id]", keys[i]);
        ids[2 * i] = (int32_t)id->u.i;
    }
    return mx_tok_wrap(t, ids, 3, err);
}

static mx_status read_post(mx_tokenizer *t, const mx_json *v, int depth, mx_err *err) {
    const mx_json *type = mx_json_get(v, "type");
    if (!v || v->type == MX_JSON_NULL) return MX_OK;
    if (depth > MAX_NEST) return mx_fail(err, MX_ELIMIT, "post_processor: nested too deeply");
    if (mx_json_str_eq(type, "ByteLevel")) return MX_OK; // changes offsets only
    if (mx_json_str_eq(type, "TemplateProcessing")) return read_template(t, v, err);
    if (mx_json_str_eq(type, "RobertaProcessing") || mx_json_str_eq(type, "BertProcessing"))
        return read_cls_sep(t, v, err);
    if (mx_json_str_eq(type, "Sequence")) {
        const mx_json *list = mx_json_get(v, "processors");
        if (!mx_json_is(list, MX_JSON_ARRAY))
            return mx_fail(err, MX_EINVAL, "post_processor Sequence: \"processors\" must be an array");
        for (const mx_json *it = mx_json_first(list); it; it = it->next)
            MX_TRY(read_post(t, it, depth + 1, err));
        return MX_OK;
    }
    if (!mx_json_is(type, MX_JSON_STRING)) {
        return mx_fail(err, MX_EINVAL, "post_processor: an object with a \"type\" must stand here, not %s",
                       mx_json_type_name(v));
    }
    return mx_fail(err, MX_UNSUPPORTED, "post_processor: the type \"%.*s\" is not supported",
                   (int)(type->u.s.len > 80 ? 80 : type->u.s.len), type->u.s.p);
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static mx_status check_model(const mx_json *root, const mx_json *model, mx_err *err) {
    const mx_json *type = mx_json_get(model, "type");
    if (!mx_json_is(root, MX_JSON_OBJECT) || !mx_json_is(model, MX_JSON_OBJECT))
        return mx_fail(err, MX_EINVAL, "this is no tokenizer: it needs a \"model\" object");
    if (type && type->type != MX_JSON_STRING)
        return mx_fail(err, MX_EINVAL, "the model's \"type\" must be a string");
    if (type && !mx_json_str_eq(type, "BPE")) {
        return mx_fail(err, MX_UNSUPPORTED, "the model type \"%.*s\" is not supported, only BPE is",
                       (int)(type->u.s.len > 80 ? 80 : type->u.s.len), type->u.s.p);
    }
    if (!mx_json_is(mx_json_get(model, "vocab"), MX_JSON_OBJECT) ||
        !mx_json_is(mx_json_get(model, "merges"), MX_JSON_ARRAY))
        return mx_fail(err, MX_EINVAL, "a BPE model needs \"vocab\", an object, and \"merges\", an array");
    return MX_OK;
}

mx_status mx_tok_from_json(mx_tokenizer **out, const mx_json *root, mx_err *err) {
    const mx_json *model = mx_json_get(root, "model");
    mx_tokenizer *t = NULL;
    MX_TRY(check_model(root, model, err));
    mx_status st = mx_tok_new(&t, mx_json_count(mx_json_get(model, "vocab")), err);
    if (st == MX_OK) st = read_model(t, model, err);
    if (st == MX_OK) st = mx_normalizer_read(&t->normalizer, &t->arena, mx_json_get(root, "normalizer"), err);
    if (st == MX_OK) st = mx_pretok_read(&t->pretok, &t->arena, mx_json_get(root, "pre_tokenizer"), err);
    if (st == MX_OK) st = mx_decoder_read(&t->decoder, &t->arena, mx_json_get(root, "decoder"), err);
    if (st == MX_OK) st = read_added(t, mx_json_get(root, "added_tokens"), err);
    if (st == MX_OK) st = read_post(t, mx_json_get(root, "post_processor"), 0, err);
    if (st != MX_OK) {
        mx_tokenizer_free(t);
        return st;
    }
    *out = t;
    return MX_OK;
}
