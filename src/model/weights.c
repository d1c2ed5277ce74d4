#include "model/weights.h"
#include "backend/ops.h"
#include "base/log.h"
#include "quant/quant.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_NAME = 256 };

typedef struct { // what all steps of loading share
    mx_weights *w;
    const mx_arch *arch;
    mx_config *c;
    mx_st *st;
    mx_dev *dev;
    mx_arena *a;
    void (*progress)(void *, uint64_t, uint64_t);
    void *arg;
    int cap_buf, cap_module;
    bool plus_one; // norms of this file need 1 added
    mx_err *err;
} loader;

/* ---- finding ------------------------------------------------------------------------------------------ */

static mx_st_tensor *find(loader *l, const char *name) {
    static const char *const with[] = {"", "model.language_model.", "language_model.model.",
                                       "language_model."};
    const char *rest = strncmp(name, "model.", 6) ? NULL : name + 6;
    for (size_t i = 0; i < countof(with); i++) {
        char full[MAX_NAME];
        // "model.X" becomes "model.language_model.X", ...; "lm_head.X" keeps its name behind the prefix
        snprintf(full, sizeof full, "%s%s", with[i], i == 0 || !rest ? name : rest);
        mx_st_tensor *t = mx_st_find(l->st, full);
        if (t) return t;
    }
    return NULL;
}

static mx_st_tensor *findf(loader *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static mx_st_tensor *findf(loader *l, const char *fmt, ...) {
    char name[MAX_NAME];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return find(l, name);
}

static bool has_shape(const mx_st_tensor *t, int n_dim, const int64_t *want) {
    if (t->n_dim != n_dim) return false;
    for (int i = 0; i < n_dim; i++) {
        if (t->shape[i] != want[i]) return false;
    }
    return true;
}

static mx_status wrong_shape(loader *l, const mx_st_tensor *t, int n_dim, const int64_t *want) {
    char buf[128], shape[128];
    int n = 0;
    for (int i = 0; i < n_dim; i++) {
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? ", " : "", (long long)want[i]);
    }
    return mx_fail(l->err, MX_EINVAL, "%s: %s is %s, but config.json makes it [%s]", t->file, t->name,
                   mx_st_describe(t, buf, sizeof buf), shape);
}

static bool float_type(mx_st_dtype t, mx_dtype *out) {
    *out = t == MX_ST_BF16 ? MX_BF16 : t == MX_ST_F16 ? MX_F16 : MX_F32;
    return t == MX_ST_BF16 || t == MX_ST_F16 || t == MX_ST_F32;
}

static mx_status need_float(loader *l, const mx_st_tensor *t, mx_dtype *type) {
    if (float_type(t->dtype, type)) return MX_OK;
    return mx_fail(
        l->err, MX_UNSUPPORTED,
        "%s: %s holds %s numbers, which cannot be run; BF16, F16, F32 and MLX's quantized formats can (mlxcel "
        "convert makes them from the original checkpoint)",
        t->file, t->name, mx_st_dtype_name(t->dtype));
}

/* ---- moving ------------------------------------------------------------------------------------------- */

/* Pages of the file that were copied need not stay in our memory. */
static void drop_pages(const void *p, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) & ~(page - 1), to = ((uintptr_t)p + n) & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static mx_status new_buf(loader *l, void **p, size_t bytes, const char *what) {
    mx_weights *w = l->w;
    if (w->n_buf == l->cap_buf) {
        int cap = l->cap_buf ? l->cap_buf * 2 : 256;
        mx_buf *bufs = realloc(w->bufs, (size_t)cap * sizeof *bufs);
        if (!bufs) return mx_fail(l->err, MX_ENOMEM, "no memory for the list of weights");
        w->bufs = bufs;
        l->cap_buf = cap;
    }
    MX_TRY(mx_buf_new(&w->bufs[w->n_buf], l->dev, bytes, what, l->err));
    *p = w->bufs[w->n_buf++].p;
    return MX_OK;
}

static void count_bytes(loader *l, uint64_t n) {
    l->w->bytes += n;
    if (l->progress && l->dev) l->progress(l->arg, l->w->bytes, mx_st_total_bytes(l->st));
}

