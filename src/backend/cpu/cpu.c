/* cpu.c - the CPU as a device: its memory, its name, and the table of its ops. */
#include "backend/cpu/ops_impl.h"
#include "backend/ports.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The processor's name without its padding: "AMD EPYC". */
static void brand(char out[64]) {
    strcpy(out, "CPU");
#if defined(__x86_64__)
    unsigned r[4];
    char raw[49] = {0};
    if ((unsigned)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++) {
        __cpuid(0x80000002u + i, r[0], r[1], r[2], r[3]);
        memcpy(raw + 16 * i, r, 16);
    }
    size_t n = 0;
    for (const char *p = raw; *p; p++) {
        if (*p == ' ' && (n == 0 || out[n - 1] == ' ')) continue;
        out[n++] = *p;
    }
    while (n && out[n - 1] == ' ') n--;
    if (n)
        out[n] = 0;
    else
        strcpy(out, "CPU");
#endif
}

static void cpu_close(mx_dev *dev) {
    mx_cpu_dev *d = (mx_cpu_dev *)dev;
    mx_cpu_matmul_done(d);
    mx_cpu_buf_free(&d->work);
    mx_pool_free(d->pool);
    free(d);
}

static mx_status cpu_open(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err) {
    if (index != 0) return mx_fail(err, MX_ENOTFOUND, "cpu:%d: there is only one CPU device, 0", index);
    mx_isa isa;
    MX_TRY(mx_isa_choose(&isa, opt->isa, err));
    mx_cpu_dev *d = calloc(1, sizeof *d);
    if (!d) return mx_fail(err, MX_ENOMEM, "no memory for a device");
    mx_status st = mx_pool_new(&d->pool, opt->threads, err);
    if (st != MX_OK) {
        free(d);
        return st;
    }
    d->base = (mx_dev){.be = &mx_backend_cpu, .act = MX_F32};
    d->n_worker = mx_pool_size(d->pool);
    d->isa = isa;
    d->exact = opt->exact;
    d->max_bytes = opt->max_bytes;
    char name[64];
    brand(name);
    snprintf(d->base.isa, sizeof d->base.isa, "%s", mx_isa_name(isa));
    snprintf(d->base.name, sizeof d->base.name, "%.56s (%d thread%s, %s)", name, d->n_worker,
             d->n_worker == 1 ? "" : "s", mx_isa_name(isa));
    mx_cpu_matmul_init(d);
    *out = &d->base;
    return MX_OK;
}

/* Large pieces come from the system: zeroed pages that cost nothing until they are used. */
enum { ALIGN = 256, LARGE = 1 << 20, HUGE = 16 << 20 };
static size_t rounded(size_t bytes) { return bytes ? (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN; }

static mx_status cpu_alloc(mx_dev *dev, void **p, size_t bytes, mx_err *err) {
    const mx_cpu_dev *d = (const mx_cpu_dev *)dev;
    if (d->max_bytes && (bytes > d->max_bytes || dev->allocated > d->max_bytes - bytes))
        return mx_fail(err, MX_ENOMEM, "%zu bytes are too many: %zu of the device's %zu are in use", bytes,
                       dev->allocated, d->max_bytes);
    void *got = NULL;
    if (bytes > PTRDIFF_MAX) {
        // refused below
    } else if (bytes >= LARGE) {
        got = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED)
            got = NULL;
        else if (bytes >= HUGE)
            madvise(got, bytes, MADV_HUGEPAGE); // fewer misses of the address cache; may be refused
    } else if ((got = aligned_alloc(ALIGN, rounded(bytes)))) {
        memset(got, 0, rounded(bytes));
    }
    if (!got) return mx_fail(err, MX_ENOMEM, "the system has no %zu bytes", bytes);
    *p = got;
    return MX_OK;
}

static void cpu_release(mx_dev *dev, void *p, size_t bytes) {
    (void)dev;
    if (bytes >= LARGE)
        munmap(p, bytes);
    else
        free(p);
}

static mx_status cpu_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err) {
    (void)dev, (void)err;
    memcpy(p, host, bytes);
    return MX_OK;
}

static mx_status cpu_wait(mx_dev *dev, mx_err *err) { // every op has run to its end
    (void)dev, (void)err;
    return MX_OK;
}

static mx_status cpu_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err) {
    (void)dev, (void)err;
    memset(p, 0, bytes);
    return MX_OK;
}

const mx_row_kernels *mx_cpu_row_kernels(mx_isa isa) {
#if defined(__x86_64__)
    if (isa >= MX_ISA_AVX512) return &mx_row_kernels_avx512;
    if (isa >= MX_ISA_AVX2) return &mx_row_kernels_avx2;
#endif
    (void)isa;
    return &mx_row_kernels_base;
}

const mx_attn_kernels *mx_cpu_attn_kernels(mx_isa isa) {
#if defined(__x86_64__)
    if (isa >= MX_ISA_AVX512) return &mx_attn_kernels_avx512;
    if (isa >= MX_ISA_AVX2) return &mx_attn_kernels_avx2;
#endif
    (void)isa;
    return &mx_attn_kernels_base;
}

void mx_cpu_run(mx_cpu_dev *d, void (*fn)(void *arg, int i, int worker), void *arg, int n, int grain,
                double work) {
    if (work < MX_CPU_SMALL || d->n_worker == 1)
        for (int i = 0; i < n; i++) fn(arg, i, 0);
    else
        mx_pool_run(d->pool, fn, arg, n, grain);
}

static const mx_math cpu_math = {
    .layer_norm = mx_cpu_layer_norm,
    .softmax = mx_cpu_softmax,
    .logsumexp = mx_cpu_logsumexp,
    .sum = mx_cpu_sum,
    .argmax = mx_cpu_argmax,
    .top_k = mx_cpu_top_k,
    .sort = mx_cpu_sort,
    .searchsorted = mx_cpu_searchsorted,
    .fft = mx_cpu_fft,
    .hadamard = mx_cpu_hadamard,
    .quantize = mx_cpu_quantize,
    .dequantize = mx_cpu_dequantize,
    .pick = mx_cpu_pick,
};

const mx_backend mx_backend_cpu = {
    .name = "cpu",
    .host_memory = true,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_upload,
    .download = cpu_upload, // both are copies
    .wait = cpu_wait,
    .embed = mx_cpu_embed,
    .rms_norm = mx_cpu_rms_norm,
    .matmul = mx_cpu_matmul,
    .rope_table = mx_cpu_rope_table,
    .rope_append = mx_cpu_rope_append,
    .attention = mx_cpu_attention,
    .glu = mx_cpu_glu,
    .add = mx_cpu_add,
    .sigmoid_gate = mx_cpu_sigmoid_gate,
    .gather = mx_cpu_gather,
    .softcap = mx_cpu_softcap,
    .route = mx_cpu_route,
    .expert_matmul = mx_cpu_expert_matmul,
    .expert_sum = mx_cpu_expert_sum,
    .conv = mx_cpu_conv,
    .delta_rule = mx_cpu_delta_rule,
    .gated_norm = mx_cpu_gated_norm,
    .clear = cpu_clear,
    .math = &cpu_math,
    .ports = mx_cpu_ports,
};
