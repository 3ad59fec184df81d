/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All waits of the device. A thread that waits for a packet looks at three things: the data, the gate of the
 * control page, and clock64. A closed gate ends the wait: the CTA parks and the host says what becomes of the
 * operation. A deadline never ends anything: it tells the host, in a word of host memory, whom it waits for.
 * No other file of this directory may loop on memory.
 */
#ifndef CVY_WAIT_CUH
#define CVY_WAIT_CUH

#include "layout.h"

#define CVY_LOOKS 32 /* at data, for each at the gate */

struct cvy_watch {
	struct cvy_gpu_control *control;
	struct cvy_gpu_mailbox *mailbox;
	unsigned long long late, since;
	unsigned looks;
	unsigned open; /* what the gate is while the words of this attempt hold */
};

static __device__ __forceinline__ uint64_t cvy_load_word(const uint64_t *at)
{
	uint64_t v;

	asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
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

static __device__ __forceinline__ unsigned cvy_gate(const struct cvy_gpu_control *control)
{
	return (unsigned)(cvy_load_word(&control->entered) >> CVY_GPU_GATE_SHIFT);
}

/* Every CVY_LOOKS looks: is the gate closed, or of another view? Tells the host once per deadline that @rank is late. */
static __device__ __noinline__ int cvy_look_up(struct cvy_watch *w, int rank)
{
	unsigned long long now = clock64();

	if (cvy_gate(w->control) != w->open)
		return 1;
	if (!w->since) {
		w->since = now;
	} else if (w->late && now - w->since > w->late) {
		uint64_t op = (cvy_load_word(&w->control->entered) & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;

		cvy_store_word((uint8_t *)&w->mailbox->late[rank], op + 1);
		w->since = now;
	}
	return 0;
}

static __device__ __forceinline__ int cvy_give_up(struct cvy_watch *w, int rank)
{
	struct cvy_watch look;
	int closed;

	if (++w->looks % CVY_LOOKS)
		return 0;
	look = *w; /* a copy: what has no address stays in registers */
	closed = cvy_look_up(&look, rank);
	w->since = look.since;
	return closed;
}

/*
 * The packet of this thread from each of up to four sources (NULL: it is here already); 1: the gate closed before.
 * PAIR: the tag is the second word. LINE: the last of eight threads bears it for all, and a warp looks as one.
 */
template <int PACKET>
static __device__ __forceinline__ int cvy_wait_packets(const uint8_t *const at[4], const int rank[4], uint64_t tag,
						       uint64_t v[4][2], struct cvy_watch *w)
{
	int bears = PACKET == CVY_GPU_PAIR || threadIdx.x % 8 == 7;

	for (;;) {
		int late = -1;

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (at[i])
				cvy_load_packet(at[i], v[i]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (at[i] && bears && v[i][1] != tag)
				late = rank[i];
		if (PACKET == CVY_GPU_PAIR) {
			if (late < 0)
				return 0;
			if (cvy_give_up(w, late))
				return 1;
		} else {
			int whom = __reduce_max_sync(0xffffffffu, late);

			if (whom < 0)
				return 0;
			if (__any_sync(0xffffffffu, cvy_give_up(w, whom)))
				return 1;
		}
	}
}

/* A signal of @rank; 1: the gate closed first. */
static __device__ __forceinline__ int cvy_wait_signal(const uint8_t *at, int rank, uint64_t tag, struct cvy_watch *w)
{
	while (cvy_load_word((const uint64_t *)at) != tag)
		if (cvy_give_up(w, rank))
			return 1;
	return 0;
}

/*
 * One thread of a CTA that stopped: counts it as stopped and waits until the gate is open again. What the CTA stored
 * is seen by everyone before it is counted. 0: @verdict is the latest; 1: nobody decided for park_cycles.
 */
static __device__ __noinline__ int cvy_park(struct cvy_gpu_control *control, unsigned quanta,
					    unsigned long long park_cycles, struct cvy_gpu_verdict *verdict)
{
	const struct cvy_gpu_verdict *v = &control->verdict;
	unsigned long long since = clock64();
	int late = 0;

	__threadfence_system();
	atomicAdd((unsigned long long *)&control->stopped, (unsigned long long)quanta);
	while ((cvy_gate(control) & 1) && !late && !cvy_load_half((const uint32_t *)&v->ended)) {
		__nanosleep(500);
		late = park_cycles && clock64() - since > park_cycles;
	}
	atomicAdd((unsigned long long *)&control->stopped, 0ull - quanta);
	__threadfence_system();
	do { /* whole: the host does not write it while anybody reads, but for a change on the heels of another */
		verdict->epoch = cvy_load_half(&v->epoch);
		__threadfence();
		verdict->base = cvy_load_word(&v->base);
		verdict->gone = cvy_load_half(&v->gone);
		verdict->ended = (int32_t)cvy_load_half((const uint32_t *)&v->ended);
		__threadfence();
	} while (verdict->epoch != cvy_load_half(&v->epoch));
	return late;
}

#endif
