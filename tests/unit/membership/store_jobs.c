/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group belongs to a job: who forms one never joins another's, a name goes from an ended group to the next, and the
 * founders of one fit together.
 */
#include "store_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a founder sends after its secret: job, age, lapse, gone, groups, tell. */
#define FRESH "- 0 0 - - 0"

static void says(struct bench *b, int who, const char *status, const char *format, const char *a, const char *c)
{
	char line[512];

	snprintf(line, sizeof(line), format, a, c);
	ck_assert_msg(strcmp(say(b, who, line), status) == 0, "%s: %s and not %s: %s", line, b->reply.argv[0], status,
		      got(b, "why"));
}

static void why_has(struct bench *b, const char *text)
{
	ck_assert_msg(strstr(got(b, "why"), text) != NULL, "\"%s\" is not in: %s", text, got(b, "why"));
	ck_assert_int_lt((int)strlen(got(b, "why")), (int)sizeof(((struct covey_error_info *)0)->cause));
}

static void close_group(struct bench *b, int members)
{
	SAYS(b, 0, "open 1 leave 0", "OK");
	for (int i = 0; i < members; i++)
		(void)report(b, i, "0 0 0 5 l - -");
	ck_assert_str_eq(field(b, "ph"), "closed");
}

CASE(a_second_set_does_not_join_a_running_group)
{
	char gid[40], rev[24];

	group(b, 2, "auto");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	snprintf(rev, sizeof(rev), "%s", field(b, "rev"));
	SAYS(b, 2, "register 2 proc:7.7.7,a h 1 4 8 auto s " FRESH, "TAKEN");
	GOT(b, "kind", "run");
	GOT(b, "count", "2");
	why_has(b, "world is 2 there and 4 here");
	ck_assert_str_ne(got(b, "m:0"), "");
	ck_assert_str_ne(got(b, "m:1"), "");
	SAYS(b, 9, "register 1 a h 1 2 8 auto s " FRESH, "TAKEN"); /* of the same size */
	SAYS(b, 9, "register any a h 1 2 8 auto s", "TAKEN");
	SAYS(b, 9, "register 1 a h 1 2 8 auto s - 0 0 - - 1", "TAKEN"); /* and this is not the group's fault */
	ck_assert_str_eq(field(b, "rev"), rev);
	GOT(b, "ph", "run");
	GOT(b, "gid", gid);
	SAYS(b, 2, "register any a h 0 4 8 auto s", "OK"); /* a joiner that says so */
}

CASE(a_closed_group_is_followed_by_the_next)
{
	static char record[8192];
	char gid[40];
	long incs;

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	close_group(b, 2);
	incs = atol(field(b, "incs"));
	SAYS(b, 8, "register 0 a h 0 3 8 auto s", "CLOSED");
	SAYS(b, 8, "register 0 a h 1 3 8 auto s " FRESH, "OK");
	ck_assert_str_ne(got(b, "gid"), gid);
	GOT(b, "world", "3");
	GOT(b, "epoch", "0");
	ck_assert_int_gt(atol(got(b, "inc")), incs); /* a late proof of the death of an old one hits nobody */
	SAYS(b, 0, "beat 1 0 -", "FENCED");
	ck_assert_str_eq(hello(b, 0, record), "FENCED"); /* nor does a late member take the name back */
	ck_assert_str_eq(hello(b, 1, record), "FENCED");
	GOT(b, "ph", "form");
}

CASE(the_dead_make_room_for_a_new_set)
{
	static char record[8192];
	char gid[40], both[128], one[128];

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	snprintf(one, sizeof(one), "%s,0:%s", gid, b->inc[0]);
	snprintf(both, sizeof(both), "%s,0:%s,1:%s", gid, b->inc[0], b->inc[1]);
	says(b, 8, "TAKEN", "register 0 a h 1 2 8 auto s - 0 0 %s - 0%s", one, "");
	GOT(b, "count", "1");
	GOT(b, "m:0", "");
	ck_assert_str_ne(got(b, "m:1"), "");
	says(b, 8, "OK", "register 0 a h 1 2 8 auto s - 0 0 %s - 0%s", both, "");
	ck_assert_str_ne(got(b, "gid"), gid);
	snprintf(b->inc[8], sizeof(b->inc[8]), "%s", got(b, "inc"));
	GOT(b, "j:1", "");
	ck_assert_str_eq(hello(b, 1, record), "FENCED");
	SAYS(b, 9, "register 1 a h 1 2 8 auto s " FRESH, "OK");
	says(b, NOBODY, "OK", "prove 0 %s pidfd%s", b->inc[0], ""); /* the launcher of the old one is late */
	ck_assert_str_ne(field(b, "j:0"), "");
	ck_assert_str_eq(got(b, "d:0"), "");
}

