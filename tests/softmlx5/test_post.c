/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posters of queue/queue.h on the strict adapter: each way to make a queue, bells rung by posters and by a thread for
 * them, small rings that go round very often, several posters at a time, random delays; then what ends a wait.
 */
#include <pthread.h>

#include "../suite.h"
#include "pairs.h"

#define POSTERS 3
#define WORDS 64 /* signal words in the far memory, one per poster and step */

static struct pairs p;

__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

/* libmlx5 itself loses an address handle whose creation the kernel refused. */
const char *__lsan_default_suppressions(void)
{
	return "leak:libmlx5.so";
}

static uint64_t *far_word(size_t at)
{
	return (uint64_t *)(p.memory[1] + at);
}

/* All ways: verbs or DEVX, direct or assisted. */
static void open_way(int way, uint32_t depth)
{
	pairs_open(&p, way & 1 ? CVY_PAIR_DEVX : CVY_PAIR_VERBS, way >> 1, depth);
}

static void expect_strict(void)
{
	struct softmlx5_stats s;

	softmlx5_stats(&s);
	ck_assert_msg(softmlx5_found() == 0, "%s", s.last);
	ck_assert_int_eq(cvy_pair_check(p.pair[0], 1), 0);
}

TEST_LOOP(each_call_arrives, 0, 4)
{
	int64_t t;

	open_way(_i, 16);
	memcpy(p.memory[0] + 100, "from here", 9);
	t = cvy_queue_put(&p.q, 100, 300, 9);
	ck_assert_int_eq(t, 1);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), 1);
	ck_assert_mem_eq(p.memory[1] + 300, "from here", 9);
	t = cvy_queue_put_signal(&p.q, 100, 400, 9, 800, 0xfedcba9876543210ull);
	ck_assert_int_eq(t, 3); /* two entries */
	ck_assert_int_eq(cvy_queue_await(&p.q, t), 1);
	ck_assert_mem_eq(p.memory[1] + 400, "from here", 9);
	ck_assert_uint_eq(*far_word(800), 0xfedcba9876543210ull);
	ck_assert_int_eq(cvy_queue_await(&p.q, cvy_queue_signal(&p.q, 808, 7)), 1);
	ck_assert_uint_eq(*far_word(808), 7);
	ck_assert_int_eq(cvy_queue_await(&p.q, cvy_queue_add64(&p.q, 808, 0x100000000ull)), 1);
	ck_assert_uint_eq(*far_word(808), 0x100000007ull);
	ck_assert_int_eq(cvy_queue_await(&p.q, cvy_queue_put(&p.q, 0, 0, 0)), 1);
	expect_strict();
	pairs_close(&p);
}

/* Each has a register of its own that the adapter listens to; made of what was reserved, or not. */
TEST_LOOP(both_ends_are_heard, 0, 8)
{
	struct cvy_queue back;

	open_way(_i & 3, 16);
	if (_i & 4) {
		struct cvy_pair_args args = { .mode = CVY_PAIR_DEVX, .depth = 32, .wait_ticks = PAIRS_WAIT_NS };
		struct cvy_pair_name name[2];

		ck_assert_int_eq(cvy_nic_reserve(p.nic, 3, 32, 1), 0);
		args.abort = &p.abort;
		for (int i = 0; i < 2; i++) {
			cvy_pair_close(p.pair[i]);
			args.local = args.window = p.region[i];
			ck_assert_int_eq(cvy_pair_open(p.nic, &args, &p.pair[i]), 0);
			cvy_pair_name(p.pair[i], &name[i]);
		}
		for (int i = 0; i < 2; i++)
			ck_assert_int_eq(cvy_pair_connect(p.pair[i], &name[!i]), 0);
		cvy_pair_queue(p.pair[0], &p.q);
		ck_assert_int_eq(cvy_pair_idle(p.pair[0]), 1); /* nothing was posted */
	}
	cvy_pair_queue(p.pair[1], &back);
	ck_assert_int_eq(cvy_queue_await(&p.q, cvy_queue_signal(&p.q, 8, 1)), 1);
	ck_assert_int_eq(cvy_queue_await(&back, cvy_queue_signal(&back, 8, 2)), 1);
	ck_assert_uint_eq(*far_word(8), 1);
	ck_assert_uint_eq(*(uint64_t *)(p.memory[0] + 8), 2);
	if (_i & 1) {
		ck_assert_int_eq(cvy_pair_idle(p.pair[0]), 1);
		ck_assert_uint_eq(cvy_pair_status(p.pair[0]), 0);
		softmlx5_silence(back.mlx5.qpn);
		ck_assert_int_gt(cvy_queue_signal(&p.q, 8, 3), 0);
		cvy_queue_flush(&p.q);
		while (!cvy_pair_status(p.pair[0])) /* nobody else looks */
			cvy_q_pause();
		ck_assert_int_eq(cvy_pair_idle(p.pair[0]), 1);
	}
	ck_assert_uint_eq(softmlx5_found(), 0);
	pairs_close(&p);
}

