/* SPDX-License-Identifier: Apache-2.0 */
/* The store's script in the in-memory server: the common cases, and those that need its clock or its pokes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "store_talk.h"

struct memory {
	struct memory_server *server;
	struct memory_copy *copy;
	int lives, notices;
	char notice[1024]; /* the last one */
};

static int call(void *ctx, int argc, const char *const *argv, struct memory_reply *reply)
{
	return memory_server_call(((struct memory *)ctx)->server, "g", argc, argv, reply);
}

static void flush(void *ctx)
{
	memory_server_flush(((struct memory *)ctx)->server);
}

static void restart(void *ctx)
{
	struct memory *m = ctx;
	char name[2] = { (char)('b' + m->lives++), 0 };

	memory_server_names(m->server, name, name);
}

static void save(void *ctx)
{
	struct memory *m = ctx;

	memory_copy_free(m->copy);
	m->copy = memory_server_save(m->server);
}

static void restore(void *ctx)
{
	memory_server_load(((struct memory *)ctx)->server, ((struct memory *)ctx)->copy);
	restart(ctx);
}

static int published(void *ctx)
{
	return ((struct memory *)ctx)->notices;
}

static void on_publish(void *ctx, const char *channel, const char *message)
{
	ck_assert_str_eq(channel, "covey:{g}:n");
	ck_assert(strchr(message, ' ') != NULL);
	((struct memory *)ctx)->notices++;
	snprintf(((struct memory *)ctx)->notice, sizeof(((struct memory *)ctx)->notice), "%s", message);
}

static struct memory memory;
static struct bench bench;

static void setup(void)
{
	memset(&memory, 0, sizeof(memory));
	memset(&bench, 0, sizeof(bench));
	memory.server = memory_server_new("a", "a");
	memory_server_on_publish(memory.server, on_publish, &memory);
	bench = (struct bench){ &memory, call, flush, restart, save, restore, published, { 0 }, "", { "" }, { "" }, 0 };
}

static void teardown(void)
{
	memory_reply_clear(&bench.reply);
	memory_copy_free(memory.copy);
	memory_server_free(memory.server);
}

TEST_LOOP(case_holds_in_memory, 0, store_case_count)
{
	store_cases[_i].run(&bench);
	ck_assert_int_gt(published(&memory), 0);
}

static int notice_has(const char *text)
{
	return strstr(memory.notice, text) != NULL;
}

/* Members of a large group need not ask what a commit changed. Of marks of the operator and long lists they ask. */
TEST(a_notice_tells_what_changed_in_a_large_view)
{
	char on[64];

	memory_server_large(memory.server, 1);
	group(&bench, 4, "auto");
	snprintf(on, sizeof(on), "\non\n1 %s\nl:2\n", got(&bench, "vid"));
	accuse(&bench, 0, 3);
	for (int r = 0; r < 3; r++)
		(void)report(&bench, r, "5 6 0 20 - - -");
	SAYS(&bench, 0, "decide 1 1", "COMMIT");
	ck_assert(notice_has(on));
	ck_assert(notice_has("\nbase\n6"));
	ck_assert(!notice_has("\nm:0\n"));
	acks(&bench, 0, 3);
	enlist(&bench, 3, 0, 0, "auto");
	ck_assert(notice_has("\nsince\n"));
	ck_assert(notice_has("\nj:3\n"));
	ck_assert(notice_has("\ngone\n-"));
	SAYS(&bench, NOBODY, "ask evict 2", "OK");
	for (int r = 0; r < 3; r++)
		(void)report(&bench, r, "6 6 0 25 - - -");
	ck_assert_str_eq(memory.notice, "3 inst");
}

static const char *outside(const char *name)
{
	const char *argv[] = { name, "-", "-", "-", "n",    "-", "00112233445566778899aabbccddeeff", "0", "a",
			       "h",  "1", "1", "8", "auto", "s" };

	memory_reply_clear(&bench.reply);
	ck_assert_int_eq(call(&memory, 15, argv, &bench.reply), 0);
	return bench.reply.argv[0];
}

