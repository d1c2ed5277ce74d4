/* load: configs in all their spellings, tensors bound by name, and what must be refused. */
#include "test.h"
#include "base/file.h"
#include "format/config.h"
#include "format/safetensors.h"
#include "model/arch.h"
#include "model/model.h"
#include "model/rope.h"
#include "quant/quant.h"

/* ---- a Llama of two layers, written with chosen formats ------------------------------------------------- */

enum { D = 128, FF = 192, VOCAB = 40, LAYERS = 2, MAX_TENSORS = 128 };

typedef struct {
    mx_arena a;
    mx_st_plan plan[MAX_TENSORS];
    void *data[MAX_TENSORS];
    size_t bytes[MAX_TENSORS];
    int n;
} tensors;

static void add(tensors *t, const char *name, mx_st_dtype dtype, int rows, int cols, const void *data,
                size_t bytes) {
    t->plan[t->n] = (mx_st_plan){.name = mx_arena_strdup(&t->a, name), .dtype = dtype, .n_dim = rows ? 2 : 1};
    t->plan[t->n].shape[0] = rows ? rows : cols;
    t->plan[t->n].shape[1] = rows ? cols : 0;
    t->data[t->n] = memcpy(mx_arena_alloc(&t->a, bytes), data, bytes);
    t->bytes[t->n++] = bytes;
}

/* bits 0: f32; else affine. */
static void add_linear(tensors *t, const char *prefix, const char *module, int n_out, int n_in, int bits,
                       int group) {
    uint64_t seed = strlen(module) * 31 + (unsigned)module[strlen(module) - 6];
    float *w = mx_arena_array(&t->a, (size_t)n_out * (size_t)n_in, sizeof *w);
    for (int i = 0; i < n_out * n_in; i++) w[i] = (float)mx_test_normal(&seed) * 0.1f;
    char name[128];
    snprintf(name, sizeof name, "%s%s.weight", prefix, module);
    if (!bits) {
        add(t, name, MX_ST_F32, n_out, n_in, w, (size_t)n_out * (size_t)n_in * 4);
        return;
    }
    size_t n_code = (size_t)n_out * (size_t)n_in * (size_t)bits / 8,
           n_scale = (size_t)n_out * (size_t)(n_in / group) * 2;
    void *codes = mx_arena_alloc(&t->a, n_code), *scales = mx_arena_alloc(&t->a, n_scale),
         *biases = mx_arena_alloc(&t->a, n_scale);
    mx_err err;
    CHECK_OK(mx_quantize(MX_QUANT_AFFINE, bits, group, MX_BF16, w, n_out, n_in, codes, scales, biases, &err),
             &err);
    add(t, name, MX_ST_U32, n_out, n_in * bits / 32, codes, n_code);
    snprintf(name, sizeof name, "%s%s.scales", prefix, module);
    add(t, name, MX_ST_BF16, n_out, n_in / group, scales, n_scale);
    snprintf(name, sizeof name, "%s%s.biases", prefix, module);
    add(t, name, MX_ST_BF16, n_out, n_in / group, biases, n_scale);
}

typedef struct {
    const char *prefix;                              // "model." or "model.language_model."
    int q_bits, q_group, k_bits, k_group, rest_bits; // of layer 0's q and k; of all else
    bool head, skip_norm, extra;
} recipe;

