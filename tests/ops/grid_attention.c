/* grid_attention.c - rope with the append to a paged cache, and attention over it: the device against the scalar twin, for
 * decode, prefill and both in one batch, at up to 32,769 keys. */
#include "grid.h"
#include "backend/ops_fused.h"

typedef struct {
    int n_head, n_kv, hd, block, window;
    float softcap;
    bool sinks;
    mx_dtype kv;
    int n_rot;
    bool interleaved, norm;
} layer;

enum { MAX_SEQ = 5 };
typedef struct { // tokens of each sequence in the batch, and positions in the cache before it
    int n_seq, count[MAX_SEQ], before[MAX_SEQ];
} plan;

static const layer layers[] = {
    {9, 3, 64, 16, 0, 0, false, MX_BF16, 64, false, false},
    {4, 4, 32, 32, 0, 0, false, MX_F16, 16, true, false},
    {8, 2, 128, 64, 0, 0, false, MX_F32, 128, false, true},
    {6, 1, 40, 8, 0, 0, false, MX_BF16, 40, true, true},
    {2, 1, 80, 16, 0, 0, true, MX_F16, 20, false, false},
    {3, 3, 96, 4, 0, 50, false, MX_BF16, 96, false, true},
    {4, 1, 256, 16, 100, 50, false, MX_F16, 64, false, true},
    {5, 5, 37, 1, 0, 2, true, MX_BF16, 6, false, false},
    {71, 1, 32, 16, 0, 0, false, MX_BF16, 32, false, false},
    {4, 2, 64, 16, 8, 0, true, MX_BF16, 64, false, true},
    {4, 2, 64, 2, 8, 3, true, MX_F32, 0, false, true},
    {2, 2, 33, 512, 300, 0, false, MX_F32, 32, true, false},
    {6, 2, 64, 16, 1, 0, false, MX_BF16, 64, false, false},
    {96, 1, 16, 16, 0, 0, false, MX_F32, 16, false, false},
    {32, 8, 128, 32, 0, 0, false, MX_BF16, 128, false, true},
    {16, 2, 256, 32, 0, 0, false, MX_BF16, 64, false, true},
    {64, 8, 64, 32, 128, 0, true, MX_BF16, 64, false, false},
    {24, 2, 128, 32, 0, 0, true, MX_F16, 128, true, true},
};

/* Past a split of 256 keys, a tile of 16, 32, 64 and 128 rows; decode, prefill, both. */
static const plan plans[] = {
    {1, {1}, {0}},
    {1, {1}, {255}},
    {1, {1}, {256}},
    {4, {1, 1, 1, 1}, {0, 16, 700, 1023}},
    {1, {17}, {0}},
    {1, {33}, {300}},
    {1, {130}, {1}},
    {2, {65, 2}, {511, 0}},
    {5, {1, 40, 1, 3, 129}, {515, 0, 3, 64, 31}},
};

typedef struct {
    mx_mat q, k, v, out; // f32
    float *inv_freq, *q_norm, *k_norm, *sinks;
    void *pool_k, *pool_v; // host, of the cache's type
    size_t pool_bytes;
    int32_t *pos, *seq, *start, *len, *table;
    mx_batch b;
} world;

