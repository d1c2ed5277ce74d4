/* hadamard.h - Hadamard matrices whose order is no power of two: signs of 12, 20 and 28 rows, for kernels and host.
 *
 * Bit j of word i: entry (i, j) is -1. They are those of mlx.core.hadamard_transform, so that results agree. */
#ifndef MX_KERNELS_HADAMARD_H
#define MX_KERNELS_HADAMARD_H
#include <stdint.h>

static const uint32_t mx_hadamard12[12] = {0x0000002, 0x0000AAB, 0x00003C8, 0x000096E, 0x0000F20, 0x00005BA,
                                           0x0000C8C, 0x00006E6, 0x000023C, 0x0000B96, 0x00008F0, 0x0000E5A};
static const uint32_t mx_hadamard20[20] = {0x00933DE, 0x002E3BD, 0x005477B, 0x00A0EF7, 0x00499EF,
                                           0x00637C1, 0x00C6BA2, 0x008D764, 0x001AEE8, 0x00359F0,
                                           0x000FA53, 0x00174A7, 0x0026D4E, 0x0045E9C, 0x0083D39,
                                           0x00F7A6D, 0x00EF4FA, 0x00DEDD5, 0x00BDF8B, 0x007BF36};
static const uint32_t mx_hadamard28[28] = {0xCD69E7E, 0x9AD7C7D, 0x37AB8FB, 0x6D571F7, 0xD8AE3EF, 0xB3587DF,
                                           0x66B4F3F, 0xB467F43, 0x6ACBE87, 0xD593D8E, 0xAB27B9C, 0x564F7B8,
                                           0xAC9AFF0, 0x5B31FE1, 0x87FB325, 0x0FF66CA, 0x1DECD95, 0x39DDB2A,
                                           0x71BF654, 0xE17ECA9, 0xC2FD9D2, 0xFCF1299, 0xFBE2532, 0xF7C4AE4,
                                           0xEF8D549, 0xDF1EA13, 0xBE3D4A6, 0x7E7A94C};

#endif
