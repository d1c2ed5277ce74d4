/* attention_kernels.c - scores, softmax and weighted sum of values for a few rows and at most 256 keys.
 *
 * What a row gets depends only on its query, its keys and its range, never on the rows beside it, so a prompt
 * may be cut anywhere: a score is summed over the head in lanes, then over lanes; a value is summed key by
 * key in order; both stay so whichever of the small products below computes them. Keys outside a row's range
 * weigh exactly 0.
 *
 * Up to 4 rows share the loads of keys and values. bf16 and f16 are converted in the registers when few rows
 * need them (decode), else once into `run` for all rows. Blocks lie anywhere in memory, where the processor
 * cannot foresee them: the pass over the keys fetches the values of the same positions, the pass over the
 * values the keys of the next split. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/vec.h"

enum {
    R = 4,                 // rows of a small product at most
    FEW_ROWS = 8,          // up to so many rows, convert in the registers
    NK = VL == 16 ? 4 : 2, // keys (or vectors of values) of a small product of 3 or 4 rows
    LINE = 64,             // bytes that a fetch brings
};

VEC int at_least(int a, int b) { return a > b ? a : b; }
VEC int at_most(int a, int b) { return a < b ? a : b; }

VEC void fetch(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(p + i, 0, 2);
}

/* s[r][j] = q[r] . k[j] for nq rows and nk keys; ldk in bytes. nq, nk, t are constants where this is inlined.
 * */
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
    if (nk == 2) { // two rows fill a vector of four sums
#pragma GCC unroll 2
        for (int r = 0; r < nq; r += 2) {
            float sum[4];
            v_sum4(sum, acc[r][0], acc[r][1], acc[r + 1][0], acc[r + 1][1]);
            memcpy(s + r * MX_ATTN_SPLIT, sum, 2 * sizeof *s);
            if (r + 1 < nq) memcpy(s + (r + 1) * MX_ATTN_SPLIT, sum + 2, 2 * sizeof *s);
        }
        return;
    }
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 2
        for (int j = 0; j < nk; j += 4)
            v_sum4(s + r * MX_ATTN_SPLIT + j, acc[r][j], acc[r][j + 1], acc[r][j + 2], acc[r][j + 3]);
}

/* o[r] += sum over n keys of p[r][key] * value[key], on nd vectors of the head. */
VEC void sums(float *o, int ldo, const float *p, const char *v, size_t ldv, mx_dtype t, int n, int nq, int nd,
              const char *ahead) {
    const size_t step = VL * (t == MX_F32 ? 4 : 2);
    vf acc[4][8];
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) acc[r][d] = v_load(o + r * ldo + d * VL);
    for (int i = 0; i < n; i++, v += ldv) {
        if (ahead) fetch(ahead + (size_t)i * ldv, (size_t)nd * step);
        vf x[8];
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) x[d] = v_load_as(v + (size_t)d * step, t);
#pragma GCC unroll 4
        for (int r = 0; r < nq; r++) {
            vf w = v_set(p[r * MX_ATTN_SPLIT + i]);
#pragma GCC unroll 8
            for (int d = 0; d < nd; d++) acc[r][d] = v_fma(w, x[d], acc[r][d]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < nq; r++)
#pragma GCC unroll 8
        for (int d = 0; d < nd; d++) v_store(o + r * ldo + d * VL, acc[r][d]);
}

/* nq rows with n keys from k on; s is the place of the first score of the first row. ahead: rows to fetch
 * meanwhile. */
VEC void scores_of(float *s, const float *q, int hdp, const char *k, size_t ldk, mx_dtype t, int nv, int nq,
                   int n, const char *ahead) {
    const int most = nq == 1 ? 8 : nq == 2 ? 4 : NK;
    for (int i = 0, nk; i < n; i += nk) {
        nk = nq == 1 && n - i <= 4 ? 4 : most;
        if (ahead) fetch(ahead + (size_t)i * ldk, (size_t)nk * ldk);
        if (nq == 1 && nk == 4)
            dots(s + i, q, hdp, k + (size_t)i * ldk, ldk, t, nv, 1, 4);
        else
            dots(s + i, q, hdp, k + (size_t)i * ldk, ldk, t, nv, nq, most);
    }
}

VEC void sums_of(float *o, int hdp, const float *p, const char *v, size_t ldv, mx_dtype t, int nv, int nq,
                 int n, const char *ahead) {
    const size_t step = VL * (t == MX_F32 ? 4 : 2);
    const int most = nq == 1 ? 8 : nq == 2 ? 4 : NK;
    for (int d = 0, nd; d < nv; d += nd) {
        nd = nv - d >= most ? most : 1;
        const size_t at = (size_t)d * step;
        if (nd == 1) // the fetches go with the vectors, so that they are spread over the pass
            sums(o + d * VL, hdp, p, v + at, ldv, t, n, nq, 1, ahead ? ahead + at : NULL);
        else
            sums(o + d * VL, hdp, p, v + at, ldv, t, n, nq, most, ahead ? ahead + at : NULL);
    }
}

