/* matmul.c - cuts matrix products into tasks for the pool: which kernel, which x, which outs.
 *
 * A call is a list of products: (rows of x) x (one weight). For mx_cpu_matmul the rows are all rows of x, in passes of at
 * most MX_MM_ROWS; for experts they are the rows routed to one expert, so an expert's weights are read once. First x is
 * brought into the form that the kernels want, once for all products with the same form (Q, K and V; gate and up), then the
 * outs of all products are worked off as units in one parallel region. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/matmul_impl.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    V_ROWS = 12,            // up to so many rows i16v beats i16g (measured: see bench/matmul.c)
    B16_ROWS = 8,           // from so many on b16 beats i16
    UNITS = 24,             // units of work a worker: the last one to finish costs 1 / (2 * UNITS)
    UNIT_COST = 1 << 15,    // least products (weights times rows) of a unit: about 2 us
    PREPARE_COST = 1 << 14, // values of x below which one worker prepares them
};

mx_status mx_cpu_reserve(mx_cpu_buf *b, size_t bytes, mx_err *err) {
    if (bytes <= b->bytes) return MX_OK;
    size_t want = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    void *p = aligned_alloc(64, want);
    if (!p) return mx_fail(err, MX_ENOMEM, "no memory for %zu bytes of CPU scratch", want);
    free(b->p);
    *b = (mx_cpu_buf){p, want};
    return MX_OK;
}

void mx_cpu_buf_free(mx_cpu_buf *b) {
    free(b->p);
    *b = (mx_cpu_buf){0};
}

#if defined(__x86_64__)
static mx_cpu_matmul_kernels with_bf16, with_amx; // those of vnni, and the b16 way
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void add_b16(mx_cpu_matmul_kernels *to, const mx_cpu_matmul_kernels *b16) {
    *to = mx_mm_vnni;
    to->run[MX_MM_B16] = b16->run[MX_MM_B16];
    to->panel[MX_MM_B16] = b16->panel[MX_MM_B16];
    to->tile[MX_MM_B16] = b16->tile[MX_MM_B16];
    to->prepare[MX_MM_B16] = b16->prepare[MX_MM_B16];
}

static void make_tables(void) {
    add_b16(&with_bf16, &mx_mm_bf16);
    add_b16(&with_amx, &mx_mm_amx);
}
#endif

void mx_cpu_matmul_init(mx_cpu_dev *d) {
    d->mm = &mx_mm_scalar;
#if defined(__x86_64__)
    static const mx_cpu_matmul_kernels *const levels[MX_ISA_COUNT] = {
        &mx_mm_scalar, &mx_mm_avx2, &mx_mm_avx512, &mx_mm_vnni, &with_bf16, &with_amx};
    pthread_once(&tables_once, make_tables);
    d->mm = levels[d->isa];
#endif
}

void mx_cpu_matmul_done(mx_cpu_dev *d) {
    mx_cpu_buf_free(&d->mm_x);
    mx_cpu_buf_free(&d->mm_work);
    mx_cpu_buf_free(&d->mm_rows);
}

/* ---- the plan of a call -------------------------------------------------------------------------------- */

typedef struct {
    mx_mm_task task;
    mx_mm_way way;
    int x;          // index of its prepared x, or -1
    int outs;       // outs of a unit
    int first_unit; // units are counted over all products
} product;

typedef struct { // x in one form
    mx_mm_x x;
    mx_mm_way way;
    mx_mm_rows rows;
    int n, first_part, part_rows; // parts are counted over all forms
} form;

typedef struct {
    mx_cpu_dev *dev;
    product *products;
    form *forms;
    int n_product, n_form, n_unit, n_part;
} plan;

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static mx_mm_way choose_way(const mx_cpu_dev *d, const mx_qmat *w, int n) {
    if (d->exact) return MX_MM_F32;
    const mx_cpu_matmul_kernels *k = d->mm;
    bool e8 = w->kind == MX_QUANT_MXFP8, dense = w->kind == MX_QUANT_NONE,
         affine = w->kind == MX_QUANT_AFFINE;
    // f16 and f32 weights, or scales, carry more than bf16 holds
    bool fits_b16 = !(dense || affine) || w->type == MX_BF16;
    // without tiles, bf16 products are no faster than those of 16-bit integers, which keep more
    if (d->isa == MX_ISA_BF16) fits_b16 = e8 || (dense && w->type == MX_BF16);
    if (k->run[MX_MM_B16] && fits_b16 && n >= B16_ROWS) return MX_MM_B16;
    if (dense || e8 || !k->run[MX_MM_I16V]) return MX_MM_F32;
    return n <= V_ROWS ? MX_MM_I16V : MX_MM_I16G;
}

/* Codes in a 16-bit lane: see "pairs" in matmul_impl.h. */
static int lane_codes(const mx_qmat *w) {
    bool words = w->kind != MX_QUANT_NONE && w->kind != MX_QUANT_MXFP8 &&
                 (w->bits == 2 || w->bits == 4 || w->bits == 8);
    return words ? 16 / w->bits : 1;
}

