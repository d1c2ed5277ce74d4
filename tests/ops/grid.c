/* grid.c - the two devices of the grid, memory on them, comparisons, and weights of every format. */
#include "grid.h"

static mx_dev *devices[2];

static mx_dev *open_once(int which, const char *name, const mx_dev_options *opt) {
    mx_err err = {0};
    if (!devices[which]) CHECK_OK(mx_dev_open(&devices[which], name, opt, &err), &err);
    return devices[which];
}

static const char *device_name(void) {
    const char *name = getenv("MX_TEST_DEVICE");
    return name && *name ? name : "cpu";
}
bool grid_is_cpu(void) { return !strcmp(device_name(), "cpu"); }
bool grid_long(void) {
    const char *v = getenv("MX_LONG");
    return v && !strcmp(v, "1");
}

mx_dev *grid_dev(void) {
    const bool first = !devices[0];
    mx_dev *d = open_once(0, device_name(), &(mx_dev_options){.threads = 2});
    if (first) fprintf(stderr, "# device: %s %s\n", d->be->name, d->name);
    return d;
}
mx_dev *grid_twin(void) {
    return open_once(1, "cpu", &(mx_dev_options){.threads = 2, .isa = "scalar", .exact = true});
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static mx_buf *bufs;
static size_t n_buf, cap_buf;

void *grid_put(mx_dev *d, const void *host, size_t bytes) {
    mx_err err = {0};
    if (n_buf == cap_buf) {
        cap_buf = cap_buf ? 2 * cap_buf : 64;
        bufs = need(realloc(bufs, cap_buf * sizeof *bufs));
    }
    CHECK_OK(mx_buf_new(&bufs[n_buf], d, bytes + 16, "a test's buffer", &err), &err);
    void *p = bufs[n_buf++].p;
    if (host) CHECK_OK(mx_op_upload(d, p, host, bytes, &err), &err);
    return p;
}

mx_mat grid_mat(mx_dev *d, const mx_mat *host) {
    mx_mat m = *host;
    m.p = grid_put(d, host->p, (size_t)m.rows * (size_t)m.ld * mx_dtype_size(m.type));
    return m;
}

mx_mat grid_blank(mx_dev *d, int rows, int cols, int gap) {
    uint64_t seed = 7;
    mx_mat host = random_mat(MX_F32, rows, cols, gap, 1, &seed), m = grid_mat(d, &host);
    free(host.p);
    return m;
}

mx_qmat grid_qmat(mx_dev *d, const mx_qmat *host) {
    mx_qmat w = *host;
    const size_t rows = (size_t)w.n_stack * (size_t)w.n_out;
    w.codes = grid_put(d, w.codes, rows * mx_qmat_row_bytes(&w));
    if (w.kind == MX_QUANT_NONE) return w;
    const size_t scales = rows * (size_t)(w.n_in / w.group) * mx_qmat_scale_size(&w);
    w.scales = grid_put(d, w.scales, scales);
    if (w.biases) w.biases = grid_put(d, w.biases, scales);
    return w;
}

void *grid_get(mx_dev *d, const void *p, size_t bytes) {
    mx_err err = {0};
    void *host = need(malloc(bytes + 1));
    CHECK_OK(mx_op_wait(d, &err), &err);
    CHECK_OK(mx_op_download(d, host, p, bytes, &err), &err);
    return host;
}

float *grid_values(mx_dev *d, const mx_mat *m) {
    mx_mat host = *m;
    host.p = grid_get(d, m->p, (size_t)m->rows * (size_t)m->ld * mx_dtype_size(m->type));
    float *f = values_of(&host);
    free(host.p);
    return f;
}

void grid_free(void) {
    while (n_buf) mx_buf_free(&bufs[--n_buf]);
}

/* ---- comparisons ----------------------------------------------------------------------------------------- */

static struct {
    const char *op;
    double worst, bound;
    int n;
} seen[128];

static void note(const char *op, double d, double bound) {
    size_t i = 0;
    while (i + 1 < countof(seen) && seen[i].op && (strcmp(seen[i].op, op) || seen[i].bound != bound)) i++;
    seen[i].op = op, seen[i].bound = bound, seen[i].n++;
    if (d > seen[i].worst) seen[i].worst = d;
}

__attribute__((destructor)) static void report(void) {
    for (size_t i = 0; i < countof(seen) && seen[i].op; i++)
        fprintf(stderr, "# %-22s %5d cases, worst %.2e of %.0e\n", seen[i].op, seen[i].n, seen[i].worst,
                seen[i].bound);
    for (int i = 0; i < 2; i++) mx_dev_close(devices[i]);
    free(bufs);
}

void grid_close(const char *op, double bound, float *got, float *want, size_t n, const char *fmt, ...) {
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < n; i++) {
        if (isfinite(got[i]) && isfinite(want[i])) continue;
        if ((isnan(got[i]) && isnan(want[i])) || got[i] == want[i])
            got[i] = want[i] = 0;
        else
            mx_test_fail(__FILE__, __LINE__, op, "%s: value %zu is %g, not %g", what, i, (double)got[i],
                         (double)want[i]);
    }
    const double d = mx_test_distance(got, want, n);
    note(op, d, bound);
    if (!(d <= bound)) mx_test_fail(__FILE__, __LINE__, op, "%s: distance %g > %g", what, d, bound);
    free(got), free(want);
}

