/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of the CUDA runtime as the kernels' library and the tests call (machine.h; memory.cc has its memory, device.cc
 * what the device is). A stream is a thread that runs launches in order, a launch's CTAs a few at a time, in order, as a
 * device that has not room for all. A kernel that fails ends all that runs, and from then on every call fails, as on a
 * device.
 */
#include "runtime.h"

#include <malloc.h>
#include <sched.h>
#include <set>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ep_call.h"
#include "gpu.h"

#define RESIDENT 4u /* CTAs of a launch that run at a time; the next begins where one has ended */

/* Threads come and go with every launch: what each takes is bounded, and what they leave is used again. */
__attribute__((constructor)) static void small_threads(void)
{
	pthread_attr_t attr;

	mallopt(M_ARENA_MAX, 2);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, (size_t)1 << 20); /* the shared memory of all kernels is in it, as TLS */
	pthread_setattr_default_np(&attr);
	pthread_attr_destroy(&attr);
}

/* ---- streams ---- */

struct CUstream_st {
	std::deque<std::function<void()>> queue;
	std::mutex lock;
	std::condition_variable changed;
	int busy = 0, capturing = 0;
	std::atomic<int> invalid{ 0 }; /* what is captured */
	cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
	std::thread::id by;
	std::vector<std::function<void()>> captured;
	std::thread thread;

	CUstream_st()
	{
		thread = std::thread([this] { main(); });
		thread.detach();
	}

	void main()
	{
		std::unique_lock<std::mutex> hold(lock);

		for (;;) {
			changed.wait(hold, [this] { return !queue.empty(); });
			auto f = queue.front();
			queue.pop_front();
			busy = 1;
			hold.unlock();
			if (!cpu_failed)
				f();
			hold.lock();
			busy = 0;
			changed.notify_all();
		}
	}

	void add(std::function<void()> f)
	{
		std::unique_lock<std::mutex> hold(lock);

		if (capturing) {
			captured.push_back(f);
			return;
		}
		queue.push_back(f);
		changed.notify_all();
	}

	void wait()
	{
		std::unique_lock<std::mutex> hold(lock);

		changed.wait(hold, [this] { return queue.empty() && !busy; });
	}
};

struct CUgraph_st {
	std::vector<std::function<void()>> steps;
};

/* Never destroyed: streams run while a process exits. */
static std::mutex &all_lock = *new std::mutex;
static std::vector<CUstream_st *> &all_streams =
	*new std::vector<CUstream_st *>; /* but those that copy beside kernels */

static CUstream_st *legacy(void)
{
	static CUstream_st *s;
	std::lock_guard<std::mutex> hold(all_lock);

	if (!s)
		all_streams.push_back(s = new CUstream_st());
	return s;
}

static CUstream_st *of(cudaStream_t s)
{
	return s ? s : legacy();
}

/* ---- captures ---- */

static std::vector<CUstream_st *> &captures = *new std::vector<CUstream_st *>;
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

static int minds(const CUstream_st *s)
{
	if (capture_mode == cudaStreamCaptureModeRelaxed || s->mode == cudaStreamCaptureModeRelaxed)
		return 0;
	return s->by == std::this_thread::get_id() ||
	       (s->mode == cudaStreamCaptureModeGlobal && capture_mode == cudaStreamCaptureModeGlobal);
}

cudaError_t cpu_refused(int whole)
{
	std::lock_guard<std::mutex> hold(all_lock);
	cudaError_t got = cudaSuccess;

	for (auto s : captures) {
		if (!whole && !minds(s))
			continue;
		s->invalid = 1;
		got = cudaErrorStreamCaptureUnsupported;
	}
	return got;
}

typedef void (*ep_kernel)(struct cvy_ep_args);

static cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t room, unsigned resident,
			  const std::function<void()> &body)
{
	std::lock_guard<std::mutex> context(cpu_context);

	ALIVE();
	if (of(stream)->invalid)
		return cudaErrorStreamCaptureInvalidated;
	of(stream)->add([=] {
		std::vector<std::thread> ctas;
		std::atomic<unsigned> next(0);

		for (unsigned i = 0; i < grid.x && i < resident; i++)
			ctas.emplace_back([&] {
				for (unsigned at = next++; at < grid.x; at = next++)
					cpu_run(at, block.x, room, body);
			});
		for (auto &t : ctas)
			t.join();
	});
	return cudaSuccess;
}

