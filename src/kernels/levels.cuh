/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce in two levels, for hosts of equal numbers of contributors: between hosts a rank sends what the flat form
 * sends, divided by the ranks of a host. The words are split into a piece for each rank of a host. The ranks with one
 * index on their hosts are *likes*: they own the same piece, and each of them a part of its rows.
 *
 *	near, round 0	each rank sends every piece to its owner on this host, who folds: the sum of the host
 *	far, round 0	the owner sends each part of that to the like which owns the part, who folds the hosts
 *	far, round 1	that like sends the result to its likes
 *	near, round 1	they send the whole piece to all ranks of their hosts
 *
 * The order of folds: within a host ascending ranks, then ascending hosts. A sum of a host is rounded to the element type.
 * A near rank and a like push into chunks of their own, so both use both rounds' slots, at the same places throughout.
 *
 * Data of one living rank travel through memory of others, which may die. So ranks tell all that they have everything
 * before they end, and end when all have said so (cvy_meet). Then nobody lacks more than such a word, which a holder has;
 * or nobody has ended, and all do it again, by whatever form the next contributors have.
 *
 * Two slots suffice: who has all of a step has heard, through others, of every rank in this step, so all have taken the
 * step before.
 */
#ifndef CVY_LEVELS_CUH
#define CVY_LEVELS_CUH

#include "fold.cuh"
#include "levels.h"

#if CVY_GPU_IS_WIDE
template <typename T> static const void *cvy_levels_kernel(const struct cvy_gpu_call *)
{
	return NULL;
}
#else
/* Out of line: once for an attempt. */
static __device__ __noinline__ struct cvy_levels cvy_levels_here(const struct cvy_gpu_call *c, struct cvy_gpu_lane lane)
{
	return cvy_levels_of(lane.mask, c->rank, CVY_GPU_WIDTH(lane.failed));
}

