/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dispatch announces while it runs (`arrived`): a word counts the parts that are here of what it stands for, and
 * whoever adds the last makes it COVEY_EP_ARRIVED. First attempts count. Any other places rows anew, and says so before it
 * stores one; from then on no count is of use. What does it is apart: a dispatch that announces nothing must not fetch it.
 */
#ifndef CVY_EP_ARRIVE_CUH
#define CVY_EP_ARRIVE_CUH

#include "covey.h"
#include "ep_body.cuh"

/* One thread, behind a barrier of those whose stores it announces: @parts more of @all. */
static __device__ __noinline__ void cvy_ep_arrive(uint32_t *word, uint32_t parts, uint32_t all)
{
	if (cvy_add_behind(word, parts) + parts == all)
		cvy_add_behind(word, COVEY_EP_ARRIVED - all);
}

static __device__ __noinline__ void cvy_ep_row_arrives_apart(uint32_t *rows, int row, int parts, int all)
{
	__syncwarp();
	if (row >= 0 && parts > 0)
		cvy_ep_arrive(rows + row, (uint32_t)parts, (uint32_t)all);
}

/* A warp: @parts of @all of a row are here; thread k knows the row of the k-th expert, or -1. */
static __device__ __forceinline__ void cvy_ep_row_arrives(const struct cvy_ep_args *a, int row, int parts, int all)
{
	if (a->arrived)
		cvy_ep_row_arrives_apart(a->arrived + COVEY_EP_ARRIVED_ROWS, row, parts, all);
}

/* All threads: this CTA has told what it knows of count and range, as @lanes do. */
static __device__ __forceinline__ void cvy_ep_range_arrives(const struct cvy_ep_args *a, int lanes)
{
	if (a->arrived)
		cvy_ep_row_arrives_apart(a->arrived + COVEY_EP_ARRIVED_RANGE, threadIdx.x % 32 ? -1 : 0, 1,
					 lanes * CVY_EP_WARPS);
}

/* One thread of each CTA, at its end. */
static __device__ __forceinline__ void cvy_ep_ends(const struct cvy_ep_args *a)
{
	if (a->arrived)
		cvy_ep_arrive(a->arrived + COVEY_EP_ARRIVED_ENDED, 1, (uint32_t)a->call.lanes);
}

/* All threads, before an attempt that is not the first. */
static __device__ __forceinline__ void cvy_ep_arrives_again(const struct cvy_ep_args *a)
{
	if (!a->arrived)
		return;
	if (threadIdx.x == 0)
		cvy_add_behind(a->arrived + COVEY_EP_ARRIVED_AGAIN, 1);
	__threadfence();
	__syncthreads();
}

#endif
