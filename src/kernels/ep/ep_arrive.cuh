/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dispatch announces while it runs (`arrived`): a word counts the parts that are here of what it stands for, and
 * whoever adds the last makes it COVEY_EP_ARRIVED. A CTA whose rows are, or may come to be, in other places than those
 * counted so far (another attempt, a first one that was stopped, a source that is late) says so before it counts one, and
 * whoever adds the last looks: parts of two placements may add up where neither has stored all, and readers go to memory
 * by the counts and entries behind a word. What does it is apart: a dispatch that announces nothing must not fetch it.
 */
#ifndef CVY_EP_ARRIVE_CUH
#define CVY_EP_ARRIVE_CUH

#include "covey_ep.h"
#include "ep_body.cuh"

/* One thread, behind a barrier of those whose stores it announces: @parts more of @all of word @word. */
static __device__ __noinline__ void cvy_ep_arrive(uint32_t *arrived, size_t word, uint32_t parts, uint32_t all)
{
	if (cvy_add_behind(arrived + word, parts) + parts != all)
		return;
	if (word == COVEY_EP_ARRIVED_ENDED || !cvy_load_half(arrived + COVEY_EP_ARRIVED_AGAIN))
		cvy_add_behind(arrived + word, COVEY_EP_ARRIVED - all);
}

static __device__ __noinline__ void cvy_ep_arrives_apart(uint32_t *arrived, int first, int nth, int parts, int all)
{
	__syncwarp();
	if (nth >= 0 && parts > 0)
		cvy_ep_arrive(arrived, (size_t)first + (size_t)nth, (uint32_t)parts, (uint32_t)all);
}

/* A warp: @parts of @all of a row are here; thread k knows the row of the k-th expert, or -1. */
static __device__ __forceinline__ void cvy_ep_row_arrives(const struct cvy_ep_args *a, int row, int parts, int all)
{
	if (a->arrived)
		cvy_ep_arrives_apart(a->arrived, COVEY_EP_ARRIVED_ROWS, row, parts, all);
}

/* All threads: this CTA has told what it knows of count and range, as @lanes do. */
static __device__ __forceinline__ void cvy_ep_range_arrives(const struct cvy_ep_args *a, int lanes)
{
	if (a->arrived)
		cvy_ep_arrives_apart(a->arrived, COVEY_EP_ARRIVED_RANGE, threadIdx.x % 32 ? -1 : 0, 1,
				     lanes * CVY_EP_WARPS);
}

/* One thread of each CTA, at its end. */
static __device__ __forceinline__ void cvy_ep_ends(const struct cvy_ep_args *a)
{
	if (a->arrived)
		cvy_ep_arrive(a->arrived, COVEY_EP_ARRIVED_ENDED, 1, (uint32_t)a->call.lanes);
}

static __device__ __noinline__ void cvy_ep_arrives_again_apart(uint32_t *arrived)
{
	if (threadIdx.x == 0)
		cvy_add_behind(arrived + COVEY_EP_ARRIVED_AGAIN, 1);
	__threadfence();
	__syncthreads();
}

/* All threads: before an attempt that is not the first, and when the first was stopped; the next view's come behind it. */
static __device__ __forceinline__ void cvy_ep_arrives_again(const struct cvy_ep_args *a)
{
	if (a->arrived)
		cvy_ep_arrives_again_apart(a->arrived);
}

/* All threads, behind the barrier of headers: rows of a lane that lacks a source stand where other lanes have others. */
static __device__ __forceinline__ void cvy_ep_arrives_late(const struct cvy_ep_turn *t)
{
	if (t->a->arrived &&
	    !cvy_ranks_equal(t->sources, cvy_ranks_and(t->r->lane.mask, t->sh->active))) /* alike for all threads */
		cvy_ep_arrives_again_apart(t->a->arrived);
}

#endif
