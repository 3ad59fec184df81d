/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of times: powers of two, each in PERF_SUB steps, so a quantile is off by less than two per cent. Each
 * time needs two readings of the clock, so a loop of its own fills it, and the mean comes from a loop without.
 */
#include <string.h>

#include "perf.h"

void perf_hist_clear(struct perf_hist *hist)
{
	memset(hist, 0, sizeof(*hist));
	hist->min_ns = UINT64_MAX;
}

/* Below PERF_SUB a bucket is one ns; above, the top PERF_SUB_BITS bits below the leading one choose it. */
static size_t bucket_of(uint64_t ns)
{
	int shift;
	size_t at;

	if (ns < PERF_SUB)
		return (size_t)ns;
	shift = 63 - __builtin_clzll(ns) - PERF_SUB_BITS;
	at = ((size_t)shift + 1) * PERF_SUB + ((ns >> shift) & (PERF_SUB - 1));
	return at < PERF_BUCKETS ? at : PERF_BUCKETS - 1;
}

static double middle_ns(size_t bucket)
{
	int shift;

	if (bucket < PERF_SUB)
		return (double)bucket;
	shift = (int)(bucket / PERF_SUB) - 1;
	return ((double)(bucket % PERF_SUB) + PERF_SUB + 0.5) * (double)(UINT64_C(1) << shift);
}

void perf_hist_add(struct perf_hist *hist, uint64_t ns)
{
	hist->count[bucket_of(ns)]++;
	hist->min_ns = ns < hist->min_ns ? ns : hist->min_ns;
	hist->max_ns = ns > hist->max_ns ? ns : hist->max_ns;
}

/* The time that @part of all do not exceed, in us; never outside the measured range. */
double perf_hist_us(const struct perf_hist *hist, double part)
{
	int64_t all = 0, seen = 0, rank;
	double ns = 0;

	for (size_t i = 0; i < PERF_BUCKETS; i++)
		all += hist->count[i];
	if (!all)
		return 0;
	rank = (int64_t)(part * (double)all);
	rank = rank < all ? rank : all - 1;
	for (size_t i = 0; i < PERF_BUCKETS && seen <= rank; i++) {
		seen += hist->count[i];
		ns = middle_ns(i);
	}
	ns = ns < (double)hist->min_ns ? (double)hist->min_ns : ns;
	ns = ns > (double)hist->max_ns ? (double)hist->max_ns : ns;
	return ns / 1000;
}

/* All ranks' times in one. */
int perf_hist_merge(struct perf_job *job, struct perf_hist *hist)
{
	double min = (double)hist->min_ns, max = (double)hist->max_ns;
	int err = perf_agree_counts(job, hist->count, PERF_BUCKETS);

	if (!err)
		err = perf_agree(job, &min, COVEY_MIN);
	if (!err)
		err = perf_agree(job, &max, COVEY_MAX);
	hist->min_ns = (uint64_t)min;
	hist->max_ns = (uint64_t)max;
	return err;
}
