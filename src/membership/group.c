/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of the group state machine. An event is noted as a fact. Then advance() does what the facts allow, in
 * rounds, until a round gives no action. See group_state.h.
 */
#include "group_state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS_MAX 16 /* of advance() in one step; each acts on the changes of the one before */

static int value(int given, int otherwise)
{
	return given > 0 ? given : otherwise;
}

static void defaults(struct cvy_group_args *a)
{
	a->grace_ms = value(a->grace_ms, 5);
	a->flush_ms = value(a->flush_ms, 1000);
	a->ack_ms = value(a->ack_ms, 1000);
	a->relink_ms = value(a->relink_ms, 100);
	a->join_ms = value(a->join_ms, 60000);
	a->peek_ms = value(a->peek_ms, 20);
	a->pace_members = value(a->pace_members, 128);
	a->max_ranks = value(a->max_ranks, 64);
	if (a->lease_ms == 0)
		a->lease_ms = 5000;
}

struct cvy_group_state *cvy_group_new(const struct cvy_group_args *args, uint64_t now_ns)
{
	struct cvy_group_state *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->args = *args;
	defaults(&g->args);
	g->rng = args->seed;
	g->now = now_ns;
	g->timer = CVY_NEVER;
	g->rank = -1;
	g->helper = -1;
	g->born_ns = args->age_ms < now_ns / CVY_MS ? now_ns - args->age_ms * CVY_MS : 0;
	g->addr = strdup(args->addr ? args->addr : "-");
	g->host = strdup(args->host ? args->host : "-");
	g->name = strdup(args->name ? args->name : "-");
	g->job = strdup(args->job && *args->job ? args->job : "-");
	g->alike = strdup(args->alike ? args->alike : "");
	if (args->secret) {
		memcpy(g->secret, args->secret, sizeof(g->secret));
		g->have_secret = 1;
	}
	if (!g->addr || !g->host || !g->name || !g->job || !g->alike || cvy_group_grow(g, g->args.max_ranks)) {
		cvy_group_free(g);
		return NULL;
	}
	/* not kept: copied above */
	g->args.addr = g->args.host = g->args.name = g->args.job = g->args.alike = NULL;
	g->args.secret = NULL;
	return g;
}

void cvy_group_free(struct cvy_group_state *g)
{
	if (!g)
		return;
	cvy_record_clear(&g->heard);
	cvy_record_clear(&g->news);
	cvy_record_clear(&g->learned);
	cvy_view_free(g->heard_view);
	cvy_view_free(g->view);
	cvy_view_free(g->was);
	for (int r = 0; r < g->max_ranks; r++) {
		cvy_field_drop(&g->peer[r].place);
		cvy_field_drop(&g->peer[r].voter);
	}
	cvy_do_spare(g);
	free(g->peer);
	free(g->addr);
	free(g->host);
	free(g->name);
	free(g->job);
	free(g->alike);
	free(g->place);
	free(g);
}

/* max_ranks comes from the store; it may differ from this process's setting. */
int cvy_group_grow(struct cvy_group_state *g, int max_ranks)
{
	struct peer *peer;

	if (max_ranks <= g->max_ranks)
		return 0;
	peer = realloc(g->peer, (size_t)max_ranks * sizeof(*peer));
	if (!peer)
		return COVEY_ERR_NOMEM;
	memset(peer + g->max_ranks, 0, (size_t)(max_ranks - g->max_ranks) * sizeof(*peer));
	g->peer = peer;
	g->max_ranks = max_ranks;
	return 0;
}

