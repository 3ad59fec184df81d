/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of allgather in two levels, whatever the type of elements. */
#include "choose.cuh"
#include "pull.cuh"

#if CVY_GPU_IS_WIDE
const void *cvy_gpu_levels_place(const struct cvy_gpu_call *)
{
	return NULL;
}
#else
#include "levels.cuh"

typedef cvy_body_exchange<void, CVY_GPU_LINE, CVY_GPU_ROWS> flat_allgather;

struct allgather {
	typedef cvy_level_blocks<CVY_GPU_ROWS> map;
	typedef cvy_level_hops<uint64_t, CVY_GPU_ROWS, map> hops;

	static __device__ __forceinline__ int fits(const struct cvy_gpu_call *c, const struct cvy_lane_run *,
						   const struct cvy_levels *l)
	{
		return map::most(c, l) > 0;
	}

	/* One step; all threads meet in it. 1: one has stopped. */
	static __device__ __forceinline__ int step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, const map &m)
	{
		uint64_t v[CVY_GPU_ROWS][2];

#pragma unroll
		for (int i = 0; i < CVY_GPU_ROWS; i++)
			if (hops::owns(c, l, m, i)) {
				m.get_row(c, c->send, i, v[i]);
				m.zero_row(c, i);
			}
		hops::share(c, r, s, l, m, v);
		__syncthreads();
		return hops::spread(c, r, s, l, m, v);
	}
};

const void *cvy_gpu_levels_place(const struct cvy_gpu_call *call)
{
	typedef cvy_body_levels<allgather, flat_allgather> gathers;

	return call->windows ? cvy_kernel<cvy_body_pull<void, gathers>>() : cvy_kernel<gathers>();
}
#endif
