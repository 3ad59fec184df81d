/* SPDX-License-Identifier: Apache-2.0 */
/* What tests do to a device: a kernel that fails, after which the process has none, and one that takes its time. */
#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void fails(int *nowhere)
{
	*nowhere = 1;
}

static __global__ void stalls(uint64_t ns)
{
	uint64_t since, now;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(since));
	do {
		__nanosleep(1000);
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	} while (now - since < ns);
}

extern "C" int cvy_test_devices(void)
{
	int count;

	return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

extern "C" void cvy_test_poison(struct CUstream_st *stream)
{
	fails<<<1, 1, 0, stream>>>((int *)8);
}

extern "C" int cvy_test_stall(struct CUstream_st *stream, int ms)
{
	stalls<<<1, 1, 0, stream>>>((uint64_t)ms * 1000000);
	return cudaGetLastError() == cudaSuccess ? 0 : -1;
}
