/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine on device memory: a row for each number of tokens and each number of lanes. Times are those of
 * the other operations on devices (device.c): turns of all iterations, on the device's clock, with -G as one graph.
 * Every expert returns its input and every weight is 1, so a combined token is top-k times itself. Bytes are those
 * of rows that cross to other ranks, without headers. Rows for experts of the own rank do not count. Those of HT are
 * counted as with COMPACT: from the source to each rank, though a forwarder brings some.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ep_call.h"
#include "ep_room.h"
#include "hosts.h"

/* COMPACT and HT have one row a rank, whatever --combine says. */
static bool per_rank(const struct perf_job *job)
{
	return perf_room_once(job) || job->opt.combine == COVEY_EP_PER_RANK;
}

/* ---- the row: what it takes, and what it sends ---- */

/* HT: steps are cut by the hosts of the ranks; without room for two hops, as if each were a host of its own. */
static void cut_by_hosts(const struct perf_job *job, int combine, struct cvy_ep_form *form)
{
	const struct cvy_ep_hosts hosts = perf_hosts_all(job);
	const struct cvy_ep_form given = *form;
	int blocks = 1, members = 1;

	for (int r = 0; r < job->size; r++) {
		int here = cvy_ep_blocks_of(&hosts, r), of = cvy_ep_members(hosts.of[r]);

		blocks = here > blocks ? here : blocks;
		members = of > members ? of : members;
	}
	if (cvy_ep_hops_form(combine, job->opt.tokens, blocks, members, form))
		return;
	*form = given;
	cvy_ep_hops_form(combine, job->opt.tokens, 1, 1, form);
}

static void say_forms(const struct perf_job *job, struct perf_pair_row *row)
{
	const struct perf_options *opt = &job->opt;
	struct cvy_ep_shape_gpu s = { .tokens = opt->tokens,
				      .hidden = opt->hidden,
				      .top_k = opt->topk,
				      .experts = opt->experts,
				      .size = job->size,
				      .code = opt->rows,
				      .back = opt->back == COVEY_EP_BACK_INT8 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS,
				      .per_rank = opt->combine == COVEY_EP_PER_RANK,
				      .most_local = (opt->experts + job->size - 1) / job->size,
				      .once = perf_room_once(job),
				      .close = perf_close(opt->preset),
				      .hops = opt->preset == COVEY_EP_HT,
				      .ranks = job->max_ranks < CVY_GPU_RANKS ? job->max_ranks : CVY_GPU_RANKS };
	struct cvy_ep_form form;

	if (!row->lanes)
		row->lanes = cvy_ep_lanes_of(&s);
	for (int combine = 0; combine < 2; combine++) {
		bool is = cvy_ep_form_of(&s, row->lanes, combine, &form);

		if (is && s.hops)
			cut_by_hosts(job, combine, &form);
		row->steps[combine] = is ? form.steps : 0;
		row->bulk[combine] = is && form.bulk;
	}
}

static int count_bytes(struct perf_job *job, struct perf_pair_row *row)
{
	const int back = job->opt.back == COVEY_EP_BACK_INT8 ? CVY_EP_INT8_BY_8 : CVY_EP_AS_IS;
	size_t hidden = (size_t)job->opt.hidden, bytes = cvy_ep_code_row(perf_ep_code(&job->opt), hidden);
	double copies = 0, rows = 0;
	int err;

	for (int t = 0; t < job->opt.tokens; t++)
		for (int r = 0; r < job->size; r++)
			if (r != job->rank) {
				int n = perf_room_experts_at(job, job->rank, t, r);

				copies += n > 0;
				rows += per_rank(job) ? n > 0 : n;
			}
	row->bytes[0] = copies * (double)bytes;
	row->bytes[1] = rows * (double)cvy_ep_code_row(cvy_ep_code_of(back), hidden);
	err = perf_agree(job, &row->bytes[0], COVEY_AVG);
	return err ? err : perf_agree(job, &row->bytes[1], COVEY_AVG);
}

/* ---- buffers ---- */

/* Memory of the device with @from in it, or zeros. Does nothing, and gives NULL, if *err is set; sets it if it fails. */
static void *part(struct perf_job *job, struct perf_room *room, const void *from, size_t bytes, int *err)
{
	void *at = NULL;

	if (*err)
		return NULL;
	*err = job->device->tool->alloc(bytes ? bytes : 1, &at);
	if (*err) {
		perf_device_failed(job, "buffers (fewer --tokens, or --preset compact, take less)", *err);
		return NULL;
	}
	room->part[room->parts++] = at;
	*err = from ? job->device->tool->copy(at, from, bytes) : job->device->tool->fill(at, 0, bytes ? bytes : 1);
	if (*err)
		perf_device_failed(job, "buffers", *err);
	return at;
}

