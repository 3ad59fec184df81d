/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer header of membership: the agent, one thread per group, which drives the pure group state
 * machine (group.h) with real events: store replies, control messages, signs of life, time.
 */
#ifndef CVY_MEMBERSHIP_H
#define CVY_MEMBERSHIP_H

#include "config.h"
#include "loop.h"
#include "seam.h"

struct cvy_agent;

/* Calls of the agent to the public handle. Agent's thread. */
struct cvy_observer {
	void *ctx;
	void (*joined)(void *ctx, int err); /* once: 0 for a member, or pending and connected; else the error */
	void (*event)(void *ctx, const struct covey_event *event);
	void (*view)(void *ctx, const struct cvy_view *view, int active);   /* learned, active, or a change opened */
	void (*answer)(void *ctx, uint64_t id, int err, const char *cause); /* an API request was decided */
	void (*ended)(void *ctx, int err);				    /* fenced, left, closed: nothing follows */
};

struct cvy_agent_args {
	const struct cvy_config *config;
	const struct cvy_seam *seam; /* kept, like addr, host and own_page, until the agent is stopped */
	const char *addr, *host;     /* of the mesh, for the store */
	struct cvy_page *own_page;   /* beats and the robust word are written there before the rank is known */
	struct cvy_observer observer;
	struct cvy_errbox *box;
};

/* Makes an agent without its thread. The mesh may have its sink: events wait for the start. */
int cvy_agent_new(struct cvy_loop *loop, struct cvy_agent **out);
struct cvy_sink cvy_agent_sink(struct cvy_agent *agent); /* any thread may post, until cvy_agent_stop is called */
/* Starts the thread, which takes the robust word of the own page, runs the loop, connects to the store, registers and
 * joins. Returns when the word is held. After an error only cvy_agent_stop may be called. */
int cvy_agent_start(struct cvy_agent *agent, const struct cvy_agent_args *args);
/* An API request from any thread; observer.answer gets the answer with @id. @ranks may be NULL.
 * Not 0: no request was made and no answer follows. */
int cvy_agent_ask(struct cvy_agent *agent, int api, uint64_t id, int rank, uint64_t number,
		  const struct covey_mask *ranks);
/* Ends the loop and frees; waits only for the thread. Peers see this rank die if it has not left. NULL is fine. */
void cvy_agent_stop(struct cvy_agent *agent);

/* ---- Store: string arrays in, string arrays out, so that a relay and a simulator can carry them ---- */

struct cvy_store_sink {
	void *ctx;
	void (*reply)(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause);
	void (*notice)(void *ctx, const char *text);
	void (*up)(void *ctx);
	void (*down)(void *ctx, int err, const char *cause); /* STORE: will retry; AUTH, VERSION, INVAL: will not */
};

struct cvy_store;
struct cvy_store_ops {
	/*
	 * argv[0] names a call of the script. Never blocks; exactly one reply follows, err 0 or TIMEOUT/STORE (it
	 * may have run).
	 */
	void (*call)(struct cvy_store *store, uint64_t id, int argc, const char *const *argv);
	void (*close)(struct cvy_store *store);
};
struct cvy_store {
	const struct cvy_store_ops *ops;
};

/* Redis through hiredis, on @loop. @call_ms: bound of one call (200). */
int cvy_redis_open(const char *url, const char *group, struct cvy_loop *loop, const struct cvy_store_sink *sink,
		   int call_ms, struct cvy_errbox *box, struct cvy_store **out);

#endif
