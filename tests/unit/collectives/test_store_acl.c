/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest permissions as docs/operate/store.md has them are enough for the whole life of a group, and each of them is
 * missed by name: the same life with one permission less ends with an error that says what to grant. So do commands that
 * the server has under another name. The server is one of our own, since users are of a whole server.
 *
 * labels: redis real
 */
#include "../../server.h"
#include "covey_admin.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define USER "S3CR3TUSER" /* a part of the URL's userinfo: it is shown nowhere */
#define PASSWORD "S3CR3TWORD"
#define VAIN_MS 3000 /* of calls that a missing right lets wait to the end, the first time */

static char dir[64], url[40], lines[20000]; /* url: without what stands before the host */
static pid_t server;

static void keep_line(void *ctx, int level, const char *line)
{
	static int turn; /* of many threads */
	size_t used;

	(void)ctx, (void)level;
	while (__atomic_exchange_n(&turn, 1, __ATOMIC_ACQUIRE))
		;
	used = strlen(lines);
	snprintf(lines + used, sizeof(lines) - used, "%s\n", line);
	__atomic_store_n(&turn, 0, __ATOMIC_RELEASE);
}

/* redis-cli as the server's own user; fails the test if the server says no. */
static void cli(const char *command)
{
	char line[900];

	snprintf(line, sizeof(line), "redis-cli -s %s/sock %s >%s/said 2>&1 && ! grep -q ERR %s/said", dir, command,
		 dir, dir);
	must(system(line) == 0, "%s", command);
}

/* With @option beside what all have. */
static void server_start(const char *option)
{
	char path[96];
	int port = server_free_port();

	strcpy(dir, "/tmp/covey-acl-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/sock", dir);
	server = server_begin("--port %d --bind 127.0.0.1 --unixsocket %s --dir %s %s", port, path, dir, option);
	for (int i = 0; i < 2000 && access(path, F_OK); i++)
		usleep(5000);
	snprintf(url, sizeof(url), "127.0.0.1:%d", port);
}

static void server_stop(void)
{
	char line[100];

	server_end(server);
	snprintf(line, sizeof(line), "rm -rf %s", dir);
	ck_assert_int_eq(system(line), 0);
}

/* The line of docs/operate/store.md, from `on` on. */
static void documented(char *text, size_t bytes)
{
	static const char begin[] = "    ACL SETUSER covey ";
	FILE *file = fopen(COVEY_SOURCE_DIR "/docs/operate/store.md", "re");

	ck_assert_ptr_nonnull(file);
	text[0] = '\0';
	while (fgets(text, (int)bytes, file) && strncmp(text, begin, strlen(begin)) != 0)
		text[0] = '\0';
	fclose(file);
	ck_assert_msg(text[0], "docs/operate/store.md has no line ACL SETUSER covey");
	memmove(text, text + strlen(begin), strlen(text + strlen(begin)) + 1);
	text[strcspn(text, "\n")] = '\0';
}

/* The user as documented, but for @less, which is one of its words; NULL: all. */
static void make_user(const char *less)
{
	char text[600], command[900], *rest = text, *word;
	size_t used;

	documented(text, sizeof(text));
	used = (size_t)snprintf(command, sizeof(command), "acl setuser " USER);
	while ((word = strsep(&rest, " ")))
		if (!less || strcmp(word, less) != 0)
			used += (size_t)snprintf(command + used, sizeof(command) - used, " '%s'",
						 *word == '>' ? ">" PASSWORD : word);
	cli("acl deluser " USER);
	cli(command);
	cli("script flush"); /* or EVAL would not be needed */
	cli("flushall");
}

static void pair(void *ctx, const char *key, const char *value)
{
	(void)ctx, (void)key, (void)value;
}

static void note_error(const char *what, int err, struct covey_group *group)
{
	struct covey_error_info info;

	covey_last_error(group, &info);
	snprintf(lines + strlen(lines), sizeof(lines) - strlen(lines), "%s: %d: %s\n", what, err, info.cause);
}

