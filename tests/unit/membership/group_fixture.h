/* SPDX-License-Identifier: Apache-2.0 */
/* The step of the group state machine with hand-made events: rank 0 of a group of two. */
#ifndef TESTS_GROUP_FIXTURE_H
#define TESTS_GROUP_FIXTURE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "clock.h"
#include "group.h"

#define LIFE "1.a"

static struct cvy_group_state *g;
static struct cvy_actions acts;
static uint64_t now;

static inline const struct cvy_action *did(int kind)
{
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == kind)
			return &acts.item[i];
	return NULL;
}

enum { FLAGS = 13, BAD_LINKS = 15 }; /* of a report */

/* Argument @i of the call that this step makes, NULL: it makes none. */
static inline const char *told(const char *call, int i)
{
	for (int k = 0; k < acts.count; k++)
		if (acts.item[k].kind == CVY_DO_CALL && strcmp(acts.item[k].argv[0], call) == 0)
			return acts.item[k].argv[i];
	return NULL;
}

/* The id of the last call of each name that is not answered: calls are answered in any order. */
static inline uint64_t *last(const char *name)
{
	static const char *const names[] = { "register", "ready", "hello", "open", "report", "decide",
					     "ack",	 "peek",  "beat",  "ask",  "prove" };
	static uint64_t ids[sizeof(names) / sizeof(names[0])];

	for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
		if (strcmp(names[k], name) == 0)
			return &ids[k];
	ck_abort_msg("no call is named %s", name);
}

static inline uint64_t called(const char *name)
{
	return *last(name);
}

static inline void step(const struct cvy_event *e)
{
	cvy_actions_clear(&acts);
	cvy_group_step(g, e, now, &acts);
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == CVY_DO_CALL)
			*last(acts.item[i].argv[0]) = acts.item[i].id;
}

static inline void event(int kind, int rank, uint64_t inc, uint32_t epoch)
{
	struct cvy_event e = { .kind = kind, .rank = rank, .inc = inc, .epoch = epoch };

	e.source = CVY_SOURCE_HEARTBEAT;
	step(&e);
}

static inline void pass(int ms)
{
	now += (uint64_t)ms * CVY_MS;
	event(CVY_EV_TICK, -1, 0, 0);
}

static inline void answer(const char *call, const char *text)
{
	static char copy[2048];
	const char *argv[64];
	struct cvy_event e = { .kind = CVY_EV_REPLY, .rank = -1 };

	snprintf(copy, sizeof(copy), "%s", text);
	for (char *w = strtok(copy, "|"); w && e.argc < 64; w = strtok(NULL, "|"))
		argv[e.argc++] = w;
	e.argv = argv;
	e.id = called(call);
	ck_assert_uint_ne(e.id, 0);
	*last(call) = 0;
	step(&e);
}

#define STATE(ph, epoch, vid) "|gid|g|life|" LIFE "|ph|" ph "|epoch|" epoch "|vid|" vid "|rev|1"
#define VIEW(members, lines) "|max|4|world|2|incs|2|base|1|fail|0|stamp|5|size|2" members lines
#define TWO "|m:0|1 0 a h|m:1|2 0 b h"
#define L1 "|l:1|aa - 0,1 -"

static inline void api(int what)
{
	struct cvy_event e = { .kind = CVY_EV_API, .api = what, .rank = -1 };

	step(&e);
}

static int pace_members; /* of the next group; 0: the default */

/* A member that has asked the store for its place. */
static inline void begin(int rank, int world, int max_ranks)
{
	struct cvy_group_args args = { .rank = rank,
				       .world = world,
				       .max_ranks = max_ranks,
				       .addr = "a",
				       .host = "h",
				       .nonce = 7,
				       .seed = 1,
				       .pace_members = pace_members };

	now = CVY_MS;
	g = cvy_group_new(&args, now);
	event(CVY_EV_STORE_UP, -1, 0, 0);
	api(CVY_API_JOIN);
}

static inline void to_linked(void)
{
	begin(0, 2, 4);
	answer("register", "OK" STATE("form", "0", "-") VIEW("", "") "|rank|0|inc|1|j:0|1 n a h 0|j:1|2 n b h 0");
	event(CVY_EV_LINK_UP, 1, 2, 0);
}

static inline void to_learned_as(const char *more)
{
	char text[1024];

	to_linked();
	snprintf(text, sizeof(text), "OK" STATE("inst", "1", "aa") VIEW(TWO, L1) "%s", more);
	answer("ready", text);
}

static inline void to_learned(void)
{
	to_learned_as("");
}

static inline void repaired(uint32_t epoch)
{
	event(CVY_EV_FENCED, -1, 0, epoch);
	event(CVY_EV_REPAIRED, -1, 0, epoch);
}

/* Rank 1 is suspected, and a change is open. */
static inline void opened(void)
{
	event(CVY_EV_SUSPECT, 1, 2, 0);
	answer("open", "OK" STATE("open", "1", "aa"));
}

/* A view of rank 0 alone follows. */
static inline void committed(void)
{
	event(CVY_EV_FROZEN, -1, 0, 1);
	answer("report", "COMMIT" STATE("inst", "2", "bb") VIEW("|m:0|1 0 a h", L1 "|l:2|bb 1 - -"));
}

static inline void to_run(void)
{
	to_learned();
	repaired(1);
	answer("ack", "ACTIVE" STATE("run", "1", "aa") VIEW(TWO, L1));
}

static inline void to_frozen(void)
{
	to_run();
	opened();
	event(CVY_EV_FROZEN, -1, 0, 1);
}

static inline void done(void)
{
	cvy_actions_clear(&acts);
	cvy_group_free(g);
	g = NULL;
}

#endif
