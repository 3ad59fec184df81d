/* SPDX-License-Identifier: Apache-2.0 */
/* labels: tsan */
/* The event loop: order of posts, timers, removal inside callbacks, the tick. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../../suite.h"
#include "clock.h"
#include "covey.h"
#include "loop.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

static struct cvy_loop *loop;
static int ticks, fired[64], nfired;
static const int tick_ms = 10000, short_tick_ms = 1;

static void setup(void)
{
	ticks = nfired = 0;
	ck_assert_int_eq(cvy_loop_new(&loop), 0);
}

static void teardown(void)
{
	cvy_loop_free(loop);
}

static void count_tick(void *ctx, uint64_t now_ns)
{
	ticks++;
}

static void note(void *ctx, void *arg)
{
	fired[nfired++] = (int)(intptr_t)arg;
}

static void stop(void *ctx, void *arg)
{
	cvy_loop_stop(loop);
}

static void *post_many(void *arg)
{
	for (intptr_t i = 0; i < 50; i++)
		ck_assert_int_eq(cvy_loop_post(loop, note, NULL, (void *)i), 0);
	cvy_loop_post(loop, stop, NULL, NULL);
	return arg;
}

TEST(posts_of_another_thread_run_in_order)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, post_many, NULL), 0);
	cvy_loop_run(loop, count_tick, NULL, &tick_ms);
	pthread_join(thread, NULL);
	ck_assert_int_eq(nfired, 50);
	for (int i = 0; i < 50; i++)
		ck_assert_int_eq(fired[i], i);
	ck_assert_int_ge(ticks, 1);
	ck_assert_int_eq(cvy_loop_post(loop, note, NULL, NULL), COVEY_ERR_CLOSED);
}

static void note_timer(void *ctx)
{
	fired[nfired++] = (int)(intptr_t)ctx;
	if (nfired == 19)
		cvy_loop_stop(loop);
}

TEST(timers_fire_in_order_of_deadline_and_not_when_cancelled)
{
	uint64_t now = cvy_now_ns();
	struct cvy_timer *timer[20];

	/* 7 is prime to 20: every deadline once, in a shuffled order of setting */
	for (intptr_t i = 0; i < 20; i++)
		timer[i] = cvy_loop_timer(loop, now + (uint64_t)(i * 7 % 20) * 1000, note_timer, (void *)(i * 7 % 20));
	cvy_loop_cancel(timer[3]); /* deadline 1 */
	cvy_loop_cancel(NULL);
	cvy_loop_run(loop, count_tick, NULL, &tick_ms);
	ck_assert_int_eq(nfired, 19);
	for (int i = 0; i < 19; i++)
		ck_assert_int_eq(fired[i], i ? i + 1 : 0);
}

static struct cvy_watch *watches[2];

static void remove_both(void *ctx, uint32_t events)
{
	fired[nfired++] = (int)(intptr_t)ctx;
	for (int i = 0; i < 2; i++) {
		cvy_loop_unwatch(watches[i]);
		watches[i] = NULL;
	}
	cvy_loop_stop(loop);
}

TEST(watch_removed_in_a_callback_of_its_batch_stays_silent)
{
	int a[2], b[2];

	ck_assert(!pipe(a) && !pipe(b));
	ck_assert(write(a[1], "x", 1) == 1 && write(b[1], "x", 1) == 1);
	ck_assert_int_eq(cvy_loop_watch(loop, a[0], EPOLLIN, remove_both, (void *)1, &watches[0]), 0);
	ck_assert_int_eq(cvy_loop_watch(loop, b[0], EPOLLIN, remove_both, (void *)2, &watches[1]), 0);
	cvy_loop_run(loop, count_tick, NULL, &tick_ms);
	ck_assert_int_eq(nfired, 1);
}

static void tick_until_three(void *ctx, uint64_t now_ns)
{
	if (++ticks == 3)
		cvy_loop_stop(loop);
}

TEST(tick_comes_without_events_and_not_early)
{
	uint64_t before = cvy_now_ns();

	cvy_loop_run(loop, tick_until_three, NULL, &short_tick_ms);
	ck_assert_int_eq(ticks, 3);
	ck_assert_uint_ge(cvy_now_ns() - before, 2 * CVY_MS); /* the first falls on the common beat */
}

static int eager, patient;

static void fire_again(void *ctx)
{
	if (++eager == 1000)
		cvy_loop_stop(loop);
	cvy_loop_timer(loop, 1, fire_again, ctx);
}

static void fire_once(void *ctx)
{
	patient = eager;
	cvy_loop_stop(loop);
}

TEST(a_timer_set_for_the_past_again_and_again_holds_up_no_other)
{
	eager = patient = 0;
	cvy_loop_timer(loop, 1, fire_again, NULL);
	cvy_loop_timer(loop, 2, fire_once, NULL);
	cvy_loop_run(loop, count_tick, NULL, &tick_ms);
	ck_assert_int_eq(patient, 1);
	ck_assert_int_eq(eager, 1);
}

TEST(stop_before_run_ends_it_and_earlier_posts_still_run)
{
	cvy_loop_post(loop, note, NULL, (void *)5);
	cvy_loop_stop(loop);
	cvy_loop_run(loop, count_tick, NULL, &tick_ms);
	ck_assert_int_eq(nfired, 1);
	ck_assert_int_eq(ticks, 0);
}

SUITE_MAIN(.name = "base/loop", .setup = setup, .teardown = teardown)
