/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of a group: a queue of operations, run in order, one at a time, tick by tick.
 *
 * A *tick* is the part of an operation that fits one slot. Every source has CVY_SLOTS slots in its own window. Tick t
 * uses slot t % CVY_SLOTS; the tag {epoch, t} in the slot's line announces it. An operation of one *round* is done when
 * the lines of all sources are here. One of two rounds (two-shot) then publishes the result in its second line.
 *
 * Every operation is resumable: cvy_engine_step() does all that it can and never waits. A blocking call steps it on the
 * caller's thread; the progress thread steps operations that nobody waits for; the simulator steps all of them. All
 * waiting is in wait.c. The lock is held while stepping; a closed gate (a view change) makes steppers release it.
 *
 * Retention (PROTOCOL section 7): tick t is entered when every rank has completed t - 2D (floor) and this one t - D. So
 * slots of the last 2D ticks keep their data until a view is active. A survivor that completed an operation can give
 * its missing ticks to one that did not (repair.c).
 */
#ifndef CVY_ENGINE_H
#define CVY_ENGINE_H

#include <pthread.h>

#include "p2p.h"
#include "seam.h"

struct cvy_engine;
struct cvy_flight;
struct cvy_op;
struct cvy_pairs;
struct cvy_plan_rule;

#define CVY_ADMIT_MS 5000 /* that members wait in an ADMIT for joiners that do not enter it */

enum cvy_op_class {
	CVY_OP_ALL,	/* replicated: needs everyone, a holder can give it */
	CVY_OP_PRIVATE, /* needs everyone, each rank gets its own part; missing sources are masked */
	CVY_OP_ROOT,	/* needs the root */
	/*
	 * The root needs everyone. The others need to know that it will have all inputs: its second line says so;
	 * or, if each sees all windows itself as the root does (set.open), the lines of all.
	 */
	CVY_OP_TO_ROOT,
	CVY_OP_ADMIT,
	CVY_OP_PAIR /* a message: not in the queue, not part of views (pair.h) */
};

/*
 * The steps of an operation in a tick. i counts ticks of the operation from 0. Functions run under the engine's lock,
 * never wait, and touch: own slot (cvy_own_slot), sources' slots (cvy_source_slot), the operation's buffers.
 */
struct cvy_op_kind {
	const char *name;
	int op_class;
	/* rounds, piece and ticks, and the input that results overwrite: from call, size and layout alone, so the
	 * same on all ranks; NULL: one tick, or planned where the call is made */
	void (*plan)(struct cvy_engine *e, struct cvy_op *op, int size);
	/* own contribution of tick i into the own slot or line->data, and cvy_put*() for peers that need it */
	void (*publish)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
	/* two rounds: all first lines are here; makes and puts the second part; may be NULL */
	void (*publish2)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line);
	/* all lines of the last round are here (or the source is removed): writes outputs. Tick 0 may set op->ticks. */
	void (*consume)(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
	/* the lines of tick i are awaited, or all here: notes which have come; may be NULL */
	void (*look)(struct cvy_engine *e, struct cvy_op *op, uint64_t i);
	/* replicated kinds: the bytes of tick i's outcome (at most cvy_op_give_bytes), and their placing */
	size_t (*give)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, uint8_t *out);
	void (*take)(struct cvy_engine *e, struct cvy_op *op, uint64_t i, const uint8_t *bytes, size_t n);
	/* the operation is decided and op->result set: last touches (zero missing blocks, counts); may be NULL */
	void (*finish)(struct cvy_engine *e, struct cvy_op *op);
	/* frees op->priv; may be NULL */
	void (*release)(struct cvy_op *op);
	int counted; /* op->ticks follows from the sources' words in tick 0, in every attempt again */
	int parts;   /* a slot has parts for single ranks */
	int whole;   /* private: of no use if a source is missing; ends with LOST then */
	int own;     /* the bytes of give() are for e->asker alone */
	int lends;   /* inputs in registered buffers are read in place (lend.h) */
	int folds;   /* results may be written over the own input */
};

