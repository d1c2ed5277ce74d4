/* matmul_avx512.c - the kernels of matmul_simd.h over 512-bit vectors. */
#include "backend/cpu/matmul_vec512.h"
#include "backend/cpu/matmul_simd.h"

const mx_cpu_matmul_kernels mx_mm_avx512 = KERNELS;
