/* ops_check.h - the checks that the ops' front (ops.c, ops_math.c) is made of: pointers, shapes, types, ranges. */
#ifndef MX_BACKEND_OPS_CHECK_H
#define MX_BACKEND_OPS_CHECK_H
#include "backend/ops.h"
#include <math.h>
#include <stdio.h>

/* Start of every op: fails if the backend has no such entry. */
#define NEED_OP(op)                                                                                          \
    do {                                                                                                     \
        if (!dev->be->op)                                                                                    \
            return mx_fail(err, MX_UNSUPPORTED, "%s: the %s backend has no such op", #op, dev->be->name);    \
    } while (0)

enum { ANY = -1 };
typedef enum { ONLY_F32, F32_OR_ACT } types;

/* A matrix of rows x cols (ANY: whatever it has) at an address, unless it is empty. */
static inline mx_status check_mat(mx_dev *dev, const char *op, const char *name, const mx_mat *m, int rows,
                                  int cols, types t, mx_err *err) {
    if (!m) return mx_fail(err, MX_EINVAL, "%s: no matrix %s", op, name);
    if (m->type != MX_F32 && (t == ONLY_F32 || m->type != dev->act))
        return mx_fail(err, MX_EINVAL, "%s: %s is %s, not %s%s%s", op, name,
                       (unsigned)m->type <= MX_BF16 ? mx_dtype_name(m->type) : "of no type", "float32",
                       t == ONLY_F32 || dev->act == MX_F32 ? "" : " or ",
                       t == ONLY_F32 || dev->act == MX_F32 ? "" : mx_dtype_name(dev->act));
    if ((rows != ANY && m->rows != rows) || (cols != ANY && m->cols != cols) || m->rows < 0 || m->cols < 1) {
        char want[2][16];
        snprintf(want[0], sizeof want[0], rows == ANY ? "n" : "%d", rows);
        snprintf(want[1], sizeof want[1], cols == ANY ? "n" : "%d", cols);
        return mx_fail(err, MX_EINVAL, "%s: %s is [%d, %d], expected [%s, %s]", op, name, m->rows, m->cols,
                       want[0], want[1]);
    }
    if (m->ld < m->cols && m->rows > 1)
        return mx_fail(err, MX_EINVAL, "%s: %s has %d columns but its rows are %lld apart", op, name, m->cols,
                       (long long)m->ld);
    if (!m->p && m->rows > 0)
        return mx_fail(err, MX_EINVAL, "%s: %s [%d, %d] has no memory", op, name, m->rows, m->cols);
    return MX_OK;
}

static inline mx_status check_ptr(const char *op, const char *name, const void *p, mx_err *err) {
    return p ? MX_OK : mx_fail(err, MX_EINVAL, "%s: %s is NULL", op, name);
}

static inline mx_status check_range(const char *op, const char *name, long long v, long long lo, long long hi,
                                    mx_err *err) {
    if (v >= lo && v <= hi) return MX_OK;
    return mx_fail(err, MX_EINVAL, "%s: %s is %lld, outside %lld..%lld", op, name, v, lo, hi);
}

static inline mx_status check_number(const char *op, const char *name, float v, bool ok, mx_err *err) {
    if (ok && isfinite(v)) return MX_OK;
    return mx_fail(err, MX_EINVAL, "%s: %s cannot be %g", op, name, (double)v);
}

static inline mx_status check_qmat(const char *op, const mx_qmat *w, mx_err *err) {
    MX_TRY(check_ptr(op, "the weight", w, err));
    if (w->n_stack < 1 || w->n_out < 1 || w->n_in < 1)
        return mx_fail(err, MX_EINVAL, "%s: the weight is [%d, %d, %d]", op, w->n_stack, w->n_out, w->n_in);
    MX_TRY(check_ptr(op, "the weight's memory", w->codes, err));
    if ((unsigned)w->type > MX_BF16) return mx_fail(err, MX_EINVAL, "%s: the weight has no type", op);
    if (w->kind == MX_QUANT_NONE) return MX_OK;
    mx_status st = mx_quant_check(w->kind, w->bits, w->group, w->n_in, err);
    if (st != MX_OK) return mx_err_prefix(err, st, "%s", op);
    MX_TRY(check_ptr(op, "the weight's scales", w->scales, err));
    return w->kind == MX_QUANT_AFFINE ? check_ptr(op, "the weight's biases", w->biases, err) : MX_OK;
}

static inline mx_status check_batch(const char *op, const mx_batch *b, mx_err *err) {
    MX_TRY(check_ptr(op, "the batch", b, err));
    if (b->n_tok < 0 || b->n_seq < 0 || (b->n_tok > 0 && (b->n_seq < 1 || b->n_seq > b->n_tok)))
        return mx_fail(err, MX_EINVAL, "%s: a batch of %d tokens in %d sequences", op, b->n_tok, b->n_seq);
    if (b->n_tok == 0) return MX_OK;
    MX_TRY(check_range(op, "the batch's max_q_len", b->max_q_len, 1, b->n_tok, err));
    MX_TRY(check_ptr(op, "the batch's pos", b->pos, err));
    MX_TRY(check_ptr(op, "the batch's seq", b->seq, err));
    return check_ptr(op, "the batch's seq_start", b->seq_start, err);
}

static inline mx_status check_kv(const char *op, const mx_kv *kv, int n_kv, int hd, const mx_batch *b,
                                 mx_err *err) {
    if ((unsigned)kv->type > MX_BF16) return mx_fail(err, MX_EINVAL, "%s: the KV cache has no type", op);
    if (kv->n_kv != n_kv || kv->hd != hd)
        return mx_fail(err, MX_EINVAL, "%s: the KV cache has %d heads of %d, the layer %d of %d", op,
                       kv->n_kv, kv->hd, n_kv, hd);
    MX_TRY(check_range(op, "the KV group", kv->group, 0, MX_KV_GROUPS - 1, err));
    if (b->block < 1 || (b->block & (b->block - 1)))
        return mx_fail(err, MX_EINVAL, "%s: a KV block of %d positions is not a power of two", op, b->block);
    if (b->max_kv_len < 1 || (int64_t)b->block_stride * b->block < b->max_kv_len)
        return mx_fail(err, MX_EINVAL, "%s: %d blocks of %d positions do not hold %d", op, b->block_stride,
                       b->block, b->max_kv_len);
    MX_TRY(check_ptr(op, "the batch's block table", b->blocks[kv->group], err));
    MX_TRY(check_ptr(op, "the batch's kv_len", b->kv_len, err));
    MX_TRY(check_ptr(op, "the keys", kv->k, err));
    return check_ptr(op, "the values", kv->v, err);
}

static inline mx_status check_heads(const char *op, int n_head, int n_kv, int hd, mx_err *err) {
    MX_TRY(check_range(op, "the head size", hd, 1, MX_MAX_HEAD_DIM, err));
    if (n_kv < 1 || n_head < 1 || n_head % n_kv || n_head > INT32_MAX / hd)
        return mx_fail(err, MX_EINVAL, "%s: %d query heads cannot share %d key heads", op, n_head, n_kv);
    return MX_OK;
}

#endif
