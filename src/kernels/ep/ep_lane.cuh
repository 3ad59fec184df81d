/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a CTA in dispatch and combine: as in operate.cuh, with three differences. An operation that others have
 * completed is completed from what each lane recorded when it pushed. Places of dispatch depend on the contributors, so
 * rows are then placed anew in every lane, also in lanes that were done. If a deadline passed without a source, the CTA
 * that ends last does the same, for all lanes, without that source.
 */
#ifndef CVY_EP_LANE_CUH
#define CVY_EP_LANE_CUH

#include "ep_combine.cuh"
#include "ep_dispatch.cuh"
#include "operate.cuh"
#include "trace.cuh"

/* An attempt has run in full: what is missing of it. */
template <typename BODY>
static __device__ __forceinline__ cvy_ranks cvy_ep_missing(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
							   const struct cvy_ep_shared *sh)
{
	cvy_ranks missing = cvy_ranks_or(sh->lacking, sh->left_out);

	if (!BODY::CLOSES && r->mode == CVY_COMPLETE && a->call.kind == CVY_GPU_DISPATCH && a->form.steps > 1)
		missing = r->lane.mask;
	return cvy_ranks_and(missing, r->lane.mask);
}

/* What this CTA counts for. All of an operation make CVY_GPU_QUANTA; the first has what does not go into equal parts. */
static __device__ __forceinline__ uint32_t cvy_ep_quanta(const struct cvy_ep_args *a)
{
	const uint32_t each = a->call.quanta;

	return blockIdx.x ? each : CVY_GPU_QUANTA - each * (uint32_t)(a->call.lanes - 1);
}

/* One thread: lane @r->index is done, under claim @epoch. */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_done(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
						   const struct cvy_ep_shared *sh, uint64_t op, uint32_t epoch)
{
	cvy_ranks missing = cvy_ep_missing<BODY>(a, r, sh);
	struct cvy_gpu_control *control = a->call.control;
	struct cvy_gpu_status *status = &control->status;

	cvy_store_packet((uint8_t *)&control->past[r->index], CVY_GPU_DONE(op, epoch), CVY_GPU_COUNTED(r->lane.count));
	if (r->mode == CVY_COMPLETE) /* others look at both (cvy_ep_look_at_steps) */
		__threadfence();
	((volatile struct cvy_gpu_lane *)control->lane)[r->index].count = r->lane.count + (uint32_t)r->steps;
	cvy_ep_far_ended(a, r, cvy_ep_silent(a, r, sh));
	if (r->index && !cvy_ranks_any(missing))
		return;
	if (a->call.kind == CVY_GPU_DISPATCH)
		cvy_ranks_write(a->lost, missing);
	cvy_store_packet(
		(uint8_t *)status,
		(uint64_t)r->lane.epoch << 32 | (uint32_t)(cvy_lane_failed(control, r, op) ? COVEY_ERR_LOST : 0), op);
	cvy_store_masks(status, r->lane.mask, cvy_ranks_and(missing, r->lane.mask));
}

/* The first lane from *next on that this CTA may claim in @epoch: its own, or one whose CTA has left. */
static __device__ __noinline__ int cvy_ep_claim(const struct cvy_ep_args *a, int *next, uint64_t op, uint32_t epoch)
{
	__shared__ int found;

	__syncthreads();
	if (threadIdx.x == 0) {
		found = *next;
#pragma unroll 1
		while (found < a->call.lanes && !cvy_claim(a->call.control, found, op, epoch))
			found++;
	}
	__syncthreads();
	*next = found + 1;
	return found < a->call.lanes ? found : -1;
}

/*
 * All threads, of an operation of several steps that others have completed: did a lane not come to the last one? Then no lane has
 * anything of it, since what is here of some tokens would not be what the outcome says of all. Alike while the verdict stands.
 */
static __device__ __noinline__ void cvy_ep_look_at_steps(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
							 uint64_t op)
{
	const struct cvy_gpu_control *control = a->call.control;
	const struct cvy_gpu_era era = cvy_gpu_era_of(&control->roll, op);
	int lacks = 0;

#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->call.lanes; i += CVY_EP_THREADS) {
		const struct cvy_ep_lane *lane = &a->state->lane[i];
		uint32_t count = cvy_load_half(&control->lane[i].count);
		uint64_t past[2];

		__threadfence(); /* the thread that counts the steps has said so before */
		cvy_load_packet((const uint8_t *)&control->past[i], past);
		if (cvy_gpu_counted(past[0], past[1], op))
			count = (uint32_t)past[1];
		if (cvy_load_word(&lane->pushed) != CVY_GPU_STEP(era.epoch, count) ||
		    (int)(cvy_load_word(&lane->mask) >> 32) + 1 < a->form.steps)
			lacks = 1;
	}
	lacks = __syncthreads_or(lacks);
	if (threadIdx.x == 0)
		sh->nothing = lacks;
	__syncthreads();
}

