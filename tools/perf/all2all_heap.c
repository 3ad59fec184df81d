/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way by a heap (kernels/tool_heap.cu): each rank maps the memory of all others by CUDA IPC, and kernels do the rest.
 * A wait that takes too long ends all waits; the ranks agree on that, and the way is left out from then on.
 */
#include <stdlib.h>
#include <string.h>

#include "all2all.h"
#include "device.h"
#include "tool_heap.h"

#define WHOLE ((size_t)2 << 20)		 /* what CUDA IPC shares */
#define WAIT_TICKS UINT64_C(10000000000) /* of the device's clock: some seconds */
#define MISS_TICKS (WAIT_TICKS / 100)

struct heap_way {
	struct cvy_gpu_heap heap;
	void *mine;
	bool attached[PERF_A2A_RANKS];
};

static bool given_up;

static void say(const struct perf_a2a *a, const char *what)
{
	if (perf_speaks(a->job))
		printf("# heap: left out: %s\n", what);
	fflush(stdout);
}

/* The least of all ranks' answers, so that all branch the same way. */
static int all_say(struct perf_a2a *a, bool yes, bool *all)
{
	double value = yes;
	int err = perf_agree(a->job, &value, COVEY_MIN);

	*all = value > 0;
	return err;
}

static int allocate(struct perf_a2a *a, struct heap_way *w)
{
	const struct cvy_gpu_tool *tool = a->job->device->tool;
	struct cvy_heap_at at;
	size_t bytes;
	int err = 0;

	perf_a2a_routed(a, &w->heap.in);
	w->heap.most = a->shape->tokens;
	w->heap.rung = a->rung;
	w->heap.wait_ticks = a->job->opt.miss ? MISS_TICKS : WAIT_TICKS;
	at = cvy_heap_places(&w->heap.in, w->heap.most);
	w->heap.own = perf_a2a_part(a, at.own, &err);
	if (err)
		return err;
	bytes = (2 * at.half + WHOLE - 1) / WHOLE * WHOLE;
	err = tool->alloc(bytes, &w->mine);
	if (!err)
		err = tool->fill(w->mine, 0, bytes);
	w->heap.heap[a->job->rank] = w->mine;
	return err ? perf_device_failed(a->job, "a heap", err) : 0;
}

static bool attach(struct perf_a2a *a, struct heap_way *w, const uint8_t *names)
{
	const struct cvy_gpu_tool *tool = a->job->device->tool;

	for (int r = 0; r < a->job->size; r++) {
		void *at = NULL;

		if (r == a->job->rank)
			continue;
		if (tool->attach(names + r * CVY_GPU_SHARED_BYTES, &at))
			return false;
		w->heap.heap[r] = at;
		w->attached[r] = true;
	}
	return true;
}

static int connect(struct perf_a2a *a, struct heap_way *w, bool *is)
{
	uint8_t mine[CVY_GPU_SHARED_BYTES] = { 0 }, names[PERF_A2A_RANKS * CVY_GPU_SHARED_BYTES];
	bool can = !a->job->device->tool->share(w->mine, mine);
	int err = all_say(a, can, is);

	if (!err && *is)
		err = covey_allgather(mine, names, sizeof(mine), COVEY_UINT8, a->job->group, NULL, NULL);
	if (err || !*is)
		return err;
	return all_say(a, attach(a, w, names), is);
}

/* Memory is released when nobody has it mapped: if a rank does not say so, it stays. */
static void close_heap(struct perf_a2a *a, void *state)
{
	struct heap_way *w = state;
	bool all = false;

	if (!w)
		return;
	a->job->device->tool->wait(a->job->device->stream);
	for (int r = 0; r < a->job->size; r++)
		if (w->attached[r])
			a->job->device->tool->detach(w->heap.heap[r]);
	if (w->mine && !all_say(a, true, &all) && perf_live(a->job) == a->job->size)
		a->job->device->tool->release(w->mine);
	free(w);
}

static int open_heap(struct perf_a2a *a, void **state)
{
	struct heap_way *w;
	bool is = false;
	int err;

	if (!a->job->device || a->job->opt.alone || given_up || !(a->job->opt.rungs >> a->rung & 1))
		return 0;
	w = calloc(1, sizeof(*w));
	if (!w)
		return perf_fail(a->job, "a heap", COVEY_ERR_NOMEM);
	err = allocate(a, w);
	if (!err)
		err = connect(a, w, &is);
	if (!err && is) {
		*state = w;
		return 0;
	}
	if (!err) {
		say(a, a->job->device->tool->why());
		given_up = true;
	}
	close_heap(a, w);
	return err;
}

static int pair(struct perf_a2a *a, void *state)
{
	struct heap_way *w = state;
	struct perf_device *d = a->job->device;
	bool misses = a->job->opt.miss && a->job->rank == a->job->size - 1;
	int err = misses ? 0 : d->tool->heap(d->stream, &w->heap);

	return err ? perf_device_failed(a->job, "a turn of the way by a heap", err) : 0;
}

static int late(struct perf_a2a *a, void *state, bool *is)
{
	struct heap_way *w = state;
	struct cvy_heap_words words;
	bool in_time;
	int err = a->job->device->tool->copy(&words, w->heap.own, sizeof(words));

	if (err)
		return perf_device_failed(a->job, "what the way by a heap says", err);
	err = all_say(a, !words.late, &in_time);
	*is = !in_time;
	if (err || in_time)
		return err;
	say(a, "a rank waited for some seconds in vain");
	given_up = true;
	return 0;
}

#define RUNG(which) \
	{ \
		.open = open_heap, .pair = pair, .again = pair, .late = late, .close = close_heap, .rung = which \
	}

const struct perf_way perf_way_heap[PERF_RUNGS] = { RUNG(CVY_GPU_HEAP_PEER), RUNG(CVY_GPU_HEAP_TOKEN),
						    RUNG(CVY_GPU_HEAP_FUSED), RUNG(CVY_GPU_HEAP_NOCLEAR),
						    RUNG(CVY_GPU_HEAP_EVEN) };