static void build(tensors *t, const recipe *r) {
    float ones[D];
    for (int i = 0; i < D; i++) ones[i] = 1;
    add_linear(t, r->prefix, "embed_tokens", VOCAB, D, r->rest_bits, 64);
    for (int l = 0; l < LAYERS; l++) {
        static const struct {
            const char *name;
            int n_out, n_in;
        } linears[] = {
            {"self_attn.q_proj", D, D}, {"self_attn.k_proj", D, D}, {"self_attn.v_proj", D, D},
            {"self_attn.o_proj", D, D}, {"mlp.gate_proj", FF, D},   {"mlp.up_proj", FF, D},
            {"mlp.down_proj", D, FF},
        };
        for (size_t i = 0; i < countof(linears); i++) {
            char module[64];
            snprintf(module, sizeof module, "layers.%d.%s", l, linears[i].name);
            int bits = l ? r->rest_bits : i == 0 ? r->q_bits : i == 1 ? r->k_bits : r->rest_bits;
            int group = l ? 64 : i == 0 ? r->q_group : i == 1 ? r->k_group : 64;
            add_linear(t, r->prefix, module, linears[i].n_out, linears[i].n_in, bits, group);
        }
        char name[128];
        snprintf(name, sizeof name, "%slayers.%d.input_layernorm.weight", r->prefix, l);
        add(t, name, MX_ST_F32, 0, D, ones, sizeof ones);
        snprintf(name, sizeof name, "%slayers.%d.post_attention_layernorm.weight", r->prefix, l);
        add(t, name, MX_ST_F32, 0, D, ones, sizeof ones);
    }
    char name[64];
    snprintf(name, sizeof name, "%snorm.weight", r->prefix);
    if (!r->skip_norm) add(t, name, MX_ST_F32, 0, D, ones, sizeof ones);
    if (r->head) add_linear(t, "", "lm_head", VOCAB, D, r->rest_bits, 64);
    if (r->extra) add_linear(t, r->prefix, "layers.0.self_attn.r_proj", D, D, 0, 64);
}

/* config: the members of a JSON object beyond the sizes, e.g. "\"tie_word_embeddings\": true". wrap: inside text_config. */
static const char *write_model(const recipe *r, const char *config, bool wrap) {
    const char *dir = mx_test_tmpdir();
    mx_err err;
    tensors *t = calloc(1, sizeof *t);
    build(t, r);
    mx_st_writer *w;
    CHECK_OK(mx_st_writer_new(&w, dir, t->plan, (size_t)t->n, 1 << 30, &err), &err);
    for (int i = 0; i < t->n; i++) CHECK_OK(mx_st_writer_put(w, t->data[i], t->bytes[i], &err), &err);
    CHECK_OK(mx_st_writer_finish(w, &err), &err);
    mx_st_writer_free(w);
    char *text = mx_arena_printf(
        &t->a,
        "{%s \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d,"
        "\"num_attention_heads\": 4, \"vocab_size\": %d, \"rope_theta\": 10000.0, \"max_position_embeddings\": 256%s%s%s}",
        wrap ? "\"model_type\": \"outer\", \"image_token_id\": 5, \"text_config\": {" : "", D, FF, LAYERS,
        VOCAB, *config ? "," : "", config, wrap ? "}" : "");
    CHECK_OK(mx_file_write(mx_path_join(&t->a, dir, "config.json"), text, strlen(text), &err), &err);
    mx_arena_free(&t->a);
    free(t);
    return dir;
}

static const recipe plain = {.prefix = "model."};

/* Logits of the last of a few tokens. */
static void run(const char *dir, float *logits) {
    mx_err err;
    mx_dev *dev;
    mx_model *m;
    mx_cache *c;
    int n_block[MX_KV_GROUPS] = {4, 4, 4, 4};
    CHECK_OK(mx_dev_open(&dev, "cpu", &(mx_dev_options){.threads = 1, .exact = true}, &err), &err);
    CHECK_OK(mx_model_open(&m, dir, dev, &(mx_model_options){0}, &err), &err);
    CHECK_OK(mx_cache_new(&c, m, n_block, 1, MX_F32, &err), &err);
    int32_t ids[5] = {3, 1, 4, 1, 5}, pos[5] = {0, 1, 2, 3, 4}, seq[5] = {0}, start[2] = {0, 5}, len = 5,
            block = 2, slot = 0;
    mx_batch b = {.n_tok = 5,
                  .n_seq = 1,
                  .block_stride = 1,
                  .block = MX_KV_BLOCK,
                  .max_kv_len = 5,
                  .max_q_len = 5,
                  .ids = ids,
                  .pos = pos,
                  .seq = seq,
                  .seq_start = start,
                  .kv_len = &len,
                  .slot = &slot};
    for (int g = 0; g < MX_KV_GROUPS; g++) b.blocks[g] = &block;
    int row = 4;
    CHECK_OK(mx_model_forward(m, c, &b, &err), &err);
    CHECK_OK(mx_model_logits(m, &row, 1, logits, &err), &err);
    mx_cache_free(c);
    mx_model_free(m);
    mx_dev_close(dev);
}