TEST(what_does_not_fit_is_refused)
{
	open_way(0, 16);
	ck_assert_int_eq(cvy_queue_put(&p.q, PAIRS_BYTES - 8, 0, 9), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_put(&p.q, 0, PAIRS_BYTES - 8, 9), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_put(&p.q, 0, UINT64_MAX - 3, 8), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_signal(&p.q, PAIRS_BYTES, 1), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_signal(&p.q, 12, 1), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_add64(&p.q, 14, 1), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_put_signal(&p.q, 0, 0, 8, 4, 1), CVY_QUEUE_RANGE);
	ck_assert_int_eq(cvy_queue_test(&p.q, 0), CVY_QUEUE_RANGE);
	ck_assert_uint_eq(p.q.words->head, 0); /* nothing was claimed */
	pairs_close(&p);
}

/* Round a ring of 16 or 64 until 16-bit indices have wrapped. */
TEST_LOOP(rings_go_round, 0, 4)
{
	uint64_t n = getenv("COVEY_TEST_ALL") ? 2000000 : 50000, i; /* each turn of a ring waits for a thread */
	int64_t t = 0;

	open_way(_i, _i & 1 ? 64 : 16);
	for (i = 1; i <= n; i++) {
		memcpy(p.memory[0], &i, 8);
		t = cvy_queue_put_signal(&p.q, 64, 4096, 32, 8 * (i % WORDS), i);
		ck_assert_int_eq(t, (int64_t)(2 * i));
		if (i % 5 == 0)
			cvy_queue_flush(&p.q);
	}
	ck_assert_int_eq(cvy_queue_await(&p.q, t), 1);
	for (i = n - WORDS + 1; i <= n; i++)
		ck_assert_uint_eq(*far_word(8 * (i % WORDS)), i);
	expect_strict();
	pairs_close(&p);
}

/* Each adds to one word, writes what it did into a line of its own, and signals how far it is. */
static void *poster(void *arg)
{
	uint64_t me = (uint64_t)(uintptr_t)arg, n = getenv("COVEY_TEST_ALL") ? 200000 : 500, at = 4096 + me * 512;
	struct cvy_queue q = p.q;

	for (uint64_t i = 1; i <= n; i++) {
		int64_t t = cvy_queue_add64(&q, 0, 1);

		if (t < 0)
			return (void *)(intptr_t)t;
		*(uint64_t *)(p.memory[0] + at) = i;
		t = cvy_queue_put_signal(&q, at, at, 64, at + 128, i);
		if (t < 0 || cvy_queue_await(&q, t) != 1)
			return (void *)(intptr_t)-100;
		if (*far_word(at) != i || *far_word(at + 128) != i)
			return (void *)(intptr_t)-101;
	}
	return (void *)(uintptr_t)n;
}

static void run_posters(void)
{
	pthread_t thread[POSTERS];
	uint64_t sum = 0;
	void *result;

	for (uintptr_t i = 0; i < POSTERS; i++)
		ck_assert(!pthread_create(&thread[i], NULL, poster, (void *)i));
	for (int i = 0; i < POSTERS; i++) {
		pthread_join(thread[i], &result);
		ck_assert_int_gt((intptr_t)result, 0);
		sum += (uint64_t)(uintptr_t)result;
	}
	ck_assert_uint_eq(*far_word(0), sum);
	expect_strict();
}

