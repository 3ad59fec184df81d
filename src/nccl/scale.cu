/* SPDX-License-Identifier: Apache-2.0 */
/* Each element times a scalar, rounded to its type: what an operator of ncclRedOpCreatePreMulSum() does before the sum. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
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

template <typename T> static int launch(const struct cvy_nccl_scaling *s, cudaStream_t stream)
{
	size_t needed = (s->count + THREADS - 1) / THREADS, ctas = needed < MOST_CTAS ? needed : MOST_CTAS;
	cudaLaunchConfig_t config = { dim3((unsigned)ctas), dim3(THREADS), 0, stream, NULL, 0 };
	struct cvy_nccl_scaling all = *s;

	all.step = ctas * THREADS;
	return cudaLaunchKernelEx(&config, scale<T>, all);
}

int cvy_nccl_scale(const struct cvy_nccl_scaling *s, struct CUstream_st *stream)
{
	switch (s->type) {
	case ncclInt8:
		return launch<int8_t>(s, stream);
	case ncclUint8:
		return launch<uint8_t>(s, stream);
	case ncclInt32:
		return launch<int32_t>(s, stream);
	case ncclUint32:
		return launch<uint32_t>(s, stream);
	case ncclInt64:
		return launch<int64_t>(s, stream);
	case ncclUint64:
		return launch<uint64_t>(s, stream);
	case ncclFloat16:
		return launch<__half>(s, stream);
	case ncclFloat32:
		return launch<float>(s, stream);
	case ncclFloat64:
		return launch<double>(s, stream);
	case ncclBfloat16:
		return launch<__nv_bfloat16>(s, stream);
	}
	return cudaErrorInvalidValue;
}
