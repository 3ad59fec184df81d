/* SPDX-License-Identifier: Apache-2.0 */
/* Works of operations on a device whose stream never comes past them: how looks and waits end, and what they say. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "device_work.h"
#include "numbers.h"

static int look_in_vain(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct cvy_gpu_status *out)
{
	return COVEY_ERR_AGAIN;
}

static struct cvy_site site;
static struct covey_group group;
static struct covey_work work;

static void setup(void)
{
	numbers.receipt_look = look_in_vain;
	group.here = &site;
	group.box = cvy_errbox_new();
	group.identity.rank = 2;
	group.view = cvy_view_new(4);
	group.view->epoch = 7;
	group.device = device_new(hear_nothing);
	pthread_mutex_init(&group.lock, NULL);
	work.group = &group;
	work.what = "allreduce";
	work.receipt = (struct cvy_gpu_receipt *)&work; /* not looked into */
}

static void teardown(void)
{
	device_free(group.device);
	cvy_view_free(group.view);
	cvy_errbox_free(group.box);
	pthread_mutex_destroy(&group.lock);
}

static void told(int err, const char *why)
{
	struct covey_error_info info;

	ck_assert_int_eq(covey_last_error(&group, &info), 0);
	ck_assert_int_eq(info.err, err);
	ck_assert_int_eq(info.rank, 2);
	ck_assert_uint_eq(info.epoch, 7);
	ck_assert_ptr_nonnull(strstr(info.cause, why));
	ck_assert_ptr_nonnull(strstr(info.cause, "allreduce: launched; the stream has not come past it"));
}

TEST(a_wait_that_ends_by_its_deadline_says_for_what_it_was)
{
	ck_assert_int_eq(covey_work_wait(&work, 1, NULL), COVEY_ERR_TIMEOUT);
	told(COVEY_ERR_TIMEOUT, "the wait ended at its deadline");
	ck_assert_int_eq(covey_work_test(&work, NULL), COVEY_ERR_AGAIN);
}

TEST(an_abort_ends_tests_and_waits)
{
	site.ended = COVEY_ERR_ABORTED;
	ck_assert_int_eq(covey_work_wait(&work, 0, NULL), COVEY_ERR_ABORTED);
	told(COVEY_ERR_ABORTED, "covey_abort was called");
	ck_assert_int_eq(covey_work_test(&work, NULL), COVEY_ERR_ABORTED);
}

/* Such an end stops the device, and the stream passes: it has an outcome. */
TEST(another_end_leaves_a_work_under_way)
{
	struct covey_error_info info;

	site.ended = cvy_fail(group.box, COVEY_ERR_FENCED, 2, 7, "left out");
	ck_assert_int_eq(covey_work_test(&work, NULL), COVEY_ERR_AGAIN);
	ck_assert_int_eq(covey_work_wait(&work, 1, NULL), COVEY_ERR_TIMEOUT);
	ck_assert_int_eq(covey_last_error(&group, &info), 0);
	ck_assert_int_eq(info.err, COVEY_ERR_FENCED);
}

SUITE_MAIN(.name = "collectives/device_work", .setup = setup, .teardown = teardown)
