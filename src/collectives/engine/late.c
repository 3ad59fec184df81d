/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late ranks, in an operation with a deadline: they are masked, and the others continue. A masked rank counts as
 * missing from then on, so its later words cannot mix with the returned result. In a repair there is no deadline: data
 * published before it are taken, and a done line shows whether its rank had published.
 */
#include "clock.h"
#include "engine_state.h"
#include "log.h"
#include "outcome.h"

uint64_t cvy_engine_now(const struct cvy_engine *e)
{
	return e->clock_ns ? e->clock_ns : cvy_now_ns();
}

void cvy_late_from_now(const struct cvy_engine *e, struct cvy_op *op)
{
	op->late_ns = cvy_engine_now(e) + op->timeout_ns;
}

void cvy_leave_out(struct cvy_engine *e, struct cvy_op *op, int rank)
{
	cvy_mask_add(&e->here.lost, rank);
	e->here.some_lost = 1;
	op->late = 1; /* its tick shows nothing about that rank */
}

static void tell_late(struct cvy_engine *e, const struct cvy_op *op, int rank)
{
	struct cvy_event ev = { .kind = CVY_EV_LATE, .rank = rank, .inc = e->view->member[rank].inc, .number = op->seq };

	cvy_debug("engine", "operation %llu: rank %d is late and masked, epoch %u", (unsigned long long)op->seq, rank,
		  e->here.epoch);
	if (e->late_evict)
		cvy_post(&e->sink, &ev);
}

/*
 * The deadline of the call has passed without this source, or a repair has found that its part never comes: it is
 * masked. Its later lines are not read, so it counts as missing from then on. No deadline runs in a repair: data
 * published before it are taken.
 */
int cvy_late(struct cvy_engine *e, struct cvy_op *op, int rank)
{
	if (covey_mask_has(&e->here.lost, rank))
		return 1;
	if (!op->timeout_ns || !e->active || cvy_engine_now(e) < op->late_ns)
		return 0;
	cvy_leave_out(e, op, rank);
	tell_late(e, op, rank);
	return 1;
}

enum fate { COMES, LATE, DIFFERS };

/*
 * A source never publishes the awaited tick in three cases: it made another call there, its ticks are past it, or it
 * has an outcome of the operation. (That word is read before the line, since a source publishes before it is past.) The
 * last case is also that of a rank that others masked as late or left out, if the operation allows it.
 */
static enum fate fate_of(struct cvy_engine *e, const struct cvy_op *op, int k)
{
	uint64_t tag = cvy_tag(e->here.epoch, op->first + (uint32_t)op->completed), there, done;
	const struct cvy_line *line = e->here.set.gone[k] ? NULL : cvy_source_line(e, op, op->completed, k, 1);

	if (!line || k == e->here.set.self)
		return COMES;
	done = __atomic_load_n(&e->here.set.page[k]->done.aux, __ATOMIC_ACQUIRE);
	there = __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE);
	if (there == tag)
		return line->sig != op->mark ? DIFFERS : COMES;
	if (there >> 32 == tag >> 32 && there > tag)
		return DIFFERS;
	if (done < op->seq)
		return COMES;
	return op->partial ? LATE : DIFFERS;
}

enum cvy_absent cvy_late_in_repair(struct cvy_engine *e, const struct cvy_op *op)
{
	enum cvy_absent found = CVY_ABSENT_NONE;

	for (int k = 0; k < e->here.set.n; k++) {
		enum fate fate = fate_of(e, op, k);

		if (fate == DIFFERS)
			return CVY_ABSENT_ANOTHER_CALL;
		if (fate == LATE) {
			cvy_mask_add(&e->here.lost, e->here.set.rank[k]);
			e->here.some_lost = 1;
			found = CVY_ABSENT_MASKED;
		}
	}
	return found;
}

/* Does a member lack it, who may want the part of this rank? */
int cvy_late_wanted(const struct cvy_engine *e, uint64_t seq)
{
	for (int k = 0; k < e->here.set.n; k++)
		if (k != e->here.set.self && !e->here.set.gone[k] &&
		    __atomic_load_n(&e->here.set.page[k]->done.aux, __ATOMIC_ACQUIRE) < seq)
			return 1;
	return 0;
}

/*
 * Publishes an operation that a holder completed as tick @first. So every member has completed all ticks whose slots it
 * uses, and all operations that used its space.
 */
void cvy_late_enter(struct cvy_engine *e, struct cvy_op *op, uint32_t first)
{
	e->tick = first - 1;
	__atomic_store_n(&e->complete, e->tick, __ATOMIC_RELAXED);
	if (first > CVY_SLOTS && e->floor < first - CVY_SLOTS)
		__atomic_store_n(&e->floor, first - CVY_SLOTS, __ATOMIC_RELAXED);
	if (e->passed < op->behind)
		e->passed = op->behind;
	cvy_op_step(e, op);
}
