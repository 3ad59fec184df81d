/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"

const void *cvy_gpu_wide(const struct cvy_gpu_call *call)
{
	return call->rows == 1 && call->steps == 1 ? cvy_by_packets<CVY_GPU_LINE, 1>(call)
						   : cvy_by_packets<CVY_GPU_LINE, CVY_GPU_ROWS>(call);
}
