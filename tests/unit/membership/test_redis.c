/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client in redis.c against a private redis-server on a unix socket: the cases of the script, and
 * what only a real server does: restarts, passwords, a stop. Skipped (77) where there is no server.
 */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "covey_admin.h"
#include "../../server.h"
#include "../../suite.h"
#include "clock.h"
#include "loop.h"
#include "store.h"
#include "store_cases.h"

#define WATCHDOG_MS 20000

struct real {
	char dir[64], url[128];
	pid_t server;
	const char *options;
	struct cvy_loop *loop;
	struct cvy_store *store;
	int up, down_err, down_count, replied, err, notices;
	char cause[200];
	uint64_t give_up_ns, ticked_ns, gap_ns; /* the longest time between two ticks */
	int (*enough)(struct real *r);
	struct memory_reply *reply;
	char **saved;
	int saved_count;
};

static struct real real;
static struct bench bench;

static void server_stop(struct real *r)
{
	if (r->server)
		server_end(r->server);
	r->server = 0;
}

/* In place of the one that runs. @options: beside what all have; NULL: as before. */
static void server_start(struct real *r, const char *options)
{
	server_stop(r);
	r->options = options ? options : r->options;
	r->server = server_begin("--port 0 --unixsocket %s/sock --dir %s --loglevel warning %s", r->dir, r->dir,
				 r->options);
}

static void on_reply(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause)
{
	struct real *r = ctx;

	(void)id;
	r->replied++;
	r->err = err;
	snprintf(r->cause, sizeof(r->cause), "%s", cause ? cause : "");
	if (err || !r->reply)
		return;
	r->reply->argc = argc;
	r->reply->argv = calloc((size_t)argc + 1, sizeof(char *));
	for (int i = 0; i < argc; i++)
		r->reply->argv[i] = strdup(argv[i]);
}

static void on_notice(void *ctx, const char *text)
{
	(void)text;
	((struct real *)ctx)->notices++;
}

static void on_up(void *ctx)
{
	((struct real *)ctx)->up = 1;
}

static void on_down(void *ctx, int err, const char *cause)
{
	struct real *r = ctx;

	r->up = 0;
	r->down_err = err;
	r->down_count++;
	snprintf(r->cause, sizeof(r->cause), "%s", cause);
}

static void on_tick(void *ctx, uint64_t now_ns)
{
	struct real *r = ctx;

	if (r->ticked_ns && now_ns - r->ticked_ns > r->gap_ns)
		r->gap_ns = now_ns - r->ticked_ns;
	r->ticked_ns = now_ns;
	if (r->enough(r) || now_ns > r->give_up_ns)
		cvy_loop_stop(r->loop);
}

/* cvy_loop_run ends for good when it is stopped, so each wait has a loop and a client of its own. */
static void client_open(struct real *r, int call_ms)
{
	const struct cvy_store_sink sink = { r, on_reply, on_notice, on_up, on_down };

	r->up = r->down_err = r->down_count = r->replied = 0;
	r->ticked_ns = r->gap_ns = 0;
	ck_assert_int_eq(cvy_loop_new(&r->loop), 0);
	ck_assert_int_eq(cvy_redis_open(r->url, "g", r->loop, &sink, call_ms, NULL, &r->store), 0);
}

static void client_run(struct real *r, int (*enough)(struct real *r))
{
	int tick_ms = 5;

	r->enough = enough;
	r->give_up_ns = cvy_now_ns() + WATCHDOG_MS * CVY_MS;
	cvy_loop_run(r->loop, on_tick, r, &tick_ms);
	ck_assert_msg(enough(r), "waited in vain: %s", r->cause);
}

static void client_close(struct real *r)
{
	r->store->ops->close(r->store);
	cvy_loop_free(r->loop);
	r->store = NULL;
	r->loop = NULL;
}

struct pending {
	int argc, sent;
	const char *const *argv;
};
static struct pending pending;

static int replied(struct real *r)
{
	if (r->up && !pending.sent) {
		pending.sent = 1;
		r->store->ops->call(r->store, 1, pending.argc, pending.argv);
	}
	return r->replied > 0;
}

