/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alltoall and alltoallv: the slot holds one part per destination, a piece of it in every tick. With v each part begins
 * with a header: the bytes in all for this destination. The first line has the number of ticks that the source needs;
 * the largest is everyone's number. Parts of missing sources are zero.
 */
#include "algo.h"
#include "kinds.h"
#include "lend.h"
#include "log.h"

#define HEADER CVY_CACHE_LINE /* of a part with v */

static void alltoall_plan(struct cvy_engine *e, struct cvy_op *op, int size)
{
	cvy_plan_ticks(op, cvy_part_bytes(e, size));
	op->input_bytes = cvy_plan_in_place(op, op->bytes * (size_t)size);
}

int cvy_alltoallv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *sendcounts,
		       const size_t *senddispls, const size_t *recvcounts, const size_t *recvdispls)
{
	struct cvy_blocks *b = cvy_new_blocks(op, size, 2 * size);

	if (!b)
		return COVEY_ERR_NOMEM;
	for (int r = 0; r < size; r++) {
		b->of[r] = (struct cvy_block){ recvdispls[r] * op->elem, recvcounts[r] * op->elem };
		b->of[size + r] = (struct cvy_block){ senddispls[r] * op->elem, sendcounts[r] * op->elem };
	}
	op->piece = cvy_part_bytes(e, size) - HEADER;
	op->ticks = 0;
	return 0;
}

static void alltoall_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i);
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)bytes;
	line->aux = op->lends;
	for (int k = 0; !op->lends && k < here->set.n; k++) {
		int r = here->set.rank[k];

		if (k == here->set.self)
			continue;
		cvy_copy_in(slot + (size_t)r * op->piece, op->input + (size_t)r * op->bytes + i * op->piece, bytes);
		cvy_put(e, r, slot + (size_t)r * op->piece, bytes);
	}
}

static void alltoall_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	size_t bytes = cvy_tick_bytes(op, i), at = i * op->piece;

	for (int k = 0; k < here->set.n; k++) {
		uint8_t *to = (uint8_t *)op->recv + (size_t)here->set.rank[k] * op->bytes + at;

		if (k == here->set.self)
			memmove(to, op->input + (size_t)here->rank * op->bytes + at, bytes);
		else if (!here->set.gone[k])
			memcpy(to, cvy_source_piece(e, op, i, k), bytes);
	}
}

/* ---- v ---- */

/* The block of op->send for @rank. */
static struct cvy_block sent_to(const struct cvy_op *op, int rank)
{
	const struct cvy_blocks *b = op->priv;

	return b->of[b->size + rank];
}

static void alltoallv_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	uint8_t *slot = cvy_own_slot(e, op, i);
	uint64_t need = 1;

	for (int k = 0; k < here->set.n; k++) {
		int r = here->set.rank[k];
		struct cvy_block b = sent_to(op, r);
		size_t n = cvy_part_of_tick(b.bytes, op->piece, i);
		uint8_t *part = slot + (size_t)r * (op->piece + HEADER);
		uint64_t total = b.bytes, ticks = (total + op->piece - 1) / op->piece;

		if (ticks > need)
			need = ticks;
		if (k == here->set.self)
			continue;
		memcpy(part, &total, sizeof(total));
		if (n)
			memcpy(part + HEADER, op->input + b.at + i * op->piece, n);
		cvy_put(e, r, part, HEADER + n);
	}
	line->aux = need;
	line->bytes = 0;
}

static void copy_part(struct cvy_engine *e, struct cvy_op *op, uint64_t i, int k)
{
	const struct cvy_site *here = cvy_site(e);
	int r = here->set.rank[k];
	struct cvy_block b = cvy_block_of(op, r);
	size_t n = cvy_part_of_tick(b.bytes, op->piece, i);
	uint8_t *to = (uint8_t *)op->recv + b.at + i * op->piece;
	const uint8_t *part;
	uint64_t total;

	if (k == here->set.self) {
		if (n) /* the call checked that it sends itself as much */
			memmove(to, op->input + sent_to(op, r).at + i * op->piece, n);
		return;
	}
	if (here->set.gone[k])
		return;
	part = cvy_source_slot(e, op, i, k) + (size_t)here->rank * (op->piece + HEADER);
	memcpy(&total, part, sizeof(total));
	if (total != b.bytes && !op->result.status)
		op->result.status =
			cvy_fail(here->box, COVEY_ERR_MISMATCH, r, here->epoch,
				 "operation %llu: rank %d sends %llu bytes to rank %d, which expects %zu",
				 (unsigned long long)op->seq, r, (unsigned long long)total, here->rank, b.bytes);
	if (n > cvy_part_of_tick(total, op->piece, i))
		n = cvy_part_of_tick(total, op->piece, i);
	if (n)
		memcpy(to, part + HEADER, n);
}

static void alltoallv_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	if (i == 0) {
		op->result.status = 0;
		op->ticks = 1;
		for (int k = 0; k < here->set.n; k++) {
			const struct cvy_line *line;

			if (here->set.gone[k])
				continue;
			line = k == here->set.self ? &here->own->first[cvy_slot_index(op, 0)]
						   : cvy_source_line(e, op, 0, k, 1);
			if (line->aux > op->ticks)
				op->ticks = line->aux;
		}
	}
	for (int k = 0; k < here->set.n; k++)
		copy_part(e, op, i, k);
}

const struct cvy_op_kind cvy_op_alltoall = {
	.name = "alltoall",
	.op_class = CVY_OP_PRIVATE,
	.plan = alltoall_plan,
	.publish = alltoall_publish,
	.consume = alltoall_consume,
	.finish = cvy_zero_missing,
	.lends = 1,
};

const struct cvy_op_kind cvy_op_alltoallv = {
	.name = "alltoallv",
	.op_class = CVY_OP_PRIVATE,
	.publish = alltoallv_publish,
	.consume = alltoallv_consume,
	.finish = cvy_zero_missing,
	.release = cvy_free_blocks,
	.counted = 1,
};
