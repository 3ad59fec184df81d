/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing and unpacking of dispatch and combine among ranks of one process, against the plain reference of the job:
 * random and hostile routings, missing ranks, bytes that no honest peer would write. No engine takes part.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "ep.h"
#include "ep_quant.h"
#include "mask.h"
#include "reduce.h"

/* The job's reference is its own translation unit there and part of this one here: tools see covey.h alone. */
#include "../../../tools/moe/reference.c"

enum { RANKS = 5, MAX_RANKS = 8, MOST_TOKENS = 9, HIDDEN = 8, TOP_K = 3, EXPERTS = 11 };

struct rank {
	struct covey_ep ep;
	struct cvy_ep_call *call;
	int tokens;
	uint16_t x[MOST_TOKENS * HIDDEN], out[MOST_TOKENS * HIDDEN], want[MOST_TOKENS * HIDDEN];
	int32_t experts[MOST_TOKENS * TOP_K];
	int64_t experts64[MOST_TOKENS * TOP_K]; /* the same ids */
	float weights[MOST_TOKENS * TOP_K];
	uint16_t packed_x[EXPERTS * RANKS * MOST_TOKENS * HIDDEN], y[EXPERTS * RANKS * MOST_TOKENS * HIDDEN];
	int32_t count[EXPERTS], src_info[EXPERTS * RANKS * MOST_TOKENS];
	int64_t range[EXPERTS * RANKS];
	int owner[EXPERTS], local[EXPERTS];
	uint8_t *dispatch, *combine;
};

static struct rank ranks[RANKS];
static const struct moe_shape plain = { MOST_TOKENS, HIDDEN, TOP_K, EXPERTS, RANKS };
static uint32_t state;

