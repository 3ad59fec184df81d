/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edges: what breaks only at the rim of a range or of a life. Tick numbers that run out, more puts than a queue
 * holds, aborts of what no operation is, calls that come too early, looks that collide with the progress thread.
 *
 * labels: redis
 */
#include "ep_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "algo.h"
#include "clock.h"
#include "handle.h"
#include "outcome.h"

/* ---- tick numbers run out ---- */

#define TICKS_BIG 40 /* of one operation: more than slots */

static void set_tick(struct member *m, uint32_t tick)
{
	struct cvy_engine *e = m->group->engine;

	harness_meet(m);
	pthread_mutex_lock(&e->lock);
	e->tick = e->complete = e->floor = tick;
	pthread_mutex_unlock(&e->lock);
	harness_meet(m);
}

static void run_out_of_ticks(struct member *m)
{
	size_t count = TICKS_BIG * m->config.slot_bytes / 8;
	int64_t *data = malloc(count * 8);
	struct covey_view view;
	struct covey_result res;
	uint32_t epoch;

	must(data && !covey_barrier(m->group, NULL, &res), "barrier");
	epoch = res.epoch;
	set_tick(m, *(uint32_t *)m->arg);
	for (int i = 0; i < 60; i++) {
		size_t n = i % 3 ? 1 : count;
		int root = i % m->n;

		for (size_t k = 0; k < n; k++)
			data[k] = m->rank + i;
		if (i % 2) {
			must(!covey_allreduce(data, data, n, COVEY_INT64, COVEY_SUM, m->group, NULL, &res),
			     "allreduce %d", i);
			for (size_t k = 0; k < n; k++)
				must(data[k] == (int64_t)m->n * (m->n - 1) / 2 + (int64_t)m->n * i,
				     "allreduce %d gives %lld", i, (long long)data[k]);
		} else {
			must(!covey_broadcast(data, data, n, COVEY_INT64, root, m->group, NULL, &res), "broadcast %d",
			     i);
			for (size_t k = 0; k < n; k++)
				must(data[k] == root + i, "broadcast %d gives %lld", i, (long long)data[k]);
		}
		must(!covey_admit(m->group, NULL, 0, NULL), "admit %d", i);
	}
	for (int i = 0; i < 20000 && res.epoch == epoch;
	     i++) /* the new view takes a moment; small operations go on meanwhile */
		must(!covey_barrier(m->group, NULL, &res), "barrier %d", i);
	must(!covey_view(m->group, &view) && covey_mask_count(&view.members) == m->n, "somebody was lost");
	must(res.epoch > epoch, "no new view came: ticks go on from %u", m->group->engine->tick);
	must(m->group->engine->tick < 1u << 31, "ticks did not begin anew: %u", m->group->engine->tick);
	free(data);
}

TEST_LOOP(tick_numbers_begin_anew_before_they_run_out, 0, 3)
{
	struct covey_config config = harness_config_over(_i == 2, "ticks", 3);
	uint32_t tick =
		_i == 1 ? 0xbfffff00u
			: 0xfffffc00u; /* before the bound where a new view is asked for; past it, near the rim */

	config.slot_bytes = 4096;
	harness_threads(&config, run_out_of_ticks, &tick);
}

/* ---- a tick fits what a repair carries ---- */

TEST(a_tick_of_huge_slots_fits_a_repair_message)
{
	struct cvy_engine e = { .here.layout = cvy_layout(1ull << 40, 1ull << 30) };
	struct cvy_op op = { .kind = &cvy_op_broadcast, .bytes = 1ull << 33, .elem = 4 };

	op.kind->plan(&e, &op, 2);
	ck_assert_uint_le(op.piece, CVY_MSG_MAX / 2);
	ck_assert_uint_eq(op.ticks, (op.bytes + op.piece - 1) / op.piece);
	op.kind = &cvy_op_allreduce;
	for (int size = 2; size < 9; size += 3) {
		op.kind->plan(&e, &op, size);
		ck_assert_uint_le(op.piece, CVY_MSG_MAX / 2);
		ck_assert_uint_eq(op.ticks, (op.bytes + op.piece - 1) / op.piece);
	}
	op.kind = &cvy_op_allgather;
	op.kind->plan(&e, &op, 2);
	ck_assert_uint_le(op.piece * 2, CVY_MSG_MAX / 2);
}

