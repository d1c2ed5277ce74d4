#include "backend/ops.h"
#include "model/model_impl.h"
#include <stdlib.h>

static size_t conv_slot_bytes(const mx_arch *a) {
    size_t c =
        2 * (size_t)a->delta_k_heads * (size_t)a->delta_dk + (size_t)a->delta_v_heads * (size_t)a->delta_dv;
    return (size_t)(a->conv_width - 1) * c * sizeof(float);
}

static size_t state_slot_bytes(const mx_arch *a) {
    return (size_t)a->delta_v_heads * (size_t)a->delta_dk * (size_t)a->delta_dv * sizeof(float);
}

size_t mx_model_block_bytes(const mx_model *m, int group, mx_dtype kv_type) {
    const mx_arch *a = m->arch;
    size_t one = 2 * (size_t)a->n_kv * (size_t)a->hd * MX_KV_BLOCK * mx_dtype_size(kv_type);
    return one * (size_t)m->info.group_layers[group];
}

size_t mx_model_slot_bytes(const mx_model *m) {
    const mx_arch *a = m->arch;
    return m->info.n_recurrent ? (size_t)m->info.n_recurrent * (conv_slot_bytes(a) + state_slot_bytes(a)) : 0;
}

static mx_status make_layer(mx_cache *c, int i, const int *n_block, mx_err *err) {
    mx_model *m = c->m;
    const mx_arch *a = m->arch;
    mx_buf *bufs = &c->bufs[2 * i];
    size_t bytes[2];
    int g = m->group[i];
    if (g < 0) {
        bytes[0] = c->conv_bytes * (size_t)c->n_slot;
        bytes[1] = c->state_bytes * (size_t)c->n_slot;
    } else {
        bytes[0] = bytes[1] =
            (size_t)n_block[g] * (size_t)a->n_kv * (size_t)a->hd * MX_KV_BLOCK * mx_dtype_size(c->type);
    }
    for (int k = 0; k < 2; k++) {
        MX_TRY(mx_buf_new(&bufs[k], m->dev, bytes[k], g < 0 ? "the recurrent state" : "the KV cache", err));
        c->bytes += bytes[k];
    }
    if (g < 0)
        c->layer[i] = (mx_layer_cache){.conv = bufs[0].p, .state = bufs[1].p};
    else
        c->layer[i].kv = (mx_kv){
            .type = c->type, .n_kv = a->n_kv, .hd = a->hd, .group = g, .k = bufs[0].p, .v = bufs[1].p};
    return MX_OK;
}

mx_status mx_cache_new(mx_cache **out, mx_model *m, const int *n_block, int n_slot, mx_dtype kv_type,
                       mx_err *err) {
    const mx_arch *a = m->arch;
    mx_cache *c = calloc(1, sizeof *c);
    if (!c) return mx_fail(err, MX_ENOMEM, "no memory for a cache");
    *c = (mx_cache){.m = m, .type = kv_type, .n_slot = n_slot};
    c->layer = calloc((size_t)a->n_layer, sizeof *c->layer);
    c->bufs = calloc(2 * (size_t)a->n_layer, sizeof *c->bufs);
    mx_status st = c->layer && c->bufs ? MX_OK : mx_fail(err, MX_ENOMEM, "no memory for a cache");
    if (m->info.n_recurrent) c->conv_bytes = conv_slot_bytes(a), c->state_bytes = state_slot_bytes(a);
    for (int i = 0; st == MX_OK && i < a->n_layer; i++) st = make_layer(c, i, n_block, err);
    if (st == MX_OK)
        *out = c;
    else
        mx_cache_free(c);
    return st;
}

void mx_cache_free(mx_cache *c) {
    if (!c) return;
    for (int i = 0; c->bufs && i < 2 * c->m->arch->n_layer; i++) mx_buf_free(&c->bufs[i]);
    free(c->bufs);
    free(c->layer);
    free(c);
}

mx_status mx_cache_clear_slot(mx_cache *c, int slot, mx_err *err) {
    mx_model *m = c->m;
    for (int i = 0; i < m->arch->n_layer; i++) {
        if (m->group[i] >= 0) continue;
        MX_TRY(
            mx_op_clear(m->dev, (char *)c->layer[i].conv + c->conv_bytes * (size_t)slot, c->conv_bytes, err));
        MX_TRY(mx_op_clear(m->dev, (char *)c->layer[i].state + c->state_bytes * (size_t)slot, c->state_bytes,
                           err));
    }
    return MX_OK;
}

size_t mx_cache_bytes(const mx_cache *c) { return c->bytes; }
