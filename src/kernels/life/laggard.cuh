/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lagging CTA's checks before it pushes, and its work in an operation that others have completed, or done in part, in
 * views in which the CTA had no part.
 */
#ifndef CVY_LAGGARD_CUH
#define CVY_LAGGARD_CUH

#include "step.cuh"

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

/* One thread. Must it be done again, by the CTA that enters it? */
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
 * All threads, before anything is pushed: the operation before ended without some contributor. That rank may still read
 * data of the one before that. 1: stopped.
 */
static __device__ __noinline__ int cvy_after_late(const struct cvy_gpu_call *c, struct cvy_lane_run r)
{
	if (c->packet == CVY_GPU_PAIR && c->kind != CVY_GPU_BARRIER && c->kind != CVY_GPU_ADMIT)
		cvy_spoil_lines(c, &r);
	cvy_near_overtake(c, r, r.lane.mask, CVY_GPU_STEP(r.lane.epoch, r.lane.count + 1));
	if (cvy_far(&r))
		return cvy_far_again(c, r);
	if (threadIdx.x == 0 && c->root < 0) /* a rank that has done it has heard everyone */
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
 * One thread. Such a lane had no words, or the operation would not be complete; a lane without words has one step. Nothing
 * was pushed that counts, and nothing comes.
 */
static __device__ void cvy_count_alone(const struct cvy_gpu_call *c, struct cvy_lane_run *r, uint64_t op)
{
	const struct cvy_gpu_era era = cvy_gpu_era_of(&c->control->roll, op);

	r->mode = CVY_COMPLETE;
	r->gone = cvy_ranks_none();
	r->steps = 1;
	r->lane.mask = era.mask;
	r->lane.epoch = era.epoch;
	cvy_lane_done(c, r, op);
}

/*
 * One thread, of a CTA that has done what it can of an operation that others have completed: lanes that it may claim, and that were
 * not done in its era, had no part in that. They count one step, whatever they counted in a view before. Its own may be one of them:
 * another CTA may claim that, too.
 */
static __device__ __noinline__ void cvy_count_idle(const struct cvy_gpu_call *c, struct cvy_lane_run r, uint64_t op)
{
	struct cvy_gpu_control *control = c->control;
	const uint32_t era = cvy_gpu_era_of(&control->roll, op).epoch, epoch = cvy_load_half(&control->verdict.epoch);

	for (int i = 0; era && i < c->lanes; i++) {
		const uint64_t was = cvy_load_word(&control->past[i].done); /* once: its CTA may be doing it now */

		if (was == CVY_GPU_DONE(op, era) || !cvy_claim_from(control, i, was, op, epoch))
			continue;
		cvy_take_lane(c, &r, i);
		cvy_count_alone(c, &r, op);
	}
}

#endif