/* A stranger that says that they are dead proves nothing about incarnations that are not there. */
CASE(a_proof_of_others_makes_no_room)
{
	group(b, 2, "auto");
	says(b, 8, "TAKEN", "register 0 a h 1 2 8 auto s - 0 0 %s,0:77,1:78 - 0%s", b->gid, "");
	GOT(b, "count", "2");
	ck_assert_str_eq(field(b, "ph"), "run");
}

/* Who waited for the group that has ended is not taken for one of the next. */
CASE(a_joiner_of_the_old_group_is_none_of_the_next)
{
	char gid[40];

	group(b, 2, "auto");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	close_group(b, 2);
	SAYS(b, 8, "register 0 a h 1 2 8 auto s " FRESH, "OK");
	says(b, 9, "CLOSED", "register 1 a h 0 2 8 auto s - 0 0 - %s 0%s", gid, "");
	says(b, 9, "CLOSED", "register 1 a h 1 2 8 auto s - 0 0 - x,%s 0%s", gid, "");
	SAYS(b, 9, "register 1 a h 1 2 8 auto s - 0 0 - x 0", "OK");
}

/* A store that has an older copy is told, by who knows that its group came after. */
CASE(the_later_group_wins_over_an_older_copy)
{
	static char record[8192];
	char gid[40];

	group(b, 2, "auto");
	b->save(b->ctx);
	close_group(b, 2);
	for (int i = 0; i < 2; i++)
		enlist(b, i + 8, 1, 2, "auto");
	for (int i = 0; i < 2; i++)
		SAYS(b, i + 8, "ready 0", "OK");
	acks(b, 8, 10);
	tell(b, record, sizeof(record), "run");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	b->restore(b->ctx);
	ck_assert_str_eq(hello(b, 8, record), "LIFE"); /* if nobody of it speaks in 5 s: test_store.c */
	b->flush(b->ctx);
	ck_assert_str_eq(hello(b, 8, record), "OK");
	GOT(b, "gid", gid);
	GOT(b, "ph", "run");
	ck_assert_str_eq(hello(b, 9, record), "OK");
}

CASE(founders_with_another_world_are_told)
{
	enlist(b, 0, 1, 3, "auto");
	SAYS(b, 2, "register 2 proc:7.7.7,a h 1 4 8 auto s " FRESH, "TAKEN");
	GOT(b, "kind", "value");
	ck_assert_str_ne(got(b, "j:0"), "");
	SAYS(b, 0, "peek 0 -1", "OK"); /* it is not told before the other one is sure */
	SAYS(b, 2, "register 2 proc:7.7.7,a h 1 4 8 auto s - 0 0 - - 1", "REFUSED");
	GOT(b, "err", "INVAL");
	why_has(b, "world is 3 in rank 0 and 4 in rank 2 (process 7)");
	SAYS(b, 0, "peek 0 -1", "REFUSED");
	why_has(b, "world is 3 in rank 0 and 4 in rank 2 (process 7)");
	SAYS(b, 0, "ready 0", "REFUSED");
	SAYS(b, 0, "beat 0 -1 -", "REFUSED");
	SAYS(b, 1, "register 1 a h 1 3 8 auto s - 60000 0 - - 0", "REFUSED"); /* of the same launch */
	why_has(b, "world is 3");
	SAYS(b, 1, "register 1 a h 1 3 8 auto s - 0 0 - - 0", "OK"); /* started after that */
	GOT(b, "ph", "form");
}

CASE(a_rank_given_twice_is_told)
{
	SAYS(b, 0, "register 0 proc:5.5.5,a h 1 2 8 auto s " FRESH, "OK");
	snprintf(b->inc[0], sizeof(b->inc[0]), "%s", got(b, "inc"));
	snprintf(b->life[0], sizeof(b->life[0]), "%s", got(b, "life"));
	snprintf(b->gid, sizeof(b->gid), "%s", got(b, "gid"));
	SAYS(b, 8, "register 0 proc:6.6.6,a h 1 2 8 auto s " FRESH, "TAKEN");
	GOT(b, "kind", "rank");
	GOT(b, "count", "1");
	SAYS(b, 8, "register 0 proc:6.6.6,a h 1 2 8 auto s - 0 0 - - 1", "REFUSED");
	GOT(b, "err", "BUSY");
	why_has(b, "rank 0 of 2 was given to two processes: process 5 has it, process 6 asks for it");
	SAYS(b, 0, "peek 0 -1", "REFUSED");
}

