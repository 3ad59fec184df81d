/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of the reductions, written once. A file that defines TARGET (how its functions are compiled) and TABLE (the
 * name of its table) includes this; without these it makes the table for any CPU. Plain loops for the compiler to
 * vectorise. Nothing in them depends on the order in which a CPU names its operands: a sum that is NaN becomes one
 * fixed NaN, so all tables give the same bits.
 */
#ifndef CVY_REDUCE_BODY_H
#define CVY_REDUCE_BODY_H

#include <string.h>

#include "reduce.h"

#ifndef TABLE
#define TARGET
#define TABLE cvy_reduce_plain
#endif

/* Sums and products of integers wrap; a NaN loses against a number in min and max. */
#define CVY_ADD(a, b) ((a) + (b))
#define CVY_MUL(a, b) ((a) * (b))
#define CVY_MIN_OF(a, b) ((b) < (a) ? (b) : (a))
#define CVY_MAX_OF(a, b) ((b) > (a) ? (b) : (a))
#define CVY_MIN_NUMBER(a, b) ((b) < (a) || (a) != (a) ? (b) : (a))
#define CVY_MAX_NUMBER(a, b) ((b) > (a) || (a) != (a) ? (b) : (a))

/* packed types may be at any address */
#define CVY_ANY __attribute__((aligned(1), may_alias))
typedef int8_t cvy_i8_any __attribute__((may_alias));
typedef uint8_t cvy_u8_any __attribute__((may_alias));
typedef int16_t cvy_i16_any CVY_ANY;
typedef uint16_t cvy_u16_any CVY_ANY;
typedef int32_t cvy_i32_any CVY_ANY;
typedef uint32_t cvy_u32_any CVY_ANY;
typedef int64_t cvy_i64_any CVY_ANY;
typedef uint64_t cvy_u64_any CVY_ANY;
typedef float cvy_f32_any CVY_ANY;
typedef double cvy_f64_any CVY_ANY;

/* `to` may be `a` or `b`, element for element, and overlaps neither otherwise: no check at run time is needed. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* a sanitizer checks every element */
#define CVY_VECTORISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define CVY_VECTORISE _Pragma("GCC ivdep")
#endif

#define FOLD(name, type, wide, OP) \
	TARGET static void name(void *to, const void *a, const void *b, size_t n) \
	{ \
		type *out = to; \
		const type *x = a, *y = b; \
\
		CVY_VECTORISE \
		for (size_t i = 0; i < n; i++) { \
			wide l = (wide)x[i], r = (wide)y[i]; \
\
			out[i] = (type)OP(l, r); \
		} \
	}

#define FOLD_NUMBER(name, type, real, nan, OP) \
	TARGET static void name(void *to, const void *a, const void *b, size_t n) \
	{ \
		type *out = to; \
		const type *x = a, *y = b; \
\
		CVY_VECTORISE \
		for (size_t i = 0; i < n; i++) { \
			real v = OP(x[i], y[i]); \
\
			out[i] = v == v ? v : (real)nan; \
		} \
	}

