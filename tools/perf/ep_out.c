/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of dispatch and combine on device memory. */
#include <inttypes.h>

#include "perf.h"

void perf_print_pair_head(const struct perf_job *job)
{
	static const char *const of[] = { "rank 0's", "the average over the ranks", "the least over the ranks",
					  "the most over the ranks" };
	const struct perf_options *opt = &job->opt;

	printf("# ep-perf %s dispatch and combine, device memory, preset %s, rows %s, back %s, combine per %s, ranks "
	       "%d hidden %d topk %d experts %d\n",
	       COVEY_VERSION, perf_name_of(PERF_PRESETS, opt->preset), perf_name_of(PERF_ROWS, opt->rows),
	       perf_name_of(PERF_BACKS, opt->back), perf_combined_per(opt), job->size, opt->hidden, opt->topk,
	       opt->experts);
	printf("# warmup iters: %d iters: %d validation: %d graph: %d; times: %s, us; p50 and p99: of turns of the "
	       "pair\n",
	       opt->warmup, opt->iters, opt->checks, opt->graphs, of[opt->average]);
	printf("# bytes: rows that a rank sends to other ranks, average; form, steps: those of dispatch/combine\n#\n");
	printf("# %6s %6s %-11s %-7s  %11s %9s %7s  %11s %9s %7s  %9s %7s %9s %9s %6s\n", "tokens", "lanes", "form",
	       "steps", "bytes", "dispatch", "GB/s", "bytes", "combine", "GB/s", "pair", "GB/s", "p50", "p99",
	       "#wrong");
	fflush(stdout);
}

static double rate(double bytes, double us)
{
	return us > 0 ? bytes / us / 1000 : 0;
}

void perf_print_pair(const struct perf_job *job, const struct perf_pair_row *row)
{
	const struct perf_side *side = row->side;
	char form[16], steps[24];

	snprintf(form, sizeof(form), "%s/%s", row->bulk[0] ? "bulk" : "lines", row->bulk[1] ? "bulk" : "lines");
	snprintf(steps, sizeof(steps), "%d/%d", row->steps[0], row->steps[1]);
	printf("%8d %6d %-11s %-7s  %11.0f %9.2f %7.2f  %11.0f %9.2f %7.2f  %9.2f %7.2f %9.2f %9.2f", row->tokens,
	       row->lanes, form, steps, row->bytes[0], side[0].us, rate(row->bytes[0], side[0].us), row->bytes[1],
	       side[1].us, rate(row->bytes[1], side[1].us), side[2].us, rate(row->bytes[0] + row->bytes[1], side[2].us),
	       side[2].p50_us, side[2].p99_us);
	if (job->opt.checks)
		printf(" %6" PRId64 "\n", row->wrong);
	else
		printf(" %6s\n", "N/A");
	fflush(stdout);
}

static void print_split(const struct perf_pair_row *row, const char *name, const struct perf_split *s)
{
	printf("%8d %6d %-8s  %9.2f %9.2f %9.2f %9.2f  %9.2f %6.2f  %9.2f %6.2f\n", row->tokens, row->lanes, name,
	       s->send_us, s->busy_us, s->recv_us, s->all_us, s->alone_us,
	       s->alone_us > 0 ? s->busy_us / s->alone_us : 0, s->beside_us,
	       s->alone_us > 0 ? s->beside_us / s->alone_us : 0);
}

void perf_print_splits(const struct perf_job *job)
{
	printf("#\n# in two phases, one launch each; busy: a kernel of another stream that wants every processor, "
	       "between them;\n# held: busy / alone; beside: the same kernel, begun with the receive; us, medians of "
	       "%d turns\n",
	       job->opt.turns);
	printf("# %6s %6s %-8s  %9s %9s %9s %9s  %9s %6s  %9s %6s\n", "tokens", "lanes", "", "send", "busy", "receive",
	       "all", "alone", "held", "beside", "/alone");
	for (int i = 0; i < job->pair_row_count; i++) {
		print_split(&job->pair_rows[i], "dispatch", &job->pair_rows[i].split[0]);
		print_split(&job->pair_rows[i], "combine", &job->pair_rows[i].split[1]);
	}
	fflush(stdout);
}