CASE(a_dead_founder_makes_room)
{
	enlist(b, 0, 1, 2, "auto");
	says(b, 8, "OK", "register 0 a h 1 2 8 auto s - 0 0 %s,0:%s - 0", b->gid, b->inc[0]);
	SAYS(b, 0, "beat 0 -1 -", "LIFE"); /* its place is another's */
	enlist(b, 1, 1, 2, "auto");
	says(b, 2, "TAKEN", "register any a h 1 2 8 auto s %s%s", FRESH, "");
	GOT(b, "kind", "rank");
	why_has(b, "one too many");
	says(b, 2, "OK", "register any a h 1 2 8 auto s - 0 0 %s,1:%s - 0", b->gid, b->inc[1]);
	GOT(b, "rank", "1");
}

CASE(settings_that_must_be_alike_are_compared)
{
	SAYS(b, 0, "register 0 a h 1 2 8 auto s " FRESH " slot_bytes=8192 algo=none", "OK");
	snprintf(b->inc[0], sizeof(b->inc[0]), "%s", got(b, "inc"));
	SAYS(b, 1, "register 1 a h 1 2 8 auto s " FRESH " slot_bytes=4096 algo=none", "TAKEN");
	why_has(b, "slot_bytes is 8192 in rank 0 and 4096 in rank 1");
	SAYS(b, 1, "register 1 a h 0 2 8 auto s " FRESH " slot_bytes=8192 algo=allreduce=chain", "REFUSED");
	GOT(b, "err", "INVAL");
	why_has(b, "algo is none in the group and allreduce=chain in rank 1");
	SAYS(b, 1, "register 1 a h 1 2 8 auto s " FRESH " algo=none slot_bytes=8192 later=3", "OK");
	says(b, 8, "OK", "register 0 a h 1 2 8 auto s - 0 0 %s,0:%s - 0 slot_bytes=8192", got(b, "gid"), b->inc[0]);
}

CASE(long_values_are_shown_where_they_differ)
{
	char same[201], line[1024];

	memset(same, 'x', 200);
	same[200] = '\0';
	snprintf(line, sizeof(line), "register 0 a h 1 2 8 auto s " FRESH " device_window_bytes=%sFIRST", same);
	SAYS(b, 0, line, "OK");
	snprintf(line, sizeof(line), "register 1 a h 1 2 8 auto s " FRESH " device_window_bytes=%sOTHER%s", same, same);
	SAYS(b, 1, line, "TAKEN");
	why_has(b, "xFIRST");
	why_has(b, "xOTHER");
}

CASE(two_jobs_do_not_form_one_group)
{
	SAYS(b, 0, "register 0 a h 1 2 8 auto s A 0 0 - - 0", "OK");
	snprintf(b->inc[0], sizeof(b->inc[0]), "%s", got(b, "inc"));
	snprintf(b->life[0], sizeof(b->life[0]), "%s", got(b, "life"));
	snprintf(b->gid, sizeof(b->gid), "%s", got(b, "gid"));
	SAYS(b, 1, "register 1 a h 1 2 8 auto s B 0 0 - - 0", "TAKEN");
	GOT(b, "kind", "job");
	why_has(b, "job A");
	why_has(b, "job B");
	SAYS(b, 1, "register 1 a h 1 2 8 auto s B 0 0 - - 1", "TAKEN"); /* the first job goes on */
	SAYS(b, 0, "peek 0 -1", "OK");
	SAYS(b, 9, "register 1 a h 1 2 8 auto s - 0 0 - - 0", "OK"); /* where one does not say, there is no telling */
}

/* The store lost a founder, or the group was formed again without it: it is one of its own. */
CASE(a_founder_that_comes_back_is_no_stranger)
{
	char gid[40];

	group(b, 2, "auto");
	snprintf(gid, sizeof(gid), "%s", b->gid);
	says(b, 9, "BUSY", "register 1 a h 1 2 8 auto s - 0 0 - x,%s 0%s", gid, "");
	why_has(b, "rank 1 is a member, incarnation");
	says(b, 2, "OK", "register any a h 1 2 8 auto s - 0 0 - %s 0%s", gid, "");
	GOT(b, "rank", "2");
}

