/* matmul_wide.c - y[n, n_out] = x[n, n_in] W^T + bias for many rows of x on sm_90a, compiled once for each KIND of weights.
 *
 *   wide_x_KIND      x as bf16 (f16 for f16 weights) into `to`, in the order and place that the products want it
 *   wideN_KIND       tiles of 128 columns of y x N rows of x, N = 32, 64, 128, 256; 256 threads
 *
 * Tiling: the weights are the left factor, so that they are expanded from codes to registers and go from there into the matrix
 * instructions; a warpgroup has 64 of the 128 rows of W. Along n_in a step takes 128 values: thread t of a row's four has a chunk of
 * 32 of them (16 pairs) for two rows; for the instruction's 16 columns i, thread t passes on pairs 2i and 2i + 1 of its chunk. Which
 * values of x meet them is for wide_x to arrange: sums have no order. x lies in blocks of 64 values, [block][row][128 bytes], slots
 * exchanged as wgmma.h says, so that a tile's block is one copy of N 128 bytes; STAGES of them are in flight or in use. Halves of a
 * step take turns: one is expanded while the instructions of the other run.
 *
 * Grid: x = row tiles (experts: tiles given), y = n_tile, column tiles of 128 as in matmul.c. a.x is what wide_x made, a.x_ld its rows
 * (a multiple of N). Shared memory: STAGES * N * 128 + 1024 bytes, given at launch. n_in % 32 == 0, codes at multiples of 16 bytes,
 * affine scales bf16. */
#include "quant.h"
#include "wgmma.h"

enum { STAGES = 6, STEP = 128 };
extern LDS u8 room[];
enum {
#define NUMBER(name, number) KIND_##name = number,
    EACH_KIND(NUMBER)
#undef NUMBER
};

/* Words of a chunk of two rows, and their scales. zero: wgmma.h. */
typedef struct {
    u32 w[2][16], s[2], b[2], zero;
} raw;

typedef struct {
    const G u8 *codes[2];
    const G void *scales, *biases;
    u64 scale_row[2];
    u32 chunks, group_shift;
} source;

/* Of a 16-bit row the thread's chunk is its quarter of each 32 values, so that four threads read side by side. */
INLINE bool is_16(const u32 kind) { return kind == K_F16 || kind == K_BF16; }

INLINE u32x4 load_ahead(const G u8 *p) { // the memory's next 256 bytes come to the cache with it
    u32 a, b, c, d;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
        : "l"(p));
    return (u32x4){a, b, c, d};
}

INLINE void load_raw(raw *n, const u32 kind, const source *from, u32 step) {
    const u32 t = lane() & 3, words = words_of(kind);
    if (is_16(kind)) {
        UNROLL for (u32 i = 0; i < 4; i++) {
            const u32 c = min_u32(4 * step + i, from->chunks - 1);
            UNROLL for (u32 r = 0; r < 2; r++)
                four(n->w[r] + 4 * i, load_ahead(from->codes[r] + c * 64 + t * 16));
        }
        return;
    }
    const u32 c = min_u32(4 * step + t, from->chunks - 1); // past the end x is 0
    UNROLL for (u32 r = 0; r < 2; r++) {
        if (words % 4 == 0) {
            UNROLL for (u32 i = 0; i < words / 4; i++)
                four(n->w[r] + 4 * i, load_ahead(from->codes[r] + c * (words * 4) + 16 * i));
        } else {
            load_code(n->w[r], kind, from->codes[r] + c * (words * 4));
        }
        if (is_affine(kind)) {
            const u64 at = from->scale_row[r] + (c >> (from->group_shift - 5));
            n->s[r] = ((const G u16 *)from->scales)[at];
            n->b[r] = ((const G u16 *)from->biases)[at];
        } else if (kind == K_NVFP4) {
            n->s[r] = ((const G u16 *)from->scales)[from->scale_row[r] + c];
        } else {
            n->s[r] = ((const G u8 *)from->scales)[from->scale_row[r] + c];
        }
    }
}

typedef struct { // registers of two instructions
    u32 a[2][4];
} fragment;