/* splitmix64 */
uint64_t cvy_group_random(struct cvy_group_state *g)
{
	uint64_t z = g->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void cvy_group_wake(struct cvy_group_state *g, uint64_t at_ns)
{
	if (at_ns < g->timer)
		g->timer = at_ns;
}

/* With very many members each asks less often: the store can answer only so many calls a second. */
uint64_t cvy_group_pace_ms(const struct cvy_group_state *g)
{
	int members = 0;

	for (int i = 0; g->heard_view && i < CVY_MASK_WORDS; i++)
		members += __builtin_popcountll(g->heard_view->members.word[i]);
	return (uint64_t)g->args.peek_ms * (uint64_t)(1 + members / g->args.pace_members);
}

int cvy_group_member(const struct cvy_group_state *g, int rank, uint64_t inc)
{
	return g->view && rank >= 0 && rank < g->view->max_ranks && inc && g->view->member[rank].inc == inc;
}

int cvy_group_pending(const struct cvy_group_state *g)
{
	return g->view && covey_mask_has(&g->view->pending, g->rank);
}

void cvy_group_tell_view(struct cvy_group_state *g, int active)
{
	struct cvy_action *a = cvy_do(g, CVY_DO_VIEW, -1);

	a->view = g->view;
	a->number = (uint64_t)active;
}

/* A joiner learns no view before one lists it. Until then its application sees the view that it is connected to. */
void cvy_group_show_view(struct cvy_group_state *g)
{
	struct cvy_action *a;

	if (g->shown_vid == g->heard_view->vid)
		return;
	g->shown_vid = g->heard_view->vid;
	a = cvy_do(g, CVY_DO_VIEW, -1);
	a->view = g->heard_view;
	a->number = 0;
}

void cvy_group_event(struct cvy_group_state *g, int kind, int rank, const char *cause)
{
	struct covey_event *e = &cvy_do(g, CVY_DO_PUBLISH, rank)->event;

	e->kind = kind;
	e->rank = rank;
	e->epoch = g->view ? g->view->epoch : 0;
	e->time_ns = g->now;
	cvy_text_set(e->cause, sizeof(e->cause), cause);
}

/*
 *   JOINING ------------------------------> LEARNED ---> ACKED ---> RUN
 *                                           ^    |         |         |
 *                                           |    v         v         |
 *                                        FROZEN <--- FREEZING <------'       and FENCED from anywhere, once
 */
void cvy_group_enter(struct cvy_group_state *g, enum cvy_phase next)
{
	static const unsigned after[] = {
		[CVY_PHASE_JOINING] = 1u << CVY_PHASE_LEARNED,
		[CVY_PHASE_RUN] = 1u << CVY_PHASE_FREEZING,
		[CVY_PHASE_FREEZING] = 1u << CVY_PHASE_FROZEN,
		[CVY_PHASE_FROZEN] = 1u << CVY_PHASE_LEARNED,
		[CVY_PHASE_LEARNED] = 1u << CVY_PHASE_ACKED | 1u << CVY_PHASE_FREEZING,
		[CVY_PHASE_ACKED] = 1u << CVY_PHASE_RUN | 1u << CVY_PHASE_FREEZING,
		[CVY_PHASE_FENCED] = 0,
	};

	assert(next == CVY_PHASE_FENCED ? g->phase != CVY_PHASE_FENCED : after[g->phase] >> next & 1);
	g->phase = next;
}

void cvy_group_stop(struct cvy_group_state *g, int err, const char *why)
{
	struct cvy_action *a;

	if (g->ended)
		return;
	if (!g->joined) {
		cvy_join_done(g, err, why);
		return;
	}
	if (err == COVEY_ERR_FENCED) { /* it never votes again: who counts its vote need not wait for it */
		cvy_call_prove(g, g->rank, g->inc, "fenced");
		cvy_group_event(g, COVEY_EVENT_FENCED, g->rank, why);
	}
	cvy_ask_end(g, err, why);
	g->ended = err;
	cvy_group_enter(g, CVY_PHASE_FENCED);
	a = cvy_do(g, CVY_DO_STOP, -1);
	a->err = err;
	a->text = strdup(why);
}

void cvy_group_no_memory(struct cvy_group_state *g)
{
	if (g->joined) /* the others go on without it: the handle is lost, not one call */
		cvy_group_stop(g, COVEY_ERR_FENCED, "no memory for a view: this rank gives up its place");
	else
		cvy_group_stop(g, COVEY_ERR_NOMEM, "no memory for a view");
}

static void note(struct cvy_group_state *g, const struct cvy_event *e)
{
	switch (e->kind) {
	case CVY_EV_TICK:
		if (e->text)
			cvy_text_set(g->stat, sizeof(g->stat), e->text);
		break;
	case CVY_EV_NOTICE:
		cvy_notice(g, e);
		break;
	case CVY_EV_STORE_UP:
	case CVY_EV_STORE_DOWN:
		cvy_store_state(g, e);
		break;
	case CVY_EV_REPLY:
		cvy_store_reply(g, e);
		break;
	case CVY_EV_MSG:
		if (e->msg.type == CVY_MSG_RELAY || e->msg.type == CVY_MSG_RELAYED)
			cvy_relay_msg(g, &e->msg);
		else if (e->msg.type == CVY_MSG_ACKED)
			cvy_learn_msg(g, &e->msg);
		else if (e->msg.type == CVY_MSG_BYE)
			cvy_link_event(g, e);
		break;
	case CVY_EV_LINK_UP:
	case CVY_EV_LINK_DOWN:
		cvy_link_event(g, e);
		break;
	case CVY_EV_SUSPECT:
		cvy_change_suspect(g, e->rank, e->inc, e->source, e->text);
		break;
	case CVY_EV_LATE:
		cvy_ask_late(g, e);
		break;
	case CVY_EV_FROZEN:
	case CVY_EV_FROZE_NOT:
		cvy_change_frozen(g, e);
		break;
	case CVY_EV_FENCED:
	case CVY_EV_REPAIRED:
	case CVY_EV_ADMITTED:
		cvy_learn_event(g, e);
		break;
	case CVY_EV_WANT_CHANGE:
		cvy_change_want(g, e->text ? e->text : "engine");
		break;
	case CVY_EV_LOOKED:
		cvy_taken_looked(g, e);
		break;
	case CVY_EV_API:
		cvy_ask_api(g, e);
		break;
	default:
		break;
	}
}

static void advance(struct cvy_group_state *g)
{
	int before, rounds = 0;

	do {
		before = g->out->count;
		g->timer = CVY_NEVER;
		if (g->ended || !g->started)
			return;
		cvy_call_timers(g);
		cvy_link_advance(g);
		cvy_store_advance(g);
		cvy_join_advance(g);
		if (!g->ended)
			cvy_change_advance(g);
		if (!g->ended)
			cvy_learn_advance(g);
		if (!g->ended)
			cvy_ask_advance(g);
	} while (g->out->count != before && ++rounds < ROUNDS_MAX);
	if (rounds == ROUNDS_MAX)
		cvy_group_wake(g, g->now + CVY_MS);
}

void cvy_group_step(struct cvy_group_state *g, const struct cvy_event *event, uint64_t now_ns, struct cvy_actions *out)
{
	g->out = out;
	if (now_ns > g->now)
		g->now = now_ns;
	if (!g->ended) {
		note(g, event);
		advance(g);
	} else if (event->kind == CVY_EV_API) {
		cvy_ask_api(g, event);
	}
	if (g->ended)
		g->timer = CVY_NEVER;
	g->out = NULL;
}

uint64_t cvy_group_timer(const struct cvy_group_state *g)
{
	return g->timer;
}

int cvy_group_phase(const struct cvy_group_state *g)
{
	return g->phase;
}

const struct cvy_view *cvy_group_view(const struct cvy_group_state *g)
{
	return g->view;
}

int cvy_group_active(const struct cvy_group_state *g)
{
	return g->phase == CVY_PHASE_RUN;
}

int cvy_group_rank(const struct cvy_group_state *g)
{
	return g->rank;
}

uint64_t cvy_group_inc(const struct cvy_group_state *g)
{
	return g->inc;
}

const char *cvy_group_gid(const struct cvy_group_state *g)
{
	return g->gid;
}

void cvy_group_identity(const struct cvy_group_state *g, struct cvy_identity *id)
{
	*id = (struct cvy_identity){ .rank = g->rank, .max_ranks = g->max_ranks, .inc = g->inc, .nonce = g->args.nonce };
	memcpy(id->secret, g->secret, sizeof(id->secret));
	cvy_text_set(id->gid, sizeof(id->gid), g->gid);
}

int cvy_group_retiring(const struct cvy_group_state *g)
{
	return g->retire_marked && !g->ended && !g->leaving && g->phase == CVY_PHASE_RUN;
}
