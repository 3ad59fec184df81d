/* SPDX-License-Identifier: Apache-2.0 */
/*
 * labels: tsan
 * The proxy's ring over a connection: puts of any length, signals after their puts, a far end that ends or that is
 * told what cannot be.
 */
#include <check.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../suite.h"
#include "queues.h"

#define BYTES ((size_t)4 << 20)
#define WAIT_NS 20000000000ull
#define LINK_MS 100

static struct cvy_proxy *proxy;
static struct cvy_tcp_sender *sender;
static struct cvy_tcp_receiver *receiver;
static struct cvy_queue q;
static uint8_t *near, *far;
static uint64_t stop;
static int fd[2];

static void connect_tcp(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert(!bind(door, (struct sockaddr *)&at, len) && !listen(door, 1));
	ck_assert(!getsockname(door, (struct sockaddr *)&at, &len));
	ck_assert(!connect(fd[0], (struct sockaddr *)&at, len));
	fd[1] = accept(door, NULL, NULL);
	ck_assert_int_ge(fd[1], 0);
	close(door);
}

static void open_over(int tcp)
{
	struct cvy_proxy_args args = { .depth = 64, .queues = 1, .wait_ticks = WAIT_NS, .abort = &stop };
	struct cvy_proxy_link link;

	if (tcp)
		connect_tcp();
	else
		ck_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	near = calloc(1, BYTES);
	far = calloc(1, BYTES);
	ck_assert_int_eq(cvy_tcp_sender_open(fd[0], near, BYTES, BYTES, LINK_MS, &sender), 0);
	ck_assert_int_eq(cvy_tcp_receiver_open(fd[1], far, BYTES, &receiver), 0);
	ck_assert_int_eq(cvy_proxy_open(&args, &proxy), 0);
	cvy_tcp_sender_link(sender, &link);
	ck_assert_int_eq(cvy_proxy_attach(proxy, 0, &link), 0);
	cvy_proxy_queue(proxy, 0, &q);
}

static void open_all(void)
{
	open_over(0);
}

static void close_all(void)
{
	cvy_proxy_close(proxy);
	cvy_tcp_sender_close(sender);
	cvy_tcp_receiver_close(receiver);
	close(fd[0]);
	close(fd[1]);
	free(near);
	free(far);
}

TEST(puts_of_any_length_arrive)
{
	static const size_t lengths[] = { 0, 1, 8, 4095, 65535, 65536, 65537, 200000, (size_t)3 << 20 };
	int64_t t;

	open_all();
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		for (size_t k = 0; k < lengths[i]; k++)
			near[64 + k] = (uint8_t)(k * 7 + i);
		t = cvy_queue_put_signal(&q, 64, 128, lengths[i], 0, i + 1);
		ck_assert_int_eq(cvy_queue_await(&q, t), 1);
		ck_assert_uint_eq(cvy_q_load((uint64_t *)(void *)far), i + 1);
		ck_assert(!memcmp(near + 64, far + 128, lengths[i]));
	}
	close_all();
}

/* A tag is the last word of a packet: what has come of it in part is not there, and what stands before it is. */
TEST(words_arrive_whole_and_in_order)
{
	struct {
		uint32_t op, queue;
		uint64_t remote, value;
	} head = { CVY_RING_PUT, 0, 64, 24 };
	uint64_t word[3] = { 1, 0x0202020202020202, 3 }, *to;

	ck_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	far = calloc(1, BYTES);
	to = (uint64_t *)(void *)(far + 64);
	ck_assert_int_eq(cvy_tcp_receiver_open(fd[1], far, BYTES, &receiver), 0);
	ck_assert_int_eq(write(fd[0], &head, sizeof(head)), sizeof(head));
	ck_assert_int_eq(write(fd[0], word, 12), 12);
	while (!cvy_q_load(to))
		cvy_q_pause();
	ck_assert_uint_eq(cvy_q_load(to + 1), 0);
	ck_assert_int_eq(write(fd[0], (uint8_t *)word + 12, 12), 12);
	while (!cvy_q_load(to + 2))
		cvy_q_pause();
	ck_assert(!memcmp(to, word, sizeof(word)));
	cvy_tcp_receiver_close(receiver);
	close(fd[0]);
	close(fd[1]);
	free(far);
}

/* Nothing is left of a queue that is idle: a far end that has not answered keeps it busy. */
TEST(idle_is_when_all_has_been_answered)
{
	int64_t t;

	open_all();
	ck_assert_int_eq(cvy_proxy_idle(proxy), 1);
	t = cvy_queue_put(&q, 0, 0, BYTES);
	ck_assert_int_eq(cvy_proxy_idle(proxy) && cvy_queue_test(&q, t) != 1, 0);
	ck_assert_int_eq(cvy_queue_await(&q, t), 1);
	while (!cvy_proxy_idle(proxy))
		cvy_q_pause();
	cvy_tcp_receiver_close(receiver);
	receiver = NULL;
	cvy_queue_signal(&q, 0, 2);
	while (!cvy_proxy_idle(proxy)) /* of one that failed nothing is awaited */
		cvy_q_pause();
	close_all();
}

