/* SPDX-License-Identifier: Apache-2.0 */
/*
 * allgatherv: an allgather of blocks of different sizes. All ranks name all counts, and the signature covers them. So
 * all ranks know the number of ticks, that of the largest block. Blocks of missing ranks are zero.
 */
#include "algo.h"
#include "hash.h"
#include "kinds.h"

struct blocks { /* bytes, [size] each */
	size_t *bytes, *at;
	int size;
};

int cvy_allgatherv_plan(struct cvy_engine *e, struct cvy_op *op, int size, const size_t *counts, const size_t *displs)
{
	struct blocks *b = calloc(1, sizeof(*b) + 2 * (size_t)size * sizeof(size_t));

	if (!b)
		return COVEY_ERR_NOMEM;
	b->size = size;
	b->bytes = (size_t *)(b + 1);
	b->at = b->bytes + size;
	op->bytes = 0;
	for (int r = 0; r < size; r++) {
		b->bytes[r] = counts[r] * op->elem;
		b->at[r] = displs[r] * op->elem;
		if (b->bytes[r] > op->bytes)
			op->bytes = b->bytes[r];
		op->detail = (op->detail ^ counts[r] ^ (uint64_t)r << 56) * CVY_SPREAD_MORE;
		op->detail ^= op->detail >> 32;
	}
	op->priv = b;
	cvy_allgather_plan(e, op, size);
	return 0;
}

static void allgatherv_publish(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line)
{
	const struct cvy_site *here = cvy_site(e);
	const struct blocks *b = op->priv;
	size_t n = cvy_part_of_tick(b->bytes[here->rank], op->piece, i);
	uint8_t *slot = cvy_own_slot(e, op, i);

	line->bytes = (uint32_t)n;
	if (!n)
		return;
	if (op->bytes <= CVY_LINE_DATA) {
		memcpy(line->data, op->input, n);
		return;
	}
	memcpy(slot, op->input + i * op->piece, n);
	cvy_put_out(e, op, slot, n);
}

static void allgatherv_consume(struct cvy_engine *e, struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);
	const struct blocks *b = op->priv;

	for (int k = 0; k < here->set.n; k++) {
		int r = here->set.rank[k];
		size_t n = cvy_part_of_tick(b->bytes[r], op->piece, i);
		uint8_t *to = (uint8_t *)op->recv + b->at[r] + i * op->piece;

		if (n && !(k == here->set.self && to == op->input + i * op->piece))
			memcpy(to, cvy_piece_of(e, op, i, k), n);
	}
}

/* the pieces of all sources, ascending */
static size_t allgatherv_give(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out)
{
	const struct cvy_site *here = cvy_site(e);
	const struct blocks *b = op->priv;
	size_t at = 0;

	for (int k = 0; k < here->set.n; k++) {
		size_t n = cvy_part_of_tick(b->bytes[here->set.rank[k]], op->piece, i);

		if (n)
			memcpy(out + at, cvy_piece_of(e, op, i, k), n);
		at += n;
	}
	return at;
}

static void allgatherv_take(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t total)
{
	const struct cvy_site *here = cvy_site(e);
	const struct blocks *b = op->priv;
	size_t at = 0;

	for (int k = 0; k < here->set.n; k++) {
		int r = here->set.rank[k];
		size_t n = cvy_part_of_tick(b->bytes[r], op->piece, i);

		if (at + n > total)
			return;
		if (n)
			memcpy((uint8_t *)op->recv + b->at[r] + i * op->piece, bytes + at, n);
		at += n;
	}
}

static void allgatherv_finish(struct cvy_engine *e, struct cvy_op *op)
{
	const struct blocks *b = op->priv;

	(void)e;
	for (int r = 0; !op->result.status && r < b->size; r++)
		if (!covey_mask_has(&op->result.mask, r) && b->bytes[r])
			memset((uint8_t *)op->recv + b->at[r], 0, b->bytes[r]);
}

static void allgatherv_release(struct cvy_op *op)
{
	free(op->priv);
}

const struct cvy_op_kind cvy_op_allgatherv = {
	.name = "allgatherv",
	.op_class = CVY_OP_ALL,
	.publish = allgatherv_publish,
	.consume = allgatherv_consume,
	.give = allgatherv_give,
	.take = allgatherv_take,
	.finish = allgatherv_finish,
	.release = allgatherv_release,
};
