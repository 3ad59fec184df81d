/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everyone hears of everyone in every step: allreduce and reduce (one shot), reduce_scatter, allgather, alltoall. They
 * differ in two things: is a block sent to each rank or the same to all (c->send_stride), and are the blocks that come
 * folded (T) or placed (T is void). Having all of step k shows that all have done step k - 1, so two slots suffice and
 * nothing else is awaited.
 */
#ifndef CVY_EXCHANGE_CUH
#define CVY_EXCHANGE_CUH

#include <type_traits>

#include "quick.cuh"

template <typename T, int PACKET, int ROWS, int PARTS = 0> struct cvy_body_exchange {
	enum {
		FOLDS = !std::is_void<T>::value,
		ONE = PACKET == CVY_GPU_PAIR && ROWS == 1 /* one step, one packet a thread */
	};
	typedef typename std::conditional<FOLDS, T, uint64_t>::type element;

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t)
	{
		return ONE ? 1 : c->steps;
	}

	static __device__ __forceinline__ uint64_t words(const struct cvy_gpu_call *c)
	{
		return (c->bytes + 7) / 8;
	}

	/* The words for @rank; of a rank past the buffers there are none. */
	static __device__ __forceinline__ void block(const struct cvy_gpu_call *c, int rank, uint64_t word,
						     uint64_t v[2])
	{
		if (rank < c->size) {
			cvy_get<PACKET>(c->send + (size_t)rank * c->send_stride, word, c->bytes, v);
		} else {
			v[0] = 0;
			v[1] = 0;
		}
	}

	template <int HOT>
	static __device__ __forceinline__ void own_block(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							 const struct cvy_step *s, int u, uint64_t word, uint64_t v[2])
	{
		if (FOLDS && cvy_from_saved<HOT>(c, r))
			cvy_load_packet(cvy_saved(c, r, s, u), v);
		else
			block(c, c->rank, word, v);
	}

	template <int HOT>
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, uint64_t own[ROWS][2])
	{
		uint64_t v[ROWS][2], word;
		int u, nw;

#pragma unroll
		for (int row = 0; row < ROWS; row++) {
			if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words(c), &u, &word, &nw))
				break;
			own_block<HOT>(c, r, s, u, word, own[row]);
			if (CVY_GUARDED && FOLDS && c->in_place)
				cvy_store_packet(cvy_saved(c, r, s, u), own[row][0], own[row][1]);
		}
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words(c), &u, &word, &nw))
					break;
				v[row][0] = own[row][0];
				v[row][1] = own[row][1];
				if (c->send_stride)
					block(c, (int)p, word, v[row]);
			}
