/* sort.c - rows in order, with the columns that the values come from.
 *
 * A value and its column make one 64-bit key, so no two keys are equal, any method keeps equals in their order, and places can be
 * counted. sort_tiles orders tiles of up to 4096 keys in shared memory (bitonic); sort_merge makes one run of two neighbouring
 * runs: a key's place is its own place plus how many keys of the other run are below it, found by halving. Only the first k of
 * each row are written by the last launch. Order: numbers rising or falling, 0 and -0 are one, NaN last. */
#include "numbers.h"

enum { TILE = 4096 };

INLINE u64 key_of(f32 v, u32 c, u32 falling) {
    const u32 u = bits(v == 0 ? 0.0f : v);
    const u32 rise = u & 0x80000000u ? ~u : u | 0x80000000u;
    const u32 order = v != v ? 0xFFFFFFFFu : falling ? ~rise : rise;
    return (u64)order << 32 | c;
}

INLINE void put(mx_k_mat y, G i32 *ids, const G f32 *row, u64 key, u32 at, u32 k) {
    if (at >= k) return;
    const u32 c = (u32)key;
    row_of(y, bx())[at] = row[c];
    ids[(u64)bx() * k + at] = (i32)c;
}

/* Grid: x = rows, y = tiles of a row. Block: 512 threads; fewer do. tile: a power of two up to TILE, one for all. keys
 * [rows, cols], or NULL if a row is one tile: then y and ids [rows, k] are written. */
__gpu_kernel void sort_tiles(G u64 *keys, mx_k_mat y, G i32 *ids, mx_k_mat x, u32 cols, u32 tile, u32 falling,
                             u32 k) {
    SHARED u64 room[TILE];
    const G f32 *row = row_of(x, bx());
    const u32 first = by() * tile;
    for (u32 i = thread(); i < tile; i += threads())
        room[i] = first + i < cols ? key_of(row[first + i], first + i, falling) : ~(u64)0;
    for (u32 size = 2; size <= tile; size *= 2) {
        for (u32 half = size / 2; half; half /= 2) {
            barrier();
            for (u32 i = thread(); i < tile / 2; i += threads()) {
                const u32 lo = 2 * i - (i & (half - 1)), hi = lo + half;
                const u64 a = room[lo], b = room[hi];
                const bool swap = (a > b) == ((lo & size) == 0);
                room[lo] = swap ? b : a;
                room[hi] = swap ? a : b;
            }
        }
    }
    barrier();
    for (u32 i = thread(); i < tile && first + i < cols; i += threads()) {
        if (keys)
            keys[(u64)bx() * cols + first + i] = room[i];
        else
            put(y, ids, row, room[i], i, k);
    }
}

/* Grid: x = rows, y = ceil(cols / threads). in: runs of `run` keys in order, the last may be shorter; out: likewise of 2 run, or
 * NULL for the last merge: then y and ids are written. run: a power of two. */
__gpu_kernel void sort_merge(G u64 *out, const G u64 *in, mx_k_mat y, G i32 *ids, mx_k_mat x, u32 cols,
                             u32 run, u32 k) {
    const u32 i = by() * threads() + thread();
    if (i >= cols) return;
    const u64 at = (u64)bx() * cols;
    const u32 pair = i & ~(2 * run - 1), other = (i & run) ? pair : pair + run;
    const u64 key = in[at + i];
    u32 lo = min_u32(other, cols), hi = min_u32(other + run, cols);
    while (lo < hi) {
        const u32 mid = lo + (hi - lo) / 2;
        const bool below = in[at + mid] < key;
        lo = below ? mid + 1 : lo;
        hi = below ? hi : mid;
    }
    const u32 place = pair + (i & (run - 1)) + (lo - min_u32(other, cols));
    if (out)
        out[at + place] = key;
    else
        put(y, ids, row_of(x, bx()), key, place, k);
}