static int own_tokens(struct perf_job *job, struct perf_room *room)
{
	const struct perf_options *opt = &job->opt;
	size_t elements = (size_t)opt->tokens * (size_t)opt->hidden, names = (size_t)opt->tokens * (size_t)opt->topk;
	uint16_t *x = malloc(elements * sizeof(*x));
	int32_t *ids = malloc(names * sizeof(*ids));
	float *weights = malloc(names * sizeof(*weights));
	int err = x && ids && weights ? 0 : COVEY_ERR_NOMEM;

	for (int t = 0; t < opt->tokens && !err; t++) {
		for (int h = 0; h < opt->hidden; h++)
			x[(size_t)t * (size_t)opt->hidden + (size_t)h] = tool_bf16(perf_ep_value(job->rank, t, h));
		for (int k = 0; k < opt->topk; k++) {
			ids[t * opt->topk + k] = perf_ep_expert(opt, job->rank, t, k);
			weights[t * opt->topk + k] = 1;
		}
	}
	room->pair.to.num_tokens = room->pair.back.num_tokens = opt->tokens;
	room->pair.to.x = part(job, room, x, elements * sizeof(*x), &err);
	room->pair.to.experts = room->pair.back.experts = part(job, room, ids, names * sizeof(*ids), &err);
	room->pair.to.weights = room->pair.back.weights = part(job, room, weights, names * sizeof(*weights), &err);
	room->pair.back.out = part(job, room, NULL, elements * sizeof(*x), &err);
	free(x);
	free(ids);
	free(weights);
	return err;
}

static int received(struct perf_job *job, struct perf_room *room)
{
	struct covey_dispatch_args *to = &room->pair.to;
	size_t hidden = (size_t)job->opt.hidden, local = (size_t)covey_ep_local_experts(room->pair.ep);
	size_t bins = perf_room_once(job) ? local > 0 : local, rows, names;
	int err = 0;

	room->bins = (int)bins;
	room->bin_rows = (size_t)covey_ep_rows(room->pair.ep);
	room->row_bytes = cvy_ep_code_bytes(perf_ep_code(&job->opt), hidden);
	room->groups = cvy_ep_code_groups(perf_ep_code(&job->opt), hidden);
	rows = room->all_rows = (perf_close(job->opt.preset) ? bins > 0 : bins) * room->bin_rows;
	names = perf_room_once(job) ? rows * (size_t)job->opt.topk : 0;
	to->packed_x = part(job, room, NULL, rows * room->row_bytes, &err);
	to->packed_scales = part(job, room, NULL, rows * room->groups * sizeof(float), &err);
	to->count = part(job, room, NULL, local * sizeof(int32_t), &err);
	to->src_info = part(job, room, NULL, rows * sizeof(int32_t), &err);
	to->range = part(job, room, NULL, bins * (size_t)job->size * sizeof(int64_t), &err);
	if (perf_room_flat(job))
		to->flat = part(job, room, NULL, rows * 2 * sizeof(int32_t), &err);
	if (perf_close(job->opt.preset))
		to->triplets = part(job, room, NULL, rows * 3 * sizeof(int32_t), &err);
	to->recv_experts = part(job, room, NULL, names * sizeof(int32_t), &err);
	to->recv_weights = part(job, room, NULL, names * sizeof(float), &err);
	room->pair.back.route = to->route = part(job, room, NULL, covey_ep_route_bytes(room->pair.ep), &err);
	room->pair.back.y = part(job, room, NULL, rows * hidden * 2, &err);
	room->src_info = malloc(rows * sizeof(*room->src_info) + 1);
	room->recv_experts = malloc(names * sizeof(*room->recv_experts) + 1);
	room->flat = malloc(rows * 2 * sizeof(*room->flat) + 1);
	room->triplets = malloc(rows * 3 * sizeof(*room->triplets) + 1);
	room->range = malloc(bins * (size_t)job->size * sizeof(*room->range) + 1);
	room->rows = malloc(room->bin_rows * room->row_bytes);
	room->scales = malloc(room->bin_rows * room->groups * sizeof(*room->scales) + 1);
	room->y = malloc(room->bin_rows * hidden * sizeof(*room->y));
	if (!err && (!room->src_info || !room->recv_experts || !room->flat || !room->triplets || !room->range ||
		     !room->rows || !room->scales || !room->y))
		err = perf_fail(job, "buffers", COVEY_ERR_NOMEM);
	return err;
}

