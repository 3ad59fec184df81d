/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipes of docs/guide/replicas.md on 8 ranks: a shared expert with two places beside routed experts on the other six
 * ranks, and experts in halves against an allgather, plain arithmetic and a reduce_scatter. All numbers are small and
 * whole, so sums are exact.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <stdlib.h>

enum { RANKS = 8, TOKENS = 10, HIDDEN = 16, INNER = 8, HALF = INNER / 2, MOST_K = 4, MOST_EXPERTS = 13, ROUNDS = 12 };

struct job {
	struct covey_ep *ep;
	int rank, experts, top_k, places, el, tokens, owner[MOST_EXPERTS * 2], local[MOST_EXPERTS];
	uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], packed[MOST_EXPERTS * RANKS * TOKENS * HIDDEN],
		y[MOST_EXPERTS * RANKS * TOKENS * HIDDEN];
	int32_t ids[TOKENS * MOST_K], placed[TOKENS * MOST_K], count[MOST_EXPERTS], src[MOST_EXPERTS * RANKS * TOKENS];
	int64_t range[MOST_EXPERTS * RANKS];
	float weights[TOKENS * MOST_K];
};

/* y [HIDDEN] of row @x [HIDDEN] */
typedef void (*expert_fn)(int expert, const uint16_t *x, uint16_t *y);

static void job_open(struct job *j, struct member *m)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, j->top_k, j->experts);

	c.places = j->places;
	c.expert_owner = j->owner;
	must(!covey_ep_create(m->group, &c, &j->ep), "create");
	for (int e = 0; e < j->experts; e++)
		for (int p = 0; p < j->places; p++)
			if (j->owner[e * j->places + p] == m->rank)
				j->local[j->el++] = e;
	must(j->el == covey_ep_local_experts(j->ep), "local experts");
}

static void fill_x(struct job *j, uint64_t *state)
{
	j->tokens = (int)(harness_random(state) % (TOKENS + 1));
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		j->x[i] = cvy_f32_bf16((float)(int)(harness_random(state) % 4));
}

static void dispatch(struct job *j)
{
	struct covey_dispatch_args d = EP_DISPATCH(j);
	struct covey_result res;

	d.placed = j->placed;
	must(!covey_dispatch(j->ep, &d, NULL, &res) && covey_mask_count(&res.mask) == RANKS, "dispatch");
}

static void combine(struct job *j, expert_fn expert)
{
	struct covey_combine_args c = EP_COMBINE(j, j->y);
	struct covey_result res;

	for (int le = 0; le < j->el; le++)
		for (int row = 0; row < j->count[le]; row++) {
			size_t at = (size_t)(le * RANKS * TOKENS + row) * HIDDEN;

			expert(j->local[le], j->packed + at, j->y + at);
		}
	c.placed = j->placed;
	must(!covey_combine(j->ep, &c, NULL, &res) && covey_mask_count(&res.mask) == RANKS, "combine");
}

/* ---- two ranks share an expert, six have the routed ones ---- */

enum { ROUTED = 12, SHARED = ROUTED, K = 3 };

static void scaled(int expert, const uint16_t *x, uint16_t *y)
{
	for (int h = 0; h < HIDDEN; h++)
		y[h] = cvy_f32_bf16(cvy_bf16_f32(x[h]) * (float)(expert + 1));
}

static void shared_experts(struct member *m)
{
	struct job *j = calloc(1, sizeof(*j));
	uint64_t state = (uint64_t)m->rank + 1;

	must(j != NULL, "memory");
	j->experts = ROUTED + 1;
	j->top_k = K + 1;
	j->places = 2;
	for (int e = 0; e < ROUTED; e++)
		j->owner[2 * e] = 2 + e / 2, j->owner[2 * e + 1] = -1;
	j->owner[2 * SHARED] = 0, j->owner[2 * SHARED + 1] = 1;
	job_open(j, m);
	for (int round = 0; round < ROUNDS; round++) {
		fill_x(j, &state);
		for (int i = 0; i < TOKENS * (K + 1); i++) {
			j->ids[i] = i % (K + 1) == K ? SHARED : (int)(harness_random(&state) % ROUTED);
			j->weights[i] = i % (K + 1) == K ? 1 : (float)(1 + harness_random(&state) % 2);
		}
		dispatch(j);
		for (int s = 0; m->rank < 2 && s < RANKS; s++) /* half of the sources each */
			must((j->range[s] >> 32 == 0) || s % 2 == m->rank, "rank %d serves rank %d", m->rank, s);
		must(m->rank > 1 || j->el == 1, "%d experts", j->el);
		combine(j, scaled);
		for (int i = 0; i < j->tokens * HIDDEN; i++) {
			float x = cvy_bf16_f32(j->x[i]), sum = x * (SHARED + 1);
			int t = i / HIDDEN;

			for (int k = 0; k < K; k++)
				sum += j->weights[t * (K + 1) + k] * x * (float)(j->ids[t * (K + 1) + k] + 1);
			must(cvy_bf16_f32(j->out[i]) == sum, "token %d: %g, not %g", t, (double)cvy_bf16_f32(j->out[i]),
			     (double)sum);
		}
	}
	covey_ep_destroy(j->ep);
	free(j);
}

