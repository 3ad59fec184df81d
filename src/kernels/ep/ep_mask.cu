/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel before a dispatch with a mask of tokens: ids of what is masked become -1. */
#include "ep_outputs.h"
#include "gpu_state.cuh"
#include "word.cuh"

static __global__ void __launch_bounds__(CVY_EP_BESIDE_THREADS)
	apply_mask(const __grid_constant__ struct cvy_ep_masking a)
{
	const int n = a.num_tokens * a.top_k, step = cvy_ep_beside_ctas((size_t)n) * CVY_EP_BESIDE_THREADS;

	cvy_wait_for_stream();
#pragma unroll 1
	for (int i = (int)blockIdx.x * CVY_EP_BESIDE_THREADS + (int)threadIdx.x; i < n; i += step) {
		const int64_t id = a.ids64 ? a.ids64[i] : a.ids[i];

		a.to[i] = a.mask[a.columns > 1 ? i : i / a.top_k] && id == (int32_t)id ? (int32_t)id : -1;
	}
}

int cvy_ep_mask(struct cvy_gpu *gpu, const struct cvy_ep_masking *a, struct CUstream_st *stream)
{
	const size_t ids = (size_t)a->num_tokens * (size_t)a->top_k;

	if (!ids)
		return 0;
	return cvy_gpu_launch_beside<apply_mask>(gpu, cvy_ep_beside_ctas(ids), CVY_EP_BESIDE_THREADS, *a, stream,
						 "launching the mask of a dispatch");
}
