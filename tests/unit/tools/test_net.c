/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces as hosts (tools/chaos/net.c): they reach each other and the store's side, a cut drops one
 * way only, heal undoes it, a slow link is slow. Datagrams show each way by itself. That something
 * does *not* arrive is shown by what was sent after it, another way round: nothing here waits for silence.
 *
 * labels: real
 */
#include "../../suite.h"
#include "chaos/net.h"

#include <arpa/inet.h>
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS 4
#define WATCHDOG_MS 20000
#define PORT 4242

/* One bound socket on every side; sockets stay in the namespace that they were made in. */
static int sockets[1 + HOSTS];

static struct sockaddr_in place(int host)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	ck_assert_int_eq(inet_pton(AF_INET, chaos_net_address(host), &at.sin_addr), 1);
	return at;
}

static void open_sockets(int hosts)
{
	for (int h = CHAOS_NET_STORE; h < hosts; h++) {
		struct sockaddr_in at = place(h);

		ck_assert_int_eq(chaos_net_enter(h), 0);
		sockets[1 + h] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		ck_assert_int_ge(sockets[1 + h], 0);
		ck_assert_int_eq(bind(sockets[1 + h], (struct sockaddr *)&at, sizeof(at)), 0);
	}
	ck_assert_int_eq(chaos_net_enter(CHAOS_NET_STORE), 0);
}

static void send_one(int from, int to, char byte)
{
	struct sockaddr_in at = place(to);

	ck_assert_int_eq(sendto(sockets[1 + from], &byte, 1, 0, (struct sockaddr *)&at, sizeof(at)), 1);
}

static char take_one(int host)
{
	struct pollfd wait = { .fd = sockets[1 + host], .events = POLLIN };
	char byte = 0;

	ck_assert_msg(poll(&wait, 1, WATCHDOG_MS) == 1, "nothing reaches host %d", host);
	ck_assert_int_eq(recv(wait.fd, &byte, 1, 0), 1);
	return byte;
}

static void assert_reaches(int from, int to)
{
	send_one(from, to, 'r');
	ck_assert_int_eq(take_one(to), 'r');
}

/*
 * A cut happens where the datagram arrives, before sendto() returns or soon after. What @witness sends next goes
 * through the same queue of @to, so it comes second if the first comes at all.
 */
static void assert_dropped(int from, int to, int witness)
{
	send_one(from, to, 'x');
	send_one(witness, to, 'w');
	ck_assert_int_eq(take_one(to), 'w');
}

TEST(net_hosts_reach_each_other_and_the_store)
{
	ck_assert_int_eq(chaos_net_open(HOSTS), 0);
	open_sockets(HOSTS);
	for (int from = CHAOS_NET_STORE; from < HOSTS; from++)
		for (int to = CHAOS_NET_STORE; to < HOSTS; to++)
			assert_reaches(from, to);
	chaos_net_close();
}

TEST(net_cut_drops_one_way_only_and_heal_restores)
{
	ck_assert_int_eq(chaos_net_open(3), 0);
	open_sockets(3);
	ck_assert_int_eq(chaos_net_cut(0, 1), 0);
	assert_dropped(0, 1, 2);
	assert_reaches(1, 0);
	assert_reaches(0, 2);
	ck_assert_int_eq(chaos_net_cut(2, CHAOS_NET_STORE), 0);
	assert_dropped(2, CHAOS_NET_STORE, 0);
	assert_reaches(CHAOS_NET_STORE, 2);
	ck_assert_int_eq(chaos_net_heal(), 0);
	assert_reaches(0, 1);
	assert_reaches(2, CHAOS_NET_STORE);
	chaos_net_close();
}

/* 64 Kbit/s lets 32 KiB through at once: more than that takes its time, or is dropped. */
TEST(net_slow_link_carries_less_until_it_is_undone)
{
	char block[1400] = { 0 };
	struct sockaddr_in at;
	int arrived = 0;

	ck_assert_int_eq(chaos_net_open(2), 0);
	open_sockets(2);
	ck_assert_int_eq(chaos_net_slow(0, 64), 0);
	at = place(1);
	for (int i = 0; i < 100; i++)
		sendto(sockets[1], block, sizeof(block), 0, (struct sockaddr *)&at, sizeof(at));
	ck_assert_int_eq(chaos_net_slow(0, 0), 0); /* what still waits in the queue is lost with it */
	assert_reaches(1, 0);
	send_one(0, 1, 'e');
	for (char byte = 0; byte != 'e'; arrived++)
		byte = take_one(1);
	ck_assert_int_gt(arrived, 10);
	ck_assert_int_lt(arrived, 100);
	chaos_net_close();
}

TEST(net_refuses_what_is_not_there)
{
	ck_assert_int_eq(chaos_net_open(5), -1);
	ck_assert_int_eq(chaos_net_cut(0, 1), -1);
	ck_assert_int_eq(chaos_net_heal(), -1);
	ck_assert_int_eq(chaos_net_open(2), 0);
	ck_assert_int_eq(chaos_net_open(2), -1);
	ck_assert_int_eq(chaos_net_cut(0, 2), -1);
	ck_assert_int_eq(chaos_net_cut(1, 1), -1);
	ck_assert_int_eq(chaos_net_slow(CHAOS_NET_STORE, 64), -1);
	ck_assert_int_eq(chaos_net_enter(3), -1);
	ck_assert_ptr_null(chaos_net_address(HOSTS));
	chaos_net_close();
}

static ino_t network(void)
{
	struct stat st;

	ck_assert_int_eq(stat("/proc/thread-self/ns/net", &st), 0);
	return st.st_ino;
}

TEST(net_close_brings_the_caller_back)
{
	ino_t home = network();

	ck_assert_int_eq(chaos_net_open(1), 0);
	ck_assert(network() != home);
	chaos_net_close();
	ck_assert(network() == home);
	chaos_net_close();
}

/* 1: what the tests need is not there, and chaos_net_open() has said so. */
static int missing(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(chaos_net_open(1) != 0);
	return waitpid(pid, &status, 0) != pid || status;
}

int main(void)
{
	if (missing())
		return 77;
	return suite_run(SUITE(.name = "tools/net"));
}
