/* decoder.c - the forward pass: one function for each kind of block, in the order of the papers' equations. */
#include "backend/ops.h"
#include "backend/ops_fused.h"
#include "model/model_impl.h"
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

static size_t top_bytes(const mx_model *m) {
    return (size_t)m->max_rows * (2 * MX_MAX_TOP + 1) * sizeof(float);
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
    s->top = cut(&c, top_bytes(m));
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
    m->s.top_host = mx_arena_alloc(&m->a, top_bytes(m));
    if (!m->s.top_host) return mx_fail(err, MX_ENOMEM, "no memory for the likeliest tokens of a step");
    cut_all(m, m->s.buf.p);
    return MX_OK;
}

/* ---- what stands around a block -------------------------------------------------------------------------------------- */

typedef struct {
    mx_model *m;
    mx_cache *c;
    const mx_batch *b;
    int n;             // tokens
    const float *norm; // of the block's input
    bool normed;       // s.h holds the normed input
    bool pending;      // s.o has still to join s.x
    mx_err *err;
} pass;

static mx_matmul mm(mx_mat y, const mx_linear *l) { return (mx_matmul){.y = y, .w = &l->w, .bias = l->bias}; }

/* s.h = norm(x), once a block, where the output of the block before joins x first if it has not. */
static mx_status norm_input(pass *p) {
    mx_model *m = p->m;
    mx_mat x = mx_mat_rows(&m->s.x, p->n), h = mx_mat_rows(&m->s.h, p->n), o = mx_mat_rows(&m->s.o, p->n);
    if (p->normed) return MX_OK;
    MX_TRY(mx_op_rms_norm(m->dev, &h, &x, p->pending ? &o : NULL, p->norm, m->arch->eps, p->err));
    p->normed = true;
    p->pending = false;
    return MX_OK;
}

/* A block begins: what it reads is norm(x). */
static mx_status enter_block(pass *p, const float *norm) {
    p->norm = norm;
    p->normed = false;
    return p->pending || !norm ? norm_input(p) : MX_OK;
}

/* Fill in the block's input, to be normed on the way if that has not been done. */
static void take_input(const pass *p, mx_product *q) {
    q->x = mx_mat_rows(p->normed ? &p->m->s.h : &p->m->s.x, p->n);
    q->norm = p->normed ? NULL : p->norm;
    q->eps = p->m->arch->eps;
}

/* Products of the block's input. */
static mx_status in_products(pass *p, const mx_matmul *in, int n) {
    mx_dev *dev = p->m->dev;
    mx_product q = {.mm = in, .n_mm = n};
    if (!p->normed) {
        take_input(p, &q);
        mx_status st = mx_op_product(dev, &q, p->err);
        if (st != MX_UNSUPPORTED) return st;
        MX_TRY(norm_input(p));
    }
    mx_mat h = mx_mat_rows(&p->m->s.h, p->n);
    return mx_op_matmul(dev, in, n, &h, p->err);
}

