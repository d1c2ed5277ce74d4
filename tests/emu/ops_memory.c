/* ops_memory.c - scalar loads, global, flat and scratch memory, atomics. Slots of an op: 0 the vector address (r[3]: a pair of
 * registers), 1 the scalar base, 2 the data. Every lane's address is checked against live memory before it is used. */
#include "machine.h"
#include "memory.h"

/* ---- scalar loads ------------------------------------------------------------------------------------------ */

static void s_load(emu_wave *w, const emu_op *o) {
    const uint64_t at = (sq(w, o, 0) + su(w, o, 1) + (uint64_t)(int64_t)o->off) & ~3ull;
    const unsigned n = o->nd;
    const uint32_t *p = emu_access(w, o, at, n * 4, -1, false);
    w->k->smem_bytes += n * 4;
    uint32_t got[16];
    memcpy(got, p, n * 4);
    for (unsigned i = 0; i < n; i++) put_s(w, o->d + i, got[i]);
    emu_pend(w, o, QUEUE_SMEM, VGPRS + o->d, n);
}

/* ---- global ------------------------------------------------------------------------------------------------ */

FORCE Q global_address(emu_wave *w, const emu_op *o) {
    const U lo = w->v[o->r[0]];
    if (o->r[3]) {
        const U hi = w->v[o->r[0] + 1];
        return (__builtin_convertvector(lo, Q) | __builtin_convertvector(hi, Q) << 32) +
               (uint64_t)(int64_t)o->off;
    }
    return __builtin_convertvector(lo, Q) + (sq(w, o, 1) + (uint64_t)(int64_t)o->off);
}
FORCE bool any_above(Q x, uint64_t limit) {
    L bad = (L)(x > limit);
    return __builtin_reduce_or(bad) != 0;
}

static void count_lines(emu_wave *w, emu_range *g, const Q *a, unsigned size, uint32_t exec) {
    uint64_t last = 0, n = 0, seen[LANES];
    for (int i = 0; i < LANES; i++) {
        if (!(exec >> i & 1)) continue;
        for (uint64_t line = (*a)[i] >> 7; line <= ((*a)[i] + size - 1) >> 7; line++) {
            if (g->lines && (line << 7) + 127 >= g->begin && line << 7 < g->end)
                g->lines[(line - (g->begin >> 7))] = 1;
            if (line == last) continue;
            uint64_t j = 0;
            while (j < n && seen[j] != line) j++;
            if (j == n && n < LANES) seen[n++] = line;
            last = line;
        }
    }
    w->k->lines += n;
}

/* Check the lanes' addresses. Those of lanes that are off become that of an active one, so all may be read. False: no lane is on. */
static bool locate(emu_wave *w, const emu_op *o, Q *a, unsigned size, bool store) {
    const uint32_t exec = w->s[EXEC];
    if (!exec) return false;
    const int first = __builtin_ctz(exec);
    if (exec != ~0u) {
        const L on = __builtin_convertvector((I)lane_mask(exec), L);
        *a = (*a & (Q)on) | ((Q)((*a)[first]) & ~(Q)on);
    }
    emu_range *g = &w->k->seen[o->pc >> 2 & 63];
    for (int attempt = 0;; attempt++) {
        const uint64_t room = g->end - g->begin;
        if (room >= size && !any_above(*a - g->begin, room - size)) break;
        if (attempt || !emu_find((*a)[first], size, g)) { // several ranges, or a bad address
            for (int i = 0; i < LANES; i++)
                if (exec >> i & 1) emu_access(w, o, (*a)[i], size, i, store);
            g->begin = g->end = 0;
            return true;
        }
    }
    if (store && g->kind == MEM_CODE)
        emu_fault(w, o, 700, "store into a code object at 0x%llx", (unsigned long long)(*a)[first]);
    if (g->written)
        for (int i = 0; i < LANES; i++)
            if (exec >> i & 1) emu_access(w, o, (*a)[i], size, i, store);
    if (w->k->counts) count_lines(w, g, a, size, exec);
    return true;
}
FORCE bool in_a_row(Q a, unsigned size) {
    const Q step = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    L differ = (L)((a - a[0]) != step * size);
    return __builtin_reduce_or(differ) == 0;
}

