/* ops_matmul.c - plans matrix products: kernels by weight format and number of rows, several products of one x in a launch. */
#include "backend/gpu/gpu.h"
#include "backend/ports.h"
#include <stdio.h>
#include <string.h>

const char *mx_gpu_kind(const mx_qmat *w) {
    static const char *const affine[] = {"", "", "a2", "a3", "a4", "a5", "a6", "", "a8"};
    switch (w->kind) {
    case MX_QUANT_NONE: return w->type == MX_F32 ? "f32" : w->type == MX_F16 ? "f16" : "bf16";
    case MX_QUANT_AFFINE: return affine[w->bits];
    case MX_QUANT_MXFP4: return "mxfp4";
    case MX_QUANT_MXFP8: return "mxfp8";
    case MX_QUANT_NVFP4: break;
    }
    return "nvfp4";
}

mx_k_weights mx_gpu_weights(const mx_qmat *w) {
    return (mx_k_weights){.codes = w->codes,
                          .scales = w->scales,
                          .biases = w->biases,
                          .n_in = (uint32_t)w->n_in,
                          .n_out = (uint32_t)w->n_out,
                          .group_shift = w->group ? (uint32_t)__builtin_ctz((unsigned)w->group) : 0,
                          .scale_type = w->type == MX_F32   ? 0
                                        : w->type == MX_F16 ? 1
                                                            : 2};
}

/* How the kernels of a format are called, and which file has them. */
typedef struct {
    bool odd;   // shapes or alignment that only the slow kernels take
    bool plain; // f32 arithmetic: dense files
    const char *kind, *suffix;
} plan;

static bool aligned(const void *p, size_t n) { return ((uintptr_t)p & (n - 1)) == 0; }

static plan plan_of(const mx_qmat *w, const mx_mat *x) {
    plan p = {.kind = mx_gpu_kind(w), .suffix = ""};
    bool x_ok = aligned(x->p, 16) && x->ld % 4 == 0;
    if (w->kind == MX_QUANT_NONE) {
        int step = w->type == MX_F32 ? 4 : 32;
        p.odd = w->n_in % step || !x_ok || !aligned(w->codes, 16);
        p.plain = w->type == MX_F32 || p.odd;
    } else if (w->kind == MX_QUANT_AFFINE && (w->type != MX_BF16 || w->group == 32)) {
        p.suffix = "_odd";
    }
    return p;
}

/* Kernels of codes load four values of x at once. */
static mx_status check_x(const mx_qmat *w, const mx_mat *x, mx_err *err) {
    if (w->kind == MX_QUANT_NONE || (aligned(x->p, 16) && (x->rows < 2 || x->ld % 4 == 0))) return MX_OK;
    return mx_fail(err, MX_UNSUPPORTED,
                   "matmul: quantized weights want rows of x at multiples of 16 bytes, not %lld values apart",
                   (long long)x->ld);
}

static bool same_launch(const mx_qmat *a, const mx_qmat *b) {
    return a->kind == b->kind && a->bits == b->bits && a->group == b->group && a->type == b->type &&
           a->n_in == b->n_in;
}

static mx_k_out out_of(const mx_qmat *w, const mx_mat *y, const float *bias) {
    mx_k_out o = {.w = mx_gpu_weights(w), .y = y->p, .bias = bias, .y_ld = (uint64_t)y->ld};
    if (w->n_stack > 1) {
        o.code_stride = (uint64_t)mx_qmat_row_bytes(w) * (uint64_t)w->n_out;
        if (w->kind != MX_QUANT_NONE)
            o.scale_stride =
                (uint64_t)mx_qmat_scale_size(w) * (uint64_t)(w->n_in / w->group) * (uint64_t)w->n_out;
    }
    return o;
}

/* Tiles of `rows` outputs for each of n products; returns how many in all. */
static uint32_t set_tiles(mx_k_out *o, int n, uint32_t rows) {
    uint32_t total = 0;
    for (int i = 0; i < n; i++) {
        total += mx_div_up(o[i].w.n_out, rows);
        o[i].tile_end = total;
    }
    for (int i = n; i < MX_K_OUTS; i++) o[i].tile_end = total;
    return total;
}

