/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Works: several operations under way at once, in several groups, waited for late, freed early, or
 * ended by an abort. Ranks are threads of one process.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>

#define IN_FLIGHT 12
#define COUNT 5001

static void check_sum(const float *recv, size_t count, uint64_t mask, uint64_t seed)
{
	float *want = malloc(count * 4);

	type_fold(want, count, COVEY_FLOAT32, COVEY_SUM, mask, seed);
	must(!memcmp(recv, want, count * 4), "operation %llu gives other bytes", (unsigned long long)seed);
	free(want);
}

/* ---- several in flight ---- */

TEST_RANKS_OVER_BOTH(works_complete_in_any_order_of_waiting, 4)
{
	struct covey_work *work[IN_FLIGHT];
	float *send[IN_FLIGHT], *recv[IN_FLIGHT];
	struct covey_result res;
	char text[128];

	for (int i = 0; i < IN_FLIGHT; i++) {
		int err;

		send[i] = malloc(COUNT * 4);
		recv[i] = malloc(COUNT * 4);
		type_input(send[i], COUNT, COVEY_FLOAT32, m->rank, (uint64_t)i);
		err = covey_allreduce_start(send[i], recv[i], COUNT, COVEY_FLOAT32, COVEY_SUM, m->group, NULL,
					    &work[i]);
		must(!err, "%s", covey_strerror(err));
		ck_assert_int_eq(covey_work_progress(work[i], text, sizeof(text)), 0);
		must(strstr(text, "allreduce"), "progress is \"%s\"", text);
	}
	for (int k = 0; k < IN_FLIGHT; k++) { /* in another order than they were posted, another one per rank */
		int i = (k * 5 + m->rank) % IN_FLIGHT,
		    err = covey_work_wait(work[i], harness_deadline(WATCHDOG_MS), &res);

		must(!err && res.seq == (uint64_t)i + 1, "work %d: %s, number %llu", i, covey_strerror(err),
		     (unsigned long long)res.seq);
		must(!covey_work_test(work[i], &res) && !res.status, "work %d is decided and tests otherwise", i);
		check_sum(recv[i], COUNT, (1ull << m->n) - 1, (uint64_t)i);
		covey_work_free(work[i]);
		free(send[i]);
		free(recv[i]);
	}
}

/* Nobody waits: the progress thread alone brings the operations to their end. */
TEST_RANKS_OVER_BOTH(works_go_on_when_nobody_waits, 3)
{
	struct covey_work *work[3];
	uint64_t end = harness_deadline(WATCHDOG_MS);
	int64_t value[3];

	for (int i = 0; i < 3; i++) {
		value[i] = m->rank + i;
		must(!covey_allreduce_start(&value[i], &value[i], 1, COVEY_INT64, COVEY_MAX, m->group, NULL, &work[i]),
		     "start %d", i);
	}
	for (int i = 0; i < 3; i++) {
		int err;

		while ((err = covey_work_test(work[i], NULL)) == COVEY_ERR_AGAIN)
			must(harness_now_ns() < end, "work %d is never decided", i);
		must(!err && value[i] == m->n - 1 + i, "work %d: %s, %lld", i, covey_strerror(err),
		     (long long)value[i]);
		covey_work_free(work[i]);
	}
}

/* ---- two groups ---- */