/* ---- what a repair brought before the application called it ---- */

static void bring(struct cvy_engine *e, int status, uint32_t sig)
{
	struct cvy_outcome *o = calloc(1, sizeof(*o));

	must(o != NULL, "no memory");
	pthread_mutex_lock(&e->lock);
	o->result = (struct covey_result){ .status = status, .epoch = e->here.epoch, .seq = e->done + 1, .size = 1 };
	cvy_mask_add(&o->result.mask, 0);
	o->sig = sig;
	o->next = e->outcomes;
	e->outcomes = o;
	cvy_engine_reach(e, o->result.seq);
	pthread_mutex_unlock(&e->lock);
}

TEST_RANKS(an_outcome_is_taken_for_the_call_it_is_of, 1)
{
	struct cvy_engine *e = m->group->engine;
	uint32_t barrier, alltoall;
	int32_t x = 1, y = 2;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	barrier = cvy_engine_record(e, 1)->sig;
	must(!covey_alltoall(&x, &x, 1, COVEY_INT32, m->group, NULL, NULL), "alltoall");
	alltoall = cvy_engine_record(e, 2)->sig;
	bring(e, 0, barrier);
	must(!covey_barrier(m->group, NULL, NULL), "the outcome of the call made here");
	bring(e, COVEY_ERR_LOST, 0);
	must(covey_barrier(m->group, NULL, NULL) == COVEY_ERR_LOST, "failed for all");
	bring(e, 0, alltoall);
	must(covey_barrier(m->group, NULL, NULL) == COVEY_ERR_MISMATCH, "of another call");
	bring(e, COVEY_ERR_ROOT, barrier);
	must(covey_alltoall(&x, &y, 1, COVEY_INT32, m->group, NULL, NULL) == COVEY_ERR_MISMATCH, "failed, of another");
	bring(e, 0, alltoall);
	must(covey_alltoall(&x, &y, 1, COVEY_INT32, m->group, NULL, NULL) == COVEY_ERR_MISMATCH && y == 2,
	     "private, and completed without this rank");
	must(!covey_alltoall(&x, &y, 1, COVEY_INT32, m->group, NULL, NULL) && y == 1, "goes on");
}

/* ---- a source that is past a private operation ---- */

/* Both stand still as in a change whose base is behind the operation, which rank 1 has not called. */
TEST_RANKS_OVER_BOTH(a_source_that_is_past_a_private_operation_is_not_waited_for, 2)
{
	struct cvy_engine *e = m->group->engine;
	struct covey_mask none = { { 0 } };
	struct covey_work *work = NULL;
	struct covey_result res;
	int32_t x[2] = { 0 }, y[2];

	if (m->rank == 0)
		must(!covey_alltoall_start(x, y, 1, COVEY_INT32, m->group, NULL, &work), "start");
	pthread_mutex_lock(&e->lock);
	__atomic_store_n(&e->gate, 1, __ATOMIC_SEQ_CST);
	e->view->base = 2;
	pthread_mutex_unlock(&e->lock);
	if (m->rank == 0) {
		must(work->op->state == CVY_OP_ENTERED && work->op->entered == 1, "not published");
		cvy_engine_repair(e, &none);
		must(!cvy_op_decided(work->op), "decided though rank 1 may have published its part");
	}
	harness_meet(m);
	if (m->rank == 1) {
		pthread_mutex_lock(&e->lock);
		cvy_engine_reach(e, 1);
		pthread_mutex_unlock(&e->lock);
		cvy_engine_repair(e, &none);
	} else {
		must(covey_work_wait(work, harness_deadline(WATCHDOG_MS), &res) == COVEY_ERR_MISMATCH,
		     "rank 1 is past it: status %d", res.status);
		covey_work_free(work);
	}
	harness_meet(m);
	m->no_leave = 1;
}

