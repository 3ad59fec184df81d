/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --split: dispatch and combine in two phases, with a kernel of another stream between them. That kernel wants every
 * processor for itself (tool.h): if the operation held one, it would take twice as long. So three times of it
 * stand side by side: alone, between the phases (events order it behind the send and the receive behind it), and begun
 * together with the receive, whose lanes do hold processors.
 *
 * Phases are launched one by one: a graph would have no marks inside. Another busy kernel stands before each turn, so
 * that all launches of the turn are queued before the first one runs.
 */
#include <stdlib.h>

#include "device.h"

#define ABOUT_US 100 /* that the busy kernel takes */
#define FIRST_ROUNDS 256
#define MOST_ROUNDS (1 << 22)

enum mark { BEGUN, SENT, BUSY_BEGUN, BUSY_ENDED, RECEIVES, RECEIVED, ALONE_BEGUN, ALONE_ENDED };
enum { SEND, BUSY, RECEIVE, ALL, ALONE, BESIDE, TIMES };

struct split {
	struct perf_pair *pair;
	struct CUstream_st *other;
	int rounds;
	bool combine, beside;
	double *us[TIMES]; /* [turns] */
};

static int send(struct perf_job *job, const struct split *s)
{
	return s->combine ? covey_combine_send(s->pair->ep, &s->pair->back, job->device->stream)
			  : covey_dispatch_send(s->pair->ep, &s->pair->to, job->device->stream);
}

static int receive(const struct split *s)
{
	return s->combine ? covey_combine_recv(s->pair->ep, 0, NULL) : covey_dispatch_recv(s->pair->ep, 0, NULL);
}

/* The busy kernel on the other stream, behind all that is on ours. */
static int busy(const struct perf_job *job, const struct split *s, enum mark begun, enum mark ended)
{
	const struct cvy_gpu_tool *tool = job->device->tool;
	int err = tool->order(job->device->stream, s->other);

	if (!err)
		err = tool->mark(s->other, begun);
	if (!err)
		err = tool->busy(s->other, s->rounds);
	return err ? err : tool->mark(s->other, ended);
}

static int first_phase(struct perf_job *job, const struct split *s)
{
	const struct cvy_gpu_tool *tool = job->device->tool;
	struct CUstream_st *own = job->device->stream;
	int err = tool->busy(own, 2 * s->rounds);

	if (!err)
		err = covey_barrier(job->group, own, NULL);
	if (!err)
		err = tool->mark(own, BEGUN);
	if (!err)
		err = send(job, s);
	return err ? err : tool->mark(own, SENT);
}

static int second_phase(struct perf_job *job, const struct split *s)
{
	const struct cvy_gpu_tool *tool = job->device->tool;
	struct CUstream_st *own = job->device->stream;
	int err = s->beside ? 0 : tool->order(s->other, own);

	if (!err)
		err = tool->mark(own, RECEIVES);
	if (!err)
		err = receive(s);
	if (!err)
		err = tool->mark(own, RECEIVED);
	if (!err)
		err = tool->order(s->other, own); /* in either case: one wait is for both streams */
	return err ? err : busy(job, s, ALONE_BEGUN, ALONE_ENDED);
}

static int turn(struct perf_job *job, struct split *s, int at)
{
	static const struct {
		enum mark from, to;
	} times[] = { [SEND] = { BEGUN, SENT },
		      [BUSY] = { BUSY_BEGUN, BUSY_ENDED },
		      [RECEIVE] = { RECEIVES, RECEIVED },
		      [ALL] = { BEGUN, RECEIVED },
		      [ALONE] = { ALONE_BEGUN, ALONE_ENDED } };
	const struct cvy_gpu_tool *tool = job->device->tool;
	int err = first_phase(job, s);

	if (!err)
		err = busy(job, s, BUSY_BEGUN, BUSY_ENDED);
	if (!err)
		err = second_phase(job, s);
	if (!err)
		err = tool->wait(s->other);
	if (s->beside)
		return err ? err : tool->between(BUSY_BEGUN, BUSY_ENDED, &s->us[BESIDE][at]);
	for (int i = SEND; i <= ALONE && !err; i++)
		err = tool->between(times[i].from, times[i].to, &s->us[i][at]);
	return err;
}

/* About as long on all ranks, and on any device. */
static int choose_rounds(struct perf_job *job, struct split *s)
{
	double us = 0, rounds;
	int err = 0;

	s->rounds = FIRST_ROUNDS;
	for (int i = 0; i < 2 && !err; i++) /* the first one loads it */
		err = busy(job, s, ALONE_BEGUN, ALONE_ENDED);
	if (!err)
		err = job->device->tool->wait(s->other);
	if (!err)
		err = job->device->tool->between(ALONE_BEGUN, ALONE_ENDED, &us);
	if (err)
		return perf_device_failed(job, "a busy kernel", err);
	rounds = us > 0 && us < ABOUT_US ? FIRST_ROUNDS * ABOUT_US / us : FIRST_ROUNDS;
	err = perf_agree(job, &rounds, COVEY_MAX);
	s->rounds = rounds < MOST_ROUNDS ? (int)rounds : MOST_ROUNDS;
	return err;
}

static int sum_up(struct perf_job *job, struct split *s, struct perf_split *out)
{
	double *const to[TIMES] = { &out->send_us, &out->busy_us,  &out->recv_us,
				    &out->all_us,  &out->alone_us, &out->beside_us };
	int err = 0;

	for (int i = 0; i < TIMES && !err; i++) {
		qsort(s->us[i], (size_t)job->opt.turns, sizeof(*s->us[i]), tool_ascending);
		*to[i] = s->us[i][job->opt.turns / 2];
		err = perf_combined(job, to[i]);
	}
	return err;
}

static int one(struct perf_job *job, struct split *s, struct perf_split *out)
{
	int err = 0;

	for (int i = -job->opt.warmup; i < job->opt.turns && !err; i++)
		for (int beside = 0; beside < 2 && !err; beside++) {
			s->beside = beside;
			err = turn(job, s, i < 0 ? 0 : i);
		}
	return err ? perf_device_failed(job, "a turn in two phases", err) : sum_up(job, s, out);
}

int perf_split(struct perf_job *job, struct perf_pair *pair)
{
	struct split s = { .pair = pair };
	double *us = calloc((size_t)(TIMES * job->opt.turns), sizeof(*us));
	int err = us ? job->device->tool->stream(&s.other) : COVEY_ERR_NOMEM;

	if (err) {
		free(us);
		return perf_device_failed(job, "a second stream", err);
	}
	for (int i = 0; i < TIMES; i++)
		s.us[i] = us + i * job->opt.turns;
	err = choose_rounds(job, &s);
	for (int i = 0; i < 2 && !err; i++) {
		s.combine = i;
		err = one(job, &s, &pair->row->split[i]);
	}
	job->device->tool->stream_end(s.other);
	free(us);
	return err;
}