/* Who sees a signal sees what was put before it. */
TEST(a_signal_comes_after_its_put)
{
	uint64_t n = 20000;
	int64_t t = 0;

	open_all();
	for (uint64_t i = 1; i <= n; i++) {
		*(uint64_t *)(void *)(near + 8 * (i % 512)) = i;
		t = cvy_queue_put_signal(&q, 8 * (i % 512), 4096 + 8 * (i % 512), 8, 0, i);
		ck_assert_int_gt(t, 0);
		ck_assert_int_gt(cvy_queue_add64(&q, 8, 2), 0);
		if (i % 256 == 0) { /* what is put may not change before it is done */
			ck_assert_int_eq(cvy_queue_await(&q, t), 1);
			ck_assert_uint_ge(cvy_q_load((uint64_t *)(void *)far), i);
			ck_assert_uint_eq(*(uint64_t *)(void *)(far + 4096 + 8 * (i % 512)), i);
		}
	}
	ck_assert_int_eq(cvy_queue_await(&q, cvy_queue_signal(&q, 16, 1)), 1);
	ck_assert_uint_eq(cvy_q_load((uint64_t *)(void *)(far + 8)), 2 * n);
	close_all();
}

TEST(a_far_end_that_ends_is_a_status)
{
	int64_t t;

	open_all();
	ck_assert_int_eq(cvy_queue_await(&q, cvy_queue_signal(&q, 0, 1)), 1);
	ck_assert_int_eq(cvy_tcp_receiver_check(receiver), 0);
	cvy_tcp_receiver_close(receiver);
	receiver = NULL;
	t = cvy_queue_signal(&q, 0, 2);
	if (t > 0)
		t = cvy_queue_await(&q, t);
	ck_assert_int_eq(t, CVY_QUEUE_FAILED);
	ck_assert_uint_eq(*(uint64_t *)(void *)far, 1);
	ck_assert_uint_eq(cvy_proxy_status(proxy, 0), 0x15);
	close_all();
}

/* The path carries short packets and loses long ones: the far end is there, and no data come through. */
TEST(a_path_that_carries_no_data_is_a_status)
{
	struct sock_filter lose[] = { BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
				      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 500, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
				      BPF_STMT(BPF_RET | BPF_K, 0x40000) };
	struct sock_fprog program = { sizeof(lose) / sizeof(lose[0]), lose };

	open_over(1);
	ck_assert_int_eq(cvy_queue_await(&q, cvy_queue_put(&q, 0, 0, BYTES)), 1);
	ck_assert(!setsockopt(fd[1], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
	ck_assert_int_eq(cvy_queue_await(&q, cvy_queue_signal(&q, 0, 1)), 1);
	ck_assert_int_eq(cvy_queue_await(&q, cvy_queue_put(&q, 0, 0, 4096)), CVY_QUEUE_FAILED);
	ck_assert_uint_eq(cvy_proxy_status(proxy, 0), 0x15);
	ck_assert_int_eq(cvy_tcp_receiver_check(receiver), 0);
	close_all();
}

static const uint64_t lies[][3] = {
	/* op, remote, value */
	{ CVY_RING_PUT, BYTES - 8, 9 },
	{ CVY_RING_PUT, 0, BYTES + 1 },
	{ CVY_RING_PUT, UINT64_MAX - 3, 8 },
	{ CVY_RING_SIGNAL, BYTES - 4, 1 },
	{ CVY_RING_SIGNAL, 12, 1 },
	{ CVY_RING_ADD, BYTES, 1 },
	{ CVY_RING_SIGNAL_HIGH, 0, 1 },
	{ 0, 0, 1 },
	{ 77, 0, 1 },
};

/* A stranger's frames: nothing is stored, the connection ends. */
TEST_LOOP(what_cannot_be_ends_the_connection, 0, sizeof(lies) / sizeof(lies[0]))
{
	struct {
		uint32_t op, queue;
		uint64_t remote, value;
	} head = { (uint32_t)lies[_i][0], 0, lies[_i][1], lies[_i][2] };
	char byte;

	ck_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd));
	far = calloc(1, BYTES);
	ck_assert_int_eq(cvy_tcp_receiver_open(fd[1], far, BYTES, &receiver), 0);
	ck_assert_int_eq(write(fd[0], &head, sizeof(head)), sizeof(head));
	ck_assert_int_eq(read(fd[0], &byte, 1), 0);
	ck_assert_int_eq(cvy_tcp_receiver_check(receiver), COVEY_ERR_PEER);
	cvy_tcp_receiver_close(receiver);
	ck_assert(!far[0] && !memcmp(far, far + 1, BYTES - 1)); /* all zero */
	close(fd[0]);
	close(fd[1]);
	free(far);
}

SUITE_MAIN(.name = "p2p/queue_tcp")
