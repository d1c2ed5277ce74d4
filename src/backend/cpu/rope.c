/* rope.c - rotary positions (Su et al. 2021, "RoFormer"): the table of a step, and one pass over q, k and v
 * that norms, rotates, and appends keys and values to the cache. */
#include "backend/cpu/ops_impl.h"
#include "backend/ops.h"
#include <math.h>

typedef struct {
    const mx_row_kernels *k;
    const mx_rope_append *a;
    const mx_batch *b;
    float *cos_sin;
    const float *inv_freq;
    int n_rot;
    float scale;
} rope_job;

/* The angle is a float product, as in the reference implementations: at position 32,768 its rounding is
 * visible. */
static void table_row(void *arg, int i, int worker) {
    const rope_job *j = arg;
    (void)worker;
    const int half = j->n_rot / 2;
    float *out = j->cos_sin + (int64_t)i * j->n_rot;
    for (int f = 0; f < half; f++) {
        const float angle = (float)j->b->pos[i] * j->inv_freq[f];
        out[f] = cosf(angle) * j->scale;
        out[half + f] = sinf(angle) * j->scale;
    }
}

mx_status mx_cpu_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                            const mx_batch *b, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    rope_job j = {.b = b, .cos_sin = cos_sin, .inv_freq = inv_freq, .n_rot = n_rot, .scale = scale};
    mx_cpu_run(d, table_row, &j, b->n_tok, b->n_tok / (8 * d->n_worker), 16.0 * b->n_tok * n_rot);
    return MX_OK;
}

/* The head at x to f32, norm, rotation, and to `out`, which may be x. f32 is worked on where it lies. */
static void turn_head(const rope_job *j, mx_row out, mx_row x, const float *w, const float *cs) {
    const mx_rope_append *a = j->a;
    float room[MX_MAX_HEAD_DIM];
    mx_row h = x;
    if (x.t != MX_F32) {
        h = (mx_row){room, MX_F32};
        j->k->copy(h, x, 1, a->hd);
    }
    if (w) j->k->norm(h, h.p, (mx_row){0}, w, a->eps, a->hd);
    if (a->n_rot) j->k->rotate(h.p, cs, a->n_rot, a->interleaved);
    if (out.p != h.p) j->k->copy(out, h, 1, a->hd);
}

static void append_token(void *arg, int i, int worker) {
    const rope_job *j = arg;
    const mx_rope_append *a = j->a;
    const mx_batch *b = j->b;
    (void)worker;
    const float *cs = a->n_rot ? a->cos_sin + (int64_t)i * a->n_rot : NULL;
    if (a->n_rot || a->q_norm)
        for (int h = 0; h < a->n_head; h++) {
            mx_row q = mx_row_at(&a->q, i, h * a->hd);
            turn_head(j, q, q, a->q_norm, cs);
        }
    const int64_t pos = b->pos[i];
    const int64_t block = b->blocks[a->kv.group][(int64_t)b->seq[i] * b->block_stride + pos / b->block];
    if (block < 0) return; // behind the window before it was ever seen
    const size_t size = a->kv.type == MX_F32 ? 4 : 2;
    for (int h = 0; h < a->n_kv; h++) {
        const int64_t row = (block * a->n_kv + h) * b->block + pos % b->block;
        mx_row k = {(char *)a->kv.k + (size_t)(row * a->hd) * size, a->kv.type};
        mx_row v = {(char *)a->kv.v + (size_t)(row * a->hd) * size, a->kv.type};
        turn_head(j, k, mx_row_at(&a->k, i, h * a->hd), a->k_norm, cs);
        j->k->copy(v, mx_row_at(&a->v, i, h * a->hd), 1, a->hd);
    }
}

mx_status mx_cpu_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    (void)err;
    rope_job j = {.k = mx_cpu_row_kernels(d->isa), .a = a, .b = b};
    double values = (double)b->n_tok * (a->n_head + 2 * a->n_kv) * a->hd;
    mx_cpu_run(d, append_token, &j, b->n_tok, b->n_tok / (8 * d->n_worker), 2 * values);
    return MX_OK;
}
