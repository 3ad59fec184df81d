/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's part of a view change, called by the agent: freeze, learn (set aside, fence, adopt), thaw, stop. Between
 * freeze and thaw the gate is closed: only repair.c touches an operation.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "engine_state.h"
#include "hosts.h"
#include "log.h"
#include "outcome.h"
#include "pair_state.h"

#define FREEZE_MS 2000	/* if a stepper keeps the lock longer, the rank gives up */
#define ASK_MS 10	/* between two questions for the progress of others */
#define FREEZE_LOOKS 20 /* at the lock, before the agent continues its other work */

static uint32_t stamp_used(const struct cvy_engine *e)
{
	uint32_t tick = e->tick;

	if (e->head && e->head->state == CVY_OP_ENTERED)
		tick = e->head->first + (uint32_t)e->head->entered;
	if (!e->view)
		return 0;
	return tick < UINT32_MAX - e->view->stamp ? e->view->stamp + tick : UINT32_MAX;
}

static void report(struct cvy_engine *e, struct cvy_report *r)
{
	r->done = e->done;
	r->ent = e->ent;
	r->adm = e->adm;
	r->stamp = stamp_used(e);
	r->spoiled = e->head && e->head->state == CVY_OP_ENTERED && e->head->spoiled;
	r->mismatch = e->mismatch;
}

/* Cuts an ADMIT that has begun: the operations before it, which others may lack, had the admitted members alone. */
static void without_pending(struct cvy_engine *e)
{
	struct cvy_set *set = &e->here.set;
	int n = 0;

	if (e->here.pending || !e->view)
		return;
	for (int k = 0; k < set->n; k++) {
		if (covey_mask_has(&e->view->pending, set->rank[k]))
			continue;
		set->rank[n] = set->rank[k];
		set->page[n] = set->page[k];
		set->base[n] = set->base[k];
		set->gone[n] = set->gone[k];
		set->link[n] = set->link[k];
		set->host[n] = set->host[k];
		if (k == set->self)
			set->self = n;
		n++;
	}
	if (set->n == n)
		return;
	set->n = n;
	set->cut = 1;
	if (cvy_hosts_build(set))
		cvy_engine_give_up(e, "no memory for the hosts of a view");
}

/*
 * A stepper releases the lock at its next look at the gate, but it may have to be scheduled for that. The agent must
 * not wait for it: its own beats would stop. It tries again at its next tick.
 */
static void try_freeze(struct cvy_engine *e)
{
	struct cvy_event ev = { .kind = CVY_EV_FROZEN, .rank = -1, .epoch = e->freezing - 1 };
	int looks = 0;

	while (pthread_mutex_trylock(&e->lock)) {
		if (looks++ < FREEZE_LOOKS) {
			sched_yield();
			continue;
		}
		if (cvy_now_ns() - e->freeze_ns < FREEZE_MS * CVY_MS)
			return;
		ev.kind = CVY_EV_FROZE_NOT;
		e->freezing = 0;
		cvy_post(&e->sink, &ev);
		return;
	}
	e->active = 0;
	e->freezing = 0;
	without_pending(e);
	cvy_repair_drop(e); /* the report must stay true: a GIVE that comes later is too late */
	report(e, &ev.report);
	cvy_engine_look_for_end(e);
	pthread_mutex_unlock(&e->lock);
	cvy_post_after_device(e, &ev);
}

void cvy_engine_freeze(void *ctx, uint32_t epoch)
{
	struct cvy_engine *e = ctx;

	__atomic_store_n(&e->gate, 1, __ATOMIC_SEQ_CST);
	cvy_engine_wake(e);
	e->freezing = epoch + 1;
	e->freeze_ns = cvy_now_ns();
	try_freeze(e);
}

/* Bytes that an operation fills in each half of a source's slot; parts for single ranks may be anywhere in it. */
static size_t slot_used(const struct cvy_engine *e, const struct cvy_op *op)
{
	if (cvy_in_parts(op->kind))
		return e->here.layout.slot_bytes;
	if (op->way)
		return cvy_hosts_used(e, op);
	return op->bytes < op->piece ? op->bytes : op->piece;
}

/* The same of all operations that a member may still lack. */
static size_t slots_used(const struct cvy_engine *e)
{
	size_t most = e->head && e->head->state == CVY_OP_ENTERED ? slot_used(e, e->head) : 0;

	for (int i = 0; i < CVY_KEPT; i++)
		if (e->record[i] && slot_used(e, e->record[i]) > most)
			most = slot_used(e, e->record[i]);
	return most < e->here.layout.slot_bytes ? most : e->here.layout.slot_bytes;
}