/*
 * All threads. Others have completed the operation without this lane's part: its CTA had not come, or was not running while
 * the operation was done again. Their data are where the outcome's view puts them, and the record says so as if it were of
 * an attempt. By a deadline nobody waits for the part any more. Without one they had left this rank out (active_ranks),
 * which is a matter of two: others may wait for it, and get it now.
 */
static __device__ __noinline__ void cvy_ep_as_if_sent(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
						      uint64_t op)
{
	struct cvy_ep_lane *lane = &a->state->lane[r->index];

	if (threadIdx.x == 0) {
		const struct cvy_gpu_era era = cvy_gpu_era_of(&a->call.control->roll, op);
		const uint64_t tag = CVY_GPU_STEP(era.epoch, r->lane.count);

		if (era.epoch && cvy_load_word(&lane->pushed) != tag)
			cvy_ep_record(lane, tag, a->timeout_ms > 0 || a->form.steps > 1 ? 0 : CVY_EP_UNSENT, era.mask);
	}
	__syncthreads();
}

/* The next work of this CTA in an operation that a verdict has decided. 0: nothing is left. */
static __device__ __noinline__ int cvy_ep_next(const struct cvy_ep_args *a, struct cvy_lane_run *r, int *next,
					       uint64_t op, const struct cvy_gpu_verdict *verdict)
{
	int complete = op < verdict->base, lane = cvy_ep_claim(a, next, op, verdict->epoch);
	uint64_t counted;

	if (lane < 0)
		return 0;
	r->index = lane;
	r->lane = cvy_lane_words(a->call.control, lane);
	counted = cvy_load_word(&a->call.control->past[lane].counted);
	if (counted >> 32) /* of this operation: the claim saw to it */
		r->lane.count = (uint32_t)counted;
	if (complete)
		cvy_ep_as_if_sent(a, r, op);
	r->mode = complete ? CVY_COMPLETE : CVY_AGAIN;
	r->gone = complete ? verdict->gone : cvy_ranks_none();
	r->watch.open = CVY_GPU_GATE_OPEN(verdict->epoch);
	return 1;
}

/* 1: everything ends. */
static __device__ __noinline__ int cvy_ep_park(const struct cvy_ep_args *a, const struct cvy_lane_run *r, uint64_t op,
					       struct cvy_gpu_verdict *verdict)
{
	const struct cvy_gpu_call *c = &a->call;
	__shared__ struct cvy_gpu_verdict v;
	CVY_TRACED(PARK, op);

	if (threadIdx.x == 0) {
		cvy_say_parked(c, r, op);
		cvy_park(c->control, cvy_ep_quanta(a), &v);
		if (v.ended) {
			c->control->status.op = op;
			c->control->status.status = v.ended;
		}
	}
	__syncthreads();
	*verdict = v;
	return v.ended != 0;
}

/* Those that were late in a lane, under late_tag. */
static __device__ __forceinline__ cvy_ranks cvy_ep_lates(const struct cvy_ep_lane *lane)
{
#if CVY_GPU_IS_WIDE
	return cvy_load_ranks(&lane->lates);
#else
	return (uint32_t)cvy_load_word(&lane->late);
#endif
}

/* Sources that any lane's deadline passed without, in the attempt that was pushed under @epoch. */
static __device__ cvy_ranks cvy_ep_all_late(const struct cvy_ep_args *a, uint32_t epoch)
{
	__shared__ cvy_ranks late;

	__syncthreads();
	if (threadIdx.x == 0)
		late = cvy_ranks_none();
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->call.lanes; i += CVY_EP_THREADS) {
		const struct cvy_ep_lane *lane = &a->state->lane[i];

		if (cvy_load_word(&lane->late_tag) == cvy_load_word(&lane->pushed) &&
		    (uint32_t)(cvy_load_word(&lane->pushed) >> 32) == epoch)
			cvy_ranks_join_all(&late, cvy_ep_lates(lane));
	}
	__syncthreads();
	return late;
}

