/* args.h - the arguments that kernels and the host share. Plain C for both sides; every pointer is an address on the device.
 *
 * Sizes and offsets are the same for the host, amdgcn and nvptx64: 4- and 8-byte members at their natural alignment. */
#ifndef MX_KERNELS_ARGS_H
#define MX_KERNELS_ARGS_H
#include <stdint.h>

#if defined(__AMDGPU__) || defined(__NVPTX__)
#define MX_DEVICE __gpu_global
#else
#define MX_DEVICE
#endif

typedef struct { // rows of f32; ld: values from one row to the next
    MX_DEVICE float *p;
    uint64_t ld;
} mx_k_mat;

typedef struct
{ // a matrix, or a stack of them: rows of n_in values. Every kernel but embed wants codes at a multiple of 16 bytes
    const MX_DEVICE void *codes, *scales, *biases;
    uint32_t n_in, n_out;
    uint32_t group_shift; // log2 of the values that share an affine scale
    uint32_t scale_type;  // of affine scales: 0 f32, 1 f16, 2 bf16
} mx_k_weights;

enum { MX_K_OUTS = 4 }; // products of one launch

typedef struct { // one product of x: matvec.c, matmul.c
    mx_k_weights w;
    uint64_t code_stride, scale_stride; // bytes from one matrix of a stack to the next; 0: no stack
    MX_DEVICE float *y;
    const MX_DEVICE float *bias; // [n_out], of a stack [n_stack, n_out], or NULL
    uint64_t y_ld;
    uint32_t tile_end; // tiles of the products up to and with this one
    uint32_t unused;
    const MX_DEVICE float *add; // matvec: rows that are added to y, NULL for none; may be y itself
    uint64_t add_ld;
} mx_k_out;

/* matvec.c. With norm, x stands for rms_norm(x) * norm: x * norm goes into the products, whose sums are divided by
 * sqrt(mean(x^2) + eps) in the end. */
typedef struct {
    const MX_DEVICE float *x;
    uint64_t x_ld;
    const MX_DEVICE int32_t *ids; // [rows] the matrix of a stack for each row, or NULL: experts
    uint32_t n;                   // rows of x; with ids 1: rows are the grid's y and z
    uint32_t n_tile;              // in all
    uint32_t x_by_z;              // with ids: row z * grid_y + y takes row z of x; else a row of its own
    uint32_t act;                 // glu: mx_act
    const MX_DEVICE float *norm;  // [n_in] or NULL
    float eps, inv_n;             // with norm; inv_n: 1 / n_in
    uint32_t n_sum,
        unused; // n_sum not 0: row z of y is the sum over j of sum_weights[z * n_sum + j] times the product ...
    const MX_DEVICE float *sum_weights; // ... of row z * n_sum + j of x and matrix ids[z * n_sum + j]
    mx_k_out out[MX_K_OUTS];
} mx_k_matvec;

typedef struct { // matmul.c
    const MX_DEVICE float *x;
    uint64_t x_ld;
    const MX_DEVICE int32_t *rows;   // experts: sorted row i is row rows[i] of y ...
    const MX_DEVICE int32_t *x_rows; // ... and takes row x_rows[i] of x; NULL: none of both
    const MX_DEVICE int32_t *tiles;  // experts: [grid y, 4] expert, first sorted row, end of its rows, 0
    uint32_t n;                      // rows of x; not used by experts
    uint32_t n_tile;                 // column tiles in all
    mx_k_out out[MX_K_OUTS];
} mx_k_matmul;

typedef struct { // matmul_wide.c: x for its products
    const MX_DEVICE float *x;
    uint64_t x_ld;
    MX_DEVICE uint32_t *to;          // [ceil(n_in / 128) * 2, n_row, 32] pairs of 16-bit values
    const MX_DEVICE int32_t *x_rows; // experts: as in mx_k_matmul
    const MX_DEVICE int32_t *tiles;
    uint32_t n, n_row;   // rows of x; of `to`, at least as many
    uint32_t n_in;       // a multiple of 32
    uint32_t tile_shift; // experts: log2 of a tile's rows
} mx_k_wide_x;

typedef struct {                          // matmul_experts.c
    const MX_DEVICE int32_t *ids;         // [n_row] expert of each row
    MX_DEVICE int32_t *rows, *x_rows;     // [n_row] row and row of x of each sorted row
    MX_DEVICE int32_t *tiles;             // [max_tile, 4]
    uint64_t x_magic;                     // ceil(2^32 / rows that share a row of x)
    uint32_t n_row, n_expert, tile_shift; // log2 of the rows of a tile
    uint32_t max_tile;
} mx_k_expert_tiles;

typedef struct {                        // what kernels need of mx_batch and of one KV group
    const MX_DEVICE int32_t *pos, *seq; // [n_tok]
    const MX_DEVICE int32_t *seq_start; // [n_seq + 1]
    const MX_DEVICE int32_t *kv_len;    // [n_seq]
    const MX_DEVICE int32_t *blocks;    // [n_seq, block_stride] of the layer's group
    const MX_DEVICE int32_t *slot;      // [n_seq]
    uint32_t n_tok, n_seq, block_stride, block_shift;
} mx_k_batch;

typedef struct { // rope.c: rope_append
    mx_k_mat q, k, v;
    const MX_DEVICE float *cos_sin, *q_norm, *k_norm; // norms may be NULL
    MX_DEVICE void *pool_k, *pool_v;                  // [n_block, n_kv, block, hd]
    uint32_t n_head, n_kv, hd, n_rot;                 // n_rot 0: no rotation, cos_sin is not read
    uint32_t interleaved, kv_type;                    // kv_type: 0 f32, 1 f16, 2 bf16
    float eps, inv_hd;                                // inv_hd: 1 / hd
} mx_k_rope_append;

typedef struct { // attention.c and prefill.c
    mx_k_mat q, out;
    const MX_DEVICE void *pool_k, *pool_v;
    const MX_DEVICE float *sinks; // [n_head] or NULL
    MX_DEVICE float *part_o;      // [n_tok, n_head, n_part, hd], where n_part > 1
    MX_DEVICE float *part_ml;     // [n_tok, n_head, n_part, 2]: maximum, sum
    uint32_t n_head, n_kv, group; // group: n_head / n_kv
    uint32_t hd, window;          // window 0: all
    uint32_t n_part,
        part_splits;     // parts that the keys of a row are cut into; splits of 256 positions in a part
    uint32_t q_lo, q_hi; // only sequences with this many tokens in the batch, both included
    uint32_t part_bits, share_bits, head_bits,
        tok_bits;         // of the block index and of a tile's rows: attention.c
    float scale, softcap; // softcap 0: none
} mx_k_attention;

typedef struct { // recurrent.c: conv
    mx_k_mat x, y;
    const MX_DEVICE float *w, *bias; // [channels, k_width], [channels] or NULL
    MX_DEVICE float *state;          // [n_slot, k_width - 1, channels]
    uint32_t channels, k_width;
} mx_k_conv;

typedef struct { // recurrent.c: delta_rule
    mx_k_mat q, k, v, a, b, out;
    const MX_DEVICE float *a_log, *dt_bias; // [n_v]
    MX_DEVICE float *state;                 // [n_slot, n_v, dk, dv]
    uint32_t n_v, dk, dv;
    uint32_t heads_per_key; // n_v / n_k
    float q_scale;          // 1 / sqrt(dk)
} mx_k_delta;

#endif
