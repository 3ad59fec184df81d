/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the store client, shared by redis*.c alone; hiredis is known to them only. redis.c: connections
 * and their ends; redis_tls.c: TLS; redis_call.c: requests and replies; redis_resolve.c: names; redis_dial.c: sockets; redis_sentinel.c: who is master.
 */
#ifndef CVY_REDIS_H
#define CVY_REDIS_H

#include <hiredis/hiredis.h>

#include "clock.h"
#include "log.h"
#include "membership.h"
#include "redis_tls.h"
#include "redis_url.h"
#include "store.h"

#define CVY_REDIS_BACKOFF_MIN_MS 10 /* before the first new dial, then doubled; anew after a reply to a call */
#define CVY_REDIS_QUEUE 64	    /* calls without a reply */
#define CVY_REDIS_ADDRESSES 8	    /* of one name: those after them are not tried */

/* What a name stands for, in the order in which the system's resolver gives it. */
struct cvy_redis_addresses {
	char ip[CVY_REDIS_ADDRESSES][64];
	int count, at; /* at: the one that is tried */
};

enum kind { GREET_AUTH, GREET_SELECT, GREET_ROLE, GREET_INFO, GREET_SUBSCRIBE, CALL_SHA, CALL_TEXT };

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
	redisContext *c;
	struct cvy_watch *watch;
	struct ssl_st *ssl; /* NULL: without TLS */
	int connected, ready, broken;
	struct expect queue[CVY_REDIS_QUEUE + 4];
	int head, count;
};

struct resolve; /* redis_resolve.c */

struct ask { /* redis_sentinel.c: the sentinel that is being asked */
	redisContext *c;
	struct cvy_watch *watch;
	struct cvy_timer *bound;
	int sent;
	int at;	   /* which one of the URL */
	int tried; /* in this round */
	struct cvy_redis_addresses to;
	char said[400]; /* what those said that were of no use */
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
	char key[128], channel[128];
	struct cvy_redis_addresses to; /* of the server that is dialled; none with a unix socket */
	int port;
	char tried[400]; /* addresses of it that were of no use, and why */
	char named[400]; /* who says that it is the master; empty without sentinels */
	struct ask ask;
	int call_ms, backoff_ms;
	int wait_ms; /* bound of a call: call_ms, more while the store answers later than that */
	int up, told_down, fatal, depth, dying;
	int unreached; /* cause: why a connection could not be made */
	int served;    /* it has been up */
	int worked;    /* it has answered a call */
	struct cvy_redis_tls *tls;
	struct conn calls, notices;
	struct cvy_timer *retry, *bound, *soon;
	uint64_t bound_ns; /* when `bound` fires */
	struct resolve *resolve;
	struct refusal *refused;
	char cause[900];
	int cause_err;
};

/*
 * redis.c. Between enter and leave a sink may close the client, and it may still be touched. Ends are never made inside
 * hiredis or a caller's frame: break notes one, and soon has the loop see to it.
 */
void cvy_redis_enter(struct redis *r);
void cvy_redis_leave(struct redis *r);
void cvy_redis_break(struct conn *k, int err, int fatal, const char *cause);
void cvy_redis_soon(struct redis *r);
void cvy_redis_ready(struct conn *k); /* its greeting went well */

/* All addresses in order, until one serves. NULL: the unix socket of the URL. */
void cvy_redis_dial(struct redis *r, const struct cvy_redis_addresses *to, int port);
/* The connection is not made: @why becomes a part of the cause, with the address. */
void cvy_redis_unreached(struct conn *k, const char *why);

/*
 * redis_dial.c. A connection that is under way: to the socket @path, or if that is empty to the literal address @ip.
 * NULL: @why says why not.
 */
redisContext *cvy_redis_connect(const char *path, const char *ip, int port, char *why, size_t bytes);

/* redis_call.c */
void cvy_redis_greet(struct conn *k);
void cvy_redis_push(struct conn *k); /* sends what the socket takes */
void cvy_redis_read(struct conn *k);
void cvy_redis_end_calls(struct conn *k, const char *cause); /* all that have no reply yet */
void cvy_redis_tell_refused(struct redis *r);
void cvy_redis_bound(void *redis); /* the timer of what has no reply yet */
void cvy_redis_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv);

/*
 * redis_resolve.c. A literal address at once, a name by a helper thread; one at a time. @then has the
 * addresses, or why there are none.
 */
typedef void cvy_redis_resolved(struct redis *r, const struct cvy_redis_addresses *to, const char *why);

void cvy_redis_resolve(struct redis *r, const char *host, cvy_redis_resolved *then);
void cvy_redis_resolve_drop(struct redis *r); /* @then is not called any more */

/*
 * redis_sentinel.c: asks one sentinel after the other for the master until one knows, then dials it. When all were
 * asked in vain the connection is broken with what each of them said; the back-off then leads to the next round.
 */
void cvy_redis_find_master(struct redis *r);
void cvy_redis_sentinel_next(struct redis *r); /* the one that answered last was wrong: the next round begins after it */
void cvy_redis_sentinel_drop(struct redis *r);

#endif
