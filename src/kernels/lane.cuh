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
#ifndef CVY_LANE_CUH
#define CVY_LANE_CUH

#include "covey.h"
#include "packet.cuh"

enum cvy_mode {
	CVY_RUN,     /* from the first step */
	CVY_AGAIN,   /* the same, once more: inputs in place are read from where they were saved */
	CVY_COMPLETE /* all was pushed by everyone: only the last step's results are awaited */
};

/* What a body works with, beside the call: the call is never reached through memory that may change. */
struct cvy_lane_run {
	struct cvy_gpu_lane lane; /* words as they were when the attempt began */
	int index;		  /* of the lane */
	int steps;		  /* of this attempt: may depend on how many contribute */
	int pulled;		  /* inputs were read where they stand, and nothing is in slots */
	int touched;		  /* results may stand over inputs of which no copy is kept */
	int saved;		  /* inputs in place of the CTA's own lane have been */
	enum cvy_mode mode;
	uint32_t gone;	 /* COMPLETE: sources that nothing more comes of */
	uint64_t pushed; /* dispatch and combine: tag before the first step of what the lane pushed last */
	uint64_t most;	 /* and cycles that an attempt which is not the first waits for; 0: until it is done */
	struct cvy_watch watch;
};

static __device__ __forceinline__ struct cvy_gpu_lane cvy_lane_words(const struct cvy_gpu_control *control, int i)
{
	const uint8_t *at = (const uint8_t *)&control->lane[i];
	struct cvy_gpu_lane lane;
	uint64_t v[4];

	cvy_load_packet(at, v);
	cvy_load_packet(at + 16, v + 2);
	lane.count = (uint32_t)v[0];
	lane.epoch = (uint32_t)(v[0] >> 32);
	lane.mask = (uint32_t)v[1];
	lane.failed = (uint32_t)(v[1] >> 32);
	lane.in = v[2];
	lane.out = v[3];
	return lane;
}

/* Which of all places of its kind is @rank's, by its mapping. */
static __device__ __forceinline__ uint32_t cvy_mapping(uint64_t generations, int rank)
{
	return (uint32_t)rank * CVY_GPU_GENERATIONS + ((uint32_t)(generations >> (2 * rank)) & 3);
}

/*
 * Where a mapping stands. Memory by VMM follows from @base: nothing is looked up. By IPC it stands where the driver put it;
 * the host writes that down before any words name the mapping.
 */
static __device__ __forceinline__ uint8_t *cvy_stands(const struct cvy_gpu_call *c, enum cvy_gpu_place kind,
						      uint8_t *base, uint64_t stride, uint32_t mapping)
{
	if (c->places)
		return (uint8_t *)cvy_load_place(c->places + kind * CVY_GPU_MAPPINGS + mapping);
	return base + mapping * stride;
}

/* Chunk that @rank pushes into here; chunk there that this rank pushes into; its registered memory. */
static __device__ __forceinline__ const uint8_t *cvy_from(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							  int rank)
{
	return cvy_stands(c, CVY_GPU_IN, c->in, CVY_GPU_STRIDE, cvy_mapping(r->lane.in, rank));
}

static __device__ __forceinline__ uint8_t *cvy_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank)
{
	return cvy_stands(c, CVY_GPU_OUT, c->out, CVY_GPU_STRIDE, cvy_mapping(r->lane.out, rank));
}

/* The same where it is known that nothing is looked up: `plain` operations. */
static __device__ __forceinline__ const uint8_t *cvy_straight_from(const struct cvy_gpu_call *c,
								   const struct cvy_lane_run *r, int rank)
{
	return c->in + cvy_mapping(r->lane.in, rank) * CVY_GPU_STRIDE;
}

static __device__ __forceinline__ uint8_t *cvy_straight_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							   int rank)
{
	return c->out + cvy_mapping(r->lane.out, rank) * CVY_GPU_STRIDE;
}

static __device__ __forceinline__ const uint8_t *cvy_window(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							    int rank)
{
	return cvy_stands(c, CVY_GPU_WINDOW, c->windows, c->window_stride, cvy_mapping(r->lane.out, rank));
}

static __device__ __forceinline__ int cvy_has(uint32_t mask, int rank)
{
	return mask >> rank & 1;
}