#undef blockDim

cudaError_t cpu_launch(const cudaLaunchConfig_t *config, const std::function<void()> &body)
{
	return launch(config->stream, config->gridDim, config->blockDim, config->dynamicSmemBytes, RESIDENT, body);
}

#define STACK ((size_t)1000) /* that a kernel takes: more than threads have here, where nobody asks for it */
static size_t stack = 512;
static std::set<const void *> &loaded = *new std::set<const void *>;

static int is_loaded(const void *f)
{
	std::lock_guard<std::mutex> hold(all_lock);

	return (int)loaded.count(f);
}

extern "C" {

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t room, cudaStream_t stream)
{
	const struct cvy_gpu_call *call = (const struct cvy_gpu_call *)args[0];
	std::function<void()> body;
	unsigned resident = RESIDENT;

	if (stack < STACK) {
		fprintf(stderr, "a kernel whose stack is larger than threads have: its launch waits until the device "
				"is idle\n");
		abort();
	}
	if (!is_loaded(f)) {
		fprintf(stderr, "a kernel that nobody has loaded: its launch waits until the device is idle\n");
		return cudaErrorInvalidDeviceFunction;
	}
	if (call->kind == CVY_GPU_DISPATCH || call->kind == CVY_GPU_COMBINE) {
		struct cvy_ep_args a = *(const struct cvy_ep_args *)args[0];

		body = [f, a] { ((ep_kernel)f)(a); };
	} else if (cvy_gpu_is_uneven(call->kind)) {
		struct cvy_gpu_uneven a = *(const struct cvy_gpu_uneven *)args[0];

		body = [f, a] { ((void (*)(struct cvy_gpu_uneven))f)(a); };
	} else if (call->kind == CVY_GPU_MESSAGE) { /* its CTAs wait for each other: they find room, all of them */
		struct cvy_gpu_messages a = *(const struct cvy_gpu_messages *)args[0];

		body = [f, a] { ((void (*)(struct cvy_gpu_messages))f)(a); };
		resident = grid.x;
	} else {
		struct cvy_gpu_call a = *call;

		body = [f, a] { ((void (*)(struct cvy_gpu_call))f)(a); };
	}
	return launch(stream, grid, block, room, resident, body);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *f, void **args)
{
	return cudaLaunchKernel(f, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *user)
{
	ALIVE();
	of(s)->add([=] { f(user); });
	return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *at, cudaStream_t s)
{
	ALIVE();
	of(s)->add([=] { cpu_unmap(at); });
	return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *has, const void *f)
{
	std::lock_guard<std::mutex> hold(all_lock);

	loaded.insert(f);
	has->localSizeBytes = STACK;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *bytes, enum cudaLimit)
{
	*bytes = stack;
	return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit, size_t bytes)
{
	UNSAFE(0);
	stack = bytes;
	return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int bytes)
{
	int most;

	cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
	return bytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int)
{
	*s = new CUstream_st();
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	std::lock_guard<std::mutex> hold(all_lock);

	all_streams.push_back(*s = new CUstream_st());
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	s->wait(); /* its thread stays: a process of tests makes few */
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	UNSAFE(0);
	of(s)->wait();
	ALIVE();
	return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
	UNSAFE(1);
	cpu_wait_for_device();
	ALIVE();
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
	*status = of(s)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	std::lock_guard<std::mutex> hold(all_lock);

	s->captured.clear();
	s->mode = mode;
	s->by = std::this_thread::get_id();
	s->capturing = 1;
	captures.push_back(s);
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	std::lock_guard<std::mutex> hold(all_lock);
	const int whole = !s->invalid.exchange(0);

	for (auto i = captures.begin(); i != captures.end(); ++i) {
		if (*i == s) {
			captures.erase(i);
			break;
		}
	}
	*graph = whole ? new CUgraph_st{ s->captured } : NULL;
	s->capturing = 0;
	return whole ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
	*exec = (cudaGraphExec_t)graph;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	ALIVE();
	for (auto &f : ((cudaGraph_t)exec)->steps)
		of(s)->add(f);
	return cudaSuccess;
}

/* As a copy engine: words are whole, and stored in ascending order. */
static void write_words(void *to, const void *from, size_t bytes)
{
	size_t i = 0;

	if (((uintptr_t)to | (uintptr_t)from) % 8 == 0)
		for (; i + 8 <= bytes; i += 8)
			__atomic_store_n((uint64_t *)((uint8_t *)to + i),
					 __atomic_load_n((const uint64_t *)((const uint8_t *)from + i),
							 __ATOMIC_RELAXED),
					 __ATOMIC_RELEASE);
	for (; i < bytes; i++)
		__atomic_store_n((uint8_t *)to + i, ((const uint8_t *)from)[i], __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Pages that become zero cost nothing: as many chunks as a large group has would not find room on a machine. */
static int write_zeros(void *to, const void *from, size_t bytes)
{
	const uint8_t *v = (const uint8_t *)from;

	return bytes >= 1 << 20 && !v[0] && !memcmp(v, v + 1, bytes - 1) && !madvise(to, bytes, MADV_REMOVE);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
	legacy()->wait();
	ALIVE();
	write_words(to, from, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t s)
{
	std::lock_guard<std::mutex> context(cpu_context);

	ALIVE();
	of(s)->add([=] {
		if (!write_zeros(to, from, bytes))
			write_words(to, from, bytes);
	});
	return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride, size_t bytes,
			      size_t rows, enum cudaMemcpyKind, cudaStream_t s)
{
	std::lock_guard<std::mutex> context(cpu_context);

	ALIVE();
	if (bytes > to_stride || bytes > from_stride)
		return cudaErrorInvalidPitchValue;
	of(s)->add([=] {
		for (size_t i = 0; i < rows; i++)
			write_words((uint8_t *)to + i * to_stride, (const uint8_t *)from + i * from_stride, bytes);
	});
	return cudaSuccess;
}

/* A whole chunk of zeros costs no pages. */
static void fill(void *at, int v, size_t bytes)
{
	if (v || bytes < (1 << 20) || madvise(at, bytes, MADV_REMOVE))
		memset(at, v, bytes);
}

cudaError_t cudaMemset(void *at, int v, size_t bytes)
{
	legacy()->wait();
	ALIVE();
	memset(at, v, bytes);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int v, size_t bytes, cudaStream_t s)
{
	ALIVE();
	of(s)->add([=] { fill(at, v, bytes); });
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t)
{
	return cudaSuccess; /* it goes with what was made of it */
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	delete (cudaGraph_t)exec;
	return cudaSuccess;
}

/* ---- times ---- */

struct CUevent_st {
	std::atomic<uint64_t> ns, recorded, reached;
};

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
	*e = new CUevent_st();
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
	return cudaEventCreate(e);
}

/* What was recorded may be under way: it stays, as threads of streams do. */
cudaError_t cudaEventDestroy(cudaEvent_t)
{
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	uint64_t number;

	ALIVE();
	number = ++e->recorded;
	of(s)->add([=] {
		struct timespec t;

		clock_gettime(CLOCK_MONOTONIC, &t);
		e->ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		e->reached = number;
	});
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	uint64_t number = e->recorded;

	ALIVE();
	of(s)->add([=] {
		while (e->reached < number && !cpu_failed)
			sched_yield();
	});
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	ALIVE();
	UNSAFE(0);
	return e->reached == e->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	std::swap(*mode, capture_mode);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	*ms = (float)(to->ns - from->ns) / 1e6f;
	return cudaSuccess;
}

/* ---- what tests do to a device: tests/gpu/hand.cu ---- */

int cvy_test_devices(void)
{
	return 64;
}

void cvy_test_poison(cudaStream_t s)
{
	of(s)->add([] { cpu_failed = 1; });
}

int cvy_test_stall(cudaStream_t s, int ms)
{
	of(s)->add([=] { usleep((useconds_t)ms * 1000); });
	return 0;
}

} /* extern "C" */

void cpu_wait_for_device(void)
{
	std::vector<CUstream_st *> all;

	all_lock.lock();
	all = all_streams;
	all_lock.unlock();
	for (auto s : all)
		s->wait();
}