TEST_LOOP(two_ranks_share_an_expert_beside_six, 0, 2)
{
	struct covey_config config = harness_config("shared", RANKS);

	harness_threads_on(&config, shared_experts, NULL, _i ? 4 : 0);
}

/* ---- four experts in halves ---- */

enum { WHOLE = 4, NAMED = 2 };

/* Weights of the two layers: -1, 0 or 1. */
static float first_layer(int expert, int inner, int h)
{
	return (float)((expert * 7 + inner * 5 + h * 3) % 3 - 1);
}

static float second_layer(int expert, int h, int inner)
{
	return (float)((expert * 5 + inner * 7 + h) % 3 - 1);
}

/* What inner elements @from to @end of an expert add to element h. */
static float part_of(int expert, const float *x, int h, int from, int end)
{
	float sum = 0;

	for (int i = from; i < end; i++) {
		float inner = 0;

		for (int g = 0; g < HIDDEN; g++)
			inner += first_layer(expert, i, g) * x[g];
		sum += inner > 0 ? second_layer(expert, h, i) * inner : 0;
	}
	return sum;
}

static void half_expert(int number, const uint16_t *x, uint16_t *y)
{
	float wide[HIDDEN];

	for (int h = 0; h < HIDDEN; h++)
		wide[h] = cvy_bf16_f32(x[h]);
	for (int h = 0; h < HIDDEN; h++)
		y[h] = cvy_f32_bf16(part_of(number / 2, wide, h, number % 2 * HALF, (number % 2 + 1) * HALF));
}

/* Every rank gets all tokens, adds up what its half makes of them, and gets the sums of its own tokens. */
static void without_dispatch(struct member *m, const struct job *j, float *want)
{
	struct {
		float x[TOKENS * HIDDEN], w[TOKENS * NAMED];
		int32_t expert[TOKENS * NAMED], tokens;
	} own = { .tokens = j->tokens }, *all = malloc(RANKS * sizeof(own));
	float *parts = calloc((size_t)RANKS * TOKENS * HIDDEN, sizeof(*parts));
	int expert = m->rank / 2, half = m->rank % 2;

	must(all && parts, "memory");
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		own.x[i] = cvy_bf16_f32(j->x[i]);
	for (int i = 0; i < TOKENS * NAMED; i++) {
		own.w[i] = j->weights[2 * i];
		own.expert[i] = j->ids[2 * i] / 2;
	}
	must(!covey_allgather(&own, all, sizeof(own), COVEY_UINT8, m->group, NULL, NULL), "allgather");
	for (int s = 0; s < RANKS; s++)
		for (int i = 0; i < all[s].tokens * NAMED; i++)
			for (int h = 0; h < HIDDEN && all[s].expert[i] == expert; h++)
				parts[(s * TOKENS + i / NAMED) * HIDDEN + h] +=
					all[s].w[i] * part_of(expert, all[s].x + (size_t)(i / NAMED) * HIDDEN, h,
							      half * HALF, (half + 1) * HALF);
	must(!covey_reduce_scatter(parts, want, TOKENS * HIDDEN, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, NULL),
	     "reduce_scatter");
	free(all);
	free(parts);
}

static void halves(struct member *m)
{
	struct job *j = calloc(1, sizeof(*j));
	uint64_t state = (uint64_t)m->rank + 1;
	float want[TOKENS * HIDDEN];
	int others = 0;

	must(j != NULL, "memory");
	j->experts = 2 * WHOLE;
	j->top_k = 2 * NAMED;
	j->places = 1;
	for (int e = 0; e < 2 * WHOLE; e++)
		j->owner[e] = e;
	job_open(j, m);
	for (int round = 0; round < ROUNDS; round++) {
		fill_x(j, &state);
		for (int i = 0; i < TOKENS * NAMED; i++) {
			int expert = (int)(harness_random(&state) % WHOLE);

			for (int half = 0; half < 2; half++) {
				j->ids[2 * i + half] = 2 * expert + half;
				j->weights[2 * i + half] = (float)(1 + i % 2);
			}
		}
		dispatch(j);
		combine(j, half_expert);
		without_dispatch(m, j, want);
		for (int i = 0; i < j->tokens * HIDDEN; i++) {
			must(j->out[i] == cvy_f32_bf16(want[i]), "token %d: %g, not %g", i / HIDDEN,
			     (double)cvy_bf16_f32(j->out[i]), (double)want[i]);
			others += want[i] != 0;
		}
	}
	must(others > 0, "only zeros");
	covey_ep_destroy(j->ep);
	free(j);
}

TEST_LOOP(halves_add_up_as_with_allgather_and_reduce_scatter, 0, 2)
{
	struct covey_config config = harness_config("halves", RANKS);

	harness_threads_on(&config, halves, NULL, _i ? 4 : 0);
}

HARNESS_MAIN(.name = "collectives/ep_recipes")
