/* test_convert.c - conversion without Python: what is written where, what is refused, and that nothing is left behind.
 * tests/oracle/convert.py compares with mlx-lm and gguf-py. */
#include "test.h"
#include "base/file.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "model/convert.h"
#include "text/tokenizer.h"
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *in_dir(const char *dir, const char *name) {
    static mx_arena names; // kept to the end
    const char *p = mx_path_join(&names, dir, name);
    CHECK(p);
    return p;
}

static char *read_text(const char *path) {
    static mx_arena a;
    mx_err err = {0};
    char *text;
    size_t len;
    mx_arena_free(&a);
    CHECK_OK(mx_file_read(&text, &len, &a, path, 64 << 20, &err), &err);
    return text;
}

static int entries(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

/* ---- Hugging Face folders ------------------------------------------------------------------------------------- */

/* Each quantized tensor holds what mx_quantize makes of the source's rows; the rest is as it was. */
TEST(quantizes_a_folder)
{
    const char *source = mx_test_path("tests/checkpoints/qwen3-5-bf16"),
               *out = in_dir(mx_test_tmpdir(), "out");
    mx_convert_options o = {.source = source, .out = out, .quantize = true, .quiet = true};
    mx_err err = {0};
    mx_st *from, *to;
    CHECK_OK(mx_convert(&o, &err), &err);
    CHECK_OK(mx_st_open(&from, source, &err), &err);
    CHECK_OK(mx_st_open(&to, out, &err), &err);
    int n_quantized = 0;
    for (size_t i = 0; i < mx_st_count(from); i++) {
        const mx_st_tensor *t = mx_st_at(from, i);
        char name[512];
        snprintf(name, sizeof name, "language_model.%s", t->name);
        const mx_st_tensor *w = mx_st_find(to, name);
        CHECK(w, "%s", name);
        snprintf(name, sizeof name, "language_model.%.*s.scales", (int)(strlen(t->name) - 7), t->name);
        const mx_st_tensor *s = mx_st_find(to, name);
        CHECK((s != NULL) == (t->n_dim == 2), "%s", name);
        if (!s) {
            CHECK_INT(w->n_bytes, t->n_bytes);
            if (t->n_dim == 3)
                CHECK(w->shape[1] == 4 && w->shape[2] == 1, "the axis of %s was not moved", t->name);
            continue;
        }
        memcpy(strrchr(name, '.'), ".biases", 8);
        const mx_st_tensor *b = mx_st_find(to, name);
        const int rows = (int)t->shape[0], n_in = (int)t->shape[1];
        float *x = malloc((size_t)rows * (size_t)n_in * sizeof *x);
        char *codes = malloc(w->n_bytes), *scales = malloc(s->n_bytes), *biases = malloc(s->n_bytes);
        CHECK(b && x && codes && scales && biases);
        mx_to_f32(x, t->data, MX_BF16, (size_t)rows * (size_t)n_in);
        CHECK_OK(mx_quantize(MX_QUANT_AFFINE, 4, 64, MX_BF16, x, rows, n_in, codes, scales, biases, &err),
                 &err);
        CHECK(!memcmp(codes, w->data, w->n_bytes) && !memcmp(scales, s->data, s->n_bytes) &&
                  !memcmp(biases, b->data, b->n_bytes),
              "%s", t->name);
        free(x);
        free(codes);
        free(scales);
        free(biases);
        n_quantized++;
    }
    CHECK(n_quantized > 20);
    CHECK(strstr(read_text(in_dir(out, "config.json")), "\"quantization\""));
    CHECK(mx_is_file(in_dir(out, "tokenizer.json")) && mx_is_file(in_dir(out, "generation_config.json")));
    mx_st_free(from);
    mx_st_free(to);
}

TEST(refuses_what_makes_no_sense)
{
    const char *tmp = mx_test_tmpdir(), *plain = mx_test_path("tests/checkpoints/qwen3-5-bf16");
    const char *mxfp8 = mx_test_path("tests/checkpoints/qwen3-mxfp8"), *out = in_dir(tmp, "out");
    const struct {
        mx_convert_options o;
        mx_status st;
        const char *part;
    } cases[] = {
        {{.source = plain}, MX_EINVAL, "result"},
        {{.out = "x"}, MX_EINVAL, "no model"},
        {{.source = plain, .quantize = true, .dequantize = true}, MX_EINVAL, "exclude"},
        {{.source = plain, .bits = 4}, MX_EINVAL, "need -q"},
        {{.source = plain, .quantize = true, .bits = 7}, MX_UNSUPPORTED, "7 bits"},
        {{.source = plain, .quantize = true, .mode = MX_QUANT_MXFP4, .bits = 8},
         MX_UNSUPPORTED,
         "mxfp4 has 4 bits"},
        {{.source = plain, .dtype = "int8"}, MX_EINVAL, "int8"},
        {{.source = plain, .dequantize = true}, MX_EINVAL, "not quantized"},
        {{.source = mxfp8, .quantize = true}, MX_EINVAL, "quantized already"},
        {{.source = "/nonexistent"}, MX_ENOTFOUND, "no such"},
        {{.source = mx_test_path("tests/checkpoints/qwen3-5-fp8block")}, MX_UNSUPPORTED, "fp8"},
        {{.source = in_dir(mxfp8, "config.json")}, MX_EINVAL, "config.json"},
    };
    for (size_t i = 0; i < countof(cases); i++) {
        mx_convert_options o = cases[i].o;
        mx_err err = {0};
        if (!o.out && i) o.out = out;
        o.quiet = true;
        CHECK_FAILS(mx_convert(&o, &err), cases[i].st, &err, cases[i].part);
        CHECK_INT(entries(tmp), 0);
    }
}

/* The folder is there whole or not at all: another's files, a cancelled and a failed write leave no trace. */
TEST(writes_all_or_nothing)
{
    const char *tmp = mx_test_tmpdir(), *out = in_dir(tmp, "out");
    volatile int cancel = 1;
    mx_convert_options o = {
        .source = mx_test_path("tests/checkpoints/qwen3-5-bf16"), .out = out, .quiet = true};
    mx_err err = {0};
    CHECK_OK(mx_mkdirs(out, &err), &err);
    CHECK_OK(mx_file_write(in_dir(out, "precious"), "x", 1, &err), &err);
    CHECK_FAILS(mx_convert(&o, &err), MX_EINVAL, &err, "not an empty folder");
    CHECK_INT(entries(out), 1);
    unlink(in_dir(out, "precious"));

    o.cancel = &cancel;
    CHECK_FAILS(mx_convert(&o, &err), MX_ECANCELLED, &err, "stopped");
    CHECK_INT(entries(tmp), 1);
    o.cancel = NULL;

    struct rlimit old, small; // a file that may not grow is a full disk to the writer
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const mx_status st = mx_convert(&o, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_INT(st, MX_EIO);
    CHECK_INT(entries(tmp), 1);

    CHECK_OK(mx_convert(&o, &err), &err); // an empty folder is taken
    CHECK_INT(entries(tmp), 1);
    CHECK(mx_is_file(in_dir(out, "model.safetensors")));
}

/* ---- GGUF ---------------------------------------------------------------------------------------------------------- */

enum { D = 64, HD = 32, N_TOK = 7 };

static void put32(mx_str *s, uint32_t v) { mx_str_add(s, (const char *)&v, 4); }
static void put64(mx_str *s, uint64_t v) { mx_str_add(s, (const char *)&v, 8); }

static void put_string(mx_str *s, const char *z) {
    put64(s, strlen(z));
    mx_str_puts(s, z);
}

static void put_key(mx_str *s, const char *key, uint32_t type) {
    put_string(s, key);
    put32(s, type);
}

static void put_strings(mx_str *s, const char *key, const char *const *z, size_t n) {
    put_key(s, key, 9);
    put32(s, 8);
    put64(s, n);
    for (size_t i = 0; i < n; i++) put_string(s, z[i]);
}

/* One block of Q4_0: scale d, codes that count up from `at`. */
static void put_q4_0(mx_str *s, float d, int at) {
    const uint16_t h = mx_f32_to_f16(d);
    mx_str_add(s, (const char *)&h, 2);
    for (int i = 0; i < 16; i++) mx_str_putc(s, (char)(((at + i) & 15) | ((at + i + 3) & 15) << 4));
}

/* A Llama of one layer and two heads in Q4_0; row r of every matrix has the scale 2^-(r % 8). */
static void make_gguf(mx_str *s) {
    static const struct {
        const char *name;
        int n_in, n_out; // n_out 0: a vector of f32
    } tensors[] = {
        {"token_embd.weight", D, N_TOK}, {"blk.0.attn_norm.weight", D, 0}, {"blk.0.attn_q.weight", D, D},
        {"blk.0.attn_k.weight", D, HD},  {"blk.0.attn_v.weight", D, HD},   {"blk.0.attn_output.weight", D, D},
        {"blk.0.ffn_norm.weight", D, 0}, {"blk.0.ffn_gate.weight", D, D},  {"blk.0.ffn_up.weight", D, D},
        {"blk.0.ffn_down.weight", D, D}, {"output_norm.weight", D, 0},
    };
    static const char *const tokens[N_TOK] = {"a", "b", "ab", "<s>", "</s>", "c", "\xC4\xA0"};
    static const char *const merges[] = {"a b"};
    static const int types[N_TOK] = {1, 1, 1, 3, 3, 1, 1};
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {
        {"llama.block_count", 1},           {"llama.context_length", 128},
        {"llama.embedding_length", D},      {"llama.feed_forward_length", D},
        {"llama.attention.head_count", 2},  {"llama.attention.head_count_kv", 1},
        {"tokenizer.ggml.bos_token_id", 3}, {"tokenizer.ggml.eos_token_id", 4},
    };
    mx_str_puts(s, "GGUF");
    put32(s, 3);
    put64(s, countof(tensors));
    put64(s, countof(ints) + 8);
    put_key(s, "general.architecture", 8);
    put_string(s, "llama");
    for (size_t i = 0; i < countof(ints); i++) {
        put_key(s, ints[i].key, 4);
        put32(s, ints[i].v);
    }
    put_key(s, "llama.attention.layer_norm_rms_epsilon", 6);
    const float eps = 1e-5f, theta = 50000;
    mx_str_add(s, (const char *)&eps, 4);
    put_key(s, "llama.rope.freq_base", 6);
    mx_str_add(s, (const char *)&theta, 4);
    put_key(s, "tokenizer.ggml.model", 8);
    put_string(s, "gpt2");
    put_key(s, "tokenizer.ggml.pre", 8);
    put_string(s, "llama-bpe");
    put_strings(s, "tokenizer.ggml.tokens", tokens, N_TOK);
    put_strings(s, "tokenizer.ggml.merges", merges, 1);
    put_key(s, "tokenizer.ggml.token_type", 9);
    put32(s, 5);
    put64(s, N_TOK);
    for (int i = 0; i < N_TOK; i++) put32(s, (uint32_t)types[i]);
    uint64_t at = 0;
    for (size_t i = 0; i < countof(tensors); i++) {
        const int rows = tensors[i].n_out;
        put_string(s, tensors[i].name);
        put32(s, rows ? 2 : 1);
        put64(s, (uint64_t)tensors[i].n_in);
        if (rows) put64(s, (uint64_t)rows);
        put32(s, rows ? 2 : 0);
        put64(s, at);
        at += rows ? (uint64_t)rows * D / 32 * 18 : D * 4;
        at = (at + 31) / 32 * 32;
    }
    while (s->len % 32) mx_str_putc(s, 0);
    for (size_t i = 0; i < countof(tensors); i++) {
        if (!tensors[i].n_out) {
            for (int k = 0; k < D; k++) {
                const float v = 1 + (float)k / 64;
                mx_str_add(s, (const char *)&v, 4);
            }
        }
        for (int r = 0; r < tensors[i].n_out; r++)
            for (int b = 0; b < D / 32; b++) put_q4_0(s, ldexpf(1, -(r % 8)), r + b);
        while (s->len % 32) mx_str_putc(s, 0);
    }
}

static float code(int at, int k) { return (float)((k < 16 ? at + k : at + k - 16 + 3) & 15) - 8; }

TEST(takes_gguf_blocks_exactly)
{
    const char *tmp = mx_test_tmpdir(), *file = in_dir(tmp, "tiny.gguf"), *out = in_dir(tmp, "out");
    mx_str s = {0};
    mx_err err = {0};
    make_gguf(&s);
    CHECK(!s.oom);
    CHECK_OK(mx_file_write(file, s.p, s.len, &err), &err);
    mx_str_free(&s);
    mx_convert_options o = {.source = file, .out = out, .quiet = true};
    CHECK_OK(mx_convert(&o, &err), &err);
    mx_st *st;
    CHECK_OK(mx_st_open(&st, out, &err), &err);
    static const char *const names[] = {"model.embed_tokens", "model.layers.0.self_attn.q_proj",
                                        "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"};
    for (size_t i = 0; i < countof(names); i++) {
        char name[128];
        const mx_st_tensor *part[3];
        static const char *const suffix[] = {"weight", "scales", "biases"};
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%s.%s", names[i], suffix[k]);
            part[k] = mx_st_find(st, name);
            CHECK(part[k], "%s", name);
        }
        const int rows = (int)part[0]->shape[0];
        const mx_qmat w = {.kind = MX_QUANT_AFFINE,
                           .bits = 4,
                           .group = 32,
                           .type = MX_F16,
                           .n_stack = 1,
                           .n_out = rows,
                           .n_in = D,
                           .codes = part[0]->data,
                           .scales = part[1]->data,
                           .biases = part[2]->data};
        CHECK_INT(part[1]->dtype, MX_ST_F16);
        for (int r = 0; r < rows; r++) {
            float x[D];
            CHECK_OK(mx_qmat_expand(&w, r, 1, x, &err), &err);
            int from = r; // q and k: row r of a head is row 2 (r mod half) + r / half of the file
            if (i == 1 || i == 2) from = r / HD * HD + r % HD % (HD / 2) * 2 + r % HD / (HD / 2);
            for (int k = 0; k < D; k++)
                CHECK(x[k] == ldexpf(code(from + k / 32, k % 32), -(from % 8)), "%s row %d value %d",
                      names[i], r, k);
        }
    }
    const mx_st_tensor *norm = mx_st_find(st, "model.norm.weight");
    CHECK(norm && norm->dtype == MX_ST_F16 && norm->n_bytes == 2 * D);
    mx_st_free(st);
    const char *config = read_text(in_dir(out, "config.json"));
    static const char *const fields[] = {"\"model_type\": \"llama\"", "\"rope_theta\": 50000",
                                         "\"rms_norm_eps\": 1e-05",   "\"tie_word_embeddings\": true",
                                         "\"eos_token_id\": 4",       "\"group_size\": 32"};
    for (size_t i = 0; i < countof(fields); i++)
        CHECK(strstr(config, fields[i]), "%s in %s", fields[i], config);

    mx_tokenizer *t;
    mx_ids ids = {0};
    CHECK_OK(mx_tokenizer_open(&t, out, &err), &err);
    CHECK_OK(mx_tokenizer_encode(t, "abc</s>", 7, MX_TOK_PARSE_SPECIAL | MX_TOK_ADD_SPECIAL, &ids, &err),
             &err);
    static const int32_t want[] = {3, 2, 5, 4}; // llama-bpe starts with bos
    CHECK_INT(ids.n, countof(want));
    CHECK(!memcmp(ids.id, want, sizeof want));
    mx_ids_free(&ids);
    mx_tokenizer_free(t);
}

/* Any cut and any changed byte of the file is an error or a model, never a crash. */
TEST(survives_damaged_gguf)
{
    const char *tmp = mx_test_tmpdir(), *file = in_dir(tmp, "tiny.gguf"), *out = in_dir(tmp, "out");
    mx_str s = {0};
    uint64_t seed = 5;
    int refused = 0;
    make_gguf(&s);
    for (int i = 0; i < 300; i++) {
        mx_err err = {0};
        const size_t at = mx_test_rand(&seed) % 1800; // header, metadata, tensor table
        const char old = s.p[at];
        const size_t len = i % 3 ? s.len : mx_test_rand(&seed) % s.len;
        s.p[at] = (char)mx_test_rand(&seed);
        CHECK_OK(mx_file_write(file, s.p, len, &err), &err);
        s.p[at] = old;
        mx_convert_options o = {.source = file, .out = out, .quiet = true, .threads = 1};
        if (mx_convert(&o, &err) == MX_OK)
            CHECK_OK(mx_remove_tree(out, &err), &err);
        else
            refused++;
        CHECK_INT(entries(tmp), 1);
    }
    CHECK(refused > 100);
    mx_str_free(&s);
}
