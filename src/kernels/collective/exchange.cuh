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
		OTHER = std::is_same<T, cvy_other>::value,
		ONE = PACKET == CVY_GPU_PAIR, /* one step, one packet a thread */
		AHEAD = ROWS == 1 && !OTHER,  /* own words are read before those of the lane are here */
		APART = 1
	};
	typedef typename std::conditional<FOLDS, T, uint64_t>::type element;

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks)
	{
		return ONE ? 1 : c->steps;
	}

	static __device__ __forceinline__ uint64_t words(const struct cvy_gpu_call *c)
	{
		return (c->bytes + 7) / 8;
	}

	/* The words for @rank; of a rank past the buffers there are none. */
	template <int WORDS>
	static __device__ __forceinline__ void block(const struct cvy_gpu_call *c, int rank, const struct cvy_here *h,
						     uint64_t v[ROWS][2])
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			v[i][0] = v[i][1] = 0;
		if (WORDS || rank < c->size)
			cvy_get_rows<PACKET, ROWS, WORDS>(c->send + (size_t)rank * c->send_stride, h, c->bytes, v);
	}

	/* Own words, which those in place keep while they push. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ void own_block(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							 const struct cvy_step *s, const struct cvy_here *h,
							 uint64_t own[ROWS][2])
	{
		const int saved = FOLDS && cvy_from_saved<HOT>(c, r);

		if (!saved)
			block<WORDS>(c, c->rank, h, own);
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			if (saved && i < h->rows)
				cvy_load_packet(cvy_saved(c, r, s, cvy_row(i)), own[i]);
			else if (CVY_GUARDED && FOLDS && c->in_place && cvy_mode<HOT>(r) != CVY_COMPLETE && i < h->rows)
				cvy_store_packet(cvy_saved(c, r, s, cvy_row(i)), own[i][0], own[i][1]);
	}

	template <int WORDS>
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct cvy_here *h,
						    const uint64_t own[ROWS][2])
	{
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		if (c->send_stride) {
			uint64_t v[ROWS][2];

			block<WORDS>(c, (int)p, h, v);
			cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 0, h, (int)p, v);
		} else {
			cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 0, h, (int)p, own);
		}
	}

	/* Of what is pushed in the next step, which is whole. */
	static __device__ __forceinline__ void fetch(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_here *h, uint64_t tile)
	{
		const uint64_t ahead = (uint64_t)c->lanes * tile;

		if (!c->send_stride)
			cvy_fetch_rows<PACKET, ROWS>(c->send, h, ahead);
		else
#pragma unroll 1
			for (cvy_ranks left = r->lane.mask; cvy_ranks_any(left); left = cvy_ranks_rest(left))
				cvy_fetch_rows<PACKET, ROWS>(c->send + (size_t)cvy_ranks_first(left) * c->send_stride,
							     h, ahead);
	}

	template <int WORDS>
	static __device__ __forceinline__ void place(const struct cvy_gpu_call *c, int rank, const struct cvy_here *h,
						     const uint64_t v[ROWS][2])
	{
		if (WORDS || rank < c->size)
			cvy_set_rows<PACKET, ROWS, WORDS>(c->recv + (size_t)rank * c->bytes, h, c->bytes, v);
	}

	/* The packets of everyone: folded or placed. 1: stopped. */
	template <int WORDS>
	static __device__ __forceinline__ int take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_here *h,
						   cvy_ranks sources, const uint64_t own[ROWS][2])
	{
		if (FOLDS) {
			const int how = WORDS ? COVEY_SUM : c->fold;
			cvy_fold<element, PACKET> fold[ROWS];
			uint64_t out[ROWS][2];

			if (cvy_each_source<PACKET, ROWS, WORDS>(c, r, s, 0, 0, h->rows, sources, own,
								 [&](int, int first, const uint64_t v[ROWS][2]) {
#pragma unroll
									 for (int i = 0; i < ROWS; i++)
										 fold[i].add(v[i], how, first);
								 }))
				return 1;
#pragma unroll
			for (int i = 0; i < ROWS; i++)
				fold[i].result(out[i], how, cvy_ranks_count(r->lane.mask));
			if (c->root < 0 || c->root == c->rank)
				cvy_set_rows<PACKET, ROWS, WORDS>(c->recv, h, c->bytes, out);
			return 0;
		}
		place<WORDS>(c, c->rank, h, own); /* before the wait, over which they would be kept */
		if (cvy_each_source<PACKET, ROWS, WORDS>(c, r, s, 0, 0, h->rows, cvy_ranks_without(sources, c->rank),
							 own, [&](int rank, int, const uint64_t v[ROWS][2]) {
								 place<WORDS>(c, rank, h, v);
							 }))
			return 1;
		if (!WORDS && cvy_ranks_any(cvy_ranks_but(cvy_blocks(c), sources)))
			cvy_zero_rows<PACKET>(c, cvy_ranks_but(cvy_ranks_all(), sources), *h);
		return 0;
	}

	static __device__ __forceinline__ void ahead(const struct cvy_gpu_call *c, uint64_t *own)
	{
		cvy_quick_ahead<PACKET, PARTS>(c, own);
	}

	/* The one step of one packet, of own words @mine. 1: stopped. */
	static __device__ __forceinline__ int quick(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *mine)
	{
		const struct cvy_quick<PACKET> q = cvy_quick_of<PACKET, PARTS>(c, r);
		cvy_acc<element> acc[q.WORDS];
		uint64_t own[q.WORDS];

		if (!q.rows)
			return 0;
#pragma unroll
		for (int i = 0; i < q.WORDS; i++)
			own[i] = mine[i];
		if (CVY_GUARDED && FOLDS && c->in_place)
			cvy_store_packet(c->saved + q.slot, own[0], q.WORDS == 1 ? 0 : own[q.WORDS - 1]);
		cvy_quick_push<PACKET, PARTS>(c, r, &q, cvy_ranks_without(r->lane.mask, c->rank), own);
		if (cvy_quick_take<PACKET>(c, r, &q, r->lane.mask, own, [&](int rank, int first, const uint64_t *v) {
			    if (!FOLDS && rank < c->size)
				    cvy_quick_set<PACKET, PARTS>(c, c->recv + (uint64_t)(uint32_t)rank * c->bytes, &q,
								 v);
#pragma unroll
			    for (int i = 0; FOLDS && i < q.WORDS; i++)
				    if (first)
					    acc[i].first(v[i]);
				    else
					    acc[i].template fold_as<COVEY_SUM>(v[i]);
		    }))
			return 1;
		if (FOLDS && (c->root < 0 || c->root == c->rank)) {
#pragma unroll
			for (int i = 0; i < q.WORDS; i++)
				own[i] = acc[i].result();
			cvy_quick_set<PACKET, PARTS>(c, c->recv, &q, own);
		}
		if (!FOLDS && cvy_ranks_any(cvy_ranks_but(cvy_blocks(c), r->lane.mask)))
			cvy_zero_blocks<PACKET>(c, cvy_ranks_but(cvy_ranks_all(), r->lane.mask), q.word, q.n);
		return 0;
	}

	/* All steps of a lane, of blocks of @absent. */
	static __device__ __noinline__ void zero_steps(const struct cvy_gpu_call *c, struct cvy_lane_run r,
						       uint64_t tile, cvy_ranks absent)
	{
#pragma unroll 1
		for (int step = 0; step < r.steps; step++) {
			struct cvy_step s = cvy_step_of(c, &r, step, tile);

			cvy_zero_rows<PACKET>(c, absent, cvy_here_of<PACKET, ROWS>(c, &s, words(c)));
		}
	}

	/* Data that came from a source before it was removed are not kept either: its block as a whole is not valid. */
	static __device__ __forceinline__ void zero_earlier(const struct cvy_gpu_call *c, struct cvy_lane_run r,
							    uint64_t tile, cvy_ranks absent)
	{
#pragma unroll 1
		for (r.index = 0; r.index < c->lanes; r.index++)
			zero_steps(c, r, tile, absent);
	}

	/* Have all contributors a block? */
	static __device__ __forceinline__ int even(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return (FOLDS && !c->send_stride) || !cvy_ranks_any(cvy_ranks_but(mask, cvy_blocks(c)));
	}

	/* Steps from @from to before @to. @stopped: this thread has, before them. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int from,
						   int to, int stopped)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		cvy_ranks sources = cvy_sources<HOT>(c, r);
		const int thin = !ONE && WORDS < CVY_FULL && cvy_mode<HOT>(r) != CVY_COMPLETE &&
				 cvy_ends_thin(c, r, words(c), tile);

#pragma unroll 1
		for (int step = from; step < to; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int says = thin && step + 1 == r->steps;
			const struct cvy_here here = cvy_here_of<PACKET, ROWS, WORDS>(c, &s, words(c));
			uint64_t own[ROWS][2];

			if (says && cvy_say_thin(c, r, &s, stopped))
				return 1;
			if (thin && stopped) /* all threads meet before the last step */
				continue;
			if (stopped)
				return 1;
			own_block<HOT, WORDS>(c, r, &s, &here, own);
			if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
				push<WORDS>(c, r, &s, &here, own);
				if (!WORDS)
					cvy_pushed<PACKET>(c, r, &s, 0, cvy_rows<ROWS>(c), words(c), r->lane.mask);
			}
			if (WORDS == CVY_WHOLE && step + 1 < to)
				fetch(c, r, &here, tile);
			stopped = take<WORDS>(c, r, &s, &here, sources, own);
			if (says && !stopped)
				stopped = cvy_hear(c, r, &s, 0, sources);
			if (!WORDS)
				stopped = cvy_all_stop(r, stopped);
		}
		return stopped;
	}

	/* A first attempt at plain words. 1: stopped. */
	static __device__ __forceinline__ int plain(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const int full = cvy_full_steps(c, r, words(c), tile);
		int stopped = cvy_has_all_rows<ROWS>(c) ? walk<1, CVY_WHOLE>(c, r, 0, full, 0)
							: walk<1, CVY_FULL>(c, r, 0, full, 0);

		if (full < r->steps)
			stopped = walk<1, CVY_PLAIN>(c, r, full, r->steps, stopped);
		if (!FOLDS &&
		    cvy_ranks_any(cvy_ranks_but(
			    cvy_blocks(c), r->lane.mask))) /* stopped, too: completing handles the last step alone */
			zero_steps(c, *r, tile, cvy_ranks_but(cvy_ranks_all(), r->lane.mask));
		return stopped;
	}

	/* Any attempt at any words. */
	static __device__ __forceinline__ int any(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		cvy_ranks absent = cvy_ranks_but(r->lane.mask, cvy_sources<0>(c, r));

		if (walk<0, CVY_ANY>(c, r, ONE ? 0 : cvy_first_step(r), ONE ? 1 : r->steps, 0))
			return 1;
		if (!FOLDS && cvy_ranks_any(absent))
			zero_earlier(c, *r, tile, absent);
		return 0;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		if constexpr (!HOT)
			return any(c, r);
		else if constexpr (OTHER)
			return cvy_long_way<cvy_body_exchange>(c, *r);
		else if (!AHEAD && cvy_is_plain(c, r) && even(c, r->lane.mask)) /* else first() has seen to it */
			return plain(c, r);
		else
			return cvy_long_way<cvy_body_exchange>(c, *r);
	}

	static __device__ __forceinline__ int first(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *own)
	{
		return cvy_quick_does<PARTS>(c, r) ? quick(c, r, own) : run<1>(c, r);
	}
};

#endif