/* The form of the rows that this product wants: an old one of the same rows (from `since` on), or a new one. */
static int find_form(plan *p, int since, mx_mm_way way, const mx_qmat *w, const mx_mm_rows *rows, int n) {
    mx_mm_x x = {.m = lane_codes(w), .group = way == MX_MM_B16 ? 0 : w->group, .k = w->n_in};
    for (int i = since; i < p->n_form; i++) {
        const form *f = &p->forms[i];
        if (f->way == way && f->x.m == x.m && f->x.group == x.group) return i;
    }
    x.k_pad = (w->n_in + MX_MM_STEP - 1) / MX_MM_STEP * MX_MM_STEP;
    x.fold = way == MX_MM_I16G && x.group > 64 ? 64 : x.group;
    if (x.fold)
        x.f_pad = (w->n_in / x.fold + 2 * MX_MM_LANES - 1) / MX_MM_LANES * MX_MM_LANES; // a vector more
    p->forms[p->n_form] = (form){.x = x, .way = way, .rows = *rows, .n = n};
    return p->n_form++;
}

/* Memory of a form; with `base` its pointers are set. */
static size_t place_form(form *f, char *base, int tile) {
    mx_mm_x *x = &f->x;
    size_t rows = (size_t)(f->n + tile - 1) / (size_t)tile * (size_t)tile, q, s, sum = 0;
    if (f->way == MX_MM_I16V) {
        q = rows * (size_t)x->k_pad * 2;
        s = sum = rows * (size_t)x->f_pad * 4;
    } else if (f->way == MX_MM_I16G) {
        q = rows * (size_t)x->k * 2;
        s = sum = rows * (size_t)(x->k / x->fold) * 4;
    } else {
        q = rows * (size_t)x->k_pad * 2;
        s = 0;
    }
    if (base) {
        x->q = (int16_t *)base;
        x->s = (float *)(base + align64(q));
        x->sum = (float *)(base + align64(q) + align64(s));
    }
    return align64(q) + align64(s) + align64(sum);
}

static void run_part(void *arg, int i, int worker) {
    (void)worker;
    const plan *p = arg;
    int f = 0;
    while (f + 1 < p->n_form && p->forms[f + 1].first_part <= i) f++;
    const form *m = &p->forms[f];
    int row = (i - m->first_part) * m->part_rows;
    p->dev->mm->prepare[m->way](&m->x, &m->rows, row, m->n - row < m->part_rows ? m->n - row : m->part_rows);
}

