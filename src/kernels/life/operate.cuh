/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a CTA in an operation, around what the operation does (a *body*):
 *
 *	read the lane's words; add to `entered`, without waiting for what it returns
 *	run the body: push, wait, fold, store, step by step
 *	all threads have it, and the gate was open when this CTA entered: count the steps, add to `finished`
 *	else: park; the host decides; complete under the old stamps or do it again under the new
 *
 * An operation that is done again is done whole: lanes whose CTA had finished before the change are claimed by
 * those that are left, in ascending order, each by one compare-and-swap.
 *
 * A build to measure against (guard.h) has the body and the count of steps alone: it survives no change of the view.
 */
#ifndef CVY_OPERATE_CUH
#define CVY_OPERATE_CUH

#include "laggard.cuh"

/*
 * Does the CTA first wait until it knows that the gate was open when it entered? Else it may have pushed by the next view's
 * words, which stand there before the gate opens, and does the same steps again under the same tags: of one step that does
 * no harm. Of several, others have written over the first, and it would wait for ever. Or it spoils inputs.
 */
static __device__ __forceinline__ int cvy_asks_first(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return r->steps > 1 || c->levels || c->kind == CVY_GPU_ALLTOALLV || cvy_spoils(c);
}

/* A CTA that spoils inputs says so before: a change that found it stopped has told others that its inputs are whole. */
static __device__ __noinline__ int cvy_may_begin(const struct cvy_gpu_call *c, unsigned open, uint64_t entered,
						 int spoils)
{
	int closed = threadIdx.x == 0 && entered >> CVY_GPU_GATE_SHIFT != open;

	if (threadIdx.x == 0 && !closed && spoils)
		c->control->parked.spoiled = cvy_entered_op(entered) + 1;
	return !__syncthreads_or(closed);
}

/*
 * The next work of this CTA in an operation that is done again: the first lane from *next on that it may claim, from the
 * inputs. All CTAs take lanes in ascending order, since only some may be resident at a time. 0: none is left.
 */
template <typename BODY>
static __device__ __noinline__ int cvy_next_lane(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int *next,
						 uint64_t op, uint32_t epoch)
{
	__shared__ int found;

	__syncthreads();
	if (threadIdx.x == 0) {
		found = *next;
		while (found < c->lanes && !cvy_claim(c->control, found, op, epoch))
			found++;
	}
	__syncthreads();
	if (found >= c->lanes)
		return 0;
	*next = found + 1;
	cvy_take_lane(c, r, found);
	r->settled = 0;
	r->steps = BODY::steps(c, r->lane.mask);
	r->mode = CVY_AGAIN;
	r->touched = 1;
	if (threadIdx.x == 0 && cvy_spoils(c))
		cvy_say_parked(c, r, op);
	r->watch.open = CVY_GPU_GATE_OPEN(r->lane.epoch);
	if ((r->lane.failed & CVY_GPU_LATE) && !cvy_far(r))
		cvy_after_late(c, *r);
	return 1;
}

/*
 * The CTA stopped, or entered behind a closed gate: waits for the host's word and sets out what to do then.
 * 1: an attempt is set out; 0: the operation has ended for this CTA.
 */
template <typename BODY>
static __device__ __noinline__ int cvy_decided(const struct cvy_gpu_call *c, struct cvy_lane_run *r, uint64_t op,
					       int *next)
{
	__shared__ struct cvy_gpu_verdict verdict;

	if (threadIdx.x == 0) {
		if (!cvy_lags(r) || !cvy_is_decided(c->control, op)) /* else its steps are another view's */
			cvy_say_parked(c, r, op);
		cvy_park(c->control, c->quanta, &verdict);
		if (verdict.ended) {
			c->control->status.op = op;
			c->control->status.status = verdict.ended;
		}
	}
	__syncthreads();
	if (verdict.ended)
		return 0;
	*next = 0;
	if (op >= verdict.base)
		return cvy_next_lane<BODY>(c, r, next, op, verdict.epoch);
	if (cvy_taken_over(c, r, op))
		return 0;
	if (cvy_had_no_part(c, r, op)) { /* the lane is one of those, unless another CTA is faster */
		if (threadIdx.x == 0)
			cvy_count_idle(c, *r, op);
		return 0;
	}
	r->lane.in = cvy_lane_words(c->control, r->index).in; /* holders' copies of what the removed had pushed */
	r->mode = CVY_COMPLETE;
	r->gone = verdict.gone;
	r->watch.open = CVY_GPU_GATE_OPEN(verdict.epoch);
	*next = c->lanes; /* everyone has pushed all: no other lane is left undone */
	return 1;
}

/* One thread's work when the steps of a lane are done, before the operation counts as finished. */
template <typename BODY> struct cvy_after {
	static __device__ __forceinline__ void done(const struct cvy_gpu_call *, const struct cvy_lane_run *, uint64_t)
	{
	}
};

/* A first attempt, by words that are alike in all threads. */
static __device__ __forceinline__ void cvy_begin_by(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    struct cvy_gpu_lane words)
{
	r->index = (int)blockIdx.x;
	r->lane = words;
	r->mode = CVY_RUN;
	r->settled = 0;
	r->touched = 1;
	r->gone = cvy_ranks_none();
	r->watch.control = c->control;
	r->watch.mailbox = c->mailbox;
	r->watch.call = c;
	r->watch.late = c->late_cycles;
	r->watch.since = 0;
	r->watch.looks = 0;
	r->watch.open = CVY_GPU_GATE_OPEN(r->lane.epoch);
}

