/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allgather and allgatherv: each rank publishes its block piece by piece, everyone copies all blocks. Missing ranks'
 * blocks are zero. With v, blocks differ in size. All ranks name all counts, and the signature covers them. So all
 * ranks know the number of ticks, that of the largest block.
 */
#include "algo.h"
#include "hash.h"
#include "kinds.h"

static void allgather_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);
	size_t piece = here->layout.slot_bytes;

	if (piece > CVY_GIVE_BYTES / (size_t)size)
		piece = cvy_round_down(CVY_GIVE_BYTES / (size_t)size, CVY_CACHE_LINE);
	cvy_plan_ticks(op, piece);
}

int cvy_allgatherv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *counts, const size_t *displs)
{
	struct cvy_blocks *b = cvy_new_blocks(op, size, size);

	if (!b)
		return COVEY_ERR_NOMEM;
	op->bytes = 0;
	for (int r = 0; r < size; r++) {
		b->of[r].bytes = counts[r] * op->elem;
		b->of[r].at = displs[r] * op->elem;
		if (b->of[r].bytes > op->bytes)
			op->bytes = b->of[r].bytes;
		op->detail = (op->detail ^ counts[r] ^ (uint64_t)r << 56) * CVY_SPREAD_MORE;
		op->detail ^= op->detail >> 32;
	}
	allgather_plan(e, op, size);
	return 0;
}

/* Bytes of tick i of the block of @rank. */
static size_t tick_of(const struct cvy_op *op, uint64_t i, int rank)
{
	return cvy_part_of_tick(cvy_block_of(op, rank).bytes, op->piece, i);
}

/* Where they are in the result. */
static uint8_t *place_of(const struct cvy_op *op, uint64_t i, int rank)
{
	return (uint8_t *)op->recv + cvy_block_of(op, rank).at + i * op->piece;
}

static void allgatherv_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	size_t n = tick_of(op, i, cvy_site(e)->rank);

	line->bytes = (uint32_t)n;
	if (n) /* else there may be no input */
		cvy_publish_bytes(e, op, i, line, n);
}

static void allgather_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	for (int k = 0; k < here->set.n; k++) {
		size_t n = tick_of(op, i, here->set.rank[k]);
		uint8_t *to = place_of(op, i, here->set.rank[k]);

		if (n && !(k == here->set.self && to == op->input + i * op->piece))
			memcpy(to, cvy_piece_of(e, op, i, k), n);
	}
}

/* the pieces of all sources, ascending; the outcome's mask names the sources */
static size_t allgather_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	const struct cvy_site *here = cvy_site(e);
	size_t at = 0;

	for (int k = 0; k < here->set.n; k++) {
		size_t n = tick_of(op, i, here->set.rank[k]);

		if (n)
			memcpy(out + at, cvy_piece_of(e, op, i, k), n);
		at += n;
	}
	return at;
}

static void allgather_take(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t total)
{
	const struct cvy_site *here = cvy_site(e);
	size_t at = 0;

	for (int k = 0; k < here->set.n; k++) {
		size_t n = tick_of(op, i, here->set.rank[k]);

		if (at + n > total)
			return;
		if (n)
			memcpy(place_of(op, i, here->set.rank[k]), bytes + at, n);
		at += n;
	}
}

void cvy_zero_missing(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_blocks *b = op->priv;
	int size = b ? b->size : op->result.size;

	(void)e;
	for (int r = 0; !op->result.status && r < size; r++)
		if (!covey_mask_has(&op->result.mask, r) && cvy_block_of(op, r).bytes)
			memset(place_of(op, 0, r), 0, cvy_block_of(op, r).bytes);
}

struct cvy_blocks *cvy_new_blocks(struct cvy_op *op, int size, int n)
{
	struct cvy_blocks *b = calloc(1, sizeof(*b) + (size_t)n * sizeof(b->of[0]));

	if (!b)
		return NULL;
	b->size = size;
	b->of = (struct cvy_block *)(b + 1);
	op->priv = b;
	return b;
}

void cvy_free_blocks(struct cvy_op *op)
{
	free(op->priv);
}

const struct cvy_op_kind cvy_op_allgather = {
	.name = "allgather",
	.op_class = CVY_OP_ALL,
	.plan = allgather_plan,
	.publish = cvy_publish_piece,
	.consume = allgather_consume,
	.give = allgather_give,
	.take = allgather_take,
	.finish = cvy_zero_missing,
	.lends = 1,
};

const struct cvy_op_kind cvy_op_allgatherv = {
	.name = "allgatherv",
	.op_class = CVY_OP_ALL,
	.publish = allgatherv_publish,
	.consume = allgather_consume,
	.give = allgather_give,
	.take = allgather_take,
	.finish = cvy_zero_missing,
	.release = cvy_free_blocks,
};
