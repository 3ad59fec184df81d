/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and replies. Redis answers in order, so requests without a reply are one queue. A call that met its
 * deadline has been answered but stays in the queue until its late reply arrives and is dropped. Its time sets the
 * bound of later calls: else a store far away would never answer in time.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "redis.h"
#include "url.h"

#define ARGS_MAX 200000	 /* strings of one call: a record of 4096 ranks has fewer */
#define DEAD_CALLS 10	 /* call bounds without any reply until the connection counts as dead */
#define WAIT_MAX_MS 1000 /* longest bound of one call, for a slow store */
#define OLDEST_MAJOR 6
#define OLDEST_MINOR 2

static void args_free(char **argv, int argc)
{
	for (int i = 0; argv && i < argc; i++)
		free(argv[i]);
	free(argv);
}

static void answer(struct redis *r, struct expect *e, int err, int argc, const char *const *argv, const char *cause)
{
	if (!e->open || r->dying)
		return;
	e->open = 0;
	r->sink.reply(r->sink.ctx, e->id, err, argc, argv, cause);
}

static struct expect take(struct conn *k)
{
	struct expect e = k->queue[k->head];

	k->head = (k->head + 1) % (CVY_REDIS_QUEUE + 4);
	k->count--;
	return e;
}

void cvy_redis_end_calls(struct conn *k, const char *cause)
{
	while (k->count) {
		struct expect e = take(k);

		answer(k->redis, &e, COVEY_ERR_STORE, 0, NULL, cause);
		args_free(e.argv, e.argc);
	}
}

void cvy_redis_tell_refused(struct redis *r)
{
	struct refusal *list = r->refused;

	r->refused = NULL;
	while (list) {
		struct refusal *next = list->next;

		if (!r->dying)
			r->sink.reply(r->sink.ctx, list->id, COVEY_ERR_STORE, 0, NULL, list->cause);
		free(list);
		list = next;
	}
}

/* ---- Bytes ---- */

void cvy_redis_push(struct conn *k)
{
	int done = 0;

	/* The rest is sent when the socket is writable. */
	if (redisBufferWrite(k->c, &done) != REDIS_OK) {
		if (!cvy_redis_tls_broke(k))
			cvy_redis_break(k, COVEY_ERR_STORE, 0, k->c->errstr);
		return;
	}
	cvy_loop_change(k->watch, done || cvy_redis_tls_reads(k) ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static int queue_add(struct conn *k, enum kind kind, const struct expect *from, int argc, const char **argv)
{
	struct expect *e;

	if (k->count == CVY_REDIS_QUEUE + 4 || redisAppendCommandArgv(k->c, argc, argv, NULL) != REDIS_OK)
		return COVEY_ERR_STORE;
	e = &k->queue[(k->head + k->count++) % (CVY_REDIS_QUEUE + 4)];
	memset(e, 0, sizeof(*e));
	if (from)
		*e = *from;
	e->kind = kind;
	if (!from)
		e->sent_ns = cvy_now_ns();
	return 0;
}

void cvy_redis_greet(struct conn *k)
{
	struct redis *r = k->redis;
	const char *auth[3] = { "AUTH", r->url.user, r->url.password }, *select_db[2] = { "SELECT" };
	const char *role[1] = { "ROLE" }, *info[2] = { "INFO", "server" }, *subscribe[2] = { "SUBSCRIBE", r->channel };
	char db[8];
	int err = 0;

	snprintf(db, sizeof(db), "%d", r->url.db);
	select_db[1] = db;
	if (r->url.password[0] && r->url.user[0])
		err |= queue_add(k, GREET_AUTH, NULL, 3, auth);
	else if (r->url.password[0]) {
		auth[1] = auth[2];
		err |= queue_add(k, GREET_AUTH, NULL, 2, auth);
	}
	if (r->url.db)
		err |= queue_add(k, GREET_SELECT, NULL, 2, select_db);
	if (r->url.sentinels)
		err |= queue_add(k, GREET_ROLE, NULL, 1, role);
	if (k == &r->calls)
		err |= queue_add(k, GREET_INFO, NULL, 2, info);
	else
		err |= queue_add(k, GREET_SUBSCRIBE, NULL, 2, subscribe);
	if (err)
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "out of memory in the store client");
	else
		cvy_redis_push(k);
}

void cvy_redis_ask(struct conn *k, enum kind kind, int argc, const char **argv)
{
	if (queue_add(k, kind, NULL, argc, argv))
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "out of memory in the store client");
	else
		cvy_redis_push(k);
}

