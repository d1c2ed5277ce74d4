/* decoder.c - the forward pass: one function for each kind of block, in the order of the papers' equations. */
#include "backend/ops.h"
#include "model/model_impl.h"
#include <math.h>
#include <string.h>

mx_mat mx_mat_rows(const mx_mat *m, int n) {
    mx_mat r = *m;
    r.rows = n;
    return r;
}

mx_mat mx_mat_cols(const mx_mat *m, int col, int n) {
    mx_mat r = *m;
    r.p = (char *)m->p + (size_t)col * mx_dtype_size(m->type);
    r.cols = n;
    return r;
}

/* ---- scratch ------------------------------------------------------------------------------------------ */

typedef struct {
    char *base; // NULL: only measure
    size_t at;
} cutter;

static void *cut(cutter *c, size_t bytes) {
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (bytes + 255) & ~(size_t)255;
    return p;
}

static mx_mat cut_mat(cutter *c, mx_dtype type, int rows, int cols) {
    return (mx_mat){.type = type,
                    .rows = rows,
                    .cols = cols,
                    .ld = cols,
                    .p = cut(c, (size_t)rows * (size_t)cols * mx_dtype_size(type))};
}

/* Of a model that is only described, as the CPU would have it. */
static mx_dtype act_type(const mx_model *m) { return m->dev ? m->dev->act : MX_F32; }

static void cut_attention(mx_model *m, cutter *c) {
    const mx_arch *a = m->arch;
    mx_scratch *s = &m->s;
    mx_dtype act = act_type(m);
    int q_dim = a->n_head * a->hd, kv_dim = a->n_kv * a->hd;
    s->q = cut_mat(c, act, m->max_tok, a->gated_output ? 2 * q_dim : q_dim);
    s->gate_q = a->gated_output ? mx_mat_cols(&s->q, q_dim, q_dim) : (mx_mat){0};
    s->k = cut_mat(c, act, m->max_tok, kv_dim);
    s->v = cut_mat(c, act, m->max_tok, kv_dim);
    s->attn = cut_mat(c, act, m->max_tok, q_dim);
}

static void cut_delta(mx_model *m, cutter *c) {
    const mx_arch *a = m->arch;
    mx_scratch *s = &m->s;
    int k_dim = a->delta_k_heads * a->delta_dk, v_dim = a->delta_v_heads * a->delta_dv;
    if (!v_dim) return;
    s->qkv = cut_mat(c, MX_F32, m->max_tok, 2 * k_dim + v_dim);
    s->z = cut_mat(c, act_type(m), m->max_tok, v_dim);
    s->a = cut_mat(c, MX_F32, m->max_tok, a->delta_v_heads);
    s->b = cut_mat(c, MX_F32, m->max_tok, a->delta_v_heads);
    s->delta = cut_mat(c, act_type(m), m->max_tok, v_dim);
}

static void cut_mlp(mx_model *m, cutter *c) {
    const mx_arch *a = m->arch;
    mx_scratch *s = &m->s;
    size_t start = c->at;
    bool moe = false, dense = false;
    for (int i = 0; i < a->n_layer; i++) *(a->layer[i].mlp == MX_MLP_MOE ? &moe : &dense) = true;
    if (dense) {
        s->gate = cut_mat(c, act_type(m), m->max_tok, a->ff);
        s->up = cut_mat(c, act_type(m), m->max_tok, a->ff);
    }
    if (!moe) return;
    size_t end = c->at; // a layer is dense or not: both begin at the same place
    c->at = start;
    int rows = m->max_tok * a->n_expert_used;
    s->expert_gate = cut_mat(c, act_type(m), rows, a->expert_ff);
    s->expert_up = cut_mat(c, act_type(m), rows, a->expert_ff);
    s->each = cut_mat(c, MX_F32, rows, a->d);
    s->router = cut_mat(c, MX_F32, m->max_tok, a->n_expert);
    s->expert_ids = cut(c, (size_t)rows * sizeof *s->expert_ids);
    s->expert_weights = cut(c, (size_t)rows * sizeof *s->expert_weights);
    if (c->at < end) c->at = end;
}

