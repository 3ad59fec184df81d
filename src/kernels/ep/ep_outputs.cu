/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel after a dispatch that was asked for more outputs: they follow from its counts, its ranges and its route. It
 * writes what ep_outputs.c writes on hosts. A dispatch that ended without an outcome may have left any words there: none is
 * used as a place before it has been checked.
 */
#include "ep_outputs.h"
#include "gpu_state.cuh"
#include "word.cuh"

#define THREADS CVY_EP_BESIDE_THREADS

/* Rows of a bin in the buffers; of all, if they stand close. */
static CVY_GPU_BOTH size_t rows_of(const struct cvy_ep_outputs *o)
{
	return o->kept ? (size_t)o->kept : (size_t)o->size * (size_t)o->tokens;
}

static CVY_GPU_BOTH size_t own_of(const struct cvy_ep_outputs *o)
{
	return o->placed ? (size_t)o->num_tokens * (size_t)o->top_k : 0;
}

/* How many times these. */
static CVY_GPU_BOTH size_t bins_of(const struct cvy_ep_outputs *o)
{
	return o->once || o->kept ? o->el > 0 : (size_t)o->el;
}

/* One CTA: to[i] = value(0) + ... + value(i), each thread a part of them. */
template <typename T, typename VALUE> static __device__ __forceinline__ void sum_up(int n, T *to, VALUE value)
{
	__shared__ int64_t part[THREADS];
	const int each = (n + THREADS - 1) / THREADS, first = (int)threadIdx.x * each;
	const int end = first + each < n ? first + each : n;
	int64_t sum = 0;

#pragma unroll 1
	for (int i = first; i < end; i++)
		sum += value(i);
	part[threadIdx.x] = sum;
	__syncthreads();
	sum = 0;
#pragma unroll 1
	for (int i = 0; i < (int)threadIdx.x && first < end; i++)
		sum += part[i];
#pragma unroll 1
	for (int i = first; i < end; i++) {
		sum += value(i);
		to[i] = (T)sum;
	}
	__syncthreads(); /* before the next sums */
}

/* One CTA. */
static __device__ __forceinline__ void write_counts(const struct cvy_ep_outputs *o)
{
	auto rows = [&](int e) { return ((int64_t)o->count[e] + o->alignment - 1) / o->alignment * o->alignment; };

	if (o->expert_tokens && o->sums)
		sum_up(o->el, o->expert_tokens, rows);
#pragma unroll 1
	for (int e = (int)threadIdx.x; o->expert_tokens && !o->sums && e < o->el; e += THREADS)
		o->expert_tokens[e] = rows(e);
	if (o->recv_counts)
		sum_up(o->el * o->size, o->recv_counts, [&](int run) { return o->range[run] >> 32; });
}

/* By the route: entry @i is of a source, its token and k, and names a row here or none. */
static __device__ __forceinline__ void write_origin(const struct cvy_ep_outputs *o, size_t i)
{
	const int of_source = o->tokens * o->top_k, source = (int)(i / (size_t)of_source);
	const int flat = (int)(i % (size_t)of_source);
	const int32_t row = o->route[i];

	if (row < 0 || (size_t)row >= bins_of(o) * rows_of(o))
		return;
	o->triplets[(size_t)row * 3] = source;
	o->triplets[(size_t)row * 3 + 1] = flat / o->top_k;
	o->triplets[(size_t)row * 3 + 2] = flat % o->top_k;
}

/* Row @i, if it is past the last one of its bin. */
static __device__ __forceinline__ void fill_tail(const struct cvy_ep_outputs *o, size_t i)
{
	const size_t bin = i / rows_of(o);
	const int64_t last = o->range[(o->kept ? (size_t)o->el : bin + 1) * (size_t)o->size - 1];

	if (i % rows_of(o) < (size_t)(uint32_t)last + (size_t)(last >> 32 & 0xffffffff))
		return;
	o->src_info[i] = -1;
#pragma unroll 1
	for (int c = 0; c < 3 && o->triplets; c++)
		o->triplets[i * 3 + c] = -1;
#pragma unroll 1
	for (int c = 0; c < 2 && o->flat; c++)
		o->flat[i * 2 + c] = -1;
#pragma unroll 1
	for (int k = 0; k < o->top_k && o->once; k++) {
		o->recv_experts[i * (size_t)o->top_k + k] = -1;
		o->recv_weights[i * (size_t)o->top_k + k] = 0;
	}
}

/* Entries of the route, if triplets are asked for; rows, if tails are. */
CVY_GPU_BOTH static inline size_t entries_of(const struct cvy_ep_outputs *o)
{
	return o->triplets ? (size_t)o->size * (size_t)o->tokens * (size_t)o->top_k : 0;
}

CVY_GPU_BOTH static inline size_t tails_of(const struct cvy_ep_outputs *o)
{
	return o->fill_tail ? bins_of(o) * rows_of(o) : 0;
}

CVY_GPU_BOTH static inline int ctas_of(const struct cvy_ep_outputs *o)
{
	const size_t entries = entries_of(o), tails = tails_of(o), own = own_of(o);

	return cvy_ep_beside_ctas(own > entries && own > tails ? own : entries > tails ? entries : tails);
}

static __global__ void __launch_bounds__(THREADS) write_outputs(const __grid_constant__ struct cvy_ep_outputs o)
{
	const size_t step = (size_t)ctas_of(&o) * THREADS, at = (size_t)blockIdx.x * THREADS + threadIdx.x;

	cvy_wait_for_stream();
	if (blockIdx.x == 0 && o.el)
		write_counts(&o);
#pragma unroll 1
	for (size_t i = at; i < own_of(&o); i += step)
		o.placed[i] = o.sent[i] < 0 ? -1 : o.sent[i];
#pragma unroll 1
	for (size_t i = at; i < entries_of(&o); i += step)
		write_origin(&o, i);
#pragma unroll 1
	for (size_t i = at; i < tails_of(&o); i += step)
		fill_tail(&o, i);
}

int cvy_ep_write_outputs(struct cvy_gpu *gpu, const struct cvy_ep_outputs *o, struct CUstream_st *stream)
{
	return cvy_gpu_launch_beside<write_outputs>(gpu, ctas_of(o), THREADS, *o, stream,
						    "launching the outputs of a dispatch");
}
