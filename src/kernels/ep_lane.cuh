/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a CTA in dispatch and combine: as lane.cuh has it, with three differences. Who completes an operation that
 * others have completed does so from what each lane recorded when it pushed. Places of dispatch depend on who is in it, so
 * it is then placed anew in every lane, also in those that were done. And where a deadline passed without a source, the
 * CTA that ends last does the same, for all lanes, without that source.
 */
#ifndef CVY_EP_LANE_CUH
#define CVY_EP_LANE_CUH

#include "ep_combine.cuh"
#include "ep_dispatch.cuh"

/* One thread: lane @r->index is done, under claim @epoch. */
static __device__ void cvy_ep_done(const struct cvy_ep_args *a, const struct cvy_lane_run *r, uint64_t op,
				   uint32_t epoch, uint32_t missing, uint32_t silent)
{
	struct cvy_gpu_control *control = a->call.control;
	struct cvy_gpu_status *status = &control->status;

	cvy_store_packet((uint8_t *)&control->past[r->index], CVY_GPU_DONE(op, epoch), CVY_GPU_COUNTED(r->lane.count));
	((volatile struct cvy_gpu_lane *)control->lane)[r->index].count = r->lane.count + (uint32_t)r->steps;
	if (cvy_far(r))
		cvy_ep_far_ended(a, r, silent);
	if (r->index && !missing)
		return;
	if (a->call.kind == CVY_GPU_DISPATCH)
		*(volatile uint32_t *)a->lost = missing;
	cvy_store_packet(
		(uint8_t *)status,
		(uint64_t)r->lane.epoch << 32 | (uint32_t)(cvy_lane_failed(control, r, op) ? COVEY_ERR_LOST : 0), op);
	cvy_store_packet((uint8_t *)&status->mask, r->lane.mask, missing & r->lane.mask);
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

/* What this CTA does next of an operation that a verdict has decided. 0: nothing is left. */
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
	r->mode = complete ? CVY_COMPLETE : CVY_AGAIN;
	r->gone = complete ? verdict->gone : 0;
	r->watch.open = CVY_GPU_GATE_OPEN(verdict->epoch);
	return 1;
}

/* 1: nobody decided, or everything ends. */
static __device__ __noinline__ int cvy_ep_park(const struct cvy_ep_args *a, const struct cvy_lane_run *r, uint64_t op,
					       struct cvy_gpu_verdict *verdict)
{
	const struct cvy_gpu_call *c = &a->call;
	__shared__ struct cvy_gpu_verdict v;
	__shared__ int late;

	if (threadIdx.x == 0) {
		cvy_say_parked(c, r, op);
		late = cvy_park(c->control, CVY_GPU_QUANTA / (unsigned)c->lanes, c->park_cycles, &v);
		if (late)
			cvy_store_word((uint8_t *)&c->mailbox->gave_up, op + 1);
		if (late || v.ended) {
			c->control->status.op = op;
			c->control->status.status = late ? COVEY_ERR_TIMEOUT : v.ended;
		}
	}
	__syncthreads();
	*verdict = v;
	return late || v.ended;
}

/* Sources that any lane's deadline passed without, in the attempt that was pushed under @epoch. */
static __device__ uint32_t cvy_ep_all_late(const struct cvy_ep_args *a, uint32_t epoch)
{
	__shared__ uint32_t late;

	__syncthreads();
	if (threadIdx.x == 0)
		late = 0;
	__syncthreads();
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < a->call.lanes; i += CVY_EP_THREADS) {
		const struct cvy_ep_lane *lane = &a->state->lane[i];

		if (cvy_load_word(&lane->late_tag) == cvy_load_word(&lane->pushed) &&
		    (uint32_t)(cvy_load_word(&lane->pushed) >> 32) == epoch)
			atomicOr(&late, (uint32_t)cvy_load_word(&lane->late));
	}
	__syncthreads();
	return late;
}

/*
 * Completes all lanes once more without @late, as long as what is to be read stands: places of dispatch depend on it, and a
 * sum that has a part of who is missing is not true. Who goes on meanwhile is late, too. Returns those; *lacking: owners
 * that had not got what was sent.
 */
template <typename BODY>
static __device__ __noinline__ uint32_t cvy_ep_again(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						     struct cvy_ep_shared *sh, uint64_t *dynamic, uint32_t late,
						     uint32_t *lacking)
{
	uint32_t more = late;

	*lacking = 0;
	if (!BODY::PLACES && a->form.steps > 1)
		return late;
#pragma unroll 1
	for (int i = 0; i < a->call.lanes; i++) {
		r->index = i;
		__syncthreads();
		BODY::run(a, r, sh, dynamic, late);
		__syncthreads();
		more |= sh->late;
		*lacking |= sh->lacking;
	}
	__syncthreads();
	return more;
}

