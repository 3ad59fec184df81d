/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold as the world moves (PROTOCOL section 12), and when it has come to rest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "checks.h"
#include "world.h"

struct sim_view *sim_view_of(struct proc *p, uint32_t epoch)
{
	struct sim *s = p->sim;

	for (int i = s->views; i-- > 0;)
		if (s->view[i].epoch == epoch && !strcmp(s->view[i].gid, cvy_group_gid(p->driver.group)))
			return &s->view[i];
	return NULL;
}

/* I2, and G1: everyone who runs in an epoch runs with the same incarnations. */
void sim_activated(struct proc *p, const struct cvy_view *v)
{
	struct sim_view *known = sim_view_of(p, v->epoch);

	check_descent(p, v);
	check_begins(p, v);
	check_by_itself(p, v);
	for (int i = 0; i < p->sim->procs; i++) { /* a rival of which all are dead is none */
		struct proc *q = p->sim->proc[i];

		if (q->alive && !q->driver.ended && cvy_group_active(q->driver.group) &&
		    cvy_group_view(q->driver.group)->epoch == v->epoch &&
		    cvy_group_view(q->driver.group)->vid != v->vid &&
		    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
			sim_fail(p->sim, "I2: process %d runs in another view %u than process %d", p->id, v->epoch, i);
	}
	if (known && known->vid != v->vid)
		known = NULL;
	for (int r = 0; known && r < SIM_RANKS; r++)
		if (known->inc[r] != v->member[r].inc)
			sim_fail(p->sim, "G1: process %d has another incarnation of rank %d in view %u", p->id, r,
				 v->epoch);
	if (!covey_mask_has(&v->pending, p->rank) && p->engine->done < v->member[p->rank].from)
		sim_fail(p->sim, "I16: process %d was admitted at %" PRIu64 " and has done %" PRIu64, p->id,
			 v->member[p->rank].from, p->engine->done);
	if (known || p->sim->views == SIM_VIEWS)
		return;
	known = &p->sim->view[p->sim->views++];
	snprintf(known->gid, sizeof(known->gid), "%s", cvy_group_gid(p->driver.group));
	known->epoch = v->epoch;
	known->vid = v->vid;
	known->pending = v->pending.word[0];
	for (int r = 0; r < SIM_RANKS; r++)
		known->inc[r] = v->member[r].inc;
}

/* Who counts: alive, not ended, and in the store's present view. */
int sim_survivor(struct proc *p)
{
	return p->alive && !p->driver.ended && p->rank >= 0 && sim_listed(p);
}

static int running(struct proc *p)
{
	return p->alive && !p->driver.ended && !p->engine->gate;
}

static void check_pair(struct proc *p, struct proc *q)
{
	const struct cvy_engine *a = p->engine, *b = q->engine;
	uint32_t apart = a->complete > b->complete ? a->complete - b->complete : b->complete - a->complete;

	if (a->here.epoch == b->here.epoch && !a->here.pending && !b->here.pending && apart > CVY_SLOTS &&
	    !strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)))
		sim_fail(p->sim, "I4: processes %d and %d are %u ticks apart", p->id, q->id, apart);
}

/* After a process did something. */
void sim_check(struct proc *p)
{
	const struct cvy_engine *n = p->engine;

	check_step(p);
	if (!running(p))
		return;
	if (!cvy_group_active(p->driver.group))
		sim_fail(p->sim, "I3: process %d works in phase %d", p->id, cvy_group_phase(p->driver.group));
	if (n->ent < n->done || n->ent > n->done + 1)
		sim_fail(p->sim, "I4: process %d has done %" PRIu64 " and entered %" PRIu64, p->id, n->done, n->ent);
	for (int i = 0; i < p->sim->procs; i++)
		if (running(p->sim->proc[i]))
			check_pair(p, p->sim->proc[i]);
}

/*
 * A joiner that no view has listed yet and whose rank is held now waits until it is free: the store says
 * BUSY, and its covey_admit ends after join_ms.
 */
static int waits_for_rank(struct proc *p)
{
	char field[16];

	snprintf(field, sizeof(field), "m:%d", p->want_rank);
	return p->want_rank >= 0 && p->joined && cvy_group_rank(p->driver.group) < 0 &&
	       memory_server_field(p->sim->server, "sim", field);
}

int sim_settled(struct sim *s, uint64_t *low)
{
	uint32_t epoch = 0;
	int n = 0, members = 0;

	*low = UINT64_MAX;
	for (int i = 0; i < s->procs; i++)
		members += s->proc[i]->alive && !s->proc[i]->driver.ended && cvy_group_view(s->proc[i]->driver.group);
	if (!members) /* joiners alone have no group to come into */
		return 1;
	for (int i = 0; i < s->procs; i++) {
		struct proc *p = s->proc[i];

		if (!p->alive || p->driver.ended || waits_for_rank(p))
			continue;
		if (p->paused || !cvy_group_active(p->driver.group))
			return 0;
		if (n++ && cvy_group_view(p->driver.group)->epoch != epoch)
			return 0;
		epoch = cvy_group_view(p->driver.group)->epoch;
		if (p->app.decided < *low)
			*low = p->app.decided;
	}
	return 1;
}

void sim_stuck(struct sim *s)
{
	char text[200] = "";
	size_t n = 0;

	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive && !s->proc[i]->driver.ended && n + 40 < sizeof(text))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " %d:phase %d epoch %u done %" PRIu64, i,
					      cvy_group_phase(s->proc[i]->driver.group),
					      cvy_group_view(s->proc[i]->driver.group)
						      ? cvy_group_view(s->proc[i]->driver.group)->epoch
						      : 0,
					      s->proc[i]->engine->done);
	for (int i = 0; i < s->procs; i++) {
		const struct cvy_engine *e = s->proc[i]->engine;

		if (s->proc[i]->alive && !s->proc[i]->driver.ended)
			sim_trace(s,
				  "process %d: epoch %u gate %u pending %d tick %u complete %u floor %u admit %" PRIu64
				  "/%u; %s %" PRIu64 " state %d entered %" PRIu64 " completed %" PRIu64,
				  i, e->here.epoch, e->gate, e->here.pending, e->tick, e->complete, e->floor,
				  e->admit_seq, e->admit_epoch, e->head ? e->head->kind->name : "-",
				  e->head ? e->head->seq : 0, e->head ? e->head->state : 0,
				  e->head ? e->head->entered : 0, e->head ? e->head->completed : 0);
		for (int r = 0; r < SIM_RANKS && s->proc[i]->alive; r++)
			sim_trace(s, "  rank %d: expects inc %" PRIu64 ", link %d", r, s->proc[i]->expects[r],
				  s->proc[i]->mesh.link[r] ? s->proc[i]->mesh.link[r]->other : -1);
	}
	for (int r = 0; s->trace && r < SIM_RANKS; r++) {
		char joiner[16];
		const char *value;

		snprintf(joiner, sizeof(joiner), "j:%d", r);
		value = memory_server_field(s->server, "sim", joiner);
		sim_trace(s, "store: %s %s", joiner, value ? value : "-");
	}
	sim_fail(s, "I15: no one active view that makes progress:%s", text);
}
