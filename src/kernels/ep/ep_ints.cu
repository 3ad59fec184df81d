/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine of rows of integers (ep_ints.cuh, ep_ints_combine.cuh), in lines: kernels of their own. */
#include <cuda_runtime.h>

#include "ep_kernel.cuh"

template <int ONCE> static const struct cvy_gpu_entry *kernel_of(const struct cvy_ep_args *a)
{
	if (a->call.kind == CVY_GPU_COMBINE)
		return cvy_ep_phase_of<cvy_ep_combine<ONCE, 0, 1>>(a);
	return !ONCE && a->smooth ? cvy_ep_phase_of<cvy_ep_dispatch<0, CVY_EP_SMOOTH>>(a)
				  : cvy_ep_phase_of<cvy_ep_dispatch<ONCE, CVY_EP_CAST>>(a);
}

const struct cvy_gpu_entry *cvy_ep_ints_kernel(const struct cvy_ep_args *a)
{
	return a->once ? kernel_of<1>(a) : kernel_of<0>(a);
}