static void run_two_groups(struct member *m)
{
	struct covey_config config = *(struct covey_config *)m->arg;
	struct covey_group *group[2] = { m->group, harness_join(&config, m->rank) };
	struct covey_work *work[2][8];
	int64_t value[2][8];

	for (int k = 0; k < 16; k++) { /* even ranks post group 0 first, odd ones group 1 */
		int g = (k / 8 + m->rank) % 2, i = k % 8;

		value[g][i] = (m->rank + 1) * (i + 1) * (g ? 100 : 1);
		must(!covey_allreduce_start(&value[g][i], &value[g][i], 1, COVEY_INT64, COVEY_SUM, group[g], NULL,
					    &work[g][i]),
		     "start in group %d", g);
	}
	for (int k = 0; k < 16; k++) {
		int g = (k / 8 + m->rank + 1) % 2, i = k % 8,
		    err = covey_work_wait(work[g][i], harness_deadline(WATCHDOG_MS), NULL);
		int64_t want = (int64_t)m->n * (m->n + 1) / 2 * (i + 1) * (g ? 100 : 1);

		must(!err && value[g][i] == want, "rank %d group %d: %s, %lld", m->rank, g, covey_strerror(err),
		     (long long)value[g][i]);
		covey_work_free(work[g][i]);
	}
	must(!covey_leave(group[1], harness_deadline(WATCHDOG_MS)), "leave");
	covey_close(group[1]);
}

TEST(groups_do_not_wait_for_each_other)
{
	struct covey_config config = harness_config("first", 3), second = harness_config("second", 3);

	harness_threads(&config, run_two_groups, &second);
}

/* ---- deadlines, early free ---- */

/* @hold: holds the other ranks back until rank 0 has seen what it wanted to see. */

TEST_RANKS_OVER_BOTH(a_wait_that_times_out_may_be_taken_up_again, 3)
{
	uint64_t *hold = m->arg;
	struct covey_work *work;
	uint64_t end = harness_deadline(WATCHDOG_MS);
	int64_t value = m->rank;
	struct covey_result res;
	char text[128];

	if (m->rank)
		harness_until(hold, 1, "rank 0");
	must(!covey_allreduce_start(&value, &value, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &work), "start");
	if (!m->rank) {
		ck_assert_int_eq(covey_work_test(work, &res), COVEY_ERR_AGAIN);
		ck_assert_int_eq(covey_work_wait(work, harness_now_ns() + 5000000, &res), COVEY_ERR_TIMEOUT);
		ck_assert_int_eq(covey_work_wait(work, 1, &res), COVEY_ERR_TIMEOUT); /* long past */
		ck_assert_int_eq(covey_work_test(work, NULL), COVEY_ERR_AGAIN);
		do { /* a step may be under way when it looks */
			must(!covey_work_progress(work, text, sizeof(text)), "progress");
			must(harness_now_ns() < end, "progress is \"%s\"", text);
		} while (!strstr(text, ", waits for rank "));
		__atomic_store_n(hold, 1, __ATOMIC_RELEASE);
	}
	must(!covey_work_wait(work, harness_deadline(WATCHDOG_MS), &res), "wait");
	must(value == 3 && res.seq == 1, "sum %lld", (long long)value);
	covey_work_free(work);
}

TEST_RANKS_OVER_BOTH(a_blocking_call_that_takes_a_slice_may_be_taken_up_again, 3)
{
	uint64_t *hold = m->arg;
	struct covey_work *work = NULL;
	struct covey_result res;
	int64_t value = 1, left = 1;

	if (m->rank)
		harness_until(hold, 1, "rank 0");
	else
		must(!covey_set_slice(m->group, 1), "slice");
	for (uint64_t seq = 1; seq <= 2 && !m->rank; seq++) { /* the second is never resumed */
		int64_t *at = seq == 1 ? &value : &left;

		ck_assert_int_eq(covey_allreduce(at, at, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &res),
				 COVEY_ERR_AGAIN);
		must(res.status == COVEY_ERR_AGAIN && res.seq == seq, "number %llu", (unsigned long long)res.seq);
	}
	if (!m->rank) {
		ck_assert_int_eq(covey_work_resume(m->group, 3, &work), COVEY_ERR_INVAL);
		must(!covey_work_resume(m->group, 1, &work), "resume");
		ck_assert_int_eq(covey_work_resume(m->group, 1, &work), COVEY_ERR_INVAL);
		__atomic_store_n(hold, 1, __ATOMIC_RELEASE);
		must(!covey_work_wait(work, harness_deadline(WATCHDOG_MS), &res), "wait");
		covey_work_free(work);
		must(!covey_set_slice(m->group, 0), "no slice");
	} else {
		must(!covey_allreduce(&value, &value, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &res), "first");
		must(!covey_allreduce(&left, &left, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, NULL), "second");
	}
	must(value == m->n && res.seq == 1, "sum %lld", (long long)value);
	must(!covey_barrier(m->group, NULL, NULL), "barrier"); /* in order: the second is done */
	must(left == m->n, "sum %lld", (long long)left);
}

