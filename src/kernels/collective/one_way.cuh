/* SPDX-License-Identifier: Apache-2.0 */
/* Data goes one way: broadcast, gather, scatter; or not at all: barrier. Ranks signal each other once a step. */
#ifndef CVY_ONE_WAY_CUH
#define CVY_ONE_WAY_CUH

#include "quick.cuh"

template <int PACKET, int ROWS, int PARTS = 0> struct cvy_body_one_way {
	enum { ONE = PACKET == CVY_GPU_PAIR, AHEAD = ROWS == 1, APART = 1 };

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks)
	{
		return ONE ? 1 : c->steps;
	}

	/*
	 * Does the root take part? Without it no data move, but ranks still meet: a rank that ran ahead would write over slots
	 * that others have not read.
	 */
	static __device__ __forceinline__ int rooted(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
	{
		return c->root >= 0 && cvy_has(r->lane.mask, c->root);
	}

	/* Does this rank send to @p in this operation, and from where? NULL: no. */
	static __device__ __forceinline__ const uint8_t *source(const struct cvy_gpu_call *c, int p)
	{
		if (c->kind == CVY_GPU_GATHER)
			return p == c->root ? c->send : NULL;
		return c->rank == c->root ? c->send + (size_t)p * c->send_stride : NULL;
	}

	/* How much there is for @p: of a rank that has come since a graph was captured scatter has no block, and sends zeros. */
	static __device__ __forceinline__ uint64_t bytes_for(const struct cvy_gpu_call *c, int p)
	{
		return p < c->size || !c->send_stride ? c->bytes : 0;
	}

	/* The ranks that this rank sends to. */
	static __device__ __forceinline__ cvy_ranks receivers(const struct cvy_gpu_call *c,
							      const struct cvy_lane_run *r)
	{
		if (c->kind == CVY_GPU_GATHER)
			return cvy_ranks_and(r->lane.mask, cvy_ranks_one(c->root));
		return c->rank == c->root ? r->lane.mask : cvy_ranks_none();
	}

	/* Where what comes from @p goes. NULL: nothing comes. */
	static __device__ __forceinline__ uint8_t *place(const struct cvy_gpu_call *c, int p)
	{
		if (c->kind == CVY_GPU_GATHER)
			return c->rank == c->root && p < c->size ? c->recv + (size_t)p * c->bytes : NULL;
		return p == c->root ? c->recv : NULL;
	}

	template <int WORDS>
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct cvy_here *h)
	{
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
			const uint8_t *from = source(c, (int)p);
			uint64_t v[ROWS][2];

			if (!from)
				continue;
			cvy_get_rows<PACKET, ROWS, WORDS>(from, h, bytes_for(c, (int)p), v);
			cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 0, h, (int)p, v);
		}
	}

	template <int WORDS>
	static __device__ __forceinline__ int take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_here *h, cvy_ranks living)
	{
		cvy_ranks sources = c->kind == CVY_GPU_GATHER ? c->rank == c->root ? cvy_blocks(c) : cvy_ranks_none()
							      : cvy_ranks_one(c->root);
		uint64_t own[ROWS][2];

		sources = cvy_ranks_and(sources, living);
		if (cvy_has(sources, c->rank))
			cvy_get_rows<PACKET, ROWS, WORDS>(source(c, c->rank), h, c->bytes, own);
		if (cvy_each_source<PACKET, ROWS, WORDS>(
			    c, r, s, 0, 0, h->rows, sources, own, [&](int rank, int, const uint64_t v[ROWS][2]) {
				    cvy_set_rows<PACKET, ROWS, WORDS>(place(c, rank), h, c->bytes, v);
			    }))
			return 1;
		if (!WORDS && c->kind == CVY_GPU_GATHER && c->rank == c->root &&
		    cvy_ranks_any(cvy_ranks_but(cvy_blocks(c), sources)))
			cvy_zero_rows<PACKET>(c, cvy_ranks_but(cvy_ranks_all(), sources), *h);
		return 0;
	}

	static __device__ __forceinline__ void ahead(const struct cvy_gpu_call *c, uint64_t *own)
	{
		if (c->kind == CVY_GPU_GATHER || c->rank == c->root)
			cvy_quick_ahead<PACKET, PARTS>(c, own);
	}

	/* The one step of one packet, of own words @mine. 1: stopped. */
	static __device__ __forceinline__ int quick(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *mine)
	{
		const struct cvy_quick<PACKET> q = cvy_quick_of<PACKET, PARTS>(c, r);
		const struct cvy_step s = { q.tag, r->lane.count + 1, 1, 0 };
		const int gather = c->kind == CVY_GPU_GATHER, root = c->rank == c->root;
		int stopped = 0;

		cvy_tell<1>(c, r, &s, 0, r->lane.mask);
		if (rooted(c, r) && q.rows) {
			cvy_ranks other = gather ? cvy_ranks_one(c->root) : r->lane.mask;
			cvy_ranks sources =
				gather ? cvy_ranks_and(r->lane.mask, cvy_blocks(c)) : cvy_ranks_one(c->root);
			uint64_t own[q.WORDS];

#pragma unroll
			for (int i = 0; i < q.WORDS; i++)
				own[i] = mine[i];
			if (root != gather)
				cvy_quick_push<PACKET, PARTS>(c, r, &q, cvy_ranks_without(other, c->rank), own);
			if (root || !gather)
				stopped = cvy_quick_take<PACKET>(
					c, r, &q, sources, own, [&](int rank, int, const uint64_t *v) {
						cvy_quick_set<PACKET, PARTS>(
							c, c->recv + (gather ? (uint64_t)(uint32_t)rank * c->bytes : 0),
							&q, v);
					});
			if (root && gather && cvy_ranks_any(cvy_ranks_but(cvy_blocks(c), sources)))
				cvy_zero_blocks<PACKET>(c, cvy_ranks_but(cvy_ranks_all(), sources), q.word, q.n);
		}
		return stopped || cvy_hear<1>(c, r, &s, 0, r->lane.mask);
	}

	/* Has every contributor a block and, where blocks are gathered, every block a contributor? */
	static __device__ __forceinline__ int even(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
	{
		if (c->kind == CVY_GPU_GATHER)
			return c->rank != c->root || !cvy_ranks_any(cvy_ranks_but(cvy_blocks(c), r->lane.mask));
		return !c->send_stride || !cvy_ranks_any(cvy_ranks_but(r->lane.mask, cvy_blocks(c)));
	}

	/* Steps from @from to before @to; all threads meet in each. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int from,
						   int to)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		uint64_t words = rooted(c, r) ? (c->bytes + 7) / 8 : 0;
		cvy_ranks sources = cvy_sources<HOT>(c, r);
		cvy_ranks whom = cvy_mode<HOT>(r) == CVY_COMPLETE ? cvy_ranks_none() : r->lane.mask;

#pragma unroll 1
		for (int step = from; step < to; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const struct cvy_here here = cvy_here_of<PACKET, ROWS, WORDS>(c, &s, words);

			cvy_tell<WORDS>(c, r, &s, 0, whom); /* crosses beside the data */
			if (cvy_ranks_any(whom)) {
				push<WORDS>(c, r, &s, &here);
				if (!WORDS)
					cvy_pushed<PACKET>(c, r, &s, 0, cvy_rows<ROWS>(c), words, receivers(c, r));
			}
			if (__syncthreads_or(take<WORDS>(c, r, &s, &here, sources) ||
					     cvy_hear<WORDS>(c, r, &s, 0, sources)))
				return 1;
		}
		return 0;
	}

	/* A first attempt at plain words. */
	static __device__ __forceinline__ int plain(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const int full = cvy_full_steps(c, r, rooted(c, r) ? c->bytes / 8 : 0, tile);
		const int stopped = cvy_has_all_rows<ROWS>(c) ? walk<1, CVY_WHOLE>(c, r, 0, full)
							      : walk<1, CVY_FULL>(c, r, 0, full);

		return stopped || walk<1, CVY_PLAIN>(c, r, full, r->steps);
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		if constexpr (!HOT)
			return walk<0, CVY_ANY>(c, r, ONE ? 0 : cvy_first_step(r), ONE ? 1 : r->steps);
		else if (!AHEAD && cvy_is_plain(c, r) && even(c, r)) /* else first() has seen to it */
			return plain(c, r);
		else
			return cvy_long_way<cvy_body_one_way>(c, *r);
	}

	static __device__ __forceinline__ int first(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *own)
	{
		return cvy_quick_does<PARTS>(c, r) ? quick(c, r, own) : run<1>(c, r);
	}
};

#endif
