/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine with ranks of other hosts (far.cuh): a step is pushed into memory of this host that stands in for
 * their chunks, and then put, header and rows as one range of each slot.
 *
 * A deadline passes over ranks that have not answered. A rank that was not heard in the step before is pushed to only
 * after the earlier put has left; if that takes long, this step is not sent to it. A reader looks, at the end of a step,
 * whether its source has gone on without it and writes there already. If so, the source is late too, and nothing of it
 * counts.
 */
#ifndef CVY_EP_FAR_CUH
#define CVY_EP_FAR_CUH

#include "ep_body.cuh"

#define CVY_EP_FAR_PATIENCE 4 /* of the deadline, that part is for puts of before */

/*
 * For functions that are called: a copy of @t, and of what it refers to. Variables without an address stay in registers,
 * and the launch's arguments are read in place.
 */
struct cvy_ep_apart {
	struct cvy_ep_turn t;
	struct cvy_lane_run r;
};

static __device__ __forceinline__ void cvy_ep_set_apart(struct cvy_ep_apart *x, const struct cvy_ep_turn *t)
{
	x->t = *t;
	x->r = *t->r;
	x->t.r = &x->r;
}

/*
 * All threads: is the step to be pushed, though @silent have not answered? Not where the gate has closed. Those whose slots are
 * not free get none.
 */
static __device__ __noinline__ int cvy_ep_far_ask(struct cvy_ep_apart *x, uint64_t tag, cvy_ranks silent)
{
	struct cvy_ep_turn *t = &x->t;
	struct cvy_until until = { t->until.began, t->until.most / CVY_EP_FAR_PATIENCE };
	int how;

	how = cvy_far_overtake(&t->a->call, &x->r, silent, tag, &until);
	if (how == 2)
		cvy_ranks_join(&t->sh->unsent, (int)threadIdx.x);
	if (how == 1) /* or this rank might complete what they never got */
		((volatile struct cvy_ep_shared *)t->sh)->stopped = 1;
	if (__syncthreads_or(how == 1))
		return 0;
	return 1;
}

/* Peers that did not answer the step before @step. */
static __device__ __forceinline__ cvy_ranks cvy_ep_unanswered(const struct cvy_ep_turn *t, int step)
{
	return step				  ? cvy_ranks_but(t->peers, t->sources)
	       : t->r->lane.failed & CVY_GPU_LATE ? t->peers
						  : cvy_ranks_none();
}

/* All threads, before a step is pushed: peers of this host that did not answer the one before are told. */
static __device__ __forceinline__ void cvy_ep_overtake(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						       int step)
{
	cvy_ranks silent = cvy_ep_unanswered(t, step);

	if (CVY_GUARDED && cvy_ranks_any(silent))
		cvy_near_overtake(&t->a->call, *t->r, silent, s->tag ^ CVY_GPU_MARK);
}

static __device__ __forceinline__ int cvy_ep_far_may_push(struct cvy_ep_turn *t, const struct cvy_ep_step *s, int step)
{
	cvy_ranks silent = cvy_ep_unanswered(t, step);
	struct cvy_ep_apart x; /* threads of a warp go on with looks counted alike (cvy_wait_lines), too */

	if (!cvy_ranks_any(
		    silent)) /* always so, except after a deadline; the same for all threads: a CTA that does a lane alone writes its words */
		return 1;
	cvy_ep_set_apart(&x, t);
	if (!cvy_ep_far_ask(&x, s->tag ^ CVY_GPU_MARK, silent))
		return 0;
	t->peers = cvy_ranks_but(t->peers, t->sh->unsent);
	return 1;
}

static __device__ __noinline__ void cvy_ep_far_put_apart(const struct cvy_ep_apart *x, const struct cvy_ep_step *s,
							 int first, int end)
{
	const struct cvy_gpu_call *c = &x->t.a->call;
	int rank = (int)threadIdx.x;

#pragma unroll 1
	for (int at = first, next; at < end; at = next) {
		next = (at / CVY_EP_SLOT_LINES + 1) * CVY_EP_SLOT_LINES;
		next = next < end ? next : end;
		cvy_far_put(c, x->r.lane.out, x->t.peers, rank, cvy_ep_line_at(&x->t, s, at),
			    (uint64_t)(next - at) * CVY_EP_LINE_BYTES);
	}
}

/* All threads, when these have been pushed: lines of a step from @first up to @end, thread p for rank p. */
static __device__ __forceinline__ void cvy_ep_far_put_lines(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
							    int first, int end)
{
	struct cvy_ep_apart x;
	struct cvy_ep_step step = *s;

	__syncthreads(); /* the posting thread fences for all */
	if (threadIdx.x >= CVY_GPU_RANKS)
		return;
	cvy_ep_set_apart(&x, t);
	cvy_ep_far_put_apart(&x, &step, first, end);
}

/* All threads, when a step has been pushed: its first @lines lines, thread p for rank p. */
static __device__ __forceinline__ void cvy_ep_far_put(const struct cvy_ep_turn *t, const struct cvy_ep_step *s,
						      int lines)
{
	cvy_ep_far_put_lines(t, s, 0, lines);
}

static __device__ __noinline__ void cvy_ep_far_look_apart(const struct cvy_ep_apart *x, uint64_t tag)
{
	const struct cvy_gpu_call *c = &x->t.a->call;
	int rank = (int)threadIdx.x;

	__threadfence_system();
	__syncthreads();
	if (cvy_far_queue(c, x->r.lane.out, x->t.sources, rank) && cvy_far_overtaken(c, &x->r, rank, tag))
		cvy_ranks_join(&x->t.sh->late, rank);
}

/* All threads, when they have read a step, before a barrier: whose lines may have been of a later one? */
static __device__ __forceinline__ void cvy_ep_far_look(const struct cvy_ep_turn *t, const struct cvy_ep_step *s)
{
	struct cvy_ep_apart x;

	cvy_ep_set_apart(&x, t);
	cvy_ep_far_look_apart(&x, s->tag ^ CVY_GPU_MARK);
}

/* An attempt has ended: contributors that it did not hear to the end. */
static __device__ cvy_ranks cvy_ep_silent(const struct cvy_ep_args *a, const struct cvy_lane_run *r,
					  const struct cvy_ep_shared *sh)
{
	cvy_ranks silent = cvy_ranks_or(cvy_ranks_or(sh->late, sh->left_out), sh->unsent);
	cvy_ranks heard = r->mode == CVY_COMPLETE ? cvy_ranks_none() : cvy_ranks_but(a->size_mask, silent);

	return cvy_ranks_but(cvy_ranks_without(r->lane.mask, a->call.rank), heard);
}

/* One thread: for the next operation of the lane. */
static __device__ void cvy_ep_far_ended(const struct cvy_ep_args *a, const struct cvy_lane_run *r, cvy_ranks silent)
{
	uint32_t now = (r->lane.failed & ~CVY_GPU_LATE) | (cvy_ranks_any(silent) ? CVY_GPU_LATE : 0);

	if (now != r->lane.failed)
		((volatile struct cvy_gpu_lane *)a->call.control->lane)[r->index].failed = now;
}

#endif
