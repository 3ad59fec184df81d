/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes: what the elements of a row become where it does not travel as it is. A code is a row of a table. Host and
 * devices use the table and the same arithmetic, so that they give the same bits. Codes in e4m3 themselves are the
 * exception: devices have instructions for them (ep_quant.h).
 */
#ifndef CVY_EP_CODE_H
#define CVY_EP_CODE_H

#include <string.h>

#include "covey_ep.h"
#include "layout.h"

/* Those of dispatch have the numbers of enum covey_ep_rows_as. */
enum cvy_ep_codes {
	CVY_EP_AS_IS,
	CVY_EP_E4M3,
	CVY_EP_INT8,
	CVY_EP_INT4,
	CVY_EP_E4M3_POW2,
	CVY_EP_INT8_BY_8,
	CVY_EP_CODES
};

#define CVY_EP_GROUP 128 /* elements of one scale in e4m3 */
#define CVY_EP_EIGHT 8	 /* and in CVY_EP_INT8_BY_8 */

static inline int cvy_ep_in_e4m3(int code)
{
	return code == CVY_EP_E4M3 || code == CVY_EP_E4M3_POW2;
}

/* Kernels of their own have these. */
static inline int cvy_ep_in_ints(int code)
{
	return code != CVY_EP_AS_IS && !cvy_ep_in_e4m3(code);
}

struct cvy_ep_code {
	int bits;	 /* of an element */
	int group;	 /* elements that have one scale; 0: all of a row, if there are scales */
	int most;	 /* the largest code */
	int scale_bytes; /* 4: f32; 2: in the type of elements; 0: there is none */
};

/* NULL: there is no such code. */
static inline const struct cvy_ep_code *cvy_ep_code_of(int code)
{
	static const struct cvy_ep_code codes[CVY_EP_CODES] = {
		/* CVY_EP_AS_IS */ { 16, 0, 0, 0 },
		/* CVY_EP_E4M3 */ { 8, CVY_EP_GROUP, 448, 4 },
		/* CVY_EP_INT8 */ { 8, 0, 127, 4 },
		/* CVY_EP_INT4, the low nibble is the even element */ { 4, 0, 7, 4 },
		/* CVY_EP_E4M3_POW2 */ { 8, CVY_EP_GROUP, 448, 4 },
		/* CVY_EP_INT8_BY_8 */ { 8, CVY_EP_EIGHT, 127, 2 },
	};

	return code < 0 || code >= CVY_EP_CODES ? NULL : &codes[code];
}

/* Scales of a row. */
static inline size_t cvy_ep_code_groups(const struct cvy_ep_code *c, size_t hidden)
{
	if (!c->scale_bytes)
		return 0;
	return c->group ? (hidden + (size_t)c->group - 1) / (size_t)c->group : 1;
}

/* Bytes of a row's elements. In a row that travels its scales follow. */
static inline size_t cvy_ep_code_bytes(const struct cvy_ep_code *c, size_t hidden)
{
	return hidden * (size_t)c->bits / 8;
}

static inline size_t cvy_ep_code_row(const struct cvy_ep_code *c, size_t hidden)
{
	return cvy_ep_code_bytes(c, hidden) + cvy_ep_code_groups(c, hidden) * (size_t)c->scale_bytes;
}

/* An element becomes the code next to element * by. */
struct cvy_ep_scaling {
	float by, scale;
};

#define CVY_EP_ENDLESS 0x7f800000u /* infinity, in bits of f32; a NaN is above */
#define CVY_EP_TINY 0x0d800000u	   /* 2^-100. Below it 127 / x could be infinite */
#define CVY_EP_NAN 0x7fffffffu

CVY_GPU_BOTH static inline float cvy_ep_float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

CVY_GPU_BOTH static inline uint32_t cvy_ep_magnitude(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits & 0x7fffffffu;
}

/* ---- e4m3 ---- */

#define CVY_EP_E4M3_MOST 448.0f /* the largest code */
#define CVY_EP_E4M3_LEAST 1e-4f /* the scale of a group of zeros comes from this */

