/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that keeps the rules of operations without moving bytes: one operation is one tick; a member
 * publishes {epoch, seq} and reads what others published. Operation s is ADMIT when s % 4 is 0, a
 * broadcast from rank 0 when it is 3, all-to-all else. Rule 7.1 (floor) is kept, repair pulls outcomes.
 */
#include <stdlib.h>

#include "sim.h"

static void post(struct proc *p, int kind, uint64_t number)
{
	struct cvy_event e = { .kind = kind, .rank = -1, .number = number };

	e.epoch = p->engine.view ? p->engine.view->epoch : 0;
	cvy_driver_post(&p->driver, &e, p->sim->now);
}

static uint64_t bits(const struct covey_mask *mask)
{
	return mask->word[0];
}

static struct engine *engine_of(struct proc *p, int rank)
{
	struct proc *q = sim_proc_of(p->sim, p->engine.view->member[rank].inc);

	return q ? &q->engine : NULL;
}

static int is_admit(uint64_t s)
{
	return s % 4 == 0;
}

static int is_broadcast(uint64_t s)
{
	return s % 4 == 3;
}

static void freeze(void *ctx, uint32_t epoch)
{
	struct proc *p = ctx;
	struct engine *n = &p->engine;
	struct cvy_event e = { .kind = CVY_EV_FROZEN, .rank = -1, .epoch = epoch };

	n->frozen = 1;
	n->repairing = 0;
	e.report.done = n->done;
	e.report.ent = n->ent;
	e.report.adm = n->adm;
	e.report.stamp = n->view->stamp + (uint32_t)(n->ent >= n->view->base ? n->ent - n->view->base + 1 : 0);
	e.report.spoiled = n->ent > n->done && sim_random(p->sim, 40) == 0;
	cvy_driver_post(&p->driver, &e, p->sim->now);
}

static void learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed, const struct covey_mask *lag)
{
	struct proc *p = ctx;
	struct engine *n = &p->engine;
	const struct cvy_member *me = &view->member[p->rank];

	(void)removed;
	(void)lag;
	if (n->view && !n->frozen)
		sim_fail(p->sim, "I3: process %d learns view %u without standing still", p->id, view->epoch);
	if (n->view && view->epoch <= n->view->epoch)
		sim_fail(p->sim, "I1: process %d goes from view %u to %u", p->id, n->view->epoch, view->epoch);
	n->frozen = 1;
	cvy_view_free(n->view);
	n->view = cvy_view_dup(view);
	n->adm = 0;
	if (me->from == CVY_PENDING) {
		for (uint64_t s = 1; s <= n->done && s < SIM_SEQS; s++)
			if (n->outcome[s].have)
				sim_fail(p->sim, "I12: process %d completed %llu and is pending again", p->id,
					 (unsigned long long)s);
		n->done = 0;
	} else if (me->from > 0 && n->done + 1 < me->from) {
		n->done = me->from - 1;
	}
	if (me->from != CVY_PENDING && n->done >= view->base)
		sim_fail(p->sim, "I6: process %d is done with %llu, base is %llu", p->id, (unsigned long long)n->done,
			 (unsigned long long)view->base);
	n->ent = n->done;
	post(p, CVY_EV_FENCED, 0);
}

static void record(struct proc *p, uint64_t s, int status, uint32_t epoch, uint64_t mask)
{
	struct outcome *o = &p->engine.outcome[s];

	*o = (struct outcome){ 1, status, epoch, mask };
	p->engine.done = s;
	if (p->engine.ent < s)
		p->engine.ent = s;
	sim_trace(p->sim, "process %d completes %llu epoch %u mask %llx", p->id, (unsigned long long)s, epoch,
		  (unsigned long long)mask);
	sim_check_outcome(p, s);
}

static int pull(struct proc *p)
{
	struct engine *n = &p->engine;
	uint64_t s = n->done + 1;

	if (s == n->view->fail_seq) {
		record(p, s, n->view->fail_err, n->view->epoch, 0);
		return 1;
	}
	for (int r = 0; r < SIM_RANKS; r++) {
		struct proc *q = sim_proc_of(p->sim, n->view->member[r].inc);

		if (!(n->holders >> r & 1) || !q || !q->alive || q->paused || !sim_linked(p, q) || q->engine.done < s)
			continue;
		if (!q->engine.outcome[s].have)
			continue; /* came in later than s */
		record(p, s, q->engine.outcome[s].status, q->engine.outcome[s].epoch, q->engine.outcome[s].mask);
		return 1;
	}
	return 0;
}

static void repair_on(struct proc *p)
{
	struct engine *n = &p->engine;

	if (n->done + 1 < n->view->base && !pull(p))
		return;
	if (n->done + 1 >= n->view->base) {
		n->repairing = 0;
		post(p, CVY_EV_REPAIRED, 0);
	}
}

static void repair(void *ctx, const struct covey_mask *holders)
{
	struct proc *p = ctx;

	p->engine.repairing = 1;
	p->engine.holders = bits(holders);
	repair_on(p);
}

