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
 * waiting for operations is in wait.c. The lock is held while stepping; a closed gate (a view change) makes steppers
 * release it.
 *
 * Retention (PROTOCOL section 7): tick t is entered when every rank has completed t - 2D (floor) and this one t - D. So
 * slots of the last 2D ticks keep their data until a view is active. A survivor that completed an operation can give
 * its missing ticks to one that did not (repair.c).
 */
#ifndef CVY_ENGINE_H
#define CVY_ENGINE_H

#include <pthread.h>

#include "kinds.h"
#include "seam.h"

struct cvy_flight;
struct cvy_mesh;

#define CVY_ADMIT_MS 5000  /* that members wait in an ADMIT for joiners that do not enter it */
#define CVY_STATE_MAX 4096 /* bytes that covey_admit() hands to joiners */

/* ---- For the API: post, step, wait ---- */

int cvy_engine_open(struct cvy_engine **out, struct cvy_mesh *mesh, struct cvy_errbox *box, size_t undo_bytes);
void cvy_engine_identity(struct cvy_engine *e, int rank, int max_ranks); /* before the first view */
/* Ways out of it: news for the agent, and control messages to a member; both from any thread. */
void cvy_engine_connect(struct cvy_engine *e, struct cvy_sink sink,
			int (*send)(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body,
				    uint32_t bytes),
			void *send_ctx);
/* @late_ms: of dispatch and combine calls that give no time of their own, 0: none. @evict: late ranks are asked to leave */
void cvy_engine_set_late(struct cvy_engine *e, int late_ms, int evict);
void cvy_engine_set_on_loss(struct cvy_engine *e, int on_loss);
void cvy_engine_set_slice(struct cvy_engine *e, int ms);
/*
 * The rank that the oldest operation misses, or that of the oldest message that a thread waits for, and the time of that
 * wait; -1: none, or a step is under way. Agent's thread.
 */
int cvy_engine_awaited(struct cvy_engine *e, uint64_t now_ns, uint64_t *waited_ns);
int cvy_engine_misses(const struct cvy_engine *e); /* of these the rank of the oldest operation; under the lock */
void cvy_engine_record_to(struct cvy_engine *e, struct cvy_flight *flight); /* NULL: nothing is recorded */
/* Connected, and not in a view yet: a joiner, whose first operation is ADMIT. 1: it is one. */
int cvy_engine_await_admit(struct cvy_engine *e);
void cvy_engine_close(struct cvy_engine *e);

pthread_mutex_t *cvy_engine_lock(struct cvy_engine *e); /* for operations, links and struct cvy_site */
int cvy_engine_late_ms(const struct cvy_engine *e);
uint64_t cvy_engine_done(const struct cvy_engine *e); /* the last operation that is decided here */
/* An operation under way with a buffer that begins in these bytes: its number, 0: none. */
uint64_t cvy_engine_uses(struct cvy_engine *e, const void *from, size_t bytes);
/* A decided ADMIT of a joiner: moves the members' state to @state, if any is kept. Lock held. */
void cvy_admit_take_state(struct cvy_engine *e, const struct cvy_op *op, void *state);

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
 * the caller's reference; result may be NULL. AGAIN after a slice, if there is a result: cvy_engine_resume(). */
int cvy_engine_run(struct cvy_engine *e, struct cvy_op *op, struct covey_result *result);
/* The operation of a call that returned AGAIN, with its reference. NULL: none has this number. */
struct cvy_op *cvy_engine_resume(struct cvy_engine *e, uint64_t seq);
/*
 * The same for a call that was made before: its operation is still in the record, with plan and signature, in the place
 * of the next one. 1: done, with its status; 0: it must be made.
 */
int cvy_engine_again(struct cvy_engine *e, const struct cvy_asked *asked, struct covey_result *result, int *status);
/* All that it can do without waiting: 1 progress was made, 0 blocked, nothing to do or gate closed. Lock held. */
int cvy_engine_step(struct cvy_engine *e);
/* Steps it while it moves, and looks a few microseconds longer. Lock held. */
void cvy_engine_wait_briefly(struct cvy_engine *e, const struct cvy_op *op);
/* Steps or waits until op is decided or the deadline: 0 or TIMEOUT. Lock not held. */
int cvy_engine_wait(struct cvy_engine *e, struct cvy_op *op, uint64_t deadline_ns);
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
uint64_t cvy_engine_progress(void *ctx, int *waiting);
/* Suspects the pending ranks that an ADMIT has waited for alone for CVY_ADMIT_MS. Agent's thread. */
void cvy_engine_admit_late(struct cvy_engine *e, uint64_t now_ns);
void cvy_engine_peer_progress(void *ctx, int rank, uint64_t done);
/* 1 when every member has decided everything that is decided here: this rank may leave. Agent's thread or simulator. */
int cvy_engine_drained(struct cvy_engine *e);
/* The same for a rank whose application goes on calling: from here on, operations that it has not entered wait. */
int cvy_engine_retire(void *ctx);
/* Asks the members whose progress is not known here; may be called often. Any thread. */
void cvy_engine_ask_progress(struct cvy_engine *e, uint64_t now_ns);

/* ---- space.c: heap space that is given back. The lock is not held. ---- */

/* Space for slots of operations, at the same offset on all ranks; 0: none is left. @behind: for op->behind */
size_t cvy_space_alloc(struct cvy_engine *e, size_t bytes, uint64_t *behind);
/* Space that the application may write at any time; 0: @held says whether others still read the free space. */
size_t cvy_space_alloc_top(struct cvy_engine *e, size_t bytes, int *held);
/* @seq: the last operation with slots there, 0: none that others could still read */
void cvy_space_free(struct cvy_engine *e, size_t offset, size_t bytes, uint64_t seq);

#endif
