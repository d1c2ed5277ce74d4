/* kernels.h - the inner loops of the CPU's ops, one table for each set of instructions they are compiled for.
 *
 * Rows may be f32, f16 or bf16 in memory; all arithmetic is f32. Nothing here allocates, runs threads or
 * fails. */
#ifndef MX_CPU_KERNELS_H
#define MX_CPU_KERNELS_H
#include "backend/backend.h"
#include "backend/cpu/isa.h"

typedef struct { // a row of numbers of type t
    void *p;
    mx_dtype t;
} mx_row;

typedef struct {
    void (*copy)(mx_row y, mx_row x, float scale, int n); // y = scale * x
    /* x += add (unless add.p is NULL), y = x / sqrt(mean(x^2) + eps) * w (unless NULL); y may be x */
    void (*norm)(mx_row y, float *x, mx_row add, const float *w, float eps, int n);
    void (*gated_norm)(mx_row y, mx_row x, mx_row z, const float *w, float eps,
                       int n); // norm(x) * w * silu(z)
    /* Rotate the pairs of x[n_rot]; cs: n_rot / 2 cosines, then sines */
    void (*rotate)(float *x, const float *cs, int n_rot, bool interleaved);
    void (*glu)(mx_row y, mx_row gate, mx_row up, mx_act act, int n);
    void (*add)(float *x, mx_row y, float factor, int n);         // x += factor * y
    void (*sigmoid_gate)(mx_row x, mx_row gate, bool one, int n); // one: the gate is a single number
    void (*softcap)(mx_row x, float c, int n);
    void (*softmax)(float *y, const float *x, int n);
    /* Causal convolution and SiLU over n_tok rows (x_ld, y_ld values apart) of nc <= MX_CONV_CHANNELS
     * channels. w [nc, k_width]; state [k_width - 1, ld_state], oldest first; y may be x. */
    void (*conv)(mx_row y, int64_t y_ld, mx_row x, int64_t x_ld, const float *w, const float *bias,
                 int k_width, float *state, int64_t ld_state, int nc, int n_tok);
    void (*l2_normalize)(float *y, mx_row x, float scale, int n); // y = scale * x / sqrt(sum(x^2) + 1e-6)
    /* n_tok steps of the delta rule on columns [0, nj) of the state s [dk, ld_s]. q, k [n_tok, dk] are
     * normalized; v, out point to the first of these columns; decay, beta [n_tok]. nj <= MX_DELTA_COLUMNS */
    void (*delta)(float *s, int64_t ld_s, int dk, int nj, int n_tok, const float *q, const float *k, mx_row v,
                  int64_t v_ld, mx_row out, int64_t out_ld, const float *decay, const float *beta);
} mx_row_kernels;
enum { MX_CONV_CHANNELS = 64, MX_DELTA_COLUMNS = 32 };

/* Attention of some rows (tokens x the heads that share a key head) to one split of the keys. */
enum {
    MX_ATTN_SPLIT = 256,
    MX_ATTN_ROWS = 64,
    MX_ATTN_RUN = 32
}; // keys in a split, rows at most, keys converted at once
typedef struct {
    const mx_kv *kv;
    const int32_t *blocks; // of the sequence, by position / block
    int block, head;       // positions in a block; the key head
    int hd, hdp;           // head size, and rounded up to 16: the distance of rows below, the rest zeros
    int n_row;
    float softcap;
    const float *q;         // [n_row, hdp], scaled
    const int64_t *lo, *hi; // [n_row] first key of a row and one past the last, absolute
    float *s;               // [n_row, MX_ATTN_SPLIT] room for scores
    float *run;             // [MX_ATTN_RUN, hdp] room for converted keys and values
    float *o, *m,
        *l; // out: [n_row, hdp] sum of exp(s - m) v; [n_row] max of s (-inf: no key); sum of exp(s - m)
} mx_attn_task;

typedef struct {
    void (*split)(const mx_attn_task *t, int64_t first); // keys [first, first + MX_ATTN_SPLIT)
    /* Join (m, l, o) of a later split into the totals (tm, tl, to), which start as -inf, 0, zeros. */
    void (*merge)(float *tm, float *tl, float *to, float m, float l, const float *o, int hdp);
    void (*finish)(mx_row out, float tm, float tl, const float *to, const float *sink,
                   int hd); // sink may be NULL
} mx_attn_kernels;

const mx_row_kernels *mx_cpu_row_kernels(mx_isa isa); // cpu.c
const mx_attn_kernels *mx_cpu_attn_kernels(mx_isa isa);

extern const mx_row_kernels mx_row_kernels_base, mx_row_kernels_avx2, mx_row_kernels_avx512;
extern const mx_attn_kernels mx_attn_kernels_base, mx_attn_kernels_avx2, mx_attn_kernels_avx512;

/* Row i of a matrix, from column c on. */
static inline mx_row mx_row_at(const mx_mat *m, int64_t i, int c) {
    return (mx_row){(char *)m->p + (size_t)(i * m->ld + c) * (m->type == MX_F32 ? 4 : 2), m->type};
}

#endif
