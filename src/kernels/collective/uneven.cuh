/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of different sizes: alltoallv, allgatherv. A pair may have nothing to say to each other in a step, so each rank
 * tells every other that it has come to the step, beside what it sends: having heard all of step k shows that all have
 * done step k - 1, and two slots suffice as in exchange.cuh.
 *
 * In alltoallv nobody knows the others' counts. A rank's word in each step, two packets in the slots of the second round,
 * says how many bytes it has for the receiver and how many steps it needs; the largest number is everyone's. A CTA that does
 * not know the number when a change comes has not done its first step. If the operation is to be completed then, somebody
 * had everything, so there is one step.
 */
#ifndef CVY_UNEVEN_CUH
#define CVY_UNEVEN_CUH

#include "operate.cuh"
#include "take.cuh"

#define CVY_NO_BLOCK UINT64_MAX /* said to a rank past the sender's counts, which has come since a graph was captured */

/* The words that a CTA received in one step. */
struct cvy_uneven_told {
	uint64_t bytes[CVY_GPU_RANKS]; /* that come from each */
	cvy_ranks none;		       /* sources that have no block for this rank */
	int steps, wrong;
};

static __device__ __forceinline__ struct cvy_uneven_told *cvy_uneven_told(void)
{
	__shared__ struct cvy_uneven_told told;

	return &told;
}