static int call(void *ctx, int argc, const char *const *argv, struct memory_reply *reply)
{
	struct real *r = ctx;

	pending = (struct pending){ argc, 0, argv };
	r->reply = reply;
	client_open(r, WATCHDOG_MS);
	client_run(r, replied);
	client_close(r);
	return r->err;
}

/* Commands that the client has no right to say: through redis-cli's own language, a shell would do no better. */
static int plain(struct real *r, const char *what)
{
	char line[600];

	snprintf(line, sizeof(line), "redis-cli -s %s/sock %s > /dev/null 2>&1", r->dir, what);
	return system(line);
}

static void flush(void *ctx)
{
	ck_assert_int_eq(plain(ctx, "FLUSHALL"), 0);
}

static void save(void *ctx)
{
	ck_assert_int_eq(plain(ctx, "SAVE"), 0);
}

static void restart_from_disk(void *ctx)
{
	server_start(ctx, NULL);
}

static void restart(void *ctx)
{
	save(ctx);
	restart_from_disk(ctx);
}

static int published(void *ctx)
{
	(void)ctx;
	return -1;
}

static void setup(void)
{
	memset(&real, 0, sizeof(real));
	strcpy(real.dir, "/tmp/covey-redis-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(real.dir));
	snprintf(real.url, sizeof(real.url), "redis+unix://%s/sock", real.dir);
	server_start(&real, "");
	bench = (struct bench){ &real,	   call,  flush, restart, save,	  restart_from_disk,
				published, { 0 }, "",	 { "" },  { "" }, 0 };
}

static void teardown(void)
{
	char line[100];

	memory_reply_clear(&bench.reply);
	server_stop(&real);
	snprintf(line, sizeof(line), "rm -rf %s", real.dir);
	ck_assert_int_eq(system(line), 0);
}

/* What is more than key and channel could be in another slot of a cluster. */
TEST_LOOP(case_holds_on_redis, 0, store_case_count)
{
	server_start(&real, "--user default on nopass +@all resetkeys '~covey:{g}:g' '~covey:{g}:n' resetchannels "
			    "'&covey:{g}:n'");
	store_cases[_i].run(&bench);
}

static const char *const peek[] = { "peek", "-", "-", "-", "-", "-", "00112233445566778899aabbccddeeff", "0", "-1" };

static int was_refused(struct real *r)
{
	return r->down_err == COVEY_ERR_AUTH;
}

TEST(wrong_password_is_final_and_not_told)
{
	server_start(&real, "--requirepass right");
	setenv("COVEY_STORE_PASSWORD", "wrong-secret", 1);
	client_open(&real, WATCHDOG_MS);
	client_run(&real, was_refused); /* it tries by itself until the server is there */
	ck_assert_int_eq(real.down_err, COVEY_ERR_AUTH);
	ck_assert_int_le(real.down_count, 2); /* not there yet, then refused: no more after that */
	ck_assert_ptr_null(strstr(real.cause, "wrong-secret"));
	client_close(&real);
	setenv("COVEY_STORE_PASSWORD", "right", 1);
	ck_assert_int_eq(call(&real, 9, peek, &bench.reply), 0);
}

static int phase;

/* A call is answered, the server is killed, and the one that takes its place answers a call. */
static int restarted(struct real *r)
{
	if (r->up && phase % 2 == 0) {
		phase++;
		r->replied = 0;
		r->store->ops->call(r->store, (uint64_t)phase, 9, peek);
	} else if (phase == 1 && r->replied) {
		phase = 2;
		r->up = 0;
		server_start(r, NULL);
	}
	if (phase == 3 && r->replied && r->err)
		phase = 2; /* it was given to the connection that fell */
	return phase == 3 && r->replied && !r->err;
}

static char said[4000]; /* lines at level warn or above */

static void keep_line(void *ctx, int level, const char *line)
{
	size_t used = strlen(said);

	(void)ctx, (void)level;
	snprintf(said + used, sizeof(said) - used, "%s\n", line);
}

static int times(const char *text)
{
	int n = 0;

	for (const char *at = said; (at = strstr(at, text)); at++)
		n++;
	return n;
}

TEST(client_comes_back_after_a_kill)
{
	covey_log_set(keep_line, NULL, COVEY_LOG_WARN);
	client_open(&real, WATCHDOG_MS);
	client_run(&real, restarted);
	client_close(&real);
	covey_log_set(NULL, NULL, 0);
	/* One line for each loss (it may not have been there at the beginning), and one for each return. */
	ck_assert_msg(times("trying again") == times("the store is back") && times("the store is back") >= 1 &&
			      times("\n") <= 4,
		      "%s", said);
}

static int stopped(struct real *r)
{
	if (phase == 0 && r->up) {
		phase = 1;
		kill(r->server, SIGSTOP);
		for (uint64_t id = 1; id <= 70; id++)
			r->store->ops->call(r->store, id, 9, peek);
	}
	return r->replied == 70;
}

TEST(stopped_server_ends_every_call_once)
{
	client_open(&real, 50);
	client_run(&real, stopped);
	ck_assert_int_ne(real.err, 0);
	kill(real.server, SIGCONT);
	client_close(&real);
	ck_assert_int_eq(real.replied, 70);
}

static int asked_one_by_one(struct real *r)
{
	if (phase == 0 && r->up) {
		phase = 1;
		kill(r->server, SIGSTOP);
	}
	if (phase && r->up && r->replied == phase - 1)
		r->store->ops->call(r->store, (uint64_t)phase++, 9, peek);
	return phase && !r->up;
}

/* Who waits for the next answer is not held up by the one that is late already. */
TEST(stopped_server_ends_a_call_after_another_in_time)
{
	int late;

	do { /* again where this process had no core: 4 calls, each of them late by this much, take the connection's time */
		phase = 0;
		client_open(&real, 100);
		client_run(&real, asked_one_by_one);
		late = real.replied < 4 && real.gap_ns > 150 * CVY_MS;
		kill(real.server, SIGCONT);
		client_close(&real);
	} while (late);
	ck_assert_int_ge(real.replied, 4);
}

#define SHORT_MS 100 /* bound of a call */
#define LATE_MS 450  /* the first answer; the connection would be given up after 10 bounds */
#define AGAIN_MS 200 /* the second one, late for a client that learned nothing */

static uint64_t stopped_ns;

static void stop_and_call(struct real *r)
{
	kill(r->server, SIGSTOP);
	stopped_ns = cvy_now_ns();
	r->store->ops->call(r->store, (uint64_t)++phase, 9, peek);
}

static int answered_late_twice(struct real *r)
{
	uint64_t ms = (cvy_now_ns() - stopped_ns) / CVY_MS;

	if ((phase && !r->up) || r->replied == 2) {
		kill(r->server, SIGCONT);
		return 1;
	}
	if (phase == 0 && r->up) {
		stop_and_call(r);
	} else if (phase == 1 && r->replied && ms > LATE_MS) {
		ck_assert_int_eq(r->err, COVEY_ERR_TIMEOUT);
		kill(r->server, SIGCONT);
		ck_assert_int_eq(plain(r, "PING"), 0); /* then the first answer is on its way, too */
		phase = 2;
	} else if (phase == 2) {
		phase = 3; /* by the next tick it is here */
	} else if (phase == 3) {
		stop_and_call(r);
	} else if (phase == 4 && ms > AGAIN_MS) {
		kill(r->server, SIGCONT);
	}
	return 0;
}

/* Else a store that always answers late would never be heard, and nobody could join. */
TEST(client_waits_longer_for_a_store_that_was_late)
{
	int late;

	do { /* again where this process had no core, so that it was late itself */
		phase = 0;
		client_open(&real, SHORT_MS);
		client_run(&real, answered_late_twice);
		late = real.gap_ns > SHORT_MS * CVY_MS && (!real.up || real.err);
		client_close(&real);
	} while (late);
	ck_assert_int_eq(real.err, 0);
	ck_assert_int_eq(real.up, 1);
}

static int pairs;

static void count_pair(void *ctx, const char *key, const char *value)
{
	(void)ctx;
	if (pairs++ == 0) {
		ck_assert_str_eq(key, "status");
		ck_assert_str_eq(value, "GONE");
	}
}

TEST(admin_call_reports_a_missing_group)
{
	const char *argv[] = { "peek" }, *wrong[] = { "dance" };

	ck_assert_int_eq(covey_admin_call(real.url, "g", 1, argv, 0, count_pair, NULL), COVEY_ERR_REFUSED);
	ck_assert_int_eq(pairs, 1);
	ck_assert_int_eq(covey_admin_call(real.url, "g", 1, wrong, 0, NULL, NULL), COVEY_ERR_INVAL);
	server_stop(&real);
	ck_assert_int_eq(covey_admin_call(real.url, "g", 1, argv, cvy_now_ns() + 100 * CVY_MS, NULL, NULL),
			 COVEY_ERR_STORE);
}

static void cli(const char *command)
{
	ck_assert_int_eq(plain(&real, command), 0);
}

/* What ep-admin would say of group g: an error whose cause has @want. Asked again with more time: machines are busy. */
static void assert_cause(int err, const char *want)
{
	const char *argv[] = { "ask", "policy", "manual" };
	struct covey_error_info info = { 0 };
	int is = 0;

	for (uint64_t ms = 3000; ms < WATCHDOG_MS && !strstr(info.cause, want); ms *= 2) {
		is = covey_admin_call(real.url, "g", 3, argv, cvy_now_ns() + ms * CVY_MS, NULL, NULL);
		covey_last_error(NULL, &info);
	}
	ck_assert_int_eq(is, err);
	ck_assert_msg(strstr(info.cause, want) != NULL, "no \"%s\" in: %s", want, info.cause);
}

TEST(what_is_wrong_with_a_store_is_named)
{
	const char *argv[] = { "peek" };

	/* Until the server is there. */
	ck_assert_int_eq(covey_admin_call(real.url, "g", 1, argv, 0, NULL, NULL), COVEY_ERR_REFUSED);
	cli("set covey:{g}:g 1");
	assert_cause(COVEY_ERR_STORE, "covey:{g}:g is a string, not a hash");
	cli("del covey:{g}:g");
	cli("hset covey:{g}:g proto 999");
	assert_cause(COVEY_ERR_VERSION, "999");
	cli("del covey:{g}:g");
	cli("hset covey:{g}:g proto nonsense epoch alien");
	assert_cause(COVEY_ERR_VERSION, "nonsense");
	cli("del covey:{g}:g");
	cli("hset covey:{g}:g proto " CVY_STORE_PROTO
	    " gid x ph form max 4 incs 0"); /* so that the script has something to write */
	cli("config set maxmemory 1");
	assert_cause(COVEY_ERR_STORE, "the store is full");
	cli("config set maxmemory 0");
	cli("replicaof 127.0.0.1 1");
	assert_cause(COVEY_ERR_STORE, "read-only replica");
	cli("config set replica-serve-stale-data no");
	assert_cause(COVEY_ERR_STORE, "replica that has lost its master");
}

/* A cluster of one node, behind a unix socket. Its bus has a port, by default one for all servers without a port. */
TEST(a_cluster_that_does_not_serve_the_slot_is_named)
{
	char options[60];

	snprintf(options, sizeof(options), "--cluster-enabled yes --cluster-port %d", server_free_port());
	server_start(&real, options);
	while (plain(&real, "ping"))
		poll(NULL, 0, 20);
	assert_cause(COVEY_ERR_STORE, "the store's cluster does not serve the group's slot: CLUSTERDOWN");
	cli("cluster addslotsrange 0 16383");
	while (!plain(&real, "cluster info | grep -q cluster_state:fail"))
		poll(NULL, 0, 20);
	assert_cause(COVEY_ERR_REFUSED, "no group named g");
}

int main(void)
{
	if (system("command -v redis-server > /dev/null && command -v redis-cli > /dev/null") != 0) {
		puts("skipped: there is no redis-server or no redis-cli on PATH");
		return 77;
	}
	return suite_run(SUITE(.name = "membership/redis", .setup = setup, .teardown = teardown, .timeout_s = 60));
}
