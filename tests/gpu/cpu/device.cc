/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of the devices that are a CPU (runtime.cc): their number, the current one, and memory of the host. */
#include "runtime.h"

static thread_local int current;
static thread_local std::vector<int> pushed;

extern "C" {

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned)
{
	UNSAFE(0);
	*at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *at)
{
	UNSAFE(0);
	free(at);
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **to, void *at, unsigned)
{
	*to = at;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = 64;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = pushed.empty() ? current : pushed.back();
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	ALIVE();
	current = device; /* also where a context is pushed, and then it is seen when that is gone */
	if (!pushed.empty())
		pushed.back() = device;
	return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned)
{
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	memset(p, 0, sizeof(*p));
	snprintf(p->name, sizeof(p->name), "no device but a CPU");
	p->major = 9;
	p->pciBusID = device;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr attr, int)
{
	const char *kib = getenv("CPU_SHARED_KIB"), *khz = getenv("CPU_KHZ");

	*v = 16; /* processors */
	if (attr ==
	    cudaDevAttrClockRate) /* cycles a millisecond: clock64(). With fewer all times are shorter than they are called */
		*v = khz ? atoi(khz) : 1000000;
	if (attr == cudaDevAttrMaxSharedMemoryPerBlockOptin)
		*v = (kib ? atoi(kib) : 227) << 10;
	return cudaSuccess;
}

/* All memory of this process is in reach. */
cudaError_t cudaHostRegister(void *, size_t, unsigned flags)
{
	ALIVE();
	UNSAFE(0);
	return (flags & cudaHostRegisterIoMemory) && getenv("CPU_NO_REGISTERS") ? cudaErrorNotPermitted : cudaSuccess;
}

cudaError_t cudaHostUnregister(void *)
{
	UNSAFE(0);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
	*least = *most = 0;
	return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
	return e == cudaSuccess ? "no error" : e == cudaErrorIllegalAddress ? "an illegal memory access" : "an error";
}

cudaError_t cudaGetLastError(void)
{
	ALIVE();
	return cudaSuccess;
}

} /* extern "C" */

void cpu_push(int device)
{
	pushed.push_back(device);
}

void cpu_pop(void)
{
	pushed.pop_back();
}
