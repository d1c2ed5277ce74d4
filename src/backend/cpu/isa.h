/* isa.h - which instruction sets this processor has, as one ladder of levels.
 *
 * A level includes those before it. A processor that lacks one step (an AVX-512 machine without BF16, say) stops at the
 * step before. */
#ifndef MX_BACKEND_CPU_ISA_H
#define MX_BACKEND_CPU_ISA_H
#include "base/err.h"

typedef enum {
    MX_ISA_SCALAR, // plain C
    MX_ISA_AVX2,   // AVX2, FMA, F16C, BMI2
    MX_ISA_AVX512, // AVX-512 F, BW, VL, DQ
    MX_ISA_VNNI,   // + AVX512_VNNI
    MX_ISA_BF16,   // + AVX512_BF16
    MX_ISA_AMX,    // + AMX_TILE, AMX_BF16, and the kernel's leave to use tiles
    MX_ISA_COUNT,
} mx_isa;

/* The best level of this processor and operating system. Asks once, then remembers. */
mx_isa mx_isa_best(void);

/* Why the level above mx_isa_best() is missing: "no AVX-512", "the kernel refuses AMX tiles (arch_prctl)"; "" at the top. */
const char *mx_isa_missing(void);

const char *mx_isa_name(mx_isa isa); // "scalar", "avx2", "avx512", "vnni", "bf16", "amx"

/* The level named `cap` (NULL: the best one). MX_EINVAL for an unknown name; MX_UNSUPPORTED, with what is missing, for a
 * level that is not to be had here. */
mx_status mx_isa_choose(mx_isa *out, const char *cap, mx_err *err);

#endif
