/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels (choose.cuh). */
#include "admit.cuh"
#include "choose.cuh"
#include "gpu_state.cuh"

/* In two levels. */
static const struct cvy_gpu_entry *levels(const struct cvy_gpu_call *call)
{
	if (!cvy_gpu_folds(call->kind))
		return cvy_gpu_levels_place(call);
	switch (call->dtype) {
	case COVEY_INT32:
	case COVEY_UINT32:
		return cvy_gpu_levels_int32(call);
#ifdef CVY_INT32_ALONE
	default:
		return NULL;
#else
	case COVEY_FLOAT32:
		return cvy_gpu_levels_float32(call);
	case COVEY_FLOAT16:
		return cvy_gpu_levels_float16(call);
	case COVEY_BFLOAT16:
		return cvy_gpu_levels_bfloat16(call);
	default:
		return cvy_gpu_levels_other(call);
#endif
	}
}

static const struct cvy_gpu_entry *folding(const struct cvy_gpu_call *call)
{
	switch (call->dtype) {
	case COVEY_INT32:
	case COVEY_UINT32:
		return cvy_gpu_fold_int32(call);
#ifdef CVY_INT32_ALONE /* simulators fold nothing else, and compile faster so */
	default:
		return NULL;
#else
	case COVEY_FLOAT32:
		return cvy_gpu_fold_float32(call);
	case COVEY_FLOAT16:
		return cvy_gpu_fold_float16(call);
	case COVEY_BFLOAT16:
		return cvy_gpu_fold_bfloat16(call);
	default:
		return cvy_gpu_fold_other(call);
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
	if (call->levels)
		return levels(call);
	return cvy_gpu_folds(call->kind) ? folding(call) : cvy_gpu_place(call);
}
