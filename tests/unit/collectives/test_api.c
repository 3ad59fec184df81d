/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the API says when it is used wrongly: codes, causes, calls that do not match, forked handles,
 * joins that cannot be, and on_loss = fail.
 *
 * labels: redis real
 */
#include "harness.h"
#include "operations/operations.h"
#include "engine_state.h"
#include "handle.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- arguments ---- */

static void bad_operation(struct covey_group *g, const struct operation *op)
{
	int32_t x[8] = { 0 };
	const size_t ones[1] = { 1 }, huge[1] = { SIZE_MAX / 2 };
	const struct operation_call right = { x, x,    1,    COVEY_INT32, COVEY_SUM, 0,		0,
					      1, ones, ones, ones,	  ones,	     .group = g };
	struct operation_call c;

#define REFUSED(change, words) (c = right, (change), must_be_invalid(g, op->call(&c), words))
	REFUSED(c.dtype = 77, "datatype");
	REFUSED(c.send = NULL, "NULL");
	REFUSED(c.recv = NULL, "NULL");
	REFUSED((c.count = *huge, c.send_counts = c.recv_counts = huge), "large");
	if (op->reduces)
		REFUSED(c.redop = 5, "operation");
	if (op->rooted) {
		REFUSED(c.root = -1, "root");
		REFUSED(c.root = 16, "root");
	}
	if (op->uneven) {
		REFUSED(c.recv_counts = NULL, "NULL");
		REFUSED(c.recv_counts = huge, "count");
	}
	c = right;
	c.stream = (struct CUstream_st *)8;
	must_refuse(g, op->call(&c), COVEY_ERR_UNSUPPORTED, "stream");
}

static void bad_operations(struct covey_group *g)
{
	static struct CUstream_st *stream = (struct CUstream_st *)8;
	const size_t ones[1] = { 1 }, huge[1] = { SIZE_MAX / 2 };
	struct covey_work *work = NULL;
	int32_t x[8] = { 0 };

	for (int op = 0; op < OP_SENDRECV; op++)
		if (!operation_table[op].no_data)
			bad_operation(g, &operation_table[op]);
	must_be_invalid(g, covey_allreduce_start(x, x, 1, COVEY_INT32, COVEY_SUM, g, NULL, NULL), "work");
	must_be_invalid(g, covey_broadcast_start(x, x, 1, 11, 0, g, NULL, &work), "datatype");
	must_be_invalid(g, covey_alltoallv(x, NULL, ones, x, ones, ones, COVEY_INT32, g, NULL, NULL), "NULL");
	must_be_invalid(g, covey_alltoallv(x, huge, ones, x, ones, ones, COVEY_INT32, g, NULL, NULL), "count");
	must_be_invalid(g, covey_allgatherv(x, 2, x, ones, ones, COVEY_INT32, g, NULL, NULL), "sendcount");
	must_be_invalid(g, covey_allgatherv(x, 1, x, ones, huge, COVEY_INT32, g, NULL, NULL), "large");
	must_refuse(g, covey_barrier(g, stream, NULL), COVEY_ERR_UNSUPPORTED, "stream");
	ck_assert_ptr_null(work);
}

static void bad_requests(struct covey_group *g)
{
	char state[8];
	int none[1] = { 99 };
	struct covey_work *work = NULL;

	must_be_invalid(g, covey_admit(g, NULL, 8, NULL), "8 bytes");
	must_be_invalid(g, covey_admit(g, state, 4097, NULL), "4096");
	must_be_invalid(g, covey_recover(g, NULL, 1, &work), "no ranks");
	must_be_invalid(g, covey_recover(g, none, 1, &work), "99");
	must_be_invalid(g, covey_extend(g, 0, &work), "extend");
	must_be_invalid(g, covey_extend(g, 17, &work), "16");
	must_be_invalid(g, covey_retire(g, -1, &work), "-1");
	must_be_invalid(g, covey_evict(g, 16, &work), "16");
	must_be_invalid(g, covey_evict(g, 0, NULL), "work");
	must_be_invalid(g, covey_set_on_loss(g, 2), "on_loss");
	ck_assert_ptr_null(work);
}

