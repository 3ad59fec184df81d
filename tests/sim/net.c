/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between processes: dialled, up at both ends on their own, cut, and control messages in order. A wall
 * between groups of processes stops what goes through it, in both directions or in one: connections that
 * stand deliver it when the wall falls, as tcp does, or are cut and cannot be dialled anew.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "world.h"

#define SILENCE_MS 100 /* of a peer behind a wall, until it is suspected */

struct sim_net {
	int groups, one_way; /* one_way: from the lower group to the higher nothing comes */
	uint64_t until_ns, number;
	uint8_t side[SIM_PROCS];
};

int sim_apart(const struct sim *s, const struct proc *from, const struct proc *to)
{
	const struct sim_net *n = s->net;

	if (!n || s->now >= n->until_ns || n->side[from->id] == n->side[to->id])
		return 0;
	return !n->one_way || n->side[from->id] < n->side[to->id];
}

/* When what is sent now may arrive. */
uint64_t sim_passes(const struct sim *s, const struct proc *from, const struct proc *to)
{
	return sim_apart(s, from, to) ? s->net->until_ns : s->now;
}

/* Who hears nothing says so, again and again. On one host the pages are seen all the same. */
static void silence(struct sim *s)
{
	for (int i = 0; i < s->procs; i++)
		for (int k = 0; k < s->procs; k++) {
			struct proc *p = s->proc[i], *q = s->proc[k];
			struct cvy_event e = { .kind = CVY_EV_SUSPECT, .source = CVY_SOURCE_LINK };

			e.rank = q->rank;
			e.inc = q->inc;
			if (p->alive && q->rank >= 0 && sim_by_tcp(p, q) && sim_apart(s, q, p))
				sim_post(p, &e);
		}
	sim_at(s, SILENCE_MS * CVY_MS, HEAL, 0)->number = s->net->number;
}

void sim_wall(struct sim *s, int groups, int one_way, int cut, uint64_t ns)
{
	struct sim_net *n = s->net;

	if (!n)
		n = s->net = calloc(1, sizeof(*n));
	if (!n)
		abort();
	n->groups = groups;
	n->one_way = one_way;
	n->until_ns = s->now + ns;
	n->number++;
	for (int i = 0; i < SIM_PROCS; i++)
		n->side[i] = (uint8_t)sim_draw(s, SIM_FAULTS, (uint64_t)groups);
	for (int i = 0; cut && i < s->procs; i++)
		for (int k = 0; k < i; k++)
			if (n->side[i] != n->side[k])
				sim_cut(s->proc[i], s->proc[k], 1);
	for (int i = 0; i < s->procs; i++)
		if (s->proc[i]->alive)
			sim_trace(s, "process %d is in group %d", i, n->side[i]);
	sim_at(s, SILENCE_MS * CVY_MS, HEAL, 0)->number = n->number;
}

/* Time passes for a wall: it stands, or it has fallen. */
void sim_wall_end(struct sim *s, uint64_t number)
{
	if (number == s->net->number && s->now < s->net->until_ns)
		silence(s);
}

void sim_net_free(struct sim *s)
{
	free(s->net);
}

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

static void echo(struct sim *s, const struct sim_event *from)
{
	struct sim_event *e = sim_at(s, (10 + sim_hash(s->seed, s->serial) % 800) * CVY_MS, ECHO, from->proc);
	void *copy = malloc(from->msg.bytes + 1);

	if (!copy)
		abort();
	memcpy(copy, from->msg.body, from->msg.bytes);
	e->msg = from->msg;
	e->msg.body = copy;
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
	if (sim_scarce_fails(p, "a message")) /* engine_send(), or the mesh */
		return COVEY_ERR_NOMEM;
	copy = malloc(bytes + 1);
	if (!copy)
		abort();
	if (bytes)
		memcpy(copy, body, bytes);
	when = sim_passes(s, p, q) + sim_lag(s, 300);
	if (when <= s->order[p->id][q->id])
		when = s->order[p->id][q->id] + 1;
	s->order[p->id][q->id] = when;
	e = sim_at(s, when - s->now, MESSAGE, q->id);
	e->other = p->id;
	e->number = s->link[p->id][q->id];
	e->msg = (struct cvy_msg){ type, p->rank, p->inc, epoch, bytes, copy, -1 };
	/* What is left of it somewhere comes much later. Pings are many, the others few. */
	if (s->faults && sim_hash(s->serial, s->seed) % (type == CVY_MSG_PING ? 100 : 4) == 0)
		echo(s, e);
	return 0;
}

void sim_message(struct sim *s, struct proc *p, struct sim_event *e)
{
	struct cvy_event ev = { .kind = CVY_EV_MSG, .rank = -1, .msg = e->msg };

	if (s->link[p->id][e->other] == e->number)
		sim_post(p, &ev);
}

/* Late words of an incarnation that the receiver has fenced. From a member none come: its connection is closed. */
void sim_echo(struct sim *s, struct proc *p, struct sim_event *e)
{
	const struct cvy_view *v = cvy_group_view(p->driver.group);
	struct cvy_event ev = { .kind = CVY_EV_MSG, .rank = -1, .msg = e->msg };

	if (!v || !s->faults || v->member[e->msg.rank].inc == e->msg.inc)
		return;
	ev.msg.epoch = e->msg.epoch < v->epoch && sim_draw(s, SIM_NET, 2) ? v->epoch : e->msg.epoch;
	sim_trace(s, "process %d hears a late message %d of incarnation %" PRIu64, p->id, e->msg.type, e->msg.inc);
	sim_post(p, &ev);
}

/* Both ends learn of the link on their own; control messages come after that. */
void sim_dialled(struct sim *s, struct proc *p, const struct sim_event *e)
{
	struct proc *q = e->other < s->procs ? s->proc[e->other] : NULL;
	uint64_t id;

	if (!p->alive)
		return;
	if (!q || !q->alive || q->inc != e->inc || p->rank < 0 || q->expects[p->rank] != p->inc ||
	    p->mesh.fenced_inc[e->rank] == e->inc || s->link[p->id][q->id] || sim_apart(s, p, q) ||
	    sim_apart(s, q, p)) {
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
	uint64_t done;
	int waiting;

	if (!p->alive || p->driver.ended)
		return;
	sim_at(s, 50 * CVY_MS, PING, p->id);
	if (!v)
		return;
	done = cvy_engine_progress(p->engine, &waiting);
	CVY_MASK_EACH(r, &v->members)
	if (r != p->rank)
		sim_send(p, r, v->member[r].inc, CVY_MSG_PING, v->epoch, &done, sizeof(done));
}
