/* SPDX-License-Identifier: Apache-2.0 */
/* The table in nccl-tests' format, so that its readers read this one: our additional columns follow behind theirs. */
#include <inttypes.h>
#include <unistd.h>

#include "perf.h"

void perf_print_head(const struct perf_job *job)
{
	const struct perf_options *opt = &job->opt;

	printf("# ep-perf %s %s\n", COVEY_VERSION, opt->op->name);
	printf("# ranks %d minBytes %zu maxBytes %zu step: ", job->size, opt->min_bytes, opt->max_bytes);
	if (opt->factor > 0)
		printf("%g(factor)", opt->factor);
	else
		printf("%zu(bytes)", opt->step_bytes);
	printf(" warmup iters: %d iters: %d validation: %d graph: %d%s\n#\n", opt->warmup, opt->iters, opt->checks,
	       opt->graphs, job->device ? " device memory" : "");
	printf("# %67s %31s\n", "out-of-place", "in-place");
	printf("# %10s %12s %8s %6s %6s", "size", "count", "type", "redop", "root");
	for (int i = 0; i < 2; i++)
		printf("  %7s %6s %6s %6s", "time", "algbw", "busbw", "#wrong");
	printf("  %8s %8s %8s %8s%s%s\n", "p50", "p99", "p50", "p99",
	       job->device ? "      NCCL  times      NCCL  times" : "", opt->fault ? "   detect  recover  ranks" : "");
	printf("# %10s %12s %8s %6s %6s", "(B)", "(elements)", "", "", "");
	for (int i = 0; i < 2; i++)
		printf("  %7s %6s %6s %6s", "(us)", "(GB/s)", "(GB/s)", "");
	printf("  %8s %8s %8s %8s%s%s\n", "(us)", "(us)", "(us)", "(us)",
	       job->device ? "      (us)             (us)       " : "", opt->fault ? "     (us)     (us)" : "");
	fflush(stdout);
}

/* As many digits as fit in seven places. */
static void put_us(double us, int width)
{
	printf(" %*.*f", width, us < 1000 ? 2 : us < 100000 ? 1 : 0, us);
}

static void put_side(const struct perf_side *side)
{
	if (!side->measured) {
		printf("  %7s %6s %6s %6s", "N/A", "N/A", "N/A", "N/A");
		return;
	}
	putchar(' ');
	put_us(side->us, 7);
	printf(" %6.2f %6.2f", side->algbw, side->busbw);
	if (side->wrong < 0)
		printf(" %6s", "N/A");
	else
		printf(" %6" PRId64, side->wrong);
}

static void put_quantiles(const struct perf_side *side)
{
	if (!side->measured) {
		printf(" %8s %8s", "N/A", "N/A");
		return;
	}
	put_us(side->p50_us, 8);
	put_us(side->p99_us, 8);
}

/* NCCL's time, and its ratio to ours. */
static void put_nccl(const struct perf_side *side)
{
	if (!side->measured || side->nccl_us <= 0) {
		printf(" %9s %6s", "N/A", "N/A");
		return;
	}
	put_us(side->nccl_us, 9);
	printf(" %6.2f", side->us > 0 ? side->nccl_us / side->us : 0);
}

void perf_print_row(const struct perf_job *job, const struct perf_row *row)
{
	printf("%12zu %12zu %8s %6s %6d", row->bytes, row->count,
	       job->opt.op->no_data ? "none" : perf_types[row->type].name,
	       row->redop < 0 ? "none" : perf_redops[row->redop].name, row->root);
	put_side(&row->out);
	put_side(&row->in);
	putchar(' ');
	put_quantiles(&row->out);
	put_quantiles(&row->in);
	if (job->device) {
		put_nccl(&row->out);
		put_nccl(&row->in);
	}
	if (row->fault.struck) {
		put_us(row->fault.detect_us, 8);
		put_us(row->fault.recover_us, 8);
		printf(" %6d", row->fault.left);
	}
	putchar('\n');
	if (row->fault.struck)
		printf("# rank %d was %s: %d ranks from here\n", job->opt.fault_rank,
		       job->opt.fault == PERF_STOP ? "stopped" : "killed", row->fault.left);
	fflush(stdout);
}

void perf_print_foot(const struct perf_job *job, bool ok, double busbw)
{
	printf("# Out of bounds values : %" PRId64 " %s\n", job->wrong, job->wrong ? "FAILED" : "OK");
	if (job->opt.op)
		printf("# Avg bus bandwidth    : %g%s\n", busbw, ok || job->wrong ? "" : " FAILED: too little");
	fflush(stdout);
}
