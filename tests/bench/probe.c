/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the two cores are: `round_trip_ns copy_gb_s` of two pinned processes. A flag goes back and
 * forth between them; then both copy at once, and read and written bytes are counted. A virtual
 * machine's cores move between caches, which changes every figure two- to threefold.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "bench.h"

#define TRIPS 200000
#define COPY_BYTES ((size_t)64 << 20)
#define COPIES 8

struct shared {
	uint64_t flag __attribute__((aligned(64)));
	uint64_t ready __attribute__((aligned(64)));
};

static void wait_for(const uint64_t *word, uint64_t value)
{
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
		;
}

/* Odd values are the parent's, even ones the child's. */
static double round_trip_ns(struct shared *shared, int child)
{
	uint64_t start = bench_now_ns();

	for (uint64_t i = 1; i <= TRIPS; i++) {
		if (child)
			wait_for(&shared->flag, 2 * i - 1);
		__atomic_store_n(&shared->flag, child ? 2 * i : 2 * i - 1, __ATOMIC_RELEASE);
		if (!child)
			wait_for(&shared->flag, 2 * i);
	}
	return (double)(bench_now_ns() - start) / TRIPS;
}

static double copy_gb_s(struct shared *shared)
{
	char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
	uint64_t start;

	if (!from || !to)
		_exit(1);
	memset(from, 3, COPY_BYTES);
	memset(to, 5, COPY_BYTES);
	__atomic_fetch_add(&shared->ready, 1, __ATOMIC_ACQ_REL);
	wait_for(&shared->ready, 2);
	start = bench_now_ns();
	for (int i = 0; i < COPIES; i++) {
		memcpy(to, from, COPY_BYTES);
		__asm__ volatile("" : : "r"(to) : "memory");
	}
	return 2.0 * 2 * COPIES * (double)COPY_BYTES / (double)(bench_now_ns() - start);
}

int main(void)
{
	struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double trip, copy;
	pid_t child, parent = getpid();

	if (shared == MAP_FAILED)
		return 1;
	child = fork();
	if (child < 0)
		return 1;
	if (!child && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
		_exit(1);
	if (!bench_pin(!child, 2)) {
		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
		fprintf(stderr, "probe: two cores are needed\n");
		return 77;
	}
	trip = round_trip_ns(shared, !child);
	copy = copy_gb_s(shared);
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
	printf("%.1f %.1f\n", trip, copy);
	return 0;
}