/* What a matrix-vector launch does besides its products. */
typedef struct {
    const float *norm; // [n_in]: rms_norm(x) * norm takes the place of x; NULL: x as it is
    float eps;
    bool glu; // y = act(product 0) * product 1, not for odd plans
    mx_act act;
    int n_sum; // not 0: row i of y is the sum of this many experts, each times its weight
    const float *sum_weights;
} around;

typedef struct
{ // experts: which matrix each row takes, and how rows are spread over the grid; ids NULL: none
    const int32_t *ids;
    uint32_t grid_y, grid_z;
    bool x_by_z;
} expert_rows;

enum { ONE_VALUES = 16384 }; // of x in a block's shared memory: kernels/matvec_one.h

static bool is_nvidia(const mx_gpu_dev *d) { return !strncmp(d->arch, "sm_", 3); }

/* Values of n_in that a wave of matvec_one takes at a step. */
static int one_step(const mx_gpu_dev *d, const mx_qmat *w, bool glu) {
    if (is_nvidia(d)) return w->kind == MX_QUANT_NONE ? 128 : 256;
    return w->kind == MX_QUANT_NONE ? 32
           : w->bits <= 4           ? (glu ? 64 : 128)
           : w->bits <= 8           ? (glu ? 32 : 64)
                                    : 32;
}

/* Waves of a block for `steps` of work a tile, of which all tiles make their way through a device that holds `most` waves a
 * compute unit at a time: what ends first, with half a step for what a tile costs besides. */
static uint32_t waves_of(const mx_gpu_dev *d, uint32_t most, uint32_t steps, uint32_t tiles,
                         uint32_t *blocks) {
    const uint32_t units = (uint32_t)d->info.compute_units;
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t w = most; w >= 4; w--) {
        const uint32_t slots = units * (most / w),
                       cost = mx_div_up(tiles, slots) * (2 * mx_div_up(steps, w) + 1);
        if (cost >= least) continue;
        least = cost, best = w;
        *blocks = slots;
    }
    return best;
}

/* One row of x, or of experts one at a time. */
static mx_status one_row(mx_gpu_dev *d, mx_k_matvec *a, int n_out, const mx_qmat *w, const char *kind,
                         around e, expert_rows r, mx_err *err) {
    static const char *const types[] = {"_f32", "_f16", ""};
    char name[48];
    const uint32_t step = (uint32_t)one_step(d, w, e.glu), one = mx_div_up((uint32_t)w->n_in, step);
    const uint32_t steps = e.n_sum                   ? one * (uint32_t)e.n_sum
                           : one > ONE_VALUES / step ? ONE_VALUES / step
                                                     : one;
    a->n_tile = set_tiles(a->out, e.glu ? 1 : n_out, is_nvidia(d) ? 8 : 16);
    snprintf(name, sizeof name, "%s_%s%s", e.glu ? "glu" : "matvec", kind,
             w->kind == MX_QUANT_AFFINE ? types[a->out[0].w.scale_type] : "");
    const char *file = e.glu ? "glu_one" : "matvec_one";
    uint32_t most = 0, blocks = 0;
    MX_TRY(mx_gpu_most_threads(d, file, name, &most, err));
    most = most / 32 < 16 ? most / 32 : 16;
    const uint32_t rows = r.grid_y * r.grid_z, waves = waves_of(d, most, steps, a->n_tile * rows, &blocks);
    blocks = mx_div_up(blocks, rows);
    return LAUNCH(d, file, name, blocks < a->n_tile ? blocks : a->n_tile, r.grid_y, r.grid_z, 32 * waves, a);
}

