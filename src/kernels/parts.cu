/* SPDX-License-Identifier: Apache-2.0 */
#include "choose.cuh"

const void *cvy_gpu_parts(const struct cvy_gpu_call *call)
{
	return cvy_by_packets<CVY_GPU_PAIR, 1, 1>(call);
}
