/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of dispatch and combine: a whole operation, or its send phase alone. */
#ifndef CVY_EP_KERNEL_CUH
#define CVY_EP_KERNEL_CUH

#include "ep_lane.cuh"
#include "gpu_state.cuh"

/* In a build that measures (guard.h): nothing stops it, and nothing is missing. */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_bare(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						   struct cvy_ep_shared *sh, uint64_t *dynamic, typename BODY::ahead *x)
{
	BODY::template run<1>(a, r, sh, dynamic, cvy_ranks_none(), x);
	if (BODY::PLACES && threadIdx.x == 0)
		cvy_ep_ends(a);
	if (threadIdx.x == 0 && !r->index && a->call.kind == CVY_GPU_DISPATCH)
		cvy_ranks_write(a->lost, cvy_ranks_none());
	cvy_lane_bare(&a->call, r);
}

template <typename BODY>
static __global__ void __launch_bounds__(CVY_EP_THREADS) cvy_ep_operation(const __grid_constant__ struct cvy_ep_args a)
{
	CVY_DYNAMIC_SHARED(dynamic);
	__shared__ struct cvy_ep_shared sh;
	typename BODY::ahead x;
	struct cvy_lane_run r;
	const uint64_t entered = cvy_ep_enter(&a);
	CVY_TRACED_CTA(&a.call, a.phases, cvy_entered_op(entered));

	cvy_ep_prepare<BODY>(&a, &r, &sh, dynamic, &x);
	if (threadIdx.x == 0)
		sh.entered = entered;
	if constexpr (CVY_GUARDED)
		cvy_ep_guarded<BODY>(&a, &r, &sh, dynamic, &x);
	else
		cvy_ep_bare<BODY>(&a, &r, &sh, dynamic, &x);
}

/*
 * The send phase alone: no operation, since it has no outcome. It counts in `entered` while it runs, so that no change
 * takes chunks away from under it; found with the gate closed, or of another view, it leaves all to the second phase.
 */
template <typename BODY>
static __global__ void __launch_bounds__(CVY_EP_THREADS)
	cvy_ep_first_phase(const __grid_constant__ struct cvy_ep_args a)
{
	CVY_DYNAMIC_SHARED(dynamic);
	__shared__ struct cvy_ep_shared sh;
	typename BODY::ahead x;
	struct cvy_lane_run r;
	const uint64_t entered = cvy_ep_enter(&a);
	int closed = 0;
	CVY_TRACED_CTA(&a.call, a.phases, cvy_entered_op(entered));

	cvy_ep_prepare<BODY>(&a, &r, &sh, dynamic, &x);
	if (CVY_GUARDED && threadIdx.x == 0) {
		closed = entered >> CVY_GPU_GATE_SHIFT != r.watch.open ||
			 (cvy_lags(&r) && cvy_is_decided(a.call.control, cvy_entered_op(entered)));
	}
	if (!__syncthreads_or(closed))
		BODY::send_first(&a, &r, &sh, dynamic, &x);
	__syncthreads();
	if (CVY_GUARDED && threadIdx.x == 0) {
		__threadfence_system();
		atomicAdd((unsigned long long *)&a.call.control->entered, 0ull - cvy_ep_quanta(&a));
	}
}

template <typename BODY> static const struct cvy_gpu_entry *cvy_ep_phase_of(const struct cvy_ep_args *a)
{
	return a->phases == CVY_EP_SEND ? &cvy_listed<cvy_ep_first_phase<BODY>> : &cvy_listed<cvy_ep_operation<BODY>>;
}

#endif
