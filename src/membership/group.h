/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The group state machine: state, event and time in, actions out. It reads no clock, socket, thread or random source.
 * ARCHITECTURE.md describes its driver; PROTOCOL.md its phases, rules and invariants.
 */
#ifndef CVY_GROUP_H
#define CVY_GROUP_H

#include "event.h"
#include "seam.h"
#include "view.h"

#define CVY_STAT_TEXT 320 /* `done,numbers;links` of a beat: 21, CVY_BEAT_TEXT, and 96 or more for links */

enum cvy_phase {
	CVY_PHASE_JOINING,
	CVY_PHASE_RUN,
	CVY_PHASE_FREEZING,
	CVY_PHASE_FROZEN,
	CVY_PHASE_LEARNED,
	CVY_PHASE_ACKED,
	CVY_PHASE_FENCED, /* also closed or left: `ended` has the reason */
};

enum cvy_action_kind {
	CVY_DO_CALL = 1, /* store call: id, argc, argv; a reply event follows */
	CVY_DO_SEND,	 /* control message: rank, inc, type, body, bytes */
	CVY_DO_IDENTITY, /* gid, secret, rank, inc are known: see cvy_group_identity() */
	CVY_DO_EXPECT,	 /* rank, inc */
	CVY_DO_DIAL,	 /* rank, inc, text = addr, host */
	CVY_DO_DROP,	 /* rank, inc */
	CVY_DO_LOOK,	 /* rank, text = addr, host, argv[0] = `rank:inc`: does this process live? LOOKED follows */
	CVY_DO_FREEZE,
	CVY_DO_LEARN,	/* view, removed, lag: fence the removed, adopt; FENCED follows */
	CVY_DO_REPAIR,	/* ranks = holders; REPAIRED follows */
	CVY_DO_THAW,	/* the view is active */
	CVY_DO_STOP,	/* err: FENCED, CLOSED; ends */
	CVY_DO_JOINED,	/* err (0: member, or connected joiner), text */
	CVY_DO_SAY,	/* text: what the join waits for, for the log */
	CVY_DO_PUBLISH, /* public event: `event`; of a view number 1: an operator wants to know */
	CVY_DO_VIEW,	/* for the observer: view, active = number */
	CVY_DO_ANSWER	/* API request id: err, text */
};

struct cvy_action {
	int kind;
	int rank;
	uint64_t inc;
	uint64_t id, number;
	int err;
	int type;
	int argc;
	char **argv; /* owned by the list */
	void *body;  /* owned by the list */
	uint32_t bytes;
	char *text, *host;	     /* owned by the list */
	const struct cvy_view *view; /* the state's: valid until the next step */
	struct covey_mask ranks, removed, lag;
	struct covey_event event;
};

struct cvy_actions {
	struct cvy_action *item;
	int count, room;
};

int cvy_actions_init(struct cvy_actions *actions);   /* with room for most steps; a zeroed struct works, too */
void cvy_actions_clear(struct cvy_actions *actions); /* frees what the items own, and the room of a large step */
void cvy_actions_free(struct cvy_actions *actions);

struct cvy_group_args {
	int rank; /* COVEY_RANK_ANY or wanted */
	int world, max_ranks, create, admission;
	const char *addr, *host;
	const char *name, *job; /* of the group, for messages; identity of the job, NULL: not known */
	const char *alike;	/* settings that must be the same, `name=value ...`; NULL: none are compared */
	uint64_t age_ms;	/* since the launch of this process, with others */
	uint64_t nonce, seed;	/* seed of every random name it makes up */
	const uint8_t *secret;	/* [32] from a file; NULL: the creator makes it up, others get it from the store */
	int grace_ms, flush_ms, ack_ms, relink_ms, join_ms, peek_ms, lease_ms; /* 0: PROTOCOL's defaults */
	int pace_members; /* with so many more, each member waits peek_ms longer before it asks the store; 0: 128 */
};

struct cvy_group_state;

struct cvy_group_state *cvy_group_new(const struct cvy_group_args *args, uint64_t now_ns);
void cvy_group_free(struct cvy_group_state *g);

/* The pure step. @out is appended to. */
void cvy_group_step(struct cvy_group_state *g, const struct cvy_event *event, uint64_t now_ns, struct cvy_actions *out);

/* Latest time for the next TICK; CVY_NEVER: none is needed. */
uint64_t cvy_group_timer(const struct cvy_group_state *g);

/* Queries for the driver, the public view, tests and invariants. */
int cvy_group_phase(const struct cvy_group_state *g);
const struct cvy_view *cvy_group_view(const struct cvy_group_state *g); /* last learned; NULL before */
int cvy_group_active(const struct cvy_group_state *g);			/* the learned view is active, phase RUN */
int cvy_group_rank(const struct cvy_group_state *g);			/* -1 before registration */
uint64_t cvy_group_inc(const struct cvy_group_state *g);
const char *cvy_group_gid(const struct cvy_group_state *g);
void cvy_group_identity(const struct cvy_group_state *g, struct cvy_identity *id);
int cvy_group_retiring(const struct cvy_group_state *g); /* marked `retire`, runs, has not begun to leave */

#endif
