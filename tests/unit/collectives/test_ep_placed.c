/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine with places, among ranks of one process and without an engine: random tables, random ranks that
 * live, both presets, all kinds of rows. The oracle lists the places that live and takes one; results are small whole
 * numbers, so that sums are exact in any order.
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

enum { MOST = 6, PLACES = 3, E = 7, K = 4, T = 6, H = 136, SEEDS = 200 };

struct rank {
	struct covey_ep ep;
	int local[E * PLACES], tokens, wide;
	uint16_t x[T * H], out[T * H];
	int32_t ids[T * K], placed[T * K];
	int64_t ids64[T * K];
	uint8_t mask[T * K];
	float weights[T * K], scales[E * 2 * MOST * T], recv_weights[MOST * T * K];
	uint8_t packed[E * MOST * T * H * 2];
	uint16_t y[E * MOST * T * H];
	int32_t count[E], src[E * MOST * T], recv_experts[MOST * T * K];
	int64_t range[E * MOST];
	uint8_t *dispatch, *combine;
	uint64_t told;
	struct cvy_ep_call *call; /* of the combine */
};

static struct rank ranks[MOST];
static int n, places, owner[E * PLACES];
static struct covey_mask living, here; /* contributors; sources and owners that are not late */
static uint32_t state;

static uint32_t draw(uint32_t below)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % below;
}

/* ---- the oracle ---- */

/* The place that serves @source, -1: none lives. */
static int serves(int expert, int source)
{
	int list[PLACES], found = 0;

	for (int p = 0; p < places; p++)
		if (owner[expert * places + p] >= 0 && covey_mask_has(&living, owner[expert * places + p]))
			list[found++] = expert * places + p;
	return found ? list[source % found] : -1;
}

/* What the entry names, -1: nothing. */
static int named(const struct rank *k, int i)
{
	return k->mask[i] && k->ids[i] >= 0 && k->ids[i] < E ? k->ids[i] : -1;
}

/* The rank that has the row of the entry; -1: none. At most T rows of a source enter a bin of LL. */
static int goes_to(const struct rank *k, int i)
{
	int e = named(k, i), v = e < 0 ? -1 : serves(e, k->ep.rank), before = 0;

	for (int j = 0; j < i; j++)
		before += named(k, j) == e;
	return v < 0 || (k->ep.shape.preset == COVEY_EP_LL && before >= T) ? -1 : owner[v];
}

static float result_of(const struct rank *k, int token, int expert, int h)
{
	return cvy_bf16_f32(k->x[token * H + h]) * (float)(expert + 1);
}

/* ---- ranks ---- */

static void draw_owners(void)
{
	for (int e = 0; e < E; e++) {
		int first = (int)draw((uint32_t)n);

		for (int p = 0; p < places; p++)
			owner[e * places + p] = p < n && draw(4) ? (first + p) % n : -1;
		owner[e * places + (int)draw((uint32_t)(places < n ? places : n))] = first;
		for (int p = 1; p < places; p++) /* first may be there twice */
			for (int q = 0; q < p; q++)
				if (owner[e * places + p] == owner[e * places + q])
					owner[e * places + p] = -1;
	}
}

static void fill(struct rank *k)
{
	k->tokens = draw(6) ? (int)draw(T + 1) : 0;
	k->wide = (int)draw(2);
	for (int i = 0; i < T * H; i++)
		k->x[i] = cvy_f32_bf16((float)draw(4));
	for (int i = 0; i < T * K; i++) {
		k->ids[i] = draw(3) ? (int)draw(E) : (int)draw(E + 4) - 2;
		if (draw(5) == 0)
			k->ids[i] = 0;
		k->ids64[i] = k->ids[i];
		k->mask[i] = draw(8) != 0;
		k->weights[i] = (float)(1 + draw(2));
	}
}

