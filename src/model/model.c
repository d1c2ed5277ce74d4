#include "model/model_impl.h"
#include "backend/ops.h"
#include "base/log.h"
#include "model/rope.h"
#include "text/tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- facts -------------------------------------------------------------------------------------------- */

/* Layers with the same window share a KV group, numbered in order of appearance. */
static mx_status assign_groups(mx_model *m, mx_err *err) {
    const mx_arch *a = m->arch;
    mx_model_info *info = &m->info;
    m->group = mx_arena_array(&m->a, (size_t)a->n_layer, sizeof *m->group);
    if (!m->group) return mx_fail(err, MX_ENOMEM, "no memory for %d layers", a->n_layer);
    for (int i = 0; i < a->n_layer; i++) {
        if (a->layer[i].mixer != MX_MIX_ATTENTION) {
            m->group[i] = -1;
            info->n_recurrent++;
            continue;
        }
        int g = 0;
        while (g < info->n_group && info->window[g] != a->layer[i].window) g++;
        if (g == MX_KV_GROUPS)
            return mx_fail(err, MX_UNSUPPORTED, "config.json: more than %d different windows", MX_KV_GROUPS);
        if (g == info->n_group) info->window[info->n_group++] = a->layer[i].window;
        m->group[i] = g;
        info->group_layers[g]++;
        info->n_attention++;
    }
    return MX_OK;
}

/* "4-bit affine g64", or the parts of a mixture by their share of parameters. */
static const char *quant_summary(mx_model *m) {
    struct {
        char name[48];
        uint64_t n;
    } kinds[8];
    int n_kind = 0;
    uint64_t total = 0;
    for (int i = 0; i < m->w.n_module; i++) {
        const mx_qmat *w = &m->w.modules[i].w;
        char name[48];
        mx_qmat_format(w, name, sizeof name);
        int k = 0;
        while (k < n_kind && strcmp(kinds[k].name, name)) k++;
        if (k == (int)countof(kinds)) continue; // so many kinds: the rare ones go unnamed
        if (k == n_kind) {
            memcpy(kinds[k].name, name, sizeof name);
            kinds[k].n = 0;
            n_kind++;
        }
        uint64_t n = (uint64_t)w->n_stack * (uint64_t)w->n_out * (uint64_t)w->n_in;
        kinds[k].n += n;
        total += n;
    }
    if (n_kind == 1) return mx_arena_strdup(&m->a, kinds[0].name);
    mx_str s = {0};
    mx_str_puts(&s, "mixed: ");
    for (int done = 0; done < n_kind; done++) {
        int best = 0;
        for (int k = 1; k < n_kind; k++) {
            if (kinds[k].n > kinds[best].n) best = k;
        }
        mx_str_printf(&s, "%s%s %.3g %%", done ? ", " : "", kinds[best].name,
                      100.0 * (double)kinds[best].n / (double)total);
        kinds[best].n = 0;
    }
    char *copy = s.oom ? NULL : mx_arena_strdup(&m->a, s.p);
    mx_str_free(&s);
    return copy;
}

static float gen_num(mx_config *c, const char *key) {
    double v = mx_json_num(mx_config_generation(c), key, NAN, NULL);
    return isfinite(v) ? (float)v : NAN;
}

static void read_defaults(mx_model *m) {
    const mx_json *g = mx_config_generation(m->config), *sample = mx_json_get(g, "do_sample");
    m->defaults = (mx_generation_defaults){
        .do_sample = mx_json_is(sample, MX_JSON_BOOL) ? sample->u.b : -1,
        .temperature = gen_num(m->config, "temperature"),
        .top_p = gen_num(m->config, "top_p"),
        .min_p = gen_num(m->config, "min_p"),
        .repetition_penalty = gen_num(m->config, "repetition_penalty"),
        .top_k = (int)fmin(fmax(mx_json_num(g, "top_k", -1, NULL), -1), 1 << 30),
    };
}

void mx_model_use_tokenizer(mx_model *m, const mx_tokenizer *t) {
    mx_model_info *info = &m->info;
    int32_t id = m->eos_token ? mx_tokenizer_find(t, m->eos_token) : -1;
    bool seen = id < 0 || id >= info->n_vocab || info->n_eos == MX_MAX_EOS;
    for (int i = 0; i < info->n_eos; i++) seen |= info->eos[i] == id;
    if (!seen) info->eos[info->n_eos++] = id;
}

