/* fixture.h - model folders that tests make for themselves: a changed copy of a checkpoint, and a model that says what it is
 * told to (FX-TAPE and FX-FLAT of the case list). */
#ifndef MX_TEST_FIXTURE_H
#define MX_TEST_FIXTURE_H
#include "test.h"
#include "base/file.h"
#include "base/utf8.h"
#include "format/safetensors.h"

static inline void fixture_write(const char *dir, const char *name, const char *text, size_t len) {
    mx_arena a = {0};
    mx_err err;
    CHECK_OK(mx_file_write(mx_path_join(&a, dir, name), text, len, &err), &err);
    mx_arena_free(&a);
}

/* Copy the checkpoint `from` (relative to the repository) to dir; change() may rewrite each tensor's bytes. */
static inline void fixture_copy(const char *dir, const char *from,
                                void (*change)(const char *name, void *data, size_t n_bytes)) {
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    mx_arena a = {0};
    mx_err err;
    const char *src = mx_arena_strdup(&a, mx_test_path(from));
    CHECK_OK(mx_mkdirs(dir, &err), &err);
    for (size_t i = 0; i < countof(files); i++) {
        char *text;
        size_t len;
        CHECK_OK(mx_file_read(&text, &len, &a, mx_path_join(&a, src, files[i]), 1 << 24, &err), &err);
        fixture_write(dir, files[i], text, len);
    }
    mx_st *st;
    CHECK_OK(mx_st_open(&st, src, &err), &err);
    size_t n = mx_st_count(st);
    mx_st_plan *plan = mx_arena_array(&a, n, sizeof *plan);
    for (size_t i = 0; i < n; i++) {
        const mx_st_tensor *t = mx_st_at(st, i);
        plan[i] = (mx_st_plan){.name = t->name, .dtype = t->dtype, .n_dim = t->n_dim};
        memcpy(plan[i].shape, t->shape, sizeof t->shape);
    }
    mx_st_writer *w;
    CHECK_OK(mx_st_writer_new(&w, dir, plan, n, 1u << 30, &err), &err);
    for (size_t i = 0; i < n; i++) {
        const mx_st_tensor *t = mx_st_at(st, i);
        void *copy = malloc(t->n_bytes + 1);
        memcpy(copy, t->data, t->n_bytes);
        change(t->name, copy, t->n_bytes);
        CHECK_OK(mx_st_writer_put(w, copy, t->n_bytes, &err), &err);
        free(copy);
    }
    CHECK_OK(mx_st_writer_finish(w, &err), &err);
    mx_st_writer_free(w);
    mx_st_free(st);
    mx_arena_free(&a);
}

/* ---- a scripted model ----------------------------------------------------------------------------------- */

enum {
    TAPE_IM_START = 256, // special added tokens
    TAPE_IM_END,
    TAPE_EOS,
    TAPE_PIECES = 259, // then up to 30 pieces of text, each one token
    TAPE_TOKENIZER = 300,
    TAPE_VOCAB = 320, // the model is padded beyond its tokenizer
};

typedef struct {
    int32_t next[TAPE_VOCAB]; // the token that follows each, or -1: all logits are 0
    const char *pieces[30];
    int ctx; // 0: 128
    const char *eos,
        *generation; // JSON of config.json's eos_token_id (NULL: the tokenizer's), and all of generation_config.json
    const char *template; // chat template in JSON quotes, or NULL
} tape;

static inline tape tape_blank(void) {
    tape t = {0};
    for (int i = 0; i < TAPE_VOCAB; i++) t.next[i] = -1;
    return t;
}

/* The text begins after `prompt`'s last token: one byte a token, then eos. Bytes may not repeat. */
static inline void tape_say(tape *t, int32_t prompt, const char *text, int32_t end) {
    int32_t at = prompt;
    for (const char *p = text; *p; p++) at = t->next[at] = (unsigned char)*p;
    t->next[at] = end;
}

/* A byte as byte-level BPE spells it: printable ones stand for themselves, the others count up from U+0100. */
static inline uint32_t tape_symbol(int byte) {
    int shifted = 0;
    for (int b = 0; b <= byte; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return plain ? (uint32_t)b : 256u + (uint32_t)shifted;
        shifted += !plain;
    }
    return 0;
}