/* ---- Replies ---- */

static int begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Errors of a server that may serve later, and the remedies. */
static const struct excuse {
	const char *prefix, *why;
	int elsewhere; /* another server may serve: end the connection */
} excuses[] = {
	{ "READONLY", "the store is a read-only replica: name its master, or its sentinels (redis+sentinel://)", 1 },
	{ "MASTERDOWN", "the store is a replica that has lost its master: name the master, or its sentinels", 1 },
	{ "LOADING", "the store is loading its data", 1 },
	{ "CLUSTERDOWN", "the store's cluster does not serve the group's slot", 1 },
	{ "ASK ", "the store's cluster moves the group's slot to another node", 1 },
	{ "TRYAGAIN", "the store's cluster moves the group's slot to another node", 1 },
	{ "OOM", "the store is full: give it more maxmemory", 0 },
	{ "MISCONF", "the store cannot save to its disk and refuses to write", 0 },
	{ "NOREPLICAS", "the store has too few replicas to write (min-replicas-to-write)", 0 },
	{ "BUSY", "the store runs a script that does not end", 0 },
};

static const struct excuse *find_excuse(const char *text)
{
	if (begins(text, "ERR ")) /* an error that a script passes on */
		text += strlen("ERR ");
	for (size_t i = 0; i < sizeof(excuses) / sizeof(excuses[0]); i++)
		if (begins(text, excuses[i].prefix))
			return &excuses[i];
	return NULL;
}

/* A server may name the user in its texts. No part of a URL before its @ may be shown. */
static void hide(const struct redis *r, char *text, size_t bytes)
{
	cvy_url_hide(text, bytes, r->url.password);
	cvy_url_hide(text, bytes, r->url.user);
}

/* Writes the meaning of the server's @text, then the text, to @why. */
static void explain(const struct redis *r, const char *text, char *why, size_t bytes)
{
	const struct excuse *excuse = find_excuse(text);
	char said[4096]; /* more than is shown: a secret that is cut is not found */

	snprintf(said, sizeof(said), "%s", text);
	hide(r, said, sizeof(said));
	snprintf(why, bytes, "%s%s%.200s", excuse ? excuse->why : "", excuse ? ": " : "", said);
}

/* Copies the word that begins at @at, in capitals. */
static void word_of(const char *at, char *word, size_t bytes)
{
	size_t n = 0;

	while (n + 1 < bytes && (isalnum((unsigned char)at[n]) || at[n] == '_')) {
		word[n] = (char)toupper((unsigned char)at[n]);
		n++;
	}
	word[n] = '\0';
}

/*
 * Names the permission that the store's user lacks, and the grant. The text names the command, or a key or a channel;
 * its form depends on the server's version. The script names the command that it gave last (NOPERM X:).
 */
static void explain_permission(const struct redis *r, const char *text, char *why, size_t bytes)
{
	static const char rest[] = "(ACL SETUSER; all that covey needs stands in docs/operate/store.md)";
	const char *run = strstr(text, "run the '");
	char command[40] = "", small[40] = "";

	if (run)
		word_of(run + strlen("run the '"), command, sizeof(command));
	else if (begins(text, "NOPERM "))
		word_of(text + strlen("NOPERM "), command, sizeof(command));
	for (size_t i = 0; command[i]; i++)
		small[i] = (char)tolower((unsigned char)command[i]);
	if (!run && strstr(text, "channel"))
		snprintf(why, bytes, "the store's user may not use the channel %s: grant &covey:* %s", r->channel,
			 rest);
	else if (!run && strstr(text, "key"))
		snprintf(why, bytes, "the store's user may not use the key %s: grant ~covey:* %s", r->key, rest);
	else if (command[0])
		snprintf(why, bytes, "the store's user may not run the command %s: grant +%s %s", command, small, rest);
	else
		snprintf(why, bytes, "the store's user lacks a permission %s", rest);
}

