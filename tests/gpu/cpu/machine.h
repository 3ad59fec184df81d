/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels as they are, on a CPU: what the compiler of CUDA gives, for one of C++. A CTA is a thread of the system, its
 * threads are fibers on it that change places where a warp or the CTA waits for itself. Included before everything else.
 * With CPU_SEEDED all CTAs of all ranks are on one thread, in an order that a seed gives (tests/sim/device).
 */
#ifndef CPU_MACHINE_H
#define CPU_MACHINE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <link.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#undef __noinline__
#define __noinline__ __attribute__((noinline))

#define CVY_EP_THREADS (CVY_GPU_RANKS > 64 ? CVY_GPU_RANKS : 64)
#define CVY_EP_BULK_TOKENS 2 /* of a lane */
#define CVY_LOOKS 4	     /* then the others of a CTA go on */
#define CVY_GPU_RING 256     /* pieces of messages: one that is longer takes a moment only */

struct cpu_fiber {
	void *stack_at;
	unsigned tid;
	unsigned warp_turn, cta_turn; /* collectives of this thread until now */
	int done;
};

struct cpu_index {
	unsigned x;
};

/*
 * Shared memory is words of a thread to the compiler, in one block of this module: the one that has @in. When a kernel begins,
 * nobody has written there.
 */
struct cpu_words {
	const void *in;
	void *at;
	size_t bytes;
};

static inline int cpu_words_here(struct dl_phdr_info *module, size_t, void *to)
{
	cpu_words *w = (cpu_words *)to;

	for (int i = 0; i < module->dlpi_phnum && module->dlpi_tls_data; i++) {
		const char *at = (const char *)module->dlpi_tls_data;
		const size_t bytes = module->dlpi_phdr[i].p_memsz;

		if (module->dlpi_phdr[i].p_type != PT_TLS || (const char *)w->in < at ||
		    (const char *)w->in >= at + bytes)
			continue;
		w->at = module->dlpi_tls_data;
		w->bytes = bytes;
		return 1;
	}
	return 0;
}

#define CPU_POISON 0xa5

#ifdef CPU_SEEDED
#define CPU_LOCAL
void cpu_look(void);						  /* others may go on here */
int cpu_sends(uint64_t *at, uint64_t v0, uint64_t v1, int words); /* to a peer: it stores them, some time */
void cpu_fence(void);						  /* when all that is under way has come */
void cpu_bulk(uint8_t *to, const void *from, uint32_t bytes);	  /* read and stored some time, up to the wait */
void cpu_bulk_commit(void);
void cpu_bulk_wait(unsigned left); /* until so many of this thread's groups are not done */
#else
#define CPU_LOCAL thread_local

static inline void cpu_look(void)
{
}

static inline int cpu_sends(uint64_t *, uint64_t, uint64_t, int)
{
	return 0;
}

