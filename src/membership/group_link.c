/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of this rank, wanted and present. It wants links to members of the learned view, to members of the heard view
 * whose ranks are free in the learned one, and to registered joiners. The greater inc dials.
 */
#include "detect.h"
#include "group_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void want(struct cvy_group_state *g, int rank, uint64_t inc, const struct cvy_field *place)
{
	struct peer *p = &g->peer[rank];

	p->want = rank == g->rank ? 0 : inc;
	if (p->place.field == place->field)
		return;
	cvy_field_drop(&p->place);
	cvy_field_share(&p->place, place);
}

static void want_members(struct cvy_group_state *g, const struct cvy_record *record)
{
	for (int i = 0; i < record->count; i++) {
		const struct cvy_field *pair = &record->pair[i];
		int r = cvy_record_rank(record, i, 'm', g->max_ranks);
		char addr[256], host[128];

		if (r >= 0 && !cvy_member_place(pair->value, addr, sizeof(addr), host, sizeof(host)))
			want(g, r, strtoull(pair->value, NULL, 10), pair);
	}
}

static void joiner_seen(struct cvy_group_state *g, int rank, uint64_t inc)
{
	struct peer *p = &g->peer[rank];
	const char *policy;

	if (!g->view || p->seen_join == inc || cvy_record_at(&g->news, 'w', (uint64_t)rank) || p->inc != inc || !p->up)
		return;
	policy = cvy_record_get(&g->heard, "policy");
	if (!policy || strcmp(policy, "manual") != 0)
		return;
	p->seen_join = inc;
	cvy_group_event(g, COVEY_EVENT_JOIN_REQUESTED, rank, "a joiner waits to be asked for");
}

static void joiner_gone(struct cvy_group_state *g, int rank, uint64_t inc, const char *why)
{
	struct peer *p = &g->peer[rank];

	if (p->seen_join != inc || cvy_group_member(g, rank, inc))
		return;
	p->seen_join = 0;
	cvy_group_event(g, COVEY_EVENT_JOIN_LOST, rank, why ? why : "the link to the joiner broke");
}

void cvy_link_joiner(struct cvy_group_state *g, const char *field, const char *value)
{
	struct cvy_field pair = { field, value }, made;
	struct cvy_record one = { &pair, 1, 1 };
	int r = cvy_record_rank(&one, 0, 'j', g->max_ranks);
	struct cvy_joiner j;

	if (r < 0 || cvy_joiner_parse(value, &j))
		return;
	if ((g->view && covey_mask_has(&g->view->members, r)) ||
	    (g->heard_view && covey_mask_has(&g->heard_view->members, r))) {
		g->links_dirty = 1; /* members come first */
		return;
	}
	if (cvy_field_make(&made, field, value)) {
		g->links_dirty = 1; /* the news have it */
		return;
	}
	want(g, r, j.inc, &made);
	cvy_field_drop(&made);
	joiner_seen(g, r, j.inc);
	g->link_due = 0;
}

static void targets(struct cvy_group_state *g)
{
	for (int r = 0; r < g->max_ranks; r++)
		g->peer[r].want = 0;
	for (int i = 0; i < g->news.count; i++) {
		int r = cvy_record_rank(&g->news, i, 'j', g->max_ranks);
		struct cvy_joiner j;

		if (r < 0 || cvy_joiner_parse(g->news.pair[i].value, &j))
			continue;
		want(g, r, j.inc, &g->news.pair[i]);
		joiner_seen(g, r, j.inc);
	}
	if (!g->view || (g->heard_view && g->heard_view->epoch > g->view->epoch))
		want_members(g, &g->heard);
	if (g->view)
		want_members(g, &g->learned);
}

