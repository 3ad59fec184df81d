/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known inputs and the results they must give. The folds are written element by element, without the
 * library's reductions, in the order that covey.h promises: ascending rank, bf16 through f32.
 */
#include "harness.h"

#include "reduce.h"

/*
 * Most of what a test of operations costs is here. So each type has loops of its own: @CALL is inlined with the type as
 * a constant.
 */
#define INLINED static inline __attribute__((always_inline))
#define FOR_TYPE(dtype, CALL) \
	switch (dtype) { \
		TYPE(COVEY_INT8, CALL) \
		TYPE(COVEY_UINT8, CALL) \
		TYPE(COVEY_INT16, CALL) \
		TYPE(COVEY_INT32, CALL) \
		TYPE(COVEY_UINT32, CALL) \
		TYPE(COVEY_INT64, CALL) \
		TYPE(COVEY_UINT64, CALL) \
		TYPE(COVEY_FLOAT16, CALL) \
		TYPE(COVEY_FLOAT32, CALL) \
		TYPE(COVEY_FLOAT64, CALL) \
		TYPE(COVEY_BFLOAT16, CALL) \
	}
#define TYPE(DTYPE, CALL) \
	case DTYPE: \
		CALL(DTYPE); \
		break;

INLINED size_t bytes_of(int dtype)
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

size_t type_bytes(int dtype)
{
	return bytes_of(dtype);
}

/* Integers are held in 64 bits, two's complement; f16 and bf16 as the f32 that they stand for. */
union value {
	uint64_t bits;
	float f32;
	double f64;
};

INLINED uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	z = (z ^ z >> 32) * 0xd6e8feb86659fd93ull;
	return z ^ z >> 32;
}

INLINED int is_real(int dtype)
{
	return dtype >= COVEY_FLOAT16 && dtype <= COVEY_BFLOAT16;
}

INLINED int is_signed(int dtype)
{
	return dtype == COVEY_INT8 || dtype == COVEY_INT16 || dtype == COVEY_INT32 || dtype == COVEY_INT64;
}

INLINED void store(uint8_t *to, union value v, int dtype)
{
	uint16_t half;

	if (dtype == COVEY_FLOAT16 || dtype == COVEY_BFLOAT16) {
		half = dtype == COVEY_FLOAT16 ? cvy_f32_f16(v.f32) : cvy_f32_bf16(v.f32);
		memcpy(to, &half, 2);
	} else {
		memcpy(to, &v, bytes_of(dtype)); /* little-endian */
	}
}

/* The value as the type holds it. */
INLINED union value narrowed(union value v, int dtype)
{
	int unused = 64 - 8 * (int)bytes_of(dtype);

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
INLINED union value input(size_t i, int dtype, uint64_t rank_and_seed)
{
	uint64_t h = mix(i * 64 + rank_and_seed);
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

static uint64_t rank_and_seed(int rank, uint64_t seed)
{
	return (uint64_t)rank + (seed + 1) * 0x9e3779b97f4a7c15ull;
}

INLINED void input_of(uint8_t *to, size_t count, int dtype, uint64_t of)
{
	for (size_t i = 0; i < count; i++)
		store(to + i * bytes_of(dtype), input(i, dtype, of), dtype);
}

void type_input(void *to, size_t count, int dtype, int rank, uint64_t seed)
{
	const uint64_t of = rank_and_seed(rank, seed);

#define INPUT_OF(DTYPE) input_of(to, count, DTYPE, of)
	FOR_TYPE(dtype, INPUT_OF)
}

#define PICK(a, b, redop) ((redop) == COVEY_MIN ? ((b) < (a) ? (b) : (a)) : ((b) > (a) ? (b) : (a)))

INLINED double real(double a, double b, int redop)
{
	if (redop == COVEY_MIN || redop == COVEY_MAX)
		return a != a ? b : PICK(a, b, redop);
	return redop == COVEY_PROD ? a * b : a + b;
}

INLINED union value join(union value a, union value b, int dtype, int redop)
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

INLINED union value average(union value v, int dtype, int n)
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

INLINED void fold_of(uint8_t *to, size_t count, int dtype, int redop, const uint64_t *of, int n)
{
	for (size_t i = 0; i < count; i++) {
		union value sum = input(i, dtype, of[0]);

		for (int r = 1; r < n; r++)
			sum = join(sum, input(i, dtype, of[r]), dtype, redop);
		if (redop == COVEY_AVG)
			sum = average(sum, dtype, n);
		store(to + i * bytes_of(dtype), sum, dtype);
	}
}

void type_fold(void *to, size_t count, int dtype, int redop, uint64_t mask, uint64_t seed)
{
	uint64_t of[64];
	int n = 0;

	for (int r = 0; r < 64; r++)
		if (mask >> r & 1)
			of[n++] = rank_and_seed(r, seed);
	if (!n && count)
		memset(to, 0, count * type_bytes(dtype));
	if (!n)
		return;
#define FOLD_OF(DTYPE) fold_of(to, count, DTYPE, redop, of, n)
	FOR_TYPE(dtype, FOLD_OF)
}

uint64_t checksum(const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t h = bytes;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 0x100000001b3ull;
	return mix(h);
}