CASE(x_late_gone)
{
	char line[200];

	group(b, 2, "auto");
	snprintf(line, sizeof(line), "register 2 a h 1 4 8 auto s - 0 0 %s,0:%s,1:%s - 0", b->gid, b->inc[0],
		 b->inc[1]);
	b->flush(b->ctx);
	for (int i = 8; i < 10; i++)
		enlist(b, i, 1, 2, "auto");
	for (int i = 8; i < 10; i++)
		SAYS(b, i, "ready 0", "OK");
	acks(b, 8, 10);
	SAYS(b, 2, line, "TAKEN");
}

CASE(x_any_joiner_in_form)
{
	enlist(b, 0, 1, 2, "auto");
	SAYS(b, 10, "register any proc:7.7.7,a h 0 2 8 auto s", "OK");
	GOT(b, "rank", "2");
	SAYS(b, 1, "register 1 proc:8.8.8,a h 1 2 8 auto s - 0 0 - - 1", "OK");
}

CASE(x_never_takes_founder)
{
	enlist(b, 0, 1, 2, "auto");
	enlist(b, 1, 1, 2, "auto");
	(void)say(b, 9, "register 1 a h 0 2 8 auto s OTHERJOB 0 0 - - 0");
	SAYS(b, 1, "beat 0 -1 -", "OK");
}

CASE(x_u_voter)
{
	static char record[8192];

	group(b, 2, "auto");
	enlist(b, 2, 0, 2, "auto");
	SAYS(b, 2, "ready 1", "OK");
	GOT(b, "ph", "open");
	for (int i = 0; i < 2; i++)
		(void)report(b, i, "0 0 0 5 - - -");
	acks(b, 0, 3);
	SAYS(b, 0, "open 2 admitted 0", "OK");
	for (int i = 0; i < 3; i++)
		(void)report(b, i, "1 1 1 5 - - -");
	ck_assert_str_eq(field(b, "epoch"), "3");
	tell(b, record, sizeof(record), "inst");
	b->restart(b->ctx);
	ck_assert_str_eq(hello(b, 0, record), "OK");
	ck_assert_str_eq(hello(b, 1, record), "OK");
	accuse(b, 0, 2);
	for (int i = 0; i < 2; i++)
		(void)report(b, i, "1 1 0 5 - - -");
	SAYS(b, 0, "decide 3 1", "COMMIT");
	for (int i = 0; i < 2; i++)
		prove(b, i);
	SAYS(b, 9, "register 1 a h 1 2 8 auto s " FRESH, "TAKEN");
}

/* A repeat of a voter's register comes late: its address gets a number that no process has. That gives up nothing. */
CASE(late_register_gives_up_nothing)
{
	char line[200], record[8192];

	group(b, 1, "auto");
	SAYS(b, 1, "register any a1:1 h 0 1 8 auto sec", "OK");
	snprintf(b->inc[1], sizeof(b->inc[1]), "%.20s", got(b, "inc"));
	snprintf(b->life[1], sizeof(b->life[1]), "%.60s", got(b, "life"));
	SAYS(b, 1, "ready 1", "OK");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "COMMIT");
	acks(b, 0, 2);
	SAYS(b, 0, "open 2 admitted 0", "OK");
	(void)report(b, 0, "1 1 1 5 - - -");
	ck_assert_str_eq(report(b, 1, "1 1 1 5 - - -"), "COMMIT");
	acks(b, 0, 2);
	tell(b, record, sizeof(record), "run");
	SAYS(b, 1, "register any a1:1 h 0 1 8 auto sec", "OK");
	b->save(b->ctx);
	b->restore(b->ctx); /* another server has that state, and 0 alone goes there */
	ck_assert_str_eq(hello(b, 0, record), "OK");
	snprintf(line, sizeof(line), "open 3 lease 1 1 %s", b->inc[1]);
	SAYS(b, 0, line, "OK");
	(void)report(b, 0, "1 1 1 9 - - -");
	ck_assert_str_eq(say(b, 0, "decide 3 2"), "NOQUORUM");
}

/* A voter dies, a joiner takes its rank before a view without the voter is active, and dies: each is proven dead. */
CASE(joiner_waits_for_the_rank_of_a_voter)
{
	group(b, 3, "auto");
	prove(b, 1);
	(void)report(b, 0, "0 0 0 5 - - -");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "COMMIT");
	enlist(b, 9, 0, 0, "auto");
	SAYS(b, 9, "ready 2", "OK");
	prove(b, 2);
	(void)report(b, 0, "0 0 0 5 - - -");
	prove(b, 9);
	accuse(b, 0, 9);
	(void)report(b, 0, "0 0 0 5 - - -");
	ck_assert_str_ne(say(b, 0, "decide 3 2"), "NOQUORUM");
}
