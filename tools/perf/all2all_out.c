/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all2all. */
#include <inttypes.h>
#include <math.h>

#include "all2all.h"

static const char *const names[PERF_WAYS] = { "covey",	    "nccl",	    "heap-peer", "heap-token",
					      "heap-fused", "heap-noclear", "heap-even" };

const char *perf_a2a_way(int way)
{
	return way < PERF_WAYS ? names[way] : NULL;
}

const char *perf_a2a_expert(int expert)
{
	return expert == PERF_BY_VECTOR ? "vector" : "rank";
}

static const char *again(const struct perf_job *job)
{
	return !job->device ? "loop" : job->opt.graphs ? "graph" : "stream";
}

void perf_print_a2a_head(const struct perf_job *job)
{
	const struct perf_options *opt = &job->opt;

	printf("# ep-perf %s all2all, %s memory, preset %s, combine per %s, float16, ranks %d\n", COVEY_VERSION,
	       job->device ? "device" : "host", perf_name_of(PERF_PRESETS, opt->preset), perf_combined_per(opt),
	       job->size);
	if (opt->fused)
		printf("# fused: the combine of covey multiplies by 1 + the rank; there is no step of experts\n");
	if (job->device)
		printf("# wall: 256 MiB are written, ranks meet, inputs are cloned, dispatch, experts and combine, "
		       "ranks meet; mean of %d\n# %s: back to back; median of %d turns of %d\n"
		       "# nccl: grouped sends and receives, in the graph with counts of before; heap: kernels on "
		       "memory that "
		       "all map\n",
		       opt->repeats, again(job), opt->turns, opt->iters);
	else
		printf("# wall: ranks meet, dispatch, experts and combine, ranks meet; mean of %d\n"
		       "# loop: back to back; mean of %d\n"
		       "# nccl and heap: left out, they need devices (--device)\n",
		       opt->repeats, opt->iters);
	printf("# floor: a wall without the pair; wire: each token once for each rank, there and back, %d GB/s\n"
	       "# tokens: of all ranks; #wrong: elements with other bits than documented; #far: outside the contest's "
	       "tolerance\n"
	       "#\n# %5s %4s %3s %6s %4s %6s %-6s %-12s %9s %9s %9s %9s %7s %6s %6s\n",
	       PERF_WIRE_GBS, "shape", "E", "K", "H", "T", "tokens", "expert", "way", "wall", "floor", again(job),
	       "wire", "x wire", "#wrong", "#far");
	fflush(stdout);
}

/* Of host memory, or of one rank alone, there is no wire. */
static void put_wire(const struct perf_job *job, double us, double wire_us)
{
	if (job->device && wire_us > 0)
		printf(" %9.2f %7.2f", wire_us, us / wire_us);
	else
		printf(" %9s %7s", "N/A", "N/A");
}

void perf_print_a2a(const struct perf_job *job, const struct perf_a2a_row *row)
{
	const struct perf_shape *s = &perf_shapes[row->shape];

	for (int w = 0; w < PERF_WAYS; w++) {
		const struct perf_a2a_time *t = &row->way[w];

		if (!t->measured)
			continue;
		printf("%7d %4d %3d %6d %4d %6d %-6s %-12s %9.2f %9.2f %9.2f", row->shape + 1, s->experts, s->topk,
		       s->hidden, s->tokens, row->tokens, perf_a2a_expert(row->expert), names[w], t->wall_us,
		       row->floor_us, t->again_us);
		put_wire(job, t->again_us, row->wire_us);
		if (job->opt.checks)
			printf(" %6" PRId64 " %6" PRId64 "\n", t->wrong, t->far);
		else
			printf(" %6s %6s\n", "N/A", "N/A");
	}
	fflush(stdout);
}

static double value(const struct perf_a2a_row *row, int way, enum perf_a2a_what what)
{
	const double all[] = { row->way[way].wall_us, row->floor_us, row->way[way].again_us, row->wire_us };

	return all[what];
}

double perf_a2a_mean(const struct perf_job *job, int expert, int way, enum perf_a2a_what what)
{
	double sum = 0;
	int n = 0;

	for (int i = 0; i < job->a2a_row_count; i++) {
		const struct perf_a2a_row *row = &job->a2a_rows[i];

		if (row->expert != expert || !row->way[way].measured || value(row, way, what) <= 0)
			continue;
		sum += log(value(row, way, what));
		n++;
	}
	return n ? exp(sum / n) : 0;
}

void perf_print_a2a_means(const struct perf_job *job)
{
	printf("#\n# geometric means over %d shape%s\n", job->opt.shapes.count, job->opt.shapes.count > 1 ? "s" : "");
	for (int expert = PERF_BY_RANK; expert <= PERF_BY_VECTOR; expert++)
		for (int w = 0; w < PERF_WAYS; w++) {
			double wall = perf_a2a_mean(job, expert, w, PERF_A2A_WALL);
			double us = perf_a2a_mean(job, expert, w, PERF_A2A_AGAIN);

			if (wall <= 0)
				continue;
			printf("# %33s %-6s %-12s %9.2f %9.2f %9.2f", "", perf_a2a_expert(expert), names[w], wall,
			       perf_a2a_mean(job, expert, w, PERF_A2A_FLOOR), us);
			put_wire(job, us, perf_a2a_mean(job, expert, w, PERF_A2A_WIRE));
			putchar('\n');
		}
	fflush(stdout);
}
