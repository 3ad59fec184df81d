/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a rank: admit, dispatch, experts, combine, allreduce, and the report of the results. */
#include "rank.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define AT(host) tool_device_there(r->device, host)
#define STREAM (r->device ? r->device->stream : NULL)

static void note(struct moe_rank *r, int op, const struct covey_result *result)
{
	r->report.epoch[op] = result->epoch;
	r->report.mask[op] = result->mask.word[0];
	r->report.wait_ns = op == MOE_DISPATCH ? result->wait_ns : r->report.wait_ns;
	r->report.done_ns[op] = tool_now_ns();
	if (op == MOE_DISPATCH)
		r->report.living = result->epoch == r->known_epoch ? r->known : result->mask.word[0];
	if (op != MOE_ADMIT && op != MOE_SUM)
		return;
	r->known_epoch = result->epoch;
	r->known = result->mask.word[0];
}

/* Events of the group since the last step: when a rank was suspected, and when a view without one became active. */
static void listen_in(struct moe_rank *r)
{
	struct covey_event e;

	r->report.suspect_ns = r->report.view_ns = 0;
	while (!covey_event_next(r->group, &e)) {
		if (e.kind == COVEY_EVENT_SUSPECT && !r->report.suspect_ns)
			r->report.suspect_ns = e.time_ns;
		for (int q = 0; e.kind == COVEY_EVENT_VIEW && q < MOE_MAX_RANKS; q++)
			if (covey_mask_has(&e.left, q))
				r->report.view_ns = e.time_ns;
	}
}

/* A row is for all experts of this rank that its token names. */
static bool once(const struct moe_rank *r)
{
	return moe_once(r->opt->preset);
}

/* Buffers for the present layout. */
static int make_room(struct moe_rank *r, int size)
{
	size_t local, bins, rows, hidden = (size_t)r->model.shape.hidden, names;

	r->local = covey_ep_local_experts(r->ep);
	local = (size_t)r->local;
	bins = once(r) ? local > 0 : local;
	rows = (moe_close(r->opt->preset) ? local > 0 : bins) * (size_t)covey_ep_rows(r->ep);
	names = once(r) ? rows * (size_t)r->model.shape.top_k : 0;
	r->packed_x = moe_room(r->packed_x, 2 * rows * hidden);
	r->y = moe_room(r->y, 2 * rows * hidden);
	r->src_info = moe_room(r->src_info, rows * sizeof(*r->src_info));
	r->count = moe_room(r->count, local * sizeof(*r->count));
	r->range = moe_room(r->range, bins * (size_t)size * sizeof(*r->range));
	r->flat = moe_room(r->flat, rows * 2 * sizeof(*r->flat));
	r->triplets = moe_room(r->triplets, rows * 3 * sizeof(*r->triplets));
	r->recv_experts = moe_room(r->recv_experts, names * sizeof(*r->recv_experts));
	r->recv_weights = moe_room(r->recv_weights, names * sizeof(*r->recv_weights));
	return moe_device_room(r, size);
}

static int admit(struct moe_rank *r)
{
	struct covey_result result;
	int size, err = covey_admit(r->group, &r->state, sizeof(r->state), &result);

	if (err)
		return moe_rank_fail(r, "admit", err);
	note(r, MOE_ADMIT, &result);
	size = result.size;
	r->report.moved = r->report.made = 0;
	if (r->owner && size == r->state.size && (result.mask.word[0] & ~r->state.holders) == 0)
		return 0;
	if (r->state.size == 0) { /* the first step of all: every rank makes its own */
		r->state.size = size;
		r->state.holders = 0;
	}
	r->owner = moe_room(r->owner, (size_t)(r->model.shape.experts * r->model.places) * sizeof(*r->owner));
	err = covey_ep_remap(r->ep, NULL);
	if (err)
		return moe_rank_fail(r, "remap", err);
	err = moe_elastic_move(r, (int)r->state.size, r->state.holders & result.mask.word[0], size);
	if (err)
		return moe_rank_fail(r, "moving the experts", err);
	r->state.size = size;
	return make_room(r, size);
}

