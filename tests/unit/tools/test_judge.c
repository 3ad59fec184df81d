/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge of ep-chaos (tools/chaos/check.c): whether a dispatch or combine may have an empty mask. Only that of a rank
 * that another left out, as its last operation of a view; and then no mask of that view names this rank.
 *
 * labels: unit
 */
#include "../../suite.h"
#include "chaos/plan.h"
#include "covey.h"

#include <check.h>

const char *const chaos_work_names[CHAOS_W_COUNT] = { "" };

static struct chaos_run run;
static struct chaos_crew crew = { .groups = 1, .ranks = 2 };
static int wrong;

void chaos_wrong(struct chaos_run *r, const char *format, ...)
{
	(void)r;
	(void)format;
	wrong++;
}

bool chaos_in_group(const struct chaos_crew *c, int group, int rank, int *member)
{
	(void)c;
	(void)group;
	*member = rank;
	return true;
}

static void begin(void)
{
	run.crew = &crew;
	run.ledger[0] = calloc(CHAOS_LEDGER, sizeof(*run.ledger[0]));
	ck_assert_ptr_nonnull(run.ledger[0]);
}

static void end(void)
{
	free(run.ledger[0]);
}

/* A rank logs its next operation, as crew.c reads it. */
static void logs_of(int rank, int op, uint32_t epoch, uint64_t mask, bool left)
{
	struct chaos_record *last = &run.worker[rank].last[0];
	const struct chaos_record record = {
		.seq = last->seq + 1, .op = op, .epoch = epoch, .mask = mask, .left = left
	};

	run.worker[rank].rank = rank;
	chaos_check(&run, rank, 0, &record);
	*last = record;
}

static void logs(int op, uint32_t epoch, uint64_t mask, bool left)
{
	logs_of(0, op, epoch, mask, left);
}

TEST(judge_lets_a_rank_be_left_behind_at_the_end_of_a_view)
{
	logs(OP_BARRIER, 1, 7, false);
	logs(CHAOS_W_DISPATCH, 1, 0, true);
	logs(CHAOS_W_COMBINE, 1, 0, true);
	logs(OP_BARRIER, 2, 3, false);
	ck_assert_int_eq(wrong, 0);
}
END_TEST

/* The root of a broadcast waits for nobody: it may have decided that too, before the view changed. */
TEST(judge_lets_a_root_run_ahead_of_a_rank_left_behind)
{
	logs(CHAOS_W_DISPATCH, 1, 0, true);
	logs(CHAOS_W_COMBINE, 1, 0, true);
	logs(OP_BROADCAST, 1, 7, false);
	logs(OP_BARRIER, 2, 3, false);
	ck_assert_int_eq(wrong, 0);
}
END_TEST

TEST(judge_finds_an_empty_mask_of_a_rank_that_nobody_left_out)
{
	logs(CHAOS_W_DISPATCH, 1, 0, false);
	ck_assert_int_eq(wrong, 1);
}
END_TEST

TEST(judge_finds_a_rank_left_behind_within_a_view)
{
	logs(CHAOS_W_DISPATCH, 1, 0, true);
	logs(OP_BARRIER, 1, 7, false);
	ck_assert_int_eq(wrong, 1);
}
END_TEST

TEST(judge_finds_a_mask_without_the_rank_itself)
{
	logs(CHAOS_W_DISPATCH, 1, 2, true);
	ck_assert_int_eq(wrong, 1);
}
END_TEST

/* @_i: which of the two is read first. */
TEST_LOOP(judge_finds_a_rank_left_behind_in_the_mask_of_another, 0, 2)
{
	if (_i)
		logs(CHAOS_W_DISPATCH, 1, 0, true);
	logs_of(1, CHAOS_W_DISPATCH, 1, 3, false);
	if (!_i)
		logs(CHAOS_W_DISPATCH, 1, 0, true);
	ck_assert_int_eq(wrong, 1);
}
END_TEST

/* A rank that was removed had its part; the others did the operation again in the next view, and there it was left behind. */
TEST(judge_lets_a_rank_be_left_behind_in_a_later_view_than_it_is_named_in)
{
	logs_of(1, CHAOS_W_DISPATCH, 1, 7, false);
	logs(CHAOS_W_DISPATCH, 2, 0, true);
	logs_of(2, CHAOS_W_DISPATCH, 2, 4, false);
	ck_assert_int_eq(wrong, 0);
}
END_TEST

TEST(judge_lets_a_combine_lack_all_rows_of_a_dispatch_that_failed)
{
	run.worker[0].last[0].status = COVEY_ERR_PEER;
	logs(CHAOS_W_COMBINE, 1, 0, true);
	logs_of(1, CHAOS_W_COMBINE, 1, 3, false);
	ck_assert_int_eq(wrong, 0);
}
END_TEST

SUITE_MAIN(.name = "tools/judge", .setup = begin, .teardown = end)