/* A group that its store forgot while it formed may come up again with another creator's max_ranks. */
TEST(a_new_identity_brings_its_own_number_of_ranks)
{
	struct cvy_engine *e = calloc(1, sizeof(*e));

	pthread_mutex_init(&e->lock, NULL);
	cvy_engine_identity(e, 0, 8);
	cvy_engine_identity(e, 0, 200);
	ck_assert_int_eq(e->view->max_ranks, 200);
	e->peer_done[199] = 1;
	ck_assert_int_eq(e->mask_words, 4);
	cvy_view_free(e->view);
	free(e->peer_done);
	free(e);
}

/* ---- more puts than a transport queues ---- */

#define TOKENS 12000
#define HIDDEN 1024

static void run_many_runs(struct member *m)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, 1, 2);
	struct covey_dispatch_args a = { .size = sizeof(a), .num_tokens = TOKENS };
	size_t rows;
	uint16_t *x = calloc(TOKENS, HIDDEN * 2);
	int32_t *ids = malloc(TOKENS * sizeof(*ids));
	struct covey_ep *ep;
	int err;

	err = covey_ep_create(m->group, &c, &ep);
	must(!err, "create: %s", covey_strerror(err));
	rows = (size_t)covey_ep_rows(ep);
	a.x = x;
	a.experts = ids;
	a.packed_x = calloc(rows, HIDDEN * 2);
	a.count = calloc(1, sizeof(*a.count));
	a.src_info = calloc(rows, sizeof(*a.src_info));
	a.range = calloc(2, sizeof(*a.range));
	for (int t = 0; t < TOKENS; t++) { /* every other token: each is a run of its own */
		ids[t] = t % 2;
		for (int h = 0; h < HIDDEN; h += 64)
			x[(size_t)t * HIDDEN + (size_t)h] = (uint16_t)(t + m->rank + 1);
	}
	for (int round = 0; round < 3; round++) {
		struct covey_result res;

		if (m->rank == 0)
			must(!covey_dispatch_send(ep, &a, NULL), "send");
		harness_meet(m); /* the other does not read yet: its socket fills */
		if (m->rank == 1)
			must(!covey_dispatch_send(ep, &a, NULL), "send");
		err = covey_dispatch_recv(ep, harness_deadline(WATCHDOG_MS), &res);
		must(!err && covey_mask_count(&res.mask) == 2, "recv: %s", covey_strerror(err));
		must(a.count[0] == TOKENS, "%d rows", a.count[0]);
		for (int i = 0; i < a.count[0]; i++) {
			int src = i >= (int)(uint32_t)a.range[1], t = a.src_info[i];
			const uint16_t *row = (const uint16_t *)a.packed_x + (size_t)i * HIDDEN;

			for (int h = 0; h < HIDDEN; h += 64)
				must(row[h] == (uint16_t)(t + src + 1), "round %d rank %d: token %d of %d has %u",
				     round, m->rank, t, src, row[h]);
		}
		memset(a.packed_x, 0, rows * HIDDEN * 2);
		for (size_t i = 0; i < (size_t)TOKENS * HIDDEN; i += 64)
			x[i] = (uint16_t)(x[i]);
	}
	covey_ep_destroy(ep);
	free(x);
	free(ids);
	free(a.packed_x);
	free(a.count);
	free(a.src_info);
	free(a.range);
}

TEST(a_dispatch_of_many_runs_loses_no_row)
{
	struct covey_config config = harness_config("runs", 2);

	config.transport = COVEY_TRANSPORT_TCP;
	config.max_ranks = 2;
	config.window_bytes = 1ull << 30;
	harness_threads(&config, run_many_runs, NULL);
}

/* ---- lives ---- */

/* The last error has this code, and says what the request waits for. */
static void request_waits(struct member *m, int err, const char *why)
{
	struct covey_error_info info;

	must(!covey_last_error(m->group, &info), "last error");
	must(info.err == err && info.rank == m->rank && info.epoch, "%s of rank %d, epoch %u", covey_strerror(info.err),
	     info.rank, info.epoch);
	must(strstr(info.cause, why) && strstr(info.cause, "; asked at epoch "), "%s", info.cause);
}

