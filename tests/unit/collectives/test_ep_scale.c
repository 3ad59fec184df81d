/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expert_scale of a combine: each result is multiplied by the factor of its expert. Each rank makes what its own tokens must
 * come back as from the routing alone, element by element: product, rounding, codes, sum. Ranks may give no factors.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "ep.h"

enum { WORLD = 3, T = 9, H = 136, K = 3, E = 7, ROWS = WORLD * T, ODD = 5 };

static const struct way {
	const char *name;
	int preset, dtype, back, by_rank, masked, renormalise, left_out;
} ways[] = {
	{ "flat", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_BACK_PLAIN, 0, 0, 0, 0 },
	{ "flat, fp16, masked", COVEY_EP_FLAT, COVEY_FLOAT16, COVEY_EP_BACK_PLAIN, 0, 3, 1, 0 },
	{ "flat, int8", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_BACK_INT8, 0, 0, 0, 0 },
	{ "flat, fp16, int8, rank 2 is left out", COVEY_EP_FLAT, COVEY_FLOAT16, COVEY_EP_BACK_INT8, 0, 0, 1, 1 },
	{ "flat, by rank", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_BACK_PLAIN, 1, 0, 0, 0 },
	{ "flat, by rank, fp16, int8", COVEY_EP_FLAT, COVEY_FLOAT16, COVEY_EP_BACK_INT8, 1, 2, 0, 1 },
	{ "ll, rank 2 is left out", COVEY_EP_LL, COVEY_FLOAT16, COVEY_EP_BACK_PLAIN, 0, 2, 0, 1 },
	{ "ll, by rank, int8", COVEY_EP_LL, COVEY_BFLOAT16, COVEY_EP_BACK_INT8, 1, 0, 1, 0 },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]), TURNS = 8 };

/* Factors of the experts; the last two make products that are infinite, and no numbers. */
static const float factor[E] = { 1, 0.3f, -2.7f, 0, 1000, 3e38f, NAN };

struct job {
	const struct way *way;
	struct covey_ep *ep;
	int rank, tokens;
	int without;   /* this rank gives no factors */
	uint64_t here; /* owners that take part */
	uint16_t x[T * H], packed[E * ROWS * H], out[T * H];
	float weights[T * K];
	int32_t ids[T * K], left[T * K]; /* left: without what is masked or skipped */
	uint8_t mask[T * K];
	int32_t count[E], src[E * ROWS], flat[E * ROWS * 2], active[WORLD];
	int64_t range[E * WORLD];
};

static struct job jobs[WORLD];

/* ---- what is right ---- */

/* What expert @e makes of a token's element. */
static uint16_t result(int dtype, uint16_t x, int e)
{
	return ep_narrow(dtype, ep_wide(dtype, x) * (float)(e + 1));
}

static int owner_of(int e)
{
	return e / ((E + WORLD - 1) / WORLD);
}

/* As it leaves expert @e: times its factor, in f32. */
static float product(const struct job *j, int t, int h, int e)
{
	float y = ep_wide(j->way->dtype, result(j->way->dtype, j->x[t * H + h], e));

	return owner_of(e) == j->without ? y : y * factor[e];
}

static float rounded(const struct job *j, float v)
{
	return ep_wide(j->way->dtype, ep_narrow(j->way->dtype, v));
}

/* As it is added: k ascending. */
static float by_expert(const struct job *j, int t, int h)
{
	float sum = 0, v[8];

	for (int k = 0; k < K; k++) {
		int e = j->left[t * K + k];

		if (e < 0 || !(j->here >> owner_of(e) & 1))
			continue;
		for (int i = 0; i < 8; i++)
			v[i] = product(j, t, h / 8 * 8 + i, e);
		sum += j->weights[t * K + k] *
		       (j->way->back == COVEY_EP_BACK_INT8 ? ep_coded(j->way->dtype, v, h % 8) : rounded(j, v[h % 8]));
	}
	return sum;
}

/* The part of @owner, whose rows of experts travel in 16 bits. */
static float part(const struct job *j, int t, int h, int owner)
{
	float sum = 0;

	for (int k = 0; k < K; k++) {
		int e = j->left[t * K + k];

		if (e >= 0 && owner_of(e) == owner)
			sum += j->weights[t * K + k] * rounded(j, product(j, t, h, e));
	}
	return sum;
}

static float by_rank(const struct job *j, int t, int h)
{
	float sum = 0, v[8];

	for (int o = 0; o < WORLD; o++) {
		int named = 0;

		for (int k = 0; k < K; k++)
			named |= j->left[t * K + k] >= 0 && owner_of(j->left[t * K + k]) == o;
		if (!named || !(j->here >> o & 1))
			continue;
		for (int i = 0; i < 8; i++)
			v[i] = part(j, t, h / 8 * 8 + i, o);
		if (j->way->back == COVEY_EP_BACK_INT8)
			sum += ep_coded(j->way->dtype, v, h % 8);
		else
			sum += o == j->rank ? v[h % 8] : rounded(j, v[h % 8]);
	}
	return sum;
}

