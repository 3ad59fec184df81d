/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the application: join, ready, leave and changes of the members. Each is answered when it is done. */
#include "group_state.h"

#include <stdio.h>
#include <stdlib.h>

static void answer(struct cvy_group_state *g, uint64_t id, int err, const char *why)
{
	struct cvy_action *a = id ? cvy_do(g, CVY_DO_ANSWER, -1) : NULL; /* without an id nobody waits for the answer */

	if (!a)
		return;
	a->id = id;
	a->err = err;
	a->text = strdup(why ? why : "");
}

static void add(struct cvy_group_state *g, const struct cvy_event *e)
{
	struct ask *ask = NULL;

	for (int i = 0; i < CVY_ASKS_MAX && !ask; i++)
		if (!g->ask[i].used)
			ask = &g->ask[i];
	if (!ask) {
		answer(g, e->id, COVEY_ERR_REFUSED, "too many requests are under way");
		return;
	}
	if ((e->api == CVY_API_RETIRE || e->api == CVY_API_EVICT) && (e->rank < 0 || e->rank >= g->max_ranks)) {
		answer(g, e->id, COVEY_ERR_INVAL, "no such rank");
		return;
	}
	memset(ask, 0, sizeof(*ask));
	ask->used = 1;
	ask->id = e->id;
	ask->api = e->api;
	ask->rank = e->rank;
	ask->number = e->number;
	ask->ranks = e->ranks;
	if (g->view && e->rank >= 0 && e->rank < g->view->max_ranks)
		ask->inc = g->view->member[e->rank].inc;
	if (g->view)
		ask->size = g->view->size;
}

/* Evicts a rank that was masked as late and must leave for that. Asks once, and again after a refusal. */
void cvy_ask_late(struct cvy_group_state *g, const struct cvy_event *e)
{
	struct cvy_event evict = { .kind = CVY_EV_API, .api = CVY_API_EVICT, .rank = e->rank };

	if (!g->view || e->rank < 0 || e->rank >= g->view->max_ranks || g->view->member[e->rank].inc != e->inc)
		return;
	for (int i = 0; i < CVY_ASKS_MAX; i++)
		if (g->ask[i].used && g->ask[i].api == CVY_API_EVICT && g->ask[i].inc == e->inc)
			return;
	add(g, &evict);
}

static void leave(struct cvy_group_state *g, const struct cvy_event *e)
{
	if (g->leaving) {
		g->leave_id = e->id ? e->id : g->leave_id;
		g->leave_asked |= e->id != 0;
		return;
	}
	g->leaving = 1;
	g->leave_id = e->id;
	g->leave_asked = e->id != 0;
	g->version++; /* an earlier report lacks the vow: a new one is due */
	if (!g->view)
		cvy_group_stop(g, COVEY_ERR_CLOSED, "left before a view");
}

void cvy_ask_api(struct cvy_group_state *g, const struct cvy_event *e)
{
	if (g->ended) {
		if (e->id)
			answer(g, e->id, e->api == CVY_API_LEAVE ? 0 : g->ended, "the group handle has ended");
		return;
	}
	switch (e->api) {
	case CVY_API_JOIN:
		cvy_join_begin(g, e);
		break;
	case CVY_API_READY:
		g->ready_wanted = 1;
		break;
	case CVY_API_LEAVE:
		leave(g, e);
		break;
	case CVY_API_RECOVER:
	case CVY_API_EXTEND:
	case CVY_API_RETIRE:
	case CVY_API_EVICT:
		add(g, e);
		break;
	default:
		answer(g, e->id, COVEY_ERR_INVAL, "no such request");
		break;
	}
}

void cvy_ask_end(struct cvy_group_state *g, int err, const char *why)
{
	for (int i = 0; i < CVY_ASKS_MAX; i++) {
		if (g->ask[i].used)
			answer(g, g->ask[i].id, err, why);
		g->ask[i].used = 0;
	}
	if (g->leave_asked)
		answer(g, g->leave_id, err == COVEY_ERR_CLOSED || err == COVEY_ERR_FENCED ? 0 : err, why);
	g->leave_asked = 0;
}

static int done(const struct cvy_group_state *g, const struct ask *a)
{
	const struct cvy_view *v = g->view;
	struct covey_mask in = v->members;

	cvy_mask_sub(&in, &v->pending);
	if (a->api == CVY_API_RETIRE || a->api == CVY_API_EVICT)
		return a->inc && v->member[a->rank].inc != a->inc;
	if (a->api == CVY_API_RECOVER)
		return cvy_mask_within(&a->ranks, &in);
	if ((uint64_t)v->size < a->number)
		return 0;
	for (int r = a->size; r < (int)a->number; r++)
		if (!covey_mask_has(&in, r))
			return 0;
	return 1;
}

static void list(const struct covey_mask *mask, char *text, size_t bytes)
{
	size_t at = 0;

	text[0] = 0;
	CVY_MASK_EACH(r, mask)
	if (at + 8 < bytes)
		at += (size_t)snprintf(text + at, bytes - at, "%s%d", at ? "," : "", r);
}

static void tell(struct cvy_group_state *g, int i)
{
	static const char *const kinds[] = {
		[CVY_API_RECOVER] = "recover", [CVY_API_EXTEND] = "extend", [CVY_API_RETIRE] = "retire", [CVY_API_EVICT] = "evict"
	};
	const struct ask *a = &g->ask[i];
	size_t bytes = 6 * (size_t)g->max_ranks + 16;
	char *text = malloc(bytes);
	const char *argv[] = { kinds[a->api], text };

	if (!text)
		return;
	if (a->api == CVY_API_RECOVER)
		list(&a->ranks, text, bytes);
	else
		snprintf(text, bytes, "%d", a->api == CVY_API_EXTEND ? (int)a->number : a->rank);
	cvy_call(g, CALL_ASK, (uint64_t)i, 2, argv);
	free(text);
}

void cvy_ask_replied(struct cvy_group_state *g, uint64_t mark, const struct cvy_event *e)
{
	struct ask *a = &g->ask[mark % CVY_ASKS_MAX];

	if (!a->used)
		return;
	if (strcmp(e->argv[0], "OK") == 0) {
		a->told = 1;
		g->peek_due = g->now;
	} else {
		answer(g, a->id, COVEY_ERR_REFUSED, cvy_reply_get(e->argc, e->argv, "why"));
		a->used = 0;
	}
}

void cvy_ask_advance(struct cvy_group_state *g)
{
	if (!g->view)
		return;
	for (int i = 0; i < CVY_ASKS_MAX; i++) {
		struct ask *a = &g->ask[i];

		if (!a->used)
			continue;
		if (!a->inc && a->rank >= 0 && a->rank < g->view->max_ranks)
			a->inc = g->view->member[a->rank].inc;
		if (g->phase == CVY_PHASE_RUN && done(g, a)) {
			answer(g, a->id, 0, NULL);
			a->used = 0;
		} else if (!a->told && cvy_call_free(g, CALL_ASK)) {
			tell(g, i);
		}
	}
}
