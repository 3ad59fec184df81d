/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must come out, element by element: covey's documented sum, bit by bit, and the contest's own, which rounds to
 * fp16 at each addition, within the contest's tolerance.
 */
#include <math.h>
#include <stdlib.h>

#include "all2all.h"
#include "hosts.h"

#define RELATIVE 1e-2f
#define ABSOLUTE 5e-3f

/* The tables of all owners, one after the other: on a rank whose check it is, not in what is measured. */
static float *tables(const struct perf_a2a *a)
{
	size_t count = (size_t)a->local + (size_t)a->shape->hidden;
	float *all = malloc((size_t)a->job->size * count * sizeof(*all));

	for (int r = 0; all && r < a->job->size; r++)
		perf_shape_table(a->shape, r, count, all + (size_t)r * count);
	return all;
}

struct terms {
	float of[PERF_A2A_TOPK]; /* weight times what the expert gives */
	int owner[PERF_A2A_TOPK], count;
};

/* On devices a combine that sums by rank has the factor in the weight. */
static bool in_weights(const struct perf_a2a *a, const struct perf_way *way)
{
	return way->by_options && perf_a2a_fused(a) && a->job->device && a->job->opt.combine == COVEY_EP_PER_RANK;
}

static void make_terms(const struct perf_a2a *a, const struct perf_way *way, const float *all, int t, int h,
		       struct terms *to)
{
	size_t each = (size_t)a->local + (size_t)a->shape->hidden;
	uint16_t x = a->x[(size_t)t * (size_t)a->shape->hidden + (size_t)h];

	to->count = a->shape->topk;
	for (int k = 0; k < to->count; k++) {
		int at = t * to->count + k, owner = a->ids[at] / a->local, local = a->ids[at] % a->local;
		float factor = perf_a2a_factor(a, all + (size_t)owner * each, owner, local, h);

		to->owner[k] = owner;
		if (in_weights(a, way))
			to->of[k] = a->weights[at] * factor * perf_of_half(x);
		else
			to->of[k] = a->weights[at] * perf_of_half(perf_a2a_times(x, factor));
	}
}

static float in_order(const struct terms *of, int owner)
{
	float sum = 0;

	for (int k = 0; k < of->count; k++)
		if (owner < 0 || of->owner[k] == owner)
			sum += of->of[k];
	return sum;
}

static bool names(const struct terms *of, int owner)
{
	for (int k = 0; k < of->count; k++)
		if (of->owner[k] == owner)
			return true;
	return false;
}

/* Results of the ranks of one host, which a forwarder adds and rounds; or of the one rank @by. */
static float brought(const struct perf_a2a *a, const struct terms *of, const struct cvy_ep_hosts *hosts, int by)
{
	const uint32_t ranks = cvy_ep_of_one_host(hosts, a->job->rank, by) ? 1u << by : hosts->of[by];
	float sum = 0;

	for (int r = 0; r < a->job->size; r++)
		if (ranks >> r & 1 && names(of, r))
			sum += perf_of_half(perf_half(in_order(of, r)));
	return perf_of_half(perf_half(sum));
}

/* HT on devices: ranks of this host, and of each other host the forwarder, ascending. */
static float over_two_hops(const struct perf_a2a *a, const struct terms *of)
{
	const struct cvy_ep_hosts hosts = perf_hosts_all(a->job);
	float sum = 0;

	for (int r = 0; r < a->job->size; r++)
		if (cvy_ep_of_one_host(&hosts, a->job->rank, r) || cvy_ep_forwards(&hosts, r, a->job->rank))
			sum += brought(a, of, &hosts, r);
	return sum;
}

static uint16_t documented(const struct perf_a2a *a, const struct perf_way *way, const struct terms *of)
{
	const bool compact = perf_once(a->job->opt.preset);
	float sum = 0;

	if (way->by_options && a->job->device && a->job->opt.preset == COVEY_EP_HT)
		return perf_half(over_two_hops(a, of));
	if (!way->by_options || (!compact && a->job->opt.combine != COVEY_EP_PER_RANK))
		return perf_half(in_order(of, -1));
	for (int r = 0; r < a->job->size; r++) {
		float here = in_order(of, r);

		if (names(of, r))
			sum += r == a->job->rank && !compact ? here : perf_of_half(perf_half(here));
	}
	return perf_half(sum);
}

static bool is_far(const struct terms *of, uint16_t got)
{
	float want = 0;

	for (int k = 0; k < of->count; k++)
		want = perf_of_half(perf_half(want + of->of[k]));
	return !(fabsf(perf_of_half(got) - want) <= ABSOLUTE + RELATIVE * fabsf(want)); /* a NaN is far */
}

int perf_a2a_check(const struct perf_a2a *a, const struct perf_way *way, const uint16_t *out,
		   struct perf_a2a_time *time)
{
	float *all = tables(a);
	struct terms terms;

	if (!all)
		return COVEY_ERR_NOMEM;
	for (int t = 0; t < a->n; t++)
		for (int h = 0; h < a->shape->hidden; h++) {
			uint16_t got = out[(size_t)t * (size_t)a->shape->hidden + (size_t)h];

			make_terms(a, way, all, t, h, &terms);
			time->wrong += got != documented(a, way, &terms);
			time->far += is_far(&terms, got);
		}
	free(all);
	return 0;
}