/* Up to 8 rows of x: each weight is read once for all of them. Rows `row` to row + n of x, of experts all. */
static mx_status few_rows(mx_gpu_dev *d, const mx_k_out *o, int n_out, const mx_qmat *w, const mx_mat *x,
                          int row, int n, plan p, around e, expert_rows r, mx_err *err) {
    char name[48];
    mx_k_matvec a = {.x = (const float *)x->p + (size_t)row * (size_t)x->ld,
                     .x_ld = (uint64_t)x->ld,
                     .ids = r.ids,
                     .n = (uint32_t)n,
                     .x_by_z = r.x_by_z,
                     .act = e.act,
                     .norm = e.norm,
                     .eps = e.eps,
                     .inv_n = 1.0f / (float)o->w.n_in,
                     .n_sum = (uint32_t)e.n_sum,
                     .sum_weights = e.sum_weights};
    memcpy(a.out, o, (size_t)n_out * sizeof *o);
    for (int i = 0; i < n_out && !r.ids; i++) {
        a.out[i].y += (size_t)row * a.out[i].y_ld;
        if (a.out[i].add) a.out[i].add += (size_t)row * a.out[i].add_ld;
    }
    if (!r.ids) r.grid_y = r.grid_z = 1;
    if (n == 1 && !p.plain) return one_row(d, &a, n_out, w, p.kind, e, r, err);
    if (p.plain) {
        a.n_tile = set_tiles(a.out, e.glu ? 1 : n_out, p.odd || e.glu ? 1 : 2);
        if (p.odd)
            snprintf(name, sizeof name, "matvec_any_%s", p.kind);
        else
            snprintf(name, sizeof name, "%s%s_%s", e.glu ? "glu" : "matvec", n > 2 ? "8" : "", p.kind);
        return LAUNCH(d, "matvec_dense", name, mx_div_up(a.n_tile, 8), r.grid_y, r.grid_z, 256, &a);
    }
    const uint32_t waves = mx_div_up(a.out[0].w.n_in, 128);
    a.n_tile = set_tiles(a.out, e.glu ? 1 : n_out, e.glu ? 16 : 32);
    snprintf(name, sizeof name, "%s8_%s%s", e.glu ? "glu" : "matvec", p.kind, p.suffix);
    return LAUNCH(d, "matvec", name, a.n_tile, 1, 1, 32 * (waves > 8 ? 8 : waves), &a);
}

/* The size of tile that fills the device: rows of x, columns of y, threads. */
typedef struct {
    const char *name;
    uint32_t rows, cols, threads;
} tile_size;

static tile_size tile_for(plan p, int n, uint32_t n_col, const mx_gpu_dev *d) {
    static const tile_size dense = {"matmul", 64, 64, 256}, small = {"matmul32", 32, 128, 128},
                           medium = {"matmul64", 64, 128, 128}, large = {"matmul128", 128, 256, 256};
    if (p.plain) return dense;
    if (n <= 32) return small;
    uint32_t blocks = mx_div_up((uint32_t)n, 128) * mx_div_up(n_col, 256);
    return blocks >= (uint32_t)d->info.compute_units ? large : medium;
}

static mx_status many_rows(mx_gpu_dev *d, const mx_k_out *o, int n_out, const mx_mat *x, plan p,
                           const mx_k_expert_tiles *sorted, tile_size t, mx_err *err) {
    char name[48];
    mx_k_matmul a = {.x = x->p, .x_ld = (uint64_t)x->ld, .n = (uint32_t)x->rows};
    memcpy(a.out, o, (size_t)n_out * sizeof *o);
    a.n_tile = set_tiles(a.out, n_out, t.cols);
    uint32_t grid_x = mx_div_up(a.n, t.rows);
    if (sorted) {
        a.rows = sorted->rows;
        a.x_rows = sorted->x_rows;
        a.tiles = sorted->tiles;
        grid_x = sorted->max_tile;
    }
    bool any = p.plain && strcmp(p.kind, "f32");
    snprintf(name, sizeof name, "%s%s_%s", t.name, any ? "_any" : "", p.kind);
    return LAUNCH(d, p.plain ? "matmul_dense" : "matmul", name, grid_x, a.n_tile, 1, t.threads, &a);
}

/* ---- sm_90a: kernels/matmul_wide.c ---------------------------------------------------------------------------------- */

