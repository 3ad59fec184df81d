/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What queues that copy (kernels/gpu_copy.cu) take for granted of a device's copy engines, and no document promises:
 *
 * - who sees the last word of a line of 128 bytes and reads it once more, or sees that of a packet of 16, has all of it, while the
 *   copy is under way; and a stored word is seen behind the copy before it. Kernels look as those of covey do.
 * - copies of all kinds end while kernels hold every processor of both devices.
 *
 * And what they take: as many rows as a dispatch of 64 tokens has, in one call and one by one. With one device both ranks are on it.
 *
 *	gpu-copies [NAP_NS]: who has looked in vain naps so long
 */
#include "world.cuh"

#include <chrono>

#include "queue_memory.h"

#define LANES 64  /* slots that a round fills, as far apart as those of one step */
#define LINES 112 /* of each: a row of 7,168 elements */
#define LINE 128
#define ROUNDS 2000
#define LIMIT_MS 5000
#define SELDOM \
	16384 /* looks, for each at a word of the host: what CTAs read there comes to one after the other, 0.5 us each */
#define GENERATION 1

struct seen {
	unsigned long long read, torn_lines, torn_packets, early; /* early: the word before what it follows */
	int stop;
};

static struct cvy_copies copies;
static struct seen *seen, *seen_device;
static uint64_t *pattern; /* pinned: all lines of a round */
static int failures;
static unsigned nap;
static __device__ unsigned arrived; /* CTAs, in all rounds of a play */

static __host__ __device__ uint64_t word_of(uint64_t round, uint64_t line, uint64_t i)
{
	return round << 40 | line << 8 | i; /* so each word says of which round it is */
}

/* One thread of each CTA: the round is read. The last one tells the host. */
static __device__ void say_read(struct seen *seen)
{
	__threadfence();
	if (atomicAdd(&arrived, 1) % gridDim.x == gridDim.x - 1) {
		__threadfence_system();
		atomicAdd_system(&seen->read, gridDim.x);
	}
}

/* A CTA for each slot, a warp for every so many-th line. */
static __global__ void watch(const uint8_t *chunk, struct seen *seen, uint64_t rounds, unsigned nap_ns)
{
	uint64_t lane = blockIdx.x, warp = threadIdx.x / 32, warps = blockDim.x / 32, i = threadIdx.x % 32 / 2;
	const uint64_t *slot = (const uint64_t *)(chunk + cvy_gpu_slot_at(0, (int)lane, 0));
	const volatile uint64_t *told = (const volatile uint64_t *)(chunk + cvy_gpu_signal_at(0, 0, 0));
	unsigned looks = 0; /* alike in a warp */

	for (uint64_t round = 1; round <= rounds; round++) {
		for (uint64_t k = warp; k < LINES; k += warps) {
			uint64_t at = (k + round * 31) % LINES, line = lane * LINES + at, tag, w, low, high;
			const uint64_t *from = slot + at * 16;

			do { /* packets: the second word with the first, of one load */
				asm volatile("ld.volatile.v2.u64 {%0, %1}, [%2];"
					     : "=l"(low), "=l"(high)
					     : "l"(from + i / 2 * 2));
				if (high == word_of(round, line, i / 2 * 2 + 1) &&
				    low != word_of(round, line, i / 2 * 2))
					atomicAdd_system(&seen->torn_packets, 1);
				tag = __shfl_sync(~0u, high, 31);
				if (++looks % SELDOM == 0 && __any_sync(~0u, *(volatile int *)&seen->stop))
					return;
				if (nap_ns && tag != word_of(round, line, 15))
					__nanosleep(nap_ns);
			} while (tag != word_of(round, line, 15));
			w = ((const volatile uint64_t *)from)[i]; /* lines: once more */
			if (__any_sync(~0u, w != word_of(round, line, i)) && threadIdx.x % 32 == 0)
				atomicAdd_system(&seen->torn_lines, 1);
		}
		__syncthreads();
		if (threadIdx.x == 0) {
			for (unsigned i = 1; *told != round; i++)
				if (i % SELDOM == 0 && *(volatile int *)&seen->stop)
					break;
			say_read(seen);
		}
		__syncthreads();
	}
}

