/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that make different calls at one number: seen by the signature in each line, put into words, and
 * failed for all by a change of view.
 */
#include "engine.h"

#include <string.h>

void cvy_engine_want_change(struct cvy_engine *e, struct cvy_op *op, const char *why)
{
	struct cvy_event ev = { .kind = CVY_EV_WANT_CHANGE, .rank = -1, .number = op->seq, .text = why };

	if (e->wanted == op->seq)
		return;
	e->wanted = op->seq;
	cvy_post(&e->sink, &ev);
}

static void name_calls(struct cvy_engine *e, const struct cvy_op *op, int k, const struct cvy_line *line)
{
	char mine[72], theirs[72];

	cvy_fail(e->box, COVEY_ERR_MISMATCH, e->set.rank[k], e->epoch,
		 "operation %llu: rank %d calls %s, rank %d calls %s%s", (unsigned long long)op->seq, e->rank,
		 cvy_call_text(op->call, mine, sizeof(mine)), e->set.rank[k],
		 cvy_call_text(line->call, theirs, sizeof(theirs)),
		 op->call == line->call ? " with other details" : "");
}

/*
 * An operation of a root waits for nobody, so calls that did not match may have gone by unseen, with more ticks here
 * than there: then what stands at this tick is of another operation or another part of it. In the next view all
 * count alike, and this operation is executed again.
 */
void cvy_engine_mismatch(struct cvy_engine *e, struct cvy_op *op, int k, const struct cvy_line *line)
{
	if (cvy_engine_outrun(e)) /* these are lines of a view without this rank */
		return;
	if (cvy_lap(line->call) != cvy_lap(op->call)) {
		cvy_engine_want_change(e, op, "ticks counted apart");
		return;
	}
	e->mismatch = 1;
	name_calls(e, op, k, line);
	cvy_engine_want_change(e, op, "mismatch");
}

/* A change may have come before this rank looked: the lines still stand until the next view is active. */
void cvy_engine_explain(struct cvy_engine *e, const struct cvy_op *op, int status)
{
	char mine[72];

	if (status == COVEY_ERR_LOST)
		cvy_fail(e->box, status, -1, e->epoch,
			 (op->kind->whole || op->kind->own) && e->failed.seq != op->seq
				 ? "operation %llu: a rank died and took this rank's part with it"
				 : "operation %llu: results had overwritten inputs when a rank died; in place above "
				   "undo_bytes",
			 (unsigned long long)op->seq);
	if (status != COVEY_ERR_MISMATCH)
		return;
	for (int k = 0; op->state == CVY_OP_ENTERED && k < e->set.n; k++) {
		const struct cvy_line *line =
			k == e->set.self || e->set.gone[k] ? NULL : cvy_source_line(e, op, 0, k, 1);

		if (!line || __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) != cvy_tag(e->epoch, op->first) ||
		    line->sig == op->mark || cvy_lap(line->call) != cvy_lap(op->call))
			continue;
		name_calls(e, op, k, line);
		return;
	}
	cvy_fail(e->box, status, -1, e->epoch, "operation %llu: rank %d calls %s, others call something else",
		 (unsigned long long)op->seq, e->rank, cvy_call_text(op->call, mine, sizeof(mine)));
}

void cvy_engine_look_for_mismatch(struct cvy_engine *e)
{
	struct cvy_op *op = e->head;

	if (!op || op->state != CVY_OP_ENTERED || op->completed ||
	    (op->kind->op_class != CVY_OP_ROOT && op->kind->op_class != CVY_OP_TO_ROOT))
		return;
	for (int k = 0; k < e->set.n; k++) {
		const struct cvy_line *line = e->set.gone[k] ? NULL : cvy_source_line(e, op, 0, k, 1);

		if (line && k != e->set.self &&
		    __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE) == cvy_tag(e->epoch, op->first) &&
		    line->sig != op->mark)
			cvy_engine_mismatch(e, op, k, line);
	}
}
