/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row: out of place, then in place. Each warms up, times all iterations back to back (throughput time, as in
 * nccl-tests, with buffers that stay in the caches), takes single times in a second loop, and checks a fresh operation
 * byte by byte.
 */
#include "perf.h"

/* Equal blocks, for operations with counts and places. */
static size_t counts[COVEY_MAX_RANKS], displs[COVEY_MAX_RANKS];

void perf_set_up(struct perf_job *job, const struct perf_row *row, bool in_place, struct operation_call *call)
{
	const struct operation *op = job->opt.op;
	size_t own = (size_t)job->rank * row->count * perf_types[row->type].bytes;

	*call = (struct operation_call){ .send = job->send,
					 .recv = job->recv,
					 .count = row->count,
					 .dtype = perf_types[row->type].dtype,
					 .redop = row->redop < 0 ? 0 : perf_redops[row->redop].redop,
					 .root = row->root < 0 ? 0 : row->root,
					 .rank = job->rank,
					 .size = job->size,
					 .send_counts = counts,
					 .send_displs = displs,
					 .recv_counts = counts,
					 .recv_displs = displs,
					 .group = job->group };
	for (int r = 0; r < job->size; r++) {
		counts[r] = row->count;
		displs[r] = row->count * (size_t)r;
	}
	if (!in_place)
		return;
	if (op->send_blocks && !op->recv_blocks)
		call->recv = job->send + own;
	else if (!op->send_blocks && op->recv_blocks)
		call->send = job->recv + own;
	else
		call->send = job->recv;
}

/* A device has no alltoall in place. */
static bool has_in_place(const struct perf_job *job)
{
	const struct operation *op = job->opt.op;

	return !op->no_data && op->of != OP_OF_BEFORE && !(job->device && op->send_blocks && op->recv_blocks);
}

static double factor(const struct operation *op, int n)
{
	return op->others ? op->factor * (n - 1) / n : op->factor;
}

static int loop(struct perf_job *job, const struct operation_call *call, int n)
{
	int (*run)(const struct operation_call *) = job->opt.op->call;
	int err = 0;

	for (int i = 0; i < n && !err; i++)
		err = run(call);
	return err;
}

static int together(struct perf_job *job)
{
	return covey_barrier(job->group, NULL, NULL);
}

/* Of the rank, or over the ranks, as -a says. */
int perf_combined(struct perf_job *job, double *us)
{
	static const int redop[] = { COVEY_SUM, COVEY_SUM, COVEY_MIN, COVEY_MAX };
	int err;

	if (job->opt.average == PERF_OF_RANK0 && !perf_speaks(job))
		*us = 0;
	err = perf_agree(job, us, redop[job->opt.average]);
	if (job->opt.average == PERF_OF_AVG)
		*us /= perf_live(job);
	return err;
}

static int mean(struct perf_job *job, const struct operation_call *call, double *us)
{
	uint64_t start;
	int err = together(job);

	start = tool_now_ns();
	if (!err)
		err = loop(job, call, job->opt.iters);
	*us = (double)(tool_now_ns() - start) / 1000 / job->opt.iters;
	return err ? err : perf_combined(job, us);
}

static int quantiles(struct perf_job *job, const struct operation_call *call, struct perf_side *side)
{
	struct perf_hist *hist = job->hist;
	uint64_t start;
	int err = together(job);

	perf_hist_clear(hist);
	for (int i = 0; i < job->opt.iters && !err; i++) {
		start = tool_now_ns();
		err = job->opt.op->call(call);
		perf_hist_add(hist, tool_now_ns() - start);
	}
	if (!err)
		err = perf_hist_merge(job, hist);
	side->p50_us = perf_hist_us(hist, 0.5);
	side->p99_us = perf_hist_us(hist, 0.99);
	side->min_us = (double)hist->min_ns / 1000;
	side->max_us = (double)hist->max_ns / 1000;
	return err;
}

/* One operation on the filled buffers; copies its results to where they are checked. */
static int once(struct perf_job *job, const struct operation_call *call)
{
	int err;

	if (!job->device)
		return job->opt.op->call(call);
	err = perf_device_copy(job, false);
	if (!err)
		err = perf_device_once(job, call);
	return err ? err : perf_device_copy(job, true);
}

static int check(struct perf_job *job, const struct perf_row *row, const struct operation_call *call, int64_t *wrong)
{
	int err = 0;

	*wrong = 0;
	for (int i = 0; i < job->opt.checks && !err; i++) {
		perf_fill(job, row, call);
		err = together(job); /* a slow rank may still read the filled buffer */
		if (!err)
			err = once(job, call);
		if (!err && job->opt.spoil && perf_speaks(job))
			perf_spoil(job, row, call);
		if (!err)
			*wrong += perf_wrong(job, row, call);
	}
	if (!err)
		err = perf_agree_counts(job, wrong, 1);
	if (!job->opt.checks)
		*wrong = -1;
	return err;
}

static int on_host(struct perf_job *job, const struct operation_call *call, struct perf_side *side)
{
	int err = loop(job, call, job->opt.warmup);

	if (!err)
		err = mean(job, call, &side->us);
	return err ? err : quantiles(job, call, side);
}

static int on_device(struct perf_job *job, const struct operation_call *call, struct perf_side *side)
{
	int err = perf_device_copy(job, false);

	return err ? err : perf_device_measure(job, call, side);
}

static int side_of(struct perf_job *job, const struct perf_row *row, bool in_place, struct perf_side *side)
{
	struct operation_call call;
	double bytes = (double)row->count * (double)perf_types[row->type].bytes *
		       (operation_has_blocks(job->opt.op) ? job->size : 1);
	int err;

	perf_set_up(job, row, in_place, &call);
	perf_fill(job, row, &call);
	err = job->device ? on_device(job, &call, side) : on_host(job, &call, side);
	if (!err)
		err = check(job, row, &call, &side->wrong);
	side->algbw = side->us > 0 ? bytes / side->us / 1000 : 0;
	side->busbw = side->algbw * factor(job->opt.op, perf_live(job));
	side->measured = true;
	return err;
}

static void count_in(struct perf_job *job, const struct perf_side *side)
{
	job->wrong += side->wrong > 0 ? side->wrong : 0;
	job->busbw_sum += side->busbw;
	job->busbw_count++;
}

int perf_measure(struct perf_job *job, struct perf_row *row)
{
	int err = side_of(job, row, false, &row->out);

	row->ranks = perf_live(job);
	if (!err)
		count_in(job, &row->out);
	if (!err && has_in_place(job)) {
		err = side_of(job, row, true, &row->in);
		if (!err)
			count_in(job, &row->in);
	}
	return err;
}
