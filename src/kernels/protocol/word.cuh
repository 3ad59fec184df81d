/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that others write while they are read. Nothing else of the kernels is bound to the machine: tests/gpu/cpu has
 * its own form of this file, to run them where no device is.
 */
#ifndef CVY_WORD_CUH
#define CVY_WORD_CUH

#include <stdint.h>

#define CVY_DYNAMIC_SHARED(name) extern __shared__ uint64_t name[]
#define CVY_HOLDS(what) ((void)0) /* asserted where kernels run on a CPU */

static __device__ __forceinline__ uint64_t cvy_load_word(const uint64_t *at)
{
	uint64_t v;

	asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
	return v;
}

/* A word that stands still while anybody may read it: no order, and once is enough. But what is kept near may be of before. */
static __device__ __forceinline__ uint64_t cvy_load_place(const uint64_t *at)
{
	uint64_t v;

	asm("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at));
	return v;
}

/* A word behind which this thread's later loads, and those of threads that it meets, see what was stored before it. */
static __device__ __forceinline__ uint64_t cvy_acquire_word(const uint64_t *at)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
	return v;
}

static __device__ __forceinline__ uint32_t cvy_load_half(const uint32_t *at)
{
	uint32_t v;

	asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
	return v;
}

static __device__ __forceinline__ void cvy_load_packet(const uint8_t *at, uint64_t v[2])
{
	asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(at) : "memory");
}

static __device__ __forceinline__ void cvy_store_packet(uint8_t *at, uint64_t v0, uint64_t v1)
{
	asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(v0), "l"(v1) : "memory");
}

static __device__ __forceinline__ void cvy_store_word(uint8_t *at, uint64_t v)
{
	asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}

/* A line of memory that will be read, and is there: it comes near while something else is awaited. */
static __device__ __forceinline__ void cvy_fetch(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* By one thread, and nobody waits for what stood there: of atomicAdd() the compiler makes a sum over the warp first. */
static __device__ __forceinline__ void cvy_add_word(uint64_t *at, uint64_t v)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}

/* Returns the value before. A thread that acquires the sum sees all that this thread, and those that it met, stored before. */
static __device__ __forceinline__ uint32_t cvy_add_behind(uint32_t *at, uint32_t v)
{
	uint32_t was;

	asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(was) : "l"(at), "r"(v) : "memory");
	return was;
}

/* The larger of two fp16 or bf16 each, by halves; of a number and a NaN the number. */
template <int FP16> static __device__ __forceinline__ uint32_t cvy_max_halves(uint32_t a, uint32_t b)
{
	uint32_t v;

	if (FP16)
		asm("max.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
	else
		asm("max.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
	return v;
}

/* Between two stores of one thread: whoever on any device sees the second sees the first. Less than __threadfence_system(). */
static __device__ __forceinline__ void cvy_order_system(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* ns, on a clock that all processors of the device share. */
static __device__ __forceinline__ uint64_t cvy_global_ns(void)
{
	uint64_t v;

	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
	return v;
}

/*
 * Bulk copies, from shared memory to memory of any device: by one thread, of whole 16 bytes. What threads stored in shared
 * memory is seen by them behind cvy_bulk_fence() of each of these threads and a barrier.
 */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CVY_HAS_BULK 1
#else
#define CVY_HAS_BULK 0
#endif

static __device__ __forceinline__ void cvy_bulk_fence(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cvy_bulk_store(uint8_t *to, const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
		     "r"((uint32_t)__cvta_generic_to_shared(from)), "r"(bytes)
		     : "memory");
#else
	(void)to, (void)from, (void)bytes;
#endif
}

/* Those since the last such call are one group. */
static __device__ __forceinline__ void cvy_bulk_commit(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/* Until at most @GROUPS of this thread's groups have still to read shared memory. */
template <int GROUPS> static __device__ __forceinline__ void cvy_bulk_read(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
#endif
}

/* Until all of this thread's have been written. */
static __device__ __forceinline__ void cvy_bulk_written(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

/*
 * The beginning of a kernel (cvy_gpu_launch_kernel): waits until the kernel before it in the stream has ended and its stores
 * are visible. Before that it may read memory that no kernel writes.
 */
static __device__ __forceinline__ void cvy_wait_for_stream(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * By one thread of a CTA that waits for nobody: when all CTAs have said so, the next kernel may start beside this one. Not
 * earlier: if ranks share a device it could take the room of CTAs that this one waits for.
 */
static __device__ __forceinline__ void cvy_let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
