/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which words the rows of a step bear, in operations of two levels (levels.cuh). A row is one packet of each thread of a
 * warp, and stands at one place of the slots on the whole way. Each row has an *owner* among the likes: the like that makes
 * it, or has it. Rows of an owner follow each other.
 *
 *	pieces	the buffer is split into a piece for each rank of a host; the likes own parts of its rows
 *	whole	the same, and the likes of one host own all rows: those of the root
 *	blocks	each rank has a block, and owns rows of that; as many of each like are in a step
 */
#ifndef CVY_LEVEL_ROWS_CUH
#define CVY_LEVEL_ROWS_CUH

#include "levels.h"
#include "two_shot.cuh"

#define CVY_LEVEL_ROW_BYTES (32 * CVY_GPU_PACKET)
#define CVY_LEVEL_ROW_WORDS ((uint64_t)(4 * CVY_LINE_WORDS))

static __device__ __forceinline__ int cvy_level_warps(void)
{
	return (int)(blockDim.x / 32);
}

/* Which of the ranks of its host is @rank of this host? */
static __device__ __forceinline__ int cvy_level_index(const struct cvy_levels *l, int rank)
{
	return __popc(l->near & ((1u << rank) - 1));
}

/* Rows from `from` to before `to`. */
struct cvy_level_part {
	int from, to;
};

template <typename T, int ROWS> struct cvy_level_pieces {
	typedef cvy_body_two_shot<T, CVY_GPU_LINE, ROWS> pieces;
	struct pieces::split split;
	struct cvy_here here;

	static __device__ __forceinline__ uint64_t tile(const struct cvy_gpu_call *c, const struct cvy_levels *)
	{
		return cvy_tile_words<CVY_GPU_LINE>(c->rows * (int)blockDim.x);
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, const struct cvy_levels *l)
	{
		return cvy_gpu_steps(c, pieces::shard_words(c, __popc(l->near)));
	}

	__device__ __forceinline__ void begin(const struct cvy_gpu_call *c, const struct cvy_lane_run *,
					      const struct cvy_step *s, const struct cvy_levels *l)
	{
		split = pieces::buffer(c, __popc(l->near));
		here = cvy_here_of<CVY_GPU_LINE, ROWS>(c, s, split.words);
	}

	/* Rows of the step that bear anything. */
	__device__ __forceinline__ int all(const struct cvy_gpu_call *c, const struct cvy_step *s,
					   const struct cvy_levels *) const
	{
		return (int)cvy_packets<CVY_GPU_LINE>(c->rows * (int)blockDim.x, s->base, split.words) / 32;
	}

	static __device__ __forceinline__ int first(const struct cvy_gpu_call *c, const struct cvy_levels *l, int like)
	{
		return (c->rows * cvy_level_warps() * like + l->hosts - 1) / l->hosts;
	}

	/* The rows that like number @like owns. */
	__device__ __forceinline__ struct cvy_level_part part(const struct cvy_gpu_call *c, const struct cvy_step *s,
							      const struct cvy_levels *l, int like) const
	{
		const int end = all(c, s, l), to = first(c, l, like + 1);

		return { first(c, l, like), to < end ? to : end };
	}

	/* Which like owns this warp's row @i? */
	__device__ __forceinline__ int owner(const struct cvy_gpu_call *c, const struct cvy_levels *l, int i) const
	{
		return cvy_row(i) / 32 * l->hosts / (c->rows * cvy_level_warps());
	}

	/* The words of @rank of this host. */
	__device__ __forceinline__ void get(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    uint64_t v[ROWS][2]) const
	{
		pieces::template get<CVY_ANY>(c, &split, cvy_level_index(l, rank), &here, v);
	}

	__device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    const uint64_t v[ROWS][2]) const
	{
		pieces::template set<CVY_ANY>(c, &split, cvy_level_index(l, rank), &here, v);
	}
};