TEST(key_expires_without_members)
{
	ck_assert_str_eq(outside("register"), "OK");
	memory_server_time(memory.server, 1000000 + 599000);
	ck_assert_str_eq(outside("peek"), "OK"); /* a look keeps nothing alive */
	memory_server_time(memory.server, 1000000 + 600000);
	ck_assert_str_eq(outside("peek"), "GONE");
}

/* Members on other machines, of which nothing is known but that they are silent. */
TEST(silence_makes_room_until_somebody_speaks)
{
	static char record[8192];
	struct bench *b = &bench;
	const char *ask = "register 0 a h 1 2 8 auto s - 0 5000 - - 0";
	char gid[40], line[100];

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	memcpy(gid, b->gid, sizeof(gid));
	memory_server_time(memory.server, 1000000 + 4000);
	SAYS(b, 1, "beat 1 -1 -", "OK");
	memory_server_time(memory.server, 1000000 + 8000);
	SAYS(b, 8, ask, "TAKEN");
	GOT(b, "count", "1");
	memory_server_time(memory.server, 1000000 + 9001);
	SAYS(b, 8, "register 0 a h 1 2 8 auto s - 0 0 - - 0", "TAKEN"); /* it has not listened */
	SAYS(b, 8, "register 0 a h 1 2 8 auto s - 0 1 - - 0", "OK");	/* never after less than 5 s */
	ck_assert_str_ne(got(b, "gid"), gid);
	ck_assert_str_eq(hello(b, 0, record), "OK"); /* they were cut off, and nobody has taken their place yet */
	GOT(b, "gid", gid);
	memory_server_time(memory.server, 1000000 + 15000);
	for (int i = 0; i < 2; i++) {
		snprintf(line, sizeof(line), "register %d a h 1 2 8 auto s - 0 5000 - - 0", i);
		SAYS(b, i + 8, line, "OK");
		snprintf(b->inc[i + 8], sizeof(b->inc[0]), "%.20s", got(b, "inc"));
		snprintf(b->life[i + 8], sizeof(b->life[0]), "%.60s", got(b, "life"));
		snprintf(b->gid, sizeof(b->gid), "%.36s", got(b, "gid"));
	}
	SAYS(b, 8, "ready 0", "OK");
	SAYS(b, 9, "ready 0", "OK");
	GOT(b, "epoch", "1");
	memcpy(b->gid, gid, sizeof(gid));
	ck_assert_str_eq(hello(b, 0, record), "FENCED");
	ck_assert_str_ne(field(b, "gid"), gid);
}

/* A server that was away heard nobody, and that is no silence. */
TEST(silence_begins_with_the_server)
{
	struct bench *b = &bench;

	group(b, 2, "auto");
	memory_server_time(memory.server, 1000000 + 60000);
	restart(&memory);
	SAYS(b, 8, "register 0 a h 1 2 8 auto s - 0 5000 - - 0", "TAKEN");
	memory_server_time(memory.server, 1000000 + 65001);
	SAYS(b, 8, "register 0 a h 1 2 8 auto s - 0 5000 - - 0", "OK");
}

/* The store is a copy from before; the members of the later group say so. @speaks: somebody of the older one is there. */
static void an_older_copy(int speaks, const char *want)
{
	static char record[8192], old[8192];
	struct bench *b = &bench;
	char gid[40], line[100];

	group(b, 2, "auto");
	tell(b, old, sizeof(old), "run");
	memcpy(gid, b->gid, sizeof(gid));
	save(&memory);
	for (int i = 0; i < 2; i++) {
		snprintf(line, sizeof(line), "prove %d %.20s pidfd", i, b->inc[i]);
		SAYS(b, NOBODY, line, "OK");
	}
	for (int i = 8; i < 10; i++)
		enlist(b, i, 1, 2, "auto");
	SAYS(b, 8, "ready 0", "OK");
	SAYS(b, 9, "ready 0", "OK");
	acks(b, 8, 10);
	tell(b, record, sizeof(record), "run");
	restore(&memory);
	ck_assert_str_eq(hello(b, 8, record), "LIFE");
	memory_server_time(memory.server, 1000000 + 3000);
	if (speaks > 0) {
		char later[40];

		memcpy(later, b->gid, sizeof(later));
		memcpy(b->gid, gid, sizeof(gid));
		ck_assert_str_eq(hello(b, 1, old), "OK");
		SAYS(b, 1, "beat 1 -1 -", "OK");
		memcpy(b->gid, later, sizeof(later));
	}
	if (speaks < 0)
		SAYS(b, 2, "register 2 a h 0 2 8 auto s", "OK");
	memory_server_time(memory.server, 1000000 + 5001);
	ck_assert_str_eq(hello(b, 8, record), want);
}

