/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of a way. As the contest takes it: on each rank 256 MiB are written, so that no cache holds the inputs; ranks meet;
 * the inputs are cloned and the pair runs; ranks meet again. On host memory nothing is written or cloned. The floor is the
 * same without the pair. Then pairs back to back: on a device as device.c takes them, in graphs.
 */
#include <stdlib.h>

#include "all2all.h"
#include "device.h"

#define WRITTEN ((size_t)256 << 20)

static int clone_inputs(struct perf_a2a *a)
{
	struct perf_device *d = a->job->device;
	size_t names = (size_t)a->n * (size_t)a->shape->topk;
	int err = d->tool->move(d->stream, a->clone_x, a->in_x, (size_t)a->n * (size_t)a->shape->hidden * 2);

	if (!err)
		err = d->tool->move(d->stream, a->clone_ids, a->in_ids, names * sizeof(*a->in_ids));
	if (!err)
		err = d->tool->move(d->stream, a->clone_weights, a->in_weights, names * sizeof(*a->in_weights));
	return err ? perf_device_failed(a->job, "clones", err) : 0;
}

static int together(struct perf_a2a *a)
{
	return covey_barrier(a->job->group, NULL, NULL);
}

/* @way NULL: the floor */
static int one_wall(struct perf_a2a *a, const struct perf_way *way, void *state, void *scratch, uint64_t *ns)
{
	struct perf_device *d = a->job->device;
	uint64_t start;
	int err = d ? d->tool->fill(scratch, 42, WRITTEN) : 0;

	if (err)
		return perf_device_failed(a->job, "writing 256 MiB", err);
	err = together(a);
	start = tool_now_ns();
	if (!err && d)
		err = clone_inputs(a);
	if (!err && way)
		err = way->pair(a, state);
	if (!err && d)
		err = d->tool->wait(d->stream);
	if (!err)
		err = together(a);
	*ns += tool_now_ns() - start;
	return err;
}

static int walls(struct perf_a2a *a, const struct perf_way *way, void *state, double *us)
{
	int n = a->job->opt.repeats, from = a->parts, err = 0;
	void *scratch = a->job->device ? perf_a2a_part(a, WRITTEN, &err) : NULL;
	uint64_t ns = 0, unused = 0;

	if (!err)
		err = one_wall(a, way, state, scratch, &unused);
	for (int i = 0; i < n && !err; i++)
		err = one_wall(a, way, state, scratch, &ns);
	perf_a2a_give_back(a, from);
	*us = (double)ns / 1000 / n;
	return err ? err : perf_combined(a->job, us);
}

int perf_a2a_floor(struct perf_a2a *a, double *us)
{
	return walls(a, NULL, NULL, us);
}

struct pair {
	struct perf_a2a *a;
	const struct perf_way *way;
	void *state;
};

static int once(struct perf_job *job, void *ctx)
{
	struct pair *p = ctx;

	(void)job;
	return p->way->again(p->a, p->state);
}

static int on_host(struct perf_job *job, struct pair *p, double *us)
{
	uint64_t start;
	int err = together(p->a);

	start = tool_now_ns();
	for (int i = 0; i < job->opt.iters && !err; i++)
		err = once(job, p);
	*us = (double)(tool_now_ns() - start) / 1000 / job->opt.iters;
	return err ? err : perf_combined(job, us);
}

int perf_a2a_measure(struct perf_a2a *a, const struct perf_way *way, void *state, struct perf_a2a_time *time)
{
	struct pair pair = { a, way, state };
	const struct perf_repeat of = { once, &pair };
	struct perf_side side = { 0 };
	int err = walls(a, way, state, &time->wall_us);

	if (!err && a->job->device)
		err = perf_device_repeat(a->job, &of, 1, &side);
	else if (!err)
		err = on_host(a->job, &pair, &side.us);
	time->again_us = side.us;
	return err;
}
