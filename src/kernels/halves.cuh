/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fp16, eight elements at a time, for the kernels of tools. */
#ifndef CVY_HALVES_CUH
#define CVY_HALVES_CUH

#include <cuda_fp16.h>
#include <stdint.h>

struct __align__(16) cvy_halves
{
	uint16_t of[8];
};

static __device__ __forceinline__ float cvy_of_half(uint16_t half)
{
	return __half2float(__ushort_as_half(half));
}

static __device__ __forceinline__ uint16_t cvy_half(float f)
{
	return __half_as_ushort(__float2half_rn(f));
}

static __device__ __forceinline__ uint16_t cvy_half_times(uint16_t half, float factor)
{
	return cvy_half(cvy_of_half(half) * factor);
}

/* @at: at 16 bytes */
static __device__ __forceinline__ struct cvy_halves cvy_halves_load(const uint16_t *at)
{
	return *(const struct cvy_halves *)at;
}

static __device__ __forceinline__ void cvy_halves_store(uint16_t *at, struct cvy_halves v)
{
	*(struct cvy_halves *)at = v;
}

#endif