/* The block's last product, which joins x; post: the norm in between, or NULL. */
static mx_status out_product(pass *p, const mx_linear *l, const mx_mat *in, const float *post) {
    mx_model *m = p->m;
    mx_mat o = mx_mat_rows(&m->s.o, p->n);
    mx_matmul last = mm(mx_mat_rows(&m->s.x, p->n), l);
    if (!post) {
        mx_product q = {.mm = &last, .n_mm = 1, .x = *in, .add = true};
        mx_status st = mx_op_product(m->dev, &q, p->err);
        if (st != MX_UNSUPPORTED) return st;
    }
    last.y = o;
    p->pending = true;
    MX_TRY(mx_op_matmul(m->dev, &last, 1, in, p->err));
    return post ? mx_op_rms_norm(m->dev, &o, &o, NULL, post, m->arch->eps, p->err) : MX_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------- */

/* out = W_o (softmax(q k^T) v), with q and k normed by head and rotated; gated: the softmax's output times sigmoid(gate). */
static mx_status attention(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    const mx_scratch *s = &m->s;
    const mx_rope *rope = &m->rope[a->layer[i].rope];
    const mx_kv *kv = &p->c->layer[i].kv;
    int q_dim = a->n_head * a->hd;
    mx_mat q_all = mx_mat_rows(&s->q, p->n), k = mx_mat_rows(&s->k, p->n), v = mx_mat_rows(&s->v, p->n);
    mx_mat out = mx_mat_rows(&s->attn, p->n);
    mx_matmul in[3] = {mm(q_all, &w->q), mm(k, &w->k), mm(v, &w->v)};
    MX_TRY(in_products(p, in, 3));
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
    mx_attention at = {.q = q,
                       .out = out,
                       .n_head = a->n_head,
                       .n_kv = a->n_kv,
                       .hd = a->hd,
                       .scale = a->attn_scale,
                       .softcap = a->attn_softcap,
                       .window = a->layer[i].window,
                       .kv = *kv};
    mx_decode_attention both = {.rope = ra, .attention = at, .b = p->b};
    mx_status st = mx_op_decode_attention(m->dev, &both, p->err);
    if (st == MX_UNSUPPORTED) {
        MX_TRY(mx_op_rope_append(m->dev, &ra, p->b, p->err));
        st = mx_op_attention(m->dev, &at, p->b, p->err);
    }
    MX_TRY(st);
    if (a->gated_output) {
        mx_mat gate = mx_mat_rows(&s->gate_q, p->n);
        MX_TRY(mx_op_sigmoid_gate(m->dev, &out, &gate, p->err));
    }
    return out_product(p, &w->o, &out, w->post_attn_norm);
}

/* Gated delta net: a short convolution over q, k and v, the recurrence, a norm gated by z. */
static mx_status delta(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    const mx_scratch *s = &m->s;
    int k_dim = a->delta_k_heads * a->delta_dk, v_dim = a->delta_v_heads * a->delta_dv;
    mx_mat qkv = mx_mat_rows(&s->qkv, p->n), z = mx_mat_rows(&s->z, p->n);
    mx_mat ga = mx_mat_rows(&s->a, p->n), gb = mx_mat_rows(&s->b, p->n);
    mx_mat out = mx_mat_rows(&s->delta, p->n);
    mx_matmul in[4] = {mm(qkv, &w->qkv), mm(z, &w->z), mm(ga, &w->a), mm(gb, &w->b)};
    MX_TRY(in_products(p, in, 4));
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
    return out_product(p, &w->out, &out, w->post_attn_norm);
}

/* out = W_down (act(W_gate h) * W_up h) */
static mx_status gated_mlp(pass *p, int i) {
    mx_model *m = p->m;
    const mx_layer_weights *w = &m->w.layer[i];
    mx_mat gate = mx_mat_rows(&m->s.gate, p->n), up = mx_mat_rows(&m->s.up, p->n);
    mx_matmul in[2] = {mm(gate, &w->gate), mm(up, &w->up)};
    mx_product both = {.mm = in, .n_mm = 2, .glu = true, .act = m->arch->act};
    take_input(p, &both);
    mx_status st = mx_op_product(m->dev, &both, p->err);
    if (st == MX_UNSUPPORTED) {
        MX_TRY(in_products(p, in, 2));
        st = mx_op_glu(m->dev, &gate, &gate, &up, m->arch->act, p->err);
    }
    MX_TRY(st);
    return out_product(p, &w->down, &gate, w->post_mlp_norm);
}

/* The k experts of each token: their gated units into s.expert_gate. */
static mx_status experts_in(pass *p, const mx_layer_weights *w) {
    mx_model *m = p->m;
    const mx_scratch *s = &m->s;
    int k = m->arch->n_expert_used, rows = p->n * k;
    mx_mat h = mx_mat_rows(&s->h, p->n), gate = mx_mat_rows(&s->expert_gate, rows),
           up = mx_mat_rows(&s->expert_up, rows);
    mx_matmul in[2] = {{.y = gate, .w = &w->gate.w}, {.y = up, .w = &w->up.w}};
    mx_product both = {.mm = in, .n_mm = 2, .glu = true, .act = m->arch->act, .ids = s->expert_ids, .k = k};
    take_input(p, &both);
    mx_status st = mx_op_product(m->dev, &both, p->err);
    if (st != MX_UNSUPPORTED) return st;
    mx_expert_matmul each[2] = {{.y = gate, .w = in[0].w}, {.y = up, .w = in[1].w}};
    MX_TRY(norm_input(p));
    MX_TRY(mx_op_expert_matmul(m->dev, each, 2, &h, s->expert_ids, rows, k, p->err));
    return mx_op_glu(m->dev, &gate, &gate, &up, m->arch->act, p->err);
}

/* Their outputs, summed by their weights, which join x; post: the norm in between, or NULL. */
static mx_status experts_out(pass *p, const mx_layer_weights *w, const float *post) {
    mx_model *m = p->m;
    const mx_scratch *s = &m->s;
    int k = m->arch->n_expert_used, rows = p->n * k;
    mx_mat gate = mx_mat_rows(&s->expert_gate, rows), each = mx_mat_rows(&s->each, rows),
           o = mx_mat_rows(&s->o, p->n);
    mx_matmul down = {.y = mx_mat_rows(&s->x, p->n), .w = &w->down.w};
    mx_product q = {.mm = &down,
                    .n_mm = 1,
                    .x = gate,
                    .add = true,
                    .ids = s->expert_ids,
                    .k = k,
                    .weights = s->expert_weights};
    mx_status st = post ? MX_UNSUPPORTED : mx_op_product(m->dev, &q, p->err);
    if (st != MX_UNSUPPORTED) return st;
    mx_expert_matmul last = {.y = each, .w = down.w};
    MX_TRY(mx_op_expert_matmul(m->dev, &last, 1, &gate, s->expert_ids, rows, 1, p->err));
    MX_TRY(mx_op_expert_sum(m->dev, &o, &each, s->expert_weights, k, p->err));
    p->pending = true;
    return post ? mx_op_rms_norm(m->dev, &o, &o, NULL, post, m->arch->eps, p->err) : MX_OK;
}

/* The same as gated_mlp for each of the k experts that the router picks, summed by their weights. */
static mx_status moe(pass *p, int i) {
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    const mx_layer_weights *w = &m->w.layer[i];
    mx_mat logits = mx_mat_rows(&m->s.router, p->n);
    mx_matmul router = mm(logits, &w->router);
    MX_TRY(in_products(p, &router, 1));
    mx_route r = {.kind = a->route,
                  .normalize = a->route_normalize,
                  .scale = 1,
                  .n_expert = a->n_expert,
                  .k = a->n_expert_used,
                  .logits = logits,
                  .ids = m->s.expert_ids,
                  .weights = m->s.expert_weights};
    MX_TRY(mx_op_route(m->dev, &r, p->err));
    MX_TRY(experts_in(p, w));
    return experts_out(p, w, w->post_mlp_norm);
}

/* ---- the pass ----------------------------------------------------------------------------------------- */

static mx_status queue_layers(void *arg, mx_err *err) {
    pass *p = arg;
    mx_model *m = p->m;
    const mx_arch *a = m->arch;
    p->err = err;
    p->pending = false;
    mx_mat x = mx_mat_rows(&m->s.x, p->n), o = mx_mat_rows(&m->s.o, p->n);
    MX_TRY(mx_op_embed(m->dev, &x, &m->w.embed.w, p->b->ids, a->embed_scale, err));
    for (int i = 0; i < MX_ROPES; i++) {
        const mx_rope *r = &m->rope[i];
        if (r->n_rot)
            MX_TRY(mx_op_rope_table(m->dev, m->s.cos_sin[i], r->inv_freq, r->n_rot, r->scale, p->b, err));
    }
    for (int i = 0; i < a->n_layer; i++) {
        const mx_layer_weights *w = &m->w.layer[i];
        MX_TRY(enter_block(p, w->pre_attn_norm));
        MX_TRY(a->layer[i].mixer == MX_MIX_DELTA ? delta(p, i) : attention(p, i));
        MX_TRY(enter_block(p, w->pre_mlp_norm));
        MX_TRY(a->layer[i].mlp == MX_MLP_MOE ? moe(p, i) : gated_mlp(p, i));
    }
    return p->pending ? mx_op_add(m->dev, &x, &o, 1, err) : MX_OK;
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
