/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that are lent, and the places where peers read them. */
#include "lend.h"

static int overlap(const void *a, const void *b, size_t bytes)
{
	uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

	return x < y ? y - x < bytes : x - y < bytes;
}

/* Are the lent bytes of a source between heap and pool? Those of a rank with our call are. */
static int inside(const struct cvy_engine *e, const struct cvy_op *op, size_t at)
{
	const struct cvy_site *here = cvy_site(e);
	size_t blocks = cvy_in_parts(op->kind) ? (size_t)here->set.rank[here->set.n - 1] + 1 : 1;

	return at >= here->layout.heap && at < here->layout.pool && op->bytes <= (here->layout.pool - at) / blocks;
}

void cvy_lend_begin(struct cvy_engine *e, struct cvy_op *op)
{
	const struct cvy_site *here = cvy_site(e);
	size_t at = (size_t)(op->input - here->own_base);

	op->lends = 0;
	if (!cvy_lendable(e, op) || !here->set.open || !inside(e, op, at))
		return;
	/* In place of a block that is copied unchanged, nothing overwrites it; if results do, it is not lent. */
	if (op->input_bytes || (op->kind->folds && overlap(op->input, op->recv, op->bytes)))
		return;
	op->lends = at;
}

int cvy_lend_seen(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	if (op->kind->op_class == CVY_OP_TO_ROOT && op->rounds == 2 && op->root != here->rank)
		return cvy_source_line(e, op, i, cvy_root_index(e, op), 2)->aux != 0; /* others were not awaited */
	for (int k = 0; k < here->set.n; k++) {
		if (op->kind->op_class == CVY_OP_ROOT && here->set.rank[k] != op->root)
			continue;
		if (here->set.page[k] && cvy_source_line(e, op, i, k, 1)->aux)
			return 1;
	}
	return 0;
}

const uint8_t *cvy_lent_piece(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k, uint64_t at)
{
	const struct cvy_site *here = cvy_site(e);
	int parts = cvy_in_parts(op->kind);
	const uint8_t *slot = cvy_source_slot(e, op, i, k);

	if (!inside(e, op, at))
		return parts ? slot + (size_t)here->rank * op->piece : slot;
	return here->set.base[k] + at + (size_t)i * op->piece + (parts ? (size_t)here->rank * op->bytes : 0);
}
