/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"
#include "uneven.cuh"

const struct cvy_gpu_entry *cvy_gpu_uneven_kernel(const struct cvy_gpu_call *call)
{
	if (call->packet == CVY_GPU_PAIR)
		return &cvy_listed<cvy_uneven_operation<cvy_body_uneven<CVY_GPU_PAIR, CVY_GPU_ROWS>>>;
	return &cvy_listed<cvy_uneven_operation<cvy_body_uneven<CVY_GPU_LINE, CVY_GPU_ROWS>>>;
}
