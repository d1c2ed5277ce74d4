/* test_attention.c - attention and the append to the paged cache, against a double-precision reference, and
 * bit for bit against itself with the work cut differently. */
#include "ops_util.h"

typedef struct {
    int n_head, n_kv, hd, block, window;
    float softcap;
    bool sinks;
    mx_dtype kv_type;
} layer;

/* Some sequences with their whole keys, values and queries made in advance, and a cache that is filled step
 * by step. Cells that nothing was written to hold NaN, and blocks behind the window go back: -1 in the table,
 * NaN in the cells. */
enum { MAX_SEQ = 4 };
typedef struct {
    layer l;
    mx_dev *dev;
    int n_seq, max_len, stride, n_block, done[MAX_SEQ];
    float *q[MAX_SEQ], *k[MAX_SEQ], *v[MAX_SEQ],
        *out[MAX_SEQ]; // [max_len, heads * hd]; k, v rounded to the cache's type
    float *sinks;
    int32_t *table; // [n_seq, stride]
    mx_kv kv;
} world;

static size_t type_size(mx_dtype t) { return t == MX_F32 ? 4 : 2; }

static float *random_rows(int n, int cols, double scale, mx_dtype round_to, uint64_t seed) {
    size_t count = (size_t)n * (size_t)cols;
    float *f = need(malloc(count * sizeof *f));
    void *h = need(malloc(count * 4));
    for (size_t i = 0; i < count; i++) f[i] = (float)(mx_test_normal(&seed) * scale);
    mx_from_f32(h, round_to, f, count);
    mx_to_f32(f, h, round_to, count);
    free(h);
    return f;
}

static size_t block_bytes(const world *w) {
    return (size_t)w->l.n_kv * (size_t)w->l.block * (size_t)w->l.hd * type_size(w->l.kv_type);
}