/* Any attempt but the first. */
template <typename BODY>
static __device__ __noinline__ int cvy_ep_run_again(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						    struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late)
{
	typename BODY::ahead x;
	CVY_TRACED(AGAIN, r->index);

	if (BODY::PLACES)
		cvy_ep_arrives_again(a);
	return BODY::template run<0>(a, r, sh, dynamic, late, &x);
}

/*
 * Completes all lanes once more without @late, while their data are still in the slots: places of dispatch depend on the
 * contributors, and a sum with a part of a missing rank would be wrong. A rank that goes on meanwhile is late, too. Returns
 * these ranks; *lacking: owners that had not got what was sent.
 */
template <typename BODY>
static __device__ __noinline__ cvy_ranks cvy_ep_again(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						      struct cvy_ep_shared *sh, uint64_t *dynamic, cvy_ranks late,
						      cvy_ranks *lacking)
{
	cvy_ranks more = late;

	*lacking = cvy_ranks_none();
	if (!BODY::PLACES && a->form.steps > 1)
		return late;
	r->most = 1; /* all of it has come: what is not there now is written over */
#pragma unroll 1
	for (int i = 0; i < a->call.lanes; i++) {
		r->index = i;
		do { /* a change may begin meanwhile, and waits for this CTA */
			__syncthreads();
			r->watch.open = cvy_gate(a->call.control);
		} while (cvy_ep_run_again<BODY>(a, r, sh, dynamic, late));
		__syncthreads();
		more = cvy_ranks_or(more, sh->late);
		*lacking = cvy_ranks_or(*lacking, sh->lacking);
	}
	__syncthreads();
	return more;
}

/* The CTA that ends last: what one lane lacks, no lane keeps. Returns the late ranks. */
template <typename BODY>
static __device__ __noinline__ cvy_ranks cvy_ep_agree(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						      struct cvy_ep_shared *sh, uint64_t *dynamic, uint64_t op,
						      cvy_ranks left_out)
{
	cvy_ranks late = cvy_ep_all_late(a, r->lane.epoch);
	cvy_ranks gone = r->mode == CVY_COMPLETE ? r->gone : cvy_ranks_none();
	cvy_ranks before = late, lacking;

	if (!cvy_ranks_any(late))
		return late;
	r->mode = CVY_COMPLETE;
	r->gone = gone;
#pragma unroll 1
	do {
		before = late;
		late = cvy_ep_again<BODY>(a, r, sh, dynamic, before, &lacking);
	} while (!cvy_ranks_equal(late, before));
	if (threadIdx.x == 0) {
		cvy_ranks missing = cvy_ranks_or(cvy_ranks_or(late, gone), cvy_ranks_or(left_out, lacking));

		if (a->call.kind == CVY_GPU_DISPATCH && a->form.steps > 1)
			missing = r->lane.mask;
		else if (a->form.steps > 1) /* all of it, where the last step alone was left to be had */
			missing = cvy_ranks_or(missing, cvy_load_missing(&a->call.control->status));
		missing = cvy_ranks_and(missing, r->lane.mask);
		if (a->call.kind == CVY_GPU_DISPATCH)
			cvy_ranks_write(a->lost, missing);
		cvy_store_masks(&a->call.control->status, r->lane.mask, missing);
#pragma unroll 1
		for (int p = 0; p < a->call.size && a->active; p++)
			if (cvy_has(late, p))
				a->active[p] = 0;
#pragma unroll 1
		for (int p = 0; p < a->call.size; p++)
			if (cvy_has(late, p))
				cvy_store_word((uint8_t *)&a->call.mailbox->passed[p], op + 1);
	}
	return late;
}

/*
 * Thread p tells rank p, if it is in @whom, that the operation under way ends here without it: data of earlier operations
 * that it has not read will be written over. Far ranks are told before that happens (cvy_far_overtake).
 */