/* The CTA that ends last: what some lanes lack, none has. */
template <typename BODY>
static __device__ __noinline__ void cvy_ep_agree(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						 struct cvy_ep_shared *sh, uint64_t *dynamic, uint64_t op)
{
	uint32_t late = cvy_ep_all_late(a, r->lane.epoch), gone = r->mode == CVY_COMPLETE ? r->gone : 0;
	uint32_t before = late, lacking;

	if (!late)
		return;
	r->mode = CVY_COMPLETE;
	r->gone = gone;
#pragma unroll 1
	do {
		before = late;
		late = cvy_ep_again<BODY>(a, r, sh, dynamic, before, &lacking);
	} while (late != before);
	if (threadIdx.x == 0) {
		uint32_t missing = late | gone | sh->left_out | lacking;

		if (a->call.kind == CVY_GPU_DISPATCH && a->form.steps > 1)
			missing = r->lane.mask;
		r->index = 0;
		if (a->call.kind == CVY_GPU_DISPATCH)
			*(volatile uint32_t *)a->lost = missing;
		cvy_store_packet((uint8_t *)&a->call.control->status.mask, r->lane.mask, missing & r->lane.mask);
#pragma unroll 1
		for (int p = 0; p < a->call.size && a->active; p++)
			if (cvy_has(late, p))
				a->active[p] = 0;
#pragma unroll 1
		for (int p = 0; p < a->call.size; p++)
			if (cvy_has(late, p))
				cvy_store_word((uint8_t *)&a->call.mailbox->passed[p], op + 1);
	}
}

/* Of all threads: this CTA is the last to end. What the others stored is seen. */
static __device__ int cvy_ep_last(const struct cvy_ep_args *a)
{
	__shared__ int last;

	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicAdd(&a->state->left, 1u) % (unsigned)a->call.lanes == (unsigned)a->call.lanes - 1;
		__threadfence();
	}
	__syncthreads();
	return last;
}

static __device__ __forceinline__ void cvy_ep_prepare(const struct cvy_ep_args *a, struct cvy_lane_run *r)
{
	r->pushed = cvy_load_word(&a->state->lane[blockIdx.x].pushed);
	cvy_begin(&a->call, r);
	r->steps = a->form.steps;
	r->touched = 0;
}

/* An attempt has run in full: what is missing of it. */
static __device__ uint32_t cvy_ep_missing(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
					  const struct cvy_ep_shared *sh)
{
	uint32_t missing = sh->lacking | sh->left_out;

	if (r->mode == CVY_COMPLETE && a->call.kind == CVY_GPU_DISPATCH && a->form.steps > 1)
		missing = r->lane.mask;
	return missing & r->lane.mask;
}

/* How a CTA begins: with an attempt, behind a closed gate, or in an operation that is decided. */
enum cvy_ep_start { CVY_EP_TRY, CVY_EP_PARK, CVY_EP_DECIDED };

/*
 * A second phase may enter when others have completed the operation, with what the first phase sent, and a view has come
 * since: nobody would answer what is sent anew, and the record of what was sent, by which it is completed, must stand. So
 * it asks first, which takes the answer of the add.
 */
static __device__ __noinline__ enum cvy_ep_start cvy_ep_second(const struct cvy_ep_args *a,
							       const struct cvy_lane_run *r, uint64_t entered,
							       struct cvy_gpu_verdict *verdict)
{
	const struct cvy_gpu_control *control = a->call.control;
	__shared__ struct cvy_gpu_verdict v;
	__shared__ enum cvy_ep_start start;

