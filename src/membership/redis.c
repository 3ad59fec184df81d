/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store client on hiredis, in the agent's loop: its connections, one for calls and one for notices, from the first
 * dial to the last end. It never blocks: sockets are non-blocking, a helper thread resolves names. Sinks may call or
 * close it from inside a callback.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "redis.h"

#define CONNECT_MS 1000 /* from connect to the last reply of the greeting */
#define BACKOFF_MAX_MS 1000

static void start(struct redis *r);
static void look_around(struct redis *r);
static void dial_at(struct redis *r);

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

void cvy_redis_unreached(struct conn *k, const char *why)
{
	if (!k->broken)
		k->redis->unreached = 1;
	cvy_redis_break(k, COVEY_ERR_STORE, 0, why);
}

/* The address that is being tried, for people; the file of a unix socket. */
static void place_name(const struct redis *r, char *text, size_t bytes)
{
	const char *ip = r->to.count ? r->to.ip[r->to.at] : "";

	if (r->url.path[0])
		snprintf(text, bytes, "the unix socket %s", strchr(r->url.path, '@') ? "of the URL" : r->url.path);
	else
		snprintf(text, bytes, "%s%s%s:%d", strchr(ip, ':') ? "[" : "", ip, strchr(ip, ':') ? "]" : "", r->port);
}

/* Adds to the cause of an end its address and the addresses tried before it. */
static void complete_cause(struct redis *r)
{
	char place[160], last[sizeof(r->cause)];

	snprintf(last, sizeof(last), "%s", r->cause);
	place_name(r, place, sizeof(place));
	if (r->tried[0])
		snprintf(r->cause, sizeof(r->cause), "cannot reach the store at %.60s%s%.300s; %s: %.100s%.200s",
			 r->url.server.host, r->url.server.host[0] ? ": " : "", r->tried, place, last, r->named);
	else if (r->unreached)
		snprintf(r->cause, sizeof(r->cause), "cannot reach the store at %s: %.200s%s", place, last, r->named);
	r->unreached = 0;
	r->tried[0] = '\0';
}

static void end_dial(struct redis *r)
{
	cvy_loop_cancel(r->bound);
	r->bound = NULL;
	conn_close(&r->calls);
	conn_close(&r->notices);
}

/* A connection that could not be made, or failed before it was up: tries the next address. 0: there is none. */
static int dial_next(struct redis *r)
{
	size_t used = strlen(r->tried);
	char place[160];

	if (r->dying || r->up || r->fatal || r->to.at + 1 >= r->to.count)
		return 0;
	place_name(r, place, sizeof(place));
	snprintf(r->tried + used, sizeof(r->tried) - used, "%s%s: %.120s", used ? "; " : "", place, r->cause);
	r->unreached = 0;
	end_dial(r);
	if (r->dying)
		return 1;
	r->to.at++;
	dial_at(r);
	return 1;
}

static void retry_fire(void *ctx)
{
	struct redis *r = ctx;

	r->retry = NULL;
	start(r);
}

/*
 * Ends both connections: after a missed notice `up` must follow, which makes the sink peek.
 * Called between enter and leave.
 */
static void fall(struct redis *r)
{
	int tell = r->up || !r->told_down || r->fatal;

	r->up = 0;
	end_dial(r);
	cvy_redis_sentinel_next(r);
	complete_cause(r);
	r->to.count = 0;
	if (!r->dying && tell) {
		if (!r->told_down || r->fatal)
			cvy_warn("store", "%s%s", r->cause, r->fatal ? "" : "; trying again");
		r->told_down = 1;
		r->sink.down(r->sink.ctx, r->cause_err, r->cause);
	}
	if (!r->dying && !r->fatal && !r->retry) {
		r->retry = cvy_loop_timer(r->loop, cvy_now_ns() + (uint64_t)r->backoff_ms * CVY_MS, retry_fire, r);
		r->backoff_ms = 2 * r->backoff_ms > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : 2 * r->backoff_ms;
	}
}

