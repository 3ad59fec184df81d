/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of ep-perf all2all have in common: eight elements of an expert's result, or of a token's sum. */
#ifndef CVY_ROUTED_CUH
#define CVY_ROUTED_CUH

#include "halves.cuh"
#include "tool.h"

static __device__ __forceinline__ struct cvy_halves cvy_routed_apply(const struct cvy_gpu_routed *a, int expert, int h,
								     struct cvy_halves v)
{
	for (int j = 0; j < 8; j++)
		v.of[j] = cvy_half_times(v.of[j], a->table ? a->table[expert + h + j] : a->factor);
	return v;
}

/* @row_of(entry): the row of its result */
template <typename ROW_OF>
static __device__ __forceinline__ void cvy_routed_sum(const struct cvy_gpu_routed *a, int token, int h, ROW_OF row_of)
{
	struct cvy_halves v;
	float sum[8] = { 0 };

	for (int k = 0; k < a->top_k; k++) {
		int entry = token * a->top_k + k;
		float weight = a->weights[entry];

		v = cvy_halves_load(row_of(entry) + h);
		for (int j = 0; j < 8; j++)
			sum[j] += weight * cvy_of_half(v.of[j]);
	}
	for (int j = 0; j < 8; j++)
		v.of[j] = cvy_half(sum[j]);
	cvy_halves_store(a->out + (size_t)token * (size_t)a->hidden + h, v);
}

#endif
