/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which form a call takes: packets, lanes, threads, rows, one shot or two. From the call alone, so alike on all ranks, and
 * whoever contributes. The bounds are what was fastest on H200s (BENCHMARKS.md); each is a row here and nowhere else.
 */
#ifndef CVY_GPU_SHAPE_H
#define CVY_GPU_SHAPE_H

#include "layout.h"

struct cvy_gpu_shape {
	uint64_t to; /* bytes of a block */
	int packet, threads, rows;
};

CVY_GPU_BOTH static inline struct cvy_gpu_shape cvy_gpu_shape_of(uint64_t bytes)
{
	const struct cvy_gpu_shape table[] = {
		{ 256, CVY_GPU_PAIR, 32, 1 },	     { 64 << 10, CVY_GPU_PAIR, 256, 1 },
		{ 256 << 10, CVY_GPU_LINE, 256, 1 }, { 1 << 20, CVY_GPU_LINE, 512, 1 },
		{ 2 << 20, CVY_GPU_LINE, 512, 2 },   { UINT64_MAX, CVY_GPU_LINE, 512, CVY_GPU_ROWS },
	};
	int i = 0;

	while (bytes > table[i].to)
		i++;
	return table[i];
}

#define CVY_GPU_TWO_SHOT ((uint64_t)64 << 10) /* with more than two ranks it moves less than one shot from here */

/* Fills in the form of a call whose kind, bytes, size and in_place are set. */
static inline void cvy_gpu_shape(struct cvy_gpu_call *c)
{
	struct cvy_gpu_shape s = cvy_gpu_shape_of(c->bytes);
	uint64_t words = (c->bytes + 7) / 8;

	c->packet = s.packet;
	c->threads = s.threads;
	c->rows = s.rows;
	c->lanes = 1;
	while (c->lanes < CVY_GPU_LANES &&
	       cvy_gpu_tile_words(c->packet, c->rows * c->threads) * (uint64_t)c->lanes < words)
		c->lanes *= 2;
	/* In place the two-shot form could not be done again. */
	if (c->kind == CVY_GPU_ALLREDUCE && c->size > 2 && c->bytes > CVY_GPU_TWO_SHOT && !c->in_place)
		c->kind = CVY_GPU_ALLREDUCE_TWO_SHOT;
	c->steps = cvy_gpu_steps(c, words);
}

#endif
