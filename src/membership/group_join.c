/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a process becomes a member: it registers, connects and says ready. Founders are members when the first view is
 * active. Joiners have joined when they are connected to all members, which admit them at an ADMIT.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SAY_HELD_MS 2000
#define SAY_MISSING_MS 10000

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
		cvy_group_enter(g, CVY_PHASE_FENCED);
		cvy_ask_end(g, err, why);
	} else {
		g->joined = 1;
	}
}

/* Adds the incarnation to those that this process gave up: it has them of one group, and another may have begun. */
static void give_up(struct cvy_group_state *g)
{
	size_t gid = strlen(g->gid), n = strncmp(g->given_up, g->gid, gid) ? 0 : strlen(g->given_up);
	const size_t room = sizeof(g->given_up) - n;

	if (n && (size_t)snprintf(g->given_up + n, room, ",%d:%" PRIu64, g->rank, g->inc) >= room)
		g->given_up[n] = 0; /* a number that is cut is another process */
	else if (!n)
		snprintf(g->given_up, sizeof(g->given_up), "%s,%d:%" PRIu64, g->gid, g->rank, g->inc);
}

/* Registers again: the store forgot or replaced the group before a view listed this process. Nothing was promised. */
void cvy_join_anew(struct cvy_group_state *g)
{
	if (g->inc) /* a view of which it hears later may list it */
		give_up(g);
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
	memset(&g->taken, 0, sizeof(g->taken));
	g->join_err = COVEY_ERR_STORE;
	cvy_text_set(g->join_why, sizeof(g->join_why),
		     "the store lost this process, or gave its rank to another one, while it joined");
	for (int s = 0; s < CALLS; s++)
		cvy_call_reset(g, s);
	/* Two processes that want one rank take it from each other: longer waits let one of them get in. */
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

void cvy_join_refused(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *why = cvy_reply_get(e->argc, e->argv, "why"), *err = cvy_reply_get(e->argc, e->argv, "err");
	const char *status = e->argv[0];
	struct call *c = &g->call[CALL_REGISTER];

	if (strcmp(status, "TAKEN") == 0) {
		cvy_taken_told(g, e);
		return;
	}
	if (strcmp(status, "BUSY") == 0) { /* the holder may be dead and about to be removed */
		g->join_err = COVEY_ERR_BUSY;
		cvy_text_set(g->join_why, sizeof(g->join_why), why);
		c->due_ns = g->now + CVY_CALL_RETRY_MS * CVY_MS;
		return;
	}
	/* A joiner that lost its place before a view listed it ends here, too. */
	cvy_group_stop(g,
		       strcmp(status, "FULL") == 0	  ? COVEY_ERR_FULL
		       : strcmp(status, "CLOSED") == 0	  ? COVEY_ERR_CLOSED
		       : err && strcmp(err, "INVAL") == 0 ? COVEY_ERR_INVAL
		       : err && strcmp(err, "BUSY") == 0  ? COVEY_ERR_BUSY
							  : COVEY_ERR_REFUSED,
		       why ? why : status);
}

/* By the gids the store distinguishes a group that lost this process from one that never knew it. */
static void remember_gid(struct cvy_group_state *g)
{
	size_t n = strlen(g->gids);
	char *comma;

	if (strstr(g->gids, g->gid))
		return;
	while (n + strlen(g->gid) + 2 > sizeof(g->gids) && (comma = strchr(g->gids, ','))) {
		memmove(g->gids, comma + 1, strlen(comma));
		n = strlen(g->gids);
	}
	if (n + strlen(g->gid) + 2 <= sizeof(g->gids))
		snprintf(g->gids + n, sizeof(g->gids) - n, "%s%s", n ? "," : "", g->gid);
}

void cvy_join_registered(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *rank = cvy_reply_get(e->argc, e->argv, "rank"), *inc = cvy_reply_get(e->argc, e->argv, "inc");
	const char *gid = cvy_reply_get(e->argc, e->argv, "gid"), *secret = cvy_reply_get(e->argc, e->argv, "secret");
	uint64_t max = cvy_record_number(&g->heard, "max"), number = inc ? strtoull(inc, NULL, 10) : 0;
	int r;

	if (strcmp(e->argv[0], "OK") != 0) {
		cvy_join_refused(g, e);
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
	cvy_text_set(g->gid, sizeof(g->gid), gid);
	if (!g->have_secret && secret && strlen(secret) == 64)
		hex(g->secret, secret);
	remember_gid(g);
	memset(&g->taken, 0, sizeof(g->taken));
	g->join_err = 0;
	g->peek_due = g->now;
	g->links_dirty = 1;
	cvy_do(g, CVY_DO_IDENTITY, g->rank)->inc = g->inc;
}

#define REGISTER_FIXED 14
#define REGISTER_MAX (REGISTER_FIXED + 16) /* with the settings that must be the same */

/* Splits @text in place into its words. */
static int split(char *text, const char **to, int max)
{
	char *rest = NULL;
	int n = 0;

	for (char *w = strtok_r(text, " ", &rest); w && n < max; w = strtok_r(NULL, " ", &rest))
		to[n++] = w;
	return n;
}

static void do_register(struct cvy_group_state *g)
{
	char rank[16], world[16], max[16], age[24], lapse[16], secret[65] = "-", *alike = strdup(g->alike);
	const char *argv[REGISTER_MAX] = { rank,
					   g->place ? g->place : g->addr,
					   g->host,
					   g->args.create == COVEY_CREATE_FIRST ? "1" : "0",
					   world,
					   max,
					   g->args.admission == COVEY_ADMISSION_MANUAL ? "manual" : "auto",
					   secret,
					   g->job,
					   age,
					   lapse,
					   g->taken.gone[0] ? g->taken.gone
					   : g->given_up[0] ? g->given_up
							    : "-",
					   g->gids[0] ? g->gids : "-",
					   g->taken.tell ? "1" : "0" };
	int n = REGISTER_FIXED;

	snprintf(rank, sizeof(rank), "%d", g->args.rank);
	snprintf(world, sizeof(world), "%d", g->args.world);
	snprintf(max, sizeof(max), "%d", g->args.max_ranks);
	snprintf(age, sizeof(age), "%" PRIu64, (uint64_t)((g->now - g->born_ns) / CVY_MS));
	snprintf(lapse, sizeof(lapse), "%d", cvy_taken_lapse(g));
	if (g->args.rank < 0)
		snprintf(rank, sizeof(rank), "any");
	if (!g->have_secret) /* the creator makes it up; the store gives it to the others */
		for (int i = 0; i < 4; i++)
			snprintf(secret + 16 * i, sizeof(secret) - 16 * (size_t)i, "%016" PRIx64, cvy_group_random(g));
	if (alike)
		n += split(alike, argv + n, REGISTER_MAX - n);
	cvy_call(g, CALL_REGISTER, 0, n, argv);
	g->taken.gone[0] = '\0'; /* processes still in the way are looked up again */
	free(alike);
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

/* Ranks that nobody has registered, and ranks that have no link. */
static void missing(struct cvy_group_state *g, char *text, size_t bytes)
{
	const struct cvy_view *v = g->heard_view;
	struct covey_mask absent, apart;
	char list[100];
	int n;

	memset(&absent, 0, sizeof(absent));
	memset(&apart, 0, sizeof(apart));
	for (int r = 0; r < g->max_ranks; r++) {
		int formed = v && v->epoch;
		int wanted = formed ? r < v->max_ranks && covey_mask_has(&v->members, r) : r < g->world;

		if (!wanted || r == g->rank || g->peer[r].up)
			continue;
		cvy_mask_add(formed || cvy_record_at(&g->news, 'j', (uint64_t)r) ? &apart : &absent, r);
	}
	n = snprintf(text, bytes, "%s", "");
	if (!cvy_mask_empty(&absent))
		n = snprintf(text, bytes, "rank %s has not come, world is %d%s",
			     cvy_mask_text(&absent, list, sizeof(list)), g->world, cvy_mask_empty(&apart) ? "" : "; ");
	if (!cvy_mask_empty(&apart) && (size_t)n < bytes)
		snprintf(text + n, bytes - (size_t)n, "no connection to rank %s%s",
			 cvy_mask_text(&apart, list, sizeof(list)), g->link_why);
	if (!text[0])
		snprintf(text, bytes, "all are here, but the store has not begun the view");
}

/* What the join waits for, into @text; returns the error if it ends there. */
static int waits_for(struct cvy_group_state *g, char *text, size_t bytes)
{
	if (g->rank >= 0) {
		missing(g, text, bytes);
		return COVEY_ERR_TIMEOUT;
	}
	snprintf(text, bytes, "%s",
		 g->join_err	   ? g->join_why
		 : g->store_why[0] ? g->store_why
				   : "the store did not answer");
	return g->join_err ? g->join_err : COVEY_ERR_STORE;
}

/*
 * Once, so that nobody has to wait for the deadline to learn it: of a name or a rank that is held soon, and later of
 * ranks that may still be starting.
 */
static void say_waiting(struct cvy_group_state *g)
{
	uint64_t begun = g->join_deadline - (uint64_t)g->args.join_ms * CVY_MS;
	char text[2 * CVY_CAUSE];
	struct cvy_action *a;

	if (g->join_said || g->now < begun + (g->rank < 0 ? SAY_HELD_MS : SAY_MISSING_MS) * CVY_MS)
		return;
	g->join_said = 1;
	waits_for(g, text, sizeof(text));
	a = cvy_do(g, CVY_DO_SAY, g->rank);
	a->number = (g->join_deadline - g->now) / CVY_MS;
	a->text = strdup(text);
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

void cvy_join_begin(struct cvy_group_state *g, const struct cvy_event *e)
{
	size_t bytes = strlen(g->addr) + (e->text ? strlen(e->text) : 0) + 2;

	if (!g->started)
		g->join_deadline = g->now + (uint64_t)g->args.join_ms * CVY_MS;
	g->started = 1;
	if (!e->text || g->place)
		return;
	g->place = malloc(bytes); /* without it others cannot look up this process; that costs only time */
	if (g->place)
		snprintf(g->place, bytes, "%s,%s", e->text, g->addr);
}

void cvy_join_advance(struct cvy_group_state *g)
{
	if (!g->joined) {
		if (g->now >= g->join_deadline) {
			char text[2 * CVY_CAUSE];
			int err = waits_for(g, text, sizeof(text));

			cvy_join_done(g, err, text);
			return;
		}
		say_waiting(g);
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
