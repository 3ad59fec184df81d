/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operations do in a lane, as steps. In each step a thread first pushes all its packets, then waits for the
 * others' in the same places and stores. Where everyone hears of everyone in every step (allreduce, allgather,
 * alltoall, reduce_scatter) having all of step k shows that all have done step k - 1, so two slots suffice and nothing
 * else is awaited. Where data goes one way, ranks signal each other once a step.
 */
#ifndef CVY_BODY_CUH
#define CVY_BODY_CUH

#include "lane.cuh"
#include "reduce.cuh"

/* Rows of this call: kernels for one row, which small operations are, have no loops over them. */
template <int ROWS> static __device__ __forceinline__ int cvy_rows(const struct cvy_gpu_call *c)
{
	return ROWS == 1 ? 1 : c->rows;
}

/* One step of a lane, as the thread sees it. */
struct cvy_step {
	uint64_t tag;
	uint32_t count; /* of the lane, with this step: says which slot */
	uint64_t base;	/* first word of the tile */
};

static __device__ __forceinline__ struct cvy_step cvy_step_of(const struct cvy_gpu_call *c,
							      const struct cvy_lane_run *r, int step,
							      uint64_t tile_words)
{
	struct cvy_step s;

	s.count = r->lane.count + 1 + (uint32_t)step;
	s.tag = CVY_GPU_TAG(r->lane.epoch, s.count);
	s.base = ((uint64_t)step * (uint64_t)c->lanes + (uint64_t)r->index) * tile_words;
	return s;
}

static __device__ __forceinline__ int cvy_first_step(const struct cvy_lane_run *r)
{
	return r->mode == CVY_COMPLETE ? r->steps - 1 : 0;
}

/* Packet @row of this thread: its place in the tile. 0: the warp has nothing there. */
template <int PACKET>
static __device__ __forceinline__ int cvy_packet(const struct cvy_step *s, int row, uint64_t words, int *u,
						 uint64_t *word, int *n)
{
	*u = row * (int)blockDim.x + (int)threadIdx.x;
	if (s->base + cvy_warp_word<PACKET>(*u) >= words)
		return 0;
	*n = cvy_place<PACKET>(*u, word);
	*word += s->base;
	return 1;
}

template <int PACKET>
static __device__ __forceinline__ void cvy_get(const uint8_t *buf, uint64_t word, uint64_t bytes, uint64_t v[2])
{
	v[0] = cvy_word_get(buf, word, bytes);
	v[1] = PACKET == CVY_GPU_LINE ? cvy_word_get(buf, word + 1, bytes) : 0;
}

static __device__ __forceinline__ void cvy_set(uint8_t *buf, uint64_t word, int n, uint64_t bytes, const uint64_t v[2])
{
	cvy_word_put(buf, word, bytes, v[0]);
	if (n == 2)
		cvy_word_put(buf, word + 1, bytes, v[1]);
}

/* Own words of an operation in place are kept until its outcome is decided: its results overwrite them. */
static __device__ __forceinline__ uint8_t *cvy_saved(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, int u)
{
	return c->saved + cvy_gpu_slot_at(0, r->index, s->count) + (size_t)u * CVY_GPU_PACKET;
}

/* The copy is of the last steps alone: where there are more, who does it again has its inputs whole, or all is lost. */
static __device__ __forceinline__ int cvy_from_saved(const struct cvy_gpu_call *c, const struct cvy_lane_run *r)
{
	return c->in_place && (r->mode == CVY_COMPLETE || (r->mode == CVY_AGAIN && !cvy_spoils(c, r)));
}

template <int PACKET>
static __device__ __forceinline__ void cvy_own(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
					       const struct cvy_step *s, int u, const uint8_t *send, uint64_t word,
					       uint64_t v[2])
{
	if (cvy_from_saved(c, r))
		cvy_load_packet(cvy_saved(c, r, s, u), v);
	else
		cvy_get<PACKET>(send, word, c->bytes, v);
}

/* The first rank of a mask from @rank on; CVY_GPU_RANKS or more: none. */
static __device__ __forceinline__ int cvy_next(uint32_t mask, int rank)
{
	uint32_t left = rank < CVY_GPU_RANKS ? mask >> rank : 0;

	return left ? rank + __ffs((int)left) - 1 : CVY_GPU_RANKS;
}

/*
 * The same packet of all @sources, waited for four at a time, handed to each(rank, v) in ascending order. 1: stopped.
 * Own words come from @own where this rank is among them.
 */