static void run_unit(void *arg, int i, int worker) {
    const plan *p = arg;
    int lo = 0, hi = p->n_product - 1;
    while (lo < hi) { // the last product whose first unit is not behind i
        int mid = (lo + hi + 1) / 2;
        if (p->products[mid].first_unit <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    const product *m = &p->products[lo];
    int out0 = (i - m->first_unit) * m->outs, n_out = m->task.w.n_out;
    char *work = (char *)p->dev->mm_work.p +
                 p->dev->mm_work.bytes / (size_t)p->dev->n_worker / 64 * 64 * (size_t)worker;
    p->dev->mm->run[m->way](&m->task, out0, n_out - out0 < m->outs ? n_out : out0 + m->outs, work);
}

/* Add a product. Forms from `since` on are of the same rows. */
static void add_product(plan *p, int since, const mx_qmat *w, const float *bias, const mx_mm_rows *x,
                        const mx_mm_rows *y, int n) {
    product m = {
        .task = {.w = *w, .bias = bias, .x = *x, .y = *y, .n = n}, .way = choose_way(p->dev, w, n), .x = -1};
    if (m.way != MX_MM_F32) m.x = find_form(p, since, m.way, w, x, n);
    p->products[p->n_product++] = m;
}

static mx_status run_plan(plan *p, mx_err *err) {
    mx_cpu_dev *d = p->dev;
    size_t bytes = 0;
    int most_k = 0;
    double cost = 0;
    for (int i = 0; i < p->n_form; i++) bytes += place_form(&p->forms[i], NULL, d->mm->tile[p->forms[i].way]);
    for (int i = 0; i < p->n_product; i++) {
        const mx_mm_task *t = &p->products[i].task;
        if (t->w.n_in > most_k) most_k = t->w.n_in;
        cost += (double)t->w.n_out * t->w.n_in * t->n;
    }
    MX_TRY(mx_cpu_reserve(&d->mm_x, bytes, err));
    MX_TRY(mx_cpu_reserve(&d->mm_work,
                          ((size_t)MX_MM_WORK + align64((size_t)most_k * 8)) * (size_t)d->n_worker, err));
    char *at = d->mm_x.p;
    for (int i = 0; i < p->n_form; i++) {
        form *f = &p->forms[i];
        int tile = d->mm->tile[f->way];
        at += place_form(f, at, tile);
        int rows = (int)((PREPARE_COST + f->x.k - 1) / f->x.k);
        f->part_rows = (rows + tile - 1) / tile * tile;
        f->first_part = p->n_part;
        p->n_part += (f->n + f->part_rows - 1) / f->part_rows;
    }
    mx_pool_run(d->pool, run_part, p, p->n_part, 1);
    double share = cost / (d->n_worker == 1 ? 1 : d->n_worker * UNITS);
    if (share < UNIT_COST) share = UNIT_COST;
    for (int i = 0; i < p->n_product; i++) {
        product *m = &p->products[i];
        int panel = d->mm->panel[m->way];
        double outs = share / ((double)m->task.w.n_in * m->task.n);
        if (outs > m->task.w.n_out) outs = m->task.w.n_out;
        m->outs = ((int)outs + panel) / panel * panel;
        m->first_unit = p->n_unit;
        p->n_unit += (m->task.w.n_out + m->outs - 1) / m->outs;
        m->task.px = m->x < 0 ? NULL : &p->forms[m->x].x;
    }
    mx_pool_run(d->pool, run_unit, p, p->n_unit, 1);
    return MX_OK;
}

/* ---- the ops ------------------------------------------------------------------------------------------- */

enum { FEW = 8 }; // products that need no memory of their own

mx_status mx_cpu_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    for (; n_mm > FEW; mm += FEW, n_mm -= FEW) MX_TRY(mx_cpu_matmul(dev, mm, FEW, x, err));
    int passes = (x->rows + MX_MM_ROWS - 1) / MX_MM_ROWS;
    for (int pass = 0, r = 0; pass < passes; pass++) {
        int n = (x->rows - r) / (passes - pass); // passes of about the same length, of whole tiles
        if (pass < passes - 1) n = n + 47 > MX_MM_ROWS ? MX_MM_ROWS : (n + 47) / 48 * 48;
        product products[FEW];
        form forms[FEW];
        plan p = {.dev = d, .products = products, .forms = forms};
        mx_mm_rows from = {.p = (float *)x->p + r * x->ld, .ld = x->ld};
        for (int i = 0; i < n_mm; i++) {
            mx_mm_rows to = {.p = (float *)mm[i].y.p + r * mm[i].y.ld, .ld = mm[i].y.ld};
            add_product(&p, 0, mm[i].w, mm[i].bias, &from, &to, n);
        }
        MX_TRY(run_plan(&p, err));
        r += n;
    }
    return MX_OK;
}

mx_status mx_cpu_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                               const int32_t *ids, int n_row, int x_div, mx_err *err) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    if (n_mm < 1 || n_row < 1) return MX_OK;
    int n_expert = mm[0].w->n_stack;
    for (int i = 0; i < n_row; i++) {
        if (ids[i] < 0 || ids[i] >= n_expert) {
            return mx_fail(err, MX_EINTERNAL, "row %d is routed to expert %d of %d", i, ids[i], n_expert);
        }
    }
    // Segments: the rows of one expert, MX_MM_ROWS at most.
    size_t n_seg_max = (size_t)(n_expert < n_row ? n_expert : n_row) + (size_t)n_row / MX_MM_ROWS;
    size_t n_most = n_seg_max * (size_t)n_mm, at_x = align64((size_t)n_row * 4), at_start = 2 * at_x;
    size_t at_products = at_start + align64(((size_t)n_expert + 1) * 4);
    size_t at_forms = at_products + align64(n_most * sizeof(product));
    MX_TRY(mx_cpu_reserve(&d->mm_rows, at_forms + n_most * sizeof(form), err));
    char *base = d->mm_rows.p;
    int32_t *row = (int32_t *)base, *x_row = (int32_t *)(base + at_x), *start = (int32_t *)(base + at_start);
    memset(start, 0, ((size_t)n_expert + 1) * 4);
    for (int i = 0; i < n_row; i++) start[ids[i] + 1]++;
    for (int e = 0; e < n_expert; e++) start[e + 1] += start[e];
    for (int i = 0; i < n_row; i++) row[start[ids[i]]++] = i; // now start[e] is where e ends
    for (int i = 0; i < n_row; i++) x_row[i] = row[i] / x_div;
    plan p = {.dev = d, .products = (product *)(base + at_products), .forms = (form *)(base + at_forms)};
    for (int e = 0, i = 0; e < n_expert; e++) {
        while (i < start[e]) {
            int n = start[e] - i < MX_MM_ROWS ? start[e] - i : MX_MM_ROWS, since = p.n_form;
            mx_mm_rows from = {.p = x->p, .ld = x->ld, .map = x_row + i};
            for (int j = 0; j < n_mm; j++) {
                mx_qmat w = mx_qmat_at(mm[j].w, e);
                mx_mm_rows to = {.p = mm[j].y.p, .ld = mm[j].y.ld, .map = row + i};
                add_product(&p, since, &w, mm[j].bias ? mm[j].bias + (size_t)e * (size_t)w.n_out : NULL,
                            &from, &to, n);
            }
            i += n;
        }
    }
    return run_plan(&p, err);
}
