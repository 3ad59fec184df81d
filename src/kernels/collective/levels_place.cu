/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of allgather and broadcast in two levels, whatever the type of elements. */
#include "choose.cuh"
#include "pull.cuh"
#include "two_hop.cuh"

#if CVY_GPU_IS_WIDE
const struct cvy_gpu_entry *cvy_gpu_levels_place(const struct cvy_gpu_call *)
{
	return NULL;
}
#else
#include "levels.cuh"

typedef cvy_body_exchange<void, CVY_GPU_LINE, CVY_GPU_ROWS> flat_allgather;
typedef cvy_body_two_hop<CVY_GPU_ROWS> flat_broadcast;

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

struct broadcast {
	typedef cvy_level_whole<CVY_GPU_ROWS> map;
	typedef cvy_level_hops<uint64_t, CVY_GPU_ROWS, map> hops;

	/* With more hosts than a host has ranks, the root would send more than in two hops. */
	static __device__ __forceinline__ int fits(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_levels *l)
	{
		return cvy_has(r->lane.mask, c->root) && l->hosts <= __popc(l->near);
	}

	/* On the root's host: each rank has its column of the root, and pushes it to its likes. 1: stopped. */
	static __device__ __forceinline__ int scatter(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, const struct cvy_levels *l,
						      const map &m, uint64_t v[CVY_GPU_ROWS][2])
	{
		int stopped = 0;

		if (c->rank == c->root) {
			hops::push(c, r, s, l, m);
			hops::near_pushed(c, r, s, l, m, 0);
			m.get(c, l, c->rank, v);
		} else {
			const uint64_t none[CVY_GPU_ROWS][2] = {};

			stopped = cvy_each_source<CVY_GPU_LINE, CVY_GPU_ROWS>(
				c, r, s, 0, 0, m.here.rows, 1u << c->root, none,
				[&](int, int, const uint64_t x[CVY_GPU_ROWS][2]) {
#pragma unroll
					for (int i = 0; i < CVY_GPU_ROWS; i++) {
						v[i][0] = x[i][0];
						v[i][1] = x[i][1];
					}
				});
		}
		if (!stopped)
			hops::share(c, r, s, l, m, v);
		return __syncthreads_or(stopped);
	}

	/* One step; all threads meet in it. Those that push to each other say that they have come to it. 1: one has stopped. */
	static __device__ __forceinline__ int step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, const map &m)
	{
		const uint32_t beside = l->near | l->like;
		uint64_t v[CVY_GPU_ROWS][2];

		cvy_tell(c, r, s, 0, beside);
		if (m.from == l->host && scatter(c, r, s, l, m, v))
			return 1;
		if (hops::spread(c, r, s, l, m, v))
			return 1;
		return __syncthreads_or(cvy_hear(c, r, s, 0, beside));
	}
};

const struct cvy_gpu_entry *cvy_gpu_levels_place(const struct cvy_gpu_call *call)
{
	typedef cvy_body_levels<allgather, flat_allgather> gathers;
	typedef cvy_body_levels<broadcast, flat_broadcast> broadcasts;

	if (call->kind == CVY_GPU_ALLGATHER)
		return call->windows ? cvy_kernel<cvy_body_pull<void, gathers>>() : cvy_kernel<gathers>();
	return call->windows ? cvy_kernel<cvy_body_pull<void, broadcasts>>() : cvy_kernel<broadcasts>();
}
#endif