static void check_refused(const char *dir, mx_status status, const char *part) {
    mx_model *m;
    mx_err err;
    CHECK_FAILS(mx_model_describe(&m, dir, &err), status, &err, part);
}

TEST(load04_tied_and_untied_heads)
{
    float a[VOCAB], b[VOCAB];
    recipe with_head = {.prefix = "model.", .head = true};
    recipe inner = {.prefix = "model.language_model."};
    run(write_model(&plain, "\"tie_word_embeddings\": true", false), a);
    run(write_model(&with_head, "\"tie_word_embeddings\": true", false), b); // shipped although tied
    CHECK(!memcmp(a, b, sizeof a));
    run(write_model(&inner, "\"tie_word_embeddings\": true", true), b); // the flag only inside text_config
    CHECK(!memcmp(a, b, sizeof a));
    check_refused(write_model(&plain, "\"tie_word_embeddings\": false", false), MX_EINVAL, "lm_head.weight");
    run(write_model(&with_head, "\"tie_word_embeddings\": false", false), b);
    CHECK(memcmp(a, b, sizeof a) != 0);
}

TEST(load05_each_layer_at_its_own_width)
{
    static const char *const prefixes[] = {"model.", "model.language_model."};
    float first[VOCAB], other[VOCAB];
    for (int i = 0; i < 2; i++) { // keys of the overrides, with and without the wrapping prefix
        char config[512];
        snprintf(config, sizeof config,
                 "\"tie_word_embeddings\": true, \"quantization\": {\"group_size\": 64, \"bits\": 4,"
                 "\"%slayers.0.self_attn.q_proj\": {\"group_size\": 64, \"bits\": 6},"
                 "\"%slayers.0.self_attn.k_proj\": {\"group_size\": 32, \"bits\": 8}}",
                 prefixes[i], prefixes[i]);
        recipe r = {
            .prefix = "model.", .q_bits = 6, .q_group = 64, .k_bits = 8, .k_group = 32, .rest_bits = 4};
        run(write_model(&r, config, false), i ? other : first);
    }
    CHECK(!memcmp(first, other, sizeof first));
    recipe dense_q = {.prefix = "model.", .k_bits = 4, .k_group = 64, .rest_bits = 4};
    const char *config = "\"tie_word_embeddings\": true, \"quantization\": {\"group_size\": 64, \"bits\": 4,"
                         "\"model.layers.0.self_attn.q_proj\": false}";
    run(write_model(&dense_q, config, false), other);
    recipe all4 = {
        .prefix = "model.", .q_bits = 4, .q_group = 64, .k_bits = 4, .k_group = 64, .rest_bits = 4};
    check_refused(write_model(&all4, config, false), MX_EINVAL, "q_proj");
    check_refused(
        write_model(&all4,
                    "\"tie_word_embeddings\": true, \"quantization\": {\"group_size\": 64, \"bits\": 4,"
                    "\"model.layers.9.mlp.up_proj\": {\"bits\": 8}}",
                    false),
        MX_EINVAL, "model.layers.9.mlp.up_proj");
    check_refused(
        write_model(&all4,
                    "\"tie_word_embeddings\": true, \"quantization\": {\"group_size\": 64, \"bits\": 8}",
                    false),
        MX_EINVAL, "weight is [40, 16] U32");
    check_refused(
        write_model(&all4,
                    "\"tie_word_embeddings\": true, \"quantization\": {\"group_size\": 64, \"bits\": 7}",
                    false),
        MX_UNSUPPORTED, "7");
    check_refused(write_model(&all4, "\"tie_word_embeddings\": true", false), MX_EINVAL,
                  "no quantization entry");
}

