/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: as reduce (op_reduce.c), with copies instead of folds. All blocks of the outcome's mask are on the root, or
 * no rank is done.
 *
 * scatter: the root's slot holds one part for each rank. The root may run ahead as far as the slots allow. A laggard
 * asks for its part: the root has it, and every rank of its host sees it. If all of these are gone, it is lost.
 */
#include "algo.h"
#include "kinds.h"

/* ---- gather ---- */

static void gather_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);

	(void)size;
	op->rounds = 2;
	cvy_plan_ticks(op, here->layout.slot_bytes);
}

static void gather_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i), at = i * op->piece;

	if (op->root != here->rank)
		return;
	for (int k = 0; k < here->set.n; k++) {
		uint8_t *to = (uint8_t *)op->recv + (size_t)here->set.rank[k] * op->bytes + at;
		const uint8_t *from = k == here->set.self ? op->input + at : cvy_piece_of(e, op, i, k);

		if (to != from)
			cvy_copy_out(to, from, bytes, op->bytes >= CVY_STREAM_BYTES);
	}
}

static void gather_finish(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_site *here = cvy_site(e);

	if (op->root == here->rank)
		cvy_zero_missing(e, op);
}

const struct cvy_op_kind cvy_op_gather = {
	.name = "gather",
	.op_class = CVY_OP_TO_ROOT,
	.plan = gather_plan,
	.publish = cvy_publish_to_root,
	.consume = gather_consume,
	.lends = 1,
	.finish = gather_finish,
};

/* ---- scatter ---- */

static void scatter_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	size_t part = cvy_part_bytes(e, size);

	if (part > CVY_GIVE_BYTES)
		part = CVY_GIVE_BYTES;
	cvy_plan_ticks(op, op->bytes * (size_t)size <= CVY_LINE_DATA ? CVY_LINE_DATA : part);
}

/* tick i of the part for @rank, in the root's window */
static const uint8_t *part_for(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int rank)
{
	int k = cvy_root_index(e, op);

	if (op->piece == CVY_LINE_DATA)
		return cvy_source_line(e, op, i, k, 1)->data + (size_t)rank * op->bytes;
	return cvy_source_slot(e, op, i, k) + (size_t)rank * op->piece;
}

static void scatter_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i), at = i * op->piece;
	uint8_t *to = (uint8_t *)op->recv + at;
	const uint8_t *from = op->input + (size_t)here->rank * op->bytes + at;

	if (op->root != here->rank)
		memcpy(to, part_for(e, op, i, here->rank), bytes);
	else if (to != from)
		memcpy(to, from, bytes);
}

/* the root's own part is not in its slot, and the root never asks */
static size_t scatter_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	const struct cvy_site *here = cvy_site(e);

	memcpy(out, part_for(e, op, i, here->asker), cvy_tick_bytes(op, i));
	return cvy_tick_bytes(op, i);
}

const struct cvy_op_kind cvy_op_scatter = {
	.name = "scatter",
	.op_class = CVY_OP_ROOT,
	.plan = scatter_plan,
	.publish = cvy_publish_parts,
	.consume = scatter_consume,
	.give = scatter_give,
	.take = cvy_take_piece,
	.parts = 1,
	.own = 1,
};
