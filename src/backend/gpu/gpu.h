/* gpu.h - what the files of this folder share: an open GPU with its kernels, and launching. */
#ifndef MX_BACKEND_GPU_GPU_H
#define MX_BACKEND_GPU_GPU_H
#include "backend/backend.h"
#include "backend/gpu/driver.h"
#include "../../../kernels/args.h"

/* The kernels, as the build embeds them: one image for each kernel file and architecture. */
typedef struct {
    const char *arch, *file; // "gfx1151" or "sm_80"; "norm"
    const unsigned char *data;
    size_t size;
} mx_gpu_image;
extern const mx_gpu_image mx_gpu_images[];
extern const int mx_gpu_n_image;

enum { MX_GPU_COUNTS = 16384 }; // counters of blocks, for launches whose last block does more
enum { MX_GPU_FILES = 48, MX_GPU_FUNCS = 1024, MX_GPU_STAGE = 8 << 20, MX_GPU_GRAPHS = 32 };

typedef struct {
    mx_dev base;
    const mx_gpu_driver *drv;
    mx_gpu *g;
    mx_gpu_info info;
    char arch[32]; // of the images in use
    struct {
        const char *file;
        mx_gpu_module *module;
    } files[MX_GPU_FILES];
    int n_file;
    struct {
        const char *name;
        mx_gpu_func *func;
        uint32_t most;     // threads of a block; 0: not asked yet
    } funcs[MX_GPU_FUNCS]; // open addressing by the name's hash
    void *stage[2];        // pinned memory on the way to the device
    mx_gpu_event *stage_free[2];
    bool stage_used[2];
    int next_stage;
    mx_gpu_event *done;
    void *scratch; // of attention's parts and of sorted experts
    size_t scratch_bytes;
    struct { // set aside when a model is loaded, so that nothing is asked of the driver later; memory.c
        char *base;
        size_t bytes, used;
        int live; // buffers in it: the last one that goes empties it
    } arena;
    size_t held;                  // taken from the driver now
    size_t planned, plan_scratch; // while base.planning
    uint32_t *counts;             // [MX_GPU_COUNTS] on the device, zeros between launches
    bool overlaps;                // kernels know how to begin while the launch before ends (kernels/gpu.h)
    struct {
        uint64_t key;
        mx_gpu_graph *graph;      // NULL: run once, to be recorded the next time
        uint64_t used;            // by the count of replays: the oldest goes
        const char *first, *last; // its kernels
        unsigned n;
    } graphs[MX_GPU_GRAPHS];
    uint64_t n_replay;
    double timeout;           // seconds that a wait may take
    bool records;             // decode steps are recorded and replayed
    bool recording;           // now
    bool sync;                // wait for each launch
    const char *first, *last; // kernels launched since the last wait that ended well
    unsigned n_queued;
    bool lost;    // after a fault every call fails ...
    bool hung;    // ... and after a hang the driver is not called at all: it would wait too
    mx_err fault; // what happened
} mx_gpu_dev;

mx_status mx_gpu_alive(const mx_gpu_dev *d, mx_err *err);
/* Pass on st; a failure that leaves the device in an unknown state is remembered. err is what failed. */
mx_status mx_gpu_note(mx_gpu_dev *d, mx_status st, mx_err *err);
mx_status mx_gpu_wait_for(mx_gpu_dev *d, mx_gpu_event *e, mx_err *err);
void mx_gpu_forget_graphs(mx_gpu_dev *d);

/* memory.c */
mx_status mx_gpu_take(mx_gpu_dev *d, void **p, size_t bytes, mx_err *err); // not zeroed
void mx_gpu_give(mx_gpu_dev *d, void *p, size_t bytes);
mx_status mx_gpu_alloc(mx_dev *dev, void **p, size_t bytes, mx_err *err);
void mx_gpu_release(mx_dev *dev, void *p, size_t bytes);
mx_status mx_gpu_upload(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err);
mx_status mx_gpu_download(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err);
mx_status mx_gpu_clear(mx_dev *dev, void *p, size_t bytes, mx_err *err);
mx_status mx_gpu_memory(mx_dev *dev, uint64_t *free_bytes, bool *shared, mx_err *err);
mx_status mx_gpu_plan_begin(mx_dev *dev, mx_err *err);
size_t mx_gpu_plan_end(mx_dev *dev);
mx_status mx_gpu_reserve(mx_dev *dev, size_t bytes, mx_err *err);

