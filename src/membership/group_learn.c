/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a commit to traffic, always in this order: learn (a promise), fence the removed, connect missing links, repair,
 * acknowledge, go on when all members have acknowledged.
 */
#include "group_state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define DIRECT_MEMBERS 64 /* up to here members send ACKED to each other; with more only the store knows */
#define DIRECT_ACK_MS 3	  /* delay of `ack`: an earlier one would slow down members that go on */

/* Does the record lack the view that this member promised? If the view is older than all l: fields, no. */
static int rival(const struct cvy_group_state *g, const struct cvy_record *record)
{
	const char *line = cvy_record_at(record, 'l', g->view->epoch);

	return line && cvy_vid(line) != g->view->vid;
}

static void removed_ranks(const struct cvy_view *old, const struct cvy_view *new, struct covey_mask *removed)
{
	memset(removed, 0, sizeof(*removed));
	if (!old)
		return;
	CVY_MASK_EACH(r, &old->members)
	if (new->member[r].inc != old->member[r].inc)
		cvy_mask_add(removed, r);
}

static void lagging(const struct cvy_record *record, uint32_t epoch, struct covey_mask *lag)
{
	const char *line = cvy_record_at(record, 'l', epoch);
	const char *at = line;

	memset(lag, 0, sizeof(*lag));
	for (int i = 0; i < 3 && at; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	if (at)
		cvy_ranks_parse(at, lag);
}

static void learn(struct cvy_group_state *g)
{
	struct cvy_view *view = cvy_view_dup(g->heard_view);
	struct covey_mask removed;
	struct cvy_action *a;

	if (!view || cvy_record_copy(&g->learned, &g->heard)) {
		cvy_view_free(view);
		cvy_group_no_memory(g);
		return;
	}
	removed_ranks(g->view, view, &removed);
	lagging(&g->heard, view->epoch, &g->lag);
	cvy_link_epoch(g, view);
	cvy_view_free(g->view);
	g->view = view;
	cvy_group_enter(g, CVY_PHASE_LEARNED);
	g->stage = STAGE_FENCE;
	g->acked = 0;
	memset(&g->bad_told, 0, sizeof(g->bad_told));
	cvy_change_clear(g, 0);
	cvy_group_tell_view(g, 0);
	a = cvy_do(g, CVY_DO_LEARN, -1);
	a->view = g->view;
	a->removed = removed;
	a->lag = g->lag;
}

/* Follows a newer view that the store sent, or ends: the view may be without this rank, or a rival. */
static void follow(struct cvy_group_state *g)
{
	const struct cvy_view *v = g->heard_view;
	int listed = g->rank >= 0 && g->rank < v->max_ranks && v->member[g->rank].inc == g->inc;

	if (!g->view) {
		if (listed)
			learn(g);
		else if (g->joined && v->epoch)
			cvy_group_show_view(g);
		return;
	}
	if (!listed && g->leaving)
		cvy_group_stop(g, COVEY_ERR_CLOSED, "left the group");
	else if (!listed)
		cvy_group_stop(g, COVEY_ERR_FENCED, "a committed view is without this rank");
	else if (rival(g, &g->heard))
		cvy_group_stop(g, COVEY_ERR_FENCED, "the group went on without the view that this rank has learned");
	else if (g->phase == CVY_PHASE_FROZEN)
		learn(g);
}

/* FENCE, CONNECT, REPAIR, ACK; a rank that waits for its ADMIT repairs nothing. */
static void enter_stage(struct cvy_group_state *g, enum stage next)
{
	assert(g->phase == CVY_PHASE_LEARNED);
	assert((int)next == (int)g->stage + 1 || (g->stage == STAGE_CONNECT && next == STAGE_ACK));
	g->stage = next;
}

static void repair(struct cvy_group_state *g)
{
	struct cvy_action *a = cvy_do(g, CVY_DO_REPAIR, -1);

	a->ranks = g->view->members;
	cvy_mask_sub(&a->ranks, &g->view->pending);
	cvy_mask_sub(&a->ranks, &g->lag);
	cvy_mask_del(&a->ranks, g->rank);
	enter_stage(g, STAGE_REPAIR);
}

static void add_text(struct covey_event *e, const struct covey_mask *ranks, const char *what)
{
	size_t used = strlen(e->cause);
	char list[48];

	if (!cvy_mask_empty(ranks))
		snprintf(e->cause + used, sizeof(e->cause) - used, "%srank %s %s", used ? ", " : "",
			 cvy_mask_text(ranks, list, sizeof(list)), what);
}

/* The source of the suspicion of the process that had rank @r; 0: this member had none. */
static int blame_of(const struct cvy_group_state *g, int r)
{
	const struct peer *p = &g->peer[r];

	return p->blamed == g->was->member[r].inc ? p->source : 0;
}

/* Who left, why, and who came, as an operator would say it. Returns whether it is more than members that left on purpose. */
static int describe(const struct cvy_group_state *g, struct covey_event *e)
{
	int news = !cvy_mask_empty(&e->came);

	for (int source = CVY_SOURCES - 1; source >= 0 && !cvy_mask_empty(&e->left); source--) {
		struct covey_mask ranks = { 0 };

		CVY_MASK_EACH(r, &e->left)
		if (blame_of(g, r) == source)
			cvy_mask_add(&ranks, r);
		news |= source && !cvy_mask_empty(&ranks);
		add_text(e, &ranks, cvy_source_text(source));
	}
	add_text(e, &e->came, "came");
	return news;
}

static void publish_view(struct cvy_group_state *g)
{
	struct cvy_action *a;
	struct covey_event *e;

	cvy_group_event(g, COVEY_EVENT_VIEW, -1, "");
	a = &g->out->item[g->out->count - 1];
	e = &a->event;
	for (int r = 0; r < g->view->max_ranks; r++) {
		int now = g->view->member[r].inc && !covey_mask_has(&g->view->pending, r);
		int before = g->was && g->was->member[r].inc && !covey_mask_has(&g->was->pending, r);
		int same = now && before && g->was->member[r].inc == g->view->member[r].inc;

		if (before && !same)
			cvy_mask_add(&e->left, r);
		if (now && !same)
			cvy_mask_add(&e->came, r);
	}
	if (g->was)
		a->number = (uint64_t)describe(g, e);
}

static void activate(struct cvy_group_state *g)
{
	struct cvy_view *was = cvy_view_dup(g->view);

	if (!was || cvy_record_activate(&g->learned)) {
		cvy_view_free(was);
		cvy_group_no_memory(g);
		return;
	}
	cvy_group_enter(g, CVY_PHASE_RUN);
	publish_view(g);
	cvy_view_free(g->was);
	g->was = was;
	cvy_link_active(g);
	cvy_group_tell_view(g, 1);
	cvy_do(g, CVY_DO_THAW, -1);
	cvy_join_done(g, 0, NULL);
}

/* Is an ack due? Also after the members went on by themselves: the store must know. */
static int acknowledging(const struct cvy_group_state *g)
{
	return g->phase == CVY_PHASE_ACKED || (g->phase == CVY_PHASE_RUN && g->direct);
}

void cvy_learn_acked(struct cvy_group_state *g, uint64_t epoch, const struct cvy_event *reply)
{
	struct covey_mask wait;

	/* The reply may be to the ack of an earlier view, which does not acknowledge this one. */
	if (!acknowledging(g) || epoch != g->view->epoch || g->seen_epoch != g->view->epoch || g->seen_ph != PH_INST)
		return;
	if (g->acked && !cvy_ranks_parse(cvy_reply_get(reply->argc, reply->argv, "wait"), &wait))
		CVY_MASK_EACH(r, &wait)
	if (r < g->view->max_ranks)
		cvy_change_suspect(g, r, g->view->member[r].inc, CVY_SOURCE_ACK, NULL);
	g->acked = 1;
	g->ack_due = g->now + (uint64_t)g->args.ack_ms * CVY_MS;
}

/*
 * May members go on when each has ACKED from all others, without the store? Only if all members of the view are voters
 * of its record. A decision by the votes of the last view that the store knows active then needs at least as many of
 * these members as a decision by their own votes.
 */
static int goes_on_by_itself(const struct cvy_group_state *g)
{
	if (!cvy_mask_empty(&g->view->pending) || covey_mask_count(&g->view->members) > DIRECT_MEMBERS)
		return 0;
	if (!g->view->vid) /* 0: a damaged name, or that of a member that sent no ACKED */
		return 0;
	for (int i = 0; i < g->learned.count; i++)
		if (strncmp(g->learned.pair[i].field, "u:", 2) == 0)
			return 0;
	CVY_MASK_EACH(r, &g->view->members)
	{
		const char *voter = cvy_record_at(&g->learned, 'o', (uint64_t)r);

		if (!voter || strtoull(voter, NULL, 10) != g->view->member[r].inc)
			return 0;
	}
	return 1;
}

static void tell_acked(struct cvy_group_state *g)
{
	CVY_MASK_EACH(r, &g->view->members)
	{
		struct cvy_action *a;

		if (r == g->rank)
			continue;
		a = cvy_do(g, CVY_DO_SEND, r);
		a->inc = g->view->member[r].inc;
		a->type = CVY_MSG_ACKED;
		a->body = malloc(sizeof(g->view->vid));
		if (!a->body)
			continue;
		memcpy(a->body, &g->view->vid, sizeof(g->view->vid));
		a->bytes = sizeof(g->view->vid);
	}
}

/* ACKED from a member, which may have learned a view that this one has not. */
void cvy_learn_msg(struct cvy_group_state *g, const struct cvy_msg *msg)
{
	uint64_t vid;

	if (msg->bytes != sizeof(vid) || !cvy_group_member(g, msg->rank, msg->inc))
		return;
	memcpy(&vid, msg->body, sizeof(vid));
	g->peer[msg->rank].acked_vid = vid;
}

static int acked_by_all(const struct cvy_group_state *g)
{
	CVY_MASK_EACH(r, &g->view->members)
	if (r != g->rank && g->peer[r].acked_vid != g->view->vid)
		return 0;
	return 1;
}

static void acknowledge(struct cvy_group_state *g)
{
	char epoch[16];
	const char *argv[] = { epoch, cvy_record_get(&g->learned, "vid") };

	if (g->seen_epoch != g->view->epoch)
		return;
	if (g->seen_ph == PH_RUN && g->phase == CVY_PHASE_ACKED)
		activate(g);
	if (g->seen_ph == PH_RUN)
		return;
	if (g->now < g->ack_due) {
		cvy_group_wake(g, g->ack_due);
		return;
	}
	if (g->seen_ph != PH_INST || !cvy_call_free(g, CALL_ACK))
		return;
	snprintf(epoch, sizeof(epoch), "%u", g->view->epoch);
	cvy_call(g, CALL_ACK, g->view->epoch, 2, argv);
}

void cvy_learn_event(struct cvy_group_state *g, const struct cvy_event *e)
{
	if (!g->view || e->epoch != g->view->epoch)
		return;
	if (e->kind == CVY_EV_ADMITTED) {
		struct covey_mask admitted = g->view->members;

		cvy_mask_sub(&admitted, &g->view->pending);
		if (g->phase == CVY_PHASE_RUN && cvy_mask_next(&admitted, 0) == g->rank)
			cvy_change_want(g, "admitted");
	} else if (g->phase == CVY_PHASE_LEARNED) {
		if (e->kind == CVY_EV_FENCED && g->stage == STAGE_FENCE) {
			enter_stage(g, STAGE_CONNECT);
			g->links_dirty = 1;
		} else if (e->kind == CVY_EV_REPAIRED && g->stage == STAGE_REPAIR) {
			enter_stage(g, STAGE_ACK);
		}
	}
}

void cvy_learn_advance(struct cvy_group_state *g)
{
	if (g->need_hello)
		return;
	if (g->seen_ph == PH_CLOSED) {
		cvy_group_stop(g, COVEY_ERR_CLOSED, "the group is closed");
		return;
	}
	if (g->heard_view && g->heard_view->epoch > (g->view ? g->view->epoch : 0)) {
		follow(g);
		if (g->ended)
			return;
	}
	if (!g->view)
		return;
	if (g->seen_epoch == g->view->epoch && g->seen_vid != g->view->vid) {
		cvy_group_stop(g, COVEY_ERR_FENCED, "the store holds a rival of the view that this rank has learned");
		return;
	}
	if (g->phase == CVY_PHASE_LEARNED) {
		if (g->stage == STAGE_CONNECT && !g->links_dirty && cvy_link_all(g, g->view)) {
			if (cvy_group_pending(g))
				enter_stage(g, STAGE_ACK);
			else
				repair(g);
		}
		if (g->stage == STAGE_ACK) {
			cvy_group_enter(g, CVY_PHASE_ACKED);
			g->direct = goes_on_by_itself(g);
			g->ack_due = g->direct ? g->now + DIRECT_ACK_MS * CVY_MS : 0;
			if (g->direct)
				tell_acked(g);
		}
	}
	if (g->phase == CVY_PHASE_ACKED && g->direct && acked_by_all(g))
		activate(g);
	if (acknowledging(g))
		acknowledge(g);
}
