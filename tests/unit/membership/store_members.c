/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the store: who comes and goes, what an answer costs and carries. */
#include "store_talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

CASE(joiner_pends_and_is_admitted)
{
	group(b, 2, "auto");
	enlist(b, 2, 0, 0, "auto");
	twice(b, 2, "ready 1", "OK");
	GOT(b, "ph", "open");
	ck_assert_str_eq(report(b, 0, "1 1 0 9 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "1 1 0 9 - - -"), "COMMIT");
	GOT(b, "size", "2");
	ck_assert(strstr(got(b, "m:2"), " - a2:1 h") != NULL);
	acks(b, 0, 3);
	ck_assert_str_eq(field(b, "o:2"), "");
	SAYS(b, 0, "open 2 admitted 0", "OK");
	ck_assert_str_eq(report(b, 0, "4 4 4 9 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "3 4 0 9 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 2, "0 0 0 9 - - -"), "COMMIT");
	GOT(b, "size", "3");
	GOT(b, "base", "5");
	ck_assert(strstr(got(b, "m:2"), " 4 a2:1 h") != NULL);
	ck_assert(strstr(got(b, "l:3"), " - - 1,2") != NULL);
	acks(b, 0, 3);
	ck_assert_str_eq(field(b, "o:2"), b->inc[2]);
}

CASE(accused_joiner_is_dropped_though_it_reports)
{
	group(b, 1, "auto");
	enlist(b, 1, 0, 0, "auto");
	SAYS(b, 1, "ready 1", "OK");
	ck_assert_str_eq(report(b, 0, "1 1 0 9 - - -"), "COMMIT");
	acks(b, 0, 2);
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 1, "0 0 0 9 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "1 1 0 9 - - -"), "COMMIT");
	ck_assert_str_eq(field(b, "m:1"), "");
}

CASE(manual_joiner_waits_to_be_asked_for)
{
	group(b, 2, "manual");
	SAYS(b, 2, "register any a h 0 0 8 auto s", "FULL");
	enlist(b, 2, 0, 0, "manual");
	SAYS(b, 2, "ready 1", "OK");
	GOT(b, "ph", "run");
	SAYS(b, NOBODY, "ask recover 2", "REFUSED");
	SAYS(b, NOBODY, "ask extend 9", "REFUSED");
	twice(b, 0, "ask extend 3", "OK");
	GOT(b, "ph", "open");
}

CASE(leaver_is_gone_and_last_one_closes)
{
	group(b, 2, "auto");
	SAYS(b, 1, "open 1 leave 0", "OK");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 l - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "COMMIT");
	ck_assert_str_eq(field(b, "m:1"), "");
	accuse(b, 0, 0); /* again before it is active: the vow holds */
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "COMMIT");
	acks(b, 0, 1);
	SAYS(b, 0, "open 3 leave 0", "OK");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 l - -"), "CLOSED");
	SAYS(b, 9, "register any a h 0 2 8 auto s", "CLOSED");
}

/*
 * The members went on by themselves, and one leaves before all acknowledgements are here. Who was evicted is not dead and
 * has no report to give: counted as a voter for ever, it would leave a change without quorum.
 */
CASE(a_report_tells_that_the_view_was_active)
{
	group(b, 3, "auto");
	twice(b, NOBODY, "ask evict 2", "OK");
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(report(b, i, "0 0 0 5 a - -"), i < 2 ? "WAIT" : "COMMIT");
	ck_assert_str_eq(field(b, "act"), "1");
	SAYS(b, 1, "open 2 leave 0", "OK");
	ck_assert_str_eq(report(b, 1, "0 0 0 9 l - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 9 - - -"), "NOQUORUM");
	ck_assert_str_eq(report(b, 0, "0 0 0 9 a - -"), "COMMIT");
	ck_assert_str_eq(field(b, "m:1"), "");
	ck_assert_str_eq(field(b, "o:2"), "");
	acks(b, 0, 1);
}

CASE(operator_evicts_retires_forgets)
{
	group(b, 3, "auto");
	SAYS(b, NOBODY, "ask evict 5", "REFUSED");
	SAYS(b, NOBODY, "ask evict 0,1,2", "REFUSED");
	SAYS(b, NOBODY, "ask dance 1", "REFUSED");
	twice(b, NOBODY, "ask retire 1", "OK");
	ck_assert(strstr(field(b, "e:1"), "retire") != NULL);
	twice(b, NOBODY, "ask evict 2,2,2", "OK"); /* one rank, however often it is named */
	GOT(b, "ph", "open");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "COMMIT");
	ck_assert_str_eq(field(b, "m:2"), "");
	GOT(b, "e:2", "");
	SAYS(b, NOBODY, "ask forget", "REFUSED");
}