/* The last operation, plus 1, that @rank ended without this rank; 0: it never did. */
static __device__ uint64_t cvy_passed(const struct cvy_gpu_call *c, int rank)
{
	uint64_t in = cvy_lane_words(c->control, 0).in;
	const uint8_t *from = cvy_stands(c, CVY_GPU_IN, c->in, CVY_GPU_STRIDE, cvy_mapping(in, rank));

	return cvy_load_word((const uint64_t *)(from + cvy_gpu_passed_at()));
}

/* The verdict stands until all that entered under it have finished. */
static __device__ __forceinline__ int cvy_lane_failed(const struct cvy_gpu_control *control,
						      const struct cvy_lane_run *r, uint64_t op)
{
	struct cvy_gpu_era era;

	if (r->mode != CVY_COMPLETE)
		return (r->lane.failed & CVY_GPU_FAILS) && op == cvy_load_word(&control->verdict.base);
	era = cvy_gpu_era_of(&control->roll, op);
	return era.fails && era.op == op;
}

/* Are there members whose memory is not mapped here? Alike on all of them, and for all threads. */
static __device__ __forceinline__ int cvy_far(const struct cvy_lane_run *r)
{
	return (r->lane.failed & CVY_GPU_FAR) != 0;
}

/* By words of a change that found this rank behind? */
static __device__ __forceinline__ int cvy_lags(const struct cvy_lane_run *r)
{
	return (r->lane.failed & CVY_GPU_LAGS) != 0;
}

/* Is there something to look at before anything is pushed? Rare: one test. */
static __device__ __forceinline__ int cvy_looks_first(const struct cvy_lane_run *r)
{
	return (r->lane.failed & (CVY_GPU_LAGS | CVY_GPU_LATE)) != 0;
}

static __device__ int cvy_far_again(const struct cvy_gpu_call *c, struct cvy_lane_run r);	    /* far.cuh */
static __device__ void cvy_spoil_lines(const struct cvy_gpu_call *c, const struct cvy_lane_run *r); /* step.cuh */
static __device__ int cvy_after_late(const struct cvy_gpu_call *c, struct cvy_lane_run r);

/* What later kernels may read of the operation: by lane 0, and by any that knows of a part that is not here. */
static __device__ __forceinline__ void cvy_lane_status(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       uint64_t op)
{
	struct cvy_gpu_status *status = &c->control->status;
	uint32_t missing =
		r->mode == CVY_COMPLETE && !r->pulled && cvy_gpu_is_private(c->kind) ? r->gone & r->lane.mask : 0;
	int root = c->root >= 0, result = 0;

	if (r->index && !missing)
		return;
	if (cvy_lane_failed(c->control, r, op))
		result = COVEY_ERR_LOST;
	else if (root && !cvy_has(r->lane.mask, c->root))
		result = COVEY_ERR_ROOT;
	else if (missing && (c->kind == CVY_GPU_REDUCE_SCATTER || (root && cvy_has(missing, c->root))))
		result = COVEY_ERR_LOST;
	cvy_store_packet((uint8_t *)status, (uint64_t)r->lane.epoch << 32 | (uint32_t)result, op);
	cvy_store_packet((uint8_t *)&status->mask, r->lane.mask, missing);
}

/* One thread. The steps of the lane are done: the words that the next operation, and the host, begin from. */
static __device__ __forceinline__ void cvy_lane_done(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     uint64_t op)
{
	struct cvy_gpu_control *control = c->control;

	cvy_store_packet((uint8_t *)&control->past[r->index], CVY_GPU_DONE(op, r->lane.epoch),
			 CVY_GPU_COUNTED(r->lane.count));
	((volatile struct cvy_gpu_lane *)control->lane)[r->index].count = r->lane.count + (uint32_t)r->steps;
	cvy_lane_status(c, r, op);
}

/* Would it read, done again, inputs that its results replace? In place, and more than the slots of one step. */
static __device__ __forceinline__ int cvy_spoils(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return c->in_place && (r->steps > 1 || c->kind == CVY_GPU_ALLREDUCE_TWO_SHOT);
}

