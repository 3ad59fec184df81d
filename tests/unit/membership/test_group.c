/* SPDX-License-Identifier: Apache-2.0 */
/* The step of the group state machine with hand-made events: rank 0 of a group of two. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../suite.h"
#include "clock.h"
#include "group.h"

#define LIFE "1.a"

static struct cvy_group_state *g;
static struct cvy_actions acts;
static uint64_t now;

static const struct cvy_action *did(int kind)
{
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == kind)
			return &acts.item[i];
	return NULL;
}

enum { FLAGS = 13, BAD_LINKS = 15 }; /* of a report */

/* Argument @i of the call that this step makes, NULL: it makes none. */
static const char *told(const char *call, int i)
{
	for (int k = 0; k < acts.count; k++)
		if (acts.item[k].kind == CVY_DO_CALL && strcmp(acts.item[k].argv[0], call) == 0)
			return acts.item[k].argv[i];
	return NULL;
}

/* Calls are answered in any order: ids are found in the actions of all steps. */
enum { NAMES = 9 };

static uint64_t last[NAMES];
static const char *const names[NAMES] = { "register", "ready", "hello", "open", "report",
					  "decide",   "ack",   "peek",	"beat" };

static void step(const struct cvy_event *e)
{
	cvy_actions_clear(&acts);
	cvy_group_step(g, e, now, &acts);
	for (int i = 0; i < acts.count; i++)
		for (int k = 0; k < NAMES; k++)
			if (acts.item[i].kind == CVY_DO_CALL && strcmp(acts.item[i].argv[0], names[k]) == 0)
				last[k] = acts.item[i].id;
}

static uint64_t called(const char *name)
{
	for (int k = 0; k < NAMES; k++)
		if (strcmp(names[k], name) == 0)
			return last[k];
	return 0;
}

static void event(int kind, int rank, uint64_t inc, uint32_t epoch)
{
	struct cvy_event e = { .kind = kind, .rank = rank, .inc = inc, .epoch = epoch };

	e.source = CVY_SOURCE_HEARTBEAT;
	step(&e);
}

static void pass(int ms)
{
	now += (uint64_t)ms * CVY_MS;
	event(CVY_EV_TICK, -1, 0, 0);
}

static void answer(const char *call, const char *text)
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
	for (int k = 0; k < NAMES; k++)
		if (strcmp(names[k], call) == 0)
			last[k] = 0;
	step(&e);
}

#define STATE(ph, epoch, vid) "|gid|g|life|" LIFE "|ph|" ph "|epoch|" epoch "|vid|" vid "|rev|1"
#define VIEW(members, lines) "|max|4|world|2|incs|2|base|1|fail|0|stamp|5|size|2" members lines
#define TWO "|m:0|1 0 a h|m:1|2 0 b h"
#define L1 "|l:1|aa - 0,1 -"

static void api(int what)
{
	struct cvy_event e = { .kind = CVY_EV_API, .api = what, .rank = -1 };

	step(&e);
}

static int pace_members; /* of the next group; 0: the default */

/* A member that has asked the store for its place. */
static void begin(int rank, int world, int max_ranks)
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

static void to_linked(void)
{
	begin(0, 2, 4);
	answer("register", "OK" STATE("form", "0", "-") VIEW("", "") "|rank|0|inc|1|j:0|1 n a h 0|j:1|2 n b h 0");
	event(CVY_EV_LINK_UP, 1, 2, 0);
}

static void to_learned_as(const char *more)
{
	char text[1024];

	to_linked();
	snprintf(text, sizeof(text), "OK" STATE("inst", "1", "aa") VIEW(TWO, L1) "%s", more);
	answer("ready", text);
}

static void to_learned(void)
{
	to_learned_as("");
}

static void repaired(uint32_t epoch)
{
	event(CVY_EV_FENCED, -1, 0, epoch);
	event(CVY_EV_REPAIRED, -1, 0, epoch);
}

/* Rank 1 is suspected, and a change is open. */
static void opened(void)
{
	event(CVY_EV_SUSPECT, 1, 2, 0);
	answer("open", "OK" STATE("open", "1", "aa"));
}

