/* SPDX-License-Identifier: Apache-2.0 */
/* Allreduce and reduce_scatter in two levels, of one element type. */
#ifndef CVY_LEVELS_FOLD_CUH
#define CVY_LEVELS_FOLD_CUH

#include "fold.cuh"

#if CVY_GPU_IS_WIDE
template <typename T> static const struct cvy_gpu_entry *cvy_levels_kernel(const struct cvy_gpu_call *)
{
	return NULL;
}
#else
#include "levels.cuh"

template <typename T, int ROWS> struct cvy_levels_allreduce {
	typedef cvy_level_pieces<T, ROWS> map;
	typedef cvy_level_hops<T, ROWS, map> hops;

	static __device__ __forceinline__ int fits(const struct cvy_gpu_call *, const struct cvy_lane_run *,
						   const struct cvy_levels *)
	{
		return 1;
	}

	/* One step; all threads meet in it. 1: one has stopped. */
	static __device__ __forceinline__ int step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, const map &m)
	{
		uint64_t v[ROWS][2];

		return hops::template reduce<1>(c, r, s, l, m, v) || hops::spread(c, r, s, l, m, v);
	}
};

template <typename T, int ROWS> struct cvy_levels_reduce_scatter {
	typedef cvy_level_blocks<ROWS> map;
	typedef cvy_level_hops<T, ROWS, map> hops;

	static __device__ __forceinline__ int fits(const struct cvy_gpu_call *c, const struct cvy_lane_run *,
						   const struct cvy_levels *l)
	{
		return map::most(c, l) > 0;
	}

	/* One step; all threads meet in it. 1: one has stopped. */
	static __device__ __forceinline__ int step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, const map &m)
	{
		uint64_t v[ROWS][2];

		if (hops::template reduce<0>(c, r, s, l, m, v))
			return 1;
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			if (hops::owns(c, l, m, i))
				m.set_row(c, c->recv, i, v[i]);
		return 0;
	}
};

template <typename T> static const struct cvy_gpu_entry *cvy_levels_kernel(const struct cvy_gpu_call *call)
{
	typedef cvy_levels_allreduce<T, CVY_GPU_ROWS> allreduce;
	typedef cvy_levels_reduce_scatter<T, CVY_GPU_ROWS> reduce_scatter;
	typedef cvy_body_levels<allreduce, cvy_body_two_shot<T, CVY_GPU_LINE, CVY_GPU_ROWS>> two;
	typedef cvy_body_levels<reduce_scatter, cvy_body_exchange<T, CVY_GPU_LINE, CVY_GPU_ROWS>> scatter;

	if (call->kind == CVY_GPU_REDUCE_SCATTER)
		return call->windows ? cvy_kernel<cvy_body_pull<T, scatter>>() : cvy_kernel<scatter>();
	return call->windows ? cvy_kernel<cvy_body_pull<T, two>>() : cvy_kernel<two>();
}

#endif

#endif