TEST_LOOP(posters_share_a_queue, 0, 4)
{
	open_way(_i, 8);
	run_posters();
	pairs_close(&p);
}

TEST_LOOP(delays_change_nothing, 0, getenv("COVEY_TEST_ALL") ? 40 : 4)
{
	struct softmlx5_plan plan = { .seed = (uint64_t)_i + 1, .delay_ns = 3000 };
	uint64_t n = getenv("COVEY_TEST_ALL") ? 100000 : 5000;
	int64_t t = 0;

	open_way(_i & 3, 8);
	softmlx5_plan(&plan);
	for (uint64_t i = 1; i <= n; i++) {
		t = cvy_queue_put_signal(&p.q, 64, 4096, 32, 8 * (i % WORDS), i);
		ck_assert_int_gt(t, 0);
		if (i % 3 == 0)
			cvy_queue_flush(&p.q);
	}
	ck_assert_int_eq(cvy_queue_await(&p.q, t), 1);
	ck_assert_uint_eq(*far_word(8 * (n % WORDS)), n);
	expect_strict();
	pairs_close(&p);
}

/* Entries that never complete fill the ring; the wait for room ends by its deadline, and later by the abort word. */
TEST_LOOP(a_full_ring_presses_back, 0, 4)
{
	struct softmlx5_plan plan = { .ack_unit_ns = 1u << 30 }; /* a peer that is silent for long */
	uint64_t since;
	int64_t t = 0;

	open_way(_i, 16);
	softmlx5_plan(&plan);
	p.q.wait_ticks = 50000000;
	softmlx5_silence(p.q.mlx5.qpn + 1); /* of this queue's entries nobody hears */
	for (int i = 0; i < 16; i++)
		ck_assert_int_gt(t = cvy_queue_signal(&p.q, 8, 1), 0);
	since = cvy_q_ticks();
	ck_assert_int_eq(cvy_queue_signal(&p.q, 8, 1), CVY_QUEUE_FULL);
	ck_assert_uint_ge(cvy_q_ticks() - since, p.q.wait_ticks);
	ck_assert_int_eq(cvy_queue_test(&p.q, t), 0);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), CVY_QUEUE_FULL);
	p.abort = 1;
	ck_assert_int_eq(cvy_queue_signal(&p.q, 8, 1), CVY_QUEUE_ABORTED);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), CVY_QUEUE_ABORTED);
	p.abort = 0;
	/* The host stops the queue: everything under way ends, and posters see it, however late the adapter gets to it. */
	p.q.wait_ticks = PAIRS_WAIT_NS;
	ck_assert_int_eq(cvy_pair_stop(p.pair[0]), 0);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_queue_signal(&p.q, 8, 1), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_pair_check(p.pair[0], 3), COVEY_ERR_PEER);
	pairs_close(&p);
}

TEST_LOOP(a_silent_peer_is_a_status_and_a_cause, 0, 4)
{
	int64_t before, t;

	open_way(_i, 16);
	before = cvy_queue_signal(&p.q, 8, 1);
	ck_assert_int_eq(cvy_queue_await(&p.q, before), 1);
	softmlx5_silence(p.q.mlx5.qpn + 1);
	t = cvy_queue_put_signal(&p.q, 0, 64, 64, 8, 2);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), CVY_QUEUE_FAILED);
	ck_assert_int_eq(cvy_queue_test(&p.q, before), 1); /* what was done stays done */
	ck_assert_uint_eq(*far_word(8), 1);
	ck_assert_int_eq(cvy_pair_check(p.pair[0], 5), COVEY_ERR_PEER);
	if (_i & 1) /* the newest completion only: the cause may be lost under those that were flushed */
		ck_assert_ptr_nonnull(strstr(pairs_cause(&p), "rank 5"));
	else
		ck_assert_ptr_nonnull(strstr(pairs_cause(&p), "does not answer"));
	pairs_close(&p);
}

