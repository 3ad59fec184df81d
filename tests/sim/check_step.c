/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is looked at after every event of a process: its report, its slots, what it reads and where, its inputs.
 * What was seen before is kept beside the process, since these are facts about change.
 */
#include <inttypes.h>

#include "checks.h"

#define LOOK_AT_INPUTS 32 /* events between two looks at a process's inputs: they are large */

/* I7: a report stays true until the member learns a commit. In phase FROZEN it has been given. */
static void check_report(struct proc *p)
{
	const struct cvy_engine *e = p->engine;
	const struct cvy_view *v = cvy_group_view(p->driver.group);
	int phase = cvy_group_phase(p->driver.group);
	struct seen now = { .reported = 1, .done = e->done, .ent = e->ent, .adm = e->adm, .mismatch = e->mismatch };
	struct seen *was = &p->seen;

	if (!v || phase < CVY_PHASE_FREEZING || phase > CVY_PHASE_FROZEN)
		return;
	now.report_epoch = v->epoch;
	now.spoiled = e->head && e->head->state == CVY_OP_ENTERED && e->head->spoiled;
	if (was->reported && was->report_epoch == v->epoch &&
	    (was->done != now.done || was->ent != now.ent || was->adm != now.adm || was->mismatch != now.mismatch ||
	     was->spoiled != now.spoiled))
		sim_fail(p->sim,
			 "I7: process %d reported done %" PRIu64 " entered %" PRIu64 ", now has %" PRIu64
			 " and %" PRIu64,
			 p->id, was->done, was->ent, now.done, now.ent);
	if (phase != CVY_PHASE_FROZEN)
		return;
	was->reported = 1;
	was->report_epoch = now.report_epoch;
	was->done = now.done;
	was->ent = now.ent;
	was->adm = now.adm;
	was->mismatch = now.mismatch;
	was->spoiled = now.spoiled;
}

/* The last tick whose slot it has written. */
static uint32_t written(const struct cvy_engine *e)
{
	return e->head && e->head->state == CVY_OP_ENTERED ? e->head->first + (uint32_t)e->head->entered - 1 : e->tick;
}

