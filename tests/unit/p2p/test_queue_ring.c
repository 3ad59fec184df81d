/* SPDX-License-Identifier: Apache-2.0 */
/*
 * labels: tsan
 * Commands through the ring to the proxy's thread: every bit of a command comes out again, halves of different laps
 * are no command, posters share rings that go round often, and what ends a wait does so. The link here is a copy
 * in memory, with as much room and as many failures as a test wants.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "queues.h"

#define BYTES 65536
#define WAIT_NS 2000000000000ull /* never: a poster may find the ring full for long on a busy machine */
#define POSTERS 3
#define EACH 400 /* a command waits for a thread's turn once or more, and that is long where many want the cores */

/* Posts are done when flushed, unless held. */
struct link {
	uint8_t near[BYTES], far[BYTES];
	uint64_t posted, done, room, status;
	int hold;
};

static struct link links[2];
static struct cvy_proxy *proxy;
static struct cvy_queue q[2];
static uint64_t stop;

static int link_post(void *ctx, const struct cvy_ring_command *c)
{
	struct link *l = ctx;

	if (l->room && l->posted - l->done >= l->room)
		return COVEY_ERR_AGAIN;
	if (c->op == CVY_RING_PUT)
		memcpy(l->far + c->remote, l->near + c->local, c->bytes);
	else if (c->op == CVY_RING_ADD)
		__atomic_fetch_add((uint64_t *)(l->far + c->remote), c->value, __ATOMIC_ACQ_REL);
	else
		cvy_q_store((uint64_t *)(l->far + c->remote), c->value);
	l->posted++;
	return 0;
}

static void link_flush(void *ctx)
{
	(void)ctx;
}

static uint64_t link_done(void *ctx, uint64_t *status)
{
	struct link *l = ctx;

	if (!__atomic_load_n(&l->hold, __ATOMIC_ACQUIRE))
		l->done = l->posted;
	*status = __atomic_load_n(&l->status, __ATOMIC_ACQUIRE);
	return l->done;
}

static void attach(uint32_t i, struct link *l)
{
	struct cvy_proxy_link link = { .ctx = l,
				       .local_bytes = BYTES,
				       .remote_bytes = BYTES,
				       .post = link_post,
				       .flush = link_flush,
				       .done = link_done };

	ck_assert_int_eq(cvy_proxy_attach(proxy, i, &link), 0);
}

static void open_ring(uint32_t depth)
{
	struct cvy_proxy_args args = { .depth = depth, .queues = 4, .wait_ticks = WAIT_NS, .abort = &stop };

	memset(links, 0, sizeof(links));
	stop = 0;
	ck_assert_int_eq(cvy_proxy_open(&args, &proxy), 0);
	for (uint32_t i = 0; i < 2; i++) {
		attach(i, &links[i]);
		cvy_proxy_queue(proxy, i, &q[i]);
	}
}

static void close_ring(void)
{
	cvy_proxy_close(proxy);
}

TEST(each_bit_of_a_command_comes_out)
{
	struct cvy_ring_command c, out;
	uint64_t w[2], x = 88172645463325252ull;

	for (int i = 0; i < 20000; i++) {
		uint64_t lap = i % 2 ? CVY_RING_LAP : 0;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		c.op = i % 3 == 0 ? CVY_RING_PUT : i % 3 == 1 ? CVY_RING_SIGNAL : CVY_RING_ADD;
		c.queue = (uint32_t)(x >> 11) % CVY_RING_QUEUES;
		c.remote = (x * 3) % CVY_RING_REMOTE_MAX;
		c.local = c.op == CVY_RING_PUT ? (x * 5) % CVY_RING_LOCAL_MAX : 0;
		c.bytes = c.op == CVY_RING_PUT ? (x * 7) % (CVY_RING_PUT_MAX + 1) : 0;
		c.value = c.op == CVY_RING_PUT ? 0 : x;
		cvy_ring_pack(&c, lap, w);
		ck_assert_uint_eq(w[0] & CVY_RING_LAP, lap);
		ck_assert_uint_eq(w[1] & CVY_RING_LAP, lap);
		cvy_ring_unpack(w, &out);
		ck_assert_int_eq(out.op, c.op);
		ck_assert_uint_eq(out.queue, c.queue);
		ck_assert_uint_eq(out.remote, c.remote);
		ck_assert_uint_eq(out.local, c.local);
		ck_assert_uint_eq(out.bytes, c.bytes);
		ck_assert_uint_eq(out.value, c.value);
	}
}

/* Only one half is there, first the one, then the other: no command until both are. */
TEST_LOOP(half_a_command_is_none, 0, 2)
{
	struct cvy_ring_command c = { .op = CVY_RING_SIGNAL, .queue = 0, .remote = 64, .value = 5 };
	uint64_t w[2];

	open_ring(4);
	cvy_ring_pack(&c, CVY_RING_LAP, w);
	cvy_q_store(&q[0].ring.slots[_i], w[_i]);
	for (int i = 0; i < 200; i++)
		cvy_q_pause();
	ck_assert_uint_eq(cvy_q_load(q[0].ring.tail), 0);
	cvy_q_store(&q[0].ring.slots[!_i], w[!_i]);
	while (!cvy_q_load(q[0].ring.tail)) /* the test's own time bounds it */
		cvy_q_pause();
	while (cvy_q_load((uint64_t *)(links[0].far + 64)) != 5)
		cvy_q_pause();
}

