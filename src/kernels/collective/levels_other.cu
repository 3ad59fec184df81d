/* SPDX-License-Identifier: Apache-2.0 */
#include "levels_fold.cuh"

const struct cvy_gpu_entry *cvy_gpu_levels_other(const struct cvy_gpu_call *call)
{
	return cvy_levels_kernel<cvy_other>(call);
}
