/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of a member on device memory. Inputs are made and results are checked in host memory. Each buffer for a
 * device has a *twin* there, which is copied before and after. The device reports the outcome under its own numbers, so
 * these records have a seat of their own.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../local/twin.h"
#include "covey_device.h"
#include "work.h"

struct chaos_device {
	struct tool_device on;
	bool captures; /* the operation under way is launched as a graph */
	struct chaos_seat *seat;
	uint64_t next; /* number of the next operation */
	void *route;   /* of dispatch, for combine */
};

static int failed(struct chaos_member *m, const char *what, int err)
{
	fprintf(stderr, "ep-chaos: rank %d: %s on its device: %s\n", m->rank, what, m->device->on.tool->why());
	return err;
}

int chaos_device_open(struct chaos_member *m)
{
	if (!m->crew->devices)
		return 0;
	m->device = calloc(1, sizeof(*m->device));
	if (!m->device)
		return 1;
	m->device->seat = &m->desk->seat[m->number + 1];
	return tool_device_open(&m->device->on, "ep-chaos", m->rank % m->crew->devices) ? 1 : 0;
}

void chaos_device_close(struct chaos_member *m)
{
	struct chaos_device *d = m->device;

	if (!d)
		return;
	if (d->route)
		d->on.tool->release(d->route);
	tool_device_close(&d->on);
	free(d);
	m->device = NULL;
}

int chaos_device_twin(struct chaos_member *m, void *host, size_t bytes)
{
	if (!m->device || !tool_device_twin(&m->device->on, host, bytes))
		return 0;
	return failed(m, "memory", 1);
}

void *chaos_there(struct chaos_member *m, const void *host)
{
	return tool_device_there(m->device ? &m->device->on : NULL, host);
}

struct CUstream_st *chaos_stream(const struct chaos_member *m)
{
	return m->device ? m->device->on.stream : NULL;
}

int chaos_device_copy(struct chaos_member *m, const void *host, bool back)
{
	return tool_device_copy(m->device ? &m->device->on : NULL, host, back);
}

/* Both buffers of a collective. A third of the calls become graphs of one launch, drawn for each rank. */
int chaos_device_begin(struct chaos_member *m)
{
	struct chaos_device *d = m->device;
	int err = chaos_device_copy(m, m->send, false);

	if (!err)
		err = chaos_device_copy(m, m->recv, false);
	d->captures = !m->crew->plain && ((m->random >> 40) + (uint64_t)m->rank) % 3 == 0;
	m->record.enter_ns = tool_now_ns();
	if (!err && d->captures)
		err = d->on.tool->capture(d->on.stream);
	return err ? failed(m, "before an operation", err) : 0;
}

/* A graph is launched even if the call was refused: then it is empty. */
static int replay(struct chaos_device *d)
{
	struct cvy_gpu_graph *graph = NULL;
	int err = d->on.tool->captured(d->on.stream, &graph);

	if (!err)
		err = d->on.tool->replay(graph, d->on.stream);
	if (!err)
		err = d->on.tool->wait(d->on.stream);
	if (graph)
		d->on.tool->graph_end(graph);
	return err;
}

int chaos_device_outcome(struct chaos_member *m, int err, struct covey_result *result)
{
	struct chaos_device *d = m->device;
	int ended = err ? 0 : d->on.tool->wait(d->on.stream);

	if (ended)
		return failed(m, "an operation", ended);
	if (!err)
		err = covey_device_result(m->group, result);
	if (err)
		return err;
	m->record.done_ns = tool_now_ns();
	m->log = d->seat;
	m->record.own = m->record.op == OP_GATHER; /* uniform on hosts alone */
	d->next = ++result->seq;		   /* records count from 1 */
	return result->status;
}

int chaos_device_end(struct chaos_member *m, int err, struct covey_result *result)
{
	struct chaos_device *d = m->device;
	int ended = d->captures ? replay(d) : 0;

	d->captures = false;
	if (!err && ended)
		return failed(m, "a graph", ended);
	err = chaos_device_outcome(m, err, result);
	if (!err)
		err = chaos_device_copy(m, m->send, true);
	return err ? err : chaos_device_copy(m, m->recv, true);
}

/* A safe point that admitted ranks was an operation of the device. */
int chaos_device_admitted(struct chaos_member *m)
{
	struct chaos_device *d = m->device;
	struct covey_result last;
	int err;

	if (!d)
		return 0;
	if (d->on.tool->wait(d->on.stream))
		return failed(m, "a safe point", 1);
	err = covey_device_result(m->group, &last);
	if (err)
		return chaos_member_fail(m, "a safe point", err);
	if (!last.mask.word[0] || last.seq < d->next)
		return 0;
	d->next = last.seq + 1;
	m->record.seq = d->next;
	m->record.epoch = last.epoch;
	m->record.mask = last.mask.word[0];
	m->record.op = CHAOS_W_COME;
	m->record.done_ns = tool_now_ns();
	m->log = d->seat;
	chaos_put(m);
	return 0;
}

int chaos_device_route(struct chaos_member *m)
{
	struct chaos_device *d = m->device;

	if (!d || !m->ep)
		return 0;
	if (d->route)
		d->on.tool->release(d->route);
	d->route = NULL;
	return d->on.tool->alloc(covey_ep_route_bytes(m->ep), &d->route) ? failed(m, "memory for a route", 1) : 0;
}

void *chaos_route(const struct chaos_member *m)
{
	return m->device ? m->device->route : NULL;
}
