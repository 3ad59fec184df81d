/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terms of a combine: results of experts, multiplied by the factor of their expert (expert_scale) or not, rounded or in
 * codes, summed by expert or by rank; and zero, copy and constant experts: ids from E on that no rank has. Each rank makes
 * what its own tokens must come back as from the routing alone. Ranks may give no factors or no bias, and have different
 * numbers of experts that no rank has.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "ep.h"

enum { WORLD = 3, T = 9, H = 136, K = 4, E = 6, P = 2, ROWS = WORLD * T, ODD = 5 };
enum { ZERO = 1, COPIES = 2, CONSTANTS = 3, PAST = 2 }; /* of rank 0; PAST: ids that are none */
enum { PLAIN = COVEY_EP_BACK_PLAIN, INT8 = COVEY_EP_BACK_INT8 };

static const struct way {
	const char *name;
	int preset, dtype, by_rank;
	int masked; /* one entry of so many, 0: there is no mask */
	int renormalise, left_out, wide_ids, places;
	int back, scaled; /* scaled: there are factors, and no ids of no rank */
} ways[] = {
	{ "ll", COVEY_EP_LL, COVEY_BFLOAT16, 0, 0, 0, 0, 0, 1, PLAIN, 0 },
	{ "ll, fp16, wide ids, rank 2 is left out", COVEY_EP_LL, COVEY_FLOAT16, 0, 0, 1, 1, 1, 1, PLAIN, 0 },
	{ "ll by rank, masked, rank 2 is left out", COVEY_EP_LL, COVEY_BFLOAT16, 1, 4, 1, 1, 0, 1, PLAIN, 0 },
	{ "flat, masked", COVEY_EP_FLAT, COVEY_FLOAT16, 0, 4, 1, 0, 0, 1, PLAIN, 0 },
	{ "flat by rank, wide ids", COVEY_EP_FLAT, COVEY_BFLOAT16, 1, 0, 0, 1, 1, 1, PLAIN, 0 },
	{ "win, places", COVEY_EP_WIN, COVEY_BFLOAT16, 0, 0, 1, 0, 0, P, PLAIN, 0 },
	{ "win, rank 2 is left out", COVEY_EP_WIN, COVEY_FLOAT16, 0, 0, 1, 1, 0, 1, PLAIN, 0 },
	{ "win by rank, masked, wide ids", COVEY_EP_WIN, COVEY_FLOAT16, 1, 4, 0, 0, 1, 1, PLAIN, 0 },
	{ "compact", COVEY_EP_COMPACT, COVEY_BFLOAT16, 0, 0, 0, 0, 0, 1, PLAIN, 0 },
	{ "compact, rank 2 is left out", COVEY_EP_COMPACT, COVEY_FLOAT16, 0, 4, 1, 1, 0, 1, PLAIN, 0 },
	{ "compact, places, wide ids", COVEY_EP_COMPACT, COVEY_FLOAT16, 0, 0, 0, 0, 1, P, PLAIN, 0 },
	{ "factors, flat", COVEY_EP_FLAT, COVEY_BFLOAT16, 0, 0, 0, 0, 0, 1, PLAIN, 1 },
	{ "factors, flat, masked", COVEY_EP_FLAT, COVEY_FLOAT16, 0, 3, 1, 0, 0, 1, PLAIN, 1 },
	{ "factors, flat, int8", COVEY_EP_FLAT, COVEY_BFLOAT16, 0, 0, 0, 0, 0, 1, INT8, 1 },
	{ "factors, flat, int8, rank 2 is left out", COVEY_EP_FLAT, COVEY_FLOAT16, 0, 0, 1, 1, 0, 1, INT8, 1 },
	{ "factors, flat by rank", COVEY_EP_FLAT, COVEY_BFLOAT16, 1, 0, 0, 0, 0, 1, PLAIN, 1 },
	{ "factors, flat by rank, int8", COVEY_EP_FLAT, COVEY_FLOAT16, 1, 2, 0, 1, 0, 1, INT8, 1 },
	{ "factors, ll, rank 2 is left out", COVEY_EP_LL, COVEY_FLOAT16, 0, 2, 0, 1, 0, 1, PLAIN, 1 },
	{ "factors, ll by rank, int8", COVEY_EP_LL, COVEY_BFLOAT16, 1, 0, 1, 0, 0, 1, INT8, 1 },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]), TURNS = 8 };

static const float a1[CONSTANTS] = { 0.5f, 0, -1.25f }, a2[CONSTANTS] = { 1, 0.3f, 3e38f };

/* Factors of the experts; the last two make products that are infinite, and no numbers. */
static const float factor[E] = { 0.3f, -2.7f, 0, 1000, 3e38f, NAN };