/*
 * Copies the removed rank's last ticks for laggards: page and slots, and of these only the used part, because survivors
 * wait for it.
 */
static void set_aside(struct cvy_engine *e, int k)
{
	int r = e->here.set.rank[k];
	size_t used = slots_used(e), lines = offsetof(struct cvy_page, first);
	uint8_t *copy;

	if (e->aside[r] || e->here.set.gone[k])
		return;
	copy = MAP_FAILED;
	for (int i = 0; i < 2 && copy == MAP_FAILED; i++) /* a laggard may have no other source */
		copy = mmap(NULL, e->here.layout.heap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED) {
		cvy_warn("engine", "no memory for what rank %d left: who lags cannot have it from here", r);
		return;
	}
	/* The lines only; its signs of life may still change, and are not read from here on. */
	memcpy(copy + lines, e->here.set.base[k] + lines, e->here.layout.slots - lines);
	for (size_t half = 0; used && half < (size_t)2 * CVY_SLOTS; half++) {
		size_t at = e->here.layout.slots + half * e->here.layout.slot_bytes;

		memcpy(copy + at, e->here.set.base[k] + at, used);
	}
	e->aside[r] = copy;
}

/* Unmapped as whole pages: a change must not leave the heap larger than before. */
void cvy_engine_drop_aside(struct cvy_engine *e)
{
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		if (e->aside[r])
			munmap(e->aside[r], e->here.layout.heap);
		e->aside[r] = NULL;
	}
	if (e->scratch)
		munmap(e->scratch, e->scratch_bytes);
	e->scratch = NULL;
	e->scratch_bytes = 0;
}

static void fence(struct cvy_engine *e, const struct covey_mask *removed, int keep)
{
	for (int k = 0; k < e->here.set.n; k++) {
		int r = e->here.set.rank[k];

		if (!covey_mask_has(removed, r) || e->here.set.gone[k])
			continue;
		if (keep)
			set_aside(e, k);
		e->here.set.gone[k] = 1;
		e->here.set.base[k] = e->aside[r];
		e->here.set.page[k] = (struct cvy_page *)e->aside[r];
	}
	CVY_MASK_EACH(r, removed)
	{
		cvy_mesh_fence(e->mesh, r);
		if (e->peer_done)
			e->peer_done[r] = 0; /* the next incarnation begins from 0 */
	}
	/* A source that had announced a tick may have been removed: earlier looks count no more. */
	if (e->head)
		e->head->scan[0] = e->head->scan[1] = e->head->scan[2] = 0;
	e->here.set.nlocal = 0; /* the set is used by repair only, and nobody sleeps for that */
}

/*
 * Repair sends words to every member of the new view, including one that this set lacks since its ADMIT was cut here.
 * There is room for all, except before the first view.
 */
static void push_to_members(struct cvy_engine *e)
{
	if (!e->here.set.push)
		return;
	e->here.set.npush = 0;
	CVY_MASK_EACH(r, &e->view->members)
	if (r != e->here.rank && !covey_mask_has(&e->view->pending, r))
		e->here.set.push[e->here.set.npush++] = r;
}

/* A member that waits for its ADMIT forgets an attempt that the change cut; one that is let in keeps its state. */
static void adopt_own(struct cvy_engine *e, int was_pending)
{
	uint64_t from = e->view->member[e->here.rank].from;
	struct cvy_op *op = e->head;

	__atomic_store_n(&e->here.pending, from == CVY_PENDING, __ATOMIC_RELAXED);
	if (e->here.pending) {
		cvy_engine_reach(e, 0);
		e->posted = 0;
		e->admit_seq = 0;
		if (op) {
			op->seq = 0;
			cvy_op_turn(op, CVY_OP_QUEUED);
		}
	} else if (was_pending && from) {
		cvy_engine_reach(e, from - 1);
		e->newcomer = 1;
		e->posted = from;
		if (op)
			op->seq = from;
	}
}

