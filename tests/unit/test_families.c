/* families: small random models of every family give transformers' float32 logits.
 *
 * tests/data/families.json (written by tests/oracle/families.py) holds configs, a recipe for the weights and a few rows of
 * logits. Here the weights are made by the same recipe, saved as a checkpoint and run in chunks of several widths. */
#include "test.h"
#include "base/file.h"
#include "base/json.h"
#include "format/safetensors.h"
#include "model/model.h"

static float hashed(const char *name, uint64_t i) { // as in families.py
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001B3u;
    uint64_t z = h + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)((double)(z >> 40) / (1 << 23) - 1);
}

static void write_checkpoint(const mx_json *c, const char *dir, mx_arena *a) {
    mx_err err;
    mx_str config = {0};
    mx_json_put(&config, mx_json_get(c, "config"), 1);
    CHECK_OK(mx_file_write(mx_path_join(a, dir, "config.json"), config.p, config.len, &err), &err);
    mx_str_free(&config);
    const mx_json *tensors = mx_json_get(c, "tensors");
    size_t n = mx_json_count(tensors), i = 0;
    mx_st_plan *plan = mx_arena_array(a, n, sizeof *plan);
    for (const mx_json *t = mx_json_first(tensors); t; t = t->next, i++) {
        const mx_json *name = mx_json_first(t), *shape = name->next;
        plan[i] = (mx_st_plan){.name = mx_arena_strndup(a, name->u.s.p, name->u.s.len), .dtype = MX_ST_F32};
        for (const mx_json *d = mx_json_first(shape); d; d = d->next) plan[i].shape[plan[i].n_dim++] = d->u.i;
    }
    mx_st_writer *w;
    CHECK_OK(mx_st_writer_new(&w, dir, plan, n, 1 << 30, &err), &err);
    i = 0;
    for (const mx_json *t = mx_json_first(tensors); t; t = t->next, i++) {
        const mx_json *offset = mx_json_first(t)->next->next;
        float off = (float)mx_json_as_num(offset), scale = (float)mx_json_as_num(offset->next);
        size_t count = 1;
        for (int d = 0; d < plan[i].n_dim; d++) count *= (size_t)plan[i].shape[d];
        float *v = malloc(count * sizeof *v);
        for (size_t k = 0; k < count; k++) v[k] = hashed(plan[i].name, k) * scale + off;
        CHECK_OK(mx_st_writer_put(w, v, count * sizeof *v, &err), &err);
        free(v);
    }
    CHECK_OK(mx_st_writer_finish(w, &err), &err);
    mx_st_writer_free(w);
}

enum { MAX_LEN = 1024, MAX_BLOCKS = MAX_LEN / MX_KV_BLOCK };

/* Feed ids in steps of `width`; logits of the wanted positions go to out, one row each. */
static void run(mx_model *m, const int32_t *ids, int n, int width, const mx_json *wanted, float *out) {
    const mx_model_info *info = mx_model_get_info(m);
    mx_cache *cache;
    mx_err err;
    int n_block[MX_KV_GROUPS];
    int32_t blocks[MAX_BLOCKS], pos[MAX_LEN], seq[MAX_LEN] = {0}, slot = 0;
    for (int i = 0; i < MX_KV_GROUPS; i++) n_block[i] = MAX_BLOCKS;
    for (int i = 0; i < MAX_BLOCKS; i++) blocks[i] = (i * 5 + 3) % MAX_BLOCKS; // not in order: a permutation
    for (int i = 0; i < n; i++) pos[i] = i;
    CHECK_OK(mx_cache_new(&cache, m, n_block, 1, MX_F32, &err), &err);
    CHECK_OK(mx_cache_clear_slot(cache, 0, &err), &err);
    for (int at = 0; at < n; at += width) {
        int take = n - at < width ? n - at : width;
        int32_t start[2] = {0, take}, len = at + take;
        mx_batch b = {.n_tok = take,
                      .n_seq = 1,
                      .block_stride = MAX_BLOCKS,
                      .block = MX_KV_BLOCK,
                      .max_kv_len = len,
                      .max_q_len = take,
                      .ids = ids + at,
                      .pos = pos + at,
                      .seq = seq,
                      .seq_start = start,
                      .kv_len = &len,
                      .slot = &slot};
        for (int g = 0; g < MX_KV_GROUPS; g++) b.blocks[g] = blocks;
        CHECK_OK(mx_model_forward(m, cache, &b, &err), &err);
        int k = 0;
        for (const mx_json *w = mx_json_first(wanted); w; w = w->next, k++) {
            int row = (int)w->u.i - at;
            if (row < 0 || row >= take) continue;
            CHECK_OK(mx_model_logits(m, &row, 1, out + (size_t)k * (size_t)info->n_vocab, &err), &err);
        }
    }
    mx_cache_free(cache);
}

