/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine in bulk steps (ep_bulk.cuh): kernels of their own, compiled beside those of lines. */
#include <cuda_runtime.h>

#include "ep_bulk_combine.cuh"
#include "ep_bulk_dispatch.cuh"
#include "ep_kernel.cuh"

template <int ONCE> static const struct cvy_gpu_entry *kernel_of(const struct cvy_ep_args *a)
{
	return a->call.kind == CVY_GPU_DISPATCH ? cvy_ep_phase_of<cvy_ep_bulk_dispatch<ONCE>>(a)
						: cvy_ep_phase_of<cvy_ep_bulk_combine<ONCE>>(a);
}

const struct cvy_gpu_entry *cvy_ep_bulk_kernel(const struct cvy_ep_args *a)
{
	return a->once ? kernel_of<1>(a) : kernel_of<0>(a);
}