/* A slot holds a part for each rank. */
static inline int cvy_in_parts(const struct cvy_op_kind *kind)
{
	return kind->op_class == CVY_OP_PRIVATE || kind->parts;
}

/* How the bytes of an operation travel (hosts.c). */
enum cvy_way {
	CVY_WAY_FLAT,  /* each rank signals each */
	CVY_WAY_HOSTS, /* one rank of a host receives, and passes on in its window */
	CVY_WAY_CHAIN  /* a running fold travels from host to host */
};

/* The arguments of a blocking call: the same call again gets the same operation. */
struct cvy_asked {
	const struct cvy_op_kind *kind;
	const void *send;
	void *recv;
	size_t count;
	int dtype, redop, root;
};

enum cvy_op_state { CVY_OP_QUEUED, CVY_OP_ENTERED, CVY_OP_DECIDED };

/* One send or receive: the private part of an operation of class PAIR (op->priv, pair.h). */
struct cvy_parcel {
	struct cvy_parcel *next;
	struct cvy_op *op;
	uint64_t number; /* of the message, once it is known */
	int tag;	 /* asked for; that of the message, once it is known */
	size_t total;	 /* bytes of the message (receive), bytes that are wanted (send) */
	size_t at;	 /* bytes of these that were moved */
};

struct cvy_op {
	const struct cvy_op_kind *kind;
	uint64_t seq;	 /* 0: a joiner's first covey_admit, not known yet */
	uint32_t sig;	 /* hash of the call: the same on all ranks */
	uint32_t mark;	 /* in its lines: hash of sig, number and first tick, and of the calls before it */
	uint32_t past;	 /* e->past when it began */
	uint64_t detail; /* hash of arguments that must be the same and are in no other field, 0: none */
	uint64_t call;	 /* kind, type, op, root, count in short, for reports of mismatches; and the lap */
	int state;	 /* enum cvy_op_state; DECIDED is stored with release */
	int rounds;	 /* 1 or 2 */
	int way;	 /* enum cvy_way, chosen from the view when it begins: the same on all ranks */
	int flat_rounds; /* rounds of CVY_WAY_FLAT */
	uint64_t ticks;	 /* of the whole operation; 0: not known before tick 0 is complete */
	uint32_t first;	 /* tick number of i = 0 */
	uint64_t entered, second, completed; /* ticks published in round 1, in round 2, completed */
	uint64_t handed;		     /* ticks of which a chain has passed on its fold */
	int scan[3];			     /* per round: index in the set of the first source not seen yet */
	int on_loss;
	size_t lends; /* offset of the own input in the own window, 0: it is copied through slots */
	int lent;     /* some source of it lends: it ends with everyone's done word */
	int spoiled;  /* results were written over inputs that a redo would need */

	const void *send; /* arguments, as the kinds use them */
	void *recv;
	size_t count, elem, bytes; /* bytes: count * elem */
	size_t piece;		   /* bytes of the operation per tick */
	int dtype, redop, root;
	const uint8_t *input; /* send, or the undo copy of an in-place input */
	size_t input_bytes;   /* of an input that results overwrite (in place), 0: none */
	uint8_t *undo;
	void *priv; /* of the kind */
	struct cvy_engine *engine;
	uint64_t posted_ns;
	int refs;	     /* caller or work; queue, then record */
	uint64_t behind;     /* last operation whose data others may still read where its slots are, 0: none */
	int partial;	     /* it may be decided without a rank that has not published: a deadline, or one left out */
	uint64_t timeout_ns; /* of one tick, from its publishing: then missing sources are masked; 0: never */
	uint64_t late_ns;    /* the time when that ends, once the tick is published */
	int late;	     /* a source was masked for it */
	struct cvy_op *next;
	struct cvy_parcel parcel;
	struct cvy_asked asked;
	uint32_t planned;	    /* e->plans when it was planned, 0: the plan is not reused */
	struct covey_result result; /* last: its mask is not cleared in advance */
};

#define CVY_LAP_BITS 8

/* A hash of number and first tick. Ranks differ in it only if mismatched calls made them count ticks differently. */
static inline uint8_t cvy_lap(uint64_t call)
{
	return (uint8_t)call;
}