static struct job {
	const struct way *way;
	struct covey_ep *ep;
	int rank, tokens, zero, copies, constants;
	int without;   /* this rank gives no factors */
	int biased;    /* this rank gives a bias */
	uint64_t here; /* owners that take part */
	uint16_t x[T * H], packed[E * ROWS * H], out[T * H];
	float weights[T * K], recv_weights[ROWS * K], v[CONSTANTS * H], bias[T * H];
	int32_t ids[T * K], left[T * K], placed[T * K]; /* left: without what is masked or no expert */
	int64_t ids64[T * K];
	uint8_t mask[T * K];
	int32_t count[E], src[E * ROWS], flat[E * ROWS * 2], triplets[E * ROWS * 3], recv_experts[ROWS * K],
		active[WORLD];
	int64_t range[E * WORLD];
} jobs[WORLD];

/* ---- what is right ---- */

static float rounded(const struct job *j, float v)
{
	return ep_wide(j->way->dtype, ep_narrow(j->way->dtype, v));
}

/* What expert @e makes of a token's element. */
static uint16_t result(const struct job *j, uint16_t x, int e)
{
	return ep_narrow(j->way->dtype, ep_wide(j->way->dtype, x) * (float)(e + 1));
}

static int owner_at(int e, int place)
{
	return (e / 2 + place) % WORLD;
}

/* The rank that serves entry @i, -1: none does, or it is no expert of a rank. */
static int served_by(const struct job *j, int i)
{
	int e = j->left[i];

	return e < 0 || e >= E ? -1 : owner_at(e, j->way->places > 1 ? j->rank % j->way->places : 0);
}

static int takes_part(const struct job *j, int i)
{
	int e = j->left[i];

	return e >= E || (e >= 0 && (j->here >> served_by(j, i) & 1));
}

/* What comes from the expert of entry @i: times its factor, in f32. */
static float product(const struct job *j, int i, int h)
{
	float y = ep_wide(j->way->dtype, result(j, j->x[i / K * H + h], j->left[i]));

	return !j->way->scaled || served_by(j, i) == j->without ? y : y * factor[j->left[i]];
}

/* The term of an expert that no rank has. */
static float special(const struct job *j, int t, int h, int e)
{
	const float x = ep_wide(j->way->dtype, j->x[t * H + h]);
	const int copy = e - E - j->zero, constant = copy - j->copies;

	if (constant >= 0)
		return a1[constant] * x + a2[constant] * j->v[constant * H + h];
	return copy >= 0 ? x : 0;
}

/* Terms of entries that @of says: of one owner, whose rows travel in 16 bits, or, -1, of no rank. */
static float terms(const struct job *j, int t, int h, int of, float sum)
{
	for (int i = t * K; i < (t + 1) * K; i++) {
		int e = j->left[i];

		if (e < 0 || served_by(j, i) != of || !takes_part(j, i))
			continue;
		if (e < E)
			sum += j->weights[i] * rounded(j, product(j, i, h));
		else if (e >= E + j->zero)
			sum += j->weights[i] * special(j, t, h, e);
	}
	return sum;
}

static float begin(const struct job *j, int t, int h)
{
	return j->biased ? j->bias[t * H + h] : 0;
}

static float by_rank(const struct job *j, int t, int h)
{
	float sum = begin(j, t, h), v[8];

	for (int o = 0; o < WORLD; o++) {
		int named = 0;

		for (int i = t * K; i < (t + 1) * K; i++)
			named |= served_by(j, i) == o;
		if (!named || !(j->here >> o & 1))
			continue;
		for (int i = 0; i < 8; i++)
			v[i] = terms(j, t, h / 8 * 8 + i, o, 0);
		if (j->way->back == INT8)
			sum += ep_coded(j->way->dtype, v, h % 8);
		else if (o == j->rank && j->way->preset != COVEY_EP_COMPACT)
			sum += v[h % 8];
		else
			sum += rounded(j, v[h % 8]);
	}
	return terms(j, t, h, -1, sum);
}

static float by_expert(const struct job *j, int t, int h)
{
	float sum = begin(j, t, h), v[8];

	for (int i = t * K; i < (t + 1) * K; i++) {
		int e = j->left[i];

		if (e < 0 || !takes_part(j, i) || (e >= E && e < E + j->zero))
			continue;
		for (int k = 0; k < 8 && e < E; k++)
			v[k] = product(j, i, h / 8 * 8 + k);
		if (e >= E)
			sum += j->weights[i] * special(j, t, h, e);
		else
			sum += j->weights[i] *
			       (j->way->back == INT8 ? ep_coded(j->way->dtype, v, h % 8) : rounded(j, v[h % 8]));
	}
	return sum;
}

