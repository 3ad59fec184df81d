/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine allows, by two pinned processes and nothing of a library, and where its cores are. Lines:
 *
 *   trip NS            a flag goes to the other core and back
 *   copy GB/s          both copy 64 MiB by memcpy, read and written bytes counted
 *   stream GB/s        the same past the caches, by stores that do not fetch what they overwrite
 *   window BYTES US    both copy BYTES into a shared window, set a flag, wait for the other's and read its window:
 *                      what an operation through shared memory cannot do without
 *
 * Each is the best of five; -r: under SCHED_FIFO, see bench.h; -q: trip alone. A virtual machine's cores move between caches, which changes every figure two- to threefold: so this runs before
 * and after each round of tests/bench/run.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "bench.h"

#define TRIPS 5000
#define COPY_BYTES ((size_t)64 << 20)
#define WINDOW_BYTES ((size_t)4 << 20)
#define WINDOW_SLOTS 2 /* whoever passed flag i + 1 of the other has it known that i was read */
#define WINDOW_US 1500
#define ROUNDS 5   /* the best counts: nothing makes a machine faster than it is */
#define LOOKS 4000 /* some microseconds */

struct shared {
	uint64_t flag[2][8] __attribute__((aligned(64)));
	char window[2][WINDOW_SLOTS][WINDOW_BYTES] __attribute__((aligned(4096)));
};

static const size_t window_sizes[] = { 64, 1024, 8192, 65536, 262144, 1048576, WINDOW_BYTES };
static struct shared *shared;
static int me; /* 0, or 1 in the child */
static int fifo, quick;
static uint64_t sink, step;

static void tell(uint64_t value)
{
	__atomic_store_n(&shared->flag[me][0], value, __ATOMIC_RELEASE);
}

/* Yields only where the other cannot be running: on a busy machine. */
static void wait_for(uint64_t value)
{
	for (unsigned looks = 0; __atomic_load_n(&shared->flag[!me][0], __ATOMIC_ACQUIRE) < value; looks++)
		if (looks > LOOKS)
			sched_yield();
}

static void meet(void)
{
	tell(++step);
	wait_for(step);
}

/* Each has a core of its own. Who runs there must not wait for one that cannot: hence two meetings. */
static void begin(void)
{
	meet();
	if (!fifo)
		return;
	bench_fifo(0, 1);
	meet();
}

static void end(void)
{
	if (fifo)
		bench_fifo(0, 0);
}

static double round_trip_ns(void)
{
	double best = 0, ns;
	uint64_t start;

	for (int round = 0; round < ROUNDS; round++) {
		begin();
		start = bench_now_ns();
		for (uint64_t i = 1; i <= TRIPS; i++) {
			if (me)
				wait_for(step + i);
			tell(step + i);
			if (!me)
				wait_for(step + i);
		}
		step += TRIPS;
		ns = (double)(bench_now_ns() - start) / TRIPS;
		end();
		best = !round || ns < best ? ns : best;
	}
	return best;
}

static void stream(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
	for (size_t i = 0; i < bytes; i += 64) {
		__m128i a = _mm_load_si128((const __m128i *)(const void *)(from + i));
		__m128i b = _mm_load_si128((const __m128i *)(const void *)(from + i + 16));
		__m128i c = _mm_load_si128((const __m128i *)(const void *)(from + i + 32));
		__m128i d = _mm_load_si128((const __m128i *)(const void *)(from + i + 48));

		_mm_stream_si128((__m128i *)(void *)(to + i), a);
		_mm_stream_si128((__m128i *)(void *)(to + i + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + i + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + i + 48), d);
	}
	_mm_sfence();
#else
	memcpy(to, from, bytes);
#endif
}

static double copy_gb_s(char *to, const char *from, int past_caches)
{
	uint64_t start, ns, best = UINT64_MAX;

	for (int i = 0; i < ROUNDS; i++) {
		begin();
		start = bench_now_ns();
		if (past_caches)
			stream(to, from, COPY_BYTES);
		else
			memcpy(to, from, COPY_BYTES);
		__asm__ volatile("" : : "r"(to) : "memory");
		ns = bench_now_ns() - start;
		end();
		best = ns < best ? ns : best;
	}
	return 2.0 * 2 * (double)COPY_BYTES / (double)best;
}

static void look(const char *from, size_t bytes)
{
	uint64_t all[8] = { 0 };

	for (size_t i = 0; i < bytes; i += 64) {
		const uint64_t *line = (const uint64_t *)(const void *)(from + i);

		for (int k = 0; k < 8; k++)
			all[k] |= line[k];
	}
	for (int k = 0; k < 8; k++)
		sink |= all[k];
}

static double window_loop(const char *input, size_t bytes, int n)
{
	uint64_t start;
	double us;

	begin();
	start = bench_now_ns();
	for (int i = 0; i < n; i++) {
		memcpy(shared->window[me][i % WINDOW_SLOTS], input, bytes);
		meet();
		look(shared->window[!me][i % WINDOW_SLOTS], bytes);
	}
	us = (double)(bench_now_ns() - start) / 1000 / n;
	end();
	return us;
}

/* How many fit is a guess of both alike. */
static double window_us(const char *input, size_t bytes)
{
	double best = 0, us;
	int n = (int)(WINDOW_US / (0.1 + (double)bytes / 32000)) + 2;

	for (int i = 0; i < ROUNDS; i++) {
		us = window_loop(input, bytes, n);
		best = !i || us < best ? us : best;
	}
	return best;
}

static void windows(const char *from)
{
	memset(shared->window[me], 7, sizeof(shared->window[me]));
	for (size_t i = 0; i < sizeof(window_sizes) / sizeof(window_sizes[0]); i++) {
		double us = window_us(from, window_sizes[i]);

		if (!me)
			printf("window %zu %.3f\n", window_sizes[i], us);
	}
}

static void measure(void)
{
	char *from, *to;
	double trip = round_trip_ns(), copy, streamed;

	if (!me)
		printf("trip %.1f\n", trip);
	if (quick)
		return;
	from = aligned_alloc(4096, COPY_BYTES);
	to = aligned_alloc(4096, COPY_BYTES);
	if (!from || !to)
		_exit(1);
	memset(from, 3, COPY_BYTES);
	memset(to, 5, COPY_BYTES);
	copy = copy_gb_s(to, from, 0);
	streamed = copy_gb_s(to, from, 1);
	if (!me)
		printf("copy %.1f\nstream %.1f\n", copy, streamed);
	windows(from);
}

int main(int argc, char **argv)
{
	pid_t child, parent = getpid();
	cpu_set_t cores;

	if (sched_getaffinity(0, sizeof(cores), &cores) || CPU_COUNT(&cores) < 2) {
		fprintf(stderr, "floor: two cores are needed\n");
		return 77;
	}
	for (int i = 1; i < argc; i++) {
		fifo |= !strcmp(argv[i], "-r");
		quick |= !strcmp(argv[i], "-q");
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 1;
	child = fork();
	if (child < 0)
		return 1;
	me = !child;
	if (me && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
		_exit(1);
	bench_pin(me);
	measure();
	if (me)
		_exit(0);
	waitpid(child, NULL, 0);
	return 0;
}
