/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of the runtime wait for kernels of the device? The fallback to CUDA IPC (kernels/gpu_ipc.cu) is built on what
 * this prints: in a view change CTAs that are parked may hold every processor until the change is over, so what it calls
 * must return while they do. Here a kernel that holds every processor runs until the host lets it go; each call is made
 * beside it by a thread, which has LIMIT_MS for it. Beside a call that waits, another thread copies and launches.
 * Two processes: exported memory cannot be opened where it is from. Prints facts, judges none; exit 77 without a device.
 */
#include <atomic>
#include <chrono>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <thread>
#include <unistd.h>

#define LIMIT_MS 2000
#define BYTES ((size_t)34 << 20)
#define CHUNKS 4

static volatile int *release_host;
static int *release_device;
static cudaStream_t aside;
static uint8_t *pinned, *here;

static __global__ void holds(volatile int *release)
{
	while (!*release)
		__nanosleep(1000);
}

static __global__ void nothing(void)
{
}

static void must(cudaError_t got, const char *what)
{
	if (got == cudaSuccess)
		return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(got));
	exit(1);
}

/* All processors are held, by more CTAs than there is room for. */
static void hold(int device)
{
	int processors;

	must(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "processors");
	*release_host = 0;
	holds<<<processors * 4, 1024>>>(release_device);
	must(cudaGetLastError(), "launching");
	std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

template <typename F> static bool in_time(F f, double *us)
{
	std::atomic<bool> *done = new std::atomic<bool>(false);
	auto since = std::chrono::steady_clock::now();
	std::thread([=] {
		f();
		*done = true;
	}).detach();
	do
		*us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since).count();
	while (!*done && *us < LIMIT_MS * 1000.0);
	return *done;
}

/* One call beside kernels, and what it gave. */
template <typename F> static void probe(int device, const char *what, F call)
{
	static std::atomic<int> got;
	static std::atomic<bool> ended;
	double us, copy_us;
	bool returned, copied = true;

	hold(device);
	got = -1;
	ended = false;
	returned = in_time(
		[=] {
			cudaSetDevice(device);
			got = (int)call();
			ended = true;
		},
		&us);
	if (!returned)
		copied = in_time(
			[=] {
				cudaSetDevice(device);
				cudaMemcpyAsync(here, pinned, 4096, cudaMemcpyHostToDevice, aside);
				cudaStreamSynchronize(aside);
				nothing<<<1, 1, 0, aside>>>(); /* that it is launched, not that it runs */
			},
			&copy_us);
	*release_host = 1;
	while (!ended)
		usleep(1000);
	must(cudaDeviceSynchronize(), "the end of the kernel");
	if (returned)
		printf("%-44s returned beside kernels after %8.0f us: %s\n", what, us,
		       cudaGetErrorString((cudaError_t)got.load()));
	else
		printf("%-44s WAITS for kernels%s: %s\n", what,
		       copied ? ", copies and launches of another thread do not"
			      : ", and so do those of another thread",
		       cudaGetErrorString((cudaError_t)got.load()));
	fflush(stdout);
}

/* Exports memory, and gives it back when told to. */
static void exporter(int device, int from, int to)
{
	cudaIpcMemHandle_t handle[CHUNKS];
	void *chunk[CHUNKS];
	char word = 0;

	if (cudaSetDevice(device) != cudaSuccess)
		_exit(1);
	for (int i = 0; i < CHUNKS; i++)
		if (cudaMalloc(&chunk[i], BYTES) != cudaSuccess ||
		    cudaMemset(chunk[i], 0x51 + i, BYTES) != cudaSuccess ||
		    cudaIpcGetMemHandle(&handle[i], chunk[i]) != cudaSuccess)
			_exit(1);
	cudaDeviceSynchronize();
	if (write(to, handle, sizeof(handle)) != sizeof(handle))
		_exit(1);
	while (read(from, &word, 1) == 1) {
		cudaError_t got = cudaFree(chunk[word - '0']);

		if (write(to, &got, sizeof(got)) != sizeof(got))
			_exit(1);
	}
	_exit(0);
}

