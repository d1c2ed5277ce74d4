/* attention_kernels.c - scores, softmax and weighted sum of values for a few rows and at most 256 keys.
 *
 * What a row gets depends only on its query, its keys and its range, never on the rows beside it, so a prompt may be cut
 * anywhere: a score is summed over the head in lanes, then over lanes; a value is summed key by key in order; both stay
 * so whichever of the small products below computes them. Keys outside a row's range weigh exactly 0.
 *
 * Scores of R rows x 4 keys (R: 4 with 32 registers, else 2) share their loads. bf16 and f16 keys are converted in the
 * registers when few rows need them (decode), else once into `run` for all rows. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/vec.h"

enum { R = VL == 16 ? 4 : 2 };

VEC int at_least(int a, int b) { return a > b ? a : b; }
VEC int at_most(int a, int b) { return a < b ? a : b; }

/* s[r][j] = q[r] . k[j] for nq rows and nk (4 or 8) keys; ldk in bytes. nq, nk, t are constants where this is inlined. */
VEC void dots(float *s, const float *q, int ldq, const char *k, size_t ldk, mx_dtype t, int nv, int nq,
              int nk) {
    const size_t step = VL * (t == MX_F32 ? 4 : 2);
    vf acc[4][8] = {0};
    for (int v = 0; v < nv; v++, q += VL, k += step) {
        vf x[8];
#pragma GCC unroll 8
        for (int j = 0; j < nk; j++) x[j] = v_load_as(k + (size_t)j * ldk, t);
#pragma GCC unroll 4
        for (int r = 0; r < nq; r++) {
            vf y = v_load(q + r * ldq);
#pragma GCC unroll 8
            for (int j = 0; j < nk; j++) acc[r][j] = v_fma(y, x[j], acc[r][j]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 2
        for (int j = 0; j < nk; j += 4)
            v_sum4(s + r * MX_ATTN_SPLIT + j, acc[r][j], acc[r][j + 1], acc[r][j + 2], acc[r][j + 3]);
}

/* o[r] += sum over n keys of p[r][key] * value[key], on nd vectors of the head. */
VEC void sums(float *o, int ldo, const float *p, const char *v, size_t ldv, mx_dtype t, int n, int nq,
              int nd) {
    const size_t step = VL * (t == MX_F32 ? 4 : 2);
    vf acc[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) acc[r][d] = v_load(o + r * ldo + d * VL);
    for (int i = 0; i < n; i++, v += ldv) {
        vf w[4];
#pragma GCC unroll 4
        for (int r = 0; r < nq; r++) w[r] = v_set(p[r * MX_ATTN_SPLIT + i]);
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) {
            vf x = v_load_as(v + (size_t)d * step, t);
#pragma GCC unroll 4
            for (int r = 0; r < nq; r++) acc[r][d] = v_fma(w[r], x, acc[r][d]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) v_store(o + r * ldo + d * VL, acc[r][d]);
}

/* nq rows with keys [from, to) of a run; k is the address of key `from`, s that of its score in the first row. */
VEC void scores_of(float *s, const float *q, int hdp, const char *k, size_t ldk, mx_dtype t, int nv, int nq,
                   int n) {
    int i = 0;
    if (nq == 1)
        for (; n - i > 4; i += 8) dots(s + i, q, hdp, k + (size_t)i * ldk, ldk, t, nv, 1, 8);
    for (; i < n; i += 4) dots(s + i, q, hdp, k + (size_t)i * ldk, ldk, t, nv, nq, 4);
}

VEC void sums_of(float *o, int hdp, const float *p, const char *v, size_t ldv, mx_dtype t, int nv, int nq,
                 int n) {
    const size_t step = VL * (t == MX_F32 ? 4 : 2);
    int d = 0;
    if (nq == 1)
        for (; nv - d >= 8; d += 8) sums(o + d * VL, hdp, p, v + (size_t)d * step, ldv, t, n, 1, 8);
    for (; nv - d >= 4; d += 4) sums(o + d * VL, hdp, p, v + (size_t)d * step, ldv, t, n, nq, 4);
    for (; d < nv; d++) sums(o + d * VL, hdp, p, v + (size_t)d * step, ldv, t, n, nq, 1);
}

#define SMALL_PRODUCTS(name, type)                                                                           \
    static void scores_##name(float *s, const float *q, int hdp, const char *k, size_t ldk, int nv, int nq,  \
                              int n) {                                                                       \
        if (nq == R)                                                                                         \
            scores_of(s, q, hdp, k, ldk, type, nv, R, n);                                                    \
        else                                                                                                 \
            scores_of(s, q, hdp, k, ldk, type, nv, 1, n);                                                    \
    }                                                                                                        \
    static void sums_##name(float *o, int hdp, const float *p, const char *v, size_t ldv, int nv, int nq,    \
                            int n) {                                                                         \
        if (nq == R)                                                                                         \
            sums_of(o, hdp, p, v, ldv, type, nv, R, n);                                                      \
        else                                                                                                 \
            sums_of(o, hdp, p, v, ldv, type, nv, 1, n);                                                      \
    }
SMALL_PRODUCTS(f32, MX_F32)
SMALL_PRODUCTS(f16, MX_F16)
SMALL_PRODUCTS(bf16, MX_BF16)

typedef struct { // a split as the loops below see it: keys counted from its first
    const mx_attn_task *t;
    int64_t first;
    bool direct;                            // small products read the cache itself
    int a, b;                               // keys that any row needs
    int lo[MX_ATTN_ROWS], hi[MX_ATTN_ROWS]; // keys of a row
} split;

/* NULL for a block that has been given back. */
static const char *address(const split *sp, const void *pool, int key) {
    const mx_attn_task *t = sp->t;
    const int64_t pos = sp->first + key;
    const int64_t block = t->blocks[pos / t->block];
    if (block < 0) return NULL;
    const int64_t row = (block * t->kv->n_kv + t->head) * t->block + pos % t->block;
    return (const char *)pool + row * t->hd * (t->kv->type == MX_F32 ? 4 : 2);
}

/* Keys [key, end) lie together: in one block, or converted in t->run. Gives the address of `key` and the distance. */
static const char *next_run(const split *sp, const void *pool, int key, int *end, size_t *ld) {
    const mx_attn_task *t = sp->t;
    const size_t size = t->kv->type == MX_F32 ? 4 : 2;
    if (sp->direct) {
        int left = t->block - (int)((sp->first + key) & (t->block - 1));
        *end = at_most(key + left, sp->b);
        *ld = (size_t)t->hd * size;
        return address(sp, pool, key);
    }
    *end = at_most((key / MX_ATTN_RUN + 1) * MX_ATTN_RUN, sp->b);
    *ld = (size_t)t->hdp * sizeof(float);
    const char *from = NULL;
    for (int k = key; k < *end; k++) {
        if (k == key || ((sp->first + k) & (t->block - 1)) == 0)
            from = address(sp, pool, k);
        else if (from)
            from += (size_t)t->hd * size;
        if (!from) continue; // up to three keys behind the range, only so that groups of four start evenly
        float *to = t->run + (size_t)(k - key) * (size_t)t->hdp;
        int d = 0;
        for (; d + VL <= t->hd; d += VL) v_store(to + d, v_load_as(from + (size_t)d * size, t->kv->type));
        if (d < t->hd) {
            mx_to_f32(to + d, from + (size_t)d * size, t->kv->type, (size_t)(t->hd - d));
            memset(to + t->hd, 0, (size_t)(t->hdp - t->hd) * sizeof *to);
        }
    }
    return (const char *)t->run;
}

/* All runs of the keys or the values, each with the rows that need it. Rows go R at a time, which share the range from
 * the first's lowest key to the highest of any; the rest one by one. */
static void for_runs(const split *sp, bool values) {
    const mx_attn_task *t = sp->t;
    const int nv = (t->hd + VL - 1) / VL;
    const mx_dtype type = sp->direct ? t->kv->type : MX_F32;
    int end;
    size_t ld;
    for (int key = sp->a; key < sp->b; key = end) {
        const char *p = next_run(sp, values ? t->kv->v : t->kv->k, key, &end, &ld);
        for (int r = 0, nq; r < t->n_row; r += nq) {
            nq = r + R <= t->n_row ? R : 1;
            int lo = sp->lo[r], hi = sp->hi[r];
            for (int i = 1; i < nq; i++) lo = at_most(lo, sp->lo[r + i]), hi = at_least(hi, sp->hi[r + i]);
            // Scores are made 4 at a time, from a multiple of 4; those beyond the range are overwritten or unread.
            int from = values ? at_least(key, lo) : at_least(key, lo & ~3), n = at_most(end, hi) - from;
            if (n <= 0) continue;
            const char *x = p + (size_t)(from - key) * ld;
            float *s = t->s + (size_t)r * MX_ATTN_SPLIT + from, *o = t->o + (size_t)r * (size_t)t->hdp;
            const float *q = t->q + (size_t)r * (size_t)t->hdp;
            if (values) {
                (type == MX_F32   ? sums_f32
                 : type == MX_F16 ? sums_f16
                                  : sums_bf16)(o, t->hdp, s, x, ld, nv, nq, n);
            } else {
                (type == MX_F32   ? scores_f32
                 : type == MX_F16 ? scores_f16
                                  : scores_bf16)(s, q, t->hdp, x, ld, nv, nq, n);
            }
        }
    }
}

/* Turn the scores s[lo, hi) into exp(s - max), and what the row's neighbours may read around them into 0. */
static void soften(float *s, int lo, int hi, float softcap, float *m, float *l) {
    const int a = lo & ~(VL - 1), b = (hi + VL - 1) & ~(VL - 1); // lanes by place in the split
    if (softcap > 0)
        for (int i = a; i < b; i += VL) v_store(s + i, softcap * v_tanh(v_load(s + i) / softcap));
    for (int i = a; i < lo; i++) s[i] = -INFINITY;
    for (int i = hi; i < b; i++) s[i] = -INFINITY;
    vf top = v_set(-INFINITY), sum = {0};
    for (int i = a; i < b; i += VL) top = v_max(top, v_load(s + i));
    *m = v_top(top);
    for (int i = a; i < b; i += VL) {
        vf x = v_exp(v_load(s + i) -
                     *m); // NaN, not 0, should all scores be -inf: a fault must not look like a result
        v_store(s + i, x);
        sum += x;
    }
    *l = v_sum(sum);
    memset(s, 0, (size_t)a * sizeof *s);
    memset(s + b, 0, (size_t)(MX_ATTN_SPLIT - b) * sizeof *s);
}

static void attn_split(const mx_attn_task *t, int64_t first) {
    split sp = {.t = t, .first = first, .a = MX_ATTN_SPLIT, .b = 0};
    for (int r = 0; r < t->n_row; r++) {
        int64_t lo = t->lo[r] - first, hi = t->hi[r] - first;
        sp.lo[r] = lo < 0 ? 0 : lo > MX_ATTN_SPLIT ? MX_ATTN_SPLIT : (int)lo;
        sp.hi[r] = hi < 0 ? 0 : hi > MX_ATTN_SPLIT ? MX_ATTN_SPLIT : (int)hi;
        if (sp.lo[r] < sp.hi[r]) {
            sp.a = at_most(sp.a, sp.lo[r] & ~3);
            sp.b = at_least(sp.b, sp.hi[r]);
        }
        t->m[r] = -INFINITY, t->l[r] = 0;
    }
    memset(t->o, 0, (size_t)t->n_row * (size_t)t->hdp * sizeof *t->o);
    if (sp.a >= sp.b) return;
    // Read in place: whole vectors, and four keys from a multiple of 4 never leave their block.
    sp.direct = t->hd % VL == 0 && t->block % 4 == 0 && (t->n_row <= R || t->kv->type == MX_F32);
    for_runs(&sp, false);
    for (int r = 0; r < t->n_row; r++) {
        float *s = t->s + (size_t)r * MX_ATTN_SPLIT;
        if (sp.lo[r] < sp.hi[r])
            soften(s, sp.lo[r], sp.hi[r], t->softcap, &t->m[r], &t->l[r]);
        else
            memset(s, 0, MX_ATTN_SPLIT * sizeof *s);
    }
    for_runs(&sp, true);
}

static void merge(float *tm, float *tl, float *to, float m, float l, const float *o, int hdp) {
    if (l == 0) return; // no key of this split is the row's
    const bool raise = !(m <= *tm);
    const float c = v_exp1(raise ? *tm - m : m - *tm);
    const vf old = v_set(raise ? c : 1), new = v_set(raise ? 1 : c);
    *tl = raise ? *tl * c + l : *tl + l * c;
    if (raise) *tm = m;
    for (int d = 0; d < hdp; d += VL) v_store(to + d, v_load(to + d) * old + v_load(o + d) * new);
}

static void finish(mx_row out, float tm, float tl, const float *to, const float *sink, int hd) {
    float scale = 1;
    if (sink) {
        float top = tm > *sink ? tm : *sink;
        scale = v_exp1(tm - top);
        tl = tl * scale + v_exp1(*sink - top);
    }
    scale = tl == 0 ? 0 : scale / tl; // no key at all and no sink: zeros
    const size_t size = out.t == MX_F32 ? 4 : 2;
    int d = 0;
    for (; d + VL <= hd; d += VL) v_store_as((char *)out.p + (size_t)d * size, out.t, v_load(to + d) * scale);
    for (; d < hd; d++) {
        float x = to[d] * scale;
        mx_from_f32((char *)out.p + (size_t)d * size, out.t, &x, 1);
    }
}

const mx_attn_kernels VARIANT(mx_attn_kernels) = {.split = attn_split, .merge = merge, .finish = finish};
