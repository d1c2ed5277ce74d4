/* ops_lds.c - a workgroup's shared memory: loads, stores, atomics, permutes. Slots: 0 address, 2 data, 1 second data.
 *
 * With the race option every word keeps who wrote and read it since the last barrier: an access by another wave is a fault. */
#include "machine.h"
#include "memory.h"

/* 64 banks of a word; 32, 16 or 8 lanes a pass for 4, 8 or 16 bytes. How many passes the addresses of a pass's lanes need: a model. */
static void count_banks(emu_wave *w, U at, unsigned size) {
    const uint32_t exec = w->s[EXEC];
    const int per = size <= 4 ? 32 : size <= 8 ? 16 : 8;
    for (int g = 0; g < LANES; g += per) {
        uint32_t seen[64][LANES];
        uint8_t n[64] = {0}, most = 0;
        for (int i = g; i < g + per; i++) {
            if (!(exec >> i & 1)) continue;
            for (unsigned b = 0; b < size; b += 4) {
                const uint32_t word = (at[i] + b) >> 2, bank = word & 63;
                int j = 0;
                while (j < n[bank] && seen[bank][j] != word) j++;
                if (j == n[bank] && j < LANES) seen[bank][n[bank]++] = word;
                if (n[bank] > most) most = n[bank];
            }
        }
        w->k->lds_passes += most;
        w->k->lds_accesses += most != 0;
    }
}
static void race(emu_wave *w, const emu_op *o, U at, unsigned size, bool store) {
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        for (uint32_t word = at[i] >> 2; word <= (at[i] + size - 1) >> 2; word++) {
            typeof(*w->k->shadow) *s = &w->k->shadow[word];
            const bool written = s->epoch == w->k->epoch, read = s->read_epoch == w->k->epoch;
            if (written && s->write_wave != w->id)
                emu_fault(w, o, 719,
                          "lane %d: wave %d %s LDS at %u, which wave %d has written since the last barrier",
                          i, w->id, store ? "writes" : "reads", word * 4, s->write_wave);
            if (store && read && (s->read_waves & ~(1u << (w->id & 31))))
                emu_fault(
                    w, o, 719,
                    "lane %d: wave %d writes LDS at %u, which another wave has read since the last barrier",
                    i, w->id, word * 4);
            if (store)
                s->epoch = w->k->epoch, s->write_wave = (uint16_t)w->id;
            else {
                if (!read) s->read_waves = 0;
                s->read_epoch = w->k->epoch;
                s->read_waves |= 1u << (w->id & 31);
            }
        }
    }
}
/* Check the addresses; those of lanes that are off become an active one's. False: no lane is on. */
FORCE bool locate(emu_wave *w, const emu_op *o, U *at, unsigned size, bool store, bool atomic) {
    const uint32_t exec = w->s[EXEC];
    if (!exec) return false;
    if (exec != ~0u) *at = pick(lane_mask(exec), *at, (U)((*at)[__builtin_ctz(exec)]));
    const uint32_t room = w->k->lds_bytes;
    const I bad = (I)(*at > room - size) | (I)(U)(room < size);
    if (__builtin_reduce_or(bad)) {
        int lane = 0;
        while (!(exec >> lane & 1) || !bad[lane]) lane++;
        emu_fault(w, o, 700, "lane %d: LDS %s of %u bytes at %u, the workgroup has %u", lane,
                  store ? "store" : "load", size, (*at)[lane], room);
    }
    w->k->lds_bytes_moved += (unsigned)__builtin_popcount(exec) * size;
    if (__builtin_expect(w->k->counts != NULL, 0)) count_banks(w, *at, size);
    if (__builtin_expect(w->k->shadow != NULL && !atomic, 0)) race(w, o, *at, size, store);
    return true;
}
FORCE void words(emu_wave *w, U at, U *r, unsigned n) {
    const uint8_t *p[LANES];
    for (int i = 0; i < LANES; i++) p[i] = w->k->lds + at[i];
    if (n > 1)
        gather_words(r, p, n);
    else
        for (int i = 0; i < LANES; i++) memcpy((uint32_t *)r + i, p[i], 4);
}
static void ds_load(emu_wave *w, const emu_op *o) {
    const unsigned n = o->nd;
    U at = w->v[o->r[0]] + (uint32_t)o->off, r[4];
    emu_pend(w, o, QUEUE_LDS, o->d, n);
    if (!locate(w, o, &at, n * 4, false, false)) return;
    words(w, at, r, n);
    for (unsigned j = 0; j < n; j++) put_at(w, o->d + j, r[j]);
}
static void store_words(emu_wave *w, U at, unsigned from, unsigned n) {
    for (int i = 0; i < LANES; i++) {
        if (!(w->s[EXEC] >> i & 1)) continue;
        for (unsigned j = 0; j < n; j++)
            memcpy(w->k->lds + at[i] + 4 * j, (uint32_t *)&w->v[from + j] + i, 4);
    }
}
static void ds_store(emu_wave *w, const emu_op *o) {
    const unsigned n = o->size / 4;
    U at = w->v[o->r[0]] + (uint32_t)o->off;
    emu_pend(w, o, QUEUE_LDS, 0, 0);
    if (locate(w, o, &at, n * 4, true, false)) store_words(w, at, o->r[2], n);
}
/* Two places at once; size: bytes of one value, off and off1 count in values, or in 64 of them. Addresses are read first. */
static void load2(emu_wave *w, const emu_op *o, uint32_t scale) {
    const unsigned n = o->size / 4;
    const U base = w->v[o->r[0]];
    U a = base + (uint32_t)o->off * scale, b = base + (uint32_t)o->off1 * scale, r[4];
    emu_pend(w, o, QUEUE_LDS, o->d, 2 * n);
    if (!locate(w, o, &a, o->size, false, false) || !locate(w, o, &b, o->size, false, false)) return;
    words(w, a, r, n);
    words(w, b, r + n, n);
    for (unsigned j = 0; j < 2 * n; j++) put_at(w, o->d + j, r[j]);
}
static void store2(emu_wave *w, const emu_op *o, uint32_t scale) {
    const unsigned n = o->size / 4;
    const U base = w->v[o->r[0]];
    U a = base + (uint32_t)o->off * scale, b = base + (uint32_t)o->off1 * scale;
    emu_pend(w, o, QUEUE_LDS, 0, 0);
    if (!locate(w, o, &a, o->size, true, false) || !locate(w, o, &b, o->size, true, false)) return;
    store_words(w, a, o->r[2], n);
    store_words(w, b, o->r[1], n);
}
static void ds_load_2addr(emu_wave *w, const emu_op *o) { load2(w, o, o->size); }
static void ds_load_2addr_stride64(emu_wave *w, const emu_op *o) { load2(w, o, 64u * o->size); }
static void ds_store_2addr(emu_wave *w, const emu_op *o) { store2(w, o, o->size); }
static void ds_store_2addr_stride64(emu_wave *w, const emu_op *o) { store2(w, o, 64u * o->size); }
#define LOAD_PART(name, T, merge)                                                                            \
    static void name(emu_wave *w, const emu_op *o) {                                                         \
        U at = w->v[o->r[0]] + (uint32_t)o->off, r = w->v[o->d];                                             \
        emu_pend(w, o, QUEUE_LDS, o->d, 1);                                                                  \
        if (!locate(w, o, &at, sizeof(T), false, false)) return;                                             \
        for (int i = 0; i < LANES; i++) {                                                                    \
            T v;                                                                                             \
            memcpy(&v, w->k->lds + at[i], sizeof v);                                                         \
            const uint32_t x = (uint32_t)v, was = r[i];                                                      \
            (void)was;                                                                                       \
            r[i] = merge;                                                                                    \
        }                                                                                                    \
        put(w, o, r);                                                                                        \
    }
