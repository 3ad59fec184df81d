/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each case begins with an empty server. `who` is a slot: its rank is who % CASE_RANKS, so that slot 9
 * is the next process at rank 1. Calls are made twice where a repeat could do harm.
 */
#include "store_cases.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

#define NOBODY (-1)
#define WORDS 200
#define GLUE '\x01' /* a space inside a word of say() */

/* One call: @line is split at spaces. From NOBODY it comes from outside. */
static const char *say(struct bench *b, int who, const char *line)
{
	char text[8192], rank[16] = "-", nonce[16] = "-", rnd[40];
	const char *argv[WORDS], *inc = "-", *gid = "-", *life = "-";
	int argc = 7;

	snprintf(text, sizeof(text), "%s", line);
	snprintf(rnd, sizeof(rnd), "%032lx", ++b->random * 0x9e3779b97f4a7c15ul);
	argv[0] = strtok(text, " ");
	if (who >= 0) {
		snprintf(nonce, sizeof(nonce), "n%d", who);
		if (strcmp(argv[0], "register") != 0) {
			snprintf(rank, sizeof(rank), "%d", who % CASE_RANKS);
			inc = b->inc[who];
			gid = b->gid;
			life = b->life[who][0] ? b->life[who] : "-";
		}
	}
	argv[1] = gid;
	argv[2] = rank;
	argv[3] = inc;
	argv[4] = nonce;
	argv[5] = life;
	argv[6] = rnd;
	while (argc < WORDS && (argv[argc] = strtok(NULL, " "))) {
		for (char *at = strchr(argv[argc], GLUE); at; at = strchr(at, GLUE))
			*at = ' ';
		argc++;
	}
	memory_reply_clear(&b->reply);
	ck_assert_msg(b->call(b->ctx, argc, argv, &b->reply) == 0, "%s: %s", line,
		      b->reply.argv ? b->reply.argv[0] : "?");
	return b->reply.argv[0];
}

static const char *got(struct bench *b, const char *field)
{
	const char *value = memory_reply_get(&b->reply, field);

	return value ? value : "";
}

#define SAYS(b, who, line, status) ck_assert_str_eq(say(b, who, line), status)
#define GOT(b, field, value) ck_assert_str_eq(got(b, field), value)

static void twice(struct bench *b, int who, const char *line, const char *status)
{
	SAYS(b, who, line, status);
	SAYS(b, who, line, status);
}

/* A field of the hash, seen from outside. */
static const char *field(struct bench *b, const char *name)
{
	SAYS(b, NOBODY, "peek 0 -1", "OK");
	return got(b, name);
}

static void enlist(struct bench *b, int who, int create, int world, const char *policy)
{
	char line[160];

	snprintf(line, sizeof(line), "register %d a%d:1 h %d %d %d %s sec", who % CASE_RANKS, who, create, world,
		 CASE_RANKS, policy);
	twice(b, who, line, "OK");
	snprintf(b->inc[who], sizeof(b->inc[who]), "%s", got(b, "inc"));
	snprintf(b->life[who], sizeof(b->life[who]), "%s", got(b, "life"));
	snprintf(b->gid, sizeof(b->gid), "%s", got(b, "gid"));
}

static void acks(struct bench *b, int from, int to)
{
	char line[80], epoch[24], vid[40];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(vid, sizeof(vid), "%s", got(b, "vid"));
	snprintf(line, sizeof(line), "ack %s %s", epoch, vid);
	for (int i = from; i < to; i++)
		twice(b, i, line, i == to - 1 ? "ACTIVE" : "WAIT");
}

static void group(struct bench *b, int world, const char *policy)
{
	for (int i = 0; i < world; i++)
		enlist(b, i, 1, world, policy);
	for (int i = 0; i < world; i++)
		twice(b, i, "ready 0", "OK");
	GOT(b, "ph", "inst");
	GOT(b, "epoch", "1");
	acks(b, 0, world);
	ck_assert_str_eq(field(b, "ph"), "run");
}

static const char *report(struct bench *b, int who, const char *rest)
{
	char line[200], epoch[24];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(line, sizeof(line), "report %s %s %s", epoch, got(b, "vid"), rest);
	return say(b, who, line);
}

