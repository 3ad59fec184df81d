/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies of the store. A member obeys one life at a time; it drops replies of another one unless they ask for hello.
 * It takes epoch and phase from every reply of its life, and keeps a newer record as `heard`.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t life_number(const char *life)
{
	return strtoull(life, NULL, 10);
}

int cvy_store_ph(const char *text)
{
	static const char *const names[] = { "-", "form", "run", "open", "inst", "closed" };

	for (int i = PH_FORM; i <= PH_CLOSED; i++)
		if (text && strcmp(text, names[i]) == 0)
			return i;
	return PH_NONE;
}

/* A reply with changes fits only on the view before. If `heard` is another, the next peek asks for the whole record. */
static int step_record(struct cvy_group_state *g, struct cvy_record *record, const char *on, int argc,
		       const char *const *argv)
{
	unsigned epoch;
	char vid[32];

	if (g->heard_view && sscanf(on, "%u %31s", &epoch, vid) == 2 && g->heard_view->epoch == epoch &&
	    g->heard_view->vid == cvy_vid(vid))
		return cvy_record_step(record, &g->heard, argc, argv, &g->news);
	return COVEY_ERR_INVAL;
}

static void take_record(struct cvy_group_state *g, int argc, const char *const *argv)
{
	struct cvy_record record = { 0 };
	struct cvy_view *view = NULL;
	const char *secret = cvy_record_get(&g->heard, "secret"), *on = cvy_reply_get(argc, argv, "on");

	if ((on ? step_record(g, &record, on, argc, argv) : cvy_record_take(&record, argc, argv)) ||
	    (secret && !cvy_record_get(&record, "secret") && cvy_record_set(&record, "secret", secret)) ||
	    cvy_record_view(&record, &view) || cvy_group_grow(g, view->max_ranks)) {
		cvy_record_clear(&record);
		cvy_view_free(view);
		if (on) {
			g->whole_wanted = 1;
			g->peek_due = g->now;
		}
		return; /* the next peek asks again, since the known epoch has not moved */
	}
	g->whole_wanted = 0;
	cvy_record_clear(&g->heard);
	cvy_view_free(g->heard_view);
	g->heard = record;
	g->heard_view = view;
	g->links_dirty = 1;
}

static void take_news(struct cvy_group_state *g, int argc, const char *const *argv)
{
	const char *gone = cvy_reply_get(argc, argv, "gone"), *mark;
	unsigned long long inc;
	char what[16];

	cvy_record_news(&g->news, argc, argv);
	mark = cvy_record_at(&g->news, 'e', (uint64_t)g->rank);
	/* From here on the engine enters nothing, even if the store forgets the mark. */
	if (mark && sscanf(mark, "%llu %15s", &inc, what) == 2 && inc == g->inc && strcmp(what, "retire") == 0)
		g->retire_marked = 1;
	if (!gone || strcmp(gone, "-") != 0)
		g->links_dirty = 1;
	for (int i = 1; i + 1 < argc && !g->links_dirty; i += 2)
		cvy_link_joiner(g, argv[i], argv[i + 1]);
}

/* A new life forgot reports, acknowledgements, complaints and hellos. */
static void adopt_life(struct cvy_group_state *g, const char *life)
{
	cvy_text_set(g->life, sizeof(g->life), life);
	g->seen_epoch = 0;
	g->seen_id = 0;
	g->seen_ph = PH_NONE;
	g->have_rev = 0;
	g->ready_mark = 0;
	g->acked = 0;
	g->ack_due = 0;
	cvy_change_clear(g, 1);
}