#define CVY_HOSTS_MAX 1024 /* with more than these, all operations are flat */
#define CVY_STATE_MAX 4096 /* bytes that covey_admit() hands to joiners */

/* The hosts of a set's ranks; indices are those of the set. */
struct cvy_hosts {
	int n;	    /* hosts; 1: the fields below are not filled in; 0: more than CVY_HOSTS_MAX */
	int own;    /* host of this rank */
	int nth;    /* this rank among those of its host */
	int local;  /* ranks of this host */
	int widest; /* ranks of the host that has most */
	int most;   /* the most parts that one window holds for its host, on any host */
	int even;   /* each host has the same number of adjacent ranks: a fold may travel from host to host */
	int *of;    /* [n of the set] host of each source */
	int *via;   /* [n of the set] the rank whose window has its part for this host: itself, if it is on this host */
	int *place; /* [n of the set] number of parts before its part there */
	int *like;  /* [n] the rank of each host with the same index as this rank, modulo its ranks */
	int *out;  /* [nout] ranks to signal in the first round: one of each other host, and those here with a socket */
	int *mate; /* [nmate] ranks of this host with a socket */
	int *near; /* [nnear] ranks on other hosts whose lines this one awaits in operations of two levels, and out */
	int nout, nmate, nnear;
};

/* The sources of the view that operations run in, ascending by rank. */
struct cvy_set {
	int n;
	int self; /* index of the own rank, -1: not among them */
	int open; /* the windows of all are mapped here, with everything that each wrote for others: one host */
	int *rank;
	struct cvy_page **page; /* page of each source as seen here */
	const uint8_t **base;	/* its window as seen here, or its copy set aside */
	const void **src;	/* [n] room for a list of inputs */
	uint8_t *gone;		/* removed since: nothing more comes from it */
	uint64_t *link;		/* id of the link of its puts, 0: none is needed */
	int *push;		/* [npush] ranks that need signals (cvy_push_link): links change within a view */
	int npush;
	int nlocal; /* peers on this host that sleep on our lines */
	struct cvy_page **local;
	uint64_t *host; /* name of each source's host in the view that the set was made from */
	struct cvy_hosts hosts;
};

/* Bytes of tick i of a simple linear operation. */
static inline size_t cvy_tick_bytes(const struct cvy_op *op, uint64_t i)
{
	size_t at = (size_t)i * op->piece;

	return op->bytes - at < op->piece ? op->bytes - at : op->piece;
}

#define CVY_USED_MAX 16 /* pieces of returned space that are recorded */

struct cvy_told {	     /* the own done line at a tick */
	uint32_t tick, mark; /* tick 0: nothing */
};

