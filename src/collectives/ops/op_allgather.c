/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allgather: each rank publishes its block piece by piece, everyone copies all blocks. Missing ranks' blocks are zero.
 */
#include "algo.h"
#include "kinds.h"

void cvy_allgather_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);
	size_t piece = here->layout.slot_bytes;

	if (piece > CVY_GIVE_BYTES / (size_t)size)
		piece = cvy_round_down(CVY_GIVE_BYTES / (size_t)size, CVY_CACHE_LINE);
	cvy_plan_ticks(op, piece);
}

static void allgather_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	for (int k = 0; k < here->set.n; k++) {
		uint8_t *to = (uint8_t *)op->recv + (size_t)here->set.rank[k] * op->bytes + i * op->piece;

		if (k == here->set.self && to == op->input + i * op->piece)
			continue;
		memcpy(to, cvy_piece_of(e, op, i, k), cvy_tick_bytes(op, i));
	}
}

/* the pieces of all sources, ascending; the outcome's mask names the sources */
static size_t allgather_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	const struct cvy_site *here = cvy_site(e);
	size_t n = cvy_tick_bytes(op, i);

	for (int k = 0; k < here->set.n; k++)
		memcpy(out + (size_t)k * n, cvy_piece_of(e, op, i, k), n);
	return n * (size_t)here->set.n;
}

static void allgather_take(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t n)
{
	const struct cvy_site *here = cvy_site(e);
	size_t each = cvy_tick_bytes(op, i), at = 0;

	for (int k = 0; k < here->set.n && at + each <= n; k++, at += each)
		memcpy((uint8_t *)op->recv + (size_t)here->set.rank[k] * op->bytes + i * op->piece, bytes + at, each);
}

static void allgather_finish(struct cvy_engine *e, struct cvy_op *op)
{
	(void)e;
	for (int r = 0; !op->result.status && r < op->result.size; r++)
		if (!covey_mask_has(&op->result.mask, r))
			memset((uint8_t *)op->recv + (size_t)r * op->bytes, 0, op->bytes);
}

const struct cvy_op_kind cvy_op_allgather = {
	.name = "allgather",
	.op_class = CVY_OP_ALL,
	.plan = cvy_allgather_plan,
	.publish = cvy_publish_piece,
	.consume = allgather_consume,
	.give = allgather_give,
	.take = allgather_take,
	.finish = allgather_finish,
	.lends = 1,
};
