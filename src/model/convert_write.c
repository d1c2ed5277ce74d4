/* convert_write.c - carries out a plan: rows are read, changed and packed by all threads, and written in order.
 *
 * A quantized tensor is held whole (codes, scales and biases lie one after the other in the file), a plain one goes through in
 * windows. Every value is looked at on the way: one that is not finite, or does not fit the new type, stops the
 * conversion with the tensor's name, so no damaged model is ever written. */
#include "model/convert_int.h"
#include "base/threads.h"
#include "format/gguf_dequant.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK_VALUES = 1 << 14, WINDOW_BYTES = 32 << 20 };

typedef struct { // what one thread found, and its scratch
    float *row;  // [n_in]
    float *scale, *bias;
    uint8_t *q;
    int64_t bad_row; // first row with a value that cannot be stored, -1
    float bad_value;
    uint64_t rounded; // values that changed
} worker;

typedef struct {
    const mx_cv_item *it;
    int64_t first, n_row, chunk; // rows of this window, rows of a chunk
    unsigned char *codes, *scales, *biases;
    worker *w;
} pass;

/* Which row of the source becomes row r. llama.cpp stores the two halves of each head interleaved. */
static int64_t source_row(const mx_cv_item *it, int64_t r) {
    if (!it->unpermute) return r;
    const int64_t hd = it->n_row / it->unpermute, head = r / hd, i = r % hd;
    return head * hd + i % (hd / 2) * 2 + i / (hd / 2);
}

static const void *row_at(const mx_cv_item *it, int64_t r) {
    const int64_t per = it->n_row / it->n_part;
    return (const char *)it->part[r / per] + r % per * it->row_bytes;
}

static void read_row(const mx_cv_item *it, int64_t r, float *out) {
    const void *p = it->from == MX_CV_QMAT ? NULL : row_at(it, source_row(it, r));
    switch (it->from) {
    case MX_CV_GGML: // convert_gguf.c has checked the type and that a row is whole blocks
        (void)mx_gguf_dequant((uint32_t)it->type, p, it->n_in, out, NULL);
        break;
    case MX_CV_QMAT: {
        const mx_qmat m = mx_qmat_at(&it->qmat, (int)(r / it->qmat.n_out));
        (void)mx_qmat_expand(&m, (int)(r % it->qmat.n_out), 1, out, NULL);
        break;
    }
    default:
        if (it->type == MX_ST_F64) {
            for (int64_t i = 0; i < it->n_in; i++) {
                double d;
                memcpy(&d, (const char *)p + 8 * i, 8);
                out[i] = (float)d;
            }
        } else {
            mx_to_f32(out, p,
                      it->type == MX_ST_F16    ? MX_F16
                      : it->type == MX_ST_BF16 ? MX_BF16
                                               : MX_F32,
                      (size_t)it->n_in);
        }
    }
    if (it->add != 0) {
        for (int64_t i = 0; i < it->n_in; i++) out[i] += it->add;
        if (it->add_type != MX_F32) {
            for (int64_t i = 0; i < it->n_in; i++) {
                uint32_t raw;
                mx_from_f32(&raw, it->add_type, out + i, 1);
                mx_to_f32(out + i, &raw, it->add_type, 1);
            }
        }
    }
}

/* Every value must be finite and, as f16, stay so. */
static bool storable(worker *w, const float *x, int64_t n, mx_dtype t, int64_t row) {
    const float limit = t == MX_F16 ? 65520.0f : INFINITY;
    bool ok = true;
    for (int64_t i = 0; i < n; i++) ok &= fabsf(x[i]) < limit;
    if (ok) return true;
    if (w->bad_row < 0 || row < w->bad_row) {
        w->bad_row = row;
        for (int64_t i = n - 1; i >= 0; i--)
            if (!(fabsf(x[i]) < limit)) w->bad_value = x[i];
    }
    return false;
}

static void store(worker *w, void *out, mx_dtype t, const float *x, int64_t n) {
    mx_from_f32(out, t, x, (size_t)n);
    if (t == MX_F32) return;
    for (int64_t i = 0; i < n; i++) {
        float back;
        mx_to_f32(&back, (char *)out + 2 * i, t, 1);
        w->rounded += back != x[i];
    }
}

