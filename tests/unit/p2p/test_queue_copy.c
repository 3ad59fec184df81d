/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands as copies: what is put arrives where and as it was posted, a signal behind the puts before it; many puts are
 * few copies while others are under way; a ticket is done when its copies are, and a copier that fails fails the queue.
 * The copier here is the test's: it notes what is asked for and copies when the test lets it.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "queues.h"

#define BYTES 65536
#define CALLS 4096

struct call {
	uint64_t to, from, value; /* from 0: a store */
	size_t bytes, rows, stride;
	uint64_t marks; /* asked for before */
};

struct engine {
	struct call call[CALLS];
	unsigned calls, made; /* asked for, made */
	uint64_t marks, reached;
	int broken;
};

static uint8_t near_end[BYTES], far_end[BYTES];
static struct engine engine;
static struct cvy_copy_sender *sender;
static struct cvy_proxy_link link_;

static int ask(struct call c)
{
	if (engine.broken)
		return COVEY_ERR_IO;
	ck_assert_uint_lt(engine.calls, CALLS);
	c.marks = engine.marks;
	engine.call[engine.calls++] = c;
	return 0;
}

static int ask_copy(void *ctx, uint64_t to, uint64_t from, size_t bytes, size_t rows, size_t stride)
{
	(void)ctx;
	ck_assert(rows == 1 || stride >= bytes);
	return ask((struct call){ .to = to, .from = from, .bytes = bytes, .rows = rows, .stride = stride });
}

static int ask_store(void *ctx, uint64_t to, uint64_t value)
{
	(void)ctx;
	return ask((struct call){ .to = to, .value = value });
}

static int ask_mark(void *ctx)
{
	(void)ctx;
	engine.marks++;
	ck_assert_uint_le(engine.marks - engine.reached, CVY_COPIER_MARKS);
	return engine.broken ? COVEY_ERR_IO : 0;
}

static int how_far(void *ctx, uint64_t *marks)
{
	(void)ctx;
	*marks = engine.reached;
	return engine.broken ? COVEY_ERR_IO : 0;
}

/* The copies of one mark are made. */
static void go(void)
{
	for (; engine.made < engine.calls && engine.call[engine.made].marks == engine.reached; engine.made++) {
		const struct call *c = &engine.call[engine.made];

		for (size_t i = 0; i < c->rows; i++)
			memcpy((uint8_t *)(uintptr_t)c->to + i * c->stride,
			       (const uint8_t *)(uintptr_t)c->from + i * c->stride, c->bytes);
		if (!c->from)
			memcpy((uint8_t *)(uintptr_t)c->to, &c->value, 8);
	}
	engine.reached++;
}

static void open_sender(uint64_t quiet_ns)
{
	struct cvy_copies copies = { .copier = { NULL, ask_copy, ask_store, ask_mark, how_far },
				     .from = (uint64_t)(uintptr_t)near_end,
				     .to = (uint64_t)(uintptr_t)far_end,
				     .quiet_ns = quiet_ns };

	memset(&engine, 0, sizeof(engine));
	memset(far_end, 0, sizeof(far_end));
	for (int i = 0; i < BYTES; i++)
		near_end[i] = (uint8_t)(1 + i % 251);
	ck_assert_int_eq(cvy_copy_sender_open(&copies, BYTES, &sender), 0);
	cvy_copy_sender_link(sender, &link_);
}

static void close_sender(void)
{
	cvy_copy_sender_close(sender);
}

static int put(uint64_t local, uint64_t remote, uint64_t bytes)
{
	struct cvy_ring_command c = { .op = CVY_RING_PUT, .local = local, .remote = remote, .bytes = bytes };

	return link_.post(link_.ctx, &c);
}

static int tell(uint64_t at, uint64_t value)
{
	struct cvy_ring_command c = { .op = CVY_RING_SIGNAL, .remote = at, .value = value };

	return link_.post(link_.ctx, &c);
}

