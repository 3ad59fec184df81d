/* SPDX-License-Identifier: Apache-2.0 */
/*
 * broadcast: the root publishes piece after piece; a piece in its slot reaches everyone at once. The root may run ahead
 * as far as the slots allow: done words of the others (step.c) hold it back.
 */
#include "algo.h"
#include "kinds.h"
#include "lend.h"

static void broadcast_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	const struct cvy_site *here = cvy_site(e);

	(void)size;
	cvy_plan_ticks(op, here->layout.slot_bytes < CVY_GIVE_BYTES ? here->layout.slot_bytes : CVY_GIVE_BYTES);
}

/* A piece of the input: in the line when all of it fits there, else in the slot, for everyone. */
void cvy_publish_bytes(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line, size_t bytes)
{
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)bytes;
	if (op->bytes <= CVY_LINE_DATA) {
		cvy_copy_few(line->data, op->input, bytes);
		return;
	}
	line->aux = op->lends;
	if (op->lends)
		return;
	cvy_copy_in(slot, op->input + i * op->piece, bytes);
	cvy_put_out(e, op, slot, bytes);
}

void cvy_publish_piece(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	cvy_publish_bytes(e, op, i, line, cvy_tick_bytes(op, i));
}

const uint8_t *cvy_piece_of(struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	const struct cvy_site *here = cvy_site(e);
	const struct cvy_hosts *h = &here->set.hosts;

	if (op->way && h->via[k] != k && h->via[k] != here->set.self) /* from another host, by way of a neighbour */
		return cvy_source_slot(e, op, i, h->via[k]) + here->layout.slot_bytes + cvy_hosts_place(e, op, k);
	if (op->bytes <= CVY_LINE_DATA)
		return cvy_source_line(e, op, i, k, 1)->data;
	return cvy_source_piece(e, op, i, k);
}

static void broadcast_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	uint8_t *to = (uint8_t *)op->recv + i * op->piece;

	if (op->root != here->rank)
		memcpy(to, cvy_piece_of(e, op, i, cvy_root_index(e, op)), cvy_tick_bytes(op, i));
	else if (op->recv != op->send)
		memcpy(to, op->input + i * op->piece, cvy_tick_bytes(op, i));
}

static size_t broadcast_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	memcpy(out, cvy_piece_of(e, op, i, cvy_root_index(e, op)), cvy_tick_bytes(op, i));
	return cvy_tick_bytes(op, i);
}

void cvy_take_piece(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t n)
{
	(void)e;
	if (n == cvy_tick_bytes(op, i))
		memcpy((uint8_t *)op->recv + i * op->piece, bytes, n);
}

const struct cvy_op_kind cvy_op_broadcast = {
	.name = "broadcast",
	.op_class = CVY_OP_ROOT,
	.plan = broadcast_plan,
	.publish = cvy_publish_piece,
	.consume = broadcast_consume,
	.give = broadcast_give,
	.take = cvy_take_piece,
	.lends = 1,
};