static void import(int device, cudaIpcMemHandle_t *handle, int to_exporter, int from_exporter)
{
	static void *opened[CHUNKS], *mine;
	uint8_t *look = pinned;
	cudaError_t got;

	for (int i = 0; i < 2; i++)
		probe(device, i ? "cudaIpcOpenMemHandle, again" : "cudaIpcOpenMemHandle, the first",
		      [=] { return cudaIpcOpenMemHandle(&opened[i], handle[i], cudaIpcMemLazyEnablePeerAccess); });
	must(cudaIpcOpenMemHandle(&opened[2], handle[2], cudaIpcMemLazyEnablePeerAccess), "opening");
	probe(device, "a copy to what was opened", [=] {
		cudaMemcpyAsync(opened[0], pinned, 4096, cudaMemcpyHostToDevice, aside);
		return cudaStreamSynchronize(aside);
	});
	probe(device, "cudaIpcOpenMemHandle of what is open",
	      [=] { return cudaIpcOpenMemHandle(&mine, handle[1], cudaIpcMemLazyEnablePeerAccess); });
	probe(device, "cudaIpcCloseMemHandle", [=] { return cudaIpcCloseMemHandle(opened[0]); });
	probe(device, "cudaIpcCloseMemHandle, again", [=] { return cudaIpcCloseMemHandle(opened[1]); });
	if (write(to_exporter, "2", 1) != 1 || read(from_exporter, &got, sizeof(got)) != (ssize_t)sizeof(got))
		return;
	printf("%-44s %s; ", "its owner frees what is open here:", cudaGetErrorString(got));
	got = cudaMemcpy(look, opened[2], 4096, cudaMemcpyDeviceToHost);
	printf("it reads as %02x (0x53 was there): %s\n", look[0], cudaGetErrorString(got));
	got = cudaIpcCloseMemHandle(opened[2]);
	printf("%-44s %s\n", "and is closed then:", cudaGetErrorString(got));
}

int main(void)
{
	static cudaIpcMemHandle_t handle[CHUNKS], own;
	static void *chunk, *small;
	int there[2], back[2], count = 0;
	pid_t child;

	if (pipe(there) || pipe(back))
		return 1;
	child = fork(); /* before this process has a device */
	if (!child) {
		close(there[1]);
		close(back[0]);
		cudaGetDeviceCount(&count);
		exporter(count > 1, there[0], back[1]);
	}
	close(back[1]);
	if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
		printf("skipped: no device\n");
		return 77;
	}
	must(cudaSetDevice(0), "the device");
	must(cudaHostAlloc((void **)&release_host, 4096, cudaHostAllocMapped), "pinned memory");
	must(cudaHostGetDevicePointer((void **)&release_device, (void *)release_host, 0), "pinned memory");
	must(cudaHostAlloc((void **)&pinned, 4096, 0), "pinned memory");
	must(cudaMalloc((void **)&here, 4096), "memory");
	must(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking), "a stream");
	nothing<<<1, 1>>>(); /* loaded: that might wait */
	must(cudaDeviceSynchronize(), "a first kernel");
	if (read(back[0], handle, sizeof(handle)) != (ssize_t)sizeof(handle))
		return 1;
	printf("devices: %d; exported from another process%s\n", count, count > 1 ? " on another device" : "");
	probe(0, "nothing", [] { return cudaSuccess; });
	probe(0, "cudaMalloc of 34 MiB", [] { return cudaMalloc(&chunk, BYTES); });
	probe(0, "cudaMalloc of 4 KiB", [] { return cudaMalloc(&small, 4096); });
	probe(0, "cudaIpcGetMemHandle", [] { return cudaIpcGetMemHandle(&own, chunk); });
	import(0, handle, there[1], back[0]);
	probe(0, "cudaFree of 34 MiB", [] { return cudaFree(chunk); });
	probe(0, "cudaFree of 4 KiB", [] { return cudaFree(small); });
	close(there[1]);
	return 0;
}
