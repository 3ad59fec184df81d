/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All presets give the same combined output for the same routing: random routings, some sources and owners missing, rows of
 * every kind. The experts multiply what arrived, and round. Bit by bit where the documents say so: LL, FLAT, WIN; the factor
 * in the experts or in the combine; COMPACT and rows summed by rank, for tokens without experts on their own rank, whose sum
 * COMPACT alone rounds.
 */
#include "../../suite.h"
#include "ep_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "ep.h"
#include "ep_quant.h"

enum { WORLD = 4, T = 7, H = 136, K = 3, E = 9, ROWS = WORLD * T, GROUPS = 2, SEEDS = 200 };

/* What the tokens of a seed have in common. */
static struct load {
	int dtype, rows_as, back, renormalise;
	unsigned sources, owners; /* that are here */
	int owner[E], tokens[WORLD];
	uint16_t x[WORLD][T * H];
	int32_t ids[WORLD][T * K];
	float weights[WORLD][T * K];
} load;

static const struct way {
	const char *name;
	int preset, by_rank, fused;
} ways[] = {
	{ "ll", COVEY_EP_LL, 0, 0 },
	{ "flat", COVEY_EP_FLAT, 0, 0 },
	{ "flat, fused", COVEY_EP_FLAT, 0, 1 },
	{ "ll by rank", COVEY_EP_LL, 1, 0 },
	{ "flat by rank", COVEY_EP_FLAT, 1, 0 },
	{ "compact", COVEY_EP_COMPACT, 0, 0 },
	{ "ht", COVEY_EP_HT, 0, 0 },
	{ "win", COVEY_EP_WIN, 0, 0 },
	{ "win by rank", COVEY_EP_WIN, 1, 0 },
};

enum { LL, FLAT, FUSED, LL_BY_RANK, FLAT_BY_RANK, COMPACT, HT, WIN, WIN_BY_RANK, WAYS };

static uint16_t out[WAYS][WORLD][T * H];

static struct job {
	struct covey_ep ep;
	int local[E];
	uint16_t packed[E * ROWS * H], y[E * ROWS * H];
	float scales[E * GROUPS * ROWS], recv_weights[ROWS * K], factors[E];
	int32_t count[E], src[E * ROWS], flat[E * ROWS * 2], triplets[E * ROWS * 3], recv_experts[ROWS * K];
	int64_t range[E * WORLD];
	uint8_t *to, *back; /* slots */
} jobs[WORLD];

static float factor(int e)
{
	return 0.5f + 0.3f * (float)e;
}

/* ---- a seed ---- */

static int named(const int32_t *ids, int k, int32_t id)
{
	for (int i = 0; i < k; i++)
		if (ids[i] == id)
			return 1;
	return 0;
}

/* Few tokens may name an expert twice: LL keeps T rows of a source for one expert. */
static void route(int r, uint64_t seed, uint64_t *state)
{
	const int twice = seed % 4 == 0;

	load.tokens[r] = (int)(harness_random(state) % (twice ? T / K + 1 : T + 1));
	for (int i = 0; i < T * K; i++) {
		int32_t *ids = load.ids[r] + i / K * K;

		do
			ids[i % K] = (int32_t)(harness_random(state) % (E + 2)) - 1;
		while (!twice && ids[i % K] >= 0 && ids[i % K] < E && named(ids, i % K, ids[i % K]));
		load.weights[r][i] = (float)(1 + harness_random(state) % 1000) / 999;
	}
}

static void draw(uint64_t seed)
{
	static const int back[] = { COVEY_EP_BACK_PLAIN, COVEY_EP_BACK_INT8 };
	uint64_t state = seed;

	memset(&load, 0, sizeof(load));
	load.dtype = seed & 1 ? COVEY_FLOAT16 : COVEY_BFLOAT16;
	load.rows_as = (int)(seed >> 1) % 4;
	load.back = back[(seed >> 3) % 4 == 3];
	load.renormalise = (seed >> 4) % 2;
	load.sources = seed % 3 ? ~0u : (unsigned)harness_random(&state);
	load.owners = seed % 5 ? ~0u : (unsigned)harness_random(&state);
	for (int e = 0; e < E; e++)
		load.owner[e] = (int)(harness_random(&state) % WORLD);
	for (int r = 0; r < WORLD; r++) {
		route(r, seed, &state);
		for (int i = 0; i < T * H; i++)
			load.x[r][i] = ep_narrow(load.dtype, (float)(int)(harness_random(&state) % 2001 - 1000) / 77);
	}
}

/* ---- a way ---- */

