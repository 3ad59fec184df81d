/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks come in by an operation of the stream, which takes a number like any other. Contributors pass a barrier. A rank
 * that has passed it adds the newcomers to the words that its next kernel reads, and sends them number and counts. A
 * newcomer's kernel waits for these. If a view change is faster, the host has written both: lanes with this rank, and the
 * operation that it begins with.
 */
#ifndef CVY_ADMIT_CUH
#define CVY_ADMIT_CUH

#include "operate.cuh"

#define CVY_WELCOME_COUNT 1 /* a chunk is of one process, which is welcomed once in an epoch */

struct cvy_body_admit {
	enum { ONE = 1, AHEAD = 0, APART = 0 };

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks)
	{
		return c->steps;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		struct cvy_step s = cvy_step_of(c, r, 0, 0);

		cvy_tell(c, r, &s, 0, cvy_mode<HOT>(r) == CVY_COMPLETE ? cvy_ranks_none() : r->lane.mask);
		return __syncthreads_or(cvy_hear(c, r, &s, 0,
						 cvy_mode<HOT>(r) == CVY_COMPLETE ? cvy_ranks_but(r->lane.mask, r->gone)
										  : r->lane.mask));
	}
};

/* Whose process is still the one that the members let in. */
static __device__ cvy_ranks cvy_newcomers(const struct cvy_gpu_call *c)
{
	const volatile struct cvy_gpu_roll *roll = &c->control->roll;
	cvy_ranks mask = cvy_ranks_and(c->admits, cvy_ranks_read(&roll->members));

	for (int p = 0; p < CVY_GPU_RANKS; p++)
		if (cvy_has(mask, p) && roll->since[p] > c->admit_epoch)
			mask = cvy_ranks_without(mask, p);
	return mask;
}

static __device__ void cvy_welcome(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank, uint64_t next,
				   cvy_ranks mask)
{
	const volatile struct cvy_gpu_lane *lane = c->control->lane;
	uint64_t tag = CVY_GPU_TAG(r->lane.epoch, CVY_WELCOME_COUNT);
	uint8_t *at = cvy_to(c, r, rank) + CVY_GPU_WELCOME;

#pragma unroll 8
	for (int i = 0; i < CVY_GPU_LANES / 2; i++)
		cvy_store_packet(at + i * CVY_GPU_PACKET, lane[2 * i].count | (uint64_t)lane[2 * i + 1].count << 32,
				 tag);
	cvy_store_packet(at + CVY_GPU_WELCOME_OP * CVY_GPU_PACKET, next, tag);
	for (int i = 0; i < CVY_RANKS_LONGS; i++)
		cvy_store_packet(at + (CVY_GPU_WELCOME_MASK + i) * CVY_GPU_PACKET, cvy_ranks_long(mask, i), tag);
	if (cvy_far(r))
		cvy_far_put(c, r->lane.out, mask, rank, CVY_GPU_WELCOME, CVY_GPU_WELCOMES * CVY_GPU_PACKET);
}

template <> struct cvy_after<cvy_body_admit> {
	static __device__ __noinline__ void done(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						 uint64_t op)
	{
		volatile struct cvy_gpu_lane *lane = c->control->lane;
		cvy_ranks come = cvy_ranks_but(cvy_newcomers(c), r->lane.mask), mask = cvy_ranks_or(r->lane.mask, come);

		if (r->mode == CVY_COMPLETE) /* lanes have the host's words; a newcomer may be gone */
			mask = cvy_gpu_era_of(&c->control->roll, op).mask;
		cvy_store_masks(&c->control->status, mask, cvy_ranks_none());
		if (r->mode == CVY_COMPLETE)
			return;
		for (int p = 0; p < CVY_GPU_RANKS; p++)
			if (cvy_has(come, p))
				cvy_welcome(c, r, p, op + 1, mask);
		for (int i = 0; i < CVY_GPU_LANES; i++)
			cvy_ranks_write(&lane[i].mask, mask);
		for (int i = 0; i < CVY_GPU_LANES && cvy_ranks_any(come); i++)
			c->control->admitted.count[i] = lane[i].count;
		if (cvy_ranks_any(come))
			c->control->admitted.era = { op, r->lane.epoch, mask, 0, 0 };
	}
};

/* The words of a welcome, from the lowest contributor, into @got. 1: the gate closed first. */
static __device__ int cvy_await_welcome(const struct cvy_gpu_call *c, struct cvy_lane_run *r, uint64_t *got)
{
	int rank = cvy_ranks_first(r->lane.mask);
	const uint8_t *from = cvy_from(c, r, rank) + CVY_GPU_WELCOME;
	uint64_t tag = CVY_GPU_TAG(r->lane.epoch, CVY_WELCOME_COUNT);

	for (int i = (int)threadIdx.x; i < CVY_GPU_WELCOMES; i += (int)blockDim.x) {
		const uint8_t *at[4] = { from + (size_t)i * CVY_GPU_PACKET, NULL, NULL, NULL };
		const int whom[4] = { rank, CVY_GPU_RANKS, CVY_GPU_RANKS, CVY_GPU_RANKS };
		uint64_t v[4][2];

		if (cvy_wait_pairs(at, whom, 1, tag, v, &r->watch))
			return 1;
		got[i] = v[0][0];
	}
	return 0;
}

