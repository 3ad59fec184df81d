/* SPDX-License-Identifier: Apache-2.0 */
/*
 * -F kill:RANK@ITER. After the first row was measured, iterations run once more. Before number ITER all agree on a time
 * shortly ahead. The victim waits for it outside, the others inside the operation; then the victim strikes itself. Two
 * times count from the stroke: detect, until the first survivor's first event says SUSPECT; recover, until the last
 * survivor returned from the first operation of the next view. Epochs are the same on all survivors, so all end that
 * loop at the same operation. Times of different processes are compared: the ranks are on one host.
 *
 * A stopped rank is woken by the others at their end, or by a timer. It must find that it was removed, and ends.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

#define AHEAD_NS 5e7 /* by then all are back from the agreement */
#define STOPPED_S 20 /* if no rank wakes it */
#define NEVER_US 1e12
#define MOST_OPERATIONS 2000 /* the same on all ranks; far more than complete before a missing rank is noticed */

struct stroke {
	double at_ns, pid; /* of the victim, by its clock */
	uint32_t epoch;	   /* before it */
};

static int agree_on(struct perf_job *job, struct stroke *stroke)
{
	bool victim = job->rank == job->opt.fault_rank;
	int err;

	stroke->pid = victim ? getpid() : 0;
	err = perf_agree(job, &stroke->pid, COVEY_MAX);
	stroke->at_ns = victim ? (double)tool_now_ns() + AHEAD_NS : 0;
	return err ? err : perf_agree(job, &stroke->at_ns, COVEY_MAX);
}

/* Runs until an operation belongs to another view, or fails as it does on a removed rank. */
static int survive(struct perf_job *job, const struct operation_call *call, uint32_t epoch)
{
	int err = 0;

	for (int i = 0; i < MOST_OPERATIONS && !err; i++) {
		err = job->opt.op->call(call);
		if (call->result->epoch != epoch)
			break;
	}
	return err;
}

/* Ends the process, unless it was not removed: then it continues as the others do. */
static int be_struck(struct perf_job *job, const struct operation_call *call, const struct stroke *stroke)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT };
	struct itimerspec go_on = { .it_value.tv_sec = STOPPED_S };
	timer_t timer;
	int err;

	if (job->opt.fault == PERF_STOP &&
	    (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &go_on, NULL)))
		return COVEY_ERR_IO;
	while ((double)tool_now_ns() < stroke->at_ns)
		;
	kill(getpid(), job->opt.fault == PERF_STOP ? SIGSTOP : SIGKILL);
	err = survive(job, call, stroke->epoch);
	if (err > COVEY_ERR_FENCED)
		return err;
	covey_close(job->group);
	exit(PERF_OK);
}

/* The first suspicion of the victim since @at_ns, in us; NEVER_US: none here. */
static double suspected_us(struct perf_job *job, double at_ns)
{
	struct covey_event event;
	double first = NEVER_US;

	while (!covey_event_next(job->group, &event)) {
		double us = ((double)event.time_ns - at_ns) / 1000;

		if (event.kind == COVEY_EVENT_SUSPECT && event.rank == job->opt.fault_rank && us > 0 && us < first)
			first = us;
	}
	return first;
}

static int outcome(struct perf_job *job, struct perf_row *row, const struct operation_call *call,
		   const struct stroke *stroke)
{
	double recover = ((double)tool_now_ns() - stroke->at_ns) / 1000, detect = suspected_us(job, stroke->at_ns);
	int64_t wrong;
	int err = perf_agree(job, &recover, COVEY_MAX);

	if (!err)
		err = perf_agree(job, &detect, COVEY_MIN);
	if (err)
		return err;
	if (perf_live(job) == job->size) {
		fprintf(stderr, "ep-perf: rank %d: the stroke missed: nobody was lost\n", job->rank);
		return COVEY_ERR_PEER;
	}
	if (job->opt.fault == PERF_STOP && perf_speaks(job))
		kill((pid_t)stroke->pid, SIGCONT);
	wrong = job->opt.checks ? perf_wrong(job, row, call) : 0;
	err = perf_agree_counts(job, &wrong, 1);
	if (job->opt.checks)
		row->out.wrong += wrong;
	job->wrong += wrong;
	row->fault = (struct perf_fault){ .struck = true,
					  .recover_us = recover,
					  .detect_us = detect < NEVER_US ? detect : 0,
					  .left = perf_live(job) };
	return err;
}

int perf_strike(struct perf_job *job, struct perf_row *row)
{
	struct covey_result result = { 0 };
	struct stroke stroke = { 0 };
	struct operation_call call;
	int err = 0;

	perf_set_up(job, row, false, &call);
	perf_fill(job, row, &call);
	call.result = &result;
	for (int i = 1; i < job->opt.fault_iter && !err; i++)
		err = job->opt.op->call(&call);
	if (!err)
		err = agree_on(job, &stroke);
	/* The victim leaves this barrier only when everyone knows the time. */
	if (!err)
		err = covey_barrier(job->group, NULL, &result);
	if (err)
		return err;
	stroke.epoch = result.epoch;
	suspected_us(job, stroke.at_ns); /* old news */
	if (job->rank == job->opt.fault_rank)
		err = be_struck(job, &call, &stroke);
	else
		err = survive(job, &call, stroke.epoch);
	return err ? err : outcome(job, row, &call, &stroke);
}