static void check_out(const struct job *j)
{
	for (int t = 0; t < j->tokens; t++) {
		float all = 0, here = 0, scale;

		for (int k = 0; k < K; k++) {
			int e = j->left[t * K + k];

			all += e < 0 ? 0 : j->weights[t * K + k];
			here += e < 0 || !(j->here >> owner_of(e) & 1) ? 0 : j->weights[t * K + k];
		}
		scale = j->way->renormalise && all != here && here != 0 ? all / here : 1;
		for (int h = 0; h < H; h++) {
			float sum = (j->way->by_rank ? by_rank(j, t, h) : by_expert(j, t, h)) * scale;

			must(j->out[t * H + h] == ep_narrow(j->way->dtype, sum),
			     "%s: rank %d token %d element %d: %g, not %g", j->way->name, j->rank, t, h,
			     (double)ep_wide(j->way->dtype, j->out[t * H + h]), (double)sum);
		}
	}
}

/* ---- calls ---- */

static void fill(struct job *j, uint64_t seed)
{
	uint64_t state = seed * 977 + (uint64_t)j->rank + 1;

	j->without = (int)(seed % WORLD);
	j->tokens = (int)(harness_random(&state) % (T + 1));
	for (int i = 0; i < T * H; i++)
		j->x[i] = ep_narrow(j->way->dtype, (float)(int)(harness_random(&state) % 400) / 16 - 12);
	for (int t = 0; t < T; t++) /* a NaN with a payload, an infinity */
		j->x[t * H + ODD] = (uint16_t)(t % 3 == 0 ? 0xff81 : t % 3 == 1 ? 0x7c00 : 0x8001);
	for (int i = 0; i < T * K; i++) { /* no expert is named so often that rows are skipped */
		j->ids[i] = i % K ? j->ids[i - 1] + 1 : (int32_t)(harness_random(&state) % E);
		j->weights[i] = (float)(1 + harness_random(&state) % 64) / 64;
		j->mask[i] = j->way->masked && harness_random(&state) % (uint64_t)j->way->masked == 0 ? 0 : 1;
		j->left[i] = j->mask[i] && j->ids[i] < E ? j->ids[i] : -1;
	}
	j->here = j->way->left_out ? (j->rank == 2 ? 4 : 3) : 7;
}

static void dispatch(struct job *j)
{
	struct covey_dispatch_args a = EP_DISPATCH(j);

	for (int r = 0; r < WORLD; r++)
		j->active[r] = r != 2;
	a.weights = j->weights;
	a.flat = j->flat;
	a.token_mask = j->way->masked ? j->mask : NULL;
	a.mask_columns = K;
	a.active_ranks = j->way->left_out ? j->active : NULL;
	must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
}

/* In place: y is packed_x. */
static void experts(struct job *j)
{
	for (int e = 0; e < E; e++)
		for (int i = 0; j->ep->local[e] >= 0 && i < j->count[j->ep->local[e]] * H; i++) {
			uint16_t *v = &j->packed[j->ep->local[e] * ROWS * H + i];

			*v = result(j->way->dtype, *v, e);
		}
}

static void combine_args(struct job *j, struct covey_combine_args *a)
{
	*a = EP_COMBINE(j, j->packed);
	a->renormalise = j->way->renormalise;
	a->token_mask = j->way->masked ? j->mask : NULL;
	a->mask_columns = K;
	a->active_ranks = j->way->left_out ? j->active : NULL;
	a->expert_scale = j->rank == j->without ? NULL : factor + j->rank * ((E + WORLD - 1) / WORLD);
}

static struct covey_ep *create(struct covey_group *group, const struct way *w)
{
	struct covey_ep_config c = ep_config(T, H, K, E);
	struct covey_ep *ep = NULL;

	c.preset = w->preset;
	c.dtype = w->dtype;
	c.combine = w->by_rank ? COVEY_EP_PER_RANK : COVEY_EP_PER_EXPERT;
	c.combine_rows = w->back;
	must(!covey_ep_create(group, &c, &ep), "create");
	return ep;
}

static void every_way(struct member *m)
{
	for (int i = 0; i < WAYS; i++) {
		struct job *j = &jobs[m->rank];

		memset(j, 0, sizeof(*j));
		j->rank = m->rank;
		j->way = &ways[i];
		j->ep = create(m->group, j->way);
		for (uint64_t seed = 0; seed < TURNS; seed++) {
			struct covey_combine_args a;

			fill(j, seed);
			dispatch(j);
			experts(j);
			combine_args(j, &a);
			must(!covey_combine(j->ep, &a, NULL, NULL), "combine");
			check_out(j);
		}
		covey_ep_destroy(j->ep);
	}
}

TEST_LOOP(results_are_multiplied_by_the_factor_of_their_expert, 0, 2)
{
	struct covey_config config = harness_config("epscale", WORLD);

	config.transport = _i ? COVEY_TRANSPORT_TCP : COVEY_TRANSPORT_SHM;
	harness_threads(&config, every_way, NULL);
}

static void refusal(struct member *m)
{
	static const struct way compact = { .preset = COVEY_EP_COMPACT, .dtype = COVEY_BFLOAT16 };
	struct covey_combine_args a;
	struct job *j = &jobs[0];

	memset(j, 0, sizeof(*j));
	j->way = &compact;
	j->without = -1;
	j->ep = create(m->group, &compact);
	combine_args(j, &a);
	ep_refused(m->group, covey_combine(j->ep, &a, NULL, NULL), COVEY_ERR_INVAL, "expert_scale differs by expert");
	covey_ep_destroy(j->ep);
}

TEST(rows_of_several_experts_have_no_factor)
{
	struct covey_config config = harness_config("epscaleargs", 1);

	harness_threads(&config, refusal, NULL);
}

int main(void)
{
	return harness_main(SUITE(.name = "collectives/ep_scale"));
}
