/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels (choose.cuh). */
#include "admit.cuh"
#include "choose.cuh"
#include "gpu_state.cuh"
#include "shape.h"

/* In two levels. */
static const void *levels(const struct cvy_gpu_call *call)
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

static const void *folding(const struct cvy_gpu_call *call)
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

const void *cvy_gpu_kernel(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ADMIT)
		return call->joins ? (const void *)cvy_join : cvy_kernel<cvy_body_admit>();
	if (call->kind == CVY_GPU_MESSAGE)
		return cvy_gpu_message_kernel(call->rows == 1);
	if (cvy_gpu_is_uneven(call->kind))
		return cvy_gpu_uneven_kernel(call);
	if (call->levels)
		return levels(call);
	return cvy_gpu_folds(call->kind) ? folding(call) : cvy_gpu_place(call);
}

/*
 * Loads all of them. Where the driver loads lazily, it does so at a kernel's first launch and may wait until the device is
 * idle: for ever, if that waits for the launch.
 */
cudaError_t cvy_gpu_load_kernels(size_t *stack)
{
	struct cvy_gpu_call c = {};
	cudaError_t got = cudaSuccess;

	c.steps = 1;
	for (int way = 0; way < 24; way++) {
		c.packet = way % 2 ? CVY_GPU_LINE : CVY_GPU_PAIR;
		c.rows = way / 2 % 2 ? CVY_GPU_ROWS : 1;
		c.joins = way / 4 % 3 == 1;
		c.plain = way / 12 ? CVY_GPU_PARTS : CVY_GPU_WHOLE;
		c.windows = c.joins ? (uint8_t *)&c : NULL; /* any */
		for (c.kind = 0; c.kind <= CVY_GPU_MESSAGE; c.kind++)
			for (c.dtype = 0; c.dtype < 16 && got == cudaSuccess; c.dtype++)
				if (c.kind != CVY_GPU_DISPATCH && c.kind != CVY_GPU_COMBINE)
					got = cvy_gpu_load_kernel(cvy_gpu_kernel(&c), stack);
	}
	c.packet = CVY_GPU_LINE;
	c.in_place = c.levels = 1;
	for (c.kind = 0, c.steps = 2; c.kind < CVY_GPU_MESSAGE; c.kind++)
		for (int way = 0; way < 32 && got == cudaSuccess && cvy_gpu_can_levels(&c); way++) {
			c.dtype = way % 16;
			c.windows = way / 16 ? (uint8_t *)&c : NULL;
			got = cvy_gpu_load_kernel(cvy_gpu_kernel(&c), stack);
		}
	return got == cudaSuccess ? cvy_ep_load_kernels(stack) : got;
}