static void open_ranks(int seed)
{
	const int preset = seed % 2 ? COVEY_EP_COMPACT : COVEY_EP_LL, rows = seed / 2 % 4, back = seed / 8 % 2;

	state = (uint32_t)seed * 2654435761u + 1;
	n = 2 + (int)draw(MOST - 1);
	places = 2 + (int)draw(PLACES - 1);
	draw_owners();
	memset(ranks, 0, sizeof(ranks));
	memset(&living, 0, sizeof(living));
	memset(&here, 0, sizeof(here));
	for (int r = 0; r < n; r++) {
		struct rank *k = &ranks[r];
		struct cvy_ep_shape shape = { T, H, K, E, MOST, preset, back ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS, places };

		if (draw(4) || r == n - 1)
			cvy_mask_add(&living, r);
		if (covey_mask_has(&living, r) && draw(5))
			cvy_mask_add(&here, r);
		k->ep = (struct covey_ep){ .shape = shape,
					   .rank = r,
					   .size = n,
					   .owner = owner,
					   .local = k->local,
					   .dtype = COVEY_BFLOAT16,
					   .rows_as = rows,
					   .combine_as = seed / 16 % 2,
					   .back_as = back };
		if (preset == COVEY_EP_LL && k->ep.combine_as == COVEY_EP_PER_RANK)
			k->ep.shape.back = CVY_EP_AS_IS;
		k->ep.el = cvy_ep_locals(E * places, owner, r, k->local);
		k->dispatch = calloc(1, cvy_ep_dispatch_bytes(&k->ep.shape));
		k->combine = calloc(1, cvy_ep_combine_bytes(&k->ep.shape));
		k->call = cvy_ep_call_new(&k->ep, 1);
		ck_assert(k->dispatch && k->combine && k->call);
		fill(k);
	}
}

static void close_ranks(void)
{
	for (int r = 0; r < n; r++) {
		free(ranks[r].dispatch);
		free(ranks[r].combine);
		cvy_ep_call_free(ranks[r].call);
	}
}

static struct covey_dispatch_args dispatch_args(struct rank *k)
{
	return (struct covey_dispatch_args){ .size = sizeof(struct covey_dispatch_args),
					     .num_tokens = k->tokens,
					     .x = k->x,
					     .experts = k->wide ? NULL : k->ids,
					     .experts64 = k->wide ? k->ids64 : NULL,
					     .weights = k->weights,
					     .token_mask = k->mask,
					     .mask_columns = K,
					     .packed_x = k->packed,
					     .packed_scales = k->scales,
					     .count = k->count,
					     .src_info = k->src,
					     .range = k->range,
					     .recv_experts = k->recv_experts,
					     .recv_weights = k->recv_weights,
					     .placed = k->placed };
}

static void dispatch(void)
{
	for (int r = 0; r < n; r++) {
		struct covey_dispatch_args args = dispatch_args(&ranks[r]);

		ranks[r].told = cvy_ep_dispatch_write(&ranks[r].ep, &args, ranks[r].dispatch);
	}
	for (int r = 0; r < n; r++) {
		struct cvy_ep_call call = { .ep = &ranks[r].ep,
					    .dispatch = dispatch_args(&ranks[r]),
					    .living = living };

		if (!covey_mask_has(&living, r))
			continue;
		for (int s = 0; s < n; s++)
			ck_assert_int_eq(cvy_ep_dispatch_take(&call, s,
							      covey_mask_has(&here, s) ? ranks[s].dispatch : NULL,
							      ranks[s].told),
					 covey_mask_has(&here, s) ? 0 : -1);
		memset(ranks[r].placed, 0x5a, sizeof(ranks[r].placed));
		cvy_ep_dispatch_placed(&call);
	}
}

/* ---- what came ---- */

static void check_row(const struct rank *k, int bin, int at, const struct rank *from, int token)
{
	const int once = k->ep.shape.preset == COVEY_EP_COMPACT, rows = n * T;
	const struct cvy_ep_code *code = cvy_ep_code_of(k->ep.rows_as);
	const size_t bytes = cvy_ep_code_bytes(code, H), groups = cvy_ep_code_groups(code, H);
	const size_t row = (size_t)bin * (size_t)rows + (size_t)at;
	uint8_t codes[H * 2];
	float scales[2];

	ck_assert_int_eq(k->src[row], token);
	if (!groups) {
		ck_assert_mem_eq(k->packed + row * bytes, from->x + token * H, bytes);
		return;
	}
	cvy_ep_quantise(k->ep.rows_as, &(struct cvy_ep_plain){ from->x + token * H, COVEY_BFLOAT16, H, NULL, NULL },
			codes, scales, 1);
	ck_assert_mem_eq(k->packed + row * bytes, codes, bytes);
	for (size_t g = 0; g < groups; g++)
		ck_assert_float_eq(
			k->scales[once ? row * groups + g : ((size_t)bin * groups + g) * (size_t)rows + (size_t)at],
			scales[g]);
}