/* Quarter q of the chunks: pairs 4 q to 4 q + 3 of both rows. */
INLINE void expand(fragment *f, const u32 kind, const raw *n, const u32 q) {
    UNROLL for (u32 r = 0; r < 2; r++) {
        u32 p[16];
        unpack(p, n->w[r], kind);
        scale_pairs(p, kind, 2, n->s[r], n->b[r]);
        UNROLL for (u32 i = 0; i < 4; i++) {
            u32 *to = &f->a[i / 2][2 * (i & 1) + r];
            *to = p[4 * q + i];
            if (is_16(kind))
                *to = wgmma_operand(*to, n->zero);
            else
                wgmma_own(to);
        }
    }
}

typedef struct {
    u32 at, parity; // stage, and the parity of its barriers' phase
} ring;
INLINE void next_stage(ring *r) {
    if (++r->at == STAGES) r->at = 0, r->parity ^= 1;
}

INLINE void wide(const mx_k_matmul *a, const u32 kind, const u32 n) {
    u32 out = 0, col0 = by();
    UNROLL for (u32 i = 0; i + 1 < MX_K_OUTS; i++) if (by() >= a->out[i].tile_end)
        out = i + 1,
        col0 = by() - a->out[i].tile_end;
    col0 *= 128;
    weights w = a->out[out].w;
    const u32 g = lane() >> 2, t = lane() & 3;
    u32 row0 = bx() * n, end = a->n, expert = 0;
    let_next_start();
    if (a->tiles) {
        after_previous();
        const G i32 *tile = a->tiles + 4 * (u64)bx();
        if (tile[0] < 0) return;
        expert = (u32)tile[0], row0 = (u32)tile[1], end = min_u32((u32)tile[2], row0 + n);
        w.codes = (const G u8 *)w.codes + expert * a->out[out].code_stride;
        w.scales = (const G u8 *)w.scales + expert * a->out[out].scale_stride;
        w.biases = (const G u8 *)w.biases + expert * a->out[out].scale_stride;
    }
    const u32 row = col0 + wave() * 16 + g; // of W, and row + 8
    source from = {
        .scales = w.scales, .biases = w.biases, .chunks = w.n_in / 32, .group_shift = w.group_shift};
    UNROLL for (u32 r = 0; r < 2; r++) {
        const u64 k = min_u32(row + 8 * r, w.n_out - 1);
        from.codes[r] = (const G u8 *)w.codes + k * from.chunks * (words_of(kind) * 4);
        from.scale_row[r] = k * (is_affine(kind) ? w.n_in >> w.group_shift : from.chunks);
    }
    raw first = {.zero = a->n_tile >> 31};
    load_raw(&first, kind, &from, 0);

    const u32 base = (shared_address(room) + 1023) & ~1023u, bytes = n * 128;
    const u32 full = base + STAGES * bytes, empty = full + 8 * STAGES;
    const u32 blocks = 2 * ((w.n_in + STEP - 1) / STEP);
    const G u8 *x = (const G u8 *)a->x + (u64)bx() * bytes;
    const u64 x_block = a->x_ld * 128;
    u32 copied = 0;
    if (thread() == 0) {
        UNROLL for (u32 i = 0; i < STAGES; i++) phase_init(full + 8 * i, 1), phase_init(empty + 8 * i, 8);
        phases_ready();
        if (!a->tiles) after_previous();
        for (; copied < STAGES && copied < blocks; copied++, x += x_block)
            copy_bulk(base + copied * bytes, x, bytes, full + 8 * copied);
    }
    barrier();

    f32 sum[128];
    UNROLL for (u32 i = 0; i < n / 2; i++) sum[i] = 0;
    fragment now, then;
    raw next = first;
    ring use = {0, 0}, done = {0, 0}, refill = {0, 0};
    expand(&now, kind, &first, 0);
    for (u32 k = 0; k < blocks; k += 2) {
        load_raw(&next, kind, &from, k / 2 + 1); // behind the last: that once more, unused
        UNROLL for (u32 q = 0; q < 4; q++) {
            if (q % 2 == 0) phase_wait(full + 8 * use.at, use.parity);
            expand(&then, kind, q == 3 ? &next : &first, (q + 1) % 4);
            const u64 tile = wgmma_tile(base + use.at * bytes) + 4 * (q & 1);
            wgmma_fence();
            UNROLL for (u32 i = 0; i < 2; i++) wgmma(sum, now.a[i], tile + 2 * i, n, kind == K_F16);
            wgmma_commit();
            wgmma_wait(1); // the quarter before
            if (q % 2) {
                next_stage(&use);
            } else if (k + q / 2 >= 1) { // so that was the last of its block, which can be filled again,
                if (lane() == 0) phase_arrive(empty + 8 * done.at);
                next_stage(&done);
                if (k + q / 2 >= 2) { // but is a block later, so that nobody waits for the other warpgroup
                    if (thread() == 0 && copied < blocks) {
                        phase_wait(empty + 8 * refill.at, refill.parity);
                        copy_bulk(base + refill.at * bytes, x, bytes, full + 8 * refill.at);
                        copied++, x += x_block;
                    }
                    next_stage(&refill);
                    converge();
                }
            }
            now = then;
        }
        first = next;
    }
    wgmma_wait(0);
    wgmma_settle(sum, n);

    f32 bias[2] = {0, 0};
    if (a->out[out].bias)
        UNROLL for (u32 r = 0; r < 2; r++) bias[r] =
            a->out[out].bias[(u64)expert * w.n_out + min_u32(row + 8 * r, w.n_out - 1)];
    UNROLL for (u32 i = 0; i < n / 8; i++) UNROLL for (u32 e = 0; e < 2; e++) {
        u32 tok = row0 + 8 * i + 2 * t + e;
        if (tok >= end) continue;
        if (a->rows) tok = (u32)a->rows[tok];
        G f32 *y = a->out[out].y + tok * a->out[out].y_ld + row;
        UNROLL for (u32 r = 0; r < 2; r++) if (row + 8 * r < w.n_out) y[8 * r] =
            sum[4 * i + 2 * r + e] + bias[r];
    }
}

