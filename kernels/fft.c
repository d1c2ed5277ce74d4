/* fft.c - Fourier transforms of rows whose length has only the factors 2, 3, 5 and 7, Stockham's form.
 *
 * A pass of radix R, after passes whose radices multiply to L: butterfly i takes the points i + q n / R, turns them by
 * exp(-2 pi i k q / (L R)) where k = i mod L, transforms the R of them, and leaves them at (i / L) L R + k + q L. After the last
 * pass the points are in order. Radices 2, 3, 4, 5, 7, 8; a thread owns a butterfly. Angles are whole fractions of a turn, reduced to
 * an eighth in integers before sine and cosine, so that the error does not grow with n.
 *   fft_near   n <= 2048: all passes in shared memory, a block owns a row
 *   fft_far    one pass from memory to memory
 * The first pass reads, and the last one writes, complex numbers, real ones, or the half of a mirror image (mx_k_fft). A quotient
 * by L is a product with 1 / L in f32 of a number below 2^17, which is exact after rounding down the half-way point. */
#include "numbers.h"

enum { NEAR = 2048 };
enum { COMPLEX, REAL, HALF }; // what rows hold; HALF: n / 2 + 1 complex points of a real row's transform

typedef struct {
    f32 re, im;
} point;

INLINE point add(point a, point b) { return (point){a.re + b.re, a.im + b.im}; }
INLINE point less(point a, point b) { return (point){a.re - b.re, a.im - b.im}; }
INLINE point times(point a, f32 c, f32 s) { // a (c + i s)
    return (point){fma32(a.re, c, -a.im * s), fma32(a.re, s, a.im * c)};
}
INLINE point quarter(point a, f32 sign) { return (point){-sign * a.im, sign * a.re}; } // a times sign i

/* a exp(sign 2 pi i num / den), num < den <= 2^17; inv: 1 / den */
INLINE point turned(point a, u32 num, u32 den, f32 inv, f32 sign) {
    const u32 quarters = (u32)fma32((f32)(4 * num), inv, 0.5f);
    const f32 rest = (f32)((i32)(4 * num) - (i32)(quarters * den)) * inv; // in quarter turns, up to a half
    f32 s, c;
    sincos32(rest * 1.57079637f, &s, &c);
    const f32 cosine = quarters & 1 ? -s : c, sine = quarters & 1 ? c : s;
    const f32 flip = quarters & 2 ? -1.0f : 1.0f;
    return times(a, flip * cosine, sign * flip * sine);
}

/* cos, sin of 2 pi j / n for the odd radices */
static const f32 cos3[3] = {1, -0.5f, -0.5f}, sin3[3] = {0, 0.866025404f, -0.866025404f};
static const f32 cos5[5] = {1, 0.309016994f, -0.809016994f, -0.809016994f, 0.309016994f},
                 sin5[5] = {0, 0.951056516f, 0.587785252f, -0.587785252f, -0.951056516f};
static const f32
    cos7[7] = {1, 0.623489802f, -0.222520934f, -0.900968868f, -0.900968868f, -0.222520934f, 0.623489802f},
    sin7[7] = {0, 0.781831482f, 0.974927912f, 0.433883739f, -0.433883739f, -0.974927912f, -0.781831482f};

/* v = its transform of r points, r a constant */
INLINE void small_odd(point *v, u32 r, const f32 *cosine, const f32 *sine, f32 sign) {
    point sums[4], gaps[4], out[7];
    out[0] = v[0];
    UNROLL for (u32 q = 1; q <= r / 2; q++) {
        sums[q] = add(v[q], v[r - q]);
        gaps[q] = less(v[q], v[r - q]);
        out[0] = add(out[0], sums[q]);
    }
    UNROLL for (u32 p = 1; p <= r / 2; p++) {
        point even = v[0], odd = {0, 0};
        UNROLL for (u32 q = 1; q <= r / 2; q++) {
            const f32 c = cosine[p * q % r], s = sine[p * q % r];
            even.re = fma32(sums[q].re, c, even.re), even.im = fma32(sums[q].im, c, even.im);
            odd.re = fma32(gaps[q].re, s, odd.re), odd.im = fma32(gaps[q].im, s, odd.im);
        }
        odd = quarter(odd, sign);
        out[p] = add(even, odd);
        out[r - p] = less(even, odd);
    }
    UNROLL for (u32 q = 0; q < r; q++) v[q] = out[q];
}

INLINE void small4(point *a, point *b, point *c, point *d, f32 sign) {
    const point s = add(*a, *c), t = less(*a, *c), u = add(*b, *d), w = quarter(less(*b, *d), sign);
    *a = add(s, u);
    *b = add(t, w);
    *c = less(s, u);
    *d = less(t, w);
}

INLINE void small(point *v, u32 r, f32 sign) {
    if (r == 2) {
        const point a = add(v[0], v[1]), b = less(v[0], v[1]);
        v[0] = a, v[1] = b;
    } else if (r == 3) {
        small_odd(v, 3, cos3, sin3, sign);
    } else if (r == 4) {
        small4(v, v + 1, v + 2, v + 3, sign);
    } else if (r == 5) {
        small_odd(v, 5, cos5, sin5, sign);
    } else if (r == 7) {
        small_odd(v, 7, cos7, sin7, sign);
    } else if (r == 8) { // even and odd points apart
        const f32 h = 0.707106781f;
        point e[4] = {v[0], v[2], v[4], v[6]}, o[4] = {v[1], v[3], v[5], v[7]};
        small4(e, e + 1, e + 2, e + 3, sign);
        small4(o, o + 1, o + 2, o + 3, sign);
        o[1] = times(o[1], h, sign * h);
        o[2] = quarter(o[2], sign);
        o[3] = times(o[3], -h, sign * h);
        UNROLL for (u32 q = 0; q < 4; q++) v[q] = add(e[q], o[q]), v[q + 4] = less(e[q], o[q]);
    }
}

