/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels (choose.cuh). */
#include "admit.cuh"
#include "choose.cuh"

const void *cvy_gpu_kernel(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ADMIT)
		return call->joins ? (const void *)cvy_join : cvy_kernel<cvy_body_admit>();
	if (cvy_gpu_is_uneven(call->kind))
		return cvy_gpu_uneven_kernel(call);
	if (call->windows)
		return cvy_gpu_large(call);
	return call->packet == CVY_GPU_PAIR ? cvy_gpu_small(call) : cvy_gpu_wide(call);
}
