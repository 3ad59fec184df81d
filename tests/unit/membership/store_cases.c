/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may decide, and what: quorum, lives of the server, rivals. Each case begins with an empty server. Calls are made
 * twice where a repeat could do harm.
 */
#include "store_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CASE(forms_when_world_is_ready)
{
	enlist(b, 0, 1, 2, "auto");
	SAYS(b, 0, "ready 0", "OK");
	GOT(b, "ph", "form");
	enlist(b, 1, 1, 2, "auto");
	SAYS(b, 1, "ready 0", "OK");
	GOT(b, "ph", "inst");
	ck_assert_str_eq(field(b, "size"), "2");
	GOT(b, "base", "1");
	acks(b, 0, 2);
}

CASE(prologue_refuses)
{
	SAYS(b, NOBODY, "peek 0 -1", "GONE");
	SAYS(b, 0, "register 0 a h 0 2 8 auto s", "GONE");
	SAYS(b, NOBODY, "dance", "ERROR");
	group(b, 2, "auto");
	strcpy(b->life[0], "1.other");
	SAYS(b, 0, "beat 1 0 -", "LIFE");
	strcpy(b->gid, "another");
	SAYS(b, 1, "beat 1 0 -", "FENCED");
	SAYS(b, 9, "register 1 a h 0 2 8 auto s", "BUSY");
	SAYS(b, 9, "register 8 a h 0 2 8 auto s", "REFUSED");
	SAYS(b, 9, "register any a h 0 2 8 auto s", "OK");
	GOT(b, "rank", "2");
}

CASE(accused_goes_with_force_one)
{
	group(b, 3, "auto");
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "5 6 0 20 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "6 6 0 25 - - -"), "WAIT");
	twice(b, 0, "decide 1 0", "WAIT");
	twice(b, 0, "decide 1 1", "COMMIT");
	GOT(b, "base", "7");
	GOT(b, "stamp", "30");
	GOT(b, "fail", "0");
	ck_assert(strstr(got(b, "l:2"), " 2 - 0") != NULL);
	ck_assert_str_eq(field(b, "x:2"), "");
	acks(b, 0, 2);
	SAYS(b, 2, "beat 1 0 -", "FENCED");
}

CASE(minority_has_no_quorum_until_proof)
{
	group(b, 3, "auto");
	accuse(b, 0, 1);
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	twice(b, 0, "decide 1 2", "NOQUORUM");
	GOT(b, "need", "1,2");
	prove(b, 1);
	SAYS(b, 0, "decide 1 2", "NOQUORUM");
	GOT(b, "need", "2");
	prove(b, 2); /* decides by itself: nobody is waited for any more */
	ck_assert_str_eq(field(b, "epoch"), "2");
	acks(b, 0, 1);
}

/* Of a group of three. */
static void leave_out_rank_2(struct bench *b)
{
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
}

/* Rank 2 lives, but the members of view 2 have agreed without it. */
CASE(who_was_removed_has_no_vote_once_members_went_on)
{
	char line[80];

	group(b, 3, "auto");
	leave_out_rank_2(b);
	snprintf(line, sizeof(line), "0 0 0 5 o 1:%s -", b->inc[1]);
	ck_assert_str_eq(report(b, 0, line), "NOQUORUM");
	GOT(b, "need", "2");
	snprintf(line, sizeof(line), "0 0 0 5 oa 1:%s -", b->inc[1]);
	ck_assert_str_eq(report(b, 0, line), "COMMIT");
	GOT(b, "epoch", "3");
	acks(b, 0, 1);
}

/* Rank 2 was left out, rank 1 dies before the view without rank 2 is active. Rank 2 says that it knows: it promises nothing any more. */
CASE(who_knows_that_it_is_fenced_is_not_awaited)
{
	char line[80];

	group(b, 3, "auto");
	leave_out_rank_2(b);
	prove(b, 1);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "NOQUORUM");
	GOT(b, "need", "2");
	SAYS(b, 2, "beat 1 0 -", "FENCED");
	snprintf(line, sizeof(line), "prove 2 %s fenced", b->inc[2]);
	twice(b, 2, line, "OK");
	ck_assert_str_eq(field(b, "epoch"), "3");
	acks(b, 0, 1);
}

