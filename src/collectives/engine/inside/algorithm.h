/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithm of an operation: one table, and one place to choose. The choice depends on facts that are the same on
 * all ranks: the call, the view, the names of hosts in it, COVEY_ALGO. It is made when an operation begins. Ticks are
 * planned before, since a rank that is repaired may never begin it.
 */
#ifndef CVY_ALGORITHM_H
#define CVY_ALGORITHM_H

#include "engine_state.h"

/* The inputs of an operation's costs. */
struct cvy_shape {
	int ranks, hosts;
	int widest; /* ranks of the host that has most */
	int even;   /* all hosts have the same number of adjacent ranks */
	int parts;  /* the most parts that a window holds for its host */
	int dtype, redop;
	size_t slot_bytes, piece, bytes; /* bytes: of a block */
	uint64_t ticks;
};

struct cvy_algorithm {
	const char *name;
	const struct cvy_op_kind *kind;
	int rounds;	 /* 0: as planned */
	int way;	 /* enum cvy_way */
	int ranks;	 /* at least so many */
	size_t from, to; /* bytes of a block for which it is taken by default */
	/* can it be done at all? NULL: always */
	int (*can)(const struct cvy_algorithm *a, const struct cvy_shape *s);
	uint64_t (*cost_ns)(const struct cvy_shape *s);
	const char *why;
};

struct cvy_plan_rule { /* of COVEY_ALGO */
	const struct cvy_algorithm *algorithm;
	size_t from, to;
};

/* In the present view: op->way and op->rounds. */
void cvy_plan_choose(struct cvy_engine *e, struct cvy_op *op);
/* NULL: this kind has no choice. */
const struct cvy_algorithm *cvy_plan_best(const struct cvy_engine *e, const struct cvy_op_kind *kind,
					  const struct cvy_shape *s, int *asked);

#endif