/* The tensor's bytes where the device reads them: in place, or a copy. */
static mx_status import(loader *l, const void **p, const mx_st_tensor *t) {
    *p = t->data;
    count_bytes(l, t->n_bytes);
    if (!l->dev || l->dev->be->host_memory) return MX_OK;
    void *copy;
    MX_TRY(new_buf(l, &copy, t->n_bytes, t->name));
    MX_TRY(mx_op_upload(l->dev, copy, t->data, t->n_bytes, l->err));
    if (!l->dev->planning) drop_pages(t->data, t->n_bytes);
    *p = copy;
    return MX_OK;
}

/* n numbers of any shape as f32 on the device, plus `plus` each. A missing tensor is an error. */
static mx_status load_vector(loader *l, float **out, const char *name, int64_t n, float plus) {
    mx_st_tensor *t = find(l, name);
    mx_dtype type;
    if (!t) return mx_fail(l->err, MX_EINVAL, "the weights lack the tensor %s", name);
    MX_TRY(need_float(l, t, &type));
    int64_t count = 1;
    for (int i = 0; i < t->n_dim; i++) count *= t->shape[i];
    if (count != n) return wrong_shape(l, t, 1, &n);
    t->used = true;
    l->w->n_param += (uint64_t)n;
    count_bytes(l, t->n_bytes);
    if (!l->dev) return MX_OK;
    float *host = malloc((size_t)n * sizeof *host);
    void *p = NULL;
    mx_status st = host ? new_buf(l, &p, (size_t)n * sizeof *host, name)
                        : mx_fail(l->err, MX_ENOMEM, "no memory for %s", name);
    if (st == MX_OK) {
        mx_to_f32(host, t->data, type, (size_t)n);
        for (int64_t i = 0; i < n; i++) host[i] += plus;
        st = mx_op_upload(l->dev, p, host, (size_t)n * sizeof *host, l->err);
    }
    free(host);
    *out = p;
    return st;
}

/* ---- matrices ----------------------------------------------------------------------------------------- */

static mx_status record_module(loader *l, const char *module, const mx_qmat *m) {
    mx_weights *w = l->w;
    if (w->n_module == l->cap_module) {
        int cap = l->cap_module ? l->cap_module * 2 : 256;
        mx_module *list = realloc(w->modules, (size_t)cap * sizeof *list);
        if (!list) return mx_fail(l->err, MX_ENOMEM, "no memory for the list of modules");
        w->modules = list;
        l->cap_module = cap;
    }
    const char *name = mx_arena_strdup(l->a, module);
    if (!name) return mx_fail(l->err, MX_ENOMEM, "no memory for the list of modules");
    w->modules[w->n_module++] = (mx_module){.module = name, .w = *m};
    uint64_t n = (uint64_t)m->n_stack * (uint64_t)m->n_out * (uint64_t)m->n_in;
    w->n_param += n;
    if (m->n_stack > 1) w->n_expert_param += n;
    return MX_OK;
}

/* [n_out, n_in], or [n_stack, n_out, n_in] when `stacked`. */
static int shape_of(int64_t *shape, bool stacked, int64_t n_stack, int64_t n_out, int64_t n_in) {
    int n = 0;
    if (stacked) shape[n++] = n_stack;
    shape[n++] = n_out;
    shape[n++] = n_in;
    return n;
}

static mx_status quant_kind(loader *l, const char *module, const char *mode, mx_quant *kind) {
    for (mx_quant k = MX_QUANT_AFFINE; k <= MX_QUANT_NVFP4; k++) {
        if (!strcmp(mode, mx_quant_name(k))) {
            *kind = k;
            return MX_OK;
        }
    }
    return mx_fail(
        l->err, MX_UNSUPPORTED,
        "config.json: quantization mode \"%s\" of %s is not supported (affine, mxfp4, mxfp8 and nvfp4 are)",
        mode, module);
}