/* LL: rows of expert @e, which is the @le-th here. */
static void check_expert(struct rank *k, int e, int le)
{
	int row = 0;

	for (int s = 0; s < n; s++) {
		int first = row;

		for (int i = 0; covey_mask_has(&here, s) && i < ranks[s].tokens * K; i++)
			if (named(&ranks[s], i) == e && goes_to(&ranks[s], i) == k->ep.rank)
				check_row(k, le, row++, &ranks[s], i / K);
		ck_assert_int_eq(k->range[le * n + s], cvy_ep_range((uint32_t)(row - first), (uint32_t)first));
	}
	ck_assert_int_eq(k->count[le], row);
}

/* COMPACT: entries of row @row, which is of token @t of @from. 0: the token names no expert that is served here. */
static int check_entries(struct rank *k, const struct rank *from, int t, int row, const int *index)
{
	int any = 0;

	for (int i = t * K; i < (t + 1) * K; i++)
		any |= goes_to(from, i) == k->ep.rank;
	for (int i = t * K; any && i < (t + 1) * K; i++) {
		int mine = goes_to(from, i) == k->ep.rank;

		ck_assert_int_eq(k->recv_experts[row * K + i % K], mine ? index[named(from, i)] : -1);
		ck_assert_float_eq(k->recv_weights[row * K + i % K], mine ? from->weights[i] : 0);
	}
	return any;
}

static void check_rank_rows(struct rank *k, const int *index)
{
	int row = 0;

	for (int s = 0; s < n; s++) {
		int first = row;

		for (int t = 0; covey_mask_has(&here, s) && t < ranks[s].tokens; t++)
			if (check_entries(k, &ranks[s], t, row, index))
				check_row(k, 0, row++, &ranks[s], t);
		ck_assert_int_eq(k->range[s], cvy_ep_range((uint32_t)(row - first), (uint32_t)first));
	}
}

static void check_dispatch(void)
{
	for (int r = 0; r < n; r++) {
		struct rank *k = &ranks[r];
		int index[E], el = 0;

		if (!covey_mask_has(&living, r))
			continue;
		for (int e = 0; e < E; e++) {
			index[e] = -1;
			for (int p = 0; p < places; p++)
				if (owner[e * places + p] == r)
					index[e] = el++;
			if (index[e] >= 0 && k->ep.shape.preset == COVEY_EP_LL)
				check_expert(k, e, index[e]);
		}
		ck_assert_int_eq(el, k->ep.el);
		if (el && k->ep.shape.preset == COVEY_EP_COMPACT)
			check_rank_rows(k, index);
		for (int i = 0; i < k->tokens * K; i++)
			ck_assert_int_eq(k->placed[i], named(k, i) < 0 ? -1 : serves(named(k, i), r));
	}
}

/* ---- the way back ---- */

/* The experts' results, by token and expert, whatever the rows were. */
static void run_experts(void)
{
	for (int r = 0; r < n; r++) {
		struct rank *k = &ranks[r];
		int once = k->ep.shape.preset == COVEY_EP_COMPACT;

		for (int v = 0; v < E * places && covey_mask_has(&living, r); v++)
			for (int s = 0; k->local[v] >= 0 && s < n; s++) {
				int64_t run = k->range[(once ? 0 : k->local[v] * n) + s];
				int first = (int)cvy_ep_range_first(run), rows = (int)cvy_ep_range_count(run);

				for (int row = first; row < first + rows && !once; row++)
					for (int h = 0, at = k->local[v] * n * T + row; h < H; h++)
						k->y[at * H + h] =
							cvy_f32_bf16(result_of(&ranks[s], k->src[at], v / places, h));
			}
		for (int s = 0; once && k->ep.el && covey_mask_has(&living, r) && s < n; s++)
			for (uint32_t i = 0; i < cvy_ep_range_count(k->range[s]); i++) {
				size_t row = cvy_ep_range_first(k->range[s]) + i;

				for (int h = 0; h < H; h++) {
					float sum = 0;

					for (int v = 0; v < E * places; v++)
						for (int c = 0; c < K; c++)
							if (k->local[v] >= 0 &&
							    k->recv_experts[row * K + (size_t)c] == k->local[v])
								sum += k->recv_weights[row * K + (size_t)c] *
								       result_of(&ranks[s], k->src[row], v / places, h);
					k->y[row * H + (size_t)h] = cvy_f32_bf16(sum);
				}
			}
	}
}

