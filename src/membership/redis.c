/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store client on hiredis, in the agent's loop. It never blocks: sockets are non-blocking, names are
 * resolved by a helper thread. Two connections, one for calls and one for notices. Redis answers in
 * order, so what is outstanding is one queue; a call that met its deadline stays in it, already
 * answered, until its late reply arrives and is thrown away. Sinks may call or close from within.
 */
#include <errno.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "clock.h"
#include "log.h"
#include "membership.h"
#include "redis_url.h"
#include "store.h"

#define QUEUE_MAX 64	/* calls without a reply */
#define ARGS_MAX 200000 /* strings of one call: a record of 4096 ranks has fewer */
#define CONNECT_MS 1000 /* from connect to the last reply of the greeting */
#define BACKOFF_MIN_MS 10
#define BACKOFF_MAX_MS 1000
#define DEAD_CALLS 10 /* call bounds without any reply: the connection is taken for dead */
#define OLDEST_MAJOR 6
#define OLDEST_MINOR 2

enum kind { GREET_AUTH, GREET_SELECT, GREET_INFO, GREET_SUBSCRIBE, CALL_SHA, CALL_TEXT };

struct expect {
	enum kind kind;
	int open; /* the sink still waits for it */
	uint64_t id, sent_ns;
	int argc;
	char **argv; /* kept for EVAL, should Redis not know the script */
};

struct redis;

struct conn {
	struct redis *redis;
	const char *name;
	redisContext *c;
	struct cvy_watch *watch;
	int connected, ready, broken;
	struct expect queue[QUEUE_MAX + 4];
	int head, count;
};

struct resolve { /* shared with the helper thread; the last of both frees it */
	pthread_mutex_t lock;
	struct cvy_loop *loop; /* NULL: nobody waits any more */
	struct redis *redis;   /* loop's thread only */
	char host[256], ip[64];
	int err;
};

struct refusal {
	uint64_t id;
	const char *cause;
	struct refusal *next;
};

struct redis {
	struct cvy_store store; /* first */
	struct cvy_loop *loop;
	struct cvy_store_sink sink;
	struct cvy_redis_url url;
	char key[128], channel[128], ip[64];
	int call_ms, backoff_ms;
	int up, told_down, fatal, depth, dying;
	struct conn calls, notices;
	struct cvy_timer *retry, *bound, *soon;
	uint64_t bound_ns; /* when `bound` fires */
	struct resolve *resolve;
	struct refusal *refused;
	char cause[200];
	int cause_err;
};

static void start(struct redis *r);
static void look_around(struct redis *r);

/* ---- Ends ---- */

static void args_free(char **argv, int argc)
{
	for (int i = 0; argv && i < argc; i++)
		free(argv[i]);
	free(argv);
}

static void enter(struct redis *r)
{
	r->depth++;
}

static void leave(struct redis *r)
{
	if (--r->depth || !r->dying)
		return;
	free(r);
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

	k->head = (k->head + 1) % (QUEUE_MAX + 4);
	k->count--;
	return e;
}

static void conn_close(struct conn *k)
{
	cvy_loop_unwatch(k->watch);
	k->watch = NULL;
	if (k->c)
		redisFree(k->c);
	k->c = NULL;
	k->connected = k->ready = k->broken = 0;
	while (k->count) {
		struct expect e = take(k);

		answer(k->redis, &e, COVEY_ERR_STORE, 0, NULL, "the connection to the store broke");
		args_free(e.argv, e.argc);
	}
}

static void soon_fire(void *ctx)
{
	struct redis *r = ctx;

	r->soon = NULL;
	look_around(r);
}

/* Ends are never made inside hiredis or a caller's frame, but from the loop. */
static void soon(struct redis *r)
{
	if (!r->soon && !r->dying)
		r->soon = cvy_loop_timer(r->loop, cvy_now_ns(), soon_fire, r);
}

static void breaks(struct conn *k, int err, int fatal, const char *cause)
{
	struct redis *r = k->redis;

	if (!k->broken) {
		r->cause_err = err;
		snprintf(r->cause, sizeof(r->cause), "%s", cause);
	}
	k->broken = 1;
	r->fatal |= fatal;
	soon(r);
}