/* I10: what stood in a slot before is not needed by any admitted member of the view. */
static void check_slots(struct proc *p)
{
	uint32_t last = written(p->engine);

	if (p->engine->here.pending) /* it has written nothing yet that anybody reads */
		return;
	for (int i = 0; i < p->sim->procs; i++) {
		const struct proc *q = p->sim->proc[i];

		if (q != p && q->alive && !q->driver.ended && q->engine->here.epoch == p->engine->here.epoch &&
		    q->engine->view && !q->engine->here.pending && p->engine->view->member[q->rank].inc == q->inc &&
		    !covey_mask_has(&p->engine->view->pending, q->rank) && q->engine->complete + CVY_SLOTS < last &&
		    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
			sim_fail(p->sim, "I10: process %d writes tick %u, process %d has completed %u", p->id, last,
				 q->id, q->engine->complete);
	}
}

/* I8, G4: every window that is read is that of the view's incarnation of its rank; G8: at its one address. */
static void check_windows(struct proc *p)
{
	const struct cvy_engine *e = p->engine;

	for (int k = 0; k < e->here.set.n; k++) {
		int r = e->here.set.rank[k];

		if (k == e->here.set.self || e->here.set.gone[k])
			continue;
		if (p->mesh.mapped[r] && p->mesh.map_inc[r] != e->view->member[r].inc)
			sim_fail(p->sim,
				 "I8: process %d reads the window of incarnation %" PRIu64
				 " of rank %d, its view has %" PRIu64,
				 p->id, p->mesh.map_inc[r], r, e->view->member[r].inc);
		if (e->here.set.base[k] != p->mesh.base + (size_t)r * p->mesh.layout.window_bytes)
			sim_fail(p->sim, "G8: process %d reads the window of rank %d at another address", p->id, r);
	}
	if (e->here.own_base != p->mesh.own)
		sim_fail(p->sim, "G8: process %d writes its window at another address", p->id);
}

/* I11: an input is as it was; once results stand over it, as it was in the copy; or the operation says `spoiled`. */
static void check_undecided(struct proc *p)
{
	const struct cvy_op *op = p->engine->head;

	for (int i = 0; i < p->app.calls; i++) {
		const struct call *c = &p->app.call[i];
		int begun = op && op->seq == c->seq && op->state == CVY_OP_ENTERED && op->completed;

		if (!c->seq || p->engine->done >= c->seq || p->engine->here.ended || !c->send_bytes)
			continue;
		if (c->lent && p->seen.scribbled) /* overwritten on purpose */
			continue;
		if (p->engine->outrun && op && op->seq == c->seq && c->in_place && (op->spoiled || op->undo))
			continue; /* it read what the others write without it: not decided, and it says so */
		if (begun && c->in_place && (op->ticks > 1 || op->lent) && op->input_bytes) {
			if (!op->undo && !op->spoiled)
				sim_fail(p->sim,
					 "I11: process %d: results stand over the input of operation %" PRIu64
					 " and it does not say so",
					 p->id, c->seq);
			if (op->undo && op->input_bytes == c->send_bytes &&
			    app_hash(op->undo, c->send_bytes) != c->send_hash)
				sim_fail(p->sim, "I11: process %d: the kept input of operation %" PRIu64 " is not it",
					 p->id, c->seq);
		} else if (app_hash(c->send, c->send_bytes) != c->send_hash) {
			sim_fail(p->sim, "I11: process %d: the input of operation %" PRIu64 " (%s) is not intact",
				 p->id, c->seq, app_names[c->shape.kind]);
		}
	}
}

/* G8: the heap gives the same buffers the same place on every rank. */
static void check_heap(struct proc *p)
{
	for (int i = 0; i < p->sim->procs; i++)
		if (p->sim->proc[i]->alive && p->app.group && p->sim->proc[i]->app.group &&
		    !app_ep_same(p, p->sim->proc[i]))
			sim_fail(p->sim, "G8: processes %d and %d have their buffers at other offsets", p->id, i);
}

/* I6: who begins a view begins it with all of its members: each has learned it and lacks nothing below its base. */
void check_begins(struct proc *p, const struct cvy_view *v)
{
	for (int i = 0; i < p->sim->procs; i++) {
		const struct proc *q = p->sim->proc[i];
		const struct cvy_view *theirs = cvy_group_view(q->driver.group);

		if (q == p || q->rank < 0 || v->member[q->rank].inc != q->inc ||
		    strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0 ||
		    (theirs && theirs->epoch > v->epoch))
			continue;
		if (q->fenced < v->epoch || (!covey_mask_has(&v->pending, q->rank) && q->engine->done + 1 < v->base))
			sim_fail(p->sim,
				 "I6: process %d begins view %u, base %" PRIu64
				 "; process %d has learned view %u and done %" PRIu64,
				 p->id, v->epoch, v->base, i, q->fenced, q->engine->done);
	}
}

/* Who gives up its place does so for want of memory, its own or another's: never where there is enough. */
static void check_stays(struct proc *p)
{
	if (p->engine && p->engine->gave_up && !sim_scarce)
		sim_fail(p->sim, "I15: process %d gives up though there is memory: %s", p->id, p->engine->end_cause);
}

void check_step(struct proc *p)
{
	int look = (p->sim->steps + (uint64_t)p->id) % LOOK_AT_INPUTS == 0;

	check_stays(p);
	if (!p->alive || p->driver.ended || p->rank < 0)
		return;
	check_report(p);
	if (look || cvy_group_phase(p->driver.group) == CVY_PHASE_FREEZING)
		check_undecided(p);
	if (look) {
		check_heap(p);
		check_poison(p->sim);
	}
	if (p->engine->gate)
		return;
	check_slots(p);
	check_windows(p);
}

/* ---- G4: what a process left out writes, however late ---- */

/* Has everyone who is alive gone on without it? */
static int forgotten(const struct sim *s, const struct proc *q)
{
	int others = 0;

	for (int i = 0; i < s->procs; i++) {
		const struct proc *r = s->proc[i];

		if (r == q || !r->alive || r->driver.ended || !r->engine->view)
			continue;
		if (r->engine->view->member[q->rank].inc == q->inc)
			return 0;
		others += r->engine->active;
	}
	return others > 0;
}

/* Bytes everywhere, and signals as those would look that survivors wait for now. */
static void scribble(struct proc *q, const struct proc *survivor)
{
	struct cvy_page *page = (struct cvy_page *)q->mesh.own;
	const struct cvy_engine *e = survivor->engine;

	memset(q->mesh.own + q->mesh.layout.slots, 0xee, q->mesh.layout.window_bytes - q->mesh.layout.slots);
	if (q->alive) /* it would trip over its own signals */
		return;
	for (uint32_t t = e->complete + 1; t <= e->complete + CVY_SLOTS; t++) {
		struct cvy_line *line = &page->first[t % CVY_SLOTS];

		memset(line->data, 0xee, sizeof(line->data));
		line->sig = e->head ? e->head->mark : 0;
		line->tag = cvy_tag(e->here.epoch, t);
		page->second[t % CVY_SLOTS] = *line;
	}
	page->done.tag = cvy_tag(e->here.epoch, e->complete + CVY_SLOTS);
}

/* G4: a process left out writes; whoever still read it would have other bytes than the contributors gave. */
void check_poison(struct sim *s)
{
	for (int i = 0; i < s->procs; i++) {
		struct proc *q = s->proc[i], *survivor = NULL;

		if (q->seen.scribbled || q->rank < 0 || (q->alive && !check_left_out(q)) || !forgotten(s, q))
			continue;
		for (int j = 0; j < s->procs; j++)
			if (s->proc[j]->alive && s->proc[j] != q && s->proc[j]->engine->active)
				survivor = s->proc[j];
		if (!survivor)
			continue;
		q->seen.scribbled = 1;
		scribble(q, survivor);
	}
}