/* All threads: the lanes as a welcome has them, and what stands there of the ADMIT. */
static __device__ void cvy_settle(const struct cvy_gpu_call *c, uint32_t epoch, const uint64_t *got)
{
	volatile struct cvy_gpu_lane *lane = c->control->lane;
	struct cvy_gpu_admitted *admitted = &c->control->admitted;
	const cvy_ranks mask = cvy_ranks_of_longs(got + CVY_GPU_WELCOME_MASK);

	for (int i = (int)threadIdx.x; i < CVY_GPU_LANES / 2; i += (int)blockDim.x) {
		lane[2 * i].count = admitted->count[2 * i] = (uint32_t)got[i];
		lane[2 * i + 1].count = admitted->count[2 * i + 1] = (uint32_t)(got[i] >> 32);
		cvy_ranks_write(&lane[2 * i].mask, mask);
		cvy_ranks_write(&lane[2 * i + 1].mask, mask);
	}
	if (threadIdx.x == 0)
		admitted->era = { got[CVY_GPU_WELCOME_OP] - 1, epoch, mask, 0, 0 };
	__syncthreads();
}

/* One thread: the ADMIT has ended, before operation @next, in the era that begins with it. */
static __device__ void cvy_say_joined(struct cvy_gpu_control *control, const struct cvy_lane_run *r, int in,
				      uint64_t next)
{
	struct cvy_gpu_era era = control->admitted.era;

	if (in)
		era = cvy_gpu_era_of(&control->roll, next - 1);
	if (!era.epoch) /* it founds the group */
		era = { next - 1, r->lane.epoch, r->lane.mask, 0, 0 };
	cvy_store_packet((uint8_t *)&control->status, (uint64_t)era.epoch << 32, next - 1);
	cvy_store_masks(&control->status, era.mask, cvy_ranks_none());
}

/* One thread, when this rank is in: `entered` and `finished` go on from the members' number. */
static __device__ void cvy_count_from(struct cvy_gpu_control *control, uint64_t own, uint64_t next)
{
	__threadfence_system();
	atomicAdd((unsigned long long *)&control->entered, (next - own - 1) * (unsigned long long)CVY_GPU_QUANTA);
	atomicAdd((unsigned long long *)&control->finished, (next - own) * (unsigned long long)CVY_GPU_QUANTA);
}

/* 1: what waited is over, for good. All threads. */
static __device__ int cvy_join_parks(const struct cvy_gpu_call *c)
{
	__shared__ struct cvy_gpu_verdict verdict;

	if (threadIdx.x == 0) {
		cvy_park(c->control, CVY_GPU_QUANTA, &verdict);
		if (verdict.ended)
			c->control->status.status = verdict.ended;
	}
	__syncthreads();
	return verdict.ended != 0;
}

/* A newcomer's first kernel. One CTA. */
static __global__ void __launch_bounds__(CVY_GPU_THREADS) cvy_join(const __grid_constant__ struct cvy_gpu_call call)
{
	struct cvy_gpu_control *control = call.control;
	__shared__ uint64_t got[CVY_GPU_WELCOMES];
	struct cvy_lane_run r = {};
	unsigned gate = 0;
	uint64_t entered = 0, own;
	int in, stopped;

	cvy_wait_for_stream();
	r.lane = cvy_lane_words(control, 0);
	if (threadIdx.x == 0)
		entered = atomicAdd((unsigned long long *)&control->entered, (unsigned long long)CVY_GPU_QUANTA);
	gate = (unsigned)(entered >> CVY_GPU_GATE_SHIFT);
	own = (entered & CVY_GPU_COUNT_MASK) / CVY_GPU_QUANTA;
	r.watch.control = control;
	r.watch.mailbox = call.mailbox;
	r.watch.late = call.late_cycles;
	for (int first = 1;; first = 0) {
		in = cvy_has(r.lane.mask, call.rank);
		r.watch.open = CVY_GPU_GATE_OPEN(r.lane.epoch);
		stopped = __syncthreads_or(threadIdx.x == 0 && first && gate != r.watch.open);
		if (!stopped && !in)
			stopped = cvy_ranks_any(r.lane.mask) ? cvy_await_welcome(&call, &r, got) : 1;
		if (threadIdx.x == 0 && !first)
			stopped |= cvy_gate(control) != r.watch.open;
		if (!__syncthreads_or(stopped))
			break;
		if (cvy_join_parks(&call)) {
			if (threadIdx.x == 0)
				cvy_add_word(&control->finished, CVY_GPU_QUANTA);
			return;
		}
		r.lane = cvy_lane_words(control, 0);
	}
	if (!in)
		cvy_settle(&call, r.lane.epoch, got);
	if (threadIdx.x == 0) {
		uint64_t next = in ? ((volatile struct cvy_gpu_roll *)&control->roll)->begin : got[CVY_GPU_WELCOME_OP];

		cvy_say_joined(control, &r, in, next);
		cvy_count_from(control, own, next);
	}
}

#endif