/* A rival view may have admitted rank 2, which has no vote here: one of two voters does not decide without a word of it. */
CASE(pending_members_count_where_half_decides)
{
	static char record[8192];
	char line[80];

	group(b, 2, "auto");
	enlist(b, 2, 0, 0, "auto");
	twice(b, 2, "ready 1", "OK");
	ck_assert_str_eq(report(b, 0, "1 1 0 9 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "1 1 0 9 - - -"), "COMMIT");
	acks(b, 0, 3);
	tell(b, record, sizeof(record), "run");
	b->restart(b->ctx);
	ck_assert_str_eq(hello(b, 0, record), "OK");
	snprintf(line, sizeof(line), "1 1 0 9 o 1:%s -", b->inc[1]);
	ck_assert_str_eq(report(b, 0, line), "WAIT");
	SAYS(b, 0, "decide 2 2", "NOQUORUM");
	GOT(b, "need", "2");
	ck_assert_str_eq(hello(b, 2, record), "OK");
	ck_assert_str_eq(report(b, 2, "0 0 0 9 - - -"), "COMMIT");
	GOT(b, "epoch", "3");
}

CASE(half_is_enough_while_sure)
{
	group(b, 2, "auto");
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
}

CASE(half_is_not_enough_in_a_new_life)
{
	static char record[8192];

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	b->restart(b->ctx);
	SAYS(b, 0, "beat 1 0 -", "LIFE");
	ck_assert_str_eq(hello(b, 0, record), "OK");
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 2", "NOQUORUM");
	ck_assert_str_eq(hello(b, 1, record), "OK");
	SAYS(b, 0, "decide 1 2", "NOQUORUM"); /* the reply to that hello may be lost, and rank 1 obey another server */
	SAYS(b, 1, "beat 1 0 -", "OK");
	SAYS(b, 0, "decide 1 2", "COMMIT");
}

CASE(emptied_store_is_told)
{
	static char record[8192];

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	b->flush(b->ctx);
	SAYS(b, 0, "beat 1 0 -", "GONE");
	ck_assert_str_eq(hello(b, 0, record), "OK");
	GOT(b, "ph", "run");
	GOT(b, "epoch", "1");
	ck_assert_int_gt(atoi(got(b, "life")), 1);
	SAYS(b, 1, "beat 1 0 -", "LIFE");
	ck_assert_str_eq(hello(b, 1, record), "OK");
	ck_assert_str_eq(field(b, "o:1"), b->inc[1]);
	ck_assert_int_gt(atol(field(b, "incs")), 1000000);
}

CASE(greater_view_wins_and_rival_is_fenced)
{
	static char one[8192], two[8192];

	group(b, 3, "auto");
	tell(b, one, sizeof(one), "run");
	b->save(b->ctx);
	leave_out_rank_2(b);
	tell(b, two, sizeof(two), "inst");
	b->restore(b->ctx); /* an older copy takes over */
	ck_assert_str_eq(hello(b, 2, one), "OK");
	ck_assert_str_eq(hello(b, 0, two), "OK");
	GOT(b, "epoch", "2");
	GOT(b, "ph", "inst");
	ck_assert_str_ne(got(b, "u:2"), "");
	ck_assert_str_eq(hello(b, 2, one), "FENCED");
	ck_assert_str_eq(hello(b, 1, one), "OK"); /* an ancestor */
	acks(b, 0, 2);
	ck_assert_str_eq(field(b, "u:2"), "");
}

/* Who reported would not report again: to him the change was open all the time. */
CASE(reports_stand_when_their_view_is_told_active)
{
	static char inst[8192], run[8192];

	group(b, 4, "auto");
	accuse(b, 0, 3);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(report(b, i, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
	tell(b, inst, sizeof(inst), "inst");
	tell(b, run, sizeof(run), "run");
	b->restart(b->ctx);
	ck_assert_str_eq(hello(b, 0, inst), "OK");
	ck_assert_str_eq(hello(b, 1, inst), "OK");
	accuse(b, 0, 2);
	for (int i = 0; i < 2; i++)
		ck_assert_str_eq(report(b, i, "0 0 0 10 - - -"), "WAIT");
	SAYS(b, 0, "decide 2 1", "NOQUORUM");
	ck_assert_str_eq(hello(b, 2, run), "OK"); /* it has heard of all that they acknowledged */
	GOT(b, "ph", "open");
	ck_assert_str_eq(field(b, "o:3"), "");
	ck_assert_str_eq(field(b, "u:2"), "");
	SAYS(b, 0, "decide 2 1", "COMMIT");
	GOT(b, "epoch", "3");
}

CASE(rival_of_the_same_epoch_is_fenced)
{
	static char record[8192];
	char *vid;

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	vid = strstr(record, " vid ") + 5;
	vid[0] = vid[0] == 'f' ? '0' : 'f';
	ck_assert_str_eq(hello(b, 1, record), "FENCED");
}

CASE(uncommitted_view_is_dropped_in_a_new_life)
{
	static char one[8192];

	group(b, 3, "auto");
	tell(b, one, sizeof(one), "run");
	leave_out_rank_2(b);
	b->restart(b->ctx);
	SAYS(b, 1, "decide 2 0", "LIFE");
	ck_assert_str_eq(hello(b, 2, one), "OK");
	GOT(b, "epoch", "1");
	GOT(b, "ph", "run");
	ck_assert_str_eq(hello(b, 0, one), "OK");
}

CASE(spoiled_and_mismatch_fail_for_all)
{
	group(b, 2, "auto");
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "3 4 0 9 s - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "3 4 0 9 - - -"), "COMMIT");
	GOT(b, "fail", "4 LOST");
	GOT(b, "base", "5");
	acks(b, 0, 2);
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "4 5 0 20 s - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "4 5 0 20 m - -"), "COMMIT");
	GOT(b, "fail", "5 MISMATCH");
	acks(b, 0, 2);
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "6 7 0 30 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "5 6 0 30 s - -"), "COMMIT"); /* somebody completed it */
	GOT(b, "fail", "0");
	ck_assert(strstr(got(b, "l:4"), " - - 1") != NULL);
}

CASE(complaints_drop_the_one_with_more)
{
	char bad[80];

	group(b, 3, "auto");
	accuse(b, 0, 1);
	snprintf(bad, sizeof(bad), "0 0 0 5 - - 1:%s", b->inc[1]);
	ck_assert_str_eq(report(b, 0, bad), "WAIT");
	ck_assert_str_eq(report(b, 2, bad), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 2, "decide 1 1", "WAIT");
	SAYS(b, 2, "decide 1 2", "COMMIT");
	ck_assert_str_eq(field(b, "m:1"), "");
	ck_assert_str_ne(got(b, "m:0"), "");
	ck_assert_str_ne(got(b, "m:2"), "");
}

/* Two halves that lost sight of each other, and at first one rank alone has noticed. */
CASE(complaints_wait_for_those_of_others)
{
	char bad[2][80];

	group(b, 4, "auto");
	accuse(b, 2, 0);
	snprintf(bad[0], sizeof(bad[0]), "0 0 0 5 - - 2:%s,3:%s", b->inc[2], b->inc[3]);
	snprintf(bad[1], sizeof(bad[1]), "0 0 0 5 - - 0:%s,1:%s", b->inc[0], b->inc[1]);
	ck_assert_str_eq(report(b, 0, bad[0]), "WAIT");
	for (int r = 1; r < 4; r++)
		ck_assert_str_eq(report(b, r, "0 0 0 5 - - -"), "WAIT");
	for (int r = 1; r < 4; r++)
		ck_assert_str_eq(report(b, r, bad[r > 1]), "WAIT");
	SAYS(b, 0, "decide 1 2", "COMMIT");
	ck_assert_str_ne(field(b, "m:0"), "");
	ck_assert_str_ne(field(b, "m:1"), "");
	ck_assert_str_eq(field(b, "m:2"), "");
	ck_assert_str_eq(field(b, "m:3"), "");
}