static void null_everywhere(struct covey_group *g)
{
	struct covey_result res;
	struct covey_event event;
	struct covey_view view;
	char text[8];

	ck_assert_int_eq(covey_barrier(NULL, NULL, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_admit(NULL, NULL, 0, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_leave(NULL, 0), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_join_wait(NULL, 0), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_join_start(NULL, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_view(NULL, &view), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_view(g, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_event_fd(NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_event_next(g, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_event_next(NULL, &event), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_last_error(g, NULL), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_work_test(NULL, &res), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_work_wait(NULL, 0, &res), COVEY_ERR_INVAL);
	ck_assert_int_eq(covey_work_progress(NULL, text, sizeof(text)), COVEY_ERR_INVAL);
	covey_work_free(NULL);
	covey_abort(NULL);
	covey_close(NULL);
}

TEST(bad_arguments_are_refused_with_a_cause)
{
	struct covey_config config = harness_config("args", 1);
	struct covey_group *g = harness_join(&config, 0);
	struct covey_result res;
	int64_t value = 5;

	bad_operations(g);
	bad_requests(g);
	null_everywhere(g);
	/* nothing of it took a number or did harm */
	ck_assert_int_eq(covey_allreduce(&value, &value, 1, COVEY_INT64, COVEY_SUM, g, NULL, &res), 0);
	ck_assert_uint_eq(res.seq, 1);
	covey_close(g);
}

TEST(a_view_says_who_is_there)
{
	struct covey_config config = harness_config("view", 1);
	struct covey_group *g = harness_join(&config, 0);
	struct covey_event event;
	struct covey_view view;

	ck_assert_int_eq(covey_view(g, &view), 0);
	ck_assert_uint_eq(view.epoch, 1);
	ck_assert_int_eq(view.size, 1);
	ck_assert_int_eq(view.max_ranks, 16);
	ck_assert_int_eq(view.rank, 0);
	ck_assert(view.active && view.incarnation && covey_mask_count(&view.members) == 1 &&
		  !covey_mask_count(&view.pending));
	ck_assert_uint_eq(view.done_seq, 0);
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), 0);
	ck_assert_int_eq(covey_view(g, &view), 0);
	ck_assert_uint_eq(view.done_seq, 1);
	ck_assert_int_ge(covey_event_fd(g), 0);
	while (!covey_event_next(g, &event))
		ck_assert_int_eq(event.kind, COVEY_EVENT_VIEW);
	ck_assert_int_eq(covey_event_next(g, &event), COVEY_ERR_AGAIN);
	covey_close(g);
}

/* ---- calls that do not match ---- */

struct mismatch {
	int kind, both; /* ranks whose last error names both calls */
};

static const struct {
	const char *odd, *even;
} calls[] = {
	{ "allreduce(7 x i32, sum)", "allreduce(8 x i32, sum)" },
	{ "barrier", "allgather(8 x i32)" },
	{ "broadcast(8 x i32, root 0)", "allreduce(8 x i32, max)" },
};

static void run_mismatch(struct member *m)
{
	struct mismatch *mis = m->arg;
	int32_t x[64] = { 0 }, sum = 1;
	struct covey_error_info info;
	struct covey_result res = { 0 };
	int kind = mis->kind, odd = m->rank == 1, err;

	if (kind == 0)
		err = odd ? covey_allreduce(x, x, 7, COVEY_INT32, COVEY_SUM, m->group, NULL, &res)
			  : covey_allreduce(x, x, 8, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	else if (kind == 1)
		err = odd ? covey_barrier(m->group, NULL, &res)
			  : covey_allgather(x, x + 8, 8, COVEY_INT32, m->group, NULL, &res);
	else
		err = odd ? covey_broadcast(x, x, 8, COVEY_INT32, 0, m->group, NULL, &res)
			  : covey_allreduce(x, x, 8, COVEY_INT32, COVEY_MAX, m->group, NULL, &res);
	must(err == COVEY_ERR_MISMATCH && res.status == err && res.seq == 1, "rank %d, kind %d: %s", m->rank, kind,
	     covey_strerror(err));
	covey_last_error(m->group, &info);
	must(info.err == COVEY_ERR_MISMATCH, "rank %d: last error is %s: %s", m->rank, covey_strerror(info.err),
	     info.cause);
	must(strstr(info.cause, odd ? calls[kind].odd : calls[kind].even), "rank %d: \"%s\"", m->rank, info.cause);
	/* who was frozen before another's call arrived knows its own only; the rank that raised it knows both */
	if (strstr(info.cause, calls[kind].odd) && strstr(info.cause, calls[kind].even))
		__atomic_add_fetch(&mis->both, 1, __ATOMIC_RELAXED);
	err = covey_allreduce(&sum, &sum, 1, COVEY_INT32, COVEY_SUM, m->group, NULL, &res);
	must(!err && sum == m->n && res.seq == 2, "rank %d goes on with %s, %d", m->rank, covey_strerror(err), sum);
}

TEST_LOOP(calls_that_do_not_match_fail_for_all_and_are_named, 0, 6)
{
	struct covey_config config = harness_config_over(_i % 2, "mismatch", 3);
	struct mismatch mis = { .kind = _i / 2 };

	harness_threads(&config, run_mismatch, &mis);
	ck_assert_int_ge(mis.both, 1);
}

/* The view that ends the mismatch cannot come, as the store stands still; other calls of the group go on. */
static void *send_beside_mismatch(void *arg)
{
	struct member *m = arg;
	struct covey_work *work = NULL;
	int32_t x = 0;
	int err;

	while (!__atomic_load_n(&cvy_handle_engine(m->group)->waiting, __ATOMIC_RELAXED))
		sched_yield();
	err = covey_send_start(&x, 1, COVEY_INT32, 1 - m->rank, 0, m->group, NULL, &work);
	harness_store_signal(SIGCONT);
	must(!err && !covey_work_wait(work, 0, NULL), "rank %d: send: %s", m->rank, covey_strerror(err));
	covey_work_free(work);
	return NULL;
}

TEST_RANKS_OVER_BOTH(calls_that_do_not_match_hold_up_no_other_call, 2)
{
	int32_t x[8] = { 0 }, got;
	pthread_t beside;
	int err;

	err = covey_barrier(m->group, NULL, NULL);
	must(!err, "rank %d: %s", m->rank, covey_strerror(err));
	if (!m->rank) {
		harness_store_signal(SIGSTOP);
		must(!pthread_create(&beside, NULL, send_beside_mismatch, m), "no thread");
	}
	err = m->rank ? covey_allreduce(x, x, 7, COVEY_INT32, COVEY_SUM, m->group, NULL, NULL)
		      : covey_allreduce(x, x, 8, COVEY_INT32, COVEY_SUM, m->group, NULL, NULL);
	must(err == COVEY_ERR_MISMATCH, "rank %d: %s", m->rank, covey_strerror(err));
	if (m->rank)
		err = covey_recv(&got, 1, COVEY_INT32, 0, 0, m->group, NULL, NULL);
	else
		pthread_join(beside, NULL);
	must(!m->rank || !err, "rank %d: recv: %s", m->rank, covey_strerror(err));
}

/*
 * Two roots do not wait for each other, so both broadcasts end well; what they published differs in ticks, too. The
 * next operation finds it and names both calls, and those after it go on.
 */
static void run_two_roots(struct member *m)
{
	size_t count = m->rank ? 3 * 4096 : 1;
	uint8_t *x = calloc(1, count);
	struct covey_result res = { 0 };
	struct covey_error_info info;
	int err;

	must(x != NULL, "rank %d: no memory", m->rank);
	err = covey_broadcast(x, x, count, COVEY_UINT8, m->rank, m->group, NULL, &res);
	must(!err && res.epoch == 1, "rank %d: its own broadcast: %s", m->rank, covey_strerror(err));
	free(x);
	/* who calls the barrier sees the difference, and must not do so while the other is in its broadcast */
	__atomic_add_fetch((int *)m->arg, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n((int *)m->arg, __ATOMIC_SEQ_CST) < m->n)
		sched_yield();
	err = covey_barrier(m->group, NULL, &res);
	covey_last_error(m->group, &info);
	must(err == COVEY_ERR_MISMATCH && res.seq == 2 && info.err == err, "rank %d: the barrier of all: %s, epoch %u",
	     m->rank, covey_strerror(err), res.epoch);
	must(strstr(info.cause, "operation 1 had not matched") && strstr(info.cause, "broadcast(1 x u8, root 0)") &&
		     strstr(info.cause, "broadcast(12288 x u8, root 1)"),
	     "rank %d: %s", m->rank, info.cause);
	err = covey_barrier(m->group, NULL, &res);
	must(!err && res.seq == 3, "rank %d goes on with %s", m->rank, covey_strerror(err));
}

TEST_LOOP(two_roots_find_out_at_their_next_operation, 0, 2)
{
	struct covey_config config = harness_config_over(_i, "roots", 2);
	int past = 0;

	config.slot_bytes = 4096;
	harness_threads(&config, run_two_roots, &past);
}

/* ---- fork ---- */

static struct covey_ep *forked_ep;

static int forked_child(void *arg, int rank)
{
	struct covey_group *g = arg;
	struct covey_event event;
	struct covey_view view;
	int64_t x = 1;

	(void)rank;
	if (covey_barrier(g, NULL, NULL) != COVEY_ERR_FORKED || covey_admit(g, NULL, 0, NULL) != COVEY_ERR_FORKED)
		return 1;
	if (covey_allreduce(&x, &x, 1, COVEY_INT64, COVEY_SUM, g, NULL, NULL) != COVEY_ERR_FORKED || x != 1)
		return 2;
	if (covey_view(g, &view) != COVEY_ERR_FORKED || covey_event_next(g, &event) != COVEY_ERR_FORKED)
		return 3;
	if (covey_leave(g, 1) != COVEY_ERR_FORKED)
		return 4;
	if (covey_dispatch_recv(forked_ep, 0, NULL) != COVEY_ERR_FORKED || covey_ep_rows(forked_ep) != COVEY_ERR_FORKED)
		return 5;
	if (covey_group_end() != COVEY_ERR_INVAL) /* the calls in it are the parent's */
		return 6;
	covey_abort(g);
	covey_close(g);
	return 0;
}

#define GET_REGISTRATIONS (1 << 9) /* of membarrier, since Linux 6.3 */

/* A registration among threads waits for a grace period of the kernel, and who never sleeps needs it as well. */
TEST(barriers_of_sleepers_reach_a_process_from_the_start)
{
	long registered;

	if (!(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) & GET_REGISTRATIONS))
		return;
	registered = syscall(SYS_membarrier, GET_REGISTRATIONS, 0, 0);
	ck_assert(registered & MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

TEST(a_forked_handle_is_poisoned)
{
	struct covey_config config = harness_config("fork", 1);
	struct covey_ep_config shape = COVEY_EP_CONFIG_INIT;
	struct covey_dispatch_args args = COVEY_DISPATCH_INIT;
	struct covey_group *g = harness_join(&config, 0);
	uint16_t rows[8];
	int32_t count, info;
	int64_t range;
	int status;

	shape.max_tokens = shape.top_k = shape.experts = 1;
	shape.hidden = 8;
	ck_assert_int_eq(covey_ep_create(g, &shape, &forked_ep), 0);
	args.packed_x = rows;
	args.count = &count;
	args.src_info = &info;
	args.range = &range;
	ck_assert_int_eq(covey_dispatch_send(forked_ep, &args, NULL), 0);
	ck_assert_int_eq(covey_group_start(), 0);
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), 0);
	status = harness_reap(harness_fork(forked_child, g, 0));
	must(WIFEXITED(status) && !WEXITSTATUS(status), "the child ends with %x", status);
	ck_assert_int_eq(covey_group_end(), 0); /* the parent's is as good as before */
	ck_assert_int_eq(covey_dispatch_recv(forked_ep, 0, NULL), 0);
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), 0);
	covey_ep_destroy(forked_ep);
	ck_assert_int_eq(covey_leave(g, harness_deadline(WATCHDOG_MS)), 0);
	covey_close(g);
}

/* Posted calls end with their handle; those of the other group do not. */
TEST(a_handle_may_close_in_a_group_of_calls)
{
	struct covey_config config = harness_config("closes", 1), other = harness_config("stays", 1);
	struct covey_group *g = harness_join(&config, 0), *h = harness_join(&other, 0);
	struct covey_result never = { 0 }, done = { .status = 1 };
	int32_t in = 0;

	ck_assert_int_eq(covey_group_start(), 0);
	ck_assert_int_eq(covey_recv(&in, 1, COVEY_INT32, 0, 0, g, NULL, &never), 0); /* nobody sends it */
	ck_assert_int_eq(covey_barrier(h, NULL, &done), 0);
	covey_close(g);
	ck_assert_int_eq(never.status, COVEY_ERR_CLOSED);
	ck_assert_int_eq(covey_group_end(), COVEY_ERR_CLOSED);
	ck_assert_int_eq(done.status, 0);
	ck_assert_int_eq(covey_barrier(h, NULL, NULL), 0);
	covey_close(h);
}

static int joins_itself(void *arg, int rank)
{
	struct covey_config config = harness_config("child", 1);
	struct covey_group *g = harness_join(&config, rank);
	int err = covey_barrier(g, NULL, NULL);

	covey_close(arg); /* the parent's */
	covey_close(g);
	return err ? 1 : 0;
}

TEST(a_forked_child_may_join_a_group_of_its_own)
{
	struct covey_config config = harness_config("parent", 1);
	struct covey_group *g = harness_join(&config, 0);
	int status = harness_reap(harness_fork(joins_itself, g, 0));

	must(WIFEXITED(status) && !WEXITSTATUS(status), "the child ends with %x", status);
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), 0);
	covey_close(g);
}

