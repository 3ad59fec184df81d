/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the kinds of operations: bytes of parts and pieces, and how these are published. */
#ifndef CVY_ALGO_H
#define CVY_ALGO_H

#include <stdlib.h>

#include "copy.h"
#include "op.h"
#include "size.h"

#define CVY_GIVE_BYTES (2u << 20) /* of one tick, from all sources: the most that a repair message carries */

#define CVY_ONE_SHOT_BYTES (32u << 10) /* up to here each rank folds all of an allreduce */

#define CVY_PART_MIN 128 /* bytes of a slot that alltoall needs for each rank: header and one line */

#define CVY_STREAM_BYTES (8u << 20) /* outputs larger than any cache */

/* counts and displacements in elements, [size] each, counts the same on all ranks; 0 or NOMEM */
int cvy_allgatherv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *counts, const size_t *displs);
/* counts and displacements in elements, [size] each; 0 or NOMEM */
int cvy_alltoallv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *sendcounts,
		       const size_t *senddispls, const size_t *recvcounts, const size_t *recvdispls);

struct cvy_block {
	size_t at, bytes;
};

/* Blocks in op->recv: op->priv of a kind with v, where they differ. */
struct cvy_blocks {
	int size;
	struct cvy_block *of; /* [size]; alltoallv: then as many in op->send */
};

/* The block of @rank in op->recv. */
static inline struct cvy_block cvy_block_of(const struct cvy_op *op, int rank)
{
	const struct cvy_blocks *b = (const struct cvy_blocks *)op->priv;
	struct cvy_block even = { (size_t)rank * op->bytes, op->bytes };

	return b ? b->of[rank] : even;
}

void cvy_zero_missing(struct cvy_engine *e, struct cvy_op *op); /* the blocks of missing ranks: a finish() */
/* @n of them into op->priv, 0: NOMEM. Released by the other. */
struct cvy_blocks *cvy_new_blocks(struct cvy_op *op, int size, int n);
void cvy_free_blocks(struct cvy_op *op);

/* Publishes tick i of broadcast and allgather, or @bytes of it; finds and takes that of the k-th source. */
void cvy_publish_piece(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
void cvy_publish_bytes(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line, size_t bytes);
const uint8_t *cvy_piece_of(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k);
void cvy_take_piece(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t n);

/* For reduce and gather: publishes a piece of the input, which only the root reads. */
void cvy_publish_to_root(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
/* For reduce_scatter and scatter: publishes a piece of each rank's part; up to CVY_LINE_DATA bytes are in the line. */
void cvy_publish_parts(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);

/* Bytes of tick i of a block of @total bytes: 0 when the block has ended. */
static inline size_t cvy_part_of_tick(size_t total, size_t piece, uint64_t i)
{
	size_t at = (size_t)i * piece;

	if (at >= total)
		return 0;
	return total - at < piece ? total - at : piece;
}

/* Ticks of one block of op->bytes in pieces. */
static inline void cvy_plan_ticks(struct cvy_op *op, size_t piece)
{
	op->piece = piece;
	op->ticks = op->bytes ? (op->bytes + piece - 1) / piece : 1;
}

/* Bytes of an input that results overwrite if send is recv. */
static inline size_t cvy_plan_in_place(const struct cvy_op *op, size_t bytes)
{
	return op->send == op->recv ? bytes : 0;
}

/* Shard k of n of a tick: whole cache lines but for the last. */
static inline void cvy_shard(size_t bytes, int k, int n, size_t *at, size_t *len)
{
	size_t each = cvy_round_up(bytes / (size_t)n, CVY_CACHE_LINE);

	*at = each * (size_t)k < bytes ? each * (size_t)k : bytes;
	*len = bytes - *at < each || k == n - 1 ? bytes - *at : each;
}

/* A slot that holds one part for each rank: bytes of a part. */
static inline size_t cvy_part_bytes(const struct cvy_engine *e, int size)
{
	const struct cvy_site *here = cvy_site(e);

	return cvy_round_down(here->layout.stride / (size_t)size, CVY_CACHE_LINE);
}

/* Bytes of a part that is passed on to a host. */
static inline size_t cvy_hosts_part(const struct cvy_op *op)
{
	return cvy_round_up(op->bytes < op->piece ? op->bytes : op->piece, CVY_CACHE_LINE);
}

/* Offset of the k-th source's part among them; of a root there is only one. */
static inline size_t cvy_hosts_place(const struct cvy_engine *e, const struct cvy_op *op, int k)
{
	const struct cvy_site *here = cvy_site(e);

	return op->kind->op_class == CVY_OP_ROOT ? 0 : (size_t)here->set.hosts.place[k] * cvy_hosts_part(op);
}

#endif