#define LOW ((x & 0xFFFFu) | (was & 0xFFFF0000u))
#define HIGH (x << 16 | (was & 0xFFFFu))
LOAD_PART(dl_u8, uint8_t, x)
LOAD_PART(dl_i8, int8_t, x)
LOAD_PART(dl_u16, uint16_t, x)
LOAD_PART(dl_i16, int16_t, x)
LOAD_PART(dl_u8_d16, uint8_t, LOW)
LOAD_PART(dl_i8_d16, int8_t, LOW)
LOAD_PART(dl_u16_d16, uint16_t, LOW)
LOAD_PART(dl_u8_d16_hi, uint8_t, HIGH)
LOAD_PART(dl_i8_d16_hi, int8_t, HIGH)
LOAD_PART(dl_u16_d16_hi, uint16_t, HIGH)
static void store_part(emu_wave *w, const emu_op *o, unsigned size, int shift) {
    U at = w->v[o->r[0]] + (uint32_t)o->off;
    emu_pend(w, o, QUEUE_LDS, 0, 0);
    if (!locate(w, o, &at, size, true, false)) return;
    for (int i = 0; i < LANES; i++) {
        const uint32_t v = w->v[o->r[2]][i] >> (o->half & 4 ? 16 : shift);
        if (w->s[EXEC] >> i & 1) memcpy(w->k->lds + at[i], &v, size);
    }
}
static void dst_b8(emu_wave *w, const emu_op *o) { store_part(w, o, 1, 0); }
static void dst_b16(emu_wave *w, const emu_op *o) { store_part(w, o, 2, 0); }
static void dst_b8_hi(emu_wave *w, const emu_op *o) { store_part(w, o, 1, 16); }
static void dst_b16_hi(emu_wave *w, const emu_op *o) { store_part(w, o, 2, 16); }

