/* hadamard.c - y = scale * H x for rows of m 2^k values, H = (a matrix of order m) kron (Sylvester's of order 2^k), in passes.
 *
 *   hadamard_near   the lowest bits of the index, up to 12: tiles of 2^bits neighbours in shared memory
 *   hadamard_far    up to 4 more bits: a thread owns 2, 4, 8 or 16 values `stride` apart
 *   hadamard_12, _20, _28   the matrix of order m: a thread owns m values `stride` = 2^k apart
 * The order of passes does not matter; each may work in place (y = x), as what a thread or tile reads only it writes. Grid of the
 * latter two: x = rows, y = ceil(values of a row / values of a thread / threads). scale: 1 but in one of the passes. */
#include "numbers.h"
#include "hadamard.h"

enum { NEAR = 4096 };

/* Grid: x = rows, y = cols / 2^bits. Block: 32 to 1024 threads. */
__gpu_kernel void hadamard_near(mx_k_mat y, mx_k_mat x, u32 bits_of_tile, f32 scale) {
    SHARED f32 room[NEAR];
    const u32 n = 1u << bits_of_tile;
    const G f32 *in = row_of(x, bx()) + (u64)by() * n;
    G f32 *out = row_of(y, bx()) + (u64)by() * n;
    for (u32 i = thread(); i < n; i += threads()) room[i] = in[i];
    for (u32 half = 1; half < n; half *= 2) {
        barrier();
        for (u32 i = thread(); i < n / 2; i += threads()) {
            const u32 lo = 2 * i - (i & (half - 1));
            const f32 a = room[lo], b = room[lo + half];
            room[lo] = a + b;
            room[lo + half] = a - b;
        }
    }
    barrier();
    for (u32 i = thread(); i < n; i += threads()) out[i] = room[i] * scale;
}

INLINE void far(mx_k_mat y, mx_k_mat x, u32 n, u32 cols, u32 stride,
                f32 scale) { // n: a constant power of two
    const u32 i = by() * threads() + thread();
    if (i >= cols / n) return;
    const u32 k = i & (stride - 1), first = (i - k) * n + k;
    const G f32 *in = row_of(x, bx()) + first;
    G f32 *out = row_of(y, bx()) + first;
    f32 v[16];
    UNROLL for (u32 q = 0; q < n; q++) v[q] = in[q * stride];
    UNROLL for (u32 half = 1; half < n; half *= 2) {
        UNROLL for (u32 q = 0; q < n / 2; q++) {
            const u32 lo = 2 * q - (q & (half - 1));
            const f32 a = v[lo], b = v[lo + half];
            v[lo] = a + b;
            v[lo + half] = a - b;
        }
    }
    UNROLL for (u32 q = 0; q < n; q++) out[q * stride] = v[q] * scale;
}

__gpu_kernel void hadamard_far(mx_k_mat y, mx_k_mat x, u32 bits_at_once, u32 cols, u32 stride, f32 scale) {
    switch (bits_at_once) {
    case 1: far(y, x, 2, cols, stride, scale); break;
    case 2: far(y, x, 4, cols, stride, scale); break;
    case 3: far(y, x, 8, cols, stride, scale); break;
    default: far(y, x, 16, cols, stride, scale);
    }
}

INLINE void odd(mx_k_mat y, mx_k_mat x, const u32 *sign, u32 m, u32 stride, f32 scale) { // m: a constant
    const u32 i = by() * threads() + thread();
    if (i >= stride) return;
    const G f32 *in = row_of(x, bx()) + i;
    G f32 *out = row_of(y, bx()) + i;
    f32 v[28];
    UNROLL for (u32 q = 0; q < m; q++) v[q] = in[q * stride];
    UNROLL for (u32 p = 0; p < m; p++) {
        f32 sum = 0;
        UNROLL for (u32 q = 0; q < m; q++) sum += sign[p] >> q & 1 ? -v[q] : v[q];
        out[p * stride] = sum * scale;
    }
}

__gpu_kernel void hadamard_12(mx_k_mat y, mx_k_mat x, u32 stride, f32 scale) {
    odd(y, x, mx_hadamard12, 12, stride, scale);
}
__gpu_kernel void hadamard_20(mx_k_mat y, mx_k_mat x, u32 stride, f32 scale) {
    odd(y, x, mx_hadamard20, 20, stride, scale);
}
__gpu_kernel void hadamard_28(mx_k_mat y, mx_k_mat x, u32 stride, f32 scale) {
    odd(y, x, mx_hadamard28, 28, stride, scale);
}