static void open_way(const struct way *w)
{
	const int back = load.back == COVEY_EP_BACK_INT8 && !w->by_rank ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS;

	for (int r = 0; r < WORLD; r++) {
		struct job *j = &jobs[r];

		memset(j, 0, sizeof(*j));
		j->ep = (struct covey_ep){ .shape = { T, H, K, E, WORLD, w->preset, back },
					   .rank = r,
					   .size = WORLD,
					   .owner = load.owner,
					   .local = j->local,
					   .dtype = load.dtype,
					   .rows_as = load.rows_as,
					   .combine_as = w->by_rank ? COVEY_EP_PER_RANK : COVEY_EP_PER_EXPERT,
					   .back_as = load.back };
		j->ep.el = cvy_ep_locals(E, load.owner, r, j->local);
		for (int e = 0; e < E; e++)
			if (j->local[e] >= 0)
				j->factors[j->local[e]] = factor(e);
		j->to = calloc(1, cvy_ep_dispatch_bytes(&j->ep.shape));
		j->back = calloc(1, cvy_ep_combine_bytes(&j->ep.shape));
		must(j->to && j->back, "memory");
	}
}

static void dispatch_args(int r, struct covey_dispatch_args *a)
{
	struct job *j = &jobs[r];

	a->num_tokens = load.tokens[r];
	a->x = load.x[r];
	a->experts = load.ids[r];
	a->weights = load.weights[r];
	a->packed_x = j->packed;
	a->packed_scales = j->scales;
	a->count = j->count;
	a->src_info = j->src;
	a->range = j->range;
	a->recv_experts = j->recv_experts;
	a->recv_weights = j->recv_weights;
	a->flat = j->flat;
	a->triplets = j->triplets;
}

static void dispatch(void)
{
	uint64_t told[WORLD];
	const uint8_t *slot[WORLD];

	for (int r = 0; r < WORLD; r++) {
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		dispatch_args(r, &a);
		told[r] = cvy_ep_dispatch_write(&jobs[r].ep, &a, jobs[r].to);
		slot[r] = load.sources >> r & 1 ? jobs[r].to : NULL;
	}
	for (int r = 0; r < WORLD; r++) {
		struct cvy_ep_call *call = cvy_ep_call_new(&jobs[r].ep, 0);
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;

		must(call != NULL, "memory");
		dispatch_args(r, &a);
		call->dispatch = a;
		cvy_ep_dispatch_take_all(call, slot, told);
		cvy_ep_call_free(call);
	}
}

/* An element as it arrived. @scale: the first of its row, the next one is @apart. */
static float arrived(const struct job *j, size_t row, int h, const float *scale, size_t apart)
{
	const uint8_t *codes = (const uint8_t *)j->packed;

	switch (load.rows_as) {
	case COVEY_EP_ROWS_E4M3:
		return cvy_e4m3_f32(codes[row * H + (size_t)h]) * scale[(size_t)(h / 128) * apart];
	case COVEY_EP_ROWS_INT8:
		return (float)(int8_t)codes[row * H + (size_t)h] * *scale;
	case COVEY_EP_ROWS_INT4:
		return (float)(((codes[row * H / 2 + (size_t)h / 2] >> (h % 2 * 4) & 15) ^ 8) - 8) * *scale;
	default:
		return ep_wide(load.dtype, j->packed[row * H + (size_t)h]);
	}
}

static size_t groups(void)
{
	return load.rows_as == COVEY_EP_ROWS_E4M3 ? GROUPS : 1;
}

static void work_by_expert(struct job *j, const struct way *w)
{
	const int close = w->preset == COVEY_EP_WIN;
	size_t first = 0;

	for (int le = 0; le < j->ep.el; first = close ? first + (size_t)j->count[le] : first + ROWS, le++)
		for (int i = 0; i < j->count[le]; i++)
			for (int h = 0; h < H; h++) {
				const size_t row = first + (size_t)i;
				const float *by_row = j->scales + row * groups();
				const float *by_column = j->scales + (size_t)le * groups() * ROWS + i;
				float x = arrived(j, row, h, close ? by_row : by_column, close ? 1 : ROWS);

				j->y[row * H + (size_t)h] = ep_narrow(load.dtype, w->fused ? x : x * j->factors[le]);
			}
}

static void work_by_row(struct job *j)
{
	int64_t last = j->ep.el ? j->range[WORLD - 1] : 0;

	for (size_t row = 0; row < cvy_ep_range_count(last) + cvy_ep_range_first(last); row++)
		for (int h = 0; h < H; h++) {
			float x = arrived(j, row, h, j->scales + row * groups(), 1), sum = 0;

			for (size_t i = row * K; i < (row + 1) * K; i++)
				if (j->recv_experts[i] >= 0)
					sum += j->recv_weights[i] *
					       ep_wide(load.dtype,
						       ep_narrow(load.dtype, x * j->factors[j->recv_experts[i]]));
			j->y[row * H + (size_t)h] = ep_narrow(load.dtype, sum);
		}
}

