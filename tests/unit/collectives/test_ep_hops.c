/* SPDX-License-Identifier: Apache-2.0 */
/* Paths over two hops: all masks of small topologies, each rank as source and as target. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "ep_hops.h"

enum { MOST = 8 };

/* Hosts of the ranks 0, 1, ... */
struct topology {
	int ranks;
	uint8_t host[MOST];
};

static const struct topology topologies[] = {
	{ 4, { 0, 0, 1, 1 } },		   /* 2x2 */
	{ 3, { 0, 1, 2 } },		   /* 3x1 */
	{ 6, { 0, 0, 0, 1, 1, 1 } },	   /* 2x3 */
	{ 8, { 0, 0, 0, 0, 1, 1, 1, 1 } }, /* 2x4 */
	{ 8, { 0, 0, 1, 1, 2, 2, 3, 3 } }, /* 4x2 */
	{ 3, { 0, 0, 1 } },		   /* uneven */
	{ 7, { 0, 0, 0, 0, 1, 1, 2 } },
	{ 7, { 2, 0, 1, 0, 2, 0, 0 } }, /* ranks of a host are not adjacent */
	{ 5, { 0, 0, 0, 0, 0 } },	/* one host */
};

enum { TOPOLOGIES = sizeof(topologies) / sizeof(*topologies) };

static struct cvy_ep_hosts hosts_of(const struct topology *t, uint32_t living)
{
	struct cvy_ep_hosts hosts = { living, { 0 } };
	uint8_t host[CVY_GPU_RANKS] = { 0 };

	memcpy(host, t->host, sizeof(t->host));
	for (int r = 0; r < CVY_GPU_RANKS; r++)
		hosts.of[r] = cvy_ep_of_host(host, living, r);
	return hosts;
}

static int has(uint32_t mask, int rank)
{
	return mask >> rank & 1;
}

typedef void (*pair_check)(const struct cvy_ep_hosts *h, int source, int target);

/* @check for all masks of a topology, and all pairs of ranks that live. */
static void each_pair(const struct topology *t, pair_check check)
{
	for (uint32_t living = 1; living < 1u << t->ranks; living++) {
		const struct cvy_ep_hosts h = hosts_of(t, living);

		for (int s = 0; s < t->ranks; s++)
			for (int d = 0; d < t->ranks; d++)
				if (s != d && has(living, s) && has(living, d))
					check(&h, s, d);
	}
}

/* How often rows of @source come into memory of @target, by what every rank does with rows that it has. */
static int copies(const struct cvy_ep_hosts *h, int source, int target)
{
	int n = has(cvy_ep_gives(h, source), target);

	for (int m = 0; m < MOST; m++)
		if (m != source && has(h->living, m) && has(cvy_ep_gives(h, source), m) &&
		    has(cvy_ep_passes_on(h, m), source))
			n += has(cvy_ep_neighbours(h, m), target);
	return n;
}

static void one_path(const struct cvy_ep_hosts *h, int source, int target)
{
	const int by = cvy_ep_stored_by(h, source, target);

	ck_assert_int_eq(copies(h, source, target), 1);
	ck_assert(has(h->living, by));
	ck_assert_int_ne(by, target);
	if (by == source) {
		ck_assert(has(cvy_ep_gives(h, source), target));
		return;
	}
	ck_assert(!cvy_ep_of_one_host(h, source, target));
	ck_assert(cvy_ep_of_one_host(h, by, target));
	ck_assert(has(cvy_ep_passes_on(h, by), source));
	ck_assert_int_eq(cvy_ep_stored_by(h, source, by), source);
}

TEST_LOOP(rows_come_once_by_a_rank_that_lives, 0, TOPOLOGIES)
{
	each_pair(&topologies[_i], one_path);
}

/* Of the ranks of another host the source itself gives its rows to one. */
static void crosses_once(const struct cvy_ep_hosts *h, int source, int target)
{
	const uint32_t there = h->of[target];

	if (!cvy_ep_of_one_host(h, source, target))
		ck_assert_int_eq(cvy_ep_members(cvy_ep_gives(h, source) & there), 1);
	else
		ck_assert_int_eq(cvy_ep_gives(h, source) & there, there & ~(1u << source));
}

TEST_LOOP(rows_cross_to_a_host_once, 0, TOPOLOGIES)
{
	each_pair(&topologies[_i], crosses_once);
}