static void reach(struct cvy_group_state *g, int rank)
{
	struct peer *p = &g->peer[rank];
	struct cvy_action *a;
	int dial = g->inc > p->inc;
	char addr[256] = "-", host[128] = "-";

	cvy_member_place(p->place.value, addr, sizeof(addr), host, sizeof(host)); /* was read when it came */
	a = cvy_do(g, dial ? CVY_DO_DIAL : CVY_DO_EXPECT, rank);
	a->inc = p->inc;
	a->text = strdup(addr);
	a->host = strdup(host);
	if (a == &g->spare || !a->text || !a->host) { /* retried like a failed dial */
		a->kind = 0;
		p->due_ns = g->now + CVY_CALL_RETRY_MS * CVY_MS;
		if (p->due_ns < g->link_due)
			g->link_due = p->due_ns;
		cvy_group_wake(g, p->due_ns);
		return;
	}
	p->dials++;
	p->due_ns = CVY_NEVER;
}

static void tend(struct cvy_group_state *g, int r)
{
	struct peer *p = &g->peer[r];

	if (p->inc != p->want) {
		if (p->inc) {
			cvy_do(g, CVY_DO_DROP, r)->inc = p->inc;
			joiner_gone(g, r, p->inc, p->want ? "another joiner took its rank" : "it waits no longer");
		}
		p->inc = p->want;
		g->ups -= p->up;
		g->link_changes++;
		g->look_again = 1;
		p->up = p->was_up = p->downs = p->dials = 0;
		p->due_ns = g->now;
		p->since_ns = g->now;
	}
	if (!p->inc || p->up)
		return;
	if (g->now >= p->due_ns)
		reach(g, r);
	else if (p->due_ns < g->link_due)
		g->link_due = p->due_ns;
}

void cvy_link_advance(struct cvy_group_state *g)
{
	if (g->rank < 0 && !g->links_dirty)
		return;
	if (g->phase == CVY_PHASE_LEARNED && g->stage == STAGE_FENCE)
		return; /* the next incarnation is mapped only after the last one is fenced */
	if (g->link_one)
		tend(g, g->link_one - 1);
	g->link_one = 0;
	if (!g->links_dirty && g->now < g->link_due) {
		cvy_group_wake(g, g->link_due);
		return;
	}
	if (g->links_dirty)
		targets(g);
	g->links_dirty = 0;
	g->link_due = CVY_NEVER;
	for (int r = 0; r < g->max_ranks; r++)
		tend(g, r);
	cvy_group_wake(g, g->link_due);
}

/* Is @rank of this host, and so few are that each watches all others (detect.c)? Then its death is proven at once. */
static int is_watched(const struct cvy_group_state *g, int rank)
{
	const struct cvy_member *member = g->view->member;
	int here = 0;

	if (!cvy_group_member(g, g->rank, g->inc) || member[rank].host != member[g->rank].host)
		return 0;
	CVY_MASK_EACH(r, &g->view->members)
	here += member[r].host == member[rank].host;
	return here <= CVY_LOCAL_ALL;
}

/*
 * A link to a process that is watched accuses nobody when it breaks for the first time: all members meet in a change, and one
 * that has a core late is waited for until its link is bad.
 */
static void link_broke(struct cvy_group_state *g, const struct peer *p, int rank, uint64_t inc, const char *why)
{
	if (!cvy_group_member(g, rank, inc))
		return;
	if (p->downs < 2 && is_watched(g, rank))
		cvy_change_want(g, cvy_source_name(CVY_SOURCE_LINK));
	else
		cvy_change_suspect(g, rank, inc, CVY_SOURCE_LINK, why);
}