/* Fill in what the file says of a quantized module: kind, types, tensors; shapes are checked. */
static mx_status read_quantized(loader *l, mx_qmat *m, const char *module, bool stacked, mx_st_tensor *t[3]) {
    if (!mx_config_has_quantization(l->c)) {
        return mx_fail(l->err, MX_EINVAL, "%s: %s.scales is there, but config.json has no quantization entry",
                       t[1]->file, module);
    }
    mx_module_quant q = mx_config_quant(l->c, module);
    if (!q.quantized) {
        return mx_fail(l->err, MX_EINVAL, "%s: %s is quantized, but config.json says it is not", t[0]->file,
                       module);
    }
    MX_TRY(quant_kind(l, module, q.mode, &m->kind));
    m->bits = q.bits;
    m->group = q.group;
    mx_status st = mx_quant_check(m->kind, m->bits, m->group, m->n_in, l->err);
    if (st != MX_OK) return mx_err_prefix(l->err, st, "%s", module);
    bool affine = m->kind == MX_QUANT_AFFINE;
    if (affine != (t[2] != NULL)) {
        return mx_fail(l->err, MX_EINVAL, "%s: %s.biases is %s, which does not go with mode %s", t[0]->file,
                       module, t[2] ? "there" : "missing", q.mode);
    }
    int64_t shape[3];
    int n = shape_of(shape, stacked, m->n_stack, m->n_out, (int64_t)m->n_in * m->bits / 32);
    if (t[0]->dtype != MX_ST_U32 || !has_shape(t[0], n, shape)) return wrong_shape(l, t[0], n, shape);
    shape_of(shape, stacked, m->n_stack, m->n_out, m->n_in / m->group);
    for (int i = 1; i < 3 && t[i]; i++) {
        if (!has_shape(t[i], n, shape)) return wrong_shape(l, t[i], n, shape);
    }
    if (affine) {
        MX_TRY(need_float(l, t[1], &m->type));
        if (t[1]->dtype != t[2]->dtype) {
            return mx_fail(l->err, MX_EINVAL, "%s: scales and biases of %s differ in type", t[1]->file,
                           module);
        }
    } else if (t[1]->dtype != MX_ST_U8 && t[1]->dtype != MX_ST_F8_E8M0 && t[1]->dtype != MX_ST_F8_E4M3) {
        return mx_fail(l->err, MX_EINVAL, "%s: %s.scales must be bytes, they are %s", t[1]->file, module,
                       mx_st_dtype_name(t[1]->dtype));
    }
    return MX_OK;
}

/* GPU kernels take E4M3 apart by bits, which makes 480 of the two codes that are NaN: such weights are refused while they are
 * read for the copy anyway. On the CPU they stay NaN, and the check of the logits reports it. */
static mx_status refuse_nan(loader *l, const mx_qmat *m, const mx_st_tensor *t) {
    size_t at;
    if (m->kind != MX_QUANT_MXFP8 || !l->dev || l->dev->be->host_memory || l->dev->planning ||
        !mx_e4m3_has_nan(t->data, t->n_bytes, &at))
        return MX_OK;
    return mx_fail(
        l->err, MX_UNSUPPORTED,
        "%s: %s holds NaN (code 0x%02X at byte %zu), which no quantizer writes; the file is damaged, get it again",
        t->file, t->name, ((const uint8_t *)t->data)[at], at);
}

/* A quantized or dense matrix without its bias; `stacked` says that the file holds n_stack of them in one tensor. */
static mx_status load_matrix(loader *l, mx_qmat *m, const char *module, bool stacked, int n_stack, int n_out,
                             int n_in) {
    mx_st_tensor *t[3] = {findf(l, "%s.weight", module), findf(l, "%s.scales", module),
                          findf(l, "%s.biases", module)};
    if (!t[0]) return mx_fail(l->err, MX_EINVAL, "the weights lack the tensor %s.weight", module);
    *m = (mx_qmat){.n_stack = n_stack, .n_out = n_out, .n_in = n_in};
    if (t[1]) {
        MX_TRY(read_quantized(l, m, module, stacked, t));
    } else {
        int64_t shape[3];
        int n = shape_of(shape, stacked, n_stack, n_out, n_in);
        MX_TRY(need_float(l, t[0], &m->type));
        if (!has_shape(t[0], n, shape)) return wrong_shape(l, t[0], n, shape);
        t[2] = NULL;
        mx_config_quant(l->c, module); // an override "false" has found its module
    }
    const void **to[3] = {&m->codes, &m->scales, &m->biases};
    for (int i = 0; i < 3; i++) {
        if (!t[i]) continue;
        t[i]->used = true;
        if (i == 0) MX_TRY(refuse_nan(l, m, t[0]));
        MX_TRY(import(l, to[i], t[i]));
    }
    return record_module(l, module, m);
}