/* NULL, or what went wrong. */
static void *poster(void *arg)
{
	uint64_t me = (uint64_t)(uintptr_t)arg, at = 1024 + me * 256;
	struct cvy_queue mine = q[me % 2];
	struct link *l = &links[me % 2];
	static char wrong[POSTERS][120];

	for (uint64_t i = 1; i <= EACH; i++) {
		int64_t added = cvy_queue_add64(&mine, 0, 1), t;
		int waited;

		*(uint64_t *)(l->near + at) = i;
		t = cvy_queue_put_signal(&mine, at, at, 8, at + 64, CVY_RING_LAP | i);
		waited = cvy_queue_await(&mine, t);
		if (added >= 0 && t >= 0 && waited == 1 && *(uint64_t *)(l->far + at) == i &&
		    cvy_q_load((uint64_t *)(l->far + at + 64)) == (CVY_RING_LAP | i))
			continue;
		snprintf(wrong[me], sizeof(wrong[me]),
			 "poster %d, %d: add %lld, put %lld, await %d, byte %llu, signal %llx", (int)me, (int)i,
			 (long long)added, (long long)t, waited, (unsigned long long)*(uint64_t *)(l->far + at),
			 (unsigned long long)cvy_q_load((uint64_t *)(l->far + at + 64)));
		return wrong[me];
	}
	return NULL;
}

TEST_LOOP(posters_share_a_ring, 0, 2)
{
	pthread_t thread[POSTERS];
	void *result;

	open_ring(_i ? 64 : 4);
	links[0].room = links[1].room = 3;
	for (uintptr_t i = 0; i < POSTERS; i++)
		ck_assert(!pthread_create(&thread[i], NULL, poster, (void *)i));
	for (int i = 0; i < POSTERS; i++) {
		pthread_join(thread[i], &result);
		ck_assert_msg(!result, "%s", (char *)result);
	}
	ck_assert_uint_eq(*(uint64_t *)links[0].far + *(uint64_t *)links[1].far, POSTERS * EACH);
}

/* One queue's link does nothing more; the other's tickets still complete. */
TEST(one_dead_peer_holds_up_no_other)
{
	int64_t dead, t;

	open_ring(16);
	__atomic_store_n(&links[0].hold, 1, __ATOMIC_RELEASE);
	dead = cvy_queue_signal(&q[0], 0, 1);
	ck_assert_int_gt(dead, 0);
	for (uint64_t i = 1; i <= 200; i++) {
		t = cvy_queue_signal(&q[1], 0, i);
		ck_assert_int_eq(cvy_queue_await(&q[1], t), 1);
	}
	ck_assert_int_eq(cvy_queue_test(&q[0], dead), 0);
	__atomic_store_n(&links[0].status, 0x15, __ATOMIC_RELEASE);
	ck_assert_int_eq(cvy_queue_await(&q[0], dead), CVY_QUEUE_FAILED);
	ck_assert_uint_eq(cvy_proxy_status(proxy, 0), 0x15);
	ck_assert_int_eq(cvy_queue_signal(&q[0], 0, 1), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_queue_await(&q[1], cvy_queue_signal(&q[1], 0, 201)), 1);
}

TEST(a_full_ring_presses_back)
{
	uint64_t since;
	int64_t last = 0;

	open_ring(8);
	links[0].room = 2;
	__atomic_store_n(&links[0].hold, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 10; i++) /* 2 on the link, 8 in the ring */
		last = cvy_queue_signal(&q[0], 0, 1);
	ck_assert_int_eq(last, 10);
	q[0].wait_ticks = 30000000;
	since = cvy_q_ticks();
	ck_assert_int_eq(cvy_queue_signal(&q[0], 0, 1), CVY_QUEUE_FULL);
	ck_assert_uint_ge(cvy_q_ticks() - since, 30000000);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	ck_assert_int_eq(cvy_queue_await(&q[0], last), CVY_QUEUE_ABORTED);
	ck_assert_int_eq(cvy_queue_signal(&q[0], 0, 1), CVY_QUEUE_ABORTED);
	__atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&links[0].hold, 0, __ATOMIC_RELEASE);
	q[0].wait_ticks = WAIT_NS;
	ck_assert_int_eq(cvy_queue_await(&q[0], last), 1);
	ck_assert_int_eq(cvy_queue_put(&q[0], 0, 0, BYTES + 1), CVY_QUEUE_RANGE);
}

/* A queue whose link was taken away fails; another link begins with a clean status. */
TEST(links_are_replaced)
{
	int64_t t;

	open_ring(8);
	ck_assert_int_eq(cvy_queue_await(&q[0], cvy_queue_signal(&q[0], 8, 1)), 1);
	cvy_proxy_detach(proxy, 0);
	t = cvy_queue_signal(&q[0], 8, 2);
	ck_assert_int_eq(t, CVY_QUEUE_FAILED);
	attach(0, &links[1]);
	t = cvy_queue_signal(&q[0], 8, 3);
	ck_assert_int_eq(cvy_queue_await(&q[0], t), 1);
	ck_assert_uint_eq(*(uint64_t *)(links[0].far + 8), 1);
	ck_assert_uint_eq(*(uint64_t *)(links[1].far + 8), 3);
}

SUITE_MAIN(.name = "p2p/queue_ring", .teardown = close_ring)
