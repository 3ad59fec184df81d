/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reductions. Work goes in blocks that stay in the first cache: the accumulator of a block takes
 * one source after the other, so every path folds in the same order and gives the same bits. The
 * loops are plain for the compiler to vectorise; -ffp-contract=off keeps them alike on all CPUs.
 */
#include "reduce.h"

#include "algo.h"

#include <assert.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#include <string.h>

#define BLOCK_BYTES 4096

size_t cvy_dtype_bytes(int dtype)
{
	switch (dtype) {
	case COVEY_UINT8:
		return 1;
	case COVEY_BFLOAT16:
		return 2;
	case COVEY_INT32:
	case COVEY_FLOAT32:
		return 4;
	case COVEY_INT64:
	case COVEY_FLOAT64:
		return 8;
	default:
		return 0;
	}
}

int cvy_redop_known(int redop)
{
	return redop == COVEY_SUM || redop == COVEY_MAX || redop == COVEY_MIN || redop == COVEY_AVG;
}

/* Sums of integers wrap; a NaN loses against a number in min and max. */
#define ADD(a, b) ((a) + (b))
#define MIN_NUMBER(a, b) ((b) < (a) || (a) != (a) ? (b) : (a))
#define MAX_NUMBER(a, b) ((b) > (a) || (a) != (a) ? (b) : (a))

#define FOLD(name, type, wide, OP) \
	static void name(void *to, const void *from, size_t n) \
	{ \
		type *a = to; \
		const type *b = from; \
\
		for (size_t i = 0; i < n; i++) \
			a[i] = (type)OP((wide)a[i], (wide)b[i]); \
	}

/* packed types may stand at any address */
typedef uint8_t u8_any;
typedef int32_t i32_any __attribute__((aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));
typedef int64_t i64_any __attribute__((aligned(1), may_alias));
typedef uint64_t u64_any __attribute__((aligned(1), may_alias));
typedef float f32_any __attribute__((aligned(1), may_alias));
typedef double f64_any __attribute__((aligned(1), may_alias));
typedef uint16_t u16_any __attribute__((aligned(1), may_alias));

FOLD(add_u8, u8_any, uint8_t, ADD)
FOLD(add_i32, u32_any, uint32_t, ADD)
FOLD(add_i64, u64_any, uint64_t, ADD)
FOLD(add_f32, f32_any, float, ADD)
FOLD(add_f64, f64_any, double, ADD)
FOLD(min_u8, u8_any, uint8_t, MIN_NUMBER)
FOLD(min_i32, i32_any, int32_t, MIN_NUMBER)
FOLD(min_i64, i64_any, int64_t, MIN_NUMBER)
FOLD(min_f32, f32_any, float, MIN_NUMBER)
FOLD(min_f64, f64_any, double, MIN_NUMBER)
FOLD(max_u8, u8_any, uint8_t, MAX_NUMBER)
FOLD(max_i32, i32_any, int32_t, MAX_NUMBER)
FOLD(max_i64, i64_any, int64_t, MAX_NUMBER)
FOLD(max_f32, f32_any, float, MAX_NUMBER)
FOLD(max_f64, f64_any, double, MAX_NUMBER)

typedef void (*fold_fn)(void *to, const void *from, size_t n);

static fold_fn fold_of(int dtype, int redop)
{
	int op = redop == COVEY_MIN ? 1 : redop == COVEY_MAX ? 2 : 0;

	switch (dtype) {
	case COVEY_UINT8:
		return (fold_fn[]){ add_u8, min_u8, max_u8 }[op];
	case COVEY_INT32:
		return (fold_fn[]){ add_i32, min_i32, max_i32 }[op];
	case COVEY_INT64:
		return (fold_fn[]){ add_i64, min_i64, max_i64 }[op];
	case COVEY_FLOAT64:
		return (fold_fn[]){ add_f64, min_f64, max_f64 }[op];
	default:
		return (fold_fn[]){ add_f32, min_f32, max_f32 }[op];
	}
}

static void divide(void *to, size_t n, int dtype, int by)
{
	u8_any *u8 = to;
	i32_any *i32 = to;
	i64_any *i64 = to;
	f32_any *f32 = to;
	f64_any *f64 = to;

	for (size_t i = 0; i < n; i++) {
		switch (dtype) {
		case COVEY_UINT8:
			u8[i] = (uint8_t)(u8[i] / by);
			break;
		case COVEY_INT32:
			i32[i] /= by;
			break;
		case COVEY_INT64:
			i64[i] /= by;
			break;
		case COVEY_FLOAT64:
			f64[i] /= by;
			break;
		default:
			f32[i] /= (float)by;
		}
	}
}

/* Past the caches: whole 16-byte pieces of an aligned middle; the rest as usual. */
void cvy_copy_out(uint8_t *dst, const uint8_t *src, size_t bytes, int stream)
{
#if defined(__SSE2__)
	size_t at = -(uintptr_t)dst & 15;

	if (stream && bytes >= 64) {
		memcpy(dst, src, at);
		for (; at + 16 <= bytes; at += 16)
			_mm_stream_si128((__m128i *)(void *)(dst + at),
					 _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
		memcpy(dst + at, src + at, bytes - at);
		return;
	}
#else
	(void)stream;
#endif
	memcpy(dst, src, bytes);
}

static void reduce_bf16(uint16_t *dst, const uint16_t *const *src, int n, size_t count, int redop)
{
	float acc[BLOCK_BYTES / 4], add[BLOCK_BYTES / 4];
	fold_fn fold = fold_of(COVEY_FLOAT32, redop);

	for (size_t at = 0; at < count; at += BLOCK_BYTES / 4) {
		size_t m = count - at < BLOCK_BYTES / 4 ? count - at : BLOCK_BYTES / 4;

		for (size_t i = 0; i < m; i++)
			acc[i] = cvy_bf16_f32(((const u16_any *)src[0])[at + i]);
		for (int k = 1; k < n; k++) {
			const u16_any *s = (const u16_any *)src[k] + at;

			for (size_t i = 0; i < m; i++)
				add[i] = cvy_bf16_f32(s[i]);
			fold(acc, add, m);
		}
		if (redop == COVEY_AVG)
			divide(acc, m, COVEY_FLOAT32, n);
		for (size_t i = 0; i < m; i++)
			((u16_any *)dst)[at + i] = cvy_f32_bf16(acc[i]);
	}
}

void cvy_reduce(void *dst, const void *const *src, int n, size_t count, int dtype, int redop, int stream)
{
	uint8_t acc[BLOCK_BYTES] __attribute__((aligned(64)));
	size_t elem = cvy_dtype_bytes(dtype), block;
	fold_fn fold = fold_of(dtype, redop);

	assert(elem && n > 0); /* checked when the operation was made */
	block = BLOCK_BYTES / elem;
	if (dtype == COVEY_BFLOAT16) {
		reduce_bf16(dst, (const uint16_t *const *)src, n, count, redop);
		return;
	}
	for (size_t at = 0; at < count; at += block) {
		size_t m = count - at < block ? count - at : block;

		memcpy(acc, (const uint8_t *)src[0] + at * elem, m * elem);
		for (int k = 1; k < n; k++)
			fold(acc, (const uint8_t *)src[k] + at * elem, m);
		if (redop == COVEY_AVG)
			divide(acc, m, dtype, n);
		cvy_copy_out((uint8_t *)dst + at * elem, acc, m * elem, stream);
	}
#if defined(__SSE2__)
	if (stream)
		_mm_sfence(); /* before the outcome is announced */
#endif
}