static void global_load(emu_wave *w, const emu_op *o) { // whole words
    const unsigned n = o->nd;
    Q a = global_address(w, o);
    emu_pend(w, o, QUEUE_VMEM, o->d, n);
    if (!locate(w, o, &a, 4 * n, false)) return;
    w->k->load_bytes += (unsigned)__builtin_popcount(w->s[EXEC]) * 4ull * n;
    const uint8_t *p[LANES];
    memcpy(p, &a, sizeof p);
    if (n == 1) {
        U r;
        if (in_a_row(a, 4))
            memcpy(&r, p[0], sizeof r);
        else
            for (int i = 0; i < LANES; i++) memcpy((uint32_t *)&r + i, p[i], 4);
        put(w, o, r);
        return;
    }
    U r[4];
    gather_words(r, p, n);
    for (unsigned j = 0; j < n; j++) put_at(w, o->d + j, r[j]);
}
static void global_store(emu_wave *w, const emu_op *o) {
    const unsigned n = o->size / 4;
    Q a = global_address(w, o);
    if (!locate(w, o, &a, 4 * n, true)) return;
    w->k->store_bytes += (unsigned)__builtin_popcount(w->s[EXEC]) * 4ull * n;
    const uint32_t exec = w->s[EXEC];
    if (n == 1 && exec == ~0u && in_a_row(a, 4)) {
        memcpy((void *)a[0], &w->v[o->r[2]], 128);
        return;
    }
    for (int i = 0; i < LANES; i++) {
        if (!(exec >> i & 1)) continue;
        for (unsigned j = 0; j < n; j++) memcpy((uint32_t *)a[i] + j, (uint32_t *)&w->v[o->r[2] + j] + i, 4);
    }
}
#define LOAD_PART(name, T, merge)                                                                            \
    static void name(emu_wave *w, const emu_op *o) {                                                         \
        Q a = global_address(w, o);                                                                          \
        emu_pend(w, o, QUEUE_VMEM, o->d, 1);                                                                 \
        if (!locate(w, o, &a, sizeof(T), false)) return;                                                     \
        w->k->load_bytes += (unsigned)__builtin_popcount(w->s[EXEC]) * sizeof(T);                            \
        const U old = w->v[o->d];                                                                            \
        U r;                                                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            T v;                                                                                             \
            memcpy(&v, (const void *)a[i], sizeof v);                                                        \
            const uint32_t x = (uint32_t)v, was = old[i];                                                    \
            (void)was;                                                                                       \
            r[i] = merge;                                                                                    \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
#define LOW ((x & 0xFFFFu) | (was & 0xFFFF0000u))
#define HIGH (x << 16 | (was & 0xFFFFu))
LOAD_PART(gl_u8, uint8_t, x)
LOAD_PART(gl_i8, int8_t, x)
LOAD_PART(gl_u16, uint16_t, x)
LOAD_PART(gl_i16, int16_t, x)
LOAD_PART(gl_d16_u8, uint8_t, LOW)
LOAD_PART(gl_d16_i8, int8_t, LOW)
LOAD_PART(gl_d16_b16, uint16_t, LOW)
LOAD_PART(gl_d16_hi_u8, uint8_t, HIGH)
LOAD_PART(gl_d16_hi_i8, int8_t, HIGH)
LOAD_PART(gl_d16_hi_b16, uint16_t, HIGH)
static void store_part(emu_wave *w, const emu_op *o, unsigned size, int shift) {
    Q a = global_address(w, o);
    if (!locate(w, o, &a, size, true)) return;
    w->k->store_bytes += (unsigned)__builtin_popcount(w->s[EXEC]) * size;
    for (int i = 0; i < LANES; i++) {
        const uint32_t v = w->v[o->r[2]][i] >> (o->half & 4 ? 16 : shift);
        if (w->s[EXEC] >> i & 1) memcpy((void *)a[i], &v, size);
    }
}
static void gs_b8(emu_wave *w, const emu_op *o) { store_part(w, o, 1, 0); }
static void gs_b16(emu_wave *w, const emu_op *o) { store_part(w, o, 2, 0); }
static void gs_d16_hi_b8(emu_wave *w, const emu_op *o) { store_part(w, o, 1, 16); }
static void gs_d16_hi_b16(emu_wave *w, const emu_op *o) { store_part(w, o, 2, 16); }

/* ---- atomics ----------------------------------------------------------------------------------------------- */

#define ATOMIC(name, T, V, expr)                                                                             \
    static void ga_##name(emu_wave *w, const emu_op *o) {                                                    \
        Q a = global_address(w, o);                                                                          \
        if (o->glc) emu_pend(w, o, QUEUE_VMEM, o->d, sizeof(T) / 4);                                         \
        if (!locate(w, o, &a, sizeof(T), true)) return;                                                      \
        w->k->atomic_bytes += (unsigned)__builtin_popcount(w->s[EXEC]) * sizeof(T);                          \
        U back[2];                                                                                           \
        for (int i = 0; i < LANES; i++) {                                                                    \
            if (!(w->s[EXEC] >> i & 1)) continue;                                                            \
            if (a[i] % sizeof(T))                                                                            \
                emu_fault(w, o, 700, "lane %d: atomic at 0x%llx, which is not aligned", i,                   \
                          (unsigned long long)a[i]);                                                         \
            T old = __atomic_load_n((T *)a[i], __ATOMIC_RELAXED), want;                                      \
            do {                                                                                             \
                const V x = from_##V(old), y = from_##V(lane_data_##T(w, o, i, 0)),                          \
                        z = from_##V(lane_data_##T(w, o, i, 1));                                             \
                (void)x, (void)y, (void)z;                                                                   \
                want = to_##V(expr);                                                                         \
            } while (!__atomic_compare_exchange_n((T *)a[i], &old, want, false, __ATOMIC_SEQ_CST,            \
                                                  __ATOMIC_SEQ_CST));                                        \
            back[0][i] = (uint32_t)old;                                                                      \
            back[1][i] = (uint32_t)((uint64_t)old >> 32);                                                    \
        }                                                                                                    \
        if (!o->glc) return;                                                                                 \
        for (unsigned j = 0; j < sizeof(T) / 4; j++) put_at(w, o->d + j, back[j]);                           \
    }
