/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process whose rank, or whose group's name, others have: what it asks, whom it believes, and what it says in the end.
 * The store's answers and the state of processes are made up; so is the time.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../suite.h"
#include "clock.h"
#include "group.h"
#include "proc.h"

#define STATE "|gid|g|life|1.a|ph|run|epoch|1|vid|aa|rev|1"
#define TWO "|m:0|1 0 proc:5.6.7,a h|m:1|2 0 proc:8.9.7,b far"
#define NAME "a-name-of-a-group-that-is-as-long-as-a-name-of-a-group-can-be-64"

static struct cvy_group_state *g;
static struct cvy_actions acts;
static uint64_t now, id;
static char sent[64][200]; /* words of the last call */
static int words;

static void step(const struct cvy_event *e)
{
	cvy_actions_clear(&acts);
	cvy_group_step(g, e, now, &acts);
	for (int i = 0; i < acts.count; i++) {
		if (acts.item[i].kind != CVY_DO_CALL)
			continue;
		ck_assert_str_eq(acts.item[i].argv[0], "register");
		id = acts.item[i].id;
		words = acts.item[i].argc;
		for (int k = 0; k < words; k++)
			snprintf(sent[k], sizeof(sent[k]), "%s", acts.item[i].argv[k]);
	}
}

static const struct cvy_action *did(int kind)
{
	for (int i = 0; i < acts.count; i++)
		if (acts.item[i].kind == kind)
			return &acts.item[i];
	return NULL;
}

static void pass(int ms)
{
	struct cvy_event tick = { .kind = CVY_EV_TICK, .rank = -1 };

	now += (uint64_t)ms * CVY_MS;
	step(&tick);
}

static void begin(int lease_ms)
{
	struct cvy_group_args args = { .rank = 0,
				       .world = 4,
				       .max_ranks = 8,
				       .addr = "x",
				       .host = "h",
				       .name = NAME,
				       .job = "B",
				       .alike = "slot_bytes=4096 algo=none",
				       .lease_ms = lease_ms,
				       .join_ms = 20000,
				       .nonce = 7,
				       .seed = 1 };
	struct cvy_event up = { .kind = CVY_EV_STORE_UP, .rank = -1 };
	struct cvy_event join = { .kind = CVY_EV_API, .api = CVY_API_JOIN, .rank = -1, .text = "proc:1.2.3" };

	now = 100000 * CVY_MS;
	g = cvy_group_new(&args, now);
	step(&up);
	step(&join);
}

static void done(void)
{
	cvy_actions_clear(&acts);
	cvy_group_free(g);
	g = NULL;
}

/* The answer to the call that is under way; t: of the ranks 0 and 1 are @young and @old ms old. */
static void told(const char *kind, const char *why, int young, int old, const char *members)
{
	static char copy[2048];
	const char *argv[64];
	struct cvy_event e = { .kind = CVY_EV_REPLY, .rank = -1 };

	snprintf(copy, sizeof(copy), "TAKEN" STATE "|kind|%s|why|%s|now|%d|t:0|%d -|t:1|%d -%s|count|2", kind, why,
		 50000, 50000 - young, 50000 - old, members);
	for (char *w = strtok(copy, "|"); w; w = strtok(NULL, "|"))
		argv[e.argc++] = w;
	e.argv = argv;
	e.id = id;
	ck_assert_uint_ne(id, 0);
	id = 0;
	step(&e);
}

static void found(int rank, const char *who, const char *addr, int what)
{
	const char *argv[] = { who };
	struct cvy_event e = {
		.kind = CVY_EV_LOOKED, .rank = rank, .argc = 1, .argv = argv, .text = addr, .source = what
	};

	step(&e);
}

static void ended(int err, const char *text)
{
	const struct cvy_action *a = did(CVY_DO_JOINED);

	ck_assert_ptr_nonnull(a);
	ck_assert_int_eq(a->err, err);
	ck_assert_msg(strstr(a->text, text) != NULL, "\"%s\" is not in: %s", text, a->text);
	ck_assert_uint_lt(strlen(a->text), sizeof(((struct covey_error_info *)0)->cause) - 1);
}

TEST(a_founder_says_who_it_is)
{
	begin(5000);
	ck_assert_str_eq(sent[8], "proc:1.2.3,x");
	ck_assert_str_eq(sent[15], "B");
	ck_assert_str_eq(sent[17], "0"); /* it has heard nothing, so silence is no proof */
	ck_assert_str_eq(sent[18], "-");
	ck_assert_str_eq(sent[20], "0");
	ck_assert_str_eq(sent[21], "slot_bytes=4096");
	ck_assert_str_eq(sent[22], "algo=none");
	ck_assert_int_eq(words, 23);
}

