/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sentinels name the master. They are asked before each connection, and only then. A failover ends the connections (a
 * demoted master closes them, a dead one does not answer), and each end leads to a new question. ROLE checks the server
 * that a sentinel names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "redis.h"

#define ASK_MS 500 /* bound of one sentinel, from resolving its name to its answer */

static void ask_next(struct redis *r);
static void ask_at(struct redis *r);

static void ask_close(struct ask *a)
{
	cvy_loop_unwatch(a->watch);
	a->watch = NULL;
	cvy_loop_cancel(a->bound);
	a->bound = NULL;
	if (a->c)
		redisFree(a->c);
	a->c = NULL;
	a->sent = 0;
}

void cvy_redis_sentinel_drop(struct redis *r)
{
	ask_close(&r->ask);
}

void cvy_redis_sentinel_next(struct redis *r)
{
	if (r->url.sentinels)
		r->ask.at = (r->ask.at + 1) % r->url.sentinels;
}

static void note(struct ask *a, const struct cvy_redis_place *s, const char *why)
{
	size_t used = strlen(a->said);
	const char *ip = a->to.count ? a->to.ip[a->to.at] : s->host;
	int same = strcmp(ip, s->host) == 0; /* a literal address, or a name without an address */

	snprintf(a->said + used, sizeof(a->said) - used, "%s%.60s:%d%s%s%s: %s", used ? "; " : "", s->host, s->port,
		 same ? "" : " (", same ? "" : ip, same ? "" : ")", why);
}

/* The sentinel being asked is of no use: notes @why and asks the next one. */
static void useless(struct redis *r, const char *why)
{
	struct ask *a = &r->ask;

	ask_close(a);
	note(a, &r->url.sentinel[a->at], why);
	cvy_redis_sentinel_next(r);
	ask_next(r);
}

/* This address of the sentinel failed: it may listen at the next one. */
static void unreached(struct redis *r, const char *why)
{
	struct ask *a = &r->ask;

	if (a->to.at + 1 >= a->to.count) {
		useless(r, why);
		return;
	}
	ask_close(a);
	note(a, &r->url.sentinel[a->at], why);
	a->to.at++;
	ask_at(r);
}

static void bound_fire(void *ctx)
{
	struct redis *r = ctx;

	r->ask.bound = NULL;
	cvy_redis_resolve_drop(r);
	unreached(r, "no answer in time");
}

static void answered(struct redis *r, const redisReply *reply)
{
	const struct cvy_redis_place *s = &r->url.sentinel[r->ask.at];
	redisReply **pair = reply->element;
	char why[160], host[256];
	int port;

	if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && pair[0]->type == REDIS_REPLY_STRING &&
	    pair[1]->type == REDIS_REPLY_STRING && atoi(pair[1]->str) > 0) {
		snprintf(host, sizeof(host), "%s", pair[0]->str);
		port = atoi(pair[1]->str);
		snprintf(r->named, sizeof(r->named), " (%.60s:%d, which sentinel %.60s:%d names as master %.60s)", host,
			 port, s->host, s->port, r->url.master);
		ask_close(&r->ask);
		cvy_redis_dial(r, host, port);
	} else if (reply->type == REDIS_REPLY_NIL || (reply->type == REDIS_REPLY_ARRAY && (int)reply->elements <= 0)) {
		snprintf(why, sizeof(why), "it knows no master named %.80s", r->url.master);
		useless(r, why);
	} else {
		snprintf(why, sizeof(why), "%.140s",
			 reply->type == REDIS_REPLY_ERROR ? reply->str : "an answer that makes no sense");
		useless(r, why);
	}
}

static int send_question(struct redis *r)
{
	const char *argv[] = { "SENTINEL", "get-master-addr-by-name", r->url.master };
	int done = 0;

	if (!r->ask.sent && redisAppendCommandArgv(r->ask.c, 3, argv, NULL) != REDIS_OK)
		return -1;
	r->ask.sent = 1;
	if (redisBufferWrite(r->ask.c, &done) != REDIS_OK)
		return -1;
	cvy_loop_change(r->ask.watch, done ? EPOLLIN : EPOLLIN | EPOLLOUT);
	return 0;
}

static void on_socket(void *ctx, uint32_t events)
{
	struct redis *r = ctx;
	redisContext *c = r->ask.c;
	void *reply = NULL;
	char why[160];
	int err = 0;
	socklen_t bytes = sizeof(err);

	getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &bytes);
	if (err) {
		unreached(r, strerror(err));
		return;
	}
	if (((events & EPOLLOUT) && send_question(r)) ||
	    ((events & ~(uint32_t)EPOLLOUT) &&
	     (redisBufferRead(c) != REDIS_OK || redisGetReplyFromReader(c, &reply) != REDIS_OK))) {
		snprintf(why, sizeof(why), "%s", c->errstr[0] ? c->errstr : "it closed the connection");
		useless(r, why);
	} else if (reply) {
		answered(r, reply);
		freeReplyObject(reply);
	}
}

/* Dials the address in turn. Each has its own bound: one that drops all packets leaves time for the others. */
static void ask_at(struct redis *r)
{
	struct ask *a = &r->ask;
	char text[160];

	if (!a->bound)
		a->bound = cvy_loop_timer(r->loop, cvy_now_ns() + ASK_MS * CVY_MS, bound_fire, r);
	a->c = cvy_redis_connect("", a->to.ip[a->to.at], r->url.sentinel[a->at].port, text, sizeof(text));
	if (!a->c) {
		unreached(r, text);
	} else if (cvy_loop_watch(r->loop, a->c->fd, EPOLLIN | EPOLLOUT, on_socket, r, &a->watch)) {
		useless(r, "the loop cannot watch its socket");
	}
}

static void resolved(struct redis *r, const struct cvy_redis_addresses *to, const char *why)
{
	if (why) {
		useless(r, why);
		return;
	}
	r->ask.to = *to;
	ask_at(r);
}

static void ask_next(struct redis *r)
{
	struct ask *a = &r->ask;
	char why[500];

	if (a->tried++ == r->url.sentinels) {
		snprintf(why, sizeof(why), "no sentinel names the master: %s", a->said);
		cvy_redis_break(&r->calls, COVEY_ERR_STORE, 0, why);
		return;
	}
	a->to.count = a->to.at = 0;
	a->bound = cvy_loop_timer(r->loop, cvy_now_ns() + ASK_MS * CVY_MS, bound_fire, r);
	cvy_redis_resolve(r, r->url.sentinel[a->at].host, resolved);
}

void cvy_redis_find_master(struct redis *r)
{
	r->ask.tried = 0;
	r->ask.said[0] = r->named[0] = '\0';
	ask_next(r);
}
