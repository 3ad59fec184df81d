/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both sides of the allreduce benchmark share, so that they differ in one call only: sizes,
 * repetitions, data, checks, timing, output. A side defines `struct side` functions and calls
 * bench_main(). Input is not zero (zeros are copied faster) and sums of it are exact in f32.
 *
 * A line per size: `bytes operations mean_us p50_us`, the mean being loop time / operations, the
 * largest over the ranks; the p50 is of a second loop, on rank 0, since taking times costs time.
 */
#ifndef BENCH_H
#define BENCH_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench_side {
	int rank, ranks;
	int (*allreduce)(const float *send, float *recv, size_t count); /* 0: done */
	int (*barrier)(void);
	int (*max)(double *value); /* over all ranks */
};

static const size_t bench_bytes[] = { 8, 1024, 8192, 65536, 1048576, 16777216 };
static const int bench_operations[] = { 200000, 100000, 40000, 10000, 1000, 60 };

#define BENCH_SIZES (sizeof(bench_bytes) / sizeof(bench_bytes[0]))
#define BENCH_SHARED_CORE_FACTOR 4 /* fewer operations with more ranks than cores */

static inline uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * With a core for each rank, the calling thread gets one of its own; else placement is left to the
 * kernel. Called after the library has started, so that it counted the cores of the machine.
 */
static inline int bench_pin(int rank, int ranks)
{
	cpu_set_t all, one;
	int nth = 0;

	if (sched_getaffinity(0, sizeof(all), &all) || CPU_COUNT(&all) < ranks)
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || nth++ != rank)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return !sched_setaffinity(0, sizeof(one), &one);
	}
	return 0;
}

static inline float bench_value(int rank, size_t i)
{
	return (float)(rank + 1) * (float)(i % 251 + 1);
}

/* Each element is compared: a sum of small integers has one right value. */
static inline int bench_check(const struct bench_side *side, const float *recv, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		float want = 0;

		for (int r = 0; r < side->ranks; r++)
			want += bench_value(r, i);
		if (recv[i] == want)
			continue;
		fprintf(stderr, "rank %d: element %zu of %zu is %g, not %g\n", side->rank, i, count, (double)recv[i],
			(double)want);
		return -1;
	}
	return 0;
}

static inline int bench_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static inline int bench_loop(const struct bench_side *side, const float *send, float *recv, size_t count, int n,
			     double *mean_us)
{
	uint64_t start;

	if (side->barrier())
		return -1;
	start = bench_now_ns();
	for (int i = 0; i < n; i++)
		if (side->allreduce(send, recv, count))
			return -1;
	*mean_us = (double)(bench_now_ns() - start) / 1000 / n;
	return side->max(mean_us);
}

static inline int bench_median(const struct bench_side *side, const float *send, float *recv, size_t count, int n,
			       double *p50_us)
{
	uint64_t *took = malloc((size_t)n * sizeof(*took)), start;
	int err = took ? side->barrier() : -1;

	for (int i = 0; i < n && !err; i++) {
		start = bench_now_ns();
		err = side->allreduce(send, recv, count);
		took[i] = bench_now_ns() - start;
	}
	if (!err) {
		qsort(took, (size_t)n, sizeof(*took), bench_compare);
		*p50_us = (double)took[n / 2] / 1000;
	}
	free(took);
	return err;
}

static inline int bench_size(const struct bench_side *side, size_t bytes, int n)
{
	size_t count = bytes / sizeof(float), room = (bytes + 4095) / 4096 * 4096;
	float *send = aligned_alloc(4096, room), *recv = aligned_alloc(4096, room);
	double mean_us = 0, p50_us = 0;
	int err = -1;

	if (!send || !recv)
		goto out;
	for (size_t i = 0; i < count; i++)
		send[i] = bench_value(side->rank, i);
	memset(recv, 1, room);
	for (int i = 0; i < n / 10 + 2; i++)
		if (side->allreduce(send, recv, count))
			goto out;
	if (bench_check(side, recv, count) || bench_loop(side, send, recv, count, n, &mean_us))
		goto out;
	memset(recv, 1, room);
	if (bench_median(side, send, recv, count, n, &p50_us) || bench_check(side, recv, count))
		goto out;
	if (!side->rank)
		printf("%zu %d %.4f %.4f\n", bytes, n, mean_us, p50_us);
	err = 0;
out:
	free(send);
	free(recv);
	return err;
}

static inline int bench_main(const struct bench_side *side)
{
	int shared = sysconf(_SC_NPROCESSORS_ONLN) < side->ranks;

	bench_pin(side->rank, side->ranks);
	for (size_t i = 0; i < BENCH_SIZES; i++) {
		int n = bench_operations[i] / (shared ? BENCH_SHARED_CORE_FACTOR : 1);

		if (bench_size(side, bench_bytes[i], n)) {
			fprintf(stderr, "rank %d: allreduce of %zu bytes failed\n", side->rank, bench_bytes[i]);
			return 1;
		}
	}
	return 0;
}

#endif