static __device__ void cvy_ep_pass(const struct cvy_ep_args *a, cvy_ranks whom)
{
	const struct cvy_gpu_call *c = &a->call;
	const struct cvy_gpu_lane words = cvy_lane_words(c->control, 0);
	int p = (int)threadIdx.x;

	if (p >= CVY_GPU_RANKS || p == c->rank || !cvy_has(cvy_ranks_and(whom, words.mask), p) ||
	    ((words.failed & CVY_GPU_FAR) && cvy_far_queue(c, words.out, whom, p)))
		return;
	__threadfence_system();
	cvy_store_word(cvy_stands(c, CVY_GPU_OUT, c->out, CVY_GPU_STRIDE, cvy_mapping(words.out, p)) +
			       cvy_gpu_passed_at(),
		       cvy_load_word(&c->control->finished) / CVY_GPU_QUANTA + 1);
}

/* All threads: is this CTA the last to end? Stores of the others are visible then. */
static __device__ int cvy_ep_last(const struct cvy_ep_args *a)
{
	__shared__ int last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicInc(&a->state->left, (unsigned)a->call.lanes - 1) == (unsigned)a->call.lanes - 1;
		__threadfence();
	}
	__syncthreads();
	return last;
}

/*
 * All threads, at the beginning: one of them reads what others may change, and what many look at comes near, all at a time,
 * up to the one barrier.
 */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_prepare(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						      struct cvy_ep_shared *sh, uint64_t *dynamic,
						      typename BODY::ahead *x)
{
	struct cvy_ep_names names = cvy_ep_names_at(a, (int)threadIdx.x);
	struct cvy_gpu_lane words = {};
	uint64_t pushed = 0;
	cvy_ranks active = cvy_ranks_none();

	if (threadIdx.x == 0) {
		words = cvy_lane_words(a->call.control, (int)blockIdx.x);
		pushed = cvy_load_word(&a->state->lane[blockIdx.x].pushed);
	}
	BODY::read_ahead(a, x);
	if (threadIdx.x < 32)
		active = cvy_ep_active(a);
	BODY::bring_near(a, sh, dynamic, x);
	cvy_ep_keep_names(a, sh, names);
	if (threadIdx.x == 0) {
		sh->lane = words;
		sh->pushed = pushed;
		sh->active = active;
		cvy_ep_none_yet(a, sh, words.mask, cvy_ranks_and(words.mask, active));
	}
	__syncthreads();
	cvy_begin_by(&a->call, r, sh->lane);
	r->pushed = sh->pushed;
	r->steps = a->form.steps;
	r->touched = 0;
	r->most = a->timeout_cycles;
}

/* How a CTA begins: with an attempt, behind a closed gate, or in an operation that is decided. */
enum cvy_ep_start { CVY_EP_TRY, CVY_EP_PARK, CVY_EP_DECIDED };

/*
 * A second phase may enter when others have completed the operation, with what the first phase sent, and a view has come
 * since: nobody would answer what is sent anew, and the record of what was sent, by which it is completed, must stand. So
 * it asks first, which takes the answer of the add.
 */
static __device__ __noinline__ enum cvy_ep_start cvy_ep_second(const struct cvy_ep_args *a, unsigned open,
							       uint64_t entered)
{
	__shared__ enum cvy_ep_start start;

	if (threadIdx.x == 0) {
		start = CVY_EP_TRY;
		if ((unsigned)(entered >> CVY_GPU_GATE_SHIFT) != open ||
		    cvy_is_partly_done(a->call.control, cvy_entered_op(entered)))
			start = CVY_EP_PARK;
		else if (cvy_entered_op(entered) < cvy_load_word(&a->call.control->verdict.base))
			start = CVY_EP_DECIDED;
	}
	__syncthreads();
	return start;
}

/* The verdict of the view that the CTA entered in: it stands until all that did have finished. */
static __device__ __forceinline__ struct cvy_gpu_verdict cvy_ep_standing(const struct cvy_ep_args *a, uint32_t epoch)
{
	const struct cvy_gpu_verdict *v = &a->call.control->verdict;
	struct cvy_gpu_verdict verdict = {};

	verdict.epoch = epoch;
	verdict.base = cvy_load_word(&v->base);
	verdict.gone = cvy_load_ranks(&v->gone);
	return verdict;
}

/* One thread: the ranks that were late in this lane, and in an earlier attempt under the same tag. */
static __device__ void cvy_ep_say_late(const struct cvy_ep_args *a, const struct cvy_lane_run *r, cvy_ranks late)
{
	struct cvy_ep_lane *lane = &a->state->lane[r->index];
	uint64_t tag = CVY_GPU_STEP(r->lane.epoch, r->lane.count);

	if (cvy_load_word(&lane->late_tag) == tag)
		late = cvy_ranks_or(late, cvy_ep_lates(lane));
#if CVY_GPU_IS_WIDE
	cvy_ranks_write(&lane->lates, late);
	__threadfence();
#endif
	cvy_store_packet((uint8_t *)&lane->late_tag, tag, cvy_ranks_long(late, 0));
}