TEST(what_is_not_understood_is_named)
{
    static const struct {
        const char *config;
        mx_status status;
        const char *part;
    } cases[] = {
        {"\"logit_scale\": 0.5", MX_UNSUPPORTED, "logit_scale"},
        {"\"attn_logit_softcapping\": 50.0", MX_UNSUPPORTED, "attn_logit_softcapping"},
        {"\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", MX_UNSUPPORTED, "dynamic"},
        {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0, \"warp\": 3}", MX_UNSUPPORTED, "warp"},
        {"\"rope_scaling\": {\"type\": \"linear\"}", MX_EINVAL, "missing or out of range"},
        {"\"hidden_act\": \"mish\"", MX_UNSUPPORTED, "mish"},
        {"\"num_key_value_heads\": 3", MX_EINVAL, "not a multiple of 3"},
        {"\"rms_norm_eps\": \"small\"", MX_EINVAL, "rms_norm_eps must be a number, it is a string"},
        {"\"head_dim\": 1.5", MX_EINVAL, "head_dim is 1.5"},
        {"\"layer_types\": [\"full_attention\", \"ring_attention\"]", MX_UNSUPPORTED, "ring_attention"},
        {"\"layer_types\": [\"full_attention\"]", MX_EINVAL, "entry 1"},
        {"\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}", MX_UNSUPPORTED, "gptq"},
        {"\"num_hidden_layers\": 3", MX_EINVAL, "lack the tensor model.layers.2."},
        {"\"intermediate_size\": 200", MX_EINVAL, "[200, 128]"},
        {"\"vocab_size\": 1e300", MX_EINVAL, "vocab_size is 1e+300"},
        {"\"eos_token_id\": 40", MX_EINVAL, "eos_token_id 40"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        char config[256];
        snprintf(config, sizeof config, "\"tie_word_embeddings\": true, %s", cases[i].config);
        check_refused(write_model(&plain, config, false), cases[i].status, cases[i].part);
    }
    recipe extra = {.prefix = "model.", .extra = true}, no_norm = {.prefix = "model.", .skip_norm = true};
    check_refused(write_model(&extra, "\"tie_word_embeddings\": true", false), MX_UNSUPPORTED,
                  "r_proj.weight");
    check_refused(write_model(&no_norm, "\"tie_word_embeddings\": true", false), MX_EINVAL,
                  "model.norm.weight");
    float logits[VOCAB]; // fields without effect pass, whatever they hold
    run(write_model(
            &plain,
            "\"tie_word_embeddings\": true, \"unsloth_fixed\": true, \"_name_or_path\": \"x\", \"logit_scale\": null,"
            "\"use_cache\": true, \"auto_map\": {\"AutoModel\": \"evil.py\"}, \"attention_dropout\": 0.1",
            false),
        logits);
}

/* ---- configs alone ------------------------------------------------------------------------------------- */

static mx_status describe(const char *text, const char *generation, mx_arch *arch, mx_config **c,
                          mx_err *err) {
    mx_arena a = {0};
    const char *dir = mx_test_tmpdir();
    const mx_family *f;
    mx_err e;
    CHECK_OK(mx_file_write(mx_path_join(&a, dir, "config.json"), text, strlen(text), &e), &e);
    if (generation)
        CHECK_OK(mx_file_write(mx_path_join(&a, dir, "generation_config.json"), generation,
                               strlen(generation), &e),
                 &e);
    mx_arena_free(&a);
    mx_status st = mx_config_open(c, dir, err);
    return st == MX_OK ? mx_arch_describe(arch, &f, *c, err) : st;
}

TEST(load09_windows_as_the_reference_resolves_them)
{
    static const struct {
        const char *fields;
        int window[4];
    } cases[] = {
        {"", {0, 0, 0, 0}},
        {", \"use_sliding_window\": true", {0, 0, 0, 0}}, // max_window_layers is 28 where it is absent
        {", \"use_sliding_window\": true, \"max_window_layers\": 2", {0, 0, 64, 64}},
        {", \"use_sliding_window\": true, \"max_window_layers\": 2, \"layer_types\": [\"sliding_attention\", \"full_attention\","
         "\"sliding_attention\", \"full_attention\"]",
         {64, 0, 64, 0}},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        char text[640];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"qwen3\", \"hidden_size\": 64, \"intermediate_size\": 64, \"num_hidden_layers\": 4,"
            "\"num_attention_heads\": 2, \"vocab_size\": 32, \"sliding_window\": 64%s}",
            cases[i].fields);
        mx_arch *arch = calloc(1, sizeof *arch);
        mx_config *c = NULL;
        mx_err err;
        CHECK_OK(describe(text, NULL, arch, &c, &err), &err);
        for (int l = 0; l < 4; l++)
            CHECK(arch->layer[l].window == cases[i].window[l], "case %zu layer %d: %d", i, l,
                  arch->layer[l].window);
        mx_config_free(c);
        free(arch);
    }
}

