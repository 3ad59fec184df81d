/* SPDX-License-Identifier: Apache-2.0 */
/* Each element times a scalar, rounded to its type: what an operator of ncclRedOpCreatePreMulSum() does before the sum. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <string.h>

#include "group.h"

#define THREADS 256
#define MOST_CTAS 1024

static __device__ __forceinline__ __half times(__half a, __half b)
{
	return __float2half_rn(__half2float(a) * __half2float(b));
}

static __device__ __forceinline__ __nv_bfloat16 times(__nv_bfloat16 a, __nv_bfloat16 b)
{
	return __float2bfloat16_rn(__bfloat162float(a) * __bfloat162float(b));
}

template <typename T> static __device__ __forceinline__ T times(T a, T b)
{
	return (T)(a * b);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) scale(const __grid_constant__ struct cvy_nccl_scaling s)
{
	const T *from = (const T *)s.from;
	T *to = (T *)s.to, by;

	memcpy(&by, s.at ? s.at : s.value, sizeof(by));
	for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < s.count; i += s.step)
		to[i] = times(from[i], by);
}

/* ---- 8-bit floats as f32 and back: covey reduces them as f32, so a result is rounded once ---- */

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

/* ---- launches ---- */

static int launch(void (*kernel)(struct cvy_nccl_scaling), const struct cvy_nccl_scaling *s, cudaStream_t stream)
{
	size_t needed = (s->count + THREADS - 1) / THREADS, ctas = needed < MOST_CTAS ? needed : MOST_CTAS;
	cudaLaunchConfig_t config = { dim3((unsigned)ctas), dim3(THREADS), 0, stream, NULL, 0 };
	struct cvy_nccl_scaling all = *s;

	all.step = ctas * THREADS;
	return cudaLaunchKernelEx(&config, kernel, all);
}

int cvy_nccl_scale(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	switch (s->type) {
	case ncclInt8:
		return launch(scale<int8_t>, s, stream);
	case ncclUint8:
		return launch(scale<uint8_t>, s, stream);
	case ncclInt32:
		return launch(scale<int32_t>, s, stream);
	case ncclUint32:
		return launch(scale<uint32_t>, s, stream);
	case ncclInt64:
		return launch(scale<int64_t>, s, stream);
	case ncclUint64:
		return launch(scale<uint64_t>, s, stream);
	case ncclFloat16:
		return launch(scale<__half>, s, stream);
	case ncclFloat32:
		return launch(scale<float>, s, stream);
	case ncclFloat64:
		return launch(scale<double>, s, stream);
	case ncclBfloat16:
		return launch(scale<__nv_bfloat16>, s, stream);
	}
	return cudaErrorInvalidValue;
}

int cvy_nccl_widen(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	return launch(widen, s, stream);
}

int cvy_nccl_narrow(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	return launch(narrow, s, stream);
}
