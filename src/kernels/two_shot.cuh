/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-shot allreduce: the words of a step are split into a shard for each contributor. Each sends every shard to its
 * owner, the owner folds and sends the result to all. With two contributors one shot moves as much in one hop. The
 * contributors are known when the kernel runs, so graphs captured by two and by three ranks take the same way.
 */
#ifndef CVY_TWO_SHOT_CUH
#define CVY_TWO_SHOT_CUH

#include "exchange.cuh"

template <typename T, int PACKET, int ROWS> struct cvy_body_two_shot {
	typedef cvy_body_exchange<T, PACKET, ROWS> one_shot;
	enum { ONE = 0, AHEAD = one_shot::AHEAD, APART = 1 };

	static __device__ __forceinline__ void ahead(const struct cvy_gpu_call *c, uint64_t *own)
	{
		one_shot::ahead(c, own);
	}

	/* An even number: shards begin at whole packets. */
	static __device__ __forceinline__ uint64_t shard_words(const struct cvy_gpu_call *c, int n)
	{
		return (((c->bytes + 7) / 8 + (uint64_t)n - 1) / (uint64_t)n + 1) & ~(uint64_t)1;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return cvy_ranks_count(mask) > 2 ? cvy_gpu_steps(c, shard_words(c, cvy_ranks_count(mask))) : c->steps;
	}

	/* Number of the shard that @rank owns. */
	static __device__ __forceinline__ int shard_of(const struct cvy_lane_run *r, int rank)
	{
		return cvy_ranks_index(r->lane.mask, rank);
	}

	/* Bytes of shard @i, up to the end of the buffer. Words past it belong to the next shard. */
	static __device__ __forceinline__ uint64_t shard_bytes(const struct cvy_gpu_call *c, int i, uint64_t words)
	{
		const uint64_t begin = (uint64_t)i * words * 8, left = begin < c->bytes ? c->bytes - begin : 0;

		return left < words * 8 ? left : words * 8;
	}

	template <int WORDS>
	static __device__ __forceinline__ void get(const struct cvy_gpu_call *c, int shard, uint64_t words,
						   const struct cvy_here *h, uint64_t v[ROWS][2])
	{
		cvy_get_rows<PACKET, ROWS, WORDS>(c->send + (uint64_t)shard * words * 8, h,
						  shard_bytes(c, shard, words), v);
	}

	template <int WORDS>
	static __device__ __forceinline__ void set(const struct cvy_gpu_call *c, int shard, uint64_t words,
						   const struct cvy_here *h, const uint64_t v[ROWS][2])
	{
		cvy_set_rows<PACKET, ROWS, WORDS>(c->recv + (uint64_t)shard * words * 8, h,
						  shard_bytes(c, shard, words), v);
	}

	template <int WORDS>
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct cvy_here *h, uint64_t words)
	{
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
			uint64_t v[ROWS][2];

			get<WORDS>(c, shard_of(r, (int)p), words, h, v);
			cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 0, h, (int)p, v);
		}
	}

	/* Own words of the own shard, which those in place keep. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ void own_shard(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							 const struct cvy_step *s, const struct cvy_here *h,
							 uint64_t words, uint64_t own[ROWS][2])
	{
		const int saved = cvy_from_saved<HOT>(c, r);

		if (!saved)
			get<WORDS>(c, shard_of(r, c->rank), words, h, own);
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			if (saved && i < h->rows)
				cvy_load_packet(cvy_saved(c, r, s, cvy_row(i)), own[i]);
			else if (CVY_GUARDED && c->in_place && i < h->rows)
				cvy_store_packet(cvy_saved(c, r, s, cvy_row(i)), own[i][0], own[i][1]);
	}

	/* Folds the own shard; sends it to all. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct cvy_here *h, uint64_t words)
	{
		const int how = WORDS ? COVEY_SUM : c->fold;
		uint64_t own[ROWS][2], out[ROWS][2];
		cvy_fold<T, PACKET> fold[ROWS];

		own_shard<HOT, WORDS>(c, r, s, h, words, own);
		if (cvy_each_source<PACKET, ROWS, WORDS>(c, r, s, 0, 0, h->rows, r->lane.mask, own,
							 [&](int, int first, const uint64_t v[ROWS][2]) {
#pragma unroll
								 for (int i = 0; i < ROWS; i++)
									 fold[i].add(v[i], how, first);
							 }))
			return 1;
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			fold[i].result(out[i], how, cvy_ranks_count(r->lane.mask));
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 1, h, (int)p, out);
		set<WORDS>(c, shard_of(r, c->rank), words, h, out);
		return 0;
	}

	template <int WORDS>
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct cvy_here *h, uint64_t words)
	{
		const cvy_ranks others = cvy_ranks_without(r->lane.mask, c->rank);
		const uint64_t none[ROWS][2] = {};

		return cvy_each_source<PACKET, ROWS, WORDS>(c, r, s, 1, 0, h->rows, others, none,
							    [&](int rank, int, const uint64_t v[ROWS][2]) {
								    set<WORDS>(c, shard_of(r, rank), words, h, v);
							    });
	}

	/* Both rounds of a step. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int both(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, uint64_t words)
	{
		const struct cvy_here here = cvy_here_of<PACKET, ROWS, WORDS>(c, s, words);

		if (WORDS) {
			push<WORDS>(c, r, s, &here, words);
			return fold<HOT, WORDS>(c, r, s, &here, words) || gather<WORDS>(c, r, s, &here, words);
		}
		if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
			push<WORDS>(c, r, s, &here, words);
			cvy_pushed<PACKET>(c, r, s, 0, cvy_rows<ROWS>(c), words, r->lane.mask);
			if (cvy_all_stop(r, fold<HOT, WORDS>(c, r, s, &here, words)))
				return 1;
			cvy_pushed<PACKET>(c, r, s, 1, cvy_rows<ROWS>(c), words, r->lane.mask);
		}
		return cvy_all_stop(r, gather<WORDS>(c, r, s, &here, words));
	}

	/* Steps from @from to before @to. @stopped: this thread has, before them. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int from,
						   int to, int stopped)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const uint64_t words = shard_words(c, cvy_ranks_count(r->lane.mask));
		const int thin =
			WORDS < CVY_FULL && cvy_mode<HOT>(r) != CVY_COMPLETE && cvy_ends_thin(c, r, words, tile);

#pragma unroll 1
		for (int step = from; step < to; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int says = thin && step + 1 == r->steps;

			if (says && cvy_say_thin(c, r, &s, stopped))
				return 1;
			if (thin && stopped) /* all threads meet before the last step */
				continue;
			if (stopped)
				return 1;
			stopped = both<HOT, WORDS>(c, r, &s, words);
			if (says && !stopped)
				stopped = cvy_all_stop(r, cvy_hear(c, r, &s, 0, r->lane.mask));
		}
		return stopped;
	}

	/* A first attempt at plain words: steps that are full in all shards, of which the last is the shortest, then the others. */
	static __device__ __forceinline__ int plain(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const int last = cvy_ranks_count(r->lane.mask) - 1;
		const int full = cvy_full_steps(c, r, shard_bytes(c, last, shard_words(c, last + 1)) / 8, tile);
		int stopped = cvy_has_all_rows<ROWS>(c) ? walk<1, CVY_WHOLE>(c, r, 0, full, 0)
							: walk<1, CVY_FULL>(c, r, 0, full, 0);

		return full < r->steps ? walk<1, CVY_PLAIN>(c, r, full, r->steps, stopped) : stopped;
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		if (!(HOT && AHEAD) && cvy_ranks_count(r->lane.mask) <= 2) { /* else first() has seen to it */
			if constexpr (HOT)
				return one_shot::template run<1>(c, r);
			else
				return cvy_long_way<one_shot>(c, *r);
		}
		if constexpr (!HOT)
			return walk<0, CVY_ANY>(c, r, cvy_first_step(r), r->steps, 0);
		else if constexpr (one_shot::OTHER)
			return cvy_long_way<cvy_body_two_shot>(c, *r);
		else
			return cvy_is_plain(c, r) ? plain(c, r) : cvy_long_way<cvy_body_two_shot>(c, *r);
	}

	static __device__ __forceinline__ int first(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const uint64_t *own)
	{
		return cvy_ranks_count(r->lane.mask) <= 2 ? one_shot::first(c, r, own) : run<1>(c, r);
	}
};

#endif
