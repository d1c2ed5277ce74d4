/* backend.h - what a device does for a model: memory, and about twenty operations on a ragged batch.
 *
 * A forward pass is plain C that calls these in order (model/decoder.c). An op only queues work; wait() reports the
 * first failure. Arguments are checked once, by the mx_op_* functions of ops.c, so a backend may trust them: shapes
 * agree, pointers are not NULL, types are those listed here.
 *
 * Names: n_tok rows of a batch; d hidden size; n_head, n_kv heads; hd head size. Matrices are row-major. Every pointer in
 * an op's arguments is an address on the device; mx_buf owns such memory. On the CPU the two are the same. */
#ifndef MX_BACKEND_BACKEND_H
#define MX_BACKEND_BACKEND_H
#include "base/err.h"
#include "quant/quant.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct mx_backend mx_backend;
typedef struct mx_dev mx_dev;
typedef struct mx_math mx_math; // ops_math.h
typedef struct mx_port mx_port; // ports.h

/* A matrix on the device: [rows, cols], ld values from one row to the next. */
typedef struct {
    mx_dtype type;
    int rows, cols;
    int64_t ld;
    void *p;
} mx_mat;

enum { MX_KV_GROUPS = 4 }; // different window sizes in one model

/* One step's tokens: a flat list, the tokens of a sequence together and in order. Sequence s owns tokens
 * [seq_start[s], seq_start[s + 1]) and has kv_len[s] positions after the step, these tokens included. Layers with the same
 * window share a KV group g: position p of sequence s lies in block blocks[g][s * block_stride + p / block] of that group's
 * pools. Blocks wholly behind the window have been given back: their entries are -1 and are not read. */
typedef struct {
    int n_tok, n_seq, block_stride;
    int block;                           // positions in a KV block, a power of two
    int max_kv_len;                      // largest kv_len: host knowledge, for launch shapes
    int max_q_len;                       // most tokens of one sequence
    const int32_t *ids;                  // [n_tok] token ids
    const int32_t *pos;                  // [n_tok] positions, from 0
    const int32_t *seq;                  // [n_tok] sequence of each token
    const int32_t *seq_start;            // [n_seq + 1]
    const int32_t *kv_len;               // [n_seq]
    const int32_t *blocks[MX_KV_GROUPS]; // [n_seq, block_stride]
    const int32_t *slot;                 // [n_seq] state slot of recurrent layers
} mx_batch;

/* The keys and values of one layer: k, v [n_block, n_kv, block, hd]. */
typedef struct {
    mx_dtype type;
    int n_kv, hd, group; // group: index into mx_batch.blocks
    void *k, *v;
} mx_kv;

/* ---- arguments of the ops that have many -------------------------------------------------------------- */

typedef struct {       // y = x W^T + bias
    mx_mat y;          // [n, n_out]
    const mx_qmat *w;  // a stack of one
    const float *bias; // [n_out] or NULL
} mx_matmul;

typedef enum { MX_ACT_SILU, MX_ACT_GELU, MX_ACT_GELU_TANH, MX_ACT_RELU, MX_ACT_RELU2 } mx_act;

typedef struct { // rope, q/k norm and the append to the cache, in one
    mx_mat q, k,
        v; // [n_tok, n_head * hd], [n_tok, n_kv * hd] twice; q is rotated in place, k too (it may be)
    int n_head, n_kv, hd,
        n_rot;            // the first n_rot values of a head rotate: pairs (i, i + n_rot / 2); 0: no rope
    bool interleaved;     // pairs (2i, 2i + 1) instead
    const float *cos_sin; // [n_tok, n_rot]: n_rot / 2 cosines, then as many sines, from rope_table
    const float *q_norm, *k_norm; // [hd] weights of an RMS norm before the rotation, or NULL
    float eps;
    mx_kv kv;
} mx_rope_append;

typedef struct {
    mx_mat q, out; // [n_tok, n_head * hd]
    int n_head, n_kv, hd;
    float scale;        // of q k^T
    float softcap;      // c * tanh(s / c); 0: none
    int window;         // a token sees the last `window` positions, itself included; 0: all
    const float *sinks; // [n_head] logits that join the softmax without a value, or NULL
    mx_kv kv;
} mx_attention;

typedef enum {
    MX_ROUTE_SOFTMAX_TOPK, // probabilities over all experts, then the k largest (LOAD-10); normalize: divide by their sum
    MX_ROUTE_TOPK_SOFTMAX, // the k largest logits, then softmax over these
} mx_route_kind;

typedef struct {
    mx_route_kind kind;
    bool normalize;
    float scale; // of the final weights
    int n_expert, k;
    mx_mat logits;  // [n_tok, n_expert] f32
    int32_t *ids;   // [n_tok, k], by falling weight; a tie goes to the lower expert
    float *weights; // [n_tok, k]
} mx_route;

typedef struct { // y[i] = W[ids[i]] x[x_div ? i / x_div : i], i over n_tok * k rows
    mx_mat y;
    const mx_qmat *w;  // a stack of n_expert
    const float *bias; // [n_expert, n_out] or NULL
} mx_expert_matmul;