static int dispatch(struct moe_rank *r)
{
	const void *const in[] = { r->x, r->experts, r->weights }, *out[5] = { r->count, r->range };
	int outs = 2;
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_result result;
	int err;

	moe_model_batch(&r->model, r->state.step, r->self, r->x, r->experts, r->weights);
	err = moe_device_copies(r, false, in, 3);
	if (err)
		return err;
	args.num_tokens = r->model.shape.tokens;
	args.x = AT(r->x);
	args.experts = AT(r->experts);
	args.weights = r->device || once(r) ? AT(r->weights) : NULL;
	args.packed_x = AT(r->packed_x);
	args.count = AT(r->count);
	args.src_info = AT(r->src_info);
	args.range = AT(r->range);
	args.flat = r->opt->preset == COVEY_EP_FLAT ? AT(r->flat) : NULL;
	args.triplets = moe_close(r->opt->preset) ? AT(r->triplets) : NULL;
	args.recv_experts = once(r) ? r->recv_experts : NULL;
	args.recv_weights = once(r) ? r->recv_weights : NULL;
	args.route = r->route;
	args.placed = r->model.places > 1 ? AT(r->placed) : NULL;
	err = moe_device_outcome(r, covey_dispatch(r->ep, &args, STREAM, &result), &result);
	if (err)
		return moe_rank_fail(r, "dispatch", err);
	note(r, MOE_DISPATCH, &result);
	if (args.flat)
		out[outs++] = r->flat;
	if (args.triplets)
		out[outs++] = r->triplets;
	if (args.placed)
		out[outs++] = r->placed;
	return moe_device_copies(r, true, out, outs);
}

/* The sum of the experts here that the row names, by their weights. */
static void sum_row(struct moe_rank *r, const int *own, size_t row, float *sum)
{
	size_t hidden = (size_t)r->model.shape.hidden, top_k = (size_t)r->model.shape.top_k;
	uint16_t *y = r->y + row * hidden;

	memset(sum, 0, hidden * sizeof(*sum));
	for (size_t i = row * top_k; i < (row + 1) * top_k; i++) {
		if (r->recv_experts[i] < 0)
			continue;
		moe_expert_run(&r->model, own[r->recv_experts[i]], r->packed_x + row * hidden, y);
		for (size_t h = 0; h < hidden; h++)
			sum[h] += r->recv_weights[i] * moe_from_bf16(y[h]);
	}
	for (size_t h = 0; h < hidden; h++)
		y[h] = moe_to_bf16(sum[h]);
}

static void run_rows(struct moe_rank *r)
{
	int64_t last = r->local ? r->range[r->state.size - 1] : 0;
	size_t rows = (size_t)(last >> 32) + (size_t)(uint32_t)last;
	float *sum = moe_room(NULL, (size_t)r->model.shape.hidden * sizeof(*sum));
	int *own = moe_room(NULL, (size_t)r->local * sizeof(*own)), n = 0;

	for (int e = 0; e < r->model.shape.experts; e++)
		if (moe_owns(&r->model, r->owner, e, r->self))
			own[n++] = e;
	for (size_t row = 0; row < rows; row++)
		sum_row(r, own, row, sum);
	free(sum);
	free(own);
}

static int run_experts(struct moe_rank *r)
{
	size_t hidden = (size_t)r->model.shape.hidden, rows = (size_t)covey_ep_rows(r->ep);
	size_t le = 0, first = 0;

	if (r->device)
		return moe_device_experts(r);
	if (once(r)) {
		run_rows(r);
		return 0;
	}
	for (int e = 0; e < r->model.shape.experts; e++) {
		if (!moe_owns(&r->model, r->owner, e, r->self))
			continue;
		for (size_t i = 0; i < (size_t)r->count[le]; i++) {
			size_t at = (first + i) * hidden;

			moe_expert_run(&r->model, e, r->packed_x + at, r->y + at);
		}
		first += moe_close(r->opt->preset) ? (size_t)r->count[le] : rows;
		le++;
	}
	return 0;
}