#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words(c), &u, &word, &nw))
					break;
				cvy_push_to<PACKET>(c, r, s, 0, u, (int)p, v[row]);
			}
		}
	}

	/* One packet of everyone: folded or placed. 1: stopped. */
	static __device__ __forceinline__ int take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, int u, uint64_t word, int nw,
						   uint32_t sources, const uint64_t own[2])
	{
		if (FOLDS) {
			cvy_fold<element, PACKET> fold;
			uint64_t out[2];

			if (cvy_each_source<PACKET>(c, r, s, 0, u, sources, own,
						    [&](int, const uint64_t *v) { fold.add(v, c->redop); }))
				return 1;
			fold.result(out, c->redop, __popc(r->lane.mask));
			if (c->kind != CVY_GPU_REDUCE || c->root == c->rank)
				cvy_set<PACKET>(c->recv, word, nw, c->bytes, out);
			return 0;
		}
		if (cvy_each_source<PACKET>(c, r, s, 0, u, sources, own, [&](int rank, const uint64_t *v) {
			    if (rank < c->size)
				    cvy_set<PACKET>(c->recv + (size_t)rank * c->bytes, word, nw, c->bytes, v);
		    }))
			return 1;
		if (cvy_blocks(c) & ~sources)
			cvy_zero_blocks<PACKET>(c, ~sources, word, nw);
		return 0;
	}

	/* The one step of one packet. 1: stopped. */
	static __device__ __forceinline__ int quick(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		struct cvy_quick q = cvy_quick_of(r);
		cvy_acc<element> acc;
		uint64_t own;

		if (!cvy_quick_has<PARTS>(c, &q))
			return 0;
		own = cvy_quick_get<PARTS>(c, &q, c->rank);
		if (CVY_GUARDED && FOLDS && c->in_place)
			cvy_store_packet(c->saved + q.slot, own, 0);
		cvy_quick_push<PARTS>(c, r, &q, r->lane.mask & ~(1u << c->rank), own);
		if (cvy_quick_take(c, r, &q, r->lane.mask, own, [&](int rank, int first, uint64_t v) {
			    if (!FOLDS && rank < c->size)
				    cvy_quick_set<PARTS>(c, c->recv + (uint64_t)(uint32_t)rank * c->bytes, &q, v);
			    if (FOLDS && first)
				    acc.first(v);
			    else if (FOLDS)
				    acc.template fold_as<COVEY_SUM>(v);
		    }))
			return 1;
		if (FOLDS && (c->kind != CVY_GPU_REDUCE || c->root == c->rank))
			cvy_quick_set<PARTS>(c, c->recv, &q, acc.result());
		if (!FOLDS && (cvy_blocks(c) & ~r->lane.mask))
			cvy_zero_blocks<PACKET>(c, ~r->lane.mask, q.word, 1);
		return 0;
	}

	template <int HOT>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		uint32_t sources = cvy_sources<HOT>(c, r);
		const int thin = !ONE && cvy_mode<HOT>(r) != CVY_COMPLETE && cvy_ends_thin(c, r, words(c), tile);
		int stopped = 0;

#pragma unroll 1
		for (int step = ONE ? 0 : cvy_first_step<HOT>(r); step < (ONE ? 1 : r->steps); step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int says = thin && step + 1 == r->steps;
			uint64_t own[ROWS][2], word;
			int u, nw;

			if (says && cvy_say_thin(c, r, &s, stopped))
				return 1;
			if (thin && stopped) /* all threads meet before the last step */
				continue;
			if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
				push<HOT>(c, r, &s, own);
				cvy_pushed<PACKET>(c, r, &s, 0, cvy_rows<ROWS>(c), words(c), r->lane.mask);
			}
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c) && !stopped; row++) {
				if (!cvy_packet<PACKET>(&s, row, words(c), &u, &word, &nw))
					break;
				own_block<HOT>(c, r, &s, u, word, own[0]);
				stopped = take(c, r, &s, u, word, nw, sources, own[0]);
			}
			if (says && !stopped)
				stopped = cvy_hear(c, r, &s, 0, sources);
			stopped = cvy_all_stop(r, stopped);
			if (stopped && !thin)
				return 1;
		}
		if (stopped)
			return 1;
		if (!FOLDS && sources != r->lane.mask)
			zero_earlier(c, *r, tile, r->lane.mask & ~sources);
		return 0;
	}

	/* What came of a source before it was removed is not kept either: its block is not valid as a whole. */
	static __device__ __noinline__ void zero_earlier(const struct cvy_gpu_call *c, struct cvy_lane_run r,
							 uint64_t tile, uint32_t absent)
	{
		for (int lane = 0; lane < c->lanes; lane++) {
			struct cvy_lane_run other = r;

			other.index = lane;
			for (int step = 0; step < r.steps; step++) {
				struct cvy_step s = cvy_step_of(c, &other, step, tile);
				uint64_t word;
				int u, nw;

#pragma unroll 1
				for (int row = 0; row < cvy_rows<ROWS>(c); row++)
					if (cvy_packet<PACKET>(&s, row, words(c), &u, &word, &nw))
						cvy_zero_blocks<PACKET>(c, absent, word, nw);
			}
		}
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		if constexpr (ONE && HOT)
			return c->plain && !cvy_far(r) ? quick(c, r) : cvy_long_way<cvy_body_exchange>(c, *r);
		else
			return walk<HOT>(c, r);
	}
};

#endif
