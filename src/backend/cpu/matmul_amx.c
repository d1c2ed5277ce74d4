/* matmul_amx.c - the b16 way on AMX tiles: TDPBF16PS does 8,192 multiply-adds in 16 cycles. */
#include "backend/cpu/matmul_vec512_bf16.h"

/* Eight tiles of 16 rows by 64 bytes. In read-only memory: gcc 12 drops stores to a configuration on the stack, as its
 * _tile_loadconfig does not say that it reads all of it. */
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config __attribute__((aligned(64))) = {
    .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Tile instructions do not tell the compiler which memory they touch. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

OP void b16_open(void) {
    MEMORY_BARRIER();
    _tile_loadconfig(&config);
}
OP void b16_close(void) { _tile_release(); }

#include "backend/cpu/matmul_b16.h"

/* C: tiles 0 to 3, [half of the outs][tile of x]; A: 4, 5; B: 6, 7. */
static void b16_block(b16_work *work, const int16_t *const *x, int n_tile, int n_k, int row) {
    const uint16_t *a0 = work->panel[0], *a1 = work->panel[16];
    const int16_t *b0 = x[0], *b1 = x[1];
    float *c0 = work->sums[0] + row, *c1 = work->sums[16] + row;
    enum { A_STRIDE = MX_MM_K * 2, B_STRIDE = B_ROW * 4, C_STRIDE = MX_MM_ROWS * 4 };
    MEMORY_BARRIER();
    _tile_loadd(0, c0, C_STRIDE);
    _tile_loadd(2, c1, C_STRIDE);
    if (n_tile == 1) {
        for (int k = 0; k < n_k; k += B_K, a0 += B_K, a1 += B_K, b0 += B_K * B_ROW) {
            _tile_loadd(6, b0, B_STRIDE);
            _tile_loadd(4, a0, A_STRIDE);
            _tile_loadd(5, a1, A_STRIDE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(2, 5, 6);
        }
    } else {
        _tile_loadd(1, c0 + B_ROW, C_STRIDE);
        _tile_loadd(3, c1 + B_ROW, C_STRIDE);
        for (int k = 0; k < n_k; k += B_K, a0 += B_K, a1 += B_K, b0 += B_K * B_ROW, b1 += B_K * B_ROW) {
            _tile_loadd(6, b0, B_STRIDE);
            _tile_loadd(4, a0, A_STRIDE);
            _tile_loadd(7, b1, B_STRIDE);
            _tile_loadd(5, a1, A_STRIDE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(1, c0 + B_ROW, C_STRIDE);
        _tile_stored(3, c1 + B_ROW, C_STRIDE);
    }
    _tile_stored(0, c0, C_STRIDE);
    _tile_stored(2, c1, C_STRIDE);
    MEMORY_BARRIER();
}

const mx_cpu_matmul_kernels mx_mm_amx = B16_KERNELS;