static __device__ void cvy_say_parked(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, uint64_t op)
{
	struct cvy_gpu_parked *p = &c->control->parked;

	p->op = op;
	p->lanes = (uint32_t)c->lanes;
	p->steps = (uint32_t)r->steps;
	p->rounds = cvy_gpu_has_rounds(c->kind) && __popc(r->lane.mask) > 2 ? 2 : 1;
	p->slot_bytes = (uint32_t)(c->rows * c->threads * CVY_GPU_PACKET);
	p->private_parts = (uint32_t)(r->pulled || cvy_gpu_is_private(c->kind) || c->kind == CVY_GPU_ADMIT);
	if (cvy_spoils(c, r) && r->touched)
		p->spoiled = op + 1;
}

/* Is lane @i for this CTA to do (again) in @epoch? Its own, or one whose CTA has left; nobody else may have it then. */
static __device__ int cvy_claim(struct cvy_gpu_control *control, int i, uint64_t op, uint32_t epoch)
{
	uint64_t was = cvy_load_word(&control->past[i].done), want = CVY_GPU_DONE(op, epoch);
	int same = CVY_GPU_DONE_OP(was) == CVY_GPU_DONE_OP(want);

	if (was == want || (i != (int)blockIdx.x && !same))
		return 0;
	if (!same) { /* what is counted is of an operation before: who reads both takes it for this one's */
		cvy_store_word((uint8_t *)&control->past[i].counted, 0);
		__threadfence();
	}
	return atomicCAS((unsigned long long *)&control->past[i].done, was, want) == was;
}

/*
 * Whoever spoils inputs waits until it knows that the gate was open when it entered, and says so before: a change that
 * found it standing still has told others that its inputs are whole.
 */
static __device__ __noinline__ int cvy_may_begin(const struct cvy_gpu_call *c, unsigned open, uint64_t entered)
{
	int closed = threadIdx.x == 0 && entered >> CVY_GPU_GATE_SHIFT != open;

	if (threadIdx.x == 0 && !closed)
		c->control->parked.spoiled = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA + 1;
	return !__syncthreads_or(closed);
}

/* Lane @i is this CTA's to see to, who has claimed it: as it was before the operation, and with a part of that. */
static __device__ __forceinline__ void cvy_take_lane(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int i)
{
	const uint64_t counted = cvy_load_word(&c->control->past[i].counted);

	r->index = i;
	r->lane = cvy_lane_words(c->control, i);
	r->lane.failed &= ~CVY_GPU_LAGS;
	if (counted >> 32) /* of this operation: the claim saw to it */
		r->lane.count = (uint32_t)counted;
}

/*
 * What this CTA does next of an operation that is done again: the first lane from *next on that it may claim, from the inputs. All
 * do them in ascending order, since only some may be resident at a time. 0: none is left.
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
	r->pulled = 0;
	r->steps = BODY::steps(c, r->lane.mask);
	r->mode = CVY_AGAIN;
	r->touched = 1;
	if (threadIdx.x == 0 && cvy_spoils(c, r))
		cvy_say_parked(c, r, op);
	r->watch.open = CVY_GPU_GATE_OPEN(r->lane.epoch);
	if ((r->lane.failed & CVY_GPU_LATE) && !cvy_far(r))
		cvy_after_late(c, *r);
	return 1;
}

/* Has another CTA done this one's lane again since, in a view that this one slept through? Then that one completes it. */
static __device__ int cvy_taken_over(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, uint64_t op)
{
	uint64_t done = cvy_load_word(&c->control->past[r->index].done);

	return CVY_GPU_DONE_OP(done) == op + 1 && done != CVY_GPU_DONE(op, r->lane.epoch);
}