enum { WIDE_STAGES = 6, WIDE_STEP = 128, WIDE_COLS = 128, WIDE_THREADS = 256 };

static bool takes_wide(const mx_gpu_dev *d, const mx_qmat *w, plan p) {
    return !strcmp(d->arch, "sm_90a") && !p.plain && (w->kind != MX_QUANT_AFFINE || w->type == MX_BF16);
}

/* Rows of a tile: what makes the rounds of blocks through the device cost the least. */
static uint32_t wide_rows(const mx_gpu_dev *d, int n, uint32_t n_col) {
    static const struct {
        uint32_t rows, cost; // measured: microseconds of a round with 4096 values of n_in
    } sizes[] = {{256, 44}, {128, 33}, {64, 22}, {32, 18}};
    uint32_t best = 0, least = UINT32_MAX;
    for (size_t i = 0; i < countof(sizes); i++) {
        const uint32_t blocks = mx_div_up((uint32_t)n, sizes[i].rows) * mx_div_up(n_col, WIDE_COLS);
        const uint32_t cost = mx_div_up(blocks, (uint32_t)d->info.compute_units) * sizes[i].cost;
        if (cost < least) least = cost, best = sizes[i].rows;
    }
    return best;
}

/* Scratch memory for x: rows up to whole tiles, n_in up to whole steps, 2 bytes a value. */
static size_t wide_bytes(uint32_t n_row, uint32_t n_in) {
    return (size_t)n_row * mx_div_up(n_in, WIDE_STEP) * WIDE_STEP * 2;
}

/* x goes to 16 bits in scratch memory (`to`, wide_bytes of it), in the order of the kernels; then the products. */
static mx_status wide(mx_gpu_dev *d, const mx_k_out *o, int n_out, const mx_mat *x, plan p,
                      const mx_k_expert_tiles *sorted, uint32_t tile_rows, void *to, mx_err *err) {
    char file[32], name[32];
    const uint32_t n_tile = sorted ? sorted->max_tile : mx_div_up((uint32_t)x->rows, tile_rows);
    mx_k_wide_x in = {.x = x->p,
                      .x_ld = (uint64_t)x->ld,
                      .to = to,
                      .n = (uint32_t)x->rows,
                      .n_row = n_tile * tile_rows,
                      .n_in = o->w.n_in,
                      .tile_shift = mx_log2_up(tile_rows)};
    mx_k_matmul a = {.x = to, .x_ld = in.n_row, .n = in.n};
    memcpy(a.out, o, (size_t)n_out * sizeof *o);
    a.n_tile = set_tiles(a.out, n_out, WIDE_COLS);
    if (sorted) {
        in.x_rows = sorted->x_rows;
        in.tiles = a.tiles = sorted->tiles;
        a.rows = sorted->rows;
    }
    snprintf(file, sizeof file, "matmul_wide_%s", p.kind);
    snprintf(name, sizeof name, "wide_x_%s", p.kind);
    MX_TRY(LAUNCH(d, file, name, in.n_row / 16, mx_div_up(in.n_in, WIDE_STEP), 1, 256, &in));
    snprintf(name, sizeof name, "wide%u_%s", tile_rows, p.kind);
    const uint32_t shared = WIDE_STAGES * (tile_rows * 128 + 16) + 1024;
    return mx_gpu_launch_shared(d, file, name, n_tile, a.n_tile, 1, WIDE_THREADS, shared, (void *[]){&a},
                                err);
}

enum { FEW = 8, TWICE_FEW = 16 };

