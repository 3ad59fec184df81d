/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit floats as f32 and back: covey reduces them as f32, so a result is rounded once. */
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include "group.h"

#define THREADS 256
#define MOST_CTAS 1024

static __device__ __forceinline__ float widen_one(uint8_t code, __nv_fp8_interpretation_t kind)
{
	return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kind)));
}

static __global__ void __launch_bounds__(THREADS) widen(const __grid_constant__ struct cvy_nccl_scaling s)
{
	const __nv_fp8_interpretation_t kind = s.type == ncclFloat8e4m3 ? __NV_E4M3 : __NV_E5M2;
	const uint8_t *from = (const uint8_t *)s.from;
	float *to = (float *)s.to, by = widen_one(s.at ? *(const uint8_t *)s.at : s.value[0], kind);

	for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < s.count; i += s.step)
		to[i] = widen_one(from[i], kind) * by;
}

/* What does not fit becomes a NaN or an infinity, whichever the type has. */
static __global__ void __launch_bounds__(THREADS) narrow(const __grid_constant__ struct cvy_nccl_scaling s)
{
	const __nv_fp8_interpretation_t kind = s.type == ncclFloat8e4m3 ? __NV_E4M3 : __NV_E5M2;
	const float *from = (const float *)s.from;
	uint8_t *to = (uint8_t *)s.to;

	for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < s.count; i += s.step)
		to[i] = (uint8_t)__nv_cvt_float_to_fp8(from[i], __NV_NOSAT, kind);
}

static int launch(void (*kernel)(struct cvy_nccl_scaling), const struct cvy_nccl_scaling *s, cudaStream_t stream)
{
	size_t needed = (s->count + THREADS - 1) / THREADS, ctas = needed < MOST_CTAS ? needed : MOST_CTAS;
	cudaLaunchConfig_t config = { dim3((unsigned)ctas), dim3(THREADS), 0, stream, NULL, 0 };
	struct cvy_nccl_scaling all = *s;

	all.step = ctas * THREADS;
	return cudaLaunchKernelEx(&config, kernel, all);
}

int cvy_nccl_widen(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	return launch(widen, s, stream);
}

int cvy_nccl_narrow(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	return launch(narrow, s, stream);
}