void cvy_engine_learn(void *ctx, const struct cvy_view *view, const struct covey_mask *removed,
		      const struct covey_mask *lag)
{
	struct cvy_engine *e = ctx;
	struct cvy_event ev = { .kind = CVY_EV_FENCED, .rank = -1, .epoch = view->epoch };
	int was_pending;

	pthread_mutex_lock(&e->lock);
	if (!e->view) /* no memory for it when this rank got its number */
		e->view = cvy_view_new(view->max_ranks);
	if (!e->peer_done)
		e->peer_done = calloc((size_t)view->max_ranks, sizeof(*e->peer_done));
	if (!e->view || !e->peer_done) {
		cvy_engine_give_up(e, "no memory for a view");
		cvy_engine_look_for_end(e);
		pthread_mutex_unlock(&e->lock);
		return;
	}
	was_pending = e->here.pending;
	cvy_repair_drop(e);
	/* Laggards copy too: if the holder dies during the repair, they are asked for completed operations. */
	fence(e, removed, !cvy_mask_empty(lag));
	if (e->view->epoch != e->here.epoch && e->view->base < e->anew) /* this rank never went on in that one */
		e->anew = e->view->base;
	cvy_view_copy(e->view, view);
	/* Before slots are written for it, and before calls with lent buffers end: pairs with cvy_engine_passed(). */
	__atomic_store_n(&e->here.own->epoch, view->epoch, __ATOMIC_RELAXED);
	cvy_named();
	e->outrun = 0;
	push_to_members(e);
	cvy_pairs_learn(e);
	if (view->fail_seq) { /* holds even if the next view does not repeat it: some may have acted on it */
		e->failed =
			(struct covey_result){ .status = view->fail_err, .epoch = view->epoch, .seq = view->fail_seq };
		cvy_view_mask(view, view->fail_seq, &e->failed.mask);
	}
	adopt_own(e, was_pending);
	if (cvy_mask_empty(&e->acked) &&
	    !e->view->member[e->here.rank].from) { /* a founder: the view that formed the group */
		e->acked = e->view->members;
		e->here.size = e->view->size;
	}
	e->mismatch = e->apart = 0;
	e->adm = 0;
	e->wanted = 0;
	pthread_mutex_unlock(&e->lock);
	cvy_post(&e->sink, &ev);
}

/* The operation at base is executed again from its inputs. */
static void rewind_op(struct cvy_op *op)
{
	if (op->undo)
		memcpy(op->recv, op->undo, op->input_bytes);
	cvy_op_turn(op, CVY_OP_QUEUED);
	op->spoiled = 0;
	op->entered = op->second = op->completed = 0;
}

void cvy_engine_thaw(void *ctx)
{
	struct cvy_engine *e = ctx;

	pthread_mutex_lock(&e->lock);
	e->active = 1;
	e->here.epoch = e->view->epoch;
	e->tick = 0;
	e->tick_seq = e->done;
	__atomic_store_n(&e->complete, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&e->floor, 0, __ATOMIC_RELAXED);
	e->ent = e->done;
	cvy_repair_drop(e);
	cvy_outcome_forget_given(e);
	e->failed.seq = 0;
	e->anew = UINT64_MAX;
	memset(e->told, 0, sizeof(e->told)); /* ticks restart */
	for (int i = 0; i < CVY_KEPT; i++) {
		if (e->record[i])
			cvy_op_put(e->record[i]);
		e->record[i] = NULL;
	}
	if (e->head && e->head->state == CVY_OP_ENTERED)
		rewind_op(e->head);
	cvy_set_build(e);
	cvy_engine_drop_aside(e);
	cvy_engine_look_for_end(e);
	if (!__atomic_load_n(&e->here.ended, __ATOMIC_RELAXED))
		__atomic_store_n(&e->gate, 0, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&e->lock);
	cvy_engine_wake(e);
	cvy_engine_kick(e);
}

/* Every queued operation and every message ends with @err; decided operations stay decided. Lock held. */
void cvy_engine_end_all(struct cvy_engine *e, int err)
{
	cvy_pairs_end(e, err);
	while (e->head) {
		uint64_t done = e->done;

		e->head->on_loss = COVEY_ON_LOSS_CONTINUE;
		cvy_engine_decide(e, e->head, err, e->here.epoch, &e->mask, e->here.size);
		cvy_engine_reach(e, done);
	}
}