struct cvy_engine {
	pthread_mutex_t lock;
	struct cvy_mesh *mesh;
	struct cvy_layout layout;
	struct cvy_fault *fault; /* the plan of COVEY_FAULT, NULL: none */
	struct cvy_sink sink;	 /* agent; any thread */
	/* control message to a member, from any thread */
	int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes);
	void *send_ctx;
	struct cvy_errbox *box;
	size_t undo_bytes;
	int late_ms;	   /* of dispatch and combine calls that give no time of their own, 0: none */
	int late_evict;	   /* a rank that is masked as late is asked to leave the group */
	uint64_t clock_ns; /* of the simulator; 0: the real one */
	int rank;
	int mask_words;		 /* of 64 ranks, for max_ranks */
	struct cvy_op *spare[2]; /* freed operations, for the next: a send and a receive */
	uint32_t plans;		 /* counts views and safe points, on which plans depend; from 1 */
	struct cvy_page *own;	 /* own window */
	uint8_t *own_base;

	/* Set by the agent, read by steppers without the lock. */
	uint32_t gate;	 /* closed: release the lock */
	uint32_t asleep; /* threads asleep on change */
	uint32_t change; /* futex: counts thaws, ends, decided operations */
	int ended;	 /* COVEY_ERR_*: every operation ends with it */
	int retiring;	 /* operations that are not entered yet wait */
	int waiting;	 /* a thread has waited for more than 1 ms */
	int waiters;	 /* threads that step this engine while they wait */

	/* Below: under the lock. */
	struct cvy_view *view; /* last learned */
	int active;	       /* it is active here */
	int pending;	       /* this rank waits for its ADMIT; calls read it without the lock */
	uint32_t epoch;	       /* of the view that `set` and ticks belong to (active) */
	struct cvy_set set;    /* MASK of the next operation */
	struct covey_mask mask;
	int size;	    /* for layouts: as the last safe point returned */
	uint64_t posted;    /* seq of the last operation posted */
	uint64_t done, ent; /* PROTOCOL section 2 */
	uint64_t adm;
	int mismatch;
	uint32_t tick;	    /* last tick that belongs to a begun operation */
	uint64_t tick_seq;  /* that operation; operations decided by a repair do not change tick */
	uint32_t complete;  /* last tick completed here */
	uint32_t floor;	    /* every admitted rank has completed ticks up to here */
	uint32_t done_word; /* last tick written to the own done line */
	uint64_t wanted;    /* seq for which a change was asked, to ask once */

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
	int on_loss;

	struct covey_mask lost;		 /* private operation under way: sources that count as missing */
	int some_lost;			 /* lost is not empty */
	int outrun;			 /* the others write in a view without this rank: nothing more is read */
	struct cvy_op *head, *tail;	 /* posted, not decided */
	struct cvy_op *record[8];	 /* last decided operations with their tick numbers, for repair */
	struct cvy_outcome *outcomes;	 /* repaired before the application called them */
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
	int asker;	  /* rank that asks for the bytes of give() */
	uint8_t *scratch; /* give buffer */
	size_t scratch_bytes;

	struct cvy_used { /* space of the heap that was given back; others may read its old data (space.c) */
		struct cvy_extent at;
		uint64_t seq; /* of the last operation that used it */
	} used[CVY_USED_MAX];
	int nused;
	uint64_t passed; /* every member is known to have decided all operations up to here */

	struct cvy_plan_rule *rule; /* [rules] of COVEY_ALGO (plan.h) */
	int rules;
	unsigned looks; /* counts looks at links, while an operation in two levels is under way */

	struct cvy_pairs *pairs; /* messages, NULL: none yet */

	struct cvy_engine *next_engine; /* list of the progress thread */
	uint32_t freezing;		/* epoch + 1 for which FROZEN is owed, 0: none; agent's thread */
	uint64_t freeze_ns;		/* since then */
	int sockets;			/* some peers are reached through sockets: waiters may sleep on them */
	int spin;			/* every rank of the host has a core of its own */
	struct cvy_flight *flight;	/* the recorded page (recorder.h); NULL: none */
	int idle_fd;			/* eventfd: wakes a stepper that polls sockets */
	int gave_up;			/* it ended by itself, and the agent does not know yet; and why */
	char end_cause[160];
};

/* ---- For operation kinds ---- */

/* index of slot, 0..CVY_SLOTS-1, of tick i: for kinds with slots of their own in the heap */
static inline int cvy_slot_index(const struct cvy_op *op, uint64_t i)
{
	return (int)((op->first + (uint32_t)i) % CVY_SLOTS);
}
/* own slot of tick i: layout.stride bytes */
static inline uint8_t *cvy_own_slot(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i)
{
	return e->own_base + e->layout.slots + (size_t)cvy_slot_index(op, i) * e->layout.stride;
}
/* slot of tick i of the k-th source of the set */
static inline const uint8_t *cvy_source_slot(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i, int k)
{
	return e->set.base[k] + e->layout.slots + (size_t)cvy_slot_index(op, i) * e->layout.stride;
}
/* line of round 1 or 2 of tick i of the k-th source */
static inline const struct cvy_line *cvy_source_line(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i,
						     int k, int round)
{
	const struct cvy_page *page = e->set.page[k];

	return (round == 1 ? page->first : page->second) + cvy_slot_index(op, i);
}
/* A later tick of this epoch is there: the awaited one never comes. Only calls that did not match cause this. */
static inline int cvy_line_passed(const struct cvy_line *line, uint64_t tag)
{
	uint64_t there = __atomic_load_n(&line->tag, __ATOMIC_ACQUIRE);

	return there >> 32 == tag >> 32 && there > tag;
}
/* Is all of the k-th source's window mapped here, with everything that it wrote for others? */
int cvy_source_open(const struct cvy_engine *e, int k);
/* Index of the operation's root in the set, set.n: it is not in it. */
int cvy_root_index(const struct cvy_engine *e, const struct cvy_op *op);
/* link of the i-th rank to push to, NULL while it is down; valid while the lock is held */
static inline struct cvy_link *cvy_push_link(const struct cvy_engine *e, int i)
{
	return cvy_mesh_link(e->mesh, e->set.push[i]);
}