static void block_row(const pass *p, worker *w, int64_t r, unsigned char *codes, unsigned char *scales,
                      unsigned char *biases) {
    const mx_cv_item *it = p->it;
    const int64_t n_group = it->n_in / 32;
    mx_cv_unpack_blocks(it->type, row_at(it, source_row(it, r)), it->n_in, w->q, w->scale, w->bias);
    if (!storable(w, w->scale, n_group, it->dtype, r) || !storable(w, w->bias, n_group, it->dtype, r)) return;
    store(w, scales, it->dtype, w->scale, n_group);
    store(w, biases, it->dtype, w->bias, n_group);
    if (it->bits == 8) {
        memcpy(codes, w->q, (size_t)it->n_in);
        return;
    }
    for (int64_t i = 0; i < it->n_in; i += 8, codes += it->bits) {
        uint64_t v = 0;
        for (int k = 0; k < 8; k++) v |= (uint64_t)w->q[i + k] << (k * it->bits);
        memcpy(codes, &v, (size_t)it->bits);
    }
}

static void run_chunk(void *arg, int i, int worker_index) {
    const pass *p = arg;
    const mx_cv_item *it = p->it;
    worker *w = &p->w[worker_index];
    const int64_t begin = i * p->chunk, end = begin + p->chunk < p->n_row ? begin + p->chunk : p->n_row;
    const size_t scale_size = it->kind == MX_QUANT_AFFINE ? mx_dtype_size(it->dtype) : 1;
    const size_t row_bytes = it->kind == MX_QUANT_NONE ? (size_t)it->n_in * mx_dtype_size(it->dtype)
                                                       : (size_t)it->n_in / 8 * (size_t)it->bits;
    const size_t scale_bytes = it->kind == MX_QUANT_NONE ? 0 : (size_t)(it->n_in / it->group) * scale_size;
    for (int64_t k = begin; k < end; k++) {
        unsigned char *codes = p->codes + (size_t)k * row_bytes;
        unsigned char *scales = p->scales + (size_t)k * scale_bytes,
                      *biases = p->biases + (size_t)k * scale_bytes;
        if (it->blocks) {
            block_row(p, w, p->first + k, codes, scales, biases);
            continue;
        }
        read_row(it, p->first + k, w->row);
        if (!storable(w, w->row, it->n_in, it->dtype, p->first + k)) continue;
        if (it->kind == MX_QUANT_NONE)
            store(w, codes, it->dtype, w->row, it->n_in);
        else
            (void)mx_quantize(it->kind, it->bits, it->group, it->dtype, w->row, 1, (int)it->n_in, codes,
                              scales, biases, NULL);
    }
}

/* ---- progress ------------------------------------------------------------------------------------------------ */

typedef struct {
    bool shown;
    uint64_t done, total;
    int percent;
} progress;

static void show(progress *p, uint64_t more) {
    p->done += more;
    const int percent = p->total ? (int)(p->done * 100 / p->total) : 100;
    if (!p->shown || percent == p->percent) return;
    p->percent = percent;
    char bar[31];
    for (int i = 0; i < 30; i++) bar[i] = i * 100 < percent * 30 ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r[%s] %3d%%  %.1f of %.1f MB", bar, percent, (double)p->done / 1e6,
            (double)p->total / 1e6);
    fflush(stderr);
}

/* The pages of the mapped source that the item came from are not needed again: memory stays at one tensor. Only whole
 * pages go, since the neighbours share the others. */
static void forget_source(const mx_cv_item *it) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t bytes = (uintptr_t)(it->n_row / it->n_part * it->row_bytes);
    for (int i = 0; i < it->n_part; i++) {
        const uintptr_t at = (uintptr_t)it->part[i], first = (at + page - 1) / page * page,
                        last = (at + bytes) / page * page;
        if (last > first) (void)madvise((void *)first, last - first, MADV_DONTNEED);
    }
}

