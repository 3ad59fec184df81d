/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the device that is a CPU (runtime.cc), as the runtime and the driver give it. Device memory is memory, what is
 * exported is memfds, which other processes map.
 */
#include "runtime.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM (((size_t)1 << 30) - 1)

static std::mutex &lock = *new std::mutex; /* never destroyed: streams run while a process exits */

/* Device memory is what these gave. */
static std::map<const uint8_t *, size_t> &memories(void)
{
	static auto *m = new std::map<const uint8_t *, size_t>;

	return *m;
}

static void remember(const void *at, size_t bytes)
{
	std::lock_guard<std::mutex> hold(lock);

	memories()[(const uint8_t *)at] = bytes;
}

extern "C" {

cudaError_t cudaMalloc(void **at, size_t bytes)
{
	ALIVE();
	*at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (*at == MAP_FAILED)
		return cudaErrorMemoryAllocation;
	remember(*at, bytes);
	return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
	std::lock_guard<std::mutex> hold(lock);
	auto i = memories().find((const uint8_t *)at);

	if (i == memories().end())
		return at ? cudaErrorInvalidValue : cudaSuccess;
	munmap(at, i->second);
	memories().erase(i);
	return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *at)
{
	std::lock_guard<std::mutex> hold(lock);
	auto i = memories().upper_bound((const uint8_t *)at);

	ALIVE();
	a->type = cudaMemoryTypeUnregistered;
	if (i != memories().begin() && (const uint8_t *)at < (--i)->first + i->second)
		a->type = cudaMemoryTypeDevice;
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
	std::lock_guard<std::mutex> hold(lock);

	*left = *total = ROOM;
	for (auto &m : memories())
		*left -= m.second < *left ? m.second : *left;
	return cudaSuccess;
}

} /* extern "C" */

/* ---- the driver's memory ---- */

static CUresult d_reserve(CUdeviceptr *at, size_t bytes, size_t, CUdeviceptr, unsigned long long)
{
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*at = (CUdeviceptr)p;
	return p == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult d_unreserve(CUdeviceptr at, size_t bytes)
{
	munmap((void *)at, bytes);
	return CUDA_SUCCESS;
}

static CUresult d_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *,
			 unsigned long long)
{
	int fd = cpu_failed || getenv("CPU_NO_CHUNK") ? -1 : (int)memfd_create("chunk", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = (CUmemGenericAllocationHandle)fd;
	return CUDA_SUCCESS;
}

static CUresult d_release(CUmemGenericAllocationHandle handle)
{
	close((int)handle);
	return CUDA_SUCCESS;
}

static CUresult d_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long)
{
	void *p = mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle, 0);

	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	remember(p, bytes);
	return CUDA_SUCCESS;
}

static CUresult d_unmap(CUdeviceptr at, size_t bytes)
{
	std::lock_guard<std::mutex> hold(lock);

	memories().erase((const uint8_t *)at);
	mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return CUDA_SUCCESS;
}

static CUresult d_access(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)
{
	return CUDA_SUCCESS;
}

static CUresult d_to_fd(void *to, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long)
{
	*(int *)to = dup((int)handle);
	return CUDA_SUCCESS;
}

static CUresult d_from_fd(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType)
{
	*handle = (CUmemGenericAllocationHandle)dup((int)(uintptr_t)fd);
	return CUDA_SUCCESS;
}

static CUresult d_text(CUresult, const char **text)
{
	*text = "no memory";
	return CUDA_SUCCESS;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **at, unsigned, unsigned long long,
							cudaDriverEntryPointQueryResult *)
{
	static const std::map<std::string, void *> known = {
		{ "cuMemAddressReserve", (void *)d_reserve },
		{ "cuMemAddressFree", (void *)d_unreserve },
		{ "cuMemCreate", (void *)d_create },
		{ "cuMemRelease", (void *)d_release },
		{ "cuMemMap", (void *)d_map },
		{ "cuMemUnmap", (void *)d_unmap },
		{ "cuMemSetAccess", (void *)d_access },
		{ "cuMemExportToShareableHandle", (void *)d_to_fd },
		{ "cuMemImportFromShareableHandle", (void *)d_from_fd },
		{ "cuGetErrorString", (void *)d_text },
	};
	auto i = known.find(name);

	*at = i == known.end() ? NULL : i->second;
	return *at ? cudaSuccess : cudaErrorInvalidValue;
}
