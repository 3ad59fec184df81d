/* SPDX-License-Identifier: Apache-2.0 */
/* Tables and arithmetic of libnccl.so.2: no group and no device. */
#include <check.h>
#include <covey.h>
#include <stdlib.h>
#include <string.h>

#include "../suite.h"
#include "pure.h"

TEST(every_type_is_coveys_or_moves_as_bytes)
{
	for (int type = 0; type < ncclNumTypes; type++) {
		int eight_bits = type == ncclFloat8e4m3 || type == ncclFloat8e5m2;

		ck_assert_int_eq(cvy_nccl_reduced((ncclDataType_t)type), eight_bits ? COVEY_FLOAT32 : type);
		ck_assert_int_eq(cvy_nccl_moved((ncclDataType_t)type), eight_bits ? COVEY_UINT8 : type);
	}
	ck_assert_int_eq(cvy_nccl_reduced(ncclNumTypes), -1);
	ck_assert_int_eq(cvy_nccl_moved(ncclNumTypes), -1);
	ck_assert_int_eq(cvy_nccl_moved((ncclDataType_t)-1), -1);
	ck_assert_uint_eq(cvy_nccl_bytes(ncclNumTypes), 0);
	ck_assert_uint_eq(cvy_nccl_bytes(ncclBfloat16), 2);
	ck_assert_int_eq(ncclAvg, COVEY_AVG);
	ck_assert_int_eq(ncclMin, COVEY_MIN);
}

TEST(every_error_of_covey_is_one_of_nccl)
{
#define ONE(name, code, text) \
	ck_assert_int_gt(cvy_nccl_result(code), ncclSuccess); \
	ck_assert_int_lt(cvy_nccl_result(code), ncclInProgress);
	COVEY_ERROR_LIST(ONE)
#undef ONE
	ck_assert_int_eq(cvy_nccl_result(0), ncclSuccess);
	ck_assert_int_eq(cvy_nccl_result(COVEY_ERR_PEER), ncclRemoteError);
	ck_assert_int_eq(cvy_nccl_result(COVEY_ERR_FENCED), ncclRemoteError);
	ck_assert_int_eq(cvy_nccl_result(COVEY_ERR_INVAL), ncclInvalidArgument);
	ck_assert_int_eq(cvy_nccl_result(COVEY_ERR_UNSUPPORTED), ncclInvalidUsage);
	ck_assert_int_eq(cvy_nccl_result(COVEY_ERR_STORE), ncclSystemError);
}

TEST(names_differ_by_step_number_and_count)
{
	uint64_t path[4 * 4 * 4];
	int n = 0;

	for (int step = CVY_NCCL_SPLIT; step <= CVY_NCCL_GROW; step++)
		for (uint64_t number = 0; number < 4; number++)
			for (uint64_t count = 0; count < 4; count++)
				path[n++] = cvy_nccl_mix(7, (enum cvy_nccl_step)step, number, count);
	for (int i = 0; i < n; i++) {
		ck_assert_uint_ne(path[i], 0);
		for (int k = 0; k < i; k++)
			ck_assert_uint_ne(path[i], path[k]);
	}
	ck_assert_uint_eq(cvy_nccl_mix(7, CVY_NCCL_SPLIT, 1, 0), path[4]);
}

/* covey takes letters, digits, . _ - and at most 64 of them. */
TEST(a_name_is_one_for_covey)
{
	struct cvy_nccl_id id = { .root = UINT64_MAX, .path = UINT64_MAX - 1 };
	char name[CVY_NCCL_NAME_CHARS];

	cvy_nccl_name(&id, name);
	ck_assert_str_eq(name, "nccl-ffffffffffffffff-fffffffffffffffe");
}

TEST(split_orders_by_key_then_rank)
{
	static const int32_t all[5][2] = { { 1, 5 }, { 0, 0 }, { 1, 5 }, { 1, 2 }, { -1, 0 } };
	static const int sizes[5] = { 3, 1, 3, 3, 0 }, ranks[5] = { 1, 0, 2, 0, -7 };

	for (int r = 0; r < 5; r++) {
		int rank = -7;

		ck_assert_int_eq(cvy_nccl_split(all, 5, r, &rank), sizes[r]);
		ck_assert_int_eq(rank, ranks[r]);
	}
}

TEST(shrink_closes_gaps_whatever_the_order_of_the_list)
{
	static const int one[] = { 0, 3 }, other[] = { 3, 0 };
	uint64_t key[2];
	int rank[2] = { -1, -1 };

	ck_assert_int_eq(cvy_nccl_shrink(one, 2, 5, 4, &rank[0], &key[0]), 3);
	ck_assert_int_eq(cvy_nccl_shrink(other, 2, 5, 4, &rank[1], &key[1]), 3);
	ck_assert_int_eq(rank[0], 2);
	ck_assert_int_eq(rank[1], 2);
	ck_assert_uint_eq(key[0], key[1]);
}

TEST(shrink_refuses_lists_that_are_none)
{
	static const int itself[] = { 2 }, twice[] = { 1, 1 }, beyond[] = { 4 }, below[] = { -1 };
	uint64_t key;
	int rank;

	ck_assert_int_eq(cvy_nccl_shrink(itself, 1, 4, 2, &rank, &key), -1);
	ck_assert_int_eq(cvy_nccl_shrink(twice, 2, 4, 2, &rank, &key), -1);
	ck_assert_int_eq(cvy_nccl_shrink(beyond, 1, 4, 2, &rank, &key), -1);
	ck_assert_int_eq(cvy_nccl_shrink(below, 1, 4, 2, &rank, &key), -1);
	ck_assert_int_eq(cvy_nccl_shrink(NULL, 1, 4, 2, &rank, &key), -1);
	ck_assert_int_eq(cvy_nccl_shrink(itself, 0, 4, 2, &rank, &key), -1);
}

/* All peers, both ways: no round has more messages than one launch takes, and both sides have one in the same. */
static void rounds_of(int rank, int size)
{
	static int in_round[2000];

	int uneven = 0, falls = 0, most = 0;

	memset(in_round, 0, sizeof(in_round));
	for (int peer = 0; peer < size; peer++)
		for (int nth = 0; nth < 150; nth++) {
			int round = cvy_nccl_round(nth, size, rank, peer);

			uneven += round != cvy_nccl_round(nth, size, peer, rank);
			falls += nth && round < cvy_nccl_round(nth - 1, size, rank, peer);
			in_round[round] += 2;
			most = in_round[round] > most ? in_round[round] : most;
		}
	ck_assert_int_eq(uneven, 0);
	ck_assert_int_eq(falls, 0);
	ck_assert_int_le(most, CVY_NCCL_MESSAGES);
}

TEST(rounds_fit_a_launch)
{
	for (int size = 1; size <= CVY_NCCL_RANKS; size++) {
		rounds_of(0, size);
		rounds_of(size - 1, size);
	}
}

/* A set of ranks has one name, however many ranks there are. */
TEST(shrinks_of_large_communicators_differ)
{
	static const int sets[4][2] = { { 3, 100 }, { 67, 100 }, { 3, 164 }, { 100, 3 } };
	uint64_t key[4];
	int rank;

	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(cvy_nccl_shrink(sets[i], 2, 256, 255, &rank, &key[i]), 254);
	ck_assert_uint_ne(key[0], key[1]);
	ck_assert_uint_ne(key[0], key[2]);
	ck_assert_uint_ne(key[1], key[2]);
	ck_assert_uint_eq(key[0], key[3]);
}

SUITE_MAIN(.name = "nccl/pure")
