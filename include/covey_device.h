/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covey: operations on device memory, and kernels of the application that reach peers
 *
 * If the group was joined with a device (struct covey_config), a call with a stream has its buffers in
 * memory of that device. Then all ranks have a device. The call launches one kernel on @stream and returns.
 *
 *   what                       on devices
 *   streams                    one at a time per group
 *   kernels of the caller      if one lets the next begin early (programmatic dependent launch), it must wait for
 *                              those before it
 *   captured graphs            stay valid when ranks die, are replaced or are added: a kernel reads the contributors
 *                              when it runs
 *   counts of alltoallv and    are part of a captured graph: a rank that has come since then gets no block there
 *   allgatherv
 *   in place                   as on host memory. alltoall(v) first copies its inputs: above 22 MiB into memory that it
 *                              takes for that time, else NOMEM. An allreduce may be in place on some ranks alone
 *   _start forms               the work is decided when the stream has passed the operation; at most 256 works at a
 *                              time, else NOMEM. INVAL on a stream that is being captured
 *   COVEY_ON_LOSS_FAIL         changes nothing: an outcome says in its mask who contributed
 *   no bytes                   the buffers may be NULL
 *   seq                        device operations are counted apart from host operations
 *   covey_admit()              waits for all launches when ranks come in; covey_admit_async() does not
 *   covey_leave()              waits until each rank has completed what this one has. Wait for your streams first: an
 *                              operation that has not begun by then ends with CLOSED, and the others do it without this
 *                              rank. After TIMEOUT this rank begins no operation any more: call it again, or
 *                              covey_close()
 *   reductions                 with several hosts a large allreduce or reduce_scatter may fold each host's ranks first,
 *                              then the hosts (docs/guide/tuning.md): the same on all ranks, but f16 and bf16 are
 *                              rounded after each host, too, and a sum of f16 may overflow there
 *   different calls, roots     are not found, but for counts of alltoallv: MISMATCH on the rank that receives
 *   or counts
 *
 * Outcomes on devices:
 *
 *   where                       written by   content
 *   return value                the call     0: launched; else there was no launch
 *   @result                     the call     status 0; epoch, size and contributors as known then
 *   covey_device_result()       the kernel   the first message that failed, else the outcome of the last collective,
 *                                            dispatch or combine
 *   covey_work_test(), _wait()  the kernel   the same, of the operation of a _start form
 *   covey_device_outcome_at()   the kernel   the outcome of the last operation, for kernels that run later
 *
 * Messages launch a kernel that holds the stream until the message is through:
 *
 *   case                       on devices
 *   a receive                  takes the next message, in the order of the calls. One with another tag, or longer than
 *                              the buffer, is dropped: MISMATCH, nothing is written
 *   @peer is no member         PEER from the call if known then
 *   @peer is removed           part of the buffer of a receive that ends with PEER may have been written
 *   a new process of the rank  captured graphs: messages are for the process that has the rank at the replay
 *   sent before the receive    about 1 MB, and 192 messages. Two ranks that both send more before they receive may
 *                              deadlock, unless the calls are in one group of calls
 *   to itself                  both calls in one group of calls
 *   one group of calls         one launch at its end: at most 128 messages (else UNSUPPORTED), of one stream. A wait for
 *                              a work before that end: INVAL
 *   @peer on another host      UNSUPPORTED
 *   covey_leave()              does not wait for receives
 *   outcome                    covey_device_result(); of a _start form its work alone, whose `bytes` and `tag` are those
 *                              of the message. In @result they are the call's
 *
 * A call leaves the calling thread's current CUDA device and its capture mode as they were. Graphs that other threads
 * capture, in whatever mode, stay valid. Two calls wait for the device, by which CUDA invalidates all open captures:
 * covey_close() of a group with a device, and a covey_admit() that lets a rank in there.
 *
 * After a death each survivor completes an operation with the same contributors and bytes as all others. In place, an
 * operation above 3,840 KiB may end with LOST, the same on all (above 240, 64 and 32 KiB in builds for 64, 128 and 256
 * ranks); alltoall(v) does not.
 */
