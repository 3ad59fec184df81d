/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Others hold the name of the group, or the rank, that this process asks for. The store names them, this process finds
 * out whether they live, and asks again with its findings. It looks up processes of its own machine in /proc. For
 * others it watches the beats: a beat that moves proves life. Silence counts as death after lease_ms, if this process
 * has observed it, too. Nothing is taken from the living.
 */
#include "group_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "proc.h"

#define LOOK_MS 100    /* between two looks */
#define HELD_MS 300    /* a process alive for this long is not about to be reaped after a kill */
#define LISTEN_MS 2500 /* two beats and a half are missing */
#define FORGET_MS 5000 /* as in store/life.lua: younger beats are never overlooked */

/* Appends a sentence if all of it fits: a cut one misleads. */
static void add(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t bytes, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text + used, bytes - used, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= bytes - used)
		text[used] = '\0';
}

static int is(const struct cvy_group_state *g, const char *kind)
{
	return strcmp(g->taken.kind, kind) == 0;
}

/* Why the join ends: a holder is alive. */
static void say_in_use(const struct cvy_group_state *g, char *text, size_t bytes)
{
	const struct taken *t = &g->taken;
	char alive[64];

	text[0] = '\0';
	if (!is(g, "run") && !is(g, "job")) {
		add(text, bytes, "%s", t->why);
		return;
	}
	if (t->alive_ns && t->alive_pid)
		snprintf(alive, sizeof(alive), "rank %d (process %d) is alive", t->alive_rank, t->alive_pid);
	else
		snprintf(alive, sizeof(alive), "rank %d is alive, it has sent a beat", t->young_rank);
	add(text, bytes, "group \"%s\" is in use: %s; %s", g->name, alive, t->why);
	if (!text[0]) /* too long: without the name, which the reader knows */
		add(text, bytes, "the name of the group is in use: %s; %s", alive, t->why);
	add(text, bytes, ". A new job needs another name (COVEY_GROUP), a replacement create = never");
}

/* Why the join ends, or would at its deadline: it is unknown whether the holders live. */
static void say_unknown(const struct cvy_group_state *g, char *text, size_t bytes)
{
	const struct taken *t = &g->taken;

	snprintf(text, bytes,
		 "the name may be in use: the last beats of %d process%s are %" PRIu64 " to %" PRIu64
		 " ms old. If they are gone: ep-admin --group %s forget",
		 t->count, t->count == 1 ? "" : "es", t->young_age_ms, t->old_age_ms, g->name);
	if (is(g, "run"))
		add(text, bytes, " (%s)", t->why);
}

static int error_of(const struct cvy_group_state *g)
{
	return is(g, "value") ? COVEY_ERR_INVAL : COVEY_ERR_BUSY;
}

/* Decides from all findings. */
static void judge(struct cvy_group_state *g, int found_alive)
{
	struct taken *t = &g->taken;
	uint64_t heard = g->now - t->since_ns;
	int alive = t->moved || (found_alive && g->now - t->alive_ns >= HELD_MS * CVY_MS);

	say_unknown(g, g->join_why, sizeof(g->join_why));
	g->join_err = COVEY_ERR_BUSY;
	if (alive) {
		say_in_use(g, g->join_why, sizeof(g->join_why));
		g->join_err = error_of(g);
		/* The founders conflict: the store passes that on to all that wait. */
		if (!is(g, "run") && !is(g, "job") && !g->gids[0] && !t->tell) {
			t->tell = 1;
			g->call[CALL_REGISTER].due_ns = g->now;
			return;
		}
		cvy_group_stop(g, g->join_err, g->join_why);
	} else if (g->args.lease_ms < 0 && heard >= LISTEN_MS * CVY_MS && t->young_age_ms > FORGET_MS) {
		cvy_group_stop(g, g->join_err, g->join_why); /* without leases silence is never enough */
	}
}

static void note_beat(struct taken *t, int rank, uint64_t beat, uint64_t now)
{
	uint64_t age = now > beat ? now - beat : 0;

	if (t->young_age_ms > age) {
		t->young_age_ms = age;
		t->young_rank = rank;
		t->young_ms = beat;
	}
	if (t->old_age_ms < age)
		t->old_age_ms = age;
}