CASE(too_late_calls_learn_the_state)
{
	char line[120];

	group(b, 2, "auto");
	SAYS(b, 0, "report 1 0000 0 0 0 5 - - -", "WAIT");
	GOT(b, "ph", "run");
	ck_assert_str_eq(field(b, "r:0"), "");
	SAYS(b, 0, "open 7 heartbeat 0", "OK");
	GOT(b, "ph", "run");
	snprintf(line, sizeof(line), "open 1 x 1 1 %s", b->inc[0]); /* another inc: not accused */
	SAYS(b, 0, line, "OK");
	ck_assert_str_eq(field(b, "x:1"), "");
	SAYS(b, 0, "ack 1 0000", "WAIT");
}

CASE(peek_is_short_until_something_moves)
{
	char line[80];

	group(b, 2, "auto");
	SAYS(b, 0, "peek 0 0", "OK");
	GOT(b, "max", "8");
	snprintf(line, sizeof(line), "peek 1 %s", got(b, "rev"));
	SAYS(b, 0, line, "OK");
	GOT(b, "max", "");
	ck_assert_int_eq(b->reply.argc, 13);
	enlist(b, 2, 0, 0, "auto");
	SAYS(b, 0, line, "OK");
	ck_assert_str_ne(got(b, "j:2"), "");
	GOT(b, "max", "");
	SAYS(b, 0, "beat 1 0 busy", "OK");
	ck_assert(strstr(field(b, "t:0"), " busy") != NULL);
	SAYS(b, 1, "beat 1 0 -", "OK");
	ck_assert(*got(b, "t:0") && !strchr(got(b, "t:0"), ' '));
	GOT(b, "secret", "");
}

CASE(a_report_counts_once)
{
	group(b, 3, "auto");
	SAYS(b, 0, "open 1 x 0", "OK");
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	prove(b, 0); /* it has reported: nobody less is waited for */
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "1 1 0 5 - - -"), "WAIT"); /* with other words */
	SAYS(b, 1, "decide 1 1", "WAIT");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "COMMIT");
	GOT(b, "base", "2");
	ck_assert_str_eq(field(b, "m:0"), "");
	acks(b, 1, 3);
}

CASE(who_is_waited_for_with_force_one)
{
	char line[80];

	group(b, 5, "auto");
	accuse(b, 0, 3);
	accuse(b, 1, 4);
	accuse(b, 2, 4);					 /* by two */
	ck_assert_str_eq(report(b, 3, "0 0 0 5 - - -"), "WAIT"); /* accused, and reports */
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "WAIT");
	snprintf(line, sizeof(line), "0 0 0 5 - 4:%s -", b->inc[4]);
	ck_assert_str_eq(report(b, 0, line), "WAIT"); /* accused, now proven dead */
	SAYS(b, 0, "decide 1 1", "WAIT");
	accuse(b, 0, 2); /* the last one that was missing */
	SAYS(b, 0, "decide 1 0", "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
	ck_assert_str_eq(field(b, "m:2"), "");
	GOT(b, "m:4", "");
	ck_assert_str_ne(got(b, "m:3"), "");
}

CASE(a_new_life_waits_for_all_again)
{
	static char record[8192];

	group(b, 3, "auto");
	tell(b, record, sizeof(record), "run");
	SAYS(b, 0, "open 1 x 0", "OK");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	b->restart(b->ctx);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(hello(b, i, record), "OK");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 1, "decide 1 1", "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "COMMIT");
	b->restart(b->ctx); /* the view was not active: it is gone, and so are the acknowledgements */
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(hello(b, i, record), "OK");
	ck_assert_str_eq(field(b, "epoch"), "1");
}

CASE(an_older_copy_counts_what_it_holds)
{
	static char record[8192];

	group(b, 3, "auto");
	tell(b, record, sizeof(record), "run");
	SAYS(b, 0, "open 1 x 0", "OK");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	b->save(b->ctx);
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	b->restore(b->ctx);
	for (int i = 0; i < 3; i++)
		ck_assert_str_eq(hello(b, i, record), "OK");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "COMMIT");
}

CASE(who_asks_again_is_told_whose_ack_is_missing)
{
	char line[80];

	group(b, 3, "auto");
	SAYS(b, 0, "open 1 x 0", "OK");
	for (int i = 0; i < 3; i++)
		(void)report(b, i, "0 0 0 5 - - -");
	snprintf(line, sizeof(line), "ack 2 %s", got(b, "vid"));
	SAYS(b, 1, line, "WAIT");
	GOT(b, "wait", "");
	SAYS(b, 1, line, "WAIT");
	GOT(b, "wait", "0,2");
	SAYS(b, 2, line, "WAIT");
	SAYS(b, 1, line, "WAIT");
	GOT(b, "wait", "0");
	SAYS(b, 0, line, "ACTIVE");
	SAYS(b, 1, line, "ACTIVE"); /* its reply was lost */
}

/* ---- What changed, instead of everything ---- */

struct known {
	struct cvy_record record, news;
	char rev[24];
};

