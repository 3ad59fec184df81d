/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has a call taken its place in the order? What CVY_TURN_LIST (losses.h, docs/operate/errors.md) says, row by row: after each
 * the next operation has the number that follows from it.
 *
 * labels: redis
 */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>

#include "clock.h"
#include "ep.h"
#include "handle.h"
#include "outcome.h"
#include "pair.h"

#define UNTOUCHED 0x5a5a5a5a5a5a5a5aull

static __thread int starved; /* the next calloc of this thread finds no memory */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	if (starved) {
		starved = 0;
		return NULL;
	}
	return __real_calloc(n, size);
}

/* The next operation of all has number @seq. */
static void next_is(struct member *m, uint64_t seq, const char *after)
{
	struct covey_result res;
	int32_t one = 1, sum = 0;

	must(!covey_allreduce(&one, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res) && sum == m->n, "after %s",
	     after);
	must(res.seq == seq, "after %s: number %llu, not %llu", after, (unsigned long long)res.seq,
	     (unsigned long long)seq);
}

/* A repair brought an outcome that needs no bytes. */
static void bring(struct cvy_engine *e, int status)
{
	struct cvy_outcome *o = calloc(1, sizeof(*o));

	must(o != NULL, "no memory");
	pthread_mutex_lock(&e->lock);
	o->result = (struct covey_result){ .status = status, .epoch = e->here.epoch, .seq = e->done + 1, .size = 1 };
	cvy_mask_add(&o->result.mask, 0);
	o->next = e->outcomes;
	e->outcomes = o;
	cvy_engine_reach(e, o->result.seq);
	pthread_mutex_unlock(&e->lock);
}

static struct covey_ep *layer(struct covey_group *g)
{
	struct covey_ep_config c = COVEY_EP_CONFIG_INIT;
	struct covey_ep *ep = NULL;

	c.max_tokens = 1;
	c.hidden = 128;
	c.top_k = 1;
	c.experts = 4;
	must(!covey_ep_create(g, &c, &ep), "create");
	return ep;
}

/* INVAL, UNSUPPORTED, STALE, NOMEM: no number, and the result is as it was. */
TEST_RANKS(a_refused_call_has_no_number, 1)
{
	struct covey_dispatch_args d = COVEY_DISPATCH_INIT;
	struct covey_combine_args c = COVEY_COMBINE_INIT;
	struct covey_result res = { .seq = UNTOUCHED };
	struct cvy_engine *e = m->group->engine;
	struct covey_work *work = (void *)&res;
	struct covey_ep *ep = layer(m->group);
	size_t one = 1, none = 0;
	int32_t x = 1, y = 2;

	must(covey_allreduce(&x, &y, 1, 77, COVEY_SUM, m->group, NULL, &res) == COVEY_ERR_INVAL, "datatype");
	must(covey_barrier_start(m->group, NULL, NULL) == COVEY_ERR_INVAL, "no place for a work");
	next_is(m, 1, "INVAL");
	must(covey_barrier(m->group, (struct CUstream_st *)&x, &res) == COVEY_ERR_UNSUPPORTED, "stream");
	must(covey_barrier_start(m->group, (struct CUstream_st *)&x, &work) == COVEY_ERR_UNSUPPORTED, "stream");
	must(work == (void *)&res, "an output was written");
	next_is(m, 2, "UNSUPPORTED");
	e->here.size++; /* as if somebody had come, and the layer was not laid out anew */
	must(covey_dispatch(ep, &d, NULL, &res) == COVEY_ERR_STALE, "dispatch");
	must(covey_combine(ep, &c, NULL, &res) == COVEY_ERR_STALE, "combine");
	e->here.size--;
	must(res.seq == UNTOUCHED && !res.status && y == 2, "a refused call wrote its result");
	next_is(m, 3, "STALE");
	starved = 1;
	must(covey_barrier_start(m->group, NULL, &work) == COVEY_ERR_NOMEM && !starved, "no memory for a work");
	starved = 1;
	must(covey_alltoallv(&x, &one, &none, &y, &one, &none, COVEY_INT32, m->group, NULL, &res) == COVEY_ERR_NOMEM &&
		     !starved,
	     "no memory for counts");
	must(work == (void *)&res && res.seq == UNTOUCHED, "an output was written");
	next_is(m, 4, "NOMEM");
	covey_ep_destroy(ep);
}

/* PEER, LOST, ROOT: the number is in the result. */
TEST_RANKS(an_operation_that_failed_has_its_number, 1)
{
	struct cvy_engine *e = m->group->engine;
	struct covey_result res = { 0 };
	int32_t x = 1, y = 2;

	must(!covey_set_on_loss(m->group, COVEY_ON_LOSS_FAIL), "on_loss");
	cvy_mask_add(&e->acked, 1); /* a rank of the last safe point that is gone */
	must(covey_barrier(m->group, NULL, &res) == COVEY_ERR_PEER && res.seq == 1 && res.status == COVEY_ERR_PEER,
	     "PEER");
	must(!covey_set_on_loss(m->group, COVEY_ON_LOSS_CONTINUE), "on_loss");
	next_is(m, 2, "PEER");
	bring(e, COVEY_ERR_LOST);
	must(covey_allreduce(&x, &x, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res) == COVEY_ERR_LOST && res.seq == 3,
	     "LOST");
	next_is(m, 4, "LOST");
	e->here.size = 2; /* there was a rank 1 */
	must(covey_broadcast(&x, &y, 1, COVEY_INT32, 1, m->group, NULL, &res) == COVEY_ERR_ROOT && res.seq == 5 &&
		     y == 2,
	     "ROOT");
	e->here.size = 1;
	next_is(m, 6, "ROOT");
}

/* MISMATCH, TIMEOUT, AGAIN: between two. */
TEST_RANKS(an_operation_that_is_waited_for_again_keeps_its_number, 2)
{
	struct covey_result res = { 0 };
	struct covey_work *work = NULL;
	int32_t x = 1;
	int err;

	if (!m->rank) {
		must(!covey_barrier_start(m->group, NULL, &work), "start");
		must(covey_work_test(work, &res) == COVEY_ERR_AGAIN, "AGAIN");
		must(covey_work_wait(work, cvy_now_ns() + CVY_MS, &res) == COVEY_ERR_TIMEOUT, "TIMEOUT");
		harness_meet(m);
		must(!covey_work_wait(work, harness_deadline(WATCHDOG_MS), &res) && res.seq == 1, "the same operation");
		covey_work_free(work);
	} else {
		harness_meet(m);
		must(!covey_barrier(m->group, NULL, &res) && res.seq == 1, "barrier");
	}
	next_is(m, 2, "TIMEOUT, AGAIN");
	err = m->rank ? covey_barrier(m->group, NULL, &res)
		      : covey_allreduce(&x, &x, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	must(err == COVEY_ERR_MISMATCH && res.seq == 3 && res.status == err, "MISMATCH");
	next_is(m, 4, "MISMATCH");
}

TEST_RANKS(a_handle_that_ended_counts_nothing, 1)
{
	struct covey_result res = { .seq = UNTOUCHED };
	struct covey_work *work = NULL;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	covey_abort(m->group);
	must(covey_barrier(m->group, NULL, &res) == COVEY_ERR_ABORTED && res.seq == UNTOUCHED, "ABORTED");
	must(covey_barrier_start(m->group, NULL, &work) == COVEY_ERR_ABORTED && !work, "ABORTED");
	m->no_leave = 1;
}

HARNESS_MAIN(.name = "collectives/turns")
