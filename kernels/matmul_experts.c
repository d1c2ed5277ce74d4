/* matmul_experts.c - sorts rows by expert, so that matmul.c can multiply the rows of an expert together.
 *
 * expert_tiles: rows[] becomes the numbers 0 to n_row - 1 sorted by ids[] (rows of an expert keep their order: no atomics, so the
 * same every time), x_rows[i] = rows[i] / rows that share a row of x, and tiles[] the list of tiles: expert, first and end of its
 * rows in the sorted order, 0; expert -1 in what is left of the max_tile tiles. Rows of experts that do not exist are left out.
 *
 * Grid: one block of 512 threads. n_expert <= 512, n_row < 2^27, max_tile >= n_row / tile + n_expert (rounded up) and
 * >= 1. Shared memory 34 KiB. A wave counts a contiguous range of rows, 32 a step: lanes with the same expert find each other (AMD: by
 * 32 exchanges), the first of them counts for all. */
#include "gpu.h"
#include "args.h"

enum { SORT_WAVES = 16, SORT_EXPERTS = 512 };
#if defined(__NVPTX__)
enum { AHEAD = 8 }; // steps whose ids are loaded together
#else
enum { AHEAD = 1 };
#endif

/* Lanes below this one with the same e, and all of them. */
INLINE void same_as(u32 e, u32 *below, u32 *all) {
#if defined(__NVPTX__)
    const u32 same = __nvvm_match_any_sync_i32(0xFFFFFFFFu, e);
    *all = (u32)__builtin_popcount(same);
    *below = (u32)__builtin_popcount(same & ((1u << lane()) - 1));
#else
    *below = *all = 0;
    for (u32 i = 0; i < WAVE; i++) {
        const u32 same = shuffle_u32(e, i) == e;
        *all += same;
        *below += same & (i < lane());
    }
#endif
}

/* Sums of v over the threads before this one. */
INLINE u32 sum_before(u32 v, LDS u32 *room) {
    const u32 t = thread();
    u32 sum = v;
    for (u32 d = 1; d < SORT_EXPERTS; d *= 2) {
        room[t] = sum;
        barrier();
        const u32 more = t >= d ? room[t - d] : 0;
        barrier();
        sum += more;
    }
    return sum - v;
}

/* The experts of this lane's rows from `row` on, one each 32; those past the end have none. */
INLINE void load_ids(u32 *e, const mx_k_expert_tiles *a, u32 row) {
    UNROLL for (u32 i = 0; i < AHEAD; i++) {
        const u32 r = row + i * WAVE + lane();
        e[i] = r < a->n_row ? (u32)a->ids[r] : ~0u;
    }
}

#if defined(__AMDGPU__)
__attribute__((amdgpu_flat_work_group_size(512, 512)))
#endif
__gpu_kernel void
expert_tiles(mx_k_expert_tiles a) {
    SHARED u32 count[SORT_WAVES][SORT_EXPERTS];
    SHARED u32 room[SORT_EXPERTS];
    const u32 t = thread(), w = wave();
    for (u32 i = 0; i < SORT_WAVES; i++) count[i][t] = 0;
    barrier();
    const u32 whole = SORT_WAVES * WAVE * AHEAD, steps = (a.n_row + whole - 1) / whole * AHEAD;
    const u32 from = w * steps * WAVE;
    for (u32 first = 0; first < steps; first += AHEAD) {
        u32 e[AHEAD];
        load_ids(e, &a, from + first * WAVE);
        UNROLL for (u32 i = 0; i < AHEAD; i++) {
            u32 below, all;
            same_as(e[i], &below, &all);
            if (e[i] < a.n_expert && below == 0) count[w][e[i]] += all;
            barrier();
        }
    }
    u32 n = 0; // rows of expert t; count[i][t] becomes where wave i's begin
    if (t < a.n_expert)
        for (u32 i = 0; i < SORT_WAVES; i++) {
            const u32 c = count[i][t];
            count[i][t] = n;
            n += c;
        }
    const u32 begin = sum_before(n, room), n_tile = (n + (1u << a.tile_shift) - 1) >> a.tile_shift;
    const u32 tile = sum_before(n_tile, room);
    for (u32 i = 0; i < SORT_WAVES; i++) count[i][t] += begin;
    room[t] = tile + n_tile;
    barrier();
    const u32 tiles = room[SORT_EXPERTS - 1];
    for (u32 i = 0; i < n_tile && tile + i < a.max_tile; i++) {
        G i32 *to = a.tiles + 4 * (u64)(tile + i);
        to[0] = (i32)t, to[1] = (i32)(begin + (i << a.tile_shift)), to[2] = (i32)(begin + n), to[3] = 0;
    }
    for (u32 i = tiles + t; i < a.max_tile; i += threads()) a.tiles[4 * (u64)i] = -1;
    for (u32 first = 0; first < steps; first += AHEAD) {
        u32 e[AHEAD];
        load_ids(e, &a, from + first * WAVE);
        UNROLL for (u32 i = 0; i < AHEAD; i++) {
            const u32 row = from + (first + i) * WAVE + lane();
            u32 below, all;
            same_as(e[i], &below, &all);
            const u32 at = e[i] < a.n_expert ? count[w][e[i]] + below : 0;
            barrier();
            if (e[i] < a.n_expert) {
                if (below == 0) count[w][e[i]] += all;
                a.rows[at] = (i32)row;
                a.x_rows[at] = (i32)(row * a.x_magic >> 32);
            }
            barrier();
        }
    }
}
