/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other hosts. Their chunks are not mapped: a CTA pushes into memory of its own that stands in their place, and
 * what it has pushed is put to the same offsets of the chunk there, one range a rank and push (base/queue.h). All of it is
 * out of line: who has no such rank looks at one bit of its lane's words.
 *
 * A put is part of the push: it is not given up because the gate closes, since others may complete the operation by what was
 * pushed to them. Where a queue fails, the host is told, and the rank is suspect; the CTA goes on as if it had not.
 */
#ifndef CVY_FAR_CUH
#define CVY_FAR_CUH

#include "lane.cuh"
#include "queue.h"

/* One thread: @ticket is what posting to @rank gave. */
static __device__ void cvy_far_posted(const struct cvy_gpu_call *c, struct cvy_queue *q, int rank, int64_t ticket)
{
	if (ticket > 0)
		cvy_queue_flush(q);
	else
		cvy_store_word((uint8_t *)&c->mailbox->unsent[rank], (uint64_t)-ticket);
	__threadfence_system(); /* the host counts commands once the CTA is counted */
}

/* The queue to @rank; NULL: it is of this host, or not in @to. */
static __device__ struct cvy_queue *cvy_far_queue(const struct cvy_gpu_call *c, uint64_t out, uint32_t to, int rank)
{
	struct cvy_queue *q;

	if (rank >= CVY_GPU_RANKS || rank == c->rank || !cvy_has(to, rank))
		return NULL;
	q = &c->queues[cvy_mapping(out, rank)];
	return q->kind ? q : NULL;
}

/* Thread @rank, of what it has stored itself: @bytes at @at go to @rank. */
static __device__ __noinline__ void cvy_far_put(const struct cvy_gpu_call *c, uint64_t out, uint32_t to, int rank,
						uint64_t at, uint64_t bytes)
{
	struct cvy_queue *q = cvy_far_queue(c, out, to, rank);

	if (q && bytes)
		cvy_far_posted(c, q, rank, cvy_queue_put(q, at, at, bytes));
}

/* All threads: what they have pushed to @to, from @at on, goes to those who are far. */
static __device__ __noinline__ void cvy_far_push(const struct cvy_gpu_call *c, uint64_t out, uint32_t to, uint64_t at,
						 uint64_t bytes)
{
	__threadfence_system();
	__syncthreads();
	cvy_far_put(c, out, to, (int)threadIdx.x, at, bytes);
}

/* Thread p for rank p: a signal. */
static __device__ __noinline__ void cvy_far_tell(const struct cvy_gpu_call *c, uint64_t out, uint32_t to, uint64_t at,
						 uint64_t tag)
{
	struct cvy_queue *q = cvy_far_queue(c, out, to, (int)threadIdx.x);

	if (q)
		cvy_far_posted(c, q, (int)threadIdx.x, cvy_queue_signal(q, at, tag));
}

#endif