static void both_hear(const struct cvy_ep_hosts *h, int a, int b)
{
	const int stores = has(cvy_ep_gives(h, a), b) || has(cvy_ep_gives(h, b), a);

	ck_assert_int_eq(has(cvy_ep_hears(h, a), b), stores);
	ck_assert_int_eq(has(cvy_ep_hears(h, b), a), stores);
	ck_assert(!has(cvy_ep_hears(h, a), a));
	ck_assert_int_eq(cvy_ep_hears(h, a) & ~h->living, 0);
}

TEST_LOOP(ranks_that_store_hear_each_other, 0, TOPOLOGIES)
{
	each_pair(&topologies[_i], both_hear);
}

/* In memory of a neighbour each source that is passed on has a block of its own, and the forwarder the first. */
static void own_block(const struct cvy_ep_hosts *h, int source, int target)
{
	const int by = cvy_ep_stored_by(h, source, target), block = cvy_ep_block(h, by, source);

	if (by == source)
		return;
	ck_assert_int_ge(block, 1);
	ck_assert_int_lt(block, cvy_ep_blocks_of(h, by));
	for (int s = 0; s < MOST; s++)
		if (s != source && has(cvy_ep_passes_on(h, by), s))
			ck_assert_int_ne(cvy_ep_block(h, by, s), block);
}

TEST_LOOP(each_source_has_a_block, 0, TOPOLOGIES)
{
	each_pair(&topologies[_i], own_block);
}

/* Sources of one host are spread over the forwarders of another: the numbers differ by one at most. */
static void evenly(const struct cvy_ep_hosts *h, int source, int target)
{
	const uint32_t from = h->of[source], there = h->of[target];
	int least = MOST, most = 0;

	if (cvy_ep_of_one_host(h, source, target))
		return;
	for (int r = 0; r < MOST; r++) {
		const int n = cvy_ep_members(cvy_ep_passes_on(h, r) & from);

		if (!has(there, r))
			continue;
		least = n < least ? n : least;
		most = n > most ? n : most;
	}
	ck_assert_int_le(most - least, 1);
}

TEST_LOOP(sources_spread_evenly_over_forwarders, 0, TOPOLOGIES)
{
	each_pair(&topologies[_i], evenly);
}

TEST(equal_hosts_have_equal_partners)
{
	const struct cvy_ep_hosts h = hosts_of(&topologies[3], 0xff);

	for (int r = 0; r < 4; r++) {
		ck_assert_int_eq(cvy_ep_forwarder(&h, r, 4), r + 4);
		ck_assert_int_eq(cvy_ep_forwarder(&h, r + 4, 0), r);
		ck_assert_int_eq(cvy_ep_passes_on(&h, r), 1 << (r + 4));
		ck_assert_int_eq(cvy_ep_hears(&h, r), (0xf & ~(1 << r)) | 1 << (r + 4));
	}
	ck_assert_int_eq(cvy_ep_stored_by(&h, 1, 6), 5);
	ck_assert_int_eq(cvy_ep_stored_by(&h, 1, 5), 1);
	ck_assert_int_eq(cvy_ep_stored_by(&h, 1, 3), 1);
}

/* Rank 4 of 2x4 has died: ranks 5 to 7 have indices 0 to 2, and rank 3 begins with rank 5 again. */
TEST(a_hole_moves_what_went_through_it)
{
	const struct cvy_ep_hosts h = hosts_of(&topologies[3], 0xef);
	const int want[4] = { 5, 6, 7, 5 };

	for (int r = 0; r < 4; r++)
		ck_assert_int_eq(cvy_ep_forwarder(&h, r, 5), want[r]);
	ck_assert_int_eq(cvy_ep_forwarder(&h, 5, 0), 0);
	ck_assert_int_eq(cvy_ep_passes_on(&h, 3), 0);
	ck_assert(has(cvy_ep_hears(&h, 5), 3)); /* which stores here, and in whose memory rank 5 does not store */
	ck_assert(!has(cvy_ep_gives(&h, 5), 3));
}

TEST(the_last_rank_counts)
{
	struct cvy_ep_hosts h = { 1u << 31 | 1, { 0 } };

	h.of[0] = 1;
	h.of[31] = 1u << 31;
	ck_assert_int_eq(cvy_ep_forwarder(&h, 0, 31), 31);
	ck_assert_int_eq(cvy_ep_forwarder(&h, 31, 0), 0);
	ck_assert_uint_eq(cvy_ep_gives(&h, 0), 1u << 31);
	ck_assert_uint_eq(cvy_ep_hears(&h, 31), 1);
}

SUITE_MAIN(.name = "collectives/ep_hops")
