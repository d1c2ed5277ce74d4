/* ops_matmul.c - plans matrix products: kernels by weight format and number of rows, several products of one x in a launch. */
#include "backend/gpu/gpu.h"
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
} around;

/* Up to 8 rows of x: each weight is read once for all of them. */
static mx_status few_rows(mx_gpu_dev *d, const mx_k_out *o, int n_out, const mx_mat *x, int row, int n,
                          plan p, around e, const int32_t *ids, uint32_t grid_y, uint32_t grid_z, bool x_by_z,
                          mx_err *err) {
    char name[48];
    bool eight = n > 2;
    mx_k_matvec a = {.x = (const float *)x->p + (size_t)row * (size_t)x->ld,
                     .x_ld = (uint64_t)x->ld,
                     .ids = ids,
                     .n = (uint32_t)n,
                     .x_by_z = x_by_z,
                     .act = e.act,
                     .norm = e.norm,
                     .eps = e.eps,
                     .inv_n = 1.0f / (float)o->w.n_in};
    memcpy(a.out, o, (size_t)n_out * sizeof *o);
    for (int i = 0; i < n_out && !ids; i++) {
        a.out[i].y += (size_t)row * a.out[i].y_ld;
        if (a.out[i].add) a.out[i].add += (size_t)row * a.out[i].add_ld;
    }
    uint32_t tile = p.odd ? 1 : p.plain ? 2 : eight ? 32 : 16, threads = 256;
    if (e.glu) tile = p.plain ? 1 : 16;
    a.n_tile = set_tiles(a.out, e.glu ? 1 : n_out, tile);
    if (e.glu)
        snprintf(name, sizeof name, "glu%s_%s%s", eight ? "8" : "", p.kind, p.suffix);
    else if (p.odd)
        snprintf(name, sizeof name, "matvec_any_%s", p.kind);
    else
        snprintf(name, sizeof name, "matvec%s_%s%s", eight ? "8" : "", p.kind, p.suffix);
    uint32_t blocks = a.n_tile;
    if (p.plain) {
        blocks = mx_div_up(a.n_tile, threads / 32);
    } else {
        uint32_t waves = mx_div_up(a.out[0].w.n_in, 128);
        threads = 32 * (waves > 8 ? 8 : waves);
    }
    return LAUNCH(d, p.plain ? "matvec_dense" : "matvec", name, blocks, grid_y, grid_z, threads, &a);
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
            MX_TRY(few_rows(d, o, n, x, row, rows, p, (around){0}, NULL, 1, 1, false, err));
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
        if (n_row <= 4 * w->n_stack || w->n_stack > 512) { // few rows an expert: read its weights for each
            bool shared = x_div > 1;
            MX_TRY(few_rows(d, o, n, x, 0, 1, p, (around){0}, ids, shared ? (uint32_t)x_div : (uint32_t)n_row,
                            shared ? (uint32_t)(n_row / x_div) : 1, shared, err));
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
