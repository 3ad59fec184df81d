/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pairs of an engine: made with the first message to or from a rank, stepped while one is under way, failed by a
 * view that does not list their incarnation, ended with the engine.
 */
#include "pair_state.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "list.h"
#include "log.h"

const struct cvy_op_kind cvy_op_send = { .name = "send", .op_class = CVY_OP_PAIR };
const struct cvy_op_kind cvy_op_recv = { .name = "recv", .op_class = CVY_OP_PAIR };

struct cvy_op *cvy_pair_op(struct cvy_engine *e, int sending, int tag)
{
	struct cvy_op *op = cvy_op_new(e, sending ? &cvy_op_send : &cvy_op_recv);

	if (!op)
		return NULL;
	op->parcel.op = op;
	op->parcel.tag = tag;
	op->priv = &op->parcel;
	return op;
}

/* ---- one pair ---- */

static struct cvy_parcels *list_of(struct cvy_pair *p, int i)
{
	struct cvy_parcels *const all[] = { &p->queued, &p->offered, &p->parting, &p->posted, &p->wanting, &p->coming };

	return i < 6 ? all[i] : NULL;
}

static int open_works(const struct cvy_pair *p)
{
	return p->queued.first || p->offered.first || p->parting.first || p->posted.first || p->wanting.first ||
	       p->coming.first;
}

static int pair_new(struct cvy_engine *e, int rank, uint64_t inc, struct cvy_pair **out)
{
	struct cvy_channel_args args = { .mesh = e->mesh,
					 .own_rank = e->here.rank,
					 .rank = rank,
					 .max_ranks = e->view->max_ranks,
					 .own_inc = e->view->member[e->here.rank].inc,
					 .inc = inc };
	struct cvy_pair *p = calloc(1, sizeof(*p));
	int err;

	if (!p)
		return cvy_fail(e->here.box, COVEY_ERR_NOMEM, rank, 0, "no memory for messages with rank %d", rank);
	p->rank = rank;
	p->inc = inc;
	for (int i = 0; list_of(p, i); i++)
		list_of(p, i)->last = &list_of(p, i)->first;
	p->arrived_last = &p->arrived;
	err = cvy_channel_open(&p->ch, &args);
	if (err) {
		free(p);
		return cvy_fail(e->here.box, err, rank, 0,
				"window_bytes %zu has no room for messages: a quarter of what is past the slots (%zu), "
				"at most 128M, must hold %zu for each of %d ranks",
				e->here.layout.window_bytes, e->here.layout.heap,
				CVY_RING_MIN + sizeof(struct cvy_port), e->view->max_ranks);
	}
	p->next = e->pairs->all;
	e->pairs->all = p;
	e->pairs->of[rank] = p;
	*out = p;
	return 0;
}

/* The pair of an admitted member of the view. NULL in @out: not one. A rank that waits for its ADMIT has sent nothing
 * yet, and a member before that safe point would wait for it, while it waits for the member. */
static int pair_get(struct cvy_engine *e, int rank, struct cvy_pair **out)
{
	const struct cvy_view *v = e->view;

	*out = NULL;
	if (!v || !covey_mask_has(&v->members, rank) || covey_mask_has(&v->pending, rank))
		return 0;
	if (!e->pairs) /* cvy_pairs_look reads this without the lock */
		__atomic_store_n(&e->pairs,
				 calloc(1, sizeof(*e->pairs) + (size_t)v->max_ranks * sizeof(struct cvy_pair *)),
				 __ATOMIC_RELEASE);
	if (!e->pairs)
		return cvy_fail(e->here.box, COVEY_ERR_NOMEM, rank, 0, "no memory for messages");
	*out = e->pairs->of[rank];
	return *out ? 0 : pair_new(e, rank, v->member[rank].inc, out);
}

static void activate(struct cvy_engine *e, struct cvy_pair *p)
{
	if (p->active)
		return;
	p->active = 1;
	p->next_active = e->pairs->active;
	e->pairs->active = p;
}

/* All its incomplete messages end with @err; arrived ones are dropped. */
static void pair_fail(struct cvy_engine *e, struct cvy_pair *p, int err)
{
	for (int i = 0; list_of(p, i); i++)
		while (list_of(p, i)->first)
			cvy_pair_done(e, cvy_parcel_take(list_of(p, i), &list_of(p, i)->first), err);
	while (p->arrived) {
		struct cvy_arrival *a = p->arrived;

		p->arrived = a->next;
		free(a);
	}
	p->arrived_last = &p->arrived;
}

static void pair_free(struct cvy_engine *e, struct cvy_pair *p)
{
	CVY_UNLINK(e->pairs->all, p, next);
	CVY_UNLINK(e->pairs->active, p, next_active);
	e->pairs->of[p->rank] = NULL;
	free(p);
}

/* ---- post ---- */

static int post_locked(struct cvy_engine *e, struct cvy_op *op)
{
	struct cvy_parcel *x = op->priv;
	int err = __atomic_load_n(&e->here.ended, __ATOMIC_ACQUIRE);
	struct cvy_pair *p = NULL;

	if (!err)
		err = pair_get(e, op->root, &p);
	if (err)
		return err;
	__atomic_store_n(&op->refs, 2, __ATOMIC_RELAXED); /* only the caller knows it yet */
	if (!p || p->ch.broken) {
		cvy_fail(e->here.box, COVEY_ERR_PEER, op->root, e->view ? e->view->epoch : 0,
			 p ? "rank %d wrote what no rank writes" : "rank %d is not a member of the view", op->root);
		cvy_pair_done(e, x, COVEY_ERR_PEER);
		return 0;
	}
	cvy_op_turn(op, CVY_OP_ENTERED);
	activate(e, p);
	if (op->kind == &cvy_op_send)
		cvy_parcel_add(&p->queued, x);
	else
		cvy_pair_claim(e, p, x);
	if (op->kind == &cvy_op_send) /* the waiter steps a receive */
		cvy_pairs_step(e);
	return 0;
}

