/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages that a group of calls keeps, when the device ends before the group does: over a device of numbers.
 *
 * labels: tsan
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../suite.h"
#include "device_message.h"
#include "numbers.h"

static int launched, receipt_err;

static int count_launches(struct cvy_gpu *gpu, struct cvy_gpu_messages *m, struct CUstream_st *stream)
{
	launched++;
	return 0;
}

static int promise_one(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt)
{
	return 1;
}

static int keep_error(struct cvy_gpu *gpu, struct cvy_gpu_receipt *receipt, struct CUstream_st *stream, int err)
{
	receipt_err = err;
	return err;
}

static int not_capturing(struct CUstream_st *stream)
{
	return 0;
}

static const struct cvy_gpu_message_ops kept_ops = { .launch = count_launches,
						     .promise = promise_one,
						     .promised = keep_error };

/* Keeps a message in a group of calls. */
static struct cvy_device *device_with_message(void)
{
	struct cvy_device *d = device_new(hear_nothing);
	const struct cvy_device_message m = {
		.sending = 1, .peer = 1, .grouped = 1, .receipt = (struct cvy_gpu_receipt *)d
	};

	numbers.capturing = not_capturing;
	d->message = &kept_ops;
	d->contributors = cvy_ranks_with(cvy_ranks_one(0), 1);
	d->roll.since[1] = 1;
	launched = receipt_err = 0;
	ck_assert_int_eq(cvy_device_message(d, &m), 0);
	return d;
}

TEST_LOOP(group_of_calls_launches_nothing_after_an_end, 0, 2)
{
	const int err = _i ? COVEY_ERR_FENCED : COVEY_ERR_ABORTED;
	struct cvy_device *d = device_with_message();

	if (_i)
		d->ended = err;
	else
		cvy_device_drain_abort(d);
	ck_assert_int_eq(cvy_device_messages_end(), err);
	ck_assert_int_eq(launched, 0);
	ck_assert_int_eq(receipt_err, err);
	device_free(d);
}

TEST(device_that_closes_in_a_group_of_calls_launches_nothing)
{
	struct cvy_device *d = device_with_message(), *other = device_with_message();

	ck_assert_int_eq(cvy_device_messages_drop(d), 1);
	ck_assert_int_eq(cvy_device_messages_drop(d), 0);
	device_free(d);
	ck_assert_int_eq(cvy_device_messages_end(), 0);
	ck_assert_int_eq(launched, 1);
	device_free(other);
}

TEST(forked_child_does_not_launch_its_parents_messages)
{
	struct cvy_device *d = device_with_message();
	pid_t child = fork();
	int status = -1;

	if (!child) {
		cvy_device_messages_forget();
		_exit(cvy_device_messages_end() || launched);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(cvy_device_messages_end(), 0);
	ck_assert_int_eq(launched, 1);
	device_free(d);
}

SUITE_MAIN(.name = "collectives/device_messages")