template <int PACKET, typename EACH>
static __device__ __forceinline__ int cvy_each_source(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, int round, int u, uint32_t sources,
						      const uint64_t own[2], EACH each)
{
	int rank = 0;

#pragma unroll 1
	while (rank < CVY_GPU_RANKS && sources >> rank) {
		const uint8_t *at[4];
		uint64_t v[4][2];
		int whom[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			rank = cvy_next(sources, rank);
			whom[i] = rank;
			at[i] = NULL;
			v[i][0] = own[0];
			v[i][1] = own[1];
			if (rank < CVY_GPU_RANKS && rank != c->rank)
				at[i] = cvy_from(c, r, rank) + cvy_gpu_slot_at(round, r->index, s->count) +
					(size_t)u * CVY_GPU_PACKET;
			rank++;
		}
		if (cvy_wait_packets<PACKET>(at, whom, s->tag, v, &r->watch))
			return 1;
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (whom[i] < CVY_GPU_RANKS)
				each(whom[i], v[i]);
	}
	return 0;
}

template <int PACKET>
static __device__ __forceinline__ void cvy_push_to(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						   const struct cvy_step *s, int round, int u, int rank,
						   const uint64_t v[2])
{
	cvy_push<PACKET>(cvy_to(c, r, rank) + cvy_gpu_slot_at(round, r->index, s->count), u, v, s->tag);
}

/* The fold of two words, in the order in which sources are handed over. */
template <typename T, int PACKET> struct cvy_fold {
	enum { WORDS = PACKET == CVY_GPU_PAIR ? 1 : 2 };
	cvy_acc<T> acc[WORDS];
	int begun = 0;

	__device__ __forceinline__ void add(const uint64_t v[2], int redop)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (!begun)
				acc[i].first(v[i]);
			else if (redop == COVEY_SUM || redop == COVEY_AVG)
				acc[i].template fold_as<COVEY_SUM>(v[i]);
			else
				acc[i] = cvy_fold_rare<T>(acc[i], v[i], redop);
		}
		begun = 1;
	}

	__device__ __forceinline__ void result(uint64_t out[2], int redop, int n)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (redop == COVEY_AVG)
				acc[i] = cvy_average<T>(acc[i], n);
			out[i] = acc[i].result();
		}
	}
};