typedef struct {       // causal depthwise convolution over a sequence, then SiLU
    mx_mat x, y;       // [n_tok, c]; y may be x
    const float *w;    // [c, k_width]
    const float *bias; // [c] or NULL
    int k_width;
    float *state; // [n_slot, k_width - 1, c]: the last inputs of each sequence, oldest first; updated
} mx_conv;

typedef struct
{ // gated delta rule (Yang et al. 2024, "Gated Delta Networks"), per value head h with key head h * hk / hv:
    mx_mat q, k, v; // [n_tok, n_k * dk], the same, [n_tok, n_v * dv]; may be column ranges of one matrix
    mx_mat a, b;    // [n_tok, n_v] f32: decay g = exp(-exp(a_log) * softplus(a + dt_bias)), beta = sigmoid(b)
    const float *a_log, *dt_bias; // [n_v]
    int n_k, n_v, dk, dv;
    mx_mat out;   // [n_tok, n_v * dv]
    float *state; // [n_slot, n_v, dk, dv]: S = g S; S += k (beta (v - S^T k))^T; out = S^T q / sqrt(dk);
                  // q and k are L2-normalized first: x / sqrt(sum(x^2) + 1e-6)
} mx_delta_rule;

/* ---- the table ---------------------------------------------------------------------------------------- */

typedef enum { MX_GRAPHS_AUTO, MX_GRAPHS_ON, MX_GRAPHS_OFF } mx_graphs; // decode steps from a recording

typedef struct {
    int threads; // CPU: 0 is one per core
    bool exact;  // one reduction order for every number of rows, no low-precision activations
    const char *
        isa; // CPU: "scalar", "avx2", "avx512", "vnni", "bf16", "amx": no more than this; NULL: the best here
    size_t max_bytes; // refuse allocations beyond this in all; 0: no limit (tests)
    // GPUs:
    mx_graphs graphs;
    double step_timeout; // seconds after which a step counts as hung; 0: 120
    bool sync;           // wait for each kernel: an error then names it, and everything is slow
} mx_dev_options;

typedef struct { // a GPU, as `devices` shows it
    char name[80], arch[32];
    char version[64]; // of the driver
    char code[32];    // the code object that it runs: "gfx11-generic"
    uint64_t mem_total, mem_free;
    bool shares_memory; // with the host
} mx_dev_info;

/* Fused ops that a device may have (ports.h); the primitives below always do. */
typedef enum {
    MX_PORT_TOKEN_LOG_PROB,
    MX_PORT_QQ_EXPERT_MATMUL,
    MX_PORT_PRODUCT,
    MX_PORT_DECODE_ATTENTION,
    MX_PORT_TOP,
    MX_N_PORT,
} mx_port_op;

struct mx_dev {
    const mx_backend *be;
    mx_dtype act;           // type of activations between ops (the residual stream is f32 everywhere)
    char name[96];          // "AMD EPYC (2 threads, avx2)"
    char isa[32];           // what the kernels use: "avx2", "gfx1151", "sm_90"
    size_t allocated, peak; // bytes in mx_buf
    size_t held_peak;       // GPUs: most bytes ever taken from the driver
    bool planning;          // between plan_begin and plan_end
    bool no_ports;          // compose every fused op: tests and measurements
    struct {
        uint64_t used, composed, unlisted; // unlisted: compositions that no row of the table means
    } ports[MX_N_PORT];
};

struct mx_backend {
    const char *name; // "cpu", "rocm", "cuda"
    bool host_memory; // device addresses are host addresses: a mapped weight is used where it lies
    mx_status (*open)(mx_dev **out, int index, const mx_dev_options *opt, mx_err *err);
    void (*close)(mx_dev *dev);
    /* GPUs only, NULL elsewhere: number `index` without opening it, or in one sentence why it cannot be used. n, which may be NULL,
     * becomes how many there are, 0 if the driver cannot be used. */
    mx_status (*info)(int index, mx_dev_info *out, int *n, mx_err *err);
    /* GPUs only: how much memory the driver says is free, and whether it is the host's. */
    mx_status (*memory)(mx_dev *dev, uint64_t *free_bytes, bool *shared, mx_err *err);
    /* GPUs only. Between begin and end memory is counted, not taken: alloc gives addresses that nothing may use, and copies and ops
     * only look at shapes. end says how many bytes the same calls need, scratch memory of the ops included. reserve takes that much
     * at once; later buffers come out of it, as long as it lasts. */
    mx_status (*plan_begin)(mx_dev *dev, mx_err *err);
    size_t (*plan_end)(mx_dev *dev);
    mx_status (*reserve)(mx_dev *dev, size_t bytes, mx_err *err);
    mx_status (*alloc)(mx_dev *dev, void **p, size_t bytes, mx_err *err); // zeroed, aligned to 256
    void (*release)(mx_dev *dev, void *p, size_t bytes);
    mx_status (*upload)(mx_dev *dev, void *p, const void *host, size_t bytes, mx_err *err);
    mx_status (*download)(mx_dev *dev, void *host, const void *p, size_t bytes, mx_err *err); // waits
    mx_status (*wait)(mx_dev *dev, mx_err *err);