static void combine(const struct covey_mask *owners, int renormalise)
{
	const uint8_t *slot[MOST] = { NULL };

	for (int r = 0; r < n; r++) {
		struct rank *k = &ranks[r];
		uint32_t next = 0;

		if (!covey_mask_has(&living, r))
			continue;
		k->call->combine = (struct covey_combine_args){ .size = sizeof(struct covey_combine_args),
								.num_tokens = k->tokens,
								.renormalise = renormalise,
								.y = k->y,
								.range = k->range,
								.experts = k->wide ? k->ids : NULL,
								.experts64 = k->wide ? NULL : k->ids64,
								.token_mask = k->mask,
								.mask_columns = K,
								.weights = k->weights,
								.placed = k->placed,
								.out = k->out };
		for (int s = 0; s < n; s++)
			next = cvy_ep_combine_write(&k->ep, &k->call->combine, s, next, k->combine);
		slot[r] = covey_mask_has(owners, r) ? k->combine : NULL;
	}
	for (int r = 0; r < n; r++)
		if (covey_mask_has(&here, r))
			cvy_ep_combine_read(ranks[r].call, slot);
}

static void check_token(const struct rank *k, int t, const struct covey_mask *owners, int renormalise)
{
	float all = 0, part = 0, scale;

	for (int i = t * K; i < (t + 1) * K; i++) {
		int o = goes_to(k, i), skipped = named(k, i) >= 0 && o < 0 && serves(named(k, i), k->ep.rank) >= 0;

		all += named(k, i) >= 0 && !skipped ? k->weights[i] : 0;
		part += o >= 0 && covey_mask_has(owners, o) ? k->weights[i] : 0;
	}
	scale = renormalise && part != all && part != 0 ? all / part : 1;
	for (int h = 0; h < H; h++) {
		float sum = 0, got = cvy_bf16_f32(k->out[t * H + h]);

		for (int i = t * K; i < (t + 1) * K; i++) {
			int o = goes_to(k, i);

			if (o >= 0 && covey_mask_has(owners, o))
				sum += k->weights[i] * result_of(k, t, named(k, i), h);
		}
		if (k->ep.back_as == COVEY_EP_BACK_PLAIN)
			ck_assert_float_eq(got, cvy_bf16_f32(cvy_f32_bf16(sum * scale)));
		else /* a code is off by half a scale, which is 1/127 of the largest of eight, 3 * 7 * 2 * K */
			ck_assert_float_le(fabsf(got - sum * scale),
					   scale * (float)(3 * E * 2 * K) / 100 + sum * scale / 128);
	}
}

static void check_combine(const struct covey_mask *owners, int renormalise)
{
	for (int r = 0; r < n; r++) {
		if (!covey_mask_has(&here, r))
			continue;
		for (int t = 0; t < ranks[r].tokens; t++)
			check_token(&ranks[r], t, owners, renormalise);
		for (int o = 0; o < n; o++)
			ck_assert_int_eq(covey_mask_has(&ranks[r].call->missing, o), !covey_mask_has(owners, o));
	}
}

TEST_LOOP(rows_and_sums_are_those_of_the_places_that_live, 0, SEEDS)
{
	struct covey_mask owners = { { 0 } };

	open_ranks(_i);
	dispatch();
	check_dispatch();
	run_experts();
	combine(&living, 0);
	check_combine(&living, 0);
	for (int r = 0; r < n; r++) /* some died since */
		if (covey_mask_has(&living, r) && draw(3))
			cvy_mask_add(&owners, r);
	combine(&owners, _i / 2 % 2);
	check_combine(&owners, _i / 2 % 2);
	close_ranks();
}