/* Ranks of a mask but this one, beginning after it: not all push to the same peer at once. */
#define CVY_EACH_PEER(p, mask, self) \
	_Pragma("unroll 1") for (uint32_t p##_left = \
					 __funnelshift_r((mask) & ~(1u << (self)), (mask) & ~(1u << (self)), (self)), \
				 p; \
				 p##_left && \
				 (p = ((uint32_t)__ffs((int)p##_left) - 1 + (uint32_t)(self)) % CVY_GPU_RANKS, 1); \
				 p##_left &= p##_left - 1)

/* ---- allreduce, reduce: everyone's input to everyone ---- */

/* Own words to everyone, all loads first. */
template <int PACKET, int ROWS>
static __device__ __forceinline__ void cvy_push_own(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, uint64_t words)
{
	uint64_t own[ROWS][2], word;
	int u, nw;

#pragma unroll
	for (int row = 0; row < ROWS; row++)
		if (row < cvy_rows<ROWS>(c) && cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
			cvy_own<PACKET>(c, r, s, u, c->send, word, own[row]);
#pragma unroll
	for (int row = 0; row < ROWS; row++) {
		if (row >= cvy_rows<ROWS>(c) || !cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
			break;
		if (c->in_place)
			cvy_store_packet(cvy_saved(c, r, s, u), own[row][0], own[row][1]);
		CVY_EACH_PEER(p, r->lane.mask, c->rank)
		cvy_push_to<PACKET>(c, r, s, 0, u, (int)p, own[row]);
	}
}

template <typename T, int PACKET, int ROWS> struct cvy_body_allreduce {
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t)
	{
		return c->steps;
	}

	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x), words = (c->bytes + 7) / 8;
		int n = __popc(r->lane.mask);

#pragma unroll 1
		for (int step = cvy_first_step(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			uint64_t own[2], out[2], word;
			int u, nw;

			if (r->mode != CVY_COMPLETE)
				cvy_push_own<PACKET, ROWS>(c, r, &s, words);
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
				cvy_fold<T, PACKET> fold;

				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				cvy_own<PACKET>(c, r, &s, u, c->send, word, own);
				if (cvy_each_source<PACKET>(c, r, &s, 0, u, r->lane.mask, own,
							    [&](int, const uint64_t *v) { fold.add(v, c->redop); }))
					return 1;
				fold.result(out, c->redop, n);
				if (c->kind != CVY_GPU_REDUCE || c->root == c->rank)
					cvy_set(c->recv, word, nw, c->bytes, out);
			}
		}
		return 0;
	}
};

/*
 * Two-shot: the words of a step are split into a shard for each contributor. Each sends every shard to its owner, the
 * owner folds and sends the result to all.
 */
template <typename T, int PACKET, int ROWS> struct cvy_body_two_shot {
	static __device__ __forceinline__ uint64_t shard_words(const struct cvy_gpu_call *c, int n)
	{
		return ((c->bytes + 7) / 8 + (uint64_t)n - 1) / (uint64_t)n;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t mask)
	{
		return cvy_gpu_steps(c, shard_words(c, __popc(mask)));
	}

	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		int n = __popc(r->lane.mask), self = __popc(r->lane.mask & ((1u << c->rank) - 1));
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x), words = shard_words(c, n);

#pragma unroll 1
		for (int step = cvy_first_step(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			uint64_t own[2], out[2], word;
			int u, nw;

#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c) && r->mode != CVY_COMPLETE; row++) {
				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				CVY_EACH_PEER(p, r->lane.mask, c->rank)
				{
					int shard = __popc(r->lane.mask & ((1u << p) - 1u));

					shard_get(c, shard, words, word, own);
					cvy_push_to<PACKET>(c, r, &s, 0, u, p, own);
				}
			}
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c) && r->mode != CVY_COMPLETE; row++) {
				cvy_fold<T, PACKET> fold;

				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				if (cvy_from_saved(c, r)) {
					cvy_load_packet(cvy_saved(c, r, &s, u), own);
				} else {
					shard_get(c, self, words, word, own);
					if (c->in_place)
						cvy_store_packet(cvy_saved(c, r, &s, u), own[0], own[1]);
				}
				if (cvy_each_source<PACKET>(c, r, &s, 0, u, r->lane.mask, own,
							    [&](int, const uint64_t *v) { fold.add(v, c->redop); }))
					return 1;
				fold.result(out, c->redop, n);
				shard_set(c, self, words, word, nw, out);
				CVY_EACH_PEER(p, r->lane.mask, c->rank)
				cvy_push_to<PACKET>(c, r, &s, 1, u, p, out);
			}
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				if (cvy_each_source<PACKET>(c, r, &s, 1, u, r->lane.mask & ~(1u << c->rank), own,
							    [&](int rank, const uint64_t *v) {
								    shard_set(c,
									      __popc(r->lane.mask & ((1u << rank) - 1)),
									      words, word, nw, v);
							    }))
					return 1;
			}
		}
		return 0;
	}

	/* Words past the shard belong to the next: they are not taken from there. */
	static __device__ __forceinline__ void shard_get(const struct cvy_gpu_call *c, int shard, uint64_t words,
							 uint64_t word, uint64_t v[2])
	{
		uint64_t at = (uint64_t)shard * words + word;

		v[0] = word < words ? cvy_word_get(c->send, at, c->bytes) : 0;
		v[1] = PACKET == CVY_GPU_LINE && word + 1 < words ? cvy_word_get(c->send, at + 1, c->bytes) : 0;
	}

	static __device__ __forceinline__ void shard_set(const struct cvy_gpu_call *c, int shard, uint64_t words,
							 uint64_t word, int n, const uint64_t v[2])
	{
		uint64_t at = (uint64_t)shard * words + word;

		if (word < words)
			cvy_word_put(c->recv, at, c->bytes, v[0]);
		if (n == 2 && word + 1 < words)
			cvy_word_put(c->recv, at + 1, c->bytes, v[1]);
	}
};

/* ---- blocks to everyone: allgather sends its one block to all, alltoall and reduce_scatter a block to each ---- */

/* Blocks of ranks that do not contribute are zero; of ranks past the buffers (the group has grown since) nothing is kept. */
static __device__ __forceinline__ void cvy_zero_blocks(const struct cvy_gpu_call *c, uint32_t absent, uint64_t word,
						       int n)
{
	const uint64_t zero[2] = { 0, 0 };

#pragma unroll 1
	for (int p = 0; p < c->size; p++)
		if (cvy_has(absent, p))
			cvy_set(c->recv + (size_t)p * c->bytes, word, n, c->bytes, zero);
}