static void retry_fire(void *ctx)
{
	struct redis *r = ctx;

	r->retry = NULL;
	start(r);
}

/* Both connections fall together: a notice that is missed must be followed by `up`, that is by a peek. */
/* between enter and leave */
static void fall(struct redis *r)
{
	int tell = r->up || !r->told_down || r->fatal;

	r->up = 0;
	cvy_loop_cancel(r->bound);
	r->bound = NULL;
	conn_close(&r->calls);
	conn_close(&r->notices);
	if (!r->dying && tell) {
		r->told_down = 1;
		cvy_warn("store", "%s%s", r->cause, r->fatal ? "" : "; trying again");
		r->sink.down(r->sink.ctx, r->cause_err, r->cause);
	}
	if (!r->dying && !r->fatal && !r->retry) {
		r->retry = cvy_loop_timer(r->loop, cvy_now_ns() + (uint64_t)r->backoff_ms * CVY_MS, retry_fire, r);
		r->backoff_ms = 2 * r->backoff_ms > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : 2 * r->backoff_ms;
	}
}

static void tell_refused(struct redis *r)
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

static void look_around(struct redis *r)
{
	enter(r);
	tell_refused(r);
	if (!r->dying && (r->calls.broken || r->notices.broken))
		fall(r);
	leave(r);
}

/* ---- Bytes ---- */

static void push(struct conn *k)
{
	int done = 0;

	while (!done) {
		ssize_t before = (ssize_t)sdslen(k->c->obuf);

		if (redisBufferWrite(k->c, &done) != REDIS_OK) {
			breaks(k, COVEY_ERR_STORE, 0, k->c->errstr);
			return;
		}
		if (!done && (ssize_t)sdslen(k->c->obuf) == before)
			break; /* the socket is full */
	}
	cvy_loop_change(k->watch, done ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static int queue_add(struct conn *k, enum kind kind, const struct expect *from, int argc, const char **argv)
{
	struct expect *e;

	if (k->count == QUEUE_MAX + 4 || redisAppendCommandArgv(k->c, argc, argv, NULL) != REDIS_OK)
		return COVEY_ERR_STORE;
	e = &k->queue[(k->head + k->count++) % (QUEUE_MAX + 4)];
	memset(e, 0, sizeof(*e));
	if (from)
		*e = *from;
	e->kind = kind;
	if (!from)
		e->sent_ns = cvy_now_ns();
	return 0;
}

static void greet(struct conn *k)
{
	struct redis *r = k->redis;
	const char *auth[3] = { "AUTH", r->url.user, r->url.password }, *select_db[2] = { "SELECT" };
	const char *info[2] = { "INFO", "server" }, *subscribe[2] = { "SUBSCRIBE", r->channel };
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
	if (k == &r->calls)
		err |= queue_add(k, GREET_INFO, NULL, 2, info);
	else
		err |= queue_add(k, GREET_SUBSCRIBE, NULL, 2, subscribe);
	if (err)
		breaks(k, COVEY_ERR_STORE, 0, "out of memory in the store client");
	else
		push(k);
}

/* ---- Replies ---- */

static int begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Errors that are about the connection and not about one call; 1 if it was one. */
static int connection_error(struct conn *k, enum kind kind, const char *text)
{
	char why[160];

	if (begins(text, "MOVED") || begins(text, "ASK ") || begins(text, "CLUSTERDOWN") || begins(text, "CROSSSLOT"))
		breaks(k, COVEY_ERR_INVAL, 1,
		       "the store is a Redis Cluster, which is not supported: name a single server");
	else if (kind == GREET_INFO && (begins(text, "NOPERM") || strstr(text, "permission")))
		breaks(k, COVEY_ERR_AUTH, 1, "the store's user may not run INFO, which covey needs: grant +info");
	else if (begins(text, "NOAUTH") || begins(text, "WRONGPASS") || begins(text, "NOPERM") || kind == GREET_AUTH) {
		snprintf(why, sizeof(why), "the store refused user or password: %s", text);
		breaks(k, COVEY_ERR_AUTH, 1, why);
	} else if (kind == GREET_SELECT) {
		snprintf(why, sizeof(why), "the store refused database %d: %s", k->redis->url.db, text);
		breaks(k, COVEY_ERR_INVAL, 1, why);
	} else if (begins(text, "LOADING") || begins(text, "READONLY") || begins(text, "MASTERDOWN") ||
		   kind < CALL_SHA) {
		snprintf(why, sizeof(why), "the store cannot serve: %s", text);
		breaks(k, COVEY_ERR_STORE, 0, why);
	} else {
		return 0;
	}
	return 1;
}

static void is_ready(struct conn *k)
{
	struct redis *r = k->redis;

	k->ready = 1;
	if (r->up || !r->calls.ready || (r->sink.notice && !r->notices.ready))
		return;
	r->up = 1;
	r->told_down = 0;
	r->backoff_ms = BACKOFF_MIN_MS;
	cvy_loop_cancel(r->bound);
	r->bound = NULL;
	r->sink.up(r->sink.ctx);
}

static void check_info(struct conn *k, const redisReply *reply)
{
	const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "redis_version:") : NULL;
	int major = 0, minor = 0;
	char why[160];

	if (!at || sscanf(at, "redis_version:%d.%d", &major, &minor) != 2) {
		breaks(k, COVEY_ERR_VERSION, 1, "the store does not tell its redis_version");
	} else if (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR)) {
		snprintf(why, sizeof(why), "the store runs Redis %d.%d, covey needs %d.%d or later", major, minor,
			 OLDEST_MAJOR, OLDEST_MINOR);
		breaks(k, COVEY_ERR_VERSION, 1, why);
	} else if (strstr(reply->str, "redis_mode:cluster")) {
		breaks(k, COVEY_ERR_INVAL, 1,
		       "the store is a Redis Cluster, which is not supported: name a single server");
	} else {
		is_ready(k);
	}
}