static void note_state(struct cvy_group_state *g, uint64_t id, int argc, const char *const *argv)
{
	const char *epoch = cvy_reply_get(argc, argv, "epoch"), *vid = cvy_reply_get(argc, argv, "vid");
	uint64_t e = epoch ? strtoull(epoch, NULL, 10) : 0;
	int ph = cvy_store_ph(cvy_reply_get(argc, argv, "ph"));

	if (!epoch || !ph || e < g->seen_epoch || (e == g->seen_epoch && id < g->seen_id))
		return;
	/* A late reply: a notice has said that the view is active, so it does not wait for acknowledgements again. */
	if (e == g->seen_epoch && cvy_vid(vid) == g->seen_vid && ph == PH_INST && g->seen_ph == PH_RUN)
		return;
	if (e > g->seen_epoch && (!g->heard_view || g->heard_view->epoch < e) && !cvy_reply_get(argc, argv, "size"))
		g->peek_due = g->now; /* for the record, which this reply does not carry */
	g->seen_epoch = e;
	g->seen_id = id;
	g->seen_ph = ph;
	g->seen_vid = cvy_vid(vid);
}

static void note_news(struct cvy_group_state *g, int script, uint64_t mark, int argc, const char *const *argv)
{
	const char *rev = cvy_reply_get(argc, argv, "rev"), *epoch = cvy_reply_get(argc, argv, "epoch");
	int record = cvy_reply_get(argc, argv, "size") != NULL;
	uint64_t r = rev ? strtoull(rev, NULL, 10) : 0, e = epoch ? strtoull(epoch, NULL, 10) : 0;

	if (script == CALL_HELLO || script == CALL_REGISTER || script == CALL_PEEK || script == CALL_BEAT) {
		int all = record && !cvy_reply_get(argc, argv, "on");

		if (all || !rev || r != mark)
			take_news(g, argc, argv);
		g->seen_rev = r;
		g->have_rev = rev != NULL;
	}
	if (record && (!g->heard_view || e > g->heard_view->epoch || script == CALL_HELLO || script == CALL_REGISTER))
		take_record(g, argc, argv);
}

/* The contents of a notice. It has no place in the order of calls: of one view only a later phase is believed. */
void cvy_store_told(struct cvy_group_state *g, int argc, const char *const *argv)
{
	const char *epoch = cvy_reply_get(argc, argv, "epoch"), *ph = cvy_reply_get(argc, argv, "ph");
	uint64_t e = epoch ? strtoull(epoch, NULL, 10) : 0;
	int activated = e == g->seen_epoch && g->seen_ph == PH_INST && cvy_store_ph(ph) == PH_RUN &&
			cvy_vid(cvy_reply_get(argc, argv, "vid")) == g->seen_vid;

	if (e <= g->seen_epoch && !activated)
		return;
	note_state(g, activated ? g->seen_id : 0, argc, argv);
	if (cvy_reply_get(argc, argv, "size") && (!g->heard_view || e > g->heard_view->epoch))
		take_record(g, argc, argv);
}

/* 1: the changes that a notice carries follow on those that this member knows, and no reply with others is under way. */
int cvy_store_told_news(struct cvy_group_state *g, int argc, const char *const *argv)
{
	const char *since = cvy_reply_get(argc, argv, "since"), *rev = cvy_reply_get(argc, argv, "rev");

	if (!since || !rev || !g->have_rev || g->call[CALL_PEEK].id || g->call[CALL_BEAT].id ||
	    strtoull(since, NULL, 10) != g->seen_rev)
		return 0;
	take_news(g, argc, argv);
	g->seen_rev = strtoull(rev, NULL, 10);
	return 1;
}

/*
 * The beats of others wait in the store's queue as long as this one did: a store that is seconds behind, as while
 * hundreds of ranks join at once, makes nobody silent.
 */
