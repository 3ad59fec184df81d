/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All waits of the device. A thread that waits for a packet looks at three things: the data, the gate of the
 * control page, and clock64. A closed gate ends the wait: the CTA parks and the host says what becomes of the
 * operation. A deadline tells the host, in a word of host memory, which rank is late. It ends only waits of dispatch and
 * combine, if the caller has given one (cvy_wait_lines).
 * Others may go on by a deadline, twice, while this rank is in an operation without one: the data that it waits for are then
 * written over and never come. Packets are no proof of it, since words of lines are data. So a rank that goes on stores
 * which operation it ended so (cvy_gpu_passed_at), and a waiting thread looks there when it looks at the gate.
 * No other file of this directory may loop on memory.
 */
#ifndef CVY_WAIT_CUH
#define CVY_WAIT_CUH

#include "covey.h"
#include "guard.h"
#include "layout.h"
#include "queue.h"
#include "word.cuh"

#ifndef CVY_LOOKS
#define CVY_LOOKS 32 /* at data, for each at the gate */
#endif

struct cvy_waiting {
	struct cvy_gpu_control *control;
	struct cvy_gpu_mailbox *mailbox;
	const struct cvy_gpu_call *call; /* NULL: nobody goes on without this rank */
	unsigned long long late, since;
	unsigned looks;
	unsigned open; /* what the gate is while the words of this attempt hold */
};

static __device__ __forceinline__ unsigned cvy_gate(const struct cvy_gpu_control *control)
{
	return (unsigned)(cvy_load_word(&control->entered) >> CVY_GPU_GATE_SHIFT);
}

static __device__ __forceinline__ cvy_ranks cvy_load_ranks(const cvy_ranks *at)
{
#if CVY_GPU_IS_WIDE
	cvy_ranks set;

	for (int i = 0; i < CVY_RANKS_WORDS; i++)
		set.word[i] = cvy_load_half(&at->word[i]);
	return set;
#else
	return cvy_load_half(at);
#endif
}

static __device__ uint64_t cvy_passed(const struct cvy_gpu_call *c, int rank); /* lane.cuh */

/* Is operation @op completed, and what @rank sent for it a copy that the host has stored before the gate opened? */
static __device__ int cvy_is_copied(const struct cvy_gpu_verdict *verdict, int rank, uint64_t op)
{
	return op < cvy_load_word(&verdict->base) && cvy_ranks_has(cvy_load_ranks(&verdict->gone), rank);
}

/*
 * Has @rank gone on, and is @tag, which it had stored before, not at @at? Of a copy nothing more comes, so what is not there was
 * written over before the copy was made, if only by an early step of an operation in which @rank was removed. The operation
 * under way is the one after those that have finished, in every thread that waits with a call. Tells the host, which ends
 * the wait.
 */
static __device__ void cvy_look_behind(const struct cvy_waiting *w, int rank, const uint64_t *at, uint64_t tag)
{
	const uint64_t passed = cvy_passed(w->call, rank);
	const uint64_t op = cvy_load_word(&w->control->finished) / CVY_GPU_QUANTA;

	if (passed <= op + 1 && !cvy_is_copied(&w->control->verdict, rank, op))
		return;
	__threadfence_system();
	if (cvy_load_word(at) != tag)
		cvy_store_word((uint8_t *)&w->mailbox->outrun[rank], op + 1);
}

/*
 * Every CVY_LOOKS looks: is the gate closed, or of another view? Tells the host once per deadline that @rank is late, and
 * when its tag can not come to @at any more; NULL: it can.
 */
