/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm and how many ticks: set once, when an operation is posted, from size and layout alone, so alike on all ranks. */
#ifndef CVY_ALGO_H
#define CVY_ALGO_H

#include <stdlib.h>

#include "engine.h"

#define CVY_GIVE_BYTES (2u << 20) /* of one tick, from all sources: what a repair message carries */

#define CVY_PART_MIN 128 /* bytes of a slot that alltoall needs for each rank: header and one line */

#define CVY_STREAM_BYTES (8u << 20) /* outputs that no cache holds */

void cvy_allreduce_plan(struct cvy_engine *e, struct cvy_op *op, int size);
void cvy_broadcast_plan(struct cvy_engine *e, struct cvy_op *op);
void cvy_allgather_plan(struct cvy_engine *e, struct cvy_op *op, int size);
void cvy_alltoall_plan(struct cvy_engine *e, struct cvy_op *op, int size);
void cvy_reduce_plan(struct cvy_engine *e, struct cvy_op *op);
void cvy_reduce_scatter_plan(struct cvy_engine *e, struct cvy_op *op, int size);
void cvy_gather_plan(struct cvy_engine *e, struct cvy_op *op);
void cvy_scatter_plan(struct cvy_engine *e, struct cvy_op *op, int size);
/* counts and displacements in elements, [size] each, counts alike on all ranks; 0 or NOMEM */
int cvy_allgatherv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *counts, const size_t *displs);
/* counts and displacements in elements, [size] each; 0 or NOMEM */
int cvy_alltoallv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *sendcounts,
		       const size_t *senddispls, const size_t *recvcounts, const size_t *recvdispls);

/* What broadcast and allgather publish of tick i, and where the k-th source's stands. */
void cvy_publish_piece(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
const uint8_t *cvy_piece_of(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k);

/* What reduce and gather publish: a piece of the input, which the root alone reads. */
void cvy_publish_to_root(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
/* What reduce_scatter and scatter publish: a piece of each rank's part; a piece of CVY_LINE_DATA stands in the line. */
void cvy_publish_parts(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);

/* Bytes of tick i of a block of @total bytes: none when the block has ended. */
static inline size_t cvy_part_of_tick(size_t total, size_t piece, uint64_t i)
{
	size_t at = (size_t)i * piece;

	if (at >= total)
		return 0;
	return total - at < piece ? total - at : piece;
}

/* A slot that holds one part for each rank: bytes of a part. */
static inline size_t cvy_part_bytes(const struct cvy_engine *e, int size)
{
	return e->layout.stride / (size_t)size / 64 * 64;
}

/* memcpy; `stream`: past the caches */
void cvy_copy_out(uint8_t *dst, const uint8_t *src, size_t bytes, int stream);

#endif