static void leases(struct cvy_group_state *g, int argc, const char *const *argv)
{
	const char *now = cvy_reply_get(argc, argv, "now");
	uint64_t server = now ? strtoull(now, NULL, 10) : 0, queued_ms = (g->now - g->beat_ns) / CVY_MS;

	for (int i = 1; now && g->view && g->args.lease_ms > 0 && i + 1 < argc; i += 2) {
		uint64_t rank, ms;

		if (sscanf(argv[i], "t:%" SCNu64, &rank) != 1 || sscanf(argv[i + 1], "%" SCNu64, &ms) != 1)
			continue;
		if (rank < (uint64_t)g->view->max_ranks && (int)rank != g->rank && g->view->member[rank].inc &&
		    server > ms + (uint64_t)g->args.lease_ms + queued_ms)
			cvy_change_suspect(g, (int)rank, g->view->member[rank].inc, CVY_SOURCE_LEASE, NULL);
	}
}

static void failed(struct cvy_group_state *g, struct call *c)
{
	int shift = c->tries < 6 ? c->tries : 6, ms = CVY_CALL_RETRY_MS << shift;

	if (ms > CVY_CALL_RETRY_MAX_MS)
		ms = CVY_CALL_RETRY_MAX_MS;
	c->tries++;
	c->due_ns = g->now + (uint64_t)ms * CVY_MS;
}

/* The store does not know this group. */
static void gone(struct cvy_group_state *g, int script)
{
	if (g->view) {
		g->need_hello = 1; /* it brings our record back */
	} else if (script == CALL_REGISTER) {
		failed(g, &g->call[CALL_REGISTER]);
		g->join_err = COVEY_ERR_TIMEOUT;
		cvy_text_set(g->join_why, sizeof(g->join_why),
			     "there is no group of this name, and create = never forms none");
	} else {
		cvy_join_anew(g);
	}
}

static void fenced(struct cvy_group_state *g, int script, int argc, const char *const *argv)
{
	const char *gid = cvy_reply_get(argc, argv, "gid"), *life = cvy_reply_get(argc, argv, "life");
	const char *why = cvy_reply_get(argc, argv, "why");

	if (!g->view) {
		cvy_join_anew(g);
	} else if (script == CALL_HELLO || (gid && strcmp(gid, g->gid) == 0 && life && strcmp(life, g->life) == 0)) {
		if (g->leaving)
			cvy_group_stop(g, COVEY_ERR_CLOSED, "left the group");
		else
			cvy_group_stop(g, COVEY_ERR_FENCED, why ? why : "the store says so");
	} else {
		g->need_hello = 1; /* only a server that knows us may say this */
	}
}

/* A server that holds an older group of the name must get hello again, later. */
static void say_hello(struct cvy_group_state *g, int script)
{
	g->need_hello = 1;
	if (script == CALL_HELLO)
		g->call[CALL_HELLO].due_ns = g->now + CVY_HELLO_AGAIN_MS * CVY_MS;
}

static void hello_said(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *life = cvy_reply_get(e->argc, e->argv, "life");

	if (!life)
		return;
	if (strcmp(life, g->life) != 0) {
		if (life_number(life) <= life_number(g->life)) {
			if (!g->view) /* nothing was promised, and a joiner's hello begins no life: register */
				cvy_join_anew(g);
			return; /* a rival of the promised view: the next hello begins a new life */
		}
		adopt_life(g, life);
	}
	g->need_hello = 0;
	g->seen_epoch = 0; /* its record may be older than one that was heard */
	note_state(g, e->id, e->argc, e->argv);
	note_news(g, CALL_HELLO, 0, e->argc, e->argv);
	g->peek_due = g->now;
}

static void dispatch(struct cvy_group_state *g, int script, uint64_t mark, const struct cvy_event *e)
{
	switch (script) {
	case CALL_READY:
		g->ready_mark = mark;
		break;
	case CALL_OPEN:
	case CALL_REPORT:
	case CALL_DECIDE:
		cvy_change_decided(g, script, mark, e);
		break;
	case CALL_ACK:
		cvy_learn_acked(g, mark, e);
		break;
	case CALL_BEAT:
		leases(g, e->argc, e->argv);
		break;
	case CALL_ASK:
		cvy_ask_replied(g, mark, e);
		break;
	default:
		break;
	}
}

