/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an engine, which no other room touches, and the functions that its files share. Operations and calls see
 * the first bytes of it, struct cvy_site.
 */
#ifndef CVY_ENGINE_STATE_H
#define CVY_ENGINE_STATE_H

#include <pthread.h>

#include "engine.h"
#include "p2p.h"

struct cvy_outcome;
struct cvy_pairs;
struct cvy_plan_rule;

#define CVY_KEPT 8	/* decided operations whose buffers and plans are kept */
#define CVY_USED_MAX 16 /* pieces of returned space that are recorded */

struct cvy_told {	     /* the own done line at a tick */
	uint32_t tick, mark; /* tick 0: nothing */
};

struct cvy_engine {
	struct cvy_site here; /* first: cvy_site() */
	pthread_mutex_t lock;
	struct cvy_mesh *mesh;
	struct cvy_fault *fault; /* the plan of COVEY_FAULT, NULL: none */
	struct cvy_sink sink;	 /* any thread; of the agent, or of the device, by which news come to the agent */
	/* control message to a member, from any thread */
	int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes);
	void *send_ctx;
	size_t undo_bytes;
	int late_ms;		 /* of dispatch and combine calls that give no time of their own, 0: none */
	int late_evict;		 /* a rank that is masked as late is asked to leave the group */
	uint64_t slice_ns;	 /* a blocking call that is not decided then returns AGAIN, 0: never */
	uint64_t clock_ns;	 /* of the simulator; 0: the real one */
	int mask_words;		 /* of 64 ranks, for max_ranks */
	struct cvy_op *spare[2]; /* freed operations, for the next: a send and a receive */

	/* Set by the agent, read by steppers without the lock. */
	uint32_t gate;	 /* closed: release the lock */
	uint32_t asleep; /* threads asleep on change */
	uint32_t change; /* futex: counts thaws, ends, decided operations */
	int retiring;	 /* operations that are not entered yet wait */
	int waiting;	 /* a thread has waited for more than 1 ms */
	int waiters;	 /* threads that step this engine while they wait */

	/* Below: under the lock. */
	struct cvy_view *view;	/* last learned */
	int active;		/* it is active here */
	struct covey_mask mask; /* MASK of the next operation */
	uint64_t posted;	/* seq of the last operation posted */
	uint64_t done, ent;	/* PROTOCOL section 2 */
	uint64_t adm;
	int mismatch;
	uint32_t tick;	   /* last tick that belongs to a begun operation */
	uint64_t tick_seq; /* that operation; operations decided by a repair do not change tick */
	uint32_t complete; /* last tick completed here */
	uint32_t floor;	   /* every admitted rank has completed ticks up to here */
	uint64_t wanted;   /* seq for which a change was asked, to ask once */

	/* Calls that may have ended before anybody was heard (mismatch.c). */
	uint32_t past;			     /* hash of all calls after `since`, each with its number */
	uint64_t since;			     /* last operation that failed for all: the calls before it are settled */
	int newcomer;			     /* let in by a change: it gets past and since with its ADMIT */
	int unheard;			     /* the last operation waited for nobody */
	int apart;			     /* index of a source whose done line shows other calls, plus 1 */
	struct cvy_told told[2 * CVY_SLOTS]; /* of the last ticks of this epoch */
	struct {			     /* of an operation that failed for all and is not called yet */
		uint64_t seq, call[2];
		int rank, by[2]; /* by: ranks that made those calls at its number, -1: unknown */
		char text[256];	 /* of a call before it, from here and from `rank`; may be empty */
	} why;
	uint64_t asked_ns;	 /* when members were last asked for their progress */
	uint64_t *peer_done;	 /* [max_ranks] last operation decided there, from its PING; agent's thread */
	struct covey_mask acked; /* contributors of the last safe point: required by on_loss = fail */

	int outrun;			 /* the others write in a view without this rank: nothing more is read */
	struct cvy_op *head, *tail;	 /* posted, not decided */
	struct cvy_op *again;		 /* whose calls returned AGAIN and were not resumed; a reference each */
	struct cvy_op *record[CVY_KEPT]; /* last decided operations with their tick numbers, for repair */
	struct cvy_outcome *outcomes;	 /* repaired before the application called them */
	uint64_t anew; /* a view learned since one was active does operations from it on again; UINT64_MAX: none does */
	struct covey_result failed;	 /* view.fail of a view learned since one was active; seq 0: none */
	struct cvy_outcome *given;	 /* all that were repaired since a view was active: to be given to others */
	uint8_t *aside[COVEY_MAX_RANKS]; /* page and slots of a removed rank, until the view is active */
	struct cvy_repair *repair, *repair_room; /* under way, NULL: none; its memory */
	void *admit_state;			 /* of the present ADMIT: bytes that a joiner got */
	size_t admit_bytes;
	uint64_t admit_seq, admit_since;
	uint32_t admit_tick, admit_epoch, admit_past;
	uint64_t late_seq, late_ns; /* ADMIT that waits for pending ranks alone, and since when; agent's thread */
	uint64_t told_ns;	    /* when these were asked to begin */
	uint32_t late_epoch;
	uint8_t *scratch; /* give buffer */
	size_t scratch_bytes;
	uint8_t *undo; /* memory for the undo copy of the entered operation */
	size_t undo_room;

	struct cvy_used { /* space of the heap that was given back; others may read its old data (space.c) */
		struct cvy_extent at;
		uint64_t seq; /* of the last operation that used it */
	} used[CVY_USED_MAX];
	int nused;
	uint64_t passed; /* every member is known to have decided all operations up to here */

	struct cvy_plan_rule *rule; /* [rules] of COVEY_ALGO (plan.h) */
	int rules;
	unsigned looks; /* counts looks at links */
	int looked;	/* links that the last one was at */

	struct cvy_pairs *pairs; /* messages, NULL: none yet */

	struct cvy_engine *next_engine; /* list of the progress thread */
	uint32_t freezing;		/* epoch + 1 for which FROZEN is owed, 0: none; agent's thread */
	uint64_t freeze_ns;		/* since then */
	int sockets;			/* some peers are reached through sockets: waiters may sleep on them */
	int spin;			/* every rank of the host has a core of its own */
	int crowded;			/* waits in which a peer is thought to need this core (wait.c) */
	struct cvy_flight *flight;	/* the recorded page (recorder.h); NULL: none */
	int idle_fd;			/* eventfd: wakes a stepper that polls sockets */
	int gave_up;			/* it ended by itself, and the agent does not know yet; and why */
	char end_cause[160];
};

