/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is looked at when a member calls the store, and when a call has decided something: what it says is true,
 * who may vote, and which view came of which, so that two views can be told to be of one line.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "checks.h"

#define COMMON 7 /* name gid rank inc nonce life rnd */

/* ---- what a member says ---- */

/*
 * I9: no ack before the fence is done; I6: nor before all is repaired. Members that told each other that they had
 * acknowledged may have gone on when the store hears of it.
 */
static void check_ack(struct proc *p, const char *epoch)
{
	const struct cvy_engine *e = p->engine;
	int goes_on = cvy_group_active(p->driver.group);

	if (!e->view || strtoul(epoch, NULL, 10) != e->view->epoch)
		sim_fail(p->sim, "I9: process %d acknowledges view %s and has learned %u", p->id, epoch,
			 e->view ? e->view->epoch : 0);
	if (!e->view)
		return;
	for (int r = 0; r < SIM_RANKS; r++)
		if (r != p->rank && p->mesh.mapped[r] && p->mesh.map_inc[r] != e->view->member[r].inc &&
		    p->mesh.map_inc[r] == p->seen.member[r])
			sim_fail(p->sim,
				 "I9: process %d acknowledges view %s and still sees incarnation %" PRIu64
				 " of rank %d",
				 p->id, epoch, p->mesh.map_inc[r], r);
	if (!e->here.pending && (e->done + 1 < e->view->base || (!goes_on && e->done + 1 != e->view->base)))
		sim_fail(p->sim, "I6: process %d acknowledges view %s, base %" PRIu64 ", with done %" PRIu64, p->id,
			 epoch, e->view->base, e->done);
	for (int r = 0; r < SIM_RANKS; r++)
		p->seen.member[r] = e->view->member[r].inc;
}

/* I7: what it reports is so. */
static void check_told(struct proc *p, const char *const *arg)
{
	const struct cvy_engine *e = p->engine;
	int spoiled = e->head && e->head->state == CVY_OP_ENTERED && e->head->spoiled;

	if (!e->gate)
		sim_fail(p->sim, "I7: process %d reports and does not stand still", p->id);
	if (strtoull(arg[2], NULL, 10) != e->done || strtoull(arg[3], NULL, 10) != e->ent ||
	    strtoull(arg[4], NULL, 10) != e->adm || !strchr(arg[6], 's') == !!spoiled ||
	    !strchr(arg[6], 'm') == !!e->mismatch)
		sim_fail(p->sim, "I7: process %d reports done %s entered %s %s, it has %" PRIu64 " and %" PRIu64, p->id,
			 arg[2], arg[3], arg[6], e->done, e->ent);
}

/* A member speaks for itself, or for one that is cut off (then it stands as that one told it). */
void check_call(struct proc *p, int argc, const char *const *argv)
{
	if (argc < COMMON || strtoull(argv[3], NULL, 10) != p->inc)
		return;
	if (!strcmp(argv[0], "ack"))
		check_ack(p, argv[COMMON]);
	else if (!strcmp(argv[0], "report"))
		check_told(p, argv + COMMON);
}

/* ---- what a call decided ---- */

/* I12: a pending member is no voter. */
void check_voters(struct sim *s, struct memory_server *server)
{
	for (int r = 0; r < SIM_RANKS; r++) {
		char voter[16], member[16], from[8];
		const char *o, *m;

		snprintf(voter, sizeof(voter), "o:%d", r);
		snprintf(member, sizeof(member), "m:%d", r);
		o = memory_server_field(server, "sim", voter);
		m = memory_server_field(server, "sim", member);
		if (o && m && strtoull(o, NULL, 10) == strtoull(m, NULL, 10) && sscanf(m, "%*s %7s", from) == 1 &&
		    from[0] == '-')
			sim_fail(s, "I12: the pending rank %d is a voter", r);
	}
}

void check_decided(struct sim *s, const char *before, const char *vid)
{
	if (s->lines < SIM_LINES)
		s->line[s->lines++] =
			(struct sim_line){ .vid = strtoull(vid, NULL, 16), .parent = strtoull(before, NULL, 16) };
}

static int descends(const struct sim *s, uint64_t vid, uint64_t from)
{
	for (int i = s->lines; i-- > 0 && vid != from;)
		if (s->line[i].vid == vid)
			vid = s->line[i].parent;
	return vid == from;
}

static struct sim_line *line_of(struct sim *s, uint64_t vid)
{
	for (int i = s->lines; i-- > 0;)
		if (s->line[i].vid == vid)
			return &s->line[i];
	return NULL;
}

void check_ran(struct sim *s, struct memory_server *server)
{
	const char *vid = memory_server_field(server, "sim", "vid"), *epoch, *act;
	struct sim_line *line = vid ? line_of(s, strtoull(vid, NULL, 16)) : NULL;

	epoch = memory_server_field(server, "sim", "epoch");
	act = memory_server_field(server, "sim", "act");
	if (!line || line->ran || !epoch || !act || strcmp(epoch, act) != 0)
		return;
	line->ran = 1;
	for (int r = 0; r < SIM_RANKS; r++) {
		char field[16];
		const char *o;

		snprintf(field, sizeof(field), "o:%d", r);
		o = memory_server_field(server, "sim", field);
		line->voter[r] = o ? strtoull(o, NULL, 10) : 0;
	}
}

/* Had rank @r a vote on what came after the view @vid? -1: nobody ran in that view. */
static int had_vote(struct sim *s, const struct sim_line *line, int r, uint64_t inc)
{
	if (line->ran)
		return line->voter[r] == inc;
	for (int i = 0; i < s->views; i++)
		if (s->view[i].vid == line->vid)
			return s->view[i].inc[r] == inc && !(s->view[i].pending >> r & 1);
	return -1;
}

/* I2: a view is begun without the store's word only where all of its members had a vote on it. */
void check_by_itself(struct proc *p, const struct cvy_view *v)
{
	struct sim *s = p->sim;
	const struct sim_line *line = line_of(s, v->vid), *before = line;

	if (!line || line->ran || s->lines == SIM_LINES)
		return;
	do
		before = before->parent ? line_of(s, before->parent) : NULL;
	while (before && had_vote(s, before, p->rank, p->inc) < 0);
	if (!before) /* founders have their votes from the start */
		return;
	CVY_MASK_EACH(r, &v->members)
	{
		if (!had_vote(s, before, r, v->member[r].inc))
			sim_fail(s, "I2: process %d begins view %u, which the store has not; rank %d had no vote on it",
				 p->id, v->epoch, r);
	}
}

/* I2: of any two views that were active and have live members, one descends from the other. */
void check_descent(struct proc *p, const struct cvy_view *v)
{
	struct sim *s = p->sim;

	for (int i = 0; i < s->procs && s->lines < SIM_LINES; i++) {
		const struct proc *q = s->proc[i];
		int later = q->seen.active_epoch > v->epoch;

		if (q == p || !q->alive || q->driver.ended || !q->seen.active_vid ||
		    strcmp(cvy_group_gid(p->driver.group), cvy_group_gid(q->driver.group)) != 0)
			continue;
		if (!descends(s, later ? q->seen.active_vid : v->vid, later ? v->vid : q->seen.active_vid))
			sim_fail(s, "I2: process %d runs in view %u, process %d in view %u of another line", p->id,
				 v->epoch, i, q->seen.active_epoch);
	}
	p->seen.active_vid = v->vid;
	p->seen.active_epoch = v->epoch;
}