template <int PACKET, int ROWS> struct cvy_body_uneven {
	enum { ONE = 0, AHEAD = 0, APART = 0 };

	static __device__ __forceinline__ const struct cvy_gpu_uneven *blocks(const struct cvy_gpu_call *c)
	{
		return (const struct cvy_gpu_uneven *)c;
	}

	static __device__ __forceinline__ int all_alike(const struct cvy_gpu_call *c)
	{
		return c->kind == CVY_GPU_ALLGATHERV;
	}

	/* Of alltoallv not known before the first step is done. */
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks)
	{
		return all_alike(c) ? c->steps : 1;
	}

	/* ---- what ranks tell each other ---- */

	/* Thread p for rank p. */
	static __device__ __forceinline__ void tell(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, cvy_ranks to)
	{
		if (all_alike(c))
			cvy_tell(c, r, s, 0, to);
		else
			CVY_EACH_OWN(p)
			{
				if (p != c->rank && cvy_has(to, p))
					tell_one(c, r, s, to, p);
			}
	}

	static __device__ __forceinline__ void tell_one(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							const struct cvy_step *s, cvy_ranks to, int p)
	{
		uint8_t *slot = cvy_to(c, r, p) + cvy_gpu_slot_at(1, r->index, s->count);

		cvy_store_packet(slot, p < c->size ? blocks(c)->send[p] : CVY_NO_BLOCK, s->tag);
		cvy_store_packet(slot + CVY_GPU_PACKET, (uint64_t)c->steps, s->tag);
		if (cvy_far(r))
			cvy_far_put(c, r->lane.out, to, p, cvy_gpu_slot_at(1, r->index, s->count), 2 * CVY_GPU_PACKET);
	}

	/* One thread for each rank: what @p has told, or what is known of it. 1: stopped. */
	static __device__ __forceinline__ int hear_of(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, cvy_ranks from, int p, uint64_t *bytes,
						      int *needs)
	{
		int stopped;
		const uint8_t *at[4] = { cvy_from(c, r, p) + cvy_gpu_slot_at(1, r->index, s->count) };
		const int whom[4] = { p, p, p, p };
		uint64_t v[4][2];

		*bytes = p < c->size ? blocks(c)->recv[p] : 0;
		*needs = c->steps;
		if (all_alike(c))
			return p != c->rank && cvy_has(from, p) && cvy_hear_of(c, r, s, 0, p);
		*bytes = p == c->rank ? blocks(c)->send[p] : 0;
		if (p == c->rank || !cvy_has(from, p))
			return 0;
		at[1] = at[0] + CVY_GPU_PACKET;
		stopped = cvy_wait_pairs(at, whom, 3, s->tag, v, &r->watch);
		*bytes = v[0][0];
		*needs = (int)v[1][0];
		return stopped;
	}

	/* All threads. 1: stopped. */
	static __device__ __forceinline__ int hear(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, cvy_ranks from,
						   struct cvy_uneven_told *told)
	{
		int stopped = 0, most = 0, differs = 0, needs, none, wrong;
		uint64_t bytes;

		CVY_EACH_OF_FIRST_WARP(p)
		{
			stopped |= hear_of(c, r, s, from, p, &bytes, &needs);
			none = bytes == CVY_NO_BLOCK || p >= c->size;
			wrong = !none && cvy_has(from, p) && bytes != blocks(c)->recv[p];
			needs = __reduce_max_sync(0xffffffffu, needs);
			wrong = __any_sync(0xffffffffu, wrong);
			told->bytes[p] = none ? 0 : bytes;
			none = (int)__ballot_sync(0xffffffffu, none);
			most = p >= 32 && most > needs ? most : needs;
			differs |= wrong;
			if (!threadIdx.x) {
				*cvy_ranks_word(&told->none, p / 32) = (uint32_t)none;
				told->steps = most;
				told->wrong = differs ? COVEY_ERR_MISMATCH : 0;
			}
		}
		return __syncthreads_or(stopped);
	}

	/* ---- data ---- */

	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s)
	{
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
			const uint64_t bytes = blocks(c)->send[p], words = (bytes + 7) / 8; /* past the size: 0 */
			const uint8_t *from = c->send + blocks(c)->send_at[p];
			const struct cvy_here h = cvy_here_of<PACKET, ROWS>(c, s, words);
			uint64_t v[ROWS][2];

			cvy_get_rows<PACKET, ROWS>(from, &h, bytes, v);
			cvy_push_rows<PACKET, ROWS>(c, r, s, 0, &h, (int)p, v);
		}
	}

	/* All threads, after push(): each rank of another host has a range of its own. */
	static __device__ __noinline__ void push_far(const struct cvy_gpu_call *c, cvy_generations out, cvy_ranks mask,
						     uint64_t at, uint64_t base)
	{
		__syncthreads(); /* the posting thread fences for all */
		CVY_EACH_OWN(p)
		{
			const uint64_t words = (blocks(c)->send[p] + 7) / 8;

			cvy_far_put(c, out, mask, p, at,
				    cvy_packets<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x, base, words) *
					    CVY_GPU_PACKET);
		}
	}

	/* Sources of which something comes in the places of this warp, from @first on. */
	static __device__ __forceinline__ cvy_ranks with_words(cvy_ranks sources, uint64_t first,
							       const struct cvy_uneven_told *told)
	{
		cvy_ranks some = cvy_ranks_none();

#pragma unroll 1
		for (; cvy_ranks_any(sources); sources = cvy_ranks_rest(sources)) {
			int p = cvy_ranks_first(sources);

			some = cvy_ranks_with_if(some, p, first < (told->bytes[p] + 7) / 8);
		}
		return some;
	}

	/* 1: stopped. */
	static __device__ __forceinline__ int take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, cvy_ranks sources,
						   const struct cvy_uneven_told *told)
	{
		const struct cvy_gpu_uneven *b = blocks(c);
		const uint8_t *from = c->send + b->send_at[c->rank];

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			const int u = cvy_row(row);
			cvy_ranks some = with_words(sources, s->base + cvy_warp_word<PACKET>(u), told);
			uint64_t own[1][2] = {}, word;
			int nw = cvy_place<PACKET>(u, &word);

			if (!cvy_ranks_any(some))
				continue;
			word += s->base;
			if (cvy_has(some, c->rank))
				cvy_get<PACKET>(from, word, b->send[c->rank], own[0]);
			if (cvy_each_source<PACKET, 1>(
				    c, r, s, 0, row, 1, some, own, [&](int rank, int, const uint64_t v[1][2]) {
					    uint64_t here = told->bytes[rank] < b->recv[rank] ? told->bytes[rank]
											      : b->recv[rank];

					    if (rank != c->rank || from != c->recv + b->recv_at[rank])
						    cvy_set<PACKET>(c->recv + b->recv_at[rank], word, nw, here, v[0]);
				    }))
				return 1;
		}
		return 0;
	}

	/*
	 * Blocks of which nothing is here are zero: the share of this lane. Or all of them: what came of a source before it
	 * was removed is not kept, whichever lane it came by.
	 */
	static __device__ __noinline__ void zero(const struct cvy_gpu_call *c, cvy_ranks absent, int lane, int lanes)
	{
		const struct cvy_gpu_uneven *b = blocks(c);

#pragma unroll 1
		for (; cvy_ranks_any(absent); absent = cvy_ranks_rest(absent)) {
			int p = cvy_ranks_first(absent);
			uint64_t words = (b->recv[p] + 7) / 8, i = (uint64_t)lane * blockDim.x + threadIdx.x;

#pragma unroll 1
			for (; i < words; i += (uint64_t)lanes * blockDim.x)
				cvy_word_put(c->recv + b->recv_at[p], i, b->recv[p], 0);
		}
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		struct cvy_uneven_told *told = cvy_uneven_told();
		const int completes = cvy_mode<HOT>(r) == CVY_COMPLETE;
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		cvy_ranks sources = cvy_sources<HOT>(c, r), absent;

#pragma unroll 1
		for (int step = completes ? r->steps - 1 : 0; step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);

			s.last = 1; /* for all that is known here */
			if (!completes) {
				tell(c, r, &s, r->lane.mask);
				push(c, r, &s);
				if (cvy_far(r))
					push_far(c, r->lane.out, r->lane.mask, cvy_gpu_slot_at(0, r->index, s.count),
						 s.base);
			}
			if (hear(c, r, &s, sources, told))
				return 1;
			if (!completes) /* the remaining ranks may need fewer than before */
				r->steps = told->steps;
			if (__syncthreads_or(take(c, r, &s, sources, told)))
				return 1;
		}
		absent =
			cvy_ranks_and(cvy_blocks(c), cvy_ranks_or(cvy_ranks_but(cvy_ranks_all(), sources), told->none));
		if (cvy_ranks_any(absent) && !cvy_ranks_equal(sources, r->lane.mask))
			zero(c, absent, 0, 1);
		else if (cvy_ranks_any(absent))
			zero(c, absent, r->index, c->lanes);
		return 0;
	}
};

/* All lanes know that a count is wrong, and each that writes the status says so. */
template <int PACKET, int ROWS> struct cvy_after<cvy_body_uneven<PACKET, ROWS>> {
	static __device__ __forceinline__ void done(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    uint64_t op)
	{
		int wrong = cvy_uneven_told()->wrong;

		if (wrong)
			cvy_store_packet((uint8_t *)&c->control->status,
					 (uint64_t)r->lane.epoch << 32 | (uint32_t)wrong, op);
	}
};

template <typename BODY>
static __global__ void __launch_bounds__(CVY_GPU_THREADS, 1)
	cvy_uneven_operation(const __grid_constant__ struct cvy_gpu_uneven uneven)
{
	cvy_operate<BODY>(&uneven.call);
}

#endif
