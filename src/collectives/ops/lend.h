/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: memory that covey_mem_alloc() took from the own window, which peers of the host read in place.
 *
 * An operation whose input is there *lends* it. The line of a tick has the input's place (aux, an offset in the window,
 * 0: in the slot), and nothing is copied. Each source decides this alone: ticks are the same either way, and sources
 * that lend and that do not may meet in one operation.
 *
 * A lent input must not change until all have read it. So an operation in which any rank lends ends with a closing word
 * from everyone: the done words of its last tick (PROTOCOL section 7, without slots). After a change there are two
 * cases. If a survivor is done, every laggard has read everything and lacks only the word. Else all redo from intact
 * inputs: in place nobody lends, and a rank that writes results over an input before the word keeps a copy of it. So
 * nothing lent is ever read after a change, and needs no copy set aside.
 */
#ifndef CVY_LEND_H
#define CVY_LEND_H

#include "op.h"

/*
 * Smaller inputs are not lent: a closing word costs more than the copy. In two levels nobody lends, because a rank does
 * not see the lines of all: the others hold data of earlier operations.
 */
static inline int cvy_lendable(const struct cvy_engine *e, const struct cvy_op *op)
{
	const struct cvy_site *here = cvy_site(e);

	return op->kind->lends && !op->way && op->bytes > CVY_LINE_DATA && op->bytes >= here->layout.slot_bytes / 2;
}

void cvy_lend_begin(struct cvy_engine *e, struct cvy_op *op);			    /* sets op->lends */
int cvy_lend_seen(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i); /* does a source of tick i lend? */
/* Address of tick i of a source that lends; @at: the offset in its line. */
const uint8_t *cvy_lent_piece(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k, uint64_t at);

/* Tick i of the k-th source: lent, or in its slot. Of a kind with parts, the part for this rank. */
static inline const uint8_t *cvy_source_piece(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	const struct cvy_site *here = cvy_site(e);
	uint64_t at = cvy_lendable(e, op) && !here->set.gone[k] ? cvy_source_line(e, op, i, k, 1)->aux : 0;
	size_t part = cvy_in_parts(op->kind) ? (size_t)here->rank * op->piece : 0;

	return at ? cvy_lent_piece(e, op, i, k, at) : cvy_source_slot(e, op, i, k) + part;
}

#endif
