/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the device that is a CPU (runtime.cc), as the runtime and the driver give it. Device memory is memory, what is
 * exported is memfds, which other processes map: the descriptor by VMM, by IPC what a handle names. IPC is as strict as on
 * a device: what frees or closes waits for kernels and holds up all else, and who frees what is open elsewhere is ended.
 */
#include "runtime.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)2 << 20)
#define ROOM (((size_t)1 << 30) - 1)
#define POISONED ((size_t)64 << 10) /* bytes at either end of memory */

std::mutex &cpu_context = *new std::mutex;
static std::mutex &lock = *new std::mutex; /* never destroyed: streams run while a process exits */

/* Device memory is what these gave. */
struct memory {
	size_t bytes;
	int fd;	     /* of memory that can be exported; -1 */
	uint64_t of; /* what was opened here of another process: its inode; 0: it is our own */
};

static std::map<const uint8_t *, memory> &memories(void)
{
	static auto *m = new std::map<const uint8_t *, memory>;

	return *m;
}

static void remember(const void *at, size_t bytes, int fd = -1, uint64_t of = 0)
{
	std::lock_guard<std::mutex> hold(lock);

	memories()[(const uint8_t *)at] = { bytes, fd, of };
}

/* Taken out of the list. */
static int forget(const void *at, memory *m)
{
	std::lock_guard<std::mutex> hold(lock);
	auto i = memories().find((const uint8_t *)at);

	if (i == memories().end())
		return 0;
	*m = i->second;
	memories().erase(i);
	return 1;
}

static uint64_t inode(int fd)
{
	struct stat s;

	return fd < 0 || fstat(fd, &s) ? 0 : s.st_ino;
}

/* A lock of the kind that others see on memory that they have open; @look: has anybody else one?. */
static int locked(int fd, int look)
{
	struct flock l = {};

	l.l_type = look ? F_WRLCK : F_RDLCK;
	l.l_whence = SEEK_SET;
	l.l_len = 1;
	return fcntl(fd, look ? F_OFD_GETLK : F_OFD_SETLK, &l) == 0 && l.l_type != F_UNLCK;
}

/* What cudaFreeAsync() does in its turn. */
void cpu_unmap(void *at)
{
	memory m;

	if (forget(at, &m))
		munmap(at, m.bytes);
}

/* Others had it before, as on a device. Not all of what is large, most of which nobody uses: pages cost more than a seed. */
static void poison(uint8_t *at, size_t bytes)
{
	const size_t n = bytes < POISONED ? bytes : POISONED;

	memset(at, CPU_POISON, n);
	memset(at + bytes - n, CPU_POISON, n);
}