/* The signal alone: when it is there, all of the round must be. */
static __global__ void follow(const uint8_t *chunk, struct seen *seen, uint64_t rounds, unsigned nap_ns)
{
	const volatile uint64_t *told = (const volatile uint64_t *)(chunk + cvy_gpu_signal_at(0, 0, 0));

	for (uint64_t round = 1; round <= rounds; round++) {
		while (*told != round && !*(volatile int *)&seen->stop)
			__nanosleep(nap_ns);
		__threadfence_system();
		for (uint64_t k = threadIdx.x; k < (uint64_t)LANES * LINES * 16; k += blockDim.x) {
			uint64_t line = k / 16, lane = line / LINES;
			const volatile uint64_t *slot =
				(const volatile uint64_t *)(chunk + cvy_gpu_slot_at(0, (int)lane, 0));

			if (slot[line % LINES * 16 + k % 16] != word_of(round, line, k % 16) &&
			    !*(volatile int *)&seen->stop)
				atomicAdd_system(&seen->early, 1);
		}
		__syncthreads();
		if (threadIdx.x == 0)
			atomicAdd_system(&seen->read, LANES);
		__syncthreads();
	}
}

static __global__ void holds(volatile int *release)
{
	while (!*release)
		__nanosleep(1000);
}

/* ---- one round ---- */

static void prepare(uint64_t round)
{
	struct rank *a = &ranks[0];

	for (uint64_t k = 0; k < (uint64_t)LANES * LINES * 16; k++)
		pattern[k] = word_of(round, k / 16, k % 16);
	CUDA(cudaSetDevice(a->device));
	CUDA(cudaMemcpy2DAsync((void *)(uintptr_t)(copies.from + cvy_gpu_slot_at(0, 0, 0)), 2 * CVY_GPU_SLOT, pattern,
			       LINES * LINE, LINES * LINE, LANES, cudaMemcpyHostToDevice, a->stream));
	CUDA(cudaStreamSynchronize(a->stream));
}

static void must(int err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "%s fails: %d\n", what, err);
	exit(1);
}

/* How: 0: rows of one copy, else one by one. */
static void post(uint64_t round, int how)
{
	const struct cvy_copier *c = &copies.copier;

	for (int l = 0; l < (how ? LANES : 1); l++)
		must(c->copy(c->ctx, copies.to + cvy_gpu_slot_at(0, l, 0), copies.from + cvy_gpu_slot_at(0, l, 0),
			     LINES * LINE, how ? 1 : LANES, how ? 0 : 2 * CVY_GPU_SLOT),
		     "a copy");
	must(c->store(c->ctx, copies.to + cvy_gpu_signal_at(0, 0, 0), round), "a word");
	must(c->mark(c->ctx), "a mark");
}

