/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request to a group's store from outside the group: a loop of its own on the caller's thread,
 * until the reply or the deadline. ask and prove may run twice without harm, so a lost reply is
 * answered by one more try.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "covey_admin.h"
#include "clock.h"
#include "config.h"
#include "membership.h"
#include "process.h"

#define CALL_MS 2000 /* bound of one try, long enough for a slow store */
#define TRIES 2
#define DEFAULT_MS 5000 /* deadline 0 */
#define TICK_MS 50
#define COMMON 7
#define ARGS_MAX 16

struct admin {
	struct cvy_loop *loop;
	struct cvy_store *store;
	struct cvy_errbox *box;
	const char *group;
	const char *argv[COMMON + ARGS_MAX];
	int argc, tries, ended, err;
	uint64_t deadline_ns;
	char rnd[40], last[200]; /* last: why the store has not answered */
	void (*pair)(void *ctx, const char *key, const char *value);
	void *ctx;
};

static void end(struct admin *a, int err)
{
	a->err = err;
	a->ended = 1;
	cvy_loop_stop(a->loop);
}

static void send_call(struct admin *a)
{
	a->tries++;
	a->store->ops->call(a->store, (uint64_t)a->tries, a->argc, a->argv);
}

static int verdict(struct admin *a, const char *status, const char *why)
{
	static const struct {
		const char *status;
		int err;
	} table[] = { { "OK", 0 },
		      { "REFUSED", COVEY_ERR_REFUSED },
		      { "CLOSED", COVEY_ERR_CLOSED },
		      { "VERSION", COVEY_ERR_VERSION },
		      { "ERROR", COVEY_ERR_STORE } };

	if (strcmp(status, "GONE") == 0)
		return cvy_fail(a->box, COVEY_ERR_REFUSED, -1, 0, "the store has no group named %s", a->group);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (strcmp(status, table[i].status) != 0)
			continue;
		if (!table[i].err)
			return 0;
		return cvy_fail(a->box, table[i].err, -1, 0, "%s", why ? why : status);
	}
	return cvy_fail(a->box, COVEY_ERR_STORE, -1, 0, "the store answered %s", status);
}

static void on_reply(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause)
{
	struct admin *a = ctx;
	const char *why = NULL;

	if (a->ended || id != (uint64_t)a->tries)
		return;
	if (err || argc < 1) {
		snprintf(a->last, sizeof(a->last), "%s", cause ? cause : "no reply");
		if (a->tries >= TRIES)
			end(a, cvy_fail(a->box, err ? err : COVEY_ERR_STORE, -1, 0, "%s", a->last));
		else if (err == COVEY_ERR_TIMEOUT)
			send_call(a); /* a broken connection comes up by itself, and then calls again */
		return;
	}
	if (a->pair)
		a->pair(a->ctx, "status", argv[0]);
	for (int i = 1; i + 1 < argc; i += 2) {
		if (a->pair)
			a->pair(a->ctx, argv[i], argv[i + 1]);
		if (strcmp(argv[i], "why") == 0)
			why = argv[i + 1];
	}
	end(a, verdict(a, argv[0], why));
}

static void on_up(void *ctx)
{
	struct admin *a = ctx;

	if (!a->ended && a->tries < TRIES)
		send_call(a);
}

static void on_down(void *ctx, int err, const char *cause)
{
	struct admin *a = ctx;

	snprintf(a->last, sizeof(a->last), "%s", cause);
	if (!a->ended && (err == COVEY_ERR_AUTH || err == COVEY_ERR_VERSION || err == COVEY_ERR_INVAL))
		end(a, cvy_fail(a->box, err, -1, 0, "%s", cause));
}

static void on_tick(void *ctx, uint64_t now_ns)
{
	struct admin *a = ctx;

	if (a->ended || now_ns < a->deadline_ns)
		return;
	if (a->last[0])
		end(a, cvy_fail(a->box, COVEY_ERR_STORE, -1, 0, "%s", a->last));
	else
		end(a, cvy_fail(a->box, COVEY_ERR_TIMEOUT, -1, 0, "the store did not answer before the deadline"));
}

static int fill(struct admin *a, int argc, const char *const *argv)
{
	static const char *const outside[] = { "-", "-", "-", "-", "-" };
	uint64_t random[2];

	int given = argv && argc >= 1 && argc <= ARGS_MAX;

	for (int i = 0; given && i < argc; i++)
		given = argv[i] != NULL;
	if (!given || (strcmp(argv[0], "peek") != 0 && strcmp(argv[0], "ask") != 0 && strcmp(argv[0], "prove") != 0) ||
	    (strcmp(argv[0], "ask") == 0 && argc < 2) || (strcmp(argv[0], "prove") == 0 && argc != 4))
		return cvy_fail(a->box, COVEY_ERR_INVAL, -1, 0,
				"a request is peek, ask KIND ARGS or prove RANK INC KIND");
	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return cvy_fail(a->box, COVEY_ERR_IO, -1, 0, "getrandom: %s", strerror(errno));
	snprintf(a->rnd, sizeof(a->rnd), "%016llx%016llx", (unsigned long long)random[0],
		 (unsigned long long)random[1]);
	a->argv[0] = argv[0];
	memcpy(&a->argv[1], outside, sizeof(outside));
	a->argv[6] = a->rnd;
	for (int i = 1; i < argc; i++)
		a->argv[COMMON + i - 1] = argv[i];
	a->argc = COMMON + argc - 1;
	if (strcmp(argv[0], "peek") == 0) {
		a->argv[COMMON] = "0";
		a->argv[COMMON + 1] = "-1";
		a->argc = COMMON + 2;
	}
	return 0;
}

static int converse(struct admin *a, const struct cvy_config *config)
{
	const struct cvy_store_sink sink = { .ctx = a, .reply = on_reply, .up = on_up, .down = on_down };
	const int tick_ms = TICK_MS;
	int err = cvy_loop_new(&a->loop);

	if (err)
		return cvy_fail(a->box, err, -1, 0, "no event loop for the request");
	a->group = config->group;
	err = cvy_redis_open(config->store, config->group, a->loop, &sink, CALL_MS, a->box, &a->store);
	if (!err) {
		cvy_loop_run(a->loop, on_tick, a, &tick_ms);
		a->store->ops->close(a->store);
		err = a->err;
	}
	cvy_loop_free(a->loop);
	return err;
}

int covey_admin_call(const char *store, const char *group, int argc, const char *const *argv, uint64_t deadline_ns,
		     void (*pair)(void *ctx, const char *key, const char *value), void *ctx)
{
	struct covey_config from = COVEY_CONFIG_INIT;
	struct admin a = { .pair = pair, .ctx = ctx };
	struct cvy_config config;
	int err;

	cvy_process_standard();
	a.deadline_ns = deadline_ns ? deadline_ns : cvy_now_ns() + DEFAULT_MS * CVY_MS;
	err = fill(&a, argc, argv);
	if (err)
		return err;
	from.store = store;
	from.group = group;
	/* The caller need not be of any job: a world or a rank in the environment must not matter. */
	from.create = COVEY_CREATE_NEVER;
	from.max_ranks = COVEY_MAX_RANKS;
	err = cvy_config_resolve(&from, &config, NULL);
	if (err)
		return err;
	err = converse(&a, &config);
	cvy_config_clear(&config);
	return err;
}