/* Queue kernel `name` of `file`. args: pointers to the arguments in order. */
mx_status mx_gpu_launch(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y, uint32_t z,
                        uint32_t threads, void **args, mx_err *err);
/* The most threads that a block of the kernel may have. */
mx_status mx_gpu_most_threads(mx_gpu_dev *d, const char *file, const char *name, uint32_t *n, mx_err *err);
/* Queue with shared memory that the kernel does not declare itself. */
mx_status mx_gpu_launch_shared(mx_gpu_dev *d, const char *file, const char *name, uint32_t x, uint32_t y,
                               uint32_t z, uint32_t threads, uint32_t shared, void **args, mx_err *err);
#define LAUNCH(d, file, name, x, y, z, threads, ...)                                                         \
    mx_gpu_launch(d, file, name, (uint32_t)(x), (uint32_t)(y), (uint32_t)(z), threads,                       \
                  (void *[]){__VA_ARGS__}, err)

/* At least this much scratch memory, kept for later calls. What is queued before is done with the old one first. */
mx_status mx_gpu_scratch(mx_gpu_dev *d, size_t bytes, mx_err *err);
mx_status mx_gpu_wait(mx_dev *dev, mx_err *err);

/* The kernels' names of a weight format ("a4"), and the format as kernels want it. */
const char *mx_gpu_kind(const mx_qmat *w);
mx_k_weights mx_gpu_weights(const mx_qmat *w);
mx_k_mat mx_gpu_mat(const mx_mat *m);
mx_k_rope_append mx_gpu_rope(const mx_rope_append *a);
mx_k_attention mx_gpu_attention_args(const mx_attention *a); // of one part, for all sequences
mx_k_batch mx_gpu_batch(const mx_batch *b, int group);
uint32_t mx_gpu_kv_type(mx_dtype t);
static inline uint32_t mx_div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
static inline uint32_t mx_log2_up(uint32_t n) { return n <= 1 ? 0 : 32 - (uint32_t)__builtin_clz(n - 1); }

/* Ports. takes: MX_UNSUPPORTED with a sentence where the shapes are not for the kernel. */
mx_status mx_gpu_takes_top(const mx_dev *dev, const void *args, mx_err *err);
mx_status mx_gpu_top(mx_dev *dev, const void *args, mx_err *err);
mx_status mx_gpu_takes_decode_attention(const mx_dev *dev, const void *args, mx_err *err);
mx_status mx_gpu_decode_attention(mx_dev *dev, const void *args, mx_err *err);
mx_status mx_gpu_takes_product(const mx_dev *dev, const void *args, mx_err *err);
mx_status mx_gpu_product(mx_dev *dev, const void *args, mx_err *err);

/* Ops, by file: ops_simple.c, ops_attention.c, ops_matmul.c */
mx_status mx_gpu_embed(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                       mx_err *err);
mx_status mx_gpu_rms_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                          float eps, mx_err *err);
mx_status mx_gpu_rope_table(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                            const mx_batch *b, mx_err *err);
mx_status mx_gpu_rope_append(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err);
mx_status mx_gpu_attention(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err);
mx_status mx_gpu_glu(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                     mx_err *err);
mx_status mx_gpu_add(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err);
mx_status mx_gpu_sigmoid_gate(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err);
mx_status mx_gpu_gather(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err);
mx_status mx_gpu_softcap(mx_dev *dev, const mx_mat *x, float c, mx_err *err);
mx_status mx_gpu_route(mx_dev *dev, const mx_route *r, mx_err *err);
mx_status mx_gpu_expert_sum(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                            mx_err *err);
mx_status mx_gpu_conv(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err);
mx_status mx_gpu_delta_rule(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err);
mx_status mx_gpu_gated_norm(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                            int hd, float eps, mx_err *err);
mx_status mx_gpu_matmul(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err);
mx_status mx_gpu_expert_matmul(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                               const int32_t *ids, int n_row, int x_div, mx_err *err);

#endif