mx_status mx_gpu_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    for (int i = 0, n; i < n_mm; i += n) {
        plan p = plan_of(mm[i].w, x);
        MX_TRY(check_x(mm[i].w, x, err));
        mx_k_out o[MX_K_OUTS] = {0};
        uint32_t n_col = 0;
        for (n = 0; n < MX_K_OUTS && i + n < n_mm && same_launch(mm[i].w, mm[i + n].w) &&
                    plan_of(mm[i + n].w, x).odd == p.odd;
             n++) {
            o[n] = out_of(mm[i + n].w, &mm[i + n].y, mm[i + n].bias);
            n_col += o[n].w.n_out;
        }
        if (x->rows > TWICE_FEW && takes_wide(d, mm[i].w, p)) {
            const uint32_t rows = wide_rows(d, x->rows, n_col);
            const uint32_t n_row = mx_div_up((uint32_t)x->rows, rows) * rows;
            MX_TRY(mx_gpu_scratch(d, wide_bytes(n_row, o->w.n_in), err));
            MX_TRY(wide(d, o, n, x, p, NULL, rows, d->scratch, err));
            continue;
        }
        if (x->rows > TWICE_FEW) {
            MX_TRY(many_rows(d, o, n, x, p, NULL, tile_for(p, x->rows, n_col, d), err));
            continue;
        }
        for (int row = 0; row < x->rows; row += FEW) {
            int rows = x->rows - row < FEW ? x->rows - row : FEW;
            MX_TRY(few_rows(d, o, n, mm[i].w, x, row, rows, p, (around){0}, (expert_rows){0}, err));
        }
    }
    return MX_OK;
}

/* Sort the rows by expert, into scratch memory; `rest` is what comes behind, x_bytes of it for each row of the tiles. */
static mx_status sort_rows(mx_gpu_dev *d, mx_k_expert_tiles *t, const int32_t *ids, int n_row, int x_div,
                           int n_expert, uint32_t tile_rows, size_t x_bytes, void **rest, mx_err *err) {
    *t = (mx_k_expert_tiles){.ids = ids,
                             .n_row = (uint32_t)n_row,
                             .n_expert = (uint32_t)n_expert,
                             .tile_shift = mx_log2_up(tile_rows),
                             .x_magic = ((1ull << 32) + (uint64_t)x_div - 1) / (uint64_t)x_div,
                             .max_tile = mx_div_up((uint32_t)n_row, tile_rows) + (uint32_t)n_expert};
    size_t own = ((size_t)n_row * 2 + (size_t)t->max_tile * 4) * sizeof(int32_t);
    own = (own + 255) & ~(size_t)255;
    MX_TRY(mx_gpu_scratch(d, own + t->max_tile * tile_rows * x_bytes, err));
    t->rows = d->scratch;
    t->x_rows = t->rows + n_row;
    t->tiles = t->x_rows + n_row;
    *rest = (char *)d->scratch + own;
    return LAUNCH(d, "matmul_experts", "expert_tiles", 1, 1, 1, 512, t);
}

/* Rows of experts over the grid: x_div rows share one of x. */
static expert_rows spread(const int32_t *ids, int n_row, int x_div) {
    const bool shared = x_div > 1;
    return (expert_rows){ids, (uint32_t)(shared ? x_div : n_row), shared ? (uint32_t)(n_row / x_div) : 1,
                         shared};
}

static bool few_an_expert(const mx_qmat *w, int n_row) { return n_row <= 4 * w->n_stack || w->n_stack > 512; }

mx_status mx_gpu_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                               const int32_t *ids, int n_row, int x_div, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    for (int i = 0, n; i < n_mm; i += n) {
        const mx_qmat *w = mm[i].w;
        plan p = plan_of(w, x);
        MX_TRY(check_x(w, x, err));
        mx_k_out o[MX_K_OUTS] = {0};
        for (n = 0; n < MX_K_OUTS && i + n < n_mm && same_launch(w, mm[i + n].w) &&
                    plan_of(mm[i + n].w, x).odd == p.odd;
             n++)
            o[n] = out_of(mm[i + n].w, &mm[i + n].y, mm[i + n].bias);
        if (few_an_expert(w, n_row)) { // few rows an expert: read its weights for each
            MX_TRY(few_rows(d, o, n, w, x, 0, 1, p, (around){0}, spread(ids, n_row, x_div), err));
            continue;
        }
        mx_k_expert_tiles sorted;
        void *rest = NULL;
        const int usual = n_row / w->n_stack;
        if (takes_wide(d, w, p)) {
            const uint32_t rows = usual <= 16 ? 32 : usual <= 48 ? 64 : 128;
            MX_TRY(sort_rows(d, &sorted, ids, n_row, x_div, w->n_stack, rows, wide_bytes(1, o->w.n_in), &rest,
                             err));
            MX_TRY(wide(d, o, n, x, p, &sorted, rows, rest, err));
            continue;
        }
        tile_size t = tile_for(p, usual < 32 ? 32 : 64, 0, d);
        MX_TRY(sort_rows(d, &sorted, ids, n_row, x_div, w->n_stack, t.rows, 0, &rest, err));
        MX_TRY(many_rows(d, o, n, x, p, &sorted, t, err));
    }
    return MX_OK;
}

