/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-shot allreduce: the words of a step are split into a shard for each contributor. Each sends every shard to its
 * owner, the owner folds and sends the result to all. With two contributors one shot moves as much in one hop; who they
 * are is known when the kernel runs, so that graphs captured by two and by three ranks take the same way.
 */
#ifndef CVY_TWO_SHOT_CUH
#define CVY_TWO_SHOT_CUH

#include "exchange.cuh"

template <typename T, int PACKET, int ROWS> struct cvy_body_two_shot {
	enum { ONE = 0 };
	typedef cvy_body_exchange<T, PACKET, ROWS> one_shot;

	/* An even number: shards begin at whole packets. */
	static __device__ __forceinline__ uint64_t shard_words(const struct cvy_gpu_call *c, int n)
	{
		return (((c->bytes + 7) / 8 + (uint64_t)n - 1) / (uint64_t)n + 1) & ~(uint64_t)1;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return __popc(mask) > 2 ? cvy_gpu_steps(c, shard_words(c, __popc(mask))) : c->steps;
	}

	/* Number of the shard that @rank owns. */
	static __device__ __forceinline__ int shard_of(const struct cvy_lane_run *r, int rank)
	{
		return __popc(r->lane.mask & ((1u << rank) - 1));
	}

	/* Words past the shard belong to the next: they are not taken from there. */
	static __device__ __forceinline__ void get(const struct cvy_gpu_call *c, int shard, uint64_t words,
						   uint64_t word, uint64_t v[2])
	{
		uint64_t begin = (uint64_t)shard * words;
		uint64_t end = (begin + words) * 8 < c->bytes ? (begin + words) * 8 : c->bytes;

		cvy_get<PACKET>(c->send, begin + word, end, v);
	}

	static __device__ __forceinline__ void set(const struct cvy_gpu_call *c, int shard, uint64_t words,
						   uint64_t word, int n, const uint64_t v[2])
	{
		uint64_t begin = (uint64_t)shard * words;
		uint64_t end = (begin + words) * 8 < c->bytes ? (begin + words) * 8 : c->bytes;

		cvy_set<PACKET>(c->recv, begin + word, n, end, v);
	}

	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, uint64_t words)
	{
		uint64_t v[ROWS][2], word;
		int u, nw;

		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		{
#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
					break;
				get(c, shard_of(r, (int)p), words, word, v[row]);
			}
#pragma unroll
			for (int row = 0; row < ROWS; row++) {
				if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
					break;
				cvy_push_to<PACKET>(c, r, s, 0, u, (int)p, v[row]);
			}
		}
	}

	/* Folds the own shard; sends it to all. 1: stopped. */
	template <int HOT>
	static __device__ __forceinline__ int fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, uint64_t words)
	{
		const int self = shard_of(r, c->rank);
		uint64_t own[2], out[2], word;
		int u, nw;

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			cvy_fold<T, PACKET> fold;

			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			if (cvy_from_saved<HOT>(c, r)) {
				cvy_load_packet(cvy_saved(c, r, s, u), own);
			} else {
				get(c, self, words, word, own);
				if (CVY_GUARDED && c->in_place)
					cvy_store_packet(cvy_saved(c, r, s, u), own[0], own[1]);
			}
			if (cvy_each_source<PACKET>(c, r, s, 0, u, r->lane.mask, own,
						    [&](int, const uint64_t *v) { fold.add(v, c->redop); }))
				return 1;
			fold.result(out, c->redop, __popc(r->lane.mask));
			set(c, self, words, word, nw, out);
			CVY_EACH_PEER(p, r->lane.mask, c->rank)
			cvy_push_to<PACKET>(c, r, s, 1, u, (int)p, out);
		}
		return 0;
	}

	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, uint64_t words)
	{
		const uint64_t none[2] = { 0, 0 };
		uint64_t word;
		int u, nw;

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			if (cvy_each_source<PACKET>(c, r, s, 1, u, r->lane.mask & ~(1u << c->rank), none,
						    [&](int rank, const uint64_t *v) {
							    set(c, shard_of(r, rank), words, word, nw, v);
						    }))
				return 1;
		}
		return 0;
	}

	/* Both rounds of a step. 1: stopped. */
	template <int HOT>
	static __device__ __forceinline__ int both(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, uint64_t words)
	{
		if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
			push(c, r, s, words);
			cvy_pushed<PACKET>(c, r, s, 0, cvy_rows<ROWS>(c), words, r->lane.mask);
			if (cvy_all_stop(r, fold<HOT>(c, r, s, words)))
				return 1;
			cvy_pushed<PACKET>(c, r, s, 1, cvy_rows<ROWS>(c), words, r->lane.mask);
		}
		return cvy_all_stop(r, gather(c, r, s, words));
	}

	template <int HOT>
	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		uint64_t words = shard_words(c, __popc(r->lane.mask));
		int thin, stopped = 0;

		if (__popc(r->lane.mask) <= 2)
			return one_shot::template walk<HOT>(c, r);
		thin = cvy_mode<HOT>(r) != CVY_COMPLETE && cvy_ends_thin(c, r, words, tile);
#pragma unroll 1
		for (int step = cvy_first_step<HOT>(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int says = thin && step + 1 == r->steps;

			if (says && cvy_say_thin(c, r, &s, stopped))
				return 1;
			if (thin && stopped) /* all threads meet before the last step */
				continue;
			stopped = both<HOT>(c, r, &s, words);
			if (says && !stopped)
				stopped = cvy_all_stop(r, cvy_hear(c, r, &s, 0, r->lane.mask));
			if (stopped && !thin)
				return 1;
		}
		return stopped;
	}
};

#endif