/* ---- joins that cannot be ---- */

TEST(bad_settings_are_named)
{
	struct covey_config good = harness_config("bad", 2), c = good;
	struct covey_group *g = NULL;

	c.rank = 16;
	must_be_invalid(NULL, covey_join(&c, &g), "rank 16");
	c = good;
	c.world = 0;
	must_be_invalid(NULL, covey_join(&c, &g), "WORLD_SIZE");
	c = good;
	c.transport = 9;
	must_be_invalid(NULL, covey_join(&c, &g), "transport");
	ck_assert_ptr_null(g);
}

TEST(a_store_that_is_not_there_is_named)
{
	struct covey_config config = harness_config("nowhere", 1);

	config.rank = 0;
	config.join_ms = 1000;
	config.store = "redis+unix:///tmp/covey-no-such-dir/socket";
	must_not_join(&config, COVEY_ERR_STORE, "store");
	config.store = "redis://127.0.0.1:1";
	must_not_join(&config, COVEY_ERR_STORE, "store");
}

TEST(missing_ranks_are_named)
{
	struct covey_config config = harness_config("missing", 3);

	config.rank = 1;
	config.join_ms = 500;
	must_not_join(&config, COVEY_ERR_TIMEOUT, "rank 0,2 has not come, world is 3");
}

