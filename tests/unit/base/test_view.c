/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of ranks and views. */
#include <check.h>
#include <stdlib.h>

#include "../../suite.h"
#include "view.h"

static const char *text_of(const int *ranks, int n, size_t bytes)
{
	static char text[64];
	struct covey_mask m = { { 0 } };

	for (int i = 0; i < n; i++)
		cvy_mask_add(&m, ranks[i]);
	return cvy_mask_text(&m, text, bytes);
}

TEST(mask_text_shortens_runs)
{
	ck_assert_str_eq(text_of((int[]){ 0, 2, 3, 4 }, 4, 64), "0,2-4");
	ck_assert_str_eq(text_of((int[]){ 62, 63, 64, 65, 4095 }, 5, 64), "62-65,4095");
	ck_assert_str_eq(text_of((int[]){ 7, 8 }, 2, 64), "7,8");
	ck_assert_str_eq(text_of(NULL, 0, 64), "none");
}

TEST(mask_text_says_what_did_not_fit)
{
	ck_assert_str_eq(text_of((int[]){ 1, 3, 5, 7 }, 4, 8), "1,3,5,7");
	ck_assert_str_eq(text_of((int[]){ 1, 3, 5, 7 }, 4, 7), "1,3..");
	ck_assert_str_eq(text_of((int[]){ 1, 3 }, 2, 1), "");
}

TEST(mask_walk_visits_each_rank_once)
{
	struct covey_mask m = { { 0 } };
	int want[] = { 0, 63, 64, 4095 }, n = 0;

	for (int i = 0; i < 4; i++)
		cvy_mask_add(&m, want[i]);
	CVY_MASK_EACH(rank, &m)
	ck_assert_int_eq(rank, want[n++]);
	ck_assert_int_eq(n, 4);
}

static struct cvy_view *four(void)
{
	struct cvy_view *view = cvy_view_new(8);

	/* 0 and 1 founders, 3 admitted at 10, 5 admitted at 20, 6 pending */
	view->size = 2;
	for (int i = 0; i < 5; i++) {
		static const int rank[] = { 0, 1, 3, 5, 6 };
		static const uint64_t from[] = { 0, 0, 10, 20, CVY_PENDING };

		cvy_mask_add(&view->members, rank[i]);
		view->member[rank[i]] = (struct cvy_member){ .inc = (uint64_t)i + 1, .from = from[i] };
	}
	cvy_mask_add(&view->pending, 6);
	return view;
}

TEST(view_mask_begins_with_the_admit)
{
	struct cvy_view *view = four();
	struct covey_mask mask;
	char text[32];

	cvy_view_mask(view, 9, &mask);
	ck_assert_str_eq(cvy_mask_text(&mask, text, sizeof(text)), "0,1");
	cvy_view_mask(view, 10, &mask);
	ck_assert_str_eq(cvy_mask_text(&mask, text, sizeof(text)), "0,1,3");
	cvy_view_mask(view, UINT64_MAX, &mask);
	ck_assert_str_eq(cvy_mask_text(&mask, text, sizeof(text)), "0,1,3,5");
	cvy_view_free(view);
}

TEST(view_size_grows_after_the_admit)
{
	struct cvy_view *view = four();

	ck_assert_int_eq(cvy_view_size(view, 10), 2);
	ck_assert_int_eq(cvy_view_size(view, 11), 4);
	ck_assert_int_eq(cvy_view_size(view, 21), 6);
	view->size = 7;
	ck_assert_int_eq(cvy_view_size(view, 1), 7);
	cvy_view_free(view);
}

TEST(view_copies_are_whole)
{
	struct cvy_view *view = four(), *dup = cvy_view_dup(view), *copy = cvy_view_new(8);

	cvy_view_copy(copy, view);
	view->member[5].inc = 99;
	ck_assert_uint_eq(dup->member[5].inc, 4);
	ck_assert_uint_eq(copy->member[5].inc, 4);
	ck_assert(cvy_mask_equal(&copy->members, &view->members));
	cvy_view_free(view);
	cvy_view_free(dup);
	cvy_view_free(copy);
}

SUITE_MAIN(.name = "base/view")