/* All threads: what comes when an attempt has run. Has it, with the gate open all the while? 1: no. */
static __device__ __forceinline__ int cvy_ep_ended(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
						   const struct cvy_ep_shared *sh, unsigned gate, int stopped)
{
	if (threadIdx.x == 0) {
		stopped |= gate != r->watch.open;
		if (cvy_ranks_any(sh->late))
			cvy_ep_say_late(a, r, sh->late);
	}
	return __syncthreads_or(stopped);
}

/* All threads: @r of the attempt by which lanes have ended. This CTA's last one may be an earlier one. */
static __device__ __noinline__ void cvy_ep_as_it_ended(const struct cvy_ep_args *a, struct cvy_lane_run *r, uint64_t op)
{
	const struct cvy_gpu_verdict *v = &a->call.control->verdict;
	const struct cvy_ep_lane *lane = &a->state->lane[0];

	r->index = 0;
	r->lane = cvy_lane_words(a->call.control, 0);
	r->lane.epoch = (uint32_t)(cvy_load_word(&lane->pushed) >> 32);
	r->lane.mask = cvy_ep_recorded(lane);
	r->mode = CVY_COMPLETE;
	r->gone = op < cvy_load_word(&v->base) ? cvy_load_ranks(&v->gone) : cvy_ranks_none();
}

/*
 * All threads: the operation has ended in this CTA, without a deadline. Ranks that the caller leaves out hear that it ends
 * without them. Returns whether there are any. Each CTA says so by itself, and counts no others: the caller's words may
 * change while CTAs read them. In a lane's words the CTA that ends it says so (cvy_ep_far_ended): all threads read them.
 */
static __device__ __forceinline__ int cvy_ep_passes(const struct cvy_ep_args *a, const struct cvy_ep_shared *sh)
{
	const cvy_ranks whom = cvy_ranks_but(a->size_mask, sh->active);

	if (!a->active || !cvy_ranks_any(whom))
		return 0;
	cvy_ep_pass(a, whom);
	return 1;
}

/* The operation has ended in this CTA. If deadlines are set, the last CTA looks which ranks were late. */
template <typename BODY>
static __device__ __noinline__ void cvy_ep_leave(const struct cvy_ep_args *a, struct cvy_lane_run r,
						 struct cvy_ep_shared *sh, uint64_t *dynamic, uint64_t op)
{
	volatile struct cvy_gpu_lane *lane = a->call.control->lane;
	cvy_ranks left_out, whom;

	if (!cvy_ep_last(a))
		return;
	if (r.mode != CVY_RUN)
		cvy_ep_as_it_ended(a, &r, op);
	left_out = cvy_ranks_but(cvy_ranks_and(r.lane.mask, a->size_mask), cvy_ep_members<0>(&r, sh));
	whom = cvy_ranks_or(left_out, cvy_ep_agree<BODY>(a, &r, sh, dynamic, op, left_out));
	cvy_ep_pass(a, whom);
#pragma unroll 1
	for (int i = (int)threadIdx.x; cvy_ranks_any(whom) && i < a->call.lanes; i += CVY_EP_THREADS)
		lane[i].failed = lane[i].failed | CVY_GPU_LATE;
}

/*
 * All threads of a CTA whose first attempt did not end well, or was not made (@start): whatever befalls the operation then.
 * Apart, so that the first attempt has its words in registers.
 */