static __device__ __noinline__ int cvy_look_up(struct cvy_waiting *w, int rank, const uint64_t *at, uint64_t tag)
{
	unsigned long long now = clock64();

	if (cvy_gate(w->control) != w->open)
		return 1;
	if (w->since && at && w->call)
		cvy_look_behind(w, rank, at, tag);
	if (!w->since) {
		w->since = now;
	} else if (w->late && now - w->since > w->late) {
		uint64_t op = (cvy_load_word(&w->control->entered) & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;

		cvy_store_word((uint8_t *)&w->mailbox->late[rank], op + 1);
		w->since = now;
	}
	return 0;
}

/* Counts a look at data. 1: the gate has its turn. */
static __device__ __forceinline__ int cvy_looked(struct cvy_waiting *w)
{
	return CVY_GUARDED && ++w->looks % CVY_LOOKS == 0;
}

/* As cvy_look_up(), of a copy: what has no address stays in registers. */
static __device__ __forceinline__ int cvy_closed(struct cvy_waiting *w, int rank, const uint8_t *at, uint64_t tag)
{
	struct cvy_waiting look = *w;
	int closed = cvy_look_up(&look, rank, (const uint64_t *)at, tag);

	w->since = look.since;
	return closed;
}

/* A look of the threads in @need at a place @at that @whom has not filled; 0: none can be written over before it is read. */
template <int N>
static __device__ __forceinline__ int cvy_give_up_at(struct cvy_waiting *w, int whom, const uint8_t *const *at,
						     const int *rank, unsigned need, uint64_t tag)
{
	const uint8_t *packet = NULL;

	if (!cvy_looked(w))
		return 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		if ((need >> i & 1) && at[i] && rank[i] == whom && cvy_load_word((const uint64_t *)(at[i] + 8)) != tag)
			packet = at[i] + 8;
	return cvy_closed(w, whom, packet, tag);
}

static __device__ __forceinline__ int cvy_give_up(struct cvy_waiting *w, int rank)
{
	return cvy_give_up_at<0>(w, rank, NULL, NULL, 0, 0);
}

/* The pair of this thread from each of up to four sources, those of the mask @need; 1: the gate closed before. */
static __device__ __forceinline__ int cvy_wait_pairs(const uint8_t *const at[4], const int rank[4], unsigned need,
						     uint64_t tag, uint64_t v[4][2], struct cvy_waiting *w)
{
	for (;;) {
		int late = -1;

#pragma unroll
		for (int i = 0; i < 4; i++)
			if (need >> i & 1)
				cvy_load_packet(at[i], v[i]);
#pragma unroll
		for (int i = 0; i < 4; i++)
			if ((need >> i & 1) && v[i][1] != tag)
				late = rank[i];
		if (late < 0)
			return 0;
		if (cvy_give_up_at<4>(w, late, at, rank, need, tag))
			return 1;
	}
}

/* Number @i of the ranks in a mask, from 0; -1: there are not so many. */
static __device__ __forceinline__ int cvy_nth(cvy_ranks mask, int i)
{
	for (; i && cvy_ranks_any(mask); i--)
		mask = cvy_ranks_rest(mask);
	return cvy_ranks_first(mask);
}

/*
 * A warp: until the lines of its @rows rows, @apart bytes from one to the next, are here from all of @sources; at(rank) is
 * the place of the first. Data read after it are whole: a line is written at once, but read in parts, so data read beside
 * its tag may be older. Each thread looks at one line's tag and at nothing else, since looks of thousands of warps take
 * bandwidth from the data. 1: the gate closed first.
 */
template <int ROWS, typename AT>
static __device__ __forceinline__ int cvy_wait_lines_of(cvy_ranks sources, int rows, size_t apart, uint64_t tag,
							struct cvy_waiting *w, AT at)
{
	enum { LINES = 4, TOGETHER = 32 / (LINES * ROWS) };
	const int lane = (int)threadIdx.x % 32, row = lane / LINES % ROWS;
	const size_t place = (size_t)row * apart + (size_t)(lane % LINES * 128 + 120);

	for (;;) {
		const int rank = row < rows ? cvy_nth(sources, lane / (LINES * ROWS)) : -1;
		const uint8_t *const mine = at(rank < 0 ? 0 : rank) + place;

		for (;;) {
			int late = rank >= 0 && cvy_load_word((const uint64_t *)mine) != tag ? rank : -1;
			int whom = __reduce_max_sync(0xffffffffu, late), closed = 0;

			if (whom < 0)
				break;
			if (cvy_looked(w)) /* each at its own: one may have gone on while another is only late */
				closed = cvy_closed(w, late < 0 ? whom : late, late < 0 ? NULL : mine, tag);
			if (__any_sync(0xffffffffu, closed))
				return 1;
		}
#pragma unroll
		for (int i = 0; i < TOGETHER; i++)
			sources = cvy_ranks_rest(sources);
		if (!cvy_ranks_any(sources))
			break;
	}
	__syncwarp();
	return 0;
}

/* A signal of @rank; 1: the gate closed first. */
static __device__ __forceinline__ int cvy_wait_signal(const uint8_t *at, int rank, uint64_t tag, struct cvy_waiting *w)
{
	const uint8_t *const packet[1] = { at - 8 };

	while (cvy_load_word((const uint64_t *)at) != tag)
		if (cvy_give_up_at<1>(w, rank, packet, &rank, 1, tag))
			return 1;
	return 0;
}

/* @rank will not answer: waits until the gate closes, as if it had not said that it has come. */
static __device__ __noinline__ int cvy_wait_closed(int rank, struct cvy_waiting *w)
{
	while (!cvy_give_up(w, rank))
		;
	return 1;
}

/* Until when an operation with a deadline waits, by this thread's clock. */
struct cvy_until {
	unsigned long long began, most; /* 0: without one */
};

/*
 * A warp, once the tags are there: this thread's packets of N lines. -1, or one of @rank that has written over its line
 * since: it has gone on by deadlines, so the data read are not those it had sent. A line is read in parts, so a tag that is
 * read beside them does not cover all; a tag that is read behind them does, and its load overlaps theirs.
 */
template <int N>
static __device__ __forceinline__ int cvy_read_lines(const uint8_t *const *at, const int *rank, uint64_t tag,
						     uint64_t v[N][2])
{
	const int bears = threadIdx.x % 8 == 7;
	uint64_t tags[N];
	int lost = -1;

#pragma unroll
	for (int i = 0; i < N; i++)
		if (at[i])
			cvy_load_packet(at[i], v[i]);
	__syncwarp();
#pragma unroll
	for (int i = 0; i < N; i++) {
		tags[i] = tag;
		if (CVY_GUARDED && at[i] && bears)
			tags[i] = cvy_load_word((const uint64_t *)(at[i] + 8));
	}
#pragma unroll
	for (int i = 0; i < N; i++)
		if (at[i] && bears && tags[i] != tag)
			lost = rank[i];
	return __reduce_max_sync(0xffffffffu, lost);
}

/*
 * The packets of this thread in N lines of sources @rank, whole, with a deadline. 2: it has passed, and *whom is a rank that
 * is not here.
 */
template <int N>
static __device__ __forceinline__ int cvy_wait_lines(const uint8_t *const at[N], const int rank[N], uint64_t tag,
						     uint64_t v[N][2], struct cvy_waiting *w,
						     const struct cvy_until *until, int *whom)
{
	int bears = threadIdx.x % 8 == 7;

	for (;;) {
		uint64_t tags[N];
		int late = -1;

		__syncwarp();
#pragma unroll
		for (int i = 0; i < N; i++)
			if (at[i] && bears)
				tags[i] = cvy_load_word((const uint64_t *)(at[i] + 8));
#pragma unroll
		for (int i = 0; i < N; i++)
			if (at[i] && bears && tags[i] != tag)
				late = rank[i];
		*whom = __reduce_max_sync(0xffffffffu, late);
		if (*whom < 0) {
			__syncwarp();
			*whom = cvy_read_lines<N>(at, rank, tag, v);
			if (*whom < 0)
				return 0;
		}
		if (__any_sync(0xffffffffu,
			       cvy_give_up_at<N>(w, *whom, at, rank, bears && !until->most ? ~0u : 0, tag)))
			return 1;
		if (CVY_GUARDED && until->most && w->looks % CVY_LOOKS == 0 &&
		    __any_sync(0xffffffffu, clock64() - until->began > until->most))
			return 2;
	}
}

/* A warp: this thread's packet of @rank, where it has one (@at is not NULL), with a deadline, as above. */
static __device__ __forceinline__ int cvy_wait_packet(const uint8_t *at, int rank, uint64_t tag, uint64_t v[2],
						      struct cvy_waiting *w, const struct cvy_until *until)
{
	for (;;) {
		int late = 0;

		if (at) {
			cvy_load_packet(at, v);
			late = v[1] != tag;
		}
		if (!__any_sync(0xffffffffu, late))
			return 0;
		if (__any_sync(0xffffffffu, cvy_give_up_at<1>(w, rank, &at, &rank, late && !until->most, tag)))
			return 1;
		if (CVY_GUARDED && until->most && w->looks % CVY_LOOKS == 0 &&
		    __any_sync(0xffffffffu, clock64() - until->began > until->most))
			return 2;
	}
}

/*
 * One thread: until its bulk copies have been written. No look at the gate: copies wait for no rank, and memory of a process that
 * died stays mapped until no CTA writes there.
 */
static __device__ __forceinline__ void cvy_wait_written(void)
{
	cvy_bulk_written();
}

/* One thread: until at most @GROUPS of its groups of bulk copies have still to read the shared memory that they are of. */
template <int GROUPS> static __device__ __forceinline__ void cvy_wait_read(void)
{
	cvy_bulk_read<GROUPS>();
}

/*
 * One thread: all up to @ticket has left the queue to @rank, and its memory may be written again: 0. 1: the gate closed
 * first; 2: the time is over, or the queue is broken.
 */
static __device__ __noinline__ int cvy_wait_put(struct cvy_queue *q, uint64_t ticket, int rank, struct cvy_waiting *w,
						const struct cvy_until *until)
{
	while (ticket) {
		int now = cvy_queue_test(q, (int64_t)ticket);

		if (now)
			return now == 1 ? 0 : 2;
		if (cvy_give_up(w, rank))
			return 1;
		if (until->most && clock64() - until->began > until->most)
			return 2;
	}
	return 0;
}

/*
 * One thread of a CTA that stopped: counts it as stopped and waits until the gate is open again, or everything has ended.
 * The CTA's stores are visible to everyone before it is counted. There is no limit: a store may be away for long, and the
 * host waits as well. A host that ends says so, and with its process the kernel goes.
 */
static __device__ __noinline__ void cvy_park(struct cvy_gpu_control *control, unsigned quanta,
					     struct cvy_gpu_verdict *verdict)
{
	const struct cvy_gpu_verdict *v = &control->verdict;

	__threadfence_system();
	do {
		atomicAdd((unsigned long long *)&control->stopped, (unsigned long long)quanta);
		while ((cvy_gate(control) & 1) && !cvy_load_half((const uint32_t *)&v->ended))
			__nanosleep(500);
		atomicAdd((unsigned long long *)&control->stopped, 0ull - quanta);
		__threadfence_system();
		/* Closed again: the next change may have counted this CTA among those that stand still. */
	} while ((cvy_gate(control) & 1) && !cvy_load_half((const uint32_t *)&v->ended));
	do { /* whole: but for the end of everything the host does not write it while anybody reads */
		verdict->epoch = cvy_load_half(&v->epoch);
		__threadfence();
		verdict->base = cvy_load_word(&v->base);
		verdict->gone = cvy_load_ranks(&v->gone);
		verdict->ended = (int32_t)cvy_load_half((const uint32_t *)&v->ended);
		__threadfence();
	} while (verdict->epoch != cvy_load_half(&v->epoch));
}

/*
 * One thread of a CTA of no operation: counts it in `entered` if the gate is open; else it waits, counted nowhere, and tries
 * again. From here on the words of the control page are of one view. 0: *open is the gate; COVEY_ERR_*: it may not enter.
 */
static __device__ __noinline__ int cvy_enter(struct cvy_gpu_control *control, unsigned *open)
{
	for (;;) {
		*open = (unsigned)(atomicAdd((unsigned long long *)&control->entered, 1ull) >> CVY_GPU_GATE_SHIFT);
		if (!(*open & 1))
			break;
		atomicAdd((unsigned long long *)&control->entered, 0ull - 1ull);
		while (cvy_gate(control) & 1) {
			int32_t ended = (int32_t)cvy_load_half((const uint32_t *)&control->verdict.ended);

			if (ended)
				return ended;
			__nanosleep(500);
		}
	}
	__threadfence();
	return 0;
}

/* Its end: all that the CTA stored (its threads have met) is seen by everyone before it is counted no more. */
static __device__ __forceinline__ void cvy_leave(struct cvy_gpu_control *control)
{
	__threadfence_system();
	atomicAdd((unsigned long long *)&control->entered, 0ull - 1ull);
}

/*
 * Of a message's cell the head (bytes; tag and count), and the word of packet @i, if it has so many. 1: the gate closed
 * first.
 */
static __device__ __forceinline__ int cvy_wait_cell(const uint8_t *cell, unsigned i, uint64_t tag, int rank,
						    uint64_t head[2], uint64_t *word, struct cvy_waiting *w)
{
	for (;;) {
		uint64_t v[2];

		cvy_load_packet(cell, head);
		cvy_load_packet(cell + (size_t)i * CVY_GPU_PACKET, v);
		*word = v[0];
		if ((uint32_t)head[1] == (uint32_t)tag && (v[1] == tag || !cvy_gpu_cell_has(head[0], i)))
			return 0;
		if (cvy_give_up(w, rank))
			return 1;
	}
}

/* All threads of a warp: until @least or more stands at @at. *got: what stood there. 1: the gate is closed. */
static __device__ __forceinline__ int cvy_wait_room(const uint64_t *at, uint64_t least, int rank, struct cvy_waiting *w,
						    uint64_t *got)
{
	for (;;) {
		unsigned gate = CVY_GUARDED ? cvy_gate(w->control) : w->open;

		*got = cvy_load_word(at);
		if (__any_sync(0xffffffffu, gate != w->open))
			return 1;
		if (!__any_sync(0xffffffffu, *got < least))
			return 0;
		if (__any_sync(0xffffffffu, cvy_give_up(w, rank)))
			return 1;
	}
}

#endif
