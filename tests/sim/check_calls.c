/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that did not match are found. A broadcast or scatter ends without a word of most ranks, so it may end well
 * where they had called something else; the next operation that hears of them may not.
 */
#include <inttypes.h>

#include "checks.h"

#define NEAR 12 /* operations between the two that are compared */

/* Did both call the same at @seq, which they have outcomes of? */
static int called_alike(const struct proc *p, const struct proc *q, uint64_t seq)
{
	const struct outcome *a = &p->outcome[seq], *b = &q->outcome[seq];

	return a->kind == b->kind && a->count == b->count && a->root == b->root;
}

/* Has nothing told @p since @seq that calls did not match? Not known of works that it gave away. */
static int told_nothing(const struct proc *p, uint64_t seq, uint64_t until)
{
	for (; seq < until; seq++)
		if (!p->outcome[seq].have || p->outcome[seq].status == COVEY_ERR_MISMATCH ||
		    p->outcome[seq].status == COVEY_ERR_LOST)
			return 0;
	return 1;
}

/* G2: @p has heard of @q at @seq, and of what both called at @before. */
static void check_pair(struct proc *p, struct proc *q, uint64_t before, uint64_t seq)
{
	const struct outcome *at = &p->outcome[seq];
	struct sim_view *v;

	if (!at->have || at->status || !q->outcome[before].have || !(at->mask >> q->rank & 1) ||
	    !app_needs_everyone(at->kind) || app_shape(p->sim, seq, p->rank).timed || called_alike(p, q, before) ||
	    !told_nothing(p, before, seq))
		return;
	v = sim_view_of(p, at->epoch);
	if (v && v->inc[q->rank] == q->inc)
		sim_fail(p->sim,
			 "G2: process %d: operation %" PRIu64
			 " (%s) went well, but process %d had called another %s at %" PRIu64,
			 p->id, seq, app_names[at->kind], q->id, app_names[p->outcome[before].kind], before);
}

void check_calls(struct proc *p, uint64_t seq)
{
	for (uint64_t d = 1; d <= NEAR; d++)
		for (int i = 0; i < p->sim->procs; i++) {
			struct proc *q = p->sim->proc[i];

			if (q == p || q->rank < 0 || q->rank == p->rank)
				continue;
			if (d < seq && app_errs(p->sim, seq - d))
				check_pair(p, q, seq - d, seq);
			if (seq + d < SIM_SEQS && app_errs(p->sim, seq)) /* p takes its outcome later than q the next */
				check_pair(q, p, seq, seq + d);
		}
}
