/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast in two hops: the words are split into a piece for each contributor but the root. The root sends each its own
 * piece (hop one), and that rank passes it on to the others (hop two). The root's link carries every byte once, not once
 * for each rank. With two contributors, or without the root, it is one hop (one_way.cuh).
 *
 * Ranks signal each other once a step, as there: so the root pushes step k + 1 while the others pass step k on, and no slot
 * is written before it was read. In the last step pieces are passed on to the root, too, which makes it a holder. A rank
 * that completes the operation has, in its slots, the last step of all pieces as each rank passed it on. If a rank dies in
 * hop two, any holder has what is lacking of it; if it dies in hop one, nobody is done.
 */
#ifndef CVY_TWO_HOP_CUH
#define CVY_TWO_HOP_CUH

#include "one_way.cuh"

/* In lines: pairs are for blocks that are too small for this (shape.h). */
template <int ROWS> struct cvy_body_two_hop {
	/* One row a step in two hops: the shorter the steps, the sooner the second hop begins (BENCHMARKS.md). */
	enum { PACKET = CVY_GPU_LINE, HOP = 1 };
	typedef cvy_body_one_way<PACKET, ROWS> one_hop;
	enum { ONE = 0, AHEAD = one_hop::AHEAD, APART = 1 };

	static __device__ __forceinline__ void ahead(const struct cvy_gpu_call *c, uint64_t *own)
	{
		one_hop::ahead(c, own);
	}

	/* Contributors that a piece is for. */
	static __device__ __forceinline__ cvy_ranks owners(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return cvy_ranks_without(mask, c->root);
	}

	static __device__ __forceinline__ int by_two(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return cvy_has(mask, c->root) && cvy_ranks_count(mask) > 2;
	}

	/* An even number: pieces begin at whole packets. All are as long; past the end of the last are zeros that nobody keeps. */
	static __device__ __forceinline__ uint64_t piece_words(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		const uint64_t n = (uint64_t)cvy_ranks_count(owners(c, mask));

		return (((c->bytes + 7) / 8 + n - 1) / n + 1) & ~(uint64_t)1;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		const uint64_t all = cvy_gpu_tile_words(PACKET, HOP * c->threads) * (uint64_t)c->lanes;

		return by_two(c, mask) ? (int)((piece_words(c, mask) + all - 1) / all) : c->steps;
	}

	/* Where the piece of @rank is in a buffer. *bytes: how much of it the buffer has. */
	static __device__ __forceinline__ uint64_t piece_of(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							    int rank, uint64_t words, uint64_t *bytes)
	{
		const uint64_t at = (uint64_t)cvy_ranks_index(owners(c, r->lane.mask), rank) * words * 8;
		const uint64_t left = at < c->bytes ? c->bytes - at : 0;

		*bytes = left < words * 8 ? left : words * 8;
		return at;
	}

	template <int WORDS>
	static __device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank,
						   uint64_t words, const struct cvy_here *h, const uint64_t v[HOP][2])
	{
		uint64_t bytes, at = piece_of(c, r, rank, words, &bytes);

		cvy_set_rows<PACKET, HOP, WORDS>(c->recv + at, h, bytes, v);
	}

	/* Hop one: the root sends each its piece, and keeps it. */
	template <int WORDS>
	static __device__ __forceinline__ void scatter(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       const struct cvy_step *s, const struct cvy_here *h,
						       uint64_t words)
	{
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
			uint64_t bytes, at = piece_of(c, r, (int)p, words, &bytes), v[HOP][2];

			cvy_get_rows<PACKET, HOP, WORDS>(c->send + at, h, bytes, v);
			cvy_push_rows<PACKET, HOP, WORDS>(c, r, s, 0, h, (int)p, v);
			if (c->recv != c->send)
				cvy_set_rows<PACKET, HOP, WORDS>(c->recv + at, h, bytes, v);
		}
	}

	/* Hop two: the own piece goes on to @to as soon as it is here. 1: stopped. */
	template <int WORDS>
	static __device__ __forceinline__ int pass_on(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, const struct cvy_here *h,
						      uint64_t words, cvy_ranks to)
	{
		const uint64_t none[HOP][2] = {};

		return cvy_each_source<PACKET, HOP, WORDS>(
			c, r, s, 0, 0, h->rows, cvy_ranks_one(c->root), none, [&](int, int, const uint64_t v[HOP][2]) {
				CVY_EACH_PEER(p, to, c->rank)
				cvy_push_rows<PACKET, HOP, WORDS>(c, r, s, 1, h, (int)p, v);
				set<WORDS>(c, r, c->rank, words, h, v);
			});
	}

	/* The pieces of the others, which they have passed on. The root has them: it only waits. 1: stopped. */
	template <int WORDS>
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_here *h, uint64_t words)
	{
		const cvy_ranks from = cvy_ranks_without(owners(c, r->lane.mask), c->rank);
		const uint64_t none[HOP][2] = {};

		return cvy_each_source<PACKET, HOP, WORDS>(c, r, s, 1, 0, h->rows, from, none,
							   [&](int rank, int, const uint64_t v[HOP][2]) {
								   if (c->rank != c->root)
									   set<WORDS>(c, r, rank, words, h, v);
							   });
	}

	/* Pushes this rank's part of one of the hops, before and while the others' parts come. 1: stopped. */
	template <int WORDS>
	static __device__ __forceinline__ int push(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_here *h, uint64_t words,
						   int last)
	{
		const cvy_ranks all = r->lane.mask, to = last ? all : owners(c, all);

		if (c->rank == c->root) {
			scatter<WORDS>(c, r, s, h, words);
			if (!WORDS)
				cvy_pushed<PACKET>(c, r, s, 0, HOP, words, all);
			return 0;
		}
		if (WORDS)
			return pass_on<WORDS>(c, r, s, h, words, to);
		if (cvy_all_stop(r, pass_on<WORDS>(c, r, s, h, words, to)))
			return 1;
		cvy_pushed<PACKET>(c, r, s, 1, HOP, words, to);
		return 0;
	}

	/* Steps from @from to before @to; all threads meet in each. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int from,
						   int to)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(HOP * (int)blockDim.x);
		const int completes = cvy_mode<HOT>(r) == CVY_COMPLETE, root = c->rank == c->root;
		const uint64_t words = piece_words(c, r->lane.mask);

#pragma unroll 1
		for (int step = from; step < to; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const struct cvy_here here = cvy_here_of<PACKET, HOP, WORDS>(c, &s, words);
			const int last = step + 1 == r->steps;
			int stopped = 0;

			cvy_tell<WORDS>(c, r, &s, 0,
					completes ? cvy_ranks_none() : r->lane.mask); /* crosses beside the data */
			if (!completes)
				stopped = push<WORDS>(c, r, &s, &here, words, last);
			if (!stopped && (root ? last && !completes : 1))
				stopped = gather<WORDS>(c, r, &s, &here, words);
			if (__syncthreads_or(stopped || cvy_hear<WORDS>(c, r, &s, 0, r->lane.mask)))
				return 1;
		}
		return 0;
	}

	/* A first attempt at plain words: steps that are full in all pieces, of which the last is the shortest, then the others. */
	static __device__ __forceinline__ int plain(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(HOP * (int)blockDim.x), all = c->bytes / 8;
		const uint64_t before =
			(uint64_t)(cvy_ranks_count(owners(c, r->lane.mask)) - 1) * piece_words(c, r->lane.mask);
		const int full = cvy_full_steps(c, r, all > before ? all - before : 0, tile);

		return walk<1, CVY_WHOLE>(c, r, 0, full) || walk<1, CVY_PLAIN>(c, r, full, r->steps);
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		if (!(HOT && AHEAD) && !by_two(c, r->lane.mask)) { /* else first() has seen to it */
			if constexpr (HOT)
				return one_hop::template run<1>(c, r);
			else
				return cvy_long_way<one_hop>(c, *r);
		}
		if constexpr (!HOT)
			return walk<0, CVY_ANY>(c, r, cvy_first_step(r), r->steps);
		else
			return cvy_is_plain(c, r) ? plain(c, r) : cvy_long_way<cvy_body_two_hop>(c, *r);
	}

	static __device__ __forceinline__ int first(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *own)
	{
		return by_two(c, r->lane.mask) ? run<1>(c, r) : one_hop::first(c, r, own);
	}
};

#endif