static void check_case(const mx_json *c) {
    mx_arena a = {0};
    mx_err err;
    const char *dir = mx_test_tmpdir(), *title = mx_json_str(c, "title", "", &a, NULL);
    write_checkpoint(c, dir, &a);
    mx_dev *dev;
    mx_model *m;
    CHECK_OK(mx_dev_open(&dev, "cpu", &(mx_dev_options){.threads = 2, .exact = true}, &err), &err);
    CHECK_OK(mx_model_open(&m, dir, dev, &(mx_model_options){0}, &err), &err);
    int n = (int)mx_json_int(c, "length", 0, NULL), vocab = mx_model_get_info(m)->n_vocab;
    int32_t ids[MAX_LEN];
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(((int64_t)i * i * 7 + i * 3 + 5) % vocab);
    const mx_json *wanted = mx_json_get(c, "positions");
    size_t n_row = mx_json_count(wanted);
    float *want = mx_arena_array(&a, n_row * (size_t)vocab, sizeof *want), *w = want;
    float *got = mx_arena_array(&a, n_row * (size_t)vocab, sizeof *got);
    float *first = mx_arena_array(&a, n_row * (size_t)vocab, sizeof *first);
    float lo = 0, hi = 0;
    for (const mx_json *row = mx_json_first(mx_json_get(c, "logits")); row; row = row->next) {
        for (const mx_json *v = mx_json_first(row); v; v = v->next, w++) {
            *w = (float)mx_json_as_num(v);
            lo = fminf(lo, *w);
            hi = fmaxf(hi, *w);
        }
    }
    static const int widths[] = {256, 8, 1, 33};
    for (size_t k = 0; k < countof(widths); k++) {
        run(m, ids, n, widths[k], wanted, got);
        float worst = 0;
        for (size_t i = 0; i < n_row * (size_t)vocab; i++) worst = fmaxf(worst, fabsf(got[i] - want[i]));
        CHECK(worst <= 1e-4f * (hi - lo), "%s, width %d: logits differ by %g of a range of %g", title,
              widths[k], (double)worst, (double)(hi - lo));
        if (k == 0) memcpy(first, got, n_row * (size_t)vocab * sizeof *got);
        CHECK(!memcmp(first, got, n_row * (size_t)vocab * sizeof *got),
              "%s: width %d is not bit-identical to %d under exact", title, widths[k], widths[0]);
    }
    mx_model_free(m);
    mx_dev_close(dev);
    mx_arena_free(&a);
}

TEST(every_family_gives_the_reference_logits)
{
    mx_arena a = {0};
    mx_err err;
    char *text;
    size_t len;
    mx_json *cases;
    CHECK_OK(mx_file_read(&text, &len, &a, mx_test_path("tests/data/families.json"), 1 << 24, &err), &err);
    CHECK_OK(mx_json_parse(&cases, &a, text, len, &err), &err);
    CHECK(mx_json_count(cases) >= 15);
    for (const mx_json *c = mx_json_first(cases); c; c = c->next) check_case(c);
    mx_arena_free(&a);
}
