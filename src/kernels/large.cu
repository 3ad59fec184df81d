/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"
#include "pull.cuh"

template <typename T> static const void *pulled(int kind)
{
	if (kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		return cvy_kernel<cvy_body_pull<T, cvy_body_two_shot<T, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
	return cvy_kernel<cvy_body_pull<T, cvy_body_exchange<T, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
}

const void *cvy_gpu_large(const struct cvy_gpu_call *call)
{
	switch (call->kind) {
	case CVY_GPU_ALLREDUCE:
	case CVY_GPU_ALLREDUCE_TWO_SHOT:
	case CVY_GPU_REDUCE_SCATTER:
		return cvy_of_type(call->dtype, [&](auto zero) { return pulled<decltype(zero)>(call->kind); });
	case CVY_GPU_BROADCAST:
	case CVY_GPU_BROADCAST_TWO_HOP:
		return cvy_kernel<cvy_body_pull<void, cvy_body_two_hop<CVY_GPU_ROWS>>>();
	default:
		return cvy_kernel<cvy_body_pull<void, cvy_body_exchange<void, CVY_GPU_LINE, CVY_GPU_ROWS>>>();
	}
}