TEST_RANKS(a_freed_work_goes_on, 3)
{
	uint64_t *hold = m->arg;
	struct covey_work *work;
	int64_t freed = m->rank + 1, after = 1;

	if (m->rank)
		harness_until(hold, 1, "rank 0");
	must(!covey_allreduce_start(&freed, &freed, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &work), "start");
	covey_work_free(work); /* on rank 0 long before it is decided */
	__atomic_store_n(hold, 1, __ATOMIC_RELEASE);
	must(!covey_allreduce(&after, &after, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, NULL), "the next operation");
	must(after == m->n && freed == 6, "%lld and %lld", (long long)after,
	     (long long)freed); /* in order: both are done */
	covey_work_free(NULL);
}

/* ---- abort, close ---- */

struct waiter {
	struct covey_group *group;
	uint64_t waits;
	int err;
};

static void *wait_in_vain(void *arg)
{
	struct waiter *w = arg;
	struct covey_result res = { 0 };

	__atomic_store_n(&w->waits, 1, __ATOMIC_RELEASE);
	w->err = covey_barrier(w->group, NULL, &res);
	if (w->err != res.status && res.seq)
		w->err = 0;
	return NULL;
}

TEST_RANKS_OVER_BOTH(abort_makes_waits_return, 2)
{
	uint64_t *hold = m->arg;
	struct waiter w = { .group = m->group };
	struct covey_error_info info;
	pthread_t thread;

	m->no_leave = 1;
	if (m->rank) { /* calls nothing, so that rank 0 waits in vain; stays until rank 0 has seen the abort */
		harness_until(hold, 1, "rank 0");
		return;
	}
	ck_assert(!pthread_create(&thread, NULL, wait_in_vain, &w));
	harness_until(&w.waits, 1, "the waiting thread");
	covey_abort(m->group);
	pthread_join(thread, NULL);
	ck_assert_int_eq(w.err, COVEY_ERR_ABORTED);
	ck_assert_int_eq(covey_barrier(m->group, NULL, NULL), COVEY_ERR_ABORTED);
	ck_assert_int_eq(covey_admit(m->group, NULL, 0, NULL), COVEY_ERR_ABORTED);
	ck_assert_int_eq(covey_leave(m->group, harness_deadline(100)), COVEY_ERR_ABORTED);
	covey_last_error(m->group, &info);
	ck_assert_int_eq(info.err, COVEY_ERR_ABORTED);
	covey_abort(m->group); /* twice is fine */
	__atomic_store_n(hold, 1, __ATOMIC_RELEASE);
}

/* Close without leave is a death to the peers: they go on without the rank. */
TEST_RANKS_OVER_BOTH(close_without_leave_is_a_death, 3)
{
	struct covey_result res;
	int64_t value = 1;

	must(!covey_allreduce(&value, &value, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &res), "first");
	if (m->rank == 1) {
		m->no_leave = 1;
		return;
	}
	for (int i = 0; i < 50; i++) {
		value = 1;
		must(!covey_allreduce(&value, &value, 1, COVEY_INT64, COVEY_SUM, m->group, NULL, &res), "operation %d",
		     i);
		must(value == covey_mask_count(&res.mask) && !covey_mask_has(&res.mask, 1), "operation %d sums to %lld",
		     i, (long long)value);
	}
}

HARNESS_MAIN(.name = "collectives/works")
