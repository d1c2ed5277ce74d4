/* ops_util.h - devices and random matrices for the tests of ops. */
#ifndef MX_TEST_OPS_UTIL_H
#define MX_TEST_OPS_UTIL_H
#include "test.h"
#include "backend/ops.h"

/* The instruction sets that the ops besides matrix products are compiled for. */
static const char *const levels[] = {"scalar", "avx2", "avx512"};

/* A CPU device of a level, or a skipped test if this processor lacks it. */
static inline mx_dev *open_level(const char *isa, int threads) {
    mx_dev *dev = NULL;
    mx_err err = {0};
    mx_dev_options opt = {.threads = threads, .isa = isa};
    mx_status st = mx_dev_open(&dev, "cpu", &opt, &err);
    if (st == MX_UNSUPPORTED) SKIP("%s", err.msg);
    CHECK_OK(st, &err);
    return dev;
}

/* One test for each level: LEVEL_TESTS(name) makes scalar_name, avx2_name and avx512_name of static void
 * name(dev). */
#define LEVEL_TESTS(name)                                                                                    \
    TEST(scalar_##name)                                                                                      \
    { at_level(levels[0], name); }                                                                           \
    TEST(avx2_##name)                                                                                        \
    { at_level(levels[1], name); }                                                                           \
    TEST(avx512_##name)                                                                                      \
    { at_level(levels[2], name); }
static inline void at_level(const char *isa, void (*fn)(mx_dev *dev)) {
    mx_dev *dev = open_level(isa, 2);
    fn(dev);
    mx_dev_close(dev);
}

static inline void *need(void *p) {
    if (!p) abort();
    return p;
}

/* A matrix of rows `gap` values wider than their columns, filled with normal numbers; the gaps hold 77. Free
 * p. */
static inline mx_mat random_mat(mx_dtype t, int rows, int cols, int gap, double scale, uint64_t *seed) {
    mx_mat m = {.type = t, .rows = rows, .cols = cols, .ld = cols + gap};
    size_t n = (size_t)rows * (size_t)m.ld;
    float *f = need(malloc((n + 1) * sizeof *f));
    for (size_t i = 0; i < n; i++)
        f[i] = (int64_t)(i % (size_t)m.ld) < cols ? (float)(mx_test_normal(seed) * scale) : 77;
    m.p = need(malloc((n + 1) * 4));
    mx_from_f32(m.p, t, f, n);
    free(f);
    return m;
}

/* The values of a matrix without the gaps, which must still hold 77. Free it. */
static inline float *values_of(const mx_mat *m) {
    float *f = need(malloc(((size_t)m->rows * (size_t)m->ld + 1) * sizeof *f));
    mx_to_f32(f, m->p, m->type, (size_t)m->rows * (size_t)m->ld);
    for (int64_t r = 0; r < m->rows; r++) {
        for (int64_t c = m->cols; c < m->ld; c++)
            CHECK(f[r * m->ld + c] == 77, "the op wrote beside its matrix");
        memmove(f + r * m->cols, f + r * m->ld, (size_t)m->cols * sizeof *f);
    }
    return f;
}

/* What rounding to a type may change, as a relative 2-norm, beside f32 arithmetic. */
static inline double tolerance(mx_dtype t) { return t == MX_F32 ? 2e-6 : t == MX_F16 ? 5e-4 : 4e-3; }

#endif