static world make_world(mx_dev *dev, layer l, int n_seq, int max_len) {
    world w = {.l = l, .dev = dev, .n_seq = n_seq, .max_len = max_len};
    w.stride = (max_len + l.block - 1) / l.block;
    w.n_block = n_seq * w.stride;
    for (int s = 0; s < n_seq; s++) {
        uint64_t seed = 1000 + (uint64_t)s * 10;
        w.q[s] = random_rows(max_len, l.n_head * l.hd, 1.5, MX_F32, seed);
        w.k[s] = random_rows(max_len, l.n_kv * l.hd, 1, l.kv_type, seed + 1);
        w.v[s] = random_rows(max_len, l.n_kv * l.hd, 1, l.kv_type, seed + 2);
        w.out[s] = need(calloc((size_t)max_len * (size_t)(l.n_head * l.hd), sizeof(float)));
    }
    if (l.sinks) w.sinks = random_rows(1, l.n_head, 1, MX_F32, 5);
    // Every sequence owns scattered blocks.
    int *order = need(malloc((size_t)w.n_block * sizeof *order));
    for (int i = 0; i < w.n_block; i++) order[i] = i;
    uint64_t seed = 99;
    for (int i = w.n_block - 1; i > 0; i--) {
        int j = (int)(mx_test_rand(&seed) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    w.table = need(malloc((size_t)w.n_block * sizeof *w.table));
    for (int i = 0; i < w.n_block; i++) w.table[i] = order[i];
    free(order);
    w.kv = (mx_kv){.type = l.kv_type, .n_kv = l.n_kv, .hd = l.hd, .group = 1};
    w.kv.k = need(malloc((size_t)w.n_block * block_bytes(&w)));
    w.kv.v = need(malloc((size_t)w.n_block * block_bytes(&w)));
    memset(w.kv.k, 0xFF, (size_t)w.n_block * block_bytes(&w)); // NaN in each of the types
    memset(w.kv.v, 0xFF, (size_t)w.n_block * block_bytes(&w));
    return w;
}

static void free_world(world *w) {
    for (int s = 0; s < w->n_seq; s++) free(w->q[s]), free(w->k[s]), free(w->v[s]), free(w->out[s]);
    free(w->sinks), free(w->table), free(w->kv.k), free(w->kv.v);
}

static void copy_rows(mx_mat *m, int row, float *const all, int from, int n) {
    memcpy((float *)m->p + row * m->ld, all + (size_t)from * (size_t)m->cols,
           (size_t)n * (size_t)m->cols * sizeof(float));
}

/* The next count[s] tokens of every sequence in one batch: append, and attention unless `append_only`. */
static void step(world *w, const int *count, bool append_only) {
    const layer *l = &w->l;
    int n_tok = 0, n_seq = 0, seq_of[MAX_SEQ];
    int32_t start[MAX_SEQ + 1] = {0}, len[MAX_SEQ];
    for (int s = 0; s < w->n_seq; s++)
        if (count[s]) {
            seq_of[n_seq] = s;
            n_tok += count[s];
            start[++n_seq] = n_tok;
        }
    int32_t *pos = need(malloc((size_t)n_tok * sizeof *pos)),
            *seq = need(malloc((size_t)n_tok * sizeof *seq));
    int32_t *table = need(malloc((size_t)(n_seq * w->stride) * sizeof *table));
    mx_mat q = {MX_F32, n_tok, l->n_head * l->hd, l->n_head * l->hd, NULL}, out = q, k = q, v;
    k.cols = l->n_kv * l->hd, k.ld = k.cols, v = k;
    q.p = need(malloc((size_t)n_tok * (size_t)q.cols * sizeof(float)));
    out.p = need(malloc((size_t)n_tok * (size_t)q.cols * sizeof(float)));
    k.p = need(malloc((size_t)n_tok * (size_t)k.cols * sizeof(float)));
    v.p = need(malloc((size_t)n_tok * (size_t)k.cols * sizeof(float)));
    mx_batch b = {
        .n_tok = n_tok, .n_seq = n_seq, .block_stride = w->stride, .block = l->block, .max_q_len = n_tok};
    for (int i = 0; i < n_seq; i++) {
        const int s = seq_of[i], from = w->done[s];
        for (int t = 0; t < count[s]; t++) pos[start[i] + t] = from + t, seq[start[i] + t] = i;
        copy_rows(&q, start[i], w->q[s], from, count[s]);
        copy_rows(&k, start[i], w->k[s], from, count[s]);
        copy_rows(&v, start[i], w->v[s], from, count[s]);
        len[i] = from + count[s];
        b.max_kv_len = len[i] > b.max_kv_len ? len[i] : b.max_kv_len;
        memcpy(table + i * w->stride, w->table + s * w->stride, (size_t)w->stride * sizeof *table);
    }
    b.pos = pos, b.seq = seq, b.seq_start = start, b.kv_len = len, b.blocks[1] = table;
    mx_err err;
    mx_rope_append ra = {
        .q = q, .k = k, .v = v, .n_head = l->n_head, .n_kv = l->n_kv, .hd = l->hd, .kv = w->kv};
    CHECK_OK(mx_op_rope_append(w->dev, &ra, &b, &err), &err);
    mx_attention a = {.q = q, .out = out, .n_head = l->n_head, .n_kv = l->n_kv, .hd = l->hd, .kv = w->kv};
    a.scale = 1 / sqrtf((float)l->hd), a.softcap = l->softcap, a.window = l->window, a.sinks = w->sinks;
    if (!append_only) CHECK_OK(mx_op_attention(w->dev, &a, &b, &err), &err);
    for (int i = 0; i < n_seq; i++) {
        const int s = seq_of[i];
        if (!append_only)
            memcpy(w->out[s] + (size_t)w->done[s] * (size_t)out.cols,
                   (float *)out.p + (size_t)start[i] * (size_t)out.cols,
                   (size_t)count[s] * (size_t)out.cols * sizeof(float));
        w->done[s] += count[s];
        for (int at = 0; l->window && (at + 1) * l->block <= w->done[s] + 1 - l->window; at++) {
            int32_t *entry = &w->table[s * w->stride + at]; // the next token sees no position of it
            if (*entry < 0) continue;
            memset((char *)w->kv.k + (size_t)*entry * block_bytes(w), 0xFF, block_bytes(w));
            memset((char *)w->kv.v + (size_t)*entry * block_bytes(w), 0xFF, block_bytes(w));
            *entry = -1;
        }
    }
    free(pos), free(seq), free(table), free(q.p), free(out.p), free(k.p), free(v.p);
}

static void run_chunks(world *w, int n, const int *chunks, int n_chunk) {
    for (int i = 0, at = 0; at < n; i++) {
        int c = chunks[i % n_chunk] < n - at ? chunks[i % n_chunk] : n - at, count[MAX_SEQ] = {c};
        step(w, count, false);
        at += c;
    }
}

/* out[n_head * hd] for position p of sequence s, from the equations. */
static void reference(const world *w, int s, int p, float *out) {
    const layer *l = &w->l;
    int lo = l->window && p + 1 > l->window ? p + 1 - l->window : 0;
    double *e = need(malloc((size_t)(p + 1) * sizeof *e));
    for (int h = 0; h < l->n_head; h++) {
        const int kh = h / (l->n_head / l->n_kv);
        const float *q = w->q[s] + ((size_t)p * (size_t)l->n_head + (size_t)h) * (size_t)l->hd;
        double top = w->sinks ? w->sinks[h] : -INFINITY, sum = 0;
        for (int i = lo; i <= p; i++) {
            const float *k = w->k[s] + ((size_t)i * (size_t)l->n_kv + (size_t)kh) * (size_t)l->hd;
            double dot = 0;
            for (int d = 0; d < l->hd; d++) dot += (double)q[d] * k[d];
            dot /= sqrt((double)l->hd);
            e[i] = l->softcap > 0 ? l->softcap * tanh(dot / l->softcap) : dot;
            top = e[i] > top ? e[i] : top;
        }
        for (int i = lo; i <= p; i++) sum += e[i] = exp(e[i] - top);
        if (w->sinks) sum += exp(w->sinks[h] - top);
        for (int d = 0; d < l->hd; d++) {
            double o = 0;
            for (int i = lo; i <= p; i++)
                o += e[i] * w->v[s][((size_t)i * (size_t)l->n_kv + (size_t)kh) * (size_t)l->hd + (size_t)d];
            out[h * l->hd + d] = (float)(o / sum);
        }
    }
    free(e);
}

static void check_row_to(const world *w, int s, int p, double tol, const char *what, size_t i) {
    const size_t n = (size_t)w->l.n_head * (size_t)w->l.hd;
    float *want = need(malloc(n * sizeof *want));
    reference(w, s, p, want);
    CHECK_CLOSE(w->out[s] + (size_t)p * n, want, n, tol, "%s %zu, position %d", what, i, p);
    free(want);
}
static void check_row(const world *w, int s, int p, const char *what, size_t i) {
    check_row_to(w, s, p, 2e-6, what, i);
}

static void check_same(const world *a, int sa, const world *b, int sb, int n, const char *what, int i) {
    const size_t row = (size_t)a->l.n_head * (size_t)a->l.hd;
    for (int p = 0; p < n; p++)
        CHECK(!memcmp(a->out[sa] + (size_t)p * row, b->out[sb] + (size_t)p * row, row * sizeof(float)),
              "%s %d, position %d", what, i, p);
}

static const layer layers[] = {
    {9, 3, 64, 16, 0, 0, false, MX_BF16},    {4, 4, 32, 32, 0, 0, false, MX_F16},
    {8, 2, 128, 64, 0, 0, false, MX_F32},    {6, 1, 40, 8, 0, 0, false, MX_BF16},
    {2, 1, 80, 16, 0, 0, true, MX_F16},      {3, 3, 96, 4, 0, 50, false, MX_BF16},
    {4, 1, 256, 16, 100, 50, false, MX_F16}, {5, 5, 37, 1, 0, 2, true, MX_BF16},
    {71, 1, 32, 16, 0, 0, false, MX_BF16},   {4, 2, 64, 16, 8, 0, true, MX_BF16},
    {4, 2, 64, 2, 8, 3, true, MX_F32},       {2, 2, 33, 512, 300, 0, false, MX_F32},
    {6, 2, 64, 16, 1, 0, false, MX_BF16},    {96, 1, 16, 16, 0, 0, false, MX_F32},
};

static void matches_the_reference(mx_dev *dev) {
    static const int chunks[] = {150, 1, 1, 97, 3, 1, 64};
    for (size_t i = 0; i < countof(layers); i++) {
        const int n = 600;
        world w = make_world(dev, layers[i], 1, n);
        run_chunks(&w, n, chunks, countof(chunks));
        for (int p = 0; p < n; p += p < 20 || p > 595 ? 1 : 37) check_row(&w, 0, p, "layer", i);
        free_world(&w);
    }
}
LEVEL_TESTS(matches_the_reference)

/* KVC-07: chunks of 1, 7, 64 and 300 tokens give the same bits; likewise any number of threads. */
static void any_chunks_give_the_same_bits(mx_dev *dev) {
    static const int sizes[] = {1, 7, 64, 300};
    for (size_t i = 0; i < countof(layers); i++) {
        const int n = 300;
        world whole = make_world(dev, layers[i], 1, n);
        run_chunks(&whole, n, &sizes[3], 1);
        for (size_t c = 0; c < countof(sizes); c++) {
            mx_dev *other = open_level(dev->isa, c == 0 ? 3 : 1);
            world w = make_world(other, layers[i], 1, n);
            run_chunks(&w, n, &sizes[c], 1);
            check_same(&whole, 0, &w, 0, n, "layer", (int)i);
            free_world(&w);
            mx_dev_close(other);
        }
        free_world(&whole);
    }
}
LEVEL_TESTS(any_chunks_give_the_same_bits)

/* KVC-01: a window of 8, chunks 5, 4, 3, 4, 1, 6 against one by one, 60 tokens. */
static void window_in_odd_chunks(mx_dev *dev) {
    static const int odd[] = {5, 4, 3, 4, 1, 6}, one[] = {1};
    for (int block = 1; block <= 32; block *= 2) {
        layer l = {4, 2, 64, block, 8, 0, false, MX_BF16};
        world a = make_world(dev, l, 1, 60), b = make_world(dev, l, 1, 60);
        run_chunks(&a, 60, odd, countof(odd));
        run_chunks(&b, 60, one, 1);
        check_same(&a, 0, &b, 0, 60, "block", block);
        for (int p = 0; p < 60; p++) check_row(&a, 0, p, "block", (size_t)block);
        int held = 0; // blocks not given back: those of the window, of the chunk, and a torn one at each end
        for (int i = 0; i < a.stride; i++) held += a.table[i] >= 0;
        CHECK(held * block <= 8 + 2 * block, "block %d: %d are held", block, held);
        free_world(&a), free_world(&b);
    }
}
LEVEL_TESTS(window_in_odd_chunks)

/* KVC-03 at this level: sequences of 3, 17, 60 and 300 tokens, prefilled and decoded together, as each alone.
 * */
static void neighbours_do_not_matter(mx_dev *dev) {
    static const int plan[][MAX_SEQ] = {{2, 10, 1, 200}, {1, 0, 40, 80}, {0, 7, 18, 1}, {0, 0, 1, 19}};
    static const int total[MAX_SEQ] = {3, 17, 60, 300};
    const layer ls[] = {layers[0], layers[3], layers[9], layers[11]};
    for (size_t i = 0; i < countof(ls); i++) {
        world all = make_world(dev, ls[i], MAX_SEQ, 300);
        for (size_t p = 0; p < countof(plan); p++) step(&all, plan[p], false);
        for (int s = 0; s < MAX_SEQ; s++) {
            world alone = make_world(dev, ls[i], MAX_SEQ, 300);
            int count[MAX_SEQ] = {0};
            count[s] = total[s];
            step(&alone, count, false);
            check_same(&all, s, &alone, s, total[s], "sequence", s);
            free_world(&alone);
        }
        check_row(&all, 3, 299, "layer", i);
        free_world(&all);
    }
}
LEVEL_TESTS(neighbours_do_not_matter)

/* 32,769 keys (the last alone in its split), and KVC-07's row and column 47,000. */
static void long_contexts(mx_dev *dev) {
    static const int lengths[] = {4097, 32769, 47001};
    for (size_t i = 0; i < countof(lengths); i++) {
        const int n = lengths[i];
        world w = make_world(dev, (layer){6, 2, 32, 64, 0, 0, false, MX_BF16}, 1, n);
        step(&w, (int[MAX_SEQ]){n - 4}, true);
        step(&w, (int[MAX_SEQ]){3}, false);
        step(&w, (int[MAX_SEQ]){1}, false); // decode, over two workers
        for (int p = n - 4; p < n; p++) check_row(&w, 0, p, "length", i);
        free_world(&w);
    }
}
LEVEL_TESTS(long_contexts)

/* A cell beyond 2^31 values: the address needs 64 bits. Only the touched pages of the pools are real. */
static void far_blocks(mx_dev *dev) {
    enum { N_KV = 2, HD = 256, BLOCK = 1024, FAR_BLOCK = 4200, N = 3 };
    mx_err err;
    mx_buf k, v;
    size_t bytes = (size_t)(FAR_BLOCK + 1) * N_KV * HD * BLOCK * 2;
    if (mx_buf_new(&k, dev, bytes, "keys", &err) != MX_OK) SKIP("%s", err.msg);
    if (mx_buf_new(&v, dev, bytes, "values", &err) != MX_OK) {
        mx_buf_free(&k);
        SKIP("%s", err.msg);
    }
    world w = make_world(dev, (layer){4, N_KV, HD, BLOCK, 0, 0, false, MX_BF16}, 1, N);
    free(w.kv.k), free(w.kv.v);
    w.kv.k = k.p, w.kv.v = v.p, w.table[0] = FAR_BLOCK;
    step(&w, (int[MAX_SEQ]){N}, false);
    for (int p = 0; p < N; p++) check_row(&w, 0, p, "far", 0);
    w.kv.k = w.kv.v = NULL;
    free_world(&w);
    mx_buf_free(&k), mx_buf_free(&v);
}
LEVEL_TESTS(far_blocks)

/* Scores of +-1000, far beyond what exp() takes; in f32 they are right to 3e-5. */
static void large_scores(mx_dev *dev) {
    world w = make_world(dev, (layer){4, 2, 64, 16, 0, 0, true, MX_F32}, 1, 300);
    for (int i = 0; i < 300 * 4 * 64; i++) w.q[0][i] *= 200;
    step(&w, (int[MAX_SEQ]){300}, false);
    for (int p = 0; p < 300; p += 13) check_row_to(&w, 0, p, 3e-5, "row", (size_t)p);
    free_world(&w);
}
LEVEL_TESTS(large_scores)

/* Values that are not finite stay visible, and only where they are seen. */
static void nan_is_not_hidden(mx_dev *dev) {
    world w = make_world(dev, (layer){2, 1, 64, 16, 0, 0, false, MX_F32}, 1, 64);
    for (int d = 0; d < 64; d++) w.k[0][40 * 64 + d] = NAN;
    step(&w, (int[MAX_SEQ]){40}, false);
    step(&w, (int[MAX_SEQ]){24}, false);
    for (int p = 0; p < 64; p++) CHECK(isnan(w.out[0][(size_t)p * 128]) == (p >= 40), "position %d", p);
    free_world(&w);
}
LEVEL_TESTS(nan_is_not_hidden)

TEST(wrong_attention_arguments)
{
    mx_dev *dev = open_level(NULL, 1);
    mx_err err;
    int32_t zero[2] = {0, 1};
    float f[64] = {0};
    mx_batch b = {.n_tok = 1, .n_seq = 1, .block_stride = 1, .block = 16, .max_kv_len = 1, .max_q_len = 1};
    b.pos = zero, b.seq = zero, b.seq_start = zero, b.kv_len = zero + 1, b.blocks[0] = zero;
    mx_attention good = {
        .q = {MX_F32, 1, 32, 32, f}, .out = {MX_F32, 1, 32, 32, f}, .n_head = 4, .n_kv = 2, .hd = 8};
    good.scale = 1;
    good.kv = (mx_kv){.type = MX_F32, .n_kv = 2, .hd = 8, .k = f, .v = f};
    mx_attention a = good;
    a.n_kv = 3;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err,
                "4 query heads cannot share 3 key heads");
    a = good, a.q.cols = 31;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err,
                "attention: q is [1, 31], expected [1, 32]");
    a = good, a.out.type = MX_BF16;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err, "out is bfloat16, not float32");
    a = good, a.kv.hd = 16;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err, "2 heads of 16, the layer 2 of 8");
    a = good, a.kv.group = 1;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err, "block table is NULL");
    a = good, a.window = -1;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err, "window is -1");
    a = good, a.scale = NAN;
    CHECK_FAILS(mx_op_attention(dev, &a, &b, &err), MX_EINVAL, &err, "scale cannot be");
    mx_batch c = b;
    c.block = 12;
    CHECK_FAILS(mx_op_attention(dev, &good, &c, &err), MX_EINVAL, &err, "12 positions is not a power of two");
    c = b, c.max_kv_len = 17;
    CHECK_FAILS(mx_op_attention(dev, &good, &c, &err), MX_EINVAL, &err,
                "1 blocks of 16 positions do not hold 17");
    mx_rope_append r = {
        .q = good.q, .k = {MX_F32, 1, 16, 16, f}, .v = {MX_F32, 1, 16, 16, f}, .n_head = 4, .n_kv = 2};
    r.hd = 8, r.kv = good.kv, r.n_rot = 10;
    CHECK_FAILS(mx_op_rope_append(dev, &r, &b, &err), MX_EINVAL, &err, "10 rotated values in heads of 8");
    r.n_rot = 8;
    CHECK_FAILS(mx_op_rope_append(dev, &r, &b, &err), MX_EINVAL, &err, "cos_sin is NULL");
    c = b, c.n_tok = 0, c.n_seq = 0;
    a = good, a.q.rows = a.out.rows = 0;
    CHECK_OK(mx_op_attention(dev, &a, &c, &err), &err);
    mx_dev_close(dev);
}