TEST(those_in_the_way_are_looked_up_and_the_dead_named)
{
	int looks = 0;

	begin(5000);
	told("run", "world is 2 there and 4 here", 300, 400, TWO);
	for (int i = 0; i < acts.count; i++)
		looks += acts.item[i].kind == CVY_DO_LOOK;
	ck_assert_int_eq(looks, 2);
	ck_assert_str_eq(did(CVY_DO_LOOK)->argv[0], "0:1");
	ck_assert_str_eq(did(CVY_DO_LOOK)->text, "proc:5.6.7,a");
	ck_assert_str_eq(did(CVY_DO_LOOK)->host, "h");
	ck_assert_uint_eq(id, 0);
	found(0, "0:1", "proc:5.6.7,a", CVY_PROC_GONE);
	ck_assert_str_eq(sent[18], "g,0:1"); /* at once */
	told("run", "world is 2 there and 4 here", 300, 400, TWO);
	found(0, "0:1", "proc:5.6.7,a", CVY_PROC_GONE);
	found(1, "1:2", "proc:8.9.7,b", CVY_PROC_NOT_SEEN);
	ck_assert_str_eq(sent[18], "g,0:1");
	ck_assert_ptr_null(did(CVY_DO_JOINED));
}

TEST(a_process_that_lives_ends_the_join)
{
	begin(5000);
	told("run", "world is 2 there and 4 here, job A there and B here", 300, 400, TWO);
	found(0, "0:1", "proc:5.6.7,a", CVY_PROC_LIVES);
	ck_assert_ptr_null(did(CVY_DO_JOINED)); /* it may have been killed this moment */
	for (int i = 0; i < 4; i++) {
		pass(100);
		told("run", "world is 2 there and 4 here, job A there and B here", 300, 400, TWO);
		found(0, "0:1", "proc:5.6.7,a", CVY_PROC_LIVES);
		if (did(CVY_DO_JOINED))
			break;
	}
	ended(COVEY_ERR_BUSY,
	      "is in use: rank 0 (process 5) is alive; world is 2 there and 4 here, job A there and B here");
}

TEST(a_beat_ends_the_join)
{
	begin(5000);
	told("run", "world is 4 there", 900, 1000, TWO);
	pass(100);
	told("run", "world is 4 there", 900, 1000, TWO);
	pass(100);
	told("run", "world is 4 there", -50, 1200, TWO); /* after the first answer */
	ended(COVEY_ERR_BUSY, "rank 0 is alive, it has sent a beat; world is 4 there");
}

TEST(x_another_list_is_no_beat)
{
	begin(5000);
	told("run", "-", 300, 400, TWO);
	pass(100);
	told("run", "-", 300, 400, TWO "|t:70|49950 -|m:70|9 0 proc:8.9.7,b far"); /* 64 a reply: now seen */
	ck_assert_ptr_null(did(CVY_DO_JOINED));
}

TEST(x_proven_by_another)
{
	begin(5000);
	told("run", "-", 300, 400, TWO);
	found(0, "0:1", "proc:5.6.7,a", CVY_PROC_LIVES); /* being killed */
	for (int i = 0; i < 4; i++) {
		pass(100);
		told("run", "-", 300, 400, "|m:1|2 0 proc:8.9.7,b far"); /* a sibling has named it */
		ck_assert_ptr_null(did(CVY_DO_JOINED));
		found(1, "1:2", "proc:8.9.7,b", CVY_PROC_NOT_SEEN);
	}
}

TEST(x_exiting_is_not_alive)
{
	begin(5000);
	told("run", "-", 300, 400, TWO);
	found(0, "0:1", "proc:5.6.7,a", CVY_PROC_LIVES);
	for (int i = 0; i < 5; i++) {
		pass(100);
		told("run", "-", 300, 400, TWO);
		ck_assert_ptr_null(did(CVY_DO_JOINED));
		found(0, "0:1", "proc:5.6.7,a", CVY_PROC_NOT_SEEN);
	}
}

TEST(silence_counts_once_it_was_heard)
{
	begin(6000);
	told("run", "-", 9000, 9000, TWO);
	for (int i = 0; i < 24; i++) {
		pass(100);
		ck_assert_str_eq(sent[17], "0");
		told("run", "-", 9000, 9000, TWO);
	}
	pass(100);
	ck_assert_str_eq(sent[17], "6000");
	ck_assert_ptr_null(did(CVY_DO_JOINED));
}