/* As a member of rank @who reads it: the whole, or what changed since @epoch and rev if the answer says so (1). */
static int read_news(struct bench *b, int who, const char *epoch, struct known *k)
{
	struct cvy_record next = { 0 };
	char line[80];
	int on;

	snprintf(line, sizeof(line), "peek %s %s", epoch, k->rev);
	SAYS(b, who, line, "OK");
	on = got(b, "on")[0] != 0;
	if (strcmp(got(b, "rev"), k->rev) != 0)
		ck_assert_int_eq(cvy_record_news(&k->news, b->reply.argc, (const char *const *)b->reply.argv), 0);
	snprintf(k->rev, sizeof(k->rev), "%s", got(b, "rev"));
	if (!got(b, "size")[0])
		return 0;
	if (on)
		ck_assert_int_eq(cvy_record_step(&next, &k->record, b->reply.argc, (const char *const *)b->reply.argv,
						 &k->news),
				 0);
	else
		ck_assert_int_eq(cvy_record_take(&next, b->reply.argc, (const char *const *)b->reply.argv), 0);
	cvy_record_clear(&k->record);
	k->record = next;
	return on;
}

static void within(const struct cvy_record *a, const struct cvy_record *b)
{
	for (int i = 0; i < a->count; i++) {
		const char *value = cvy_record_get(b, a->pair[i].field);

		if (strcmp(a->pair[i].field, "secret") == 0)
			continue;
		ck_assert_msg(value && strcmp(value, a->pair[i].value) == 0, "%s is %s and not %s", a->pair[i].field,
			      value ? value : "missing", a->pair[i].value);
	}
}

/* What was put together from changes is what the store holds. */
static void is_whole(struct bench *b, int who, struct known *k)
{
	struct known all = { .rev = "-1" };

	ck_assert_int_eq(read_news(b, who, "0", &all), 0);
	within(&all.record, &k->record);
	within(&k->record, &all.record);
	within(&all.news, &k->news);
	within(&k->news, &all.news);
	cvy_record_clear(&all.record);
	cvy_record_clear(&all.news);
}

CASE(what_changed_makes_up_the_record)
{
	struct known k = { .rev = "-1" };

	group(b, 3, "auto");
	ck_assert_int_eq(read_news(b, 0, "0", &k), 0);
	is_whole(b, 0, &k);
	accuse(b, 0, 2);
	(void)report(b, 0, "5 6 0 20 - - -");
	(void)report(b, 1, "6 6 0 25 - - -");
	SAYS(b, 0, "decide 1 1", "COMMIT");
	ck_assert_str_ne(got(b, "on"), "");
	GOT(b, "m:0", "");
	ck_assert_int_eq(read_news(b, 0, "1", &k), 1); /* a death */
	is_whole(b, 0, &k);
	acks(b, 0, 2);
	enlist(b, 3, 0, 0, "auto");
	enlist(b, 4, 0, 0, "auto");
	ck_assert_int_eq(read_news(b, 0, "2", &k), 0); /* two joiners */
	GOT(b, "gone", "-");
	ck_assert_int_eq(k.news.count, 2);
	SAYS(b, 3, "ready 2", "OK");
	(void)report(b, 0, "6 6 0 25 - - -");
	(void)report(b, 1, "6 6 0 25 - - -");
	ck_assert_int_eq(read_news(b, 0, "2", &k), 1); /* one of them is pending */
	GOT(b, "gone", "j:3");
	is_whole(b, 0, &k);
	SAYS(b, NOBODY, "ask retire 1", "OK");
	SAYS(b, 0, "open 3 again 0", "OK");
	(void)report(b, 0, "7 7 7 25 - - -");
	(void)report(b, 1, "7 7 7 25 - - -");
	(void)report(b, 3, "0 0 0 25 - - -");
	ck_assert_int_eq(read_news(b, 0, "3", &k), 0); /* the view before was never active: all of it */
	is_whole(b, 0, &k);
	cvy_record_clear(&k.record);
	cvy_record_clear(&k.news);
}

CASE(what_changed_long_ago_is_told_in_full)
{
	struct known k = { .rev = "-1" };

	group(b, 2, "manual");
	(void)read_news(b, 0, "0", &k);
	for (int i = 0; i < 600; i++) /* two processes ask for one rank in turns */
		enlist(b, i % 2 ? 3 : 3 + CASE_RANKS, 0, 0, "manual");
	SAYS(b, NOBODY, "ask recover 0,1", "OK");
	ck_assert_int_eq(read_news(b, 0, "1", &k), 0);
	GOT(b, "gone", "");
	ck_assert_int_eq(k.news.count, 3);
	for (int i = 2; i < 8; i++)
		enlist(b, i, 0, 0, "auto");
	ck_assert_int_eq(read_news(b, 0, "1", &k), 0);
	GOT(b, "gone", "-");
	ck_assert_int_eq(k.news.count, 8);
	cvy_record_clear(&k.record);
	cvy_record_clear(&k.news);
}