static void call_reply(struct redis *r, struct expect *e, const redisReply *reply)
{
	const char **argv = NULL;

	if (reply->type == REDIS_REPLY_ARRAY)
		argv = calloc(reply->elements + 1, sizeof(*argv));
	for (size_t i = 0; argv && i < reply->elements; i++) {
		const redisReply *item = reply->element[i];

		argv[i] = item->type == REDIS_REPLY_STRING || item->type == REDIS_REPLY_STATUS ? item->str : "";
	}
	if (argv)
		answer(r, e, 0, (int)reply->elements, argv, NULL);
	else
		answer(r, e, COVEY_ERR_STORE, 0, NULL,
		       reply->type == REDIS_REPLY_ERROR ? reply->str : "a reply that is no array");
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
		push(k);
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
	if (reply->type == REDIS_REPLY_ERROR && e.kind == CALL_SHA && begins(reply->str, "NOSCRIPT")) {
		if (!e.open || send_call(k, CALL_TEXT, &e) == 0) {
			if (!e.open)
				args_free(e.argv, e.argc);
			return;
		}
	}
	if (reply->type == REDIS_REPLY_ERROR && connection_error(k, e.kind, reply->str))
		answer(r, &e, COVEY_ERR_STORE, 0, NULL, reply->str);
	else if (e.kind == GREET_INFO)
		check_info(k, reply);
	else if (e.kind == GREET_SUBSCRIBE)
		is_ready(k);
	else if (e.kind >= CALL_SHA)
		call_reply(r, &e, reply);
	args_free(e.argv, e.argc);
}

static void read_replies(struct conn *k)
{
	struct redis *r = k->redis;

	if (redisBufferRead(k->c) != REDIS_OK) {
		breaks(k, COVEY_ERR_STORE, 0, k->c->errstr[0] ? k->c->errstr : "the store closed the connection");
		return;
	}
	while (!r->dying && !k->broken) {
		void *reply = NULL;

		if (redisGetReplyFromReader(k->c, &reply) != REDIS_OK) {
			breaks(k, COVEY_ERR_STORE, 0, k->c->errstr);
			return;
		}
		if (!reply)
			return;
		on_reply(k, reply);
		freeReplyObject(reply);
	}
}

