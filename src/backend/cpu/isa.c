/* isa.c - cpuid, xgetbv, and on Linux the request for AMX tile memory. */
#include "backend/cpu/isa.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[MX_ISA_COUNT] = {"scalar", "avx2", "avx512", "vnni", "bf16", "amx"};
static mx_isa best;
static const char *missing = "";
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; // asm/prctl.h; Linux 5.16 and later

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool bits_set(uint64_t v, uint64_t mask) { return (v & mask) == mask; }

static void detect(void) {
    uint32_t a, b1, c1, d, a7, b7, c7, d7, a71 = 0, b71, c71, d71;
    missing = "the processor has no AVX2 with FMA, F16C and BMI2";
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return;
    if (a7 >= 1 && !__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71)) a71 = 0;
    if (!bits_set(c1, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C) ||
        !bits_set(b7, bit_AVX2 | bit_BMI | bit_BMI2))
        return;
    uint64_t os = xcr0(); // what the operating system saves on a switch
    if (!bits_set(os, 0x6)) return;
    best = MX_ISA_AVX2;
    missing = "the processor or system has no AVX-512 (F, BW, VL, DQ)";
    if (!bits_set(os, 0xE6) || !bits_set(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ))
        return;
    best = MX_ISA_AVX512;
    missing = "the processor has no AVX512_VNNI";
    if (!bits_set(c7, bit_AVX512VNNI)) return;
    best = MX_ISA_VNNI;
    missing = "the processor has no AVX512_BF16";
    if (!bits_set(a71, 1u << 5)) return;
    best = MX_ISA_BF16;
    missing = "the processor or system has no AMX_BF16";
    if (!bits_set(d7, 1u << 22 | 1u << 24) || !bits_set(os, 3u << 17)) return; // AMX_BF16, AMX_TILE
    missing = "the kernel refuses AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM)";
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0)
        return; // for the whole process
    best = MX_ISA_AMX;
    missing = "";
}
#else
static void detect(void) { missing = "the build is not for x86-64"; }
#endif

mx_isa mx_isa_best(void) {
    pthread_once(&once, detect);
    return best;
}

const char *mx_isa_missing(void) {
    pthread_once(&once, detect);
    return missing;
}

const char *mx_isa_name(mx_isa isa) { return names[isa]; }

mx_status mx_isa_choose(mx_isa *out, const char *cap, mx_err *err) {
    mx_isa have = mx_isa_best();
    if (!cap) {
        *out = have;
        return MX_OK;
    }
    for (int i = 0; i < MX_ISA_COUNT; i++) {
        if (strcmp(cap, names[i])) continue;
        if (i > (int)have) {
            return mx_fail(err, MX_UNSUPPORTED, "instruction set %s: %s; choose %s or lower", cap, missing,
                           names[have]);
        }
        *out = (mx_isa)i;
        return MX_OK;
    }
    return mx_fail(err, MX_EINVAL, "instruction set \"%s\": choose scalar, avx2, avx512, vnni, bf16 or amx",
                   cap);
}
