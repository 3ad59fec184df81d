/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"
#include "uneven.cuh"

const void *cvy_gpu_uneven_kernel(const struct cvy_gpu_call *call)
{
	if (call->packet == CVY_GPU_PAIR)
		return (const void *)cvy_uneven_operation<cvy_body_uneven<CVY_GPU_PAIR, CVY_GPU_ROWS>>;
	return (const void *)cvy_uneven_operation<cvy_body_uneven<CVY_GPU_LINE, CVY_GPU_ROWS>>;
}