INLINE point load(const G f32 *row, u32 i, u32 n, u32 holds) {
    if (holds == REAL) return (point){row[i], 0};
    if (holds == COMPLEX) return (point){row[2 * i], row[2 * i + 1]};
    const bool mirror = i > n / 2;
    const u32 j = mirror ? n - i : i;
    const f32 im = j == 0 || 2 * j == n ? 0 : row[2 * j + 1]; // a real row has none there
    return (point){row[2 * j], mirror ? -im : im};
}
/* Where the word goes is chosen, not the word: clang 22 for gfx11 swaps them where a branch chooses (tests/ops: fft). */
INLINE void store(G f32 *row, u32 i, u32 n, u32 holds, point v, f32 scale) {
    const bool kept = holds != HALF || i <= n / 2;
    if (kept) row[holds == REAL ? i : 2 * i] = v.re * scale;
    if (kept && holds != REAL) row[2 * i + 1] = v.im * scale;
}

/* Butterfly i between passes: its points are turned and transformed; returns where the first of them goes. before: L */
INLINE u32 butterfly(point *v, u32 r, u32 i, u32 before, f32 sign) {
    const u32 whole = before * r;
    const f32 inv = rcp32((f32)whole);
    const u32 block = (u32)(((f32)i + 0.5f) * rcp32((f32)before)), k = i - block * before;
    UNROLL for (u32 q = 1; q < r; q++) if (before > 1) v[q] = turned(v[q], k * q, whole, inv, sign);
    small(v, r, sign);
    return block * whole + k;
}

INLINE void near_pass(LDS point *out, const LDS point *in, u32 r, u32 n, u32 before, f32 sign) {
    const u32 step = n / r; // r is a constant
    for (u32 i = thread(); i < step; i += threads()) {
        point v[8];
        UNROLL for (u32 q = 0; q < r; q++) v[q].re = in[i + q * step].re, v[q].im = in[i + q * step].im;
        const u32 to = butterfly(v, r, i, before, sign);
        UNROLL for (u32 q = 0; q < r; q++) out[to + q * before].re = v[q].re,
                                                        out[to + q * before].im = v[q].im;
    }
}

/* radices: the passes' radices, 4 bits each, the first lowest. sign: -1 forward, 1 back. Grid: x = rows. Block: 32 to 256. */
__gpu_kernel void fft_near(mx_k_mat y, mx_k_mat x, u32 n, u64 radices, u32 x_holds, u32 y_holds, f32 sign,
                           f32 scale) {
    SHARED point room[2 * NEAR];
    const G f32 *in = row_of(x, bx());
    for (u32 i = thread(); i < n; i += threads()) {
        const point v = load(in, i, n, x_holds);
        room[i].re = v.re, room[i].im = v.im;
    }
    u32 from = 0;
    for (u32 before = 1; radices; radices >>= 4) {
        const u32 r = (u32)radices & 15;
        LDS point *a = room + from, *b = room + (NEAR - from);
        barrier();
        switch (r) {
        case 2: near_pass(b, a, 2, n, before, sign); break;
        case 3: near_pass(b, a, 3, n, before, sign); break;
        case 4: near_pass(b, a, 4, n, before, sign); break;
        case 5: near_pass(b, a, 5, n, before, sign); break;
        case 7: near_pass(b, a, 7, n, before, sign); break;
        default: near_pass(b, a, 8, n, before, sign);
        }
        before *= r;
        from = NEAR - from;
    }
    barrier();
    G f32 *out = row_of(y, bx());
    for (u32 i = thread(); i < n; i += threads())
        store(out, i, n, y_holds, (point){room[from + i].re, room[from + i].im}, scale);
}

INLINE void far_pass(G f32 *out, const G f32 *in, u32 r, u32 n, u32 before, u32 x_holds, u32 y_holds,
                     f32 sign, f32 scale) {
    const u32 step = n / r, i = by() * threads() + thread(); // r is a constant
    if (i >= step) return;
    point v[8];
    UNROLL for (u32 q = 0; q < r; q++) v[q] = load(in, i + q * step, n, x_holds);
    const u32 to = butterfly(v, r, i, before, sign);
    UNROLL for (u32 q = 0; q < r; q++) store(out, to + q * before, n, y_holds, v[q], scale);
}

/* Grid: x = rows, y = ceil(n / radix / threads). y is not x. */
__gpu_kernel void fft_far(mx_k_mat y, mx_k_mat x, u32 n, u32 radix, u32 before, u32 x_holds, u32 y_holds,
                          f32 sign, f32 scale) {
    const G f32 *in = row_of(x, bx());
    G f32 *out = row_of(y, bx());
    switch (radix) {
    case 2: far_pass(out, in, 2, n, before, x_holds, y_holds, sign, scale); break;
    case 3: far_pass(out, in, 3, n, before, x_holds, y_holds, sign, scale); break;
    case 4: far_pass(out, in, 4, n, before, x_holds, y_holds, sign, scale); break;
    case 5: far_pass(out, in, 5, n, before, x_holds, y_holds, sign, scale); break;
    case 7: far_pass(out, in, 7, n, before, x_holds, y_holds, sign, scale); break;
    default: far_pass(out, in, 8, n, before, x_holds, y_holds, sign, scale);
    }
}