static uint64_t done(uint64_t *status)
{
	return link_.done(link_.ctx, status);
}

TEST(a_batch_is_few_copies_and_all_arrives)
{
	static const int order[] = { 5, 0, 3, 1, 4, 2, 6, 7 };
	uint64_t status;

	open_sender(0);
	for (int i = 0; i < 8; i++) /* one size, evenly apart, in any order */
		ck_assert_int_eq(put((uint64_t)order[i] * 1024, (uint64_t)order[i] * 1024, 128), 0);
	for (int i = 0; i < 4; i++) /* these touch */
		ck_assert_int_eq(put(20000 + (uint64_t)i * 100, 20000 + (uint64_t)i * 100, 100), 0);
	ck_assert_int_eq(put(30000, 40000, 77), 0); /* alone; elsewhere than here */
	ck_assert_int_eq(put(50000, 50000, 0), 0);  /* nothing */
	ck_assert_uint_eq(engine.calls, 0);
	link_.flush(link_.ctx);
	ck_assert_uint_eq(engine.calls, 3);
	ck_assert_uint_eq(done(&status), 0);
	go();
	ck_assert_uint_eq(done(&status), 14);
	ck_assert_uint_eq(status, 0);
	for (int i = 0; i < BYTES; i++) {
		int of_rows = i < 8192 && i % 1024 < 128, joined = i >= 20000 && i < 20400;
		int apart = i >= 40000 && i < 40077;

		ck_assert_int_eq(far_end[i], of_rows || joined ? near_end[i] : apart ? near_end[i - 10000] : 0);
	}
}

TEST(a_signal_stands_between_the_puts_around_it)
{
	uint64_t status;

	open_sender(0);
	ck_assert_int_eq(put(512, 512, 64), 0);
	ck_assert_int_eq(put(0, 0, 64), 0);
	ck_assert_int_eq(tell(8192, 7), 0);
	ck_assert_int_eq(put(64, 64, 64), 0); /* would join the first */
	ck_assert_int_eq(tell(8192, 8), 0);
	link_.flush(link_.ctx);
	ck_assert_uint_eq(engine.calls, 4);
	ck_assert_uint_eq(engine.call[0].rows, 2);
	ck_assert_uint_eq(engine.call[1].value, 7);
	ck_assert_uint_eq(engine.call[2].bytes, 64);
	ck_assert_uint_eq(engine.call[3].value, 8);
	go();
	ck_assert_uint_eq(done(&status), 5);
}

TEST(puts_that_overlap_keep_their_order)
{
	open_sender(0);
	ck_assert_int_eq(put(1000, 500, 100), 0);
	ck_assert_int_eq(put(2000, 450, 100), 0);
	ck_assert_int_eq(put(3000, 500, 10), 0);
	link_.flush(link_.ctx);
	ck_assert_uint_eq(engine.calls, 3);
	go();
	ck_assert_int_eq(far_end[450], near_end[2000]);
	ck_assert_int_eq(far_end[505], near_end[3005]);
	ck_assert_int_eq(far_end[520], near_end[2070]);
	ck_assert_int_eq(far_end[599], near_end[1099]);
}

/* Until then nothing goes (0), but where no more can be held; when it is, all at once (1). */
TEST_LOOP(commands_are_held_until_it_is_quiet, 0, 2)
{
	const uint64_t hour_ns = 3600000000000ull;
	uint64_t n = 0, status;

	open_sender(_i ? 1000 : hour_ns);
	while (!engine.calls) {
		ck_assert_int_eq(put(n * 16, n * 16, 8), 0);
		n++;
		do { /* (1): until the time has passed */
			link_.flush(link_.ctx);
			done(&status);
		} while (_i && !engine.calls);
	}
	if (_i)
		ck_assert_uint_eq(n, 1);
	else
		ck_assert_uint_gt(n, 100);
	ck_assert_uint_eq(engine.calls, 1);
	ck_assert_uint_eq(engine.call[0].rows, n);
	go();
	ck_assert_uint_eq(done(&status), n);
}

