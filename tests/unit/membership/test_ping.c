/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeat between hosts, in made-up time: whom it asks, when silence counts, what ends it. */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "clock.h"
#include "ping.h"

#define RANKS 8
#define LINK_MS 1000

static struct cvy_ping *ping;
static struct cvy_view *view;
static struct cvy_page page;
static int pings[RANKS], suspects[RANKS];
static uint64_t now = CVY_MS;

static struct cvy_page *page_of(void *ctx, int rank)
{
	(void)ctx;
	return rank < 2 ? &page : NULL; /* 0 and 1 are on this host */
}

static int count_ping(void *ctx, int rank, uint64_t inc, int type, uint32_t epoch, const void *body, uint32_t bytes)
{
	(void)ctx;
	ck_assert_int_eq(type, CVY_MSG_PING);
	ck_assert_uint_eq(inc, (uint64_t)rank + 1);
	ck_assert_uint_eq(epoch, 5);
	ck_assert_uint_eq(bytes, 8);
	ck_assert_uint_eq(((const uint64_t *)body)[0], 42);
	pings[rank]++;
	return 0;
}

static uint64_t progress(void *ctx, int *waiting)
{
	(void)ctx;
	*waiting = 0;
	return 42;
}

static const struct cvy_seam seam = { .page = page_of, .send = count_ping, .progress = progress };

static void record(void *ctx, const struct cvy_event *event)
{
	(void)ctx;
	ck_assert_int_eq(event->source, CVY_SOURCE_LINK);
	ck_assert_uint_eq(event->inc, (uint64_t)event->rank + 1);
	suspects[event->rank]++;
}

static void begin(int own_rank, int link_ms)
{
	const struct cvy_ping_args args = { &seam, { record, NULL }, link_ms, RANKS };

	ck_assert_int_eq(cvy_ping_new(&args, &ping), 0);
	view = cvy_view_new(RANKS);
	view->epoch = 5;
	for (int rank = 0; rank < RANKS; rank++) {
		cvy_mask_add(&view->members, rank);
		view->member[rank].inc = (uint64_t)rank + 1;
		cvy_ping_link(ping, rank, (uint64_t)rank + 1, 1);
	}
	cvy_ping_view(ping, view, own_rank);
	cvy_ping_tick(ping, now);
}

static void teardown(void)
{
	cvy_ping_free(ping);
	cvy_view_free(view);
}

static void pass(int ms)
{
	for (int i = 0; i < ms; i += 10)
		cvy_ping_tick(ping, now += 10 * CVY_MS);
}

TEST(ping_asks_three_of_other_hosts_four_times_a_bound)
{
	static const int want[RANKS] = { 0, 0, 5, 5, 0, 5, 0, 0 }; /* from rank 0: remote 0, 1 and 3 */

	begin(0, LINK_MS);
	pass(LINK_MS);
	for (int rank = 0; rank < RANKS; rank++)
		ck_assert_int_eq(pings[rank], want[rank]);
}

TEST(ping_suspects_a_silent_link_and_no_other)
{
	begin(0, LINK_MS);
	for (int i = 0; i < 10; i++) {
		pass(LINK_MS / 10);
		cvy_ping_heard(ping, 2, 3);
		cvy_ping_heard(ping, 3, 99); /* of an earlier incarnation */
	}
	ck_assert_int_eq(suspects[3], 0);
	pass(10);
	ck_assert_int_eq(suspects[2], 0);
	ck_assert_int_eq(suspects[3], 1);
	ck_assert_int_eq(suspects[5], 1);
	/* told again after as much silence again, through a change of view too */
	cvy_ping_view(ping, view, 0);
	pass(LINK_MS / 2);
	cvy_ping_view(ping, view, 0);
	pass(LINK_MS / 2 + 10);
	ck_assert_int_eq(suspects[3], 2);
}

TEST(ping_forgets_a_link_that_is_down)
{
	begin(0, LINK_MS);
	cvy_ping_link(ping, 3, 4, 0);
	cvy_ping_view(ping, view, 0);
	pass(2 * LINK_MS);
	ck_assert_int_eq(suspects[3], 0);
	ck_assert_int_eq(pings[3], 1);
}

TEST(ping_forgives_the_gap_of_a_starved_observer)
{
	begin(0, LINK_MS);
	for (int i = 0; i < 4; i++)
		cvy_ping_tick(ping, now += 60000 * CVY_MS);
	ck_assert_int_eq(suspects[2], 0);
	pass(10);
	ck_assert_int_eq(suspects[2], 1);
}

TEST(ping_without_a_bound_only_asks)
{
	begin(0, -1);
	pass(10000);
	ck_assert_int_eq(suspects[2], 0);
	ck_assert_int_eq(pings[2], 11);
}

SUITE_MAIN(.name = "membership/ping", .teardown = teardown)