static void explain_missing(const char *text, char *why, size_t bytes)
{
	const char *quoted = strchr(text, '\'');
	char command[40] = "";

	if (begins(text, "NOCOMMAND "))
		word_of(text + strlen("NOCOMMAND "), command, sizeof(command));
	else if (quoted)
		word_of(quoted + 1, command, sizeof(command));
	snprintf(why, bytes,
		 "the store has no command %s, which covey needs: it is renamed or disabled there (rename-command), or "
		 "the server is no Redis",
		 command[0] ? command : "of those");
}

/* Does the server refuse every call? Then ends the connection: for good if the store never worked, else until the
 * permission or command is back. */
static int refuses(struct conn *k, const char *text)
{
	char why[400];

	if (begins(text, "NOPERM")) {
		explain_permission(k->redis, text, why, sizeof(why));
		cvy_redis_break(k, COVEY_ERR_AUTH, !k->redis->worked, why);
	} else if (begins(text, "NOCOMMAND") || begins(text, "ERR unknown command")) {
		explain_missing(text, why, sizeof(why));
		cvy_redis_break(k, COVEY_ERR_INVAL, !k->redis->worked, why);
	} else {
		return 0;
	}
	return 1;
}

/* 1: the error concerned the connection, not one call, and was handled. */
static int connection_error(struct conn *k, enum kind kind, const char *text)
{
	const struct excuse *excuse = find_excuse(text);
	char why[400], said[240];

	snprintf(said, sizeof(said), "%.200s", text);
	hide(k->redis, said, sizeof(said));
	if (begins(text, "MOVED "))
		cvy_redis_moved(k, text);
	else if (refuses(k, text))
		return 1;
	else if (begins(text, "NOAUTH") || begins(text, "WRONGPASS") || kind == GREET_AUTH) {
		snprintf(why, sizeof(why), "the store refused user or password: %s", said);
		cvy_redis_break(k, COVEY_ERR_AUTH, 1, why);
	} else if (kind == GREET_SELECT) {
		snprintf(why, sizeof(why), "the store refused database %d: %s", k->redis->url.db, said);
		cvy_redis_break(k, COVEY_ERR_INVAL, 1, why);
	} else if ((excuse && excuse->elsewhere) || kind < CALL_SHA) {
		snprintf(why, sizeof(why), "%s: %s", excuse ? excuse->why : "the store cannot serve", said);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
	} else {
		return 0;
	}
	return 1;
}

/* A sentinel may be late, and a server that restarted may not know yet that it has become a replica. */
static void check_role(struct conn *k, const redisReply *reply)
{
	const char *role = reply->type == REDIS_REPLY_ARRAY && reply->elements ? reply->element[0]->str : NULL;
	char why[600];

	if (role && strcmp(role, "master") == 0)
		return;
	snprintf(why, sizeof(why), "the store is no master, its role is %.40s%s", role ? role : "not told",
		 k->redis->named);
	cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
}

static void check_info(struct conn *k, const redisReply *reply)
{
	const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "redis_version:") : NULL;
	int major = 0, minor = 0;
	char why[160];

	if (!at || sscanf(at, "redis_version:%d.%d", &major, &minor) != 2) {
		cvy_redis_break(k, COVEY_ERR_VERSION, 1, "the store does not tell its redis_version");
	} else if (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR)) {
		snprintf(why, sizeof(why), "the store runs Redis %d.%d, covey needs %d.%d or later", major, minor,
			 OLDEST_MAJOR, OLDEST_MINOR);
		cvy_redis_break(k, COVEY_ERR_VERSION, 1, why);
	} else if (strstr(reply->str, "redis_mode:cluster")) {
		cvy_redis_ask_slot(k);
	} else {
		cvy_redis_ready(k);
	}
}

/* The server's text if it stopped the script at its first write, which replies {ERROR, why, text}, or did not begin it.
 * NULL: the script ran. */
static const char *stopped(const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		return reply->str;
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 3 || !reply->element[0]->str ||
	    !reply->element[2]->str || strcmp(reply->element[0]->str, "ERROR") != 0)
		return NULL;
	return reply->element[2]->str;
}

/* A reply to a call shows that the store works; greetings alone do not. */
static void serves(struct redis *r)
{
	r->backoff_ms = CVY_REDIS_BACKOFF_MIN_MS;
	r->worked = 1;
	r->hops = 0;
	if (r->told_down)
		cvy_warn("store", "the store is back");
	r->told_down = 0;
}