template <int PACKET, int ROWS> struct cvy_body_blocks {
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t)
	{
		return c->steps;
	}

	static __device__ __forceinline__ void block(const struct cvy_gpu_call *c, int rank, uint64_t word,
						     uint64_t v[2])
	{
		size_t at = c->kind == CVY_GPU_ALLTOALL && rank < c->size ? (size_t)rank * c->bytes : 0;

		cvy_get<PACKET>(c->send + at, word, c->bytes, v);
	}

	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x), words = (c->bytes + 7) / 8;
		uint32_t sources = r->lane.mask &
				   ~(r->mode == CVY_COMPLETE ? r->gone & -(uint32_t)cvy_gpu_is_private(c->kind) : 0);

#pragma unroll 1
		for (int step = cvy_first_step(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			uint64_t own[2], word;
			int u, nw;

#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c) && r->mode != CVY_COMPLETE; row++) {
				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				CVY_EACH_PEER(p, r->lane.mask, c->rank)
				{
					block(c, p, word, own);
					cvy_push_to<PACKET>(c, r, &s, 0, u, p, own);
				}
			}
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				block(c, c->rank, word, own);
				if (cvy_each_source<PACKET>(c, r, &s, 0, u, sources, own,
							    [&](int rank, const uint64_t *v) {
								    if (rank < c->size)
									    cvy_set(c->recv + (size_t)rank * c->bytes,
										    word, nw, c->bytes, v);
							    }))
					return 1;
				cvy_zero_blocks(c, ~sources, word, nw);
			}
		}
		if (r->mode == CVY_COMPLETE && sources != r->lane.mask)
			zero_earlier(c, *r, tile, words, r->lane.mask & ~sources);
		return 0;
	}

	/* What came of a source before it was removed is not kept either: its block is not valid as a whole. */
	static __device__ __noinline__ void zero_earlier(const struct cvy_gpu_call *c, struct cvy_lane_run r,
							 uint64_t tile, uint64_t words, uint32_t absent)
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
					if (cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
						cvy_zero_blocks(c, absent, word, nw);
			}
		}
	}
};

template <typename T, int PACKET, int ROWS> struct cvy_body_reduce_scatter {
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t)
	{
		return c->steps;
	}

	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x), words = (c->bytes + 7) / 8;
		uint32_t sources =
			r->lane.mask & ~(r->mode == CVY_COMPLETE ? r->gone : 0); /* LOST if that is not all */
		int n = __popc(r->lane.mask);

#pragma unroll 1
		for (int step = cvy_first_step(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);
			uint64_t own[2], out[2], word;
			int u, nw;

#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c) && r->mode != CVY_COMPLETE; row++) {
				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				cvy_own<PACKET>(c, r, &s, u, c->send + (size_t)c->rank * c->bytes, word, own);
				if (c->in_place)
					cvy_store_packet(cvy_saved(c, r, &s, u), own[0], own[1]);
				CVY_EACH_PEER(p, r->lane.mask, c->rank)
				{
					uint64_t v[2] = { 0, 0 };

					if ((int)p < c->size)
						cvy_get<PACKET>(c->send + (size_t)p * c->bytes, word, c->bytes, v);
					cvy_push_to<PACKET>(c, r, &s, 0, u, p, v);
				}
			}
#pragma unroll 1
			for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
				cvy_fold<T, PACKET> fold;

				if (!cvy_packet<PACKET>(&s, row, words, &u, &word, &nw))
					break;
				cvy_own<PACKET>(c, r, &s, u, c->send + (size_t)c->rank * c->bytes, word, own);
				if (cvy_each_source<PACKET>(c, r, &s, 0, u, sources, own,
							    [&](int, const uint64_t *v) { fold.add(v, c->redop); }))
					return 1;
				fold.result(out, c->redop, n);
				cvy_set(c->recv, word, nw, c->bytes, out);
			}
		}
		return 0;
	}
};

/* ---- one way: broadcast, gather, scatter, barrier; ranks signal each other once a step ---- */

