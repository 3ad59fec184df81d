/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels (choose.cuh). */
#include "admit.cuh"
#include "choose.cuh"
#include "gpu_state.cuh"

const void *cvy_gpu_kernel(const struct cvy_gpu_call *call)
{
	if (call->kind == CVY_GPU_ADMIT)
		return call->joins ? (const void *)cvy_join : cvy_kernel<cvy_body_admit>();
	if (call->kind == CVY_GPU_MESSAGE)
		return cvy_gpu_message_kernel();
	if (cvy_gpu_is_uneven(call->kind))
		return cvy_gpu_uneven_kernel(call);
	if (call->windows)
		return cvy_gpu_large(call);
	return call->packet == CVY_GPU_PAIR ? cvy_gpu_small(call) : cvy_gpu_wide(call);
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
	return got == cudaSuccess ? cvy_ep_load_kernels(stack) : got;
}