/* Eight values of x a thread: pair p of the chunks of all four threads, which is a slot of 16 bytes. */
INLINE void wide_x(const mx_k_wide_x *a, const u32 kind) {
    const u32 p = thread() & 15, row = bx() * 16 + (thread() >> 4), step = by();
    u32 from = row;
    let_next_start();
    after_previous();
    if (a->tiles) {
        const G i32 *tile = a->tiles + 4 * (u64)(row >> a->tile_shift);
        from = (u32)tile[1] + (row & ((1u << a->tile_shift) - 1));
        if (tile[0] < 0 || from >= (u32)tile[2]) return; // what lies in other rows does not matter
        from = (u32)a->x_rows[from];
    } else if (from >= a->n) {
        return;
    }
    const G f32 *x = a->x + from * a->x_ld;
    u32 v[4];
    UNROLL for (u32 t = 0; t < 4; t++) {
        u32 lo, hi;
        if (is_16(kind)) {
            lo = step * STEP + 32 * (p >> 2) + 8 * t + 2 * (p & 3), hi = lo + 1;
        } else {
            lo = step * STEP + 32 * t, hi = lo + pair_hi(kind, p), lo += pair_lo(kind, p);
        }
        v[t] = lo < a->n_in ? pair_of(x[lo], x[hi], kind == K_F16) : 0;
    }
    const u32 block = 2 * step + (p >> 3), slot = (p & 7) ^ (row & 7);
    ((G u32x4 *)a->to)[((u64)block * a->n_row + row) * 8 + slot] = (u32x4){v[0], v[1], v[2], v[3]};
}

#define NAMED(a, b) NAMED_(a, b)
#define NAMED_(a, b) a##b
__gpu_kernel void NAMED(wide_x_, KIND)(mx_k_wide_x a) { wide_x(&a, NAMED(KIND_, KIND)); }
__gpu_kernel void NAMED(wide32_, KIND)(mx_k_matmul a) { wide(&a, NAMED(KIND_, KIND), 32); }
__gpu_kernel void NAMED(wide64_, KIND)(mx_k_matmul a) { wide(&a, NAMED(KIND_, KIND), 64); }
__gpu_kernel void NAMED(wide128_, KIND)(mx_k_matmul a) { wide(&a, NAMED(KIND_, KIND), 128); }
__gpu_kernel void NAMED(wide256_, KIND)(mx_k_matmul a) { wide(&a, NAMED(KIND_, KIND), 256); }
