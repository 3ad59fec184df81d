/* SPDX-License-Identifier: Apache-2.0 */
#include "levels_fold.cuh"

const struct cvy_gpu_entry *cvy_gpu_levels_float16(const struct cvy_gpu_call *call)
{
	return cvy_levels_kernel<__half>(call);
}