static inline void cpu_fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void cpu_bulk(uint8_t *to, const void *from, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes / 8; i++)
		__atomic_store_n((uint64_t *)to + i, ((const uint64_t *)from)[i], __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void cpu_bulk_commit(void)
{
}

static inline void cpu_bulk_wait(unsigned)
{
}
#endif

extern CPU_LOCAL cpu_fiber *cpu_now;
extern CPU_LOCAL cpu_index cpu_block, cpu_block_dim;

#define threadIdx (cpu_index{ cpu_now->tid })
#define blockIdx cpu_block
#define blockDim cpu_block_dim

/* As the template of that name, for a kernel of one argument. */
cudaError_t cpu_launch(const cudaLaunchConfig_t *config, const std::function<void()> &body);
#define cudaLaunchKernelEx(config, kernel, a) cpu_launch(config, [=, args = a] { kernel(args); })

/* One CTA, on this thread, to its end; or until the device has failed (cpu_failed): then it stops where it stands. */
void cpu_run(unsigned block, unsigned threads, size_t room, const std::function<void()> &body);
extern std::atomic<int> cpu_failed;
void cpu_yield(void);
[[noreturn]] void cpu_broken(const char *what); /* a kernel finds that this does not hold */
uint64_t *cpu_dynamic(void);
/* All 32 threads of a warp: gives what each of them gave. */
const uint64_t *cpu_warp(uint64_t mine);
int cpu_cta(int any);

static inline void __syncthreads(void)
{
	cpu_cta(0);
}

static inline int __syncthreads_or(int any)
{
	return cpu_cta(any != 0);
}

static inline void __syncwarp(unsigned = 0xffffffffu)
{
	cpu_warp(0);
}

template <typename T> static inline T __shfl_sync(unsigned, T v, int lane)
{
	uint64_t word = 0;
	T got;

	memcpy(&word, &v, sizeof(v));
	word = cpu_warp(word)[lane & 31];
	memcpy(&got, &word, sizeof(got));
	return got;
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int with)
{
	return __shfl_sync(mask, v, (int)(cpu_now->tid % 32) ^ with);
}

static inline unsigned __ballot_sync(unsigned, int v)
{
	const uint64_t *all = cpu_warp(v != 0);
	unsigned bits = 0;

	for (int i = 0; i < 32; i++)
		bits |= (unsigned)all[i] << i;
	return bits;
}

static inline int __any_sync(unsigned mask, int v)
{
	return __ballot_sync(mask, v) != 0;
}

static inline unsigned __match_any_sync(unsigned, int v)
{
	const uint64_t *all = cpu_warp((uint32_t)v);
	unsigned bits = 0;

	for (int i = 0; i < 32; i++)
		bits |= (unsigned)((uint32_t)all[i] == (uint32_t)v) << i;
	return bits;
}

static inline int __reduce_max_sync(unsigned, int v)
{
	const uint64_t *all = cpu_warp((uint32_t)v);
	int most = (int)all[0];

	for (int i = 1; i < 32; i++)
		most = (int)all[i] > most ? (int)all[i] : most;
	return most;
}

static inline unsigned __reduce_add_sync(unsigned, unsigned v)
{
	const uint64_t *all = cpu_warp(v);
	unsigned sum = 0;

	for (int i = 0; i < 32; i++)
		sum += (unsigned)all[i];
	return sum;
}

static inline unsigned __reduce_or_sync(unsigned, unsigned v)
{
	const uint64_t *all = cpu_warp(v);
	unsigned bits = 0;

	for (int i = 0; i < 32; i++)
		bits |= (unsigned)all[i];
	return bits;
}

static inline int __ffs(int v)
{
	return __builtin_ffs(v);
}

static inline int __ffsll(long long v)
{
	return __builtin_ffsll(v);
}

static inline int __clzll(long long v)
{
	return v ? __builtin_clzll((unsigned long long)v) : 64;
}

static inline int __popcll(unsigned long long v)
{
	return __builtin_popcountll(v);
}

static inline int __popc(unsigned v)
{
	return __builtin_popcount(v);
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by)
{
	return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}

static inline unsigned atomicInc(unsigned *at, unsigned most)
{
	unsigned v = __atomic_load_n(at, __ATOMIC_SEQ_CST);

	while (!__atomic_compare_exchange_n(at, &v, v >= most ? 0 : v + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	return v;
}

template <typename T, typename U> static inline T atomicAdd(T *at, U v)
{
	cpu_look();
	return __atomic_fetch_add(at, (T)v, __ATOMIC_SEQ_CST);
}

template <typename T, typename U> static inline T atomicOr(T *at, U v)
{
	cpu_look();
	return __atomic_fetch_or(at, (T)v, __ATOMIC_SEQ_CST);
}

static inline unsigned long long atomicCAS(unsigned long long *at, unsigned long long was, unsigned long long to)
{
	cpu_look();
	__atomic_compare_exchange_n(at, &was, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return was;
}

unsigned long long clock64(void); /* nanoseconds, as cvy_q_ticks(): the device says so */
void __nanosleep(unsigned ns);

/* As a device's: it began some other time than the host's clock, in each process, and goes faster. */
static inline uint64_t cvy_global_ns(void)
{
	struct timespec t;
	uint64_t ns;

	clock_gettime(CLOCK_MONOTONIC, &t);
	ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	return ns + ns / 1024 + (uint64_t)getpid() * 1000000000u;
}

static inline void __threadfence(void)
{
	cpu_fence();
}

static inline void __threadfence_system(void)
{
	cpu_fence();
}

static inline float __uint_as_float(unsigned v)
{
	float f;

	memcpy(&f, &v, 4);
	return f;
}

static inline unsigned __float_as_uint(float f)
{
	unsigned v;

	memcpy(&v, &f, 4);
	return v;
}

static inline double __longlong_as_double(long long v)
{
	double f;

	memcpy(&f, &v, 8);
	return f;
}

static inline long long __double_as_longlong(double f)
{
	long long v;

	memcpy(&v, &f, 8);
	return v;
}

/* Of a NaN and a number, devices take the number. The C library returns a NaN if it signals. */
static inline float cpu_max(float a, float b)
{
	return b > a || a != a ? b : a;
}

#define fmaxf cpu_max

#define COVEY_DEVICE_LOOK() cpu_look()

/* ---- word.cuh ---- */

#define CVY_WORD_CUH
#define CVY_DYNAMIC_SHARED(name) uint64_t *name = cpu_dynamic()
#define CVY_HOLDS(what) ((what) ? (void)0 : cpu_broken(#what))

static inline uint64_t cvy_load_word(const uint64_t *at)
{
	cpu_look();
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void cvy_wait_for_stream(void)
{
}

static inline void cvy_let_next_begin(void)
{
}

static inline uint64_t cvy_load_place(const uint64_t *at)
{
	return cvy_load_word(at);
}

static inline uint32_t cvy_load_half(const uint32_t *at)
{
	cpu_look();
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void cvy_load_packet(const uint8_t *at, uint64_t v[2])
{
	cpu_look();
	v[1] = __atomic_load_n((const uint64_t *)at + 1, __ATOMIC_ACQUIRE);
	v[0] = __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

static inline void cvy_store_packet(uint8_t *at, uint64_t v0, uint64_t v1)
{
	if (cpu_sends((uint64_t *)at, v0, v1, 2))
		return;
	__atomic_store_n((uint64_t *)at, v0, __ATOMIC_RELEASE);
	__atomic_store_n((uint64_t *)at + 1, v1, __ATOMIC_RELEASE);
}

static inline void cvy_store_word(uint8_t *at, uint64_t v)
{
	if (cpu_sends((uint64_t *)at, v, 0, 1))
		return;
	__atomic_store_n((uint64_t *)at, v, __ATOMIC_RELEASE);
}

/* A read here: what is not there is found. */
static inline void cvy_fetch(const void *at)
{
	(void)*(const volatile uint8_t *)at;
}

static inline void cvy_add_word(uint64_t *at, uint64_t v)
{
	atomicAdd(at, v);
}

static inline uint32_t cvy_add_behind(uint32_t *at, uint32_t v)
{
	return atomicAdd(at, v);
}

static inline uint64_t cvy_acquire_word(const uint64_t *at)
{
	return cvy_load_word(at);
}

static inline float cpu_half(int fp16, uint32_t v)
{
	return fp16 ? __half2float(__ushort_as_half((unsigned short)v)) : __uint_as_float(v << 16);
}

template <int FP16> static inline uint32_t cvy_max_halves(uint32_t a, uint32_t b)
{
	uint32_t both = 0;

	for (int i = 0; i < 32; i += 16) {
		float x = cpu_half(FP16, a >> i), y = cpu_half(FP16, b >> i);

		both |= (x != x || y > x ? b >> i : a >> i) % 0x10000 << i;
	}
	return both;
}

static inline void cvy_order_system(void)
{
	cpu_fence();
}

#define CVY_HAS_BULK 1

static inline void cvy_bulk_fence(void)
{
}

/* Whatever a bulk copy has not read or written by then is not there: cpu_bulk() may do it at any time up to the wait for it. */
static inline void cvy_bulk_store(uint8_t *to, const void *from, uint32_t bytes)
{
	if (((uintptr_t)to | (uintptr_t)from | bytes) & 15) {
		fprintf(stderr, "a bulk copy of %u bytes from %p to %p\n", bytes, from, (void *)to);
		abort();
	}
	cpu_bulk(to, from, bytes);
}

static inline void cvy_bulk_commit(void)
{
	cpu_bulk_commit();
}

template <int GROUPS> static inline void cvy_bulk_read(void)
{
	cpu_bulk_wait(GROUPS);
}

static inline void cvy_bulk_written(void)
{
	cpu_bulk_wait(0);
}

/* ---- what the header of the runtime has for the other compiler alone ---- */

template <typename T> static inline cudaError_t cudaGraphInstantiate(T *exec, cudaGraph_t graph, int)
{
	return cudaGraphInstantiate(exec, graph, 0ull);
}

#endif