/* A view of rank 0 alone follows. */
static void committed(void)
{
	event(CVY_EV_FROZEN, -1, 0, 1);
	answer("report", "COMMIT" STATE("inst", "2", "bb") VIEW("|m:0|1 0 a h", L1 "|l:2|bb 1 - -"));
}

static void to_run(void)
{
	to_learned();
	repaired(1);
	answer("ack", "ACTIVE" STATE("run", "1", "aa") VIEW(TWO, L1));
}

static void to_frozen(void)
{
	to_run();
	opened();
	event(CVY_EV_FROZEN, -1, 0, 1);
}

static void done(void)
{
	cvy_actions_clear(&acts);
	cvy_group_free(g);
	g = NULL;
}

TEST(two_founders_form_a_view)
{
	to_run();
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_RUN);
	ck_assert_ptr_nonnull(did(CVY_DO_THAW));
	ck_assert_int_eq(did(CVY_DO_JOINED)->err, 0);
}

TEST(nothing_is_acknowledged_before_fence_and_repair)
{
	to_learned();
	ck_assert_ptr_nonnull(did(CVY_DO_LEARN));
	ck_assert_uint_eq(called("ack"), 0);
	event(CVY_EV_FENCED, -1, 0, 1);
	ck_assert_ptr_nonnull(did(CVY_DO_REPAIR));
	ck_assert_uint_eq(called("ack"), 0);
	event(CVY_EV_REPAIRED, -1, 0, 1);
	ck_assert_uint_ne(called("ack"), 0);
}

TEST(an_open_change_freezes_then_reports)
{
	to_run();
	event(CVY_EV_SUSPECT, 1, 2, 0);
	ck_assert_ptr_null(did(CVY_DO_FREEZE)); /* our own opinion freezes nobody */
	answer("open", "OK" STATE("open", "1", "aa"));
	ck_assert_ptr_nonnull(did(CVY_DO_FREEZE));
	ck_assert_uint_eq(called("report"), 0);
	event(CVY_EV_FROZEN, -1, 0, 1);
	ck_assert_uint_ne(called("report"), 0);
}

TEST(a_suspect_of_another_incarnation_is_ignored)
{
	to_run();
	event(CVY_EV_SUSPECT, 1, 3, 0);
	ck_assert_uint_eq(called("open"), 0);
}

TEST(a_frozen_member_never_thaws_by_itself)
{
	to_frozen();
	answer("report", "WAIT" STATE("run", "1", "aa") "|wait|-"); /* the store forgot */
	ck_assert_ptr_null(did(CVY_DO_THAW));
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_FROZEN);
	ck_assert_uint_ne(called("open"), 0);
}

TEST(a_view_without_me_fences_me)
{
	to_frozen();
	answer("report", "COMMIT" STATE("inst", "2", "bb") VIEW("|m:1|2 0 b h", L1 "|l:2|bb 0 - -"));
	ck_assert_int_eq(did(CVY_DO_STOP)->err, COVEY_ERR_FENCED);
}

TEST(a_view_that_descends_from_a_rival_fences_me)
{
	to_frozen();
	answer("report", "COMMIT" STATE("inst", "2", "bb") VIEW("|m:0|1 0 a h", "|l:1|cc - - -|l:2|bb 1 - -"));
	ck_assert_int_eq(did(CVY_DO_STOP)->err, COVEY_ERR_FENCED);
}

TEST(a_commit_removes_the_dead)
{
	to_run();
	answer("peek", "OK|gid|g|life|" LIFE "|ph|run|epoch|1|vid|aa|rev|2"); /* no joiner any more */
	opened();
	committed();
	ck_assert_uint_eq(did(CVY_DO_LEARN)->removed.word[0], 2);
	ck_assert_ptr_null(did(CVY_DO_DROP)); /* not before it is fenced */
	event(CVY_EV_FENCED, -1, 0, 2);
	ck_assert_ptr_nonnull(did(CVY_DO_DROP));
}