/* bytes [at, at + n) of the own window to one member / all members, where the transport needs a put */
void cvy_put(struct cvy_engine *e, int rank, const void *at, size_t n);
void cvy_put_all(struct cvy_engine *e, const void *at, size_t n);
/* to the members that the operation's first round reaches */
void cvy_put_out(struct cvy_engine *e, const struct cvy_op *op, const void *at, size_t n);

/* ---- For the API: post, step, wait ---- */

int cvy_engine_open(struct cvy_engine **out, struct cvy_mesh *mesh, struct cvy_errbox *box, size_t undo_bytes);
void cvy_engine_identity(struct cvy_engine *e, int rank, int max_ranks); /* before the first view */
void cvy_engine_close(struct cvy_engine *e);

struct cvy_op *cvy_op_new(struct cvy_engine *e, const struct cvy_op_kind *kind);
void cvy_op_put(struct cvy_op *op);			      /* drops a reference */
void cvy_op_sign(struct cvy_op *op, int on_loss);	      /* computes sig and call from the arguments */
const char *cvy_op_name(unsigned kind);			      /* of the kind with this number, NULL: none */
char *cvy_call_text(uint64_t call, char *text, size_t bytes); /* the call in words */

/* Gives the operation its number and queues it. Takes a reference for the queue. 0, or the engine's end. */
int cvy_engine_post(struct cvy_engine *e, struct cvy_op *op);
/* The same for a caller that waits for it soon on this thread: does not wake the progress thread. */
int cvy_engine_post_quietly(struct cvy_engine *e, struct cvy_op *op);
/* Post and wait on the caller's thread, without releasing the lock between: status of the operation. Takes over
 * the caller's reference; result may be NULL. */
int cvy_engine_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result);
/*
 * The same for a call that was made before: its operation is still in the record, with plan and signature, in the place
 * of the next one. 1: done, with its status; 0: it must be made.
 */
int cvy_engine_again(struct cvy_engine *e, const struct cvy_asked *asked, struct covey_result *result, int *status);
/* All that it can do without waiting: 1 progress was made, 0 blocked, nothing to do or gate closed. Lock held. */
int cvy_engine_step(struct cvy_engine *e);
/* Steps or waits until op is decided or the deadline: 0 or TIMEOUT. Lock not held. */
int cvy_engine_wait(struct cvy_engine *e, struct cvy_op *op, uint64_t deadline_ns);
/* Transports that still hold bytes of decided operations; the lock is held. */
int cvy_engine_unsent(struct cvy_engine *e);
static inline int cvy_op_decided(const struct cvy_op *op)
{
	return __atomic_load_n(&op->state, __ATOMIC_ACQUIRE) == CVY_OP_DECIDED;
}

/* Progress thread of the process. */
int cvy_progress_add(struct cvy_engine *e);
void cvy_progress_remove(struct cvy_engine *e);
void cvy_progress_kick(void);
void cvy_engine_kick(struct cvy_engine *engine); /* the same, unless a caller waits and steps it itself */
void cvy_progress_forget(void);			 /* in a forked child */

/* ---- For the agent (struct cvy_seam); ctx is the engine ---- */