static mx_status load_linear(loader *l, mx_linear *x, const char *module, int n_out, int n_in, bool bias) {
    MX_TRY(load_matrix(l, &x->w, module, false, 1, n_out, n_in));
    if (!bias) return MX_OK;
    char name[MAX_NAME + 8];
    snprintf(name, sizeof name, "%.*s.bias", MAX_NAME - 1, module);
    return load_vector(l, &x->bias, name, n_out, 0);
}

/* Row r of the result is row order(r) of the source. The three parts of a quantized row move alike. */
static mx_status reorder_rows(loader *l, mx_qmat *m, int (*order)(int r, const mx_arch *a),
                              const char *what) {
    if (!l->dev) return MX_OK;
    const void **parts[3] = {&m->codes, &m->scales, &m->biases};
    size_t scale_row = m->kind == MX_QUANT_NONE ? 0 : mx_qmat_scale_size(m) * (size_t)(m->n_in / m->group);
    size_t row[3] = {mx_qmat_row_bytes(m), scale_row, m->biases ? scale_row : 0};
    for (int k = 0; k < 3; k++) {
        if (!row[k]) continue;
        size_t bytes = row[k] * (size_t)m->n_out;
        char *host = malloc(bytes);
        if (!host) return mx_fail(l->err, MX_ENOMEM, "no memory to reorder %s", what);
        void *p = NULL;
        mx_status st = mx_op_download(l->dev, host, *parts[k], bytes, l->err);
        if (st == MX_OK) st = new_buf(l, &p, bytes, what);
        for (int r = 0; st == MX_OK && r < m->n_out; r++) {
            st = mx_op_upload(l->dev, (char *)p + (size_t)r * row[k],
                              host + (size_t)order(r, l->arch) * row[k], row[k], l->err);
        }
        free(host);
        if (st != MX_OK) return st;
        drop_pages(*parts[k], l->dev->be->host_memory ? bytes : 0);
        *parts[k] = p;
    }
    return MX_OK;
}

/* Source row of row r, where the file has each head's q and gate together and we want all q first. */
static int split_gate(int r, const mx_arch *a) {
    int half = a->n_head * a->hd, head = r % half / a->hd, i = r % a->hd;
    return head * 2 * a->hd + (r < half ? 0 : a->hd) + i;
}

/* Hugging Face's layout: one matrix an expert, gathered here into a stack. */
static mx_status load_expert_list(loader *l, mx_qmat *m, const char *module, const char *name, int n_out,
                                  int n_in) {
    *m = (mx_qmat){.n_stack = l->arch->n_expert, .n_out = n_out, .n_in = n_in};
    size_t bytes = 0;
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s.experts.*.%s", module, name);
    for (int e = 0; e < m->n_stack; e++) {
        mx_st_tensor *t = findf(l, "%s.experts.%d.%s.weight", module, e, name);
        mx_dtype type;
        if (!t)
            return mx_fail(l->err, MX_EINVAL, "the weights lack the tensor %s.experts.%d.%s.weight", module,
                           e, name);
        MX_TRY(need_float(l, t, &type));
        if (findf(l, "%s.experts.%d.%s.scales", module, e, name)) {
            return mx_fail(l->err, MX_UNSUPPORTED,
                           "%s: %s is quantized expert by expert; mlxcel runs MLX's stacked switch_mlp",
                           t->file, t->name);
        }
        int64_t shape[2] = {n_out, n_in};
        if (!has_shape(t, 2, shape)) return wrong_shape(l, t, 2, shape);
        if (e == 0) {
            m->type = type;
            bytes = mx_qmat_row_bytes(m) * (size_t)n_out;
            void *p = NULL;
            if (l->dev) MX_TRY(new_buf(l, &p, bytes * (size_t)m->n_stack, full));
            m->codes = p;
        } else if (type != m->type) {
            return mx_fail(l->err, MX_EINVAL, "%s: %s has another type than the experts before it", t->file,
                           t->name);
        }
        t->used = true;
        count_bytes(l, t->n_bytes);
        if (!l->dev) continue;
        MX_TRY(mx_op_upload(l->dev, (char *)m->codes + bytes * (size_t)e, t->data, bytes, l->err));
        drop_pages(t->data, t->n_bytes);
    }
    return record_module(l, full, m);
}

