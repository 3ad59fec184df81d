/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allreduce. Small: the payload is in the line of the slot. Up to CVY_ONE_SHOT_BYTES, and with two ranks always: each
 * rank publishes its input and reduces everyone's. Above: two rounds in a tick; rank k reduces shard k of the piece and
 * publishes it, and everyone gathers the shards. All of them fold in ascending rank.
 */
#include "algo.h"
#include "chain.h"
#include "kinds.h"
#include "lend.h"
#include "reduce.h"

static void allreduce_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);
	size_t piece = here->layout.slot_bytes < CVY_GIVE_BYTES ? here->layout.slot_bytes : CVY_GIVE_BYTES;

	op->rounds = size > 2 && op->bytes > CVY_ONE_SHOT_BYTES ? 2 : 1;
	cvy_plan_ticks(op, cvy_round_down(piece, CVY_CACHE_LINE));
	op->input_bytes = cvy_plan_in_place(op, op->bytes);
}

/* The own shard is folded from the input, and nobody else reads it. */
static void publish_shards(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)cvy_tick_bytes(op, i);
	line->aux = 0;
	for (int k = 0; k < here->set.n; k++) {
		size_t at, len;

		cvy_shard(cvy_tick_bytes(op, i), k, here->set.n, &at, &len);
		if (k == here->set.self)
			continue;
		cvy_copy_in(slot + at, op->input + i * op->piece + at, len);
		cvy_put(e, here->set.rank[k], slot + at, len);
	}
}

static void allreduce_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	if (op->rounds == 2 && op->way == CVY_WAY_FLAT && !op->lends && op->bytes > CVY_LINE_DATA)
		publish_shards(e, op, i, line);
	else
		cvy_publish_piece(e, op, i, line);
}

/*
 * @mine: the own contribution in the input, NULL: as published. A slot that was just written is no longer in the own
 * caches, the input is; a rank that gives a tick later has only the slot.
 */
static void reduce_range(struct cvy_engine *e, struct cvy_op *op, uint64_t i, size_t at, size_t len, uint8_t *out,
			 const uint8_t *mine)
{
	const struct cvy_site *here = cvy_site(e);
	int stream = (op->rounds == 1 || op->way == CVY_WAY_HOSTS) && op->bytes >= CVY_STREAM_BYTES;

	for (int k = 0; k < here->set.n; k++)
		here->set.src[k] = (k == here->set.self && mine ? mine : cvy_piece_of(e, op, i, k)) + at;
	cvy_reduce(out, here->set.src, here->set.n, len / op->elem, op->dtype, op->redop, stream);
}

/* the own shard, reduced, into the second half of the slot */
static void allreduce_publish2(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	uint8_t *out = cvy_own_slot(e, op, i) + here->layout.slot_bytes;
	size_t at, len;

	cvy_shard(cvy_tick_bytes(op, i), here->set.self, here->set.n, &at, &len);
	reduce_range(e, op, i, at, len, out, op->input + i * op->piece);
	line->bytes = (uint32_t)len;
	cvy_put_all(e, out, len);
}

static void result_of(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out, const uint8_t *mine)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i), at, len;

	if (op->rounds == 1 || op->way == CVY_WAY_HOSTS) {
		reduce_range(e, op, i, 0, bytes, out, mine);
		return;
	}
	if (op->way == CVY_WAY_CHAIN) {
		cvy_chain_result(e, op, i, out);
		return;
	}
	for (int k = 0; k < here->set.n; k++) {
		cvy_shard(bytes, k, here->set.n, &at, &len);
		cvy_copy_out(out + at, cvy_source_slot(e, op, i, k) + here->layout.slot_bytes, len,
			     op->bytes >= CVY_STREAM_BYTES);
	}
}

static void allreduce_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	result_of(e, op, i, (uint8_t *)op->recv + i * op->piece, op->input + i * op->piece);
}

static size_t allreduce_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	result_of(e, op, i, out, NULL);
	return cvy_tick_bytes(op, i);
}

const struct cvy_op_kind cvy_op_allreduce = {
	.name = "allreduce",
	.op_class = CVY_OP_ALL,
	.plan = allreduce_plan,
	.publish = allreduce_publish,
	.publish2 = allreduce_publish2,
	.consume = allreduce_consume,
	.give = allreduce_give,
	.take = cvy_take_piece,
	.lends = 1,
	.folds = 1,
};
