/* test_recurrent.c - convolution and gated delta rule, whose state lives on between steps: against naive
 * recurrences in double precision, and the same bits however a sequence is cut and whatever stands beside it.
 * */
#include "ops_util.h"

enum { N_SEQ = 3, N_SLOT = 5 };
static const int32_t slots[N_SEQ] = {4, 0, 2};
static const int totals[N_SEQ] = {60, 1, 37};

/* A batch of count[s] tokens of each sequence, from token done[s]; rows[] says which row of the whole each
 * token is. The whole is the three sequences one after the other. */
typedef struct {
    mx_batch b;
    int32_t pos[128], seq[128], start[N_SEQ + 1], slot[N_SEQ];
    int rows[128];
} cut;

static int offset_of(int s) {
    int at = 0;
    for (int i = 0; i < s; i++) at += totals[i];
    return at;
}

static void make_cut(cut *c, const int *done, const int *count) {
    *c = (cut){.b = {.max_q_len = 1}};
    for (int s = 0; s < N_SEQ; s++) {
        if (!count[s]) continue;
        for (int i = 0; i < count[s]; i++) {
            int t = c->b.n_tok++;
            c->pos[t] = done[s] + i, c->seq[t] = c->b.n_seq, c->rows[t] = offset_of(s) + done[s] + i;
        }
        c->slot[c->b.n_seq++] = slots[s];
        c->start[c->b.n_seq] = c->b.n_tok;
    }
    c->b.pos = c->pos, c->b.seq = c->seq, c->b.seq_start = c->start, c->b.slot = c->slot;
}

static void each_alone(int *count, int step, int s) {
    (void)step;
    for (int i = 0; i < N_SEQ; i++) count[i] = i == s ? totals[i] : 0;
}

/* The ways to cut that must give the same bits; the first is "all at once". fn handles one batch. */
static void in_every_way(void (*reset)(void *), void (*fn)(void *, const cut *),
                         void (*done_with)(void *, int way), void *arg) {
    static const int chunks[] = {5, 4, 3, 4, 1, 6};
    for (int way = 0; way < 4; way++) {
        int done[N_SEQ] = {0}, count[N_SEQ];
        cut c;
        reset(arg);
        if (way == 3) {
            for (int s = 0; s < N_SEQ; s++) {
                each_alone(count, 0, s);
                make_cut(&c, done, count);
                fn(arg, &c);
            }
        }
        for (int step = 0, left = way < 3; left; step++) {
            left = 0;
            for (int s = 0; s < N_SEQ; s++) {
                int want = way == 0 ? 1000 : way == 1 ? 1 : chunks[(step + s) % 6];
                count[s] = want < totals[s] - done[s] ? want : totals[s] - done[s];
            }
            make_cut(&c, done, count);
            if (c.b.n_tok) fn(arg, &c);
            for (int s = 0; s < N_SEQ; s++) left += totals[s] - (done[s] += count[s]);
        }
        done_with(arg, way);
    }
}

static mx_mat pick_rows(const mx_mat *whole, const cut *c) {
    const size_t row = (size_t)whole->ld * (whole->type == MX_F32 ? 4 : 2);
    mx_mat m = *whole;
    m.rows = c->b.n_tok;
    m.p = need(malloc((size_t)m.rows * row));
    for (int i = 0; i < m.rows; i++)
        memcpy((char *)m.p + (size_t)i * row, (char *)whole->p + (size_t)c->rows[i] * row, row);
    return m;
}

static void put_rows(mx_mat *whole, mx_mat *part, const cut *c) {
    const size_t row = (size_t)whole->ld * (whole->type == MX_F32 ? 4 : 2);
    for (int i = 0; i < part->rows; i++)
        memcpy((char *)whole->p + (size_t)c->rows[i] * row, (char *)part->p + (size_t)i * row, row);
    free(part->p);
}

/* ---- convolution --------------------------------------------------------------------------------------- */

typedef struct {
    mx_dev *dev;
    mx_mat x, y, w;
    float *bias, *state, *first_y, *first_state;
    int channels, width;
} conv_world;

static void conv_reset(void *arg) {
    conv_world *w = arg;
    uint64_t seed = 77;
    for (int i = 0; i < N_SLOT * (w->width - 1) * w->channels; i++)
        w->state[i] = (float)mx_test_normal(&seed);
}