TEST(what_cannot_be_known_is_said_with_the_cure)
{
	begin(60000);
	for (int i = 0; i < 199; i++) {
		told("run", "world is 2 there and 4 here", 1234, 4321, TWO);
		pass(100);
	}
	told("run", "world is 2 there and 4 here", 1234, 4321, TWO);
	pass(100);
	ended(COVEY_ERR_BUSY,
	      "the last beats of 2 processes are 1234 to 4321 ms old. If they are gone: ep-admin --group " NAME
	      " forget");
}

TEST(where_silence_never_counts_it_does_not_wait)
{
	begin(-1);
	told("run", "-", 9000, 9500, TWO);
	for (int i = 0; i < 30 && !did(CVY_DO_JOINED); i++) {
		pass(100);
		if (id)
			told("run", "-", 9000, 9500, TWO);
	}
	ended(COVEY_ERR_BUSY, "ep-admin --group " NAME " forget");
}

/* Founders that do not fit together all end: the one that has found out tells the store. */
TEST(founders_that_do_not_fit_are_told)
{
	const char *argv[] = { "REFUSED", "gid", "g",	  "ph",	 "closed",	    "epoch",
			       "0",	  "err", "INVAL", "why", "world is 3 and 4" };
	struct cvy_event refused = { .kind = CVY_EV_REPLY, .rank = -1, .argc = 11, .argv = argv };

	begin(5000);
	told("value", "world is 3 and 4", 300, 400, "|j:0|1 n proc:5.6.7,a h 0");
	for (int i = 0; i < 4 && strcmp(sent[20], "1") != 0; i++) {
		found(0, "0:1", "proc:5.6.7,a", CVY_PROC_LIVES);
		pass(100);
		if (strcmp(sent[20], "1") != 0)
			told("value", "world is 3 and 4", 300, 400, "|j:0|1 n proc:5.6.7,a h 0");
	}
	ck_assert_str_eq(sent[20], "1");
	ck_assert_ptr_null(did(CVY_DO_JOINED));
	refused.id = id;
	step(&refused);
	ended(COVEY_ERR_INVAL, "world is 3 and 4");
}

/* ---- Processes of this machine ---- */

#define HOST "boot-id.1.2"

TEST(a_process_is_found_by_its_thread_and_start)
{
	char word[CVY_PROC_WORD], other[2 * CVY_PROC_WORD];
	int pid, tid;
	unsigned long long start;

	cvy_proc_word(word, sizeof(word));
	ck_assert_int_eq(sscanf(word, "proc:%d.%d.%llu", &pid, &tid, &start), 3);
	ck_assert_int_eq(pid, getpid());
	ck_assert_int_eq(cvy_proc_pid(word), pid);
	snprintf(other, sizeof(other), "%s,unix:@x", word);
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, other), CVY_PROC_LIVES);
	ck_assert_int_eq(cvy_proc_find(HOST ".a", HOST ".a", other), CVY_PROC_LIVES);
	ck_assert_int_eq(cvy_proc_find(HOST ".a", HOST ".b", other), CVY_PROC_NOT_SEEN);
	ck_assert_int_eq(cvy_proc_find(HOST, "boot-id.1.3", other), CVY_PROC_NOT_SEEN);
	ck_assert_int_eq(cvy_proc_find(HOST, "other-id.1.2", other), CVY_PROC_NOT_SEEN);
	ck_assert_int_eq(cvy_proc_find("unknown.1.2", "unknown.1.2", other), CVY_PROC_NOT_SEEN);
	ck_assert_int_eq(cvy_proc_find("h", "h", other), CVY_PROC_NOT_SEEN);
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, "unix:@x"), CVY_PROC_NOT_SEEN);
	snprintf(other, sizeof(other), "proc:%d.%d.%llu", pid, tid,
		 start + 1); /* its number was given to another one */
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, other), CVY_PROC_GONE);
	snprintf(other, sizeof(other), "proc:%d.%d.%llu.1", pid, tid, start + 100000); /* unshare --time */
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, other), CVY_PROC_NOT_SEEN);
}

TEST(a_process_that_was_killed_is_gone)
{
	char word[CVY_PROC_WORD] = "";
	int ends[2];
	pid_t pid;

	ck_assert_int_eq(pipe(ends), 0);
	pid = fork();
	if (!pid) {
		cvy_proc_word(word, sizeof(word));
		(void)!write(ends[1], word, sizeof(word));
		pause();
		_exit(0);
	}
	ck_assert_int_eq((int)read(ends[0], word, sizeof(word)), (int)sizeof(word));
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, word), CVY_PROC_LIVES);
	kill(pid, SIGSTOP);
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, word), CVY_PROC_LIVES); /* it may wake */
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_int_eq(cvy_proc_find(HOST, HOST, word), CVY_PROC_GONE);
	close(ends[0]);
	close(ends[1]);
}

SUITE_MAIN(.name = "membership/taken", .teardown = done, .timeout_s = 60)
