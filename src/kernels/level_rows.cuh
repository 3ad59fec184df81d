/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which words the rows of a step bear, in operations of two levels (levels.cuh). A row is one packet of each thread of a
 * warp, and stands at one place of the slots on the whole way. Each row has an *owner* among the likes: the like that makes
 * it, or has it. Rows of an owner follow each other.
 *
 *	pieces	the buffer is split into a piece for each rank of a host; the likes own parts of its rows
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
	uint64_t words; /* of a piece */
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
		words = pieces::shard_words(c, __popc(l->near));
		here = cvy_here_of<CVY_GPU_LINE, ROWS>(c, s, words);
	}

	/* Rows of the step that bear anything. */
	__device__ __forceinline__ int all(const struct cvy_gpu_call *c, const struct cvy_step *s,
					   const struct cvy_levels *) const
	{
		return (int)cvy_packets<CVY_GPU_LINE>(c->rows * (int)blockDim.x, s->base, words) / 32;
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
		pieces::template get<CVY_ANY>(c, cvy_level_index(l, rank), words, &here, v);
	}

	__device__ __forceinline__ void set(const struct cvy_gpu_call *c, const struct cvy_levels *l, int rank,
					    const uint64_t v[ROWS][2]) const
	{
		pieces::template set<CVY_ANY>(c, cvy_level_index(l, rank), words, &here, v);
	}
};

#endif
