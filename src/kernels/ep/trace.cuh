/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks of a trace (trace.h). CVY_TRACED(HEAR, step) records an event from there to the end of the block, or to
 * CVY_TRACED_NEXT() in that block, where another event of the row begins. Without -DCOVEY_TRACE=ON marks are nothing.
 */
#ifndef CVY_TRACE_CUH
#define CVY_TRACE_CUH

#include "layout.h"
#include "trace.h"

#if !CVY_TRACES

#define CVY_TRACED(tag, id) ((void)0)
#define CVY_TRACED_NEXT(tag, id) ((void)0)
#define CVY_TRACED_CTA(call, phases, op) ((void)0)

#else

#include "word.cuh"

#define CVY_TRACED(tag, id) struct cvy_traced traced(CVY_TRACE_##tag, (uint64_t)(id))
#define CVY_TRACED_NEXT(tag, id) traced.next(CVY_TRACE_##tag, (uint64_t)(id))
/* All threads of a kernel, before its first barrier: from here to its end. @op is thread 0's. */
#define CVY_TRACED_CTA(call, phases, op) const struct cvy_traced_cta traced(call, phases, op)

/* Of a CTA, in shared memory: warps count their events there, since a count in device memory would be far. */
struct cvy_trace_here {
	uint64_t *ring; /* NULL: nothing is recorded */
	unsigned count;
};

static __device__ __forceinline__ struct cvy_trace_here *cvy_trace_here(void)
{
	__shared__ struct cvy_trace_here here;

	return &here;
}

/* One thread. */
static __device__ __forceinline__ void cvy_trace_put(uint64_t start, uint64_t duration, uint64_t tag, uint64_t id)
{
	struct cvy_trace_here *here = cvy_trace_here();
	uint64_t *at = here->ring + 1 + (size_t)(atomicAdd(&here->count, 1u) % CVY_TRACE_EVENTS) * 4;

	at[0] = start;
	at[1] = duration;
	at[2] = tag;
	at[3] = id;
}

/* One thread: both clocks, at once. */
static __device__ __forceinline__ void cvy_trace_clocks(enum cvy_trace_tag tag, uint64_t id)
{
	const uint64_t cycles = clock64();

	cvy_trace_put(cvy_global_ns(), cycles, tag, id);
}

/* Is this the thread that records in the row? */
static __device__ __forceinline__ int cvy_trace_mine(enum cvy_trace_row row)
{
	if (row == CVY_TRACE_FROM)
		return threadIdx.x % 32 == 0;
	return threadIdx.x == (row == CVY_TRACE_PUTS ? blockDim.x - 32 : 0);
}

static __device__ constexpr enum cvy_trace_row cvy_trace_row_of(int tag)
{
#define CVY_TRACE_ROW(name, text, row, id) tag == CVY_TRACE_##name ? CVY_TRACE_##row:
	return CVY_TRACE_LIST(CVY_TRACE_ROW) CVY_TRACE_LANE;
#undef CVY_TRACE_ROW
}

struct cvy_traced {
	uint64_t start, id; /* start 0: another thread records */
	int tag;

	__device__ __forceinline__ cvy_traced(int first_tag, uint64_t first_id)
	{
		const int mine = cvy_trace_mine(cvy_trace_row_of(first_tag)) && cvy_trace_here()->ring;

		start = mine ? clock64() : 0;
		tag = first_tag;
		id = first_id;
	}

	__device__ __forceinline__ void next(int next_tag, uint64_t next_id)
	{
		uint64_t until = start ? clock64() : 0;

		if (start)
			cvy_trace_put(start, until - start, (uint64_t)tag, id);
		start = until;
		tag = next_tag;
		id = next_id;
	}

	__device__ __forceinline__ ~cvy_traced()
	{
		if (start)
			cvy_trace_put(start, clock64() - start, (uint64_t)tag, id);
	}
};

struct cvy_traced_cta {
	__device__ __forceinline__ cvy_traced_cta(const struct cvy_gpu_call *c, int phases, uint64_t op)
	{
		struct cvy_trace_here *here = cvy_trace_here();
		uint64_t *rings = c->control->trace;

		if (threadIdx.x)
			return;
		here->ring = rings ? rings + (size_t)blockIdx.x * CVY_TRACE_WORDS : NULL;
		if (!here->ring)
			return;
		here->count = (unsigned)here->ring[0];
		cvy_trace_clocks(CVY_TRACE_BEGIN, CVY_TRACE_WHAT(c->kind, phases, c->rank, op));
	}

	/* The count is written when all have recorded. Not before a CTA has ended is it read, nor by the next one. */
	__device__ __forceinline__ ~cvy_traced_cta()
	{
		struct cvy_trace_here *here = cvy_trace_here();

		__syncthreads();
		if (threadIdx.x || !here->ring)
			return;
		cvy_trace_clocks(CVY_TRACE_END, 0);
		here->ring[0] += here->count - (unsigned)here->ring[0];
	}
};

#endif
#endif
