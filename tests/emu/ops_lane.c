/* ops_lane.c - instructions that move values between lanes. */
#include "machine.h"

static int first_lane(uint32_t exec) { return exec ? __builtin_ctz(exec) : 0; }
static void v_readfirstlane_b32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0);
    put_s(w, o->d, a[first_lane(w->s[EXEC])]);
}
static void v_readlane_b32(emu_wave *w, const emu_op *o) { // whether the lane is active does not matter
    const U a = vu(w, o, 0);
    put_s(w, o->d, a[su(w, o, 1) & 31]);
}
static void v_writelane_b32(emu_wave *w, const emu_op *o) {
    const uint32_t x = su(w, o, 0), i = su(w, o, 1) & 31;
    ((uint32_t *)&w->v[o->d])[i] = x;
}
static void v_mbcnt_lo_u32_b32(emu_wave *w, const emu_op *o) {
    const U a = vu(w, o, 0), b = vu(w, o, 1);
    U r;
    for (int i = 0; i < LANES; i++) r[i] = (uint32_t)__builtin_popcount(a[i] & ((1u << i) - 1)) + b[i];
    put(w, o, r);
}
static void v_mbcnt_hi_u32_b32(emu_wave *w, const emu_op *o) {
    put(w, o, vu(w, o, 1));
} // lanes 32 and up: there are none

/* Lane i of a row of 16 reads the lane that nibble i of two scalars names: in its own row, or in the other one. */
static void permlane16(emu_wave *w, const emu_op *o, int other) {
    const U a = vu(w, o, 0), old = w->v[o->d];
    const uint64_t sel = su(w, o, 1) | (uint64_t)su(w, o, 2) << 32;
    const bool inactive = o->op_sel & 1, bound = o->op_sel & 2;
    U r;
    for (int i = 0; i < LANES; i++) {
        const int from = ((i & 16) ^ other) | (int)(sel >> (4 * (i & 15)) & 15);
        const bool live = inactive || (w->s[EXEC] >> from & 1);
        r[i] = live ? a[from] : bound ? 0 : old[i];
    }
    put(w, o, r);
}
static void v_permlane16_b32(emu_wave *w, const emu_op *o) { permlane16(w, o, 0); }
static void v_permlanex16_b32(emu_wave *w, const emu_op *o) { permlane16(w, o, 16); }
static void v_permlane64_b32(emu_wave *w, const emu_op *o) { put(w, o, vu(w, o, 0)); } // wave32: stays

/* Vector registers by an index in M0. */
static void v_movrels_b32(emu_wave *w, const emu_op *o) {
    const unsigned r = o->r[0] + w->s[M0];
    if (r >= VGPRS) emu_fault(w, o, 719, "v_movrels reads register %u", r);
    put(w, o, w->v[r]);
}
static void v_movreld_b32(emu_wave *w, const emu_op *o) {
    const unsigned r = o->d + w->s[M0];
    if (r >= VGPRS) emu_fault(w, o, 719, "v_movreld writes register %u", r);
    put_at(w, r, vu(w, o, 0));
}

/* Any instruction whose first source comes from other lanes. Those that get nothing valid are not written, or read 0 with bound_ctrl. */
void emu_dpp(emu_wave *w, const emu_op *o) {
    const U a = w->v[o->r[0]]; // a[0] points at t0
    const uint32_t exec = w->s[EXEC];
    uint32_t write = exec;
    for (int i = 0; i < LANES; i++) {
        const int from = o->lanes[i];
        const bool live = from != 0xFF && (o->fetch_inactive || (exec >> from & 1));
        ((uint32_t *)&w->t0)[i] = live ? a[from] : 0;
        if (!live && !o->bound_ctrl) write &= ~(1u << i);
        if (!(o->row_mask >> (i >> 4) & 1) || !(o->bank_mask >> (i >> 2 & 3) & 1)) write &= ~(1u << i);
    }
    put_s(w, EXEC, write);
    o->inner(w, o);
    put_s(w, EXEC, exec);
}

const emu_def emu_ops_lane[] = {{"v_readfirstlane_b32", "tu", v_readfirstlane_b32, EMU_VALU, 0},
                                {"v_readlane_b32", "tus", v_readlane_b32, EMU_VALU, 0},
                                {"v_writelane_b32", "dss", v_writelane_b32, EMU_VALU, 0},
                                {"v_mbcnt_lo_u32_b32", "duu", v_mbcnt_lo_u32_b32, EMU_VALU, 0},
                                {"v_mbcnt_hi_u32_b32", "duu", v_mbcnt_hi_u32_b32, EMU_VALU, 0},
                                {"v_permlane16_b32", "duss", v_permlane16_b32, EMU_VALU, 0},
                                {"v_permlanex16_b32", "duss", v_permlanex16_b32, EMU_VALU, 0},
                                {"v_permlane64_b32", "du", v_permlane64_b32, EMU_VALU, 0},
                                {"v_movrels_b32", "du", v_movrels_b32, EMU_VALU, 0},
                                {"v_movreld_b32", "du", v_movreld_b32, EMU_VALU, 0},
                                {NULL, NULL, NULL, 0, 0}};