/* FLAT is the form for all other hosts. */
template <typename T, int ROWS, typename FLAT> struct cvy_body_levels {
	enum { PACKET = CVY_GPU_LINE, ONE = 0, AHEAD = 0, APART = 0 };
	/* Of an average a host gives its mean: its sum may be more than fp16 has. */
	enum { MEANS = std::is_same<T, __half>::value };
	typedef cvy_body_two_shot<T, PACKET, ROWS> pieces;

	/* Of the flat form; run() says how many they are in two levels. */
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return FLAT::steps(c, mask);
	}

	/* Number of the piece that @rank of this host owns. */
	static __device__ __forceinline__ int piece_of(const struct cvy_levels *l, int rank)
	{
		return __popc(l->near & ((1u << rank) - 1));
	}

	/* The first row of a warp, as rows of warps stand in a slot, that like number @i owns. */
	static __device__ __forceinline__ int first_row(const struct cvy_gpu_call *c, const struct cvy_levels *l, int i)
	{
		return (c->rows * (int)(blockDim.x / 32) * i + l->hosts - 1) / l->hosts;
	}

	/* Which like owns this warp's row @i? */
	static __device__ __forceinline__ int owner_of(const struct cvy_gpu_call *c, const struct cvy_levels *l, int i)
	{
		return cvy_row(i) / 32 * l->hosts / (c->rows * (int)(blockDim.x / 32));
	}

	/* Thread p for like p: rows that like number @i owns, as far as there are words, were pushed, and leave. */
	static __device__ __forceinline__ void put(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, uint64_t words,
						   int round, int i)
	{
		const uint64_t all = cvy_packets<PACKET>(c->rows * (int)blockDim.x, s->base, words);
		const uint64_t from = (uint64_t)first_row(c, l, i) * 32, to = (uint64_t)first_row(c, l, i + 1) * 32;

		if (from < all)
			cvy_far_put(c, r->lane.out, l->like, (int)threadIdx.x,
				    cvy_gpu_slot_at(round, r->index, s->count) + from * CVY_GPU_PACKET,
				    ((to < all ? to : all) - from) * CVY_GPU_PACKET);
	}

	/* This thread's like, if it has one to put to: its number. */
	static __device__ __forceinline__ int like_of(const struct cvy_levels *l)
	{
		return threadIdx.x < CVY_GPU_RANKS ? __popc(l->like & ((1u << threadIdx.x) - 1)) : 0;
	}

	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct cvy_here *h,
						    const struct cvy_levels *l, uint64_t words)
	{
		CVY_EACH_PEER(p, l->near, c->rank)
		{
			uint64_t v[ROWS][2];

			pieces::template get<CVY_ANY>(c, piece_of(l, (int)p), words, h, v);
			cvy_push_rows<PACKET, ROWS>(c, r, s, 0, h, (int)p, v);
		}
	}

	/* The sum of the host in the own piece; parts of other likes are pushed to them. 1: stopped. */
	static __device__ __forceinline__ int sum(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s, const struct cvy_here *h,
						  const struct cvy_levels *l, uint64_t words, uint64_t v[ROWS][2])
	{
		const int average = cvy_redop(c->fold) == COVEY_AVG,
			  how = average ? c->fold - COVEY_AVG + COVEY_SUM : c->fold;
		uint64_t own[ROWS][2];
		cvy_fold<T, PACKET> fold[ROWS];

		pieces::template get<CVY_ANY>(c, piece_of(l, c->rank), words, h, own);
		if (cvy_each_source<PACKET, ROWS>(c, r, s, 0, 0, h->rows, l->near, own,
						  [&](int, int first, const uint64_t x[ROWS][2]) {
#pragma unroll
							  for (int i = 0; i < ROWS; i++)
								  fold[i].add(x[i], how, first);
						  }))
			return 1;
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			fold[i].result(v[i], MEANS ? c->fold : how, __popc(l->near));
			if (i < h->rows && owner_of(c, l, i) != l->host)
				cvy_push_to<PACKET>(c, r, s, 0, cvy_row(i), cvy_nth(l->like, owner_of(c, l, i)), v[i]);
		}
		return 0;
	}

	/* The result of the own part, pushed to all likes. 1: stopped. */
	static __device__ __forceinline__ int fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_here *h,
						   const struct cvy_levels *l, uint64_t v[ROWS][2])
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const uint64_t own[1][2] = { { v[i][0], v[i][1] } };
			cvy_fold<T, PACKET> fold;

			if (i >= h->rows || owner_of(c, l, i) != l->host)
				continue;
			if (cvy_each_source<PACKET, 1>(c, r, s, 0, i, 1, l->like, own,
						       [&](int, int first, const uint64_t x[1][2]) {
							       fold.add(x[0], c->fold, first);
						       }))
				return 1;
			fold.result(v[i], c->fold, MEANS ? l->hosts : __popc(r->lane.mask));
			CVY_EACH_PEER(p, l->like, c->rank)
			cvy_push_to<PACKET>(c, r, s, 1, cvy_row(i), (int)p, v[i]);
		}
		return 0;
	}

	/* The results of the other likes' parts; then the piece is whole, and goes to the ranks of this host. 1: stopped. */
	static __device__ __forceinline__ int pass_on(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, const struct cvy_here *h,
						      const struct cvy_levels *l, uint64_t words, uint64_t v[ROWS][2])
	{
		const uint64_t none[1][2] = {};

#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			if (i >= h->rows || owner_of(c, l, i) == l->host)
				continue;
			if (cvy_each_source<PACKET, 1>(c, r, s, 1, i, 1, 1u << cvy_nth(l->like, owner_of(c, l, i)),
						       none, [&](int, int, const uint64_t x[1][2]) {
							       v[i][0] = x[0][0];
							       v[i][1] = x[0][1];
						       }))
				return 1;
		}
		CVY_EACH_PEER(p, l->near, c->rank)
		cvy_push_rows<PACKET, ROWS>(c, r, s, 1, h, (int)p, v);
		pieces::template set<CVY_ANY>(c, piece_of(l, c->rank), words, h, v);
		return 0;
	}

	/* The other pieces. 1: stopped. */
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_here *h,
						     const struct cvy_levels *l, uint64_t words)
	{
		const uint64_t none[ROWS][2] = {};

		return cvy_each_source<PACKET, ROWS>(c, r, s, 1, 0, h->rows, l->near & ~(1u << c->rank), none,
						     [&](int rank, int, const uint64_t v[ROWS][2]) {
							     pieces::template set<CVY_ANY>(c, piece_of(l, rank), words,
											   h, v);
						     });
	}

	/* One step; all threads meet in it. 1: one has stopped. */
	static __device__ __forceinline__ int step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_levels *l, uint64_t words)
	{
		const struct cvy_here h = cvy_here_of<PACKET, ROWS>(c, s, words);
		uint64_t v[ROWS][2];

		push(c, r, s, &h, l, words);
		cvy_pushed<PACKET>(c, r, s, 0, c->rows, words, l->near);
		if (__syncthreads_or(sum(c, r, s, &h, l, words, v)))
			return 1;
		put(c, r, s, l, words, 0, like_of(l));
		if (__syncthreads_or(fold(c, r, s, &h, l, v)))
			return 1;
		put(c, r, s, l, words, 1, l->host);
		if (__syncthreads_or(pass_on(c, r, s, &h, l, words, v)))
			return 1;
		cvy_pushed<PACKET>(c, r, s, 1, c->rows, words, l->near);
		return __syncthreads_or(gather(c, r, s, &h, l, words));
	}

	/* All steps, and the closing word. 1: stopped. */
	static __device__ __noinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run r,
						struct cvy_levels l)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(c->rows * (int)blockDim.x);
		const uint64_t words = pieces::shard_words(c, __popc(l.near));
		const int completes = r.mode == CVY_COMPLETE;
		const struct cvy_step last = cvy_step_of(c, &r, r.steps - 1, tile);

#pragma unroll 1
		for (int i = 0; i < r.steps && !completes; i++) {
			const struct cvy_step s = cvy_step_of(c, &r, i, tile);

			if (step(c, &r, &s, &l, words))
				return 1;
		}
		return cvy_meet(c, &r, &last, 0, completes ? 0 : r.lane.mask, r.lane.mask);
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const struct cvy_levels l = cvy_levels_here(c, r->lane);

		if (l.hosts) {
			r->steps = cvy_gpu_steps(c, pieces::shard_words(c, __popc(l.near)));
			return walk(c, *r, l);
		}
		if constexpr (HOT)
			return FLAT::template run<1>(c, r);
		else
			return cvy_long_way<FLAT>(c, *r);
	}
};

/* In place the flat form is one shot (shape.h). */
template <typename T> static const void *cvy_levels_kernel(const struct cvy_gpu_call *call)
{
	typedef cvy_body_levels<T, CVY_GPU_ROWS, cvy_body_two_shot<T, CVY_GPU_LINE, CVY_GPU_ROWS>> two;
	typedef cvy_body_levels<T, CVY_GPU_ROWS, cvy_body_exchange<T, CVY_GPU_LINE, CVY_GPU_ROWS>> one;

	if (call->kind == CVY_GPU_ALLREDUCE_TWO_SHOT)
		return call->windows ? cvy_kernel<cvy_body_pull<T, two>>() : cvy_kernel<two>();
	return call->windows ? cvy_kernel<cvy_body_pull<T, one>>() : cvy_kernel<one>();
}

#endif

#endif
