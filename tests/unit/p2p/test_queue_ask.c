/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of a device's threads that post to a ring, few read what the host says: over PCIe reads of one word come one after the
 * other. Lanes of a step post at one time, so all see one head: here they do, since what shows it to them is the test's.
 */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "queue_port.h"

static const uint64_t *watched[3]; /* words of the host */
static unsigned reads;
static const uint64_t *head_at;
static uint64_t head_seen;

static uint64_t counted_load(const uint64_t *at)
{
	for (int i = 0; i < 3; i++)
		reads += at == watched[i];
	return cvy_q_load(at);
}

static uint64_t peek_together(const uint64_t *at)
{
	return at == head_at ? head_seen : cvy_q_peek(at);
}
#define cvy_q_load counted_load
#define cvy_q_peek peek_together
#include "queues.h"

#define DEPTH 8192
#define LANES 128
#define EVERY 64

static uint64_t stop;
static struct cvy_proxy *proxy;
static struct cvy_queue queue;

static int link_post(void *ctx, const struct cvy_ring_command *c)
{
	(void)ctx;
	return c->value == 666 ? COVEY_ERR_IO : 0;
}

static void link_flush(void *ctx)
{
	(void)ctx;
}

static uint64_t link_done(void *ctx, uint64_t *status)
{
	(void)ctx;
	*status = 0;
	return 0;
}

static void open_ring(void)
{
	struct cvy_proxy_args args = { .depth = DEPTH, .queues = 1, .wait_ticks = 1000000000ull, .abort = &stop };
	struct cvy_proxy_link link = {
		.local_bytes = 64, .remote_bytes = 64, .post = link_post, .flush = link_flush, .done = link_done
	};

	stop = reads = 0;
	ck_assert_int_eq(cvy_proxy_open(&args, &proxy), 0);
	ck_assert_int_eq(cvy_proxy_attach(proxy, 0, &link), 0);
	cvy_proxy_queue(proxy, 0, &queue);
	queue.ring.look_every = EVERY;
	head_at = &queue.words->head;
	watched[0] = queue.abort;
	watched[1] = queue.ring.status;
	watched[2] = queue.ring.tail;
}

TEST(lanes_that_see_one_head_do_not_all_read)
{
	open_ring();
	for (int step = 0; step < 4; step++) {
		head_seen = (uint64_t)step * LANES;
		reads = 0;
		for (int lane = 0; lane < LANES; lane++)
			ck_assert_int_eq(cvy_queue_signal(&queue, 0, 1), step * LANES + lane + 1);
		ck_assert_uint_eq(reads, LANES / EVERY);
	}
	cvy_proxy_close(proxy);
}

/* It is posted as if nothing were; who waits for it hears of the abort word (0), and of a queue that has failed (1). */
TEST_LOOP(who_waits_is_told, 0, 2)
{
	int64_t ticket;

	open_ring();
	head_seen = 0;
	if (_i) {
		ck_assert_int_gt(cvy_queue_signal(&queue, 0, 666), 0);
		while (!cvy_proxy_status(proxy, 0))
			;
	} else {
		stop = 1;
	}
	ticket = cvy_queue_signal(&queue, 0, 1);
	ck_assert_int_gt(ticket, 0);
	ck_assert_int_eq(cvy_queue_await(&queue, ticket), _i ? CVY_QUEUE_FAILED : CVY_QUEUE_ABORTED);
	cvy_proxy_close(proxy);
}

SUITE_MAIN(.name = "p2p/queue_ask")