static void link_down(struct cvy_group_state *g, struct peer *p, const struct cvy_event *e, int rank, uint64_t inc)
{
	int shift = p->dials < 5 ? p->dials : 5, ms = CVY_DIAL_RETRY_MS << shift;

	if (ms > CVY_DIAL_RETRY_MAX_MS)
		ms = CVY_DIAL_RETRY_MAX_MS;
	if (!g->joined && e->text)
		snprintf(g->link_why, sizeof(g->link_why), "; the last link that failed, to rank %d: %.100s", rank,
			 e->text);
	if (p->up) {
		p->up = 0;
		g->ups--;
		p->downs++;
		p->since_ns = g->now;
		ms = 0;
		link_broke(g, p, rank, inc, e->text);
		joiner_gone(g, rank, inc, e->text);
	}
	p->due_ns = g->now + (uint64_t)ms * CVY_MS;
	if (!ms && !g->link_one)
		g->link_one = rank + 1;
	else if (p->due_ns < g->link_due)
		g->link_due = p->due_ns;
}

void cvy_link_event(struct cvy_group_state *g, const struct cvy_event *e)
{
	int rank = e->kind == CVY_EV_MSG ? e->msg.rank : e->rank;
	uint64_t inc = e->kind == CVY_EV_MSG ? e->msg.inc : e->inc;
	struct peer *p;

	if (rank < 0 || rank >= g->max_ranks || !inc || g->peer[rank].inc != inc)
		return;
	p = &g->peer[rank];
	g->link_changes++;
	if (e->kind == CVY_EV_LINK_UP) {
		g->ups += !p->up;
		p->up = p->was_up = 1;
		p->dials = 0;
		p->since_ns = g->now;
		if (g->view && !covey_mask_has(&g->view->members, rank))
			g->links_dirty = 1; /* a joiner is seen when it is connected */
	} else {
		link_down(g, p, e, rank, inc);
	}
	cvy_change_look_at(g, rank);
}

int cvy_link_all(const struct cvy_group_state *g, const struct cvy_view *view)
{
	int members = 0;

	for (int i = 0; i < CVY_MASK_WORDS; i++)
		members += __builtin_popcountll(view->members.word[i]);
	if (g->ups < members - covey_mask_has(&view->members, g->rank))
		return 0;
	CVY_MASK_EACH(r, &view->members)
	if (r != g->rank && !(g->peer[r].up && g->peer[r].inc == view->member[r].inc))
		return 0;
	return 1;
}

/*
 * Is the link bad? Yes if it was down twice in this view, or is not back within relink_ms (a first connection: ack_ms).
 * A link that was up for ack_ms is good again, since it came up by carrying data both ways: else two members that complain
 * for ever would leave a change without quorum. Lowers @due to the time at which the answer may change by itself.
 */
int cvy_link_bad(struct cvy_group_state *g, int rank, uint64_t *due)
{
	struct peer *p = &g->peer[rank];
	uint64_t until;

	if (p->downs >= 2) {
		until = p->since_ns + (uint64_t)g->args.ack_ms * CVY_MS;
		if (!p->up || g->now < until) {
			if (p->up && until < *due)
				*due = until;
			return 1;
		}
		p->downs = 0;
	}
	if (p->up || p->inc != g->view->member[rank].inc)
		return 0;
	until = p->since_ns + (uint64_t)(p->was_up ? g->args.relink_ms : g->args.ack_ms) * CVY_MS;
	if (g->now >= until)
		return 1;
	if (until < *due)
		*due = until;
	return 0;
}

void cvy_link_active(struct cvy_group_state *g)
{
	for (int r = 0; r < g->max_ranks; r++)
		cvy_field_drop(&g->peer[r].voter);
}

/* A member of both views that is not connected gets no new time: else it could hold up one view after the other. */
void cvy_link_epoch(struct cvy_group_state *g, const struct cvy_view *next)
{
	for (int r = 0; r < g->max_ranks; r++) {
		struct peer *p = &g->peer[r];
		int stays = r < next->max_ranks && cvy_group_member(g, r, next->member[r].inc);

		if (!stays && g->view && covey_mask_has(&g->view->members, r) && p->place.field && !p->voter.field)
			cvy_field_share(&p->voter, &p->place);
		p->downs = 0;
		if (!p->up && !stays)
			p->since_ns = g->now;
	}
	g->links_dirty = 1;
	g->look_again = 1;
}
