/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on device memory: buffers there for those on the host, the weights of its experts, their kernel.
 * It shows that rows stay whole when ranks die, not speed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "covey_device.h"
#include "rank.h"

static int failed(struct moe_rank *r, const char *what, int err)
{
	if (err)
		fprintf(stderr, "ep-moe: rank %d: %s on its device: %s\n", r->self, what, r->device->tool->why());
	return err;
}

static int twin(struct moe_rank *r, void *host, size_t bytes, int *err)
{
	if (!*err)
		*err = tool_device_twin(r->device, host, bytes);
	return *err;
}

int moe_device_open(struct moe_rank *r)
{
	if (!r->opt->devices)
		return 0;
	r->device = moe_room(NULL, sizeof(*r->device));
	return tool_device_open(r->device, "ep-moe", r->self % r->opt->devices) ? COVEY_ERR_UNSUPPORTED : 0;
}

static int get(struct moe_rank *r, void **at, size_t bytes)
{
	if (*at)
		r->device->tool->release(*at);
	*at = NULL;
	return r->device->tool->alloc(bytes ? bytes : 1, at);
}

int moe_device_room(struct moe_rank *r, int size)
{
	const struct moe_shape *s = &r->model.shape;
	size_t local = (size_t)r->local, kept = (size_t)(r->device ? covey_ep_rows(r->ep) : 0), n = 0;
	size_t rows = moe_close(r->opt->preset) ? kept : local * kept;
	size_t tokens = (size_t)s->tokens, row = 2 * (size_t)s->hidden, names = tokens * (size_t)s->top_k;
	size_t net = moe_expert_floats(&r->model) * sizeof(float);
	int err = 0;

	if (!r->device)
		return 0;
	tool_device_forget(r->device);
	twin(r, r->x, tokens * row, &err);
	twin(r, r->out, tokens * row, &err);
	twin(r, r->experts, names * sizeof(*r->experts), &err);
	twin(r, r->placed, names * sizeof(*r->placed), &err);
	twin(r, r->weights, names * sizeof(*r->weights), &err);
	twin(r, r->packed_x, rows * row, &err);
	twin(r, r->y, rows * row, &err);
	twin(r, r->src_info, rows * sizeof(*r->src_info), &err);
	twin(r, r->flat, rows * 2 * sizeof(*r->flat), &err);
	twin(r, r->triplets, rows * 3 * sizeof(*r->triplets), &err);
	twin(r, r->count, local * sizeof(*r->count), &err);
	twin(r, r->range, local * (size_t)size * sizeof(*r->range), &err);
	if (!err)
		err = get(r, &r->route, covey_ep_route_bytes(r->ep));
	if (!err)
		err = get(r, &r->nets, local * net);
	for (int e = 0; e < s->experts && !err; e++)
		if (moe_owns(&r->model, r->owner, e, r->self))
			err = r->device->tool->copy((uint8_t *)r->nets + n++ * net, r->model.weights[e], net);
	return failed(r, "memory", err);
}

void moe_device_close(struct moe_rank *r)
{
	if (!r->device)
		return;
	if (r->nets)
		r->device->tool->release(r->nets);
	if (r->route)
		r->device->tool->release(r->route);
	tool_device_close(r->device);
	free(r->device);
}

int moe_device_copies(struct moe_rank *r, bool back, const void *const *host, int n)
{
	int err = 0;

	for (int i = 0; i < n && r->device && !err; i++)
		err = tool_device_copy(r->device, host[i], back);
	return err ? failed(r, "a copy", err) : 0;
}

/* The device knows the contributors: a call only returns the expected ones, at the launch. */
int moe_device_outcome(struct moe_rank *r, int err, struct covey_result *result)
{
	if (!r->device || err)
		return err;
	err = failed(r, "an operation", r->device->tool->wait(r->device->stream));
	if (!err)
		err = covey_device_result(r->group, result);
	return err ? err : result->status;
}

int moe_device_experts(struct moe_rank *r)
{
	const struct cvy_gpu_experts e = { .x = tool_device_there(r->device, r->packed_x),
					   .y = tool_device_there(r->device, r->y),
					   .count = tool_device_there(r->device, r->count),
					   .weights = r->nets,
					   .experts = r->local,
					   .rows = covey_ep_rows(r->ep),
					   .close = moe_close(r->opt->preset),
					   .hidden = r->model.shape.hidden,
					   .ffn = r->model.ffn };

	return failed(r, "its experts", r->device->tool->experts(r->device->stream, &e));
}