void cvy_engine_freeze(void *ctx, uint32_t epoch);
void cvy_engine_learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		      const struct covey_mask *lag);
void cvy_engine_repair(void *ctx, const struct covey_mask *holders);
void cvy_engine_thaw(void *ctx);
void cvy_engine_message(void *ctx, const struct cvy_msg *msg);
void cvy_engine_stop(void *ctx, int err);
uint64_t cvy_engine_progress(void *ctx, uint64_t *floor_tick, int *waiting);
/* Suspects the pending ranks that an ADMIT has waited for alone for CVY_ADMIT_MS. Agent's thread. */
void cvy_engine_admit_late(struct cvy_engine *e, uint64_t now_ns);
void cvy_engine_peer_progress(void *ctx, int rank, uint64_t done, uint64_t floor_tick);
/* 1 when every member has decided everything that is decided here: this rank may leave. Agent's thread or simulator. */
int cvy_engine_drained(struct cvy_engine *e);
/* The same for a rank whose application goes on calling: from here on, operations that it has not entered wait. */
int cvy_engine_retire(void *ctx);
/* Asks the members whose progress is not known here; may be called often. Any thread. */
void cvy_engine_ask_progress(struct cvy_engine *e, uint64_t now_ns);
/* For a waiter that waits long: looks for other calls at this number that no line would announce (root operations). */
void cvy_engine_look_for_mismatch(struct cvy_engine *e);

/* ---- Inside the engine ---- */

struct cvy_outcome {		  /* brought by a repair */
	struct cvy_outcome *next; /* of those that the application has not called yet */
	struct cvy_outcome *next_given;
	int shared; /* it is in both lists */
	struct covey_result result;
	uint32_t sig, past;   /* past: as of its struct cvy_op */
	int root;	      /* given: rank whose slots have the parts of all ranks, -1: all got the same */
	uint64_t ticks, from; /* given: ticks in all, first one in bytes */
	uint8_t *bytes;	      /* ticks one after the other, each {u32 n, bytes} */
	size_t n;
};

/*
 * Is it of the call made here? sig is 0 if nobody completed it. If others completed a private operation without this
 * rank's part, then not all had made the call, unless it may be decided without a part.
 */
static inline int cvy_outcome_fits(const struct cvy_outcome *o, const struct cvy_op *op)
{
	if (o->sig && (o->sig != op->sig || (o->ticks && o->ticks != op->ticks)))
		return 0;
	return o->result.status || op->kind->op_class != CVY_OP_PRIVATE || op->partial;
}

/* Contributors of a given outcome: of a private one nothing comes with it, not even the own part. */
static inline const struct covey_mask *cvy_outcome_mask(const struct cvy_outcome *o, const struct cvy_op *op)
{
	static const struct covey_mask nobody;

	return op->kind->op_class == CVY_OP_PRIVATE ? &nobody : &o->result.mask;
}

void *cvy_calloc_twice(size_t bytes); /* where a failure would end this rank's membership: tries twice */
void cvy_outcome_put(struct cvy_outcome *o);
int cvy_outcome_add_tick(struct cvy_outcome *o, const uint8_t *bytes, uint32_t n); /* 0 or NOMEM */
/* The bytes of tick @i, which must be among them. */
const uint8_t *cvy_outcome_tick(const struct cvy_outcome *o, uint64_t i, uint32_t *bytes);
/* Keeps it for members that ask for it, and (unless @called) for the application. */
void cvy_outcome_hold(struct cvy_engine *e, struct cvy_outcome *o, int called);
/* The outcome of the call that the application makes, NULL: none; the caller puts it. */
struct cvy_outcome *cvy_outcome_claim(struct cvy_engine *e, uint64_t seq);
void cvy_outcome_forget_given(struct cvy_engine *e);
void cvy_outcome_forget(struct cvy_engine *e);

#define CVY_RARE __attribute__((cold, noinline)) /* kept apart from code that runs every time */