static size_t cut_all(mx_model *m, char *base) {
    const mx_arch *a = m->arch;
    mx_scratch *s = &m->s;
    cutter c = {.base = base};
    s->x = cut_mat(&c, MX_F32, m->max_tok, a->d);
    s->h = cut_mat(&c, act_type(m), m->max_tok, a->d);
    s->o = cut_mat(&c, MX_F32, m->max_tok, a->d);
    for (int i = 0; i < MX_ROPES; i++)
        s->cos_sin[i] = cut(&c, (size_t)m->max_tok * (size_t)m->rope[i].n_rot * sizeof(float));
    s->rows = cut_mat(&c, MX_F32, m->max_rows, a->d);
    s->rows_h = cut_mat(&c, act_type(m), m->max_rows, a->d);
    s->row_ids = cut(&c, (size_t)m->max_rows * sizeof *s->row_ids);
    s->logits = cut_mat(&c, MX_F32, m->max_rows, a->n_vocab);
    size_t start = c.at, end;
    cut_attention(m, &c);
    end = c.at;
    c.at = start;
    cut_delta(m, &c);
    if (c.at > end) end = c.at;
    c.at = start;
    cut_mlp(m, &c);
    return c.at > end ? c.at : end;
}

size_t mx_model_scratch_bytes(const mx_model *m) {
    mx_model copy = *m; // measuring writes the matrices, which this keeps from the model
    return cut_all(&copy, NULL);
}

mx_status mx_scratch_new(mx_model *m, mx_err *err) {
    size_t bytes = cut_all(m, NULL);
    MX_TRY(mx_buf_new(&m->s.buf, m->dev, bytes, "the working memory of a step", err));
    cut_all(m, m->s.buf.p);
    return MX_OK;
}

/* ---- blocks: each reads s.h, the normed input, and leaves its output in s.o ----------------------------- */

typedef struct {
    mx_model *m;
    mx_cache *c;
    const mx_batch *b;
    int n; // tokens
    mx_err *err;
} pass;

static mx_matmul mm(mx_mat y, const mx_linear *l) { return (mx_matmul){.y = y, .w = &l->w, .bias = l->bias}; }

/* out = W_o (softmax(q k^T) v), with q and k normed by head and rotated; gated: the softmax's output times sigmoid(gate). */
static mx_status attention(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    const mx_scratch *s = &m->s;
    const mx_rope *rope = &m->rope[a->layer[i].rope];
    const mx_kv *kv = &p->c->layer[i].kv;
    int q_dim = a->n_head * a->hd;
    mx_mat h = mx_mat_rows(&s->h, p->n), q_all = mx_mat_rows(&s->q, p->n), k = mx_mat_rows(&s->k, p->n);
    mx_mat v = mx_mat_rows(&s->v, p->n), out = mx_mat_rows(&s->attn, p->n), o = mx_mat_rows(&s->o, p->n);
    mx_matmul in[3] = {mm(q_all, &w->q), mm(k, &w->k), mm(v, &w->v)};
    MX_TRY(mx_op_matmul(m->dev, in, 3, &h, p->err));
    mx_mat q = mx_mat_cols(&q_all, 0, q_dim);
    mx_rope_append ra = {.q = q,
                         .k = k,
                         .v = v,
                         .n_head = a->n_head,
                         .n_kv = a->n_kv,
                         .hd = a->hd,
                         .n_rot = rope->n_rot,
                         .cos_sin = s->cos_sin[a->layer[i].rope],
                         .q_norm = w->q_norm,
                         .k_norm = w->k_norm,
                         .eps = a->eps,
                         .kv = *kv};
    MX_TRY(mx_op_rope_append(m->dev, &ra, p->b, p->err));
    mx_attention at = {.q = q,
                       .out = out,
                       .n_head = a->n_head,
                       .n_kv = a->n_kv,
                       .hd = a->hd,
                       .scale = a->attn_scale,
                       .softcap = a->attn_softcap,
                       .window = a->layer[i].window,
                       .kv = *kv};
    MX_TRY(mx_op_attention(m->dev, &at, p->b, p->err));
    if (a->gated_output) {
        mx_mat gate = mx_mat_rows(&s->gate_q, p->n);
        MX_TRY(mx_op_sigmoid_gate(m->dev, &out, &gate, p->err));
    }
    mx_matmul last = mm(o, &w->o);
    return mx_op_matmul(m->dev, &last, 1, &out, p->err);
}

