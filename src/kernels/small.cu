/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"

const void *cvy_gpu_small(const struct cvy_gpu_call *call)
{
	return call->plain == CVY_GPU_PARTS ? cvy_gpu_parts(call) : cvy_by_packets<CVY_GPU_PAIR, 1>(call);
}