/* An integer type: sum and product in the unsigned type of its width, where they wrap. */
#define INTEGERS(name, type, unsigned_any, wrap, value) \
	FOLD(sum_##name, unsigned_any, wrap, CVY_ADD) \
	FOLD(prod_##name, unsigned_any, wrap, CVY_MUL) \
	FOLD(max_##name, type, value, CVY_MAX_OF) \
	FOLD(min_##name, type, value, CVY_MIN_OF)

/* Divides as @via, which has room for every quotient of the type: the nearest one never rounds up to a whole number. */
#define AVERAGE(name, type, value, via) \
	TARGET static void avg_##name(void *at, size_t n, int by) \
	{ \
		type *v = at; \
\
		CVY_VECTORISE \
		for (size_t i = 0; i < n; i++) \
			v[i] = (value)((via)v[i] / (via)by); \
	}

#define REALS(name, type, real, nan) \
	FOLD_NUMBER(sum_##name, type, real, nan, CVY_ADD) \
	FOLD_NUMBER(prod_##name, type, real, nan, CVY_MUL) \
	FOLD(max_##name, type, real, CVY_MAX_NUMBER) \
	FOLD(min_##name, type, real, CVY_MIN_NUMBER)

INTEGERS(i8, cvy_i8_any, cvy_u8_any, unsigned, int8_t)
INTEGERS(u8, cvy_u8_any, cvy_u8_any, unsigned, uint8_t)
INTEGERS(i16, cvy_i16_any, cvy_u16_any, unsigned, int16_t)
INTEGERS(i32, cvy_i32_any, cvy_u32_any, uint32_t, int32_t)
INTEGERS(u32, cvy_u32_any, cvy_u32_any, uint32_t, uint32_t)
INTEGERS(i64, cvy_i64_any, cvy_u64_any, uint64_t, int64_t)
INTEGERS(u64, cvy_u64_any, cvy_u64_any, uint64_t, uint64_t)
REALS(f32, cvy_f32_any, float, __builtin_nanf(""))
REALS(f64, cvy_f64_any, double, __builtin_nan(""))

AVERAGE(i8, cvy_i8_any, int8_t, float)
AVERAGE(u8, cvy_u8_any, uint8_t, float)
AVERAGE(i16, cvy_i16_any, int16_t, float)
AVERAGE(i32, cvy_i32_any, int32_t, double)
AVERAGE(u32, cvy_u32_any, uint32_t, double)
AVERAGE(i64, cvy_i64_any, int64_t, int64_t)
AVERAGE(u64, cvy_u64_any, uint64_t, uint64_t)
AVERAGE(f32, cvy_f32_any, float, float)
AVERAGE(f64, cvy_f64_any, double, double)

TARGET static void widen_bf16(float *to, const void *from, size_t n)
{
	const cvy_u16_any *h = from;

	CVY_VECTORISE
	for (size_t i = 0; i < n; i++)
		to[i] = cvy_bf16_f32(h[i]);
}

TARGET static void narrow_bf16(void *to, const float *from, size_t n)
{
	cvy_u16_any *h = to;

	CVY_VECTORISE
	for (size_t i = 0; i < n; i++)
		h[i] = cvy_f32_bf16(from[i]);
}

/* Combine adds a row with its weight; the row overlaps nothing. */
TARGET static void weigh_bf16(float *sum, const void *from, float weight, size_t n)
{
	const cvy_u16_any *h = from;

	CVY_VECTORISE
	for (size_t i = 0; i < n; i++)
		sum[i] += weight * cvy_bf16_f32(h[i]);
}

/* Whole vectors where the CPU converts, the rest one by one. */
TARGET static void widen_f16(float *to, const void *from, size_t n)
{
	const cvy_u16_any *h = from;
	size_t i = 0;

#ifdef F16_LANES
	for (; i + F16_LANES <= n; i += F16_LANES)
		F16_WIDEN(to + i, h + i);
#endif
	for (; i < n; i++)
		to[i] = cvy_f16_f32(h[i]);
}

/* In parts, each widened as fast as the CPU converts. */
TARGET static void weigh_f16(float *sum, const void *from, float weight, size_t n)
{
	const cvy_u16_any *h = from;
	float part[128];

	for (size_t i = 0, m; i < n; i += m) {
		m = n - i < 128 ? n - i : 128;
		widen_f16(part, h + i, m);
		CVY_VECTORISE
		for (size_t k = 0; k < m; k++)
			sum[i + k] += weight * part[k];
	}
}

TARGET static void narrow_f16(void *to, const float *from, size_t n)
{
	cvy_u16_any *h = to;
	size_t i = 0;

#ifdef F16_LANES
	for (; i + F16_LANES <= n; i += F16_LANES)
		F16_NARROW(h + i, from + i);
#endif
	for (; i < n; i++)
		h[i] = cvy_f32_f16(from[i]);
}

#define ROW(name) \
	{ \
		sum_##name, prod_##name, max_##name, min_##name \
	}

const struct cvy_reduce_table TABLE = {
	.fold = {
		[COVEY_INT8] = ROW(i8),
		[COVEY_UINT8] = ROW(u8),
		[COVEY_INT16] = ROW(i16),
		[COVEY_INT32] = ROW(i32),
		[COVEY_UINT32] = ROW(u32),
		[COVEY_INT64] = ROW(i64),
		[COVEY_UINT64] = ROW(u64),
		[COVEY_FLOAT32] = ROW(f32),
		[COVEY_FLOAT64] = ROW(f64),
	},
	.average = {
		[COVEY_INT8] = avg_i8,
		[COVEY_UINT8] = avg_u8,
		[COVEY_INT16] = avg_i16,
		[COVEY_INT32] = avg_i32,
		[COVEY_UINT32] = avg_u32,
		[COVEY_INT64] = avg_i64,
		[COVEY_UINT64] = avg_u64,
		[COVEY_FLOAT32] = avg_f32,
		[COVEY_FLOAT64] = avg_f64,
	},
	.widen = { [COVEY_FLOAT16] = widen_f16, [COVEY_BFLOAT16] = widen_bf16 },
	.weigh = { [COVEY_FLOAT16] = weigh_f16, [COVEY_BFLOAT16] = weigh_bf16 },
	.narrow = { [COVEY_FLOAT16] = narrow_f16, [COVEY_BFLOAT16] = narrow_bf16 },
};

#endif