/* ---- one item -------------------------------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static mx_status check_workers(const mx_cv_item *it, const worker *w, int n, mx_err *err) {
    const worker *bad = NULL;
    for (int i = 0; i < n; i++)
        if (w[i].bad_row >= 0 && (!bad || w[i].bad_row < bad->bad_row)) bad = &w[i];
    if (!bad) return MX_OK;
    if (isfinite(bad->bad_value))
        return mx_fail(err, MX_EINVAL, "%s holds %g, which float16 cannot; use --dtype bfloat16 or float32",
                       it->name, (double)bad->bad_value);
    return mx_fail(err, MX_EINVAL, "%s, row %lld holds a value that is not finite: the source is damaged",
                   it->name, (long long)bad->bad_row);
}

static mx_status write_raw(mx_st_writer *out, const mx_cv_item *it, progress *pr, mx_err *err) {
    const uint64_t bytes = (uint64_t)(it->n_row / it->n_part * it->row_bytes);
    for (int i = 0; i < it->n_part; i++) {
        for (uint64_t at = 0; at < bytes; at += WINDOW_BYTES) {
            const uint64_t n = bytes - at < WINDOW_BYTES ? bytes - at : WINDOW_BYTES;
            MX_TRY(mx_st_writer_put(out, (const char *)it->part[i] + at, n, err));
            show(pr, n);
        }
    }
    return MX_OK;
}

static mx_status write_item(mx_st_writer *out, mx_pool *pool, worker *w, const mx_cv_item *it,
                            const volatile int *cancel, progress *pr, uint64_t *rounded, mx_err *err) {
    if (it->from == MX_CV_RAW) return write_raw(out, it, pr, err);
    const bool plain = it->kind == MX_QUANT_NONE;
    const size_t row_bytes =
        plain ? (size_t)it->n_in * mx_dtype_size(it->dtype) : (size_t)it->n_in / 8 * (size_t)it->bits;
    const size_t scale_row =
        plain ? 0
              : (size_t)(it->n_in / it->group) * (it->kind == MX_QUANT_AFFINE ? mx_dtype_size(it->dtype) : 1);
    int64_t window = it->n_row;
    if (plain && row_bytes) window = smaller(it->n_row, 1 + (int64_t)(WINDOW_BYTES / row_bytes));
    const int n_worker = mx_pool_size(pool);
    const size_t n_code = (size_t)window * row_bytes, n_scale = (size_t)window * scale_row;
    unsigned char *buf = malloc(n_code + 2 * n_scale + 1);
    mx_status st =
        buf ? MX_OK : mx_fail(err, MX_ENOMEM, "%s: no memory for a tensor of %zu bytes", it->name, n_code);
    const size_t n_in = (size_t)it->n_in;
    for (int i = 0; i < n_worker && st == MX_OK; i++) {
        w[i] = (worker){.row = malloc((n_in + 1) * sizeof(float)), .bad_row = -1};
        if (it->blocks) {
            w[i].q = malloc(n_in);
            w[i].scale = malloc(n_in / 32 * sizeof(float));
            w[i].bias = malloc(n_in / 32 * sizeof(float));
        }
        if (!w[i].row || (it->blocks && (!w[i].q || !w[i].scale || !w[i].bias))) st = mx_cv_nomem(err);
    }
    for (int64_t first = 0; st == MX_OK && first < it->n_row; first += window) {
        pass p = {.it = it,
                  .first = first,
                  .n_row = smaller(window, it->n_row - first),
                  .codes = buf,
                  .scales = buf + n_code,
                  .biases = buf + n_code + n_scale,
                  .w = w};
        p.chunk = 1 + CHUNK_VALUES / (it->n_in + 1);
        // chunks are counted by an int; rows this many come only from a shape of our own making
        while (p.n_row / p.chunk >= INT32_MAX) p.chunk *= 2;
        mx_pool_run(pool, run_chunk, &p, (int)((p.n_row + p.chunk - 1) / p.chunk), 1);
        st = check_workers(it, w, n_worker, err);
        const uint64_t n = (uint64_t)p.n_row;
        if (st == MX_OK) st = mx_st_writer_put(out, p.codes, n * row_bytes, err);
        if (st == MX_OK && !plain) st = mx_st_writer_put(out, p.scales, n * scale_row, err);
        if (st == MX_OK && it->kind == MX_QUANT_AFFINE)
            st = mx_st_writer_put(out, p.biases, n * scale_row, err);
        show(pr, n * (row_bytes + scale_row * (it->kind == MX_QUANT_AFFINE ? 2 : 1)));
        if (st == MX_OK && cancel && *cancel) st = mx_fail(err, MX_ECANCELLED, "the conversion was stopped");
    }
    for (int i = 0; i < n_worker; i++) {
        *rounded += w[i].rounded;
        free(w[i].row);
        free(w[i].q);
        free(w[i].scale);
        free(w[i].bias);
        w[i] = (worker){0};
    }
    free(buf);
    return st;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static mx_st_dtype st_type(mx_dtype t) {
    return t == MX_F32 ? MX_ST_F32 : t == MX_F16 ? MX_ST_F16 : MX_ST_BF16;
}

/* The tensors of the result, up to three for an item. */
static mx_status make_plan(mx_cv_job *j, mx_st_plan **out, size_t *n, uint64_t *total, mx_err *err) {
    mx_st_plan *plan = mx_arena_array(&j->arena, 3 * j->n_item + 1, sizeof *plan);
    if (!plan) return mx_cv_nomem(err);
    *n = 0;
    *total = 0;
    for (size_t i = 0; i < j->n_item; i++) {
        const mx_cv_item *it = &j->item[i];
        const bool plain = it->kind == MX_QUANT_NONE;
        mx_st_plan t = {.name = it->name, .n_dim = it->n_dim};
        memcpy(t.shape, it->shape, sizeof t.shape);
        t.dtype = it->from == MX_CV_RAW ? (mx_st_dtype)it->type : plain ? st_type(it->dtype) : MX_ST_U32;
        if (!plain) t.shape[t.n_dim - 1] = it->n_in / 32 * it->bits + it->n_in % 32 * it->bits / 32;
        plan[(*n)++] = t;
        if (plain) continue;
        const size_t stem = strlen(it->name) - strlen(".weight");
        t.shape[t.n_dim - 1] = it->n_in / it->group;
        t.dtype = it->kind == MX_QUANT_AFFINE ? st_type(it->dtype) : MX_ST_U8;
        for (int k = 0; k < (it->kind == MX_QUANT_AFFINE ? 2 : 1); k++) {
            t.name = mx_arena_printf(&j->arena, "%.*s.%s", (int)stem, it->name, k ? "biases" : "scales");
            if (!t.name) return mx_cv_nomem(err);
            plan[(*n)++] = t;
        }
    }
    for (size_t i = 0; i < *n; i++) {
        uint64_t bits = (uint64_t)mx_st_dtype_bits(plan[i].dtype);
        for (int k = 0; k < plan[i].n_dim; k++) bits *= (uint64_t)plan[i].shape[k];
        *total += bits / 8;
    }
    *out = plan;
    return MX_OK;
}

