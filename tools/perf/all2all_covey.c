/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Covey's way: dispatch, the application's experts, combine. With COMPACT and HT the experts also sum, as these ask for.
 * --fused: results of experts that multiply by a number are made by the combine, which reads the dispatched rows.
 */
#include <stdlib.h>

#include "all2all.h"
#include "device.h"

struct covey_way {
	struct covey_ep *ep;
	struct covey_dispatch_args to;
	struct covey_combine_args back;
	size_t rows; /* of a bin */
	bool once;   /* COMPACT: there is one bin for all experts */
	bool close;  /* WIN, MESH: there are so many rows for all bins */
};

static void fuse(struct perf_a2a *a, struct covey_way *c, size_t local, int *err)
{
	float *factors = malloc((local + 1) * sizeof(*factors));

	if (!factors)
		*err = perf_fail(a->job, "factors", COVEY_ERR_NOMEM);
	for (size_t e = 0; factors && e < local; e++)
		factors[e] = (float)(1 + a->job->rank);
	c->back.expert_scale = perf_a2a_copy(a, factors, local * sizeof(*factors), err);
	c->back.y = c->to.packed_x;
	free(factors);
}

static void make_args(struct perf_a2a *a, struct covey_way *c, int *err)
{
	size_t local = (size_t)covey_ep_local_experts(c->ep), bins = c->once ? local > 0 : local;
	size_t rows = (c->close ? local > 0 : bins) * c->rows, names = c->once ? rows * (size_t)a->shape->topk : 0;
	struct covey_dispatch_args *to = &c->to;

	to->num_tokens = c->back.num_tokens = a->n;
	to->x = a->clone_x;
	to->experts = c->back.experts = a->clone_ids;
	to->weights = c->back.weights = a->clone_weights;
	to->packed_x = perf_a2a_part(a, rows * (size_t)a->shape->hidden * 2, err);
	if (perf_a2a_fused(a))
		fuse(a, c, local, err);
	else
		c->back.y = perf_a2a_part(a, rows * (size_t)a->shape->hidden * 2, err);
	c->back.count = to->count = perf_a2a_part(a, local * sizeof(*to->count), err);
	c->back.src_info = to->src_info = perf_a2a_part(a, rows * sizeof(*to->src_info), err);
	c->back.range = to->range = perf_a2a_part(a, bins * (size_t)a->job->size * sizeof(*to->range), err);
	if (a->job->opt.preset == COVEY_EP_FLAT)
		to->flat = perf_a2a_part(a, rows * 2 * sizeof(*to->flat), err);
	if (c->close)
		to->triplets = perf_a2a_part(a, rows * 3 * sizeof(*to->triplets), err);
	to->recv_experts = perf_a2a_part(a, names * sizeof(*to->recv_experts), err);
	to->recv_weights = perf_a2a_part(a, names * sizeof(*to->recv_weights), err);
	if (a->job->device)
		c->back.route = to->route = perf_a2a_part(a, covey_ep_route_bytes(c->ep), err);
	c->back.out = a->out;
}

static int open_covey(struct perf_a2a *a, void **state)
{
	const struct perf_options *opt = &a->job->opt;
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	struct covey_way *c = calloc(1, sizeof(*c));
	int err;

	if (!c)
		return perf_fail(a->job, "a handle", COVEY_ERR_NOMEM);
	*state = c;
	c->to = (struct covey_dispatch_args)COVEY_DISPATCH_INIT;
	c->back = (struct covey_combine_args)COVEY_COMBINE_INIT;
	c->once = perf_once(opt->preset);
	c->close = perf_close(opt->preset);
	config.dtype = COVEY_FLOAT16;
	config.max_tokens = a->shape->tokens;
	config.hidden = a->shape->hidden;
	config.top_k = a->shape->topk;
	config.experts = a->shape->experts;
	config.preset = opt->preset;
	config.combine = opt->combine;
	config.lanes = opt->lane_list.value[0];
	err = covey_ep_create(a->job->group, &config, &c->ep);
	if (err)
		return perf_fail(a->job, "a handle", err);
	c->rows = (size_t)covey_ep_rows(c->ep);
	make_args(a, c, &err);
	return err;
}