    /* x[n, d] f32 = scale * W[ids[i]], W [vocab, d] */
    mx_status (*embed)(mx_dev *dev, const mx_mat *x, const mx_qmat *w, const int32_t *ids, float scale,
                       mx_err *err);
    /* x += add (if add->p), then y = x / sqrt(mean(x^2) + eps) * w. x [n, d] f32; add, y [n, d] f32 or act; w [d] or NULL */
    mx_status (*rms_norm)(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *add, const float *w,
                          float eps, mx_err *err);
    /* n_mm products of the same x [n, n_in] (act or f32): QKV, gate and up. y f32 or act. A GPU wants rows of x at multiples of
     * 16 bytes where a weight is quantized: MX_UNSUPPORTED otherwise */
    mx_status (*matmul)(mx_dev *dev, const mx_matmul *mm, int n_mm, const mx_mat *x, mx_err *err);
    /* cos_sin[n_tok, n_rot] = scale * cos, sin (pos * inv_freq[n_rot / 2]) */
    mx_status (*rope_table)(mx_dev *dev, float *cos_sin, const float *inv_freq, int n_rot, float scale,
                            const mx_batch *b, mx_err *err);
    mx_status (*rope_append)(mx_dev *dev, const mx_rope_append *a, const mx_batch *b, mx_err *err);
    mx_status (*attention)(mx_dev *dev, const mx_attention *a, const mx_batch *b, mx_err *err);
    /* y = act(gate) * up; y may be gate or up */
    mx_status (*glu)(mx_dev *dev, const mx_mat *y, const mx_mat *gate, const mx_mat *up, mx_act act,
                     mx_err *err);
    /* x[n, d] f32 += y * factor */
    mx_status (*add)(mx_dev *dev, const mx_mat *x, const mx_mat *y, float factor, mx_err *err);
    /* x *= sigmoid(gate); gate has x's columns, or one for the whole row */
    mx_status (*sigmoid_gate)(mx_dev *dev, const mx_mat *x, const mx_mat *gate, mx_err *err);
    /* y[i] = x[rows[i]], f32 */
    mx_status (*gather)(mx_dev *dev, const mx_mat *y, const mx_mat *x, const int32_t *rows, mx_err *err);
    /* x = c * tanh(x / c) */
    mx_status (*softcap)(mx_dev *dev, const mx_mat *x, float c, mx_err *err);
    mx_status (*route)(mx_dev *dev, const mx_route *r, mx_err *err);
    /* n_mm products with gathered experts; x [n_tok, n_in] with x_div = k, or [n_tok * k, n_in] with x_div = 1 */
    mx_status (*expert_matmul)(mx_dev *dev, const mx_expert_matmul *mm, int n_mm, const mx_mat *x,
                               const int32_t *ids, int n_row, int x_div, mx_err *err);
    /* y[i] f32 = sum over j < k of weights[i, j] * x[i * k + j] */
    mx_status (*expert_sum)(mx_dev *dev, const mx_mat *y, const mx_mat *x, const float *weights, int k,
                            mx_err *err);
    mx_status (*conv)(mx_dev *dev, const mx_conv *c, const mx_batch *b, mx_err *err);
    mx_status (*delta_rule)(mx_dev *dev, const mx_delta_rule *r, const mx_batch *b, mx_err *err);
    /* y = rms_norm(x) * w * silu(z), each row cut into heads of hd = the length of w */
    mx_status (*gated_norm)(mx_dev *dev, const mx_mat *y, const mx_mat *x, const mx_mat *z, const float *w,
                            int hd, float eps, mx_err *err);
    /* Optional. Do what `queue` queues, which for the same key is always the same list of launches, from a recording. */
    mx_status (*replay)(mx_dev *dev, uint64_t key, mx_status (*queue)(void *arg, mx_err *err), void *arg,
                        mx_err *err);
    /* state[slot] = 0: a new sequence takes a slot. bytes is the size of one slot */
    mx_status (*clear)(mx_dev *dev, void *p, size_t bytes, mx_err *err);

    const mx_math *math;  // ops on rows of numbers that a forward pass does not need
    const mx_port *ports; // ends with a row without `shapes`
};

/* Every backend of this build, by name; the CPU is last. */
extern const mx_backend *const mx_backends[];
extern const int mx_n_backend;
extern const mx_backend mx_backend_cpu, mx_backend_rocm, mx_backend_cuda; // the GPUs only in builds for them

/* "auto": the first that opens. "gpu": the GPU runtime of this build. "rocm:1": its second device. An explicit name never falls back
 * (MX_ENOTFOUND for an unknown one, naming those built). */
mx_status mx_dev_open(mx_dev **out, const char *name, const mx_dev_options *opt, mx_err *err);
void mx_dev_close(mx_dev *dev);

/* Device memory that is freed with mx_buf_free. */
typedef struct {
    mx_dev *dev;
    void *p;
    size_t bytes;
} mx_buf;
mx_status mx_buf_new(mx_buf *b, mx_dev *dev, size_t bytes, const char *what,
                     mx_err *err); // what: for the message
void mx_buf_free(mx_buf *b);       // accepts a zeroed one

#endif
