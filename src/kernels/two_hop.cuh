/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast in two hops: the words are split into a piece for each contributor but the root. The root sends each its own
 * piece (hop one), and who has it passes it on to the others (hop two): the root's link carries every byte once, not once
 * for each rank. With two contributors, or without the root, it is one hop (one_way.cuh).
 *
 * Ranks signal each other once a step, as there: so the root pushes step k + 1 while the others pass step k on, and no slot
 * is written before it was read. In the last step pieces are passed on to the root, too. That makes it a holder: whoever
 * completes the operation has, in its slots, the last step of all pieces as each rank passed it on, so that rank had it.
 * What is lacking of a rank that died in hop two is thus with any holder, and of one that died in hop one nobody is done.
 */
#ifndef CVY_TWO_HOP_CUH
#define CVY_TWO_HOP_CUH

#include "one_way.cuh"

template <int PACKET, int ROWS> struct cvy_body_two_hop {
	enum { ONE = 0 };
	typedef cvy_body_one_way<PACKET, ROWS> one_hop;

	/* Contributors that a piece is for. */
	static __device__ __forceinline__ uint32_t owners(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return mask & ~(1u << c->root);
	}

	static __device__ __forceinline__ int by_two(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return cvy_has(mask, c->root) && __popc(mask) > 2;
	}

	/* An even number: pieces begin at whole packets. All are as long; past the end of the last are zeros that nobody keeps. */
	static __device__ __forceinline__ uint64_t piece_words(const struct cvy_gpu_call *c, uint32_t mask)
	{
		const uint64_t n = (uint64_t)__popc(owners(c, mask));

		return (((c->bytes + 7) / 8 + n - 1) / n + 1) & ~(uint64_t)1;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return by_two(c, mask) ? cvy_gpu_steps(c, piece_words(c, mask)) : c->steps;
	}

	/* First word of the piece of @rank. *end: bytes of the buffer up to its end, or to that of the buffer. */
	static __device__ __forceinline__ uint64_t piece_of(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							    int rank, uint64_t words, uint64_t *end)
	{
		const uint64_t begin = (uint64_t)__popc(owners(c, r->lane.mask) & ((1u << rank) - 1)) * words;

		*end = (begin + words) * 8 < c->bytes ? (begin + words) * 8 : c->bytes;
		return begin;
	}

	static __device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_lane_run *r, int rank,
						   uint64_t words, uint64_t word, int n, const uint64_t v[2])
	{
		uint64_t end, begin = piece_of(c, r, rank, words, &end);

		cvy_set<PACKET>(c->recv, begin + word, n, end, v);
	}

	/* Hop one: the root sends each its piece, and keeps it. */
	static __device__ __forceinline__ void scatter(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       const struct cvy_step *s, uint64_t words)
	{
		uint64_t v[ROWS][2], word;
		int u, nw;

		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
			uint64_t end, begin = piece_of(c, r, (int)p, words, &end);

#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
					break;
				cvy_get<PACKET>(c->send, begin + word, end, v[row]);
			}
#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
					break;
				cvy_push_to<PACKET>(c, r, s, 0, u, (int)p, v[row]);
				if (c->recv != c->send)
					cvy_set<PACKET>(c->recv, begin + word, nw, end, v[row]);
			}
		}
	}

	/* Hop two: each packet of the own piece goes on to @to as soon as it is here. 1: stopped. */
	static __device__ __forceinline__ int pass_on(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, uint64_t words, uint32_t to)
	{
		const uint64_t none[2] = { 0, 0 };
		uint64_t v[2], word;
		int u, nw;

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			if (cvy_each_source<PACKET>(c, r, s, 0, u, 1u << c->root, none, [&](int, const uint64_t *got) {
				    v[0] = got[0];
				    v[1] = got[1];
			    }))
				return 1;
			set(c, r, c->rank, words, word, nw, v);
			CVY_EACH_PEER(p, to, c->rank)
			cvy_push_to<PACKET>(c, r, s, 1, u, (int)p, v);
		}
		return 0;
	}

	/* The pieces of the others, which they have passed on. The root has them: it only waits. 1: stopped. */
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, uint64_t words)
	{
		const uint64_t none[2] = { 0, 0 };
		const uint32_t from = owners(c, r->lane.mask) & ~(1u << c->rank);
		uint64_t word;
		int u, nw;

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			if (cvy_each_source<PACKET>(c, r, s, 1, u, from, none, [&](int rank, const uint64_t *v) {
				    if (c->rank != c->root)
					    set(c, r, rank, words, word, nw, v);
			    }))
				return 1;
		}
		return 0;
	}

	/* What this rank pushes in a step: its part of one of the hops, before and while the others' come. 1: stopped. */
	static __device__ __forceinline__ int push(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, uint64_t words, int last)
	{
		const uint32_t all = r->lane.mask, to = last ? all : owners(c, all);

		if (c->rank == c->root) {
			scatter(c, r, s, words);
			cvy_pushed<PACKET>(c, r, s, 0, cvy_rows<ROWS>(c), words, all);
			return 0;
		}
		if (cvy_all_stop(r, pass_on(c, r, s, words, to)))
			return 1;
		cvy_pushed<PACKET>(c, r, s, 1, cvy_rows<ROWS>(c), words, to);
		return 0;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const int completes = cvy_mode<HOT>(r) == CVY_COMPLETE, root = c->rank == c->root;
		uint64_t words;

		if (!by_two(c, r->lane.mask))
			return one_hop::template walk<HOT>(c, r);
		words = piece_words(c, r->lane.mask);
#pragma unroll 1
		for (int step = cvy_first_step<HOT>(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int last = step + 1 == r->steps;
			int stopped = 0;

			cvy_tell(c, r, &s, 0, completes ? 0 : r->lane.mask); /* crosses beside the data */
			if (!completes)
				stopped = push(c, r, &s, words, last);
			if (!stopped && (root ? last && !completes : 1))
				stopped = gather(c, r, &s, words);
			if (__syncthreads_or(stopped || cvy_hear(c, r, &s, 0, r->lane.mask)))
				return 1;
		}
		return 0;
	}
};

#endif