/* An operator reads at the default level who is dead and why, and who is in. Members that leave are no warning. */
TEST(a_view_says_who_is_gone_and_why)
{
	static const struct {
		int source;
		const char *text, *cause;
	} end[] = { { CVY_SOURCE_ROBUST, NULL, "rank 1 is dead (its process ended)" },
		    { CVY_SOURCE_HEARTBEAT, "x", "rank 1 was left out (its process was silent)" },
		    { CVY_SOURCE_PIDFD, "the rank has left", "rank 1 is out" } };

	for (size_t i = 0; i < sizeof(end) / sizeof(*end); i++) {
		struct cvy_event e = {
			.kind = CVY_EV_SUSPECT, .rank = 1, .inc = 2, .source = end[i].source, .text = end[i].text
		};
		const struct cvy_action *a;

		to_run();
		step(&e);
		if (called("open")) /* a report opens the change for a proof */
			answer("open", "OK" STATE("open", "1", "aa"));
		committed();
		repaired(2);
		answer("ack", "ACTIVE" STATE("run", "2", "bb") VIEW("|m:0|1 0 a h", L1 "|l:2|bb 1 - -"));
		a = did(CVY_DO_PUBLISH);
		ck_assert_ptr_nonnull(a);
		ck_assert_int_eq(a->event.kind, COVEY_EVENT_VIEW);
		ck_assert_str_eq(a->event.cause, end[i].cause);
		ck_assert_uint_eq(a->number, end[i].source != CVY_SOURCE_PIDFD);
		done();
	}
}

TEST(a_newer_open_stops_repair_and_reports_again)
{
	to_learned();
	event(CVY_EV_FENCED, -1, 0, 1);
	opened();
	ck_assert_ptr_nonnull(did(CVY_DO_FREEZE));
	event(CVY_EV_REPAIRED, -1, 0, 1);
	ck_assert_uint_eq(called("ack"), 0);
}

/* The next view came while the answer was under way: to take it for this view's would cost ack_ms. */
TEST(a_late_answer_to_an_older_ack_acknowledges_nothing)
{
	to_learned();
	repaired(1);
	ck_assert_uint_ne(called("ack"), 0);
	opened();
	committed();
	repaired(2);
	answer("ack", "WAIT" STATE("inst", "2", "bb"));
	ck_assert_uint_ne(called("ack"), 0); /* of the new view */
}

TEST(a_relayed_call_is_made_directly_when_the_store_is_back)
{
	to_run();
	event(CVY_EV_STORE_DOWN, -1, 0, 0);
	event(CVY_EV_SUSPECT, 1, 2, 0);
	ck_assert_uint_eq(called("open"), 0);
	ck_assert_int_eq(did(CVY_DO_SEND)->rank, 1); /* which never answers */
	event(CVY_EV_STORE_UP, -1, 0, 0);
	ck_assert_uint_ne(called("open"), 0);
}

/* Its link stands for some milliseconds longer than it does. */
TEST(the_dead_are_asked_to_relay_nothing)
{
	struct cvy_event dead = { .kind = CVY_EV_SUSPECT, .rank = 1, .inc = 2, .source = CVY_SOURCE_ROBUST };

	to_run();
	event(CVY_EV_STORE_DOWN, -1, 0, 0);
	step(&dead);
	ck_assert_ptr_null(did(CVY_DO_SEND));
	event(CVY_EV_STORE_UP, -1, 0, 0);
	ck_assert_ptr_nonnull(did(CVY_DO_FREEZE));
	event(CVY_EV_FROZEN, -1, 0, 1);
	ck_assert_uint_ne(called("report"), 0);
}

TEST(gone_is_answered_with_hello)
{
	to_frozen();
	answer("report", "GONE");
	ck_assert_uint_ne(called("hello"), 0);
	answer("hello", "OK|gid|g|life|2.b|ph|run|epoch|1|vid|aa|rev|9" VIEW(TWO, L1));
	ck_assert_ptr_null(did(CVY_DO_THAW));
	ck_assert_uint_ne(called("open"), 0);
}

TEST(a_mark_to_retire_outlives_the_store)
{
	to_run();
	answer("peek", "OK|gid|g|life|" LIFE "|ph|run|epoch|1|vid|aa|rev|2|e:0|1 retire");
	ck_assert(cvy_group_retiring(g));
	pass(2000);
	answer("peek", "GONE");
	answer("hello", "OK|gid|g|life|2.b|ph|run|epoch|1|vid|aa|rev|9" VIEW(TWO, L1));
	ck_assert(cvy_group_retiring(g));
}

