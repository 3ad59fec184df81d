/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The five shapes of the alltoall contest of 2025 for eight MI300X, and inputs for them. How many tokens a rank has is as
 * there: the first number of PyTorch's generator on a device. Which experts a token names, its weights and its elements
 * are ours, of the same distributions. Fewer ranks have the tokens of the first ones, and share all experts.
 */
#include <math.h>
#include <string.h>

#include "all2all.h"

#define MOST_EXPERTS 256

const struct perf_shape perf_shapes[PERF_SHAPES] = {
	{ 8, 2, 6144, 16, 6635 },   { 64, 6, 2048, 32, 1234 }, { 128, 4, 2880, 128, 51 },
	{ 128, 8, 4096, 256, 175 }, { 256, 8, 7168, 256, 4 },
};

uint32_t perf_philox(uint64_t key)
{
	uint32_t c[4] = { 0 }, k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int i = 0; i < 10; i++) {
		uint64_t a = UINT64_C(0xd2511f53) * c[0], b = UINT64_C(0xcd9e8d57) * c[2];

		c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
		c[1] = (uint32_t)b;
		c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
		c[3] = (uint32_t)a;
		k0 += 0x9e3779b9;
		k1 += 0xbb67ae85;
	}
	return c[0];
}

int perf_shape_tokens(const struct perf_shape *s, int rank)
{
	return 1 + (int)(perf_philox(s->seed + (uint64_t)rank) % (uint32_t)(s->tokens - 1));
}

/* ---- numbers that every rank can make for every other ---- */

enum stream { OF_EXPERTS, OF_WEIGHTS, OF_ELEMENTS, OF_TABLE };

static uint64_t mix(uint64_t v)
{
	v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
	return v ^ v >> 31;
}

static uint64_t begin(const struct perf_shape *s, int rank, enum stream of, int token)
{
	return mix(s->seed * 8191 + (uint64_t)s->hidden +
		   mix((uint64_t)rank << 40 | (uint64_t)of << 32 | (uint64_t)token));
}

static uint64_t next(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return mix(*state);
}

/* From 0 to 1, without 1. */
static float uniform(uint64_t *state)
{
	return (float)(next(state) >> 40) * 0x1p-24f;
}

/* The first places of a permutation. */
void perf_shape_experts(const struct perf_shape *s, int rank, int token, int32_t *ids)
{
	uint64_t state = begin(s, rank, OF_EXPERTS, token);
	int32_t all[MOST_EXPERTS];

	for (int e = 0; e < MOST_EXPERTS; e++)
		all[e] = e;
	for (int k = 0; k < s->topk && k < s->experts; k++) {
		int other = k + (int)(next(&state) % (uint64_t)(s->experts - k));

		ids[k] = all[other];
		all[other] = all[k];
	}
}

void perf_shape_weights(const struct perf_shape *s, int rank, int token, float *weights)
{
	uint64_t state = begin(s, rank, OF_WEIGHTS, token);

	for (int k = 0; k < s->topk; k++)
		weights[k] = uniform(&state);
}

void perf_shape_row(const struct perf_shape *s, int rank, int token, uint16_t *x)
{
	uint64_t state = begin(s, rank, OF_ELEMENTS, token);

	for (int h = 0; h < s->hidden; h += 2) {
		float far = sqrtf(-2 * logf(1 - uniform(&state))), angle = 6.2831853f * uniform(&state);

		x[h] = perf_half(far * cosf(angle));
		if (h + 1 < s->hidden)
			x[h + 1] = perf_half(far * sinf(angle));
	}
}

/* Positive: the terms of a sum do not cancel, which no tolerance relative to the sum allows for. */
void perf_shape_table(const struct perf_shape *s, int owner, size_t count, float *table)
{
	uint64_t state = begin(s, owner, OF_TABLE, 0);

	for (size_t i = 0; i < count; i++)
		table[i] = 0.5f + uniform(&state);
}

/* ---- fp16 ---- */

float perf_of_half(uint16_t half)
{
	uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
	float f;

	if (bits >= 0x7c00u << 13)
		bits |= 0x7f800000;
	memcpy(&f, &bits, sizeof(f));
	if (bits < 0x7f800000)
		f *= 0x1p112f;
	return half & 0x8000 ? -f : f;
}

uint16_t perf_half(float f)
{
	uint32_t bits, sign;

	memcpy(&bits, &f, sizeof(bits));
	sign = bits >> 16 & 0x8000;
	bits &= 0x7fffffff;
	if (bits > 0x7f800000)
		return 0x7fff;
	if (bits >= 0x477ff000) /* 65520: half way to what would follow the largest */
		return (uint16_t)(sign | 0x7c00);
	if (bits < 0x38800000) { /* below the least normal number: the sum's last place is that of the result */
		float sum = fabsf(f) + 0.5f;

		memcpy(&bits, &sum, sizeof(bits));
		return (uint16_t)(sign | (bits - 0x3f000000));
	}
	return (uint16_t)(sign | (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13);
}