template <typename BODY>
static __device__ __noinline__ void cvy_ep_rest(const struct cvy_ep_args *a, struct cvy_ep_shared *sh,
						uint64_t *dynamic, enum cvy_ep_start start)
{
	__shared__ uint64_t op;
	struct cvy_gpu_verdict verdict;
	struct cvy_lane_run r;
	int next = 0, stopped = start != CVY_EP_DECIDED, over = 0;

	cvy_begin_by(&a->call, &r, sh->lane);
	r.pushed = sh->pushed;
	r.steps = a->form.steps;
	r.touched = 0;
	r.most = a->timeout_cycles;
	verdict = cvy_ep_standing(a, r.lane.epoch);
	if (BODY::PLACES)
		cvy_ep_arrives_again(a);
	if (threadIdx.x == 0)
		op = cvy_entered_op(sh->entered);
	__syncthreads();
#pragma unroll 1
	for (;;) {
		over = stopped && cvy_ep_park(a, &r, op, &verdict);
		if (over)
			break;
		if (stopped)
			next = 0;
		if (!cvy_ep_next(a, &r, &next, op, &verdict))
			break;
		if (r.mode == CVY_COMPLETE && a->form.steps > 1)
			cvy_ep_look_at_steps(a, sh, op);
		stopped = cvy_ep_run_again<BODY>(a, &r, sh, dynamic, cvy_ranks_none());
		stopped = cvy_ep_ended(a, &r, sh, cvy_gate(a->call.control), stopped);
		if (!stopped && threadIdx.x == 0)
			cvy_ep_done<BODY>(a, &r, sh, op, verdict.epoch);
	}
	if (BODY::PLACES && over && !blockIdx.x) {
		cvy_ep_no_rows(a);
		__syncthreads(); /* before thread 0 tells the end */
	}
	r.mode = CVY_COMPLETE; /* or it has found nothing to do */
	if (a->timeout_cycles && over)
		cvy_ep_last(a);
	else if (a->timeout_cycles)
		cvy_ep_leave<BODY>(a, r, sh, dynamic, op);
	else if (!over) /* a rank that is out tells nobody */
		cvy_ep_passes(a, sh);
	if (threadIdx.x == 0)
		__threadfence_system();
}

/* All threads, before the barrier behind which they read words: a CTA that has pushed is counted. Thread 0 gets the count. */
static __device__ __forceinline__ uint64_t cvy_ep_enter(const struct cvy_ep_args *a)
{
	cvy_wait_for_stream();
	if (!CVY_GUARDED || threadIdx.x)
		return 0;
	return atomicAdd((unsigned long long *)&a->call.control->entered, (unsigned long long)cvy_ep_quanta(a));
}

/* All threads: did the CTA enter behind a closed gate, or that of another view? */
static __device__ __forceinline__ int cvy_ep_found_closed(const struct cvy_lane_run *r, const struct cvy_ep_shared *sh)
{
	return __syncthreads_or(threadIdx.x == 0 &&
				(unsigned)(cvy_ep_entered(sh) >> CVY_GPU_GATE_SHIFT) != r->watch.open);
}

/* From the first attempt on, whatever befalls it. */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_guarded(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						      struct cvy_ep_shared *sh, uint64_t *dynamic,
						      typename BODY::ahead *x)
{
	struct cvy_gpu_control *control = a->call.control;
	enum cvy_ep_start start = CVY_EP_TRY;
	int stopped = 1;
	uint64_t op;

	if (a->phases == CVY_EP_RECV)
		start = cvy_ep_second(a, r->watch.open, cvy_ep_entered(sh));
	else if (cvy_lags(r) && cvy_comes_late(&a->call, r->lane.failed, r->watch.open, cvy_ep_entered(sh)))
		start = CVY_EP_PARK;
	/* Its paths follow from words that the host may be writing; or see cvy_asks_first(). */
	if ((BODY::CLOSES || a->form.steps > 1) && start == CVY_EP_TRY && cvy_ep_found_closed(r, sh))
		start = CVY_EP_PARK;
	if (start == CVY_EP_TRY) {
		stopped = BODY::template run<1>(a, r, sh, dynamic, cvy_ranks_none(), x);
		stopped = cvy_ep_ended(a, r, sh, (unsigned)(cvy_ep_entered(sh) >> CVY_GPU_GATE_SHIFT), stopped);
	}
	if (stopped) {
		cvy_ep_rest<BODY>(a, sh, dynamic, start);
	} else {
		op = cvy_entered_op(cvy_ep_entered(sh));
		if (!a->timeout_cycles &&
		    !cvy_ep_passes(a, sh)) /* else the next one reads what was written to its lane */
			cvy_let_next_begin();
		if (threadIdx.x == 0)
			cvy_ep_done<BODY>(a, r, sh, op, r->lane.epoch);
		if (a->timeout_cycles)
			cvy_ep_leave<BODY>(a, *r, sh, dynamic, op);
	}
	if (threadIdx.x == 0) {
		if (BODY::PLACES)
			cvy_ep_ends(a);
		cvy_add_word(&control->finished, (uint64_t)cvy_ep_quanta(a));
	}
}

#endif
