/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between processes: dialled, up at both ends on their own, cut, and control messages in order.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "world.h"

void sim_link_event(struct proc *p, int kind, int rank, uint64_t inc)
{
	struct cvy_event e = { .kind = kind, .rank = rank, .inc = inc, .text = "cut" };

	sim_post(p, &e);
}

void sim_dial(void *ctx, int rank, uint64_t inc, const char *addr, const char *host)
{
	struct proc *p = ctx;
	struct sim_event *e = sim_at(p->sim, sim_lag(p->sim, 500), DIAL, p->id);

	(void)host;
	e->rank = rank;
	e->inc = inc;
	e->other = atoi(addr + 1);
}

void sim_cut(struct proc *p, struct proc *q, int tell_p)
{
	struct sim *s = p->sim;
	uint64_t id = s->link[p->id][q->id];

	if (!id)
		return;
	s->link[p->id][q->id] = s->link[q->id][p->id] = 0;
	s->cut_ns[p->id][q->id] = s->cut_ns[q->id][p->id] = s->now;
	for (int i = !tell_p; i < 2; i++) {
		struct sim_event *e = sim_at(s, sim_lag(s, 3000), DOWN, i ? q->id : p->id);

		e->other = i ? p->id : q->id;
		e->number = id;
	}
}

void sim_drop(void *ctx, int rank, uint64_t inc)
{
	sim_mesh_drop(ctx, rank, inc);
}

/* Messages keep their order on a link. */
int sim_send(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	struct proc *p = ctx, *q = sim_proc_of(p->sim, inc);
	struct sim *s = p->sim;
	struct sim_event *e;
	uint64_t when;
	void *copy;

	if (!q || q->rank != rank || !p->mesh.link[rank] || p->mesh.link[rank]->link.inc != inc ||
	    s->link[p->id][q->id] != p->mesh.link[rank]->id)
		return COVEY_ERR_PEER;
	copy = malloc(bytes + 1);
	if (!copy)
		abort();
	if (bytes)
		memcpy(copy, body, bytes);
	when = s->now + sim_lag(s, 300);
	if (when <= s->order[p->id][q->id])
		when = s->order[p->id][q->id] + 1;
	s->order[p->id][q->id] = when;
	e = sim_at(s, when - s->now, MESSAGE, q->id);
	e->other = p->id;
	e->number = s->link[p->id][q->id];
	e->msg = (struct cvy_msg){ type, p->rank, p->inc, epoch, bytes, copy };
	return 0;
}

/* Both ends learn of the link on their own; control messages come after that. */
void sim_dialled(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = e->other < s->procs ? s->proc[e->other] : NULL;
	uint64_t id;

	if (!p->alive)
		return;
	if (!q || !q->alive || q->inc != e->inc || p->rank < 0 || q->expects[p->rank] != p->inc ||
	    s->link[p->id][q->id]) {
		sim_link_event(p, CVY_EV_LINK_DOWN, e->rank, e->inc);
		return;
	}
	q->expects[p->rank] = 0;
	id = s->link[p->id][q->id] = s->link[q->id][p->id] = ++s->links;
	for (int i = 0; i < 2; i++) {
		struct proc *me = i ? q : p, *other = i ? p : q;
		struct sim_event *up = sim_at(s, sim_lag(s, 300), LINKED, me->id);

		up->other = other->id;
		up->rank = other->rank;
		up->inc = other->inc;
		up->number = id;
		s->order[other->id][me->id] = up->at;
	}
}

void sim_linked(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = s->proc[e->other];
	int stands = p->alive && s->link[p->id][q->id] == e->number;

	if (stands)
		sim_mesh_up(p, q, e->rank, e->inc, e->number);
	sim_link_event(p, stands ? CVY_EV_LINK_UP : CVY_EV_LINK_DOWN, e->rank, e->inc);
}

/* Signs of life over tcp; on one host the pages tell the same. */
void sim_ping(struct sim *s, struct proc *p)
{
	const struct cvy_view *v = cvy_group_view(p->driver.group);
	uint64_t body[2];
	int waiting;

	if (!p->alive || p->driver.ended)
		return;
	sim_at(s, 50 * CVY_MS, PING, p->id);
	if (!v)
		return;
	body[0] = cvy_engine_progress(p->engine, &body[1], &waiting);
	CVY_MASK_EACH(r, &v->members)
	if (r != p->rank)
		sim_send(p, r, v->member[r].inc, CVY_MSG_PING, v->epoch, body, sizeof(body));
}
