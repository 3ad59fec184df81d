/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outcome that a device gives: a message's failure first, then the last operation's, and none that it could not read.
 *
 * labels: tsan
 */
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "device_message.h"
#include "numbers.h"

/* What a failed read leaves behind is no outcome. */
static int status_not_read(struct cvy_gpu *gpu, struct cvy_gpu_status *to)
{
	memset(to, 0x11, sizeof(*to) / 2); /* a copy that broke off */
	return COVEY_ERR_IO;
}

static int failure_not_read(struct cvy_gpu *gpu, uint64_t *failure)
{
	*failure = 0x1111;
	return COVEY_ERR_IO;
}

static int synchronised_in_vain(struct cvy_gpu *gpu, int ending)
{
	return COVEY_ERR_IO;
}

static void *nothing_to_do(void *arg)
{
	return arg;
}

static int untouched(const void *at, size_t bytes)
{
	const uint8_t *byte = at;

	for (size_t i = 0; i < bytes; i++)
		if (byte[i] != 0x5a)
			return 0;
	return 1;
}

static int status_is_read(struct cvy_gpu *gpu, struct cvy_gpu_status *to)
{
	*to = (struct cvy_gpu_status){ .status = COVEY_ERR_LOST, .epoch = 4, .op = 9, .mask = 7, .missing = 2 };
	return 0;
}

static int failed_once(struct cvy_gpu *gpu, uint64_t *failure)
{
	static int asked;

	*failure = asked++ ? 0 : CVY_GPU_FAILURE(COVEY_ERR_MISMATCH, 5, 1, 77);
	return 0;
}

/* A message's failure comes first, once; then it is the last operation's outcome again. */
TEST(device_has_one_result)
{
	struct cvy_device *d = device_new(hear_nothing);
	const struct cvy_gpu_message_ops messages = { .failure = failed_once };
	struct covey_result result;

	numbers.status_read = status_is_read;
	d->message = &messages;
	ck_assert_int_eq(cvy_device_result(d, 3, &result), 0);
	ck_assert_int_eq(result.status, COVEY_ERR_MISMATCH);
	ck_assert_int_eq(result.peer, 5);
	ck_assert_int_eq(result.tag, 77);
	ck_assert_int_eq(cvy_device_result(d, 3, &result), 0);
	ck_assert_int_eq(result.status, COVEY_ERR_LOST);
	ck_assert_int_eq(result.peer, -1);
	ck_assert_uint_eq(result.epoch, 4);
	ck_assert_uint_eq(result.seq, 9);
	ck_assert_uint_eq(result.mask.word[0], 5);
	ck_assert_int_eq(result.size, 3);
	device_free(d);
}

/* An error leaves the caller's result as it was, and has a cause. */
TEST(device_writes_no_outcome_that_it_could_not_read)
{
	struct cvy_device *d = device_new(hear_nothing);
	const struct cvy_gpu_message_ops messages = { .failure = failure_not_read };
	struct covey_result result;
	struct covey_error_info info;

	numbers.status_read = status_not_read;
	d->message = &messages;
	d->box = cvy_errbox_new();
	memset(&result, 0x5a, sizeof(result));
	ck_assert_int_eq(cvy_device_result(d, 3, &result), COVEY_ERR_IO);
	ck_assert_int_eq(untouched(&result, sizeof(result)), 1);
	cvy_errbox_get(d->box, &info);
	ck_assert_str_eq(info.cause, "a device of numbers");
	numbers.status_read = status_is_read;
	ck_assert_int_eq(cvy_device_result(d, 3, &result), COVEY_ERR_IO);
	ck_assert_int_eq(untouched(&result, sizeof(result)), 1);
	cvy_errbox_free(d->box);
	device_free(d);
}

/* The safe point of a device that failed has none either. */
TEST(device_gives_no_outcome_of_a_safe_point_that_failed)
{
	struct cvy_device *d = device_new(hear_nothing);
	struct covey_result let_in = { .epoch = 1, .size = 3, .mask = { { 7 } } }, outcome;

	numbers.synchronise = synchronised_in_vain;
	d->join_ms = 10000;
	d->box = cvy_errbox_new();
	cvy_device_drain_init(d);
	learn(d, 1, 7, 0, 3);
	ck_assert_int_eq(cvy_device_admit_drain(d, &let_in), COVEY_ERR_IO);
	ck_assert_int_eq(cvy_device_draining(d), 0);
	d->drain.begun = 1; /* once more, for the call that waits again */
	d->drain.ended = 1;
	d->drain.err = COVEY_ERR_IO;
	ck_assert_int_eq(pthread_create(&d->drain.thread, NULL, nothing_to_do, NULL), 0);
	memset(&outcome, 0x5a, sizeof(outcome));
	ck_assert_int_eq(cvy_device_drained(d, &outcome), COVEY_ERR_IO);
	ck_assert_int_eq(untouched(&outcome, sizeof(outcome)), 1);
	cvy_device_drain_end(d);
	cvy_errbox_free(d->box);
	device_free(d);
}

SUITE_MAIN(.name = "collectives/device_result")