static void check_out(const struct job *j)
{
	const int parts = j->way->by_rank || j->way->preset == COVEY_EP_COMPACT;

	for (int t = 0; t < j->tokens; t++) {
		float all = 0, here = 0, scale;

		for (int i = t * K; i < (t + 1) * K; i++) {
			all += j->left[i] < 0 ? 0 : j->weights[i];
			here += takes_part(j, i) ? j->weights[i] : 0;
		}
		scale = j->way->renormalise && all != here && here != 0 ? all / here : 1;
		for (int h = 0; h < H; h++) {
			float sum = (parts ? by_rank(j, t, h) : by_expert(j, t, h)) * scale;

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
	int first = 0;

	j->without = (int)(seed % WORLD);
	j->tokens = (int)(harness_random(&state) % (T + 1));
	for (int i = 0; i < T * H; i++)
		j->x[i] = ep_narrow(j->way->dtype, (float)(int)(harness_random(&state) % 400) / 16 - 12);
	for (int t = 0; t < T; t++) /* a NaN with a payload, an infinity */
		j->x[t * H + ODD] = (uint16_t)(t % 3 == 0 ? 0xff81 : t % 3 == 1 ? 0x7c00 : 0x8001);
	for (int i = 0; i < CONSTANTS * H; i++)
		j->v[i] = (float)(int)(harness_random(&state) % 1000) / 77 - 6;
	j->biased = (seed + (uint64_t)j->rank) % 2 != 0;
	for (int i = 0; i < T * H; i++)
		j->bias[i] = (float)(int)(harness_random(&state) % 1000) / 77 - 6;
	for (int i = 0; i < T * K; i++) { /* experts of ranks once in a token, the others at will */
		first = i % K ? first : (int)(harness_random(&state) % E);
		j->ids[i] = harness_random(&state) % 2 ? (first + i % K) % E
						       : E + (int32_t)(harness_random(&state) % (7 + PAST));
		j->ids[i] = harness_random(&state) % 9 ? j->ids[i] : -1;
		j->ids64[i] = harness_random(&state) % 9 ? j->ids[i] : j->ids[i] + (1ll << 32);
		j->weights[i] = (float)(1 + harness_random(&state) % 64) / 64;
		j->mask[i] = !j->way->masked || harness_random(&state) % (uint64_t)j->way->masked;
		j->left[i] = j->way->wide_ids && j->ids64[i] != j->ids[i] ? -1 : j->ids[i];
		if (!j->mask[i] || j->left[i] >= E + j->zero + j->copies + j->constants)
			j->left[i] = -1;
	}
	j->here = j->way->left_out ? (j->rank == 2 ? 4 : 3) : 7;
}

static void dispatch(struct job *j)
{
	struct covey_dispatch_args a = EP_DISPATCH(j);

	for (int r = 0; r < WORLD; r++)
		j->active[r] = r != 2;
	a.experts = j->way->wide_ids ? NULL : j->ids;
	a.experts64 = j->way->wide_ids ? j->ids64 : NULL;
	a.weights = j->weights;
	a.flat = j->flat;
	a.triplets = j->triplets;
	a.recv_experts = j->recv_experts;
	a.recv_weights = j->recv_weights;
	a.placed = j->placed;
	a.token_mask = j->way->masked ? j->mask : NULL;
	a.mask_columns = K;
	a.active_ranks = j->way->left_out ? j->active : NULL;
	must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
}

/* The experts here, ascending. */
static int locals(const struct job *j, int *of)
{
	int n = 0;

	for (int e = 0; e < E; e++)
		for (int p = 0; p < j->way->places; p++)
			if (owner_at(e, p) == j->rank)
				of[n++] = e;
	return n;
}

static void sum_row(struct job *j, const int *of, int row)
{
	for (int h = 0; h < H; h++) {
		uint16_t *x = &j->packed[row * H + h];
		float sum = 0;

		for (int i = row * K; i < (row + 1) * K; i++)
			if (j->recv_experts[i] >= 0)
				sum += j->recv_weights[i] *
				       ep_wide(j->way->dtype, result(j, *x, of[j->recv_experts[i]]));
		*x = ep_narrow(j->way->dtype, sum);
	}
}

/* In place: y is packed_x. */
static void experts(struct job *j)
{
	const int close = j->way->preset == COVEY_EP_WIN;
	int of[E], n = locals(j, of), first = 0;

	must(n == j->ep->el, "%d local experts, not %d", j->ep->el, n);
	if (j->way->preset == COVEY_EP_COMPACT) {
		int64_t last = j->range[WORLD - 1];

		for (int row = 0; row < (int)(last >> 32) + (int)last; row++)
			sum_row(j, of, row);
		return;
	}
	for (int le = 0; le < n; first += close ? j->count[le] : ROWS, le++)
		for (int i = first * H; i < (first + j->count[le]) * H; i++)
			j->packed[i] = result(j, j->packed[i], of[le]);
}

static void combine_args(struct job *j, struct covey_combine_args *a)
{
	*a = EP_COMBINE(j, j->packed);
	a->renormalise = j->way->renormalise;
	a->experts = j->way->wide_ids ? NULL : j->ids;
	a->experts64 = j->way->wide_ids ? j->ids64 : NULL;
	a->placed = j->placed;
	a->token_mask = j->way->masked ? j->mask : NULL;
	a->mask_columns = K;
	a->active_ranks = j->way->left_out ? j->active : NULL;
	a->x = j->copies + j->constants ? j->x : NULL; /* zero experts need none */
	a->zero_experts = j->zero;
	a->copy_experts = j->copies;
	a->constant_experts = j->constants;
	a->constant_a1 = a1;
	a->constant_a2 = a2;
	a->constant_v = j->v;
	a->bias = j->biased ? j->bias : NULL;
	a->expert_scale = j->way->scaled && j->rank != j->without ? factor + j->rank * (E / WORLD) : NULL;
}

static struct covey_ep *create(struct covey_group *group, const struct way *w)
{
	struct covey_ep_config c = ep_config(T, H, K, E);
	struct covey_ep *ep = NULL;
	int owner[E * P];

	for (int i = 0; i < E * w->places; i++)
		owner[i] = owner_at(i / w->places, i % w->places);
	c.expert_owner = owner;
	c.places = w->places;
	c.preset = w->preset;
	c.dtype = w->dtype;
	c.combine = w->by_rank ? COVEY_EP_PER_RANK : COVEY_EP_PER_EXPERT;
	c.combine_rows = w->back;
	must(!covey_ep_create(group, &c, &ep), "create");
	return ep;
}

TEST_RANKS_OVER_BOTH(terms_are_multiplied_rounded_and_added_as_said, WORLD)
{
	for (int i = 0; i < WAYS; i++) {
		struct job *j = &jobs[m->rank];

		memset(j, 0, sizeof(*j));
		j->rank = m->rank;
		j->way = &ways[i];
		if (!j->way->scaled) { /* rank 1 has copy experts alone, rank 2 no constant ones */
			j->zero = m->rank == 1 ? 0 : ZERO;
			j->copies = COPIES;
			j->constants = m->rank ? 0 : CONSTANTS;
		}
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

TEST_RANKS(what_is_missing_is_said, 1)
{
	static const struct way plain[] = { { .preset = COVEY_EP_COMPACT, .dtype = COVEY_BFLOAT16, .places = 1 },
					    { .preset = COVEY_EP_WIN, .dtype = COVEY_BFLOAT16, .places = 1 } };
	struct CUstream_st *stream = (struct CUstream_st *)(uintptr_t)COVEY_STREAM_DEFAULT;
	struct covey_combine_args a;
	struct job *j = &jobs[0];
	int owner[E] = { 0 };

	for (int i = 0; i < 2; i++) {
		struct covey_ep_config c = ep_config(T, H, K, E);

		memset(j, 0, sizeof(*j));
		j->way = &plain[i];
		j->tokens = T;
		c.expert_owner = owner;
		c.preset = plain[i].preset;
		must(!covey_ep_create(m->group, &c, &j->ep), "create");
#define REFUSED(FIELD, VALUE, WHY) \
	do { \
		combine_args(j, &a); \
		a.FIELD = VALUE; \
		must_be_invalid(m->group, covey_combine(j->ep, &a, NULL, NULL), WHY); \
	} while (0)
		j->zero = ZERO, j->copies = COPIES, j->constants = CONSTANTS;
		REFUSED(x, NULL, "x must not be NULL");
		REFUSED(constant_a1, NULL, "constant_a1, constant_a2 and constant_v");
		REFUSED(constant_a2, NULL, "constant_a1, constant_a2 and constant_v");
		REFUSED(constant_v, NULL, "constant_a1, constant_a2 and constant_v");
		REFUSED(weights, NULL, "weights must not be NULL");
		REFUSED(zero_experts, -1, "are -1, 2 and 3");
		REFUSED(copy_experts, INT32_MAX, "below 2^31");
		combine_args(j, &a);
		must_refuse(m->group, covey_combine(j->ep, &a, stream, NULL), COVEY_ERR_UNSUPPORTED,
			    "are for host memory");
		j->zero = j->copies = j->constants = 0;
		combine_args(j, &a);
		a.bias = j->bias;
		must_refuse(m->group, covey_combine(j->ep, &a, stream, NULL), COVEY_ERR_UNSUPPORTED,
			    "bias and zero, copy and constant experts are for host memory");
		if (plain[i].preset == COVEY_EP_COMPACT) /* rows of several experts have no factor */
			REFUSED(expert_scale, factor, "expert_scale differs by expert");
		covey_ep_destroy(j->ep);
	}
}

HARNESS_MAIN(.name = "collectives/ep_terms")
