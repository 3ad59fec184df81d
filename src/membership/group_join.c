/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Becoming a member: register, connect, say ready. Founders are members when the first view is active,
 * joiners have joined when they are connected to all members; these take them in at an ADMIT.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void cvy_join_done(struct cvy_group_state *g, int err, const char *why)
{
	struct cvy_action *a;

	if (g->joined || g->ended)
		return;
	a = cvy_do(g, CVY_DO_JOINED, g->rank);
	a->err = err;
	a->text = strdup(why ? why : "");
	if (err) {
		g->ended = err;
		g->phase = CVY_PHASE_FENCED;
		cvy_ask_end(g, err, why);
	} else {
		g->joined = 1;
	}
}

/* The store forgot or replaced the group before we were in a view of it: nothing was promised. */
void cvy_join_anew(struct cvy_group_state *g)
{
	cvy_record_clear(&g->heard);
	cvy_record_clear(&g->news);
	cvy_view_free(g->heard_view);
	g->heard_view = NULL;
	g->rank = -1;
	g->inc = 0;
	g->life[0] = 0;
	g->gid[0] = 0;
	g->need_hello = 0;
	g->seen_epoch = 0;
	g->seen_ph = PH_NONE;
	g->have_rev = 0;
	g->ready_mark = 0;
	g->retire_marked = 0;
	g->links_dirty = 1;
	for (int s = 0; s < CALLS; s++)
		cvy_call_reset(g, s);
	/* Two processes that want one rank take it from each other: the longer either waits, the surer the other gets in. */
	g->call[CALL_REGISTER].due_ns = g->now + (CVY_CALL_RETRY_MS << g->displaced) * CVY_MS;
	if (CVY_CALL_RETRY_MS << g->displaced < CVY_CALL_RETRY_MAX_MS)
		g->displaced++;
}

static void hex(uint8_t *to, const char *from)
{
	for (int i = 0; i < 32; i++) {
		char two[3] = { from[2 * i], from[2 * i + 1], 0 };

		to[i] = (uint8_t)strtoul(two, NULL, 16);
	}
}

static void refused(struct cvy_group_state *g, const char *status, const char *why)
{
	struct call *c = &g->call[CALL_REGISTER];

	if (strcmp(status, "BUSY") == 0) { /* the one before us may be dead and about to be left out */
		g->join_err = COVEY_ERR_BUSY;
		cvy_text_set(g->join_why, sizeof(g->join_why), why);
		c->due_ns = g->now + CVY_CALL_RETRY_MS * CVY_MS;
		return;
	}
	/* One that had joined and lost its place before a view listed it ends here too. */
	cvy_group_stop(g,
		       strcmp(status, "FULL") == 0     ? COVEY_ERR_FULL
		       : strcmp(status, "CLOSED") == 0 ? COVEY_ERR_CLOSED
						       : COVEY_ERR_REFUSED,
		       why);
}

void cvy_join_registered(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *rank = cvy_reply_get(e->argc, e->argv, "rank"), *inc = cvy_reply_get(e->argc, e->argv, "inc");
	const char *gid = cvy_reply_get(e->argc, e->argv, "gid"), *secret = cvy_reply_get(e->argc, e->argv, "secret");
	const char *policy = cvy_reply_get(e->argc, e->argv, "policy");
	uint64_t max = cvy_record_number(&g->heard, "max"), number = inc ? strtoull(inc, NULL, 10) : 0;
	int r;

	if (strcmp(e->argv[0], "OK") != 0) {
		refused(g, e->argv[0], cvy_reply_get(e->argc, e->argv, "why"));
		return;
	}
	r = rank ? atoi(rank) : -1;
	if (r < 0 || !number || !gid || !max || (uint64_t)r >= max) {
		cvy_join_done(g, COVEY_ERR_STORE, "the store answered registration with nonsense");
		return;
	}
	g->rank = r;
	g->inc = number;
	g->world = (int)cvy_record_number(&g->heard, "world");
	g->manual = policy && strcmp(policy, "manual") == 0;
	cvy_text_set(g->gid, sizeof(g->gid), gid);
	if (!g->have_secret && secret && strlen(secret) == 64)
		hex(g->secret, secret);
	g->join_err = 0;
	g->peek_due = g->now;
	g->links_dirty = 1;
	cvy_do(g, CVY_DO_IDENTITY, g->rank)->inc = g->inc;
}

