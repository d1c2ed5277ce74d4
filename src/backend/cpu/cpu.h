/* cpu.h - what the files of the CPU backend share: the device, its scratch memory, and the ops of each file.
 *
 * The CPU is the reference and the default. Activations are f32. An op runs to its end before it returns: it cuts its
 * work into tasks for the pool, and wait() has nothing to do. Only one op runs at a time on a device, so scratch memory
 * belongs to the op that runs; it grows on demand before the tasks start and is kept for the next op. */
#ifndef MX_BACKEND_CPU_CPU_H
#define MX_BACKEND_CPU_CPU_H
#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "base/threads.h"

/* Memory that grows and is reused, aligned to 64. A zeroed one is empty. */
typedef struct {
    void *p;
    size_t bytes;
} mx_cpu_buf;

struct mx_cpu_matmul_kernels; // matmul_impl.h

typedef struct {
    mx_dev base; // first: an mx_dev * of this backend is an mx_cpu_dev *
    mx_pool *pool;
    int n_worker;     // threads of the pool, the caller included
    mx_isa isa;       // the kernels in use
    bool exact;       // one reduction order for every number of rows, f32 activations
    size_t max_bytes; // of mx_dev_options
    const struct mx_cpu_matmul_kernels *mm;
    mx_cpu_buf mm_x;    // matmul: activations as a kernel wants them
    mx_cpu_buf mm_work; // matmul: n_worker pieces
    mx_cpu_buf mm_rows; // matmul: which row belongs to which expert
    mx_cpu_buf work;    // every other op, which cuts it into pieces for the workers itself
} mx_cpu_dev;

/* At least `bytes` in b; old content is lost when it grows. On failure b keeps what it had. */
mx_status mx_cpu_reserve(mx_cpu_buf *b, size_t bytes, mx_err *err);
void mx_cpu_buf_free(mx_cpu_buf *b);

/* matmul.c. mx_cpu_matmul_init sets d->mm from d->isa; _done frees the mm_* scratch. */
void mx_cpu_matmul_init(mx_cpu_dev *d);
void mx_cpu_matmul_done(mx_cpu_dev *d);
mx_status mx_cpu_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err);
mx_status mx_cpu_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                               const int32_t *ids, int n_row, int x_div, mx_err *err);

#endif