/* Of which operation is a CTA, by what adding to `entered` returned? */
static __device__ __forceinline__ uint64_t cvy_entered_op(uint64_t entered)
{
	return (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
}

/* One thread. Is the operation below the base? By the verdict that stands, or the one that is being written. */
static __device__ __forceinline__ int cvy_is_decided(const struct cvy_gpu_control *control, uint64_t op)
{
	return op < cvy_load_word(&control->verdict.base);
}

/* One thread. Has it to be done again, and who enters it has to see to that? */
static __device__ __forceinline__ int cvy_is_partly_done(const struct cvy_gpu_control *control, uint64_t op)
{
	return op == cvy_load_word(&control->verdict.base) && cvy_load_half(&control->verdict.partly);
}

/*
 * All threads of a CTA whose words say that the rank lags, before it pushes. 1: it stops: others have completed the operation, and it
 * had no part in that (by these words it may have one: words are dealt out anew where fewer contribute), or it is not known yet; or
 * all lanes of it are done again. 0: the operation is to be done, and so are those that come to the lane.
 */
static __device__ __noinline__ int cvy_comes_late(const struct cvy_gpu_call *c, uint32_t failed, unsigned open,
						  uint64_t entered)
{
	int stops = 0;

	if (threadIdx.x == 0)
		stops = entered >> CVY_GPU_GATE_SHIFT != open || cvy_is_decided(c->control, cvy_entered_op(entered)) ||
			cvy_is_partly_done(c->control, cvy_entered_op(entered));
	if (__syncthreads_or(stops))
		return 1;
	if (threadIdx.x == 0)
		((volatile struct cvy_gpu_lane *)c->control->lane)[blockIdx.x].failed = failed & ~CVY_GPU_LAGS;
	return 0;
}

/*
 * All threads, before anything is pushed: an operation before ended without some contributor, who may still read what it was sent in
 * the one before that. 1: stopped.
 */
static __device__ __noinline__ int cvy_after_late(const struct cvy_gpu_call *c, struct cvy_lane_run r)
{
	if (c->packet == CVY_GPU_PAIR && c->kind != CVY_GPU_BARRIER && c->kind != CVY_GPU_ADMIT)
		cvy_spoil_lines(c, &r);
	if (cvy_far(&r))
		return cvy_far_again(c, r);
	if (threadIdx.x == 0 && c->root < 0) /* who has done it has heard of everyone */
		((volatile struct cvy_gpu_lane *)c->control->lane)[r.index].failed = r.lane.failed & ~CVY_GPU_LATE;
	return 0;
}

/* All threads, where cvy_looks_first(). 1: the CTA stops, and has pushed nothing. */
static __device__ __noinline__ int cvy_look_first(const struct cvy_gpu_call *c, struct cvy_lane_run r, uint64_t entered)
{
	if (cvy_lags(&r) && cvy_comes_late(c, r.lane.failed, r.watch.open, entered))
		return 1;
	r.lane.failed &= ~CVY_GPU_LAGS;
	return (r.lane.failed & CVY_GPU_LATE) && cvy_after_late(c, r);
}

/*
 * Others have completed the operation. Had the lane's CTA no attempt in its era? It had not entered, or slept through the view in
 * which it was done again.
 */
static __device__ __forceinline__ int cvy_had_no_part(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						      uint64_t op)
{
	const uint32_t epoch = cvy_gpu_era_of(&c->control->roll, op).epoch;

	return cvy_lags(r) || (epoch && epoch != r->lane.epoch);
}

/*
 * All threads. Such a lane had no words, or the operation would not be complete, and one step, as those have who have none. Nothing
 * was pushed that counts, and nothing comes.
 */
static __device__ void cvy_count_alone(const struct cvy_gpu_call *c, struct cvy_lane_run *r, uint64_t op)
{
	struct cvy_gpu_era era;

	if (threadIdx.x)
		return;
	era = cvy_gpu_era_of(&c->control->roll, op);
	r->mode = CVY_COMPLETE;
	r->gone = 0;
	r->steps = 1;
	r->lane.mask = era.mask;
	r->lane.epoch = era.epoch;
	cvy_lane_done(c, r, op);
}

/*
 * One thread, of a CTA that has done what it can of an operation that others have completed: lanes that it may claim, and that were
 * not done in its era, had no part in that either. They may be its own, if it was stopped in another's, and count one step, whatever
 * they counted in a view before.
 */
static __device__ __noinline__ void cvy_count_others(const struct cvy_gpu_call *c, struct cvy_lane_run r, uint64_t op)
{
	struct cvy_gpu_control *control = c->control;
	const uint32_t era = cvy_gpu_era_of(&control->roll, op).epoch, epoch = cvy_load_half(&control->verdict.epoch);

	for (int i = 0; era && i < c->lanes; i++) {
		if (cvy_load_word(&control->past[i].done) == CVY_GPU_DONE(op, era) || !cvy_claim(control, i, op, epoch))
			continue;
		cvy_take_lane(c, &r, i);
		cvy_count_alone(c, &r, op);
	}
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
	__shared__ int late;

	if (threadIdx.x == 0) {
		if (!cvy_lags(r) || !cvy_is_decided(c->control, op)) /* else its steps are another view's */
			cvy_say_parked(c, r, op);
		late = cvy_park(c->control, c->quanta, c->park_cycles, &verdict);
		if (late)
			cvy_store_word((uint8_t *)&c->mailbox->gave_up, op + 1);
		if (late || verdict.ended) {
			c->control->status.op = op;
			c->control->status.status = late ? COVEY_ERR_TIMEOUT : verdict.ended;
		}
	}
	__syncthreads();
	if (late || verdict.ended)
		return 0;
	*next = 0;
	if (op >= verdict.base)
		return cvy_next_lane<BODY>(c, r, next, op, verdict.epoch);
	if (cvy_taken_over(c, r, op))
		return 0;
	if (cvy_had_no_part(c, r, op)) {
		cvy_count_alone(c, r, op);
		if (threadIdx.x == 0)
			cvy_count_others(c, *r, op);
		return 0;
	}
	r->lane.in = cvy_lane_words(c->control, r->index).in; /* holders' copies of what the removed had pushed */
	r->mode = CVY_COMPLETE;
	r->gone = verdict.gone;
	r->watch.open = CVY_GPU_GATE_OPEN(verdict.epoch);
	*next = c->lanes; /* everyone has pushed all: no other lane is left undone */
	return 1;
}

/* What one thread does when the steps of a lane are done, before the operation counts as finished. */
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
	r->pulled = 0;
	r->touched = 1;
	r->gone = 0;
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

/* A body where the short way is not for it. What it changes of @r is not needed afterwards. */
template <typename BODY>
static __device__ __noinline__ int cvy_long_way(const struct cvy_gpu_call *c, struct cvy_lane_run r)
{
	return BODY::template run<0>(c, &r);
}

/*
 * What comes after a change: the operation is completed, or done again lane by lane. All threads. The lane's words are
 * read again: where it is to be completed they are as they were, since the host waits for this CTA to stop.
 */
template <typename BODY>
static __device__ __noinline__ void cvy_rest(const struct cvy_gpu_call *c, uint64_t entered, int steps, int pulled,
					     int touched)
{
	int next = c->lanes, stopped = 1;
	struct cvy_lane_run r;
	__shared__ uint64_t op;

	cvy_begin(c, &r);
	r.steps = steps;
	r.pulled = pulled;
	r.touched = r.saved = touched;
	if (threadIdx.x == 0)
		op = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
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
					cvy_count_others(c, r, op);
			}
			if (r.mode != CVY_AGAIN || !cvy_next_lane<BODY>(c, &r, &next, op, r.lane.epoch))
				break;
		}
		stopped = BODY::template run<0>(c, &r);
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
		cvy_rest<BODY>(c, entered, r->steps, r->pulled, touched);
	} else if (threadIdx.x == 0) {
		cvy_lane_done(c, r, (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA);
		cvy_after<BODY>::done(c, r, (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA);
	}
	if (threadIdx.x == 0)
		atomicAdd((unsigned long long *)&c->control->finished, (unsigned long long)c->quanta);
}

/* All threads, in a build that measures: all that the next operation needs. */
static __device__ __forceinline__ void cvy_lane_bare(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	__syncthreads(); /* all have read the count */
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

	if (CVY_GUARDED && threadIdx.x == 0) /* before the barrier: whoever has pushed is counted */
		entered = atomicAdd((unsigned long long *)&c->control->entered, (unsigned long long)c->quanta);
	if constexpr (BODY::AHEAD)
		BODY::ahead(c, own); /* on its way together with the lane's words */
	cvy_begin(c, &r);
	r.steps = BODY::steps(c, r.lane.mask);
	if (CVY_GUARDED && cvy_looks_first(&r)) {
		stopped = cvy_look_first(c, r, entered);
		touched = !stopped;
	}
	if (CVY_GUARDED && !BODY::ONE && !stopped && cvy_spoils(c, &r)) {
		stopped = !cvy_may_begin(c, r.watch.open, entered);
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