/* ---- layers ------------------------------------------------------------------------------------------- */

static mx_status load_norm(loader *l, float **out, const char *base, const char *name, int n) {
    if (!name) return MX_OK;
    char full[MAX_NAME];
    snprintf(full, sizeof full, "%s.%s.weight", base, name);
    return load_vector(l, out, full, n, l->plus_one ? 1 : 0);
}

static mx_status load_attention(loader *l, mx_layer_weights *x, const char *base) {
    const mx_arch *a = l->arch;
    char p[4][MAX_NAME];
    for (int i = 0; i < 4; i++) snprintf(p[i], sizeof p[i], "%s.self_attn.%c_proj", base, "qkvo"[i]);
    int q_dim = a->n_head * a->hd, kv_dim = a->n_kv * a->hd, q_rows = a->gated_output ? 2 * q_dim : q_dim;
    MX_TRY(load_linear(l, &x->q, p[0], q_rows, a->d, a->qkv_bias));
    if (a->gated_output) {
        if (a->qkv_bias)
            return mx_fail(l->err, MX_UNSUPPORTED, "%s: a bias beside a gated output is not supported", p[0]);
        MX_TRY(reorder_rows(l, &x->q.w, split_gate, p[0]));
    }
    MX_TRY(load_linear(l, &x->k, p[1], kv_dim, a->d, a->qkv_bias));
    MX_TRY(load_linear(l, &x->v, p[2], kv_dim, a->d, a->qkv_bias));
    MX_TRY(load_linear(l, &x->o, p[3], a->d, q_dim, a->o_bias));
    if (!a->qk_norm) return MX_OK;
    MX_TRY(load_norm(l, &x->q_norm, base, "self_attn.q_norm", a->hd));
    return load_norm(l, &x->k_norm, base, "self_attn.k_norm", a->hd);
}

static mx_status load_delta(loader *l, mx_layer_weights *x, const char *base) {
    const mx_arch *a = l->arch;
    int k_dim = a->delta_k_heads * a->delta_dk, v_dim = a->delta_v_heads * a->delta_dv,
        conv = 2 * k_dim + v_dim;
    char name[MAX_NAME];
    const struct {
        mx_linear *x;
        const char *name;
        int n_out, n_in;
    } linears[] = {
        {&x->qkv, "in_proj_qkv", conv, a->d},         {&x->z, "in_proj_z", v_dim, a->d},
        {&x->b, "in_proj_b", a->delta_v_heads, a->d}, {&x->a, "in_proj_a", a->delta_v_heads, a->d},
        {&x->out, "out_proj", a->d, v_dim},
    };
    for (size_t i = 0; i < countof(linears); i++) {
        snprintf(name, sizeof name, "%s.linear_attn.%s", base, linears[i].name);
        MX_TRY(load_linear(l, linears[i].x, name, linears[i].n_out, linears[i].n_in, false));
    }
    const struct {
        float **out;
        const char *name;
        int n;
    } vectors[] = {
        {&x->conv_w, "conv1d.weight", conv * a->conv_width},
        {&x->a_log, "A_log", a->delta_v_heads},
        {&x->dt_bias, "dt_bias", a->delta_v_heads},
        {&x->delta_norm, "norm.weight", a->delta_dv},
    };
    for (size_t i = 0; i < countof(vectors); i++) {
        snprintf(name, sizeof name, "%s.linear_attn.%s", base, vectors[i].name);
        MX_TRY(load_vector(l, vectors[i].out, name, vectors[i].n, 0));
    }
    return MX_OK;
}

