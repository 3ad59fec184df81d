/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a member makes of a store and of links that fail, by the step of the group state machine: answers of another life,
 * news, beats, complaints, and joiners that come and go.
 */
#include "group_fixture.h"

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

/* The rank of an event of @kind, -1: none is published. */
static int published(int kind)
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
	ck_assert_int_eq(published(COVEY_EVENT_JOIN_REQUESTED), 2);
	tells_of_joiner("|j:2|11 n a h 0");
	ck_assert_int_eq(published(COVEY_EVENT_JOIN_LOST), 2);
	event(CVY_EV_LINK_UP, 2, 11, 0);
	ck_assert_int_eq(published(COVEY_EVENT_JOIN_REQUESTED), 2);
	tells_of_joiner("");
	ck_assert_int_eq(published(COVEY_EVENT_JOIN_LOST), 2);
}

/* If the store is four seconds behind, the beat of the other waits in its queue. */
TEST_LOOP(a_rank_whose_lease_ran_out_is_suspected_unless_the_store_is_slow, 0, 2)
{
	to_run();
	now += (_i ? 4000 : 1) * CVY_MS;
	answer("beat", "OK" STATE("run", "1", "aa") "|now|20000|t:1|12000");
	ck_assert_int_eq(published(COVEY_EVENT_SUSPECT), _i ? -1 : 1);
}

/* Thousands of beats in the second of a change take the store as long as the change. */
TEST_LOOP(beats_of_a_large_group_wait_a_beat_for_a_change, 0, 2)
{
	pace_members = _i ? 1 : 0;
	to_frozen();
	answer("beat", "OK" STATE("open", "1", "aa"));
	pass(1100);
	ck_assert_int_eq(called("beat") != 0, !_i);
	pass(1000);
	ck_assert_uint_ne(called("beat"), 0);
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

SUITE_MAIN(.name = "membership/group_talk", .teardown = done, .timeout_s = 60)