TEST(load12_every_eos_counts)
{
    mx_arch *arch = calloc(1, sizeof *arch);
    mx_config *c = NULL;
    mx_err err;
    const char *token;
    int32_t ids[MX_MAX_EOS];
    CHECK_OK(
        describe(
            "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 64, \"num_hidden_layers\": 1,"
            "\"num_attention_heads\": 2, \"vocab_size\": 32, \"eos_token_id\": 7}",
            "{\"eos_token_id\": [7, 9]}", arch, &c, &err),
        &err);
    CHECK_INT(mx_config_eos(c, ids, MX_MAX_EOS, &token), 2);
    CHECK(ids[0] == 7 && ids[1] == 9 && token == NULL);
    mx_config_free(c);
    CHECK_OK(
        describe(
            "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 64, \"num_hidden_layers\": 1,"
            "\"num_attention_heads\": 2, \"vocab_size\": 32, \"eos_token_id\": 7}",
            "{\"eos_token_id\": 9}", arch, &c, &err),
        &err);
    CHECK_INT(mx_config_eos(c, ids, MX_MAX_EOS, &token), 2);
    mx_config_free(c);
    free(arch);
}

TEST(broken_configs_are_refused)
{
    static const struct {
        const char *text;
        mx_status status;
        const char *part;
    } cases[] = {
        {"", MX_EINVAL, "ends early"},
        {"[]", MX_EINVAL, "must hold an object"},
        {"{}", MX_EINVAL, "no model_type"},
        {"{\"model_type\": 3}", MX_EINVAL, "no model_type"},
        {"{\"model_type\": \"gpt9\"}", MX_UNSUPPORTED, "\"gpt9\" is not supported"},
        {"{\"model_type\": \"llama\"}", MX_EINVAL, "num_hidden_layers is missing"},
        {"{\"model_type\": \"llama\", \"quantization\": 4}", MX_EINVAL, "quantization must be an object"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 100000000}", MX_EINVAL, "num_hidden_layers"},
    };
    mx_arch *arch = calloc(1, sizeof *arch);
    for (size_t i = 0; i < countof(cases); i++) {
        mx_config *c = NULL;
        mx_err err;
        CHECK_FAILS(describe(cases[i].text, NULL, arch, &c, &err), cases[i].status, &err, cases[i].part);
        mx_config_free(c);
    }
    enum { DEEP = 20000 }; // SEC-04
    char *deep = malloc(DEEP + 64);
    int n = sprintf(deep, "{\"model_type\": \"llama\", \"x\": ");
    memset(deep + n, '[', DEEP);
    deep[n + DEEP] = 0;
    mx_config *c = NULL;
    mx_err err;
    CHECK_FAILS(describe(deep, NULL, arch, &c, &err), MX_ELIMIT, &err, "too deeply");
    free(deep);
    free(arch);
    CHECK_FAILS(mx_config_open(&c, "/nonexistent", &err), MX_ENOTFOUND, &err, "not a model folder");
}

