/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the processor for queues, for threads of a GPU and of a host. An adapter or a proxy thread reads and
 * writes the same words, so the order is that of the system, not of one device. No other header of queues differs
 * between GPU and host. Only words of 4 and 8 bytes are whole across PCIe.
 */
#ifndef CVY_QUEUE_PORT_H
#define CVY_QUEUE_PORT_H

#include <stdint.h>

#ifdef __CUDACC__
#define CVY_Q_BOTH __host__ __device__ static inline
#else
#define CVY_Q_BOTH static inline
#endif
#ifndef __CUDA_ARCH__
#include <sched.h>
#include <time.h>
#endif

CVY_Q_BOTH uint64_t cvy_q_load(const uint64_t *at)
{
	uint64_t v;
#ifdef __CUDA_ARCH__
	asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
#else
	v = __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
	return v;
}

CVY_Q_BOTH uint32_t cvy_q_load32(const uint32_t *at)
{
	uint32_t v;
#ifdef __CUDA_ARCH__
	asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
#else
	v = __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
	return v;
}

CVY_Q_BOTH void cvy_q_store(uint64_t *at, uint64_t v)
{
#ifdef __CUDA_ARCH__
	asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
#else
	__atomic_store_n(at, v, __ATOMIC_RELEASE);
#endif
}

CVY_Q_BOTH void cvy_q_store32(uint32_t *at, uint32_t v)
{
#ifdef __CUDA_ARCH__
	asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
#else
	__atomic_store_n(at, v, __ATOMIC_RELEASE);
#endif
}

/* Two words next to each other, each whole, in no order between them. */
CVY_Q_BOTH void cvy_q_store_pair(uint64_t *at, uint64_t v0, uint64_t v1)
{
#ifdef __CUDA_ARCH__
	asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(v0), "l"(v1) : "memory");
#else
	__atomic_store_n(at, v0, __ATOMIC_RELEASE);
	__atomic_store_n(at + 1, v1, __ATOMIC_RELEASE);
#endif
}

/* Returns the old value. */
CVY_Q_BOTH uint64_t cvy_q_swap_if(uint64_t *at, uint64_t expected, uint64_t v)
{
#ifdef __CUDA_ARCH__
	uint64_t old;

	asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
		     : "=l"(old)
		     : "l"(at), "l"(expected), "l"(v)
		     : "memory");
	return old;
#else
	__atomic_compare_exchange_n(at, &expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return expected;
#endif
}

/* The same two for words that only posters of one device touch: unordered, so they do not wait. */
CVY_Q_BOTH uint64_t cvy_q_peek(const uint64_t *at)
{
#ifdef __CUDA_ARCH__
	uint64_t v;

	asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
	return v;
#else
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

/* Returns the value before @n was added. */
CVY_Q_BOTH uint64_t cvy_q_take(uint64_t *at, uint64_t n)
{
#ifdef __CUDA_ARCH__
	uint64_t old;

	asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(n) : "memory");
	return old;
#else
	return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST);
#endif
}

/* All accesses before are seen, by all, before any after; also flushes buffers that combine stores to a device. */
CVY_Q_BOTH void cvy_q_fence(void)
{
#ifdef __CUDA_ARCH__
	asm volatile("fence.sc.sys;" ::: "memory");
#elif defined(__SANITIZE_THREAD__)
	uint64_t word = 0; /* ThreadSanitizer knows no fences; on hosts an exchange is one */

	__atomic_exchange_n(&word, 1, __ATOMIC_SEQ_CST);
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* All accesses before, also those of a CTA's other threads before a barrier, are seen by all before any store after. */
CVY_Q_BOTH void cvy_q_release(void)
{
#ifdef __CUDA_ARCH__
	asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
	cvy_q_fence();
#endif
}

/* Cycles of a GPU, nanoseconds of a host: cvy_queue.wait_ticks counts in these. */
CVY_Q_BOTH uint64_t cvy_q_ticks(void)
{
#ifdef __CUDA_ARCH__
	return (uint64_t)clock64();
#else
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
#endif
}

CVY_Q_BOTH void cvy_q_pause(void)
{
#ifdef __CUDA_ARCH__
	__nanosleep(40);
#else
	sched_yield();		     /* the awaited thread may need this core */
#endif
}

CVY_Q_BOTH uint32_t cvy_q_be32(uint32_t v)
{
#ifdef __CUDA_ARCH__
	return __byte_perm(v, 0, 0x0123);
#else
	return __builtin_bswap32(v); /* like the GPU: little-endian hosts only */
#endif
}

#endif