static void conv_step(void *arg, const cut *c) {
    conv_world *w = arg;
    mx_err err;
    mx_mat x = pick_rows(&w->x, c);
    mx_conv a = {.x = x, .y = x, .w = w->w.p, .bias = w->bias, .k_width = w->width, .state = w->state};
    CHECK_OK(mx_op_conv(w->dev, &a, &c->b, &err), &err); // in place
    put_rows(&w->y, &x, c);
}

static void conv_reference(const conv_world *w, float *y, float *state) {
    const int kw = w->width, ch = w->channels;
    float *x = values_of(&w->x);
    for (int s = 0; s < N_SEQ; s++)
        for (int c = 0; c < ch; c++) {
            float line[40 + 64];
            float *st = state + slots[s] * (kw - 1) * ch + c;
            for (int j = 0; j < kw - 1; j++) line[j] = st[j * ch];
            for (int t = 0; t < totals[s]; t++) line[kw - 1 + t] = x[(offset_of(s) + t) * ch + c];
            for (int t = 0; t < totals[s]; t++) {
                double sum = w->bias ? w->bias[c] : 0;
                for (int j = 0; j < kw; j++) sum += (double)((float *)w->w.p)[c * kw + j] * line[t + j];
                y[(offset_of(s) + t) * ch + c] = (float)(sum / (1 + exp(-sum)));
            }
            for (int j = 0; j < kw - 1; j++) st[j * ch] = line[totals[s] + j];
        }
    free(x);
}

static void conv_done(void *arg, int way) {
    conv_world *w = arg;
    const size_t n = (size_t)w->y.rows * (size_t)w->channels,
                 ns = (size_t)(N_SLOT * (w->width - 1) * w->channels);
    float *y = values_of(&w->y);
    if (way == 0) {
        float *want = need(malloc(n * sizeof *want)), *state = need(malloc((ns + 1) * sizeof *state));
        memcpy(w->first_state, w->state, ns * sizeof *state);
        conv_reset(w);
        memcpy(state, w->state, ns * sizeof *state);
        conv_reference(w, want, state);
        CHECK_CLOSE(y, want, n, tolerance(w->y.type), "outputs");
        CHECK_CLOSE(w->first_state, state, ns, 0, "state");
        memcpy(w->first_y, y, n * sizeof *y);
        free(want), free(state);
    } else {
        CHECK(!memcmp(y, w->first_y, n * sizeof *y), "way %d", way);
        CHECK(!memcmp(w->state, w->first_state, ns * sizeof *y), "way %d", way);
    }
    free(y);
}

static void convolution(mx_dev *dev) {
    static const int cases[][2] = {{4, 200}, {2, 64}, {3, 7}, {1, 5}, {32, 65}}; // width, channels
    for (size_t i = 0; i < countof(cases) * 2; i++) {
        uint64_t seed = 10 + i;
        conv_world w = {.dev = dev, .width = cases[i / 2][0], .channels = cases[i / 2][1]};
        const mx_dtype t = dev->act = i % 2 ? MX_BF16 : MX_F32;
        w.x = random_mat(t, offset_of(N_SEQ), w.channels, 3, 1, &seed);
        w.y = random_mat(t, offset_of(N_SEQ), w.channels, 3, 1, &seed);
        w.w = random_mat(MX_F32, w.channels, w.width, 0, 0.5, &seed);
        mx_mat bias = random_mat(MX_F32, 1, w.channels, 0, 1, &seed);
        w.bias = i % 4 < 2 ? bias.p : NULL;
        w.state = need(calloc((size_t)(N_SLOT * w.width * w.channels), sizeof(float)));
        w.first_state = need(calloc((size_t)(N_SLOT * w.width * w.channels), sizeof(float)));
        w.first_y = need(calloc((size_t)(w.x.rows * w.channels), sizeof(float)));
        in_every_way(conv_reset, conv_step, conv_done, &w);
        free(w.x.p), free(w.y.p), free(w.w.p), free(bias.p), free(w.state), free(w.first_state),
            free(w.first_y);
    }
}
LEVEL_TESTS(convolution)

/* ---- delta rule ---------------------------------------------------------------------------------------- */

typedef struct {
    mx_dev *dev;
    mx_mat qkv, a, b, out;
    float *a_log, *dt_bias, *state, *first_out, *first_state;
    int n_k, n_v, dk, dv;
} delta_world;