static void close_covey(struct perf_a2a *a, void *state)
{
	struct covey_way *c = state;

	(void)a;
	if (c)
		covey_ep_destroy(c->ep);
	free(c);
}

/* ---- experts on the host ---- */

static void expert_row(const struct perf_a2a *a, int local, const uint16_t *x, uint16_t *y)
{
	for (int h = 0; h < a->shape->hidden; h++)
		y[h] = perf_a2a_times(x[h], perf_a2a_factor(a, a->in_table, a->job->rank, local, h));
}

/* A row for all experts of this rank that it names: the sum of theirs. */
static void sum_row(const struct perf_a2a *a, const struct covey_way *c, size_t row)
{
	size_t hidden = (size_t)a->shape->hidden, topk = (size_t)a->shape->topk;
	const uint16_t *x = (const uint16_t *)c->to.packed_x + row * hidden;
	uint16_t *y = (uint16_t *)(uintptr_t)c->back.y + row * hidden;

	for (size_t h = 0; h < hidden; h++) {
		float sum = 0;

		for (size_t k = 0; k < topk; k++) {
			int local = c->to.recv_experts[row * topk + k];

			if (local >= 0)
				sum += c->to.recv_weights[row * topk + k] *
				       perf_of_half(perf_a2a_times(x[h], perf_a2a_factor(a, a->in_table, a->job->rank,
											 local, (int)h)));
		}
		y[h] = perf_half(sum);
	}
}

static int host_experts(const struct perf_a2a *a, const struct covey_way *c)
{
	int local = covey_ep_local_experts(c->ep);
	size_t hidden = (size_t)a->shape->hidden, first = 0;

	if (c->once && local) {
		int64_t last = c->to.range[a->job->size - 1];
		size_t rows = (size_t)(uint32_t)last + (size_t)(last >> 32);

		for (size_t row = 0; row < rows; row++)
			sum_row(a, c, row);
		return 0;
	}
	for (int e = 0; e < local; first += c->close ? (size_t)c->to.count[e] : c->rows, e++)
		for (size_t i = 0; i < (size_t)c->to.count[e]; i++) {
			size_t at = (first + i) * hidden;

			expert_row(a, e, (const uint16_t *)c->to.packed_x + at, (uint16_t *)(uintptr_t)c->back.y + at);
		}
	return 0;
}

/* ---- experts on a device ---- */

static int device_experts(const struct perf_a2a *a, const struct covey_way *c)
{
	struct perf_device *d = a->job->device;
	int local = covey_ep_local_experts(c->ep);
	struct cvy_gpu_scale s = { .x = c->to.packed_x,
				   .y = (uint16_t *)(uintptr_t)c->back.y,
				   .table = a->expert == PERF_BY_VECTOR ? a->in_table : NULL,
				   .factor = (float)(1 + a->job->rank),
				   .experts = local,
				   .rows = (int)c->rows,
				   .close = c->close,
				   .hidden = a->shape->hidden,
				   .top_k = a->shape->topk };
	int err;

	if (c->once) {
		s.range = c->to.range + a->job->size - 1;
		s.ids = c->to.recv_experts;
		s.weights = c->to.recv_weights;
	} else {
		s.count = c->to.count;
	}
	err = d->tool->scale(d->stream, &s);
	return err ? perf_device_failed(a->job, "experts", err) : 0;
}

/* ---- the pair ---- */

static int pair(struct perf_a2a *a, void *state)
{
	struct covey_way *c = state;
	struct CUstream_st *stream = a->job->device ? a->job->device->stream : NULL;
	int err = covey_dispatch(c->ep, &c->to, stream, NULL);

	if (!err && !perf_a2a_fused(a))
		err = stream ? device_experts(a, c) : host_experts(a, c);
	if (!err)
		err = covey_combine(c->ep, &c->back, stream, NULL);
	return err ? perf_fail(a->job, "dispatch and combine", err) : 0;
}

const struct perf_way perf_way_covey = {
	.open = open_covey, .pair = pair, .again = pair, .close = close_covey, .by_options = true
};