static void call_reply(struct redis *r, struct expect *e, const redisReply *reply)
{
	const char *text = stopped(reply);
	const struct excuse *excuse = text ? find_excuse(text) : NULL;
	const char **argv = NULL, *refusal[] = { "ERROR", "why", NULL };
	char why[400] = "a reply that is no array";

	if (text && (excuse || reply->type == REDIS_REPLY_ERROR))
		explain(r, text, why, sizeof(why));
	refusal[2] = why;
	if (text && refuses(&r->calls, text))
		snprintf(why, sizeof(why), "%.390s", r->cause);
	else if (excuse && excuse->elsewhere)
		cvy_redis_break(&r->calls, COVEY_ERR_STORE, 0, why);
	else if (excuse)
		answer(r, e, 0, 3, refusal, NULL);
	else if (reply->type == REDIS_REPLY_ARRAY)
		argv = calloc(reply->elements + 1, sizeof(*argv));
	for (size_t i = 0; argv && i < reply->elements; i++) {
		const redisReply *item = reply->element[i];

		argv[i] = item->type == REDIS_REPLY_STRING || item->type == REDIS_REPLY_STATUS ? item->str : "";
	}
	if (argv) {
		serves(r);
		answer(r, e, 0, (int)reply->elements, argv, NULL);
	}
	answer(r, e, COVEY_ERR_STORE, 0, NULL, why); /* no effect if it was answered */
	free(argv);
}

static int send_call(struct conn *k, enum kind kind, const struct expect *e)
{
	const char **argv = calloc((size_t)e->argc + 5, sizeof(*argv));
	int err;

	if (!argv)
		return COVEY_ERR_NOMEM;
	argv[0] = kind == CALL_SHA ? "EVALSHA" : "EVAL";
	argv[1] = kind == CALL_SHA ? cvy_store_sha1 : cvy_store_lua;
	argv[2] = "2";
	argv[3] = k->redis->key;
	argv[4] = k->redis->channel;
	for (int i = 0; i < e->argc; i++)
		argv[5 + i] = e->argv[i];
	err = queue_add(k, kind, e, e->argc + 5, argv);
	free(argv);
	if (!err)
		cvy_redis_push(k);
	return err;
}

static void on_notice(struct redis *r, const redisReply *reply)
{
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || !reply->element[0]->str ||
	    !reply->element[2]->str)
		return;
	if (strcmp(reply->element[0]->str, "message") == 0)
		r->sink.notice(r->sink.ctx, reply->element[2]->str);
}

/* Sets wait_ms to twice the time of the last call, within bounds. */
static void learn_pace(struct redis *r, const struct expect *e)
{
	uint64_t twice = 2 * (cvy_now_ns() - e->sent_ns) / CVY_MS;
	int most = r->call_ms > WAIT_MAX_MS ? r->call_ms : WAIT_MAX_MS;

	r->wait_ms = twice > (uint64_t)most ? most : twice > (uint64_t)r->call_ms ? (int)twice : r->call_ms;
}

static void on_reply(struct conn *k, const redisReply *reply)
{
	struct redis *r = k->redis;
	struct expect e;

	if (!k->count) {
		if (k == &r->notices)
			on_notice(r, reply);
		return;
	}
	e = take(k);
	if (e.kind >= CALL_SHA)
		learn_pace(r, &e);
	if (reply->type == REDIS_REPLY_ERROR && e.kind == CALL_SHA && begins(reply->str, "NOSCRIPT")) {
		if (!e.open || send_call(k, CALL_TEXT, &e) == 0) {
			if (!e.open)
				args_free(e.argv, e.argc);
			return;
		}
	}
	if (reply->type == REDIS_REPLY_ERROR && connection_error(k, e.kind, reply->str))
		answer(r, &e, COVEY_ERR_STORE, 0, NULL, r->cause);
	else if (e.kind == GREET_ROLE)
		check_role(k, reply);
	else if (e.kind == GREET_INFO)
		check_info(k, reply);
	else if (e.kind == GREET_SUBSCRIBE || e.kind == GREET_SLOT)
		cvy_redis_ready(k);
	else if (e.kind >= CALL_SHA)
		call_reply(r, &e, reply);
	args_free(e.argv, e.argc);
}