#define ATOMIC(name, T, V, expr)                                                                             \
    static void da_##name(emu_wave *w, const emu_op *o) {                                                    \
        U at = w->v[o->r[0]] + (uint32_t)o->off, back[2];                                                    \
        emu_pend(w, o, QUEUE_LDS, o->d, o->nd);                                                              \
        if (!locate(w, o, &at, sizeof(T), true, true)) return;                                               \
        for (int i = 0; i < LANES; i++) {                                                                    \
            if (!(w->s[EXEC] >> i & 1)) continue;                                                            \
            T old, want;                                                                                     \
            memcpy(&old, w->k->lds + at[i], sizeof old);                                                     \
            const V x = from_##V(old), y = from_##V(lane_data_##T(w, o, i, 0)),                              \
                    z = from_##V(lane_data_##T(w, o, i, 1));                                                 \
            (void)x, (void)y, (void)z;                                                                       \
            want = to_##V(expr);                                                                             \
            memcpy(w->k->lds + at[i], &want, sizeof want);                                                   \
            back[0][i] = (uint32_t)old;                                                                      \
            back[1][i] = (uint32_t)((uint64_t)old >> 32);                                                    \
        }                                                                                                    \
        for (unsigned j = 0; j < o->nd; j++) put_at(w, o->d + j, back[j]);                                   \
    }
ATOMICS(ATOMIC)

/* ---- lanes through the LDS unit: lanes that are off are read as 0 ------------------------------------------- */

static void ds_bpermute(emu_wave *w, const emu_op *o) {
    const U at = w->v[o->r[0]] + (uint32_t)o->off, x = w->v[o->r[2]] & lane_mask(w->s[EXEC]);
    U r;
    emu_pend(w, o, QUEUE_LDS, o->d, 1);
    for (int i = 0; i < LANES; i++) r[i] = ((const uint32_t *)&x)[at[i] >> 2 & 31];
    put(w, o, r);
}
static void ds_permute(emu_wave *w, const emu_op *o) {
    const U at = w->v[o->r[0]] + (uint32_t)o->off, x = w->v[o->r[2]];
    U r = 0u;
    emu_pend(w, o, QUEUE_LDS, o->d, 1);
    for (int i = 0; i < LANES; i++)
        if (w->s[EXEC] >> i & 1) ((uint32_t *)&r)[at[i] >> 2 & 31] = x[i];
    put(w, o, r);
}
static void ds_swizzle(emu_wave *w,
                       const emu_op *o) { // off: bit 15: four lanes by pairs of bits, else and, or, xor masks
    const U x = w->v[o->r[0]] & lane_mask(w->s[EXEC]);
    const uint32_t c = (uint32_t)o->off;
    U r;
    emu_pend(w, o, QUEUE_LDS, o->d, 1);
    for (int i = 0; i < LANES; i++) {
        const uint32_t from = c & 0x8000 ? (uint32_t)(i & ~3) | (c >> (2 * (i & 3)) & 3)
                                         : (((uint32_t)i & c) | (c >> 5 & 31)) ^ (c >> 10 & 31);
        r[i] = ((const uint32_t *)&x)[from & 31];
    }
    put(w, o, r);
}