void cvy_engine_give_up(struct cvy_engine *e, const char *format, ...)
{
	char what[120];
	int none = 0;
	va_list ap;

	if (!__atomic_compare_exchange_n(&e->here.ended, &none, COVEY_ERR_FENCED, 0, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(&e->gate, 1, __ATOMIC_SEQ_CST);
	e->active = 0;
	va_start(ap, format);
	vsnprintf(what, sizeof(what), format, ap);
	va_end(ap);
	snprintf(e->end_cause, sizeof(e->end_cause), "%s: this rank gives up its place", what);
	cvy_fail(e->here.box, COVEY_ERR_FENCED, e->here.rank, e->view ? e->view->epoch : 0, "%s", e->end_cause);
	__atomic_store_n(&e->gave_up, 1, __ATOMIC_RELEASE);
	cvy_engine_wake(e);
}

/* Not when it gives up: the lock is held then, and the agent stops the engine at once. */
static void tell_that_it_gave_up(struct cvy_engine *e)
{
	struct cvy_event ev = { .kind = CVY_EV_FROZE_NOT, .rank = -1, .err = COVEY_ERR_FENCED, .text = e->end_cause };

	__atomic_store_n(&e->gave_up, 0, __ATOMIC_RELAXED);
	cvy_post(&e->sink, &ev);
}

void cvy_engine_look_for_end(struct cvy_engine *e)
{
	int err = __atomic_load_n(&e->here.ended, __ATOMIC_RELAXED);

	if (!err)
		return;
	cvy_repair_drop(e);
	cvy_engine_end_all(e, err);
}

void cvy_engine_stop(void *ctx, int err)
{
	struct cvy_engine *e = ctx;
	int none = 0;

	if (!__atomic_compare_exchange_n(&e->here.ended, &none, err, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		err = none; /* it had ended by itself */
	__atomic_store_n(&e->gate, 1, __ATOMIC_SEQ_CST);
	cvy_engine_wake(e);
	pthread_mutex_lock(&e->lock);
	e->active = 0;
	cvy_repair_drop(e);
	cvy_engine_end_all(e, err);
	pthread_mutex_unlock(&e->lock);
	cvy_engine_wake(e);
}

/* Has every member decided all operations that are decided here? Lock held. */
static int all_have(struct cvy_engine *e)
{
	for (int k = 0; k < e->here.set.n; k++)
		if (k != e->here.set.self && !e->here.set.gone[k] && e->peer_done &&
		    __atomic_load_n(&e->peer_done[e->here.set.rank[k]], __ATOMIC_ACQUIRE) < e->done)
			return 0;
	return 1;
}

/* Between hosts each member asks only a few others by itself (ping.c). A rank that leaves needs to know of all. */
void cvy_engine_ask_progress(struct cvy_engine *e, uint64_t now_ns)
{
	uint64_t done;

	if (pthread_mutex_trylock(&e->lock))
		return;
	done = e->done;
	for (int k = 0; e->active && now_ns - e->asked_ns >= ASK_MS * CVY_MS && k < e->here.set.n; k++) {
		int r = e->here.set.rank[k];

		if (k != e->here.set.self && !e->here.set.gone[k] && !cvy_mesh_page(e->mesh, r) &&
		    __atomic_load_n(&e->peer_done[r], __ATOMIC_ACQUIRE) < e->done)
			e->send(e->send_ctx, r, e->view->member[r].inc, CVY_MSG_PING, e->here.epoch, &done,
				sizeof(done));
	}
	if (now_ns - e->asked_ns >= ASK_MS * CVY_MS)
		e->asked_ns = now_ns;
	pthread_mutex_unlock(&e->lock);
}

int cvy_engine_drained(struct cvy_engine *e)
{
	int drained;

	if (pthread_mutex_trylock(&e->lock))
		return 0;
	drained = !e->head && all_have(e);
	pthread_mutex_unlock(&e->lock);
	return drained;
}

int cvy_engine_retire(void *ctx)
{
	struct cvy_engine *e = ctx;
	int drained;

	__atomic_store_n(&e->retiring, 1, __ATOMIC_RELAXED);
	if (pthread_mutex_trylock(&e->lock))
		return 0;
	drained = (!e->head || e->head->state == CVY_OP_QUEUED) && all_have(e);
	pthread_mutex_unlock(&e->lock);
	return drained;
}

uint64_t cvy_engine_progress(void *ctx, int *waiting)
{
	struct cvy_engine *e = ctx;

	if (e->freezing)
		try_freeze(e);
	if (__atomic_load_n(&e->gave_up, __ATOMIC_ACQUIRE))
		tell_that_it_gave_up(e);
	cvy_pairs_look(e);
	for (int r = e->view ? cvy_mask_next(&e->view->members, 0) : -1; r >= 0;
	     r = cvy_mask_next(&e->view->members, r + 1)) {
		struct cvy_page *page = r == e->here.rank ? NULL : cvy_mesh_page(e->mesh, r);

		if (page)
			cvy_engine_peer_progress(e, r, __atomic_load_n(&page->done.aux, __ATOMIC_ACQUIRE));
	}
	if (waiting)
		*waiting = __atomic_load_n(&e->waiting, __ATOMIC_RELAXED);
	return __atomic_load_n(&e->done, __ATOMIC_RELAXED);
}

void cvy_engine_peer_progress(void *ctx, int rank, uint64_t done)
{
	struct cvy_engine *e = ctx;

	if (e->peer_done && done > e->peer_done[rank])
		__atomic_store_n(&e->peer_done[rank], done, __ATOMIC_RELEASE);
}
