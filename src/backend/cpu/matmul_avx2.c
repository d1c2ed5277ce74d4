/* matmul_avx2.c - the kernels of matmul_simd.h over 256-bit vectors. */
#include "backend/cpu/matmul_vec256.h"
#include "backend/cpu/matmul_simd.h"

const mx_cpu_matmul_kernels mx_mm_avx2 = KERNELS;
