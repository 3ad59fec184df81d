/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch, experts and combine on device memory: tokens are copied there, and results back. It shows that rows stay
 * whole when ranks die, not speed. Memory, copies, the stream and the experts' kernel come from the table of
 * libcovey_cuda (kernels/tool.h), which covey_join() has opened: ep-moe is built without CUDA.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "tool_find.h"

struct moe_device {
	const struct cvy_gpu_tool *tool;
	struct CUstream_st *stream;
	void *x, *experts, *weights, *out;			    /* of the own tokens */
	void *packed, *y, *count, *src_info, *range, *route, *nets; /* of the present layout */
	size_t tokens_bytes, experts_bytes, weights_bytes;
	size_t row_bytes, rows; /* of an expert */
	size_t count_bytes, range_bytes;
};

static int failed(struct moe_rank *r, const char *what, int err)
{
	fprintf(stderr, "ep-moe: rank %d: %s on its device: %s\n", r->self, what, r->device->tool->why());
	return err;
}

/* Ranks share devices if there are fewer. */
static int number_of(const struct moe_options *opt)
{
	const char *rank = getenv("COVEY_RANK");

	rank = rank ? rank : getenv("RANK");
	return rank ? atoi(rank) % opt->devices : 0;
}

void moe_device_choose(const struct moe_options *opt)
{
	char text[16];

	if (!opt->devices)
		return;
	snprintf(text, sizeof(text), "%d", number_of(opt));
	setenv("COVEY_DEVICE", text, 1);
}

static int get(const struct moe_device *d, void **at, size_t bytes)
{
	if (*at)
		d->tool->release(*at);
	*at = NULL;
	return d->tool->alloc(bytes ? bytes : 1, at);
}

int moe_device_open(struct moe_rank *r)
{
	const struct moe_shape *s = &r->model.shape;
	const struct cvy_gpu_tool *tool = cvy_gpu_tool_find(0);
	struct moe_device *d;
	int err;

	if (!r->opt->devices)
		return 0;
	if (!tool) {
		fprintf(stderr, "ep-moe: rank %d: libcovey_cuda is of another version\n", r->self);
		return COVEY_ERR_UNSUPPORTED;
	}
	d = r->device = moe_room(NULL, sizeof(*d));
	*d = (struct moe_device){ .tool = tool };
	d->row_bytes = 2 * (size_t)s->hidden;
	d->tokens_bytes = (size_t)s->tokens * d->row_bytes;
	d->experts_bytes = (size_t)s->tokens * (size_t)s->top_k * sizeof(int32_t);
	d->weights_bytes = (size_t)s->tokens * (size_t)s->top_k * sizeof(float);
	err = tool->use(number_of(r->opt));
	if (!err)
		err = tool->stream(&d->stream);
	if (!err)
		err = get(d, &d->x, d->tokens_bytes);
	if (!err)
		err = get(d, &d->out, d->tokens_bytes);
	if (!err)
		err = get(d, &d->experts, d->experts_bytes);
	if (!err)
		err = get(d, &d->weights, d->weights_bytes);
	return err ? failed(r, "memory", err) : 0;
}

/* The weights of the experts here, one behind the other. */
static int load_nets(struct moe_rank *r)
{
	struct moe_device *d = r->device;
	size_t bytes = moe_expert_floats(&r->model) * sizeof(float), n = 0;
	int err = get(d, &d->nets, (size_t)r->local * bytes);

	for (int e = 0; e < r->model.shape.experts && !err; e++)
		if (r->owner[e] == r->self)
			err = d->tool->copy((uint8_t *)d->nets + n++ * bytes, r->model.weights[e], bytes);
	return err;
}

int moe_device_room(struct moe_rank *r, int size)
{
	struct moe_device *d = r->device;
	size_t local = (size_t)r->local, all;
	int err;

	if (!d)
		return 0;
	d->rows = (size_t)covey_ep_rows(r->ep);
	d->count_bytes = local * sizeof(int32_t);
	d->range_bytes = local * (size_t)size * sizeof(int64_t);
	all = local * d->rows;
	err = get(d, &d->packed, all * d->row_bytes);
	if (!err)
		err = get(d, &d->y, all * d->row_bytes);
	if (!err)
		err = get(d, &d->src_info, all * sizeof(int32_t));
	if (!err)
		err = get(d, &d->count, d->count_bytes);
	if (!err)
		err = get(d, &d->range, d->range_bytes);
	if (!err)
		err = get(d, &d->route, covey_ep_route_bytes(r->ep));
	if (!err)
		err = load_nets(r);
	return err ? failed(r, "memory for its experts", err) : 0;
}

void moe_device_close(struct moe_rank *r)
{
	struct moe_device *d = r->device;

	if (!d)
		return;
	void *const all[] = { d->x,	d->out,	     d->experts, d->weights, d->packed, d->y,
			      d->count, d->src_info, d->range,	 d->route,   d->nets };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i])
			d->tool->release(all[i]);
	if (d->stream)
		d->tool->stream_end(d->stream);
	free(d);
	r->device = NULL;
}

/* The device knows the contributors: a call only returns the expected ones, at the launch. */
static int outcome(struct moe_rank *r, struct covey_result *result)
{
	int err = r->device->tool->wait(r->device->stream);

	if (err)
		return failed(r, "an operation", err);
	err = covey_device_result(r->group, result);
	return err ? err : result->status;
}

int moe_device_dispatch(struct moe_rank *r, struct covey_dispatch_args *args, struct covey_result *result)
{
	struct moe_device *d = r->device;
	int err = d->tool->copy(d->x, r->x, d->tokens_bytes);

	if (!err)
		err = d->tool->copy(d->experts, r->experts, d->experts_bytes);
	if (!err)
		err = d->tool->copy(d->weights, r->weights, d->weights_bytes);
	if (err)
		return failed(r, "a copy", err);
	args->x = d->x;
	args->experts = d->experts;
	args->weights = d->weights;
	args->packed_x = d->packed;
	args->count = d->count;
	args->src_info = d->src_info;
	args->range = d->range;
	args->route = d->route;
	err = covey_dispatch(r->ep, args, d->stream, result);
	if (!err)
		err = outcome(r, result);
	if (err)
		return err;
	err = d->tool->copy(r->count, d->count, d->count_bytes);
	if (!err)
		err = d->tool->copy(r->range, d->range, d->range_bytes);
	return err ? failed(r, "a copy", err) : 0;
}

int moe_device_experts(struct moe_rank *r)
{
	struct moe_device *d = r->device;
	const struct cvy_gpu_experts e = { .x = d->packed,
					   .y = d->y,
					   .count = d->count,
					   .weights = d->nets,
					   .experts = r->local,
					   .rows = (int)d->rows,
					   .hidden = r->model.shape.hidden,
					   .ffn = r->model.ffn };
	int err = d->tool->experts(d->stream, &e);

	return err ? failed(r, "its experts", err) : 0;
}

int moe_device_combine(struct moe_rank *r, struct covey_combine_args *args, struct covey_result *result)
{
	struct moe_device *d = r->device;
	int err;

	args->y = d->y;
	args->weights = d->weights;
	args->out = d->out;
	args->route = d->route;
	args->experts = d->experts;
	args->count = d->count;
	args->src_info = d->src_info;
	args->range = d->range;
	err = covey_combine(r->ep, args, d->stream, result);
	if (!err)
		err = outcome(r, result);
	if (err)
		return err;
	err = d->tool->copy(r->out, d->out, d->tokens_bytes);
	return err ? failed(r, "a copy", err) : 0;
}
