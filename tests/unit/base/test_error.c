/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts and boxes, log lines, names of events. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "clean.h"
#include "error.h"
#include "event.h"
#include "log.h"

TEST(text_of_others_is_printed_clean)
{
	static const struct {
		const char *from, *to;
	} text[] = {
		{ "", "" },
		{ "a rank, 17 ~", "a rank, 17 ~" },
		{ "\033[2Jx\r\n\t\177", "?[2Jx????" },
		{ "j\303\266rg \342\202\254 \360\237\220\246", "j\303\266rg \342\202\254 \360\237\220\246" },
		{ "\302\23331m \233", "??31m ?" },	      /* control characters above 0x7f */
		{ "\300\201 \355\240\200 \377", "?? ??? ?" }, /* no UTF-8 */
		{ "cut \342\202", "cut ??" },
	};
	struct covey_error_info info;
	char copy[64];

	for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
		strcpy(copy, text[i].from);
		ck_assert_str_eq(cvy_clean(copy), text[i].to);
	}
	cvy_fail(NULL, COVEY_ERR_STORE, -1, 0, "the store says: %s", "\033]0;x\a");
	cvy_errbox_get(NULL, &info);
	ck_assert_str_eq(info.cause, "the store says: ?]0;x?");
}

TEST(strerror_knows_every_code)
{
#define HAS_TEXT(name, code, text) ck_assert_str_eq(covey_strerror(code), text);
	COVEY_ERROR_LIST(HAS_TEXT)
#undef HAS_TEXT
	ck_assert_str_eq(covey_strerror(0), "success");
	ck_assert_str_eq(covey_strerror(-79), "unknown error");
}

TEST(box_keeps_the_last_failure)
{
	struct cvy_errbox *box = cvy_errbox_new();
	struct covey_error_info info;

	cvy_errbox_get(box, &info);
	ck_assert_int_eq(info.err, 0);
	ck_assert_int_eq(info.rank, -1);
	ck_assert_int_eq(cvy_fail(box, COVEY_ERR_PEER, 3, 17, "rank %d is gone", 3), COVEY_ERR_PEER);
	cvy_errbox_get(box, &info);
	ck_assert_int_eq(info.err, COVEY_ERR_PEER);
	ck_assert_int_eq(info.rank, 3);
	ck_assert_uint_eq(info.epoch, 17);
	ck_assert_str_eq(info.cause, "rank 3 is gone");
	ck_assert_uint_eq(info.seq, 0);
	cvy_errbox_seq(box, COVEY_ERR_PEER, 8);
	cvy_errbox_seq(box, COVEY_ERR_LOST, 9);
	cvy_errbox_get(box, &info);
	ck_assert_uint_eq(info.seq, 8);
	cvy_errbox_free(box);
}

TEST(box_cuts_a_long_cause)
{
	struct covey_error_info info;

	cvy_fail(NULL, COVEY_ERR_IO, -1, 0, "%0400d", 1);
	cvy_errbox_get(NULL, &info);
	ck_assert_uint_eq(strlen(info.cause), sizeof(info.cause) - 1);
}

static void *fail_elsewhere(void *arg)
{
	cvy_fail(NULL, COVEY_ERR_IO, 1, 1, "elsewhere");
	return arg;
}

TEST(box_of_a_thread_is_its_own)
{
	struct covey_error_info info;
	pthread_t thread;

	cvy_fail(NULL, COVEY_ERR_NOMEM, -1, 0, "here");
	ck_assert_int_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
	pthread_join(thread, NULL);
	cvy_errbox_get(NULL, &info);
	ck_assert_str_eq(info.cause, "here");
}

static void keep_line(void *ctx, int level, const char *line)
{
	ck_assert_int_eq(level, COVEY_LOG_WARN);
	strcpy(ctx, line);
	errno = EPERM;
}

TEST(log_line_names_level_and_room_and_keeps_errno)
{
	char line[600] = "";

	covey_log_set(keep_line, line, COVEY_LOG_WARN);
	errno = EAGAIN;
	cvy_warn("membership", "rank %d is late", 3);
	ck_assert_int_eq(errno, EAGAIN);
	ck_assert_str_eq(line, "covey: warn: membership: rank 3 is late");
}

TEST(log_drops_what_is_above_the_level)
{
	char line[600] = "untouched";

	covey_log_set(keep_line, line, COVEY_LOG_WARN);
	cvy_info("base", "not seen");
	ck_assert_str_eq(line, "untouched");
	ck_assert(!cvy_log_enabled(COVEY_LOG_INFO));
	setenv("COVEY_LOG", "info", 1);
	covey_log_set(NULL, NULL, 0);
	ck_assert(cvy_log_enabled(COVEY_LOG_INFO));
	ck_assert(!cvy_log_enabled(COVEY_LOG_DEBUG));
	setenv("COVEY_LOG", "loud", 1);
	covey_log_set(NULL, NULL, 0);
	ck_assert(!cvy_log_enabled(COVEY_LOG_INFO));
}

TEST(source_names_differ)
{
	for (int a = CVY_SOURCE_ROBUST; a <= CVY_SOURCE_OPERATOR; a++) {
		ck_assert_str_ne(cvy_source_name(a), "unknown");
		for (int b = CVY_SOURCE_ROBUST; b < a; b++)
			ck_assert_str_ne(cvy_source_name(a), cvy_source_name(b));
	}
	ck_assert_str_eq(cvy_source_name(0), "unknown");
}

SUITE_MAIN(.name = "base/error")
