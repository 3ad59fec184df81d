/* SPDX-License-Identifier: Apache-2.0 */
#include "fold.cuh"

const struct cvy_gpu_entry *cvy_gpu_fold_bfloat16(const struct cvy_gpu_call *call)
{
	return cvy_folds<__nv_bfloat16>(call);
}
