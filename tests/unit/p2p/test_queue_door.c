/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of queues: who shows its cookie is let in once, by its rank; who shows another, or one that was used or
 * forgotten, hears nothing.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../suite.h"
#include "queue_door.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

static struct cvy_loop *loop;
static struct cvy_door *door;
static struct cvy_errbox *box;
static int came[2], called[2], comes, calls, ends; /* rank and descriptor of the last; how many */

static void come(void *ctx, int rank, int fd, const char *why)
{
	came[0] = rank;
	came[1] = fd;
	comes++;
}

static void call(void *ctx, int rank, int fd, const char *why)
{
	ck_assert((fd < 0) == (why != NULL));
	called[0] = rank;
	called[1] = fd;
	calls++;
}

static int wanted_comes, wanted_calls;
static int end_fd;

/* Until as many have come and called as should, and who is turned away has heard that. */
static void tick(void *ctx, uint64_t now_ns)
{
	char byte;

	if (end_fd >= 0 && recv(end_fd, &byte, 1, MSG_DONTWAIT) == 0)
		ends++;
	if (comes >= wanted_comes && calls >= wanted_calls && (end_fd < 0 || ends))
		cvy_loop_stop(loop);
}

static void run(int more_comes, int more_calls, int fd_that_ends)
{
	static const int tick_ms = 1;

	wanted_comes = comes + more_comes;
	wanted_calls = calls + more_calls;
	end_fd = fd_that_ends;
	ends = 0;
	cvy_loop_run(loop, tick, NULL, &tick_ms);
}

static void open_all(void)
{
	ck_assert_int_eq(cvy_loop_new(&loop), 0);
	ck_assert_int_eq(cvy_door_open(loop, "127.0.0.1", NULL, come, box, &door), 0);
}

static void close_all(void)
{
	cvy_door_close(door);
	cvy_loop_free(loop);
}

TEST(who_shows_its_cookie_is_let_in)
{
	struct cvy_cookie cookie;
	struct cvy_knock *knock;
	char byte = 7;

	ck_assert_int_eq(cvy_door_expect(door, 3, &cookie), 0);
	ck_assert_int_eq(cvy_door_dial(door, cvy_door_name(door), &cookie, 5, call, &knock), 0);
	run(1, 1, -1);
	ck_assert_int_eq(came[0], 3);
	ck_assert_int_eq(called[0], 5);
	ck_assert_int_eq(write(called[1], &byte, 1), 1);
	byte = 0;
	ck_assert_int_eq(read(came[1], &byte, 1),
			 1); /* it waits: the descriptor blocks, and nothing of the cookie is left */
	ck_assert_int_eq(byte, 7);
	close(came[1]);
	close(called[1]);
}

enum how { WRONG, USED, FORGOTTEN, HOWS };

TEST_LOOP(nobody_else_is, WRONG, HOWS)
{
	struct cvy_cookie cookie;
	struct cvy_knock *knock;

	ck_assert_int_eq(cvy_door_expect(door, 3, &cookie), 0);
	if (_i == USED) {
		ck_assert_int_eq(cvy_door_dial(door, cvy_door_name(door), &cookie, 5, call, &knock), 0);
		run(1, 1, -1);
		close(called[1]);
		close(came[1]);
	}
	if (_i == FORGOTTEN)
		cvy_door_forget(door, 3);
	if (_i == WRONG)
		cookie.byte[31] ^= 1;
	comes = 0;
	ck_assert_int_eq(cvy_door_dial(door, cvy_door_name(door), &cookie, 5, call, &knock), 0);
	run(0, 1, -1);
	run(0, 0, called[1]);
	ck_assert_int_eq(comes, 0);
	close(called[1]);
}

TEST(a_call_that_is_not_taken_says_why)
{
	struct cvy_cookie cookie = { { 0 } };
	struct cvy_knock *knock;

	called[1] = 0;
	/* Of a port that nobody listens at: the connection is refused, now or in a moment. */
	if (!cvy_door_dial(door, "tcp:127.0.0.1:1", &cookie, 5, call, &knock)) {
		run(0, 1, -1);
		ck_assert_int_lt(called[1], 0);
	}
	ck_assert_int_lt(cvy_door_dial(door, "nonsense", &cookie, 5, call, &knock), 0);
	ck_assert_int_eq(cvy_door_dial(door, cvy_door_name(door), &cookie, 5, call, &knock), 0);
	cvy_door_hang_up(knock);
}

SUITE_MAIN(.name = "p2p/queue_door", .setup = open_all, .teardown = close_all, .timeout_s = 60)