static int combine(struct moe_rank *r)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	const void *const out[] = { r->out };
	struct covey_result result;
	int err;

	args.num_tokens = r->model.shape.tokens;
	args.y = AT(r->y);
	args.count = AT(r->count);
	args.src_info = AT(r->src_info);
	args.range = AT(r->range);
	args.experts = AT(r->experts);
	args.weights = AT(r->weights);
	args.out = AT(r->out);
	args.route = r->route;
	args.placed = r->model.places > 1 ? AT(r->placed) : NULL;
	err = moe_device_outcome(r, covey_combine(r->ep, &args, STREAM, &result), &result);
	if (err)
		return moe_rank_fail(r, "combine", err);
	note(r, MOE_COMBINE, &result);
	return moe_device_copies(r, true, out, 1);
}

/* Is an owner gone that had served own tokens? With one place each its tokens have no other, so the step goes on. */
static int lacks(const struct moe_rank *r)
{
	size_t n = (size_t)r->model.shape.tokens * (size_t)r->model.shape.top_k;

	for (size_t i = 0; r->model.places > 1 && i < n; i++)
		if (r->placed[i] >= 0 && !(r->report.mask[MOE_COMBINE] >> r->owner[r->placed[i]] & 1))
			return 1;
	return 0;
}

/*
 * Sums the ranks' results, their wishes to stop, so that all stop after the same step, and how many lack results, so
 * that all do the pair again.
 */
static int sum(struct moe_rank *r, int *again)
{
	size_t n = (size_t)r->model.shape.tokens * (size_t)r->model.shape.hidden;
	int64_t in[3] = { 0, 0, lacks(r) }, out[3];
	struct covey_result result;
	char word;
	int err;

	for (size_t i = 0; i < n; i++)
		in[0] += r->out[i];
	if (r->fd >= 0)
		in[1] = r->asked |= recv(r->fd, &word, 1, MSG_DONTWAIT) == 1;
	else
		in[1] = r->state.step + 1 >= (uint64_t)r->opt->steps;
	err = covey_allreduce(in, out, 3, COVEY_INT64, COVEY_SUM, r->group, NULL, &result);
	if (err)
		return moe_rank_fail(r, "allreduce", err);
	note(r, MOE_SUM, &result);
	r->report.sum = out[0];
	r->stop = out[1] > 0;
	*again = out[2] > 0;
	r->report.again += *again;
	r->state.holders = result.mask.word[0];
	return 0;
}

static int report(struct moe_rank *r)
{
	const struct moe_arrived arrived = { r->opt->preset, r->range, r->count, r->flat, r->triplets };
	struct moe_verdict *v = &r->report.verdict;

	r->report.kind = MOE_STEP;
	r->report.step = r->state.step;
	r->report.size = (int)r->state.size;
	r->report.local = r->local;
	r->report.fresh = r->fresh;
	listen_in(r);
	r->report.end_ns = tool_now_ns();
	moe_check(&r->ref, &r->report, &arrived, r->out, v);
	r->bad.wrong += v->wrong;
	r->bad.counts_bad += v->counts_bad;
	r->bad.lost += v->lost;
	return r->fd >= 0 && send(r->fd, &r->report, sizeof(r->report), MSG_NOSIGNAL) < 0 ? -1 : 0;
}

int moe_rank_step(struct moe_rank *r)
{
	int err = admit(r), again = 1;

	for (r->report.again = 0; !err && again;) {
		err = dispatch(r);
		if (!err)
			err = run_experts(r);
		if (!err)
			err = combine(r);
		if (!err)
			err = sum(r, &again);
	}
	if (!err)
		err = report(r);
	r->fresh = 0;
	r->state.step++;
	return err;
}
