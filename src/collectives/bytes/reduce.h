/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise reduction of several sources, the same fold everywhere: ascending order of the sources. */
#ifndef CVY_REDUCE_H
#define CVY_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include "covey.h"

#define CVY_DTYPES 16 /* numbers of types are below this */

size_t cvy_dtype_bytes(int dtype); /* 0: no such type */
const char *cvy_dtype_name(int dtype);
int cvy_redop_known(int redop);

/*
 * dst[i] = src[0][i] op src[1][i] op ..., count elements; avg divides by n. Sources and dst may be
 * unaligned; dst may be one of the sources. f16 and bf16 accumulate in f32 and are rounded once.
 * `stream`: results will not be read soon, store them past the caches.
 */
void cvy_reduce(void *dst, const void *const *src, int n, size_t count, int dtype, int redop, int stream);

/* Turns a sum of @by inputs into avg, in place; not for 16-bit floats, which are rounded once. */
void cvy_reduce_average(void *at, size_t count, int dtype, int by);

/* ---- One table of loops per instruction set; all give the same bits ---- */

typedef void (*cvy_fold_fn)(void *to, const void *a, const void *b, size_t n);

struct cvy_reduce_table {
	cvy_fold_fn fold[CVY_DTYPES][COVEY_AVG];		 /* [dtype][redop] */
	void (*average[CVY_DTYPES])(void *at, size_t n, int by); /* turns a sum into avg */
	void (*widen[CVY_DTYPES])(float *to, const void *from, size_t n);
	void (*narrow[CVY_DTYPES])(void *to, const float *from, size_t n);
	void (*weigh[CVY_DTYPES])(float *sum, const void *from, float weight, size_t n); /* sum += weight * from */
};

extern const struct cvy_reduce_table cvy_reduce_plain;
#if defined(__x86_64__)
extern const struct cvy_reduce_table cvy_reduce_avx2, cvy_reduce_avx512;
#endif

/* The table in use; tests set another. NULL: the best that the CPU has. */
const struct cvy_reduce_table *cvy_reduce_use(const struct cvy_reduce_table *table);
const struct cvy_reduce_table *cvy_reduce_loops(void); /* the table in use */
/* A table by its name, NULL if this CPU does not have it. */
const struct cvy_reduce_table *cvy_reduce_find(const char *name);

/* ---- Conversions, one number at a time ---- */

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
	uint32_t bits, nan;

	__builtin_memcpy(&bits, &f, sizeof(bits));
	nan = bits >> 16 | 0x40;
	bits = (bits & 0x7fffffffu) > 0x7f800000u ? nan : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
	return (uint16_t)bits;
}

/*
 * The same as the instructions of F16C: a NaN becomes quiet and keeps its upper bits. All cases are computed and one
 * is taken, so that a compiler can convert many numbers at once.
 */
static inline float cvy_f16_f32(uint16_t h)
{
	uint32_t rest = h & 0x7fff, quiet = rest > 0x7c00 ? 0x400000u : 0, bits;
	uint32_t normal = (rest << 13) + (112u << 23), endless = 0x7f800000u | (rest & 0x3ff) << 13 | quiet;
	float f = (float)(int32_t)rest * 0x1p-24f; /* of small numbers, exact */

	__builtin_memcpy(&bits, &f, sizeof(f));
	bits = rest < 0x400 ? bits : normal;
	bits = rest >= 0x7c00 ? endless : bits;
	bits |= (uint32_t)(h & 0x8000) << 16;
	__builtin_memcpy(&f, &bits, sizeof(f));
	return f;
}

/* round to nearest even */
static inline uint16_t cvy_f32_f16(float f)
{
	uint32_t bits, rest, normal, nan, small, out;

	__builtin_memcpy(&bits, &f, sizeof(bits));
	rest = bits & 0x7fffffffu;
	normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
	nan = 0x7e00 | (rest >> 13 & 0x3ff);
	/* below 2^-14: adding 1/2 leaves the number in the last bits, rounded to multiples of 2^-24 */
	__builtin_memcpy(&f, &rest, sizeof(f));
	f += 0.5f;
	__builtin_memcpy(&small, &f, sizeof(f));
	out = rest < 0x38800000u ? small - 0x3f000000u : normal;
	out = rest >= 0x477ff000u ? 0x7c00 : out; /* 65520: halfway to the first number that does not fit */
	out = rest > 0x7f800000u ? nan : out;
	return (uint16_t)(out | (bits >> 16 & 0x8000));
}

#endif
