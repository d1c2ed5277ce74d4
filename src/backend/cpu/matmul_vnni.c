/* matmul_vnni.c - the kernels of matmul_simd.h over 512-bit vectors with AVX512_VNNI: one instruction multiplies 32 pairs of 16-bit
 * integers and adds, where AVX-512 alone takes two. */
#define MX_VNNI 1
#include "backend/cpu/matmul_vec512.h"
#include "backend/cpu/matmul_simd.h"

const mx_cpu_matmul_kernels mx_mm_vnni = KERNELS;