/* Positions that are taken hold random numbers of the cache's type, all others NaN: nothing may read them. */
static world make_world(const layer *l, const plan *p) {
    world w = {0};
    uint64_t seed = 100;
    int n_tok = 0, longest = 0;
    for (int s = 0; s < p->n_seq; s++) {
        n_tok += p->count[s];
        longest = p->before[s] + p->count[s] > longest ? p->before[s] + p->count[s] : longest;
    }
    const int stride = (longest + l->block - 1) / l->block, n_block = stride * p->n_seq;
    w.q = random_mat(MX_F32, n_tok, l->n_head * l->hd, 0, 1.5, &seed);
    w.k = random_mat(MX_F32, n_tok, l->n_kv * l->hd, 4, 1, &seed);
    w.v = random_mat(MX_F32, n_tok, l->n_kv * l->hd, 0, 1, &seed);
    w.out = random_mat(MX_F32, n_tok, l->n_head * l->hd, 0, 1, &seed);
    w.q_norm = random_mat(MX_F32, 1, l->hd, 0, 1, &seed).p,
    w.k_norm = random_mat(MX_F32, 1, l->hd, 0, 1, &seed).p;
    w.sinks = random_mat(MX_F32, 1, l->n_head, 0, 1, &seed).p;
    w.inv_freq = need(malloc(256 * sizeof(float)));
    for (int f = 0; f < l->n_rot / 2; f++) w.inv_freq[f] = powf(10000, -2.0f * (float)f / (float)l->n_rot);
    w.pos = need(malloc((size_t)n_tok * 4)), w.seq = need(malloc((size_t)n_tok * 4));
    w.start = need(calloc(MAX_SEQ + 1, 4)), w.len = need(calloc(MAX_SEQ, 4));
    w.table = need(malloc((size_t)n_block * 4));
    int *order = need(malloc((size_t)n_block * sizeof *order)), max_q = 0;
    for (int i = 0; i < n_block; i++) order[i] = i;
    for (int i = n_block - 1; i > 0; i--) {
        const int j = (int)(mx_test_rand(&seed) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    for (int i = 0; i < n_block; i++) w.table[i] = order[i];
    free(order);
    const size_t cell = (size_t)l->hd * mx_dtype_size(l->kv);
    w.pool_bytes = (size_t)n_block * (size_t)l->n_kv * (size_t)l->block * cell;
    w.pool_k = need(malloc(w.pool_bytes)), w.pool_v = need(malloc(w.pool_bytes));
    memset(w.pool_k, 0xFF, w.pool_bytes), memset(w.pool_v, 0xFF, w.pool_bytes); // NaN in each of the types
    float *row = need(malloc((size_t)l->hd * sizeof *row));
    for (int s = 0, at = 0; s < p->n_seq; s++) {
        for (int i = 0; i < p->count[s]; i++, at++) w.pos[at] = p->before[s] + i, w.seq[at] = s;
        w.start[s + 1] = at, w.len[s] = p->before[s] + p->count[s];
        max_q = p->count[s] > max_q ? p->count[s] : max_q;
        for (int i = 0; i < p->before[s]; i++) {
            const int block = w.table[s * stride + i / l->block];
            if (l->window && (i / l->block + 1) * l->block <= p->before[s] + 1 - l->window)
                continue; // given back
            for (int h = 0; h < l->n_kv * 2; h++) {
                for (int c = 0; c < l->hd; c++) row[c] = (float)mx_test_normal(&seed);
                const size_t to = (((size_t)block * (size_t)l->n_kv + (size_t)(h / 2)) * (size_t)l->block +
                                   (size_t)(i % l->block)) *
                                  cell;
                mx_from_f32((char *)(h % 2 ? w.pool_v : w.pool_k) + to, l->kv, row, (size_t)l->hd);
            }
        }
        for (int i = 0; l->window && (i + 1) * l->block <= p->before[s] + 1 - l->window; i++)
            w.table[s * stride + i] = -1;
    }
    free(row);
    w.b = (mx_batch){.n_tok = n_tok, .n_seq = p->n_seq, .block_stride = stride, .block = l->block};
    w.b.max_kv_len = longest, w.b.max_q_len = max_q;
    return w;
}

static void free_world(world *w) {
    free(w->q.p), free(w->k.p), free(w->v.p), free(w->out.p), free(w->q_norm), free(w->k_norm),
        free(w->sinks);
    free(w->inv_freq), free(w->pos), free(w->seq), free(w->start), free(w->len), free(w->table);
    free(w->pool_k), free(w->pool_v);
}

typedef struct {
    float *q, *out, *k, *v, *cos_sin;
    bool by_port;
} outcome;

static float *pool_values(mx_dev *d, const void *p, const layer *l, size_t bytes) {
    void *raw = grid_get(d, p, bytes);
    const size_t n = bytes / mx_dtype_size(l->kv);
    float *f = need(malloc(n * sizeof *f));
    mx_to_f32(f, raw, l->kv, n);
    free(raw);
    return f;
}

/* fused: in one launch where the device has a port for it. */
static outcome run_on(mx_dev *d, const layer *l, const world *w, bool fused) {
    mx_err err;
    mx_batch b = w->b;
    const size_t n = (size_t)b.n_tok;
    b.pos = grid_put(d, w->pos, n * 4), b.seq = grid_put(d, w->seq, n * 4);
    b.seq_start = grid_put(d, w->start, (MAX_SEQ + 1) * 4), b.kv_len = grid_put(d, w->len, MAX_SEQ * 4);
    b.blocks[1] = grid_put(d, w->table, (size_t)(b.n_seq * b.block_stride) * 4);
    const mx_kv kv = {.type = l->kv,
                      .n_kv = l->n_kv,
                      .hd = l->hd,
                      .group = 1,
                      .k = grid_put(d, w->pool_k, w->pool_bytes),
                      .v = grid_put(d, w->pool_v, w->pool_bytes)};
    float *cs = grid_put(d, NULL, n * 256 * 4);
    if (l->n_rot)
        CHECK_OK(mx_op_rope_table(d, cs, grid_put(d, w->inv_freq, 256 * 4), l->n_rot, 1.25f, &b, &err), &err);
    mx_rope_append r = {.q = grid_mat(d, &w->q),
                        .k = grid_mat(d, &w->k),
                        .v = grid_mat(d, &w->v),
                        .n_head = l->n_head,
                        .n_kv = l->n_kv,
                        .hd = l->hd,
                        .n_rot = l->n_rot,
                        .interleaved = l->interleaved,
                        .cos_sin = cs,
                        .eps = 1e-6f,
                        .kv = kv};
    if (l->norm)
        r.q_norm = grid_put(d, w->q_norm, (size_t)l->hd * 4),
        r.k_norm = grid_put(d, w->k_norm, (size_t)l->hd * 4);
    mx_attention a = {
        .q = r.q, .out = grid_mat(d, &w->out), .n_head = l->n_head, .n_kv = l->n_kv, .hd = l->hd, .kv = kv};
    a.scale = 1 / sqrtf((float)l->hd), a.softcap = l->softcap, a.window = l->window;
    if (l->sinks) a.sinks = grid_put(d, w->sinks, (size_t)l->n_head * 4);
    const mx_decode_attention both = {.rope = r, .attention = a, .b = &b};
    const mx_status st = fused ? mx_op_decode_attention(d, &both, &err) : MX_UNSUPPORTED;
    if (st == MX_UNSUPPORTED) {
        CHECK_OK(mx_op_rope_append(d, &r, &b, &err), &err);
        CHECK_OK(mx_op_attention(d, &a, &b, &err), &err);
    } else {
        CHECK_OK(st, &err);
    }
    return (outcome){.by_port = st == MX_OK,
                     .q = grid_values(d, &r.q),
                     .out = grid_values(d, &a.out),
                     .k = pool_values(d, kv.k, l, w->pool_bytes),
                     .v = pool_values(d, kv.v, l, w->pool_bytes),
                     .cos_sin = grid_get(d, cs, (l->n_rot ? n * (size_t)l->n_rot : 1) * 4)};
}

static void free_outcome(outcome *o) { free(o->q), free(o->out), free(o->k), free(o->v), free(o->cos_sin); }

static int n_by_port;

/* Rotation, append and attention of one token a sequence in one launch, if the device has a port for that. */
static void compare_fused(const layer *l, const world *w, const outcome *want, const char *what) {
    outcome got = run_on(grid_dev(), l, w, true);
    const size_t n_out = (size_t)w->b.n_tok * (size_t)w->out.cols,
                 cells = w->pool_bytes / mx_dtype_size(l->kv);
    if (!got.by_port) {
        free_outcome(&got);
        return;
    }
    n_by_port++;
    float *copy[3] = {need(malloc(n_out * 4)), need(malloc(cells * 4)), need(malloc(cells * 4))};
    memcpy(copy[0], want->out, n_out * 4);
    memcpy(copy[1], want->k, cells * 4), memcpy(copy[2], want->v, cells * 4);
    grid_close("decode attention", l->kv == MX_F16 ? 6e-4 : BOUND_ATTN, got.out, copy[0], n_out, "%s", what);
    grid_close("decode attention: keys", l->kv == MX_F16 ? BOUND_F16 : BOUND_BF16, got.k, copy[1], cells,
               "%s", what);
    grid_close("decode attention: values", BOUND_SAME, got.v, copy[2], cells, "%s", what);
    free(got.q), free(got.cos_sin);
}

/* One batch on both. Rows of more than one token may take matrix units, which round to 16 bits. */
static void compare(const layer *l, const plan *p, const char *what) {
    world w = make_world(l, p);
    outcome got = run_on(grid_dev(), l, &w, false), want = run_on(grid_twin(), l, &w, false);
    compare_fused(l, &w, &want, what);
    const size_t n = (size_t)w.b.n_tok, cells = w.pool_bytes / mx_dtype_size(l->kv);
    const double stored = l->kv == MX_F32 ? BOUND_F32 : l->kv == MX_F16 ? BOUND_F16 : BOUND_BF16;
    if (l->n_rot) {
        for (size_t i = 0; i < n * (size_t)l->n_rot; i++)
            CHECK(fabsf(got.cos_sin[i] - want.cos_sin[i]) <= 4e-7f, "%s: cosine or sine %zu is %g, not %g",
                  what, i, (double)got.cos_sin[i], (double)want.cos_sin[i]);
    }
    free(got.cos_sin), free(want.cos_sin);
    grid_close("rope: q", BOUND_F32, got.q, want.q, n * (size_t)w.q.cols, "%s", what);
    grid_close(l->kv == MX_F32   ? "append f32"
               : l->kv == MX_F16 ? "append f16"
                                 : "append bf16",
               stored, got.k, want.k, cells, "%s: keys", what);
    grid_close("append: values", BOUND_SAME, got.v, want.v, cells, "%s: values", what);
    const bool decode = w.b.max_q_len == 1;
    // A key that the two devices rounded to neighbours of a 16-bit type moves a few outputs more than f32 does.
    grid_close(decode ? "attention, decode" : "attention",
               decode ? (l->kv == MX_F32 ? BOUND_SUM : BOUND_F16) : BOUND_ATTN, got.out, want.out,
               n * (size_t)w.out.cols, "%s", what);
    free_world(&w);
    grid_free();
}

TEST(attention_of_every_layer)
{
    for (size_t i = 0; i < countof(layers); i++)
        for (size_t p = 0; p < countof(plans); p++) {
            char what[64];
            if (layers[i].n_head > 30 && p % 3 != 2 && !grid_long() && !grid_is_cpu() && p > 4)
                continue; // large ones
            snprintf(what, sizeof what, "layer %zu, plan %zu", i, p);
            compare(&layers[i], &plans[p], what);
        }
    fprintf(stderr, "# decode attention: %d batches by a port\n", n_by_port);
}

TEST(long_contexts)
{
    static const layer ls[] = {{4, 2, 64, 32, 0, 0, false, MX_BF16, 64, false, true},
                               {6, 2, 32, 64, 0, 0, true, MX_F16, 32, false, false},
                               {16, 2, 128, 32, 0, 0, true, MX_F16, 128, false, true},
                               {24, 2, 64, 32, 5000, 30, false, MX_BF16, 64, false, true}};
    static const int lengths[] = {4097, 16385, 32769};
    for (size_t i = 0; i < countof(ls); i++)
        for (size_t n = 0; n < countof(lengths); n++) {
            const plan decode = {2, {1, 1}, {lengths[n] - 1, 7}}, chunk = {1, {20}, {lengths[n] - 20}};
            char what[64];
            snprintf(what, sizeof what, "%d keys, layer %zu", lengths[n], i);
            compare(&ls[i], &decode, what);
            if (n < 2 || grid_long() || i == 0) compare(&ls[i], &chunk, what);
        }
}

/* Scores of hundreds: far beyond what exp() takes without the maximum. */
TEST(large_scores)
{
    layer l = {4, 2, 64, 16, 0, 0, true, MX_F32, 64, false, false};
    for (int n = 1; n <= 40; n += 39) {
        const plan p = {1, {n}, {300}};
        world w = make_world(&l, &p);
        for (int i = 0; i < w.q.rows * w.q.cols; i++) ((float *)w.q.p)[i] *= 60;
        outcome got = run_on(grid_dev(), &l, &w, false), want = run_on(grid_twin(), &l, &w, false);
        // With one key winning, its score's rounding to bf16 inputs (2^-9 of hundreds) decides among close ones.
        grid_close("large scores", n == 1 ? 1e-3 : 0.3, got.out, want.out, (size_t)(n * w.out.cols),
                   "%d tokens", n);
        free(got.q), free(want.q), free(got.k), free(want.k), free(got.v), free(want.v), free(got.cos_sin),
            free(want.cos_sin);
        free_world(&w);
        grid_free();
    }
}

/* A NaN key shows in the rows that see it and in no other. */
TEST(nan_is_not_hidden)
{
    const layer l = {2, 1, 64, 16, 0, 0, false, MX_F32, 0, false, false};
    const plan p = {2, {30, 1}, {10, 5}};
    world w = make_world(&l, &p);
    for (int c = 0; c < 64; c++) ((float *)w.k.p)[20 * w.k.ld + c] = NAN; // token 20 of the first sequence
    outcome got = run_on(grid_dev(), &l, &w, false);
    for (int t = 0; t < 31; t++)
        CHECK(isnan(got.out[t * 128]) == (t >= 20 && t < 30), "token %d: %g", t, (double)got.out[t * 128]);
    free(got.q), free(got.out), free(got.k), free(got.v), free(got.cos_sin);
    free_world(&w);
    grid_free();
}