void cvy_store_reply(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *status, *life;
	struct call *c = NULL;
	uint64_t mark;
	int script;

	if (cvy_relay_reply(g, e))
		return;
	for (script = 0; script < CALLS && !c; script++)
		if (e->id && g->call[script].id == e->id)
			c = &g->call[script];
	script--;
	if (!c)
		return;
	c->id = 0;
	mark = c->mark;
	if (e->err || e->argc < 1) {
		g->failures++;
		failed(g, c);
		return;
	}
	if (c->until_ns == CVY_NEVER) /* a helper's reply shows nothing about our own way to the store */
		g->failures = 0;
	status = e->argv[0];
	life = cvy_reply_get(e->argc, e->argv, "life");
	if (strcmp(status, "ERROR") == 0) {
		failed(g, c);
		cvy_text_set(g->join_why, sizeof(g->join_why), cvy_reply_get(e->argc, e->argv, "why"));
		g->join_err = COVEY_ERR_STORE;
		return;
	}
	c->tries = 0;
	c->due_ns = 0;
	if (strcmp(status, "GONE") == 0)
		gone(g, script);
	else if (strcmp(status, "FENCED") == 0)
		fenced(g, script, e->argc, e->argv);
	else if (strcmp(status, "LIFE") == 0)
		say_hello(g, script);
	else if (strcmp(status, "VERSION") == 0)
		cvy_group_stop(g, COVEY_ERR_VERSION, cvy_reply_get(e->argc, e->argv, "why"));
	else if (strcmp(status, "REFUSED") == 0 && !g->view && script != CALL_ASK && script != CALL_REGISTER)
		cvy_join_refused(g, e);
	else if (script == CALL_REGISTER) {
		const char *inc = cvy_reply_get(e->argc, e->argv, "inc");

		if (strcmp(status, "OK") == 0 && inc && life) {
			adopt_life(g, life);
			note_state(g, e->id, e->argc, e->argv);
			note_news(g, script, 0, e->argc, e->argv);
		}
		cvy_join_registered(g, e);
	} else if (script == CALL_HELLO) {
		hello_said(g, e);
	} else if (life && strcmp(life, g->life) == 0) {
		note_state(g, e->id, e->argc, e->argv);
		note_news(g, script, mark, e->argc, e->argv);
		dispatch(g, script, mark, e);
	}
}

void cvy_store_state(struct cvy_group_state *g, const struct cvy_event *e)
{
	if (e->kind == CVY_EV_STORE_UP) {
		g->store_up = 1;
		g->failures = 0;
		for (int s = 0; s < CALLS; s++) {
			if (g->call[s].until_ns != CVY_NEVER) /* relayed: it is made again, directly */
				g->call[s].id = 0;
			g->call[s].due_ns = 0;
		}
		g->peek_due = g->now;
		if (g->lost)
			cvy_group_event(g, COVEY_EVENT_STORE_BACK, -1, "the store answers again");
		g->lost = 0;
		return;
	}
	g->store_up = 0;
	if (e->text)
		snprintf(g->store_why, sizeof(g->store_why), "%s", e->text);
	if (g->view && !g->lost)
		cvy_group_event(g, COVEY_EVENT_STORE_LOST, -1, e->text ? e->text : "no connection");
	g->lost = g->view != NULL;
	if (!g->view && (e->err == COVEY_ERR_AUTH || e->err == COVEY_ERR_VERSION || e->err == COVEY_ERR_INVAL))
		cvy_join_done(g, e->err, e->text ? e->text : "the store refuses us");
}

static void hello(struct cvy_group_state *g)
{
	const struct cvy_record *r = &g->learned;
	int pairs = g->view ? r->count + 1 : 0, n = 0;
	const char **argv = calloc((size_t)(2 * pairs + 1), sizeof(*argv));
	char count[16];

	if (!argv)
		return;
	snprintf(count, sizeof(count), "%d", pairs);
	argv[n++] = count;
	if (pairs) {
		argv[n++] = "ph";
		argv[n++] = g->was && g->was->epoch == g->view->epoch ? "run" : "inst";
	}
	for (int i = 0; pairs && i < r->count; i++) {
		argv[n++] = r->pair[i].field;
		argv[n++] = r->pair[i].value;
	}
	cvy_call(g, CALL_HELLO, 0, n, argv);
	free(argv);
}