static void accuse(struct bench *b, int by, int victim)
{
	char line[120], epoch[24];

	snprintf(epoch, sizeof(epoch), "%s", field(b, "epoch"));
	snprintf(line, sizeof(line), "open %s heartbeat 1 %d %s", epoch, victim % CASE_RANKS, b->inc[victim]);
	twice(b, by, line, "OK");
	GOT(b, "ph", "open");
}

static void prove(struct bench *b, int victim)
{
	char line[80];

	snprintf(line, sizeof(line), "prove %d %s pidfd", victim % CASE_RANKS, b->inc[victim]);
	twice(b, NOBODY, line, "OK");
}

/* hello with the record as the store holds it now, kept in @record by tell(). */
static void tell(struct bench *b, char *record, size_t bytes, const char *ph)
{
	int pairs = 1;
	char *at = record + 12;

	(void)field(b, "epoch");
	at += snprintf(at, bytes - 12, " ph %s secret sec", ph);
	for (int i = 1; i + 1 < b->reply.argc; i += 2) {
		const char *f = b->reply.argv[i], *v = b->reply.argv[i + 1];

		if (strcmp(f, "ph") == 0 || strcmp(f, "act") == 0 || strcmp(f, "srv") == 0)
			continue;
		at += snprintf(at, bytes - (size_t)(at - record), " %s ", f);
		for (; *v; v++)
			*at++ = *v == ' ' ? GLUE : *v;
		*at = '\0';
		pairs++;
	}
	memset(record, ' ', 12);
	memcpy(record, "hello", 5);
	at = record + 6;
	at[snprintf(at, 6, "%d", pairs + 1)] = ' ';
}

static const char *hello(struct bench *b, int who, const char *record)
{
	const char *status = say(b, who, record);

	if (strcmp(status, "OK") == 0)
		snprintf(b->life[who], sizeof(b->life[who]), "%s", got(b, "life"));
	return status;
}

/* ---- Cases ---- */

static void forms_when_world_is_ready(struct bench *b)
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

static void prologue_refuses(struct bench *b)
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

static void accused_goes_with_force_one(struct bench *b)
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

static void minority_has_no_quorum_until_proof(struct bench *b)
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

/* Rank 2 lives, but the members of view 2 have agreed without it. */
static void who_was_removed_has_no_vote_once_members_went_on(struct bench *b)
{
	char line[80];

	group(b, 3, "auto");
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
	snprintf(line, sizeof(line), "0 0 0 5 o 1:%s -", b->inc[1]);
	ck_assert_str_eq(report(b, 0, line), "NOQUORUM");
	GOT(b, "need", "2");
	snprintf(line, sizeof(line), "0 0 0 5 oa 1:%s -", b->inc[1]);
	ck_assert_str_eq(report(b, 0, line), "COMMIT");
	GOT(b, "epoch", "3");
	acks(b, 0, 1);
}

static void half_is_enough_while_sure(struct bench *b)
{
	group(b, 2, "auto");
	accuse(b, 0, 1);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
}

static void half_is_not_enough_in_a_new_life(struct bench *b)
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
	SAYS(b, 0, "decide 1 2", "COMMIT");
}

static void emptied_store_is_told(struct bench *b)
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

static void greater_view_wins_and_rival_is_fenced(struct bench *b)
{
	static char one[8192], two[8192];

	group(b, 3, "auto");
	tell(b, one, sizeof(one), "run");
	b->save(b->ctx);
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
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
static void reports_stand_when_their_view_is_told_active(struct bench *b)
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

static void rival_of_the_same_epoch_is_fenced(struct bench *b)
{
	static char record[8192];
	char *vid;

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	vid = strstr(record, " vid ") + 5;
	vid[0] = vid[0] == 'f' ? '0' : 'f';
	ck_assert_str_eq(hello(b, 1, record), "FENCED");
}

static void uncommitted_view_is_dropped_in_a_new_life(struct bench *b)
{
	static char one[8192];

	group(b, 3, "auto");
	tell(b, one, sizeof(one), "run");
	accuse(b, 0, 2);
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "WAIT");
	SAYS(b, 0, "decide 1 1", "COMMIT");
	b->restart(b->ctx);
	SAYS(b, 1, "decide 2 0", "LIFE");
	ck_assert_str_eq(hello(b, 2, one), "OK");
	GOT(b, "epoch", "1");
	GOT(b, "ph", "run");
	ck_assert_str_eq(hello(b, 0, one), "OK");
}