TEST(a_late_reply_of_another_life_is_ignored)
{
	to_frozen();
	answer("report", "COMMIT|gid|g|life|0.z|ph|inst|epoch|2|vid|bb|rev|1" VIEW("|m:1|2 0 b h", L1));
	ck_assert_ptr_null(did(CVY_DO_STOP));
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_FROZEN);
}

TEST(a_repeated_reply_changes_nothing)
{
	struct cvy_event e = { .kind = CVY_EV_REPLY, .rank = -1, .id = 1, .err = COVEY_ERR_TIMEOUT };

	to_run();
	step(&e);
	ck_assert_int_eq(acts.count, 0);
}

/* The other founder says that it has acknowledged the view. */
static void acked(uint64_t vid)
{
	struct cvy_event e = { .kind = CVY_EV_MSG, .msg = { .type = CVY_MSG_ACKED, .rank = 1, .inc = 2 } };

	e.msg.body = (const uint8_t *)&vid;
	e.msg.bytes = sizeof(vid);
	step(&e);
}

#define VOTERS "|o:0|1|o:1|2"

/* To a view that its members made active: the store waits for acknowledgements still. */
static void to_direct(void)
{
	to_learned_as(VOTERS);
	repaired(1);
	acked(0xaa);
}

/* The store hears of it a little later, when nobody waits for the core that it needs. */
static void until_the_store_is_told(void)
{
	ck_assert_uint_eq(called("ack"), 0);
	pass(3);
}

TEST(members_go_on_when_all_have_said_that_they_acknowledged)
{
	to_direct();
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_RUN);
	ck_assert_ptr_nonnull(did(CVY_DO_THAW));
	until_the_store_is_told();
	answer("ack", "WAIT" STATE("inst", "1", "aa"));
	pass(1000); /* ack_ms: the store must hear of it, too */
	ck_assert_uint_ne(called("ack"), 0);
}

TEST(an_acknowledgement_of_another_view_does_not_count)
{
	to_learned_as(VOTERS);
	acked(0xaa); /* before we are as far */
	acked(0xab);
	repaired(1);
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_ACKED);
	until_the_store_is_told();
	answer("ack", "ACTIVE" STATE("run", "1", "aa"));
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_RUN);
}

/* A pending member, one without a vote, and a view that may be active elsewhere: the store alone says ACTIVE. */
TEST_LOOP(members_do_not_go_on_by_themselves_in_other_views, 0, 3)
{
	static const char *const lines[] = { "|o:0|1", "|o:0|1|o:1|3", VOTERS "|u:1|0:1,1:2" };

	to_learned_as(lines[_i]);
	repaired(1);
	acked(0xaa);
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_ACKED);
}

TEST(a_view_without_a_name_is_not_acknowledged_by_silence)
{
	to_linked();
	answer("ready", "OK" STATE("inst", "1", "?") VIEW(TWO, "|l:1|? - 0,1 -") VOTERS);
	repaired(1);
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_ACKED);
}

/* Else the votes of who was removed would be asked for still. */
TEST(a_report_tells_the_store_that_the_members_went_on)
{
	struct cvy_event e = { .kind = CVY_EV_SUSPECT, .rank = 1, .inc = 2, .source = CVY_SOURCE_ROBUST };

	to_direct();
	step(&e);
	event(CVY_EV_FROZEN, -1, 0, 1);
	ck_assert_str_eq(told("report", FLAGS), "oa");
}

/* A notice of a change may come late, from a server that is gone: the store says that nothing is open. */
TEST(a_wrong_hint_of_a_change_is_cured_in_a_view_that_waits_for_acknowledgements)
{
	struct cvy_event e = { .kind = CVY_EV_NOTICE, .rank = -1, .text = "1 open" };

	to_direct();
	until_the_store_is_told();
	answer("ack", "WAIT" STATE("inst", "1", "aa"));
	step(&e);
	event(CVY_EV_FROZEN, -1, 0, 1);
	answer("report", "WAIT" STATE("inst", "1", "aa"));
	ck_assert_int_eq(cvy_group_phase(g), CVY_PHASE_FROZEN);
	ck_assert_uint_ne(called("open"), 0);
	answer("open", "OK" STATE("open", "1", "aa"));
	ck_assert_uint_ne(called("report"), 0);
}