mx_status mx_cv_write(mx_cv_job *j, const char *dir, mx_err *err) {
    mx_st_plan *plan = NULL;
    size_t n = 0;
    progress pr = {.shown = !j->opt->quiet && isatty(2), .percent = -1};
    MX_TRY(make_plan(j, &plan, &n, &pr.total, err));
    mx_pool *pool = NULL;
    worker *w = NULL;
    mx_st_writer *out = NULL;
    uint64_t rounded = 0;
    mx_status st = mx_pool_new(&pool, j->opt->threads, err);
    if (st == MX_OK) {
        w = calloc((size_t)mx_pool_size(pool), sizeof *w);
        if (!w) st = mx_cv_nomem(err);
    }
    if (st == MX_OK) st = mx_st_writer_new(&out, dir, plan, n, (uint64_t)5 << 30, err);
    show(&pr, 0);
    for (size_t i = 0; i < j->n_item && st == MX_OK; i++) {
        uint64_t changed = 0;
        st = write_item(out, pool, w, &j->item[i], j->opt->cancel, &pr, &changed, err);
        forget_source(&j->item[i]);
        if (j->gguf) rounded += changed;
    }
    if (pr.shown) fputc('\n', stderr);
    if (st == MX_OK) st = mx_st_writer_finish(out, err);
    if (st == MX_OK && j->gguf)
        mx_cv_note(j, "%zu tensors, %.1f MB, %llu values rounded", n, (double)pr.total / 1e6,
                   (unsigned long long)rounded);
    else if (st == MX_OK)
        mx_cv_note(j, "%zu tensors, %.1f MB", n, (double)pr.total / 1e6);
    mx_st_writer_free(out);
    free(w);
    mx_pool_free(pool);
    return st;
}
