/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a run by plan: a row for every kind of fault, and the verdict. */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

static void row(const struct chaos_run *run, int kind, double *wait_ms)
{
	int n = 0;

	for (int i = 0; i < run->events; i++)
		if (run->event[i].kind == kind)
			wait_ms[n++] = (double)run->event[i].longest_ns / 1e6;
	qsort(wait_ms, (size_t)n, sizeof(*wait_ms), tool_ascending);
	printf("%-28s %6d %10.2f %10.2f %10.2f\n", run->kind[kind], n, wait_ms[n / 2], wait_ms[n * 99 / 100],
	       wait_ms[n - 1]);
}

static void made(const struct chaos_run *run)
{
	printf("%llu handles of changing sizes made, %llu registered buffers\n", (unsigned long long)run->handles,
	       (unsigned long long)run->blocks);
}

/* A mistake that was not found had no member with another call left: the judge counts any other as a fault. */
static void mistakes(const struct chaos_run *run)
{
	uint64_t made = 0, found = 0;

	printf("%-28s %6s %6s\n", "wrong call", "made", "found");
	for (int s = 0; s < CHAOS_L_COUNTED; s++) {
		made += run->slips[s];
		found += run->found[s];
		if (run->slips[s])
			printf("%-28s %6llu %6llu\n", chaos_slip_names[s], (unsigned long long)run->slips[s],
			       (unsigned long long)run->found[s]);
	}
	printf("%llu wrong calls made, %llu found, the others where nobody was left who called anything else\n",
	       (unsigned long long)made, (unsigned long long)found);
}

void chaos_table(struct chaos_run *run)
{
	double *wait = malloc((size_t)(run->events + 1) * sizeof(*wait));

	printf("%-28s %6s %10s %10s %10s   longest wait of an operation, ms\n", "fault", "n", "p50", "p99", "max");
	for (int k = 0; wait && k < run->kinds; k++)
		row(run, k, wait);
	free(wait);
	printf("%d faults in %d rounds, %llu operations checked, %llu of them lost or without their root, "
	       "%llu ranks fenced (%llu false alarms), %d wrong, %.1f s\n",
	       run->events, run->rounds, (unsigned long long)run->checked, (unsigned long long)run->failed,
	       (unsigned long long)run->fenced, (unsigned long long)run->alarms, run->wrong,
	       (double)(run->end_ns - run->start_ns) / 1e9);
	if (run->crew->mix.handles)
		made(run);
	if (run->crew->mix.mistakes)
		mistakes(run);
	if (run->crew->devices)
		printf("%llu of the operations were on device memory\n", (unsigned long long)run->on_device);
	printf("plan %s seed %llu: %s\n", run->plan.name, (unsigned long long)run->opt->seed,
	       run->wrong ? "NOT HELD" : "held");
}