TEST(rope_frequencies_follow_the_papers)
{
    float f[4], scale;
    mx_rope_config r = {.kind = MX_ROPE_LINEAR, .theta = 10000, .factor = 4, .partial = 1};
    mx_rope_frequencies(&r, 8, f, &scale);
    CHECK(fabsf(f[0] - 0.25f) < 1e-7f && fabsf(f[2] - 0.0025f) < 1e-9f && scale == 1);
    r = (mx_rope_config){.kind = MX_ROPE_LLAMA3,
                         .theta = 500000,
                         .factor = 8,
                         .partial = 1,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_ctx = 8192};
    float g[64];
    mx_rope_frequencies(&r, 128, g, &scale);
    CHECK(g[0] == 1);                                                      // fast turns are kept
    CHECK(fabs((double)g[63] * 8 / pow(500000, -126.0 / 128) - 1) < 1e-6); // slow ones are divided
    r = (mx_rope_config){.kind = MX_ROPE_YARN,
                         .theta = 10000,
                         .factor = 4,
                         .partial = 1,
                         .original_ctx = 4096,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .attention_factor = NAN,
                         .truncate = true};
    mx_rope_frequencies(&r, 128, g, &scale);
    CHECK(g[0] == 1 && fabs((double)g[63] * 4 / pow(10000, -126.0 / 128) - 1) < 1e-6);
    CHECK(fabsf(scale - (0.1f * logf(4) + 1)) < 1e-6f);
}

/* mxfp8 weights with a NaN code: refused where kernels would read a number, that is on devices with memory of their own. */
TEST(nan_codes_are_refused_on_a_gpu)
{
    static const char module[] = "model.layers.0.mlp.up_proj.weight";
    const char *source = mx_test_path("tests/checkpoints/qwen3-mxfp8"), *dir = mx_test_tmpdir();
    mx_arena a = {0};
    mx_err err = {0};
    mx_st *st;
    char *config, *bytes;
    size_t n_config, n;
    CHECK_OK(mx_file_read(&config, &n_config, &a, mx_path_join(&a, source, "config.json"), 1 << 20, &err),
             &err);
    CHECK_OK(mx_file_read(&bytes, &n, &a, mx_path_join(&a, source, "model.safetensors"), 1 << 24, &err),
             &err);
    CHECK_OK(mx_file_write(mx_path_join(&a, dir, "config.json"), config, n_config, &err), &err);
    CHECK_OK(mx_st_open(&st, source, &err), &err);
    const mx_st_tensor *t = mx_st_find(st, module);
    CHECK(t);
    char *place = memmem(bytes, n, t->data, t->n_bytes);
    CHECK(place);
    mx_dev *dev;
    CHECK_OK(mx_dev_open(&dev, "cpu", &(mx_dev_options){.threads = 1}, &err), &err);
    mx_backend own_memory = *dev->be;
    own_memory.host_memory = false;
    for (int bad = 0; bad < 2; bad++)
        for (int gpu = 0; gpu < 2; gpu++) {
            mx_model *m = NULL;
            if (bad) place[1000] = (char)0xFF;
            CHECK_OK(mx_file_write(mx_path_join(&a, dir, "model.safetensors"), bytes, n, &err), &err);
            dev->be = gpu ? &own_memory : &mx_backend_cpu;
            mx_status status = mx_model_open(&m, dir, dev, &(mx_model_options){0}, &err);
            if (bad && gpu) {
                CHECK_FAILS(status, MX_UNSUPPORTED, &err,
                            "up_proj.weight holds NaN (code 0xFF at byte 1000)");
            } else {
                CHECK_OK(status, &err);
            }
            mx_model_free(m);
        }
    dev->be = &mx_backend_cpu;
    mx_dev_close(dev);
    mx_st_free(st);
    mx_arena_free(&a);
}