static double now_us(void)
{
	return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Until the mark, or LIMIT_MS: 0. */
static int wait_marked(uint64_t marks)
{
	double until = now_us() + LIMIT_MS * 1000.0;
	uint64_t reached = 0;

	while (reached < marks && now_us() < until)
		must(copies.copier.reached(copies.copier.ctx, &reached), "a look at marks");
	return reached >= marks;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

template <typename K> static void play(const char *what, K kernel, int ctas, int threads, int how, uint64_t *marks)
{
	static double us[ROUNDS];
	uint8_t *chunk = ranks[1].window;
	unsigned none = 0;

	memset(seen, 0, sizeof(*seen));
	CUDA(cudaSetDevice(ranks[1].device));
	CUDA(cudaMemcpyToSymbol(arrived, &none, sizeof(none)));
	CUDA(cudaMemsetAsync(chunk, 0, CVY_GPU_CHUNK, ranks[1].stream));
	kernel<<<ctas, threads, 0, ranks[1].stream>>>(chunk, seen_device, ROUNDS, nap);
	CUDA(cudaGetLastError());
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		double since, until;

		prepare(round);
		since = now_us();
		until = since + LIMIT_MS * 1000.0;
		post(round, how);
		while (__atomic_load_n(&seen->read, __ATOMIC_ACQUIRE) < round * LANES && now_us() < until)
			;
		us[round - 1] = now_us() - since;
		if (!wait_marked(++*marks) || now_us() >= until) {
			printf("%s: round %llu did not arrive\n", what, (unsigned long long)round);
			failures++;
			break;
		}
	}
	__atomic_store_n(&seen->stop, 1, __ATOMIC_SEQ_CST);
	CUDA(cudaSetDevice(ranks[1].device));
	CUDA(cudaStreamSynchronize(ranks[1].stream));
	qsort(us, ROUNDS, sizeof(*us), by_size);
	printf("%-34s %d rounds of %d KiB: %llu torn lines, %llu torn packets, %llu words after their signal; %.1f "
	       "us\n",
	       what, ROUNDS, LANES * LINES * LINE / 1024, seen->torn_lines, seen->torn_packets, seen->early,
	       us[ROUNDS / 2]);
	failures += seen->torn_lines || seen->torn_packets || seen->early;
}

/* Kernels hold every processor of both devices. */
static void beside(int how, uint64_t *marks)
{
	int processors;

	memset(seen, 0, sizeof(*seen));
	prepare(1);
	for (int r = 0; r < 2; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ranks[r].device));
		holds<<<processors * 4, 1024, 0, ranks[r].stream>>>(&seen_device->stop);
		CUDA(cudaGetLastError());
	}
	usleep(50000);
	CUDA(cudaSetDevice(ranks[0].device)); /* as the thread that copies has it */
	post(1, how);
	if (!wait_marked(++*marks)) {
		printf("%s wait for kernels: FAILED\n", how ? "copies one by one" : "rows of one copy");
		failures++;
	} else {
		printf("%s end while kernels hold every processor\n", how ? "copies one by one" : "rows of one copy");
	}
	__atomic_store_n(&seen->stop, 1, __ATOMIC_SEQ_CST);
	for (int r = 0; r < 2; r++) {
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamSynchronize(ranks[r].stream));
	}
}

/* Registered memory of rank 1 stands for the chunk: its address is known here. */
static void join(void)
{
	struct cvy_gpu *a = ranks[0].gpu, *b = ranks[1].gpu;
	void *base;
	int fd;

	OK(b, ops->mapped(b)->window(b, CVY_GPU_CHUNK, &base, &fd));
	OK(a, ops->copies_open(a));
	OK(a, ops->copies(a, 1, GENERATION, fd, &copies));
	ranks[1].window = (uint8_t *)base;
	close(fd);
}

int main(int argc, char **argv)
{
	int devices = 0;
	uint64_t marks = 0;
	char why[200];

	nap = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no device\n");
		return 77;
	}
	for (int r = 0; r < 2; r++) {
		struct cvy_gpu_args args = { r % devices, 0, COVEY_DEVICE_MEMORY_VMM, 2 };

		ranks[r].device = r % devices;
		if (ops->open(&args, &ranks[r].gpu, why, sizeof(why))) {
			printf("device %d: %s\n", ranks[r].device, why);
			return 1;
		}
		CUDA(cudaSetDevice(ranks[r].device));
		CUDA(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking));
	}
	CUDA(cudaHostAlloc((void **)&seen, sizeof(*seen), cudaHostAllocMapped | cudaHostAllocPortable));
	CUDA(cudaHostGetDevicePointer((void **)&seen_device, seen, 0));
	CUDA(cudaHostAlloc((void **)&pattern, LANES * LINES * LINE, cudaHostAllocPortable));
	join();
	for (int how = 0; how < 2; how++) {
		play(how ? "lines, copies one by one" : "lines, rows of one copy", watch, LANES, 512, how, &marks);
		play(how ? "signals, copies one by one" : "signals, rows of one copy", follow, 1, 1024, how, &marks);
		beside(how, &marks);
	}
	ops->copies_end(ranks[0].gpu, 1);
	for (int r = 0; r < 2; r++)
		ops->close(ranks[r].gpu);
	printf("%d failed\n", failures);
	return failures != 0;
}