/* @most: of a group, CVY_EP_E4M3_LEAST or more. @pow2: the scale is a power of two, the next at or above that of the group. */
CVY_GPU_BOTH static inline struct cvy_ep_scaling cvy_ep_scale_e4m3(float most, int pow2)
{
	const uint32_t bits = cvy_ep_magnitude(pow2 ? most * (1 / CVY_EP_E4M3_MOST) : most);
	const uint32_t exponent = (bits + 0x7fffffu) >> 23;
	struct cvy_ep_scaling s;

	if (pow2 && bits < CVY_EP_ENDLESS) {
		s.by = cvy_ep_float_of((254 - exponent) << 23);
		s.scale = cvy_ep_float_of(exponent << 23);
	} else {
		s.by = CVY_EP_E4M3_MOST / most;
		s.scale = most / CVY_EP_E4M3_MOST;
	}
	return s;
}

/* ---- integers ---- */

/* @largest: magnitude of a group's largest element; @most: the largest code. by = 0: all codes are 0. */
CVY_GPU_BOTH static inline struct cvy_ep_scaling cvy_ep_scale_of(uint32_t largest, float most)
{
	struct cvy_ep_scaling s = { 0, 0 };

	if (largest >= CVY_EP_ENDLESS) {
		s.scale = cvy_ep_float_of(CVY_EP_NAN);
	} else if (largest >= CVY_EP_TINY) {
		s.by = most / cvy_ep_float_of(largest);
		s.scale = cvy_ep_float_of(largest) / most;
	}
	return s;
}

/* The integer next to v * by, ties to even. Adding 1.5 * 2^23 leaves it in the last bits of the sum. */
CVY_GPU_BOTH static inline int32_t cvy_ep_nearest(float v, float by)
{
	const float sum = v * by + 12582912.0f;
	uint32_t bits;

	memcpy(&bits, &sum, sizeof(bits));
	return by == 0 ? 0 : (int32_t)(bits - 0x4b400000u);
}

/* ---- eight integers and a scale in the type of elements ---- */

struct cvy_ep_by_eight {
	uint64_t codes; /* element i is byte i */
	uint16_t scale;
};

/* A positive number as fp16 or bf16, rounded up, so that no element exceeds 127 scales; what does not fit is a NaN. */
CVY_GPU_BOTH static inline uint16_t cvy_ep_scale_up(float f, int fp16)
{
	const uint32_t bits = cvy_ep_magnitude(f), endless = fp16 ? 0x7c00 : 0x7f80;
	uint32_t up = (bits + 0xffff) >> 16;

	if (fp16 && bits < 0x38800000u) { /* 2^-14: below it fp16 has multiples of 2^-24 */
		const float units = f * 16777216.0f;

		up = (uint32_t)units;
		up += (float)up < units;
	} else if (fp16) {
		up = (bits - (112u << 23) + 0x1fff) >> 13;
	}
	return (uint16_t)(up < endless ? up : 0x7fff);
}

CVY_GPU_BOTH static inline float cvy_ep_scale_wide(uint16_t scale, int fp16)
{
	if (!fp16)
		return cvy_ep_float_of((uint32_t)scale << 16);
	if (scale < 0x400)
		return (float)scale * (1 / 16777216.0f);
	return cvy_ep_float_of(scale < 0x7c00 ? ((uint32_t)scale << 13) + (112u << 23) : CVY_EP_NAN);
}

CVY_GPU_BOTH static inline struct cvy_ep_by_eight cvy_ep_eight_of(const float v[CVY_EP_EIGHT], int fp16)
{
	struct cvy_ep_by_eight e = { 0, 0 };
	uint32_t largest = 0;
	float scale;

	for (int i = 0; i < CVY_EP_EIGHT; i++)
		largest = cvy_ep_magnitude(v[i]) > largest ? cvy_ep_magnitude(v[i]) : largest;
	if (largest < CVY_EP_TINY)
		return e;
	e.scale = largest < CVY_EP_ENDLESS ? cvy_ep_scale_up(cvy_ep_float_of(largest) / 127, fp16) : 0x7fff;
	if (e.scale == 0x7fff)
		return e;
	scale = cvy_ep_scale_wide(e.scale, fp16);
	for (int i = 0; i < CVY_EP_EIGHT; i++) /* not v * (1 / scale), which moves ties */
		e.codes |= (uint64_t)(uint8_t)cvy_ep_nearest(v[i] / scale, 1) << (8 * i);
	return e;
}

/* Element @i of the codes @codes, whose scale is @scale. */
CVY_GPU_BOTH static inline float cvy_ep_eighth(uint64_t codes, int i, float scale)
{
	return (float)(int8_t)(codes >> (8 * i)) * scale;
}

#endif