int cvy_pair_post(struct cvy_engine *e, struct cvy_op *op)
{
	int err;

	pthread_mutex_lock(&e->lock);
	err = post_locked(e, op);
	pthread_mutex_unlock(&e->lock);
	return err;
}

struct cvy_pair *cvy_pair_of(const struct cvy_op *op)
{
	struct cvy_pairs *all = op->engine->pairs;

	return all && !cvy_op_decided(op) ? all->of[op->root] : NULL;
}

int cvy_pairs_alone(const struct cvy_engine *e, const struct cvy_op *op)
{
	const struct cvy_pair *first = e->pairs ? e->pairs->active : NULL;

	return !e->head && first && !first->next_active && first->rank == op->root;
}

int cvy_pairs_awaited(const struct cvy_engine *e, uint64_t *since_ns)
{
	uint64_t oldest = UINT64_MAX;
	int rank = -1;

	for (const struct cvy_pair *p = e->pairs ? e->pairs->active : NULL; p; p = p->next_active) {
		const struct cvy_parcels *list[] = { &p->queued, &p->offered, &p->parting,
						     &p->posted, &p->wanting, &p->coming };

		for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
			for (const struct cvy_parcel *x = list[i]->first; x; x = x->next)
				if (x->op->posted_ns && x->op->posted_ns < oldest) {
					oldest = *since_ns = x->op->posted_ns;
					rank = p->rank;
				}
	}
	return rank;
}

/* ---- step ---- */

/* The steps of collectives poll the links of their set, unless the gate is closed. */
static int must_poll(const struct cvy_engine *e, const struct cvy_pair *p)
{
	return __atomic_load_n(&e->gate, __ATOMIC_RELAXED) || !covey_mask_has(&e->mask, p->rank);
}

int cvy_pairs_step(struct cvy_engine *e)
{
	struct cvy_pair **at = e->pairs ? &e->pairs->active : NULL;
	int progress = 0;

	while (at && *at) {
		struct cvy_pair *p = *at;
		int moved = cvy_pair_step(e, p, must_poll(e, p));

		if (moved < 0) {
			cvy_fail(e->here.box, COVEY_ERR_PEER, p->rank, e->view->epoch,
				 "rank %d wrote what no rank writes", p->rank);
			cvy_warn("engine", "rank %d wrote what no rank writes: no more messages with it", p->rank);
			p->ch.broken = 1;
			pair_fail(e, p, COVEY_ERR_PEER);
			moved = 1;
		}
		progress |= moved;
		if (open_works(p) || (!p->ch.broken && cvy_channel_behind(&p->ch))) {
			at = &p->next_active;
			continue;
		}
		*at = p->next_active;
		p->active = 0;
	}
	return progress;
}

void cvy_pairs_look(struct cvy_engine *e)
{
	int busy = 0;

	if (!__atomic_load_n(&e->pairs, __ATOMIC_ACQUIRE) || pthread_mutex_trylock(&e->lock))
		return;
	for (struct cvy_pair *p = e->pairs->all; p; p = p->next) {
		if (p->ch.broken)
			continue;
		if (cvy_channel_behind(&p->ch)) {
			cvy_channel_look(&p->ch, 0);
			cvy_channel_flush(&p->ch, 0);
		}
		if (cvy_channel_behind(&p->ch))
			activate(e, p);
	}
	busy = cvy_pairs_busy(e);
	pthread_mutex_unlock(&e->lock);
	if (busy)
		cvy_engine_kick(e);
}

int cvy_pairs_drained(struct cvy_engine *e)
{
	int drained = 1;

	pthread_mutex_lock(&e->lock);
	for (struct cvy_pair *p = e->pairs ? e->pairs->all : NULL; p; p = p->next) {
		if (p->ch.broken || p->ch.self)
			continue;
		p->ch.looks = CVY_CREDIT_LOOKS - 1; /* the next look reads everything */
		if (p->queued.first || p->offered.first || p->parting.first || p->ch.far_note < p->ch.unasked ||
		    p->ch.freed < p->ch.written) {
			activate(e, p);
			drained = 0;
		}
	}
	if (!drained)
		cvy_engine_step(e);
	pthread_mutex_unlock(&e->lock);
	return drained;
}

/* ---- ends ---- */

void cvy_pairs_learn(struct cvy_engine *e)
{
	struct cvy_pair *next;

	for (struct cvy_pair *p = e->pairs ? e->pairs->all : NULL; p; p = next) {
		next = p->next;
		if (covey_mask_has(&e->view->members, p->rank) && e->view->member[p->rank].inc == p->inc)
			continue;
		if (open_works(p))
			cvy_fail(e->here.box, COVEY_ERR_PEER, p->rank, e->view->epoch,
				 "rank %d was removed before its messages were complete", p->rank);
		pair_fail(e, p, COVEY_ERR_PEER);
		pair_free(e, p);
	}
}

void cvy_pairs_end(struct cvy_engine *e, int err)
{
	for (struct cvy_pair *p = e->pairs ? e->pairs->all : NULL; p; p = p->next)
		pair_fail(e, p, err);
	if (e->pairs)
		e->pairs->active = NULL; /* nothing is posted from here on */
}

void cvy_pairs_close(struct cvy_engine *e)
{
	cvy_pairs_end(e, COVEY_ERR_CLOSED);
	while (e->pairs && e->pairs->all)
		pair_free(e, e->pairs->all);
	free(e->pairs);
	e->pairs = NULL;
}
