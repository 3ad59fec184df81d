/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of the CUDA runtime as the kernels' library calls, in the simulator (tests/gpu/cpu/memory.cc has its memory). A
 * launch waits in its process's stream; a copy of the host's is done at once, with time before it and after.
 */
#include "device.h"

#include <sys/mman.h>

#include "gpu.h"
#include "runtime.h"

struct process *launching; /* whose call this is; app.cc */

typedef void (*ep_kernel)(struct cvy_ep_args);

#undef blockDim

/* @resident: CTAs that run at a time */
static cudaError_t launch(dim3 grid, dim3 threads, size_t room, unsigned resident, const std::function<void()> &body)
{
	struct launch *l = new struct launch();

	l->body = body;
	l->of = launching;
	l->ctas = l->left = grid.x;
	l->threads = threads.x;
	l->resident = resident;
	l->room = room;
	launching->stream.push_back(l);
	return cudaSuccess;
}

cudaError_t cpu_launch(const cudaLaunchConfig_t *config, const std::function<void()> &body)
{
	return launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, (unsigned)setup.resident, body);
}

extern "C" {

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 threads, void **args, size_t room, cudaStream_t)
{
	const struct cvy_gpu_call *call = (const struct cvy_gpu_call *)args[0];
	unsigned resident = (unsigned)setup.resident;
	std::function<void()> body;

	if (call->kind == CVY_GPU_DISPATCH || call->kind == CVY_GPU_COMBINE) {
		struct cvy_ep_args a = *(const struct cvy_ep_args *)args[0];

		body = [f, a] { ((ep_kernel)f)(a); };
	} else if (cvy_gpu_is_uneven(call->kind)) {
		struct cvy_gpu_uneven a = *(const struct cvy_gpu_uneven *)args[0];

		body = [f, a] { ((void (*)(struct cvy_gpu_uneven))f)(a); };
		if (resident > 1) /* all, as on a device */
			resident = grid.x;
	} else {
		struct cvy_gpu_call a = *call;

		body = [f, a] { ((void (*)(struct cvy_gpu_call))f)(a); };
	}
	return launch(grid, threads, room, resident, body);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **args)
{
	return cudaLaunchKernel(f, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}

/* What the host copies to and from a device takes a moment, in which kernels go on. */
static void write_words(void *to, const void *from, size_t bytes)
{
	if (bytes == 8 && !((uintptr_t)to & 7))
		*(volatile uint64_t *)to = *(const uint64_t *)from;
	else if (bytes == 1)
		*(volatile uint8_t *)to = *(const uint8_t *)from;
	else
		memcpy(to, from, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t)
{
	size_t first = bytes > 256 ? sim_below(bytes / 64) * 64 : 0;

	if (bytes >= (1 << 20)) { /* zeros, for memory that is fresh (cvy_gpu_clear) */
		madvise(to, bytes, MADV_REMOVE);
		return cudaSuccess;
	}
	agent_pause(200 + sim_below(3 * US));
	write_words(to, from, first);
	if (first)
		agent_pause(100 + sim_below(US));
	write_words((uint8_t *)to + first, (const uint8_t *)from + first, bytes - first);
	agent_pause(100 + sim_below(2 * US));
	for (struct process *p : processes)
		machine_stir(p);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int v, size_t bytes, cudaStream_t)
{
	memset(at, v, bytes);
	return cudaSuccess;
}

/* Memory of the host is used again: the next seed needs as much. */
static std::map<size_t, std::vector<void *>> &spare(void)
{
	static std::map<size_t, std::vector<void *>> all;

	return all;
}

static std::map<void *, size_t> &sizes(void)
{
	static std::map<void *, size_t> all;

	return all;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned)
{
	std::vector<void *> &same = spare()[bytes];

	if (same.empty()) {
		*at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sizes()[*at] = bytes;
	} else {
		*at = same.back();
		same.pop_back();
	}
	return cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
	if (at)
		spare()[sizes()[at]].push_back(at);
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **to, void *at, unsigned)
{
	*to = at;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
	memset(p, 0, sizeof(*p));
	snprintf(p->name, sizeof(p->name), "a simulated device");
	p->major = 9;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr attr, int)
{
	*v = attr == cudaDevAttrClockRate ? 1000000 : 16; /* a cycle is a nanosecond */
	if (attr == cudaDevAttrMaxSharedMemoryPerBlockOptin)
		*v = 227 << 10;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
	*n = INCS;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status)
{
	*status = cudaStreamCaptureStatusNone;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int)
{
	*s = NULL;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	*s = NULL;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
	*least = *most = 0;
	return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
	return "an error";
}

/* Calls with nothing to do here. */
#define NOTHING_TO_DO(NAME, ...) \
	cudaError_t NAME(__VA_ARGS__) \
	{ \
		return cudaSuccess; \
	}

NOTHING_TO_DO(cudaSetDevice, int)
NOTHING_TO_DO(cudaStreamSynchronize, cudaStream_t)
NOTHING_TO_DO(cudaDeviceSynchronize, void)
NOTHING_TO_DO(cudaStreamDestroy, cudaStream_t)
NOTHING_TO_DO(cudaFuncGetAttributes, struct cudaFuncAttributes *, const void *)
NOTHING_TO_DO(cudaDeviceSetLimit, enum cudaLimit, size_t)
NOTHING_TO_DO(cudaFuncSetAttribute, const void *, enum cudaFuncAttribute, int)
NOTHING_TO_DO(cudaHostUnregister, void *)
NOTHING_TO_DO(cudaDeviceEnablePeerAccess, int, unsigned)
NOTHING_TO_DO(cudaGetLastError, void)
NOTHING_TO_DO(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *) /* nothing is captured */

cudaError_t cudaDeviceGetLimit(size_t *bytes, enum cudaLimit)
{
	*bytes = 0;
	return cudaSuccess;
}

cudaError_t cudaHostRegister(void *, size_t, unsigned)
{
	return cudaErrorNotPermitted;
}

cudaError_t cudaMemset(void *at, int v, size_t bytes)
{
	memset(at, v, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
	memcpy(to, from, bytes);
	return cudaSuccess;
}

/* No rank is of another host: nothing is copied for a proxy. */
#define NOT_CALLED(NAME, ...) \
	cudaError_t NAME(__VA_ARGS__) \
	{ \
		return cudaErrorNotSupported; \
	}

NOT_CALLED(cudaMemcpy2DAsync, void *, size_t, const void *, size_t, size_t, size_t, enum cudaMemcpyKind, cudaStream_t)
NOT_CALLED(cudaFreeAsync, void *, cudaStream_t)
NOT_CALLED(cudaEventCreateWithFlags, cudaEvent_t *, unsigned)
NOT_CALLED(cudaEventRecord, cudaEvent_t, cudaStream_t)
NOT_CALLED(cudaEventQuery, cudaEvent_t)
NOT_CALLED(cudaEventDestroy, cudaEvent_t)

} /* extern "C" */

cudaError_t cpu_refused(int)
{
	return cudaSuccess;
}

void cpu_push(int)
{
}

void cpu_pop(void)
{
}

void cpu_wait_for_device(void)
{
}