TEST_RANKS(abort_ends_requests_too, 2)
{
	struct covey_work *work = NULL;
	int err;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	must(!covey_extend(m->group, 4, &work), "extend"); /* nobody comes */
	must(covey_work_test(work, NULL) == COVEY_ERR_AGAIN, "granted");
	must(covey_work_wait(work, 1, NULL) == COVEY_ERR_TIMEOUT, "long past");
	request_waits(m, COVEY_ERR_TIMEOUT, "the wait ended at its deadline");
	covey_abort(m->group);
	err = covey_work_wait(work, harness_deadline(WATCHDOG_MS), NULL);
	must(err == COVEY_ERR_ABORTED, "the request ends with %s", covey_strerror(err));
	request_waits(m, COVEY_ERR_ABORTED, "covey_abort was called");
	err = covey_work_test(work, NULL);
	must(err == COVEY_ERR_ABORTED, "a test says %s", covey_strerror(err));
	covey_work_free(work);
	m->no_leave = 1;
}

TEST(ep_before_join_is_refused)
{
	struct covey_config config = harness_config("eparly", 2); /* the other never comes */
	struct covey_ep_config c = ep_config(4, 8, 1, 2);
	struct covey_error_info info;
	struct covey_group *group;
	struct covey_ep *ep = NULL;

	config.rank = 0;
	ck_assert_int_eq(covey_join_start(&config, &group), 0);
	ck_assert_int_eq(covey_ep_create(group, &c, &ep), COVEY_ERR_INVAL);
	covey_last_error(group, &info);
	ck_assert_ptr_nonnull(strstr(info.cause, "join"));
	covey_close(group);
}

/* Who looks at a work holds the lock for a moment; the progress thread must come again. */
static int looked;

static void run_looked_at(struct member *m)
{
	int64_t *data = calloc(100000, 8);
	uint64_t end = harness_deadline(WATCHDOG_MS);
	struct covey_work *work;
	char text[120];
	int err = COVEY_ERR_AGAIN;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	if (m->rank)
		while (__atomic_load_n(&looked, __ATOMIC_ACQUIRE) < 300000)
			sched_yield();
	must(!covey_allreduce_start(data, data, 100000, COVEY_INT64, COVEY_SUM, m->group, NULL, &work), "start");
	while (err == COVEY_ERR_AGAIN) {
		for (int i = 0; !m->rank && i < 1000; i++)
			covey_work_progress(work, text, sizeof(text));
		__atomic_add_fetch(&looked, m->rank ? 0 : 1000, __ATOMIC_RELEASE);
		err = covey_work_test(work, NULL);
		must(harness_now_ns() < end, "rank %d: never decided: %s", m->rank, text);
		sched_yield();
	}
	must(!err, "%s", covey_strerror(err));
	covey_work_free(work);
	free(data);
}

TEST_LOOP(looking_at_a_work_does_not_stop_it, 0, 2)
{
	struct covey_config config = harness_config_over(_i, "looks", 2);

	looked = 0;
	harness_threads(&config, run_looked_at, NULL);
}

/* More members on the other host than one asks by itself: still it learns that nobody needs it. */
static void run_leave(struct member *m)
{
	int err = covey_barrier(m->group, NULL, NULL);

	if (!err)
		err = covey_barrier(m->group, NULL, NULL);
	if (!err)
		err = covey_leave(m->group, harness_deadline(UNDER_TSAN ? WATCHDOG_MS : 15000));
	must(!err, "rank %d: %s", m->rank, covey_strerror(err));
	m->no_leave = 1;
}

TEST(members_on_two_hosts_leave_at_once)
{
	struct covey_config config = harness_config("leave", 13);

	harness_threads_on(&config, run_leave, NULL, 2);
}

HARNESS_MAIN(.name = "collectives/edges")