/* One thread per rank tells it that this rank has entered the step, and waits for its word. 1: stopped. All threads. */
static __device__ __forceinline__ int cvy_signals(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						  const struct cvy_step *s)
{
	int p = (int)threadIdx.x, stopped = 0;

	if (p < CVY_GPU_RANKS && p != c->rank && cvy_has(r->lane.mask, p)) {
		size_t at = cvy_gpu_signal_at(r->index, s->count);

		if (r->mode != CVY_COMPLETE)
			cvy_store_word(cvy_to(c, r, p) + at, s->tag);
		if (r->mode != CVY_COMPLETE || !cvy_has(r->gone, p))
			stopped = cvy_wait_signal(cvy_from(c, r, p) + at, p, s->tag, &r->watch);
	}
	return stopped;
}

template <int PACKET, int ROWS> struct cvy_body_one_way {
	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, uint32_t)
	{
		return c->steps;
	}

	/* Does this rank send to @p in this operation, and from where? NULL: no. */
	static __device__ __forceinline__ const uint8_t *source(const struct cvy_gpu_call *c, int p)
	{
		if (c->kind == CVY_GPU_GATHER)
			return p == c->root ? c->send : NULL;
		if (c->rank != c->root || p >= c->size)
			return NULL;
		return c->send + (c->kind == CVY_GPU_SCATTER ? (size_t)p * c->bytes : 0);
	}

	/* Where what comes from @p goes. NULL: nothing comes. */
	static __device__ __forceinline__ uint8_t *place(const struct cvy_gpu_call *c, int p)
	{
		if (c->kind == CVY_GPU_GATHER)
			return c->rank == c->root && p < c->size ? c->recv + (size_t)p * c->bytes : NULL;
		return p == c->root ? c->recv : NULL;
	}

	static __device__ __forceinline__ int run(const struct cvy_gpu_call *c, struct cvy_lane_run *r)
	{
		uint64_t tile = cvy_tile_words<PACKET>(cvy_rows<ROWS>(c) * (int)blockDim.x);
		uint64_t words = c->kind == CVY_GPU_BARRIER ? 0 : (c->bytes + 7) / 8;
		uint32_t gone = r->mode == CVY_COMPLETE ? r->gone & -(uint32_t)cvy_gpu_is_private(c->kind) : 0;

		if (c->root >= 0 && !cvy_has(r->lane.mask, c->root))
			return 0; /* the status says ROOT */
#pragma unroll 1
		for (int step = cvy_first_step(r); step < r->steps; step++) {
			struct cvy_step s = cvy_step_of(c, r, step, tile);

			if (__syncthreads_or(one_step(c, r, &s, words, gone) || cvy_signals(c, r, &s)))
				return 1;
		}
		return 0;
	}

	static __device__ __forceinline__ int one_step(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						       const struct cvy_step *s, uint64_t words, uint32_t gone)
	{
		uint64_t v[2], word;
		int u, nw;

#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c) && r->mode != CVY_COMPLETE; row++) {
			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			CVY_EACH_PEER(p, r->lane.mask, c->rank)
			{
				const uint8_t *from = source(c, p);

				if (!from)
					continue;
				cvy_get<PACKET>(from, word, c->bytes, v);
				cvy_push_to<PACKET>(c, r, s, 0, u, p, v);
			}
		}
#pragma unroll 1
		for (int row = 0; row < cvy_rows<ROWS>(c); row++) {
			if (!cvy_packet<PACKET>(s, row, words, &u, &word, &nw))
				break;
			if (take(c, r, s, u, word, nw, gone))
				return 1;
		}
		return 0;
	}

	static __device__ __forceinline__ int take(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						   const struct cvy_step *s, int u, uint64_t word, int nw,
						   uint32_t gone)
	{
		uint32_t sources = 0;
		uint64_t own[2] = { 0, 0 };

		if (c->kind != CVY_GPU_GATHER)
			sources = 1u << c->root & r->lane.mask & ~gone;
		else if (c->rank == c->root)
			sources = r->lane.mask & ~gone & (c->size < CVY_GPU_RANKS ? (1u << c->size) - 1 : ~0u);
		if (cvy_has(sources, c->rank))
			cvy_get<PACKET>(source(c, c->rank), word, c->bytes, own);
		if (cvy_each_source<PACKET>(c, r, s, 0, u, sources, own, [&](int rank, const uint64_t *v) {
			    cvy_set(place(c, rank), word, nw, c->bytes, v);
		    }))
			return 1;
		if (c->kind == CVY_GPU_GATHER && c->rank == c->root)
			cvy_zero_blocks(c, ~sources, word, nw);
		return 0;
	}
};

#endif
