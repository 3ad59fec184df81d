/* SPDX-License-Identifier: Apache-2.0 */
/* elasticInfo, of masks and back. */
#include "wire_oracle.h"

#include "mask.h"
#include "wire_elastic.h"

static struct covey_mask mask_of(uint64_t bits)
{
	return (struct covey_mask){ { bits } };
}

/* Of 8 ranks, 2 to 5 are gone. */
TEST(eight_ranks_of_which_four_are_gone)
{
	for (int shared = 0; shared <= 2; shared++) {
		const int32_t want[20] = { 1, 4, shared, 4 - shared, 0, 1, -1, -1, -1, -1,
					   2, 3, 0,	 1,	     6, 7, -1, -1, -1, -1 };
		struct cvy_wire_elastic e = { .ranks = 8, .shared_ranks = shared, .experts = 8 - shared };
		struct covey_mask living = mask_of(0xc3), back;
		int32_t words[20];

		ck_assert_uint_eq(cvy_wire_elastic_words(&e), 20);
		ck_assert_int_eq(cvy_wire_elastic_write(&e, &living, words), 0);
		ck_assert_mem_eq(words, want, sizeof(want));
		ck_assert_int_eq(cvy_wire_elastic_read(&e, want, 20, &back), 0);
		ck_assert(cvy_mask_equal(&back, &living));
	}
}

TEST(experts_of_a_rank_stay_as_many)
{
	struct cvy_wire_elastic e = { .ranks = 8, .shared_ranks = 2, .experts = 24 };
	struct covey_mask living = mask_of(0xbe);
	int32_t words[20];

	ck_assert_int_eq(cvy_wire_elastic_write(&e, &living, words), 0);
	ck_assert_int_eq(words[0], 1);
	ck_assert_int_eq(words[1], 6);
	ck_assert_int_eq(words[2], 1);
	ck_assert_int_eq(words[3], 20);
}

TEST(nobody_is_gone)
{
	struct cvy_wire_elastic e = { .ranks = 3, .experts = 6 };
	const int32_t want[10] = { 0, 3, 0, 6, 0, 1, 2, 0, 1, 2 };
	struct covey_mask living = mask_of(7), back;
	int32_t words[10];

	ck_assert_int_eq(cvy_wire_elastic_write(&e, &living, words), 0);
	ck_assert_mem_eq(words, want, sizeof(want));
	memset(words + 1, 0x55, sizeof(words) - 4);
	ck_assert_int_eq(cvy_wire_elastic_read(&e, words, 10, &back), 0);
	ck_assert(cvy_mask_equal(&back, &living));
}

TEST(all_masks_come_back)
{
	struct cvy_wire_elastic e = { .ranks = 7, .shared_ranks = 2, .experts = 10 };

	for (uint64_t bits = 1; bits < 128; bits++) {
		struct covey_mask living = mask_of(bits), back;
		int32_t words[18];

		if (bits < 4) { /* only shared ranks */
			ck_refused(cvy_wire_elastic_write(&e, &living, words), "no rank from 2 to 6 lives");
			continue;
		}
		ck_assert_int_eq(cvy_wire_elastic_write(&e, &living, words), 0);
		ck_assert_int_eq(cvy_wire_elastic_read(&e, words, 18, &back), 0);
		ck_assert(cvy_mask_equal(&back, &living));
	}
}

static void refuse(int at, int32_t value, const char *cause)
{
	int32_t words[20] = { 1, 4, 1, 9, 0, 1, -1, -1, -1, -1, 2, 3, 0, 1, 6, 7, -1, -1, -1, -1 };
	struct cvy_wire_elastic e = { .ranks = 8, .shared_ranks = 1, .experts = 21 };
	struct covey_mask living;

	ck_assert_int_eq(cvy_wire_elastic_read(&e, words, 20, &living), 0);
	words[at] = value;
	ck_refused(cvy_wire_elastic_read(&e, words, 20, &living), cause);
}

TEST(what_does_not_agree_is_refused)
{
	struct cvy_wire_elastic e = { .ranks = 8, .shared_ranks = 1, .experts = 21 };
	struct covey_mask living = { { 0x1c3 } };
	int32_t words[20] = { 0 };

	refuse(0, 2, "the first word of elasticInfo is 2: it must be from 0 to 1");
	refuse(1, 5, "living ranks in elasticInfo is 5: it must be from 4 to 4");
	refuse(1, 9, "living ranks in elasticInfo is 9");
	refuse(1, 3, "the new number of rank 7 is 3");
	refuse(2, 2, "living shared ranks in elasticInfo is 2: it must be from 1 to 1");
	refuse(3, 12, "living experts in elasticInfo is 12: it must be from 9 to 9");
	refuse(4, -2, "the new number of rank 0 is -2");
	refuse(4, 1, "the new number of rank 0 is 1");
	refuse(6, INT32_MAX, "the new number of rank 2 is 2147483647");
	refuse(12, 9, "the new number of rank 0 is 0");
	refuse(17, 2, "the rank of new number 5 is 2");
	ck_refused(cvy_wire_elastic_read(&e, words, 19, &living), "elasticInfo has 19 words: with 8 ranks it has 20");
	ck_refused(cvy_wire_elastic_write(&e, &living, words), "rank 8 lives: the group began with 8 ranks");
	e.experts = 20;
	ck_refused(cvy_wire_elastic_write(&e, &living, words), "20 experts on 7 ranks");
}

TEST_LOOP(any_words_do_no_harm, 0, 3)
{
	struct cvy_wire_elastic e = { .ranks = 4, .shared_ranks = 1, .experts = 6 };
	struct covey_mask living;
	int accepted = 0;

	oracle_seed(_i);
	for (int i = 0; i < 20000; i++) {
		struct cvy_wire_image image = image_open(12 * 4);

		for (int k = 0; k < 12; k++)
			cvy_wire_put32(image.at + 4 * k,
				       oracle_draw(50) ? oracle_draw(6) - 1 : oracle_draw(1 << 24) << 8);
		accepted += !cvy_wire_elastic_read(&e, (const int32_t *)(const void *)image.at, 12, &living);
		image_close(&image);
	}
	ck_assert_int_gt(accepted, 0);
}

SUITE_MAIN(.name = "golden/wire_elastic")