static void spoiled_and_mismatch_fail_for_all(struct bench *b)
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

static void complaints_drop_the_one_with_more(struct bench *b)
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
static void complaints_wait_for_those_of_others(struct bench *b)
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

static void joiner_pends_and_is_admitted(struct bench *b)
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

static void accused_joiner_is_dropped_though_it_reports(struct bench *b)
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

static void manual_joiner_waits_to_be_asked_for(struct bench *b)
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

static void leaver_is_gone_and_last_one_closes(struct bench *b)
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
	SAYS(b, 9, "register any a h 1 2 8 auto s", "CLOSED");
}

/*
 * The members went on by themselves, and one leaves before all acknowledgements are here. Who was evicted is not dead and
 * has no report to give: counted as a voter for ever, it would leave a change without quorum.
 */
static void a_report_tells_that_the_view_was_active(struct bench *b)
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

static void operator_evicts_retires_forgets(struct bench *b)
{
	group(b, 3, "auto");
	SAYS(b, NOBODY, "ask evict 5", "REFUSED");
	SAYS(b, NOBODY, "ask evict 0,1,2", "REFUSED");
	SAYS(b, NOBODY, "ask dance 1", "REFUSED");
	twice(b, NOBODY, "ask retire 1", "OK");
	ck_assert(strstr(field(b, "e:1"), "retire") != NULL);
	twice(b, NOBODY, "ask evict 2", "OK");
	GOT(b, "ph", "open");
	ck_assert_str_eq(report(b, 2, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 0, "0 0 0 5 - - -"), "WAIT");
	ck_assert_str_eq(report(b, 1, "0 0 0 5 - - -"), "COMMIT");
	ck_assert_str_eq(field(b, "m:2"), "");
	GOT(b, "e:2", "");
	SAYS(b, NOBODY, "ask forget", "REFUSED");
}

static void too_late_calls_learn_the_state(struct bench *b)
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

static void peek_is_short_until_something_moves(struct bench *b)
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
	GOT(b, "secret", "");
}

static void a_report_counts_once(struct bench *b)
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

static void who_is_waited_for_with_force_one(struct bench *b)
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

static void a_new_life_waits_for_all_again(struct bench *b)
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

static void an_older_copy_counts_what_it_holds(struct bench *b)
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

static void who_asks_again_is_told_whose_ack_is_missing(struct bench *b)
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

static void what_changed_makes_up_the_record(struct bench *b)
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

static void what_changed_long_ago_is_told_in_full(struct bench *b)
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

const struct store_case store_cases[] = {
#define CASE(fn) \
	{ \
#fn, fn \
	}
	CASE(forms_when_world_is_ready),
	CASE(prologue_refuses),
	CASE(accused_goes_with_force_one),
	CASE(minority_has_no_quorum_until_proof),
	CASE(who_was_removed_has_no_vote_once_members_went_on),
	CASE(half_is_enough_while_sure),
	CASE(half_is_not_enough_in_a_new_life),
	CASE(emptied_store_is_told),
	CASE(greater_view_wins_and_rival_is_fenced),
	CASE(reports_stand_when_their_view_is_told_active),
	CASE(rival_of_the_same_epoch_is_fenced),
	CASE(uncommitted_view_is_dropped_in_a_new_life),
	CASE(spoiled_and_mismatch_fail_for_all),
	CASE(complaints_drop_the_one_with_more),
	CASE(complaints_wait_for_those_of_others),
	CASE(joiner_pends_and_is_admitted),
	CASE(accused_joiner_is_dropped_though_it_reports),
	CASE(manual_joiner_waits_to_be_asked_for),
	CASE(leaver_is_gone_and_last_one_closes),
	CASE(a_report_tells_that_the_view_was_active),
	CASE(operator_evicts_retires_forgets),
	CASE(too_late_calls_learn_the_state),
	CASE(peek_is_short_until_something_moves),
	CASE(a_report_counts_once),
	CASE(who_is_waited_for_with_force_one),
	CASE(a_new_life_waits_for_all_again),
	CASE(an_older_copy_counts_what_it_holds),
	CASE(who_asks_again_is_told_whose_ack_is_missing),
	CASE(what_changed_makes_up_the_record),
	CASE(what_changed_long_ago_is_told_in_full),
#undef CASE
};
const int store_case_count = (int)(sizeof(store_cases) / sizeof(store_cases[0]));