template <int ROWS> struct cvy_level_blocks {
	int share, width; /* rows of each; ranks of a host */
	uint32_t mask;
	struct cvy_here here; /* of the block that row 0 is of */

	static __device__ __forceinline__ int most(const struct cvy_gpu_call *c, const struct cvy_levels *l)
	{
		return cvy_levels_share(c->rows, (int)blockDim.x, l->hosts);
	}

	static __device__ __forceinline__ uint64_t tile(const struct cvy_gpu_call *c, const struct cvy_levels *l)
	{
		return (uint64_t)most(c, l) * CVY_LEVEL_ROW_WORDS;
	}

	static __device__ __forceinline__ int steps(const struct cvy_gpu_call *c, const struct cvy_levels *l)
	{
		const uint64_t each = tile(c, l) * (uint64_t)c->lanes, words = (c->bytes + 7) / 8;

		return words ? (int)((words + each - 1) / each) : 1;
	}

	__device__ __forceinline__ void begin(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
					      const struct cvy_step *s, const struct cvy_levels *l)
	{
		const uint64_t words = (c->bytes + 7) / 8, left = words > s->base ? words - s->base : 0;
		const uint64_t rows = (left + CVY_LEVEL_ROW_WORDS - 1) / CVY_LEVEL_ROW_WORDS;

		share = rows < (uint64_t)most(c, l) ? (int)rows : most(c, l);
		width = CVY_GPU_WIDTH(r->lane.failed);
		mask = r->lane.mask;
		here.n = cvy_place<CVY_GPU_LINE>((int)threadIdx.x % 32, &here.word);
		here.word += s->base;
		here.rows = 0;
		while (here.rows < c->rows && cvy_row(here.rows) / 32 < share * l->hosts)
			here.rows++;
	}

	__device__ __forceinline__ int all(const struct cvy_gpu_call *, const struct cvy_step *,
					   const struct cvy_levels *l) const
	{
		return share * l->hosts;
	}

	__device__ __forceinline__ struct cvy_level_part part(const struct cvy_gpu_call *, const struct cvy_step *,
							      const struct cvy_levels *, int like) const
	{
		return { like * share, (like + 1) * share };
	}

	__device__ __forceinline__ int owner(const struct cvy_gpu_call *, const struct cvy_levels *, int i) const
	{
		return cvy_row(i) / 32 / share;
	}

	/* The like number @like of @rank of this host. */
	__device__ __forceinline__ int like_of(const struct cvy_levels *l, int rank, int like) const
	{
		const int host = cvy_nth(l->like, like) / width;

		return cvy_nth(cvy_levels_host(mask, host, width), cvy_level_index(l, rank));
	}

	/* The first word, in its block, of this thread's packet of row @i. */
	__device__ __forceinline__ uint64_t word(int i) const
	{
		return here.word + (uint64_t)(cvy_row(i) / 32 % share) * CVY_LEVEL_ROW_WORDS;
	}

	/* Row @i of the block at @block. */
	__device__ __forceinline__ void get_row(const struct cvy_gpu_call *c, const uint8_t *block, int i,
						uint64_t v[2]) const
	{
		cvy_get<CVY_GPU_LINE>(block, word(i), c->bytes, v);
	}

	__device__ __forceinline__ void set_row(const struct cvy_gpu_call *c, uint8_t *block, int i,
						const uint64_t v[2]) const
	{
		cvy_set<CVY_GPU_LINE>(block, word(i), here.n, c->bytes, v);
	}

	/* Words of row @i in blocks of ranks that do not contribute. */
	__device__ __forceinline__ void zero_row(const struct cvy_gpu_call *c, int i) const
	{
		if (cvy_blocks(c) & ~mask)
			cvy_zero_blocks<CVY_GPU_LINE>(c, ~mask, word(i), here.n);
	}

	/* What is sent to @rank of this host and its likes; to ranks past the buffers, zeros. */
	__device__ __forceinline__ void get(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    uint64_t v[ROWS][2]) const
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const int to = i < here.rows ? like_of(l, rank, owner(c, l, i)) : c->size;

			v[i][0] = v[i][1] = 0;
			if (to < c->size)
				get_row(c, c->send + (size_t)to * c->send_stride, i, v[i]);
		}
	}

	/* What has come of @rank of this host and its likes; of ranks past the buffers nothing is kept. */
	__device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    const uint64_t v[ROWS][2]) const
	{
#pragma unroll
		for (int i = 0; i < ROWS; i++) {
			const int of = i < here.rows ? like_of(l, rank, owner(c, l, i)) : c->size;

			if (of < c->size)
				set_row(c, c->recv + (size_t)of * c->bytes, i, v[i]);
		}
	}
};

/* All rows are of the likes of host number `from`, which is the root's. */
template <int ROWS> struct cvy_level_whole : cvy_level_pieces<uint64_t, ROWS> {
	int from;

	__device__ __forceinline__ void begin(const struct cvy_gpu_call *c, const struct cvy_lane_run *r,
					      const struct cvy_step *s, const struct cvy_levels *l)
	{
		const int width = CVY_GPU_WIDTH(r->lane.failed);

		cvy_level_pieces<uint64_t, ROWS>::begin(c, r, s, l);
		from = __popc(l->like & ((1u << c->root / width * width) - 1));
	}

	__device__ __forceinline__ struct cvy_level_part part(const struct cvy_gpu_call *c, const struct cvy_step *s,
							      const struct cvy_levels *l, int like) const
	{
		return { 0, like == from ? this->all(c, s, l) : 0 };
	}

	__device__ __forceinline__ int owner(const struct cvy_gpu_call *, const struct cvy_levels *, int) const
	{
		return from;
	}

	/* The root's words are not stored over themselves. */
	__device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    const uint64_t v[ROWS][2]) const
	{
		if (c->rank != c->root || c->recv != c->send)
			cvy_level_pieces<uint64_t, ROWS>::set(c, l, rank, v);
	}
};

#endif
