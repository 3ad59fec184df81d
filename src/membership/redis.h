/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the store client, shared by redis*.c alone; only these know hiredis. redis.c: connections and their ends;
 * redis_tls.c: TLS; redis_call.c: requests and replies; redis_resolve.c: names; redis_dial.c: sockets;
 * redis_sentinel.c: search for the master; redis_cluster.c: for the node of a slot.
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

#define CVY_REDIS_BACKOFF_MIN_MS 10 /* before the first new dial, then doubled; reset by a reply to a call */
#define CVY_REDIS_QUEUE 64	    /* calls without a reply */
#define CVY_REDIS_ADDRESSES 8	    /* of one name; further ones are not tried */

/* Addresses of a name, in the order of the system's resolver. */
struct cvy_redis_addresses {
	char ip[CVY_REDIS_ADDRESSES][64];
	int count, at; /* at: the one being tried */
};

enum kind { GREET_AUTH, GREET_SELECT, GREET_ROLE, GREET_INFO, GREET_SLOT, GREET_SUBSCRIBE, CALL_SHA, CALL_TEXT };

struct expect {
	enum kind kind;
	int open; /* the sink still waits for it */
	uint64_t id, sent_ns;
	int argc;
	char **argv; /* kept for EVAL, in case Redis does not know the script */
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
	int at;	   /* index in the URL */
	int tried; /* in this round */
	struct cvy_redis_addresses to;
	char said[400]; /* answers of sentinels that were of no use */
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
	char tried[400]; /* its addresses that failed, and why */
	char named[400]; /* the sentinel or node that named it; empty: it stands in the URL */
	struct cvy_redis_place
		moved; /* node that another one named for the group's slot; empty: none, or it is dialled */
	int hops;      /* of these in a row */
	struct ask ask;
	int call_ms, backoff_ms;
	int wait_ms; /* bound of a call: call_ms, more while the store answers later */
	int up, told_down, fatal, depth, dying;
	int unreached; /* cause: why a connection could not be made */
	int served;    /* the store has been up */
	int worked;    /* the store has answered a call */
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
 * redis.c. Between enter and leave the client stays valid even if a sink closes it. A connection is never ended inside
 * hiredis or a caller's frame: break notes the end, and soon makes the loop carry it out.
 */
void cvy_redis_enter(struct redis *r);
void cvy_redis_leave(struct redis *r);
void cvy_redis_break(struct conn *k, int err, int fatal, const char *cause);
void cvy_redis_soon(struct redis *r);
void cvy_redis_ready(struct conn *k); /* its greeting succeeded */

/* Tries all addresses of @host in order until one serves. */
void cvy_redis_dial(struct redis *r, const char *host, int port);
/* The connection could not be made: @why becomes a part of the cause, with the address. */
void cvy_redis_unreached(struct conn *k, const char *why);

/*
 * redis_dial.c. Begins a connection to the socket @path, or if that is empty to the literal address @ip.
 * NULL: @why has the cause.
 */
redisContext *cvy_redis_connect(const char *path, const char *ip, int port, char *why, size_t bytes);

/* redis_call.c */
void cvy_redis_greet(struct conn *k);
void cvy_redis_ask(struct conn *k, enum kind kind, int argc, const char **argv); /* one more word of the greeting */
void cvy_redis_push(struct conn *k);						 /* sends what the socket takes */
void cvy_redis_read(struct conn *k);
void cvy_redis_end_calls(struct conn *k, const char *cause); /* all calls without a reply */
void cvy_redis_tell_refused(struct redis *r);
void cvy_redis_bound(void *redis); /* timer of requests without a reply */
void cvy_redis_call(struct cvy_store *store, uint64_t id, int argc, const char *const *argv);

/*
 * redis_resolve.c. Resolves a literal address at once, a name in a helper thread; one at a time. @then gets the
 * addresses, or the cause if there are none.
 */
typedef void cvy_redis_resolved(struct redis *r, const struct cvy_redis_addresses *to, const char *why);

void cvy_redis_resolve(struct redis *r, const char *host, cvy_redis_resolved *then);
void cvy_redis_resolve_drop(struct redis *r); /* @then will not be called */

/*
 * redis_sentinel.c: asks one sentinel after the other for the master until one knows, then dials the master. If none
 * knows, the connection breaks with the answers of all; the back-off then leads to the next round.
 */
void cvy_redis_find_master(struct redis *r);
void cvy_redis_sentinel_next(struct redis *r); /* the last answer was wrong: begin after that sentinel */
void cvy_redis_sentinel_drop(struct redis *r);

/* redis_cluster.c: cvy_redis_moved() ends a connection, cvy_redis_follow() then dials the named node; 0: there is none. */
void cvy_redis_ask_slot(struct conn *k);
void cvy_redis_moved(struct conn *k, const char *text); /* `MOVED ...` */
int cvy_redis_follow(struct redis *r);

#endif