/* Another node of the cluster was named before this one was used: goes there at once. 0: there is none. */
static int dial_moved(struct redis *r)
{
	if (!r->moved.host[0] || r->up || r->fatal)
		return 0;
	end_dial(r);
	r->to.count = r->to.at = 0; /* these were of another port */
	return r->dying || cvy_redis_follow(r);
}

static void look_around(struct redis *r)
{
	cvy_redis_enter(r);
	cvy_redis_tell_refused(r);
	if (!r->dying && (r->calls.broken || r->notices.broken) && !dial_moved(r) && !dial_next(r))
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
	r->tried[0] = '\0';
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

	if (k->broken)
		return;
	cvy_redis_enter(r);
	if (!k->connected) {
		getsockopt(k->c->fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
		if (err) {
			cvy_redis_unreached(k, strerror(err));
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
		/*
		 * With TLS after reading: a handshake continues by bytes read, and the cause of a server's close is
		 * read first.
		 */
		if (k->ssl && !r->dying && !k->broken)
			cvy_redis_push(k);
	}
	cvy_redis_leave(r);
}

/* If two users share a host, a refusal alone does not show whose socket it is. */
static void unix_why(const char *path, const char *said, char *why, size_t bytes)
{
	struct stat st;

	if (!stat(path, &st) && access(path, W_OK))
		snprintf(why, bytes, "%.60s: it belongs to uid %u and has mode %04o, this process runs as uid %u", said,
			 (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
	else if (access(path, F_OK) && errno == EACCES)
		snprintf(why, bytes, "%.60s: this process, which runs as uid %u, may not enter a directory above it",
			 said, (unsigned)geteuid());
	else
		snprintf(why, bytes, "%.60s", said);
}

static void conn_open(struct conn *k)
{
	struct redis *r = k->redis;
	char cause[128], why[200];

	k->c = cvy_redis_connect(r->url.path, r->to.count ? r->to.ip[r->to.at] : "", r->port, cause, sizeof(cause));
	if (!k->c) {
		snprintf(why, sizeof(why), "%s", cause);
		if (r->url.path[0])
			unix_why(r->url.path, cause, why, sizeof(why));
		cvy_redis_unreached(k, why);
	} else if (cvy_loop_watch(r->loop, k->c->fd, EPOLLIN | EPOLLOUT, on_socket, k, &k->watch)) {
		cvy_redis_break(k, COVEY_ERR_STORE, 0, "the loop cannot watch the store's socket");
	}
}

/* Each address has its own bound: one that drops all packets leaves time for the others. */
static void dial_at(struct redis *r)
{
	uint64_t end = cvy_now_ns() + (uint64_t)(CONNECT_MS + r->call_ms) * CVY_MS;

	r->bound = cvy_loop_timer(r->loop, end, cvy_redis_bound, r);
	conn_open(&r->calls);
	if (r->sink.notice)
		conn_open(&r->notices);
}

/* NULL: the unix socket of the URL. */
static void dial(struct redis *r, const struct cvy_redis_addresses *to, const char *why)
{
	if (why) {
		cvy_redis_break(&r->calls, COVEY_ERR_STORE, 0, why);
		return;
	}
	memset(&r->to, 0, sizeof(r->to));
	if (to)
		r->to = *to;
	r->to.at = 0;
	r->tried[0] = '\0';
	dial_at(r);
}

void cvy_redis_dial(struct redis *r, const char *host, int port)
{
	r->port = port;
	cvy_redis_resolve(r, host, dial);
}

static void start(struct redis *r)
{
	if (cvy_redis_follow(r))
		return;
	r->hops = 0;
	r->named[0] = '\0';
	if (r->url.path[0])
		dial(r, NULL, NULL);
	else if (r->url.sentinels)
		cvy_redis_find_master(r);
	else
		cvy_redis_dial(r, r->url.server.host, r->url.server.port);
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
