/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of other hosts. Their chunks are not mapped: a CTA pushes into memory of its own host that stands in for them, and
 * then puts it to the same offsets of the chunk there, one range a rank and push (queue/queue.h). All of it is out of line:
 * a CTA without such ranks looks at one bit of its lane's words.
 *
 * A put is part of the push: it is not given up because the gate closes, since others may complete the operation by the
 * data pushed to them. If a queue fails, the CTA tells the host, which suspects the rank, and goes on.
 *
 * A rank that has answered has read what was put to it. A rank that was not waited for may not have read it. Before it is
 * pushed to again, the earlier put must have left, and a word says that it is written over (cvy_gpu_ahead_at). A late
 * reader looks at that word.
 */
#ifndef CVY_FAR_CUH
#define CVY_FAR_CUH

#include "lane.cuh"
#include "queue.h"

/* Where the ticket of what was put last to @rank from @at stands. */
static __device__ uint64_t *cvy_far_ticket(const struct cvy_gpu_call *c, cvy_generations out, int rank, uint64_t at)
{
	return c->tickets + (size_t)cvy_mapping(out, rank) * CVY_GPU_TICKETS + cvy_gpu_ticket_of(at);
}

/*
 * One thread: @ticket is what posting to @rank, from @at, gave. Told by mapping: a late word says nothing of a rank's next
 * process.
 */
static __device__ void cvy_far_posted(const struct cvy_gpu_call *c, cvy_generations out, struct cvy_queue *q, int rank,
				      uint64_t at, int64_t ticket)
{
	if (ticket > 0) {
		*cvy_far_ticket(c, out, rank, at) = (uint64_t)ticket;
		cvy_queue_flush(q);
	} else {
		cvy_store_word((uint8_t *)&c->mailbox->unsent[q - c->queues], (uint64_t)-ticket);
	}
	__threadfence_system(); /* the host counts commands once the CTA is counted */
}

/* The queue to @rank; NULL: it is of this host, or not in @to. */
static __device__ struct cvy_queue *cvy_far_queue(const struct cvy_gpu_call *c, cvy_generations out, cvy_ranks to,
						  int rank)
{
	struct cvy_queue *q;

	if (rank >= CVY_GPU_RANKS || rank == c->rank || !cvy_has(to, rank))
		return NULL;
	q = &c->queues[cvy_mapping(out, rank)];
	return q->kind ? q : NULL;
}

/* Thread @rank, of what it has stored itself: @bytes at @at go to @rank. */
static __device__ __noinline__ void cvy_far_put(const struct cvy_gpu_call *c, cvy_generations out, cvy_ranks to,
						int rank, uint64_t at, uint64_t bytes)
{
	struct cvy_queue *q = cvy_far_queue(c, out, to, rank);

	if (q && bytes)
		cvy_far_posted(c, out, q, rank, at, cvy_queue_put(q, at, at, bytes));
}

/* All threads: data pushed to @to, from @at on, go to the far ranks. The posting thread fences for all. */
static __device__ __noinline__ void cvy_far_push(const struct cvy_gpu_call *c, cvy_generations out, cvy_ranks to,
						 uint64_t at, uint64_t bytes)
{
	__syncthreads();
#if CVY_GPU_IS_WIDE
	CVY_EACH_OWN(p)
	cvy_far_put(c, out, to, p, at, bytes);
#else
	cvy_far_put(c, out, to, (int)threadIdx.x, at, bytes);
#endif
}

/* Thread p for rank p: a signal. */
static __device__ __noinline__ void cvy_far_tell(const struct cvy_gpu_call *c, cvy_generations out, cvy_ranks to,
						 uint64_t at, uint64_t tag)
{
	CVY_EACH_OWN(p)
	{
		struct cvy_queue *q = cvy_far_queue(c, out, to, p);

		if (q)
			cvy_far_posted(c, out, q, p, at, cvy_queue_signal(q, at, tag));
	}
}

/*
 * Thread p for rank p of @to, which has not answered what was pushed to it: step @tag of the lane may be pushed. 1, 2: not
 * (cvy_wait_put).
 */
static __device__ __forceinline__ int cvy_far_overtake_one(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
							   cvy_ranks to, int rank, uint64_t tag,
							   const struct cvy_until *until)
{
	struct cvy_queue *q = cvy_far_queue(c, r->lane.out, to, rank);
	int how = 0;

	if (CVY_GPU_IS_WIDE) /* of this thread's ranks that one */
		to = cvy_ranks_one(rank);
#pragma unroll 1
	for (uint32_t i = 0; q && i < CVY_GPU_PARITIES && !how; i++)
		how = cvy_wait_put(q, *cvy_far_ticket(c, r->lane.out, rank, cvy_gpu_slot_at(0, r->index, i)), rank,
				   &r->watch, until);
	if (!q || how)
		return how;
	cvy_far_tell(c, r->lane.out, to, cvy_gpu_ahead_at(r->index), tag);
	cvy_far_tell(c, r->lane.out, to, cvy_gpu_passed_at(),
		     cvy_load_word(&c->control->finished) / CVY_GPU_QUANTA + 1);
	return 0;
}

static __device__ __noinline__ int cvy_far_overtake(const struct cvy_gpu_call *c, struct cvy_lane_run *r, cvy_ranks to,
						    uint64_t tag, const struct cvy_until *until)
{
	int how = 0;

	CVY_EACH_OWN(p)
	{
		if (!how)
			how = cvy_far_overtake_one(c, r, to, p, tag, until);
	}
	return how;
}

/*
 * All threads, before step @tag of the lane is pushed, up to a barrier: those of @to on this host have not answered what was pushed
 * before, and may read it where it stands (ep_bulk.cuh).
 */
static __device__ __noinline__ void cvy_near_overtake(const struct cvy_gpu_call *c, struct cvy_lane_run r, cvy_ranks to,
						      uint64_t tag)
{
	CVY_EACH_OWN(rank)
	{
		if (rank != c->rank && cvy_has(to, rank) && (!cvy_far(&r) || !cvy_far_queue(c, r.lane.out, to, rank))) {
			cvy_store_word(cvy_to(c, &r, rank) + cvy_gpu_ahead_at(r.index), tag);
			__threadfence_system();
		}
	}
	__syncthreads();
}

/* Has @rank begun to write over what it had pushed here in step @tag? */
static __device__ int cvy_far_overtaken(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank,
					uint64_t tag)
{
	uint64_t ahead = cvy_load_word((const uint64_t *)(cvy_from(c, r, rank) + cvy_gpu_ahead_at(r->index)));

	return (int32_t)((uint32_t)(ahead >> 32) - (uint32_t)(tag >> 32)) >= 0 &&
	       (int32_t)((uint32_t)ahead - (uint32_t)tag) >= CVY_GPU_PARITIES;
}

/* All threads, at the beginning of an operation that hears of everyone in every step: the last one did not. 1: stopped. */
static __device__ __noinline__ int cvy_far_again(const struct cvy_gpu_call *c, struct cvy_lane_run r)
{
	const struct cvy_until none = { 0, 0 };
	int how = cvy_far_overtake(c, &r, r.lane.mask, CVY_GPU_STEP(r.lane.epoch, r.lane.count + 1), &none);

	if (__syncthreads_or(how == 1))
		return 1;
	if (threadIdx.x == 0)
		((volatile struct cvy_gpu_lane *)c->control->lane)[r.index].failed = r.lane.failed & ~CVY_GPU_LATE;
	return 0;
}

#endif
