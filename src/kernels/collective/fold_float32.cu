/* SPDX-License-Identifier: Apache-2.0 */
#include "fold.cuh"

const struct cvy_gpu_entry *cvy_gpu_fold_float32(const struct cvy_gpu_call *call)
{
	return cvy_folds<float>(call);
}
