/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of others in a step, for all bodies: the same packets of all sources, awaited, and handed over in ascending rank;
 * and their results, a fold or blocks.
 */
#ifndef CVY_TAKE_CUH
#define CVY_TAKE_CUH

#include "step.cuh"

/* A pair of each of @sources, four at a time, handed to each(rank, first, v) in ascending order. 1: stopped. */
template <typename EACH>
static __device__ __forceinline__ int cvy_each_pair(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, cvy_ranks sources,
						    const uint64_t own[1][2], EACH each)
{
	const int first = cvy_ranks_first(sources);
	int rank = 0;

#pragma unroll 1
	while (cvy_ranks_any_from(sources, rank)) {
		const uint8_t *at[4];
		uint64_t v[4][1][2];
		unsigned need = 0;
		int whom[4];

#pragma unroll
		for (int i = 0; i < 4; i++) {
			rank = cvy_ranks_next(sources, rank);
			whom[i] = rank;
			v[i][0][0] = own[0][0];
			v[i][0][1] = own[0][1];
			need |= (unsigned)(rank < CVY_GPU_RANKS && rank != c->rank) << i;
			at[i] = cvy_from(c, r, rank % CVY_GPU_RANKS) + packet;
			rank++;
		}
		if (cvy_wait_pairs(at, whom, need, s->tag, (uint64_t(*)[2])v, &r->watch))
			return 1;
		if (cvy_far(r)) { /* from memory of the host: only words of 8 bytes are whole */
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (need >> i & 1)
					cvy_load_packet(at[i], v[i][0]);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (whom[i] < CVY_GPU_RANKS)
				each(whom[i], whom[i] == first, v[i]);
	}
	return 0;
}

/*
 * All threads of a warp, behind the loads of N sources: was a line written over meanwhile by a source that has gone on by
 * deadlines? As in cvy_read_lines(), but each thread looks at one tag for all. Only the last step is asked: such a source has
 * completed the operation, so this rank has pushed all of it and has read the earlier steps.
 */
template <int ROWS, int N>
static __device__ __forceinline__ int cvy_lines_lost(const uint8_t *const at[N], int rows, size_t apart, uint64_t tag)
{
	const int lane = (int)threadIdx.x % 32, row = lane / 4 % ROWS;
	const uint8_t *whose = NULL;
	int lost = 0;

#pragma unroll
	for (int k = 0; k < N; k++)
		if (lane / (4 * ROWS) == k)
			whose = at[k];
	__syncwarp();
	if (whose && row < rows)
		lost = cvy_load_word((const uint64_t *)(whose - lane * CVY_GPU_PACKET + row * apart + lane % 4 * 128 +
							120)) != tag;
	return __any_sync(0xffffffffu, lost);
}

/* Where what @rank pushes stands. */
template <int WORDS>
static __device__ __forceinline__ const uint8_t *cvy_chunk_of(const struct cvy_gpu_call *c,
							      const struct cvy_lane_run *r, int rank)
{
	return WORDS != CVY_ANY ? cvy_straight_from(c, r, rank) : cvy_from(c, r, rank);
}

/* All threads of a warp: until the lines that all of @sources have sent are here. 1: stopped. */
template <int ROWS, int WORDS>
static __device__ __forceinline__ int cvy_wait_rows(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows, size_t apart,
						    cvy_ranks sources)
{
	const size_t line = packet - threadIdx.x % 32 * CVY_GPU_PACKET;

	return cvy_wait_lines_of<ROWS>(cvy_ranks_without(sources, c->rank), rows, apart, s->tag, &r->watch,
				       [&](int rank) { return cvy_chunk_of<WORDS>(c, r, rank) + line; });
}

/* A warp: what one source has sent, handed to each(rank, first, v). 1: it was written over meanwhile, and is not. */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_rows(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows, int whom,
						    int first, EACH each)
{
	const size_t apart = blockDim.x * CVY_GPU_PACKET;
	const uint8_t *const at[1] = { cvy_chunk_of<WORDS>(c, r, whom) + packet };
	uint64_t v[1][ROWS][2]; /* without the 1 nvcc spills other words: 2 percent slower */

#pragma unroll
	for (int i = 0; i < ROWS; i++)
		if (i < rows)
			cvy_load_packet(at[0] + i * apart, v[0][i]);
	if (CVY_GUARDED && s->last && cvy_lines_lost<ROWS, 1>(at, rows, apart, s->tag))
		return 1;
	each(whom, first, v[0]);
	return 0;
}

/*
 * The data of all sources, one after the other. The first source and this rank have code of their own: words that come on two
 * paths would be moved from register to register where the paths meet. 1: as above.
 */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_each(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						    const struct cvy_step *s, size_t packet, int rows,
						    cvy_ranks sources, const uint64_t own[ROWS][2], EACH each)
{
	const int begins = cvy_ranks_first(sources);

	if (begins == c->rank)
		each(begins, 1, own);
	else if (cvy_take_rows<ROWS, WORDS>(c, r, s, packet, rows, begins, 1, each))
		return 1;
#pragma unroll 1
	for (cvy_ranks left = cvy_ranks_rest(sources); cvy_ranks_any(left); left = cvy_ranks_rest(left)) {
		const int whom = cvy_ranks_first(left);

		if (whom == c->rank)
			each(whom, 0, own);
		else if (cvy_take_rows<ROWS, WORDS>(c, r, s, packet, rows, whom, 0, each))
			return 1;
	}
	return 0;
}

/* The same of one row, of four sources at a time. */
template <int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_take_fours(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
						     const struct cvy_step *s, size_t packet, int rows,
						     cvy_ranks sources, const uint64_t own[1][2], EACH each)
{
	const int begins = cvy_ranks_first(sources);
	int lost = 0;

#pragma unroll 1
	for (cvy_ranks left = sources; cvy_ranks_any(left) && !lost;) {
		uint64_t v[4][1][2];
		const uint8_t *at[4];
		int whom[4];

#pragma unroll
		for (int k = 0; k < 4; k++) {
			whom[k] = cvy_ranks_first(left);
			left = cvy_ranks_rest(left);
			at[k] = whom[k] < 0 || whom[k] == c->rank ? NULL : cvy_chunk_of<WORDS>(c, r, whom[k]) + packet;
			v[k][0][0] = own[0][0];
			v[k][0][1] = own[0][1];
			if (at[k] && rows)
				cvy_load_packet(at[k], v[k][0]);
		}
		if (CVY_GUARDED && s->last)
			lost = cvy_lines_lost<1, 4>(at, rows, 0, s->tag);
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (whom[k] >= 0 && !lost)
				each(whom[k], whom[k] == begins, v[k]);
	}
	return lost;
}

/* As cvy_each_source(), from @packet on, of lines. A wait for data that were written over has no end, but tells the host. */
template <int ROWS, int WORDS, typename EACH>
static __device__ __forceinline__ int cvy_each_of_rows(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						       const struct cvy_step *s, size_t packet, int rows,
						       cvy_ranks sources, const uint64_t own[ROWS][2], EACH each)
{
	const size_t apart = blockDim.x * CVY_GPU_PACKET;
	int lost;

	do {
		if (cvy_wait_rows<ROWS, WORDS>(c, r, s, packet, rows, apart, sources))
			return 1;
		if constexpr (ROWS == 1)
			lost = cvy_take_fours<WORDS>(c, r, s, packet, rows, sources, own, each);
		else
			lost = cvy_ranks_any(sources) &&
			       cvy_take_each<ROWS, WORDS>(c, r, s, packet, rows, sources, own, each);
	} while (lost);
	return 0;
}

/*
 * The same packets of all @sources, row @row of the thread and those of @rows after it, handed to each(rank, first, v) in ascending
 * order, v[row][2]. Own words come from @own where this rank is among them. 1: stopped.
 */
template <int PACKET, int ROWS, int WORDS = CVY_ANY, typename EACH>
static __device__ __forceinline__ int cvy_each_source(const struct cvy_gpu_call *c, struct cvy_lane_run *r,
						      const struct cvy_step *s, int round, int row, int rows,
						      cvy_ranks sources, const uint64_t own[ROWS][2], EACH each)
{
	const size_t packet = cvy_gpu_slot_at(round, r->index, s->count) + (size_t)cvy_row(row) * CVY_GPU_PACKET;

	static_assert(PACKET == CVY_GPU_LINE || ROWS == 1, "pairs go in one row (shape.h)");
	if constexpr (PACKET == CVY_GPU_PAIR)
		return rows ? cvy_each_pair(c, r, s, packet, sources, own, each) : 0;
	else
		return cvy_each_of_rows<ROWS, WORDS>(c, r, s, packet, rows, sources, own, each);
}

/* ---- results ---- */

/* The fold of a packet's words, in the order in which sources are handed over; @how: `fold` of the call; @first: of the first. */
template <typename T, int PACKET> struct cvy_fold {
	enum { WORDS = PACKET == CVY_GPU_PAIR ? 1 : 2 };
	cvy_acc<T> acc[WORDS];

	__device__ __forceinline__ void add(const uint64_t v[2], int how, int first)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (first)
				acc[i].first(v[i]);
			else if constexpr (std::is_same<T, cvy_other>::value)
				acc[i].word = cvy_fold_other(acc[i].word, v[i], how, 0);
			else if (cvy_redop(how) == COVEY_SUM || cvy_redop(how) == COVEY_AVG)
				acc[i].template fold_as<COVEY_SUM>(v[i]);
			else
				acc[i] = cvy_fold_rare<T>(acc[i], v[i], how);
		}
	}

	__device__ __forceinline__ void result(uint64_t out[2], int how, int n)
	{
#pragma unroll
		for (int i = 0; i < WORDS; i++) {
			if (cvy_redop(how) == COVEY_AVG) {
				if constexpr (std::is_same<T, cvy_other>::value)
					acc[i].word = cvy_fold_other(acc[i].word, 0, how, n);
				else
					acc[i] = cvy_average<T>(acc[i], how, n);
			}
			out[i] = acc[i].result();
		}
	}
};

/* Blocks of ranks that do not contribute are zero; of ranks past the buffers (the group has grown since) nothing is kept. */
template <int PACKET>
static __device__ __noinline__ void cvy_zero_blocks(const struct cvy_gpu_call *c, cvy_ranks absent, uint64_t word,
						    int n)
{
	const uint64_t zero[2] = { 0, 0 };

#pragma unroll 1
	for (int p = 0; p < c->size; p++)
		if (cvy_has(absent, p))
			cvy_set<PACKET>(c->recv + (size_t)p * c->bytes, word, n, c->bytes, zero);
}

template <int PACKET>
static __device__ __noinline__ void cvy_zero_rows(const struct cvy_gpu_call *c, cvy_ranks absent, struct cvy_here h)
{
#pragma unroll 1
	for (int i = 0; i < h.rows; i++)
		cvy_zero_blocks<PACKET>(c, absent, h.word + cvy_row_words<PACKET>(i), h.n);
}

/* Ranks that the buffers have a block of. */
static __device__ __forceinline__ cvy_ranks cvy_blocks(const struct cvy_gpu_call *c)
{
	return cvy_ranks_up_to(c->size);
}

#endif