extern "C" {

/* Whole pages of 2 MiB can be exported. */
static cudaError_t give(void **at, size_t bytes)
{
	int fd = bytes % PAGE ? -1 : (int)memfd_create("memory", MFD_CLOEXEC);

	ALIVE();
	if (bytes % PAGE == 0 && (fd < 0 || ftruncate(fd, (off_t)bytes)))
		return cudaErrorMemoryAllocation;
	*at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		   fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (*at == MAP_FAILED)
		return cudaErrorMemoryAllocation;
	poison((uint8_t *)*at, bytes);
	remember(*at, bytes, fd);
	return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
	UNSAFE(0);
	return give(at, bytes);
}

cudaError_t cudaFree(void *at)
{
	std::lock_guard<std::mutex> context(cpu_context);
	memory m;

	if (!at)
		return cudaSuccess;
	UNSAFE(0);
	cpu_wait_for_device();
	if (!forget(at, &m) || m.of)
		return cudaErrorInvalidValue;
	if (m.fd >= 0 && locked(m.fd, 1)) { /* anything may follow, so this does */
		fprintf(stderr, "memory is freed that another process has open\n");
		abort();
	}
	munmap(at, m.bytes);
	if (m.fd >= 0)
		close(m.fd);
	return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **at, size_t bytes, cudaStream_t)
{
	return give(at, bytes);
}

/* ---- what other processes open: a handle names the process and its descriptor ---- */

struct handle {
	int32_t pid, fd;
	uint64_t inode, bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *at)
{
	std::lock_guard<std::mutex> hold(lock);
	auto i = memories().find((const uint8_t *)at);
	struct handle h = {};

	ALIVE();
	if (i == memories().end() || i->second.fd < 0 || i->second.of)
		return cudaErrorInvalidValue;
	h.pid = getpid();
	h.fd = i->second.fd;
	h.inode = inode(h.fd);
	h.bytes = i->second.bytes;
	memset(out, 0, sizeof(*out));
	memcpy(out, &h, sizeof(h));
	return cudaSuccess;
}

static int is_open(uint64_t of)
{
	std::lock_guard<std::mutex> hold(lock);

	for (auto &m : memories())
		if (m.second.of == of)
			return 1;
	return 0;
}

cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned flags)
{
	struct handle h;
	char path[64];
	int fd;

	ALIVE();
	UNSAFE(0);
	memcpy(&h, &handle, sizeof(h));
	if (h.pid == getpid() || flags != cudaIpcMemLazyEnablePeerAccess)
		return cudaErrorDeviceUninitialized;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || inode(fd) != h.inode || is_open(h.inode) || !locked(fd, 0)) {
		close(fd);
		return cudaErrorInvalidValue;
	}
	*at = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	remember(*at, h.bytes, fd, h.inode);
	return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *at)
{
	std::lock_guard<std::mutex> context(cpu_context);
	memory m;

	UNSAFE(0);
	cpu_wait_for_device();
	if (!forget(at, &m) || !m.of)
		return cudaErrorInvalidValue;
	munmap(at, m.bytes);
	close(m.fd);
	return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *at)
{
	std::lock_guard<std::mutex> hold(lock);
	auto i = memories().upper_bound((const uint8_t *)at);

	ALIVE();
	a->type = cudaMemoryTypeUnregistered;
	if (i != memories().begin() && (const uint8_t *)at < (--i)->first + i->second.bytes)
		a->type = cudaMemoryTypeDevice;
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
	std::lock_guard<std::mutex> hold(lock);

	*left = *total = ROOM;
	for (auto &m : memories())
		*left -= m.second.bytes < *left ? m.second.bytes : *left;
	return cudaSuccess;
}

} /* extern "C" */

/* ---- the driver's memory ---- */

/* CPU_NO_VMM: a device that has none. */
static CUresult d_attribute(int *v, CUdevice_attribute, CUdevice)
{
	*v = !getenv("CPU_NO_VMM");
	return CUDA_SUCCESS;
}

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

/* CPU_NO_PEERS: a device that reaches no memory of others. */
static CUresult d_from_fd(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType)
{
	if (getenv("CPU_NO_PEERS"))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	*handle = (CUmemGenericAllocationHandle)dup((int)(uintptr_t)fd);
	return CUDA_SUCCESS;
}

static CUresult d_text(CUresult got, const char **text)
{
	*text = got == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ? "peer access is not supported between these two devices"
							  : "no memory";
	return CUDA_SUCCESS;
}

static CUresult d_retain(CUcontext *context, CUdevice device)
{
	*context = (CUcontext)(intptr_t)(device + 1);
	return CUDA_SUCCESS;
}

static CUresult d_push(CUcontext context)
{
	cpu_push((int)(intptr_t)context - 1);
	return CUDA_SUCCESS;
}

static CUresult d_pop(CUcontext *)
{
	cpu_pop();
	return CUDA_SUCCESS;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **at, unsigned, unsigned long long,
							cudaDriverEntryPointQueryResult *)
{
	static const std::map<std::string, void *> known = {
		{ "cuDeviceGetAttribute", (void *)d_attribute },
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
		{ "cuDevicePrimaryCtxRetain", (void *)d_retain },
		{ "cuCtxPushCurrent", (void *)d_push },
		{ "cuCtxPopCurrent", (void *)d_pop },
	};
	auto i = known.find(name);

	*at = i == known.end() ? NULL : i->second;
	return *at ? cudaSuccess : cudaErrorInvalidValue;
}