static size_t state_size(const delta_world *w) { return (size_t)(N_SLOT * w->n_v * w->dk * w->dv); }

static void delta_reset(void *arg) {
    delta_world *w = arg;
    uint64_t seed = 78;
    for (size_t i = 0; i < state_size(w); i++) w->state[i] = (float)(mx_test_normal(&seed) * 0.3);
}

static void delta_step(void *arg, const cut *c) {
    delta_world *w = arg;
    mx_err err;
    mx_mat all = pick_rows(&w->qkv, c), a = pick_rows(&w->a, c), b = pick_rows(&w->b, c),
           out = pick_rows(&w->out, c);
    const size_t size = all.type == MX_F32 ? 4 : 2;
    mx_mat q = all, k = all, v = all; // three ranges of columns
    q.cols = k.cols = w->n_k * w->dk, v.cols = w->n_v * w->dv;
    k.p = (char *)q.p + (size_t)q.cols * size;
    v.p = (char *)k.p + (size_t)k.cols * size;
    mx_delta_rule r = {.q = q, .k = k, .v = v, .a = a, .b = b, .a_log = w->a_log, .dt_bias = w->dt_bias};
    r.n_k = w->n_k, r.n_v = w->n_v, r.dk = w->dk, r.dv = w->dv, r.out = out, r.state = w->state;
    CHECK_OK(mx_op_delta_rule(w->dev, &r, &c->b, &err), &err);
    put_rows(&w->out, &out, c);
    free(all.p), free(a.p), free(b.p);
}

static void normalized(double *y, const float *x, int n) {
    double sq = 0;
    for (int i = 0; i < n; i++) sq += (double)x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(sq + 1e-6);
}

static void delta_reference(const delta_world *w, float *out, float *state) {
    const int dk = w->dk, dv = w->dv, cols = w->qkv.cols;
    float *x = values_of(&w->qkv), *a = values_of(&w->a), *b = values_of(&w->b);
    double *s = need(malloc((size_t)(dk * dv) * sizeof *s)), q[256], k[256];
    for (int i = 0; i < N_SEQ; i++)
        for (int h = 0; h < w->n_v; h++) {
            float *st = state + (slots[i] * w->n_v + h) * dk * dv;
            for (int e = 0; e < dk * dv; e++) s[e] = st[e];
            for (int t = offset_of(i); t < offset_of(i) + totals[i]; t++) {
                const int hk = h * w->n_k / w->n_v;
                normalized(q, x + t * cols + hk * dk, dk);
                normalized(k, x + t * cols + (w->n_k + hk) * dk, dk);
                const float *v = x + t * cols + 2 * w->n_k * dk + h * dv;
                double g = exp(-exp(w->a_log[h]) * log1p(exp((double)a[t * w->n_v + h] + w->dt_bias[h])));
                double beta = 1 / (1 + exp(-(double)b[t * w->n_v + h]));
                for (int j = 0; j < dv; j++) {
                    double seen = 0, o = 0;
                    for (int e = 0; e < dk; e++) seen += k[e] * (s[e * dv + j] *= g);
                    for (int e = 0; e < dk; e++) o += q[e] * (s[e * dv + j] += k[e] * beta * (v[j] - seen));
                    out[t * w->n_v * dv + h * dv + j] = (float)(o / sqrt(dk));
                }
            }
            for (int e = 0; e < dk * dv; e++) st[e] = (float)s[e];
        }
    free(x), free(a), free(b), free(s);
}

static void delta_done(void *arg, int way) {
    delta_world *w = arg;
    const size_t n = (size_t)w->out.rows * (size_t)w->out.cols, ns = state_size(w);
    float *out = values_of(&w->out);
    if (way == 0) {
        float *want = need(malloc(n * sizeof *want)), *state = need(malloc(ns * sizeof *state));
        memcpy(w->first_state, w->state, ns * sizeof *state);
        delta_reset(w);
        memcpy(state, w->state, ns * sizeof *state);
        delta_reference(w, want, state);
        CHECK_CLOSE(out, want, n, tolerance(w->out.type), "outputs");
        CHECK_CLOSE(w->first_state, state, ns, 2e-6, "state");
        memcpy(w->first_out, out, n * sizeof *out);
        free(want), free(state);
    } else {
        CHECK(!memcmp(out, w->first_out, n * sizeof *out), "way %d", way);
        CHECK(!memcmp(w->state, w->first_state, ns * sizeof *out), "way %d", way);
    }
    free(out);
}