/* The line that the head of the queue misses and its tag, NULL: it waits for something else. */
const struct cvy_line *cvy_engine_missing(const struct cvy_engine *e, uint64_t *tag);
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
/* Reports e->apart, and asks for the change. */
void cvy_engine_apart(struct cvy_engine *e, struct cvy_op *op);
/* Keeps the words for @seq, which failed for all and is not called here yet, while the lines are unchanged. */
void cvy_engine_keep_words(struct cvy_engine *e, uint64_t seq);
void cvy_engine_drop_aside(struct cvy_engine *e); /* and the scratch memory of repair */
void cvy_set_build(struct cvy_engine *e);	  /* from view and done */
void cvy_set_clear(struct cvy_set *set);
void cvy_engine_wake(struct cvy_engine *e);				     /* steppers and waiters look again */
void cvy_engine_announce(struct cvy_engine *e, const struct cvy_line *line); /* wakes peers asleep on it */
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
void cvy_say_done(struct cvy_engine *e);	     /* sends the done line as it is, after everything published */
/* The same with this tick, and the word of the call that ends with it; NULL: without a word. */
void cvy_tell_done(struct cvy_engine *e, const struct cvy_op *op, uint32_t tick);
int cvy_op_step(struct cvy_engine *e, struct cvy_op *op);	   /* the pipeline of one operation; 1: progress */
int cvy_engine_passed(const struct cvy_engine *e, uint32_t epoch); /* does a source write for a later view? */
int cvy_engine_outrun(struct cvy_engine *e);			   /* later than the one learned here */
/* late.c: operations with a deadline, which begins when their tick is published, or that leave ranks out. */
uint64_t cvy_engine_now(const struct cvy_engine *e);
/* From its publishing on, the operation counts this source as missing. */
void cvy_leave_out(struct cvy_engine *e, struct cvy_op *op, int rank);
void cvy_late_from_now(const struct cvy_engine *e, struct cvy_op *op);
int cvy_late(struct cvy_engine *e, struct cvy_op *op, int rank); /* this source is missing: 1 if it is masked */
/* Masks sources whose part never comes: 1 if there is one. -1: one made another call. */
int cvy_late_in_repair(struct cvy_engine *e, const struct cvy_op *op);

/* ---- space.c: heap space that is given back. The lock is not held, except by the last two. ---- */

/* Space for slots of operations, at the same offset on all ranks; 0: none is left. @behind: for op->behind */
size_t cvy_space_alloc(struct cvy_engine *e, size_t bytes, uint64_t *behind);
/* Space that the application may write at any time; 0: @held says whether others still read the free space. */
size_t cvy_space_alloc_top(struct cvy_engine *e, size_t bytes, int *held);
/* @seq: the last operation with slots there, 0: none that others could still read */
void cvy_space_free(struct cvy_engine *e, size_t offset, size_t bytes, uint64_t seq);
/* May the operation that begins write into its slots? */
int cvy_space_clear(struct cvy_engine *e, struct cvy_op *op);
/* The line that it waits for. */
const struct cvy_line *cvy_space_missing(const struct cvy_engine *e, const struct cvy_op *op, uint64_t *want);

/* ---- hosts.c: operations in two levels ---- */

int cvy_hosts_build(struct cvy_set *set); /* from set->host: 0 or NOMEM */
void cvy_hosts_clear(struct cvy_hosts *hosts);
/* In an operation that is not flat, does @round (3: the end of a chain) wait for the k-th source? */
int cvy_hosts_needs(const struct cvy_engine *e, const struct cvy_op *op, int k, int round);
void cvy_hosts_signal(struct cvy_engine *e, const struct cvy_op *op, const struct cvy_line *line, int round);
void cvy_hosts_pass_on(struct cvy_engine *e, struct cvy_op *op, uint64_t i, struct cvy_line *line); /* second round */
/* Do the slots that tick i is read from still hold it? */
int cvy_hosts_stand(const struct cvy_engine *e, const struct cvy_op *op, uint64_t i);
size_t cvy_hosts_used(const struct cvy_engine *e, const struct cvy_op *op); /* bytes of the second half of a slot */
void cvy_signal(struct cvy_engine *e, int rank, const struct cvy_line *line);

extern const struct cvy_op_kind cvy_op_allreduce, cvy_op_broadcast, cvy_op_allgather, cvy_op_alltoall, cvy_op_alltoallv,
	cvy_op_barrier, cvy_op_admit, cvy_op_dispatch, cvy_op_combine, cvy_op_reduce, cvy_op_reduce_scatter,
	cvy_op_allgatherv, cvy_op_gather, cvy_op_scatter;

#endif
