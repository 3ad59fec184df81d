/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h by the CUDA runtime. */
#include <cuda_runtime.h>
#include <stdio.h>

#include "covey.h"
#include "tool.h"

static char why[200];
static cudaEvent_t marks[2];

static int check(cudaError_t got, const char *what)
{
	if (got == cudaSuccess)
		return 0;
	snprintf(why, sizeof(why), "%s: %s", what, cudaGetErrorString(got));
	return got == cudaErrorMemoryAllocation ? COVEY_ERR_NOMEM : COVEY_ERR_IO;
}

static int tool_count(void)
{
	int count;

	return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

static int tool_use(int device)
{
	return check(cudaSetDevice(device), "choosing the device");
}

static const char *tool_why(void)
{
	return why;
}

static int tool_alloc(size_t bytes, void **out)
{
	return check(cudaMalloc(out, bytes), "memory");
}

static void tool_release(void *at)
{
	cudaFree(at);
}

static int tool_copy(void *to, const void *from, size_t bytes)
{
	int err = check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "a copy");

	/* Of pageable memory it returns when that is staged; streams that wait for no other would read what was there before. */
	return err ? err : check(cudaStreamSynchronize(NULL), "a copy");
}

static int tool_fill(void *at, int byte, size_t bytes)
{
	int err = check(cudaMemset(at, byte, bytes), "filling memory");

	return err ? err : check(cudaStreamSynchronize(NULL), "filling memory");
}

static size_t tool_room(void)
{
	size_t left, total;

	return cudaMemGetInfo(&left, &total) == cudaSuccess ? left : 0;
}

static int tool_stream(struct CUstream_st **out)
{
	return check(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "a stream");
}

static void tool_stream_end(struct CUstream_st *stream)
{
	cudaStreamDestroy(stream);
}

static int tool_wait(struct CUstream_st *stream)
{
	return check(cudaStreamSynchronize(stream), "waiting for a stream");
}

static int tool_mark(struct CUstream_st *stream, int which)
{
	int err = marks[which] ? 0 : check(cudaEventCreate(&marks[which]), "an event");

	return err ? err : check(cudaEventRecord(marks[which], stream), "an event");
}

static int tool_between(double *us)
{
	float ms = 0;
	int err = check(cudaEventElapsedTime(&ms, marks[0], marks[1]), "the time between events");

	*us = (double)ms * 1000;
	return err;
}

static int tool_capture(struct CUstream_st *stream)
{
	return check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
}

static int tool_captured(struct CUstream_st *stream, struct cvy_gpu_graph **out)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	int err = check(cudaStreamEndCapture(stream, &graph), "capturing");

	if (err)
		return err;
	err = check(cudaGraphInstantiate(&exec, graph, 0), "making a graph");
	cudaGraphDestroy(graph);
	*out = (struct cvy_gpu_graph *)exec;
	return err;
}

static int tool_replay(struct cvy_gpu_graph *graph, struct CUstream_st *stream)
{
	return check(cudaGraphLaunch((cudaGraphExec_t)graph, stream), "launching a graph");
}

static void tool_graph_end(struct cvy_gpu_graph *graph)
{
	cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

extern "C" __attribute__((visibility("default"))) const struct cvy_gpu_tool cvy_gpu_tool = {
	CVY_GPU_TOOL_ABI, tool_count,	tool_use,     tool_why,	     tool_alloc,      tool_release,
	tool_copy,	  tool_fill,	tool_room,    tool_stream,   tool_stream_end, tool_wait,
	tool_mark,	  tool_between, tool_capture, tool_captured, tool_replay,     tool_graph_end,
};
