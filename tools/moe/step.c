/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a rank: admit, dispatch, experts, combine, allreduce, and the report of the results. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "device.h"

static void note(struct moe_rank *r, int op, const struct covey_result *result)
{
	r->report.epoch[op] = result->epoch;
	r->report.mask[op] = result->mask.word[0];
	r->report.wait_ns[op] = result->wait_ns;
	r->report.done_ns[op] = moe_now_ns();
}

static void write_down(struct moe_report *report, const struct covey_event *e, int rank)
{
	if (report->notes < MOE_MAX_NOTES)
		report->note[report->notes++] =
			(struct moe_note){ e->kind == COVEY_EVENT_VIEW, rank, e->epoch, e->time_ns };
}

/* Events of the group since the last step: suspected and departed ranks. */
static void listen_in(struct moe_rank *r)
{
	struct covey_event e;

	r->report.notes = 0;
	while (!covey_event_next(r->group, &e)) {
		if (e.kind == COVEY_EVENT_SUSPECT && e.rank >= 0)
			write_down(&r->report, &e, e.rank);
		for (int q = 0; e.kind == COVEY_EVENT_VIEW && q < MOE_MAX_RANKS; q++)
			if (covey_mask_has(&e.left, q))
				write_down(&r->report, &e, q);
	}
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
	r->owner = moe_room(r->owner, (size_t)r->model.shape.experts * sizeof(*r->owner));
	err = covey_ep_remap(r->ep, NULL);
	if (err)
		return moe_rank_fail(r, "remap", err);
	err = moe_elastic_move(r, (int)r->state.size, r->state.holders & result.mask.word[0], size);
	if (err)
		return moe_rank_fail(r, "moving the experts", err);
	r->state.size = size;
	return moe_elastic_room(r, size);
}

static int dispatch(struct moe_rank *r)
{
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_result result;
	int err;

	moe_model_batch(&r->model, r->state.step, r->self, r->x, r->experts, r->weights);
	args.num_tokens = r->model.shape.tokens;
	args.x = r->x;
	args.experts = r->experts;
	args.packed_x = r->packed_x;
	args.count = r->count;
	args.src_info = r->src_info;
	args.range = r->range;
	err = r->device ? moe_device_dispatch(r, &args, &result) : covey_dispatch(r->ep, &args, NULL, &result);
	if (err)
		return moe_rank_fail(r, "dispatch", err);
	note(r, MOE_DISPATCH, &result);
	return 0;
}

static int run_experts(struct moe_rank *r)
{
	size_t hidden = (size_t)r->model.shape.hidden, rows = (size_t)covey_ep_rows(r->ep);
	size_t le = 0;

	if (r->device)
		return moe_device_experts(r);
	for (int e = 0; e < r->model.shape.experts; e++) {
		if (r->owner[e] != r->self)
			continue;
		for (size_t i = 0; i < (size_t)r->count[le]; i++) {
			size_t at = (le * rows + i) * hidden;

			moe_expert_run(&r->model, e, r->packed_x + at, r->y + at);
		}
		le++;
	}
	return 0;
}

static int combine(struct moe_rank *r)
{
	struct covey_combine_args args = COVEY_COMBINE_INIT;
	struct covey_result result;
	int err;

	args.num_tokens = r->model.shape.tokens;
	args.y = r->y;
	args.count = r->count;
	args.src_info = r->src_info;
	args.range = r->range;
	args.experts = r->experts;
	args.weights = r->weights;
	args.out = r->out;
	err = r->device ? moe_device_combine(r, &args, &result) : covey_combine(r->ep, &args, NULL, &result);
	if (err)
		return moe_rank_fail(r, "combine", err);
	note(r, MOE_COMBINE, &result);
	return 0;
}

/* Sums the ranks' results, and their wishes to stop: so all stop after the same step. */
static int sum(struct moe_rank *r)
{
	size_t n = (size_t)r->model.shape.tokens * (size_t)r->model.shape.hidden;
	struct covey_result result;
	int64_t in[2] = { 0, 0 }, out[2];
	char word;
	int err;

	for (size_t i = 0; i < n; i++)
		in[0] += r->out[i];
	if (r->fd >= 0)
		in[1] = recv(r->fd, &word, 1, MSG_DONTWAIT) == 1;
	else
		in[1] = r->state.step + 1 >= (uint64_t)r->opt->steps;
	err = covey_allreduce(in, out, 2, COVEY_INT64, COVEY_SUM, r->group, NULL, &result);
	if (err)
		return moe_rank_fail(r, "allreduce", err);
	note(r, MOE_SUM, &result);
	r->report.sum = out[0];
	r->stop = out[1] > 0;
	r->state.holders = result.mask.word[0];
	return 0;
}

static int send_step(struct moe_rank *r)
{
	const struct moe_shape *s = &r->model.shape;
	size_t ranges = (size_t)r->local * (size_t)r->state.size * sizeof(*r->range),
	       counts = (size_t)r->local * sizeof(*r->count);
	size_t rows = 2 * (size_t)s->tokens * (size_t)s->hidden;
	struct moe_verdict v;
	uint8_t *body;
	int err = 0;

	r->report.kind = MOE_STEP;
	r->report.step = r->state.step;
	r->report.size = (int32_t)r->state.size;
	r->report.tokens = s->tokens;
	r->report.local = r->local;
	r->report.fresh = r->fresh;
	listen_in(r);
	r->report.end_ns = moe_now_ns();
	r->report.body = (uint32_t)(ranges + counts + rows);
	body = moe_room(NULL, r->report.body);
	memcpy(body, r->range, ranges);
	memcpy(body + ranges, r->count, counts);
	memcpy(body + ranges + counts, r->out, rows);
	if (r->fd >= 0) {
		err = moe_write(r->fd, &r->report, sizeof(r->report)) || moe_write(r->fd, body, r->report.body);
	} else {
		moe_check(&r->ref, &r->report, body, &v);
		r->bad.wrong += v.wrong;
		r->bad.counts_bad += v.counts_bad;
		r->bad.lost += v.lost;
	}
	free(body);
	return err ? -1 : 0;
}

int moe_rank_step(struct moe_rank *r)
{
	int err = admit(r);

	if (!err)
		err = dispatch(r);
	if (!err)
		err = run_experts(r);
	if (!err)
		err = combine(r);
	if (!err)
		err = sum(r);
	if (!err)
		err = send_step(r);
	r->fresh = 0;
	r->state.step++;
	return err;
}
