/* SPDX-License-Identifier: Apache-2.0 */
/* Views, by the step of the group state machine: how a member comes to one, freezes, reports and goes on. */
#include "group_fixture.h"

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

TEST_LOOP(a_view_without_me_or_of_a_rival_fences_me, 0, 2)
{
	static const char *const views[] = { VIEW("|m:1|2 0 b h", L1 "|l:2|bb 0 - -"),
					     VIEW("|m:0|1 0 a h", "|l:1|cc - - -|l:2|bb 1 - -") };
	char text[256];

	to_frozen();
	snprintf(text, sizeof(text), "COMMIT" STATE("inst", "2", "bb") "%s", views[_i]);
	answer("report", text);
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

SUITE_MAIN(.name = "membership/group", .teardown = done, .timeout_s = 60)