/* Gated delta net: a short convolution over q, k and v, the recurrence, a norm gated by z. */
static mx_status delta(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    const mx_scratch *s = &m->s;
    int k_dim = a->delta_k_heads * a->delta_dk, v_dim = a->delta_v_heads * a->delta_dv;
    mx_mat h = mx_mat_rows(&s->h, p->n), qkv = mx_mat_rows(&s->qkv, p->n), z = mx_mat_rows(&s->z, p->n);
    mx_mat ga = mx_mat_rows(&s->a, p->n), gb = mx_mat_rows(&s->b, p->n);
    mx_mat out = mx_mat_rows(&s->delta, p->n), o = mx_mat_rows(&s->o, p->n);
    mx_matmul in[4] = {mm(qkv, &w->qkv), mm(z, &w->z), mm(ga, &w->a), mm(gb, &w->b)};
    MX_TRY(mx_op_matmul(m->dev, in, 4, &h, p->err));
    mx_conv conv = {
        .x = qkv, .y = qkv, .w = w->conv_w, .k_width = a->conv_width, .state = p->c->layer[i].conv};
    MX_TRY(mx_op_conv(m->dev, &conv, p->b, p->err));
    mx_delta_rule r = {.q = mx_mat_cols(&qkv, 0, k_dim),
                       .k = mx_mat_cols(&qkv, k_dim, k_dim),
                       .v = mx_mat_cols(&qkv, 2 * k_dim, v_dim),
                       .a = ga,
                       .b = gb,
                       .a_log = w->a_log,
                       .dt_bias = w->dt_bias,
                       .n_k = a->delta_k_heads,
                       .n_v = a->delta_v_heads,
                       .dk = a->delta_dk,
                       .dv = a->delta_dv,
                       .out = out,
                       .state = p->c->layer[i].state};
    MX_TRY(mx_op_delta_rule(m->dev, &r, p->b, p->err));
    MX_TRY(mx_op_gated_norm(m->dev, &out, &out, &z, w->delta_norm, a->delta_dv, a->eps, p->err));
    mx_matmul last = mm(o, &w->out);
    return mx_op_matmul(m->dev, &last, 1, &out, p->err);
}

/* out = W_down (act(W_gate h) * W_up h) */
static mx_status gated_mlp(pass *p, int i) {
    mx_model *m = p->m;
    const mx_layer_weights *w = &m->w.layer[i];
    mx_mat h = mx_mat_rows(&m->s.h, p->n), gate = mx_mat_rows(&m->s.gate, p->n),
           up = mx_mat_rows(&m->s.up, p->n);
    mx_mat o = mx_mat_rows(&m->s.o, p->n);
    mx_matmul in[2] = {mm(gate, &w->gate), mm(up, &w->up)};
    MX_TRY(mx_op_matmul(m->dev, in, 2, &h, p->err));
    MX_TRY(mx_op_glu(m->dev, &gate, &gate, &up, m->arch->act, p->err));
    mx_matmul last = mm(o, &w->down);
    return mx_op_matmul(m->dev, &last, 1, &gate, p->err);
}

/* The same for each of the k experts that the router picks, summed by their weights. */
static mx_status moe(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    const mx_scratch *s = &m->s;
    int k = a->n_expert_used, rows = p->n * k;
    mx_mat h = mx_mat_rows(&s->h, p->n), logits = mx_mat_rows(&s->router, p->n), o = mx_mat_rows(&s->o, p->n);
    mx_mat gate = mx_mat_rows(&s->expert_gate, rows), up = mx_mat_rows(&s->expert_up, rows),
           each = mx_mat_rows(&s->each, rows);
    mx_matmul router = mm(logits, &w->router);
    MX_TRY(mx_op_matmul(m->dev, &router, 1, &h, p->err));
    mx_route r = {.kind = a->route,
                  .normalize = a->route_normalize,
                  .scale = 1,
                  .n_expert = a->n_expert,
                  .k = k,
                  .logits = logits,
                  .ids = s->expert_ids,
                  .weights = s->expert_weights};
    MX_TRY(mx_op_route(m->dev, &r, p->err));
    mx_expert_matmul in[2] = {{.y = gate, .w = &w->gate.w}, {.y = up, .w = &w->up.w}};
    MX_TRY(mx_op_expert_matmul(m->dev, in, 2, &h, s->expert_ids, rows, k, p->err));
    MX_TRY(mx_op_glu(m->dev, &gate, &gate, &up, a->act, p->err));
    mx_expert_matmul last = {.y = each, .w = &w->down.w};
    MX_TRY(mx_op_expert_matmul(m->dev, &last, 1, &gate, s->expert_ids, rows, 1, p->err));
    return mx_op_expert_sum(m->dev, &o, &each, s->expert_weights, k, p->err);
}

/* ---- the pass ----------------------------------------------------------------------------------------- */

/* s.h = norm(x), where the output of the block before, if there is one, joins x first. */
static mx_status enter_block(pass *p, const float *norm, const mx_mat *pending) {
    mx_model *m = p->m;
    mx_mat x = mx_mat_rows(&m->s.x, p->n), h = mx_mat_rows(&m->s.h, p->n);
    return mx_op_rms_norm(m->dev, &h, &x, pending, norm, m->arch->eps, p->err);
}

static mx_status leave_block(pass *p, const float *norm) {
    mx_model *m = p->m;
    mx_mat o = mx_mat_rows(&m->s.o, p->n);
    return norm ? mx_op_rms_norm(m->dev, &o, &o, NULL, norm, m->arch->eps, p->err) : MX_OK;
}