static mx_status load_moe(loader *l, mx_layer_weights *x, const char *base) {
    const mx_arch *a = l->arch;
    static const char *const mlx_names[3] = {"gate_proj", "up_proj", "down_proj"};
    mx_linear *to[3] = {&x->gate, &x->up, &x->down};
    char module[MAX_NAME / 2], name[MAX_NAME];
    snprintf(module, sizeof module, "%s.%s", base, a->moe_path);
    snprintf(name, sizeof name, "%s.gate", module);
    MX_TRY(load_linear(l, &x->router, name, a->n_expert, a->d, false));
    for (int i = 0; i < 3; i++) {
        int n_out = i == 2 ? a->d : a->expert_ff, n_in = i == 2 ? a->expert_ff : a->d;
        snprintf(name, sizeof name, "%s.switch_mlp.%s", module, mlx_names[i]);
        if (findf(l, "%s.weight", name))
            MX_TRY(load_matrix(l, &to[i]->w, name, true, a->n_expert, n_out, n_in));
        else
            MX_TRY(load_expert_list(l, &to[i]->w, module, a->expert_names[i], n_out, n_in));
    }
    return MX_OK;
}

static mx_status load_mlp(loader *l, mx_layer_weights *x, const char *base) {
    const mx_arch *a = l->arch;
    const struct {
        mx_linear *x;
        const char *name;
        int n_out, n_in;
    } linears[] = {{&x->gate, "gate_proj", a->ff, a->d},
                   {&x->up, "up_proj", a->ff, a->d},
                   {&x->down, "down_proj", a->d, a->ff}};
    for (size_t i = 0; i < countof(linears); i++) {
        char name[MAX_NAME];
        snprintf(name, sizeof name, "%s.mlp.%s", base, linears[i].name);
        MX_TRY(load_linear(l, linears[i].x, name, linears[i].n_out, linears[i].n_in, a->mlp_bias));
    }
    return MX_OK;
}

