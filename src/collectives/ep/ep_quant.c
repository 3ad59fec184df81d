/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as codes on the host (ep_quant.h). */
#include "ep_quant.h"

#include <math.h>
#include <string.h>

#include "reduce.h"

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
	if (a >= CVY_EP_E4M3_MOST)
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

void cvy_ep_set_nan(float *v, size_t n)
{
	const uint32_t bits = 0x7fffffff;
	float nan;

	memcpy(&nan, &bits, sizeof(nan));
	for (size_t i = 0; i < n; i++)
		v[i] = v[i] == v[i] ? v[i] : nan;
}

/* Elements @from to @from + @n of a row; @n is CVY_EP_GROUP at most. */
static void widen(const struct cvy_ep_plain *x, size_t from, size_t n, float v[CVY_EP_GROUP])
{
	cvy_reduce_loops()->widen[x->dtype](v, (const uint8_t *)x->row + from * 2, n);
	for (size_t i = 0; x->smooth && i < n; i++)
		v[i] *= x->smooth[from + i];
	for (size_t i = 0; x->by && i < n; i++)
		v[i] *= *x->by;
}

static size_t part_of(size_t hidden, size_t from)
{
	return hidden - from < CVY_EP_GROUP ? hidden - from : CVY_EP_GROUP;
}

static void to_e4m3(int pow2, const struct cvy_ep_plain *x, uint8_t *codes, float *scales, size_t stride)
{
	float v[CVY_EP_GROUP];

	for (size_t g = 0; g * CVY_EP_GROUP < x->hidden; g++) {
		size_t from = g * CVY_EP_GROUP, n = part_of(x->hidden, from);
		float most = CVY_EP_E4M3_LEAST;
		struct cvy_ep_scaling s;

		widen(x, from, n, v);
		for (size_t i = 0; i < n; i++)
			most = fabsf(v[i]) > most ? fabsf(v[i]) : most; /* fmaxf() would return a NaN that signals */
		s = cvy_ep_scale_e4m3(most, pow2);
		for (size_t i = 0; i < n; i++)
			codes[from + i] = cvy_f32_e4m3(v[i] * s.by);
		scales[g * stride] = s.scale;
	}
}

static void put_codes(const float *v, size_t n, float by, int bits, uint8_t *to)
{
	for (size_t i = 0; bits == 8 && i < n; i++)
		to[i] = (uint8_t)cvy_ep_nearest(v[i], by);
	for (size_t i = 0; bits == 4 && i < n; i += 2) /* an even element is the low nibble */
		to[i / 2] = (uint8_t)((cvy_ep_nearest(v[i], by) & 15) | (cvy_ep_nearest(v[i + 1], by) & 15) << 4);
}

static float to_integers(const struct cvy_ep_code *c, const struct cvy_ep_plain *x, uint8_t *codes)
{
	float v[CVY_EP_GROUP];
	struct cvy_ep_scaling s;
	uint32_t largest = 0;

	for (size_t from = 0; from < x->hidden; from += CVY_EP_GROUP) {
		size_t n = part_of(x->hidden, from);

		widen(x, from, n, v);
		for (size_t i = 0; i < n; i++)
			largest = cvy_ep_magnitude(v[i]) > largest ? cvy_ep_magnitude(v[i]) : largest;
	}
	s = cvy_ep_scale_of(largest, (float)c->most);
	for (size_t from = 0; from < x->hidden; from += CVY_EP_GROUP) {
		size_t n = part_of(x->hidden, from);

		widen(x, from, n, v);
		put_codes(v, n, s.by, c->bits, codes + cvy_ep_code_bytes(c, from));
	}
	return s.scale;
}

void cvy_ep_multiply(const struct cvy_ep_plain *x, uint8_t *to)
{
	float v[CVY_EP_GROUP];

	for (size_t from = 0; from < x->hidden; from += CVY_EP_GROUP) {
		size_t n = part_of(x->hidden, from);

		widen(x, from, n, v);
		cvy_ep_set_nan(v, n);
		cvy_reduce_loops()->narrow[x->dtype](to + from * 2, v, n);
	}
}

void cvy_ep_quantise(int code, const struct cvy_ep_plain *x, uint8_t *codes, float *scales, size_t stride)
{
	if (cvy_ep_in_e4m3(code))
		to_e4m3(code == CVY_EP_E4M3_POW2, x, codes, scales, stride);
	else
		scales[0] = to_integers(cvy_ep_code_of(code), x, codes);
}

/* Elements @from to @from + @n of a row of @hidden. */
static void put_eights(const float *v, int dtype, size_t hidden, size_t from, size_t n, uint8_t *to)
{
	for (size_t i = 0; i < n; i += CVY_EP_EIGHT) {
		const struct cvy_ep_by_eight e = cvy_ep_eight_of(v + i, dtype == COVEY_FLOAT16);
		size_t at = from + i;

		for (size_t k = 0; k < CVY_EP_EIGHT; k++)
			to[at + k] = (uint8_t)(e.codes >> (8 * k));
		memcpy(to + hidden + at / CVY_EP_EIGHT * sizeof(e.scale), &e.scale, sizeof(e.scale));
	}
}

void cvy_ep_quantise_eights(const struct cvy_ep_plain *x, uint8_t *to)
{
	float v[CVY_EP_GROUP];

	for (size_t from = 0; from < x->hidden; from += CVY_EP_GROUP) {
		size_t n = part_of(x->hidden, from);

		widen(x, from, n, v);
		put_eights(v, x->dtype, x->hidden, from, n, to);
	}
}

void cvy_ep_quantise_sum(const float *sum, int dtype, size_t hidden, uint8_t *to)
{
	put_eights(sum, dtype, hidden, 0, hidden, to);
}

void cvy_ep_weigh_eights(float *sum, const uint8_t *row, int dtype, float weight, size_t hidden)
{
	for (size_t at = 0; at < hidden; at += CVY_EP_EIGHT) {
		uint16_t half;
		float scale;

		memcpy(&half, row + hidden + at / CVY_EP_EIGHT * sizeof(half), sizeof(half));
		scale = cvy_ep_scale_wide(half, dtype == COVEY_FLOAT16);
		for (size_t i = at; i < at + CVY_EP_EIGHT; i++)
			sum[i] += weight * ((float)(int8_t)row[i] * scale);
	}
}
