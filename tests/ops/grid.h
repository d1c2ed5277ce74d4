/* grid.h - every op on a named device against its twin, the scalar code of the CPU.
 *
 * The device is MX_TEST_DEVICE (default "cpu", which then runs with its best instructions). Its memory is not the host's:
 * inputs go up and results come down through buffers. Shapes sit on and just past the edges of the kernels' tiles; MX_LONG=1 adds
 * larger ones. Bounds are relative 2-norms and stand beside each case: what the output's type, and the types that matrix units
 * take, may round away. */
#ifndef MX_TEST_GRID_H
#define MX_TEST_GRID_H
#include "../unit/ops_util.h"
#include "backend/ops_math.h"

/* Bounds by what is rounded on the way; sums of f32 in another order are in all of them. */
#define BOUND_SAME 0.0  // the same number, bit by bit
#define BOUND_F32 2e-6  // f32 throughout, elementary functions to 2e-7
#define BOUND_SUM 1e-5  // f32, sums of hundreds to thousands of terms of either sign
#define BOUND_F16 3e-4  // matrix inputs or stored values rounded to f16
#define BOUND_BF16 3e-3 // ... to bf16
#define BOUND_ATTN 5e-3 // attention by matrix instructions: q, and the probabilities, as bf16

mx_dev *grid_dev(void); // opened once; a device that does not open fails every test with its reason
mx_dev *grid_twin(void);
bool grid_is_cpu(void);
bool grid_long(void); // MX_LONG=1

/* Copies on device d that grid_free() gives back. host NULL: zeros. */
void *grid_put(mx_dev *d, const void *host, size_t bytes);
mx_mat grid_mat(mx_dev *d, const mx_mat *host);
mx_mat grid_blank(mx_dev *d, int rows, int cols, int gap); // random f32, gaps of 77: an output
mx_qmat grid_qmat(mx_dev *d, const mx_qmat *host);
void *grid_get(mx_dev *d, const void *p, size_t bytes); // malloc'd
float *grid_values(mx_dev *d, const mx_mat *m); // without the gaps, which must still hold 77; malloc'd
void grid_free(void);

/* The relative distance of got from want is at most `bound`; values that are not finite must be so in both (NaN matches NaN).
 * The worst of each op is printed at the end. Frees both arrays. */
void grid_close(const char *op, double bound, float *got, float *want, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
void grid_same(const char *op, void *got, void *want, size_t bytes, const char *fmt,
               ...) // all bytes; frees both
    __attribute__((format(printf, 5, 6)));

/* A random weight of a format. Free with grid_weight_free. */
typedef struct {
    mx_quant kind;
    int bits, group;
    mx_dtype type;
} grid_format;
extern const grid_format grid_formats[];
extern const int grid_n_format;
const char *grid_show(const grid_format *f);
bool grid_fits(const grid_format *f, int n_in); // whether rows of n_in exist in the format
mx_qmat grid_weight(const grid_format *f, int n_stack, int n_out, int n_in, uint64_t seed);
void grid_weight_free(mx_qmat *w);

/* Both devices in turn: BOTH(d) { ... } with out[0] for the device under test, out[1] for the twin. */
#define BOTH(d, i)                                                                                           \
    for (int i = 0; i < 2; i++)                                                                              \
        for (mx_dev *d = i ? grid_twin() : grid_dev(); d; d = NULL)

#endif
