/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A poster that gives up on entries that it has claimed leaves a hole in the ring, behind which the proxy takes nothing.
 * Others claim a whole ring of entries in the moment between a poster's look and its own addition: here, always, since
 * the addition is the test's.
 */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "queue_port.h"

static uint64_t others; /* entries that they claim in that moment */
static uint64_t *gone;	/* and where they say that one of them has given up; NULL: none has */

static uint64_t take_behind_others(uint64_t *at, uint64_t n)
{
	uint64_t before = others;

	others = 0;
	if (gone)
		*gone = 1;
	return cvy_q_take(at, before + n) + before;
}
#define cvy_q_take take_behind_others
#include "queues.h"

#define DEPTH 8
#define WAIT_NS 20000000ull

static uint64_t stop;
static int posts;

static int link_post(void *ctx, const struct cvy_ring_command *c)
{
	(void)ctx, (void)c;
	posts++;
	return 0;
}

static void link_flush(void *ctx)
{
	(void)ctx;
}

static uint64_t link_done(void *ctx, uint64_t *status)
{
	(void)ctx;
	*status = 0;
	return 0; /* never */
}

/* Two queues of one ring, which the second lets stand still: *before is a ticket of it that is under way. */
static struct cvy_proxy *open_ring(struct cvy_queue q[2], int64_t *before)
{
	struct cvy_proxy_args args = { .depth = DEPTH, .queues = 2, .wait_ticks = WAIT_NS, .abort = &stop };
	struct cvy_proxy_link link = {
		.local_bytes = 64, .remote_bytes = 64, .post = link_post, .flush = link_flush, .done = link_done
	};
	struct cvy_proxy *proxy;

	stop = 0;
	ck_assert_int_eq(cvy_proxy_open(&args, &proxy), 0);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(cvy_proxy_attach(proxy, i, &link), 0);
		cvy_proxy_queue(proxy, i, &q[i]);
	}
	q[1].wait_ticks = 1000 * WAIT_NS; /* who finds out by its own time alone is too late for this test */
	*before = cvy_queue_signal(&q[1], 0, 1);
	ck_assert_int_gt(*before, 0);
	return proxy;
}

/* Both ways of giving up: no room in time (0), the abort word (1). */
TEST_LOOP(a_hole_is_a_status_of_all_queues_of_the_ring, 0, 2)
{
	struct cvy_queue q[2];
	int64_t before;
	struct cvy_proxy *proxy = open_ring(q, &before);

	others = DEPTH;
	if (_i) {
		q[0].ring.look_every = 64; /* the word is not looked at before */
		q[0].wait_ticks = q[1].wait_ticks;
		stop = 1;
		ck_assert_int_eq(cvy_queue_signal(&q[0], 0, 1), CVY_QUEUE_ABORTED);
		stop = 0;
	} else {
		ck_assert_int_eq(cvy_queue_signal(&q[0], 0, 1), CVY_QUEUE_FULL);
	}
	ck_assert_uint_eq(cvy_queue_status(&q[0]), CVY_QUEUE_STATUS_ORDER);
	ck_assert_int_eq(cvy_queue_signal(&q[1], 0, 2), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_queue_await(&q[1], before), CVY_QUEUE_FAILED);
	cvy_proxy_close(proxy);
}

/* Who has claimed and waits while another gives up does not wait for its own time. */
TEST(who_waits_behind_a_hole_is_told)
{
	struct cvy_queue q[2];
	int64_t before;
	struct cvy_proxy *proxy = open_ring(q, &before);

	others = DEPTH;
	gone = &q[0].words->status;
	ck_assert_int_eq(cvy_queue_signal(&q[1], 0, 2), CVY_QUEUE_FAILED);
	cvy_proxy_close(proxy);
}

SUITE_MAIN(.name = "p2p/queue_hole")
