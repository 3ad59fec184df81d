/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over two hops: kernels of their own, compiled beside those that send to each rank. Builds for more
 * than 32 ranks have none (ep_device.c).
 */
#include <cuda_runtime.h>

#include "ranks.h"
#if CVY_GPU_IS_WIDE
#include "gpu_state.cuh"

const struct cvy_gpu_entry *cvy_ep_hops_kernel(const struct cvy_ep_args *)
{
	return NULL;
}
#else
#include "ep_hop_combine.cuh"
#include "ep_hop_dispatch.cuh"
#include "ep_kernel.cuh"

const struct cvy_gpu_entry *cvy_ep_hops_kernel(const struct cvy_ep_args *a)
{
	return a->call.kind == CVY_GPU_DISPATCH ? cvy_ep_phase_of<cvy_ep_hop_dispatch>(a)
						: cvy_ep_phase_of<cvy_ep_hop_combine>(a);
}
#endif