static int room_open(struct perf_job *job, struct perf_room *room)
{
	const struct perf_options *opt = &job->opt;
	struct covey_ep_config config = COVEY_EP_CONFIG_INIT;
	int err;

	room->pair.to = (struct covey_dispatch_args)COVEY_DISPATCH_INIT;
	room->pair.back = (struct covey_combine_args)COVEY_COMBINE_INIT;
	config.max_tokens = opt->tokens;
	config.hidden = opt->hidden;
	config.top_k = opt->topk;
	config.experts = opt->experts;
	config.preset = opt->preset;
	config.rows = opt->rows;
	config.combine = opt->combine;
	config.combine_rows = opt->back;
	config.lanes = room->pair.row->lanes;
	err = covey_ep_create(job->group, &config, &room->pair.ep);
	if (err)
		return perf_fail(job, "a handle", err);
	say_forms(job, room->pair.row);
	err = own_tokens(job, room);
	return err ? err : received(job, room);
}

static void room_close(struct perf_job *job, struct perf_room *room)
{
	covey_ep_destroy(room->pair.ep);
	for (int i = 0; i < room->parts; i++)
		job->device->tool->release(room->part[i]);
	free(room->src_info);
	free(room->recv_experts);
	free(room->flat);
	free(room->triplets);
	free(room->range);
	free(room->rows);
	free(room->scales);
	free(room->y);
}

/* ---- calls ---- */

static int dispatch(struct perf_job *job, void *ctx)
{
	struct perf_pair *pair = ctx;

	return covey_dispatch(pair->ep, &pair->to, job->device->stream, NULL);
}

static int combine(struct perf_job *job, void *ctx)
{
	struct perf_pair *pair = ctx;

	return covey_combine(pair->ep, &pair->back, job->device->stream, NULL);
}

static int both(struct perf_job *job, void *ctx)
{
	int err = dispatch(job, ctx);

	return err ? err : combine(job, ctx);
}

static int run(struct perf_job *job, struct perf_room *room, int (*call)(struct perf_job *, void *))
{
	int err = call(job, &room->pair);

	return err ? perf_fail(job, "dispatch and combine", err) : perf_device_wait(job);
}

/* ---- times ---- */

static int measure(struct perf_job *job, struct perf_room *room)
{
	struct perf_pair_row *row = room->pair.row;
	const struct perf_repeat of[3] = { { dispatch, &room->pair }, { combine, &room->pair }, { both, &room->pair } };
	/* The first call makes the device memory of the handle, and a graph cannot. */
	int err = run(job, room, dispatch);

	if (!err && job->opt.checks)
		err = perf_room_check_dispatch(job, room, &row->wrong);
	if (!err)
		err = run(job, room, combine);
	if (!err && job->opt.checks)
		err = perf_room_check_combine(job, room, &row->wrong);
	for (int i = 0; i < 3 && !err; i++)
		err = perf_device_repeat(job, &of[i], 1, &row->side[i]);
	if (!err && job->opt.split)
		err = perf_split(job, &room->pair);
	if (!err)
		err = perf_device_wait(job);
	if (!err && job->opt.checks)
		err = perf_room_check_combine(job, room, &row->wrong);
	if (!err)
		err = count_bytes(job, row);
	return err ? err : perf_agree_counts(job, &row->wrong, 1);
}

static int one_row(struct perf_job *job, int tokens, int lanes)
{
	struct perf_pair_row *row = &job->pair_rows[job->pair_row_count];
	struct perf_room room = { .pair.row = row };
	int err;

	job->opt.tokens = row->tokens = tokens;
	row->lanes = lanes;
	err = room_open(job, &room);
	if (!err)
		err = measure(job, &room);
	room_close(job, &room);
	if (err)
		return err;
	job->pair_row_count++;
	job->wrong += row->wrong;
	if (perf_speaks(job))
		perf_print_pair(job, row);
	return 0;
}

int perf_ep_device(struct perf_job *job)
{
	const struct perf_list *tokens = &job->opt.token_list, *lanes = &job->opt.lane_list;
	int err = 0;

	if (perf_device_open(job))
		return PERF_FAILED;
	job->pair_rows = calloc((size_t)(tokens->count * lanes->count), sizeof(*job->pair_rows));
	if (!job->pair_rows)
		return perf_fail(job, "the table", COVEY_ERR_NOMEM), PERF_FAILED;
	if (perf_speaks(job))
		perf_print_pair_head(job);
	for (int t = 0; t < tokens->count; t++)
		for (int l = 0; l < lanes->count && !err; l++)
			err = one_row(job, tokens->value[t], lanes->value[l]);
	if (!err && job->opt.split && perf_speaks(job))
		perf_print_splits(job);
	return err ? PERF_FAILED : PERF_OK;
}