ATOMICS(ATOMIC)

/* ---- scratch: a lane's own memory -------------------------------------------------------------------------- */

static uint8_t *scratch_at(emu_wave *w, const emu_op *o, uint32_t at, unsigned size, int lane, bool store) {
    const uint32_t room = w->k->launch->kernel->scratch;
    if (at > room || size > room - at)
        emu_fault(w, o, 700, "lane %d: scratch %s of %u bytes at %u, a lane has %u", lane,
                  store ? "store" : "load", size, at, room);
    return w->scratch + (size_t)lane * room + at;
}
FORCE uint32_t scratch_address(emu_wave *w, const emu_op *o, int lane) {
    return (o->r[0] < VGPRS ? w->v[o->r[0]][lane] : 0) + su(w, o, 1) + (uint32_t)o->off;
}
static void scratch_load(emu_wave *w, const emu_op *o) {
    U r[4];
    emu_pend(w, o, QUEUE_VMEM, o->d, o->nd);
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        const uint8_t *p = scratch_at(w, o, scratch_address(w, o, i), o->nd * 4, i, false);
        for (unsigned j = 0; j < o->nd; j++) memcpy((uint32_t *)&r[j] + i, p + 4 * j, 4);
    }
    for (unsigned j = 0; j < o->nd; j++) put_at(w, o->d + j, r[j]);
}
static void scratch_store(emu_wave *w, const emu_op *o) {
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        uint8_t *p = scratch_at(w, o, scratch_address(w, o, i), o->size, i, true);
        const uint32_t half = w->v[o->r[2]][i] >> (o->half & 4 ? 16 : 0);
        if (o->size < 4)
            memcpy(p, &half, o->size);
        else
            for (unsigned j = 0; j < o->size / 4; j++)
                memcpy(p + 4 * j, (uint32_t *)&w->v[o->r[2] + j] + i, 4);
    }
}
#define SCRATCH_PART(name, T, merge)                                                                         \
    static void name(emu_wave *w, const emu_op *o) {                                                         \
        U r = w->v[o->d];                                                                                    \
        emu_pend(w, o, QUEUE_VMEM, o->d, 1);                                                                 \
        for (int i = 0; i < LANES; i++) {                                                                    \
            if (!(w->s[EXEC] >> i & 1)) continue;                                                            \
            T v;                                                                                             \
            memcpy(&v, scratch_at(w, o, scratch_address(w, o, i), sizeof v, i, false), sizeof v);            \
            const uint32_t x = (uint32_t)v, was = r[i];                                                      \
            (void)was;                                                                                       \
            r[i] = merge;                                                                                    \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
SCRATCH_PART(sl_u8, uint8_t, x)
SCRATCH_PART(sl_i8, int8_t, x)
SCRATCH_PART(sl_u16, uint16_t, x)
SCRATCH_PART(sl_i16, int16_t, x)
SCRATCH_PART(sl_d16_b16, uint16_t, LOW)
SCRATCH_PART(sl_d16_hi_b16, uint16_t, HIGH)

/* ---- flat: an address says by its upper half whether it is LDS, scratch or global ---------------------------- */

static uint8_t *flat_at(emu_wave *w, const emu_op *o, unsigned size, int i, bool store) {
    const uint64_t at = (w->v[o->r[0]][i] | (uint64_t)w->v[o->r[0] + 1][i] << 32) + (uint64_t)(int64_t)o->off;
    if (at >> 32 == PRIVATE_APERTURE) return scratch_at(w, o, (uint32_t)at, size, i, store);
    if (at >> 32 != SHARED_APERTURE) return emu_access(w, o, at, size, i, store);
    if ((uint32_t)at + size > w->k->lds_bytes)
        emu_fault(w, o, 700, "lane %d: flat access of %u bytes at %u in LDS, the workgroup has %u", i, size,
                  (uint32_t)at, w->k->lds_bytes);
    return w->k->lds + (uint32_t)at;
}
static void flat_load(emu_wave *w, const emu_op *o) {
    U r[4];
    emu_pend(w, o, QUEUE_VMEM, o->d, o->nd);
    emu_pend(w, o, QUEUE_LDS, o->d, o->nd);
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        const uint8_t *p = flat_at(w, o, o->nd * 4, i, false);
        for (unsigned j = 0; j < o->nd; j++) memcpy((uint32_t *)&r[j] + i, p + 4 * j, 4);
    }
    for (unsigned j = 0; j < o->nd; j++) put_at(w, o->d + j, r[j]);
}
static void flat_store(emu_wave *w, const emu_op *o) {
    emu_pend(w, o, QUEUE_LDS, 0, 0);
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        uint8_t *p = flat_at(w, o, o->size, i, true);
        const uint32_t half = w->v[o->r[2]][i] >> (o->half & 4 ? 16 : 0);
        if (o->size < 4)
            memcpy(p, &half, o->size);
        else
            for (unsigned j = 0; j < o->size / 4; j++)
                memcpy(p + 4 * j, (uint32_t *)&w->v[o->r[2] + j] + i, 4);
    }
}
#define FLAT_PART(name, T, merge)                                                                            \
    static void name(emu_wave *w, const emu_op *o) {                                                         \
        U r = w->v[o->d];                                                                                    \
        emu_pend(w, o, QUEUE_VMEM, o->d, 1);                                                                 \
        emu_pend(w, o, QUEUE_LDS, o->d, 1);                                                                  \
        for (int i = 0; i < LANES; i++) {                                                                    \
            if (!(w->s[EXEC] >> i & 1)) continue;                                                            \
            T v;                                                                                             \
            memcpy(&v, flat_at(w, o, sizeof v, i, false), sizeof v);                                         \
            const uint32_t x = (uint32_t)v, was = r[i];                                                      \
            (void)was;                                                                                       \
            r[i] = merge;                                                                                    \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
FLAT_PART(fl_u8, uint8_t, x)
FLAT_PART(fl_i8, int8_t, x)
FLAT_PART(fl_u16, uint16_t, x)
FLAT_PART(fl_i16, int16_t, x)
FLAT_PART(fl_d16_b16, uint16_t, LOW)
FLAT_PART(fl_d16_hi_b16, uint16_t, HIGH)

#define GL(n, f, b)                                                                                          \
    { "global_load_" #n, "Dag", f, EMU_LOAD, b }
#define GS(n, f, b)                                                                                          \
    { "global_store_" #n, "aVg", f, EMU_STORE, b }
#define SL(n, f, b)                                                                                          \
    { "scratch_load_" #n, "Dag", f, EMU_LOAD, b }
#define SS(n, f, b)                                                                                          \
    { "scratch_store_" #n, "aVg", f, EMU_STORE, b }
#define FL(n, f, b)                                                                                          \
    { "flat_load_" #n, "Da", f, EMU_LOAD, b }
#define FS(n, f, b)                                                                                          \
    { "flat_store_" #n, "aV", f, EMU_STORE, b }
#define GA(n, T, V, e) {"global_atomic_" #n, "AaVg", ga_##n, EMU_ATOMIC, sizeof(T)},
const emu_def emu_ops_memory[] = {{"s_load_b32", "TxO", s_load, EMU_SMEM, 4},
                                  {"s_load_b64", "TxO", s_load, EMU_SMEM, 8},
                                  {"s_load_b128", "TxO", s_load, EMU_SMEM, 16},
                                  {"s_load_b256", "TxO", s_load, EMU_SMEM, 32},
                                  {"s_load_b512", "TxO", s_load, EMU_SMEM, 64},
                                  GL(b32, global_load, 4),
                                  GL(b64, global_load, 8),
                                  GL(b96, global_load, 12),
                                  GL(b128, global_load, 16),
                                  GL(u8, gl_u8, 1),
                                  GL(i8, gl_i8, 1),
                                  GL(u16, gl_u16, 2),
                                  GL(i16, gl_i16, 2),
                                  GL(d16_u8, gl_d16_u8, 1),
                                  GL(d16_i8, gl_d16_i8, 1),
                                  GL(d16_b16, gl_d16_b16, 2),
                                  GL(d16_hi_u8, gl_d16_hi_u8, 1),
                                  GL(d16_hi_i8, gl_d16_hi_i8, 1),
                                  GL(d16_hi_b16, gl_d16_hi_b16, 2),
                                  GS(b8, gs_b8, 1),
                                  GS(b16, gs_b16, 2),
                                  GS(d16_hi_b8, gs_d16_hi_b8, 1),
                                  GS(d16_hi_b16, gs_d16_hi_b16, 2),
                                  GS(b32, global_store, 4),
                                  GS(b64, global_store, 8),
                                  GS(b96, global_store, 12),
                                  GS(b128, global_store, 16),
                                  ATOMICS(GA) SL(b32, scratch_load, 4),
                                  SL(b64, scratch_load, 8),
                                  SL(b96, scratch_load, 12),
                                  SL(b128, scratch_load, 16),
                                  SL(u8, sl_u8, 1),
                                  SL(i8, sl_i8, 1),
                                  SL(u16, sl_u16, 2),
                                  SL(i16, sl_i16, 2),
                                  SL(d16_b16, sl_d16_b16, 2),
                                  SL(d16_hi_b16, sl_d16_hi_b16, 2),
                                  SS(b8, scratch_store, 1),
                                  SS(b16, scratch_store, 2),
                                  SS(b32, scratch_store, 4),
                                  SS(b64, scratch_store, 8),
                                  SS(b96, scratch_store, 12),
                                  SS(b128, scratch_store, 16),
                                  FL(b32, flat_load, 4),
                                  FL(b64, flat_load, 8),
                                  FL(b96, flat_load, 12),
                                  FL(b128, flat_load, 16),
                                  FL(u8, fl_u8, 1),
                                  FL(i8, fl_i8, 1),
                                  FL(u16, fl_u16, 2),
                                  FL(i16, fl_i16, 2),
                                  FL(d16_b16, fl_d16_b16, 2),
                                  FL(d16_hi_b16, fl_d16_hi_b16, 2),
                                  FS(b8, flat_store, 1),
                                  FS(b16, flat_store, 2),
                                  FS(b32, flat_store, 4),
                                  FS(b64, flat_store, 8),
                                  FS(b96, flat_store, 12),
                                  FS(b128, flat_store, 16),
                                  {NULL, NULL, NULL, 0, 0}};
