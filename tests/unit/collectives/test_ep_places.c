/* SPDX-License-Identifier: Apache-2.0 */
/* The rule by which tokens find the place of their expert: all tables, masks and sources of small groups. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "ep_places.h"

enum { RANKS = 5, PLACES = 3, EXPERTS = 3 };

/* The rule in other words: lists who lives, then takes one. */
static int listed(const int *owner, int places, int source, unsigned alive)
{
	int list[PLACES], n = 0;

	for (int p = 0; p < places; p++)
		if (owner[p] >= 0 && alive >> owner[p] & 1)
			list[n++] = p;
	return n ? list[source % n] : -1;
}

/* Table @number: of each place a rank or -1; 0: a rank would be named twice. */
static int table_of(int number, int places, int *owner)
{
	for (int p = 0; p < places; p++, number /= RANKS + 1) {
		owner[p] = number % (RANKS + 1) - 1;
		for (int q = 0; q < p; q++)
			if (owner[p] >= 0 && owner[q] == owner[p])
				return 0;
	}
	return 1;
}

TEST_LOOP(all_tables_masks_and_sources, 1, PLACES + 1)
{
	const int places = _i;
	int tables = 1, owner[EXPERTS * PLACES], seen = 0;
	uint8_t near[EXPERTS * PLACES];

	for (int p = 0; p < places; p++)
		tables *= RANKS + 1;
	for (int n = 0; n < tables; n++) {
		int expert = n % EXPERTS;
		const struct cvy_ep_places t = { owner, places, NULL }, as_bytes = { NULL, places, near };

		for (int i = 0; i < EXPERTS * PLACES; i++)
			owner[i] = i % RANKS; /* of other experts: not read */
		if (!table_of(n, places, owner + expert * places))
			continue;
		for (int i = 0; i < EXPERTS * PLACES; i++)
			near[i] = owner[i] < 0 ? CVY_EP_NOBODY : (uint8_t)owner[i];
		for (unsigned alive = 0; alive < 1u << RANKS; alive++)
			for (int s = 0; s < RANKS; s++) {
				const uint64_t living = alive;
				int want = listed(owner + expert * places, places, s, alive);

				ck_assert_int_eq(cvy_ep_place_of(&t, expert, s, &living),
						 want < 0 ? -1 : expert * places + want);
				ck_assert_int_eq(cvy_ep_place_of(&as_bytes, expert, s, &living),
						 want < 0 ? -1 : expert * places + want);
				seen += want >= 0;
			}
	}
	ck_assert_int_gt(seen, 0);
}

/* How many of the ranks 0..RANKS-1, all of them sources, each place serves: they differ by one at most. */
TEST(sources_spread_evenly_over_the_places_that_live)
{
	int owner[PLACES] = { 3, 0, 4 };
	const struct cvy_ep_places t = { owner, PLACES, NULL };

	for (uint64_t living = 0; living < 1u << RANKS; living++) {
		int served[PLACES] = { 0 }, least = RANKS, most = 0;

		for (int s = 0; s < RANKS; s++) {
			int v = cvy_ep_place_of(&t, 0, s, &living);

			if (v >= 0)
				served[v]++;
		}
		for (int p = 0; p < PLACES; p++) {
			if (!(living >> owner[p] & 1)) {
				ck_assert_int_eq(served[p], 0);
				continue;
			}
			least = served[p] < least ? served[p] : least;
			most = served[p] > most ? served[p] : most;
		}
		ck_assert(!most || most - least <= 1);
	}
}

/* A death moves the tokens of the place that died, and no place that lives loses all of its own. */
TEST(a_death_leaves_tokens_with_living_places_alone)
{
	int owner[PLACES] = { 1, 2, 4 };
	const struct cvy_ep_places t = { owner, PLACES, NULL };

	for (int dead = 0; dead < PLACES; dead++) {
		const uint64_t living = ~(1ull << owner[dead]);

		for (int s = 0; s < 64; s++) {
			int v = cvy_ep_place_of(&t, 0, s, &living);

			ck_assert_int_ge(v, 0);
			ck_assert_int_ne(v, dead);
		}
	}
}

TEST(ranks_past_the_first_word_are_found)
{
	int owner[2] = { 63, 4095 };
	const struct cvy_ep_places t = { owner, 2, NULL };
	uint64_t living[64] = { 0 };

	ck_assert_int_eq(cvy_ep_place_of(&t, 0, 7, living), -1);
	living[63] = 1ull << 63;
	for (int s = 0; s < 3; s++)
		ck_assert_int_eq(cvy_ep_place_of(&t, 0, s, living), 1);
	living[0] = 1ull << 63;
	ck_assert_int_eq(cvy_ep_place_of(&t, 0, 4094, living), 0);
	ck_assert_int_eq(cvy_ep_place_of(&t, 0, 4095, living), 1);
}

SUITE_MAIN(.name = "collectives/ep_places")
