/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store client on hiredis, in the agent's loop: its connections, one for calls and one for notices, from
 * the first dial to the last end. It never blocks: sockets are non-blocking, names are resolved elsewhere.
 * Sinks may call or close from within.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "redis.h"

#define CONNECT_MS 1000 /* from connect to the last reply of the greeting */
#define BACKOFF_MAX_MS 1000

static void start(struct redis *r);
static void look_around(struct redis *r);

/* ---- Ends ---- */

void cvy_redis_enter(struct redis *r)
{
	r->depth++;
}

void cvy_redis_leave(struct redis *r)
{
	if (--r->depth || !r->dying)
		return;
	cvy_redis_tls_close(r->tls);
	free(r);
}

static void conn_close(struct conn *k)
{
	cvy_loop_unwatch(k->watch);
	k->watch = NULL;
	if (k->c)
		redisFree(k->c);
	k->c = NULL;
	k->ssl = NULL;
	k->connected = k->ready = k->broken = 0;
	cvy_redis_end_calls(k, "the connection to the store broke");
}

static void soon_fire(void *ctx)
{
	struct redis *r = ctx;

	r->soon = NULL;
	look_around(r);
}

void cvy_redis_soon(struct redis *r)
{
	if (!r->soon && !r->dying)
		r->soon = cvy_loop_timer(r->loop, cvy_now_ns(), soon_fire, r);
}

void cvy_redis_break(struct conn *k, int err, int fatal, const char *cause)
{
	struct redis *r = k->redis;

	if (!k->broken) {
		r->cause_err = err;
		snprintf(r->cause, sizeof(r->cause), "%s", cause);
	}
	k->broken = 1;
	r->fatal |= fatal;
	cvy_redis_soon(r);
}

static void retry_fire(void *ctx)
{
	struct redis *r = ctx;

	r->retry = NULL;
	start(r);
}

/*
 * Both connections fall together: a notice that is missed must be followed by `up`, that is by a peek.
 * Called between enter and leave.
 */
static void fall(struct redis *r)
{
	int tell = r->up || !r->told_down || r->fatal;

	r->up = 0;
	cvy_loop_cancel(r->bound);
	r->bound = NULL;
	conn_close(&r->calls);
	conn_close(&r->notices);
	cvy_redis_sentinel_next(r);
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

static void look_around(struct redis *r)
{
	cvy_redis_enter(r);
	cvy_redis_tell_refused(r);
	if (!r->dying && (r->calls.broken || r->notices.broken))
		fall(r);
	cvy_redis_leave(r);
}

/* ---- Connect ---- */

void cvy_redis_ready(struct conn *k)
{
	struct redis *r = k->redis;

	k->ready = 1;
	if (r->up || !r->calls.ready || (r->sink.notice && !r->notices.ready))
		return;
	r->up = r->served = 1;
	r->told_down = 0;
	cvy_loop_cancel(r->bound);
	r->bound = NULL;
	r->sink.up(r->sink.ctx);
}

static void on_socket(void *ctx, uint32_t events)
{
	struct conn *k = ctx;
	struct redis *r = k->redis;
	int err = 0;
	socklen_t bytes = sizeof(err);
	char why[600];

	if (k->broken)
		return;
	cvy_redis_enter(r);
	if (!k->connected) {
		getsockopt(k->c->fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
		if (err) {
			snprintf(why, sizeof(why), "cannot reach the store: %s%s", strerror(err), r->named);
			cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
		} else {
			k->connected = 1;
			if (r->tls)
				cvy_redis_tls_start(k);
			if (!k->broken)
				cvy_redis_greet(k);
		}
	} else {
		if (!k->ssl && (events & EPOLLOUT))
			cvy_redis_push(k);
		if (!k->broken && (events & ~(uint32_t)EPOLLOUT))
			cvy_redis_read(k);
		/* With TLS afterwards: a handshake goes on with what was read, and why a server closes is read first. */
		if (k->ssl && !r->dying && !k->broken)
			cvy_redis_push(k);
	}
	cvy_redis_leave(r);
}

static void conn_open(struct conn *k)
{
	struct redis *r = k->redis;
	char cause[128], why[600];

	k->c = cvy_redis_connect(r->url.path, r->ip, r->port, cause, sizeof(cause));
	if (!k->c) {
		snprintf(why, sizeof(why), "cannot reach the store: %s%s", cause, r->named);
		cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
	} else if (cvy_loop_watch(r->loop, k->c->fd, EPOLLIN | EPOLLOUT, on_socket, k, &k->watch)) {
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "the loop cannot watch the store's socket");
	}
}

void cvy_redis_dial(struct redis *r, const char *ip, int port)
{
	uint64_t end = cvy_now_ns() + (uint64_t)(CONNECT_MS + r->call_ms) * CVY_MS;

	snprintf(r->ip, sizeof(r->ip), "%s", ip);
	r->port = port;
	r->bound = cvy_loop_timer(r->loop, end, cvy_redis_bound, r);
	conn_open(&r->calls);
	if (r->sink.notice)
		conn_open(&r->notices);
}

static void resolved(struct redis *r, const char *ip, const char *why)
{
	if (why)
		cvy_redis_break(&r->calls, COVEY_ERR_STORE, 0, why);
	else
		cvy_redis_dial(r, ip, r->url.server.port);
}

static void start(struct redis *r)
{
	if (r->url.path[0])
		cvy_redis_dial(r, "", 0);
	else if (r->url.sentinels)
		cvy_redis_find_master(r);
	else
		cvy_redis_resolve(r, r->url.server.host, resolved);
}

static void redis_close(struct cvy_store *store)
{
	struct redis *r = (struct redis *)store;

	if (!r)
		return;
	r->dying = 1;
	cvy_redis_resolve_drop(r);
	cvy_redis_sentinel_drop(r);
	cvy_loop_cancel(r->retry);
	cvy_loop_cancel(r->bound);
	cvy_loop_cancel(r->soon);
	r->retry = r->bound = r->soon = NULL;
	cvy_redis_tell_refused(r);
	cvy_redis_enter(r);
	conn_close(&r->calls);
	conn_close(&r->notices);
	cvy_redis_leave(r);
}

static const struct cvy_store_ops redis_ops = { .call = cvy_redis_call, .close = redis_close };

int cvy_redis_open(const char *url, const char *group, struct cvy_loop *loop, const struct cvy_store_sink *sink,
		   int call_ms, struct cvy_errbox *box, struct cvy_store **out)
{
	struct redis *r = calloc(1, sizeof(*r));
	int err;

	if (!r)
		return cvy_fail(box, COVEY_ERR_NOMEM, -1, 0, "out of memory in the store client");
	err = cvy_redis_url_parse(url, &r->url, box);
	if (!err && r->url.tls)
		err = cvy_redis_tls_open(&r->url, box, &r->tls);
	if (err) {
		free(r);
		return err;
	}
	r->store.ops = &redis_ops;
	r->loop = loop;
	r->sink = *sink;
	r->call_ms = r->wait_ms = call_ms;
	r->backoff_ms = CVY_REDIS_BACKOFF_MIN_MS;
	snprintf(r->key, sizeof(r->key), "covey:{%.64s}:g", group);
	snprintf(r->channel, sizeof(r->channel), "covey:{%.64s}:n", group);
	r->calls.redis = r->notices.redis = r;
	start(r);
	*out = &r->store;
	return 0;
}
