/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations in two levels, for hosts of equal numbers of contributors: between hosts a rank sends what the flat form sends,
 * divided by the ranks of a host. The ranks with one index on their hosts are *likes*. Each rank has a *column*: the words
 * of its index on all hosts. Rows of a column are owned by the likes (level_rows.cuh).
 *
 *	near, round 0	each rank sends the rows of every column to the rank of this host that has it, who folds: the
 *			sum of the host
 *	far, round 0	that rank sends each row to the like which owns it, who folds the hosts
 *	far, round 1	the owner sends the row to its likes
 *	near, round 1	they send the whole column to all ranks of their hosts
 *
 * Allreduce takes all four hops, reduce_scatter the first two, allgather the last two, broadcast the last two after one
 * from the root to the ranks of its host.
 *
 * The order of folds: within a host ascending ranks, then ascending hosts. A sum of a host is rounded to the element type.
 * A near rank and a like push into chunks of their own, so both use both rounds' slots, at the same places throughout.
 *
 * Data of one living rank travel through memory of others, which may die. So ranks tell all that they have everything
 * before they end, and end when all have said so (cvy_meet). Then nobody lacks anything, and no holder is asked; or nobody
 * has ended, and all do it again, by whatever form the next contributors have.
 *
 * Two slots suffice: who has all of a step has heard, through others, of every rank in this step, so all have taken the
 * step before. In a broadcast ranks hear of the root's host alone, so those that push to each other also say it.
 */
#ifndef CVY_LEVELS_CUH
#define CVY_LEVELS_CUH

#include "level_rows.cuh"

/* Row @i of all likes, folded as one of @n is; @v has the own words. Out of line, as the next one: once for all rows. 1: stopped. */
template <typename T>
static __device__ __noinline__ int cvy_level_fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s, uint32_t likes, int i, int n, uint64_t v[2])
{
	const uint64_t own[1][2] = { { v[0], v[1] } };
	cvy_fold<T, CVY_GPU_LINE> fold;

	if (cvy_each_source<CVY_GPU_LINE, 1>(c, r, s, 0, i, 1, likes, own, [&](int, int first, const uint64_t x[1][2]) {
		    fold.add(x[0], c->fold, first);
	    }))
		return 1;
	fold.result(v, c->fold, n);
	return 0;
}

/* Row @i of its owner, rank @of. 1: stopped. */
static __device__ __noinline__ int cvy_level_take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s, int of, int i, uint64_t v[2])
{
	const uint64_t none[1][2] = {};

	return cvy_each_source<CVY_GPU_LINE, 1>(c, r, s, 1, i, 1, 1u << of, none,
						[&](int, int, const uint64_t x[1][2]) {
							v[0] = x[0][0];
							v[1] = x[0][1];
						});
}

