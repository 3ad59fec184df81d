/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The events of the group state machine, as plain data. Links and engine post them to the agent; the simulator makes
 * them up.
 */
#ifndef CVY_EVENT_H
#define CVY_EVENT_H

#include "mask.h"

/* Control messages between members. Every message carries its sender's rank, inc and epoch. */
enum cvy_msg_type {
	CVY_MSG_PING = 1, /* beat; body: done seq */
	CVY_MSG_PONG,
	CVY_MSG_BYE,	 /* orderly end of the link */
	CVY_MSG_RELAY,	 /* body: id, argv: a request to make this store call */
	CVY_MSG_RELAYED, /* body: id, error, argv of the reply */
	CVY_MSG_ADMIT,	 /* engine: seq, tick, state */
	CVY_MSG_PULL,	 /* engine: seq, first missing tick */
	CVY_MSG_GIVE,	 /* engine: outcome of an operation, bytes of its missing ticks */
	CVY_MSG_ACKED,	 /* group: the sender has acknowledged the view whose vid is the body */
	CVY_MSG_CHUNK,	 /* device: the descriptor of memory that the receiver pushes into */
	CVY_MSG_HAVE,	 /* device: operations completed, in a view that is being learned */
	CVY_MSG_WANT,	 /* device: packets of a removed rank are missing */
	CVY_MSG_SLOTS,	 /* device: such packets */
	CVY_MSG_QUEUE,	 /* device: the address of a queue, instead of CHUNK to a rank of another host */
	CVY_MSG_PASSED	 /* device: operations completed; a rank that leaves asks for it */
};

#define CVY_MSG_MAX (4u << 20) /* bytes of one control message */

struct cvy_msg {
	int type;
	int rank;	/* of the peer */
	uint64_t inc;	/* of the peer */
	uint32_t epoch; /* of the sender */
	uint32_t bytes;
	const void *body; /* valid during the call that carries the message */
	int fd;		  /* CHUNK: the descriptor with the message, -1: none; closed after the call */
};

/* Source of a suspicion. Proof: this process can never report again. */
enum cvy_source {
	CVY_SOURCE_ROBUST = 1, /* proof */
	CVY_SOURCE_PIDFD,      /* proof */
	CVY_SOURCE_STOPPED,    /* /proc says T */
	CVY_SOURCE_EXITING,
	CVY_SOURCE_HEARTBEAT,
	CVY_SOURCE_LINK,
	CVY_SOURCE_LEASE,
	CVY_SOURCE_ACK,	  /* did not acknowledge a view in time */
	CVY_SOURCE_ADMIT, /* a joiner did not enter its ADMIT in time */
	CVY_SOURCE_OPERATOR,
	CVY_SOURCES
};

const char *cvy_source_name(int source);
const char *cvy_source_text(int source); /* for an operator: "is dead (its process ended)" */

/* The report of a member to the store when its engine is frozen. */
struct cvy_report {
	uint64_t done, ent; /* last operation decided here; last entered: done or done + 1 */
	uint64_t adm;	    /* ADMIT of this view's pending ranks, if completed here, else 0 */
	uint32_t stamp;	    /* highest stamp used */
	int spoiled;	    /* the inputs of `ent` were overwritten */
	int mismatch;	    /* `ent` met another call at its number */
};

enum cvy_event_kind {
	CVY_EV_TICK = 1, /* time passed */
	CVY_EV_NOTICE,	 /* store channel: text */
	CVY_EV_REPLY,	 /* store reply to call `id` */
	CVY_EV_STORE_UP,
	CVY_EV_STORE_DOWN,
	CVY_EV_MSG,	    /* RELAY, RELAYED; the driver gives PULL, GIVE, ADMIT to the engine */
	CVY_EV_LINK_UP,	    /* control and data links to (rank, inc) are up */
	CVY_EV_LINK_DOWN,   /* one of them broke: text */
	CVY_EV_SUSPECT,	    /* rank, inc, source */
	CVY_EV_LATE,	    /* rank, inc: an operation went on without it, and it must leave for that; number */
	CVY_EV_FROZEN,	    /* the engine is frozen: report */
	CVY_EV_FROZE_NOT,   /* it did not freeze in freeze_ms; err: it never will, in any phase */
	CVY_EV_FENCED,	    /* the removed are fenced, the view is learned by the engine */
	CVY_EV_REPAIRED,    /* done == base - 1 */
	CVY_EV_ADMITTED,    /* ADMIT seq completed and admitted the pending ranks */
	CVY_EV_WANT_CHANGE, /* engine: mismatch or spoiled or stamps run out: text */
	CVY_EV_LOOKED, /* state of a process: rank, argv[0] = `rank:inc`, source = enum cvy_proc_found, text = addr */
	CVY_EV_API     /* a request of the application */
};

enum cvy_api_kind {
	CVY_API_JOIN = 1,
	CVY_API_READY,	 /* a joiner called covey_admit */
	CVY_API_LEAVE,	 /* drained: remove this rank */
	CVY_API_RECOVER, /* ranks */
	CVY_API_EXTEND,	 /* number: new size */
	CVY_API_RETIRE,	 /* rank */
	CVY_API_EVICT	 /* rank */
};

struct cvy_event {
	int kind;
	int rank; /* -1: none */
	uint64_t inc;
	uint32_t epoch;		 /* the view of FROZEN, FENCED, REPAIRED */
	int source;		 /* SUSPECT */
	int api;		 /* API */
	uint64_t id;		 /* REPLY: of the call; API: of the request */
	uint64_t number;	 /* seq or size */
	int err;		 /* REPLY: 0, or COVEY_ERR_STORE / COVEY_ERR_TIMEOUT: no answer came */
	int argc;		 /* REPLY: fields */
	const char *const *argv; /* valid during the step */
	const char *text; /* NOTICE: the message; LINK_DOWN, WANT_CHANGE, FROZE_NOT: cause; JOIN: this process, for
			   * the store; valid during the step */
	struct cvy_report report; /* FROZEN */
	struct covey_mask ranks;  /* API recover */
	struct cvy_msg msg;	  /* MSG */
};

/* Posts events to the agent. Called from another thread, it copies the event and the data that it points to. */
struct cvy_sink {
	void (*post)(void *ctx, const struct cvy_event *event);
	void *ctx;
};

static inline void cvy_post(const struct cvy_sink *sink, const struct cvy_event *event)
{
	sink->post(sink->ctx, event);
}

#endif