static mx_status load_layer(loader *l, int i) {
    const mx_arch *a = l->arch;
    mx_layer_weights *x = &l->w->layer[i];
    char base[64];
    snprintf(base, sizeof base, "model.layers.%d", i);
    MX_TRY(load_norm(l, &x->pre_attn_norm, base, a->pre_attn_norm, a->d));
    MX_TRY(load_norm(l, &x->post_attn_norm, base, a->post_attn_norm, a->d));
    MX_TRY(load_norm(l, &x->pre_mlp_norm, base, a->pre_mlp_norm, a->d));
    MX_TRY(load_norm(l, &x->post_mlp_norm, base, a->post_mlp_norm, a->d));
    MX_TRY(a->layer[i].mixer == MX_MIX_DELTA ? load_delta(l, x, base) : load_attention(l, x, base));
    return a->layer[i].mlp == MX_MLP_MOE ? load_moe(l, x, base) : load_mlp(l, x, base);
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

/* Tensors that do not take part in text: said once, not an error. */
static mx_status check_leftovers(loader *l) {
    static const char *const other_media[] = {"visual.", "vision_tower.", "vision_model.",
                                              "multi_modal_projector.", "audio_tower."};
    bool warned = false;
    for (size_t i = 0; i < mx_st_count(l->st); i++) {
        const mx_st_tensor *t = mx_st_at(l->st, i);
        char buf[MAX_NAME];
        const char *name = mx_canonical_name(t->name, buf, sizeof buf), *tail = strrchr(name, '.');
        bool media = false;
        for (size_t k = 0; k < countof(other_media); k++) media |= strstr(t->name, other_media[k]) != NULL;
        if (media && mx_config_nested(l->c)) {
            if (!warned)
                mx_log(MX_LOG_WARN,
                       "the image and sound parts of this model are not used: it answers text only");
            warned = true;
            continue;
        }
        bool inert = t->used || (tail && !strcmp(tail, ".inv_freq")) || !strncmp(t->name, "mtp.", 4) ||
                     strstr(t->name, ".mtp.") ||
                     (l->arch->tied && !strncmp(name, "lm_head.", 8)); // LOAD-04: shipped although tied
        if (inert) continue;
        return mx_fail(l->err, MX_UNSUPPORTED,
                       "%s: the tensor %s (%s) is not part of a %s model as mlxcel knows it", t->file,
                       t->name, mx_st_describe(t, (char[128]){0}, 128), mx_config_model_type(l->c));
    }
    const char *unused = mx_config_unused_quant(l->c);
    if (unused) {
        return mx_fail(l->err, MX_EINVAL,
                       "config.json: quantization names \"%s\", which is no module of this model", unused);
    }
    return MX_OK;
}

static mx_status load_all(loader *l) {
    const mx_arch *a = l->arch;
    mx_weights *w = l->w;
    const char *foreign = mx_config_foreign_quant(l->c);
    if (foreign) {
        return mx_fail(
            l->err, MX_UNSUPPORTED,
            "config.json: quantized by \"%s\", which this version does not run; take an MLX version of the model, or "
            "make one from the unquantized checkpoint with mlxcel convert -q",
            foreign);
    }
    const mx_st_tensor *conv = NULL;
    for (int i = 0; i < a->n_layer && !conv; i++)
        conv = findf(l, "model.layers.%d.linear_attn.conv1d.weight", i);
    bool conv_is_torch = conv && conv->n_dim == 3 && conv->shape[1] == 1 && conv->shape[2] != 1;
    l->plus_one = a->norm_plus_one || (a->norm_shift_by_conv && conv_is_torch);
    w->layer = mx_arena_array(l->a, (size_t)a->n_layer, sizeof *w->layer);
    if (!w->layer) return mx_fail(l->err, MX_ENOMEM, "no memory for %d layers", a->n_layer);
    MX_TRY(load_linear(l, &w->embed, "model.embed_tokens", a->n_vocab, a->d, false));
    for (int i = 0; i < a->n_layer; i++) MX_TRY(load_layer(l, i));
    MX_TRY(load_norm(l, &w->norm, "model", "norm", a->d));
    if (a->tied)
        w->head = w->embed;
    else
        MX_TRY(load_linear(l, &w->head, "lm_head", a->n_vocab, a->d, false));
    bool plain = w->embed.w.kind == MX_QUANT_NONE || w->embed.w.kind == MX_QUANT_AFFINE;
    w->dtype = plain ? w->embed.w.type : MX_BF16;
    MX_TRY(mx_config_status(l->c, l->err));
    return check_leftovers(l);
}

mx_status mx_weights_load(mx_weights *w, const mx_arch *arch, mx_config *c, mx_st *st, mx_dev *dev,
                          void (*progress)(void *, uint64_t, uint64_t), void *arg, mx_err *err) {
    *w = (mx_weights){0};
    loader l = {.w = w,
                .arch = arch,
                .c = c,
                .st = st,
                .dev = dev,
                .a = mx_config_arena(c),
                .progress = progress,
                .arg = arg,
                .err = err};
    mx_status s = load_all(&l);
    if (s != MX_OK) mx_weights_free(w);
    return s;
}

void mx_weights_free(mx_weights *w) {
    for (int i = 0; i < w->n_buf; i++) mx_buf_free(&w->bufs[i]);
    free(w->bufs);
    free(w->modules);
    *w = (mx_weights){0};
}

const char *mx_qmat_format(const mx_qmat *w, char *buf, size_t cap) {
    if (w->kind == MX_QUANT_NONE)
        snprintf(buf, cap, "%s", mx_dtype_name(w->type));
    else if (w->kind == MX_QUANT_AFFINE)
        snprintf(buf, cap, "%d-bit affine g%d", w->bits, w->group);
    else
        snprintf(buf, cap, "%s", mx_quant_name(w->kind));
    return buf;
}
