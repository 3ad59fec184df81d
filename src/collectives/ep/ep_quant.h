/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 8-bit floats: e4m3 with one f32 scale for each 128 elements. The bits are the same as those of the kernels,
 * which use the conversions of the hardware.
 */
#ifndef CVY_EP_QUANT_H
#define CVY_EP_QUANT_H

#include <stddef.h>
#include <stdint.h>

#define CVY_EP_QUANT_GROUP 128

/* Nearest, ties to even; values above 448 become 448, a NaN 0x7f. */
uint8_t cvy_f32_e4m3(float v);
float cvy_e4m3_f32(uint8_t v);

static inline size_t cvy_ep_groups(size_t hidden)
{
	return (hidden + CVY_EP_QUANT_GROUP - 1) / CVY_EP_QUANT_GROUP;
}

/* A row of f16 or bf16 to e4m3, and each group's scale, @stride apart: an element is code * scale. */
void cvy_ep_quantise(const uint16_t *row, int dtype, size_t hidden, uint8_t *codes, float *scales, size_t stride);

#endif
