/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a call: packets, lanes, threads, rows, one shot or two. It follows from the call alone, so it is the same on
 * all ranks and for any contributors. The bounds were fastest on H200s (BENCHMARKS.md); each is a row here and nowhere else.
 */
#ifndef CVY_GPU_SHAPE_H
#define CVY_GPU_SHAPE_H

#include "covey.h"
#include "layout.h"

struct cvy_gpu_shape {
	uint64_t to; /* bytes of a block */
	int packet, threads, rows;
};

CVY_GPU_BOTH static inline struct cvy_gpu_shape cvy_gpu_shape_of(uint64_t bytes)
{
	const struct cvy_gpu_shape table[] = {
		{ 256, CVY_GPU_PAIR, 32, 1 },
		{ 128 << 10, CVY_GPU_PAIR, 256, 1 },
		{ 256 << 10, CVY_GPU_LINE, 256, 1 },
		{ 960 << 10, CVY_GPU_LINE, 512, 1 },
		{ 1920 << 10, CVY_GPU_LINE, 512, 2 },
		{ 2880 << 10, CVY_GPU_LINE, 512, 3 },
		{ UINT64_MAX, CVY_GPU_LINE, 512, CVY_GPU_ROWS },
	};
	int i = 0;

	while (bytes > table[i].to ||
	       (table[i].packet == CVY_GPU_PAIR && bytes > (uint64_t)CVY_GPU_LANES * table[i].threads * 8))
		i++; /* pairs go in one step: builds for many ranks have fewer lanes */
	return table[i];
}

#define CVY_GPU_TWO_SHOT ((uint64_t)64 << 10) /* with more than two ranks it moves less than one shot from here */

/*
 * A broadcast or a reduce from here on: what the root need not send or receive, once for every rank but two, takes longer
 * than one more hop (1.5 us at 370 GB/s; 277 KB with four ranks, 555 with three). Chosen by that, not measured.
 */
#define CVY_GPU_TWO_HOP ((uint64_t)512 << 10)

/*
 * An allgather among several hosts, of larger blocks: it takes one more hop, within the host (5 us), and sends half as many
 * blocks between hosts, or fewer. Chosen by that, not measured. Of smaller blocks a step would be too few rows for all hosts.
 */
#define CVY_GPU_LEVELS_GATHER ((uint64_t)256 << 10)

/*
 * Of alltoallv nobody knows the others' counts, and lanes must be alike: one form for all. The largest step, in as many
 * lanes as find room on a device whatever it is. Chosen, not measured.
 */
#define CVY_GPU_UNEVEN_LANES (CVY_GPU_LANES < 32 ? CVY_GPU_LANES : 32)

#define CVY_GPU_PULL ((uint64_t)16 << 20) /* from here on it pays to ask whether buffers are registered */

/* Is it an operation that reads registered buffers where they stand? */
CVY_GPU_BOTH static inline int cvy_gpu_pulls(const struct cvy_gpu_call *c)
{
	return (c->kind <= CVY_GPU_ALLTOALL || cvy_gpu_is_broadcast(c->kind)) && c->bytes >= CVY_GPU_PULL &&
	       c->bytes % CVY_GPU_PACKET == 0;
}

/*
 * Can an operation of this kind and form go in two levels (levels.cuh)? A rank sends half of the bytes between hosts, or
 * less; the hops take 15 us more. Its results replace inputs in place, and some ranks alone may call in place: so only calls
 * that cannot be done again in the flat form either, those of several steps. A broadcast in two levels has no more hops
 * between hosts than one in two hops.
 */
static inline int cvy_gpu_can_levels(const struct cvy_gpu_call *c)
{
	if (CVY_GPU_IS_WIDE || c->packet != CVY_GPU_LINE)
		return 0;
	return c->kind == CVY_GPU_ALLGATHER || c->kind == CVY_GPU_BROADCAST_TWO_HOP ||
	       (c->steps > 1 && (c->kind == CVY_GPU_REDUCE_SCATTER || c->kind == CVY_GPU_ALLREDUCE_TWO_SHOT));
}

/* And does that pay? */
static inline int cvy_gpu_has_levels(const struct cvy_gpu_call *c)
{
	return cvy_gpu_can_levels(c) && (c->kind != CVY_GPU_ALLGATHER || c->bytes > CVY_GPU_LEVELS_GATHER);
}

static inline int cvy_gpu_has_sign(int dtype)
{
	return dtype == COVEY_INT8 || dtype == COVEY_INT32 || dtype == COVEY_INT64;
}

/* Types that are seldom reduced on devices: they share one kernel (reduce.cuh), which goes the long way. */
static inline int cvy_gpu_is_other(int dtype)
{
	return dtype == COVEY_INT8 || dtype == COVEY_UINT8 || dtype == COVEY_INT16 || dtype == COVEY_INT64 ||
	       dtype == COVEY_UINT64 || dtype == COVEY_FLOAT64;
}

/* Derives the other fields of a call whose form is set. */
static inline void cvy_gpu_derive(struct cvy_gpu_call *c)
{
	c->steps = cvy_gpu_steps(c, (c->bytes + 7) / 8);
	c->send_stride = cvy_gpu_has_blocks(c->kind) ? c->bytes : 0;
	c->pulls = cvy_gpu_pulls(c);
	c->fold = c->redop | (cvy_gpu_has_sign(c->dtype) ? CVY_GPU_SIGNED : 0);
	c->plain = CVY_GPU_LONG_WAY;
	if (cvy_gpu_folds(c->kind) && cvy_gpu_is_other(c->dtype))
		c->fold |= c->dtype << CVY_GPU_OTHER_SHIFT;
	else if (c->redop == COVEY_SUM && !(((uintptr_t)c->send | (uintptr_t)c->recv | c->bytes) & 7))
		c->plain = CVY_GPU_WHOLE;
	else if (c->redop == COVEY_SUM && !cvy_gpu_has_rounds(c->kind))
		c->plain = CVY_GPU_PARTS;
}

/*
 * Fills in the form of a call whose kind, bytes and size are set. Nothing may follow from in_place, which may differ between
 * ranks, or from `size`, which grows under a graph.
 */
static inline void cvy_gpu_shape(struct cvy_gpu_call *c)
{
	struct cvy_gpu_shape s = cvy_gpu_shape_of(c->kind == CVY_GPU_ALLTOALLV ? UINT64_MAX : c->bytes);
	uint64_t words = (c->bytes + 7) / 8;

	c->packet = s.packet;
	c->threads = s.threads;
	c->rows = s.rows;
	c->lanes = c->kind == CVY_GPU_ALLTOALLV ? CVY_GPU_UNEVEN_LANES : 1;
	while (c->kind != CVY_GPU_ALLTOALLV && c->lanes < CVY_GPU_LANES &&
	       cvy_gpu_tile_words(c->packet, c->rows * c->threads) * (uint64_t)c->lanes < words)
		c->lanes *= 2;
	if (c->kind == CVY_GPU_ALLREDUCE && c->bytes > CVY_GPU_TWO_SHOT)
		c->kind = CVY_GPU_ALLREDUCE_TWO_SHOT;
	if (c->kind == CVY_GPU_BROADCAST && c->bytes > CVY_GPU_TWO_HOP)
		c->kind = CVY_GPU_BROADCAST_TWO_HOP;
	if (c->kind == CVY_GPU_REDUCE && c->bytes > CVY_GPU_TWO_HOP)
		c->kind = CVY_GPU_REDUCE_TWO_SHOT;
	cvy_gpu_derive(c);
	c->levels = cvy_gpu_has_levels(c);
}

#endif
