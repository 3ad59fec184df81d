/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"

const void *cvy_gpu_small(const struct cvy_gpu_call *call)
{
	if (call->rows == 1 && call->steps == 1 && call->plain == CVY_GPU_PARTS)
		return cvy_gpu_parts(call);
	if (call->rows == 1 && call->steps == 1)
		return cvy_by_packets<CVY_GPU_PAIR, 1>(call);
	return cvy_by_packets<CVY_GPU_PAIR, CVY_GPU_ROWS>(call);
}
