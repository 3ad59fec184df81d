/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the store: what is read from them, and what is refused. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#include "../../suite.h"
#include "record.h"

static const char *const good[] = { "OK",  "gid",	 "g",	 "max",	     "8",	"epoch",   "3",
				    "vid", "00ff",	 "base", "12",	     "fail",	"11 LOST", "stamp",
				    "20",  "size",	 "3",	 "m:0",	     "5 0 a h", "m:2",	   "9 - b h",
				    "l:3", "00ff 1 2 -", "j:4",	 "7 n c h 3" };
#define GOOD ((int)(sizeof(good) / sizeof(good[0])))

static struct cvy_view *view_with(const char *field, const char *value, int *err)
{
	struct cvy_record r = { 0 };
	struct cvy_view *v = NULL;

	ck_assert_int_eq(cvy_record_take(&r, GOOD, good), 0);
	if (field)
		ck_assert_int_eq(cvy_record_set(&r, field, value), 0);
	*err = cvy_record_view(&r, &v);
	cvy_record_clear(&r);
	return v;
}

TEST(a_record_becomes_a_view)
{
	int err;
	struct cvy_view *v = view_with(NULL, NULL, &err);

	ck_assert_int_eq(err, 0);
	ck_assert_uint_eq(v->epoch, 3);
	ck_assert_uint_eq(v->vid, 0xff);
	ck_assert_uint_eq(v->base, 12);
	ck_assert_uint_eq(v->fail_seq, 11);
	ck_assert_int_eq(v->fail_err, COVEY_ERR_LOST);
	ck_assert_uint_eq(v->members.word[0], 5);
	ck_assert_uint_eq(v->pending.word[0], 4);
	ck_assert_uint_eq(v->member[2].inc, 9);
	cvy_view_free(v);
}

TEST(nonsense_is_refused)
{
	static const char *const bad[][2] = { { "max", "0" },	{ "max", "5000" },	  { "epoch", "-1" },
					      { "epoch", "x" }, { "m:9", "5 0 a h" },	  { "m:1", "zero" },
					      { "size", "9" },	{ "stamp", "4294967296" } };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int err;

		ck_assert_ptr_null(view_with(bad[i][0], bad[i][1], &err));
		ck_assert_int_eq(err, COVEY_ERR_INVAL);
	}
}

TEST(joiners_are_news_and_no_part_of_a_record)
{
	struct cvy_record r = { 0 }, news = { 0 };
	struct cvy_joiner j;

	cvy_record_take(&r, GOOD, good);
	cvy_record_news(&news, GOOD, good);
	ck_assert_ptr_null(cvy_record_get(&r, "j:4"));
	ck_assert_int_eq(news.count, 1);
	ck_assert_int_eq(cvy_joiner_parse(cvy_record_at(&news, 'j', 4), &j), 0);
	ck_assert_uint_eq(j.inc, 7);
	ck_assert_uint_eq(j.epoch, 3);
	cvy_record_clear(&r);
	cvy_record_clear(&news);
}

/* Four addresses of the longest kind that fit: they come through whole, and what is longer is refused. */
TEST(a_member_may_have_several_addresses)
{
	static const char list[] =
		"unix:@covey-00112233445566778899aabbccddeeff,tcp:[2001:db8:1111:2222:3333:4444:5555:6666]:65535,tcp:"
		"192.168.100.100:65535,tcp:[2001:db8:1111:2222:3333:4444:5555:6667]:65535,tcp:10.100.100.100:65535";
	char text[700], addr[256], host[128], longer[300];
	struct cvy_joiner j;

	snprintf(text, sizeof(text), "7 9 %s h 3", list);
	ck_assert_int_eq(cvy_joiner_parse(text, &j), 0);
	ck_assert_str_eq(j.addr, list);
	snprintf(text, sizeof(text), "7 2 %s h", list);
	ck_assert_int_eq(cvy_member_place(text, addr, sizeof(addr), host, sizeof(host)), 0);
	ck_assert_str_eq(addr, list);
	ck_assert_str_eq(host, "h");
	memset(longer, 'x', sizeof(longer));
	longer[256] = '\0';
	snprintf(text, sizeof(text), "7 9 %s h 3", longer);
	ck_assert_int_ne(cvy_joiner_parse(text, &j), 0);
	longer[255] = '\0';
	snprintf(text, sizeof(text), "7 9 %s h 3", longer);
	ck_assert_int_eq(cvy_joiner_parse(text, &j), 0);
}

TEST(an_active_view_has_its_admitted_as_voters)
{
	struct cvy_record r = { 0 };

	cvy_record_take(&r, GOOD, good);
	cvy_record_set(&r, "u:2", "0:5");
	cvy_record_activate(&r);
	ck_assert_str_eq(cvy_record_get(&r, "o:0"), "5");
	ck_assert_ptr_null(cvy_record_get(&r, "o:2"));
	ck_assert_ptr_null(cvy_record_get(&r, "u:2"));
	cvy_record_clear(&r);
}

static int same_text(const struct cvy_record *a, const struct cvy_record *b, const char *field)
{
	return cvy_record_get(a, field) && cvy_record_get(a, field) == cvy_record_get(b, field);
}

/* Each of thousands of members keeps several records of thousands of fields. */
TEST(records_of_one_member_share_their_strings)
{
	static const char *const next[] = { "OK", "epoch", "4",	       "on",  "3 00ff", "vid",
					    "1f", "l:4",   "1f 2 - -", "m:0", "5 0 a h" };
	struct cvy_record r = { 0 }, learned = { 0 }, step = { 0 }, news = { 0 };

	ck_assert_int_eq(cvy_record_take(&r, GOOD, good), 0);
	ck_assert_int_eq(cvy_record_set(&r, "m:1", "6 0 d h"), 0);
	ck_assert_int_eq(cvy_record_activate(&r), 0);
	ck_assert_int_eq(cvy_record_copy(&learned, &r), 0);
	ck_assert_int_eq(learned.room, learned.count);
	ck_assert_int_eq(cvy_record_activate(&learned), 0);
	ck_assert(same_text(&learned, &r, "m:1"));
	ck_assert(same_text(&learned, &r, "o:1"));
	ck_assert_int_eq(cvy_record_step(&step, &learned, sizeof(next) / sizeof(next[0]), next, &news), 0);
	ck_assert(same_text(&step, &r, "m:1"));
	ck_assert(same_text(&step, &r, "o:1"));
	ck_assert_ptr_null(cvy_record_get(&step, "m:2"));
	cvy_record_clear(&r);
	cvy_record_clear(&learned);
	ck_assert_str_eq(cvy_record_get(&step, "m:1"), "6 0 d h"); /* as long as one of them lives */
	cvy_record_clear(&step);
}

SUITE_MAIN(.name = "membership/record", .timeout_s = 60)