TEST(a_rank_that_is_held_is_busy)
{
	struct covey_config config = harness_config("busy", 1), second;
	struct covey_group *g = harness_join(&config, 0);

	second = config;
	second.rank = 0;
	second.create = COVEY_CREATE_NEVER;
	second.world = 0;
	second.join_ms = 1000;
	must_not_join(&second, COVEY_ERR_BUSY, "0");
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), 0);
	covey_close(g);
}

TEST(join_start_returns_at_once)
{
	struct covey_config config = harness_config("start", 2);
	struct covey_group *g;
	struct covey_view view;

	config.rank = 0;
	ck_assert_int_eq(covey_join_start(&config, &g), 0);
	ck_assert_int_eq(covey_join_wait(g, harness_now_ns() + 2000000), COVEY_ERR_TIMEOUT);
	ck_assert_int_eq(covey_barrier(g, NULL, NULL), COVEY_ERR_INVAL); /* not joined yet */
	ck_assert_int_eq(covey_view(g, &view), 0);
	ck_assert_int_eq(view.rank, -1);
	covey_close(g);
}

/* ---- on_loss = fail ---- */

struct loss {
	struct covey_config config;
	uint64_t *done; /* shared: operations of rank 2; what rank 0 saw */
};

static int on_loss_rank(void *arg, int me)
{
	struct loss *loss = arg;
	struct covey_group *g = harness_join(&loss->config, me);
	struct covey_result res;
	int64_t x;
	int err, failed = 0;

	must(!covey_set_on_loss(g, COVEY_ON_LOSS_FAIL), "set");
	for (int i = 0; i < 200000 && failed < 20; i++) {
		x = 1;
		err = covey_allreduce(&x, &x, 1, COVEY_INT64, COVEY_SUM, g, NULL, &res);
		if (me == 2)
			__atomic_store_n(loss->done, (uint64_t)i, __ATOMIC_RELEASE);
		must(failed || !err || err == COVEY_ERR_PEER, "rank %d: %s", me, covey_strerror(err));
		must(!failed || err == COVEY_ERR_PEER, "rank %d: operation %d after the first that failed: %s", me, i,
		     covey_strerror(err));
		must(err ? !covey_mask_has(&res.mask, 2) : covey_mask_count(&res.mask) == 3,
		     "rank %d: mask %llx with %s", me, (unsigned long long)res.mask.word[0], covey_strerror(err));
		failed += err != 0;
		if (failed == 1)
			loss->done[1 + me] = res.seq; /* the parent compares */
	}
	must(failed == 20, "rank %d has seen no loss", me);
	must(!covey_admit(g, NULL, 0, &res) && covey_mask_count(&res.mask) == 2, "rank %d: the loss is acknowledged",
	     me);
	x = 1;
	err = covey_allreduce(&x, &x, 1, COVEY_INT64, COVEY_SUM, g, NULL, &res);
	must(!err && x == 2, "rank %d: after the safe point: %s", me, covey_strerror(err));
	must(!covey_leave(g, harness_deadline(WATCHDOG_MS)), "rank %d: leave", me);
	covey_close(g);
	return 0;
}

