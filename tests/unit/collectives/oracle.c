/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known inputs and the results they must give. The folds are written element by element, without the
 * library's reductions, in the order that covey.h promises: ascending rank, bf16 through f32.
 */
#include "harness.h"

#include "reduce.h"

size_t type_bytes(int dtype)
{
	switch (dtype) {
	case COVEY_INT8:
	case COVEY_UINT8:
		return 1;
	case COVEY_INT16:
	case COVEY_FLOAT16:
	case COVEY_BFLOAT16:
		return 2;
	case COVEY_INT32:
	case COVEY_UINT32:
	case COVEY_FLOAT32:
		return 4;
	default:
		return 8;
	}
}

/* Integers are held in 64 bits, two's complement; f16 and bf16 as the f32 that they stand for. */
union value {
	uint64_t bits;
	float f32;
	double f64;
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	return z ^ z >> 32;
}

static int is_real(int dtype)
{
	return dtype >= COVEY_FLOAT16 && dtype <= COVEY_BFLOAT16;
}

static int is_signed(int dtype)
{
	return dtype == COVEY_INT8 || dtype == COVEY_INT16 || dtype == COVEY_INT32 || dtype == COVEY_INT64;
}

static void store(uint8_t *to, union value v, int dtype)
{
	uint16_t half;

	if (dtype == COVEY_FLOAT16 || dtype == COVEY_BFLOAT16) {
		half = dtype == COVEY_FLOAT16 ? cvy_f32_f16(v.f32) : cvy_f32_bf16(v.f32);
		memcpy(to, &half, 2);
	} else {
		memcpy(to, &v, type_bytes(dtype)); /* little-endian */
	}
}

/* The value as the type holds it. */
static union value narrowed(union value v, int dtype)
{
	int unused = 64 - 8 * (int)type_bytes(dtype);

	if (dtype == COVEY_FLOAT16)
		v.f32 = cvy_f16_f32(cvy_f32_f16(v.f32));
	else if (dtype == COVEY_BFLOAT16)
		v.f32 = cvy_bf16_f32(cvy_f32_bf16(v.f32));
	else if (!is_real(dtype) && is_signed(dtype))
		v.bits = (uint64_t)((int64_t)(v.bits << unused) >> unused);
	else if (!is_real(dtype))
		v.bits = v.bits << unused >> unused;
	return v;
}

/* Numbers whose floating sums depend on the order: signs and sizes vary. */
static union value input(size_t i, int dtype, int rank, uint64_t seed)
{
	uint64_t h = mix(i * 64 + (uint64_t)rank + (seed + 1) * 0x9e3779b97f4a7c15ull);
	double x = (double)(int32_t)h * (h & 1ull << 40 ? 1e-3 : 1e-9);
	union value v = { .bits = h };

	if (dtype == COVEY_FLOAT64)
		v.f64 = x;
	else if (dtype == COVEY_FLOAT16)
		v.f32 = (float)(x * 1e-4);
	else if (is_real(dtype))
		v.f32 = (float)x;
	return narrowed(v, dtype);
}

void type_input(void *to, size_t count, int dtype, int rank, uint64_t seed)
{
	size_t elem = type_bytes(dtype);

	for (size_t i = 0; i < count; i++)
		store((uint8_t *)to + i * elem, input(i, dtype, rank, seed), dtype);
}

#define PICK(a, b, redop) ((redop) == COVEY_MIN ? ((b) < (a) ? (b) : (a)) : ((b) > (a) ? (b) : (a)))

static double real(double a, double b, int redop)
{
	if (redop == COVEY_MIN || redop == COVEY_MAX)
		return a != a ? b : PICK(a, b, redop);
	return redop == COVEY_PROD ? a * b : a + b;
}

static union value join(union value a, union value b, int dtype, int redop)
{
	int by_size = redop == COVEY_MIN || redop == COVEY_MAX;

	if (dtype == COVEY_FLOAT64) {
		a.f64 = real(a.f64, b.f64, redop);
		if (a.f64 != a.f64)
			a.f64 = __builtin_nan("");
	} else if (is_real(dtype)) { /* two roundings are one here: 53 bits are more than twice 24 and 2 */
		a.f32 = (float)real(a.f32, b.f32, redop);
		if (a.f32 != a.f32)
			a.f32 = __builtin_nanf("");
	} else if (by_size && is_signed(dtype)) {
		a.bits = (uint64_t)PICK((int64_t)a.bits, (int64_t)b.bits, redop);
	} else if (by_size) {
		a.bits = PICK(a.bits, b.bits, redop);
	} else {
		a.bits = redop == COVEY_PROD ? a.bits * b.bits : a.bits + b.bits;
		a = narrowed(a, dtype);
	}
	return a;
}

static union value average(union value v, int dtype, int n)
{
	if (dtype == COVEY_FLOAT64)
		v.f64 /= n;
	else if (is_real(dtype))
		v.f32 /= (float)n;
	else if (is_signed(dtype))
		v.bits = (uint64_t)((int64_t)v.bits / n);
	else
		v.bits /= (uint64_t)n;
	return v;
}

void type_fold(void *to, size_t count, int dtype, int redop, uint64_t mask, uint64_t seed)
{
	size_t elem = type_bytes(dtype);

	for (size_t i = 0; i < count; i++) {
		union value sum = { .bits = 0 };
		int n = 0;

		for (int r = 0; r < 64; r++)
			if (mask >> r & 1)
				sum = n++ ? join(sum, input(i, dtype, r, seed), dtype, redop)
					  : input(i, dtype, r, seed);
		if (redop == COVEY_AVG)
			sum = average(sum, dtype, n);
		store((uint8_t *)to + i * elem, sum, dtype);
	}
}

uint64_t checksum(const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t h = bytes;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return mix(h);
}