void cvy_taken_look(struct cvy_group_state *g, int rank, const char *value, int member)
{
	char addr[256], host[128], who[48];
	struct cvy_joiner j;
	struct cvy_action *a;

	if (member && !cvy_member_place(value, addr, sizeof(addr), host, sizeof(host))) {
		snprintf(who, sizeof(who), "%d:%" PRIu64, rank, (uint64_t)strtoull(value, NULL, 10));
	} else if (!member && !cvy_joiner_parse(value, &j)) {
		snprintf(who, sizeof(who), "%d:%" PRIu64, rank, j.inc);
		cvy_text_set(addr, sizeof(addr), j.addr);
		cvy_text_set(host, sizeof(host), j.host);
	} else {
		return;
	}
	a = cvy_do(g, CVY_DO_LOOK, rank);
	a->argv = calloc(1, sizeof(*a->argv));
	if (!a->argv || !(a->argv[0] = strdup(who)))
		return;
	a->argc = 1;
	a->text = strdup(addr);
	a->host = strdup(host);
}

void cvy_taken_told(struct cvy_group_state *g, const struct cvy_event *e)
{
	const char *kind = cvy_reply_get(e->argc, e->argv, "kind"), *why = cvy_reply_get(e->argc, e->argv, "why");
	const char *now = cvy_reply_get(e->argc, e->argv, "now"), *count = cvy_reply_get(e->argc, e->argv, "count");
	const char *gid = cvy_reply_get(e->argc, e->argv, "gid");
	struct taken *t = &g->taken;
	uint64_t server = now ? strtoull(now, NULL, 10) : 0;
	int held = 0;

	if (!t->since_ns) {
		t->since_ns = g->now;
		t->since_ms = server;
	}
	if (strcmp(t->gid, gid ? gid : "") != 0)
		t->gone[0] = '\0';
	cvy_text_set(t->gid, sizeof(t->gid), gid);
	cvy_text_set(t->kind, sizeof(t->kind), kind);
	cvy_text_set(t->why, sizeof(t->why), why);
	t->count = count ? atoi(count) : 0;
	t->young_age_ms = UINT64_MAX;
	t->old_age_ms = 0;
	t->young_ms = 0;
	for (int i = 1; i + 1 < e->argc; i += 2) {
		uint64_t rank, beat;
		char letter;

		if (sscanf(e->argv[i], "%c:%" SCNu64, &letter, &rank) != 2 || rank >= COVEY_MAX_RANKS)
			continue;
		if (letter == 't' && sscanf(e->argv[i + 1], "%" SCNu64, &beat) == 1)
			note_beat(t, (int)rank, beat, server);
		else if (letter == 'm' || letter == 'j') {
			held |= (int)rank == t->alive_rank;
			cvy_taken_look(g, (int)rank, e->argv[i + 1], letter == 'm');
		}
	}
	if (!held)
		t->alive_ns = 0;
	if (t->young_age_ms == UINT64_MAX)
		t->young_age_ms = 0;
	if (t->young_ms > t->since_ms)
		t->moved = 1;
	g->call[CALL_REGISTER].due_ns = g->now + LOOK_MS * CVY_MS;
	judge(g, 0);
}

void cvy_taken_looked(struct cvy_group_state *g, const struct cvy_event *e)
{
	struct taken *t = &g->taken;
	size_t used = strlen(t->gone);

	if (g->view && e->argc && e->source == CVY_PROC_GONE) /* it was a voter, and is missed */
		cvy_call_prove(g, e->rank, strtoull(strchr(e->argv[0], ':') + 1, NULL, 10), "process");
	if (!t->since_ns || g->rank >= 0 || e->argc < 1)
		return;
	if (e->source == CVY_PROC_GONE) {
		if (used + sizeof(t->gid) + strlen(e->argv[0]) + 2 > sizeof(t->gone))
			return; /* the next time */
		snprintf(t->gone + used, sizeof(t->gone) - used, "%s,%s", used ? "" : t->gid, e->argv[0]);
		g->call[CALL_REGISTER].due_ns = g->now;
	}
	if (e->source != CVY_PROC_LIVES) {
		if (e->rank == t->alive_rank)
			t->alive_ns = 0;
		return;
	}
	if (!t->alive_ns) { /* one process is followed, not whichever was seen last */
		t->alive_ns = g->now;
		t->alive_rank = e->rank;
		t->alive_pid = e->text ? cvy_proc_pid(e->text) : 0;
	}
	if (e->rank == t->alive_rank)
		judge(g, 1);
}

/* How long silence is enough, in ms; 0: it is not. */
int cvy_taken_lapse(const struct cvy_group_state *g)
{
	const struct taken *t = &g->taken;

	if (!t->since_ns || t->moved || g->now - t->since_ns < LISTEN_MS * CVY_MS || g->args.lease_ms < 0)
		return 0;
	return g->args.lease_ms;
}