/* Over all ranks an entry has one row while a place of its expert lives, and none else. */
TEST_LOOP(each_entry_has_one_row_if_a_place_lives, 0, 60)
{
	int rows = 0, entries = 0;

	open_ranks(2 * _i); /* LL: each entry has a row of its own */
	here = living;
	dispatch();
	for (int r = 0; r < n; r++) {
		struct rank *k = &ranks[r];
		int seen[E] = { 0 };

		for (int le = 0; covey_mask_has(&living, r) && le < k->ep.el; le++)
			rows += k->count[le];
		for (int i = 0; covey_mask_has(&living, r) && i < k->tokens * K; i++) {
			int e = named(k, i), lives = 0;

			for (int p = 0; e >= 0 && p < places; p++)
				lives |= owner[e * places + p] >= 0 && covey_mask_has(&living, owner[e * places + p]);
			entries += lives && seen[e]++ < T;
		}
	}
	ck_assert_int_eq(rows, entries);
	close_ranks();
}

TEST_LOOP(with_one_place_each_all_is_as_without, 0, 8)
{
	static struct rank was[MOST];

	open_ranks(_i);
	for (int e = 0; e < E; e++)
		owner[e] = (int)draw((uint32_t)n);
	for (int pass = 0; pass < 2; pass++) {
		for (int r = 0; r < n; r++) {
			struct covey_dispatch_args args = dispatch_args(&ranks[r]);

			ranks[r].ep.shape.places = pass;
			ranks[r].ep.el = cvy_ep_locals(E, owner, r, ranks[r].local);
			memset(ranks[r].packed, 0, sizeof(ranks[r].packed));
			memset(ranks[r].count, 0, sizeof(ranks[r].count));
			ranks[r].told = cvy_ep_dispatch_write(&ranks[r].ep, &args, ranks[r].dispatch);
		}
		for (int r = 0; r < n; r++) {
			struct covey_dispatch_args args = dispatch_args(&ranks[r]);

			for (int s = 0; s < n; s++)
				cvy_ep_dispatch_read(&ranks[r].ep, &args, s, ranks[s].dispatch, ranks[s].told);
			if (pass)
				ck_assert(!memcmp(was[r].packed, ranks[r].packed, sizeof(was[r].packed)) &&
					  !memcmp(was[r].range, ranks[r].range, sizeof(was[r].range)) &&
					  !memcmp(was[r].count, ranks[r].count, sizeof(was[r].count)));
		}
		memcpy(was, ranks, sizeof(was));
	}
	close_ranks();
}

TEST(default_places_of_an_expert_are_on_different_ranks)
{
	for (int size = 1; size <= 9; size++)
		for (int p = 1; p <= 4; p++) {
			struct cvy_ep_shape s = { T, H, K, E, 16, COVEY_EP_LL, 0, p };
			int table[E * 4], blocks[E], block = (E + size - 1) / size;

			cvy_ep_spread(&s, size, table);
			cvy_ep_blocks(E, size, blocks);
			for (int e = 0; e < E; e++) {
				int taken = 0;

				ck_assert_int_eq(table[e * p], e / block);
				ck_assert_int_eq(blocks[e], e / block);
				for (int i = 0; i < p; i++) {
					int o = table[e * p + i];

					ck_assert(o >= -1 && o < size);
					ck_assert(o < 0 || !(taken >> o & 1));
					taken |= o >= 0 ? 1 << o : 0;
				}
				ck_assert_int_eq(__builtin_popcount((unsigned)taken), p < size ? p : size);
			}
		}
	{
		struct cvy_ep_shape s = { T, H, K, 8, 16, COVEY_EP_LL, 0, 2 };
		int table[16];

		cvy_ep_spread(&s, 8, table); /* as far apart as ranks allow */
		ck_assert_int_eq(table[1], 4);
		ck_assert_int_eq(table[2 * 6 + 1], 2);
	}
}

/* What a peer, or the caller, may have left in memory: nothing out of bounds is touched, nothing wrong is summed. */
TEST_LOOP(wild_places_count_as_none, 0, 20)
{
	struct rank *k;

	open_ranks(2 * _i);
	here = living;
	dispatch();
	k = &ranks[n - 1];
	k->tokens = T;
	for (int i = 0; i < T * K; i++)
		k->placed[i] = draw(2) ? (int32_t)(draw(1u << 24) << 8) : (int)draw(E * PLACES + 4) - 2;
	run_experts();
	combine(&living, 0);
	for (int r = 0; r < n; r++)
		ck_assert(covey_mask_has(&living, r) || covey_mask_has(&k->call->missing, r));
	close_ranks();
}

SUITE_MAIN(.name = "collectives/ep_placed")
