/* recurrent.c - the recurrent layers' own: a short causal convolution, and the gated delta rule, token by token. */
#include "numbers.h"

/* ---- causal depthwise convolution, then SiLU ------------------------------------------------------------------
 * Tiling: a thread owns a channel of a sequence and walks its tokens; the last k_width inputs stand in registers, and 8 inputs
 * are fetched at a time. Grid: x = sequences, y = ceil(channels / 64). Block: 64 threads. y may be x.
 *   conv_4    k_width <= 4
 *   conv_32   k_width <= 32 */
enum { AHEAD = 8 };

INLINE void conv(const u32 width, mx_k_conv a, mx_k_batch b) {
    let_next_start();
    after_previous();
    const u32 c = by() * threads() + thread(), s = bx();
    if (c >= a.channels) return;
    const u32 first = (u32)b.seq_start[s], n_tok = (u32)b.seq_start[s + 1] - first, skip = width - a.k_width;
    G f32 *state = a.state + (u64)(u32)b.slot[s] * (a.k_width - 1) * a.channels + c;
    const G f32 *w = a.w + (u64)c * a.k_width;
    const f32 start = a.bias ? a.bias[c] : 0;
    f32 tap[32], past[32]; // right-aligned: past[width - 1] is the newest
    UNROLL for (u32 i = 0; i < width; i++) {
        tap[i] = i >= skip ? w[i - skip] : 0;
        past[i] = i > skip ? state[(u64)(i - skip - 1) * a.channels] : 0;
    }
    for (u32 t = 0; t < n_tok; t += AHEAD) {
        f32 in[AHEAD];
        UNROLL for (u32 i = 0; i < AHEAD; i++) in[i] = t + i < n_tok ? row_of(a.x, first + t + i)[c] : 0;
        UNROLL for (u32 i = 0; i < AHEAD; i++) {
            if (t + i >= n_tok) break;
            f32 sum = start;
            UNROLL for (u32 j = 0; j + 1 < width; j++) past[j] = past[j + 1];
            past[width - 1] = in[i];
            UNROLL for (u32 j = 0; j < width; j++) sum = fma32(tap[j], past[j], sum);
            row_of(a.y, first + t + i)[c] = silu32(sum);
        }
    }
    UNROLL for (u32 i = 0; i < width; i++) if (i > skip) state[(u64)(i - skip - 1) * a.channels] = past[i];
}
__gpu_kernel void conv_4(mx_k_conv a, mx_k_batch b) { conv(4, a, b); }
__gpu_kernel void conv_32(mx_k_conv a, mx_k_batch b) { conv(32, a, b); }

/* ---- gated delta rule (Yang et al. 2024) ----------------------------------------------------------------------
 * S = g S; S += k (beta (v - S^T k))^T; out = S^T q / sqrt(dk), q and k L2-normalized; state [dk, dv] per slot and value head.
 *
 * Tiling: a block owns 32 columns of the state of one (sequence, value head); lane = column. Wave w keeps rows 32 w to 32 w + 31
 * in registers. Tokens come in steps: k and q of a step go to shared memory with |k|^2, |q|^2 and k.q, so that one pass over
 * the old state gives both S^T k and S^T q: out = g S^T q + (k.q) d. Partial sums cross the waves through shared memory, one
 * barrier a token. dk <= 1024. Grid: x = value heads, y = sequences, z = ceil(dv / 32). Block: 32 * ceil(dk / 32) threads.
 * Shared memory: 32 KB. v and out may not overlap q and k of later tokens (out is a matrix of its own). */
enum { ROWS = 32, STEP = 16, VALUES = 2048, MOST_WAVES = 32 };

