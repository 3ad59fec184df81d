/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For kernels of the application, in CUDA: memory of covey_device_mem_alloc() is symmetric. A kernel stores in it on
 * other ranks, tells them, and waits for what they tell. A change of the group's view does not leave it waiting.
 *
 *	__global__ void kernel(const __grid_constant__ struct covey_device_peers peers, ...)
 *	{
 *		__shared__ struct covey_visit visit;
 *		__shared__ int err;
 *
 *		if (threadIdx.x == 0)
 *			err = covey_enter(&peers, &visit);
 *		__syncthreads();
 *		if (err)
 *			return;
 *		covey_put(covey_at(&peers, &visit, to, room), mine, bytes, threadIdx.x, blockDim.x);
 *		__syncthreads();
 *		if (threadIdx.x == 0) {
 *			covey_signal(&peers, &visit, to, word, 1);
 *			err = covey_wait(&peers, &visit, mine_too, 1);
 *		}
 *		__syncthreads();
 *		...
 *		if (threadIdx.x == 0)
 *			covey_leave(&peers);
 *	}
 *
 * Between covey_enter() and covey_leave() a CTA is inside one view. The next view waits until every CTA has left: so a
 * wait that returns COVEY_VIEW_ENDS is followed by covey_leave() soon. A kernel that stays longer than two seconds costs
 * its rank the group. Some ranks may have ended their kernel and others have not: covey_allreduce() of what each has
 * done, minimum, says whether all run it again. Words of the view before count no more: signals carry its epoch.
 *
 * All CTAs of a kernel that wait for peers find room at a time. A CTA that has entered launches nothing and waits for no
 * other stream. Ranks of other hosts have no memory here: covey_at() is NULL.
 */
#ifndef COVEY_DEVICE_H
#define COVEY_DEVICE_H

#include <covey.h>

#if defined(__CUDACC__) || defined(COVEY_DEVICE_LOOK) /* a compiler of CUDA */

#define COVEY_VIEW_ENDS 1 /* the view changes: what has not come by now does not come */

/* One stay of a CTA; in shared memory if all its threads need it. */
struct covey_visit {
	uint32_t epoch; /* of the view */
	uint32_t mask; /* its contributors: rank r is bit r. A rank that covey_admit() has not let in yet is not among them */
	uint64_t places; /* the library's */
	uint32_t gate;
};

/* Between two looks at what another thread or device writes. */
#ifndef COVEY_DEVICE_LOOK
#define COVEY_DEVICE_LOOK() ((void)0)
#endif

static __device__ __forceinline__ uint64_t covey_load_(const uint64_t *at)
{
	uint64_t v;

	COVEY_DEVICE_LOOK();
#ifdef __CUDA_ARCH__
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
#else
	v = *(const volatile uint64_t *)at;
#endif
	return v;
}

static __device__ __forceinline__ uint32_t covey_gate_(const struct covey_device_peers *peers)
{
	return (uint32_t)(covey_load_(peers->gate) >> 56);
}

/**
 * covey_enter - begins a stay in the present view; waits while the view changes
 * By one thread of the CTA. Returns 0, or the reason why it may not enter (then covey_leave() is not called):
 * CLOSED, FENCED or ABORTED: the group has ended for this rank; TIMEOUT: no view came for as long as covey waits
 */
static __device__ inline int covey_enter(const struct covey_device_peers *peers, struct covey_visit *visit)
{
	const long long since = (long long)clock64();

	for (;;) {
		atomicAdd((unsigned long long *)peers->guests, 1ull);
		__threadfence_system(); /* the host counts guests after it has closed the gate */
		visit->gate = covey_gate_(peers);
		if (!(visit->gate & 1))
			break;
		atomicAdd((unsigned long long *)peers->guests, ~0ull);
		while (covey_gate_(peers) & 1) {
			const int ended = (int)(covey_load_(peers->ended) >> 32);

			if (ended)
				return ended;
			if (peers->most_cycles && (uint64_t)((long long)clock64() - since) > peers->most_cycles)
				return COVEY_ERR_TIMEOUT;
			__nanosleep(500);
		}
	}
	visit->epoch = (uint32_t)(covey_load_(peers->words) >> 32);
	visit->mask = (uint32_t)covey_load_(peers->words + 1);
	visit->places = covey_load_(peers->words + 3);
	return 0;
}

/** covey_leave - ends the stay: by one thread, after a barrier of the CTA. Stores to peers have landed when it is counted */
static __device__ inline void covey_leave(const struct covey_device_peers *peers)
{
	__threadfence_system();
	atomicAdd((unsigned long long *)peers->guests, ~0ull);
}

/** covey_at - where @own, a place in the own memory of covey_device_mem_alloc(), is on @rank; NULL: not reached from here */
static __device__ inline void *covey_at(const struct covey_device_peers *peers, const struct covey_visit *visit,
					int rank, void *own)
{
	const uint64_t offset = (uint64_t)((uint8_t *)own - (uint8_t *)peers->window);
	const uint64_t place = (uint64_t)rank * 4 + (visit->places >> (2 * rank) & 3);

	if (rank == peers->rank)
		return own;
	if (!(visit->mask >> rank & 1) || *(const volatile uint32_t *)(peers->far + place * peers->far_bytes))
		return NULL;
	if (peers->table)
		return (uint8_t *)covey_load_(peers->table + place) + offset;
	return peers->windows + place * peers->stride + offset;
}

/**
 * covey_put - @bytes from @from to @to, by @threads threads of which this is number @thread
 * @to: of covey_at(). Words of 16 bytes where both stand at multiples of 16. Read by the peer after a signal.
 */
static __device__ inline void covey_put(void *to, const void *from, size_t bytes, unsigned thread, unsigned threads)
{
	const size_t wide = ((uintptr_t)to | (uintptr_t)from) % 16 ? 0 : bytes / 16;

	for (size_t i = thread; i < wide; i += threads)
		((uint4 *)to)[i] = ((const uint4 *)from)[i];
	for (size_t i = wide * 16 + thread; i < bytes; i += threads)
		((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
}

/**
 * covey_signal - tells @rank: @own there, a word in memory of covey_device_mem_alloc(), becomes @value
 * By one thread, after a barrier of the threads whose puts it follows: who sees the value sees these. Nothing happens if
 * the rank is not reached.
 */
static __device__ inline void covey_signal(const struct covey_device_peers *peers, const struct covey_visit *visit,
					   int rank, uint64_t *own, uint32_t value)
{
	volatile uint64_t *word = (volatile uint64_t *)covey_at(peers, visit, rank, own);

	__threadfence_system();
	if (word)
		*word = (uint64_t)visit->epoch << 32 | value;
}

/**
 * covey_wait - until @own has @value or more, as of signals of this view; values of a word grow
 * By one thread; the others see what was put after a barrier. Returns 0 or COVEY_VIEW_ENDS
 */
static __device__ inline int covey_wait(const struct covey_device_peers *peers, const struct covey_visit *visit,
					const uint64_t *own, uint32_t value)
{
	for (;;) {
		const uint32_t gate = covey_gate_(peers);
		const uint64_t v = covey_load_(own);

		if ((uint32_t)(v >> 32) == visit->epoch && (uint32_t)v >= value)
			return 0;
		if (gate != visit->gate)
			return COVEY_VIEW_ENDS;
	}
}

#endif

#endif