TEST(x_a_joiner_on_an_older_copy)
{
	an_older_copy(-1, "OK");
}

static void seat(struct bench *b, int who, int world, const char *rest)
{
	char line[200];

	snprintf(line, sizeof(line), "register %d a h 1 %d 8 auto s %s", who % 8, world, rest);
	SAYS(b, who, line, "OK");
	snprintf(b->inc[who], sizeof(b->inc[0]), "%.20s", got(b, "inc"));
	snprintf(b->life[who], sizeof(b->life[0]), "%.60s", got(b, "life"));
	snprintf(b->gid, sizeof(b->gid), "%.36s", got(b, "gid"));
}

TEST(x_prev_is_lost)
{
	static char record[8192];
	struct bench *b = &bench;
	char gid[40];

	group(b, 2, "auto");
	tell(b, record, sizeof(record), "run");
	memcpy(gid, b->gid, sizeof(gid));
	memory_server_time(memory.server, 1000000 + 9000);
	seat(b, 1, 2, "- 0 5000 - - 0"); /* B */
	memory_server_time(memory.server, 1000000 + 18000);
	for (int i = 8; i < 11; i++)
		seat(b, i, 3, "- 0 5000 - - 0"); /* C: world 3 */
	for (int i = 8; i < 11; i++)
		SAYS(b, i, "ready 0", "OK");
	acks(b, 8, 11);
	for (int i = 8; i < 11; i++)
		prove(b, i);
	ck_assert_str_eq(field(b, "ph"), "closed");
	SAYS(b, 2, "register 0 a h 1 2 8 auto s - 0 0 - - 0", "OK"); /* D */
	memcpy(b->gid, gid, sizeof(gid));
	ck_assert_str_eq(hello(b, 0, record), "FENCED");
}

TEST(x_orphan_joiner)
{
	struct bench *b = &bench;

	group(b, 2, "auto");
	enlist(b, 2, 0, 2, "auto");
	memory_server_time(memory.server, 1000000 + 9000);
	SAYS(b, 2, "beat 1 -1 -", "OK");
	SAYS(b, 8, "register 0 a h 1 2 8 auto s - 0 5000 - - 0", "TAKEN"); /* as it is: doubt 1 */
	GOT(b, "count", "1");
}

TEST(x_came_back_steals)
{
	struct bench *b = &bench;
	char line[200];

	seat(b, 0, 2, "- 0 0 - - 0");
	snprintf(line, sizeof(line), "register 0 a h 1 2 8 auto s - 0 0 - %.36s 0", b->gid);
	memory_server_time(memory.server, 1000000 + 6000);
	seat(b, 8, 2, "- 0 5000 - - 0");
	SAYS(b, 0, line, "TAKEN");
	SAYS(b, 8, "beat 0 -1 -", "OK");
}

TEST(the_later_group_takes_its_name_from_an_older_copy)
{
	an_older_copy(0, "OK");
	ck_assert_str_eq(got(&bench, "gid"), bench.gid);
}

TEST(the_later_group_takes_nothing_from_the_living)
{
	an_older_copy(1, "FENCED");
}

TEST(wrong_type_and_schema_are_named)
{
	memory_server_retype(memory.server, "g", "list");
	ck_assert_str_eq(outside("peek"), "ERROR");
	ck_assert_ptr_nonnull(strstr(memory_reply_get(&bench.reply, "why"), "list"));
	memory_server_flush(memory.server);
	memory_server_poke(memory.server, "g", "proto", "7");
	ck_assert_str_eq(outside("peek"), "VERSION");
	ck_assert_str_eq(outside("register"), "VERSION");
	ck_assert_ptr_null(memory_server_field(memory.server, "g", "gid"));
}

SUITE_MAIN(.name = "membership/store", .setup = setup, .teardown = teardown)