/* ---- products with what stands around them: one launch, or refused -------------------------------------------------- */

#define REFUSE(...) return mx_fail(err, MX_UNSUPPORTED, __VA_ARGS__)

mx_status mx_gpu_takes_product(const mx_dev *dev, const void *args, mx_err *err) {
    const mx_gpu_dev *d = (const mx_gpu_dev *)dev;
    const mx_product *q = args;
    const mx_qmat *w = q->mm[0].w;
    const plan p = plan_of(w, &q->x);
    const int rows = q->ids ? 1 : q->x.rows, step = one_step(d, w, q->glu);
    MX_TRY(check_x(w, &q->x, err));
    if (rows > FEW) REFUSE("%d rows: up to %d are one launch", rows, FEW);
    if (q->n_mm > MX_K_OUTS) REFUSE("%d products: up to %d are one launch", q->n_mm, MX_K_OUTS);
    for (int i = 0; i < q->n_mm; i++) {
        if (!same_launch(w, q->mm[i].w)) REFUSE("weights of different formats are products of their own");
        if (plan_of(q->mm[i].w, &q->x).odd)
            REFUSE("%d values a row, or their alignment, are for slow kernels", w->n_in);
    }
    if (q->norm && !aligned(q->norm, 16)) REFUSE("the norm's weights are not aligned");
    if (q->ids && !few_an_expert(w, q->x.rows * (q->weights ? 1 : q->k)))
        REFUSE("%d rows are sorted by expert first", q->x.rows * q->k);
    if (p.plain) {
        if (q->weights) REFUSE("float32 experts are added up by themselves");
        return MX_OK;
    }
    if (rows == 1 && (q->norm || q->glu) && w->n_in > ONE_VALUES)
        REFUSE("%d values a row: with a norm or a gate up to %d are one launch", w->n_in, ONE_VALUES);
    if (q->weights && (w->n_in + step - 1) / step * step * q->k > ONE_VALUES)
        REFUSE("%d experts of %d values: up to %d in all are one launch", q->k, w->n_in, ONE_VALUES);
    return MX_OK;
}

mx_status mx_gpu_product(mx_dev *dev, const void *args, mx_err *err) {
    mx_gpu_dev *d = (mx_gpu_dev *)dev;
    const mx_product *q = args;
    const mx_qmat *w = q->mm[0].w;
    const plan p = plan_of(w, &q->x);
    around e = {.norm = q->norm, .eps = q->eps, .glu = q->glu, .act = q->act};
    mx_k_out o[MX_K_OUTS] = {0};
    for (int i = 0; i < q->n_mm; i++) {
        o[i] = out_of(q->mm[i].w, &q->mm[i].y, q->mm[i].bias);
        if (q->add) o[i].add = o[i].y, o[i].add_ld = o[i].y_ld;
    }
    expert_rows r = {0};
    if (q->weights) {
        e.n_sum = q->k;
        e.sum_weights = q->weights;
        r = (expert_rows){.ids = q->ids, .grid_y = 1, .grid_z = (uint32_t)(q->x.rows / q->k)};
    } else if (q->ids) {
        r = spread(q->ids, q->x.rows * q->k, q->k);
    }
    return few_rows(d, o, q->n_mm, w, &q->x, 0, q->ids ? 1 : q->x.rows, p, e, r, err);
}