static inline void tape_tokenizer(const tape *t, const char *dir) {
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|eos|>"};
    mx_str s = {0};
    mx_str_puts(&s, "{\"version\": \"1.0\", \"added_tokens\": [");
    for (int i = 0; i < 3; i++)
        mx_str_printf(&s,
                      "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                      "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                      i ? ", " : "", TAPE_IM_START + i, special[i]);
    mx_str_puts(
        &s, "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
            "false, \"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": null, "
            "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
            "\"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
            "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
            "\"byte_fallback\": false, \"vocab\": {");
    for (int i = 0; i < TAPE_TOKENIZER; i++) {
        char word[128];
        size_t len = 0;
        if (i < 256) {
            len = mx_utf8_encode(tape_symbol(i), word);
        } else if (i < TAPE_PIECES) {
            continue;
        } else if (i - TAPE_PIECES < 30 && t->pieces[i - TAPE_PIECES]) {
            for (const char *p = t->pieces[i - TAPE_PIECES]; *p; p++)
                len += mx_utf8_encode(tape_symbol((unsigned char)*p), word + len);
        } else {
            len = (size_t)snprintf(word, sizeof word, "unused%d", i);
        }
        mx_str_puts(&s, i ? ", " : "");
        mx_json_put_string(&s, word, len);
        mx_str_printf(&s, ": %d", i);
    }
    mx_str_puts(&s, "}, \"merges\": []}}");
    fixture_write(dir, "tokenizer.json", s.p, s.len);
    mx_str_free(&s);
}

/* One layer whose attention and MLP add nothing: the hidden state is the token's own unit vector, and row `next` of the head
 * picks it up. */
static inline void tape_make(const tape *t, const char *dir) {
    enum { D = TAPE_VOCAB, HEADS = 5, HD = 64, FF = 32 };
    mx_err err;
    CHECK_OK(mx_mkdirs(dir, &err), &err);
    mx_str s = {0};
    mx_str_printf(
        &s,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
        "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
        "\"max_position_embeddings\": %d, \"tie_word_embeddings\": false, \"torch_dtype\": "
        "\"float32\"%s%s}",
        TAPE_VOCAB, D, FF, HEADS, HEADS, HD, t->ctx ? t->ctx : 128, t->eos ? ", \"eos_token_id\": " : "",
        t->eos ? t->eos : "");
    fixture_write(dir, "config.json", s.p, s.len);
    mx_str_clear(&s);
    mx_str_printf(&s, "{\"eos_token\": \"<|eos|>\"%s%s}", t->template ? ", \"chat_template\": " : "",
                  t->template ? t->template : "");
    fixture_write(dir, "tokenizer_config.json", s.p, s.len);
    mx_str_free(&s);
    if (t->generation) fixture_write(dir, "generation_config.json", t->generation, strlen(t->generation));
    tape_tokenizer(t, dir);
#define L "model.layers.0."
    static const mx_st_plan plan[] = {
        {"model.embed_tokens.weight", MX_ST_F32, 2, {TAPE_VOCAB, D}},
        {L "input_layernorm.weight", MX_ST_F32, 1, {D}},
        {L "self_attn.q_proj.weight", MX_ST_F32, 2, {HEADS * HD, D}},
        {L "self_attn.k_proj.weight", MX_ST_F32, 2, {HEADS * HD, D}},
        {L "self_attn.v_proj.weight", MX_ST_F32, 2, {HEADS * HD, D}},
        {L "self_attn.o_proj.weight", MX_ST_F32, 2, {D, HEADS * HD}},
        {L "post_attention_layernorm.weight", MX_ST_F32, 1, {D}},
        {L "mlp.gate_proj.weight", MX_ST_F32, 2, {FF, D}},
        {L "mlp.up_proj.weight", MX_ST_F32, 2, {FF, D}},
        {L "mlp.down_proj.weight", MX_ST_F32, 2, {D, FF}},
        {"model.norm.weight", MX_ST_F32, 1, {D}},
        {"lm_head.weight", MX_ST_F32, 2, {TAPE_VOCAB, D}},
    };
#undef L
    mx_st_writer *w;
    CHECK_OK(mx_st_writer_new(&w, dir, plan, countof(plan), 1u << 30, &err), &err);
    for (size_t i = 0; i < countof(plan); i++) {
        size_t n = (size_t)plan[i].shape[0] * (size_t)(plan[i].n_dim == 2 ? plan[i].shape[1] : 1);
        float *v = calloc(n, sizeof *v);
        for (size_t k = 0; plan[i].n_dim == 1 && k < n; k++) v[k] = 1;
        for (size_t k = 0; i == 0 && k < TAPE_VOCAB; k++) v[k * D + k] = 1;
        for (size_t k = 0; i == countof(plan) - 1 && k < TAPE_VOCAB; k++)
            if (t->next[k] >= 0) v[(size_t)t->next[k] * D + k] = 1;
        CHECK_OK(mx_st_writer_put(w, v, n * sizeof *v, &err), &err);
        free(v);
    }
    CHECK_OK(mx_st_writer_finish(w, &err), &err);
    mx_st_writer_free(w);
}

#endif