static void thaw(void *ctx)
{
	struct proc *p = ctx;
	struct engine *n = &p->engine;

	if (!covey_mask_has(&n->view->pending, p->rank) && n->done + 1 != n->view->base)
		sim_fail(p->sim, "I6: process %d begins view %u with done %llu, base %llu", p->id, n->view->epoch,
			 (unsigned long long)n->done, (unsigned long long)n->view->base);
	if (n->repairing)
		sim_fail(p->sim, "I9: process %d thaws while it repairs", p->id);
	n->frozen = 0;
}

static void message(void *ctx, const struct cvy_msg *msg)
{
	(void)ctx;
	(void)msg;
}

static void stop(void *ctx, int err)
{
	struct proc *p = ctx;

	p->engine.stopped = err;
}

static uint64_t floor_of(struct proc *p)
{
	uint64_t low = p->engine.done;

	for (int r = 0; r < SIM_RANKS; r++) {
		struct engine *q = p->engine.view->member[r].inc ? engine_of(p, r) : NULL;

		if (q && !covey_mask_has(&p->engine.view->pending, r) && q->done < low)
			low = q->done;
	}
	return low;
}

static uint64_t progress(void *ctx, uint64_t *floor_tick, int *waiting)
{
	struct proc *p = ctx;

	*floor_tick = 0;
	*waiting = 0;
	return p->engine.done;
}

static void publish(struct proc *p, uint64_t s)
{
	p->engine.ent = s;
	p->engine.slot[s % SIM_SLOTS] = (struct publication){ p->engine.view->epoch, s };
}

static int here(struct proc *p, int rank, uint64_t s)
{
	struct engine *q = engine_of(p, rank);

	return q && q->slot[s % SIM_SLOTS].seq == s && q->slot[s % SIM_SLOTS].epoch == p->engine.view->epoch;
}

static int all_here(struct proc *p, uint64_t mask, uint64_t s)
{
	for (int r = 0; r < SIM_RANKS; r++)
		if ((mask >> r & 1) && !here(p, r, s))
			return 0;
	return 1;
}

static void admitted(struct proc *p, uint64_t s, uint64_t mask)
{
	struct engine *n = &p->engine;

	CVY_MASK_EACH(r, &n->view->pending)
		n->view->member[r].from = s;
	memset(&n->view->pending, 0, sizeof(n->view->pending));
	n->adm = s;
	record(p, s, 0, n->view->epoch, mask);
	post(p, CVY_EV_ADMITTED, s);
}

/* A joiner's first operation is the ADMIT that the lowest admitted rank has entered in this view. */
static void enter_joiner(struct proc *p)
{
	struct engine *n = &p->engine;
	struct covey_mask in = n->view->members;
	int low;

	cvy_mask_sub(&in, &n->view->pending);
	low = cvy_mask_next(&in, 0);
	for (int i = 0; low >= 0 && i < SIM_SLOTS; i++) {
		struct engine *q = engine_of(p, low);
		uint64_t s = q ? q->slot[i].seq : 0;

		if (q && s && is_admit(s) && q->slot[i].epoch == n->view->epoch && q->ent == s && q->done < s) {
			n->done = s - 1;
			publish(p, s);
			return;
		}
	}
}

static void complete(struct proc *p)
{
	struct engine *n = &p->engine;
	uint64_t s = n->ent, mask, pending = bits(&n->view->pending);
	struct covey_mask m;

	cvy_view_mask(n->view, s, &m);
	mask = bits(&m);
	if (is_admit(s) && pending) {
		if (all_here(p, mask | pending, s))
			admitted(p, s, mask | pending);
	} else if (is_admit(s)) {
		record(p, s, 0, n->view->epoch, mask);
	} else if (is_broadcast(s)) {
		if (!(mask & 1))
			record(p, s, COVEY_ERR_ROOT, n->view->epoch, mask);
		else if (here(p, 0, s))
			record(p, s, 0, n->view->epoch, mask);
	} else if (all_here(p, mask, s)) {
		record(p, s, 0, n->view->epoch, mask);
	}
}

void engine_step(struct proc *p)
{
	struct engine *n = &p->engine;

	if (n->stopped || !n->view)
		return;
	if (n->repairing)
		repair_on(p);
	if (n->frozen || n->done + 2 >= SIM_SEQS)
		return;
	if (n->ent > n->done)
		complete(p);
	else if (covey_mask_has(&n->view->pending, p->rank))
		enter_joiner(p);
	else if (floor_of(p) + SIM_SLOTS >= n->done + 1 || n->done + 1 == n->view->base)
		publish(p, n->done + 1);
}

void engine_open(struct proc *p)
{
	p->seam.freeze = freeze;
	p->seam.learn = learn;
	p->seam.repair = repair;
	p->seam.thaw = thaw;
	p->seam.message = message;
	p->seam.stop = stop;
	p->seam.progress = progress;
}

void engine_close(struct proc *p)
{
	cvy_view_free(p->engine.view);
	p->engine.view = NULL;
}