static uint32_t draw(uint32_t below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

static void expert(void *ctx, int e, const uint16_t *x, uint16_t *y)
{
	(void)ctx;
	for (int h = 0; h < HIDDEN; h++)
		y[h] = moe_to_bf16(moe_from_bf16(x[h]) * (float)(e + 1) + (float)h);
}

static void open_ranks(uint32_t seed)
{
	struct cvy_ep_shape shape = { MOST_TOKENS, HIDDEN, TOP_K, EXPERTS, MAX_RANKS, COVEY_EP_LL, 0, 0 };

	state = seed * 2654435761u + 1;
	memset(ranks, 0, sizeof(ranks));
	for (int r = 0; r < RANKS; r++) {
		struct rank *k = &ranks[r];

		if (r == 0)
			for (int e = 0; e < EXPERTS; e++)
				k->owner[e] = (int)draw(RANKS);
		memcpy(k->owner, ranks[0].owner, sizeof(k->owner));
		k->ep = (struct covey_ep){
			.shape = shape,
			.rank = r,
			.size = RANKS,
			.owner = k->owner,
			.local = k->local,
			.dtype = COVEY_BFLOAT16,
		};
		k->ep.el = cvy_ep_locals(EXPERTS, k->owner, r, k->local);
		k->call = cvy_ep_call_new(&k->ep, 1);
		k->dispatch = calloc(1, cvy_ep_dispatch_bytes(&shape));
		k->combine = calloc(1, cvy_ep_combine_bytes(&shape));
		ck_assert(k->call && k->dispatch && k->combine);
	}
}

static void close_ranks(void)
{
	for (int r = 0; r < RANKS; r++) {
		cvy_ep_call_free(ranks[r].call);
		free(ranks[r].dispatch);
		free(ranks[r].combine);
	}
}

/* In int64 what is no expert may be far beyond int32, with an expert in its low word. */
static int64_t widened(int32_t id)
{
	static const int64_t far[] = { (int64_t)1 << 32, -((int64_t)1 << 32), INT64_MIN, (int64_t)1 << 62 };
	uint32_t how = draw(6);

	if ((id >= 0 && id < EXPERTS) || how >= 4)
		return id;
	return far[how] + (int64_t)draw(EXPERTS);
}

/* Half of the ranks give a dispatch ids in int64, and another half a combine. */
static int wide(const struct rank *k, int combine)
{
	return (k->ep.rank + combine * k->tokens) % 2;
}

/* skew: 0 any ids, hostile ones too; 1 all to one expert; 2 one expert three times in every token; 3 no tokens */
static void fill(int skew)
{
	int one = (int)draw(EXPERTS);

	for (int r = 0; r < RANKS; r++) {
		struct rank *k = &ranks[r];

		k->tokens = skew == 3 ? 0 : skew == 2 ? MOST_TOKENS : (int)draw(MOST_TOKENS + 1);
		for (int i = 0; i < k->tokens * TOP_K; i++) {
			k->experts[i] = skew == 2 ? one : skew == 1 && i % TOP_K ? -1 : (int)draw(EXPERTS + 4) - 2;
			if (skew == 1 && i % TOP_K == 0)
				k->experts[i] = one;
			if (draw(40) == 0)
				k->experts[i] = draw(2) ? INT32_MAX : INT32_MIN;
			k->weights[i] = (float)(1 + draw(8)) / 8;
			k->experts64[i] = widened(k->experts[i]);
		}
		for (int i = 0; i < k->tokens * HIDDEN; i++)
			k->x[i] = moe_to_bf16((float)draw(200) / 7 - 14);
	}
}

static struct covey_dispatch_args dispatch_args(struct rank *k)
{
	return (struct covey_dispatch_args){ .size = sizeof(struct covey_dispatch_args),
					     .num_tokens = k->tokens,
					     .x = k->x,
					     .experts = wide(k, 0) ? NULL : k->experts,
					     .experts64 = wide(k, 0) ? k->experts64 : NULL,
					     .packed_x = k->packed_x,
					     .count = k->count,
					     .src_info = k->src_info,
					     .range = k->range };
}

static void dispatch(const unsigned char *here)
{
	for (int r = 0; r < RANKS; r++) {
		struct covey_dispatch_args args = dispatch_args(&ranks[r]);

		cvy_ep_dispatch_write(&ranks[r].ep, &args, ranks[r].dispatch);
	}
	for (int r = 0; r < RANKS; r++) {
		struct covey_dispatch_args args = dispatch_args(&ranks[r]);

		memset(args.count, 0, sizeof(ranks[r].count));
		for (int s = 0; s < RANKS; s++)
			ck_assert_int_eq(cvy_ep_dispatch_read(&ranks[r].ep, &args, s,
							      here[s] ? ranks[s].dispatch : NULL,
							      (uint64_t)ranks[s].tokens),
					 here[s] ? 0 : -1);
	}
}

static void batches(struct moe_batch *batch, const unsigned char *here)
{
	for (int r = 0; r < RANKS; r++)
		batch[r] = (struct moe_batch){ ranks[r].tokens, ranks[r].x, here[r] ? ranks[r].experts : NULL,
					       ranks[r].weights };
}

static void check_dispatch(const unsigned char *here)
{
	static uint16_t packed_x[EXPERTS * RANKS * MOST_TOKENS * HIDDEN];
	int32_t count[EXPERTS], src_info[EXPERTS * RANKS * MOST_TOKENS];
	int64_t range[EXPERTS * RANKS];
	struct moe_packed to = { packed_x, count, src_info, range, NULL };
	struct moe_batch batch[RANKS];
	const size_t per_expert = RANKS * MOST_TOKENS;

	batches(batch, here);
	for (int r = 0; r < RANKS; r++) {
		struct rank *k = &ranks[r];
		size_t el = (size_t)k->ep.el;

		moe_ref_dispatch(&plain, batch, k->owner, r, &to);
		ck_assert_mem_eq(k->count, count, el * sizeof(*count));
		ck_assert_mem_eq(k->range, range, el * RANKS * sizeof(*range));
		for (size_t le = 0; le < el; le++) {
			size_t rows = (size_t)count[le];

			ck_assert_mem_eq(k->src_info + le * per_expert, src_info + le * per_expert,
					 rows * sizeof(*src_info));
			ck_assert_mem_eq(k->packed_x + le * per_expert * HIDDEN, packed_x + le * per_expert * HIDDEN,
					 rows * 2 * HIDDEN);
		}
	}
}

static void run_experts(void)
{
	const size_t per_expert = RANKS * MOST_TOKENS;

	for (int r = 0; r < RANKS; r++)
		for (int e = 0; e < EXPERTS; e++)
			for (int i = 0; ranks[r].local[e] >= 0 && i < ranks[r].count[ranks[r].local[e]]; i++) {
				size_t at = ((size_t)ranks[r].local[e] * per_expert + (size_t)i) * HIDDEN;

				expert(NULL, e, ranks[r].packed_x + at, ranks[r].y + at);
			}
}

static void combine(const unsigned char *here, int renormalise)
{
	const uint8_t *slot[RANKS];

	for (int r = 0; r < RANKS; r++) {
		struct rank *k = &ranks[r];
		uint32_t next = 0;

		k->call->combine = (struct covey_combine_args){ .size = sizeof(struct covey_combine_args),
								.num_tokens = k->tokens,
								.renormalise = renormalise,
								.y = k->y,
								.count = k->count,
								.src_info = k->src_info,
								.range = k->range,
								.experts = wide(k, 1) ? NULL : k->experts,
								.experts64 = wide(k, 1) ? k->experts64 : NULL,
								.weights = k->weights,
								.out = k->out };
		for (int s = 0; s < RANKS; s++)
			next = cvy_ep_combine_write(&k->ep, &k->call->combine, s, next, k->combine);
		slot[r] = here[r] ? k->combine : NULL;
	}
	for (int r = 0; r < RANKS; r++)
		cvy_ep_combine_read(ranks[r].call, slot);
}

static void check_combine(const unsigned char *here, int renormalise)
{
	struct moe_batch batch[RANKS];
	static const unsigned char all[RANKS] = { 1, 1, 1, 1, 1 };

	batches(batch, all);
	for (int r = 0; r < RANKS; r++) {
		struct rank *k = &ranks[r];

		moe_ref_combine(&plain, &batch[r], k->owner, here, renormalise, expert, NULL, k->want);
		ck_assert_mem_eq(k->out, k->want, (size_t)k->tokens * 2 * HIDDEN);
		for (int o = 0; o < RANKS; o++)
			ck_assert_int_eq(covey_mask_has(&k->call->missing, o), !here[o]);
	}
}

TEST_LOOP(all_ranks_get_what_the_reference_gives, 0, 60)
{
	static const unsigned char all[RANKS] = { 1, 1, 1, 1, 1 };

	open_ranks((uint32_t)_i);
	fill(_i % 4);
	dispatch(all);
	check_dispatch(all);
	run_experts();
	combine(all, _i & 1);
	check_combine(all, _i & 1);
	close_ranks();
}

TEST_LOOP(missing_owners_are_left_out_of_the_sum, 0, 60)
{
	static const unsigned char all[RANKS] = { 1, 1, 1, 1, 1 };
	unsigned char here[RANKS];

	open_ranks((uint32_t)_i);
	fill(_i % 3);
	dispatch(all);
	run_experts();
	for (int r = 0; r < RANKS; r++)
		here[r] = draw(3) != 0;
	combine(here, _i & 1);
	check_combine(here, _i & 1);
	close_ranks();
}

TEST_LOOP(missing_sources_have_zero_rows, 0, 60)
{
	unsigned char here[RANKS];

	open_ranks((uint32_t)_i);
	fill(_i % 3);
	for (int r = 0; r < RANKS; r++)
		here[r] = draw(3) != 0;
	dispatch(here);
	check_dispatch(here);
	close_ranks();
}

TEST(an_owner_that_lost_our_tokens_counts_as_missing)
{
	static const unsigned char all[RANKS] = { 1, 1, 1, 1, 1 }, not_two[RANKS] = { 1, 1, 0, 1, 1 };
	struct rank *k = &ranks[2];
	int rows[RANKS] = { 0 };

	open_ranks(7);
	fill(0);
	k->tokens = MOST_TOKENS;
	for (int i = 0; i < MOST_TOKENS * TOP_K; i++)
		k->experts[i] = i % EXPERTS;
	dispatch(not_two);
	run_experts();
	combine(all, 0);
	for (int i = 0; i < MOST_TOKENS * TOP_K; i++)
		rows[k->owner[k->experts[i]]]++;
	for (int o = 0; o < RANKS; o++)
		ck_assert_int_eq(covey_mask_has(&k->call->missing, o), rows[o] > 0);
	for (int i = 0; i < MOST_TOKENS * HIDDEN; i++)
		ck_assert_uint_eq(k->out[i], 0);
	close_ranks();
}

/* What a sick peer may leave in its window: nothing is believed, nothing out of bounds is touched. */
TEST_LOOP(wild_bytes_of_a_peer_do_no_harm, 0, 40)
{
	struct covey_dispatch_args args;
	const uint8_t *slot[RANKS] = { NULL };
	struct cvy_ep_shape *shape = &ranks[0].ep.shape;

	open_ranks((uint32_t)_i);
	fill(0);
	args = dispatch_args(&ranks[0]);
	for (size_t i = 0; i < cvy_ep_dispatch_bytes(shape); i++)
		ranks[1].dispatch[i] = (uint8_t)draw(256);
	for (size_t i = 0; i < cvy_ep_combine_rows_at(shape); i++)
		ranks[1].combine[i] = (uint8_t)draw(256);
	ck_assert_int_eq(cvy_ep_dispatch_read(&ranks[0].ep, &args, 1, ranks[1].dispatch, MOST_TOKENS + 1), -1);
	ck_assert_int_eq(cvy_ep_dispatch_read(&ranks[0].ep, &args, 1, ranks[1].dispatch, UINT64_MAX), -1);
	for (int s = 0; s < RANKS; s++)
		ck_assert_int_eq(cvy_ep_dispatch_read(&ranks[0].ep, &args, s, ranks[1].dispatch, MOST_TOKENS), 0);
	for (int le = 0; le < ranks[0].ep.el; le++)
		ck_assert_int_le(ranks[0].count[le], RANKS * MOST_TOKENS);
	slot[1] = ranks[1].combine;
	ranks[0].tokens = MOST_TOKENS;
	for (int i = 0; i < MOST_TOKENS * TOP_K; i++)
		ranks[0].experts[i] = (int)draw(EXPERTS);
	ranks[0].call->combine = (struct covey_combine_args){
		.num_tokens = MOST_TOKENS, .experts = ranks[0].experts, .weights = ranks[0].weights, .out = ranks[0].out
	};
	cvy_ep_combine_read(ranks[0].call, slot);
	ck_assert_int_eq(covey_mask_has(&ranks[0].call->missing, 1), 1);
	close_ranks();
}

TEST(sizes_are_by_max_ranks_and_owners_by_blocks)
{
	struct cvy_ep_shape s = { 128, 7168, 8, 256, 64, COVEY_EP_LL, 0, 0 };
	int owner[10], local[10];

	ck_assert_uint_eq(cvy_ep_dispatch_rows_at(&s), 4096);
	ck_assert_uint_eq(cvy_ep_dispatch_bytes(&s), 1843200);
	ck_assert_uint_eq(cvy_ep_combine_rows_at(&s), 512);
	ck_assert_uint_eq(cvy_ep_combine_rows(&s), 65536);
	ck_assert_uint_eq(cvy_ep_combine_bytes(&s), 939528192);
	cvy_ep_blocks(10, 4, owner); /* blocks of 3: the last rank has 1 */
	ck_assert_int_eq(owner[2], 0);
	ck_assert_int_eq(owner[3], 1);
	ck_assert_int_eq(owner[9], 3);
	ck_assert_int_eq(cvy_ep_locals(10, owner, 2, local), 3);
	ck_assert_int_eq(local[5], -1);
	ck_assert_int_eq(local[7], 1);
}

/* Every code comes back as itself; what lies between two becomes the nearer, halfway the even one. */
TEST(all_codes_of_e4m3_and_what_lies_between)
{
	for (int c = 0; c < 256; c++) {
		float v = cvy_e4m3_f32((uint8_t)c), next = cvy_e4m3_f32((uint8_t)(c + 1)), half;
		int sign = c & 0x80, even = c & 1 ? c + 1 : c;

		if ((c & 0x7f) == 0x7f) {
			ck_assert_int_eq(v != v, 1);
			continue;
		}
		ck_assert_int_eq(cvy_f32_e4m3(v), c);
		if ((c & 0x7f) == 0x7e) {
			ck_assert_float_eq(v, sign ? -448 : 448);
			ck_assert_int_eq(cvy_f32_e4m3(v * 1.05f), c);
			ck_assert_int_eq(cvy_f32_e4m3(v * 1e30f), c);
			continue;
		}
		half = v + (next - v) / 2; /* exact */
		ck_assert_int_eq(cvy_f32_e4m3(half), even);
		ck_assert_int_eq(cvy_f32_e4m3(nextafterf(half, v)), c);
		ck_assert_int_eq(cvy_f32_e4m3(nextafterf(half, next)), c + 1);
	}
	ck_assert_int_eq(cvy_f32_e4m3(nanf("")), 0x7f);
	ck_assert_int_eq(cvy_f32_e4m3(INFINITY), 0x7e);
	ck_assert_int_eq(cvy_f32_e4m3(1e-30f), 0);
}

TEST(rows_of_e4m3_have_a_scale_for_each_group)
{
	enum { N = 300 }; /* the last group has 44 */
	uint16_t row[N];
	uint8_t codes[N];
	float scales[3 * 2];

	for (int i = 0; i < N; i++)
		row[i] = cvy_f32_bf16((float)((i % 128) - 64) * (i < 128 ? 1 : 0.01f));
	for (int i = 256; i < N; i++)
		row[i] = 0;
	cvy_ep_quantise(CVY_EP_E4M3, &(struct cvy_ep_plain){ row, COVEY_BFLOAT16, N, NULL, NULL }, codes, scales, 2);
	ck_assert_float_eq(scales[0], 64 / 448.0f);
	ck_assert_float_eq(scales[4], 1e-4f / 448.0f); /* zeros have one too */
	ck_assert_int_eq(codes[0], 0xfe);
	for (int i = 0; i < N; i++) {
		float v = cvy_bf16_f32(row[i]), got = cvy_e4m3_f32(codes[i]) * scales[i / 128 * 2];

		ck_assert_float_le(fabsf(got - v), fabsf(v) / 16 + scales[i / 128 * 2] / 512);
	}
}

/* What DeepEP computes for round_scale: the least power of two that is not below m * (1 / 448). */
static float rounded(float most)
{
	float v = most * (1 / 448.0f);
	int e;

	return ldexpf(1, frexpf(v, &e) == 0.5f ? e - 1 : e);
}

TEST(scales_of_e4m3_are_powers_of_two_where_that_is_asked_for)
{
	static const float most[] = { 0, 1e-5f, 447, 448, 449, 3.5f, 7, 1.75f, 0.0065f, 896, 2.5e38f };
	uint16_t row[128];
	uint8_t codes[128];
	float scale;

	for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
		float m = cvy_bf16_f32(cvy_f32_bf16(most[i]));

		for (int k = 0; k < 128; k++)
			row[k] = cvy_f32_bf16(k == 77 ? -m : m * ((float)(k - 64) / 128));
		cvy_ep_quantise(CVY_EP_E4M3_POW2, &(struct cvy_ep_plain){ row, COVEY_BFLOAT16, 128, NULL, NULL }, codes,
				&scale, 1);
		ck_assert_float_eq(scale, rounded(m > 1e-4f ? m : 1e-4f));
		for (int k = 0; k < 128; k++)
			ck_assert_int_eq(codes[k], cvy_f32_e4m3(cvy_bf16_f32(row[k]) / scale));
	}
	row[3] = 0x7f80; /* an infinity leaves no numbers in its group, as with other scales */
	cvy_ep_quantise(CVY_EP_E4M3_POW2, &(struct cvy_ep_plain){ row, COVEY_BFLOAT16, 128, NULL, NULL }, codes, &scale,
			1);
	ck_assert(isinf(scale));
	ck_assert_int_eq(codes[3], 0x7f);
}

TEST(a_nan_does_not_hide_the_largest_of_its_group)
{
	static const uint16_t nans[] = { 0x7f81, 0xff81, 0x7fc0, 0xffff }; /* of bf16; the first two signal */
	uint16_t row[128];
	uint8_t codes[128];
	float scale;

	for (size_t i = 0; i < 4; i++) {
		for (int k = 0; k < 128; k++)
			row[k] = cvy_f32_bf16(k ? 1 : 64);
		row[5] = nans[i];
		cvy_ep_quantise(CVY_EP_E4M3, &(struct cvy_ep_plain){ row, COVEY_BFLOAT16, 128, NULL, NULL }, codes,
				&scale, 1);
		ck_assert_float_eq(scale, 64 / 448.0f);
		ck_assert_int_eq(codes[5], 0x7f);
	}
}

SUITE_MAIN(.name = "collectives/ep_layout")
