/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that multiply (struct cvy_gpu_scale). A CTA does a row, eight elements a thread at a time. */
#include "halves.cuh"
#include "tool_part.cuh"

#define THREADS 256
#define CTAS 8	      /* of an expert: each has every eighth row */
#define SUM_CTAS 1056 /* of all rows of COMPACT */

static __device__ __forceinline__ float factor(const struct cvy_gpu_scale *a, int e, int h)
{
	return a->table ? a->table[e + h] : a->factor;
}

/* LL */
static __global__ void __launch_bounds__(THREADS) scale(const __grid_constant__ struct cvy_gpu_scale a)
{
	const int e = (int)blockIdx.x / CTAS;
	const size_t first = cvy_tool_first_row(a.count, a.rows, a.close, e);

	for (int i = (int)blockIdx.x % CTAS; i < a.count[e]; i += CTAS) {
		size_t at = (first + (size_t)i) * (size_t)a.hidden;

		for (int h = (int)threadIdx.x * 8; h < a.hidden; h += THREADS * 8) {
			struct cvy_halves v = cvy_halves_load(a.x + at + h);

			for (int j = 0; j < 8; j++)
				v.of[j] = cvy_half_times(v.of[j], factor(&a, e, h + j));
			cvy_halves_store(a.y + at + h, v);
		}
	}
}

static __device__ __forceinline__ void sum_eight(const struct cvy_gpu_scale *a, size_t row, int h)
{
	struct cvy_halves v = cvy_halves_load(a->x + row * (size_t)a->hidden + h);
	float sum[8] = { 0 };

	for (int k = 0; k < a->top_k; k++) {
		size_t at = row * (size_t)a->top_k + (size_t)k;
		int e = a->ids[at];

		for (int j = 0; j < 8 && e >= 0; j++)
			sum[j] += a->weights[at] * cvy_of_half(cvy_half_times(v.of[j], factor(a, e, h + j)));
	}
	for (int j = 0; j < 8; j++)
		v.of[j] = cvy_half(sum[j]);
	cvy_halves_store(a->y + row * (size_t)a->hidden + h, v);
}

/* COMPACT */
static __global__ void __launch_bounds__(THREADS) scale_sum(const __grid_constant__ struct cvy_gpu_scale a)
{
	int rows = (int)(uint32_t)*a.range + (int)(*a.range >> 32);

	for (int row = (int)blockIdx.x; row < rows; row += SUM_CTAS)
		for (int h = (int)threadIdx.x * 8; h < a.hidden; h += THREADS * 8)
			sum_eight(&a, (size_t)row, h);
}

int cvy_tool_scale_load(void)
{
	struct cudaFuncAttributes unused;
	int err = cvy_tool_check(cudaFuncGetAttributes(&unused, (const void *)scale), "loading the kernels");

	return err ? err
		   : cvy_tool_check(cudaFuncGetAttributes(&unused, (const void *)scale_sum), "loading the kernels");
}

int cvy_tool_scale(struct CUstream_st *stream, const struct cvy_gpu_scale *s)
{
	cudaLaunchConfig_t config = {
		dim3(s->count ? (unsigned)s->experts * CTAS : SUM_CTAS), dim3(THREADS), 0, stream, NULL, 0
	};

	if (!s->experts)
		return 0;
	return cvy_tool_check(s->count ? cudaLaunchKernelEx(&config, scale, *s)
				       : cudaLaunchKernelEx(&config, scale_sum, *s),
			      "launching experts");
}
