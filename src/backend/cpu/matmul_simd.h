/* matmul_simd.h - the f32 and i16 kernels as one table, for the vectors of the file that includes this. */
#include "backend/cpu/matmul_f32.h"
#include "backend/cpu/matmul_i16.h"

_Static_assert(sizeof(g_work) <= MX_MM_WORK && sizeof(f32_work) <= MX_MM_WORK, "a worker's memory");
// clang-format off
#define KERNELS                                                                                             \
    {.run = {[MX_MM_F32] = f32_run, [MX_MM_I16V] = v_run, [MX_MM_I16G] = g_run},                             \
     .panel = {[MX_MM_F32] = MX_MM_STREAM, [MX_MM_I16V] = 1, [MX_MM_I16G] = NR},                             \
     .tile = {[MX_MM_F32] = 1, [MX_MM_I16V] = 1, [MX_MM_I16G] = MR},                                         \
     .prepare = {[MX_MM_I16V] = prepare_v, [MX_MM_I16G] = prepare_g}}
// clang-format on
