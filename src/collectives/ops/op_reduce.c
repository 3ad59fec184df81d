/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce: every rank publishes its input for the root alone, which folds all of them in the slots. The others wait for
 * the root's second line, stored when all inputs are there. So no rank is done before the root is sure to be, and a
 * laggard needs no bytes from anyone. On one host the lines of all show the same, without the way back: a root that
 * lags then folds in repair what they saw.
 *
 * reduce_scatter: a slot holds one part for each rank, and each folds its own. Data that a dead rank had published
 * count. A rank that lacks some of them has no sum at all (LOST), since others may have one with all contributors.
 */
#include "algo.h"
#include "kinds.h"
#include "lend.h"
#include "reduce.h"

/* ---- reduce ---- */

static void reduce_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);

	(void)size;
	op->rounds = 2;
	cvy_plan_ticks(op, cvy_round_down(here->layout.slot_bytes, CVY_CACHE_LINE));
	op->input_bytes = op->root == here->rank ? cvy_plan_in_place(op, op->bytes) : 0;
}

static int in_line(const struct cvy_op *op)
{
	return op->bytes <= CVY_LINE_DATA;
}

void cvy_publish_to_root(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i);
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)bytes;
	line->aux = op->root == here->rank ? 0 : op->lends;
	if (op->root == here->rank || op->lends)
		return;
	if (in_line(op)) {
		cvy_copy_few(line->data, op->input, bytes);
		return;
	}
	cvy_copy_in(slot, op->input + i * op->piece, bytes);
	cvy_put(e, op->root, slot, bytes);
}

/* Folds tick i of all sources, which have it @at a place in their lines, or in their slots. */
static void fold(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *own, int lined, size_t at)
{
	const struct cvy_site *here = cvy_site(e);

	for (int k = 0; k < here->set.n; k++) {
		if (k == here->set.self)
			here->set.src[k] = own + i * op->piece;
		else if (lined)
			here->set.src[k] = cvy_source_line(e, op, i, k, 1)->data + at;
		else
			here->set.src[k] = cvy_source_piece(e, op, i, k);
	}
	cvy_reduce((uint8_t *)op->recv + i * op->piece, here->set.src, here->set.n, cvy_tick_bytes(op, i) / op->elem,
		   op->dtype, op->redop, op->bytes >= CVY_STREAM_BYTES);
}

static void reduce_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	if (op->root == here->rank)
		fold(e, op, i, op->input, in_line(op), 0);
}

const struct cvy_op_kind cvy_op_reduce = {
	.name = "reduce",
	.op_class = CVY_OP_TO_ROOT,
	.plan = reduce_plan,
	.publish = cvy_publish_to_root,
	.consume = reduce_consume,
	.lends = 1,
};

/* ---- reduce_scatter ---- */

static void reduce_scatter_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	size_t all = op->bytes * (size_t)size;

	cvy_plan_ticks(op, all <= CVY_LINE_DATA ? CVY_LINE_DATA : cvy_part_bytes(e, size));
	op->input_bytes =
		(uintptr_t)op->recv - (uintptr_t)op->send < all ? op->bytes : 0; /* the own block, most likely */
}

static int blocks_in_line(const struct cvy_op *op)
{
	return op->piece == CVY_LINE_DATA;
}

void cvy_publish_parts(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i);
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)bytes;
	line->aux = op->lends;
	for (int k = 0; !op->lends && k < here->set.n; k++) {
		size_t r = (size_t)here->set.rank[k];
		const uint8_t *from = op->input + r * op->bytes + i * op->piece;

		if (k == here->set.self)
			continue;
		if (blocks_in_line(op)) {
			cvy_copy_few(line->data + r * op->bytes, from, bytes);
			continue;
		}
		cvy_copy_in(slot + r * op->piece, from, bytes);
		cvy_put(e, here->set.rank[k], slot + r * op->piece, bytes);
	}
}

static void reduce_scatter_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	size_t own = (size_t)here->rank * op->bytes;

	if (!here->some_lost)
		fold(e, op, i, op->input + own, blocks_in_line(op), own);
}

const struct cvy_op_kind cvy_op_reduce_scatter = {
	.name = "reduce_scatter",
	.op_class = CVY_OP_PRIVATE,
	.plan = reduce_scatter_plan,
	.publish = cvy_publish_parts,
	.consume = reduce_scatter_consume,
	.lends = 1,
	.whole = 1,
};