static void do_register(struct cvy_group_state *g)
{
	char rank[16], world[16], max[16], secret[65] = "-";
	const char *argv[] = { rank,
			       g->addr,
			       g->host,
			       g->args.create == COVEY_CREATE_FIRST ? "1" : "0",
			       world,
			       max,
			       g->args.admission == COVEY_ADMISSION_MANUAL ? "manual" : "auto",
			       secret };

	snprintf(rank, sizeof(rank), "%d", g->args.rank);
	snprintf(world, sizeof(world), "%d", g->args.world);
	snprintf(max, sizeof(max), "%d", g->args.max_ranks);
	if (g->args.rank < 0)
		snprintf(rank, sizeof(rank), "any");
	if (!g->have_secret) /* made up by the creator; the store hands it to the others */
		for (int i = 0; i < 4; i++)
			snprintf(secret + 16 * i, sizeof(secret) - 16 * (size_t)i, "%016" PRIx64, cvy_group_random(g));
	cvy_call(g, CALL_REGISTER, 0, 8, argv);
}

/* How many joiners of the store are linked (this one counts); *mark names them. */
static int formed(struct cvy_group_state *g, uint64_t *mark)
{
	int n = 0;

	*mark = 1;
	if (g->ups + 1 < g->world)
		return 0;
	if (g->have_rev && g->formed_rev == g->seen_rev && g->formed_links == g->link_changes && g->formed) {
		*mark = g->formed_mark;
		return g->formed;
	}
	for (int i = 0; i < g->news.count; i++) {
		int r = cvy_record_rank(&g->news, i, 'j', g->max_ranks);
		struct cvy_joiner j;

		if (r < 0 || r >= g->world || cvy_joiner_parse(g->news.pair[i].value, &j))
			continue;
		if (r != g->rank && !(g->peer[r].up && g->peer[r].inc == j.inc))
			continue;
		*mark += j.inc * (2 * (uint64_t)r + 3);
		n++;
	}
	g->formed = n;
	g->formed_mark = *mark;
	g->formed_rev = g->seen_rev;
	g->formed_links = g->link_changes;
	return n;
}

static void missing(struct cvy_group_state *g, char *text, size_t bytes)
{
	const struct cvy_view *v = g->heard_view;
	struct covey_mask mask;
	char list[100];

	memset(&mask, 0, sizeof(mask));
	for (int r = 0; r < g->max_ranks; r++) {
		int wanted = v && v->epoch ? r < v->max_ranks && covey_mask_has(&v->members, r) : r < g->world;

		if (wanted && r != g->rank && !g->peer[r].up)
			cvy_mask_add(&mask, r);
	}
	snprintf(text, bytes, "no connection to rank %s%s", cvy_mask_text(&mask, list, sizeof(list)), g->link_why);
	if (cvy_mask_empty(&mask))
		snprintf(text, bytes, "all are here, but the store has not begun the view");
}

static void expired(struct cvy_group_state *g)
{
	char text[160 + CVY_LINK_WHY];

	if (g->rank >= 0) {
		missing(g, text, sizeof(text));
		cvy_join_done(g, COVEY_ERR_TIMEOUT, text);
	} else if (g->join_err) {
		cvy_join_done(g, g->join_err, g->join_why);
	} else {
		cvy_join_done(g, COVEY_ERR_STORE, g->store_why[0] ? g->store_why : "the store did not answer");
	}
}

static void say_ready(struct cvy_group_state *g)
{
	const struct cvy_view *v = g->heard_view;
	uint64_t mark = 0;
	char epoch[16];
	const char *argv[] = { epoch };

	if (!v || !v->epoch) {
		if (g->seen_ph != PH_FORM || formed(g, &mark) < g->world)
			return;
	} else {
		mark = v->vid ^ v->epoch;
		if (g->joined && (!g->ready_wanted || mark == g->ready_mark))
			return;
		if (covey_mask_has(&v->members, g->rank) || !cvy_link_all(g, v))
			return;
		if (!g->joined)
			cvy_group_show_view(g);
		cvy_join_done(g, 0, NULL);
		if (!g->ready_wanted)
			return;
	}
	if (mark == g->ready_mark || !cvy_call_free(g, CALL_READY))
		return;
	snprintf(epoch, sizeof(epoch), "%u", v ? v->epoch : 0);
	cvy_call(g, CALL_READY, mark, 1, argv);
}

void cvy_join_advance(struct cvy_group_state *g)
{
	if (!g->joined) {
		if (g->now >= g->join_deadline) {
			expired(g);
			return;
		}
		cvy_group_wake(g, g->join_deadline);
	}
	if (g->phase != CVY_PHASE_JOINING)
		return;
	if (g->rank < 0) {
		if (cvy_call_free(g, CALL_REGISTER))
			do_register(g);
		return;
	}
	say_ready(g);
}
