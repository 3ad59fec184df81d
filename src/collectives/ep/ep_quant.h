/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as codes on the host (ep_code.h). The bits are those of the kernels. */
#ifndef CVY_EP_QUANT_H
#define CVY_EP_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "ep_code.h"

/* Nearest, ties to even; values above 448 become 448, a NaN 0x7f. */
uint8_t cvy_f32_e4m3(float v);
float cvy_e4m3_f32(uint8_t v);

/* Devices round each NaN to 0x7fff, whatever its sign and payload. With this one hosts get the same bits. */
void cvy_ep_set_nan(float *v, size_t n);

/* A row of fp16 or bf16, and for integers factors of its elements, [hidden] or NULL. */
struct cvy_ep_plain {
	const void *row; /* any alignment */
	int dtype;
	size_t hidden;
	const float *smooth;
	const float *by; /* a factor of all elements, or NULL */
};

/* A row of a dispatch as @code, and its scales, @stride apart: an element is code * scale. */
void cvy_ep_quantise(int code, const struct cvy_ep_plain *x, uint8_t *codes, float *scales, size_t stride);

/* The row times its factors, in @x->dtype, rounded to nearest even; a NaN is 0x7fff. */
void cvy_ep_multiply(const struct cvy_ep_plain *x, uint8_t *to);

/* CVY_EP_INT8_BY_8: a row of a combine is codes, then scales. */
void cvy_ep_quantise_eights(const struct cvy_ep_plain *x, uint8_t *to);
void cvy_ep_quantise_sum(const float *sum, int dtype, size_t hidden, uint8_t *to);
/* sum += weight * row */
void cvy_ep_weigh_eights(float *sum, const uint8_t *row, int dtype, float weight, size_t hidden);

#endif