static void combine_args(int r, const struct way *w, void *to, struct covey_combine_args *a)
{
	struct job *j = &jobs[r];

	a->num_tokens = load.tokens[r];
	a->renormalise = load.renormalise;
	a->y = j->y;
	a->range = j->range;
	a->experts = load.ids[r];
	a->weights = load.weights[r];
	a->expert_scale = w->fused ? j->factors : NULL;
	a->out = to;
}

static void combine(const struct way *w, uint16_t to[WORLD][T * H])
{
	const uint8_t *slot[WORLD];

	for (int r = 0; r < WORLD; r++) {
		struct covey_combine_args a = COVEY_COMBINE_INIT;
		uint32_t next = 0;

		combine_args(r, w, to[r], &a);
		for (int s = 0; s < WORLD; s++)
			next = cvy_ep_combine_write(&jobs[r].ep, &a, s, next, jobs[r].back);
		slot[r] = load.owners >> r & 1 ? jobs[r].back : NULL;
	}
	for (int r = 0; r < WORLD; r++) {
		struct cvy_ep_call *call = cvy_ep_call_new(&jobs[r].ep, 1);
		struct covey_combine_args a = COVEY_COMBINE_INIT;

		must(call != NULL, "memory");
		combine_args(r, w, to[r], &a);
		call->combine = a;
		cvy_ep_combine_read(call, slot);
		cvy_ep_call_free(call);
	}
}

static void run_way(int which)
{
	const struct way *w = &ways[which];

	open_way(w);
	dispatch();
	for (int r = 0; r < WORLD; r++)
		if (w->preset == COVEY_EP_COMPACT || w->preset == COVEY_EP_HT)
			work_by_row(&jobs[r]);
		else
			work_by_expert(&jobs[r], w);
	combine(w, out[which]);
	for (int r = 0; r < WORLD; r++) {
		free(jobs[r].to);
		free(jobs[r].back);
	}
}

/* ---- comparisons ---- */

static int is_id(int32_t id)
{
	return id >= 0 && id < E;
}

/* Does a token have experts on its own rank? */
static int at_home(int r, int t)
{
	for (int k = 0; k < K; k++) {
		int32_t id = load.ids[r][t * K + k];

		if (is_id(id) && load.owner[id] == r)
			return 1;
	}
	return 0;
}

/* What roundings of parts and of codes can make of an element. */
static float slack(int r, int t)
{
	float all = 0;

	for (int k = 0; k < K; k++) {
		int32_t id = load.ids[r][t * K + k];

		if (is_id(id))
			all += load.weights[r][t * K + k] * factor(id) * 14;
	}
	return all * (load.renormalise ? 4 : 1) / (load.back == COVEY_EP_BACK_INT8 ? 32 : 64);
}

static void compare(int a, int b, int exact)
{
	for (int r = 0; r < WORLD; r++)
		for (int i = 0; i < load.tokens[r] * H; i++) {
			const uint16_t one = out[a][r][i], other = out[b][r][i];

			must(one == other || (!exact && fabsf(ep_wide(load.dtype, one) - ep_wide(load.dtype, other)) <=
								slack(r, i / H)),
			     "%s and %s: rank %d token %d element %d: %g and %g", ways[a].name, ways[b].name, r, i / H,
			     i % H, (double)ep_wide(load.dtype, one), (double)ep_wide(load.dtype, other));
		}
}

/* COMPACT rounds the own part of a sum, too. Codes are made of that, and not of a sum in f32. */
static void compare_compact(void)
{
	compare(COMPACT, FLAT_BY_RANK, 0);
	for (int r = 0; r < WORLD && load.back == COVEY_EP_BACK_PLAIN; r++)
		for (int t = 0; t < load.tokens[r]; t++)
			must(at_home(r, t) || !memcmp(&out[COMPACT][r][t * H], &out[FLAT_BY_RANK][r][t * H], 2 * H),
			     "rank %d token %d", r, t);
}

TEST_LOOP(presets_give_the_same_output, 0, SEEDS)
{
	const int plain = (_i >> 1) % 4 == COVEY_EP_ROWS_BF16 && (_i >> 3) % 4 != 3;

	draw((uint64_t)_i);
	for (int i = 0; i < WAYS; i++)
		run_way(i);
	compare(FLAT, LL, 1);
	compare(FLAT_BY_RANK, LL_BY_RANK, 1);
	compare(FUSED, FLAT, plain);
	compare(WIN, LL, 1);
	compare(WIN_BY_RANK, LL_BY_RANK, 1);
	compare(HT, COMPACT, 1);
	compare(FLAT_BY_RANK, FLAT, 0);
	compare_compact();
}

SUITE_MAIN(.name = "collectives/ep_presets")