__gpu_kernel void delta_rule(mx_k_delta r, mx_k_batch b) {
    SHARED f32 ks[VALUES] __attribute__((aligned(16))), qs[VALUES] __attribute__((aligned(16)));
    SHARED f32 k_norm[STEP], q_norm[STEP], kq[STEP], decay[STEP], rate[STEP];
    SHARED f32 part_k[2][MOST_WAVES][WAVE], part_q[2][MOST_WAVES][WAVE];
    let_next_start();
    after_previous();
    const u32 head = bx(), s = by(), column = bz() * WAVE + lane(), row0 = wave() * ROWS,
              padded = n_wave() * ROWS;
    const u32 first = (u32)b.seq_start[s], n_tok = (u32)b.seq_start[s + 1] - first;
    const bool mine = column < r.dv;
    u32 key_head = 0;
    for (u32 h = r.heads_per_key; h <= head; h += r.heads_per_key) key_head++; // head / heads_per_key
    u32 step = 1;
    while (step < STEP && 2 * step * padded <= VALUES) step *= 2;
    G f32 *state = r.state + (((u64)(u32)b.slot[s] * r.n_v + head) * r.dk) * r.dv + column;
    f32 S[ROWS];
    UNROLL for (u32 i = 0; i < ROWS; i++) S[i] = mine && row0 + i < r.dk ? state[(u64)(row0 + i) * r.dv] : 0;
    const f32 slope = -exp32(r.a_log[head]), dt = r.dt_bias[head];
    u32 turn = 0;
    for (u32 t = 0; t < n_tok; t += step) {
        const u32 n = min_u32(step, n_tok - t);
        barrier();
        for (u32 e = wave(); e < n; e += n_wave()) { // a wave readies a token
            const G f32 *k = row_of(r.k, first + t + e) + key_head * r.dk,
                        *q = row_of(r.q, first + t + e) + key_head * r.dk;
            f32 kk = 0, qq = 0, both = 0;
            for (u32 i = lane(); i < padded; i += WAVE) {
                const f32 x = i < r.dk ? k[i] : 0, y = i < r.dk ? q[i] : 0;
                ks[e * padded + i] = x;
                qs[e * padded + i] = y;
                kk = fma32(x, x, kk), qq = fma32(y, y, qq), both = fma32(x, y, both);
            }
            kk = wave_sum(kk), qq = wave_sum(qq), both = wave_sum(both);
            if (lane() == 0) {
                const f32 kn = rsqrt32(kk + 1e-6f), qn = rsqrt32(qq + 1e-6f) * r.q_scale;
                k_norm[e] = kn, q_norm[e] = qn, kq[e] = both * kn * qn;
                decay[e] = exp32(slope * softplus32(row_of(r.a, first + t + e)[head] + dt));
                rate[e] = sigmoid32(row_of(r.b, first + t + e)[head]);
            }
        }
        barrier();
        for (u32 e = 0; e < n; e++, turn ^= 1) {
            const f32 v = mine ? row_of(r.v, first + t + e)[head * r.dv + column] : 0;
            const LDS f32x4 *k = (const LDS f32x4 *)(ks + e * padded + row0),
                            *q = (const LDS f32x4 *)(qs + e * padded + row0);
            f32 sk = 0, sq = 0;
            UNROLL for (u32 i = 0; i < ROWS; i += 4) {
                const f32x4 x = k[i / 4], y = q[i / 4];
                sk = fma32(S[i], x.x, fma32(S[i + 1], x.y, fma32(S[i + 2], x.z, fma32(S[i + 3], x.w, sk))));
                sq = fma32(S[i], y.x, fma32(S[i + 1], y.y, fma32(S[i + 2], y.z, fma32(S[i + 3], y.w, sq))));
            }
            part_k[turn][wave()][lane()] = sk;
            part_q[turn][wave()][lane()] = sq;
            barrier();
            sk = 0, sq = 0;
            for (u32 w = 0; w < n_wave(); w++) sk += part_k[turn][w][lane()], sq += part_q[turn][w][lane()];
            const f32 g = decay[e], kn = k_norm[e];
            const f32 d = rate[e] * (v - g * kn * sk);
            if (wave() == 0 && mine)
                row_of(r.out, first + t + e)[head * r.dv + column] = fma32(g * q_norm[e], sq, kq[e] * d);
            const f32 dk = d * kn;
            UNROLL for (u32 i = 0; i < ROWS; i += 4) {
                const f32x4 x = k[i / 4];
                S[i] = fma32(x.x, dk, S[i] * g);
                S[i + 1] = fma32(x.y, dk, S[i + 1] * g);
                S[i + 2] = fma32(x.z, dk, S[i + 2] * g);
                S[i + 3] = fma32(x.w, dk, S[i + 3] * g);
            }
        }
    }
    UNROLL for (u32 i = 0; i < ROWS; i++) if (mine && row0 + i < r.dk) state[(u64)(row0 + i) * r.dv] = S[i];
}