void grid_same(const char *op, void *got, void *want, size_t bytes, const char *fmt, ...) {
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    size_t differ = 0, first = 0;
    for (size_t i = bytes; i-- > 0;)
        if (((char *)got)[i] != ((char *)want)[i]) first = i, differ++;
    note(op, (double)differ, BOUND_SAME);
    if (differ)
        mx_test_fail(__FILE__, __LINE__, op, "%s: %zu of %zu bytes differ, the first is %zu", what, differ,
                     bytes, first);
    free(got), free(want);
}

/* ---- weights --------------------------------------------------------------------------------------------- */

const grid_format grid_formats[] = {
    {MX_QUANT_NONE, 0, 0, MX_F32},     {MX_QUANT_NONE, 0, 0, MX_F16},      {MX_QUANT_NONE, 0, 0, MX_BF16},
    {MX_QUANT_AFFINE, 2, 32, MX_BF16}, {MX_QUANT_AFFINE, 2, 64, MX_BF16},  {MX_QUANT_AFFINE, 2, 128, MX_F16},
    {MX_QUANT_AFFINE, 3, 32, MX_F32},  {MX_QUANT_AFFINE, 3, 64, MX_BF16},  {MX_QUANT_AFFINE, 3, 128, MX_BF16},
    {MX_QUANT_AFFINE, 4, 32, MX_BF16}, {MX_QUANT_AFFINE, 4, 32, MX_F32},   {MX_QUANT_AFFINE, 4, 64, MX_BF16},
    {MX_QUANT_AFFINE, 4, 64, MX_F16},  {MX_QUANT_AFFINE, 4, 128, MX_BF16}, {MX_QUANT_AFFINE, 5, 32, MX_BF16},
    {MX_QUANT_AFFINE, 5, 64, MX_F16},  {MX_QUANT_AFFINE, 5, 128, MX_BF16}, {MX_QUANT_AFFINE, 6, 32, MX_BF16},
    {MX_QUANT_AFFINE, 6, 64, MX_BF16}, {MX_QUANT_AFFINE, 6, 128, MX_F32},  {MX_QUANT_AFFINE, 8, 32, MX_BF16},
    {MX_QUANT_AFFINE, 8, 64, MX_BF16}, {MX_QUANT_AFFINE, 8, 128, MX_F16},  {MX_QUANT_MXFP4, 4, 32, MX_BF16},
    {MX_QUANT_MXFP8, 8, 32, MX_BF16},  {MX_QUANT_NVFP4, 4, 16, MX_BF16},
};
const int grid_n_format = countof(grid_formats);

const char *grid_show(const grid_format *f) {
    static char buf[8][64];
    static int next;
    char *b = buf[next++ % 8];
    snprintf(b, sizeof buf[0], "%s %d bits group %d %s", mx_quant_name(f->kind), f->bits, f->group,
             mx_dtype_name(f->type));
    return b;
}

bool grid_fits(const grid_format *f, int n_in) {
    return f->kind == MX_QUANT_NONE || (n_in % 32 == 0 && n_in % f->group == 0);
}

mx_qmat grid_weight(const grid_format *f, int n_stack, int n_out, int n_in, uint64_t seed) {
    const size_t rows = (size_t)n_stack * (size_t)n_out, n = rows * (size_t)n_in;
    mx_err err = {0};
    float *x = need(malloc(n * sizeof *x));
    for (size_t i = 0; i < n; i++) x[i] = (float)(mx_test_normal(&seed) * 0.05 + 0.003);
    mx_qmat w = {f->kind, f->bits, f->group, f->type, n_stack, n_out, n_in, need(malloc(n * 4)), NULL, NULL};
    if (f->kind == MX_QUANT_NONE) {
        mx_from_f32((void *)(uintptr_t)w.codes, f->type, x, n);
    } else {
        const size_t scales = n / (size_t)f->group * 4;
        w.scales = need(malloc(scales));
        w.biases = f->kind == MX_QUANT_AFFINE ? need(malloc(scales)) : NULL;
        CHECK_OK(mx_quantize(f->kind, f->bits, f->group, f->type, x, (int)rows, n_in,
                             (void *)(uintptr_t)w.codes, (void *)(uintptr_t)w.scales,
                             (void *)(uintptr_t)w.biases, &err),
                 &err);
    }
    free(x);
    return w;
}

void grid_weight_free(mx_qmat *w) {
    free((void *)(uintptr_t)w->codes), free((void *)(uintptr_t)w->scales), free((void *)(uintptr_t)w->biases);
}