#define NEWS(since, rev, rank) \
	"1 run\ngid\ng\nlife\n" LIFE "\nph\nrun\nepoch\n1\nvid\naa\nsince\n" since "\nrev\n" rev "\nj:" rank \
	"\n9 n a h 0\ngone\n-"

static int asks_after(const char *notice)
{
	struct cvy_event e = { .kind = CVY_EV_NOTICE, .rank = -1, .text = notice };

	step(&e);
	return called("peek") != 0;
}

/* Of the joiner that registers every member hears at once. If all asked, the store would answer each of them. */
TEST(news_in_a_notice_save_a_peek_if_they_follow_on_the_last)
{
	to_run();
	answer("beat", "OK" STATE("run", "1", "aa"));
	if (called("peek"))
		answer("peek", "OK" STATE("run", "1", "aa"));
	ck_assert(!asks_after(NEWS("1", "2", "2")));
	ck_assert(!asks_after(NEWS("2", "3", "3")));
	ck_assert(asks_after(NEWS("4", "5", "3"))); /* one is missing */
}

TEST(news_in_a_notice_are_asked_for_while_a_reply_is_under_way)
{
	to_run();
	if (called("peek"))
		answer("peek", "OK" STATE("run", "1", "aa"));
	ck_assert_uint_ne(called("beat"), 0);
	ck_assert(asks_after(NEWS("1", "2", "2")));
}

/* A rank that joins thousands of others dials them all in one step. */
TEST(the_room_of_a_large_step_is_not_kept)
{
	enum { OTHERS = 200 };
	static const char *argv[64 + 2 * OTHERS];
	static char field[OTHERS][8], value[OTHERS][24],
		text[] = "OK" STATE("form", "0",
				    "-") "|max|4096|world|2|incs|2|base|1|fail|0|stamp|5|size|2|rank|0|inc|999";
	struct cvy_event e = { .kind = CVY_EV_REPLY, .rank = -1, .argv = argv };

	begin(0, 2, 4096);
	for (char *w = strtok(text, "|"); w; w = strtok(NULL, "|"))
		argv[e.argc++] = w;
	for (int i = 0; i < OTHERS; i++) {
		snprintf(field[i], sizeof(field[i]), "j:%d", i + 1);
		snprintf(value[i], sizeof(value[i]), "%d n b h 0", i + 1);
		argv[e.argc++] = field[i];
		argv[e.argc++] = value[i];
	}
	e.id = called("register");
	step(&e);
	ck_assert_int_ge(acts.room, OTHERS);
	cvy_actions_clear(&acts);
	ck_assert_int_lt(acts.room, OTHERS / 2);
}

static int heard_of_joiner(int kind)
{
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == CVY_DO_PUBLISH && acts.item[i].event.kind == kind)
			return acts.item[i].event.rank;
	return -1;
}

static void tells_of_joiner(const char *joiner)
{
	char text[256];

	pass(1100);
	snprintf(text, sizeof(text), "OK" STATE("run", "1", "aa") VIEW(TWO, L1) "%s", joiner);
	answer("peek", text);
}

/* Its process may be replaced before its link breaks. An operator may have set the policy since this rank came. */
TEST(a_joiner_that_was_seen_is_lost_when_another_has_its_rank)
{
	to_learned_as("|policy|manual");
	repaired(1);
	answer("ack", "ACTIVE" STATE("run", "1", "aa") VIEW(TWO, L1));
	tells_of_joiner("|j:2|9 n a h 0");
	event(CVY_EV_LINK_UP, 2, 9, 0);
	ck_assert_int_eq(heard_of_joiner(COVEY_EVENT_JOIN_REQUESTED), 2);
	tells_of_joiner("|j:2|11 n a h 0");
	ck_assert_int_eq(heard_of_joiner(COVEY_EVENT_JOIN_LOST), 2);
	event(CVY_EV_LINK_UP, 2, 11, 0);
	ck_assert_int_eq(heard_of_joiner(COVEY_EVENT_JOIN_REQUESTED), 2);
	tells_of_joiner("");
	ck_assert_int_eq(heard_of_joiner(COVEY_EVENT_JOIN_LOST), 2);
}