	if (threadIdx.x == 0) {
		v.epoch = r->lane.epoch;
		v.ended = 0;
		v.base = cvy_load_word(&control->verdict.base);
		v.gone = cvy_load_half(&control->verdict.gone);
		start = CVY_EP_TRY;
		if ((unsigned)(entered >> CVY_GPU_GATE_SHIFT) != r->watch.open)
			start = CVY_EP_PARK;
		else if ((entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA < v.base)
			start = CVY_EP_DECIDED;
	}
	__syncthreads();
	*verdict = v;
	return start;
}

/* One thread: who was late in this lane, and in an attempt before that was pushed under the same tag. */
static __device__ void cvy_ep_say_late(const struct cvy_ep_args *a, const struct cvy_lane_run *r, uint32_t late)
{
	struct cvy_ep_lane *lane = &a->state->lane[r->index];
	uint64_t tag = CVY_GPU_TAG(r->lane.epoch, r->lane.count);

	if (cvy_load_word(&lane->late_tag) == tag)
		late |= (uint32_t)cvy_load_word(&lane->late);
	cvy_store_packet((uint8_t *)&lane->late_tag, tag, late);
}

/* All threads: has the attempt run, with the gate open all the while? 1: no. Sets @op. */
template <typename BODY>
static __device__ __forceinline__ int cvy_ep_attempt(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						     struct cvy_ep_shared *sh, uint64_t *dynamic, uint64_t entered,
						     uint64_t *op)
{
	int stopped = BODY::run(a, r, sh, dynamic, r->mode == CVY_COMPLETE ? cvy_ep_all_late(a, r->lane.epoch) : 0);

	if (threadIdx.x == 0) {
		unsigned gate =
			r->mode == CVY_RUN ? (unsigned)(entered >> CVY_GPU_GATE_SHIFT) : cvy_gate(a->call.control);

		*op = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
		stopped |= gate != r->watch.open;
		if (sh->late)
			cvy_ep_say_late(a, r, sh->late);
	}
	return __syncthreads_or(stopped);
}

/* From the first attempt on, whatever befalls it. */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_guarded(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						      struct cvy_ep_shared *sh, uint64_t *dynamic)
{
	__shared__ uint64_t op;
	struct cvy_gpu_control *control = a->call.control;
	unsigned quanta = CVY_GPU_QUANTA / (unsigned)a->call.lanes;
	struct cvy_gpu_verdict verdict = {};
	enum cvy_ep_start start = CVY_EP_TRY;
	uint64_t entered = 0;
	int next = a->call.lanes, stopped;

	if (threadIdx.x == 0)
		entered = atomicAdd((unsigned long long *)&control->entered, (unsigned long long)quanta);
	if (a->phases == CVY_EP_RECV) {
		if (threadIdx.x == 0)
			op = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
		start = cvy_ep_second(a, r, entered, &verdict);
	}
#pragma unroll 1
	for (;; start = CVY_EP_TRY) {
		stopped = start == CVY_EP_PARK;
		if (start == CVY_EP_TRY) {
			stopped = cvy_ep_attempt<BODY>(a, r, sh, dynamic, entered, &op);
			if (!stopped && threadIdx.x == 0)
				cvy_ep_done(a, r, op, r->mode == CVY_RUN ? r->lane.epoch : verdict.epoch,
					    cvy_ep_missing(a, r, sh), cvy_ep_silent(a, r, sh));
			if (!stopped && r->mode == CVY_RUN)
				break;
		}
		if (stopped && cvy_ep_park(a, r, op, &verdict))
			break;
		if (stopped || start == CVY_EP_DECIDED)
			next = 0;
		if (!cvy_ep_next(a, r, &next, op, &verdict))
			break;
	}
	if (a->timeout_cycles && cvy_ep_last(a))
		cvy_ep_agree<BODY>(a, r, sh, dynamic, op);
	if (threadIdx.x == 0) {
		if (r->mode != CVY_RUN)
			__threadfence_system();
		atomicAdd((unsigned long long *)&control->finished, (unsigned long long)quanta);
	}
}

/* In a build that measures (guard.h): nothing stops it, and nothing is missing. */
template <typename BODY>
static __device__ __forceinline__ void cvy_ep_bare(const struct cvy_ep_args *a, struct cvy_lane_run *r,
						   struct cvy_ep_shared *sh, uint64_t *dynamic)
{
	BODY::run(a, r, sh, dynamic, 0);
	if (threadIdx.x == 0 && !r->index && a->call.kind == CVY_GPU_DISPATCH)
		*(volatile uint32_t *)a->lost = 0;
	cvy_lane_bare(&a->call, r);
}

template <typename BODY>
static __global__ void __launch_bounds__(CVY_EP_THREADS) cvy_ep_operation(const __grid_constant__ struct cvy_ep_args a)
{
	CVY_DYNAMIC_SHARED(dynamic);
	__shared__ struct cvy_ep_shared sh;
	struct cvy_ep_names names = cvy_ep_names_at(&a, (int)threadIdx.x); /* on its way while the lane's words come */
	struct cvy_lane_run r;

	cvy_ep_prepare(&a, &r);
	cvy_ep_keep_names(&a, &sh, names);
	if constexpr (CVY_GUARDED)
		cvy_ep_guarded<BODY>(&a, &r, &sh, dynamic);
	else
		cvy_ep_bare<BODY>(&a, &r, &sh, dynamic);
}

/*
 * The send phase alone: no operation, since it has no outcome. It counts in `entered` while it runs, so that no change
 * takes chunks away from under it; found with the gate closed, or of another view, it leaves all to the second phase.
 */
template <typename BODY>
static __global__ void __launch_bounds__(CVY_EP_THREADS)
	cvy_ep_first_phase(const __grid_constant__ struct cvy_ep_args a)
{
	CVY_DYNAMIC_SHARED(dynamic);
	__shared__ struct cvy_ep_shared sh;
	unsigned quanta = CVY_GPU_QUANTA / (unsigned)a.call.lanes;
	struct cvy_ep_names names = cvy_ep_names_at(&a, (int)threadIdx.x);
	struct cvy_lane_run r;
	int closed = 0;

	cvy_ep_prepare(&a, &r);
	cvy_ep_keep_names(&a, &sh, names);
	if (CVY_GUARDED && threadIdx.x == 0)
		closed = atomicAdd((unsigned long long *)&a.call.control->entered, (unsigned long long)quanta) >>
				 CVY_GPU_GATE_SHIFT !=
			 r.watch.open;
	if (!__syncthreads_or(closed))
		BODY::send_first(&a, &r, &sh, dynamic);
	__syncthreads();
	if (CVY_GUARDED && threadIdx.x == 0) {
		__threadfence_system();
		atomicAdd((unsigned long long *)&a.call.control->entered, 0ull - quanta);
	}
}

#endif
