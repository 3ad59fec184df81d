/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain program on NCCL: entries are ordered by owner; counts are exchanged and read by the host; rows and the numbers of
 * their experts go by one group of sends and receives; experts multiply; rows go back the same way and are summed. A graph
 * cannot read counts, so `again` takes those of the last pair: what NCCL could do at best.
 */
#include <stdlib.h>

#include "all2all.h"
#include "device.h"

struct nccl_way {
	struct cvy_gpu_sorted sorted;
	int32_t *their_counts; /* device: [size] behind the own ones */
	int32_t counts[2][PERF_A2A_RANKS];
};

static int open_nccl(struct perf_a2a *a, void **state)
{
	size_t entries = (size_t)a->n * (size_t)a->shape->topk, row = (size_t)a->shape->hidden * 2;
	size_t came = (size_t)a->job->size * (size_t)a->shape->tokens * (size_t)a->shape->topk;
	struct nccl_way *w;
	int err = 0;

	if (!a->job->device || !a->job->device->nccl)
		return 0;
	w = *state = calloc(1, sizeof(*w));
	if (!w)
		return perf_fail(a->job, "NCCL", COVEY_ERR_NOMEM);
	perf_a2a_routed(a, &w->sorted.in);
	w->sorted.count = perf_a2a_part(a, 2 * (size_t)a->job->size * sizeof(int32_t), &err);
	w->their_counts = w->sorted.count + a->job->size;
	w->sorted.place = perf_a2a_part(a, entries * sizeof(int32_t), &err);
	w->sorted.rows = perf_a2a_part(a, entries * row, &err);
	w->sorted.experts = perf_a2a_part(a, entries * sizeof(int32_t), &err);
	w->sorted.theirs = perf_a2a_part(a, came * row, &err);
	w->sorted.their_experts = perf_a2a_part(a, came * sizeof(int32_t), &err);
	return err;
}

static void close_nccl(struct perf_a2a *a, void *state)
{
	(void)a;
	free(state);
}

static int step(struct perf_a2a *a, struct nccl_way *w, int which)
{
	struct perf_device *d = a->job->device;
	int err = d->tool->sorted(d->stream, &w->sorted, which);

	return err ? perf_device_failed(a->job, "a step of the way by NCCL", err) : 0;
}

static int swap(struct perf_a2a *a, const struct perf_swap *swaps, int count)
{
	int err = perf_nccl_swap(a->job->device->nccl, swaps, count, a->job->device->stream);

	return err ? perf_fail(a->job, "NCCL's sends and receives", err) : 0;
}

static int swap_counts(struct perf_a2a *a, struct nccl_way *w)
{
	struct perf_device *d = a->job->device;
	size_t bytes = (size_t)a->job->size * sizeof(int32_t);
	struct perf_swap swaps[PERF_A2A_RANKS];
	int err;

	for (int r = 0; r < a->job->size; r++)
		swaps[r] = (struct perf_swap){ r, w->sorted.count + r, w->their_counts + r, sizeof(int32_t),
					       sizeof(int32_t) };
	err = swap(a, swaps, a->job->size);
	if (!err)
		err = d->tool->move(d->stream, w->counts[0], w->sorted.count, bytes);
	if (!err)
		err = d->tool->move(d->stream, w->counts[1], w->their_counts, bytes);
	if (!err)
		err = d->tool->wait(d->stream);
	w->sorted.came = 0;
	for (int r = 0; r < a->job->size && !err; r++)
		w->sorted.came += w->counts[1][r];
	return err;
}

/* What lies at @own by owner, and at @theirs by source, @each bytes an entry: there, or back. */
static void make_swaps(const struct perf_a2a *a, const struct nccl_way *w, void *own, void *theirs, size_t each,
		       bool back, struct perf_swap *swaps)
{
	char *at[2] = { own, theirs };

	for (int r = 0; r < a->job->size; r++) {
		size_t bytes[2] = { (size_t)w->counts[0][r] * each, (size_t)w->counts[1][r] * each };

		swaps[r] = (struct perf_swap){ r, at[back], at[!back], bytes[back], bytes[!back] };
		at[0] += bytes[0];
		at[1] += bytes[1];
	}
}

/* Behind the order of entries. */
static int rest(struct perf_a2a *a, struct nccl_way *w)
{
	struct cvy_gpu_sorted *s = &w->sorted;
	struct perf_swap swaps[2 * PERF_A2A_RANKS];
	size_t row = (size_t)a->shape->hidden * 2;
	int err = step(a, w, CVY_GPU_SORTED_PACK), size = a->job->size;

	make_swaps(a, w, s->rows, s->theirs, row, false, swaps);
	make_swaps(a, w, s->experts, (void *)(uintptr_t)s->their_experts, sizeof(int32_t), false, swaps + size);
	if (!err)
		err = swap(a, swaps, 2 * size);
	if (!err)
		err = step(a, w, CVY_GPU_SORTED_APPLY);
	make_swaps(a, w, s->rows, s->theirs, row, true, swaps);
	if (!err)
		err = swap(a, swaps, size);
	return err ? err : step(a, w, CVY_GPU_SORTED_SUM);
}

static int pair(struct perf_a2a *a, void *state)
{
	int err = step(a, state, CVY_GPU_SORTED_ORDER);

	if (!err)
		err = swap_counts(a, state);
	return err ? err : rest(a, state);
}

static int again(struct perf_a2a *a, void *state)
{
	int err = step(a, state, CVY_GPU_SORTED_ORDER);

	return err ? err : rest(a, state);
}

const struct perf_way perf_way_nccl = { .open = open_nccl, .pair = pair, .again = again, .close = close_nccl };
