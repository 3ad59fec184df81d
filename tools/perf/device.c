/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device. Inputs are made and results are checked in host memory. The data of an operation have the same
 * place in a buffer on the device, which is copied as a whole, guards included. Streams, graphs and times come from the
 * table of libcovey_cuda_tools (tool.h): ep-perf is built without CUDA.
 */
#include <stdlib.h>
#include <string.h>

#include "covey_device.h"
#include "device.h"

int perf_device_failed(const struct perf_job *job, const char *what, int err)
{
	fprintf(stderr, "ep-perf: rank %d: %s: %s\n", job->rank, what, job->device->tool->why());
	return err;
}

/* The device that the group was joined with. */
static int number_of(void)
{
	const char *text = getenv("COVEY_DEVICE");

	if (text && !strcmp(text, "local"))
		text = getenv("LOCAL_RANK");
	return text ? atoi(text) : 0;
}

int perf_device_open(struct perf_job *job)
{
	const struct cvy_gpu_tool *tool = cvy_gpu_tool_find();
	int err;

	if (!tool) {
		fprintf(stderr, "ep-perf: libcovey_cuda_tools is missing, or of another version\n");
		return COVEY_ERR_UNSUPPORTED;
	}
	job->device = calloc(1, sizeof(*job->device));
	if (!job->device)
		return COVEY_ERR_NOMEM;
	job->device->tool = tool;
	err = tool->use(number_of());
	if (!err)
		err = tool->stream(&job->device->stream);
	return err ? perf_device_failed(job, "the device", err) : 0;
}

int perf_device_buffers(struct perf_job *job, const char *send, const char *recv, size_t bytes)
{
	struct perf_device *d = job->device;
	int err = 0;

	d->bytes = bytes;
	d->of[0] = send;
	d->of[1] = recv;
	for (int i = 0; i < 2 && !err; i++) {
		void *at = NULL;

		err = job->opt.registered ? covey_device_mem_alloc(job->group, bytes, &at) : d->tool->alloc(bytes, &at);
		d->at[i] = at;
	}
	if (err)
		return job->opt.registered ? perf_fail(job, "buffers", err) : perf_device_failed(job, "buffers", err);
	return job->opt.alone ? 0 : perf_nccl_open(job, bytes, &d->nccl);
}

void perf_device_close(struct perf_job *job)
{
	struct perf_device *d = job->device;

	if (!d)
		return;
	perf_nccl_close(d->nccl);
	for (int i = 0; i < 2; i++)
		if (d->at[i] && job->opt.registered)
			covey_device_mem_free(job->group, d->at[i]);
		else if (d->at[i])
			d->tool->release(d->at[i]);
	if (d->stream)
		d->tool->stream_end(d->stream);
	free(d);
	job->device = NULL;
}

/* The place on the device of host data at @at. */
static void *there(const struct perf_device *d, const void *at)
{
	for (int i = 0; i < 2; i++)
		if ((uintptr_t)at - (uintptr_t)d->of[i] < d->bytes)
			return d->at[i] + ((const char *)at - d->of[i]);
	return NULL;
}

void perf_device_call(const struct perf_job *job, const struct operation_call *call, struct operation_call *out)
{
	*out = *call;
	out->send = there(job->device, call->send);
	out->recv = there(job->device, call->recv);
	out->stream = job->device->stream;
}

int perf_device_copy(struct perf_job *job, bool back)
{
	struct perf_device *d = job->device;
	int err = 0;

	for (int i = 0; i < 2 && !err; i++)
		err = d->tool->copy(back ? (void *)(uintptr_t)d->of[i] : d->at[i], back ? d->at[i] : d->of[i],
				    d->bytes);
	return err ? perf_device_failed(job, "a copy", err) : 0;
}

/* With graphs, the checked operation is a replay too. */
int perf_device_once(struct perf_job *job, const struct operation_call *call)
{
	struct perf_device *d = job->device;
	struct cvy_gpu_graph *graph = NULL;
	struct operation_call there_call;
	int err, ended;

	perf_device_call(job, call, &there_call);
	if (!job->opt.graphs) {
		err = job->opt.op->call(&there_call);
		return err ? err : perf_device_wait(job);
	}
	err = d->tool->capture(d->stream);
	if (!err)
		err = job->opt.op->call(&there_call);
	ended = d->tool->captured(d->stream, &graph);
	if (!err)
		err = ended ? ended : d->tool->replay(graph, d->stream);
	if (!err)
		err = perf_device_wait(job);
	if (graph)
		d->tool->graph_end(graph);
	return err;
}