/* A region that is taken back ends writes into it; the far end's new memory takes a new key. */
TEST_LOOP(a_key_taken_back_reaches_nothing, 0, 2)
{
	struct cvy_region *region = NULL;
	int64_t t;

	open_way(_i, 16);
	cvy_region_close(p.region[1]);
	p.region[1] = NULL;
	ck_assert_int_eq(cvy_region_open(p.nic, p.memory[1], PAIRS_BYTES, -1, &region), 0);
	t = cvy_queue_signal(&p.q, 8, 1);
	ck_assert_int_eq(cvy_queue_await(&p.q, t), CVY_QUEUE_FAILED);
	ck_assert_uint_eq(*far_word(8), 0);
	cvy_region_close(region);
	pairs_close(&p);
}

/* Each call of opening and connecting fails once: a cause each time, and nothing is left behind. */
TEST_LOOP(each_refusal_is_told, 0, 2)
{
	struct cvy_errbox *box = cvy_errbox_new();
	struct cvy_nic_args nic_args = { .box = box };
	struct softmlx5_stats stats;
	uint32_t refusals = 0, failed;

	for (uint32_t n = 1;; n++) {
		struct cvy_pair_args args = { .mode = (enum cvy_pair_mode)_i, .depth = 16, .abort = &p.abort };
		struct softmlx5_plan plan = { .refuse = n };
		struct cvy_region *region = NULL;
		struct cvy_queue_pair *pair = NULL;
		struct cvy_nic *nic = NULL;
		struct cvy_pair_name name;
		static uint8_t memory[4096] __attribute__((aligned(4096)));

		softmlx5_heap(8); /* the adapter is there */
		softmlx5_plan(&plan);
		failed = 0;
		if (cvy_nic_open(&nic_args, &nic))
			failed = 1;
		if (!failed && cvy_region_open(nic, memory, sizeof(memory), -1, &region))
			failed = 2;
		args.local = args.window = region;
		if (!failed && cvy_pair_open(nic, &args, &pair))
			failed = 3;
		if (!failed)
			cvy_pair_name(pair, &name);
		if (!failed && cvy_pair_connect(pair, &name))
			failed = 4;
		plan.refuse = 0;
		softmlx5_plan(&plan);
		cvy_pair_close(pair);
		cvy_region_close(region);
		cvy_nic_close(nic);
		softmlx5_stats(&stats);
		ck_assert_uint_eq(stats.queues, 0);
		ck_assert_uint_eq(stats.umem_bytes, 0);
		if (failed) {
			struct covey_error_info info;

			cvy_errbox_get(box, &info);
			ck_assert_int_eq(info.err < 0, 1);
			ck_assert(info.cause[0]);
			refusals++;
		} else if (n > 60) {
			break;
		}
	}
	ck_assert_uint_ge(refusals, 8);
	cvy_errbox_free(box);
}

/* 1,024 peers of default depth, made for real. */
TEST(queues_for_1024_peers_are_small)
{
	struct cvy_pair_args args = { .mode = CVY_PAIR_DEVX, .abort = &p.abort, .wait_ticks = 1 };
	struct cvy_queue_pair *pair[1024];
	struct softmlx5_stats stats;
	size_t bytes = 0;

	open_way(1, 16);
	args.local = args.window = p.region[0];
	for (int i = 0; i < 1024; i++) {
		ck_assert_msg(cvy_pair_open(p.nic, &args, &pair[i]) == 0, "queue %d: %s", i, pairs_cause(&p));
		bytes += cvy_pair_bytes(pair[i]);
	}
	softmlx5_stats(&stats);
	ck_assert_uint_ge(stats.umem_bytes, bytes);
	ck_assert_uint_le(stats.umem_bytes + 1024 * sizeof(struct cvy_queue_words), (size_t)64 << 20);
	ck_assert_uint_le(stats.uar_pages, 520);
	for (int i = 0; i < 1024; i++)
		cvy_pair_close(pair[i]);
	pairs_close(&p);
}

SUITE_MAIN(.name = "softmlx5/post")