static int suspects_after(int beat_ms)
{
	now += (uint64_t)beat_ms * CVY_MS;
	answer("beat", "OK" STATE("run", "1", "aa") "|now|20000|t:1|12000");
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == CVY_DO_PUBLISH && acts.item[i].event.kind == COVEY_EVENT_SUSPECT)
			return 1;
	return 0;
}

TEST(a_rank_whose_lease_ran_out_is_suspected)
{
	to_run();
	ck_assert(suspects_after(1));
}

/* The store is four seconds behind, and the beat of the other waits in its queue. */
TEST(a_slow_store_makes_nobody_silent)
{
	to_run();
	ck_assert(!suspects_after(4000));
}

static int beats_after(uint64_t ms)
{
	now += ms * CVY_MS;
	event(CVY_EV_TICK, -1, 0, 0);
	return called("beat") != 0;
}

/* Thousands of beats in the second of a change take the store as long as the change. */
TEST_LOOP(beats_of_a_large_group_wait_a_beat_for_a_change, 0, 2)
{
	pace_members = _i ? 1 : 0;
	to_frozen();
	answer("beat", "OK" STATE("open", "1", "aa"));
	ck_assert_int_eq(beats_after(1100), !_i);
	ck_assert(beats_after(1000));
}

/* Both who complain of each other would be right for ever, and a change without quorum. */
TEST(a_link_that_broke_twice_is_good_again_after_ack_ms)
{
	to_frozen();
	answer("report", "WAIT" STATE("open", "1", "aa"));
	for (int i = 0; i < 2; i++) {
		event(CVY_EV_LINK_DOWN, 1, 2, 0);
		event(CVY_EV_LINK_UP, 1, 2, 0);
	}
	ck_assert_uint_ne(called("report"), 0);
	answer("report", "WAIT" STATE("open", "1", "aa"));
	pass(999);
	ck_assert_uint_eq(called("report"), 0); /* it stands, not for long enough */
	ck_assert_uint_le(cvy_group_timer(g), now + CVY_MS);
	pass(1);
	ck_assert_str_eq(told("report", BAD_LINKS), "-");
}

TEST(a_link_that_does_not_come_back_is_told)
{
	to_frozen();
	answer("report", "WAIT" STATE("open", "1", "aa"));
	event(CVY_EV_LINK_DOWN, 1, 2, 0);
	ck_assert_uint_eq(called("report"), 0);
	pass(100); /* relink_ms */
	ck_assert_str_eq(told("report", BAD_LINKS), "1:2");
}

/* A joiner that no view has listed has promised nothing: it registers again, with the nonce that it had. */
TEST(a_joiner_that_the_store_lost_registers_again)
{
	begin(-1, 1, 4);
	answer("register", "OK" STATE("run", "1", "aa") VIEW("|m:0|1 0 a h", L1) "|rank|1|inc|2|j:1|2 n a h 0");
	event(CVY_EV_LINK_UP, 0, 1, 0);
	ck_assert_int_eq(cvy_group_rank(g), 1);
	answer("peek", "LIFE" STATE("run", "1", "aa"));
	ck_assert_uint_ne(called("hello"), 0);
	answer("hello", "GONE|gid|g|life|2.b|ph|run|epoch|1|vid|aa|rev|9");
	ck_assert_int_eq(cvy_group_rank(g), -1);
	pass(1000);
	ck_assert_uint_ne(called("register"), 0);
	ck_assert_str_eq(told("register", 4), "0000000000000007");
	ck_assert_ptr_null(did(CVY_DO_STOP));
	ck_assert_ptr_null(did(CVY_DO_JOINED)); /* it has joined, or will: no second answer, no end */
	answer("register",
	       "OK|gid|g|life|2.b|ph|run|epoch|1|vid|aa|rev|9" VIEW("|m:0|1 0 a h", L1) "|rank|2|inc|5|j:2|5 n a h 0");
	ck_assert_int_eq(cvy_group_rank(g), 2);
	ck_assert_uint_eq(cvy_group_inc(g), 5);
}

SUITE_MAIN(.name = "membership/group", .teardown = done, .timeout_s = 60)