TEST_LOOP(on_loss_fail_gives_peer_to_all_until_the_next_safe_point, 0, 2)
{
	struct loss loss = { harness_config_over(_i, "loss", 3), harness_shared(4096) };
	pid_t pid[3];

	harness_fork_all(on_loss_rank, &loss, pid, 3);
	harness_until(loss.done, 100, "rank 2");
	kill(pid[2], SIGKILL);
	harness_reap(pid[2]);
	harness_reap_all(pid, 2, -1);
	ck_assert_uint_eq(loss.done[1], loss.done[2]); /* the same operation was the first to fail */
}

/* ---- what a rank that may not leave yet is told ---- */

static int may_not_leave_yet(void *arg, int me)
{
	struct loss *loss = arg;
	struct covey_group *g = harness_join(&loss->config, me);
	struct covey_error_info info = { 0 };
	struct covey_work *work = NULL;
	int64_t x = 1;

	if (me == 1)
		harness_until(loss->done, 1, "rank 0's refusal");
	must(!covey_allreduce_start(&x, &x, 1, COVEY_INT64, COVEY_SUM, g, NULL, &work), "rank %d: start", me);
	if (me == 0) {
		must(covey_leave(g, 1) == COVEY_ERR_TIMEOUT, "leaves though rank 1 has not called");
		must(!covey_last_error(g, &info) && info.epoch == 1, "epoch %u: %s", info.epoch, info.cause);
		__atomic_store_n(loss->done, 1, __ATOMIC_RELEASE);
	}
	must(!covey_work_wait(work, 0, NULL) && x == 2, "rank %d: the sum is %lld", me, (long long)x);
	must(!covey_leave(g, harness_deadline(WATCHDOG_MS)), "rank %d: leave", me);
	covey_close(g);
	return 0;
}

TEST(a_leave_that_is_not_possible_yet_names_the_epoch)
{
	struct loss loss = { harness_config("behind", 2), harness_shared(4096) };
	pid_t pid[2];

	harness_fork_all(may_not_leave_yet, &loss, pid, 2);
	harness_reap_all(pid, 2, -1);
}

HARNESS_MAIN(.name = "collectives/api")
