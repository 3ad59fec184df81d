/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h by the CUDA runtime. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "covey.h"
#include "tool.h"

static char why[200];
static cudaEvent_t marks[CVY_GPU_TOOL_MARKS], order;

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

#define EXPERT_THREADS 256
#define EXPERT_CTAS 8 /* of an expert: each has every eighth row */
#define ALL 0xffffffffu

/* The first row of expert @e; close: behind those of the experts before it. */
static __device__ __forceinline__ size_t first_row(const int32_t *count, int rows, int close, int e)
{
	size_t first = 0;

	if (!close)
		return (size_t)e * (size_t)rows;
	for (int i = 0; i < e; i++)
		first += (size_t)count[i];
	return first;
}

/* Eight threads: the product of @n weights and values. The order of additions is the host's. */
template <typename VALUE> static __device__ __forceinline__ float dot(const float *weight, VALUE value, int n)
{
	int first = (int)(threadIdx.x % 32) / 8 * 8;
	float sum = 0, own = 0;

	for (int i = (int)(threadIdx.x % 8); i < n / 8 * 8; i += 8)
		own += weight[i] * value(i);
	for (int i = n / 8 * 8; i < n; i++)
		sum += weight[i] * value(i);
	for (int l = 0; l < 8; l++)
		sum += __shfl_sync(ALL, own, first + l);
	return sum;
}

/* A CTA: one row. */
static __device__ __forceinline__ void expert_row(const struct cvy_gpu_experts *a, const float *first,
						  const uint16_t *x, uint16_t *y)
{
	__shared__ float inner[CVY_GPU_EXPERT_FFN];
	const float *second = first + (size_t)a->ffn * (size_t)a->hidden;
	int group = (int)threadIdx.x / 8, groups = EXPERT_THREADS / 8;

	for (int f = group; f - group < a->ffn; f += groups) {
		int in = f < a->ffn; /* all threads of a warp go round as often */
		float sum = dot(
			first + (size_t)(in ? f : 0) * (size_t)a->hidden,
			[=](int i) { return __uint_as_float((uint32_t)x[i] << 16); }, a->hidden);

		if (in && threadIdx.x % 8 == 0)
			inner[f] = sum > 0 ? sum : 0;
	}
	__syncthreads();
	for (int h = group; h - group < a->hidden; h += groups) {
		int in = h < a->hidden;
		float sum = dot(
			second + (size_t)(in ? h : 0) * (size_t)a->ffn, [=](int i) { return inner[i]; }, a->ffn);

		if (in && threadIdx.x % 8 == 0)
			y[h] = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
	}
	__syncthreads();
}

static __global__ void __launch_bounds__(EXPERT_THREADS) experts(const __grid_constant__ struct cvy_gpu_experts a)
{
	size_t e = blockIdx.x / EXPERT_CTAS, hidden = (size_t)a.hidden;
	size_t first = first_row(a.count, a.rows, a.close, (int)e);
	const float *weights = a.weights + e * 2 * (size_t)a.ffn * hidden;

	for (int i = (int)(blockIdx.x % EXPERT_CTAS); i < a.count[e] && i < a.rows; i += EXPERT_CTAS) {
		size_t at = (first + (size_t)i) * hidden;

		expert_row(&a, weights, a.x + at, a.y + at);
	}
}

#define BUSY_THREADS 512

struct busy_args {
	int rounds;
	float *never; /* written to */
};

static __global__ void __launch_bounds__(BUSY_THREADS) busy(const __grid_constant__ struct busy_args a)
{
	float x = (float)threadIdx.x, y = x + 1;

	for (int i = 0; i < a.rounds; i++) {
		x = x * 0.5f + 1;
		y = y * 0.5f + x;
	}
	if (x + y == -1) /* or the compiler would leave it all out */
		*a.never = x;
}

/* Kernels are loaded here: later the driver may wait for all that runs. */
static int tool_use(int device)
{
	struct cudaFuncAttributes unused;
	int err = check(cudaSetDevice(device), "choosing the device");

	if (!err)
		err = check(cudaFuncGetAttributes(&unused, (const void *)experts), "loading the kernels");
	if (!err)
		err = check(cudaFuncGetAttributes(&unused, (const void *)busy), "loading the kernels");
	return err;
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

static int tool_experts(struct CUstream_st *stream, const struct cvy_gpu_experts *e)
{
	cudaLaunchConfig_t config = {
		dim3((unsigned)e->experts * EXPERT_CTAS), dim3(EXPERT_THREADS), 0, stream, NULL, 0
	};

	if (e->ffn > CVY_GPU_EXPERT_FFN) {
		snprintf(why, sizeof(why), "experts of %d inner elements: there is room for %d", e->ffn,
			 CVY_GPU_EXPERT_FFN);
		return COVEY_ERR_UNSUPPORTED;
	}
	if (!e->experts)
		return 0;
	return check(cudaLaunchKernelEx(&config, experts, *e), "launching experts");
}

static int tool_busy(struct CUstream_st *stream, int rounds)
{
	struct busy_args a = { rounds, NULL };
	int device, ctas = 0, room = 0;
	cudaError_t got = cudaGetDevice(&device);
	cudaLaunchConfig_t config = { dim3(1), dim3(BUSY_THREADS), 0, stream, NULL, 0 };

	if (got == cudaSuccess)
		got = cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device);
	if (got == cudaSuccess)
		got = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
	if (got == cudaSuccess)
		got = cudaFuncSetAttribute((const void *)busy, cudaFuncAttributeMaxDynamicSharedMemorySize, room);
	config.gridDim = dim3((unsigned)ctas);
	config.dynamicSmemBytes = (size_t)room;
	return check(got == cudaSuccess ? cudaLaunchKernelEx(&config, busy, a) : got, "launching a busy kernel");
}

static int tool_order(struct CUstream_st *first, struct CUstream_st *then)
{
	int err = order ? 0 : check(cudaEventCreateWithFlags(&order, cudaEventDisableTiming), "an event");

	if (!err)
		err = check(cudaEventRecord(order, first), "an event");
	return err ? err : check(cudaStreamWaitEvent(then, order, 0), "a stream that waits for another");
}

static int tool_mark(struct CUstream_st *stream, int which)
{
	int err = marks[which] ? 0 : check(cudaEventCreate(&marks[which]), "an event");

	return err ? err : check(cudaEventRecord(marks[which], stream), "an event");
}

static int tool_between(int from, int to, double *us)
{
	float ms = 0;
	int err = check(cudaEventElapsedTime(&ms, marks[from], marks[to]), "the time between events");

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
	CVY_GPU_TOOL_ABI, tool_count, tool_use,	    tool_why,	     tool_alloc,    tool_release, tool_copy,
	tool_fill,	  tool_room,  tool_stream,  tool_stream_end, tool_wait,	    tool_experts, tool_busy,
	tool_order,	  tool_mark,  tool_between, tool_capture,    tool_captured, tool_replay,  tool_graph_end,
};