#define SMALL_PRODUCTS(name, type)                                                                           \
    static void scores_##name(float *s, const float *q, int hdp, const char *k, size_t ldk, int nv, int nq,  \
                              int n, const char *ahead) {                                                    \
        switch (nq) {                                                                                        \
        case 1: scores_of(s, q, hdp, k, ldk, type, nv, 1, n, ahead); break;                                  \
        case 2: scores_of(s, q, hdp, k, ldk, type, nv, 2, n, ahead); break;                                  \
        case 3: scores_of(s, q, hdp, k, ldk, type, nv, 3, n, ahead); break;                                  \
        default: scores_of(s, q, hdp, k, ldk, type, nv, 4, n, ahead);                                        \
        }                                                                                                    \
    }                                                                                                        \
    static void sums_##name(float *o, int hdp, const float *p, const char *v, size_t ldv, int nv, int nq,    \
                            int n, const char *ahead) {                                                      \
        switch (nq) {                                                                                        \
        case 1: sums_of(o, hdp, p, v, ldv, type, nv, 1, n, ahead); break;                                    \
        case 2: sums_of(o, hdp, p, v, ldv, type, nv, 2, n, ahead); break;                                    \
        case 3: sums_of(o, hdp, p, v, ldv, type, nv, 3, n, ahead); break;                                    \
        default: sums_of(o, hdp, p, v, ldv, type, nv, 4, n, ahead);                                          \
        }                                                                                                    \
    }
SMALL_PRODUCTS(f32, MX_F32)
SMALL_PRODUCTS(f16, MX_F16)
SMALL_PRODUCTS(bf16, MX_BF16)

typedef struct { // a split as the loops below see it: keys counted from its first
    const mx_attn_task *t;
    int64_t first, last;                    // last: one past the last key of any row, in any split
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

/* What to fetch while keys (or values) from `key` on are worked on; NULL: nothing. Fetching a wrong place
 * does no harm. */
static const char *ahead_of(const split *sp, bool values, int key) {
    if (!values) return address(sp, sp->t->kv->v, key);
    return sp->first + key + MX_ATTN_SPLIT < sp->last ? address(sp, sp->t->kv->k, key + MX_ATTN_SPLIT) : NULL;
}

/* Keys [key, end) lie together: in one block, or converted in t->run. Gives the address of `key`, the
 * distance of keys, and what to fetch in the loops over them. */
static const char *next_run(const split *sp, bool values, int key, int *end, size_t *ld, const char **ahead) {
    const mx_attn_task *t = sp->t;
    const void *pool = values ? t->kv->v : t->kv->k;
    const size_t size = t->kv->type == MX_F32 ? 4 : 2, row = (size_t)t->hd * size;
    *ahead = ahead_of(sp, values, key);
    if (sp->direct) {
        int left = t->block - (int)((sp->first + key) & (t->block - 1));
        *end = at_most(key + left, sp->b);
        *ld = row;
        return address(sp, pool, key);
    }
    *end = at_most((key / MX_ATTN_RUN + 1) * MX_ATTN_RUN, sp->b);
    *ld = (size_t)t->hdp * sizeof(float);
    const char *from = NULL;
    for (int k = key; k < *end; k++) {
        if (k == key || ((sp->first + k) & (t->block - 1)) == 0)
            from = address(sp, pool, k);
        else if (from)
            from += row;
        if (!from) continue; // up to three keys behind the range, only so that groups of four start evenly
        if (*ahead) fetch(*ahead + (size_t)(k - key) * row, row);
        float *to = t->run + (size_t)(k - key) * (size_t)t->hdp;
        int d = 0;
        for (; d + VL <= t->hd; d += VL) v_store(to + d, v_load_as(from + (size_t)d * size, t->kv->type));
        if (d < t->hd) {
            mx_to_f32(to + d, from + (size_t)d * size, t->kv->type, (size_t)(t->hd - d));
            memset(to + t->hd, 0, (size_t)(t->hdp - t->hd) * sizeof *to);
        }
    }
    *ahead = NULL;
    return (const char *)t->run;
}

/* All runs of the keys or the values, each with the rows that need it. Rows go R at a time, which share the
 * range from the lowest key to the highest of any. */
static void for_runs(const split *sp, bool values) {
    const mx_attn_task *t = sp->t;
    const int nv = (t->hd + VL - 1) / VL;
    const mx_dtype type = sp->direct ? t->kv->type : MX_F32;
    int end;
    size_t ld;
    const char *ahead;
    for (int key = sp->a; key < sp->b; key = end) {
        const char *p = next_run(sp, values, key, &end, &ld, &ahead);
        for (int r = 0, nq; r < t->n_row; r += nq) {
            nq = at_most(R, t->n_row - r);
            int lo = sp->lo[r], hi = sp->hi[r];
            for (int i = 1; i < nq; i++) lo = at_most(lo, sp->lo[r + i]), hi = at_least(hi, sp->hi[r + i]);
            // Scores are made 4 at a time, from a multiple of 4; those beyond the range are overwritten or
            // unread.
            int from = at_least(key, values ? lo : lo & ~3), n = at_most(end, hi) - from;
            if (n <= 0) continue;
            const char *x = p + (size_t)(from - key) * ld;
            float *s = t->s + (size_t)r * MX_ATTN_SPLIT + from, *o = t->o + (size_t)r * (size_t)t->hdp;
            const float *q = t->q + (size_t)r * (size_t)t->hdp;
            if (values)
                (type == MX_F32   ? sums_f32
                 : type == MX_F16 ? sums_f16
                                  : sums_bf16)(o, t->hdp, s, x, ld, nv, nq, n, ahead);
            else
                (type == MX_F32   ? scores_f32
                 : type == MX_F16 ? scores_f16
                                  : scores_bf16)(s, q, t->hdp, x, ld, nv, nq, n, ahead);
            ahead = NULL; // once is enough
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
        sp.last = t->hi[r] > sp.last ? t->hi[r] : sp.last;
        t->m[r] = -INFINITY, t->l[r] = 0;
    }
    memset(t->o, 0, (size_t)t->n_row * (size_t)t->hdp * sizeof *t->o);
    if (sp.a >= sp.b) return;
    // Read in place: whole vectors, and four keys from a multiple of 4 never leave their block.
    sp.direct = t->hd % VL == 0 && t->block % 4 == 0 && (t->n_row <= FEW_ROWS || t->kv->type == MX_F32);
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