static void peek(struct cvy_group_state *g, int script)
{
	static const char *const phases[] = { "joining", "run", "freezing", "frozen", "learned", "acked", "fenced" };
	char epoch[16], rev[24], stat[CVY_STAT_TEXT + 16];
	const char *argv[] = { epoch, rev, stat };

	snprintf(epoch, sizeof(epoch), "%u", g->heard_view && !g->whole_wanted ? g->heard_view->epoch : 0);
	if (g->have_rev)
		snprintf(rev, sizeof(rev), "%" PRIu64, g->seen_rev);
	else
		snprintf(rev, sizeof(rev), "-1");
	snprintf(stat, sizeof(stat), "%s%s%s", phases[g->phase], g->stat[0] ? ";" : "", g->stat);
	cvy_call(g, script, g->have_rev ? g->seen_rev : UINT64_MAX, script == CALL_BEAT ? 3 : 2, argv);
}

/* While a large group changes, the beats of all would keep the store from the change: they may be one beat late. */
static uint64_t beat_due(const struct cvy_group_state *g, int quiet)
{
	const int spare = g->args.lease_ms < 0 || g->args.lease_ms >= 4 * CVY_BEAT_MS;

	if (quiet || !spare || cvy_group_pace_ms(g) <= (uint64_t)g->args.peek_ms)
		return g->beat_due;
	return g->beat_due + CVY_BEAT_MS * CVY_MS;
}

void cvy_store_advance(struct cvy_group_state *g)
{
	int quiet = g->phase == CVY_PHASE_RUN && g->seen_ph == PH_RUN && g->seen_epoch == g->view->epoch;
	struct call *c = &g->call[CALL_PEEK];

	if (g->need_hello && g->rank >= 0) {
		if (cvy_call_free(g, CALL_HELLO))
			hello(g);
		return;
	}
	if (g->rank < 0)
		return;
	if (quiet && !g->quiet && g->now >= g->beat_due && g->now < beat_due(g, 0))
		g->beat_due += CVY_BEAT_MS * CVY_MS; /* all at once, at the end of a change, they would stay together */
	if (g->now >= beat_due(g, quiet)) {
		if (cvy_call_free(g, CALL_BEAT)) {
			peek(g, CALL_BEAT);
			g->beat_ns = g->now;
			g->beat_due = g->now + CVY_BEAT_MS * CVY_MS;
			if (quiet) /* a beat brings what a peek would */
				g->peek_due = g->beat_due + CVY_BEAT_MS * CVY_MS / 2;
		}
	} else {
		cvy_group_wake(g, beat_due(g, quiet));
	}
	/* In a large group all would peek once more for a change that has ended. */
	if (quiet && !g->quiet && g->now < g->peek_due && cvy_group_pace_ms(g) > (uint64_t)g->args.peek_ms)
		g->peek_due = g->beat_due + CVY_BEAT_MS * CVY_MS / 2;
	g->quiet = quiet;
	if (g->now >= g->peek_due || (c->again && !c->id)) {
		if (cvy_call_free(g, CALL_PEEK)) {
			c->again = 0;
			peek(g, CALL_PEEK);
			g->peek_due = g->now + (quiet ? CVY_BEAT_MS : cvy_group_pace_ms(g)) * CVY_MS;
		}
	} else {
		uint64_t soon = g->now + cvy_group_pace_ms(g) * CVY_MS;

		if (!quiet && g->peek_due > soon)
			g->peek_due = soon;
		cvy_group_wake(g, g->peek_due);
	}
}
