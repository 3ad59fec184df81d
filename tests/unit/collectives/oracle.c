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
	case COVEY_UINT8:
		return 1;
	case COVEY_BFLOAT16:
		return 2;
	case COVEY_INT32:
	case COVEY_FLOAT32:
		return 4;
	default:
		return 8;
	}
}

union value {
	uint8_t u8;
	uint16_t u16;
	int32_t i32;
	int64_t i64;
	float f32;
	double f64;
	uint8_t bytes[8];
};

static uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	return z ^ z >> 32;
}

/* Numbers whose floating sums depend on the order: signs and sizes vary. */
static union value input(size_t i, int dtype, int rank, uint64_t seed)
{
	uint64_t h = mix(i * 64 + (uint64_t)rank + (seed + 1) * 0x9e3779b97f4a7c15ull);
	double x = (double)(int32_t)h * (h & 1ull << 40 ? 1e-3 : 1e-9);
	union value v = { .i64 = 0 };

	switch (dtype) {
	case COVEY_UINT8:
		v.u8 = (uint8_t)h;
		break;
	case COVEY_INT32:
		v.i32 = (int32_t)h;
		break;
	case COVEY_INT64:
		v.i64 = (int64_t)h;
		break;
	case COVEY_FLOAT32:
		v.f32 = (float)x;
		break;
	case COVEY_FLOAT64:
		v.f64 = x;
		break;
	default:
		v.u16 = cvy_f32_bf16((float)x);
	}
	return v;
}

void type_input(void *to, size_t count, int dtype, int rank, uint64_t seed)
{
	size_t elem = type_bytes(dtype);

	for (size_t i = 0; i < count; i++) {
		union value v = input(i, dtype, rank, seed);

		memcpy((uint8_t *)to + i * elem, v.bytes, elem);
	}
}

#define PICK(a, b, redop) ((redop) == COVEY_MIN ? ((b) < (a) ? (b) : (a)) : ((b) > (a) ? (b) : (a)))
#define STEP(a, b, redop, wrap) \
	((redop) == COVEY_MIN || (redop) == COVEY_MAX ? PICK(a, b, redop) : (wrap)(a) + (wrap)(b))

static union value join(union value a, union value b, int dtype, int redop)
{
	switch (dtype) {
	case COVEY_UINT8:
		a.u8 = (uint8_t)(STEP(a.u8, b.u8, redop, unsigned));
		break;
	case COVEY_INT32:
		if (redop == COVEY_MIN || redop == COVEY_MAX)
			a.i32 = PICK(a.i32, b.i32, redop);
		else
			a.i32 = (int32_t)((uint32_t)a.i32 + (uint32_t)b.i32);
		break;
	case COVEY_INT64:
		if (redop == COVEY_MIN || redop == COVEY_MAX)
			a.i64 = PICK(a.i64, b.i64, redop);
		else
			a.i64 = (int64_t)((uint64_t)a.i64 + (uint64_t)b.i64);
		break;
	case COVEY_FLOAT64:
		a.f64 = STEP(a.f64, b.f64, redop, double);
		break;
	default:
		a.f32 = STEP(a.f32, b.f32, redop, float);
	}
	return a;
}

static union value average(union value v, int dtype, int n)
{
	switch (dtype) {
	case COVEY_UINT8:
		v.u8 = (uint8_t)(v.u8 / n);
		break;
	case COVEY_INT32:
		v.i32 /= n;
		break;
	case COVEY_INT64:
		v.i64 /= n;
		break;
	case COVEY_FLOAT64:
		v.f64 /= n;
		break;
	default:
		v.f32 /= (float)n;
	}
	return v;
}

void type_fold(void *to, size_t count, int dtype, int redop, uint64_t mask, uint64_t seed)
{
	size_t elem = type_bytes(dtype);
	int bf16 = dtype == COVEY_BFLOAT16;

	for (size_t i = 0; i < count; i++) {
		union value sum = { .i64 = 0 };
		int n = 0;

		for (int r = 0; r < 64; r++) {
			union value v;

			if (!(mask >> r & 1))
				continue;
			v = input(i, dtype, r, seed);
			if (bf16)
				v.f32 = cvy_bf16_f32(v.u16);
			sum = n++ ? join(sum, v, dtype, redop) : v;
		}
		if (redop == COVEY_AVG)
			sum = average(sum, dtype, n);
		if (bf16)
			sum.u16 = cvy_f32_bf16(sum.f32);
		memcpy((uint8_t *)to + i * elem, sum.bytes, elem);
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
