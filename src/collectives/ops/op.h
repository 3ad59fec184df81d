/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the author of an operation: the functions of a kind, the part of the engine that they may read, and their
 * requests to it. An operation under way is in operation.h, the ranks that take part in set.h.
 */
#ifndef CVY_OP_H
#define CVY_OP_H

#include "error.h"
#include "mask.h"
#include "operation.h"
#include "set.h"

enum cvy_op_class {
	CVY_OP_ALL,	/* replicated: needs everyone, a holder can give it */
	CVY_OP_PRIVATE, /* needs everyone, each rank gets its own part; missing sources are masked */
	CVY_OP_ROOT,	/* needs the root */
	/*
	 * The root needs everyone. The others need to know that it will have all inputs: its second line says so;
	 * or, if each sees all windows itself as the root does (set.open), the lines of all.
	 */
	CVY_OP_TO_ROOT,
	CVY_OP_ADMIT,
	CVY_OP_PAIR /* a message: not in the queue, not part of views (pair.h) */
};

/*
 * The steps of an operation in a tick. i counts ticks of the operation from 0. Functions run under the engine's lock,
 * never wait, and touch: own slot (cvy_own_slot), sources' slots (cvy_source_slot), the operation's buffers.
 */
struct cvy_op_kind {
	const char *name;
	int op_class;
	/* rounds, piece and ticks, and the input that results overwrite: from call, size and layout alone, so the
	 * same on all ranks; NULL: one tick, or planned where the call is made */
	void (*plan)(struct cvy_engine *e, struct cvy_op *op, int size);
	/* own contribution of tick i into the own slot or line->data, and cvy_put*() for peers that need it */
	void (*publish)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
	/* two rounds: all first lines are here; makes and puts the second part; may be NULL */
	void (*publish2)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
	/* all lines of the last round are here (or the source is removed): writes outputs. Tick 0 may set op->ticks. */
	void (*consume)(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
	/* the lines of tick i are awaited, or all here: notes which have come; may be NULL */
	void (*look)(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
	/* replicated kinds: the bytes of tick i's outcome, and their placing */
	size_t (*give)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out);
	void (*take)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t n);
	/* the operation is decided and op->result set: last touches (zero missing blocks, counts); may be NULL */
	void (*finish)(struct cvy_engine *e, struct cvy_op *op);
	/* frees op->priv; may be NULL */
	void (*release)(struct cvy_op *op);
	int counted; /* op->ticks follows from the sources' words in tick 0, in every attempt again */
	int parts;   /* a slot has parts for single ranks */
	int whole;   /* private: of no use if a source is missing; ends with LOST then */
	int own;     /* the bytes of give() are for here->asker alone */
	int lends;   /* inputs in registered buffers are read in place (lend.h) */
	int folds;   /* results may be written over the own input */
};

/* A slot holds a part for each rank. */
static inline int cvy_in_parts(const struct cvy_op_kind *kind)
{
	return kind->op_class == CVY_OP_PRIVATE || kind->parts;
}

/*
 * What operations and calls may read of an engine, which is the only one to write it: the first bytes of struct
 * cvy_engine. Operations read it under the engine's lock.
 */
struct cvy_site {
	struct cvy_layout layout;
	struct cvy_errbox *box;
	struct cvy_page *own; /* own window */
	uint8_t *own_base;
	int rank;
	int size;	/* for layouts: as the last safe point returned */
	uint32_t epoch; /* of the view that `set` and ticks belong to (active) */
	int asker;	/* rank that asks for the bytes of give() */
	struct cvy_set set;
	struct covey_mask lost; /* private operation under way: sources that count as missing */
	int some_lost;		/* lost is not empty */

	/* For calls, which read these without the lock. */
	int ended;	/* COVEY_ERR_*: every operation ends with it */
	int pending;	/* this rank waits for its ADMIT */
	int on_loss;	/* written by covey_set_on_loss */
	uint32_t plans; /* counts views and safe points, on which plans depend; from 1 */
};

static inline const struct cvy_site *cvy_site(const struct cvy_engine *e)
{
	return (const struct cvy_site *)(const void *)e;
}

/* Bytes of tick i of a simple linear operation. */
static inline size_t cvy_tick_bytes(const struct cvy_op *op, uint64_t i)
{
	size_t at = (size_t)i * op->piece;

	return op->bytes - at < op->piece ? op->bytes - at : op->piece;
}

/* index of slot, 0..CVY_SLOTS-1, of tick i: for kinds with slots of their own in the heap */
static inline int cvy_slot_index(const struct cvy_op *op, uint64_t i)
{
	return (int)((op->first + (uint32_t)i) % CVY_SLOTS);
}
/* own slot of tick i: layout.stride bytes */
static inline uint8_t *cvy_own_slot(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i)
{
	const struct cvy_site *here = cvy_site(e);

	return here->own_base + here->layout.slots + (size_t)cvy_slot_index(op, i) * here->layout.stride;
}
/* slot of tick i of the k-th source of the set */
static inline const uint8_t *cvy_source_slot(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	const struct cvy_site *here = cvy_site(e);

	return here->set.base[k] + here->layout.slots + (size_t)cvy_slot_index(op, i) * here->layout.stride;
}
/* line of round 1 or 2 of tick i of the k-th source */
static inline const struct cvy_line *cvy_source_line(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i,
						     int k, int round)
{
	const struct cvy_page *page = cvy_site(e)->set.page[k];

	return (round == 1 ? page->first : page->second) + cvy_slot_index(op, i);
}
/* Index of the operation's root in the set, set.n: it is not in it. */
int cvy_root_index(const struct cvy_engine *e, const struct cvy_op *op);
/* bytes [at, at + n) of the own window to one member / all members, where the transport needs a put */
void cvy_put(struct cvy_engine *e, int rank, const void *at, size_t n);
void cvy_put_all(struct cvy_engine *e, const void *at, size_t n);
/* to the members that the operation's first round reaches */
void cvy_put_out(struct cvy_engine *e, const struct cvy_op *op, const void *at, size_t n);
/* the line of a round that is stored to one rank; to sleepers of this host */
void cvy_signal(struct cvy_engine *e, int rank, const struct cvy_line *line);
void cvy_engine_announce(struct cvy_engine *e, const struct cvy_line *line); /* wakes peers asleep on it */
/* 1: the others write in a later view than the one learned here, and what was read counts for nothing. */
int cvy_engine_outrun(struct cvy_engine *e);
uint64_t cvy_engine_now(const struct cvy_engine *e);
/* From its publishing on, the operation counts this source as missing. */
void cvy_leave_out(struct cvy_engine *e, struct cvy_op *op, int rank);

#endif