void cvy_redis_read(struct conn *k)
{
	struct redis *r = k->redis;

	do {
		if (redisBufferRead(k->c) == REDIS_OK)
			continue;
		if (!cvy_redis_tls_broke(k))
			cvy_redis_break(k, COVEY_ERR_STORE, 0,
					k->c->errstr[0] ? k->c->errstr : "the store closed the connection");
		return;
	} while (cvy_redis_tls_pending(k)); /* no event reports these bytes */
	while (!r->dying && !k->broken) {
		void *reply = NULL;

		if (redisGetReplyFromReader(k->c, &reply) != REDIS_OK) {
			cvy_redis_break(k, COVEY_ERR_STORE, 0, k->c->errstr);
			return;
		}
		if (!reply)
			return;
		on_reply(k, reply);
		freeReplyObject(reply);
	}
}

/* ---- Calls ---- */

/* Sets the timer to the first bound that ends: of an open call, or of the connection, counted from its oldest call. */
static void arm(struct redis *r)
{
	struct conn *k = &r->calls;
	uint64_t wait = (uint64_t)r->wait_ms * CVY_MS, dead = (uint64_t)r->call_ms * DEAD_CALLS * CVY_MS, first = 0;

	for (int i = 0; i < k->count; i++) {
		const struct expect *e = &k->queue[(k->head + i) % (CVY_REDIS_QUEUE + 4)];
		uint64_t bound = e->sent_ns + (e->open && wait < dead ? wait : dead);

		if ((e->open || i == 0) && (!first || bound < first))
			first = bound;
	}
	if (!first || !r->up || (r->bound && r->bound_ns <= first))
		return;
	cvy_loop_cancel(r->bound);
	r->bound_ns = first;
	r->bound = cvy_loop_timer(r->loop, first, cvy_redis_bound, r);
}

void cvy_redis_bound(void *ctx)
{
	struct redis *r = ctx;
	struct conn *k = &r->calls;
	uint64_t now = cvy_now_ns(), wait = (uint64_t)r->wait_ms * CVY_MS, call = (uint64_t)r->call_ms * CVY_MS;

	r->bound = NULL;
	if (!r->up && !k->connected) {
		cvy_redis_unreached(k, "no answer in time");
		return;
	}
	if (!r->up) {
		cvy_redis_break(k, COVEY_ERR_STORE, 0,
				cvy_redis_tls_hangs(k)
					? "the store does not answer the TLS handshake: does it speak TLS on this port?"
					: "the store does not answer the greeting");
		return;
	}
	cvy_redis_enter(r);
	if (k->count && k->queue[k->head].sent_ns + DEAD_CALLS * call <= now)
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "the store does not answer");
	for (int i = 0; i < k->count && !r->dying; i++) {
		struct expect *e = &k->queue[(k->head + i) % (CVY_REDIS_QUEUE + 4)];

		if (e->open && e->sent_ns + wait <= now)
			answer(r, e, COVEY_ERR_TIMEOUT, 0, NULL, "the store did not answer in time");
	}
	if (!r->dying && !k->broken)
		arm(r);
	cvy_redis_leave(r);
}

static void refuse(struct redis *r, uint64_t id, const char *cause)
{
	struct refusal *f = calloc(1, sizeof(*f)), **at = &r->refused;

	if (!f)
		return; /* the caller's own bound ends the call */
	while (*at)
		at = &(*at)->next;
	f->id = id;
	f->cause = cause;
	*at = f;
	cvy_redis_soon(r);
}

static char **args_copy(int argc, const char *const *argv)
{
	char **copy = calloc((size_t)argc + 1, sizeof(*copy));

	for (int i = 0; copy && i < argc; i++) {
		copy[i] = strdup(argv[i]);
		if (!copy[i]) {
			args_free(copy, argc);
			return NULL;
		}
	}
	return copy;
}

void cvy_redis_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	struct redis *r = (struct redis *)store;
	struct expect e = { .id = id, .open = 1, .sent_ns = cvy_now_ns(), .argc = argc };

	if (!r->up || r->calls.broken)
		refuse(r, id, "there is no connection to the store");
	else if (r->calls.count >= CVY_REDIS_QUEUE)
		refuse(r, id, "too many store calls are without a reply");
	else if (argc > ARGS_MAX || !(e.argv = args_copy(argc, argv)))
		refuse(r, id, "the store call is too large");
	else if (send_call(&r->calls, CALL_SHA, &e)) {
		args_free(e.argv, argc);
		refuse(r, id, "the store call could not be queued");
	} else {
		arm(r);
	}
}