/* Two batches are under way: the rest waits, presses back when there is no room, and goes as one. */
TEST(what_comes_meanwhile_is_held)
{
	uint64_t status, n = 0;

	open_sender(0);
	for (int i = 0; i < CVY_COPIER_MARKS; i++, n++) {
		ck_assert_int_eq(put(n * 16, n * 16, 8), 0);
		link_.flush(link_.ctx);
	}
	while (!put(n * 16, n * 16, 8)) {
		n++;
		link_.flush(link_.ctx);
	}
	ck_assert_int_eq(put(n * 16, n * 16, 8), COVEY_ERR_AGAIN);
	ck_assert_uint_eq(engine.calls, CVY_COPIER_MARKS);
	ck_assert_uint_eq(done(&status), 0);
	go();
	ck_assert_uint_eq(done(&status), 1);
	ck_assert_uint_eq(engine.calls, CVY_COPIER_MARKS + 1);
	ck_assert_uint_eq(engine.call[CVY_COPIER_MARKS].rows, n - CVY_COPIER_MARKS);
	while (engine.reached < engine.marks)
		go();
	ck_assert_uint_eq(done(&status), n);
}

TEST(what_cannot_be_is_refused)
{
	struct cvy_ring_command add = { .op = CVY_RING_ADD, .remote = 0, .value = 1 };

	open_sender(0);
	ck_assert_int_eq(put(0, BYTES - 8, 16), COVEY_ERR_INVAL);
	ck_assert_int_eq(put(BYTES, 0, 1), COVEY_ERR_INVAL);
	ck_assert_int_eq(tell(BYTES, 1), COVEY_ERR_INVAL);
	ck_assert_int_eq(tell(4, 1), COVEY_ERR_INVAL);
	ck_assert_int_eq(link_.post(link_.ctx, &add), COVEY_ERR_INVAL);
}

TEST_LOOP(a_copier_that_fails_fails_the_queue, 0, 2)
{
	uint64_t status;

	open_sender(0);
	ck_assert_int_eq(put(0, 0, 8), 0);
	link_.flush(link_.ctx);
	go();
	ck_assert_uint_eq(done(&status), 1);
	ck_assert_int_eq(put(8, 8, 8), 0);
	engine.broken = 1;
	if (_i)
		link_.flush(link_.ctx);
	ck_assert_uint_eq(done(&status), 1);
	ck_assert_uint_ne(status, 0);
	ck_assert_int_eq(put(16, 16, 8), COVEY_ERR_PEER);
}

/* Any puts and signals, laid beside what plain copies in their order give. */
TEST_LOOP(whatever_is_posted_arrives_as_posted, 0, 10)
{
	static uint8_t expected[BYTES];
	uint64_t x = 88172645463325252ull + (uint64_t)_i, status;
	int64_t ticket = 0;

	open_sender(0);
	memset(expected, 0, sizeof(expected));
	for (int i = 0; i < 2000; i++) {
		uint64_t bytes, local, remote;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		bytes = x >> 8 & 0x1f8;
		remote = (x >> 20 & 0x7f8) * 16;
		local = x >> 40 & 1 ? remote : (x >> 41 & 0x7f8) * 8;
		if (x >> 60 == 0) {
			ck_assert_int_eq(tell(remote, x), 0);
			memcpy(expected + remote, &x, 8);
		} else {
			ck_assert_int_eq(put(local, remote, bytes), 0);
			memcpy(expected + remote, near_end + local, bytes);
		}
		ticket++;
		if (x >> 50 & 7)
			continue;
		link_.flush(link_.ctx);
		while (x >> 53 & 1 && engine.reached < engine.marks)
			go();
		done(&status);
	}
	while (done(&status) < (uint64_t)ticket)
		go();
	ck_assert(!memcmp(expected, far_end, BYTES));
}

SUITE_MAIN(.name = "p2p/queue_copy", .teardown = close_sender)