#ifndef COVEY_H
#include <covey.h> /* which includes this one */
#elif !defined(COVEY_DEVICE_H)
#define COVEY_DEVICE_H

#include <covey_ep.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* as in covey.h */
extern "C" {
#endif

/* ---- Safe points -------------------------------------------------------------------------- */

/**
 * covey_admit_async - covey_admit() of a group with a device, which waits for no stream
 * @stream: stream of the operations on device memory; it is not being captured. NULL if the group has no device
 *
 * Operations that were launched on @stream before this call run without the newcomers, later ones with them. A
 * newcomer's stream waits until the others' streams come to this place. Members and newcomers may mix the two forms.
 * If a rank comes in, covey_admit() first waits until all launches on all streams have ended. If it returns TIMEOUT there,
 * after join_ms, the next covey_admit() continues that wait. CUDA allows no such wait while a graph is being captured: it
 * invalidates the capture, and the wait lasts until that has ended. covey_admit_async() does not wait.
 * Errors: as covey_admit(); UNSUPPORTED: a stream, and the group has no device
 */
COVEY_API int covey_admit_async(struct covey_group *group, void *state, size_t bytes, struct CUstream_st *stream,
				struct covey_result *result);

/* ---- Outcomes ----------------------------------------------------------------------------- */

#define COVEY_DEVICE_MAX_RANKS 32 /* of the group: ranks 0..31, for all operations; covey_device_max_ranks() */

/**
 * covey_device_max_ranks - the most ranks of a group with devices in this build of the library
 * COVEY_DEVICE_MAX_RANKS by default; up to 256 where it was built with -DCOVEY_DEVICE_RANKS, and then a call has fewer
 * lanes at most: 4096 divided by this. All processes of a group have libraries of one such number.
 */
COVEY_API int covey_device_max_ranks(void);

/**
 * covey_device_result - copies the last outcome on the device to host memory; it does not wait for the stream
 * @result: status, epoch and seq of the device's operations; mask: contributors, and of alltoall(v), reduce_scatter,
 *          gather, scatter, dispatch and combine those of them whose part is here
 *
 * The first message that failed since the last call comes first, once: status, peer and tag are its own. `peer` is -1
 * otherwise. The caller waits for the stream before.
 * Errors: INVAL; UNSUPPORTED: no device; IO
 */
COVEY_API int covey_device_result(struct covey_group *group, struct covey_result *result);

/** struct covey_device_outcome - the outcome of the last operation, in device memory */
struct covey_device_outcome {
	int32_t status; /* 0 or COVEY_ERR_* */
	uint32_t epoch;
	uint64_t seq;	     /* of the device's operations, from 0 */
	uint64_t mask;	     /* contributors below 64: rank r is bit r; the same on all survivors */
	uint64_t missing;    /* contributors whose part is not here: of this rank alone */
	uint64_t mask_64[3]; /* contributors from 64 on, the same way: builds for more ranks */
	uint64_t missing_64[3];
};

/**
 * covey_device_outcome_at - gives the address of the last outcome in device memory, for kernels that run later
 * Owner:  the group; valid until covey_close()
 * Errors: INVAL; UNSUPPORTED: no device
 */
COVEY_API int covey_device_outcome_at(struct covey_group *group, const struct covey_device_outcome **out);

/* ---- Memory that peers reach -------------------------------------------------------------- */

/**
 * covey_device_mem_alloc / covey_device_mem_free - device memory of this member's window, which all peers read in place
 * @out: device memory, 64-byte aligned
 *
 * A large operation copies nothing into library memory if these buffers of all ranks are there:
 *
 *   reduce_scatter, allgather, alltoall   inputs
 *   allreduce, broadcast                  inputs; with more than two ranks outputs too
 *   size and place                        from 16 MiB a block on, at multiples of 16 bytes, in any part of the window
 *   in place                              allreduce only
 *   a buffer of one rank is elsewhere     all ranks use packets
 *
 * Such an operation ends when all ranks have read.
 * Owner:  covey_device_mem_free(), or covey_close() with all of it. Before covey_device_mem_free() the stream must
 *         have passed every operation on the memory. Then all ranks have read, and it may be given out again at once.
 * Errors: INVAL; UNSUPPORTED: no device; NOMEM: device_window_bytes is too small
 */
COVEY_API int covey_device_mem_alloc(struct covey_group *group, size_t bytes, void **out);
COVEY_API int covey_device_mem_free(struct covey_group *group, void *memory);

/** struct covey_device_peers - by which a kernel of the application reaches that memory of its peers */
struct covey_device_peers {
	void *window; /* the own memory of which covey_device_mem_alloc() gives parts, at one place on all ranks */
	size_t window_bytes;
	int rank;
	/* the library's */
	uint32_t far_bytes;
	uint64_t *guests;
	const uint64_t *gate, *words, *ended, *since, *table;
	uint8_t *windows;
	const uint8_t *far;
	uint64_t stride;
};

/**
 * covey_device_peers - fills @out, for launches until covey_close(): views may change, captured graphs stay valid
 * Parts of the memory stand at one place on all ranks if all allocate and free the same in the same order.
 *
 * The memory is zero when the process joins, and peers may store in it from then on. A removed process that still runs may
 * store in the memory that it reached, words too, until it learns of its removal. So where that may happen the application
 * has its ranks use other parts of the memory after each safe point that let somebody in: covey does not do that.
 * Errors: INVAL; UNSUPPORTED: no device, device_window_bytes is 0, or covey_device_max_ranks() is above 32
 */
COVEY_API int covey_device_peers(struct covey_group *group, struct covey_device_peers *out);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif

/* ---- Kernels of the application ----------------------------------------------------------- */

/*
 * For kernels of the application, in CUDA: memory of covey_device_mem_alloc() is symmetric. A kernel stores in it on
 * other ranks, tells them, and waits for what they tell. If one of them dies, it does not wait for ever.
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
 *			covey_signal(&peers, &visit, to, word, value);
 *			while (!err && covey_wait(&peers, &visit, from, their_word, value) == COVEY_VIEW_ENDS)
 *				err = covey_again(&peers, &visit);
 *			if (!err)
 *				covey_exit(&peers);
 *		}
 *		__syncthreads();
 *		if (!err && (visit.mask >> from & 1))
 *			...
 *	}
 *
 * Between covey_enter() and covey_exit() a CTA is inside one view, and the next view waits until every CTA has left. So
 * after COVEY_VIEW_ENDS it goes out and comes in again (covey_again), and waits for those that are still there. What it has
 * put and told stays so. A CTA that stays longer than two seconds in a view that ends costs its rank the group.
 *
 * What holds of the group holds here, too: a joiner launches nothing before its covey_admit(), and kernels are in one
 * stream with covey_admit_async(), behind it on all ranks. Addresses of covey_at() hold for one stay. All stores to peers
 * are complete before the barrier that a covey_signal(), covey_again() or covey_exit() follows; what peers store is read
 * by plain loads, not by way of the read-only cache. A member that does not tell is waited for without a limit.
 *
 * All CTAs of a kernel that wait for peers find room at a time. A CTA that has entered waits for no other kernel of its
 * rank. Ranks of other hosts have no memory here, and are not in visit.mask.
 */

#if defined(__CUDACC__) || defined(COVEY_DEVICE_LOOK) /* a compiler of CUDA */

#define COVEY_VIEW_ENDS 1 /* the view changes: who has not told by now may be gone */

/* One stay of a CTA; in shared memory if all its threads need it. */
struct covey_visit {
	uint32_t epoch;	 /* of the view */
	uint32_t mask;	 /* contributors that are reached, and this rank: rank r is bit r. 0: it is not let in yet */
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

/* Which of all places is @rank's. */
static __device__ inline uint64_t covey_place_(const struct covey_visit *visit, int rank)
{
	return (uint64_t)rank * 4 + (visit->places >> (2 * rank) & 3);
}

/* Is its memory not mapped here? */
static __device__ inline int covey_is_far_(const struct covey_device_peers *peers, const struct covey_visit *visit,
					   int rank)
{
	const uint8_t *kind = peers->far + covey_place_(visit, rank) * peers->far_bytes;

	return *(const volatile uint32_t *)kind != 0;
}

/* One thread, inside: the words of the view. */
static __device__ inline void covey_read_(const struct covey_device_peers *peers, struct covey_visit *visit)
{
	visit->epoch = (uint32_t)(covey_load_(peers->words) >> 32);
	visit->mask = (uint32_t)covey_load_(peers->words + 1);
	visit->places = covey_load_(peers->words + 3);
	if (!(visit->mask >> peers->rank & 1))
		visit->mask = 0;
	for (int r = 0; r < 32; r++)
		if (r != peers->rank && (visit->mask >> r & 1) && covey_is_far_(peers, visit, r))
			visit->mask &= ~(1u << r);
}

/**
 * covey_enter - begins a stay in the present view; waits while the view changes
 * By one thread of the CTA. Returns 0, or the reason why it may not enter (then covey_exit() is not called):
 * CLOSED, FENCED or ABORTED: the group has ended for this rank. A change takes as long as the store is away
 */
static __device__ inline int covey_enter(const struct covey_device_peers *peers, struct covey_visit *visit)
{
	for (;;) {
		atomicAdd((unsigned long long *)peers->guests, 1ull);
		__threadfence_system(); /* the host counts guests after it has closed the gate */
		visit->gate = covey_gate_(peers);
		if (!(visit->gate & 1)) {
			covey_read_(peers, visit);
			if (covey_gate_(peers) == visit->gate) /* else the group ends, and its words with it */
				return 0;
		}
		atomicAdd((unsigned long long *)peers->guests, ~0ull);
		while (covey_gate_(peers) & 1) {
			const int ended = (int)(covey_load_(peers->ended) >> 32);

			if (ended)
				return ended;
			__nanosleep(500);
		}
	}
}

/** covey_exit - ends the stay: by one thread, after a barrier of the CTA. Stores to peers have landed when it is counted */
static __device__ inline void covey_exit(const struct covey_device_peers *peers)
{
	__threadfence_system();
	atomicAdd((unsigned long long *)peers->guests, ~0ull);
}

/** covey_again - covey_exit(), then covey_enter(): by one thread, after a barrier of the CTA, where others have stored. As these */
static __device__ inline int covey_again(const struct covey_device_peers *peers, struct covey_visit *visit)
{
	covey_exit(peers);
	return covey_enter(peers, visit);
}

/** covey_at - where @own, a place in the own memory of covey_device_mem_alloc(), is on @rank; NULL: not reached */
static __device__ inline void *covey_at(const struct covey_device_peers *peers, const struct covey_visit *visit,
					int rank, void *own)
{
	const uint64_t offset = (uint64_t)((uint8_t *)own - (uint8_t *)peers->window);
	const uint64_t place = covey_place_(visit, rank);

	if (rank == peers->rank)
		return own;
	if (!(visit->mask >> rank & 1))
		return NULL;
	if (peers->table)
		return (uint8_t *)covey_load_(peers->table + place) + offset;
	return peers->windows + place * peers->stride + offset;
}

/**
 * covey_put - @bytes from @from to @to, by @threads threads of which this is number @thread
 * @to: of covey_at(); NULL: nothing happens. Words of 16 bytes where both stand at multiples of 16. The peer reads them
 * after a signal.
 */
static __device__ inline void covey_put(void *to, const void *from, size_t bytes, unsigned thread, unsigned threads)
{
	const size_t wide = ((uintptr_t)to | (uintptr_t)from) % 16 ? 0 : bytes / 16;

	if (!to)
		return;
	for (size_t i = thread; i < wide; i += threads)
		((uint4 *)to)[i] = ((const uint4 *)from)[i];
	for (size_t i = wide * 16 + thread; i < bytes; i += threads)
		((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
}

/**
 * covey_signal - tells @rank: @own there, a word in memory of covey_device_mem_alloc(), becomes @value
 * By one thread, after a barrier of the threads whose puts it follows: who sees the value sees these. Nothing happens
 * if the rank is not reached.
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
 * covey_wait - until @own has @value or more, as @rank has told; values of a word grow
 * By one thread; the others see what was put after a barrier. Words of a removed process do not count for the one that
 * has its rank now. Returns 0; or COVEY_VIEW_ENDS. A rank that is not in visit.mask is not waited for.
 */
static __device__ inline int covey_wait(const struct covey_device_peers *peers, const struct covey_visit *visit,
					int rank, const uint64_t *own, uint32_t value)
{
	const uint32_t since = (uint32_t)(covey_load_(peers->since + rank / 2) >> (rank % 2 * 32));

	for (unsigned looks = 0; visit->mask >> rank & 1; looks++) {
		const uint32_t gate = looks % 32 ? visit->gate : covey_gate_(peers);
		const uint64_t v = covey_load_(own);

		if ((uint32_t)(v >> 32) >= since && (uint32_t)v >= value)
			return 0;
		if (gate != visit->gate)
			return COVEY_VIEW_ENDS;
	}
	return 0;
}

/* ---- Rows of a dispatch, while it runs ---------------------------------------------------- */

/*
 * A kernel in another stream begins with rows that are here (`arrived` of struct covey_dispatch_args). It is launched behind
 * what makes these words 0, and after covey_dispatch(), or covey_dispatch_recv(), has returned 0: of a call that is refused
 * it would wait for ever. A rank without experts launches none. It leaves room for the dispatch: its CTAs and the lanes of
 * the handle run at a time.
 *
 *	__shared__ int here;
 *
 *	if (threadIdx.x == 0)
 *		here = !covey_wait_range(arrived);
 *	__syncthreads();
 *	for (int i = 0; here && i < count[expert]; i++) {
 *		__syncthreads();	// all have looked at `here`
 *		if (threadIdx.x == 0)
 *			here = !covey_wait_row(arrived, (size_t)expert * rows + i);
 *		__syncthreads();
 *		if (here)
 *			...
 *	}
 *
 * With WIN the rows of `expert` begin at (uint32_t)range[(size_t)expert * R], and not at expert * rows.
 *
 * Outputs change while this kernel runs, so it does not read them with __ldg() or through `const ... *__restrict__`: such
 * loads may give what was there before. Bulk copies and TMA read them behind `fence.proxy.async`, by the thread that
 * has waited, or behind a barrier with it.
 *
 * Where both kernels have ended and arrived[COVEY_EP_ARRIVED_AGAIN] is not 0, what this one has read does not hold.
 */

#define COVEY_NO_ROW 1 /* it does not arrive: the dispatch has ended, or places rows anew */

static __device__ __forceinline__ uint32_t covey_look_(const uint32_t *at)
{
	uint32_t v;

	COVEY_DEVICE_LOOK();
#ifdef __CUDA_ARCH__
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
#else
	v = *(const volatile uint32_t *)at;
#endif
	return v;
}

static __device__ inline int covey_wait_arrival_(const uint32_t *arrived, size_t word)
{
	for (unsigned looks = 1;; looks++) {
		const int over = looks % 16 == 0 && (covey_look_(arrived + COVEY_EP_ARRIVED_AGAIN) ||
						     covey_look_(arrived + COVEY_EP_ARRIVED_ENDED) == COVEY_EP_ARRIVED);

		if (covey_look_(arrived + word) == COVEY_EP_ARRIVED)
			return 0;
		if (over)
			return COVEY_NO_ROW;
	}
}

/**
 * covey_wait_range - until count and range of the dispatch to which @arrived was given can be read; by one thread
 * The others read them after a barrier. Returns 0 or COVEY_NO_ROW.
 */
static __device__ inline int covey_wait_range(const uint32_t *arrived)
{
	return covey_wait_arrival_(arrived, COVEY_EP_ARRIVED_RANGE);
}

/**
 * covey_wait_row - until row @row of packed_x, its scales, and what other outputs say of it can be read; as above
 * Not of triplets, which a launch behind the dispatch writes: `flat` is asked for to know the origin of a row before.
 */
static __device__ inline int covey_wait_row(const uint32_t *arrived, size_t row)
{
	return covey_wait_arrival_(arrived, COVEY_EP_ARRIVED_ROWS + row);
}

#endif

#endif
