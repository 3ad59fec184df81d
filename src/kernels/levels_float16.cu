/* SPDX-License-Identifier: Apache-2.0 */
#include "levels_fold.cuh"

const void *cvy_gpu_levels_float16(const struct cvy_gpu_call *call)
{
	return cvy_levels_kernel<__half>(call);
}
