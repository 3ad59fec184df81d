/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h for the device that is none: one stream, graphs that are lists of launches; and what tests do to a device. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static struct timespec marks[CVY_GPU_TOOL_MARKS];

static int tool_count(void)
{
	return 64;
}

static int tool_use(int device)
{
	return device < 64 ? 0 : COVEY_ERR_INVAL;
}

static const char *tool_why(void)
{
	return "the device that is none";
}

static int tool_alloc(size_t bytes, void **out)
{
	*out = fake_alloc(bytes);
	return *out ? 0 : COVEY_ERR_NOMEM;
}

static void tool_release(void *at)
{
	(void)at; /* the arena goes with the process */
}

static int tool_wait(struct CUstream_st *stream)
{
	(void)stream;
	return fake_poisoned ? COVEY_ERR_IO : fake_synchronise(fake_gpu);
}

static int tool_experts(struct CUstream_st *stream, const struct cvy_gpu_experts *e)
{
	(void)stream, (void)e;
	return COVEY_ERR_UNSUPPORTED;
}

static int tool_copy(void *to, const void *from, size_t bytes)
{
	int err = tool_wait(NULL);

	if (!err)
		memcpy(to, from, bytes);
	return err;
}

static int tool_fill(void *at, int byte, size_t bytes)
{
	int err = tool_wait(NULL);

	if (!err)
		memset(at, byte, bytes);
	return err;
}

static int tool_move(struct CUstream_st *stream, void *to, const void *from, size_t bytes)
{
	(void)stream;
	return tool_copy(to, from, bytes);
}

static int tool_scale(struct CUstream_st *stream, const struct cvy_gpu_scale *s)
{
	(void)stream, (void)s;
	return COVEY_ERR_UNSUPPORTED;
}

static int tool_share(void *at, uint8_t name[CVY_GPU_SHARED_BYTES])
{
	(void)at, (void)name;
	return COVEY_ERR_UNSUPPORTED;
}

static int tool_attach(const uint8_t name[CVY_GPU_SHARED_BYTES], void **out)
{
	(void)name, (void)out;
	return COVEY_ERR_UNSUPPORTED;
}

static void tool_detach(void *at)
{
	(void)at;
}

static int tool_heap(struct CUstream_st *stream, const struct cvy_gpu_heap *h)
{
	(void)stream, (void)h;
	return COVEY_ERR_UNSUPPORTED;
}

static int tool_sorted(struct CUstream_st *stream, const struct cvy_gpu_sorted *s, int step)
{
	(void)stream, (void)s, (void)step;
	return COVEY_ERR_UNSUPPORTED;
}

static size_t tool_room(void)
{
	return fake_room();
}

static int tool_stream(struct CUstream_st **out)
{
	*out = (struct CUstream_st *)fake_gpu; /* there is one */
	return 0;
}

static void tool_stream_end(struct CUstream_st *stream)
{
	(void)stream;
}

static int tool_mark(struct CUstream_st *stream, int which)
{
	struct launch *l = calloc(1, sizeof(*l));

	(void)stream;
	if (!l)
		return COVEY_ERR_NOMEM;
	l->mark = &marks[which];
	fake_queue(fake_gpu, l);
	return 0;
}

static int tool_between(int from, int to, double *us)
{
	*us = (double)(marks[to].tv_sec - marks[from].tv_sec) * 1e6 +
	      (double)(marks[to].tv_nsec - marks[from].tv_nsec) / 1e3;
	return 0;
}

static int tool_busy(struct CUstream_st *stream, int rounds)
{
	(void)stream, (void)rounds;
	return COVEY_ERR_UNSUPPORTED;
}

static int tool_order(struct CUstream_st *first, struct CUstream_st *then)
{
	(void)first, (void)then; /* there is one */
	return 0;
}

static int tool_capture(struct CUstream_st *stream)
{
	(void)stream;
	fake_graph = calloc(1, sizeof(*fake_graph));
	if (!fake_graph)
		return COVEY_ERR_NOMEM;
	fake_graph->last = &fake_graph->first;
	return 0;
}

static int tool_captured(struct CUstream_st *stream, struct cvy_gpu_graph **out)
{
	(void)stream;
	*out = fake_graph;
	fake_graph = NULL;
	return 0;
}

static int tool_replay(struct cvy_gpu_graph *graph, struct CUstream_st *stream)
{
	(void)stream;
	for (const struct launch *l = graph->first; l; l = l->next) {
		struct launch *again = fake_poisoned ? NULL : malloc(sizeof(*again));

		if (!again)
			return fake_poisoned ? COVEY_ERR_IO : COVEY_ERR_NOMEM;
		*again = *l;
		again->next = NULL;
		fake_queue(fake_gpu, again);
	}
	return 0;
}

static void tool_graph_end(struct cvy_gpu_graph *graph)
{
	for (struct launch *l = graph->first, *next; l; l = next) {
		next = l->next;
		free(l);
	}
	free(graph);
}

EXPORT extern const struct cvy_gpu_tool cvy_gpu_tool;
const struct cvy_gpu_tool cvy_gpu_tool = {
	.abi = CVY_GPU_TOOL_ABI,
	.count = tool_count,
	.use = tool_use,
	.why = tool_why,
	.alloc = tool_alloc,
	.release = tool_release,
	.share = tool_share,
	.attach = tool_attach,
	.detach = tool_detach,
	.copy = tool_copy,
	.fill = tool_fill,
	.move = tool_move,
	.room = tool_room,
	.stream = tool_stream,
	.stream_end = tool_stream_end,
	.wait = tool_wait,
	.experts = tool_experts,
	.scale = tool_scale,
	.sorted = tool_sorted,
	.heap = tool_heap,
	.busy = tool_busy,
	.order = tool_order,
	.mark = tool_mark,
	.between = tool_between,
	.capture = tool_capture,
	.captured = tool_captured,
	.replay = tool_replay,
	.graph_end = tool_graph_end,
};

/* ---- what tests do to a device ---- */

EXPORT int cvy_test_devices(void)
{
	return tool_count();
}

EXPORT void cvy_test_poison(struct CUstream_st *stream)
{
	(void)stream;
	__atomic_store_n(&fake_poisoned, 1, __ATOMIC_RELEASE);
}

EXPORT int cvy_test_stall(struct CUstream_st *stream, int ms)
{
	struct launch *l = calloc(1, sizeof(*l));

	(void)stream;
	if (!l)
		return COVEY_ERR_NOMEM;
	l->stall_ms = ms;
	fake_queue(fake_gpu, l);
	return 0;
}