static void round_embed_scale(mx_model *m) {
    unsigned char bits[4];
    mx_from_f32(bits, m->w.dtype, &m->arch->embed_scale, 1);
    mx_to_f32(&m->arch->embed_scale, bits, m->w.dtype, 1);
}

static mx_status fill_info(mx_model *m, mx_err *err) {
    const mx_arch *a = m->arch;
    mx_model_info *info = &m->info;
    info->family = mx_config_model_type(m->config);
    info->architecture = mx_config_architecture(m->config);
    info->quant = quant_summary(m);
    if (!info->quant) return mx_fail(err, MX_ENOMEM, "no memory to describe the model");
    info->n_layer = a->n_layer;
    info->d = a->d;
    info->n_head = a->n_head;
    info->n_kv = a->n_kv;
    info->hd = a->hd;
    info->n_vocab = a->n_vocab;
    info->n_ctx = a->n_ctx;
    info->n_expert = a->n_expert;
    info->n_expert_used = a->n_expert_used;
    info->n_param = m->w.n_param;
    info->n_param_active = m->w.n_param;
    if (a->n_expert)
        info->n_param_active -=
            m->w.n_expert_param / (uint64_t)a->n_expert * (uint64_t)(a->n_expert - a->n_expert_used);
    info->weight_bytes = m->w.bytes;
    info->dtype = m->w.dtype;
    info->bos = mx_config_bos(m->config);
    read_defaults(m);
    for (int i = 0; i < info->n_eos; i++) {
        if (info->eos[i] >= a->n_vocab) {
            return mx_fail(err, MX_EINVAL, "config.json: eos_token_id %d is not below vocab_size %d",
                           info->eos[i], a->n_vocab);
        }
    }
    return MX_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static mx_status make_ropes(mx_model *m, mx_err *err) {
    const mx_arch *a = m->arch;
    size_t one = (size_t)a->hd / 2 * sizeof(float), stride = (one + 255) & ~(size_t)255;
    MX_TRY(mx_buf_new(&m->rope_buf, m->dev, stride * MX_ROPES + 1, "rope frequencies", err));
    for (int i = 0; i < MX_ROPES; i++) {
        mx_rope *r = &m->rope[i];
        r->n_rot = (int)(a->hd * a->rope[i].partial);
        bool used = false;
        for (int k = 0; k < a->n_layer; k++)
            used |= a->layer[k].mixer == MX_MIX_ATTENTION && a->layer[k].rope == i;
        if (!used) r->n_rot = 0;
        if (!r->n_rot) continue;
        float *host = malloc(one);
        if (!host) return mx_fail(err, MX_ENOMEM, "no memory for rope frequencies");
        r->inv_freq = (float *)((char *)m->rope_buf.p + stride * (size_t)i);
        mx_rope_frequencies(&a->rope[i], r->n_rot, host, &r->scale);
        mx_status st = mx_op_upload(m->dev, r->inv_freq, host, (size_t)r->n_rot / 2 * sizeof *host, err);
        free(host);
        MX_TRY(st);
    }
    return MX_OK;
}

static mx_status open_model(mx_model *m, const char *dir, const mx_model_options *opt, mx_err *err) {
    MX_TRY(mx_config_open(&m->config, dir, err));
    MX_TRY(mx_arch_describe(m->arch, &m->family, m->config, err));
    MX_TRY(assign_groups(m, err));
    MX_TRY(mx_st_open(&m->st, dir, err));
    MX_TRY(mx_weights_load(&m->w, m->arch, m->config, m->st, m->dev, opt->progress, opt->arg, err));
    m->info.n_eos = mx_config_eos(m->config, m->info.eos, MX_MAX_EOS, &m->eos_token);
    MX_TRY(fill_info(m, err));
    m->max_tok = opt->max_tok ? opt->max_tok : 512;
    m->max_rows = opt->max_rows ? opt->max_rows : 16;
    if (m->max_tok < 1 || m->max_rows < 1 || m->max_tok > 1 << 16 || m->max_rows > 1 << 16) {
        return mx_fail(err, MX_EINVAL, "steps of %d tokens and %d rows: both must be 1 to 65536", m->max_tok,
                       m->max_rows);
    }
    if (m->arch->embed_scale_rounded) round_embed_scale(m);
    if (!m->dev) return MX_OK;
    if (!m->dev->be->host_memory) { // all of it is on the device now
        mx_st_free(m->st);
        m->st = NULL;
    }
    MX_TRY(make_ropes(m, err));
    return mx_scratch_new(m, err);
}

static mx_status new_model(mx_model **out, const char *dir, mx_dev *dev, const mx_model_options *opt,
                           mx_err *err) {
    mx_model *m = calloc(1, sizeof *m);
    if (!m) return mx_fail(err, MX_ENOMEM, "%s: no memory for a model", dir);
    m->dev = dev;
    m->arch = mx_arena_alloc(&m->a, sizeof *m->arch);
    mx_status st =
        m->arch ? open_model(m, dir, opt, err) : mx_fail(err, MX_ENOMEM, "%s: no memory for a model", dir);
    if (st == MX_OK)
        *out = m;
    else
        mx_model_free(m);
    return st;
}

mx_status mx_model_open(mx_model **out, const char *dir, mx_dev *dev, const mx_model_options *opt,
                        mx_err *err) {
    return new_model(out, dir, dev, opt, err);
}

mx_status mx_model_describe(mx_model **out, const char *dir, mx_err *err) {
    return new_model(out, dir, NULL, &(mx_model_options){0}, err);
}

void mx_model_free(mx_model *m) {
    if (!m) return;
    mx_buf_free(&m->s.buf);
    mx_buf_free(&m->rope_buf);
    mx_weights_free(&m->w);
    mx_st_free(m->st);
    mx_config_free(m->config);
    mx_arena_free(&m->a);
    free(m);
}

const mx_model_info *mx_model_get_info(const mx_model *m) { return &m->info; }
const mx_generation_defaults *mx_model_get_defaults(const mx_model *m) { return &m->defaults; }
mx_dev *mx_model_dev(const mx_model *m) { return m->dev; }
int mx_model_max_tok(const mx_model *m) { return m->max_tok; }
int mx_model_max_rows(const mx_model *m) { return m->max_rows; }

/* ---- modules ------------------------------------------------------------------------------------------ */

/* "model.layers.12.mlp.up_proj" -> "layers.*.mlp.up_proj" */
static char *module_kind(mx_arena *a, const char *name) {
    if (!strncmp(name, "model.", 6)) name += 6;
    char *kind = mx_arena_strdup(a, name), *to = kind;
    for (const char *p = name; kind && *p;) {
        bool number = p > name && p[-1] == '.' && *p >= '0' && *p <= '9';
        if (number) {
            *to++ = '*';
            while (*p >= '0' && *p <= '9') p++;
        } else {
            *to++ = *p++;
        }
    }
    if (kind) *to = 0;
    return kind;
}

mx_status mx_model_modules(const mx_model *m, mx_arena *a, mx_module_row **rows, int *n_row, mx_err *err) {
    mx_module_row *list = mx_arena_array(a, (size_t)m->w.n_module, sizeof *list);
    int n = 0;
    bool ok = list != NULL;
    for (int i = 0; ok && i < m->w.n_module; i++) {
        const mx_qmat *w = &m->w.modules[i].w;
        char format[48];
        mx_qmat_format(w, format, sizeof format);
        char *kind = module_kind(a, m->w.modules[i].module);
        if (!kind) {
            ok = false;
            break;
        }
        int k = 0; // one row a kind of module, format and shape
        while (k < n && (strcmp(list[k].module, kind) || strcmp(list[k].format, format) ||
                         list[k].n_out != w->n_out || list[k].n_in != w->n_in))
            k++;
        if (k == n) {
            list[n++] = (mx_module_row){.module = kind,
                                        .format = mx_arena_strdup(a, format),
                                        .n_out = w->n_out,
                                        .n_in = w->n_in,
                                        .n_stack = w->n_stack};
            ok = list[k].format != NULL;
        }
        list[k].count++;
        list[k].bytes += mx_qmat_bytes(w);
        list[k].params += (uint64_t)w->n_stack * (uint64_t)w->n_out * (uint64_t)w->n_in;
    }
    if (!ok) return mx_fail(err, MX_ENOMEM, "no memory to list the modules");
    *rows = list;
    *n_row = n;
    return MX_OK;
}