/* The hops. T: of what is folded; MAP: which words the rows of this step bear. */
template <typename T, int ROWS, typename MAP> struct cvy_level_hops {
	enum { PACKET = CVY_GPU_LINE };
	/* Of an average a host gives its mean: its sum may be more than fp16 has. */
	enum { MEANS = std::is_same<T, __half>::value };

	/* All threads: what was pushed to ranks of this host leaves, if a queue leads to them. */
	static __device__ __forceinline__ void near_pushed(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							   const struct cvy_step *s, const struct cvy_levels *l,
							   const MAP &m, int round)
	{
		if (cvy_far(r))
			cvy_far_push(c, r->lane.out, l->near, cvy_gpu_slot_at(round, r->index, s->count),
				     (uint64_t)m.all(c, s, l) * CVY_LEVEL_ROW_BYTES);
	}

	/* Thread p for like p: the rows of like number @i were pushed, and leave. */
	static __device__ __forceinline__ void far_put(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       const struct cvy_step *s, const struct cvy_levels *l,
						       const MAP &m, int round, int i)
	{
		const struct cvy_level_part part = m.part(c, s, l, i);

		if (part.from < part.to)
			cvy_far_put(c, r->lane.out, l->like, (int)threadIdx.x,
				    cvy_gpu_slot_at(round, r->index, s->count) +
					    (uint64_t)part.from * CVY_LEVEL_ROW_BYTES,
				    (uint64_t)(part.to - part.from) * CVY_LEVEL_ROW_BYTES);
	}

	/* This thread's like, if it has one to put to: its number. */
	static __device__ __forceinline__ int like_of(const struct cvy_levels *l)
	{
		return threadIdx.x < CVY_GPU_RANKS ? __popc(l->like & ((1u << threadIdx.x) - 1)) : 0;
	}

	/* Has row @i anything of this step, and is this rank its owner? */
	static __device__ __forceinline__ int owns(const struct cvy_gpu_call *c, const struct cvy_levels *l,
						   const MAP &m, int i)
	{
		return i < m.here.rows && m.owner(c, l, i) == l->host;
	}

	/* Every column, to the rank of this host that has it. */
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct cvy_levels *l, const MAP &m)
	{
		CVY_EACH_PEER(p, l->near, c->rank)
		{
			uint64_t v[ROWS][2];

			m.get(c, l, (int)p, v);
			cvy_push_rows<PACKET, ROWS>(c, r, s, 0, &m.here, (int)p, v);
		}
	}

	/* The sum of the host in the own column; rows of other likes are pushed to them. 1: stopped. */
	static __device__ __forceinline__ int sum(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s, const struct cvy_levels *l, const MAP &m,
						  uint64_t v[ROWS][2])
	{
		const int average = cvy_redop(c->fold) == COVEY_AVG,
			  how = average ? c->fold - COVEY_AVG + COVEY_SUM : c->fold;
		uint64_t own[ROWS][2];
		cvy_fold<T, PACKET> fold[ROWS];

		m.get(c, l, c->rank, own);
		if (cvy_each_source<PACKET, ROWS>(c, r, s, 0, 0, m.here.rows, l->near, own,
						  [&](int, int first, const uint64_t x[ROWS][2]) {
#pragma unroll
							  for (int i = 0; i < ROWS; i++)
								  fold[i].add(x[i], how, first);
						  }))
			return 1;
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			fold[i].result(v[i], MEANS ? c->fold : how, __popc(l->near));
			if (i < m.here.rows && m.owner(c, l, i) != l->host)
				cvy_push_to<PACKET>(c, r, s, 0, cvy_row(i), cvy_nth(l->like, m.owner(c, l, i)), v[i]);
		}
		return 0;
	}

	static __device__ __forceinline__ void share_row(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							 const struct cvy_step *s, const struct cvy_levels *l, int i,
							 const uint64_t v[2])
	{
		CVY_EACH_PEER(p, l->like, c->rank)
		cvy_push_to<PACKET>(c, r, s, 1, cvy_row(i), (int)p, v);
	}

	/* The own rows, pushed to all likes. */
	static __device__ __forceinline__ void share(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_levels *l, const MAP &m,
						     const uint64_t v[ROWS][2])
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			if (owns(c, l, m, i))
				share_row(c, r, s, l, i, v[i]);
	}

	/* The own rows, of all hosts. SHARES: each is pushed to all likes when it is made. 1: stopped. */
	template <int SHARES>
	static __device__ __forceinline__ int fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, const MAP &m,
						   uint64_t v[ROWS][2])
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			if (!owns(c, l, m, i))
				continue;
			if (cvy_level_fold<T>(c, r, s, l->like, i, MEANS ? l->hosts : __popc(r->lane.mask), v[i]))
				return 1;
			if (SHARES)
				share_row(c, r, s, l, i, v[i]);
		}
		return 0;
	}

	/* Rows of the other likes; then the column is whole, and goes to the ranks of this host. 1: stopped. */
	static __device__ __forceinline__ int pass_on(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, const struct cvy_levels *l,
						      const MAP &m, uint64_t v[ROWS][2])
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			if (i < m.here.rows && m.owner(c, l, i) != l->host &&
			    cvy_level_take(c, r, s, cvy_nth(l->like, m.owner(c, l, i)), i, v[i]))
				return 1;
		CVY_EACH_PEER(p, l->near, c->rank)
		cvy_push_rows<PACKET, ROWS>(c, r, s, 1, &m.here, (int)p, v);
		m.set(c, l, c->rank, v);
		return 0;
	}

	/* The other columns. 1: stopped. */
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_levels *l, const MAP &m)
	{
		const uint64_t none[ROWS][2] = {};

		return cvy_each_source<PACKET, ROWS>(c, r, s, 1, 0, m.here.rows, l->near & ~(1u << c->rank), none,
						     [&](int rank, int, const uint64_t v[ROWS][2]) {
							     m.set(c, l, rank, v);
						     });
	}

	/* All threads: the first two hops; @v has the own rows then. 1: stopped. */
	template <int SHARES>
	static __device__ __forceinline__ int reduce(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_levels *l, const MAP &m,
						     uint64_t v[ROWS][2])
	{
		push(c, r, s, l, m);
		near_pushed(c, r, s, l, m, 0);
		if (__syncthreads_or(sum(c, r, s, l, m, v)))
			return 1;
		far_put(c, r, s, l, m, 0, like_of(l));
		return __syncthreads_or(fold<SHARES>(c, r, s, l, m, v));
	}

	/* All threads: the last two; own rows @v were pushed to the likes, and all threads have met. 1: stopped. */
	static __device__ __forceinline__ int spread(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_levels *l, const MAP &m,
						     uint64_t v[ROWS][2])
	{
		far_put(c, r, s, l, m, 1, l->host);
		if (__syncthreads_or(pass_on(c, r, s, l, m, v)))
			return 1;
		near_pushed(c, r, s, l, m, 1);
		return __syncthreads_or(gather(c, r, s, l, m));
	}
};

/* Out of line: once for an attempt. */
static __device__ __noinline__ struct cvy_levels cvy_levels_here(const struct cvy_gpu_call *c, struct cvy_gpu_lane lane)
{
	return cvy_levels_of(lane.mask, c->rank, CVY_GPU_WIDTH(lane.failed));
}

/* WAY is an operation; FLAT its form for all other hosts. */
template <typename WAY, typename FLAT> struct cvy_body_levels {
	enum { ONE = 0, AHEAD = 0, APART = 0 };

	/* Of the flat form; run() says how many they are in two levels. */
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return FLAT::steps(c, mask);
	}

	/* All steps, and the closing word. 1: stopped. */
	static __device__ __noinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run r,
						struct cvy_levels l)
	{
		const uint64_t tile = WAY::map::tile(c, &l);
		const struct cvy_step last = cvy_step_of(c, &r, r.steps - 1, tile);

#pragma unroll 1
		for (int i = 0; i < r.steps; i++) {
			const struct cvy_step s = cvy_step_of(c, &r, i, tile);
			typename WAY::map m;

			m.begin(c, &r, &s, &l);
			if (WAY::step(c, &r, &s, &l, m))
				return 1;
		}
		return cvy_meet(c, &r, &last, 1, r.lane.mask, r.lane.mask);
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const struct cvy_levels l = cvy_levels_here(c, r->lane);

		if (l.hosts && WAY::fits(c, r, &l)) {
			r->steps = WAY::map::steps(c, &l);
			r->settled = 1;
			return r->mode == CVY_COMPLETE ? 0 : walk(c, *r, l);
		}
		return cvy_long_way<FLAT>(c, *r);
	}
};

#endif