static mx_status queue_layers(void *arg, mx_err *err) {
    pass *p = arg;
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    p->err = err;
    mx_mat x = mx_mat_rows(&m->s.x, p->n), o = mx_mat_rows(&m->s.o, p->n);
    MX_TRY(mx_op_embed(m->dev, &x, &m->w.embed.w, p->b->ids, a->embed_scale, err));
    for (int i = 0; i < MX_ROPES; i++) {
        const mx_rope *r = &m->rope[i];
        if (r->n_rot)
            MX_TRY(mx_op_rope_table(m->dev, m->s.cos_sin[i], r->inv_freq, r->n_rot, r->scale, p->b, err));
    }
    for (int i = 0; i < a->n_layer; i++) {
        const mx_layer_weights *w = &m->w.layer[i];
        MX_TRY(enter_block(p, w->pre_attn_norm, i ? &o : NULL));
        MX_TRY(a->layer[i].mixer == MX_MIX_DELTA ? delta(p, i) : attention(p, i));
        MX_TRY(leave_block(p, w->post_attn_norm));
        MX_TRY(enter_block(p, w->pre_mlp_norm, &o));
        MX_TRY(a->layer[i].mlp == MX_MLP_MOE ? moe(p, i) : gated_mlp(p, i));
        MX_TRY(leave_block(p, w->post_mlp_norm));
    }
    return mx_op_add(m->dev, &x, &o, 1, err);
}

/* Names a list of launches: what they are made from, the addresses of the batch and the cache among it. */
static uint64_t step_key(const pass *p) {
    const uint64_t parts[] = {(uintptr_t)p->b->ids,
                              (uintptr_t)p->c,
                              (uintptr_t)p->m,
                              (uint64_t)p->n,
                              (uint64_t)p->b->n_seq,
                              (uint64_t)p->b->max_kv_len,
                              (uint64_t)p->b->block_stride};
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < countof(parts); i++) h = (h ^ parts[i]) * 0x100000001B3u, h ^= h >> 29;
    return h;
}

mx_status mx_model_forward(mx_model *m, mx_cache *c, const mx_batch *b, mx_err *err) {
    if (b->n_tok < 1 || b->n_tok > m->max_tok) {
        return mx_fail(err, MX_EINVAL, "a step of %d tokens; this model was opened for 1 to %d", b->n_tok,
                       m->max_tok);
    }
    pass p = {.m = m, .c = c, .b = b, .n = b->n_tok, .err = err};
    if (!m->dev->be->replay || b->max_q_len > 1) return queue_layers(&p, err);
    enum { BUCKET = 256 }; // lengths that share a recording: launch shapes follow the longest
    mx_batch up = *b;
    int most = b->block_stride * b->block;
    up.max_kv_len = (b->max_kv_len + BUCKET - 1) / BUCKET * BUCKET;
    if (up.max_kv_len > most) up.max_kv_len = most;
    p.b = &up;
    return m->dev->be->replay(m->dev, step_key(&p), queue_layers, &p, err);
}

static bool all_finite(const float *p, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) { // an exponent of all ones: infinity or NaN
        uint32_t u;
        memcpy(&u, p + i, 4);
        bad |= (u & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
}

mx_status mx_model_logits(mx_model *m, const int *rows, int n, float *out, mx_err *err) {
    const mx_arch *a = m->arch;
    const mx_scratch *s = &m->s;
    if (n < 1 || n > m->max_rows) {
        return mx_fail(err, MX_EINVAL, "%d rows of logits; this model was opened for 1 to %d", n,
                       m->max_rows);
    }
    mx_mat picked = mx_mat_rows(&s->rows, n), h = mx_mat_rows(&s->rows_h, n),
           logits = mx_mat_rows(&s->logits, n);
    MX_TRY(mx_op_upload(m->dev, s->row_ids, rows, (size_t)n * sizeof *rows, err));
    MX_TRY(mx_op_gather(m->dev, &picked, &s->x, s->row_ids, err));
    MX_TRY(mx_op_rms_norm(m->dev, &h, &picked, NULL, m->w.norm, a->eps, err));
    mx_matmul head = mm(logits, &m->w.head);
    MX_TRY(mx_op_matmul(m->dev, &head, 1, &h, err));
    if (a->final_softcap > 0) MX_TRY(mx_op_softcap(m->dev, &logits, a->final_softcap, err));
    MX_TRY(mx_op_download(m->dev, out, logits.p, (size_t)n * (size_t)a->n_vocab * sizeof *out, err));
    if (!all_finite(out, (size_t)n * (size_t)a->n_vocab)) {
        return mx_fail(
            err, MX_EINTERNAL,
            "the model's logits are not finite: its weights hold NaN or infinity, or a layer overflows");
    }
    return MX_OK;
}
