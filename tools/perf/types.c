/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types and reductions, one entry each. Values are small integers, so that a fold of them is exact in every type and
 * there is one right result: the sums of all ranks stay below 128, which a signed byte and a bfloat16 hold.
 * Products wrap around in integers as in C.
 */
#include <string.h>

#include "perf.h"

const struct perf_type perf_types[] = {
	{ "int8", COVEY_INT8, 1, PERF_SIGNED },	      { "uint8", COVEY_UINT8, 1, PERF_UNSIGNED },
	{ "int16", COVEY_INT16, 2, PERF_SIGNED },     { "int32", COVEY_INT32, 4, PERF_SIGNED },
	{ "uint32", COVEY_UINT32, 4, PERF_UNSIGNED }, { "int64", COVEY_INT64, 8, PERF_SIGNED },
	{ "uint64", COVEY_UINT64, 8, PERF_UNSIGNED }, { "half", COVEY_FLOAT16, 2, PERF_HALF },
	{ "float", COVEY_FLOAT32, 4, PERF_FLOAT },    { "double", COVEY_FLOAT64, 8, PERF_FLOAT },
	{ "bfloat16", COVEY_BFLOAT16, 2, PERF_BF16 },
};

const struct perf_redop perf_redops[] = {
	{ "sum", COVEY_SUM, PERF_SUM }, { "prod", COVEY_PROD, PERF_PROD }, { "max", COVEY_MAX, PERF_MAX },
	{ "min", COVEY_MIN, PERF_MIN }, { "avg", COVEY_AVG, PERF_AVG },
};

const int perf_type_count = sizeof(perf_types) / sizeof(perf_types[0]);
const int perf_redop_count = sizeof(perf_redops) / sizeof(perf_redops[0]);

static uint16_t bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits += 0x7fff + (bits >> 16 & 1); /* to nearest, ties to even; there is no NaN here */
	return (uint16_t)(bits >> 16);
}

/* Of finite numbers that are normal in half precision, or zero: no others occur here. */
static uint16_t half(float f)
{
	uint32_t bits, rounded;

	memcpy(&bits, &f, sizeof(bits));
	if (!(bits << 1))
		return (uint16_t)(bits >> 16);
	rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
	rounded = (rounded - (112u << 23)) >> 13;
	return (uint16_t)((bits >> 16 & 0x8000) | (rounded > 0x7c00 ? 0x7c00 : rounded));
}

static void put_float(const struct perf_type *type, void *to, double value)
{
	float f = (float)value;
	uint16_t h;

	if (type->kind == PERF_FLOAT && type->bytes == sizeof(double)) {
		memcpy(to, &value, sizeof(value));
	} else if (type->kind == PERF_FLOAT) {
		memcpy(to, &f, sizeof(f));
	} else {
		h = type->kind == PERF_HALF ? half(f) : bf16(f);
		memcpy(to, &h, sizeof(h));
	}
}

/* Truncates as C does, for all widths: the low bytes come first. */
static void put_integer(const struct perf_type *type, void *to, int64_t value)
{
	memcpy(to, &value, type->bytes);
}

static bool integral(const struct perf_type *type)
{
	return type->kind == PERF_SIGNED || type->kind == PERF_UNSIGNED;
}

void perf_put(const struct perf_type *type, void *to, int value)
{
	if (integral(type))
		put_integer(type, to, value);
	else
		put_float(type, to, value);
}

/* The quotient is rounded in the type of the fold: f32 for 16-bit floats. */
static double average(const struct perf_type *type, double sum, int n)
{
	if (type->kind == PERF_FLOAT && type->bytes == sizeof(double))
		return sum / n;
	return (double)((float)sum / (float)n);
}

void perf_fold(const struct perf_type *type, const struct perf_redop *op, const int *values, int n, void *to)
{
	uint64_t sum = 0, product = 1;
	double float_product = 1;
	int low = values[0], high = values[0];

	for (int i = 0; i < n; i++) {
		sum += (uint64_t)values[i];
		product *= (uint64_t)values[i];
		float_product *= values[i];
		low = values[i] < low ? values[i] : low;
		high = values[i] > high ? values[i] : high;
	}
	switch (op->kind) {
	case PERF_SUM:
		integral(type) ? put_integer(type, to, (int64_t)sum) : put_float(type, to, (double)sum);
		break;
	case PERF_PROD:
		integral(type) ? put_integer(type, to, (int64_t)product) : put_float(type, to, float_product);
		break;
	case PERF_MIN:
		perf_put(type, to, low);
		break;
	case PERF_MAX:
		perf_put(type, to, high);
		break;
	case PERF_AVG:
		if (integral(type))
			put_integer(type, to, (int64_t)(sum / (uint64_t)n));
		else
			put_float(type, to, average(type, (double)sum, n));
	}
}
