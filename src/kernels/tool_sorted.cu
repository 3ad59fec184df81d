/* SPDX-License-Identifier: Apache-2.0 */
/* Entries in the order of their owners, for a library that brings rows (struct cvy_gpu_sorted). A CTA does a row. */
#include "routed.cuh"
#include "tool_part.cuh"

#define THREADS 256

static __host__ __device__ __forceinline__ int entries(const struct cvy_gpu_routed *a)
{
	return a->tokens * a->top_k;
}

/* One CTA. */
static __global__ void __launch_bounds__(THREADS) order(const __grid_constant__ struct cvy_gpu_sorted a)
{
	__shared__ int next[CVY_GPU_ROUTED_RANKS];

	if (threadIdx.x < CVY_GPU_ROUTED_RANKS)
		next[threadIdx.x] = 0;
	__syncthreads();
	for (int i = (int)threadIdx.x; i < entries(&a.in); i += THREADS)
		atomicAdd(&next[a.in.ids[i] / a.in.local], 1);
	__syncthreads();
	if (!threadIdx.x)
		for (int r = 0, first = 0; r < a.in.size; r++) {
			int n = next[r];

			a.count[r] = n;
			next[r] = first;
			first += n;
		}
	__syncthreads();
	for (int i = (int)threadIdx.x; i < entries(&a.in); i += THREADS)
		a.place[i] = atomicAdd(&next[a.in.ids[i] / a.in.local], 1);
}

static __global__ void __launch_bounds__(THREADS) pack(const __grid_constant__ struct cvy_gpu_sorted a)
{
	int i = (int)blockIdx.x;
	size_t hidden = (size_t)a.in.hidden, row = (size_t)a.place[i];

	if (!threadIdx.x)
		a.experts[row] = a.in.ids[i] % a.in.local;
	for (int h = (int)threadIdx.x * 8; h < a.in.hidden; h += THREADS * 8)
		cvy_halves_store(a.rows + row * hidden + h,
				 cvy_halves_load(a.in.x + (size_t)(i / a.in.top_k) * hidden + h));
}

static __global__ void __launch_bounds__(THREADS) apply(const __grid_constant__ struct cvy_gpu_sorted a)
{
	uint16_t *row = a.theirs + (size_t)blockIdx.x * (size_t)a.in.hidden;
	int expert = a.their_experts[blockIdx.x];

	for (int h = (int)threadIdx.x * 8; h < a.in.hidden; h += THREADS * 8)
		cvy_halves_store(row + h, cvy_routed_apply(&a.in, expert, h, cvy_halves_load(row + h)));
}

static __global__ void __launch_bounds__(THREADS) sum(const __grid_constant__ struct cvy_gpu_sorted a)
{
	const uint16_t *rows = a.rows;
	const int32_t *place = a.place;
	size_t hidden = (size_t)a.in.hidden;

	for (int h = (int)threadIdx.x * 8; h < a.in.hidden; h += THREADS * 8)
		cvy_routed_sum(&a.in, (int)blockIdx.x, h, [=](int i) { return rows + (size_t)place[i] * hidden; });
}

typedef void (*sorted_kernel)(const struct cvy_gpu_sorted);

static const sorted_kernel kernels[] = { order, pack, apply, sum };

int cvy_tool_sorted_load(void)
{
	struct cudaFuncAttributes unused;
	int err = 0;

	for (int i = 0; i < 4 && !err; i++)
		err = cvy_tool_check(cudaFuncGetAttributes(&unused, (const void *)kernels[i]), "loading the kernels");
	return err;
}

int cvy_tool_sorted(struct CUstream_st *stream, const struct cvy_gpu_sorted *s, int step)
{
	const int ctas[] = { 1, entries(&s->in), s->came, s->in.tokens };
	cudaLaunchConfig_t config = { dim3((unsigned)ctas[step]), dim3(THREADS), 0, stream, NULL, 0 };
	sorted_kernel kernel = kernels[step];

	if (!ctas[step])
		return 0;
	return cvy_tool_check(cudaLaunchKernelEx(&config, kernel, *s), "launching a kernel");
}
