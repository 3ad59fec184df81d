/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels (choose.cuh). */
#include "admit.cuh"
#include "choose.cuh"
#include "gpu_state.cuh"

#define OF_TYPE(type) (call->levels ? cvy_gpu_levels_##type(call) : cvy_gpu_fold_##type(call))

static const struct cvy_gpu_entry *folding(const struct cvy_gpu_call *call)
{
	switch (call->dtype) {
	case COVEY_INT32:
	case COVEY_UINT32:
		return OF_TYPE(int32);
#ifdef CVY_INT32_ALONE /* simulators fold nothing else, and compile faster so */
	default:
		return NULL;
#else
	case COVEY_FLOAT32:
		return OF_TYPE(float32);
	case COVEY_FLOAT16:
		return OF_TYPE(float16);
	case COVEY_BFLOAT16:
		return OF_TYPE(bfloat16);
	default:
		return OF_TYPE(other);
#endif
	}
}

const struct cvy_gpu_entry *cvy_gpu_kernel(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ADMIT)
		return call->joins ? &cvy_listed<cvy_join> : cvy_kernel<cvy_body_admit>();
	if (call->kind == CVY_GPU_MESSAGE)
		return cvy_gpu_message_kernel(call->rows == 1);
	if (cvy_gpu_is_uneven(call->kind))
		return cvy_gpu_uneven_kernel(call);
	if (cvy_gpu_folds(call->kind))
		return folding(call);
	return call->levels ? cvy_gpu_levels_place(call) : cvy_gpu_place(call);
}
