/* grid_recurrent.c - causal convolution and gated delta rule with their states: the device against the scalar twin, over several
 * steps of a ragged batch. */
#include "grid.h"

enum { N_SEQ = 3, N_SLOT = 5 };
static const int32_t slots[N_SEQ] = {4, 0, 2};
/* Tokens of each sequence in the steps of a run: a prompt, decoding, chunks beside each other. */
static const int steps[][N_SEQ] = {{60, 1, 37}, {1, 1, 1}, {0, 130, 1}, {1, 0, 0}, {3, 4, 64}};

typedef struct {
    mx_batch b;
    int32_t pos[256], seq[256], start[N_SEQ + 1], slot[N_SEQ];
} cut;

static cut make_cut(const int *count, int *done) {
    cut c = {.b = {.max_q_len = 1}};
    for (int s = 0; s < N_SEQ; s++) {
        if (!count[s]) continue;
        for (int i = 0; i < count[s]; i++) {
            const int t = c.b.n_tok++;
            c.pos[t] = done[s]++, c.seq[t] = c.b.n_seq;
        }
        if (count[s] > c.b.max_q_len) c.b.max_q_len = count[s];
        c.slot[c.b.n_seq++] = slots[s];
        c.start[c.b.n_seq] = c.b.n_tok;
    }
    return c;
}

static mx_batch batch_on(mx_dev *d, const cut *c) {
    mx_batch b = c->b;
    b.pos = grid_put(d, c->pos, sizeof c->pos), b.seq = grid_put(d, c->seq, sizeof c->seq);
    b.seq_start = grid_put(d, c->start, sizeof c->start), b.slot = grid_put(d, c->slot, sizeof c->slot);
    return b;
}

TEST(convolution)
{
    static const int cases[][2] = {{4, 200}, {2, 64}, {3, 7}, {1, 5}, {32, 65}, {4, 1025}}; // width, channels
    for (size_t i = 0; i < countof(cases); i++) {
        const int width = cases[i][0], channels = cases[i][1];
        const size_t n_state = (size_t)(N_SLOT * (width - 1) * channels);
        uint64_t seed = 20 + i;
        mx_mat w = random_mat(MX_F32, channels, width, 0, 0.5, &seed),
               bias = random_mat(MX_F32, 1, channels, 0, 1, &seed);
        mx_mat first_state = random_mat(MX_F32, N_SLOT, width > 1 ? (width - 1) * channels : 1, 0, 1, &seed);
        int done[2][N_SEQ] = {{0}};
        mx_conv op[2];
        BOTH(d, k) {
            op[k] = (mx_conv){.w = grid_put(d, w.p, (size_t)(width * channels) * 4), .k_width = width};
            op[k].bias = i % 2 ? grid_put(d, bias.p, (size_t)channels * 4) : NULL;
            op[k].state = grid_put(d, first_state.p, n_state * 4);
        }
        for (size_t s = 0; s < countof(steps); s++) {
            float *y[2], *left[2];
            BOTH(d, k) {
                mx_err err;
                uint64_t same = 50 + s;
                cut c = make_cut(steps[s], done[k]);
                mx_batch b = batch_on(d, &c);
                mx_mat x = random_mat(MX_F32, b.n_tok, channels, 3, 1, &same);
                op[k].x = op[k].y = grid_mat(d, &x); // in place
                CHECK_OK(mx_op_conv(d, &op[k], &b, &err), &err);
                y[k] = grid_values(d, &op[k].y), left[k] = grid_get(d, op[k].state, n_state * 4);
                free(x.p);
            }
            int n_tok = 0;
            for (int q = 0; q < N_SEQ; q++) n_tok += steps[s][q];
            grid_close("conv", BOUND_F32, y[0], y[1], (size_t)(n_tok * channels), "case %zu, step %zu", i, s);
            grid_close("conv: state", BOUND_SAME, left[0], left[1], n_state, "case %zu, step %zu", i, s);
        }
        free(w.p), free(bias.p), free(first_state.p);
        grid_free();
    }
}

TEST(delta_rule)
{
    static const int cases[][4] = {
        {2, 4, 128, 128}, {1, 1, 64, 32}, {2, 2, 33, 50}, {1, 3, 16, 7}, {4, 8, 96, 64}}; // n_k, n_v, dk, dv
    for (size_t i = 0; i < countof(cases); i++) {
        const int nk = cases[i][0], nv = cases[i][1], dk = cases[i][2], dv = cases[i][3];
        const size_t n_state = (size_t)(N_SLOT * nv * dk * dv);
        uint64_t seed = 30 + i;
        mx_mat a_log = random_mat(MX_F32, 1, nv, 0, 1, &seed), dt = random_mat(MX_F32, 1, nv, 0, 1, &seed);
        mx_mat first_state = random_mat(MX_F32, N_SLOT, nv * dk * dv, 0, 0.3, &seed);
        ((float *)dt.p)[0] = 25; // softplus far out
        int done[2][N_SEQ] = {{0}};
        mx_delta_rule op[2];
        BOTH(d, k) {
            op[k] = (mx_delta_rule){.n_k = nk, .n_v = nv, .dk = dk, .dv = dv};
            op[k].a_log = grid_put(d, a_log.p, (size_t)nv * 4),
            op[k].dt_bias = grid_put(d, dt.p, (size_t)nv * 4);
            op[k].state = grid_put(d, first_state.p, n_state * 4);
        }
        for (size_t s = 0; s < countof(steps); s++) {
            float *out[2], *left[2];
            int n_tok = 0;
            BOTH(d, k) {
                mx_err err;
                uint64_t same = 60 + s;
                cut c = make_cut(steps[s], done[k]);
                mx_batch b = batch_on(d, &c);
                n_tok = b.n_tok;
                mx_mat qkv = random_mat(MX_F32, n_tok, 2 * nk * dk + nv * dv, 3, 1, &same);
                mx_mat a = random_mat(MX_F32, n_tok, nv, 1, 3, &same),
                       beta = random_mat(MX_F32, n_tok, nv, 1, 1, &same);
                mx_mat y = random_mat(MX_F32, n_tok, nv * dv, 2, 1, &same), all = grid_mat(d, &qkv);
                op[k].q = op[k].k = op[k].v = all; // three ranges of columns
                op[k].q.cols = op[k].k.cols = nk * dk, op[k].v.cols = nv * dv;
                op[k].k.p = (float *)all.p + nk * dk, op[k].v.p = (float *)all.p + 2 * nk * dk;
                op[k].a = grid_mat(d, &a), op[k].b = grid_mat(d, &beta), op[k].out = grid_mat(d, &y);
                CHECK_OK(mx_op_delta_rule(d, &op[k], &b, &err), &err);
                out[k] = grid_values(d, &op[k].out), left[k] = grid_get(d, op[k].state, n_state * 4);
                free(qkv.p), free(a.p), free(beta.p), free(y.p);
            }
            // f32 over some hundred steps of a recurrence that forgets
            grid_close("delta_rule", BOUND_SUM, out[0], out[1], (size_t)(n_tok * nv * dv),
                       "case %zu, step %zu", i, s);
            grid_close("delta_rule: state", BOUND_SUM, left[0], left[1], n_state, "case %zu, step %zu", i, s);
        }
        free(a_log.p), free(dt.p), free(first_state.p);
        grid_free();
    }
}