/*
 * All threads. The words are read by one for all: the host may write others until the CTA is counted, and threads of two
 * views would not meet at the same barriers.
 */
static __device__ __forceinline__ void cvy_begin(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
{
	__shared__ struct cvy_gpu_lane words;

	if (threadIdx.x == 0)
		words = cvy_lane_words(c->control, (int)blockIdx.x);
	__syncthreads();
	cvy_begin_by(c, r, words);
}

/* An attempt that is not the first. APART: the long way changes nothing of @r that is needed, and is compiled once. */
template <typename BODY>
static __device__ __forceinline__ int cvy_again(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
{
	if constexpr (BODY::APART)
		return cvy_long_way<BODY>(c, *r);
	else
		return BODY::template run<0>(c, r);
}

/*
 * After a change: the operation is completed, or done again lane by lane. All threads. The lane's words are read again: if
 * the operation is to be completed they are unchanged, since the host waits for this CTA to stop.
 */
template <typename BODY>
static __device__ __noinline__ void cvy_rest(const struct cvy_gpu_call *c, uint64_t entered, int steps, int settled,
					     int touched)
{
	int next = c->lanes, stopped = 1;
	struct cvy_lane_run r;
	__shared__ uint64_t op;

	cvy_begin(c, &r);
	r.steps = steps;
	r.settled = settled;
	r.touched = r.saved = touched;
	if (threadIdx.x == 0)
		op = cvy_entered_op(entered);
	__syncthreads();
	for (;;) {
		if (stopped) {
			if (!cvy_decided<BODY>(c, &r, op, &next))
				break;
		} else {
			if (threadIdx.x == 0) {
				cvy_lane_done(c, &r, op);
				cvy_after<BODY>::done(c, &r, op);
				if (r.mode == CVY_COMPLETE)
					cvy_count_idle(c, r, op);
			}
			if (r.mode != CVY_AGAIN || !cvy_next_lane<BODY>(c, &r, &next, op, r.lane.epoch))
				break;
		}
		stopped = cvy_again<BODY>(c, &r);
		r.saved |= r.index == (int)blockIdx.x;
		stopped = __syncthreads_or(stopped || (threadIdx.x == 0 && cvy_gate(c->control) != r.watch.open));
	}
	if (threadIdx.x == 0)
		__threadfence_system();
}

/* The first attempt has run: all threads have it and the gate was open, or the CTA parks. */
template <typename BODY>
static __device__ __forceinline__ void cvy_lane_end(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    uint64_t entered, int stopped, int touched)
{
	if (threadIdx.x == 0)
		stopped |= (unsigned)(entered >> CVY_GPU_GATE_SHIFT) != r->watch.open;
	if (__syncthreads_or(stopped)) {
		cvy_rest<BODY>(c, entered, r->steps, r->settled, touched);
	} else if (threadIdx.x == 0) {
		cvy_let_next_begin();
		cvy_lane_done(c, r, cvy_entered_op(entered));
		cvy_after<BODY>::done(c, r, cvy_entered_op(entered));
	}
	if (threadIdx.x == 0)
		cvy_add_word(&c->control->finished, (uint64_t)c->quanta);
}

/* All threads, in a build that measures: all that the next operation needs. */
static __device__ __forceinline__ void cvy_lane_bare(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	__syncthreads(); /* all have read the count */
	cvy_let_next_begin();
	if (threadIdx.x == 0)
		((volatile struct cvy_gpu_lane *)c->control->lane)[r->index].count = r->lane.count + (uint32_t)r->steps;
}

/* The first attempt; AHEAD: @own are words that the body has read before. */
template <typename BODY>
static __device__ __forceinline__ int cvy_first(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						const uint64_t *own)
{
	if constexpr (BODY::AHEAD)
		return BODY::first(c, r, own);
	else
		return BODY::template run<1>(c, r);
}

template <typename BODY> static __device__ __forceinline__ void cvy_operate(const struct cvy_gpu_call *c)
{
	struct cvy_lane_run r;
	uint64_t entered = 0, own[2] = { 0, 0 };
	int stopped = 0, touched = 1;

	cvy_wait_for_stream();
	if (CVY_GUARDED && threadIdx.x == 0) /* before the barrier: a CTA that has pushed is counted */
		entered = atomicAdd((unsigned long long *)&c->control->entered, (unsigned long long)c->quanta);
	if constexpr (BODY::AHEAD)
		BODY::ahead(c, own); /* on its way together with the lane's words */
	cvy_begin(c, &r);
	r.steps = BODY::steps(c, r.lane.mask);
	if (CVY_GUARDED && cvy_looks_first(&r)) {
		stopped = cvy_look_first(c, r, entered);
		touched = !stopped;
	}
	if (CVY_GUARDED && !BODY::ONE && !stopped && cvy_asks_first(c, &r)) {
		stopped = !cvy_may_begin(c, r.watch.open, entered, cvy_spoils(c));
		touched = !stopped;
	}
	if (!stopped)
		stopped = cvy_first<BODY>(c, &r, own);
	if constexpr (CVY_GUARDED)
		cvy_lane_end<BODY>(c, &r, entered, stopped, touched);
	else
		cvy_lane_bare(c, &r);
}

template <typename BODY>
static __global__ void __launch_bounds__(CVY_GPU_THREADS, 1)
	cvy_operation(const __grid_constant__ struct cvy_gpu_call call)
{
	cvy_operate<BODY>(&call);
}

#endif
