/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of 8-bit floats on the host (ep_quant.h). */
#include "ep_quant.h"

#include <math.h>
#include <string.h>

#include "reduce.h"

#define MOST 448.0f  /* the largest e4m3 */
#define LEAST 1e-4f  /* the scale of a group of zeros comes from this */
#define E_SMALL (-6) /* exponent of the smallest normal number */

uint8_t cvy_f32_e4m3(float v)
{
	uint32_t bits;
	uint8_t sign;
	float a;
	int e;

	memcpy(&bits, &v, sizeof(bits));
	sign = (uint8_t)(bits >> 24 & 0x80);
	bits &= 0x7fffffff;
	if (bits > 0x7f800000)
		return 0x7f;
	memcpy(&a, &bits, sizeof(a));
	if (a >= MOST)
		return sign | 0x7e;
	e = (int)(bits >> 23) - 127;
	if (e < E_SMALL)
		e = E_SMALL;
	/* In units of the last place, 8 to 16 of a normal number: a carry enters the exponent by itself. */
	return (uint8_t)(sign | (((e - E_SMALL + 1) << 3) + (int)rintf(ldexpf(a, 3 - e)) - 8));
}

float cvy_e4m3_f32(uint8_t v)
{
	int e = v >> 3 & 15, m = v & 7;
	float a = e ? ldexpf((float)(8 + m), e - 1 + E_SMALL - 3) : ldexpf((float)m, E_SMALL - 3);

	if ((v & 0x7f) == 0x7f)
		return nanf("");
	return v & 0x80 ? -a : a;
}

void cvy_ep_quantise(const uint16_t *row, int dtype, size_t hidden, uint8_t *codes, float *scales, size_t stride)
{
	const struct cvy_reduce_table *loops = cvy_reduce_loops();
	float v[CVY_EP_QUANT_GROUP];

	for (size_t g = 0; g < cvy_ep_groups(hidden); g++) {
		size_t from = g * CVY_EP_QUANT_GROUP;
		size_t n = hidden - from < CVY_EP_QUANT_GROUP ? hidden - from : CVY_EP_QUANT_GROUP;
		float most = LEAST, scale;

		loops->widen[dtype](v, row + from, n);
		for (size_t i = 0; i < n; i++)
			most = fabsf(v[i]) > most ? fabsf(v[i]) : most; /* fmaxf() would return a NaN that signals */
		scale = MOST / most;
		for (size_t i = 0; i < n; i++)
			codes[from + i] = cvy_f32_e4m3(v[i] * scale);
		scales[g * stride] = most / MOST;
	}
}
