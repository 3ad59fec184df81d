/* SPDX-License-Identifier: Apache-2.0 */
/* store.lua in the in-memory server: the common cases, and those that need its clock or its pokes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "store_cases.h"

struct memory {
	struct memory_server *server;
	struct memory_copy *copy;
	int lives, notices;
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

START_TEST(case_holds_in_memory)
{
	store_cases[_i].run(&bench);
	ck_assert_int_gt(published(&memory), 0);
}
END_TEST

static const char *outside(const char *name)
{
	const char *argv[] = { name, "-", "-", "-", "n",    "-", "00112233445566778899aabbccddeeff", "0", "a",
			       "h",  "1", "1", "8", "auto", "s" };

	memory_reply_clear(&bench.reply);
	ck_assert_int_eq(call(&memory, 15, argv, &bench.reply), 0);
	return bench.reply.argv[0];
}

START_TEST(key_expires_without_members)
{
	ck_assert_str_eq(outside("register"), "OK");
	memory_server_time(memory.server, 1000000 + 599000);
	ck_assert_str_eq(outside("peek"), "OK"); /* a look keeps nothing alive */
	memory_server_time(memory.server, 1000000 + 600000);
	ck_assert_str_eq(outside("peek"), "GONE");
}
END_TEST

START_TEST(wrong_type_and_schema_are_named)
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
END_TEST

int main(void)
{
	Suite *suite = suite_create("membership/store");
	TCase *tc = tcase_create("store");
	SRunner *runner;
	int failed;

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, case_holds_in_memory, 0, store_case_count);
	tcase_add_test(tc, key_expires_without_members);
	tcase_add_test(tc, wrong_type_and_schema_are_named);
	suite_add_tcase(suite, tc);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
