/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-shot allreduce: words are split into a shard for each contributor. Each sends every shard to its owner, the owner
 * folds and sends the result to all. With two contributors one shot moves as much in one hop. The contributors are known
 * when the kernel runs, so graphs captured by two and by three ranks take the same way.
 *
 * TO_ROOT: a reduce. The root owns no shard. It sends its words to the owners, as the others do, so folds go in ascending
 * rank, and each wire of the root carries every byte once. Results go to the root alone, in the last step to all: whoever
 * completes the operation then holds what the root may lack, as in two_hop.cuh.
 *
 * A call of many steps splits the buffer. A call of one step splits the words of each lane: a lane then has the same words
 * for any number of contributors, and in one shot too, so the copy of its inputs that a call in place keeps serves them all.
 */
#ifndef CVY_TWO_SHOT_CUH
#define CVY_TWO_SHOT_CUH

#include "exchange.cuh"

template <typename T, int PACKET, int ROWS, int TO_ROOT = 0> struct cvy_body_two_shot {
	typedef cvy_body_exchange<T, PACKET, ROWS> one_shot;
	enum { ONE = 0, AHEAD = one_shot::AHEAD, APART = 1 };

	static __device__ __forceinline__ void ahead(const struct cvy_gpu_call *c, uint64_t *own)
	{
		one_shot::ahead(c, own);
	}

	/* Contributors that own a shard. */
	static __device__ __forceinline__ cvy_ranks owners(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return TO_ROOT ? cvy_ranks_without(mask, c->root) : mask;
	}

	/* Those that results of a step go to. */
	static __device__ __forceinline__ cvy_ranks takers(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
							   const struct cvy_step *s)
	{
		return TO_ROOT && !s->last ? cvy_ranks_and(r->lane.mask, cvy_ranks_one(c->root)) : r->lane.mask;
	}

	/* Are results stored here? */
	static __device__ __forceinline__ int keeps(const struct cvy_gpu_call *c)
	{
		return !TO_ROOT || c->rank == c->root;
	}

	/* Of a buffer that is split: an even number, so that shards begin at whole packets. */
	static __device__ __forceinline__ uint64_t shard_words(const struct cvy_gpu_call *c, int n)
	{
		return (((c->bytes + 7) / 8 + (uint64_t)n - 1) / (uint64_t)n + 1) & ~(uint64_t)1;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, cvy_ranks mask)
	{
		return c->steps > 1 && cvy_ranks_count(mask) > 2
			       ? cvy_gpu_steps(c, shard_words(c, cvy_ranks_count(owners(c, mask))))
			       : c->steps;
	}

	/* The words that are split, and those of a shard. Words past the end belong to nobody. */
	struct split {
		uint64_t begin, end, words;
	};

	static __device__ __forceinline__ struct split buffer(const struct cvy_gpu_call *c, int n)
	{
		return { 0, (c->bytes + 7) / 8, shard_words(c, n) };
	}

	enum { UNIT = PACKET == CVY_GPU_PAIR ? 1 : CVY_LINE_WORDS, UNIT_PACKETS = PACKET == CVY_GPU_PAIR ? 1 : 8 };

	static __device__ __forceinline__ struct split split_of(const struct cvy_gpu_call *c,
								const struct cvy_lane_run *r)
	{
		const uint64_t n = (uint64_t)cvy_ranks_count(owners(c, r->lane.mask)), all = (c->bytes + 7) / 8;
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const uint64_t from = (uint64_t)r->index * tile, begin = from < all ? from : all;
		const uint64_t end = all - begin < tile ? all : begin + tile;

		if (c->steps > 1)
			return buffer(c, (int)n);
		return { begin, end, ((end - begin + UNIT - 1) / UNIT + n - 1) / n * UNIT };
	}

	/* Number of the shard that @rank owns. */
	static __device__ __forceinline__ int shard_of(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						       int rank)
	{
		return cvy_ranks_index(owners(c, r->lane.mask), rank);
	}

	/* Where shard @i is in a buffer. *bytes: how much of it the buffer has. */
	static __device__ __forceinline__ uint64_t shard_at(const struct cvy_gpu_call *c, const struct split *p, int i,
							    uint64_t *bytes)
	{
		const uint64_t at = p->begin + (uint64_t)i * p->words;
		const uint64_t end = at + p->words < p->end ? (at + p->words) * 8 : p->end * 8;
		const uint64_t most = end < c->bytes ? end : c->bytes;

		*bytes = at * 8 < most ? most - at * 8 : 0;
		return at * 8;
	}

	template <int WORDS>
	static __device__ __forceinline__ void get(const struct cvy_gpu_call *c, const struct split *p, int shard,
						   const struct cvy_here *h, uint64_t v[ROWS][2])
	{
		uint64_t bytes, at = shard_at(c, p, shard, &bytes);

		cvy_get_rows<PACKET, ROWS, WORDS>(c->send + at, h, bytes, v);
	}

	template <int WORDS>
	static __device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct split *p, int shard,
						   const struct cvy_here *h, const uint64_t v[ROWS][2])
	{
		uint64_t bytes, at = shard_at(c, p, shard, &bytes);

		cvy_set_rows<PACKET, ROWS, WORDS>(c->recv + at, h, bytes, v);
	}

	/*
	 * Own words of a shard. In place they are kept, where they are those of the lane: as its packets in one shot, so that
	 * whoever does the lane again finds them.
	 */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ void own(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct split *p, int shard,
						   const struct cvy_here *h, uint64_t v[ROWS][2])
	{
		const int saved = cvy_from_saved<HOT>(c, r);
		const uint64_t first = (uint64_t)shard * p->words;

		if (!saved)
			get<WORDS>(c, p, shard, h, v);
		if (!CVY_GUARDED || !c->in_place || c->steps > 1)
			return;
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const uint64_t word = h->word + cvy_row_words<PACKET>(i);
			uint8_t *at = cvy_saved(c, r, s, (int)(first / UNIT) * UNIT_PACKETS + cvy_row(i));

			if (saved)
				v[i][0] = v[i][1] = 0;
			if (i >= h->rows || word >= p->words || p->begin + first + word >= p->end)
				continue;
			if (saved)
				cvy_load_packet(at, v[i]);
			else
				cvy_store_packet(at, v[i][0], v[i][1]);
		}
	}

	template <int HOT, int WORDS>
	static __device__ __forceinline__ void push(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, const struct split *split,
						    const struct cvy_here *h)
	{
		CVY_EACH_PEER(p, owners(c, r->lane.mask), c->rank)
		{
			uint64_t v[ROWS][2];

			own<HOT, WORDS>(c, r, s, split, shard_of(c, r, (int)p), h, v);
			cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 0, h, (int)p, v);
		}
	}

	/* Folds the own shard; sends it to all. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int fold(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct split *split,
						   const struct cvy_here *h)
	{
		const int how = WORDS ? COVEY_SUM : c->fold;
		uint64_t mine[ROWS][2], out[ROWS][2];
		cvy_fold<T, PACKET> fold[ROWS];

		if (TO_ROOT && c->rank == c->root)
			return 0;
		own<HOT, WORDS>(c, r, s, split, shard_of(c, r, c->rank), h, mine);
		if (cvy_each_source<PACKET, ROWS, WORDS>(c, r, s, 0, 0, h->rows, r->lane.mask, mine,
							 [&](int, int first, const uint64_t v[ROWS][2]) {
#pragma unroll
								 for (int i = 0; i < ROWS; i++)
									 fold[i].add(v[i], how, first);
							 }))
			return 1;
#pragma unroll
		for (int i = 0; i < ROWS; i++)
			fold[i].result(out[i], how, cvy_ranks_count(r->lane.mask));
		CVY_EACH_PEER(p, takers(c, r, s), c->rank)
		cvy_push_rows<PACKET, ROWS, WORDS>(c, r, s, 1, h, (int)p, out);
		if (!TO_ROOT)
			set<WORDS>(c, split, shard_of(c, r, c->rank), h, out);
		return 0;
	}

	template <int WORDS>
	static __device__ __forceinline__ int gather(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						     const struct cvy_step *s, const struct split *split,
						     const struct cvy_here *h)
	{
		const cvy_ranks others = cvy_ranks_without(owners(c, r->lane.mask), c->rank);
		const uint64_t none[ROWS][2] = {};

		if (!s->last && !keeps(c))
			return 0;
		return cvy_each_source<PACKET, ROWS, WORDS>(
			c, r, s, 1, 0, h->rows, others, none, [&](int rank, int, const uint64_t v[ROWS][2]) {
				if (keeps(c))
					set<WORDS>(c, split, shard_of(c, r, rank), h, v);
			});
	}

	/* Both rounds of a step. 1: stopped. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int both(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, const struct split *split)
	{
		const struct cvy_here here = cvy_here_of<PACKET, ROWS, WORDS>(c, s, split->words);

		if (WORDS) {
			push<HOT, WORDS>(c, r, s, split, &here);
			return fold<HOT, WORDS>(c, r, s, split, &here) || gather<WORDS>(c, r, s, split, &here);
		}
		if (cvy_mode<HOT>(r) != CVY_COMPLETE) {
			push<HOT, WORDS>(c, r, s, split, &here);
			cvy_pushed<PACKET>(c, r, s, 0, cvy_rows<ROWS>(c), split->words, owners(c, r->lane.mask));
			if (cvy_all_stop(r, fold<HOT, WORDS>(c, r, s, split, &here)))
				return 1;
			if (!TO_ROOT || c->rank != c->root)
				cvy_pushed<PACKET>(c, r, s, 1, cvy_rows<ROWS>(c), split->words, takers(c, r, s));
		}
		return cvy_all_stop(r, gather<WORDS>(c, r, s, split, &here));
	}

	/* Steps from @from to before @to. @stopped: this thread has, before them. */
	template <int HOT, int WORDS>
	static __device__ __forceinline__ int walk(const struct cvy_gpu_call *c, struct cvy_lane_run *r, int from,
						   int to, int stopped)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const struct split split = split_of(c, r);
		const int thin =
			WORDS < CVY_FULL && cvy_mode<HOT>(r) != CVY_COMPLETE && cvy_ends_thin(c, r, split.words, tile);

#pragma unroll 1
		for (int step = from; step < to; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			const int says = thin && step + 1 == r->steps;

			s.base = c->steps > 1 ? s.base : 0; /* in a shard */
			if (says && cvy_say_thin(c, r, &s, stopped))
				return 1;
			if (thin && stopped) /* all threads meet before the last step */
				continue;
			if (stopped)
				return 1;
			stopped = both<HOT, WORDS>(c, r, &s, &split);
			if (says && !stopped)
				stopped = cvy_all_stop(r, cvy_hear(c, r, &s, 0, r->lane.mask));
		}
		return stopped;
	}

	/* A first attempt at plain words: steps that are full in all shards, of which the last is the shortest, then the others. */
	static __device__ __forceinline__ int plain(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		const uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		const struct split split = split_of(c, r);
		uint64_t last;
		int full, stopped;

		if (c->steps == 1)
			return walk<1, CVY_PLAIN>(c, r, 0, 1, 0);
		shard_at(c, &split, cvy_ranks_count(owners(c, r->lane.mask)) - 1, &last);
		full = cvy_full_steps(c, r, last / 8, tile);
		stopped = cvy_has_all_rows<ROWS>(c) ? walk<1, CVY_WHOLE>(c, r, 0, full, 0)
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
