/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: memory that covey_mem_alloc() took from the own window, which peers of the host read as it is.
 *
 * An operation whose input lies there *lends* it: the line of a tick says where the input stands (aux, an offset in
 * the window, 0: in the slot), and nothing is copied. That is the source's own affair: ticks are the same
 * either way, and sources that lend and that do not may meet in one operation.
 *
 * What is lent must stand until all have read it, so an operation in which anybody lends ends with a closing word from
 * everyone: the done words of its last tick (PROTOCOL section 7, without slots). Then, if a survivor of a change is
 * done, whoever lags has read everything and lacks the word alone; else all redo from inputs that are intact: in
 * place nobody lends, and whose results are written before the word is out keeps a copy of what they stand over.
 * So nothing lent is ever read after a change, and needs no copy set aside.
 */
#ifndef CVY_LEND_H
#define CVY_LEND_H

#include "engine.h"

/*
 * Smaller inputs are not lent: a closing word costs more than the copy. In two levels nobody lends, and a rank does not
 * see the lines of all: in the others stands what earlier operations wrote.
 */
static inline int cvy_lendable(const struct cvy_engine *e, const struct cvy_op *op)
{
	return op->kind->lends && !op->way && op->bytes > CVY_LINE_DATA && op->bytes >= e->layout.slot_bytes / 2;
}

void cvy_lend_begin(struct cvy_engine *e, struct cvy_op *op);			    /* sets op->lends */
int cvy_lend_seen(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i); /* does a source of tick i lend? */
/* Where a source lends tick i of it from; @at: what its line says. */
const uint8_t *cvy_lent_piece(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k, uint64_t at);

/* Tick i of the k-th source: lent, or in its slot. */
static inline const uint8_t *cvy_source_piece(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	uint64_t at = cvy_lendable(e, op) && !e->set.gone[k] ? cvy_source_line(e, op, i, k, 1)->aux : 0;

	return at ? cvy_lent_piece(e, op, i, k, at) : cvy_source_slot(e, op, i, k);
}

/* The same of the part for this rank, of a kind with parts. */
static inline const uint8_t *cvy_source_part(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	uint64_t at = cvy_lendable(e, op) && !e->set.gone[k] ? cvy_source_line(e, op, i, k, 1)->aux : 0;

	return at ? cvy_lent_piece(e, op, i, k, at) : cvy_source_slot(e, op, i, k) + (size_t)e->rank * op->piece;
}

#endif
