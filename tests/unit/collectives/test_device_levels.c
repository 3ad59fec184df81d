/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in two levels: who sends to whom, for all contributors of small groups; and which processes go in two levels. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "device_state.h"
#include "levels.h"
#include "mask.h"

enum { MOST = 9 };

static int count(uint32_t mask)
{
	return __builtin_popcount(mask);
}

/* Have all hosts that have contributors as many, two at least, and are there two such hosts? */
static int even(uint32_t mask, int width)
{
	int hosts = 0, each = 0;

	for (int h = 0; h * width < MOST; h++) {
		int here = count(mask >> h * width & ((1u << width) - 1));

		if (!here)
			continue;
		if (each && here != each)
			return 0;
		each = here;
		hosts++;
	}
	return hosts > 1 && each > 1;
}

static void check_rank(uint32_t mask, int width, int rank)
{
	const struct cvy_levels l = cvy_levels_of(mask, rank, width);
	int before = 0;

	ck_assert_msg(!l.hosts == !even(mask, width), "%x by %d, rank %d: %d hosts", mask, width, rank, l.hosts);
	if (!l.hosts)
		return;
	ck_assert_int_eq(count(l.like), l.hosts);
	ck_assert_int_eq(count(l.near) * l.hosts, count(mask));
	ck_assert_uint_eq(l.near & l.like, 1u << rank); /* nobody is both */
	ck_assert_uint_eq((l.near | l.like) & ~mask, 0);
	for (int r = 0; r < MOST; r++) {
		const struct cvy_levels other = cvy_levels_of(mask, r, width);

		if (!(mask >> r & 1))
			continue;
		ck_assert_int_eq(other.hosts, l.hosts);
		ck_assert_int_eq(l.near >> r & 1, r / width == rank / width);
		if (l.near >> r & 1) {
			ck_assert_uint_eq(other.near, l.near);
			ck_assert_int_eq(other.host, l.host);
		}
		if (l.like >> r & 1) { /* likes agree who they are, and number hosts alike */
			ck_assert_uint_eq(other.like, l.like);
			ck_assert_int_eq(other.host, before++);
		}
	}
}

TEST(levels_are_alike_on_all_ranks)
{
	for (int width = 2; width <= MOST; width++)
		for (uint32_t mask = 1; mask < 1u << MOST; mask++)
			for (int rank = 0; rank < MOST; rank++)
				if (mask >> rank & 1)
					check_rank(mask, width, rank);
}

TEST(levels_need_a_width)
{
	ck_assert_int_eq(cvy_levels_of(0xffffffff, 31, 0).hosts, 0);
	ck_assert_int_eq(cvy_levels_of(0xffffffff, 31, 1).hosts, 0);
	ck_assert_int_eq(cvy_levels_of(0xffffffff, 31, 17).hosts, 0);
	ck_assert_int_eq(cvy_levels_of(0xffffffff, 31, 16).hosts, 2);
	ck_assert_uint_eq(cvy_levels_of(0xffffffff, 31, 16).like, 1u << 31 | 1u << 15);
	ck_assert_int_eq(cvy_levels_of(0xffffffff, 31, 2).hosts, 16);
}

/* A member that has learned a view in which rank r is on host hosts[r]; '-': it is no member. */
static struct cvy_device *member(const char *hosts)
{
	struct cvy_device *d = calloc(1, sizeof(*d));

	ck_assert_ptr_nonnull(d);
	pthread_mutex_init(&d->lock, NULL);
	d->view = cvy_view_new(CVY_GPU_RANKS);
	ck_assert_ptr_nonnull(d->view);
	for (int r = 0; hosts[r]; r++) {
		if (hosts[r] == '-')
			continue;
		cvy_mask_add(&d->view->members, r);
		d->view->member[r].host = (uint64_t)hosts[r];
	}
	return d;
}

static void forget(struct cvy_device *d)
{
	cvy_view_free(d->view);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static const struct {
	const char *hosts;
	unsigned width;
} views[] = {
	{ "aabb", 2 },	 { "aaabbb", 3 }, { "aabbcc", 2 }, { "aaaabbbb", 4 },
	{ "aaaa", 0 },	 { "abab", 0 },	  { "aab", 2 }, /* uneven: kernels find that, by the contributors */
	{ "aa-bb-", 3 }, { "aaabb", 3 },  { "aabbb", 0 },  { "aa--bb", 2 },
	{ "abcd", 0 },	 { "a-b-", 2 },	  { "aabbaa", 0 },
};

TEST_LOOP(width_is_of_hosts_in_order, 0, (int)(sizeof(views) / sizeof(views[0])))
{
	struct cvy_device *d = member(views[_i].hosts);

	ck_assert_uint_eq(cvy_device_own_width(d), views[_i].width);
	forget(d);
}

TEST(width_of_a_topology_for_tests)
{
	struct cvy_device *d = member("aaaaaa");

	d->queues.ranks = 3;
	ck_assert_uint_eq(cvy_device_own_width(d), 3);
	forget(d);
}

/* Others count on what it told: it launches kernels of two levels from then on, also when all are on one host. */
TEST(process_that_told_a_width_takes_levels)
{
	struct cvy_device *d = member("aabb");

	ck_assert_uint_eq(cvy_device_own_width(d), 2);
	ck_assert(cvy_device_takes_levels(d));
	cvy_mask_del(&d->view->members, 2);
	cvy_mask_del(&d->view->members, 3);
	ck_assert_uint_eq(cvy_device_own_width(d), 0);
	ck_assert(cvy_device_takes_levels(d));
	forget(d);
}

/* A graph may hold its kernels, which know one level. */
TEST(process_that_called_within_a_host_never_tells_a_width)
{
	struct cvy_device *d = member("aa");

	ck_assert_uint_eq(cvy_device_own_width(d), 0);
	ck_assert(!cvy_device_takes_levels(d));
	cvy_mask_add(&d->view->members, 2);
	d->view->member[2].host = 'b';
	ck_assert_uint_eq(cvy_device_own_width(d), 0);
	ck_assert(!cvy_device_takes_levels(d));
	forget(d);
}

TEST(width_holds_if_all_members_told_it)
{
	struct cvy_device *d = member("aabb");

	for (int r = 0; r < 4; r++)
		d->peer[r].have.width = 2;
	ck_assert_uint_eq(cvy_device_settle_width(d), 2);
	d->peer[3].have.width = 0; /* one of them cannot */
	ck_assert_uint_eq(cvy_device_settle_width(d), 0);
	ck_assert(d->several);
	cvy_mask_del(&d->view->members, 3); /* it is gone */
	ck_assert_uint_eq(cvy_device_settle_width(d), 2);
	forget(d);
}

SUITE_MAIN(.name = "collectives/device_levels")