_Static_assert(offsetof(struct cvy_engine, here) == 0, "cvy_site() takes the engine for it");

/* Is all of the k-th source's window mapped here, with everything that it wrote for others? */
int cvy_source_open(const struct cvy_engine *e, int k);
/* link of the i-th rank to push to, NULL while it is down; valid while the lock is held */
static inline struct cvy_link *cvy_push_link(const struct cvy_engine *e, int i)
{
	return cvy_mesh_link(e->mesh, e->here.set.push[i]);
}

/* A later tick of this epoch is there: the awaited one never comes. Only calls that did not match cause this. */
static inline int cvy_line_passed(const struct cvy_line *line, uint64_t tag)
{
	uint64_t there = __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE);

	return there >> 32 == tag >> 32 && there > tag;
}

void *cvy_calloc_twice(size_t bytes); /* where a failure would end this rank's membership: tries twice */

#define CVY_RARE __attribute__((cold, noinline)) /* kept apart from code that runs every time */

/* The line that the head of the queue misses, its tag and its source. NULL: it waits for something else. */
const struct cvy_line *cvy_engine_missing(const struct cvy_engine *e, uint64_t *tag, int *k);
void cvy_engine_end_all(struct cvy_engine *e, int err);
/* Out of memory, this rank cannot answer for itself: it ends as FENCED, and its agent gives up its place. Lock held. */
void cvy_engine_give_up(struct cvy_engine *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Has that happened? Then ends its operations and messages, at a place that handles none of them. Lock held. */
void cvy_engine_look_for_end(struct cvy_engine *e);
void cvy_engine_reach(struct cvy_engine *e, uint64_t seq); /* done = ent = seq; done is read without the lock */
void cvy_engine_decide(struct cvy_engine *e, struct cvy_op *op, int status, uint32_t epoch,
		       const struct covey_mask *mask, int size);
struct cvy_op *cvy_engine_record(struct cvy_engine *e, uint64_t seq);
/* Reports in words why an operation failed for all: the calls seen at its number, or the lost input. */
void cvy_engine_explain(struct cvy_engine *e, const struct cvy_op *op, int status);
/* Calls at one number differ: reports it, and asks for the change that fails the operation for all. */
void cvy_engine_mismatch(struct cvy_engine *e, struct cvy_op *op, int k, const struct cvy_line *line);
void cvy_engine_want_change(struct cvy_engine *e, struct cvy_op *op, const char *why); /* once per operation */
/* Adds a decided operation to the calls that mark later ones. */
void cvy_engine_count_call(struct cvy_engine *e, const struct cvy_op *op);
/* @seq failed for all: the calls up to there are settled. */
void cvy_engine_forget_calls(struct cvy_engine *e, uint64_t seq);
/* From a holder, with the outcome of @seq: `past` for a newcomer, and the last failure for all in a view skipped here. */
void cvy_engine_told_calls(struct cvy_engine *e, uint64_t seq, uint32_t past, uint64_t since);
/* Writes the calls up to @tick of @op into the own done line. */
void cvy_engine_tell_calls(struct cvy_engine *e, const struct cvy_op *op, uint32_t tick);
/* Does the done line of the k-th source, whose tag was @tag, show other calls? */
int cvy_engine_calls_differ(const struct cvy_engine *e, int k, uint64_t tag);
/* For a waiter that waits long: looks for other calls at this number that no line would announce (root operations). */
void cvy_engine_look_for_mismatch(struct cvy_engine *e);
/* Reports e->apart, and asks for the change. */
void cvy_engine_apart(struct cvy_engine *e, struct cvy_op *op);
/* Keeps the words for @seq, which failed for all and is not called here yet, while the lines are unchanged. */
void cvy_engine_keep_words(struct cvy_engine *e, uint64_t seq);
void cvy_engine_drop_aside(struct cvy_engine *e); /* and the scratch memory of repair */
void cvy_set_build(struct cvy_engine *e);	  /* from view and done */
void cvy_set_clear(struct cvy_set *set);
void cvy_engine_wake(struct cvy_engine *e); /* steppers and waiters look again */
long cvy_futex(const void *addr, int op, uint32_t val, const struct timespec *timeout);
void cvy_barrier_all(void); /* of all processes of covey; the first one registers this process */
#define CVY_YIELD_NS CVY_MS /* waits yield until then, and sleep afterwards */
/* The same for one peer. */
void cvy_engine_announce_to(struct cvy_engine *e, int rank, const struct cvy_line *line);
void cvy_repair_message(struct cvy_engine *e, const struct cvy_msg *msg);
void cvy_repair_step(struct cvy_engine *e);
int cvy_repair_go_on(struct cvy_engine *e); /* all that it can do; 1: it waits for more */
int cvy_repair_open(struct cvy_engine *e);  /* 0 or NOMEM; freed with the engine */
void cvy_repair_drop(struct cvy_engine *e);
void cvy_admit_message(struct cvy_engine *e, const struct cvy_msg *msg);
void cvy_admit_send(struct cvy_engine *e, struct cvy_op *op);
int cvy_lowest_admitted(const struct cvy_engine *e); /* the rank that sends joiners their first seq */
void cvy_signal_all(struct cvy_engine *e, const struct cvy_line *line);
void cvy_say_done(struct cvy_engine *e); /* sends the done line as it is, after everything published */
/* The same with this tick, and the word of the call that ends with it; NULL: without a word. */
void cvy_tell_done(struct cvy_engine *e, const struct cvy_op *op, uint32_t tick);
int cvy_engine_look_at_links(struct cvy_engine *e); /* links.c; 1: something moved */
void cvy_engine_look_at_push(struct cvy_engine *e); /* at all that this rank pushes to */
void cvy_engine_look_far(struct cvy_engine *e);	    /* the next look is at all links; lock held */
#define CVY_FEW_BYTES (32u << 10) /* of an operation: more come from all links at once, and are taken as they come */
/* Transports that still hold bytes of decided operations. */
int cvy_engine_unsent(struct cvy_engine *e);
int cvy_op_step(struct cvy_engine *e, struct cvy_op *op);	   /* the pipeline of one operation; 1: progress */
int cvy_engine_passed(const struct cvy_engine *e, uint32_t epoch); /* does a source write for a later view? */
/* space.c: May the operation that begins write into its slots? */
int cvy_space_clear(struct cvy_engine *e, struct cvy_op *op);
/* The line that it waits for, its tag and its source. */
const struct cvy_line *cvy_space_missing(const struct cvy_engine *e, const struct cvy_op *op, uint64_t *want, int *k);
/* late.c: operations with a deadline, which begins when their tick is published, or that leave ranks out. */
void cvy_late_from_now(const struct cvy_engine *e, struct cvy_op *op);
int cvy_late(struct cvy_engine *e, struct cvy_op *op, int rank); /* this source is missing: 1 if it is masked */
enum cvy_absent { CVY_ABSENT_NONE, CVY_ABSENT_MASKED, CVY_ABSENT_ANOTHER_CALL };
/* Masks sources whose part never comes. */
enum cvy_absent cvy_late_in_repair(struct cvy_engine *e, const struct cvy_op *op);
/* For a rank that some left out of an operation: does a member lack it, who may want this rank's part? */
int cvy_late_wanted(const struct cvy_engine *e, uint64_t seq);
/* Publishes an operation in a repair, which a holder completed as tick @first. */
void cvy_late_enter(struct cvy_engine *e, struct cvy_op *op, uint32_t first);

/*
 * Posts FROZEN or REPAIRED. In a group with devices it is for the device, too: the device's sink holds it back until
 * the device is frozen, or has repaired what it lacked, and posts it to the agent then (device_change.c).
 */
static inline void cvy_post_after_device(struct cvy_engine *e, const struct cvy_event *event)
{
	cvy_post(&e->sink, event);
}

#endif