/* Two ranks of one process form a group, one evicts the other, the rest leaves, and the group is forgotten. */
static int life(const char *store, int ms)
{
	const char *forget[] = { "ask", "forget" };
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_group *g[2] = { NULL, NULL };
	struct covey_work *work = NULL;
	int err = 0;

	config.store = store;
	config.group = "acl";
	config.world = 2;
	config.join_ms = ms;
	config.max_ranks = 4;
	config.window_bytes = 1 << 20;
	config.slot_bytes = 4096;
	lines[0] = '\0';
	covey_log_set(keep_line, NULL, COVEY_LOG_WARN);
	for (int r = 0; r < 2 && !err; r++) {
		config.rank = r;
		err = covey_join_start(&config, &g[r]);
	}
	for (int r = 0; r < 2 && !err; r++) {
		err = covey_join_wait(g[r], harness_deadline(WATCHDOG_MS));
		if (err)
			note_error("join", err, g[r]);
	}
	if (!err)
		err = covey_evict(g[0], 1, &work);
	if (!err) {
		err = covey_work_wait(work, harness_deadline(ms), NULL);
		if (err)
			note_error("evict", err, g[0]);
		covey_work_free(work);
	}
	if (!err)
		err = covey_leave(g[0], harness_deadline(ms));
	covey_close(g[1]);
	covey_close(g[0]);
	if (!err) {
		err = covey_admin_call(store, "acl", 2, forget, harness_deadline(ms), pair, NULL);
		if (err)
			note_error("forget", err, NULL);
	}
	covey_log_set(NULL, NULL, 0);
	return err;
}

/* It fails; @less: for this right, which is missing. Again with more time until @want is said: machines are busy. */
static int life_without(const char *less, const char *store, const char *want)
{
	int err = 0;

	for (int ms = VAIN_MS; ms < WATCHDOG_MS; ms *= 4) {
		if (less)
			make_user(less);
		err = life(store, ms);
		if (!err || strstr(lines, want))
			break;
	}
	return err;
}

static const char *store_of_user(void)
{
	static char text[200];

	setenv("COVEY_STORE_PASSWORD", PASSWORD, 1);
	snprintf(text, sizeof(text), "redis://" USER "@%s", url);
	return text;
}

TEST(the_documented_permissions_are_enough_and_each_is_missed_by_name)
{
	char text[600], *rest = text, *word, want[80];

	server_start("");
	make_user(NULL);
	must(!life(store_of_user(), WATCHDOG_MS), "with all of them: %s", lines);
	documented(text, sizeof(text));
	while ((word = strsep(&rest, " "))) {
		int err;

		if (!strchr("+~&", *word))
			continue;
		snprintf(want, sizeof(want), "grant %s ", word);
		err = life_without(word, store_of_user(), want);
		must(err && strstr(lines, want), "without %s: %d, and no \"%s\" in:\n%s", word, err, want, lines);
		must(!strstr(lines, USER) && !strstr(lines, PASSWORD), "without %s the user is shown:\n%s", word,
		     lines);
	}
	server_stop();
}

TEST_LOOP(a_command_that_is_renamed_is_named, 0, 6)
{
	static const char *const commands[] = { "EVALSHA", "EVAL", "INFO", "SUBSCRIBE", "PUBLISH", "HSET" };
	char option[60], store[60];

	unsetenv("COVEY_STORE_PASSWORD");
	snprintf(option, sizeof(option), "--rename-command %s other", commands[_i]);
	server_start(option);
	snprintf(store, sizeof(store), "redis://%s", url);
	must(life_without(NULL, store, "rename-command") && strstr(lines, "no command ") &&
		     strstr(lines, commands[_i]) && strstr(lines, "rename-command"),
	     "%s: %s", commands[_i], lines);
	server_stop();
}

HARNESS_MAIN(.name = "collectives/store_acl")