static void delta_rule(mx_dev *dev) {
    static const int cases[][4] = {
        {2, 4, 128, 128}, {1, 1, 64, 32}, {2, 2, 33, 50}, {1, 3, 16, 7}}; // n_k, n_v, dk, dv
    for (size_t i = 0; i < countof(cases) * 2; i++) {
        uint64_t seed = 20 + i;
        const int *c = cases[i / 2], n = offset_of(N_SEQ);
        const mx_dtype t = dev->act = i % 2 ? MX_BF16 : MX_F32;
        delta_world w = {.dev = dev, .n_k = c[0], .n_v = c[1], .dk = c[2], .dv = c[3]};
        w.qkv = random_mat(t, n, 2 * w.n_k * w.dk + w.n_v * w.dv, 3, 1, &seed);
        w.a = random_mat(MX_F32, n, w.n_v, 1, 3, &seed), w.b = random_mat(MX_F32, n, w.n_v, 1, 1, &seed);
        w.out = random_mat(t, n, w.n_v * w.dv, 2, 1, &seed);
        mx_mat al = random_mat(MX_F32, 1, w.n_v, 0, 1, &seed), dt = random_mat(MX_F32, 1, w.n_v, 0, 1, &seed);
        w.a_log = al.p, w.dt_bias = dt.p;
        ((float *)dt.p)[0] = 25; // softplus far out
        w.state = need(calloc(state_size(&w), sizeof(float)));
        w.first_state = need(calloc(state_size(&w), sizeof(float)));
        w.first_out = need(calloc((size_t)(n * w.out.cols), sizeof(float)));
        in_every_way(delta_reset, delta_step, delta_done, &w);
        free(w.qkv.p), free(w.a.p), free(w.b.p), free(w.out.p), free(al.p), free(dt.p), free(w.state);
        free(w.first_state), free(w.first_out);
    }
}
LEVEL_TESTS(delta_rule)

TEST(wrong_recurrent_arguments)
{
    mx_dev *dev = open_level(NULL, 1);
    mx_err err;
    float f[64] = {0};
    int32_t zero[2] = {0, 1};
    mx_batch b = {
        .n_tok = 1, .n_seq = 1, .max_q_len = 1, .pos = zero, .seq = zero, .seq_start = zero, .slot = zero};
    mx_conv c = {.x = {MX_F32, 1, 8, 8, f}, .y = {MX_F32, 1, 8, 8, f}, .w = f, .k_width = 4, .state = f},
            bad = c;
    CHECK_OK(mx_op_conv(dev, &c, &b, &err), &err);
    bad.k_width = 33;
    CHECK_FAILS(mx_op_conv(dev, &bad, &b, &err), MX_EINVAL, &err, "k_width is 33, outside 1..32");
    bad = c, bad.y.cols = 7;
    CHECK_FAILS(mx_op_conv(dev, &bad, &b, &err), MX_EINVAL, &err, "y is [1, 7], expected [1, 8]");
    mx_batch no_slot = b;
    no_slot.slot = NULL;
    CHECK_FAILS(mx_op_conv(dev, &c, &no_slot, &err), MX_EINVAL, &err, "slot is NULL");
    mx_mat m = {MX_F32, 1, 8, 8, f}, one = {MX_F32, 1, 2, 2, f};
    mx_delta_rule r = {
        .q = m, .k = m, .v = m, .a = one, .b = one, .a_log = f, .dt_bias = f, .n_k = 2, .n_v = 2};
    r.dk = 4, r.dv = 4, r.out = m, r.state = f;
    CHECK_OK(mx_op_delta_rule(dev, &r, &b, &err), &err);
    r.n_k = 3;
    CHECK_FAILS(mx_op_delta_rule(dev, &r, &b, &err), MX_EINVAL, &err,
                "2 value heads cannot share 3 key heads");
    r.n_k = 2, r.dk = 5;
    CHECK_FAILS(mx_op_delta_rule(dev, &r, &b, &err), MX_EINVAL, &err, "q is [1, 8], expected [1, 10]");
    mx_dev_close(dev);
}