#define DL(n, f, b)                                                                                          \
    { "ds_load_" #n, "Da", f, EMU_LDS, b }
#define DS(n, f, b)                                                                                          \
    { "ds_store_" #n, "aV", f, EMU_LDS, b }
#define D2(n, f, b)                                                                                          \
    { "ds_load_" #n, "Da", f, EMU_LDS, b }
#define S2(n, f, b)                                                                                          \
    { "ds_store_" #n, "aVW", f, EMU_LDS, b }
#define DA(n, T, V, e) {"ds_" #n, "aV", da_##n, EMU_LDS, sizeof(T)},
#define AS(op, kind) #op "_rtn_" #kind
#define DR(op, kind, T)                                                                                      \
    { "ds_" AS(op, kind), "DaV", da_##op##_##kind, EMU_LDS, sizeof(T) }
const emu_def emu_ops_lds[] = {DL(b32, ds_load, 4),
                               DL(b64, ds_load, 8),
                               DL(b96, ds_load, 12),
                               DL(b128, ds_load, 16),
                               DL(u8, dl_u8, 1),
                               DL(i8, dl_i8, 1),
                               DL(u16, dl_u16, 2),
                               DL(i16, dl_i16, 2),
                               DL(u8_d16, dl_u8_d16, 1),
                               DL(i8_d16, dl_i8_d16, 1),
                               DL(u16_d16, dl_u16_d16, 2),
                               DL(u8_d16_hi, dl_u8_d16_hi, 1),
                               DL(i8_d16_hi, dl_i8_d16_hi, 1),
                               DL(u16_d16_hi, dl_u16_d16_hi, 2),
                               DS(b8, dst_b8, 1),
                               DS(b16, dst_b16, 2),
                               DS(b8_d16_hi, dst_b8_hi, 1),
                               DS(b16_d16_hi, dst_b16_hi, 2),
                               DS(b32, ds_store, 4),
                               DS(b64, ds_store, 8),
                               DS(b96, ds_store, 12),
                               DS(b128, ds_store, 16),
                               D2(2addr_b32, ds_load_2addr, 4),
                               D2(2addr_b64, ds_load_2addr, 8),
                               D2(2addr_stride64_b32, ds_load_2addr_stride64, 4),
                               D2(2addr_stride64_b64, ds_load_2addr_stride64, 8),
                               S2(2addr_b32, ds_store_2addr, 4),
                               S2(2addr_b64, ds_store_2addr, 8),
                               S2(2addr_stride64_b32, ds_store_2addr_stride64, 4),
                               S2(2addr_stride64_b64, ds_store_2addr_stride64, 8),
                               ATOMICS(DA) DR(add, u32, u32),
                               DR(sub, u32, u32),
                               DR(and, b32, u32),
                               DR(or, b32, u32),
                               DR(xor, b32, u32),
                               DR(min, u32, u32),
                               DR(max, u32, u32),
                               DR(min, i32, u32),
                               DR(max, i32, u32),
                               DR(inc, u32, u32),
                               DR(dec, u32, u32),
                               DR(add, f32, u32),
                               DR(add, u64, u64),
                               DR(min, u64, u64),
                               DR(max, u64, u64),
                               {"ds_storexchg_rtn_b32", "DaV", da_swap_b32, EMU_LDS, 4},
                               {"ds_storexchg_rtn_b64", "DaV", da_swap_b64, EMU_LDS, 8},
                               {"ds_bpermute_b32", "DaV", ds_bpermute, EMU_LDS, 4},
                               {"ds_permute_b32", "DaV", ds_permute, EMU_LDS, 4},
                               {"ds_swizzle_b32", "Da", ds_swizzle, EMU_LDS, 4},
                               {NULL, NULL, NULL, 0, 0}};
