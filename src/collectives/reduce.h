/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise reduction of several sources, the same fold everywhere: ascending order of the sources. */
#ifndef CVY_REDUCE_H
#define CVY_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "covey.h"

size_t cvy_dtype_bytes(int dtype); /* 0: no such type */
int cvy_redop_known(int redop);

/*
 * dst[i] = src[0][i] op src[1][i] op ..., count elements; avg divides by n. Sources and dst may be
 * unaligned; dst may be one of the sources. bf16 accumulates in f32 and is rounded once. `stream`:
 * results will not be read soon, store them past the caches.
 */
void cvy_reduce(void *dst, const void *const *src, int n, size_t count, int dtype, int redop, int stream);

static inline float cvy_bf16_f32(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float f;

	__builtin_memcpy(&f, &bits, sizeof(f));
	return f;
}

/* round to nearest even; NaN stays a (quiet) NaN */
static inline uint16_t cvy_f32_bf16(float f)
{
	uint32_t bits;

	__builtin_memcpy(&bits, &f, sizeof(bits));
	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