static void on_socket(void *ctx, uint32_t events)
{
	struct conn *k = ctx;
	struct redis *r = k->redis;
	int err = 0;
	socklen_t bytes = sizeof(err);
	char why[160];

	if (k->broken)
		return;
	enter(r);
	if (!k->connected) {
		getsockopt(k->c->fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
		if (err) {
			snprintf(why, sizeof(why), "cannot reach the store: %s", strerror(err));
			breaks(k, COVEY_ERR_STORE, 0, why);
		} else {
			k->connected = 1;
			greet(k);
		}
	} else {
		if (events & EPOLLOUT)
			push(k);
		if (!k->broken && (events & ~(uint32_t)EPOLLOUT))
			read_replies(k);
	}
	leave(r);
}

/* ---- Connect ---- */

static void bound_fire(void *ctx);

static void conn_open(struct conn *k)
{
	struct redis *r = k->redis;
	char why[200];

	k->c = r->url.path[0] ? redisConnectUnixNonBlock(r->url.path) : redisConnectNonBlock(r->ip, r->url.port);
	if (!k->c || k->c->err) {
		snprintf(why, sizeof(why), "cannot reach the store: %s", k->c ? k->c->errstr : "out of memory");
		breaks(k, COVEY_ERR_STORE, 0, why);
	} else if (cvy_loop_watch(r->loop, k->c->fd, EPOLLIN | EPOLLOUT, on_socket, k, &k->watch)) {
		breaks(k, COVEY_ERR_STORE, 0, "the loop cannot watch the store's socket");
	}
}

static void dial(struct redis *r)
{
	r->bound = cvy_loop_timer(r->loop, cvy_now_ns() + (uint64_t)(CONNECT_MS + r->call_ms) * CVY_MS, bound_fire, r);
	conn_open(&r->calls);
	if (r->sink.notice)
		conn_open(&r->notices);
}

static void resolve_free(struct resolve *job)
{
	pthread_mutex_destroy(&job->lock);
	free(job);
}

static void resolved(void *ctx, void *arg)
{
	struct resolve *job = arg;
	struct redis *r = job->redis;
	char why[200];

	(void)ctx;
	pthread_mutex_lock(&job->lock); /* the helper may still be about to let go of it */
	pthread_mutex_unlock(&job->lock);
	if (r) {
		r->resolve = NULL;
		memcpy(r->ip, job->ip, sizeof(r->ip));
		if (job->err) {
			snprintf(why, sizeof(why), "cannot resolve the store's host: %s", gai_strerror(job->err));
			breaks(&r->calls, COVEY_ERR_STORE, 0, why);
		} else {
			dial(r);
		}
	}
	resolve_free(job);
}

static int look_up(const char *host, int flags, char *ip, size_t bytes)
{
	struct addrinfo hint = { .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *list;
	int err = getaddrinfo(host, NULL, &hint, &list);

	if (err)
		return err;
	err = getnameinfo(list->ai_addr, list->ai_addrlen, ip, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST);
	freeaddrinfo(list);
	return err;
}

static void *resolver(void *arg)
{
	struct resolve *job = arg;
	int alone;

	job->err = look_up(job->host, 0, job->ip, sizeof(job->ip));
	pthread_mutex_lock(&job->lock);
	alone = !job->loop || cvy_loop_post(job->loop, resolved, NULL, job);
	if (alone)
		job->redis = NULL;
	pthread_mutex_unlock(&job->lock);
	if (alone)
		resolve_free(job);
	return NULL;
}

static int resolve_start(struct redis *r)
{
	struct resolve *job = calloc(1, sizeof(*job));
	pthread_t thread;

	if (!job)
		return COVEY_ERR_NOMEM;
	pthread_mutex_init(&job->lock, NULL);
	job->loop = r->loop;
	job->redis = r;
	memcpy(job->host, r->url.host, sizeof(job->host));
	r->resolve = job;
	if (pthread_create(&thread, NULL, resolver, job)) {
		r->resolve = NULL;
		resolve_free(job);
		return COVEY_ERR_NOMEM;
	}
	pthread_detach(thread);
	return 0;
}

static void start(struct redis *r)
{
	if (r->url.path[0] || look_up(r->url.host, AI_NUMERICHOST, r->ip, sizeof(r->ip)) == 0)
		dial(r);
	else if (resolve_start(r))
		breaks(&r->calls, COVEY_ERR_STORE, 0, "no thread to resolve the store's host");
}

/* ---- Calls ---- */

/* To the first bound that ends: of a call that is waited for, or of the connection, which is the oldest call's. */
static void arm(struct redis *r)
{
	struct conn *k = &r->calls;
	uint64_t call = (uint64_t)r->call_ms * CVY_MS, first = 0;

	for (int i = 0; i < k->count; i++) {
		const struct expect *e = &k->queue[(k->head + i) % (QUEUE_MAX + 4)];
		uint64_t bound = e->sent_ns + call * (e->open ? 1 : DEAD_CALLS);

		if ((e->open || i == 0) && (!first || bound < first))
			first = bound;
	}
	if (!first || !r->up || (r->bound && r->bound_ns <= first))
		return;
	cvy_loop_cancel(r->bound);
	r->bound_ns = first;
	r->bound = cvy_loop_timer(r->loop, first, bound_fire, r);
}

static void bound_fire(void *ctx)
{
	struct redis *r = ctx;
	struct conn *k = &r->calls;
	uint64_t now = cvy_now_ns(), bound = (uint64_t)r->call_ms * CVY_MS;

	r->bound = NULL;
	if (!r->up) {
		breaks(k, COVEY_ERR_STORE, 0, "the store does not answer the greeting");
		return;
	}
	enter(r);
	if (k->count && k->queue[k->head].sent_ns + DEAD_CALLS * bound <= now)
		breaks(k, COVEY_ERR_STORE, 0, "the store does not answer");
	for (int i = 0; i < k->count && !r->dying; i++) {
		struct expect *e = &k->queue[(k->head + i) % (QUEUE_MAX + 4)];

		if (e->open && e->sent_ns + bound <= now)
			answer(r, e, COVEY_ERR_TIMEOUT, 0, NULL, "the store did not answer in time");
	}
	if (!r->dying && !k->broken)
		arm(r);
	leave(r);
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
	soon(r);
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

static void redis_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv)
{
	struct redis *r = (struct redis *)store;
	struct expect e = { .id = id, .open = 1, .sent_ns = cvy_now_ns(), .argc = argc };

	if (!r->up || r->calls.broken)
		refuse(r, id, "there is no connection to the store");
	else if (r->calls.count >= QUEUE_MAX)
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

static void redis_close(struct cvy_store *store)
{
	struct redis *r = (struct redis *)store;

	if (!r)
		return;
	r->dying = 1;
	if (r->resolve) {
		pthread_mutex_lock(&r->resolve->lock);
		r->resolve->loop = NULL;
		r->resolve->redis = NULL;
		pthread_mutex_unlock(&r->resolve->lock);
	}
	cvy_loop_cancel(r->retry);
	cvy_loop_cancel(r->bound);
	cvy_loop_cancel(r->soon);
	r->retry = r->bound = r->soon = NULL;
	tell_refused(r);
	enter(r);
	conn_close(&r->calls);
	conn_close(&r->notices);
	leave(r);
}

static const struct cvy_store_ops redis_ops = { .call = redis_call, .close = redis_close };

int cvy_redis_open(const char *url, const char *group, struct cvy_loop *loop, const struct cvy_store_sink *sink,
		   int call_ms, struct cvy_errbox *box, struct cvy_store **out)
{
	struct redis *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "out of memory in the store client");
	err = cvy_redis_url_parse(url, &r->url, box);
	if (err) {
		free(r);
		return err;
	}
	r->store.ops = &redis_ops;
	r->loop = loop;
	r->sink = *sink;
	r->call_ms = call_ms;
	r->backoff_ms = BACKOFF_MIN_MS;
	snprintf(r->key, sizeof(r->key), "covey:{%.64s}:g", group);
	snprintf(r->channel, sizeof(r->channel), "covey:{%.64s}:n", group);
	r->calls.redis = r->notices.redis = r;
	start(r);
	*out = &r->store;
	return 0;
}