int perf_device_wait(struct perf_job *job)
{
	int err = job->device->tool->wait(job->device->stream);
	struct covey_result result;

	if (err)
		return perf_device_failed(job, "waiting", err);
	err = covey_device_result(job->group, &result);
	return err ? err : result.status;
}

/* ---- times ---- */

static int once_of(struct perf_job *job, const struct perf_repeat *side)
{
	int err = 0;

	for (int i = 0; i < job->opt.iters && !err; i++)
		err = side->once(job, side->ctx);
	return err;
}

/* All iterations as a graph of their own, for each side. */
static int capture(struct perf_job *job, const struct perf_repeat *side, struct cvy_gpu_graph **graph)
{
	struct perf_device *d = job->device;
	int err = d->tool->capture(d->stream), ended;

	if (err)
		return perf_device_failed(job, "a graph", err);
	err = once_of(job, side);
	ended = d->tool->captured(d->stream, graph);
	return err ? err : ended ? perf_device_failed(job, "a graph", ended) : 0;
}

/* The time of one operation, by the device's clock; ranks begin together. */
static int turn(struct perf_job *job, const struct perf_repeat *side, struct cvy_gpu_graph *graph, double *us)
{
	struct perf_device *d = job->device;
	int err = covey_barrier(job->group, d->stream, NULL);

	if (!err)
		err = d->tool->mark(d->stream, 0);
	if (!err)
		err = graph ? d->tool->replay(graph, d->stream) : once_of(job, side);
	if (!err)
		err = d->tool->mark(d->stream, 1);
	if (!err)
		err = d->tool->wait(d->stream);
	if (!err)
		err = d->tool->between(0, 1, us);
	*us /= job->opt.iters;
	return err ? perf_device_failed(job, "a turn", err) : 0;
}

/* Ours and theirs alternate: disturbances affect both. */
static int turns(struct perf_job *job, const struct perf_repeat *of, int sides, double *us)
{
	struct cvy_gpu_graph *graph[2] = { NULL };
	int n = job->opt.turns, err = 0;

	for (int side = 0; side < sides && job->opt.graphs && !err; side++)
		err = capture(job, &of[side], &graph[side]);
	for (int i = -job->opt.warmup; i < n && !err; i++)
		for (int side = 0; side < sides && !err; side++)
			err = turn(job, &of[side], graph[side], &us[side * n + (i < 0 ? 0 : i)]);
	for (int side = 0; side < sides; side++)
		if (graph[side])
			job->device->tool->graph_end(graph[side]);
	return err;
}

/* Medians: a disturbed turn shows in the quantiles alone. */
static int sum_up(struct perf_job *job, struct perf_side *side, double *us, int sides)
{
	int n = job->opt.turns, err;

	for (int i = 0; i < sides; i++)
		qsort(us + i * n, (size_t)n, sizeof(*us), tool_ascending);
	side->us = side->p50_us = us[n / 2];
	side->p99_us = us[n * 99 / 100];
	side->min_us = us[0];
	side->max_us = us[n - 1];
	side->nccl_us = sides > 1 ? us[n + n / 2] : 0;
	err = perf_combined(job, &side->us);
	if (!err)
		err = perf_combined(job, &side->nccl_us);
	if (!err)
		err = perf_agree(job, &side->p50_us, COVEY_MAX);
	return err ? err : perf_agree(job, &side->p99_us, COVEY_MAX);
}

int perf_device_repeat(struct perf_job *job, const struct perf_repeat *of, int sides, struct perf_side *side)
{
	double *us = calloc((size_t)(sides * job->opt.turns), sizeof(*us));
	int err = us ? turns(job, of, sides, us) : COVEY_ERR_NOMEM;

	if (!err)
		err = sum_up(job, side, us, sides);
	free(us);
	return err;
}

static int ours(struct perf_job *job, void *call)
{
	return job->opt.op->call(call);
}

static int theirs(struct perf_job *job, void *call)
{
	struct perf_device *d = job->device;

	return perf_nccl_run(d->nccl, job->opt.op, call, (const char *const *)d->at, d->bytes);
}

int perf_device_measure(struct perf_job *job, const struct operation_call *call, struct perf_side *side)
{
	struct perf_device *d = job->device;
	struct operation_call there_call;
	const struct perf_repeat of[2] = { { ours, &there_call }, { theirs, &there_call } };

	perf_device_call(job, call, &there_call);
	return perf_device_repeat(job, of, d->nccl && perf_nccl_has(d->nccl, job->opt.op, call) ? 2 : 1, side);
}
